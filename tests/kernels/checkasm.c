#include "tests/kernels/checkasm.h"

#include "tests/kernels/amx_emulator.h"
#include "tests/random.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE         4096u
#define GUARD_BYTE   0xA7
#define THREADS_MANY 3u

/* --- random numbers --------------------------------------------------------------------------- */

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

void check_fill(struct check *check, enum check_fill fill, float *to, size_t count)
{
    const float scale[FILL_COUNT] = {
        [FILL_NORMAL] = 1, [FILL_LARGE] = 1e4f, [FILL_DENORMAL] = 1e-39f};
    for (size_t i = 0; i < count; i++)
        to[i] =
            fill == FILL_ZERO || fill == FILL_ONE_HOT ? 0.0f : check_normal(check) * scale[fill];
    if (fill == FILL_ONE_HOT && count > 0)
        to[check_below(check, (uint32_t)count)] = 1.0f;
}

const char *check_fill_name(enum check_fill fill)
{
    const char *names[FILL_COUNT] = {"normal", "zero", "one-hot", "large", "denormal"};
    return names[fill];
}

const char *check_op_name(enum check_op op)
{
    const char *names[OP_COUNT] = {"embed",    "norm",          "linear",    "linear_int8",
                                   "rope",     "glu",           "kv_append", "attend",
                                   "quantise", "attend_lowbit", "merge",     "gather"};
    return names[op];
}

/* --- guarded memory --------------------------------------------------------------------------- */

struct check_buf check_buf_new(size_t bytes)
{
    struct check_buf buf = {.bytes = bytes};
    /* At least 64 bytes of pattern, the data up to a page's end, then a page of no access. */
    size_t inner = kva_align_up(bytes + 64, PAGE);
    buf.map_bytes = inner + PAGE;
    buf.map = mmap(NULL, buf.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buf.map == MAP_FAILED || mprotect(buf.map + inner, PAGE, PROT_NONE) != 0) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(2);
    }
    buf.data = buf.map + inner - bytes;
    memset(buf.map, GUARD_BYTE, inner - bytes);
    return buf;
}

void check_buf_free(struct check_buf *buf)
{
    if (buf->map)
        munmap(buf->map, buf->map_bytes);
    *buf = (struct check_buf){0};
}

void check_buf_garbage(struct check *check, struct check_buf *buf)
{
    unsigned char *data = buf->data;
    for (size_t i = 0; i < buf->bytes; i += 8) {
        uint64_t bits = check_random(check);
        memcpy(data + i, &bits, kva_min_size(8, buf->bytes - i));
    }
}

bool check_buf_intact(const struct check_buf *buf)
{
    const unsigned char *end = buf->data;
    for (const unsigned char *at = buf->map; at < end; at++) {
        if (*at != GUARD_BYTE)
            return false;
    }
    return true;
}

/* --- formats, apart from the kernels' own ------------------------------------------------------
 */

double check_widen(uint16_t bits, enum kva_dtype dtype)
{
    int mantissa_bits = dtype == KVA_F16 ? 10 : 7;
    int bias = dtype == KVA_F16 ? 15 : 127;
    int exponent = (bits & 0x7FFF) >> mantissa_bits;
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    double value;
    if (exponent == (dtype == KVA_F16 ? 31 : 255))
        value = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        value = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits & 0x8000 ? -value : value;
}

uint16_t check_narrow(float value, enum kva_dtype dtype)
{
    uint16_t largest = dtype == KVA_F16 ? 0x7BFF : 0x7F7F;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs((double)value);
    if (size >= check_widen(largest, dtype))
        return (uint16_t)(sign | largest);
    /* Patterns ascend with their values: find the neighbours, then take the nearer, even on a tie.
     */
    uint16_t low = 0, high = largest;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (check_widen(middle, dtype) <= size)
            low = middle;
        else
            high = middle;
    }
    double below = size - check_widen(low, dtype), above = check_widen(high, dtype) - size;
    bool up = above < below || (above == below && (low & 1));
    return (uint16_t)(sign | (up ? high : low));
}

double check_weight_at(const struct kva_weight *weight, size_t index)
{
    if (weight->dtype == KVA_F32)
        return ((const float *)weight->data)[index];
    return check_widen(((const uint16_t *)weight->data)[index], weight->dtype);
}

double check_round_bf16(double value)
{
    if (fabs(value) < 0x1p-126)
        return 0;
    return isnan(value) ? value : check_widen(check_narrow((float)value, KVA_BF16), KVA_BF16);
}

struct kva_weight check_weight(struct check *check, struct check_buf *buf, enum kva_dtype dtype,
                               enum check_fill fill, uint32_t rows, uint32_t cols)
{
    size_t count = (size_t)rows * cols;
    *buf = check_buf_new(count * kva_dtype_bytes(dtype));
    struct kva_weight weight = {.data = buf->data, .dtype = dtype, .rows = rows, .cols = cols};
    if (dtype == KVA_F32) {
        check_fill(check, fill, buf->data, count);
        return weight;
    }
    for (size_t row = 0; row < rows; row++) {
        float line[32];
        for (size_t i = 0; i < cols; i += 32) {
            size_t n = kva_min_size(32, cols - i);
            check_fill(check, fill, line, n);
            /* A random pattern is as good as a rounded number and quicker to make. */
            for (size_t j = 0; j < n; j++)
                ((uint16_t *)buf->data)[row * cols + i + j] = dtype == KVA_BF16
                                                                  ? (uint16_t)((union {
                                                                                   float f;
                                                                                   uint32_t u;
                                                                               }){line[j]}
                                                                                   .u >>
                                                                               16)
                                                                  : check_narrow(line[j], dtype);
        }
    }
    return weight;
}

/* --- running a case --------------------------------------------------------------------------- */

static sigjmp_buf fault_return;
static volatile sig_atomic_t fault_expected;

static void on_fault(int number)
{
    if (!fault_expected)
        signal(number, SIG_DFL); /* not in a kernel: die where it happened */
    else
        siglongjmp(fault_return, 1);
}

static const char *run_guarded(struct check *check, const struct check_variant *variant,
                               struct kva_device *device, const struct check_case *test,
                               uint32_t first, uint32_t rows, float *out)
{
    if (sigsetjmp(fault_return, 1) != 0) {
        fault_expected = 0;
        amx_emulator_drop();
        return "touched memory outside its arguments";
    }
    fault_expected = 1;
    bool good = test->run(check, variant, device, test, first, rows, out);
    fault_expected = 0;
    if (amx_emulator_held() > 0) {
        amx_emulator_drop();
        return "left tiles configured";
    }
    return good ? NULL : "wrote outside its output";
}

/* Run rows into a fresh guarded output and copy them to `to` [rows, cols]. NULL, or what is wrong.
 */
static const char *run_rows(struct check *check, const struct check_variant *variant,
                            struct kva_device *device, const struct check_case *test,
                            uint32_t first, uint32_t rows, float *to)
{
    size_t floats = rows ? (size_t)(rows - 1) * test->stride + test->cols : 0;
    struct check_buf out = check_buf_new(floats * sizeof(float));
    check_buf_garbage(check, &out);
    float *data = out.data;
    float *before = malloc(kva_max_size(out.bytes, 1));
    for (uint32_t row = 0; test->initial && row < rows; row++)
        memcpy(data + (size_t)row * test->stride,
               test->initial + (size_t)(first + row) * test->cols, test->cols * sizeof(float));
    memcpy(before, data, out.bytes);
    const char *reason = run_guarded(check, variant, device, test, first, rows, data);
    if (!check_buf_intact(&out))
        reason = "wrote before its output";
    for (uint32_t row = 0; row < rows && !reason; row++) {
        size_t at = (size_t)row * test->stride;
        memcpy(to + (size_t)row * test->cols, data + at, test->cols * sizeof(float));
        if (row + 1 < rows && memcmp(data + at + test->cols, before + at + test->cols,
                                     (test->stride - test->cols) * sizeof(float)) != 0)
            reason = "wrote between the rows of its output";
    }
    free(before);
    check_buf_free(&out);
    return reason;
}

static const char *compare(const struct check_variant *variant, const struct check_case *test,
                           const float *out, char *text, size_t size)
{
    bool rounded = variant->levels & test->rounding_levels;
    size_t count = (size_t)test->rows * test->cols;
    double *expect = malloc(kva_max_size(count, 1) * 2 * sizeof(double));
    double *bound = expect + count;
    memcpy(expect, rounded ? test->expect_rounded : test->expect, count * sizeof(double));
    memcpy(bound, rounded ? test->bound_rounded : test->bound, count * sizeof(double));
    if (test->adjust)
        test->adjust(test, out, expect, bound);
    const char *reason = NULL;
    double error_squares = 0, bound_squares = 0;
    for (size_t i = 0; i < count && !reason; i++) {
        double error = fabs(out[i] - expect[i]);
        /* Infinities, and what is not to be a number. */
        bool same = out[i] == expect[i] || (isnan(out[i]) && isnan(expect[i]));
        if (!same && !(error <= bound[i])) {
            snprintf(text, size, "row %zu element %zu is %.9g, should be %.9g within %.3g",
                     i / test->cols, i % test->cols, (double)out[i], expect[i], bound[i]);
            reason = text;
        }
        error_squares += same ? 0 : error * error;
        bound_squares += isfinite(bound[i]) ? bound[i] * bound[i] : 0;
    }
    double share = rounded ? test->norm_share_rounded : test->norm_share;
    if (!reason && sqrt(error_squares) > share * sqrt(bound_squares)) {
        snprintf(text, size, "error norm is %.3g of the bounds' norm, should be %.3g",
                 sqrt(error_squares / bound_squares), share);
        reason = text;
    }
    free(expect);
    return reason;
}

/* Rows [first, first + rows) must be the bits of `whole`. */
static const char *same_bits(struct check *check, const struct check_variant *variant,
                             struct kva_device *device, const struct check_case *test,
                             uint32_t first, uint32_t rows, const float *whole, float *scratch,
                             const char *what)
{
    const char *reason = run_rows(check, variant, device, test, first, rows, scratch);
    if (reason)
        return reason;
    size_t floats = (size_t)rows * test->cols;
    return memcmp(scratch, whole + (size_t)first * test->cols, floats * sizeof(float)) ? what
                                                                                       : NULL;
}

static const char *run_variant(struct check *check, const struct check_variant *variant,
                               const struct check_case *test, float *whole, float *scratch,
                               char *text, size_t size)
{
    const char *reason = run_rows(check, variant, variant->one, test, 0, test->rows, whole);
    if (!reason)
        reason = compare(variant, test, whole, text, size);
    if (!reason)
        reason = same_bits(check, variant, variant->one, test, 0, test->rows, whole, scratch,
                           "the same call gives other bits");
    if (!reason)
        reason = same_bits(check, variant, variant->many, test, 0, test->rows, whole, scratch,
                           "several threads give other bits");
    /* Emulation is slow. What is broken must have every chance to be found. */
    int cuts = variant->levels & amx_emulated_levels() && !check->quiet ? 1 : 3;
    for (int i = 0; i < cuts && test->rows > 1 && !reason; i++) {
        uint32_t cut = check_between(check, 1, test->rows - 1);
        reason = same_bits(check, variant, variant->one, test, 0, cut, whole, scratch,
                           "the first rows in a call of their own give other bits");
        if (!reason)
            reason = same_bits(check, variant, variant->many, test, cut, test->rows - cut, whole,
                               scratch, "the last rows in a call of their own give other bits");
        if (!reason)
            reason = same_bits(check, variant, variant->one, test, check_below(check, test->rows),
                               1, whole, scratch, "a row alone gives other bits");
    }
    return reason;
}

void check_count(struct check *check, struct check_variant *variant, enum check_op op,
                 const char *name, bool good, const char *reason)
{
    if (good) {
        variant->passed[op]++;
        return;
    }
    if (!check->quiet && variant->failed[op] < 8)
        printf("FAILED %s in %s: %s: %s\n", check_op_name(op), variant->name, name, reason);
    variant->failed[op]++;
}

bool check_enough(const struct check *check, enum check_op op)
{
    return check->quiet && check->variants[0].failed[op] >= 3;
}

void check_case(struct check *check, const struct check_case *test)
{
    size_t floats = kva_max_size((size_t)test->rows * test->cols, 1);
    float *whole = malloc(floats * 3 * sizeof(float));
    bool others = false;
    for (uint32_t i = 0; i < check->variant_count; i++) {
        char text[200];
        struct check_variant *variant = &check->variants[i];
        const char *reason =
            run_variant(check, variant, test, whole, whole + floats, text, sizeof text);
        if (variant->levels & test->same_levels) {
            if (!others)
                memcpy(whole + 2 * floats, whole, floats * sizeof(float));
            else if (!reason && memcmp(whole, whole + 2 * floats, floats * sizeof(float)) != 0)
                reason = "other bits than at the first level";
            others = true;
        }
        check_count(check, variant, test->op, test->name, !reason, reason);
    }
    free(whole);
}

/* --- variants --------------------------------------------------------------------------------- */

bool check_variant_open(struct check_variant *variant, uint32_t level)
{
    struct kva_err err;
    /* A level on its own over the reference: what it lacks is the reference's. */
    struct kva_device_params params = {.threads = 1,
                                       .cpu_level_mask = level,
                                       .cpu_levels_emulated = level & amx_emulated_levels()};
    if (kva_device_open_cpu(&params, &variant->one, &err) != KVA_OK)
        return false;
    params.threads = THREADS_MANY;
    if (kva_device_open_cpu(&params, &variant->many, &err) != KVA_OK) {
        kva_device_close(variant->one);
        return false;
    }
    variant->ops = *kva_device_ops(variant->one);
    variant->levels = kva_device_get_info(variant->one)->cpu_levels;
    return true;
}

void check_variant_close(struct check_variant *variant)
{
    kva_device_close(variant->one);
    kva_device_close(variant->many);
}

/* `all`: each level with those below it, as a machine uses it; else on its own. */
static void open_levels(struct check *check, const char *only, bool all)
{
    const struct {
        uint32_t level;
        const char *name;
    } levels[] = {{KVA_CPU_REF, "ref"},
                  {KVA_CPU_AVX2, "avx2"},
                  {KVA_CPU_AVX512, "avx512"},
                  {KVA_CPU_AVX512VNNI, "avx512vnni"},
                  {KVA_CPU_AVX512BF16, "avx512bf16"},
                  {KVA_CPU_AMX, "amx"}};
    for (size_t i = 0; i < KVA_COUNT_OF(levels); i++) {
        struct check_variant *variant = &check->variants[check->variant_count];
        if (only && strcmp(only, levels[i].name) != 0)
            continue;
        uint32_t mask = all ? 2 * levels[i].level - 1 : levels[i].level;
        bool emulated = levels[i].level & amx_emulated_levels();
        if (all && emulated) {
            printf("SKIPPED: %s is only emulated here\n", levels[i].name);
            continue;
        }
        if (emulated)
            printf("%s is emulated: this machine has none\n", levels[i].name);
        if (check_variant_open(variant, mask)) {
            snprintf(variant->name, sizeof variant->name, "%s", levels[i].name);
            check->variant_count++;
        } else {
            printf("SKIPPED: this machine has no %s\n", levels[i].name);
        }
    }
}

void check_run_op(struct check *check, enum check_op op)
{
    void (*const run[OP_COUNT])(struct check *) = {
        [OP_EMBED] = check_embed,         [OP_NORM] = check_norm,
        [OP_LINEAR] = check_linear,       [OP_LINEAR_INT8] = check_linear_int8,
        [OP_ROPE] = check_rope,           [OP_GLU] = check_glu,
        [OP_KV_APPEND] = check_kv_append, [OP_ATTEND] = check_attend,
        [OP_QUANTISE] = check_quantise,   [OP_ATTEND_LOWBIT] = check_attend_lowbit,
        [OP_MERGE] = check_merge,         [OP_GATHER] = check_gather,
    };
    run[op](check);
}

static uint32_t print_table(const struct check *check)
{
    uint32_t failed = 0;
    printf("\n%-14s", "cases");
    for (uint32_t i = 0; i < check->variant_count; i++)
        printf(" %14s", check->variants[i].name);
    printf("\n");
    for (int op = 0; op < OP_COUNT; op++) {
        printf("%-14s", check_op_name((enum check_op)op));
        for (uint32_t i = 0; i < check->variant_count; i++) {
            const struct check_variant *variant = &check->variants[i];
            char cell[32];
            uint32_t total = variant->passed[op] + variant->failed[op];
            snprintf(cell, sizeof cell, "%u/%u%s", variant->passed[op], total,
                     variant->failed[op] ? " FAIL" : "");
            printf(" %14s", total ? cell : "-");
            failed += variant->failed[op];
        }
        printf("\n");
    }
    return failed;
}

static int usage(const char *name)
{
    fprintf(stderr,
            "usage: %s [--seed N] [--op NAME]... [--level NAME] [--quick] [--broken]\n"
            "       [--bench] [--bench-only linear|attend|lowbit|rows]\n",
            name);
    return 2;
}

int main(int argc, char **argv)
{
    struct check check = {.seed = 1};
    const char *level = NULL, *bench_only = NULL;
    bool wanted[OP_COUNT] = {false}, any = false, broken = false, bench = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            check.seed = strtoull(argv[++i], NULL, 0);
        } else if (strcmp(argv[i], "--op") == 0 && i + 1 < argc) {
            int op = 0;
            for (i++; op < OP_COUNT && strcmp(check_op_name((enum check_op)op), argv[i]) != 0;)
                op++;
            if (op == OP_COUNT)
                return usage(argv[0]);
            wanted[op] = any = true;
        } else if (strcmp(argv[i], "--level") == 0 && i + 1 < argc) {
            level = argv[++i];
        } else if (strcmp(argv[i], "--quick") == 0) {
            check.quick = true;
        } else if (strcmp(argv[i], "--broken") == 0) {
            broken = true;
        } else if (strcmp(argv[i], "--bench") == 0) {
            bench = true;
        } else if (strcmp(argv[i], "--bench-only") == 0 && i + 1 < argc) {
            bench = true;
            bench_only = argv[++i];
        } else {
            return usage(argv[0]);
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    check.state = check.seed;
    printf("seed %llu\n", (unsigned long long)check.seed);
    struct sigaction action = {.sa_handler = on_fault};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    if (broken)
        return check_broken(&check, level && strcmp(level, "amx") == 0) == 0 ? 0 : 1;
    open_levels(&check, level, bench);
    uint32_t failed = 0;
    if (check.variant_count == 0)
        return usage(argv[0]);
    if (bench) {
        check_bench(&check, bench_only);
    } else {
        for (int op = 0; op < OP_COUNT; op++) {
            check.state = check.seed; /* an operator's cases do not depend on the others' */
            if (!any || wanted[op])
                check_run_op(&check, (enum check_op)op);
        }
        failed = print_table(&check);
        printf("%u failed\n", failed);
    }
    for (uint32_t i = 0; i < check.variant_count; i++)
        check_variant_close(&check.variants[i]);
    return failed ? 1 : 0;
}
