/* regex.c - rewriting regular expressions from Oniguruma's syntax, which tokenizer files use, into
 * PCRE2's.
 *
 * Only what both engines are known to agree on, or what can be spelled out, gets through; all else
 * is refused, so that a pattern never silently means something different. A character class may be
 * nested, negated and intersected there, but not here: it becomes an equivalent group that matches
 * one character. */
#include "text/tokenizer/regex.h"

#include "base/utf8.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_DEPTH_MAX 50

enum kva_status kva_regex_refuse(struct kva_regex *regex, const char *what)
{
    return kva_tok_complain(regex->place, KVA_EUNSUPPORTED, "%s at byte %zu of pattern '%.200s'",
                            what, (size_t)(regex->at - regex->start), regex->start);
}

static void insert(struct kva_buf *out, size_t at, const char *text)
{
    size_t length = strlen(text);
    if (!kva_buf_reserve(out, length))
        return;
    memmove(out->data + at + length, out->data + at, out->length - at);
    memcpy(out->data + at, text, length);
    out->length += length;
    out->data[out->length] = '\0';
}

/* {n}, {n,}, {,m} or {n,m} at `at`: its length, 0 if it is not one. */
static size_t interval_length(const char *at, const char **ret_low, bool *ret_fixed)
{
    const char *end = at + 1;
    while (isdigit((unsigned char)*end))
        end++;
    size_t low = (size_t)(end - at - 1);
    size_t high = 0;
    *ret_fixed = *end == '}';
    if (*end == ',') {
        end++;
        const char *from = end;
        while (isdigit((unsigned char)*end))
            end++;
        high = (size_t)(end - from);
    }
    if (*end != '}' || (low == 0 && high == 0))
        return 0;
    *ret_low = low ? "" : "0";
    return (size_t)(end + 1 - at);
}

/* Any quantifiers after the atom that starts at `atom` in the output. */
static enum kva_status quantifiers(struct kva_regex *regex, size_t atom, bool quantifiable)
{
    for (unsigned count = 0;; count++) {
        char c = *regex->at;
        const char *low = "";
        bool fixed = false;
        size_t length = c == '*' || c == '+' || c == '?' ? 1 : 0;
        if (c == '{')
            length = interval_length(regex->at, &low, &fixed);
        if (length == 0)
            return KVA_OK;
        if (!quantifiable)
            return kva_regex_refuse(regex, "a quantifier after nothing that can be repeated");
        if (count == 8)
            return kva_regex_refuse(regex, "too many quantifiers");
        if (count > 0) {
            /* A quantifier of a quantified atom: PCRE2 would read "+" as possessive. */
            insert(regex->out, atom, "(?:");
            kva_buf_putc(regex->out, ')');
        }
        if (c == '{') {
            kva_buf_putc(regex->out, '{');
            kva_buf_puts(regex->out, low);
            kva_buf_append(regex->out, regex->at + 1, length - 1);
        } else {
            kva_buf_putc(regex->out, c);
        }
        regex->at += length;
        if (*regex->at == '?') {
            if (fixed)
                return kva_regex_refuse(regex, "'{n}?' is not supported");
            kva_buf_putc(regex->out, '?');
            regex->at++;
        } else if (*regex->at == '+' && c != '{') {
            kva_buf_putc(regex->out, '+');
            regex->at++;
        }
    }
}

/* "(?i-m:" or "(?i)": *ret_open tells that the rest of the group is inside the option. */
static enum kva_status options(struct kva_regex *regex, bool *ret_isolated)
{
    kva_buf_puts(regex->out, "(?");
    for (; *regex->at != ':' && *regex->at != ')'; regex->at++) {
        switch (*regex->at) {
        case 'i':
        case '-':
            kva_buf_putc(regex->out, *regex->at);
            break;
        case 'm': /* Oniguruma's "m" lets the dot match a newline. */
            kva_buf_putc(regex->out, 's');
            break;
        default:
            return kva_regex_refuse(regex, "a group or option that is not supported");
        }
    }
    *ret_isolated = *regex->at == ')';
    kva_buf_putc(regex->out, ':');
    regex->at++;
    return KVA_OK;
}

static enum kva_status alternation(struct kva_regex *regex, unsigned depth);

/* Called after "(". */
static enum kva_status group(struct kva_regex *regex, unsigned depth, unsigned *isolated)
{
    static const char *const kinds[] = {"?:", "?=", "?!", "?>", "?<=", "?<!"};
    enum kva_status status = KVA_OK;
    bool open = false;
    if (*regex->at == '*')
        return kva_regex_refuse(regex, "a verb");
    if (*regex->at != '?') {
        kva_buf_putc(regex->out, '(');
    } else {
        size_t i = 0;
        while (i < KVA_COUNT_OF(kinds) && strncmp(regex->at, kinds[i], strlen(kinds[i])) != 0)
            i++;
        if (i < KVA_COUNT_OF(kinds)) {
            kva_buf_putc(regex->out, '(');
            kva_buf_puts(regex->out, kinds[i]);
            regex->at += strlen(kinds[i]);
        } else if (regex->at[1] == '<' && (isalpha((unsigned char)regex->at[2]))) {
            size_t length = strcspn(regex->at, ">");
            kva_buf_putc(regex->out, '(');
            kva_buf_append(regex->out, regex->at, length);
            regex->at += length;
        } else {
            regex->at++;
            status = options(regex, &open);
        }
    }
    if (!status && open) {
        /* The option holds to the end of the enclosing group, across its alternatives. */
        *isolated += 1;
        return KVA_OK;
    }
    if (!status)
        status = alternation(regex, depth + 1);
    if (!status && *regex->at != ')')
        status = kva_regex_refuse(regex, "a group that is not closed");
    if (!status) {
        kva_buf_putc(regex->out, ')');
        regex->at++;
    }
    return status;
}

/* One atom; *ret_quantifiable false for anchors. */
static enum kva_status atom(struct kva_regex *regex, unsigned depth, unsigned *isolated,
                            bool *ret_quantifiable)
{
    *ret_quantifiable = true;
    char c = *regex->at;
    unsigned before = *isolated;
    enum kva_status status;
    switch (c) {
    case '(':
        if (strncmp(regex->at, "(?#", 3) == 0) {
            regex->at += strcspn(regex->at, ")");
            regex->at += *regex->at != '\0';
            *ret_quantifiable = false;
            return KVA_OK;
        }
        regex->at++;
        status = group(regex, depth, isolated);
        *ret_quantifiable = before == *isolated;
        return status;
    case '[':
        regex->at++;
        return kva_regex_class(regex, 0);
    case '\\':
        regex->at++;
        return kva_regex_escape(regex, ret_quantifiable);
    case '^':
    case '$':
        *ret_quantifiable = false;
        /* fall through */
    case '.':
        kva_buf_putc(regex->out, c);
        regex->at++;
        return KVA_OK;
    case '*':
    case '+':
    case '?':
        return kva_regex_refuse(regex, "a quantifier after nothing");
    default: {
        int size = kva_utf8_sequence(regex->at, strlen(regex->at), NULL);
        if (size <= 0)
            return kva_regex_refuse(regex, "not UTF-8");
        kva_regex_literal(regex->out, kva_utf8_decode(regex->at, size));
        regex->at += size;
        return KVA_OK;
    }
    }
}

static enum kva_status alternation(struct kva_regex *regex, unsigned depth)
{
    if (depth > GROUP_DEPTH_MAX)
        return kva_regex_refuse(regex, "groups nested too deep");
    unsigned isolated = 0;
    while (*regex->at && *regex->at != ')') {
        if (*regex->at == '|') {
            kva_buf_putc(regex->out, '|');
            regex->at++;
            continue;
        }
        size_t start = regex->out->length;
        bool quantifiable;
        enum kva_status status = atom(regex, depth, &isolated, &quantifiable);
        if (!status)
            status = quantifiers(regex, start, quantifiable);
        if (status)
            return status;
    }
    for (; isolated > 0; isolated--)
        kva_buf_putc(regex->out, ')');
    return KVA_OK;
}

enum kva_status kva_regex_translate(const struct kva_tok_place *place, const char *text,
                                    struct kva_buf *out)
{
    struct kva_regex regex = {.place = place, .start = text, .at = text, .out = out};
    if (strlen(text) > KVA_TOKENIZER_PATTERN_BYTES_MAX)
        return kva_tok_complain(place, KVA_ETOOBIG, "pattern has %zu bytes, limit is %d",
                                strlen(text), KVA_TOKENIZER_PATTERN_BYTES_MAX);
    enum kva_status status = alternation(&regex, 0);
    if (!status && *regex.at)
        status = kva_regex_refuse(&regex, "an unmatched ')'");
    if (!status && out->failed)
        status = kva_tok_complain(place, KVA_ETOOBIG, "pattern '%.200s' is too long", text);
    return status;
}
