/* The parts of check_cuda, and its command line. */
#include "tests/cuda/check.h"

#include "tests/kernels/formats.h"
#include "tests/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- random numbers and formats --------------------------------------------------------------- */

uint64_t check_random(struct check *check)
{
    return kva_test_random(&check->state);
}

uint32_t check_below(struct check *check, uint32_t limit)
{
    return kva_test_below(&check->state, limit);
}

uint32_t check_between(struct check *check, uint32_t low, uint32_t high)
{
    return low + check_below(check, high - low + 1);
}

float check_normal(struct check *check)
{
    return kva_test_normal(&check->state);
}

/* --- memory on both devices ------------------------------------------------------------------- */

static void expect_ok(enum kva_status status, const struct kva_err *err)
{
    if (status == KVA_OK)
        return;
    printf("FAILED: %s\n", err->message);
    exit(2);
}

/* Through pinned memory, as the engine does it. */
static void transfer(struct check *check, void *to, const void *from, size_t bytes, bool up)
{
    struct kva_err err;
    if (bytes > check->staging_bytes) {
        if (check->staging)
            kva_device_free(check->gpu, KVA_MEM_HOST, check->staging, check->staging_bytes);
        check->staging_bytes = 2 * bytes;
        expect_ok(kva_device_alloc(check->gpu, KVA_MEM_HOST, 2 * bytes, &check->staging, &err),
                  &err);
    }
    if (up)
        memcpy(check->staging, from, bytes);
    kva_device_copy(check->gpu, KVA_QUEUE_COMPUTE, up ? to : check->staging,
                    up ? check->staging : from, bytes);
    kva_device_sync(check->gpu, KVA_QUEUE_COMPUTE);
    if (!up)
        memcpy(to, check->staging, bytes);
    expect_ok(kva_device_error(check->gpu, &err), &err);
}

void *gpu_new(struct check *check, const void *data, size_t bytes)
{
    struct kva_err err;
    void *to;
    expect_ok(kva_device_alloc(check->gpu, KVA_MEM_DEVICE, bytes, &to, &err), &err);
    if (bytes > 0 && data)
        transfer(check, to, data, bytes, true);
    return to;
}

void gpu_free(struct check *check, void *data, size_t bytes)
{
    kva_device_free(check->gpu, KVA_MEM_DEVICE, data, bytes);
}

void gpu_read(struct check *check, void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        transfer(check, to, from, bytes, false);
}

struct acts acts_new(struct check *check, enum kva_dtype dtype, size_t count, float size)
{
    struct acts acts = {.dtype = dtype, .count = count};
    unsigned char *bytes = malloc(kva_max_size(count * 4, 1));
    acts.cpu = malloc(kva_max_size(count * sizeof(float), 1));
    for (size_t i = 0; i < count; i++) {
        acts.cpu[i] = format_round(check_normal(check) * size, dtype);
        format_store(bytes, i, acts.cpu[i], dtype);
    }
    acts.gpu = gpu_new(check, bytes, count * kva_dtype_bytes(dtype));
    free(bytes);
    return acts;
}

void acts_free(struct check *check, struct acts *acts)
{
    gpu_free(check, acts->gpu, acts->count * kva_dtype_bytes(acts->dtype));
    free(acts->cpu);
}

struct both_weight weight_new(struct check *check, enum kva_dtype dtype, uint32_t rows,
                              uint32_t cols, float size)
{
    struct both_weight weight = {0};
    struct kva_err err;
    size_t count = (size_t)rows * cols;
    /* Matrices take the activations' format on a GPU: the same numbers need one that holds both. */
    enum kva_dtype narrow = rows > 1 && check->act != KVA_F32 && dtype != check->act
                                ? (dtype == KVA_F32 ? check->act : KVA_F32)
                                : dtype;
    weight.data = malloc(count * kva_dtype_bytes(dtype));
    for (size_t i = 0; i < count; i++) {
        float x = format_round(check_normal(check) * size, narrow == KVA_F32 ? KVA_F16 : narrow);
        x = narrow == KVA_F32 ? format_round(x, KVA_BF16) : x;
        format_store(weight.data, i, x, dtype);
    }
    expect_ok(kva_device_weight(check->cpu, weight.data, dtype, rows, cols, &weight.cpu, &err),
              &err);
    expect_ok(kva_device_weight(check->gpu, weight.data, dtype, rows, cols, &weight.gpu, &err),
              &err);
    return weight;
}

void keep(struct check *check, void *data)
{
    void **kept = realloc(check->kept, (check->kept_count + 1) * sizeof *kept);
    if (!kept)
        return;
    check->kept = kept;
    check->kept[check->kept_count++] = data;
}

void weight_free(struct check *check, struct both_weight *weight)
{
    keep(check, weight->data);
}

/* --- counting --------------------------------------------------------------------------------- */

static void count_case(struct check *check, const char *name, bool good, const char *reason)
{
    check->passed += good;
    check->failed += !good;
    if (!good && check->quiet)
        _exit(1); /* of a mutation's process: it has been noticed */
    if (!good && !check->quiet && check->failed <= 20)
        printf("FAILED %s (%s): %s: %s\n", check->op, kva_dtype_name(check->act), name, reason);
}

void check_same(struct check *check, const char *name, const void *got, const void *want,
                size_t bytes)
{
    count_case(check, name, memcmp(got, want, bytes) == 0, "other bits");
}

void check_that(struct check *check, const char *name, bool good)
{
    count_case(check, name, good, "does not hold");
}

/* --- devices ---------------------------------------------------------------------------------- */

static bool open_devices(struct check *check, enum kva_dtype act)
{
    struct kva_err err;
    const struct kva_device_params cpu = {.threads = 1, .cpu_level_mask = KVA_CPU_REF};
    const struct kva_device_params gpu = {.act = act};
    check->act = act;
    expect_ok(kva_device_open_cpu(&cpu, &check->cpu, &err), &err);
    if (kva_device_open_cuda(check->module_path, &gpu, &check->gpu, &err) == KVA_OK)
        return true;
    printf("%s\n", err.message);
    kva_device_close(check->cpu);
    return false;
}

static void close_devices(struct check *check)
{
    if (check->staging)
        kva_device_free(check->gpu, KVA_MEM_HOST, check->staging, check->staging_bytes);
    check->staging = NULL;
    check->staging_bytes = 0;
    kva_device_close(check->cpu);
    kva_device_close(check->gpu);
    for (size_t i = 0; i < check->kept_count; i++)
        free(check->kept[i]);
    free(check->kept);
    check->kept = NULL;
    check->kept_count = 0;
}

static const struct {
    const char *name;
    void (*run)(struct check *check);
} parts[] = {{"device", check_device}, {"step", check_step}};

static void run_parts(struct check *check, const char *only, uint64_t seed)
{
    for (size_t i = 0; i < KVA_COUNT_OF(parts); i++) {
        check->state = seed;
        if (!only || strcmp(only, parts[i].name) == 0)
            parts[i].run(check);
    }
}

/* In a process of its own: the parts that a mutation is about. */
static void run_mutated(void *opaque, const struct simt_control *simt, int mutation,
                        const char *words)
{
    struct check *check = opaque;
    check->quiet = true;
    if (!open_devices(check, KVA_BF16))
        return;
    simt->set_mutation(mutation);
    for (uint64_t round = 1; round <= 4; round++) {
        simt->set_seed(round);
        for (size_t i = 0; i < KVA_COUNT_OF(parts); i++) {
            if (mutation_is_of(words, parts[i].name))
                run_parts(check, parts[i].name, round);
        }
    }
}

/* Whether the module opens a GPU, or says in a clear line that there is none. */
static int try_module(const struct check *check)
{
    struct kva_err err;
    struct kva_device *device;
    const struct kva_device_params params = {.act = KVA_BF16};
    enum kva_status status = kva_device_open_cuda(check->module_path, &params, &device, &err);
    if (status == KVA_OK) {
        printf("%s\n", kva_device_get_info(device)->name);
        kva_device_close(device);
        return 0;
    }
    printf("%s\n", err.message);
    return status == KVA_ENOTFOUND && strncmp(err.message, "no GPU", 6) == 0 ? 0 : 1;
}

static int usage(const char *name)
{
    fprintf(stderr,
            "usage: %s --module PATH [--act f32|f16|bf16] [--part NAME] [--seed N] "
            "[--mutations] [--try]\n",
            name);
    return 2;
}

int main(int argc, char **argv)
{
    struct check check = {0};
    const char *act = NULL, *part = NULL;
    bool mutations = false, try = false;
    struct simt_control simt;
    uint64_t seed = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--module") == 0 && i + 1 < argc)
            check.module_path = argv[++i];
        else if (strcmp(argv[i], "--act") == 0 && i + 1 < argc)
            act = argv[++i];
        else if (strcmp(argv[i], "--part") == 0 && i + 1 < argc)
            part = argv[++i];
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 0);
        else if (strcmp(argv[i], "--mutations") == 0)
            mutations = true;
        else if (strcmp(argv[i], "--try") == 0)
            try = true;
        else
            return usage(argv[0]);
    }
    if (!check.module_path)
        return usage(argv[0]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (try)
        return try_module(&check);
    check.simt = simt_open(&simt, check.module_path) ? &simt : NULL;
    if (mutations)
        return check.simt ? mutations_run(&simt, MUTATIONS_OF_PARTS, run_mutated, &check)
                          : usage(argv[0]);
    for (int dtype = 0; dtype < KVA_DTYPE_COUNT; dtype++) {
        if ((act && strcmp(act, kva_dtype_name((enum kva_dtype)dtype)) != 0))
            continue;
        if (!open_devices(&check, (enum kva_dtype)dtype))
            return 2;
        if (check.simt)
            check.simt->set_seed(seed);
        run_parts(&check, part, seed);
        close_devices(&check);
    }
    printf("seed %llu: %u passed, %u failed\n", (unsigned long long)seed, check.passed,
           check.failed);
    return check.failed || check.passed == 0 ? 1 : 0;
}
