/* block.h - where the parts of a KV head's low-bit block lie; ops.h draws them. */
#ifndef KVA_KERNELS_CPU_LOWBIT_BLOCK_H
#define KVA_KERNELS_CPU_LOWBIT_BLOCK_H

#include "kernels/cpu/cpu.h"

/* Offsets in bytes from the head's part of the block. */
struct kva_lowbit_layout {
    size_t k_scale, k_zero; /* f16 [k_groups][head_dim] */
    size_t v_scale, v_zero; /* f16 [v_groups][KVA_PAGE_TOKENS] */
    size_t k_codes, v_codes;
    size_t plane_bytes; /* of one bit of all codes, keys or values */
    uint32_t k_groups;  /* of tokens */
    uint32_t v_groups;  /* of channels; the last may be short */
};

static inline struct kva_lowbit_layout kva_lowbit_layout(struct kva_lowbit_format format,
                                                         uint32_t head_dim)
{
    struct kva_lowbit_layout layout;
    layout.k_groups = KVA_PAGE_TOKENS / format.group;
    layout.v_groups = (uint32_t)kva_div_up(head_dim, format.group);
    size_t k_bytes = (size_t)layout.k_groups * head_dim * sizeof(uint16_t);
    size_t v_bytes = (size_t)layout.v_groups * KVA_PAGE_TOKENS * sizeof(uint16_t);
    layout.plane_bytes = (size_t)KVA_PAGE_TOKENS * head_dim / 8;
    layout.k_scale = 0;
    layout.k_zero = k_bytes;
    layout.v_scale = 2 * k_bytes;
    layout.v_zero = 2 * k_bytes + v_bytes;
    layout.k_codes = 2 * (k_bytes + v_bytes);
    layout.v_codes = layout.k_codes + format.bits * layout.plane_bytes;
    return layout;
}

/* Bit `j` of nibble `nibble` of a plane: byte and shift. Of keys, the nibble of channels 4 i ..
 * 4 i + 3 of token t is i * KVA_PAGE_TOKENS + t; of values, that of tokens 4 i .. 4 i + 3 of
 * channel c is i * head_dim + c. */
static inline size_t kva_lowbit_k_bit(uint32_t token, uint32_t channel)
{
    return ((size_t)(channel / 4) * KVA_PAGE_TOKENS + token) * 4 + channel % 4;
}

static inline size_t kva_lowbit_v_bit(uint32_t token, uint32_t channel, uint32_t head_dim)
{
    return ((size_t)(token / 4) * head_dim + channel) * 4 + token % 4;
}

#endif
