/* sampler_processors.c - logit processors, and which tokens they may change. */
#include "engine/sampler_internal.h"

#include <math.h>
#include <string.h>

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

static bool is_stop_id(const struct kva_sampling_params *p, uint32_t token)
{
    uint32_t i = 0;
    while (i < p->stop_id_count && p->stop_ids[i] != token)
        i++;
    return i < p->stop_id_count;
}

/* Whether the mask has nothing but stop ids. */
static bool has_ended(const struct kva_sampler *s, const struct kva_sampler_context *context)
{
    for (uint32_t token = 0; token < s->vocab_size; token++) {
        /* Most words are empty. */
        if (token % 32 == 0 && context->mask[token / 32] == 0)
            token += 31;
        else if (kva_constraint_allows(context->mask, token) && !is_stop_id(context->params, token))
            return false;
    }
    return true;
}

static void forbid_early_stop(const struct kva_sampler *s, float *logits,
                              const struct kva_sampler_context *context)
{
    const struct kva_sampling_params *p = context->params;
    if (context->token_count - context->prompt_tokens >= p->min_tokens)
        return;
    if (context->mask && has_ended(s, context))
        return;
    for (uint32_t i = 0; i < p->stop_id_count; i++)
        logits[p->stop_ids[i]] = -INFINITY;
}

static void add_bias(float *logits, const struct kva_sampling_params *p)
{
    for (uint32_t i = 0; i < p->logit_bias_count; i++)
        logits[p->logit_bias[i].token] += p->logit_bias[i].bias;
}

/* Repetition is over prompt and output, each token once. */
static void scale_repeated(struct kva_sampler *s, float *logits,
                           const struct kva_sampler_context *context)
{
    const float penalty = context->params->repetition_penalty;
    for (uint32_t i = 0; i < context->token_count; i++) {
        float *logit = &logits[context->ids[i]];
        if (s->counts[context->ids[i]]++ == 0)
            *logit = *logit > 0 ? *logit / penalty : *logit * penalty;
    }
    kva_sampler_forget(s, context->ids, context->token_count);
}

/* The factor before the terms, as vLLM and llama.cpp have it. */
static void penalise(struct kva_sampler *s, float *logits,
                     const struct kva_sampler_context *context)
{
    const struct kva_sampling_params *p = context->params;
    if (p->repetition_penalty == 1 && p->presence_penalty == 0 && p->frequency_penalty == 0)
        return;
    const uint32_t *ids = context->ids;
    if (p->repetition_penalty != 1)
        scale_repeated(s, logits, context);
    for (uint32_t i = context->prompt_tokens; i < context->token_count; i++)
        s->counts[ids[i]]++;
    for (uint32_t i = context->prompt_tokens; i < context->token_count; i++) {
        uint32_t count = s->counts[ids[i]];
        if (count == 0)
            continue;
        s->counts[ids[i]] = 0;
        logits[ids[i]] -= p->presence_penalty + p->frequency_penalty * (float)count;
    }
}

void kva_sampler_process_logits(struct kva_sampler *s, float *logits,
                                const struct kva_sampler_context *context)
{
    forbid_bad_words(logits, context);
    forbid_early_stop(s, logits, context);
    add_bias(logits, context->params);
    penalise(s, logits, context);
}

/* --- the tokens that they may change --------------------------------------------------------- */

/* Each token once, as long as there is room. */
struct affected {
    struct kva_sampler *s;
    uint32_t *tokens; /* [KVA_SAMPLER_TRACKED_MAX] */
    uint32_t count;
    bool full;
};

static void add_token(struct affected *affected, uint32_t token)
{
    if (affected->s->counts[token] > 0)
        return;
    affected->full = affected->full || affected->count == KVA_SAMPLER_TRACKED_MAX;
    if (affected->full)
        return;
    affected->s->counts[token] = 1;
    affected->tokens[affected->count++] = token;
}

static void add_tokens(struct affected *affected, const uint32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count && !affected->full; i++)
        add_token(affected, tokens[i]);
}

bool kva_sampler_affected_tokens(struct kva_sampler *s, const struct kva_sampler_context *context,
                                 uint32_t *tracked, uint32_t *ret_count)
{
    struct affected affected = {.s = s, .tokens = tracked};
    const struct kva_sampling_params *p = context->params;
    uint32_t output = context->token_count - context->prompt_tokens;
    add_tokens(&affected, p->allowed_ids, p->allowed_id_count);
    for (uint32_t i = 0; i < p->bad_word_count; i++)
        add_token(&affected, p->bad_words[i].tokens[p->bad_words[i].count - 1]);
    if (output < p->min_tokens)
        add_tokens(&affected, p->stop_ids, p->stop_id_count);
    for (uint32_t i = 0; i < p->logit_bias_count; i++)
        add_token(&affected, p->logit_bias[i].token);
    if (p->repetition_penalty != 1)
        add_tokens(&affected, context->ids, context->token_count);
    else if (p->presence_penalty != 0 || p->frequency_penalty != 0)
        add_tokens(&affected, context->ids + context->prompt_tokens, output);
    kva_sampler_forget(s, tracked, affected.count);
    *ret_count = affected.count;
    return !affected.full;
}
