/* Cases of choose and accumulate, against plain models: each variant must give their bits. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- choose ----------------------------------------------------------------------------------- */

enum { CHOOSE_SEQS_MAX = 3, CHOOSE_HEADS_MAX = 3 };

struct choose_test {
    struct kva_choose_args args;
    struct kva_choose_seq seqs[CHOOSE_SEQS_MAX];
    struct check_buf weights[CHOOSE_SEQS_MAX], chosen[CHOOSE_SEQS_MAX];
    uint32_t *expect[CHOOSE_SEQS_MAX];
};

/* Whether position a goes before b. */
static bool goes_before(const float *weights, enum kva_choose_kind kind, uint32_t a, uint32_t b)
{
    if (weights[a] != weights[b])
        return kind == KVA_CHOOSE_LEAST ? weights[a] < weights[b] : weights[a] > weights[b];
    return a < b;
}

/* The candidates' weights, with what the one before brings to each. */
static float *weights_of(const struct kva_choose_seq *seq, uint32_t kv_head)
{
    const float *from = seq->weights + (size_t)kv_head * seq->stride;
    float *weights = malloc((seq->end + 1) * sizeof *weights);
    for (uint32_t i = seq->first; i < seq->end; i++) {
        float brought = i > seq->first ? from[i - 1] * seq->successor : 0.0f;
        weights[i] = from[i] >= 0 && brought > from[i] ? brought : from[i];
    }
    return weights;
}

/* By counting, for each candidate, those that go before it. */
static void choose_model(const struct kva_choose_args *args, const struct kva_choose_seq *seq,
                         uint32_t kv_head, uint32_t *chosen)
{
    float *weights = weights_of(seq, kv_head), most = 0;
    uint32_t count = 0;
    for (uint32_t i = seq->first; i < seq->end; i++)
        most = weights[i] > most ? weights[i] : most;
    float least = args->kind == KVA_CHOOSE_NEAR ? most * args->share : 0.0f;
    for (uint32_t i = seq->first; i < seq->end && count < seq->k; i++) {
        uint32_t before = 0;
        for (uint32_t j = seq->first; j < seq->end && before < seq->k; j++)
            before += weights[j] >= 0 && goes_before(weights, args->kind, j, i);
        if (weights[i] >= least && before < seq->k)
            chosen[count++] = i;
    }
    for (uint32_t i = count; i < seq->k; i++)
        chosen[i] = KVA_NO_TOKEN;
    free(weights);
}

/* Few different numbers, for ties; zeros of both signs; what is no candidate. */
static float choose_weight(struct check *check, uint32_t kind)
{
    float x = fabsf(check_normal(check));
    switch (check_below(check, 12)) {
    case 0:
        return -x;
    case 1:
        return NAN;
    case 2:
        return check_below(check, 2) ? 0.0f : -0.0f;
    case 3:
        return kind ? x : x * 1e-40f;
    default:
        return kind ? rintf(x * 3) * 0.25f : x;
    }
}

static void choose_fill(struct check *check, struct choose_test *test, uint32_t i, uint32_t tokens,
                        uint32_t k)
{
    struct kva_choose_seq *seq = &test->seqs[i];
    uint32_t kv_heads = test->args.kv_heads, kind = check_below(check, 3);
    size_t count = (size_t)kv_heads * tokens;
    test->weights[i] = check_buf_new(count * sizeof(float));
    test->chosen[i] = check_buf_new((size_t)kv_heads * k * sizeof(uint32_t));
    float *weights = test->weights[i].data;
    for (size_t j = 0; j < count; j++)
        weights[j] = kind == 2 ? -1.0f : choose_weight(check, kind); /* 2: hardly a candidate */
    for (uint32_t j = 0; kind == 2 && j < k / 2; j++)
        weights[check_below(check, (uint32_t)count)] = 1.0f;
    *seq = (struct kva_choose_seq){.weights = weights,
                                   .chosen = test->chosen[i].data,
                                   .stride = tokens,
                                   .first = check_below(check, 2) ? check_below(check, tokens) : 0,
                                   .k = k};
    seq->successor = (const float[]){0, 0.1f, 1}[check_below(check, 3)];
    seq->end = check_below(check, 2) ? check_between(check, seq->first, tokens) : tokens;
    test->expect[i] = malloc(test->chosen[i].bytes + 1);
    for (uint32_t head = 0; head < kv_heads; head++)
        choose_model(&test->args, seq, head, test->expect[i] + (size_t)head * k);
}

static void choose_case(struct check *check, enum kva_choose_kind kind, float share,
                        uint32_t tokens, uint32_t k)
{
    const double work = tokens * 8.0;
    struct choose_test test = {.args = {.kind = kind, .share = share}};
    char name[120];
    uint32_t run = 0;
    struct check_variant *variant;
    struct kva_device *device;
    if (!check_wanted(check, OP_CHOOSE, work))
        return;
    test.args.seqs = test.seqs;
    test.args.seq_count = check_between(check, 1, CHOOSE_SEQS_MAX);
    test.args.kv_heads = check_between(check, 1, CHOOSE_HEADS_MAX);
    for (uint32_t i = 0; i < test.args.seq_count; i++)
        choose_fill(check, &test, i, tokens, k);
    snprintf(name, sizeof name, "kind %d share %g tokens %u k %u from %u to %u", (int)kind,
             (double)share, tokens, k, test.seqs[0].first, test.seqs[0].end);
    while (check_next_run(check, work, &run, &variant, &device)) {
        const char *reason = NULL;
        for (uint32_t i = 0; i < test.args.seq_count; i++)
            check_buf_garbage(check, &test.chosen[i]);
        variant->ops.choose(device, &test.args);
        for (uint32_t i = 0; i < test.args.seq_count && !reason; i++) {
            if (memcmp(test.chosen[i].data, test.expect[i], test.chosen[i].bytes) != 0)
                reason = "others are chosen";
            else if (!check_buf_intact(&test.chosen[i]))
                reason = "wrote before its output";
        }
        check_count_run(check, variant, OP_CHOOSE, device, name, reason);
    }
    for (uint32_t i = 0; i < test.args.seq_count; i++) {
        check_buf_free(&test.weights[i]);
        check_buf_free(&test.chosen[i]);
        free(test.expect[i]);
    }
}

void check_choose(struct check *check)
{
    const uint32_t tokens[] = {1, 2, 31, 64, 65, 500, 512, 513, 1030, 4100, 8190};
    const uint32_t ks[] = {1, 2, 7, 64, 700, 1500};
    const float shares[] = {0, 1, 0.5f, 0.0183f};
    for (size_t i = 0; i < KVA_COUNT_OF(tokens); i++) {
        for (size_t j = 0; j < KVA_COUNT_OF(ks); j++) {
            choose_case(check, KVA_CHOOSE_MOST, 0, tokens[i], ks[j]);
            choose_case(check, KVA_CHOOSE_LEAST, 0, tokens[i], ks[j]);
            for (size_t s = j % 2; s < KVA_COUNT_OF(shares); s += 2)
                choose_case(check, KVA_CHOOSE_NEAR, shares[s], tokens[i], ks[j]);
        }
    }
}

/* --- accumulate ------------------------------------------------------------------------------- */

/* Two sequences of several KV heads. */
struct sums_test {
    struct kva_accumulate_seq seqs[2];
    struct check_buf weights[2], mass[2];
    float *before[2], *expect[2];
};

static void make_sums(struct check *check, struct sums_test *test, uint32_t kv_heads, int i,
                      uint32_t count)
{
    struct kva_accumulate_seq *seq = &test->seqs[i];
    *seq = (struct kva_accumulate_seq){.mass_stride = count + check_below(check, 9),
                                       .weights_stride = count + check_below(check, 9),
                                       .count = count};
    test->weights[i] = check_buf_new((size_t)kv_heads * seq->weights_stride * sizeof(float));
    test->mass[i] = check_buf_new((size_t)kv_heads * seq->mass_stride * sizeof(float));
    seq->weights = test->weights[i].data;
    seq->mass = test->mass[i].data;
    test->before[i] = malloc(2 * test->mass[i].bytes + 1);
    test->expect[i] = test->before[i] + kv_heads * seq->mass_stride;
    for (uint32_t j = 0; j < kv_heads * seq->weights_stride; j++)
        ((float *)test->weights[i].data)[j] = choose_weight(check, j % 2);
    for (uint32_t j = 0; j < kv_heads * seq->mass_stride; j++) {
        const uint32_t head = j / seq->mass_stride, at = j % seq->mass_stride;
        const float before = fabsf(check_normal(check)) * 10;
        const float weight = at < count ? seq->weights[head * seq->weights_stride + at] : -1;
        test->before[i][j] = before;
        test->expect[i][j] = weight >= 0 ? before + weight : before;
    }
}

static const char *compare_sums(const struct sums_test *test)
{
    for (int i = 0; i < 2; i++) {
        if (memcmp(test->mass[i].data, test->expect[i], test->mass[i].bytes) != 0)
            return "other sums";
        if (!check_buf_intact(&test->mass[i]))
            return "wrote before its output";
    }
    return NULL;
}

static void accumulate_case(struct check *check, uint32_t kv_heads, uint32_t count)
{
    struct sums_test test;
    struct check_variant *variant;
    struct kva_device *device;
    uint32_t run = 0;
    char name[48];
    if (!check_wanted(check, OP_ACCUMULATE, 2.0 * kv_heads * count))
        return;
    make_sums(check, &test, kv_heads, 0, count);
    make_sums(check, &test, kv_heads, 1, count / 3);
    snprintf(name, sizeof name, "kv_heads %u count %u", kv_heads, count);
    while (check_next_run(check, 2.0 * kv_heads * count, &run, &variant, &device)) {
        for (int i = 0; i < 2; i++)
            memcpy(test.mass[i].data, test.before[i], test.mass[i].bytes);
        variant->ops.accumulate(
            device,
            &(struct kva_accumulate_args){.seqs = test.seqs, .seq_count = 2, .kv_heads = kv_heads});
        check_count_run(check, variant, OP_ACCUMULATE, device, name, compare_sums(&test));
    }
    for (int i = 0; i < 2; i++) {
        check_buf_free(&test.weights[i]);
        check_buf_free(&test.mass[i]);
        free(test.before[i]);
    }
}

void check_accumulate(struct check *check)
{
    const uint32_t counts[] = {1, 15, 17, 64, 511, 513, 5000, 20000};
    for (size_t i = 0; i < KVA_COUNT_OF(counts); i++)
        accumulate_case(check, 1 + (uint32_t)i % 3, counts[i]);
}
