/* normalizer.c - normalizers: loading and running them. */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

void kva_tok_ops_finish(struct kva_tok_ops *ops)
{
    for (uint32_t i = 0; i < ops->count; i++) {
        kva_pattern_finish(&ops->items[i].pattern);
        free(ops->items[i].content);
    }
    ops->count = 0;
}

struct kva_tok_op *kva_tok_ops_add(struct kva_tok_ops *ops, enum kva_tok_op_kind kind)
{
    struct kva_tok_op *op = &ops->items[ops->count++];
    *op = (struct kva_tok_op){.kind = kind};
    return op;
}

enum kva_status kva_tok_op_set_content(struct kva_tok_op *op, const struct kva_tok_place *place,
                                       const char *content)
{
    op->content_length = strlen(content);
    op->content = strdup(content);
    return op->content ? KVA_OK : kva_tok_complain(place, KVA_ENOMEM, "no memory");
}

/* ---- loading -------------------------------------------------------------------------------- */

static enum kva_status load_strip(struct kva_tok_op *op, const struct kva_tok_place *place,
                                  const cJSON *item)
{
    enum kva_status status = kva_tok_json_bool(place, item, "strip_left", false, &op->left);
    return status ? status : kva_tok_json_bool(place, item, "strip_right", false, &op->right);
}

static enum kva_status load_one(struct kva_tok_ops *ops, const struct kva_tok_place *place,
                                const char *type, const cJSON *item)
{
    static const struct {
        const char *type;
        enum kva_tok_op_kind kind;
    } plain[] = {
        {"NFC", KVA_OP_NFC},
        {"NFD", KVA_OP_NFD},
        {"NFKC", KVA_OP_NFKC},
        {"NFKD", KVA_OP_NFKD},
        {"Lowercase", KVA_OP_LOWERCASE},
        {"StripAccents", KVA_OP_STRIP_ACCENTS},
        {"ByteLevel", KVA_OP_BYTE_SPELL},
    };
    const char *content;
    enum kva_status status;
    for (size_t i = 0; i < KVA_COUNT_OF(plain); i++) {
        if (strcmp(type, plain[i].type) == 0) {
            kva_tok_ops_add(ops, plain[i].kind);
            return KVA_OK;
        }
    }
    if (strcmp(type, "Strip") == 0)
        return load_strip(kva_tok_ops_add(ops, KVA_OP_STRIP), place, item);
    if (strcmp(type, "Prepend") == 0) {
        status = kva_tok_json_string(place, item, "prepend", &content);
        return status
                   ? status
                   : kva_tok_op_set_content(kva_tok_ops_add(ops, KVA_OP_PREPEND), place, content);
    }
    if (strcmp(type, "Replace") == 0) {
        struct kva_tok_op *op = kva_tok_ops_add(ops, KVA_OP_REPLACE);
        status = kva_pattern_load(&op->pattern, place, item);
        if (!status)
            status = kva_tok_json_string(place, item, "content", &content);
        return status ? status : kva_tok_op_set_content(op, place, content);
    }
    return kva_tok_complain(place, KVA_EUNSUPPORTED, "normalizer of type '%.60s' is not supported",
                            type);
}

enum kva_status kva_normalizer_load(struct kva_tok_ops *ops, const struct kva_tok_place *place,
                                    const cJSON *component)
{
    struct kva_tok_json_list *list = malloc(sizeof(*list));
    if (!list)
        return kva_tok_complain(place, KVA_ENOMEM, "no memory");
    enum kva_status status = kva_tok_json_flatten(place, component, "normalizers", list);
    for (uint32_t i = 0; !status && i < list->count; i++)
        status = load_one(ops, &list->places[i], list->types[i], list->items[i]);
    free(list);
    return status;
}

/* ---- running -------------------------------------------------------------------------------- */

static enum kva_status run_replace(const struct kva_tok_op *op, struct kva_matcher *matcher,
                                   const char *text, size_t length, struct kva_buf *out,
                                   bool *ret_changed)
{
    struct kva_scan scan = {.text = text, .length = length, .last_end = SIZE_MAX};
    size_t copied = 0;
    *ret_changed = false;
    for (;;) {
        bool found;
        size_t start, end;
        enum kva_status status =
            kva_pattern_next(&op->pattern, matcher, &scan, &found, &start, &end);
        if (status || !found || out->failed) {
            if (*ret_changed)
                kva_buf_append(out, text + copied, length - copied);
            return status;
        }
        kva_buf_append(out, text + copied, start - copied);
        kva_buf_append(out, op->content, op->content_length);
        copied = end;
        *ret_changed = true;
    }
}

static void run_lowercase(const char *text, size_t length, struct kva_buf *out)
{
    if (!kva_buf_reserve(out, length))
        return;
    for (size_t at = 0; at < length;) {
        char bytes[4];
        int size = kva_utf8_sequence(text + at, length - at, NULL);
        uint32_t code = kva_utf8_decode(text + at, size);
        at += (size_t)size;
        if (code == 0x130) {
            /* The only character whose full lower case is longer than its simple one. */
            kva_buf_append(out, "i\xCC\x87", 3);
            continue;
        }
        code = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
        kva_buf_append(out, bytes, (size_t)kva_utf8_encode(code, bytes));
    }
}

static void run_strip_accents(const char *text, size_t length, struct kva_buf *out)
{
    for (size_t at = 0; at < length;) {
        int size = kva_utf8_sequence(text + at, length - at, NULL);
        utf8proc_category_t category =
            utf8proc_category((utf8proc_int32_t)kva_utf8_decode(text + at, size));
        if (category < UTF8PROC_CATEGORY_MN || category > UTF8PROC_CATEGORY_ME)
            kva_buf_append(out, text + at, (size_t)size);
        at += (size_t)size;
    }
}

static void run_strip(const struct kva_tok_op *op, const char *text, size_t length,
                      struct kva_buf *out)
{
    while (op->left && length > 0) {
        int size = kva_utf8_sequence(text, length, NULL);
        if (!kva_code_is_space(kva_utf8_decode(text, size)))
            break;
        text += size;
        length -= (size_t)size;
    }
    while (op->right && length > 0) {
        size_t start = length - 1;
        while (start > 0 && ((unsigned char)text[start] & 0xC0) == 0x80)
            start--;
        if (!kva_code_is_space(kva_utf8_decode(text + start, (int)(length - start))))
            break;
        length = start;
    }
    kva_buf_append(out, text, length);
}

enum kva_status kva_tok_op_run(const struct kva_tok_op *op, struct kva_matcher *matcher,
                               const char *text, size_t length, struct kva_buf *out,
                               bool *ret_changed)
{
    enum kva_status status = KVA_OK;
    kva_buf_clear(out);
    *ret_changed = true;
    switch (op->kind) {
    case KVA_OP_NFC:
    case KVA_OP_NFD:
    case KVA_OP_NFKC:
    case KVA_OP_NFKD:
        status = kva_unicode_normalize(op->kind, text, length, out, ret_changed);
        break;
    case KVA_OP_LOWERCASE:
        run_lowercase(text, length, out);
        break;
    case KVA_OP_STRIP:
        run_strip(op, text, length, out);
        break;
    case KVA_OP_STRIP_ACCENTS:
        run_strip_accents(text, length, out);
        break;
    case KVA_OP_PREPEND:
        *ret_changed = length > 0;
        if (length > 0) {
            kva_buf_append(out, op->content, op->content_length);
            kva_buf_append(out, text, length);
        }
        break;
    case KVA_OP_REPLACE:
        status = run_replace(op, matcher, text, length, out, ret_changed);
        break;
    case KVA_OP_BYTE_SPELL:
        kva_bytelevel_spell(out, text, length);
        break;
    case KVA_OP_SPLIT:
    case KVA_OP_PREFIX:
        *ret_changed = false;
        break;
    }
    if (!status && out->failed)
        status = kva_fail(matcher->err, KVA_ETOOBIG,
                          "the text grows beyond %zu bytes when it is normalized", out->max_bytes);
    return status;
}

enum kva_status kva_normalize(const struct kva_tok_ops *ops, struct kva_matcher *matcher,
                              struct kva_buf buffers[2], const char **text, size_t *length)
{
    for (uint32_t i = 0; i < ops->count; i++) {
        /* The text is in the other buffer, or the caller's. */
        struct kva_buf *out = *text == buffers[0].data ? &buffers[1] : &buffers[0];
        bool changed;
        enum kva_status status =
            kva_tok_op_run(&ops->items[i], matcher, *text, *length, out, &changed);
        if (status)
            return status;
        if (changed) {
            *text = out->data ? out->data : "";
            *length = out->length;
        }
    }
    return KVA_OK;
}
