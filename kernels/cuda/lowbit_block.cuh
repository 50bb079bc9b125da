/* lowbit_block.cuh - where the parts of a KV head's low-bit block lie; ops.h draws them. */
#ifndef KVA_KERNELS_CUDA_LOWBIT_BLOCK_CUH
#define KVA_KERNELS_CUDA_LOWBIT_BLOCK_CUH

#include "kernels/cuda/number.cuh"

/* Offsets in bytes from the head's part of the block. */
struct lowbit_layout {
    uint32_t k_scale, k_zero; /* f16 [k_groups][dim] */
    uint32_t v_scale, v_zero; /* f16 [v_groups][KVA_PAGE_TOKENS] */
    uint32_t k_codes, v_codes;
    uint32_t plane_bytes; /* of one bit of all codes, keys or values */
    uint32_t head_bytes;
    uint32_t k_groups; /* of tokens */
    uint32_t v_groups; /* of channels; the last may be short */
};

static inline struct lowbit_layout lowbit_layout_of(struct kva_lowbit_format format, uint32_t dim)
{
    struct lowbit_layout l = {};
    l.k_groups = KVA_PAGE_TOKENS / format.group;
    l.v_groups = (dim + format.group - 1) / format.group;
    uint32_t k_bytes = l.k_groups * dim * 2, v_bytes = l.v_groups * KVA_PAGE_TOKENS * 2;
    l.plane_bytes = KVA_PAGE_TOKENS * dim / 8;
    l.k_zero = k_bytes;
    l.v_scale = 2 * k_bytes;
    l.v_zero = 2 * k_bytes + v_bytes;
    l.k_codes = 2 * (k_bytes + v_bytes);
    l.v_codes = l.k_codes + format.bits * l.plane_bytes;
    l.head_bytes = l.v_codes + format.bits * l.plane_bytes;
    return l;
}

/* Nibble i * KVA_PAGE_TOKENS + t of a key plane: channels 4 i .. 4 i + 3 of token t. Nibble i * dim
 * + c of a value plane: tokens 4 i .. 4 i + 3 of channel c. */

#endif
