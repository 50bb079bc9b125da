/* Cases of attend. */
#include "tests/kernels/checkasm.h"
#include "tests/kernels/ranges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQS_MAX   4
#define RANGES_MAX 64
#define PAGES_MAX  136

struct shape {
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
};

/* One sequence of a case: its pages by position, and the tokens that its ranges hold. */
struct seq_kv {
    struct check_buf pages[PAGES_MAX];
    uint32_t tokens; /* positions [0, tokens) have keys and values */
};

struct attend_test {
    struct kva_attend_args args; /* of the whole call */
    struct kva_attend_seq seqs[SEQS_MAX];
    struct kva_attend_range ranges[RANGES_MAX];
    const void *blocks[4 * RANGES_MAX + PAGES_MAX * SEQS_MAX];
    struct seq_kv kv[SEQS_MAX];
    struct check_buf q;
    uint32_t range_count;
    uint32_t block_count;
    uint32_t rows;
    uint32_t cut;      /* 0, or: call first with the tokens before it, then fold in the others */
    bool merge;        /* run in pieces that are merged afterwards */
    uint32_t cuts[4];  /* where those pieces begin and end */
    double *magnitude; /* [rows, heads]: what a score may err by */
};

/* --- building --------------------------------------------------------------------------------- */

static void make_kv(struct check *check, struct attend_test *test, uint32_t seq, uint32_t tokens,
                    bool poison)
{
    const struct kva_attend_args *args = &test->args;
    size_t bytes = kva_kv_block_bytes(args->kv_heads, args->head_dim) + args->block_offset_bytes;
    struct seq_kv *kv = &test->kv[seq];
    kv->tokens = tokens;
    for (uint32_t page = 0; page < kva_div_up(tokens + 1, KVA_PAGE_TOKENS); page++) {
        struct kva_weight weight = check_weight(check, &kv->pages[page], args->kv_dtype,
                                                FILL_NORMAL, (uint32_t)(bytes / 2), 1);
        uint16_t *data = (uint16_t *)kv->pages[page].data + args->block_offset_bytes / 2;
        (void)weight;
        /* What no row may look at is not a number. */
        for (uint32_t i = 0; i < args->kv_heads * KVA_PAGE_TOKENS; i++) {
            uint32_t position = page * KVA_PAGE_TOKENS + i % KVA_PAGE_TOKENS;
            bool bad = position >= tokens || (poison && position + 1 == tokens);
            for (uint32_t j = 0; bad && j < 2 * args->head_dim; j++)
                data[(size_t)i * 2 * args->head_dim + j] = 0x7FFF;
        }
    }
}

static void add_range(struct attend_test *test, uint32_t seq, uint32_t first, uint32_t end)
{
    if (first >= end || test->range_count == RANGES_MAX)
        return;
    struct kva_attend_range *range = &test->ranges[test->range_count++];
    *range = (struct kva_attend_range){.format = KVA_KV_16BIT,
                                       .token_first = first,
                                       .token_count = end - first,
                                       .block_first = test->block_count};
    for (uint32_t page = first / KVA_PAGE_TOKENS; page <= (end - 1) / KVA_PAGE_TOKENS; page++)
        test->blocks[test->block_count++] = test->kv[seq].pages[page].data;
    test->seqs[seq].range_count++;
}

/* Ranges over [0, tokens): one, or some that touch or leave holes. */
static void add_ranges(struct check *check, struct attend_test *test, uint32_t seq)
{
    uint32_t tokens = test->kv[seq].tokens, at = 0;
    test->seqs[seq].range_first = test->range_count;
    if (check_below(check, 2) || tokens < 8) {
        add_range(test, seq, 0, tokens);
        return;
    }
    for (int i = 0; i < 6 && at < tokens; i++) {
        uint32_t end = at + 1 + check_below(check, tokens - at);
        add_range(test, seq, at, i == 5 ? tokens : end);
        at = end + (check_below(check, 2) ? check_below(check, 90) : 0);
    }
}

/* --- running ---------------------------------------------------------------------------------- */

/* Rows [first, first + rows) of the case as sequences of a call. */
static uint32_t clip_seqs(const struct attend_test *test, uint32_t first, uint32_t rows,
                          struct kva_attend_seq *seqs)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < test->args.seq_count; i++) {
        struct kva_attend_seq seq = test->seqs[i];
        uint32_t low = kva_max_u32(seq.row_first, first);
        uint32_t high = kva_min_u32(seq.row_first + seq.row_count, first + rows);
        if (low >= high)
            continue;
        seq.position_first += low - seq.row_first;
        seq.row_first = low - first;
        seq.row_count = high - low;
        seqs[count++] = seq;
    }
    return count;
}

/* The call on the part [low, high) of every sequence's tokens. */
static void run_tokens(const struct check_variant *variant, struct kva_device *device,
                       struct kva_attend_args args, uint32_t low, uint32_t high)
{
    struct kva_attend_seq seqs[SEQS_MAX];
    struct kva_attend_range ranges[RANGES_MAX];
    ranges_within(&args, low, high, seqs, ranges);
    variant->ops.attend(device, &args);
}

struct partial_bufs {
    struct check_buf a, m, e;
    struct kva_partial partial;
};

static struct partial_bufs partial_new(struct check *check, size_t pairs, size_t dim)
{
    struct partial_bufs bufs = {.a = check_buf_new(pairs * dim * sizeof(float)),
                                .m = check_buf_new(pairs * sizeof(float)),
                                .e = check_buf_new(pairs * sizeof(float))};
    check_buf_garbage(check, &bufs.a);
    check_buf_garbage(check, &bufs.m);
    check_buf_garbage(check, &bufs.e);
    bufs.partial = (struct kva_partial){.a = bufs.a.data, .m = bufs.m.data, .e = bufs.e.data};
    return bufs;
}

static bool partial_free(struct partial_bufs *bufs)
{
    bool intact =
        check_buf_intact(&bufs->a) && check_buf_intact(&bufs->m) && check_buf_intact(&bufs->e);
    check_buf_free(&bufs->a);
    check_buf_free(&bufs->m);
    check_buf_free(&bufs->e);
    return intact;
}

/* Three pieces cut anywhere, merged: `out` = the result [rows, heads * head_dim]. */
static bool run_merged(struct check *check, const struct check_variant *variant,
                       struct kva_device *device, struct kva_attend_args args, uint32_t rows,
                       const uint32_t *cuts, float *out)
{
    struct partial_bufs bufs[3];
    struct kva_partial partials[3];
    bool good = true;
    for (int i = 0; i < 3; i++) {
        bufs[i] = partial_new(check, (size_t)rows * args.heads, args.head_dim);
        partials[i] = args.out = bufs[i].partial;
        run_tokens(variant, device, args, cuts[i], cuts[i + 1]);
    }
    struct kva_merge_args merge = {.out = out,
                                   .partials = partials,
                                   .partial_count = 3,
                                   .rows = rows,
                                   .heads = args.heads,
                                   .head_dim = args.head_dim};
    variant->ops.merge(device, &merge);
    for (int i = 0; i < 3; i++)
        good &= partial_free(&bufs[i]);
    return good;
}

/* Row of `out`: a [heads, head_dim], m [heads], e [heads]; merged: the result alone. */
static bool run_attend(struct check *check, const struct check_variant *variant,
                       struct kva_device *device, const struct check_case *test, uint32_t first,
                       uint32_t rows, float *out)
{
    const struct attend_test *attend = test->opaque;
    struct kva_attend_args args = attend->args;
    struct kva_attend_seq seqs[SEQS_MAX];
    args.seq_count = clip_seqs(attend, first, rows, seqs);
    args.seqs = seqs;
    args.q = (const float *)args.q + (size_t)first * args.q_stride;
    if (attend->merge)
        return run_merged(check, variant, device, args, rows, attend->cuts, out);
    size_t dim = args.head_dim, heads = args.heads;
    struct partial_bufs bufs = partial_new(check, rows * heads, dim);
    args.out = bufs.partial;
    if (attend->cut == 0) {
        variant->ops.attend(device, &args);
    } else {
        run_tokens(variant, device, args, 0, attend->cut);
        args.accumulate = true;
        run_tokens(variant, device, args, attend->cut, UINT32_MAX);
    }
    for (size_t row = 0; row < rows; row++) {
        float *to = out + row * test->stride;
        memcpy(to, args.out.a + row * heads * dim, heads * dim * sizeof(float));
        memcpy(to + heads * dim, args.out.m + row * heads, heads * sizeof(float));
        memcpy(to + heads * dim + heads, args.out.e + row * heads, heads * sizeof(float));
    }
    return partial_free(&bufs);
}

/* --- truth ------------------------------------------------------------------------------------ */

static bool in_ranges(const struct attend_test *test, const struct kva_attend_seq *seq,
                      uint32_t position)
{
    for (uint32_t i = 0; i < seq->range_count; i++) {
        const struct kva_attend_range *range = &test->ranges[seq->range_first + i];
        if (position >= range->token_first && position < range->token_first + range->token_count)
            return true;
    }
    return false;
}

/* Keys and values of one sequence and KV head as doubles [tokens, 2, head_dim]. */
static double *widen_kv(const struct attend_test *test, uint32_t seq, uint32_t kv_head)
{
    size_t dim = test->args.head_dim;
    const struct seq_kv *kv = &test->kv[seq];
    double *wide = malloc(kva_max_size(kv->tokens, 1) * 2 * dim * sizeof *wide);
    for (size_t position = 0; position < kv->tokens; position++) {
        const uint16_t *block = (const uint16_t *)kv->pages[position / KVA_PAGE_TOKENS].data +
                                test->args.block_offset_bytes / 2;
        size_t at = ((size_t)kv_head * KVA_PAGE_TOKENS + position % KVA_PAGE_TOKENS) * 2 * dim;
        for (size_t i = 0; i < 2 * dim; i++)
            wide[position * 2 * dim + i] = check_widen(block[at + i], test->args.kv_dtype);
    }
    return wide;
}

/* How scores and sums are made: in fp32; with scaled queries and weights rounded to bf16; on a GPU,
 * with queries and weights rounded to the format of the KV. */
enum precision { PRECISE, BF16_PRODUCTS, GPU };

static double query_as(enum precision precision, const struct kva_attend_args *args, float q)
{
    if (precision == BF16_PRODUCTS)
        return check_round_bf16((double)(q * args->scale));
    return (precision == GPU ? (double)format_round(q, args->kv_dtype) : (double)q) *
           (double)args->scale;
}

/* One row and head: a, m, e relative to the true m, and how far they may be off. */
static void pair_truth(const struct attend_test *test, const struct kva_attend_seq *seq,
                       uint32_t position, const float *q, enum precision precision,
                       const double *kv, double *scores, double *a, double *a_bound, double *me,
                       double *me_bound, double *magnitude)
{
    const struct kva_attend_args *args = &test->args;
    size_t dim = args->head_dim;
    double m = -INFINITY, lowest = INFINITY, largest = 0, e = 0;
    uint32_t first = args->window && position >= args->window ? position - args->window + 1 : 0;
    for (uint32_t t = first; t <= position; t++) {
        scores[t] = -INFINITY;
        if (!in_ranges(test, seq, t))
            continue;
        double sum = 0, size = 0;
        for (size_t i = 0; i < dim; i++) {
            double product = query_as(precision, args, q[i]) * kv[t * 2 * dim + i];
            sum += product;
            size += fabs(product);
        }
        scores[t] = sum;
        m = sum > m || sum != sum ? sum : m;
        lowest = fmin(lowest, sum);
        largest = fmax(largest, size);
    }
    /* A score is a chain of head_dim products: that many roundings, one for the scaled query. The
     * exponentials err by twice that (their own score's and the maximum's), 2 units and the
     * rounding of their argument. Below the normal numbers a rounding is absolute, and what bf16
     * products make there is 0. The sums add a rounding per term within a split (`e` goes by at
     * least 8 lanes) and a few per fold. A weight that is rounded to bf16 is off by 2^-8. On a GPU
     * a split is folded by 16 tokens or more at a time, and an exponential errs by 2 units more and
     * by two roundings of its argument. */
    const bool rounded = precision == BF16_PRODUCTS, gpu = precision == GPU;
    const double p_weight = gpu ? format_unit(args->kv_dtype) : 0;
    const double p_least = gpu ? format_least(args->kv_dtype) : 0;
    double score_error =
        ((double)dim + 3) * UNIT * largest + (double)dim * (rounded ? 0x1p-125 : 0x1p-145);
    double folds = position / KVA_ATTEND_SPLIT_TOKENS + 2.0 + (gpu ? 16 : 0);
    double range = fmin(m > -INFINITY ? m - lowest : 0, 110) * (gpu ? 3 : 1);
    double relative = 2 * score_error + UNIT * (16 + range + 8 * folds) + (rounded ? 0x1p-8 : 0);
    memset(a, 0, dim * sizeof *a);
    memset(a_bound, 0, dim * sizeof *a_bound);
    for (uint32_t t = first; t <= position && m != -INFINITY; t++) {
        double p = scores[t] == -INFINITY ? 0 : exp(scores[t] - m);
        e += p;
        for (size_t i = 0; i < dim && scores[t] != -INFINITY; i++) {
            double v = kv[t * 2 * dim + dim + i];
            a[i] += p * v;
            a_bound[i] += fabs(v) * (p * (relative + p_weight + UNIT * KVA_ATTEND_SPLIT_TOKENS) +
                                     p_least + 0x1p-125);
        }
    }
    me[0] = m;
    me[1] = e;
    me_bound[0] = score_error + UNIT * fabs(m > -INFINITY ? m : 0);
    me_bound[1] = e * (relative + UNIT * 48) + 0x1p-115;
    *magnitude = score_error;
}

static void attend_truth(const struct attend_test *test, enum precision precision, double *expect,
                         double *bound)
{
    const struct kva_attend_args *args = &test->args;
    size_t dim = args->head_dim, heads = args->heads, cols = heads * (dim + 2);
    double *scores = malloc(PAGES_MAX * KVA_PAGE_TOKENS * sizeof *scores);
    double me[2], me_bound[2];
    for (uint32_t s = 0; s < args->seq_count; s++) {
        const struct kva_attend_seq *seq = &test->seqs[s];
        for (uint32_t kv_head = 0; kv_head < args->kv_heads; kv_head++) {
            double *kv = widen_kv(test, s, kv_head);
            size_t group = heads / args->kv_heads;
            for (size_t i = 0; i < seq->row_count * group; i++) {
                size_t row = seq->row_first + i / group, head = kv_head * group + i % group;
                const float *q = (const float *)args->q + row * args->q_stride + head * dim;
                double *e = expect + row * cols, *b = bound + row * cols;
                pair_truth(test, seq, seq->position_first + (uint32_t)(i / group), q, precision, kv,
                           scores, e + head * dim, b + head * dim, me, me_bound,
                           &test->magnitude[row * heads + head]);
                for (size_t j = 0; j < 2; j++) {
                    e[heads * (dim + j) + head] = me[j];
                    b[heads * (dim + j) + head] = me_bound[j];
                }
            }
            free(kv);
        }
    }
    free(scores);
}

void check_adjust_partial(const struct check_case *test, size_t heads, size_t dim, const float *out,
                          double *expect, double *bound)
{
    for (size_t i = 0; i < test->rows * heads; i++) {
        size_t at = i / heads * test->cols, head = i % heads, m_at = at + heads * dim + head;
        if (!(expect[m_at] > -INFINITY) || !(fabs(out[m_at] - expect[m_at]) <= bound[m_at]))
            continue;
        double factor = exp(expect[m_at] - out[m_at]);
        for (size_t j = 0; j < dim; j++) {
            expect[at + head * dim + j] *= factor;
            bound[at + head * dim + j] *= factor;
        }
        expect[m_at + heads] *= factor;
        bound[m_at + heads] *= factor;
    }
}

static void adjust_attend(const struct check_case *test, const float *out, double *expect,
                          double *bound)
{
    const struct attend_test *attend = test->opaque;
    size_t dim = attend->args.head_dim, heads = attend->args.heads;
    for (size_t i = 0; i < test->rows * heads; i++) {
        size_t m_at = i / heads * test->cols + heads * dim + i % heads;
        if (isnan(expect[m_at])) /* then `a` and `e` are not numbers, and m may be any */
            expect[m_at] = out[m_at];
    }
    check_adjust_partial(test, heads, dim, out, expect, bound);
}

/* The case's merged form: rows of a / e. */
static void divide_truth(const struct attend_test *test, const double *expect, const double *bound,
                         double *quotient, double *quotient_bound)
{
    size_t dim = test->args.head_dim, heads = test->args.heads, cols = heads * (dim + 2);
    for (size_t i = 0; i < (size_t)test->rows * heads * dim; i++) {
        size_t row = i / (heads * dim), at = i % (heads * dim);
        double e = expect[row * cols + heads * (dim + 1) + at / dim];
        double e_bound = bound[row * cols + heads * (dim + 1) + at / dim];
        double a = expect[row * cols + at], a_bound = bound[row * cols + at];
        quotient[i] = e > 0 ? a / e : e == 0 ? 0 : NAN;
        quotient_bound[i] =
            e > 0 ? 2 * (a_bound + fabs(a) / e * e_bound) / e + UNIT * 200 * fabs(a) / e : 0;
    }
}

/* --- cases ------------------------------------------------------------------------------------ */

struct plan {
    struct shape shape;
    uint32_t rows[SEQS_MAX];      /* of each sequence; 0: no more sequences */
    uint32_t positions[SEQS_MAX]; /* of each sequence's first row */
    uint32_t window;
    enum kva_dtype dtype;
    enum check_fill fill;
    bool poison; /* the last token is not a number: only rows that see it may care */
    bool always; /* however long it takes */
};

static void attend_build(struct check *check, struct attend_test *test, const struct plan *plan)
{
    uint32_t dim = plan->shape.head_dim;
    struct kva_attend_args *args = &test->args;
    args->heads = plan->shape.heads;
    args->kv_heads = plan->shape.kv_heads;
    args->head_dim = dim;
    args->window = plan->window;
    args->kv_dtype = plan->dtype;
    args->scale = 1.0f / sqrtf((float)dim);
    args->block_offset_bytes = check_below(check, 2) ? kva_kv_block_bytes(args->kv_heads, dim) : 0;
    args->q_stride = (args->heads + check_below(check, 2)) * dim;
    for (uint32_t i = 0; i < SEQS_MAX && plan->rows[i] > 0; i++) {
        struct kva_attend_seq *seq = &test->seqs[args->seq_count++];
        seq->row_first = test->rows;
        seq->row_count = plan->rows[i];
        seq->position_first = plan->positions[i];
        test->rows += plan->rows[i];
        make_kv(check, test, i, plan->positions[i] + plan->rows[i], plan->poison);
        add_ranges(check, test, i);
    }
    size_t q_count = (size_t)(test->rows - 1) * args->q_stride + (size_t)args->heads * dim;
    test->q = check_buf_new(q_count * sizeof(float));
    check_fill(check, plan->fill == FILL_LARGE ? FILL_NORMAL : plan->fill, test->q.data, q_count);
    for (size_t i = 0; plan->fill == FILL_LARGE && i < q_count; i++)
        ((float *)test->q.data)[i] *= 30.0f; /* weights so uneven that most of them vanish */
    check_round_acts(check, test->q.data, q_count);
    args->q = test->q.data;
    args->seqs = test->seqs;
    args->ranges = test->ranges;
    args->blocks = test->blocks;
    test->magnitude = calloc((size_t)test->rows * args->heads, sizeof(double));
}

static void attend_free(struct attend_test *test)
{
    for (uint32_t i = 0; i < SEQS_MAX; i++) {
        for (uint32_t j = 0; j < PAGES_MAX; j++)
            check_buf_free(&test->kv[i].pages[j]);
    }
    check_buf_free(&test->q);
    free(test->magnitude);
    free(test);
}

/* Folding in two calls that meet where splits do must give the bits of one call. */
static void check_cut(struct check *check, const struct check_case *test,
                      struct attend_test *attend)
{
    size_t floats = (size_t)test->rows * test->cols;
    float *whole = malloc(2 * floats * sizeof(float));
    for (uint32_t i = 0; i < check->variant_count; i++) {
        struct check_variant *variant = &check->variants[i];
        if (!check_takes(variant, test))
            continue;
        attend->cut = 0;
        bool good = run_attend(check, variant, variant->one, test, 0, test->rows, whole);
        attend->cut = KVA_ATTEND_SPLIT_TOKENS * check_between(check, 1, 4);
        good &= run_attend(check, variant, variant->many, test, 0, test->rows, whole + floats);
        good &= memcmp(whole, whole + floats, floats * sizeof(float)) == 0;
        attend->cut = 0;
        check_count(check, variant, OP_ATTEND, test->name, good,
                    "folding the tokens in two calls gives other bits");
    }
    free(whole);
}

/* Products of the call. */
static double plan_work(const struct plan *plan)
{
    double work = 0;
    for (uint32_t i = 0; i < SEQS_MAX && plan->rows[i] > 0; i++)
        work += (double)plan->rows[i] * (plan->positions[i] + plan->rows[i]) * plan->shape.heads *
                plan->shape.head_dim * 2;
    return work;
}

static void attend_case(struct check *check, const struct plan *plan)
{
    const double work = plan->always ? 0 : plan_work(plan);
    if (!check_wanted(check, OP_ATTEND, work))
        return;
    struct attend_test *attend = calloc(1, sizeof *attend);
    attend_build(check, attend, plan);
    uint32_t dim = plan->shape.head_dim, heads = plan->shape.heads;
    uint32_t cols = heads * (dim + 2);
    size_t count = (size_t)attend->rows * cols;
    const bool rounds = plan->dtype == KVA_BF16 || check->gpu;
    double *expect = malloc(8 * count * sizeof(double)), *rounded = expect + 4 * count;
    struct check_case test = {.op = OP_ATTEND,
                              .run = run_attend,
                              .opaque = attend,
                              .rows = attend->rows,
                              .cols = cols,
                              .stride = cols,
                              .expect = expect,
                              .bound = expect + count,
                              .out_f32 = true,
                              .work = work,
                              .needs = {.head_dim_max = dim},
                              .rounding_levels = check->gpu ? CHECK_LEVEL_CUDA
                                                 : rounds   ? KVA_CPU_AVX512BF16 | KVA_CPU_AMX
                                                            : 0,
                              .expect_rounded = rounded,
                              .bound_rounded = rounded + count,
                              .adjust = adjust_attend,
                              .norm_share = 0.5,
                              .norm_share_rounded = 0.5};
    snprintf(test.name, sizeof test.name,
             "heads %u/%u head_dim %u seqs %u rows %u at %u ranges %u window %u %s%s %s", heads,
             plan->shape.kv_heads, dim, attend->args.seq_count, plan->rows[0], plan->positions[0],
             attend->range_count, plan->window, kva_dtype_name(plan->dtype),
             plan->poison ? " poison" : "", check_fill_name(plan->fill));
    attend_truth(attend, PRECISE, expect, expect + count);
    if (rounds)
        attend_truth(attend, check->gpu ? GPU : BF16_PRODUCTS, rounded, rounded + count);
    check_case(check, &test);
    check_cut(check, &test, attend);

    double *quotient = expect + 2 * count;
    divide_truth(attend, test.expect, test.bound, quotient, quotient + count);
    attend->merge = true;
    attend->cuts[1] = check_below(check, plan->positions[0] + plan->rows[0]);
    attend->cuts[2] = attend->cuts[1] + check_below(check, 300);
    attend->cuts[3] = UINT32_MAX;
    test.adjust = NULL;
    test.out_f32 = false;
    test.cols = test.stride = heads * dim;
    test.expect = quotient;
    test.bound = quotient + count;
    if (rounds) {
        divide_truth(attend, test.expect_rounded, test.bound_rounded, rounded + 2 * count,
                     rounded + 3 * count);
        test.expect_rounded = rounded + 2 * count;
        test.bound_rounded = rounded + 3 * count;
    }
    snprintf(test.name + strlen(test.name), sizeof test.name - strlen(test.name), " merged");
    check_case(check, &test);
    free(expect);
    attend_free(attend);
}

/* A task whose splits fill the memory of partial results more than once: no truth, but the threads
 * must agree with one alone. Only in the fastest variant: it is long. */
static void check_waves(struct check *check)
{
    if (check->gpu)
        return;
    const uint32_t heads = 64, dim = 512, tokens = 130 * KVA_ATTEND_SPLIT_TOKENS + 70;
    size_t block_bytes = kva_kv_block_bytes(1, dim);
    uint32_t pages = (uint32_t)kva_div_up(tokens, KVA_PAGE_TOKENS);
    struct check_buf kv, q = check_buf_new(heads * dim * sizeof(float));
    /* Each page is one of eight. */
    check_weight(check, &kv, KVA_BF16, FILL_NORMAL, 8, (uint32_t)(block_bytes / 2));
    check_fill(check, FILL_NORMAL, q.data, heads * dim);
    const void **blocks = malloc(pages * sizeof *blocks);
    for (uint32_t i = 0; i < pages; i++)
        blocks[i] = (char *)kv.data + check_below(check, 8) * block_bytes;
    struct kva_attend_range range = {.token_count = tokens};
    struct kva_attend_seq seq = {.row_count = 1, .position_first = tokens - 1, .range_count = 1};
    struct kva_attend_args args = {.q = q.data,
                                   .seqs = &seq,
                                   .ranges = &range,
                                   .blocks = blocks,
                                   .seq_count = 1,
                                   .q_stride = heads * dim,
                                   .heads = heads,
                                   .kv_heads = 1,
                                   .head_dim = dim,
                                   .kv_dtype = KVA_BF16,
                                   .scale = 0.044f};
    struct check_variant *variant = &check->variants[check->variant_count - 1];
    struct partial_bufs one = partial_new(check, heads, dim), many = partial_new(check, heads, dim);
    args.out = one.partial;
    variant->ops.attend(variant->one, &args);
    args.out = many.partial;
    variant->ops.attend(variant->many, &args);
    bool good = memcmp(one.a.data, many.a.data, one.a.bytes) == 0 &&
                memcmp(one.m.data, many.m.data, one.m.bytes) == 0 &&
                memcmp(one.e.data, many.e.data, one.e.bytes) == 0;
    good &= partial_free(&one);
    good &= partial_free(&many);
    check_count(check, variant, OP_ATTEND, "waves", good, "several threads give other bits");
    free(blocks);
    check_buf_free(&kv);
    check_buf_free(&q);
}

void check_attend(struct check *check)
{
    /* stories260K, TinyLlama, Llama 8B, Phi, MHA of 96, Gemma's MQA of 256, Falcon's group of 71,
     * and a head that fits no vector. */
    const struct shape shapes[] = {{8, 4, 8},  {32, 4, 64}, {32, 8, 128}, {4, 4, 80},
                                   {3, 3, 96}, {8, 1, 256}, {71, 1, 64},  {6, 2, 5}};
    const uint32_t positions[] = {0, 1, 62, 63, 64, 127, 254, 255, 256, 257, 300, 511, 640, 1023};
    const uint32_t rows[] = {1, 1, 2, 3, 5, 8, 16, 17, 33, 65};
    uint32_t rounds = check->quick ? 3 : 12;
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        bool big = shapes[i].heads * shapes[i].head_dim > 1024;
        for (uint32_t j = 0; j < rounds; j++) {
            struct plan plan = {.shape = shapes[i], .dtype = j % 2 ? KVA_F16 : KVA_BF16};
            plan.fill = j < 4 ? FILL_NORMAL : (enum check_fill)check_below(check, FILL_COUNT);
            plan.window = check_below(check, 3) ? 0 : check_between(check, 1, 400);
            plan.poison = check_below(check, 4) == 0 && check_promised(check, PROMISE_MASKED_NAN);
            uint32_t seqs = check_between(check, 1, big ? 2 : SEQS_MAX);
            for (uint32_t s = 0; s < seqs; s++) {
                plan.rows[s] = rows[check_below(check, big ? 6 : KVA_COUNT_OF(rows))];
                plan.positions[s] = positions[check_below(check, KVA_COUNT_OF(positions))];
            }
            attend_case(check, &plan);
        }
    }
    /* Few tasks and many splits: the way with partial results. */
    struct plan wide = {.shape = {16, 2, 64}, .rows = {1}, .positions = {2100}, .dtype = KVA_BF16};
    attend_case(check, &wide);
    wide.window = 1700;
    wide.rows[0] = 3;
    attend_case(check, &wide);
    /* Rows of which the last ones, by a window, see fewer splits than the first (by THREADS_MANY). */
    const struct plan tiles = {
        .shape = {16, 4, 64}, .rows = {48}, .positions = {1939}, .window = 1700, .dtype = KVA_BF16};
    attend_case(check, &tiles);
    /* More splits than a GPU folds at a time, and an odd number of dimensions. */
    const struct plan many = {.shape = {2, 1, 5},
                              .rows = {1},
                              .positions = {33 * KVA_ATTEND_SPLIT_TOKENS + 9},
                              .dtype = KVA_F16};
    attend_case(check, &many);
    /* Heads of a KV head in two tasks, of which only the larger one is long (by THREADS_MANY). */
    const struct plan uneven = {.shape = {71, 1, 16},
                                .rows = {1, 1, 1, 1},
                                .positions = {1700, 4000, 4000, 4000},
                                .dtype = KVA_BF16};
    attend_case(check, &uneven);
    /* More pairs of a row and a head than the largest block of a GPU takes: what it takes of its
     * shared memory (kernels/cuda/attend_plan.cuh). */
    const struct plan full[] = {
        {.shape = {16, 1, 128}, .rows = {9}, .positions = {130}, .dtype = KVA_BF16, .always = true},
        {.shape = {16, 1, 256}, .rows = {5}, .positions = {66}, .dtype = KVA_F16, .always = true},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(full); i++)
        attend_case(check, &full[i]);
    /* Long sequences and a prompt of Llama 8B: a GPU's. */
    const struct plan large[] = {
        {.shape = {32, 8, 128},
         .rows = {300, 1, 17},
         .positions = {1500, 4000, 255},
         .dtype = KVA_BF16},
        {.shape = {32, 8, 128}, .rows = {200, 200}, .positions = {0, 1300}, .dtype = KVA_F16},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(large); i++)
        attend_case(check, &large[i]);
    if (!check->quick)
        check_waves(check);
}
