/* Which rows a selection may choose: by their mean probability, in doubles. */
#include "tests/kernels/lowbit_case.h"

#include <stdlib.h>
#include <string.h>

/* means[t] = the mean probability of position t for the row; -1 where it is no candidate. */
static void mean_truth(const struct lowbit_test *test, uint32_t seq, uint32_t select,
                       uint32_t kv_head, double *means)
{
    const struct kva_attend_select_fetch_args *args = &test->args;
    uint32_t dim = args->head_dim, tokens = test->seqs[seq].page_count * 64;
    uint32_t group = args->heads / args->kv_heads, row = test->seqs[seq].row_first + select;
    uint32_t first = lowbit_first_seen(test, test->seqs[seq].position_first + select);
    double *kv = lowbit_widen(test, seq, kv_head), *scores = malloc((tokens + 1) * sizeof *scores);
    for (uint32_t t = 0; t < tokens; t++)
        means[t] = t < first || t < test->data[seq].pinned ? -1 : 0;
    for (uint32_t h = 0; h < group; h++) {
        size_t pair = (size_t)row * args->heads + kv_head * group + h;
        const float *q = (const float *)args->q + (size_t)row * args->q_stride +
                         ((size_t)kv_head * group + h) * dim;
        double m = test->with_rest ? test->rest.m[pair] : -INFINITY, e = 0;
        for (uint32_t t = first; t < tokens; t++) {
            scores[t] = 0;
            for (uint32_t i = 0; i < dim; i++)
                scores[t] += (double)q[i] * (double)args->scale * kv[(size_t)t * 2 * dim + i];
            m = fmax(m, scores[t]);
        }
        for (uint32_t t = first; t < tokens; t++)
            e += exp(scores[t] - m);
        if (test->with_rest && test->rest.m[pair] > -INFINITY)
            e += test->rest.e[pair] * exp(test->rest.m[pair] - m);
        for (uint32_t t = first; t < tokens; t++)
            means[t] += means[t] >= 0 ? exp(scores[t] - m) / e / group : 0;
    }
    free(kv);
    free(scores);
}

/* A candidate weighs at least `share` of what the one before it does. */
static void bring_successors(double *means, uint32_t tokens, double share)
{
    for (uint32_t t = tokens; share > 0 && t-- > 1;) {
        if (means[t] >= 0)
            means[t] = fmax(means[t], means[t - 1] * share);
    }
}

/* What is left out may not weigh more than what was chosen, but for `slack` of the weight. */
static const char *check_chosen(const double *means, uint32_t tokens, const uint32_t *chosen,
                                uint32_t k, double slack)
{
    uint32_t candidates = 0, count = 0;
    double least = INFINITY, most = 0;
    for (uint32_t t = 0; t < tokens; t++)
        candidates += means[t] >= 0;
    while (count < k && chosen[count] != KVA_NO_TOKEN)
        count++;
    if (count != kva_min_u32(k, candidates))
        return "a wrong number of positions was chosen";
    for (uint32_t i = 0; i < k; i++) {
        if (i >= count ? chosen[i] != KVA_NO_TOKEN
                       : chosen[i] >= tokens || (i > 0 && chosen[i] <= chosen[i - 1]))
            return "what was chosen is not in order";
    }
    for (uint32_t t = 0, i = 0; t < tokens; t++) {
        if (i < count && chosen[i] == t) {
            if (means[t] < 0)
                return "a position was chosen that is no candidate";
            least = fmin(least, means[t]);
            i++;
        } else {
            most = fmax(most, means[t]);
        }
    }
    return count > 0 && most > least * (1 + slack) + 1e-30
               ? "a position was left out that weighs more than one that was chosen"
               : NULL;
}

struct selection {
    uint32_t select[LOWBIT_SEQS_MAX];
    uint32_t *chosen[2][LOWBIT_SEQS_MAX];
    float *out[2];
};

/* The selecting call twice, in other slots and on other threads; the second without the sequences
 * after the first, every other time. */
static const char *select_variant(struct check *check, const struct check_variant *variant,
                                  const struct lowbit_test *test, const struct selection *run)
{
    const struct kva_attend_select_fetch_args *args = &test->args;
    size_t pairs = (size_t)test->rows * args->heads, floats = pairs * (args->head_dim + 2);
    for (int i = 0; i < 2; i++) {
        struct kva_partial out = {.a = run->out[i]};
        out.m = out.a + pairs * args->head_dim;
        out.e = out.m + pairs;
        for (size_t j = 0; j < floats; j++)
            run->out[i][j] = -77.0f;
        if (!lowbit_run(check, variant, i ? variant->many : variant->one, test, 0, test->rows,
                        run->select, run->chosen[i], out))
            return "touched what is not its own, or failed";
    }
    if (memcmp(run->out[0], run->out[1], floats * sizeof(float)) != 0)
        return "slots or threads change the result";
    for (uint32_t s = 0; s < args->seq_count; s++) {
        size_t bytes = (size_t)args->kv_heads * test->data[s].k * sizeof(uint32_t);
        if (!test->data[s].cache)
            continue;
        if (memcmp(run->chosen[0][s], run->chosen[1][s], bytes) != 0)
            return "slots or threads change what is chosen";
        /* Alone, the row by itself. */
        struct kva_partial out = {.a = run->out[1], .m = run->out[1], .e = run->out[1]};
        uint32_t row = test->seqs[s].row_first + run->select[s];
        out.m = out.a + (size_t)args->heads * args->head_dim;
        out.e = out.m + args->heads;
        memset(run->chosen[1][s], 0, bytes);
        lowbit_run(check, variant, variant->one, test, row, 1, run->select, run->chosen[1], out);
        if (memcmp(run->chosen[0][s], run->chosen[1][s], bytes) != 0)
            return "other rows change what is chosen";
    }
    return NULL;
}

void lowbit_check_selection(struct check *check, const struct lowbit_test *test, const char *name,
                            double slack, double slack_rounded)
{
    const struct kva_attend_select_fetch_args *args = &test->args;
    struct selection run;
    size_t floats = (size_t)test->rows * args->heads * (args->head_dim + 2);
    double *means = malloc((size_t)LOWBIT_PAGES_MAX * 64 * sizeof *means);
    for (uint32_t s = 0; s < args->seq_count; s++)
        run.select[s] = check_below(check, test->seqs[s].row_count);
    for (int i = 0; i < 2; i++) {
        run.out[i] = malloc(floats * sizeof(float));
        for (uint32_t s = 0; s < args->seq_count; s++)
            run.chosen[i][s] = malloc(((size_t)args->kv_heads * test->data[s].k + 1) * 4);
    }
    const struct check_case needs = {.needs = {.select_heads_max = args->heads / args->kv_heads}};
    for (uint32_t v = 0; v < check->variant_count; v++) {
        struct check_variant *variant = &check->variants[v];
        if (!check_takes(variant, &needs))
            continue;
        const char *reason = select_variant(check, variant, test, &run);
        for (uint32_t i = 0; i < args->seq_count * args->kv_heads && !reason; i++) {
            uint32_t s = i / args->kv_heads, head = i % args->kv_heads, k = test->data[s].k;
            if (!test->data[s].cache)
                continue;
            mean_truth(test, s, run.select[s], head, means);
            bring_successors(means, test->seqs[s].page_count * 64, (double)test->data[s].successor);
            bool rounds = variant->levels & lowbit_rounding_levels();
            reason = check_chosen(means, test->seqs[s].page_count * 64,
                                  run.chosen[0][s] + (size_t)head * k, k,
                                  rounds ? slack_rounded : slack);
        }
        check_count(check, variant, OP_WEIGH, name, !reason, reason);
    }
    for (int i = 0; i < 2; i++) {
        free(run.out[i]);
        for (uint32_t s = 0; s < args->seq_count; s++)
            free(run.chosen[i][s]);
    }
    free(means);
}
