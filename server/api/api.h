/* api.h - the OpenAI API without sockets: bodies to calls, calls to engine requests.
 *
 * Life of a call: kva_api_parse (JSON -> validated struct kva_api_call) -> kva_api_prepare (chat
 * template, tokens, context limits -> struct kva_request for the scheduler) -> server/stream
 * (tokens
 * -> text and frames). Nothing here blocks, sends or logs.
 *
 * Rules: every value has a range, and a refusal names the field, the value and the range. A field
 * that OpenAI or its imitators know and this server does not support is refused; a field that
 * nobody knows is accepted and counted. null is the same as absent.
 *
 * Thread rule: a call belongs to one thread at a time (event loop or worker); the configuration is
 * constant. */
#ifndef KVA_SERVER_API_API_H
#define KVA_SERVER_API_API_H

#include "base/arena.h"
#include "scheduler/scheduler.h"
#include "server/api/json.h"
#include "server/grammar/grammars.h"
#include "text/reply/reply.h"
#include "text/template/template.h"
#include "text/tokenizer/tokenizer.h"

#define KVA_API_MODEL_IDS_MAX 16u
#define KVA_API_STOPS_MAX     16u /* OpenAI: 4; harnesses send up to 8 */

/* What requests may ask for. */
struct kva_api_limits {
    struct kva_json_limits json;
    uint32_t prompts_max;      /* prompts of one batch */
    uint32_t inputs_max;       /* texts of which one call wants the embeddings; OpenAI: 2048 */
    uint32_t choices_max;      /* prompts * n of one call */
    uint32_t n_max;            /* OpenAI: 128 */
    uint32_t best_of_max;      /* OpenAI: 20 */
    uint32_t messages_max;     /* of one chat */
    uint32_t stop_bytes_max;   /* of one stop string */
    uint32_t stop_ids_max;     /* stop_token_ids */
    uint32_t logit_bias_max;   /* entries */
    uint32_t allowed_ids_max;  /* allowed_token_ids */
    uint32_t bad_words_max;    /* entries */
    uint32_t bad_word_bytes;   /* of one bad word */
    uint32_t cache_salt_bytes; /* of cache_salt */
    int32_t priority_min;      /* smaller runs first */
    int32_t priority_max;
    size_t arena_bytes_max; /* of one call, without the JSON tree */
};

/* A chat template and what it shows: kva_api_read_templates. */
struct kva_api_template {
    const struct kva_template *compiled; /* NULL: there is none */
    struct kva_reply_traits reply;       /* how replies are read */
    struct kva_reply_history history;
    bool takes_tools;
    bool knows_developers;
    int32_t reply_marker; /* the style's marker, where it is a special token; else -1 */
};

/* What is served, constant while it is served. Strings and arrays are borrowed. */
struct kva_api_config {
    const char *model_ids[KVA_API_MODEL_IDS_MAX]; /* the first is the one that answers name */
    uint32_t model_id_count;
    const struct kva_tokenizer *tokenizer;
    struct kva_api_template chat;     /* without one there are no chats */
    struct kva_api_template tool_use; /* of chats with tools; without one they have the other */
    const struct kva_template_limits *template_limits; /* NULL: the defaults */

    bool headless;            /* the model makes vectors and no text */
    uint32_t context_max;     /* prompt + output tokens */
    uint32_t vocab_size;      /* ids below this exist */
    uint32_t token_bytes_max; /* of any token: a text of more bytes than the context can have is
                                 refused unread; 0: not known */
    const uint32_t *eos_ids;
    uint32_t eos_count;
    /* Used where a request says nothing. */
    float temperature;
    float top_p;
    float min_p;
    float repetition_penalty;
    uint32_t top_k;
    uint32_t completion_tokens_default; /* max_tokens of /v1/completions; OpenAI: 16 */
    /* KV policies. */
    uint32_t kv_allowed_mask; /* bit (1 << enum kva_kv_policy_id) */
    enum kva_kv_policy_id kv_default;
    struct kva_kv_spec kv_specs[KVA_KV_POLICY_COUNT]; /* what requests start from */
    uint32_t embedding_size;  /* numbers of a vector: the model's hidden size */
    enum kva_pooling pooling; /* of embeddings, where the request says nothing; NONE: it must, */
    const char *pooling_why;  /* because the model wants this, which is not implemented */
    bool normalise;           /* them, where the request says nothing */
    uint32_t kv_topk_max;     /* rows that a request may have fetched */
    struct kva_grammars *grammars; /* NULL: no structured output, `grammars_why` says why */
    const char *grammars_why;
    struct kva_api_limits limits;
};

void kva_api_limits_default(struct kva_api_limits *limits);

/* NAME=NUMBER, as an operator says it: names are those of docs/api.md. Fails: KVA_EINVAL. */
KVA_MUST_CHECK enum kva_status kva_api_limits_set(struct kva_api_limits *limits, const char *text,
                                                  struct kva_err *err);

/* Fills in what the compiled templates show; they and the tokenizer are there. What the operator says
 * wins over them: `style` or `thinks` NULL, it says nothing. */
void kva_api_read_templates(struct kva_api_config *config, const enum kva_reply_style *style,
                            const bool *thinks);

/* That of chats with tools, or without. */
static inline const struct kva_api_template *
kva_api_template_of(const struct kva_api_config *config, bool tools)
{
    return tools && config->tool_use.compiled ? &config->tool_use : &config->chat;
}

enum kva_api_route {
    KVA_API_COMPLETION,
    KVA_API_CHAT,
    KVA_API_TOKENIZE,
    KVA_API_DETOKENIZE,
    KVA_API_RESPONSES, /* read as what they are, and chats from then on */
    KVA_API_MESSAGES,
    KVA_API_COUNT_TOKENS, /* of a KVA_API_MESSAGES */
    KVA_API_EMBEDDINGS,
};

/* How an answer is written. */
enum kva_api_face {
    KVA_FACE_OPENAI, /* completions and chats */
    KVA_FACE_RESPONSES,
    KVA_FACE_MESSAGES,
    KVA_FACE_EMBEDDINGS,
};

/* One prompt as it came: text or ids. */
struct kva_api_prompt {
    const char *text; /* NULL: ids */
    size_t text_bytes;
    const uint32_t *ids;
    uint32_t id_count;
    uint32_t skipped; /* tokens before `ids`, which truncation takes away in any case */
};

struct kva_api_text {
    const char *data;
    size_t length;
};

/* What the answer must be. */
struct kva_api_format {
    const char *field; /* that says so; NULL: nothing */
    struct kva_grammar_source source;
};

/* The functions that a reply may call. */
struct kva_api_tools {
    const cJSON *list;                    /* as the template gets them; NULL: none */
    struct kva_reply_function *functions; /* that may be called */
    const char **names;                   /* of those */
    const char **schemas;
    uint32_t count;
    bool required;              /* at least one is called, and nothing else is said */
    bool parallel;              /* more than one may be */
    bool legacy;                /* they came as `functions`: so does the call, as function_call */
    enum kva_reply_bound bound; /* what the grammar sees to */
    bool thoughtless;           /* the grammar has no room for a thought */
    const char *answer;         /* schema of an answer without a call; NULL: any text */
    const char *answer_field;   /* of the request, that has it */
    bool answer_strict;
};

/* What is wanted of each input of a KVA_API_EMBEDDINGS. */
struct kva_api_embedding {
    enum kva_pooling pooling;
    uint32_t dimensions; /* the first numbers of the vector */
    bool normalise;      /* to length 1 */
    bool base64;         /* little-endian floats; else JSON numbers */
};

/* A validated request. Everything lives in `arena` or `json`. */
struct kva_api_call {
    struct kva_arena arena;
    cJSON *json; /* the body; messages point into it. Freed once the call is prepared */
    enum kva_api_route route;
    enum kva_api_face face;
    const char *prompt_field; /* what errors call the prompt */
    const char *model;        /* as asked for, or the first model id */

    struct kva_api_prompt *prompts; /* completion and tokenize; a chat has one after preparing */
    uint32_t prompt_count;
    const cJSON *messages;
    const cJSON *documents;
    const cJSON *template_kwargs;
    const struct kva_api_template *chat_template; /* one of the configuration's */
    bool add_generation_prompt;
    bool continue_final; /* the prompt ends with the last message, which the answer goes on with */
    bool add_special_tokens;

    bool stream;
    bool include_usage;
    bool continuous_usage;
    bool echo;
    bool return_token_ids;
    bool report; /* kv.report: usage.kvahead */
    bool include_stop;
    bool ignore_eos;
    bool skip_special;
    bool want_logprobs; /* chat's logprobs flag; completions: an integer was given */
    bool has_max_tokens;
    bool max_is_new; /* it is max_completion_tokens, which counts where both are there */
    uint32_t n;
    uint32_t best_of;    /* >= n: choices that are really run */
    uint32_t max_tokens; /* if has_max_tokens; 0 is allowed for completions */
    uint32_t truncate;   /* keep this many last tokens of each prompt; 0: off */
    uint32_t top_logprobs;
    int32_t prompt_logprobs_asked; /* prompt_logprobs of the request, -1: none */
    struct kva_api_text stops[KVA_API_STOPS_MAX];
    uint32_t stop_count;
    struct kva_api_text *bad_words;
    uint32_t bad_word_count;
    const uint32_t *stop_ids; /* stop_token_ids, without the model's EOS */
    uint32_t stop_id_count;
    struct kva_api_text cache_salt;
    int32_t priority;
    struct kva_kv_spec kv;
    struct kva_api_format format;
    struct kva_api_tools tools;
    struct kva_api_embedding embedding;
    /* Arrays stop_ids and bad_words of it are filled in while preparing. */
    struct kva_sampling_params sampling;
    bool has_seed;
    bool return_token_strings; /* tokenize */

    /* Of the Responses API. */
    const char *instructions; /* the system's, of this answer only; or NULL */
    const char *previous;     /* id of the response that this one continues; or NULL */
    const char *echoed;       /* members of the answer that repeat the request */
    const char *conversation; /* all messages as JSON, if it is to be stored */
    const char *input_items;  /* the items of the input as JSON, if it is */
    bool store;

    const atomic_bool *abandoned; /* by whoever prepares it: true ends that; or NULL */

    uint32_t unknown_fields;               /* accepted and counted */
    char unknown_field[KVA_ERR_PARAM_MAX]; /* the first of them, cut at any byte; "": none */

    /* Of the chat template, once it has rendered or failed to; 0 steps: it was not asked. */
    uint64_t template_steps;
    uint64_t template_ns;
    bool template_failed; /* an error of the template, or a limit */

    /* --- after kva_api_prepare --- */
    bool thinking;                 /* the prompt ends within the reasoning of what comes next */
    struct kva_request **requests; /* [prompt_count], this call's until they are submitted */
    uint32_t *truncated_tokens;    /* [prompt_count] tokens cut off at the front, on request */
    uint64_t prompt_tokens;        /* over all prompts */
};

/* Parse and validate the body of `route`. Fails: KVA_EINVAL, KVA_EUNSUPPORTED, KVA_EMODEL (the
 * model), KVA_ENOMEM; err has message and field. */
KVA_MUST_CHECK enum kva_status kva_api_parse(const struct kva_api_config *config,
                                             enum kva_api_route route, const char *body,
                                             size_t length, struct kva_api_call **ret,
                                             struct kva_err *err);

/* Put the messages of an earlier response, which call->previous asks for, before the call's own.
 * Fails: KVA_EINVAL (too long), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_api_continue(const struct kva_api_config *config,
                                                struct kva_api_call *call, const char *conversation,
                                                struct kva_err *err);

/* Whether preparing would have to make a grammar, which can take seconds. */
bool kva_api_makes_grammar(const struct kva_api_config *config, const struct kva_api_call *call);

/* What preparing needs to know about the caller. */
struct kva_api_identity {
    uint64_t cache_scope[2]; /* of the key; cache_salt is mixed in */
    uint64_t seed;           /* for requests that give none */
};

/* Render, tokenise and build one kva_request per prompt, complete but for id, submitted_ns and
 * deadline_ns, which are the submitter's. The JSON tree is freed. Time grows with the prompt: large
 * ones belong on a worker, and so do chats of any size, whose template may take long over little.
 * Fails: KVA_ECONTEXT (err has both counts), KVA_EINVAL, KVA_ECANCELLED (call->abandoned),
 * KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_api_prepare(const struct kva_api_config *config,
                                               struct kva_api_call *call,
                                               const struct kva_api_identity *identity,
                                               struct kva_err *err);

/* Only the token ids of each prompt (what /tokenize answers), in the call's arena. */
KVA_MUST_CHECK enum kva_status kva_api_tokenize(const struct kva_api_config *config,
                                                struct kva_api_call *call, struct kva_err *err);

/* The text of a KVA_API_DETOKENIZE call. Fails: KVA_ETOOBIG, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_api_detokenize(const struct kva_api_config *config,
                                                  const struct kva_api_call *call,
                                                  struct kva_buf *out, struct kva_err *err);

/* NULL is allowed; requests that were not handed on are destroyed too. */
void kva_api_call_destroy(struct kva_api_call *call);

/* Whether `id` is among the served model ids. */
bool kva_api_serves_model(const struct kva_api_config *config, const char *id);

#endif
