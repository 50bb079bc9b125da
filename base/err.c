/* err.c - the table of statuses, and how errors are worded. */
#include "base/err.h"

#include <stdio.h>
#include <string.h>

static const struct kva_status_info status_table[KVA_STATUS_COUNT] = {
    [KVA_OK] = {"ok", 200, "", NULL},
    [KVA_EINVAL] = {"invalid_request", 400, "invalid_request_error", NULL},
    [KVA_ECONTEXT] = {"context_length_exceeded", 400, "invalid_request_error",
                      "context_length_exceeded"},
    [KVA_EAUTH] = {"unauthorized", 401, "authentication_error", "invalid_api_key"},
    [KVA_ENOTFOUND] = {"not_found", 404, "not_found_error", "not_found"},
    [KVA_EMODEL] = {"model_not_found", 404, "invalid_request_error", "model_not_found"},
    [KVA_EPREVIOUS] = {"previous_response_not_found", 400, "invalid_request_error",
                       "previous_response_not_found"},
    [KVA_EMETHOD] = {"method_not_allowed", 405, "invalid_request_error", "method_not_allowed"},
    [KVA_ETIMEOUT] = {"timeout", 408, "timeout_error", "timeout"},
    [KVA_ETOOBIG] = {"body_too_large", 413, "invalid_request_error", "body_too_large"},
    [KVA_EMEDIATYPE] = {"unsupported_media_type", 415, "invalid_request_error",
                        "unsupported_media_type"},
    [KVA_ERATE] = {"rate_limited", 429, "rate_limit_error", "rate_limit_exceeded"},
    [KVA_EEXPECT] = {"expectation_failed", 417, "invalid_request_error", "expectation_failed"},
    [KVA_EHEADERS] = {"headers_too_large", 431, "invalid_request_error", "headers_too_large"},
    [KVA_EHOST] = {"misdirected", 421, "invalid_request_error", "misdirected_request"},
    [KVA_ECODING] = {"unknown_coding", 501, "invalid_request_error", "unknown_transfer_coding"},
    [KVA_EVERSION] = {"unknown_version", 505, "invalid_request_error", "http_version"},
    [KVA_ECANCELLED] = {"cancelled", 499, "cancelled", NULL},
    [KVA_EINTERNAL] = {"internal", 500, "server_error", NULL},
    [KVA_EUNSUPPORTED] = {"unsupported", 400, "invalid_request_error", "unsupported"},
    [KVA_ELIMIT] = {"limit", 503, "server_error", "insufficient_memory_budget"},
    [KVA_EBUSY] = {"overloaded", 503, "server_error", "overloaded"},
    [KVA_EQUEUETIME] = {"queue_timeout", 503, "server_error", "overloaded"},
    [KVA_EDEVICE] = {"device_failed", 503, "server_error", "device_failed"},
    [KVA_ENOMEM] = {"out_of_memory", 503, "server_error", "out_of_memory"},
    [KVA_EIO] = {"io", 500, "server_error", NULL},
    [KVA_EFORMAT] = {"malformed", 400, "invalid_request_error", NULL},
};

const struct kva_status_info *kva_status_info(enum kva_status status)
{
    if ((unsigned)status >= KVA_STATUS_COUNT)
        return &status_table[KVA_EINTERNAL];
    return &status_table[status];
}

/* A cut message must still be UTF-8: it travels in JSON. */
static void trim_utf8(char *text)
{
    size_t length = strlen(text);
    size_t back = 0;
    while (back < 3 && back < length && ((unsigned char)text[length - 1 - back] & 0xC0) == 0x80)
        back++;
    if (back >= length)
        return;
    unsigned char lead = (unsigned char)text[length - 1 - back];
    size_t want = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    if (want > back)
        text[length - 1 - back] = '\0';
}

KVA_PRINTF(4, 0)
static enum kva_status fail_v(struct kva_err *err, enum kva_status status, const char *param,
                              const char *format, va_list args)
{
    if (!err)
        return status;
    err->status = status;
    int written = vsnprintf(err->message, sizeof(err->message), format, args);
    if (written >= (int)sizeof(err->message))
        trim_utf8(err->message);
    snprintf(err->param, sizeof(err->param), "%s", param);
    return status;
}

enum kva_status kva_fail(struct kva_err *err, enum kva_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail_v(err, status, "", format, args);
    va_end(args);
    return status;
}

enum kva_status kva_fail_param(struct kva_err *err, enum kva_status status, const char *param,
                               const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail_v(err, status, param, format, args);
    va_end(args);
    return status;
}

enum kva_status kva_err_prefix(struct kva_err *err, enum kva_status status, const char *format, ...)
{
    if (!err)
        return status;
    char tail[KVA_ERR_MESSAGE_MAX];
    memcpy(tail, err->message, sizeof(tail));
    va_list args;
    va_start(args, format);
    int head = vsnprintf(err->message, sizeof(err->message), format, args);
    va_end(args);
    if (head < 0 || head >= (int)sizeof(err->message))
        head = (int)sizeof(err->message) - 1;
    size_t room = sizeof(err->message) - (size_t)head;
    if ((size_t)snprintf(err->message + head, room, ": %s", tail) >= room)
        trim_utf8(err->message);
    err->status = status;
    return status;
}
