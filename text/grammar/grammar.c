/* grammar.c - grammars and matchers: checks first, then the library. */
#include "base/buf.h"
#include "base/clock.h"
#include "text/grammar/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Schemas that are looked at one by one for the place of what the library refuses. */
#define PLACE_TRIES_MAX 256u

struct kva_grammar_vocab {
    struct kva_xg_vocab *xg;
    uint32_t size;
};

struct kva_grammar {
    struct kva_xg_grammar *xg;
};

struct kva_grammar_matcher {
    struct kva_xg_matcher *xg;
};

bool kva_grammar_available(void)
{
    return true;
}

/* --- vocabularies ---------------------------------------------------------------------------- */

static bool is_one_of(uint32_t id, const uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

/* What each id adds to a text: special tokens add nothing that a grammar could ask for. Those that
 * may be asked for by their ids have a byte that is in no text. */
static struct kva_xg_token *read_tokens(const struct kva_grammar_vocab_params *params,
                                        uint32_t count)
{
    struct kva_xg_token *tokens = calloc((size_t)count + 1, sizeof(*tokens));
    for (uint32_t id = 0; tokens && id < count; id++) {
        bool stop = is_one_of(id, params->eos_ids, params->eos_count);
        if (!stop && is_one_of(id, params->named_ids, params->named_count)) {
            tokens[id] = (struct kva_xg_token){"\xff", 1};
            continue;
        }
        if (stop || kva_tokenizer_is_special(params->tokenizer, (int32_t)id))
            continue;
        size_t length = 0;
        const char *bytes = kva_tokenizer_token_bytes(params->tokenizer, (int32_t)id, &length);
        tokens[id] = (struct kva_xg_token){bytes, bytes ? length : 0};
    }
    return tokens;
}

enum kva_status kva_grammar_vocab_create(const struct kva_grammar_vocab_params *params,
                                         struct kva_grammar_vocab **ret, struct kva_err *err)
{
    if (params->eos_count == 0)
        return kva_fail(err, KVA_EUNSUPPORTED,
                        "the model has no token that ends a text, which a grammar needs");
    uint32_t count = kva_min_u32(kva_tokenizer_vocab_size(params->tokenizer), params->vocab_size);
    struct kva_xg_token *tokens = read_tokens(params, count);
    struct kva_grammar_vocab *vocab = calloc(1, sizeof(*vocab));
    struct kva_xg_why why = {""};
    enum kva_xg_status status = KVA_XG_MEMORY;
    if (tokens && vocab)
        status = kva_xg_vocab_create(
            &(struct kva_xg_vocab_params){
                .tokens = tokens,
                .token_count = count,
                .vocab_size = params->vocab_size,
                .stop_ids = params->eos_ids,
                .stop_count = params->eos_count,
            },
            &vocab->xg, &why);
    free(tokens);
    if (status == KVA_XG_OK) {
        vocab->size = params->vocab_size;
        *ret = vocab;
        return KVA_OK;
    }
    free(vocab);
    if (status == KVA_XG_REFUSED)
        return kva_fail(err, KVA_EINTERNAL, "the vocabulary makes no grammars: %s", why.text);
    return kva_fail(err, KVA_ENOMEM, "out of memory for grammars of %u tokens", params->vocab_size);
}

void kva_grammar_vocab_destroy(struct kva_grammar_vocab *vocab)
{
    if (!vocab)
        return;
    kva_xg_vocab_destroy(vocab->xg);
    free(vocab);
}

/* --- what it may take ------------------------------------------------------------------------ */

struct kva_xg_limits kva_grammar_left(const struct kva_grammar_effort *effort)
{
    uint64_t time_ns = effort->limits->time_ns, spent_ns = kva_time_ns() - effort->begun_ns;
    if (time_ns > 0)
        time_ns = spent_ns < time_ns ? time_ns - spent_ns : 1; /* 0 would be no limit */
    return (struct kva_xg_limits){time_ns, effort->limits->bytes};
}

/* --- what the library says ------------------------------------------------------------------- */

enum kva_status kva_grammar_over_limit(enum kva_xg_status status,
                                       const struct kva_grammar_limits *limits, struct kva_err *err)
{
    if (status == KVA_XG_TIME)
        return kva_fail(err, KVA_ETOOBIG,
                        "making the grammar takes longer than the limit of %.1f s",
                        (double)limits->time_ns / 1e9);
    if (limits->bytes > 0)
        return kva_fail(err, KVA_ETOOBIG,
                        "making the grammar takes more memory than the limit of %.0f MiB",
                        (double)limits->bytes / (1 << 20));
    return kva_fail(err, KVA_ENOMEM, "out of memory for a grammar");
}

/* The first part of what it says: behind it is what it would do instead. */
static enum kva_status refused(const char *what, const struct kva_xg_why *why, struct kva_err *err)
{
    size_t length = strcspn(why->text, ";\n");
    return kva_fail(err, KVA_EINVAL, "%s: %.*s", what, (int)kva_min_size(length, 300), why->text);
}

/* --- the place of what is refused ------------------------------------------------------------ */

struct search {
    const cJSON *root;
    const struct kva_grammar_effort *effort;
    bool strict;
    uint32_t tries;
    char place[KVA_GRAMMAR_PLACE_MAX];
    struct kva_xg_why why;
};

/* The schema alone, with the definitions that it may name. */
static char *print_alone(const struct search *search, const cJSON *schema)
{
    static const char *const names[] = {"$defs", "definitions"};
    cJSON *alone = cJSON_Duplicate(schema, true);
    for (size_t i = 0; i < KVA_COUNT_OF(names) && cJSON_IsObject(alone); i++) {
        cJSON *definitions = cJSON_GetObjectItemCaseSensitive(search->root, names[i]);
        if (definitions && !cJSON_GetObjectItemCaseSensitive(alone, names[i]))
            cJSON_AddItemToObject(alone, names[i], cJSON_Duplicate(definitions, true));
    }
    char *text = alone ? cJSON_PrintUnformatted(alone) : NULL;
    cJSON_Delete(alone);
    return text;
}

/* Whether the library refuses this schema by itself. */
static bool is_refused(struct search *search, const cJSON *schema)
{
    if (!cJSON_IsObject(schema) || search->tries == PLACE_TRIES_MAX)
        return false;
    char *text = print_alone(search, schema);
    if (!text)
        return false;
    search->tries++;
    const struct kva_xg_source source = {
        .kind = KVA_XG_SCHEMA,
        .text = text,
        .length = strlen(text),
        .strict = search->strict,
        .whitespace_max = KVA_GRAMMAR_WHITESPACE_MAX,
    };
    const struct kva_xg_limits limits = kva_grammar_left(search->effort);
    struct kva_xg_why why = {""};
    enum kva_xg_status status = kva_xg_check(&source, &limits, &why);
    bool result = status == KVA_XG_REFUSED;
    if (status == KVA_XG_TIME)
        search->tries = PLACE_TRIES_MAX;
    if (result)
        search->why = why;
    free(text);
    return result;
}

static bool is_word_of(const char *name, const char *const *names)
{
    for (; *names; names++) {
        if (strcmp(name, *names) == 0)
            return true;
    }
    return false;
}

/* The first schema directly inside of this one that is refused by itself; its place is added. */
static const cJSON *find_inside(struct search *search, const cJSON *schema)
{
    static const char *const one[] = {"items",
                                      "additionalProperties",
                                      "unevaluatedItems",
                                      "unevaluatedProperties",
                                      "propertyNames",
                                      NULL};
    static const char *const many[] = {
        "properties", "patternProperties", "$defs", "definitions", "anyOf", "oneOf",
        "allOf",      "prefixItems",       NULL};
    size_t length = strlen(search->place);
    for (const cJSON *at = schema->child; at; at = at->next) {
        if (is_word_of(at->string, one) && is_refused(search, at)) {
            snprintf(search->place + length, sizeof(search->place) - length, "/%s", at->string);
            return at;
        }
        if (!is_word_of(at->string, many))
            continue;
        uint32_t index = 0;
        for (const cJSON *each = at->child; each; each = each->next, index++) {
            if (!is_refused(search, each))
                continue;
            if (each->string)
                snprintf(search->place + length, sizeof(search->place) - length, "/%s/%s",
                         at->string, each->string);
            else
                snprintf(search->place + length, sizeof(search->place) - length, "/%s/%u",
                         at->string, index);
            return each;
        }
    }
    return NULL;
}

enum kva_status kva_grammar_refuse_schema(const cJSON *root, bool strict,
                                          const struct kva_grammar_effort *effort,
                                          const struct kva_xg_why *why, struct kva_err *err)
{
    struct search search = {.root = root, .effort = effort, .strict = strict, .why = *why};
    const cJSON *schema = root;
    for (uint32_t depth = 0; schema && depth < KVA_GRAMMAR_DEPTH_MAX; depth++)
        schema = find_inside(&search, schema);
    char what[KVA_GRAMMAR_PLACE_MAX + 32];
    snprintf(what, sizeof(what), "the schema at '#%s'", search.place);
    return refused(what, &search.why, err);
}

/* --- grammars -------------------------------------------------------------------------------- */

/* The library's parsers go into brackets by recursion; those in classes of characters, and in strings
 * and comments of rules, are characters. */
static enum kva_status check_nesting(const struct kva_grammar_source *source, struct kva_err *err)
{
    bool rules = source->kind == KVA_GRAMMAR_EBNF;
    uint32_t depth = 0;
    char end = '\0'; /* of the class, string or comment in which this is */
    for (size_t i = 0; i < source->length; i++) {
        char c = source->text[i];
        if (c == '\\' && end != '\n')
            i++;
        else if (end)
            end = c == end || (end == '\n' && c == '\r') ? '\0' : end;
        else if (c == '[')
            end = ']';
        else if (rules && (c == '"' || c == '#'))
            end = c == '"' ? '"' : '\n';
        else if (c == '(' || c == '{')
            depth++;
        else if ((c == ')' || c == '}') && depth > 0)
            depth--;
        if (depth > KVA_GRAMMAR_DEPTH_MAX)
            return kva_fail(err, KVA_ETOOBIG, "more than %u levels of brackets at byte %zu",
                            KVA_GRAMMAR_DEPTH_MAX, i);
    }
    return KVA_OK;
}

static enum kva_status check_size(const struct kva_grammar_source *source,
                                  const struct kva_grammar_limits *limits, struct kva_err *err)
{
    if (limits->text_bytes > 0 && source->length > limits->text_bytes)
        return kva_fail(err, KVA_ETOOBIG, "it has %zu bytes, limit is %zu", source->length,
                        limits->text_bytes);
    if (memchr(source->text, '\0', source->length))
        return kva_fail(err, KVA_EINVAL, "it has a NUL character");
    return KVA_OK;
}

static enum kva_status parse_schema(const char *text, size_t length, cJSON **ret,
                                    struct kva_err *err)
{
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, length, &end, false);
    if (!root)
        return kva_fail(err, KVA_EINVAL, "the schema is not JSON at byte %zu",
                        end ? (size_t)(end - text) : 0);
    enum kva_status status = kva_grammar_check_tree(root, false, err);
    if (status)
        cJSON_Delete(root);
    else
        *ret = root;
    return status;
}

enum kva_status kva_grammar_check_schema(const char *text, size_t length, struct kva_err *err)
{
    cJSON *root = NULL;
    enum kva_status status = parse_schema(text, length, &root, err);
    cJSON_Delete(root);
    return status;
}

static enum kva_status compile(const struct kva_grammar_vocab *vocab,
                               const struct kva_xg_source *source, const cJSON *root,
                               const struct kva_grammar_effort *effort, struct kva_xg_grammar **ret,
                               struct kva_err *err)
{
    const struct kva_xg_limits limits = kva_grammar_left(effort);
    struct kva_xg_why why = {""};
    enum kva_xg_status status = kva_xg_compile(vocab->xg, source, &limits, ret, &why);
    if (status == KVA_XG_OK)
        return KVA_OK;
    if (status != KVA_XG_REFUSED)
        return kva_grammar_over_limit(status, effort->limits, err);
    if (root)
        return kva_grammar_refuse_schema(root, source->strict, effort, &why, err);
    return refused(source->kind == KVA_XG_REGEX ? "the expression is refused"
                                                : "the grammar is refused",
                   &why, err);
}

/* A structural tag, whose schemas are checked as any others. */
static enum kva_status make_tags(const struct kva_grammar_vocab *vocab,
                                 const struct kva_grammar_source *source,
                                 const struct kva_grammar_effort *effort,
                                 struct kva_xg_grammar **ret, struct kva_err *err)
{
    cJSON *root = cJSON_ParseWithLength(source->text, source->length);
    if (!root)
        return kva_fail(err, KVA_EINVAL, "the structural tag is not JSON");
    enum kva_status status = kva_grammar_fill_tags(root, effort, err);
    char *text = status ? NULL : cJSON_PrintUnformatted(root);
    if (text) {
        const struct kva_xg_source xg = {.kind = KVA_XG_TAGS, .text = text, .length = strlen(text)};
        status = compile(vocab, &xg, NULL, effort, ret, err);
    } else if (!status) {
        status = kva_fail(err, KVA_ENOMEM, "out of memory for a grammar");
    }
    free(text);
    cJSON_Delete(root);
    return status;
}

static enum kva_status make(const struct kva_grammar_vocab *vocab,
                            const struct kva_grammar_source *source,
                            const struct kva_grammar_effort *effort, struct kva_xg_grammar **ret,
                            struct kva_err *err)
{
    struct kva_xg_source xg = {
        .kind = source->kind == KVA_GRAMMAR_REGEX ? KVA_XG_REGEX : KVA_XG_EBNF,
        .text = source->text,
        .length = source->length,
    };
    enum kva_status status = check_size(source, effort->limits, err);
    if (status)
        return status;
    if (source->kind == KVA_GRAMMAR_TAGS)
        return make_tags(vocab, source, effort, ret, err);
    if (source->kind != KVA_GRAMMAR_SCHEMA) {
        status = check_nesting(source, err);
        return status ? status : compile(vocab, &xg, NULL, effort, ret, err);
    }
    cJSON *root = NULL;
    status = parse_schema(source->text, source->length, &root, err);
    if (status)
        return status;
    char *text = cJSON_PrintUnformatted(root);
    xg = (struct kva_xg_source){
        .kind = KVA_XG_SCHEMA,
        .text = text,
        .length = text ? strlen(text) : 0,
        .strict = source->strict,
        .whitespace_max = KVA_GRAMMAR_WHITESPACE_MAX,
    };
    status = text ? compile(vocab, &xg, root, effort, ret, err)
                  : kva_fail(err, KVA_ENOMEM, "out of memory for a schema");
    free(text);
    cJSON_Delete(root);
    return status;
}

static bool allows_any(const uint32_t *mask, uint32_t vocab_size)
{
    for (uint32_t id = 0; id < vocab_size; id++) {
        if (mask[id / 32] >> id % 32 & 1u)
            return true;
    }
    return false;
}

/* Rules that never come to a token (`root ::= root`) are well-formed, and no text can be them. */
static enum kva_status check_begins(const struct kva_grammar_vocab *vocab,
                                    const struct kva_grammar *grammar,
                                    const struct kva_grammar_limits *limits, struct kva_err *err)
{
    const struct kva_grammar_work work = {limits->time_ns, limits->bytes};
    struct kva_grammar_matcher *matcher = NULL;
    enum kva_status status = kva_grammar_matcher_create(grammar, &matcher, err);
    if (status)
        return status;
    uint32_t *mask = calloc(kva_grammar_mask_words(vocab->size), sizeof(*mask));
    if (!mask)
        status = kva_fail(err, KVA_ENOMEM, "out of memory for a grammar");
    else if (kva_grammar_matcher_mask(matcher, mask, &work) != KVA_OK)
        status = kva_grammar_over_limit(KVA_XG_TIME, limits, err);
    else if (!allows_any(mask, vocab->size))
        status = kva_fail(err, KVA_EINVAL, "no text can be it: nothing may come first");
    free(mask);
    kva_grammar_matcher_destroy(matcher);
    return status;
}

enum kva_status kva_grammar_create(const struct kva_grammar_vocab *vocab,
                                   const struct kva_grammar_source *source,
                                   const struct kva_grammar_limits *limits,
                                   struct kva_grammar **ret, struct kva_err *err)
{
    struct kva_grammar *grammar = calloc(1, sizeof(*grammar));
    if (!grammar)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a grammar");
    const struct kva_grammar_effort effort = {limits, kva_time_ns()};
    enum kva_status status = make(vocab, source, &effort, &grammar->xg, err);
    if (!status)
        status = check_begins(vocab, grammar, limits, err);
    if (status)
        kva_grammar_destroy(grammar);
    else
        *ret = grammar;
    return status;
}

void kva_grammar_destroy(struct kva_grammar *grammar)
{
    if (!grammar)
        return;
    kva_xg_grammar_destroy(grammar->xg);
    free(grammar);
}

size_t kva_grammar_bytes(const struct kva_grammar *grammar)
{
    return kva_xg_grammar_bytes(grammar->xg);
}

/* --- matchers -------------------------------------------------------------------------------- */

enum kva_status kva_grammar_matcher_create(const struct kva_grammar *grammar,
                                           struct kva_grammar_matcher **ret, struct kva_err *err)
{
    struct kva_grammar_matcher *matcher = calloc(1, sizeof(*matcher));
    struct kva_xg_why why = {""};
    enum kva_xg_status status =
        matcher ? kva_xg_matcher_create(grammar->xg, &matcher->xg, &why) : KVA_XG_MEMORY;
    if (status == KVA_XG_OK) {
        *ret = matcher;
        return KVA_OK;
    }
    free(matcher);
    if (status == KVA_XG_REFUSED)
        return refused("the grammar cannot be followed", &why, err);
    return kva_fail(err, KVA_ENOMEM, "out of memory for a grammar's state");
}

void kva_grammar_matcher_destroy(struct kva_grammar_matcher *matcher)
{
    if (!matcher)
        return;
    kva_xg_matcher_destroy(matcher->xg);
    free(matcher);
}

static enum kva_status status_of(enum kva_xg_status status)
{
    return status == KVA_XG_OK ? KVA_OK : status == KVA_XG_REFUSED ? KVA_EINVAL : KVA_ETOOBIG;
}

static struct kva_xg_limits limits_of(const struct kva_grammar_work *work)
{
    return (struct kva_xg_limits){work ? work->time_ns : 0, work ? work->bytes : 0};
}

enum kva_status kva_grammar_matcher_take(struct kva_grammar_matcher *matcher, uint32_t token,
                                         const struct kva_grammar_work *work)
{
    const struct kva_xg_limits limits = limits_of(work);
    return status_of(kva_xg_matcher_accept(matcher->xg, token, &limits));
}

enum kva_status kva_grammar_matcher_take_text(struct kva_grammar_matcher *matcher, const char *text,
                                              size_t length, const struct kva_grammar_work *work)
{
    const struct kva_xg_limits limits = limits_of(work);
    return status_of(kva_xg_matcher_accept_text(matcher->xg, text, length, &limits));
}

void kva_grammar_matcher_undo(struct kva_grammar_matcher *matcher)
{
    kva_xg_matcher_undo(matcher->xg);
}

enum kva_status kva_grammar_matcher_mask(struct kva_grammar_matcher *matcher, uint32_t *mask,
                                         const struct kva_grammar_work *work)
{
    const struct kva_xg_limits limits = limits_of(work);
    return status_of(kva_xg_matcher_mask(matcher->xg, mask, &limits));
}

bool kva_grammar_matcher_complete(const struct kva_grammar_matcher *matcher)
{
    return kva_xg_matcher_completed(matcher->xg);
}
