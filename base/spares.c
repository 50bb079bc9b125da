/* spares.c - see spares.h. */
#include "base/spares.h"

#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size)   ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

#define KEPT_MIN ((size_t)64 << 10)

/* Before a block's memory. */
struct block {
    struct kva_list link;
    size_t size;
};

#define HEAD_BYTES ((size_t)KVA_CACHE_LINE)
_Static_assert(sizeof(struct block) <= HEAD_BYTES, "a block's head fits before its memory");

static struct block *block_at(struct kva_list *link)
{
    return KVA_CONTAINER_OF(link, struct block, link);
}

static void *memory_of(struct block *block)
{
    return (char *)block + HEAD_BYTES;
}

void kva_spares_init(struct kva_spares *spares, size_t bytes_max)
{
    *spares = (struct kva_spares){.bytes_max = bytes_max};
    pthread_mutex_init(&spares->lock, NULL);
    kva_list_init(&spares->blocks);
}

/* It is no spare any more. */
static void take_out(struct kva_spares *spares, struct block *block)
{
    kva_list_remove(&block->link);
    spares->bytes -= block->size;
    ASAN_UNPOISON_MEMORY_REGION(memory_of(block), block->size);
}

/* The oldest ones go until so many bytes are left at most. */
static void shrink(struct kva_spares *spares, size_t bytes)
{
    while (spares->bytes > bytes) {
        struct block *oldest = block_at(spares->blocks.next);
        take_out(spares, oldest);
        free(oldest);
    }
}

void kva_spares_finish(struct kva_spares *spares)
{
    shrink(spares, 0);
    pthread_mutex_destroy(&spares->lock);
}

void *kva_spares_take(struct kva_spares *spares, size_t size)
{
    struct block *found = NULL;
    if (size > SIZE_MAX - 2 * HEAD_BYTES)
        return NULL;
    size = kva_align_up(size, KVA_CACHE_LINE);
    pthread_mutex_lock(&spares->lock);
    for (struct kva_list *at = spares->blocks.prev; at != &spares->blocks && !found;
         at = at->prev) {
        struct block *block = block_at(at);
        if (block->size >= size && block->size / 2 <= size)
            found = block;
    }
    if (found)
        take_out(spares, found);
    pthread_mutex_unlock(&spares->lock);
    if (found)
        return memory_of(found);
    struct block *block = aligned_alloc(KVA_CACHE_LINE, HEAD_BYTES + size);
    if (!block)
        return NULL;
    *block = (struct block){.size = size};
    return memory_of(block);
}

void kva_spares_give(struct kva_spares *spares, void *memory)
{
    if (!memory)
        return;
    struct block *block = (struct block *)(void *)((char *)memory - HEAD_BYTES);
    if (block->size < KEPT_MIN || block->size > spares->bytes_max) {
        free(block);
        return;
    }
    pthread_mutex_lock(&spares->lock);
    shrink(spares, spares->bytes_max - block->size);
    kva_list_append(&spares->blocks, &block->link);
    spares->bytes += block->size;
    ASAN_POISON_MEMORY_REGION(memory, block->size);
    pthread_mutex_unlock(&spares->lock);
}
