/* parser.c - llhttp's callbacks, and the checks of a head that are not its business. */
#include "server/http/parser.h"

#include "base/buf.h"

#include <llhttp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Framing of chunks costs bytes: at most this many for each byte of the body. */
#define FRAMING_PER_BODY_BYTE 16u
/* Text storage that a parser keeps between messages. */
#define TEXT_KEPT_BYTES 4096u

enum stage {
    STAGE_HEAD,
    STAGE_BODY,
    STAGE_ENDED,
    STAGE_REFUSED,
};

struct kva_http_parser {
    struct kva_http_parser_params params;
    llhttp_t llhttp;
    llhttp_settings_t settings;
    struct kva_http_head head;
    struct kva_err err;
    enum stage stage;
    struct kva_buf text; /* the head's strings, each ended by NUL */
    size_t target_at;    /* where they begin in it */
    size_t name_at;
    size_t value_at;
    size_t fields_at[KVA_HTTP_FIELDS_MAX][2];
    uint64_t head_bytes;    /* of line and fields */
    uint64_t framing_bytes; /* behind the head and not the body's */
    uint64_t body_bytes;
    char first;      /* byte of the request line */
    uint32_t spaces; /* in it */
    bool line_ended;
    bool begun;
};

static int refuse(struct kva_http_parser *parser, enum kva_status status, const char *message)
{
    if (parser->stage != STAGE_REFUSED)
        kva_fail(&parser->err, status, "%s", message);
    parser->stage = STAGE_REFUSED;
    return HPE_USER;
}

static struct kva_http_parser *parser_of(llhttp_t *llhttp)
{
    return llhttp->data;
}

/* --- the head's strings ---------------------------------------------------------------------- */

static int put(struct kva_http_parser *parser, const char *at, size_t length)
{
    kva_buf_append(&parser->text, at, length);
    if (parser->text.failed)
        return refuse(parser, KVA_ENOMEM, "Out of memory for the headers.");
    return 0;
}

static int end_string(struct kva_http_parser *parser)
{
    return put(parser, "", 1);
}

static int on_url(llhttp_t *llhttp, const char *at, size_t length)
{
    return put(parser_of(llhttp), at, length);
}

static int on_url_complete(llhttp_t *llhttp)
{
    struct kva_http_parser *parser = parser_of(llhttp);
    int code = end_string(parser);
    parser->name_at = parser->text.length;
    return code;
}

static int on_field(llhttp_t *llhttp, const char *at, size_t length)
{
    struct kva_http_parser *parser = parser_of(llhttp);
    return parser->stage == STAGE_HEAD ? put(parser, at, length) : 0;
}

static int on_field_complete(llhttp_t *llhttp)
{
    struct kva_http_parser *parser = parser_of(llhttp);
    if (parser->stage != STAGE_HEAD)
        return 0;
    int code = end_string(parser);
    parser->value_at = parser->text.length;
    return code;
}

/* White space behind a value is not part of it. */
static int on_value_complete(llhttp_t *llhttp)
{
    struct kva_http_parser *parser = parser_of(llhttp);
    struct kva_buf *text = &parser->text;
    if (parser->stage != STAGE_HEAD)
        return 0;
    while (text->length > parser->value_at &&
           (text->data[text->length - 1] == ' ' || text->data[text->length - 1] == '\t'))
        text->length--;
    if (parser->head.field_count == KVA_HTTP_FIELDS_MAX)
        return refuse(parser, KVA_EHEADERS, "There are more than 100 header fields.");
    size_t *at = parser->fields_at[parser->head.field_count++];
    at[0] = parser->name_at;
    at[1] = parser->value_at;
    int code = end_string(parser);
    parser->name_at = text->length;
    return code;
}

static int on_version_complete(llhttp_t *llhttp)
{
    struct kva_http_parser *parser = parser_of(llhttp);
    if (llhttp->http_major != 1 || llhttp->http_minor > 1)
        return refuse(parser, KVA_EVERSION, "Only HTTP/1.1 and HTTP/1.0 are spoken here.");
    parser->head.minor = llhttp->http_minor;
    return 0;
}

/* --- what a head says ------------------------------------------------------------------------ */

const char *kva_http_head_field(const struct kva_http_head *head, const char *name)
{
    for (uint32_t i = 0; i < head->field_count; i++) {
        if (strcasecmp(head->fields[i].name, name) == 0)
            return head->fields[i].value;
    }
    return NULL;
}

static uint32_t count_fields(const struct kva_http_head *head, const char *name)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < head->field_count; i++)
        count += strcasecmp(head->fields[i].name, name) == 0;
    return count;
}

/* reg-name, IPv4address or [IPv6], and a port: what a host can be made of. */
static bool is_authority(const char *text)
{
    for (; *text; text++) {
        bool alphanumeric = (*text >= '0' && *text <= '9') || (*text >= 'a' && *text <= 'z') ||
                            (*text >= 'A' && *text <= 'Z');
        if (!alphanumeric && !strchr("-._~:[]%!$&'()*+,;=", *text))
            return false;
    }
    return true;
}

/* "/path?query", "*", or "http://authority/path?query"; nothing else. */
static int read_target(struct kva_http_parser *parser, char *target)
{
    struct kva_http_head *head = &parser->head;
    for (const char *c = target; *c; c++) {
        if (*c <= 0x20 || *c >= 0x7F || *c == '#')
            return refuse(parser, KVA_EINVAL, "The request target has a forbidden character.");
    }
    bool secure = strncasecmp(target, "https://", 8) == 0;
    if (secure || strncasecmp(target, "http://", 7) == 0) {
        char *authority = target + (secure ? 8 : 7);
        size_t length = strcspn(authority, "/?");
        char *rest = authority + length;
        if (length == 0)
            return refuse(parser, KVA_EINVAL, "The request target names no host.");
        /* The NUL behind the authority takes the place of its last separator: move it down. */
        memmove(authority - 1, authority, length);
        authority--;
        authority[length] = '\0';
        head->authority = authority;
        head->path = *rest == '/' ? rest : "/";
        target = rest;
    } else if (*target == '/' || (strcmp(target, "*") == 0 && head->method == KVA_HTTP_OPTIONS)) {
        head->path = target;
    } else {
        return refuse(parser, KVA_EINVAL, "The request target is not a path.");
    }
    char *query = strchr(target, '?');
    if (query) {
        *query = '\0';
        head->query = query + 1;
    }
    return 0;
}

static int check_host(struct kva_http_parser *parser)
{
    struct kva_http_head *head = &parser->head;
    const char *host = kva_http_head_field(head, "Host");
    uint32_t hosts = count_fields(head, "Host");
    if (hosts > 1 || (hosts == 0 && head->minor == 1))
        return refuse(parser, KVA_EINVAL,
                      hosts ? "There is more than one Host." : "HTTP/1.1 needs a Host.");
    if (host && !is_authority(host))
        return refuse(parser, KVA_EINVAL, "The Host is not a host name.");
    if (!head->authority)
        head->authority = host ? host : "";
    else if (!is_authority(head->authority) || (host && strcasecmp(host, head->authority) != 0))
        return refuse(parser, KVA_EINVAL, "The Host is not that of the request target.");
    return 0;
}

/* llhttp has refused what is ambiguous; what is left are codings that nobody here can undo. */
static int check_framing(struct kva_http_parser *parser)
{
    struct kva_http_head *head = &parser->head;
    const char *coding = kva_http_head_field(head, "Transfer-Encoding");
    uint32_t codings = count_fields(head, "Transfer-Encoding");
    uint32_t lengths = count_fields(head, "Content-Length");
    if (lengths > 1 || (lengths && codings))
        return refuse(parser, KVA_EINVAL, "The length of the body is given more than once.");
    if (codings > 1 || (codings && head->minor == 0))
        return refuse(parser, KVA_EINVAL, "The transfer coding is ambiguous.");
    if (coding && strcasecmp(coding, "chunked") != 0)
        return refuse(parser, KVA_ECODING, "The only transfer coding here is 'chunked'.");
    head->chunked = coding != NULL;
    head->content_length = coding || !lengths ? 0 : parser->llhttp.content_length;
    const char *expect = kva_http_head_field(head, "Expect");
    if (expect && (strcasecmp(expect, "100-continue") != 0 || count_fields(head, "Expect") > 1))
        return refuse(parser, KVA_EEXPECT, "The only expectation met here is '100-continue'.");
    head->expects_continue =
        expect && head->minor == 1 && (head->chunked || head->content_length > 0);
    return 0;
}

static enum kva_http_method method_of(uint8_t method)
{
    switch (method) {
    case HTTP_GET:
        return KVA_HTTP_GET;
    case HTTP_HEAD:
        return KVA_HTTP_HEAD;
    case HTTP_POST:
        return KVA_HTTP_POST;
    case HTTP_PUT:
        return KVA_HTTP_PUT;
    case HTTP_DELETE:
        return KVA_HTTP_DELETE;
    case HTTP_OPTIONS:
        return KVA_HTTP_OPTIONS;
    case HTTP_PATCH:
        return KVA_HTTP_PATCH;
    default:
        return KVA_HTTP_OTHER;
    }
}

static int on_headers_complete(llhttp_t *llhttp)
{
    struct kva_http_parser *parser = parser_of(llhttp);
    struct kva_http_head *head = &parser->head;
    char *text = parser->text.data;
    for (uint32_t i = 0; i < head->field_count; i++) {
        head->fields[i].name = text + parser->fields_at[i][0];
        head->fields[i].value = text + parser->fields_at[i][1];
    }
    head->method = method_of(llhttp->method);
    head->method_name = llhttp_method_name((llhttp_method_t)llhttp->method);
    if (llhttp->method == HTTP_CONNECT)
        return refuse(parser, KVA_EMETHOD, "This server is not a proxy.");
    int code = read_target(parser, text + parser->target_at);
    if (code == 0)
        code = check_host(parser);
    if (code == 0)
        code = check_framing(parser);
    if (code != 0)
        return code;
    head->keep_alive = llhttp_should_keep_alive(llhttp);
    /* No protocol is changed to: an offer to do so is a request like any other. */
    llhttp->upgrade = 0;
    parser->stage = STAGE_BODY;
    return HPE_PAUSED;
}

/* --- the body -------------------------------------------------------------------------------- */

static int on_body(llhttp_t *llhttp, const char *at, size_t length)
{
    struct kva_http_parser *parser = parser_of(llhttp);
    parser->body_bytes += length;
    if (parser->params.body(parser->params.opaque, at, length))
        return 0;
    parser->stage = STAGE_REFUSED;
    return HPE_USER;
}

static int on_chunk_header(llhttp_t *llhttp)
{
    struct kva_http_parser *parser = parser_of(llhttp);
    uint64_t room = parser->params.body_bytes_max - parser->body_bytes;
    char message[96];
    if (llhttp->content_length > room) {
        snprintf(message, sizeof(message), "The body is larger than the limit of %zu bytes.",
                 parser->params.body_bytes_max);
        return refuse(parser, KVA_ETOOBIG, message);
    }
    return 0;
}

static int on_message_complete(llhttp_t *llhttp)
{
    parser_of(llhttp)->stage = STAGE_ENDED;
    return HPE_PAUSED;
}

/* --- one message after another --------------------------------------------------------------- */

struct kva_http_parser *kva_http_parser_create(const struct kva_http_parser_params *params)
{
    struct kva_http_parser *parser = calloc(1, sizeof(*parser));
    if (!parser)
        return NULL;
    parser->params = *params;
    llhttp_settings_init(&parser->settings);
    parser->settings.on_url = on_url;
    parser->settings.on_url_complete = on_url_complete;
    parser->settings.on_version_complete = on_version_complete;
    parser->settings.on_header_field = on_field;
    parser->settings.on_header_value = on_field;
    parser->settings.on_header_field_complete = on_field_complete;
    parser->settings.on_header_value_complete = on_value_complete;
    parser->settings.on_headers_complete = on_headers_complete;
    parser->settings.on_body = on_body;
    parser->settings.on_chunk_header = on_chunk_header;
    parser->settings.on_message_complete = on_message_complete;
    llhttp_init(&parser->llhttp, HTTP_REQUEST, &parser->settings);
    parser->llhttp.data = parser;
    /* Twice the bytes that may come: every string gets a NUL. */
    kva_buf_init(&parser->text, 2 * params->head_bytes_max + 64);
    parser->stage = STAGE_HEAD;
    return parser;
}

void kva_http_parser_destroy(struct kva_http_parser *parser)
{
    if (!parser)
        return;
    kva_buf_finish(&parser->text);
    free(parser);
}

static void begin_message(struct kva_http_parser *parser)
{
    if (parser->text.capacity > TEXT_KEPT_BYTES)
        kva_buf_finish(&parser->text);
    kva_buf_clear(&parser->text);
    memset(&parser->head, 0, sizeof(parser->head));
    parser->target_at = parser->name_at = parser->value_at = 0;
    parser->head_bytes = parser->framing_bytes = parser->body_bytes = 0;
    parser->first = '\0';
    parser->spaces = 0;
    parser->line_ended = false;
    parser->begun = false;
    parser->stage = STAGE_HEAD;
    llhttp_reset(&parser->llhttp);
}

/* Some of llhttp's refusals have a better code than 400. It stops within a method that it does not
 * know: what begins as methods do is taken for one. */
static void translate_error(struct kva_http_parser *parser, llhttp_errno_t code)
{
    char message[160];
    enum kva_status status = KVA_EINVAL;
    const char *reason = llhttp_get_error_reason(&parser->llhttp);
    if (!reason)
        reason = llhttp_errno_name(code);
    snprintf(message, sizeof(message), "The request is not valid HTTP/1.1: %s.", reason);
    if (code == HPE_INVALID_METHOD && strncmp(reason, "Invalid", 7) == 0 && parser->first >= 'A' &&
        parser->first <= 'Z') {
        status = KVA_EMETHOD;
        snprintf(message, sizeof(message), "The method is unknown.");
    } else if ((code == HPE_INVALID_VERSION && strncmp(reason, "Invalid", 7) == 0) ||
               code == HPE_PAUSED_H2_UPGRADE) {
        status = KVA_EVERSION;
        snprintf(message, sizeof(message), "Only HTTP/1.1 and HTTP/1.0 are spoken here.");
    }
    (void)refuse(parser, status, message);
}

static uint64_t framing_max(const struct kva_http_parser *parser)
{
    return parser->params.head_bytes_max + FRAMING_PER_BODY_BYTE * parser->body_bytes;
}

static bool too_long(struct kva_http_parser *parser)
{
    char message[96];
    if (parser->head_bytes > parser->params.head_bytes_max) {
        snprintf(message, sizeof(message), "The headers are larger than the limit of %zu bytes.",
                 parser->params.head_bytes_max);
        (void)refuse(parser, KVA_EHEADERS, message);
    } else if (parser->framing_bytes > framing_max(parser)) {
        (void)refuse(parser, KVA_EINVAL, "The body has too many chunk extensions or trailers.");
    }
    return parser->stage == STAGE_REFUSED;
}

/* Bytes up to the end of the request line, that one included; SIZE_MAX: it does not end here. */
static size_t scan_line(struct kva_http_parser *parser, const char *data, size_t length)
{
    for (size_t i = 0; i < length && !parser->line_ended; i++) {
        if (!parser->first && (data[i] == '\r' || data[i] == '\n'))
            continue;
        if (!parser->first)
            parser->first = data[i] ? data[i] : ' '; /* NUL is a byte like others */
        parser->spaces += data[i] == ' ';
        parser->line_ended = data[i] == '\n';
        if (parser->line_ended)
            return i + 1;
    }
    return SIZE_MAX;
}

enum kva_http_event kva_http_parser_feed(struct kva_http_parser *parser, const char *data,
                                         size_t length, size_t *ret_used)
{
    *ret_used = 0;
    if (parser->stage == STAGE_REFUSED)
        return KVA_HTTP_EVENT_REFUSED;
    if (parser->stage == STAGE_ENDED)
        begin_message(parser);
    if (length == 0 && parser->stage == STAGE_HEAD)
        return KVA_HTTP_EVENT_MORE;
    enum stage before = parser->stage;
    uint64_t body_before = parser->body_bytes;
    size_t line_end = SIZE_MAX;
    parser->begun = true;
    if (before == STAGE_HEAD) {
        /* No more than may be: an endless head costs no more than an allowed one. */
        uint64_t room = parser->params.head_bytes_max + 1 - parser->head_bytes;
        length = length < room ? length : (size_t)room;
        line_end = scan_line(parser, data, length);
    } else {
        /* Nor more framing, were it nothing else: what is refused, and why, does not depend on the
         * pieces in which it comes. */
        uint64_t room = framing_max(parser) + 1 - parser->framing_bytes;
        length = length < room ? length : (size_t)room;
    }
    llhttp_errno_t code = llhttp_execute(&parser->llhttp, length ? data : "", length);
    size_t used = length;
    if (code != HPE_OK && length > 0) {
        const char *at = llhttp_get_error_pos(&parser->llhttp);
        used = at >= data && at <= data + length ? (size_t)(at - data) : length;
    }
    *ret_used = used;
    if (before == STAGE_HEAD)
        parser->head_bytes += used;
    else
        parser->framing_bytes += used - (parser->body_bytes - body_before);
    if (line_end <= used && parser->spaces != 2) {
        /* llhttp takes several spaces for one, and a line without a version for HTTP/0.9. Whatever
         * came behind the line does not matter any more. */
        parser->stage = STAGE_HEAD;
        (void)refuse(parser, KVA_EINVAL,
                     "The request line is not a method, a target and a version with one space "
                     "between them.");
        return KVA_HTTP_EVENT_REFUSED;
    }
    if (parser->stage != STAGE_REFUSED && too_long(parser))
        return KVA_HTTP_EVENT_REFUSED;
    if (code == HPE_PAUSED) {
        llhttp_resume(&parser->llhttp);
        if (parser->stage == STAGE_ENDED) {
            parser->begun = false;
            return KVA_HTTP_EVENT_END;
        }
        return KVA_HTTP_EVENT_HEAD;
    }
    if (code != HPE_OK && parser->stage != STAGE_REFUSED)
        translate_error(parser, code);
    return parser->stage == STAGE_REFUSED ? KVA_HTTP_EVENT_REFUSED : KVA_HTTP_EVENT_MORE;
}

bool kva_http_parser_begun(const struct kva_http_parser *parser)
{
    return parser->begun;
}

const struct kva_http_head *kva_http_parser_head(const struct kva_http_parser *parser)
{
    return &parser->head;
}

const struct kva_err *kva_http_parser_error(const struct kva_http_parser *parser)
{
    return &parser->err;
}
