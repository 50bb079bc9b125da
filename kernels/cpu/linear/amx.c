/* amx.c - linear of level amx: weights in bf16 against activations rounded to bf16, tile by tile
 * (TDPBF16PS), sums in fp32. Weights in other formats are level avx512's.
 *
 * A product is 16 outputs by 32 inputs of weights (a, whose rows lie in the file as a tile wants
 * them) times 32 inputs by up to 16 rows of activations (b, which wants inputs in pairs, so
 * linear_prepare lays them out), summed into 16 outputs by 16 rows. Up to 2 x 2 of these run side
 * by side: 4 sums and 4 operands are all tiles that there are, and each product then needs one
 * tile to be loaded.
 *
 * An output is one chain over the products of its 32 inputs each, ascending, from 0; amx.h says
 * what is within one. So its bits depend on nothing but its row and its weights: not on how many
 * rows, outputs, items and threads there are, and sums may leave the tiles for memory at any time.
 * vdpbf16ps adds in another order, so a single row goes through tiles as well: 16 outputs at a time
 * use all of a product's weights, and there are products for 64 bytes of weights a cycle, more than
 * memory gives to a core.
 *
 * Weights are staged: a block of them is copied into tiles that lie one after the other in the
 * first-level cache. Read where they are, the 16 rows of a tile would be 16 streams from memory
 * (which gives most to few), fall into one and the same set of the cache where a row is a multiple
 * of 4 KiB, and straddle cache lines where the file has them so, for every use again. Copied, they
 * are read in runs of 1 KiB, once, and what is missing of the last tiles is filled with zeros. The
 * block that comes next is prefetched into the second-level cache in the same order meanwhile. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/linear/amx_blocks.h"
#include "kernels/cpu/simd/transpose_512.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Inputs of one product. */
#define STEP 32u

/* A block in tiles: two thirds of the first-level cache. */
#define BLOCK_BYTES (BLOCK_OUTPUTS * BLOCK_DEPTH * sizeof(uint16_t))

_Static_assert(TOTALS_BYTES + BLOCK_BYTES <= KVA_CPU_SCRATCH_BYTES,
               "the sums of a chunk and a block fit the scratch");

/* --- activations ------------------------------------------------------------------------------ */

/* Inputs, whole steps of them. */
static uint32_t padded(uint32_t inputs)
{
    return (uint32_t)kva_align_up(inputs, STEP);
}

size_t kva_linear_row_bytes_amx(const struct kva_linear_args *args)
{
    return args->weight.dtype == KVA_BF16 ? padded(args->weight.cols) * sizeof(uint16_t) : 0;
}

/* Rounds to nearest, ties to even; what is below the normal numbers becomes 0, as it does in the
 * products. */
static __m512i load_step(const float *x, uint32_t count)
{
    __m512 a, b;
    if (count >= STEP) {
        a = _mm512_loadu_ps(x);
        b = _mm512_loadu_ps(x + 16);
    } else {
        const uint32_t low = kva_min_u32(count, 16);
        a = _mm512_maskz_loadu_ps((__mmask16)((1u << low) - 1u), x);
        b = _mm512_maskz_loadu_ps((__mmask16)((1u << (count - low)) - 1u), x + low);
    }
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}

/* Rows from a multiple of KVA_AMX_ROWS on. Such a block of rows is [pairs of inputs][rows of the
 * block][2]: it has as many columns as rows, so that few rows take little room. */
void kva_linear_prepare_amx(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                            void *prepared)
{
    const uint32_t inputs = args->weight.cols;
    for (uint32_t row = first; row < end; row += KVA_AMX_ROWS) {
        const uint32_t rows = kva_min_u32(KVA_AMX_ROWS, args->rows - row);
        const float *x = (const float *)args->x + (size_t)row * args->x_stride;
        const __mmask16 mask = (__mmask16)((1u << rows) - 1u);
        uint32_t *to = (uint32_t *)prepared + (size_t)row * padded(inputs) / 2;
        for (uint32_t k = 0; k < inputs; k += STEP, to += (size_t)rows * STEP / 2) {
            __m512i lines[KVA_AMX_ROWS];
            for (uint32_t i = 0; i < KVA_AMX_ROWS; i++)
                lines[i] = i < rows ? load_step(x + (size_t)i * args->x_stride + k, inputs - k)
                                    : _mm512_setzero_si512();
            kva_transpose_512(lines);
            for (uint32_t i = 0; i < STEP / 2; i++)
                _mm512_mask_storeu_epi32(to + (size_t)i * rows, mask, lines[i]);
        }
    }
}

/* --- weights ---------------------------------------------------------------------------------- */

static const uint8_t *block_data(const struct chunk *chunk, const struct block *block)
{
    const struct kva_weight *weight = &chunk->item->args->weight;
    return (const uint8_t *)((const uint16_t *)weight->data +
                             (size_t)block->out_first * weight->cols + block->in_first);
}

static size_t block_stride(const struct chunk *chunk)
{
    return chunk->item->args->weight.cols * sizeof(uint16_t);
}

/* Copies a block into tiles. `share`: of 8 lines copied, so many are prefetched. */
static void stage(const struct chunk *chunk, const struct block *block, uint32_t panels,
                  struct ahead *ahead, uint32_t share)
{
    const uint8_t *data = block_data(chunk, block);
    const size_t stride = block_stride(chunk);
    const uint32_t steps = (uint32_t)kva_div_up(block->inputs, STEP);
    for (uint32_t n = 0; n < panels * KVA_AMX_OUTPUTS; n++) {
        const uint16_t *from = (const uint16_t *)(const void *)(data + n * stride);
        uint8_t *line = chunk->stage + n / KVA_AMX_OUTPUTS * TILE +
                        (size_t)(n % KVA_AMX_OUTPUTS) * KVA_TILE_BYTES;
        for (uint32_t s = 0; s < steps; s++, from += STEP, line += panels * TILE) {
            const uint32_t left = n < block->outputs ? block->inputs - s * STEP : 0;
            const __mmask32 mask = left >= STEP ? 0xFFFFFFFFu : (1u << left) - 1u;
            _mm512_store_si512(line, _mm512_maskz_loadu_epi16(mask, from));
        }
        prefetch(ahead, steps * share / 8);
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* The staged block against one or two blocks of rows. */
struct product {
    const uint8_t *w;    /* [steps][panels] tiles */
    const uint8_t *x[2]; /* each [steps] tiles of x_bytes a row */
    size_t x_bytes[2];
    uint32_t steps;
    bool begins;       /* sums begin from 0 */
    uint8_t *totals;   /* [2][2] tiles */
    uint32_t prefetch; /* lines a step */
    struct ahead *ahead;
};

INLINE void multiply(const int panels, const int blocks, const struct product *product)
{
    uint8_t *totals = product->totals;
    if (product->begins) {
        zero_sums(panels, blocks);
    } else {
        KVA_TILE_LOAD(0, totals + sum_at(0, 0), KVA_TILE_BYTES);
        if (blocks > 1)
            KVA_TILE_LOAD(1, totals + sum_at(0, 1), KVA_TILE_BYTES);
        if (panels > 1)
            KVA_TILE_LOAD(2, totals + sum_at(1, 0), KVA_TILE_BYTES);
        if (panels > 1 && blocks > 1)
            KVA_TILE_LOAD(3, totals + sum_at(1, 1), KVA_TILE_BYTES);
    }
    const uint8_t *w = product->w, *x0 = product->x[0], *x1 = product->x[1];
    for (uint32_t s = 0; s < product->steps; s++) {
        KVA_TILE_LOAD(6, x0, product->x_bytes[0]);
        KVA_TILE_LOAD(4, w, KVA_TILE_BYTES);
        KVA_TILE_DOT_BF16(0, 4, 6);
        if (panels > 1) {
            KVA_TILE_LOAD(5, w + TILE, KVA_TILE_BYTES);
            KVA_TILE_DOT_BF16(2, 5, 6);
        }
        if (blocks > 1) {
            KVA_TILE_LOAD(7, x1, product->x_bytes[1]);
            KVA_TILE_DOT_BF16(1, 4, 7);
            x1 += STEP / 2 * product->x_bytes[1];
        }
        if (panels > 1 && blocks > 1)
            KVA_TILE_DOT_BF16(3, 5, 7);
        prefetch(product->ahead, product->prefetch);
        w += (size_t)panels * TILE;
        x0 += STEP / 2 * product->x_bytes[0];
    }
    store_sums(panels, blocks, totals);
}

MULTIPLIES

/* Shapes for blocks of so many rows; missing outputs are zeros. */
static void configure(struct chunk *chunk, const uint32_t rows[2])
{
    if (chunk->shape[0] == rows[0] && chunk->shape[1] == rows[1])
        return;
    struct kva_tile_config config = {.palette = 1};
    for (int i = 0; i < (rows[1] ? 2 : 1); i++) {
        const uint16_t bytes = (uint16_t)(rows[i] * sizeof(float));
        config.row_bytes[i] = config.row_bytes[2 + i] = config.row_bytes[6 + i] = bytes;
        config.rows[i] = config.rows[2 + i] = config.rows[6 + i] = KVA_TILE_ROWS;
    }
    for (int i = 4; i < 6; i++) {
        config.row_bytes[i] = KVA_TILE_BYTES;
        config.rows[i] = KVA_TILE_ROWS;
    }
    kva_tiles_configure(&config);
    memcpy(chunk->shape, rows, sizeof chunk->shape);
}

/* --- outputs ---------------------------------------------------------------------------------- */

static void write_tile(const struct kva_linear_args *args, const uint8_t *sums, uint32_t row,
                       uint32_t rows, uint32_t output, uint32_t outputs)
{
    __m512i lines[KVA_AMX_ROWS];
    const __mmask16 row_mask = (__mmask16)((1u << rows) - 1u);
    for (int i = 0; i < 16; i++)
        lines[i] = _mm512_maskz_load_epi32(row_mask, sums + (size_t)i * KVA_TILE_BYTES);
    kva_transpose_512(lines);
    float bias[KVA_AMX_OUTPUTS];
    load_bias(args, output, outputs, bias);
    for (uint32_t i = 0; i < rows; i++)
        write_line(args, row + i, output, outputs, bias, _mm512_castsi512_ps(lines[i]));
}

/* --- items ------------------------------------------------------------------------------------ */

static void run_block(struct chunk *chunk, const struct block *block, struct ahead *ahead)
{
    const struct kva_cpu_linear *item = chunk->item;
    const size_t pad = padded(item->args->weight.cols);
    const uint32_t panels = block->outputs > KVA_AMX_OUTPUTS ? 2 : 1;
    struct product product = {
        .w = chunk->stage,
        .steps = (uint32_t)kva_div_up(block->inputs, STEP),
        .begins = block->depth == 0,
        .ahead = ahead,
    };
    /* One pair of rows is soon done with a block: memory's time is that of the copy. */
    stage(chunk, block, panels, ahead, chunk->pairs == 1 ? 7 : 0);
    product.prefetch = (uint32_t)kva_div_up(ahead->lines, (size_t)product.steps * chunk->pairs);
    for (uint32_t pair = 0; pair < chunk->pairs; pair++) {
        uint32_t rows[2];
        pair_rows(chunk, pair, rows);
        for (uint32_t r = 0; r < 2; r++) {
            const size_t row = chunk->row_first + pair * PAIR_ROWS + r * KVA_AMX_ROWS;
            product.x_bytes[r] = rows[r] * sizeof(float);
            product.x[r] = (const uint8_t *)item->prepared + row * pad * sizeof(uint16_t) +
                           (size_t)block->in_first * rows[r] * sizeof(uint16_t);
        }
        product.totals = pair_totals(chunk, block, pair);
        configure(chunk, rows);
        multiplies[panels - 1][rows[1] ? 1 : 0](&product);
        if (block->depth + 1 == chunk->depths)
            write_pair(chunk, block, pair, write_tile);
    }
}

static struct ahead ahead_of_block(const struct chunk *chunk, const struct block *block)
{
    return ahead_of(block_data(chunk, block), block_stride(chunk), block->inputs * sizeof(uint16_t),
                    block->outputs);
}

void kva_linear_amx(const struct kva_cpu_linear *item)
{
    if (item->args->weight.dtype == KVA_BF16)
        run_item(item, run_block, ahead_of_block);
    else
        kva_linear_avx512(item);
}
