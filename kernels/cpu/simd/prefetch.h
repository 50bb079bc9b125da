/* prefetch.h - how kernels ask memory for what they read later, where reading is what takes time. */
#ifndef KVA_KERNELS_CPU_SIMD_PREFETCH_H
#define KVA_KERNELS_CPU_SIMD_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>

/* A line is asked for again when so many bytes behind it have been. */
#define KVA_PREFETCH_AGAIN_BYTES 2048u

/* Whether lines are best asked for into the first-level cache: on a Zen 5 and later. Constant: set
 * before main (levels.c). */
extern bool kva_prefetch_near;

/* Asks for the cache line at `at`, and again for those that the caller, who reads on and on, asked
 * for KVA_PREFETCH_AGAIN_BYTES ago. A core that has too much under way drops what it is asked for,
 * and a line that nobody fetched costs more than many that are asked for in vain. Most cores drop
 * more of it at the first-level cache than at the second: there it is the second, twice; on a Zen 5
 * the first twice, and then the second (docs/results/cpu.md, "Asked for twice"). `at` need not be
 * memory of ours. */
static inline __attribute__((always_inline)) void kva_prefetch_ahead(const void *at)
{
    const uintptr_t line = (uintptr_t)at;
    if (kva_prefetch_near) {
        __builtin_prefetch(at, 0, 3);
        __builtin_prefetch((const void *)(line - KVA_PREFETCH_AGAIN_BYTES), 0, 3);
        __builtin_prefetch((const void *)(line - 2 * KVA_PREFETCH_AGAIN_BYTES), 0, 2);
    } else {
        __builtin_prefetch(at, 0, 2);
        __builtin_prefetch((const void *)(line - KVA_PREFETCH_AGAIN_BYTES), 0, 2);
    }
}

#endif
