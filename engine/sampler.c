#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    float logit;
    uint32_t token;
};

struct kva_sampler {
    uint32_t vocab_size;
    struct candidate *candidates; /* [vocab_size] */
    uint32_t *counts;             /* [vocab_size], zero between draws */
    float *saved; /* [vocab_size] the model's logits, while a request's wishes are applied */
};

enum kva_status kva_sampler_create(uint32_t vocab_size, struct kva_sampler **ret,
                                   struct kva_err *err)
{
    struct kva_sampler *sampler = calloc(1, sizeof(*sampler));
    if (sampler) {
        sampler->vocab_size = vocab_size;
        sampler->candidates = calloc(vocab_size, sizeof(*sampler->candidates));
        sampler->counts = calloc(vocab_size, sizeof(*sampler->counts));
        sampler->saved = calloc(vocab_size, sizeof(*sampler->saved));
    }
    if (!sampler || !sampler->candidates || !sampler->counts || !sampler->saved) {
        kva_sampler_destroy(sampler);
        return kva_fail(err, KVA_ENOMEM, "out of memory for sampling from %u tokens", vocab_size);
    }
    *ret = sampler;
    return KVA_OK;
}

void kva_sampler_destroy(struct kva_sampler *sampler)
{
    if (!sampler)
        return;
    free(sampler->candidates);
    free(sampler->counts);
    free(sampler->saved);
    free(sampler);
}

/* SplitMix64's finaliser. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

double kva_sampler_uniform(uint64_t seed, uint64_t index)
{
    /* Two rounds keep neighbouring seeds with shifted indices apart. */
    uint64_t bits = mix(mix(seed + 0x9E3779B97F4A7C15ull) + index * 0x9E3779B97F4A7C15ull);
    return (double)(bits >> 11) * 0x1p-53;
}

/* --- order of candidates --------------------------------------------------------------------- */

/* Larger logit first; equal logits by token id, so that results do not depend on the method of
 * selection. */
static int comes_before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

static void sift_down(struct candidate *heap, uint32_t count, uint32_t at)
{
    struct candidate moving = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && comes_before(heap[child + 1], heap[child]))
            child++;
        if (!comes_before(heap[child], moving))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void heapify(struct candidate *heap, uint32_t count)
{
    for (uint32_t i = count / 2; i-- > 0;)
        sift_down(heap, count, i);
}

/* Moves the best of heap[0..count) to heap[count - 1]. */
static struct candidate pop(struct candidate *heap, uint32_t count)
{
    struct candidate best = heap[0];
    heap[0] = heap[count - 1];
    heap[count - 1] = best;
    sift_down(heap, count - 1, 0);
    return best;
}

/* --- log-probabilities ----------------------------------------------------------------------- */

static double log_sum_exp(const float *logits, uint32_t count, float *ret_max)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < count; i++)
        max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += logits[i] > -INFINITY ? (double)expf(logits[i] - max) : 0;
    *ret_max = max;
    return (double)max + log(sum);
}

static uint32_t rank_of(const float *logits, uint32_t count, uint32_t token)
{
    uint32_t rank = 1;
    for (uint32_t i = 0; i < count; i++)
        rank += logits[i] > logits[token] || (logits[i] == logits[token] && i < token);
    return rank;
}

/* The top_count best of logits, best first, by insertion: top_count is small. */
static void find_top(const float *logits, uint32_t count, uint32_t top_count, double lse,
                     struct kva_logprob *top)
{
    struct candidate best[KVA_LOGPROBS_MAX];
    uint32_t filled = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct candidate c = {logits[i], i};
        if (filled == top_count && !comes_before(c, best[filled - 1]))
            continue;
        uint32_t at = filled < top_count ? filled++ : filled - 1;
        for (; at > 0 && comes_before(c, best[at - 1]); at--)
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
    float max;
    double lse = log_sum_exp(logits, sampler->vocab_size, &max);
    *ret_chosen = (struct kva_logprob){token, (float)((double)logits[token] - lse),
                                       rank_of(logits, sampler->vocab_size, token)};
    if (top_count > 0)
        find_top(logits, sampler->vocab_size, top_count, lse, ret_top);
}

/* --- what a request forbids or prefers ------------------------------------------------------- */

/* `saved` holds the logits as the model gave them. */
static void keep_allowed(const struct kva_sampler *s, float *logits,
                         const struct kva_sampling_params *p)
{
    if (p->allowed_id_count == 0)
        return;
    for (uint32_t i = 0; i < s->vocab_size; i++)
        logits[i] = -INFINITY;
    for (uint32_t i = 0; i < p->allowed_id_count; i++)
        logits[p->allowed_ids[i]] = s->saved[p->allowed_ids[i]];
}

/* The last token of a bad word is forbidden where the output ends with the others. */
static void forbid_bad_words(float *logits, const struct kva_sampler_context *context)
{
    const struct kva_sampling_params *p = context->params;
    uint32_t output = context->token_count - context->prompt_tokens;
    for (uint32_t i = 0; i < p->bad_word_count; i++) {
        const struct kva_bad_word *word = &p->bad_words[i];
        uint32_t head = word->count - 1;
        if (head > output)
            continue;
        const uint32_t *end = context->ids + context->token_count - head;
        if (memcmp(end, word->tokens, head * sizeof(*end)) == 0)
            logits[word->tokens[head]] = -INFINITY;
    }
}

static void forbid_early_stop(float *logits, const struct kva_sampler_context *context)
{
    const struct kva_sampling_params *p = context->params;
    if (context->token_count - context->prompt_tokens >= p->min_tokens)
        return;
    for (uint32_t i = 0; i < p->stop_id_count; i++)
        logits[p->stop_ids[i]] = -INFINITY;
}

static void add_bias(float *logits, const struct kva_sampling_params *p)
{
    for (uint32_t i = 0; i < p->logit_bias_count; i++)
        logits[p->logit_bias[i].token] += p->logit_bias[i].bias;
}

static void penalise(struct kva_sampler *s, float *logits,
                     const struct kva_sampler_context *context)
{
    const struct kva_sampling_params *p = context->params;
    if (p->repetition_penalty == 1 && p->presence_penalty == 0 && p->frequency_penalty == 0)
        return;
    const uint32_t *ids = context->ids;
    for (uint32_t i = context->prompt_tokens; i < context->token_count; i++)
        s->counts[ids[i]]++;
    for (uint32_t i = context->prompt_tokens; i < context->token_count; i++) {
        uint32_t count = s->counts[ids[i]];
        if (count == 0)
            continue;
        s->counts[ids[i]] = 0;
        logits[ids[i]] -= p->presence_penalty + p->frequency_penalty * (float)count;
    }
    if (p->repetition_penalty == 1)
        return;
    /* Repetition is over prompt and output, each token once. */
    for (uint32_t i = 0; i < context->token_count; i++) {
        float *logit = &logits[ids[i]];
        if (s->counts[ids[i]]++ == 0)
            *logit = *logit > 0 ? *logit / p->repetition_penalty : *logit * p->repetition_penalty;
    }
    for (uint32_t i = 0; i < context->token_count; i++)
        s->counts[ids[i]] = 0;
}

/* --- drawing --------------------------------------------------------------------------------- */

static uint32_t argmax(const float *logits, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* Draw among the candidates that survive min_p, top_k and top_p. Candidates are taken best first
 * from a heap, so that the cost follows the size of the nucleus, not of the vocabulary. */
static uint32_t draw(struct kva_sampler *s, const float *logits, float max,
                     const struct kva_sampling_params *p, double uniform)
{
    double temperature = p->temperature;
    double cut = p->min_p > 0 ? (double)max + log((double)p->min_p) * temperature : -INFINITY;
    uint32_t count = 0;
    double total = 0;
    for (uint32_t i = 0; i < s->vocab_size; i++) {
        if (!(logits[i] > -INFINITY) || (double)logits[i] < cut)
            continue;
        s->candidates[count++] = (struct candidate){logits[i], i};
        total += exp(((double)logits[i] - (double)max) / temperature);
    }
    heapify(s->candidates, count);
    uint32_t keep = p->top_k > 0 ? kva_min_u32(p->top_k, count) : count;
    uint32_t kept = 0;
    double mass = 0;
    if (keep < count) {
        /* top_p is a share of what top_k leaves. */
        total = 0;
        for (; kept < keep; kept++)
            total +=
                exp(((double)pop(s->candidates, count - kept).logit - (double)max) / temperature);
    }
    /* The popped candidates stand at the end of the array, best last. */
    uint32_t popped = kept;
    for (kept = 0; kept < keep; kept++) {
        if (kept >= popped) {
            pop(s->candidates, count - kept);
            popped++;
        }
        mass += exp(((double)s->candidates[count - 1 - kept].logit - (double)max) / temperature);
        if (p->top_p < 1 && mass >= (double)p->top_p * total) {
            kept++;
            break;
        }
        /* Without top_p the draw may stop as soon as the drawn point is passed. */
        if (p->top_p >= 1 && mass > uniform * total)
            return s->candidates[count - 1 - kept].token;
    }
    double target = uniform * mass;
    double sum = 0;
    for (uint32_t i = 0; i < kept; i++) {
        struct candidate c = s->candidates[count - 1 - i];
        sum += exp(((double)c.logit - (double)max) / temperature);
        if (sum > target)
            return c.token;
    }
    return s->candidates[count - kept].token;
}

/* A NaN says nothing about its token; it must not win. */
static void drop_nan(float *logits, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        logits[i] = isnan(logits[i]) ? -INFINITY : logits[i];
}

bool kva_sampler_takes_best(const struct kva_sampler_context *context)
{
    const struct kva_sampling_params *p = context->params;
    bool may_stop =
        p->stop_id_count == 0 || context->token_count - context->prompt_tokens >= p->min_tokens;
    return may_stop && p->temperature <= 0 && p->logprobs < 0 && p->allowed_id_count == 0 &&
           p->bad_word_count == 0 && p->logit_bias_count == 0 && p->presence_penalty == 0 &&
           p->frequency_penalty == 0 && p->repetition_penalty == 1;
}

enum kva_status kva_sampler_draw(struct kva_sampler *s, float *logits,
                                 const struct kva_sampler_context *context,
                                 struct kva_token_output *ret)
{
    const struct kva_sampling_params *p = context->params;
    drop_nan(logits, s->vocab_size);
    if (p->logprobs >= 0 || p->allowed_id_count > 0)
        memcpy(s->saved, logits, s->vocab_size * sizeof(*logits));
    keep_allowed(s, logits, p);
    forbid_bad_words(logits, context);
    forbid_early_stop(logits, context);
    add_bias(logits, p);
    penalise(s, logits, context);
    uint32_t best = argmax(logits, s->vocab_size);
    if (!isfinite(logits[best]))
        return KVA_EINTERNAL;
    ret->token = best;
    if (p->temperature > 0) {
        uint64_t index = context->token_count - context->prompt_tokens;
        double uniform = kva_sampler_uniform(p->seed + context->choice, index);
        ret->token = draw(s, logits, logits[best], p, uniform);
    }
    ret->top_count = 0;
    if (p->logprobs >= 0) {
        ret->top_count = kva_min_u32((uint32_t)p->logprobs, s->vocab_size);
        kva_sampler_logprobs(s, s->saved, ret->token, ret->top_count, &ret->chosen, ret->top);
    }
    return KVA_OK;
}
