/* quantise.c - driver of quantisation: a KV head of a block is an item of work. */
#include "kernels/cpu/device/device_cpu.h"

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
    if (kva_cpu_failed(device))
        return;
    struct quantise_job job = {.device = device, .args = args};
    kva_pool_run(device->pool, args->count * args->kv_heads, quantise_head, &job);
}
