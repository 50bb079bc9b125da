/* template.h - chat templates: a sandboxed interpreter of the Jinja2 dialect that models are
 * published with.
 *
 * A template comes with a model, or even with a request, and is hostile input until proven
 * otherwise: it can only read the values it is given, and what it may use is bounded - source size,
 * nesting, work, memory, output (struct kva_template_limits). The dialect and its settings are
 * those of Hugging Face's apply_chat_template: Jinja2 3.1 in its immutable sandbox, trim_blocks,
 * lstrip_blocks, loop controls, `generation` blocks, a `tojson` that does not escape HTML,
 * `raise_exception`, `strftime_now`, `namespace`. Not in it: inheritance, includes, imports,
 * autoescaping.
 *
 * Known differences from Python: integers have 64 bits and overflow is an error; whole numbers of
 * a cJSON document below 2^53 are integers ("1.0" cannot be told from "1"); filters that Python
 * evaluates lazily (map, select, ...) are evaluated at once, with their errors.
 *
 * Thread rule: a compiled template is immutable, any number of threads may render it at the same
 * time. Rendering recurses: give the thread KVA_TEMPLATE_STACK_BYTES of stack. */
#ifndef KVA_TEXT_TEMPLATE_TEMPLATE_H
#define KVA_TEXT_TEMPLATE_TEMPLATE_H

#include "base/buf.h"
#include "base/err.h"

#include <cjson/cJSON.h>
#include <stdatomic.h>
#include <stdbool.h>

struct kva_template;

/* Bounds of compilation. Published templates stay below 20 KiB and 40 levels. */
#define KVA_TEMPLATE_SOURCE_BYTES_MAX (1u << 20)
#define KVA_TEMPLATE_PARSE_DEPTH_MAX  100u
#define KVA_TEMPLATE_NAMES_MAX        1000u
#define KVA_TEMPLATE_AST_BYTES_MAX    (32u << 20)

/* Defaults of what one rendering may use. */
#define KVA_TEMPLATE_STEPS_MAX        20000000u
#define KVA_TEMPLATE_EVAL_DEPTH_MAX   500u
#define KVA_TEMPLATE_HEAP_BYTES_MAX   (128u << 20)
#define KVA_TEMPLATE_OUTPUT_BYTES_MAX (32u << 20)
#define KVA_TEMPLATE_RANGE_MAX        100000u

/* Stack that a rendering at the default depth needs, with room to spare. */
#define KVA_TEMPLATE_STACK_BYTES (1u << 20)

struct kva_template_limits {
    uint64_t steps_max;      /* nodes evaluated, 4 items, 16 characters or 64 bytes touched */
    uint32_t eval_depth_max; /* nested evaluation, macro calls and values included */
    size_t heap_bytes_max;   /* values made while rendering, and text being captured */
    size_t output_bytes_max; /* rendered text */
    uint32_t range_max;      /* items of one range() */
};

/* What another thread may tell a rendering, and what the rendering tells of itself. */
struct kva_template_control {
    const atomic_bool *cancelled; /* read while work is charged: true ends the rendering; or NULL */
    uint64_t steps;               /* afterwards: the work that was done, also on failure */
};

struct kva_template_input {
    const cJSON *messages;  /* array; NULL: undefined */
    const cJSON *tools;     /* array; NULL: see absent_is_none */
    const cJSON *documents; /* array; NULL: see absent_is_none */
    const cJSON *extra;     /* object of further variables (chat_template_kwargs), or NULL; they
                             * win over every other field here */
    bool add_generation_prompt;
    bool absent_is_none;   /* absent tools and documents are None, as apply_chat_template passes
                            * them (what templates were tested with), instead of undefined */
    const char *bos_token; /* special tokens; NULL: undefined */
    const char *eos_token;
    const char *pad_token;
    const char *unk_token;
    int64_t
        now_unix_s; /* for strftime_now, which shows it as UTC: add the offset of another zone */
    struct kva_template_control *control; /* or NULL */
};

/* The limits above. */
void kva_template_limits_default(struct kva_template_limits *limits);

/* Compile `length` bytes of UTF-8. Fails: KVA_EFORMAT (err: the line and what is wrong there),
 * KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_template_compile(const char *source, size_t length,
                                                    struct kva_template **ret, struct kva_err *err);

/* NULL is allowed. */
void kva_template_destroy(struct kva_template *tmpl);

/* What it was compiled from, as long as it lives. */
const char *kva_template_source(const struct kva_template *tmpl, size_t *ret_length);
/* Whether it names a variable. */
bool kva_template_mentions(const struct kva_template *tmpl, const char *name);

/* Append the rendering to `out`, whose own maximum holds too; `limits` NULL: the defaults. On
 * failure `out` keeps what it had. Keys of JSON objects keep their order; the last of two equal
 * keys wins. The JSON must not change meanwhile. Fails: KVA_EINVAL (the template called
 * raise_exception: err is exactly its message; an error in the template with these values: err
 * has the line and Jinja2's words; a limit: err names it), KVA_ECANCELLED (input->control),
 * KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_template_render(const struct kva_template *tmpl,
                                                   const struct kva_template_input *input,
                                                   const struct kva_template_limits *limits,
                                                   struct kva_buf *out, struct kva_err *err);

/* Find and compile the template of the model directory `path`. `name` NULL or "default": the
 * default; otherwise one of a list of named templates ("tool_use"). In order: chat_template.jinja
 * (default) or additional_chat_templates/<name>.jinja; "chat_template" of tokenizer_config.json, a
 * string or a list of {name, template}; the same of chat_template.json. Of a GGUF file its
 * metadata: tokenizer.chat_template, or tokenizer.chat_template.<name>. Fails: KVA_ENOTFOUND (err
 * says where it looked), KVA_EIO, KVA_EFORMAT (err names the file), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_template_load(const char *path, const char *name,
                                                 struct kva_template **ret, struct kva_err *err);

/* The same of one file. Fails: KVA_ENOTFOUND, KVA_EIO, KVA_EFORMAT, KVA_ENOMEM; err names it. */
KVA_MUST_CHECK enum kva_status kva_template_load_file(const char *path, struct kva_template **ret,
                                                      struct kva_err *err);

#endif
