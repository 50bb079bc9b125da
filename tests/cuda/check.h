/* check.h - the CUDA device against the CPU's reference kernels: every operator, every activation
 * format, shapes of real models and edges.
 *
 * The same program runs on a GPU (the real module) and without one (tests/cuda/simt): it knows only
 * device.h, ops.h and the module's path. Inputs are rounded to the activation format first, so both
 * devices see the same numbers; a bound is what rounding the result, and sums in another order, may
 * cost. What ops.h promises in bits is compared in bits. */
#ifndef KVA_TESTS_CUDA_CHECK_H
#define KVA_TESTS_CUDA_CHECK_H

#include "kernels/ops.h"

#include <math.h>
#include <stdbool.h>

/* Damage that a simulated module can be told to do; see simt/simt.h. */
struct simt_control {
    void (*set_seed)(uint64_t seed);
    void (*set_mutation)(int mutation);
    void (*fail)(uint32_t code);
    void (*fail_captures)(int fail);
    const uint64_t *counts;
    int mutation_count;
    const char *const *mutation_names;
};

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
    bool large;     /* shapes that take a GPU */
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

/* `x` rounded to a format. */
float check_round(float x, enum kva_dtype dtype);
void check_store(void *to, size_t index, float x, enum kva_dtype dtype);
float check_fetch(const void *from, size_t index, enum kva_dtype dtype);

/* The relative error of one rounding to a format. */
double check_unit(enum kva_dtype dtype);

/* Random numbers of about `size`; and as they are on the GPU now. */
struct acts acts_new(struct check *check, enum kva_dtype dtype, size_t count, float size);
void acts_free(struct check *check, struct acts *acts);
float *acts_read(struct check *check, const struct acts *acts); /* to be freed */

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

/* Count a case: good unless an element is further from `want` than its bound; bound_of(i) =
 * relative * |want[i]| + absolute * magnitude (magnitude NULL: 1). */
void check_close(struct check *check, const char *name, const float *got, const float *want,
                 const float *magnitude, size_t count, double relative, double absolute);
void check_same(struct check *check, const char *name, const void *got, const void *want,
                size_t bytes);
void check_that(struct check *check, const char *name, bool good);

void check_device(struct check *check);
void check_rows(struct check *check);
void check_linear(struct check *check);
void check_attend(struct check *check);
void check_lowbit(struct check *check);
void check_shortlist(struct check *check);
void check_step(struct check *check);

#endif
