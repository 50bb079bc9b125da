/* sampler_logprobs.c - log-probabilities and ranks, from all logits or from a list. */
#include "engine/sampler_internal.h"

#include "kernels/logits.h"

/* Logits to be ranked: all of them, or a list. */
struct source {
    const float *all; /* [count], or NULL */
    const struct kva_candidate *list;
    uint32_t count;
};

static struct kva_candidate source_at(const struct source *source, uint32_t i)
{
    return source->all ? (struct kva_candidate){source->all[i], i} : source->list[i];
}

static uint32_t rank_of(const struct source *source, struct kva_candidate own)
{
    uint32_t rank = 1;
    for (uint32_t i = 0; i < source->count; i++)
        rank += kva_candidate_is_better(source_at(source, i), own);
    return rank;
}

/* The top_count best, best first, by insertion: top_count is small. */
static void find_top(const struct source *source, uint32_t top_count, double lse,
                     struct kva_logprob *top)
{
    struct kva_candidate best[KVA_LOGPROBS_MAX];
    uint32_t filled = 0;
    for (uint32_t i = 0; i < source->count; i++) {
        struct kva_candidate c = source_at(source, i);
        if (filled == top_count && !kva_candidate_is_better(c, best[filled - 1]))
            continue;
        uint32_t at = filled < top_count ? filled++ : filled - 1;
        for (; at > 0 && kva_candidate_is_better(c, best[at - 1]); at--)
            best[at] = best[at - 1];
        best[at] = c;
    }
    for (uint32_t i = 0; i < filled; i++)
        top[i] = (struct kva_logprob){best[i].token, (float)((double)best[i].logit - lse), i + 1};
}

void kva_sampler_logprobs(struct kva_sampler *sampler, const float *logits, uint32_t token,
                          uint32_t top_count, struct kva_logprob *ret_chosen,
                          struct kva_logprob *ret_top)
{
    const struct source source = {.all = logits, .count = sampler->vocab_size};
    double lse = kva_log_sum_exp(logits, sampler->vocab_size);
    *ret_chosen = (struct kva_logprob){token, (float)((double)logits[token] - lse),
                                       rank_of(&source, source_at(&source, token))};
    if (top_count > 0)
        find_top(&source, top_count, lse, ret_top);
}

bool kva_sampler_listed_logprobs(const struct kva_sampler_list *list, uint32_t token,
                                 uint32_t top_count, struct kva_logprob *ret_chosen,
                                 struct kva_logprob *ret_top)
{
    const struct kva_shortlist *summary = list->summary;
    const struct source source = {.list = list->listed, .count = summary->count};
    uint32_t at = 0;
    while (at < source.count && list->listed[at].token != token)
        at++;
    struct kva_candidate own = {.token = token};
    uint32_t rank = 0;
    if (at < source.count) {
        own = list->listed[at];
        rank = rank_of(&source, own);
    } else if (list->request->rank && list->tracked[0] == token) {
        own.logit = list->tracked_logits[0];
        rank = summary->rank;
    }
    if (rank == 0 || top_count > source.count)
        return false;
    *ret_chosen = (struct kva_logprob){token, (float)((double)own.logit - summary->log_sum), rank};
    if (top_count > 0)
        find_top(&source, top_count, summary->log_sum, ret_top);
    return true;
}
