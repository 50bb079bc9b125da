/* avx512bf16.c - linear of level avx512bf16: weights in bf16 against activations rounded to bf16,
 * two products an instruction (vdpbf16ps), sums in fp32. Weights in other formats are level
 * avx512's.
 *
 * The driver has the rows rounded once (linear_prepare), so that an item only reads them. A tile is
 * some rows by some outputs, one vector of sums each, over KVA_CPU_LINEAR_DEPTH inputs: lane i
 * takes the inputs 32 j + 2 i and 32 j + 2 i + 1 for each j in order, then the tree of sum_lanes,
 * then depths in order. That is so in every tile, so an output's bits do not depend on which one it
 * was in.
 *
 * Weights are read as they lie in the file. The first rows of an item wait for memory, and what
 * memory gives depends on the order of reading: they take one output at a time, which is one
 * stream. For the rows after them the item's weights lie in the second-level cache; a tile's rows
 * stay in the first while all outputs go by. */
#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/prefetch.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Register tiles: 24 sums, the operands and some to spare, of 32 registers. */
#define TILE_ROWS    6
#define TILE_OUTPUTS 4

/* Inputs of one instruction. */
#define STEP 32u

/* Rows over which a depth of an item's weights passes before the next depth does, from the
 * second-level cache. */
#define CHUNK_ROWS 96u

/* What is prefetched lies so many outputs' depths ahead: microseconds of memory's time. */
#define PLACES_AHEAD 4u

/* Bytes of rows that stay in the first-level cache beside a stream of weights. */
#define CACHED_ROWS_BYTES (32u * 1024u)

/* Rows that wait for memory when there are more than a tile: with more of them the first-level cache
 * no longer holds the rows. */
#define STREAM_ROWS 4u

struct tile {
    const uint16_t *x;
    size_t x_stride;
    const uint16_t *w;
    size_t w_stride;
    uint32_t count;     /* inputs */
    size_t ahead_bytes; /* what to prefetch: so far behind the weights */
    float *totals;      /* [rows, outputs], added to */
    size_t totals_stride;
};

typedef void tile_fn(const struct tile *tile);

/* The lanes of four vectors added: halves until four lanes are left, then (0 + 2) + (1 + 3). */
INLINE __m128 sum_lanes(__m512 a, __m512 b, __m512 c, __m512 d)
{
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    __m512 all =
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4E));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xB1));
    const __m512i first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, all));
}

INLINE __m512bh load(const uint16_t *from)
{
    return (__m512bh)_mm512_loadu_si512(from);
}

/* One output, from memory, in whole cache lines wherever it begins: tensors of a file do so at any
 * multiple of 8 bytes, and loads that straddle two lines would keep both waiting. Returns how far
 * it got. */
INLINE uint32_t stream_lines(const int rows, const struct tile *tile, __m512 *sums)
{
    const uint32_t shift = (uint32_t)((uintptr_t)tile->w % KVA_CACHE_LINE / sizeof(uint16_t));
    const uint16_t *line = tile->w - shift;
    uint16_t places[STEP];
    for (uint32_t i = 0; i < STEP; i++)
        places[i] = (uint16_t)(shift + i);
    const __m512i pick = _mm512_loadu_si512(places);
    __m512i low = _mm512_maskz_loadu_epi16(0xFFFFFFFFu << shift, line);
    uint32_t k = 0;
    for (; k + 2 * STEP <= tile->count; k += STEP) {
        kva_prefetch_ahead((const char *)(tile->w + k) + tile->ahead_bytes);
        __m512i high = _mm512_load_si512(line + k + STEP);
        __m512bh weights = (__m512bh)_mm512_permutex2var_epi16(low, pick, high);
        for (int m = 0; m < rows; m++)
            sums[m] =
                _mm512_dpbf16_ps(sums[m], load(tile->x + (size_t)m * tile->x_stride + k), weights);
        low = high;
    }
    return k;
}

INLINE void tile_run(const int rows, const int outputs, const bool stream, const struct tile *tile)
{
    __m512 sums[TILE_ROWS * TILE_OUTPUTS + 3];
    for (int i = 0; i < TILE_ROWS * TILE_OUTPUTS + 3; i++)
        sums[i] = _mm512_setzero_ps();
    uint32_t k = 0;
    if (stream && (uintptr_t)tile->w % KVA_CACHE_LINE)
        k = stream_lines(rows, tile, sums);
    for (; k + STEP <= tile->count; k += STEP) {
        if (stream)
            kva_prefetch_ahead((const char *)(tile->w + k) + tile->ahead_bytes);
        __m512bh weights[TILE_OUTPUTS];
        for (int n = 0; n < outputs; n++)
            weights[n] = load(tile->w + (size_t)n * tile->w_stride + k);
        for (int m = 0; m < rows; m++) {
            __m512bh row = load(tile->x + (size_t)m * tile->x_stride + k);
            for (int n = 0; n < outputs; n++)
                sums[m * outputs + n] = _mm512_dpbf16_ps(sums[m * outputs + n], row, weights[n]);
        }
    }
    if (k < tile->count) {
        const __mmask32 mask = (1u << (tile->count - k)) - 1u;
        __m512bh weights[TILE_OUTPUTS];
        for (int n = 0; n < outputs; n++)
            weights[n] =
                (__m512bh)_mm512_maskz_loadu_epi16(mask, tile->w + (size_t)n * tile->w_stride + k);
        for (int m = 0; m < rows; m++) {
            /* Rows are padded with zeros. */
            __m512bh row = load(tile->x + (size_t)m * tile->x_stride + k);
            for (int n = 0; n < outputs; n++)
                sums[m * outputs + n] = _mm512_dpbf16_ps(sums[m * outputs + n], row, weights[n]);
        }
    }
    float flat[TILE_ROWS * TILE_OUTPUTS + 3];
    for (int i = 0; i < rows * outputs; i += 4)
        _mm_storeu_ps(flat + i, sum_lanes(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
    for (int m = 0; m < rows; m++) {
        for (int n = 0; n < outputs; n++)
            tile->totals[(size_t)m * tile->totals_stride + (size_t)n] += flat[m * outputs + n];
    }
}

/* One function for every tile size; stream_N: for the speed of memory. */
#define TILE(rows, outputs)                                                                        \
    static void tile_##rows##_##outputs(const struct tile *tile)                                   \
    {                                                                                              \
        tile_run(rows, outputs, false, tile);                                                      \
    }
#define TILES(rows)                                                                                \
    TILE(rows, 1)                                                                                  \
    TILE(rows, 2)                                                                                  \
    TILE(rows, 3)                                                                                  \
    TILE(rows, 4)                                                                                  \
    static void stream_##rows(const struct tile *tile)                                             \
    {                                                                                              \
        tile_run(rows, 1, true, tile);                                                             \
    }
#define NAMES(rows)                                                                                \
    {                                                                                              \
        tile_##rows##_1, tile_##rows##_2, tile_##rows##_3, tile_##rows##_4                         \
    }

TILES(1)
TILES(2)
TILES(3)
TILES(4)
TILES(5)
TILES(6)

static tile_fn *const tiles[TILE_ROWS][TILE_OUTPUTS] = {NAMES(1), NAMES(2), NAMES(3),
                                                        NAMES(4), NAMES(5), NAMES(6)};
static tile_fn *const streams[TILE_ROWS] = {stream_1, stream_2, stream_3,
                                            stream_4, stream_5, stream_6};

static size_t prepared_stride(uint32_t inputs)
{
    /* A cache line more than there is, or rows a multiple of 4 KiB apart would compete for the same
     * few lines of the first-level cache. */
    return kva_align_up(inputs, STEP) + STEP;
}

size_t kva_linear_row_bytes_avx512bf16(const struct kva_linear_args *args)
{
    return args->weight.dtype == KVA_BF16 ? prepared_stride(args->weight.cols) * sizeof(uint16_t)
                                          : 0;
}

/* Rounds to nearest, ties to even; what is below the normal numbers becomes 0, as it does in the
 * products. */
void kva_linear_prepare_avx512bf16(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                                   void *prepared)
{
    uint32_t inputs = args->weight.cols;
    size_t stride = prepared_stride(inputs);
    for (uint32_t row = first; row < end; row++) {
        const float *x = (const float *)args->x + (size_t)row * args->x_stride;
        uint16_t *to = (uint16_t *)prepared + row * stride;
        uint32_t k = 0;
        for (; k + STEP <= inputs; k += STEP)
            _mm512_storeu_si512(to + k, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + k + 16),
                                                                     _mm512_loadu_ps(x + k)));
        if (k < inputs) {
            uint32_t rest = inputs - k, low = kva_min_u32(rest, 16);
            __m512 a = _mm512_maskz_loadu_ps((__mmask16)((1u << low) - 1u), x + k);
            __m512 b = _mm512_maskz_loadu_ps((__mmask16)((1u << (rest - low)) - 1u), x + k + low);
            _mm512_storeu_si512(to + k, (__m512i)_mm512_cvtne2ps_pbh(b, a));
        }
    }
}

/* Some rows against all outputs of an item. */
struct group {
    const struct kva_cpu_linear *item;
    uint32_t row_first; /* of args */
    uint32_t rows;
    float *totals; /* [rows, KVA_CPU_LINEAR_OUTPUTS] */
};

/* The tile of the item's output `n` and the depth from input `k` on. */
static struct tile tile_at(const struct group *group, uint32_t n, uint32_t k)
{
    const struct kva_cpu_linear *item = group->item;
    const struct kva_weight *weight = &item->args->weight;
    const size_t stride = prepared_stride(weight->cols);
    return (struct tile){
        .x = (const uint16_t *)item->prepared + group->row_first * stride + k,
        .x_stride = stride,
        .w = (const uint16_t *)weight->data + (size_t)(item->out_first + n) * weight->cols + k,
        .w_stride = weight->cols,
        .count = kva_min_u32(KVA_CPU_LINEAR_DEPTH, weight->cols - k),
        .totals = group->totals + n,
        .totals_stride = KVA_CPU_LINEAR_OUTPUTS,
    };
}

/* Weights come from memory: one output at a time. Where the rows fit the first-level cache whole,
 * an output is read from end to end; else depth by depth, and a line is prefetched while the output
 * some places before its own is worked on. */
static void stream(const struct group *group)
{
    const struct kva_weight *weight = &group->item->args->weight;
    const uint32_t outputs = group->item->out_end - group->item->out_first;
    const size_t depth_bytes = KVA_CPU_LINEAR_DEPTH * sizeof(uint16_t);
    const bool whole = group->rows * weight->cols * sizeof(uint16_t) <= CACHED_ROWS_BYTES;
    if (whole) {
        for (uint32_t n = 0; n < outputs; n++) {
            for (uint32_t k = 0; k < weight->cols; k += KVA_CPU_LINEAR_DEPTH) {
                struct tile tile = tile_at(group, n, k);
                tile.ahead_bytes = PLACES_AHEAD * depth_bytes;
                streams[group->rows - 1](&tile);
            }
        }
        return;
    }
    for (uint32_t k = 0; k < weight->cols; k += KVA_CPU_LINEAR_DEPTH) {
        for (uint32_t n = 0; n < outputs; n++) {
            struct tile tile = tile_at(group, n, k);
            tile.ahead_bytes = PLACES_AHEAD * weight->cols * sizeof(uint16_t);
            streams[group->rows - 1](&tile);
        }
    }
}

/* A depth of weights from the second-level cache. */
static void block(const struct group *group, uint32_t k)
{
    const uint32_t outputs = group->item->out_end - group->item->out_first;
    for (uint32_t n = 0; n < outputs; n += TILE_OUTPUTS) {
        struct tile tile = tile_at(group, n, k);
        tiles[group->rows - 1][kva_min_u32(TILE_OUTPUTS, outputs - n) - 1](&tile);
    }
}

/* out = totals (+ bias) (+ out) */
static void write_out(const struct group *group)
{
    const struct kva_cpu_linear *item = group->item;
    const struct kva_linear_args *args = item->args;
    const uint32_t outputs = item->out_end - item->out_first;
    float bias[KVA_CPU_LINEAR_OUTPUTS];
    for (uint32_t n = 0; args->bias.data && n < outputs; n++)
        bias[n] = kva_f32_at(args->bias.data, args->bias.dtype, item->out_first + n);
    for (uint32_t row = 0; row < group->rows; row++) {
        float *out = (float *)args->out + (size_t)(group->row_first + row) * args->out_stride +
                     item->out_first;
        const float *from = group->totals + (size_t)row * KVA_CPU_LINEAR_OUTPUTS;
        for (uint32_t n = 0; n < outputs; n += 16) {
            __mmask16 mask = (__mmask16)((1u << kva_min_u32(outputs - n, 16)) - 1u);
            __m512 value = _mm512_maskz_loadu_ps(mask, from + n);
            if (args->bias.data)
                value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, bias + n));
            if (args->accumulate)
                value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out + n), value);
            _mm512_mask_storeu_ps(out + n, mask, value);
        }
    }
}

/* The rows that come after the first, a chunk at a time. */
static void run_chunk(const struct kva_cpu_linear *item, uint32_t row_first, uint32_t rows,
                      float *totals)
{
    /* As even a division as there is, since a small tile is a slow one. */
    const uint32_t even = (uint32_t)kva_div_up(rows, kva_div_up(rows, TILE_ROWS));
    struct group group = {.item = item};
    memset(totals, 0, (size_t)rows * KVA_CPU_LINEAR_OUTPUTS * sizeof *totals);
    for (uint32_t k = 0; k < item->args->weight.cols; k += KVA_CPU_LINEAR_DEPTH) {
        for (uint32_t row = 0; row < rows; row += group.rows) {
            group.row_first = row_first + row;
            group.rows = kva_min_u32(even, rows - row);
            group.totals = totals + (size_t)row * KVA_CPU_LINEAR_OUTPUTS;
            block(&group, k);
        }
    }
    group = (struct group){.item = item, .row_first = row_first, .rows = rows, .totals = totals};
    write_out(&group);
}

void kva_linear_avx512bf16(const struct kva_cpu_linear *item)
{
    if (item->args->weight.dtype != KVA_BF16) {
        kva_linear_avx512(item);
        return;
    }
    float *totals = item->scratch; /* [CHUNK_ROWS, KVA_CPU_LINEAR_OUTPUTS] */
    const uint32_t rows = item->row_end - item->row_first;
    struct group first = {.item = item,
                          .row_first = item->row_first,
                          .rows = rows > TILE_ROWS ? STREAM_ROWS : rows,
                          .totals = totals};
    memset(totals, 0, TILE_ROWS * KVA_CPU_LINEAR_OUTPUTS * sizeof *totals);
    stream(&first);
    write_out(&first);
    for (uint32_t row = item->row_first + first.rows; row < item->row_end; row += CHUNK_ROWS)
        run_chunk(item, row, kva_min_u32(CHUNK_ROWS, item->row_end - row), totals);
}
