/* What the toolkit's headers lay out otherwise than those of tests/cuda/simt do: compiled with the
 * toolkit's, and that what is used as it is has the same layout there. */
#include <cstddef>
#include <cstring>
#include <cublas_v2.h>
#include <cuda_runtime.h>

/* tests/cuda/simt/cuda_runtime.h, cudaDeviceProp. */
struct simt_properties {
    char name[256];
    size_t total_bytes;
    int major, minor, multiprocessors;
    size_t shared_bytes;
};

extern "C" cudaError_t simt_device_properties(simt_properties *properties, int device);

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    simt_properties own;
    cudaError_t error = simt_device_properties(&own, device);
    memset(prop, 0, sizeof *prop);
    memcpy(prop->name, own.name, sizeof own.name);
    prop->totalGlobalMem = own.total_bytes;
    prop->major = own.major;
    prop->minor = own.minor;
    prop->multiProcessorCount = own.multiprocessors;
    prop->sharedMemPerBlockOptin = own.shared_bytes;
    return error;
}

static_assert(offsetof(cudaLaunchConfig_t, dynamicSmemBytes) == 24 &&
                  offsetof(cudaLaunchConfig_t, stream) == 32,
              "launches");
static_assert(offsetof(cudaKernelNodeParams, blockDim) == 20 &&
                  offsetof(cudaKernelNodeParams, sharedMemBytes) == 32 &&
                  offsetof(cudaKernelNodeParams, kernelParams) == 40,
              "nodes of graphs");
static_assert(offsetof(cudaFuncAttributes, sharedSizeBytes) == 0, "attributes of kernels");
static_assert(cudaErrorInvalidValue == 1 && cudaErrorMemoryAllocation == 2 &&
                  cudaErrorNotReady == 600 && cudaErrorLaunchFailure == 719 &&
                  cudaFuncAttributeMaxDynamicSharedMemorySize == 8 && cudaEventWaitExternal == 1 &&
                  cudaStreamNonBlocking == 1 && cudaStreamCaptureStatusActive == 1,
              "numbers of the runtime");
static_assert(CUDA_R_32F == 0 && CUDA_R_16F == 2 && CUDA_R_16BF == 14 && CUBLAS_OP_N == 0 &&
                  CUBLAS_OP_T == 1 && CUBLAS_COMPUTE_32F == 68,
              "numbers of cuBLAS");
