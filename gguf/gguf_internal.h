/* gguf_internal.h - what gguf.c (reading and checking the file) and values.c (what fields say) share.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_GGUF_GGUF_INTERNAL_H
#define KVA_GGUF_GGUF_INTERNAL_H

#include "gguf/gguf.h"

/* A whole number of so many bytes, the lowest first. */
static inline uint64_t kva_gguf_load(const uint8_t *at, uint32_t bytes)
{
    uint64_t value = 0;
    for (uint32_t i = bytes; i > 0; i--)
        value = value << 8 | at[i - 1];
    return value;
}

/* Of one element; 0: strings and arrays, which have no fixed size. */
uint32_t kva_gguf_type_bytes(enum kva_gguf_type type);

#endif
