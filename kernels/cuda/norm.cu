/* norm.cu - RMS and layer norm. A row is read once, 16 bytes a load, with its weight beside it, and
 * stays in registers from the sums to the results. */
#include "kernels/cuda/vector.cuh"

#include <math.h>

/* Threads of a block whose rows take a warp at most. */
#define NORM_SHARED 256u

/* Threads of a row at most, and vectors that each has at a time: 8,192 numbers stay in registers
 * from the sums to the results. */
#define NORM_THREADS 512u
#define NORM_KEPT    2u

/* A row as one of its threads sees it: of every piece of `step` numbers NORM_KEPT vectors. The same
 * however vectors are moved, so that the order of additions is a matter of the row's length alone. */
template <typename T, bool WHOLE> struct norm_row {
    const T *x;
    uint32_t width, step;
    kva_vector<T> kept[NORM_KEPT];

    __device__ uint32_t first(uint32_t piece, uint32_t i) const
    {
        return piece + (i * blockDim.x + threadIdx.x) * KVA_VECTOR;
    }

    __device__ uint32_t count(uint32_t piece, uint32_t i) const
    {
        const uint32_t at = first(piece, i);
        return at >= width ? 0 : WHOLE ? KVA_VECTOR : min(width - at, KVA_VECTOR);
    }

    __device__ void load(uint32_t piece)
    {
#pragma unroll
        for (uint32_t i = 0; i < NORM_KEPT; i++)
            kept[i] = kva_vector_load<WHOLE>(x + first(piece, i), count(piece, i));
    }

    /* What belongs to this piece in the row's weight, or bias. */
    template <typename W>
    __device__ void load_numbers(kva_numbers *to, const W *from, uint32_t piece) const
    {
        kva_vector<W> loaded[NORM_KEPT];
#pragma unroll
        for (uint32_t i = 0; i < NORM_KEPT; i++)
            loaded[i] = kva_vector_load<WHOLE>(from + first(piece, i), count(piece, i));
#pragma unroll
        for (uint32_t i = 0; i < NORM_KEPT; i++)
            to[i] = kva_vector_to_f32(loaded[i]);
    }

    __device__ void load_weight(kva_numbers *to, const kva_weight &from, uint32_t piece) const
    {
        if (from.dtype == KVA_F32)
            load_numbers(to, static_cast<const float *>(from.data), piece);
        else if (from.dtype == KVA_F16)
            load_numbers(to, static_cast<const kva_f16 *>(from.data), piece);
        else
            load_numbers(to, static_cast<const kva_bf16 *>(from.data), piece);
    }

    /* This thread's part of the sum of x, or of the squares of what it is off the mean. */
    template <bool SQUARES> __device__ float sum(float mean)
    {
        float sum = 0;
        for (uint32_t piece = 0; piece < width; piece += step) {
            if (width > step)
                load(piece);
#pragma unroll
            for (uint32_t i = 0; i < NORM_KEPT; i++) {
                const uint32_t there = count(piece, i);
                const kva_numbers numbers = kva_vector_to_f32(kept[i]);
#pragma unroll
                for (uint32_t j = 0; j < KVA_VECTOR; j++) {
                    const float x = j < there ? numbers.x[j] - mean : 0.0f;
                    sum = SQUARES ? fmaf(x, x, sum) : sum + x;
                }
            }
        }
        return sum;
    }
};

/* Sum over the threads of a row: some lanes, a power of two, or all warps of the block, by way of
 * `parts`. */
static __device__ float row_sum(float x, float *parts)
{
#pragma unroll
    for (uint32_t lanes = KVA_WARP / 2; lanes > 0; lanes /= 2) {
        if (lanes < blockDim.x)
            x += __shfl_xor_sync(KVA_ALL, x, static_cast<int>(lanes));
    }
    if (blockDim.x <= KVA_WARP)
        return x;
    if (threadIdx.x % KVA_WARP == 0)
        parts[threadIdx.x / KVA_WARP] = x;
    __syncthreads(); /* all parts of the sum are there */
    x = 0;
#pragma unroll
    for (uint32_t i = 0; i < NORM_THREADS / KVA_WARP; i++) {
        if (i < blockDim.x / KVA_WARP)
            x += parts[i];
    }
    return x;
}

/* blockDim.x threads a row, blockDim.y rows a block; several rows only where each has a warp or less
 * of it. */
template <typename T, bool LAYER, bool WHOLE>
static __global__ void __launch_bounds__(NORM_THREADS) norm_kernel(kva_norm_args args)
{
    kva_begin();
    __shared__ float parts[1 + LAYER][NORM_THREADS / KVA_WARP];
    const size_t row = static_cast<size_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    const float n = static_cast<float>(args.dim);
    const bool biased = LAYER && args.bias.data;
    kva_numbers weight[NORM_KEPT], bias[NORM_KEPT];
    norm_row<T, WHOLE> own;
    own.x = static_cast<const T *>(args.x) + row * args.dim;
    own.width = row < args.rows ? args.dim : 0; /* lanes without a row help to add up */
    own.step = blockDim.x * NORM_KEPT * KVA_VECTOR;
    own.load(0);
    own.load_weight(weight, args.weight, 0);
    const float mean = LAYER ? row_sum(own.template sum<false>(0.0f), parts[LAYER]) / n : 0.0f;
    const float scale =
        1.0f / sqrtf(row_sum(own.template sum<true>(mean), parts[0]) / n + args.eps);
    T *out = static_cast<T *>(args.out) + row * args.dim;
    for (uint32_t piece = 0; piece < own.width; piece += own.step) {
        if (own.width > own.step) {
            own.load(piece);
            own.load_weight(weight, args.weight, piece);
        }
        if (biased)
            own.load_weight(bias, args.bias, piece);
#pragma unroll
        for (uint32_t i = 0; i < NORM_KEPT; i++) {
            kva_numbers y = kva_vector_to_f32(own.kept[i]);
#pragma unroll
            for (uint32_t j = 0; j < KVA_VECTOR; j++) {
                const float w = weight[i].x[j] + args.weight_offset;
                y.x[j] = (y.x[j] - mean) * scale * w;
                if (biased)
                    y.x[j] += bias[i].x[j];
            }
            kva_vector_store<WHOLE>(out + own.first(piece, i), kva_vector_from_f32<T>(y),
                                    own.count(piece, i));
        }
    }
}

/* A few lanes do for the heads of a QK norm; a hidden row takes whole warps. */
static dim3 norm_block(uint32_t dim)
{
    const size_t wanted = kva_div_up(dim, NORM_KEPT * KVA_VECTOR);
    if (wanted > KVA_WARP)
        return dim3(
            static_cast<uint32_t>(kva_min_size(kva_align_up(wanted, KVA_WARP), NORM_THREADS)));
    uint32_t lanes = 1;
    while (lanes < wanted)
        lanes *= 2;
    return dim3(lanes, NORM_SHARED / lanes);
}

template <typename T, bool LAYER>
static void norm_of(struct kva_device *device, const struct kva_norm_args *args)
{
    const dim3 block = norm_block(args->dim);
    const bool whole = args->dim % KVA_VECTOR == 0 && kva_vector_at(args->x) &&
                       kva_vector_at(args->out) && kva_vector_at(args->weight.data) &&
                       kva_vector_at(args->bias.data);
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "norm", {kva_blocks(args->rows, block.y), block},
                 whole ? norm_kernel<T, LAYER, true> : norm_kernel<T, LAYER, false>, *args);
}

template <typename T> static void norm(struct kva_device *device, const struct kva_norm_args *args)
{
    if (args->kind == KVA_NORM_LAYER)
        norm_of<T, true>(device, args);
    else
        norm_of<T, false>(device, args);
}

void kva_cuda_norm(struct kva_device *device, const struct kva_norm_args *args)
{
    if (args->rows > 0 && kva_cuda_enter(device))
        KVA_BY_FORMAT(device->base.info.act, norm, device, args);
}
