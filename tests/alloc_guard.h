/* alloc_guard.h - counts allocations while it is armed, to prove that a step makes none.
 *
 * Link with alloc_guard.c and the link arguments `alloc_guard_link_args` of tests/meson.build:
 * calls of malloc, calloc and realloc in our own objects then pass through here. */
#ifndef KVA_TESTS_ALLOC_GUARD_H
#define KVA_TESTS_ALLOC_GUARD_H

#include <stdbool.h>
#include <stdint.h>

void alloc_guard_arm(void);

/* Disarms; how many allocations there were since it was armed. */
uint64_t alloc_guard_disarm(void);

/* The n-th allocation from now fails (0: the next one); UINT64_MAX: none. Whether one failed since.
 */
void alloc_guard_fail_at(uint64_t n);
bool alloc_guard_failed(void);

#endif
