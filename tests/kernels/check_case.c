/* Running a case in every variant, and what is demanded of the results. */
#include "tests/kernels/checkasm.h"

#include "tests/kernels/amx_emulator.h"
#include "tests/kernels/host_ops.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- running a case --------------------------------------------------------------------------- */

static sigjmp_buf fault_return;
static volatile sig_atomic_t fault_expected;

void check_on_fault(int number)
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
    fault_expected = !(variant->levels & CHECK_LEVEL_CUDA); /* there, the harness touched it */
    bool good = test->run(check, variant, device, test, first, rows, out);
    fault_expected = 0;
    const char *fault = check_fault(variant, device);
    if (fault)
        return fault;
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

/* The result is rounded to the format of activations; beyond F16 it is infinite, or the largest. */
static void round_expected(enum kva_dtype act, float out, double *expect, double *bound)
{
    double size = fabs(*expect) + *bound;
    if (act == KVA_F16 && size >= 65504 && fabs((double)out) >= 65504 - *bound &&
        (out > 0) == (*expect > 0))
        *expect = (double)out;
    *bound += format_unit(act) * size + format_least(act);
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
    enum kva_dtype act = test->out_f32 ? KVA_F32 : variant->act;
    const bool inexact_act = act != KVA_F32;
    size_t inexact = 0;
    for (size_t i = 0; i < count && !reason; i++) {
        if (inexact_act)
            round_expected(act, out[i], &expect[i], &bound[i]);
        double error = fabs(out[i] - expect[i]);
        /* Infinities, and what is not to be a number. */
        bool same = out[i] == expect[i] || (isnan(out[i]) && isnan(expect[i]));
        if (!same && !(error <= bound[i])) {
            snprintf(text, size, "row %zu element %zu is %.9g, should be %.9g within %.3g",
                     i / test->cols, i % test->cols, (double)out[i], expect[i], bound[i]);
            reason = text;
        }
        inexact += !same;
        error_squares += same ? 0 : error * error;
        bound_squares += isfinite(bound[i]) ? bound[i] * bound[i] : 0;
    }
    double share = rounded ? test->norm_share_rounded : test->norm_share;
    if (inexact_act) /* roundings are spread evenly, but a few may all be the largest */
        share = inexact < 64 ? 1 : fmax(share, 0.8);
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
    bool linear = test->op == OP_LINEAR || test->op == OP_LINEAR_PACKED;
    bool alone = !linear || test->rows_alone || variant->promises & PROMISE_LINEAR_ROWS;
    /* What is broken must have every chance to be found. */
    uint32_t cuts = check->quiet ? 3 : variant->cuts_max;
    for (uint32_t i = 0; i < cuts && alone && test->rows > 1 && !reason; i++) {
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
    if (check->exits)
        _exit(1);
    if (!check->quiet && variant->failed[op] < 8)
        printf("FAILED %s in %s: %s: %s\n", check_op_name(op), variant->name, name, reason);
    variant->failed[op]++;
}

const char *check_fault(const struct check_variant *variant, struct kva_device *device)
{
    if (variant->levels & CHECK_LEVEL_CUDA)
        return host_ops_fault(device);
    return kva_device_error(device, NULL) == KVA_OK ? NULL : "the device failed";
}

uint32_t check_failed(const struct check_variant *variant)
{
    uint32_t failed = 0;
    for (int op = 0; op < OP_COUNT; op++)
        failed += variant->failed[op];
    return failed;
}

bool check_has_activations(enum check_op op)
{
    return op != OP_QUANTISE && op != OP_CHOOSE && op != OP_ACCUMULATE && op != OP_ASSIGN_SLOTS &&
           op != OP_FETCH_ROWS && op != OP_SHORTLIST && op != OP_MEAN_KEYS && op != OP_ROW_ERROR &&
           op != OP_KEEP && op != OP_USE_ROWS && op != OP_STORE_ROWS && op != OP_ROLL_ROWS &&
           op != OP_SKETCH && op != OP_SKETCH_WEIGH;
}

bool check_wanted(const struct check *check, enum check_op op, double work)
{
    bool afforded = false;
    for (uint32_t i = 0; i < check->variant_count; i++)
        afforded |= work <= check->variants[i].work_max;
    /* In which of them makes no difference to what reads no activations. */
    if (check->gpu && check->act != KVA_BF16 && !check_has_activations(op))
        return false;
    return afforded && !(check->quiet && check_failed(&check->variants[0]) >= 3);
}

bool check_promised(const struct check *check, enum check_promise promise)
{
    for (uint32_t i = 0; i < check->variant_count; i++) {
        if (!(check->variants[i].promises & promise))
            return false;
    }
    return true;
}

bool check_takes(const struct check_variant *variant, const struct check_case *test)
{
    const struct kva_op_limits *needs = &test->needs, *limits = &variant->limits;
    return test->work <= variant->work_max &&
           (test->levels == 0 || variant->levels & test->levels) &&
           needs->head_dim_max <= limits->head_dim_max &&
           needs->select_heads_max <= limits->select_heads_max &&
           needs->select_max <= limits->select_max && needs->slots_max <= limits->slots_max;
}

void check_case(struct check *check, const struct check_case *test)
{
    size_t floats = kva_max_size((size_t)test->rows * test->cols, 1);
    float *whole = malloc(floats * 3 * sizeof(float));
    bool others = false;
    for (uint32_t i = 0; i < check->variant_count; i++) {
        char text[200];
        struct check_variant *variant = &check->variants[i];
        if (!check_takes(variant, test))
            continue;
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

bool check_next_run(const struct check *check, double work, uint32_t *run,
                    struct check_variant **ret_variant, struct kva_device **ret_device)
{
    const struct check_case test = {.work = work};
    while (*run < 2 * check->variant_count) {
        struct check_variant *variant = (struct check_variant *)&check->variants[*run / 2];
        *ret_variant = variant;
        *ret_device = *run % 2 ? variant->many : variant->one;
        ++*run;
        if (check_takes(variant, &test))
            return true;
    }
    return false;
}

void check_count_run(struct check *check, struct check_variant *variant, enum check_op op,
                     struct kva_device *device, const char *name, const char *reason)
{
    if (!reason)
        reason = check_fault(variant, device);
    check_count(check, variant, op, name, !reason, reason);
}
