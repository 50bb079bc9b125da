/* plan.c - which sequences have KV of their own, by the memory that is free. */
#include "cli/bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum kva_status kva_bench_parse_list(const char *text, const char *option, uint32_t max, bool zeros,
                                     struct kva_bench_list *ret, struct kva_err *err)
{
    struct kva_bench_list list = {.count = 0};
    for (const char *at = text;; at++) {
        size_t digits = strspn(at, "0123456789");
        unsigned long long value = digits && digits < 11 ? strtoull(at, NULL, 10) : 0;
        if (digits == 0 || digits >= 11 || value > max || (at[digits] && at[digits] != ','))
            return kva_fail_param(err, KVA_EINVAL, option,
                                  "--%s is '%.100s', expected whole numbers up to %u with commas "
                                  "between",
                                  option, text, max);
        if (list.count == KVA_BENCH_LIST_MAX)
            return kva_fail_param(err, KVA_EINVAL, option, "--%s has more than %u numbers", option,
                                  KVA_BENCH_LIST_MAX);
        if (value > 0 || zeros)
            list.values[list.count++] = (uint32_t)value;
        at += digits;
        if (!*at)
            break;
    }
    *ret = list;
    return KVA_OK;
}

static struct kva_tier_bytes group_bytes(const struct kva_bench_need *need, uint32_t sequences,
                                         uint32_t distinct)
{
    uint64_t sharing = sequences - distinct;
    return (struct kva_tier_bytes){
        .device = distinct * need->own.device + sharing * need->shared.device,
        .host = distinct * need->own.host + sharing * need->shared.host,
    };
}

static bool fits(const struct kva_bench_memory *memory, struct kva_tier_bytes bytes)
{
    return bytes.device <= memory->device && bytes.host <= memory->host &&
           bytes.device + bytes.host <= memory->total;
}

struct kva_bench_group kva_bench_plan(const struct kva_bench_memory *memory,
                                      const struct kva_bench_need *need, uint32_t wanted)
{
    for (uint32_t sequences = wanted; sequences > 0; sequences--) {
        for (uint32_t distinct = sequences; distinct > 0; distinct--) {
            struct kva_tier_bytes bytes = group_bytes(need, sequences, distinct);
            if (fits(memory, bytes))
                return (struct kva_bench_group){sequences, distinct, bytes};
        }
    }
    return (struct kva_bench_group){0};
}
