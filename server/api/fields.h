/* fields.h - tables of request fields: type, range, destination (inside server/api).
 *
 * A body is read once, in its own order: each member is looked up in the route's table. */
#ifndef KVA_SERVER_API_FIELDS_H
#define KVA_SERVER_API_FIELDS_H

#include "server/api/api.h"

/* The message is what Anthropic's `system` says. */
#define KVA_ORIGIN_SYSTEM UINT32_MAX

struct kva_api_parser {
    enum kva_api_route route; /* whose fields are read */
    struct kva_api_call *call;
    const struct kva_api_config *config;
    struct kva_err *err;
    uint32_t argument_values; /* of the tool calls' arguments that were parsed */
    const cJSON *tools;       /* as they came, until all fields are read */
    const cJSON *tool_choice;
    const cJSON *functions; /* the old form of both */
    const cJSON *function_call;
    const cJSON *input;      /* of the Responses API; messages of Anthropic's */
    const cJSON *system;     /* of Anthropic's */
    const uint32_t *origins; /* [messages] the item of it that a message was made of; or NULL */
    const char *effort;      /* of reasoning, for the template */
    bool has_best_of;
};

enum kva_field_kind {
    KVA_FIELD_BOOL,   /* bool at `offset` */
    KVA_FIELD_FLOAT,  /* float at `offset`, in [min, max] */
    KVA_FIELD_UINT,   /* uint32_t at `offset`, whole, in [min, max] */
    KVA_FIELD_CUSTOM, /* `parse` */
    KVA_FIELD_IGNORE, /* known, and without a meaning here */
    KVA_FIELD_REFUSE, /* known and not supported, unless the value says "off": false (true, where
                         `allow` lists it), the number `min`, "", [], {}, a word of `allow` */
};

#define KVA_ROUTE_COMPLETION (1u << KVA_API_COMPLETION)
#define KVA_ROUTE_CHAT       (1u << KVA_API_CHAT)
#define KVA_ROUTE_TOKENIZE   (1u << KVA_API_TOKENIZE)
#define KVA_ROUTE_DETOKENIZE (1u << KVA_API_DETOKENIZE)
#define KVA_ROUTE_RESPONSES  (1u << KVA_API_RESPONSES)
#define KVA_ROUTE_MESSAGES   (1u << KVA_API_MESSAGES | 1u << KVA_API_COUNT_TOKENS)
#define KVA_ROUTE_EMBEDDINGS (1u << KVA_API_EMBEDDINGS)
#define KVA_ROUTE_OPENAI     (KVA_ROUTE_COMPLETION | KVA_ROUTE_CHAT)
#define KVA_ROUTE_GENERATE   (KVA_ROUTE_OPENAI | KVA_ROUTE_RESPONSES | KVA_ROUTE_MESSAGES)

struct kva_api_field {
    const char *name;
    uint32_t routes;
    enum kva_field_kind kind;
    size_t offset; /* in struct kva_api_call */
    double min, max;
    enum kva_status (*parse)(struct kva_api_parser *p, const char *name, const cJSON *value);
    const char *allow; /* KVA_FIELD_REFUSE: strings that mean "off", separated by spaces */
};

/* Read every member of `object` that `fields`, or else `foreign` (both ended by name NULL; the latter
 * may be NULL), has for the call's route; others are counted in call->unknown_fields. */
KVA_MUST_CHECK enum kva_status kva_api_read_fields(struct kva_api_parser *p, const cJSON *object,
                                                   const struct kva_api_field *fields,
                                                   const struct kva_api_field *foreign);

extern const struct kva_api_field kva_api_fields[];         /* parse.c */
extern const struct kva_api_field kva_api_foreign_fields[]; /* foreign.c */

/* Typed readers, for custom fields: `name` is what errors call the field. */
enum kva_status kva_api_read_bool(struct kva_api_parser *p, const char *name, const cJSON *value,
                                  bool *ret);
enum kva_status kva_api_read_number(struct kva_api_parser *p, const char *name, const cJSON *value,
                                    double min, double max, double *ret);
enum kva_status kva_api_read_whole(struct kva_api_parser *p, const char *name, const cJSON *value,
                                   double min, double max, int64_t *ret);
enum kva_status kva_api_read_text(struct kva_api_parser *p, const char *name, const cJSON *value,
                                  size_t bytes_max, struct kva_api_text *ret);
/* An array of 1..count_max token ids, in the call's arena. */
enum kva_status kva_api_read_ids(struct kva_api_parser *p, const char *name, const cJSON *value,
                                 uint32_t count_max, const uint32_t **ret_ids, uint32_t *ret_count);

/* "a string", "an array" ... what the JSON value is. */
const char *kva_api_type_name(const cJSON *value);

/* Custom fields: parse_prompt.c, parse_sampling.c. */
enum kva_status kva_api_parse_prompt(struct kva_api_parser *p, const char *name,
                                     const cJSON *value);
enum kva_status kva_api_parse_tokens(struct kva_api_parser *p, const char *name,
                                     const cJSON *value);
enum kva_status kva_api_parse_messages(struct kva_api_parser *p, const char *name,
                                       const cJSON *value);
enum kva_status kva_api_parse_stop(struct kva_api_parser *p, const char *name, const cJSON *value);
enum kva_status kva_api_parse_logit_bias(struct kva_api_parser *p, const char *name,
                                         const cJSON *value);
enum kva_status kva_api_parse_bad_words(struct kva_api_parser *p, const char *name,
                                        const cJSON *value);
enum kva_status kva_api_parse_kv(struct kva_api_parser *p, const char *name, const cJSON *value);

/* The Responses API: responses.c. */
enum kva_status kva_api_parse_input(struct kva_api_parser *p, const char *name, const cJSON *value);
enum kva_status kva_api_parse_instructions(struct kva_api_parser *p, const char *name,
                                           const cJSON *value);
enum kva_status kva_api_parse_previous(struct kva_api_parser *p, const char *name,
                                       const cJSON *value);
enum kva_status kva_api_parse_text(struct kva_api_parser *p, const char *name, const cJSON *value);
enum kva_status kva_api_parse_reasoning(struct kva_api_parser *p, const char *name,
                                        const cJSON *value);
enum kva_status kva_api_parse_include(struct kva_api_parser *p, const char *name,
                                      const cJSON *value);
/* Once all fields are read: the input becomes messages. */
enum kva_status kva_api_read_input(struct kva_api_parser *p);
/* Before rendering: what is stored of the conversation, and the instructions before it. */
KVA_MUST_CHECK enum kva_status kva_api_open_conversation(const struct kva_api_config *config,
                                                         struct kva_api_call *call,
                                                         struct kva_err *err);

/* Anthropic's Messages API: messages.c. */
enum kva_status kva_api_keep_messages(struct kva_api_parser *p, const char *name,
                                      const cJSON *value);
enum kva_status kva_api_parse_system(struct kva_api_parser *p, const char *name,
                                     const cJSON *value);
enum kva_status kva_api_parse_thinking(struct kva_api_parser *p, const char *name,
                                       const cJSON *value);
enum kva_status kva_api_parse_output_config(struct kva_api_parser *p, const char *name,
                                            const cJSON *value);
enum kva_status kva_api_read_messages(struct kva_api_parser *p);

/* Embeddings: embeddings.c. */
enum kva_status kva_api_parse_encoding(struct kva_api_parser *p, const char *name,
                                       const cJSON *value);
enum kva_status kva_api_parse_dimensions(struct kva_api_parser *p, const char *name,
                                         const cJSON *value);
/* Once all fields are read. */
enum kva_status kva_api_check_pooling(struct kva_api_parser *p);
enum kva_status kva_api_parse_pooling(struct kva_api_parser *p, const char *name,
                                      const cJSON *value);

/* How hard the model is to think, for templates that ask. */
enum kva_status kva_api_parse_effort(struct kva_api_parser *p, const char *name,
                                     const cJSON *value);

/* What the answer must be: parse_format.c. */
enum kva_status kva_api_parse_text_format(struct kva_api_parser *p, const char *name,
                                          const cJSON *value);
enum kva_status kva_api_parse_response_format(struct kva_api_parser *p, const char *name,
                                              const cJSON *value);
enum kva_status kva_api_parse_structured_outputs(struct kva_api_parser *p, const char *name,
                                                 const cJSON *value);
enum kva_status kva_api_parse_guided_json(struct kva_api_parser *p, const char *name,
                                          const cJSON *value);
enum kva_status kva_api_parse_guided_regex(struct kva_api_parser *p, const char *name,
                                           const cJSON *value);
enum kva_status kva_api_parse_guided_choice(struct kva_api_parser *p, const char *name,
                                            const cJSON *value);
enum kva_status kva_api_parse_guided_grammar(struct kva_api_parser *p, const char *name,
                                             const cJSON *value);

/* Functions that may be called: tools.c. */
enum kva_status kva_api_parse_tools(struct kva_api_parser *p, const char *name, const cJSON *value);
enum kva_status kva_api_parse_tool_choice(struct kva_api_parser *p, const char *name,
                                          const cJSON *value);
/* Their old form: functions.c. It becomes the new one once all fields are read. */
enum kva_status kva_api_parse_functions(struct kva_api_parser *p, const char *name,
                                        const cJSON *value);
enum kva_status kva_api_parse_function_call(struct kva_api_parser *p, const char *name,
                                            const cJSON *value);
enum kva_status kva_api_take_functions(struct kva_api_parser *p);
/* A message with a role, at `place`, gets the new form. */
enum kva_status kva_api_lift_message(struct kva_api_parser *p, cJSON *message, const char *place);
/* Once all fields are read: tools, tool_choice, and the grammar that follows from both. */
enum kva_status kva_api_check_tools(struct kva_api_parser *p);
/* Once the prompt is rendered: the grammar depends on whether it ends within a thought. */
KVA_MUST_CHECK enum kva_status kva_api_bind_tools(const struct kva_api_config *config,
                                                  struct kva_api_call *call, struct kva_err *err);

/* The constraint of all of the call's requests, held for the caller; NULL: there is none. format.c. */
KVA_MUST_CHECK enum kva_status kva_api_get_constraint(const struct kva_api_config *config,
                                                      const struct kva_api_call *call,
                                                      struct kva_constraint **ret,
                                                      struct kva_err *err);

/* Across fields, once all are read. */
enum kva_status kva_api_check_call(struct kva_api_parser *p);

/* What every rendering of a chat template is given beside its messages: template.c. */
void kva_api_tell_template(const struct kva_tokenizer *tokenizer, struct kva_template_input *input);

#endif
