/* arena.h - a bounded bump allocator: everything allocated for one purpose is freed at once.
 *
 * Thread rule: one thread at a time; an arena may be handed from thread to thread with its owner.
 * Invariant: the bytes taken from the system never exceed `limit_bytes`. */
#ifndef KVA_BASE_ARENA_H
#define KVA_BASE_ARENA_H

#include "base/kva.h"

struct kva_arena_block;

struct kva_arena {
    struct kva_arena_block *head;
    size_t used_bytes;  /* handed out, with padding */
    size_t total_bytes; /* taken from the system */
    size_t limit_bytes;
};

void kva_arena_init(struct kva_arena *arena, size_t limit_bytes);

/* Frees everything; the arena may be used again. */
void kva_arena_finish(struct kva_arena *arena);

/* `bytes` of zeroed storage aligned for any type; NULL if the limit or the system refuses. */
void *kva_arena_alloc(struct kva_arena *arena, size_t bytes) KVA_MUST_CHECK;

/* count * size with overflow check. */
void *kva_arena_calloc(struct kva_arena *arena, size_t count, size_t size) KVA_MUST_CHECK;

/* A NUL-terminated copy of `length` bytes. */
char *kva_arena_strndup(struct kva_arena *arena, const char *text, size_t length) KVA_MUST_CHECK;

#endif
