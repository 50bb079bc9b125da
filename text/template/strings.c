/* strings.c - what string methods and text filters share: searching, case, strip, replace, lines.
 */
#include "text/template/builtins.h"

#include "text/template/text.h"

#include <string.h>

/* memmem looks at a needle of this length or less once for each byte of the text, at worst; longer
 * ones it finds in linear time (two-way). */
#define SHORT_NEEDLE_BYTES 256

/* Below this the product of the lengths is less than what a backward search prepares. */
#define SMALL_SEARCH 4096

enum kva_status kva_tpl_charge_search(struct kva_tpl_run *run, size_t length, size_t needle_length)
{
    if (needle_length > length)
        return KVA_OK;
    if (needle_length <= 1)
        return kva_tpl_charge(run, KVA_TPL_BYTES, length);
    size_t looks = length / 32 * kva_min_size(needle_length, SHORT_NEEDLE_BYTES);
    return kva_tpl_charge(run, KVA_TPL_CHARS, length + looks + needle_length);
}

/* A copy with the last byte first. */
static bool put_reversed(struct kva_buf *buf, const char *text, size_t length)
{
    if (!kva_buf_reserve(buf, length))
        return false;
    for (size_t i = 0; i < length; i++)
        buf->data[i] = text[length - 1 - i];
    buf->data[length] = '\0';
    buf->length = length;
    return true;
}

enum kva_status kva_tpl_backward_init(struct kva_tpl_run *run, const char *text, size_t length,
                                      const struct kva_tpl_str *needle,
                                      struct kva_tpl_backward *search)
{
    kva_tpl_buf_init(run, &search->text);
    kva_tpl_buf_init(run, &search->needle);
    search->from = 0;
    KVA_TPL_TRY(kva_tpl_charge_search(run, length, needle->length));
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, length + needle->length));
    if (put_reversed(&search->text, text, length) &&
        put_reversed(&search->needle, needle->data, needle->length))
        return KVA_OK;
    enum kva_status status =
        kva_tpl_buf_fail(run, search->text.failed ? &search->text : &search->needle,
                         run->limits->heap_bytes_max, "text (limit heap_bytes_max)");
    kva_tpl_backward_finish(search);
    return status;
}

size_t kva_tpl_backward_next(struct kva_tpl_backward *search)
{
    size_t found = kva_tpl_find(search->text.data, search->text.length, search->from,
                                search->needle.data, search->needle.length);
    if (found == SIZE_MAX)
        return SIZE_MAX;
    search->from = found + search->needle.length;
    return search->text.length - search->from;
}

void kva_tpl_backward_finish(struct kva_tpl_backward *search)
{
    kva_buf_finish(&search->text);
    kva_buf_finish(&search->needle);
}

static enum kva_status search_backward(struct kva_tpl_run *run, const char *text, size_t length,
                                       const struct kva_tpl_str *needle, size_t *ret)
{
    *ret = SIZE_MAX;
    if (needle->length > length)
        return KVA_OK;
    size_t starts = length - needle->length + 1;
    if (needle->length <= 1 || starts < SMALL_SEARCH / needle->length) {
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, starts * kva_max_size(needle->length, 1)));
        for (size_t at = starts; at-- > 0 && *ret == SIZE_MAX;) {
            if (needle->length == 0 || memcmp(text + at, needle->data, needle->length) == 0)
                *ret = at;
        }
        return KVA_OK;
    }
    struct kva_tpl_backward search;
    KVA_TPL_TRY(kva_tpl_backward_init(run, text, length, needle, &search));
    *ret = kva_tpl_backward_next(&search);
    kva_tpl_backward_finish(&search);
    return KVA_OK;
}

enum kva_status kva_tpl_search(struct kva_tpl_run *run, const char *text, size_t length,
                               const struct kva_tpl_str *needle, bool last, size_t *ret)
{
    if (last)
        return search_backward(run, text, length, needle, ret);
    KVA_TPL_TRY(kva_tpl_charge_search(run, length, needle->length));
    *ret = kva_tpl_find(text, length, 0, needle->data, needle->length);
    return KVA_OK;
}

enum kva_status kva_tpl_change_case(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                                    int mode, struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *text = string->as.string;
    bool safe = string->safe;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, text->length));
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
static enum kva_status put_replaced(struct kva_tpl_run *run, struct kva_buf *buf,
                                    const struct kva_tpl_str *text, const struct kva_tpl_str *old,
                                    const struct kva_tpl_str *with, int64_t count)
{
    size_t at = 0;
    while (count != 0 && !buf->failed) {
        size_t found = kva_tpl_find(text->data, text->length, at, old->data, old->length);
        if (found == SIZE_MAX)
            break;
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_NODES, 1));
        KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, with->length));
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
    return KVA_OK;
}

enum kva_status kva_tpl_replace(struct kva_tpl_run *run, const struct kva_tpl_str *text,
                                const struct kva_tpl_str *old, const struct kva_tpl_str *with,
                                int64_t count, struct kva_tpl_value *ret)
{
    KVA_TPL_TRY(kva_tpl_charge_search(run, text->length, old->length));
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, text->length));
    struct kva_buf buf;
    kva_tpl_buf_init(run, &buf);
    enum kva_status status = put_replaced(run, &buf, text, old, with, count);
    if (status) {
        kva_buf_finish(&buf);
        return status;
    }
    return kva_tpl_buf_take(run, &buf, ret);
}

/* The characters to strip. */
struct strip_set {
    const struct kva_tpl_str *chars; /* NULL: white space */
    bool ascii[128];
};

static enum kva_status strip_set_init(struct kva_tpl_run *run, const struct kva_tpl_str *chars,
                                      struct strip_set *set)
{
    *set = (struct strip_set){.chars = chars};
    if (!chars)
        return KVA_OK;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, chars->length));
    for (size_t i = 0; i < chars->length; i++) {
        if ((unsigned char)chars->data[i] < 0x80)
            set->ascii[(unsigned char)chars->data[i]] = true;
    }
    return KVA_OK;
}

/* Whether the character at `text` is to be stripped. */
static enum kva_status is_stripped(struct kva_tpl_run *run, const struct strip_set *set,
                                   const char *text, bool *ret)
{
    int bytes;
    uint32_t code = kva_tpl_char(text, &bytes);
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, 1));
    if (!set->chars) {
        *ret = kva_tpl_is_space(code);
    } else if (code < 0x80) {
        *ret = set->ascii[code];
    } else {
        KVA_TPL_TRY(kva_tpl_charge_search(run, set->chars->length, (size_t)bytes));
        *ret =
            kva_tpl_find(set->chars->data, set->chars->length, 0, text, (size_t)bytes) != SIZE_MAX;
    }
    return KVA_OK;
}

enum kva_status kva_tpl_strip(struct kva_tpl_run *run, const struct kva_tpl_invocation *in,
                              const struct kva_tpl_value *string, bool left, bool right,
                              struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *chars = NULL;
    if (kva_tpl_arg_given(in, 0) && in->args[0].type != KVA_TPL_NONE)
        KVA_TPL_TRY(kva_tpl_arg_string(run, in, 0, &chars));
    const struct kva_tpl_str *text = string->as.string;
    size_t start = 0;
    size_t end = text->length;
    struct strip_set set;
    KVA_TPL_TRY(strip_set_init(run, chars, &set));
    for (bool more = left; more && start < end;) {
        KVA_TPL_TRY(is_stripped(run, &set, text->data + start, &more));
        if (more)
            start += (size_t)kva_tpl_char_bytes(text->data + start);
    }
    for (bool more = right; more && end > start;) {
        size_t bytes = kva_tpl_last_char_bytes(text->data, end);
        KVA_TPL_TRY(is_stripped(run, &set, text->data + end - bytes, &more));
        if (more)
            end -= bytes;
    }
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
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, text->length));
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
