/* device.h - the device contract: memory in two tiers, queues, events, operators.
 *
 * A device is the CPU or one GPU. The engine sees only this header and ops.h, so that policies,
 * tiers, overlap and ordering are the same code on both.
 *
 *   memory   KVA_MEM_DEVICE holds weights, activations and the device tier of the KV cache;
 *            KVA_MEM_HOST the host copy of every 16-bit KV page (pinned on a GPU machine).
 *            On the CPU device both are ordinary memory.
 *   queues   Work of one queue runs in the order in which it was put there. KVA_QUEUE_COMPUTE
 *            takes operators; KVA_QUEUE_ASIDE those of them that say so, to run beside compute's;
 *            KVA_QUEUE_COPY takes copies and fetches of rows. Two queues are ordered by events
 *            alone, never by host time. The CPU device runs operators inline, on the caller and
 *            its pool, of whichever of the two queues, and copies on a thread of their own.
 *   events   record marks a point in a queue; wait makes a later point of another queue come
 *            after it.
 *
 * Thread rule: one thread, the engine's, calls everything here except kva_event_done.
 * Errors: operators and copies return nothing. A device that fails is failed for good
 * (kva_device_error). */
#ifndef KVA_KERNELS_DEVICE_H
#define KVA_KERNELS_DEVICE_H

#include "base/err.h"
#include "kernels/dtype.h"

#include <stdbool.h>

struct kva_device;
struct kva_ops;
struct kva_event;

enum kva_mem {
    KVA_MEM_DEVICE,
    KVA_MEM_HOST,
};

enum kva_queue {
    KVA_QUEUE_COMPUTE,
    KVA_QUEUE_ASIDE,
    KVA_QUEUE_COPY,
    KVA_QUEUE_COUNT,
};

/* Capability levels of the CPU tables; a mask of them is settable so that every level is testable
 * on one machine. */
enum kva_cpu_level {
    KVA_CPU_REF = 1u << 0,
    KVA_CPU_AVX2 = 1u << 1,   /* AVX2 + FMA + F16C */
    KVA_CPU_AVX512 = 1u << 2, /* F, BW, DQ, VL */
    /* AVX512-VNNI: queries and weights are rounded to 8 bits in products with low-bit codes */
    KVA_CPU_AVX512VNNI = 1u << 3,
    /* AVX512-BF16: activations are rounded to bf16 where they meet bf16 weights */
    KVA_CPU_AVX512BF16 = 1u << 4,
    /* AMX-TILE, AMX-BF16 and AMX-INT8; activations are rounded as at AVX512-BF16 */
    KVA_CPU_AMX = 1u << 5,
};

struct kva_device_params {
    uint32_t threads;        /* compute threads; 0: one per usable core */
    uint32_t cpu_level_mask; /* 0: everything the machine has */
    bool prefault;           /* CPU: large allocations are physical memory from the start, not page
                                by page as they are used */
    uint32_t gpu_index;      /* CUDA: which GPU */
    enum kva_dtype act;      /* CUDA: activations, the model's own format */
    uint64_t gpu_bytes_max;  /* CUDA: all that may be allocated there; 0: no limit but the GPU's */
    bool gpu_direct;         /* CUDA: every operator is launched by itself, steps are no graphs */
    bool gpu_serial;         /* CUDA: no kernel is launched before the one ahead of it has ended */
    /* Tests only: a copy starts after a seeded random delay up to this long, so that a missing
     * event shows up as a wrong result; 0: none. */
    uint32_t copy_delay_max_us;
    uint64_t copy_delay_seed;
    /* Tests only: levels whose instructions something in the process executes in software, as if
     * the machine had them. */
    uint32_t cpu_levels_emulated;
};

/* What the device is, for logs, `kvahead info` and /version. */
struct kva_device_info {
    char name[128];      /* "cpu: AMD EPYC, 2 threads, avx512" */
    enum kva_dtype act;  /* activations: F32 on the CPU */
    bool host_readable;  /* the host may read and write KVA_MEM_DEVICE */
    bool runs_inline;    /* operators have run when their call returns: the host sees an event as
                            compute meets it */
    uint32_t threads;    /* compute threads */
    uint32_t cpu_levels; /* levels in use */
    uint64_t free_bytes; /* of a GPU's memory when it was opened; the CPU: 0 */
};

/* Opens the CPU device. Fails: KVA_ENOMEM, KVA_EINVAL (a level mask the machine lacks). */
KVA_MUST_CHECK enum kva_status kva_device_open_cpu(const struct kva_device_params *params,
                                                   struct kva_device **ret, struct kva_err *err);

/* Opens a GPU by the module at `module_path`, which is loaded here: without a driver or a GPU
 * nothing of CUDA is needed. Fails: KVA_ENOTFOUND (no module, no driver, no such GPU), KVA_EFORMAT
 * (no module of this build), KVA_EUNSUPPORTED (the GPU is too old), KVA_ENOMEM, KVA_EDEVICE. */
KVA_MUST_CHECK enum kva_status kva_device_open_cuda(const char *module_path,
                                                    const struct kva_device_params *params,
                                                    struct kva_device **ret, struct kva_err *err);

/* Waits for all queues, then frees. NULL is allowed. */
void kva_device_close(struct kva_device *device);

const struct kva_device_info *kva_device_get_info(const struct kva_device *device);

/* Numbers of a head, of queries and of keys, that its operators of attention take at most. */
uint32_t kva_device_head_dim_max(const struct kva_device *device);

/* The operator table; constant for the life of the device. */
const struct kva_ops *kva_device_ops(const struct kva_device *device);

/* KVA_OK, or the failure that made the device unusable. */
enum kva_status kva_device_error(const struct kva_device *device, struct kva_err *err);

/* What the device gives at most with its threads, measured now, in a second or two. 0: it has no
 * such thing. */
struct kva_device_roofs {
    double read_bytes_per_s; /* of device memory, far larger than any cache; a GPU: read and
                                written in a copy */
    double copy_bytes_per_s; /* of the copy queue, from tier to tier */
    double f32_flops_per_s;  /* multiply-adds: two operations each */
    double bf16_flops_per_s; /* products of 16 bits, summed in fp32; a GPU: of large matrices, in
                                the activations' format */
    double int8_ops_per_s;   /* products of bytes, summed in int32; a GPU: not measured */
};

/* Fails: KVA_EUNSUPPORTED (of this kind of device nothing is known), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status
kva_device_measure(struct kva_device *device, struct kva_device_roofs *ret, struct kva_err *err);

/* Eigenvectors of `count` symmetric matrices [count][n][n] in memory of the host, of which element
 * [i][j] with i <= j is read: each becomes its own, orthonormal, one a row, and values [count][n]
 * their eigenvalues, ascending. Finite numbers. Waits for the device. Fails: KVA_EUNSUPPORTED (the
 * device has no solver; err says what it lacks), KVA_EFORMAT (a matrix for which it finds no end;
 * err says which), KVA_ENOMEM, KVA_EDEVICE. */
KVA_MUST_CHECK enum kva_status kva_device_eigen(struct kva_device *device, double *matrices,
                                                double *values, uint32_t n, uint32_t count,
                                                struct kva_err *err);

/* --- memory ---------------------------------------------------------------------------------- */

/* `bytes` of zeroed memory, 64-byte aligned; physical memory is taken when touched where the tier
 * allows it (CPU). Fails: KVA_ENOMEM (err names tier and bytes). Free with kva_device_free and the
 * same size. */
KVA_MUST_CHECK enum kva_status kva_device_alloc(struct kva_device *device, enum kva_mem mem,
                                                size_t bytes, void **ret, struct kva_err *err);
void kva_device_free(struct kva_device *device, enum kva_mem mem, void *data, size_t bytes);

/* --- weights --------------------------------------------------------------------------------- */

/* A matrix [rows, cols], row-major, or a vector (rows = 1), ready for this device's operators. */
struct kva_weight {
    const void *data; /* device address; NULL: there is no such weight (an absent bias) */
    enum kva_dtype dtype;
    uint32_t rows;
    uint32_t cols;
};

/* Make a weight from host memory that outlives the device (a mapped file). The CPU device refers to
 * it as it is; a GPU copies it. The address need only be aligned to the element (packed
 * formats: to KVA_PACKED_ALIGN). Fails: KVA_EINVAL, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_device_weight(struct kva_device *device, const void *data,
                                                 enum kva_dtype dtype, uint32_t rows, uint32_t cols,
                                                 struct kva_weight *ret, struct kva_err *err);

/* --- queues, copies, events ------------------------------------------------------------------ */

/* Copy between any two addresses of this device's tiers, in `queue`'s order. Both stay valid until
 * it ran. */
void kva_device_copy(struct kva_device *device, enum kva_queue queue, void *to, const void *from,
                     size_t bytes);

KVA_MUST_CHECK enum kva_status kva_event_create(struct kva_device *device, struct kva_event **ret,
                                                struct kva_err *err);
void kva_event_destroy(struct kva_event *event);

/* Everything put into `queue` so far comes before the event; recording again moves the event. */
void kva_event_record(struct kva_event *event, enum kva_queue queue);

/* Everything put into `queue` from now on comes after the event. An event never recorded is done.
 */
void kva_event_wait(struct kva_event *event, enum kva_queue queue);

/* Whether the recorded point has been reached. Any thread. */
bool kva_event_done(const struct kva_event *event);

/* Block the caller until it is reached. */
void kva_event_sync(struct kva_event *event);

/* Block the caller until `queue` is empty. */
void kva_device_sync(struct kva_device *device, enum kva_queue queue);

/* Work put into the queues between begin and end may be deferred and then launched as graphs: for
 * steps that recur with the same shapes. A part is a piece of the step behind which the device may
 * launch what it has, to run it while the rest is described: a layer, say. Order and results do not
 * change. Waiting, copies and allocation in between are allowed, and end the deferral. Not nested.
 */
void kva_device_step_begin(struct kva_device *device);
void kva_device_step_part(struct kva_device *device);
void kva_device_step_end(struct kva_device *device);

/* Operators of the compute queue that need not wait for each other, in a deferred step: those
 * between here and the next call are of branch `branch`, in their order, and none of another branch
 * reads what they write. The first call forks, join puts behind all branches what follows; neither
 * queues nor events know of branches, so nothing is recorded in between, and what is waited for is
 * waited for by branch 0. False: nothing runs side by side now, and the order is that of the calls.
 * Results do not change. For attention (attend, attend_lowbit, attend_rows) and what is a kernel
 * without scratch memory, such as gather. */
#define KVA_BRANCHES 3u
bool kva_device_branch(struct kva_device *device, uint32_t branch);
void kva_device_join(struct kva_device *device);

/* Counts of what deferred steps became. A device that defers nothing: all 0. */
struct kva_device_steps {
    uint64_t launched; /* pieces of steps, as a graph each */
    uint64_t replayed; /* pieces operator by operator: not seen before, or ended early */
    uint64_t captured; /* graphs made */
    uint64_t updated;  /* kernels given other arguments in a graph */
};

void kva_device_get_steps(const struct kva_device *device, struct kva_device_steps *ret);

#endif
