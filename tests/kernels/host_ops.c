/* The arrays of a call, in the memory of a device that the host cannot read. */
#include "tests/kernels/host_ops_internal.h"

#include "kernels/packed.h"
#include "tests/kernels/formats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT   64u
#define GAP_BYTES   64u
#define GAP_PATTERN 0xFF /* not a number in any format */

static struct host_ops all[HOST_OPS_MAX];

static struct host_ops *of_device(const struct kva_device *device)
{
    for (int i = 0; i < HOST_OPS_MAX; i++) {
        if (all[i].device == device)
            return &all[i];
    }
    return NULL;
}

/* --- opening and closing ---------------------------------------------------------------------- */

static void arena_free(struct host_ops *h, struct arena *arena)
{
    if (arena->memory != arena->image)
        kva_device_free(h->device, KVA_MEM_DEVICE, arena->memory, arena->size);
    kva_device_free(h->device, KVA_MEM_HOST, arena->image, arena->size);
    free(arena->before);
    *arena = (struct arena){0};
}

static bool arena_new(struct host_ops *h, struct arena *arena, size_t bytes, enum kva_mem mem)
{
    void *image = NULL, *memory = NULL;
    arena->size = bytes;
    arena->before = malloc(bytes);
    if (!arena->before || kva_device_alloc(h->device, KVA_MEM_HOST, bytes, &image, NULL))
        return false;
    arena->image = arena->memory = image;
    if (mem == KVA_MEM_HOST)
        return true;
    if (kva_device_alloc(h->device, KVA_MEM_DEVICE, bytes, &memory, NULL))
        return false;
    arena->memory = memory;
    return true;
}

bool host_ops_open(struct kva_device *device, size_t bytes)
{
    struct host_ops *h = of_device(NULL);
    if (!h)
        return false;
    h->device = device;
    h->ops = kva_device_ops(device);
    h->act = kva_device_get_info(device)->act;
    if (arena_new(h, &h->device_tier, bytes, KVA_MEM_DEVICE) &&
        arena_new(h, &h->host_tier, bytes / 2, KVA_MEM_HOST))
        return true;
    host_ops_close(device);
    return false;
}

void host_ops_close(struct kva_device *device)
{
    struct host_ops *h = of_device(device);
    arena_free(h, &h->device_tier);
    arena_free(h, &h->host_tier);
    for (struct kept_weight *weight = h->weights, *next; weight; weight = next) {
        next = weight->next;
        free(weight);
    }
    *h = (struct host_ops){0};
}

const char *host_ops_fault(struct kva_device *device)
{
    struct host_ops *h = of_device(device);
    const char *fault = h->fault;
    h->fault = NULL;
    if (kva_device_error(device, NULL) != KVA_OK)
        return "the device failed";
    return fault;
}

/* --- a call's arrays -------------------------------------------------------------------------- */

struct piece *host_place(struct arena *arena, void *host, size_t bytes, bool *ret_there)
{
    for (uint32_t i = 0; i < arena->count; i++) {
        struct piece *piece = &arena->pieces[i];
        if (piece->host == host && piece->bytes == bytes) {
            *ret_there = true;
            return piece;
        }
    }
    size_t at = kva_align_up(arena->used + GAP_BYTES, ALIGNMENT);
    if (arena->count == PIECES_MAX || at + bytes + GAP_BYTES > arena->size) {
        fprintf(stderr, "host_ops: a call of more than %zu bytes or %u arrays\n", arena->size,
                PIECES_MAX);
        exit(2);
    }
    memset(arena->image + arena->used, GAP_PATTERN, at + bytes + GAP_BYTES - arena->used);
    arena->used = at + bytes;
    struct piece *piece = &arena->pieces[arena->count++];
    *piece = (struct piece){.host = host, .at = at, .bytes = bytes};
    *ret_there = false;
    return piece;
}

void *host_put(struct arena *arena, const void *host, size_t bytes, bool out)
{
    bool there;
    if (!host)
        return NULL;
    struct piece *piece = host_place(arena, (void *)(uintptr_t)host, bytes, &there);
    piece->out |= out;
    if (!there)
        memcpy(arena->image + piece->at, host, bytes);
    return arena->memory + piece->at;
}

void *host_put_numbers(struct host_ops *h, const void *host, uint32_t rows, uint32_t cols,
                       uint32_t stride, enum kva_dtype dtype, bool out)
{
    struct arena *arena = &h->device_tier;
    size_t count = rows ? (size_t)(rows - 1) * stride + cols : 0;
    bool there;
    if (!host)
        return NULL;
    struct piece *piece =
        host_place(arena, (void *)(uintptr_t)host, count * kva_dtype_bytes(dtype), &there);
    piece->out |= out;
    if (!there) {
        piece->rows = rows;
        piece->cols = cols;
        piece->stride = stride;
        piece->dtype = dtype;
        piece->numbers = true;
        for (size_t i = 0; i < count; i++)
            format_store(arena->image + piece->at, i, ((const float *)host)[i], dtype);
    }
    return arena->memory + piece->at;
}

void *host_put_act(struct host_ops *h, const void *host, uint32_t rows, uint32_t cols,
                   uint32_t stride, bool out)
{
    return host_put_numbers(h, host, rows, cols, stride, h->act, out);
}

void *host_put_in(struct host_ops *h, const void *host, size_t bytes)
{
    return host_put(&h->device_tier, host, bytes, false);
}

void *host_put_out(struct host_ops *h, void *host, size_t bytes)
{
    return host_put(&h->device_tier, host, bytes, true);
}

struct kva_attend_scores host_put_scores(struct host_ops *h, struct kva_attend_scores scores,
                                         uint32_t heads)
{
    if (scores.data)
        scores.data = host_put_out(h, scores.data,
                                   (size_t)heads * scores.split_count * KVA_ATTEND_SPLIT_TOKENS *
                                       sizeof(float));
    return scores;
}

struct kva_weight host_put_weight(struct host_ops *h, const struct kva_weight *weight)
{
    size_t bytes = kva_weight_bytes(weight);
    struct kept_weight *kept = h->weights;
    if (!weight->data)
        return *weight;
    while (kept &&
           (kept->dtype != weight->dtype || kept->weight.rows != weight->rows ||
            kept->weight.cols != weight->cols || memcmp(kept->data, weight->data, bytes) != 0))
        kept = kept->next;
    if (kept)
        return kept->weight;
    kept = aligned_alloc(KVA_PACKED_ALIGN, kva_align_up(sizeof *kept + bytes, KVA_PACKED_ALIGN));
    *kept = (struct kept_weight){.next = h->weights, .dtype = weight->dtype};
    memcpy(kept->data, weight->data, bytes);
    h->weights = kept;
    if (kva_device_weight(h->device, kept->data, weight->dtype, weight->rows, weight->cols,
                          &kept->weight, NULL))
        h->fault = "a weight was refused";
    return kept->weight;
}

struct host_ops *host_begin(struct kva_device *device)
{
    struct host_ops *h = of_device(device);
    h->device_tier.used = h->device_tier.count = 0;
    h->host_tier.used = h->host_tier.count = 0;
    return h;
}

void host_send(struct host_ops *h)
{
    memcpy(h->device_tier.before, h->device_tier.image, h->device_tier.used);
    memcpy(h->host_tier.before, h->host_tier.image, h->host_tier.used);
    kva_device_copy(h->device, KVA_QUEUE_COMPUTE, h->device_tier.memory, h->device_tier.image,
                    h->device_tier.used);
}

enum kva_queue host_queue(struct host_ops *h)
{
    kva_device_sync(h->device, KVA_QUEUE_COMPUTE);
    return h->turns++ % 2 ? KVA_QUEUE_ASIDE : KVA_QUEUE_COMPUTE;
}

static void read_piece(const struct arena *arena, const struct piece *piece)
{
    const unsigned char *from = arena->image + piece->at;
    if (!piece->numbers) {
        memcpy(piece->host, from, piece->bytes);
        return;
    }
    float *to = piece->host;
    size_t size = kva_dtype_bytes(piece->dtype);
    for (size_t i = 0; i < piece->bytes / size; i++) {
        bool between = i % piece->stride >= piece->cols;
        /* What was not touched between rows stays what it was before it was rounded. */
        if (!between || memcmp(from + i * size, arena->before + piece->at + i * size, size) != 0)
            to[i] = format_fetch(from, i, piece->dtype);
    }
}

/* Outputs to the host; false: something else has changed. */
static bool read_arena(const struct arena *arena)
{
    size_t at = 0;
    for (uint32_t i = 0; i <= arena->count; i++) {
        const struct piece *piece = &arena->pieces[i];
        size_t end = i < arena->count ? piece->at : arena->used;
        if (memcmp(arena->image + at, arena->before + at, end - at) != 0)
            return false;
        at = end;
        if (i < arena->count && piece->out) {
            read_piece(arena, piece);
            at += piece->bytes;
        }
    }
    return true;
}

void host_end(struct host_ops *h)
{
    struct arena *arena = &h->device_tier;
    kva_device_sync(h->device, KVA_QUEUE_ASIDE);
    kva_device_copy(h->device, KVA_QUEUE_COMPUTE, arena->image, arena->memory, arena->used);
    kva_device_sync(h->device, KVA_QUEUE_COMPUTE);
    if (kva_device_error(h->device, NULL) == KVA_OK &&
        (!read_arena(arena) || !read_arena(&h->host_tier)))
        h->fault = "wrote outside its output";
}
