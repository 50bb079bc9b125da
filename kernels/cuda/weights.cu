/* weights.cu - weights on the device: what is made of the memory that a model lies in, once for all
 * who ask. */
#include "kernels/cuda/device_cuda.h"
#include "kernels/packed_table.h"

#include <stdlib.h>
#include <string.h>

static enum kva_status add_weight(struct kva_device *device, size_t bytes,
                                  struct kva_cuda_block **ret, struct kva_err *err)
{
    struct kva_cuda_block *block = static_cast<kva_cuda_block *>(calloc(1, sizeof *block));
    if (!block)
        return kva_fail(err, KVA_ENOMEM, "no memory to note a weight");
    enum kva_status status = kva_cuda_alloc_device(device, bytes, &block->data, err);
    if (status) {
        free(block);
        return status;
    }
    block->bytes = bytes;
    block->next = device->weights;
    device->weights = block;
    *ret = block;
    return KVA_OK;
}

/* What was made of the same memory before, for another engine, or as an embedding that is also the
 * head: that memory does not change as long as the device is open. */
static const struct kva_cuda_block *find_weight(const struct kva_device *device, const void *data,
                                                enum kva_dtype dtype, uint32_t rows, uint32_t cols)
{
    const struct kva_cuda_block *block = device->weights;
    while (block && (block->from != data || block->from_dtype != dtype ||
                     block->weight.rows != rows || block->weight.cols != cols))
        block = block->next;
    return block;
}

/* From memory that is not pinned (a mapped file) through the ring, piece by piece. */
static void send_bytes(struct kva_device *device, void *to, const void *from, size_t bytes)
{
    const unsigned char *source = static_cast<const unsigned char *>(from);
    for (size_t at = 0; at < bytes && !kva_cuda_failed(device);) {
        size_t piece = kva_min_size(bytes - at, KVA_CUDA_RING_SEGMENT_BYTES);
        void *staged = kva_cuda_stage(device, piece);
        if (!staged)
            return;
        memcpy(staged, source + at, piece);
        kva_cuda_copy(device, KVA_QUEUE_COMPUTE, static_cast<unsigned char *>(to) + at, staged,
                      piece);
        at += piece;
    }
}

static size_t bytes_of(enum kva_dtype dtype, uint32_t rows, uint32_t cols)
{
    return kva_dtype_is_packed(dtype)
               ? kva_packed_bytes(&kva_packed_table[dtype - KVA_INT8], rows, cols)
               : static_cast<size_t>(rows) * cols * kva_dtype_bytes(dtype);
}

/* Matrices take the activations' format, as cuBLAS wants; vectors keep theirs, and so do packed
 * matrices, which have kernels of their own. */
enum kva_status kva_cuda_weight(struct kva_device *device, const void *data, enum kva_dtype dtype,
                                uint32_t rows, uint32_t cols, struct kva_weight *ret,
                                struct kva_err *err)
{
    const struct kva_cuda_block *there = find_weight(device, data, dtype, rows, cols);
    if (there) {
        *ret = there->weight;
        return KVA_OK;
    }
    const size_t bytes = bytes_of(dtype, rows, cols);
    const bool converted = rows > 1 && !kva_dtype_is_packed(dtype);
    enum kva_dtype kept = converted ? device->base.info.act : dtype;
    void *raw = nullptr;
    struct kva_cuda_block *block = nullptr;
    enum kva_status status = add_weight(device, bytes_of(kept, rows, cols), &block, err);
    if (status)
        return status;
    if (kept == dtype) {
        send_bytes(device, block->data, data, bytes);
    } else {
        status = kva_cuda_alloc_device(device, bytes, &raw, err);
        if (status)
            return status;
        send_bytes(device, raw, data, bytes);
        kva_cuda_convert(device, block->data, kept, raw, dtype, static_cast<size_t>(rows) * cols);
    }
    kva_cuda_sync(device, KVA_QUEUE_COMPUTE);
    kva_cuda_free_device(device, raw, bytes);
    if (kva_cuda_failed(device))
        return kva_cuda_error(device, err);
    block->from = data;
    block->from_dtype = dtype;
    *ret = block->weight = {block->data, kept, rows, cols};
    return KVA_OK;
}

void kva_cuda_weights_free(struct kva_device *device)
{
    for (struct kva_cuda_block *block = device->weights, *next; block; block = next) {
        next = block->next;
        kva_cuda_free_device(device, block->data, block->bytes);
        free(block);
    }
}
