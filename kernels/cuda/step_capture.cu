/* step_capture.cu - the log of a piece of a step becomes a graph: queues that take part are branches
 * of compute's, products of the same rows stand side by side. */
#include "kernels/cuda/step.cuh"

/* With edges' data, as CUDA 13 has it under the plain name. */
#if defined(CUDART_VERSION) && CUDART_VERSION < 13000
#define CAPTURE_INFO cudaStreamGetCaptureInfo_v3
#else
#define CAPTURE_INFO cudaStreamGetCaptureInfo
#endif

/* --- calls ------------------------------------------------------------------------------------ */

/* The node that the last launch into a stream became. */
static bool last_node(cudaStream_t stream, cudaGraphNode_t *ret)
{
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t *nodes = nullptr;
    const cudaGraphEdgeData *edges = nullptr;
    size_t count = 0;
    if (CAPTURE_INFO(stream, &status, nullptr, nullptr, &nodes, &edges, &count) != cudaSuccess ||
        status != cudaStreamCaptureStatusActive || count != 1)
        return false;
    *ret = nodes[0];
    return true;
}

/* `before`: the call before it in its queue, or NULL. Only behind a kernel is one launched early:
 * edges from anything else are whole. */
static bool capture_call(struct kva_device *device, const struct log *log, struct call *call,
                         const struct call *before)
{
    struct kva_cuda_step *step = device->step;
    cudaStream_t stream = device->streams[call->queue];
    const bool follows = before && (before->kind == CALL_KERNEL || before->kind == CALL_LINEAR);
    switch (call->kind) {
    case CALL_KERNEL:
        return kva_cuda_log_launch(log, call, stream, follows && device->early) == cudaSuccess &&
               last_node(stream, &call->node);
    case CALL_LINEAR:
        return kva_cuda_try_linear(device, &call->linear);
    case CALL_RECORD:
        return cudaEventRecord(step->records[call->record], stream) == cudaSuccess;
    case CALL_WAIT:
        return cudaStreamWaitEvent(stream, step->records[call->record], 0) == cudaSuccess;
    }
    return false;
}

/* Products of few rows that are one branch each: what a weight's bytes are at most, beside the first
 * one's, for the GPU to have room for both. */
#define BESIDE_ROWS  64u
#define BESIDE_BYTES ((size_t)16 << 20)

/* Whether a call may run while the product before it does: of the same rows, and small. */
static bool goes_beside(const struct call *first, const struct call *call)
{
    const struct kva_linear_args *a = &first->linear, *b = &call->linear;
    return first->kind == CALL_LINEAR && call->kind == CALL_LINEAR && a->x == b->x &&
           a->out != b->out && a->rows <= BESIDE_ROWS && !a->accumulate && !b->accumulate &&
           !b->bias.data && !kva_dtype_is_packed(b->weight.dtype) &&
           static_cast<size_t>(b->weight.rows) * b->weight.cols * sizeof(uint16_t) <= BESIDE_BYTES;
}

/* How many calls behind the first one go beside it. */
static uint32_t count_beside(const struct log *log, uint32_t first)
{
    const struct call *calls = &log->calls[first];
    uint32_t count = 0;
    for (; count < KVA_CUDA_LANES && first + 1 + count < log->count; count++) {
        bool apart = true; /* from every one that it would run beside */
        for (uint32_t i = 0; i <= count; i++)
            apart = apart && goes_beside(&calls[i], &calls[1 + count]);
        if (!apart)
            break;
    }
    return count;
}

/* The first of `calls` into the compute stream, `count` more beside it. */
static bool capture_beside(struct kva_device *device, const struct call *calls, uint32_t count)
{
    struct kva_cuda_step *step = device->step;
    cudaStream_t stream = device->streams[KVA_QUEUE_COMPUTE];
    bool good = cudaEventRecord(step->beside, stream) == cudaSuccess &&
                kva_cuda_try_linear(device, &calls[0].linear);
    for (uint32_t i = 0; i < count && good; i++) {
        const struct kva_cuda_lane *lane = &device->lanes[i];
        good = cudaStreamWaitEvent(lane->stream, step->beside, 0) == cudaSuccess &&
               kva_cuda_try_linear_beside(device, i, &calls[1 + i].linear) &&
               cudaEventRecord(lane->done, lane->stream) == cudaSuccess &&
               cudaStreamWaitEvent(stream, lane->done, 0) == cudaSuccess;
    }
    return good;
}

/* --- branches --------------------------------------------------------------------------------- */

/* The queue's stream joins the capture; the copy stream after what it has been given before, at
 * `copied`, which is recorded right before the graph is launched. Each graph has one of its own, and
 * runs once a step at most, so that it does not matter whether a driver binds the wait at the launch
 * or as it runs: with one for all, the second would wait for a later graph's, and that for this. */
static bool fork_branch(struct kva_device *device, enum kva_queue queue)
{
    struct kva_cuda_step *step = device->step;
    cudaStream_t stream = device->streams[queue];
    return cudaEventRecord(step->fork, device->streams[KVA_QUEUE_COMPUTE]) == cudaSuccess &&
           cudaStreamWaitEvent(stream, step->fork, 0) == cudaSuccess &&
           (queue != KVA_QUEUE_COPY ||
            cudaStreamWaitEvent(stream, step->copied, cudaEventWaitExternal) == cudaSuccess);
}

static bool join_branch(struct kva_device *device, enum kva_queue queue)
{
    struct kva_cuda_step *step = device->step;
    return cudaEventRecord(step->join, device->streams[queue]) == cudaSuccess &&
           cudaStreamWaitEvent(device->streams[KVA_QUEUE_COMPUTE], step->join, 0) == cudaSuccess;
}

/* All branches of the log, by one of the two. */
static bool each_branch(struct kva_device *device, const struct log *log,
                        bool (*act)(struct kva_device *device, enum kva_queue queue))
{
    const enum kva_queue queues[] = {KVA_QUEUE_ASIDE, KVA_QUEUE_COPY};
    bool good = true;
    for (enum kva_queue queue : queues)
        good = good && (!is_branch(log, queue) || act(device, queue));
    return good;
}

static bool capture_calls(struct kva_device *device, struct log *log)
{
    const struct call *last[KVA_QUEUE_COUNT] = {};
    bool good = each_branch(device, log, fork_branch);
    for (uint32_t i = 0; i < log->count && good; i++) {
        struct call *call = &log->calls[i];
        if (goes_behind(log, call))
            continue;
        const uint32_t beside = count_beside(log, i);
        if (beside > 0) {
            good = capture_beside(device, call, beside);
            last[call->queue] = nullptr; /* what follows has several before it */
            i += beside;
            continue;
        }
        good = capture_call(device, log, call, last[call->queue]);
        last[call->queue] = call->kind == CALL_RECORD ? last[call->queue] : call;
    }
    return good && each_branch(device, log, join_branch);
}

bool kva_cuda_step_capture(struct kva_device *device, struct log *log, cudaGraph_t *ret)
{
    cudaStream_t stream = device->streams[KVA_QUEUE_COMPUTE];
    bool good = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    device->capturing = true;
    if (good) {
        good = capture_calls(device, log);
        good = cudaStreamEndCapture(stream, ret) == cudaSuccess && good;
    }
    device->capturing = false;
    return good;
}
