/* quantise.c - driver of quantisation: a KV head of a block is an item of work. Keys per token are
 * coded as single rows are (keep/token_row.h), at every level. */
#include "kernels/cpu/device/device_cpu.h"
#include "kernels/cpu/keep/token_row.h"

struct quantise_job {
    struct kva_device *device;
    const struct kva_quantise_args *args;
};

static void quantise_row(const struct kva_cpu_quantise *args,
                         const struct kva_lowbit_layout *layout, struct kva_token_place place,
                         uint32_t token)
{
    const uint32_t dim = args->head_dim, bits = args->format.bits;
    struct kva_token_row row;
    float x[KVA_CPU_HEAD_DIM_MAX];
    kva_f32_array(args->from + (size_t)(2 * token + place.values) * dim, args->kv_dtype, dim, x);
    kva_token_row_take(&row, x, dim, bits, args->format.coding);
    kva_token_row_put(&row, args->to, layout, place, token, dim, bits);
}

static void quantise_tokens(const struct kva_cpu_quantise *args)
{
    const struct kva_lowbit_layout layout = kva_lowbit_layout_of(args->format, args->head_dim);
    for (uint32_t token = 0; token < KVA_PAGE_TOKENS; token++) {
        quantise_row(args, &layout, kva_token_keys(&layout), token);
        quantise_row(args, &layout, kva_token_values(&layout), token);
    }
}

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
    if (args->format.keys == KVA_KEYS_PER_TOKEN)
        quantise_tokens(&one);
    else
        job->device->kernels.quantise(&one);
}

void kva_cpu_quantise(struct kva_device *device, const struct kva_quantise_args *args)
{
    if (kva_cpu_failed(device))
        return;
    struct quantise_job job = {.device = device, .args = args};
    kva_pool_run(device->pool, args->count * args->kv_heads, quantise_head, &job);
}
