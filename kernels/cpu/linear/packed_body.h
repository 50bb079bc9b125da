/* packed_body.h - linear with packed weights for the vector levels; included by packed_avx2.c,
 * packed_avx512.c and packed_avx512vnni.c behind their vectors.
 *
 * Few rows wait for memory: they take the panels one after the other, which is one stream from end
 * to end. More rows are bound by what a core does: they take pairs of panels, so that a number of an
 * activation is loaded once for two products, and while all rows meet a pair the next one is fetched,
 * in the order in which it lies in memory. Codes become bytes in registers, or, where a pair meets
 * many tiles of rows, once for all of them. If there are so many rows that they do not stay in the
 * second-level cache, it is part by part of the depth, and in each of them pair by pair. */
#include "kernels/cpu/linear/packed_tiles.h"

/* Inputs of a pair of panels that all rows meet before the next ones, where it is not expanded: they
 * stay in the first-level cache, or nearly so. */
#define PAIR_DEPTH 2048u

/* Activations that stay in the second-level cache, beside two pairs of panels. */
#define PAIR_X_BYTES (256u * 1024u)

/* Rows whose totals are kept in scratch while the depth is gone through. */
#define BATCH_ROWS 512u

_Static_assert(BATCH_ROWS *KVA_CPU_LINEAR_OUTPUTS * sizeof(float) + TILE_PANELS * EXPANDED_BYTES <=
                   KVA_CPU_SCRATCH_BYTES,
               "linear outgrew the scratch");

/* --- items ------------------------------------------------------------------------------------- */

/* Some rows and panels of an item. */
struct run {
    const struct kva_cpu_linear *item;
    const struct kva_packed_format *format;
    struct method method;
    uint32_t row_first;
    uint32_t rows;
    float *totals;
    uint8_t *expanded; /* NULL: weights are not */
};

/* A row's outputs: totals (+ bias) (+ out). */
INLINE void write_row(const float *totals, const float *bias, bool accumulate, uint32_t outputs,
                      float *out)
{
    uint32_t n = 0;
    for (; n + VL <= outputs; n += VL) {
        vf value = v_load(totals + n);
        if (bias)
            value = v_add(value, v_load(bias + n));
        v_store(out + n, accumulate ? v_add(v_load(out + n), value) : value);
    }
    for (; n < outputs; n++) {
        float value = bias ? totals[n] + bias[n] : totals[n];
        out[n] = accumulate ? out[n] + value : value;
    }
}

/* `outputs` outputs of all rows, from `first` on. */
static void write_out(const struct run *run, uint32_t first, uint32_t outputs,
                      uint32_t totals_stride)
{
    const struct kva_linear_args *args = run->item->args;
    float values[KVA_CPU_LINEAR_OUTPUTS];
    const float *bias = args->bias.data ? values : NULL;
    for (uint32_t n = 0; bias && n < outputs; n++)
        values[n] = kva_f32_at(args->bias.data, args->bias.dtype, first + n);
    for (uint32_t row = 0; row < run->rows; row++)
        write_row(run->totals + (size_t)row * totals_stride, bias, args->accumulate, outputs,
                  (float *)args->out + (size_t)(run->row_first + row) * args->out_stride + first);
}

/* All rows in tiles of one size of panels, up to `most` rows each. */
static void run_rows(const struct run *run, tile_fn *const *tiles, uint32_t most,
                     struct place place)
{
    /* As even a division as there is, since a small tile is a slow one. */
    const uint32_t even = (uint32_t)kva_div_up(run->rows, kva_div_up(run->rows, most));
    for (uint32_t row = 0, rows; row < run->rows; row += rows) {
        const size_t skip = rows = kva_min_u32(even, run->rows - row);
        tiles[rows - 1](&place);
        place.ahead = 0; /* they are in a cache by now */
        place.x += skip * place.x_stride;
        place.x_scales = (const void *)((const char *)place.x_scales + skip * place.x_stride);
        place.x_terms = (const void *)((const char *)place.x_terms + skip * place.x_stride);
        place.totals += skip * place.totals_stride;
        place.next +=
            (size_t)place.next_lines * kva_div_up(place.inputs, KVA_PACKED_ROW_GROUP) * LINE;
    }
}

/* The place of the panel that begins with output `out`, at the beginning of its depth. */
static struct place place_of(const struct run *run, uint32_t out, uint32_t totals_stride)
{
    const struct kva_weight *weight = &run->item->args->weight;
    const uint32_t inputs = weight->cols;
    const size_t row_bytes = kva_packed_x_bytes(run->format, inputs);
    const size_t panel_bytes = kva_packed_panel_bytes(run->format, inputs);
    const int8_t *x = (const int8_t *)run->item->prepared + run->row_first * row_bytes;
    return (struct place){.w = (const uint8_t *)weight->data + out / KVA_PACKED_PANEL * panel_bytes,
                          .panel_bytes = panel_bytes,
                          .x = x,
                          .x_scales = kva_packed_x_scales(x, inputs),
                          .x_terms = kva_packed_x_terms(x, inputs),
                          .x_stride = row_bytes,
                          .ahead = AHEAD_BYTES,
                          .next = weight->data,
                          .inputs = inputs,
                          .totals_stride = totals_stride,
                          .totals = run->totals};
}

/* Few rows: panel by panel, each over all of its depth. */
static void run_stream(const struct run *run)
{
    const struct kva_cpu_linear *item = run->item;
    const size_t panel_bytes = kva_packed_panel_bytes(run->format, item->args->weight.cols);
    const uint32_t panels = (uint32_t)kva_div_up(item->out_end - item->out_first, KVA_PACKED_PANEL);
    const uint8_t *end = place_of(run, item->out_first, KVA_PACKED_PANEL).w + panels * panel_bytes;
    size_t skip = SIZE_MAX;
    if (item->next_out != UINT32_MAX)
        skip = (size_t)(place_of(run, item->next_out, KVA_PACKED_PANEL).w - end);
    for (uint32_t out = item->out_first; out < item->out_end; out += KVA_PACKED_PANEL) {
        struct place place = place_of(run, out, KVA_PACKED_PANEL);
        place.end = end;
        place.end_skip = skip;
        memset(run->totals, 0, (size_t)run->rows * KVA_PACKED_PANEL * sizeof(float));
        run_rows(run, run->method.direct->one, STREAM_ROWS, place);
        write_out(run, out, kva_min_u32(item->out_end - out, KVA_PACKED_PANEL), KVA_PACKED_PANEL);
    }
}

/* The part of the depth that begins with group `group` of activations, of one or two panels. */
static void run_part(const struct run *run, uint32_t panels, uint32_t group, struct place place)
{
    const struct method *method = &run->method;
    const struct tiles *tiles = run->expanded ? method->tiles : method->direct;
    if (run->expanded) {
        for (uint32_t p = 0; p < panels; p++)
            method->expand(place.w + p * place.panel_bytes, place.inputs,
                           run->expanded + p * EXPANDED_BYTES);
        place.w = run->expanded;
        place.panel_bytes = EXPANDED_BYTES;
    }
    place.x += (size_t)group * KVA_PACKED_ROW_GROUP;
    place.x_scales += group;
    place.x_terms += (size_t)group * kva_packed_x_parts(run->format);
    if (panels == 1)
        run_rows(run, tiles->one, STREAM_ROWS, place);
    else
        run_rows(run, tiles->two, TILE_ROWS, place);
}

/* Many rows: part by part of the depth, and in each of them pair by pair of panels, so that the
 * rows' part stays in the second-level cache and a pair's weights in the first. */
static void run_batch(const struct run *run)
{
    const struct kva_cpu_linear *item = run->item;
    const struct kva_packed_format *format = run->format;
    const uint32_t inputs = item->args->weight.cols, outputs = item->out_end - item->out_first;
    const uint32_t stride = (uint32_t)kva_align_up(outputs, KVA_PACKED_PANEL);
    memset(run->totals, 0, (size_t)run->rows * stride * sizeof(float));
    struct place place = place_of(run, item->out_first, stride);
    const uint8_t *w = place.w;
    const size_t part_bytes = DEPTH / format->block_inputs * kva_packed_block_bytes(format);
    /* Lines of a part, shared out among the groups of its tiles. */
    const size_t groups = kva_div_up(run->rows, TILE_ROWS) * (DEPTH / KVA_PACKED_ROW_GROUP);
    place.ahead = 0;
    place.next_stride = place.panel_bytes;
    place.next_lines = (uint32_t)kva_div_up(part_bytes / LINE, groups);
    for (uint32_t at = 0; at < inputs; at += DEPTH, w += part_bytes) {
        place.inputs = kva_min_u32(DEPTH, inputs - at);
        for (uint32_t out = 0, panels; out < stride; out += panels * KVA_PACKED_PANEL) {
            panels = stride - out > KVA_PACKED_PANEL ? TILE_PANELS : 1;
            place.totals = run->totals + out;
            place.w = w + out / KVA_PACKED_PANEL * place.panel_bytes;
            place.next = out + panels * KVA_PACKED_PANEL < stride
                             ? place.w + panels * place.panel_bytes
                             : w + part_bytes;
            run_part(run, panels, at / KVA_PACKED_ROW_GROUP, place);
        }
    }
    write_out(run, item->out_first, outputs, stride);
}

/* More rows than a stream takes, all of which stay in a cache: pair by pair of panels. */
static void run_pairs(const struct run *run)
{
    const struct kva_cpu_linear *item = run->item;
    const struct kva_packed_format *format = run->format;
    const uint32_t inputs = item->args->weight.cols, stride = TILE_PANELS * KVA_PACKED_PANEL;
    const uint32_t depth = run->expanded ? DEPTH : PAIR_DEPTH;
    const size_t part_bytes = depth / format->block_inputs * kva_packed_block_bytes(format);
    const size_t turns = kva_div_up(run->rows, TILE_ROWS);
    const size_t groups = turns * kva_div_up(inputs, KVA_PACKED_ROW_GROUP);
    for (uint32_t out = item->out_first; out < item->out_end; out += stride) {
        const uint32_t panels = item->out_end - out > KVA_PACKED_PANEL ? TILE_PANELS : 1;
        struct place place = place_of(run, out, stride);
        const uint8_t *w = place.w;
        const uint32_t next = out + stride < item->out_end ? out + stride : item->next_out;
        place.ahead = 0;
        if (next != UINT32_MAX) {
            place.next = place_of(run, next, stride).w;
            place.next_lines = (uint32_t)kva_div_up(panels * place.panel_bytes / LINE, groups);
        }
        memset(run->totals, 0, (size_t)run->rows * stride * sizeof(float));
        for (uint32_t at = 0; at < inputs; at += depth, w += part_bytes) {
            place.w = w;
            place.inputs = kva_min_u32(depth, inputs - at);
            run_part(run, panels, at / KVA_PACKED_ROW_GROUP, place);
            place.next +=
                turns * place.next_lines * kva_div_up(place.inputs, KVA_PACKED_ROW_GROUP) * LINE;
        }
        write_out(run, out, kva_min_u32(item->out_end - out, stride), stride);
    }
}

static void run_item(const struct kva_cpu_linear *item)
{
    const enum kva_dtype dtype = item->args->weight.dtype;
    const uint32_t rows = item->row_end - item->row_first;
    struct run run = {.item = item,
                      .format = kva_packed_format(dtype),
                      .method = methods[dtype],
                      .totals = item->scratch};
    /* Groups of 16 have scales and codes that take more instructions each time. */
    const uint32_t direct = run.format->scale_inputs < 32 ? DIRECT_ROWS / 2 : DIRECT_ROWS;
    if (run.method.expand && rows > kva_max_u32(direct, CODED_ROWS))
        run.expanded =
            (uint8_t *)item->scratch + BATCH_ROWS * KVA_CPU_LINEAR_OUTPUTS * sizeof(float);
    /* int8, which has most bytes, waits for memory up to more rows than the others. */
    const uint32_t stream = run.method.expand ? CODED_ROWS : STREAM_ROWS;
    const size_t x_bytes = rows * kva_packed_x_bytes(run.format, item->args->weight.cols);
    for (uint32_t row = item->row_first; row < item->row_end; row += run.rows) {
        run.row_first = row;
        run.rows = kva_min_u32(BATCH_ROWS, item->row_end - row);
        if (rows <= stream)
            run_stream(&run);
        else if (x_bytes <= PAIR_X_BYTES)
            run_pairs(&run);
        else
            run_batch(&run);
    }
}
