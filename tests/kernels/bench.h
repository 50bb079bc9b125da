/* bench.h - what the measurements of checkasm share. */
#ifndef KVA_TESTS_KERNELS_BENCH_H
#define KVA_TESTS_KERNELS_BENCH_H

#include "tests/kernels/checkasm.h"

/* Weights and caches of this size come from memory, not from a cache. */
#define COLD_BYTES (192u << 20)

struct bench {
    const struct kva_ops *ops;
    struct kva_device *device;
    uint32_t threads;
    double memory_gbs;
    double gflops;      /* products of fp32 */
    double half_gflops; /* of what the level multiplies bf16 weights and KV with */
    double byte_gops;   /* of what it multiplies bytes with */
    const char *level;
    const char *only; /* "linear" and the like; NULL: all */
};

typedef void bench_fn(void *opaque);

/* Seconds of one call: the best of the batches that fit in a run. */
double bench_seconds_of(uint32_t threads, bench_fn *run, void *opaque);

/* Print a line; `dtype`: of the weights or the KV. */
void bench_report(const struct bench *bench, const char *name, enum kva_dtype dtype, double seconds,
                  double bytes, double flops);

/* Whether something of this kind is wanted. */
bool bench_wanted(const struct bench *bench, const char *op);

/* Low-bit KV; `memory`: COLD_BYTES. */
void bench_lowbit(const struct bench *bench, unsigned char *memory, bool slow);

/* Kept rows; the same memory. */
void bench_keep(const struct bench *bench, unsigned char *memory, bool slow);

/* Rows chosen by partial keys; the same memory, which it overwrites. */
void bench_sketch(const struct bench *bench, unsigned char *memory, bool slow);

#endif
