/* etcd.c - calls to etcd's JSON gateway by libcurl: asking, waiting, resting, and the user's token. */
#include "cluster/members/etcd_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/noise.h"
#include "cluster/members/json.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUEST_BYTES_MAX ((size_t)16 << 10)
#define REST_FIRST_NS     (100 * KVA_NS_PER_MS)
#define DOUBLINGS_MAX     16u
#define SAY_AGAIN_NS      (60 * KVA_NS_PER_S)
#define CONNECTIONS_MAX   16L
#define ALIVE_S           5L /* TCP's own probes */

/* --- create and destroy ----------------------------------------------------------------------- */

static size_t on_body(char *bytes, size_t size, size_t count, void *opaque)
{
    struct kva_etcd_transfer *transfer = opaque;
    kva_buf_append(&transfer->got, bytes, size * count);
    return transfer->got.failed ? 0 : size * count;
}

static bool set_fixed_options(const struct kva_etcd *etcd, struct kva_etcd_transfer *transfer)
{
    CURL *easy = transfer->easy;
    bool ok = !curl_easy_setopt(easy, CURLOPT_USERAGENT, "kvahead/" KVA_VERSION) &&
              !curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->message) &&
              !curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body) &&
              !curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer) &&
              !curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer) &&
              !curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) &&
              !curl_easy_setopt(easy, CURLOPT_NOPROXY, "*") &&
              !curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L) &&
              !curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L) &&
              !curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, ALIVE_S) &&
              !curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, ALIVE_S) &&
              !curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    if (etcd->params.ca)
        ok = ok && !curl_easy_setopt(easy, CURLOPT_CAINFO, etcd->params.ca);
#if LIBCURL_VERSION_NUM >= 0x075500
    return ok && !curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    return ok &&
           !curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

enum kva_status kva_etcd_create(const struct kva_etcd_params *params, struct kva_etcd **ret,
                                struct kva_err *err)
{
    struct kva_etcd *etcd = calloc(1, sizeof(*etcd));
    if (!etcd)
        return kva_fail(err, KVA_ENOMEM, "no memory for a client of etcd");
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) {
        free(etcd);
        return kva_fail(err, KVA_EIO, "libcurl does not start");
    }
    etcd->params = *params;
    etcd->chance = kva_noise_seed(kva_time_ns(), (uint64_t)(uintptr_t)etcd);
    etcd->multi = curl_multi_init();
    bool ok = etcd->multi && !curl_multi_setopt(etcd->multi, CURLMOPT_MAXCONNECTS, CONNECTIONS_MAX);
    for (uint32_t i = 0; i < KVA_ETCD_SLOTS; i++) {
        struct kva_etcd_transfer *transfer = &etcd->transfers[i];
        kva_buf_init(&transfer->body, REQUEST_BYTES_MAX);
        kva_buf_init(&transfer->got, KVA_ETCD_BODY_MAX);
        transfer->easy = curl_easy_init();
        ok = ok && transfer->easy && set_fixed_options(etcd, transfer);
    }
    if (!ok) {
        kva_etcd_destroy(etcd);
        return kva_fail(err, KVA_ENOMEM, "no memory for a client of etcd");
    }
    *ret = etcd;
    return KVA_OK;
}

void kva_etcd_destroy(struct kva_etcd *etcd)
{
    if (!etcd)
        return;
    for (uint32_t i = 0; i < KVA_ETCD_SLOTS; i++) {
        struct kva_etcd_transfer *transfer = &etcd->transfers[i];
        kva_etcd_drop(etcd, (enum kva_etcd_slot)i);
        if (transfer->easy)
            curl_easy_cleanup(transfer->easy);
        curl_slist_free_all(transfer->headers);
        kva_buf_finish(&transfer->body);
        kva_buf_finish(&transfer->got);
    }
    if (etcd->multi)
        curl_multi_cleanup(etcd->multi);
    explicit_bzero(etcd->token, sizeof(etcd->token));
    free(etcd->waits);
    free(etcd);
    curl_global_cleanup();
}

/* --- failures --------------------------------------------------------------------------------- */

void kva_etcd_rest(struct kva_etcd *etcd, enum kva_etcd_slot slot, uint64_t now_ns)
{
    struct kva_etcd_transfer *transfer = &etcd->transfers[slot];
    uint64_t rest_ns = REST_FIRST_NS << kva_min_u32(transfer->failures, DOUBLINGS_MAX);
    if (rest_ns > etcd->params.rest_ns)
        rest_ns = etcd->params.rest_ns;
    transfer->failures++;
    etcd->chance = kva_noise_seed(etcd->chance, slot);
    rest_ns -= etcd->chance % (rest_ns / 4 + 1);
    transfer->rest_until_ns = now_ns + rest_ns;
}

/* Once for each way of failing, and once a minute while it lasts. */
static void say(struct kva_etcd *etcd, enum kva_etcd_slot slot, const char *text, uint64_t now_ns)
{
    for (uint32_t i = 0; i < KVA_ETCD_SLOTS; i++) {
        const struct kva_etcd_transfer *other = &etcd->transfers[i];
        if (strcmp(text, other->said) == 0 && now_ns < other->said_ns + SAY_AGAIN_NS)
            return;
    }
    snprintf(etcd->transfers[slot].said, KVA_ETCD_WHY_MAX, "%s", text);
    etcd->transfers[slot].said_ns = now_ns;
    kva_log(KVA_LOG_WARN, "cluster: %s", etcd->why);
}

static void fail(struct kva_etcd *etcd, enum kva_etcd_slot slot, const char *what, uint64_t now_ns)
{
    struct kva_etcd_transfer *transfer = &etcd->transfers[slot];
    char text[KVA_ETCD_WHY_MAX];
    kva_etcd_rest(etcd, slot, now_ns);
    etcd->failures++;
    uint64_t rest_ns = transfer->rest_until_ns - now_ns;
    snprintf(text, sizeof(text), "etcd at %s: %s", etcd->params.endpoints[transfer->endpoint],
             what);
    kva_members_clean(text);
    snprintf(etcd->why, sizeof(etcd->why), "%.200s; asked again in %.2g s", text,
             (double)rest_ns / (double)KVA_NS_PER_S);
    if (transfer->endpoint == etcd->endpoint)
        etcd->endpoint = (etcd->endpoint + 1) % etcd->params.endpoint_count;
    say(etcd, slot, text, now_ns);
}

void kva_etcd_blame(struct kva_etcd *etcd, enum kva_etcd_slot slot, const char *what,
                    uint64_t now_ns)
{
    if (kva_etcd_wants_token(what))
        etcd->token[0] = 0;
    fail(etcd, slot, what, now_ns);
}

/* --- asking ----------------------------------------------------------------------------------- */

static bool has_token(const struct kva_etcd *etcd)
{
    return !etcd->params.user || etcd->open || etcd->token[0];
}

bool kva_etcd_ready(const struct kva_etcd *etcd, enum kva_etcd_slot slot, uint64_t now_ns)
{
    const struct kva_etcd_transfer *transfer = &etcd->transfers[slot];
    return !transfer->busy && now_ns >= transfer->rest_until_ns &&
           (slot == KVA_ETCD_AUTH || has_token(etcd));
}

static bool set_headers(const struct kva_etcd *etcd, struct kva_etcd_transfer *transfer)
{
    char line[KVA_ETCD_TOKEN_MAX + 32];
    curl_slist_free_all(transfer->headers);
    transfer->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (!transfer->headers)
        return false;
    if (etcd->token[0]) {
        snprintf(line, sizeof(line), "Authorization: %s", etcd->token);
        if (!curl_slist_append(transfer->headers, line))
            return false;
    }
    return !curl_easy_setopt(transfer->easy, CURLOPT_HTTPHEADER, transfer->headers);
}

static bool begin(struct kva_etcd *etcd, const struct kva_etcd_call *call)
{
    struct kva_etcd_transfer *transfer = &etcd->transfers[call->slot];
    char url[1024];
    long limit_ms = (long)kva_div_up(transfer->limit_ns, KVA_NS_PER_MS);
    int length =
        snprintf(url, sizeof(url), "%s%s", etcd->params.endpoints[etcd->endpoint], call->path);
    kva_buf_puts(&transfer->body, call->body);
    if (length < 0 || (size_t)length >= sizeof(url) || transfer->body.failed)
        return false;
    CURL *easy = transfer->easy;
    return set_headers(etcd, transfer) && !curl_easy_setopt(easy, CURLOPT_URL, url) &&
           !curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)transfer->body.length) &&
           !curl_easy_setopt(easy, CURLOPT_POSTFIELDS, transfer->body.data) &&
           !curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, limit_ms) &&
           !curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, transfer->lines ? 0L : limit_ms) &&
           !curl_multi_add_handle(etcd->multi, easy);
}

void kva_etcd_ask(struct kva_etcd *etcd, const struct kva_etcd_call *call, uint64_t now_ns)
{
    struct kva_etcd_transfer *transfer = &etcd->transfers[call->slot];
    kva_buf_clear(&transfer->body);
    kva_buf_clear(&transfer->got);
    transfer->taken = 0;
    transfer->message[0] = 0;
    transfer->busy = true;
    transfer->lines = call->silence_ns != 0;
    transfer->first = true;
    transfer->endpoint = etcd->endpoint;
    transfer->sent_ns = now_ns;
    transfer->limit_ns = call->limit_ns ? call->limit_ns : etcd->params.request_ns;
    transfer->silence_ns = call->silence_ns;
    transfer->line_due_ns = now_ns + transfer->limit_ns;
    transfer->unsent = !begin(etcd, call);
}

void kva_etcd_drop(struct kva_etcd *etcd, enum kva_etcd_slot slot)
{
    struct kva_etcd_transfer *transfer = &etcd->transfers[slot];
    if (transfer->busy && !transfer->unsent)
        curl_multi_remove_handle(etcd->multi, transfer->easy);
    transfer->busy = false;
    transfer->taken = 0;
    kva_buf_clear(&transfer->got);
}

/* --- the token -------------------------------------------------------------------------------- */

static void authenticate(struct kva_etcd *etcd, uint64_t now_ns)
{
    const char *user = etcd->params.user, *colon = strchr(user, ':');
    struct kva_buf body;
    kva_buf_init(&body, REQUEST_BYTES_MAX);
    kva_buf_puts(&body, "{\"name\":");
    kva_buf_json_string(&body, user, (size_t)(colon - user));
    kva_buf_puts(&body, ",\"password\":");
    kva_buf_json_string(&body, colon + 1, strlen(colon + 1));
    kva_buf_puts(&body, "}");
    kva_etcd_ask(etcd,
                 &(struct kva_etcd_call){.slot = KVA_ETCD_AUTH,
                                         .path = "/v3/auth/authenticate",
                                         .body = body.failed ? "" : body.data},
                 now_ns);
    if (body.data)
        explicit_bzero(body.data, body.length);
    kva_buf_finish(&body);
}

static void take_token(struct kva_etcd *etcd, const cJSON *answer, uint64_t now_ns)
{
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(answer, "token");
    size_t length = cJSON_IsString(token) ? strlen(token->valuestring) : 0;
    bool fit = length > 0 && length < sizeof(etcd->token);
    for (size_t i = 0; i < length && fit; i++)
        fit = token->valuestring[i] > 0x20 && token->valuestring[i] < 0x7F;
    if (fit)
        memcpy(etcd->token, token->valuestring, length + 1);
    else
        kva_etcd_blame(etcd, KVA_ETCD_AUTH, "it gives no token", now_ns);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void answered(struct kva_etcd *etcd, struct kva_etcd_transfer *transfer, bool settled)
{
    bool said = transfer->said[0];
    if (!settled)
        return;
    transfer->failures = 0;
    transfer->said[0] = 0;
    for (uint32_t i = 0; i < KVA_ETCD_SLOTS; i++)
        said = said && !etcd->transfers[i].said[0];
    if (said)
        kva_log(KVA_LOG_INFO, "cluster: etcd answers again");
}

/* One answer, whole or a line. Returns false where the transfer has to end by it. */
static bool deliver(struct kva_etcd *etcd, enum kva_etcd_slot slot, const char *text, size_t length,
                    long http_code, uint64_t now_ns)
{
    struct kva_etcd_transfer *transfer = &etcd->transfers[slot];
    struct kva_etcd_reading reading;
    kva_etcd_read(text, length, http_code, &reading);
    bool failed = reading.end == KVA_ETCD_FAILED, first = transfer->first;
    uint32_t failures = transfer->failures;
    if (reading.token)
        etcd->token[0] = 0;
    if (slot == KVA_ETCD_AUTH && reading.open) {
        kva_log(KVA_LOG_WARN, "cluster: etcd has no authentication enabled; the user is not used");
        etcd->open = true;
    } else if (failed) {
        kva_etcd_drop(etcd, slot);
        fail(etcd, slot, reading.wrong, now_ns);
    }
    if (slot != KVA_ETCD_AUTH)
        etcd->params.answer(etcd->params.opaque, slot, reading.end, reading.answer,
                            transfer->sent_ns);
    else if (!failed)
        take_token(etcd, reading.answer, now_ns);
    /* It was good unless it was blamed. A watch has to live on to be. */
    if (!failed && transfer->failures == failures)
        answered(etcd, transfer, !transfer->lines || !first);
    cJSON_Delete(reading.root);
    return !failed;
}

/* A transfer that did not come to an answer. */
static void end(struct kva_etcd *etcd, enum kva_etcd_slot slot, enum kva_etcd_end how,
                const char *what, uint64_t now_ns)
{
    struct kva_etcd_transfer *transfer = &etcd->transfers[slot];
    kva_etcd_drop(etcd, slot);
    if (how == KVA_ETCD_FAILED)
        fail(etcd, slot, what, now_ns);
    if (slot != KVA_ETCD_AUTH)
        etcd->params.answer(etcd->params.opaque, slot, how, NULL, transfer->sent_ns);
}

/* The lines that have come whole. */
static void take_lines(struct kva_etcd *etcd, enum kva_etcd_slot slot, uint64_t now_ns)
{
    struct kva_etcd_transfer *transfer = &etcd->transfers[slot];
    long http_code = 0;
    if (curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &http_code) || http_code != 200)
        return;
    while (transfer->busy && transfer->got.length > transfer->taken) {
        const char *line = transfer->got.data + transfer->taken;
        const char *newline = memchr(line, '\n', transfer->got.length - transfer->taken);
        if (!newline)
            break;
        transfer->taken += (size_t)(newline - line) + 1;
        transfer->line_due_ns = now_ns + transfer->silence_ns;
        if (!deliver(etcd, slot, line, (size_t)(newline - line), http_code, now_ns))
            return;
        transfer->first = false;
    }
    if (transfer->taken > 0) {
        struct kva_buf *got = &transfer->got;
        got->length -= transfer->taken;
        memmove(got->data, got->data + transfer->taken, got->length + 1);
        transfer->taken = 0;
    }
}

/* What libcurl has done with: an answer, or none. */
static void finish(struct kva_etcd *etcd, enum kva_etcd_slot slot, CURLcode code, uint64_t now_ns)
{
    struct kva_etcd_transfer *transfer = &etcd->transfers[slot];
    char what[200];
    long http_code = 0;
    if (code != CURLE_OK) {
        kva_etcd_explain(etcd, transfer, code, what, sizeof(what));
        end(etcd, slot, KVA_ETCD_FAILED, what, now_ns);
        return;
    }
    curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &http_code);
    if (transfer->lines && http_code == 200) {
        end(etcd, slot, KVA_ETCD_FAILED, "the watch ended", now_ns);
        return;
    }
    /* The slot is free before its answer is told of, which may ask again. */
    size_t length = transfer->got.length;
    char *text = kva_buf_take(&transfer->got, &length);
    kva_etcd_drop(etcd, slot);
    deliver(etcd, slot, text ? text : "", text ? length : 0, http_code, now_ns);
    free(text);
}

static void check_due(struct kva_etcd *etcd, enum kva_etcd_slot slot, uint64_t now_ns)
{
    struct kva_etcd_transfer *transfer = &etcd->transfers[slot];
    char what[100];
    if (!transfer->busy)
        return;
    if (transfer->unsent) {
        end(etcd, slot, KVA_ETCD_FAILED, "it cannot be asked: the call could not be made", now_ns);
    } else if (transfer->lines && now_ns >= transfer->line_due_ns && transfer->first) {
        snprintf(what, sizeof(what), "no answer within %llu ms",
                 (unsigned long long)(transfer->limit_ns / KVA_NS_PER_MS));
        end(etcd, slot, KVA_ETCD_FAILED, what, now_ns);
    } else if (transfer->lines && now_ns >= transfer->line_due_ns) {
        end(etcd, slot, KVA_ETCD_SILENT, NULL, now_ns);
    }
}

void kva_etcd_perform(struct kva_etcd *etcd, uint64_t now_ns)
{
    int running, left;
    CURLMsg *message;
    if (!has_token(etcd) && kva_etcd_ready(etcd, KVA_ETCD_AUTH, now_ns))
        authenticate(etcd, now_ns);
    curl_multi_perform(etcd->multi, &running);
    for (uint32_t i = 0; i < KVA_ETCD_SLOTS; i++)
        if (etcd->transfers[i].busy && etcd->transfers[i].lines && !etcd->transfers[i].unsent)
            take_lines(etcd, (enum kva_etcd_slot)i, now_ns);
    while ((message = curl_multi_info_read(etcd->multi, &left))) {
        struct kva_etcd_transfer *transfer = NULL;
        if (message->msg != CURLMSG_DONE ||
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&transfer))
            continue;
        finish(etcd, (enum kva_etcd_slot)(transfer - etcd->transfers), message->data.result,
               now_ns);
    }
    for (uint32_t i = 0; i < KVA_ETCD_SLOTS; i++)
        check_due(etcd, (enum kva_etcd_slot)i, now_ns);
}

/* --- waiting ---------------------------------------------------------------------------------- */

uint64_t kva_etcd_due_ns(const struct kva_etcd *etcd, uint64_t now_ns)
{
    uint64_t due_ns = UINT64_MAX;
    for (uint32_t i = 0; i < KVA_ETCD_SLOTS; i++) {
        const struct kva_etcd_transfer *transfer = &etcd->transfers[i];
        uint64_t slot_ns = UINT64_MAX;
        if (transfer->busy && transfer->unsent)
            slot_ns = now_ns;
        else if (transfer->busy && transfer->lines)
            slot_ns = transfer->line_due_ns;
        else if (!transfer->busy && transfer->rest_until_ns > now_ns)
            slot_ns = transfer->rest_until_ns;
        due_ns = slot_ns < due_ns ? slot_ns : due_ns;
    }
    return due_ns;
}

static bool make_room(struct kva_etcd *etcd, uint32_t count)
{
    if (count <= etcd->wait_max)
        return true;
    struct curl_waitfd *waits = realloc(etcd->waits, count * sizeof(*waits));
    if (!waits)
        return false;
    etcd->waits = waits;
    etcd->wait_max = count;
    return true;
}

bool kva_etcd_wait(struct kva_etcd *etcd, const int *fds, uint32_t fd_count, uint64_t wait_ns)
{
    static const uint64_t wait_max_ms = 60000, blind_ms = 10;
    uint64_t wait_ms = kva_div_up(wait_ns, KVA_NS_PER_MS);
    bool readable = false;
    if (wait_ms > wait_max_ms)
        wait_ms = wait_max_ms;
    if (!make_room(etcd, fd_count)) {
        wait_ms = wait_ms < blind_ms ? wait_ms : blind_ms;
        fd_count = 0;
    }
    for (uint32_t i = 0; i < fd_count; i++)
        etcd->waits[i] = (struct curl_waitfd){.fd = fds[i], .events = CURL_WAIT_POLLIN};
    curl_multi_poll(etcd->multi, etcd->waits, fd_count, (int)wait_ms, NULL);
    for (uint32_t i = 0; i < fd_count; i++)
        readable = readable || etcd->waits[i].revents != 0;
    return readable;
}

uint64_t kva_etcd_failures(const struct kva_etcd *etcd)
{
    return etcd->failures;
}

const char *kva_etcd_why(const struct kva_etcd *etcd)
{
    return etcd->why;
}
