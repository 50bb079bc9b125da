/* spare.cu - a caching allocator: freed blocks of either tier are reused. The driver takes
 * milliseconds to pin memory, and stops the GPU to take memory back; what sequences need while the
 * server runs (small pieces of pinned memory) is taken from it once. */
#include "kernels/cuda/device_cuda.h"

#include <stdlib.h>

/* Larger pieces go back to the driver, and so does what would be more than this together. */
#define PIECE_BYTES_MAX ((size_t)512 << 20)
#define SPARE_BYTES_MAX ((size_t)1 << 30)

struct kva_cuda_piece {
    struct kva_cuda_piece *next;
    void *data;
    size_t bytes;
    enum kva_mem mem;
    bool spare;
};

static void free_piece(struct kva_device *device, enum kva_mem mem, void *data, size_t bytes)
{
    if (mem == KVA_MEM_DEVICE)
        kva_cuda_free_device(device, data, bytes);
    else
        kva_cuda_free_host(data, bytes);
}

void kva_cuda_spare_note(struct kva_device *device, enum kva_mem mem, void *data, size_t bytes)
{
    struct kva_cuda_piece *piece = static_cast<kva_cuda_piece *>(calloc(1, sizeof *piece));
    if (!piece || bytes > PIECE_BYTES_MAX) {
        free(piece);
        return;
    }
    *piece = {device->pieces, data, bytes, mem, false};
    device->pieces = piece;
}

void *kva_cuda_spare_take(struct kva_device *device, enum kva_mem mem, size_t bytes)
{
    struct kva_cuda_piece *best = nullptr;
    for (struct kva_cuda_piece *piece = device->pieces; piece; piece = piece->next) {
        if (piece->spare && piece->mem == mem && piece->bytes >= bytes &&
            piece->bytes / 2 <= bytes && (!best || piece->bytes < best->bytes))
            best = piece;
    }
    if (!best)
        return nullptr;
    best->spare = false;
    device->spare_bytes[mem] -= best->bytes;
    return best->data;
}

bool kva_cuda_spare_give(struct kva_device *device, void *data)
{
    struct kva_cuda_piece **at = &device->pieces;
    while (*at && (*at)->data != data)
        at = &(*at)->next;
    struct kva_cuda_piece *piece = *at;
    if (!piece)
        return false;
    if (piece->bytes <= SPARE_BYTES_MAX - device->spare_bytes[piece->mem]) {
        piece->spare = true;
        device->spare_bytes[piece->mem] += piece->bytes;
        return true;
    }
    *at = piece->next;
    kva_cuda_wait_all(device);
    free_piece(device, piece->mem, piece->data, piece->bytes);
    free(piece);
    return true;
}

bool kva_cuda_spare_drop(struct kva_device *device)
{
    bool any = false;
    for (struct kva_cuda_piece **at = &device->pieces; *at;) {
        struct kva_cuda_piece *piece = *at;
        if (!piece->spare) {
            at = &piece->next;
            continue;
        }
        if (!any)
            kva_cuda_wait_all(device);
        any = true;
        *at = piece->next;
        device->spare_bytes[piece->mem] -= piece->bytes;
        free_piece(device, piece->mem, piece->data, piece->bytes);
        free(piece);
    }
    return any;
}
