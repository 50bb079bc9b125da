/* usage.h - bytes per memory tier, and what the KV cache counts: the words in which engine,
 * scheduler and reports speak of it. */
#ifndef KVA_ENGINE_KV_USAGE_H
#define KVA_ENGINE_KV_USAGE_H

#include "engine/kv/spec.h"

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

/* What policies do with a sequence's rows and tokens, counted for its report and since start. */
struct kva_kv_policy_counters {
    uint64_t fetched_bytes;       /* host to device */
    uint64_t fetch_rows_hit;      /* rows that were selected and were on the device already */
    uint64_t fetch_rows_missed;   /* and that had to be fetched */
    uint64_t spec_tokens;         /* speculative tokens decoded */
    uint64_t spec_tokens_matched; /* of them: equal to the token that was then sampled */
};

struct kva_kv_usage {
    struct kva_tier_bytes used;   /* by admitted sequences and the prefix cache */
    struct kva_tier_bytes cached; /* of it: prefix cache only, given up on demand */
    struct kva_tier_bytes budget;
    uint32_t sequences[KVA_KV_POLICY_COUNT]; /* that hold device memory, by policy */
    uint64_t prefix_lookup_tokens;           /* counters since start, as the following */
    uint64_t prefix_hit_tokens;
    uint64_t offloaded_bytes;  /* device to host */
    uint64_t fetch_late_count; /* steps that waited for a fetch */
    struct kva_kv_policy_counters policies;
};

#endif
