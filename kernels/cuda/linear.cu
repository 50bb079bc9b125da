/* linear.cu - linear, linear_group and linear_glu: cuBLAS with fp32 accumulation, but few rows
 * (linear_few.cu) and packed weights (linear_packed.cu).
 *
 * cuBLAS chooses its algorithm by the shape, rows included: a row alone and the same row among
 * others may differ in the last bits. The same call gives the same bits (one stream, one
 * workspace). */
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/number.cuh"

static cudaDataType_t blas_type(enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? CUDA_R_32F : dtype == KVA_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

template <typename T>
static __global__ void bias_kernel(T *out, kva_weight bias, uint32_t outputs, uint32_t out_stride)
{
    kva_begin();
    T *row = out + static_cast<size_t>(blockIdx.x) * out_stride;
    for (uint32_t i = threadIdx.x; i < outputs; i += blockDim.x)
        row[i] = kva_from_f32<T>(kva_to_f32(row[i]) + kva_load(bias.data, bias.dtype, i));
}

template <typename T>
static bool add_bias(struct kva_device *device, const struct kva_linear_args *args)
{
    return kva_cuda_run(device, KVA_QUEUE_COMPUTE, "bias", {args->rows, 256}, bias_kernel<T>,
                        static_cast<T *>(args->out), args->bias, args->weight.rows,
                        args->out_stride);
}

static enum kva_dtype out_format(const struct kva_device *device,
                                 const struct kva_linear_args *args)
{
    return args->out_f32 ? KVA_F32 : device->base.info.act;
}

static cublasStatus_t multiply_by(struct kva_device *device, cublasHandle_t blas,
                                  const struct kva_linear_args *args)
{
    const struct kva_weight *w = &args->weight;
    const cudaDataType_t act = blas_type(device->base.info.act);
    /* Row-major x w^T is, to the column-major cuBLAS, w^T x: [outputs, rows]. */
    const float alpha = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;
    return cublasGemmEx(
        blas, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(w->rows), static_cast<int>(args->rows),
        static_cast<int>(w->cols), &alpha, w->data, act, static_cast<int>(w->cols), args->x, act,
        static_cast<int>(args->x_stride), &beta, args->out, blas_type(out_format(device, args)),
        static_cast<int>(args->out_stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

static cublasStatus_t multiply(struct kva_device *device, const struct kva_linear_args *args)
{
    return multiply_by(device, device->blas.handle, args);
}

static bool try_plain(struct kva_device *device, const struct kva_linear_args *args)
{
    if (multiply(device, args) != CUBLAS_STATUS_SUCCESS)
        return false;
    return !args->bias.data || KVA_BY_FORMAT(out_format(device, args), add_bias, device, args);
}

/* The same; a failure is the device's. */
static bool run_plain(struct kva_device *device, const struct kva_linear_args *args)
{
    const struct kva_weight *w = &args->weight;
    cublasStatus_t status = multiply(device, args);
    if (status != CUBLAS_STATUS_SUCCESS) {
        kva_cuda_fail(device, "linear: cuBLAS: %s (%u rows, weight [%u, %u])",
                      cublasGetStatusString(status), args->rows, w->rows, w->cols);
        return false;
    }
    return !args->bias.data || KVA_BY_FORMAT(out_format(device, args), add_bias, device, args);
}

bool kva_cuda_try_linear(struct kva_device *device, const struct kva_linear_args *args)
{
    return kva_dtype_is_packed(args->weight.dtype) ? kva_cuda_linear_packed(device, args, try_plain)
                                                   : try_plain(device, args);
}

bool kva_cuda_try_linear_beside(struct kva_device *device, uint32_t lane,
                                const struct kva_linear_args *args)
{
    return multiply_by(device, device->lanes[lane].blas.handle, args) == CUBLAS_STATUS_SUCCESS;
}

/* By the kernels of few rows; false: it is not for them. */
static bool run_few(struct kva_device *device, const struct kva_linear_args *products,
                    uint32_t count)
{
    return kva_cuda_linear_few(device, products, count) ||
           kva_cuda_linear_packed_few(device, products, count);
}

/* Rows of steps, of which there are now more, now fewer, are rounded up to one of few numbers where
 * there is memory for more, so that a step has the graph of one before it (step.cu): fewer than
 * eight, or an eighth, are multiplied for nobody. Below are the kernels of few rows; above, no graphs. */
#define BUCKETS_FIRST 17u
#define BUCKETS_LAST  512u

static uint32_t bucket_of(const struct kva_linear_args *args)
{
    uint32_t unit = 8;
    if (args->rows < BUCKETS_FIRST || args->rows > BUCKETS_LAST)
        return args->rows;
    while (unit * 16 < args->rows)
        unit *= 2;
    const uint32_t rows = (args->rows + unit - 1) / unit * unit;
    return kva_max_u32(args->rows, kva_min_u32(rows, args->room));
}

void kva_cuda_linear(struct kva_device *device, const struct kva_linear_args *args)
{
    if (args->rows == 0 || !kva_cuda_enter(device) || run_few(device, args, 1))
        return;
    struct kva_linear_args whole = *args;
    whole.rows = bucket_of(args);
    if (kva_cuda_defer_linear(device, &whole))
        return;
    if (kva_dtype_is_packed(whole.weight.dtype))
        (void)kva_cuda_linear_packed(device, &whole, run_plain);
    else
        (void)run_plain(device, &whole);
}

/* Products of few rows that are one branch each, where one beside the first has at most so many bytes
 * of weights: for the GPU to have room for both. */
#define BESIDE_ROWS  64u
#define BESIDE_BYTES ((size_t)16 << 20)

static bool go_beside(const struct kva_linear_args *products, uint32_t count)
{
    bool beside = products->rows <= BESIDE_ROWS;
    for (uint32_t i = 0; i < count; i++) {
        const struct kva_linear_args *product = &products[i];
        const size_t weights = static_cast<size_t>(product->weight.rows) * product->weight.cols;
        beside = beside && !kva_dtype_is_packed(product->weight.dtype) && !product->accumulate &&
                 (i == 0 || (!product->bias.data && weights * sizeof(uint16_t) <= BESIDE_BYTES));
    }
    return beside;
}

/* Products of the same rows, side by side where that is worth it. */
static void run_beside(struct kva_device *device, const struct kva_linear_args *products,
                       uint32_t count)
{
    const bool beside = go_beside(products, count);
    for (uint32_t i = 0; i < count; i++) {
        if (beside)
            (void)kva_cuda_step_branch(device, i);
        kva_cuda_linear(device, &products[i]);
    }
    kva_cuda_step_join(device);
}

void kva_cuda_linear_group(struct kva_device *device, const struct kva_linear_group_args *args)
{
    if (args->products->rows > 0 && kva_cuda_enter(device) &&
        !run_few(device, args->products, args->count))
        run_beside(device, args->products, args->count);
}

void kva_cuda_linear_glu(struct kva_device *device, const struct kva_linear_glu_args *args)
{
    if (args->gate.rows == 0 || !kva_cuda_enter(device) || kva_cuda_linear_few_glu(device, args) ||
        kva_cuda_linear_packed_glu(device, args))
        return;
    const struct kva_linear_args products[] = {args->gate, args->up};
    run_beside(device, products, KVA_COUNT_OF(products));
    const struct kva_glu_args glu = {args->gate.out,  args->gate.out,         args->up.out,
                                     args->gate.rows, args->gate.weight.rows, args->activation};
    kva_cuda_glu(device, &glu);
}
