/* sampler.c - the draw: by all logits, or by a list where it decides. */
#include "engine/sampler_internal.h"

#include "kernels/logits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum kva_status kva_sampler_create(uint32_t vocab_size, struct kva_sampler **ret,
                                   struct kva_err *err)
{
    struct kva_sampler *sampler = calloc(1, sizeof(*sampler));
    if (sampler) {
        sampler->vocab_size = vocab_size;
        sampler->candidates = calloc(vocab_size, sizeof(*sampler->candidates));
        sampler->counts = calloc(vocab_size, sizeof(*sampler->counts));
        sampler->saved = calloc(vocab_size, sizeof(*sampler->saved));
        sampler->listed = calloc(vocab_size, sizeof(*sampler->listed));
    }
    if (!sampler || !sampler->candidates || !sampler->counts || !sampler->saved ||
        !sampler->listed) {
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
    free(sampler->listed);
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

static void sift_down(struct kva_candidate *heap, uint32_t count, uint32_t at)
{
    struct kva_candidate moving = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && kva_candidate_is_better(heap[child + 1], heap[child]))
            child++;
        if (!kva_candidate_is_better(heap[child], moving))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void heapify(struct kva_candidate *heap, uint32_t count)
{
    for (uint32_t i = count / 2; i-- > 0;)
        sift_down(heap, count, i);
}

/* Moves the best of heap[0..count) to heap[count - 1]. */
static struct kva_candidate pop(struct kva_candidate *heap, uint32_t count)
{
    struct kva_candidate best = heap[0];
    heap[0] = heap[count - 1];
    heap[count - 1] = best;
    sift_down(heap, count - 1, 0);
    return best;
}

/* --- what is known of a row ------------------------------------------------------------------ */

/* s->candidates, after the logit processors, and what is known of the other tokens. */
struct known {
    uint32_t count;            /* of the candidates; each is above -inf */
    bool all;                  /* the others are at -inf */
    bool finite;               /* the model's logits are numbers, at least one of them */
    struct kva_candidate last; /* unless `all`: what comes before it is a candidate */
    double tail_sum;           /* sum of exp((logit - last.logit) / temperature) of the others */
    const uint32_t *mask;      /* of tokens that may be candidates; NULL: all may */
};

static void add_candidate(struct kva_sampler *s, struct known *known, const float *logits,
                          uint32_t token)
{
    if (logits[token] > -INFINITY && (!known->mask || kva_constraint_allows(known->mask, token)))
        s->candidates[known->count++] = (struct kva_candidate){logits[token], token};
}

/* Tokens that have not been added yet: counts[token] says so until `forget`. */
static void add_once(struct kva_sampler *s, struct known *known, const float *logits,
                     const uint32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (s->counts[tokens[i]]++ == 0)
            add_candidate(s, known, logits, tokens[i]);
    }
}

static uint32_t mask_words(const struct kva_sampler *s)
{
    return (uint32_t)kva_div_up(s->vocab_size, 32);
}

/* Of a mask: most words of most masks are empty. */
static void add_masked(struct kva_sampler *s, struct known *known, const float *logits)
{
    for (uint32_t word = 0; word < mask_words(s); word++) {
        for (uint32_t bits = known->mask[word]; bits; bits &= bits - 1) {
            uint32_t token = word * 32 + (uint32_t)__builtin_ctz(bits);
            if (token < s->vocab_size)
                add_candidate(s, known, logits, token);
        }
    }
}

/* Of all logits. */
static struct known know_all(struct kva_sampler *s, const float *logits,
                             const struct kva_sampler_context *context)
{
    const struct kva_sampling_params *p = context->params;
    struct known known = {.all = true, .mask = context->mask};
    if (p->allowed_id_count > 0) {
        add_once(s, &known, logits, p->allowed_ids, p->allowed_id_count);
        kva_sampler_forget(s, p->allowed_ids, p->allowed_id_count);
        return known;
    }
    if (known.mask) {
        add_masked(s, &known, logits);
        return known;
    }
    for (uint32_t i = 0; i < s->vocab_size; i++)
        add_candidate(s, &known, logits, i);
    return known;
}

/* The worst of a list: all that is not in it comes after it. */
static struct kva_candidate last_of(const struct kva_sampler_list *list)
{
    struct kva_candidate last = list->listed[0];
    for (uint32_t i = 1; i < list->summary->count; i++)
        last = kva_candidate_is_better(last, list->listed[i]) ? list->listed[i] : last;
    return last;
}

/* Of a list: its tokens and those that are tracked, at their places among all. */
static struct known know_listed(struct kva_sampler *s, const struct kva_sampler_list *list,
                                const struct kva_sampler_context *context)
{
    const struct kva_sampling_params *p = context->params;
    struct known known = {.tail_sum = list->summary->tail_sum,
                          .finite = list->summary->count > 0,
                          .mask = context->mask};
    uint32_t tracked_count = list->request->tracked_count, count = list->summary->count;
    known.all = count < list->request->k || p->allowed_id_count > 0;
    if (!known.all)
        known.last = last_of(list);
    for (uint32_t i = 0; i < tracked_count; i++) {
        float x = list->tracked_logits[i];
        s->listed[list->tracked[i]] = isnan(x) ? -INFINITY : x;
    }
    for (uint32_t i = 0; i < count; i++)
        s->listed[list->listed[i].token] = list->listed[i].logit;
    /* The tail has the tracked tokens that are not listed, by the logits of the model. */
    for (uint32_t i = 0; i < tracked_count && known.tail_sum > 0; i++) {
        struct kva_candidate x = {s->listed[list->tracked[i]], list->tracked[i]};
        if (x.logit > -INFINITY && kva_candidate_is_better(known.last, x))
            known.tail_sum -=
                exp(((double)x.logit - (double)known.last.logit) / (double)p->temperature);
    }
    known.tail_sum = known.tail_sum > 0 ? known.tail_sum : 0;
    kva_sampler_process_logits(s, s->listed, context);
    if (p->allowed_id_count > 0) {
        add_once(s, &known, s->listed, p->allowed_ids, p->allowed_id_count);
        kva_sampler_forget(s, p->allowed_ids, p->allowed_id_count);
        return known;
    }
    add_once(s, &known, s->listed, list->tracked, tracked_count);
    for (uint32_t i = 0; i < count; i++) {
        if (s->counts[list->listed[i].token] == 0)
            add_candidate(s, &known, s->listed, list->listed[i].token);
    }
    kva_sampler_forget(s, list->tracked, tracked_count);
    return known;
}

/* --- drawing --------------------------------------------------------------------------------- */

static double mass_of(struct kva_candidate c, float max, double temperature)
{
    return exp(((double)c.logit - (double)max) / temperature);
}

/* Leaves the candidates that min_p does; returns their mass. */
static double cut_off(struct kva_sampler *s, struct known *known, float max,
                      const struct kva_sampling_params *p)
{
    double temperature = p->temperature, total = 0;
    double cut = p->min_p > 0 ? (double)max + log((double)p->min_p) * temperature : -INFINITY;
    uint32_t count = 0;
    for (uint32_t i = 0; i < known->count; i++) {
        if ((double)s->candidates[i].logit < cut)
            continue;
        total += mass_of(s->candidates[i], max, temperature);
        s->candidates[count++] = s->candidates[i];
    }
    known->count = count;
    known->all = known->all || (double)known->last.logit < cut;
    return total;
}

/* The next best becomes the last but `kept` of the array; false: one that is not known may come
 * before it. */
static bool pop_next(struct kva_sampler *s, const struct known *known, uint32_t kept)
{
    struct kva_candidate best = pop(s->candidates, known->count - kept);
    return known->all || !kva_candidate_is_better(known->last, best);
}

/* Draw among the candidates that survive min_p, top_k and top_p. Candidates are taken best first
 * from a heap, so that the cost follows the size of the nucleus, not of the vocabulary. False: what
 * is known does not decide. */
static bool draw(struct kva_sampler *s, struct known *known, float max,
                 const struct kva_sampling_params *p, double uniform, uint32_t *ret_token)
{
    double temperature = p->temperature, total = cut_off(s, known, max, p), mass = 0;
    uint32_t count = known->count, kept = 0;
    const struct kva_candidate *end = s->candidates + count; /* what is popped stands before it */
    uint32_t keep = p->top_k > 0 ? kva_min_u32(p->top_k, count) : count;
    bool done = false;
    if (!known->all && (p->min_p > 0 || p->top_k > count))
        return false;
    heapify(s->candidates, count);
    if (keep < count || (p->top_k > 0 && !known->all)) {
        /* top_p is a share of what top_k leaves. */
        total = 0;
        for (; kept < keep; kept++) {
            if (!pop_next(s, known, kept))
                return false;
            total += mass_of(end[-1 - (int)kept], max, temperature);
        }
    } else if (!known->all) {
        total += known->tail_sum * mass_of(known->last, max, temperature);
    }
    uint32_t popped = kept;
    for (kept = 0; kept < keep && !done; kept++) {
        if (kept >= popped && !pop_next(s, known, kept))
            return false;
        mass += mass_of(end[-1 - (int)kept], max, temperature);
        done = p->top_p < 1 && mass >= (double)p->top_p * total;
        /* Without top_p the draw may stop as soon as the drawn point is passed. */
        if (p->top_p >= 1 && mass > uniform * total) {
            *ret_token = end[-1 - (int)kept].token;
            return true;
        }
    }
    if (!done && !known->all && p->top_k == 0)
        return false;
    double target = uniform * mass, sum = 0;
    for (uint32_t i = 0; i < kept; i++) {
        *ret_token = end[-1 - (int)i].token;
        sum += mass_of(end[-1 - (int)i], max, temperature);
        if (sum > target)
            break;
    }
    return true;
}

/* What forbids tokens contradicts itself, or the logits are no numbers. A constraint alone always
 * allows something. */
static enum kva_status none_left(const struct known *known, const struct kva_sampling_params *p)
{
    bool forbids = p->bad_word_count > 0 || p->allowed_id_count > 0;
    return known->finite && forbids ? KVA_EINVAL : KVA_EINTERNAL;
}

static enum kva_status choose(struct kva_sampler *s, struct known *known,
                              const struct kva_sampler_context *context, bool *ret_enough,
                              uint32_t *ret_token)
{
    const struct kva_sampling_params *p = context->params;
    *ret_enough = known->all;
    if (known->count == 0)
        return known->all ? none_left(known, p) : KVA_OK;
    struct kva_candidate best = s->candidates[0];
    for (uint32_t i = 1; i < known->count; i++)
        best = kva_candidate_is_better(s->candidates[i], best) ? s->candidates[i] : best;
    if (!known->all && kva_candidate_is_better(known->last, best))
        return KVA_OK;
    *ret_enough = true;
    if (!isfinite(best.logit))
        return KVA_EINTERNAL;
    *ret_token = best.token;
    if (p->temperature > 0) {
        uint64_t index = context->token_count - context->prompt_tokens;
        double uniform = kva_sampler_uniform(p->seed + context->choice, index);
        *ret_enough = draw(s, known, best.logit, p, uniform, ret_token);
    }
    return KVA_OK;
}

/* --- by all logits --------------------------------------------------------------------------- */

/* A NaN says nothing about its token; it must not win. Whether there is another one above -inf. */
static bool drop_nan(float *logits, uint32_t count)
{
    float best = -INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        logits[i] = isnan(logits[i]) ? -INFINITY : logits[i];
        best = logits[i] > best ? logits[i] : best;
    }
    return best > -INFINITY;
}

enum kva_status kva_sampler_draw(struct kva_sampler *s, float *logits,
                                 const struct kva_sampler_context *context,
                                 struct kva_token_output *ret)
{
    const struct kva_sampling_params *p = context->params;
    bool enough;
    bool finite = drop_nan(logits, s->vocab_size);
    if (p->logprobs >= 0)
        memcpy(s->saved, logits, s->vocab_size * sizeof(*logits));
    kva_sampler_process_logits(s, logits, context);
    struct known known = know_all(s, logits, context);
    known.finite = finite;
    enum kva_status status = choose(s, &known, context, &enough, &ret->token);
    if (status)
        return status;
    ret->top_count = 0;
    if (p->logprobs >= 0) {
        ret->top_count = kva_min_u32((uint32_t)p->logprobs, s->vocab_size);
        kva_sampler_logprobs(s, s->saved, ret->token, ret->top_count, &ret->chosen, ret->top);
    }
    return KVA_OK;
}

/* --- by a list ------------------------------------------------------------------------------- */

void kva_sampler_request(struct kva_sampler *s, const struct kva_sampler_context *context,
                         uint32_t *tracked, struct kva_shortlist_request *request)
{
    const struct kva_sampling_params *p = context->params;
    uint32_t count = 0;
    bool enough = kva_sampler_affected_tokens(s, context, tracked, &count);
    *request = (struct kva_shortlist_request){.log_sum = p->logprobs >= 0};
    if (!enough || p->top_k > KVA_SHORTLIST_MAX)
        return;
    /* The mass of what is not listed is that of all tokens, forbidden ones included. */
    if (p->constraint && p->temperature > 0 && p->top_k == 0)
        return;
    request->tracked_count = count;
    /* Of so many tokens one at least is none of those whose logits are known and changed. */
    bool best_only = p->temperature <= 0 && p->logprobs < 0 && !p->constraint;
    request->k = best_only ? kva_min_u32(count + 1, KVA_SHORTLIST_MAX) : KVA_SHORTLIST_MAX;
    if (p->temperature > 0 && p->top_k == 0 && p->min_p <= 0 && p->allowed_id_count == 0)
        request->temperature = p->temperature;
}

enum kva_status kva_sampler_draw_listed(struct kva_sampler *s, const struct kva_sampler_list *list,
                                        const struct kva_sampler_context *context, bool *ret_enough,
                                        struct kva_token_output *ret)
{
    const struct kva_sampling_params *p = context->params;
    struct known known = know_listed(s, list, context);
    enum kva_status status = choose(s, &known, context, ret_enough, &ret->token);
    if (status || !*ret_enough)
        return status;
    ret->top_count = 0;
    if (p->logprobs >= 0) {
        ret->top_count = kva_min_u32((uint32_t)p->logprobs, s->vocab_size);
        *ret_enough =
            kva_sampler_listed_logprobs(list, ret->token, ret->top_count, &ret->chosen, ret->top);
    }
    return KVA_OK;
}
