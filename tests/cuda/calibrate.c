/* calibrate.c - a calibration on the CUDA device against one on the CPU.
 *
 *     calibrate --module PATH MODEL...
 *
 * What comes from the device is rounded as its activations are; the sums over queries and keys, and
 * how much of what queries want is found, must agree to that. Nothing is rehearsed there.
 *
 * No test library: this runs on GPU machines that have none. */
#include "engine/calibrate/calibrate.h"
#include "engine/calibrate/eigen.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 150, WINDOWS = 3, STEP = 64, SKIPPED = 77 };

static int failures;

static void expect_ok(enum kva_status status, const struct kva_err *err, const char *what)
{
    if (status == KVA_OK)
        return;
    printf("FAILED %s: %s\n", what, err->message);
    exit(1);
}

/* `module` NULL: on the CPU. */
static struct kva_calibration *calibrated(const char *module, const char *path, enum kva_dtype act)
{
    struct kva_err err = {0};
    struct kva_model *model;
    struct kva_device *device;
    struct kva_engine *engine;
    struct kva_calibration *result;
    static uint32_t ids[WINDOWS * WINDOW];
    const struct kva_model_open_params open = {.path = path};
    const struct kva_device_params of_device = {.act = act, .cpu_level_mask = KVA_CPU_REF};
    expect_ok(kva_model_open(&open, &model, &err), &err, path);
    expect_ok(module ? kva_device_open_cuda(module, &of_device, &device, &err)
                     : kva_device_open_cpu(&of_device, &device, &err),
              &err, "open");
    expect_ok(kva_eigen_check(device, &err), &err, "solver");
    const struct kva_model_engine_params of_engine = {.device = device,
                                                      .model = model,
                                                      .budget = {64ull << 20, 64ull << 20},
                                                      .sequences_max = 1,
                                                      .step_tokens_max = STEP,
                                                      .kv_dtype = KVA_F16};
    expect_ok(kva_model_engine_create(&of_engine, &engine, &err), &err, "engine");
    for (uint32_t i = 0; i < WINDOWS * WINDOW; i++)
        ids[i] = (i * 7919u + i / 13) % model->config.vocab_size;
    const struct kva_calibrate_params params = {.engine = engine,
                                                .device = device,
                                                .model = model,
                                                .ids = ids,
                                                .window_count = WINDOWS - 1,
                                                .look_count = 1,
                                                .window_tokens = WINDOW,
                                                .threads = 2};
    expect_ok(kva_calibrate(&params, &result, &err), &err, "calibrate");
    kva_model_engine_destroy(engine);
    kva_model_close(model);
    kva_device_close(device);
    return result;
}

static void expect_near(const char *what, double a, double b, double bound)
{
    if (fabs(a - b) <= bound)
        return;
    printf("FAILED %s: %g on the GPU, %g on the CPU, may differ by %g\n", what, a, b, bound);
    failures++;
}

static void compare(const struct kva_calibration *gpu, const struct kva_calibration *cpu,
                    double bound)
{
    const struct kva_gram_shape *s = &cpu->gram->shape;
    const size_t d = s->head_dim, heads = (size_t)s->layers * s->kv_heads;
    for (size_t head = 0; head < heads; head++) {
        const double *gpu_q = gpu->gram->q + head * d * d, *cpu_q = cpu->gram->q + head * d * d;
        const double *gpu_k = gpu->gram->k + head * d * d, *cpu_k = cpu->gram->k + head * d * d;
        double q = 0, k = 0;
        for (size_t i = 0; i < d; i++) {
            q += cpu_q[i * d + i];
            k += cpu_k[i * d + i];
        }
        for (size_t i = 0; i < d * d; i++) {
            expect_near("sum of queries", gpu_q[i], cpu_q[i], bound * q);
            expect_near("sum of keys", gpu_k[i], cpu_k[i], bound * k);
        }
    }
    const enum kva_look_basis basis = KVA_LOOK_FIRST;
    expect_near("found", kva_calibration_recall(gpu, basis, KVA_LOOK_OWN, KVA_LOOK_AWAY, 0),
                kva_calibration_recall(cpu, basis, KVA_LOOK_OWN, KVA_LOOK_AWAY, 0), 0.1);
    for (uint32_t i = 1; i < cpu->layer_count; i++) {
        const struct kva_look_layer *a = &gpu->layers[i], *b = &cpu->layers[i];
        expect_near("cosine of inputs", a->input / (double)a->rows, b->input / (double)b->rows,
                    bound);
        expect_near("cosine of attention", a->attention / (double)a->rows,
                    b->attention / (double)b->rows, 4 * bound);
    }
    if (!isnan(kva_calibration_recall(gpu, basis, KVA_LOOK_REHEARSED, KVA_LOOK_AWAY, 0))) {
        printf("FAILED something was rehearsed on a device that the host cannot read\n");
        failures++;
    }
}

int main(int argc, char **argv)
{
    struct kva_err err = {0};
    if (argc < 4 || strcmp(argv[1], "--module") != 0) {
        fprintf(stderr, "usage: calibrate --module PATH MODEL...\n");
        return 2;
    }
    if (kva_eigen_check(NULL, &err) != KVA_OK) {
        printf("SKIPPED %s\n", err.message);
        return SKIPPED;
    }
    for (int i = 3; i < argc; i++) {
        struct kva_calibration *cpu = calibrated(NULL, argv[i], KVA_F32);
        static const enum kva_dtype acts[] = {KVA_F32, KVA_BF16};
        for (size_t j = 0; j < KVA_COUNT_OF(acts); j++) {
            struct kva_calibration *gpu = calibrated(argv[2], argv[i], acts[j]);
            compare(gpu, cpu, acts[j] == KVA_F32 ? 1e-3 : 3e-2);
            kva_calibration_destroy(gpu);
            printf("%s, %s: %s\n", argv[i], kva_dtype_name(acts[j]), failures ? "FAILED" : "ok");
        }
        kva_calibration_destroy(cpu);
    }
    return failures > 0;
}
