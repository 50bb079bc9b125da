/* pick.c - from residual streams to tokens: which rows' logits are made, what of them is wanted,
 * and the token that comes of it. */
#include "engine/model_engine_internal.h"

#include <stdlib.h>
#include <string.h>

static struct kva_sampler_context sampling_of(const struct kva_sequence *seq)
{
    return (struct kva_sampler_context){
        .params = seq->params.sampling,
        .choice = seq->params.choice,
        .ids = seq->ids,
        .prompt_tokens = seq->params.prompt_tokens,
        .token_count = seq->token_count,
    };
}

/* What may come next, or behind the expected token. */
static enum kva_status masked(const struct kva_sequence *seq, bool behind_expected,
                              struct kva_sampler_context *context)
{
    const struct kva_constraint *constraint = seq->params.sampling->constraint;
    return constraint ? constraint->ops->mask(seq->constraint, behind_expected, &context->mask)
                      : KVA_OK;
}

/* --- asking ---------------------------------------------------------------------------------- */

enum kva_status kva_pick_create(struct kva_pick *pick, uint32_t rows_max, struct kva_err *err)
{
    pick->rows_max = rows_max;
    pick->rows = calloc(rows_max, sizeof(*pick->rows));
    pick->requests = calloc(rows_max, sizeof(*pick->requests));
    pick->picked = calloc(rows_max, sizeof(*pick->picked));
    pick->tracked = calloc((size_t)rows_max * KVA_SAMPLER_TRACKED_MAX, sizeof(*pick->tracked));
    if (!pick->rows || !pick->requests || !pick->picked || !pick->tracked)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the tokens of %u rows", rows_max);
    return KVA_OK;
}

void kva_pick_destroy(struct kva_pick *pick)
{
    free(pick->rows);
    free(pick->requests);
    free(pick->picked);
    free(pick->tracked);
}

void kva_pick_begin(struct model_engine *e)
{
    e->pick.count = e->pick.tracked_count = 0;
}

/* A row of hidden, and where to say what is wanted of it. */
static struct kva_shortlist_request *add_row(struct kva_pick *pick, uint32_t row)
{
    struct kva_shortlist_request *request = &pick->requests[pick->count];
    pick->rows[pick->count++] = row;
    *request = (struct kva_shortlist_request){.tracked_first = pick->tracked_count};
    return request;
}

/* Where the host reads the logits anyway, falling back to them costs no copy, and making the list
 * is what costs: the best few nearly always hold what is drawn. */
#define LISTED_ON_HOST 128u

static uint32_t list_length(const struct model_engine *e, const struct kva_sampling_params *p,
                            uint32_t length)
{
    if (!kva_device_get_info(e->device)->host_readable)
        return length;
    uint32_t needed = p->logprobs > 0 ? (uint32_t)p->logprobs : 0;
    needed = kva_max_u32(needed, p->top_k > 0 ? (uint32_t)p->top_k : 0);
    return kva_min_u32(length, kva_max_u32(needed, LISTED_ON_HOST));
}

void kva_pick_item(struct model_engine *e, uint32_t row, const struct kva_step_item *item)
{
    struct kva_pick *pick = &e->pick;
    struct kva_shortlist_request *request = add_row(pick, row);
    uint32_t first = pick->tracked_count;
    if (item->logits)
        return;
    if (item->forced) {
        request->k = 1;
        return;
    }
    const struct kva_sampler_context context = sampling_of(item->seq);
    kva_sampler_request(e->sampler, &context, pick->tracked + first, request);
    request->k = list_length(e, context.params, request->k);
    request->tracked_first = first;
    pick->tracked_count += request->tracked_count;
}

/* --- guesses --------------------------------------------------------------------------------- */

/* The request's logit processors, and then the best token, whatever its sampling is: a guess that
 * breaks what the request forbids would nearly always be wrong. */
static struct kva_sampling_params guessing_of(const struct kva_sequence *seq)
{
    struct kva_sampling_params params = *seq->params.sampling;
    params.temperature = 0;
    params.logprobs = -1;
    params.prompt_logprobs = -1;
    return params;
}

/* Whether they can change which token is best. */
static bool has_processors(const struct kva_sampling_params *p)
{
    return p->allowed_id_count > 0 || p->bad_word_count > 0 || p->logit_bias_count > 0 ||
           p->min_tokens > 0 || p->constraint || p->repetition_penalty != 1 ||
           p->presence_penalty != 0 || p->frequency_penalty != 0;
}

void kva_pick_guess(struct model_engine *e, uint32_t row, const struct kva_sequence *seq,
                    bool behind_draft)
{
    struct kva_pick *pick = &e->pick;
    struct kva_shortlist_request *request = add_row(pick, row);
    uint32_t first = pick->tracked_count;
    request->k = 1;
    if (!has_processors(seq->params.sampling))
        return;
    const struct kva_sampling_params params = guessing_of(seq);
    struct kva_sampler_context context = sampling_of(seq);
    context.params = &params;
    context.token_count += behind_draft;
    kva_sampler_request(e->sampler, &context, pick->tracked + first, request);
    request->k = list_length(e, &params, request->k);
    request->tracked_first = first;
    pick->tracked_count += request->tracked_count;
}

void kva_pick_run(struct model_engine *e, const void *hidden)
{
    const struct kva_pick *pick = &e->pick;
    kva_forward_pick(e->forward,
                     &(struct kva_forward_pick){
                         .hidden = hidden,
                         .rows = pick->rows,
                         .requests = pick->requests,
                         .tracked = pick->tracked,
                         .tracked_count = pick->tracked_count,
                         .count = pick->count,
                     },
                     e->pick.picked);
}

/* --- what came of it ------------------------------------------------------------------------- */

static struct kva_sampler_list list_of(const struct kva_pick *pick, uint32_t index)
{
    const struct kva_forward_picked *picked = &pick->picked[index];
    return (struct kva_sampler_list){
        .request = &pick->requests[index],
        .tracked = pick->tracked + pick->requests[index].tracked_first,
        .tracked_logits = picked->tracked_logits,
        .summary = picked->summary,
        .listed = picked->listed,
    };
}

/* All logits come only where they are needed. */
static enum kva_status sample(struct model_engine *e, uint32_t index,
                              const struct kva_sampler_context *context,
                              struct kva_token_output *ret)
{
    if (e->pick.requests[index].k > 0) {
        const struct kva_sampler_list list = list_of(&e->pick, index);
        bool enough;
        enum kva_status status = kva_sampler_draw_listed(e->sampler, &list, context, &enough, ret);
        if (status || enough)
            return status;
    }
    float *logits = kva_forward_logits(e->forward, index);
    return kva_sampler_draw(e->sampler, logits, context, ret);
}

uint32_t kva_pick_guessed(struct model_engine *e, uint32_t index, const struct kva_sequence *seq,
                          bool behind_draft)
{
    const struct kva_forward_picked *picked = &e->pick.picked[index];
    if (!has_processors(seq->params.sampling))
        return picked->summary->count > 0 ? picked->listed[0].token : 0;
    const struct kva_sampling_params params = guessing_of(seq);
    struct kva_sampler_context context = sampling_of(seq);
    struct kva_token_output guess = {.token = 0};
    context.params = &params;
    context.token_count += behind_draft;
    if (masked(seq, behind_draft, &context))
        return 0; /* the draft token will not come */
    return sample(e, index, &context, &guess) ? 0 : guess.token;
}

void kva_pick_emit(struct model_engine *e, uint32_t index, struct kva_step_item *item)
{
    struct kva_sequence *seq = item->seq;
    uint32_t vocab = e->config->vocab_size;
    if (item->logits)
        memcpy(item->logits, kva_forward_logits(e->forward, index), vocab * sizeof(float));
    if (item->forced) {
        item->token = (struct kva_token_output){.token = item->forced_token};
        item->status = item->forced_token < vocab ? KVA_OK : KVA_EINVAL;
    } else {
        struct kva_sampler_context context = sampling_of(seq);
        item->status = masked(seq, false, &context);
        if (!item->status)
            item->status = sample(e, index, &context, &item->token);
    }
    if (item->status)
        return;
    item->emitted = true;
    if (seq->constraint)
        seq->params.sampling->constraint->ops->take(seq->constraint, item->token.token);
    if (seq->token_count < seq->params.tokens_max)
        seq->ids[seq->token_count++] = item->token.token;
}

/* --- log-probabilities of the prompt --------------------------------------------------------- */

/* Of the token after `position`, whose row is number `index` of the pick. */
static void score(struct model_engine *e, struct kva_sequence *seq, uint32_t index,
                  uint32_t position)
{
    const struct kva_sampler_list list = list_of(&e->pick, index);
    struct kva_prompt_logprob *entry = &seq->prompt_logprobs[position];
    uint32_t token = seq->ids[position + 1];
    entry->top_count =
        kva_min_u32((uint32_t)seq->params.sampling->prompt_logprobs, e->config->vocab_size);
    if (!kva_sampler_listed_logprobs(&list, token, entry->top_count, &entry->actual, entry->top))
        kva_sampler_logprobs(e->sampler, kva_forward_logits(e->forward, index), token,
                             entry->top_count, &entry->actual, entry->top);
}

void kva_pick_score_prompt(struct model_engine *e, struct kva_sequence *seq,
                           const struct kva_pick_prompt *prompt)
{
    struct kva_pick *pick = &e->pick;
    if (!seq->prompt_logprobs)
        return;
    uint32_t last =
        kva_min_u32(prompt->position_first + prompt->row_count, seq->params.prompt_tokens - 1);
    for (uint32_t at = prompt->position_first; at < last; at += pick->count) {
        kva_pick_begin(e);
        for (uint32_t i = at; i < last && pick->count < pick->rows_max; i++) {
            uint32_t row = prompt->row_first + i - prompt->position_first;
            struct kva_shortlist_request *request = add_row(pick, row);
            request->k = kva_max_u32((uint32_t)seq->params.sampling->prompt_logprobs, 1);
            request->log_sum = request->rank = true;
            request->tracked_count = 1;
            pick->tracked[pick->tracked_count++] = seq->ids[i + 1];
        }
        kva_pick_run(e, prompt->hidden);
        for (uint32_t i = 0; i < pick->count; i++)
            score(e, seq, i, at + i);
    }
}
