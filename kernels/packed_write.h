/* packed_write.h - blocks of a packed matrix from codes: what the ways to make one share (packed.c's
 * other half: packed_repack.c, packed_quantise.c). */
#ifndef KVA_KERNELS_PACKED_WRITE_H
#define KVA_KERNELS_PACKED_WRITE_H

#include "kernels/packed.h"

#define KVA_PACKED_BLOCK_MAX 256u /* inputs */

/* The codes of a block, output by output. */
struct kva_packed_codes {
    uint8_t at[KVA_PACKED_PANEL][KVA_PACKED_BLOCK_MAX];
};

/* Writes the pieces with the block's first `inputs` inputs. */
void kva_packed_write_pieces(const struct kva_packed_format *format,
                             const struct kva_packed_codes *codes, uint32_t inputs, uint8_t *to);

#endif
