#include "tests/engine/model/checkpoint.h"

#include "engine/model/config.h"
#include "engine/model/limits.h"
#include "tests/cmocka.h"
#include "tests/data.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>

static enum kva_status parse_text(const char *config, const char *generation,
                                  struct kva_model_spec *ret, struct kva_err *err)
{
    cJSON *root = NULL, *more = NULL;
    assert_int_equal(kva_model_json_parse(config, strlen(config), "config.json", &root, err),
                     KVA_OK);
    if (generation)
        assert_int_equal(kva_model_json_parse(generation, strlen(generation), "g", &more, err),
                         KVA_OK);
    enum kva_status status = kva_model_spec_parse(root, more, ret, err);
    cJSON_Delete(more);
    cJSON_Delete(root);
    return status;
}

/* A config of an architecture with sound values and `extra` fields ("\"a\":1," or ""). */
static const char *config_with(const char *architecture, const char *extra)
{
    static char text[4096];
    snprintf(text, sizeof(text),
             "{\"architectures\":[\"%s\"],\"model_type\":\"any\",%s\"hidden_size\":64,"
             "\"num_attention_heads\":4,\"intermediate_size\":96,\"vocab_size\":300,"
             "\"num_hidden_layers\":3,\"max_position_embeddings\":128}",
             architecture, extra);
    return text;
}

static struct kva_model_spec parse_good(const char *architecture, const char *extra)
{
    struct kva_model_spec spec = {0};
    struct kva_err err = {0};
    if (parse_text(config_with(architecture, extra), NULL, &spec, &err))
        fail_msg("%s with %s: %s", architecture, extra, err.message);
    return spec;
}

struct real_config {
    const char *name;
    struct kva_model_config want;
    uint32_t window;
    double inv_freq_last;
    const char *quant_method;
};

static const struct real_config real_configs[] = {
    {"llama-3.1-8b-instruct",
     {.model_type = "llama",
      .vocab_size = 128256,
      .hidden_size = 4096,
      .intermediate_size = 14336,
      .layer_count = 32,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 128,
      .context_max = 131072,
      .norm_eps = 1e-5f,
      .dtype = KVA_F16,
      .eos_ids = {128001, 128008, 128009},
      .eos_count = 3,
      .bos_id = 128000},
     0,
     3.068925877869333e-07,
     "bitsandbytes"},
    {"llama-3.2-1b-finetune",
     {.model_type = "llama",
      .vocab_size = 128256,
      .hidden_size = 2048,
      .intermediate_size = 8192,
      .layer_count = 16,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 64,
      .context_max = 131072,
      .norm_eps = 1e-5f,
      .tied_embeddings = true,
      .dtype = KVA_F16,
      .eos_ids = {128001},
      .eos_count = 1,
      .bos_id = 128000},
     0,
     9.418306490260875e-08,
     "bitsandbytes"},
    {"llama-3.2-3b-instruct",
     {.model_type = "llama",
      .vocab_size = 128256,
      .hidden_size = 3072,
      .intermediate_size = 8192,
      .layer_count = 28,
      .heads = 24,
      .kv_heads = 8,
      .head_dim = 128,
      .context_max = 131072,
      .norm_eps = 1e-5f,
      .tied_embeddings = true,
      .dtype = KVA_BF16,
      .eos_ids = {128001, 128008, 128009},
      .eos_count = 3,
      .bos_id = 128000},
     0,
     /* theta^(-126/128) / 32 */
     7.672314972286278e-08,
     ""},
    {"mistral-7b",
     {.model_type = "mistral",
      .vocab_size = 32000,
      .hidden_size = 4096,
      .intermediate_size = 14336,
      .layer_count = 32,
      .heads = 32,
      .kv_heads = 8,
      .head_dim = 128,
      .context_max = 32768,
      .norm_eps = 1e-5f,
      .dtype = KVA_BF16,
      .eos_ids = {2},
      .eos_count = 1,
      .bos_id = 1},
     4096,
     /* 10000^(-126/128) */
     1.1547819846894582e-04,
     ""},
};

static void check_real(const struct real_config *real, const struct kva_model_spec *spec)
{
    const struct kva_model_config *have = &spec->config, *want = &real->want;
    assert_string_equal(have->model_type, want->model_type);
    assert_int_equal(have->vocab_size, want->vocab_size);
    assert_int_equal(have->hidden_size, want->hidden_size);
    assert_int_equal(have->intermediate_size, want->intermediate_size);
    assert_int_equal(have->layer_count, want->layer_count);
    assert_int_equal(have->heads, want->heads);
    assert_int_equal(have->kv_heads, want->kv_heads);
    assert_int_equal(have->head_dim, want->head_dim);
    assert_int_equal(have->context_max, want->context_max);
    assert_true(have->norm_eps == want->norm_eps);
    assert_int_equal(have->norm, KVA_NORM_RMS);
    assert_int_equal(have->activation, KVA_ACT_SILU);
    assert_true(have->gated_mlp && !have->qk_norm);
    assert_int_equal(have->tied_embeddings, want->tied_embeddings);
    assert_int_equal(have->dtype, want->dtype);
    assert_int_equal(have->eos_count, want->eos_count);
    assert_memory_equal(have->eos_ids, want->eos_ids, sizeof(want->eos_ids));
    assert_int_equal(have->bos_id, want->bos_id);
    assert_true(fabs(have->attend_scale - 1.0 / sqrt(want->head_dim)) < 1e-7);
    for (uint32_t i = 0; i < want->layer_count; i++)
        assert_int_equal(have->layer_window[i], real->window);
    assert_int_equal(have->rope.rotary_dim, want->head_dim);
    assert_true(have->rope.inv_freq[0] == 1.0f && have->rope.factor == 1.0f);
    double last = have->rope.inv_freq[want->head_dim / 2 - 1];
    assert_true(fabs(last / real->inv_freq_last - 1) < 1e-6);
    assert_string_equal(spec->quant_method, real->quant_method);
    assert_false(spec->qkv_bias || spec->o_bias || spec->mlp_bias);
}

static void test_config__published_files(void **state KVA_UNUSED)
{
    char name[128], path[4096];
    for (size_t i = 0; i < KVA_COUNT_OF(real_configs); i++) {
        struct kva_err err = {0};
        struct kva_model_spec spec;
        cJSON *config = NULL, *generation = NULL;
        snprintf(name, sizeof(name), "configs/%s", real_configs[i].name);
        if (!kva_test_data(name, path, sizeof(path)))
            skip();
        int dir = open(path, O_RDONLY | O_DIRECTORY);
        assert_true(dir >= 0);
        assert_int_equal(kva_model_json_read(dir, "config.json", 1 << 20, &config, &err), KVA_OK);
        assert_int_equal(
            kva_model_json_read(dir, "generation_config.json", 1 << 20, &generation, &err), KVA_OK);
        close(dir);
        assert_int_equal(kva_model_spec_parse(config, generation, &spec, &err), KVA_OK);
        check_real(&real_configs[i], &spec);
        bool samples = strncmp(real_configs[i].name, "llama", 5) == 0;
        assert_true(samples ? spec.generation.temperature == 0.6
                            : isnan(spec.generation.temperature));
        assert_true(samples ? spec.generation.top_p == 0.9 : isnan(spec.generation.top_p));
        assert_int_equal(spec.generation.top_k, -1);
        cJSON_Delete(config);
        cJSON_Delete(generation);
        kva_model_config_finish(&spec.config);
    }
}

static void test_config__mixture_of_experts_is_refused_by_name(void **state KVA_UNUSED)
{
    char path[4096];
    struct kva_err err = {0};
    struct kva_model *model;
    if (!kva_test_data("configs/granite-3.1-1b-a400m", path, sizeof(path)))
        skip();
    struct kva_model_open_params params = {.path = path};
    assert_int_equal(kva_model_open(&params, &model, &err), KVA_EUNSUPPORTED);
    expect_message(&err,
                   "architecture 'GraniteMoeForCausalLM' is not supported; supported are: "
                   "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
                   "GemmaForCausalLM, OPTForCausalLM, GPTNeoXForCausalLM");
}

static void test_config__llama3_frequencies_are_the_reference_ones(void **state KVA_UNUSED)
{
    /* What transformers computes for Llama 3.1 8B: unscaled, blended and scaled ones. */
    static const struct {
        uint32_t index;
        double value;
    } want[] = {
        {0, 1.0},
        {1, 0.8146172165870667},
        {20, 0.016560440883040428},
        {28, 0.0032114461064338684},
        {30, 0.0013718936825171113},
        {33, 0.0003126936499029398},
        {36, 7.784655463183299e-05},
        {40, 3.428102354519069e-05},
        {63, 3.068925877869333e-07},
    };
    struct kva_model_spec spec =
        parse_good("LlamaForCausalLM",
                   "\"head_dim\":128,\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,"
                   "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"rope_theta\":500000.0,"
                   "\"original_max_position_embeddings\":8192},");
    for (size_t i = 0; i < KVA_COUNT_OF(want); i++)
        assert_true(fabs(spec.config.rope.inv_freq[want[i].index] / want[i].value - 1) < 2e-6);
    assert_int_equal(spec.config.context_max, 128);
    kva_model_config_finish(&spec.config);
}

static void test_config__rope_spellings(void **state KVA_UNUSED)
{
    static const struct {
        const char *extra;
        double second; /* inv_freq[1] of head_dim 16 */
        uint32_t context;
    } cases[] = {
        {"", 0.31622776601683794, 128},
        {"\"rope_scaling\":null,", 0.31622776601683794, 128},
        {"\"rope_theta\":1000000,", 0.1778279410038923, 128},
        {"\"rope_parameters\":{\"rope_theta\":1000000},", 0.1778279410038923, 128},
        {"\"rope_scaling\":{\"rope_type\":\"default\"},", 0.31622776601683794, 128},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},", 0.07905694150420949, 512},
        {"\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.5},", 0.12649110640673517, 320},
        {"\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.0,\"rope_theta\":10000.0},",
         0.15811388300841897, 256},
        {"\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1000000},"
         "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4},",
         0.04445698525097308, 512},
        {"\"rope_parameters\":{},\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},",
         0.07905694150420949, 512},
        {"\"rope_parameters\":{\"rope_theta\":1000000},\"rope_scaling\":{},", 0.1778279410038923,
         128},
        {"\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4},", 0.31622776601683794, 128},
        {"\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"attention_factor\":0.7},",
         0.263523131608963, 256},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_model_spec spec = parse_good("LlamaForCausalLM", cases[i].extra);
        assert_true(fabs(spec.config.rope.inv_freq[1] / cases[i].second - 1) < 1e-6);
        assert_int_equal(spec.config.context_max, cases[i].context);
        kva_model_config_finish(&spec.config);
    }
}

/* What transformers computes: published parameters of Qwen2.5, all optional ones, a trained context
 * so short that nothing is scaled. */
static void test_config__yarn_frequencies_are_the_reference_ones(void **state KVA_UNUSED)
{
    static const struct {
        const char *extra;
        uint32_t context;
        double factor;
        struct {
            uint32_t index;
            double value;
        } want[5];
    } cases[] = {
        {"\"head_dim\":128,\"rope_theta\":1000000.0,\"rope_scaling\":{\"factor\":4.0,"
         "\"original_max_position_embeddings\":32768,\"type\":\"yarn\"},",
         131072,
         1.138629436111989,
         {{0, 1.0},
          {20, 0.01333521492779255},
          {24, 0.005375321488827467},
          {36, 0.0001798411540221423},
          {63, 3.102344408034696e-07}}},
        {"\"head_dim\":128,\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1000000.0,"
         "\"factor\":4.0,\"original_max_position_embeddings\":32768,\"truncate\":false,"
         "\"beta_fast\":16.0,\"beta_slow\":2.0},",
         131072,
         1.138629436111989,
         {{24, 0.005623413249850273},
          {28, 0.002151098335161805},
          {32, 0.0005956799723207951},
          {36, 0.00011986687604803592},
          {40, 4.4456985051510856e-05}}},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":40.0,\"mscale\":1.0,"
         "\"mscale_all_dim\":0.8,\"original_max_position_embeddings\":64},",
         2560,
         1.0569662567531275,
         {{0, 1.0},
          {1, 0.2134537249803543},
          {2, 0.034999996423721313},
          {3, 0.0007905694656074047},
          {7, 7.905694474175107e-06}}},
        {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2.0,"
         "\"original_max_position_embeddings\":1},",
         2,
         1.0693147180559945,
         {{0, 1.0},
          {1, 0.3162277638912201},
          {2, 0.10000000149011612},
          {3, 0.03162277862429619},
          {7, 0.0003162277862429619}}},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_model_spec spec = parse_good("Qwen2ForCausalLM", cases[i].extra);
        for (size_t j = 0; j < KVA_COUNT_OF(cases[i].want); j++) {
            double have = spec.config.rope.inv_freq[cases[i].want[j].index];
            assert_true(fabs(have / cases[i].want[j].value - 1) < 2e-6);
        }
        assert_true(fabs(spec.config.rope.factor / cases[i].factor - 1) < 1e-7);
        assert_int_equal(spec.config.context_max, cases[i].context);
        kva_model_config_finish(&spec.config);
    }
}

/* What the files of a family leave unsaid, and its spellings. */
static void test_config__defaults_of_families_beyond_llama(void **state KVA_UNUSED)
{
    static const struct {
        const char *architecture, *extra;
        enum kva_activation activation;
        bool qkv_bias, mlp_bias, parallel;
        uint32_t head_dim, rotary_dim;
        float norm_eps, embed_scale;
    } cases[] = {
        {"OPTForCausalLM", "\"ffn_dim\":96,", KVA_ACT_RELU, true, true, false, 16, 0, 1e-5f, 1},
        {"OPTForCausalLM",
         "\"ffn_dim\":96,\"enable_bias\":false,\"activation_function\":\"gelu\","
         "\"word_embed_proj_dim\":64,\"num_key_value_heads\":2,\"partial_rotary_factor\":7,",
         KVA_ACT_GELU, false, false, false, 16, 0, 1e-5f, 1},
        {"GPTNeoXForCausalLM", "", KVA_ACT_GELU, true, true, true, 16, 4, 1e-5f, 1},
        {"GPTNeoXForCausalLM",
         "\"rotary_pct\":0.4,\"use_parallel_residual\":false,\"hidden_act\":\"gelu_fast\","
         "\"layer_norm_eps\":1e-3,\"attention_bias\":false,\"head_dim\":32,",
         KVA_ACT_GELU_TANH, false, true, false, 16, 6, 1e-3f, 1},
        {"GPTNeoXForCausalLM", "\"rope_parameters\":{\"partial_rotary_factor\":1.0},", KVA_ACT_GELU,
         true, true, true, 16, 16, 1e-5f, 1},
        {"GemmaForCausalLM", "", KVA_ACT_GELU_TANH, false, false, false, 256, 256, 1e-6f, 8},
        {"GemmaForCausalLM",
         "\"hidden_act\":\"gelu\",\"head_dim\":32,\"use_bidirectional_attention\":null,",
         KVA_ACT_GELU_TANH, false, false, false, 32, 32, 1e-6f, 8},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_model_spec spec = parse_good(cases[i].architecture, cases[i].extra);
        const struct kva_model_config *config = &spec.config;
        assert_int_equal(config->activation, cases[i].activation);
        assert_int_equal(spec.qkv_bias, cases[i].qkv_bias);
        assert_int_equal(spec.o_bias, cases[i].qkv_bias);
        assert_int_equal(spec.mlp_bias, cases[i].mlp_bias);
        assert_int_equal(config->parallel_residual, cases[i].parallel);
        assert_int_equal(config->kv_heads, 4);
        assert_int_equal(config->head_dim, cases[i].head_dim);
        assert_int_equal(config->rope.rotary_dim, cases[i].rotary_dim);
        assert_true(config->norm_eps == cases[i].norm_eps);
        assert_true(config->embed_scale == cases[i].embed_scale);
        bool gemma = strcmp(cases[i].architecture, "GemmaForCausalLM") == 0;
        assert_true(config->norm_weight_offset == (gemma ? 1.0f : 0.0f));
        assert_int_equal(config->norm, gemma ? KVA_NORM_RMS : KVA_NORM_LAYER);
        assert_int_equal(config->gated_mlp, gemma);
        kva_model_config_finish(&spec.config);
    }
}

static void test_config__windows(void **state KVA_UNUSED)
{
    static const struct {
        const char *architecture, *extra;
        uint32_t want[3];
    } cases[] = {
        {"LlamaForCausalLM", "\"sliding_window\":7,", {0, 0, 0}},
        {"MistralForCausalLM", "", {4096, 4096, 4096}},
        {"MistralForCausalLM", "\"sliding_window\":7,", {7, 7, 7}},
        {"MistralForCausalLM", "\"sliding_window\":null,", {0, 0, 0}},
        {"MistralForCausalLM",
         "\"sliding_window\":7,"
         "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\"],",
         {0, 7, 0}},
        {"LlamaForCausalLM",
         "\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"],"
         "\"is_causal\":true,\"num_experts\":null,\"logit_scale\":1.0,",
         {0, 0, 0}},
        {"Qwen2ForCausalLM", "", {0, 0, 0}},
        {"Qwen2ForCausalLM", "\"sliding_window\":7,\"use_sliding_window\":false,", {0, 0, 0}},
        {"Qwen2ForCausalLM", "\"sliding_window\":7,\"use_sliding_window\":true,", {0, 0, 0}},
        {"Qwen2ForCausalLM",
         "\"sliding_window\":7,\"use_sliding_window\":true,\"max_window_layers\":1,",
         {0, 7, 7}},
        {"Qwen3ForCausalLM",
         "\"sliding_window\":null,\"use_sliding_window\":true,\"max_window_layers\":0,",
         {0, 0, 0}},
        {"Qwen3ForCausalLM",
         "\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":0,"
         "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\"],",
         {9, 0, 9}},
        {"Qwen3ForCausalLM",
         "\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"],",
         {0, 0, 0}},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_model_spec spec = parse_good(cases[i].architecture, cases[i].extra);
        assert_memory_equal(spec.config.layer_window, cases[i].want, sizeof(cases[i].want));
        kva_model_config_finish(&spec.config);
    }
}

static void test_config__biases_norms_and_head_shapes(void **state KVA_UNUSED)
{
    static const struct {
        const char *architecture, *extra;
        bool qkv, o, mlp, qk_norm;
        uint32_t kv_heads, head_dim;
    } cases[] = {
        {"LlamaForCausalLM", "", false, false, false, false, 4, 16},
        {"LlamaForCausalLM", "\"attention_bias\":true,", true, true, false, false, 4, 16},
        {"LlamaForCausalLM", "\"mlp_bias\":true,", false, false, true, false, 4, 16},
        {"LlamaForCausalLM", "\"head_dim\":24,\"num_key_value_heads\":1,", false, false, false,
         false, 1, 24},
        {"LlamaForCausalLM", "\"head_dim\":null,\"num_key_value_heads\":null,", false, false, false,
         false, 4, 16},
        {"MistralForCausalLM", "\"num_key_value_heads\":2,", false, false, false, false, 2, 16},
        {"Qwen2ForCausalLM", "", true, false, false, false, 4, 16},
        {"Qwen3ForCausalLM", "", false, false, false, true, 4, 128},
        {"Qwen3ForCausalLM", "\"attention_bias\":true,\"head_dim\":32,", true, true, false, true, 4,
         32},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_model_spec spec = parse_good(cases[i].architecture, cases[i].extra);
        assert_int_equal(spec.qkv_bias, cases[i].qkv);
        assert_int_equal(spec.o_bias, cases[i].o);
        assert_int_equal(spec.mlp_bias, cases[i].mlp);
        assert_int_equal(spec.config.qk_norm, cases[i].qk_norm);
        assert_int_equal(spec.config.kv_heads, cases[i].kv_heads);
        assert_int_equal(spec.config.head_dim, cases[i].head_dim);
        kva_model_config_finish(&spec.config);
    }
}

static void test_config__generation_defaults_and_ids(void **state KVA_UNUSED)
{
    struct kva_model_spec spec;
    struct kva_err err = {0};
    assert_int_equal(
        parse_text(config_with("Qwen2ForCausalLM", "\"eos_token_id\":5,\"bos_token_id\":null,"),
                   "{\"eos_token_id\":[7,8],\"bos_token_id\":3,\"temperature\":0,\"top_p\":0.8,"
                   "\"top_k\":20,\"min_p\":0.05,\"repetition_penalty\":1.05}",
                   &spec, &err),
        KVA_OK);
    assert_int_equal(spec.config.eos_count, 2);
    assert_int_equal(spec.config.eos_ids[1], 8);
    assert_int_equal(spec.config.bos_id, 3);
    assert_true(spec.generation.temperature == 0 && spec.generation.top_p == 0.8);
    assert_true(spec.generation.min_p == 0.05 && spec.generation.repetition_penalty == 1.05);
    assert_int_equal(spec.generation.top_k, 20);
    kva_model_config_finish(&spec.config);

    assert_int_equal(
        parse_text(config_with("Qwen2ForCausalLM", "\"eos_token_id\":5,"), "{}", &spec, &err),
        KVA_OK);
    assert_int_equal(spec.config.eos_count, 1);
    assert_int_equal(spec.config.eos_ids[0], 5);
    assert_int_equal(spec.config.bos_id, -1);
    assert_true(isnan(spec.generation.temperature) && isnan(spec.generation.min_p));
    assert_int_equal(spec.generation.top_k, -1);
    kva_model_config_finish(&spec.config);
}

static void test_config__minus_one_is_none(void **state KVA_UNUSED)
{
    struct kva_model_spec spec;
    struct kva_err err = {0};
    const char *config =
        config_with("Qwen2ForCausalLM", "\"eos_token_id\":[-1,5,-1],\"bos_token_id\":-1,");
    assert_int_equal(
        parse_text(config, "{\"eos_token_id\":-1,\"bos_token_id\":-1,\"top_k\":-1}", &spec, &err),
        KVA_OK);
    assert_int_equal(spec.config.eos_count, 1);
    assert_int_equal(spec.config.eos_ids[0], 5);
    assert_int_equal(spec.config.bos_id, -1);
    assert_int_equal(spec.generation.top_k, -1);
    kva_model_config_finish(&spec.config);
    assert_int_equal(parse_text(config, "{\"top_k\":-2}", &spec, &err), KVA_EFORMAT);
    assert_non_null(strstr(err.message, "top_k is -2, expected a whole number in 0.."));
}

static void test_config__ends_are_added_once_and_where_there_is_room(void **state KVA_UNUSED)
{
    struct kva_model_config config = {.vocab_size = 100, .eos_ids = {7}, .eos_count = 1};
    const int64_t ids[] = {-1, 7, 100, INT64_MAX, 99, 0, 99};
    for (size_t i = 0; i < KVA_COUNT_OF(ids); i++)
        kva_model_config_add_eos(&config, ids[i]);
    assert_int_equal(config.eos_count, 3);
    assert_true(config.eos_ids[0] == 7 && config.eos_ids[1] == 99 && config.eos_ids[2] == 0);
    for (int64_t id = 20; id < 60; id++)
        kva_model_config_add_eos(&config, id);
    assert_int_equal(config.eos_count, KVA_MODEL_EOS_MAX);
    assert_int_equal(config.eos_ids[KVA_MODEL_EOS_MAX - 1], 32);
}

struct refusal {
    const char *architecture, *extra;
    enum kva_status status;
    const char *message;
};

#define LLAMA "LlamaForCausalLM"
#define QWEN3 "Qwen3ForCausalLM"
#define OPT   "OPTForCausalLM"
#define NEOX  "GPTNeoXForCausalLM"
#define GEMMA "GemmaForCausalLM"

static const struct refusal refusals[] = {
    {"GPT2LMHeadModel", "", KVA_EUNSUPPORTED, "architecture 'GPT2LMHeadModel' is not supported; "},
    {"Gemma2ForCausalLM", "", KVA_EUNSUPPORTED,
     "architecture 'Gemma2ForCausalLM' is not supported: it caps logits and attention scores "
     "softly"},
    {"Gemma3ForCausalLM", "", KVA_EUNSUPPORTED,
     "architecture 'Gemma3ForCausalLM' is not supported: it has norms after attention and MLP"},
    {OPT, "", KVA_EFORMAT, "ffn_dim is missing"},
    {OPT, "\"ffn_dim\":96,\"word_embed_proj_dim\":32,", KVA_EUNSUPPORTED,
     "word_embed_proj_dim 32 differs from hidden_size 64: projections of the embedding are not"},
    {OPT, "\"ffn_dim\":96,\"do_layer_norm_before\":false,", KVA_EUNSUPPORTED,
     "do_layer_norm_before false is not supported for OPTForCausalLM, only true"},
    {OPT, "\"ffn_dim\":96,\"_remove_final_layer_norm\":true,", KVA_EUNSUPPORTED,
     "_remove_final_layer_norm true is not supported for OPTForCausalLM, only false"},
    {OPT, "\"ffn_dim\":96,\"layer_norm_elementwise_affine\":false,", KVA_EUNSUPPORTED,
     "layer_norm_elementwise_affine false is not supported"},
    {NEOX, "\"rotary_pct\":0.2,", KVA_EUNSUPPORTED,
     "rotary_pct 0.2 of heads of 16 is 3, expected an even number from 2 on"},
    {NEOX, "\"rotary_pct\":0,", KVA_EUNSUPPORTED, "rotary_pct 0 of heads of 16 is 0"},
    {NEOX, "\"rotary_pct\":1.5,", KVA_EFORMAT, "rotary_pct is 1.5, expected a number in 0..1"},
    {NEOX, "\"use_parallel_residual\":1,", KVA_EFORMAT,
     "use_parallel_residual is 1, expected true"},
    {GEMMA, "\"use_bidirectional_attention\":true,", KVA_EUNSUPPORTED,
     "use_bidirectional_attention true is not supported for GemmaForCausalLM, only false"},
    {"\\u001b[2J", "", KVA_EUNSUPPORTED, "architecture '?[2J' is not supported"},
    {LLAMA, "\"num_key_value_heads\":3,", KVA_EFORMAT,
     "num_key_value_heads is 3, which does not divide num_attention_heads 4"},
    {LLAMA, "\"num_key_value_heads\":0,", KVA_EFORMAT, "num_key_value_heads is 0, expected"},
    {LLAMA, "\"num_key_value_heads\":8,", KVA_EFORMAT, "is 8, which does not divide"},
    {LLAMA, "\"head_dim\":7,", KVA_EFORMAT, "head_dim is 7, expected an even number in 2..1024"},
    {LLAMA, "\"head_dim\":2048,", KVA_EFORMAT, "head_dim is 2048, expected a whole number in 2.."},
    {LLAMA, "\"hidden_size\":64,", KVA_EFORMAT, "hidden_size stands there twice"},
    {LLAMA, "\"rms_norm_eps\":-1,", KVA_EFORMAT, "rms_norm_eps is -1, expected a number in 0..1"},
    {LLAMA, "\"rms_norm_eps\":\"x\",", KVA_EFORMAT, "rms_norm_eps is \"x\", expected"},
    {LLAMA, "\"hidden_act\":\"mish\",", KVA_EUNSUPPORTED, "hidden_act 'mish' is not supported"},
    {LLAMA, "\"torch_dtype\":\"float8\",", KVA_EUNSUPPORTED, "dtype 'float8' is not supported"},
    {LLAMA, "\"attention_bias\":1,", KVA_EFORMAT, "attention_bias is 1, expected true or false"},
    {LLAMA, "\"eos_token_id\":300,", KVA_EFORMAT,
     "eos_token_id is 300, expected a token id in 0..299"},
    {LLAMA, "\"eos_token_id\":[1,-2],", KVA_EFORMAT, "eos_token_id is -2, expected a token id"},
    {LLAMA, "\"eos_token_id\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],", KVA_EFORMAT,
     "eos_token_id has more than the allowed 16 entries"},
    {LLAMA, "\"bos_token_id\":1e999,", KVA_EFORMAT, "bos_token_id is inf, expected"},
    {LLAMA, "\"rope_theta\":0,", KVA_EFORMAT, "rope_theta is 0, expected a number in 1..1e+15"},
    {LLAMA, "\"rope_theta\":1e999,", KVA_EFORMAT, "rope_theta is inf"},
    {LLAMA, "\"rope_scaling\":7,", KVA_EFORMAT, "rope_scaling is 7, expected an object"},
    {LLAMA, "\"rope_scaling\":{\"factor\":2},", KVA_EFORMAT, "rope_scaling.factor needs rope_type"},
    {LLAMA, "\"rope_scaling\":{\"rope_type\":\"longrope\",\"factor\":2},", KVA_EUNSUPPORTED,
     "RoPE scaling 'longrope' is not supported; supported are: default, linear, llama3, yarn, "
     "dynamic"},
    {LLAMA, "\"rope_scaling\":{\"type\":\"yarn\"},", KVA_EFORMAT, "'yarn' needs factor"},
    {LLAMA, "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"beta_fast\":-1},", KVA_EFORMAT,
     "rope_scaling.beta_fast is -1, expected a number in 0.."},
    {LLAMA, "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2,\"attention_factor\":0},",
     KVA_EFORMAT, "rope_scaling.attention_factor is 0, expected a number in 0.001.."},
    {LLAMA, "\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2},", KVA_EFORMAT,
     "'yarn' needs rope_theta above 1, it is 1"},
    {LLAMA, "\"rope_scaling\":{\"type\":\"linear\"},", KVA_EFORMAT, "'linear' needs factor"},
    {LLAMA, "\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5},", KVA_EFORMAT,
     "rope_scaling.factor is 0.5, expected a number in 1..65536"},
    {LLAMA,
     "\"rope_scaling\":{\"type\":\"linear\",\"factor\":60000},"
     "\"original_max_position_embeddings\":16777216,",
     KVA_EFORMAT, "are more than 16777216"},
    {LLAMA, "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4},",
     KVA_EFORMAT, "RoPE scaling 'llama3' needs high_freq_factor"},
    {LLAMA,
     "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
     "\"high_freq_factor\":4},",
     KVA_EFORMAT, "high_freq_factor 4 is not above"},
    {LLAMA, "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":10000}},", KVA_EUNSUPPORTED,
     "rope_parameters.full_attention is an object"},
    {LLAMA, "\"partial_rotary_factor\":0.5,", KVA_EUNSUPPORTED, "partial_rotary_factor 0.5"},
    {QWEN3, "\"layer_types\":[\"full_attention\"],", KVA_EFORMAT, "not a list of 3 entries"},
    {QWEN3, "\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\"],",
     KVA_EUNSUPPORTED, "layer_types[1] is \"linear_attention\"; supported are"},
    {QWEN3, "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\"],",
     KVA_EFORMAT, "layer_types[0] is sliding_attention, but sliding_window is off"},
    {LLAMA,
     "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\"],"
     "\"sliding_window\":7,",
     KVA_EFORMAT, "layer_types[0] is sliding_attention, but sliding_window is off"},
    {LLAMA, "\"is_causal\":false,", KVA_EUNSUPPORTED, "is_causal false is not supported"},
    {LLAMA, "\"logits_scaling\":8,", KVA_EUNSUPPORTED, "logits_scaling 8 is not supported"},
    {QWEN3, "\"num_experts\":64,", KVA_EUNSUPPORTED, "num_experts 64 is not supported"},
    {LLAMA, "\"final_logit_softcapping\":\"high\",", KVA_EUNSUPPORTED,
     "final_logit_softcapping \"high\" is not supported"},
    {QWEN3, "\"sliding_window\":-1,", KVA_EFORMAT, "sliding_window is -1, expected"},
    {QWEN3, "\"quantization_config\":[],", KVA_EFORMAT, "quantization_config is a list"},
};

static void test_config__refusals_name_the_field(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < KVA_COUNT_OF(refusals); i++) {
        const struct refusal *refusal = &refusals[i];
        struct kva_model_spec spec;
        struct kva_err err = {0};
        enum kva_status status =
            parse_text(config_with(refusal->architecture, refusal->extra), NULL, &spec, &err);
        if (status != refusal->status)
            fail_msg("%s: status %d: %s", refusal->extra, status, err.message);
        expect_message(&err, "config.json: ");
        expect_message(&err, refusal->message);
    }
}

/* Each number that a model cannot do without: absent, zero, negative, fractional, too large. */
static void test_config__needed_numbers_have_ranges(void **state KVA_UNUSED)
{
    static const char *const names[] = {"hidden_size", "num_attention_heads", "intermediate_size",
                                        "vocab_size", "num_hidden_layers"};
    static const char *const values[] = {NULL,  "0",     "-1",         "1.5",  "1e999",
                                         "1e9", "\"8\"", "2147483648", "true", "[4]"};
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(values); j++) {
            struct kva_model_spec spec;
            struct kva_err err = {0};
            char text[1024] = "{\"model_type\":\"llama\"";
            for (size_t k = 0; k < KVA_COUNT_OF(names); k++) {
                const char *value = k == i ? values[j] : "4";
                size_t used = strlen(text);
                if (value)
                    snprintf(text + used, sizeof(text) - used, ",\"%s\":%s", names[k], value);
            }
            strcat(text, "}");
            assert_int_equal(parse_text(text, NULL, &spec, &err), KVA_EFORMAT);
            expect_message(&err, names[i]);
            expect_message(&err, values[j] ? "expected a whole number in 1.." : "is missing");
            assert_string_equal(err.param, names[i]);
        }
    }
}

static void test_config__family_comes_from_architectures_or_model_type(void **state KVA_UNUSED)
{
    static const struct {
        const char *head;
        enum kva_status status;
        const char *family_or_message;
    } cases[] = {
        {"\"architectures\":[\"GPT2Model\",\"Qwen2ForCausalLM\"]", KVA_OK, "qwen2"},
        {"\"architectures\":[\"Qwen3Model\"],\"model_type\":\"qwen3\"", KVA_OK, "qwen3"},
        {"\"architectures\":[\"LlamaModel\"],\"model_type\":\"qwen2\"", KVA_EUNSUPPORTED,
         "has LlamaModel, and model_type is 'qwen2'"},
        {"\"architectures\":null,\"model_type\":\"qwen3\"", KVA_OK, "qwen3"},
        {"\"architectures\":[],\"model_type\":\"mistral\"", KVA_OK, "mistral"},
        {"\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"qwen2\"", KVA_EUNSUPPORTED,
         "has LlamaForCausalLM, and model_type is 'qwen2'"},
        {"\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\"", KVA_OK, "llama"},
        {"\"model_type\":\"gpt2\"", KVA_EUNSUPPORTED, "architecture 'gpt2' is not supported"},
        {"\"x\":1", KVA_EFORMAT, "has neither architectures nor model_type"},
        {"\"architectures\":\"LlamaForCausalLM\"", KVA_EFORMAT, "architectures is not a list"},
        {"\"architectures\":[1]", KVA_EFORMAT, "an entry that is not a string"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_model_spec spec;
        struct kva_err err = {0};
        char text[1024];
        snprintf(text, sizeof(text),
                 "{%s,\"hidden_size\":64,\"num_attention_heads\":4,\"intermediate_size\":96,"
                 "\"vocab_size\":300,\"num_hidden_layers\":3}",
                 cases[i].head);
        assert_int_equal(parse_text(text, NULL, &spec, &err), cases[i].status);
        if (cases[i].status) {
            expect_message(&err, cases[i].family_or_message);
        } else {
            assert_string_equal(spec.family->model_type, cases[i].family_or_message);
            kva_model_config_finish(&spec.config);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config__published_files),
        cmocka_unit_test(test_config__mixture_of_experts_is_refused_by_name),
        cmocka_unit_test(test_config__llama3_frequencies_are_the_reference_ones),
        cmocka_unit_test(test_config__rope_spellings),
        cmocka_unit_test(test_config__yarn_frequencies_are_the_reference_ones),
        cmocka_unit_test(test_config__defaults_of_families_beyond_llama),
        cmocka_unit_test(test_config__windows),
        cmocka_unit_test(test_config__biases_norms_and_head_shapes),
        cmocka_unit_test(test_config__generation_defaults_and_ids),
        cmocka_unit_test(test_config__minus_one_is_none),
        cmocka_unit_test(test_config__ends_are_added_once_and_where_there_is_room),
        cmocka_unit_test(test_config__refusals_name_the_field),
        cmocka_unit_test(test_config__needed_numbers_have_ranges),
        cmocka_unit_test(test_config__family_comes_from_architectures_or_model_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
