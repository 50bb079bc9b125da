/* device.cu - the CUDA device: its life, memory, queues, events and errors. */
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/select.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cuBLAS takes a workspace of this size on Hopper; giving it one keeps its results reproducible. */
#define BLAS_WORKSPACE_BYTES ((size_t)32 << 20)

/* mma with bf16 and cp.async. */
#define COMPUTE_MAJOR_MIN 8

const struct kva_ops kva_cuda_ops = {
    .embed = kva_cuda_embed,
    .norm = kva_cuda_norm,
    .linear = kva_cuda_linear,
    .linear_group = kva_cuda_linear_group,
    .linear_glu = kva_cuda_linear_glu,
    .rope = kva_cuda_rope,
    .glu = kva_cuda_glu,
    .gather = kva_cuda_gather,
    .sum_rows = kva_cuda_sum_rows,
    .kv_append = kva_cuda_kv_append,
    .quantise = kva_cuda_quantise,
    .attend = kva_cuda_attend,
    .attend_lowbit = kva_cuda_attend_lowbit,
    .attend_rows = kva_cuda_attend_rows,
    .merge = kva_cuda_merge,
    .weigh = kva_cuda_weigh,
    .choose = kva_cuda_choose,
    .weigh_choose = kva_cuda_weigh_choose,
    .accumulate = kva_cuda_accumulate,
    .assign_slots = kva_cuda_assign_slots,
    .fetch_rows = kva_cuda_fetch_rows,
    .query_cosine = kva_cuda_query_cosine,
    .shortlist = kva_cuda_shortlist,
    .attend_mass = kva_cuda_attend_mass,
    .mean_keys = kva_cuda_mean_keys,
    .row_error = kva_cuda_row_error,
    .keep = kva_cuda_keep,
    .use_rows = kva_cuda_use_rows,
    .store_rows = kva_cuda_store_rows,
    .roll_rows = kva_cuda_roll_rows,
    .sketch = kva_cuda_sketch,
    .sketch_queries = kva_cuda_sketch_queries,
    .sketch_sums = kva_cuda_sketch_sums,
    .sketch_weigh = kva_cuda_sketch_weigh,
};

/* --- errors ----------------------------------------------------------------------------------- */

void kva_cuda_fail(struct kva_device *device, const char *format, ...)
{
    if (kva_cuda_failed(device))
        return;
    char message[KVA_ERR_MESSAGE_MAX];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    kva_fail(&device->error, KVA_EDEVICE, "%s", message);
    __atomic_store_n(&device->failed, true, __ATOMIC_RELEASE);
}

bool kva_cuda_check(struct kva_device *device, cudaError_t status, const char *what)
{
    if (status == cudaSuccess)
        return true;
    if (device->capturing)
        return false;
    kva_cuda_fail(device, "GPU %d: %s: %s (%s)", device->index, what, cudaGetErrorString(status),
                  cudaGetErrorName(status));
    return false;
}

bool kva_cuda_enter(struct kva_device *device)
{
    /* The current device is a property of the thread; setting it costs a driver call. */
    static thread_local int current = -1;
    if (kva_cuda_failed(device))
        return false;
    if (current == device->index)
        return true;
    if (!kva_cuda_check(device, cudaSetDevice(device->index), "cudaSetDevice"))
        return false;
    current = device->index;
    return true;
}

enum kva_status kva_cuda_error(const struct kva_device *device, struct kva_err *err)
{
    if (!kva_cuda_failed(device))
        return KVA_OK;
    if (err)
        *err = device->error;
    return device->error.status;
}

enum kva_status kva_cuda_fail_with(struct kva_err *err, cudaError_t status, const char *what)
{
    return kva_fail(err, KVA_EDEVICE, "%s: %s (%s)", what, cudaGetErrorString(status),
                    cudaGetErrorName(status));
}

/* --- shared memory ---------------------------------------------------------------------------- */

size_t kva_cuda_shared_room(struct kva_device *device, const char *name, const void *kernel)
{
    cudaFuncAttributes attributes = {};
    for (uint32_t i = 0; i < device->shared_count; i++) {
        if (device->shared[i].kernel == kernel)
            return device->shared[i].room;
    }
    if (!kva_cuda_enter(device) ||
        !kva_cuda_check(device, cudaFuncGetAttributes(&attributes, kernel), name))
        return 0;
    size_t room = device->shared_bytes_max - attributes.sharedSizeBytes;
    if (!kva_cuda_check(device,
                        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(room)),
                        name))
        return 0;
    if (device->shared_count < KVA_CUDA_SHARED_MAX)
        device->shared[device->shared_count++] = {kernel, room};
    return room;
}

bool kva_cuda_allow_shared(struct kva_device *device, const char *name, const void *kernel,
                           size_t bytes)
{
    size_t room = kva_cuda_shared_room(device, name, kernel);
    if (bytes <= room)
        return true;
    kva_cuda_fail(device, "GPU %d: %s needs %zu bytes of shared memory, this GPU has %zu for it",
                  device->index, name, bytes, room);
    return false;
}

/* --- device memory ---------------------------------------------------------------------------- */

enum kva_status kva_cuda_alloc_device(struct kva_device *device, size_t bytes, void **ret,
                                      struct kva_err *err)
{
    void *data = nullptr;
    if (!kva_cuda_enter(device))
        return kva_cuda_error(device, err);
    if (device->bytes_max && bytes > device->bytes_max - device->bytes)
        return kva_fail(err, KVA_ENOMEM,
                        "the device tier cannot give %zu bytes: %llu of %llu are in use", bytes,
                        static_cast<unsigned long long>(device->bytes),
                        static_cast<unsigned long long>(device->bytes_max));
    cudaError_t status = cudaMalloc(&data, kva_max_size(bytes, 1));
    if (status == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total_bytes = 0;
        (void)cudaGetLastError(); /* that is no failure of the device */
        (void)cudaMemGetInfo(&free_bytes, &total_bytes);
        return kva_fail(err, KVA_ENOMEM,
                        "the device tier cannot give %zu bytes: %zu of the GPU's %zu are free",
                        bytes, free_bytes, total_bytes);
    }
    if (status != cudaSuccess)
        return kva_cuda_fail_with(err, status, "cudaMalloc");
    device->bytes += bytes;
    *ret = data;
    return KVA_OK;
}

void kva_cuda_free_device(struct kva_device *device, void *data, size_t bytes)
{
    if (!data)
        return;
    device->bytes -= bytes;
    (void)cudaFree(data);
}

/* --- both tiers ------------------------------------------------------------------------------- */

void kva_cuda_sync(struct kva_device *device, enum kva_queue queue)
{
    kva_cuda_step_break(device);
    if (kva_cuda_enter(device))
        kva_cuda_check(device, cudaStreamSynchronize(device->streams[queue]),
                       "work that ran earlier");
}

static void cuda_free(struct kva_device *device, enum kva_mem mem, void *data, size_t bytes)
{
    kva_cuda_step_break(device);
    (void)kva_cuda_enter(device);
    if (!data || kva_cuda_spare_give(device, data))
        return;
    kva_cuda_wait_all(device);
    if (mem == KVA_MEM_DEVICE)
        kva_cuda_free_device(device, data, bytes);
    else
        kva_cuda_free_host(data, bytes);
}

void kva_cuda_wait_all(struct kva_device *device)
{
    for (int queue = 0; queue < KVA_QUEUE_COUNT; queue++)
        kva_cuda_sync(device, static_cast<enum kva_queue>(queue));
}

/* From the driver; where that has no more, it gets back first what is spare. */
static enum kva_status take_memory(struct kva_device *device, enum kva_mem mem, size_t bytes,
                                   void **ret, struct kva_err *err)
{
    for (;;) {
        enum kva_status status = mem == KVA_MEM_HOST
                                     ? kva_cuda_alloc_host(device, bytes, ret, err)
                                     : kva_cuda_alloc_device(device, bytes, ret, err);
        if (status == KVA_OK)
            kva_cuda_spare_note(device, mem, *ret, bytes);
        if (status != KVA_ENOMEM || !kva_cuda_spare_drop(device))
            return status;
    }
}

static enum kva_status cuda_alloc(struct kva_device *device, enum kva_mem mem, size_t bytes,
                                  void **ret, struct kva_err *err)
{
    kva_cuda_step_break(device);
    void *data = kva_cuda_spare_take(device, mem, bytes);
    bool fresh = !data;
    if (fresh) {
        enum kva_status status = take_memory(device, mem, bytes, &data, err);
        if (status)
            return status;
    } else {
        kva_cuda_wait_all(device); /* for whoever had it before */
    }
    cudaStream_t stream = device->streams[KVA_QUEUE_COMPUTE];
    if (mem == KVA_MEM_HOST) {
        if (!fresh)
            memset(data, 0, bytes);
    } else if (kva_cuda_enter(device) &&
               kva_cuda_check(device, cudaMemsetAsync(data, 0, bytes, stream), "cudaMemset")) {
        kva_cuda_sync(device, KVA_QUEUE_COMPUTE); /* the copy queue may use it, too */
    }
    if (kva_cuda_failed(device)) {
        cuda_free(device, mem, data, bytes);
        return kva_cuda_error(device, err);
    }
    *ret = data;
    return KVA_OK;
}

void kva_cuda_copy(struct kva_device *device, enum kva_queue queue, void *to, const void *from,
                   size_t bytes)
{
    kva_cuda_step_break(device);
    if (kva_cuda_enter(device))
        (void)kva_cuda_copy_async(device, queue, to, from, bytes, "a copy");
}

/* --- life ------------------------------------------------------------------------------------- */

static void drop_blas(struct kva_device *device, struct kva_cuda_blas *blas)
{
    if (blas->handle)
        (void)cublasDestroy(blas->handle);
    kva_cuda_free_device(device, blas->workspace, BLAS_WORKSPACE_BYTES);
}

static void drop_lanes(struct kva_device *device)
{
    for (struct kva_cuda_lane &lane : device->lanes) {
        drop_blas(device, &lane.blas);
        if (lane.done)
            (void)cudaEventDestroy(lane.done);
        if (lane.stream)
            (void)cudaStreamDestroy(lane.stream);
    }
}

static void cuda_close(struct kva_device *device)
{
    for (int queue = 0; queue < KVA_QUEUE_COUNT; queue++) {
        if (device->streams[queue])
            kva_cuda_sync(device, static_cast<enum kva_queue>(queue));
    }
    (void)kva_cuda_spare_drop(device);
    drop_lanes(device);
    drop_blas(device, &device->blas);
    kva_cuda_free_device(device, device->scratch, KVA_CUDA_SCRATCH_BYTES);
    kva_cuda_free_device(device, device->aside, KVA_CUDA_ASIDE_BYTES);
    if (device->ordered)
        (void)cudaEventDestroy(device->ordered);
    kva_cuda_step_destroy(device);
    kva_cuda_ring_destroy(device);
    kva_cuda_weights_free(device);
    for (int queue = 0; queue < KVA_QUEUE_COUNT; queue++) {
        if (device->streams[queue])
            (void)cudaStreamDestroy(device->streams[queue]);
    }
    free(device);
}

static void cuda_fail(struct kva_device *device, const char *message)
{
    kva_cuda_fail(device, "%s", message);
}

static const struct kva_backend backend = {
    .limits = {.head_dim_max = 256,
               .rotary_dim_max = 4096,
               .partials_max = UINT32_MAX,
               .select_heads_max = KVA_SELECT_HEADS_MAX,
               .select_max = UINT32_MAX,
               .slots_max = UINT32_MAX,
               .weights_as_act = true},
    .close = cuda_close,
    .error = kva_cuda_error,
    .fail = cuda_fail,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .weight = kva_cuda_weight,
    .copy = kva_cuda_copy,
    .sync = kva_cuda_sync,
    .event_create = kva_cuda_event_create,
    .event_destroy = kva_cuda_event_destroy,
    .event_record = kva_cuda_event_record,
    .event_wait = kva_cuda_event_wait,
    .event_done = kva_cuda_event_done,
    .event_sync = kva_cuda_event_sync,
    .step_begin = kva_cuda_step_begin,
    .step_part = kva_cuda_step_part,
    .step_end = kva_cuda_step_end,
    .steps = kva_cuda_step_counts,
    .branch = kva_cuda_step_branch,
    .join = kva_cuda_step_join,
    .roofs = kva_cuda_roofs,
    .eigen = kva_cuda_eigen,
};

/* Which GPU; what is wrong if there is none. */
static enum kva_status find_gpu(const struct kva_device_params *params, cudaDeviceProp *prop,
                                struct kva_err *err)
{
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorInsufficientDriver)
        return kva_fail(err, KVA_ENOTFOUND,
                        "no GPU: this machine has no NVIDIA driver, or one older than CUDA wants");
    if (status != cudaSuccess || count == 0)
        return kva_fail(err, KVA_ENOTFOUND, "no GPU: %s",
                        status == cudaSuccess ? "the driver sees none"
                                              : cudaGetErrorString(status));
    if (params->gpu_index >= static_cast<uint32_t>(count))
        return kva_fail(err, KVA_ENOTFOUND, "no GPU %u: there are %d", params->gpu_index, count);
    status = cudaGetDeviceProperties(prop, static_cast<int>(params->gpu_index));
    if (status != cudaSuccess)
        return kva_cuda_fail_with(err, status, "cudaGetDeviceProperties");
    if (prop->major < COMPUTE_MAJOR_MIN)
        return kva_fail(err, KVA_EUNSUPPORTED,
                        "GPU %u is a %s of compute capability %d.%d; %d.0 is the least",
                        params->gpu_index, prop->name, prop->major, prop->minor, COMPUTE_MAJOR_MIN);
    /* Kernels read host pages at their own addresses. */
    int same = 0;
    status = cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem,
                                    static_cast<int>(params->gpu_index));
    if (status != cudaSuccess)
        return kva_cuda_fail_with(err, status, "cudaDeviceGetAttribute");
    if (!same)
        return kva_fail(err, KVA_EUNSUPPORTED,
                        "GPU %u (%s) cannot read pinned host memory at the host's addresses on "
                        "this machine",
                        params->gpu_index, prop->name);
    return KVA_OK;
}

/* `urgent`: blocks of its kernels go first. */
static cudaError_t create_stream(cudaStream_t *ret, bool urgent)
{
    int least, greatest;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    return error ? error
                 : cudaStreamCreateWithPriority(ret, cudaStreamNonBlocking,
                                                urgent ? greatest : least);
}

/* Kernels of the other queues are small beside those of compute, which waits for them. */
static cudaError_t create_streams(struct kva_device *device)
{
    cudaError_t error = cudaEventCreateWithFlags(&device->ordered, cudaEventDisableTiming);
    for (int queue = 0; queue < KVA_QUEUE_COUNT && error == cudaSuccess; queue++)
        error = create_stream(&device->streams[queue], queue != KVA_QUEUE_COMPUTE);
    return error;
}

static enum kva_status create_blas(struct kva_device *device, struct kva_cuda_blas *to,
                                   cudaStream_t stream, struct kva_err *err)
{
    enum kva_status status =
        kva_cuda_alloc_device(device, BLAS_WORKSPACE_BYTES, &to->workspace, err);
    if (status)
        return status;
    cublasStatus_t blas = cublasCreate(&to->handle);
    if (blas == CUBLAS_STATUS_SUCCESS)
        blas = cublasSetStream(to->handle, stream);
    /* Else parts of a sum would be added up in 16 bits: in f16 they overflow, in bf16 they lose. */
    if (blas == CUBLAS_STATUS_SUCCESS)
        blas = cublasSetMathMode(to->handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    if (blas == CUBLAS_STATUS_SUCCESS)
        blas = cublasSetWorkspace(to->handle, to->workspace, BLAS_WORKSPACE_BYTES);
    if (blas != CUBLAS_STATUS_SUCCESS)
        return kva_fail(err, KVA_EDEVICE, "cuBLAS: %s", cublasGetStatusString(blas));
    return KVA_OK;
}

static enum kva_status create_lane(struct kva_device *device, struct kva_cuda_lane *lane,
                                   struct kva_err *err)
{
    cudaError_t error = create_stream(&lane->stream, false);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&lane->done, cudaEventDisableTiming);
    if (error != cudaSuccess)
        return kva_cuda_fail_with(err, error, "cudaStreamCreate");
    return create_blas(device, &lane->blas, lane->stream, err);
}

static enum kva_status create_queues(struct kva_device *device, struct kva_err *err)
{
    cudaError_t error = create_streams(device);
    if (error != cudaSuccess)
        return kva_cuda_fail_with(err, error, "cudaStreamCreate");
    enum kva_status status =
        create_blas(device, &device->blas, device->streams[KVA_QUEUE_COMPUTE], err);
    for (uint32_t i = 0; i < KVA_CUDA_LANES && !status; i++)
        status = create_lane(device, &device->lanes[i], err);
    if (!status)
        status = kva_cuda_alloc_device(device, KVA_CUDA_SCRATCH_BYTES, &device->scratch, err);
    if (!status)
        status = kva_cuda_alloc_device(device, KVA_CUDA_ASIDE_BYTES, &device->aside, err);
    if (!status)
        status = kva_cuda_ring_create(device, err);
    if (!status)
        status = kva_cuda_step_create(device, err);
    return status;
}

/* Whether the module has kernels for the current GPU: one that was built for other cards has none,
 * and a driver may refuse their PTX. Kernels wait for those before them in code for sm_90 and later
 * (kva_begin); on a card for which the driver makes them of sm_80's PTX, they do not. */
static enum kva_status find_code(struct kva_device *device, const cudaDeviceProp *prop, bool serial,
                                 struct kva_err *err)
{
    int capability = 0;
    cudaError_t status = kva_cuda_find_code(&capability);
    device->early = capability >= 90 && !serial;
    if (status == cudaSuccess)
        return KVA_OK;
    (void)cudaGetLastError();
    return kva_fail(err, KVA_EUNSUPPORTED,
                    "this build's CUDA module has no code for %s, of compute capability %d.%d: %s",
                    prop->name, prop->major, prop->minor, cudaGetErrorString(status));
}

static enum kva_status open_cuda(const struct kva_device_params *params, struct kva_device **ret,
                                 struct kva_err *err)
{
    cudaDeviceProp prop;
    enum kva_status status = find_gpu(params, &prop, err);
    if (status)
        return status;
    struct kva_device *device = static_cast<kva_device *>(calloc(1, sizeof *device));
    if (!device)
        return kva_fail(err, KVA_ENOMEM, "no memory for the CUDA device");
    device->base.backend = &backend;
    device->base.ops = &kva_cuda_ops;
    device->index = static_cast<int>(params->gpu_index);
    device->sm_count = prop.multiProcessorCount;
    device->shared_bytes_max = prop.sharedMemPerBlockOptin;
    device->bytes_max = params->gpu_bytes_max;
    device->direct = params->gpu_direct;
    device->numa_node = kva_cuda_numa_node(device->index);
    struct kva_device_info *info = &device->base.info;
    info->act = params->act;
    status = kva_cuda_enter(device) ? find_code(device, &prop, params->gpu_serial, err)
                                    : kva_cuda_error(device, err);
    if (!status)
        status = create_queues(device, err);
    if (status) {
        cuda_close(device);
        return status;
    }
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    info->free_bytes = params->gpu_bytes_max
                           ? kva_min_size(free_bytes, params->gpu_bytes_max - device->bytes)
                           : free_bytes;
    snprintf(info->name, sizeof info->name, "cuda:%d: %.60s, %.1f of %.1f GiB free, %s",
             device->index, prop.name, static_cast<double>(free_bytes) / (1 << 30),
             static_cast<double>(total_bytes) / (1 << 30), kva_dtype_name(info->act));
    *ret = device;
    return KVA_OK;
}

extern "C" __attribute__((visibility("default"))) const struct kva_cuda_module kva_cuda_module = {
    .version = KVA_VERSION,
    .ops_bytes = sizeof(struct kva_ops),
    .open = open_cuda,
};
