/* call_scan.c - the object of a call, byte by byte: where its name and its arguments are.
 *
 * This looks for the outline only, so that what cannot become a call is given up early: whether all
 * of it is valid JSON is asked once, at its end. */
#include "text/reply/internal.h"

#include <string.h>

/* Longer ones are of no call. */
#define KEY_BYTES_MAX  32u
#define NAME_BYTES_MAX 256u

enum place {
    PLACE_OBJECT, /* before '{' */
    PLACE_FIRST,  /* behind it */
    PLACE_KEY,    /* before a key */
    PLACE_IN_KEY,
    PLACE_COLON,
    PLACE_VALUE,
    PLACE_IN_VALUE,
    PLACE_COMMA,
    PLACE_END,
};

void kva_call_scan_begin(struct kva_call_scan *scan, size_t from, bool bare)
{
    *scan = (struct kva_call_scan){.at = from, .from = from, .bare = bare};
    scan->place = bare ? PLACE_VALUE : PLACE_OBJECT;
}

static bool is_key(const struct kva_call_scan *scan, const char *text, const char *key)
{
    size_t length = scan->key_to - scan->key_from;
    return strlen(key) == length && memcmp(text + scan->key_from, key, length) == 0;
}

static bool is_arguments(const struct kva_call_scan *scan, const char *text)
{
    return scan->bare || is_key(scan, text, "arguments") || is_key(scan, text, "parameters");
}

/* Keys that calls have in some style; of another one the object is something else. */
static bool is_known_key(const struct kva_call_scan *scan, const char *text)
{
    return is_key(scan, text, "name") || is_arguments(scan, text) || is_key(scan, text, "id") ||
           is_key(scan, text, "type");
}

static bool may_be_outside_a_string(char c)
{
    return kva_reply_is_space(c) || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'E' ||
           (c != '\0' && strchr("+-.,:[]{}\"", c));
}

static enum kva_scan_result begin_value(struct kva_call_scan *scan, const char *text)
{
    char c = text[scan->at];
    bool name = !scan->bare && is_key(scan, text, "name");
    if (is_arguments(scan, text)) {
        if (c != '{' || scan->arguments_from > 0)
            return KVA_SCAN_BAD;
        scan->arguments_from = scan->at;
    } else if (c != '"' || (name && scan->name_from > 0)) {
        return KVA_SCAN_BAD;
    } else if (name) {
        scan->name_from = scan->at + 1;
    }
    scan->depth = c == '{';
    scan->in_string = c == '"';
    scan->escaped = false;
    scan->place = PLACE_IN_VALUE;
    return KVA_SCAN_MORE;
}

static enum kva_scan_result end_value(struct kva_call_scan *scan, const char *text)
{
    if (is_arguments(scan, text))
        scan->arguments_to = scan->at + 1;
    else if (is_key(scan, text, "name"))
        scan->name_to = scan->at;
    scan->place = scan->bare ? PLACE_END : PLACE_COMMA;
    return scan->bare ? KVA_SCAN_DONE : KVA_SCAN_MORE;
}

static enum kva_scan_result in_value(struct kva_call_scan *scan, const char *text)
{
    char c = text[scan->at];
    if (scan->in_string) {
        bool ends = c == '"' && !scan->escaped;
        scan->escaped = c == '\\' && !scan->escaped;
        scan->in_string = !ends;
        if (!is_arguments(scan, text) && scan->at - scan->key_to > NAME_BYTES_MAX)
            return KVA_SCAN_BAD;
        return ends && scan->depth == 0 ? end_value(scan, text) : KVA_SCAN_MORE;
    }
    if (!may_be_outside_a_string(c))
        return KVA_SCAN_BAD;
    scan->in_string = c == '"';
    scan->depth += c == '{' || c == '[';
    scan->depth -= c == '}' || c == ']';
    return scan->depth == 0 ? end_value(scan, text) : KVA_SCAN_MORE;
}

/* Between values. */
static enum kva_scan_result at_place(struct kva_call_scan *scan, const char *text)
{
    char c = text[scan->at];
    if (kva_reply_is_space(c))
        return KVA_SCAN_MORE;
    switch ((enum place)scan->place) {
    case PLACE_OBJECT:
        scan->place = PLACE_FIRST;
        scan->from = scan->at;
        return c == '{' ? KVA_SCAN_MORE : KVA_SCAN_BAD;
    case PLACE_FIRST:
        if (c == '{' && !scan->doubled) {
            scan->doubled = true;
            scan->from = scan->at;
            return KVA_SCAN_MORE;
        }
        /* fall through */
    case PLACE_KEY:
        scan->place = PLACE_IN_KEY;
        scan->key_from = scan->at + 1;
        return c == '"' ? KVA_SCAN_MORE : KVA_SCAN_BAD;
    case PLACE_COLON:
        scan->place = PLACE_VALUE;
        return c == ':' ? KVA_SCAN_MORE : KVA_SCAN_BAD;
    case PLACE_VALUE:
        return begin_value(scan, text);
    case PLACE_COMMA:
        scan->place = c == ',' ? PLACE_KEY : PLACE_END;
        if (c == '}')
            return scan->name_to > 0 && scan->arguments_to > 0 ? KVA_SCAN_DONE : KVA_SCAN_BAD;
        return c == ',' ? KVA_SCAN_MORE : KVA_SCAN_BAD;
    case PLACE_IN_KEY:
    case PLACE_IN_VALUE:
    case PLACE_END:
        break;
    }
    return KVA_SCAN_BAD;
}

static enum kva_scan_result in_key(struct kva_call_scan *scan, const char *text)
{
    if (text[scan->at] != '"')
        return scan->at - scan->key_from < KEY_BYTES_MAX ? KVA_SCAN_MORE : KVA_SCAN_BAD;
    scan->key_to = scan->at;
    scan->place = PLACE_COLON;
    return is_known_key(scan, text) ? KVA_SCAN_MORE : KVA_SCAN_BAD;
}

enum kva_scan_result kva_call_scan_go(struct kva_call_scan *scan, const char *text, size_t length)
{
    enum kva_scan_result result = KVA_SCAN_MORE;
    for (; scan->at < length && result == KVA_SCAN_MORE; scan->at++) {
        if (scan->place == PLACE_IN_VALUE)
            result = in_value(scan, text);
        else if (scan->place == PLACE_IN_KEY)
            result = in_key(scan, text);
        else
            result = at_place(scan, text);
    }
    return result;
}
