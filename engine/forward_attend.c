/* forward_attend.c - a layer's attention: the ranges in which the sequences' tokens lie
 * (engine/kv/range.h), grouped by the operator and format that attend to them. Each operator gives
 * one partial result of all rows; one merge adds them up. */
#include "engine/forward_internal.h"

#include "engine/kv/parts/lowbit.h"

/* The partial result of some rows, from the named pieces of scratch. */
static struct kva_partial partial_at(const struct kva_forward *fw, enum kva_scratch_name a)
{
    return (struct kva_partial){
        .a = fw->scratch[a].data,
        .m = fw->scratch[a + 1].data,
        .e = fw->scratch[a + 2].data,
    };
}

/* Attention over what is in 16-bit blocks. */
static void attend_blocks(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t layer)
{
    const struct kva_model_config *c = fw->config;
    uint32_t count = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        uint32_t end = rows->position_first + rows->row_count;
        fw->attend_seqs[i] = (struct kva_attend_seq){
            .row_first = rows->row_first,
            .row_count = rows->row_count,
            .position_first = rows->position_first,
            .range_first = count,
        };
        for (uint32_t j = 0; j < rows->range_count; j++) {
            const struct kva_kv_range *range = &rows->ranges[j];
            uint32_t first = range->page_first * KVA_PAGE_TOKENS;
            if (range->kind != KVA_RANGE_BLOCKS)
                continue;
            fw->attend_ranges[count++] = (struct kva_attend_range){
                .format = KVA_KV_16BIT,
                .token_first = first,
                .token_count = kva_min_u32(range->page_end * KVA_PAGE_TOKENS, end) - first,
                .block_first = (uint32_t)(rows->blocks - fw->blocks) + range->page_first,
            };
        }
        fw->attend_seqs[i].range_count = count - fw->attend_seqs[i].range_first;
    }
    fw->ops->attend(fw->device, &(struct kva_attend_args){
                                    .q = fw->scratch[KVA_SCRATCH_Q].data,
                                    .out = partial_at(fw, KVA_SCRATCH_PARTIAL_A),
                                    .seqs = fw->attend_seqs,
                                    .ranges = fw->attend_ranges,
                                    .blocks = fw->blocks,
                                    .seq_count = pass->rows_count,
                                    .q_stride = c->heads * c->head_dim,
                                    .heads = c->heads,
                                    .kv_heads = c->kv_heads,
                                    .head_dim = c->head_dim,
                                    .window = c->layer_window[layer],
                                    .kv_dtype = fw->params.kv->shape.dtype,
                                    .scale = c->attend_scale,
                                });
}

/* What attend_lowbit attends to: low-bit pages with the rows that replace some of their tokens, or
 * rows alone. NULL: neither. */
static const struct kva_kv_range *lowbit_range(const struct kva_kv_rows *rows)
{
    const struct kva_kv_range *range = kva_kv_find_range(rows, KVA_RANGE_LOWBIT);
    return range ? range : kva_kv_find_range(rows, KVA_RANGE_ROWS);
}

/* Rows alone are read by a call of any format. */
static struct kva_lowbit_format format_of(const struct kva_kv_rows *rows)
{
    return kva_kv_find_range(rows, KVA_RANGE_LOWBIT)
               ? kva_kv_lowbit_format(&rows->seq->spec)
               : (struct kva_lowbit_format){.bits = 2, .group = KVA_PAGE_TOKENS};
}

/* Whether the low-bit ranges of both can be attended to by one call. */
static bool same_format(const struct kva_kv_rows *a, const struct kva_kv_rows *b)
{
    struct kva_lowbit_format x = format_of(a), y = format_of(b);
    return x.bits == y.bits && x.group == y.group &&
           a->seq->spec.skip_layers == b->seq->spec.skip_layers;
}

/* The two times at which low-bit pages are read in a layer. */
enum lowbit_time {
    TO_SELECT, /* by rows that select before they attend: only the selection is wanted */
    TO_ATTEND, /* by all rows; some select for the next step along the way */
};

/* Whether the rows' sequence has rows fetched for this layer. */
static bool fetches_rows(const struct kva_kv_rows *rows)
{
    const struct kva_row_cache *cache = kva_kv_find_rows(rows);
    return cache && cache->k > 0;
}

static bool takes_part(const struct kva_kv_rows *rows, enum lowbit_time time)
{
    return lowbit_range(rows) &&
           (time == TO_ATTEND || (rows->select_now && !rows->fused && fetches_rows(rows)));
}

/* Whether selecting, fetching and attending are one for these rows: where the device reaches the
 * host tier by itself, and nothing is wanted in between. */
static bool is_fused(const struct kva_forward *fw, const struct kva_kv_rows *rows,
                     const struct kva_forward_observer *observer)
{
    return kva_device_get_info(fw->device)->host_readable && !observer && rows->select_now &&
           !rows->select_next && fetches_rows(rows);
}

/* Whether an entry before `index` has low-bit pages of the same format. */
static bool format_seen(const struct kva_kv_pass *pass, uint32_t index, enum lowbit_time time)
{
    for (uint32_t i = 0; i < index; i++) {
        if (takes_part(&pass->rows[i], time) && same_format(&pass->rows[i], &pass->rows[index]))
            return true;
    }
    return false;
}

/* Describe the sequences whose low-bit pages have the format of entry `like`; with `others`, those
 * without low-bit pages too. Returns their number. */
static uint32_t list_lowbit(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t layer,
                            uint32_t like, bool others, enum lowbit_time time)
{
    uint32_t count = 0, block = 0;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        const struct kva_kv_rows *rows = &pass->rows[i];
        const struct kva_kv_range *range = lowbit_range(rows);
        bool selects = time == TO_SELECT ? rows->select_now : rows->select_next || rows->fused;
        bool listed = takes_part(rows, time) && same_format(rows, &pass->rows[like]);
        if (!listed && (range || !others))
            continue;
        uint32_t pages = range ? range->page_end : 0;
        if (rows->fused)
            fw->low_now[count] = kva_kv_layer_now(fw->params.kv, rows, layer);
        fw->low_seqs[count] = (struct kva_select_seq){
            .row_first = rows->row_first,
            .row_count = rows->row_count,
            .position_first = rows->position_first,
            .block_first = block,
            .page_count = pages,
            .rows = range ? range->rows : NULL,
            .select_row = selects && fetches_rows(rows) ? rows->select_row : KVA_NO_ROW,
            .now = rows->fused ? &fw->low_now[count] : NULL,
        };
        count++;
        for (uint32_t j = 0; j < pages; j++)
            fw->low_blocks[block++] = range->low[j];
    }
    return count;
}

/* Attention of the first `count` of low_seqs, all in the format of `like`. */
static void call_lowbit(struct kva_forward *fw, const struct kva_kv_rows *like, uint32_t count,
                        uint32_t layer)
{
    const struct kva_model_config *c = fw->config;
    const struct kva_kv *kv = fw->params.kv;
    const struct kva_partial rest = partial_at(fw, KVA_SCRATCH_PARTIAL_A);
    kva_attend_select(fw->device, &(struct kva_attend_select_fetch_args){
                                      .q = fw->scratch[KVA_SCRATCH_Q].data,
                                      .out = partial_at(fw, KVA_SCRATCH_LOWBIT_A),
                                      .rest = &rest,
                                      .seqs = fw->low_seqs,
                                      .blocks = fw->low_blocks,
                                      .block_offset_bytes =
                                          kva_kv_find_range(like, KVA_RANGE_LOWBIT)
                                              ? kva_kv_lowbit_offset(kv, &like->seq->spec, layer)
                                              : 0,
                                      .scratch = fw->scratch[KVA_SCRATCH_SELECT].data,
                                      .scratch_bytes = fw->scratch[KVA_SCRATCH_SELECT].bytes,
                                      .seq_count = count,
                                      .q_stride = c->heads * c->head_dim,
                                      .heads = c->heads,
                                      .kv_heads = c->kv_heads,
                                      .head_dim = c->head_dim,
                                      .window = c->layer_window[layer],
                                      .kv_dtype = kv->shape.dtype,
                                      .format = format_of(like),
                                      .scale = c->attend_scale,
                                  });
}

/* Attention over low-bit pages and hot rows, one call per format. TO_ATTEND gives every row of the
 * pass a result. False: no sequence takes part. */
static bool attend_lowbit(struct kva_forward *fw, const struct kva_kv_pass *pass, uint32_t layer,
                          enum lowbit_time time)
{
    bool any = false;
    for (uint32_t i = 0; i < pass->rows_count; i++) {
        if (!takes_part(&pass->rows[i], time) || format_seen(pass, i, time))
            continue;
        uint32_t count = list_lowbit(fw, pass, layer, i, time == TO_ATTEND && !any, time);
        any = true;
        call_lowbit(fw, &pass->rows[i], count, layer);
    }
    return any;
}

/* The rows that a sequence's own query chooses, into the observer's memory. What attention writes
 * on the way is overwritten by TO_ATTEND. */
static const uint32_t *observe_selection(struct kva_forward *fw, const struct kva_kv_rows *rows,
                                         uint32_t *into, uint32_t layer)
{
    if (!fetches_rows(rows))
        return NULL;
    if (rows->select_now) /* it has just done so */
        return kva_kv_find_rows(rows)->chosen;
    const struct kva_kv_range *range = lowbit_range(rows);
    struct kva_row_cache hot = *range->rows;
    hot.chosen = into;
    fw->low_seqs[0] = (struct kva_select_seq){
        .row_first = rows->row_first,
        .row_count = 1,
        .position_first = rows->position_first,
        .page_count = range->page_end,
        .rows = &hot,
        .select_row = 0,
    };
    for (uint32_t i = 0; i < range->page_end; i++)
        fw->low_blocks[i] = range->low[i];
    call_lowbit(fw, rows, 1, layer);
    return into;
}

/* Show sequences whose prompt is in, before they attend or after they have. */
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
        if (!rows->seq->prefilled)
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

void kva_forward_attend(struct kva_forward *fw, struct kva_kv_pass *pass,
                        const struct kva_forward_observer *observer, uint32_t layer, uint32_t rows)
{
    const struct kva_model_config *c = fw->config;
    attend_blocks(fw, pass, layer);
    kva_kv_layer_query(fw->params.kv, pass, layer, fw->scratch[KVA_SCRATCH_Q].data);
    for (uint32_t i = 0; i < pass->rows_count; i++)
        pass->rows[i].fused = is_fused(fw, &pass->rows[i], observer);
    if (attend_lowbit(fw, pass, layer, TO_SELECT))
        kva_kv_layer_choose(fw->params.kv, pass, layer);
    if (observer)
        observe(fw, observer, pass, layer, false);
    struct kva_partial partials[2] = {partial_at(fw, KVA_SCRATCH_PARTIAL_A)};
    uint32_t partial_count = 1;
    if (attend_lowbit(fw, pass, layer, TO_ATTEND))
        partials[partial_count++] = partial_at(fw, KVA_SCRATCH_LOWBIT_A);
    fw->ops->merge(fw->device, &(struct kva_merge_args){
                                   .out = fw->scratch[KVA_SCRATCH_ATTN].data,
                                   .partials = partials,
                                   .partial_count = partial_count,
                                   .rows = rows,
                                   .heads = c->heads,
                                   .head_dim = c->head_dim,
                               });
    if (observer)
        observe(fw, observer, pass, layer, true);
}
