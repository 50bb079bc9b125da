#include "tests/clients/chat/stub.h"

#include <arpa/inet.h>
#include <cjson/cJSON.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/thread.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BODIES_MAX 64

struct stub {
    struct event_base *base;
    struct evhttp *http;
    struct event *stop;
    pthread_t thread;
    bool want_key;
    char url[64];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t left;
    char *bodies[BODIES_MAX];
    size_t body_count;
};

/* A stream that goes on until its client leaves. */
struct endless {
    struct stub *stub;
    struct evhttp_request *request;
    struct event *tick;
    bool interrupt;
};

static void send_text(struct evhttp_request *request, const char *text)
{
    struct evbuffer *out = evbuffer_new();
    evbuffer_add(out, text, strlen(text));
    evhttp_send_reply_chunk(request, out);
    evbuffer_free(out);
}

static void send_piece(struct evhttp_request *request, const char *json_text)
{
    char frame[512];
    snprintf(frame, sizeof(frame),
             "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%s}}]}\n\n", json_text);
    send_text(request, frame);
}

static void reply(struct evhttp_request *request, int code, const char *type, const char *text)
{
    struct evbuffer *out = evbuffer_new();
    evbuffer_add(out, text, strlen(text));
    evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", type);
    evhttp_send_reply(request, code, "x", out);
    evbuffer_free(out);
}

static void on_left(struct evhttp_connection *connection, void *opaque)
{
    struct endless *endless = opaque;
    struct stub *stub = endless->stub;
    (void)connection;
    /* evhttp leaves a request whose connection failed to whoever was answering it. */
    if (!evhttp_request_get_connection(endless->request))
        evhttp_request_free(endless->request);
    event_free(endless->tick);
    free(endless);
    pthread_mutex_lock(&stub->lock);
    stub->left++;
    pthread_cond_broadcast(&stub->changed);
    pthread_mutex_unlock(&stub->lock);
}

static void on_tick(evutil_socket_t fd, short what, void *opaque)
{
    struct endless *endless = opaque;
    (void)fd;
    (void)what;
    send_piece(endless->request, "\"tick \"");
    if (endless->interrupt)
        kill(getpid(), SIGINT);
    endless->interrupt = false;
}

static void start_endless(struct stub *stub, struct evhttp_request *request, bool interrupt)
{
    const struct timeval interval = {0, 2000};
    struct endless *endless = calloc(1, sizeof(*endless));
    endless->stub = stub;
    endless->request = request;
    endless->interrupt = interrupt;
    endless->tick = event_new(stub->base, -1, EV_PERSIST, on_tick, endless);
    evhttp_connection_set_closecb(evhttp_request_get_connection(request), on_left, endless);
    event_add(endless->tick, &interval);
}

static void on_cut(evutil_socket_t fd, short what, void *opaque)
{
    (void)fd;
    (void)what;
    evhttp_connection_free(opaque);
}

static void on_written(struct evhttp_connection *connection, void *opaque)
{
    struct stub *stub = opaque;
    const struct timeval now = {0, 0};
    event_base_once(stub->base, -1, EV_TIMEOUT, on_cut, connection, &now);
}

static void cut_after(struct stub *stub, struct evhttp_request *request)
{
    struct evbuffer *out = evbuffer_new();
    evbuffer_add_printf(out, ": about to go\n\n");
    evhttp_send_reply_chunk_with_cb(request, out, on_written, stub);
    evbuffer_free(out);
}

static void stream(struct stub *stub, struct evhttp_request *request, const char *question)
{
    evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type",
                      "text/event-stream; charset=utf-8");
    evhttp_send_reply_start(request, 200, "OK");
    if (strcmp(question, "endless") == 0 || strcmp(question, "interrupt") == 0) {
        start_endless(stub, request, strcmp(question, "interrupt") == 0);
        return;
    }
    if (strcmp(question, "late") == 0)
        usleep(STUB_LATE_MS * 1000);
    send_text(request, ": keep-alive prefill 1/2\r\n\r\n");
    send_piece(request, strcmp(question, "control") == 0 ? "\"\\u001b]0;x\\u0007 \"" : "\"Hel\"");
    if (strcmp(question, "cut") == 0) {
        cut_after(stub, request);
        return;
    }
    if (strcmp(question, "error") == 0) {
        send_text(request, "data: {\"error\":{\"message\":\"device\\u001b failed\"}}\n\n");
        evhttp_send_reply_end(request);
        return;
    }
    send_piece(request, "\"lo\"");
    send_text(request, strcmp(question, "limit") == 0
                           ? "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n"
                           : "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n");
    send_text(request, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,"
                       "\"completion_tokens\":2}}\n\ndata: [DONE]\n\n");
    evhttp_send_reply_end(request);
}

static char *take_body(struct stub *stub, struct evhttp_request *request)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(request);
    size_t length = evbuffer_get_length(in);
    char *body = calloc(1, length + 1);
    evbuffer_remove(in, body, length);
    pthread_mutex_lock(&stub->lock);
    if (stub->body_count < BODIES_MAX)
        stub->bodies[stub->body_count++] = strdup(body);
    pthread_mutex_unlock(&stub->lock);
    return body;
}

static bool refuse(struct stub *stub, struct evhttp_request *request)
{
    struct evkeyvalq *headers = evhttp_request_get_input_headers(request);
    const char *key = evhttp_find_header(headers, "Authorization");
    if (!stub->want_key || (key && strcmp(key, "Bearer key") == 0))
        return false;
    reply(request, 401, "application/json", "{\"error\":{\"message\":\"wrong key\"}}");
    return true;
}

static void on_chat(struct evhttp_request *request, void *opaque)
{
    struct stub *stub = opaque;
    if (refuse(stub, request))
        return;
    char *body = take_body(stub, request);
    cJSON *root = cJSON_Parse(body);
    cJSON *messages = cJSON_GetObjectItem(root, "messages");
    cJSON *last = cJSON_GetArrayItem(messages, cJSON_GetArraySize(messages) - 1);
    const char *question = cJSON_GetStringValue(cJSON_GetObjectItem(last, "content"));
    const char *model = cJSON_GetStringValue(cJSON_GetObjectItem(root, "model"));
    int code = question ? atoi(question) : 400;
    if (model && strcmp(model, "nope") == 0)
        code = 404;
    if (code == 503)
        evhttp_add_header(evhttp_request_get_output_headers(request), "Retry-After", "7");
    if (code >= 300)
        reply(request, code, "application/json", "{\"error\":{\"message\":\"as asked\"}}");
    else if (strcmp(question, "document") == 0)
        reply(request, 200, "application/json",
              "{\"choices\":[{\"message\":{\"content\":\"whole\"},\"finish_reason\":\"stop\"}]}");
    else if (strcmp(question, "html") == 0)
        reply(request, 200, "text/html", "<html>hello</html>");
    else
        stream(stub, request, question);
    cJSON_Delete(root);
    free(body);
}

static void on_models(struct evhttp_request *request, void *opaque)
{
    struct stub *stub = opaque;
    if (!refuse(stub, request))
        reply(request, 200, "application/json",
              "{\"object\":\"list\",\"data\":[{\"id\":\"first\"},{\"id\":\"second\"}]}");
}

static void on_models_while_loading(struct evhttp_request *request, void *opaque)
{
    (void)opaque;
    reply(request, 200, "application/json", "{\"object\":\"list\",\"data\":[]}");
}

static void on_stop(evutil_socket_t fd, short what, void *opaque)
{
    struct stub *stub = opaque;
    (void)fd;
    (void)what;
    event_base_loopbreak(stub->base);
}

static void *run(void *opaque)
{
    struct stub *stub = opaque;
    event_base_loop(stub->base, EVLOOP_NO_EXIT_ON_EMPTY);
    return NULL;
}

struct stub *stub_start(bool want_key)
{
    struct stub *stub = calloc(1, sizeof(*stub));
    struct sockaddr_in address;
    socklen_t length = sizeof(address);
    evthread_use_pthreads();
    stub->want_key = want_key;
    pthread_mutex_init(&stub->lock, NULL);
    pthread_cond_init(&stub->changed, NULL);
    stub->base = event_base_new();
    stub->http = evhttp_new(stub->base);
    stub->stop = event_new(stub->base, -1, 0, on_stop, stub);
    evhttp_set_cb(stub->http, "/v1/chat/completions", on_chat, stub);
    evhttp_set_cb(stub->http, "/v1/models", on_models, stub);
    evhttp_set_cb(stub->http, "/v1/loading/models", on_models_while_loading, stub);
    struct evhttp_bound_socket *bound = evhttp_bind_socket_with_handle(stub->http, "127.0.0.1", 0);
    getsockname(evhttp_bound_socket_get_fd(bound), (struct sockaddr *)&address, &length);
    snprintf(stub->url, sizeof(stub->url), "http://127.0.0.1:%u/v1/",
             (unsigned)ntohs(address.sin_port));
    pthread_create(&stub->thread, NULL, run, stub);
    return stub;
}

void stub_stop(struct stub *stub)
{
    event_active(stub->stop, 0, 0);
    pthread_join(stub->thread, NULL);
    event_free(stub->stop);
    evhttp_free(stub->http);
    event_base_free(stub->base);
    for (size_t i = 0; i < stub->body_count; i++)
        free(stub->bodies[i]);
    pthread_cond_destroy(&stub->changed);
    pthread_mutex_destroy(&stub->lock);
    free(stub);
}

const char *stub_url(const struct stub *stub)
{
    return stub->url;
}

const char *stub_body(struct stub *stub, size_t index)
{
    pthread_mutex_lock(&stub->lock);
    const char *body = index < stub->body_count ? stub->bodies[index] : NULL;
    pthread_mutex_unlock(&stub->lock);
    return body;
}

void stub_wait_left(struct stub *stub, size_t count)
{
    pthread_mutex_lock(&stub->lock);
    while (stub->left < count)
        pthread_cond_wait(&stub->changed, &stub->lock);
    pthread_mutex_unlock(&stub->lock);
}
