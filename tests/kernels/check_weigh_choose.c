/* Cases of weigh_choose: by the peaks that attend_lowbit keeps, what weigh and then choose choose by
 * its scores; and keeping peaks or scores changes nothing of attention. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEQS_MAX = 3,
    ROWS_EACH = 2, /* at most */
    PARTIALS_MAX = 5,
    CACHED_MAX = 400,
    POOL = 40 /* different pages */
};

struct once_seq {
    struct kva_row_cache cache;
    struct check_buf scores, peaks, weights, chosen, rows, tokens, order, count, gate;
    uint32_t *want;
};

struct once_test {
    struct kva_attend_lowbit_args lowbit;
    struct kva_weigh_args weigh;
    struct kva_choose_args choose;
    struct kva_lowbit_seq low[SEQS_MAX];
    struct kva_weigh_seq weigh_seqs[SEQS_MAX];
    struct kva_choose_seq choose_seqs[SEQS_MAX];
    struct once_seq seqs[SEQS_MAX];
    struct kva_partial partials[PARTIALS_MAX]; /* the first is attention over the pages */
    struct check_buf q, pages[POOL], mean, a[2], m[PARTIALS_MAX + 1], e[PARTIALS_MAX + 1];
    const void **blocks;
    uint32_t rows; /* of q */
    bool odd;      /* some queries are no numbers, or some levels */
    bool odd_levels;
    bool even; /* all pages are about alike */
};

/* --- building --------------------------------------------------------------------------------- */

/* Random codes, levels about one. */
static void make_page(struct check *check, struct once_test *test, struct check_buf *buf)
{
    const struct kva_attend_lowbit_args *args = &test->lowbit;
    const size_t head_bytes = kva_lowbit_head_bytes(args->format, args->head_dim);
    const struct kva_lowbit_layout layout = kva_lowbit_layout_of(args->format, args->head_dim);
    *buf = check_buf_new(args->block_offset_bytes + args->kv_heads * head_bytes);
    check_buf_garbage(check, buf);
    for (uint32_t head = 0; head < args->kv_heads; head++) {
        unsigned char *at = (unsigned char *)buf->data + args->block_offset_bytes;
        uint16_t *levels = (uint16_t *)(void *)(at + head * head_bytes);
        for (uint32_t i = 0; i < layout.k_codes / 2; i++) {
            const float x = check_normal(check);
            /* An infinite query times a scale is beyond f16, and times no step no number. */
            levels[i] =
                check_narrow(test->odd && i < layout.v_scale / 2 ? fabsf(x) + 1.1f : x, KVA_F16);
        }
        /* Keys that differ by codes alone: what weighs most is anywhere, not in a page or two. */
        if (test->even)
            memset((unsigned char *)levels + layout.k_zero, 0, layout.v_scale - layout.k_zero);
        if (test->odd_levels &&
            check_below(check, 3) == 0) /* half the page's tokens, with groups of 32 */
            levels[check_below(check, layout.v_scale / 2)] = 0x7E00;
    }
}

/* Whether a token of `tokens` has a row: some of all, most of those where chunks of 4,096 tokens
 * meet, or of 4,032. */
static bool is_cached(struct check *check, uint32_t token, uint32_t tokens)
{
    const uint32_t near = (token + 2) % 4096, nearer = token < 4096 ? 64 : (token - 62) % 4032;
    return check_below(check,
                       near < 4 || nearer < 4 || token + 1 == tokens ? 2 : 1 + tokens / 280) == 0;
}

static void make_cache(struct check *check, struct once_test *test, uint32_t i, uint32_t tokens)
{
    struct once_seq *seq = &test->seqs[i];
    const uint32_t dim = test->lowbit.head_dim, kv_heads = test->lowbit.kv_heads;
    const uint32_t slots = CACHED_MAX + check_below(check, 20);
    const size_t numbers = (size_t)kv_heads * slots * 2 * dim;
    const bool large = check_below(check, 2); /* most that is chosen is rows */
    seq->rows = check_buf_new(numbers * 2);
    seq->tokens = check_buf_new((size_t)kv_heads * slots * 4);
    seq->order = check_buf_new((size_t)kv_heads * slots * 4);
    seq->count = check_buf_new(kv_heads * 4);
    check_buf_garbage(check, &seq->order);
    for (size_t j = 0; j < numbers; j++)
        ((uint16_t *)seq->rows.data)[j] =
            test->weigh.kv_dtype == KVA_F16
                ? check_narrow(check_normal(check) * (large ? 4 : 1), KVA_F16)
                : (uint16_t)((check_random(check) & 0x81FF) + (large ? 0x4000 : 0x3F00));
    for (uint32_t head = 0; head < kv_heads; head++) {
        uint32_t *of = (uint32_t *)seq->tokens.data + (size_t)head * slots, count = 0;
        uint32_t *order = (uint32_t *)seq->order.data + (size_t)head * slots;
        const uint32_t shift = check_below(check, slots);
        for (uint32_t j = 0; j < slots; j++)
            of[j] = KVA_NO_TOKEN;
        for (uint32_t token = 0; token < tokens && count < CACHED_MAX; token++) {
            if (!is_cached(check, token, tokens))
                continue;
            order[count] = (count + shift) % slots;
            of[order[count++]] = token;
        }
        ((uint32_t *)seq->count.data)[head] = count;
    }
    seq->cache = (struct kva_row_cache){.rows = seq->rows.data,
                                        .tokens = seq->tokens.data,
                                        .order = seq->order.data,
                                        .count = seq->count.data,
                                        .slots = slots,
                                        .successor = 0};
}

static void make_low(struct check *check, struct once_test *test, uint32_t i, uint32_t pages)
{
    struct once_seq *seq = &test->seqs[i];
    const struct kva_attend_lowbit_args *args = &test->lowbit;
    struct kva_lowbit_seq *low = &test->low[i];
    const bool cached = check_below(check, 4) > 0;
    seq->scores = check_buf_new(kva_attend_scores_bytes(args->heads, pages));
    seq->peaks = check_buf_new(kva_attend_peaks_bytes(args->heads, args->kv_heads, pages));
    if (cached)
        make_cache(check, test, i, pages * KVA_PAGE_TOKENS);
    seq->gate = check_buf_new(sizeof(uint32_t));
    *(uint32_t *)seq->gate.data = check_below(check, 4) > 0;
    *low = (struct kva_lowbit_seq){
        .row_first = test->rows,
        .row_count = check_between(check, 1, ROWS_EACH),
        .position_first = pages * KVA_PAGE_TOKENS + check_below(check, 70),
        .block_first = i > 0 ? test->low[i - 1].block_first + test->low[i - 1].page_count : 0,
        .page_count = pages,
        .rows = cached ? &seq->cache : NULL,
        .mean = test->mean.data,
        .gate = check_below(check, 2) ? seq->gate.data : NULL,
    };
    low->select_row = check_below(check, low->row_count);
    test->rows += low->row_count;
    const uint32_t distinct = check_below(check, 2) ? check_between(check, 1, 5) : POOL;
    for (uint32_t j = 0; j < pages; j++)
        test->blocks[low->block_first + j] = test->pages[check_below(check, distinct)].data;
}

static void make_seq(struct check *check, struct once_test *test, uint32_t i, uint32_t pages,
                     uint32_t k)
{
    struct once_seq *seq = &test->seqs[i];
    const uint32_t tokens = pages * KVA_PAGE_TOKENS, kv_heads = test->lowbit.kv_heads;
    make_low(check, test, i, pages);
    const struct kva_lowbit_seq *low = &test->low[i];
    const uint32_t position = low->position_first + low->select_row, window = test->lowbit.window;
    const uint32_t seen = window > 0 && position >= window ? position - window + 1 : 0;
    seq->weights = check_buf_new((size_t)kv_heads * tokens * sizeof(float));
    seq->chosen = check_buf_new((size_t)kv_heads * k * sizeof(uint32_t));
    seq->want = malloc(seq->chosen.bytes);
    test->weigh_seqs[i] = (struct kva_weigh_seq){.row = low->row_first + low->select_row,
                                                 .first = kva_min_u32(seen, tokens),
                                                 .page_count = pages,
                                                 .scores = seq->scores.data,
                                                 .rows = low->rows,
                                                 .weights = seq->weights.data,
                                                 .gate = low->gate};
    struct kva_choose_seq *choose = &test->choose_seqs[i];
    *choose = (struct kva_choose_seq){.weights = seq->weights.data,
                                      .chosen = seq->chosen.data,
                                      .stride = tokens,
                                      .k = k,
                                      .gate = low->gate};
    choose->first = check_below(check, 2) ? check_below(check, tokens + 1) : 0;
    choose->end = check_below(check, 3) ? tokens : check_between(check, choose->first, tokens);
    choose->successor = (const float[]){0, 0.1f, 1}[check_below(check, 3)];
}

/* Queries that look at few tokens, or at many. */
static void make_queries(struct check *check, struct once_test *test)
{
    const struct kva_attend_lowbit_args *args = &test->lowbit;
    const size_t count = (size_t)test->rows * args->q_stride;
    const float size = (const float[]){0.1f, 1, 3, 10}[check_below(check, 4)];
    test->q = check_buf_new(count * sizeof(float));
    check_fill(check, FILL_NORMAL, test->q.data, count);
    for (size_t i = 0; i < count; i++)
        ((float *)test->q.data)[i] *= size;
    check_round_acts(check, test->q.data, count);
    for (uint32_t i = 0; test->odd && !test->odd_levels && i < args->seq_count; i++) {
        const struct kva_lowbit_seq *low = &test->low[i];
        const uint32_t row = low->row_first + low->select_row;
        ((float *)test->q
             .data)[row * args->q_stride + check_below(check, args->heads * args->head_dim)] =
            (const float[]){NAN, INFINITY, -INFINITY, -INFINITY}[check_below(check, 4)];
    }
}

/* Attention over the pages, which the operator under test finds, and over more. */
static void make_partials(struct check *check, struct once_test *test)
{
    const size_t pairs = (size_t)test->rows * test->lowbit.heads;
    test->weigh.partial_count = check_between(check, 1, PARTIALS_MAX);
    for (uint32_t i = 0; i <= test->weigh.partial_count; i++) {
        test->m[i] = check_buf_new(pairs * sizeof(float));
        test->e[i] = check_buf_new(pairs * sizeof(float));
        for (size_t j = 0; j < pairs; j++) {
            const bool none = check_below(check, 5) == 0;
            ((float *)test->m[i].data)[j] = none ? -INFINITY : check_normal(check) * 2;
            ((float *)test->e[i].data)[j] = none ? 0 : 1 + (float)check_below(check, 50);
        }
        if (i < test->weigh.partial_count)
            test->partials[i] = (struct kva_partial){.m = test->m[i].data, .e = test->e[i].data};
    }
    for (uint32_t i = 0; i < 2; i++)
        test->a[i] = check_buf_new(pairs * test->lowbit.head_dim * sizeof(float));
}

static void build(struct check *check, struct once_test *test, uint32_t pages, uint32_t k)
{
    struct kva_attend_lowbit_args *lowbit = &test->lowbit;
    struct kva_weigh_args *weigh = &test->weigh;
    const uint32_t count = check_between(check, 1, pages > 64 ? 1 : SEQS_MAX);
    lowbit->q_stride = (lowbit->heads + check_below(check, 2)) * lowbit->head_dim;
    lowbit->block_offset_bytes = check_below(check, 2) ? 64 : 0;
    lowbit->scale = 1.0f / sqrtf((float)lowbit->head_dim);
    lowbit->window = check_below(check, 3) ? 0 : check_between(check, 1, pages * 64 + 70);
    for (uint32_t i = 0; i < POOL; i++)
        make_page(check, test, &test->pages[i]);
    if (check_below(check, 3) == 0) {
        test->mean = check_buf_new((size_t)lowbit->kv_heads * lowbit->head_dim * sizeof(float));
        check_fill(check, FILL_NORMAL, test->mean.data, test->mean.bytes / sizeof(float));
    }
    test->blocks = calloc((size_t)SEQS_MAX * (pages + 1), sizeof *test->blocks);
    for (uint32_t i = 0; i < count; i++)
        make_seq(check, test, i, i ? check_below(check, pages + 1) : pages, k);
    lowbit->seq_count = count;
    make_queries(check, test);
    make_partials(check, test);
    lowbit->q = weigh->q = test->q.data;
    lowbit->seqs = test->low;
    lowbit->blocks = test->blocks;
    weigh->seq_count = count;
    weigh->partials = test->partials;
    weigh->seqs = test->weigh_seqs;
    weigh->q_stride = lowbit->q_stride;
    weigh->heads = lowbit->heads;
    weigh->kv_heads = lowbit->kv_heads;
    weigh->head_dim = lowbit->head_dim;
    weigh->scale = lowbit->scale;
    test->choose.seqs = test->choose_seqs;
    test->choose.seq_count = count;
    test->choose.kv_heads = lowbit->kv_heads;
}

static void free_buf(struct check_buf *buf)
{
    if (buf->map)
        check_buf_free(buf);
}

static void test_free(struct once_test *test)
{
    for (uint32_t i = 0; i < SEQS_MAX; i++) {
        struct once_seq *seq = &test->seqs[i];
        struct check_buf *all[] = {&seq->scores, &seq->peaks, &seq->weights,
                                   &seq->chosen, &seq->rows,  &seq->tokens,
                                   &seq->order,  &seq->count, &seq->gate};
        for (size_t j = 0; j < KVA_COUNT_OF(all); j++)
            free_buf(all[j]);
        free(seq->want);
    }
    for (uint32_t i = 0; i <= PARTIALS_MAX; i++) {
        free_buf(&test->m[i]);
        free_buf(&test->e[i]);
    }
    for (uint32_t i = 0; i < POOL; i++)
        free_buf(&test->pages[i]);
    free_buf(&test->a[0]);
    free_buf(&test->a[1]);
    free_buf(&test->mean);
    free_buf(&test->q);
    free(test->blocks);
    free(test);
}

/* --- running ---------------------------------------------------------------------------------- */

/* Attention that keeps scores, or peaks, with the partial result number `to`. */
static void attend(struct check *check, const struct check_variant *variant,
                   struct kva_device *device, struct once_test *test, bool peaks)
{
    const uint32_t last = peaks ? test->weigh.partial_count : 0;
    for (uint32_t i = 0; i < test->weigh.seq_count; i++) {
        struct once_seq *seq = &test->seqs[i];
        check_buf_garbage(check, peaks ? &seq->peaks : &seq->scores);
        test->low[i].scores = peaks ? NULL : seq->scores.data;
        test->low[i].peaks = peaks ? seq->peaks.data : NULL;
    }
    test->lowbit.out = (struct kva_partial){
        .a = test->a[peaks].data, .m = test->m[last].data, .e = test->e[last].data};
    variant->ops.attend_lowbit(device, &test->lowbit);
}

/* Weighing and choosing by scores, then by peaks, over the same garbage. */
static void choose(struct check *check, const struct check_variant *variant,
                   struct kva_device *device, struct once_test *test)
{
    void *before[SEQS_MAX];
    struct kva_weigh_choose_args args = {
        .weigh = test->weigh,
        .choose = test->choose,
        .low = test->low,
        .blocks = test->blocks,
        .block_offset_bytes = test->lowbit.block_offset_bytes,
        .format = test->lowbit.format,
    };
    for (uint32_t i = 0; i < test->weigh.seq_count; i++) {
        struct check_buf *chosen = &test->seqs[i].chosen;
        check_buf_garbage(check, chosen);
        before[i] = malloc(chosen->bytes);
        memcpy(before[i], chosen->data, chosen->bytes);
        check_buf_garbage(check, &test->seqs[i].weights);
        test->weigh_seqs[i].scores = test->seqs[i].scores.data;
    }
    variant->ops.weigh(device, &test->weigh);
    variant->ops.choose(device, &test->choose);
    for (uint32_t i = 0; i < test->weigh.seq_count; i++) {
        struct once_seq *seq = &test->seqs[i];
        memcpy(seq->want, seq->chosen.data, seq->chosen.bytes);
        memcpy(seq->chosen.data, before[i], seq->chosen.bytes);
        check_buf_garbage(check, &seq->weights);
        test->weigh_seqs[i].scores = NULL;
        free(before[i]);
    }
    variant->ops.weigh_choose(device, &args);
}

static const char *compare(struct check *check, const struct check_variant *variant,
                           struct kva_device *device, struct once_test *test)
{
    const uint32_t peaks = test->weigh.partial_count;
    check_buf_garbage(check, &test->a[0]);
    memcpy(test->a[1].data, test->a[0].data, test->a[0].bytes);
    memcpy(test->m[peaks].data, test->m[0].data, test->m[0].bytes);
    memcpy(test->e[peaks].data, test->e[0].data, test->e[0].bytes);
    attend(check, variant, device, test, false);
    attend(check, variant, device, test, true);
    choose(check, variant, device, test);
    if (memcmp(test->a[0].data, test->a[1].data, test->a[0].bytes) != 0 ||
        memcmp(test->m[0].data, test->m[peaks].data, test->m[0].bytes) != 0 ||
        memcmp(test->e[0].data, test->e[peaks].data, test->e[0].bytes) != 0)
        return "attention that keeps peaks gives other bits";
    for (uint32_t i = 0; i < test->weigh.seq_count; i++) {
        const struct once_seq *seq = &test->seqs[i];
        if (memcmp(seq->chosen.data, seq->want, seq->chosen.bytes) != 0)
            return "it chooses others than weigh and choose";
        if (!check_buf_intact(&seq->chosen) || !check_buf_intact(&seq->weights) ||
            !check_buf_intact(&seq->peaks))
            return "it writes what is not its own";
    }
    return NULL;
}

static void once_case(struct check *check, uint32_t group, uint32_t pages, uint32_t k, bool odd)
{
    const double work = pages * KVA_PAGE_TOKENS * 8.0 * group;
    struct once_test *test = calloc(1, sizeof *test);
    const uint32_t dims[] = {8, 20, 64, 128, 256}, bits[] = {1, 1, 2, 4};
    struct kva_attend_lowbit_args *args = &test->lowbit;
    uint32_t run = 0;
    struct check_variant *variant;
    struct kva_device *device;
    char name[160];
    if (!check_wanted(check, OP_WEIGH_CHOOSE, work)) {
        free(test);
        return;
    }
    args->kv_heads = pages > 1000 ? 1 : check_between(check, 1, 2);
    args->heads = group * args->kv_heads;
    args->head_dim = pages > 1000 ? 8 : dims[check_below(check, KVA_COUNT_OF(dims))];
    args->format.bits = bits[check_below(check, KVA_COUNT_OF(bits))];
    args->format.value_bits = args->format.bits == 1 && check_below(check, 2) ? 2 : 0;
    args->format.group = check_below(check, 2) ? 32 : 64;
    test->weigh.kv_dtype = check_below(check, 2) ? KVA_F16 : KVA_BF16;
    test->odd = odd;
    test->odd_levels = odd && check_below(check, 3) == 0;
    test->even = !odd && check_below(check, 2);
    build(check, test, pages, k);
    snprintf(name, sizeof name,
             "heads %u/%u head_dim %u bits %u/%u group %u pages %u seqs %u k %u window %u from %u "
             "to %u successor %g%s",
             args->heads, args->kv_heads, args->head_dim, args->format.bits,
             args->format.value_bits, args->format.group, pages, args->seq_count, k, args->window,
             test->choose_seqs[0].first, test->choose_seqs[0].end,
             (double)test->choose_seqs[0].successor, test->odd ? " odd" : "");
    while (check_next_run(check, work, &run, &variant, &device)) {
        if (variant->ops.weigh_choose)
            check_count_run(check, variant, OP_WEIGH_CHOOSE, device, name,
                            compare(check, variant, device, test));
    }
    test_free(test);
}

void check_weigh_choose(struct check *check)
{
    const uint32_t groups[] = {1, 3, 4, 7, 8, 16, 20}, ks[] = {1, 7, 64, 700, 1024, 1500};
    const uint32_t pages[] = {0, 1, 3, 15, 17, 40, 64, 130, 260};
    /* What is no number in one head, and few that are chosen. */
    for (uint32_t i = 0; i < 40; i++)
        once_case(check, groups[1 + i % 5], (const uint32_t[]){9, 16, 17, 40}[i % 4], 1 + i % 9,
                  true);
    /* Of one head a page's bounds are the same, and hold no more than they must. */
    for (size_t i = 4; i < KVA_COUNT_OF(pages); i++) {
        once_case(check, 1, pages[i], 64, false);
        once_case(check, 1, pages[i], 200, false);
    }
    for (size_t i = 0; i < KVA_COUNT_OF(pages); i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(groups); j++)
            once_case(check, groups[j], pages[i], ks[(i + j) % KVA_COUNT_OF(ks)], j == 2);
    }
    /* More pages than are listed at once, more keys than a chunk has. */
    once_case(check, 2, 640, 1500, false);
    once_case(check, 1, 4200, 500, false);
}
