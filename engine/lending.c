/* lending.c - pages of this engine's sequences at other instances. */
#include "engine/lending.h"

#include "engine/kv/placement.h"
#include "engine/kv/stream.h"
#include "engine/model_engine_internal.h"

uint32_t kva_lending_lendable_from(const struct kva_engine *engine, const struct kva_sequence *seq)
{
    const struct model_engine *e = engine->self;
    return kva_kv_lendable_from(e->kv, &seq->kv);
}

bool kva_lending_lendable(const struct kva_engine *engine, const struct kva_sequence *seq,
                          uint32_t first, uint32_t count)
{
    const struct model_engine *e = engine->self;
    return kva_kv_lendable(e->kv, &seq->kv, first, count);
}

void kva_lending_lend(struct kva_engine *engine, struct kva_sequence *seq,
                      const struct kva_kv_loan *loan)
{
    struct model_engine *e = engine->self;
    kva_kv_lend(e->kv, &seq->kv, loan);
}

uint32_t kva_lending_lendable_pages(const struct kva_engine *engine, const struct kva_sequence *seq)
{
    const struct model_engine *e = engine->self;
    return kva_kv_lendable_pages(e->kv, &seq->kv);
}

uint32_t kva_lending_loans(const struct kva_sequence *seq, struct kva_kv_loan ret[KVA_KV_LOANS_MAX])
{
    return kva_kv_loans(&seq->kv, ret);
}

void kva_lending_set_others(struct kva_engine *engine, uint64_t bytes)
{
    struct model_engine *e = engine->self;
    atomic_store(&e->kv->others_bytes, bytes);
}

/* As the scheduler reckons it. */
static uint64_t begin_bytes(const struct model_engine *e, const struct kva_sequence *seq,
                            bool shares)
{
    const struct kva_kv_seq *kv = &seq->kv;
    uint32_t cached;
    if (shares)
        return kva_kv_seq_admit_bytes(e->kv, kv, seq->ids, &cached).device;
    return kva_kv_stream_bytes(e->kv, kv->prompt_tokens) + kva_kv_seq_prompt_bytes(e->kv, kv);
}

static uint64_t go_on_bytes(const struct model_engine *e, const struct kva_sequence *seq,
                            bool shares)
{
    uint64_t bytes = kva_kv_seq_resume_bytes(e->kv, &seq->kv), others = 0;
    if (shares && bytes <= kva_tier_budget_bytes(e->kv->tier))
        others = kva_kv_seq_shared_bytes(e->kv, &seq->kv).bytes;
    return bytes > others ? bytes - others : 0;
}

struct kva_lending_need kva_lending_need_of(const struct kva_engine *engine,
                                            const struct kva_sequence *seq, bool shares)
{
    const struct model_engine *e = engine->self;
    const struct kva_kv_seq *kv = &seq->kv;
    const bool begun = kv->prefilled || kv->page_count > 0;
    uint64_t page_bytes = e->kv->shape.page_bytes;
    uint64_t bytes = begun ? go_on_bytes(e, seq, shares) : begin_bytes(e, seq, shares);
    uint32_t pages = (uint32_t)kva_div_up(bytes, page_bytes) + 1, last = 0;
    if (kv->spreads) /* only these are asked for with room to grow */
        last = kva_kv_pages(kv->tokens_max) - kva_kv_pages_lent(kv);
    return (struct kva_lending_need){.pages = pages, .pages_max = kva_max_u32(pages, last)};
}

size_t kva_lending_page_bytes(const struct kva_engine *engine)
{
    const struct model_engine *e = engine->self;
    return e->kv->shape.page_bytes;
}

void *kva_lending_home_of(struct kva_engine *engine, const struct kva_sequence *seq, uint32_t index)
{
    struct model_engine *e = engine->self;
    return kva_kv_home_of(e->kv, &seq->kv, index);
}

enum kva_status kva_lending_home_reserve(struct kva_engine *engine, struct kva_sequence *seq,
                                         uint64_t loan, struct kva_err *err)
{
    struct model_engine *e = engine->self;
    return kva_kv_home_reserve(e->kv, &seq->kv, loan, err);
}

void kva_lending_come_home(struct kva_engine *engine, struct kva_sequence *seq, uint64_t loan)
{
    struct model_engine *e = engine->self;
    kva_kv_come_home(e->kv, &seq->kv, loan, seq->ids);
}

void kva_lending_lose(struct kva_engine *engine, struct kva_sequence *seq)
{
    struct model_engine *e = engine->self;
    kva_kv_lose(e->kv, &seq->kv);
}
