/* usage.h - bytes per memory tier, and what the KV cache counts: the words in which engine,
 * scheduler and reports speak of it. */
#ifndef KVA_ENGINE_KV_USAGE_H
#define KVA_ENGINE_KV_USAGE_H

#include "engine/kv/spec.h"

#include <stdbool.h>
#include <stdint.h>

/* Where memory is short. */
enum kva_tier_id {
    KVA_TIER_DEVICE,
    KVA_TIER_HOST,
};

struct kva_tier_bytes {
    uint64_t device;
    uint64_t host;
};

/* Device bytes of a sequence's pages that other running sequences have too: neither are they free
 * when it is suspended, nor does it take them when it resumes. */
struct kva_shared_bytes {
    uint64_t bytes;
    uint64_t portion; /* where each page is divided among all that have it */
};

/* --- counters -------------------------------------------------------------------------------- */

/* What the cache, a part or a policy counts, for all sequences and for each one. Engine, scheduler
 * and server read counters by going through them; nobody there knows one by name. Constant. */
struct kva_counter {
    const char *name;  /* "fetch_rows_hit": of the metric kvahead_NAME_total, and in measurements */
    const char *unit;  /* "bytes", "rows", "tokens", "steps" */
    const char *help;  /* a sentence */
    const char *field; /* its name in the report of a request; NULL: it is not kept by sequence */
    /* Reports also have this field: the share of the count in it and `others` together. NULL: no */
    const char *share_field;
    const struct kva_counter *others;
    bool inline_only; /* only where operators run as they are called (kva_device_info) */
};

#define KVA_COUNTERS_MAX 16u

/* Counters and where they stand. */
struct kva_counts {
    struct {
        const struct kva_counter *counter;
        uint64_t value;
    } at[KVA_COUNTERS_MAX];
    uint32_t count;
};

/* Where a counter stands; 0 if it is not among them. */
uint64_t kva_counts_of(const struct kva_counts *counts, const struct kva_counter *counter);
uint64_t kva_counts_named(const struct kva_counts *counts, const char *name);

/* False: there are KVA_COUNTERS_MAX already. */
bool kva_counts_have(struct kva_counts *counts, const struct kva_counter *counter);

/* `n` more, if the counter is among them. */
void kva_counts_add(struct kva_counts *counts, const struct kva_counter *counter, uint64_t n);

/* to += from; and to = since its value in `before`. */
void kva_counts_add_all(struct kva_counts *to, const struct kva_counts *from);
void kva_counts_since(struct kva_counts *to, const struct kva_counts *before);

/* --- usage ----------------------------------------------------------------------------------- */

struct kva_kv_usage {
    struct kva_tier_bytes used;   /* by admitted sequences and the prefix cache */
    struct kva_tier_bytes cached; /* of it: prefix cache only, given up on demand */
    struct kva_tier_bytes budget;
    uint32_t sequences[KVA_KV_POLICY_COUNT]; /* that hold device memory, by policy */
    uint64_t prefix_lookup_tokens;           /* counters since start, as the following */
    uint64_t prefix_hit_tokens;
    struct kva_counts counts;
};

#endif
