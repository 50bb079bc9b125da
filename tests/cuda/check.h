/* check.h - what of a CUDA device is no operator's value: memory, queues, events and failures
 * (check_device.c), and steps as graphs (check_step.c). Operators are checked by
 * tests/kernels/checkasm, as on every device.
 *
 * The same program runs on a GPU (the real module) and without one (tests/cuda/simt): it knows only
 * device.h, ops.h and the module's path. */
#ifndef KVA_TESTS_CUDA_CHECK_H
#define KVA_TESTS_CUDA_CHECK_H

#include "kernels/ops.h"
#include "tests/cuda/mutations.h"

#include <math.h>
#include <stdbool.h>

struct check {
    const char *module_path;
    const struct simt_control *simt; /* NULL: a real GPU */
    struct kva_device *cpu;
    struct kva_device *gpu;
    enum kva_dtype act; /* of gpu */
    void *staging;      /* of gpu: pinned */
    size_t staging_bytes;
    void **kept; /* memory of weights, as long as the devices are open */
    size_t kept_count;
    uint64_t state; /* of the random numbers */
    bool quiet;     /* failures are expected */
    uint32_t passed, failed;
    const char *op;
};

/* An array of activations, the same numbers on both devices. */
struct acts {
    float *cpu; /* what the CPU's operators read and write */
    void *gpu;  /* in the activation format, or F32 */
    enum kva_dtype dtype;
    size_t count;
};

uint64_t check_random(struct check *check);
uint32_t check_below(struct check *check, uint32_t limit);
uint32_t check_between(struct check *check, uint32_t low, uint32_t high);
float check_normal(struct check *check);

/* Random numbers of about `size`. */
struct acts acts_new(struct check *check, enum kva_dtype dtype, size_t count, float size);
void acts_free(struct check *check, struct acts *acts);

/* Bytes to and from the GPU. */
void *gpu_new(struct check *check, const void *data, size_t bytes);
void gpu_free(struct check *check, void *data, size_t bytes);
void gpu_read(struct check *check, void *to, const void *from, size_t bytes);

/* A weight on both. */
struct both_weight {
    struct kva_weight cpu, gpu;
    void *data;
};
struct both_weight weight_new(struct check *check, enum kva_dtype dtype, uint32_t rows,
                              uint32_t cols, float size);
void weight_free(struct check *check, struct both_weight *weight);

/* Memory of a weight, which the devices may go on using: freed when they are closed. */
void keep(struct check *check, void *data);

/* Count a case. */
void check_same(struct check *check, const char *name, const void *got, const void *want,
                size_t bytes);
void check_that(struct check *check, const char *name, bool good);

void check_device(struct check *check);
void check_step(struct check *check);

#endif
