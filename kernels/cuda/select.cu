/* Selection: the k tokens of a KV head with the largest mean attention probability over its query
 * heads, one KV head of one sequence by one block of threads.
 *
 * Scores become keys whose order is the order wanted: the bits of the probability, which is not
 * negative, plus one; 0 is no candidate. The k-th largest key is found digit by digit; then the
 * tokens above it, and the first of those equal to it, are written in ascending position. */
#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/select.cuh"

#include <math.h>

#define THREADS 512u

struct select_params {
    const lowbit_seq *seqs;
    const uint32_t *selecting;
    struct kva_partial out, rest; /* rest.m NULL: there are no other tokens */
    uint32_t heads;
    uint32_t group;
    uint32_t window;
};

/* top[h] and inverse[h]: a head's probability of a score is exp(score - top) * inverse. */
static __device__ void find_totals(const select_params &p, const lowbit_seq &seq, uint32_t kv_head,
                                   float *top, float *inverse)
{
    for (uint32_t h = threadIdx.x; h < p.group; h += blockDim.x) {
        size_t pair = static_cast<size_t>(seq.row) * p.heads + kv_head * p.group + h;
        float m = p.out.m[pair], e = p.out.e[pair];
        if (p.rest.m) {
            float rest_m = p.rest.m[pair], most = rest_m > m ? rest_m : m;
            float low = m == -INFINITY ? 0.0f : __expf(m - most);
            float rest = rest_m == -INFINITY ? 0.0f : __expf(rest_m - most);
            e = e * low + p.rest.e[pair] * rest;
            m = most;
        }
        top[h] = m;
        inverse[h] = e > 0.0f ? 1.0f / e : 0.0f;
    }
    __syncthreads(); /* every head's total is there */
}

static __global__ void __launch_bounds__(THREADS) select_kernel(select_params p)
{
    __shared__ float top[KVA_SELECT_HEADS_MAX], inverse[KVA_SELECT_HEADS_MAX];
    __shared__ uint32_t parts[THREADS / KVA_WARP];
    const lowbit_seq &seq = p.seqs[p.selecting[blockIdx.x]];
    const uint32_t kv_head = blockIdx.y, end = seq.page_count * KVA_PAGE_TOKENS;
    const uint32_t cut = p.window && seq.position >= p.window ? seq.position - p.window + 1 : 0;
    const uint32_t first = min(max(cut, seq.hot.pinned), end), k = seq.hot.k;
    float *scores = seq.scores + static_cast<size_t>(kv_head) * p.group * end;
    uint32_t *keys = reinterpret_cast<uint32_t *>(scores); /* of the first head, over its scores */
    uint32_t *chosen = seq.hot.chosen + static_cast<size_t>(kv_head) * k;
    find_totals(p, seq, kv_head, top, inverse);
    for (uint32_t i = first + threadIdx.x; i < end; i += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t h = 0; h < p.group; h++) {
            float score = scores[static_cast<size_t>(h) * end + i];
            sum += score == -INFINITY ? 0.0f : __expf(score - top[h]) * inverse[h];
        }
        keys[i] = sum >= 0.0f ? __float_as_uint(sum) + 1 : 0;
    }
    uint32_t equal, taken = 0, equal_taken = 0;
    uint32_t least = find_least([&](uint32_t i) { return keys[i]; }, first, end, k, &equal);
    for (uint32_t base = first; base < end; base += THREADS) {
        uint32_t i = base + threadIdx.x, total;
        uint32_t key = i < end ? keys[i] : 0;
        uint32_t same = key && key == least;
        uint32_t rank = equal_taken + kva_sum_before(same, parts, &total);
        equal_taken += total;
        uint32_t take = key > least || (same && rank < equal);
        uint32_t at = taken + kva_sum_before(take, parts, &total);
        if (take)
            chosen[at] = i;
        taken += total;
    }
    for (uint32_t i = taken + threadIdx.x; i < k; i += blockDim.x)
        chosen[i] = KVA_NO_TOKEN;
}

void kva_cuda_select(struct kva_device *device, const struct kva_attend_lowbit_args *args,
                     const lowbit_seq *seqs, const uint32_t *selecting, uint32_t count)
{
    select_params p = {};
    p.seqs = seqs;
    p.selecting = selecting;
    p.out = args->out;
    if (args->rest)
        p.rest = *args->rest;
    p.heads = args->heads;
    p.group = args->heads / args->kv_heads;
    p.window = args->window;
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "select", {dim3(count, args->kv_heads), THREADS},
                 select_kernel, p);
}
