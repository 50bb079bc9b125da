/* step.c - one step of the engine: the joint pass, then the quotas of long prompts (prefill.c). */
#include "engine/kv/parts/lent.h"
#include "engine/model_engine_internal.h"

/* --- the joint pass: decoding rows and prompts that fit whole -------------------------------- */

static bool fits_whole(const struct kva_step_item *item, uint32_t rows_left)
{
    const struct kva_sequence *seq = item->seq;
    bool exact = seq->kv.prompt_tokens == seq->prefill_tokens;
    return exact && seq->prefill_layer == 0 && seq->prefill_position == seq->prefill_first &&
           kva_prefill_left(seq) <= item->prefill_tokens && kva_prefill_left(seq) <= rows_left;
}

/* What the sequence's policy wants of its next decoding step. */
static struct kva_kv_step_plan plan_of(const struct kva_sequence *seq)
{
    struct kva_kv_step_plan plan = {.select_row = KVA_NO_ROW};
    if (seq->kv.policy->plan)
        seq->kv.policy->plan(&seq->kv, &plan);
    return plan;
}

uint32_t kva_model_engine_rows(const struct kva_sequence *seq)
{
    return plan_of(seq).draft ? 2 : 1;
}

static struct kva_kv_rows decode_rows(struct kva_step_item *item)
{
    struct kva_sequence *seq = item->seq;
    const struct kva_kv_step_plan plan = plan_of(seq);
    if (plan.draft) {
        item->spec_token = plan.draft_token;
        seq->ids[seq->kv.tokens + 1] = plan.draft_token;
        if (seq->constraint)
            seq->params.sampling->constraint->ops->expect(seq->constraint, plan.draft_token);
    }
    return (struct kva_kv_rows){
        .seq = &seq->kv,
        .ids = seq->ids + seq->kv.tokens,
        .position_first = seq->kv.tokens,
        .row_count = plan.draft ? 2 : 1,
        .draft = plan.draft,
        .select_row = plan.select_row,
        .select_now = plan.select_now,
        .select_next = plan.select_next,
    };
}

static struct kva_kv_rows prompt_rows(struct kva_sequence *seq)
{
    return (struct kva_kv_rows){
        .seq = &seq->kv,
        .ids = seq->ids + seq->prefill_first,
        .position_first = seq->prefill_first,
        .row_count = kva_prefill_left(seq),
        .select_row = KVA_NO_ROW,
    };
}

/* SpeCache 3.3: the last token alone, against what the device has. That gives its likely successor
 * and selects rows for the step that follows, in which the same token runs again. */
static struct kva_kv_rows predecode_rows(struct kva_sequence *seq)
{
    return (struct kva_kv_rows){
        .seq = &seq->kv,
        .ids = seq->ids + seq->kv.tokens,
        .position_first = seq->kv.tokens,
        .row_count = 1,
        .predecode = true,
        .select_next = true,
    };
}

/* What may come next takes long to find out: others are not kept waiting for it. */
static bool sits_out(const struct kva_sequence *seq)
{
    return seq->constraint && seq->prefilled &&
           seq->params.sampling->constraint->ops->is_late(seq->constraint);
}

/* Where all sequences sit out, there is nothing to do but to wait for the first of them. */
static void wait_for_late(struct kva_step_item *items, uint32_t count)
{
    const struct kva_sequence *seq = items[0].seq;
    for (uint32_t i = 0; i < count; i++) {
        if (!sits_out(items[i].seq))
            return;
    }
    seq->params.sampling->constraint->ops->wait(seq->constraint);
}

/* Picks the items of the joint pass; returns their count. */
static uint32_t gather_batch(struct model_engine *e, struct kva_step_item *items, uint32_t count)
{
    uint32_t rows_left = e->engine.limits.step_tokens_max;
    uint32_t batch = 0;
    for (uint32_t i = 0; i < count; i++)
        rows_left -= items[i].seq->prefilled;
    for (uint32_t i = 0; i < count; i++) {
        struct kva_sequence *seq = items[i].seq;
        items[i].lost = kva_kv_is_lost(&seq->kv);
        if (items[i].lost)
            continue;
        if ((!seq->prefilled && !fits_whole(&items[i], rows_left)) || sits_out(seq))
            continue;
        rows_left -= seq->prefilled ? 0 : kva_prefill_left(seq);
        if (!seq->prefilled)
            e->batch_rows[batch] = prompt_rows(seq);
        else if (plan_of(seq).predecode)
            e->batch_rows[batch] = predecode_rows(seq);
        else
            e->batch_rows[batch] = decode_rows(&items[i]);
        e->batch_items[batch++] = &items[i];
    }
    return batch;
}

/* Whether the batch is decoding rows alone: such a step comes again and again. */
static bool decodes(const struct model_engine *e, uint32_t batch)
{
    for (uint32_t i = 0; i < batch; i++) {
        if (!e->batch_rows[i].seq->prefilled)
            return false;
    }
    return true;
}

/* All layers for the rows of the batch; returns their residual streams. */
static void *run_rows(struct model_engine *e, uint32_t batch,
                      const struct kva_forward_observer *observer)
{
    void *hidden = kva_forward_hidden(e->forward);
    const struct kva_forward_call call = {
        .pass = {.rows = e->batch_rows,
                 .rows_count = batch,
                 .layer_count = e->config->layer_count,
                 .restart = true},
        .hidden = hidden,
        .observer = observer,
    };
    bool repeats = !observer && decodes(e, batch);
    if (repeats)
        kva_device_step_begin(e->device);
    kva_forward_run(e->forward, &call);
    if (repeats)
        kva_device_step_end(e->device);
    return hidden;
}

/* --- what the batch gives -------------------------------------------------------------------- */

/* What the rows of the batch's entry `index` gave, which begin at number `at` of the pick: the
 * item's token, and what follows its draft token; or what follows its last one (pre-decoding). */
static void take_entry(struct model_engine *e, uint32_t index, uint32_t at)
{
    struct kva_step_item *item = e->batch_items[index];
    struct kva_kv_seq *seq = &item->seq->kv;
    bool draft = e->batch_rows[index].draft;
    if (e->batch_rows[index].predecode) {
        seq->policy->predecoded(seq, kva_pick_guessed(e, at, item->seq, false));
        return;
    }
    /* Before the draft token in ids gives way to the one that is emitted. */
    uint32_t guess = draft ? kva_pick_guessed(e, at + 1, item->seq, true) : 0;
    kva_pick_emit(e, at, item);
    item->speculated = draft && item->emitted;
    if (item->speculated && seq->policy->emitted)
        seq->policy->emitted(e->kv, seq, item->token.token);
    if (draft && seq->policy->drafted)
        seq->policy->drafted(seq, guess);
}

static void emit_batch(struct model_engine *e, const void *hidden, uint32_t batch)
{
    uint32_t first = 0; /* entries of the pick begin here */
    kva_pick_begin(e);
    for (uint32_t i = 0; i < batch; i++) {
        const struct kva_kv_rows *rows = &e->batch_rows[i];
        uint32_t last = rows->row_first + rows->row_count - 1;
        if (rows->predecode)
            kva_pick_guess(e, last, e->batch_items[i]->seq, false);
        else
            kva_pick_item(e, last - rows->draft, e->batch_items[i]);
        if (rows->draft)
            kva_pick_guess(e, last, e->batch_items[i]->seq, true);
        if (e->pick.count + 2 <= e->pick.rows_max && i + 1 < batch)
            continue;
        kva_pick_run(e, hidden);
        for (uint32_t at = 0; first <= i; first++) {
            take_entry(e, first, at);
            at += 1 + e->batch_rows[first].draft;
        }
        kva_pick_begin(e);
    }
}

/* Whoever wants a vector has it now and gets no token, nor does a sequence for which attention
 * elsewhere gave no answer. Returns how many are left. */
static uint32_t drop_silent(struct model_engine *e, uint32_t batch)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < batch; i++) {
        if (e->batch_items[i]->pooled || e->batch_items[i]->seq->silent)
            continue;
        if (left < i) {
            e->batch_rows[left] = e->batch_rows[i];
            e->batch_items[left] = e->batch_items[i];
        }
        left++;
    }
    return left;
}

static void run_batch(struct model_engine *e, uint32_t batch)
{
    if (batch == 0)
        return;
    const void *hidden = run_rows(e, batch, e->observer);
    for (uint32_t i = 0; i < batch; i++) {
        const struct kva_kv_rows *rows = &e->batch_rows[i];
        struct kva_step_item *item = e->batch_items[i];
        struct kva_sequence *seq = item->seq;
        if (rows->predecode)
            continue;
        seq->silent = !kva_kv_settle_step(e->kv, &seq->kv);
        item->lost = kva_kv_is_lost(&seq->kv);
        if (seq->silent)
            continue;
        /* A draft token's K and V are never part of the sequence. */
        uint32_t kept = rows->row_count - rows->draft;
        kva_kv_seq_commit(e->kv, &seq->kv, seq->ids, rows->position_first + kept);
        if (!seq->prefilled) {
            const struct kva_pick_prompt prompt = {hidden, rows->row_first, rows->position_first,
                                                   rows->row_count};
            kva_pooling_take(e, seq, &prompt);
            kva_prefill_finish(item);
        }
    }
    emit_batch(e, hidden, drop_silent(e, batch));
}

/* A sequence that pre-decodes sits out: its row is one more of the joint pass, and its token comes
 * a step later. Where all sequences would sit out, that pass is theirs alone, and the step goes on
 * with the joint one: no pass is saved by waiting, and nobody is kept waiting by it. */
static bool only_predecodes(const struct model_engine *e, uint32_t batch)
{
    for (uint32_t i = 0; i < batch; i++) {
        if (!e->batch_rows[i].predecode)
            return false;
    }
    return batch > 0;
}

enum kva_status kva_model_engine_step(void *self, struct kva_step_item *items, uint32_t count,
                                      struct kva_err *err)
{
    struct model_engine *e = self;
    for (uint32_t i = 0; i < count; i++) {
        items[i].status = KVA_OK;
        items[i].emitted = false;
        items[i].pooled = false;
        items[i].lost = false;
        items[i].parked = false;
        items[i].speculated = false;
        items[i].prefill_done = 0;
    }
    if (count > 0)
        wait_for_late(items, count);
    kva_kv_step_begin(e->kv);
    uint32_t batch = gather_batch(e, items, count);
    if (only_predecodes(e, batch)) {
        run_batch(e, batch);
        batch = gather_batch(e, items, count);
    }
    run_batch(e, batch);
    for (uint32_t i = 0; i < count; i++) {
        if (!items[i].seq->prefilled)
            kva_prefill_run(e, &items[i]);
        items[i].parked = !items[i].seq->kv.resident;
    }
    e->steps++;
    enum kva_status status = kva_model_check(e->params.model, err);
    return status ? status : kva_device_error(e->device, err);
}
