/* prefetch.h - how kernels ask memory for what they read later, where reading is what takes time. */
#ifndef KVA_KERNELS_CPU_SIMD_PREFETCH_H
#define KVA_KERNELS_CPU_SIMD_PREFETCH_H

#include <stdint.h>

/* A line is asked for twice, the second time when so many bytes behind it have been. */
#define KVA_PREFETCH_AGAIN_BYTES 2048u

/* Asks for the cache line at `at`, into the second-level cache, and again for the one that the
 * caller, who reads on and on, asked for KVA_PREFETCH_AGAIN_BYTES ago. A core that has too much
 * under way drops what it is asked for, more of it at the first-level cache than at the second, and
 * a line that nobody fetched costs more than many that are asked for in vain (docs/results/cpu.md,
 * "Kernels"). `at` need not be memory of ours. */
static inline __attribute__((always_inline)) void kva_prefetch_ahead(const void *at)
{
    __builtin_prefetch(at, 0, 2);
    __builtin_prefetch((const void *)((uintptr_t)at - KVA_PREFETCH_AGAIN_BYTES), 0, 2);
}

#endif
