/* A GGUF file's blocks as they are, against the same decoded: every format, by what the whole model
 * says. */
#include "tests/cmocka.h"

#include "engine/eval/eval.h"
#include "tests/engine/fixture.h"
#include "tests/engine/model/checkpoint.h"
#include "tests/engine/model/gguf_random.h"

enum { IDS = 120, PROMPT = 90 };

struct pair {
    struct fixture packed, decoded;
};

static void open_pair(struct pair *pair, const char *path)
{
    struct fixture_params params = {
        .model_path = path,
        .cpu_level_mask = fixture_unrounded_levels(),
    };
    fixture_open(&pair->packed, &params);
    params.weights = KVA_WEIGHTS_BF16;
    fixture_open(&pair->decoded, &params);
    assert_non_null(pair->packed.model->packed);
    assert_null(pair->decoded.model->packed);
}

static struct kva_eval *compare(const struct pair *pair)
{
    uint32_t ids[IDS];
    struct kva_err err = {0};
    struct kva_eval *eval = NULL;
    struct kva_kv_spec full = kva_kv_spec_default(KVA_KV_FULL);
    fixture_prompt(ids, IDS, GGUF_RANDOM_VOCAB, 3);
    const struct kva_eval_sample sample = {.ids = ids, .count = IDS, .prompt = PROMPT};
    const struct kva_eval_params params = {
        .reference = pair->decoded.engine,
        .engine = pair->packed.engine,
        .device = pair->packed.device,
        .model = pair->packed.model,
        .kv_dtype = kva_model_engine_kv_dtype(pair->packed.model),
        .samples = &sample,
        .sample_count = 1,
        .specs = &full,
        .spec_count = 1,
    };
    if (kva_eval_run(&params, &eval, &err))
        fail_msg("%s", err.message);
    return eval;
}

/* Weights are the same but for the rounding of the decoded ones to bf16, 0.2%; activations are
 * rounded to 8 bits, which is 0.6% of a product's size where they are normal numbers, and some
 * products follow each other. */
static void test_packed_formats__logits_are_those_of_decoded_blocks(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < GGUF_RANDOM_FORMATS; i++) {
        char path[1024];
        struct checkpoint folder;
        struct gguf_writer writer;
        struct pair pair;
        checkpoint_init(&folder);
        gguf_random_put(&writer, "llama", gguf_random_formats[i]);
        gguf_writer_save(&writer, checkpoint_path(&folder, "m.gguf", path, sizeof(path)));
        open_pair(&pair, path);
        struct kva_eval *eval = compare(&pair);
        const struct kva_eval_policy *p = &eval->policies[0];
        assert_true(p->steps > 20);
        assert_true(p->logit_error > 0 && p->logit_error < 0.04);
        kva_eval_destroy(eval);
        fixture_close(&pair.packed);
        fixture_close(&pair.decoded);
        gguf_writer_finish(&writer);
        checkpoint_finish(&folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_formats__logits_are_those_of_decoded_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
