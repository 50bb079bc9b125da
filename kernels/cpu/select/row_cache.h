/* row_cache.h - the rows of one KV head of a row cache, by ascending position. */
#ifndef KVA_KERNELS_CPU_SELECT_ROW_CACHE_H
#define KVA_KERNELS_CPU_SELECT_ROW_CACHE_H

#include "kernels/ops.h"

/* Whether an entry with this gate is skipped (ops.h). What leaves gates runs when it is called:
 * they are there. */
static inline bool kva_gate_closed(const uint32_t *gate)
{
    return gate && *gate == 0;
}

/* Position of row `index`. */
static inline uint32_t kva_row_position(const struct kva_row_cache *rows, uint32_t kv_head,
                                        uint32_t index)
{
    size_t first = (size_t)kv_head * rows->slots;
    return rows->tokens[first + rows->order[first + index]];
}

/* K of row `index`, V right behind it. */
static inline const void *kva_row_at(const struct kva_row_cache *rows, uint32_t kv_head,
                                     uint32_t index, uint32_t head_dim)
{
    size_t first = (size_t)kv_head * rows->slots;
    return (const uint16_t *)rows->rows + (first + rows->order[first + index]) * 2 * head_dim;
}

/* How many rows lie before `position`. */
static inline uint32_t kva_rows_before(const struct kva_row_cache *rows, uint32_t kv_head,
                                       uint32_t position)
{
    uint32_t low = 0, high = rows->count[kv_head];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (kva_row_position(rows, kv_head, middle) < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* present[i] = the tokens of page page_first + i that no row replaces; rows NULL: there are none.
 */
static inline void kva_rows_present(const struct kva_row_cache *rows, uint32_t kv_head,
                                    uint32_t page_first, uint32_t count, uint64_t *present)
{
    for (uint32_t i = 0; i < count; i++)
        present[i] = UINT64_MAX;
    if (!rows)
        return;
    uint32_t base = page_first * KVA_PAGE_TOKENS;
    uint32_t row_count = rows->count[kv_head];
    for (uint32_t i = kva_rows_before(rows, kv_head, base); i < row_count; i++) {
        uint32_t offset = kva_row_position(rows, kv_head, i) - base;
        if (offset >= count * KVA_PAGE_TOKENS)
            return;
        present[offset / KVA_PAGE_TOKENS] &= ~(1ull << offset % KVA_PAGE_TOKENS);
    }
}

#endif
