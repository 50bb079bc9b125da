/* slots.c - request ids: the call and the prompt that an id stands for. */
#include "server/internal.h"

#include <stdlib.h>

/* A request id: generation above, slot below. */
#define SLOT_BITS 24u
#define NO_SLOT   UINT32_MAX

enum kva_status kva_slots_init(struct kva_slots *slots, uint32_t max)
{
    *slots = (struct kva_slots){.max = kva_min_u32(max, 1u << SLOT_BITS), .first_free = NO_SLOT};
    return KVA_OK;
}

void kva_slots_finish(struct kva_slots *slots)
{
    free(slots->slots);
    slots->slots = NULL;
    slots->capacity = 0;
}

static bool grow(struct kva_slots *slots)
{
    uint32_t capacity = kva_min_u32(kva_max_u32(64, slots->capacity * 2), slots->max);
    if (capacity <= slots->capacity)
        return false;
    struct kva_slot *fresh = realloc(slots->slots, capacity * sizeof(*fresh));
    if (!fresh)
        return false;
    for (uint32_t i = slots->capacity; i < capacity; i++)
        fresh[i] = (struct kva_slot){.next_free = i + 1 < capacity ? i + 1 : slots->first_free};
    slots->first_free = slots->capacity;
    slots->slots = fresh;
    slots->capacity = capacity;
    return true;
}

uint64_t kva_slots_take(struct kva_slots *slots, struct kva_call *call, uint32_t prompt_index)
{
    if (slots->first_free == NO_SLOT && !grow(slots))
        return 0;
    uint32_t index = slots->first_free;
    struct kva_slot *slot = &slots->slots[index];
    slots->first_free = slot->next_free;
    slots->used++;
    slot->call = call;
    slot->prompt_index = prompt_index;
    slot->generation++;
    return slot->generation << SLOT_BITS | index;
}

struct kva_slot *kva_slots_find(struct kva_slots *slots, uint64_t id)
{
    uint32_t index = (uint32_t)(id & ((1u << SLOT_BITS) - 1));
    if (index >= slots->capacity)
        return NULL;
    struct kva_slot *slot = &slots->slots[index];
    return slot->call && slot->generation == id >> SLOT_BITS ? slot : NULL;
}

void kva_slots_give(struct kva_slots *slots, uint64_t id)
{
    struct kva_slot *slot = kva_slots_find(slots, id);
    if (!slot)
        return;
    slot->call = NULL;
    slot->next_free = slots->first_free;
    slots->first_free = (uint32_t)(id & ((1u << SLOT_BITS) - 1));
    slots->used--;
}
