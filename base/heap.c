/* heap.c - moving nodes up and down. */
#include "base/heap.h"

#include <stdlib.h>

enum kva_status kva_heap_init(struct kva_heap *heap, uint32_t capacity)
{
    struct kva_heap_node **nodes = calloc(capacity ? capacity : 1, sizeof(struct kva_heap_node *));
    if (!nodes)
        return KVA_ENOMEM;
    *heap = (struct kva_heap){.nodes = nodes, .capacity = capacity};
    return KVA_OK;
}

void kva_heap_finish(struct kva_heap *heap)
{
    free(heap->nodes);
    *heap = (struct kva_heap){0};
}

enum kva_status kva_heap_reserve(struct kva_heap *heap, uint32_t capacity)
{
    if (capacity <= heap->capacity)
        return KVA_OK;
    uint32_t doubled = heap->capacity > UINT32_MAX / 2 ? capacity : 2 * heap->capacity;
    uint32_t room = kva_max_u32(capacity, doubled);
    struct kva_heap_node **nodes = realloc(heap->nodes, room * sizeof(struct kva_heap_node *));
    if (!nodes)
        return KVA_ENOMEM;
    heap->nodes = nodes;
    heap->capacity = room;
    return KVA_OK;
}

static void put(struct kva_heap *heap, uint32_t index, struct kva_heap_node *node)
{
    heap->nodes[index] = node;
    node->index = index;
}

static void sift_up(struct kva_heap *heap, uint32_t index, struct kva_heap_node *node)
{
    while (index > 0) {
        uint32_t parent = (index - 1) / 2;
        if (!kva_heap_before(node, heap->nodes[parent]))
            break;
        put(heap, index, heap->nodes[parent]);
        index = parent;
    }
    put(heap, index, node);
}

static void sift_down(struct kva_heap *heap, uint32_t index, struct kva_heap_node *node)
{
    for (;;) {
        uint32_t child = 2 * index + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && kva_heap_before(heap->nodes[child + 1], heap->nodes[child]))
            child++;
        if (!kva_heap_before(heap->nodes[child], node))
            break;
        put(heap, index, heap->nodes[child]);
        index = child;
    }
    put(heap, index, node);
}

void kva_heap_push(struct kva_heap *heap, struct kva_heap_node *node)
{
    heap->count++;
    sift_up(heap, heap->count - 1, node);
}

void kva_heap_remove(struct kva_heap *heap, struct kva_heap_node *node)
{
    uint32_t index = node->index;
    heap->count--;
    struct kva_heap_node *last = heap->nodes[heap->count];
    if (last == node)
        return;
    if (index > 0 && kva_heap_before(last, heap->nodes[(index - 1) / 2]))
        sift_up(heap, index, last);
    else
        sift_down(heap, index, last);
}
