/* Cases of attend. */
#include "tests/cuda/check.h"
#include "tests/kernels/ranges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQS_MAX   3
#define RANGES_MAX 16
#define PAGES_MAX  256

struct shape {
    uint32_t heads, kv_heads, dim;
};

/* A call on both devices. Pages of sequence s: [s * PAGES_MAX ..]. */
struct attend_case {
    struct kva_attend_args args; /* the CPU's */
    struct kva_attend_seq seqs[SEQS_MAX];
    struct kva_attend_range ranges[SEQS_MAX * RANGES_MAX];
    const void *cpu_blocks[SEQS_MAX * RANGES_MAX * PAGES_MAX / 4];
    const void *gpu_blocks[SEQS_MAX * RANGES_MAX * PAGES_MAX / 4];
    void *cpu_pages[SEQS_MAX * PAGES_MAX], *gpu_pages[SEQS_MAX * PAGES_MAX];
    uint32_t tokens[SEQS_MAX];
    uint32_t range_count, block_count, rows;
    size_t page_bytes;
    struct acts q;
};

/* Partial results, host copies: a [rows, heads, dim], then m and e [rows, heads]. */
struct result {
    float *a, *m, *e;
    size_t pairs, dim;
};

static struct result result_new(size_t pairs, size_t dim)
{
    float *all = calloc(pairs * (dim + 2) + 1, sizeof *all);
    return (struct result){all, all + pairs * dim, all + pairs * (dim + 1), pairs, dim};
}

static size_t result_bytes(const struct result *r)
{
    return r->pairs * (r->dim + 2) * sizeof(float);
}

/* --- building --------------------------------------------------------------------------------- */

static void make_pages(struct check *check, struct attend_case *test, uint32_t s)
{
    const struct kva_attend_args *args = &test->args;
    size_t dim = args->head_dim;
    for (uint32_t page = 0; page * KVA_PAGE_TOKENS < test->tokens[s]; page++) {
        uint16_t *data = malloc(test->page_bytes);
        uint16_t *block = data + args->block_offset_bytes / 2;
        memset(data, 0x7F, test->page_bytes);
        for (size_t row = 0; row < (size_t)args->kv_heads * KVA_PAGE_TOKENS; row++) {
            /* What no row may look at is not a number. */
            bool there = page * KVA_PAGE_TOKENS + row % KVA_PAGE_TOKENS < test->tokens[s];
            for (size_t i = 0; i < 2 * dim; i++) {
                if (there)
                    check_store(block, row * 2 * dim + i,
                                check_round(check_normal(check), args->kv_dtype), args->kv_dtype);
                else
                    block[row * 2 * dim + i] = 0x7FFF;
            }
        }
        test->cpu_pages[s * PAGES_MAX + page] = data;
        test->gpu_pages[s * PAGES_MAX + page] = gpu_new(check, data, test->page_bytes);
    }
}

static void add_range(struct attend_case *test, uint32_t s, uint32_t first, uint32_t end)
{
    test->ranges[test->range_count++] = (struct kva_attend_range){.format = KVA_KV_16BIT,
                                                                  .token_first = first,
                                                                  .token_count = end - first,
                                                                  .block_first = test->block_count};
    for (uint32_t page = first / KVA_PAGE_TOKENS; page <= (end - 1) / KVA_PAGE_TOKENS; page++) {
        test->cpu_blocks[test->block_count] = test->cpu_pages[s * PAGES_MAX + page];
        test->gpu_blocks[test->block_count++] = test->gpu_pages[s * PAGES_MAX + page];
    }
    test->seqs[s].range_count++;
}

/* One range over everything, or up to RANGES_MAX that leave holes if `holes`. */
static void add_ranges(struct check *check, struct attend_case *test, bool many, bool holes)
{
    test->range_count = test->block_count = 0;
    for (uint32_t s = 0; s < test->args.seq_count; s++) {
        uint32_t tokens = test->tokens[s], at = 0;
        test->seqs[s].range_first = test->range_count;
        test->seqs[s].range_count = 0;
        for (int i = 0; many && i < RANGES_MAX - 1 && at + 1 < tokens; i++) {
            uint32_t end = at + 1 + check_below(check, kva_min_u32(tokens - at - 1, 150));
            add_range(test, s, at, end);
            at = end + (holes ? check_below(check, 100) : 0);
        }
        if (at < tokens)
            add_range(test, s, at, tokens);
    }
}

static void make_q(struct check *check, struct attend_case *test)
{
    struct kva_attend_args *args = &test->args;
    args->q_stride = (args->heads + check_below(check, 2)) * args->head_dim;
    size_t count = (size_t)test->rows * args->q_stride;
    test->q = acts_new(check, check->act, count, 1.0f);
    unsigned char *bytes = malloc(count * 4);
    /* Exact in every format: only the probabilities are rounded on the way. */
    for (size_t i = 0; i < count; i++) {
        test->q.cpu[i] = check_round(check_round(test->q.cpu[i], KVA_F16), KVA_BF16);
        check_store(bytes, i, test->q.cpu[i], check->act);
    }
    gpu_free(check, test->q.gpu, count * kva_dtype_bytes(check->act));
    test->q.gpu = gpu_new(check, bytes, count * kva_dtype_bytes(check->act));
    free(bytes);
    args->q = test->q.cpu;
}

/* --- running ---------------------------------------------------------------------------------- */

static struct result run_cpu(struct check *check, const struct attend_case *test)
{
    struct kva_attend_args args = test->args;
    struct result out = result_new((size_t)test->rows * args.heads, args.head_dim);
    args.seqs = test->seqs;
    args.ranges = test->ranges;
    args.blocks = test->cpu_blocks;
    args.out = (struct kva_partial){out.a, out.m, out.e};
    kva_device_ops(check->cpu)->attend(check->cpu, &args);
    return out;
}

/* The call with these sequences, on `rows` rows of q from `q_first` on; with `cut`, in two calls:
 * tokens before it, then the others folded in. */
static struct result run_gpu(struct check *check, const struct attend_case *test,
                             const struct kva_attend_seq *seqs, uint32_t seq_count,
                             uint32_t q_first, uint32_t rows, uint32_t cut)
{
    struct kva_attend_args args = test->args;
    struct kva_attend_range ranges[2][SEQS_MAX * RANGES_MAX];
    struct kva_attend_seq part[SEQS_MAX];
    size_t dim = args.head_dim, pairs = (size_t)rows * args.heads;
    struct result out = result_new(pairs, dim);
    float *to = gpu_new(check, NULL, result_bytes(&out));
    args.q = (unsigned char *)test->q.gpu +
             (size_t)q_first * args.q_stride * kva_dtype_bytes(check->act);
    args.seq_count = seq_count;
    args.blocks = test->gpu_blocks;
    args.out = (struct kva_partial){to, to + pairs * dim, to + pairs * (dim + 1)};
    for (int half = cut ? 0 : 1; half < 2; half++) {
        uint32_t low = half == 0 ? 0 : cut, high = half == 0 ? cut : UINT32_MAX;
        args.seqs = seqs;
        args.ranges = test->ranges;
        ranges_within(&args, low, high, part, ranges[half]);
        args.accumulate = cut && half == 1;
        kva_device_ops(check->gpu)->attend(check->gpu, &args);
    }
    gpu_read(check, out.a, to, result_bytes(&out));
    gpu_free(check, to, result_bytes(&out));
    return out;
}

/* --- comparing -------------------------------------------------------------------------------- */

/* a and e are relative to m: both are brought to the CPU's m. The probabilities were rounded to the
 * KV format on their way to the product with V. */
static void compare(struct check *check, const char *name, const struct attend_case *test,
                    const struct result *got, const struct result *want)
{
    double unit = check_unit(test->args.kv_dtype);
    check_close(check, name, got->m, want->m, NULL, got->pairs, 0x1p-18, 0x1p-16);
    for (size_t pair = 0; pair < got->pairs; pair++) {
        float factor = want->m[pair] == -INFINITY ? 1.0f : expf(got->m[pair] - want->m[pair]);
        float size[512];
        for (size_t i = 0; i < got->dim; i++) {
            got->a[pair * got->dim + i] *= factor;
            size[i] = 4.0f * want->e[pair]; /* |v| is under 4 */
        }
        got->e[pair] *= factor;
        check_close(check, name, got->a + pair * got->dim, want->a + pair * got->dim, size,
                    got->dim, 0x1p-14, 0.5 * unit + 0x1p-14);
    }
    check_close(check, name, got->e, want->e, NULL, got->pairs, 0x1p-12, 0);
}

static void check_bits(struct check *check, const char *name, struct attend_case *test,
                       const struct result *whole)
{
    struct result again = run_gpu(check, test, test->seqs, test->args.seq_count, 0, test->rows, 0);
    char text[160];
    snprintf(text, sizeof text, "%s, again", name);
    check_same(check, text, again.a, whole->a, result_bytes(whole));
    free(again.a);
    uint32_t cut = KVA_ATTEND_SPLIT_TOKENS * check_between(check, 1, 3);
    struct result cuts = run_gpu(check, test, test->seqs, test->args.seq_count, 0, test->rows, cut);
    snprintf(text, sizeof text, "%s, folded from %u on", name, cut);
    check_same(check, text, cuts.a, whole->a, result_bytes(whole));
    free(cuts.a);
    for (int i = 0; i < 3; i++) {
        struct kva_attend_seq seq = test->seqs[check_below(check, test->args.seq_count)];
        uint32_t row = check_below(check, seq.row_count), first = seq.row_first + row;
        seq.position_first += row;
        seq.row_count = kva_min_u32(seq.row_count - row, check_between(check, 1, 3));
        seq.row_first = 0;
        struct result some = run_gpu(check, test, &seq, 1, first, seq.row_count, 0);
        size_t heads = test->args.heads, at = first * heads;
        snprintf(text, sizeof text, "%s, rows %u .. alone", name, first);
        check_same(check, text, some.a, whole->a + at * some.dim,
                   some.pairs * some.dim * sizeof(float));
        check_same(check, text, some.m, whole->m + at, some.pairs * sizeof(float));
        check_same(check, text, some.e, whole->e + at, some.pairs * sizeof(float));
        free(some.a);
    }
}

static void run_case(struct check *check, const struct shape *shape, const uint32_t *rows,
                     const uint32_t *positions, uint32_t window, enum kva_dtype kv_dtype)
{
    struct attend_case *test = calloc(1, sizeof *test);
    struct kva_attend_args *args = &test->args;
    char name[128];
    args->heads = shape->heads;
    args->kv_heads = shape->kv_heads;
    args->head_dim = shape->dim;
    args->window = window;
    args->kv_dtype = kv_dtype;
    args->scale = 1.0f / sqrtf((float)shape->dim);
    args->block_offset_bytes =
        check_below(check, 2) * kva_kv_block_bytes(shape->kv_heads, shape->dim);
    test->page_bytes = args->block_offset_bytes + kva_kv_block_bytes(shape->kv_heads, shape->dim);
    for (uint32_t s = 0; s < SEQS_MAX && rows[s] > 0; s++) {
        test->seqs[s] = (struct kva_attend_seq){
            .row_first = test->rows, .row_count = rows[s], .position_first = positions[s]};
        test->tokens[s] = positions[s] + rows[s];
        test->rows += rows[s];
        args->seq_count++;
        make_pages(check, test, s);
    }
    make_q(check, test);
    add_ranges(check, test, false, false);
    snprintf(name, sizeof name, "rows %u,%u,%u at %u,%u,%u heads %u/%u dim %u window %u %s",
             rows[0], rows[1], rows[2], positions[0], positions[1], positions[2], shape->heads,
             shape->kv_heads, shape->dim, window, kva_dtype_name(kv_dtype));
    struct result want = run_cpu(check, test);
    struct result got = run_gpu(check, test, test->seqs, args->seq_count, 0, test->rows, 0);
    check_bits(check, name, test, &got);
    add_ranges(check, test, true, false);
    struct result pieces = run_gpu(check, test, test->seqs, args->seq_count, 0, test->rows, 0);
    check_same(check, "ranges that touch", pieces.a, got.a, result_bytes(&got));
    compare(check, name, test, &got, &want);
    free(want.a);
    free(pieces.a);
    add_ranges(check, test, true, true);
    pieces = run_gpu(check, test, test->seqs, args->seq_count, 0, test->rows, 0);
    want = run_cpu(check, test);
    compare(check, "ranges with holes", test, &pieces, &want);
    free(want.a);
    free(pieces.a);
    free(got.a);
    for (size_t i = 0; i < SEQS_MAX * PAGES_MAX; i++) {
        free(test->cpu_pages[i]);
        gpu_free(check, test->gpu_pages[i], test->page_bytes);
    }
    acts_free(check, &test->q);
    free(test);
}

void check_attend(struct check *check)
{
    static const struct shape shapes[] = {{4, 2, 64}, {8, 2, 128}, {3, 3, 16},
                                          {4, 1, 80}, {2, 1, 12},  {2, 2, 256}};
    static const uint32_t rows[][SEQS_MAX] = {{1, 0, 0}, {1, 1, 1}, {2, 1, 0}, {70, 5, 0}};
    static const uint32_t positions[][SEQS_MAX] = {
        {700, 0, 0}, {0, 63, 300}, {1030, 130, 0}, {200, 0, 0}};
    check->op = "attend";
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(rows); j++) {
            /* Long prompts of the widest heads take a GPU. */
            if (j == 3 && i != 0 && i != 2 && !check->large)
                continue;
            uint32_t window = check_below(check, 3) == 0 ? check_between(check, 1, 400) : 0;
            run_case(check, &shapes[i], rows[j], positions[j], window,
                     (i + j) % 2 ? KVA_F16 : KVA_BF16);
        }
    }
    static const struct shape real = {32, 8, 128};
    static const uint32_t real_rows[][SEQS_MAX] = {{1, 1, 2}, {300, 1, 17}};
    static const uint32_t real_positions[][SEQS_MAX] = {{9000, 77, 4095}, {1500, 8000, 255}};
    for (size_t j = 0; j < 2 && check->large; j++)
        run_case(check, &real, real_rows[j], real_positions[j], 0, KVA_BF16);
}
