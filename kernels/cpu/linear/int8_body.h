/* int8_body.h - linear with weights in int8 for the vector levels; included by
 * linear_int8_avx2.c, linear_int8_avx512.c and linear_int8_avx512vnni.c behind their vectors.
 *
 * A tile is some rows by one or two panels of 16 outputs: integer sums of a group in registers, and
 * beside them the fp32 totals that each group's end adds to. So a sum never leaves the registers
 * before it is done, and every output has the order of additions that int8.h says.
 *
 * The first rows of an item wait for memory: they take the panels one after the other, which is one
 * stream from end to end. For the rows after them the item's weights lie in the second-level
 * cache. */
#include "kernels/cpu/linear/int8_row.h"

/* What is prefetched lies so far ahead: microseconds of memory's time. */
#define AHEAD_BYTES 8192u

/* Vectors of a panel. */
#define PANEL_VECTORS (KVA_INT8_PANEL / VL)

#define GROUP_STEPS   (KVA_INT8_GROUP / KVA_INT8_STEP_INPUTS)

/* Loops over a tile have constant bounds and go altogether: what they index are registers. */
#define UNROLL _Pragma("GCC unroll 16")

/* Sums that must be under way at once for products not to wait for each other. */
#define CHAINS 4

struct place {
    const uint8_t *w; /* the first panel */
    size_t panel_bytes;
    const int8_t *x; /* prepared rows */
    size_t x_stride; /* bytes */
    uint32_t inputs;
    float *totals; /* out: [rows][KVA_INT8_PANEL * panels] */
};

typedef void tile_fn(const struct place *place);

/* One step of `phase`: 4 inputs of all outputs and rows. */
INLINE void tile_step(const int rows, const int panels, const int phase, const struct place *place,
                      const uint8_t *line, const int8_t *x,
                      vi sums[][TILE_PANELS][CHAINS][PANEL_VECTORS])
{
    struct codes w[TILE_PANELS][PANEL_VECTORS];
    UNROLL
    for (int p = 0; p < panels; p++) {
        UNROLL
        for (size_t v = 0; v < PANEL_VECTORS; v++)
            w[p][v] = load_codes(line + (size_t)p * place->panel_bytes + v * VL * 4);
    }
    UNROLL
    for (int m = 0; m < rows; m++) {
        vi four = broadcast_four(x + (size_t)m * place->x_stride);
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (size_t v = 0; v < PANEL_VECTORS; v++)
                sums[m][p][phase][v] = add_products(sums[m][p][phase][v], w[p][v], four);
        }
    }
}

INLINE void tile_run(const int rows, const int panels, const bool stream, const struct place *place)
{
    const int beside = rows * panels * (int)PANEL_VECTORS;
    const int phases = beside >= CHAINS ? 1 : CHAINS / beside;
    const uint32_t groups = kva_int8_groups(place->inputs);
    vf totals[ROWS_MAX][TILE_PANELS][PANEL_VECTORS];
    UNROLL
    for (int m = 0; m < rows; m++) {
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (size_t v = 0; v < PANEL_VECTORS; v++)
                totals[m][p][v] = v_zero();
        }
    }
    const uint8_t *line = place->w;
    const int8_t *x = place->x;
    const struct kva_int8_x_group *x_groups = kva_int8_x_groups(place->x, place->inputs);
    for (uint32_t g = 0; g < groups; g++) {
        const uint8_t *scales = line;
        const uint32_t inputs = place->inputs - g * KVA_INT8_GROUP;
        const uint32_t steps =
            inputs >= KVA_INT8_GROUP
                ? GROUP_STEPS
                : (uint32_t)kva_div_up(inputs, KVA_PACKED_PIECE_INPUTS) * KVA_PACKED_PIECE_STEPS;
        const struct kva_int8_x_group *x_group[ROWS_MAX];
        vi sums[ROWS_MAX][TILE_PANELS][CHAINS][PANEL_VECTORS];
        UNROLL
        for (int m = 0; m < rows; m++) {
            x_group[m] = (const void *)((const char *)(x_groups + g) + (size_t)m * place->x_stride);
            UNROLL
            for (int p = 0; p < panels; p++) {
                UNROLL
                for (int phase = 0; phase < phases; phase++) {
                    UNROLL
                    for (size_t v = 0; v < PANEL_VECTORS; v++)
                        sums[m][p][phase][v] =
                            phase ? broadcast_int(0) : first_sum(x_group[m]->offset);
                }
            }
        }
        line += KVA_INT8_LINE_BYTES;
        uint32_t i = 0;
        for (; i + (uint32_t)phases <= steps; i += (uint32_t)phases) {
            UNROLL
            for (int phase = 0; phase < phases; phase++) {
                if (stream)
                    _mm_prefetch((const char *)line + AHEAD_BYTES, _MM_HINT_T0);
                tile_step(rows, panels, phase, place, line, x, sums);
                line += KVA_INT8_LINE_BYTES;
                x += KVA_INT8_STEP_INPUTS;
            }
        }
        for (; i < steps; i++) {
            tile_step(rows, panels, 0, place, line, x, sums);
            line += KVA_INT8_LINE_BYTES;
            x += KVA_INT8_STEP_INPUTS;
        }
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (size_t v = 0; v < PANEL_VECTORS; v++) {
                vf scale =
                    v_load((const float *)(const void *)(scales + (size_t)p * place->panel_bytes +
                                                         v * VL * 4));
                UNROLL
                for (int m = 0; m < rows; m++) {
                    vi sum = sums[m][p][0][v];
                    UNROLL
                    for (int phase = 1; phase < phases; phase++)
                        sum = add_ints(sum, sums[m][p][phase][v]);
                    totals[m][p][v] =
                        v_fma(float_of_ints(sum), v_mul(scale, v_set(x_group[m]->scale)),
                              totals[m][p][v]);
                }
            }
        }
    }
    UNROLL
    for (int m = 0; m < rows; m++) {
        UNROLL
        for (int p = 0; p < panels; p++) {
            UNROLL
            for (size_t v = 0; v < PANEL_VECTORS; v++)
                v_store(place->totals + (size_t)(m * panels + p) * KVA_INT8_PANEL + v * VL,
                        totals[m][p][v]);
        }
    }
}

/* Some rows of an item. */
struct group {
    const struct kva_cpu_linear *item;
    uint32_t row_first; /* of args */
    uint32_t rows;
};

/* out = totals (+ bias) (+ out), for `outputs` outputs from `first` on. */
static void write_out(const struct group *group, uint32_t first, uint32_t outputs,
                      const float *totals, uint32_t totals_stride)
{
    const struct kva_linear_args *args = group->item->args;
    float bias[KVA_INT8_PANEL * TILE_PANELS];
    for (uint32_t n = 0; args->bias.data && n < outputs; n++)
        bias[n] = kva_f32_at(args->bias.data, args->bias.dtype, first + n);
    for (uint32_t row = 0; row < group->rows; row++) {
        float *out =
            (float *)args->out + (size_t)(group->row_first + row) * args->out_stride + first;
        const float *from = totals + (size_t)row * totals_stride;
        for (uint32_t n = 0; n < outputs; n++) {
            float value = from[n];
            if (args->bias.data)
                value += bias[n];
            out[n] = args->accumulate ? out[n] + value : value;
        }
    }
}

/* All panels of the item, `panels` at a time. */
static void run_group(const struct group *group, uint32_t panels, tile_fn *const *tiles)
{
    const struct kva_cpu_linear *item = group->item;
    const struct kva_weight *weight = &item->args->weight;
    const size_t x_stride = kva_int8_x_bytes(weight->cols);
    float totals[ROWS_MAX * TILE_PANELS * KVA_INT8_PANEL];
    struct place place = {
        .panel_bytes = kva_int8_panel_bytes(weight->cols),
        .x = (const int8_t *)item->prepared + group->row_first * x_stride,
        .x_stride = x_stride,
        .inputs = weight->cols,
        .totals = totals,
    };
    for (uint32_t out = item->out_first; out < item->out_end;) {
        const uint32_t rest = item->out_end - out;
        const uint32_t count = rest > KVA_INT8_PANEL ? panels : 1;
        const uint32_t outputs = kva_min_u32(rest, count * KVA_INT8_PANEL);
        place.w = (const uint8_t *)weight->data + out / KVA_INT8_PANEL * place.panel_bytes;
        tiles[count - 1](&place);
        write_out(group, out, outputs, totals, count * KVA_INT8_PANEL);
        out += outputs;
    }
}

/* One function for every tile size; stream_N: for the speed of memory. */
#define STREAM(rows)                                                                               \
    static void stream_##rows(const struct place *place)                                           \
    {                                                                                              \
        tile_run(rows, 1, true, place);                                                            \
    }
#define TILE(rows)                                                                                 \
    static void tile_##rows##_1(const struct place *place)                                         \
    {                                                                                              \
        tile_run(rows, 1, false, place);                                                           \
    }                                                                                              \
    static void tile_##rows##_2(const struct place *place)                                         \
    {                                                                                              \
        tile_run(rows, 2, false, place);                                                           \
    }
#define NAMES(rows)                                                                                \
    {                                                                                              \
        tile_##rows##_1, tile_##rows##_2                                                           \
    }

STREAM(1)
STREAM(2)
STREAM(3)
STREAM(4)
TILE(1)
TILE(2)
#if STREAM_ROWS >= 8
STREAM(5)
STREAM(6)
STREAM(7)
STREAM(8)
TILE(3)
TILE(4)
#endif
#if STREAM_ROWS == 12
STREAM(9)
STREAM(10)
STREAM(11)
STREAM(12)
TILE(5)
TILE(6)
#endif

static tile_fn *const streams[STREAM_ROWS] = {
    stream_1, stream_2,  stream_3,  stream_4,
#if STREAM_ROWS >= 8
    stream_5, stream_6,  stream_7,  stream_8,
#endif
#if STREAM_ROWS == 12
    stream_9, stream_10, stream_11, stream_12,
#endif
};

static tile_fn *const tiles[TILE_ROWS][2] = {
    NAMES(1), NAMES(2),
#if STREAM_ROWS >= 8
    NAMES(3), NAMES(4),
#endif
#if STREAM_ROWS == 12
    NAMES(5), NAMES(6),
#endif
};

static void run_item(const struct kva_cpu_linear *item)
{
    const uint32_t rows = item->row_end - item->row_first;
    struct group group = {
        .item = item, .row_first = item->row_first, .rows = kva_min_u32(rows, STREAM_ROWS)};
    run_group(&group, 1, &streams[group.rows - 1]);
    const uint32_t rest = rows - group.rows;
    if (rest == 0)
        return;
    /* As even a division as there is, since a small tile is a slow one. */
    const uint32_t even = (uint32_t)kva_div_up(rest, kva_div_up(rest, TILE_ROWS));
    for (uint32_t row = item->row_first + group.rows; row < item->row_end; row += group.rows) {
        group.row_first = row;
        group.rows = kva_min_u32(even, item->row_end - row);
        run_group(&group, TILE_PANELS, tiles[group.rows - 1]);
    }
}
