/* step_log.cu - what a piece of a deferred step is made of: calls in a log, descriptors in an arena
 * (step.cu). */
#include "kernels/cuda/step.cuh"

#include <string.h>

/* --- the arena -------------------------------------------------------------------------------- */

size_t kva_cuda_room(size_t bytes)
{
    size_t unit = ARENA_ALIGN;
    while (unit * 16 <= bytes)
        unit *= 2;
    return kva_align_up(bytes, unit);
}

void *kva_cuda_step_stage(struct kva_device *device, size_t bytes)
{
    struct kva_cuda_step *step = device->step;
    size_t room = kva_cuda_room(bytes);
    if (!device->deferring)
        return nullptr;
    if (room > KVA_CUDA_ARENA_BYTES - step->used) {
        kva_cuda_step_break(device);
        return nullptr;
    }
    void *staged = step->host[step->side] + step->used;
    step->used += room;
    return staged;
}

const void *kva_cuda_step_address(const struct kva_device *device, const void *staged)
{
    const struct kva_cuda_step *step = device->step;
    uintptr_t at = reinterpret_cast<uintptr_t>(staged);
    uintptr_t host = reinterpret_cast<uintptr_t>(step->host[step->side]);
    return at >= host && at < host + KVA_CUDA_ARENA_BYTES ? step->device + (at - host) : nullptr;
}

const void *kva_cuda_step_upload(struct kva_device *device, const void *data, size_t bytes)
{
    struct kva_cuda_step *step = device->step;
    if (!device->deferring)
        return nullptr;
    for (uint32_t i = 0; i < KVA_CUDA_RING_RECENT; i++) {
        if (step->recent[i].bytes == bytes &&
            memcmp(step->host[step->side] + step->recent[i].offset, data, bytes) == 0)
            return step->device + step->recent[i].offset;
    }
    void *staged = kva_cuda_step_stage(device, bytes);
    if (!staged)
        return nullptr;
    memcpy(staged, data, bytes);
    uint32_t slot = step->recent_next++ % KVA_CUDA_RING_RECENT;
    step->recent[slot].offset =
        static_cast<size_t>(static_cast<unsigned char *>(staged) - step->host[step->side]);
    step->recent[slot].bytes = bytes;
    return step->device + step->recent[slot].offset;
}

bool kva_cuda_step_send(struct kva_device *device)
{
    struct kva_cuda_step *step = device->step;
    cudaStream_t stream = device->streams[KVA_QUEUE_COMPUTE];
    const size_t first = step->sent_bytes;
    if (step->used == first)
        return true;
    if (!kva_cuda_close_aside(device))
        return false;
    step->sent_bytes = step->used;
    return kva_cuda_copy_async(device, KVA_QUEUE_COMPUTE, step->device + first,
                               step->host[step->side] + first, step->used - first,
                               "a copy of descriptors") &&
           kva_cuda_check(device, cudaEventRecord(step->sent[step->side], stream),
                          "cudaEventRecord");
}

/* --- the log ---------------------------------------------------------------------------------- */

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = static_cast<const unsigned char *>(data);
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001B3ull;
    return hash;
}

/* NULL: nothing is deferred, or no longer. */
static struct call *new_call(struct kva_device *device, enum call_kind kind, enum kva_queue queue)
{
    if (!device->deferring)
        return nullptr;
    struct log *log = &device->step->log;
    if (log->count == CALLS_MAX) {
        kva_cuda_step_break(device);
        return nullptr;
    }
    struct call *call = &log->calls[log->count++];
    memset(static_cast<void *>(call), 0, sizeof *call);
    call->kind = kind;
    call->queue = queue;
    call->branch = queue == KVA_QUEUE_COMPUTE ? device->branch : 0;
    log->queues |= 1u << queue;
    const uint32_t what[] = {static_cast<uint32_t>(kind), static_cast<uint32_t>(queue),
                             call->branch};
    log->hash = hash_bytes(log->hash, what, sizeof what);
    return call;
}

bool kva_cuda_defer_kernel(struct kva_device *device, enum kva_queue queue,
                           const struct kva_cuda_kernel *kernel,
                           const struct kva_cuda_launch *launch, void **ret_args)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < kernel->arg_count; i++)
        bytes += kva_align_up(kernel->arg_bytes[i], 16);
    if (device->deferring && device->step->log.args_used + bytes > ARGS_BYTES)
        kva_cuda_step_break(device);
    struct call *call = new_call(device, CALL_KERNEL, queue);
    if (!call)
        return false;
    struct log *log = &device->step->log;
    call->kernel = *kernel;
    call->launch = *launch;
    call->args_at = log->args_used;
    call->args_bytes = bytes;
    memset(log->args + log->args_used, 0, bytes);
    for (uint32_t i = 0; i < kernel->arg_count; i++) {
        ret_args[i] = log->args + log->args_used;
        log->args_used += kva_align_up(kernel->arg_bytes[i], 16);
    }
    log->hash = hash_bytes(log->hash, &kernel->function, sizeof kernel->function);
    return true;
}

bool kva_cuda_defer_linear(struct kva_device *device, const struct kva_linear_args *args)
{
    struct call *call = new_call(device, CALL_LINEAR, KVA_QUEUE_COMPUTE);
    if (!call)
        return false;
    call->linear = *args;
    const uint64_t what[] = {reinterpret_cast<uintptr_t>(args->out),
                             reinterpret_cast<uintptr_t>(args->x),
                             reinterpret_cast<uintptr_t>(args->weight.data), args->rows};
    device->step->log.hash = hash_bytes(device->step->log.hash, what, sizeof what);
    return true;
}

bool kva_cuda_step_branch(struct kva_device *device, uint32_t branch)
{
    if (!device->forked) {
        device->branch = 0;
        if (!new_call(device, CALL_FORK, KVA_QUEUE_COMPUTE))
            return false;
    }
    device->forked = true;
    device->branch = branch;
    return true;
}

void kva_cuda_step_join(struct kva_device *device)
{
    const bool forked = device->forked;
    device->forked = false;
    device->branch = 0;
    if (forked)
        (void)new_call(device, CALL_JOIN, KVA_QUEUE_COMPUTE);
}

bool kva_cuda_defer_record(struct kva_event *event, enum kva_queue queue)
{
    struct kva_device *device = event->device;
    if (device->deferring && device->step->log.records == EVENTS_MAX)
        kva_cuda_step_break(device);
    struct call *call = new_call(device, CALL_RECORD, queue);
    if (!call)
        return false;
    call->event = event;
    call->record = device->step->log.records++;
    event->deferred_record = call->record;
    event->deferred_queue = queue;
    __atomic_store_n(&event->deferred, true, __ATOMIC_RELEASE);
    return true;
}

bool kva_cuda_defer_wait(struct kva_event *event, enum kva_queue queue)
{
    struct kva_device *device = event->device;
    if (!event->deferred)
        return false;
    struct call *call = new_call(device, CALL_WAIT, queue);
    if (!call)
        return false;
    call->event = event;
    call->record = event->deferred_record;
    device->step->log.awaits_copies |=
        queue != KVA_QUEUE_COPY && event->deferred_queue == KVA_QUEUE_COPY;
    device->step->log.hash = hash_bytes(device->step->log.hash, &call->record, sizeof call->record);
    return true;
}

cudaError_t kva_cuda_log_launch(const struct log *log, const struct call *call, cudaStream_t stream,
                                bool early)
{
    void *args[KVA_CUDA_ARGS_MAX];
    log_args(args, log, call);
    cudaLaunchConfig_t config = {};
    config.gridDim = call->launch.grid;
    config.blockDim = call->launch.block;
    config.dynamicSmemBytes = call->launch.shared_bytes;
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    if (early)
        kva_cuda_launch_early(&config, &attribute);
    return call->kernel.launch(&config, call->kernel.function, args);
}
