/* tier.c - chunks, items in chunks, and items that bridge them. */
#include "engine/kv/store/tier.h"

#include <stdlib.h>
#include <string.h>

/* Item sizes that there is room for at first: pages, layer blocks, and what the settings of requests
 * bring. No more of them own chunks at once than there are chunks. */
#define CLASSES_FIRST 64
#define NONE          UINT32_MAX

/* Neighbouring chunks of one class form a run, whose items lie one behind the other from the run's
 * first chunk on, across the chunks' borders. An item belongs to the chunk in which it begins; one
 * that ends in the next chunk bridges them, and can be taken while both are of the same run. */
struct chunk {
    uint32_t next, prev; /* in its class' list of chunks with room */
    uint32_t taken;      /* items that overlap it; 0: the chunk is free */
    uint32_t class_index;
    uint32_t run;        /* the run's first chunk, be it still of the run or not */
    uint32_t free_items; /* head of the list threaded through `links`, of items within the chunk */
    bool has_room;       /* is in the list */
    bool bridged;        /* its last item is taken and ends in the next chunk */
};

struct item_class {
    size_t item_bytes;  /* 0: unused */
    uint32_t per_chunk; /* 0: an item takes several chunks */
    bool bridges;       /* chunks are no multiple of it */
    uint32_t with_room; /* head of the list */
    uint32_t chunks;    /* that belong to it */
    uint32_t opened;    /* the chunk that was opened last */
};

struct kva_tier {
    struct kva_device *device;
    unsigned char *base;
    size_t chunk_bytes;
    uint32_t chunk_count;
    uint32_t used_chunks;
    uint32_t free_first, free_last; /* no chunk outside [free_first, free_last] is free */
    uint32_t links_per_chunk;
    struct chunk *chunks;
    uint32_t *links; /* [chunk_count][links_per_chunk]: next free item within a chunk; never in the
                        items themselves, which may be memory that the host cannot touch */
    struct item_class *classes; /* [class_count]: it moves where find_class makes it grow */
    uint32_t class_count;
};

/* Items are never smaller than this fraction of a chunk (a layer block of a model with many layers,
 * quantised). */
#define ITEMS_PER_CHUNK_MAX 4096u

static bool is_free(const struct kva_tier *tier, uint32_t index)
{
    return tier->chunks[index].taken == 0;
}

/* --- chunks with room ------------------------------------------------------------------------ */

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

/* Where the items that begin in a chunk lie. */
struct slots {
    size_t first; /* bytes from the tier's base */
    uint32_t within;
    bool bridge; /* one more, which ends in the next chunk */
};

static struct slots slots_of(const struct kva_tier *tier, uint32_t index)
{
    const struct chunk *chunk = &tier->chunks[index];
    const struct item_class *class = &tier->classes[chunk->class_index];
    size_t begin = (size_t)index * tier->chunk_bytes;
    if (!class->bridges)
        return (struct slots){begin, class->per_chunk, false};
    size_t run = (size_t)chunk->run * tier->chunk_bytes;
    size_t first = kva_div_up(begin - run, class->item_bytes) * class->item_bytes + run;
    size_t left = begin + tier->chunk_bytes > first ? begin + tier->chunk_bytes - first : 0;
    return (struct slots){first, (uint32_t)(left / class->item_bytes),
                          left % class->item_bytes != 0};
}

/* Whether the item that would end in the next chunk can be taken. */
static bool bridge_is_free(const struct kva_tier *tier, uint32_t index)
{
    const struct chunk *chunk = &tier->chunks[index], *next = chunk + 1;
    return !chunk->bridged && index + 1 < tier->chunk_count && !is_free(tier, index + 1) &&
           next->class_index == chunk->class_index && next->run == chunk->run &&
           slots_of(tier, index).bridge;
}

/* Put the chunk into its class' list, or take it out, as its state has changed. */
static void update_room(struct kva_tier *tier, uint32_t index)
{
    struct chunk *chunk = &tier->chunks[index];
    struct item_class *class = &tier->classes[chunk->class_index];
    bool room = !is_free(tier, index) && class->per_chunk > 0 &&
                (chunk->free_items != NONE || bridge_is_free(tier, index));
    if (room && !chunk->has_room)
        list_push(tier, &class->with_room, index);
    else if (!room && chunk->has_room)
        list_remove(tier, &class->with_room, index);
    chunk->has_room = room;
}

/* The chunk's state has changed, which its lower neighbour may notice. */
static void update_rooms(struct kva_tier *tier, uint32_t index)
{
    update_room(tier, index);
    if (index > 0 && !is_free(tier, index - 1))
        update_room(tier, index - 1);
}

/* --- free chunks ----------------------------------------------------------------------------- */

static void free_chunk(struct kva_tier *tier, uint32_t index)
{
    tier->classes[tier->chunks[index].class_index].chunks--;
    tier->used_chunks--;
    tier->free_first = kva_min_u32(tier->free_first, index);
    tier->free_last = kva_max_u32(tier->free_last, index);
    update_rooms(tier, index);
}

/* One item less overlaps the chunk. */
static void drop_item(struct kva_tier *tier, uint32_t index)
{
    if (--tier->chunks[index].taken == 0)
        free_chunk(tier, index);
    else
        update_rooms(tier, index);
}

static void unfree_chunk(struct kva_tier *tier, uint32_t index, uint32_t class_index)
{
    tier->chunks[index].class_index = class_index;
    tier->chunks[index].taken = 1;
    tier->chunks[index].bridged = false;
    tier->used_chunks++;
    tier->classes[class_index].chunks++;
}

static uint32_t lowest_free(struct kva_tier *tier)
{
    while (tier->free_first < tier->chunk_count && !is_free(tier, tier->free_first))
        tier->free_first++;
    return tier->free_first < tier->chunk_count ? tier->free_first : NONE;
}

static uint32_t highest_free(struct kva_tier *tier)
{
    while (tier->free_last > 0 && !is_free(tier, tier->free_last))
        tier->free_last--;
    return is_free(tier, tier->free_last) ? tier->free_last : NONE;
}

static bool can_follow(const struct kva_tier *tier, uint32_t class_index, uint32_t index)
{
    return index < tier->chunk_count && is_free(tier, index) && !is_free(tier, index - 1) &&
           tier->chunks[index - 1].class_index == class_index;
}

/* A free chunk for a class: items that bridge chunks want the one behind another of theirs; they
 * grow from the near end, all others from the far one. NONE: none is free. */
static uint32_t choose_chunk(struct kva_tier *tier, uint32_t class_index)
{
    const struct item_class *class = &tier->classes[class_index];
    if (!class->bridges)
        return highest_free(tier);
    if (class->chunks > 0 && can_follow(tier, class_index, class->opened + 1))
        return class->opened + 1;
    uint32_t lowest = lowest_free(tier);
    for (uint32_t i = kva_max_u32(lowest, 1); class->chunks > 0 && i <= tier->free_last; i++) {
        if (can_follow(tier, class_index, i))
            return i;
    }
    return lowest;
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
    tier->free_last = tier->chunk_count - 1;
    if (!tier->chunks) {
        kva_tier_destroy(tier);
        return kva_fail(err, KVA_ENOMEM, "out of memory for %llu KV chunks",
                        (unsigned long long)count);
    }
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
    free(tier->classes);
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

/* Within a chunk, bridging none; 0: an item is larger than a chunk. */
static uint32_t items_per_chunk(const struct kva_tier *tier, size_t item_bytes)
{
    return (uint32_t)kva_min_size(tier->chunk_bytes / item_bytes, ITEMS_PER_CHUNK_MAX);
}

/* Twice as many classes, for every one owns a chunk. The first that came; NONE: out of memory. */
static uint32_t add_classes(struct kva_tier *tier)
{
    uint32_t before = tier->class_count;
    uint32_t count = kva_max_u32(2 * before, CLASSES_FIRST);
    struct item_class *classes = realloc(tier->classes, count * sizeof(*classes));
    if (!classes)
        return NONE;
    memset(classes + before, 0, (count - before) * sizeof(*classes));
    tier->classes = classes;
    tier->class_count = count;
    return before;
}

static uint32_t find_class(struct kva_tier *tier, size_t item_bytes)
{
    uint32_t vacant = NONE;
    for (uint32_t i = 0; i < tier->class_count; i++) {
        if (tier->classes[i].item_bytes == item_bytes)
            return i;
        if (tier->classes[i].chunks == 0 &&
            (vacant == NONE || tier->classes[vacant].item_bytes > 0))
            vacant = i;
    }
    uint32_t per_chunk = items_per_chunk(tier, item_bytes);
    vacant = vacant == NONE ? add_classes(tier) : vacant;
    if (vacant == NONE || !make_links(tier, per_chunk + 1))
        return NONE;
    bool bridges =
        per_chunk > 0 && per_chunk < ITEMS_PER_CHUNK_MAX && tier->chunk_bytes % item_bytes != 0;
    tier->classes[vacant] = (struct item_class){
        .item_bytes = item_bytes, .per_chunk = per_chunk, .bridges = bridges, .with_room = NONE};
    return vacant;
}

bool kva_tier_prepare(struct kva_tier *tier, size_t item_bytes)
{
    return find_class(tier, item_bytes) != NONE;
}

/* A chunk in which nothing is taken yet; it is not free all the same. */
static uint32_t open_chunk(struct kva_tier *tier, uint32_t class_index)
{
    uint32_t index = choose_chunk(tier, class_index);
    if (index == NONE)
        return NONE;
    struct chunk *chunk = &tier->chunks[index];
    struct item_class *class = &tier->classes[class_index];
    bool follows = class->bridges && index > 0 && can_follow(tier, class_index, index);
    chunk->run = follows ? chunk[-1].run : index;
    unfree_chunk(tier, index, class_index);
    class->opened = index;
    uint32_t *links = tier->links + (size_t)index * tier->links_per_chunk;
    uint32_t within = slots_of(tier, index).within;
    for (uint32_t i = 0; i < within; i++)
        links[i] = i + 1 < within ? i + 1 : NONE;
    chunk->free_items = within > 0 ? 0 : NONE;
    update_rooms(tier, index);
    return index;
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
    uint32_t span = span_of(tier, tier->classes[tier->chunks[first].class_index].item_bytes);
    for (uint32_t i = first; i < first + span; i++)
        drop_item(tier, i);
}

/* An item that begins in a chunk with room. */
static void *take_from(struct kva_tier *tier, uint32_t index)
{
    struct chunk *chunk = &tier->chunks[index];
    const struct slots slots = slots_of(tier, index);
    uint32_t item = chunk->free_items;
    chunk->taken++;
    if (item != NONE) {
        chunk->free_items = tier->links[(size_t)index * tier->links_per_chunk + item];
    } else {
        item = slots.within;
        chunk->bridged = true;
        chunk[1].taken++;
    }
    update_room(tier, index);
    return tier->base + slots.first + (size_t)item * tier->classes[chunk->class_index].item_bytes;
}

void *kva_tier_alloc(struct kva_tier *tier, size_t item_bytes)
{
    uint32_t class_index = find_class(tier, item_bytes);
    if (class_index == NONE)
        return NULL;
    struct item_class *class = &tier->classes[class_index];
    if (class->per_chunk == 0)
        return take_span(tier, class_index);
    if (class->with_room != NONE)
        return take_from(tier, class->with_room);
    uint32_t opened = open_chunk(tier, class_index);
    if (opened == NONE)
        return NULL;
    /* The new chunk may have made room in the one before it. */
    void *item = take_from(tier, class->with_room);
    drop_item(tier, opened);
    return item;
}

void kva_tier_free(struct kva_tier *tier, void *item, size_t item_bytes)
{
    if (!item)
        return;
    size_t offset = (size_t)((unsigned char *)item - tier->base);
    uint32_t index = (uint32_t)(offset / tier->chunk_bytes);
    struct chunk *chunk = &tier->chunks[index];
    if (tier->classes[chunk->class_index].per_chunk == 0) {
        give_span(tier, index);
        return;
    }
    const struct slots slots = slots_of(tier, index);
    uint32_t number = (uint32_t)((offset - slots.first) / item_bytes);
    if (number == slots.within) {
        chunk->bridged = false;
        drop_item(tier, index + 1);
    } else {
        tier->links[(size_t)index * tier->links_per_chunk + number] = chunk->free_items;
        chunk->free_items = number;
    }
    drop_item(tier, index);
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
