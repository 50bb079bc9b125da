#include "tests/cuda/check.h"

#include "tests/random.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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

double check_unit(enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? 0x1p-24 : dtype == KVA_F16 ? 0x1p-11 : 0x1p-8;
}

float check_round(float x, enum kva_dtype dtype)
{
    if (dtype == KVA_F32 || x == 0.0f || !isfinite(x))
        return x;
    int exponent;
    (void)frexpf(x, &exponent);
    int bits = dtype == KVA_F16 ? 11 : 8, lowest = dtype == KVA_F16 ? -24 : -133;
    int step = exponent - bits > lowest ? exponent - bits : lowest;
    return ldexpf(nearbyintf(ldexpf(x, -step)), step);
}

void check_store(void *to, size_t index, float x, enum kva_dtype dtype)
{
    if (dtype == KVA_F32) {
        ((float *)to)[index] = x;
        return;
    }
    float rounded = check_round(x, dtype);
    uint32_t word;
    uint16_t bits;
    memcpy(&word, &rounded, 4);
    if (dtype == KVA_BF16) {
        bits = (uint16_t)(word >> 16);
    } else {
        uint16_t sign = (uint16_t)(word >> 16 & 0x8000);
        float size = fabsf(rounded);
        if (size < 0x1p-14f)
            bits = (uint16_t)(sign | (uint16_t)(size * 0x1p24f));
        else if (size < 65536.0f)
            bits = (uint16_t)(sign | ((word & 0x7FFFFFFF) - (112u << 23)) >> 13);
        else
            bits = (uint16_t)(sign | 0x7C00);
    }
    ((uint16_t *)to)[index] = bits;
}

float check_fetch(const void *from, size_t index, enum kva_dtype dtype)
{
    if (dtype == KVA_F32)
        return ((const float *)from)[index];
    uint16_t bits = ((const uint16_t *)from)[index];
    if (dtype == KVA_F16) {
        int exponent = bits >> 10 & 31, mantissa = bits & 0x3FF;
        float size = exponent == 31  ? (mantissa ? NAN : INFINITY)
                     : exponent == 0 ? ldexpf((float)mantissa, -24)
                                     : ldexpf((float)(mantissa + 1024), exponent - 25);
        return bits & 0x8000 ? -size : size;
    }
    uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
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
        acts.cpu[i] = check_round(check_normal(check) * size, dtype);
        check_store(bytes, i, acts.cpu[i], dtype);
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

float *acts_read(struct check *check, const struct acts *acts)
{
    unsigned char *bytes = malloc(kva_max_size(acts->count * 4, 1));
    float *out = malloc(kva_max_size(acts->count * sizeof(float), 1));
    gpu_read(check, bytes, acts->gpu, acts->count * kva_dtype_bytes(acts->dtype));
    for (size_t i = 0; i < acts->count; i++)
        out[i] = check_fetch(bytes, i, acts->dtype);
    free(bytes);
    return out;
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
        float x = check_round(check_normal(check) * size, narrow == KVA_F32 ? KVA_F16 : narrow);
        x = narrow == KVA_F32 ? check_round(x, KVA_BF16) : x;
        check_store(weight.data, i, x, dtype);
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

void check_close(struct check *check, const char *name, const float *got, const float *want,
                 const float *magnitude, size_t count, double relative, double absolute)
{
    char reason[160] = "";
    for (size_t i = 0; i < count && !reason[0]; i++) {
        double size = magnitude ? magnitude[i] : 1;
        double bound = relative * fabs((double)want[i]) + absolute * size;
        bool same = got[i] == want[i] || (isnan(got[i]) && isnan(want[i]));
        if (!same && !(fabs((double)got[i] - (double)want[i]) <= bound))
            snprintf(reason, sizeof reason, "element %zu is %.9g, should be %.9g within %.3g", i,
                     (double)got[i], (double)want[i], bound);
    }
    count_case(check, name, !reason[0], reason);
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
} parts[] = {{"device", check_device}, {"rows", check_rows},     {"linear", check_linear},
             {"attend", check_attend}, {"lowbit", check_lowbit}, {"shortlist", check_shortlist},
             {"step", check_step}};

static void run_parts(struct check *check, const char *only, uint64_t seed)
{
    for (size_t i = 0; i < KVA_COUNT_OF(parts); i++) {
        check->state = seed;
        if (!only || strcmp(only, parts[i].name) == 0)
            parts[i].run(check);
    }
}

/* The part for a mutation: "rows.cu: ..." is for "rows", what has no part of its own for one that
 * depends on it. */
static const char *part_of(const char *mutation)
{
    static const struct {
        const char *file, *part;
    } others[] = {
        {"slots.", "lowbit"},    {"attend_rows.", "lowbit"}, {"quantise.", "lowbit"},
        {"select.", "lowbit"},   {"ring.", "device"},        {"spare.", "device"},
        {"radix.", "shortlist"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(others); i++) {
        if (strncmp(mutation, others[i].file, strlen(others[i].file)) == 0)
            return others[i].part;
    }
    return mutation;
}

/* Run the part of the checks that is about the mutated file, in a process of its own: a defect may
 * end it. */
static bool notices(struct check *check, int mutation, uint64_t seed)
{
    const char *of = part_of(check->simt->mutation_names[mutation]);
    int code = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        check->quiet = true;
        (void)!freopen("/dev/null", "w", stderr);
        if (!open_devices(check, KVA_BF16))
            _exit(0);
        check->simt->set_mutation(mutation);
        for (uint64_t round = 0; round < 4; round++) {
            check->simt->set_seed(seed + round);
            for (size_t i = 0; i < KVA_COUNT_OF(parts); i++) {
                if (strncmp(of, parts[i].name, strlen(parts[i].name)) == 0)
                    run_parts(check, parts[i].name, seed + round);
            }
        }
        _exit(0);
    }
    return child > 0 && waitpid(child, &code, 0) == child && code != 0;
}

/* Every mutation of the kernels must make some check fail. */
static int run_mutations(struct check *check, uint64_t seed)
{
    int missed = 0;
    for (int mutation = 1; mutation <= check->simt->mutation_count; mutation++) {
        bool caught = notices(check, mutation, seed);
        printf("%s %s\n", caught ? "caught" : "MISSED", check->simt->mutation_names[mutation]);
        missed += !caught;
    }
    printf("%d mutations, %d missed\n", check->simt->mutation_count, missed);
    return missed || check->simt->mutation_count < 8 ? 1 : 0;
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
            "[--large] [--mutations] [--try]\n",
            name);
    return 2;
}

int main(int argc, char **argv)
{
    struct check check = {0};
    const char *act = NULL, *part = NULL;
    bool mutations = false, try = false, large = false;
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
        else if (strcmp(argv[i], "--large") == 0)
            large = true;
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
    void *module = dlopen(check.module_path, RTLD_NOW | RTLD_LOCAL);
    check.simt = module ? dlsym(module, "simt_control") : NULL;
    if (mutations)
        return check.simt ? run_mutations(&check, seed) : usage(argv[0]);
    for (int dtype = 0; dtype < KVA_DTYPE_COUNT; dtype++) {
        if ((act && strcmp(act, kva_dtype_name((enum kva_dtype)dtype)) != 0))
            continue;
        if (!open_devices(&check, (enum kva_dtype)dtype))
            return 2;
        if (check.simt)
            check.simt->set_seed(seed);
        check.large = large && dtype == KVA_BF16; /* once: the CPU takes its time */
        run_parts(&check, part, seed);
        close_devices(&check);
    }
    printf("seed %llu: %u passed, %u failed\n", (unsigned long long)seed, check.passed,
           check.failed);
    return check.failed || check.passed == 0 ? 1 : 0;
}
