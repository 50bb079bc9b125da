/* quantise.cu - quantise: low-bit blocks from 16-bit ones, one KV head of a block by one block of
 * threads.
 *
 * The numbers, and the order in which they are added, are those of the CPU's reference
 * (kernels/cpu/lowbit/ref.c): no product is fused with a sum, so the blocks are the same bits. */
#include "kernels/cuda/number.cuh"

#include <math.h>

#define THREADS     256u
#define BLOCKS      4u /* that a multiprocessor has registers, and at heads of 128 memory, for */
#define GROUP_LANES 16u

struct quantise_params {
    const void *const *from;
    void *const *to;
    const uint32_t *exempt; /* NULL: none */
    size_t from_offset, to_offset;
    uint32_t dim;
    uint32_t row;      /* elements of a token's row in shared memory */
    uint32_t code_row; /* and codes of its values: the tokens of a warp meet no bank twice */
    uint32_t group;
    uint32_t bits, value_bits;
    enum kva_lowbit_levels key_levels, value_levels;
    bool token_keys; /* KVA_KEYS_PER_TOKEN */
    struct kva_lowbit_layout layout;
};

/* One group: `count` elements `step` apart; those before `counted` do not count for its levels. */
template <typename KV> struct group {
    const KV *x;
    unsigned char *codes; /* the same way apart as x */
    uint32_t step, code_step;
    uint32_t count, counted;
    float zero, scale; /* as f16 has them */

    /* What is beyond the range of f16 counts as its end, a negative zero as zero. */
    __device__ float at(uint32_t i) const
    {
        float y = kva_to_f32(x[i * step]) + 0.0f;
        y = y > 65504.0f ? 65504.0f : y;
        return y < -65504.0f ? -65504.0f : y;
    }
};

static __device__ __forceinline__ float as_f16(float x)
{
    return kva_to_f32(kva_saturate<kva_f16>(x));
}

/* sum (x[i] - low) * (codes ? code[i] : 1) over what counts, by lanes, then by halves. */
template <typename KV>
static __device__ float group_sum(const group<KV> &g, float low, bool by_code)
{
    float lanes[GROUP_LANES];
#pragma unroll
    for (uint32_t i = 0; i < GROUP_LANES; i++)
        lanes[i] = 0.0f;
    for (uint32_t base = 0; base < g.count; base += GROUP_LANES) {
#pragma unroll
        for (uint32_t lane = 0; lane < GROUP_LANES; lane++) {
            uint32_t i = base + lane;
            if (i < g.counted || i >= g.count)
                continue;
            float y = __fsub_rn(g.at(i), low);
            if (by_code)
                y = __fmul_rn(y, static_cast<float>(g.codes[i * g.code_step]));
            lanes[lane] = __fadd_rn(lanes[lane], y);
        }
    }
#pragma unroll
    for (uint32_t half = GROUP_LANES / 2; half > 0; half /= 2) {
#pragma unroll
        for (uint32_t i = 0; i < GROUP_LANES / 2; i++) {
            if (i < half) /* known to the compiler, as the bounds of the loop are */
                lanes[i] = __fadd_rn(lanes[i], lanes[i + half]);
        }
    }
    return lanes[0];
}

template <typename KV> static __device__ void group_constant(group<KV> &g, float value)
{
    g.scale = 0.0f;
    g.zero = as_f16(value);
    for (uint32_t i = 0; i < g.count; i++)
        g.codes[i * g.code_step] = 0;
}

/* Levels by least squares over the codes, relative to `low`. */
template <typename KV> static __device__ void group_fit(group<KV> &g, float low, float mean)
{
    uint32_t sum_c = 0, sum_cc = 0, n = g.count - g.counted;
    for (uint32_t i = g.counted; i < g.count; i++) {
        uint32_t code = g.codes[i * g.code_step];
        sum_c += code;
        sum_cc += code * code;
    }
    float sum_y = group_sum(g, low, false), sum_yc = group_sum(g, low, true);
    float spread = static_cast<float>(n * sum_cc - sum_c * sum_c);
    float scale = __fdiv_rn(__fsub_rn(__fmul_rn(static_cast<float>(n), sum_yc),
                                      __fmul_rn(sum_y, static_cast<float>(sum_c))),
                            spread);
    float rounded = as_f16(scale);
    if (!(spread > 0.0f) || rounded == 0.0f) {
        group_constant(g, __fadd_rn(low, mean));
        return;
    }
    g.scale = rounded;
    float rest = __fsub_rn(sum_y, __fmul_rn(scale, static_cast<float>(sum_c)));
    g.zero = as_f16(__fadd_rn(low, __fdiv_rn(rest, static_cast<float>(n))));
}

template <typename KV>
static __device__ void quantise_group(group<KV> &g, uint32_t bits, enum kva_lowbit_levels levels)
{
    float low = INFINITY, high = -INFINITY;
    for (uint32_t i = g.counted; i < g.count; i++) {
        float x = g.at(i);
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    if (!(low < high)) {
        group_constant(g, low == high ? low : 0.0f);
        return;
    }
    float n = static_cast<float>(g.count - g.counted);
    float mean = __fdiv_rn(group_sum(g, low, false), n);
    uint32_t code_max = (1u << bits) - 1;
    if (bits == 1) {
        float threshold = __fadd_rn(__fmul_rn(0.5f, low), __fmul_rn(0.5f, high));
        g.zero = as_f16(__fadd_rn(__fmul_rn(0.75f, low), __fmul_rn(0.25f, high)));
        g.scale = as_f16(__fsub_rn(__fmul_rn(0.5f, high), __fmul_rn(0.5f, low)));
        if (levels == KVA_LEVELS_EXTREMES) {
            g.zero = as_f16(low);
            g.scale = as_f16(fminf(__fsub_rn(high, low), 65504.0f));
        }
        for (uint32_t i = 0; i < g.count; i++)
            g.codes[i * g.code_step] = g.at(i) >= threshold;
    } else {
        g.zero = as_f16(low);
        g.scale = as_f16(__fdiv_rn(__fsub_rn(high, low), static_cast<float>(code_max)));
        float inverse = __fdiv_rn(1.0f, g.scale);
        for (uint32_t i = 0; i < g.count && g.scale != 0.0f; i++) {
            float level = __fmul_rn(__fsub_rn(g.at(i), g.zero), inverse);
            level = level > 0.0f ? level : 0.0f;
            level = level < static_cast<float>(code_max) ? level : static_cast<float>(code_max);
            g.codes[i * g.code_step] = static_cast<unsigned char>(rintf(level));
        }
    }
    if (g.scale == 0.0f)
        group_constant(g, __fadd_rn(low, mean));
    else if (levels == KVA_LEVELS_FIT)
        group_fit(g, low, mean);
}

/* A row of KVA_KEYS_PER_TOKEN. */
template <typename KV> static __device__ void quantise_row(group<KV> &g, uint32_t bits)
{
    float low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < g.count; i++) {
        float x = g.at(i);
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    if (!(low <= high)) {
        group_constant(g, 0.0f);
        return;
    }
    const float code_max = static_cast<float>((1u << bits) - 1);
    g.scale = as_f16(__fdiv_rn(__fsub_rn(high, low), code_max));
    if (g.scale == 0.0f) {
        group_constant(g, __fadd_rn(__fmul_rn(0.5f, low), __fmul_rn(0.5f, high)));
        return;
    }
    g.zero = as_f16(low);
    const float inverse = __fdiv_rn(1.0f, g.scale);
    for (uint32_t i = 0; i < g.count; i++) {
        float level = __fmul_rn(__fsub_rn(g.at(i), g.zero), inverse);
        level = level > 0.0f ? level : 0.0f;
        level = level < code_max ? level : code_max;
        g.codes[i * g.code_step] = static_cast<unsigned char>(rintf(level));
    }
}

/* Byte `index` of a plane: two nibbles of four codes. */
static __device__ unsigned char pack_byte(const unsigned char *codes, uint32_t inner,
                                          uint32_t four_step, uint32_t inner_step, uint32_t index,
                                          uint32_t plane)
{
    uint32_t byte = 0;
    for (uint32_t j = 0; j < 8; j++) {
        uint32_t nibble = 2 * index + j / 4;
        uint32_t at = (nibble / inner * 4 + j % 4) * four_step + nibble % inner * inner_step;
        byte |= (codes[at] >> plane & 1u) << j;
    }
    return static_cast<unsigned char>(byte);
}

static __device__ void store_f16(unsigned char *to, uint32_t index, float x)
{
    reinterpret_cast<kva_f16 *>(to)[index] = kva_from_f32<kva_f16>(x);
}

/* What a block of threads has in shared memory. */
template <typename KV> struct page_codes {
    KV *x;                /* [token][row]: key, value */
    unsigned char *k, *v; /* codes: [token][dim], [token][code_row] */
};

template <typename KV>
static __device__ void load_rows(const quantise_params &p, const KV *from, KV *x)
{
    const uint32_t row = 2 * p.dim, count = KVA_PAGE_TOKENS * row;
    const uint4 *whole = reinterpret_cast<const uint4 *>(from);
    for (uint32_t i = threadIdx.x; i < count / 8; i += THREADS) { /* a head has whole fours */
        const uint4 eight = whole[i];
        uint32_t *to = reinterpret_cast<uint32_t *>(x + i * 8 / row * p.row + i * 8 % row);
        to[0] = eight.x;
        to[1] = eight.y;
        to[2] = eight.z;
        to[3] = eight.w;
    }
}

/* Keys of a channel, `i` of them a page. */
template <typename KV>
static __device__ void quantise_keys(const quantise_params &p, const page_codes<KV> &page,
                                     unsigned char *to, uint32_t exempt, uint32_t i)
{
    const uint32_t first = i / p.dim * p.group, channel = i % p.dim;
    const uint32_t counted = exempt > first ? min(exempt - first, p.group) : 0;
    group<KV> g = {page.x + first * p.row + channel,
                   page.k + first * p.dim + channel,
                   p.row,
                   p.dim,
                   p.group,
                   counted,
                   0.0f,
                   0.0f};
    quantise_group(g, p.bits, p.key_levels);
    store_f16(to + p.layout.k_scale, i, g.scale);
    store_f16(to + p.layout.k_zero, i, g.zero);
}

/* A group of a token's value. */
template <typename KV>
static __device__ void quantise_values(const quantise_params &p, const page_codes<KV> &page,
                                       unsigned char *to, uint32_t i)
{
    const uint32_t first = i / KVA_PAGE_TOKENS * p.group, token = i % KVA_PAGE_TOKENS;
    group<KV> g = {page.x + token * p.row + p.dim + first,
                   page.v + token * p.code_row + first,
                   1,
                   1,
                   min(p.group, p.dim - first),
                   0,
                   0.0f,
                   0.0f};
    quantise_group(g, p.value_bits, p.value_levels);
    store_f16(to + p.layout.v_scale, i, g.scale);
    store_f16(to + p.layout.v_zero, i, g.zero);
}

/* A token's key, or its value, whole. */
template <typename KV>
static __device__ void quantise_token(const quantise_params &p, const page_codes<KV> &page,
                                      unsigned char *to, uint32_t i)
{
    const uint32_t token = i % KVA_PAGE_TOKENS;
    const bool value = i >= KVA_PAGE_TOKENS;
    group<KV> g = {page.x + token * p.row + (value ? p.dim : 0),
                   value ? page.v + token * p.code_row : page.k + token * p.dim,
                   1,
                   1,
                   p.dim,
                   0,
                   0.0f,
                   0.0f};
    quantise_row(g, p.bits);
    store_f16(to + (value ? p.layout.v_scale : p.layout.k_scale), token, g.scale);
    store_f16(to + (value ? p.layout.v_zero : p.layout.k_zero), token, g.zero);
}

template <typename KV>
static __global__ void __launch_bounds__(THREADS, BLOCKS) quantise_kernel(quantise_params p)
{
    kva_begin();
    const uint32_t block = blockIdx.x, head = blockIdx.y;
    const KV *from = reinterpret_cast<const KV *>(
                         static_cast<const unsigned char *>(p.from[block]) + p.from_offset) +
                     static_cast<size_t>(head) * KVA_PAGE_TOKENS * 2 * p.dim;
    unsigned char *to =
        static_cast<unsigned char *>(p.to[block]) + p.to_offset + head * p.layout.head_bytes;
    KVA_DYNAMIC_SHARED(unsigned char, shared_bytes);
    page_codes<KV> page;
    page.x = reinterpret_cast<KV *>(shared_bytes);
    page.k = shared_bytes + KVA_PAGE_TOKENS * p.row * sizeof(KV);
    page.v = page.k + KVA_PAGE_TOKENS * p.dim;
    load_rows(p, from, page.x);
    __syncthreads(); /* all rows are there */
    const uint32_t exempt = p.exempt ? p.exempt[block] : 0;
    const uint32_t keys = p.layout.k_groups * p.dim;
    const uint32_t groups =
        p.token_keys ? 2 * KVA_PAGE_TOKENS : keys + p.layout.v_groups * KVA_PAGE_TOKENS;
    for (uint32_t i = threadIdx.x; i < groups; i += THREADS) {
        if (p.token_keys)
            quantise_token(p, page, to, i);
        else if (i < keys)
            quantise_keys(p, page, to, exempt, i);
        else
            quantise_values(p, page, to, i - keys);
    }
    __syncthreads(); /* all codes are there */
    for (uint32_t i = threadIdx.x; i < p.value_bits * p.layout.plane_bytes; i += THREADS) {
        const uint32_t plane = i / p.layout.plane_bytes, index = i % p.layout.plane_bytes;
        if (plane < p.bits)
            to[p.layout.k_codes + i] = pack_byte(page.k, KVA_PAGE_TOKENS, 1, p.dim, index, plane);
        to[p.layout.v_codes + i] = pack_byte(page.v, p.dim, p.code_row, 1, index, plane);
    }
}

void kva_cuda_quantise(struct kva_device *device, const struct kva_quantise_args *args)
{
    if (args->count == 0 || !kva_cuda_enter(device))
        return;
    quantise_params p = {};
    p.from = kva_cuda_upload_array(device, args->from, args->count);
    p.to = kva_cuda_upload_array(device, args->to, args->count);
    if (args->exempt)
        p.exempt = kva_cuda_upload_array(device, args->exempt, args->count);
    if (kva_cuda_failed(device))
        return;
    p.from_offset = args->from_offset_bytes;
    p.to_offset = args->to_offset_bytes;
    p.dim = args->head_dim;
    p.row = 2 * args->head_dim + 2; /* 4 bytes more: the rows of a warp meet no bank twice */
    p.group = args->format.group;
    p.bits = args->format.bits;
    p.value_bits = kva_lowbit_value_bits(args->format);
    p.key_levels = args->format.key_levels;
    p.value_levels = args->format.value_levels;
    p.token_keys = args->format.keys == KVA_KEYS_PER_TOKEN;
    p.layout = kva_lowbit_layout_of(args->format, args->head_dim);
    p.code_row = args->head_dim % 8 == 0 ? args->head_dim + 4 : args->head_dim;
    size_t shared_bytes = KVA_PAGE_TOKENS * (p.row * 2 + p.dim + p.code_row);
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "quantise",
                 {dim3(args->count, args->kv_heads), THREADS, shared_bytes},
                 args->kv_dtype == KVA_F16 ? quantise_kernel<kva_f16> : quantise_kernel<kva_bf16>,
                 p);
}
