/* Models in GGUF: the same tensors and config as the checkpoint that they were made of, bit by bit,
 * and what is refused. */
#include "engine/model/packed.h"
#include "engine/model/packed_file.h"
#include "kernels/packed.h"
#include "tests/data.h"
#include "tests/engine/model/checkpoint.h"
#include "tests/engine/model/gguf_made.h"
#include "tests/engine/model/gguf_random.h"
#include "tests/golden/golden.h"
#include "tests/json.h"

#include "tests/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is copied in any case. */
static size_t vector_bytes(const struct kva_model *model)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < model->config.layer_count; i++) {
        const struct kva_tensor *t = (const struct kva_tensor *)&model->layers[i];
        for (size_t j = 0; j < sizeof(model->layers[i]) / sizeof(*t); j++)
            bytes += t[j].rows == 1 ? t[j].cols * kva_dtype_bytes(t[j].dtype) : 0;
    }
    const struct kva_tensor *const norms[] = {&model->final_norm, &model->final_norm_bias};
    for (size_t i = 0; i < KVA_COUNT_OF(norms); i++)
        bytes += norms[i]->cols * kva_dtype_bytes(norms[i]->dtype);
    return bytes;
}

#define PARTS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- equal ----------------------------------------------------------------------------------- */

static struct kva_model *open_good(const char *path)
{
    struct kva_err err = {.message = ""};
    struct kva_model *model = NULL;
    const struct kva_model_open_params params = {.path = path, .threads = 2, .prefetch = true};
    if (kva_model_open(&params, &model, &err))
        fail_msg("%s", err.message);
    return model;
}

static void same_tensor(const struct kva_tensor *a, const struct kva_tensor *b, const char *name)
{
    if (!a->data != !b->data || a->rows != b->rows || a->cols != b->cols || a->dtype != b->dtype)
        fail_msg("%s is another: [%u, %u] %d against [%u, %u] %d", name, a->rows, a->cols, a->dtype,
                 b->rows, b->cols, b->dtype);
    if (a->data &&
        memcmp(a->data, b->data, (size_t)a->rows * a->cols * kva_dtype_bytes(a->dtype)) != 0)
        fail_msg("%s has other weights", name);
}

static void same_config(const struct kva_model_config *a, const struct kva_model_config *b,
                        bool windows, bool rounded_rope)
{
    assert_int_equal(a->vocab_size, b->vocab_size);
    assert_int_equal(a->hidden_size, b->hidden_size);
    assert_int_equal(a->intermediate_size, b->intermediate_size);
    assert_int_equal(a->layer_count, b->layer_count);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->context_max, b->context_max);
    assert_int_equal(a->norm, b->norm);
    assert_true(a->norm_eps == b->norm_eps);
    assert_int_equal(a->gated_mlp, b->gated_mlp);
    assert_int_equal(a->qk_norm, b->qk_norm);
    assert_int_equal(a->parallel_residual, b->parallel_residual);
    assert_int_equal(a->tied_embeddings, b->tied_embeddings);
    assert_true(a->embed_scale == b->embed_scale);
    assert_true(a->attend_scale == b->attend_scale);
    assert_int_equal(a->rope.rotary_dim, b->rope.rotary_dim);
    assert_true(a->rope.factor == b->rope.factor);
    for (uint32_t i = 0; i < a->rope.rotary_dim / 2; i++) {
        float slack = rounded_rope ? 3e-7f * a->rope.inv_freq[i] : 0.0f;
        assert_true(fabsf(a->rope.inv_freq[i] - b->rope.inv_freq[i]) <= slack);
    }
    /* Of architectures other than Llama GGUF does not say which layers have one. */
    for (uint32_t i = 0; windows && i < a->layer_count; i++)
        assert_int_equal(a->layer_window[i], b->layer_window[i]);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->bos_id, b->bos_id);
    assert_int_equal(a->eos_count, b->eos_count);
    assert_int_equal(a->eos_ids[0], b->eos_ids[0]);
}

/* Norms aside where GGUF has them otherwise (gguf_made.c). */
static void same_weights(const struct kva_model *a, const struct kva_model *b)
{
    enum { TENSORS = sizeof(struct kva_layer_tensors) / sizeof(struct kva_tensor) };
    bool norms = a->config.norm_weight_offset == 0.0f;
    same_tensor(&a->embed, &b->embed, "the embedding");
    same_tensor(&a->lm_head, &b->lm_head, "the output matrix");
    same_tensor(&a->final_norm_bias, &b->final_norm_bias, "the last norm's bias");
    if (norms)
        same_tensor(&a->final_norm, &b->final_norm, "the last norm");
    for (uint32_t i = 0; i < a->config.layer_count; i++) {
        const struct kva_tensor *x = (const struct kva_tensor *)&a->layers[i];
        const struct kva_tensor *y = (const struct kva_tensor *)&b->layers[i];
        for (size_t j = 0; j < TENSORS; j++) {
            char name[64];
            snprintf(name, sizeof(name), "tensor %zu of layer %u", j, i);
            if (norms || (&x[j] != &a->layers[i].attn_norm && &x[j] != &a->layers[i].mlp_norm))
                same_tensor(&x[j], &y[j], name);
        }
    }
    if (!norms) {
        const struct kva_tensor *x = &a->layers[0].attn_norm, *y = &b->layers[0].attn_norm;
        assert_int_equal(y->dtype, KVA_F32);
        assert_true(b->config.norm_weight_offset == 0.0f);
        for (uint32_t i = 0; i < x->cols; i++) {
            uint32_t bits = (uint32_t)((const uint16_t *)x->data)[i] << 16;
            float value;
            memcpy(&value, &bits, sizeof(value));
            assert_true(((const float *)y->data)[i] == value + a->config.norm_weight_offset);
        }
    }
}

static const struct {
    const char *family, *architecture;
    bool rounded_rope; /* factors of frequencies are floats */
} families[] = {
    {"llama2_mha_f16", "llama", false},     {"llama3_gqa_bf16", "llama", true},
    {"llama_linear_f32", "llama", false},   {"llama_yarn", "llama", false},
    {"llama_bias_sharded", "llama", false}, {"mistral_window", "llama", false},
    {"qwen2_tied", "qwen2", false},         {"qwen3_qk_norm", "qwen3", false},
    {"gemma_tied", "gemma", false},         {"neox_parallel", "gptneox", false},
    {"neox_sequential", "gptneox", false},
};

static void test_gguf_model__families_equal_their_checkpoints(void **state)
{
    (void)state;
    for (size_t i = 0; i < KVA_COUNT_OF(families); i++) {
        char path[1024];
        struct checkpoint folder;
        struct gguf_writer writer;
        struct kva_model *model =
            open_good(kva_golden_path(families[i].family, NULL, path, sizeof(path)));
        struct gguf_made made = {model,   families[i].architecture,
                                 &writer, 1,
                                 0,       strcmp(families[i].architecture, "llama") == 0};
        checkpoint_init(&folder);
        gguf_made_write(&made, families[i].family);
        gguf_writer_save(&writer, checkpoint_path(&folder, "m.gguf", path, sizeof(path)));
        struct kva_model *got = open_good(path);
        print_message("%s\n", families[i].family);
        same_config(&model->config, &got->config, made.neighbours, families[i].rounded_rope);
        same_weights(model, got);
        assert_int_equal(model->parameter_count, got->parameter_count);
        /* What needs no change lies in the file. */
        /* Matrices are used where they lie, but for q and k in another order. */
        if (made.neighbours)
            assert_true(got->copied_bytes > vector_bytes(got));
        else
            assert_int_equal(got->copied_bytes, vector_bytes(got));
        kva_model_close(got);
        kva_model_close(model);
        gguf_writer_finish(&writer);
        checkpoint_finish(&folder);
    }
}

static void put_split(struct gguf_made *made, uint32_t count)
{
    uint64_t tensors = 0;
    for (uint32_t i = 0; i < made->parts; i++)
        tensors += made->writers[i].tensor_count;
    for (uint32_t i = 0; i < made->parts; i++) {
        gguf_put_u32(&made->writers[i], "split.no", i);
        gguf_put_u32(&made->writers[i], "split.count", count);
        gguf_put_u32(&made->writers[i], "split.tensors.count", (uint32_t)tensors);
    }
}

static const char *part_path(const struct checkpoint *folder, uint32_t number, char *out,
                             size_t size)
{
    char name[64];
    snprintf(name, sizeof(name), "m-%05u-of-00003.gguf", number);
    return checkpoint_path(folder, name, out, size);
}

static void expect_failure(const char *path, enum kva_status status, const char *const *parts)
{
    struct kva_err err = {.message = ""};
    struct kva_model *model = NULL;
    const struct kva_model_open_params params = {.path = path, .threads = 1};
    enum kva_status got = kva_model_open(&params, &model, &err);
    if (got != status)
        fail_msg("status %d, expected %d; message '%s'", got, status, err.message);
    assert_null(model);
    for (; *parts; parts++)
        expect_message(&err, *parts);
    assert_int_equal(kva_model_open(&params, &model, NULL), status);
}

static void test_gguf_model__split_files_are_one_model(void **state)
{
    (void)state;
    char path[1024];
    struct checkpoint folder;
    struct gguf_writer writers[3];
    struct kva_model *model = open_good(kva_golden_path("llama_yarn", NULL, path, sizeof(path)));
    struct gguf_made made = {model, "llama", writers, 3, 0, true};
    checkpoint_init(&folder);
    gguf_made_write(&made, "llama_yarn");
    put_split(&made, 3);
    for (uint32_t i = 0; i < 2; i++)
        gguf_writer_save(&writers[i], part_path(&folder, i + 1, path, sizeof(path)));
    part_path(&folder, 1, path, sizeof(path));
    expect_failure(path, KVA_ENOTFOUND,
                   PARTS("part 3 of 3 of m-00001-of-00003.gguf", "m-00003-of-00003.gguf"));
    gguf_writer_save(&writers[2], part_path(&folder, 3, path, sizeof(path)));
    expect_failure(path, KVA_EINVAL, PARTS("is part 3 of 3: give the first part"));
    struct kva_model *got = open_good(part_path(&folder, 1, path, sizeof(path)));
    same_config(&model->config, &got->config, true, false);
    same_weights(model, got);
    kva_model_close(got);
    /* A part of another model in its place. */
    gguf_writer_save(&writers[1], part_path(&folder, 3, path, sizeof(path)));
    part_path(&folder, 1, path, sizeof(path));
    expect_failure(path, KVA_EFORMAT, PARTS("m-00003-of-00003.gguf says that it is part 2 of 3"));
    gguf_writer_save(&writers[0], checkpoint_path(&folder, "m.gguf", path, sizeof(path)));
    expect_failure(path, KVA_EFORMAT, PARTS("its name does not end in -00001-of-00003.gguf"));
    for (uint32_t i = 0; i < 3; i++)
        gguf_writer_finish(&writers[i]);
    kva_model_close(model);
    checkpoint_finish(&folder);
}

/* ---- quantised ------------------------------------------------------------------------------- */

/* Nearest bf16, ties to even, of finite numbers. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Of the model that gguf_random.h makes. */
enum {
    HIDDEN = GGUF_RANDOM_HIDDEN,
    INNER = GGUF_RANDOM_INNER,
    VOCAB = GGUF_RANDOM_VOCAB,
    HEADS = GGUF_RANDOM_HEADS,
    HEAD_DIM = GGUF_RANDOM_HEAD_DIM,
    KV_HEADS = GGUF_RANDOM_KV_HEADS,
};

static void put_small_llama(struct gguf_writer *writer, uint32_t format_id)
{
    gguf_random_put(writer, "llama", format_id);
}

static const struct kva_tensor *tensor_of(const struct kva_model *model, size_t index)
{
    const struct kva_layer_tensors *t = &model->layers[0];
    const struct kva_tensor *const tensors[] = {&model->embed, &t->q,    &t->k,  &t->v,
                                                &t->o,         &t->gate, &t->up, &t->down};
    return tensors[index];
}

static void check_decoded(const struct kva_model *model, const struct kva_gguf *gguf, size_t index)
{
    const struct kva_gguf_tensor *source =
        kva_gguf_find_tensor(gguf, gguf_random_matrices[index].name);
    const struct kva_tensor *t = tensor_of(model, index);
    uint32_t cols = gguf_random_matrices[index].cols;
    bool reordered = index == 1 || index == 2;
    float *values = malloc(cols * sizeof(*values));
    assert_non_null(values);
    assert_int_equal(t->dtype, KVA_BF16);
    for (uint32_t row = 0; row < gguf_random_matrices[index].rows; row++) {
        uint32_t in = row % HEAD_DIM;
        uint32_t from = reordered ? row - in + in % (HEAD_DIM / 2) * 2 + in / (HEAD_DIM / 2) : row;
        const struct kva_gguf_format *format = source->format;
        size_t blocks = cols / format->block_values;
        format->decode(gguf->data + source->begin + from * blocks * format->block_bytes, blocks,
                       values);
        for (uint32_t i = 0; i < cols; i++)
            if (((const uint16_t *)t->data)[(size_t)row * cols + i] != to_bf16(values[i]))
                fail_msg("%s of %s: weight [%u, %u] is another", gguf_random_matrices[index].name,
                         format->name, row, i);
    }
    free(values);
}

/* The numbers of a tensor, whose blocks were put into another order, are the file's. */
static void check_packed_tensor(const struct kva_model *model, const struct kva_gguf *gguf,
                                size_t index)
{
    const struct kva_gguf_tensor *source =
        kva_gguf_find_tensor(gguf, gguf_random_matrices[index].name);
    const struct kva_tensor *t = tensor_of(model, index);
    const struct kva_gguf_format *format = source->format;
    const size_t blocks = t->cols / format->block_values;
    enum kva_dtype dtype;
    float values[INNER], row_values[INNER];
    assert_true(kva_packed_of_gguf(format->id, &dtype));
    assert_int_equal(t->dtype, dtype);
    assert_int_equal((uintptr_t)t->data % KVA_PACKED_ALIGN, 0);
    for (uint32_t row = 0; row < t->rows; row++) {
        uint32_t in = row % HEAD_DIM;
        bool reordered = index == 1 || index == 2;
        uint32_t from = reordered ? row - in + in % (HEAD_DIM / 2) * 2 + in / (HEAD_DIM / 2) : row;
        format->decode(gguf->data + source->begin + from * blocks * format->block_bytes, blocks,
                       values);
        kva_packed_row(t->dtype, t->data, t->cols, row, row_values);
        for (uint32_t i = 0; i < t->cols; i++)
            if (row_values[i] != values[i])
                fail_msg("%s of %s: weight [%u, %u] is %g, not %g",
                         gguf_random_matrices[index].name, format->name, row, i,
                         (double)row_values[i], (double)values[i]);
    }
}

static struct kva_model *open_packed(const char *path, enum kva_model_weights weights,
                                     const char *cache_path)
{
    struct kva_err err = {.message = ""};
    struct kva_model *model = NULL;
    const struct kva_model_open_params open = {.path = path, .threads = 2, .packed = true};
    const struct kva_model_pack_params params = {
        .weights = weights, .path = path, .cache_path = cache_path, .threads = 2};
    assert_int_equal(kva_model_open(&open, &model, &err), KVA_OK);
    if (kva_model_pack(model, &params, &err))
        fail_msg("%s", err.message);
    return model;
}

/* As the file has it: in memory, or in a file of a folder that is named. */
static void check_packed(const char *path, const struct kva_gguf *gguf, const char *dir)
{
    for (int turn = 0; turn < 3; turn++) {
        struct kva_model *model = open_packed(path, KVA_WEIGHTS_AUTO, turn ? dir : NULL);
        for (size_t i = 0; i < GGUF_RANDOM_MATRICES; i++)
            check_packed_tensor(model, gguf, i);
        /* Tied, so kept once; and nothing is left of what might have been decoded. */
        assert_ptr_equal(model->embed.data, model->lm_head.data);
        assert_int_equal(model->lm_head.dtype, model->embed.dtype);
        assert_int_equal(model->copied_bytes, vector_bytes(model));
        assert_int_equal(model->weight_bytes, model->packed->map_bytes -
                                                  KVA_PACKED_FILE_HEADER_BYTES +
                                                  3 * HIDDEN * sizeof(float));
        assert_int_equal(model->packed->made, turn < 2);
        assert_int_equal(model->packed->shared, turn > 0);
        if (turn == 2)
            assert_int_equal(remove(model->packed->path), 0);
        kva_model_close(model);
    }
}

static void check_int8(const char *path)
{
    char kept[1100];
    size_t bytes = 0;
    /* Made, then found: the same, and beside the file. */
    for (int turn = 0; turn < 2; turn++) {
        struct kva_model *int8 = open_packed(path, KVA_WEIGHTS_INT8, NULL);
        snprintf(kept, sizeof(kept), "%s.int8", path);
        assert_string_equal(int8->packed->path, kept);
        assert_int_equal(int8->packed->made, turn == 0);
        assert_int_equal(int8->layers[0].q.dtype, KVA_INT8);
        assert_int_equal(int8->embed.dtype, KVA_INT8);
        assert_ptr_equal(int8->embed.data, int8->lm_head.data);
        /* Nothing is left of what was decoded but vectors. */
        assert_int_equal(int8->copied_bytes, vector_bytes(int8));
        assert_true(turn == 0 || int8->weight_bytes == bytes);
        bytes = int8->weight_bytes;
        kva_model_close(int8);
    }
    assert_int_equal(remove(kept), 0);
}

static void test_gguf_model__decodes_and_packs_every_format(void **state)
{
    (void)state;
    for (size_t i = 0; i < GGUF_RANDOM_FORMATS; i++) {
        char path[1024];
        struct checkpoint folder;
        struct gguf_writer writer;
        struct kva_buf bytes;
        struct kva_gguf gguf;
        struct kva_err err;
        checkpoint_init(&folder);
        put_small_llama(&writer, gguf_random_formats[i]);
        gguf_writer_save(&writer, checkpoint_path(&folder, "m.gguf", path, sizeof(path)));
        gguf_writer_write(&writer, &bytes);
        assert_int_equal(kva_gguf_init(&gguf, bytes.data, bytes.length, "m.gguf", &err), KVA_OK);
        struct kva_model *model = open_good(path);
        for (size_t j = 0; j < GGUF_RANDOM_MATRICES; j++)
            check_decoded(model, &gguf, j);
        assert_int_equal(model->config.dtype, KVA_BF16);
        check_packed(path, &gguf, folder.dir);
        if (i % 4 == 0)
            check_int8(path);
        kva_model_close(model);
        kva_gguf_finish(&gguf);
        kva_buf_finish(&bytes);
        gguf_writer_finish(&writer);
        checkpoint_finish(&folder);
    }
}

/* ---- refused --------------------------------------------------------------------------------- */

struct refused {
    void (*change)(struct gguf_writer *writer);
    enum kva_status status;
    const char *part;
};

static void with_experts(struct gguf_writer *w)
{
    gguf_put_u32(w, "llama.expert_count", 8);
}
static void with_softcap(struct gguf_writer *w)
{
    gguf_put_f32(w, "llama.final_logit_softcapping", 30.0f);
}
static void with_unknown(struct gguf_writer *w)
{
    gguf_put_f32(w, "llama.surprise", 1.0f);
}
static void with_not_causal(struct gguf_writer *w)
{
    gguf_put_bool(w, "llama.attention.causal", false);
}
static void with_not_causal_number(struct gguf_writer *w)
{
    gguf_put_u32(w, "llama.attention.causal", 0);
}
static void with_no_attention(struct gguf_writer *w)
{
    gguf_put_f32(w, "llama.rope.scaling.attn_factor", 0.0f);
}
static void with_yarn(struct gguf_writer *w, const char *name, float value)
{
    gguf_put_string(w, "llama.rope.scaling.type", "yarn");
    gguf_put_f32(w, "llama.rope.scaling.factor", 4.0f);
    gguf_put_f32(w, name, value);
}
static void with_no_yarn_attention(struct gguf_writer *w)
{
    with_yarn(w, "llama.rope.scaling.yarn_attn_factor", 0.0f);
}
static void with_unblended_yarn(struct gguf_writer *w)
{
    with_yarn(w, "llama.rope.scaling.yarn_ext_factor", 0.0f);
}
static void with_half_blended_yarn(struct gguf_writer *w)
{
    with_yarn(w, "llama.rope.scaling.yarn_ext_factor", 0.5f);
}
static void with_blended_linear(struct gguf_writer *w)
{
    gguf_put_string(w, "llama.rope.scaling.type", "linear");
    gguf_put_f32(w, "llama.rope.scaling.factor", 4.0f);
    gguf_put_f32(w, "llama.rope.scaling.yarn_ext_factor", 1.0f);
}
static void with_rank(struct gguf_writer *w)
{
    gguf_put_u32(w, "llama.pooling_type", 4);
}
static void with_other_pooling(struct gguf_writer *w)
{
    gguf_put_u32(w, "llama.pooling_type", 5);
}
static void with_pattern(struct gguf_writer *w)
{
    gguf_put_u32(w, "llama.attention.sliding_window_pattern", 6);
}
static void with_longrope(struct gguf_writer *w)
{
    gguf_put_string(w, "llama.rope.scaling.type", "longrope");
}
static void with_part_rotated(struct gguf_writer *w)
{
    gguf_put_u32(w, "llama.rope.dimension_count", 32);
}
static void with_other_values(struct gguf_writer *w)
{
    gguf_put_u32(w, "llama.attention.value_length", 32);
}
static void with_heads_by_layer(struct gguf_writer *w)
{
    const int32_t lengths[] = {64, 32};
    gguf_put_i32s(w, "llama.attention.key_length", lengths, 2);
}
static void with_text_for_number(struct gguf_writer *w)
{
    gguf_put_string(w, "llama.rope.freq_base", "high");
}
static void with_high_eos(struct gguf_writer *w)
{
    gguf_put_u32(w, "tokenizer.ggml.eos_token_id", VOCAB);
}
static void with_tensor(struct gguf_writer *w)
{
    gguf_put_tensor(w, "blk.0.attn_sinks.weight", KVA_GGUF_F32, 0, 1, "abcd", 4);
}
static void with_bad_factors(struct gguf_writer *w)
{
    const float factors[HEAD_DIM / 2] = {1.0f};
    gguf_put_tensor(w, "rope_freqs.weight", KVA_GGUF_F32, 0, HEAD_DIM / 2, factors,
                    sizeof(factors));
}
static void with_other_shape(struct gguf_writer *w)
{
    const float zeros[4] = {0};
    gguf_put_tensor(w, "output.weight", KVA_GGUF_F32, 2, 2, zeros, sizeof(zeros));
}
static void with_other_format(struct gguf_writer *w)
{
    const uint8_t zeros[136] = {0};
    gguf_put_tensor(w, "output.weight", 23, 1, 256, zeros, sizeof(zeros));
}
static void with_unknown_format(struct gguf_writer *w)
{
    gguf_put_tensor(w, "output.weight", 4242, 1, 256, "", 1);
}

static void test_gguf_model__refuses_what_it_would_do_wrong(void **state)
{
    (void)state;
    static const struct refused cases[] = {
        {with_experts, KVA_EUNSUPPORTED, "llama.expert_count 8 is not supported, only 0"},
        {with_softcap, KVA_EUNSUPPORTED, "llama.final_logit_softcapping 30 is not supported"},
        {with_unknown, KVA_EUNSUPPORTED, "llama.surprise is not known, and may change"},
        {with_not_causal, KVA_EUNSUPPORTED, "llama.attention.causal 0 is not supported"},
        {with_not_causal_number, KVA_EUNSUPPORTED, "llama.attention.causal 0 is not supported"},
        {with_no_attention, KVA_EUNSUPPORTED,
         "llama.rope.scaling.attn_factor 0 is not supported, only 1"},
        {with_no_yarn_attention, KVA_EUNSUPPORTED,
         "llama.rope.scaling.yarn_attn_factor 0 is not supported, only 1"},
        {with_unblended_yarn, KVA_EUNSUPPORTED,
         "llama.rope.scaling.yarn_ext_factor 0 is not supported with RoPE scaling 'yarn', only 1"},
        {with_half_blended_yarn, KVA_EUNSUPPORTED,
         "llama.rope.scaling.yarn_ext_factor 0.5 is not supported with RoPE scaling 'yarn', only "
         "1"},
        {with_blended_linear, KVA_EUNSUPPORTED,
         "llama.rope.scaling.yarn_ext_factor 1 is not supported with RoPE scaling 'linear', only "
         "0"},
        {with_rank, KVA_EUNSUPPORTED, "llama.pooling_type 4 (rank) is not supported"},
        {with_other_pooling, KVA_EUNSUPPORTED, "llama.pooling_type is not 0 (none), 1 (mean), 2"},
        {with_pattern, KVA_EUNSUPPORTED, "llama.attention.sliding_window_pattern is not known"},
        {with_longrope, KVA_EUNSUPPORTED, "RoPE scaling 'longrope' is not supported"},
        {with_part_rotated, KVA_EUNSUPPORTED, "llama.rope.dimension_count 32 is not supported"},
        {with_other_values, KVA_EUNSUPPORTED, "llama.attention.value_length 32 differs"},
        {with_heads_by_layer, KVA_EUNSUPPORTED, "key_length differs between layers"},
        {with_text_for_number, KVA_EFORMAT, "llama.rope.freq_base is \"high\", expected a number"},
        {with_high_eos, KVA_EFORMAT, "tokenizer.ggml.eos_token_id is 96"},
        {with_tensor, KVA_EUNSUPPORTED, "not known to have tensor blk.0.attn_sinks.weight"},
        {with_bad_factors, KVA_EFORMAT, "rope_freqs.weight has the divisor 0"},
        {with_other_shape, KVA_EFORMAT, "output.weight has shape [2, 2], the metadata wants [96"},
        {with_other_format, KVA_EUNSUPPORTED, "output.weight is IQ4_XS; supported are: F32, F16"},
        {with_unknown_format, KVA_EUNSUPPORTED, "output.weight is type 4242"},
    };
    char path[1024];
    struct checkpoint folder;
    checkpoint_init(&folder);
    checkpoint_path(&folder, "m.gguf", path, sizeof(path));
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct gguf_writer writer;
        put_small_llama(&writer, 8);
        cases[i].change(&writer);
        gguf_writer_save(&writer, path);
        expect_failure(path, cases[i].status, PARTS("m.gguf", cases[i].part));
        gguf_writer_finish(&writer);
    }
    checkpoint_finish(&folder);
}

static void test_gguf_model__refuses_other_architectures_by_name(void **state)
{
    (void)state;
    const struct {
        const char *name, *part;
    } cases[] = {
        {"mamba", "GGUF architecture 'mamba' is not supported; supported are: llama, qwen2, "
                  "qwen3, gemma, gptneox"},
        {"gemma2", "'gemma2' is not supported: it caps logits"},
        {NULL, "general.architecture is missing"},
    };
    char path[1024];
    struct checkpoint folder;
    checkpoint_init(&folder);
    checkpoint_path(&folder, "m.gguf", path, sizeof(path));
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct gguf_writer writer;
        gguf_writer_init(&writer);
        if (cases[i].name)
            gguf_put_string(&writer, "general.architecture", cases[i].name);
        gguf_writer_save(&writer, path);
        expect_failure(path, cases[i].name ? KVA_EUNSUPPORTED : KVA_EFORMAT,
                       PARTS("m.gguf", cases[i].part));
        gguf_writer_finish(&writer);
    }
    /* Nobody but Llama has factors for its frequencies. */
    struct gguf_writer writer;
    gguf_random_put(&writer, "qwen2", 8);
    with_bad_factors(&writer);
    gguf_writer_save(&writer, path);
    gguf_writer_finish(&writer);
    expect_failure(path, KVA_EUNSUPPORTED, PARTS("rope_freqs.weight is not supported for qwen2"));
    checkpoint_puts(&folder, "m.gguf", "version https://git-lfs");
    expect_failure(path, KVA_EFORMAT, PARTS("m.gguf is no GGUF file"));
    checkpoint_puts(&folder, "m.gguf", "");
    expect_failure(path, KVA_EFORMAT, PARTS("m.gguf is empty"));
    checkpoint_path(&folder, "none.gguf", path, sizeof(path));
    expect_failure(path, KVA_ENOTFOUND, PARTS("none.gguf"));
    checkpoint_finish(&folder);
}

static void put_nones(struct gguf_writer *writer)
{
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id", "general.sampling.top_k"};
    const int32_t none = -1;
    for (size_t i = 0; i < KVA_COUNT_OF(keys); i++)
        gguf_put_field(writer, keys[i], strlen(keys[i]), KVA_GGUF_TYPE_I32, &none, sizeof(none));
}

/* A list of ids that end a text, beside the one. */
static void test_gguf_model__takes_lists_of_ends(void **state)
{
    (void)state;
    char path[1024];
    struct checkpoint folder;
    struct gguf_writer writer;
    const int32_t ends[] = {2, 1, -1};
    const float bad[] = {2.0f};
    checkpoint_init(&folder);
    checkpoint_path(&folder, "m.gguf", path, sizeof(path));
    put_small_llama(&writer, 8);
    gguf_put_u32(&writer, "tokenizer.ggml.eos_token_id", 2);
    gguf_put_i32s(&writer, "tokenizer.ggml.eos_token_ids", ends, 3);
    gguf_writer_save(&writer, path);
    gguf_writer_finish(&writer);
    struct kva_model *model = open_good(path);
    assert_int_equal(model->config.eos_count, 2);
    assert_true(model->config.eos_ids[0] == 2 && model->config.eos_ids[1] == 1);
    kva_model_close(model);
    put_small_llama(&writer, 8);
    gguf_put_f32s(&writer, "tokenizer.ggml.eos_token_ids", bad, 1);
    gguf_writer_save(&writer, path);
    gguf_writer_finish(&writer);
    expect_failure(path, KVA_EFORMAT, PARTS("eos_token_ids is not an array of up to 16 whole"));
    checkpoint_finish(&folder);
}

/* Values that say nothing are no reason to refuse. */
static void test_gguf_model__takes_neutral_values(void **state)
{
    (void)state;
    char path[1024];
    struct checkpoint folder;
    struct gguf_writer writer;
    const char *const tokens[] = {"a", "<|im_end|>", "<|eot_id|>"};
    const int32_t types[] = {1, 3, 1};
    const int32_t heads[] = {64, 64};
    checkpoint_init(&folder);
    put_small_llama(&writer, 8);
    gguf_put_u32(&writer, "llama.expert_count", 0);
    gguf_put_f32(&writer, "llama.logit_scale", 0.0f);
    gguf_put_f32(&writer, "llama.residual_scale", 1.0f);
    gguf_put_f32(&writer, "llama.rope.scaling.attn_factor", 1.0f);
    gguf_put_f32(&writer, "llama.rope.scaling.yarn_ext_factor", 1.0f);
    gguf_put_f32(&writer, "llama.rope.scaling.yarn_log_multiplier", 0.0f);
    gguf_put_bool(&writer, "llama.attention.causal", true);
    gguf_put_u32(&writer, "llama.attention.sliding_window", 0);
    gguf_put_string(&writer, "llama.rope.scaling.type", "none");
    gguf_put_f32(&writer, "llama.rope.scaling.factor", 4.0f);
    gguf_put_i32s(&writer, "llama.attention.key_length", heads, 2);
    gguf_put_f32(&writer, "llama.attention.scale", 0.5f);
    gguf_put_u32(&writer, "tokenizer.ggml.eos_token_id", 0);
    gguf_put_strings(&writer, "tokenizer.ggml.tokens", tokens, 3);
    gguf_put_i32s(&writer, "tokenizer.ggml.token_type", types, 3);
    gguf_put_f32(&writer, "general.sampling.temp", 0.25f);
    put_nones(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_string(&writer, "general.license", "mit\x1b[2J");
    gguf_put_u32(&writer, "general.quantization_version", 2);
    gguf_writer_save(&writer, checkpoint_path(&folder, "m.gguf", path, sizeof(path)));
    struct kva_model *model = open_good(path);
    assert_true(model->config.attend_scale == 0.5f);
    assert_int_equal(model->config.layer_window[0], 0);
    assert_int_equal(model->config.context_max, 128);
    /* EOS, and marks of the end, whichever type old converters gave them. */
    assert_int_equal(model->config.eos_count, 3);
    assert_true(model->config.eos_ids[1] == 1 && model->config.eos_ids[2] == 2);
    assert_true(model->generation.temperature == 0.25 && model->generation.top_k == -1);
    assert_int_equal(model->config.bos_id, -1);
    assert_int_equal(model->config.vocab_size, VOCAB);
    struct kva_buf text;
    kva_buf_init(&text, 1 << 14);
    kva_model_describe(model, &text);
    assert_non_null(strstr(text.data, "file                 GGUF version 3, architecture llama, "
                                      "quantisation version 2\n"
                                      "tensors in the file  Q8_0 99.5% (8), F32 0.5% (3)\n"
                                      "tokenizer            gpt2, 3 tokens\n"
                                      "licence              mit?[2J\n"));
    kva_buf_finish(&text);
    kva_model_close(model);
    gguf_writer_finish(&writer);
    checkpoint_finish(&folder);
}

static void test_gguf_model__says_how_vectors_are_pooled(void **state)
{
    (void)state;
    static const enum kva_model_pooling want[] = {KVA_MODEL_POOLING_UNSAID, KVA_MODEL_POOLING_MEAN,
                                                  KVA_MODEL_POOLING_OTHER, KVA_MODEL_POOLING_LAST};
    char path[1024];
    struct checkpoint folder;
    checkpoint_init(&folder);
    checkpoint_path(&folder, "m.gguf", path, sizeof(path));
    for (uint32_t type = 0; type < KVA_COUNT_OF(want); type++) {
        struct gguf_writer writer;
        put_small_llama(&writer, 8);
        gguf_put_u32(&writer, "llama.pooling_type", type);
        gguf_writer_save(&writer, path);
        gguf_writer_finish(&writer);
        struct kva_model *model = open_good(path);
        assert_int_equal(model->embedding.pooling, want[type]);
        assert_false(model->embedding.raw);
        assert_string_equal(model->embedding.lacks,
                            type == 2 ? "the pooling 'cls' (llama.pooling_type)" : "");
        kva_model_close(model);
    }
    checkpoint_finish(&folder);
}

/* What says of YaRN and of other scaling that it is as usual. */
static void test_gguf_model__takes_usual_blends(void **state)
{
    (void)state;
    static const struct {
        const char *type; /* NULL: none is named */
        float blend, factor;
        uint32_t context;
    } cases[] = {{"yarn", 1, 4, 512},   {"linear", 0, 4, 512}, {NULL, 0, 4, 512},
                 {"linear", 0, 0, 128}, {NULL, 0, 0, 128},     {"none", 0, 4, 128}};
    char path[1024];
    struct checkpoint folder;
    checkpoint_init(&folder);
    checkpoint_path(&folder, "m.gguf", path, sizeof(path));
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct gguf_writer writer;
        put_small_llama(&writer, 8);
        if (cases[i].type)
            gguf_put_string(&writer, "llama.rope.scaling.type", cases[i].type);
        gguf_put_f32(&writer, "llama.rope.scaling.factor", cases[i].factor);
        gguf_put_f32(&writer, "llama.rope.scaling.yarn_ext_factor", cases[i].blend);
        gguf_writer_save(&writer, path);
        gguf_writer_finish(&writer);
        struct kva_model *model = open_good(path);
        assert_int_equal(model->config.context_max, cases[i].context);
        kva_model_close(model);
    }
    checkpoint_finish(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_model__says_how_vectors_are_pooled),
        cmocka_unit_test(test_gguf_model__takes_usual_blends),
        cmocka_unit_test(test_gguf_model__families_equal_their_checkpoints),
        cmocka_unit_test(test_gguf_model__split_files_are_one_model),
        cmocka_unit_test(test_gguf_model__decodes_and_packs_every_format),
        cmocka_unit_test(test_gguf_model__refuses_what_it_would_do_wrong),
        cmocka_unit_test(test_gguf_model__refuses_other_architectures_by_name),
        cmocka_unit_test(test_gguf_model__takes_lists_of_ends),
        cmocka_unit_test(test_gguf_model__takes_neutral_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
