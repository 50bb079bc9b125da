/* parser.c - telling reasoning, content and calls apart in a text that comes in pieces.
 *
 * What may still become something else is held; a state looks at the held text, tells what is
 * certain, and gives over to another. */
#include "base/json_check.h"
#include "text/reply/internal.h"

#include <stdlib.h>
#include <string.h>

/* After so many texts that only began like a call, no more are looked for: each costs a look at what
 * follows it. */
#define FALSE_CALLS_MAX 64u
/* White space before a call that is held back, or looked over. */
#define SPACES_MAX 64u
/* What may stand between [TOOL_CALLS] and the arguments. */
#define NAMED_BYTES_MAX 256u

enum state {
    STATE_BEGIN,     /* before <think>, if it comes */
    STATE_REASONING, /* up to </think> */
    STATE_START,     /* where a call may stand without a marker */
    STATE_CONTENT,   /* up to a marker */
    STATE_MARKED,    /* behind it */
    STATE_CALL,      /* in the object */
    STATE_XML,       /* in the function */
    STATE_AFTER,     /* behind it */
};

struct kva_reply {
    struct kva_reply_params params;
    const struct kva_reply_syntax *syntax;
    struct kva_buf held;
    struct kva_call_scan scan;
    struct kva_xml_scan xml; /* from `lead` on */
    enum state state;
    size_t lead;      /* held bytes before the call: content, if it turns out to be none */
    size_t told;      /* of the arguments, up to this offset */
    size_t name_from; /* of a name before the object; 0: it is inside */
    size_t name_to;
    uint32_t false_calls;
    bool finishing;
    bool drop_spaces; /* white space that comes next says nothing */
    bool has_marker;  /* before the call */
    bool in_array;
    bool in_fence;
    bool call_told;
    bool cut;   /* the last call that was told has not come to the end of its arguments */
    bool sated; /* no more calls are looked for */
};

enum kva_status kva_reply_create(const struct kva_reply_params *params, struct kva_reply **ret)
{
    struct kva_reply *reply = calloc(1, sizeof(*reply));
    if (!reply)
        return KVA_ENOMEM;
    reply->params = *params;
    reply->syntax = &kva_reply_syntaxes[params->style];
    reply->state = params->thinks ? STATE_BEGIN : STATE_START;
    if (params->thinks && params->thinking) {
        reply->state = STATE_REASONING;
        reply->drop_spaces = true;
    }
    kva_buf_init(&reply->held, params->bytes_max);
    *ret = reply;
    return KVA_OK;
}

void kva_reply_destroy(struct kva_reply *reply)
{
    if (!reply)
        return;
    kva_buf_finish(&reply->held);
    free(reply);
}

bool kva_reply_in_reasoning(const struct kva_reply *reply)
{
    return reply->state == STATE_REASONING;
}

bool kva_reply_is_cut(const struct kva_reply *reply)
{
    return reply->cut;
}

bool kva_reply_failed(const struct kva_reply *reply)
{
    return reply->held.failed;
}

bool kva_reply_has_no_memory(const struct kva_reply *reply)
{
    return reply->held.no_memory;
}

size_t kva_reply_held(const struct kva_reply *reply)
{
    return reply->held.length;
}

/* --- the held text --------------------------------------------------------------------------- */

static void drop(struct kva_reply *reply, size_t bytes)
{
    struct kva_buf *held = &reply->held;
    held->length -= bytes;
    memmove(held->data, held->data + bytes, held->length);
}

static void tell(struct kva_reply *reply, bool reasoning, size_t bytes)
{
    const struct kva_reply_sink *sink = &reply->params.sink;
    if (bytes == 0)
        return;
    reply->drop_spaces = false;
    if (reasoning)
        sink->reasoning(sink->opaque, reply->held.data, bytes);
    else
        sink->content(sink->opaque, reply->held.data, bytes);
    drop(reply, bytes);
}

static size_t spaces_at(const struct kva_reply *reply, size_t at)
{
    const struct kva_buf *held = &reply->held;
    size_t end = at;
    while (end < held->length && kva_reply_is_space(held->data[end]))
        end++;
    return end - at;
}

/* Whether `word` stands at `at`; MORE: the text ends within it. */
static enum kva_scan_result stands_at(const struct kva_reply *reply, size_t at, const char *word)
{
    size_t length = strlen(word);
    size_t left = reply->held.length - at;
    size_t compared = kva_min_size(length, left);
    if (memcmp(reply->held.data + at, word, compared) != 0)
        return KVA_SCAN_BAD;
    if (compared == length)
        return KVA_SCAN_DONE;
    return reply->finishing ? KVA_SCAN_BAD : KVA_SCAN_MORE;
}

/* Tell what comes before `mark`. True: the mark is there, and the held text begins with the white
 * space before it, whose length is *ret_spaces, and it. */
static bool tell_until(struct kva_reply *reply, bool reasoning, const char *mark,
                       size_t *ret_spaces)
{
    const struct kva_buf *held = &reply->held;
    size_t keep = held->length; /* from here on, it may be the mark and the space before it */
    bool found = false;
    for (size_t at = 0; mark && at < held->length && !found; at++) {
        const char *next = memchr(held->data + at, mark[0], held->length - at);
        if (!next)
            break;
        at = (size_t)(next - held->data);
        enum kva_scan_result result = stands_at(reply, at, mark);
        found = result == KVA_SCAN_DONE;
        if (result == KVA_SCAN_BAD)
            continue;
        keep = at;
        break;
    }
    size_t spaces = 0;
    bool hold_spaces = mark && (found || !reply->finishing);
    while (hold_spaces && spaces < kva_min_size(keep, SPACES_MAX) &&
           kva_reply_is_space(held->data[keep - spaces - 1]))
        spaces++;
    tell(reply, reasoning, keep - spaces);
    *ret_spaces = spaces;
    return found;
}

/* --- states: each returns whether another look at the held text may say more ------------------- */

/* Whether the state has nothing to look at but white space, which is dropped or waited with. */
static bool only_spaces(struct kva_reply *reply, size_t *ret_spaces)
{
    *ret_spaces = spaces_at(reply, 0);
    if (reply->drop_spaces && *ret_spaces > 0) {
        drop(reply, *ret_spaces);
        *ret_spaces = 0;
    }
    return *ret_spaces == reply->held.length;
}

static bool at_begin(struct kva_reply *reply)
{
    size_t spaces;
    if (only_spaces(reply, &spaces) && spaces <= SPACES_MAX && !reply->finishing)
        return false;
    enum kva_scan_result result =
        spaces <= SPACES_MAX ? stands_at(reply, spaces, KVA_REPLY_THINK) : KVA_SCAN_BAD;
    if (result == KVA_SCAN_MORE)
        return false;
    reply->state = STATE_START;
    if (result == KVA_SCAN_DONE) {
        drop(reply, spaces + strlen(KVA_REPLY_THINK));
        reply->drop_spaces = true;
        reply->state = STATE_REASONING;
    }
    return true;
}

static bool in_reasoning(struct kva_reply *reply)
{
    size_t spaces;
    if (reply->drop_spaces && only_spaces(reply, &spaces))
        return false;
    if (!tell_until(reply, true, KVA_REPLY_THINK_END, &spaces))
        return false;
    drop(reply, spaces + strlen(KVA_REPLY_THINK_END));
    reply->drop_spaces = true;
    reply->state = STATE_START;
    return true;
}

static void begin_call(struct kva_reply *reply, size_t lead, bool bare)
{
    reply->lead = lead;
    reply->call_told = false;
    reply->told = 0;
    kva_call_scan_begin(&reply->scan, lead, bare);
    reply->state = STATE_CALL;
}

/* It only began like a call. */
static bool no_call(struct kva_reply *reply, size_t content_bytes)
{
    reply->false_calls += reply->has_marker;
    reply->in_array = reply->in_fence = false;
    tell(reply, false, content_bytes);
    reply->state = STATE_CONTENT;
    return true;
}

/* The fence before a call, or nothing: the offset behind it in *ret. */
static enum kva_scan_result read_fence(const struct kva_reply *reply, size_t *ret)
{
    enum kva_scan_result result = stands_at(reply, *ret, "```");
    if (result != KVA_SCAN_DONE)
        return result;
    size_t at = *ret + 3;
    result = stands_at(reply, at, "json");
    if (result == KVA_SCAN_MORE)
        return result;
    *ret = at + (result == KVA_SCAN_DONE ? 4 : 0);
    return KVA_SCAN_DONE;
}

static void begin_xml(struct kva_reply *reply, size_t lead)
{
    reply->lead = lead;
    reply->xml = (struct kva_xml_scan){.at = 0};
    reply->state = STATE_XML;
}

/* A call without a marker: an object, an array of them, in a fence or not. */
static bool at_start(struct kva_reply *reply)
{
    const struct kva_buf *held = &reply->held;
    size_t at;
    reply->has_marker = false;
    if (reply->params.style == KVA_REPLY_NONE && !reply->drop_spaces) {
        reply->state = STATE_CONTENT;
        return true;
    }
    if (only_spaces(reply, &at) && at <= SPACES_MAX && !reply->finishing)
        return false;
    reply->state = STATE_CONTENT;
    if (reply->params.style == KVA_REPLY_NONE || at == held->length || at > SPACES_MAX ||
        reply->sated)
        return true;
    enum kva_scan_result function =
        reply->syntax->xml ? stands_at(reply, at, KVA_REPLY_FUNCTION) : KVA_SCAN_BAD;
    if (function == KVA_SCAN_MORE) {
        reply->state = STATE_START;
        return false;
    }
    if (function == KVA_SCAN_DONE) {
        begin_xml(reply, at);
        return true;
    }
    size_t from = at;
    enum kva_scan_result fence = held->data[at] == '`' ? read_fence(reply, &from) : KVA_SCAN_BAD;
    if (fence == KVA_SCAN_MORE) {
        reply->state = STATE_START;
        return false;
    }
    reply->in_fence = fence == KVA_SCAN_DONE;
    from += spaces_at(reply, from);
    reply->in_array = from < held->length && held->data[from] == '[';
    if (reply->in_array)
        from += 1 + spaces_at(reply, from + 1);
    bool near = from - at <= SPACES_MAX;
    if (from == held->length && near && !reply->finishing) {
        reply->state = STATE_START;
        return false;
    }
    if (from < held->length && near && held->data[from] == '{')
        begin_call(reply, from, false);
    else
        reply->in_array = reply->in_fence = false;
    return true;
}

static bool in_content(struct kva_reply *reply)
{
    size_t spaces;
    bool looks = reply->false_calls < FALSE_CALLS_MAX && !reply->sated;
    if (!tell_until(reply, false, looks ? reply->syntax->marker : NULL, &spaces))
        return false;
    reply->lead = spaces + strlen(reply->syntax->marker);
    reply->has_marker = true;
    reply->in_array = reply->in_fence = false;
    reply->state = STATE_MARKED;
    return true;
}

/* Mistral's name[CALL_ID]id[ARGS]: the object behind it is the arguments. */
static enum kva_scan_result read_named(struct kva_reply *reply, size_t *ret)
{
    const struct kva_buf *held = &reply->held;
    size_t at = *ret;
    while (at < held->length && held->data[at] != '{' && held->data[at] != '[' &&
           !kva_reply_is_space(held->data[at]))
        at++;
    reply->name_from = *ret;
    reply->name_to = at;
    enum kva_scan_result id =
        at < held->length ? stands_at(reply, at, KVA_REPLY_CALL_ID) : KVA_SCAN_MORE;
    if (id == KVA_SCAN_DONE) {
        at += strlen(KVA_REPLY_CALL_ID);
        while (at < held->length && held->data[at] != '{' && held->data[at] != '[')
            at++;
    }
    enum kva_scan_result args =
        at < held->length ? stands_at(reply, at, KVA_REPLY_ARGS) : KVA_SCAN_MORE;
    if (at - *ret > NAMED_BYTES_MAX)
        return KVA_SCAN_BAD;
    if (id == KVA_SCAN_MORE || args == KVA_SCAN_MORE)
        return reply->finishing ? KVA_SCAN_BAD : KVA_SCAN_MORE;
    *ret = at + (args == KVA_SCAN_DONE ? strlen(KVA_REPLY_ARGS) : 0);
    return reply->name_to > reply->name_from ? KVA_SCAN_DONE : KVA_SCAN_BAD;
}

static bool is_marked(struct kva_reply *reply)
{
    const struct kva_buf *held = &reply->held;
    size_t at = reply->lead + spaces_at(reply, reply->lead);
    reply->name_from = 0;
    if (at - reply->lead > SPACES_MAX || (at == held->length && reply->finishing))
        return no_call(reply, reply->lead);
    if (at == held->length)
        return false;
    if (reply->syntax->xml) {
        enum kva_scan_result function = stands_at(reply, at, KVA_REPLY_FUNCTION);
        if (function == KVA_SCAN_MORE)
            return false;
        if (function == KVA_SCAN_DONE) {
            begin_xml(reply, at);
            return true;
        }
    }
    if (reply->syntax->array && held->data[at] == '[') {
        reply->in_array = true;
        begin_call(reply, at + 1, false);
        return true;
    }
    if (!reply->syntax->array || held->data[at] == '{') {
        begin_call(reply, at, false);
        return true;
    }
    enum kva_scan_result named = read_named(reply, &at);
    if (named == KVA_SCAN_MORE)
        return false;
    if (named == KVA_SCAN_BAD)
        return no_call(reply, reply->lead);
    begin_call(reply, at, true);
    return true;
}

static bool name_is_known(const struct kva_reply *reply, const char **ret_name, size_t *ret_length)
{
    const struct kva_call_scan *scan = &reply->scan;
    size_t from = scan->bare ? reply->name_from : scan->name_from;
    size_t length = (scan->bare ? reply->name_to : scan->name_to) - from;
    *ret_name = reply->held.data + from;
    *ret_length = length;
    for (uint32_t i = 0; i < reply->params.name_count; i++) {
        const char *name = reply->params.names[i];
        if (strlen(name) == length && memcmp(name, *ret_name, length) == 0)
            return true;
    }
    return false;
}

/* The call and what has come of its arguments. */
static void tell_call(struct kva_reply *reply)
{
    const struct kva_reply_sink *sink = &reply->params.sink;
    const struct kva_call_scan *scan = &reply->scan;
    if (!reply->call_told) {
        const char *name;
        size_t length;
        (void)name_is_known(reply, &name, &length);
        sink->call(sink->opaque, name, length);
        reply->call_told = true;
        reply->cut = false;
        reply->sated = reply->params.single;
        reply->drop_spaces = true;
        reply->told = scan->arguments_from;
    }
    size_t end = scan->arguments_to > 0 ? scan->arguments_to : scan->at;
    if (end > reply->told)
        sink->arguments(sink->opaque, reply->held.data + reply->told, end - reply->told);
    reply->told = end;
}

static bool is_valid(const struct kva_reply *reply)
{
    struct kva_json_limits limits;
    kva_json_limits_default(&limits);
    const struct kva_call_scan *scan = &reply->scan;
    size_t from = scan->bare ? scan->arguments_from : scan->from;
    return kva_json_check(reply->held.data + from, scan->at - from, &limits, NULL) == KVA_OK;
}

/* Whether a grammar has made sure of the call. */
static bool is_bound(const struct kva_reply *reply)
{
    return reply->params.bound == KVA_REPLY_BOUND ||
           (reply->params.bound == KVA_REPLY_MARKED && reply->has_marker);
}

static bool in_call(struct kva_reply *reply)
{
    struct kva_call_scan *scan = &reply->scan;
    enum kva_scan_result result = kva_call_scan_go(scan, reply->held.data, reply->held.length);
    bool named = scan->bare || scan->name_to > 0;
    const char *name;
    size_t length;
    bool known = named && (reply->call_told || name_is_known(reply, &name, &length));
    if (named && !known)
        result = KVA_SCAN_BAD;
    bool bound = is_bound(reply);
    if (result == KVA_SCAN_DONE && !reply->call_told && !bound && !is_valid(reply))
        result = KVA_SCAN_BAD;
    if (result == KVA_SCAN_DONE || (bound && known && scan->arguments_from > 0))
        tell_call(reply);
    if (result == KVA_SCAN_MORE && !reply->finishing)
        return false;
    if (result == KVA_SCAN_DONE) {
        drop(reply, scan->at);
        reply->state = STATE_AFTER;
        return true;
    }
    if (!reply->call_told)
        return no_call(reply, reply->lead);
    /* The text was cut within the call; or it is none, in spite of a grammar. */
    reply->cut = scan->arguments_to == 0;
    drop(reply, result == KVA_SCAN_MORE ? reply->held.length : reply->told);
    reply->in_array = reply->in_fence = false;
    reply->state = STATE_CONTENT;
    return true;
}

/* The index of a function that may be called; -1: there is none of that name. */
static int64_t find_function(const struct kva_reply *reply, const char *name, size_t length)
{
    for (uint32_t i = 0; i < reply->params.name_count; i++) {
        const char *known = reply->params.names[i];
        if (strlen(known) == length && memcmp(known, name, length) == 0)
            return i;
    }
    return -1;
}

/* The whole call is there: it is told as JSON, or it is none. */
static bool tell_xml(struct kva_reply *reply, size_t end)
{
    const struct kva_reply_sink *sink = &reply->params.sink;
    const char *text = reply->held.data + reply->lead, *name = NULL;
    size_t length = end - reply->lead, name_length = 0;
    struct kva_buf arguments;
    /* A byte of the text is six of JSON at most. */
    kva_buf_init(&arguments, reply->params.bytes_max * 6 + 16);
    bool named = kva_xml_read_name(text, length, &name, &name_length);
    int64_t index = named ? find_function(reply, name, name_length) : -1;
    const char *schema = index >= 0 && reply->params.schemas ? reply->params.schemas[index] : NULL;
    bool good = index >= 0 && kva_xml_put_arguments(text, length, schema, &arguments);
    if (good) {
        sink->call(sink->opaque, name, name_length);
        sink->arguments(sink->opaque, arguments.data, arguments.length);
        reply->cut = false;
        reply->sated = reply->params.single;
        reply->drop_spaces = true;
    }
    kva_buf_fail_with(&reply->held, &arguments);
    kva_buf_finish(&arguments);
    return good;
}

static bool in_xml(struct kva_reply *reply)
{
    const char *text = reply->held.data + reply->lead, *name;
    size_t length = reply->held.length - reply->lead, name_length;
    bool named =
        kva_xml_read_name(text, kva_min_size(length, KVA_XML_NAME_BYTES_MAX), &name, &name_length);
    bool hopeless =
        named ? find_function(reply, name, name_length) < 0 : length > KVA_XML_NAME_BYTES_MAX;
    enum kva_scan_result result =
        hopeless ? KVA_SCAN_BAD : kva_xml_find_end(text, length, is_bound(reply), &reply->xml);
    if (result == KVA_SCAN_MORE && !reply->finishing)
        return false;
    size_t end = reply->lead + reply->xml.at;
    if (result != KVA_SCAN_DONE || !tell_xml(reply, end))
        return no_call(reply, reply->lead);
    drop(reply, end);
    reply->scan.doubled = false;
    reply->in_array = reply->in_fence = false;
    reply->state = STATE_AFTER;
    return true;
}

/* Commas, brackets and closing marks between calls and behind them. */
static bool after_call(struct kva_reply *reply)
{
    size_t spaces;
    const char *closing = reply->in_fence     ? "```"
                          : reply->has_marker ? reply->syntax->closing
                                              : NULL;
    if (only_spaces(reply, &spaces))
        return false;
    char c = reply->held.data[0];
    if (reply->scan.doubled && c == '}') {
        drop(reply, 1);
        reply->scan.doubled = false;
        return true;
    }
    if (reply->in_array && (c == ']' || (c == ',' && !reply->sated))) {
        drop(reply, 1);
        reply->in_array = c == ',';
        if (c == ',')
            begin_call(reply, 0, false);
        return true;
    }
    if (!closing && !reply->sated && (c == ';' || c == ',')) {
        drop(reply, 1);
        reply->state = STATE_START;
        return true;
    }
    enum kva_scan_result result = closing ? stands_at(reply, 0, closing) : KVA_SCAN_BAD;
    if (result == KVA_SCAN_MORE)
        return false;
    if (result == KVA_SCAN_DONE)
        drop(reply, strlen(closing));
    reply->in_array = reply->in_fence = false;
    reply->state = STATE_START;
    return true;
}

static void advance(struct kva_reply *reply)
{
    static bool (*const states[])(struct kva_reply *) = {
        [STATE_BEGIN] = at_begin,     [STATE_REASONING] = in_reasoning, [STATE_START] = at_start,
        [STATE_CONTENT] = in_content, [STATE_MARKED] = is_marked,       [STATE_CALL] = in_call,
        [STATE_XML] = in_xml,         [STATE_AFTER] = after_call,
    };
    while (!kva_reply_failed(reply) && reply->held.length > 0 && states[reply->state](reply))
        continue;
}

void kva_reply_push(struct kva_reply *reply, const char *text, size_t length)
{
    kva_buf_append(&reply->held, text, length);
    advance(reply);
}

void kva_reply_finish(struct kva_reply *reply)
{
    reply->finishing = true;
    advance(reply);
}
