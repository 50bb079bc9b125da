/* step.cu - a step as a CUDA graph.
 *
 * Between step_begin and step_end launches are deferred: operators, the copy queue's kernels, and
 * the records and waits of events go to a log, and descriptors to an arena that is the same piece
 * of device memory in every step. At the end the log is compared with those of earlier steps:
 *
 *   the same calls, events and shapes   one copy of the arena, one launch of that step's graph; a
 *                                       kernel whose grid or arguments differ is set anew in it
 *   seen before, but without a graph    the log is replayed into a capture, the graph is kept
 *   never seen                          the log is replayed into the streams
 *
 * What differs from step to step (lengths, tables of pages, counts) lies in the arena, so as a rule
 * no kernel has other arguments. What needs the host in the middle of a step (waiting, copies,
 * memory) replays the log and ends the deferral.
 *
 * Order across the edges: the graph is launched in the compute stream. Its copy branch begins with
 * what the copy stream was given before, and the copy stream goes on after the graph. */
#include "kernels/cuda/step.cuh"

/* With edges' data, as CUDA 13 has it under the plain name. */
#if defined(CUDART_VERSION) && CUDART_VERSION < 13000
#define CAPTURE_INFO cudaStreamGetCaptureInfo_v3
#else
#define CAPTURE_INFO cudaStreamGetCaptureInfo
#endif

#include <stdlib.h>
#include <string.h>

/* --- replaying -------------------------------------------------------------------------------- */

/* `early`: it may begin while the one before it ends. */
static cudaError_t replay_kernel(const struct log *log, const struct call *call,
                                 cudaStream_t stream, bool early)
{
    void *args[KVA_CUDA_ARGS_MAX];
    unsigned char *at = log->args + call->args_at;
    for (uint32_t i = 0; i < call->kernel.arg_count; i++) {
        args[i] = at;
        at += kva_align_up(call->kernel.arg_bytes[i], 16);
    }
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

/* The events of the log have been recorded: at `point`, or each at its own. */
static void settle_events(const struct log *log, cudaEvent_t point)
{
    for (uint32_t i = 0; i < log->count; i++) {
        struct kva_event *event = log->calls[i].event;
        if (log->calls[i].kind != CALL_RECORD)
            continue;
        __atomic_store_n(&event->point, point ? point : event->event, __ATOMIC_RELEASE);
        __atomic_store_n(&event->deferred, false, __ATOMIC_RELEASE);
    }
}

/* Into the streams, as without deferral. */
static void replay(struct kva_device *device)
{
    const struct log *log = &device->step->log;
    bool good = true;
    if (!kva_cuda_step_send(device))
        return;
    for (uint32_t i = 0; i < log->count && good && !kva_cuda_failed(device); i++) {
        const struct call *call = &log->calls[i];
        cudaStream_t stream = device->streams[call->queue];
        switch (call->kind) {
        case CALL_KERNEL:
            good = kva_cuda_check(device, replay_kernel(log, call, stream, device->early),
                                  call->kernel.name);
            break;
        case CALL_LINEAR:
            kva_cuda_linear(device, &call->linear);
            break;
        case CALL_RECORD:
            good = kva_cuda_check(device, cudaEventRecord(call->event->event, stream),
                                  "cudaEventRecord");
            break;
        case CALL_WAIT:
            good = kva_cuda_check(device, cudaStreamWaitEvent(stream, call->event->event, 0),
                                  "cudaStreamWaitEvent");
            break;
        }
    }
    settle_events(log, nullptr);
}

/* --- capturing -------------------------------------------------------------------------------- */

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
        return replay_kernel(log, call, stream, follows && device->early) == cudaSuccess &&
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

/* The copy stream joins the capture, after what it has been given before. The graph's wait for
 * `copied` is bound when the graph is launched, to what the event was recorded for right before;
 * every step is awaited before the next is launched, so one that were bound as it runs would find
 * the same. */
static bool fork_copies(struct kva_device *device)
{
    struct kva_cuda_step *step = device->step;
    cudaStream_t copies = device->streams[KVA_QUEUE_COPY];
    return cudaEventRecord(step->fork, device->streams[KVA_QUEUE_COMPUTE]) == cudaSuccess &&
           cudaStreamWaitEvent(copies, step->fork, 0) == cudaSuccess &&
           cudaStreamWaitEvent(copies, step->copied, cudaEventWaitExternal) == cudaSuccess;
}

static bool join_copies(struct kva_device *device)
{
    struct kva_cuda_step *step = device->step;
    return cudaEventRecord(step->join, device->streams[KVA_QUEUE_COPY]) == cudaSuccess &&
           cudaStreamWaitEvent(device->streams[KVA_QUEUE_COMPUTE], step->join, 0) == cudaSuccess;
}

static void drop_graph(struct graph *graph)
{
    if (graph->exec)
        (void)cudaGraphExecDestroy(graph->exec);
    if (graph->graph)
        (void)cudaGraphDestroy(graph->graph);
    graph->exec = nullptr;
    graph->graph = nullptr;
    graph->used = 0;
}

/* The log becomes a graph in the place of the one that was used longest ago. What cannot be
 * captured is no failure of the device: steps are then replayed for good. */
static struct graph *capture(struct kva_device *device)
{
    struct kva_cuda_step *step = device->step;
    struct graph *graph = &step->graphs[0];
    for (uint32_t i = 1; i < GRAPHS_MAX; i++) {
        if (step->graphs[i].used < graph->used)
            graph = &step->graphs[i];
    }
    drop_graph(graph);
    struct log *log = &step->log;
    cudaStream_t stream = device->streams[KVA_QUEUE_COMPUTE];
    bool good = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    device->capturing = true;
    if (good) {
        good = !log->copies || fork_copies(device);
        const struct call *last[KVA_QUEUE_COUNT] = {};
        for (uint32_t i = 0; i < log->count && good; i++) {
            struct call *call = &log->calls[i];
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
        good = good && (!log->copies || join_copies(device));
        good = cudaStreamEndCapture(stream, &graph->graph) == cudaSuccess && good;
    }
    device->capturing = false;
    if (!good || cudaGraphInstantiate(&graph->exec, graph->graph, 0) != cudaSuccess) {
        (void)cudaGetLastError();
        drop_graph(graph);
        step->uncapturable = !device->early; /* it may have been that */
        device->early = false;
        return nullptr;
    }
    /* The graph takes this log, and the next step writes into the one it had. */
    struct log spare = graph->log;
    graph->log = *log;
    *log = spare;
    step->counts.captured++;
    return graph;
}

/* --- finding and launching -------------------------------------------------------------------- */

static bool same_weight(const struct kva_weight *a, const struct kva_weight *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->rows == b->rows && a->cols == b->cols;
}

static bool same_linear(const struct kva_linear_args *a, const struct kva_linear_args *b)
{
    return a->out == b->out && a->x == b->x && same_weight(&a->weight, &b->weight) &&
           same_weight(&a->bias, &b->bias) && a->rows == b->rows && a->x_stride == b->x_stride &&
           a->out_stride == b->out_stride && a->accumulate == b->accumulate &&
           a->out_f32 == b->out_f32;
}

/* Whether a log's graph can be made another's by setting kernels' arguments. */
static bool same_form(const struct log *a, const struct log *b)
{
    if (a->hash != b->hash || a->count != b->count || a->records != b->records)
        return false;
    for (uint32_t i = 0; i < a->count; i++) {
        const struct call *x = &a->calls[i], *y = &b->calls[i];
        if (x->kind != y->kind || x->queue != y->queue ||
            x->kernel.function != y->kernel.function || x->record != y->record ||
            (x->kind == CALL_LINEAR && !same_linear(&x->linear, &y->linear)))
            return false;
    }
    return true;
}

static bool same_launch(const struct kva_cuda_launch *a, const struct kva_cuda_launch *b)
{
    return a->grid.x == b->grid.x && a->grid.y == b->grid.y && a->grid.z == b->grid.z &&
           a->block.x == b->block.x && a->block.y == b->block.y && a->block.z == b->block.z &&
           a->shared_bytes == b->shared_bytes;
}

static bool set_kernel(struct kva_device *device, struct graph *graph, const struct log *log,
                       const struct call *now, const struct call *then)
{
    void *args[KVA_CUDA_ARGS_MAX];
    unsigned char *at = log->args + now->args_at;
    for (uint32_t i = 0; i < now->kernel.arg_count; i++) {
        args[i] = at;
        at += kva_align_up(now->kernel.arg_bytes[i], 16);
    }
    cudaKernelNodeParams params = {};
    params.func = const_cast<void *>(now->kernel.function);
    params.gridDim = now->launch.grid;
    params.blockDim = now->launch.block;
    params.sharedMemBytes = static_cast<unsigned>(now->launch.shared_bytes);
    params.kernelParams = args;
    device->step->counts.updated++;
    return kva_cuda_check(device,
                          cudaGraphExecKernelNodeSetParams(graph->exec, then->node, &params),
                          now->kernel.name);
}

/* What differs from the step that the graph ran last. The graph takes the step's log over. */
static bool update(struct kva_device *device, struct graph *graph)
{
    struct log *log = &device->step->log;
    for (uint32_t i = 0; i < log->count; i++) {
        struct call *now = &log->calls[i];
        const struct call *then = &graph->log.calls[i];
        now->node = then->node;
        if (now->kind != CALL_KERNEL ||
            (same_launch(&now->launch, &then->launch) &&
             memcmp(log->args + now->args_at, graph->log.args + then->args_at, now->args_bytes) ==
                 0))
            continue;
        if (!set_kernel(device, graph, log, now, then))
            return false;
    }
    struct log spare = graph->log;
    graph->log = *log;
    *log = spare;
    return true;
}

static struct graph *find_graph(struct kva_cuda_step *step)
{
    for (uint32_t i = 0; i < GRAPHS_MAX; i++) {
        if (step->graphs[i].used && same_form(&step->graphs[i].log, &step->log))
            return &step->graphs[i];
    }
    return nullptr;
}

/* Whether such a step has been seen; it has now. */
static bool seen_before(struct kva_cuda_step *step)
{
    for (uint32_t i = 0; i < SEEN_MAX; i++) {
        if (step->seen[i] == step->log.hash)
            return true;
    }
    step->seen[step->seen_next++ % SEEN_MAX] = step->log.hash;
    return false;
}

static bool launch(struct kva_device *device, struct graph *graph)
{
    struct kva_cuda_step *step = device->step;
    cudaStream_t compute = device->streams[KVA_QUEUE_COMPUTE];
    cudaStream_t copies = device->streams[KVA_QUEUE_COPY];
    cudaEvent_t done = step->done[step->side];
    graph->used = step->serial;
    step->counts.launched++;
    if (graph->log.copies &&
        !kva_cuda_check(device, cudaEventRecord(step->copied, copies), "cudaEventRecord"))
        return false;
    if (!kva_cuda_check(device, cudaGraphLaunch(graph->exec, compute), "cudaGraphLaunch") ||
        !kva_cuda_check(device, cudaEventRecord(done, compute), "cudaEventRecord"))
        return false;
    if (graph->log.copies &&
        !kva_cuda_check(device, cudaStreamWaitEvent(copies, done, 0), "cudaStreamWaitEvent"))
        return false;
    settle_events(&graph->log, done);
    return true;
}

/* --- a step ----------------------------------------------------------------------------------- */

void kva_cuda_step_begin(struct kva_device *device)
{
    struct kva_cuda_step *step = device->step;
    if (device->direct || step->uncapturable || !kva_cuda_enter(device))
        return;
    step->side ^= 1;
    if (!kva_cuda_check(device, cudaEventSynchronize(step->sent[step->side]),
                        "work that ran earlier"))
        return;
    step->serial++;
    step->used = 0;
    memset(step->recent, 0, sizeof step->recent);
    step->log.count = step->log.records = 0;
    step->log.args_used = 0;
    step->log.hash = 0xCBF29CE484222325ull;
    step->log.copies = false;
    device->deferring = true;
}

void kva_cuda_step_break(struct kva_device *device)
{
    if (!device->deferring)
        return;
    device->deferring = false;
    device->step->counts.replayed++;
    replay(device);
}

void kva_cuda_step_end(struct kva_device *device)
{
    struct kva_cuda_step *step = device->step;
    if (!device->deferring || step->log.count == 0 || kva_cuda_failed(device)) {
        kva_cuda_step_break(device);
        return;
    }
    struct graph *graph = find_graph(step);
    bool known = graph != nullptr;
    if (!graph && !seen_before(step)) {
        kva_cuda_step_break(device);
        return;
    }
    device->deferring = false;
    if (!graph)
        graph = capture(device);
    if (!graph) {
        step->counts.replayed++;
        replay(device);
    } else if (kva_cuda_step_send(device) && (!known || update(device, graph))) {
        (void)launch(device, graph);
    }
}

void kva_cuda_step_counts(const struct kva_device *device, struct kva_device_steps *ret)
{
    *ret = device->step->counts;
}

/* --- life ------------------------------------------------------------------------------------- */

static bool new_log(struct log *log)
{
    log->calls = static_cast<struct call *>(calloc(CALLS_MAX, sizeof *log->calls));
    log->args = static_cast<unsigned char *>(malloc(ARGS_BYTES));
    return log->calls && log->args;
}

static cudaError_t new_events(cudaEvent_t *events, uint32_t count)
{
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < count && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming);
    return error;
}

enum kva_status kva_cuda_step_create(struct kva_device *device, struct kva_err *err)
{
    struct kva_cuda_step *step = static_cast<kva_cuda_step *>(calloc(1, sizeof *step));
    bool good = step && new_log(&step->log);
    device->step = step;
    for (uint32_t i = 0; i < GRAPHS_MAX && good; i++)
        good = new_log(&step->graphs[i].log);
    if (!good)
        return kva_fail(err, KVA_ENOMEM, "no memory for the calls of a step");
    void *data;
    enum kva_status status = kva_cuda_alloc_device(device, KVA_CUDA_ARENA_BYTES, &data, err);
    if (status)
        return status;
    step->device = static_cast<unsigned char *>(data);
    for (int side = 0; side < 2; side++) {
        status = kva_cuda_alloc_host(device, KVA_CUDA_ARENA_BYTES, &data, err);
        if (status)
            return status;
        step->host[side] = static_cast<unsigned char *>(data);
    }
    cudaError_t error = new_events(step->records, EVENTS_MAX);
    cudaEvent_t *others[] = {&step->fork, &step->join, &step->copied, &step->beside};
    for (cudaEvent_t *other : others)
        error = error ? error : new_events(other, 1);
    error = error ? error : new_events(step->done, 2);
    error = error ? error : new_events(step->sent, 2);
    return error ? kva_fail(err, KVA_EDEVICE, "cudaEventCreate: %s", cudaGetErrorString(error))
                 : KVA_OK;
}

static void drop_events(cudaEvent_t *events, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    }
}

void kva_cuda_step_destroy(struct kva_device *device)
{
    struct kva_cuda_step *step = device->step;
    if (!step)
        return;
    for (uint32_t i = 0; i < GRAPHS_MAX; i++) {
        drop_graph(&step->graphs[i]);
        free(step->graphs[i].log.calls);
        free(step->graphs[i].log.args);
    }
    free(step->log.calls);
    free(step->log.args);
    drop_events(step->records, EVENTS_MAX);
    drop_events(&step->fork, 1);
    drop_events(&step->join, 1);
    drop_events(&step->copied, 1);
    drop_events(&step->beside, 1);
    drop_events(step->done, 2);
    drop_events(step->sent, 2);
    kva_cuda_free_device(device, step->device, KVA_CUDA_ARENA_BYTES);
    for (int side = 0; side < 2; side++)
        kva_cuda_free_host(step->host[side], KVA_CUDA_ARENA_BYTES);
    free(step);
    device->step = nullptr;
}
