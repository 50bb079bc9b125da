/* errors.c - why an answer has failed, in words, and how errors are written. */
#include "server/stream/internal.h"

#include <stdio.h>
#include <string.h>

/* Where the text has come to, what the request says of tokens contradicts itself. KVA_OK: it says
 * nothing. */
static enum kva_status fail_none_left(const struct kva_api_call *call, struct kva_err *err)
{
    const char *const names[] = {
        call->format.field,
        call->sampling.allowed_id_count > 0 ? "allowed_token_ids" : NULL,
        call->bad_word_count > 0 ? "bad_words" : NULL,
        call->sampling.min_tokens > 0 ? "min_tokens" : NULL,
    };
    char list[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < KVA_COUNT_OF(names) && used < sizeof(list); i++) {
        if (names[i])
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s'%.60s'",
                                     used ? ", " : "", names[i]);
    }
    return used == 0 ? KVA_OK
                     : kva_fail(err, KVA_EINVAL, "No token is left that this request allows by %s.",
                                list);
}

void kva_answer_note_failure(struct kva_answer *answer, const struct kva_output *output)
{
    static const enum kva_status by_reason[KVA_FINISH_COUNT] = {
        [KVA_FINISH_CANCELLED] = KVA_EBUSY,
        [KVA_FINISH_DEADLINE] = KVA_ETIMEOUT,
        [KVA_FINISH_ERROR] = KVA_EINTERNAL,
    };
    enum kva_status status = by_reason[output->end.reason];
    const char *message = "The request was ended because the server is shutting down.";
    if (output->end.reason == KVA_FINISH_DEADLINE) {
        message = "The request did not finish within the server's time limit.";
    } else if (output->end.reason == KVA_FINISH_ERROR) {
        if (output->end.status != KVA_OK)
            status = output->end.status;
        message = status == KVA_EDEVICE      ? "The server has failed and is shutting down."
                  : status == KVA_EQUEUETIME ? "The server has more to do than it can: the request "
                                               "waited as long as it may; retry later."
                  : status == KVA_ELIMIT ? "The request has no memory to go on in: neither this "
                                           "server's nor, in a cluster, what others lend it is "
                                           "enough."
                                         : "The engine could not continue this request.";
    }
    if (answer->status == KVA_OK && status == KVA_EINVAL)
        answer->status = fail_none_left(answer->call, &answer->err);
    if (answer->status == KVA_OK)
        answer->status = kva_fail(&answer->err, status, "%s", message);
}

enum kva_status kva_fail_too_large(struct kva_err *err, size_t bytes_max, bool no_memory)
{
    if (no_memory)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for the answer.");
    return kva_fail(err, KVA_EINVAL,
                    "The answer is larger than the server's limit of %zu bytes: ask for fewer "
                    "choices, logprobs or inputs.",
                    bytes_max);
}

static void put_text(struct kva_buf *out, const char *name, const char *text)
{
    kva_buf_printf(out, ",\"%s\":", name);
    if (text && text[0])
        kva_buf_json_string(out, text, strlen(text));
    else
        kva_buf_puts(out, "null");
}

static const char *words_of(enum kva_status status, const struct kva_err *err)
{
    return err && err->message[0] ? err->message : kva_status_info(status)->name;
}

/* The member that all forms have. */
static void put_error(struct kva_buf *out, const char *type, enum kva_status status,
                      const struct kva_err *err)
{
    const char *message = words_of(status, err);
    kva_buf_puts(out, "\"error\":{\"message\":");
    kva_buf_json_string(out, message, strlen(message));
    kva_buf_printf(out, ",\"type\":\"%s\"", type);
    put_text(out, "param", err ? err->param : NULL);
    put_text(out, "code", kva_status_info(status)->oai_code);
    kva_buf_putc(out, '}');
}

void kva_error_json(struct kva_buf *out, enum kva_status status, const struct kva_err *err)
{
    kva_buf_putc(out, '{');
    put_error(out, kva_status_info(status)->oai_type, status, err);
    kva_buf_putc(out, '}');
}

static const char *anthropic_type(int http_code)
{
    switch (http_code) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 408:
        return "timeout_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
    case 529:
        return "overloaded_error";
    default:
        return http_code < 500 ? "invalid_request_error" : "api_error";
    }
}

void kva_anthropic_error_json(struct kva_buf *out, enum kva_status status,
                              const struct kva_err *err, const char *request_id)
{
    kva_buf_puts(out, "{\"type\":\"error\",");
    put_error(out, anthropic_type(kva_status_info(status)->http_code), status, err);
    kva_buf_puts(out, ",\"request_id\":");
    kva_buf_json_string(out, request_id, strlen(request_id));
    kva_buf_putc(out, '}');
}

/* As the Responses API has it, with the member `error` besides, at which SDKs raise. */
static void response_event(struct kva_buf *out, uint32_t sequence, enum kva_status status,
                           const struct kva_err *err)
{
    const struct kva_status_info *info = kva_status_info(status);
    kva_buf_printf(out, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":%u", sequence);
    put_text(out, "code", info->oai_code);
    put_text(out, "message", words_of(status, err));
    put_text(out, "param", err ? err->param : NULL);
    kva_buf_putc(out, ',');
    put_error(out, info->oai_type, status, err);
    kva_buf_puts(out, "}\n\n");
}

void kva_answer_put_error(const struct kva_answer *answer, enum kva_status status,
                          const struct kva_err *err, const char *request_id, struct kva_buf *out)
{
    if (answer->call->face == KVA_FACE_RESPONSES) {
        response_event(out, answer->prompts[0].choices[0].sequence, status, err);
        return;
    }
    if (answer->call->face == KVA_FACE_MESSAGES) {
        kva_buf_puts(out, "event: error\ndata: ");
        kva_anthropic_error_json(out, status, err, request_id);
    } else {
        kva_buf_puts(out, "data: ");
        kva_error_json(out, status, err);
    }
    kva_buf_puts(out, "\n\n");
}
