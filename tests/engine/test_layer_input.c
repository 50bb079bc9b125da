/* A policy that looks at the input of each layer (layer_input): what it sees is what the layer's
 * queries are made of, by a plain computation, and in the order of the rows. */
#include "tests/cmocka.h"

#include "engine/forward.h"
#include "engine/kv/part.h"
#include "kernels/convert.h"
#include "tests/engine/trace.h"

#include <math.h>
#include <string.h>

#define OPT "tests/golden/families/opt_relu_tied"

enum { PROMPT = 70, STEPS = 6, COUNT = 3, HIDDEN_MAX = 128, LAYERS_MAX = 4, ROWS_MAX = 64 };

/* What the policy saw of the pass that runs. */
static struct {
    uint32_t hidden_size;
    uint32_t calls; /* in all passes */
    uint32_t layer; /* the last one */
    float input[LAYERS_MAX][ROWS_MAX * HIDDEN_MAX];
} seen;

static void layer_input(struct kva_kv *kv KVA_UNUSED, struct kva_kv_pass *pass, uint32_t layer,
                        const void *hidden)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        assert_int_equal(pass->rows[i].row_first, rows);
        rows += pass->rows[i].row_count;
    }
    assert_true(rows <= ROWS_MAX && layer < LAYERS_MAX);
    memcpy(seen.input[layer], hidden, (size_t)rows * seen.hidden_size * sizeof(float));
    seen.layer = layer;
    seen.calls++;
}

static uint32_t offloaded(const struct kva_kv_spec *spec KVA_UNUSED, uint32_t tokens KVA_UNUSED)
{
    return 0;
}

static const struct kva_kv_part *const parts[] = {&kva_kv_part_resident, NULL};

static const struct kva_kv_policy watching = {
    .name = "watching",
    .exactness = KVA_KV_INEXACT,
    .parts = parts,
    .offloaded = offloaded,
    .layer_input = layer_input,
};

/* --- a layer's queries, plainly --------------------------------------------------------------- */

static double element(const struct kva_tensor *t, size_t i)
{
    if (t->dtype == KVA_F32)
        return ((const float *)t->data)[i];
    const uint16_t *at = (const uint16_t *)t->data + i;
    return t->dtype == KVA_BF16 ? kva_f32_of_bf16(*at) : kva_f32_of_f16(*at);
}

static void normalise(const struct kva_model *model, const struct kva_layer_tensors *w,
                      const float *x, double *ret)
{
    uint32_t dim = model->config.hidden_size;
    double mean = 0, variance = 0;
    for (uint32_t i = 0; i < dim; i++)
        mean += (double)x[i] / dim;
    for (uint32_t i = 0; i < dim; i++)
        variance += ((double)x[i] - mean) * ((double)x[i] - mean) / dim;
    for (uint32_t i = 0; i < dim; i++)
        ret[i] = ((double)x[i] - mean) / sqrt(variance + (double)model->config.norm_eps) *
                     element(&w->attn_norm, i) +
                 element(&w->attn_norm_bias, i);
}

struct probe {
    const struct kva_model *model;
    uint32_t checked;
    double worst;
};

static void check_query(void *opaque, const struct kva_forward_view *view)
{
    struct probe *p = opaque;
    const struct kva_model_config *c = &p->model->config;
    const struct kva_layer_tensors *w = &p->model->layers[view->layer];
    double normed[HIDDEN_MAX];
    assert_int_equal(seen.layer, view->layer);
    normalise(p->model, w, seen.input[view->layer] + (size_t)view->rows->row_first * c->hidden_size,
              normed);
    for (uint32_t row = 0; row < c->heads * c->head_dim; row++) {
        double q = element(&w->q_bias, row);
        for (uint32_t i = 0; i < c->hidden_size; i++)
            q += element(&w->q, (size_t)row * c->hidden_size + i) * normed[i];
        p->worst = fmax(p->worst, fabs(q - (double)((const float *)view->q)[row]));
    }
    p->checked++;
}

static void test_layer_input__is_what_the_queries_are_made_of(void **state KVA_UNUSED)
{
    struct fixture f;
    uint32_t prompt[PROMPT], tokens[COUNT];
    struct kva_sequence *seqs[COUNT];
    const struct kva_sampling_params sampling = fixture_greedy();
    fixture_open(&f, &(struct fixture_params){.model_path = OPT,
                                              .step_tokens_max = ROWS_MAX,
                                              .cpu_level_mask = fixture_unrounded_levels()});
    struct probe probe = {.model = f.model};
    const struct kva_forward_observer observer = {.attends = check_query, .opaque = &probe};
    uint32_t layers = f.model->config.layer_count;
    seen.hidden_size = f.model->config.hidden_size;
    assert_true(seen.hidden_size <= HIDDEN_MAX && layers <= LAYERS_MAX);
    for (uint32_t i = 0; i < COUNT; i++) {
        fixture_prompt(prompt, PROMPT, VOCAB, i);
        seqs[i] = fixture_start(
            &f, &(struct kva_sequence_params){
                    .prompt = prompt,
                    .prompt_tokens = PROMPT,
                    .tokens_max = PROMPT + STEPS + 2,
                    .sampling = &sampling,
                    .kv = i == 1 ? kva_kv_spec_default(KVA_KV_FULL) : kva_kv_spec_own(&watching),
                });
        uint32_t before = seen.calls;
        fixture_prefill(&f, seqs[i], PROMPT);
        /* A prompt that is longer than a step goes in two chunks. */
        assert_int_equal(seen.calls - before, i == 1 ? 0 : 2 * layers);
    }
    kva_model_engine_observe(f.engine, &observer);
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t before = seen.calls;
        fixture_decode(&f, seqs, COUNT, tokens);
        assert_int_equal(seen.calls - before, layers);
    }
    kva_model_engine_observe(f.engine, NULL);
    assert_int_equal(probe.checked, STEPS * COUNT * layers);
    if (!(probe.worst < 1e-4))
        fail_msg("queries are off by %g", probe.worst);
    for (uint32_t i = 0; i < COUNT; i++)
        f.engine->ops->destroy(f.engine->self, seqs[i]);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_input__is_what_the_queries_are_made_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
