#include "tests/engine/model/checkpoint.h"

#include "tests/cmocka.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char made_config[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
                           "\"hidden_size\":8,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
                           "\"intermediate_size\":12,\"vocab_size\":10,\"num_hidden_layers\":1,"
                           "\"max_position_embeddings\":64,\"torch_dtype\":\"float32\"}";

const struct made_tensor made_tensors[] = {
    {"model.embed_tokens.weight", "F32", {10, 8}},
    {"model.norm.weight", "F32", {8}},
    {"model.layers.0.input_layernorm.weight", "F32", {8}},
    {"model.layers.0.self_attn.q_proj.weight", "F32", {8, 8}},
    {"model.layers.0.self_attn.k_proj.weight", "F32", {4, 8}},
    {"model.layers.0.self_attn.v_proj.weight", "F32", {4, 8}},
    {"model.layers.0.self_attn.o_proj.weight", "F32", {8, 8}},
    {"model.layers.0.post_attention_layernorm.weight", "F32", {8}},
    {"model.layers.0.mlp.gate_proj.weight", "F32", {12, 8}},
    {"model.layers.0.mlp.up_proj.weight", "F32", {12, 8}},
    {"model.layers.0.mlp.down_proj.weight", "F32", {8, 12}},
    {"lm_head.weight", "F32", {10, 8}},
};
const size_t made_tensor_count = KVA_COUNT_OF(made_tensors);

void checkpoint_init(struct checkpoint *checkpoint)
{
    const char *parent = getenv("TMPDIR");
    snprintf(checkpoint->dir, sizeof(checkpoint->dir), "%s/kvahead-test-XXXXXX",
             parent && strlen(parent) < 200 ? parent : "/tmp");
    assert_non_null(mkdtemp(checkpoint->dir));
}

const char *checkpoint_path(const struct checkpoint *checkpoint, const char *name, char *out,
                            size_t size)
{
    snprintf(out, size, "%s/%s", checkpoint->dir, name);
    return out;
}

void checkpoint_finish(struct checkpoint *checkpoint)
{
    char path[600];
    struct dirent *entry;
    DIR *dir = opendir(checkpoint->dir);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            remove(checkpoint_path(checkpoint, entry->d_name, path, sizeof(path)));
    }
    closedir(dir);
    assert_int_equal(rmdir(checkpoint->dir), 0);
}

void checkpoint_write(const struct checkpoint *checkpoint, const char *name, const void *data,
                      size_t size)
{
    char path[600];
    FILE *file = fopen(checkpoint_path(checkpoint, name, path, sizeof(path)), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void checkpoint_puts(const struct checkpoint *checkpoint, const char *name, const char *text)
{
    checkpoint_write(checkpoint, name, text, strlen(text));
}

static void put_length(struct kva_buf *out, uint64_t length)
{
    for (int i = 0; i < 8; i++)
        kva_buf_putc(out, (char)(length >> (8 * i) & 0xFF));
}

static size_t made_bytes(const struct made_tensor *tensor)
{
    size_t bytes = strcmp(tensor->dtype, "F32") == 0 || strcmp(tensor->dtype, "I32") == 0 ? 4
                   : strcmp(tensor->dtype, "I8") == 0 || strcmp(tensor->dtype, "U8") == 0 ? 1
                                                                                          : 2;
    for (size_t i = 0; i < 4 && tensor->dims[i]; i++)
        bytes *= tensor->dims[i];
    return bytes;
}

void made_file(struct kva_buf *out, const struct made_tensor *tensors, size_t count, size_t padding)
{
    struct kva_buf header;
    size_t at = 0;
    kva_buf_init(&header, 1 << 20);
    kva_buf_putc(&header, '{');
    for (size_t i = 0; i < count; i++) {
        const struct made_tensor *tensor = &tensors[i];
        kva_buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "",
                       tensor->name, tensor->dtype);
        for (size_t j = 0; j < 4 && tensor->dims[j]; j++)
            kva_buf_printf(&header, "%s%u", j ? "," : "", tensor->dims[j]);
        kva_buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", at, at + made_bytes(tensor));
        at += made_bytes(tensor);
    }
    kva_buf_putc(&header, '}');
    while (header.length % 8)
        kva_buf_putc(&header, ' ');
    for (size_t i = 0; i < padding; i++)
        kva_buf_putc(&header, ' ');
    kva_buf_init(out, 1 << 22);
    put_length(out, header.length);
    kva_buf_append(out, header.data, header.length);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < made_bytes(&tensors[i]); j++)
            kva_buf_putc(out, (char)i);
    assert_false(header.failed || out->failed);
    kva_buf_finish(&header);
}

void made_file_raw(struct kva_buf *out, const char *header, size_t data_bytes)
{
    kva_buf_init(out, 1 << 26);
    put_length(out, strlen(header));
    kva_buf_puts(out, header);
    for (size_t i = 0; i < data_bytes; i++)
        kva_buf_putc(out, 0);
    assert_false(out->failed);
}

void checkpoint_write_tensors(const struct checkpoint *checkpoint, const char *name,
                              const struct made_tensor *tensors, size_t count)
{
    struct kva_buf file;
    made_file(&file, tensors, count, 0);
    checkpoint_write(checkpoint, name, file.data, file.length);
    kva_buf_finish(&file);
}

void checkpoint_write_llama(const struct checkpoint *checkpoint)
{
    checkpoint_puts(checkpoint, "config.json", made_config);
    checkpoint_write_tensors(checkpoint, "model.safetensors", made_tensors, made_tensor_count);
}

enum kva_status checkpoint_open(const struct checkpoint *checkpoint, struct kva_model **ret,
                                struct kva_err *err)
{
    struct kva_model_open_params params = {.path = checkpoint->dir};
    return kva_model_open(&params, ret, err);
}

void expect_message(const struct kva_err *err, const char *part)
{
    if (!strstr(err->message, part))
        fail_msg("message '%s' does not contain '%s'", err->message, part);
}

void checkpoint_expect_failure(const struct checkpoint *checkpoint, enum kva_status status,
                               const char *const *parts)
{
    struct kva_err err = {0};
    struct kva_model *model = NULL;
    enum kva_status got = checkpoint_open(checkpoint, &model, &err);
    if (got != status)
        fail_msg("status %d, expected %d; message '%s'", got, status, err.message);
    assert_int_equal(err.status, status);
    assert_null(model);
    for (; *parts; parts++)
        expect_message(&err, *parts);
    /* Without a place for the message it must fail just the same. */
    assert_int_equal(checkpoint_open(checkpoint, &model, NULL), status);
}
