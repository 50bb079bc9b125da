/* gguf_made.c - the tensors and metadata of a checkpoint, under the names that GGUF has for them. */
#include "tests/engine/model/gguf_made.h"

#include "tests/golden/golden.h"
#include "tests/json.h"

#include "tests/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct gguf_writer *next_part(struct gguf_made *made)
{
    return &made->writers[made->next++ % made->parts];
}

static uint32_t format_of(enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? KVA_GGUF_F32 : dtype == KVA_F16 ? KVA_GGUF_F16 : KVA_GGUF_BF16;
}

/* Row h * head_dim / 2 + i of a head goes to 2 i + h. */
static void *reorder(const struct kva_tensor *t, uint32_t head_dim, size_t row_bytes, uint32_t rows)
{
    uint8_t *to = malloc(rows * row_bytes);
    assert_non_null(to);
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t in = row % head_dim, half = head_dim / 2;
        uint32_t place = row - in + in % half * 2 + in / half;
        memcpy(to + place * row_bytes, (const uint8_t *)t->data + row * row_bytes, row_bytes);
    }
    return to;
}

static void put(struct gguf_made *made, const char *name, const struct kva_tensor *t,
                bool reordered)
{
    if (!t->data)
        return;
    bool vector = t->rows == 1;
    size_t bytes = (size_t)t->rows * t->cols * kva_dtype_bytes(t->dtype);
    uint32_t rows = vector ? t->cols : t->rows;
    void *copy = reordered && made->neighbours
                     ? reorder(t, made->model->config.head_dim, bytes / rows, rows)
                     : NULL;
    gguf_put_tensor(next_part(made), name, format_of(t->dtype), vector ? 0 : t->rows, t->cols,
                    copy ? copy : t->data, bytes);
    free(copy);
}

/* Gemma's norms have the 1 added. */
static void put_norm(struct gguf_made *made, const char *name, const struct kva_tensor *t)
{
    float values[256];
    float offset = made->model->config.norm_weight_offset;
    if (offset == 0.0f || !t->data) {
        put(made, name, t, false);
        return;
    }
    assert_int_equal(t->dtype, KVA_BF16);
    assert_true(t->cols <= KVA_COUNT_OF(values));
    for (uint32_t i = 0; i < t->cols; i++) {
        uint32_t bits = (uint32_t)((const uint16_t *)t->data)[i] << 16;
        memcpy(&values[i], &bits, sizeof(bits));
        values[i] += offset;
    }
    gguf_put_tensor(next_part(made), name, KVA_GGUF_F32, 0, t->cols, values, t->cols * 4);
}

static void put_fused(struct gguf_made *made, const char *name, const struct kva_tensor *q,
                      const struct kva_tensor *k, const struct kva_tensor *v)
{
    const struct kva_tensor *const parts[] = {q, k, v};
    struct kva_buf bytes;
    uint32_t rows = 0;
    if (!q->data)
        return;
    kva_buf_init(&bytes, 1 << 24);
    for (int i = 0; i < 3; i++) {
        rows += parts[i]->rows == 1 ? parts[i]->cols : parts[i]->rows;
        kva_buf_append(&bytes, parts[i]->data,
                       (size_t)parts[i]->rows * parts[i]->cols * kva_dtype_bytes(q->dtype));
    }
    gguf_put_tensor(next_part(made), name, format_of(q->dtype), q->rows == 1 ? 0 : rows,
                    q->rows == 1 ? rows : q->cols, bytes.data, bytes.length);
    kva_buf_finish(&bytes);
}

static void put_layer(struct gguf_made *made, uint32_t index)
{
    const struct kva_layer_tensors *t = &made->model->layers[index];
    const struct {
        const char *name;
        const struct kva_tensor *tensor;
        bool reordered;
    } tensors[] = {
        {"attn_norm.bias", &t->attn_norm_bias, false},
        {"attn_q.weight", &t->q, true},
        {"attn_q.bias", &t->q_bias, true},
        {"attn_k.weight", &t->k, true},
        {"attn_k.bias", &t->k_bias, true},
        {"attn_v.weight", &t->v, false},
        {"attn_v.bias", &t->v_bias, false},
        {"attn_q_norm.weight", &t->q_norm, false},
        {"attn_k_norm.weight", &t->k_norm, false},
        {"attn_output.weight", &t->o, false},
        {"attn_output.bias", &t->o_bias, false},
        {"ffn_norm.bias", &t->mlp_norm_bias, false},
        {"ffn_gate.weight", &t->gate, false},
        {"ffn_gate.bias", &t->gate_bias, false},
        {"ffn_up.weight", &t->up, false},
        {"ffn_up.bias", &t->up_bias, false},
        {"ffn_down.weight", &t->down, false},
        {"ffn_down.bias", &t->down_bias, false},
    };
    char name[64];
    bool fused = strcmp(made->architecture, "gptneox") == 0;
    snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", index);
    put_norm(made, name, &t->attn_norm);
    snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", index);
    put_norm(made, name, &t->mlp_norm);
    for (size_t i = 0; i < KVA_COUNT_OF(tensors); i++) {
        snprintf(name, sizeof(name), "blk.%u.%s", index, tensors[i].name);
        if (!(fused && i >= 1 && i <= 6))
            put(made, name, tensors[i].tensor, tensors[i].reordered);
    }
    if (fused) {
        snprintf(name, sizeof(name), "blk.%u.attn_qkv.weight", index);
        put_fused(made, name, &t->q, &t->k, &t->v);
        snprintf(name, sizeof(name), "blk.%u.attn_qkv.bias", index);
        put_fused(made, name, &t->q_bias, &t->k_bias, &t->v_bias);
    }
}

static void put_number(struct gguf_made *made, const char *name, double value, bool whole)
{
    char key[96];
    snprintf(key, sizeof(key), "%s.%s", made->architecture, name);
    if (whole)
        gguf_put_u32(&made->writers[0], key, (uint32_t)value);
    else
        gguf_put_f32(&made->writers[0], key, (float)value);
}

static double number(const cJSON *object, const char *name, double missing)
{
    const cJSON *item = cJSON_GetObjectItem(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : missing;
}

/* Llama 3's scaling as GGUF has it: what each frequency is divided by. */
static void put_rope_factors(struct gguf_made *made, double theta)
{
    const struct kva_rope_config *rope = &made->model->config.rope;
    float factors[256];
    for (uint32_t i = 0; i < rope->rotary_dim / 2; i++)
        factors[i] = (float)(pow(theta, -2.0 * i / rope->rotary_dim) / (double)rope->inv_freq[i]);
    gguf_put_tensor(next_part(made), "rope_freqs.weight", KVA_GGUF_F32, 0, rope->rotary_dim / 2,
                    factors, rope->rotary_dim / 2 * sizeof(float));
}

static void put_rope(struct gguf_made *made, const cJSON *json)
{
    const cJSON *now = cJSON_GetObjectItem(json, "rope_parameters");
    const cJSON *scaling = now ? now : cJSON_GetObjectItem(json, "rope_scaling");
    const cJSON *type = cJSON_GetObjectItem(scaling, "rope_type");
    double theta = number(json, "rope_theta", number(scaling, "rope_theta", 10000.0));
    char key[96];
    put_number(made, "rope.freq_base", theta, false);
    put_number(made, "rope.dimension_count", made->model->config.rope.rotary_dim, true);
    const char *name = cJSON_IsString(type)               ? type->valuestring
                       : number(scaling, "factor", 0) > 0 ? "linear"
                                                          : "default";
    if (strcmp(name, "llama3") == 0) {
        put_rope_factors(made, theta);
    } else if (strcmp(name, "default") != 0) {
        snprintf(key, sizeof(key), "%s.rope.scaling.type", made->architecture);
        gguf_put_string(&made->writers[0], key, name);
        put_number(made, "rope.scaling.factor", number(scaling, "factor", 1), false);
        if (number(scaling, "original_max_position_embeddings", 0) > 0)
            put_number(made, "rope.scaling.original_context_length",
                       number(scaling, "original_max_position_embeddings", 0), true);
        if (number(scaling, "beta_fast", 0) > 0)
            put_number(made, "rope.scaling.yarn_beta_fast", number(scaling, "beta_fast", 0), false);
    }
}

static void put_metadata(struct gguf_made *made, const cJSON *json)
{
    const struct kva_model_config *c = &made->model->config;
    char key[96];
    gguf_put_string(&made->writers[0], "general.architecture", made->architecture);
    put_number(made, "context_length", number(json, "max_position_embeddings", 0), true);
    put_number(made, "embedding_length", c->hidden_size, true);
    put_number(made, "feed_forward_length", c->intermediate_size, true);
    put_number(made, "block_count", c->layer_count, true);
    put_number(made, "attention.head_count", c->heads, true);
    put_number(made, "attention.head_count_kv", c->kv_heads, true);
    put_number(made, "attention.key_length", c->head_dim, true);
    put_number(made, "attention.value_length", c->head_dim, true);
    put_number(made,
               c->norm == KVA_NORM_LAYER ? "attention.layer_norm_epsilon"
                                         : "attention.layer_norm_rms_epsilon",
               (double)c->norm_eps, false);
    if (made->neighbours && c->layer_window[0])
        put_number(made, "attention.sliding_window", c->layer_window[0], true);
    snprintf(key, sizeof(key), "%s.use_parallel_residual", made->architecture);
    if (c->norm == KVA_NORM_LAYER)
        gguf_put_bool(&made->writers[0], key, c->parallel_residual);
    gguf_put_u32(&made->writers[0], "tokenizer.ggml.bos_token_id", (uint32_t)c->bos_id);
    gguf_put_u32(&made->writers[0], "tokenizer.ggml.eos_token_id", c->eos_ids[0]);
    put_rope(made, json);
}

void gguf_made_write(struct gguf_made *made, const char *family)
{
    char path[1024];
    cJSON *json = kva_test_json(kva_golden_path(family, "config.json", path, sizeof(path)));
    assert_non_null(json);
    for (uint32_t i = 0; i < made->parts; i++)
        gguf_writer_init(&made->writers[i]);
    put_metadata(made, json);
    put(made, "token_embd.weight", &made->model->embed, false);
    put_norm(made, "output_norm.weight", &made->model->final_norm);
    put(made, "output_norm.bias", &made->model->final_norm_bias, false);
    if (made->model->lm_head.data != made->model->embed.data)
        put(made, "output.weight", &made->model->lm_head, false);
    for (uint32_t i = 0; i < made->model->config.layer_count; i++)
        put_layer(made, i);
    cJSON_Delete(json);
}
