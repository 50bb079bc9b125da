/* Cases of attend_mass: against sums in fp64, in any chunks of rows. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGES_MAX  16
#define RANGES_MAX 4
#define PARTIALS   3

struct shape {
    uint32_t heads, kv_heads, head_dim;
};

/* Rows of two sequences over the same pages: the first sees tokens by position; the second, of one
 * row, is past them all, as a store's rows are. */
struct mass_test {
    struct kva_attend_mass_args args;
    struct kva_mass_seq seqs[2];
    struct kva_attend_range ranges[RANGES_MAX];
    const void *blocks[PAGES_MAX];
    struct check_buf pages[PAGES_MAX], q, mass[2];
    struct check_buf m[PARTIALS], e[PARTIALS];
    struct kva_partial partials[PARTIALS];
    struct check_buf scores[2], attended; /* of one row of each sequence, and what attend gives */
    uint32_t tokens, page_count, rows;
    float *before; /* what mass was, of both sequences */
};

/* How scores are made: from queries as they are, in bf16 once scaled, or in the KV's format. */
enum precision { PRECISE, BF16_PRODUCTS, GPU };

/* --- building --------------------------------------------------------------------------------- */

static uint32_t splits_of(const struct mass_test *test)
{
    return (uint32_t)kva_div_up(test->tokens, KVA_ATTEND_SPLIT_TOKENS);
}

static bool in_ranges(const struct mass_test *test, const struct kva_mass_seq *seq, uint32_t token)
{
    for (uint32_t i = 0; i < seq->range_count; i++) {
        const struct kva_attend_range *range = &test->ranges[seq->range_first + i];
        if (token >= range->token_first && token < range->token_first + range->token_count)
            return true;
    }
    return false;
}

/* What no row may look at is not a number. */
static void make_pages(struct check *check, struct mass_test *test)
{
    const struct kva_attend_mass_args *args = &test->args;
    const size_t dim = args->head_dim;
    const size_t bytes = kva_kv_block_bytes(args->kv_heads, args->head_dim) + 32;
    test->page_count = (uint32_t)kva_div_up(test->tokens, KVA_PAGE_TOKENS);
    for (uint32_t page = 0; page < test->page_count; page++) {
        check_weight(check, &test->pages[page], args->kv_dtype, FILL_NORMAL, (uint32_t)(bytes / 2),
                     1);
        uint16_t *data = (uint16_t *)test->pages[page].data + 16;
        for (uint32_t i = 0; i < args->kv_heads * KVA_PAGE_TOKENS; i++) {
            const uint32_t token = page * KVA_PAGE_TOKENS + i % KVA_PAGE_TOKENS;
            for (size_t j = 0; j < dim; j++) {
                data[i * 2 * dim + dim + j] = 0x7FFF; /* values */
                if (!in_ranges(test, &test->seqs[0], token))
                    data[i * 2 * dim + j] = 0x7FFF;
            }
        }
        test->blocks[page] = test->pages[page].data;
    }
}

/* One range, or two with a hole between them, both from the same blocks. */
static void make_ranges(struct check *check, struct mass_test *test, bool holes)
{
    uint32_t first = holes ? check_below(check, test->tokens / 2 + 1) : 0;
    uint32_t middle = holes ? check_between(check, first + 1, test->tokens) : test->tokens;
    uint32_t next = kva_min_u32(middle + check_below(check, 70), test->tokens);
    test->ranges[0] =
        (struct kva_attend_range){.token_first = first, .token_count = middle - first};
    test->ranges[1] =
        (struct kva_attend_range){.token_first = next, .token_count = test->tokens - next};
    for (uint32_t i = 0; i < 2; i++)
        test->ranges[i].block_first = test->ranges[i].token_first / KVA_PAGE_TOKENS;
    for (uint32_t i = 0; i < 2; i++) {
        test->seqs[i].range_count = test->ranges[1].token_count > 0 ? 2 : 1;
        test->seqs[i].mass_first = first / 2;
        test->seqs[i].mass_stride = test->tokens - first / 2 + check_below(check, 5);
    }
}

static double query_as(const struct mass_test *test, enum precision precision, float q)
{
    if (precision == BF16_PRODUCTS)
        return check_round_bf16((double)(q * test->args.scale));
    return (precision == GPU ? (double)format_round(q, test->args.kv_dtype) : (double)q) *
           (double)test->args.scale;
}

static const float *query_of(const struct mass_test *test, uint32_t row, uint32_t head)
{
    return (const float *)test->q.data + (size_t)row * test->args.q_stride +
           (size_t)head * test->args.head_dim;
}

static double score(const struct mass_test *test, uint32_t row, uint32_t head, uint32_t token,
                    enum precision precision, double *size)
{
    const size_t dim = test->args.head_dim;
    const uint32_t kv_head = head / (test->args.heads / test->args.kv_heads);
    const uint16_t *k = (const uint16_t *)test->blocks[token / KVA_PAGE_TOKENS] + 16 +
                        (kv_head * KVA_PAGE_TOKENS + token % KVA_PAGE_TOKENS) * 2 * dim;
    const float *q = query_of(test, row, head);
    double sum = 0;
    *size = 0;
    for (size_t i = 0; i < dim; i++) {
        double product = query_as(test, precision, q[i]) * check_widen(k[i], test->args.kv_dtype);
        sum += product;
        *size += fabs(product);
    }
    return sum;
}

/* m and e of one row and head, about those that attention would give, over the partial results; one
 * in nine saw nothing. */
static void make_total(struct check *check, struct mass_test *test, uint32_t row, uint32_t head)
{
    const size_t pair = (size_t)row * test->args.heads + head;
    const bool nothing = check_below(check, 9) == 0;
    double top = 0, size;
    for (int i = 0; i < 5; i++)
        top = fmax(top, score(test, row, head, test->ranges[0].token_first, PRECISE, &size));
    for (int i = 0; i < PARTIALS; i++) {
        const bool empty = nothing || (i == 1 && check_below(check, 2));
        ((float *)test->m[i].data)[pair] =
            empty ? -INFINITY : (float)top + 0.5f * fabsf(check_normal(check));
        ((float *)test->e[i].data)[pair] = empty ? 0.0f : 1.0f + 9.0f * fabsf(check_normal(check));
    }
}

static void make_test(struct check *check, struct mass_test *test, bool holes)
{
    struct kva_attend_mass_args *args = &test->args;
    make_ranges(check, test, holes);
    make_pages(check, test);
    args->q_stride = args->heads * args->head_dim + (check_below(check, 2) ? 3 : 8);
    test->q = check_buf_new((size_t)test->rows * args->q_stride * sizeof(float));
    check_fill(check, FILL_NORMAL, test->q.data, (size_t)test->rows * args->q_stride);
    const size_t pairs = (size_t)test->rows * args->heads;
    for (int i = 0; i < PARTIALS; i++) {
        test->m[i] = check_buf_new(pairs * sizeof(float));
        test->e[i] = check_buf_new(pairs * sizeof(float));
        test->partials[i] = (struct kva_partial){.m = test->m[i].data, .e = test->e[i].data};
    }
    for (uint32_t row = 0; row < test->rows; row++) {
        for (uint32_t head = 0; head < args->heads; head++)
            make_total(check, test, row, head);
    }
    size_t floats = 0;
    for (int i = 0; i < 2; i++) {
        const size_t count = (size_t)args->kv_heads * test->seqs[i].mass_stride;
        test->mass[i] = check_buf_new(count * sizeof(float));
        test->seqs[i].mass = test->mass[i].data;
        floats += count;
    }
    for (int i = 0; i < 2; i++) {
        test->scores[i] = check_buf_new((size_t)args->heads * splits_of(test) *
                                        KVA_ATTEND_SPLIT_TOKENS * sizeof(float));
        check_buf_garbage(check, &test->scores[i]);
    }
    test->attended = check_buf_new(pairs * (args->head_dim + 2) * sizeof(float));
    test->before = malloc(floats * sizeof *test->before);
    for (size_t i = 0; i < floats; i++)
        test->before[i] = 3 * fabsf(check_normal(check));
    args->q = test->q.data;
    args->seqs = test->seqs;
    args->ranges = test->ranges;
    args->blocks = test->blocks;
    args->partials = test->partials;
    args->block_offset_bytes = 32;
}

static void free_test(struct mass_test *test)
{
    for (uint32_t i = 0; i < test->page_count; i++)
        check_buf_free(&test->pages[i]);
    for (int i = 0; i < PARTIALS; i++) {
        check_buf_free(&test->m[i]);
        check_buf_free(&test->e[i]);
    }
    check_buf_free(&test->mass[0]);
    check_buf_free(&test->mass[1]);
    check_buf_free(&test->scores[0]);
    check_buf_free(&test->scores[1]);
    check_buf_free(&test->attended);
    check_buf_free(&test->q);
    free(test->before);
}

/* --- truth ------------------------------------------------------------------------------------ */

/* What a row and head add to a token, and how far that may be off. A score is off by head_dim + 3
 * roundings of its size, an exponential by twice that of its score and of its m, 2 units and the
 * rounding of its argument; on a GPU by 2 units more and three of its argument. */
static double given(const struct mass_test *test, uint32_t row, uint32_t head, uint32_t token,
                    enum precision precision, double *bound)
{
    const size_t pair = (size_t)row * test->args.heads + head;
    double m = -INFINITY, e = 0, size;
    for (uint32_t i = 0; i < test->args.partial_count; i++)
        m = fmax(m, (double)test->partials[i].m[pair]);
    for (uint32_t i = 0; i < test->args.partial_count && m > -INFINITY; i++)
        e += (double)test->partials[i].e[pair] * exp((double)test->partials[i].m[pair] - m);
    *bound = 0;
    if (!(e > 0))
        return 0;
    double s = score(test, row, head, token, precision, &size);
    double p = exp(s - m) / e, range = fabs(s) + fabs(m);
    *bound = p * (2 * ((double)test->args.head_dim + 3) * UNIT * size +
                  UNIT * (24 + range * (precision == GPU ? 3 : 2))) +
             0x1p-120;
    return p;
}

/* What a sequence's mass should be, and how far off it may be: [kv_heads][mass_stride] of each. */
struct truth {
    double *expect, *bound;
};

static struct truth truth_of(const struct mass_test *test, uint32_t s, enum precision precision)
{
    const struct kva_mass_seq *seq = &test->seqs[s];
    const uint32_t group = test->args.heads / test->args.kv_heads;
    const uint32_t count = test->args.kv_heads * seq->mass_stride;
    const float *before = test->before + (s ? test->mass[0].bytes / sizeof(float) : 0);
    struct truth truth = {malloc(count * sizeof(double)), malloc(count * sizeof(double))};
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t token = seq->mass_first + i % seq->mass_stride;
        double expect = (double)before[i], bound = 0;
        uint32_t terms = 0;
        const bool there = token < test->tokens && in_ranges(test, seq, token);
        for (uint32_t row = 0; there && row < seq->row_count; row++) {
            for (uint32_t h = 0; h < group && seq->position_first + row >= token; h++) {
                double off;
                expect += given(test, seq->row_first + row, i / seq->mass_stride * group + h, token,
                                precision, &off);
                bound += off;
                terms++;
            }
        }
        truth.expect[i] = expect;
        truth.bound[i] = there ? bound + expect * UNIT * (terms + 1) : 0;
    }
    return truth;
}

/* Where nothing may be added, bits stay. */
static const char *compare(const struct mass_test *test, uint32_t s, const struct truth *truth)
{
    const struct kva_mass_seq *seq = &test->seqs[s];
    for (uint32_t i = 0; i < test->args.kv_heads * seq->mass_stride; i++) {
        if (!(fabs((double)seq->mass[i] - truth->expect[i]) <= truth->bound[i]))
            return truth->bound[i] > 0 ? "other sums" : "changed what is no token's";
    }
    return NULL;
}

/* --- running ---------------------------------------------------------------------------------- */

/* Attention of the sequences' one row each, which keeps its scores. */
static void keep_scores(struct mass_test *test, const struct check_variant *variant,
                        struct kva_device *device, struct kva_mass_seq *seqs, uint32_t count)
{
    const struct kva_attend_mass_args *args = &test->args;
    const size_t pairs = (size_t)test->rows * args->heads;
    float *out = test->attended.data;
    struct kva_attend_seq attend[2];
    for (uint32_t i = 0; i < count; i++) {
        seqs[i].scores = (struct kva_attend_scores){test->scores[i].data, 0, splits_of(test)};
        attend[i] = (struct kva_attend_seq){.row_first = seqs[i].row_first,
                                            .row_count = 1,
                                            .position_first = seqs[i].position_first,
                                            .range_first = seqs[i].range_first,
                                            .range_count = seqs[i].range_count,
                                            .scores = seqs[i].scores};
    }
    variant->ops.attend(device,
                        &(struct kva_attend_args){.q = args->q,
                                                  .out = {out, out + pairs * args->head_dim,
                                                          out + pairs * (args->head_dim + 1)},
                                                  .seqs = attend,
                                                  .ranges = args->ranges,
                                                  .blocks = args->blocks,
                                                  .block_offset_bytes = args->block_offset_bytes,
                                                  .seq_count = count,
                                                  .q_stride = args->q_stride,
                                                  .heads = args->heads,
                                                  .kv_heads = args->kv_heads,
                                                  .head_dim = args->head_dim,
                                                  .kv_dtype = args->kv_dtype,
                                                  .scale = args->scale});
}

/* Rows of both sequences, `chunk` of the first one at a time; of one at a time attention has kept
 * the scores. */
static void run_chunks(struct mass_test *test, const struct check_variant *variant,
                       struct kva_device *device, uint32_t chunk)
{
    memcpy(test->mass[0].data, test->before, test->mass[0].bytes);
    memcpy(test->mass[1].data, (char *)test->before + test->mass[0].bytes, test->mass[1].bytes);
    for (uint32_t first = 0; first < test->seqs[0].row_count; first += chunk) {
        struct kva_mass_seq seqs[2] = {test->seqs[0], test->seqs[1]};
        struct kva_attend_mass_args args = test->args;
        seqs[0].row_first += first;
        seqs[0].position_first += first;
        seqs[0].row_count = kva_min_u32(chunk, test->seqs[0].row_count - first);
        args.seqs = seqs;
        args.seq_count = first == 0 ? 2 : 1;
        if (chunk == 1)
            keep_scores(test, variant, device, seqs, args.seq_count);
        variant->ops.attend_mass(device, &args);
    }
}

static const char *run_test(struct mass_test *test, const struct check_variant *variant,
                            struct kva_device *device, const struct truth *truths, float *first)
{
    const size_t bytes[2] = {test->mass[0].bytes, test->mass[1].bytes};
    const uint32_t chunks[] = {UINT32_MAX / 2, 7, 1};
    const char *reason = NULL;
    for (size_t i = 0; i < KVA_COUNT_OF(chunks); i++) {
        run_chunks(test, variant, device, chunks[i]);
        if (!check_buf_intact(&test->mass[0]) || !check_buf_intact(&test->mass[1]) ||
            !check_buf_intact(&test->scores[0]) || !check_buf_intact(&test->scores[1]))
            return "wrote before its output";
        if (i == 0 && device == variant->one) {
            memcpy(first, test->mass[0].data, bytes[0]);
            memcpy((char *)first + bytes[0], test->mass[1].data, bytes[1]);
        }
        if (memcmp(first, test->mass[0].data, bytes[0]) != 0 ||
            memcmp((char *)first + bytes[0], test->mass[1].data, bytes[1]) != 0)
            return i == 0          ? "other bits with several threads"
                   : chunks[i] > 1 ? "other bits in chunks"
                                   : "other bits from the scores that were kept";
        for (uint32_t s = 0; s < 2 && !reason; s++)
            reason = compare(test, s, &truths[s]);
    }
    return reason;
}

static enum precision precision_of(const struct check_variant *variant, enum kva_dtype dtype)
{
    const uint32_t rounding = KVA_CPU_AVX512BF16 | KVA_CPU_AMX;
    if (variant->levels & CHECK_LEVEL_CUDA)
        return GPU;
    return dtype == KVA_BF16 && variant->levels & rounding ? BF16_PRODUCTS : PRECISE;
}

static void mass_case(struct check *check, struct shape shape, enum kva_dtype dtype,
                      uint32_t tokens, uint32_t rows, uint32_t partial_count)
{
    struct mass_test test = {.tokens = tokens, .rows = rows + 1};
    struct check_variant *variant;
    struct kva_device *device;
    const double work = (double)(rows + 1) * tokens * shape.heads * shape.head_dim / 16;
    const bool holes = check_below(check, 2) && tokens > 2;
    uint32_t run = 0;
    char name[120];
    if (!check_wanted(check, OP_ATTEND_MASS, work))
        return;
    test.args = (struct kva_attend_mass_args){.heads = shape.heads,
                                              .kv_heads = shape.kv_heads,
                                              .head_dim = shape.head_dim,
                                              .kv_dtype = dtype,
                                              .seq_count = 2,
                                              .partial_count = partial_count,
                                              .scale = 1 / sqrtf((float)shape.head_dim)};
    /* The last row is at the last token; with more rows than tokens, all are. */
    test.seqs[0].row_count = kva_min_u32(rows, tokens);
    test.seqs[0].position_first = tokens - test.seqs[0].row_count;
    test.seqs[1] = (struct kva_mass_seq){
        .row_first = rows, .row_count = 1, .position_first = tokens + check_below(check, 1000)};
    make_test(check, &test, holes);
    snprintf(name, sizeof name, "%s heads %u/%u dim %u tokens %u rows %u partials %u%s",
             kva_dtype_name(dtype), shape.heads, shape.kv_heads, shape.head_dim, tokens, rows,
             partial_count, holes ? " holes" : "");
    float *first = malloc(test.mass[0].bytes + test.mass[1].bytes);
    struct truth truths[GPU + 1][2] = {0};
    while (check_next_run(check, work, &run, &variant, &device)) {
        const enum precision precision = precision_of(variant, dtype);
        for (uint32_t i = 0; i < 2; i++) {
            if (!truths[precision][i].expect)
                truths[precision][i] = truth_of(&test, i, precision);
        }
        check_count_run(check, variant, OP_ATTEND_MASS, device, name,
                        run_test(&test, variant, device, truths[precision], first));
    }
    for (uint32_t i = 0; i < 2 * (GPU + 1); i++) {
        free(truths[i / 2][i % 2].expect);
        free(truths[i / 2][i % 2].bound);
    }
    free(first);
    free_test(&test);
}

void check_attend_mass(struct check *check)
{
    const struct shape shapes[] = {{4, 4, 64},  {6, 2, 80}, {8, 1, 128}, {2, 1, 256},
                                   {72, 1, 16}, {3, 3, 20}, {1, 1, 7},   {5, 1, 100}};
    const uint32_t tokens[] = {1, 63, 64, 200, 257, 600};
    const uint32_t rows[] = {1, 5, 23, 70};
    for (size_t s = 0; s < KVA_COUNT_OF(shapes); s++) {
        for (size_t t = 0; t < KVA_COUNT_OF(tokens); t++) {
            for (size_t r = 0; r < KVA_COUNT_OF(rows); r++) {
                if ((s + t + r) % (check->quick ? 5 : 3) != 0)
                    continue;
                mass_case(check, shapes[s], (t + r / 2) % 2 ? KVA_F16 : KVA_BF16, tokens[t],
                          rows[r], 1 + (uint32_t)((t + r) % PARTIALS));
            }
        }
    }
}
