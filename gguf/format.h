/* format.h - the number formats of GGUF tensors, as one table: how many weights a block has, in how
 * many bytes, and what turns blocks into floats.
 *
 * A row of a matrix is whole blocks. Formats without a decoder are there so that their sizes are
 * checked and messages can name them. A kernel that takes a format's blocks as they are needs
 * nothing here but its row.
 *
 * Thread rule: constant data. */
#ifndef KVA_GGUF_FORMAT_H
#define KVA_GGUF_FORMAT_H

#include "base/buf.h"
#include "base/kva.h"

#include <stdbool.h>

enum kva_gguf_format_id {
    KVA_GGUF_F32 = 0,
    KVA_GGUF_F16 = 1,
    KVA_GGUF_BF16 = 30,
};

struct kva_gguf_format {
    const char *name;      /* "Q4_K" */
    uint32_t id;           /* as files have it */
    uint32_t block_values; /* 1: plain numbers */
    uint32_t block_bytes;
    /* `count` blocks into count * block_values floats; NULL: not implemented, or nothing to do
     * (F32, F16, BF16). Neither pointer needs to be aligned for its numbers. */
    void (*decode)(const uint8_t *blocks, size_t count, float *out);
};

/* Of all decoders; scratch for whole blocks is a multiple of it. */
#define KVA_GGUF_BLOCK_VALUES_MAX 256u

/* NULL: no format has this number. */
const struct kva_gguf_format *kva_gguf_format_find(uint32_t id);

/* F32, F16 or BF16, or one that can be decoded. */
bool kva_gguf_format_is_supported(const struct kva_gguf_format *format);

/* "F32, F16, Q4_0, ...": the supported ones. */
void kva_gguf_format_list(struct kva_buf *out);

#endif
