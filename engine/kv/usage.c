/* usage.c - counters. */
#include "engine/kv/usage.h"

#include <string.h>

uint64_t kva_counts_of(const struct kva_counts *counts, const struct kva_counter *counter)
{
    for (uint32_t i = 0; i < counts->count; i++) {
        if (counts->at[i].counter == counter)
            return counts->at[i].value;
    }
    return 0;
}

uint64_t kva_counts_named(const struct kva_counts *counts, const char *name)
{
    for (uint32_t i = 0; i < counts->count; i++) {
        if (strcmp(counts->at[i].counter->name, name) == 0)
            return counts->at[i].value;
    }
    return 0;
}

bool kva_counts_have(struct kva_counts *counts, const struct kva_counter *counter)
{
    for (uint32_t i = 0; i < counts->count; i++) {
        if (counts->at[i].counter == counter)
            return true;
    }
    if (counts->count == KVA_COUNTERS_MAX)
        return false;
    counts->at[counts->count].counter = counter;
    counts->at[counts->count++].value = 0;
    return true;
}

void kva_counts_add(struct kva_counts *counts, const struct kva_counter *counter, uint64_t n)
{
    for (uint32_t i = 0; i < counts->count; i++) {
        if (counts->at[i].counter == counter)
            counts->at[i].value += n;
    }
}

void kva_counts_add_all(struct kva_counts *to, const struct kva_counts *from)
{
    for (uint32_t i = 0; i < from->count; i++) {
        if (kva_counts_have(to, from->at[i].counter))
            kva_counts_add(to, from->at[i].counter, from->at[i].value);
    }
}

void kva_counts_since(struct kva_counts *to, const struct kva_counts *before)
{
    for (uint32_t i = 0; i < to->count; i++)
        to->at[i].value -= kva_counts_of(before, to->at[i].counter);
}
