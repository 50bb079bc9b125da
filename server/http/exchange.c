/* exchange.c - one request and its answer. */
#include "server/http/internal.h"

#include "base/clock.h"
#include "server/stream/answer.h"

#include <ctype.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Fields of a response: ours, and a few short ones of the handlers. */
#define FIELDS_BYTES_MAX 8192u
/* Steps in which room for a body of unknown length is asked for. */
#define HOLD_STEP_BYTES ((size_t)64 << 10)

/* The client's X-Request-Id if it is short and harmless in logs and headers, else 128 random bits.
 */
static void choose_request_id(struct kva_exchange *exchange, const char *given)
{
    char *id = exchange->info.request_id;
    size_t length = given ? strlen(given) : 0;
    bool usable = length > 0 && length <= KVA_REQUEST_ID_MAX;
    for (size_t i = 0; usable && i < length; i++)
        usable = isalnum((unsigned char)given[i]) || strchr("-_.:/+=@", given[i]);
    if (usable) {
        memcpy(id, given, length + 1);
        return;
    }
    unsigned char random[16] = {0};
    if (RAND_bytes(random, sizeof(random)) != 1) {
        /* Uniqueness is what matters here, not secrecy. */
        uint64_t now = kva_time_ns();
        memcpy(random, &now, sizeof(now));
        memcpy(random + 8, &exchange, sizeof(void *));
    }
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof(random); i++) {
        id[2 * i] = digits[random[i] >> 4];
        id[2 * i + 1] = digits[random[i] & 15];
    }
    id[2 * sizeof(random)] = '\0';
}

/* Whether the request is one of Anthropic's API, which has errors and headers of its own. */
static bool is_anthropics(const struct kva_exchange_info *info)
{
    static const char path[] = "/v1/messages";
    size_t length = sizeof(path) - 1;
    return strncmp(info->path, path, length) == 0 &&
           (info->path[length] == '\0' || info->path[length] == '/');
}

struct kva_exchange *kva_exchange_create(struct kva_conn *conn)
{
    struct kva_http *http = conn->http;
    struct kva_exchange *exchange = calloc(1, sizeof(*exchange));
    if (!exchange)
        return NULL;
    exchange->conn = conn;
    exchange->http = http;
    http->counts.exchanges++;
    kva_buf_init(&exchange->body, http->params.body_bytes_max);
    kva_buf_init(&exchange->fields, FIELDS_BYTES_MAX);
    struct kva_exchange_info *info = &exchange->info;
    info->received_ns = exchange->progress_ns = kva_time_ns();
    info->method = "-";
    info->path = "";
    info->admin = conn->admin;
    info->reserve = conn->reserve;
    info->key_index = -1;
    memcpy(info->peer, conn->peer, sizeof(info->peer));
    const char *given_id = NULL;
    if (conn->phase == CONN_BODY) {
        const struct kva_http_head *head = kva_http_parser_head(conn->parser);
        info->method = head->method_name;
        info->path = head->path;
        given_id = kva_http_head_field(head, "X-Request-Id");
    }
    choose_request_id(exchange, given_id);
    kva_exchange_add_header(exchange, "X-Request-Id", info->request_id);
    if (is_anthropics(info))
        kva_exchange_add_header(exchange, "Request-Id", info->request_id);
    return exchange;
}

void kva_exchange_finish(struct kva_exchange *exchange)
{
    struct kva_http *http = exchange->http;
    exchange->info.aborted = exchange->info.aborted || exchange->broken;
    kva_exchange_body_done(exchange);
    exchange->conn->exchange = NULL;
    http->counts.exchanges--;
    if (http->params.done)
        http->params.done(http->params.opaque, exchange);
    kva_buf_finish(&exchange->body);
    kva_buf_finish(&exchange->fields);
    free(exchange);
}

void kva_exchange_lost(struct kva_exchange *exchange, bool stalled)
{
    struct kva_exchange_owner owner = exchange->owner;
    exchange->info.aborted = true;
    exchange->info.stalled = stalled;
    if (exchange->kept && !exchange->replied && owner.gone)
        owner.gone(owner.opaque);
    kva_exchange_finish(exchange);
}

void kva_exchange_drained(struct kva_exchange *exchange, size_t unsent)
{
    exchange->progress_ns = kva_time_ns();
    if (exchange->writable_wanted && !exchange->replied &&
        unsent <= exchange->http->params.unsent_resume_bytes) {
        exchange->writable_wanted = false;
        if (exchange->owner.writable)
            exchange->owner.writable(exchange->owner.opaque);
    }
}

/* --- the request ----------------------------------------------------------------------------- */

struct kva_exchange_info *kva_exchange_info(struct kva_exchange *exchange)
{
    return &exchange->info;
}

const struct kva_http_head *kva_exchange_head(const struct kva_exchange *exchange)
{
    return kva_http_parser_head(exchange->conn->parser);
}

const char *kva_exchange_header(const struct kva_exchange *exchange, const char *name)
{
    return kva_http_head_field(kva_exchange_head(exchange), name);
}

void kva_exchange_set_user(struct kva_exchange *exchange, const void *user)
{
    exchange->user = user;
}

const void *kva_exchange_user(const struct kva_exchange *exchange)
{
    return exchange->user;
}

/* Count `bytes` more as held; KVA_ERATE: too many of this account, KVA_EBUSY: of all. */
static enum kva_status hold(struct kva_exchange *exchange, uint64_t bytes)
{
    struct kva_http *http = exchange->http;
    const struct kva_http_params *params = &http->params;
    if (!exchange->account) {
        int key = exchange->info.key_index;
        uint64_t name =
            key >= 0 ? kva_account_name_of_key((uint32_t)key) : exchange->conn->address->name;
        exchange->account = kva_accounts_hold(http->bodies, name);
        if (!exchange->account)
            return KVA_ENOMEM;
    }
    exchange->body_wanted = bytes;
    if (exchange->account->bytes + bytes > params->bodies_account_max)
        return KVA_ERATE;
    if (http->counts.body_bytes + bytes > params->bodies_bytes_max)
        return KVA_EBUSY;
    exchange->account->bytes += bytes;
    exchange->held_bytes += bytes;
    http->counts.body_bytes += bytes;
    return KVA_OK;
}

void kva_exchange_body_done(struct kva_exchange *exchange)
{
    if (!exchange->account)
        return;
    exchange->account->bytes -= exchange->held_bytes;
    exchange->http->counts.body_bytes -= exchange->held_bytes;
    exchange->held_bytes = 0;
    kva_accounts_release(exchange->http->bodies, exchange->account);
    exchange->account = NULL;
}

enum kva_status kva_exchange_body_stays(struct kva_exchange *exchange, size_t bytes,
                                        struct kva_err *err)
{
    enum kva_status status;
    kva_exchange_body_done(exchange);
    status = bytes > 0 ? hold(exchange, bytes) : KVA_OK;
    if (status == KVA_OK)
        return KVA_OK;
    exchange->body_status = status;
    status = kva_exchange_body_error(exchange, err);
    exchange->body_status = KVA_OK; /* the body itself was read */
    return status;
}

enum kva_status kva_exchange_expect_body(struct kva_exchange *exchange, struct kva_err *err)
{
    uint64_t length = kva_exchange_head(exchange)->content_length;
    const struct kva_http_params *params = &exchange->http->params;
    if (length > params->body_bytes_max)
        return kva_fail(err, KVA_ETOOBIG,
                        "The body has %llu bytes, larger than the limit of %zu bytes.",
                        (unsigned long long)length, params->body_bytes_max);
    exchange->body_status = hold(exchange, length);
    /* The kernel gives the pages as bytes come. */
    if (exchange->body_status == KVA_OK && length > 0 &&
        !kva_buf_reserve(&exchange->body, (size_t)length))
        exchange->body_status = KVA_ENOMEM;
    return exchange->body_status == KVA_OK ? KVA_OK : kva_exchange_body_error(exchange, err);
}

enum kva_status kva_exchange_body_error(const struct kva_exchange *exchange, struct kva_err *err)
{
    const struct kva_http *http = exchange->http;
    enum kva_status status = exchange->body_status;
    if (status == KVA_ERATE)
        return kva_fail(err, status,
                        "Requests of this client would hold %llu bytes of bodies, limit is %zu "
                        "(bodies-per-key); retry later.",
                        (unsigned long long)(exchange->account->bytes + exchange->body_wanted),
                        http->params.bodies_account_max);
    if (status == KVA_EBUSY)
        return kva_fail(err, status,
                        "The server would hold %llu bytes of bodies, limit is %zu (bodies-limit); "
                        "retry later.",
                        (unsigned long long)(http->counts.body_bytes + exchange->body_wanted),
                        http->params.bodies_bytes_max);
    return kva_fail(err, status, "Out of memory for the body.");
}

bool kva_exchange_put_body(struct kva_exchange *exchange, const char *data, size_t length)
{
    size_t after = exchange->body.length + length;
    if (after > exchange->held_bytes) {
        uint64_t needed = after - exchange->held_bytes;
        exchange->body_status = hold(exchange, kva_max_u64(needed, HOLD_STEP_BYTES));
        if (exchange->body_status != KVA_OK) /* less than a step is left */
            exchange->body_status = hold(exchange, needed);
    }
    if (exchange->body_status != KVA_OK)
        return false;
    kva_buf_append(&exchange->body, data, length);
    if (exchange->body.failed)
        exchange->body_status = KVA_ENOMEM;
    exchange->info.body_bytes = after;
    return !exchange->body.failed;
}

size_t kva_exchange_body_bytes(const struct kva_exchange *exchange)
{
    return exchange->body.length;
}

char *kva_exchange_take_body(struct kva_exchange *exchange, size_t *ret_length)
{
    return kva_buf_take(&exchange->body, ret_length);
}

/* --- the answer's head ----------------------------------------------------------------------- */

void kva_exchange_add_header(struct kva_exchange *exchange, const char *name, const char *value)
{
    size_t before = exchange->fields.length;
    if (strpbrk(value, "\r\n"))
        return;
    kva_buf_printf(&exchange->fields, "%s: %s\r\n", name, value);
    /* One that has no room is left out as a whole. */
    if (exchange->fields.failed && exchange->fields.data) {
        exchange->fields.failed = false;
        exchange->fields.length = before;
    }
}

void kva_exchange_close_after(struct kva_exchange *exchange)
{
    exchange->conn->close_after = true;
}

static const char *reason_of(int code)
{
    static const struct {
        int code;
        const char *text;
    } reasons[] = {
        {200, "OK"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(reasons); i++) {
        if (reasons[i].code == code)
            return reasons[i].text;
    }
    return "";
}

/* "Date: ..." of this second. */
static const char *date_field(void)
{
    static const char days[][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char months[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    static _Thread_local char text[48];
    static _Thread_local time_t written = -1;
    time_t now = time(NULL);
    struct tm at;
    if (now == written || !gmtime_r(&now, &at))
        return text;
    snprintf(text, sizeof(text), "Date: %s, %02d %s %04d %02d:%02d:%02d GMT\r\n", days[at.tm_wday],
             at.tm_mday, months[at.tm_mon], (at.tm_year + 1900) % 10000, at.tm_hour, at.tm_min,
             at.tm_sec);
    written = now;
    return text;
}

/* A long body that is not read is the end of the connection, and so is a drain. */
static void put_head(struct kva_exchange *exchange, int code, struct kva_buf *out)
{
    struct kva_conn *conn = exchange->conn;
    const struct kva_http_head *head = kva_exchange_head(exchange);
    if (conn->phase == CONN_BODY &&
        (head->chunked || head->expects_continue || head->content_length > KVA_HTTP_DISCARD_MAX))
        conn->close_after = true;
    conn->close_after = conn->close_after || exchange->http->draining;
    kva_buf_printf(out, "HTTP/1.1 %d %s\r\n%s", code, reason_of(code), date_field());
    if (exchange->fields.data)
        kva_buf_append(out, exchange->fields.data, exchange->fields.length);
    if (conn->close_after)
        kva_buf_puts(out, "Connection: close\r\n");
    else if (head->minor == 0)
        kva_buf_puts(out, "Connection: keep-alive\r\n");
}

/* Without memory for all of it an answer must not look whole: the peer sees its connection close,
 * and so does the event loop, which then lets everything go. */
static void break_off(struct kva_exchange *exchange)
{
    exchange->broken = true;
    shutdown(bufferevent_getfd(exchange->conn->bev), SHUT_RDWR);
}

/* --- the answer ------------------------------------------------------------------------------ */

void kva_exchange_keep(struct kva_exchange *exchange, const struct kva_exchange_owner *owner)
{
    exchange->owner = *owner;
    exchange->kept = true;
}

void kva_exchange_reply(struct kva_exchange *exchange, int code, const char *content_type,
                        const void *body, size_t length)
{
    struct kva_buf head;
    /* Both announce the length that a body would have. */
    bool bodiless = kva_exchange_head(exchange)->method == KVA_HTTP_HEAD || code == 304;
    kva_buf_init(&head, FIELDS_BYTES_MAX + 512);
    /* The head announces the length: without memory for the body there is none. */
    if (length > 0 && !body) {
        code = 503;
        length = 0;
    }
    exchange->info.status = code;
    exchange->info.sent_bytes = length;
    exchange->replied = true;
    if (content_type)
        kva_exchange_add_header(exchange, "Content-Type", content_type);
    put_head(exchange, code, &head);
    if (code != 204)
        kva_buf_printf(&head, "Content-Length: %zu\r\n", length);
    kva_buf_puts(&head, "\r\n");
    struct iovec parts[] = {{head.data, head.length},
                            {(void *)(uintptr_t)body, bodiless ? 0 : length}};
    if (head.failed || !kva_conn_write(exchange->conn, parts, KVA_COUNT_OF(parts)))
        break_off(exchange);
    kva_buf_finish(&head);
    kva_conn_replied(exchange->conn);
}

void kva_exchange_reply_buf(struct kva_exchange *exchange, int code, const char *content_type,
                            const struct kva_buf *body)
{
    if (body->failed)
        kva_exchange_reply(exchange, 503, content_type, NULL, 0);
    else
        kva_exchange_reply(exchange, code, content_type, body->data, body->length);
}

void kva_exchange_note_error(struct kva_exchange *exchange, enum kva_status status,
                             const struct kva_err *err)
{
    exchange->info.error = kva_status_info(status)->name;
    snprintf(exchange->info.param, sizeof(exchange->info.param), "%s", err ? err->param : "");
}

void kva_exchange_reply_error(struct kva_exchange *exchange, enum kva_status status,
                              const struct kva_err *err)
{
    struct kva_buf body;
    kva_exchange_note_error(exchange, status, err);
    kva_buf_init(&body, 8192);
    if (is_anthropics(&exchange->info))
        kva_anthropic_error_json(&body, status, err, exchange->info.request_id);
    else
        kva_error_json(&body, status, err);
    kva_exchange_reply_buf(exchange, kva_status_info(status)->http_code, "application/json", &body);
    kva_buf_finish(&body);
}

void kva_exchange_stream_begin(struct kva_exchange *exchange, int code, const char *content_type)
{
    struct kva_buf head;
    kva_buf_init(&head, FIELDS_BYTES_MAX + 512);
    exchange->info.status = code;
    /* Without chunks only the end of the connection ends the body. */
    exchange->chunked = kva_exchange_head(exchange)->minor == 1;
    if (!exchange->chunked)
        exchange->conn->close_after = true;
    kva_exchange_add_header(exchange, "Content-Type", content_type);
    kva_exchange_add_header(exchange, "Cache-Control", "no-cache");
    /* nginx and its like would otherwise collect the stream. */
    kva_exchange_add_header(exchange, "X-Accel-Buffering", "no");
    put_head(exchange, code, &head);
    kva_buf_puts(&head, exchange->chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    struct iovec part = {head.data, head.length};
    if (head.failed || !kva_conn_write(exchange->conn, &part, 1))
        break_off(exchange);
    kva_buf_finish(&head);
}

void kva_exchange_stream_write(struct kva_exchange *exchange, const void *data, size_t length)
{
    char size[24];
    if (length == 0 || exchange->broken)
        return;
    exchange->info.sent_bytes += length;
    int size_bytes = exchange->chunked ? snprintf(size, sizeof(size), "%zx\r\n", length) : 0;
    struct iovec parts[] = {
        {size, (size_t)size_bytes},
        {(void *)(uintptr_t)data, length},
        {(void *)(uintptr_t) "\r\n", exchange->chunked ? 2 : 0},
    };
    if (!kva_conn_write(exchange->conn, parts, KVA_COUNT_OF(parts)))
        break_off(exchange);
    if (kva_exchange_unsent(exchange) > exchange->http->params.unsent_resume_bytes)
        exchange->writable_wanted = true;
}

void kva_exchange_stream_end(struct kva_exchange *exchange, bool close_connection)
{
    struct iovec part = {(void *)(uintptr_t) "0\r\n\r\n", 5};
    exchange->replied = true;
    if (close_connection)
        exchange->conn->close_after = true;
    if (exchange->chunked && !exchange->broken && !kva_conn_write(exchange->conn, &part, 1))
        break_off(exchange);
    kva_conn_replied(exchange->conn);
}

size_t kva_exchange_unsent(const struct kva_exchange *exchange)
{
    return evbuffer_get_length(bufferevent_get_output(exchange->conn->bev));
}

void kva_exchange_abort(struct kva_exchange *exchange)
{
    exchange->replied = true;
    kva_conn_close(exchange->conn);
}
