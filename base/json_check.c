/* json_check.c - the walk over a document. */
#include "base/json_check.h"

#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

/* What the walk expects next. */
enum expect {
    EXPECT_VALUE,
    EXPECT_VALUE_OR_END, /* just after '[' */
    EXPECT_KEY,
    EXPECT_KEY_OR_END, /* just after '{' */
    EXPECT_COMMA_OR_END,
    EXPECT_NOTHING, /* the document is complete */
};

struct walk {
    const char *text;
    size_t length;
    size_t at;
    const struct kva_json_limits *limits;
    struct kva_err *err;
    uint32_t depth;
    uint32_t values;
    uint8_t is_object[KVA_JSON_DEPTH_MAX]; /* kind of each open container */
};

void kva_json_limits_default(struct kva_json_limits *limits)
{
    *limits = (struct kva_json_limits){
        .depth_max = 64,
        .number_bytes_max = 60,
        .values_max = 1u << 20,
        .key_bytes_max = 1024,
    };
}

static enum kva_status bad(struct walk *w, const char *what)
{
    return kva_fail(w->err, KVA_EINVAL, "The body is not valid JSON: %s at byte %zu.", what, w->at);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char peek(const struct walk *w)
{
    return w->at < w->length ? w->text[w->at] : '\0';
}

/* Four hexadecimal digits at `at`; -1: there are none. */
static int32_t hex4(const struct walk *w, size_t at)
{
    if (at + 4 > w->length)
        return -1;
    int32_t code = 0;
    for (size_t i = at; i < at + 4; i++) {
        char c = w->text[i];
        int32_t digit = is_digit(c)              ? c - '0'
                        : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                        : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return -1;
        code = code * 16 + digit;
    }
    return code;
}

/* w->at is at the backslash. */
static enum kva_status check_escape(struct walk *w)
{
    char c = w->at + 1 < w->length ? w->text[w->at + 1] : '\0';
    if (c != '\0' && strchr("\"\\/bfnrt", c)) {
        w->at += 2;
        return KVA_OK;
    }
    if (c != 'u')
        return bad(w, "an unknown escape in a string");
    int32_t code = hex4(w, w->at + 2);
    if (code < 0)
        return bad(w, "\\u without four hexadecimal digits");
    if (code == 0)
        return kva_fail(w->err, KVA_EUNSUPPORTED,
                        "The body has \\u0000 at byte %zu, which no text here may contain.", w->at);
    if (code >= 0xDC00 && code <= 0xDFFF)
        return bad(w, "a low surrogate without a high one");
    if (code >= 0xD800 && code <= 0xDBFF) {
        bool pair =
            w->at + 8 <= w->length && w->text[w->at + 6] == '\\' && w->text[w->at + 7] == 'u';
        int32_t low = pair ? hex4(w, w->at + 8) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return bad(w, "a high surrogate without a low one");
        w->at += 6;
    }
    w->at += 6;
    return KVA_OK;
}

/* w->at is at the opening quote. */
static enum kva_status check_string(struct walk *w, size_t bytes_max)
{
    size_t start = ++w->at;
    while (w->at < w->length) {
        unsigned char c = (unsigned char)w->text[w->at];
        if (c == '"') {
            if (w->at - start > bytes_max)
                return bad(w, "an object key that is too long");
            w->at++;
            return KVA_OK;
        }
        if (c == '\\') {
            enum kva_status status = check_escape(w);
            if (status != KVA_OK)
                return status;
        } else if (c < 0x20) {
            return bad(w, "a control character in a string");
        } else if (c < 0x80) {
            w->at++;
        } else {
            int size = kva_utf8_sequence(w->text + w->at, w->length - w->at, NULL);
            if (size <= 0)
                return bad(w, "bytes that are not UTF-8");
            w->at += (size_t)size;
        }
    }
    return bad(w, "a string without an end");
}

static size_t skip_digits(struct walk *w)
{
    size_t start = w->at;
    while (is_digit(peek(w)))
        w->at++;
    return w->at - start;
}

static enum kva_status check_number(struct walk *w)
{
    size_t start = w->at;
    if (peek(w) == '-')
        w->at++;
    bool leading_zero = peek(w) == '0';
    size_t digits = skip_digits(w);
    if (digits == 0 || (leading_zero && digits > 1))
        return bad(w, "a malformed number");
    if (peek(w) == '.') {
        w->at++;
        if (skip_digits(w) == 0)
            return bad(w, "a malformed number");
    }
    if (peek(w) == 'e' || peek(w) == 'E') {
        w->at++;
        if (peek(w) == '+' || peek(w) == '-')
            w->at++;
        if (skip_digits(w) == 0)
            return bad(w, "a malformed number");
    }
    size_t length = w->at - start;
    if (length > w->limits->number_bytes_max)
        return kva_fail(w->err, KVA_EINVAL,
                        "The body has a number of %zu characters at byte %zu, limit is %u.", length,
                        start, w->limits->number_bytes_max);
    return KVA_OK;
}

static enum kva_status check_word(struct walk *w, const char *word)
{
    size_t length = strlen(word);
    if (w->length - w->at < length || memcmp(w->text + w->at, word, length) != 0)
        return bad(w, "an unknown word");
    w->at += length;
    return KVA_OK;
}

static enum kva_status open_container(struct walk *w, bool is_object)
{
    if (w->depth >= w->limits->depth_max || w->depth >= KVA_JSON_DEPTH_MAX)
        return kva_fail(w->err, KVA_EINVAL, "The body is nested more than %u levels deep.",
                        w->limits->depth_max);
    w->is_object[w->depth++] = is_object;
    w->at++;
    return KVA_OK;
}

/* One scalar, or the start of a container; *ret_next says what may follow. */
static enum kva_status check_value(struct walk *w, enum expect *ret_next)
{
    if (++w->values > w->limits->values_max)
        return kva_fail(w->err, KVA_EINVAL, "The body has more than %u values.",
                        w->limits->values_max);
    *ret_next = w->depth ? EXPECT_COMMA_OR_END : EXPECT_NOTHING;
    switch (peek(w)) {
    case '{':
        *ret_next = EXPECT_KEY_OR_END;
        return open_container(w, true);
    case '[':
        *ret_next = EXPECT_VALUE_OR_END;
        return open_container(w, false);
    case '"':
        return check_string(w, w->length);
    case 't':
        return check_word(w, "true");
    case 'f':
        return check_word(w, "false");
    case 'n':
        return check_word(w, "null");
    default:
        if (peek(w) == '-' || is_digit(peek(w)))
            return check_number(w);
        return bad(w, w->at < w->length ? "an unexpected character" : "an early end");
    }
}

static enum kva_status check_key(struct walk *w)
{
    if (peek(w) != '"')
        return bad(w, "an object key without quotes");
    enum kva_status status = check_string(w, w->limits->key_bytes_max);
    if (status != KVA_OK)
        return status;
    while (is_space(peek(w)))
        w->at++;
    if (peek(w) != ':')
        return bad(w, "an object key without a colon");
    w->at++;
    return KVA_OK;
}

/* A ',' or the end of the innermost container. */
static enum kva_status check_after_value(struct walk *w, enum expect *ret_next)
{
    bool in_object = w->is_object[w->depth - 1];
    char c = peek(w);
    if (c == ',') {
        w->at++;
        *ret_next = in_object ? EXPECT_KEY : EXPECT_VALUE;
        return KVA_OK;
    }
    if (c != (in_object ? '}' : ']'))
        return bad(w, w->at < w->length ? "a missing comma or bracket" : "an early end");
    w->at++;
    w->depth--;
    *ret_next = w->depth ? EXPECT_COMMA_OR_END : EXPECT_NOTHING;
    return KVA_OK;
}

enum kva_status kva_json_check(const char *text, size_t length,
                               const struct kva_json_limits *limits, struct kva_err *err)
{
    struct walk w = {.text = text, .length = length, .limits = limits, .err = err};
    enum expect next = EXPECT_VALUE;
    enum kva_status status = KVA_OK;
    for (;;) {
        while (is_space(peek(&w)))
            w.at++;
        if (next == EXPECT_NOTHING)
            return w.at == length ? KVA_OK : bad(&w, "something after the end");
        char c = peek(&w);
        if ((next == EXPECT_KEY_OR_END && c == '}') || (next == EXPECT_VALUE_OR_END && c == ']')) {
            status = check_after_value(&w, &next);
        } else if (next == EXPECT_KEY || next == EXPECT_KEY_OR_END) {
            status = check_key(&w);
            next = EXPECT_VALUE;
        } else if (next == EXPECT_COMMA_OR_END) {
            status = check_after_value(&w, &next);
        } else {
            status = check_value(&w, &next);
        }
        if (status != KVA_OK)
            return status;
    }
}
