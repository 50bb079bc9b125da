/* mass.cu - attend_mass: what some rows gave to each token, by a second product of queries and
 * keys. One page of one KV head by one block of threads, a token a thread; rows and heads come in
 * their order, so that every token's additions do. Plain arithmetic: no matrix instructions. */
#include "kernels/cuda/number.cuh"

#include <math.h>

#define THREADS KVA_PAGE_TOKENS

/* Queries that are loaded at once. */
#define QUERIES 8u

/* The part of a page that one range has. */
struct mass_item {
    const void *block;
    float *mass; /* of KV head 0 and the page's token 0, which may lie before the array */
    size_t mass_stride;
    uint32_t token_first; /* of the page: slots [token_first, token_end) */
    uint32_t token_end;
    uint32_t position; /* of token 0 of the page */
    uint32_t row_first, row_count, position_first;
};

struct mass_params {
    const void *q;
    const mass_item *items;
    const struct kva_partial *partials;
    uint32_t partial_count, q_stride, heads, group, dim;
    enum kva_dtype q_dtype, kv_dtype;
    float scale;
};

/* The probability of a score is exp(score - m) * inverse; a row that saw nothing: 0. */
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

template <typename KV> static __global__ void __launch_bounds__(THREADS) mass_kernel(mass_params p)
{
    kva_begin();
    __shared__ float m[QUERIES], inverse[QUERIES];
    KVA_DYNAMIC_SHARED(float, q); /* [QUERIES][dim], rounded as attention does */
    const mass_item item = p.items[blockIdx.x];
    const uint32_t kv_head = blockIdx.y, slot = threadIdx.x, dim = p.dim;
    const KV *k = static_cast<const KV *>(item.block) +
                  (static_cast<size_t>(kv_head) * KVA_PAGE_TOKENS + slot) * 2 * dim;
    const bool there = slot >= item.token_first && slot < item.token_end;
    const uint32_t position = item.position + slot;
    float *mass = item.mass + kv_head * item.mass_stride + slot;
    float sum = there ? *mass : 0.0f;
    const uint32_t all = item.row_count * p.group;
    for (uint32_t base = 0; base < all; base += QUERIES) {
        const uint32_t count = min(QUERIES, all - base);
        __syncthreads(); /* the queries before have been used */
        for (uint32_t i = threadIdx.x; i < count * dim; i += THREADS) {
            uint32_t query = base + i / dim, head = kv_head * p.group + query % p.group;
            size_t row = item.row_first + query / p.group;
            float x = kva_load(p.q, p.q_dtype,
                               row * p.q_stride + static_cast<size_t>(head) * dim + i % dim);
            q[i] = kva_to_f32(kva_saturate<KV>(x));
        }
        if (threadIdx.x < count) {
            uint32_t query = base + threadIdx.x, head = kv_head * p.group + query % p.group;
            size_t row = item.row_first + query / p.group;
            find_total(p, row * p.heads + head, &m[threadIdx.x], &inverse[threadIdx.x]);
        }
        __syncthreads(); /* the queries are there */
        for (uint32_t j = 0; j < count && there; j++) {
            if (item.position_first + (base + j) / p.group < position || inverse[j] == 0.0f)
                continue;
            float dot = 0.0f;
            for (uint32_t i = 0; i < dim; i++)
                dot += q[j * dim + i] * kva_to_f32(k[i]);
            sum += __expf(dot * p.scale - m[j]) * inverse[j];
        }
    }
    if (there)
        *mass = sum;
}

/* The pages of a sequence's ranges that a row may see. */
static uint32_t put_items(const struct kva_attend_mass_args *args, const struct kva_mass_seq *seq,
                          mass_item *items)
{
    uint32_t count = 0;
    for (uint32_t j = 0; j < seq->range_count; j++) {
        const struct kva_attend_range *range = &args->ranges[seq->range_first + j];
        const uint32_t end = kva_min_u32(range->token_first + range->token_count,
                                         seq->position_first + seq->row_count);
        for (uint32_t t = range->token_first; t < end;) {
            const uint32_t page = t / KVA_PAGE_TOKENS, base = page * KVA_PAGE_TOKENS;
            const uint32_t stop = kva_min_u32(end, base + KVA_PAGE_TOKENS);
            const uint32_t block = range->block_first + page - range->token_first / KVA_PAGE_TOKENS;
            if (items)
                items[count] = {static_cast<const unsigned char *>(args->blocks[block]) +
                                    args->block_offset_bytes,
                                seq->mass + base - seq->mass_first,
                                seq->mass_stride,
                                t - base,
                                stop - base,
                                base,
                                seq->row_first,
                                seq->row_count,
                                seq->position_first};
            count++;
            t = stop;
        }
    }
    return count;
}

void kva_cuda_attend_mass(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < args->seq_count; i++)
        count += put_items(args, &args->seqs[i], nullptr);
    if (count == 0 || !kva_cuda_enter(device))
        return;
    const size_t bytes = count * sizeof(mass_item);
    mass_item *staged = static_cast<mass_item *>(kva_cuda_stage(device, bytes));
    if (!staged)
        return;
    for (uint32_t i = 0, at = 0; i < args->seq_count; i++)
        at += put_items(args, &args->seqs[i], staged + at);
    mass_params p = {};
    p.items = static_cast<const mass_item *>(kva_cuda_send(device, staged, bytes));
    p.partials = kva_cuda_upload_array(device, args->partials, args->partial_count);
    p.partial_count = args->partial_count;
    p.q = args->q;
    p.q_dtype = device->base.info.act;
    p.q_stride = args->q_stride;
    p.kv_dtype = args->kv_dtype;
    p.heads = args->heads;
    p.group = args->heads / args->kv_heads;
    p.dim = args->head_dim;
    p.scale = args->scale;
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "attend_mass",
                     {dim3(count, args->kv_heads), THREADS, QUERIES * p.dim * sizeof(float)},
                     args->kv_dtype == KVA_F16 ? mass_kernel<kva_f16> : mass_kernel<kva_bf16>, p);
}
