/* lent.h - closed pages of a running sequence that another instance holds and attends to: loans
 * (Infinite-LLM 4.2). Queries go there in every layer, partial results come back (remote.h), and a
 * merge makes of them what attention over all pages gives.
 *
 *     [ loan 17 ][ loan 23 ]                [ loan 31 ]        device pages otherwise
 *     page 0     8         12               20        24 ...
 *
 * A loan begins between two steps, when its creditor has all pages; from then on its device memory
 * is free, and its host memory too, unless the loan keeps its home. It ends when all pages have come
 * home to host memory that was reserved first, which then takes device memory as a page that the
 * sequence grows by does; with the sequence; or by loss. A sequence that has lost pages attends no
 * more: it has to be computed again from its tokens.
 *
 * The last closed page is never lent, nor the open one: a sequence always has pages of its own.
 *
 * Thread rule: engine thread, between steps. */
#ifndef KVA_ENGINE_KV_PARTS_LENT_H
#define KVA_ENGINE_KV_PARTS_LENT_H

#include "engine/kv/kv.h"

/* Loans of one sequence at a time; and of a cache, beyond so many for each of its sequences, those of
 * one that has more. */
#define KVA_KV_LOANS_MAX      32u
#define KVA_KV_LOANS_EACH_MAX 4u

/* Of so many sequences together. */
static inline uint32_t kva_kv_loans_of(uint32_t sequences)
{
    return sequences * KVA_KV_LOANS_EACH_MAX + KVA_KV_LOANS_MAX;
}

struct kva_kv_loan {
    uint64_t id;
    uint32_t creditor;   /* node */
    uint32_t first_page; /* of the sequence */
    uint32_t page_count;
    bool keeps_home; /* its pages stay in this host's memory too: only device memory is freed */
};

/* From which page on its pages may become loans: what running sequences share with it at its
 * beginning stays, since lending that would free nothing. Not where it is longer than the device. */
uint32_t kva_kv_lendable_from(const struct kva_kv *kv, const struct kva_kv_seq *seq);

/* Whether pages [first, first + count) may become a loan: the prompt is in, they are closed, none is
 * lent or before lendable_from, and there is room for another loan. False for policies whose pages do
 * not attend whole. */
bool kva_kv_lendable(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t first,
                     uint32_t count);

/* How many of its pages may become loans in all; 0: none, or not now. */
uint32_t kva_kv_lendable_pages(const struct kva_kv *kv, const struct kva_kv_seq *seq);

/* The creditor has the pages of a loan that is lendable: they leave. */
void kva_kv_lend(struct kva_kv *kv, struct kva_kv_seq *seq, const struct kva_kv_loan *loan);

/* Host memory for the pages of a loan that are to come home; once, unless it fails. Fails:
 * KVA_ELIMIT, nothing taken; KVA_ENOTFOUND: the sequence has no such loan. */
KVA_MUST_CHECK enum kva_status kva_kv_home_reserve(struct kva_kv *kv, struct kva_kv_seq *seq,
                                                   uint64_t loan, struct kva_err *err);

/* The home of page `index` of the sequence, page_bytes of host memory: of a page here that is
 * closed, whose content lies there when this returns, or of one that is coming home. NULL: it has
 * none. */
void *kva_kv_home_of(struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t index);

/* All its pages are in their homes: the loan is over. kva_kv_seq_grow comes before the next step. */
void kva_kv_come_home(struct kva_kv *kv, struct kva_kv_seq *seq, uint64_t loan,
                      const uint32_t *ids);

/* The sequence has given its device memory back: pages that came home are as all others. */
void kva_kv_settle_home(struct kva_kv *kv, struct kva_kv_seq *seq);

/* All loans of the sequence end, because pages of one are gone: they are as if they had come home
 * where all of them keep their homes, else the sequence is lost. */
void kva_kv_lose(struct kva_kv *kv, struct kva_kv_seq *seq);
bool kva_kv_is_lost(const struct kva_kv_seq *seq);

/* A step over the sequence is over, and nothing of it is committed yet. False: an answer did not
 * come, so that the step does not count, and the loans have ended as above. */
bool kva_kv_settle_step(struct kva_kv *kv, struct kva_kv_seq *seq);

/* The sequence's loans, at most KVA_KV_LOANS_MAX; how many. */
uint32_t kva_kv_loans(const struct kva_kv_seq *seq, struct kva_kv_loan ret[KVA_KV_LOANS_MAX]);

/* Pages of the sequence, NULL in its table, whose only home is elsewhere. */
uint32_t kva_kv_pages_away(const struct kva_kv_seq *seq);

/* Pages of the sequence that its loans have elsewhere, with or without a home here. */
uint32_t kva_kv_pages_lent(const struct kva_kv_seq *seq);

/* --- for the resident part: pages that it does not have ---------------------------------------- */

struct kva_kv_absent {
    uint32_t first, end;
};

/* The first run of absent pages of [from, end); empty and at `end` if there is none. */
struct kva_kv_absent kva_kv_find_absent(const struct kva_kv_seq *seq, uint32_t from, uint32_t end);

#endif
