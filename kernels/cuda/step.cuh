/* step.cuh - the log of a piece of a deferred step, shared by step_log.cu, which writes it,
 * step_capture.cu, which makes it a graph, and step.cu, which plays it or launches that. */
#ifndef KVA_KERNELS_CUDA_STEP_CUH
#define KVA_KERNELS_CUDA_STEP_CUH

#include "kernels/cuda/device_cuda.h"

/* Graphs that are kept; pieces that are remembered because they may come again. A step of 32 layers
 * has ten pieces. */
#define GRAPHS_MAX 160u
#define SEEN_MAX   2560u

#define CALLS_MAX  8192u
#define EVENTS_MAX 2048u
#define ARGS_BYTES ((size_t)2 << 20)

/* Ends of graphs that are told apart. */
#define DONE_MAX 64u

/* Arrays that grow step by step keep their places: sizes are rounded up to an eighth. */
#define ARENA_ALIGN ((size_t)256)

enum call_kind {
    CALL_KERNEL,
    CALL_LINEAR,
    CALL_RECORD,
    CALL_WAIT,
    CALL_FORK, /* branches begin */
    CALL_JOIN, /* and have ended */
};

struct call {
    enum call_kind kind;
    enum kva_queue queue;
    uint32_t branch; /* of compute: 0, its stream, or one beside it */
    struct kva_cuda_kernel kernel;
    struct kva_cuda_launch launch;
    size_t args_at, args_bytes;
    struct kva_linear_args linear;
    struct kva_event *event;
    uint32_t record; /* which of the log's records this is, or is waited for */
    cudaGraphNode_t node;
};

struct log {
    struct call *calls;  /* [CALLS_MAX] */
    unsigned char *args; /* [ARGS_BYTES]: kernels' arguments, each at a multiple of 16 */
    uint32_t count, records;
    size_t args_used;
    uint64_t hash;      /* of what a graph cannot change */
    uint32_t queues;    /* that take part: 1 << enum kva_queue */
    bool awaits_copies; /* another queue waits for what the copy queue does in it */
};

struct graph {
    struct log log; /* without memory until there is a graph */
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t copied; /* what the copy stream had before it */
    uint64_t used;      /* when last; 0: there is none */
};

struct kva_cuda_step {
    struct log log;
    struct graph graphs[GRAPHS_MAX];
    uint64_t seen[SEEN_MAX];
    uint32_t seen_next;
    uint64_t serial;
    bool uncapturable; /* it was tried, and failed */
    cudaEvent_t records[EVENTS_MAX];
    cudaEvent_t fork, join;
    cudaEvent_t copied;         /* of the graph that is being captured */
    cudaEvent_t beside;         /* what branches begin behind */
    cudaEvent_t done[DONE_MAX]; /* the last graphs have run */
    uint32_t done_next;
    cudaEvent_t sent[2];    /* each side of the arena has been copied */
    unsigned char *host[2]; /* [KVA_CUDA_ARENA_BYTES], pinned */
    unsigned char *device;
    uint32_t side;
    size_t used, sent_bytes;           /* of the arena, in this step */
    uint32_t pieces;                   /* of this step, that have been launched */
    uint32_t parts_sent, parts_logged; /* of this step */
    struct {
        size_t offset, bytes;
    } recent[KVA_CUDA_RING_RECENT];
    uint32_t recent_next;
    struct kva_device_steps counts;
};

static inline bool takes_part(const struct log *log, enum kva_queue queue)
{
    return log->queues >> queue & 1;
}

/* Whether the call is none of its graph's, but goes behind it. */
static inline bool goes_behind(const struct log *log, const struct call *call)
{
    return call->queue == KVA_QUEUE_COPY && !log->awaits_copies;
}

/* Whether the queue, which is not compute's, is a branch of the log's graph. */
static inline bool is_branch(const struct log *log, enum kva_queue queue)
{
    return takes_part(log, queue) && (queue != KVA_QUEUE_COPY || log->awaits_copies);
}

/* Where the arguments of a call's kernel are. */
static inline void log_args(void **ret, const struct log *log, const struct call *call)
{
    unsigned char *at = log->args + call->args_at;
    for (uint32_t i = 0; i < call->kernel.arg_count; i++) {
        ret[i] = at;
        at += kva_align_up(call->kernel.arg_bytes[i], 16);
    }
}

/* A kernel of the log into a stream; `early`: it may begin while the one before it ends. */
cudaError_t kva_cuda_log_launch(const struct log *log, const struct call *call, cudaStream_t stream,
                                bool early);

/* The log as a graph, which is in `ret` even if it is not whole: false, which is no failure of the
 * device. */
bool kva_cuda_step_capture(struct kva_device *device, struct log *log, cudaGraph_t *ret);

/* Send what of the arena has been used since it was last sent; false: the device has failed. */
bool kva_cuda_step_send(struct kva_device *device);

#endif
