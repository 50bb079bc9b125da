/* Which handler answers what, and what is refused before any of them. */
#include "server/internal.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct route {
    const char *path; /* ends with '/': a prefix */
    uint32_t methods; /* enum evhttp_cmd_type */
    bool open;        /* no key needed */
    void (*handle)(struct kva_server *server, struct kva_exchange *exchange);
};

#define GET  (EVHTTP_REQ_GET | EVHTTP_REQ_HEAD)
#define POST EVHTTP_REQ_POST

static const struct route routes[] = {
    {"/v1/chat/completions", POST, false, kva_call_chat},
    {"/v1/completions", POST, false, kva_call_completion},
    {"/health", GET, true, kva_view_health},
    {"/ready", GET, false, kva_view_ready},
    {"/metrics", GET, false, kva_view_metrics},
    {"/v1/models", GET, false, kva_view_models},
    {"/v1/models/", GET, false, kva_view_model},
    {"/version", GET, false, kva_view_version},
    {"/tokenize", POST, false, kva_view_tokenize},
    {"/detokenize", POST, false, kva_view_detokenize},
    {"/v1/kvahead/requests", GET, false, kva_view_requests},
};

/* Known to clients, not here yet: the answer should not look like a typing error. */
static const char *const later[] = {"/v1/responses",          "/v1/embeddings",  "/v1/audio/speech",
                                    "/v1/images/generations", "/v1/moderations", "/v1/rerank"};

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; i < KVA_COUNT_OF(routes); i++) {
        size_t length = strlen(routes[i].path);
        bool prefix = routes[i].path[length - 1] == '/';
        if (prefix ? strncmp(path, routes[i].path, length) == 0 && path[length] != '\0'
                   : strcmp(path, routes[i].path) == 0)
            return &routes[i];
    }
    return NULL;
}

void kva_server_count_rejection(struct kva_server *server, enum kva_status status)
{
    static const enum kva_reject_reason reasons[KVA_STATUS_COUNT] = {
        [KVA_EINVAL] = KVA_REJECT_INVALID,      [KVA_EUNSUPPORTED] = KVA_REJECT_INVALID,
        [KVA_ENOTFOUND] = KVA_REJECT_INVALID,   [KVA_EMETHOD] = KVA_REJECT_INVALID,
        [KVA_EMODEL] = KVA_REJECT_INVALID,      [KVA_EMEDIATYPE] = KVA_REJECT_INVALID,
        [KVA_ETOOBIG] = KVA_REJECT_INVALID,     [KVA_EFORMAT] = KVA_REJECT_INVALID,
        [KVA_ECONTEXT] = KVA_REJECT_CONTEXT,    [KVA_EAUTH] = KVA_REJECT_KEY,
        [KVA_ERATE] = KVA_REJECT_RATE,          [KVA_EBUSY] = KVA_REJECT_QUEUE_FULL,
        [KVA_ELIMIT] = KVA_REJECT_BUDGET,       [KVA_ENOMEM] = KVA_REJECT_BUDGET,
        [KVA_EWAITED] = KVA_REJECT_WAITED,      [KVA_EDEVICE] = KVA_REJECT_DEVICE,
        [KVA_ETIMEOUT] = KVA_REJECT_INVALID,    [KVA_EHEADERS] = KVA_REJECT_INVALID,
        [KVA_EINTERNAL] = KVA_REJECT_DEVICE,    [KVA_EIO] = KVA_REJECT_DEVICE,
        [KVA_ECANCELLED] = KVA_REJECT_DRAINING, [KVA_OK] = KVA_REJECT_INVALID,
    };
    enum kva_reject_reason reason = reasons[status];
    if (status == KVA_EBUSY && server->phase == KVA_PHASE_LOADING)
        reason = KVA_REJECT_LOADING;
    if (status == KVA_EBUSY && server->phase == KVA_PHASE_DRAINING)
        reason = KVA_REJECT_DRAINING;
    server->metrics.rejected[reason]++;
}

enum kva_status kva_server_check_open(struct kva_server *server, struct kva_err *err)
{
    switch (server->phase) {
    case KVA_PHASE_READY:
        return KVA_OK;
    case KVA_PHASE_LOADING:
        return kva_fail(err, KVA_EBUSY, "The model is still loading; retry later.");
    case KVA_PHASE_DRAINING:
        return kva_fail(err, KVA_EBUSY, "The server is shutting down; retry elsewhere.");
    case KVA_PHASE_FAILED:
        break;
    }
    return kva_fail(err, KVA_EDEVICE, "%s", server->fail_message);
}

enum kva_status kva_server_check_json(struct kva_exchange *exchange, struct kva_err *err)
{
    const char *type = kva_exchange_header(exchange, "Content-Type");
    size_t length = type ? strcspn(type, "; \t") : 0;
    bool json = length == 16 && strncasecmp(type, "application/json", 16) == 0;
    if (!json && length > 5)
        json = strncasecmp(type, "application/", 12) == 0 &&
               strncasecmp(type + length - 5, "+json", 5) == 0;
    if (!json)
        return kva_fail(err, KVA_EMEDIATYPE,
                        "The content type is '%.80s', but must be 'application/json'.",
                        type ? type : "");
    const char *coding = kva_exchange_header(exchange, "Content-Encoding");
    if (coding && strcasecmp(coding, "identity") != 0)
        return kva_fail(err, KVA_EMEDIATYPE, "The content encoding '%.40s' is not supported.",
                        coding);
    if (evbuffer_get_length(kva_exchange_body(exchange)) == 0)
        return kva_fail(err, KVA_EINVAL, "The body is empty, but must be a JSON object.");
    return KVA_OK;
}

void kva_server_reply_error(struct kva_server *server, struct kva_exchange *exchange,
                            enum kva_status status, const struct kva_err *err)
{
    int code = kva_status_info(status)->http_code;
    struct kva_buf body;
    kva_buf_init(&body, 8192);
    kva_error_json(&body, status, err);
    if (code == 503) {
        char seconds[16];
        snprintf(seconds, sizeof(seconds), "%u", server->params.retry_after_s);
        kva_exchange_add_header(exchange, "Retry-After", seconds);
    }
    kva_server_count_rejection(server, status);
    kva_exchange_reply_buf(exchange, code, "application/json", &body);
    kva_buf_finish(&body);
}

static bool origin_allowed(const struct kva_server *server, const char *origin)
{
    for (uint32_t i = 0; i < server->params.cors_origin_count; i++) {
        const char *allowed = server->params.cors_origins[i];
        if (strcmp(allowed, "*") == 0 || strcasecmp(allowed, origin) == 0)
            return true;
    }
    return false;
}

static void add_cors(const struct kva_server *server, struct kva_exchange *exchange)
{
    const char *origin = kva_exchange_header(exchange, "Origin");
    if (!origin || !origin_allowed(server, origin))
        return;
    kva_exchange_add_header(exchange, "Access-Control-Allow-Origin", origin);
    kva_exchange_add_header(exchange, "Vary", "Origin");
    kva_exchange_add_header(exchange, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

static void list_methods(uint32_t methods, char *out, size_t size)
{
    snprintf(out, size, "%s%s", methods & EVHTTP_REQ_POST ? "POST" : "GET, HEAD", ", OPTIONS");
}

/* A browser asks before it sends a key or JSON. */
static void reply_preflight(const struct route *route, struct kva_exchange *exchange)
{
    char methods[64];
    list_methods(route->methods, methods, sizeof(methods));
    kva_exchange_add_header(exchange, "Allow", methods);
    kva_exchange_add_header(exchange, "Access-Control-Allow-Methods", methods);
    kva_exchange_add_header(exchange, "Access-Control-Allow-Headers",
                            "Authorization, Content-Type, X-API-Key, X-Request-Id");
    kva_exchange_add_header(exchange, "Access-Control-Max-Age", "600");
    kva_exchange_reply(exchange, 204, NULL, NULL, 0);
}

static enum kva_status check_key(struct kva_server *server, struct kva_exchange *exchange,
                                 struct kva_err *err)
{
    struct kva_exchange_info *info = kva_exchange_info(exchange);
    const struct kva_auth_request request = {
        .authorization = kva_exchange_header(exchange, "Authorization"),
        .api_key_header = kva_exchange_header(exchange, "X-API-Key"),
        .peer = info->peer,
        .now_ns = info->received_ns,
    };
    uint32_t retry_s = 0;
    enum kva_status status =
        kva_auth_check(server->auth, &request, &info->key_index, &retry_s, err);
    if (status == KVA_EAUTH)
        kva_exchange_add_header(exchange, "WWW-Authenticate", "Bearer");
    if (status == KVA_OK && kva_exchange_method(exchange) == EVHTTP_REQ_POST)
        status = kva_auth_take(server->auth, info->key_index, info->received_ns, &retry_s, err);
    if (status == KVA_ERATE) {
        char seconds[16];
        snprintf(seconds, sizeof(seconds), "%u", retry_s);
        kva_exchange_add_header(exchange, "Retry-After", seconds);
    }
    return status;
}

static enum kva_status no_route(const char *path, struct kva_err *err)
{
    for (size_t i = 0; i < KVA_COUNT_OF(later); i++) {
        if (strcmp(path, later[i]) == 0)
            return kva_fail(err, KVA_ENOTFOUND, "%s is not supported by this server.", path);
    }
    return kva_fail(err, KVA_ENOTFOUND, "There is no route '%.200s'.", path);
}

void kva_server_handle(void *opaque, struct kva_exchange *exchange)
{
    struct kva_server *server = opaque;
    struct kva_exchange_info *info = kva_exchange_info(exchange);
    const struct route *route = find_route(info->path);
    enum evhttp_cmd_type method = kva_exchange_method(exchange);
    enum kva_status status = KVA_OK;
    struct kva_err err = {.status = KVA_OK};
    add_cors(server, exchange);
    if (route)
        info->route = route->path;
    if (kva_exchange_framing_ambiguous(exchange)) {
        kva_exchange_add_header(exchange, "Connection", "close");
        status = kva_fail(&err, KVA_EINVAL, "The length of the body is given more than once.");
    } else if (route && method == EVHTTP_REQ_OPTIONS) {
        reply_preflight(route, exchange);
        return;
    } else if (!route || !route->open) {
        /* Without a key, routes that exist look like those that do not. */
        status = check_key(server, exchange, &err);
    }
    if (status == KVA_OK && !route)
        status = no_route(info->path, &err);
    if (status == KVA_OK && !(route->methods & method)) {
        char methods[64];
        list_methods(route->methods, methods, sizeof(methods));
        kva_exchange_add_header(exchange, "Allow", methods);
        status =
            kva_fail(&err, KVA_EMETHOD, "%s is not allowed here, only %s.", info->method, methods);
    }
    if (status != KVA_OK)
        kva_server_reply_error(server, exchange, status, &err);
    else
        route->handle(server, exchange);
}
