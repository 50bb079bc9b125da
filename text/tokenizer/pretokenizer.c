/* pretokenizer.c - pre-tokenizers: loading them, and cutting a text into pieces. */
#include "text/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

/* What ByteLevel splits with unless use_regex is false: GPT-2's expression. */
#define BYTE_LEVEL_PATTERN                                                                         \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* ---- loading -------------------------------------------------------------------------------- */

static enum kva_status load_behavior(struct kva_tok_op *op, const struct kva_tok_place *place,
                                     const cJSON *item, const char *missing)
{
    static const char *const names[] = {
        [KVA_SPLIT_REMOVED] = "Removed",
        [KVA_SPLIT_ISOLATED] = "Isolated",
        [KVA_SPLIT_CONTIGUOUS] = "Contiguous",
        [KVA_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [KVA_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
    };
    const char *name;
    enum kva_status status = kva_tok_json_string_optional(place, item, "behavior", &name);
    if (status)
        return status;
    name = name ? name : missing;
    if (!name)
        return kva_tok_complain(place, KVA_EFORMAT, "'behavior' is missing");
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            op->behavior = (enum kva_split_behavior)i;
            return KVA_OK;
        }
    }
    return kva_tok_complain(place, KVA_EFORMAT, "behavior '%.60s' is unknown", name);
}

static enum kva_status load_split(struct kva_tok_ops *ops, const struct kva_tok_place *place,
                                  const cJSON *item)
{
    struct kva_tok_op *op = kva_tok_ops_add(ops, KVA_OP_SPLIT);
    enum kva_status status = kva_pattern_load(&op->pattern, place, item);
    if (!status)
        status = load_behavior(op, place, item, NULL);
    return status ? status : kva_tok_json_bool(place, item, "invert", false, &op->invert);
}

static enum kva_status add_regex(struct kva_tok_ops *ops, const struct kva_tok_place *place,
                                 const char *pattern, enum kva_split_behavior behavior, bool invert)
{
    struct kva_tok_op *op = kva_tok_ops_add(ops, KVA_OP_SPLIT);
    op->behavior = behavior;
    op->invert = invert;
    return kva_pattern_init_regex(&op->pattern, place, pattern);
}

static enum kva_status load_byte_level(struct kva_tok_ops *ops, const struct kva_tok_place *place,
                                       const cJSON *item)
{
    bool prefix, regex;
    enum kva_status status = kva_tok_json_bool(place, item, "add_prefix_space", true, &prefix);
    if (!status)
        status = kva_tok_json_bool(place, item, "use_regex", true, &regex);
    if (!status && prefix)
        status = kva_tok_op_set_content(kva_tok_ops_add(ops, KVA_OP_PREFIX), place, " ");
    if (!status && regex)
        status = add_regex(ops, place, BYTE_LEVEL_PATTERN, KVA_SPLIT_ISOLATED, false);
    if (!status)
        kva_tok_ops_add(ops, KVA_OP_BYTE_SPELL);
    return status;
}

static enum kva_status load_metaspace(struct kva_tok_ops *ops, const struct kva_tok_place *place,
                                      const cJSON *item)
{
    const char *replacement, *scheme;
    bool split, prefix;
    enum kva_status status = kva_tok_json_string(place, item, "replacement", &replacement);
    if (!status)
        status = kva_tok_json_string_optional(place, item, "prepend_scheme", &scheme);
    if (!status)
        status = kva_tok_json_bool(place, item, "add_prefix_space", true, &prefix);
    if (!status)
        status = kva_tok_json_bool(place, item, "split", true, &split);
    if (status)
        return status;
    scheme = scheme ? scheme : prefix ? "always" : "never";
    struct kva_tok_op *op = kva_tok_ops_add(ops, KVA_OP_REPLACE);
    status = kva_pattern_init_string(&op->pattern, place, " ");
    if (!status)
        status = kva_tok_op_set_content(op, place, replacement);
    if (!status && strcmp(scheme, "never") != 0) {
        if (strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0)
            return kva_tok_complain(place, KVA_EFORMAT, "prepend_scheme '%.60s' is unknown",
                                    scheme);
        op = kva_tok_ops_add(ops, KVA_OP_PREFIX);
        op->only_first = strcmp(scheme, "first") == 0;
        status = kva_tok_op_set_content(op, place, replacement);
    }
    if (!status && split) {
        op = kva_tok_ops_add(ops, KVA_OP_SPLIT);
        op->behavior = KVA_SPLIT_MERGED_WITH_NEXT;
        status = kva_pattern_init_string(&op->pattern, place, replacement);
    }
    return status;
}

static enum kva_status load_one(struct kva_tok_ops *ops, const struct kva_tok_place *place,
                                const char *type, const cJSON *item)
{
    struct kva_tok_op *op;
    bool individual;
    enum kva_status status;
    if (strcmp(type, "Split") == 0)
        return load_split(ops, place, item);
    if (strcmp(type, "ByteLevel") == 0)
        return load_byte_level(ops, place, item);
    if (strcmp(type, "Metaspace") == 0)
        return load_metaspace(ops, place, item);
    if (strcmp(type, "Digits") == 0) {
        status = kva_tok_json_bool(place, item, "individual_digits", false, &individual);
        op = kva_tok_ops_add(ops, KVA_OP_SPLIT);
        op->pattern.kind = KVA_PATTERN_NUMERIC;
        op->behavior = !status && individual ? KVA_SPLIT_ISOLATED : KVA_SPLIT_CONTIGUOUS;
        return status;
    }
    if (strcmp(type, "Punctuation") == 0) {
        op = kva_tok_ops_add(ops, KVA_OP_SPLIT);
        op->pattern.kind = KVA_PATTERN_PUNCTUATION;
        return load_behavior(op, place, item, "Isolated");
    }
    if (strcmp(type, "Whitespace") == 0)
        return add_regex(ops, place, "\\w+|[^\\w\\s]+", KVA_SPLIT_REMOVED, true);
    if (strcmp(type, "WhitespaceSplit") == 0) {
        op = kva_tok_ops_add(ops, KVA_OP_SPLIT);
        op->pattern.kind = KVA_PATTERN_WHITESPACE;
        op->behavior = KVA_SPLIT_REMOVED;
        return KVA_OK;
    }
    return kva_tok_complain(place, KVA_EUNSUPPORTED,
                            "pre-tokenizer of type '%.60s' is not supported", type);
}

enum kva_status kva_pretokenizer_load(struct kva_tok_ops *ops, bool *ret_bytes_mode,
                                      const struct kva_tok_place *place, const cJSON *component)
{
    struct kva_tok_json_list *list = malloc(sizeof(*list));
    if (!list)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory");
    enum kva_status status = kva_tok_json_flatten(place, component, "pretokenizers", list);
    for (uint32_t i = 0; !status && i < list->count; i++)
        status = load_one(ops, &list->places[i], list->types[i], list->items[i]);
    free(list);
    if (status)
        return status;
    /* A spelling that nothing looks at afterwards need not be written: BPE starts from bytes. */
    *ret_bytes_mode = ops->count > 0 && ops->items[ops->count - 1].kind == KVA_OP_BYTE_SPELL;
    ops->count -= *ret_bytes_mode;
    return KVA_OK;
}

/* ---- running -------------------------------------------------------------------------------- */

/* Puts the stretches of a scan together as the behavior says, and passes on what is complete. */
struct splitter {
    struct kva_encoder *encoder;
    const struct kva_tok_op *op;
    uint32_t next_op;
    const char *text;
    bool first;
    bool has_pending;
    bool pending_match; /* whether the last stretch was a match */
    size_t start, end;  /* the pending piece */
};

static enum kva_status splitter_pass(struct splitter *splitter)
{
    if (!splitter->has_pending || splitter->start == splitter->end)
        return KVA_OK;
    return kva_pretokenize(splitter->encoder, splitter->next_op, splitter->text + splitter->start,
                           splitter->end - splitter->start,
                           splitter->first && splitter->start == 0);
}

static enum kva_status splitter_add(struct splitter *splitter, size_t start, size_t end, bool match)
{
    bool join = false;
    match = match != splitter->op->invert;
    if (splitter->has_pending) {
        switch (splitter->op->behavior) {
        case KVA_SPLIT_CONTIGUOUS:
            join = match == splitter->pending_match;
            break;
        case KVA_SPLIT_MERGED_WITH_PREVIOUS:
            join = match && !splitter->pending_match;
            break;
        case KVA_SPLIT_MERGED_WITH_NEXT:
            join = !match && splitter->pending_match;
            break;
        case KVA_SPLIT_REMOVED:
        case KVA_SPLIT_ISOLATED:
            break;
        }
    }
    if (!join) {
        enum kva_status status = splitter_pass(splitter);
        if (status)
            return status;
        splitter->start = start;
    }
    splitter->end = end;
    splitter->has_pending = !(match && splitter->op->behavior == KVA_SPLIT_REMOVED);
    splitter->pending_match = match;
    return KVA_OK;
}

static enum kva_status run_split(struct kva_encoder *encoder, uint32_t op_index, const char *text,
                                 size_t length, bool first)
{
    struct splitter splitter = {
        .encoder = encoder,
        .op = &encoder->tokenizer->pretokenizer.items[op_index],
        .next_op = op_index + 1,
        .text = text,
        .first = first,
    };
    struct kva_scan scan = {.text = text, .length = length, .last_end = SIZE_MAX};
    size_t done = 0;
    for (;;) {
        bool found;
        size_t start = 0, end = 0;
        enum kva_status status =
            kva_pattern_next(&splitter.op->pattern, &encoder->matcher, &scan, &found, &start, &end);
        if (!status && !found)
            start = length;
        if (!status && start > done)
            status = splitter_add(&splitter, done, start, false);
        if (!status && !found)
            return splitter_pass(&splitter);
        if (!status)
            status = splitter_add(&splitter, start, end, true);
        if (status)
            return status;
        done = end;
    }
}

static enum kva_status run_prefix(struct kva_encoder *encoder, uint32_t op_index, const char *text,
                                  size_t length, bool first)
{
    const struct kva_tok_op *op = &encoder->tokenizer->pretokenizer.items[op_index];
    bool has = length >= op->content_length && memcmp(text, op->content, op->content_length) == 0;
    if (has || (op->only_first && !first))
        return kva_pretokenize(encoder, op_index + 1, text, length, first);
    struct kva_buf *buf = &encoder->op_buffers[op_index];
    kva_buf_clear(buf);
    kva_buf_append(buf, op->content, op->content_length);
    kva_buf_append(buf, text, length);
    if (buf->failed)
        return kva_fail(encoder->matcher.err, KVA_ETOOBIG,
                        "the text grows beyond %zu bytes when it is split", buf->max_bytes);
    return kva_pretokenize(encoder, op_index + 1, buf->data, buf->length, first);
}

/* Each operation has a buffer of its own, which stays as it is while the later ones run. The depth
 * of this recursion is the number of operations. */
enum kva_status kva_pretokenize(struct kva_encoder *encoder, uint32_t op_index, const char *text,
                                size_t length, bool first)
{
    const struct kva_tok_ops *ops = &encoder->tokenizer->pretokenizer;
    if (length == 0)
        return KVA_OK;
    if (op_index == ops->count)
        return kva_bpe_encode(encoder, text, length);
    if (ops->items[op_index].kind == KVA_OP_SPLIT)
        return run_split(encoder, op_index, text, length, first);
    if (ops->items[op_index].kind == KVA_OP_PREFIX)
        return run_prefix(encoder, op_index, text, length, first);
    struct kva_buf *buf = &encoder->op_buffers[op_index];
    bool changed;
    enum kva_status status =
        kva_tok_op_run(&ops->items[op_index], &encoder->matcher, text, length, buf, &changed);
    if (status)
        return status;
    if (changed) {
        text = buf->data;
        length = buf->length;
    }
    return kva_pretokenize(encoder, op_index + 1, text, length, first);
}
