/* A folded checkpoint computes what the model computes, with other queries and keys. */
#include "tests/cmocka.h"

#include "engine/model/fold.h"
#include "tests/data.h"
#include "tests/engine/fixture.h"
#include "tests/engine/model/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPT "tests/golden/families/opt_relu_tied"

enum { PROMPT = 90, VOCAB = 300 };

/* Reflections: orthogonal, another one for each layer and head. */
static struct kva_skew *reflections(const struct kva_model_config *c)
{
    struct kva_err err = {0};
    struct kva_skew *skew;
    const uint32_t d = c->head_dim;
    assert_int_equal(kva_skew_create(c->layer_count, c->kv_heads, d, &skew, &err), KVA_OK);
    for (uint32_t head = 0; head < c->layer_count * c->kv_heads; head++) {
        float *a = skew->basis + (size_t)head * d * d;
        double norm = 0;
        for (uint32_t i = 0; i < d; i++)
            norm += (1 + (i * 7 + head) % 5) * (1 + (i * 7 + head) % 5);
        for (uint32_t i = 0; i < d; i++) {
            for (uint32_t j = 0; j < d; j++)
                a[(size_t)i * d + j] = (float)((i == j) - 2.0 * (1 + (i * 7 + head) % 5) *
                                                              (1 + (j * 7 + head) % 5) / norm);
        }
    }
    return skew;
}

static void model_path(char out[4096])
{
    kva_test_source(OPT, out, 4096);
}

/* Logits behind the prompt, and the queries of the last row in layer 1. */
struct answer {
    float logits[VOCAB];
    float *q;
    size_t q_count;
};

static void see(void *opaque, const struct kva_forward_layer_view *view)
{
    struct answer *answer = opaque;
    if (view->point == KVA_POINT_QUERIES && view->layer == 1)
        memcpy(answer->q, (const float *)view->q + (view->rows - 1) * answer->q_count,
               answer->q_count * sizeof(float));
}

static void ask(const char *path, struct answer *answer)
{
    struct fixture f;
    uint32_t prompt[PROMPT];
    const struct kva_sampling_params sampling = fixture_greedy();
    fixture_open(&f, &(struct fixture_params){.model_path = path,
                                              .cpu_level_mask = fixture_unrounded_levels()});
    answer->q_count = (size_t)f.model->config.heads * f.model->config.head_dim;
    answer->q = malloc(answer->q_count * sizeof(float));
    assert_non_null(answer->q);
    fixture_prompt(prompt, PROMPT, VOCAB, 3);
    struct kva_step_item item = {.prefill_tokens = 64,
                                 .logits = answer->logits,
                                 .seq =
                                     fixture_start(&f, &(struct kva_sequence_params){
                                                           .prompt = prompt,
                                                           .prompt_tokens = PROMPT,
                                                           .tokens_max = PROMPT + 2,
                                                           .sampling = &sampling,
                                                           .kv = kva_kv_spec_default(KVA_KV_FULL),
                                                       })};
    const struct kva_forward_observer observer = {.layer = see, .opaque = answer};
    struct kva_err err = {0};
    kva_model_engine_observe(f.engine, &observer);
    while (!item.emitted)
        assert_int_equal(f.engine->ops->step(f.engine->self, &item, 1, &err), KVA_OK);
    f.engine->ops->destroy(f.engine->self, item.seq);
    fixture_close(&f);
}

static struct kva_model *opened(const char *path)
{
    struct kva_err err = {0};
    struct kva_model *model;
    const struct kva_model_open_params params = {.path = path};
    assert_int_equal(kva_model_open(&params, &model, &err), KVA_OK);
    return model;
}

static void test_fold__logits_are_equal_to_rounding(void **state KVA_UNUSED)
{
    struct checkpoint folder;
    char path[4096], out[600];
    struct kva_err err = {0};
    model_path(path);
    checkpoint_init(&folder);
    struct kva_model *model = opened(path);
    struct kva_skew *skew = reflections(&model->config);
    const struct kva_fold_params params = {
        .path = path, .out_path = checkpoint_path(&folder, "out", out, sizeof(out)), .skew = skew};
    if (kva_fold_write(model, &params, &err))
        fail_msg("%s", err.message);
    struct answer was, now;
    ask(path, &was);
    ask(out, &now);
    double error = 0, spread = 0, moved = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        error = fmax(error, fabs((double)was.logits[i] - (double)now.logits[i]));
        spread = fmax(spread, fabs((double)was.logits[i]));
    }
    assert_true(error < 4e-3 * spread);
    /* Queries are those of before behind A. */
    const uint32_t d = skew->head_dim;
    for (uint32_t head = 0; head < model->config.heads; head++) {
        const float *a = skew->basis + kva_skew_basis_at(skew, 1, head);
        const float *x = was.q + (size_t)head * d, *y = now.q + (size_t)head * d;
        for (uint32_t j = 0; j < d; j++) {
            double sum = 0;
            for (uint32_t i = 0; i < d; i++)
                sum += (double)x[i] * (double)a[(size_t)i * d + j];
            assert_true(fabs(sum - (double)y[j]) < 2e-2 * (1 + fabs(sum)));
            moved = fmax(moved, fabs((double)x[j] - (double)y[j]));
        }
    }
    assert_true(moved > 0.1);
    /* A second time there is something. */
    assert_int_equal(kva_fold_write(model, &params, &err), KVA_EINVAL);
    free(was.q);
    free(now.q);
    kva_skew_destroy(skew);
    kva_model_close(model);
    char command[700];
    snprintf(command, sizeof(command), "rm -r '%s'", out);
    assert_int_equal(system(command), 0);
    checkpoint_finish(&folder);
}

static void test_fold__stopped_or_failed_it_leaves_nothing(void **state KVA_UNUSED)
{
    struct checkpoint folder;
    char path[4096], out[600], new[600];
    struct kva_err err = {0};
    const atomic_bool cancelled = true;
    model_path(path);
    checkpoint_init(&folder);
    struct kva_model *model = opened(path);
    struct kva_skew *skew = reflections(&model->config);
    struct kva_fold_params params = {.path = path,
                                     .out_path = checkpoint_path(&folder, "out", out, sizeof(out)),
                                     .skew = skew,
                                     .cancelled = &cancelled};
    checkpoint_path(&folder, "out.new", new, sizeof(new));
    /* What a killed one left goes, too. */
    assert_int_equal(mkdir(new, 0700), 0);
    checkpoint_puts(&folder, "out.new/model.safetensors", "half");
    assert_int_equal(kva_fold_write(model, &params, &err), KVA_ECANCELLED);
    assert_int_not_equal(access(new, F_OK), 0);
    assert_int_not_equal(access(out, F_OK), 0);
    /* What is somebody's stays. */
    params.cancelled = NULL;
    assert_int_equal(mkdir(new, 0700), 0);
    checkpoint_puts(&folder, "out.new/model.safetensors", "half");
    checkpoint_puts(&folder, "out.new/thesis.txt", "years");
    assert_int_equal(kva_fold_write(model, &params, &err), KVA_EINVAL);
    assert_non_null(strstr(err.message, "'thesis.txt'"));
    for (uint32_t i = 0; i < 2; i++) {
        const char *name = i ? "out.new/thesis.txt" : "out.new/model.safetensors";
        assert_int_equal(unlink(checkpoint_path(&folder, name, new, sizeof(new))), 0);
    }
    assert_int_equal(rmdir(checkpoint_path(&folder, "out.new", new, sizeof(new))), 0);
    params.out_path = "/proc/self/nowhere";
    assert_int_equal(kva_fold_write(model, &params, &err), KVA_EIO);
    kva_skew_destroy(skew);
    kva_model_close(model);
    checkpoint_finish(&folder);
}

static void test_fold__models_with_something_between_are_refused(void **state KVA_UNUSED)
{
    static const struct {
        const char *path, *part;
    } cases[] = {{"tests/golden/families/llama3_gqa_bf16", "(RoPE)"},
                 {"tests/golden/families/neox_parallel", "(RoPE)"},
                 {"tests/golden/families/qwen3_qk_norm", "(RoPE)"}};
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char path[4096];
        struct kva_err err = {0};
        kva_test_source(cases[i].path, path, sizeof(path));
        struct kva_model *model = opened(path);
        assert_int_equal(kva_fold_check(model, path, "/none", &err), KVA_EUNSUPPORTED);
        expect_message(&err, cases[i].part);
        model->config.rope.rotary_dim = 0;
        model->config.qk_norm = true;
        assert_int_equal(kva_fold_check(model, path, "/none", &err), KVA_EUNSUPPORTED);
        expect_message(&err, "norms its queries");
        kva_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fold__logits_are_equal_to_rounding),
        cmocka_unit_test(test_fold__stopped_or_failed_it_leaves_nothing),
        cmocka_unit_test(test_fold__models_with_something_between_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
