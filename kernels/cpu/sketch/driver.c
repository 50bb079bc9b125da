/* driver.c - sketch, sketch_queries, sketch_sums and sketch_weigh: a KV head of a page, a head of a
 * row, some columns of a KV head, and a split of a KV head are items of work. */
#include "kernels/convert.h"
#include "kernels/cpu/device/device_cpu.h"

#include <math.h>
#include <string.h>

/* A thread's scratch. */
struct scratch {
    float x[KVA_CPU_HEAD_DIM_MAX];
    float y[KVA_CPU_HEAD_DIM_MAX];
    float numbers[KVA_PAGE_TOKENS][KVA_CPU_HEAD_DIM_MAX];
};

_Static_assert(sizeof(struct scratch) <= KVA_CPU_SCRATCH_BYTES, "sketches outgrew the scratch");

/* --- columns ---------------------------------------------------------------------------------- */

static const float *basis_of(const struct kva_sketch_columns *by, uint32_t kv_head, uint32_t dim)
{
    return by->basis ? by->basis + (size_t)kv_head * dim * dim : NULL;
}

/* out = the columns of x. */
static void project(const struct kva_device *device, const struct kva_sketch_columns *by,
                    uint32_t kv_head, uint32_t dim, uint32_t columns, struct scratch *scratch,
                    float *out)
{
    const float *basis = basis_of(by, kv_head, dim), *from = scratch->x;
    if (basis && !by->columns) {
        device->kernels.sketch_row(out, scratch->x, basis, dim, columns);
        return;
    }
    if (basis) {
        device->kernels.sketch_row(scratch->y, scratch->x, basis, dim, dim);
        from = scratch->y;
    }
    for (uint32_t c = 0; c < columns; c++) {
        const uint32_t at = by->columns ? by->columns[(size_t)kv_head * dim + c] : c;
        out[c] = from[kva_min_u32(at, dim - 1)]; /* none was chosen where sums are no numbers */
    }
}

/* --- sketch ----------------------------------------------------------------------------------- */

static void put_16(const struct scratch *scratch, uint32_t columns, enum kva_dtype dtype,
                   uint16_t *to)
{
    for (uint32_t c = 0; c < columns; c++) {
        for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++)
            to[c * KVA_PAGE_TOKENS + t] = kva_16_of_f32(scratch->numbers[t][c], dtype);
    }
}

/* What is no number has no magnitude. */
static float largest(const float *x, uint32_t count)
{
    float most = 0.0f;
    for (uint32_t i = 0; i < count; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most < 65504.0f ? most : 65504.0f;
}

static int8_t code_of(float x, float scale)
{
    if (scale == 0.0f || x != x)
        return 0;
    float level = rintf(x / scale);
    return (int8_t)(level > 127.0f ? 127.0f : level < -127.0f ? -127.0f : level);
}

static void put_8(const struct scratch *scratch, uint32_t columns, int8_t *to)
{
    uint16_t *scales = (void *)(to + (size_t)columns * KVA_PAGE_TOKENS);
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++) {
        const float *x = scratch->numbers[t];
        scales[t] = kva_f16_of_f32(largest(x, columns) / 127.0f);
        const float scale = kva_f32_of_f16(scales[t]);
        for (uint32_t c = 0; c < columns; c++)
            to[c * KVA_PAGE_TOKENS + t] = code_of(x[c], scale);
    }
}

struct sketch_job {
    struct kva_device *device;
    const struct kva_sketch_args *args;
};

static void sketch_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct sketch_job *job = opaque;
    const struct kva_sketch_args *args = job->args;
    const uint32_t page = index / args->kv_heads, kv_head = index % args->kv_heads;
    const uint32_t dim = args->head_dim, columns = args->format.columns;
    struct scratch *scratch = kva_cpu_scratch(job->device, worker);
    const uint16_t *from =
        (const uint16_t *)((uintptr_t)args->from[page] + args->from_offset_bytes) +
        (size_t)kv_head * KVA_PAGE_TOKENS * 2 * dim;
    unsigned char *to = (unsigned char *)args->to[page] + args->to_offset_bytes +
                        kv_head * kva_sketch_head_bytes(args->format);
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++) {
        kva_f32_array(from + (size_t)t * 2 * dim, args->kv_dtype, dim, scratch->x);
        project(job->device, &args->by, kv_head, dim, columns, scratch, scratch->numbers[t]);
    }
    if (args->format.bits == 16)
        put_16(scratch, columns, args->kv_dtype, (void *)to);
    else
        put_8(scratch, columns, (void *)to);
}

void kva_cpu_sketch(struct kva_device *device, const struct kva_sketch_args *args)
{
    struct sketch_job job = {device, args};
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, args->count * args->kv_heads, sketch_item, &job);
}

/* --- sketch_queries --------------------------------------------------------------------------- */

struct queries_job {
    struct kva_device *device;
    const struct kva_sketch_queries_args *args;
};

static void queries_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct queries_job *job = opaque;
    const struct kva_sketch_queries_args *args = job->args;
    const uint32_t head = index % args->heads, dim = args->head_dim;
    struct scratch *scratch = kva_cpu_scratch(job->device, worker);
    const float *q = (const float *)args->q +
                     (size_t)args->rows[index / args->heads] * args->q_stride + (size_t)head * dim;
    for (uint32_t i = 0; i < dim; i++)
        scratch->x[i] = q[i] * args->scale;
    project(job->device, &args->by, head / (args->heads / args->kv_heads), dim, args->columns,
            scratch, args->out + (size_t)index * args->columns);
}

void kva_cpu_sketch_queries(struct kva_device *device, const struct kva_sketch_queries_args *args)
{
    struct queries_job job = {device, args};
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, args->count * args->heads, queries_item, &job);
}

/* --- sketch_sums ------------------------------------------------------------------------------ */

struct sums_job {
    struct kva_device *device;
    const struct kva_sketch_sums_args *args;
};

/* Columns of an item of work. */
#define SUMS_COLUMNS 64u

/* Some columns of a KV head: those of `sums` and of the basis from `first` on. */
struct sums_tile {
    float *sums;
    const float *basis;
    uint32_t first, count;
};

/* The magnitudes of scratch->x's columns. */
static void add_columns(const struct sums_job *job, const struct sums_tile *tile,
                        struct scratch *scratch)
{
    const float *columns = scratch->x + tile->first;
    if (tile->basis) {
        job->device->kernels.sketch_row(scratch->y, scratch->x, tile->basis, job->args->head_dim,
                                        tile->count);
        columns = scratch->y;
    }
    for (uint32_t c = 0; c < tile->count; c++)
        tile->sums[c] += fabsf(columns[c]);
}

static void add_queries(const struct sums_job *job, const struct sums_tile *tile, uint32_t kv_head,
                        struct scratch *scratch)
{
    const struct kva_sketch_sums_args *args = job->args;
    const uint32_t dim = args->head_dim, group = args->heads / args->kv_heads;
    for (uint32_t i = 0; i < args->count; i++) {
        const float *q = (const float *)args->q + (size_t)(args->row_first + i) * args->q_stride;
        for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
            memcpy(scratch->x, q + (size_t)head * dim, dim * sizeof(float));
            add_columns(job, tile, scratch);
        }
    }
}

static void add_keys(const struct sums_job *job, const struct sums_tile *tile, uint32_t kv_head,
                     struct scratch *scratch)
{
    const struct kva_sketch_sums_args *args = job->args;
    const uint32_t dim = args->head_dim;
    for (uint32_t i = 0; i < args->count; i++) {
        const uint16_t *block = args->blocks[i / KVA_PAGE_TOKENS];
        const size_t row = (size_t)kv_head * KVA_PAGE_TOKENS + i % KVA_PAGE_TOKENS;
        kva_f32_array(block + row * 2 * dim, args->kv_dtype, dim, scratch->x);
        add_columns(job, tile, scratch);
    }
}

static uint32_t sums_tiles(const struct kva_sketch_sums_args *args)
{
    return (uint32_t)kva_div_up(args->head_dim, SUMS_COLUMNS);
}

static void sums_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct sums_job *job = opaque;
    const struct kva_sketch_sums_args *args = job->args;
    const uint32_t dim = args->head_dim, kv_head = index / sums_tiles(args);
    const uint32_t first = index % sums_tiles(args) * SUMS_COLUMNS;
    const struct kva_sketch_columns by = {.basis = args->basis};
    const float *basis = basis_of(&by, kv_head, dim);
    const struct sums_tile tile = {
        .sums = args->sums + (size_t)kv_head * dim + first,
        .basis = basis ? basis + first : NULL,
        .first = first,
        .count = kva_min_u32(dim - first, SUMS_COLUMNS),
    };
    if (args->anew)
        memset(tile.sums, 0, tile.count * sizeof(float));
    (args->q ? add_queries : add_keys)(job, &tile, kv_head, kva_cpu_scratch(job->device, worker));
}

void kva_cpu_sketch_sums(struct kva_device *device, const struct kva_sketch_sums_args *args)
{
    struct sums_job job = {device, args};
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, args->kv_heads * sums_tiles(args), sums_item, &job);
}

/* --- sketch_weigh ----------------------------------------------------------------------------- */

struct weigh_job {
    struct kva_device *device;
    const struct kva_sketch_weigh_args *args;
    uint32_t group;
};

/* A split of a KV head of a sequence. */
struct piece {
    const struct kva_sketch_seq *seq;
    uint32_t kv_head;
    uint32_t split, splits;
    uint32_t page_first, page_end;
    uint32_t stride; /* of a query head's scores */
    float *scores;   /* [group][stride]: from the split's first token on */
    float *most;     /* [splits][group] of the KV head */
};

static struct piece piece_of(const struct weigh_job *job, uint32_t index)
{
    const struct kva_sketch_weigh_args *args = job->args;
    const struct kva_sketch_seq *seq = args->seqs;
    uint32_t count;
    for (; index >= (count = args->kv_heads * (uint32_t)kva_attend_splits(seq->page_count)); seq++)
        index -= count;
    const uint32_t pages = KVA_ATTEND_SPLIT_TOKENS / KVA_PAGE_TOKENS;
    struct piece piece = {.seq = seq, .splits = count / args->kv_heads};
    piece.kv_head = index / piece.splits;
    piece.split = index % piece.splits;
    piece.page_first = piece.split * pages;
    piece.page_end = kva_min_u32(piece.page_first + pages, seq->page_count);
    piece.stride = seq->page_count * KVA_PAGE_TOKENS;
    piece.scores = seq->scratch + (size_t)piece.kv_head * job->group * piece.stride +
                   (size_t)piece.split * KVA_ATTEND_SPLIT_TOKENS;
    piece.most = seq->scratch + (size_t)args->heads * piece.stride +
                 (size_t)piece.kv_head * piece.splits * job->group;
    return piece;
}

/* Of the piece's tokens, those at positions from `first` on: their index in the split. */
static uint32_t token_from(const struct piece *piece, uint32_t first)
{
    const uint32_t base = piece->page_first * KVA_PAGE_TOKENS;
    const uint32_t tokens = (piece->page_end - piece->page_first) * KVA_PAGE_TOKENS;
    return kva_min_u32(tokens, first > base ? first - base : 0);
}

static uint32_t tokens_of(const struct piece *piece)
{
    return (piece->page_end - piece->page_first) * KVA_PAGE_TOKENS;
}

/* Scores of the piece, and the largest of each head. */
static void score_item(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct weigh_job *job = opaque;
    const struct kva_sketch_weigh_args *args = job->args;
    const struct piece piece = piece_of(job, index);
    const struct kva_sketch_seq *seq = piece.seq;
    const uint32_t from = token_from(&piece, kva_max_u32(seq->first, seq->always));
    for (uint32_t page = piece.page_first; page < piece.page_end; page++)
        job->device->kernels.sketch_score(&(struct kva_cpu_sketch_score){
            .out = piece.scores + (size_t)(page - piece.page_first) * KVA_PAGE_TOKENS,
            .stride = piece.stride,
            .q = seq->q + (size_t)piece.kv_head * job->group * args->format.columns,
            .heads = job->group,
            .keys = (const unsigned char *)seq->blocks[page] + args->block_offset_bytes +
                    piece.kv_head * kva_sketch_head_bytes(args->format),
            .kv_dtype = args->kv_dtype,
            .format = args->format,
        });
    for (uint32_t h = 0; h < job->group; h++)
        piece.most[(size_t)piece.split * job->group + h] = job->device->kernels.sketch_most(
            piece.scores + (size_t)h * piece.stride + from, tokens_of(&piece) - from);
}

static void weight_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct weigh_job *job = opaque;
    const struct piece piece = piece_of(job, index);
    const struct kva_sketch_seq *seq = piece.seq;
    const uint32_t seen = token_from(&piece, seq->first), tokens = tokens_of(&piece);
    const uint32_t weighed = token_from(&piece, kva_max_u32(seq->first, seq->always));
    float *weights = seq->weights + (size_t)piece.kv_head * piece.stride +
                     (size_t)piece.split * KVA_ATTEND_SPLIT_TOKENS;
    float *most = kva_cpu_scratch(job->device, worker);
    for (uint32_t h = 0; h < job->group; h++) {
        most[h] = -INFINITY;
        for (uint32_t i = 0; i < piece.splits; i++) {
            const float x = piece.most[(size_t)i * job->group + h];
            most[h] = x > most[h] ? x : most[h];
        }
    }
    for (uint32_t t = 0; t < weighed; t++)
        weights[t] = t < seen ? -1.0f : 1.0f;
    job->device->kernels.sketch_weights(weights + weighed, piece.scores + weighed, piece.stride,
                                        most, job->group, tokens - weighed);
}

void kva_cpu_sketch_weigh(struct kva_device *device, const struct kva_sketch_weigh_args *args)
{
    struct weigh_job job = {device, args, args->heads / args->kv_heads};
    uint32_t count = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        count += args->kv_heads * (uint32_t)kva_attend_splits(args->seqs[i].page_count);
    if (kva_cpu_failed(device))
        return;
    kva_pool_run(device->pool, count, score_item, &job);
    kva_pool_run(device->pool, count, weight_item, &job);
}
