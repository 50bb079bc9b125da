/* cuda_runtime.h - the part of CUDA's language and runtime that kernels/cuda uses, on the host (see
 * simt.h). Names and contracts are the toolkit's. */
#ifndef KVA_TESTS_CUDA_RUNTIME_H
#define KVA_TESTS_CUDA_RUNTIME_H

#include "simt.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

/* --- the language ---------------------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
/* One block runs at a time, so its shared variables are static ones, in a section that is filled
 * with a pattern before each block. */
#define __shared__ static __attribute__((section("simt_shared")))

inline uint3 &threadIdx = simt::thread_index, &blockIdx = simt::block_index;
inline dim3 &blockDim = simt::block_size, &gridDim = simt::grid_size;

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
inline float2 make_float2(float x, float y)
{
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

inline void __syncthreads()
{
    simt::block_barrier();
}
inline int __syncthreads_or(int predicate)
{
    return simt::block_vote(predicate, true);
}

namespace simt
{
struct exchange {
    uint32_t value, result;
    unsigned source;
};
void shuffle(void *const *lanes, uint32_t mask);
void ballot(void *const *lanes, uint32_t mask);
void nothing(void *const *lanes, uint32_t mask);

template <typename T> T shuffle_from(uint32_t mask, T value, unsigned source)
{
    static_assert(sizeof(T) == 4, "32-bit values only");
    exchange own = {0, 0, source};
    memcpy(&own.value, &value, 4);
    warp_collective(mask, shuffle, &own);
    memcpy(&value, &own.result, 4);
    return value;
}
} // namespace simt

template <typename T> T __shfl_sync(unsigned mask, T value, int lane)
{
    return simt::shuffle_from(mask, value, (unsigned)lane % 32);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int lanes)
{
    return simt::shuffle_from(mask, value, simt::lane_index() ^ (unsigned)lanes);
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned delta)
{
    unsigned lane = simt::lane_index();
    return simt::shuffle_from(mask, value, lane >= delta ? lane - delta : lane);
}
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned delta)
{
    unsigned lane = simt::lane_index();
    return simt::shuffle_from(mask, value, lane + delta < 32 ? lane + delta : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    simt::exchange own = {predicate != 0, 0, 0};
    simt::warp_collective(mask, simt::ballot, &own);
    return own.result;
}
inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}
/* Threads run one at a time: what they have written is there. */
inline void __threadfence()
{
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu)
{
    simt::warp_collective(mask, simt::nothing, nullptr);
}

inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
/* Of the eight bytes of a, then b, those that the selector's nibbles name. */
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned chosen = 0;
    for (unsigned i = 0; i < 4; i++)
        chosen |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return chosen;
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline float __frcp_rn(float x)
{
    return 1.0f / x;
}
inline void sincospif(float x, float *s, float *c)
{
    *s = (float)sin(M_PI * x);
    *c = (float)cos(M_PI * x);
}
inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
template <typename T> T atomicAdd(T *at, T value)
{
    T old = *at;
    *at = old + value;
    return old;
}
template <typename T> T atomicAnd(T *at, T value)
{
    T old = *at;
    *at = old & value;
    return old;
}
template <typename T> T atomicOr(T *at, T value)
{
    T old = *at;
    *at = old | value;
    return old;
}
template <typename T> T min(T a, T b)
{
    return b < a ? b : a;
}
template <typename T> T max(T a, T b)
{
    return a < b ? b : a;
}
template <typename T> T __ldg(const T *at)
{
    return *at;
}

/* --- the runtime ----------------------------------------------------------------------------- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
};

enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum { cudaStreamNonBlocking = 1 };
enum { cudaEventDisableTiming = 2 };
enum { cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr { cudaDevAttrCanUseHostPointerForRegisteredMem = 91 };

/* As the real structure begins. */
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion;
};

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
    int major, minor;
    int multiProcessorCount;
    size_t sharedMemPerBlockOptin;
};

typedef struct simt_stream *cudaStream_t;

/* How a stream begins, for libraries beside the module: work of theirs is queued as the module's. */
struct simt_stream_entry {
    int (*enqueue)(cudaStream_t stream, std::function<void()> run); /* a cudaError_t */
};

typedef struct simt_event *cudaEvent_t;
typedef struct simt_graph *cudaGraph_t;
typedef struct simt_graph_exec *cudaGraphExec_t;
typedef const struct simt_node *cudaGraphNode_t;

enum { cudaEventWaitExternal = 1 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
};
struct cudaGraphEdgeData;

struct cudaKernelNodeParams {
    void *func;
    dim3 gridDim, blockDim;
    unsigned sharedMemBytes;
    void **kernelParams, **extra;
};

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };

/* Larger than what is looked at here, as in the toolkit's header. */
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        char room[64];
        int programmaticStreamSerializationAllowed;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

/* By the names that the toolkit's headers give them: tests/cuda/ptx links nvcc's objects with them. */
extern "C" {
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t error);
const char *cudaGetErrorName(cudaError_t error);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMalloc(void **data, size_t bytes);
cudaError_t cudaFree(void *data);
cudaError_t cudaHostRegister(void *data, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *data);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams *params);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
}

namespace simt
{
/* A kernel called with arguments that lie at these addresses, read now. */
typedef std::function<void()> untyped_call(const void *kernel, void *const *args);

/* Queue work; `shared_bytes` and the like are those of a kernel launch. */
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);
cudaError_t launch(const cudaLaunchConfig_t *config, const void *kernel, untyped_call *untyped,
                   std::function<void()> call);
/* What any kernel is taken to have besides its dynamic shared memory. */
const size_t STATIC_SHARED_BYTES = 512;
cudaError_t allow_shared(const void *kernel, size_t bytes);
cudaError_t check_shared(const void *kernel, size_t bytes);
} // namespace simt

/* By value: arguments are read when the kernel is launched. */
template <typename... Args> std::function<void()> kernel_call(void (*kernel)(Args...), Args... args)
{
    return [kernel, args...]() { kernel(args...); };
}

template <typename... Args, size_t... I>
std::function<void()> typed_call(const void *kernel, void *const *args, std::index_sequence<I...>)
{
    return kernel_call<Args...>((void (*)(Args...))(uintptr_t)kernel, *(Args *)args[I]...);
}

template <typename... Args>
std::function<void()> untyped_kernel_call(const void *kernel, void *const *args)
{
    return typed_call<Args...>(kernel, args, std::index_sequence_for<Args...>{});
}

template <typename... Expected, typename... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Expected...),
                               Given &&...given)
{
    if (simt::check_shared((const void *)kernel, config->dynamicSmemBytes))
        return cudaErrorInvalidValue;
    return simt::launch(config, (const void *)kernel, untyped_kernel_call<Expected...>,
                        kernel_call<Expected...>(kernel, Expected(given)...));
}

inline cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute, int value)
{
    return simt::allow_shared(kernel, (size_t)value);
}

inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *)
{
    attributes->sharedSizeBytes = simt::STATIC_SHARED_BYTES;
    attributes->ptxVersion = 90;
    return cudaSuccess;
}

#endif
