/* internal.h - the server's parts and the life of a call (inside server/).
 *
 * All of it belongs to the event loop's thread, except the flags in struct kva_server_signals. */
#ifndef KVA_SERVER_INTERNAL_H
#define KVA_SERVER_INTERNAL_H

#include "server/auth/auth.h"
#include "server/http/http.h"
#include "server/metrics/metrics.h"
#include "server/responses/store.h"
#include "server/server.h"
#include "server/stream/answer.h"
#include "server/worker/workers.h"

#include <pthread.h>
#include <stdatomic.h>

struct kva_call;

/* Prompts in flight: the low bits of a request id are a ticket, the high ones tell apart those that
 * have used it. */
struct kva_ticket {
    struct kva_call *call;
    uint32_t prompt_index;
    uint32_t next_free;
    uint64_t generation;
};

struct kva_tickets {
    struct kva_ticket *tickets;
    uint32_t capacity;
    uint32_t max;
    uint32_t first_free;
    uint32_t used;
};

enum kva_phase {
    KVA_PHASE_LOADING,
    KVA_PHASE_READY,
    KVA_PHASE_DRAINING,
    KVA_PHASE_FAILED, /* loading or the device */
};

struct kva_server {
    struct kva_server_params params;
    struct event_base *base;
    struct kva_http *http;
    struct kva_agent *agent;
    struct kva_auth *auth;
    struct kva_response_store *responses;
    struct kva_workers *workers;
    struct kva_workers *makers; /* of grammars: calls that want a new one are prepared there */
    struct event *wake_event;   /* on wake_fd */
    struct event *tick;
    int wake_fd;
    const struct kva_clock *clock;

    /* Set by other threads and signal handlers; the event loop acts on them. */
    atomic_bool drain_asked;
    atomic_bool stop_asked;
    atomic_bool reload_asked;
    atomic_bool backend_given;
    atomic_bool fail_given;
    struct kva_server_backend given; /* before backend_given is set */
    char fail_message[256];

    enum kva_phase phase;
    struct kva_server_backend backend; /* once READY */
    bool has_backend;
    bool timed_out; /* the drain's bound was reached */
    enum kva_status end_status;
    uint64_t drain_deadline_ns;
    int64_t start_unix_s;

    struct kva_tickets tickets;
    struct kva_call *calls; /* all */
    struct kva_call *dirty; /* with something to send after this poll */
    uint32_t call_count;
    uint32_t call_peak;       /* since the heap was last trimmed */
    uint64_t untrimmed_bytes; /* of requests since then */
    uint64_t trimmed_ns;
    uint64_t tick_ns;
    struct kva_metrics metrics;
};

enum kva_call_state {
    KVA_CALL_PREPARING, /* on a worker */
    KVA_CALL_RUNNING,
    KVA_CALL_OVER, /* answered, failed or abandoned: to be destroyed */
};

/* One POST to a completion route. */
struct kva_call {
    struct kva_server *server;
    struct kva_call *prev, *next;
    struct kva_call *next_dirty;
    struct kva_exchange *exchange; /* NULL: the client has left */
    struct kva_api_call *api;
    struct kva_answer *answer;
    enum kva_api_route route;
    enum kva_call_state state;

    struct kva_job job;
    struct kva_workers *pool; /* that has the job, while it is PREPARING */
    bool wants_maker;         /* parsed, and to be prepared by one */
    atomic_bool abandoned;    /* read by the worker: nobody waits for the answer any more */
    char *body;
    size_t body_bytes;
    struct kva_api_identity identity;
    int key_index;           /* -1: no key */
    uint64_t tokens_entered; /* what its key was charged with at first */
    uint32_t choices_entered;
    uint32_t choices_waiting; /* of them: not begun */
    bool served;              /* a prompt of it was begun */
    uint32_t retry_s;         /* Retry-After of a refusal; 0: none of its own */
    enum kva_status status;   /* of preparing, or why it failed */
    struct kva_err err;

    uint64_t *request_ids;   /* [prompt_count], 0: not submitted */
    uint64_t *last_token_ns; /* [prompt_count * best_of], 0: no token yet */
    bool *begun;             /* [prompt_count * best_of], it has been heard of */
    uint64_t counted_tokens; /* of the answer, that the metrics have */
    const char *finish;      /* of the choice that ended last */
    struct kva_buf out;      /* frames since the last write */
    uint64_t received_ns;
    uint64_t written_ns; /* when the stream last got bytes */
    uint64_t first_token_ns;
    uint32_t prefill_done; /* of the prompt that reported last */
    uint32_t prefill_total;
    bool head_sent;
    bool paused;
    bool is_dirty;
    bool is_done; /* every choice has ended */
    bool failed;  /* `err` says why; the flush reports it */
};

/* --- tickets.c --- */
enum kva_status kva_tickets_init(struct kva_tickets *tickets, uint32_t max);
void kva_tickets_finish(struct kva_tickets *tickets);
/* 0: none is free. */
uint64_t kva_tickets_take(struct kva_tickets *tickets, struct kva_call *call,
                          uint32_t prompt_index);
void kva_tickets_give(struct kva_tickets *tickets, uint64_t id);
/* NULL: the id is not in use any more. */
struct kva_ticket *kva_tickets_find(struct kva_tickets *tickets, uint64_t id);

/* --- routes.c --- */
/* A head: refuse the request, or find its route. */
void kva_server_begin(void *server, struct kva_exchange *exchange);
void kva_server_handle(void *server, struct kva_exchange *exchange);
void kva_server_reply_error(struct kva_server *server, struct kva_exchange *exchange,
                            enum kva_status status, const struct kva_err *err);
/* KVA_EMETHOD, and the header that says which of enum kva_http_method there are. */
enum kva_status kva_server_refuse_method(struct kva_exchange *exchange, uint32_t allowed,
                                         struct kva_err *err);
/* KVA_OK when requests are taken; else err and KVA_EBUSY or KVA_EDEVICE, counted. */
enum kva_status kva_server_check_open(struct kva_server *server, struct kva_err *err);
void kva_server_count_rejection(struct kva_server *server, enum kva_status status);
/* The body, which must not be empty; the caller frees it. */
enum kva_status kva_server_take_body(struct kva_exchange *exchange, char **ret_body,
                                     size_t *ret_bytes, struct kva_err *err);

/* --- views.c: what is answered at once --- */
void kva_view_health(struct kva_server *server, struct kva_exchange *exchange);
void kva_view_ready(struct kva_server *server, struct kva_exchange *exchange);
void kva_view_version(struct kva_server *server, struct kva_exchange *exchange);
void kva_view_models(struct kva_server *server, struct kva_exchange *exchange);
void kva_view_model(struct kva_server *server, struct kva_exchange *exchange);
void kva_view_metrics(struct kva_server *server, struct kva_exchange *exchange);
void kva_view_requests(struct kva_server *server, struct kva_exchange *exchange);
void kva_view_policies(struct kva_server *server, struct kva_exchange *exchange);

/* --- call.c, call_output.c --- */
void kva_call_begin(struct kva_server *server, struct kva_exchange *exchange,
                    enum kva_api_route route);
void kva_call_completion(struct kva_server *server, struct kva_exchange *exchange);
void kva_call_chat(struct kva_server *server, struct kva_exchange *exchange);
void kva_call_responses(struct kva_server *server, struct kva_exchange *exchange);
void kva_call_messages(struct kva_server *server, struct kva_exchange *exchange);
void kva_call_embeddings(struct kva_server *server, struct kva_exchange *exchange);
/* Send the buffered output; may end the call and free it. */
void kva_call_flush(struct kva_call *call);
void kva_call_mark_dirty(struct kva_call *call);
/* End with an error: a JSON answer, or a frame once the stream has begun. Frees the call. */
void kva_call_fail(struct kva_call *call, enum kva_status status, const struct kva_err *err);
void kva_call_destroy(struct kva_call *call);
/* Outputs of the service, for every call. */
void kva_calls_poll(struct kva_server *server);
/* Keep-alives; memory goes back to the system when many requests have gone. */
void kva_calls_tick(struct kva_server *server, uint64_t now_ns);
void kva_calls_end_all(struct kva_server *server, enum kva_status status, const char *message);
/* Close the connections of all running calls and end them. */
void kva_calls_abort_all(struct kva_server *server);
/* What the log line says about the call. */
void kva_call_log_summary(struct kva_call *call);
/* Its choices that have not ended never will: they count as aborted. */
void kva_call_count_aborted(struct kva_call *call);

/* --- responses/views.c --- */
/* On a worker: the messages of the response that the call continues come before its own. */
KVA_MUST_CHECK enum kva_status kva_call_continue(struct kva_call *call);
/* Its answer is complete: keep it, if that was asked for. */
void kva_call_store(struct kva_call *call);
void kva_view_response(struct kva_server *server, struct kva_exchange *exchange);

/* --- tokenize.c --- */
void kva_view_tokenize(struct kva_server *server, struct kva_exchange *exchange);
void kva_view_count_tokens(struct kva_server *server, struct kva_exchange *exchange);
void kva_view_detokenize(struct kva_server *server, struct kva_exchange *exchange);

/* --- access_log.c --- */
void kva_server_done(void *server, struct kva_exchange *exchange);

#endif
