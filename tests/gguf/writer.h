/* writer.h - makes GGUF files for tests, good ones and, with the raw functions, bad ones.
 *
 * Everything here asserts, so it is only called from tests. Thread rule: one thread. */
#ifndef KVA_TESTS_GGUF_WRITER_H
#define KVA_TESTS_GGUF_WRITER_H

#include "base/buf.h"
#include "gguf/gguf.h"

struct gguf_writer {
    uint32_t version, alignment;
    uint64_t field_count, tensor_count; /* tests may lie here, before the file is written */
    struct kva_buf fields, infos, data;
};

void gguf_writer_init(struct gguf_writer *writer);
void gguf_writer_finish(struct gguf_writer *writer);

void gguf_put_u32(struct gguf_writer *writer, const char *key, uint32_t value);
void gguf_put_f32(struct gguf_writer *writer, const char *key, float value);
void gguf_put_bool(struct gguf_writer *writer, const char *key, bool value);
void gguf_put_string(struct gguf_writer *writer, const char *key, const char *value);
void gguf_put_strings(struct gguf_writer *writer, const char *key, const char *const *values,
                      size_t count);
void gguf_put_i32s(struct gguf_writer *writer, const char *key, const int32_t *values,
                   size_t count);
void gguf_put_f32s(struct gguf_writer *writer, const char *key, const float *values, size_t count);
/* Any type and value bytes. */
void gguf_put_field(struct gguf_writer *writer, const char *key, size_t key_length, uint32_t type,
                    const void *value, size_t bytes);

/* rows 0: a vector of cols. */
void gguf_put_tensor(struct gguf_writer *writer, const char *name, uint32_t format, uint32_t rows,
                     uint32_t cols, const void *data, size_t bytes);
/* A description alone. */
void gguf_put_info(struct gguf_writer *writer, const char *name, size_t name_length, uint32_t rank,
                   const uint64_t *dims, uint32_t format, uint64_t offset);

/* Little-endian number of so many bytes. */
void gguf_put_number(struct kva_buf *out, uint64_t value, int bytes);

/* The file's bytes; the writer may go on and write again. */
void gguf_writer_write(struct gguf_writer *writer, struct kva_buf *out);
/* Into a file. */
void gguf_writer_save(struct gguf_writer *writer, const char *path);

#endif
