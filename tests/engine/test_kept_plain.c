/* A store of kept tokens against a plain computation in double: mass, what is kept, and attention;
 * and what few bits make of it. */
#include "tests/cmocka.h"

#include "engine/kv/parts/kept_internal.h"
#include "tests/engine/kept_specs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- a plain computation --------------------------------------------------------------------- */

enum { TEXT = 440, LAYERS = 3, HEADS = 8, DIM = 64 };

/* What a model with few heads has said so far, and what became of it. */
struct plain {
    struct fixture *f;
    const struct kva_kv_spec *spec; /* resolved */
    struct kva_kv_seq *seq;
    uint32_t prompt;
    uint32_t end; /* tokens before it are in the store or nowhere; 0 while the prompt is read */
    float q[LAYERS][TEXT][HEADS][DIM];
    double kv[LAYERS][TEXT][HEADS][2][DIM]; /* by KV head */
    double mass[LAYERS][HEADS][TEXT];       /* by KV head */
    bool kept[LAYERS][HEADS][TEXT];         /* in the store, or in the window */
    uint32_t seen;
    double worst, worst_mass;
};

static struct plain *plain;

/* A policy's layer_query: the queries of all rows, and what their K and V are. */
static void note(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, const void *q)
{
    const struct kva_kv_rows *rows = &pass->rows[0];
    const struct kva_model_config *c = &plain->f->model->config;
    plain->seq = rows->seq;
    assert_true(c->head_dim <= DIM && c->heads <= HEADS && c->layer_count <= LAYERS);
    for (uint32_t i = 0; i < rows->row_count; i++) {
        uint32_t t = rows->position_first + i;
        const uint16_t *block = *kva_kv_block_at(rows, t / KVA_PAGE_TOKENS);
        for (uint32_t head = 0; head < c->heads; head++)
            memcpy(plain->q[layer][t][head], (const float *)q + (i * c->heads + head) * c->head_dim,
                   c->head_dim * sizeof(float));
        for (uint32_t head = 0; head < kv->shape.kv_heads; head++) {
            const uint16_t *row =
                block + (size_t)(head * KVA_PAGE_TOKENS + t % KVA_PAGE_TOKENS) * 2 * c->head_dim;
            for (uint32_t d = 0; d < 2 * c->head_dim; d++)
                plain->kv[layer][t][head][d / c->head_dim][d % c->head_dim] =
                    fixture_kv_number(plain->f, row + d);
        }
    }
}

/* The score of a key that was rotated by its position, as if it had been by `position`. */
static double score_at(const float *q, const double *key, uint32_t token, uint32_t position)
{
    const struct kva_model_config *c = &plain->f->model->config;
    uint32_t half = c->rope.rotary_dim / 2;
    double score = 0;
    for (uint32_t d = 0; d < c->head_dim; d++) {
        double x = key[d];
        if (d < 2 * half && position != token) {
            double angle = ((double)position - (double)token) * (double)c->rope.inv_freq[d % half];
            x = d < half ? x * cos(angle) - key[d + half] * sin(angle)
                         : x * cos(angle) + key[d - half] * sin(angle);
        }
        score += (double)q[d] * x;
    }
    return score;
}

/* Where the first of the kept tokens attends, if they do so at their indices, right before the
 * window. */
static uint32_t first_index(const bool *kept)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plain->end; i++)
        count += kept[i];
    return plain->end - count;
}

/* Attention of a row's head over what its KV head has of tokens [0, t], added to the mass if `count`;
 * out[head_dim]. */
static void attend(uint32_t layer, uint32_t t, uint32_t head, bool count, double *out)
{
    const struct kva_model_config *c = &plain->f->model->config;
    uint32_t kv_head = head / (c->heads / c->kv_heads);
    double weights[TEXT], sum = 0;
    const bool *kept = plain->kept[layer][kv_head];
    bool rolls = plain->spec->positions == KVA_POSITIONS_INDEX;
    uint32_t index = first_index(kept);
    memset(out, 0, c->head_dim * sizeof(*out));
    for (uint32_t i = 0; i <= t; i++) {
        weights[i] = 0;
        if (!kept[i])
            continue;
        uint32_t position = rolls && i < plain->end ? index++ : i;
        double score =
            score_at(plain->q[layer][t][head], plain->kv[layer][i][kv_head][0], i, position);
        weights[i] = exp(score * (double)c->attend_scale);
        sum += weights[i];
    }
    for (uint32_t i = 0; i <= t; i++) {
        for (uint32_t d = 0; d < c->head_dim; d++)
            out[d] += weights[i] / sum * plain->kv[layer][i][kv_head][1][d];
        plain->mass[layer][kv_head][i] += count ? weights[i] / sum : 0;
    }
}

/* What attention gave is what it should give. */
static void check_attention(void *opaque KVA_UNUSED, const struct kva_forward_view *view)
{
    const struct kva_model_config *c = &plain->f->model->config;
    double want[DIM];
    for (uint32_t i = 0; i < view->rows->row_count; i++) {
        uint32_t t = view->rows->position_first + i;
        for (uint32_t head = 0; head < c->heads; head++) {
            const float *out =
                (const float *)view->out + ((size_t)i * c->heads + head) * c->head_dim;
            attend(view->layer, t, head, true, want);
            for (uint32_t d = 0; d < c->head_dim; d++)
                plain->worst = fmax(plain->worst, fabs(want[d] - (double)out[d]));
        }
        plain->seen++;
    }
}

/* Keys that are rotated back and again have been rounded to 16 bits once more each time. */
static double bound(void)
{
    return plain->spec->positions == KVA_POSITIONS_INDEX ? 1e-2 : 2e-5;
}

/* The store of a layer's KV head is what mass says, up to rounding; from here on it is believed.
 * Tokens before `end` are in the store or nowhere. */
static void check_store(struct kva_kv *kv, uint32_t layer, uint32_t head, uint32_t end,
                        uint32_t before)
{
    const struct kva_kept_state *s = kva_kept_state_of(plain->seq);
    struct kva_kept_layout l = kva_kept_layout_of(kv, &plain->seq->spec);
    uint32_t slots = kva_kept_slots(&plain->seq->spec), filled = slots < end ? slots : end;
    const unsigned char *marks = s->marks + layer * l.layer_bytes;
    const uint32_t *positions =
        (const uint32_t *)(const void *)(marks + l.positions) + head * slots;
    const float *masses = (const float *)(const void *)(marks + l.mass) + head * slots;
    double *mass = plain->mass[layer][head], least = INFINITY, most = -INFINITY;
    bool in[TEXT] = {false}, *kept = plain->kept[layer][head];
    for (uint32_t i = 0; i < filled; i++) {
        uint32_t t = positions[i];
        assert_true(t < end && !in[t]);
        in[t] = true;
        assert_true(kept[t]); /* what is gone does not come back */
        plain->worst_mass =
            fmax(plain->worst_mass, fabs(mass[t] - (double)masses[i]) / fmax(mass[t], 1));
    }
    for (uint32_t t = 0; t < end; t++) {
        bool held = t < plain->spec->sinks || t + (plain->spec->recent - 64) >= end;
        assert_true(in[t] || !held);
        if (!held && in[t])
            least = fmin(least, mass[t]);
        if (kept[t] && !in[t])
            most = fmax(most, mass[t]);
        kept[t] = in[t];
    }
    assert_true(before <= end && least >= most - 5 * bound() * fmax(most, 1));
}

static void check_stores(struct kva_kv *kv, uint32_t end, uint32_t before)
{
    const struct kva_model_config *c = &plain->f->model->config;
    for (uint32_t layer = 0; layer < c->layer_count; layer++) {
        for (uint32_t head = 0; head < c->kv_heads; head++)
            check_store(kv, layer, head, end, before);
    }
}

/* The mass that the prompt's rows give. */
static void weigh_prompt(void)
{
    const struct kva_model_config *c = &plain->f->model->config;
    uint32_t first = plain->spec->mass == KVA_MASS_ALL ? 0 : plain->prompt - KVA_KV_OBSERVED;
    double out[DIM];
    for (uint32_t layer = 0; layer < c->layer_count; layer++) {
        for (uint32_t t = first; t < plain->prompt; t++) {
            for (uint32_t head = 0; head < c->heads; head++)
                attend(layer, t, head, true, out);
        }
    }
}

static struct kva_kv *noted_kv;

static void note_all(struct kva_kv *kv, struct kva_kv_pass *pass, uint32_t layer, const void *q)
{
    noted_kv = kv;
    note(kv, pass, layer, q);
}

static void run_plain(const char *model, const struct kva_kv_spec *settings, uint32_t prompt,
                      uint32_t tokens, uint32_t quota)
{
    static struct kva_kv_policy policy;
    struct fixture f;
    uint32_t ids[TEXT + 1], token;
    const struct kva_sampling_params sampling = trace_sampling();
    const struct kva_forward_observer observer = {.attended = check_attention};
    plain = calloc(1, sizeof(*plain));
    policy = kva_kv_policy_h2o;
    policy.layer_query = note_all;
    struct kva_kv_spec own = *settings, resolved = kva_kv_spec_resolve(settings, prompt, prompt);
    own.own = &policy;
    fixture_open(&f, &(struct fixture_params){.model_path = model,
                                              .cpu_level_mask = fixture_unrounded_levels()});
    plain->f = &f;
    plain->spec = &resolved;
    plain->prompt = prompt;
    memset(plain->kept, true, sizeof(plain->kept));
    fixture_prompt(ids, prompt, VOCAB, 21);
    struct kva_sequence *seq =
        fixture_start(&f, &(struct kva_sequence_params){.prompt = ids,
                                                        .prompt_tokens = prompt,
                                                        .tokens_max = tokens + 1,
                                                        .sampling = &sampling,
                                                        .kv = own});
    fixture_prefill(&f, seq, quota);
    weigh_prompt();
    uint32_t end = plain->seq->offloaded * KVA_PAGE_TOKENS;
    if (end > 0)
        check_stores(noted_kv, end, 0);
    plain->end = end;
    kva_model_engine_observe(f.engine, &observer);
    for (uint32_t t = prompt; t < tokens; t++) {
        fixture_decode(&f, &seq, 1, &token);
        uint32_t now = plain->seq->offloaded * KVA_PAGE_TOKENS;
        if (now > end)
            check_stores(noted_kv, now, end);
        plain->end = end = now;
    }
    kva_model_engine_observe(f.engine, NULL);
    f.engine->ops->destroy(f.engine->self, seq);
    assert_int_equal(plain->seen, (tokens - prompt) * f.model->config.layer_count);
    if (!(plain->worst < bound() && plain->worst_mass < bound()))
        fail_msg("%s: attention is off by %g, mass by %g", model, plain->worst, plain->worst_mass);
    fixture_close(&f);
    free(plain);
}

static void test_kept_plain__attends_as_a_plain_computation(void **state KVA_UNUSED)
{
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        struct kva_kv_spec spec = small(KVA_MASS_LAST);
        run_plain(models[m], &spec, 200, 250, 64);
        spec = small(KVA_MASS_ALL);
        run_plain(models[m], &spec, 200, 250, 37);
        /* Percent, recent tokens in the store, and no sinks. */
        spec = spec_of(KVA_KV_PERCENT | 5, KVA_KV_PERCENT | 50, KVA_MASS_LAST);
        spec.sinks = 0;
        run_plain(models[m], &spec, 190, 250, 64);
        /* A store that fills while decoding, then overflows. */
        spec = spec_of(50, 64, KVA_MASS_LAST);
        run_plain(models[m], &spec, 100, 255, 64);
    }
}

/* Kept tokens at their indices, past the context of 256: rotary positions, whole and partial, in
 * f16, and learned ones. */
static void test_kept_plain__attends_at_indices(void **state KVA_UNUSED)
{
    static const char *const of_f16[] = {MHA, NEOX, OPT};
    for (size_t m = 0; m < KVA_COUNT_OF(of_f16); m++) {
        struct kva_kv_spec spec = small(KVA_MASS_LAST);
        spec.positions = KVA_POSITIONS_INDEX;
        run_plain(of_f16[m], &spec, 200, 420, 64);
        spec.heavy = 90;
        run_plain(of_f16[m], &spec, 100, 330, 64);
    }
}

/* --- few bits -------------------------------------------------------------------------------- */

/* At 16 bits there is nothing to tell tokens apart but mass. */
static void test_kept_plain__sixteen_bits_are_h2o(void **state KVA_UNUSED)
{
    const struct fixture_params params = {.model_path = LLAMA};
    struct run run = {.prompt_tokens = 200, .prompt_seed = 5, .kv = small(KVA_MASS_LAST)};
    const struct trace want = run_under(&params, run);
    run.kv = coded(16, KVA_MASS_LAST);
    const struct trace got = run_under(&params, run);
    trace_expect_same(&got, &want, "16 bits");
}

/* Positions in the stores of all layers and heads, sorted, once the prompt is in. */
static void stored_after(struct kva_kv_spec spec, uint32_t prompt, uint32_t *ret,
                         uint32_t *ret_count)
{
    static struct kva_kv_policy policy;
    struct fixture f;
    uint32_t ids[TEXT];
    const struct kva_sampling_params sampling = trace_sampling();
    policy = *kva_kv_policy_of(&spec);
    policy.layer_query = note_all;
    spec.own = &policy;
    plain = calloc(1, sizeof(*plain));
    fixture_prompt(ids, prompt, VOCAB, 21);
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA});
    plain->f = &f;
    struct kva_sequence *seq =
        fixture_start(&f, &(struct kva_sequence_params){.prompt = ids,
                                                        .prompt_tokens = prompt,
                                                        .tokens_max = prompt + 2,
                                                        .sampling = &sampling,
                                                        .kv = spec});
    fixture_prefill(&f, seq, 64);
    const struct kva_kept_layout l = kva_kept_layout_of(noted_kv, &plain->seq->spec);
    uint32_t slots = kva_kept_slots(&plain->seq->spec), at = 0;
    assert_int_equal(slots, 64);
    for (uint32_t layer = 0; layer < f.model->config.layer_count; layer++) {
        const uint32_t *positions = (const void *)(kva_kept_state_of(plain->seq)->marks +
                                                   layer * l.layer_bytes + l.positions);
        for (uint32_t head = 0; head < f.model->config.kv_heads; head++) {
            bool in[TEXT] = {false};
            for (uint32_t i = 0; i < slots; i++)
                in[positions[head * slots + i]] = true;
            for (uint32_t t = 0; t < prompt; t++) {
                if (in[t])
                    ret[at++] = t;
            }
        }
    }
    *ret_count = at;
    f.engine->ops->destroy(f.engine->self, seq);
    fixture_close(&f);
    free(plain);
}

/* Error does not count at lambda 100, and alone at 0; `pure` tokens are chosen as if it were 100. */
static void test_kept_plain__lambda(void **state KVA_UNUSED)
{
    enum { PROMPT = 250, MOST = 1024 };
    uint32_t want[MOST], got[MOST], want_count, count;
    stored_after(small(KVA_MASS_ALL), PROMPT, want, &want_count);
    assert_int_equal(want_count, 2 * 2 * 64);
    for (uint32_t i = 0; i < 8; i++) {
        struct kva_kv_spec spec = coded(i < 4 ? 3 : 2, KVA_MASS_ALL);
        bool same = i % 4 == 0 || i % 4 == 3;
        spec.lambda = i % 4 == 0 ? 100 : 0;
        spec.pure = i % 4 == 3 ? 60 : 0;
        spec.norm = i % 4 == 2 ? KVA_NORM_MINMAX : KVA_NORM_RANK;
        stored_after(spec, PROMPT, got, &count);
        assert_int_equal(count, want_count);
        assert_int_equal(memcmp(got, want, count * sizeof(*got)) == 0, same);
    }
}

/* More bits are closer to full KV, from a store that holds all. */
static void test_kept_plain__more_bits_are_closer_to_full(void **state KVA_UNUSED)
{
    static const uint32_t bits[] = {2, 3, 4, 8, 16};
    for (size_t m = 0; m < KVA_COUNT_OF(models); m++) {
        double before = INFINITY;
        for (size_t i = 0; i < KVA_COUNT_OF(bits); i++) {
            double sum = 0;
            uint32_t count = 0;
            for (uint64_t seed = 0; seed < 12; seed++) {
                const struct fixture_params params = {.model_path = models[m]};
                struct run run = {.prompt_tokens = 200, .prompt_seed = 100 + seed};
                const struct trace want = run_under(&params, run);
                run.kv = coded(bits[i], KVA_MASS_LAST);
                run.kv.heavy = CONTEXT;
                const struct trace got = run_under(&params, run);
                assert_true(got.logprobs[0] == want.logprobs[0]);
                for (uint32_t t = 1; t < OUTPUT && got.tokens[t - 1] == want.tokens[t - 1]; t++)
                    sum += pow((double)got.logprobs[t] - (double)want.logprobs[t], 2), count++;
            }
            print_message("%s, %u bits: squared error %g\n", models[m], bits[i], sum / count);
            assert_true(bits[i] < 16 ? sum / count < before : sum == 0);
            before = sum / count;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_plain__attends_as_a_plain_computation),
        cmocka_unit_test(test_kept_plain__attends_at_indices),
        cmocka_unit_test(test_kept_plain__sixteen_bits_are_h2o),
        cmocka_unit_test(test_kept_plain__lambda),
        cmocka_unit_test(test_kept_plain__more_bits_are_closer_to_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
