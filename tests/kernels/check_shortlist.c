/* Cases of shortlist. Lists, ranks and tracked logits are exact; sums are in another order. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, CALLS_MAX = 24, TRACKED_MAX = 64 };

/* What a device gives. */
struct results {
    struct check_buf out;     /* [CALLS_MAX] kva_shortlist */
    struct check_buf listed;  /* [CALLS_MAX][KVA_SHORTLIST_MAX] */
    struct check_buf tracked; /* [TRACKED_MAX] logits */
};

struct shortlist_test {
    struct kva_shortlist_request requests[CALLS_MAX];
    uint32_t tracked[TRACKED_MAX];
    uint32_t count, tracked_count, vocab;
    struct check_buf logits;
    struct kva_candidate *sorted[ROWS]; /* the best first */
    uint32_t finite[ROWS];              /* of them above -inf */
};

/* Row 0 has nothing, row 1 no number; then ties, among them zeros of both signs; then few logits;
 * the others are as logits are, one of them ascending. */
static float logit_at(struct check *check, uint32_t row, uint32_t token, float x)
{
    switch (row) {
    case 0:
        return -INFINITY;
    case 1:
        return token % 2 ? NAN : -INFINITY;
    case 2:
        return check_below(check, 3) == 0 ? NAN : rintf(x);
    case 3:
        return check_below(check, 2) ? 0.0f : check_below(check, 9) ? -0.0f : rintf(x);
    case 4:
        return check_below(check, 16) ? -INFINITY : x;
    case 5:
        return (float)token / 1000.0f - 1.0f;
    default:
        return 4 * x;
    }
}

static int best_first(const void *a, const void *b)
{
    const struct kva_candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

/* All tokens of a row; what is not a number as -inf. */
static void sort_row(struct shortlist_test *test, uint32_t row)
{
    struct kva_candidate *all = malloc(test->vocab * sizeof *all);
    uint32_t finite = 0;
    for (uint32_t i = 0; i < test->vocab; i++) {
        float x = ((const float *)test->logits.data)[(size_t)row * test->vocab + i];
        all[i] = (struct kva_candidate){isnan(x) ? -INFINITY : x, i};
        finite += x > -INFINITY;
    }
    qsort(all, test->vocab, sizeof *all, best_first);
    test->sorted[row] = all;
    test->finite[row] = finite;
}

/* The sums in doubles, from the least up. */
static const char *check_sums(const struct shortlist_test *test,
                              const struct kva_shortlist_request *request,
                              const struct kva_shortlist *out)
{
    const struct kva_candidate *all = test->sorted[request->row];
    uint32_t finite = test->finite[request->row];
    double tail_sum = 0, sum = 0;
    for (uint32_t i = finite; i-- > 0;) {
        sum += exp((double)all[i].logit - (double)all[0].logit);
        if (i >= out->count && request->temperature > 0)
            tail_sum += exp(((double)all[i].logit - (double)all[out->count - 1].logit) /
                            (double)request->temperature);
    }
    double log_sum = request->log_sum ? finite ? (double)all[0].logit + log(sum) : -INFINITY : 0;
    /* Exponentials are good to 1e-14, of logits whose distance is divided by the temperature; a sum
     * in one chain, as this one, adds a rounding for each token. */
    if (out->tail_sum != tail_sum &&
        !(fabs(out->tail_sum - tail_sum) <= tail_sum * (1e-12 + test->vocab * 0x1p-53)))
        return "another sum over the rest";
    /* The CPU's exponentials are rounded to fp32. */
    if (out->log_sum != log_sum && !(fabs(out->log_sum - log_sum) <= 1e-6 * (1 + fabs(log_sum))))
        return "another normaliser";
    return NULL;
}

static int by_token(const void *a, const void *b)
{
    const struct kva_candidate *x = a, *y = b;
    return x->token < y->token ? -1 : 1;
}

static const char *check_list(const struct shortlist_test *test,
                              const struct kva_shortlist_request *request,
                              const struct kva_shortlist *out, const struct kva_candidate *listed)
{
    const float *logits = (const float *)test->logits.data + (size_t)request->row * test->vocab;
    struct kva_candidate expect[KVA_SHORTLIST_MAX];
    if (out->count != kva_min_u32(request->k, test->finite[request->row]))
        return "a wrong number of tokens is listed";
    memcpy(expect, test->sorted[request->row], out->count * sizeof *expect);
    qsort(expect, out->count, sizeof *expect, by_token);
    for (uint32_t i = 0; i < out->count; i++) {
        if (listed[i].token != expect[i].token)
            return "other tokens are listed, or in another order";
        if (memcmp(&listed[i].logit, &logits[listed[i].token], sizeof(float)) != 0)
            return "another logit is listed";
    }
    return NULL;
}

static const char *check_result(const struct shortlist_test *test, const struct results *results,
                                uint32_t index)
{
    const struct kva_shortlist_request *request = &test->requests[index];
    const struct kva_shortlist *out = (const struct kva_shortlist *)results->out.data + index;
    const struct kva_candidate *listed =
        (const struct kva_candidate *)results->listed.data + (size_t)index * KVA_SHORTLIST_MAX;
    const float *logits = (const float *)test->logits.data + (size_t)request->row * test->vocab;
    uint32_t rank = 0;
    const char *reason = check_list(test, request, out, listed);
    if (!reason)
        reason = check_sums(test, request, out);
    if (request->rank) {
        while (test->sorted[request->row][rank].token != test->tracked[request->tracked_first])
            rank++;
        rank++;
    }
    if (!reason && out->rank != rank)
        reason = "another rank";
    for (uint32_t i = 0; i < request->tracked_count && !reason; i++) {
        uint32_t at = request->tracked_first + i;
        if (memcmp((const float *)results->tracked.data + at, &logits[test->tracked[at]],
                   sizeof(float)) != 0)
            reason = "another tracked logit";
    }
    return reason;
}

static void run(const struct check_variant *variant, struct kva_device *device,
                const struct shortlist_test *test, const struct results *results)
{
    variant->ops.shortlist(device,
                           &(struct kva_shortlist_args){.out = results->out.data,
                                                        .listed = results->listed.data,
                                                        .tracked_logits = results->tracked.data,
                                                        .logits = test->logits.data,
                                                        .requests = test->requests,
                                                        .tracked = test->tracked,
                                                        .count = test->count,
                                                        .tracked_count = test->tracked_count,
                                                        .vocab = test->vocab});
    kva_device_sync(device, KVA_QUEUE_COMPUTE);
}

static struct results results_new(struct check *check, const struct shortlist_test *test)
{
    struct results results = {
        .out = check_buf_new(test->count * sizeof(struct kva_shortlist)),
        .listed =
            check_buf_new((size_t)test->count * KVA_SHORTLIST_MAX * sizeof(struct kva_candidate)),
        .tracked = check_buf_new(test->tracked_count * sizeof(float)),
    };
    check_buf_garbage(check, &results.listed);
    return results;
}

static bool results_free(struct results *results)
{
    bool intact = check_buf_intact(&results->out) && check_buf_intact(&results->listed) &&
                  check_buf_intact(&results->tracked);
    check_buf_free(&results->out);
    check_buf_free(&results->listed);
    check_buf_free(&results->tracked);
    return intact;
}

/* Twice, with one thread and with several: the same bits. */
static const char *check_variant(struct check *check, struct check_variant *variant,
                                 const struct shortlist_test *test)
{
    struct results one = results_new(check, test), many = results_new(check, test);
    const char *reason = NULL;
    run(variant, variant->one, test, &one);
    run(variant, variant->many, test, &many);
    for (uint32_t i = 0; i < test->count && !reason; i++)
        reason = check_result(test, &one, i);
    for (uint32_t i = 0; i < test->count && !reason; i++) {
        const struct kva_shortlist *a = (const struct kva_shortlist *)one.out.data + i;
        const struct kva_shortlist *b = (const struct kva_shortlist *)many.out.data + i;
        size_t at = (size_t)i * KVA_SHORTLIST_MAX;
        if (memcmp(&a->tail_sum, &b->tail_sum, sizeof a->tail_sum) != 0 ||
            memcmp(&a->log_sum, &b->log_sum, sizeof a->log_sum) != 0 || a->count != b->count ||
            a->rank != b->rank ||
            memcmp((const struct kva_candidate *)one.listed.data + at,
                   (const struct kva_candidate *)many.listed.data + at,
                   a->count * sizeof(struct kva_candidate)) != 0)
            reason = "several threads, or the same call again, give other bits";
    }
    bool intact = results_free(&one);
    intact &= results_free(&many);
    if (!reason && !intact)
        reason = "wrote before its output";
    return reason ? reason : check_fault(variant, variant->one);
}

static void fill_want(struct check *check, struct kva_shortlist_request *request, uint32_t best)
{
    static const float temperatures[] = {0, 1, 0.25f, 2, 0.01f};
    request->row = check_below(check, ROWS);
    request->k = best;
    request->temperature = temperatures[check_below(check, 5)];
    request->log_sum = check_below(check, 2);
    request->rank = request->tracked_count > 0 && check_below(check, 2);
}

static void shortlist_case(struct check *check, uint32_t count, uint32_t vocab, uint32_t best_max)
{
    struct shortlist_test *test = calloc(1, sizeof *test);
    const double work = (double)ROWS * vocab * 4;
    char name[96];
    if (!check_wanted(check, OP_SHORTLIST, work)) {
        free(test);
        return;
    }
    test->count = count;
    test->vocab = vocab;
    test->logits = check_buf_new((size_t)ROWS * vocab * sizeof(float));
    for (uint32_t i = 0; i < ROWS * vocab; i++)
        ((float *)test->logits.data)[i] =
            logit_at(check, i / vocab, i % vocab, check_normal(check));
    for (uint32_t row = 0; row < ROWS; row++)
        sort_row(test, row);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t room = kva_min_u32(TRACKED_MAX - test->tracked_count, 5);
        test->requests[i] = (struct kva_shortlist_request){
            .tracked_first = test->tracked_count, .tracked_count = check_between(check, 0, room)};
        test->tracked_count += test->requests[i].tracked_count;
        fill_want(check, &test->requests[i], i % 3 == 0 ? 1 : check_between(check, 1, best_max));
    }
    for (uint32_t i = 0; i < test->tracked_count; i++)
        test->tracked[i] = check_below(check, vocab);
    snprintf(name, sizeof name, "rows %u vocab %u best %u", count, vocab, best_max);
    const struct check_case costs = {.work = work};
    for (uint32_t i = 0; i < check->variant_count; i++) {
        struct check_variant *variant = &check->variants[i];
        if (!check_takes(variant, &costs))
            continue;
        const char *reason = check_variant(check, variant, test);
        check_count(check, variant, OP_SHORTLIST, name, !reason, reason);
    }
    for (uint32_t row = 0; row < ROWS; row++)
        free(test->sorted[row]);
    check_buf_free(&test->logits);
    free(test);
}

void check_shortlist(struct check *check)
{
    static const uint32_t vocabs[] = {1, 2, 31, 33, 64, 97, 512, 1537, 3000, 5000, 9001, 32000};
    for (uint32_t i = 0; i < 24; i++)
        shortlist_case(check, check_between(check, 1, CALLS_MAX), check_between(check, 1, 400),
                       i % 2 ? 70 : 20);
    for (size_t i = 0; i < KVA_COUNT_OF(vocabs); i++)
        shortlist_case(check, check_between(check, 3, CALLS_MAX), vocabs[i],
                       i % 2 ? KVA_SHORTLIST_MAX : 40);
    shortlist_case(check, CALLS_MAX, 3000, KVA_SHORTLIST_MAX);
    if (!check->quick)
        shortlist_case(check, CALLS_MAX, 151936, KVA_SHORTLIST_MAX);
}
