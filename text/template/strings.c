/* What string methods and text filters share: case, strip, replace, lines. */
#include "text/template/builtins.h"

#include "text/template/text.h"

#include <string.h>

enum kva_status kva_tpl_change_case(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                                    int mode, struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *text = string->as.string;
    bool safe = string->safe;
    KVA_TPL_TRY(kva_tpl_charge(run, text->length / 8));
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    kva_tpl_put_case(&buf, text->data, text->length, (enum kva_tpl_case)mode);
    KVA_TPL_TRY(kva_tpl_buf_take(run, &buf, ret));
    ret->safe = safe;
    return KVA_OK;
}

enum kva_status kva_tpl_ignore_case(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                    struct kva_tpl_value *ret)
{
    if (value->type == KVA_TPL_STRING)
        return kva_tpl_change_case(run, value, KVA_TPL_CASE_LOWER, ret);
    *ret = *value;
    return KVA_OK;
}

/* Appends `text` with `old` replaced. An empty `old` stands before every character and at the end.
 */
static void put_replaced(struct kva_buf *buf, const struct kva_tpl_str *text,
                         const struct kva_tpl_str *old, const struct kva_tpl_str *with,
                         int64_t count)
{
    size_t at = 0;
    while (count != 0 && !buf->failed) {
        size_t found = kva_tpl_find(text->data, text->length, at, old->data, old->length);
        if (found == SIZE_MAX)
            break;
        kva_buf_append(buf, text->data + at, found - at);
        kva_buf_append(buf, with->data, with->length);
        at = found + old->length;
        count--;
        if (old->length == 0) {
            if (at >= text->length)
                break;
            size_t bytes = (size_t)kva_tpl_char_bytes(text->data + at);
            kva_buf_append(buf, text->data + at, bytes);
            at += bytes;
        }
    }
    kva_buf_append(buf, text->data + at, text->length - at);
}

enum kva_status kva_tpl_replace(struct kva_tpl_run *run, const struct kva_tpl_str *text,
                                const struct kva_tpl_str *old, const struct kva_tpl_str *with,
                                int64_t count, struct kva_tpl_value *ret)
{
    KVA_TPL_TRY(kva_tpl_charge(run, text->length / 16));
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    put_replaced(&buf, text, old, with, count);
    return kva_tpl_buf_take(run, &buf, ret);
}

/* Whether the character at `text` is to be stripped. */
static bool is_stripped(const char *text, const struct kva_tpl_str *chars)
{
    int bytes;
    uint32_t code = kva_tpl_char(text, &bytes);
    if (!chars)
        return kva_tpl_is_space(code);
    return kva_tpl_find(chars->data, chars->length, 0, text, (size_t)bytes) != SIZE_MAX;
}

enum kva_status kva_tpl_strip(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                              const struct kva_tpl_str *chars, bool left, bool right,
                              struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *text = string->as.string;
    size_t start = 0;
    size_t end = text->length;
    while (left && start < end && is_stripped(text->data + start, chars))
        start += (size_t)kva_tpl_char_bytes(text->data + start);
    while (right && end > start) {
        size_t bytes = kva_tpl_last_char_bytes(text->data, end);
        if (!is_stripped(text->data + end - bytes, chars))
            break;
        end -= bytes;
    }
    size_t steps = (text->length - (end - start)) / 8;
    KVA_TPL_TRY(kva_tpl_charge(run, chars ? steps * (1 + chars->length / 64) : steps));
    return kva_tpl_piece(run, string, start, end - start, ret);
}

/* Bytes of the line break at `at`, 0 if there is none. */
static size_t line_break(const struct kva_tpl_str *text, size_t at)
{
    int bytes;
    if (!kva_tpl_is_line_break(kva_tpl_char(text->data + at, &bytes)))
        return 0;
    if (text->data[at] == '\r' && at + 1 < text->length && text->data[at + 1] == '\n')
        return 2;
    return (size_t)bytes;
}

enum kva_status kva_tpl_split_lines(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                                    bool keep_ends, struct kva_tpl_value *ret)
{
    struct kva_tpl_value owner = *string;
    const struct kva_tpl_str *text = owner.as.string;
    KVA_TPL_TRY(kva_tpl_charge(run, text->length / 16));
    KVA_TPL_TRY(kva_tpl_list_new(run, KVA_TPL_LIST, 0, ret));
    size_t start = 0;
    size_t at = 0;
    while (at < text->length) {
        size_t bytes = line_break(text, at);
        size_t end = at + (keep_ends ? bytes : 0);
        at += bytes ? bytes : (size_t)kva_tpl_char_bytes(text->data + at);
        if (!bytes && at < text->length)
            continue;
        if (!bytes)
            end = at;
        struct kva_tpl_value line;
        KVA_TPL_TRY(kva_tpl_piece(run, &owner, start, end - start, &line));
        KVA_TPL_TRY(kva_tpl_list_add(run, ret->as.list, &line));
        start = at;
    }
    return KVA_OK;
}
