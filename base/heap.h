/* heap.h - a binary heap of nodes that live in their elements: smallest (key, seq) on top.
 *
 * The array of pointers is allocated ahead, so that a step allocates nothing; every node knows its
 * place, so that any of them can be taken out in O(log n). Thread rule: one thread at a time. */
#ifndef KVA_BASE_HEAP_H
#define KVA_BASE_HEAP_H

#include "base/err.h"

#include <stdbool.h>

struct kva_heap_node {
    int64_t key;
    uint64_t seq;   /* breaks ties; unique within a heap */
    uint32_t index; /* in the heap's array */
};

struct kva_heap {
    struct kva_heap_node **nodes;
    uint32_t count;
    uint32_t capacity;
};

/* Room for `capacity` nodes. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_heap_init(struct kva_heap *heap, uint32_t capacity);
void kva_heap_finish(struct kva_heap *heap);

/* Room for `capacity` nodes in all; a zeroed heap may grow too. Fails: KVA_ENOMEM, as it was. */
KVA_MUST_CHECK enum kva_status kva_heap_reserve(struct kva_heap *heap, uint32_t capacity);

/* The caller sees to it that count < capacity. */
void kva_heap_push(struct kva_heap *heap, struct kva_heap_node *node);
void kva_heap_remove(struct kva_heap *heap, struct kva_heap_node *node);

/* NULL if the heap is empty. */
static inline struct kva_heap_node *kva_heap_peek(const struct kva_heap *heap)
{
    return heap->count > 0 ? heap->nodes[0] : NULL;
}

static inline bool kva_heap_before(const struct kva_heap_node *a, const struct kva_heap_node *b)
{
    return a->key != b->key ? a->key < b->key : a->seq < b->seq;
}

#endif
