/* Cases of weigh_choose: the bits of weigh and then choose. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS_MAX = 3, PARTIALS_MAX = 5, CACHED_MAX = 400, PAGES_MAX = 130 };

struct once_seq {
    struct kva_row_cache cache;
    struct check_buf scores, weights, chosen, rows, tokens, order, count, gate;
    uint32_t *want;
};

struct once_test {
    struct kva_weigh_args weigh;
    struct kva_choose_args choose;
    struct kva_weigh_seq weigh_seqs[SEQS_MAX];
    struct kva_choose_seq choose_seqs[SEQS_MAX];
    struct once_seq seqs[SEQS_MAX];
    struct kva_partial partials[PARTIALS_MAX];
    struct check_buf q, m[PARTIALS_MAX], e[PARTIALS_MAX];
    bool odd; /* some scores are no numbers, or none at all */
};

/* --- building --------------------------------------------------------------------------------- */

/* As a GPU keeps them (kernels/cuda/select.cuh): what others make of them is theirs. Few different
 * weights, for ties. */
static void make_scores(struct check *check, struct once_test *test, uint32_t i, uint32_t pages)
{
    const size_t heads = test->weigh.heads, tokens = (size_t)pages * KVA_PAGE_TOKENS;
    struct check_buf *buf = &test->seqs[i].scores;
    *buf = check_buf_new(kva_attend_scores_bytes((uint32_t)heads, pages));
    uint16_t *weights = buf->data;
    float *tops = (float *)buf->data + heads * tokens / 2;
    const bool few = check_below(check, 2);
    for (size_t j = 0; j < buf->bytes / 2; j++)
        weights[j] = (uint16_t)(check_below(check, few ? 8 : 0x2000) * (few ? 0x700 : 2));
    for (size_t j = 0; test->odd && j < heads * tokens / 50; j++)
        weights[check_below(check, (uint32_t)(heads * tokens))] = 0x7E00;
    for (size_t j = 0; j < heads * pages; j++)
        tops[j] = test->odd && check_below(check, 10) == 0
                      ? (check_below(check, 2) ? NAN : -INFINITY)
                      : check_normal(check);
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
    const uint32_t dim = test->weigh.head_dim, kv_heads = test->weigh.kv_heads;
    const uint32_t slots = CACHED_MAX + check_below(check, 20);
    const size_t numbers = (size_t)kv_heads * slots * 2 * dim;
    seq->rows = check_buf_new(numbers * 2);
    seq->tokens = check_buf_new((size_t)kv_heads * slots * 4);
    seq->order = check_buf_new((size_t)kv_heads * slots * 4);
    seq->count = check_buf_new(kv_heads * 4);
    check_buf_garbage(check, &seq->order);
    for (size_t j = 0; j < numbers; j++)
        ((uint16_t *)seq->rows.data)[j] = test->weigh.kv_dtype == KVA_F16
                                              ? check_narrow(check_normal(check), KVA_F16)
                                              : (uint16_t)((check_random(check) & 0x81FF) + 0x3F00);
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

static void make_seq(struct check *check, struct once_test *test, uint32_t i, uint32_t pages,
                     uint32_t k)
{
    struct once_seq *seq = &test->seqs[i];
    const uint32_t tokens = pages * KVA_PAGE_TOKENS, kv_heads = test->weigh.kv_heads;
    make_scores(check, test, i, pages);
    seq->weights = check_buf_new((size_t)kv_heads * tokens * sizeof(float));
    seq->chosen = check_buf_new((size_t)kv_heads * k * sizeof(uint32_t));
    seq->want = malloc(seq->chosen.bytes);
    const bool cached = check_below(check, 4) > 0;
    if (cached)
        make_cache(check, test, i, tokens);
    seq->gate = check_buf_new(sizeof(uint32_t));
    *(uint32_t *)seq->gate.data = check_below(check, 3) > 0;
    const uint32_t *gate = check_below(check, 2) ? seq->gate.data : NULL;
    test->weigh_seqs[i] =
        (struct kva_weigh_seq){.row = check_below(check, 2) ? SEQS_MAX - 1 - i : i,
                               .first = check_below(check, 2) ? check_below(check, tokens + 1) : 0,
                               .page_count = pages,
                               .scores = seq->scores.data,
                               .rows = cached ? &seq->cache : NULL,
                               .weights = seq->weights.data,
                               .gate = gate};
    struct kva_choose_seq *choose = &test->choose_seqs[i];
    *choose = (struct kva_choose_seq){.weights = seq->weights.data,
                                      .chosen = seq->chosen.data,
                                      .stride = tokens,
                                      .k = k,
                                      .gate = gate};
    choose->first = check_below(check, 2) ? check_below(check, tokens + 1) : 0;
    choose->end = check_below(check, 3) ? tokens : check_between(check, choose->first, tokens);
    choose->successor = (const float[]){0, 0.3f, 1}[check_below(check, 3)];
}

static void build(struct check *check, struct once_test *test, uint32_t pages, uint32_t k)
{
    struct kva_weigh_args *args = &test->weigh;
    const uint32_t count = check_between(check, 1, pages > 64 ? 2 : SEQS_MAX);
    const size_t pairs = (size_t)SEQS_MAX * args->heads;
    args->q_stride = (args->heads + check_below(check, 2)) * args->head_dim;
    test->q = check_buf_new((size_t)SEQS_MAX * args->q_stride * sizeof(float));
    check_fill(check, FILL_NORMAL, test->q.data, (size_t)SEQS_MAX * args->q_stride);
    args->partial_count = check_between(check, 1, PARTIALS_MAX);
    for (uint32_t i = 0; i < args->partial_count; i++) {
        test->m[i] = check_buf_new(pairs * sizeof(float));
        test->e[i] = check_buf_new(pairs * sizeof(float));
        for (size_t j = 0; j < pairs; j++) {
            const bool none = check_below(check, 5) == 0;
            ((float *)test->m[i].data)[j] = none ? -INFINITY : check_normal(check) * 2;
            ((float *)test->e[i].data)[j] = none ? 0 : 1 + (float)check_below(check, 50);
        }
        test->partials[i] = (struct kva_partial){.m = test->m[i].data, .e = test->e[i].data};
    }
    for (uint32_t i = 0; i < count; i++)
        make_seq(check, test, i, i ? check_below(check, pages + 1) : pages, k);
    args->q = test->q.data;
    args->partials = test->partials;
    args->seqs = test->weigh_seqs;
    args->seq_count = count;
    args->scale = 1.0f / sqrtf((float)args->head_dim);
    test->choose.seqs = test->choose_seqs;
    test->choose.seq_count = count;
    test->choose.kv_heads = args->kv_heads;
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
        struct check_buf *all[] = {&seq->scores, &seq->weights, &seq->chosen, &seq->rows,
                                   &seq->tokens, &seq->order,   &seq->count,  &seq->gate};
        for (size_t j = 0; j < KVA_COUNT_OF(all); j++)
            free_buf(all[j]);
        free(seq->want);
    }
    for (uint32_t i = 0; i < PARTIALS_MAX; i++) {
        free_buf(&test->m[i]);
        free_buf(&test->e[i]);
    }
    free_buf(&test->q);
    free(test);
}

/* --- running ---------------------------------------------------------------------------------- */

/* What is chosen over the same garbage by two calls, and then by one. */
static const char *compare(struct check *check, const struct check_variant *variant,
                           struct kva_device *device, struct once_test *test)
{
    void *before[SEQS_MAX];
    const char *reason = NULL;
    const struct kva_weigh_choose_args args = {test->weigh, test->choose};
    for (uint32_t i = 0; i < test->weigh.seq_count; i++) {
        struct check_buf *chosen = &test->seqs[i].chosen;
        check_buf_garbage(check, chosen);
        before[i] = malloc(chosen->bytes);
        memcpy(before[i], chosen->data, chosen->bytes);
        check_buf_garbage(check, &test->seqs[i].weights);
    }
    variant->ops.weigh(device, &test->weigh);
    variant->ops.choose(device, &test->choose);
    for (uint32_t i = 0; i < test->weigh.seq_count; i++) {
        struct once_seq *seq = &test->seqs[i];
        memcpy(seq->want, seq->chosen.data, seq->chosen.bytes);
        memcpy(seq->chosen.data, before[i], seq->chosen.bytes);
        check_buf_garbage(check, &seq->weights);
        free(before[i]);
    }
    variant->ops.weigh_choose(device, &args);
    for (uint32_t i = 0; i < test->weigh.seq_count && !reason; i++) {
        const struct once_seq *seq = &test->seqs[i];
        if (memcmp(seq->chosen.data, seq->want, seq->chosen.bytes) != 0)
            reason = "it chooses others than weigh and choose";
        else if (!check_buf_intact(&seq->chosen) || !check_buf_intact(&seq->weights))
            reason = "it writes what is not its own";
    }
    return reason;
}

static void once_case(struct check *check, uint32_t group, uint32_t pages, uint32_t k)
{
    const double work = pages * KVA_PAGE_TOKENS * 8.0;
    struct once_test *test = calloc(1, sizeof *test);
    const uint32_t dims[] = {8, 20, 64, 128, 256};
    uint32_t run = 0;
    struct check_variant *variant;
    struct kva_device *device;
    char name[160];
    if (!check_wanted(check, OP_WEIGH_CHOOSE, work)) {
        free(test);
        return;
    }
    test->weigh.kv_heads = check_between(check, 1, 2);
    test->weigh.heads = group * test->weigh.kv_heads;
    test->weigh.head_dim = dims[check_below(check, KVA_COUNT_OF(dims))];
    test->weigh.kv_dtype = check_below(check, 2) ? KVA_F16 : KVA_BF16;
    if (pages <= 64 || check_below(check, 2)) /* of one chunk, any kind */
        test->choose.kind = (enum kva_choose_kind)check_below(check, 3);
    test->choose.share = test->choose.kind == KVA_CHOOSE_NEAR ? 0.3f : 0;
    test->odd = check_below(check, 3) == 0;
    build(check, test, pages, k);
    snprintf(name, sizeof name,
             "heads %u/%u head_dim %u pages %u seqs %u k %u kind %d from %u to %u successor %g",
             test->weigh.heads, test->weigh.kv_heads, test->weigh.head_dim, pages,
             test->weigh.seq_count, k, (int)test->choose.kind, test->choose_seqs[0].first,
             test->choose_seqs[0].end, (double)test->choose_seqs[0].successor);
    while (check_next_run(check, work, &run, &variant, &device)) {
        if (variant->ops.weigh_choose)
            check_count_run(check, variant, OP_WEIGH_CHOOSE, device, name,
                            compare(check, variant, device, test));
    }
    test_free(test);
}

void check_weigh_choose(struct check *check)
{
    const uint32_t groups[] = {1, 3, 4, 7, 8, 16}, ks[] = {1, 7, 64, 700, 1024, 1500};
    const uint32_t pages[] = {0, 1, 3, 32, 63, 64, 65, 70, 127, 128, PAGES_MAX};
    for (size_t i = 0; i < KVA_COUNT_OF(pages); i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(groups); j++)
            once_case(check, groups[j], pages[i], ks[(i + j) % KVA_COUNT_OF(ks)]);
    }
}
