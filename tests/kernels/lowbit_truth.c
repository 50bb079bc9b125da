/* What attention over low-bit pages and cached rows should be, in doubles, and its errors' bounds.
 */
#include "kernels/turn.h"
#include "tests/kernels/lowbit_case.h"

#include <stdlib.h>
#include <string.h>

/* How many scales the keys of a page have, and which is that of a token's channel. */
static size_t lowbit_key_levels(const struct lowbit_test *test)
{
    const struct kva_lowbit_format format = test->args.format;
    return format.keys == KVA_KEYS_PER_TOKEN ? 64 : 64 / format.group * test->args.head_dim;
}

static size_t lowbit_key_level(const struct lowbit_test *test, size_t token, size_t c)
{
    const struct kva_lowbit_format format = test->args.format;
    return format.keys == KVA_KEYS_PER_TOKEN ? token
                                             : token / format.group * test->args.head_dim + c;
}

/* The low-bit number of a token's channel, read as kv_layout.h draws the block. */
static double decode(const struct lowbit_test *test, const unsigned char *head, bool value,
                     uint32_t token, uint32_t c)
{
    uint32_t dim = test->args.head_dim, group = test->args.format.group;
    uint32_t bits = value ? kva_lowbit_value_bits(test->args.format) : test->args.format.bits;
    size_t k = lowbit_key_levels(test), v = ((size_t)dim + group - 1) / group * 64;
    size_t at = value ? c / group * 64 + token : lowbit_key_level(test, token, c);
    const uint16_t *levels = (const uint16_t *)(const void *)head + (value ? 2 * k : 0);
    double scale = check_widen(levels[at], KVA_F16);
    double zero = check_widen(levels[at + (value ? v : k)], KVA_F16);
    const unsigned char *codes = head + (k + v) * 4;
    size_t nibble =
        value ? (size_t)test->args.format.bits * dim / 4 * 64 + (size_t)(token / 4) * dim + c
              : (size_t)(c / 4) * 64 + token;
    uint32_t bit = value ? token % 4 : c % 4, code = 0;
    for (uint32_t plane = 0; plane < bits; plane++, nibble += (size_t)dim / 4 * 64)
        code |= ((uint32_t)codes[nibble / 2] >> (nibble % 2 * 4 + bit) & 1u) << plane;
    return zero + scale * code;
}

double *lowbit_widen(const struct lowbit_test *test, uint32_t seq, uint32_t kv_head)
{
    const struct kva_attend_select_fetch_args *args = &test->args;
    const struct lowbit_seq_data *data = &test->data[seq];
    size_t dim = args->head_dim, tokens = (size_t)test->seqs[seq].page_count * 64;
    size_t head_bytes = kva_lowbit_head_bytes(args->format, args->head_dim);
    double *wide = malloc(kva_max_size(tokens, 1) * 2 * dim * sizeof *wide);
    for (uint32_t t = 0; t < tokens; t++) {
        const unsigned char *head = (const unsigned char *)data->pages[t / 64].data +
                                    args->block_offset_bytes + kv_head * head_bytes;
        for (uint32_t i = 0; i < 2 * dim; i++)
            wide[t * 2 * dim + i] = decode(test, head, i >= dim, t % 64, i % (uint32_t)dim);
    }
    for (uint32_t i = 0; data->cache && i < data->counts[kv_head]; i++) {
        size_t t = data->positions[kv_head * LOWBIT_CACHED_MAX + i];
        const uint16_t *row = data->rows + ((size_t)kv_head * LOWBIT_CACHED_MAX + i) * 2 * dim;
        for (size_t j = 0; j < 2 * dim; j++)
            wide[t * 2 * dim + j] = check_widen(row[j], args->kv_dtype);
    }
    return wide;
}

/* The scales of keys [positions, head_dim], then of values. */
static double *widen_scales(const struct lowbit_test *test, uint32_t seq, uint32_t kv_head)
{
    const struct kva_attend_select_fetch_args *args = &test->args;
    size_t dim = args->head_dim, tokens = (size_t)test->seqs[seq].page_count * 64;
    size_t k = lowbit_key_levels(test);
    double *wide = malloc(kva_max_size(tokens * 2 * dim, 1) * sizeof *wide);
    for (size_t t = 0; t < tokens; t++) {
        const unsigned char *head = (const unsigned char *)test->data[seq].pages[t / 64].data +
                                    args->block_offset_bytes +
                                    kv_head * kva_lowbit_head_bytes(args->format, args->head_dim);
        const uint16_t *levels = (const uint16_t *)(const void *)head;
        for (size_t c = 0; c < dim; c++) {
            wide[t * dim + c] = check_widen(levels[lowbit_key_level(test, t % 64, c)], KVA_F16);
            wide[(tokens + t) * dim + c] =
                check_widen(levels[2 * k + c / args->format.group * 64 + t % 64], KVA_F16);
        }
    }
    return wide;
}

uint32_t lowbit_first_seen(const struct lowbit_test *test, uint32_t position)
{
    uint32_t window = test->args.window;
    return window && position >= window ? position - window + 1 : 0;
}

/* What a pair should be, and how far it may be off. */
struct truth {
    double *a, *a_bound;
    double m, e, m_bound, e_bound;
};

uint32_t lowbit_rounding_levels(void)
{
    return CHECK_LEVEL_CUDA | KVA_CPU_AVX512VNNI | KVA_CPU_AVX512BF16 | KVA_CPU_AMX;
}

/* What rounding to 8 bits may add, where codes meet integers (avx512vnni and higher): a factor is off
 * by half a step (a query's) or by one (a weight's, see the kernel), a step being the 127th part of
 * the largest factor, and counts once per unit of code. The steps are 128 times finer with 3 bits and
 * more, and with 8 where keys have levels per token. Where bf16 rows meet bf16 products (avx512bf16,
 * amx), a cached row's query and weight are off by 2^-8. One bound serves the levels of either kind
 * and of both. On a GPU queries, keys, values and weights are rounded to f16 instead. */
struct rounding {
    const double *k_scale; /* [positions, head_dim]; 0 for cached rows */
    const double *v_scale;
    double shift; /* of the pair's scores */
    bool on;
    bool gpu;
};

/* Errors of one rounding to f16. */
#define F16_UNIT  0x1p-11
#define F16_LEAST 0x1p-25

static double steps_of(const struct lowbit_test *test)
{
    const bool tokens = test->args.format.keys == KVA_KEYS_PER_TOKEN;
    return test->args.format.bits >= (tokens ? 8 : 3) ? 127.0 * 128 : 127.0;
}

/* Largest error of a score of `token`. */
static double score_rounding(const struct lowbit_test *test, const struct rounding *rounding,
                             const float *q, uint32_t token)
{
    size_t dim = test->args.head_dim;
    double top = 0, code_max = (1 << test->args.format.bits) - 1;
    for (size_t i = 0; rounding->on && i < dim; i++)
        top = fmax(top, fabs((double)q[i] * (double)test->args.scale *
                             rounding->k_scale[token * dim + i]));
    return (top / steps_of(test) * 0.5 + 0x1p-100) * code_max * (double)dim;
}

static void pair_truth(const struct lowbit_test *test, uint32_t first, uint32_t tokens,
                       const float *q, const double *kv, const bool *attends,
                       const struct rounding *rounding, double *scores, struct truth *truth)
{
    size_t dim = test->args.head_dim;
    double lowest = INFINITY, largest = 0, rounded = 0, v_step = 0;
    truth->m = -INFINITY;
    truth->e = 0;
    for (uint32_t t = first; t < tokens; t++) {
        double sum = 0, size = 0, least = 0;
        scores[t] = -INFINITY;
        if (!attends[t])
            continue;
        for (size_t i = 0; i < dim; i++) {
            double product = (double)q[i] * (double)test->args.scale * kv[t * 2 * dim + i];
            sum += product;
            size += fabs(product);
            least += F16_LEAST * (double)test->args.scale *
                     (fabs((double)q[i]) + fabs(kv[t * 2 * dim + i]) + F16_LEAST);
        }
        if (rounding->gpu)
            rounded = fmax(rounded, 2 * F16_UNIT * (1 + F16_UNIT) * size + least);
        scores[t] = sum;
        truth->m = fmax(truth->m, sum);
        lowest = fmin(lowest, sum);
        largest = fmax(largest, size);
        rounded = fmax(rounded, score_rounding(test, rounding, q, t));
        for (size_t i = 0; rounding->on && i < dim; i++)
            v_step = fmax(v_step, rounding->v_scale[t * dim + i] / steps_of(test));
    }
    bool halves = rounding->on && test->args.kv_dtype == KVA_BF16;
    rounded += halves ? 0x1p-8 * largest : 0;
    /* As in check_attend.c, with a rounding for the product of code and scale and one for the sum
     * with zero, which may be larger than the sum. */
    double score_error = ((double)dim + 8) * UNIT * 3 * largest + (double)dim * 0x1p-145 + rounded;
    score_error += 4 * UNIT * fabs(rounding->shift); /* added to scores, or to their largest */
    double folds = tokens / KVA_ATTEND_SPLIT_TOKENS + 4.0;
    double range = fmin(truth->m > -INFINITY ? truth->m - lowest : 0, 110);
    double relative = 2 * score_error + UNIT * (16 + range + 8 * folds);
    if (rounding->gpu) /* tiles are folded within a split; exponentials err by more */
        relative = exp(relative + UNIT * (128 + 2 * range)) - 1;
    else if (rounding
                 ->on) /* exponentials are off by 7e-6 as well, and errors are no longer small */
        relative = exp(relative + 1e-5 + (halves ? 0x1p-8 : 0)) - 1;
    memset(truth->a, 0, dim * sizeof(double));
    memset(truth->a_bound, 0, dim * sizeof(double));
    for (uint32_t t = first; t < tokens; t++) {
        if (!attends[t])
            continue;
        double p = exp(scores[t] - truth->m);
        truth->e += p;
        for (size_t i = 0; i < dim; i++) {
            double v = kv[t * 2 * dim + dim + i];
            truth->a[i] += p * v;
            truth->a_bound[i] +=
                (fabs(v) + 1) * (p * (relative + UNIT * KVA_ATTEND_SPLIT_TOKENS) + 0x1p-125);
            if (rounding->gpu) /* weight and value are rounded */
                truth->a_bound[i] += (1 + relative) * (2 * F16_UNIT * p * fabs(v) +
                                                       F16_LEAST * (p + fabs(v) + F16_LEAST));
        }
    }
    /* A weight's step is that of the largest of its split, which is 1 at most. */
    double code_max = (1 << kva_lowbit_value_bits(test->args.format)) - 1;
    for (uint32_t split = first / KVA_ATTEND_SPLIT_TOKENS;
         rounding->on && split * KVA_ATTEND_SPLIT_TOKENS < tokens; split++) {
        uint32_t low = kva_max_u32(first, split * KVA_ATTEND_SPLIT_TOKENS);
        uint32_t high = kva_min_u32(tokens, (split + 1) * KVA_ATTEND_SPLIT_TOKENS);
        double most = 0;
        for (uint32_t t = low; t < high; t++)
            most = attends[t] ? fmax(most, exp(scores[t] - truth->m)) : most;
        for (size_t i = 0; i < dim; i++)
            truth->a_bound[i] += (high - low) * most * (1 + relative) * v_step * code_max;
    }
    truth->m_bound = score_error + UNIT * fabs(truth->m > -INFINITY ? truth->m : 0);
    truth->e_bound = truth->e * (relative + UNIT * 64) + 0x1p-115;
}

/* Numbers turned, or back, by the definition (kernels/turn.h): H has a -1 where the bits that row and
 * column share are odd in number. `sizes`: of bounds, that add up. */
static void turn_truth(double *x, size_t dim, bool back, bool sizes)
{
    const size_t block = dim & -dim;
    double out[512];
    for (size_t i = 0; i < dim; i++) {
        out[i] = 0;
        for (size_t j = i / block * block; j < i / block * block + block; j++) {
            const size_t sign = back ? i : j;
            bool minus = __builtin_popcountll(i & j & (block - 1)) % 2;
            minus ^= kva_turn_flips((uint32_t)sign);
            out[i] += minus && !sizes ? -x[j] : x[j];
        }
        out[i] /= sqrt((double)block);
    }
    memcpy(x, out, dim * sizeof *x);
}

/* The query as the pages have their keys; its own roundings are among those of a score. */
static const float *turned_query(const struct lowbit_test *test, const float *q, float *turned)
{
    const size_t dim = test->args.head_dim;
    double x[512];
    if (test->args.format.coding != KVA_CODING_TURNED)
        return q;
    for (size_t i = 0; i < dim; i++)
        x[i] = q[i];
    turn_truth(x, dim, false, false);
    for (size_t i = 0; i < dim; i++)
        turned[i] = (float)x[i];
    return turned;
}

/* Sums of turned values, back. */
static void turn_truth_back(const struct lowbit_test *test, struct truth *truth)
{
    const size_t dim = test->args.head_dim;
    double most = 0;
    if (test->args.format.coding != KVA_CODING_TURNED)
        return;
    for (size_t i = 0; i < dim; i++)
        most = fmax(most, fabs(truth->a[i]));
    turn_truth(truth->a, dim, true, false);
    turn_truth(truth->a_bound, dim, true, true);
    for (size_t i = 0; i < dim; i++)
        truth->a_bound[i] += 16 * UNIT * sqrt((double)dim) * most;
}

/* What all scores of a pair lack whose keys are without a mean, and how far that may be off. */
static double shift_truth(const struct lowbit_test *test, const struct kva_select_seq *seq,
                          uint32_t kv_head, const float *q, double *ret_bound)
{
    const size_t dim = test->args.head_dim;
    double sum = 0, size = 0;
    for (size_t i = 0; seq->mean && i < dim; i++) {
        const double x =
            (double)q[i] * (double)test->args.scale * (double)seq->mean[kv_head * dim + i];
        sum += x;
        size += fabs(x);
    }
    *ret_bound = ((double)dim + 8) * UNIT * 3 * size;
    return sum;
}

/* Which positions of a sequence and KV head take part; the caller frees. */
static bool *find_attends(const struct lowbit_test *test, uint32_t seq, uint32_t kv_head)
{
    const struct lowbit_seq_data *data = &test->data[seq];
    size_t tokens = (size_t)test->seqs[seq].page_count * 64;
    bool *attends = malloc(tokens + 1);
    memset(attends, test->part != LOWBIT_ROWS, tokens + 1);
    for (uint32_t i = 0; data->cache && i < data->counts[kv_head]; i++)
        attends[data->positions[kv_head * LOWBIT_CACHED_MAX + i]] = test->part != LOWBIT_PAGES;
    return attends;
}

void lowbit_truth(const struct lowbit_test *test, enum lowbit_precision precision, double *expect,
                  double *bound)
{
    const struct kva_attend_select_fetch_args *args = &test->args;
    size_t dim = args->head_dim, heads = args->heads, cols = heads * (dim + 2);
    uint32_t group = args->heads / args->kv_heads;
    double *scores = malloc((LOWBIT_PAGES_MAX * 64 + 1) * sizeof *scores);
    for (uint32_t s = 0; s < args->seq_count; s++) {
        const struct kva_select_seq *seq = &test->seqs[s];
        for (uint32_t kv_head = 0; kv_head < args->kv_heads; kv_head++) {
            double *kv = lowbit_widen(test, s, kv_head), *scales = widen_scales(test, s, kv_head);
            bool *attends = find_attends(test, s, kv_head);
            struct rounding rounding = {
                .k_scale = scales, .on = precision == LOWBIT_BYTES, .gpu = precision == LOWBIT_GPU};
            rounding.v_scale = scales + (size_t)seq->page_count * 64 * dim;
            for (uint32_t i = 0; i < seq->row_count * group; i++) {
                size_t row = seq->row_first + i / group, head = kv_head * group + i % group;
                double *e = expect + row * cols, *b = bound + row * cols;
                struct truth truth = {.a = e + head * dim, .a_bound = b + head * dim};
                float turned[512];
                const float *from = (const float *)args->q + row * args->q_stride + head * dim;
                const float *q = turned_query(test, from, turned);
                double shift_bound;
                rounding.shift = shift_truth(test, seq, kv_head, from, &shift_bound);
                pair_truth(test, lowbit_first_seen(test, seq->position_first + i / group),
                           seq->page_count * 64, q, kv, attends, &rounding, scores, &truth);
                turn_truth_back(test, &truth);
                e[heads * dim + head] = truth.m + rounding.shift;
                e[heads * (dim + 1) + head] = truth.e;
                b[heads * dim + head] = truth.m_bound + shift_bound;
                b[heads * (dim + 1) + head] = truth.e_bound;
            }
            free(attends);
            free(scales);
            free(kv);
        }
    }
    free(scores);
}

void lowbit_adjust(const struct check_case *test, const float *out, double *expect, double *bound)
{
    const struct lowbit_test *lowbit = test->opaque;
    check_adjust_partial(test, lowbit->args.heads, lowbit->args.head_dim, out, expect, bound);
}
