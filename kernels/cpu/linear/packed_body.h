/* packed_body.h - linear with packed weights for the vector levels; included by packed_avx2.c,
 * packed_avx512.c and packed_avx512vnni.c behind their vectors.
 *
 * Few rows wait for memory: they take the panels one after the other, which is one stream from end
 * to end, and codes are expanded in registers. With many rows it is pairs of panels, and for each
 * part of their depth all rows, so that what was expanded stays in the first-level cache. */
#include "kernels/cpu/linear/packed_tiles.h"

/* Tiles of rows for which weights are not expanded: less work than to write and read them. */
#define DIRECT_TURNS 2u

/* Rows whose totals are kept in scratch while the depth is gone through. */
#define BATCH_ROWS 512u

/* --- items ------------------------------------------------------------------------------------- */

/* Some rows and panels of an item. */
struct run {
    const struct kva_cpu_linear *item;
    const struct kva_packed_format *format;
    struct method method;
    uint32_t row_first;
    uint32_t rows;
    uint32_t direct; /* rows of a tile, where weights are not expanded; 0: they are */
    float *totals;
    uint8_t *expanded;
};

/* out = totals (+ bias) (+ out), for `outputs` outputs from `first` on. */
static void write_out(const struct run *run, uint32_t first, uint32_t outputs,
                      uint32_t totals_stride)
{
    const struct kva_linear_args *args = run->item->args;
    float bias[KVA_PACKED_PANEL * TILE_PANELS];
    for (uint32_t n = 0; args->bias.data && n < outputs; n++)
        bias[n] = kva_f32_at(args->bias.data, args->bias.dtype, first + n);
    for (uint32_t row = 0; row < run->rows; row++) {
        float *out = (float *)args->out + (size_t)(run->row_first + row) * args->out_stride + first;
        const float *from = run->totals + (size_t)row * totals_stride;
        for (uint32_t n = 0; n < outputs; n++) {
            float value = from[n];
            if (args->bias.data)
                value += bias[n];
            out[n] = args->accumulate ? out[n] + value : value;
        }
    }
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
        place.x += skip * place.x_stride;
        place.x_scales = (const void *)((const char *)place.x_scales + skip * place.x_stride);
        place.x_terms = (const void *)((const char *)place.x_terms + skip * place.x_stride);
        place.totals += skip * place.totals_stride;
    }
}

/* `panels` panels from output `out` on, over all of their depth. */
static void run_panels(const struct run *run, uint32_t out, uint32_t panels)
{
    const struct method *method = &run->method;
    const struct kva_packed_format *format = run->format;
    const struct kva_weight *weight = &run->item->args->weight;
    const uint32_t inputs = weight->cols, parts = kva_packed_x_parts(format);
    const size_t row_bytes = kva_packed_x_bytes(format, inputs);
    const size_t panel_bytes = kva_packed_panel_bytes(format, inputs);
    const int8_t *x = (const int8_t *)run->item->prepared + run->row_first * row_bytes;
    const uint8_t *w = (const uint8_t *)weight->data + out / KVA_PACKED_PANEL * panel_bytes;
    struct place place = {.w = w,
                          .x = x,
                          .x_scales = kva_packed_x_scales(x, inputs),
                          .x_terms = kva_packed_x_terms(x, inputs),
                          .x_stride = row_bytes,
                          .panel_bytes = panel_bytes,
                          .inputs = inputs,
                          .totals_stride = panels * KVA_PACKED_PANEL,
                          .totals = run->totals};
    memset(run->totals, 0, (size_t)run->rows * place.totals_stride * sizeof(float));
    if (run->direct) {
        run_rows(run, method->direct, run->direct, place);
        return;
    }
    if (method->expand)
        place.panel_bytes = EXPANDED_BYTES;
    for (uint32_t at = 0; at < inputs; at += DEPTH) {
        const uint8_t *blocks =
            w + (size_t)(at / format->block_inputs) * kva_packed_block_bytes(format);
        const uint32_t group = at / KVA_PACKED_ROW_GROUP;
        place.w = method->expand ? run->expanded : blocks;
        place.x = x + at;
        place.x_scales = kva_packed_x_scales(x, inputs) + group;
        place.x_terms = kva_packed_x_terms(x, inputs) + (size_t)group * parts;
        place.inputs = kva_min_u32(DEPTH, inputs - at);
        for (uint32_t p = 0; method->expand && p < panels; p++)
            method->expand(blocks + p * panel_bytes, place.inputs,
                           run->expanded + p * EXPANDED_BYTES);
        if (panels == 1)
            run_rows(run, method->tiles->one, STREAM_ROWS, place);
        else
            run_rows(run, method->tiles->two, TILE_ROWS, place);
    }
}

static void run_item(const struct kva_cpu_linear *item)
{
    const enum kva_dtype dtype = item->args->weight.dtype;
    const uint32_t rows = item->row_end - item->row_first;
    const uint32_t direct = dtype == KVA_INT8 ? STREAM_ROWS : DIRECT_ROWS;
    struct run run = {.item = item,
                      .format = kva_packed_format(dtype),
                      .method = methods[dtype],
                      .direct = rows <= direct * DIRECT_TURNS ? direct : 0,
                      .totals = item->scratch};
    run.expanded = (uint8_t *)item->scratch +
                   (size_t)BATCH_ROWS * TILE_PANELS * KVA_PACKED_PANEL * sizeof(float);
    for (uint32_t row = item->row_first; row < item->row_end; row += run.rows) {
        run.row_first = row;
        run.rows = kva_min_u32(BATCH_ROWS, item->row_end - row);
        for (uint32_t out = item->out_first, outputs; out < item->out_end; out += outputs) {
            const uint32_t rest = item->out_end - out;
            const uint32_t panels = rest > KVA_PACKED_PANEL && !run.direct ? TILE_PANELS : 1;
            outputs = kva_min_u32(rest, panels * KVA_PACKED_PANEL);
            run_panels(&run, out, panels);
            write_out(&run, out, outputs, panels * KVA_PACKED_PANEL);
        }
    }
}
