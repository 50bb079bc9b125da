/* step.c - one step of the engine: the joint pass, then the quotas of long prompts. */
#include "engine/kv/stream.h"
#include "engine/model_engine_internal.h"

/* --- the joint pass: decoding rows and prompts that fit whole -------------------------------- */

static uint32_t prefill_left(const struct kva_sequence *seq)
{
    return seq->params.prompt_tokens - seq->prefill_first;
}

static bool fits_whole(const struct kva_step_item *item, uint32_t rows_left)
{
    const struct kva_sequence *seq = item->seq;
    return seq->prefill_layer == 0 && seq->prefill_position == seq->prefill_first &&
           prefill_left(seq) <= item->prefill_tokens && prefill_left(seq) <= rows_left;
}

static void finish_prefill(struct kva_step_item *item)
{
    struct kva_sequence *seq = item->seq;
    item->prefill_done = prefill_left(seq) - seq->prefill_reported;
    seq->prefill_reported += item->prefill_done;
    seq->prefilled = true;
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
        .row_count = prefill_left(seq),
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

/* Picks the items of the joint pass; returns their count. */
static uint32_t gather_batch(struct model_engine *e, struct kva_step_item *items, uint32_t count)
{
    uint32_t rows_left = e->engine.limits.step_tokens_max;
    uint32_t batch = 0;
    for (uint32_t i = 0; i < count; i++)
        rows_left -= items[i].seq->prefilled;
    for (uint32_t i = 0; i < count; i++) {
        struct kva_sequence *seq = items[i].seq;
        if (!seq->prefilled && !fits_whole(&items[i], rows_left))
            continue;
        rows_left -= seq->prefilled ? 0 : prefill_left(seq);
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
        if (e->pick.count + 2 <= KVA_LOGIT_ROWS_MAX && i + 1 < batch)
            continue;
        kva_pick_run(e, hidden);
        for (uint32_t at = 0; first <= i; first++) {
            take_entry(e, first, at);
            at += 1 + e->batch_rows[first].draft;
        }
        kva_pick_begin(e);
    }
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
        /* A draft token's K and V are never part of the sequence. */
        uint32_t kept = rows->row_count - rows->draft;
        kva_kv_seq_commit(e->kv, &seq->kv, seq->ids, rows->position_first + kept);
        if (!seq->prefilled) {
            const struct kva_pick_prompt prompt = {hidden, rows->row_first, rows->position_first,
                                                   rows->row_count};
            kva_pick_score_prompt(e, seq, &prompt);
            finish_prefill(item);
        }
    }
    emit_batch(e, hidden, batch);
}

/* A sequence that pre-decodes sits out: its row is one more of the joint pass, and its token comes a
 * step later. Where all sequences would sit out, that pass is theirs alone, and the step goes on
 * with the joint one: no pass is saved by waiting, and nobody is kept waiting by it. */
static bool only_predecodes(const struct model_engine *e, uint32_t batch)
{
    for (uint32_t i = 0; i < batch; i++) {
        if (!e->batch_rows[i].predecode)
            return false;
    }
    return batch > 0;
}

/* --- long prompts, layer-major --------------------------------------------------------------- */

/* One chunk of one layer. After the last layer its rows stay where a pick finds them. */
static void run_chunk(struct model_engine *e, struct kva_sequence *seq, uint32_t rows)
{
    uint32_t position = seq->prefill_position;
    uint32_t stream_row = position - seq->prefill_first;
    bool last_layer = seq->prefill_layer + 1 == e->config->layer_count;
    void *hidden = kva_forward_hidden(e->forward);
    struct kva_kv_rows group = {
        .seq = &seq->kv,
        .ids = seq->ids + position,
        .position_first = position,
        .row_count = rows,
        .select_row = KVA_NO_ROW,
    };
    const struct kva_forward_call call = {
        .pass = {.rows = &group,
                 .rows_count = 1,
                 .layer_first = seq->prefill_layer,
                 .layer_count = 1},
        .hidden = hidden,
    };
    if (seq->prefill_layer > 0)
        kva_kv_stream_read(e->kv, &seq->kv, stream_row, rows, hidden);
    kva_forward_run(e->forward, &call);
    if (last_layer)
        kva_pick_score_prompt(e, seq, &(struct kva_pick_prompt){hidden, 0, position, rows});
    else
        kva_kv_stream_write(e->kv, &seq->kv, stream_row, rows, hidden);
    seq->prefill_position += rows;
    if (seq->prefill_position == seq->params.prompt_tokens && !last_layer) {
        seq->prefill_position = seq->prefill_first;
        seq->prefill_layer++;
    }
}

static void run_long(struct model_engine *e, struct kva_step_item *item)
{
    struct kva_sequence *seq = item->seq;
    uint32_t prompt = seq->params.prompt_tokens;
    uint32_t layers = e->config->layer_count;
    uint64_t units = (uint64_t)item->prefill_tokens * layers, rows = 0;
    while (units > 0 && seq->prefill_position < prompt) {
        rows = kva_min_u32(e->engine.limits.step_tokens_max, prompt - seq->prefill_position);
        rows = rows < units ? rows : units;
        units -= rows;
        run_chunk(e, seq, (uint32_t)rows);
    }
    if (seq->prefill_position < prompt) {
        uint64_t done = (uint64_t)seq->prefill_layer * prefill_left(seq) + seq->prefill_position -
                        seq->prefill_first;
        item->prefill_done = (uint32_t)(done / layers) - seq->prefill_reported;
        seq->prefill_reported += item->prefill_done;
        return;
    }
    kva_kv_seq_commit(e->kv, &seq->kv, seq->ids, prompt);
    kva_pick_begin(e);
    kva_pick_item(e, (uint32_t)rows - 1, item);
    kva_pick_run(e, kva_forward_hidden(e->forward));
    kva_pick_emit(e, 0, item);
    finish_prefill(item);
}

enum kva_status kva_model_engine_step(void *self, struct kva_step_item *items, uint32_t count,
                                      struct kva_err *err)
{
    struct model_engine *e = self;
    for (uint32_t i = 0; i < count; i++) {
        items[i].status = KVA_OK;
        items[i].emitted = false;
        items[i].speculated = false;
        items[i].prefill_done = 0;
    }
    kva_kv_step_begin(e->kv);
    uint32_t batch = gather_batch(e, items, count);
    if (only_predecodes(e, batch)) {
        run_batch(e, batch);
        batch = gather_batch(e, items, count);
    }
    run_batch(e, batch);
    for (uint32_t i = 0; i < count; i++) {
        if (!items[i].seq->prefilled)
            run_long(e, &items[i]);
    }
    e->steps++;
    enum kva_status status = kva_model_check(e->params.model, err);
    return status ? status : kva_device_error(e->device, err);
}
