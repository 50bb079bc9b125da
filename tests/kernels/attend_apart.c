/* attend_apart.c - the calls that attend_select_fetch stands for. */
#include "tests/kernels/attend_apart.h"

#include <stdio.h>
#include <stdlib.h>

/* Sequences of one turn at most. */
#define SEQS_MAX 64u

struct turn {
    struct kva_lowbit_seq low[SEQS_MAX];
    struct kva_rows_seq rows[SEQS_MAX];
    struct kva_weigh_seq weigh[SEQS_MAX];
    struct kva_choose_seq choose[SEQS_MAX];
    struct kva_lowbit_seq selecting[SEQS_MAX]; /* of `low`, those that go with weigh */
    bool by_peaks;
    uint32_t count;
    uint32_t rows_count;
    uint32_t select_count;
};

static bool selects(const struct kva_select_seq *seq)
{
    return seq->rows && seq->select_row < seq->row_count;
}

/* Scores or peaks, and weights, of a selecting sequence go to `memory`. */
static void add_selection(struct turn *turn, const struct kva_attend_select_fetch_args *args,
                          const struct kva_select_seq *seq, unsigned char *memory)
{
    uint32_t position = seq->position_first + seq->select_row;
    uint32_t end = seq->page_count * KVA_PAGE_TOKENS;
    bool cut = args->window > 0 && position >= args->window;
    uint32_t visible = cut ? position - args->window + 1 : 0;
    float *kept = (float *)(void *)memory;
    float *weights =
        (float *)(void *)(memory + kva_attend_scores_bytes(args->heads, seq->page_count));
    struct kva_lowbit_seq *low = &turn->low[turn->count - 1];
    low->scores = turn->by_peaks ? NULL : kept;
    low->peaks = turn->by_peaks ? kept : NULL;
    turn->selecting[turn->select_count] = *low;
    turn->weigh[turn->select_count] = (struct kva_weigh_seq){
        .row = seq->row_first + seq->select_row,
        .first = kva_min_u32(visible, end),
        .page_count = seq->page_count,
        .scores = low->scores,
        .rows = seq->rows,
        .weights = weights,
    };
    turn->choose[turn->select_count++] = (struct kva_choose_seq){
        .weights = weights,
        .chosen = seq->rows->chosen,
        .stride = end,
        .first = kva_min_u32(kva_max_u32(visible, seq->rows->pinned), end),
        .end = end,
        .k = seq->rows->k,
        .successor = seq->rows->successor,
    };
}

/* As many sequences from `first` on as there is scratch memory for. */
static void plan_turn(struct turn *turn, const struct kva_attend_select_fetch_args *args,
                      uint32_t first)
{
    unsigned char *memory = args->scratch;
    size_t left = args->scratch_bytes;
    turn->count = turn->rows_count = turn->select_count = 0;
    for (uint32_t i = first; i < args->seq_count && turn->count < SEQS_MAX; i++) {
        const struct kva_select_seq *seq = &args->seqs[i];
        size_t need = selects(seq)
                          ? kva_attend_select_bytes(args->heads, args->kv_heads, seq->page_count)
                          : 0;
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
        };
        if (seq->rows)
            turn->rows[turn->rows_count++] =
                (struct kva_rows_seq){.row_first = seq->row_first,
                                      .row_count = seq->row_count,
                                      .position_first = seq->position_first,
                                      .rows = seq->rows};
        if (selects(seq)) {
            add_selection(turn, args, seq, memory);
            memory += need;
            left -= need;
        }
    }
}

static void set_gates(struct turn *turn, const uint32_t *gate)
{
    for (uint32_t i = 0; i < turn->count; i++)
        turn->low[i].gate = gate;
    for (uint32_t i = 0; i < turn->rows_count; i++)
        turn->rows[i].gate = gate;
    for (uint32_t i = 0; i < turn->select_count; i++)
        turn->weigh[i].gate = turn->choose[i].gate = gate;
}

static void attend_turn(struct kva_device *device, const struct kva_ops *ops,
                        const struct kva_attend_select_fetch_args *args, const struct turn *turn)
{
    ops->attend_lowbit(device, &(struct kva_attend_lowbit_args){
                                   .q = args->q,
                                   .out = args->out,
                                   .seqs = turn->low,
                                   .blocks = args->blocks,
                                   .block_offset_bytes = args->block_offset_bytes,
                                   .seq_count = turn->count,
                                   .q_stride = args->q_stride,
                                   .heads = args->heads,
                                   .kv_heads = args->kv_heads,
                                   .head_dim = args->head_dim,
                                   .window = args->window,
                                   .format = args->format,
                                   .scale = args->scale,
                               });
    if (turn->rows_count > 0)
        ops->attend_rows(device, &(struct kva_attend_rows_args){
                                     .q = args->q,
                                     .out = args->out,
                                     .seqs = turn->rows,
                                     .seq_count = turn->rows_count,
                                     .q_stride = args->q_stride,
                                     .heads = args->heads,
                                     .kv_heads = args->kv_heads,
                                     .head_dim = args->head_dim,
                                     .window = args->window,
                                     .kv_dtype = args->kv_dtype,
                                     .scale = args->scale,
                                     .accumulate = true,
                                 });
}

static void select_turn(struct kva_device *device, const struct kva_ops *ops,
                        const struct kva_attend_select_fetch_args *args, const struct turn *turn,
                        enum kva_choose_kind kind)
{
    const struct kva_partial partials[2] = {args->out,
                                            args->rest ? *args->rest : (struct kva_partial){0}};
    const struct kva_weigh_choose_args both = {
        .weigh = {.q = args->q,
                  .partials = partials,
                  .seqs = turn->weigh,
                  .partial_count = args->rest ? 2 : 1,
                  .seq_count = turn->select_count,
                  .q_stride = args->q_stride,
                  .heads = args->heads,
                  .kv_heads = args->kv_heads,
                  .head_dim = args->head_dim,
                  .kv_dtype = args->kv_dtype,
                  .scale = args->scale},
        .choose = {.seqs = turn->choose,
                   .seq_count = turn->select_count,
                   .kv_heads = args->kv_heads,
                   .kind = kind},
        .low = turn->selecting,
        .blocks = args->blocks,
        .block_offset_bytes = args->block_offset_bytes,
        .format = args->format,
    };
    if (turn->by_peaks) {
        ops->weigh_choose(device, &both);
        return;
    }
    ops->weigh(device, &both.weigh);
    ops->choose(device, &both.choose);
}

static void run_turn(struct kva_device *device, const struct kva_ops *ops,
                     const struct kva_attend_select_fetch_args *args, struct turn *turn,
                     enum kva_choose_kind kind, const uint32_t *gate)
{
    set_gates(turn, gate);
    attend_turn(device, ops, args, turn);
    if (turn->select_count > 0)
        select_turn(device, ops, args, turn, kind);
}

/* Sequences from `first` on. */
static void plan_some(struct turn *turn, const struct kva_attend_select_fetch_args *args,
                      uint32_t first)
{
    plan_turn(turn, args, first);
    if (turn->count > 0)
        return;
    fprintf(stderr, "attend_apart: %zu bytes are too few to select in\n", args->scratch_bytes);
    abort();
}

/* Whether tokens that a selecting row does not see weigh less than nothing. */
static bool sight_is_kept(const struct turn *turn, uint32_t kv_heads)
{
    for (uint32_t i = 0; i < turn->select_count; i++) {
        const struct kva_weigh_seq *seq = &turn->weigh[i];
        const size_t end = (size_t)seq->page_count * KVA_PAGE_TOKENS;
        for (size_t head = 0; head < kv_heads; head++) {
            for (size_t t = 0; t < seq->first; t++) {
                if (!(seq->weights[head * end + t] < 0))
                    return false;
            }
        }
    }
    return true;
}

/* Each call twice: behind open gates, and behind closed ones with other numbers, which must change
 * nothing. */
bool attend_apart(struct kva_device *device, const struct kva_ops *ops,
                  const struct kva_attend_select_fetch_args *args)
{
    const uint32_t open = 1, closed = 0;
    struct kva_attend_select_fetch_args wrong = *args;
    struct turn turn = {.by_peaks = false};
    bool kept = true;
    wrong.scale *= 2;
    for (uint32_t first = 0; first < args->seq_count; first += turn.count) {
        plan_some(&turn, args, first);
        run_turn(device, ops, args, &turn, KVA_CHOOSE_MOST, &open);
        run_turn(device, ops, &wrong, &turn, KVA_CHOOSE_LEAST, &closed);
        kept &= sight_is_kept(&turn, args->kv_heads);
    }
    return kept;
}

void attend_apart_once(struct kva_device *device, const struct kva_ops *ops,
                       const struct kva_attend_select_fetch_args *args)
{
    struct turn turn = {.by_peaks = ops->weigh_choose};
    for (uint32_t first = 0; first < args->seq_count; first += turn.count) {
        plan_some(&turn, args, first);
        run_turn(device, ops, args, &turn, KVA_CHOOSE_MOST, NULL);
    }
}
