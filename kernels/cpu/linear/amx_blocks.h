/* amx_blocks.h - what amx.c and int8_amx.c share: how a chunk of rows is multiplied by the
 * blocks of an item's weights, what is prefetched meanwhile, and how sums become outputs.
 *
 * Few rows wait for memory: they take the outputs one group after the other, so that pages are
 * read through. Many rows want their own inputs from the second-level cache: they take one depth of
 * all outputs before the next. Sums wait in memory, tile by tile, between the depths. */
#ifndef KVA_KERNELS_CPU_LINEAR_AMX_BLOCKS_H
#define KVA_KERNELS_CPU_LINEAR_AMX_BLOCKS_H

#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/amx.h"

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#define TILE ((size_t)KVA_TILE_ROWS * KVA_TILE_BYTES)

/* A block of weights: two tiles' outputs by so many inputs. */
#define BLOCK_OUTPUTS (2 * KVA_AMX_OUTPUTS)
#define BLOCK_DEPTH   512u

/* Rows side by side, and rows whose sums wait while blocks go by: the inputs of one depth of all of
 * them take half of the second-level cache where that is small (1 MiB). */
#define PAIR_ROWS  (2 * KVA_AMX_ROWS)
#define CHUNK_ROWS 512u

#define PAIRS_MAX  (CHUNK_ROWS / PAIR_ROWS)
#define GROUPS_MAX (KVA_CPU_LINEAR_OUTPUTS / BLOCK_OUTPUTS)

/* Sums of a chunk: [groups][pairs][2 panels of outputs][2 blocks of rows] tiles. */
#define TOTALS_BYTES (GROUPS_MAX * PAIRS_MAX * 4 * TILE)

/* Some rows of an item. */
struct chunk {
    const struct kva_cpu_linear *item;
    uint32_t row_first; /* of args */
    uint32_t rows;
    uint32_t pairs;  /* of PAIR_ROWS rows */
    uint32_t groups; /* of BLOCK_OUTPUTS outputs */
    uint32_t depths; /* of BLOCK_DEPTH inputs */
    uint8_t *totals;
    uint8_t *stage;    /* the rest of the scratch */
    uint32_t shape[2]; /* rows that the tiles are configured for */
};

/* Which outputs and inputs. */
struct block {
    uint32_t group;
    uint32_t depth;
    uint32_t out_first; /* of args */
    uint32_t outputs;
    uint32_t in_first;
    uint32_t inputs;
};

/* What is prefetched: runs of bytes, `stride` apart. */
struct ahead {
    const uint8_t *run;
    size_t stride;
    size_t run_bytes;
    size_t at;
    uint32_t lines; /* left */
};

static inline struct chunk chunk_of(const struct kva_cpu_linear *item, uint32_t row_first)
{
    const uint32_t rows = kva_min_u32(CHUNK_ROWS, item->row_end - row_first);
    return (struct chunk){
        .item = item,
        .row_first = row_first,
        .rows = rows,
        .pairs = (uint32_t)kva_div_up(rows, PAIR_ROWS),
        .groups = (uint32_t)kva_div_up(item->out_end - item->out_first, BLOCK_OUTPUTS),
        .depths = (uint32_t)kva_div_up(item->args->weight.cols, BLOCK_DEPTH),
        .totals = item->scratch,
        .stage = (uint8_t *)item->scratch + TOTALS_BYTES,
    };
}

/* Block number `index` of groups * depths. */
static inline struct block block_at(const struct chunk *chunk, uint32_t index)
{
    const struct kva_cpu_linear *item = chunk->item;
    const bool few = chunk->pairs == 1;
    const uint32_t group = few ? index / chunk->depths : index % chunk->groups;
    const uint32_t depth = few ? index % chunk->depths : index / chunk->groups;
    const uint32_t output = item->out_first + group * BLOCK_OUTPUTS, input = depth * BLOCK_DEPTH;
    return (struct block){
        .group = group,
        .depth = depth,
        .out_first = output,
        .outputs = kva_min_u32(BLOCK_OUTPUTS, item->out_end - output),
        .in_first = input,
        .inputs = kva_min_u32(BLOCK_DEPTH, item->args->weight.cols - input),
    };
}

/* Rows of the pair's two blocks; 0: there is none. */
static inline void pair_rows(const struct chunk *chunk, uint32_t pair, uint32_t rows[2])
{
    const uint32_t left = chunk->rows - pair * PAIR_ROWS;
    rows[0] = kva_min_u32(left, KVA_AMX_ROWS);
    rows[1] = kva_min_u32(left, PAIR_ROWS) - rows[0];
}

static inline uint8_t *pair_totals(const struct chunk *chunk, const struct block *block,
                                   uint32_t pair)
{
    return chunk->totals + ((size_t)block->group * chunk->pairs + pair) * 4 * TILE;
}

static inline struct ahead ahead_of(const uint8_t *run, size_t stride, size_t run_bytes,
                                    uint32_t runs)
{
    return (struct ahead){
        .run = run,
        .stride = stride,
        .run_bytes = run_bytes,
        .lines = runs * (uint32_t)kva_div_up(run_bytes, KVA_CACHE_LINE),
    };
}

/* Into the second-level cache. Works on a copy, which stays in registers. */
static inline __attribute__((always_inline)) void prefetch(struct ahead *ahead, uint32_t lines)
{
    struct ahead a = *ahead;
    lines = kva_min_u32(lines, a.lines);
    for (uint32_t i = 0; i < lines; i++) {
        _mm_prefetch((const char *)a.run + a.at, _MM_HINT_T1);
        a.at += KVA_CACHE_LINE;
        if (a.at >= a.run_bytes) {
            a.at = 0;
            a.run += a.stride;
        }
    }
    ahead->run = a.run;
    ahead->at = a.at;
    ahead->lines -= lines;
}

/* --- tiles of sums: 2 panels of outputs by 2 blocks of rows -------------------------------------
 */

/* Where the sums of a panel and a block of rows lie, from those of the pair on. */
static inline size_t sum_at(uint32_t panel, uint32_t block)
{
    return (panel * 2 + block) * TILE;
}

static inline __attribute__((always_inline)) void zero_sums(const int panels, const int blocks)
{
    KVA_TILE_ZERO(0);
    if (blocks > 1)
        KVA_TILE_ZERO(1);
    if (panels > 1)
        KVA_TILE_ZERO(2);
    if (panels > 1 && blocks > 1)
        KVA_TILE_ZERO(3);
}

static inline __attribute__((always_inline)) void store_sums(const int panels, const int blocks,
                                                             uint8_t *sums)
{
    KVA_TILE_STORE(0, sums + sum_at(0, 0), KVA_TILE_BYTES);
    if (blocks > 1)
        KVA_TILE_STORE(1, sums + sum_at(0, 1), KVA_TILE_BYTES);
    if (panels > 1)
        KVA_TILE_STORE(2, sums + sum_at(1, 0), KVA_TILE_BYTES);
    if (panels > 1 && blocks > 1)
        KVA_TILE_STORE(3, sums + sum_at(1, 1), KVA_TILE_BYTES);
}

/* multiplies[panels - 1][blocks - 1]: a file's multiply(panels, blocks, product), each shape a
 * function. */
#define MULTIPLY(panels, blocks)                                                                   \
    static void multiply_##panels##_##blocks(const struct product *product)                        \
    {                                                                                              \
        multiply(panels, blocks, product);                                                         \
    }
#define MULTIPLIES                                                                                 \
    MULTIPLY(1, 1)                                                                                 \
    MULTIPLY(1, 2)                                                                                 \
    MULTIPLY(2, 1)                                                                                 \
    MULTIPLY(2, 2)                                                                                 \
    static void (*const multiplies[2][2])(const struct product *) = {                              \
        {multiply_1_1, multiply_1_2}, {multiply_2_1, multiply_2_2}};

/* --- outputs ------------------------------------------------------------------------------------
 */

/* bias of 16 outputs, as many as there are. */
static inline void load_bias(const struct kva_linear_args *args, uint32_t output, uint32_t outputs,
                             float bias[KVA_AMX_OUTPUTS])
{
    memset(bias, 0, KVA_AMX_OUTPUTS * sizeof *bias);
    for (uint32_t n = 0; args->bias.data && n < outputs; n++)
        bias[n] = kva_f32_at(args->bias.data, args->bias.dtype, output + n);
}

/* out = value (+ bias) (+ out), for the first `outputs` of 16 outputs of a row. */
static inline void write_line(const struct kva_linear_args *args, uint32_t row, uint32_t output,
                              uint32_t outputs, const float bias[KVA_AMX_OUTPUTS], __m512 value)
{
    const __mmask16 mask = (__mmask16)((1u << outputs) - 1u);
    float *out = (float *)args->out + (size_t)row * args->out_stride + output;
    if (args->bias.data)
        value = _mm512_add_ps(value, _mm512_loadu_ps(bias));
    if (args->accumulate)
        value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
    _mm512_mask_storeu_ps(out, mask, value);
}

/* The complete sums of `rows` rows and `outputs` outputs, one tile, become outputs. */
typedef void write_tile_fn(const struct kva_linear_args *args, const uint8_t *sums, uint32_t row,
                           uint32_t rows, uint32_t output, uint32_t outputs);

static inline void write_pair(const struct chunk *chunk, const struct block *block, uint32_t pair,
                              write_tile_fn *write_tile)
{
    const uint8_t *sums = pair_totals(chunk, block, pair);
    uint32_t rows[2];
    pair_rows(chunk, pair, rows);
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t row = chunk->row_first + pair * PAIR_ROWS + r * KVA_AMX_ROWS;
        for (uint32_t n = 0; n < block->outputs && rows[r] > 0; n += KVA_AMX_OUTPUTS)
            write_tile(chunk->item->args, sums + sum_at(n / KVA_AMX_OUTPUTS, r), row, rows[r],
                       block->out_first + n, kva_min_u32(KVA_AMX_OUTPUTS, block->outputs - n));
    }
}

/* --- items --------------------------------------------------------------------------------------
 */

/* All rows of the chunk against one block, and what comes after it prefetched. */
typedef void run_block_fn(struct chunk *chunk, const struct block *block, struct ahead *ahead);

/* The weights of a block, to be prefetched. */
typedef struct ahead ahead_fn(const struct chunk *chunk, const struct block *block);

static inline void run_item(const struct kva_cpu_linear *item, run_block_fn *run_block,
                            ahead_fn *ahead_of_block)
{
    for (uint32_t row = item->row_first; row < item->row_end; row += CHUNK_ROWS) {
        struct chunk chunk = chunk_of(item, row);
        const uint32_t count = chunk.groups * chunk.depths;
        for (uint32_t i = 0; i < count; i++) {
            const struct block block = block_at(&chunk, i);
            struct ahead ahead = {0};
            if (i + 1 < count) {
                const struct block next = block_at(&chunk, i + 1);
                ahead = ahead_of_block(&chunk, &next);
            }
            run_block(&chunk, &block, &ahead);
        }
    }
    kva_tiles_release();
}

#endif
