/* Sequences that were filled instead of prefilled: the engine cannot tell them from others, and
 * what a step then reads is what the profile counts. */
#include "tests/cmocka.h"

#include "kernels/profile.h"
#include "tests/engine/fixture.h"

#include <string.h>

#define LLAMA "tests/golden/families/llama3_gqa_bf16"

enum { CONTEXT = 256, OUTPUT = 24, VOCAB = 300 };

struct fill_run {
    uint32_t prompt_tokens;
    uint64_t seed;
    enum kva_kv_policy_id policy;
    bool suspend;
    bool all_coded; /* also of short sequences */
};

static struct kva_kv_spec spec_of(const struct fill_run *run)
{
    struct kva_kv_spec spec = kva_kv_spec_default(run->policy);
    if (run->all_coded) {
        spec.min_tokens = 0;
        spec.window = 64;
    }
    return spec;
}

static struct kva_sequence *start(struct fixture *f, const struct fill_run *run,
                                  const struct kva_sampling_params *sampling, uint32_t *prompt)
{
    struct kva_err err = {.message = ""};
    fixture_prompt(prompt, run->prompt_tokens, VOCAB, 3);
    struct kva_sequence *seq =
        fixture_start(f, &(struct kva_sequence_params){.prompt = prompt,
                                                       .prompt_tokens = run->prompt_tokens,
                                                       .tokens_max = run->prompt_tokens + OUTPUT,
                                                       .sampling = sampling,
                                                       .kv = kva_kv_spec_default(run->policy)});
    if (kva_model_engine_fill(f->engine, seq, run->seed, &err))
        fail_msg("%s", err.message);
    return seq;
}

static void run_tokens(struct fixture *f, const struct fill_run *run, uint32_t tokens[OUTPUT])
{
    uint32_t prompt[CONTEXT];
    struct kva_err err;
    const struct kva_sampling_params sampling = fixture_greedy();
    struct kva_sequence *seq = start(f, run, &sampling, prompt);
    for (uint32_t i = 0; i < OUTPUT - 1; i++) {
        fixture_decode(f, &seq, 1, &tokens[i]);
        if (!run->suspend)
            continue;
        f->engine->ops->suspend(f->engine->self, seq);
        assert_int_equal(f->engine->ops->resume(f->engine->self, seq, &err), KVA_OK);
    }
    f->engine->ops->destroy(f->engine->self, seq);
}

static void open_llama(struct fixture *f, bool prefix_cache)
{
    fixture_open(f, &(struct fixture_params){.model_path = LLAMA,
                                             .threads = 2,
                                             .context_max = CONTEXT,
                                             .copy_delay_max_us = 50,
                                             .prefix_cache = prefix_cache});
}

static void test_fill__exact_policies_read_the_same_kv(void **state KVA_UNUSED)
{
    static const uint32_t lengths[] = {1, 63, 64, 65, 200};
    for (size_t i = 0; i < KVA_COUNT_OF(lengths); i++) {
        uint32_t full[OUTPUT] = {0}, other[OUTPUT] = {0};
        struct fixture f;
        open_llama(&f, false);
        struct fill_run run = {.prompt_tokens = lengths[i], .seed = 5, .policy = KVA_KV_FULL};
        run_tokens(&f, &run, full);
        run.policy = KVA_KV_OFFLOAD;
        run_tokens(&f, &run, other);
        assert_memory_equal(full, other, sizeof(full));
        run.suspend = true;
        run_tokens(&f, &run, other);
        assert_memory_equal(full, other, sizeof(full));
        /* The KV is the seed's, and it matters. */
        run.seed = 6;
        run_tokens(&f, &run, other);
        if (lengths[i] > 64)
            assert_memory_not_equal(full, other, sizeof(full));
        fixture_close(&f);
    }
}

static void test_fill__pages_are_shared_and_accounted(void **state KVA_UNUSED)
{
    static const enum kva_kv_policy_id policies[] = {KVA_KV_FULL, KVA_KV_OFFLOAD};
    for (size_t i = 0; i < KVA_COUNT_OF(policies); i++) {
        struct fixture f;
        uint32_t prompt[CONTEXT];
        struct kva_engine_usage one, two;
        const struct kva_sampling_params sampling = fixture_greedy();
        const struct fill_run run = {.prompt_tokens = 200, .seed = 5, .policy = policies[i]};
        open_llama(&f, true);
        struct kva_sequence *a = start(&f, &run, &sampling, prompt);
        f.engine->ops->usage(f.engine->self, &one);
        const struct kva_kv_spec spec = kva_kv_spec_default(policies[i]);
        struct kva_tier_bytes own = kva_model_engine_footprint(f.engine, &spec, 200, 200);
        assert_int_equal(one.used.device, own.device);
        /* Promised for the output too. */
        own = kva_model_engine_footprint(f.engine, &spec, 200, 200 + OUTPUT);
        assert_int_equal(one.used.host, own.host);
        struct kva_sequence *b = start(&f, &run, &sampling, prompt);
        f.engine->ops->usage(f.engine->self, &two);
        own = kva_model_engine_footprint_shared(f.engine, &spec, 200, 200 + OUTPUT);
        assert_int_equal(two.used.host - one.used.host, own.host);
        own = kva_model_engine_footprint_shared(f.engine, &spec, 200, 200);
        assert_int_equal(two.used.device - one.used.device, own.device);
        struct kva_sequence_info info;
        f.engine->ops->sequence_info(f.engine->self, b, &info);
        assert_int_equal(info.cached_tokens, 192);
        f.engine->ops->destroy(f.engine->self, a);
        f.engine->ops->destroy(f.engine->self, b);
        fixture_close(&f);
    }
}

/* Low-bit copies, hot rows and windows are made from what was filled in, within the footprint. */
static void test_fill__coded_policies_stay_within_their_footprint(void **state KVA_UNUSED)
{
    static const enum kva_kv_policy_id policies[] = {KVA_KV_KIVI, KVA_KV_SPECACHE};
    for (size_t i = 0; i < KVA_COUNT_OF(policies); i++) {
        struct fixture f;
        uint32_t prompt[CONTEXT], token;
        struct kva_engine_usage usage;
        const struct kva_sampling_params sampling = fixture_greedy();
        const struct fill_run run = {
            .prompt_tokens = 200, .seed = 5, .policy = policies[i], .all_coded = true};
        const struct kva_kv_spec spec = spec_of(&run);
        open_llama(&f, false);
        struct kva_sequence *seq = start(&f, &run, &sampling, prompt);
        uint64_t most = kva_model_engine_footprint(f.engine, &spec, 200, 200 + OUTPUT).device;
        for (uint32_t step = 0; step < OUTPUT - 1; step++) {
            f.engine->ops->usage(f.engine->self, &usage);
            assert_in_range(usage.used.device, 1, most);
            fixture_decode(&f, &seq, 1, &token);
        }
        f.engine->ops->destroy(f.engine->self, seq);
        uint32_t whole[OUTPUT] = {0}, broken[OUTPUT] = {0};
        struct fill_run again = run;
        run_tokens(&f, &again, whole);
        again.suspend = true;
        run_tokens(&f, &again, broken);
        assert_memory_equal(whole, broken, sizeof(whole));
        fixture_close(&f);
    }
}

/* --- the profile ----------------------------------------------------------------------------- */

/* Bytes of a decode step's weights: all but the embedding's unused rows. */
static uint64_t step_weight_bytes(const struct kva_model *model, uint32_t batch)
{
    const struct kva_model_config *config = &model->config;
    uint64_t row_bytes = config->hidden_size * kva_dtype_bytes(model->embed.dtype);
    uint64_t table_bytes = config->tied_embeddings ? 0 : config->vocab_size * row_bytes;
    return model->weight_bytes - table_bytes + batch * row_bytes;
}

static void test_fill__profile_counts_what_a_step_reads(void **state KVA_UNUSED)
{
    enum { BATCH = 3, DEPTH = 130 };
    struct kva_profile profile;
    struct fixture f;
    struct kva_err err = {.message = ""};
    open_llama(&f, false);
    kva_model_engine_destroy(f.engine);
    kva_profile_attach(&profile, f.device);
    const struct kva_model_engine_params params = {.device = f.device,
                                                   .model = f.model,
                                                   .budget = {64 << 20, 64 << 20},
                                                   .context_max = CONTEXT,
                                                   .sequences_max = 16,
                                                   .step_tokens_max = 64};
    if (kva_model_engine_create(&params, &f.engine, &err))
        fail_msg("%s", err.message);
    uint32_t prompts[BATCH][CONTEXT], tokens[BATCH];
    struct kva_sequence *seqs[BATCH];
    const struct kva_sampling_params sampling = fixture_greedy();
    const struct fill_run run = {.prompt_tokens = DEPTH, .policy = KVA_KV_FULL};
    for (int i = 0; i < BATCH; i++)
        seqs[i] = start(&f, &run, &sampling, prompts[i]);
    kva_profile_clear(&profile);
    fixture_decode(&f, seqs, BATCH, tokens);
    const struct kva_profile_counts *counts = &profile.counts;
    const struct kva_model_config *config = &f.model->config;
    assert_int_equal(counts->weight_bytes, step_weight_bytes(f.model, BATCH));
    assert_int_equal(counts->kv_bytes, BATCH * (DEPTH + 1) * kva_model_kv_bytes_per_token(config));
    uint64_t matrices = 0;
    for (uint32_t i = 0; i < config->layer_count; i++) {
        const struct kva_layer_tensors *l = &f.model->layers[i];
        const struct kva_tensor *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < KVA_COUNT_OF(all); j++)
            matrices += (uint64_t)all[j]->rows * all[j]->cols;
    }
    matrices += (uint64_t)config->vocab_size * config->hidden_size;
    uint64_t pairs = (uint64_t)config->layer_count * config->heads * (DEPTH + 1);
    assert_int_equal(counts->flops, BATCH * (2 * matrices + 4 * pairs * config->head_dim));
    /* q, k and v; o; gate and up; down. */
    assert_int_equal(counts->calls[KVA_PROFILE_LINEAR], 4 * config->layer_count + 1);
    assert_int_equal(counts->calls[KVA_PROFILE_ATTEND], 2 * config->layer_count);
    assert_true(counts->ns[KVA_PROFILE_LINEAR] > 0);
    for (int i = 0; i < BATCH; i++)
        f.engine->ops->destroy(f.engine->self, seqs[i]);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill__exact_policies_read_the_same_kv),
        cmocka_unit_test(test_fill__pages_are_shared_and_accounted),
        cmocka_unit_test(test_fill__coded_policies_stay_within_their_footprint),
        cmocka_unit_test(test_fill__profile_counts_what_a_step_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
