/* prefill.c - prompts that do not fit a step whole.
 *
 * Up to the context a prompt is computed exactly, layer-major: all chunks of a layer before the
 * next one. A prompt that exceeds the context, under a policy that goes on past it, is a stream from
 * its beginning: after its first tokens it goes through all layers piece by piece, and what the
 * policy drops leaves between pieces. Pieces end where pages do, which is where anything leaves: so
 * it does not matter to any row how many tokens a step has. */
#include "engine/kv/stream.h"
#include "engine/model_engine_internal.h"

uint32_t kva_prefill_left(const struct kva_sequence *seq)
{
    return seq->prefill_tokens - seq->prefill_first;
}

/* The prompt is in `done` tokens deep. */
static void report(struct kva_sequence *seq, struct kva_step_item *item, uint32_t done)
{
    item->prefill_done = done - seq->prefill_reported;
    seq->prefill_reported = done;
}

void kva_prefill_finish(struct kva_step_item *item)
{
    struct kva_sequence *seq = item->seq;
    report(seq, item, kva_prefill_left(seq));
    seq->prefilled = true;
    item->pooled = seq->params.pooling != KVA_POOLING_NONE;
}

/* --- the exact part, layer-major ------------------------------------------------------------- */

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
        .observer = e->observer,
    };
    if (seq->prefill_layer > 0)
        kva_kv_stream_read(e->kv, &seq->kv, stream_row, rows, hidden);
    kva_forward_run(e->forward, &call);
    if (last_layer)
        kva_pooling_take(e, seq, &(struct kva_pick_prompt){hidden, 0, position, rows});
    else
        kva_kv_stream_write(e->kv, &seq->kv, stream_row, rows, hidden);
    seq->prefill_position += rows;
    if (seq->prefill_position == seq->kv.prompt_tokens && !last_layer) {
        seq->prefill_position = seq->prefill_first;
        seq->prefill_layer++;
    }
}

/* As many chunks as `*units` rows of a layer allow, less those that were used. Returns how many rows
 * the last one had once all are in, else 0. */
static uint32_t run_exact(struct model_engine *e, struct kva_sequence *seq, uint64_t *units)
{
    uint32_t end = seq->kv.prompt_tokens, rows = 0;
    while (*units > 0 && seq->prefill_position < end) {
        rows = kva_min_u32(e->engine.limits.step_tokens_max, end - seq->prefill_position);
        rows = rows < *units ? rows : (uint32_t)*units;
        *units -= rows;
        run_chunk(e, seq, rows);
    }
    return seq->prefill_position == end ? rows : 0;
}

static uint32_t exact_done(const struct model_engine *e, const struct kva_sequence *seq)
{
    uint64_t all = seq->kv.prompt_tokens - seq->prefill_first;
    uint64_t rows = seq->prefill_layer * all + seq->prefill_position - seq->prefill_first;
    return (uint32_t)(rows / e->config->layer_count);
}

/* --- what exceeds the context, piece by piece ------------------------------------------------ */

uint32_t kva_model_engine_piece_end(const struct kva_sequence *seq)
{
    uint32_t at = seq->kv.tokens, page_end = (at / KVA_PAGE_TOKENS + 1) * KVA_PAGE_TOKENS;
    return seq->kv.prefilled ? kva_min_u32(page_end, seq->prefill_tokens) : 0;
}

/* Tokens up to `end` through all layers. */
static void run_piece(struct model_engine *e, struct kva_sequence *seq, uint32_t end)
{
    uint32_t position = seq->prefill_position;
    struct kva_kv_rows group = {
        .seq = &seq->kv,
        .ids = seq->ids + position,
        .position_first = position,
        .row_count = end - position,
        .select_row = KVA_NO_ROW,
    };
    const struct kva_forward_call call = {
        .pass = {.rows = &group,
                 .rows_count = 1,
                 .layer_count = e->config->layer_count,
                 .restart = true},
        .hidden = kva_forward_hidden(e->forward),
    };
    kva_forward_run(e->forward, &call);
    kva_kv_seq_commit(e->kv, &seq->kv, seq->ids, end);
    const struct kva_pick_prompt rows = {call.hidden, 0, position, end - position};
    kva_pooling_take(e, seq, &rows);
    seq->prefill_position = end;
}

/* `tokens` more at most; fewer where the device tier has no room now: the scheduler makes it before
 * the next step. Returns how many rows the last piece had. */
static uint32_t run_pieces(struct model_engine *e, struct kva_sequence *seq, uint64_t tokens)
{
    uint32_t rows = 0;
    while (tokens > 0 && seq->prefill_position < seq->prefill_tokens) {
        uint32_t end = kva_model_engine_piece_end(seq), at = seq->prefill_position;
        rows = kva_min_u32(end - at, e->engine.limits.step_tokens_max);
        rows = tokens < rows ? (uint32_t)tokens : rows;
        if (kva_kv_seq_grow(e->kv, &seq->kv, at + rows, NULL) != KVA_OK)
            break;
        /* Memory has changed hands since the last piece, as between steps. */
        kva_kv_step_begin(e->kv);
        run_piece(e, seq, at + rows);
        tokens -= rows;
    }
    return rows;
}

/* --- a step ---------------------------------------------------------------------------------- */

/* The first token, from the last of `rows` rows, or the vector. */
static void emit(struct model_engine *e, struct kva_step_item *item, uint32_t rows)
{
    if (item->seq->params.pooling != KVA_POOLING_NONE) {
        kva_prefill_finish(item);
        return;
    }
    kva_pick_begin(e);
    kva_pick_item(e, rows - 1, item);
    kva_pick_run(e, kva_forward_hidden(e->forward));
    kva_pick_emit(e, 0, item);
    kva_prefill_finish(item);
}

void kva_prefill_run(struct model_engine *e, struct kva_step_item *item)
{
    struct kva_sequence *seq = item->seq;
    uint32_t layers = e->config->layer_count, exact = seq->kv.prompt_tokens;
    uint64_t units = (uint64_t)item->prefill_tokens * layers;
    if (!seq->kv.prefilled) {
        uint32_t rows = run_exact(e, seq, &units);
        if (rows == 0) {
            report(seq, item, exact_done(e, seq));
            return;
        }
        kva_kv_seq_commit(e->kv, &seq->kv, seq->ids, exact);
        if (exact == seq->prefill_tokens) {
            emit(e, item, rows);
            return;
        }
    }
    uint32_t rows = run_pieces(e, seq, units / layers);
    if (seq->prefill_position < seq->prefill_tokens)
        report(seq, item, seq->prefill_position - seq->prefill_first);
    else
        emit(e, item, rows);
}
