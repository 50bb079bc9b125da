/* bench.h - how bench_cuda measures: memory of random data, and the time of a call. */
#ifndef KVA_TESTS_CUDA_BENCH_H
#define KVA_TESTS_CUDA_BENCH_H

#include "kernels/ops.h"

#include <stdbool.h>

struct bench {
    struct kva_device *device;
    const struct kva_ops *ops;
    bool small;
    bool once;               /* for a profiler: one call of each operator, no figures */
    uint32_t lowbit_tokens;  /* of one sequence over low bits, and nothing else; 0: all */
    double copy_bytes_per_s; /* read and written */
    double flops_per_s;
};

/* Memory of a tier; the program ends where there is none. */
void *bench_take(struct bench *bench, enum kva_mem mem, size_t bytes);
void bench_give(struct bench *bench, enum kva_mem mem, void *data, size_t bytes);

/* Random bf16 numbers between -2 and 2 over all of it: a repeated random piece. */
void *bench_take_random(struct bench *bench, size_t bytes);

/* data[bytes] from the program's memory to the device, done when it returns. */
void bench_put(struct bench *bench, void *to, const void *data, size_t bytes);

/* Puts call number `call` into a queue. */
typedef void bench_fn(struct bench *bench, const void *opaque, uint32_t call);

/* Seconds of one call, the best of a few batches. */
double bench_seconds(struct bench *bench, enum kva_queue queue, bench_fn *run, const void *opaque);

/* --- bench_attend.c: what they print ---------------------------------------------------------- */

void bench_attend(struct bench *bench);
void bench_mass(struct bench *bench);
void bench_lowbit(struct bench *bench);

/* --- bench_kept.c ------------------------------------------------------------------------------ */

void bench_kept(struct bench *bench);

#endif
