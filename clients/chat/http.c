/* http.c - libcurl's side of an exchange. */
#include "clients/chat/http.h"

#include "clients/chat/wire.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONNECT_TIMEOUT_S 15L
#define POLL_MS           100
#define MESSAGE_MAX       320

struct kva_chat_http {
    CURLM *multi;
    CURL *easy;
    struct curl_slist *headers;
    char *base; /* without slashes at its end */
    char message[CURL_ERROR_SIZE];
    /* of the exchange that runs */
    const struct kva_chat_call *call;
    bool decided;   /* where the body goes is known */
    bool streaming; /* ... and it is a stream */
    bool ended;     /* the stream's reader wants no more */
    bool too_big;   /* the document did not fit */
};

static void decide(struct kva_chat_http *http)
{
    long code = 0;
    const char *type = NULL;
    curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_getinfo(http->easy, CURLINFO_CONTENT_TYPE, &type);
    http->streaming = http->call->stream && code >= 200 && code < 300 && type &&
                      strncasecmp(type, "text/event-stream", 17) == 0;
    http->decided = true;
}

static size_t on_body(char *bytes, size_t size, size_t count, void *opaque)
{
    struct kva_chat_http *http = opaque;
    size_t length = size * count;
    if (length == 0)
        return 0;
    if (!http->decided)
        decide(http);
    if (http->streaming) {
        http->ended = !http->call->stream(http->call->opaque, bytes, length);
        return http->ended ? 0 : length; /* 0: curl ends the transfer */
    }
    kva_buf_append(http->call->document, bytes, length);
    http->too_big = http->call->document->failed;
    return http->too_big ? 0 : length;
}

static bool add_header(struct kva_chat_http *http, const char *text)
{
    struct curl_slist *headers = curl_slist_append(http->headers, text);
    if (headers)
        http->headers = headers;
    return headers != NULL;
}

static enum kva_status add_headers(struct kva_chat_http *http, const char *api_key,
                                   struct kva_err *err)
{
    bool ok = add_header(http, "Content-Type: application/json") &&
              add_header(http, "Accept: text/event-stream, application/json") &&
              /* Without this, curl waits for "100 Continue" before a long body. */
              add_header(http, "Expect:");
    if (ok && api_key) {
        struct kva_buf line;
        kva_buf_init(&line, 8192);
        kva_buf_printf(&line, "Authorization: Bearer %s", api_key);
        ok = !line.failed && add_header(http, line.data);
        kva_buf_finish(&line);
    }
    return ok ? KVA_OK : kva_fail(err, KVA_ENOMEM, "out of memory for request headers");
}

static enum kva_status check_params(const struct kva_chat_http_params *params, struct kva_err *err)
{
    if (strncasecmp(params->url, "http://", 7) != 0 && strncasecmp(params->url, "https://", 8) != 0)
        return kva_fail_param(err, KVA_EINVAL, "url",
                              "the URL '%s' does not begin with http:// or https://", params->url);
    if (strpbrk(params->url, "?# \t\r\n"))
        return kva_fail_param(err, KVA_EINVAL, "url",
                              "the URL '%s' has a query, a fragment or a space; a base URL is "
                              "wanted, such as http://127.0.0.1:8000/v1",
                              params->url);
    for (const char *c = params->api_key ? params->api_key : ""; *c; c++) {
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7F)
            return kva_fail_param(err, KVA_EINVAL, "api-key",
                                  "the API key has a character that no header can carry: byte %d",
                                  (int)(c - params->api_key));
    }
    if (params->api_key && strlen(params->api_key) > 4096)
        return kva_fail_param(err, KVA_EINVAL, "api-key",
                              "the API key has %zu bytes, the limit is 4096",
                              strlen(params->api_key));
    return KVA_OK;
}

static bool set_options(struct kva_chat_http *http, const char *ca_file)
{
    CURL *easy = http->easy;
    bool ok = !curl_easy_setopt(easy, CURLOPT_HTTPHEADER, http->headers) &&
              !curl_easy_setopt(easy, CURLOPT_USERAGENT, "kvahead/" KVA_VERSION) &&
              !curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body) &&
              !curl_easy_setopt(easy, CURLOPT_WRITEDATA, http) &&
              !curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, http->message) &&
              !curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_S) &&
              !curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L) &&
              /* The caller ignores SIGPIPE itself. */
              !curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075500
    ok = ok && !curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    ok = ok && !curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    return ok && (!ca_file || !curl_easy_setopt(easy, CURLOPT_CAINFO, ca_file));
}

enum kva_status kva_chat_http_create(const struct kva_chat_http_params *params,
                                     struct kva_chat_http **ret, struct kva_err *err)
{
    enum kva_status status = check_params(params, err);
    if (status)
        return status;
    struct kva_chat_http *http = calloc(1, sizeof(*http));
    if (!http)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the HTTP client");
    size_t length = strlen(params->url);
    while (length > 0 && params->url[length - 1] == '/')
        length--;
    http->base = strndup(params->url, length);
    http->multi = curl_multi_init();
    http->easy = curl_easy_init();
    status = add_headers(http, params->api_key, err);
    if (!status && (!http->base || !http->multi || !http->easy))
        status = kva_fail(err, KVA_ENOMEM, "out of memory for the HTTP client");
    if (!status && !set_options(http, params->ca_file))
        status = kva_fail(err, KVA_EUNSUPPORTED, "libcurl lacks an option that is needed: %s",
                          curl_version());
    if (status) {
        kva_chat_http_destroy(http);
        return status;
    }
    *ret = http;
    return KVA_OK;
}

void kva_chat_http_destroy(struct kva_chat_http *http)
{
    if (!http)
        return;
    curl_easy_cleanup(http->easy);
    curl_multi_cleanup(http->multi);
    curl_slist_free_all(http->headers);
    free(http->base);
    free(http);
}

static enum kva_status describe_code(const struct kva_chat_http *http, long code,
                                     struct kva_err *err)
{
    char message[MESSAGE_MAX] = "";
    const struct kva_buf *body = http->call->document;
    curl_off_t retry_s = 0;
    char retry[64] = "";
    kva_chat_wire_error(body->data ? body->data : "", body->length, message, sizeof(message));
    const char *colon = *message ? ": " : "";
    curl_easy_getinfo(http->easy, CURLINFO_RETRY_AFTER, &retry_s);
    if (retry_s > 0)
        snprintf(retry, sizeof(retry), " (it asks to wait %lld s before the next try)",
                 (long long)retry_s);
    switch (code) {
    case 401:
    case 403:
        return kva_fail(err, KVA_EAUTH, "the server refuses the API key (%ld)%s%s", code, colon,
                        message);
    case 404:
        return kva_fail(err, KVA_ENOTFOUND, "the server does not know this model or path (404)%s%s",
                        colon, message);
    case 429:
        return kva_fail(err, KVA_ERATE, "too many requests (429)%s%s%s", colon, message, retry);
    case 503:
        return kva_fail(err, KVA_EBUSY, "the server is not taking requests now (503)%s%s%s", colon,
                        message, retry);
    default:
        break;
    }
    if (code >= 300 && code < 400)
        return kva_fail(err, KVA_EINVAL,
                        "the server redirects (%ld), which is not followed: give its real URL",
                        code);
    return kva_fail(err, code >= 500 ? KVA_EINTERNAL : KVA_EINVAL, "the server answered %ld%s%s",
                    code, colon, message);
}

static enum kva_status describe_curl(const struct kva_chat_http *http, CURLcode code,
                                     struct kva_err *err)
{
    const char *why = http->message[0] ? http->message : curl_easy_strerror(code);
    switch (code) {
    case CURLE_OUT_OF_MEMORY:
        return kva_fail(err, KVA_ENOMEM, "out of memory while talking to the server");
    case CURLE_URL_MALFORMAT:
        return kva_fail(err, KVA_EINVAL, "'%s' is not a valid URL", http->base);
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
        return kva_fail(err, KVA_EIO, "cannot reach %s: %s", http->base, why);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
        return kva_fail(err, KVA_EIO, "no secure connection to %s: %s", http->base, why);
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
        return kva_fail(err, KVA_EIO, "%s does not speak HTTP: %s", http->base, why);
    default:
        return kva_fail(err, KVA_EIO, "the connection to %s was lost: %s", http->base, why);
    }
}

/* Runs the transfer. False: the caller asked to stop. */
static bool transfer(struct kva_chat_http *http, CURLcode *ret_code)
{
    const struct kva_chat_call *call = http->call;
    int running = 1;
    *ret_code = CURLE_OK;
    while (running) {
        if (curl_multi_perform(http->multi, &running)) {
            *ret_code = CURLE_OUT_OF_MEMORY;
            return true;
        }
        if (call->stop && call->stop(call->opaque))
            return false;
        if (running && curl_multi_poll(http->multi, NULL, 0, POLL_MS, NULL)) {
            *ret_code = CURLE_OUT_OF_MEMORY;
            return true;
        }
    }
    int left;
    const CURLMsg *message = curl_multi_info_read(http->multi, &left);
    if (message && message->msg == CURLMSG_DONE)
        *ret_code = message->data.result;
    return true;
}

static enum kva_status prepare(struct kva_chat_http *http, const struct kva_chat_call *call,
                               struct kva_err *err)
{
    struct kva_buf url;
    kva_buf_init(&url, 65536);
    kva_buf_printf(&url, "%s%s", http->base, call->path);
    bool ok = !url.failed && !curl_easy_setopt(http->easy, CURLOPT_URL, url.data);
    kva_buf_finish(&url);
    if (call->body)
        ok = ok && !curl_easy_setopt(http->easy, CURLOPT_POST, 1L) &&
             !curl_easy_setopt(http->easy, CURLOPT_POSTFIELDS, call->body->data) &&
             !curl_easy_setopt(http->easy, CURLOPT_POSTFIELDSIZE_LARGE,
                               (curl_off_t)call->body->length);
    else
        ok = ok && !curl_easy_setopt(http->easy, CURLOPT_HTTPGET, 1L);
    ok = ok && !curl_multi_add_handle(http->multi, http->easy);
    return ok ? KVA_OK : kva_fail(err, KVA_ENOMEM, "out of memory for a request");
}

enum kva_status kva_chat_http_run(struct kva_chat_http *http, const struct kva_chat_call *call,
                                  struct kva_err *err)
{
    http->call = call;
    http->decided = http->streaming = http->ended = http->too_big = false;
    http->message[0] = '\0';
    enum kva_status status = prepare(http, call, err);
    if (status)
        return status;
    CURLcode code;
    long response = 0;
    bool finished = transfer(http, &code);
    curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &response);
    if (!finished)
        status = kva_fail(err, KVA_ECANCELLED, "stopped");
    else if (http->too_big)
        status = kva_fail(err, KVA_ETOOBIG, "the server's answer is over %zu bytes",
                          call->document->max_bytes);
    else if (code && !http->ended)
        status = describe_curl(http, code, err);
    else if (response < 200 || response >= 300)
        status = describe_code(http, response, err);
    /* Closes the connection if the transfer is not complete: the server then stops its work. */
    curl_multi_remove_handle(http->multi, http->easy);
    http->call = NULL;
    return status;
}
