/* Cases of attend_apart and attend_join: the bits of attend, going on from the same result. */
#include "tests/kernels/checkasm.h"
#include "tests/kernels/ranges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS_MAX = 4, RANGES_EACH = 3, PAGES_EACH = 100, PAGES_MADE = 8, ROWS_MAX = 3 };

struct join_test {
    struct kva_attend_args args; /* out: none yet */
    struct kva_attend_seq seqs[SEQS_MAX];
    struct kva_attend_range ranges[SEQS_MAX * RANGES_EACH];
    const void *blocks[SEQS_MAX * PAGES_EACH];
    struct check_buf kv, q;
    uint32_t rows;
    uint32_t cut; /* attend begins with the tokens before it, and goes on with the others */
};

/* --- building --------------------------------------------------------------------------------- */

/* Ranges of [0, tokens): one, or several with holes between them. */
static void add_ranges(struct check *check, struct join_test *test, uint32_t index, uint32_t tokens)
{
    struct kva_attend_seq *seq = &test->seqs[index];
    const uint32_t count = check_between(check, 1, RANGES_EACH);
    seq->range_first = index * RANGES_EACH;
    for (uint32_t i = 0, at = 0; i < count && at < tokens; i++) {
        uint32_t end = i + 1 == count ? tokens : at + 1 + check_below(check, tokens - at);
        test->ranges[seq->range_first + seq->range_count++] =
            (struct kva_attend_range){.format = KVA_KV_16BIT,
                                      .token_first = at,
                                      .token_count = end - at,
                                      .block_first = index * PAGES_EACH + at / KVA_PAGE_TOKENS};
        at = end + check_below(check, 2) * check_below(check, 90);
    }
}

static void build(struct check *check, struct join_test *test, uint32_t seqs, uint32_t rows_max)
{
    struct kva_attend_args *args = &test->args;
    const size_t block_bytes = kva_kv_block_bytes(args->kv_heads, args->head_dim);
    check_weight(check, &test->kv, args->kv_dtype, FILL_NORMAL, PAGES_MADE,
                 (uint32_t)(block_bytes / 2));
    for (uint32_t i = 0; i < SEQS_MAX * PAGES_EACH; i++)
        test->blocks[i] = (char *)test->kv.data + check_below(check, PAGES_MADE) * block_bytes;
    for (uint32_t i = 0; i < seqs; i++) {
        const uint32_t rows = check_between(check, 1, rows_max);
        const uint32_t position =
            check_below(check, check_below(check, 3) ? 1400 : PAGES_EACH * KVA_PAGE_TOKENS - 8);
        test->seqs[i] = (struct kva_attend_seq){
            .row_first = test->rows, .row_count = rows, .position_first = position};
        add_ranges(check, test, i, position + rows);
        test->rows += rows;
    }
    args->q_stride = args->heads * args->head_dim;
    test->q = check_buf_new((size_t)test->rows * args->q_stride * sizeof(float));
    check_fill(check, FILL_NORMAL, test->q.data, (size_t)test->rows * args->q_stride);
    test->cut = KVA_ATTEND_SPLIT_TOKENS * check_below(check, 4);
    args->q = test->q.data;
    args->seqs = test->seqs;
    args->ranges = test->ranges;
    args->blocks = test->blocks;
    args->seq_count = seqs;
    args->scale = 0.09f;
}

/* --- running ---------------------------------------------------------------------------------- */

static size_t out_floats(const struct join_test *test)
{
    return (size_t)test->rows * test->args.heads * (test->args.head_dim + 2);
}

static struct kva_partial out_at(const struct join_test *test, float *out)
{
    const size_t pairs = (size_t)test->rows * test->args.heads;
    float *m = out + pairs * test->args.head_dim;
    return (struct kva_partial){out, m, m + pairs};
}

/* What the rows' attention goes on from. */
static void attend_before(const struct check_variant *variant, struct kva_device *device,
                          const struct join_test *test, float *out)
{
    struct kva_attend_args args = test->args;
    struct kva_attend_seq seqs[SEQS_MAX];
    struct kva_attend_range ranges[SEQS_MAX * RANGES_EACH];
    args.out = out_at(test, out);
    ranges_within(&args, 0, test->cut, seqs, ranges);
    variant->ops.attend(device, &args);
}

/* The rest, at once, or with `memory` for what comes before. Returns whether attend_apart left
 * the output alone. */
static bool attend_behind(const struct check_variant *variant, struct kva_device *device,
                          const struct join_test *test, struct check_buf *memory, float *out)
{
    struct kva_attend_seq seqs[SEQS_MAX];
    struct kva_attend_range ranges[SEQS_MAX * RANGES_EACH];
    struct kva_attend_apart_args args = {.attend = test->args};
    args.attend.out = out_at(test, out);
    args.attend.accumulate = true;
    ranges_within(&args.attend, test->cut, UINT32_MAX, seqs, ranges);
    if (!memory) {
        attend_before(variant, device, test, out);
        variant->ops.attend(device, &args.attend);
        return true;
    }
    bool alone = true;
    const size_t bytes = out_floats(test) * sizeof(float);
    args.memory = memory->data;
    args.bytes = memory->bytes;
    memset(out, 0xBF, bytes); /* a partial result, of which folding leaves nothing */
    variant->ops.attend_apart(device, &args);
    for (size_t i = 0; i < bytes; i++)
        alone &= ((const unsigned char *)out)[i] == 0xBF;
    attend_before(variant, device, test, out);
    variant->ops.attend_join(device, &args);
    return alone;
}

/* --- cases ------------------------------------------------------------------------------------ */

/* Memory for no split, for some of them, for all. */
static size_t memory_bytes(struct check *check, const struct join_test *test, uint32_t how)
{
    const struct kva_attend_args *args = &test->args;
    const size_t all = args->seq_count * ROWS_MAX *
                       kva_attend_apart_bytes(args->heads, args->head_dim, PAGES_EACH);
    if (how == 2)
        return all;
    const uint32_t part = (uint32_t)(all / KVA_CACHE_LINE / (how == 1 ? 4 : 40));
    return (1 + (size_t)check_below(check, part)) * KVA_CACHE_LINE;
}

static void compare(struct check *check, const struct join_test *test, const char *name)
{
    const size_t floats = out_floats(test);
    float *want = malloc(2 * floats * sizeof(float)), *got = want + floats;
    for (uint32_t i = 0; i < check->variant_count; i++) {
        struct check_variant *variant = &check->variants[i];
        if (!variant->ops.attend_apart || test->args.head_dim > variant->limits.head_dim_max)
            continue;
        attend_behind(variant, variant->one, test, NULL, want);
        for (uint32_t how = 0; how < 6; how++) {
            struct kva_device *device = how < 3 ? variant->one : variant->many;
            struct check_buf memory = check_buf_new(memory_bytes(check, test, how % 3));
            check_buf_garbage(check, &memory);
            const bool alone = attend_behind(variant, device, test, &memory, got);
            const bool intact = check_buf_intact(&memory);
            check_buf_free(&memory);
            check_count(check, variant, OP_ATTEND_APART, name, alone && intact,
                        "it writes what is not its own");
            check_count(check, variant, OP_ATTEND_JOIN, name,
                        memcmp(want, got, floats * sizeof(float)) == 0,
                        "it gives other bits than attend");
        }
    }
    free(want);
}

void check_attend_join(struct check *check)
{
    const struct {
        uint32_t heads, kv_heads, dim;
    } shapes[] = {{8, 4, 8},  {6, 2, 64},  {32, 8, 128}, {3, 3, 96},
                  {8, 1, 80}, {71, 1, 64}, {8, 2, 256},  {6, 2, 5}};
    const uint32_t rounds = check->quick ? 2 : 8;
    for (size_t i = 0; i < KVA_COUNT_OF(shapes) * rounds; i++) {
        const size_t shape = i % KVA_COUNT_OF(shapes), round = i / KVA_COUNT_OF(shapes);
        struct join_test *test = calloc(1, sizeof *test);
        char name[96];
        test->args = (struct kva_attend_args){
            .heads = shapes[shape].heads,
            .kv_heads = shapes[shape].kv_heads,
            .head_dim = shapes[shape].dim,
            .window = check_below(check, 3) ? 0 : check_between(check, 1, 900),
            .kv_dtype = round % 2 ? KVA_F16 : KVA_BF16};
        build(check, test, round == 0 ? 1 : check_between(check, 1, SEQS_MAX),
              round % 4 == 3 ? ROWS_MAX : 1);
        snprintf(name, sizeof name, "heads %u/%u head_dim %u seqs %u rows %u window %u %s",
                 test->args.heads, test->args.kv_heads, test->args.head_dim, test->args.seq_count,
                 test->rows, test->args.window, kva_dtype_name(test->args.kv_dtype));
        compare(check, test, name);
        check_buf_free(&test->kv);
        check_buf_free(&test->q);
        free(test);
    }
}
