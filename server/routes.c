/* routes.c - which handler answers what, and what is refused before any of them. */
#include "server/internal.h"

#include "server/page/page.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum access {
    ACCESS_KEY,   /* with a key, if there are any */
    ACCESS_ADMIN, /* the same; on the admin listener without */
    ACCESS_PAGE,  /* everybody: it has nothing to hide, and its user enters the key */
    ACCESS_OPEN,  /* the same, whatever the load: probes */
};

struct route {
    const char *path; /* ends with '/': a prefix */
    uint32_t methods; /* of enum kva_http_method */
    enum access access;
    void (*handle)(struct kva_server *server, struct kva_exchange *exchange);
};

#define GET  (KVA_HTTP_GET | KVA_HTTP_HEAD)
#define POST KVA_HTTP_POST

static const struct route routes[] = {
    {"/v1/chat/completions", POST, ACCESS_KEY, kva_call_chat},
    {"/v1/completions", POST, ACCESS_KEY, kva_call_completion},
    {"/v1/embeddings", POST, ACCESS_KEY, kva_call_embeddings},
    {"/v1/messages", POST, ACCESS_KEY, kva_call_messages},
    {"/v1/messages/count_tokens", POST, ACCESS_KEY, kva_view_count_tokens},
    {"/v1/responses", POST, ACCESS_KEY, kva_call_responses},
    {"/v1/responses/", GET | KVA_HTTP_DELETE | POST, ACCESS_KEY, kva_view_response},
    {"/health", GET, ACCESS_OPEN, kva_view_health},
    {"/ready", GET, ACCESS_OPEN, kva_view_ready},
    {"/metrics", GET, ACCESS_ADMIN, kva_view_metrics},
    {"/v1/models", GET, ACCESS_KEY, kva_view_models},
    {"/v1/models/", GET, ACCESS_KEY, kva_view_model},
    {"/version", GET, ACCESS_ADMIN, kva_view_version},
    {"/tokenize", POST, ACCESS_KEY, kva_view_tokenize},
    {"/detokenize", POST, ACCESS_KEY, kva_view_detokenize},
    {"/v1/kvahead/requests", GET, ACCESS_KEY, kva_view_requests},
    {"/v1/kvahead/policies", GET, ACCESS_KEY, kva_view_policies},
};

static void view_page(struct kva_server *server, struct kva_exchange *exchange)
{
    (void)server;
    kva_page_reply(exchange);
}

/* Not in the table: / is a route for those that want the page, else nothing is there. */
static const struct route page_route = {"/", GET, ACCESS_PAGE, view_page};

/* Known to clients, not here: the answer should not look like a typing error. */
static const char *const later[] = {
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/generations",
    "/v1/moderations",
    "/v1/files",
    "/v1/batches",
    "/v1/responses/input_tokens",
    "/v1/responses/compact",
    "/v1/messages/batches",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/pooling",
    "/classify",
    "/apply-template",
    "/infill",
    "/completion",
    "/slots",
    "/props",
};

static bool is_later(const char *path)
{
    bool is = false;
    for (size_t i = 0; i < KVA_COUNT_OF(later) && !is; i++)
        is = strcmp(path, later[i]) == 0;
    return is;
}

static const struct route *find_route(const char *path)
{
    if (is_later(path))
        return NULL; /* and no id of something that is here */
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
        [KVA_EINVAL] = KVA_REJECT_INVALID,     [KVA_EUNSUPPORTED] = KVA_REJECT_INVALID,
        [KVA_ENOTFOUND] = KVA_REJECT_INVALID,  [KVA_EMETHOD] = KVA_REJECT_INVALID,
        [KVA_EMODEL] = KVA_REJECT_INVALID,     [KVA_EPREVIOUS] = KVA_REJECT_INVALID,
        [KVA_EMEDIATYPE] = KVA_REJECT_INVALID, [KVA_ETOOBIG] = KVA_REJECT_INVALID,
        [KVA_EFORMAT] = KVA_REJECT_INVALID,    [KVA_ECONTEXT] = KVA_REJECT_CONTEXT,
        [KVA_EAUTH] = KVA_REJECT_KEY,          [KVA_ERATE] = KVA_REJECT_RATE,
        [KVA_EBUSY] = KVA_REJECT_QUEUE_FULL,   [KVA_ELIMIT] = KVA_REJECT_BUDGET,
        [KVA_ENOMEM] = KVA_REJECT_BUDGET,      [KVA_EQUEUETIME] = KVA_REJECT_QUEUE_TIME,
        [KVA_EDEVICE] = KVA_REJECT_DEVICE,     [KVA_ETIMEOUT] = KVA_REJECT_INVALID,
        [KVA_EHEADERS] = KVA_REJECT_INVALID,   [KVA_EEXPECT] = KVA_REJECT_INVALID,
        [KVA_ECODING] = KVA_REJECT_INVALID,    [KVA_EVERSION] = KVA_REJECT_INVALID,
        [KVA_EHOST] = KVA_REJECT_INVALID,      [KVA_ECANCELLED] = KVA_REJECT_DRAINING,
        [KVA_OK] = KVA_REJECT_INVALID,
    };
    /* It was taken, and went wrong: no device has failed, and nobody was turned away. */
    if (status == KVA_EINTERNAL || status == KVA_EIO)
        return;
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

/* The content type of a request that has to have a JSON body. */
static enum kva_status check_json(const struct kva_exchange *exchange, struct kva_err *err)
{
    const char *type = kva_exchange_header(exchange, "Content-Type");
    size_t length = type ? strcspn(type, "; \t") : 0;
    bool json = length == 16 && strncasecmp(type, "application/json", 16) == 0;
    if (!json && length > 5)
        json = strncasecmp(type, "application/", 12) == 0 &&
               strncasecmp(type + length - 5, "+json", 5) == 0;
    if (!type)
        return kva_fail(err, KVA_EMEDIATYPE,
                        "There is no Content-Type, but it must be 'application/json'.");
    if (!json)
        return kva_fail(err, KVA_EMEDIATYPE,
                        "The content type is '%.80s', but must be 'application/json'.", type);
    const char *coding = kva_exchange_header(exchange, "Content-Encoding");
    if (coding && strcasecmp(coding, "identity") != 0)
        return kva_fail(err, KVA_EMEDIATYPE, "The content encoding '%.40s' is not supported.",
                        coding);
    return KVA_OK;
}

enum kva_status kva_server_take_body(struct kva_exchange *exchange, char **ret_body,
                                     size_t *ret_bytes, struct kva_err *err)
{
    if (kva_exchange_body_bytes(exchange) == 0)
        return kva_fail(err, KVA_EINVAL, "The body is empty, but must be a JSON object.");
    *ret_body = kva_exchange_take_body(exchange, ret_bytes);
    return *ret_body ? KVA_OK : kva_fail(err, KVA_ENOMEM, "Out of memory for a request.");
}

void kva_server_reply_error(struct kva_server *server, struct kva_exchange *exchange,
                            enum kva_status status, const struct kva_err *err)
{
    if (kva_status_info(status)->http_code == 503) {
        char seconds[16];
        snprintf(seconds, sizeof(seconds), "%u", server->params.retry_after_s);
        kva_exchange_add_header(exchange, "Retry-After", seconds);
    }
    /* OpenAI's SDKs would run a request again that took too long, twice. */
    if (status == KVA_ETIMEOUT)
        kva_exchange_add_header(exchange, "X-Should-Retry", "false");
    const struct kva_exchange_info *info = kva_exchange_info(exchange);
    if (info->reserve && status == KVA_EBUSY)
        server->metrics.rejected[KVA_REJECT_CONNECTIONS]++;
    else
        kva_server_count_rejection(server, status);
    kva_exchange_reply_error(exchange, status, err);
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
    kva_exchange_add_header(exchange, "Access-Control-Expose-Headers",
                            "X-Request-Id, Request-Id, Retry-After, X-Should-Retry, "
                            "X-Kvahead-Truncated-Tokens");
}

static void list_methods(uint32_t methods, char *out, size_t size)
{
    const char *more = methods & KVA_HTTP_DELETE ? ", DELETE" : "";
    const char *first = !(methods & KVA_HTTP_POST) ? "GET, HEAD"
                        : methods & KVA_HTTP_GET   ? "GET, HEAD, POST"
                                                   : "POST";
    snprintf(out, size, "%s%s, OPTIONS", first, more);
}

enum kva_status kva_server_refuse_method(struct kva_exchange *exchange, uint32_t allowed,
                                         struct kva_err *err)
{
    char methods[64];
    list_methods(allowed, methods, sizeof(methods));
    kva_exchange_add_header(exchange, "Allow", methods);
    return kva_fail(err, KVA_EMETHOD, "%s is not allowed here, only %s.",
                    kva_exchange_info(exchange)->method, methods);
}

/* The names that a browser asks for, which are what the page's script sets: SDKs have headers of their
 * own. Nothing here depends on them, so an origin that is let in may send any. */
static const char *wanted_headers(const struct kva_server *server,
                                  const struct kva_exchange *exchange)
{
    const char *origin = kva_exchange_header(exchange, "Origin");
    const char *wanted = kva_exchange_header(exchange, "Access-Control-Request-Headers");
    bool names = wanted && wanted[0] && strlen(wanted) <= 4096;
    for (const char *at = wanted; names && *at; at++)
        names = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') ||
                (*at >= '0' && *at <= '9') || strchr("-_., ", *at);
    return names && origin && origin_allowed(server, origin) ? wanted : NULL;
}

/* A browser asks before it sends a key or JSON. */
static void reply_preflight(const struct kva_server *server, const struct route *route,
                            struct kva_exchange *exchange)
{
    char methods[64];
    const char *wanted = wanted_headers(server, exchange);
    list_methods(route->methods, methods, sizeof(methods));
    kva_exchange_add_header(exchange, "Allow", methods);
    kva_exchange_add_header(exchange, "Access-Control-Allow-Methods", methods);
    kva_exchange_add_header(exchange, "Access-Control-Allow-Headers",
                            wanted ? wanted
                                   : "Authorization, Content-Type, X-API-Key, X-Request-Id");
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
    if (status == KVA_OK && kva_exchange_head(exchange)->method == KVA_HTTP_POST)
        status = kva_auth_take(server->auth, info->key_index, info->received_ns, &retry_s, err);
    if (status == KVA_ERATE) {
        char seconds[16];
        snprintf(seconds, sizeof(seconds), "%u", retry_s);
        kva_exchange_add_header(exchange, "Retry-After", seconds);
    }
    return status;
}

/* What was meant: a base URL without /v1, or with a slash too many. */
static const struct route *near_route(const char *path)
{
    char meant[256];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    snprintf(meant, sizeof(meant), "%.*s", (int)length, path);
    const struct route *route = find_route(meant);
    if (route)
        return route;
    snprintf(meant, sizeof(meant), "/v1%.*s", (int)kva_min_size(length, 200), path);
    return find_route(meant);
}

static enum kva_status no_route(const char *path, struct kva_err *err)
{
    if (is_later(path))
        return kva_fail(err, KVA_ENOTFOUND, "%s is not supported by this server.", path);
    const struct route *near = near_route(path);
    if (near)
        return kva_fail(err, KVA_ENOTFOUND, "There is no route '%.200s', but there is '%s'.", path,
                        near->path);
    if (strncmp(path, "/api/", strlen("/api/")) == 0)
        return kva_fail(err, KVA_ENOTFOUND,
                        "There is no route '%.200s': Ollama's API is not supported by this server, "
                        "OpenAI's is, below /v1.",
                        path);
    return kva_fail(err, KVA_ENOTFOUND, "There is no route '%.200s'.", path);
}

/* Whether a host name can only mean this machine, to whoever asked for it. */
static bool is_local_name(const char *host, size_t length)
{
    static const char suffix[] = ".localhost";
    size_t tail = sizeof(suffix) - 1;
    if (length > tail && strncasecmp(host + length - tail, suffix, tail) == 0)
        return true;
    return (length == 9 && strncasecmp(host, "localhost", 9) == 0) ||
           (length > 4 && strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") >= length) ||
           (length == 5 && strncmp(host, "[::1]", 5) == 0);
}

/* A page of a stranger's site may have had its own name resolved to the loopback address ("DNS
 * rebinding"): the browser then takes a server without keys for that site's own. Its requests carry
 * that name. */
static enum kva_status check_host(const struct kva_server *server,
                                  const struct kva_exchange *exchange, struct kva_err *err)
{
    const struct kva_server_params *params = &server->params;
    const char *host = kva_exchange_head(exchange)->authority;
    const char *bracket = host[0] == '[' ? strchr(host, ']') : NULL;
    size_t length = bracket ? (size_t)(bracket + 1 - host) : strcspn(host, ":");
    if (kva_auth_required(server->auth) || kva_http_is_public(server->http) || length == 0 ||
        is_local_name(host, length))
        return KVA_OK;
    for (uint32_t i = 0; i < params->allowed_host_count; i++) {
        const char *allowed = params->allowed_hosts[i];
        if (strcmp(allowed, "*") == 0 ||
            (strlen(allowed) == length && strncasecmp(allowed, host, length) == 0))
            return KVA_OK;
    }
    return kva_fail(err, KVA_EHOST,
                    "This server has no keys and listens to this machine only, so it does not "
                    "answer to the host name '%.80s'; --allowed-host lets it.",
                    host);
}

/* Where a request came in decides what it may ask for. */
static enum kva_status check_access(struct kva_server *server, struct kva_exchange *exchange,
                                    const struct route *route, struct kva_err *err)
{
    const struct kva_exchange_info *info = kva_exchange_info(exchange);
    enum access access = route ? route->access : ACCESS_KEY;
    if (info->admin && (access == ACCESS_KEY || access == ACCESS_PAGE))
        return kva_fail(err, KVA_ENOTFOUND,
                        "There are only /health, /ready, /metrics and /version on this listener.");
    if (access == ACCESS_OPEN || info->admin)
        return KVA_OK;
    if (info->reserve)
        return kva_fail(err, KVA_EBUSY, "The server has %u connections, all busy; retry later.",
                        server->params.connections_max);
    enum kva_status status = check_host(server, exchange, err);
    if (access == ACCESS_PAGE)
        return status;
    /* Without a key, routes that exist look like those that do not. */
    return status == KVA_OK ? check_key(server, exchange, err) : status;
}

static enum kva_status check_message(struct kva_exchange *exchange, const struct route *route,
                                     struct kva_err *err)
{
    const struct kva_exchange_info *info = kva_exchange_info(exchange);
    const struct kva_http_head *head = kva_exchange_head(exchange);
    if (!(route->methods & head->method))
        return kva_server_refuse_method(exchange, route->methods, err);
    bool has_body = head->chunked || head->content_length > 0;
    /* Where a GET is a request, too, a POST may need none. */
    if (head->method == KVA_HTTP_POST && (has_body || !(route->methods & KVA_HTTP_GET)))
        return check_json(exchange, err);
    if (head->method != KVA_HTTP_POST && has_body)
        return kva_fail(err, KVA_EINVAL, "%s %.80s takes no body.", info->method, info->path);
    return KVA_OK;
}

void kva_server_begin(void *opaque, struct kva_exchange *exchange)
{
    struct kva_server *server = opaque;
    struct kva_exchange_info *info = kva_exchange_info(exchange);
    const struct route *route = find_route(info->path);
    bool options = kva_exchange_head(exchange)->method == KVA_HTTP_OPTIONS;
    struct kva_err err = {.status = KVA_OK};
    if (!route && server->params.page && kva_page_is_wanted(exchange))
        route = &page_route;
    add_cors(server, exchange);
    if (route)
        info->route = route->path;
    if (options && strcmp(info->path, "*") == 0) {
        kva_exchange_add_header(exchange, "Allow", "GET, HEAD, POST, OPTIONS");
        kva_exchange_reply(exchange, 204, NULL, NULL, 0);
        return;
    }
    if (options && route && !info->admin) {
        reply_preflight(server, route, exchange);
        return;
    }
    enum kva_status status = check_access(server, exchange, route, &err);
    if (status == KVA_OK && !route)
        status = no_route(info->path, &err);
    if (status == KVA_OK)
        status = check_message(exchange, route, &err);
    if (status != KVA_OK)
        kva_server_reply_error(server, exchange, status, &err);
    else
        kva_exchange_set_user(exchange, route);
}

void kva_server_handle(void *opaque, struct kva_exchange *exchange)
{
    const struct route *route = kva_exchange_user(exchange);
    route->handle(opaque, exchange);
}
