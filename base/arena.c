/* arena.c - allocation from chunks, up to the arena's limit. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

struct kva_arena_block {
    struct kva_arena_block *next;
    size_t capacity;
    size_t used;
    alignas(max_align_t) unsigned char data[];
};

/* Small enough that a short request costs one block, large enough that a long one costs few. */
#define BLOCK_BYTES_MIN 4096

void kva_arena_init(struct kva_arena *arena, size_t limit_bytes)
{
    *arena = (struct kva_arena){.limit_bytes = limit_bytes};
}

void kva_arena_finish(struct kva_arena *arena)
{
    struct kva_arena_block *block = arena->head;
    while (block) {
        struct kva_arena_block *next = block->next;
        free(block);
        block = next;
    }
    kva_arena_init(arena, arena->limit_bytes);
}

static struct kva_arena_block *add_block(struct kva_arena *arena, size_t bytes)
{
    size_t room = arena->limit_bytes - arena->total_bytes;
    size_t want = kva_max_size(BLOCK_BYTES_MIN, kva_min_size(arena->total_bytes, 1u << 20));
    size_t total;
    if (!kva_add_size(kva_max_size(want, bytes), sizeof(struct kva_arena_block), &total))
        return NULL;
    if (total > room && !kva_add_size(bytes, sizeof(struct kva_arena_block), &total))
        return NULL;
    if (total > room)
        return NULL;
    struct kva_arena_block *block = calloc(1, total);
    if (!block)
        return NULL;
    block->capacity = total - sizeof(struct kva_arena_block);
    block->next = arena->head;
    arena->head = block;
    arena->total_bytes += total;
    return block;
}

void *kva_arena_alloc(struct kva_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    size_t padded = kva_align_up(bytes ? bytes : 1, alignof(max_align_t));
    struct kva_arena_block *block = arena->head;
    if (!block || block->capacity - block->used < padded) {
        block = add_block(arena, padded);
        if (!block)
            return NULL;
    }
    void *data = block->data + block->used;
    block->used += padded;
    arena->used_bytes += padded;
    return data;
}

void *kva_arena_calloc(struct kva_arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (!kva_mul_size(count, size, &bytes))
        return NULL;
    return kva_arena_alloc(arena, bytes);
}

char *kva_arena_strndup(struct kva_arena *arena, const char *text, size_t length)
{
    if (length == SIZE_MAX)
        return NULL;
    char *copy = kva_arena_alloc(arena, length + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}
