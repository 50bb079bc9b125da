/* tickets.c - request ids: the call and the prompt that an id stands for. */
#include "server/internal.h"

#include <stdlib.h>

/* A request id: generation above, ticket below. */
#define TICKET_BITS 24u
#define NO_TICKET   UINT32_MAX

enum kva_status kva_tickets_init(struct kva_tickets *tickets, uint32_t max)
{
    *tickets =
        (struct kva_tickets){.max = kva_min_u32(max, 1u << TICKET_BITS), .first_free = NO_TICKET};
    return KVA_OK;
}

void kva_tickets_finish(struct kva_tickets *tickets)
{
    free(tickets->tickets);
    tickets->tickets = NULL;
    tickets->capacity = 0;
}

static bool grow(struct kva_tickets *tickets)
{
    uint32_t capacity = kva_min_u32(kva_max_u32(64, tickets->capacity * 2), tickets->max);
    if (capacity <= tickets->capacity)
        return false;
    struct kva_ticket *fresh = realloc(tickets->tickets, capacity * sizeof(*fresh));
    if (!fresh)
        return false;
    for (uint32_t i = tickets->capacity; i < capacity; i++)
        fresh[i] = (struct kva_ticket){.next_free = i + 1 < capacity ? i + 1 : tickets->first_free};
    tickets->first_free = tickets->capacity;
    tickets->tickets = fresh;
    tickets->capacity = capacity;
    return true;
}

uint64_t kva_tickets_take(struct kva_tickets *tickets, struct kva_call *call, uint32_t prompt_index)
{
    if (tickets->first_free == NO_TICKET && !grow(tickets))
        return 0;
    uint32_t index = tickets->first_free;
    struct kva_ticket *ticket = &tickets->tickets[index];
    tickets->first_free = ticket->next_free;
    tickets->used++;
    ticket->call = call;
    ticket->prompt_index = prompt_index;
    ticket->generation++;
    return ticket->generation << TICKET_BITS | index;
}

struct kva_ticket *kva_tickets_find(struct kva_tickets *tickets, uint64_t id)
{
    uint32_t index = (uint32_t)(id & ((1u << TICKET_BITS) - 1));
    if (index >= tickets->capacity)
        return NULL;
    struct kva_ticket *ticket = &tickets->tickets[index];
    return ticket->call && ticket->generation == id >> TICKET_BITS ? ticket : NULL;
}

void kva_tickets_give(struct kva_tickets *tickets, uint64_t id)
{
    struct kva_ticket *ticket = kva_tickets_find(tickets, id);
    if (!ticket)
        return;
    ticket->call = NULL;
    ticket->next_free = tickets->first_free;
    tickets->first_free = (uint32_t)(id & ((1u << TICKET_BITS) - 1));
    tickets->used--;
}
