/* checksum.h - 64 bits that tell one content from another, at the speed of memory: XXH64 of Yann
 * Collet's xxHash, seed 0, over pieces. It finds changes and damage; it is no protection against
 * someone who makes up a file on purpose.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_ENGINE_MODEL_CHECKSUM_H
#define KVA_ENGINE_MODEL_CHECKSUM_H

#include "base/kva.h"

/* Pieces of which the sums are taken apart, so that threads can share the work. */
#define KVA_CHECKSUM_PIECE_BYTES ((size_t)4 << 20)

/* XXH64 of the bytes. */
uint64_t kva_checksum(const void *data, size_t bytes);

/* A sum over parts in order. */
uint64_t kva_checksum_join(uint64_t sum, uint64_t part);

#endif
