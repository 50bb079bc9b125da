/* int8_amx.c - linear with weights in int8, level amx: 16 rows by 16 outputs by 64 inputs an
 * instruction (TDPBSUD), so a group of inputs is two of them. Activations are a, row by row as
 * packed_row.h has them; weights are b, whose layout of 4 inputs for each of 16 outputs is that of
 * packed.h's steps: 16 lines of a panel are a tile, and nothing is copied but a last group that is
 * not whole.
 *
 * The sums of a group are whole numbers, so every level has the same; they leave the tiles, the
 * 128 in the weights' codes is taken off, and the group's scales and totals are vectors' work in
 * the order that packed.h says. That takes about as long as the products (of a tile's 16 rows each
 * needs an addition, a conversion, a product of scales and a multiply-add), so the fold of one
 * group stands behind the products of the next, for a processor to run both at once. */
#include "kernels/cpu/linear/amx_blocks.h"
#include "kernels/cpu/linear/packed_row.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Bytes of a group in a panel, and inputs of one product. */
#define GROUP_BYTES                                                                                \
    ((1 + KVA_PACKED_ROW_GROUP / KVA_PACKED_STEP_INPUTS) * (size_t)KVA_PACKED_LINE_BYTES)
#define HALF (KVA_PACKED_ROW_GROUP / 2)

_Static_assert(HALF == KVA_TILE_BYTES && KVA_PACKED_PANEL == KVA_AMX_OUTPUTS &&
                   KVA_PACKED_LINE_BYTES == KVA_TILE_BYTES &&
                   HALF / KVA_PACKED_STEP_INPUTS == KVA_TILE_ROWS,
               "half a group is a tile");
_Static_assert(BLOCK_DEPTH % KVA_PACKED_ROW_GROUP == 0, "blocks are whole groups");

/* Behind the totals: sums of two groups, and the last group of both panels where it is not whole.
 */
#define SUMS_BYTES (2 * 4 * TILE)
#define LAST_BYTES (2 * 2 * TILE)

_Static_assert(TOTALS_BYTES + SUMS_BYTES + LAST_BYTES <= KVA_CPU_SCRATCH_BYTES,
               "the sums of a chunk and of two groups fit the scratch");

/* Up to two panels against up to two blocks of rows, over the groups of a block. */
struct product {
    const uint8_t *w[2];      /* each [groups] of scales and steps */
    const uint8_t *last[2];   /* the two tiles of the last group, where it is not whole */
    const int8_t *x[2];       /* each [rows, groups] codes, row stride x_stride */
    const float *x_scales[2]; /* of the first row, row stride x_stride */
    const union kva_packed_term *x_terms[2];
    size_t x_stride; /* bytes */
    uint32_t rows[2];
    uint32_t groups;
    uint32_t whole;    /* groups that are whole */
    bool begins;       /* totals begin from 0 */
    uint8_t *sums;     /* scratch: [2][panels][blocks] tiles */
    uint8_t *totals;   /* [2 panels][2 blocks] tiles [rows, outputs] */
    uint32_t prefetch; /* lines a group */
    struct ahead *ahead;
};

/* The sums of group g into `sums`. */
INLINE void multiply_group(const int panels, const int blocks, const struct product *product,
                           uint32_t g, uint8_t *sums)
{
    const uint8_t *w[2] = {NULL, NULL};
    for (int p = 0; p < panels; p++)
        w[p] = g < product->whole ? product->w[p] + g * GROUP_BYTES + KVA_PACKED_LINE_BYTES
                                  : product->last[p];
    zero_sums(panels, blocks);
    for (uint32_t half = 0; half < 2; half++) {
        const size_t x = (size_t)g * KVA_PACKED_ROW_GROUP + half * HALF;
        KVA_TILE_LOAD(4, product->x[0] + x, product->x_stride);
        KVA_TILE_LOAD(6, w[0] + half * TILE, KVA_TILE_BYTES);
        KVA_TILE_DOT_SU(0, 4, 6);
        if (blocks > 1) {
            KVA_TILE_LOAD(5, product->x[1] + x, product->x_stride);
            KVA_TILE_DOT_SU(1, 5, 6);
        }
        if (panels > 1) {
            KVA_TILE_LOAD(7, w[1] + half * TILE, KVA_TILE_BYTES);
            KVA_TILE_DOT_SU(2, 4, 7);
        }
        if (panels > 1 && blocks > 1)
            KVA_TILE_DOT_SU(3, 5, 7);
    }
    store_sums(panels, blocks, sums);
}

/* totals += scales (sums + offset), group g. What belongs to a row is loaded once for both panels:
 * loads are what binds here. */
INLINE void fold_group(const int panels, const int blocks, const struct product *product,
                       uint32_t g)
{
    const bool first = product->begins && g == 0;
    __m512 scales[2];
    for (int p = 0; p < panels; p++)
        scales[p] = _mm512_load_ps(product->w[p] + g * GROUP_BYTES);
    for (int b = 0; b < blocks; b++) {
        const char *x_scales = (const char *)(product->x_scales[b] + g);
        const char *x_terms = (const char *)(product->x_terms[b] + g);
        const uint8_t *sums = product->sums + (g % 2 * 4 + (size_t)b) * TILE;
        uint8_t *totals = product->totals + (size_t)b * TILE;
        for (uint32_t i = 0; i < product->rows[b]; i++) {
            const union kva_packed_term *term = (const void *)(x_terms + i * product->x_stride);
            const float *scale = (const void *)(x_scales + i * product->x_stride);
            const __m512i offset = _mm512_set1_epi32(term->offset);
            const __m512 x_scale = _mm512_set1_ps(*scale);
            for (int p = 0; p < panels; p++) {
                const size_t at = (size_t)p * 2 * TILE + (size_t)i * KVA_TILE_BYTES;
                __m512i sum = _mm512_add_epi32(_mm512_load_si512(sums + at), offset);
                __m512 total = first ? _mm512_setzero_ps() : _mm512_load_ps(totals + at);
                __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scales[p]);
                total = _mm512_fmadd_ps(part, x_scale, total);
                _mm512_store_ps(totals + at, total);
            }
        }
    }
}

INLINE void multiply(const int panels, const int blocks, const struct product *product)
{
    for (uint32_t g = 0; g < product->groups; g++) {
        multiply_group(panels, blocks, product, g, product->sums + g % 2 * 4 * TILE);
        prefetch(product->ahead, product->prefetch);
        if (g > 0)
            fold_group(panels, blocks, product, g - 1);
    }
    fold_group(panels, blocks, product, product->groups - 1);
}

MULTIPLIES

static size_t panel_bytes(uint32_t inputs)
{
    return kva_packed_panel_bytes(kva_packed_format(KVA_INT8), inputs);
}

/* Shapes for blocks of so many rows. */
static void configure(struct chunk *chunk, const uint32_t rows[2])
{
    if (chunk->shape[0] == rows[0] && chunk->shape[1] == rows[1])
        return;
    struct kva_tile_config config = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        config.rows[i] = (uint8_t)rows[i % 2];
        config.row_bytes[i] = rows[i % 2] ? KVA_TILE_BYTES : 0;
    }
    for (int i = 6; i < 8; i++) {
        config.rows[i] = KVA_TILE_ROWS;
        config.row_bytes[i] = KVA_TILE_BYTES;
    }
    kva_tiles_configure(&config);
    memcpy(chunk->shape, rows, sizeof chunk->shape);
}

static void write_tile(const struct kva_linear_args *args, const uint8_t *sums, uint32_t row,
                       uint32_t rows, uint32_t output, uint32_t outputs)
{
    float bias[KVA_AMX_OUTPUTS];
    load_bias(args, output, outputs, bias);
    for (uint32_t i = 0; i < rows; i++)
        write_line(args, row + i, output, outputs, bias,
                   _mm512_load_ps(sums + (size_t)i * KVA_TILE_BYTES));
}

static const uint8_t *block_data(const struct chunk *chunk, const struct block *block)
{
    const struct kva_weight *weight = &chunk->item->args->weight;
    return (const uint8_t *)weight->data +
           block->out_first / KVA_PACKED_PANEL * panel_bytes(weight->cols) +
           block->in_first / KVA_PACKED_ROW_GROUP * GROUP_BYTES;
}

/* Bytes of a panel that a block has. */
static size_t block_panel_bytes(const struct block *block)
{
    return panel_bytes(block->inputs);
}

/* Steps of a last group that is not whole, and nothing behind them: activations are 0 there, but a
 * tile's load would read past the panel. */
static void copy_last(const uint8_t *panel, const struct block *block, uint8_t *to)
{
    const uint32_t whole = block->inputs / KVA_PACKED_ROW_GROUP;
    const uint32_t rest = block->inputs % KVA_PACKED_ROW_GROUP;
    const size_t bytes =
        kva_div_up(rest, KVA_PACKED_PIECE_INPUTS) * KVA_PACKED_PIECE_STEPS * KVA_PACKED_LINE_BYTES;
    memcpy(to, panel + whole * GROUP_BYTES + KVA_PACKED_LINE_BYTES, bytes);
    memset(to + bytes, 0, 2 * TILE - bytes);
}

static void run_block(struct chunk *chunk, const struct block *block, struct ahead *ahead)
{
    const struct kva_cpu_linear *item = chunk->item;
    const struct kva_packed_format *format = kva_packed_format(KVA_INT8);
    const uint32_t inputs = item->args->weight.cols;
    const uint32_t panels = block->outputs > KVA_AMX_OUTPUTS ? 2 : 1;
    struct product product = {
        .x_stride = kva_packed_x_bytes(format, inputs),
        .groups = kva_packed_x_groups(block->inputs),
        .whole = block->inputs / KVA_PACKED_ROW_GROUP,
        .begins = block->depth == 0,
        .sums = chunk->stage,
        .ahead = ahead,
    };
    product.prefetch = (uint32_t)kva_div_up(ahead->lines, (size_t)product.groups * chunk->pairs);
    for (uint32_t p = 0; p < panels; p++) {
        uint8_t *last = chunk->stage + SUMS_BYTES + p * 2 * TILE;
        product.w[p] = block_data(chunk, block) + p * panel_bytes(inputs);
        product.last[p] = last;
        if (product.whole < product.groups)
            copy_last(product.w[p], block, last);
    }
    for (uint32_t pair = 0; pair < chunk->pairs; pair++) {
        pair_rows(chunk, pair, product.rows);
        for (uint32_t r = 0; r < 2; r++) {
            const size_t row = chunk->row_first + pair * PAIR_ROWS + r * KVA_AMX_ROWS;
            const int8_t *x = (const int8_t *)item->prepared + row * product.x_stride;
            product.x[r] = x + block->in_first;
            product.x_scales[r] =
                kva_packed_x_scales(x, inputs) + block->in_first / KVA_PACKED_ROW_GROUP;
            product.x_terms[r] =
                kva_packed_x_terms(x, inputs) + block->in_first / KVA_PACKED_ROW_GROUP;
        }
        product.totals = pair_totals(chunk, block, pair);
        configure(chunk, product.rows);
        multiplies[panels - 1][product.rows[1] ? 1 : 0](&product);
        if (block->depth + 1 == chunk->depths)
            write_pair(chunk, block, pair, write_tile);
    }
}

static struct ahead ahead_of_block(const struct chunk *chunk, const struct block *block)
{
    return ahead_of(block_data(chunk, block), panel_bytes(chunk->item->args->weight.cols),
                    block_panel_bytes(block), block->outputs > KVA_AMX_OUTPUTS ? 2 : 1);
}

void kva_linear_int8_amx(const struct kva_cpu_linear *item)
{
    run_item(item, run_block, ahead_of_block);
}
