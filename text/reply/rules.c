/* rules.c - what replies must be, as a structural tag of the grammar library. */
#include "text/grammar/grammar.h"
#include "text/reply/internal.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Nothing here checks for memory: whatever lacks a node prints as nothing, and add() says so. */
struct maker {
    const struct kva_reply_rules *rules;
    const struct kva_reply_syntax *syntax;
    bool failed;
};

static void add(struct maker *m, cJSON *object, const char *name, cJSON *item)
{
    bool done = item && (name ? cJSON_AddItemToObject(object, name, item)
                              : cJSON_AddItemToArray(object, item));
    if (done)
        return;
    cJSON_Delete(item);
    m->failed = true;
}

static cJSON *node(struct maker *m, const char *type)
{
    cJSON *result = cJSON_CreateObject();
    add(m, result, "type", cJSON_CreateString(type));
    return result;
}

static cJSON *text_node(struct maker *m, const char *text)
{
    cJSON *result = node(m, "const_string");
    add(m, result, "value", cJSON_CreateString(text));
    return result;
}

/* A place that kva_grammar_create fills with the rules of the schema, which errors call `place`. */
static cJSON *schema_node(struct maker *m, const char *schema, bool strict, const char *place)
{
    cJSON *result = node(m, KVA_GRAMMAR_TAGS_SCHEMA);
    add(m, result, "schema", cJSON_Parse(schema));
    add(m, result, "strict", cJSON_CreateBool(strict));
    add(m, result, "place", cJSON_CreateString(place));
    return result;
}

static bool marker_is_text(const struct maker *m)
{
    return m->syntax->marker && m->rules->marker_token < 0;
}

/* One tag for each function: all but the arguments is as models of the style write it. */
static cJSON *tags_node(struct maker *m)
{
    bool marked = marker_is_text(m) && !m->syntax->array;
    cJSON *tags = cJSON_CreateArray();
    for (uint32_t i = 0; i < m->rules->function_count; i++) {
        const struct kva_reply_function *function = &m->rules->functions[i];
        const char *before = marked ? m->syntax->before : "",
                   *after = marked ? m->syntax->after : "";
        bool xml = m->syntax->xml;
        char begin[512], end[64], place[64];
        if (xml)
            snprintf(begin, sizeof(begin), "%s" KVA_REPLY_FUNCTION "%.256s>\n", before,
                     function->name);
        else
            snprintf(begin, sizeof(begin), "%s{\"name\": \"%.256s\", \"%s\": ", before,
                     function->name, m->syntax->arguments);
        snprintf(end, sizeof(end), "%s%s", xml ? KVA_REPLY_FUNCTION_END : "}", after);
        snprintf(place, sizeof(place), m->rules->schema_place, function->index);
        cJSON *tag = node(m, "tag");
        cJSON *schema = schema_node(m, function->parameters, function->strict, place);
        /* Where the client does not insist on it, a schema that cannot be enforced is none. */
        add(m, schema, "lax", cJSON_CreateBool(!function->strict));
        add(m, schema, "xml", cJSON_CreateBool(xml));
        add(m, tag, "begin", cJSON_CreateString(begin));
        add(m, tag, "content", schema);
        add(m, tag, "end", cJSON_CreateString(end));
        add(m, tags, NULL, tag);
    }
    return tags;
}

/* A call or several, and nothing besides. */
static void add_calls(struct maker *m, cJSON *elements)
{
    const struct kva_reply_syntax *syntax = m->syntax;
    const struct kva_reply_rules *rules = m->rules;
    bool many = rules->parallel && syntax->separator && (syntax->array || marker_is_text(m));
    if (syntax->array && rules->marker_token >= 0) {
        cJSON *token = node(m, "token");
        add(m, token, "token", cJSON_CreateNumber(rules->marker_token));
        add(m, elements, NULL, token);
    } else if (syntax->array) {
        add(m, elements, NULL, text_node(m, syntax->marker));
    }
    if (syntax->array)
        add(m, elements, NULL, text_node(m, "["));
    cJSON *calls = node(m, "tags_with_separator");
    add(m, calls, "tags", tags_node(m));
    add(m, calls, "separator", cJSON_CreateString(many ? syntax->separator : "\n"));
    add(m, calls, "at_least_one", cJSON_CreateTrue());
    add(m, calls, "stop_after_first", cJSON_CreateBool(!many));
    add(m, elements, NULL, calls);
    if (syntax->array)
        add(m, elements, NULL, text_node(m, "]"));
}

/* What a model thinks first is its own affair: whatever it is, up to its end. */
static cJSON *thought_node(struct maker *m)
{
    cJSON *thought = cJSON_CreateArray();
    cJSON *spaces = node(m, "regex");
    if (!m->rules->thinking)
        add(m, thought, NULL, text_node(m, KVA_REPLY_THINK));
    cJSON *tag = node(m, "tag");
    add(m, tag, "begin", cJSON_CreateString(""));
    add(m, tag, "content", node(m, "any_text"));
    add(m, tag, "end", cJSON_CreateString(KVA_REPLY_THINK_END));
    add(m, thought, NULL, tag);
    add(m, spaces, "pattern", cJSON_CreateString("[ \\n]{0,4}"));
    add(m, thought, NULL, spaces);
    cJSON *sequence = node(m, "sequence");
    add(m, sequence, "elements", thought);
    return sequence;
}

static void add_thought(struct maker *m, cJSON *elements, bool must)
{
    if (!m->rules->thinks)
        return;
    if (must) {
        add(m, elements, NULL, thought_node(m));
        return;
    }
    cJSON *maybe = node(m, "optional");
    add(m, maybe, "content", thought_node(m));
    add(m, elements, NULL, maybe);
}

static cJSON *sequence_of_calls(struct maker *m)
{
    cJSON *result = node(m, "sequence");
    cJSON *elements = cJSON_CreateArray();
    add_calls(m, elements);
    add(m, result, "elements", elements);
    return result;
}

/* Calls, or an answer of the schema. */
static cJSON *calls_or_answer(struct maker *m)
{
    cJSON *result = node(m, "or");
    cJSON *elements = cJSON_CreateArray();
    const struct kva_reply_rules *rules = m->rules;
    const char *place = rules->answer_place ? rules->answer_place : "response_format";
    add(m, elements, NULL, sequence_of_calls(m));
    add(m, elements, NULL, schema_node(m, rules->answer, rules->answer_strict, place));
    add(m, result, "elements", elements);
    return result;
}

/* Any text, in which calls are what they must be. */
static cJSON *calls_in_text(struct maker *m)
{
    cJSON *result = node(m, "triggered_tags");
    cJSON *triggers = cJSON_CreateArray();
    add(m, triggers, NULL, cJSON_CreateString(m->syntax->marker));
    add(m, result, "triggers", triggers);
    add(m, result, "tags", tags_node(m));
    add(m, result, "at_least_one", cJSON_CreateFalse());
    add(m, result, "stop_after_first", cJSON_CreateBool(!m->rules->parallel));
    return result;
}

/* Text that does not begin as a call without a marker does: what comes behind is free. */
static cJSON *text_without_call(struct maker *m)
{
    bool may_think = m->rules->thinks && !m->rules->thinking;
    cJSON *first = node(m, "regex"), *text = node(m, "sequence"), *maybe = node(m, "optional");
    cJSON *elements = cJSON_CreateArray();
    add(m, first, "pattern",
        cJSON_CreateString(may_think ? "[ \\n\\r\\t]*[^ \\n\\r\\t{\\[`<]"
                                     : "[ \\n\\r\\t]*[^ \\n\\r\\t{\\[`]"));
    add(m, elements, NULL, first);
    add(m, elements, NULL, node(m, "any_text"));
    add(m, text, "elements", elements);
    add(m, maybe, "content", text);
    return maybe;
}

/* Calls, or a text that is none from its first character on. */
static cJSON *calls_or_text(struct maker *m)
{
    cJSON *result = node(m, "or");
    cJSON *elements = cJSON_CreateArray();
    add(m, elements, NULL, sequence_of_calls(m));
    add(m, elements, NULL, text_without_call(m));
    add(m, result, "elements", elements);
    return result;
}

/* The first character tells a call from an answer: in styles whose calls have no marker, or one that no
 * text can have. That keeps answers from beginning like one, so it has to be asked for. */
static bool begins_bare(const struct kva_reply_rules *rules)
{
    const struct kva_reply_syntax *syntax = &kva_reply_syntaxes[rules->style];
    bool strict = false;
    for (uint32_t i = 0; i < rules->function_count; i++)
        strict = strict || rules->functions[i].strict;
    return strict &&
           (rules->style == KVA_REPLY_JSON ||
            (rules->style == KVA_REPLY_LLAMA3 && rules->marker_token >= 0)) &&
           !syntax->array;
}

enum kva_reply_bound kva_reply_bound_of(const struct kva_reply_rules *rules)
{
    const struct kva_reply_syntax *syntax = &kva_reply_syntaxes[rules->style];
    if (rules->style == KVA_REPLY_NONE || rules->function_count == 0)
        return KVA_REPLY_FREE;
    if (rules->required || rules->answer || begins_bare(rules))
        return KVA_REPLY_BOUND;
    return syntax->marker && !syntax->array && rules->marker_token < 0 ? KVA_REPLY_MARKED
                                                                       : KVA_REPLY_FREE;
}

/* A whole reply. */
static cJSON *reply_node(struct maker *m)
{
    const struct kva_reply_rules *rules = m->rules;
    bool bound = kva_reply_bound_of(rules) == KVA_REPLY_BOUND;
    cJSON *sequence = node(m, "sequence");
    cJSON *elements = cJSON_CreateArray();
    /* Where text is free, it may also end within the thought. */
    add_thought(m, elements, bound && rules->thinking);
    if (!bound)
        add(m, elements, NULL, calls_in_text(m));
    else if (rules->required)
        add_calls(m, elements);
    else
        add(m, elements, NULL, rules->answer ? calls_or_answer(m) : calls_or_text(m));
    add(m, sequence, "elements", elements);
    return sequence;
}

void kva_reply_put_grammar(struct kva_buf *out, const struct kva_reply_rules *rules)
{
    struct maker m = {.rules = rules, .syntax = &kva_reply_syntaxes[rules->style]};
    cJSON *root = node(&m, "structural_tag");
    add(&m, root, "format", reply_node(&m));
    char *text = m.failed ? NULL : cJSON_PrintUnformatted(root);
    if (text)
        kva_buf_puts(out, text);
    else
        out->failed = true;
    free(text);
    cJSON_Delete(root);
}
