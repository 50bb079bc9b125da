/* body.h - linear for the vector levels; included by avx2.c and avx512.c after
 * their simd header.
 *
 * A tile is up to LINEAR_TILE_ROWS rows by LINEAR_TILE_OUTPUTS outputs, one vector of sums each, so
 * that every load serves several products. Few rows: the weights are streamed once, panel by panel,
 * and widened in registers; bandwidth is the limit. Many rows: a block of weights is widened into
 * scratch once, and the tiles run over it; arithmetic is the limit. Each output's sum is the same
 * in both: per block of KVA_CPU_LINEAR_INNER inputs, lane i takes inputs i, i + VL, ... in order,
 * then the tree of v_sum, then blocks in order. */
#include "kernels/cpu/simd/prefetch.h"

/* Rows up to which weights are widened anew for each tile instead of once into scratch. */
#define STREAM_ROWS_MAX 24u

/* Rows from which on they are copied to where their distance is no power of two: rows that are a
 * multiple of 4 KiB apart compete for the same few lines of the first-level cache. */
#define PACK_ROWS_MIN 3u

/* Distance of rows and of outputs in scratch: a block and a cache line. */
#define BLOCK_STRIDE (KVA_CPU_LINEAR_INNER + KVA_CACHE_LINE / 4)

struct tile {
    const float *x;
    size_t x_stride; /* elements */
    const void *w;
    size_t w_stride;    /* elements */
    const void *w_next; /* what is read after this tile, to be prefetched; NULL: nothing */
    uint32_t count;     /* inputs */
    float *totals;      /* [rows, outputs], added to */
    size_t totals_stride;
};

typedef void tile_fn(const struct tile *tile);

INLINE void tile_step(const int rows, const int outputs, enum kva_dtype dtype,
                      const struct tile *tile, uint32_t k, vf sums[][LINEAR_TILE_OUTPUTS])
{
    vf w[LINEAR_TILE_OUTPUTS];
    for (int n = 0; n < outputs; n++)
        w[n] = v_load_any(kva_element(tile->w, dtype, (size_t)n * tile->w_stride + k), dtype);
    for (int m = 0; m < rows; m++) {
        vf x = v_load(tile->x + (size_t)m * tile->x_stride + k);
        for (int n = 0; n < outputs; n++)
            sums[m][n] = v_fma(x, w[n], sums[m][n]);
    }
}

INLINE void tile_rest(const int rows, const int outputs, enum kva_dtype dtype,
                      const struct tile *tile, uint32_t k, vf sums[][LINEAR_TILE_OUTPUTS])
{
    uint32_t rest = tile->count - k;
    vf w[LINEAR_TILE_OUTPUTS];
    for (int n = 0; n < outputs; n++)
        w[n] =
            v_load_any_n(kva_element(tile->w, dtype, (size_t)n * tile->w_stride + k), dtype, rest);
    for (int m = 0; m < rows; m++) {
        vf x = v_load_n(tile->x + (size_t)m * tile->x_stride + k, rest);
        for (int n = 0; n < outputs; n++)
            sums[m][n] = v_fma(x, w[n], sums[m][n]);
    }
}

/* Add the tile's sums to its totals. */
INLINE void tile_finish(const int rows, const int outputs, const struct tile *tile,
                        vf sums[][LINEAR_TILE_OUTPUTS])
{
    for (int m = 0; m < rows; m++) {
        float *totals = tile->totals + (size_t)m * tile->totals_stride;
        if (outputs >= 3) {
            float four[4];
            vf last = outputs == 4 ? sums[m][outputs - 1] : v_zero();
            _mm_storeu_ps(four, v_sum4(sums[m][0], sums[m][1], sums[m][2], last));
            for (int n = 0; n < outputs; n++)
                totals[n] += four[n];
            continue;
        }
        for (int n = 0; n < outputs; n++)
            totals[n] += v_sum(sums[m][n]);
    }
}

/* Level avx2 widens 16-bit weights for as long as memory takes to give them, and is slower by 5 to 24%
 * where it finds them in the second-level cache. */
INLINE void prefetch(enum kva_dtype dtype, const void *at)
{
    if (VL == 8 && dtype != KVA_F32)
        _mm_prefetch(at, _MM_HINT_T0);
    else
        kva_prefetch_ahead(at);
}

INLINE void tile_run(const int rows, const int outputs, enum kva_dtype dtype,
                     const struct tile *tile)
{
    /* Vectors in a cache line: one prefetch for each. */
    const uint32_t line = KVA_CACHE_LINE / (uint32_t)(VL * kva_dtype_bytes(dtype));
    const uint32_t unroll = line ? line : 1;
    vf sums[LINEAR_TILE_ROWS][LINEAR_TILE_OUTPUTS];
    for (int m = 0; m < rows; m++) {
        for (int n = 0; n < outputs; n++)
            sums[m][n] = v_zero();
    }
    uint32_t k = 0;
    if (tile->w_next) {
        for (; k + unroll * VL <= tile->count; k += unroll * VL) {
            for (int n = 0; n < outputs; n++)
                prefetch(dtype, kva_element(tile->w_next, dtype, (size_t)n * tile->w_stride + k));
            for (uint32_t i = 0; i < unroll; i++)
                tile_step(rows, outputs, dtype, tile, k + i * VL, sums);
        }
    }
    for (; k + VL <= tile->count; k += VL)
        tile_step(rows, outputs, dtype, tile, k, sums);
    if (k < tile->count)
        tile_rest(rows, outputs, dtype, tile, k, sums);
    tile_finish(rows, outputs, tile, sums);
}

/* One function for every tile size and weight format. */
#define TILE(rows, outputs, format)                                                                \
    static void tile_##format##_##rows##_##outputs(const struct tile *tile)                        \
    {                                                                                              \
        tile_run(rows, outputs, KVA_##format, tile);                                               \
    }

#if LINEAR_TILE_OUTPUTS == 4
#define TILES_OF_ROWS(rows, format)                                                                \
    TILE(rows, 1, format) TILE(rows, 2, format) TILE(rows, 3, format) TILE(rows, 4, format)
#define NAMES_OF_ROWS(rows, format)                                                                \
    {                                                                                              \
        tile_##format##_##rows##_1, tile_##format##_##rows##_2, tile_##format##_##rows##_3,        \
            tile_##format##_##rows##_4                                                             \
    }
#else
#define TILES_OF_ROWS(rows, format)                                                                \
    TILE(rows, 1, format) TILE(rows, 2, format) TILE(rows, 3, format)
#define NAMES_OF_ROWS(rows, format)                                                                \
    {                                                                                              \
        tile_##format##_##rows##_1, tile_##format##_##rows##_2, tile_##format##_##rows##_3         \
    }
#endif

#if LINEAR_TILE_ROWS == 6
#define TILES(format)                                                                              \
    TILES_OF_ROWS(1, format)                                                                       \
    TILES_OF_ROWS(2, format)                                                                       \
    TILES_OF_ROWS(3, format)                                                                       \
    TILES_OF_ROWS(4, format) TILES_OF_ROWS(5, format) TILES_OF_ROWS(6, format)
#define NAMES(format)                                                                              \
    {                                                                                              \
        NAMES_OF_ROWS(1, format), NAMES_OF_ROWS(2, format), NAMES_OF_ROWS(3, format),              \
            NAMES_OF_ROWS(4, format), NAMES_OF_ROWS(5, format), NAMES_OF_ROWS(6, format)           \
    }
#else
#define TILES(format)                                                                              \
    TILES_OF_ROWS(1, format)                                                                       \
    TILES_OF_ROWS(2, format) TILES_OF_ROWS(3, format) TILES_OF_ROWS(4, format)
#define NAMES(format)                                                                              \
    {                                                                                              \
        NAMES_OF_ROWS(1, format), NAMES_OF_ROWS(2, format), NAMES_OF_ROWS(3, format),              \
            NAMES_OF_ROWS(4, format)                                                               \
    }
#endif

TILES(F32)
TILES(F16)
TILES(BF16)

static tile_fn *const tiles[KVA_DTYPE_COUNT][LINEAR_TILE_ROWS][LINEAR_TILE_OUTPUTS] = {
    [KVA_F32] = NAMES(F32),
    [KVA_F16] = NAMES(F16),
    [KVA_BF16] = NAMES(BF16),
};

/* Outputs and rows of one call. */
struct span {
    const struct kva_linear_args *args;
    uint32_t row_first;
    uint32_t row_end;
    uint32_t out_first;
    uint32_t out_end;
};

static const float *x_at(const struct kva_linear_args *args, uint32_t row, uint32_t k)
{
    return (const float *)args->x + (size_t)row * args->x_stride + k;
}

/* out = totals (+ bias) (+ out), for `outputs` outputs of every row of the span. */
static void write_out(const struct span *span, uint32_t out_first, uint32_t outputs,
                      const float *totals, size_t totals_stride)
{
    const struct kva_linear_args *args = span->args;
    for (uint32_t row = span->row_first; row < span->row_end; row++) {
        float *out = (float *)args->out + (size_t)row * args->out_stride + out_first;
        const float *from = totals + (row - span->row_first) * totals_stride;
        for (uint32_t n = 0; n < outputs; n++) {
            float value = from[n];
            if (args->bias.data)
                value += kva_f32_at(args->bias.data, args->bias.dtype, out_first + n);
            out[n] = args->accumulate ? out[n] + value : value;
        }
    }
}

/* `count` floats. */
static void copy(const float *from, uint32_t count, float *to)
{
    uint32_t i = 0;
    for (; i + VL <= count; i += VL)
        v_store(to + i, v_load(from + i));
    if (i < count)
        v_store_n(to + i, v_load_n(from + i, count - i), count - i);
}

/* Where the rows of a span are read from. */
struct source {
    const float *x; /* of the span's first row */
    size_t stride;
};

/* The rows themselves, or copies of them if they are several and fit. */
static struct source pack_rows(const struct span *span, float *scratch)
{
    const struct kva_linear_args *args = span->args;
    uint32_t rows = span->row_end - span->row_first, inputs = args->weight.cols;
    struct source source = {.x = x_at(args, span->row_first, 0), .stride = args->x_stride};
    size_t stride = kva_align_up(inputs, 16) + 16;
    if (rows < PACK_ROWS_MIN || rows * stride * sizeof(float) > KVA_CPU_SCRATCH_BYTES / 2)
        return source;
    for (uint32_t row = 0; row < rows; row++)
        copy(source.x + row * source.stride, inputs, scratch + row * stride);
    return (struct source){.x = scratch, .stride = stride};
}

/* Few rows: panel after panel, straight from the weights. */
static void stream(const struct span *span, float *scratch)
{
    const struct kva_linear_args *args = span->args;
    const struct kva_weight *weight = &args->weight;
    const struct source source = pack_rows(span, scratch);
    for (uint32_t out = span->out_first; out < span->out_end; out += LINEAR_TILE_OUTPUTS) {
        uint32_t outputs = kva_min_u32(LINEAR_TILE_OUTPUTS, span->out_end - out);
        float totals[STREAM_ROWS_MAX * LINEAR_TILE_OUTPUTS] = {0};
        for (uint32_t k = 0; k < weight->cols; k += KVA_CPU_LINEAR_INNER) {
            struct tile tile = {.x_stride = source.stride,
                                .w_stride = weight->cols,
                                .totals_stride = LINEAR_TILE_OUTPUTS};
            size_t first = (size_t)out * weight->cols + k;
            /* Next comes the next block of this panel, or the first one of the next panel. */
            bool last = weight->cols - k <= KVA_CPU_LINEAR_INNER;
            size_t next = last ? (size_t)(out + LINEAR_TILE_OUTPUTS) * weight->cols
                               : first + KVA_CPU_LINEAR_INNER;
            tile.count = kva_min_u32(KVA_CPU_LINEAR_INNER, weight->cols - k);
            tile.w = kva_element(weight->data, weight->dtype, first);
            if (!last || out + 2 * LINEAR_TILE_OUTPUTS <= span->out_end)
                tile.w_next = kva_element(weight->data, weight->dtype, next);
            for (uint32_t row = span->row_first; row < span->row_end; row += LINEAR_TILE_ROWS) {
                uint32_t rows = kva_min_u32(LINEAR_TILE_ROWS, span->row_end - row);
                tile.x = source.x + (row - span->row_first) * source.stride + k;
                tile.totals = totals + (row - span->row_first) * LINEAR_TILE_OUTPUTS;
                tiles[weight->dtype][rows - 1][outputs - 1](&tile);
                tile.w_next = NULL;
            }
        }
        write_out(span, out, outputs, totals, LINEAR_TILE_OUTPUTS);
    }
}

/* `count` elements of any format as floats. */
static void widen(const void *from, enum kva_dtype dtype, uint32_t count, float *to)
{
    uint32_t i = 0;
    for (; i + VL <= count; i += VL)
        v_store(to + i, v_load_any(kva_element(from, dtype, i), dtype));
    if (i < count)
        v_store_n(to + i, v_load_any_n(kva_element(from, dtype, i), dtype, count - i), count - i);
}

/* One block of inputs: rows at `x` [rows, BLOCK_STRIDE] against all outputs of the span at `w`
 * [outputs, BLOCK_STRIDE], both floats. */
static void block_tiles(const struct span *span, const float *x, const float *w, uint32_t count,
                        float *totals)
{
    struct tile tile = {.x_stride = BLOCK_STRIDE,
                        .w_stride = BLOCK_STRIDE,
                        .count = count,
                        .totals_stride = KVA_CPU_LINEAR_OUTPUTS};
    uint32_t outputs = span->out_end - span->out_first, rows = span->row_end - span->row_first;
    for (uint32_t n = 0; n < outputs; n += LINEAR_TILE_OUTPUTS) {
        uint32_t tile_outputs = kva_min_u32(LINEAR_TILE_OUTPUTS, outputs - n);
        tile.w = w + (size_t)n * BLOCK_STRIDE;
        for (uint32_t row = 0; row < rows; row += LINEAR_TILE_ROWS) {
            uint32_t tile_rows = kva_min_u32(LINEAR_TILE_ROWS, rows - row);
            tile.x = x + (size_t)row * BLOCK_STRIDE;
            tile.totals = totals + (size_t)row * KVA_CPU_LINEAR_OUTPUTS + n;
            tiles[KVA_F32][tile_rows - 1][tile_outputs - 1](&tile);
        }
    }
}

/* Many rows: block after block of inputs, weights widened once for all rows. */
static void block(const struct span *span, float *scratch)
{
    const struct kva_weight *weight = &span->args->weight;
    const size_t totals_count = KVA_CPU_LINEAR_ROWS * KVA_CPU_LINEAR_OUTPUTS;
    float *totals = scratch; /* [rows, KVA_CPU_LINEAR_OUTPUTS] */
    float *x = totals + totals_count;
    float *wide = x + KVA_CPU_LINEAR_ROWS * BLOCK_STRIDE;
    _Static_assert((KVA_CPU_LINEAR_ROWS * KVA_CPU_LINEAR_OUTPUTS +
                    (KVA_CPU_LINEAR_ROWS + KVA_CPU_LINEAR_OUTPUTS) * BLOCK_STRIDE) *
                           sizeof(float) <=
                       KVA_CPU_SCRATCH_BYTES,
                   "linear outgrew the scratch");
    uint32_t outputs = span->out_end - span->out_first, rows = span->row_end - span->row_first;
    memset(totals, 0, totals_count * sizeof *totals);
    for (uint32_t k = 0; k < weight->cols; k += KVA_CPU_LINEAR_INNER) {
        uint32_t count = kva_min_u32(KVA_CPU_LINEAR_INNER, weight->cols - k);
        size_t first = (size_t)span->out_first * weight->cols + k;
        for (uint32_t row = 0; row < rows; row++)
            copy(x_at(span->args, span->row_first + row, k), count, x + (size_t)row * BLOCK_STRIDE);
        for (uint32_t n = 0; n < outputs; n++)
            widen(kva_element(weight->data, weight->dtype, first + (size_t)n * weight->cols),
                  weight->dtype, count, wide + (size_t)n * BLOCK_STRIDE);
        block_tiles(span, x, wide, count, totals);
    }
    write_out(span, span->out_first, outputs, totals, KVA_CPU_LINEAR_OUTPUTS);
}

void LEVEL(kva_linear)(const struct kva_cpu_linear *item)
{
    struct span span = {.args = item->args,
                        .row_first = item->row_first,
                        .row_end = item->row_end,
                        .out_first = item->out_first,
                        .out_end = item->out_end};
    if (item->row_end - item->row_first <= STREAM_ROWS_MAX)
        stream(&span, item->scratch);
    else
        block(&span, item->scratch);
}
