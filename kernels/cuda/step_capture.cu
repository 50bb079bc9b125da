/* step_capture.cu - the log of a piece of a step becomes a graph: queues that take part are branches
 * of compute's, and what need not wait for each other in compute has streams beside it. */
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

/* `before`: the call before it in its stream, or NULL. Only behind a kernel is one launched early:
 * edges from anything else are whole. */
static bool capture_call(struct kva_device *device, const struct log *log, struct call *call,
                         const struct call *before)
{
    struct kva_cuda_step *step = device->step;
    cudaStream_t stream =
        call->branch > 0 ? device->lanes[call->branch - 1].stream : device->streams[call->queue];
    const bool follows = before && (before->kind == CALL_KERNEL || before->kind == CALL_LINEAR);
    switch (call->kind) {
    case CALL_KERNEL:
        return kva_cuda_log_launch(log, call, stream, follows && device->early) == cudaSuccess &&
               last_node(stream, &call->node);
    case CALL_LINEAR:
        return call->branch > 0
                   ? kva_cuda_try_linear_beside(device, call->branch - 1, &call->linear)
                   : kva_cuda_try_linear(device, &call->linear);
    case CALL_RECORD:
        return cudaEventRecord(step->records[call->record], stream) == cudaSuccess;
    case CALL_WAIT:
        return cudaStreamWaitEvent(stream, step->records[call->record], 0) == cudaSuccess;
    case CALL_FORK:
    case CALL_JOIN:
        break; /* each_lane */
    }
    return false;
}

/* --- branches of compute ---------------------------------------------------------------------- */

static bool fork_lane(struct kva_device *device, const struct kva_cuda_lane *lane)
{
    return cudaStreamWaitEvent(lane->stream, device->step->beside, 0) == cudaSuccess;
}

static bool join_lane(struct kva_device *device, const struct kva_cuda_lane *lane)
{
    return cudaEventRecord(lane->done, lane->stream) == cudaSuccess &&
           cudaStreamWaitEvent(device->streams[KVA_QUEUE_COMPUTE], lane->done, 0) == cudaSuccess;
}

/* The lanes that the branches behind the fork `first` have, by one of the two. */
static bool each_lane(struct kva_device *device, const struct log *log, const struct call *first,
                      bool (*act)(struct kva_device *device, const struct kva_cuda_lane *lane))
{
    bool used[KVA_BRANCHES] = {}, good = true;
    const struct call *end = log->calls + log->count;
    for (const struct call *call = first + 1; call < end && call->kind != CALL_JOIN; call++)
        used[call->branch] = true;
    for (uint32_t i = 0; i < KVA_CUDA_LANES; i++)
        good = good && (!used[i + 1] || act(device, &device->lanes[i]));
    return good;
}

/* --- branches of queues ------------------------------------------------------------------------- */

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

/* The calls before those of the log, in the streams they go into. */
struct captured {
    const struct call *last[KVA_QUEUE_COUNT]; /* NULL: none, or several */
    const struct call *lanes[KVA_BRANCHES];
    const struct call *fork; /* behind which there are branches */
};

/* None of the branches is launched early: it would take the multiprocessors before the others. */
static bool capture_fork(struct kva_device *device, const struct log *log, struct captured *before,
                         const struct call *call)
{
    cudaStream_t stream = device->streams[KVA_QUEUE_COMPUTE];
    before->last[KVA_QUEUE_COMPUTE] = nullptr;
    before->fork = call;
    return cudaEventRecord(device->step->beside, stream) == cudaSuccess &&
           each_lane(device, log, call, fork_lane);
}

static bool capture_join(struct kva_device *device, const struct log *log, struct captured *before)
{
    const struct call *fork = before->fork;
    *before = {};
    return each_lane(device, log, fork, join_lane);
}

static bool capture_calls(struct kva_device *device, struct log *log)
{
    struct captured before = {};
    bool good = each_branch(device, log, fork_branch);
    for (uint32_t i = 0; i < log->count && good; i++) {
        struct call *call = &log->calls[i];
        const struct call **last =
            call->branch > 0 ? &before.lanes[call->branch] : &before.last[call->queue];
        if (goes_behind(log, call))
            continue;
        if (call->kind == CALL_FORK) {
            good = capture_fork(device, log, &before, call);
        } else if (call->kind == CALL_JOIN) {
            good = capture_join(device, log, &before);
        } else {
            good = capture_call(device, log, call, *last);
            *last = call->kind == CALL_RECORD ? *last : call;
        }
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
