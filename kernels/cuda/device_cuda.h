/* device_cuda.h - the inside of the CUDA device, shared by the files of the module.
 *
 * The module is C++ as nvcc compiles it. Its sources are also compiled by an ordinary compiler
 * against the headers of tests/cuda/simt, which execute kernels and streams on the host: keep to
 * what those know, or teach them.
 *
 *   queues       streams that do not wait for the default one, which nobody uses
 *   descriptors  host arrays of an operator's arguments go through a ring of pinned memory, in the
 *                compute stream's order; what was sent a moment ago is not sent again. An operator
 *                that runs aside comes after what compute has been given, its own among it
 *   steps        what a decoding step puts into the queues is deferred and launched as graphs
 *                (step.cu)
 *   errors       the first one fails the device for good; from then on nothing is launched
 *
 * Thread rule: as device.h. */
#ifndef KVA_KERNELS_CUDA_DEVICE_CUDA_H
#define KVA_KERNELS_CUDA_DEVICE_CUDA_H

extern "C" {
#include "kernels/backend.h"
#include "kernels/ops.h"
}

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <new>
#include <utility>

/* The descriptor ring: segments are written one after the other, and a segment is written again
 * only when what read it has run. One call's descriptors must fit a segment. */
#define KVA_CUDA_RING_SEGMENTS      4u
#define KVA_CUDA_RING_SEGMENT_BYTES ((size_t)16 << 20)

/* Uploads that are remembered, to be found again by their content. */
#define KVA_CUDA_RING_RECENT 16u

/* The descriptors of a deferred step. */
#define KVA_CUDA_ARENA_BYTES ((size_t)32 << 20)

/* Arguments of a kernel. */
#define KVA_CUDA_ARGS_MAX 12u

/* Kernels that use more shared memory than every kernel may, and how much that is. */
#define KVA_CUDA_SHARED_MAX  64u
#define KVA_CUDA_SHARED_FREE ((size_t)48 << 10)

/* Partial results of attention splits that are computed side by side, and the like; of operators
 * that run aside. */
#define KVA_CUDA_SCRATCH_BYTES ((size_t)256 << 20)
#define KVA_CUDA_ASIDE_BYTES   ((size_t)32 << 20)

struct kva_cuda_ring {
    unsigned char *host;
    unsigned char *device;
    size_t segment;                           /* that is being written */
    size_t used;                              /* bytes of it */
    cudaEvent_t sent[KVA_CUDA_RING_SEGMENTS]; /* the segment has been copied to the device */
    struct {
        size_t offset, bytes; /* bytes 0: unused */
    } recent[KVA_CUDA_RING_RECENT];
    uint32_t recent_next;
};

/* A weight on the device, and what it was made from. */
struct kva_cuda_block {
    struct kva_cuda_block *next;
    void *data;
    size_t bytes;
    const void *from;
    enum kva_dtype from_dtype;
    struct kva_weight weight;
};

struct kva_cuda_step;
struct kva_cuda_piece;

struct kva_event {
    struct kva_event_base base;
    struct kva_device *device;
    cudaEvent_t event; /* its own */
    cudaEvent_t point; /* what it was recorded as last: its own, or the end of a step's graph;
                          NULL: never. Read by any thread */
    bool deferred;     /* recorded in the deferred step. Read by any thread */
    uint32_t deferred_record;
    enum kva_queue deferred_queue;
};

/* Products of matrices in a stream, whose workspace nobody else uses at the time. */
struct kva_cuda_blas {
    cublasHandle_t handle;
    void *workspace;
};

/* Streams of a captured step for branches beside the compute stream's. */
#define KVA_CUDA_LANES (KVA_BRANCHES - 1)

struct kva_cuda_lane {
    cudaStream_t stream;
    struct kva_cuda_blas blas;
    cudaEvent_t done;
};

struct kva_device {
    struct kva_device_base base;
    int index;
    int sm_count;
    size_t shared_bytes_max; /* of a block of threads, if a kernel asks for it */
    struct {
        const void *kernel;
        size_t room;
    } shared[KVA_CUDA_SHARED_MAX]; /* kernels that have asked */
    uint32_t shared_count;
    int numa_node; /* that the GPU hangs at; -1: unknown */
    cudaStream_t streams[KVA_QUEUE_COUNT];
    struct kva_cuda_blas blas;
    struct kva_cuda_lane lanes[KVA_CUDA_LANES];
    struct kva_cuda_ring ring;
    void *scratch;       /* device, KVA_CUDA_SCRATCH_BYTES; in the compute stream's order, but for
                            kva_cuda_scratch */
    void *aside;         /* device, KVA_CUDA_ASIDE_BYTES; in the order of the stream aside */
    cudaEvent_t ordered; /* of events.cu */
    bool aside_open;     /* compute has not waited for all that was launched aside */
    struct kva_cuda_step *step;
    bool direct;    /* steps are not deferred */
    bool deferring; /* a step is being deferred */
    bool forked;    /* calls are of branches, of `branch` now */
    uint32_t branch;
    bool capturing; /* calls go into a graph: what fails is not the device, but the capture */
    bool early;     /* kernels are launched while the one before them ends (kva_begin) */
    struct kva_cuda_block *weights;
    struct kva_cuda_piece *pieces; /* of both tiers, in use and spare: spare.cu */
    size_t spare_bytes[2];         /* by enum kva_mem */
    uint64_t bytes;                /* allocated on the device */
    uint64_t bytes_max;
    bool failed; /* read by any thread; set with release after `error` was written */
    struct kva_err error;
};

extern const struct kva_ops kva_cuda_ops;

/* --- errors ---------------------------------------------------------------------------------- */

static inline bool kva_cuda_failed(const struct kva_device *device)
{
    return __atomic_load_n(&device->failed, __ATOMIC_ACQUIRE);
}

void kva_cuda_fail(struct kva_device *device, const char *format, ...) KVA_PRINTF(2, 3);

/* False, with the device failed, if `status` is an error; unless it is a capture that has failed.
 */
bool kva_cuda_check(struct kva_device *device, cudaError_t status, const char *what);

/* What went wrong outside the queues, as the caller's error. */
enum kva_status kva_cuda_fail_with(struct kva_err *err, cudaError_t status, const char *what);

/* KVA_OK, or what failed the device. */
enum kva_status kva_cuda_error(const struct kva_device *device, struct kva_err *err);

/* Make the device current in this thread; false: it has failed, do nothing. */
bool kva_cuda_enter(struct kva_device *device);

/* --- memory ---------------------------------------------------------------------------------- */

enum kva_status kva_cuda_alloc_device(struct kva_device *device, size_t bytes, void **ret,
                                      struct kva_err *err);
void kva_cuda_free_device(struct kva_device *device, void *data, size_t bytes);
enum kva_status kva_cuda_alloc_host(struct kva_device *device, size_t bytes, void **ret,
                                    struct kva_err *err);
void kva_cuda_free_host(void *data, size_t bytes);

/* The backend's own (backend.h). */
void kva_cuda_copy(struct kva_device *device, enum kva_queue queue, void *to, const void *from,
                   size_t bytes);
void kva_cuda_sync(struct kva_device *device, enum kva_queue queue);
enum kva_status kva_cuda_weight(struct kva_device *device, const void *data, enum kva_dtype dtype,
                                uint32_t rows, uint32_t cols, struct kva_weight *ret,
                                struct kva_err *err);

/* Copies between any two places, in pieces where host memory wants that (pinned.cu). */
cudaError_t kva_cuda_copy_pieces(cudaStream_t stream, void *to, const void *from, size_t bytes);
bool kva_cuda_copy_async(struct kva_device *device, enum kva_queue queue, void *to,
                         const void *from, size_t bytes, const char *what);

/* Wait for all queues. */
void kva_cuda_wait_all(struct kva_device *device);

void kva_cuda_weights_free(struct kva_device *device);

/* Remember memory that was taken from the driver; take some that is spare, at least so much, with
 * anything in it, and perhaps in use by what is still in the queues (NULL: there is none); give
 * such memory back (false: it is not remembered); give what is spare back to the driver (false:
 * there was none). */
void kva_cuda_spare_note(struct kva_device *device, enum kva_mem mem, void *data, size_t bytes);
void *kva_cuda_spare_take(struct kva_device *device, enum kva_mem mem, size_t bytes);
bool kva_cuda_spare_give(struct kva_device *device, void *data);
bool kva_cuda_spare_drop(struct kva_device *device);

/* The NUMA node of a GPU, where pinned memory is to be; -1: unknown. */
int kva_cuda_numa_node(int index);

/* What a call may have of scratch memory: all of it; between branches the first two have half of it
 * each, a third nothing. */
struct kva_cuda_scratch {
    void *data;
    size_t bytes;
};

static inline struct kva_cuda_scratch kva_cuda_scratch(const struct kva_device *device)
{
    const size_t half = KVA_CUDA_SCRATCH_BYTES / 2;
    if (!device->forked)
        return {device->scratch, KVA_CUDA_SCRATCH_BYTES};
    return {static_cast<unsigned char *>(device->scratch) + (device->branch > 0 ? half : 0),
            device->branch < 2 ? half : 0};
}

/* --- order: events.cu ------------------------------------------------------------------------- */

enum kva_status kva_cuda_event_create(struct kva_device *device, struct kva_event **ret,
                                      struct kva_err *err);
void kva_cuda_event_destroy(struct kva_event *event);
void kva_cuda_event_record(struct kva_event *event, enum kva_queue queue);
void kva_cuda_event_wait(struct kva_event *event, enum kva_queue queue);
bool kva_cuda_event_done(const struct kva_event *event);
void kva_cuda_event_sync(struct kva_event *event);

/* Work that is launched aside now finds its descriptors there; false: the device has failed. */
bool kva_cuda_open_aside(struct kva_device *device);

/* Descriptors of work aside may be overwritten in the compute stream's order. */
bool kva_cuda_close_aside(struct kva_device *device);

/* --- descriptors ----------------------------------------------------------------------------- */

/* On failure the ring is half-built, which destroy accepts. */
enum kva_status kva_cuda_ring_create(struct kva_device *device, struct kva_err *err);
void kva_cuda_ring_destroy(struct kva_device *device);

/* Room for `bytes` in the ring, to be filled at once and sent before anything else is staged. NULL:
 * the device has failed. */
void *kva_cuda_stage(struct kva_device *device, size_t bytes);

/* Send what was staged; its address on the device. */
const void *kva_cuda_send(struct kva_device *device, const void *staged, size_t bytes);

/* Copy a host array; NULL: the device has failed, or nothing was given. Valid for the work that the
 * operator at hand puts into the compute queue, or aside. */
const void *kva_cuda_upload(struct kva_device *device, const void *data, size_t bytes);

template <typename T>
const T *kva_cuda_upload_array(struct kva_device *device, const T *data, size_t count)
{
    return static_cast<const T *>(kva_cuda_upload(device, data, count * sizeof(T)));
}

/* `bytes` and some more, so that an array which grows a little keeps its place and leaves its
 * neighbours theirs. */
size_t kva_cuda_room(size_t bytes);

/* --- launching ------------------------------------------------------------------------------- */

struct kva_cuda_launch {
    dim3 grid;
    dim3 block;
    size_t shared_bytes = 0;
};

/* Dynamic shared memory that a block of a kernel may have on this GPU, which it is allowed from now
 * on, once for all launches: a limit that each of them set for itself would not hold for those that
 * are deferred. 0: the device has failed. */
size_t kva_cuda_shared_room(struct kva_device *device, const char *name, const void *kernel);

/* Whether it may have so many bytes; false: the device has failed. */
bool kva_cuda_allow_shared(struct kva_device *device, const char *name, const void *kernel,
                           size_t bytes);

/* A kernel without its type: `launch` knows it. */
struct kva_cuda_kernel {
    const char *name;
    const void *function;
    cudaError_t (*launch)(const cudaLaunchConfig_t *config, const void *function,
                          void *const *args);
    uint32_t arg_count;
    uint32_t arg_bytes[KVA_CUDA_ARGS_MAX];
};

template <typename... Expected, size_t... I>
cudaError_t kva_cuda_launch_typed(const cudaLaunchConfig_t *config, const void *function,
                                  void *const *args, std::index_sequence<I...>)
{
    return cudaLaunchKernelEx(config,
                              reinterpret_cast<void (*)(Expected...)>(const_cast<void *>(function)),
                              *static_cast<Expected *>(args[I])...);
}

template <typename... Expected>
cudaError_t kva_cuda_launch_any(const cudaLaunchConfig_t *config, const void *function,
                                void *const *args)
{
    return kva_cuda_launch_typed<Expected...>(config, function, args,
                                              std::index_sequence_for<Expected...>{});
}

/* --- deferred steps: step.cu ------------------------------------------------------------------
 *
 * The defer functions take a call into the log; false: nothing is deferred (any more), do it now.
 */

enum kva_status kva_cuda_step_create(struct kva_device *device, struct kva_err *err);
void kva_cuda_step_destroy(struct kva_device *device);
void kva_cuda_step_begin(struct kva_device *device);
void kva_cuda_step_part(struct kva_device *device);
void kva_cuda_step_end(struct kva_device *device);
bool kva_cuda_step_branch(struct kva_device *device, uint32_t branch);
void kva_cuda_step_join(struct kva_device *device);

/* Put into the streams what is deferred, and defer nothing more until the next step: before
 * anything that waits, copies, or gives memory back. */
void kva_cuda_step_break(struct kva_device *device);

void kva_cuda_step_counts(const struct kva_device *device, struct kva_device_steps *ret);

/* `ret_args`[i] is where argument i is to be written. */
bool kva_cuda_defer_kernel(struct kva_device *device, enum kva_queue queue,
                           const struct kva_cuda_kernel *kernel,
                           const struct kva_cuda_launch *launch, void **ret_args);
bool kva_cuda_defer_linear(struct kva_device *device, const struct kva_linear_args *args);
bool kva_cuda_defer_record(struct kva_event *event, enum kva_queue queue);
bool kva_cuda_defer_wait(struct kva_event *event, enum kva_queue queue);

/* As kva_cuda_stage, _send and _upload, in the arena of the step; NULL: nothing is deferred. */
void *kva_cuda_step_stage(struct kva_device *device, size_t bytes);
const void *kva_cuda_step_address(const struct kva_device *device, const void *staged);
const void *kva_cuda_step_upload(struct kva_device *device, const void *data, size_t bytes);

/* A launch that need not wait for the kernel before it in its stream; `attribute` holds what it
 * wants. */
inline void kva_cuda_launch_early(cudaLaunchConfig_t *config, cudaLaunchAttribute *attribute)
{
    attribute->id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute->val.programmaticStreamSerializationAllowed = 1;
    config->attrs = attribute;
    config->numAttrs = 1;
}

/* The only way a kernel is launched: in the compute stream unless `queue` says otherwise, checked.
 */
template <typename... Expected, typename... Given>
bool kva_cuda_run(struct kva_device *device, enum kva_queue queue, const char *name,
                  const struct kva_cuda_launch &launch, void (*kernel)(Expected...),
                  Given &&...given)
{
    static_assert(sizeof...(Expected) <= KVA_CUDA_ARGS_MAX,
                  "more arguments than the log has room for");
    if (launch.shared_bytes > KVA_CUDA_SHARED_FREE &&
        !kva_cuda_allow_shared(device, name, reinterpret_cast<const void *>(kernel),
                               launch.shared_bytes))
        return false;
    if (device->deferring) {
        const struct kva_cuda_kernel deferred = {name,
                                                 reinterpret_cast<const void *>(kernel),
                                                 kva_cuda_launch_any<Expected...>,
                                                 sizeof...(Expected),
                                                 {sizeof(Expected)...}};
        void *args[sizeof...(Expected)], **arg = args;
        if (kva_cuda_defer_kernel(device, queue, &deferred, &launch, args)) {
            ((new (*arg++) Expected(static_cast<Given &&>(given))), ...);
            return true;
        }
    }
    if (queue == KVA_QUEUE_ASIDE && !kva_cuda_open_aside(device))
        return false;
    cudaLaunchConfig_t config = {};
    config.gridDim = launch.grid;
    config.blockDim = launch.block;
    config.dynamicSmemBytes = launch.shared_bytes;
    config.stream = device->streams[queue];
    cudaLaunchAttribute attribute = {};
    if (device->early)
        kva_cuda_launch_early(&config, &attribute);
    return kva_cuda_check(
        device, cudaLaunchKernelEx(&config, kernel, static_cast<Given &&>(given)...), name);
}

/* --- operators ------------------------------------------------------------------------------- */

void kva_cuda_embed(struct kva_device *device, const struct kva_embed_args *args);
void kva_cuda_norm(struct kva_device *device, const struct kva_norm_args *args);
void kva_cuda_linear(struct kva_device *device, const struct kva_linear_args *args);
void kva_cuda_linear_group(struct kva_device *device, const struct kva_linear_group_args *args);
void kva_cuda_linear_glu(struct kva_device *device, const struct kva_linear_glu_args *args);
/* linear into a capture, whose failure is none of the device's; beside the compute stream's, in a
 * lane: of weights that are not packed, without a bias. */
bool kva_cuda_try_linear(struct kva_device *device, const struct kva_linear_args *args);
bool kva_cuda_try_linear_beside(struct kva_device *device, uint32_t lane,
                                const struct kva_linear_args *args);
void kva_cuda_rope(struct kva_device *device, const struct kva_rope_args *args);
void kva_cuda_glu(struct kva_device *device, const struct kva_glu_args *args);
void kva_cuda_gather(struct kva_device *device, const struct kva_gather_args *args);
void kva_cuda_sum_rows(struct kva_device *device, const struct kva_sum_rows_args *args);
void kva_cuda_kv_append(struct kva_device *device, const struct kva_kv_append_args *args);
void kva_cuda_quantise(struct kva_device *device, const struct kva_quantise_args *args);
void kva_cuda_attend(struct kva_device *device, const struct kva_attend_args *args);
void kva_cuda_attend_lowbit(struct kva_device *device, const struct kva_attend_lowbit_args *args);
void kva_cuda_attend_rows(struct kva_device *device, const struct kva_attend_rows_args *args);
void kva_cuda_merge(struct kva_device *device, const struct kva_merge_args *args);
void kva_cuda_weigh(struct kva_device *device, const struct kva_weigh_args *args);
void kva_cuda_choose(struct kva_device *device, const struct kva_choose_args *args);
void kva_cuda_weigh_choose(struct kva_device *device, const struct kva_weigh_choose_args *args);
void kva_cuda_accumulate(struct kva_device *device, const struct kva_accumulate_args *args);
void kva_cuda_assign_slots(struct kva_device *device, const struct kva_assign_slots_args *args);
void kva_cuda_fetch_rows(struct kva_device *device, const struct kva_fetch_rows_args *args);
void kva_cuda_query_cosine(struct kva_device *device, const struct kva_query_cosine_args *args);
void kva_cuda_shortlist(struct kva_device *device, const struct kva_shortlist_args *args);
void kva_cuda_attend_mass(struct kva_device *device, const struct kva_attend_mass_args *args);
void kva_cuda_mean_keys(struct kva_device *device, const struct kva_mean_keys_args *args);
void kva_cuda_row_error(struct kva_device *device, const struct kva_row_error_args *args);
void kva_cuda_keep(struct kva_device *device, const struct kva_keep_args *args);
void kva_cuda_store_rows(struct kva_device *device, const struct kva_store_rows_args *args);
void kva_cuda_use_rows(struct kva_device *device, const struct kva_use_rows_args *args);
void kva_cuda_roll_rows(struct kva_device *device, const struct kva_roll_rows_args *args);
void kva_cuda_sketch(struct kva_device *device, const struct kva_sketch_args *args);
void kva_cuda_sketch_queries(struct kva_device *device, const struct kva_sketch_queries_args *args);
void kva_cuda_sketch_sums(struct kva_device *device, const struct kva_sketch_sums_args *args);
void kva_cuda_sketch_weigh(struct kva_device *device, const struct kva_sketch_weigh_args *args);

enum kva_status kva_cuda_roofs(struct kva_device *device, struct kva_device_roofs *ret,
                               struct kva_err *err);

/* eigen.cu: cuSOLVER's, which is loaded when it is asked for. */
enum kva_status kva_cuda_eigen(struct kva_device *device, double *matrices, double *values,
                               uint32_t n, uint32_t count, struct kva_err *err);

/* Whether a kernel of the module runs on the current GPU; *ret_capability: the compute capability that
 * its code was written for, 10 major + minor, which may be less than the GPU's. */
cudaError_t kva_cuda_find_code(int *ret_capability);

/* to[i] = from[i], between any two formats. */
void kva_cuda_convert(struct kva_device *device, void *to, enum kva_dtype to_dtype,
                      const void *from, enum kva_dtype from_dtype, size_t count);

#endif
