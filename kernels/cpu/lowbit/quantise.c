/* Driver of quantisation: a KV head of a block is an item of work. */
#include "kernels/cpu/device/device_cpu.h"

bool kva_cpu_check_lowbit(struct kva_device *device, const char *op,
                          struct kva_lowbit_format format, uint32_t head_dim,
                          enum kva_dtype kv_dtype)
{
    if (head_dim == 0 || head_dim % 4 != 0 || head_dim > KVA_CPU_HEAD_DIM_MAX)
        kva_cpu_fail(device, "%s: head_dim %u, must be a multiple of 4 up to %u", op, head_dim,
                     KVA_CPU_HEAD_DIM_MAX);
    else if (format.bits != 1 && format.bits != 2 && format.bits != 4)
        kva_cpu_fail(device, "%s: %u bits, must be 1, 2 or 4", op, format.bits);
    else if (format.group != 32 && format.group != 64)
        kva_cpu_fail(device, "%s: groups of %u, must be 32 or 64", op, format.group);
    else if (kv_dtype != KVA_F16 && kv_dtype != KVA_BF16)
        kva_cpu_fail(device, "%s: KV rows are f16 or bf16, not data type %d", op, (int)kv_dtype);
    return !atomic_load_explicit(&device->failed, memory_order_relaxed);
}

struct quantise_job {
    struct kva_device *device;
    const struct kva_quantise_args *args;
};

static void quantise_head(void *opaque, uint32_t index, uint32_t worker)
{
    const struct quantise_job *job = opaque;
    const struct kva_quantise_args *args = job->args;
    uint32_t block = index / args->kv_heads, head = index % args->kv_heads;
    size_t from_bytes = kva_kv_block_bytes(1, args->head_dim);
    struct kva_cpu_quantise one = {
        .from = (const uint16_t *)(const void *)((const unsigned char *)args->from[block] +
                                                 args->from_offset_bytes + head * from_bytes),
        .to = (unsigned char *)args->to[block] + args->to_offset_bytes +
              head * kva_lowbit_head_bytes(args->format, args->head_dim),
        .head_dim = args->head_dim,
        .exempt = args->exempt ? args->exempt[block] : 0,
        .kv_dtype = args->kv_dtype,
        .format = args->format,
        .scratch = kva_cpu_scratch(job->device, worker),
    };
    job->device->kernels.quantise(&one);
}

void kva_cpu_quantise(struct kva_device *device, const struct kva_quantise_args *args)
{
    if (!kva_cpu_check_lowbit(device, "quantise", args->format, args->head_dim, args->kv_dtype))
        return;
    struct quantise_job job = {.device = device, .args = args};
    kva_pool_run(device->pool, args->count * args->kv_heads, quantise_head, &job);
}
