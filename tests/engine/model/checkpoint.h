/* checkpoint.h - checkpoints that tests make up: a temporary folder, files in it, and safetensors
 * files of made-up tensors.
 *
 * Everything here asserts, so it is only called from tests. Thread rule: one thread. */
#ifndef KVA_TESTS_CHECKPOINT_H
#define KVA_TESTS_CHECKPOINT_H

#include "base/buf.h"
#include "engine/model/model.h"

struct checkpoint {
    char dir[256];
};

/* A new empty folder; finish removes it with the files in it. */
void checkpoint_init(struct checkpoint *checkpoint);
void checkpoint_finish(struct checkpoint *checkpoint);

const char *checkpoint_path(const struct checkpoint *checkpoint, const char *name, char *out,
                            size_t size);
void checkpoint_write(const struct checkpoint *checkpoint, const char *name, const void *data,
                      size_t size);
void checkpoint_puts(const struct checkpoint *checkpoint, const char *name, const char *text);

/* A tensor whose every byte is its index in the file, so that it can be recognised. dims end at the
 * first 0. */
struct made_tensor {
    const char *name;
    const char *dtype;
    uint32_t dims[4];
};

/* config.json, and the tensors that it asks for, of a Llama with one layer: hidden 8, 2 heads of 4,
 * 1 key-value head, intermediate 12, vocabulary 10, F32, an output matrix of its own. */
extern const char made_config[];
extern const struct made_tensor made_tensors[];
extern const size_t made_tensor_count;

/* The bytes of a safetensors file. Its header ends at a multiple of 8 and
 * `padding` spaces. */
void made_file(struct kva_buf *out, const struct made_tensor *tensors, size_t count,
               size_t padding);

/* A file of any header and of data_bytes zeros. */
void made_file_raw(struct kva_buf *out, const char *header, size_t data_bytes);

void checkpoint_write_tensors(const struct checkpoint *checkpoint, const char *name,
                              const struct made_tensor *tensors, size_t count);

/* made_config and made_tensors. */
void checkpoint_write_llama(const struct checkpoint *checkpoint);

/* Open without prefetch. */
enum kva_status checkpoint_open(const struct checkpoint *checkpoint, struct kva_model **ret,
                                struct kva_err *err);

/* Opening fails with that status and a message that contains each of the strings, up to NULL. */
void checkpoint_expect_failure(const struct checkpoint *checkpoint, enum kva_status status,
                               const char *const *parts);

/* The message contains the part; says both if not. */
void expect_message(const struct kva_err *err, const char *part);

#endif
