/* forward_attend.c - a layer's attention: every range of the sequences' tokens
 * (engine/kv/range.h) by the operator of its kind, then one merge of the partial results.
 *
 *     BLOCKS    attend; behind a partial result that is awaited, attend_apart and attend_join
 *     LOWBIT    forward_select.c, a call per format: attend_lowbit, attend_rows, and selection
 *     ROWS      attend_rows
 *     PARTIAL   computed elsewhere
 *
 * Where the device runs branches side by side, blocks are one, low-bit pages another, and the rows
 * that replace some of these pages' tokens a third, whose result is folded behind the pages'.
 *
 * The engine's own partial results, one per kind, are of all rows of the pass: a kind that one
 * sequence has gives an empty result to the rows of the others. */
#include "engine/forward_internal.h"

#include <string.h>

/* --- 16-bit blocks --------------------------------------------------------------------------- */

/* The partial result on which the attention over the rows' blocks goes on; NULL: there is none. */
static const struct kva_kv_range *find_prefix(const struct kva_kv_rows *rows)
{
    for (uint32_t i = 0; i < rows->range_count; i++) {
        if (rows->ranges[i].kind == KVA_RANGE_PARTIAL && rows->ranges[i].prefix)
            return &rows->ranges[i];
    }
    return NULL;
}

/* The rows' result over blocks begins as that of the prefix. */
static void copy_prefix(struct kva_forward *fw, const struct kva_kv_rows *rows,
                        const struct kva_kv_range *prefix)
{
    const struct kva_partial to = kva_forward_partial_of(fw, KVA_RANGE_BLOCKS, rows->row_first);
    size_t pairs = (size_t)rows->row_count * fw->config->heads;
    kva_kv_layer_await(fw->params.kv, rows, prefix);
    kva_device_copy(fw->device, KVA_QUEUE_COMPUTE, to.a, prefix->partial.a,
                    pairs * fw->config->head_dim * sizeof(float));
    kva_device_copy(fw->device, KVA_QUEUE_COMPUTE, to.m, prefix->partial.m, pairs * sizeof(float));
    kva_device_copy(fw->device, KVA_QUEUE_COMPUTE, to.e, prefix->partial.e, pairs * sizeof(float));
}

/* One more of attend_seqs, which has `count`; its ranges follow the first `range_count`. Returns
 * the number of ranges with them. */
static uint32_t list_blocks(struct kva_forward *fw, const struct kva_kv_rows *rows, uint32_t count,
                            uint32_t range_count)
{
    uint32_t end = rows->position_first + rows->row_count, at = range_count;
    for (uint32_t i = 0; i < rows->range_count; i++) {
        const struct kva_kv_range *range = &rows->ranges[i];
        uint32_t first = range->page_first * KVA_PAGE_TOKENS;
        if (range->kind != KVA_RANGE_BLOCKS)
            continue;
        fw->attend_ranges[at++] = (struct kva_attend_range){
            .format = KVA_KV_16BIT,
            .token_first = first,
            .token_count = kva_min_u32(range->page_end * KVA_PAGE_TOKENS, end) - first,
            .block_first = (uint32_t)(kva_kv_block_at(rows, range->page_first) - fw->blocks),
        };
    }
    fw->attend_seqs[count] = (struct kva_attend_seq){
        .row_first = rows->row_first,
        .row_count = rows->row_count,
        .position_first = rows->position_first,
        .range_first = range_count,
        .range_count = at - range_count,
        .scores = rows->scores,
    };
    return at;
}

/* Attention over blocks of the `seq_count` sequences that have been listed. */
static struct kva_attend_args blocks_call(const struct kva_forward *fw, uint32_t layer,
                                          uint32_t seq_count)
{
    const struct kva_model_config *c = fw->config;
    return (struct kva_attend_args){
        .q = fw->scratch[KVA_SCRATCH_Q].data,
        .out = fw->partials[KVA_RANGE_BLOCKS],
        .seqs = fw->attend_seqs,
        .ranges = fw->attend_ranges,
        .blocks = fw->blocks,
        .seq_count = seq_count,
        .q_stride = c->heads * c->head_dim,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .window = c->layer_window[layer],
        .kv_dtype = fw->params.kv->shape.dtype,
        .scale = c->attend_scale,
    };
}

static void attend_blocks(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t layer)
{
    uint32_t count = 0, range_count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (!find_prefix(&pass->rows[i]))
            range_count = list_blocks(fw, &pass->rows[i], count++, range_count);
    }
    if (count == 0)
        return;
    const struct kva_attend_args args = blocks_call(fw, layer, count);
    fw->ops->attend(fw->device, &args);
}

/* The same of sequences that have a prefix: before it is there, as far as the device can. */
static void attend_behind_prefixes(struct kva_forward *fw, const struct kva_kv_pass *pass,
                                   uint32_t layer)
{
    const struct kva_scratch_piece *memory = &fw->scratch[KVA_SCRATCH_APART];
    uint32_t count = 0, range_count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (find_prefix(&pass->rows[i]))
            range_count = list_blocks(fw, &pass->rows[i], count++, range_count);
    }
    if (count == 0)
        return;
    struct kva_attend_apart_args args = {
        .attend = blocks_call(fw, layer, count), .memory = memory->data, .bytes = memory->bytes};
    args.attend.accumulate = true;
    if (memory->data)
        fw->ops->attend_apart(fw->device, &args);
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_range *prefix = find_prefix(&pass->rows[i]);
        if (prefix)
            copy_prefix(fw, &pass->rows[i], prefix);
    }
    if (memory->data)
        fw->ops->attend_join(fw->device, &args);
    else
        fw->ops->attend(fw->device, &args.attend);
}

/* --- rows alone ------------------------------------------------------------------------------ */

/* partials[ROWS] = the rows of the sequences' ranges of a kind, ROWS or LOWBIT; others have empty
 * results. False: there are none. */
static bool attend_rows(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t layer,
                        enum kva_kv_range_kind kind)
{
    bool any = false;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        const struct kva_kv_range *range = kva_kv_find_range(rows, kind);
        fw->rows_seqs[i] = (struct kva_rows_seq){
            .row_first = rows->row_first,
            .row_count = rows->row_count,
            .position_first = rows->position_first - rows->rolled,
            .rows = range ? range->rows : NULL,
        };
        any |= range && range->rows;
    }
    if (any)
        kva_forward_attend_rows(fw, &(struct kva_rows_call){.kind = KVA_RANGE_ROWS,
                                                            .rolls = fw->rolls,
                                                            .seqs = fw->rows_seqs,
                                                            .count = pass->rows_count,
                                                            .layer = layer});
    return any;
}

static bool has_lowbit(const struct kva_kv_rows *rows)
{
    return kva_kv_find_range(rows, KVA_RANGE_LOWBIT) != NULL;
}

/* --- side by side ---------------------------------------------------------------------------- */

#define BRANCH_LOWBIT 0u
#define BRANCH_BLOCKS 1u
#define BRANCH_ROWS   2u

/* Whether a sequence has nothing but blocks, and low-bit pages with few rows: what can be attended to
 * in any order, and folded to the same bits. */
static bool is_plain(const struct kva_kv_rows *rows)
{
    for (uint32_t i = 0; i < rows->range_count; i++) {
        const struct kva_kv_range *range = &rows->ranges[i];
        if (range->kind != KVA_RANGE_BLOCKS && range->kind != KVA_RANGE_LOWBIT)
            return false;
        if (range->kind == KVA_RANGE_LOWBIT &&
            (range->format.coding == KVA_CODING_TURNED ||
             (range->rows && range->rows->slots > KVA_ATTEND_SPLIT_TOKENS)))
            return false;
    }
    return !kva_kv_selects_now(rows);
}

/* Begins branches: false, the device has none now, or a layer's calls wait for each other. */
static bool branch_off(struct kva_forward *fw, const struct kva_kv_pass *pass)
{
    bool any = false;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (!is_plain(&pass->rows[i]))
            return false;
        any |= has_lowbit(&pass->rows[i]);
    }
    return any && kva_device_branch(fw->device, BRANCH_BLOCKS);
}

/* --- results from elsewhere ------------------------------------------------------------------ */

static bool is_merged(const struct kva_kv_range *range)
{
    return range->kind == KVA_RANGE_PARTIAL && !range->prefix;
}

/* Whether some of the rows' partial results come from elsewhere. */
static bool has_elsewhere(const struct kva_kv_rows *rows)
{
    for (uint32_t i = 0; i < rows->range_count; i++) {
        if (is_merged(&rows->ranges[i]))
            return true;
    }
    return false;
}

/* Whether a sequence attends to more than blocks and low-bit pages. */
static bool has_rest(const struct kva_kv_rows *rows)
{
    return has_elsewhere(rows) || kva_kv_find_range(rows, KVA_RANGE_ROWS);
}

/* --- low-bit pages --------------------------------------------------------------------------- */

/* Low-bit pages are read by up to two calls in a layer: the first for rows that select before they
 * attend, of which only the selection is wanted, the second for all. */
struct reading {
    bool (*takes_part)(const struct kva_kv_rows *rows);
    bool (*selects)(const struct kva_kv_rows *rows);
    bool clears; /* rows without low-bit pages get an empty result */
    bool gated;  /* of rows with a gate, those for whom it is open */
    bool aside;  /* nobody waits for the selections in this layer */
};

static bool selects_meanwhile(const struct kva_kv_rows *rows)
{
    return rows->fused || (kva_kv_selects_next(rows) && !kva_kv_selects_apart(rows));
}

static const struct reading to_select = {
    .takes_part = kva_kv_selects_now, .selects = kva_kv_selects_now, .gated = true};
static const struct reading to_attend = {
    .takes_part = has_lowbit, .selects = selects_meanwhile, .clears = true, .aside = true};

/* Whether both have low-bit pages, and one call can read them. */
static bool same_format(const struct kva_kv_rows *a, const struct kva_kv_rows *b)
{
    const struct kva_kv_range *x = kva_kv_find_range(a, KVA_RANGE_LOWBIT);
    const struct kva_kv_range *y = kva_kv_find_range(b, KVA_RANGE_LOWBIT);
    return x && y && x->format.bits == y->format.bits &&
           x->format.value_bits == y->format.value_bits && x->format.group == y->format.group &&
           x->format.keys == y->format.keys && x->format.coding == y->format.coding &&
           x->low_offset_bytes == y->low_offset_bytes && has_rest(a) == has_rest(b);
}

static bool format_seen(const struct kva_kv_pass *pass, uint32_t index,
                        const struct reading *reading)
{
    for (uint32_t i = 0; i < index; i++) {
        if (reading->takes_part(&pass->rows[i]) && same_format(&pass->rows[i], &pass->rows[index]))
            return true;
    }
    return false;
}

/* One call per format. False: no sequence takes part. */
static bool read_lowbit(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t layer,
                        const struct reading *reading)
{
    bool any = false;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_range *like = kva_kv_find_range(&pass->rows[i], KVA_RANGE_LOWBIT);
        uint32_t count = 0;
        if (!reading->takes_part(&pass->rows[i]) || format_seen(pass, i, reading))
            continue;
        for (uint32_t j = 0; j < pass->rows_count; j++) {
            const struct kva_kv_rows *rows = &pass->rows[j];
            bool cleared = reading->clears && !any && !has_lowbit(rows);
            if (cleared || (reading->takes_part(rows) && same_format(rows, &pass->rows[i])))
                fw->low_rows[count++] = rows;
        }
        kva_forward_attend_lowbit(fw, &(struct kva_lowbit_call){
                                          .rows = fw->low_rows,
                                          .count = count,
                                          .layer = layer,
                                          .like = like,
                                          .has_rest = has_rest(&pass->rows[i]),
                                          .selects = reading->selects,
                                          .gated = reading->gated,
                                          .aside = reading->aside,
                                      });
        any = true;
    }
    return any;
}

static bool always(const struct kva_kv_rows *rows KVA_UNUSED)
{
    return true;
}

/* Rows that select for the next step from pages of which some attend whole in this one: in a
 * reading of its own, behind that of all: what attention writes on the way is nobody's. Such a page
 * counts twice in the sum that probabilities are divided by, which makes the shares of all tokens
 * smaller alike, in each head. */
static void select_apart(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t layer)
{
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        struct kva_kv_rows one = pass->rows[i];
        struct kva_kv_range candidates = one.candidates;
        if (!kva_kv_selects_apart(&one))
            continue;
        one.row_first += one.select_row;
        one.position_first += one.select_row;
        one.row_count = 1;
        one.select_row = 0;
        one.ranges = &candidates;
        one.range_count = 1;
        fw->low_rows[0] = &one;
        kva_forward_attend_lowbit(fw, &(struct kva_lowbit_call){.rows = fw->low_rows,
                                                                .count = 1,
                                                                .layer = layer,
                                                                .like = &one.ranges[0],
                                                                .selects = always});
    }
}

/* --- merge ----------------------------------------------------------------------------------- */

uint32_t kva_forward_list_rest(const struct kva_forward *fw, const struct kva_kv_rows *rows,
                               struct kva_partial *ret)
{
    uint32_t count = 0;
    ret[count++] = kva_forward_partial_of(fw, KVA_RANGE_BLOCKS, rows->row_first);
    if (kva_kv_find_range(rows, KVA_RANGE_ROWS))
        ret[count++] = kva_forward_partial_of(fw, KVA_RANGE_ROWS, rows->row_first);
    for (uint32_t i = 0; i < rows->range_count; i++) {
        if (!is_merged(&rows->ranges[i]))
            continue;
        kva_kv_layer_await(fw->params.kv, rows, &rows->ranges[i]);
        ret[count++] = rows->ranges[i].partial;
    }
    return count;
}

/* The partial results of `rows` rows from number `row_first` on become their attention. */
static void merge_rows(struct kva_forward *fw, const struct kva_partial *partials, uint32_t count,
                       uint32_t row_first, uint32_t rows)
{
    const struct kva_model_config *c = fw->config;
    size_t row_bytes = (size_t)c->heads * c->head_dim * fw->act_bytes;
    fw->ops->merge(fw->device, &(struct kva_merge_args){
                                   .out = (unsigned char *)fw->scratch[KVA_SCRATCH_ATTN].data +
                                          row_first * row_bytes,
                                   .partials = partials,
                                   .partial_count = count,
                                   .rows = rows,
                                   .heads = c->heads,
                                   .head_dim = c->head_dim,
                               });
}

/* Sequences with partial results from elsewhere by themselves, runs of others in one call. `kinds`:
 * those of which the engine has a result of all rows. */
static void merge(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t rows,
                  const bool *kinds)
{
    struct kva_partial partials[KVA_PARTIALS_MAX];
    uint32_t from = 0;
    for (uint32_t i = 0; i <= pass->rows_count; i++) {
        const struct kva_kv_rows *own = i < pass->rows_count ? &pass->rows[i] : NULL;
        uint32_t end = own ? own->row_first : rows, count = 0;
        if (own && !has_elsewhere(own))
            continue;
        for (uint32_t kind = 0; kind < KVA_RANGE_PARTIAL; kind++) {
            if (kinds[kind])
                partials[count++] = kva_forward_partial_of(fw, (enum kva_kv_range_kind)kind, from);
        }
        if (end > from)
            merge_rows(fw, partials, count, from, end - from);
        if (!own)
            return;
        count = kva_forward_list_rest(fw, own, partials);
        if (has_lowbit(own))
            partials[count++] = kva_forward_partial_of(fw, KVA_RANGE_LOWBIT, own->row_first);
        merge_rows(fw, partials, count, own->row_first, own->row_count);
        from = own->row_first + own->row_count;
    }
}

/* What the rows attended with is shown to the parts. */
static void tell_parts(struct kva_forward *fw, struct kva_kv_pass *pass, uint32_t layer,
                       const bool *kinds)
{
    struct kva_partial partials[KVA_RANGE_PARTIAL];
    uint32_t count = 0;
    for (uint32_t kind = 0; kind < KVA_RANGE_PARTIAL; kind++) {
        if (kinds[kind])
            partials[count++] = kva_forward_partial_of(fw, (enum kva_kv_range_kind)kind, 0);
    }
    const struct kva_kv_attention attention = {.layer = layer,
                                               .q = fw->scratch[KVA_SCRATCH_Q].data,
                                               .partials = partials,
                                               .partial_count = count,
                                               .scale = fw->config->attend_scale};
    kva_kv_layer_attended(fw->params.kv, pass, &attention);
}

/* --- observers ------------------------------------------------------------------------------- */

/* The rows that a sequence's own query chooses, into the observer's memory. What attention writes
 * on the way is overwritten when all attend. */
static const uint32_t *observe_selection(struct kva_forward *fw, const struct kva_kv_rows *rows,
                                         uint32_t *into, uint32_t layer)
{
    struct kva_kv_rows own = *rows;
    struct kva_kv_range ranges[KVA_KV_RANGES_MAX];
    memcpy(ranges, rows->ranges, rows->range_count * sizeof(*ranges));
    own.ranges = ranges;
    own.row_count = 1;
    own.select_row = 0;
    if (!kva_kv_selects(&own))
        return NULL;
    if (kva_kv_selects_now(rows) && kva_kv_select_now_holds(rows)) /* it has just done so */
        return kva_kv_find_rows(rows)->chosen;
    struct kva_kv_range *range =
        &own.ranges[kva_kv_find_range(rows, KVA_RANGE_LOWBIT) - rows->ranges];
    struct kva_row_cache cache = *range->rows;
    cache.chosen = into;
    range->rows = &cache;
    fw->low_rows[0] = &own;
    kva_forward_attend_lowbit(fw, &(struct kva_lowbit_call){.rows = fw->low_rows,
                                                            .count = 1,
                                                            .layer = layer,
                                                            .like = range,
                                                            .has_rest = has_rest(rows),
                                                            .selects = always});
    return into;
}

/* Show sequences whose prompt is in, before they attend or after they have; not those whose rows
 * come again. */
static void observe(struct kva_forward *fw, const struct kva_forward_observer *observer,
                    const struct kva_kv_pass *pass, uint32_t layer, bool after)
{
    const struct kva_model_config *c = fw->config;
    size_t row_bytes = (size_t)c->heads * c->head_dim * fw->act_bytes;
    void (*show)(void *, const struct kva_forward_view *) =
        after ? observer->attended : observer->attends;
    for (uint32_t i = 0; show && i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        size_t at = rows->row_first * row_bytes;
        if (!rows->seq->prefilled || rows->predecode)
            continue;
        struct kva_forward_view view = {
            .layer = layer,
            .rows = rows,
            .q = (const unsigned char *)fw->scratch[KVA_SCRATCH_Q].data + at,
        };
        if (after)
            view.out = (const unsigned char *)fw->scratch[KVA_SCRATCH_ATTN].data + at;
        else
            view.selection = observe_selection(fw, rows, observer->selection, layer);
        show(observer->opaque, &view);
    }
}

/* --- a layer --------------------------------------------------------------------------------- */

/* Whether selecting, fetching and attending are one for these rows: where the device does them in
 * one, and nothing is wanted in between. */
static bool can_fuse(const struct kva_forward *fw, const struct kva_kv_rows *rows)
{
    return fw->ops->attend_select_fetch && kva_kv_selects_now(rows) && !rows->select_next &&
           rows->row_count == 1 && !has_rest(rows);
}

void kva_forward_attend(struct kva_forward *fw, struct kva_kv_pass *pass,
                        const struct kva_forward_observer *observer, uint32_t layer, uint32_t rows)
{
    struct kva_kv *kv = fw->params.kv;
    bool kinds[KVA_RANGE_PARTIAL] = {[KVA_RANGE_BLOCKS] = true};
    kva_kv_layer_query(kv, pass, layer, fw->scratch[KVA_SCRATCH_Q].data);
    for (uint32_t i = 0; !observer && i < pass->rows_count; i++) {
        if (can_fuse(fw, &pass->rows[i]))
            kva_kv_layer_fuse(kv, &pass->rows[i], layer);
    }
    fw->rows_beside = false;
    const bool beside = !observer && branch_off(fw, pass);
    attend_blocks(fw, pass, layer);
    if (beside) {
        (void)kva_device_branch(fw->device, BRANCH_ROWS);
        fw->rows_beside = attend_rows(fw, pass, layer, KVA_RANGE_LOWBIT);
        (void)kva_device_branch(fw->device, BRANCH_LOWBIT);
    }
    attend_behind_prefixes(fw, pass, layer);
    kinds[KVA_RANGE_ROWS] = attend_rows(fw, pass, layer, KVA_RANGE_ROWS);
    if (read_lowbit(fw, pass, layer, &to_select))
        kva_kv_layer_choose(kv, pass, layer);
    if (observer)
        observe(fw, observer, pass, layer, false);
    kinds[KVA_RANGE_LOWBIT] = read_lowbit(fw, pass, layer, &to_attend);
    kva_device_join(fw->device);
    merge(fw, pass, rows, kinds);
    tell_parts(fw, pass, layer, kinds);
    select_apart(fw, pass, layer);
    if (observer)
        observe(fw, observer, pass, layer, true);
}
