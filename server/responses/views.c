/* views.c - stored responses: made, continued, asked for with what they were asked with, deleted. */
#include "server/internal.h"

#include <cjson/cJSON.h>
#include <stdio.h>
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
    if (!kva_response_store_get(server->responses, id, call->job.owner, NULL, &conversation, NULL))
        status = kva_fail_param(&call->err, KVA_EPREVIOUS, "previous_response_id",
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
            .input = call->api->input_items,
            .input_bytes = strlen(call->api->input_items),
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

#define PAIR_BYTES 256u

/* The next name=value pair of a query, cut to what fits; *value is NULL where there is no '='. What is
 * asked for here (ids, numbers, words) needs no escapes. False: there are no more. */
static bool next_pair(const char **query, char name[PAIR_BYTES], char **value)
{
    if (!*query || !**query)
        return false;
    size_t length = strcspn(*query, "&");
    snprintf(name, PAIR_BYTES, "%.*s", (int)kva_min_size(length, PAIR_BYTES - 1), *query);
    *query += length + ((*query)[length] == '&');
    *value = strchr(name, '=');
    if (*value)
        *(*value)++ = '\0';
    return true;
}

/* The SDK's retrieve(stream=True). */
static bool asks_for_stream(const char *query)
{
    char name[PAIR_BYTES], *value;
    bool asked = false;
    while (next_pair(&query, name, &value)) {
        if (value && strcmp(name, "stream") == 0)
            asked = strcmp(value, "true") == 0;
    }
    return asked;
}

static void show(struct kva_server *server, struct kva_exchange *exchange, const char *id)
{
    struct kva_err err;
    struct kva_buf document;
    if (asks_for_stream(kva_exchange_head(exchange)->query)) {
        enum kva_status status =
            kva_fail_param(&err, KVA_EUNSUPPORTED, "stream",
                           "A stored response is complete: ask for it without 'stream'.");
        kva_server_reply_error(server, exchange, status, &err);
        return;
    }
    kva_buf_init(&document, server->params.responses_bytes_max + 1);
    bool found = kva_response_store_get(server->responses, id, owner_of(server, exchange),
                                        &document, NULL, NULL);
    if (found)
        kva_exchange_reply_buf(exchange, 200, "application/json", &document);
    else
        not_found(server, exchange, id);
    kva_buf_finish(&document);
}

/* --- input items ----------------------------------------------------------------------------- */

#define ITEMS_MAX     100u
#define ITEMS_DEFAULT 20u

/* What of the list is asked for. */
struct page {
    bool ascending;
    uint32_t limit;
    char after[128]; /* an id, or "" */
};

static enum kva_status read_page(const char *query, struct page *ret, struct kva_err *err)
{
    *ret = (struct page){.limit = ITEMS_DEFAULT};
    char name[PAIR_BYTES], *value;
    while (next_pair(&query, name, &value)) {
        if (!value)
            continue;
        if (strcmp(name, "order") == 0) {
            ret->ascending = strcmp(value, "asc") == 0;
            if (!ret->ascending && strcmp(value, "desc") != 0)
                return kva_fail_param(err, KVA_EINVAL, "order", "'order' must be asc or desc.");
        } else if (strcmp(name, "limit") == 0) {
            char *end;
            unsigned long limit = strtoul(value, &end, 10);
            if (*end || end == value || limit < 1 || limit > ITEMS_MAX)
                return kva_fail_param(err, KVA_EINVAL, "limit", "'limit' must be 1 to %u.",
                                      ITEMS_MAX);
            ret->limit = (uint32_t)limit;
        } else if (strcmp(name, "after") == 0) {
            snprintf(ret->after, sizeof(ret->after), "%.127s", value);
        }
    }
    return KVA_OK;
}

static const char *id_of(const cJSON *item)
{
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(item, "id");
    return cJSON_IsString(id) ? id->valuestring : "";
}

/* A list as OpenAI's APIs have them. */
static void put_items(struct kva_buf *out, const cJSON *items, const struct page *page)
{
    uint32_t count = (uint32_t)cJSON_GetArraySize(items), put = 0;
    const char *first = NULL, *last = NULL;
    bool begun = page->after[0] == '\0', more = false;
    const cJSON *at = items->child;
    if (!page->ascending && at)
        at = at->prev; /* cJSON: the first item's is the last */
    kva_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < count && !more; i++, at = page->ascending ? at->next : at->prev) {
        if (!begun) {
            begun = strcmp(id_of(at), page->after) == 0;
            continue;
        }
        more = put == page->limit;
        if (more)
            continue;
        char *text = cJSON_PrintUnformatted(at);
        kva_buf_puts(out, put++ ? "," : "");
        kva_buf_puts(out, text ? text : "null");
        out->failed = out->failed || !text;
        free(text);
        last = id_of(at);
        first = first ? first : last;
    }
    kva_buf_puts(out, "],\"first_id\":");
    if (first)
        kva_buf_json_string(out, first, strlen(first));
    else
        kva_buf_puts(out, "null");
    kva_buf_puts(out, ",\"last_id\":");
    if (last)
        kva_buf_json_string(out, last, strlen(last));
    else
        kva_buf_puts(out, "null");
    kva_buf_printf(out, ",\"has_more\":%s}", more ? "true" : "false");
}

static void show_items(struct kva_server *server, struct kva_exchange *exchange, const char *id)
{
    struct kva_err err;
    struct page page;
    struct kva_buf input, body;
    enum kva_status status = read_page(kva_exchange_head(exchange)->query, &page, &err);
    if (status != KVA_OK) {
        kva_server_reply_error(server, exchange, status, &err);
        return;
    }
    kva_buf_init(&input, server->params.responses_bytes_max + 1);
    kva_buf_init(&body, 4 * server->params.responses_bytes_max + 4096);
    if (!kva_response_store_get(server->responses, id, owner_of(server, exchange), NULL, NULL,
                                &input)) {
        not_found(server, exchange, id);
    } else {
        cJSON *items = input.failed ? NULL : cJSON_Parse(input.data);
        if (items)
            put_items(&body, items, &page);
        body.failed = body.failed || !items;
        kva_exchange_reply_buf(exchange, 200, "application/json", &body);
        cJSON_Delete(items);
    }
    kva_buf_finish(&input);
    kva_buf_finish(&body);
}

/* Only what runs in the background can be cancelled, which nothing does here: closing the connection
 * ends a response. */
static void refuse_cancel(struct kva_server *server, struct kva_exchange *exchange, const char *id)
{
    struct kva_err err;
    if (!kva_response_store_get(server->responses, id, owner_of(server, exchange), NULL, NULL,
                                NULL)) {
        not_found(server, exchange, id);
        return;
    }
    enum kva_status status =
        kva_fail(&err, KVA_EINVAL,
                 "The response '%.80s' is complete: only those that run in the background can be "
                 "cancelled, which this server has not.",
                 id);
    kva_server_reply_error(server, exchange, status, &err);
}

/* --- the route ------------------------------------------------------------------------------- */

static void remove_response(struct kva_server *server, struct kva_exchange *exchange,
                            const char *id)
{
    struct kva_buf body;
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

void kva_view_response(struct kva_server *server, struct kva_exchange *exchange)
{
    static const struct {
        const char *word; /* behind the id */
        uint32_t methods;
        void (*handle)(struct kva_server *server, struct kva_exchange *exchange, const char *id);
    } views[] = {
        {"", KVA_HTTP_GET | KVA_HTTP_HEAD, show},
        {"", KVA_HTTP_DELETE, remove_response},
        {"/input_items", KVA_HTTP_GET | KVA_HTTP_HEAD, show_items},
        {"/cancel", KVA_HTTP_POST, refuse_cancel},
    };
    const char *rest = kva_exchange_info(exchange)->path + strlen(PREFIX);
    uint32_t method = kva_exchange_head(exchange)->method;
    char id[128];
    size_t length = strcspn(rest, "/");
    snprintf(id, sizeof(id), "%.*s", (int)kva_min_size(length, sizeof(id) - 1), rest);
    uint32_t allowed = 0;
    for (size_t i = 0; i < KVA_COUNT_OF(views); i++) {
        if (strcmp(rest + length, views[i].word) != 0)
            continue;
        allowed |= views[i].methods;
        if (views[i].methods & method) {
            views[i].handle(server, exchange, id);
            return;
        }
    }
    struct kva_err err;
    enum kva_status status = allowed ? kva_server_refuse_method(exchange, allowed, &err)
                                     : kva_fail(&err, KVA_ENOTFOUND, "There is no route '%.200s'.",
                                                kva_exchange_info(exchange)->path);
    kva_server_reply_error(server, exchange, status, &err);
}
