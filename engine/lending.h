/* lending.h - KV of this engine's sequences at other instances, and theirs here (Infinite-LLM 4.2):
 * what an rManager has an engine do.
 *
 *     as debtor     a sequence's pages leave, come home, or are lost (kv/parts/lent.h)
 *     as creditor   guests: pages of others in this engine's device tier, to which a thread of its
 *                   own attends
 *
 * Who lends what to whom, when, and how it is agreed is not decided here, nor is anything sent.
 *
 * Thread rule: engine thread, between steps, but for kva_guests_attend. */
#ifndef KVA_ENGINE_LENDING_H
#define KVA_ENGINE_LENDING_H

#include "engine/engine.h"
#include "engine/kv/parts/lent.h"
#include "engine/kv/remote.h"

/* --- as debtor ------------------------------------------------------------------------------- */

/* The first page of a sequence that may leave: those before it others have too (parts/lent.h). */
uint32_t kva_lending_lendable_from(const struct kva_engine *engine, const struct kva_sequence *seq);

/* Whether pages [first, first + count) of a sequence may leave, and that they do, once the creditor
 * has them. */
bool kva_lending_lendable(const struct kva_engine *engine, const struct kva_sequence *seq,
                          uint32_t first, uint32_t count);
void kva_lending_lend(struct kva_engine *engine, struct kva_sequence *seq,
                      const struct kva_kv_loan *loan);

/* How many of its pages may leave in all, now. */
uint32_t kva_lending_lendable_pages(const struct kva_engine *engine,
                                    const struct kva_sequence *seq);

/* Device memory that other instances can lend, all of them together: `full` sequences that may be
 * spread are accepted up to so much beyond the device tier. 0 at first. Any thread. */
void kva_lending_set_others(struct kva_engine *engine, uint64_t bytes);

/* Pages of device memory that the sequence needs here to begin, or to go on as it is, beside those
 * that are lent; and, of one that is longer than the device, beside which it will never need more.
 * What running ones have of it is looked for (`shares`), which takes time with its length, or not: it
 * is free of charge where the device could hold all of the sequence. */
struct kva_lending_need {
    uint32_t pages, pages_max;
};
struct kva_lending_need kva_lending_need_of(const struct kva_engine *engine,
                                            const struct kva_sequence *seq, bool shares);

/* The sequence's loans; how many. */
uint32_t kva_lending_loans(const struct kva_sequence *seq,
                           struct kva_kv_loan ret[KVA_KV_LOANS_MAX]);

size_t kva_lending_page_bytes(const struct kva_engine *engine);

/* The content of a page that is here and closed, to be read; or of one that comes home, to be
 * written. NULL: it has no home here. */
void *kva_lending_home_of(struct kva_engine *engine, const struct kva_sequence *seq,
                          uint32_t index);

/* Host memory for the pages of a loan that are to come home. Fails: KVA_ELIMIT, nothing taken;
 * KVA_ENOTFOUND. */
KVA_MUST_CHECK enum kva_status kva_lending_home_reserve(struct kva_engine *engine,
                                                        struct kva_sequence *seq, uint64_t loan,
                                                        struct kva_err *err);

/* All of them have been written: the loan is over. */
void kva_lending_come_home(struct kva_engine *engine, struct kva_sequence *seq, uint64_t loan);

/* Pages of some loan of the sequence are gone: all its loans end, and the next step says what
 * follows. */
void kva_lending_lose(struct kva_engine *engine, struct kva_sequence *seq);

/* --- as creditor ----------------------------------------------------------------------------- */

struct kva_guests;

/* At most `loans_max` loans. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_guests_create(struct kva_engine *engine, uint32_t loans_max,
                                                 struct kva_guests **ret, struct kva_err *err);

/* Gives everything back. NULL is allowed. Before the engine is destroyed. */
void kva_guests_destroy(struct kva_guests *guests);

/* Device memory for the pages of a loan, all or nothing. Fails: KVA_ELIMIT, KVA_EINVAL (a loan with
 * that id is held, or it has no pages). */
KVA_MUST_CHECK enum kva_status
kva_guests_reserve(struct kva_guests *guests, const struct kva_kv_loan *loan, struct kva_err *err);

/* Write and read page `index` of the loan, page_bytes of host memory. Fails: KVA_ENOTFOUND (no such
 * loan, or page of it). */
KVA_MUST_CHECK enum kva_status kva_guests_write(struct kva_guests *guests, uint64_t loan,
                                                uint32_t index, const void *page,
                                                struct kva_err *err);
KVA_MUST_CHECK enum kva_status kva_guests_read(struct kva_guests *guests, uint64_t loan,
                                               uint32_t index, void *ret_page, struct kva_err *err);

/* The loan is over here: its pages are wiped before anybody else gets the memory. Waits for
 * attention to it that is in progress. Nothing, if there is no such loan. */
void kva_guests_free(struct kva_guests *guests, uint64_t loan);

uint32_t kva_guests_pages(const struct kva_guests *guests);

/* Who attends to guests: a device of its own, the same kind as the engine's, so that the engine's
 * steps go on meanwhile. One thread. */
struct kva_guest_worker;

/* `rows_max` rows of a call. Fails: KVA_ENOMEM, KVA_EINVAL (another kind of device). */
KVA_MUST_CHECK enum kva_status kva_guest_worker_create(struct kva_guests *guests,
                                                       struct kva_device *device, uint32_t rows_max,
                                                       struct kva_guest_worker **ret,
                                                       struct kva_err *err);
void kva_guest_worker_destroy(struct kva_guest_worker *worker);

/* Attention of a debtor's rows over pages of its loans in one layer; of entries whose loan is held
 * ret_found [count] is true and `out` has the result: for a loan that begins its sequence and ends
 * at a multiple of 256 tokens, the bits of which the debtor's own attention would go on. Fails:
 * KVA_EINVAL (no such layer, too many rows; nothing is done), KVA_EDEVICE. The worker's thread. */
KVA_MUST_CHECK enum kva_status kva_guests_attend(struct kva_guest_worker *worker, uint32_t layer,
                                                 const struct kva_remote_rows *rows, uint32_t count,
                                                 bool *ret_found, struct kva_err *err);

#endif
