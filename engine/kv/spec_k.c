/* spec_k.c - the number of rows per layer (topk): found, read, written. */
#include "engine/kv/policy.h"

#include <stdio.h>
#include <string.h>

static bool fetches_rows(const struct kva_kv_spec *spec)
{
    return kva_kv_spec_has_setting(spec, KVA_SETTING_TOPK);
}

uint32_t kva_kv_spec_k(const struct kva_kv_spec *spec, uint32_t layer)
{
    if (!fetches_rows(spec))
        return 0;
    for (uint32_t i = spec->k_range_count; i-- > 0;) {
        const struct kva_kv_k_range *range = &spec->k_ranges[i];
        if (layer >= range->first && layer < range->end)
            return range->k;
    }
    return spec->k;
}

uint32_t kva_kv_spec_k_max(const struct kva_kv_spec *spec)
{
    if (!fetches_rows(spec))
        return 0;
    uint32_t most = spec->k;
    for (uint32_t i = 0; i < spec->k_range_count; i++)
        most = kva_max_u32(most, spec->k_ranges[i].k);
    return most;
}

/* A number at *at, which then stands behind it. */
static bool take_number(const char **at, const char *end, uint32_t max, uint32_t *ret)
{
    const char *text = *at;
    uint64_t number = 0;
    for (; *at < end && **at >= '0' && **at <= '9' && number <= max; ++*at)
        number = number * 10 + (uint64_t)(**at - '0');
    *ret = (uint32_t)number;
    return *at > text && number <= max;
}

static bool take_char(const char **at, const char *end, char wanted)
{
    bool there = *at < end && **at == wanted;
    *at += there;
    return there;
}

/* N@FIRST or N@FIRST-LAST. */
static bool take_range(const char **at, const char *end, uint32_t max, struct kva_kv_k_range *ret)
{
    if (!take_number(at, end, max, &ret->k) || !take_char(at, end, '@') ||
        !take_number(at, end, KVA_KV_LAYER_MAX, &ret->first))
        return false;
    uint32_t last = ret->first;
    if (take_char(at, end, '-') && !take_number(at, end, KVA_KV_LAYER_MAX, &last))
        return false;
    ret->end = last + 1;
    return last >= ret->first;
}

enum kva_status kva_kv_spec_read_k(const char *text, size_t length, uint32_t max,
                                   struct kva_kv_spec *spec, struct kva_err *err)
{
    struct kva_kv_spec read = *spec;
    const char *at = text, *end = text + length;
    memset(read.k_ranges, 0, sizeof(read.k_ranges));
    read.k_range_count = 0;
    bool ok = take_number(&at, end, max, &read.k);
    while (ok && at < end && read.k_range_count < KVA_KV_K_RANGES_MAX)
        ok = take_char(&at, end, '+') &&
             take_range(&at, end, max, &read.k_ranges[read.k_range_count++]);
    if (!ok || at < end)
        return kva_fail_param(err, KVA_EINVAL, "topk",
                              "topk is '%.*s', it must be a whole number from 0 to %u, and for "
                              "layers with another one +N@LAYER or +N@FIRST-LAST, %u times at most",
                              (int)kva_min_size(length, 100), text, max, KVA_KV_K_RANGES_MAX);
    *spec = read;
    return KVA_OK;
}

void kva_kv_spec_write_k(const struct kva_kv_spec *spec, char *text)
{
    int used = snprintf(text, KVA_KV_K_TEXT_MAX, "%u", spec->k);
    for (uint32_t i = 0; i < spec->k_range_count; i++) {
        const struct kva_kv_k_range *range = &spec->k_ranges[i];
        used += snprintf(text + used, KVA_KV_K_TEXT_MAX - (size_t)used, "+%u@%u", range->k,
                         range->first);
        if (range->end > range->first + 1)
            used += snprintf(text + used, KVA_KV_K_TEXT_MAX - (size_t)used, "-%u", range->end - 1);
    }
}
