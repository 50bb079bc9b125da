/* step.cu - a step as CUDA graphs.
 *
 * Between step_begin and step_end launches are deferred: operators, the copy queue's kernels, and
 * the records and waits of events go to a log, and descriptors to an arena that is the same piece
 * of device memory in every step. The step is cut into pieces, a graph each, so that the GPU runs
 * the first layers while the host describes the others: each piece has half as many layers as all
 * before it together, which keeps the GPU busy where a layer takes it half as long again as it
 * takes the host. At a piece's end its log is compared with those of earlier steps:
 *
 *   the same calls, events and shapes   a copy of what is new in the arena, one launch of that
 *                                       graph; a kernel whose grid or arguments differ is set anew
 *                                       in it
 *   seen before, but without a graph    the log is replayed into a capture, the graph is kept
 *   never seen                          the log is replayed into the streams
 *
 * What differs from step to step (lengths, tables of pages, counts) lies in the arena, so as a rule
 * no kernel has other arguments. What needs the host in the middle of a step (waiting, copies,
 * memory) replays the log and ends the deferral.
 *
 * Order across the edges: the graph is launched in the compute stream, and the other streams go on
 * after it. What the copy queue does is a branch of the graph only where another queue waits for it
 * within the piece, since a graph ends with its last branch: such a branch begins with what the
 * copy stream was given before. Else it is put into the copy stream, behind the graph. */
#include "kernels/cuda/step.cuh"

#include <stdlib.h>
#include <string.h>

/* --- replaying -------------------------------------------------------------------------------- */

/* The events of the log have been recorded: with its graph at `point`, or each at its own. */
static void settle_events(const struct log *log, cudaEvent_t point)
{
    for (uint32_t i = 0; i < log->count; i++) {
        const struct call *call = &log->calls[i];
        struct kva_event *event = call->event;
        if (call->kind != CALL_RECORD)
            continue;
        __atomic_store_n(&event->point, point && !goes_behind(log, call) ? point : event->event,
                         __ATOMIC_RELEASE);
        __atomic_store_n(&event->deferred, false, __ATOMIC_RELEASE);
    }
}

/* A call into its stream, as without deferral. */
static bool replay_call(struct kva_device *device, const struct log *log, const struct call *call)
{
    cudaStream_t stream = device->streams[call->queue];
    switch (call->kind) {
    case CALL_KERNEL:
        return kva_cuda_check(device, kva_cuda_log_launch(log, call, stream, device->early),
                              call->kernel.name);
    case CALL_LINEAR:
        kva_cuda_linear(device, &call->linear);
        return !kva_cuda_failed(device);
    case CALL_RECORD:
        return kva_cuda_check(device, cudaEventRecord(call->event->event, stream),
                              "cudaEventRecord");
    case CALL_WAIT:
        return kva_cuda_check(device, cudaStreamWaitEvent(stream, call->event->event, 0),
                              "cudaStreamWaitEvent");
    case CALL_FORK:
    case CALL_JOIN:
        return true; /* all in one stream */
    }
    return false;
}

static void replay(struct kva_device *device)
{
    const struct log *log = &device->step->log;
    bool good = true;
    /* What failed is lacking in the log, and others would read what it did not write. */
    if (kva_cuda_failed(device) || !kva_cuda_step_send(device) ||
        (takes_part(log, KVA_QUEUE_ASIDE) && !kva_cuda_open_aside(device)))
        return;
    device->step->counts.replayed++;
    for (uint32_t i = 0; i < log->count && good; i++)
        good = replay_call(device, log, &log->calls[i]);
    settle_events(log, nullptr);
}

/* What of the log is none of its graph's, which has been launched: `done` waits for it, and with it
 * for all that these calls wait for. */
static bool replay_behind(struct kva_device *device, const struct log *log)
{
    bool good = true;
    for (uint32_t i = 0; i < log->count && good; i++) {
        const struct call *call = &log->calls[i];
        if (goes_behind(log, call) && call->kind != CALL_WAIT)
            good = replay_call(device, log, call);
    }
    return good;
}

/* --- graphs ----------------------------------------------------------------------------------- */

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

static bool new_log(struct log *log)
{
    log->calls = static_cast<struct call *>(calloc(CALLS_MAX, sizeof *log->calls));
    log->args = static_cast<unsigned char *>(malloc(ARGS_BYTES));
    return log->calls && log->args;
}

static void drop_log(struct log *log)
{
    free(log->calls);
    free(log->args);
    log->calls = nullptr;
    log->args = nullptr;
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
    if (!graph->log.calls && !new_log(&graph->log)) {
        drop_log(&graph->log);
        return nullptr;
    }
    struct log *log = &step->log;
    step->copied = graph->copied;
    const bool good = kva_cuda_step_capture(device, log, &graph->graph);
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
        if (x->kind != y->kind || x->queue != y->queue || x->branch != y->branch ||
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
    log_args(args, log, now);
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

/* What differs from the piece that the graph ran last. The graph takes the step's log over. */
static bool update(struct kva_device *device, struct graph *graph)
{
    struct log *log = &device->step->log;
    for (uint32_t i = 0; i < log->count; i++) {
        struct call *now = &log->calls[i];
        const struct call *then = &graph->log.calls[i];
        now->node = then->node;
        if (now->kind != CALL_KERNEL || goes_behind(log, now) ||
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

/* Whether such a piece has been seen; it has now. */
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
    const struct log *log = &graph->log;
    const enum kva_queue others[] = {KVA_QUEUE_ASIDE, KVA_QUEUE_COPY};
    cudaStream_t compute = device->streams[KVA_QUEUE_COMPUTE];
    cudaStream_t copies = device->streams[KVA_QUEUE_COPY];
    cudaEvent_t done = step->done[step->done_next++ % DONE_MAX];
    graph->used = step->serial;
    step->counts.launched++;
    if (is_branch(log, KVA_QUEUE_COPY) &&
        !kva_cuda_check(device, cudaEventRecord(graph->copied, copies), "cudaEventRecord"))
        return false;
    if (!kva_cuda_check(device, cudaGraphLaunch(graph->exec, compute), "cudaGraphLaunch") ||
        !kva_cuda_check(device, cudaEventRecord(done, compute), "cudaEventRecord"))
        return false;
    for (enum kva_queue queue : others) {
        if (takes_part(log, queue) &&
            !kva_cuda_check(device, cudaStreamWaitEvent(device->streams[queue], done, 0),
                            "cudaStreamWaitEvent"))
            return false;
    }
    bool good = replay_behind(device, log);
    settle_events(log, done);
    return good;
}

/* --- a piece ---------------------------------------------------------------------------------- */

/* Pieces of a step are told apart even where they have the same calls, as layers have. */
static void begin_piece(struct kva_cuda_step *step)
{
    step->log.count = step->log.records = 0;
    step->log.args_used = 0;
    step->log.hash = 0xCBF29CE484222325ull + step->pieces;
    step->log.queues = 0;
    step->log.awaits_copies = false;
    step->parts_sent = step->parts_logged;
}

static void launch_piece(struct kva_device *device)
{
    struct kva_cuda_step *step = device->step;
    struct graph *graph = find_graph(step);
    const bool known = graph != nullptr;
    if (!graph && seen_before(step))
        graph = capture(device);
    if (!graph)
        replay(device);
    else if (kva_cuda_step_send(device) && (!known || update(device, graph)))
        (void)launch(device, graph);
    step->pieces++;
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
    step->used = step->sent_bytes = 0;
    memset(step->recent, 0, sizeof step->recent);
    step->pieces = step->parts_logged = 0;
    begin_piece(step);
    device->deferring = true;
    device->forked = false;
    device->branch = 0;
}

void kva_cuda_step_break(struct kva_device *device)
{
    if (!device->deferring)
        return;
    device->deferring = false;
    replay(device);
}

void kva_cuda_step_part(struct kva_device *device)
{
    struct kva_cuda_step *step = device->step;
    if (!device->deferring || kva_cuda_failed(device))
        return;
    step->parts_logged++;
    if (step->parts_logged - step->parts_sent < kva_max_u32(step->parts_sent / 2, 1))
        return;
    device->deferring = false;
    launch_piece(device);
    begin_piece(step);
    device->deferring = !kva_cuda_failed(device);
}

void kva_cuda_step_end(struct kva_device *device)
{
    if (!device->deferring || kva_cuda_failed(device)) {
        kva_cuda_step_break(device);
        return;
    }
    device->deferring = false;
    if (device->step->log.count > 0)
        launch_piece(device);
}

void kva_cuda_step_counts(const struct kva_device *device, struct kva_device_steps *ret)
{
    *ret = device->step->counts;
}

/* --- life ------------------------------------------------------------------------------------- */

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
    cudaEvent_t *others[] = {&step->fork, &step->join, &step->beside};
    for (cudaEvent_t *other : others)
        error = error ? error : new_events(other, 1);
    for (struct graph &graph : step->graphs)
        error = error ? error : new_events(&graph.copied, 1);
    error = error ? error : new_events(step->done, DONE_MAX);
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
        drop_log(&step->graphs[i].log);
        drop_events(&step->graphs[i].copied, 1);
    }
    drop_log(&step->log);
    drop_events(step->records, EVENTS_MAX);
    drop_events(&step->fork, 1);
    drop_events(&step->join, 1);
    drop_events(&step->beside, 1);
    drop_events(step->done, DONE_MAX);
    drop_events(step->sent, 2);
    kva_cuda_free_device(device, step->device, KVA_CUDA_ARENA_BYTES);
    for (int side = 0; side < 2; side++)
        kva_cuda_free_host(step->host[side], KVA_CUDA_ARENA_BYTES);
    free(step);
    device->step = nullptr;
}
