/* literals.c - numbers and strings in expressions. */
#include "text/template/lexer.h"

#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>

static bool is_digit(char c, int base)
{
    if (base <= 10)
        return c >= '0' && c < '0' + base;
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Digits with single underscores between them, from `position`; where they end. */
static size_t skip_digits(const struct kva_tpl_lexer *lexer, size_t position, int base)
{
    size_t at = position;
    while (is_digit(kva_tpl_lexer_at(lexer, at), base) ||
           (at > position && kva_tpl_lexer_at(lexer, at) == '_' &&
            is_digit(kva_tpl_lexer_at(lexer, at + 1), base)))
        at++;
    return at;
}

/* Where the number that starts at lexer->at ends if it is a float, else 0. */
static size_t float_end(const struct kva_tpl_lexer *lexer)
{
    /* In a.0.1 both are integers. */
    if (lexer->at > 0 && lexer->source[lexer->at - 1] == '.')
        return 0;
    size_t at = skip_digits(lexer, lexer->at, 10);
    bool is_float = false;
    if (kva_tpl_lexer_at(lexer, at) == '.' && is_digit(kva_tpl_lexer_at(lexer, at + 1), 10)) {
        at = skip_digits(lexer, at + 1, 10);
        is_float = true;
    }
    char e = kva_tpl_lexer_at(lexer, at);
    if (e == 'e' || e == 'E') {
        char sign = kva_tpl_lexer_at(lexer, at + 1);
        size_t digits = at + 1 + (sign == '+' || sign == '-');
        if (is_digit(kva_tpl_lexer_at(lexer, digits), 10)) {
            at = skip_digits(lexer, digits, 10);
            is_float = true;
        }
    }
    return is_float ? at : 0;
}

enum kva_status kva_tpl_lex_number(struct kva_tpl_lexer *lexer, struct kva_tpl_token *ret)
{
    size_t end = float_end(lexer);
    bool is_float = end != 0;
    size_t start = lexer->at;
    int base = 10;
    if (!is_float && kva_tpl_lexer_peek(lexer, 0) == '0') {
        char mark = (char)(kva_tpl_lexer_peek(lexer, 1) | 0x20);
        base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
        if (base != 10) {
            start += 2;
            /* 0x_ff: one underscore may follow the base. */
            start += kva_tpl_lexer_at(lexer, start) == '_';
        }
    }
    if (!is_float)
        end = skip_digits(lexer, start, base);
    /* A decimal integer has no leading zeros: 0777 is a zero, and then an error. */
    if (!is_float && base == 10 && lexer->source[start] == '0') {
        end = start + 1;
        while (kva_tpl_lexer_at(lexer, end) == '0' ||
               (kva_tpl_lexer_at(lexer, end) == '_' && kva_tpl_lexer_at(lexer, end + 1) == '0'))
            end++;
    }
    char digits[512];
    size_t count = 0;
    for (size_t i = start; i < end; i++) {
        if (lexer->source[i] == '_')
            continue;
        if (count + 1 >= sizeof(digits))
            return kva_tpl_lexer_fail(lexer, "a number of more than 511 digits");
        digits[count++] = lexer->source[i];
    }
    digits[count] = '\0';
    if (count == 0)
        return kva_tpl_lexer_fail(lexer, "a number without digits");
    ret->type = is_float ? KVA_TPL_TOKEN_FLOAT : KVA_TPL_TOKEN_INT;
    errno = 0;
    if (is_float)
        ret->number = strtod(digits, NULL);
    else
        ret->integer = strtoll(digits, NULL, base);
    if (!is_float && errno == ERANGE)
        return kva_tpl_lexer_fail(lexer, "an integer that does not fit into 64 bits");
    kva_tpl_lexer_advance(lexer, end);
    return KVA_OK;
}

/* `digits` hexadecimal digits at `at`; false if they are not there. */
static bool hex_value(const char *at, const char *end, int digits, uint32_t *ret)
{
    if (end - at < digits)
        return false;
    uint32_t value = 0;
    for (int i = 0; i < digits; i++) {
        char c = at[i];
        if (!is_digit(c, 16))
            return false;
        value = value << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    *ret = value;
    return true;
}

static const char *simple_escape(char c)
{
    static const char table[][2] = {
        {'n', '\n'}, {'t', '\t'}, {'r', '\r'}, {'\\', '\\'}, {'\'', '\''},
        {'"', '"'},  {'a', '\a'}, {'b', '\b'}, {'f', '\f'},  {'v', '\v'},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(table); i++) {
        if (table[i][0] == c)
            return &table[i][1];
    }
    return NULL;
}

/* One escape sequence; *at is behind the backslash. Never writes more bytes than it reads. */
static enum kva_status unescape(struct kva_tpl_lexer *lexer, const char **at, const char *end,
                                char **out)
{
    char c = *(*at)++;
    const char *simple = simple_escape(c);
    uint32_t code = 0;
    if (simple) {
        *(*out)++ = *simple;
        return KVA_OK;
    }
    if (c == '\n')
        return KVA_OK;
    if (c >= '0' && c <= '7') {
        code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < end && is_digit(**at, 8); i++)
            code = code << 3 | (uint32_t)(*(*at)++ - '0');
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (!hex_value(*at, end, digits, &code))
            return kva_tpl_lexer_fail(lexer, "a truncated \\x, \\u or \\U escape in a string");
        *at += digits;
    } else if (c == 'N') {
        return kva_tpl_lexer_fail(lexer, "\\N{...} escapes are not supported");
    } else {
        /* An unknown escape stands for itself. */
        *(*out)++ = '\\';
        *(*out)++ = c;
        return KVA_OK;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return kva_tpl_lexer_fail(lexer, "an escape that is no Unicode scalar value in a string");
    *out += kva_utf8_encode(code, *out);
    return KVA_OK;
}

enum kva_status kva_tpl_lex_string(struct kva_tpl_lexer *lexer, struct kva_tpl_token *ret)
{
    char quote = kva_tpl_lexer_peek(lexer, 0);
    size_t end = lexer->at + 1;
    while (end < lexer->length && lexer->source[end] != quote)
        end += lexer->source[end] == '\\' ? 2 : 1;
    if (end >= lexer->length)
        return kva_tpl_lexer_fail(lexer, "a string without its closing quote");
    const char *at = lexer->source + lexer->at + 1;
    const char *stop = lexer->source + end;
    char *text = kva_arena_alloc(lexer->arena, (size_t)(stop - at) + 1);
    if (!text)
        return kva_fail(lexer->err, KVA_ENOMEM, "out of memory");
    char *out = text;
    while (at < stop) {
        if (*at != '\\') {
            *out++ = *at++;
            continue;
        }
        at++;
        enum kva_status status = unescape(lexer, &at, stop, &out);
        if (status)
            return status;
    }
    ret->type = KVA_TPL_TOKEN_STRING;
    ret->text = text;
    ret->length = (size_t)(out - text);
    kva_tpl_lexer_advance(lexer, end + 1);
    return KVA_OK;
}
