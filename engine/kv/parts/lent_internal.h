/* lent_internal.h - what lent.c (loans of a sequence) and lent_pass.c (a pass over them) share.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_PARTS_LENT_INTERNAL_H
#define KVA_ENGINE_KV_PARTS_LENT_INTERNAL_H

#include "engine/kv/part.h"
#include "engine/kv/parts/lent.h"
#include "engine/kv/remote.h"

enum kva_lent_stage {
    KVA_LENT_AWAY,     /* its creditor attends to it */
    KVA_LENT_RESERVED, /* the same, and there is host memory for its pages to come home to */
    KVA_LENT_HOME,     /* its pages are here, on the host: device memory is to be taken */
};

/* Of a sequence; zeroed: it has lent nothing. */
struct kva_lent {
    struct kva_lent_debt {
        struct kva_kv_loan loan;
        enum kva_lent_stage stage;
    } debts[KVA_KV_LOANS_MAX]; /* [count], by first_page */
    uint32_t count;
    uint32_t slot; /* in a pass: its first loan's entry among what is posted */
    bool broken;   /* an answer did not come: the step in progress does not count */
    bool lost;
};

/* Of the cache, where the engine has a remote: an entry for each loan of each sequence of a pass.
 * Answers arrive in memory of the host; where the device cannot read that, they are copied on. */
struct kva_lent_pass {
    uint32_t entries_max;          /* loans that there may be */
    uint32_t loan_count;           /* that there are */
    struct kva_remote_rows *posts; /* [entries_max] */
    bool *collected;               /* [entries_max] */
    uint32_t count;                /* entries of the pass */
    unsigned char *q;              /* host tier: copied queries of sequences_max rows, or NULL */
    struct kva_partial answers;    /* host tier [entries_max rows] */
    struct kva_partial arrived;    /* device tier, the same; or `answers` */
};

static inline struct kva_lent *kva_lent_of(const struct kva_kv_seq *seq)
{
    return kva_kv_part_state(seq, &kva_kv_part_lent);
}

/* The hooks of lent_pass.c. */
extern const struct kva_counter *const kva_lent_counters[];
enum kva_status kva_lent_cache_init(const struct kva_kv_part *self, struct kva_kv *kv,
                                    struct kva_err *err);
void kva_lent_cache_finish(const struct kva_kv_part *self, struct kva_kv *kv);
void kva_lent_pass_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                         struct kva_kv_pass *pass);
void kva_lent_locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer);
void kva_lent_queried(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                      uint32_t layer, const void *q);
void kva_lent_await(struct kva_kv *kv, const struct kva_kv_rows *rows,
                    const struct kva_kv_range *range);

#endif
