/* alloc_guard.h - counts the allocations of our own objects, to prove that a step makes none, and
 * lets them fail, to prove that whoever made one lives with it.
 *
 * Link with the dependency `alloc_guard` and the arguments `alloc_guard_link_args` of
 * tests/meson.build: the linker then sends malloc, calloc, realloc and strdup of what it links
 * statically here (--wrap). Shared libraries are not seen; those that take an allocator by hooks
 * are given alloc_guard_malloc.
 *
 * Thread rule: any thread allocates; one sets. */
#ifndef KVA_TESTS_ALLOC_GUARD_H
#define KVA_TESTS_ALLOC_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void alloc_guard_arm(void);

/* Disarms; how many allocations there were since it was armed. */
uint64_t alloc_guard_disarm(void);

/* One allocation fails, the n-th from now (0: the next one): code that goes on after it must not
 * be saved by a second failure. */
void alloc_guard_fail_at(uint64_t n);

/* The n-th and all that follow it fail. */
void alloc_guard_fail_from(uint64_t n);

/* No allocation fails any more. Returns how many did since one of the two above. */
uint64_t alloc_guard_fail_none(void);

/* Only allocations of threads of which `concerns` says so are counted and fail. NULL: of all.
 * Called before the other threads begin. */
void alloc_guard_only(bool (*concerns)(void));

/* What a wrapper asks, those of a test's own as well: whether this allocation fails. */
bool alloc_guard_refuse(void);

void *alloc_guard_malloc(size_t size);

#endif
