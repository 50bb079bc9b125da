/* lent_pass.c - a pass over sequences with loans: their queries go out in every layer, and what
 * comes back is a range of each (range.h). */
#include "engine/kv/parts/lent_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- memory ---------------------------------------------------------------------------------- */

static size_t head_dim(const struct kva_kv *kv)
{
    return kv->shape.head_dim;
}

static size_t partial_floats(const struct kva_kv *kv, uint32_t rows)
{
    return (size_t)rows * kv->heads * (head_dim(kv) + 2);
}

static enum kva_status alloc_partial(struct kva_kv *kv, enum kva_mem mem, uint32_t rows,
                                     struct kva_partial *ret, struct kva_err *err)
{
    void *data = NULL;
    size_t pairs = (size_t)rows * kv->heads;
    enum kva_status status =
        kva_device_alloc(kv->device, mem, partial_floats(kv, rows) * sizeof(float), &data, err);
    float *at = data;
    if (!status)
        *ret = (struct kva_partial){at, at + pairs * head_dim(kv), at + pairs * (head_dim(kv) + 1)};
    return status;
}

enum kva_status kva_lent_cache_init(const struct kva_kv_part *self, struct kva_kv *kv,
                                    struct kva_err *err)
{
    struct kva_lent_pass *p = kva_kv_part_cache(kv, self);
    bool readable = kva_device_get_info(kv->device)->host_readable;
    void *q = NULL;
    if (!kv->remote)
        return KVA_OK;
    p->entries_max = kva_kv_loans_of(kv->sequences_max);
    p->posts = calloc(p->entries_max, sizeof(*p->posts));
    p->collected = calloc(p->entries_max, sizeof(*p->collected));
    if (!p->posts || !p->collected)
        return kva_fail(err, KVA_ENOMEM, "out of memory for loans of %u sequences",
                        kv->sequences_max);
    enum kva_status status = alloc_partial(kv, KVA_MEM_HOST, p->entries_max, &p->answers, err);
    if (!status && readable)
        p->arrived = p->answers;
    else if (!status)
        status = alloc_partial(kv, KVA_MEM_DEVICE, p->entries_max, &p->arrived, err);
    if (!status && !readable)
        status = kva_device_alloc(kv->device, KVA_MEM_HOST, kv->sequences_max * kv->query_bytes, &q,
                                  err);
    p->q = q;
    return status;
}

void kva_lent_cache_finish(const struct kva_kv_part *self, struct kva_kv *kv)
{
    struct kva_lent_pass *p = kva_kv_part_cache(kv, self);
    size_t bytes = partial_floats(kv, p->entries_max) * sizeof(float);
    if (p->arrived.a != p->answers.a)
        kva_device_free(kv->device, KVA_MEM_DEVICE, p->arrived.a, bytes);
    kva_device_free(kv->device, KVA_MEM_HOST, p->answers.a, bytes);
    kva_device_free(kv->device, KVA_MEM_HOST, p->q, kv->sequences_max * kv->query_bytes);
    free(p->posts);
    free(p->collected);
}

static struct kva_partial partial_at(const struct kva_kv *kv, const struct kva_partial *all,
                                     uint32_t entry)
{
    size_t pair = (size_t)entry * kv->heads;
    return (struct kva_partial){all->a + pair * head_dim(kv), all->m + pair, all->e + pair};
}

/* --- counters -------------------------------------------------------------------------------- */

static const struct kva_counter remote_tokens = {
    .name = "remote_tokens",
    .unit = "tokens",
    .help = "Tokens at other instances that decoding rows have attended to.",
    .field = "remote_tokens",
};

const struct kva_counter *const kva_lent_counters[] = {&remote_tokens, NULL};

/* --- a pass ---------------------------------------------------------------------------------- */

static bool is_away(const struct kva_lent_debt *debt)
{
    return debt->stage != KVA_LENT_HOME;
}

/* Loans of the rows' sequence that attend; its state. */
static struct kva_lent *lent_rows(const struct kva_kv_rows *rows)
{
    struct kva_lent *lent = kva_lent_of(rows->seq);
    return lent && lent->count > 0 ? lent : NULL;
}

/* Whether attention over the pages that are here may go on from the loan's result: it begins the
 * sequence, ends where attention folds, and is the only one. */
static bool is_prefix(const struct kva_lent *lent)
{
    const struct kva_kv_loan *loan = &lent->debts[0].loan;
    return lent->count == 1 && loan->first_page == 0 &&
           loan->page_count * KVA_PAGE_TOKENS % KVA_ATTEND_SPLIT_TOKENS == 0;
}

void kva_lent_pass_begin(const struct kva_kv_part *self, struct kva_kv *kv,
                         struct kva_kv_pass *pass)
{
    struct kva_lent_pass *p = kva_kv_part_cache(kv, self);
    p->count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_lent *lent = lent_rows(&pass->rows[i]);
        if (!lent)
            continue;
        assert(pass->rows[i].row_count == 1 && !lent->lost);
        lent->slot = p->count;
        lent->broken = false;
        pass->rows[i].seq->rounded |= !is_prefix(lent);
        p->count += lent->count;
    }
}

void kva_lent_locate(const struct kva_kv *kv, struct kva_kv_rows *rows, uint32_t layer KVA_UNUSED)
{
    const struct kva_lent *lent = lent_rows(rows);
    for (uint32_t i = 0; lent && i < lent->count; i++) {
        const struct kva_lent_pass *p = kva_kv_part_cache(kv, &kva_kv_part_lent);
        const struct kva_kv_loan *loan = &lent->debts[i].loan;
        assert(is_away(&lent->debts[i])); /* kva_kv_seq_grow has come before the step */
        kva_kv_add_range(rows, (struct kva_kv_range){
                                   .kind = KVA_RANGE_PARTIAL,
                                   .page_first = loan->first_page,
                                   .page_end = loan->first_page + loan->page_count,
                                   .partial = partial_at(kv, &p->arrived, lent->slot + i),
                                   .owner = &kva_kv_part_lent,
                                   .prefix = is_prefix(lent),
                               });
    }
}

/* The row's query where the host reads it. */
static const void *bring_query(const struct kva_kv *kv, const struct kva_lent_pass *p,
                               const struct kva_kv_rows *rows, uint32_t index, const void *q)
{
    const unsigned char *at = (const unsigned char *)q + rows->row_first * kv->query_bytes;
    if (!p->q)
        return at;
    unsigned char *to = p->q + index * kv->query_bytes;
    kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, to, at, kv->query_bytes);
    return to;
}

void kva_lent_queried(const struct kva_kv_part *self, struct kva_kv *kv, struct kva_kv_pass *pass,
                      uint32_t layer, const void *q)
{
    struct kva_lent_pass *p = kva_kv_part_cache(kv, self);
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count && p->count > 0; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        const struct kva_lent *lent = lent_rows(rows);
        if (!lent)
            continue;
        const void *query = bring_query(kv, p, rows, i, q);
        for (uint32_t j = 0; j < lent->count; j++, count++) {
            if (layer == 0)
                kva_kv_count(kv, rows->seq, &remote_tokens,
                             (uint64_t)lent->debts[j].loan.page_count * KVA_PAGE_TOKENS);
            p->collected[count] = false;
            p->posts[count] = (struct kva_remote_rows){
                .loan = lent->debts[j].loan.id,
                .creditor = lent->debts[j].loan.creditor,
                .row_count = 1,
                .position_first = rows->position_first,
                .q = query,
                .out = partial_at(kv, &p->answers, count),
            };
        }
    }
    if (count == 0)
        return;
    if (p->q)
        kva_device_sync(kv->device, KVA_QUEUE_COMPUTE);
    kv->remote->ops->post(kv->remote->self, layer, p->posts, count);
}

/* What attention over no tokens gives. */
static void clear(const struct kva_kv *kv, const struct kva_partial *partial)
{
    memset(partial->a, 0, kv->heads * head_dim(kv) * sizeof(float));
    memset(partial->e, 0, kv->heads * sizeof(float));
    for (uint32_t i = 0; i < kv->heads; i++)
        partial->m[i] = -INFINITY;
}

static void copy_on(struct kva_kv *kv, const struct kva_partial *from, const struct kva_partial *to)
{
    kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, to->a, from->a,
                    kv->heads * head_dim(kv) * sizeof(float));
    kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, to->m, from->m, kv->heads * sizeof(float));
    kva_device_copy(kv->device, KVA_QUEUE_COMPUTE, to->e, from->e, kv->heads * sizeof(float));
}

void kva_lent_await(struct kva_kv *kv, const struct kva_kv_rows *rows,
                    const struct kva_kv_range *range)
{
    struct kva_lent_pass *p = kva_kv_part_cache(kv, &kva_kv_part_lent);
    struct kva_lent *lent = kva_lent_of(rows->seq);
    uint32_t entry = lent->slot;
    while (lent->debts[entry - lent->slot].loan.first_page != range->page_first)
        entry++;
    if (p->collected[entry])
        return;
    p->collected[entry] = true;
    const struct kva_partial answer = partial_at(kv, &p->answers, entry);
    if (!kv->remote->ops->collect(kv->remote->self, entry)) {
        lent->broken = true;
        clear(kv, &answer);
    }
    if (p->q)
        copy_on(kv, &answer, &range->partial);
}
