/* etcd_answer.c - what comes back from etcd, or does not, in words that an operator can act on. */
#include "base/json_check.h"
#include "cluster/members/etcd_internal.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define VALUES_MAX 65536u

/* gRPC's, which the gateway passes on. */
enum {
    CODE_NOT_FOUND = 5,
    CODE_FAILED_PRECONDITION = 9,
    CODE_UNAUTHENTICATED = 16,
};

bool kva_etcd_wants_token(const char *message)
{
    return strstr(message, "invalid auth token") || strstr(message, "auth: revision") ||
           strstr(message, "permission denied");
}

/* An error is {"message": .., "code": ..}, within a stream {"error": {"message": .., ..}}. */
static void read_error(const cJSON *root, long http_code, struct kva_etcd_reading *ret)
{
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(root, "error");
    const cJSON *object = cJSON_IsObject(error) ? error : root;
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(object, "message");
    const cJSON *code = cJSON_GetObjectItemCaseSensitive(object, "code");
    char text[128] = "";
    if (!code)
        code = cJSON_GetObjectItemCaseSensitive(object, "grpc_code");
    double number = cJSON_IsNumber(code) ? code->valuedouble : 0;
    if (cJSON_IsString(message))
        snprintf(text, sizeof(text), "%s", message->valuestring);
    bool lease = number == CODE_NOT_FOUND && strstr(text, "lease not found");
    ret->end = lease ? KVA_ETCD_NO_LEASE : KVA_ETCD_FAILED;
    ret->token = number == CODE_UNAUTHENTICATED || kva_etcd_wants_token(text);
    ret->open = number == CODE_FAILED_PRECONDITION && strstr(text, "authentication is not enabled");
    if (strstr(text, "user name is empty")) {
        ret->token = true;
        snprintf(ret->wrong, sizeof(ret->wrong), "it wants a user and a password");
    } else if (text[0]) {
        snprintf(ret->wrong, sizeof(ret->wrong), "it says \"%s\"", text);
    } else {
        snprintf(ret->wrong, sizeof(ret->wrong), "it answers with HTTP %ld", http_code);
    }
}

void kva_etcd_read(const char *text, size_t length, long http_code, struct kva_etcd_reading *ret)
{
    struct kva_json_limits limits;
    struct kva_err err = {0};
    *ret = (struct kva_etcd_reading){.end = KVA_ETCD_FAILED};
    kva_json_limits_default(&limits);
    limits.values_max = VALUES_MAX;
    bool fit = length > 0 && kva_json_check(text, length, &limits, &err) == KVA_OK;
    ret->root = fit ? cJSON_ParseWithLength(text, length) : NULL;
    if (http_code != 200 || cJSON_HasObjectItem(ret->root, "error")) {
        read_error(ret->root, http_code, ret);
        return;
    }
    if (!cJSON_IsObject(ret->root)) {
        snprintf(ret->wrong, sizeof(ret->wrong), "its answer is not what etcd would say%s%.120s",
                 err.message[0] ? ": " : "", err.message);
        return;
    }
    const cJSON *result = cJSON_GetObjectItemCaseSensitive(ret->root, "result");
    ret->end = KVA_ETCD_ANSWERED;
    ret->answer = cJSON_IsObject(result) ? result : ret->root;
}

/* --- no answer -------------------------------------------------------------------------------- */

static void explain_connect(const struct kva_etcd_transfer *transfer, char *ret, size_t size)
{
    long number = 0;
    if (curl_easy_getinfo(transfer->easy, CURLINFO_OS_ERRNO, &number) || number == 0) {
        snprintf(ret, size, "%s", transfer->message);
        return;
    }
    snprintf(ret, size, "%s", strerror((int)number));
    ret[0] = (char)tolower((unsigned char)ret[0]);
}

void kva_etcd_explain(const struct kva_etcd *etcd, const struct kva_etcd_transfer *transfer,
                      CURLcode code, char *ret, size_t size)
{
    const char *ca = etcd->params.ca;
    uint64_t ms = transfer->limit_ns / 1000000;
    switch (code) {
    case CURLE_COULDNT_CONNECT:
        explain_connect(transfer, ret, size);
        break;
    case CURLE_OPERATION_TIMEDOUT:
        snprintf(ret, size, "no answer within %llu ms", (unsigned long long)ms);
        break;
    case CURLE_COULDNT_RESOLVE_HOST:
        snprintf(ret, size, "its name is not known to DNS");
        break;
    case CURLE_PEER_FAILED_VERIFICATION:
        snprintf(ret, size, "TLS: %s, by the certificates %s%s", transfer->message,
                 ca ? "of " : "that the system trusts", ca ? ca : "");
        break;
    case CURLE_SSL_CACERT_BADFILE:
        snprintf(ret, size, "TLS: no certificates can be read from %s",
                 ca ? ca : "the system's file");
        break;
    case CURLE_SSL_CONNECT_ERROR:
        snprintf(ret, size, "TLS: %s (does it speak https?)", transfer->message);
        break;
    case CURLE_WRITE_ERROR:
        snprintf(ret, size, "its answer is longer than %zu bytes", KVA_ETCD_BODY_MAX);
        break;
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
        snprintf(ret, size, "the connection ended within an answer");
        break;
    default:
        snprintf(ret, size, "%s",
                 transfer->message[0] ? transfer->message : curl_easy_strerror(code));
    }
}
