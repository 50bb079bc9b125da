/* rows.cu - operators that treat rows alone: embed, rope, glu, kv_append, merge, gather, sum_rows. All
 * are bound by memory or by the launch; each element is computed in fp32 and rounded once. */
#include "kernels/cuda/glu.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/vector.cuh"

#include <math.h>

#define THREADS 256u

/* --- embed ------------------------------------------------------------------------------------ */

template <typename T>
static __global__ void embed_kernel(T *out, kva_weight table, kva_weight learned,
                                    const uint32_t *ids, const uint32_t *positions, float scale)
{
    kva_begin();
    size_t row = blockIdx.x, dim = table.cols;
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x) {
        float x = kva_load(table.data, table.dtype, ids[row] * dim + i) * scale;
        if (learned.data)
            x += kva_load(learned.data, learned.dtype, positions[row] * dim + i);
        out[row * dim + i] = kva_from_f32<T>(x);
    }
}

template <typename T>
static __global__ void embed_packed_kernel(T *out, kva_cuda_packed table, kva_weight learned,
                                           const uint32_t *ids, const uint32_t *positions,
                                           float scale)
{
    kva_begin();
    size_t row = blockIdx.x, dim = table.cols;
    for (uint32_t first = threadIdx.x * 4; first < dim; first += blockDim.x * 4) {
        float four[4];
        kva_packed_load_four(table, ids[row], first, four);
        for (uint32_t i = first; i < first + 4 && i < dim; i++) {
            float x = four[i - first] * scale;
            if (learned.data)
                x += kva_load(learned.data, learned.dtype, positions[row] * dim + i);
            out[row * dim + i] = kva_from_f32<T>(x);
        }
    }
}

template <typename T>
static void embed(struct kva_device *device, const struct kva_embed_args *args)
{
    const uint32_t *positions = nullptr;
    const uint32_t *ids = kva_cuda_upload_array(device, args->ids, args->rows);
    if (args->positions_table.data)
        positions = kva_cuda_upload_array(device, args->positions, args->rows);
    if (!kva_cuda_failed(device) && kva_dtype_is_packed(args->table.dtype))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "embed packed", {args->rows, THREADS},
                     embed_packed_kernel<T>, static_cast<T *>(args->out),
                     kva_cuda_packed_of(&args->table), args->positions_table, ids, positions,
                     args->scale);
    else if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "embed", {args->rows, THREADS}, embed_kernel<T>,
                     static_cast<T *>(args->out), args->table, args->positions_table, ids,
                     positions, args->scale);
}

void kva_cuda_embed(struct kva_device *device, const struct kva_embed_args *args)
{
    if (args->rows > 0 && kva_cuda_enter(device))
        KVA_BY_FORMAT(device->base.info.act, embed, device, args);
}

/* --- rope ------------------------------------------------------------------------------------- */

template <typename T> struct rope_rows {
    T *x;
    uint32_t heads, stride;
};

/* A row by blocks side by side, a thread for each vector of pairs. Angles reach 10^5 and more: they
 * are reduced to a part of a turn in fp64, the rest is fp32. */
template <typename T, bool WHOLE>
static __global__ void rope_kernel(rope_rows<T> first, rope_rows<T> second,
                                   const uint32_t *positions, const float *inv_freq,
                                   uint32_t head_dim, uint32_t half, float factor)
{
    kva_begin();
    KVA_DYNAMIC_SHARED(float, angles); /* [2][half]: cosines, sines */
    const uint32_t per_head = (half + KVA_VECTOR - 1) / KVA_VECTOR;
    const uint32_t at = blockIdx.y * blockDim.x + threadIdx.x, all = at / per_head;
    const uint32_t begin = at % per_head * KVA_VECTOR;
    const rope_rows<T> &rows = all < first.heads ? first : second;
    const uint32_t head = all < first.heads ? all : all - first.heads;
    const uint32_t count = head < rows.heads ? min(half - begin, KVA_VECTOR) : 0;
    T *low = rows.x + static_cast<size_t>(blockIdx.x) * rows.stride +
             static_cast<size_t>(head) * head_dim + begin;
    const kva_vector<T> lows = kva_vector_load<WHOLE>(low, count);
    const kva_vector<T> highs = kva_vector_load<WHOLE>(low + half, count);
    for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
        double turns = positions[blockIdx.x] * static_cast<double>(inv_freq[i]) *
                       0.15915494309189533577; /* 1 / 2 pi */
        float c, s;
        sincospif(2.0f * static_cast<float>(turns - rint(turns)), &s, &c);
        angles[i] = c * factor;
        angles[half + i] = s * factor;
    }
    __syncthreads(); /* all angles are there */
    const float *angle = angles + begin;
    const kva_numbers c = kva_vector_to_f32(kva_vector_load<WHOLE>(angle, count));
    const kva_numbers s = kva_vector_to_f32(kva_vector_load<WHOLE>(angle + half, count));
    kva_numbers a = kva_vector_to_f32(lows), b = kva_vector_to_f32(highs);
#pragma unroll
    for (uint32_t i = 0; i < KVA_VECTOR; i++) {
        const float turned = a.x[i] * c.x[i] - b.x[i] * s.x[i];
        b.x[i] = b.x[i] * c.x[i] + a.x[i] * s.x[i];
        a.x[i] = turned;
    }
    kva_vector_store<WHOLE>(low, kva_vector_from_f32<T>(a), count);
    kva_vector_store<WHOLE>(low + half, kva_vector_from_f32<T>(b), count);
}

template <typename T> static void rope(struct kva_device *device, const struct kva_rope_args *args)
{
    uint32_t half = args->rotary_dim / 2;
    const uint32_t *positions = kva_cuda_upload_array(device, args->positions, args->rows);
    const float *inv_freq = kva_cuda_upload_array(device, args->inv_freq, half);
    if (kva_cuda_failed(device))
        return;
    const rope_rows<T> first = {static_cast<T *>(args->x), args->heads, args->x_stride};
    rope_rows<T> second = {};
    if (args->second)
        second = {static_cast<T *>(args->second), args->second_heads, args->second_stride};
    const bool whole = half % KVA_VECTOR == 0 && args->head_dim % KVA_VECTOR == 0 &&
                       first.stride % KVA_VECTOR == 0 && kva_vector_at(first.x) &&
                       second.stride % KVA_VECTOR == 0 && kva_vector_at(second.x);
    const size_t vectors = (first.heads + second.heads) * kva_div_up(half, KVA_VECTOR);
    const size_t threads = kva_min_size(kva_align_up(vectors, KVA_WARP), THREADS);
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "rope",
                 {dim3(args->rows, kva_blocks(vectors, static_cast<uint32_t>(threads))),
                  static_cast<uint32_t>(threads), 2 * half * sizeof(float)},
                 whole ? rope_kernel<T, true> : rope_kernel<T, false>, first, second, positions,
                 inv_freq, args->head_dim, half, args->factor);
}

void kva_cuda_rope(struct kva_device *device, const struct kva_rope_args *args)
{
    if (args->rows == 0 || args->rotary_dim < 2 || !kva_cuda_enter(device))
        return;
    KVA_BY_FORMAT(device->base.info.act, rope, device, args);
}

/* --- glu -------------------------------------------------------------------------------------- */

/* Vectors that a thread has of each of its inputs. */
#define GLU_OWN     2u
#define GLU_THREADS 128u

template <typename T, typename ACTIVATION, bool WHOLE>
static __global__ void __launch_bounds__(GLU_THREADS)
    glu_kernel(T *out, const T *gate, const T *up, size_t count)
{
    kva_begin();
    kva_vector<T> gates[GLU_OWN], ups[GLU_OWN] = {};
    size_t first[GLU_OWN];
    uint32_t there[GLU_OWN];
#pragma unroll
    for (uint32_t i = 0; i < GLU_OWN; i++) {
        const size_t block = static_cast<size_t>(blockIdx.x) * GLU_OWN + i;
        first[i] = (block * GLU_THREADS + threadIdx.x) * KVA_VECTOR;
        there[i] =
            first[i] < count
                ? static_cast<uint32_t>(min(count - first[i], static_cast<size_t>(KVA_VECTOR)))
                : 0;
        gates[i] = kva_vector_load<WHOLE>(gate + first[i], there[i]);
        if (up)
            ups[i] = kva_vector_load<WHOLE>(up + first[i], there[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < GLU_OWN; i++) {
        kva_numbers y = kva_vector_to_f32(gates[i]);
        const kva_numbers by = kva_vector_to_f32(ups[i]);
#pragma unroll
        for (uint32_t j = 0; j < KVA_VECTOR; j++) {
            y.x[j] = ACTIVATION::of(y.x[j]);
            if (up)
                y.x[j] *= by.x[j];
        }
        kva_vector_store<WHOLE>(out + first[i], kva_vector_from_f32<T>(y), there[i]);
    }
}

template <typename T, typename ACTIVATION>
static void glu_of(struct kva_device *device, const struct kva_glu_args *args)
{
    const size_t count = static_cast<size_t>(args->rows) * args->dim;
    const bool whole = count % KVA_VECTOR == 0 && kva_vector_at(args->out) &&
                       kva_vector_at(args->gate) && kva_vector_at(args->up);
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "glu",
                 {kva_blocks(count, GLU_OWN * GLU_THREADS * KVA_VECTOR), GLU_THREADS},
                 whole ? glu_kernel<T, ACTIVATION, true> : glu_kernel<T, ACTIVATION, false>,
                 static_cast<T *>(args->out), static_cast<const T *>(args->gate),
                 static_cast<const T *>(args->up), count);
}

template <typename T> static void glu(struct kva_device *device, const struct kva_glu_args *args)
{
    switch (args->activation) {
    case KVA_ACT_SILU:
        return glu_of<T, kva_silu>(device, args);
    case KVA_ACT_GELU:
        return glu_of<T, kva_gelu>(device, args);
    case KVA_ACT_GELU_TANH:
        return glu_of<T, kva_gelu_tanh>(device, args);
    default:
        return glu_of<T, kva_relu>(device, args);
    }
}

void kva_cuda_glu(struct kva_device *device, const struct kva_glu_args *args)
{
    if (args->rows > 0 && args->dim > 0 && kva_cuda_enter(device))
        KVA_BY_FORMAT(device->base.info.act, glu, device, args);
}

/* --- kv_append -------------------------------------------------------------------------------- */

template <typename KV, typename T>
static __device__ __forceinline__ kva_vector<KV> saturated(const kva_vector<T> &from)
{
    kva_numbers x = kva_vector_to_f32(from);
#pragma unroll
    for (uint32_t i = 0; i < KVA_VECTOR; i++)
        x.x[i] = kva_clamp<KV>(x.x[i]);
    return kva_vector_from_f32<KV>(x);
}

/* One row a block. */
template <typename T, typename KV, bool WHOLE>
static __global__ void append_kernel(const T *k, const T *v, void *const *blocks, size_t offset,
                                     const uint32_t *positions, uint32_t kv_heads, uint32_t dim)
{
    kva_begin();
    const size_t row = blockIdx.x;
    const uint32_t per_head = (dim + KVA_VECTOR - 1) / KVA_VECTOR;
    for (uint32_t at = threadIdx.x; at < kv_heads * per_head; at += blockDim.x) {
        const uint32_t head = at / per_head, first = at % per_head * KVA_VECTOR;
        const uint32_t count = min(dim - first, KVA_VECTOR);
        const size_t from = (row * kv_heads + head) * dim + first;
        const kva_vector<T> key = kva_vector_load<WHOLE>(k + from, count);
        const kva_vector<T> value = kva_vector_load<WHOLE>(v + from, count);
        KV *block = reinterpret_cast<KV *>(static_cast<unsigned char *>(blocks[row]) + offset);
        const size_t slot =
            static_cast<size_t>(head) * KVA_PAGE_TOKENS + positions[row] % KVA_PAGE_TOKENS;
        KV *to = block + slot * 2 * dim + first;
        kva_vector_store<WHOLE>(to, saturated<KV>(key), count);
        kva_vector_store<WHOLE>(to + dim, saturated<KV>(value), count);
    }
}

static bool append_whole(const struct kva_kv_append_args *args)
{
    bool whole = args->head_dim % KVA_VECTOR == 0 &&
                 args->block_offset_bytes % sizeof(uint4) == 0 && kva_vector_at(args->k) &&
                 kva_vector_at(args->v);
    for (uint32_t i = 0; i < args->rows && whole; i++)
        whole = kva_vector_at(args->blocks[i]);
    return whole;
}

template <typename T, typename KV>
static void append_as(struct kva_device *device, const struct kva_kv_append_args *args)
{
    void *const *blocks = kva_cuda_upload_array(device, args->blocks, args->rows);
    const uint32_t *positions = kva_cuda_upload_array(device, args->positions, args->rows);
    if (kva_cuda_failed(device))
        return;
    const size_t vectors = args->kv_heads * kva_div_up(args->head_dim, KVA_VECTOR);
    const size_t threads = kva_min_size(kva_align_up(vectors, KVA_WARP), THREADS);
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "kv_append",
                 {args->rows, static_cast<uint32_t>(threads)},
                 append_whole(args) ? append_kernel<T, KV, true> : append_kernel<T, KV, false>,
                 static_cast<const T *>(args->k), static_cast<const T *>(args->v), blocks,
                 args->block_offset_bytes, positions, args->kv_heads, args->head_dim);
}

template <typename T>
static void append(struct kva_device *device, const struct kva_kv_append_args *args)
{
    if (args->kv_dtype == KVA_F16)
        append_as<T, kva_f16>(device, args);
    else
        append_as<T, kva_bf16>(device, args);
}

void kva_cuda_kv_append(struct kva_device *device, const struct kva_kv_append_args *args)
{
    if (args->rows == 0 || !kva_cuda_enter(device))
        return;
    KVA_BY_FORMAT(device->base.info.act, append, device, args);
}

/* --- merge ------------------------------------------------------------------------------------ */

/* One (row, head) pair a warp. */
template <typename T>
static __global__ void merge_kernel(T *out, const kva_partial *partials, uint32_t partial_count,
                                    size_t pairs, uint32_t dim)
{
    kva_begin();
    size_t pair = static_cast<size_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (pair >= pairs)
        return;
    float m = -INFINITY, e = 0;
    for (uint32_t j = 0; j < partial_count; j++) {
        float other = partials[j].m[pair];
        m = other > m || other != other ? other : m;
    }
    for (uint32_t j = 0; j < partial_count && m != -INFINITY; j++)
        e += partials[j].e[pair] * expf(partials[j].m[pair] - m);
    for (uint32_t i = threadIdx.x; i < dim; i += KVA_WARP) {
        float sum = 0;
        for (uint32_t j = 0; j < partial_count && m != -INFINITY; j++)
            sum += partials[j].a[pair * dim + i] * expf(partials[j].m[pair] - m);
        out[pair * dim + i] = kva_from_f32<T>(m == -INFINITY ? 0.0f : sum / e);
    }
}

template <typename T>
static void merge(struct kva_device *device, const struct kva_merge_args *args)
{
    size_t pairs = static_cast<size_t>(args->rows) * args->heads;
    const kva_partial *partials =
        kva_cuda_upload_array(device, args->partials, args->partial_count);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "merge",
                     {kva_blocks(pairs, THREADS / KVA_WARP), dim3(KVA_WARP, THREADS / KVA_WARP)},
                     merge_kernel<T>, static_cast<T *>(args->out), partials, args->partial_count,
                     pairs, args->head_dim);
}

void kva_cuda_merge(struct kva_device *device, const struct kva_merge_args *args)
{
    if (args->rows > 0 && kva_cuda_enter(device))
        KVA_BY_FORMAT(device->base.info.act, merge, device, args);
}

/* --- gather ----------------------------------------------------------------------------------- */

template <typename T>
static __global__ void gather_kernel(T *out, const T *x, const uint32_t *rows, uint32_t dim)
{
    kva_begin();
    const T *from = x + static_cast<size_t>(rows[blockIdx.x]) * dim;
    for (uint32_t i = threadIdx.x; i < dim; i += blockDim.x)
        out[static_cast<size_t>(blockIdx.x) * dim + i] = from[i];
}

template <typename T>
static void gather(struct kva_device *device, const struct kva_gather_args *args)
{
    const uint32_t *rows = kva_cuda_upload_array(device, args->rows, args->count);
    if (!kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, "gather", {args->count, THREADS}, gather_kernel<T>,
                     static_cast<T *>(args->out), static_cast<const T *>(args->x), rows, args->dim);
}

void kva_cuda_gather(struct kva_device *device, const struct kva_gather_args *args)
{
    if (args->count > 0 && kva_cuda_enter(device))
        KVA_BY_FORMAT(device->base.info.act, gather, device, args);
}

/* --- sum_rows --------------------------------------------------------------------------------- */

/* A thread per column: the order of the additions is that of the rows. */
template <typename T>
static __global__ void sum_rows_kernel(float *out, const T *x, uint32_t rows, uint32_t dim,
                                       bool accumulate)
{
    kva_begin();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= dim)
        return;
    float sum = accumulate ? out[i] : 0;
    for (uint32_t r = 0; r < rows; r++)
        sum += kva_to_f32(x[static_cast<size_t>(r) * dim + i]);
    out[i] = sum;
}

template <typename T>
static void sum_rows(struct kva_device *device, const struct kva_sum_rows_args *args)
{
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "sum_rows", {kva_blocks(args->dim, THREADS), THREADS},
                 sum_rows_kernel<T>, args->out, static_cast<const T *>(args->x), args->rows,
                 args->dim, args->accumulate);
}

void kva_cuda_sum_rows(struct kva_device *device, const struct kva_sum_rows_args *args)
{
    if (args->dim > 0 && kva_cuda_enter(device))
        KVA_BY_FORMAT(device->base.info.act, sum_rows, device, args);
}

/* --- formats ---------------------------------------------------------------------------------- */

template <typename T>
static __global__ void convert_kernel(T *to, const void *from, enum kva_dtype from_dtype,
                                      size_t count)
{
    kva_begin();
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<size_t>(gridDim.x) * blockDim.x)
        to[i] = kva_from_f32<T>(kva_load(from, from_dtype, i));
}

template <typename T>
static void convert(struct kva_device *device, void *to, const void *from,
                    enum kva_dtype from_dtype, size_t count)
{
    uint32_t blocks = static_cast<uint32_t>(kva_min_size(kva_div_up(count, THREADS), 4096));
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "convert", {blocks, THREADS}, convert_kernel<T>,
                 static_cast<T *>(to), from, from_dtype, count);
}

cudaError_t kva_cuda_find_code(int *ret_capability)
{
    cudaFuncAttributes attributes = {};
    const cudaError_t status =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(convert_kernel<float>));
    *ret_capability = attributes.ptxVersion;
    return status;
}

void kva_cuda_convert(struct kva_device *device, void *to, enum kva_dtype to_dtype,
                      const void *from, enum kva_dtype from_dtype, size_t count)
{
    if (count > 0 && kva_cuda_enter(device))
        KVA_BY_FORMAT(to_dtype, convert, device, to, from, from_dtype, count);
}
