/* packed_tiles.h - tiles of linear with packed weights, and the table of them by format; included by
 * packed_body.h.
 *
 * A tile is some rows by one or two panels of 16 outputs: integer sums of a group of weights in
 * registers, beside them the fp32 sums of a group of activations, which each group of weights adds
 * to. So every output has the order of additions that packed.h says, and a tile does not see how
 * weights are stored (packed_expand.h). */
#include "kernels/cpu/linear/packed_row.h"
#include "kernels/cpu/simd/prefetch.h"
#include "kernels/packed_table.h"

#include "kernels/cpu/linear/packed_expand.h"

/* Every size of tile, instrumented, takes a compiler minutes: two sizes are the same code. */
#if defined(__has_feature)
#define INSTRUMENTED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INSTRUMENTED 1
#else
#define INSTRUMENTED 0
#endif
#if INSTRUMENTED
#undef STREAM_ROWS
#undef TILE_ROWS
#define STREAM_ROWS 2
#define TILE_ROWS   1
#endif

/* Inputs that are expanded at a time: a multiple of every block; bytes of a panel of them, with a
 * scale and a min for every 16. */
#define DEPTH 512u
#define EXPANDED_BYTES                                                                             \
    (DEPTH / KVA_PACKED_PIECE_INPUTS * (KVA_PACKED_PIECE_STEPS + 4) * (size_t)LINE)

/* Sums that must be under way at once for products not to wait for each other. */
#define CHAINS 4

struct place {
    const uint8_t *w; /* the first panel's groups, expanded */
    size_t panel_bytes;
    const int8_t *x; /* prepared rows, from the first of `inputs` on */
    const float *x_scales;
    const union kva_packed_term *x_terms;
    size_t x_stride;    /* bytes: of each of the three */
    size_t ahead;       /* bytes: how far ahead of what is read one panel is prefetched; 0: not */
    const uint8_t *end; /* of what is read in one stream */
    size_t end_skip;    /* bytes from there to where the next one begins; SIZE_MAX: there is none */
    const uint8_t *next; /* what comes next: it is prefetched, line by line */
    size_t next_stride;  /* bytes to where the same is done for a second panel; 0: nowhere */
    uint32_t next_lines; /* of each, for every group of activations; 0: nothing */
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

/* Asks for the lines of what comes next that fall to a group of activations; the next of them. */
INLINE const uint8_t *prefetch_next(const struct place *place, const uint8_t *next)
{
    for (uint32_t i = 0; i < place->next_lines; i++, next += LINE) {
        _mm_prefetch((const char *)next, _MM_HINT_T1);
        if (place->next_stride)
            _mm_prefetch((const char *)next + place->next_stride, _MM_HINT_T1);
    }
    return next;
}

/* How far ahead of `line` is prefetched from now on: what would be behind the stream's end is where
 * the next one is. */
INLINE size_t step_over(const struct place *place, const uint8_t *line, size_t ahead,
                        const uint8_t **end)
{
    if (ahead == 0 || line + ahead < *end)
        return ahead;
    *end = (const uint8_t *)UINTPTR_MAX;
    return place->end_skip == SIZE_MAX ? 0 : ahead + place->end_skip;
}

INLINE void tile_run(const int rows, const int panels, const bool stream, const struct shape shape,
                     const struct place *place)
{
    const int beside = rows * panels * (int)LINE_VECTORS;
    const int phases =
        shape.scale_inputs < KVA_PACKED_ROW_GROUP || beside >= CHAINS ? 1 : CHAINS / beside;
    size_t ahead = stream && panels == 1 ? place->ahead : 0;
    const uint8_t *line = place->w, *next = place->next, *end = place->end;
    const int8_t *x = place->x;
    const float *x_scale = place->x_scales;
    const union kva_packed_term *terms = place->x_terms;
    for (uint32_t at = 0; at < place->inputs; at += KVA_PACKED_ROW_GROUP, x_scale++) {
        const uint32_t inputs = (uint32_t)kva_align_up(
            kva_min_u32(KVA_PACKED_ROW_GROUP, place->inputs - at), KVA_PACKED_PIECE_INPUTS);
        vf parts[ROWS_MAX][TILE_PANELS][LINE_VECTORS];
        zero_parts(rows, panels, parts);
        next = prefetch_next(place, next);
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
                    if (stream && panels == 1 && ahead)
                        kva_prefetch_ahead(line + ahead);
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
        ahead = step_over(place, line, ahead, &end);
    }
}

/* A piece of each panel as it is stored, for tiles that are too few to be worth expanding for. */
INLINE void direct_piece(const int rows, const int panels, const struct kva_packed_format *format,
                         const struct place *place, const uint8_t *head,
                         struct scales block[][LINE_VECTORS], uint32_t group, const uint8_t *piece,
                         const int8_t *x, const union kva_packed_term *terms,
                         vf parts[][TILE_PANELS][LINE_VECTORS])
{
    const bool wide = format->low_bits == 8;
    const struct shape shape = {format->scale_inputs, format->has_min, wide};
    const uint32_t steps = format->scale_inputs / KVA_PACKED_STEP_INPUTS;
    UNROLL
    for (uint32_t first = 0; first < KVA_PACKED_PIECE_STEPS; first += steps, group++, terms++) {
        vi sums[ROWS_MAX][TILE_PANELS][CHAINS][LINE_VECTORS];
        struct scales scales[TILE_PANELS][LINE_VECTORS];
        tile_begin(rows, panels, 1, shape, place, terms, sums);
        UNROLL
        for (uint32_t i = 0; i < steps; i++) {
            vi w[TILE_PANELS][LINE_VECTORS];
            UNROLL
            for (int p = 0; p < panels; p++) {
                UNROLL
                for (size_t v = 0; v < LINE_VECTORS; v++)
                    w[p][v] =
                        read_codes(format, piece + (size_t)p * place->panel_bytes, first + i, v);
            }
            tile_step(rows, panels, 0, wide, place, w, x + (first + i) * KVA_PACKED_STEP_INPUTS,
                      sums);
        }
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (size_t v = 0; v < LINE_VECTORS; v++)
                scales[p][v] = read_scales(format, head + (size_t)p * place->panel_bytes,
                                           block[p][v], group, v);
        }
        tile_fold(rows, panels, 1, shape.has_min, place, scales, terms, sums, parts);
    }
}

INLINE void direct_run(const int rows, const int panels, const struct kva_packed_format *format,
                       const struct place *place)
{
    const uint32_t lines = format->low_bits + format->high_bits;
    const uint32_t piece_groups = KVA_PACKED_PIECE_INPUTS / format->scale_inputs;
    size_t ahead = panels == 1 ? place->ahead : 0;
    const uint8_t *line = place->w, *head = line, *next = place->next, *end = place->end;
    struct scales block[TILE_PANELS][LINE_VECTORS] = {{{v_zero(), v_zero()}}};
    const float *x_scale = place->x_scales;
    const union kva_packed_term *terms = place->x_terms;
    vf parts[ROWS_MAX][TILE_PANELS][LINE_VECTORS];
    zero_parts(rows, panels, parts);
    for (uint32_t at = 0; at < place->inputs;) {
        const uint32_t in_block = at % format->block_inputs;
        if (in_block == 0) {
            head = line;
            line += format->head_bytes;
            UNROLL
            for (int p = 0; p < panels; p++) {
                UNROLL
                for (size_t v = 0; v < LINE_VECTORS; v++)
                    block[p][v] = read_block(format, head + (size_t)p * place->panel_bytes, v);
            }
            for (uint32_t i = 0; ahead && i < format->head_bytes / LINE; i++)
                kva_prefetch_ahead(head + ahead + (size_t)i * LINE);
        }
        UNROLL
        for (uint32_t i = 0; ahead && i < lines; i++)
            kva_prefetch_ahead(line + ahead + (size_t)i * LINE);
        direct_piece(rows, panels, format, place, head, block, in_block / format->scale_inputs,
                     line, place->x + at, terms, parts);
        line += (size_t)lines * LINE;
        terms += piece_groups;
        at += KVA_PACKED_PIECE_INPUTS;
        if (at % KVA_PACKED_ROW_GROUP == 0 || at >= place->inputs) {
            next = prefetch_next(place, next);
            tile_total(rows, panels, place, x_scale++, parts);
            zero_parts(rows, panels, parts);
            ahead = step_over(place, line, ahead, &end);
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

#if STREAM_ROWS == 2
#define EACH_ONE(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__)
#elif STREAM_ROWS == 4
#define EACH_ONE(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#else
#define EACH_ONE(X, ...)                                                                           \
    X(1, __VA_ARGS__)                                                                              \
    X(2, __VA_ARGS__)                                                                              \
    X(3, __VA_ARGS__)                                                                              \
    X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__) X(7, __VA_ARGS__) X(8, __VA_ARGS__)
#endif
#if TILE_ROWS == 1
#define EACH_TWO(X, ...) X(1, __VA_ARGS__)
#elif TILE_ROWS == 2
#define EACH_TWO(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__)
#elif TILE_ROWS == 4
#define EACH_TWO(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#else
#define EACH_TWO(X, ...)                                                                           \
    X(1, __VA_ARGS__)                                                                              \
    X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
#endif
#define NAME(rows, panels, name) tile_##name##_##rows##_##panels,

/* What lies in memory as it is multiplied, int8, comes straight from there. */
#define TILES(name, stream, ...)                                                                   \
    EACH_ONE(TILE, 1, name, stream, __VA_ARGS__)                                                   \
    EACH_TWO(TILE, 2, name, stream, __VA_ARGS__)                                                   \
    static const struct tiles name = {{EACH_ONE(NAME, 1, name)}, {EACH_TWO(NAME, 2, name)}};

TILES(tiles_128, true, 128, false, true)
TILES(tiles_32_wide, false, 32, false, true)
TILES(tiles_32, false, 32, false, false)
TILES(tiles_32_min, false, 32, true, false)
TILES(tiles_16, false, 16, false, false)
TILES(tiles_16_min, false, 16, true, false)

#define DIRECT_TILE(rows, panels, name, dtype)                                                     \
    static void direct_##name##_##rows##_##panels(const struct place *place)                       \
    {                                                                                              \
        direct_run(rows, panels, &kva_packed_table[dtype - KVA_INT8], place);                      \
    }
#define DIRECT_NAME(rows, panels, name) direct_##name##_##rows##_##panels,
/* Where codes come in a stream or are expanded, nothing meets two panels of them. */
#if DIRECT_ROWS > CODED_ROWS
#define EACH_PAIR EACH_TWO
#else
#define EACH_PAIR(X, ...)
#endif
#define DIRECT(name, dtype)                                                                        \
    EACH_ONE(DIRECT_TILE, 1, name, dtype)                                                          \
    EACH_PAIR(DIRECT_TILE, 2, name, dtype)                                                         \
    static const struct tiles direct_##name = {{EACH_ONE(DIRECT_NAME, 1, name)},                   \
                                               {EACH_PAIR(DIRECT_NAME, 2, name)}};

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
    expand_fn *expand;          /* NULL: weights lie in memory as tiles want them */
    const struct tiles *tiles;  /* of what is expanded */
    const struct tiles *direct; /* of what is stored */
};

static const struct method methods[KVA_DTYPE_END] = {
    [KVA_INT8] = {NULL, &tiles_128, &tiles_128},
    [KVA_Q4_0] = {expand_q4_0, &tiles_32, &direct_q4_0},
    [KVA_Q4_1] = {expand_q4_1, &tiles_32_min, &direct_q4_1},
    [KVA_Q5_0] = {expand_q5_0, &tiles_32, &direct_q5_0},
    [KVA_Q5_1] = {expand_q5_1, &tiles_32_min, &direct_q5_1},
    [KVA_Q8_0] = {expand_q8_0, &tiles_32_wide, &direct_q8_0},
    [KVA_Q2_K] = {expand_q2_k, &tiles_16_min, &direct_q2_k},
    [KVA_Q3_K] = {expand_q3_k, &tiles_16, &direct_q3_k},
    [KVA_Q4_K] = {expand_q4_k, &tiles_32_min, &direct_q4_k},
    [KVA_Q5_K] = {expand_q5_k, &tiles_32_min, &direct_q5_k},
    [KVA_Q6_K] = {expand_q6_k, &tiles_16, &direct_q6_k},
};
