#include "tests/gguf/writer.h"

#include "tests/cmocka.h"

#include <stdio.h>
#include <string.h>

#define BYTES_MAX ((size_t)256 << 20)

void gguf_put_number(struct kva_buf *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        kva_buf_putc(out, (char)(value >> (8 * i) & 0xFF));
}

static void put_text(struct kva_buf *out, const char *text, size_t length)
{
    gguf_put_number(out, length, 8);
    kva_buf_append(out, text, length);
}

void gguf_writer_init(struct gguf_writer *writer)
{
    *writer = (struct gguf_writer){.version = 3, .alignment = 32};
    kva_buf_init(&writer->fields, BYTES_MAX);
    kva_buf_init(&writer->infos, BYTES_MAX);
    kva_buf_init(&writer->data, BYTES_MAX);
}

void gguf_writer_finish(struct gguf_writer *writer)
{
    kva_buf_finish(&writer->fields);
    kva_buf_finish(&writer->infos);
    kva_buf_finish(&writer->data);
}

void gguf_put_field(struct gguf_writer *writer, const char *key, size_t key_length, uint32_t type,
                    const void *value, size_t bytes)
{
    put_text(&writer->fields, key, key_length);
    gguf_put_number(&writer->fields, type, 4);
    kva_buf_append(&writer->fields, value, bytes);
    writer->field_count++;
}

void gguf_put_u32(struct gguf_writer *writer, const char *key, uint32_t value)
{
    gguf_put_field(writer, key, strlen(key), KVA_GGUF_TYPE_U32, &value, sizeof(value));
}

void gguf_put_f32(struct gguf_writer *writer, const char *key, float value)
{
    gguf_put_field(writer, key, strlen(key), KVA_GGUF_TYPE_F32, &value, sizeof(value));
}

void gguf_put_bool(struct gguf_writer *writer, const char *key, bool value)
{
    gguf_put_field(writer, key, strlen(key), KVA_GGUF_TYPE_BOOL, &value, 1);
}

void gguf_put_string(struct gguf_writer *writer, const char *key, const char *value)
{
    gguf_put_field(writer, key, strlen(key), KVA_GGUF_TYPE_STRING, NULL, 0);
    put_text(&writer->fields, value, strlen(value));
}

static void begin_array(struct gguf_writer *writer, const char *key, uint32_t type, size_t count)
{
    gguf_put_field(writer, key, strlen(key), KVA_GGUF_TYPE_ARRAY, NULL, 0);
    gguf_put_number(&writer->fields, type, 4);
    gguf_put_number(&writer->fields, count, 8);
}

void gguf_put_strings(struct gguf_writer *writer, const char *key, const char *const *values,
                      size_t count)
{
    begin_array(writer, key, KVA_GGUF_TYPE_STRING, count);
    for (size_t i = 0; i < count; i++)
        put_text(&writer->fields, values[i], strlen(values[i]));
}

void gguf_put_i32s(struct gguf_writer *writer, const char *key, const int32_t *values, size_t count)
{
    begin_array(writer, key, KVA_GGUF_TYPE_I32, count);
    kva_buf_append(&writer->fields, values, count * sizeof(*values));
}

void gguf_put_f32s(struct gguf_writer *writer, const char *key, const float *values, size_t count)
{
    begin_array(writer, key, KVA_GGUF_TYPE_F32, count);
    kva_buf_append(&writer->fields, values, count * sizeof(*values));
}

void gguf_put_info(struct gguf_writer *writer, const char *name, size_t name_length, uint32_t rank,
                   const uint64_t *dims, uint32_t format, uint64_t offset)
{
    put_text(&writer->infos, name, name_length);
    gguf_put_number(&writer->infos, rank, 4);
    for (uint32_t i = 0; i < rank; i++)
        gguf_put_number(&writer->infos, dims[i], 8);
    gguf_put_number(&writer->infos, format, 4);
    gguf_put_number(&writer->infos, offset, 8);
    writer->tensor_count++;
}

void gguf_put_tensor(struct gguf_writer *writer, const char *name, uint32_t format, uint32_t rows,
                     uint32_t cols, const void *data, size_t bytes)
{
    const uint64_t dims[] = {cols, rows};
    while (writer->data.length % writer->alignment)
        kva_buf_putc(&writer->data, 0);
    gguf_put_info(writer, name, strlen(name), rows ? 2 : 1, dims, format, writer->data.length);
    kva_buf_append(&writer->data, data, bytes);
}

void gguf_writer_write(struct gguf_writer *writer, struct kva_buf *out)
{
    kva_buf_init(out, BYTES_MAX);
    kva_buf_puts(out, "GGUF");
    gguf_put_number(out, writer->version, 4);
    gguf_put_number(out, writer->tensor_count, 8);
    gguf_put_number(out, writer->field_count, 8);
    kva_buf_append(out, writer->fields.data, writer->fields.length);
    kva_buf_append(out, writer->infos.data, writer->infos.length);
    while (out->length % writer->alignment)
        kva_buf_putc(out, 0);
    kva_buf_append(out, writer->data.data, writer->data.length);
    assert_false(out->failed || writer->fields.failed || writer->infos.failed ||
                 writer->data.failed);
}

void gguf_writer_save(struct gguf_writer *writer, const char *path)
{
    struct kva_buf bytes;
    gguf_writer_write(writer, &bytes);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes.data, 1, bytes.length, file), bytes.length);
    assert_int_equal(fclose(file), 0);
    kva_buf_finish(&bytes);
}
