/* text.c - classes of characters, by utf8proc. */
#include "text/template/text.h"

#include "base/utf8.h"

#include <string.h>
#include <utf8proc.h>

int kva_tpl_char_bytes(const char *text)
{
    unsigned char lead = (unsigned char)*text;
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

uint32_t kva_tpl_char(const char *text, int *ret_bytes)
{
    int bytes = kva_tpl_char_bytes(text);
    if (ret_bytes)
        *ret_bytes = bytes;
    return kva_utf8_decode(text, bytes);
}

size_t kva_tpl_last_char_bytes(const char *text, size_t length)
{
    size_t bytes = 1;
    while (bytes < length && ((unsigned char)text[length - bytes] & 0xC0) == 0x80)
        bytes++;
    return bytes;
}

size_t kva_tpl_char_count(const char *text, size_t length)
{
    size_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

size_t kva_tpl_char_offset(const char *text, size_t length, size_t index)
{
    size_t at = 0;
    while (index > 0 && at < length) {
        at += (size_t)kva_tpl_char_bytes(text + at);
        index--;
    }
    return at;
}

bool kva_tpl_is_space(uint32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= 9 && code <= 13) || (code >= 28 && code <= 31);
    switch (code) {
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
        return true;
    default:
        return code >= 0x2000 && code <= 0x200A;
    }
}

bool kva_tpl_is_line_break(uint32_t code)
{
    return (code >= 10 && code <= 13) || (code >= 28 && code <= 30) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

static utf8proc_category_t category(uint32_t code)
{
    return utf8proc_category((utf8proc_int32_t)code);
}

bool kva_tpl_is_printable(uint32_t code)
{
    if (code < 0x80)
        return code >= 0x20 && code < 0x7F;
    switch (category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

bool kva_tpl_is_alpha(uint32_t code)
{
    utf8proc_category_t c = category(code);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool kva_tpl_is_decimal(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_ND;
}

bool kva_tpl_is_upper(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_LU;
}

bool kva_tpl_is_lower(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_LL;
}

bool kva_tpl_is_word(uint32_t code)
{
    if (code < 0x80)
        return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z') ||
               (code >= '0' && code <= '9') || code == '_';
    utf8proc_category_t c = category(code);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC;
}

size_t kva_tpl_leading_space(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length) {
        int bytes;
        if (!kva_tpl_is_space(kva_tpl_char(text + at, &bytes)))
            break;
        at += (size_t)bytes;
    }
    return at;
}

size_t kva_tpl_trailing_space(const char *text, size_t length)
{
    size_t end = length;
    while (end > 0) {
        size_t bytes = kva_tpl_last_char_bytes(text, end);
        if (!kva_tpl_is_space(kva_tpl_char(text + end - bytes, NULL)))
            break;
        end -= bytes;
    }
    return length - end;
}

/* Characters whose upper case is longer than one character; `title` is the same with a small
 * second letter. */
static const struct {
    uint32_t code;
    const char *upper, *title;
} long_upper[] = {
    {0xDF, "SS", "Ss"},     {0x149, "\xCA\xBCN", "\xCA\xBCN"},
    {0xFB00, "FF", "Ff"},   {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"},   {0xFB03, "FFI", "Ffi"},
    {0xFB04, "FFL", "Ffl"}, {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"},
};

enum letter_case {
    LETTER_LOWER,
    LETTER_UPPER,
    LETTER_TITLE,
};

static void put_letter(struct kva_buf *buf, uint32_t code, enum letter_case want)
{
    if (want == LETTER_LOWER) {
        /* The one lower case that is longer than one character. */
        if (code == 0x130) {
            kva_buf_puts(buf, "i\xCC\x87");
            return;
        }
        code = (uint32_t)utf8proc_tolower((utf8proc_int32_t)code);
    } else {
        for (size_t i = 0; i < KVA_COUNT_OF(long_upper); i++) {
            if (long_upper[i].code == code) {
                kva_buf_puts(buf, want == LETTER_UPPER ? long_upper[i].upper : long_upper[i].title);
                return;
            }
        }
        code = want == LETTER_UPPER ? (uint32_t)utf8proc_toupper((utf8proc_int32_t)code)
                                    : (uint32_t)utf8proc_totitle((utf8proc_int32_t)code);
    }
    char bytes[4];
    kva_buf_append(buf, bytes, (size_t)kva_utf8_encode(code, bytes));
}

static bool is_cased(uint32_t code)
{
    if (code < 0x80)
        return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
    utf8proc_category_t c = category(code);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

void kva_tpl_put_case(struct kva_buf *buf, const char *text, size_t length, enum kva_tpl_case mode)
{
    bool inside = false;
    size_t at = 0;
    while (at < length) {
        int bytes;
        uint32_t code = kva_tpl_char(text + at, &bytes);
        at += (size_t)bytes;
        switch (mode) {
        case KVA_TPL_CASE_LOWER:
            put_letter(buf, code, LETTER_LOWER);
            break;
        case KVA_TPL_CASE_UPPER:
            put_letter(buf, code, LETTER_UPPER);
            break;
        case KVA_TPL_CASE_SWAP:
            put_letter(buf, code, kva_tpl_is_upper(code) ? LETTER_LOWER : LETTER_UPPER);
            break;
        default:
            put_letter(buf, code, inside ? LETTER_LOWER : LETTER_TITLE);
            inside = mode == KVA_TPL_CASE_CAPITALIZE || is_cased(code);
            break;
        }
    }
}

size_t kva_tpl_find(const char *text, size_t length, size_t from, const char *needle,
                    size_t needle_length)
{
    if (from > length || needle_length > length - from)
        return SIZE_MAX;
    if (needle_length == 0)
        return from;
    const char *found = memmem(text + from, length - from, needle, needle_length);
    return found ? (size_t)(found - text) : SIZE_MAX;
}
