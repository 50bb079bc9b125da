/* views.c - stored responses: made, continued, asked for, deleted. */
#include "server/internal.h"

#include <stdlib.h>
#include <string.h>

#define PREFIX "/v1/responses/"

static uint64_t owner_of(const struct kva_server *server, struct kva_exchange *exchange)
{
    return kva_auth_tenant(server->auth, kva_exchange_info(exchange)->key_index);
}

enum kva_status kva_call_continue(struct kva_call *call)
{
    struct kva_server *server = call->server;
    const char *id = call->api->previous;
    struct kva_buf conversation;
    kva_buf_init(&conversation, server->params.responses_bytes_max + 1);
    enum kva_status status;
    if (!kva_response_store_get(server->responses, id, call->job.owner, NULL, &conversation))
        status = kva_fail_param(&call->err, KVA_EINVAL, "previous_response_id",
                                "There is no stored response '%.80s'.", id);
    else if (conversation.failed)
        status = kva_fail_param(&call->err, KVA_ENOMEM, "previous_response_id", "Out of memory.");
    else
        status = kva_api_continue(&server->backend.api, call->api, conversation.data, &call->err);
    kva_buf_finish(&conversation);
    return status;
}

void kva_call_store(struct kva_call *call)
{
    struct kva_server *server = call->server;
    const char *conversation = call->api->conversation;
    struct kva_buf document, message, whole;
    if (!conversation || server->params.responses_bytes_max == 0)
        return;
    kva_buf_init(&document, server->params.answer_bytes_max);
    kva_buf_init(&message, server->params.answer_bytes_max);
    kva_buf_init(&whole, server->params.responses_bytes_max + 1);
    kva_answer_record(call->answer, &document, &message);
    kva_buf_append(&whole, conversation, strlen(conversation) - 1); /* without its ']' */
    kva_buf_putc(&whole, ',');
    kva_buf_append(&whole, message.data, message.length);
    kva_buf_putc(&whole, ']');
    if (!document.failed && !message.failed && !whole.failed) {
        const struct kva_stored_response response = {
            .id = kva_answer_id(call->answer),
            .owner = call->job.owner,
            .document = document.data,
            .document_bytes = document.length,
            .conversation = whole.data,
            .conversation_bytes = whole.length,
        };
        kva_response_store_put(server->responses, &response);
    }
    kva_buf_finish(&document);
    kva_buf_finish(&message);
    kva_buf_finish(&whole);
}

static void not_found(struct kva_server *server, struct kva_exchange *exchange, const char *id)
{
    struct kva_err err;
    enum kva_status status =
        kva_fail(&err, KVA_ENOTFOUND, "There is no stored response '%.80s'.", id);
    kva_server_reply_error(server, exchange, status, &err);
}

static void show(struct kva_server *server, struct kva_exchange *exchange, const char *id)
{
    struct kva_buf document;
    kva_buf_init(&document, server->params.responses_bytes_max + 1);
    bool found =
        kva_response_store_get(server->responses, id, owner_of(server, exchange), &document, NULL);
    if (found)
        kva_exchange_reply_buf(exchange, 200, "application/json", &document);
    else
        not_found(server, exchange, id);
    kva_buf_finish(&document);
}

void kva_view_response(struct kva_server *server, struct kva_exchange *exchange)
{
    const char *id = kva_exchange_info(exchange)->path + strlen(PREFIX);
    struct kva_buf body;
    if (kva_exchange_head(exchange)->method != KVA_HTTP_DELETE) {
        show(server, exchange, id);
        return;
    }
    if (!kva_response_store_remove(server->responses, id, owner_of(server, exchange))) {
        not_found(server, exchange, id);
        return;
    }
    kva_buf_init(&body, 4096);
    kva_buf_puts(&body, "{\"id\":");
    kva_buf_json_string(&body, id, strlen(id));
    kva_buf_puts(&body, ",\"object\":\"response\",\"deleted\":true}");
    kva_exchange_reply_buf(exchange, 200, "application/json", &body);
    kva_buf_finish(&body);
}
