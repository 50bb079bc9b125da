/* answer.c - outputs of the engine as text: detokenising, stop strings, ends. */
#include "server/stream/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t kva_count_characters(const char *text, size_t length)
{
    uint64_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

/* Whether the answer goes on with text of its prompt; else it is a text of its own. */
static bool goes_on(const struct kva_answer *answer, const struct kva_api_prompt *prompt)
{
    if (answer->call->route != KVA_API_COMPLETION)
        return answer->call->continue_final;
    bool any = prompt->text && prompt->text_bytes > 0;
    for (uint32_t i = 0; !prompt->text && i < prompt->id_count && !any; i++)
        any = !kva_tokenizer_is_special(answer->config->tokenizer, (int32_t)prompt->ids[i]);
    return any;
}

static void choice_init(struct kva_answer *answer, const struct kva_api_prompt *prompt,
                        struct kva_choice_out *choice, uint32_t index)
{
    const struct kva_api_call *call = answer->call;
    size_t max = answer->choice_bytes_max;
    kva_detok_init(&choice->detok, answer->config->tokenizer, call->skip_special);
    if (goes_on(answer, prompt))
        kva_detok_continue(&choice->detok);
    kva_stop_matcher_init(&choice->stops, &answer->stop_set);
    kva_buf_init(&choice->text, max);
    kva_buf_init(&choice->reasoning, max);
    kva_logprob_lists_init(&choice->logprobs, max);
    kva_buf_init(&choice->token_ids, max);
    choice->index = index;
    choice->stop_token = -1;
}

static void choice_finish(struct kva_choice_out *choice)
{
    kva_stop_matcher_finish(&choice->stops);
    kva_choice_reply_finish(choice);
    kva_buf_finish(&choice->text);
    kva_logprob_lists_finish(&choice->logprobs);
    kva_buf_finish(&choice->token_ids);
}

static bool prompts_init(struct kva_answer *answer)
{
    bool done = true;
    const struct kva_api_call *call = answer->call;
    struct kva_choice_out *choices = calloc(answer->choices_total, sizeof(*choices));
    answer->prompts = calloc(call->prompt_count, sizeof(*answer->prompts));
    if (!choices || !answer->prompts) {
        free(choices);
        return false;
    }
    for (uint32_t i = 0; i < call->prompt_count; i++) {
        struct kva_prompt_out *prompt = &answer->prompts[i];
        prompt->choices = choices + (size_t)i * call->best_of;
        kva_logprob_lists_init(&prompt->logprobs, answer->choice_bytes_max);
        kva_buf_init(&prompt->prompt_logprobs, answer->choice_bytes_max);
        kva_buf_init(&prompt->embedding, answer->choice_bytes_max);
        for (uint32_t j = 0; j < call->best_of; j++)
            choice_init(answer, &call->prompts[i], &prompt->choices[j], i * call->n + j);
        for (uint32_t j = 0; j < call->best_of && done; j++)
            done = kva_choice_reply_init(answer, &prompt->choices[j]);
    }
    return done;
}

/* The members that every frame and document starts with, written once. */
static void write_head(struct kva_answer *answer, int64_t created)
{
    const struct kva_api_call *call = answer->call;
    bool chat = call->route == KVA_API_CHAT;
    const char *object = !chat          ? "text_completion"
                         : call->stream ? "chat.completion.chunk"
                                        : "chat.completion";
    kva_buf_printf(&answer->head,
                   "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", answer->id,
                   object, (long long)created);
    kva_buf_json_string(&answer->head, call->model, strlen(call->model));
}

enum kva_status kva_answer_create(const struct kva_answer_params *params, struct kva_answer **ret,
                                  struct kva_err *err)
{
    struct kva_api_call *call = params->call;
    struct kva_answer *answer = calloc(1, sizeof(*answer));
    if (!answer)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for an answer.");
    answer->config = params->config;
    answer->call = call;
    answer->choice_bytes_max = params->choice_bytes_max;
    answer->choices_total = call->prompt_count * call->best_of;
    kva_buf_init(&answer->head, 8192);
    kva_buf_init(&answer->scratch, (size_t)1 << 20);
    kva_buf_init(&answer->certain, params->choice_bytes_max);
    answer->created_unix_s = params->created_unix_s;
    const char *prefix = call->face == KVA_FACE_RESPONSES  ? "resp_"
                         : call->face == KVA_FACE_MESSAGES ? "msg_"
                         : call->route == KVA_API_CHAT     ? "chatcmpl-"
                                                           : "cmpl-";
    snprintf(answer->id, sizeof(answer->id), "%s%s", prefix, params->id_suffix);
    write_head(answer, params->created_unix_s);
    /* The stop set first: the choices' matchers take their size from it. */
    enum kva_status stops =
        kva_stop_set_init(&answer->stop_set, call->stops, call->stop_count, &call->arena);
    if (answer->head.failed || stops != KVA_OK || !prompts_init(answer)) {
        kva_answer_destroy(answer);
        return kva_fail(err, KVA_ENOMEM, "Out of memory for an answer.");
    }
    *ret = answer;
    return KVA_OK;
}

void kva_answer_destroy(struct kva_answer *answer)
{
    if (!answer)
        return;
    for (uint32_t i = 0; answer->prompts && i < answer->call->prompt_count; i++) {
        struct kva_prompt_out *prompt = &answer->prompts[i];
        kva_logprob_lists_finish(&prompt->logprobs);
        kva_buf_finish(&prompt->prompt_logprobs);
        kva_buf_finish(&prompt->embedding);
        for (uint32_t j = 0; prompt->choices && j < answer->call->best_of; j++)
            choice_finish(&prompt->choices[j]);
    }
    if (answer->prompts)
        free(answer->prompts[0].choices);
    free(answer->prompts);
    kva_buf_finish(&answer->head);
    kva_buf_finish(&answer->scratch);
    kva_buf_finish(&answer->certain);
    free(answer);
}

/* A stop id ends the choice and is not part of its text. Where a grammar says when an answer is whole,
 * the model's end counts whatever the request says of it. */
static bool is_stop_id(const struct kva_answer *answer, const struct kva_choice_out *choice,
                       uint32_t token)
{
    const struct kva_api_call *call = answer->call;
    const bool early = choice->tokens <= call->sampling.min_tokens;
    const bool ends = call->format.field || (!call->ignore_eos && !early);
    for (uint32_t i = 0; ends && i < answer->config->eos_count; i++) {
        if (answer->config->eos_ids[i] == token)
            return true;
    }
    if (early)
        return false;
    for (uint32_t i = 0; i < call->stop_id_count; i++) {
        if (call->stop_ids[i] == token)
            return true;
    }
    return false;
}

/* A buffer of this choice that ran full is the end of the call: nothing is left out silently. It
 * makes no more frames, as those empty the buffers. */
static bool overflowed(const struct kva_choice_out *choice)
{
    return choice->text.failed || choice->stops.held.failed || choice->token_ids.failed ||
           choice->logprobs.tokens.failed || choice->logprobs.top.failed ||
           kva_choice_reply_failed(choice);
}

static bool prompt_overflowed(const struct kva_prompt_out *prompt)
{
    return prompt->embedding.failed || prompt->prompt_logprobs.failed ||
           prompt->logprobs.tokens.failed || prompt->logprobs.top.failed;
}

/* Of those that have failed, whether one has for want of memory. */
static bool has_no_memory(const struct kva_prompt_out *prompt, const struct kva_choice_out *choice)
{
    return choice->text.no_memory || choice->stops.held.no_memory || choice->token_ids.no_memory ||
           choice->logprobs.tokens.no_memory || choice->logprobs.top.no_memory ||
           kva_choice_reply_has_no_memory(choice) || prompt->embedding.no_memory ||
           prompt->prompt_logprobs.no_memory || prompt->logprobs.tokens.no_memory ||
           prompt->logprobs.top.no_memory;
}

/* Text of one more token through the stop strings; true: one of them is complete. */
static bool push_text(struct kva_answer *answer, struct kva_choice_out *choice)
{
    const struct kva_buf *text = &answer->scratch;
    kva_buf_fail_with(&choice->text, text);
    choice->characters += kva_count_characters(text->data, text->length);
    bool found = false;
    kva_buf_clear(&answer->certain);
    /* Where nothing may stop the text yet, nothing needs to be held back. */
    if (choice->tokens <= answer->call->sampling.min_tokens)
        kva_buf_append(&answer->certain, text->data, text->length);
    else
        found = kva_stop_matcher_push(&choice->stops, text->data, text->length,
                                      answer->call->include_stop, &answer->certain);
    kva_choice_reply_push(answer, choice);
    return found;
}

/* The text is over: what might have been a stop string is none. */
static void end_text(struct kva_answer *answer, struct kva_choice_out *choice)
{
    kva_buf_clear(&answer->certain);
    kva_stop_matcher_flush(&choice->stops, &answer->certain);
    kva_choice_reply_push(answer, choice);
}

static void add_logprob(struct kva_answer *answer, struct kva_choice_out *choice,
                        const struct kva_token_output *token)
{
    if (answer->call->sampling.logprobs >= 0)
        choice->logprob_sum += token->chosen.logprob;
    if (answer->call->want_logprobs)
        kva_logprob_lists_add(&choice->logprobs, answer, token->token, &token->chosen, token->top,
                              token->top_count, choice->characters);
}

static void finish_choice(struct kva_answer *answer, uint32_t prompt_index,
                          struct kva_choice_out *choice, const char *reason, struct kva_buf *out)
{
    kva_choice_reply_end(choice);
    choice->finished = true;
    bool stopped = strcmp(reason, "stop") == 0;
    /* A call that a stop string or id has cut is none to make. */
    bool calls = stopped && choice->call_count > 0 && !kva_choice_call_is_cut(choice);
    choice->finish_reason = !calls ? reason : choice->legacy ? "function_call" : "tool_calls";
    if (answer->call->stream && !answer->paused && !overflowed(choice))
        kva_frame_json(out, answer, prompt_index, choice, true);
}

/* Offsets of an echoing choice continue where its prompt ends. */
static void start_offsets(struct kva_answer *answer, uint32_t prompt_index,
                          struct kva_choice_out *choice)
{
    struct kva_prompt_out *prompt = &answer->prompts[prompt_index];
    if (!prompt->echo_counted) {
        struct kva_buf text;
        kva_buf_init(&text, answer->choice_bytes_max);
        kva_echo_text(answer, prompt_index, &text);
        prompt->echo_characters = kva_count_characters(text.data, text.length);
        prompt->echo_counted = true;
        kva_buf_finish(&text);
    }
    choice->characters = prompt->echo_characters;
}

static enum kva_answer_event push_token(struct kva_answer *answer, uint32_t prompt_index,
                                        struct kva_choice_out *choice,
                                        const struct kva_token_output *token, struct kva_buf *out)
{
    /* A request for no tokens still runs one step to score its prompt. */
    if (answer->call->has_max_tokens && answer->call->max_tokens == 0)
        return KVA_ANSWER_NONE;
    choice->tokens++;
    answer->output_tokens++;
    if (choice->tokens == 1 && answer->call->echo && answer->call->want_logprobs)
        start_offsets(answer, prompt_index, choice);
    add_logprob(answer, choice, token);
    if (answer->call->return_token_ids)
        kva_buf_printf(&choice->token_ids, "%s%u", choice->token_ids.length ? "," : "",
                       token->token);
    kva_buf_clear(&answer->scratch);
    choice->detok.skip_special =
        answer->call->skip_special && !kva_choice_reply_needs(answer, choice, token->token);
    if (!is_stop_id(answer, choice, token->token) || answer->call->include_stop)
        kva_detok_push(&choice->detok, (int32_t)token->token, &answer->scratch);
    bool found = push_text(answer, choice);
    choice->reasoning_tokens += choice->reply && kva_reply_in_reasoning(choice->reply);
    if (found) {
        finish_choice(answer, prompt_index, choice, "stop", out);
        return KVA_ANSWER_STOP_CHOICE;
    }
    bool opens = !choice->begun && (answer->call->route == KVA_API_CHAT || answer->call->echo);
    if (answer->call->stream && !answer->paused && !overflowed(choice) &&
        (kva_choice_untold(choice) > 0 || opens))
        kva_frame_json(out, answer, prompt_index, choice, false);
    return KVA_ANSWER_NONE;
}

static void note_end(struct kva_prompt_out *prompt, const struct kva_output *output)
{
    const struct kva_sequence_info *info = &output->end.info;
    prompt->preemptions += output->end.preemptions;
    prompt->info.policy = info->policy;
    prompt->info.bytes.device += info->bytes.device;
    prompt->info.bytes.host += info->bytes.host;
    prompt->info.kept_tokens += info->kept_tokens;
    kva_counts_add_all(&prompt->info.counts, &info->counts);
    if (output->choice == 0)
        prompt->info.cached_tokens = info->cached_tokens;
}

/* A stop id of the request's own is reported; the model's EOS is not. */
static void note_stop_token(const struct kva_api_call *call, struct kva_choice_out *choice,
                            uint32_t token)
{
    for (uint32_t i = 0; i < call->stop_id_count; i++) {
        if (call->stop_ids[i] == token)
            choice->stop_token = token;
    }
}

static enum kva_answer_event push_end(struct kva_answer *answer, uint32_t prompt_index,
                                      struct kva_choice_out *choice,
                                      const struct kva_output *output, struct kva_buf *out)
{
    if (choice->ended)
        return KVA_ANSWER_NONE;
    choice->ended = true;
    answer->choices_ended++;
    note_end(&answer->prompts[prompt_index], output);
    bool good = output->end.reason == KVA_FINISH_STOP || output->end.reason == KVA_FINISH_LENGTH;
    if (!choice->finished && !good) {
        kva_answer_note_failure(answer, output);
        return KVA_ANSWER_FAILED;
    }
    if (!choice->finished) {
        bool stopped = output->end.reason == KVA_FINISH_STOP;
        kva_buf_clear(&answer->scratch);
        kva_detok_flush(&choice->detok, &answer->scratch);
        bool found = push_text(answer, choice);
        if (!found)
            end_text(answer, choice);
        if (stopped)
            note_stop_token(answer->call, choice, output->end.stop_token);
        bool none = answer->call->has_max_tokens && answer->call->max_tokens == 0;
        finish_choice(answer, prompt_index, choice, (stopped || found) && !none ? "stop" : "length",
                      out);
    }
    return answer->choices_ended == answer->choices_total ? KVA_ANSWER_DONE : KVA_ANSWER_NONE;
}

static void push_prompt_logprobs(struct kva_answer *answer, uint32_t prompt_index,
                                 const struct kva_output *output)
{
    struct kva_prompt_out *prompt = &answer->prompts[prompt_index];
    const struct kva_prompt_logprob *entries = output->prompt_logprobs.entries;
    uint32_t count = output->prompt_logprobs.count;
    if (prompt->logprobs.count == 0 && answer->call->echo && answer->call->want_logprobs)
        kva_echo_logprobs(answer, prompt_index, entries, count);
    if (prompt->prompt_logprobs.length == 0 && answer->call->prompt_logprobs_asked >= 0)
        kva_prompt_logprobs_json(&prompt->prompt_logprobs, answer, prompt_index, entries, count);
}

enum kva_answer_event kva_answer_push(struct kva_answer *answer, uint32_t prompt_index,
                                      const struct kva_output *output, struct kva_buf *out)
{
    if (prompt_index >= answer->call->prompt_count || output->choice >= answer->call->best_of)
        return KVA_ANSWER_NONE;
    struct kva_choice_out *choice = &answer->prompts[prompt_index].choices[output->choice];
    enum kva_answer_event event = KVA_ANSWER_NONE;
    switch (output->kind) {
    case KVA_OUTPUT_PROGRESS:
        break;
    case KVA_OUTPUT_PROMPT_LOGPROBS:
        push_prompt_logprobs(answer, prompt_index, output);
        break;
    case KVA_OUTPUT_TOKEN:
        if (!choice->finished)
            event = push_token(answer, prompt_index, choice, &output->token, out);
        break;
    case KVA_OUTPUT_POOLED:
        kva_embedding_take(answer, prompt_index, output->pooled.values, output->pooled.count);
        break;
    case KVA_OUTPUT_END:
        event = push_end(answer, prompt_index, choice, output, out);
        break;
    }
    const struct kva_prompt_out *prompt = &answer->prompts[prompt_index];
    if (answer->status == KVA_OK && (overflowed(choice) || prompt_overflowed(prompt))) {
        answer->status = kva_fail_too_large(&answer->err, answer->choice_bytes_max,
                                            has_no_memory(prompt, choice));
        return KVA_ANSWER_FAILED;
    }
    return event;
}

void kva_answer_pause(struct kva_answer *answer)
{
    answer->paused = true;
}

void kva_answer_resume(struct kva_answer *answer, struct kva_buf *out)
{
    if (!answer->paused)
        return;
    answer->paused = false;
    for (uint32_t i = 0; i < answer->call->prompt_count; i++) {
        for (uint32_t j = 0; j < answer->call->best_of; j++) {
            struct kva_choice_out *choice = &answer->prompts[i].choices[j];
            if ((kva_choice_untold(choice) > 0 || choice->finished) && !choice->final_sent)
                kva_frame_json(out, answer, i, choice, choice->finished);
        }
    }
}

size_t kva_answer_buffered(const struct kva_answer *answer)
{
    size_t total = 0;
    for (uint32_t i = 0; i < answer->call->prompt_count; i++) {
        for (uint32_t j = 0; j < answer->call->best_of; j++) {
            const struct kva_choice_out *choice = &answer->prompts[i].choices[j];
            total += kva_choice_untold(choice) + choice->token_ids.length;
            total += choice->logprobs.tokens.length + choice->logprobs.logprobs.length +
                     choice->logprobs.top.length + choice->logprobs.offsets.length -
                     choice->logprobs_told;
        }
    }
    return total;
}

void kva_answer_finish(struct kva_answer *answer, struct kva_buf *out)
{
    if (answer->call->stream)
        kva_last_frames(out, answer);
    else
        kva_document_json(out, answer);
}

void kva_answer_record(const struct kva_answer *answer, struct kva_buf *document,
                       struct kva_buf *message)
{
    kva_response_json(document, answer);
    kva_message_json(message, &answer->prompts[0].choices[0], true);
}

enum kva_status kva_answer_error(const struct kva_answer *answer, struct kva_err *err)
{
    if (err)
        *err = answer->err;
    return answer->status;
}

const char *kva_answer_id(const struct kva_answer *answer)
{
    return answer->id;
}

void kva_answer_get_summary(const struct kva_answer *answer, struct kva_answer_summary *ret)
{
    *ret = (struct kva_answer_summary){.prompt_tokens = answer->call->prompt_tokens,
                                       .choices_ended = answer->choices_ended};
    ret->output_tokens = answer->output_tokens;
    for (uint32_t i = 0; i < answer->call->prompt_count; i++)
        ret->cached_tokens += answer->prompts[i].info.cached_tokens;
}

uint64_t kva_answer_output_tokens(const struct kva_answer *answer)
{
    return answer->output_tokens;
}

uint32_t kva_answer_choice_tokens(const struct kva_answer *answer, uint32_t prompt_index,
                                  uint32_t choice)
{
    return answer->prompts[prompt_index].choices[choice].tokens;
}

const char *kva_answer_choice_finish(const struct kva_answer *answer, uint32_t prompt_index,
                                     uint32_t choice)
{
    return answer->prompts[prompt_index].choices[choice].finish_reason;
}

uint64_t kva_answer_truncated(const struct kva_answer *answer)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < answer->call->prompt_count; i++)
        total += answer->call->truncated_tokens[i];
    return total;
}
