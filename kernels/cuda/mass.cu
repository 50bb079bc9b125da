/* mass.cu - attend_mass: what some rows gave to each token, by a second product of queries and keys.
 *
 * A block of threads takes up to four pages of a KV head, a warp 32 tokens, whose keys it holds in
 * registers as operands of products: a lane loads 16 bytes of a row, eight dimensions, which are two
 * pairs of two products; queries lie in shared memory in the same order (fragments), so that what a
 * product calls its k-th column is the same dimension of both. Products have tokens as rows and
 * eight (row, query head) pairs as columns. Keys are read once, whatever the number of rows.
 *
 * One addition a pair, pairs ascending (ops_keep.h): of the 32 tokens and 8 pairs of two products,
 * of which a lane has 4 tokens and 2 pairs, the four lanes of a quad give each other what they need
 * to have one token each, and all pairs (give_tokens). */
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/vector.cuh"

#include <math.h>

#define COLUMNS     8u  /* pairs of a product */
#define WARP_TOKENS 32u /* in two products of 16 rows */
#define PARTS_MAX   4u  /* pages of a block */
#define PART_WARPS  (KVA_PAGE_TOKENS / WARP_TOKENS)

/* The part of a page that one range has. */
struct mass_part {
    const void *block;
    float *mass; /* of KV head 0 and the page's token 0, which may lie before the array */
    size_t mass_stride;
    uint32_t token_first; /* of the page: slots [token_first, token_end) */
    uint32_t token_end;
    uint32_t position; /* of token 0 of the page */
};

/* What a block does, for each KV head: some parts, which ascend, and rows that see some of them. */
struct mass_item {
    uint32_t part_first, part_count;
    uint32_t row_first, row_count, position_first;
};

struct mass_params {
    const void *q;
    const mass_item *items;
    const mass_part *parts;
    const struct kva_partial *partials;
    uint32_t partial_count, q_stride, heads, group, dim;
    uint32_t chunk; /* pairs that are in shared memory at a time, a multiple of COLUMNS */
    enum kva_dtype q_dtype;
    bool q_whole; /* queries are whole vectors (vector.cuh) */
    float scale;
};

/* Pairs in shared memory at a time, at most. */
static constexpr __host__ __device__ uint32_t chunk_max(uint32_t dim)
{
    return dim > 128 ? 32 : 64;
}

/* --- queries ---------------------------------------------------------------------------------- */

/* Two pairs that a lane has. */
struct alignas(16) couple {
    float base[2];   /* the maximum, in units of log2(e) */
    uint32_t end[2]; /* tokens at positions before it are seen; 0: the row saw nothing */
};

/* Some pairs' totals. The probability of a score is exp2(score c - base) inverse. */
struct totals {
    couple couples[chunk_max(0) / 2];
    alignas(16) float inverse[chunk_max(0)];
};

/* Over all partial results: the maximum and 1 / the sum; a row that saw nothing: 0. */
static __device__ void find_total(const mass_params &p, size_t pair, float *m, float *inverse)
{
    float top = p.partials[0].m[pair], e = 0.0f;
    for (uint32_t i = 1; i < p.partial_count; i++)
        top = p.partials[i].m[pair] > top ? p.partials[i].m[pair] : top;
    for (uint32_t i = 0; i < p.partial_count; i++) {
        float part = p.partials[i].m[pair];
        e += part == -INFINITY ? 0.0f : p.partials[i].e[pair] * __expf(part - top);
    }
    *m = top;
    *inverse = e > 0.0f ? 1.0f / e : 0.0f;
}

/* Pairs [first, first + count) of the item, and nothing behind them up to whole products. */
static __device__ void load_totals(const mass_params &p, const mass_item &item, uint32_t first,
                                   uint32_t count, totals *to)
{
    const uint32_t columns = (count + COLUMNS - 1) / COLUMNS * COLUMNS;
    /* By the last threads: the first ones have one query more to load, if not all have as many. */
    for (uint32_t i = blockDim.x - 1 - threadIdx.x; i < columns; i += blockDim.x) {
        const uint32_t row = (first + i) / p.group, head = (first + i) % p.group;
        float m = 0.0f, inverse = 0.0f;
        if (i < count)
            find_total(p,
                       (item.row_first + row) * static_cast<size_t>(p.heads) +
                           blockIdx.y * p.group + head,
                       &m, &inverse);
        to->couples[i / 2].base[i % 2] = __fmul_rn(m, LOG2_E);
        to->couples[i / 2].end[i % 2] = inverse != 0.0f ? item.position_first + row + 1 : 0;
        to->inverse[i] = inverse;
    }
}

template <typename KV, int D, bool WHOLE, typename Q>
static __device__ void load_queries(const mass_params &p, const mass_item &item, uint32_t first,
                                    uint32_t count, uint4 *to)
{
    constexpr uint32_t pieces = D / KVA_VECTOR;
    const uint32_t columns = (count + COLUMNS - 1) / COLUMNS * COLUMNS;
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < columns * pieces; i += blockDim.x) {
        const uint32_t pair = i / pieces, piece = i % pieces, d = piece * KVA_VECTOR;
        const size_t row = item.row_first + (first + pair) / p.group;
        const size_t head = blockIdx.y * p.group + (first + pair) % p.group;
        const uint32_t there = pair < count && d < p.dim ? min(KVA_VECTOR, p.dim - d) : 0;
        kva_numbers x = kva_vector_to_f32(kva_vector_load<WHOLE>(
            static_cast<const Q *>(p.q) + row * p.q_stride + head * p.dim + d, there));
#pragma unroll
        for (uint32_t n = 0; n < KVA_VECTOR; n++)
            x.x[n] = kva_clamp<KV>(x.x[n]);
        const kva_vector<KV> own = kva_vector_from_f32<KV>(x);
        to[(pair / COLUMNS * (D / 32) + piece / 4) * KVA_WARP + pair % COLUMNS * 4 + piece % 4] =
            make_uint4(own.words[0], own.words[1], own.words[2], own.words[3]);
    }
}

/* Pairs [first, first + count) of the item; the queries by COLUMNS of them and 32 dimensions: 16 bytes
 * for each lane of a product. */
template <typename KV, int D>
static __device__ void load_pairs(const mass_params &p, const mass_item &item, uint32_t first,
                                  uint32_t count, uint4 *q, totals *all)
{
    if (p.q_dtype == KVA_F32)
        p.q_whole ? load_queries<KV, D, true, float>(p, item, first, count, q)
                  : load_queries<KV, D, false, float>(p, item, first, count, q);
    else if (p.q_dtype == KVA_F16)
        p.q_whole ? load_queries<KV, D, true, kva_f16>(p, item, first, count, q)
                  : load_queries<KV, D, false, kva_f16>(p, item, first, count, q);
    else
        p.q_whole ? load_queries<KV, D, true, kva_bf16>(p, item, first, count, q)
                  : load_queries<KV, D, false, kva_bf16>(p, item, first, count, q);
    load_totals(p, item, first, count, all);
}

/* --- keys ------------------------------------------------------------------------------------- */

/* A warp's tokens: of those that are g modulo 8, g = lane / 4, row j is number 8 j + g. A lane has
 * dimensions 32 i + 8 t to 32 i + 8 t + 7 of each, t the lane modulo 4. */
template <typename KV, int D> struct key_rows {
    kva_vector<KV> row[WARP_TOKENS / 8][D / 32];
};

template <typename KV, int D, bool WHOLE>
static __device__ __forceinline__ void load_keys(key_rows<KV, D> &to, const KV *first, uint32_t dim,
                                                 uint32_t lane)
{
#pragma unroll
    for (uint32_t j = 0; j < WARP_TOKENS / 8; j++) {
        const KV *row = first + (8 * j + lane / 4) * 2 * static_cast<size_t>(dim);
#pragma unroll
        for (uint32_t i = 0; i < D / 32; i++) {
            const uint32_t d = 32 * i + lane % 4 * KVA_VECTOR;
            to.row[j][i] = kva_vector_load<WHOLE>(row + d, d < dim ? min(KVA_VECTOR, dim - d) : 0);
        }
    }
}

/* s[j] = the scores of token 8 j + g and the lane's two pairs. */
template <typename KV, int D>
static __device__ __forceinline__ void
multiply(float (&s)[WARP_TOKENS / 8][2], const key_rows<KV, D> &keys, const uint4 *q, uint32_t lane)
{
    float c[WARP_TOKENS / 16][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < D / 32; i++) {
        const uint4 b = q[i * KVA_WARP + lane];
#pragma unroll
        for (uint32_t m = 0; m < WARP_TOKENS / 16; m++) {
            const uint32_t *upper = keys.row[2 * m][i].words, *lower = keys.row[2 * m + 1][i].words;
            const uint32_t a[2][4] = {{upper[0], lower[0], upper[1], lower[1]},
                                      {upper[2], lower[2], upper[3], lower[3]}};
            kva_mma<KV>(c[m], a[0], b.x, b.y);
            kva_mma<KV>(c[m], a[1], b.z, b.w);
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < WARP_TOKENS / 8; j++) {
        s[j][0] = c[j / 2][j % 2 * 2];
        s[j][1] = c[j / 2][j % 2 * 2 + 1];
    }
}

/* --- sums ------------------------------------------------------------------------------------- */

/* The lane keeps of two numbers the one that is its own, if `odd` the second, and has the same of
 * its partner: in the order of their lanes. */
static __device__ __forceinline__ void swap(float &first, float &second, bool odd, int lanes)
{
    const float theirs = __shfl_xor_sync(KVA_ALL, odd ? first : second, lanes);
    first = odd ? theirs : first;
    second = odd ? second : theirs;
}

/* x[j] = the numbers of token j and the lane's two pairs, becomes x[i] = those of the token t and
 * pairs 2 i and 2 i + 1, t the lane modulo 4. */
static __device__ __forceinline__ void give_tokens(float (&x)[4][2], uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        swap(x[0][i], x[1][i], lane & 1, 1);
        swap(x[2][i], x[3][i], lane & 1, 1);
        swap(x[0][i], x[2][i], lane & 2, 2);
        swap(x[1][i], x[3][i], lane & 2, 2);
    }
}

/* `sum`, of the lane's token, with what COLUMNS pairs gave it; `first`: the position of the warp's
 * first token. */
static __device__ __forceinline__ float add_pairs(float sum, float (&s)[WARP_TOKENS / 8][2],
                                                  const totals &all, uint32_t pair, float c,
                                                  uint32_t first, uint32_t lane)
{
    const couple own = all.couples[pair / 2 + lane % 4];
    const float *inverse = all.inverse + pair;
#pragma unroll
    for (uint32_t j = 0; j < WARP_TOKENS / 8; j++) {
        s[j][0] = kva_exp2(fmaf(s[j][0], c, -own.base[0]));
        s[j][1] = kva_exp2(fmaf(s[j][1], c, -own.base[1]));
    }
    if (!__all_sync(KVA_ALL, min(own.end[0], own.end[1]) >= first + WARP_TOKENS)) {
#pragma unroll
        for (uint32_t j = 0; j < WARP_TOKENS / 8; j++) {
            const uint32_t position = first + 8 * j + lane / 4;
            s[j][0] = position < own.end[0] ? s[j][0] : 0.0f;
            s[j][1] = position < own.end[1] ? s[j][1] : 0.0f;
        }
    }
    give_tokens(s, lane);
#pragma unroll
    for (uint32_t i = 0; i < COLUMNS; i++)
        sum = fmaf(s[i / 2][i % 2], inverse[i], sum);
    return sum;
}

/* What a warp works at: 32 tokens of a part, one of which the lane adds up. */
struct mass_warp {
    const void *keys; /* of its first token */
    float *mass;      /* of the lane's token; NULL: there is none */
    uint32_t first;   /* position of its first token */
    bool works;       /* the item has a part for it */
};

static __device__ mass_warp warp_of(const mass_params &p, const mass_item &item, uint32_t kv_head,
                                    uint32_t warp, uint32_t lane)
{
    const bool works = warp / PART_WARPS < item.part_count;
    const mass_part part = p.parts[item.part_first + (works ? warp / PART_WARPS : 0)];
    const uint32_t slot = warp % PART_WARPS * WARP_TOKENS;
    const uint32_t token = slot + lane % 4 * 8 + lane / 4;
    const bool there = works && token >= part.token_first && token < part.token_end;
    const size_t row = static_cast<size_t>(kv_head) * KVA_PAGE_TOKENS + slot;
    return {static_cast<const unsigned char *>(part.block) + row * 2 * p.dim * sizeof(uint16_t),
            there ? part.mass + kv_head * part.mass_stride + token : nullptr, part.position + slot,
            works};
}

/* WHOLE: rows are whole vectors (vector.cuh). */
template <typename KV, int D, bool WHOLE>
static __global__ void __launch_bounds__(PARTS_MAX *PART_WARPS *KVA_WARP, D > 128 || !WHOLE ? 1 : 2)
    mass_kernel(mass_params p)
{
    kva_begin();
    static_assert(WARP_TOKENS / 8 == 4 && COLUMNS == 8, "a token of a quad a lane");
    __shared__ totals all[2];
    KVA_DYNAMIC_SHARED(uint4, q); /* [2 or 1][chunk / COLUMNS][D / 32][KVA_WARP] */
    constexpr uint32_t product = D / 32 * KVA_WARP;
    const uint32_t warp = threadIdx.x / KVA_WARP, lane = threadIdx.x % KVA_WARP;
    const mass_item item = p.items[blockIdx.x];
    const mass_warp own = warp_of(p, item, blockIdx.y, warp, lane);
    const uint32_t pairs = item.row_count * p.group;
    const float c = __fmul_rn(p.scale, LOG2_E);
    float sum = own.mass ? *own.mass : 0.0f;
    key_rows<KV, D> keys;
    if (own.works)
        load_keys<KV, D, WHOLE>(keys, static_cast<const KV *>(own.keys), p.dim, lane);
    for (uint32_t base = 0; base < pairs; base += p.chunk) {
        const uint32_t count = min(p.chunk, pairs - base), buffer = base / p.chunk % 2;
        uint4 *queries = q + buffer * (p.chunk / COLUMNS * product);
        load_pairs<KV, D>(p, item, base, count, queries, &all[buffer]);
        __syncthreads(); /* the pairs are there, and those before the last ones have been used */
        for (uint32_t pair = 0; pair < count && own.works; pair += COLUMNS, queries += product) {
            float s[WARP_TOKENS / 8][2];
            multiply<KV, D>(s, keys, queries, lane);
            sum = add_pairs(sum, s, all[buffer], pair, c, own.first, lane);
        }
    }
    if (own.mass)
        *own.mass = sum;
}

/* --- the plan --------------------------------------------------------------------------------- */

/* Counted first, with no arrays, then filled. */
struct mass_plan {
    mass_part *parts;
    mass_item *items;
    uint32_t part_count, item_count;
    uint32_t item_parts; /* at most, of an item */
    uint32_t pairs_most; /* of an item */
    uint32_t rows_first; /* the first part of the rows that are planned */
    uint32_t parts_most; /* of any rows */
};

/* Whether entry i has the rows of the entry before it, and tokens behind all of its: an item may have
 * parts of both. */
static bool goes_on(const struct kva_attend_mass_args *args, uint32_t i)
{
    if (i == 0 || args->seqs[i].range_count == 0 || args->seqs[i - 1].range_count == 0)
        return false;
    const struct kva_mass_seq *seq = &args->seqs[i], *before = seq - 1;
    const struct kva_attend_range *last =
        &args->ranges[before->range_first + before->range_count - 1];
    return seq->row_first == before->row_first && seq->row_count == before->row_count &&
           seq->position_first == before->position_first &&
           args->ranges[seq->range_first].token_first >= last->token_first + last->token_count;
}

/* One more part of the rows whose first part is plan->rows_first; rows before it see nothing of it. */
static void add_part(struct mass_plan *plan, const struct kva_mass_seq *seq, const mass_part &part)
{
    if ((plan->part_count - plan->rows_first) % plan->item_parts == 0) {
        const uint32_t position = part.position + part.token_first;
        const uint32_t blind = position - kva_min_u32(position, seq->position_first);
        if (plan->items)
            plan->items[plan->item_count] = {plan->part_count, 0, seq->row_first + blind,
                                             seq->row_count - blind, seq->position_first + blind};
        plan->item_count++;
    }
    if (plan->items) {
        plan->parts[plan->part_count] = part;
        plan->items[plan->item_count - 1].part_count++;
    }
    plan->part_count++;
    plan->parts_most = kva_max_u32(plan->parts_most, plan->part_count - plan->rows_first);
}

/* The pages of an entry's ranges that a row may see. */
static void add_seq(struct mass_plan *plan, const struct kva_attend_mass_args *args,
                    const struct kva_mass_seq *seq)
{
    for (uint32_t j = 0; j < seq->range_count; j++) {
        const struct kva_attend_range *range = &args->ranges[seq->range_first + j];
        const uint32_t end = kva_min_u32(range->token_first + range->token_count,
                                         seq->position_first + seq->row_count);
        for (uint32_t t = range->token_first; t < end;) {
            const uint32_t page = t / KVA_PAGE_TOKENS, base = page * KVA_PAGE_TOKENS;
            const uint32_t stop = kva_min_u32(end, base + KVA_PAGE_TOKENS);
            const uint32_t block = range->block_first + page - range->token_first / KVA_PAGE_TOKENS;
            add_part(
                plan, seq,
                {static_cast<const unsigned char *>(args->blocks[block]) + args->block_offset_bytes,
                 seq->mass + base - seq->mass_first, seq->mass_stride, t - base, stop - base,
                 base});
            t = stop;
        }
    }
    plan->pairs_most =
        kva_max_u32(plan->pairs_most, seq->row_count * (args->heads / args->kv_heads));
}

static void walk(struct mass_plan *plan, const struct kva_attend_mass_args *args)
{
    plan->part_count = plan->item_count = plan->rows_first = 0;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        if (!goes_on(args, i))
            plan->rows_first = plan->part_count;
        add_seq(plan, args, &args->seqs[i]);
    }
}

/* Pages of a block: no more than rows have, and as many as let the GPU have two blocks a
 * multiprocessor. No bit depends on it. */
static void choose_parts(struct mass_plan *plan, const struct kva_device *device,
                         const struct kva_attend_mass_args *args)
{
    const uint64_t wanted = 2 * static_cast<uint64_t>(device->sm_count);
    plan->item_parts = 2 * PARTS_MAX;
    do {
        plan->item_parts /= 2;
        walk(plan, args);
    } while (plan->item_parts > 1 &&
             (plan->item_parts >= 2 * plan->parts_most ||
              static_cast<uint64_t>(plan->item_count) * args->kv_heads < wanted));
}

/* --- the operator ----------------------------------------------------------------------------- */

template <typename KV, bool WHOLE> static auto mass_kernel_of(uint32_t dim)
{
    return dim <= 64    ? mass_kernel<KV, 64, WHOLE>
           : dim <= 128 ? mass_kernel<KV, 128, WHOLE>
                        : mass_kernel<KV, 256, WHOLE>;
}

static auto choose_kernel(const struct kva_attend_mass_args *args)
{
    const uint32_t dim = args->head_dim;
    if (dim % KVA_VECTOR == 0)
        return args->kv_dtype == KVA_F16 ? mass_kernel_of<kva_f16, true>(dim)
                                         : mass_kernel_of<kva_bf16, true>(dim);
    return args->kv_dtype == KVA_F16 ? mass_kernel_of<kva_f16, false>(dim)
                                     : mass_kernel_of<kva_bf16, false>(dim);
}

static mass_params params_of(const struct kva_device *device,
                             const struct kva_attend_mass_args *args)
{
    mass_params p = {};
    p.partial_count = args->partial_count;
    p.q = args->q;
    p.q_dtype = device->base.info.act;
    p.q_stride = args->q_stride;
    p.heads = args->heads;
    p.group = args->heads / args->kv_heads;
    p.dim = args->head_dim;
    p.scale = args->scale;
    p.q_whole = args->head_dim % KVA_VECTOR == 0 && args->q_stride % KVA_VECTOR == 0 &&
                kva_vector_at(args->q);
    return p;
}

/* Send the plan and run it. */
static void run_mass(struct kva_device *device, const struct kva_attend_mass_args *args,
                     struct mass_plan *plan)
{
    const size_t items_bytes = plan->item_count * sizeof(mass_item);
    const size_t parts_bytes = plan->part_count * sizeof(mass_part);
    const uint32_t dim = args->head_dim <= 64 ? 64 : args->head_dim <= 128 ? 128 : 256;
    unsigned char *staged =
        static_cast<unsigned char *>(kva_cuda_stage(device, items_bytes + parts_bytes));
    if (!staged)
        return;
    plan->parts = reinterpret_cast<mass_part *>(staged);
    plan->items = reinterpret_cast<mass_item *>(staged + parts_bytes);
    walk(plan, args);
    const unsigned char *sent = static_cast<const unsigned char *>(
        kva_cuda_send(device, staged, items_bytes + parts_bytes));
    mass_params p = params_of(device, args);
    p.parts = reinterpret_cast<const mass_part *>(sent);
    p.items = reinterpret_cast<const mass_item *>(sent + parts_bytes);
    p.partials = kva_cuda_upload_array(device, args->partials, args->partial_count);
    p.chunk = kva_min_u32(chunk_max(dim), kva_blocks(plan->pairs_most, COLUMNS) * COLUMNS);
    const uint32_t buffers = plan->pairs_most > p.chunk ? 2 : 1;
    const size_t shared = buffers * static_cast<size_t>(p.chunk) * dim * sizeof(uint16_t);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend_mass",
                     {dim3(plan->item_count, args->kv_heads),
                      plan->item_parts * PART_WARPS * KVA_WARP, shared},
                     choose_kernel(args), p);
}

void kva_cuda_attend_mass(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    struct mass_plan plan = {};
    choose_parts(&plan, device, args);
    if (plan.item_count > 0 && kva_cuda_enter(device))
        run_mass(device, args, &plan);
}
