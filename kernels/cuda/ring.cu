/* ring.cu - the ring of pinned memory that descriptors go through to the device. */
#include "kernels/cuda/device_cuda.h"

#include <string.h>

#define RING_BYTES (KVA_CUDA_RING_SEGMENTS * KVA_CUDA_RING_SEGMENT_BYTES)

/* Leave the current segment and take the next, of which everything must have been sent. The copy on
 * the device is overwritten in the compute stream's order, so that must be after all work aside. */
static bool next_segment(struct kva_device *device)
{
    struct kva_cuda_ring *ring = &device->ring;
    cudaStream_t stream = device->streams[KVA_QUEUE_COMPUTE];
    if (!kva_cuda_close_aside(device) ||
        !kva_cuda_check(device, cudaEventRecord(ring->sent[ring->segment], stream),
                        "cudaEventRecord"))
        return false;
    ring->segment = (ring->segment + 1) % KVA_CUDA_RING_SEGMENTS;
    ring->used = 0;
    for (uint32_t i = 0; i < KVA_CUDA_RING_RECENT; i++) {
        if (ring->recent[i].offset / KVA_CUDA_RING_SEGMENT_BYTES == ring->segment)
            ring->recent[i].bytes = 0;
    }
    return kva_cuda_check(device, cudaEventSynchronize(ring->sent[ring->segment]),
                          "work that ran earlier");
}

void *kva_cuda_stage(struct kva_device *device, size_t bytes)
{
    struct kva_cuda_ring *ring = &device->ring;
    if (!kva_cuda_enter(device))
        return nullptr;
    void *deferred = kva_cuda_step_stage(device, bytes);
    if (deferred)
        return deferred;
    if (bytes > KVA_CUDA_RING_SEGMENT_BYTES) {
        kva_cuda_fail(device, "the descriptors of one call take %zu bytes, %zu at most", bytes,
                      KVA_CUDA_RING_SEGMENT_BYTES);
        return nullptr;
    }
    if (ring->used + bytes > KVA_CUDA_RING_SEGMENT_BYTES && !next_segment(device))
        return nullptr;
    void *staged = ring->host + ring->segment * KVA_CUDA_RING_SEGMENT_BYTES + ring->used;
    ring->used += kva_align_up(bytes, 256);
    return staged;
}

const void *kva_cuda_send(struct kva_device *device, const void *staged, size_t bytes)
{
    struct kva_cuda_ring *ring = &device->ring;
    const void *deferred = kva_cuda_step_address(device, staged);
    if (deferred)
        return deferred;
    size_t offset = static_cast<size_t>(static_cast<const unsigned char *>(staged) - ring->host);
    kva_cuda_copy(device, KVA_QUEUE_COMPUTE, ring->device + offset, staged, bytes);
    return kva_cuda_failed(device) ? nullptr : ring->device + offset;
}

const void *kva_cuda_upload(struct kva_device *device, const void *data, size_t bytes)
{
    struct kva_cuda_ring *ring = &device->ring;
    if (bytes == 0 || kva_cuda_failed(device))
        return nullptr;
    const void *deferred = kva_cuda_step_upload(device, data, bytes);
    if (deferred)
        return deferred;
    /* What lies in the segment that comes next might be overwritten by this call's next upload. */
    size_t doomed = (ring->segment + 1) % KVA_CUDA_RING_SEGMENTS;
    for (uint32_t i = 0; i < KVA_CUDA_RING_RECENT; i++) {
        if (ring->recent[i].bytes == bytes &&
            ring->recent[i].offset / KVA_CUDA_RING_SEGMENT_BYTES != doomed &&
            memcmp(ring->host + ring->recent[i].offset, data, bytes) == 0)
            return ring->device + ring->recent[i].offset;
    }
    void *staged = kva_cuda_stage(device, bytes);
    if (!staged)
        return nullptr;
    memcpy(staged, data, bytes);
    uint32_t slot = ring->recent_next++ % KVA_CUDA_RING_RECENT;
    ring->recent[slot].offset =
        static_cast<size_t>(static_cast<unsigned char *>(staged) - ring->host);
    ring->recent[slot].bytes = bytes;
    return kva_cuda_send(device, staged, bytes);
}

enum kva_status kva_cuda_ring_create(struct kva_device *device, struct kva_err *err)
{
    struct kva_cuda_ring *ring = &device->ring;
    void *host, *mirror;
    enum kva_status status = kva_cuda_alloc_host(device, RING_BYTES, &host, err);
    if (status)
        return status;
    ring->host = static_cast<unsigned char *>(host);
    status = kva_cuda_alloc_device(device, RING_BYTES, &mirror, err);
    if (status)
        return status;
    ring->device = static_cast<unsigned char *>(mirror);
    for (uint32_t i = 0; i < KVA_CUDA_RING_SEGMENTS; i++) {
        cudaError_t error = cudaEventCreateWithFlags(&ring->sent[i], cudaEventDisableTiming);
        if (error != cudaSuccess)
            return kva_cuda_fail_with(err, error, "cudaEventCreate");
    }
    return KVA_OK;
}

void kva_cuda_ring_destroy(struct kva_device *device)
{
    struct kva_cuda_ring *ring = &device->ring;
    for (uint32_t i = 0; i < KVA_CUDA_RING_SEGMENTS; i++) {
        if (ring->sent[i])
            (void)cudaEventDestroy(ring->sent[i]);
    }
    kva_cuda_free_device(device, ring->device, RING_BYTES);
    kva_cuda_free_host(ring->host, RING_BYTES);
}
