/* lent.c - loans of a sequence: which pages are away, leaving and coming home. */
#include "engine/kv/parts/lent_internal.h"

#include <string.h>

/* --- what is away ---------------------------------------------------------------------------- */

struct kva_kv_absent kva_kv_find_absent(const struct kva_kv_seq *seq, uint32_t from, uint32_t end)
{
    const struct kva_lent *lent = kva_lent_of(seq);
    for (uint32_t i = 0; lent && i < lent->count; i++) {
        const struct kva_kv_loan *loan = &lent->debts[i].loan;
        uint32_t loan_end = loan->first_page + loan->page_count;
        if (loan_end > from && loan->first_page < end)
            return (struct kva_kv_absent){kva_max_u32(loan->first_page, from),
                                          kva_min_u32(loan_end, end)};
    }
    return (struct kva_kv_absent){end, end};
}

uint32_t kva_kv_loans(const struct kva_kv_seq *seq, struct kva_kv_loan ret[KVA_KV_LOANS_MAX])
{
    const struct kva_lent *lent = kva_lent_of(seq);
    for (uint32_t i = 0; lent && i < lent->count; i++)
        ret[i] = lent->debts[i].loan;
    return lent ? lent->count : 0;
}

uint32_t kva_kv_pages_away(const struct kva_kv_seq *seq)
{
    const struct kva_lent *lent = seq->policy ? kva_lent_of(seq) : NULL; /* an init failed */
    uint32_t pages = 0;
    for (uint32_t i = 0; lent && i < lent->count; i++) {
        const struct kva_lent_debt *debt = &lent->debts[i];
        bool gone = debt->stage == KVA_LENT_AWAY && !debt->loan.keeps_home;
        pages += gone ? debt->loan.page_count : 0;
    }
    return pages;
}

uint32_t kva_kv_pages_lent(const struct kva_kv_seq *seq)
{
    const struct kva_lent *lent = kva_lent_of(seq);
    uint32_t pages = 0;
    for (uint32_t i = 0; lent && i < lent->count; i++)
        pages += lent->debts[i].stage != KVA_LENT_HOME ? lent->debts[i].loan.page_count : 0;
    return pages;
}

static struct kva_lent_debt *find_debt(const struct kva_kv_seq *seq, uint64_t id)
{
    struct kva_lent *lent = kva_lent_of(seq);
    for (uint32_t i = 0; lent && i < lent->count; i++) {
        if (lent->debts[i].loan.id == id)
            return &lent->debts[i];
    }
    return NULL;
}

static struct kva_lent_pass *pass_of(const struct kva_kv *kv)
{
    return kva_kv_part_cache(kv, &kva_kv_part_lent);
}

static void remove_debt(struct kva_kv *kv, struct kva_lent *lent, struct kva_lent_debt *debt)
{
    pass_of(kv)->loan_count--;
    struct kva_lent_debt *end = lent->debts + --lent->count;
    memmove(debt, debt + 1, (size_t)(end - debt) * sizeof(*debt));
}

/* --- leaving --------------------------------------------------------------------------------- */

uint32_t kva_kv_lendable_from(const struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    uint32_t shared = 0;
    if (kva_kv_seq_resume_bytes(kv, seq) > kva_tier_budget_bytes(kv->tier))
        return 0;
    while (shared < seq->closed_count &&
           kva_kv_find_absent(seq, shared, shared + 1).first > shared &&
           seq->pages[shared]->device_users > seq->resident)
        shared++;
    return shared;
}

/* How many may leave, of those from page `from` on. */
static uint32_t count_lendable(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t from)
{
    const struct kva_lent *lent = kva_lent_of(seq);
    if (!kv->remote || !lent || lent->lost || lent->count == KVA_KV_LOANS_MAX || !seq->prefilled ||
        seq->spec.spread == KVA_SPREAD_NEVER || pass_of(kv)->loan_count == pass_of(kv)->entries_max)
        return 0;
    uint32_t stay = 1 + from;
    for (uint32_t i = 0; i < lent->count; i++)
        stay += lent->debts[i].loan.page_count;
    return seq->closed_count > stay ? seq->closed_count - stay : 0;
}

uint32_t kva_kv_lendable_pages(const struct kva_kv *kv, const struct kva_kv_seq *seq)
{
    return count_lendable(kv, seq, kva_kv_lendable_from(kv, seq));
}

bool kva_kv_lendable(const struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t first,
                     uint32_t count)
{
    const uint64_t end = (uint64_t)first + count;
    const uint32_t from = kva_kv_lendable_from(kv, seq);
    if (count == 0 || first < from || count > count_lendable(kv, seq, from) ||
        end >= seq->closed_count)
        return false;
    return kva_kv_find_absent(seq, first, (uint32_t)end).first == end;
}

void kva_kv_lend(struct kva_kv *kv, struct kva_kv_seq *seq, const struct kva_kv_loan *loan)
{
    struct kva_lent *lent = kva_lent_of(seq);
    uint32_t at = 0, end = loan->first_page + loan->page_count;
    while (at < lent->count && lent->debts[at].loan.first_page < loan->first_page)
        at++;
    memmove(lent->debts + at + 1, lent->debts + at, (lent->count - at) * sizeof(lent->debts[0]));
    lent->debts[at] = (struct kva_lent_debt){.loan = *loan};
    lent->count++;
    pass_of(kv)->loan_count++;
    for (uint32_t i = loan->first_page; i < end; i++) {
        if (seq->resident)
            kva_kv_end_use(kv, seq, seq->pages[i]);
        if (loan->keeps_home)
            continue;
        kva_page_pool_release(kv->pages, seq->pages[i]);
        seq->pages[i] = NULL;
    }
}

/* --- coming home ----------------------------------------------------------------------------- */

enum kva_status kva_kv_home_reserve(struct kva_kv *kv, struct kva_kv_seq *seq, uint64_t loan,
                                    struct kva_err *err)
{
    struct kva_lent_debt *debt = find_debt(seq, loan);
    if (!debt || debt->stage != KVA_LENT_AWAY)
        return kva_fail(err, KVA_ENOTFOUND, "the sequence has no loan %llu that is away",
                        (unsigned long long)loan);
    const struct kva_kv_loan *l = &debt->loan;
    if (!l->keeps_home) {
        if (!kva_page_pool_promise(kv->pages, l->page_count))
            return kva_fail(err, KVA_ELIMIT,
                            "the host tier has no room for the %u pages of loan %llu now",
                            l->page_count, (unsigned long long)loan);
        for (uint32_t i = 0; i < l->page_count; i++)
            seq->pages[l->first_page + i] = kva_page_pool_take(kv->pages);
    }
    debt->stage = KVA_LENT_RESERVED;
    return KVA_OK;
}

void *kva_kv_home_of(struct kva_kv *kv, const struct kva_kv_seq *seq, uint32_t index)
{
    const struct kva_page *page = index < seq->page_count ? seq->pages[index] : NULL;
    if (page && page->on_host)
        kva_device_sync(kv->device, KVA_QUEUE_COPY);
    return page ? page->host : NULL;
}

/* Its pages are the sequence's own again. They are in the prefix cache only if they never left the
 * host. */
static void end_debt(struct kva_kv *kv, struct kva_kv_seq *seq, struct kva_lent_debt *debt,
                     const uint32_t *ids)
{
    static const uint64_t nobodys[2];
    for (uint32_t i = 0; i < debt->loan.page_count && !debt->loan.keeps_home; i++) {
        uint32_t index = debt->loan.first_page + i;
        struct kva_page *page = seq->pages[index];
        page->on_host = true;
        kva_page_pool_close(kv->pages, page, NULL, nobodys, ids + (size_t)index * KVA_PAGE_TOKENS,
                            false);
    }
    debt->stage = KVA_LENT_HOME;
    if (!seq->resident)
        remove_debt(kv, kva_lent_of(seq), debt);
    seq->reserved_pages = 0; /* the next growth takes device memory */
}

void kva_kv_come_home(struct kva_kv *kv, struct kva_kv_seq *seq, uint64_t loan, const uint32_t *ids)
{
    struct kva_lent_debt *debt = find_debt(seq, loan);
    if (debt && debt->stage == KVA_LENT_RESERVED)
        end_debt(kv, seq, debt, ids);
}

void kva_kv_settle_home(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_lent *lent = kva_lent_of(seq);
    for (uint32_t i = lent ? lent->count : 0; i-- > 0;) {
        if (lent->debts[i].stage == KVA_LENT_HOME)
            remove_debt(kv, lent, &lent->debts[i]);
    }
}

/* --- loss ------------------------------------------------------------------------------------ */

void kva_kv_lose(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    struct kva_lent *lent = kva_lent_of(seq);
    for (uint32_t i = 0; i < lent->count; i++) {
        const struct kva_lent_debt *debt = &lent->debts[i];
        lent->lost |= !debt->loan.keeps_home && debt->stage != KVA_LENT_HOME;
    }
    for (uint32_t i = lent->count; i-- > 0 && !lent->lost;) {
        if (lent->debts[i].stage != KVA_LENT_HOME)
            end_debt(kv, seq, &lent->debts[i], NULL);
    }
    lent->broken = false;
}

bool kva_kv_is_lost(const struct kva_kv_seq *seq)
{
    const struct kva_lent *lent = kva_lent_of(seq);
    return lent && lent->lost;
}

bool kva_kv_settle_step(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    const struct kva_lent *lent = kva_lent_of(seq);
    if (!lent || !lent->broken)
        return true;
    kva_kv_lose(kv, seq);
    return false;
}

/* --- device memory of what came home --------------------------------------------------------- */

/* Device memory for a debt's pages, all or nothing. */
static bool use_pages(struct kva_kv *kv, struct kva_kv_seq *seq, const struct kva_kv_loan *loan)
{
    kva_kv_order_copies(kv);
    for (uint32_t i = 0; i < loan->page_count; i++) {
        if (kva_kv_begin_use(kv, seq, seq->pages[loan->first_page + i]))
            continue;
        while (i-- > 0)
            kva_kv_end_use(kv, seq, seq->pages[loan->first_page + i]);
        return false;
    }
    return true;
}

/* From then on they are the resident part's. A sequence that is not resident has no device memory of
 * any page yet: that part takes it for all of them. */
static bool alloc(struct kva_kv *kv, struct kva_kv_seq *seq, uint32_t offloaded KVA_UNUSED,
                  uint32_t end KVA_UNUSED)
{
    struct kva_lent *lent = kva_lent_of(seq);
    for (uint32_t i = lent->count; i-- > 0;) {
        struct kva_lent_debt *debt = &lent->debts[i];
        if (debt->stage != KVA_LENT_HOME)
            continue;
        if (seq->resident && !use_pages(kv, seq, &debt->loan))
            return false;
        remove_debt(kv, lent, debt);
    }
    return true;
}

static uint32_t held(const struct kva_kv_seq *seq KVA_UNUSED)
{
    return 0;
}

static void reset(struct kva_kv *kv, struct kva_kv_seq *seq)
{
    pass_of(kv)->loan_count -= kva_lent_of(seq)->count;
    *kva_lent_of(seq) = (struct kva_lent){0};
}

const struct kva_kv_part kva_kv_part_lent = {
    .state_bytes = sizeof(struct kva_lent),
    .cache_bytes = sizeof(struct kva_lent_pass),
    .cache_init = kva_lent_cache_init,
    .cache_finish = kva_lent_cache_finish,
    .alloc = alloc,
    .held = held,
    .reset = reset,
    .pass_begin = kva_lent_pass_begin,
    .locate = kva_lent_locate,
    .queried = kva_lent_queried,
    .await = kva_lent_await,
    .counters = kva_lent_counters,
};
