/* few.cuh - what products of few rows share, whatever format weights have: how a call is described,
 * rows as matrix products want them, and what becomes of sums.
 *
 * A block of threads has WIDTH outputs of one matrix, or, for a gated MLP, half as many of each of its
 * two, and 16 rows. Its warps share the inputs among them; the order of a sum is theirs, and depends
 * on nothing else. */
#ifndef KVA_KERNELS_CUDA_FEW_CUH
#define KVA_KERNELS_CUDA_FEW_CUH

#include "kernels/cuda/glu.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/vector.cuh"

#define FEW_ROWS    16u /* of a matrix product */
#define FEW_HALF    8u  /* of them, and its outputs */
#define FEW_OUTPUTS 16u
#define FEW_WARPS   8u
#define FEW_THREADS (FEW_WARPS * KVA_WARP)

struct few_product {
    const void *weight;
    void *out;
    kva_weight bias;
    uint32_t outputs, out_stride;
    uint32_t block_end; /* the first block behind its own */
    bool accumulate, out_f32;
};

struct few_call {
    few_product products[KVA_LINEAR_GROUP_MAX];
    uint32_t count, rows, inputs, x_stride;
    enum kva_activation activation;
    bool glu; /* of products 0 and 1; blocks are the first one's */
};

/* Blocks of the products in order, `outputs` of a product each. */
static inline few_call few_call_of(const struct kva_linear_args *products, uint32_t count,
                                   uint32_t outputs)
{
    few_call f = {};
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct kva_linear_args &own = products[i];
        blocks += kva_blocks(own.weight.rows, outputs);
        f.products[i] = {own.weight.data, own.out, own.bias,       own.weight.rows,
                         own.out_stride,  blocks,  own.accumulate, own.out_f32};
    }
    f.count = count;
    f.rows = products->rows;
    f.inputs = products->weight.cols;
    f.x_stride = products->x_stride;
    return f;
}

/* The same of a gated MLP, `outputs` of each of its matrices. */
static inline few_call few_glu_of(const struct kva_linear_glu_args *args, uint32_t outputs)
{
    const struct kva_linear_args products[] = {args->gate, args->up};
    few_call f = few_call_of(products, KVA_COUNT_OF(products), outputs);
    f.activation = args->activation;
    f.glu = true;
    return f;
}

/* Of threads, in all. */
static inline uint32_t few_blocks(const few_call &f)
{
    return f.products[f.glu ? 0 : f.count - 1].block_end;
}

/* Whether rows are whole vectors of 16-bit activations. */
static inline bool few_takes(const struct kva_device *device, const struct kva_linear_args *args)
{
    return device->base.info.act != KVA_F32 && args->weight.cols % KVA_VECTOR == 0 &&
           args->x_stride % KVA_VECTOR == 0 && kva_vector_at(args->x);
}

/* Which product a block is of; `block` becomes its number among that one's. */
static __device__ __forceinline__ uint32_t few_find(const few_call &f, uint32_t *block)
{
    uint32_t number = 0;
    if (f.glu)
        return 0;
    const uint32_t all = *block;
    while (all >= f.products[number].block_end)
        *block = all - f.products[number++].block_end;
    return number;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Where a lane reads rows g and g + 8 of the block's. */
template <typename T> struct few_rows {
    const T *of[2];
    bool there[2]; /* such a row */
};

/* From the input `input` on, the lane's first one. */
template <typename T>
static __device__ __forceinline__ few_rows<T> few_rows_at(const few_call &f, const T *x,
                                                          uint32_t row_first, uint32_t input)
{
    few_rows<T> rows;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t row = row_first + i * FEW_HALF + threadIdx.x % KVA_WARP / 4;
        rows.there[i] = row < f.rows;
        rows.of[i] = x + input + static_cast<size_t>(row) * f.x_stride;
    }
    return rows;
}

/* Eight inputs of both, two products' worth: as the first operand of each. */
struct few_inputs {
    uint32_t of[2][4];
};

/* Zeros of a row that is not there, or if not `valid`. */
template <typename T>
static __device__ __forceinline__ few_inputs few_load(const few_rows<T> &rows, uint32_t at,
                                                      bool valid)
{
    uint4 own[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        own[i] = valid && rows.there[i] ? *reinterpret_cast<const uint4 *>(rows.of[i] + at)
                                        : make_uint4(0, 0, 0, 0);
    return {{{own[0].x, own[1].x, own[0].y, own[1].y}, {own[0].z, own[1].z, own[0].w, own[1].w}}};
}

/* --- sums ------------------------------------------------------------------------------------- */

/* What each warp's sums are, row by row: lanes of a warp write to banks of their own. */
template <uint32_t WIDTH> struct few_sums {
    float of[FEW_WARPS][FEW_ROWS][WIDTH + 8];
};

template <uint32_t WIDTH>
static __device__ __forceinline__ float few_add(const few_sums<WIDTH> &sums, uint32_t row,
                                                uint32_t output)
{
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < FEW_WARPS; i++)
        sum += sums.of[i][row][output];
    return sum;
}

static __device__ __forceinline__ float few_bias(float sum, const kva_weight &bias, uint32_t output)
{
    return bias.data ? sum + kva_load(bias.data, bias.dtype, output) : sum;
}

template <typename T>
static __device__ __forceinline__ void few_put(T *to, float sum, bool accumulate)
{
    *to = kva_from_f32<T>(accumulate ? kva_to_f32(*to) + sum : sum);
}

template <typename T>
static __device__ __forceinline__ void few_put_output(const few_product &p, uint32_t row,
                                                      uint32_t output, float sum)
{
    const size_t at = static_cast<size_t>(row) * p.out_stride + output;
    sum = few_bias(sum, p.bias, output);
    if (p.out_f32)
        few_put(static_cast<float *>(p.out) + at, sum, p.accumulate);
    else
        few_put(static_cast<T *>(p.out) + at, sum, p.accumulate);
}

/* act(gate) * up of one output, each rounded as if it lay in memory. */
template <typename T>
static __device__ __forceinline__ void few_put_glu(const few_call &f, uint32_t row, uint32_t output,
                                                   float gate, float up)
{
    const few_product &g = f.products[0], &u = f.products[1];
    gate = kva_to_f32(kva_from_f32<T>(few_bias(gate, g.bias, output)));
    up = kva_to_f32(kva_from_f32<T>(few_bias(up, u.bias, output)));
    few_put(static_cast<T *>(g.out) + static_cast<size_t>(row) * g.out_stride + output,
            kva_activate(f.activation, gate) * up, false);
}

/* All warps' sums, which are there, become outputs from `first` on. */
template <typename T, uint32_t WIDTH>
static __device__ __forceinline__ void few_finish(const few_call &f, const few_sums<WIDTH> &sums,
                                                  uint32_t number, uint32_t first,
                                                  uint32_t row_first)
{
    const uint32_t width = f.glu ? WIDTH / 2 : WIDTH;
    const uint32_t rows = min(FEW_ROWS, f.rows - row_first);
    for (uint32_t i = threadIdx.x; i < width * rows; i += FEW_THREADS) {
        const uint32_t row = i / width, own = i % width, output = first + own;
        if (output >= f.products[number].outputs)
            continue;
        const float sum = few_add(sums, row, own);
        if (f.glu)
            few_put_glu<T>(f, row_first + row, output, sum, few_add(sums, row, width + own));
        else
            few_put_output<T>(f.products[number], row_first + row, output, sum);
    }
}

#endif
