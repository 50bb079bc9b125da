/* unicode.c - Unicode normalization forms in linear time.
 *
 * utf8proc has the tables and composes; its canonical ordering is a bubble sort, quadratic in a run
 * of combining marks, which a text may make as long as it likes. So characters are decomposed one
 * by one here and runs of marks are put in order with a counting sort. */
#include "text/tokenizer/internal.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct code_list {
    utf8proc_int32_t *codes;
    size_t count, capacity;
};

static bool list_reserve(struct code_list *list, size_t extra)
{
    if (list->count + extra <= list->capacity)
        return true;
    size_t capacity = kva_max_size(list->capacity * 2, list->count + extra + 64);
    utf8proc_int32_t *codes = realloc(list->codes, capacity * sizeof(*codes));
    if (!codes)
        return false;
    list->codes = codes;
    list->capacity = capacity;
    return true;
}

static uint8_t mark_class(utf8proc_int32_t code)
{
    if (code < 0x300)
        return 0;
    return (uint8_t)utf8proc_get_property(code)->combining_class;
}

/* A stable sort by combining class; `scratch` has room for `count` codes. */
static void sort_marks(utf8proc_int32_t *codes, size_t count, utf8proc_int32_t *scratch)
{
    if (count <= 16) {
        for (size_t i = 1; i < count; i++) {
            utf8proc_int32_t code = codes[i];
            size_t at = i;
            for (; at > 0 && mark_class(codes[at - 1]) > mark_class(code); at--)
                codes[at] = codes[at - 1];
            codes[at] = code;
        }
        return;
    }
    size_t starts[257] = {0};
    for (size_t i = 0; i < count; i++)
        starts[mark_class(codes[i]) + 1]++;
    for (size_t i = 1; i < 257; i++)
        starts[i] += starts[i - 1];
    for (size_t i = 0; i < count; i++)
        scratch[starts[mark_class(codes[i])]++] = codes[i];
    memcpy(codes, scratch, count * sizeof(*codes));
}

static bool order_marks(struct code_list *list)
{
    utf8proc_int32_t *scratch = NULL;
    size_t scratch_count = 0;
    for (size_t at = 0; at < list->count;) {
        size_t end = at;
        while (end < list->count && mark_class(list->codes[end]) != 0)
            end++;
        size_t run = end - at;
        if (run > 16 && run > scratch_count) {
            free(scratch);
            scratch_count = run * 2;
            scratch = malloc(scratch_count * sizeof(*scratch));
            if (!scratch)
                return false;
        }
        if (run > 1)
            sort_marks(list->codes + at, run, scratch);
        at = end + 1;
    }
    free(scratch);
    return true;
}

static bool decompose(const char *text, size_t length, int options, struct code_list *list)
{
    for (size_t at = 0; at < length;) {
        int size = kva_utf8_sequence(text + at, length - at, NULL);
        utf8proc_int32_t code = (utf8proc_int32_t)kva_utf8_decode(text + at, size);
        at += (size_t)size;
        /* No character decomposes to more than 18. */
        if (!list_reserve(list, 32))
            return false;
        if (code < 0x80) {
            list->codes[list->count++] = code;
            continue;
        }
        int boundary = UTF8PROC_BOUNDCLASS_START;
        utf8proc_ssize_t wrote = utf8proc_decompose_char(code, list->codes + list->count, 32,
                                                         (utf8proc_option_t)options, &boundary);
        if (wrote < 0 || wrote > 32)
            return false;
        list->count += (size_t)wrote;
    }
    return true;
}

/* Whether every character is below the first that the form can change, alone or with marks. */
static bool is_stable(enum kva_tok_op_kind form, const char *text, size_t length)
{
    /* U+00A0 is the first with a compatibility form, U+00C0 the first with a canonical one, U+0300
     * the first mark. */
    unsigned char first = form == KVA_OP_NFC ? 0xCC : form == KVA_OP_NFD ? 0xC3 : 0xC2;
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] >= first)
            return false;
    }
    return true;
}

enum kva_status kva_unicode_normalize(enum kva_tok_op_kind form, const char *text, size_t length,
                                      struct kva_buf *out, bool *ret_changed)
{
    bool composed = form == KVA_OP_NFC || form == KVA_OP_NFKC;
    bool compatible = form == KVA_OP_NFKC || form == KVA_OP_NFKD;
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    *ret_changed = !is_stable(form, text, length);
    if (!*ret_changed)
        return KVA_OK;
    struct code_list list = {.codes = NULL};
    utf8proc_ssize_t count = -1;
    if (decompose(text, length, options, &list) && order_marks(&list))
        count = (utf8proc_ssize_t)list.count;
    if (count > 0 && composed)
        count = utf8proc_normalize_utf32(list.codes, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        char bytes[4];
        kva_buf_append(out, bytes, (size_t)kva_utf8_encode((uint32_t)list.codes[i], bytes));
    }
    free(list.codes);
    return count < 0 ? KVA_ENOMEM : KVA_OK;
}
