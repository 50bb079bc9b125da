/* list.h - doubly linked lists whose links live in their elements.
 *
 * Thread rule: one thread at a time. An element is on at most one list per link. */
#ifndef KVA_BASE_LIST_H
#define KVA_BASE_LIST_H

#include "base/kva.h"

#include <stdbool.h>

/* Address of the structure of `type` whose `member` is at `pointer`. */
#define KVA_CONTAINER_OF(pointer, type, member)                                                    \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* A link, and a list's head: the head is linked to itself while the list is empty. */
struct kva_list {
    struct kva_list *next;
    struct kva_list *prev;
};

static inline void kva_list_init(struct kva_list *list)
{
    list->next = list;
    list->prev = list;
}

static inline bool kva_list_empty(const struct kva_list *list)
{
    return list->next == list;
}

static inline void kva_list_append(struct kva_list *list, struct kva_list *link)
{
    link->next = list;
    link->prev = list->prev;
    list->prev->next = link;
    list->prev = link;
}

static inline void kva_list_remove(struct kva_list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    kva_list_init(link);
}

/* Move everything of `from` to the end of `list`. */
static inline void kva_list_splice(struct kva_list *list, struct kva_list *from)
{
    if (kva_list_empty(from))
        return;
    from->next->prev = list->prev;
    list->prev->next = from->next;
    from->prev->next = list;
    list->prev = from->prev;
    kva_list_init(from);
}

#endif
