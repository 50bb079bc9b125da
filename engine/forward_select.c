/* forward_select.c - attention over low-bit pages and the rows that replace some of their tokens,
 * and the selection of rows along the way: by the device's fused operator, or by the four that it
 * stands for, in turns as the scratch memory for scores allows; the last two, or what is both of
 * them at once, beside what follows in the layer, where nobody waits for them. */
#include "engine/forward_internal.h"

/* --- the call's sequences -------------------------------------------------------------------- */

/* low_seqs and low_blocks of the call. */
static void describe_seqs(struct kva_forward *fw, const struct kva_lowbit_call *call)
{
    uint32_t block = 0;
    for (uint32_t i = 0; i < call->count; i++) {
        const struct kva_kv_rows *rows = call->rows[i];
        const struct kva_kv_range *range = kva_kv_find_range(rows, KVA_RANGE_LOWBIT);
        bool selects = range && call->selects(rows);
        fw->low_seqs[i] = (struct kva_select_seq){
            .row_first = rows->row_first,
            .row_count = rows->row_count,
            .position_first = rows->position_first,
            .block_first = block,
            .page_count = range ? range->page_end : 0,
            .rows = range ? range->rows : NULL,
            .select_row = selects ? rows->select_row : KVA_NO_ROW,
            .now = rows->fused ? &rows->fetch : NULL,
            .mean = range ? range->mean : NULL,
        };
        for (uint32_t j = 0; range && j < range->page_end; j++)
            fw->low_blocks[block++] = range->low[j];
    }
}

static bool selects(const struct kva_select_seq *seq)
{
    return seq->rows && seq->select_row < seq->row_count;
}

/* Where the shares of its attention are wanted for themselves; NULL: they are not. */
static float *wanted_weights(const struct kva_kv_rows *rows)
{
    const struct kva_kv_range *range = kva_kv_find_range(rows, KVA_RANGE_LOWBIT);
    return range ? range->weights : NULL;
}

static void run_fused(struct kva_forward *fw, const struct kva_lowbit_call *call)
{
    const struct kva_model_config *c = fw->config;
    fw->ops->attend_select_fetch(fw->device,
                                 &(struct kva_attend_select_fetch_args){
                                     .q = fw->scratch[KVA_SCRATCH_Q].data,
                                     .out = fw->partials[KVA_RANGE_LOWBIT],
                                     .rest = &fw->partials[KVA_RANGE_BLOCKS],
                                     .seqs = fw->low_seqs,
                                     .blocks = fw->low_blocks,
                                     .block_offset_bytes = call->like->low_offset_bytes,
                                     .scratch = fw->scratch[KVA_SCRATCH_SELECT].data,
                                     .scratch_bytes = fw->scratch[KVA_SCRATCH_SELECT].bytes,
                                     .seq_count = call->count,
                                     .q_stride = c->heads * c->head_dim,
                                     .heads = c->heads,
                                     .kv_heads = c->kv_heads,
                                     .head_dim = c->head_dim,
                                     .window = c->layer_window[call->layer],
                                     .kv_dtype = fw->params.kv->shape.dtype,
                                     .format = call->like->format,
                                     .scale = c->attend_scale,
                                 });
}

/* --- the four operators ---------------------------------------------------------------------- */

/* Scores of a sequence of one row go to `memory`, what they come to where it is wanted. */
static void add_weights(struct kva_select_turn *turn, const struct kva_select_seq *seq,
                        float *weights, unsigned char *memory)
{
    float *scores = (float *)(void *)memory;
    struct kva_lowbit_seq *low = &turn->low[turn->count - 1];
    low->select_row = 0;
    low->scores = scores;
    turn->weigh[turn->select_count++] = (struct kva_weigh_seq){
        .row = seq->row_first,
        .page_count = seq->page_count,
        .scores = scores,
        .weights = weights,
    };
}

/* What a selecting sequence keeps of its scores, and weights, go to `memory`. */
static void add_selection(struct kva_select_turn *turn, const struct kva_forward *fw,
                          const struct kva_lowbit_call *call, const struct kva_select_seq *seq,
                          unsigned char *memory)
{
    const uint32_t *gate = turn->low[turn->count - 1].gate;
    uint32_t position = seq->position_first + seq->select_row;
    uint32_t end = seq->page_count * KVA_PAGE_TOKENS;
    uint32_t window = fw->config->layer_window[call->layer];
    uint32_t visible = window > 0 && position >= window ? position - window + 1 : 0;
    const struct kva_model_config *c = fw->config;
    struct kva_lowbit_seq *low = &turn->low[turn->count - 1];
    float *kept = (float *)(void *)memory;
    size_t kept_bytes = turn->by_peaks
                            ? kva_attend_peaks_bytes(c->heads, c->kv_heads, seq->page_count)
                            : kva_attend_scores_bytes(c->heads, seq->page_count);
    float *weights = (float *)(void *)(memory + kept_bytes);
    low->scores = turn->by_peaks ? NULL : kept;
    low->peaks = turn->by_peaks ? kept : NULL;
    turn->selecting[turn->select_count] = *low;
    turn->weigh[turn->select_count++] = (struct kva_weigh_seq){
        .row = seq->row_first + seq->select_row,
        .first = kva_min_u32(visible, end),
        .page_count = seq->page_count,
        .scores = low->scores,
        .rows = seq->rows,
        .weights = weights,
        .gate = gate,
    };
    turn->choose[turn->choose_count++] = (struct kva_choose_seq){
        .weights = weights,
        .chosen = seq->rows->chosen,
        .stride = end,
        .first = kva_min_u32(kva_max_u32(visible, seq->rows->pinned), end),
        .end = end,
        .k = seq->rows->k,
        .successor = seq->rows->successor,
        .gate = gate,
    };
}

/* As many sequences from `first` on as there is scratch memory for. */
static void plan_turn(struct kva_select_turn *turn, const struct kva_forward *fw,
                      const struct kva_lowbit_call *call, uint32_t first)
{
    const struct kva_model_config *c = fw->config;
    unsigned char *memory = fw->scratch[KVA_SCRATCH_SELECT].data;
    size_t left = fw->scratch[KVA_SCRATCH_SELECT].bytes;
    turn->count = turn->rows_count = turn->select_count = turn->choose_count = 0;
    for (uint32_t i = first; i < call->count; i++) {
        const struct kva_select_seq *seq = &fw->low_seqs[i];
        const uint32_t *gate = call->gated ? call->rows[i]->gate : NULL;
        float *weights = wanted_weights(call->rows[i]);
        size_t need = 0;
        if (turn->by_peaks && selects(seq))
            need = kva_attend_choose_bytes(c->heads, c->kv_heads, seq->page_count);
        else if (weights || selects(seq))
            need = kva_attend_select_bytes(c->heads, c->kv_heads, seq->page_count);
        if (need > left)
            return;
        turn->low[turn->count++] = (struct kva_lowbit_seq){
            .row_first = seq->row_first,
            .row_count = seq->row_count,
            .position_first = seq->position_first,
            .block_first = seq->block_first,
            .page_count = seq->page_count,
            .rows = seq->rows,
            .select_row = seq->select_row,
            .mean = seq->mean,
            .gate = gate,
        };
        if (seq->rows)
            turn->rows[turn->rows_count++] = (struct kva_rows_seq){
                seq->row_first, seq->row_count, seq->position_first, seq->rows, gate};
        if (need == 0)
            continue;
        turn->weighed[turn->select_count] = call->rows[i];
        if (weights)
            add_weights(turn, seq, weights, memory);
        else
            add_selection(turn, fw, call, seq, memory);
        memory += need;
        left -= need;
    }
}

static void attend_turn(struct kva_forward *fw, const struct kva_lowbit_call *call,
                        const struct kva_select_turn *turn)
{
    const struct kva_model_config *c = fw->config;
    fw->ops->attend_lowbit(fw->device,
                           &(struct kva_attend_lowbit_args){
                               .q = fw->scratch[KVA_SCRATCH_Q].data,
                               .out = fw->partials[KVA_RANGE_LOWBIT],
                               .seqs = turn->low,
                               .blocks = fw->low_blocks,
                               .block_offset_bytes = call->like->low_offset_bytes,
                               .seq_count = turn->count,
                               .q_stride = c->heads * c->head_dim,
                               .heads = c->heads,
                               .kv_heads = c->kv_heads,
                               .head_dim = c->head_dim,
                               .window = c->layer_window[call->layer],
                               .format = call->like->format,
                               .scale = c->attend_scale,
                               .behind = fw->rows_beside ? &fw->partials[KVA_RANGE_ROWS] : NULL,
                           });
    if (turn->rows_count > 0 && !fw->rows_beside)
        kva_forward_attend_rows(fw, &(struct kva_rows_call){.kind = KVA_RANGE_LOWBIT,
                                                            .seqs = turn->rows,
                                                            .count = turn->rows_count,
                                                            .layer = call->layer,
                                                            .accumulate = true});
}

static struct kva_choose_args choice(const struct kva_forward *fw, enum kva_queue queue,
                                     uint32_t first, uint32_t end)
{
    return (struct kva_choose_args){.seqs = fw->turn.choose + first,
                                    .seq_count = end - first,
                                    .kv_heads = fw->config->kv_heads,
                                    .kind = KVA_CHOOSE_MOST,
                                    .queue = queue};
}

/* Weigh the turn's entries [first, end), whose rows are those from `row_first` on of the partial
 * results; and choose, if that is one. */
static void weigh(struct kva_forward *fw, const struct kva_lowbit_call *call, enum kva_queue queue,
                  uint32_t first, uint32_t end, const struct kva_partial *partials,
                  uint32_t partial_count, uint32_t row_first)
{
    struct kva_select_turn *turn = &fw->turn;
    const struct kva_model_config *c = fw->config;
    uint32_t q_stride = c->heads * c->head_dim;
    for (uint32_t i = first; i < end; i++)
        turn->weigh[i].row -= row_first;
    const struct kva_weigh_args args = {
        .q = (const unsigned char *)fw->scratch[KVA_SCRATCH_Q].data +
             (size_t)row_first * q_stride * fw->act_bytes,
        .partials = partials,
        .seqs = turn->weigh + first,
        .partial_count = partial_count,
        .seq_count = end - first,
        .q_stride = q_stride,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .kv_dtype = fw->params.kv->shape.dtype,
        .queue = queue,
        .scale = c->attend_scale,
    };
    if (turn->by_peaks)
        fw->ops->weigh_choose(fw->device, &(struct kva_weigh_choose_args){
                                              .weigh = args,
                                              .choose = choice(fw, queue, first, end),
                                              .low = turn->selecting + first,
                                              .blocks = fw->low_blocks,
                                              .block_offset_bytes = call->like->low_offset_bytes,
                                              .format = call->like->format,
                                          });
    else
        fw->ops->weigh(fw->device, &args);
}

static void weigh_turn(struct kva_forward *fw, const struct kva_lowbit_call *call,
                       enum kva_queue queue)
{
    const struct kva_select_turn *turn = &fw->turn;
    struct kva_partial partials[KVA_PARTIALS_MAX] = {fw->partials[KVA_RANGE_LOWBIT],
                                                     fw->partials[KVA_RANGE_BLOCKS]};
    if (!call->has_rest)
        weigh(fw, call, queue, 0, turn->select_count, partials, 2, 0);
    for (uint32_t i = 0; call->has_rest && i < turn->select_count; i++) {
        const struct kva_kv_rows *rows = turn->weighed[i];
        partials[0] = kva_forward_partial_of(fw, KVA_RANGE_LOWBIT, rows->row_first);
        uint32_t count = 1 + kva_forward_list_rest(fw, rows, partials + 1);
        weigh(fw, call, queue, i, i + 1, partials, count, rows->row_first);
    }
}

/* Whether what the turn selects can be found out aside: nobody in this layer waits for weights or
 * for what is chosen, nor is anything awaited for them. */
static bool goes_aside(const struct kva_lowbit_call *call, const struct kva_select_turn *turn)
{
    return call->aside && !call->has_rest && turn->select_count == turn->choose_count;
}

/* Whether shares of attention are wanted, which are nobody's where choosing is one with it. */
static bool wants_weights(const struct kva_lowbit_call *call)
{
    for (uint32_t i = 0; i < call->count; i++) {
        if (wanted_weights(call->rows[i]))
            return true;
    }
    return false;
}

static void run_apart(struct kva_forward *fw, const struct kva_lowbit_call *call)
{
    struct kva_select_turn *turn = &fw->turn;
    turn->by_peaks = fw->ops->weigh_choose && !wants_weights(call);
    for (uint32_t first = 0; first < call->count; first += turn->count) {
        kva_kv_join_aside(fw->params.kv); /* it may read what the turn overwrites */
        plan_turn(turn, fw, call, first);
        attend_turn(fw, call, turn);
        if (turn->select_count == 0)
            continue;
        kva_device_join(fw->device); /* weighing takes the results of all branches */
        const enum kva_queue queue = goes_aside(call, turn) ? KVA_QUEUE_ASIDE : KVA_QUEUE_COMPUTE;
        if (queue == KVA_QUEUE_ASIDE)
            kva_kv_order_aside(fw->params.kv);
        weigh_turn(fw, call, queue);
        if (turn->choose_count == 0 || turn->by_peaks)
            continue;
        const struct kva_choose_args args = choice(fw, queue, 0, turn->choose_count);
        fw->ops->choose(fw->device, &args);
    }
}

/* The fused operator knows of no gates. */
static bool has_gate(const struct kva_lowbit_call *call)
{
    for (uint32_t i = 0; i < call->count && call->gated; i++) {
        if (call->rows[i]->gate)
            return true;
    }
    return false;
}

void kva_forward_attend_lowbit(struct kva_forward *fw, const struct kva_lowbit_call *call)
{
    describe_seqs(fw, call);
    if (fw->ops->attend_select_fetch && !call->has_rest && !has_gate(call) && !wants_weights(call))
        run_fused(fw, call);
    else
        run_apart(fw, call);
}

void kva_forward_attend_rows(struct kva_forward *fw, const struct kva_rows_call *call)
{
    const struct kva_model_config *c = fw->config;
    enum kva_scratch_name q = call->rolls ? KVA_SCRATCH_Q_ROLLED : KVA_SCRATCH_Q;
    fw->ops->attend_rows(fw->device, &(struct kva_attend_rows_args){
                                         .q = fw->scratch[q].data,
                                         .out = fw->partials[call->kind],
                                         .seqs = call->seqs,
                                         .seq_count = call->count,
                                         .q_stride = c->heads * c->head_dim,
                                         .heads = c->heads,
                                         .kv_heads = c->kv_heads,
                                         .head_dim = c->head_dim,
                                         .window = c->layer_window[call->layer],
                                         .kv_dtype = fw->params.kv->shape.dtype,
                                         .scale = c->attend_scale,
                                         .accumulate = call->accumulate,
                                     });
}
