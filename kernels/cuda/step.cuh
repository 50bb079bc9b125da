/* step.cuh - the log of a deferred step, shared by step_log.cu, which writes it, and
 * step.cu, which plays it or makes it a graph. */
#ifndef KVA_KERNELS_CUDA_STEP_CUH
#define KVA_KERNELS_CUDA_STEP_CUH

#include "kernels/cuda/device_cuda.h"

/* Graphs that are kept; steps that are remembered because they may come again. */
#define GRAPHS_MAX 16u
#define SEEN_MAX   256u

#define CALLS_MAX  8192u
#define EVENTS_MAX 2048u
#define ARGS_BYTES ((size_t)2 << 20)

/* Arrays that grow step by step keep their places: sizes are rounded up to an eighth. */
#define ARENA_ALIGN ((size_t)256)

enum call_kind {
    CALL_KERNEL,
    CALL_LINEAR,
    CALL_RECORD,
    CALL_WAIT,
};

struct call {
    enum call_kind kind;
    enum kva_queue queue;
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
    uint64_t hash; /* of what a graph cannot change */
    bool copies;   /* the copy queue takes part */
};

struct graph {
    struct log log;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    uint64_t used; /* when last; 0: there is none */
};

struct kva_cuda_step {
    struct log log;
    struct graph graphs[GRAPHS_MAX];
    uint64_t seen[SEEN_MAX];
    uint32_t seen_next;
    uint64_t serial;
    bool uncapturable; /* it was tried, and failed */
    cudaEvent_t records[EVENTS_MAX];
    cudaEvent_t fork, join, copied; /* copied: what the copy stream had before the graph */
    cudaEvent_t beside;             /* what products side by side wait for */
    cudaEvent_t done[2];            /* the last two graphs have run */
    cudaEvent_t sent[2];            /* each side of the arena has been copied */
    unsigned char *host[2];         /* [KVA_CUDA_ARENA_BYTES], pinned */
    unsigned char *device;
    uint32_t side;
    size_t used;
    struct {
        size_t offset, bytes;
    } recent[KVA_CUDA_RING_RECENT];
    uint32_t recent_next;
    struct kva_device_steps counts;
};

/* Send what of the arena has been used; false: the device has failed. */
bool kva_cuda_step_send(struct kva_device *device);

#endif
