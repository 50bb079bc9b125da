/* linear_few.cu - products of up to 16 rows with matrices of 16-bit weights: the weights' way from
 * memory is all that takes time.
 *
 * A block of threads has PANELS times 16 outputs. Its warps take turns at 64 inputs, and two turns of
 * weights, 16 bytes a load from memory into registers as matrix products want them, are always on
 * their way. Nobody writes weights, so the first two are before the kernel waits for its rows:
 * while the kernel ahead of it ends, memory is busy with what this one needs.
 *
 * In a product of matrices the order of the inputs is free as long as both sides have the same.
 * Lane 4 g + t has inputs 8 t .. 8 t + 7 of outputs g and g + 8 and of rows g and g + 8: of 32 inputs
 * four loads are four products.
 *
 * More rows, other formats and addresses go to cuBLAS (linear.cu). */
#include "kernels/cuda/few.cuh"

#define HALF_INPUTS 32u /* of a turn: two products */
#define TURN_INPUTS 64u
#define TURNS       2u                        /* on their way */
#define STEP_INPUTS (FEW_WARPS * TURN_INPUTS) /* of a turn of all warps */

/* A lane's weights of a turn: of outputs g and g + 8 of each panel, both halves of the inputs. */
template <uint32_t PANELS> struct weights {
    uint4 of[PANELS][2][2];
};

/* Where the turns at hand begin. `left`: inputs from there on; what is behind the last one is 0. */
template <typename T, uint32_t PANELS> struct place {
    const T *weights[PANELS][2];
    few_rows<T> rows;
    int left;
};

/* Turn `turn` from the place on, a constant. Behind the last input weights stay as they are, where
 * rows are 0. */
template <typename T, uint32_t PANELS>
static __device__ __forceinline__ void load_weights(weights<PANELS> &to,
                                                    const place<T, PANELS> &from, uint32_t turn)
{
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t at = turn * STEP_INPUTS + h * HALF_INPUTS;
        const bool valid = from.left > static_cast<int>(at);
#pragma unroll
        for (uint32_t i = 0; i < PANELS * 2; i++)
            kva_load_once(to.of[i / 2][i % 2][h], from.weights[i / 2][i % 2] + at, valid);
    }
}

/* TURNS further. */
template <typename T, uint32_t PANELS>
static __device__ __forceinline__ void advance(place<T, PANELS> &at)
{
#pragma unroll
    for (uint32_t o = 0; o < 2; o++) {
        at.rows.of[o] += TURNS * STEP_INPUTS;
#pragma unroll
        for (uint32_t p = 0; p < PANELS; p++)
            at.weights[p][o] += TURNS * STEP_INPUTS;
    }
    at.left -= static_cast<int>(TURNS * STEP_INPUTS);
}

/* sums += the products of turn `turn`, of outputs 0 .. 7 and 8 .. 15 of each panel. */
template <typename T, uint32_t PANELS>
static __device__ __forceinline__ void multiply(float (&sums)[PANELS][2][4],
                                                const weights<PANELS> &weights,
                                                const place<T, PANELS> &from, uint32_t turn)
{
    few_inputs rows[2];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t at = turn * STEP_INPUTS + h * HALF_INPUTS;
        rows[h] = few_load(from.rows, at, from.left > static_cast<int>(at));
    }
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
#pragma unroll
        for (uint32_t i = 0; i < PANELS * 2; i++) {
            const uint4 &own = weights.of[i / 2][i % 2][h];
            kva_mma<T>(sums[i / 2][i % 2], rows[h].of[0], own.x, own.y);
            kva_mma<T>(sums[i / 2][i % 2], rows[h].of[1], own.z, own.w);
        }
    }
}

template <uint32_t PANELS>
static __device__ __forceinline__ void put_sums(few_sums<PANELS * FEW_OUTPUTS> &to,
                                                const float (&sums)[PANELS][2][4])
{
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
#pragma unroll
    for (uint32_t i = 0; i < PANELS * 8; i++) /* of outputs 2 t and 2 t + 1 of eight */
        to.of[warp][lane / 4 + i / 2 % 2 * FEW_HALF][i / 4 * FEW_HALF + lane % 4 * 2 + i % 2] =
            sums[i / 8][i / 4 % 2][i % 4];
}

/* Where the lane begins; `first`: the block's first output. Behind the last output, whose sums
 * nobody takes, is the last one again. */
template <typename T, uint32_t PANELS>
static __device__ __forceinline__ place<T, PANELS> begin_at(const few_call &f, const T *x,
                                                            uint32_t number, uint32_t first)
{
    const uint32_t g = threadIdx.x % KVA_WARP / 4;
    const uint32_t input = threadIdx.x / KVA_WARP * TURN_INPUTS + threadIdx.x % 4 * KVA_VECTOR;
    place<T, PANELS> at;
    at.left = static_cast<int>(f.inputs - input);
    at.rows = few_rows_at(f, x, 0, input);
#pragma unroll
    for (uint32_t p = 0; p < PANELS; p++) {
        const few_product &own = f.products[f.glu ? p : number];
#pragma unroll
        for (uint32_t o = 0; o < 2; o++) {
            const uint32_t output = first + (f.glu ? 0 : p * FEW_OUTPUTS) + o * FEW_HALF + g;
            at.weights[p][o] = static_cast<const T *>(own.weight) + input +
                               static_cast<size_t>(min(output, own.outputs - 1)) * f.inputs;
        }
    }
    return at;
}

/* Two panels are two of a matrix, or one of each of a gated MLP's. */
template <typename T, uint32_t PANELS>
static __global__ void __launch_bounds__(FEW_THREADS, PANELS == 1 ? 3 : 2)
    few_kernel(const T *x, few_call f)
{
    kva_begin_weights();
    __shared__ few_sums<PANELS * FEW_OUTPUTS> parts;
    uint32_t block = blockIdx.x;
    const uint32_t number = few_find(f, &block);
    const uint32_t first = block * (f.glu ? 1 : PANELS) * FEW_OUTPUTS;
    place<T, PANELS> at = begin_at<T, PANELS>(f, x, number, first);
    weights<PANELS> ahead[TURNS] = {};
#pragma unroll
    for (uint32_t i = 0; i < TURNS; i++)
        load_weights(ahead[i], at, i);
    kva_await();
    float sums[PANELS][2][4] = {};
    /* As long as the warp's first lane has an input: its lanes are together in products. */
    for (; at.left + static_cast<int>(threadIdx.x % 4 * KVA_VECTOR) > 0; advance(at)) {
#pragma unroll
        for (uint32_t i = 0; i < TURNS; i++) {
            multiply(sums, ahead[i], at, i);
            load_weights(ahead[i], at, TURNS + i);
        }
    }
    put_sums(parts, sums);
    __syncthreads(); /* all warps' sums are there */
    few_finish<T>(f, parts, number, first, 0);
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Matrices' rows are whole vectors, in the activations' format. */
static bool fits(const struct kva_device *device, const struct kva_linear_args *args)
{
    return few_takes(device, args) && args->weight.dtype == device->base.info.act &&
           args->rows <= FEW_ROWS && kva_vector_at(args->weight.data);
}

template <typename T>
static void launch(struct kva_device *device, const void *x, const few_call &f, uint32_t panels)
{
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, f.glu ? "linear_glu" : "linear",
                 {few_blocks(f), FEW_THREADS}, panels == 1 ? few_kernel<T, 1> : few_kernel<T, 2>,
                 static_cast<const T *>(x), f);
}

static void run(struct kva_device *device, const void *x, const few_call &f, uint32_t panels)
{
    if (device->base.info.act == KVA_F16)
        launch<kva_f16>(device, x, f, panels);
    else
        launch<kva_bf16>(device, x, f, panels);
}

/* Each block reads all rows: where they are many, a block has two panels. */
bool kva_cuda_linear_few(struct kva_device *device, const struct kva_linear_args *products,
                         uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!fits(device, &products[i]))
            return false;
    }
    const uint32_t panels = products->rows > FEW_HALF ? 2 : 1;
    run(device, products->x, few_call_of(products, count, panels * FEW_OUTPUTS), panels);
    return true;
}

bool kva_cuda_linear_few_glu(struct kva_device *device, const struct kva_linear_glu_args *args)
{
    if (!fits(device, &args->gate) || !fits(device, &args->up))
        return false;
    run(device, args->gate.x, few_glu_of(args, FEW_OUTPUTS), 2);
    return true;
}
