/* regex_class.c - character classes in the syntax of PCRE2. */
#include "text/tokenizer/regex.h"

#include "base/utf8.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CLASS_DEPTH_MAX 8
#define CLASS_BYTES_MAX (64u << 10)

/* Unicode's White_Space and its complement as ranges: PCRE2's \s also takes U+180E. */
#define SPACE                                                                                      \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"        \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE                                                                                  \
    "\\x{0}-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"      \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"                 \
    "\\x{3001}-\\x{10ffff}"
/* Oniguruma's word characters; PCRE2's \w leaves out marks and connectors. */
#define WORD   "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define XDIGIT "0-9A-Fa-f"

/* A set of characters as the inside of a class. */
struct char_set {
    char items[192];
    char complement[256]; /* "": only as [^items] */
};

static void set_items(struct char_set *set, const char *items, const char *complement, bool negated)
{
    *set = (struct char_set){{0}, {0}};
    if (negated && *complement) {
        strncpy(set->items, complement, sizeof(set->items) - 1);
        strncpy(set->complement, items, sizeof(set->complement) - 1);
    } else {
        strncpy(set->items, items, sizeof(set->items) - 1);
        strncpy(set->complement, complement, sizeof(set->complement) - 1);
    }
}

void kva_regex_literal(struct kva_buf *out, uint32_t code)
{
    if (code >= 0x80 || (code < 0x80 && isalnum((int)code))) {
        char bytes[4];
        kva_buf_append(out, bytes, (size_t)kva_utf8_encode(code, bytes));
    } else {
        kva_buf_printf(out, "\\x{%x}", code);
    }
}

/* Whether PCRE2 takes `text` as a pattern. */
static bool compiles(const char *text)
{
    int code;
    PCRE2_SIZE offset;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
    pcre2_code_free(compiled);
    return compiled != NULL;
}

/* Names that both engines know under different spellings, and sets made of several properties. */
static bool named_set(const char *name, struct char_set *set, bool negated)
{
    static const struct {
        const char *name, *items, *complement;
    } known[] = {
        {"letter", "\\p{L}", "\\P{L}"},
        {"mark", "\\p{M}", "\\P{M}"},
        {"number", "\\p{N}", "\\P{N}"},
        {"punctuation", "\\p{P}", "\\P{P}"},
        {"symbol", "\\p{S}", "\\P{S}"},
        {"separator", "\\p{Z}", "\\P{Z}"},
        {"other", "\\p{C}", "\\P{C}"},
        {"alpha", "\\p{Alphabetic}", "\\P{Alphabetic}"},
        {"upper", "\\p{Uppercase}", "\\P{Uppercase}"},
        {"lower", "\\p{Lowercase}", "\\P{Lowercase}"},
        {"digit", "\\p{Nd}", "\\P{Nd}"},
        {"alnum", "\\p{Alphabetic}\\p{Nd}", ""},
        {"punct", "\\p{P}$+<=>\\x{5e}`|~", ""},
        {"space", SPACE, NOT_SPACE},
        {"whitespace", SPACE, NOT_SPACE},
        {"word", WORD, ""},
        {"xdigit", XDIGIT, ""},
        {"blank", "\\p{Zs}\\x09", ""},
        {"cntrl", "\\p{Cc}", "\\P{Cc}"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(known); i++) {
        if (strcasecmp(name, known[i].name) == 0) {
            set_items(set, known[i].items, known[i].complement, negated);
            return !(negated && !*known[i].complement);
        }
    }
    return false;
}

/* "{Han}" or "{^Han}" after \p or \P; *ret_not: only the complement of `set` is meant. */
static enum kva_status property(struct kva_regex *regex, bool negated, struct char_set *set,
                                bool *ret_not)
{
    char name[48];
    char text[64];
    if (*regex->at == '{' && regex->at[1] == '^') {
        negated = !negated;
        regex->at++;
    }
    size_t length = strcspn(regex->at, "}");
    const char *from = regex->at + 1;
    if (*regex->at == '\0' || regex->at[length] != '}' || length < 2 || length > sizeof(name))
        return kva_regex_refuse(regex, "a property without a name in braces");
    for (size_t i = 0; i + 1 < length; i++) {
        if (!isalnum((unsigned char)from[i]) && from[i] != '_')
            return kva_regex_refuse(regex, "a property with an odd name");
        name[i] = from[i];
    }
    name[length - 1] = '\0';
    *ret_not = false;
    if (named_set(name, set, negated)) {
        regex->at += length + 1;
        return KVA_OK;
    }
    if (negated && named_set(name, set, false)) {
        *ret_not = true;
        regex->at += length + 1;
        return KVA_OK;
    }
    /* A bare script name would mean Script_Extensions to PCRE2. */
    const char *kind = "sc:";
    snprintf(text, sizeof(text), "\\p{sc:%s}", name);
    if (!compiles(text)) {
        kind = "";
        snprintf(text, sizeof(text), "\\p{%s}", name);
        if (!compiles(text))
            return kva_regex_refuse(regex, "an unknown character property");
    }
    *set = (struct char_set){{0}, {0}};
    snprintf(set->items, sizeof(set->items), "\\%c{%s%s}", negated ? 'P' : 'p', kind, name);
    snprintf(set->complement, sizeof(set->complement), "\\%c{%s%s}", negated ? 'p' : 'P', kind,
             name);
    regex->at += length + 1;
    return KVA_OK;
}

/* A set after "\": *ret_is_set false if the letter does not start one. */
static enum kva_status set_escape(struct kva_regex *regex, struct char_set *set, bool *ret_is_set,
                                  bool *ret_not)
{
    char c = *regex->at;
    *ret_is_set = true;
    *ret_not = false;
    switch (c) {
    case 'd':
    case 'D':
        set_items(set, "\\p{Nd}", "\\P{Nd}", c == 'D');
        break;
    case 's':
    case 'S':
        set_items(set, SPACE, NOT_SPACE, c == 'S');
        break;
    case 'w':
    case 'W':
        set_items(set, WORD, "", false);
        *ret_not = c == 'W';
        break;
    case 'h':
    case 'H':
        set_items(set, XDIGIT, "", false);
        *ret_not = c == 'H';
        break;
    case 'p':
    case 'P':
        regex->at++;
        return property(regex, c == 'P', set, ret_not);
    default:
        *ret_is_set = false;
        return KVA_OK;
    }
    regex->at++;
    return KVA_OK;
}

static enum kva_status hex_code(struct kva_regex *regex, size_t digits, uint32_t *ret_code)
{
    bool braces = digits == 0;
    const char *from = regex->at + braces;
    size_t length = 0;
    while (length < (braces ? 8 : digits) && isxdigit((unsigned char)from[length]))
        length++;
    if (length == 0 || (braces ? from[length] != '}' : length != digits))
        return kva_regex_refuse(regex, "a malformed code point");
    char text[9] = {0};
    memcpy(text, from, length);
    unsigned long code = strtoul(text, NULL, 16);
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        return kva_regex_refuse(regex, "a code point that is no character");
    regex->at = from + length + braces;
    *ret_code = (uint32_t)code;
    return KVA_OK;
}

/* A single character after "\". */
static enum kva_status char_escape(struct kva_regex *regex, uint32_t *ret_code)
{
    static const char letters[] = "aefnrtv";
    static const uint32_t codes[] = {7, 27, 12, 10, 13, 9, 11};
    char c = *regex->at;
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter) {
        *ret_code = codes[letter - letters];
        regex->at++;
        return KVA_OK;
    }
    if (c == 'x') {
        regex->at++;
        return hex_code(regex, *regex->at == '{' ? 0 : 2, ret_code);
    }
    if (c == 'u') {
        regex->at++;
        return hex_code(regex, *regex->at == '{' ? 0 : 4, ret_code);
    }
    if (isalnum((unsigned char)c) || c == '\0')
        return kva_regex_refuse(regex, "an escape that is not supported");
    int size = kva_utf8_sequence(regex->at, strlen(regex->at), NULL);
    if (size <= 0)
        return kva_regex_refuse(regex, "not UTF-8");
    *ret_code = kva_utf8_decode(regex->at, size);
    regex->at += size;
    return KVA_OK;
}

enum kva_status kva_regex_escape(struct kva_regex *regex, bool *ret_quantifiable)
{
    struct char_set set;
    bool is_set, is_not;
    char c = *regex->at;
    enum kva_status status;
    *ret_quantifiable = false;
    switch (c) {
    case 'A':
    case 'z':
    case 'Z':
        kva_buf_printf(regex->out, "\\%c", c);
        regex->at++;
        return KVA_OK;
    case 'b':
        kva_buf_puts(regex->out, "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))");
        regex->at++;
        return KVA_OK;
    case 'B':
        kva_buf_puts(regex->out, "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
        regex->at++;
        return KVA_OK;
    default:
        break;
    }
    *ret_quantifiable = true;
    if (c >= '1' && c <= '9' && !isdigit((unsigned char)regex->at[1])) {
        kva_buf_printf(regex->out, "\\g{%c}", c);
        regex->at++;
        return KVA_OK;
    }
    status = set_escape(regex, &set, &is_set, &is_not);
    if (status)
        return status;
    if (is_set) {
        kva_buf_printf(regex->out, "[%s%s]", is_not ? "^" : "", set.items);
        return KVA_OK;
    }
    uint32_t code;
    status = char_escape(regex, &code);
    if (!status)
        kva_regex_literal(regex->out, code);
    return status;
}

/* A class being read: operands of "&&", each a union of plain items and of nested expressions. */
struct class_state {
    struct kva_buf items;  /* inside of a plain class */
    struct kva_buf nested; /* "|expr|expr" */
    struct kva_buf heads;  /* "(?=operand)" of the operands before this one */
};

static void write_operand(const struct class_state *state, struct kva_buf *out)
{
    if (state->nested.length == 0) {
        kva_buf_printf(out, "[%s]", state->items.data);
        return;
    }
    kva_buf_puts(out, "(?:");
    if (state->items.length > 0)
        kva_buf_printf(out, "[%s]%s", state->items.data, state->nested.data);
    else
        kva_buf_puts(out, state->nested.data + 1);
    kva_buf_putc(out, ')');
}

static void add_set(struct class_state *state, const struct char_set *set, bool is_not)
{
    if (!is_not)
        kva_buf_puts(&state->items, set->items);
    else
        kva_buf_printf(&state->nested, "|[^%s]", set->items);
}

/* "[:alpha:]" at regex->at. */
static enum kva_status posix_bracket(struct kva_regex *regex, struct class_state *state)
{
    char name[16];
    struct char_set set;
    size_t length = strcspn(regex->at + 2, ":");
    if (length >= sizeof(name) || strncmp(regex->at + 2 + length, ":]", 2) != 0)
        return kva_regex_refuse(regex, "a malformed bracket");
    memcpy(name, regex->at + 2, length);
    name[length] = '\0';
    if (!named_set(name, &set, false))
        return kva_regex_refuse(regex, "an unknown bracket");
    regex->at += length + 4;
    add_set(state, &set, false);
    return KVA_OK;
}

/* A nested class, as an alternative. */
static enum kva_status nested_class(struct kva_regex *regex, struct class_state *state,
                                    unsigned depth)
{
    struct kva_buf *outer = regex->out;
    struct kva_buf inner;
    kva_buf_init(&inner, CLASS_BYTES_MAX);
    regex->out = &inner;
    regex->at++;
    enum kva_status status = kva_regex_class(regex, depth + 1);
    regex->out = outer;
    if (!status && inner.failed)
        status = kva_regex_refuse(regex, "a class that is too long");
    if (!status)
        kva_buf_printf(&state->nested, "|%s", inner.data);
    kva_buf_finish(&inner);
    return status;
}

/* One character in a class, *ret_code, or a set, which is added. */
static enum kva_status class_item(struct kva_regex *regex, struct class_state *state,
                                  bool *ret_is_set, uint32_t *ret_code)
{
    *ret_is_set = false;
    if (*regex->at == '\\') {
        struct char_set set;
        bool is_not;
        regex->at++;
        if (*regex->at == 'b') {
            *ret_code = 8;
            regex->at++;
            return KVA_OK;
        }
        enum kva_status status = set_escape(regex, &set, ret_is_set, &is_not);
        if (!status && *ret_is_set)
            add_set(state, &set, is_not);
        return status || *ret_is_set ? status : char_escape(regex, ret_code);
    }
    int size = kva_utf8_sequence(regex->at, strlen(regex->at), NULL);
    if (size <= 0)
        return kva_regex_refuse(regex, "not UTF-8");
    *ret_code = kva_utf8_decode(regex->at, size);
    regex->at += size;
    return KVA_OK;
}

/* A character or range of them. */
static enum kva_status class_range(struct kva_regex *regex, struct class_state *state)
{
    bool is_set;
    uint32_t low, high;
    enum kva_status status = class_item(regex, state, &is_set, &low);
    if (status || is_set)
        return status;
    kva_regex_literal(&state->items, low);
    if (regex->at[0] != '-' || regex->at[1] == ']' || regex->at[1] == '\0')
        return KVA_OK;
    regex->at++;
    if (*regex->at == '[' || strncmp(regex->at, "&&", 2) == 0)
        return kva_regex_refuse(regex, "a range without an end");
    status = class_item(regex, state, &is_set, &high);
    if (status)
        return status;
    if (is_set || high < low)
        return kva_regex_refuse(regex, "a range that runs backwards");
    kva_buf_putc(&state->items, '-');
    kva_regex_literal(&state->items, high);
    return KVA_OK;
}

static enum kva_status class_body(struct kva_regex *regex, struct class_state *state,
                                  unsigned depth)
{
    enum kva_status status = KVA_OK;
    for (bool first = true; !status && (*regex->at != ']' || first); first = false) {
        if (*regex->at == '\0')
            return kva_regex_refuse(regex, "a class that is not closed");
        if (strncmp(regex->at, "&&", 2) == 0) {
            if (state->items.length + state->nested.length == 0)
                return kva_regex_refuse(regex, "an empty class");
            kva_buf_puts(&state->heads, "(?=");
            write_operand(state, &state->heads);
            kva_buf_putc(&state->heads, ')');
            kva_buf_clear(&state->items);
            kva_buf_clear(&state->nested);
            regex->at += 2;
        } else if (strncmp(regex->at, "[:", 2) == 0) {
            status = posix_bracket(regex, state);
        } else if (*regex->at == '[') {
            status = nested_class(regex, state, depth);
        } else {
            status = class_range(regex, state);
        }
    }
    if (!status && state->items.length + state->nested.length == 0)
        status = kva_regex_refuse(regex, "an empty class");
    return status;
}

static void write_class(const struct class_state *state, bool negated, struct kva_buf *out)
{
    bool plain = state->nested.length == 0 && state->heads.length == 0;
    if (plain) {
        kva_buf_printf(out, "[%s%s]", negated ? "^" : "", state->items.data);
        return;
    }
    kva_buf_puts(out, negated ? "(?:(?!" : "(?:");
    if (state->heads.length > 0)
        kva_buf_puts(out, state->heads.data);
    write_operand(state, out);
    kva_buf_puts(out, negated ? ")(?s:.))" : ")");
}

enum kva_status kva_regex_class(struct kva_regex *regex, unsigned depth)
{
    if (depth > CLASS_DEPTH_MAX)
        return kva_regex_refuse(regex, "classes nested too deep");
    struct class_state state;
    kva_buf_init(&state.items, CLASS_BYTES_MAX);
    kva_buf_init(&state.nested, CLASS_BYTES_MAX);
    kva_buf_init(&state.heads, CLASS_BYTES_MAX);
    bool negated = *regex->at == '^';
    regex->at += negated;
    enum kva_status status = class_body(regex, &state, depth);
    if (!status && (state.items.failed || state.nested.failed || state.heads.failed))
        status = kva_regex_refuse(regex, "a class that is too long");
    if (!status) {
        write_class(&state, negated, regex->out);
        regex->at++;
    }
    kva_buf_finish(&state.items);
    kva_buf_finish(&state.nested);
    kva_buf_finish(&state.heads);
    return status;
}
