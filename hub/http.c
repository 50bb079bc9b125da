/* http.c - requests by libcurl, their headers, redirects and retries. */
#include "hub/http.h"

#include "base/log.h"
#include "hub/name.h"

#include <curl/curl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CONNECT_TIMEOUT_S 15L
#define SILENCE_S         30L
#define REDIRECTS_MAX     8
#define HEADER_BYTES_MAX  ((size_t)256 << 10)
#define URL_BYTES_MAX     ((size_t)64 << 10)
#define REFUSAL_BYTES_MAX ((size_t)4 << 10)
#define ATTEMPTS_MAX      5u
#define WAIT_MAX_S        60
#define POLL_MS           100

struct kva_hub_http {
    const struct kva_hub_params *params;
    CURL *easy;
    char message[CURL_ERROR_SIZE];
    /* of the call that runs */
    const struct kva_hub_call *call;
    struct kva_hub_answer *answer;
    bool own; /* the origin that is asked is the hub's own */
    size_t header_bytes;
    bool linked_etag;       /* the linked content's has come */
    bool linked_size;       /* likewise */
    char location[8192];    /* "": no redirect */
    bool refused;           /* by this side, for `reason` */
    struct kva_buf refusal; /* begin of a body that tells of an error */
};

/* --- headers --------------------------------------------------------------------------------- */

/* W/"text" and "text" are text. */
static void copy_etag(char *to, size_t size, const char *text, size_t length)
{
    if (length > 2 && text[0] == 'W' && text[1] == '/') {
        text += 2;
        length -= 2;
    }
    if (length > 1 && text[0] == '"' && text[length - 1] == '"') {
        text++;
        length -= 2;
    }
    kva_hub_name_show(to, size, text, length);
}

/* A whole number; false: not one. */
static bool read_number(const char *text, size_t length, uint64_t *ret)
{
    uint64_t value = 0;
    if (length == 0 || length > 18)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = 10 * value + (uint64_t)(text[i] - '0');
    }
    *ret = value;
    return true;
}

static bool is_named(const char *line, size_t name, const char *wanted)
{
    return strlen(wanted) == name && strncasecmp(line, wanted, name) == 0;
}

/* What a content's own host says of it. */
static void read_content_header(struct kva_hub_http *http, const char *line, size_t name,
                                const char *value, size_t length)
{
    struct kva_hub_answer *answer = http->answer;
    uint64_t number;
    if (is_named(line, name, "content-range") && length > 6 &&
        strncasecmp(value, "bytes ", 6) == 0) {
        const char *dash = memchr(value, '-', length);
        if (dash && read_number(value + 6, (size_t)(dash - value) - 6, &number))
            answer->from = number;
    } else if (is_named(line, name, "retry-after") && read_number(value, length, &number)) {
        answer->retry_after_s = (int64_t)number;
    } else if (is_named(line, name, "location")) {
        kva_hub_name_show(http->location, sizeof(http->location), value, length);
    }
}

static void read_hub_header(struct kva_hub_http *http, const char *line, size_t name,
                            const char *value, size_t length)
{
    struct kva_hub_answer *answer = http->answer;
    uint64_t number;
    if (is_named(line, name, "x-repo-commit")) {
        kva_hub_name_show(answer->commit, sizeof(answer->commit), value, length);
    } else if (is_named(line, name, "x-linked-etag")) {
        copy_etag(answer->etag, sizeof(answer->etag), value, length);
        http->linked_etag = true;
    } else if (is_named(line, name, "x-linked-size") && read_number(value, length, &number)) {
        answer->bytes = number;
        http->linked_size = true;
    } else if (is_named(line, name, "etag") && !http->linked_etag) {
        copy_etag(answer->etag, sizeof(answer->etag), value, length);
    } else if (is_named(line, name, "content-length") && !http->linked_size &&
               read_number(value, length, &number)) {
        answer->bytes = number;
    } else if (is_named(line, name, "x-error-code")) {
        kva_hub_name_show(answer->error_code, sizeof(answer->error_code), value, length);
    } else if (is_named(line, name, "x-error-message")) {
        kva_hub_name_show(answer->reason, sizeof(answer->reason), value, length);
    }
}

static size_t on_header(char *bytes, size_t size, size_t count, void *opaque)
{
    struct kva_hub_http *http = opaque;
    size_t length = size * count, name = 0;
    http->header_bytes += length;
    if (http->header_bytes > HEADER_BYTES_MAX) {
        snprintf(http->answer->reason, sizeof(http->answer->reason), "its headers do not end");
        http->refused = true;
        return 0;
    }
    while (name < length && bytes[name] != ':')
        name++;
    const char *value = bytes + name + (name < length);
    const char *end = bytes + length;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && strchr(" \t\r\n", end[-1]))
        end--;
    read_content_header(http, bytes, name, value, (size_t)(end - value));
    if (http->own)
        read_hub_header(http, bytes, name, value, (size_t)(end - value));
    return length;
}

/* --- one hop --------------------------------------------------------------------------------- */

static size_t on_body(char *bytes, size_t size, size_t count, void *opaque)
{
    struct kva_hub_http *http = opaque;
    struct kva_hub_answer *answer = http->answer;
    size_t length = size * count;
    if (answer->code == 0)
        curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &answer->code);
    if (answer->code != 200 && answer->code != 206) {
        kva_buf_append(&http->refusal, bytes, length);
        return http->refusal.failed ? 0 : length;
    }
    if (!http->call->body || !http->call->body(http->call->opaque, answer, bytes, length)) {
        http->refused = true;
        return 0;
    }
    return length;
}

static int on_progress(void *opaque, curl_off_t a KVA_UNUSED, curl_off_t b KVA_UNUSED,
                       curl_off_t c KVA_UNUSED, curl_off_t d KVA_UNUSED)
{
    const struct kva_hub_http *http = opaque;
    return kva_hub_check_cancelled(http->params, NULL) != KVA_OK;
}

static bool set_fixed_options(struct kva_hub_http *http)
{
    CURL *easy = http->easy;
    const char *ca_path = http->params->places->ca_path;
    bool ok = !curl_easy_setopt(easy, CURLOPT_USERAGENT, "kvahead/" KVA_VERSION) &&
              !curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, http->message) &&
              !curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header) &&
              !curl_easy_setopt(easy, CURLOPT_HEADERDATA, http) &&
              !curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body) &&
              !curl_easy_setopt(easy, CURLOPT_WRITEDATA, http) &&
              !curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress) &&
              !curl_easy_setopt(easy, CURLOPT_XFERINFODATA, http) &&
              !curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L) &&
              !curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_S) &&
              !curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L) &&
              !curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, SILENCE_S) &&
              !curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10) &&
              !curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L) &&
              !curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L) &&
              !curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075500
    ok = ok && !curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    ok = ok && !curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    return ok && (!ca_path || !curl_easy_setopt(easy, CURLOPT_CAINFO, ca_path));
}

static struct curl_slist *make_headers(const struct kva_hub_http *http)
{
    const char *token = http->params->places->token;
    /* No other coding: bytes are counted, and asked for by their number. */
    struct curl_slist *headers = curl_slist_append(NULL, "Accept-Encoding: identity");
    struct kva_buf line;
    if (!headers || !http->own || !token)
        return headers;
    kva_buf_init(&line, 8192);
    kva_buf_printf(&line, "Authorization: Bearer %s", token);
    struct curl_slist *more = line.failed ? NULL : curl_slist_append(headers, line.data);
    if (line.data)
        explicit_bzero(line.data, line.length);
    kva_buf_finish(&line);
    if (!more)
        curl_slist_free_all(headers);
    return more;
}

static enum kva_hub_fault fault_of(CURLcode code)
{
    switch (code) {
    case CURLE_OK:
        return KVA_HUB_ANSWERED;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return KVA_HUB_NO_HOST;
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
        return KVA_HUB_NO_REACH;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
        return KVA_HUB_NO_TLS;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        return KVA_HUB_REFUSED;
    default:
        return KVA_HUB_BROKEN;
    }
}

static CURLcode perform(struct kva_hub_http *http, const char *url)
{
    char range[32];
    const struct kva_hub_call *call = http->call;
    struct curl_slist *headers = make_headers(http);
    snprintf(range, sizeof(range), "%llu-", (unsigned long long)call->from);
    http->message[0] = http->location[0] = '\0';
    http->header_bytes = 0;
    http->answer->code = 0;
    /* A redirect of the hub to itself has a size, and perhaps a checksum, of its own. */
    if (http->own && !http->linked_etag)
        http->answer->etag[0] = '\0';
    if (http->own && !http->linked_size)
        http->answer->bytes = KVA_HUB_SIZE_UNKNOWN;
    kva_buf_clear(&http->refusal);
    CURLcode code = headers ? CURLE_OK : CURLE_OUT_OF_MEMORY;
    if (!code)
        code = curl_easy_setopt(http->easy, CURLOPT_URL, url);
    if (!code)
        code = curl_easy_setopt(http->easy, CURLOPT_HTTPHEADER, headers);
    if (!code)
        code = curl_easy_setopt(http->easy, CURLOPT_HTTPGET, 1L);
    if (!code)
        code = curl_easy_setopt(http->easy, CURLOPT_NOBODY, call->head ? 1L : 0L);
    if (!code)
        code = curl_easy_setopt(http->easy, CURLOPT_RANGE, call->from > 0 ? range : NULL);
    if (!code)
        code = curl_easy_perform(http->easy);
    curl_easy_setopt(http->easy, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &http->answer->code);
    return code;
}

/* --- redirects ------------------------------------------------------------------------------- */

struct origin {
    char scheme[16], host[260], port[16];
};

static bool read_origin(CURLU *url, struct origin *ret)
{
    char *scheme = NULL, *host = NULL, *port = NULL;
    bool ok = !curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) &&
              !curl_url_get(url, CURLUPART_HOST, &host, 0) &&
              !curl_url_get(url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT);
    if (ok) {
        snprintf(ret->scheme, sizeof(ret->scheme), "%s", scheme);
        snprintf(ret->host, sizeof(ret->host), "%s", host);
        snprintf(ret->port, sizeof(ret->port), "%s", port);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    return ok;
}

static bool is_same(const struct origin *a, const struct origin *b)
{
    return strcasecmp(a->scheme, b->scheme) == 0 && strcasecmp(a->host, b->host) == 0 &&
           strcmp(a->port, b->port) == 0;
}

static bool is_redirect(const struct kva_hub_http *http)
{
    long code = http->answer->code;
    return http->location[0] &&
           (code == 301 || code == 302 || code == 303 || code == 307 || code == 308);
}

static void refuse(struct kva_hub_http *http, const char *why)
{
    http->answer->fault = KVA_HUB_REFUSED;
    snprintf(http->answer->reason, sizeof(http->answer->reason), "%s", why);
}

/* To where the answer points. False: not followed, and if that is a fault, it is said. */
static bool follow(struct kva_hub_http *http, CURLU *url, const struct origin *home)
{
    struct origin before, now;
    bool ok = read_origin(url, &before) && !curl_url_set(url, CURLUPART_URL, http->location, 0) &&
              read_origin(url, &now);
    if (!ok || (strcasecmp(now.scheme, "http") != 0 && strcasecmp(now.scheme, "https") != 0)) {
        refuse(http, "it redirects to what is no URL of HTTP");
        return false;
    }
    if (strcasecmp(before.scheme, "https") == 0 && strcasecmp(now.scheme, "https") != 0) {
        refuse(http, "it redirects from https to http, which is not followed");
        return false;
    }
    http->own = is_same(&now, home);
    return http->own || !http->call->head;
}

static void read_refusal(struct kva_hub_http *http)
{
    struct kva_hub_answer *answer = http->answer;
    if (!answer->reason[0] && http->refusal.data && answer->code >= 400)
        kva_hub_name_show(answer->reason, sizeof(answer->reason), http->refusal.data,
                          strcspn(http->refusal.data, "\r\n"));
}

static void run_hops(struct kva_hub_http *http, CURLU *url, const struct origin *home)
{
    struct kva_hub_answer *answer = http->answer;
    for (int hop = 0; hop <= REDIRECTS_MAX; hop++) {
        char *text = NULL;
        if (curl_url_get(url, CURLUPART_URL, &text, 0)) {
            refuse(http, "its URL is not one");
            return;
        }
        CURLcode code = perform(http, text);
        curl_free(text);
        answer->fault = http->refused ? KVA_HUB_REFUSED : fault_of(code);
        /* A long body that tells of an error is cut, and the answer is one all the same. */
        if (http->refusal.failed)
            answer->fault = KVA_HUB_ANSWERED;
        if (answer->fault != KVA_HUB_ANSWERED) {
            const char *why = http->message[0] ? http->message : curl_easy_strerror(code);
            if (!http->refused)
                kva_hub_name_show(answer->reason, sizeof(answer->reason), why, strlen(why));
            return;
        }
        if (!is_redirect(http)) {
            read_refusal(http);
            return;
        }
        if (!follow(http, url, home))
            return;
    }
    refuse(http, "it redirects without end");
}

enum kva_status kva_hub_http_once(struct kva_hub_http *http, const struct kva_hub_call *call,
                                  struct kva_hub_answer *ret, struct kva_err *err)
{
    struct origin home;
    struct kva_buf text;
    CURLU *url = curl_url();
    *ret = (struct kva_hub_answer){.bytes = KVA_HUB_SIZE_UNKNOWN, .retry_after_s = -1};
    http->call = call;
    http->answer = ret;
    http->own = true;
    http->linked_etag = http->linked_size = http->refused = false;
    kva_buf_init(&text, URL_BYTES_MAX);
    kva_buf_init(&http->refusal, REFUSAL_BYTES_MAX);
    kva_buf_printf(&text, "%s%s", http->params->places->endpoint, call->path);
    enum kva_status status = KVA_OK;
    if (!url || text.failed)
        status = kva_fail(err, KVA_ENOMEM, "out of memory for a request");
    else if (curl_url_set(url, CURLUPART_URL, text.data, 0) || !read_origin(url, &home))
        refuse(http, "its URL is not one");
    else
        run_hops(http, url, &home);
    curl_url_cleanup(url);
    kva_buf_finish(&text);
    kva_buf_finish(&http->refusal);
    http->call = NULL;
    http->answer = NULL;
    return status ? status : kva_hub_check_cancelled(http->params, err);
}

/* --- again ----------------------------------------------------------------------------------- */

bool kva_hub_http_may_retry(const struct kva_hub_answer *answer)
{
    if (answer->fault == KVA_HUB_ANSWERED)
        return answer->code == 408 || answer->code == 429 || answer->code >= 500;
    return answer->fault == KVA_HUB_BROKEN;
}

enum kva_status kva_hub_http_wait(const struct kva_hub_http *http,
                                  const struct kva_hub_answer *answer, unsigned attempt,
                                  struct kva_err *err)
{
    int64_t wait_s = answer->retry_after_s >= 0 ? answer->retry_after_s : (int64_t)1 << attempt;
    if (wait_s > WAIT_MAX_S)
        return kva_fail(err, KVA_EBUSY, "%s asks to come again in %lld s (%ld)",
                        http->params->places->endpoint, (long long)wait_s, answer->code);
    if (answer->fault == KVA_HUB_ANSWERED)
        kva_log(KVA_LOG_WARN, "the hub answered %ld; again in %lld s", answer->code,
                (long long)wait_s);
    else
        kva_log(KVA_LOG_WARN, "the hub: %s; again in %lld s", answer->reason, (long long)wait_s);
    for (int64_t waited_ms = 0; waited_ms < wait_s * 1000; waited_ms += POLL_MS) {
        enum kva_status status = kva_hub_check_cancelled(http->params, err);
        if (status)
            return status;
        poll(NULL, 0, POLL_MS);
    }
    return KVA_OK;
}

static bool keep_document(void *opaque, const struct kva_hub_answer *answer KVA_UNUSED,
                          const char *bytes, size_t count)
{
    struct kva_buf *out = opaque;
    kva_buf_append(out, bytes, count);
    return !out->failed;
}

enum kva_status kva_hub_http_ask(struct kva_hub_http *http, const char *path, bool head,
                                 struct kva_buf *out, struct kva_hub_answer *ret,
                                 struct kva_err *err)
{
    const struct kva_hub_call call = {
        .path = path, .head = head, .body = out ? keep_document : NULL, .opaque = out};
    for (unsigned attempt = 0;; attempt++) {
        if (out)
            kva_buf_clear(out);
        enum kva_status status = kva_hub_http_once(http, &call, ret, err);
        if (!status && out && out->failed)
            snprintf(ret->reason, sizeof(ret->reason), "its answer is over %zu MiB",
                     out->max_bytes >> 20);
        if (status || attempt + 1 == ATTEMPTS_MAX || !kva_hub_http_may_retry(ret))
            return status;
        status = kva_hub_http_wait(http, ret, attempt, err);
        if (status)
            return status;
    }
}

/* --- its life -------------------------------------------------------------------------------- */

enum kva_status kva_hub_http_create(const struct kva_hub_params *params, struct kva_hub_http **ret,
                                    struct kva_err *err)
{
    struct kva_hub_http *http = calloc(1, sizeof(*http));
    if (!http || curl_global_init(CURL_GLOBAL_DEFAULT)) {
        free(http);
        return kva_fail(err, KVA_ENOMEM, "out of memory for the HTTP client");
    }
    http->params = params;
    http->easy = curl_easy_init();
    enum kva_status status = KVA_OK;
    if (!http->easy)
        status = kva_fail(err, KVA_ENOMEM, "out of memory for the HTTP client");
    else if (!set_fixed_options(http))
        status = kva_fail(err, KVA_EUNSUPPORTED, "libcurl lacks an option that is needed: %s",
                          curl_version());
    if (status) {
        kva_hub_http_destroy(http);
        return status;
    }
    *ret = http;
    return KVA_OK;
}

void kva_hub_http_destroy(struct kva_hub_http *http)
{
    if (!http)
        return;
    curl_easy_cleanup(http->easy);
    free(http);
    curl_global_cleanup();
}
