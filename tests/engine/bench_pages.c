/* How many pages of keys weigh_choose looks at once more (kernels/cuda/weigh_choose.cu), and how
 * many it had to, of a model's attention to a text: counted here, by what the CPU has of scores.
 *
 *     bench_pages MODEL IDS TOKENS [OUTPUTS]
 *
 * MODEL is a checkpoint's folder, IDS a file of token ids (`kvahead tokenize --ids`), of which the
 * first TOKENS are the prompt. A line in Markdown: shares of pages, over layers, KV heads and steps of
 * specache:1:64 that have rows from the step before. */
#include "tests/cmocka.h"

#include "kernels/backend.h"
#include "kernels/cpu/lowbit/plan.h"
#include "tests/engine/fixture.h"
#include "tests/kernels/by_scores.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 8, COUNTS_MAX = 1 << 20 };

static const struct kva_ops *cpu_ops;
static const struct kva_weigh_choose_args *choosing;
static float looked[COUNTS_MAX], least_looked[COUNTS_MAX];
static size_t count;

static int descending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static float kth_largest(float *x, size_t n, uint32_t k)
{
    qsort(x, n, sizeof *x, descending);
    return k <= n ? x[k - 1] : 0;
}

/* A KV head's pages and rows. */
struct pages {
    const float *weights; /* [tokens]; of what is no candidate: less than 0 */
    bool *rows;           /* [tokens]: whether a row has the token */
    float *most, *least;  /* [count]: what a token of the page has, at most and at least */
    bool *first;          /* [count] */
    uint32_t count;
};

/* Largest weight of a page's tokens that a head gives, rows aside. */
static float peak_of(const struct pages *p, const float *scores, uint32_t group, uint32_t head,
                     uint32_t page, float top, float inverse)
{
    const uint32_t base = page * KVA_PAGE_TOKENS, split = base / KVA_ATTEND_SPLIT_TOKENS;
    const float *own =
        scores + kva_lowbit_weight_at(group, split, head) + base % KVA_ATTEND_SPLIT_TOKENS;
    const float relative = scores[kva_lowbit_top_at(group, p->count, split, head)] - top;
    float peak = 0;
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++) {
        if (!p->rows[base + t] && p->weights[base + t] >= 0)
            peak = fmaxf(peak, own[t]);
    }
    return peak * expf(relative) * inverse;
}

static void bound_pages(const struct kva_weigh_args *args, const struct kva_weigh_seq *seq,
                        const float *scores, uint32_t kv_head, struct pages *p)
{
    const uint32_t group = args->heads / args->kv_heads;
    for (uint32_t h = 0; h < group; h++) {
        const size_t pair = (size_t)seq->row * args->heads + (size_t)kv_head * group + h;
        float top = -INFINITY, sum = 0;
        for (uint32_t i = 0; i < args->partial_count; i++)
            top = fmaxf(top, args->partials[i].m[pair]);
        for (uint32_t i = 0; i < args->partial_count; i++)
            sum += args->partials[i].e[pair] * expf(args->partials[i].m[pair] - top);
        for (uint32_t page = 0; page < p->count; page++) {
            const float peak = peak_of(p, scores, group, h, page, top, 1 / sum);
            p->most[page] += peak;
            p->least[page] = fmaxf(p->least[page], peak);
        }
    }
}

/* Of every FIRST-th page the one with the largest bound. */
static void find_first(struct pages *p)
{
    for (uint32_t i = 0; i < FIRST; i++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t page = 0; page < p->count; page++) {
            if (page % FIRST == i && (best == UINT32_MAX || p->most[page] > p->most[best]))
                best = page;
        }
        if (best != UINT32_MAX)
            p->first[best] = true;
    }
}

static void count_head(const struct pages *p, const struct kva_choose_seq *seq)
{
    const uint32_t tokens = p->count * KVA_PAGE_TOKENS;
    float *known = malloc((p->count + tokens) * sizeof *known);
    size_t n = 0;
    uint32_t at_once = 0, needed = 0;
    for (uint32_t page = 0; page < p->count; page++) {
        if (!p->first[page])
            known[n++] = p->least[page];
    }
    for (uint32_t t = seq->first; t < tokens; t++) {
        if (p->rows[t] || p->first[t / KVA_PAGE_TOKENS])
            known[n++] = p->weights[t];
    }
    const float least = kth_largest(known, n, seq->k);
    memcpy(known, p->weights + seq->first, (tokens - seq->first) * sizeof *known);
    const float kth = kth_largest(known, tokens - seq->first, seq->k);
    for (uint32_t page = 0; page < p->count; page++) {
        at_once += p->first[page] || p->most[page] >= least;
        needed += p->most[page] >= kth;
    }
    looked[count] = (float)at_once / (float)p->count;
    least_looked[count++] = (float)needed / (float)p->count;
    free(known);
}

/* Weights are there: count, then choose. */
static void count_and_choose(struct kva_device *device, const struct kva_choose_args *args)
{
    const struct kva_weigh_args *weigh = &choosing->weigh;
    for (uint32_t i = 0; i < args->seq_count * args->kv_heads && count < COUNTS_MAX; i++) {
        const struct kva_weigh_seq *seq = &weigh->seqs[i / args->kv_heads];
        const struct kva_choose_seq *choose = &args->seqs[i / args->kv_heads];
        const uint32_t head = i % args->kv_heads, pages = seq->page_count;
        const uint32_t cached = seq->rows->count[head], group = weigh->heads / weigh->kv_heads;
        const void *kept = choosing->low[i / args->kv_heads].peaks;
        const float *scores;
        if (cached < choose->k) /* the first step, which has no rows */
            continue;
        memcpy(&scores, kept, sizeof scores);
        scores += head * (kva_attend_scores_bytes(group, pages) / sizeof *scores);
        struct pages p = {
            .weights = choose->weights + (size_t)head * choose->stride,
            .rows = calloc((size_t)pages * KVA_PAGE_TOKENS, sizeof *p.rows),
            .most = calloc(pages, sizeof *p.most),
            .least = calloc(pages, sizeof *p.least),
            .first = calloc(pages, sizeof *p.first),
            .count = pages,
        };
        for (uint32_t j = 0; j < cached; j++) {
            const size_t at = (size_t)head * seq->rows->slots;
            const uint32_t token = seq->rows->tokens[at + seq->rows->order[at + j]];
            if (token < pages * KVA_PAGE_TOKENS)
                p.rows[token] = true;
        }
        bound_pages(weigh, seq, scores, head, &p);
        find_first(&p);
        count_head(&p, choose);
        free(p.rows);
        free(p.most);
        free(p.least);
        free(p.first);
    }
    cpu_ops->choose(device, args);
}

static void weigh_choose(struct kva_device *device, const struct kva_weigh_choose_args *args)
{
    struct kva_ops ops = *cpu_ops;
    ops.choose = count_and_choose;
    choosing = args;
    by_scores_choose(device, &ops, args);
}

static uint32_t *read_ids(const char *path, uint32_t wanted)
{
    FILE *file = fopen(path, "r");
    uint32_t *ids = malloc(wanted * sizeof *ids), got = 0;
    while (file && got < wanted && fscanf(file, "%u", &ids[got]) == 1)
        got++;
    if (got < wanted) {
        fprintf(stderr, "bench_pages: '%s' has %u of %u token ids\n", path, got, wanted);
        exit(1);
    }
    fclose(file);
    return ids;
}

static void print_shares(const char *what, float *shares)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += shares[i];
    qsort(shares, count, sizeof *shares, descending);
    printf(" %s %.1f%% (a tenth of them %.1f%% or more) |", what, 100 * sum / (double)count,
           100 * (double)shares[count / 10]);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: bench_pages MODEL IDS TOKENS [OUTPUTS]\n");
        return 1;
    }
    const uint32_t tokens = (uint32_t)strtoul(argv[3], NULL, 10);
    const uint32_t outputs = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 8;
    const struct kva_sampling_params sampling = fixture_greedy();
    uint32_t *ids = read_ids(argv[2], tokens), token;
    struct kva_kv_spec spec;
    struct kva_err err = {0};
    struct fixture f;
    fixture_open(&f, &(struct fixture_params){.model_path = argv[1],
                                              .threads = 2,
                                              .context_max = tokens + outputs + 64,
                                              .step_tokens_max = 256,
                                              .weights = KVA_WEIGHTS_INT8,
                                              .device_bytes = 8ull << 30,
                                              .host_bytes = 8ull << 30,
                                              .unfused = true,
                                              .at_once = true});
    struct kva_device_base *base = (struct kva_device_base *)f.device;
    struct kva_ops counting = *base->ops;
    cpu_ops = fixture_without_peaks();
    counting.weigh_choose = weigh_choose;
    base->ops = &counting;
    assert_int_equal(kva_kv_spec_parse("specache:1:64", NULL, &spec, &err), KVA_OK);
    struct kva_sequence *seq =
        fixture_start(&f, &(struct kva_sequence_params){.prompt = ids,
                                                        .prompt_tokens = tokens,
                                                        .tokens_max = tokens + outputs + 1,
                                                        .sampling = &sampling,
                                                        .kv = spec});
    token = fixture_prefill(&f, seq, 256);
    for (uint32_t i = 0; i < outputs; i++)
        fixture_decode(&f, &seq, 1, &token);
    printf("| %u |", tokens);
    print_shares("looked at", looked);
    print_shares("needed", least_looked);
    printf(" %zu choices |\n", count);
    f.engine->ops->destroy(f.engine->self, seq);
    fixture_close(&f);
    free(ids);
    return 0;
}
