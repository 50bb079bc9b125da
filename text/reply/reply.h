/* reply.h - what an assistant's text says: reasoning, content, and calls of functions.
 *
 * Models write calls as text, each family in a style of its own, which its chat template shows:
 *
 *     hermes    <tool_call>{"name": "f", "arguments": {...}}</tool_call>     (Hermes, Qwen)
 *     llama3    {"name": "f", "parameters": {...}}, with or without <|python_tag|> before it
 *     mistral   [TOOL_CALLS][{"name": "f", "arguments": {...}}], or [TOOL_CALLS]f[ARGS]{...}
 *     xml       <tool_call><function=f><parameter=a>...</parameter></function></tool_call>
 *                                                                            (Qwen3-Coder)
 *     json      {"name": "f", "arguments": {...}}, or an array of those
 *
 * Whatever the style, a reply that begins with such an object, in a Markdown fence or not, is a call
 * too: small models forget the marker. A call is one when it is complete, valid JSON, and of a
 * function that the request offers; what only looks like one is content, to the last byte. Where a
 * grammar sees to it that calls are what they must be, their arguments are told while they come.
 *
 * What is told does not depend on how the text was cut into pieces. Time is linear in the text.
 *
 * Thread rule: a parser belongs to one thread; the rest are pure functions. */
#ifndef KVA_TEXT_REPLY_H
#define KVA_TEXT_REPLY_H

#include "base/buf.h"
#include "base/err.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

enum kva_reply_style {
    KVA_REPLY_NONE, /* no calls are looked for */
    KVA_REPLY_HERMES,
    KVA_REPLY_LLAMA3,
    KVA_REPLY_MISTRAL,
    KVA_REPLY_JSON,
    KVA_REPLY_XML,
    KVA_REPLY_STYLE_COUNT,
};

const char *kva_reply_style_name(enum kva_reply_style style);

/* What the source of a chat template shows. */
struct kva_reply_traits {
    enum kva_reply_style style; /* JSON: none that is known here */
    bool thinks;                /* <think> ... </think> comes before the answer */
};
void kva_reply_read_template(const char *source, size_t length, struct kva_reply_traits *ret);

/* Whether a token of this text is a part of the style that must not be left out of the text, special
 * as the token may be. */
bool kva_reply_is_marker(enum kva_reply_style style, bool thinks, const char *text, size_t length);

/* Whether a prompt ends within the reasoning of the reply that comes next, whose beginning is at
 * `begun` already (length: it has not begun). */
bool kva_reply_is_thinking(const char *prompt, size_t length, size_t begun);

/* For templates that take no tools: the first message, which is made if there is none of the system,
 * says what may be called and how. False: out of memory, or a text over bytes_max. */
bool kva_reply_tell_tools(cJSON *messages, const cJSON *tools, bool required, size_t bytes_max);

/* What a template makes of the calls of earlier turns. */
struct kva_reply_history {
    bool known;             /* else they become text, and their results what the user says */
    bool none_beside_calls; /* a message that calls has no content: else its calls are left out */
    bool arguments_as_text; /* as JSON, not what it says */
};

/* Gives calls in the history, which have content and parsed arguments, the form that the template
 * knows, or makes them text of the style. False: out of memory, or a text over bytes_max. */
bool kva_reply_shape_history(cJSON *messages, const struct kva_reply_history *history,
                             enum kva_reply_style style, size_t bytes_max);

/* For those that do not name the role `developer`, OpenAI's newer word for `system`: many leave out
 * what has a role that they do not know. */
void kva_reply_rename_developers(cJSON *messages);

/* --- parsing --------------------------------------------------------------------------------- */

/* What a grammar has made sure of. */
enum kva_reply_bound {
    KVA_REPLY_FREE,   /* nothing */
    KVA_REPLY_MARKED, /* calls behind the style's marker */
    KVA_REPLY_BOUND,  /* all calls */
};

struct kva_reply_sink {
    void *opaque;
    void (*reasoning)(void *opaque, const char *text, size_t length);
    void (*content)(void *opaque, const char *text, size_t length);
    /* A call begins; its arguments follow in pieces until the next one, or the end. */
    void (*call)(void *opaque, const char *name, size_t length);
    void (*arguments)(void *opaque, const char *text, size_t length);
};

struct kva_reply_params {
    enum kva_reply_style style;
    enum kva_reply_bound bound;
    bool thinks;
    bool thinking;              /* the prompt ends within the reasoning */
    bool single;                /* what follows a call is content, whatever it looks like */
    const char *const *names;   /* of the functions that may be called; borrowed */
    const char *const *schemas; /* of their parameters, for XML; borrowed, or NULL */
    uint32_t name_count;
    size_t bytes_max; /* of what is held back */
    struct kva_reply_sink sink;
};

struct kva_reply;

/* Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_reply_create(const struct kva_reply_params *params,
                                                struct kva_reply **ret);
/* NULL is allowed. */
void kva_reply_destroy(struct kva_reply *reply);

/* More of the text. */
void kva_reply_push(struct kva_reply *reply, const char *text, size_t length);
/* The text is over: what was held back is told. */
void kva_reply_finish(struct kva_reply *reply);

bool kva_reply_in_reasoning(const struct kva_reply *reply);
bool kva_reply_is_cut(const struct kva_reply *reply); /* the last call's arguments have no end */
bool kva_reply_failed(const struct kva_reply *reply); /* out of memory, or over bytes_max */
bool kva_reply_has_no_memory(const struct kva_reply *reply); /* failed, the former */
size_t kva_reply_held(const struct kva_reply *reply);        /* bytes that are held back */

/* JSON as text, without white space; its numbers as they were written, where that has been kept
 * (server/api/json.h). NULL: {}. */
void kva_reply_put_json(struct kva_buf *out, const cJSON *value);

/* --- grammars -------------------------------------------------------------------------------- */

struct kva_reply_function {
    const char *name;
    const char *parameters; /* JSON Schema as text */
    uint32_t index;         /* among the tools of the request, which errors name */
    bool strict;            /* as OpenAI has it: refused where it cannot be enforced */
};

/* What replies must be. */
struct kva_reply_rules {
    enum kva_reply_style style;
    const struct kva_reply_function *functions; /* that may be called */
    uint32_t function_count;
    bool required; /* at least one call and nothing else */
    bool parallel; /* more than one */
    bool thinks;
    bool thinking;
    int32_t marker_token; /* the style's marker, where it is a special token; -1: it is text */
    const char *answer;   /* schema of an answer without a call; NULL: any text */
    bool answer_strict;
    const char *answer_place; /* what errors call that schema; NULL: response_format */
    const char *schema_place; /* what errors call a function's schema, with %u for its index */
};

/* What a grammar can see to; FREE: there is none. Without a marker that is text, nothing tells a call
 * from an answer before it is there, unless an answer must be a call, or of a schema, or a function is
 * strict and calls begin with a brace: an answer then begins with something else. */
enum kva_reply_bound kva_reply_bound_of(const struct kva_reply_rules *rules);
/* Appends the source of a grammar of kind KVA_GRAMMAR_TAGS. Fails by out->failed. */
void kva_reply_put_grammar(struct kva_buf *out, const struct kva_reply_rules *rules);

#endif
