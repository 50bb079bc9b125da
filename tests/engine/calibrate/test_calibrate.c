/* A calibration of small models of every kind of family: what the observer sees is what the layers
 * are made of, rehearsed queries of a layer's own input are its queries, and threads and chunks make
 * no difference to the skew. */
#include "tests/cmocka.h"

#include "engine/calibrate/calibrate.h"
#include "engine/calibrate/eigen.h"
#include "tests/engine/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 192, WINDOWS = 3, VOCAB = 300, ROWS = 64 };

static const char *const families[] = {
    "tests/golden/families/llama3_gqa_bf16", "tests/golden/families/qwen3_qk_norm",
    "tests/golden/families/opt_relu_tied",   "tests/golden/families/neox_parallel",
    "tests/golden/families/gemma_tied",      "tests/golden/families/qwen2_mixed_window",
};

static bool lapack_is_here(void)
{
    struct kva_err err;
    return kva_eigen_check(NULL, &err) == KVA_OK;
}

static void open_family(struct fixture *f, const char *path)
{
    fixture_open(f, &(struct fixture_params){.model_path = path, .step_tokens_max = ROWS});
}

static struct kva_calibration *calibrated(struct fixture *f, uint32_t threads)
{
    uint32_t ids[WINDOWS * WINDOW];
    struct kva_err err = {0};
    struct kva_calibration *result = NULL;
    fixture_prompt(ids, WINDOWS * WINDOW, VOCAB, 5);
    const struct kva_calibrate_params params = {
        .engine = f->engine,
        .device = f->device,
        .model = f->model,
        .ids = ids,
        .window_count = WINDOWS - 1,
        .look_count = 1,
        .window_tokens = WINDOW,
        .threads = threads,
    };
    if (kva_calibrate(&params, &result, &err))
        fail_msg("%s", err.message);
    return result;
}

static void test_calibrate__threads_make_no_difference(void **state KVA_UNUSED)
{
    if (!lapack_is_here())
        skip();
    for (size_t i = 0; i < KVA_COUNT_OF(families); i++) {
        struct fixture f;
        open_family(&f, families[i]);
        struct kva_calibration *one = calibrated(&f, 1), *three = calibrated(&f, 3);
        const struct kva_model_config *c = &f.model->config;
        const size_t columns = (size_t)c->layer_count * c->kv_heads * c->head_dim;
        assert_int_equal(one->skew->method, three->skew->method);
        assert_memory_equal(one->skew->basis, three->skew->basis,
                            columns * c->head_dim * sizeof(float));
        assert_memory_equal(one->skew->energy, three->skew->energy, columns * sizeof(float));
        assert_memory_equal(one->layers, three->layers, c->layer_count * sizeof(*one->layers));
        assert_int_equal(one->skew->tokens, (WINDOWS - 1) * WINDOW);
        for (uint32_t layer = 0; layer < c->layer_count; layer++)
            assert_int_equal(one->gram->rows[layer], (WINDOWS - 1) * WINDOW);
        kva_calibration_destroy(one);
        kva_calibration_destroy(three);
        fixture_close(&f);
    }
}

static void test_calibrate__shares_are_shares(void **state KVA_UNUSED)
{
    if (!lapack_is_here())
        skip();
    for (size_t i = 0; i < KVA_COUNT_OF(families); i++) {
        struct fixture f;
        open_family(&f, families[i]);
        struct kva_calibration *c = calibrated(&f, 2);
        assert_int_equal(c->layers[0].rows, 0);
        assert_int_equal(c->layers[1].rows, WINDOW);
        for (uint32_t layer = 0; layer < c->layer_count; layer++) {
            for (uint32_t basis = 0; basis < KVA_LOOK_BASES; basis++) {
                const struct kva_look_found *all = c->layers[layer].found[basis][KVA_LOOK_OWN];
                assert_int_equal(all[KVA_LOOK_ALL].count, KVA_LOOK_SAMPLES * f.model->config.heads);
                if (f.model->config.layer_window[layer] == 0)
                    assert_true(all[KVA_LOOK_AWAY].count > 0);
                assert_true(all[KVA_LOOK_ALL].recall <= (double)all[KVA_LOOK_ALL].count);
                assert_true(all[KVA_LOOK_ALL].mass <= (double)all[KVA_LOOK_ALL].count * 1.000001);
            }
        }
        assert_true(isnan(kva_calibration_recall(c, KVA_LOOK_NONE, KVA_LOOK_REHEARSED,
                                                 KVA_LOOK_AWAY, c->layer_count)));
        kva_calibration_destroy(c);
        fixture_close(&f);
    }
}

/* --- rehearsing ------------------------------------------------------------------------------- */

struct probe {
    struct kva_rehearsal *rehearsal;
    const struct kva_model_config *config;
    float *input; /* [ROWS][hidden_size] */
    float *q;     /* [ROWS][heads][head_dim] */
    uint32_t seen[4];
};

static void see(void *opaque, const struct kva_forward_layer_view *view)
{
    struct probe *p = opaque;
    const struct kva_model_config *c = p->config;
    uint32_t positions[ROWS];
    p->seen[view->point]++;
    assert_true(view->rows <= ROWS && view->sequence_count == 1);
    if (view->point == KVA_POINT_INPUT) {
        assert_null(view->q);
        memcpy(p->input, view->hidden, (size_t)view->rows * c->hidden_size * sizeof(float));
    }
    if (view->point != KVA_POINT_QUERIES)
        return;
    for (uint32_t i = 0; i < view->rows; i++)
        positions[i] = view->sequences[0].position_first + i;
    kva_rehearse(p->rehearsal, view->layer, p->input, positions, view->rows, p->q);
    assert_memory_equal(p->q, view->q, (size_t)view->rows * c->heads * c->head_dim * sizeof(float));
}

static void test_calibrate__rehearsing_a_layers_own_input_gives_its_queries(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < KVA_COUNT_OF(families); i++) {
        struct fixture f;
        struct probe probe = {0};
        struct kva_err err = {0};
        uint32_t prompt[WINDOW];
        const struct kva_sampling_params sampling = fixture_greedy();
        open_family(&f, families[i]);
        const struct kva_model_config *c = probe.config = &f.model->config;
        assert_int_equal(kva_rehearsal_create(f.device, f.model, ROWS, &probe.rehearsal, &err),
                         KVA_OK);
        probe.input = malloc((size_t)ROWS * c->hidden_size * sizeof(float));
        probe.q = malloc((size_t)ROWS * c->heads * c->head_dim * sizeof(float));
        assert_true(probe.input && probe.q);
        const struct kva_forward_observer observer = {.layer = see, .opaque = &probe};
        fixture_prompt(prompt, WINDOW, VOCAB, i);
        struct kva_sequence *seq = fixture_start(&f, &(struct kva_sequence_params){
                                                         .prompt = prompt,
                                                         .prompt_tokens = WINDOW,
                                                         .tokens_max = WINDOW + 2,
                                                         .sampling = &sampling,
                                                         .kv = kva_kv_spec_default(KVA_KV_FULL),
                                                     });
        kva_model_engine_observe(f.engine, &observer);
        fixture_prefill(&f, seq, ROWS);
        kva_model_engine_observe(f.engine, NULL);
        for (size_t point = 0; point < 4; point++)
            assert_int_equal(probe.seen[point], c->layer_count * WINDOW / ROWS);
        f.engine->ops->destroy(f.engine->self, seq);
        kva_rehearsal_destroy(probe.rehearsal);
        free(probe.input);
        free(probe.q);
        fixture_close(&f);
    }
}

/* --- refused ---------------------------------------------------------------------------------- */

static void test_calibrate__too_little_is_refused_and_stopping_stops(void **state KVA_UNUSED)
{
    struct fixture f;
    uint32_t ids[WINDOWS * WINDOW];
    struct kva_err err = {0};
    struct kva_calibration *result = NULL;
    const atomic_bool cancelled = true;
    if (!lapack_is_here())
        skip();
    open_family(&f, families[0]);
    fixture_prompt(ids, WINDOWS * WINDOW, VOCAB, 5);
    const struct kva_calibrate_params good = {
        .engine = f.engine,
        .device = f.device,
        .model = f.model,
        .ids = ids,
        .window_count = WINDOWS - 1,
        .look_count = 1,
        .window_tokens = WINDOW,
        .threads = 1,
    };
    struct kva_calibrate_params params = good;
    params.look_count = 0;
    assert_int_equal(kva_calibrate(&params, &result, &err), KVA_EINVAL);
    params = good;
    params.window_tokens = 100;
    assert_int_equal(kva_calibrate(&params, &result, &err), KVA_EINVAL);
    params = good;
    params.window_tokens = f.engine->limits.context_max;
    params.window_count = 1;
    assert_int_equal(kva_calibrate(&params, &result, &err), KVA_ECONTEXT);
    params = good;
    params.cancelled = &cancelled;
    assert_int_equal(kva_calibrate(&params, &result, &err), KVA_ECANCELLED);
    params = good;
    params.threads = 100000;
    assert_int_equal(kva_calibrate(&params, &result, &err), KVA_EINVAL);
    assert_null(result);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calibrate__threads_make_no_difference),
        cmocka_unit_test(test_calibrate__shares_are_shares),
        cmocka_unit_test(test_calibrate__rehearsing_a_layers_own_input_gives_its_queries),
        cmocka_unit_test(test_calibrate__too_little_is_refused_and_stopping_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
