/* What sparsity.h adds up, against plain loops over the views: every token sorted, and what is kept
 * marked in an array. */
#include "tests/cmocka.h"

#include "engine/eval/sparsity.h"
#include "engine/eval/stream.h"
#include "kernels/convert.h"
#include "tests/engine/fixture.h"

#include <math.h>
#include <stdlib.h>

enum {
    CONTEXT = 256,
    TOKENS = 150 /* and one before them */,
    FROM = 80,
    VOCAB = 300,
    HEADS_MAX = 64,
    KEPT = 4
};

/* The last holds all tokens. */
static const uint32_t kept[KEPT] = {2, 7, 40, TOKENS + 1};

struct store {
    bool there[CONTEXT];
    double mass[CONTEXT];
};

struct probe {
    struct kva_forward_observer observer;
    struct kva_sparsity sparsity;
    struct fixture f;
    struct store stores[KEPT][HEADS_MAX];
    double best[KEPT], greedy[KEPT];
    uint64_t queries;
};

static void weigh(struct probe *p, const struct kva_forward_view *view, uint32_t head,
                  uint32_t count, double *weights)
{
    const struct kva_model_config *c = &p->f.model->config;
    const uint32_t group = c->heads / c->kv_heads;
    for (uint32_t t = 0; t < count; t++)
        weights[t] = 0;
    for (uint32_t j = 0; j < group; j++) {
        const float *q = (const float *)view->q + (size_t)(head * group + j) * c->head_dim;
        double sum = 0, terms[CONTEXT];
        for (uint32_t t = 0; t < count; t++) {
            const uint16_t *key = fixture_kv_row(&p->f, view, head, t);
            double score = 0;
            for (uint32_t i = 0; i < c->head_dim; i++)
                score += (double)q[i] * (double)kva_f32_of_bf16(key[i]);
            terms[t] = exp(score * (double)c->attend_scale);
            sum += terms[t];
        }
        for (uint32_t t = 0; t < count; t++)
            weights[t] += terms[t] / sum / group;
    }
}

static int downwards(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* The least of those that are there, but for the newest `recent`, is there no more. */
static void evict(struct store *store, uint32_t position, uint32_t recent)
{
    uint32_t least = CONTEXT, newer = 0;
    for (uint32_t t = position + 1; t-- > 0;) {
        if (!store->there[t] || newer++ < recent)
            continue;
        if (least == CONTEXT || store->mass[t] < store->mass[least])
            least = t;
    }
    store->there[least] = false;
}

static void look(void *opaque, const struct kva_forward_view *view)
{
    struct probe *p = opaque;
    const uint32_t heads = p->f.model->config.kv_heads, position = view->rows->position_first;
    double weights[CONTEXT], sorted[CONTEXT];
    p->sparsity.observer.attends(p->sparsity.observer.opaque, view);
    for (uint32_t head = 0; head < heads; head++) {
        weigh(p, view, head, position + 1, weights);
        memcpy(sorted, weights, sizeof sorted);
        qsort(sorted, position, sizeof *sorted, downwards);
        for (uint32_t i = 0; i < KEPT; i++) {
            struct store *store = &p->stores[i][view->layer * heads + head];
            double share = 0, best = weights[position];
            uint32_t there = 0;
            if (position == 1) { /* the prompt */
                store->there[0] = true;
                store->mass[0] = 1;
            }
            store->there[position] = true;
            for (uint32_t t = 0; t <= position; t++)
                share += store->there[t] ? weights[t] : 0;
            for (uint32_t t = 0; t <= position; t++) {
                store->mass[t] += store->there[t] ? weights[t] / share : 0;
                there += store->there[t];
                best += t < kept[i] && t < position ? sorted[t] : 0;
            }
            if (there > kept[i])
                evict(store, position, kept[i] / 2);
            p->best[i] += position >= FROM ? best : 0;
            p->greedy[i] += position >= FROM ? share : 0;
        }
        p->queries += position >= FROM;
    }
}

static void test_sparsity__is_what_plain_loops_say(void **state KVA_UNUSED)
{
    static struct probe p;
    uint32_t ids[TOKENS + 1];
    struct kva_stream_window window;
    struct kva_err err = {.message = ""};
    fixture_open(&p.f, &(struct fixture_params){.model_path = "tests/golden/families/"
                                                              "llama3_gqa_bf16",
                                                .cpu_level_mask = fixture_unrounded_levels()});
    fixture_prompt(ids, TOKENS + 1, VOCAB, 3);
    const struct kva_sparsity_params params = {.look = {.device = p.f.device,
                                                        .config = &p.f.model->config,
                                                        .kv_dtype = KVA_BF16,
                                                        .context_max = CONTEXT},
                                               .kept = kept,
                                               .count = KEPT,
                                               .from = FROM};
    if (kva_sparsity_init(&p.sparsity, &params, &err))
        fail_msg("%s", err.message);
    p.observer = (struct kva_forward_observer){.attends = look, .opaque = &p};
    kva_model_engine_observe(p.f.engine, &p.observer);
    const struct kva_stream_params stream = {.engine = p.f.engine,
                                             .model = p.f.model,
                                             .ids = ids,
                                             .window_tokens = TOKENS,
                                             .window_count = 1,
                                             .spec = kva_kv_spec_default(KVA_KV_FULL)};
    if (kva_eval_stream(&stream, &window, &err))
        fail_msg("%s", err.message);
    assert_true(p.queries > 0 && p.sparsity.queries == p.queries);
    for (uint32_t i = 0; i < KEPT; i++) {
        const double best = p.best[i] / (double)p.queries;
        const double greedy = p.greedy[i] / (double)p.queries;
        assert_true(fabs(p.sparsity.sums[i].best / (double)p.queries - best) < 1e-5);
        assert_true(fabs(p.sparsity.sums[i].greedy / (double)p.queries - greedy) < 1e-3);
        assert_true(i + 1 < KEPT ? greedy < best : fabs(greedy - 1) < 1e-6);
    }
    kva_sparsity_finish(&p.sparsity);
    fixture_close(&p.f);
}

static void test_sparsity__refuses_sliding_windows(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_err err;
    struct kva_sparsity sparsity;
    fixture_open(&f,
                 &(struct fixture_params){.model_path = "tests/golden/families/mistral_window"});
    const struct kva_sparsity_params params = {.look = {.device = f.device,
                                                        .config = &f.model->config,
                                                        .kv_dtype = KVA_BF16,
                                                        .context_max = CONTEXT},
                                               .kept = kept,
                                               .count = KEPT};
    assert_int_equal(kva_sparsity_init(&sparsity, &params, &err), KVA_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "sliding windows"));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sparsity__is_what_plain_loops_say),
        cmocka_unit_test(test_sparsity__refuses_sliding_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
