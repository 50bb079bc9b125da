/* answer.h - what one call answers: engine outputs in, SSE frames or one JSON document out.
 *
 * The same tokens give the same text whether they are streamed or not: both go through one path
 * (detokeniser, stop strings, log-probability entries), and only the wrapping differs.
 *
 * Bytes are appended to a buffer of the caller; nothing is sent here. Thread rule: one thread. */
#ifndef KVA_SERVER_STREAM_ANSWER_H
#define KVA_SERVER_STREAM_ANSWER_H

#include "server/api/api.h"

struct kva_answer;

struct kva_answer_params {
    const struct kva_api_config *config;
    struct kva_api_call *call; /* prepared; borrowed; its arena is used */
    const char *id_suffix;     /* of the response id: "cmpl-" or "chatcmpl-" comes before it */
    int64_t created_unix_s;
    size_t choice_bytes_max; /* text of one choice */
};

/* ,"NAME":VALUE of every counter of a sequence, and the shares between them. */
void kva_counts_json(struct kva_buf *out, const struct kva_counts *counts);

enum kva_answer_event {
    KVA_ANSWER_NONE,
    KVA_ANSWER_STOP_CHOICE, /* a stop string is complete: cancel this choice (KVA_FINISH_STOP) */
    KVA_ANSWER_DONE,        /* every choice of every prompt has ended: call finish */
    KVA_ANSWER_FAILED,      /* a choice ended with an error: see kva_answer_error */
};

/* How the call went, for metrics and the log. */
struct kva_answer_summary {
    uint64_t prompt_tokens;
    uint64_t cached_tokens;
    uint64_t output_tokens; /* of every choice that was run */
    uint32_t choices_ended;
};

KVA_MUST_CHECK enum kva_status kva_answer_create(const struct kva_answer_params *params,
                                                 struct kva_answer **ret, struct kva_err *err);
void kva_answer_destroy(struct kva_answer *answer);

/* Take one output of prompt `prompt_index`; a streaming call's frames are appended to `out`. An
 * out->failed afterwards means that the caller's buffer was too small. */
enum kva_answer_event kva_answer_push(struct kva_answer *answer, uint32_t prompt_index,
                                      const struct kva_output *output, struct kva_buf *out);

/* Stop or resume making frames. While paused, text is buffered inside; resuming appends it to
 * `out`, one frame per choice. */
void kva_answer_pause(struct kva_answer *answer);
void kva_answer_resume(struct kva_answer *answer, struct kva_buf *out);

/* Bytes buffered while paused. */
size_t kva_answer_buffered(const struct kva_answer *answer);

/* After KVA_ANSWER_DONE: the document, or the last frames with the usage and [DONE]. */
void kva_answer_finish(struct kva_answer *answer, struct kva_buf *out);

/* After KVA_ANSWER_DONE, of a response: its document, and what the assistant has said as a message. */
void kva_answer_record(const struct kva_answer *answer, struct kva_buf *document,
                       struct kva_buf *message);

/* Why KVA_ANSWER_FAILED: the status, err filled in. */
enum kva_status kva_answer_error(const struct kva_answer *answer, struct kva_err *err);

const char *kva_answer_id(const struct kva_answer *answer);
void kva_answer_get_summary(const struct kva_answer *answer, struct kva_answer_summary *ret);

/* What is to be sent is larger than a limit, which is the request's to mend, unless memory has run
 * out: a status and its words. */
enum kva_status kva_fail_too_large(struct kva_err *err, size_t bytes_max, bool no_memory);

/* Bytes that the vectors of a call take in an answer, at least. */
uint64_t kva_embeddings_bytes(const struct kva_api_call *call);

/* {"error":{...}}, the form of every failure. */
void kva_error_json(struct kva_buf *out, enum kva_status status, const struct kva_err *err);

/* The same as Anthropic's API has it: with types of its own, and members beside it. */
void kva_anthropic_error_json(struct kva_buf *out, enum kva_status status,
                              const struct kva_err *err, const char *request_id);

/* The last frame of a stream that has begun and cannot go on. */
void kva_answer_put_error(const struct kva_answer *answer, enum kva_status status,
                          const struct kva_err *err, const char *request_id, struct kva_buf *out);

/* Tokens so far: of all choices, of one. */
uint64_t kva_answer_output_tokens(const struct kva_answer *answer);
uint32_t kva_answer_choice_tokens(const struct kva_answer *answer, uint32_t prompt_index,
                                  uint32_t choice);

/* The finish reason of a choice, "stop", "length" or "tool_calls"; NULL: nothing yet. A stop
 * string may be found when the scheduler has just ended the choice by its length: the client's view
 * counts. */
const char *kva_answer_choice_finish(const struct kva_answer *answer, uint32_t prompt_index,
                                     uint32_t choice);

/* Prompt tokens cut off on request, over all prompts. */
uint64_t kva_answer_truncated(const struct kva_answer *answer);

#endif
