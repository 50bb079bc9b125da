/* linear: cuBLAS with fp32 accumulation.
 *
 * cuBLAS chooses its algorithm by the shape, rows included: a row alone and the same row among
 * others may differ in the last bits. The same call gives the same bits (one stream, one
 * workspace).
 */
#include "kernels/cuda/number.cuh"

static cudaDataType_t blas_type(enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? CUDA_R_32F : dtype == KVA_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

template <typename T>
static __global__ void bias_kernel(T *out, kva_weight bias, uint32_t outputs, uint32_t out_stride)
{
    T *row = out + static_cast<size_t>(blockIdx.x) * out_stride;
    for (uint32_t i = threadIdx.x; i < outputs; i += blockDim.x)
        row[i] = kva_from_f32<T>(kva_to_f32(row[i]) + kva_load(bias.data, bias.dtype, i));
}

template <typename T>
static void add_bias(struct kva_device *device, const struct kva_linear_args *args)
{
    kva_cuda_run(device, KVA_QUEUE_COMPUTE, "bias", {args->rows, 256}, bias_kernel<T>,
                 static_cast<T *>(args->out), args->bias, args->weight.rows, args->out_stride);
}

void kva_cuda_linear(struct kva_device *device, const struct kva_linear_args *args)
{
    const struct kva_weight *w = &args->weight;
    enum kva_dtype act = device->base.info.act, out = args->out_f32 ? KVA_F32 : act;
    if (args->rows == 0 || !kva_cuda_enter(device))
        return;
    if (w->dtype != act) {
        kva_cuda_fail(device, "linear: a %s matrix with %s activations", kva_dtype_name(w->dtype),
                      kva_dtype_name(act));
        return;
    }
    /* Row-major x w^T is, to the column-major cuBLAS, w^T x: [outputs, rows]. */
    const float alpha = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;
    cublasStatus_t status =
        cublasGemmEx(device->blas, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(w->rows),
                     static_cast<int>(args->rows), static_cast<int>(w->cols), &alpha, w->data,
                     blas_type(act), static_cast<int>(w->cols), args->x, blas_type(act),
                     static_cast<int>(args->x_stride), &beta, args->out, blas_type(out),
                     static_cast<int>(args->out_stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) {
        kva_cuda_fail(device, "linear: cuBLAS: %s (%u rows, weight [%u, %u])",
                      cublasGetStatusString(status), args->rows, w->rows, w->cols);
        return;
    }
    if (args->bias.data)
        KVA_BY_FORMAT(out, add_bias, device, args);
}
