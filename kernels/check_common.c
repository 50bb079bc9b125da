/* check_common.c - what several operators ask of their arguments. */
#include "kernels/check_internal.h"

#include <stdarg.h>
#include <stdio.h>

bool kva_check_refuse(struct kva_device *device, const char *format, ...)
{
    char message[KVA_ERR_MESSAGE_MAX];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    kva_check_base(device)->backend->fail(device, message);
    return false;
}

bool kva_check_kv_dtype(struct kva_device *device, const char *op, enum kva_dtype kv_dtype)
{
    if (kv_dtype == KVA_F16 || kv_dtype == KVA_BF16)
        return true;
    return kva_check_refuse(device, "%s: KV blocks hold f16 or bf16, not data type %d", op,
                            (int)kv_dtype);
}

bool kva_check_heads(struct kva_device *device, const char *op, uint32_t heads, uint32_t kv_heads)
{
    if (kv_heads > 0 && heads % kv_heads == 0)
        return true;
    return kva_check_refuse(device, "%s: %u heads cannot share %u KV heads", op, heads, kv_heads);
}

bool kva_check_head_dim(struct kva_device *device, const char *op, uint32_t head_dim)
{
    uint32_t most = kva_check_limits(device)->head_dim_max;
    if (head_dim > 0 && head_dim <= most)
        return true;
    return kva_check_refuse(device, "%s: head_dim %u, must be 1 to %u", op, head_dim, most);
}

bool kva_check_head_dim_of_rows(struct kva_device *device, const char *op, uint32_t head_dim)
{
    uint32_t most = kva_check_limits(device)->head_dim_max;
    if (head_dim > 0 && head_dim % 4 == 0 && head_dim <= most)
        return true;
    return kva_check_refuse(device, "%s: head_dim %u, must be a multiple of 4 up to %u", op,
                            head_dim, most);
}

bool kva_check_per_token(struct kva_device *device, const char *op, struct kva_lowbit_format format,
                         uint32_t head_dim)
{
    if (format.bits != 2 && format.bits != 3 && format.bits != 4 && format.bits != 8)
        return kva_check_refuse(device, "%s: %u bits, with keys per token must be 2, 3, 4 or 8", op,
                                format.bits);
    if (format.value_bits != 0)
        return kva_check_refuse(device, "%s: values of %u bits, with keys per token as keys", op,
                                format.value_bits);
    if (format.group != head_dim)
        return kva_check_refuse(device, "%s: groups of %u, with keys per token must be head_dim %u",
                                op, format.group, head_dim);
    if (format.key_levels != KVA_LEVELS_PAPER || format.value_levels != KVA_LEVELS_PAPER)
        return kva_check_refuse(device, "%s: no levels %d and %d with keys per token", op,
                                (int)format.key_levels, (int)format.value_levels);
    return true;
}

bool kva_check_lowbit(struct kva_device *device, const char *op, struct kva_lowbit_format format,
                      uint32_t head_dim)
{
    if (!kva_check_head_dim_of_rows(device, op, head_dim))
        return false;
    if (format.keys == KVA_KEYS_PER_TOKEN)
        return kva_check_per_token(device, op, format, head_dim);
    if (format.bits != 1 && format.bits != 2 && format.bits != 4)
        return kva_check_refuse(device, "%s: %u bits, must be 1, 2 or 4", op, format.bits);
    if (format.value_bits != 0 && (format.value_bits != 2 || format.bits != 1))
        return kva_check_refuse(device, "%s: values of %u bits with keys of %u, must be 2 with 1",
                                op, format.value_bits, format.bits);
    if (format.group != 32 && format.group != 64)
        return kva_check_refuse(device, "%s: groups of %u, must be 32 or 64", op, format.group);
    if (format.coding != KVA_CODING_PLAIN)
        return kva_check_refuse(device, "%s: rows are turned with keys per token alone", op);
    return true;
}

bool kva_check_slots(struct kva_device *device, const char *op, const struct kva_row_cache *rows)
{
    uint32_t most = kva_check_limits(device)->slots_max;
    if (rows->slots < (size_t)rows->pinned + rows->k)
        return kva_check_refuse(device, "%s: %u slots cannot hold %u pinned and %u chosen rows", op,
                                rows->slots, rows->pinned, rows->k);
    if (rows->slots > most)
        return kva_check_refuse(device, "%s: %u slots, at most %u", op, rows->slots, most);
    return true;
}

bool kva_check_scores(struct kva_device *device, const char *op,
                      const struct kva_attend_scores *scores, uint32_t row_count,
                      const struct kva_attend_range *ranges, uint32_t range_count)
{
    if (!scores->data)
        return true;
    if (row_count != 1)
        return kva_check_refuse(device, "%s: scores of %u rows, those of one are kept", op,
                                row_count);
    for (uint32_t i = 0; i < range_count; i++) {
        const uint32_t first = ranges[i].token_first / KVA_ATTEND_SPLIT_TOKENS;
        const uint64_t end = (uint64_t)ranges[i].token_first + ranges[i].token_count;
        if (first < scores->split_first ||
            kva_div_up(end, KVA_ATTEND_SPLIT_TOKENS) > scores->split_first + scores->split_count)
            return kva_check_refuse(device, "%s: scores of splits %u to %u, tokens up to %llu", op,
                                    scores->split_first, scores->split_first + scores->split_count,
                                    (unsigned long long)end);
    }
    return true;
}
