/* Memory, streams and events: queued work runs when somebody waits for it, in a random order that
 * the streams and their events allow. */
#include "cublas_v2.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <sys/mman.h>
#include <vector>

struct simt_event {
    uint64_t wanted = 0, reached = 0;
    simt_graph *captured = nullptr; /* recorded last in this capture, after these nodes */
    std::vector<int> after;
};

struct work {
    std::function<void()> run;
    std::shared_ptr<simt_event> event; /* wait: until `ticket` is reached; record: reaches it */
    uint64_t ticket = 0;
    bool wait = false;
};

struct simt_stream : simt_stream_entry {
    std::deque<work> queue;
    simt_graph *capture = nullptr; /* that it takes part in */
    std::vector<int> last;         /* nodes that its next one comes after */
    std::vector<cudaGraphNode_t> last_nodes;
};

struct simt_node {
    int index;
    std::function<void()> run;
    std::shared_ptr<simt_event> external; /* waits for it */
    std::vector<int> after;
    bool kernel;
};

struct simt_graph {
    simt_stream *origin;
    std::vector<std::unique_ptr<simt_node>> nodes; /* handles are their addresses */
};

struct simt_graph_exec {
    std::vector<simt_node> nodes;
};

/* A graph that was launched; its nodes may run once its stream has come to it. */
struct graph_run {
    std::vector<simt_node> nodes;
    std::vector<uint64_t> tickets; /* of external events */
    std::vector<char> done;
    size_t left;
    std::shared_ptr<simt_event> finished = std::make_shared<simt_event>();
};

/* The handle that the user holds; the state lives on while queued work refers to it. */
static std::map<simt_event *, std::shared_ptr<simt_event>> events;
static std::vector<simt_stream *> streams;
static std::vector<std::shared_ptr<graph_run>> graph_runs; /* under way */
static std::map<const void *, simt::untyped_call *> kernels;
static cudaError_t last_error;

namespace simt
{

/* --- memory ----------------------------------------------------------------------------------- */

constexpr size_t arena_bytes = (size_t)16 << 30, guard_bytes = 256;
constexpr unsigned char guard_pattern = 0xA5, garbage = 0xFF;
static unsigned char *arena;
static size_t arena_used;
static bool arena_open;
static std::map<uintptr_t, size_t> device_memory, host_memory;
static std::multimap<size_t, uintptr_t> free_memory; /* pieces of the arena by size */

static size_t piece_bytes(size_t bytes)
{
    return (bytes + guard_bytes + 255) & ~(size_t)255;
}

static void protect_arena(bool open)
{
    if (arena_used && mprotect(arena, (arena_used + 4095) & ~(size_t)4095,
                               open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
        defect("device memory cannot be protected");
    arena_open = open;
}

static void open_arena()
{
    if (!arena_open)
        protect_arena(true);
}

/* Not every time: it costs a fault for every page that is used again. */
static void close_arena()
{
    if (arena_open && random_below(16) == 0)
        protect_arena(false);
}

static void check_guard(uintptr_t data, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)data + bytes;
    size_t count = piece_bytes(bytes) - bytes;
    for (size_t i = 0; i < count; i++) {
        if (at[i] != guard_pattern)
            defect("device work wrote %zu bytes past an allocation of %zu bytes", i, bytes);
    }
}

static cudaError_t allocate(void **ret, size_t bytes)
{
    if (!arena) {
        void *map = mmap(nullptr, arena_bytes, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED)
            return cudaErrorMemoryAllocation;
        arena = (unsigned char *)map;
    }
    open_arena();
    size_t piece = piece_bytes(bytes);
    unsigned char *data;
    auto found = free_memory.lower_bound(piece);
    if (found != free_memory.end() && found->first < 2 * piece) {
        data = (unsigned char *)found->second;
        piece = found->first;
        free_memory.erase(found);
    } else {
        if (piece > arena_bytes - arena_used)
            return cudaErrorMemoryAllocation;
        data = arena + arena_used;
        arena_used += piece;
        protect_arena(true);
    }
    /* Fresh memory holds what is not a number; large blocks are left as they are, for time. */
    memset(data, garbage, bytes < ((size_t)4 << 20) ? bytes : (size_t)1 << 20);
    memset(data + bytes, guard_pattern, piece_bytes(bytes) - bytes);
    close_arena();
    device_memory[(uintptr_t)data] = bytes;
    *ret = data;
    return cudaSuccess;
}

static bool find_in(const std::map<uintptr_t, size_t> &memory, uint64_t address, size_t bytes,
                    uint64_t *ret_begin, uint64_t *ret_end)
{
    auto next = memory.upper_bound(address);
    if (next == memory.begin())
        return false;
    auto own = std::prev(next);
    *ret_begin = own->first;
    *ret_end = own->first + own->second;
    return address + bytes <= *ret_end;
}

bool find_memory(uint64_t address, size_t bytes, uint64_t *ret_begin, uint64_t *ret_end)
{
    return find_in(device_memory, address, bytes, ret_begin, ret_end) ||
           find_in(host_memory, address, bytes, ret_begin, ret_end);
}

static void check_range(const void *data, size_t bytes, const char *what)
{
    uint64_t begin, end;
    if (!find_memory((uint64_t)data, bytes, &begin, &end))
        defect("%s of %zu bytes at %p is neither in one device allocation nor in pinned memory",
               what, bytes, data);
}

/* --- running queued work ---------------------------------------------------------------------- */

static bool runnable(const simt_stream *stream)
{
    if (stream->queue.empty())
        return false;
    const work &head = stream->queue.front();
    return !head.wait || head.event->reached >= head.ticket;
}

/* How much the streams differ in pace: drawn now and then. */
static uint32_t favourite, favour, patience;

/* A node of a running graph: the first that may run, the last, or any. */
static bool run_node(graph_run *run)
{
    std::vector<size_t> ready;
    for (size_t i = 0; i < run->nodes.size(); i++) {
        const simt_node &node = run->nodes[i];
        bool free = !run->done[i] && (!node.external || node.external->reached >= run->tickets[i]);
        for (int before : node.after)
            free = free && run->done[(size_t)before];
        if (free)
            ready.push_back(i);
    }
    if (ready.empty())
        return false;
    size_t index = ready[favour == 0   ? random_below((uint32_t)ready.size())
                         : favour == 1 ? 0
                                       : ready.size() - 1];
    std::function<void()> node = run->nodes[index].run;
    if (node)
        node();
    run->done[index] = 1;
    if (--run->left == 0)
        run->finished->reached = 1;
    return true;
}

static bool run_graphs()
{
    for (size_t i = 0; i < graph_runs.size(); i++) {
        std::shared_ptr<graph_run> run = graph_runs[i];
        if (run->left == 0)
            graph_runs.erase(graph_runs.begin() + (long)i--);
        else if (run_node(run.get()))
            return true;
    }
    return false;
}

static bool run_one()
{
    std::vector<simt_stream *> ready;
    for (simt_stream *stream : streams) {
        if (runnable(stream))
            ready.push_back(stream);
    }
    if (!graph_runs.empty() && (ready.empty() || random_below(2) == 0) && run_graphs())
        return true;
    if (ready.empty())
        return false;
    if (patience-- == 0) {
        favourite = random_below((uint32_t)streams.size());
        favour = random_below(3);
        patience = 1 + random_below(200);
    }
    simt_stream *stream = ready[random_below((uint32_t)ready.size())];
    for (simt_stream *other : ready) {
        if (favour > 0 && other == streams[favourite % streams.size()])
            stream = other;
    }
    work head = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (head.run)
        head.run();
    if (head.event && !head.wait && head.event->reached < head.ticket)
        head.event->reached = head.ticket;
    return true;
}

template <typename Condition> static void run_until(Condition met)
{
    open_arena();
    while (!met()) {
        if (!run_one())
            defect("the host waits for device work that waits for an event never reached");
    }
    /* Sometimes the device is further than the host knows. */
    for (uint32_t i = random_below(8); i > 0 && run_one(); i--)
        ;
    close_arena();
}

static void add_node(simt_stream *stream, std::function<void()> run,
                     std::shared_ptr<simt_event> external, bool kernel)
{
    simt_graph *graph = stream->capture;
    int index = (int)graph->nodes.size();
    graph->nodes.push_back(std::unique_ptr<simt_node>(
        new simt_node{index, std::move(run), std::move(external), stream->last, kernel}));
    stream->last = {index};
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> run)
{
    if (last_error)
        return last_error;
    if (stream->capture) {
        add_node(stream, std::move(run), nullptr, false);
        return cudaSuccess;
    }
    counts.calls++;
    stream->queue.push_back({std::move(run), nullptr, 0, false});
    if (random_below(16) == 0) {
        open_arena();
        for (uint32_t i = random_below(8); i > 0 && run_one(); i--)
            ;
        close_arena();
    }
    return cudaSuccess;
}

cudaError_t launch(const cudaLaunchConfig_t *config, const void *kernel, untyped_call *untyped,
                   std::function<void()> call)
{
    dim3 grid = config->gridDim, block = config->blockDim;
    size_t shared_bytes = config->dynamicSmemBytes;
    kernels[kernel] = untyped;
    cudaError_t error =
        enqueue(config->stream, [=]() { run_grid(call, grid, block, shared_bytes); });
    if (!error && config->stream->capture)
        config->stream->capture->nodes.back()->kernel = true;
    return error;
}

static std::map<const void *, size_t> shared_allowed;

/* Of a block's shared memory, static and dynamic: an H200's, or that of the card whose bytes are in
 * SIMT_SHARED_BYTES. */
static size_t shared_most()
{
    const char *given = getenv("SIMT_SHARED_BYTES");
    return given ? strtoul(given, nullptr, 10) : 227 * 1024;
}

cudaError_t allow_shared(const void *kernel, size_t bytes)
{
    if (bytes + STATIC_SHARED_BYTES > shared_most())
        return cudaErrorInvalidValue;
    shared_allowed[kernel] = bytes;
    return cudaSuccess;
}

cudaError_t check_shared(const void *kernel, size_t bytes)
{
    auto found = shared_allowed.find(kernel);
    size_t most = found == shared_allowed.end() ? 48 * 1024 : found->second;
    return bytes <= most ? cudaSuccess : cudaErrorInvalidValue;
}

static bool captures_fail;

static void fail_captures(int fail)
{
    captures_fail = fail != 0;
}

static void fail_everything(uint32_t code)
{
    last_error = (cudaError_t)code;
}

/* --- warp operations -------------------------------------------------------------------------- */

void shuffle(void *const *lanes, uint32_t)
{
    for (int i = 0; i < 32; i++) {
        exchange *own = (exchange *)lanes[i];
        if (!own)
            continue;
        const exchange *from = (const exchange *)lanes[own->source];
        if (!from)
            defect("a shuffle reads lane %u, which takes no part in it", own->source);
        own->result = from->value;
    }
}

void ballot(void *const *lanes, uint32_t)
{
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++)
        bits |= lanes[i] ? ((exchange *)lanes[i])->value << i : 0;
    for (int i = 0; i < 32; i++) {
        if (lanes[i])
            ((exchange *)lanes[i])->result = bits;
    }
}

void nothing(void *const *, uint32_t)
{
}

} // namespace simt

using namespace simt;

/* --- the runtime's functions ------------------------------------------------------------------ */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int)
{
    *prop = {};
    strcpy(prop->name, "simulated on the host");
    prop->totalGlobalMem = arena_bytes;
    prop->major = 9;
    prop->multiProcessorCount = 4;
    prop->sharedMemPerBlockOptin = shared_most();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int)
{
    *value = 1;
    return cudaSuccess;
}

/* Some machines have a device there, some do not. */
cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int)
{
    return snprintf(id, (size_t)bytes, "0000:00:00.0") < bytes ? cudaSuccess
                                                               : cudaErrorInvalidValue;
}

cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError()
{
    return last_error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error ? "an injected failure" : "no error";
}

const char *cudaGetErrorName(cudaError_t)
{
    return "simulated";
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *total_bytes = arena_bytes;
    *free_bytes = arena_bytes - arena_used;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
    return last_error ? last_error : allocate(data, bytes);
}

cudaError_t cudaFree(void *data)
{
    if (!data)
        return cudaSuccess;
    auto found = device_memory.find((uintptr_t)data);
    if (found == device_memory.end())
        defect("freed what is no device allocation");
    /* cudaFree waits for the device. */
    run_until([]() {
        for (simt_stream *stream : streams) {
            if (!stream->queue.empty())
                return false;
        }
        return true;
    });
    open_arena();
    check_guard(found->first, found->second);
    memset(data, garbage, found->second < 4096 ? found->second : 4096);
    close_arena();
    free_memory.insert({piece_bytes(found->second), found->first});
    device_memory.erase(found);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *data, size_t bytes, unsigned)
{
    if (last_error)
        return last_error;
    host_memory[(uintptr_t)data] = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *data)
{
    return host_memory.erase((uintptr_t)data) ? cudaSuccess : cudaErrorInvalidValue;
}

static const int priority_least = 0, priority_greatest = -5;

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = priority_least;
    *greatest = priority_greatest;
    return last_error;
}

/* Priorities change no order that anybody may count on. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    if (flags != cudaStreamNonBlocking || priority > priority_least || priority < priority_greatest)
        return cudaErrorInvalidValue;
    *stream = new simt_stream;
    (*stream)->enqueue = [](cudaStream_t to, std::function<void()> run) {
        return (int)simt::enqueue(to, std::move(run));
    };
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaStreamSynchronize(stream);
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] == stream)
            streams.erase(streams.begin() + (long)i);
    }
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (stream->capture)
        defect("the host waits for a stream that is captured");
    run_until([=]() { return stream->queue.empty(); });
    return last_error;
}

static bool under_capture(const simt_graph *graph)
{
    for (const simt_stream *stream : streams) {
        if (stream->capture == graph)
            return true;
    }
    return false;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    std::shared_ptr<simt_event> state = events[event];
    if (stream->capture && flags == cudaEventWaitExternal) {
        add_node(stream, nullptr, state, false);
        return last_error;
    }
    if (event->captured) { /* the stream joins the capture, if it is not in it */
        if (!under_capture(event->captured))
            defect("a stream waits for an event of a capture that has ended");
        stream->capture = event->captured;
        stream->last.insert(stream->last.end(), event->after.begin(), event->after.end());
        return last_error;
    }
    if (stream->capture)
        defect("a captured stream waits for what was recorded before the capture");
    counts.waits++;
    counts.calls++;
    stream->queue.push_back({nullptr, state, state->wanted, true});
    return last_error;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    std::shared_ptr<simt_event> state = std::make_shared<simt_event>();
    *event = state.get();
    events[*event] = state;
    return last_error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return events.erase(event) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    std::shared_ptr<simt_event> state = events[event];
    event->captured = stream->capture;
    event->after = stream->last;
    if (stream->capture)
        return last_error;
    counts.calls++;
    stream->queue.push_back({nullptr, state, ++state->wanted, false});
    return last_error;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (event->captured)
        defect("the host asks for an event of a capture");
    open_arena();
    run_one();
    close_arena();
    return last_error                        ? last_error
           : event->reached >= event->wanted ? cudaSuccess
                                             : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->captured)
        defect("the host waits for an event of a capture");
    uint64_t ticket = event->wanted;
    run_until([=]() { return event->reached >= ticket; });
    return last_error;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream)
{
    check_range(to, bytes, "the destination of a copy");
    check_range(from, bytes, "the source of a copy");
    return enqueue(stream, [=]() {
        counts.copies++;
        memmove(to, from, bytes);
    });
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t stream)
{
    check_range(data, bytes, "memory to be set");
    return enqueue(stream, [=]() { memset(data, value, bytes); });
}

/* --- graphs ----------------------------------------------------------------------------------- */

static bool capturing()
{
    for (simt_stream *stream : streams) {
        if (stream->capture)
            return true;
    }
    return false;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    if (last_error)
        return last_error;
    if (capturing())
        defect("a capture begins in a capture");
    stream->capture = new simt_graph{stream, {}};
    stream->last.clear();
    return cudaSuccess;
}

/* Everything captured must come before the end of the stream that began. */
static void check_joined(const simt_graph *graph, const std::vector<int> &ends)
{
    std::vector<char> before(graph->nodes.size());
    for (int end : ends)
        before[(size_t)end] = 1;
    for (size_t i = graph->nodes.size(); i-- > 0;) {
        if (!before[i])
            defect("a stream that joined a capture is not joined again at its end");
        for (int index : graph->nodes[i]->after)
            before[(size_t)index] = 1;
    }
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    if (!stream->capture || stream->capture->origin != stream)
        defect("the end of a capture that this stream did not begin");
    *graph = stream->capture;
    check_joined(*graph, stream->last);
    for (simt_stream *other : streams) {
        other->capture = nullptr;
        other->last.clear();
    }
    if (captures_fail) {
        delete *graph;
        *graph = nullptr;
        return cudaErrorInvalidValue;
    }
    return last_error;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                     unsigned long long *, cudaGraph_t *,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **,
                                     size_t *count)
{
    *status = stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    stream->last_nodes.clear();
    for (int index : stream->last)
        stream->last_nodes.push_back(stream->capture->nodes[(size_t)index].get());
    *nodes = stream->last_nodes.data();
    *count = stream->last_nodes.size();
    return last_error;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    if (last_error)
        return last_error;
    *exec = new simt_graph_exec;
    for (const std::unique_ptr<simt_node> &node : graph->nodes)
        (*exec)->nodes.push_back(*node);
    return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams *params)
{
    auto untyped = kernels.find(params->func);
    if (!node->kernel || untyped == kernels.end())
        return cudaErrorInvalidValue;
    counts.calls++;
    std::function<void()> call = untyped->second(params->func, params->kernelParams);
    dim3 grid = params->gridDim, block = params->blockDim;
    size_t shared_bytes = params->sharedMemBytes;
    exec->nodes[(size_t)node->index].run = [=]() { run_grid(call, grid, block, shared_bytes); };
    return last_error;
}

/* Nodes that run something, and how many of them come one behind the other. */
static void count_nodes(const std::vector<simt_node> &nodes)
{
    std::vector<uint64_t> chains(nodes.size());
    uint64_t longest = 0;
    for (size_t i = 0; i < nodes.size(); i++) {
        const uint64_t own = nodes[i].run ? 1 : 0;
        for (int index : nodes[i].after)
            chains[i] = std::max(chains[i], chains[(size_t)index]);
        chains[i] += own;
        longest = std::max(longest, chains[i]);
        counts.nodes += own;
    }
    counts.chains += longest;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (last_error)
        return last_error;
    if (capturing())
        defect("a graph is launched in a capture");
    std::shared_ptr<graph_run> run = std::make_shared<graph_run>();
    run->nodes = exec->nodes;
    run->done.resize(run->nodes.size());
    run->left = run->nodes.size();
    for (const simt_node &node : run->nodes)
        run->tickets.push_back(node.external ? node.external->wanted : 0);
    counts.calls++;
    counts.graphs++;
    count_nodes(run->nodes);
    stream->queue.push_back({[=]() { graph_runs.push_back(run); }, nullptr, 0, false});
    stream->queue.push_back({nullptr, run->finished, run->left ? 1u : 0u, true});
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    for (auto &entry : events) {
        if (entry.first->captured == graph)
            entry.first->after.clear();
    }
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

/* --- cuBLAS ----------------------------------------------------------------------------------- */

struct simt_blas {
    cudaStream_t stream;
};

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    *handle = new simt_blas{};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t)
{
    return "simulated";
}

static float element(const void *data, cudaDataType_t type, size_t index)
{
    if (type == CUDA_R_32F)
        return ((const float *)data)[index];
    unsigned short bits = ((const unsigned short *)data)[index];
    return type == CUDA_R_16F ? __half2float(__ushort_as_half(bits))
                              : __uint_as_float((unsigned)bits << 16);
}

static void set_element(void *data, cudaDataType_t type, size_t index, float value)
{
    if (type == CUDA_R_32F)
        ((float *)data)[index] = value;
    else if (type == CUDA_R_16F)
        ((unsigned short *)data)[index] = __half_as_ushort(__float2half_rn(value));
    else
        ((unsigned short *)data)[index] = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *a, cudaDataType_t atype, int lda, const void *b,
                            cudaDataType_t btype, int ldb, const void *beta, void *c,
                            cudaDataType_t ctype, int ldc, cublasComputeType_t, cublasGemmAlgo_t)
{
    if (transa != CUBLAS_OP_T || transb != CUBLAS_OP_N || atype != btype || lda < k || ldb < k ||
        ldc < m || (ctype != atype && ctype != CUDA_R_32F))
        return CUBLAS_STATUS_INVALID_VALUE;
    float scale = *(const float *)alpha, keep = *(const float *)beta;
    cudaError_t error = enqueue(handle->stream, [=]() {
        std::vector<float> column((size_t)k), line((size_t)k);
        for (int i = 0; i < m; i++) {
            for (int l = 0; l < k; l++)
                line[(size_t)l] = element(a, atype, (size_t)i * (size_t)lda + (size_t)l);
            for (int j = 0; j < n; j++) {
                float sum = 0;
                for (int l = 0; l < k; l++)
                    sum += line[(size_t)l] * element(b, btype, (size_t)j * (size_t)ldb + (size_t)l);
                size_t at = (size_t)j * (size_t)ldc + (size_t)i;
                float old = keep != 0 ? keep * element(c, ctype, at) : 0.0f;
                set_element(c, ctype, at, scale * sum + old);
            }
        }
    });
    return error ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

/* --- for tests: reached by dlsym in the module ------------------------------------------------ */

/* Written by mutate.py. */
extern const char *const simt_mutation_names[];
extern const int simt_mutation_count;

static void set_mutation(int mutation)
{
    simt::mutation = mutation;
}

/* struct simt_control of tests/cuda/mutations.h. */
struct simt_control {
    void (*set_seed)(uint64_t seed);
    void (*set_mutation)(int mutation);
    void (*fail)(uint32_t code); /* every call fails from now on; 0: none does */
    void (*fail_captures)(int fail);
    const struct simt::counts *counts;
    int mutation_count;
    const char *const *mutation_names;
};

extern "C" __attribute__((visibility("default"))) const struct simt_control simt_control = {
    simt::set_seed, set_mutation,        fail_everything,    fail_captures,
    &simt::counts,  simt_mutation_count, simt_mutation_names};
