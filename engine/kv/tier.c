#include "engine/kv/tier.h"

#include <stdlib.h>
#include <string.h>

/* Item sizes that can be in use at once: pages, layer blocks, and what the settings of requests
 * bring. */
#define CLASSES_MAX 64
#define NONE        UINT32_MAX

struct chunk {
    uint32_t next, prev; /* in its class' list of chunks with room, or in the free list */
    uint32_t taken;
    uint32_t class_index;
    uint32_t free_items; /* head of the list threaded through `links` */
};

struct item_class {
    size_t item_bytes;  /* 0: unused */
    uint32_t per_chunk; /* 0: an item takes several chunks */
    uint32_t with_room; /* head of the list of partly taken chunks */
    uint32_t chunks;    /* that belong to it */
};

struct kva_tier {
    struct kva_device *device;
    unsigned char *base;
    size_t chunk_bytes;
    uint32_t chunk_count;
    uint32_t used_chunks;
    uint32_t free_chunks; /* list head */
    uint32_t links_per_chunk;
    struct chunk *chunks;
    uint32_t *links; /* [chunk_count][links_per_chunk]: next free item within a chunk; never in the
                        items themselves, which may be memory that the host cannot touch */
    struct item_class classes[CLASSES_MAX];
};

/* Items are never smaller than this fraction of a chunk (a layer block of a model with many layers,
 * quantised). */
#define ITEMS_PER_CHUNK_MAX 4096u

static void list_push(struct kva_tier *tier, uint32_t *head, uint32_t index)
{
    tier->chunks[index].prev = NONE;
    tier->chunks[index].next = *head;
    if (*head != NONE)
        tier->chunks[*head].prev = index;
    *head = index;
}

static void list_remove(struct kva_tier *tier, uint32_t *head, uint32_t index)
{
    struct chunk *chunk = &tier->chunks[index];
    if (chunk->prev != NONE)
        tier->chunks[chunk->prev].next = chunk->next;
    else
        *head = chunk->next;
    if (chunk->next != NONE)
        tier->chunks[chunk->next].prev = chunk->prev;
}

static void free_chunk(struct kva_tier *tier, uint32_t index)
{
    tier->chunks[index].taken = 0;
    list_push(tier, &tier->free_chunks, index);
}

static void unfree_chunk(struct kva_tier *tier, uint32_t index, uint32_t class_index)
{
    list_remove(tier, &tier->free_chunks, index);
    tier->chunks[index].class_index = class_index;
    tier->chunks[index].taken = 1;
    tier->used_chunks++;
    tier->classes[class_index].chunks++;
}

enum kva_status kva_tier_create(struct kva_device *device, uint64_t budget_bytes,
                                size_t chunk_bytes, struct kva_tier **ret, struct kva_err *err)
{
    uint64_t count = budget_bytes / chunk_bytes;
    if (count == 0)
        return kva_fail(err, KVA_EINVAL,
                        "the device budget of %llu bytes is under one KV page of %zu bytes",
                        (unsigned long long)budget_bytes, chunk_bytes);
    if (count >= NONE)
        count = NONE - 1;
    struct kva_tier *tier = calloc(1, sizeof(*tier));
    if (!tier)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the device tier");
    tier->device = device;
    tier->chunk_bytes = chunk_bytes;
    tier->chunk_count = (uint32_t)count;
    tier->chunks = calloc(count, sizeof(*tier->chunks));
    tier->free_chunks = NONE;
    if (!tier->chunks) {
        kva_tier_destroy(tier);
        return kva_fail(err, KVA_ENOMEM, "out of memory for %llu KV chunks",
                        (unsigned long long)count);
    }
    for (uint32_t i = tier->chunk_count; i-- > 0;)
        free_chunk(tier, i);
    void *base;
    enum kva_status status =
        kva_device_alloc(device, KVA_MEM_DEVICE, (size_t)count * chunk_bytes, &base, err);
    if (status) {
        kva_tier_destroy(tier);
        return status;
    }
    tier->base = base;
    *ret = tier;
    return KVA_OK;
}

void kva_tier_destroy(struct kva_tier *tier)
{
    if (!tier)
        return;
    if (tier->base)
        kva_device_free(tier->device, KVA_MEM_DEVICE, tier->base,
                        (size_t)tier->chunk_count * tier->chunk_bytes);
    free(tier->chunks);
    free(tier->links);
    free(tier);
}

/* A larger item count per chunk than seen so far: the link table grows. Happens when a policy is
 * used for the first time, between steps. */
static bool make_links(struct kva_tier *tier, uint32_t per_chunk)
{
    if (per_chunk <= tier->links_per_chunk)
        return true;
    uint32_t *links = malloc((size_t)tier->chunk_count * per_chunk * sizeof(*links));
    if (!links)
        return false;
    for (size_t i = 0; tier->links && i < tier->chunk_count; i++)
        memcpy(links + i * per_chunk, tier->links + i * tier->links_per_chunk,
               tier->links_per_chunk * sizeof(*links));
    free(tier->links);
    tier->links = links;
    tier->links_per_chunk = per_chunk;
    return true;
}

/* 0: an item is larger than a chunk. */
static uint32_t items_per_chunk(const struct kva_tier *tier, size_t item_bytes)
{
    return (uint32_t)kva_min_size(tier->chunk_bytes / item_bytes, ITEMS_PER_CHUNK_MAX);
}

static uint32_t find_class(struct kva_tier *tier, size_t item_bytes)
{
    uint32_t vacant = NONE;
    for (uint32_t i = 0; i < CLASSES_MAX; i++) {
        if (tier->classes[i].item_bytes == item_bytes)
            return i;
        if (tier->classes[i].chunks == 0 &&
            (vacant == NONE || tier->classes[vacant].item_bytes > 0))
            vacant = i;
    }
    uint32_t per_chunk = items_per_chunk(tier, item_bytes);
    if (vacant == NONE || !make_links(tier, per_chunk))
        return NONE;
    tier->classes[vacant] = (struct item_class){item_bytes, per_chunk, NONE, 0};
    return vacant;
}

bool kva_tier_prepare(struct kva_tier *tier, size_t item_bytes)
{
    return find_class(tier, item_bytes) != NONE;
}

static bool open_chunk(struct kva_tier *tier, uint32_t class_index)
{
    uint32_t index = tier->free_chunks;
    if (index == NONE)
        return false;
    struct chunk *chunk = &tier->chunks[index];
    struct item_class *class = &tier->classes[class_index];
    unfree_chunk(tier, index, class_index);
    chunk->taken = 0;
    chunk->free_items = 0;
    uint32_t *links = tier->links + (size_t)index * tier->links_per_chunk;
    for (uint32_t i = 0; i < class->per_chunk; i++)
        links[i] = i + 1 < class->per_chunk ? i + 1 : NONE;
    list_push(tier, &class->with_room, index);
    return true;
}

/* Chunks that one item takes. */
static uint32_t span_of(const struct kva_tier *tier, size_t item_bytes)
{
    return (uint32_t)kva_div_up(item_bytes, tier->chunk_bytes);
}

/* Neighbouring chunks for a large item, from the far end, where they disturb the others least. */
static void *take_span(struct kva_tier *tier, uint32_t class_index)
{
    uint32_t span = span_of(tier, tier->classes[class_index].item_bytes), run = 0;
    for (uint32_t i = tier->chunk_count; i-- > 0;) {
        run = tier->chunks[i].taken == 0 ? run + 1 : 0;
        if (run < span)
            continue;
        for (uint32_t j = i; j < i + span; j++)
            unfree_chunk(tier, j, class_index);
        return tier->base + (size_t)i * tier->chunk_bytes;
    }
    return NULL;
}

static void give_span(struct kva_tier *tier, uint32_t first)
{
    struct item_class *class = &tier->classes[tier->chunks[first].class_index];
    uint32_t span = span_of(tier, class->item_bytes);
    for (uint32_t i = first; i < first + span; i++)
        free_chunk(tier, i);
    tier->used_chunks -= span;
    class->chunks -= span;
}

void *kva_tier_take(struct kva_tier *tier, size_t item_bytes)
{
    uint32_t class_index = find_class(tier, item_bytes);
    if (class_index == NONE)
        return NULL;
    struct item_class *class = &tier->classes[class_index];
    if (class->per_chunk == 0)
        return take_span(tier, class_index);
    if (class->with_room == NONE && !open_chunk(tier, class_index))
        return NULL;
    uint32_t index = class->with_room;
    struct chunk *chunk = &tier->chunks[index];
    uint32_t item = chunk->free_items;
    chunk->free_items = tier->links[(size_t)index * tier->links_per_chunk + item];
    chunk->taken++;
    if (chunk->free_items == NONE)
        list_remove(tier, &class->with_room, index);
    return tier->base + (size_t)index * tier->chunk_bytes + (size_t)item * item_bytes;
}

void kva_tier_give(struct kva_tier *tier, void *item, size_t item_bytes)
{
    if (!item)
        return;
    size_t offset = (size_t)((unsigned char *)item - tier->base);
    uint32_t index = (uint32_t)(offset / tier->chunk_bytes);
    struct chunk *chunk = &tier->chunks[index];
    struct item_class *class = &tier->classes[chunk->class_index];
    if (class->per_chunk == 0) {
        give_span(tier, index);
        return;
    }
    uint32_t number = (uint32_t)(offset % tier->chunk_bytes / item_bytes);
    bool was_full = chunk->free_items == NONE;
    tier->links[(size_t)index * tier->links_per_chunk + number] = chunk->free_items;
    chunk->free_items = number;
    if (was_full)
        list_push(tier, &class->with_room, index);
    if (--chunk->taken > 0)
        return;
    list_remove(tier, &class->with_room, index);
    class->chunks--;
    tier->used_chunks--;
    free_chunk(tier, index);
}

uint64_t kva_tier_footprint(const struct kva_tier *tier, size_t item_bytes, uint64_t count)
{
    uint64_t per_chunk = items_per_chunk(tier, item_bytes);
    if (per_chunk == 0)
        return count * span_of(tier, item_bytes) * tier->chunk_bytes;
    return (count + per_chunk - 1) / per_chunk * tier->chunk_bytes;
}

uint64_t kva_tier_budget_bytes(const struct kva_tier *tier)
{
    return (uint64_t)tier->chunk_count * tier->chunk_bytes;
}

uint64_t kva_tier_used_bytes(const struct kva_tier *tier)
{
    return (uint64_t)tier->used_chunks * tier->chunk_bytes;
}
