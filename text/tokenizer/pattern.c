/* pattern.c - strings and regular expressions to split by, within a budget of time. */
#include "text/tokenizer/internal.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#define MATCH_LIMIT    10000000u
#define MATCH_DEPTH    100000u
#define MATCH_HEAP_KIB (64u << 10)
/* A repeated group keeps a frame for each repetition: a text of one word must fit. The stack is
 * reserved, and only used as far as it is needed. */
#define JIT_STACK_PER_BYTE  ((size_t)64)
#define JIT_STACK_BYTES_MIN ((size_t)1 << 20)
#define JIT_STACK_BYTES_MAX ((size_t)256 << 20)
#define TRANSLATED_MAX      ((size_t)256 << 10)
/* One call searches from as many starts as keep starts * text below this: between
 * calls the processor time is checked. */
#define WINDOW_STEPS     ((size_t)1 << 27)
#define CHECK_INTERVAL   1024u
#define BUDGET_BASE_NS   (4 * KVA_NS_PER_S)
#define BUDGET_PER_MB_NS (4 * KVA_NS_PER_S)

bool kva_code_is_space(uint32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= 9 && code <= 13);
    return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
           code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

static bool is_numeric(uint32_t code)
{
    if (code < 0x80)
        return code >= '0' && code <= '9';
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

static bool is_punctuation(uint32_t code)
{
    if (code < 0x80)
        return (code >= 0x21 && code <= 0x2F) || (code >= 0x3A && code <= 0x40) ||
               (code >= 0x5B && code <= 0x60) || (code >= 0x7B && code <= 0x7E);
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

/* A word character next to an added token: letters, marks, numbers, connectors. utf8proc has no
 * Alphabetic property; the few symbols that are alphabetic are listed. */
bool kva_code_is_word(uint32_t code)
{
    if (code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) ||
        (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
        (code >= 0x1F170 && code <= 0x1F189))
        return true;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
           category == UTF8PROC_CATEGORY_PC;
}

/* ---- loading -------------------------------------------------------------------------------- */

static pcre2_code *compile(const struct kva_tok_place *place, const char *text, const char *shown)
{
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return NULL;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 200);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)text, strlen(text),
                                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE |
                                             PCRE2_USE_OFFSET_LIMIT | PCRE2_NEVER_BACKSLASH_C,
                                         &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        unsigned char message[120] = "";
        pcre2_get_error_message(code, message, sizeof(message));
        kva_tok_complain(place, KVA_EFORMAT, "pattern '%.200s': %s", shown, message);
        return NULL;
    }
    /* Without just-in-time compilation, or where it declines, the interpreter gives the same. */
    (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    return compiled;
}

enum kva_status kva_pattern_init_string(struct kva_pattern *pattern,
                                        const struct kva_tok_place *place, const char *text)
{
    pattern->kind = KVA_PATTERN_STRING;
    pattern->length = strlen(text);
    pattern->text = strdup(text);
    return pattern->text ? KVA_OK : kva_tok_complain(place, KVA_ENOMEM, "no memory for a pattern");
}

enum kva_status kva_pattern_init_regex(struct kva_pattern *pattern,
                                       const struct kva_tok_place *place, const char *text)
{
    struct kva_buf translated;
    kva_buf_init(&translated, TRANSLATED_MAX);
    enum kva_status status = kva_regex_translate(place, text, &translated);
    if (!status)
        status = kva_pattern_init_string(pattern, place, text);
    pattern->kind = KVA_PATTERN_REGEX;
    if (!status) {
        pattern->code = compile(place, translated.data ? translated.data : "", text);
        if (!pattern->code)
            status = place->err && place->err->status ? place->err->status : KVA_EFORMAT;
    }
    kva_buf_finish(&translated);
    return status;
}

enum kva_status kva_pattern_load(struct kva_pattern *pattern, const struct kva_tok_place *place,
                                 const cJSON *component)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(component, "pattern");
    struct kva_tok_place inner = kva_tok_place_member(place, "pattern");
    const char *text;
    if (!cJSON_IsObject(item))
        return kva_tok_complain(&inner, KVA_EFORMAT, "not an object");
    bool is_regex = !kva_tok_json_missing(item, "Regex");
    enum kva_status status =
        kva_tok_json_string(&inner, item, is_regex ? "Regex" : "String", &text);
    if (status)
        return status;
    return is_regex ? kva_pattern_init_regex(pattern, &inner, text)
                    : kva_pattern_init_string(pattern, &inner, text);
}

void kva_pattern_finish(struct kva_pattern *pattern)
{
    free(pattern->text);
    pcre2_code_free(pattern->code);
    *pattern = (struct kva_pattern){.text = NULL};
}

/* ---- matching ------------------------------------------------------------------------------- */

void kva_matcher_init(struct kva_matcher *matcher, size_t text_bytes, struct kva_err *err)
{
    *matcher = (struct kva_matcher){.text_bytes = text_bytes, .err = err};
}

void kva_matcher_finish(struct kva_matcher *matcher)
{
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
}

static enum kva_status matcher_prepare(struct kva_matcher *matcher)
{
    if (matcher->data)
        return KVA_OK;
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    size_t stack_bytes = kva_min_size(
        JIT_STACK_BYTES_MIN + matcher->text_bytes * JIT_STACK_PER_BYTE, JIT_STACK_BYTES_MAX);
    matcher->stack = pcre2_jit_stack_create(32u << 10, stack_bytes, NULL);
    if (!matcher->data || !matcher->context || !matcher->stack)
        return kva_fail(matcher->err, KVA_ENOMEM, "no memory for matching a pattern");
    pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    pcre2_set_match_limit(matcher->context, MATCH_LIMIT);
    pcre2_set_depth_limit(matcher->context, MATCH_DEPTH);
    pcre2_set_heap_limit(matcher->context, MATCH_HEAP_KIB);
    matcher->until_check = CHECK_INTERVAL;
    return KVA_OK;
}

static uint64_t thread_time_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * KVA_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Processor time and not wall time, so that a busy machine refuses nothing. Only patterns that are
 * quadratic on the text come near the budget. */
static enum kva_status check_budget(struct kva_matcher *matcher, const struct kva_pattern *pattern)
{
    uint64_t now = thread_time_ns();
    uint64_t budget = BUDGET_BASE_NS + BUDGET_PER_MB_NS * (matcher->text_bytes >> 20);
    matcher->until_check = CHECK_INTERVAL;
    if (matcher->deadline_ns == 0)
        matcher->deadline_ns = now + budget;
    if (now <= matcher->deadline_ns)
        return KVA_OK;
    return kva_fail(matcher->err, KVA_EINVAL,
                    "the tokenizer's pattern '%.120s' takes more than %llu s for this text",
                    pattern->text, (unsigned long long)(budget / KVA_NS_PER_S));
}

static size_t next_char(const char *text, size_t length, size_t at)
{
    at++;
    while (at < length && ((unsigned char)text[at] & 0xC0) == 0x80)
        at++;
    return at;
}

static enum kva_status match_failed(struct kva_matcher *matcher, const struct kva_pattern *pattern,
                                    int code)
{
    unsigned char message[120] = "";
    pcre2_get_error_message(code, message, sizeof(message));
    return kva_fail(matcher->err, code == PCRE2_ERROR_NOMEMORY ? KVA_ENOMEM : KVA_EINVAL,
                    "the tokenizer's pattern '%.120s' fails on this text: %s", pattern->text,
                    (const char *)message);
}

static enum kva_status regex_next(const struct kva_pattern *pattern, struct kva_matcher *matcher,
                                  struct kva_scan *scan, bool *ret_found, size_t *ret_start,
                                  size_t *ret_end)
{
    enum kva_status status = matcher_prepare(matcher);
    if (status)
        return status;
    size_t window = kva_max_size(64, WINDOW_STEPS / (scan->length + 1));
    size_t at = scan->at;
    while (at <= scan->length) {
        size_t limit = at + window;
        pcre2_set_offset_limit(matcher->context, limit < scan->length ? limit : PCRE2_UNSET);
        int code = pcre2_match(pattern->code, (PCRE2_SPTR)scan->text, scan->length, at,
                               PCRE2_NO_UTF_CHECK, matcher->data, matcher->context);
        if (code < 0 && code != PCRE2_ERROR_NOMATCH)
            return match_failed(matcher, pattern, code);
        if (code == PCRE2_ERROR_NOMATCH || --matcher->until_check == 0) {
            if (code != PCRE2_ERROR_NOMATCH || limit < scan->length)
                status = check_budget(matcher, pattern);
            if (status)
                return status;
        }
        if (code == PCRE2_ERROR_NOMATCH) {
            if (limit >= scan->length)
                break;
            at = next_char(scan->text, scan->length, limit - 1);
            continue;
        }
        const PCRE2_SIZE *found = pcre2_get_ovector_pointer(matcher->data);
        if (found[0] == found[1] && found[0] == scan->last_end) {
            at = next_char(scan->text, scan->length, found[1]);
            continue;
        }
        *ret_found = true;
        *ret_start = found[0];
        *ret_end = found[1];
        return KVA_OK;
    }
    *ret_found = false;
    return KVA_OK;
}

static void string_next(const struct kva_pattern *pattern, const struct kva_scan *scan,
                        bool *ret_found, size_t *ret_start, size_t *ret_end)
{
    const char *found = NULL;
    if (pattern->length > 0)
        found =
            memmem(scan->text + scan->at, scan->length - scan->at, pattern->text, pattern->length);
    *ret_found = found != NULL;
    if (found) {
        *ret_start = (size_t)(found - scan->text);
        *ret_end = *ret_start + pattern->length;
    }
}

static void char_next(const struct kva_pattern *pattern, const struct kva_scan *scan,
                      bool *ret_found, size_t *ret_start, size_t *ret_end)
{
    bool (*test)(uint32_t) = pattern->kind == KVA_PATTERN_NUMERIC       ? is_numeric
                             : pattern->kind == KVA_PATTERN_PUNCTUATION ? is_punctuation
                                                                        : kva_code_is_space;
    *ret_found = false;
    for (size_t at = scan->at; at < scan->length;) {
        size_t end = next_char(scan->text, scan->length, at);
        if (test(kva_utf8_decode(scan->text + at, (int)(end - at)))) {
            *ret_found = true;
            *ret_start = at;
            *ret_end = end;
            return;
        }
        at = end;
    }
}

enum kva_status kva_pattern_next(const struct kva_pattern *pattern, struct kva_matcher *matcher,
                                 struct kva_scan *scan, bool *ret_found, size_t *ret_start,
                                 size_t *ret_end)
{
    enum kva_status status = KVA_OK;
    size_t start = 0, end = 0;
    bool found = false;
    if (pattern->kind == KVA_PATTERN_REGEX)
        status = regex_next(pattern, matcher, scan, &found, &start, &end);
    else if (pattern->kind == KVA_PATTERN_STRING)
        string_next(pattern, scan, &found, &start, &end);
    else
        char_next(pattern, scan, &found, &start, &end);
    if (status)
        return status;
    *ret_found = found;
    if (found) {
        scan->at = end;
        scan->last_end = end;
        *ret_start = start;
        *ret_end = end;
    }
    return KVA_OK;
}
