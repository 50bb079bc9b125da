/* What kept tokens take of the device at 32,768 tokens, by a formula, and beside full KV. */
#include "tests/cmocka.h"

#include "tests/engine/fixture.h"
#include "tests/engine/kept_specs.h"

#include <math.h>
#include <stdlib.h>

enum { TOKENS = 32768, LAYERS = 32, HEADS = 2, DIM = 64, BLOCK = 64 };

static char folder[FIXTURE_PATH_BYTES];

/* One KV head for both heads. */
static int make_model(void **state KVA_UNUSED)
{
    static const char config[] =
        "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":128,"
        "\"intermediate_size\":64,\"num_hidden_layers\":32,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":1,\"vocab_size\":300,\"max_position_embeddings\":65536,"
        "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
        "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}";
    fixture_make_model(config, 7, 0, folder);
    return 0;
}

static int remove_model(void **state KVA_UNUSED)
{
    fixture_remove_model(folder);
    return 0;
}

/* Of a sequence that is past its prompt. */
static double device_bytes(struct fixture *f, const struct kva_kv_spec *spec,
                           const uint32_t *prompt)
{
    struct kva_err err = {.message = ""};
    struct kva_sequence_info info;
    const struct kva_sampling_params sampling = fixture_greedy();
    struct kva_sequence *seq =
        fixture_start(f, &(struct kva_sequence_params){.prompt = prompt,
                                                       .prompt_tokens = TOKENS,
                                                       .tokens_max = TOKENS + 1,
                                                       .sampling = &sampling,
                                                       .kv = *spec});
    if (kva_model_engine_fill(f->engine, seq, 5, &err))
        fail_msg("%s", err.message);
    f->engine->ops->sequence_info(f->engine->self, seq, &info);
    f->engine->ops->destroy(f->engine->self, seq);
    return (double)info.bytes.device;
}

/* A key and a value of one KV head; in few bits with scale and zero of each in f16. */
static double row_bytes(uint32_t bits)
{
    return bits == 16 ? DIM * 2 * 2 : DIM * 2 * bits / 8.0 + 2 * 2 * 2;
}

/* docs/kv.md, "H2O": rows, the window's page, and what is known of slots, in whole pages. */
static double formula(uint32_t kept, uint32_t bits)
{
    const double page = LAYERS * BLOCK * row_bytes(16);
    const uint32_t slots = (kept - BLOCK + BLOCK - 1) / BLOCK * BLOCK;
    const uint32_t known = bits == 16 ? 8 : 12; /* position, mass, and error */
    const double marks = slots * (LAYERS * known + 24.0 + 4 * HEADS);
    return LAYERS * slots * row_bytes(bits) + page + ceil(marks / page) * page;
}

static void test_kept_memory__is_what_the_formula_says(void **state KVA_UNUSED)
{
    static const struct {
        uint32_t bits, percent;
        double below; /* times, of full's bytes */
    } cases[] = {{16, 20, 4.5}, {16, 5, 16}, {8, 20, 8}, {4, 20, 14}, {3, 20, 17}, {2, 20, 21}};
    struct fixture f;
    uint32_t *prompt = malloc(TOKENS * sizeof *prompt);
    fixture_prompt(prompt, TOKENS, 300, 3);
    fixture_open(&f, &(struct fixture_params){.model_path = folder,
                                              .context_max = TOKENS + 64,
                                              .device_bytes = 400 << 20,
                                              .host_bytes = 800 << 20});
    struct kva_kv_spec spec = kva_kv_spec_default(KVA_KV_FULL);
    const double full = device_bytes(&f, &spec, prompt);
    assert_true(full >= LAYERS * row_bytes(16) * TOKENS);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        const uint32_t half = TOKENS * cases[i].percent / 200;
        spec = kva_kv_spec_default(cases[i].bits == 16 ? KVA_KV_H2O : KVA_KV_QHITTER);
        spec.heavy = spec.recent = half;
        spec.bits = cases[i].bits;
        const double got = device_bytes(&f, &spec, prompt);
        const double expect = formula(spec.sinks + 2 * half, cases[i].bits);
        if (got < 0.99 * expect || got > 1.01 * expect || got * cases[i].below > full)
            fail_msg("%u bits, %u%%: %.0f bytes, the formula says %.0f, full has %.0f",
                     cases[i].bits, cases[i].percent, got, expect, full);
    }
    fixture_close(&f);
    free(prompt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_memory__is_what_the_formula_says),
    };
    return cmocka_run_group_tests(tests, make_model, remove_model);
}
