/* linear_amx.h - what linear_amx.c and linear_int8_amx.c share: how a chunk of rows meets the
 * blocks of an item's weights, and what is prefetched meanwhile.
 *
 * Few rows wait for memory: they take the outputs one group after the other, so that pages are
 * read through. Many rows want their own inputs from the second-level cache: they take one depth of
 * all outputs before the next. Sums wait in memory, tile by tile, between the depths. */
#ifndef KVA_KERNELS_CPU_LINEAR_AMX_H
#define KVA_KERNELS_CPU_LINEAR_AMX_H

#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kernels_amx.h"

#include <immintrin.h>
#include <stdbool.h>

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

#endif
