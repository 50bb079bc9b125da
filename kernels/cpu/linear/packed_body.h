/* packed_body.h - linear with packed weights for the vector levels; included by packed_avx2.c,
 * packed_avx512.c and packed_avx512vnni.c behind their vectors.
 *
 * A tile is some rows by one or two panels of 16 outputs: integer sums of a group of weights in
 * registers, beside them the fp32 sums of a group of activations, which each group of weights adds
 * to. So every output has the order of additions that packed.h says, and a tile does not see how
 * weights are stored (packed_expand.h).
 *
 * Few rows wait for memory: they take the panels one after the other, which is one stream from end
 * to end, and codes are expanded in registers. With many rows it is pairs of panels, and for each
 * part of their depth all rows, so that what was expanded stays in the first-level cache. */
#include "kernels/cpu/linear/packed_row.h"
#include "kernels/packed_table.h"

#include "kernels/cpu/linear/packed_expand.h"

/* Inputs that are expanded at a time: a multiple of every block; bytes of a panel of them, with a
 * scale and a min for every 16. */
#define DEPTH 512u
#define EXPANDED_BYTES                                                                             \
    (DEPTH / KVA_PACKED_PIECE_INPUTS * (KVA_PACKED_PIECE_STEPS + 4) * (size_t)LINE)

/* Tiles of rows for which weights are not expanded: less work than to write and read them. */
#define DIRECT_TURNS 2u

/* Rows whose totals are kept in scratch while the depth is gone through. */
#define BATCH_ROWS 512u

/* Sums that must be under way at once for products not to wait for each other. */
#define CHAINS 4

struct place {
    const uint8_t *w; /* the first panel's groups, expanded */
    size_t panel_bytes;
    const int8_t *x; /* prepared rows, from the first of `inputs` on */
    const float *x_scales;
    const union kva_packed_term *x_terms;
    size_t x_stride; /* bytes: of each of the three */
    uint32_t inputs;
    uint32_t totals_stride;
    float *totals; /* [rows][KVA_PACKED_PANEL * panels], added to */
};

typedef void tile_fn(const struct place *place);

/* What tiles differ by: inputs that share a scale, mins, codes of more than 7 bits. */
struct shape {
    uint32_t scale_inputs;
    bool has_min;
    bool wide;
};

/* What begins at `line` of each panel, in whole bytes. */
INLINE void load_lines(const int panels, const struct place *place, const uint8_t *line,
                       vi w[][LINE_VECTORS])
{
    UNROLL
    for (int p = 0; p < panels; p++) {
        UNROLL
        for (size_t v = 0; v < LINE_VECTORS; v++)
            w[p][v] = load_bytes(line + (size_t)p * place->panel_bytes + v * VL * 4);
    }
}

INLINE void load_scales(const int panels, const bool has_min, const struct place *place,
                        const uint8_t *head, struct scales scales[][LINE_VECTORS])
{
    UNROLL
    for (int p = 0; p < panels; p++) {
        const float *line = (const void *)(head + (size_t)p * place->panel_bytes);
        UNROLL
        for (size_t v = 0; v < LINE_VECTORS; v++) {
            scales[p][v].scale = v_load(line + v * VL);
            scales[p][v].min = has_min ? v_load(line + KVA_PACKED_PANEL + v * VL) : v_zero();
        }
    }
}

/* Products of one step, 4 inputs of all outputs and rows, to the sums of `phase`. */
INLINE void tile_step(const int rows, const int panels, const int phase, const bool wide,
                      const struct place *place, vi w[][LINE_VECTORS], const int8_t *x,
                      vi sums[][TILE_PANELS][CHAINS][LINE_VECTORS])
{
    struct codes codes[TILE_PANELS][LINE_VECTORS];
    UNROLL
    for (int p = 0; p < panels; p++) {
        UNROLL
        for (size_t v = 0; v < LINE_VECTORS; v++)
            codes[p][v] = codes_of(w[p][v], wide);
    }
    UNROLL
    for (int m = 0; m < rows; m++) {
        vi four = broadcast_four(x + (size_t)m * place->x_stride);
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (size_t v = 0; v < LINE_VECTORS; v++)
                sums[m][p][phase][v] = add_products(sums[m][p][phase][v], codes[p][v], four, wide);
        }
    }
}

/* What the sums of a group begin with. */
INLINE void tile_begin(const int rows, const int panels, const int phases, const struct shape shape,
                       const struct place *place, const union kva_packed_term *terms,
                       vi sums[][TILE_PANELS][CHAINS][LINE_VECTORS])
{
    UNROLL
    for (int m = 0; m < rows; m++) {
        const union kva_packed_term *term =
            (const void *)((const char *)terms + (size_t)m * place->x_stride);
        const vi first = shape.has_min ? broadcast_int(0) : first_sum(term->offset, shape.wide);
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (int phase = 0; phase < phases; phase++) {
                UNROLL
                for (size_t v = 0; v < LINE_VECTORS; v++)
                    sums[m][p][phase][v] = phase ? broadcast_int(0) : first;
            }
        }
    }
}

/* parts += scale * sums + min * sum of the row: the end of a group of weights. */
INLINE void tile_fold(const int rows, const int panels, const int phases, const bool has_min,
                      const struct place *place, struct scales scales[][LINE_VECTORS],
                      const union kva_packed_term *terms,
                      vi sums[][TILE_PANELS][CHAINS][LINE_VECTORS],
                      vf parts[][TILE_PANELS][LINE_VECTORS])
{
    UNROLL
    for (int m = 0; m < rows; m++) {
        const union kva_packed_term *term =
            (const void *)((const char *)terms + (size_t)m * place->x_stride);
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (size_t v = 0; v < LINE_VECTORS; v++) {
                vi sum = sums[m][p][0][v];
                UNROLL
                for (int phase = 1; phase < phases; phase++)
                    sum = add_ints(sum, sums[m][p][phase][v]);
                parts[m][p][v] = v_fma(float_of_ints(sum), scales[p][v].scale, parts[m][p][v]);
                if (has_min)
                    parts[m][p][v] = v_fma(v_set(term->sum), scales[p][v].min, parts[m][p][v]);
            }
        }
    }
}

/* totals += parts * scale of the row: the end of a group of activations. */
INLINE void tile_total(const int rows, const int panels, const struct place *place,
                       const float *x_scale, vf parts[][TILE_PANELS][LINE_VECTORS])
{
    UNROLL
    for (int m = 0; m < rows; m++) {
        const float *row_scale =
            (const void *)((const char *)x_scale + (size_t)m * place->x_stride);
        float *total = place->totals + (size_t)m * place->totals_stride;
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (size_t v = 0; v < LINE_VECTORS; v++, total += VL)
                v_store(total, v_fma(parts[m][p][v], v_set(*row_scale), v_load(total)));
        }
    }
}

INLINE void zero_parts(const int rows, const int panels, vf parts[][TILE_PANELS][LINE_VECTORS])
{
    UNROLL
    for (int m = 0; m < rows; m++) {
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (size_t v = 0; v < LINE_VECTORS; v++)
                parts[m][p][v] = v_zero();
        }
    }
}

INLINE void tile_run(const int rows, const int panels, const bool stream, const struct shape shape,
                     const struct place *place)
{
    const int beside = rows * panels * (int)LINE_VECTORS;
    const int phases =
        shape.scale_inputs < KVA_PACKED_ROW_GROUP || beside >= CHAINS ? 1 : CHAINS / beside;
    const uint8_t *line = place->w;
    const int8_t *x = place->x;
    const float *x_scale = place->x_scales;
    const union kva_packed_term *terms = place->x_terms;
    for (uint32_t at = 0; at < place->inputs; at += KVA_PACKED_ROW_GROUP, x_scale++) {
        const uint32_t inputs = (uint32_t)kva_align_up(
            kva_min_u32(KVA_PACKED_ROW_GROUP, place->inputs - at), KVA_PACKED_PIECE_INPUTS);
        vf parts[ROWS_MAX][TILE_PANELS][LINE_VECTORS];
        zero_parts(rows, panels, parts);
        for (uint32_t done = 0; done < inputs; done += shape.scale_inputs, terms++) {
            /* Of a group of 128 there may be fewer. */
            const uint32_t steps = shape.scale_inputs < KVA_PACKED_ROW_GROUP
                                       ? shape.scale_inputs / KVA_PACKED_STEP_INPUTS
                                       : inputs / KVA_PACKED_STEP_INPUTS;
            const uint8_t *head = line;
            vi w[TILE_PANELS][LINE_VECTORS];
            vi sums[ROWS_MAX][TILE_PANELS][CHAINS][LINE_VECTORS];
            struct scales scales[TILE_PANELS][LINE_VECTORS];
            tile_begin(rows, panels, phases, shape, place, terms, sums);
            line += shape.has_min ? 2 * LINE : LINE;
            for (uint32_t i = 0; i < steps; i += (uint32_t)phases) {
                UNROLL
                for (int phase = 0; phase < phases; phase++) {
                    if (stream)
                        _mm_prefetch((const char *)line + AHEAD_BYTES, _MM_HINT_T0);
                    load_lines(panels, place, line, w);
                    tile_step(rows, panels, phase, shape.wide, place, w, x, sums);
                    line += LINE;
                    x += KVA_PACKED_STEP_INPUTS;
                }
            }
            load_scales(panels, shape.has_min, place, head, scales);
            tile_fold(rows, panels, phases, shape.has_min, place, scales, terms, sums, parts);
        }
        tile_total(rows, panels, place, x_scale, parts);
    }
}

/* A piece of one panel as it is stored, for a tile that is too small to be worth expanding for. */
INLINE void direct_piece(const int rows, const struct kva_packed_format *format,
                         const struct place *place, const uint8_t *head, uint32_t group,
                         const uint8_t *piece, const int8_t *x, const union kva_packed_term *terms,
                         vf parts[][TILE_PANELS][LINE_VECTORS])
{
    const bool wide = format->low_bits == 8;
    const struct shape shape = {format->scale_inputs, format->has_min, wide};
    const uint32_t steps = format->scale_inputs / KVA_PACKED_STEP_INPUTS;
    UNROLL
    for (uint32_t first = 0; first < KVA_PACKED_PIECE_STEPS; first += steps, group++, terms++) {
        vi sums[ROWS_MAX][TILE_PANELS][CHAINS][LINE_VECTORS];
        struct scales scales[TILE_PANELS][LINE_VECTORS];
        tile_begin(rows, 1, 1, shape, place, terms, sums);
        UNROLL
        for (uint32_t i = 0; i < steps; i++) {
            vi w[TILE_PANELS][LINE_VECTORS];
            UNROLL
            for (size_t v = 0; v < LINE_VECTORS; v++)
                w[0][v] = read_codes(format, piece, first + i, v);
            tile_step(rows, 1, 0, wide, place, w, x + (first + i) * KVA_PACKED_STEP_INPUTS, sums);
        }
        UNROLL
        for (size_t v = 0; v < LINE_VECTORS; v++)
            scales[0][v] = read_scales(format, head, group, v);
        tile_fold(rows, 1, 1, shape.has_min, place, scales, terms, sums, parts);
    }
}

INLINE void direct_run(const int rows, const struct kva_packed_format *format,
                       const struct place *place)
{
    const uint32_t lines = format->low_bits + format->high_bits;
    const uint32_t piece_groups = KVA_PACKED_PIECE_INPUTS / format->scale_inputs;
    const uint8_t *line = place->w, *head = line;
    const float *x_scale = place->x_scales;
    const union kva_packed_term *terms = place->x_terms;
    vf parts[ROWS_MAX][TILE_PANELS][LINE_VECTORS];
    zero_parts(rows, 1, parts);
    for (uint32_t at = 0; at < place->inputs;) {
        const uint32_t in_block = at % format->block_inputs;
        if (in_block == 0) {
            head = line;
            line += format->head_bytes;
            for (uint32_t i = 0; i < format->head_bytes / LINE; i++)
                _mm_prefetch((const char *)head + AHEAD_BYTES + (size_t)i * LINE, _MM_HINT_T0);
        }
        UNROLL
        for (uint32_t i = 0; i < lines; i++)
            _mm_prefetch((const char *)line + AHEAD_BYTES + (size_t)i * LINE, _MM_HINT_T0);
        direct_piece(rows, format, place, head, in_block / format->scale_inputs, line,
                     place->x + at, terms, parts);
        line += (size_t)lines * LINE;
        terms += piece_groups;
        at += KVA_PACKED_PIECE_INPUTS;
        if (at % KVA_PACKED_ROW_GROUP == 0 || at >= place->inputs) {
            tile_total(rows, 1, place, x_scale++, parts);
            zero_parts(rows, 1, parts);
        }
    }
}

/* --- one function for every size and shape of tile --------------------------------------------- */

struct tiles {
    tile_fn *one[STREAM_ROWS]; /* one panel, by rows */
    tile_fn *two[TILE_ROWS];   /* two panels */
};

#define TILE(rows, panels, name, stream, ...)                                                      \
    static void tile_##name##_##rows##_##panels(const struct place *place)                         \
    {                                                                                              \
        tile_run(rows, panels, stream, (struct shape){__VA_ARGS__}, place);                        \
    }

#if STREAM_ROWS == 4
#define EACH_ONE(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#define EACH_TWO(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__)
#elif STREAM_ROWS == 8
#define EACH_TWO(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#define EACH_ONE(X, ...)                                                                           \
    EACH_TWO(X, __VA_ARGS__)                                                                       \
    X(5, __VA_ARGS__) X(6, __VA_ARGS__) X(7, __VA_ARGS__) X(8, __VA_ARGS__)
#else
#define EACH_TWO(X, ...)                                                                           \
    X(1, __VA_ARGS__)                                                                              \
    X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
#define EACH_ONE(X, ...)                                                                           \
    EACH_TWO(X, __VA_ARGS__)                                                                       \
    X(7, __VA_ARGS__)                                                                              \
    X(8, __VA_ARGS__) X(9, __VA_ARGS__) X(10, __VA_ARGS__) X(11, __VA_ARGS__) X(12, __VA_ARGS__)
#endif
#if STREAM_ROWS == 4
#define EACH_DIRECT EACH_ONE
#define DIRECT_ROWS 4u
#else
#define EACH_DIRECT(X, ...)                                                                        \
    X(1, __VA_ARGS__)                                                                              \
    X(2, __VA_ARGS__)                                                                              \
    X(3, __VA_ARGS__)                                                                              \
    X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__) X(7, __VA_ARGS__) X(8, __VA_ARGS__)
#define DIRECT_ROWS 8u
#endif
#define NAME(rows, panels, name) tile_##name##_##rows##_##panels,

/* One panel of int8 comes straight from memory. */
#define TILES(name, stream, ...)                                                                   \
    EACH_ONE(TILE, 1, name, stream, __VA_ARGS__)                                                   \
    EACH_TWO(TILE, 2, name, false, __VA_ARGS__)                                                    \
    static const struct tiles name = {{EACH_ONE(NAME, 1, name)}, {EACH_TWO(NAME, 2, name)}};

TILES(tiles_128, true, 128, false, true)
TILES(tiles_32_wide, false, 32, false, true)
TILES(tiles_32, false, 32, false, false)
TILES(tiles_32_min, false, 32, true, false)
TILES(tiles_16, false, 16, false, false)
TILES(tiles_16_min, false, 16, true, false)

#define DIRECT_TILE(rows, name, dtype)                                                             \
    static void direct_##name##_##rows(const struct place *place)                                  \
    {                                                                                              \
        direct_run(rows, &kva_packed_table[dtype - KVA_INT8], place);                              \
    }
#define DIRECT_NAME(rows, name) direct_##name##_##rows,
#define DIRECT(name, dtype)                                                                        \
    EACH_DIRECT(DIRECT_TILE, name, dtype)                                                          \
    static tile_fn *const direct_##name[] = {EACH_DIRECT(DIRECT_NAME, name)};

DIRECT(q4_0, KVA_Q4_0)
DIRECT(q4_1, KVA_Q4_1)
DIRECT(q5_0, KVA_Q5_0)
DIRECT(q5_1, KVA_Q5_1)
DIRECT(q8_0, KVA_Q8_0)
DIRECT(q2_k, KVA_Q2_K)
DIRECT(q3_k, KVA_Q3_K)
DIRECT(q4_k, KVA_Q4_K)
DIRECT(q5_k, KVA_Q5_K)
DIRECT(q6_k, KVA_Q6_K)

struct method {
    expand_fn *expand;         /* NULL: weights lie in memory as tiles want them */
    const struct tiles *tiles; /* of what is expanded */
    tile_fn *const *direct;    /* of one panel as it is stored, by rows up to DIRECT_ROWS */
};

static const struct method methods[KVA_DTYPE_END] = {
    [KVA_INT8] = {NULL, &tiles_128, tiles_128.one},
    [KVA_Q4_0] = {expand_q4_0, &tiles_32, direct_q4_0},
    [KVA_Q4_1] = {expand_q4_1, &tiles_32_min, direct_q4_1},
    [KVA_Q5_0] = {expand_q5_0, &tiles_32, direct_q5_0},
    [KVA_Q5_1] = {expand_q5_1, &tiles_32_min, direct_q5_1},
    [KVA_Q8_0] = {expand_q8_0, &tiles_32_wide, direct_q8_0},
    [KVA_Q2_K] = {expand_q2_k, &tiles_16_min, direct_q2_k},
    [KVA_Q3_K] = {expand_q3_k, &tiles_16, direct_q3_k},
    [KVA_Q4_K] = {expand_q4_k, &tiles_32_min, direct_q4_k},
    [KVA_Q5_K] = {expand_q5_k, &tiles_32_min, direct_q5_k},
    [KVA_Q6_K] = {expand_q6_k, &tiles_16, direct_q6_k},
};

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
