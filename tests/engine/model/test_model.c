#include "tests/engine/model/checkpoint.h"

#include "base/log.h"
#include "engine/model/files.h"
#include "tests/cmocka.h"
#include "tests/data.h"
#include "tests/golden/golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PARTS(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct kva_model *open_good(const char *path)
{
    struct kva_err err = {0};
    struct kva_model *model = NULL;
    struct kva_model_open_params params = {.path = path};
    if (kva_model_open(&params, &model, &err))
        fail_msg("%s", err.message);
    return model;
}

static void check_shape(const struct kva_tensor *tensor, uint32_t rows, uint32_t cols)
{
    assert_non_null(tensor->data);
    assert_int_equal(tensor->rows, rows);
    assert_int_equal(tensor->cols, cols);
    assert_int_equal((uintptr_t)tensor->data % kva_dtype_bytes(tensor->dtype), 0);
}

static void check_optional(const struct kva_tensor *tensor, bool there, uint32_t cols)
{
    if (there)
        check_shape(tensor, 1, cols);
    else
        assert_null(tensor->data);
}

/* Every tensor has the shape that the config says. */
static void check_tensors(const struct kva_model *model, bool qkv_bias, bool o_bias, bool mlp_bias)
{
    const struct kva_model_config *config = &model->config;
    bool norm_bias = config->norm == KVA_NORM_LAYER;
    uint32_t hidden = config->hidden_size, inner = config->intermediate_size;
    uint32_t q = config->heads * config->head_dim, kv = config->kv_heads * config->head_dim;
    check_shape(&model->embed, config->vocab_size, hidden);
    check_shape(&model->lm_head, config->vocab_size, hidden);
    check_shape(&model->final_norm, 1, hidden);
    check_optional(&model->final_norm_bias, norm_bias, hidden);
    if (config->rope.rotary_dim)
        assert_null(model->positions.data);
    else
        check_shape(&model->positions, config->context_max, hidden);
    assert_int_equal(model->lm_head.data == model->embed.data, config->tied_embeddings);
    for (uint32_t i = 0; i < config->layer_count; i++) {
        const struct kva_layer_tensors *layer = &model->layers[i];
        check_shape(&layer->attn_norm, 1, hidden);
        check_shape(&layer->q, q, hidden);
        check_shape(&layer->k, kv, hidden);
        check_shape(&layer->v, kv, hidden);
        check_shape(&layer->o, hidden, q);
        check_shape(&layer->mlp_norm, 1, hidden);
        if (config->gated_mlp)
            check_shape(&layer->gate, inner, hidden);
        else
            assert_null(layer->gate.data);
        check_shape(&layer->up, inner, hidden);
        check_shape(&layer->down, hidden, inner);
        check_optional(&layer->q_bias, qkv_bias, q);
        check_optional(&layer->k_bias, qkv_bias, kv);
        check_optional(&layer->v_bias, qkv_bias, kv);
        check_optional(&layer->o_bias, o_bias, hidden);
        check_optional(&layer->gate_bias, mlp_bias && config->gated_mlp, inner);
        check_optional(&layer->up_bias, mlp_bias, inner);
        check_optional(&layer->down_bias, mlp_bias, hidden);
        check_optional(&layer->q_norm, config->qk_norm, config->head_dim);
        check_optional(&layer->k_norm, config->qk_norm, config->head_dim);
        check_optional(&layer->attn_norm_bias, norm_bias, hidden);
        check_optional(&layer->mlp_norm_bias, norm_bias, hidden);
    }
}

static void test_model__opens_a_trained_checkpoint(void **state KVA_UNUSED)
{
    char path[4096];
    if (!kva_test_data("models/stories260K/derived-hf", path, sizeof(path)))
        skip();
    struct kva_model *model = open_good(path);
    const struct kva_model_config *config = &model->config;
    assert_int_equal(config->vocab_size, 512);
    assert_int_equal(config->layer_count, 5);
    assert_int_equal(config->heads, 8);
    assert_int_equal(config->kv_heads, 4);
    assert_int_equal(config->head_dim, 8);
    assert_int_equal(config->context_max, 512);
    assert_true(config->tied_embeddings);
    check_tensors(model, false, false, false);
    /* Of a model known as 260K; and each parameter of it takes four bytes. */
    assert_int_equal(model->parameter_count, 260032);
    assert_int_equal(model->weight_bytes, 4 * model->parameter_count);
    assert_int_equal(kva_model_kv_bytes_per_token(config), 5 * 4 * 8 * 2 * 2);
    kva_model_close(model);
}

struct family_case {
    const char *name, *model_type;
    enum kva_dtype dtype;
    uint32_t vocab, hidden, layers, heads, kv_heads, head_dim, context;
    uint32_t windows[3];
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tied;
    enum kva_activation activation;
    bool layer_norm, single_mlp, parallel;
    uint32_t rotary_dim; /* 0: all of a head, UINT32_MAX: none */
};

static const struct family_case family_cases[] = {
    {"llama2_mha_f16", "llama", KVA_F16, 300, 64, 2, 4, 4, 16, 256, {0}, .tied = false},
    {"llama3_gqa_bf16", "llama", KVA_BF16, 301, 96, 2, 6, 2, 16, 256, {0}, .tied = false},
    {"llama_linear_f32", "llama", KVA_F32, 300, 64, 2, 4, 2, 16, 1024, {0}, .tied = false},
    {"llama_bias_sharded",
     "llama",
     KVA_BF16,
     300,
     64,
     2,
     4,
     1,
     16,
     256,
     {0},
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .activation = KVA_ACT_GELU_TANH},
    {"mistral_window", "mistral", KVA_BF16, 300, 64, 2, 8, 2, 8, 256, {24, 24}, .tied = false},
    {"qwen2_tied",
     "qwen2",
     KVA_BF16,
     300,
     64,
     2,
     4,
     2,
     16,
     256,
     {0},
     .qkv_bias = true,
     .tied = true},
    {"qwen2_mixed_window",
     "qwen2",
     KVA_BF16,
     300,
     64,
     3,
     4,
     2,
     16,
     256,
     {0, 20, 20},
     .qkv_bias = true},
    {"qwen3_qk_norm", "qwen3", KVA_BF16, 300, 64, 2, 4, 2, 32, 256, {33, 0}, .qk_norm = true},
    {"opt_relu_tied",
     "opt",
     KVA_F16,
     300,
     64,
     2,
     4,
     4,
     16,
     256,
     {0},
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .tied = true,
     .activation = KVA_ACT_RELU,
     .layer_norm = true,
     .single_mlp = true,
     .rotary_dim = UINT32_MAX},
    {"neox_parallel",
     "gpt_neox",
     KVA_F16,
     300,
     64,
     2,
     2,
     2,
     32,
     256,
     {0},
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true,
     .activation = KVA_ACT_GELU,
     .layer_norm = true,
     .single_mlp = true,
     .parallel = true,
     .rotary_dim = 8},
    {"neox_sequential",
     "gpt_neox",
     KVA_BF16,
     301,
     48,
     2,
     4,
     4,
     12,
     512,
     {0},
     .mlp_bias = true,
     .activation = KVA_ACT_GELU_TANH,
     .layer_norm = true,
     .single_mlp = true,
     .rotary_dim = 6},
    {"gemma_tied",
     "gemma",
     KVA_BF16,
     300,
     48,
     2,
     2,
     1,
     256,
     256,
     {0},
     .tied = true,
     .activation = KVA_ACT_GELU_TANH},
    {"llama_yarn", "llama", KVA_BF16, 300, 64, 2, 4, 2, 16, 256, {0}, .tied = false},
    {"llama_dynamic", "llama", KVA_BF16, 300, 32, 2, 2, 1, 16, 116, {0}, .tied = false},
};

static void test_model__opens_every_family(void **state KVA_UNUSED)
{
    char path[4096];
    for (size_t i = 0; i < KVA_COUNT_OF(family_cases); i++) {
        const struct family_case *want = &family_cases[i];
        assert_string_equal(kva_golden_families[i], want->name);
        struct kva_model *model = open_good(kva_golden_path(want->name, NULL, path, sizeof(path)));
        const struct kva_model_config *config = &model->config;
        assert_string_equal(config->model_type, want->model_type);
        assert_int_equal(config->dtype, want->dtype);
        assert_int_equal(model->embed.dtype, want->dtype);
        assert_int_equal(config->vocab_size, want->vocab);
        assert_int_equal(config->hidden_size, want->hidden);
        assert_int_equal(config->layer_count, want->layers);
        assert_int_equal(config->heads, want->heads);
        assert_int_equal(config->kv_heads, want->kv_heads);
        assert_int_equal(config->head_dim, want->head_dim);
        assert_int_equal(config->context_max, want->context);
        assert_memory_equal(config->layer_window, want->windows, 4 * want->layers);
        assert_int_equal(config->qk_norm, want->qk_norm);
        assert_int_equal(config->tied_embeddings, want->tied);
        assert_int_equal(config->activation, want->activation);
        assert_int_equal(config->norm, want->layer_norm ? KVA_NORM_LAYER : KVA_NORM_RMS);
        assert_int_equal(config->gated_mlp, !want->single_mlp);
        assert_int_equal(config->parallel_residual, want->parallel);
        assert_int_equal(config->rope.rotary_dim, want->rotary_dim == UINT32_MAX ? 0
                                                  : want->rotary_dim             ? want->rotary_dim
                                                                                 : want->head_dim);
        assert_true(config->eos_count == 1 && config->eos_ids[0] == 2 && config->bos_id == 1);
        check_tensors(model, want->qkv_bias, want->o_bias, want->mlp_bias);
        assert_int_equal(model->weight_bytes,
                         model->parameter_count * kva_dtype_bytes(want->dtype));
        kva_model_close(model);
    }
    assert_null(kva_golden_families[KVA_COUNT_OF(family_cases)]);
}

/* The text of a file's header without `prefix` in front of names, as long as it was. */
static void strip_names(char *header, size_t length, const char *prefix)
{
    char quoted[32];
    size_t cut = strlen(prefix), end = length;
    snprintf(quoted, sizeof(quoted), "\"%s", prefix);
    for (char *at = header; (at = memmem(at, end - (size_t)(at - header), quoted, cut + 1));) {
        memmove(at + 1, at + 1 + cut, end - (size_t)(at - header) - 1 - cut);
        end -= cut;
    }
    memset(header + end, ' ', length - end);
}

static void expect_same_tensor(const struct kva_tensor *a, const struct kva_tensor *b)
{
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->cols, b->cols);
    assert_int_equal(a->data != NULL, b->data != NULL);
    if (a->data)
        assert_memory_equal(a->data, b->data,
                            (size_t)a->rows * a->cols * kva_dtype_bytes(a->dtype));
}

/* A checkpoint of the base class has the same tensors by shorter names. */
static void test_model__names_of_the_base_class_are_the_same_tensors(void **state KVA_UNUSED)
{
    static const char *const families[][2] = {{"qwen3_qk_norm", "model."},
                                              {"llama3_gqa_bf16", "model."},
                                              {"gemma_tied", "model."},
                                              {"opt_relu_tied", "model."},
                                              {"neox_parallel", "gpt_neox."}};
    char path[4096];
    for (size_t i = 0; i < KVA_COUNT_OF(families); i++) {
        struct checkpoint checkpoint;
        size_t size, length = 0;
        checkpoint_init(&checkpoint);
        char *config = kva_test_read(
            kva_golden_path(families[i][0], "config.json", path, sizeof(path)), &size);
        checkpoint_puts(&checkpoint, "config.json", config);
        free(config);
        char *file = kva_test_read(
            kva_golden_path(families[i][0], "model.safetensors", path, sizeof(path)), &size);
        memcpy(&length, file, 8);
        strip_names(file + 8, length, families[i][1]);
        checkpoint_write(&checkpoint, "model.safetensors", file, size);
        free(file);
        struct kva_model *base = open_good(checkpoint.dir);
        struct kva_model *whole =
            open_good(kva_golden_path(families[i][0], NULL, path, sizeof(path)));
        assert_false(base->headless);
        assert_int_equal(base->parameter_count, whole->parameter_count);
        expect_same_tensor(&base->embed, &whole->embed);
        expect_same_tensor(&base->lm_head, &whole->lm_head);
        expect_same_tensor(&base->final_norm, &whole->final_norm);
        expect_same_tensor(&base->positions, &whole->positions);
        for (uint32_t layer = 0; layer < whole->config.layer_count; layer++) {
            const struct kva_tensor *a = (const struct kva_tensor *)&base->layers[layer];
            const struct kva_tensor *b = (const struct kva_tensor *)&whole->layers[layer];
            for (size_t t = 0; t < sizeof(*base->layers) / sizeof(*a); t++)
                expect_same_tensor(&a[t], &b[t]);
        }
        kva_model_close(base);
        kva_model_close(whole);
        checkpoint_finish(&checkpoint);
    }
}

/* Without an output matrix, and with an embedding that is none, a base model makes no text. Others
 * are taken at the embedding's word. */
static void test_model__base_models_may_have_no_output_matrix(void **state KVA_UNUSED)
{
    static const struct {
        const char *architecture, *tied;
        bool base_names, matrix, headless;
    } cases[] = {
        {"LlamaModel", "false", true, false, true},
        {"LlamaForCausalLM", "false", true, false, true},
        {"LlamaModel", "false", false, false, true},
        {"LlamaModel", "true", true, false, false},
        {"LlamaModel", "null", true, false, false},
        {"LlamaModel", "false", true, true, false},
        {"LlamaForCausalLM", "false", false, false, false},
    };
    kva_log_setup(2, KVA_LOG_OFF, KVA_LOG_TEXT);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct checkpoint checkpoint;
        struct made_tensor tensors[16];
        char config[1024];
        const char *rest = strchr(made_config, ']') + 1;
        snprintf(config, sizeof(config), "{\"architectures\":[\"%s\"],\"tie_word_embeddings\":%s%s",
                 cases[i].architecture, cases[i].tied, rest);
        memcpy(tensors, made_tensors, made_tensor_count * sizeof(*tensors));
        for (size_t t = 0; cases[i].base_names && t + 1 < made_tensor_count; t++)
            tensors[t].name += strlen("model.");
        checkpoint_init(&checkpoint);
        checkpoint_puts(&checkpoint, "config.json", config);
        checkpoint_write_tensors(&checkpoint, "model.safetensors", tensors,
                                 made_tensor_count - !cases[i].matrix);
        struct kva_model *model = open_good(checkpoint.dir);
        assert_int_equal(model->headless, cases[i].headless);
        check_tensors(model, false, false, false);
        kva_model_close(model);
        checkpoint_finish(&checkpoint);
    }
    kva_log_setup(2, KVA_LOG_INFO, KVA_LOG_AUTO);
}

/* The reference says at which logit greedy decoding starts: file, reader and table agree. */
static void test_model__golden_files_are_consistent(void **state KVA_UNUSED)
{
    for (const char *const *family = kva_golden_families; *family; family++) {
        struct kva_golden golden;
        assert_true(kva_golden_load(*family, &golden));
        uint32_t last = golden.position_count - 1;
        assert_int_equal(golden.positions[last], golden.prompt_count - 1);
        assert_true(golden.prompt_count > 64);
        const float *row = golden.logits + (size_t)last * golden.vocab;
        uint32_t best = 0;
        for (uint32_t i = 1; i < golden.vocab; i++)
            best = row[i] > row[best] ? i : best;
        float second = -INFINITY;
        for (uint32_t i = 0; i < golden.vocab; i++)
            second = i != best && row[i] > second ? row[i] : second;
        assert_int_equal(best, golden.greedy[0]);
        assert_true(fabsf(row[best] - second - golden.margins[0]) < 1e-3f);
        for (uint32_t i = 0; i < golden.greedy_count; i++)
            assert_true(golden.margins[i] > 0.2f);
        kva_golden_finish(&golden);
    }
}

static void test_model__tensors_are_those_of_their_names(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint;
    checkpoint_init(&checkpoint);
    checkpoint_write_llama(&checkpoint);
    struct kva_model *model = open_good(checkpoint.dir);
    const struct kva_layer_tensors *layer = &model->layers[0];
    const struct kva_tensor *in_order[] = {
        &model->embed, &model->final_norm, &layer->attn_norm, &layer->q,
        &layer->k,     &layer->v,          &layer->o,         &layer->mlp_norm,
        &layer->gate,  &layer->up,         &layer->down,      &model->lm_head,
    };
    for (size_t i = 0; i < KVA_COUNT_OF(in_order); i++) {
        const uint8_t *data = in_order[i]->data;
        size_t bytes = (size_t)in_order[i]->rows * in_order[i]->cols * 4;
        assert_true(data[0] == i && data[bytes - 1] == i);
    }
    kva_model_close(model);
    checkpoint_finish(&checkpoint);
}

/* A GPT-NeoX with one layer: hidden 8, 2 heads of 4. */
static const char neox_config[] =
    "{\"architectures\":[\"GPTNeoXForCausalLM\"],\"hidden_size\":8,\"num_attention_heads\":2,"
    "\"intermediate_size\":12,\"vocab_size\":10,\"num_hidden_layers\":1,\"rotary_pct\":0.5,"
    "\"max_position_embeddings\":64,\"torch_dtype\":\"float32\"}";

static const struct made_tensor neox_tensors[] = {
    {"gpt_neox.embed_in.weight", "F32", {10, 8}},
    {"gpt_neox.final_layer_norm.weight", "F32", {8}},
    {"gpt_neox.final_layer_norm.bias", "F32", {8}},
    {"gpt_neox.layers.0.input_layernorm.weight", "F32", {8}},
    {"gpt_neox.layers.0.input_layernorm.bias", "F32", {8}},
    {"gpt_neox.layers.0.attention.query_key_value.weight", "F32", {24, 8}},
    {"gpt_neox.layers.0.attention.query_key_value.bias", "F32", {24}},
    {"gpt_neox.layers.0.attention.dense.weight", "F32", {8, 8}},
    {"gpt_neox.layers.0.attention.dense.bias", "F32", {8}},
    {"gpt_neox.layers.0.post_attention_layernorm.weight", "F32", {8}},
    {"gpt_neox.layers.0.post_attention_layernorm.bias", "F32", {8}},
    {"gpt_neox.layers.0.mlp.dense_h_to_4h.weight", "F32", {12, 8}},
    {"gpt_neox.layers.0.mlp.dense_h_to_4h.bias", "F32", {12}},
    {"gpt_neox.layers.0.mlp.dense_4h_to_h.weight", "F32", {8, 12}},
    {"gpt_neox.layers.0.mlp.dense_4h_to_h.bias", "F32", {8}},
    {"embed_out.weight", "F32", {10, 8}},
    /* What old checkpoints have beside: a causal mask, which is no weight. */
    {"gpt_neox.layers.0.attention.bias", "U8", {1, 1, 4, 4}},
};

enum { NEOX_QKV = 5, NEOX_QKV_BIAS = 6, NEOX_TENSORS = KVA_COUNT_OF(neox_tensors) };

/* Row r of the fused tensor starts with r here, so that each part shows where it came from. */
static void number_rows(struct kva_buf *file, size_t first_tensor, size_t row_floats)
{
    uint64_t header;
    memcpy(&header, file->data, sizeof(header));
    size_t at = 8 + (size_t)header;
    for (size_t i = 0; i < first_tensor; i++) {
        size_t floats = 1;
        for (size_t j = 0; j < 4 && neox_tensors[i].dims[j]; j++)
            floats *= neox_tensors[i].dims[j];
        at += 4 * floats;
    }
    for (uint32_t row = 0; row < 24; row++) {
        float value = (float)row;
        memcpy(file->data + at + row * row_floats * 4, &value, sizeof(value));
    }
}

static void check_part(const struct kva_tensor *tensor, uint32_t part, bool vector)
{
    check_shape(tensor, vector ? 1 : 8, 8);
    for (uint32_t row = 0; row < 8; row++) {
        float first;
        memcpy(&first, (const char *)tensor->data + row * (vector ? 4 : 32), sizeof(first));
        assert_true(first == (float)(row / 4 * 12 + part * 4 + row % 4));
    }
}

static void test_model__fused_tensors_are_taken_apart(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint;
    struct kva_buf file, text;
    checkpoint_init(&checkpoint);
    checkpoint_puts(&checkpoint, "config.json", neox_config);
    made_file(&file, neox_tensors, NEOX_TENSORS, 0);
    number_rows(&file, NEOX_QKV, 8);
    number_rows(&file, NEOX_QKV_BIAS, 1);
    checkpoint_write(&checkpoint, "model.safetensors", file.data, file.length);
    struct kva_model *model = open_good(checkpoint.dir);
    const struct kva_layer_tensors *layer = &model->layers[0];
    check_part(&layer->q, 0, false);
    check_part(&layer->k, 1, false);
    check_part(&layer->v, 2, false);
    check_part(&layer->q_bias, 0, true);
    check_part(&layer->k_bias, 1, true);
    check_part(&layer->v_bias, 2, true);
    check_tensors(model, true, true, true);
    /* Counted once, as copies. */
    assert_int_equal(model->copied_bytes, 4 * (24 * 8 + 24));
    assert_int_equal(model->weight_bytes, 4 * model->parameter_count);
    kva_buf_init(&text, 4096);
    kva_model_describe(model, &text);
    assert_non_null(strstr(text.data, "of these copied      864 B\n"));
    kva_buf_finish(&text);
    kva_model_close(model);
    kva_buf_finish(&file);
    checkpoint_finish(&checkpoint);
}

static void test_model__fused_tensors_are_checked(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint;
    struct made_tensor tensors[NEOX_TENSORS];
    checkpoint_init(&checkpoint);
    checkpoint_puts(&checkpoint, "config.json", neox_config);
    memcpy(tensors, neox_tensors, sizeof(tensors));
    tensors[NEOX_QKV].dims[0] = 23;
    checkpoint_write_tensors(&checkpoint, "model.safetensors", tensors, NEOX_TENSORS);
    checkpoint_expect_failure(&checkpoint, KVA_EFORMAT,
                              PARTS("query_key_value.weight has shape [23, 8]", "[24, 8]"));
    tensors[NEOX_QKV].dims[0] = 24;
    tensors[NEOX_QKV_BIAS].name = "gpt_neox.layers.0.attention.other";
    checkpoint_write_tensors(&checkpoint, "model.safetensors", tensors, NEOX_TENSORS);
    checkpoint_expect_failure(
        &checkpoint, KVA_EFORMAT,
        PARTS("no tensor gpt_neox.layers.0.attention.query_key_value.bias", "GPTNeoXForCausalLM"));
    checkpoint_finish(&checkpoint);
}

/* Position 0 is the third row of the file, and the table ends with the context. */
static void test_model__rows_before_the_first_position_are_left_out(void **state KVA_UNUSED)
{
    char path[4096];
    struct kva_model *model = open_good(kva_golden_path("opt_relu_tied", NULL, path, sizeof(path)));
    const struct kva_safetensors_entry *entry;
    const struct kva_model_shard *shard;
    assert_int_equal(kva_model_files_find(model->files, "model.decoder.embed_positions.weight",
                                          &entry, &shard, NULL),
                     KVA_OK);
    assert_int_equal(model->positions.rows, model->config.context_max);
    const uint8_t *file = shard->map;
    assert_ptr_equal(model->positions.data, file + entry->begin + (size_t)2 * 64 * 2);
    assert_int_equal(entry->end - entry->begin, (256 + 2) * 64 * 2);
    kva_model_close(model);
}

struct progress {
    uint64_t done, total;
    unsigned calls;
};

static void note_progress(void *opaque, uint64_t done_bytes, uint64_t total_bytes)
{
    struct progress *progress = opaque;
    assert_true(done_bytes > progress->done && done_bytes <= total_bytes);
    *progress = (struct progress){done_bytes, total_bytes, progress->calls + 1};
}

static void test_model__prefetch_reports_every_byte(void **state KVA_UNUSED)
{
    char path[4096];
    struct progress progress = {0};
    struct kva_err err = {0};
    struct kva_model *model = NULL;
    struct stat info;
    uint64_t bytes = 0;
    for (int i = 1; i <= 3; i++) {
        char name[64];
        snprintf(name, sizeof(name), "model-%05d-of-00003.safetensors", i);
        assert_int_equal(
            stat(kva_golden_path("llama_bias_sharded", name, path, sizeof(path)), &info), 0);
        bytes += (uint64_t)info.st_size;
    }
    kva_golden_path("llama_bias_sharded", NULL, path, sizeof(path));
    struct kva_model_open_params params = {
        .path = path, .progress = note_progress, .progress_opaque = &progress, .prefetch = true};
    assert_int_equal(kva_model_open(&params, &model, &err), KVA_OK);
    assert_int_equal(progress.done, bytes);
    assert_int_equal(progress.total, bytes);
    assert_int_equal(progress.calls, 3);
    kva_model_close(model);
}

static void test_model__describe(void **state KVA_UNUSED)
{
    char path[4096];
    struct kva_buf text;
    kva_buf_init(&text, 4096);
    struct kva_model *model =
        open_good(kva_golden_path("mistral_window", NULL, path, sizeof(path)));
    kva_model_describe(model, &text);
    assert_false(text.failed);
    static const char *const lines[] = {
        "family               mistral\n",
        "parameters           96.06 thousand\n",
        "weights' format      bf16\n",
        "weights              187.6 KiB\n",
        "heads                8 query, 2 key-value, of 8\n",
        "sliding window       24 tokens in 2 of 2 layers\n",
        "KV per token         128 B\n",
        "KV of full context   32.0 KiB\n",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(lines); i++)
        if (!strstr(text.data, lines[i]))
            fail_msg("'%s' lacks '%s'", text.data, lines[i]);
    kva_buf_finish(&text);
    kva_model_close(model);
}

static void test_model__close_takes_null(void **state KVA_UNUSED)
{
    kva_model_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model__opens_a_trained_checkpoint),
        cmocka_unit_test(test_model__opens_every_family),
        cmocka_unit_test(test_model__names_of_the_base_class_are_the_same_tensors),
        cmocka_unit_test(test_model__base_models_may_have_no_output_matrix),
        cmocka_unit_test(test_model__golden_files_are_consistent),
        cmocka_unit_test(test_model__tensors_are_those_of_their_names),
        cmocka_unit_test(test_model__fused_tensors_are_taken_apart),
        cmocka_unit_test(test_model__fused_tensors_are_checked),
        cmocka_unit_test(test_model__rows_before_the_first_position_are_left_out),
        cmocka_unit_test(test_model__prefetch_reports_every_byte),
        cmocka_unit_test(test_model__describe),
        cmocka_unit_test(test_model__close_takes_null),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
