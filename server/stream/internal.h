/* internal.h - the parts of an answer (inside server/stream). */
#ifndef KVA_SERVER_STREAM_INTERNAL_H
#define KVA_SERVER_STREAM_INTERNAL_H

#include "server/stream/answer.h"
#include "server/stream/stop.h"

/* Log-probability entries, already JSON, comma-separated. A chat uses `tokens` for its entries. */
struct kva_logprob_lists {
    struct kva_buf tokens;
    struct kva_buf logprobs;
    struct kva_buf top;
    struct kva_buf offsets;
    uint32_t count;
};

/* A call that a reply makes. */
struct kva_call_out {
    const char *name; /* one of the request's */
    struct kva_buf arguments;
    size_t text_before; /* bytes of content */
    size_t told;        /* bytes of the arguments that frames have had */
    int32_t item;       /* of the Responses API: its index */
    bool opened;        /* a frame has had the name */
    char id[40];
};

struct kva_choice_out {
    struct kva_detok detok;
    struct kva_stop_matcher stops;
    struct kva_buf text;        /* certain content: since the last frame, or all of it */
    struct kva_reply *reply;    /* tells content from the rest; NULL: all text is content */
    struct kva_buf reasoning;   /* as text */
    const char *const *names;   /* of functions that may be called */
    struct kva_call_out *calls; /* all of them */
    uint32_t name_count;
    uint32_t call_count;
    uint32_t reasoning_tokens;
    bool reply_failed; /* out of memory for the calls */
    bool legacy;       /* a call is told as function_call */
    /* Of the Responses and the Messages API, whose events leave text and reasoning where they are. */
    size_t text_told, reasoning_told;
    uint32_t message_at;                  /* calls before the message */
    uint32_t items;                       /* that events have opened */
    uint32_t sequence;                    /* of events */
    int32_t message_item, reasoning_item; /* -1: not opened */
    int32_t open_block;                   /* of the Messages API: -1, none */
    bool reasoning_closed;
    struct kva_logprob_lists logprobs;
    size_t logprobs_told;     /* of its tokens: bytes that events of Responses have had */
    struct kva_buf token_ids; /* comma-separated, since the last frame, or all */
    uint64_t characters;      /* of the text that was certain before the next token */
    double logprob_sum;
    uint32_t tokens;
    uint32_t index;  /* as the client counts */
    bool begun;      /* the first frame has been written */
    bool finished;   /* has its finish reason; what still comes is ignored */
    bool final_sent; /* the frame with the finish reason has been written */
    bool ended;      /* END has come */
    const char *finish_reason;
    int64_t stop_token; /* -1: none */
};

struct kva_prompt_out {
    struct kva_choice_out *choices;    /* [best_of] */
    struct kva_logprob_lists logprobs; /* of the echoed prompt */
    struct kva_buf prompt_logprobs;    /* vLLM's form, a JSON array */
    struct kva_buf embedding;          /* as JSON */
    struct kva_sequence_info info; /* of choice 0 at its end; bytes and fetches of all choices */
    uint64_t echo_characters;      /* of the echoed prompt: offsets continue from there */
    uint32_t preemptions;
    bool echo_counted;
};

struct kva_answer {
    const struct kva_api_config *config;
    struct kva_api_call *call;
    struct kva_prompt_out *prompts; /* [call->prompt_count] */
    struct kva_stop_set stop_set;
    struct kva_buf head;    /* {"id":...,"model":... */
    struct kva_buf scratch; /* text of one token */
    struct kva_buf certain; /* of it what is no part of a stop string */
    size_t choice_bytes_max;
    uint64_t output_tokens;
    uint32_t choices_ended;
    uint32_t choices_total;
    bool paused;
    int64_t created_unix_s;
    enum kva_status status;
    struct kva_err err;
    char id[96];
};

/* --- reply.c: what the text of a choice says --- */
/* Out of memory: false. */
bool kva_choice_reply_init(const struct kva_answer *answer, struct kva_choice_out *choice);
void kva_choice_reply_finish(struct kva_choice_out *choice);
/* Whether the token must be seen in the text, special as it is. */
bool kva_choice_reply_needs(const struct kva_answer *answer, const struct kva_choice_out *choice,
                            uint32_t token);
/* More certain text, and its end. */
void kva_choice_reply_push(struct kva_answer *answer, struct kva_choice_out *choice);
void kva_choice_reply_end(struct kva_choice_out *choice);
/* Whether the text ended within the arguments of the last call. */
bool kva_choice_call_is_cut(const struct kva_choice_out *choice);
bool kva_choice_reply_failed(const struct kva_choice_out *choice);
/* It has failed, and not for want of room. */
bool kva_choice_reply_has_no_memory(const struct kva_choice_out *choice);
/* Bytes that no frame has had. */
size_t kva_choice_untold(const struct kva_choice_out *choice);

/* --- logprobs.c --- */
void kva_logprob_lists_init(struct kva_logprob_lists *lists, size_t max_bytes);
void kva_logprob_lists_finish(struct kva_logprob_lists *lists);
void kva_logprob_lists_clear(struct kva_logprob_lists *lists);

/* One token's entry. `chosen` NULL: the first token of a prompt, which has none. `top_wanted`: how
 * many alternatives the request asked for. */
void kva_logprob_lists_add(struct kva_logprob_lists *lists, const struct kva_answer *answer,
                           uint32_t token, const struct kva_logprob *chosen,
                           const struct kva_logprob *top, uint32_t top_count, uint64_t offset);

/* "logprobs":{...} of a choice; `prefix` (may be NULL) comes first. */
void kva_logprob_lists_json(struct kva_buf *out, const struct kva_answer *answer,
                            const struct kva_logprob_lists *prefix,
                            const struct kva_logprob_lists *lists);

/* vLLM's prompt_logprobs array. */
void kva_prompt_logprobs_json(struct kva_buf *out, const struct kva_answer *answer,
                              uint32_t prompt_index, const struct kva_prompt_logprob *entries,
                              uint32_t count);

/* The echoed prompt's lists: entries NULL without log-probabilities. */
void kva_echo_logprobs(struct kva_answer *answer, uint32_t prompt_index,
                       const struct kva_prompt_logprob *entries, uint32_t count);

/* --- document.c --- */
uint64_t kva_answer_reasoning_tokens(const struct kva_answer *answer); /* of all choices */
void kva_usage_json(struct kva_buf *out, const struct kva_answer *answer);
void kva_document_json(struct kva_buf *out, struct kva_answer *answer);
/* The prompt of a choice as text, for echo. */
void kva_echo_text(const struct kva_answer *answer, uint32_t prompt_index, struct kva_buf *out);

/* ,"kvahead":{...} of the usage. */
void kva_extras_json(struct kva_buf *out, const struct kva_answer *answer);
/* "function_call":{...}, the old form; the name only before frames have had it. */
void kva_call_json(struct kva_buf *out, const struct kva_call_out *call, const char *arguments,
                   size_t length);
/* The assistant's message; as `history` in the form that templates get, with arguments that are no
 * text and content that is. */
void kva_message_json(struct kva_buf *out, const struct kva_choice_out *choice, bool history);

/* --- errors.c --- */
/* The status and the words of an output that ends a choice otherwise than well. */
void kva_answer_note_failure(struct kva_answer *answer, const struct kva_output *output);

/* --- embeddings.c --- */
/* The vector of a prompt has come. */
void kva_embedding_take(struct kva_answer *answer, uint32_t prompt_index, const float *values,
                        uint32_t count);
void kva_embeddings_json(struct kva_buf *out, const struct kva_answer *answer);

/* --- responses.c --- */
void kva_response_json(struct kva_buf *out, const struct kva_answer *answer);
/* The events of all that is new of the choice; `final` closes its items. */
void kva_response_events(struct kva_buf *out, struct kva_answer *answer,
                         struct kva_choice_out *choice, bool final);
void kva_response_last_event(struct kva_buf *out, struct kva_answer *answer);

/* --- messages.c --- */
void kva_anthropic_json(struct kva_buf *out, const struct kva_answer *answer);
void kva_anthropic_events(struct kva_buf *out, struct kva_answer *answer,
                          struct kva_choice_out *choice, bool final);
void kva_anthropic_last_events(struct kva_buf *out, const struct kva_answer *answer);

/* --- frames.c --- */
/* A frame with all that is buffered of the choice; `final` adds the finish reason. */
void kva_frame_json(struct kva_buf *out, struct kva_answer *answer, uint32_t prompt_index,
                    struct kva_choice_out *choice, bool final);
void kva_last_frames(struct kva_buf *out, struct kva_answer *answer);

/* Code points in valid UTF-8. */
uint64_t kva_count_characters(const char *text, size_t length);

void kva_json_double(struct kva_buf *out, double value);

#endif
