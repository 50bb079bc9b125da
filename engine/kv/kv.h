/* kv.h - the KV cache of a model instance: two tiers, the sequences' pages, and where their parts
 * are.
 *
 *     kva_kv            host pages (page_pool.h) + device memory (tier.h) + copies in flight
 *     kva_kv_seq        the pages of one sequence, in order, under one policy
 *     kva_kv_policy     which pages are offloaded, in which forms (policy.h)
 *
 * The pages of a sequence, each with its home in the host tier:
 *
 *     0 .......... offloaded ........ prepared ........ page_count
 *     | not whole on    | whole on the device ...
 *     | the device      | and in the policy's other forms
 *
 * A page that leaves the device is prepared first: the parts make what stands for it. It leaves at
 * once, or, where rows are selected a step ahead, when a selection has had it among its candidates:
 * until then it attends whole, since none of its rows could have been fetched.
 *
 * Policies that drop tokens for good (policy.h: drops) give offloaded pages back to the host tier
 * too, all but the first: pages [1, 1 + dropped) are NULL.
 *
 * What is on the device instead of an offloaded page is its policy's business: parts (part.h). They
 * keep what they know of a sequence, and of the whole cache, in memory of their own, which nobody
 * else reads. A layer finds its tokens in ranges (range.h).
 *
 * Memory changes hands only between steps. kva_kv_step_begin orders the queues: what compute is
 * about to overwrite has been copied out, what it is about to read has been copied in.
 *
 * Thread rule: engine thread. */
#ifndef KVA_ENGINE_KV_KV_H
#define KVA_ENGINE_KV_KV_H

#include "engine/kv/spec.h"
#include "engine/kv/store/page_pool.h"
#include "engine/kv/store/tier.h"
#include "engine/kv/usage.h"
#include "kernels/ops.h"

#include <stdatomic.h>

#define KVA_NO_LAYER UINT32_MAX

/* Parts of one policy, and of all of them. */
#define KVA_KV_PARTS_MAX      8u
#define KVA_KV_PART_KINDS_MAX 32u

struct kva_kv_part;
struct kva_kv_policy;
struct kva_kv_range;
struct kva_remote;

struct kva_kv_shape {
    uint32_t layers;
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype dtype; /* F16 or BF16 */
    size_t block_bytes;   /* one layer of one page */
    size_t page_bytes;    /* all layers */
};

/* The model's skew (kernels/ops_sketch.h: kva_sketch_columns, one after the other for all layers).
 * Device addresses, which outlive the cache. */
struct kva_kv_skew {
    const float *basis;      /* [layers][kv_heads][head_dim][head_dim]; NULL: there is none */
    const uint32_t *columns; /* [layers][kv_heads][head_dim]: for keys as they are; NULL: none */
    const uint32_t *planes;  /* [layers][kv_heads][head_dim]: of planes.h; NULL: none were made */
    uint32_t plane_columns;  /* of them so many count */
    bool unusable;           /* without a basis: there is a file, which does not count */
};

/* Columns of `percent` of a head as whole rotation planes: even. */
static inline uint32_t kva_kv_plane_columns(uint32_t head_dim, uint32_t percent)
{
    const uint32_t columns = (uint32_t)kva_div_up((size_t)head_dim * percent, 100);
    return kva_max_u32(2, kva_min_u32(columns + columns % 2, head_dim / 2 * 2));
}

struct kva_kv_params {
    struct kva_device *device;
    uint32_t layers;
    uint32_t kv_heads;
    uint32_t head_dim;
    enum kva_dtype dtype;
    struct kva_tier_bytes budget;
    bool prefix_cache;
    bool windowed;                 /* layers of the model have sliding windows */
    struct kva_keep_rotary rotary; /* of the model's keys; outlives the cache */
    struct kva_kv_skew skew;
    uint32_t sequences_max;          /* admitted at once */
    uint32_t heads;                  /* query heads: for queries that are kept */
    size_t stream_row_bytes;         /* of the residual stream of a prompt token; 0: none is kept */
    const struct kva_remote *remote; /* remote.h; NULL: no pages are lent. Outlives the cache */
};

struct kva_kv {
    struct kva_device *device;
    struct kva_kv_shape shape;
    struct kva_page_pool *pages;
    struct kva_tier *tier;
    struct kva_kv_usage counters;  /* since start; its bytes are not kept here */
    uint32_t heads;                /* query heads */
    bool windowed;                 /* layers of the model have sliding windows */
    struct kva_keep_rotary rotary; /* of its keys */
    struct kva_kv_skew skew;
    size_t query_bytes;              /* of a row of queries */
    size_t stream_row_bytes;         /* of a row of residual streams (stream.h) */
    const struct kva_remote *remote; /* NULL: no pages are lent */

    /* Pages whose device copy nobody uses now, longest unused first: dropped when the tier is full.
     */
    struct kva_page *droppable_head, *droppable_tail;
    uint32_t droppable_count;

    struct kva_event *compute_event; /* recorded on the compute queue, waited for by copies */
    struct kva_event *copy_event;    /* recorded on the copy queue, waited for by compute */
    struct kva_event *aside_event;   /* recorded on the queue aside, waited for by both */
    bool works_aside;                /* compute has not waited for what is aside */
    uint64_t guest_bytes;            /* device memory that other instances' pages have */
    _Atomic uint64_t others_bytes;   /* that other instances can lend, for check_fits */
    bool copies_pending;             /* copies were queued since the queues were last ordered */
    uint32_t sequences_max;
    struct kva_kv_range *ranges; /* [sequences_max][KVA_KV_RANGES_MAX]: those of a layer */

    /* The parts of all policies that were met, and what each keeps for the whole cache. */
    const struct kva_kv_part *parts[KVA_KV_PART_KINDS_MAX];
    void *part_caches[KVA_KV_PART_KINDS_MAX];
    uint32_t part_count;
};

/* What parts save of a suspended sequence, beyond its pages (saved.h). */
struct kva_kv_saved {
    struct kva_page **pages;
    uint32_t page_count; /* the host tier has a promise or a page for each */
    bool taken;          /* has pages, promised no more */
};

/* The residual stream of an unfinished prompt (stream.h). */
struct kva_kv_stream {
    void **device;           /* [pages of the prompt's rows] */
    struct kva_page **saved; /* the same: where it is while the sequence is suspended */
    uint32_t page_count;     /* in use; the host tier has a promise or a page for each */
    bool resident;           /* has its device memory */
    bool has_saved;          /* has pages of the host tier, promised no more */
};

/* The pages of one sequence. */
struct kva_kv_seq {
    const struct kva_kv_policy *policy;
    struct kva_kv_spec spec;
    struct kva_page **pages; /* [pages_max] */
    uint32_t pages_max;
    uint32_t page_count;     /* pages that exist, or have */
    uint32_t dropped;        /* pages [1, 1 + dropped) do not any more: NULL */
    uint32_t closed_count;   /* the first so many are closed */
    uint32_t promised_pages; /* host memory promised and not taken yet */
    uint32_t pool_pages;     /* of a part's own (parts/pool.h) */
    uint32_t tokens_max;
    uint32_t tokens;        /* tokens whose K and V are complete in every layer */
    uint32_t prompt_tokens; /* of them computed exactly */
    uint64_t scope[2];
    bool share;     /* look up and feed the prefix cache */
    bool anew;      /* feed it only: all of the prompt is computed */
    bool rounded;   /* what is computed from now on has others' bits only up to rounding */
    bool resident;  /* holds its device memory */
    bool prefilled; /* the prompt is in; what is offloaded is attended to as the policy says */
    bool spreads;   /* longer than the device tier: its prompt is staged, and it decodes when enough
                       of it is lent */
    uint64_t device_bytes;
    uint64_t suspended_bytes; /* device_bytes when it was suspended */
    struct kva_counts counts;
    uint32_t reserved_pages; /* there is device memory for the tokens of so many */
    uint32_t offloaded;      /* pages [0, offloaded) are not whole on the device */
    uint32_t prepared;       /* pages [0, prepared) are there in other forms; >= offloaded */
    uint32_t considered;     /* of them: candidates of the last selection for the next step */
    struct kva_kv_stream stream;
    struct kva_kv_saved saved;
    void *policy_state;                  /* the policy's own (policy.h) */
    void *part_states[KVA_KV_PARTS_MAX]; /* its parts' own, in the policy's order (part.h) */
};

KVA_MUST_CHECK enum kva_status kva_kv_create(const struct kva_kv_params *params,
                                             struct kva_kv **ret, struct kva_err *err);
void kva_kv_destroy(struct kva_kv *kv);

/* What a sequence will need at most. */
struct kva_kv_plan {
    const struct kva_kv_spec *spec;
    uint32_t prompt_tokens;
    uint32_t tokens_max;
    bool again; /* it was accepted before: what others can lend is not asked any more */
};

/* Whether a sequence fits the budgets alone, the device's together with what others can lend if its
 * pages may go there. Reads constants and others_bytes: any thread. Fails: KVA_EINVAL (a setting of
 * the spec; err->param names it), KVA_EUNSUPPORTED (the model's shape with this policy), KVA_ELIMIT
 * (err names the tier, in words and as its param, and all byte counts). */
KVA_MUST_CHECK enum kva_status
kva_kv_check_fits(const struct kva_kv *kv, const struct kva_kv_plan *plan, struct kva_err *err);

/* Storage for a sequence; takes no page. Fails: KVA_ENOMEM, and as kva_kv_check_fits. */
KVA_MUST_CHECK enum kva_status kva_kv_seq_init(struct kva_kv *kv, struct kva_kv_seq *seq,
                                               const struct kva_kv_plan *plan, struct kva_err *err);

/* Gives everything back; closed pages stay in the prefix cache. Nothing, after an init that failed. */
void kva_kv_seq_finish(struct kva_kv *kv, struct kva_kv_seq *seq);

/* Promise host memory for tokens_max, find the prompt's beginning in the prefix cache, take device
 * memory for the prompt and, until it is in, for its residual stream. At least the last prompt
 * token is left to compute. *ret_cached_tokens is a multiple of the page size. Fails: KVA_ELIMIT
 * (`short_of`, if not NULL, is the tier that has no room), nothing taken. */
KVA_MUST_CHECK enum kva_status kva_kv_seq_admit(struct kva_kv *kv, struct kva_kv_seq *seq,
                                                const uint32_t *prompt, uint32_t *ret_cached_tokens,
                                                enum kva_tier_id *short_of, struct kva_err *err);

/* Device memory for its prompt's keys and values, whatever is cached of it: all of them, or a stage of
 * one that is longer than the device. */
uint64_t kva_kv_seq_prompt_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq);

/* What such an admission would take now, and find: pages that others hold are free of charge, pages
 * that only the cache holds are not. */
struct kva_tier_bytes kva_kv_seq_admit_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq,
                                             const uint32_t *prompt, uint32_t *ret_cached_tokens);

/* Pages and device memory for `tokens` tokens in all; at once where it has them. Fails: KVA_ELIMIT,
 * nothing lost. */
KVA_MUST_CHECK enum kva_status kva_kv_seq_grow(struct kva_kv *kv, struct kva_kv_seq *seq,
                                               uint32_t tokens, struct kva_err *err);

/* Give device memory back, keeping what only the device has in the host pages; and take it again.
 */
void kva_kv_seq_suspend(struct kva_kv *kv, struct kva_kv_seq *seq);
KVA_MUST_CHECK enum kva_status kva_kv_seq_resume(struct kva_kv *kv, struct kva_kv_seq *seq,
                                                 struct kva_err *err);

/* Device bytes with which the sequence goes on as it is, those of lent pages apart: with what it
 * shares with others (kva_kv_seq_shared_bytes). */
uint64_t kva_kv_seq_resume_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq);

/* K and V of tokens [seq->tokens, tokens) are complete in every layer; `ids` are all of the
 * sequence's token ids. Closes pages that became full, and lets go of those that leave the device.
 * Where that completes the prompt of a sequence that is longer than the device tier, it has no
 * device memory any more, as after suspend.
 */
void kva_kv_seq_commit(struct kva_kv *kv, struct kva_kv_seq *seq, const uint32_t *ids,
                       uint32_t tokens);

/* Order the queues before a step reads and overwrites device memory. */
void kva_kv_step_begin(struct kva_kv *kv);

struct kva_tier_bytes kva_kv_seq_bytes(const struct kva_kv *kv, const struct kva_kv_seq *seq);
void kva_kv_usage(const struct kva_kv *kv, struct kva_kv_usage *ret);

/* --- for the parts of the cache -------------------------------------------------------------- */

/* Device memory, dropping unused device copies of pages if need be; NULL: full. */
void *kva_kv_alloc_device(struct kva_kv *kv, size_t bytes);

/* Give device memory back; queued copies may still read it until the next step begins. */
void kva_kv_free_device(struct kva_kv *kv, void *data, size_t bytes);

/* A running sequence starts and stops relying on a page's device copy. */
void kva_kv_page_use(struct kva_kv *kv, struct kva_page *page);
void kva_kv_page_unuse(struct kva_kv *kv, struct kva_page *page);

/* Give back the device copy of a page that nobody uses. */
void kva_kv_page_drop(struct kva_kv *kv, struct kva_page *page);

/* Copies on the copy queue, counted. Fetches come after what compute has been given so far. */
void kva_kv_fetch(struct kva_kv *kv, struct kva_kv_seq *seq, void *to, const void *from,
                  size_t bytes);
void kva_kv_offload(struct kva_kv *kv, void *to, const void *from, size_t bytes);

/* `n` more of a counter, of the cache and of the sequence. */
void kva_kv_count(struct kva_kv *kv, struct kva_kv_seq *seq, const struct kva_counter *counter,
                  uint64_t n);

/* Bytes copied from the host to the device; tokens that were dropped for good. */
extern const struct kva_counter kva_kv_counter_fetched_bytes;
extern const struct kva_counter kva_kv_counter_evicted_tokens;

/* Let the copy queue wait for what compute has been given so far. Call once before a batch of
 * copies. */
void kva_kv_order_copies(struct kva_kv *kv);

/* Let compute wait for all copies that were queued so far. */
void kva_kv_order_compute(struct kva_kv *kv);

/* Work aside (KVA_QUEUE_ASIDE), to run beside the rest of a layer: it begins after what compute has
 * been given so far; copies wait for what there is of it; and compute does so, if there is any, at
 * the layer's end at the latest, so that memory which compute writes is free for it again. */
void kva_kv_order_aside(struct kva_kv *kv);
void kva_kv_order_copies_behind_aside(struct kva_kv *kv);
void kva_kv_join_aside(struct kva_kv *kv);

#endif
