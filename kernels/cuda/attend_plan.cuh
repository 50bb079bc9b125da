/* attend_plan.cuh - how attention over 16-bit pages (attend.cu) and over low-bit pages (lowbit.cu)
 * is cut into items of work: what both plans have, and how a plan comes to the device.
 *
 * A plan is counted first, with no arrays, then filled where it is sent from: all its arrays lie in
 * one piece of the descriptor ring. Each of the two files has a `struct plan`, derived from
 * attend_plan, and for it
 *
 *   walk(plan)           cut the call into items; with `items` NULL they are only counted
 *   lay_out(plan, base)  its arrays, from `base` on; returns the bytes that they take */
#ifndef KVA_KERNELS_CUDA_ATTEND_PLAN_CUH
#define KVA_KERNELS_CUDA_ATTEND_PLAN_CUH

#include "kernels/cuda/attend_tile.cuh"

struct attend_plan {
    uint32_t group; /* query heads of a KV head */
    uint32_t pairs; /* of a block of threads */
    bool wide;      /* splits side by side */
    uint32_t item_count, fold_count, partial_count;
    item *items; /* NULL: only counted */
    item *folds;
};

/* For a call whose sequences have up to rows_max rows. */
static void plan_begin(attend_plan *plan, uint32_t heads, uint32_t kv_heads, uint32_t rows_max)
{
    plan->group = heads / kv_heads;
    plan->pairs = static_cast<size_t>(rows_max) * plan->group <= 64 ? 64 : WARPS_MAX * 16;
}

static void plan_item(attend_plan *plan, const item &work)
{
    if (plan->items)
        plan->items[plan->item_count] = work;
    plan->item_count++;
}

/* The next `splits` parts are to be folded into where `work` would have gone. */
static void plan_fold(attend_plan *plan, const item &work, uint32_t splits)
{
    if (plan->items) {
        item &fold = plan->folds[plan->fold_count];
        fold = work;
        fold.partial = plan->partial_count;
        fold.tile_first = 0;
        fold.tile_end = splits;
    }
    plan->fold_count++;
}

static void plan_part(attend_plan *plan, item part)
{
    part.partial = plan->partial_count++;
    plan_item(plan, part);
}

/* An array of a plan at *bytes from its beginning. */
template <typename T> static T *plan_array(const void *base, size_t *bytes, size_t count)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(base) + *bytes;
    *bytes += kva_cuda_room(count * sizeof(T));
    return reinterpret_cast<T *>(at);
}

/* Splits go side by side where whole items would leave a part of the GPU idle, and scratch holds
 * the partial results. Neither changes a bit. */
template <typename Plan, typename Args>
static void choose_width(Plan *plan, const struct kva_device *device, const Args *args)
{
    plan->items = nullptr;
    plan->wide = false;
    walk(plan);
    if (plan->item_count * args->kv_heads >= 4u * static_cast<uint32_t>(device->sm_count))
        return;
    plan->wide = true;
    walk(plan);
    size_t bytes = static_cast<size_t>(plan->partial_count) * args->kv_heads * plan->pairs *
                   (args->head_dim + 2) * sizeof(float);
    if (bytes <= KVA_CUDA_SCRATCH_BYTES)
        return;
    plan->wide = false;
    walk(plan);
}

/* Fill the plan in the ring and send it; the addresses become the device's. */
template <typename Plan> static bool send_plan(struct kva_device *device, Plan *plan)
{
    size_t bytes = lay_out(plan, nullptr);
    void *staged = kva_cuda_stage(device, bytes);
    if (!staged)
        return false;
    (void)lay_out(plan, staged);
    walk(plan);
    const void *sent = kva_cuda_send(device, staged, bytes);
    (void)lay_out(plan, sent);
    return sent != nullptr;
}

/* The shape of a call, of either operator. */
template <typename Args>
static attend_shape shape_of(const struct kva_device *device, const Args *args)
{
    attend_shape shape = {};
    shape.out = args->out;
    shape.partials = static_cast<float *>(device->scratch);
    shape.heads = args->heads;
    shape.kv_heads = args->kv_heads;
    shape.group = args->heads / args->kv_heads;
    shape.dim = args->head_dim;
    shape.window = args->window;
    shape.scale = args->scale;
    shape.q = args->q;
    shape.q_dtype = device->base.info.act;
    shape.q_stride = args->q_stride;
    return shape;
}

/* After a plan's items: fold the splits that went side by side. */
static void run_folds(struct kva_device *device, const attend_plan *plan, const attend_shape &shape,
                      const char *name)
{
    if (plan->fold_count > 0 && !kva_cuda_failed(device))
        kva_cuda_run(device, KVA_QUEUE_COMPUTE, name,
                     {dim3(plan->fold_count, shape.kv_heads, plan->pairs / 4), dim3(KVA_WARP, 4)},
                     fold_kernel, shape, plan->folds, plan->pairs);
}

#endif
