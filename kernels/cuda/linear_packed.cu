/* linear_packed.cu - linear with packed weights.
 *
 * Up to FEW_ROWS rows: a block of threads takes a panel of 16 outputs, its warps take turns at the
 * pieces of 32 inputs, and codes become numbers in registers, where they meet the rows: the panel's
 * bytes are all that is read. A sum's order is the panel's alone, so a row has the same bits among
 * up to FEW_ROWS rows.
 *
 * More rows: panels are expanded to the activations' format in scratch, as many at a time as fit,
 * for cuBLAS: two bytes written and read a weight, beside FEW_ROWS and more products. */
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/packed.cuh"

#define FEW_ROWS  16u
#define TILE_ROWS 8u /* that meet a weight in registers */
#define WARPS     8u
#define THREADS   (WARPS * KVA_WARP)

/* Expanded at a time; simulated devices go through the parts of small matrices. */
#ifdef __CUDACC__
#define EXPANDED_BYTES KVA_CUDA_SCRATCH_BYTES
#else
#define EXPANDED_BYTES ((size_t)16 << 10)
#endif

/* --- few rows ---------------------------------------------------------------------------------- */

struct few {
    kva_cuda_packed w;
    kva_weight bias;
    uint32_t rows, x_stride, out_stride;
    bool accumulate;
};

/* Weights of two outputs and eight inputs: a lane's part of a piece. */
template <uint32_t LOW, uint32_t HIGH>
static __device__ __forceinline__ void load_weights(const kva_cuda_packed &w,
                                                    const unsigned char *panel, uint32_t piece,
                                                    uint32_t lane, float weights[2][8])
{
    const uint32_t pieces = w.format.block_inputs / KVA_PACKED_PIECE_INPUTS;
    const unsigned char *head = panel + static_cast<size_t>(piece / pieces) * w.block_bytes;
    const unsigned char *codes = head + w.format.head_bytes + piece % pieces * w.piece_bytes;
    const uint32_t part = lane / 8; /* of the piece: eight inputs, two steps */
    const uint32_t input = piece % pieces * KVA_PACKED_PIECE_INPUTS + part * 8;
#pragma unroll
    for (uint32_t o = 0; o < 2; o++) {
        const uint32_t output = lane % 8 * 2 + o;
        const kva_cuda_scales scales =
            kva_packed_scales(w.format, head, input / w.format.scale_inputs, output);
#pragma unroll
        for (uint32_t s = 0; s < 2; s++) {
            const uint32_t four = kva_packed_four(codes, LOW, HIGH, part * 2 + s, output);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                weights[o][s * 4 + i] = kva_packed_weight(w.format, scales, four, i);
        }
    }
}

/* sums += the rows' products with them. */
template <typename T>
static __device__ __forceinline__ void add_rows(const few &f, const T *x, uint32_t rows,
                                                uint32_t input, const float weights[2][8],
                                                float sums[TILE_ROWS][2])
{
    const uint32_t count = input < f.w.cols ? min(8u, f.w.cols - input) : 0;
#pragma unroll
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
        if (r >= rows)
            break;
        const T *from = x + static_cast<size_t>(r) * f.x_stride + input;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const float number = i < count ? kva_to_f32(from[i]) : 0;
            sums[r][0] = fmaf(number, weights[0][i], sums[r][0]);
            sums[r][1] = fmaf(number, weights[1][i], sums[r][1]);
        }
    }
}

template <typename T, typename Out, uint32_t LOW, uint32_t HIGH>
static __global__ void few_kernel(Out *out, const T *x, few f)
{
    kva_begin();
    __shared__ float parts[WARPS][TILE_ROWS][KVA_PACKED_PANEL];
    const uint32_t lane = threadIdx.x % KVA_WARP, warp = threadIdx.x / KVA_WARP;
    const uint32_t row_first = blockIdx.y * TILE_ROWS;
    const uint32_t rows = min(TILE_ROWS, f.rows - row_first);
    const uint32_t pieces = (f.w.cols + KVA_PACKED_PIECE_INPUTS - 1) / KVA_PACKED_PIECE_INPUTS;
    const unsigned char *panel = f.w.data + blockIdx.x * f.w.panel_bytes;
    float sums[TILE_ROWS][2] = {};
    for (uint32_t piece = warp; piece < pieces; piece += WARPS) {
        float weights[2][8];
        load_weights<LOW, HIGH>(f.w, panel, piece, lane, weights);
        add_rows(f, x + static_cast<size_t>(row_first) * f.x_stride, rows,
                 piece * KVA_PACKED_PIECE_INPUTS + lane / 8 * 8, weights, sums);
    }
#pragma unroll
    for (uint32_t r = 0; r < TILE_ROWS; r++) {
#pragma unroll
        for (uint32_t o = 0; o < 2; o++) {
            float sum = sums[r][o];
            sum += __shfl_xor_sync(KVA_ALL, sum, 8);
            sum += __shfl_xor_sync(KVA_ALL, sum, 16);
            if (lane < 8)
                parts[warp][r][lane * 2 + o] = sum;
        }
    }
    __syncthreads(); /* all warps' sums are there */
    const uint32_t r = threadIdx.x / KVA_PACKED_PANEL, n = threadIdx.x % KVA_PACKED_PANEL;
    const uint32_t output = blockIdx.x * KVA_PACKED_PANEL + n;
    if (r >= rows || output >= f.w.rows)
        return;
    float sum = 0;
    for (uint32_t i = 0; i < WARPS; i++)
        sum += parts[i][r][n];
    if (f.bias.data)
        sum += kva_load(f.bias.data, f.bias.dtype, output);
    Out *to = out + static_cast<size_t>(row_first + r) * f.out_stride + output;
    *to = kva_from_f32<Out>(f.accumulate ? kva_to_f32(*to) + sum : sum);
}

template <typename T, typename Out, uint32_t LOW, uint32_t HIGH>
static bool launch_few(struct kva_device *device, const struct kva_linear_args *args)
{
    const few f = {kva_cuda_packed_of(&args->weight),
                   args->bias,
                   args->rows,
                   args->x_stride,
                   args->out_stride,
                   args->accumulate};
    const dim3 grid(kva_blocks(args->weight.rows, KVA_PACKED_PANEL),
                    kva_blocks(args->rows, TILE_ROWS));
    return kva_cuda_run(device, KVA_QUEUE_COMPUTE, "linear packed", {grid, THREADS},
                        few_kernel<T, Out, LOW, HIGH>, static_cast<Out *>(args->out),
                        static_cast<const T *>(args->x), f);
}

template <typename T, typename Out>
static bool run_few(struct kva_device *device, const struct kva_linear_args *args)
{
    const struct kva_packed_format &format = kva_packed_table[args->weight.dtype - KVA_INT8];
    switch (format.low_bits * 10 + format.high_bits) {
    case 20:
        return launch_few<T, Out, 2, 0>(device, args);
    case 21:
        return launch_few<T, Out, 2, 1>(device, args);
    case 40:
        return launch_few<T, Out, 4, 0>(device, args);
    case 41:
        return launch_few<T, Out, 4, 1>(device, args);
    case 42:
        return launch_few<T, Out, 4, 2>(device, args);
    default:
        return launch_few<T, Out, 8, 0>(device, args);
    }
}

template <typename T>
static bool few_rows(struct kva_device *device, const struct kva_linear_args *args)
{
    return args->out_f32 ? run_few<T, float>(device, args) : run_few<T, T>(device, args);
}

/* --- many rows --------------------------------------------------------------------------------- */

/* out [outputs, cols] = rows [first, first + outputs) of the matrix, one a block of threads. */
template <typename T>
static __global__ void expand_kernel(T *out, kva_cuda_packed w, uint32_t first)
{
    kva_begin();
    T *to = out + static_cast<size_t>(blockIdx.x) * w.cols;
    for (uint32_t col = threadIdx.x * 4; col < w.cols; col += blockDim.x * 4) {
        float four[4];
        kva_packed_load_four(w, first + blockIdx.x, col, four);
        for (uint32_t i = 0; i < 4 && col + i < w.cols; i++)
            to[col + i] = kva_from_f32<T>(four[i]);
    }
}

template <typename T>
static bool expand(struct kva_device *device, const struct kva_weight *weight, uint32_t first,
                   uint32_t count)
{
    return kva_cuda_run(device, KVA_QUEUE_COMPUTE, "expand weights", {count, THREADS},
                        expand_kernel<T>, static_cast<T *>(device->scratch),
                        kva_cuda_packed_of(weight), first);
}

/* The part of `args` with outputs [first, first + count), their weights expanded. */
static bool expand_part(struct kva_device *device, const struct kva_linear_args *args,
                        uint32_t first, uint32_t count, struct kva_linear_args *ret)
{
    const enum kva_dtype act = device->base.info.act;
    const size_t out_bytes = kva_dtype_bytes(args->out_f32 ? KVA_F32 : act);
    if (!KVA_BY_FORMAT(act, expand, device, &args->weight, first, count))
        return false;
    *ret = *args;
    ret->weight = {device->scratch, act, count, args->weight.cols};
    ret->out = static_cast<unsigned char *>(args->out) + first * out_bytes;
    if (args->bias.data)
        ret->bias.data = static_cast<const unsigned char *>(args->bias.data) +
                         first * kva_dtype_bytes(args->bias.dtype);
    return true;
}

bool kva_cuda_linear_packed(struct kva_device *device, const struct kva_linear_args *args,
                            kva_cuda_linear_fn *multiply)
{
    const enum kva_dtype act = device->base.info.act;
    if (args->rows <= FEW_ROWS)
        return KVA_BY_FORMAT(act, few_rows, device, args);
    const size_t panel_bytes =
        static_cast<size_t>(KVA_PACKED_PANEL) * args->weight.cols * kva_dtype_bytes(act);
    const uint32_t outputs = args->weight.rows;
    if (panel_bytes > KVA_CUDA_SCRATCH_BYTES) {
        kva_cuda_fail(device, "linear: %u rows of packed weights are larger than %zu bytes",
                      KVA_PACKED_PANEL, KVA_CUDA_SCRATCH_BYTES);
        return false;
    }
    const size_t panels = kva_max_size(1, EXPANDED_BYTES / panel_bytes);
    const uint32_t most = static_cast<uint32_t>(kva_min_size(outputs, panels * KVA_PACKED_PANEL));
    for (uint32_t first = 0; first < outputs; first += most) {
        struct kva_linear_args part;
        if (!expand_part(device, args, first, min(most, outputs - first), &part) ||
            !multiply(device, &part))
            return false;
    }
    return true;
}
