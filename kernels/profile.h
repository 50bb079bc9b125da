/* profile.h - what a device's operators cost: calls, time, bytes and arithmetic, by kind.
 *
 * A profile stands in for the device's operator table and hands every call on. Bytes and operations
 * are counted from the calls' arguments, so they are what was asked for, not what a cache saved:
 * each matrix once a call, of the KV cache every token that some row of a sequence sees once.
 *
 * Thread rule: the device's; read between steps. */
#ifndef KVA_KERNELS_PROFILE_H
#define KVA_KERNELS_PROFILE_H

#include "kernels/ops.h"

enum kva_profile_kind {
    KVA_PROFILE_LINEAR,
    KVA_PROFILE_ATTEND, /* attend, attend_lowbit, attend_rows, merge */
    KVA_PROFILE_KV,     /* kv_append, quantise, and what chooses rows */
    KVA_PROFILE_ROWS,   /* embed, norm, rope, glu, gather, sum_rows, shortlist */
    KVA_PROFILE_COUNT,
};

/* "linear", "attend", "kv", "rows". */
const char *kva_profile_kind_name(enum kva_profile_kind kind);

/* Since kva_profile_clear. */
struct kva_profile_counts {
    uint64_t calls[KVA_PROFILE_COUNT];
    uint64_t ns[KVA_PROFILE_COUNT];
    uint64_t weight_bytes; /* of matrices, biases and norms, and the rows of embeddings */
    uint64_t kv_bytes;     /* of the KV cache, read by attention */
    uint64_t flops;        /* of matrix products and attention: two for a product and its sum */
};

struct kva_profile {
    struct kva_profile_counts counts;
    /* Wait for each operator, so that ns is its time on a device that runs behind the host; steps
     * take longer for it. The CPU device has run an operator when the call returns. */
    bool wait;
    /* Where ns comes from: kva_time_ns, or another clock. */
    uint64_t (*now_ns)(void);
    const struct kva_ops *inner; /* the device's own table */
    struct kva_ops outer;
};

/* Count from now on. Before anything asks the device for its operators; `profile` outlives the
 * device. */
void kva_profile_attach(struct kva_profile *profile, struct kva_device *device);

void kva_profile_clear(struct kva_profile *profile);

#endif
