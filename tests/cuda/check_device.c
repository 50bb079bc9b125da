/* Memory, copies, queues and events of the CUDA device. */
#include "tests/cuda/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 24
#define DIM   64u
#define ROWS  16u

/* A pipeline whose every link is an event: the copy queue brings rows in, compute gathers them, the
 * copy queue takes the result out, and buffers are used again as soon as events allow. */
static void check_pipeline(struct check *check)
{
    struct kva_device *gpu = check->gpu;
    struct kva_err err;
    size_t row = DIM * kva_dtype_bytes(check->act), bytes = ROWS * row;
    unsigned char *host, *back, *in[2], *out[2];
    struct kva_event *brought[2], *gathered[2], *taken[2];
    uint32_t order[STEPS][ROWS];
    bool good = kva_device_alloc(gpu, KVA_MEM_HOST, STEPS * bytes, (void **)&host, &err) == 0 &&
                kva_device_alloc(gpu, KVA_MEM_HOST, STEPS * bytes, (void **)&back, &err) == 0;
    for (int i = 0; i < 2; i++)
        good = good && kva_device_alloc(gpu, KVA_MEM_DEVICE, bytes, (void **)&in[i], &err) == 0 &&
               kva_device_alloc(gpu, KVA_MEM_DEVICE, bytes, (void **)&out[i], &err) == 0 &&
               kva_event_create(gpu, &brought[i], &err) == 0 &&
               kva_event_create(gpu, &gathered[i], &err) == 0 &&
               kva_event_create(gpu, &taken[i], &err) == 0;
    if (!good) {
        check_that(check, "a pipeline's memory", false);
        return;
    }
    for (size_t i = 0; i < STEPS * bytes; i++)
        host[i] = (unsigned char)check_random(check);
    for (uint32_t step = 0; step < STEPS; step++) {
        int side = step % 2;
        kva_event_wait(gathered[side], KVA_QUEUE_COPY);
        kva_device_copy(gpu, KVA_QUEUE_COPY, in[side], host + step * bytes, bytes);
        kva_event_record(brought[side], KVA_QUEUE_COPY);
        kva_event_wait(brought[side], KVA_QUEUE_COMPUTE);
        kva_event_wait(taken[side], KVA_QUEUE_COMPUTE);
        for (uint32_t i = 0; i < ROWS; i++)
            order[step][i] = check_below(check, ROWS);
        const struct kva_gather_args args = {
            .out = out[side], .x = in[side], .rows = order[step], .count = ROWS, .dim = DIM};
        kva_device_ops(gpu)->gather(gpu, &args);
        kva_event_record(gathered[side], KVA_QUEUE_COMPUTE);
        kva_event_wait(gathered[side], KVA_QUEUE_COPY);
        kva_device_copy(gpu, KVA_QUEUE_COPY, back + step * bytes, out[side], bytes);
        kva_event_record(taken[side], KVA_QUEUE_COPY);
    }
    kva_event_sync(taken[0]);
    kva_event_sync(taken[1]);
    check_that(check, "an event that was waited for is done",
               kva_event_done(taken[0]) && kva_event_done(taken[1]));
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < ROWS; i++)
            check_same(check, "a row through the pipeline", back + step * bytes + i * row,
                       host + step * bytes + order[step][i] * row, row);
    }
    for (int i = 0; i < 2; i++) {
        kva_device_free(gpu, KVA_MEM_DEVICE, in[i], bytes);
        kva_device_free(gpu, KVA_MEM_DEVICE, out[i], bytes);
        kva_event_destroy(brought[i]);
        kva_event_destroy(gathered[i]);
        kva_event_destroy(taken[i]);
    }
    kva_device_free(gpu, KVA_MEM_HOST, host, STEPS * bytes);
    kva_device_free(gpu, KVA_MEM_HOST, back, STEPS * bytes);
}

/* Fresh memory of both tiers is zero, for both queues. */
static void check_memory(struct check *check)
{
    struct kva_err err;
    size_t bytes = 100000;
    unsigned char *host, *device, zero[1000] = {0};
    struct kva_event *event;
    bool good = true;
    for (int i = 0; i < 8; i++) {
        if (kva_device_alloc(check->gpu, KVA_MEM_HOST, bytes, (void **)&host, &err) ||
            kva_device_alloc(check->gpu, KVA_MEM_DEVICE, bytes, (void **)&device, &err)) {
            check_that(check, err.message, false);
            return;
        }
        good &= ((uintptr_t)host % 64 == 0) && ((uintptr_t)device % 64 == 0);
        good &= host[0] == 0 && host[bytes - 1] == 0;
        memset(host, 1, bytes);
        kva_device_copy(check->gpu, KVA_QUEUE_COPY, host, device, bytes);
        kva_device_sync(check->gpu, KVA_QUEUE_COPY);
        for (size_t at = 0; at < bytes; at += sizeof zero)
            good &= memcmp(host + at, zero, sizeof zero) == 0;
        memset(host, 1, bytes);
        kva_device_copy(check->gpu, KVA_QUEUE_COMPUTE, device, host, bytes);
        kva_device_sync(check->gpu, KVA_QUEUE_COMPUTE);
        kva_device_free(check->gpu, KVA_MEM_HOST, host, bytes);
        kva_device_free(check->gpu, KVA_MEM_DEVICE, device, bytes);
    }
    check_that(check, "fresh memory is zero", good);
    if (kva_event_create(check->gpu, &event, &err) == KVA_OK) {
        check_that(check, "an event never recorded is done", kva_event_done(event));
        kva_event_wait(event, KVA_QUEUE_COMPUTE);
        kva_event_destroy(event);
    }
    /* Another device, with a limit. */
    struct kva_device *small;
    const struct kva_device_params params = {.act = check->act, .gpu_bytes_max = 600ull << 20};
    void *data = NULL;
    if (kva_device_open_cuda(check->module_path, &params, &small, &err)) {
        check_that(check, err.message, false);
        return;
    }
    uint64_t left = kva_device_get_info(small)->free_bytes;
    check_that(check, "the limit is a limit", left < 600ull << 20);
    check_that(check, "more than the limit is refused",
               kva_device_alloc(small, KVA_MEM_DEVICE, left + 1, &data, &err) == KVA_ENOMEM &&
                   strstr(err.message, "in use") != NULL);
    check_that(check, "a refusal is no failure",
               kva_device_error(small, NULL) == KVA_OK &&
                   kva_device_alloc(small, KVA_MEM_DEVICE, 1000, &data, &err) == KVA_OK);
    kva_device_free(small, KVA_MEM_DEVICE, data, 1000);
    kva_device_close(small);
}

/* A driver refuses copies that lie in two pieces of pinned memory (kernels/cuda/pinned.cu): whole
 * mappings of more than one go to the device and back. */
static void check_borders(struct check *check)
{
    const size_t bytes = check->simt ? (size_t)20 << 20 : ((size_t)1 << 30) + ((size_t)4 << 20);
    struct kva_err err;
    unsigned char *host = NULL, *back = NULL, *device = NULL;
    if (kva_device_alloc(check->gpu, KVA_MEM_HOST, bytes, (void **)&host, &err) ||
        kva_device_alloc(check->gpu, KVA_MEM_HOST, bytes, (void **)&back, &err) ||
        kva_device_alloc(check->gpu, KVA_MEM_DEVICE, bytes, (void **)&device, &err)) {
        check_that(check, err.message, false);
    } else {
        for (size_t at = 0; at < bytes; at += 4096)
            memcpy(host + at, &at, sizeof at);
        kva_device_copy(check->gpu, KVA_QUEUE_COPY, device, host, bytes);
        kva_device_copy(check->gpu, KVA_QUEUE_COPY, back, device, bytes);
        kva_device_sync(check->gpu, KVA_QUEUE_COPY);
        check_that(check, "copies of more than is pinned at once",
                   memcmp(host, back, bytes) == 0 && kva_device_error(check->gpu, NULL) == KVA_OK);
    }
    kva_device_free(check->gpu, KVA_MEM_HOST, host, bytes);
    kva_device_free(check->gpu, KVA_MEM_HOST, back, bytes);
    kva_device_free(check->gpu, KVA_MEM_DEVICE, device, bytes);
}

/* Memory goes from one owner to the next while the queues still work for the one before: again and
 * again, since what a queue has left to do then is the simulation's choice. */
static void check_spare(struct check *check)
{
    enum { BYTES = 70000, TIMES = 60 };
    struct kva_err err;
    unsigned char *source = NULL, *back = NULL, *device = NULL, *host = NULL, *other = NULL;
    static const unsigned char zero[BYTES];
    bool good = !kva_device_alloc(check->gpu, KVA_MEM_HOST, BYTES, (void **)&source, &err) &&
                !kva_device_alloc(check->gpu, KVA_MEM_HOST, BYTES, (void **)&back, &err);
    for (int i = 0; i < TIMES && good; i++) {
        size_t bytes = BYTES - (size_t)(i % 6) * 1000;
        memset(source, i + 1, BYTES);
        good = !kva_device_alloc(check->gpu, KVA_MEM_DEVICE, bytes, (void **)&device, &err) &&
               !kva_device_alloc(check->gpu, KVA_MEM_HOST, bytes, (void **)&host, &err) &&
               !kva_device_alloc(check->gpu, KVA_MEM_HOST, bytes, (void **)&other, &err);
        if (!good)
            break;
        check_that(check, "memory has one owner", host != other);
        check_that(check, "memory that is handed on is zero", memcmp(host, zero, bytes) == 0);
        kva_device_copy(check->gpu, KVA_QUEUE_COPY, host, device, bytes);
        kva_device_copy(check->gpu, KVA_QUEUE_COPY, device, source, bytes);
        kva_device_copy(check->gpu, KVA_QUEUE_COPY, back, device, bytes);
        kva_device_sync(check->gpu, i % 2 ? KVA_QUEUE_COPY : KVA_QUEUE_COMPUTE);
        memset(other, 7, bytes);
        kva_device_free(check->gpu, KVA_MEM_DEVICE, device, bytes);
        kva_device_free(check->gpu, KVA_MEM_HOST, other, bytes);
        void *again;
        good = !kva_device_alloc(check->gpu, KVA_MEM_DEVICE, bytes, &again, &err);
        kva_device_sync(check->gpu, KVA_QUEUE_COPY);
        check_that(check, "device memory that is handed on is zero",
                   memcmp(host, zero, bytes) == 0);
        check_that(check, "and was its owner's until then",
                   back[0] == i + 1 && back[bytes - 1] == i + 1);
        memset(host, 9, bytes);
        kva_device_free(check->gpu, KVA_MEM_HOST, host, bytes);
        kva_device_free(check->gpu, KVA_MEM_DEVICE, again, bytes);
    }
    check_that(check, "memory for handing on", good);
    kva_device_free(check->gpu, KVA_MEM_HOST, source, BYTES);
    kva_device_free(check->gpu, KVA_MEM_HOST, back, BYTES);
}

/* Weights larger than the descriptor ring, which is written again and again. */
static void check_large_weight(struct check *check)
{
    size_t count = (size_t)17 << 20; /* 68 MiB */
    struct kva_err err;
    struct kva_weight weight;
    float *data = malloc(count * sizeof *data), *back = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = (float)(i % 8191);
    if (kva_device_weight(check->gpu, data, KVA_F32, 1, (uint32_t)count, &weight, &err))
        check_that(check, err.message, false);
    else
        gpu_read(check, back, weight.data, count * sizeof *data);
    check_same(check, "a large weight", back, data, count * sizeof *data);
    struct kva_weight again = {0};
    check_that(check, "the same memory is the same weight",
               kva_device_weight(check->gpu, data, KVA_F32, 1, (uint32_t)count, &again, &err) ==
                       KVA_OK &&
                   again.data == weight.data);
    keep(check, data);
    free(back);
}

/* Ceilings are measured, and leave the device as it was. */
static void check_measure(struct check *check)
{
    struct kva_device_roofs roofs = {0};
    struct kva_err err;
    if (kva_device_measure(check->gpu, &roofs, &err)) {
        check_that(check, err.message, false);
        return;
    }
    double flops = check->act == KVA_F32 ? roofs.f32_flops_per_s : roofs.bf16_flops_per_s;
    check_that(check, "ceilings are measured",
               roofs.read_bytes_per_s > 1e6 && roofs.copy_bytes_per_s > 1e6 && flops > 1e6);
    check_that(check, "measuring is no failure", kva_device_error(check->gpu, NULL) == KVA_OK);
    if (!check->simt)
        printf("memory %.0f GB/s, link %.1f GB/s, %s products %.1f TFLOP/s\n",
               roofs.read_bytes_per_s * 1e-9, roofs.copy_bytes_per_s * 1e-9,
               kva_dtype_name(check->act), flops * 1e-12);
}

/* A failed device refuses, says why, and keeps nobody waiting. */
static void check_failure(struct check *check)
{
    struct kva_err err = {0};
    struct kva_device *device;
    struct kva_event *event;
    void *data;
    const struct kva_device_params params = {.act = check->act};
    if (!check->simt || kva_device_open_cuda(check->module_path, &params, &device, &err))
        return;
    bool made = kva_event_create(device, &event, &err) == KVA_OK &&
                kva_device_alloc(device, KVA_MEM_DEVICE, 4096, &data, &err) == KVA_OK;
    check_that(check, "a device before its failure", made);
    check->simt->fail(719);
    uint32_t row = 0;
    const struct kva_gather_args args = {
        .out = data, .x = data, .rows = &row, .count = 1, .dim = 8};
    kva_device_ops(device)->gather(device, &args);
    kva_event_record(event, KVA_QUEUE_COMPUTE);
    kva_event_wait(event, KVA_QUEUE_COPY);
    kva_event_sync(event);
    kva_device_sync(device, KVA_QUEUE_COMPUTE);
    check_that(check, "a failed device keeps nobody waiting", kva_event_done(event));
    check_that(check, "a failed device says why",
               kva_device_error(device, &err) == KVA_EDEVICE && strstr(err.message, "GPU 0"));
    check->simt->fail(0);
    kva_device_ops(device)->gather(device, &args);
    check_that(check, "a failure is for good", kva_device_error(device, NULL) == KVA_EDEVICE);
    kva_event_destroy(event);
    kva_device_free(device, KVA_MEM_DEVICE, data, 4096);
    kva_device_close(device);
    check_that(check, "another device goes on", kva_device_error(check->gpu, NULL) == KVA_OK);
}

/* Largest of |A v - value v| and of |V V^T - 1|, beside the largest value. */
static double eigen_error(const double *matrix, const double *vectors, const double *values,
                          uint32_t n)
{
    double worst = 0, largest = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(values[i]));
    for (uint32_t v = 0; v < n; v++) {
        for (uint32_t i = 0; i < n; i++) {
            double product = 0, dot = 0;
            for (uint32_t j = 0; j < n; j++) {
                product += matrix[(i < j ? i : j) * n + (i < j ? j : i)] * vectors[v * n + j];
                dot += vectors[v * n + j] * vectors[i * n + j];
            }
            worst = fmax(worst, fabs(product - values[v] * vectors[v * n + i]) / largest);
            worst = fmax(worst, fabs(dot - (i == v)));
        }
    }
    return worst;
}

/* Eigenvectors of matrices of which the lower half is not there. */
static void check_eigen(struct check *check)
{
    enum { COUNT = 3, N_MAX = 64 };
    static const uint32_t sizes[] = {1, 7, N_MAX};
    static double from[COUNT * N_MAX * N_MAX], matrices[COUNT * N_MAX * N_MAX];
    double values[COUNT * N_MAX];
    struct kva_err err;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const uint32_t n = sizes[s];
        for (uint32_t i = 0; i < COUNT * n * n; i++)
            from[i] = i / n % n <= i % n ? (double)check_normal(check) : NAN;
        memcpy(matrices, from, sizeof matrices);
        const enum kva_status status =
            kva_device_eigen(check->gpu, matrices, values, n, COUNT, &err);
        if (status == KVA_EUNSUPPORTED && !check->simt) {
            printf("SKIPPED eigenvectors: %s\n", err.message);
            return;
        }
        check_that(check, "eigenvectors", status == KVA_OK);
        for (uint32_t i = 0; i < COUNT && !status; i++) {
            const double *value = values + (size_t)i * n;
            const size_t at = (size_t)i * n * n;
            bool ascending = true;
            for (uint32_t j = 1; j < n; j++)
                ascending = ascending && value[j - 1] <= value[j];
            check_that(check, "eigenvalues ascend", ascending);
            check_that(check, "eigenvectors to 11 digits",
                       eigen_error(from + at, matrices + at, value, n) < 1e-11);
        }
    }
}

void check_device(struct check *check)
{
    check->op = "device";
    check_memory(check);
    check_spare(check);
    check_borders(check);
    for (int i = 0; i < 4; i++)
        check_pipeline(check);
    /* Whether the ring is sent in time is the simulation's choice. */
    for (int i = 0; i < 3 && check->act == KVA_BF16; i++)
        check_large_weight(check);
    check_measure(check);
    check_eigen(check);
    check_failure(check);
}
