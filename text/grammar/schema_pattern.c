/* schema_pattern.c - expressions that strings in JSON match, written so that their texts are JSON.
 *
 * The library has two ways of making them. The first knows that quotes, backslashes and control
 * characters have escapes in JSON; but not in what is repeated more than 128 times, where it errs in
 * other things, too, and takes long. The other is slow where an expression can be read in many ways,
 * and knows nothing of JSON; it takes those that have other characters than ASCII's. So what has
 * escapes is left out here of every set of characters, expressions are in ASCII, and those that
 * repeat much have something beyond it. */
#include "base/buf.h"
#include "base/utf8.h"
#include "text/grammar/internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CODE_MAX 0x10ffffu
/* What the first way takes. */
#define REPEATS_MAX 128u
/* Nothing: in ASCII, and beyond it. */
#define NOTHING       "x{0}"
#define NOTHING_OTHER "\u00e9{0}"
/* Characters that have escapes, as items of a class. */
#define ESCAPED "\"\\\\\\u{0}-\\u{1f}"
/* Those that mean something in an expression. */
#define MEANINGS "\\^$.*+?()[]{}|-"

/* A part of an expression: a character, one of the sets d, D, w, W, s, S, or an escape that is neither. */
struct unit {
    const char *text;
    size_t length;
    uint32_t code;
    char set;
    bool other;
};

/* The hexadecimal digits of \xHH, \uHHHH and \u{H...}. */
static uint32_t read_hex(const char **at, size_t digits)
{
    bool braces = **at == '{';
    uint32_t code = 0;
    *at += braces;
    for (size_t i = 0; isxdigit((unsigned char)**at) && i < (braces ? 6 : digits); i++) {
        char digit[2] = {*(*at)++, '\0'};
        code = code << 4 | (uint32_t)strtoul(digit, NULL, 16);
    }
    *at += braces && **at == '}';
    return code;
}

static void read_escape(const char **at, bool in_class, struct unit *ret)
{
    static const char names[] = "ntrfvae0", codes[] = "\n\t\r\f\v\a\x1b";
    char c = *(*at)++;
    const char *name = strchr(names, c);
    if (c == 'x' || c == 'u')
        ret->code = read_hex(at, c == 'x' ? 2 : 4);
    else if (strchr("dDwWsS", c))
        ret->set = c;
    else if (name)
        ret->code = (unsigned char)codes[name - names];
    else if (c == 'c' && isalpha((unsigned char)**at))
        ret->code = (unsigned char)*(*at)++ & 0x1f;
    else if (c == 'b' && in_class)
        ret->code = '\b';
    else if (isalnum((unsigned char)c))
        ret->other = true;
    else
        ret->code = (unsigned char)c;
}

/* The next one of a text that is UTF-8 and not at its end. */
static struct unit read_unit(const char **at, bool in_class)
{
    struct unit unit = {.text = *at};
    bool escape = (*at)[0] == '\\' && (*at)[1] != '\0';
    int size = kva_utf8_sequence(*at + escape, strlen(*at + escape), NULL);
    *at += escape;
    if (size > 1) {
        unit.code = kva_utf8_decode(*at, size);
        *at += size;
    } else if (escape) {
        read_escape(at, in_class, &unit);
    } else {
        unit.code = (unsigned char)*(*at)++;
    }
    unit.length = (size_t)(*at - unit.text);
    return unit;
}

static bool is_character(const struct unit *unit)
{
    return !unit->set && !unit->other;
}

static bool has_escape(uint32_t code)
{
    return code < 0x20 || code == '"' || code == '\\';
}

static bool reaches_escapes(uint32_t low, uint32_t high)
{
    return low < 0x20 || (low <= '"' && '"' <= high) || (low <= '\\' && '\\' <= high);
}

static void put_code(struct kva_buf *out, uint32_t code)
{
    kva_buf_printf(out, "\\u{%x}", (unsigned)code);
}

/* As it stands, but in ASCII, and without escapes that mean nothing, which the library does not know. */
static void put_unit(struct kva_buf *out, const struct unit *unit)
{
    bool plain = unit->code >= 0x20 && unit->code <= 0x7e;
    bool idle = unit->length == 2 && unit->text[0] == '\\' && !isalnum((int)unit->code) &&
                !strchr(MEANINGS, (int)unit->code);
    if (!is_character(unit) || (plain && !idle))
        kva_buf_append(out, unit->text, unit->length);
    else
        put_code(out, unit->code);
}

/* Characters from low to high, without those that have escapes. */
static void put_range(struct kva_buf *out, uint32_t low, uint32_t high)
{
    static const uint32_t parts[][2] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, CODE_MAX}};
    for (size_t i = 0; i < KVA_COUNT_OF(parts); i++) {
        uint32_t from = kva_max_u32(low, parts[i][0]), to = kva_min_u32(high, parts[i][1]);
        if (from > to)
            continue;
        put_code(out, from);
        kva_buf_putc(out, '-');
        put_code(out, to);
    }
}

/* A set, as items of a class. */
static void put_set(struct kva_buf *out, char set)
{
    if (set == 'd' || set == 'w')
        kva_buf_printf(out, "\\%c", set);
    else if (set == 's')
        kva_buf_putc(out, ' ');
    else
        put_range(out, set == 'S' ? 0x21 : 0x20, set == 'S' ? CODE_MAX : '0' - 1);
    if (set == 'W') {
        put_range(out, '9' + 1, 'A' - 1);
        put_range(out, 'Z' + 1, '_' - 1);
        put_range(out, '_' + 1, 'a' - 1);
        put_range(out, 'z' + 1, CODE_MAX);
    } else if (set == 'D') {
        put_range(out, '9' + 1, CODE_MAX);
    }
}

/* A unit of a class, where a caret that has come to the front would mean the opposite. */
static void put_member(struct kva_buf *out, const struct unit *unit)
{
    if (is_character(unit) && unit->code == '^')
        put_code(out, unit->code);
    else
        put_unit(out, unit);
}

/* One item of a class. */
static void put_item(struct kva_buf *out, const char **at, bool negated)
{
    struct unit low = read_unit(at, true), high = low;
    const char *behind = *at + 1;
    bool range = is_character(&low) && (*at)[0] == '-' && *behind && *behind != ']';
    if (range)
        high = read_unit(&behind, true);
    range = range && is_character(&high);
    if (range)
        *at = behind;
    if (low.set && !negated) {
        put_set(out, low.set);
    } else if (range && !negated && reaches_escapes(low.code, high.code)) {
        put_range(out, low.code, high.code);
    } else if (range) {
        put_member(out, &low);
        kva_buf_putc(out, '-');
        put_member(out, &high);
    } else if (is_character(&low) && low.code == '-') {
        kva_buf_puts(out, "\\-");
    } else if (negated || low.other || !has_escape(low.code)) {
        put_member(out, &low);
    }
}

/* A class, from behind its bracket up to the closing one. False: nothing is left of it. */
static bool put_class(struct kva_buf *out, const char **at)
{
    bool negated = **at == '^';
    size_t begun = out->length + 1;
    kva_buf_puts(out, negated ? "[^" : "[");
    *at += negated;
    bool empty = **at == ']'; /* which the library says */
    while (**at && **at != ']')
        put_item(out, at, negated);
    if (negated)
        kva_buf_puts(out, ESCAPED);
    return empty || out->length > begun;
}

/* A quote that may be absent is. */
static bool leave_out(struct kva_buf *out, const char **at)
{
    bool absent = **at == '?' || **at == '*';
    *at += absent;
    *at += absent && **at == '?';
    kva_buf_puts(out, NOTHING);
    return absent;
}

/* The end of a group. One that may be absent has an empty alternative: (a+b)?c is "ac" to the library,
 * but (a+b|)c is not. Nor does it know where one ends that repeats without an end: (ab+|c){1,} is "ccb"
 * to it, but (ab+|c)+ is not. */
static void put_group_end(struct kva_buf *out, const char **at)
{
    unsigned most = 0;
    int length = 0;
    bool maybe = **at == '?';
    if (strncmp(*at, "{0,}", 4) == 0 || strncmp(*at, "{1,}", 4) == 0) {
        kva_buf_printf(out, ")%c", (*at)[1] == '0' ? '*' : '+');
        *at += 4;
        return;
    }
    bool some = !maybe && sscanf(*at, "{0,%9u}%n", &most, &length) == 1 && length > 0 && most > 0;
    kva_buf_puts(out, maybe || some ? "|)" : ")");
    if (some)
        kva_buf_printf(out, "{1,%u}", most);
    *at += maybe ? 1 : some ? length : 0;
    *at += (maybe || some) && **at == '?';
}

/* False: it asks for a character that has escapes. */
static bool put_next(struct kva_buf *out, const char **at, bool first_way)
{
    if (**at == '[') {
        ++*at;
        return put_class(out, at);
    }
    struct unit unit = read_unit(at, false);
    bool any = unit.length == 1 && unit.code == '.';
    if (any || (unit.set && unit.set != 'd' && unit.set != 'w')) {
        kva_buf_puts(out, any ? "[^" : "[");
        if (any)
            kva_buf_puts(out, ESCAPED);
        else
            put_set(out, unit.set);
        kva_buf_putc(out, ']');
    } else if (is_character(&unit) && has_escape(unit.code)) {
        return leave_out(out, at);
    } else if (unit.length == 1 && unit.code == ')' && first_way) {
        put_group_end(out, at);
    } else {
        put_unit(out, &unit);
    }
    return true;
}

/* Whether the first way would be wrong: much is repeated, or a group without an end, more often than
 * put_group_end can say. */
static bool repeats_much(const char *pattern)
{
    for (const char *at = strchr(pattern, '{'); at; at = strchr(at + 1, '{')) {
        const size_t before = (size_t)(at - pattern);
        const bool code = before > 1 && at[-2] == '\\' && (at[-1] == 'u' || at[-1] == 'x');
        char *end = NULL;
        const unsigned long least = strtoul(at + 1, &end, 10);
        if (code || end == at + 1)
            continue;
        if (least > REPEATS_MAX || (*end == ',' && strtoul(end + 1, NULL, 10) > REPEATS_MAX) ||
            (least > 1 && before > 0 && at[-1] == ')' && strncmp(end, ",}", 2) == 0))
            return true;
    }
    return false;
}

bool kva_schema_write_pattern(const char *pattern, char **ret)
{
    static const char named[] = "(?P<"; /* Python's for (?< */
    size_t length = strlen(pattern);
    bool good = kva_utf8_valid(pattern, length), much = repeats_much(pattern);
    struct kva_buf out;
    kva_buf_init(&out, length * 128 + 64);
    while (good && *pattern && strcmp(pattern, "$") != 0) {
        if (strncmp(pattern, named, strlen(named)) == 0) {
            kva_buf_puts(&out, "(?<");
            pattern += strlen(named);
        } else {
            good = put_next(&out, &pattern, !much);
        }
    }
    kva_buf_puts(&out, much ? NOTHING_OTHER : "");
    kva_buf_puts(&out, good ? pattern : "");
    *ret = kva_buf_take(&out, NULL);
    kva_buf_finish(&out);
    return good;
}
