/* remote.h - attention at other instances (Infinite-LLM section 4: DistAttention): what the cache
 * asks of whoever carries the queries of a layer to where pages were lent, and the results back. The
 * engine knows of no network: a transport is behind this table, or a test.
 *
 * A layer's queries are posted at once, for all sequences and all loans, so that a transport can
 * send one message to each creditor; then every answer is collected, in any order, before the next
 * layer's are posted.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_REMOTE_H
#define KVA_ENGINE_KV_REMOTE_H

#include "kernels/ops.h"

/* Rows of one sequence before the pages of one loan. */
struct kva_remote_rows {
    uint64_t loan;
    uint32_t creditor;       /* node */
    uint32_t row_count;      /* at consecutive positions */
    uint32_t position_first; /* of the first row; all pages of the loan lie before it */
    const void *q; /* host memory, act [row_count, heads, head_dim]; until it is collected */
    struct kva_partial out; /* host memory [row_count, ..]: gets the answer */
};

struct kva_remote_ops {
    /* Rows of a layer, [count]. Waits for nobody. */
    void (*post)(void *self, uint32_t layer, const struct kva_remote_rows *rows, uint32_t count);

    /* Wait until entry `index` of what was posted last is answered. False: it never will be, and
     * what the loan's pages held is lost; nothing writes to its `out` any more. */
    bool (*collect)(void *self, uint32_t index);
};

struct kva_remote {
    const struct kva_remote_ops *ops;
    void *self;
};

#endif
