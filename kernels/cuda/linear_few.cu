/* linear_few.cu - products of up to 16 rows with matrices of 16-bit weights: the weights' way from
 * memory is all that takes time.
 *
 * A block of threads has PANELS times 16 outputs, of one matrix, or, for a gated MLP, 16 of each of
 * its two, whose activations it then multiplies. Its warps take turns at 64 inputs, and two turns of
 * weights, 16 bytes a load from memory into registers as matrix products want them, are always on
 * their way. Nobody writes weights, so the first two are before the kernel waits for its rows:
 * while the kernel ahead of it ends, memory is busy with what this one needs.
 *
 * In a product of matrices the order of the inputs is free as long as both sides have the same.
 * Lane 4 g + t has inputs 8 t .. 8 t + 7 of outputs g and g + 8 and of rows g and g + 8: of 32 inputs
 * four loads are four products.
 *
 * A sum's order is by warps and turns alone: a row has the same bits among up to 16 rows, in a group
 * or by itself. More rows, other formats and addresses go to cuBLAS (linear.cu). */
#include "kernels/cuda/glu.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/vector.cuh"

#define FEW_ROWS    16u /* of a matrix product */
#define OUTPUTS     16u /* of a panel: twice those of a product */
#define HALF        8u  /* of either */
#define HALF_INPUTS 32u /* of a turn: two products */
#define TURN_INPUTS 64u
#define TURNS       2u /* on their way */
#define WARPS       8u
#define THREADS     (WARPS * KVA_WARP)
#define STEP_INPUTS (WARPS * TURN_INPUTS) /* of a turn of all warps */

/* A row's sums in shared memory: lanes of a warp write to banks of their own. */
#define SUMS_STRIDE 24u

struct product {
    const void *weight;
    void *out;
    kva_weight bias;
    uint32_t outputs, out_stride;
    uint32_t block_end; /* the first block behind its own */
    bool accumulate, out_f32;
};

struct few {
    product products[KVA_LINEAR_GROUP_MAX];
    uint32_t rows, inputs, x_stride;
    enum kva_activation activation;
};

/* A lane's weights of a turn, of outputs g and g + 8 of each panel, or its part of rows g and g + 8:
 * of both halves of the inputs. */
struct pair {
    uint4 of[2][2];
};
template <uint32_t PANELS> struct weights {
    pair panels[PANELS];
};

/* Where they begin in the turns at hand. `left`: inputs from there on; what is behind the last one
 * is 0. */
template <typename T, uint32_t PANELS> struct place {
    const T *weights[PANELS][2];
    const T *rows[2];
    bool there[2]; /* such a row */
    int left;
};

/* --- loads ------------------------------------------------------------------------------------ */

/* Eight numbers, or zeros. */
template <typename T> static __device__ __forceinline__ uint4 load(const T *from, bool valid)
{
    return valid ? *reinterpret_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
}

/* Of turn `turn` from the place on, a constant. Behind the last input weights stay as they are, where
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
            kva_load_once(to.panels[i / 2].of[i % 2][h], from.weights[i / 2][i % 2] + at, valid);
    }
}

template <typename T, uint32_t PANELS>
static __device__ __forceinline__ pair load_rows(const place<T, PANELS> &from, uint32_t turn)
{
    pair to;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t at = turn * STEP_INPUTS + h * HALF_INPUTS;
        const bool valid = from.left > static_cast<int>(at);
        to.of[0][h] = load(from.rows[0] + at, valid && from.there[0]);
        to.of[1][h] = load(from.rows[1] + at, valid && from.there[1]);
    }
    return to;
}

/* TURNS further. */
template <typename T, uint32_t PANELS>
static __device__ __forceinline__ void advance(place<T, PANELS> &at)
{
#pragma unroll
    for (uint32_t o = 0; o < 2; o++) {
        at.rows[o] += TURNS * STEP_INPUTS;
#pragma unroll
        for (uint32_t p = 0; p < PANELS; p++)
            at.weights[p][o] += TURNS * STEP_INPUTS;
    }
    at.left -= static_cast<int>(TURNS * STEP_INPUTS);
}

/* --- products --------------------------------------------------------------------------------- */

/* sums += the products of a turn, of outputs 0 .. 7 and 8 .. 15 of each panel. */
template <typename T, uint32_t PANELS>
static __device__ __forceinline__ void multiply(float (&sums)[PANELS][2][4],
                                                const weights<PANELS> &weights, const pair &rows)
{
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
        const uint4 &low = rows.of[0][h], &high = rows.of[1][h];
        const uint32_t first[4] = {low.x, high.x, low.y, high.y};
        const uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (uint32_t i = 0; i < PANELS * 2; i++) {
            const uint4 &own = weights.panels[i / 2].of[i % 2][h];
            kva_mma<T>(sums[i / 2][i % 2], first, own.x, own.y);
            kva_mma<T>(sums[i / 2][i % 2], second, own.z, own.w);
        }
    }
}

/* --- sums ------------------------------------------------------------------------------------- */

/* What each warp's sums of a panel are, row by row. */
struct panel_sums {
    float of[WARPS][FEW_ROWS][SUMS_STRIDE];
};

static __device__ __forceinline__ void put_sums(panel_sums &to, const float (&sums)[2][4])
{
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) /* of outputs 2 t and 2 t + 1 */
        to.of[warp][lane / 4 + i / 2 % 2 * HALF][i / 4 * HALF + lane % 4 * 2 + i % 2] =
            sums[i / 4][i % 4];
}

static __device__ __forceinline__ float add_sums(const panel_sums &sums, uint32_t row,
                                                 uint32_t output)
{
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < WARPS; i++)
        sum += sums.of[i][row][output];
    return sum;
}

static __device__ __forceinline__ float add_bias(float sum, const kva_weight &bias, uint32_t output)
{
    return bias.data ? sum + kva_load(bias.data, bias.dtype, output) : sum;
}

template <typename T> static __device__ __forceinline__ void put(T *to, float sum, bool accumulate)
{
    *to = kva_from_f32<T>(accumulate ? kva_to_f32(*to) + sum : sum);
}

template <typename T>
static __device__ __forceinline__ void put_output(const product &p, uint32_t row, uint32_t output,
                                                  float sum)
{
    const size_t at = static_cast<size_t>(row) * p.out_stride + output;
    sum = add_bias(sum, p.bias, output);
    if (p.out_f32)
        put(static_cast<float *>(p.out) + at, sum, p.accumulate);
    else
        put(static_cast<T *>(p.out) + at, sum, p.accumulate);
}

/* act(gate) * up of one output, each rounded as if it lay in memory. */
template <typename T>
static __device__ __forceinline__ void put_glu(const few &f, uint32_t row, uint32_t output,
                                               float gate, float up)
{
    const product &g = f.products[0], &u = f.products[1];
    gate = kva_to_f32(kva_from_f32<T>(add_bias(gate, g.bias, output)));
    up = kva_to_f32(kva_from_f32<T>(add_bias(up, u.bias, output)));
    static_cast<T *>(g.out)[static_cast<size_t>(row) * g.out_stride + output] =
        kva_from_f32<T>(kva_activate(f.activation, gate) * up);
}

/* --- the kernel ------------------------------------------------------------------------------- */

/* Which product the block is of, and its number among that one's. */
static __device__ __forceinline__ uint32_t find_product(const few &f, uint32_t *block)
{
    uint32_t number = 0;
    *block = blockIdx.x;
    while (blockIdx.x >= f.products[number].block_end)
        *block = blockIdx.x - f.products[number++].block_end;
    return number;
}

/* Where the lane begins; `first`: the block's first output. Behind the last output, whose sums
 * nobody takes, is the last one again. */
template <typename T, uint32_t PANELS, bool GLU>
static __device__ __forceinline__ place<T, PANELS> begin_at(const few &f, const T *x,
                                                            uint32_t number, uint32_t first)
{
    const uint32_t g = threadIdx.x % KVA_WARP / 4;
    const uint32_t input = threadIdx.x / KVA_WARP * TURN_INPUTS + threadIdx.x % 4 * KVA_VECTOR;
    place<T, PANELS> at;
    at.left = static_cast<int>(f.inputs - input);
#pragma unroll
    for (uint32_t o = 0; o < 2; o++) {
        const uint32_t row = o * HALF + g;
        at.there[o] = row < f.rows;
        at.rows[o] = x + input + static_cast<size_t>(row) * f.x_stride;
#pragma unroll
        for (uint32_t p = 0; p < PANELS; p++) {
            const product &own = f.products[GLU ? p : number];
            const uint32_t output = first + (GLU ? 0 : p * OUTPUTS) + o * HALF + g;
            at.weights[p][o] = static_cast<const T *>(own.weight) + input +
                               static_cast<size_t>(min(output, own.outputs - 1)) * f.inputs;
        }
    }
    return at;
}

/* Two panels are two of a matrix, or, GLU, one of each. */
template <typename T, uint32_t PANELS, bool GLU>
static __global__ void __launch_bounds__(THREADS, PANELS == 1 ? 3 : 2) few_kernel(const T *x, few f)
{
    kva_begin_weights();
    __shared__ panel_sums parts[PANELS];
    uint32_t block = blockIdx.x;
    const uint32_t number = GLU ? 0 : find_product(f, &block);
    const uint32_t first = block * (GLU ? 1 : PANELS) * OUTPUTS;
    place<T, PANELS> at = begin_at<T, PANELS, GLU>(f, x, number, first);
    weights<PANELS> ahead[TURNS] = {};
#pragma unroll
    for (uint32_t i = 0; i < TURNS; i++)
        load_weights(ahead[i], at, i);
    kva_await();
    float sums[PANELS][2][4] = {};
    for (uint32_t input = 0; input < f.inputs; input += TURNS * STEP_INPUTS) {
#pragma unroll
        for (uint32_t i = 0; i < TURNS; i++) {
            const pair rows = load_rows(at, i);
            multiply<T>(sums, ahead[i], rows);
            load_weights(ahead[i], at, TURNS + i);
        }
        advance(at);
    }
#pragma unroll
    for (uint32_t p = 0; p < PANELS; p++)
        put_sums(parts[p], sums[p]);
    __syncthreads(); /* all warps' sums are there */
    for (uint32_t i = threadIdx.x; i < (GLU ? 1 : PANELS) * OUTPUTS * f.rows; i += THREADS) {
        const uint32_t p = i / OUTPUTS / f.rows, row = i / OUTPUTS % f.rows, own = i % OUTPUTS;
        const uint32_t output = first + p * OUTPUTS + own;
        if (output >= f.products[number].outputs)
            continue;
        if constexpr (GLU)
            put_glu<T>(f, row, output, add_sums(parts[0], row, own), add_sums(parts[1], row, own));
        else
            put_output<T>(f.products[number], row, output, add_sums(parts[p], row, own));
    }
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Rows of weights and of x are whole vectors in the activations' 16-bit format. */
static bool fits(const struct kva_device *device, const struct kva_linear_args *args)
{
    const enum kva_dtype act = device->base.info.act;
    return act != KVA_F32 && args->weight.dtype == act && args->rows <= FEW_ROWS &&
           args->weight.cols % KVA_VECTOR == 0 && args->x_stride % KVA_VECTOR == 0 &&
           kva_vector_at(args->x) && kva_vector_at(args->weight.data);
}

static bool all_fit(const struct kva_device *device, const struct kva_linear_args *products,
                    uint32_t count)
{
    bool fit = true;
    for (uint32_t i = 0; i < count; i++)
        fit = fit && fits(device, &products[i]);
    return fit;
}

/* Blocks of the products in order, `outputs` of a product each. */
static few few_of(const struct kva_linear_args *products, uint32_t count, uint32_t outputs)
{
    few f = {};
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct kva_linear_args &own = products[i];
        blocks += kva_blocks(own.weight.rows, outputs);
        f.products[i] = {own.weight.data, own.out, own.bias,       own.weight.rows,
                         own.out_stride,  blocks,  own.accumulate, own.out_f32};
    }
    f.rows = products->rows;
    f.inputs = products->weight.cols;
    f.x_stride = products->x_stride;
    return f;
}

template <typename T, uint32_t PANELS, bool GLU>
static bool launch(struct kva_device *device, const void *x, const few &f, uint32_t blocks)
{
    return kva_cuda_run(device, KVA_QUEUE_COMPUTE, GLU ? "linear_glu" : "linear", {blocks, THREADS},
                        few_kernel<T, PANELS, GLU>, static_cast<const T *>(x), f);
}

/* Each block reads all rows: where they are many, a block has two panels. */
template <typename T>
static bool run_group(struct kva_device *device, const struct kva_linear_args *products,
                      uint32_t count)
{
    const bool many = products->rows > HALF;
    const few f = few_of(products, count, many ? 2 * OUTPUTS : OUTPUTS);
    const uint32_t blocks = f.products[count - 1].block_end;
    return many ? launch<T, 2, false>(device, products->x, f, blocks)
                : launch<T, 1, false>(device, products->x, f, blocks);
}

template <typename T>
static bool run_glu(struct kva_device *device, const struct kva_linear_glu_args *args)
{
    const struct kva_linear_args products[] = {args->gate, args->up};
    few f = few_of(products, KVA_COUNT_OF(products), OUTPUTS);
    f.activation = args->activation;
    return launch<T, 2, true>(device, products->x, f, f.products[0].block_end);
}

bool kva_cuda_linear_few(struct kva_device *device, const struct kva_linear_args *products,
                         uint32_t count)
{
    if (!all_fit(device, products, count))
        return false;
    if (device->base.info.act == KVA_F16)
        (void)run_group<kva_f16>(device, products, count);
    else
        (void)run_group<kva_bf16>(device, products, count);
    return true;
}

bool kva_cuda_linear_few_glu(struct kva_device *device, const struct kva_linear_glu_args *args)
{
    if (!fits(device, &args->gate) || !fits(device, &args->up))
        return false;
    if (device->base.info.act == KVA_F16)
        (void)run_glu<kva_f16>(device, args);
    else
        (void)run_glu<kva_bf16>(device, args);
    return true;
}
