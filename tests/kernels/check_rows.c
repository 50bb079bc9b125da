/* Cases of embed, norm, glu, gather and sum_rows. */
#include "kernels/packed.h"
#include "tests/kernels/checkasm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* expect and bound of a case, [rows, cols]. */
struct truth {
    double *expect;
    double *bound;
};

static struct truth truth_new(size_t count)
{
    double *both = malloc(kva_max_size(count, 1) * 2 * sizeof(double));
    return (struct truth){.expect = both, .bound = both + count};
}

/* A case of rows that lie one behind the other. */
static struct check_case case_of(enum check_op op, check_run *run, const void *args, uint32_t rows,
                                 uint32_t dim, struct truth truth)
{
    return (struct check_case){.op = op,
                               .run = run,
                               .opaque = args,
                               .rows = rows,
                               .cols = dim,
                               .stride = dim,
                               .expect = truth.expect,
                               .bound = truth.bound,
                               .norm_share = 1,
                               .work = (double)rows * dim};
}

/* --- embed ------------------------------------------------------------------------------------ */

static bool run_embed(struct check *check KVA_UNUSED, const struct check_variant *variant,
                      struct kva_device *device, const struct check_case *test, uint32_t first,
                      uint32_t rows, float *out)
{
    struct kva_embed_args args = *(const struct kva_embed_args *)test->opaque;
    args.out = out;
    args.ids += first;
    args.positions += first;
    args.rows = rows;
    variant->ops.embed(device, &args);
    return true;
}

static double table_at(const struct kva_weight *table, uint32_t row, uint32_t col)
{
    return kva_dtype_is_packed(table->dtype)
               ? (double)kva_packed_at(table->dtype, table->data, table->cols, row, col)
               : check_weight_at(table, row * (size_t)table->cols + col);
}

static void embed_case(struct check *check, uint32_t rows, uint32_t dim, enum kva_dtype dtype,
                       bool positions, enum check_fill fill)
{
    if (!check_wanted(check, OP_EMBED, (double)rows * dim))
        return;
    const uint32_t vocab = 37;
    struct check_buf table, learned, ids = check_buf_new(rows * sizeof(uint32_t) * 2);
    struct kva_embed_args args = {.rows = rows, .scale = check_below(check, 2) ? 1.0f : 45.254834f};
    uint32_t *id = ids.data;
    args.table = kva_dtype_is_packed(dtype)
                     ? check_packed_weight(check, &table, dtype, fill, vocab, dim)
                     : check_weight(check, &table, dtype, fill, vocab, dim);
    struct kva_weight other = check_weight(
        check, &learned, kva_dtype_is_packed(dtype) ? KVA_F16 : dtype, fill, vocab, dim);
    if (positions)
        args.positions_table = other;
    args.ids = id;
    args.positions = id + rows;
    for (uint32_t i = 0; i < 2 * rows; i++)
        id[i] = i == 0 ? vocab - 1 : check_below(check, vocab);
    struct truth truth = truth_new((size_t)rows * dim);
    for (size_t i = 0; i < (size_t)rows * dim; i++) {
        size_t row = i / dim, col = i % dim;
        double x = table_at(&args.table, id[row], (uint32_t)col) * (double)args.scale;
        double p = positions ? check_weight_at(&other, id[rows + row] * (size_t)dim + col) : 0;
        truth.expect[i] = x + p;
        truth.bound[i] = UNIT * (fabs(x) + fabs(x + p)) + 0x1p-149;
    }
    struct check_case test = case_of(OP_EMBED, run_embed, &args, rows, dim, truth);
    snprintf(test.name, sizeof test.name, "rows %u dim %u %s%s %s", rows, dim,
             kva_dtype_name(dtype), positions ? " positions" : "", check_fill_name(fill));
    /* One rounding for the product and one for the sum; the norm: roundings are spread evenly, so
     * their square mean is under two thirds of the largest. Few, or coarse ones, do not average
     * out. */
    if (fill != FILL_DENORMAL && (size_t)rows * dim >= 64)
        test.norm_share = 0.8;
    check_case(check, &test);
    free(truth.expect);
    check_buf_free(&ids);
    check_buf_free(&table);
    check_buf_free(&learned);
}

void check_embed(struct check *check)
{
    const uint32_t dims[] = {1, 7, 31, 33, 64, 2048, 4096};
    for (size_t i = 0; i < KVA_COUNT_OF(dims); i++) {
        for (int dtype = 0; dtype < KVA_DTYPE_COUNT; dtype++) {
            for (int fill = 0; fill < FILL_COUNT; fill++)
                embed_case(check, check_between(check, 1, 19), dims[i], (enum kva_dtype)dtype,
                           check_below(check, 2), (enum check_fill)fill);
        }
    }
    for (enum kva_dtype dtype = KVA_INT8; dtype < KVA_DTYPE_END; dtype++)
        for (uint32_t blocks = 1; blocks <= 9; blocks += 4)
            embed_case(check, check_between(check, 1, 19),
                       blocks * kva_packed_format(dtype)->block_inputs, dtype,
                       check_below(check, 2), blocks == 5 ? FILL_DENORMAL : FILL_NORMAL);
}

/* --- norm ------------------------------------------------------------------------------------- */

static bool run_norm(struct check *check KVA_UNUSED, const struct check_variant *variant,
                     struct kva_device *device, const struct check_case *test, uint32_t first,
                     uint32_t rows, float *out)
{
    struct kva_norm_args args = *(const struct kva_norm_args *)test->opaque;
    args.out = out;
    args.x = test->initial ? out : (const float *)args.x + (size_t)first * args.dim;
    args.rows = rows;
    variant->ops.norm(device, &args);
    return true;
}

static void norm_truth(const struct kva_norm_args *args, struct truth truth)
{
    size_t dim = args->dim;
    for (size_t row = 0; row < args->rows; row++) {
        const float *x = (const float *)args->x + row * dim;
        double mean = 0, mean_size = 0, squares = 0;
        for (size_t i = 0; i < dim && args->kind == KVA_NORM_LAYER; i++) {
            mean += (double)x[i] / (double)dim;
            mean_size += fabs((double)x[i]) / (double)dim;
        }
        for (size_t i = 0; i < dim; i++)
            squares += (x[i] - mean) * (x[i] - mean) / (double)dim;
        double scale = 1 / sqrt(squares + (double)args->eps);
        /* A sum of dim numbers goes by at least 8 lanes and a tree. An error of the mean moves
         * every element; the variance then errs by its own sum and, to second order, by the mean.
         */
        double terms = (double)dim / 8 + 8;
        double mean_error = terms * UNIT * mean_size + (double)dim * 0x1p-149;
        double scale_error = (terms + 8) * UNIT + mean_error * scale * (1 + mean_error * scale);
        for (size_t i = 0; i < dim; i++) {
            double w = check_weight_at(&args->weight, i) + (double)args->weight_offset;
            double b = args->bias.data && args->kind == KVA_NORM_LAYER
                           ? check_weight_at(&args->bias, i)
                           : 0;
            double y = (x[i] - mean) * scale * w;
            truth.expect[row * dim + i] = y + b;
            truth.bound[row * dim + i] =
                fabs(y) * scale_error + fabs(scale * w) * (mean_error + UNIT * fabs((double)x[i])) +
                UNIT * (4 * fabs(y) + fabs(y + b)) + UNIT * fabs((x[i] - mean) * scale) + 0x1p-126;
        }
    }
}

static void norm_case(struct check *check, uint32_t rows, uint32_t dim, enum kva_norm_kind kind,
                      enum kva_dtype dtype, enum check_fill fill, bool in_place)
{
    if (!check_wanted(check, OP_NORM, (double)rows * dim))
        return;
    struct check_buf x = check_buf_new((size_t)rows * dim * sizeof(float)), weight, bias;
    struct kva_norm_args args = {.x = x.data,
                                 .rows = rows,
                                 .dim = dim,
                                 .kind = kind,
                                 .eps = fill == FILL_DENORMAL ? 1e-20f : 1e-5f,
                                 .weight_offset = check_below(check, 2) ? 1.0f : 0.0f};
    check_fill(check, fill, x.data, (size_t)rows * dim);
    args.weight = check_weight(check, &weight, dtype, FILL_NORMAL, 1, dim);
    struct kva_weight b = check_weight(check, &bias, dtype, FILL_NORMAL, 1, dim);
    if (check_below(check, 2))
        args.bias = b;
    struct truth truth = truth_new((size_t)rows * dim);
    norm_truth(&args, truth);
    struct check_case test = case_of(OP_NORM, run_norm, &args, rows, dim, truth);
    test.initial = in_place ? x.data : NULL;
    if ((size_t)rows * dim >= 64)
        test.norm_share = dim > 1000 ? 0.2 : 0.7;
    snprintf(test.name, sizeof test.name, "%s rows %u dim %u %s%s %s",
             kind == KVA_NORM_RMS ? "rms" : "layer", rows, dim, kva_dtype_name(dtype),
             in_place ? " in place" : "", check_fill_name(fill));
    check_case(check, &test);
    free(truth.expect);
    check_buf_free(&x);
    check_buf_free(&weight);
    check_buf_free(&bias);
}

void check_norm(struct check *check)
{
    const uint32_t dims[] = {1, 8, 15, 17, 64, 128, 2048, 4097, 8208};
    for (size_t i = 0; i < KVA_COUNT_OF(dims); i++) {
        for (int fill = 0; fill < FILL_COUNT; fill++) {
            for (int kind = 0; kind < 2; kind++)
                norm_case(check, check_between(check, 1, dims[i] > 1000 ? 24 : 130), dims[i],
                          (enum kva_norm_kind)kind,
                          (enum kva_dtype)check_below(check, KVA_DTYPE_COUNT),
                          (enum check_fill)fill, check_below(check, 2));
        }
    }
}

/* --- glu -------------------------------------------------------------------------------------- */

static bool run_glu(struct check *check KVA_UNUSED, const struct check_variant *variant,
                    struct kva_device *device, const struct check_case *test, uint32_t first,
                    uint32_t rows, float *out)
{
    struct kva_glu_args args = *(const struct kva_glu_args *)test->opaque;
    args.out = out;
    args.gate = test->initial ? out : (const float *)args.gate + (size_t)first * args.dim;
    if (args.up)
        args.up = (const float *)args.up + (size_t)first * args.dim;
    args.rows = rows;
    variant->ops.glu(device, &args);
    return true;
}

static double activation(double x, enum kva_activation kind)
{
    switch (kind) {
    case KVA_ACT_SILU:
        return x / (1 + exp(-x));
    case KVA_ACT_GELU:
        return 0.5 * x * erfc(-x * M_SQRT1_2);
    case KVA_ACT_GELU_TANH:
        return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    default:
        return x > 0 ? x : 0;
    }
}

/* The relative error of an activation. An exponential of z errs by 2 units and by the rounding of
 * its argument, which is as large as |z| roundings; the quotient adds two. */
static double activation_error(double x, enum kva_activation kind)
{
    double z;
    switch (kind) {
    case KVA_ACT_SILU:
        return 8 * UNIT;
    case KVA_ACT_GELU:
        /* The square of the argument: 3 roundings of up to x^2 / 2, where that end is negative. */
        return (24 + (x < 0 ? 2 * x * x : 0)) * UNIT;
    case KVA_ACT_GELU_TANH:
        z = 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
        return (8 + (z < 0 ? -5 * z : 5)) * UNIT;
    default:
        return 0;
    }
}

static void glu_case(struct check *check, uint32_t rows, uint32_t dim, enum kva_activation kind,
                     enum check_fill fill, bool with_up, bool in_place)
{
    if (!check_wanted(check, OP_GLU, (double)rows * dim))
        return;
    size_t count = (size_t)rows * dim;
    struct check_buf gate = check_buf_new(count * sizeof(float));
    struct check_buf up = check_buf_new(count * sizeof(float));
    struct kva_glu_args args = {.gate = gate.data,
                                .up = with_up ? up.data : NULL,
                                .rows = rows,
                                .dim = dim,
                                .activation = kind};
    float *x = gate.data;
    check_fill(check, fill, x, count);
    check_fill(check, fill == FILL_ZERO ? FILL_NORMAL : fill, up.data, count);
    /* The interesting arguments: both tails, where exponentials overflow and vanish. */
    for (size_t i = 0; i < count && fill == FILL_NORMAL; i++)
        x[i] *= i % 3 == 0 ? 30.0f : i % 3 == 1 ? 3.0f : 1.0f;
    check_round_acts(check, x, count);
    struct truth truth = truth_new(count);
    for (size_t i = 0; i < count; i++) {
        double y = activation(x[i], kind), u = with_up ? ((float *)up.data)[i] : 1;
        truth.expect[i] = y * u;
        /* An exponential beyond fp32 makes the result 0: smaller than the smallest normal number
         * times the argument. */
        truth.bound[i] = fabs(y * u) * (activation_error(x[i], kind) + (with_up ? UNIT : 0)) +
                         fabs(u) * (fabs((double)x[i]) + 1) * 0x1p-125 + 0x1p-149;
    }
    struct check_case test = case_of(OP_GLU, run_glu, &args, rows, dim, truth);
    test.initial = in_place ? x : NULL;
    if (count >= 64 && fill == FILL_NORMAL)
        test.norm_share = 0.6;
    const char *names[] = {"silu", "gelu", "gelu_tanh", "relu"};
    snprintf(test.name, sizeof test.name, "%s rows %u dim %u%s%s %s", names[kind], rows, dim,
             with_up ? " up" : "", in_place ? " in place" : "", check_fill_name(fill));
    check_case(check, &test);
    free(truth.expect);
    check_buf_free(&gate);
    check_buf_free(&up);
}

void check_glu(struct check *check)
{
    const uint32_t dims[] = {1, 9, 31, 64, 172, 5632};
    for (size_t i = 0; i < KVA_COUNT_OF(dims); i++) {
        for (int kind = 0; kind <= KVA_ACT_RELU; kind++) {
            for (int fill = 0; fill < FILL_COUNT; fill++)
                glu_case(check, check_between(check, 1, 13), dims[i], (enum kva_activation)kind,
                         (enum check_fill)fill, check_below(check, 2), check_below(check, 2));
        }
    }
}

/* --- gather ----------------------------------------------------------------------------------- */

static bool run_gather(struct check *check KVA_UNUSED, const struct check_variant *variant,
                       struct kva_device *device, const struct check_case *test, uint32_t first,
                       uint32_t rows, float *out)
{
    struct kva_gather_args args = *(const struct kva_gather_args *)test->opaque;
    args.out = out;
    args.rows += first;
    args.count = rows;
    variant->ops.gather(device, &args);
    return true;
}

void check_gather(struct check *check)
{
    const uint32_t dims[] = {1, 31, 64, 2048, 4097};
    for (size_t k = 0; k < KVA_COUNT_OF(dims); k++) {
        uint32_t dim = dims[k], count = check_between(check, 1, 40), from = 23;
        struct check_buf x = check_buf_new((size_t)from * dim * sizeof(float));
        struct check_buf rows = check_buf_new(count * sizeof(uint32_t));
        check_fill(check, FILL_NORMAL, x.data, (size_t)from * dim);
        struct truth truth = truth_new((size_t)count * dim);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t row = ((uint32_t *)rows.data)[i] =
                i == 0 ? from - 1 : check_below(check, from);
            for (uint32_t j = 0; j < dim; j++)
                truth.expect[(size_t)i * dim + j] = ((float *)x.data)[(size_t)row * dim + j];
        }
        memset(truth.bound, 0, (size_t)count * dim * sizeof(double));
        struct kva_gather_args args = {.x = x.data, .rows = rows.data, .count = count, .dim = dim};
        struct check_case test = case_of(OP_GATHER, run_gather, &args, count, dim, truth);
        snprintf(test.name, sizeof test.name, "rows %u dim %u", count, dim);
        check_case(check, &test);
        free(truth.expect);
        check_buf_free(&x);
        check_buf_free(&rows);
    }
}

/* --- sum_rows --------------------------------------------------------------------------------- */

/* Sums of [terms, dim] each, one behind the other. */
struct sums {
    const float *x;
    uint32_t terms, dim;
    bool accumulate;
};

/* Each sum in two calls, cut elsewhere in every run: the bits must be the same. */
static bool run_sum_rows(struct check *check, const struct check_variant *variant,
                         struct kva_device *device, const struct check_case *test, uint32_t first,
                         uint32_t rows, float *out)
{
    const struct sums *sums = test->opaque;
    size_t dim = sums->dim;
    for (uint32_t i = 0; i < rows; i++) {
        const float *x = sums->x + (first + i) * (size_t)sums->terms * dim;
        uint32_t cut = check_below(check, sums->terms);
        struct kva_sum_rows_args args = {.out = out + i * dim,
                                         .x = x,
                                         .rows = cut,
                                         .dim = sums->dim,
                                         .accumulate = sums->accumulate};
        if (cut > 0)
            variant->ops.sum_rows(device, &args);
        args.x = x + cut * dim;
        args.rows = sums->terms - cut;
        args.accumulate = sums->accumulate || cut > 0;
        variant->ops.sum_rows(device, &args);
    }
    return true;
}

static void sum_case(struct check *check, uint32_t terms, uint32_t dim, bool accumulate)
{
    const uint32_t count = 3;
    size_t size = (size_t)count * dim;
    if (!check_wanted(check, OP_SUM_ROWS, (double)size * terms))
        return;
    struct check_buf x = check_buf_new(size * terms * sizeof(float));
    struct check_buf initial = check_buf_new(size * sizeof(float));
    check_fill(check, FILL_NORMAL, x.data, size * terms);
    check_fill(check, FILL_NORMAL, initial.data, size);
    struct truth truth = truth_new(size);
    for (size_t i = 0; i < size; i++) {
        double sum = accumulate ? ((float *)initial.data)[i] : 0, absolute = fabs(sum);
        for (uint32_t r = 0; r < terms; r++) {
            double term = ((float *)x.data)[(i / dim * terms + r) * dim + i % dim];
            sum += term;
            absolute += fabs(term);
        }
        truth.expect[i] = sum;
        /* One rounding for each addition, of at most the sum so far. */
        truth.bound[i] = absolute * terms * 0x1p-24;
    }
    struct sums sums = {.x = x.data, .terms = terms, .dim = dim, .accumulate = accumulate};
    struct check_case test = case_of(OP_SUM_ROWS, run_sum_rows, &sums, count, dim, truth);
    test.out_f32 = true;
    test.initial = accumulate ? initial.data : NULL;
    test.work *= terms;
    snprintf(test.name, sizeof test.name, "terms %u dim %u%s", terms, dim,
             accumulate ? " accumulate" : "");
    check_case(check, &test);
    free(truth.expect);
    check_buf_free(&x);
    check_buf_free(&initial);
}

void check_sum_rows(struct check *check)
{
    const uint32_t dims[] = {1, 31, 64, 576, 4097};
    for (size_t i = 0; i < KVA_COUNT_OF(dims); i++) {
        sum_case(check, 1, dims[i], check_below(check, 2));
        sum_case(check, check_between(check, 2, 70), dims[i], false);
        sum_case(check, check_between(check, 2, 70), dims[i], true);
    }
}
