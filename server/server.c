/* server.c - life of the server: create, the event loop, attach, drain. */
#include "server/internal.h"

#include "base/log.h"
#include "server/agent.h"

#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Templates recurse; see template.h. */
#define WORKER_STACK_BYTES (KVA_TEMPLATE_STACK_BYTES + (1u << 20))

/* Threads that make grammars, and prepare the calls that want them. The library recurses too, as
 * deep as a grammar nests. */
#define GRAMMAR_MAKERS    2u
#define MAKER_STACK_BYTES (WORKER_STACK_BYTES + (16u << 20))
#define TICK_NS_MAX       (KVA_NS_PER_S / 2)
#define TICK_NS_MIN       (10 * KVA_NS_PER_MS)

/* write(2) is all that a signal handler needs here. Every write is an edge, so nobody reads the
 * counter, which would take a call for each token of a lone stream; it lasts for 2^64 of them. */
static void signal_loop(struct kva_server *server)
{
    uint64_t one = 1;
    int saved = errno;
    if (write(server->wake_fd, &one, sizeof(one)) < 0) {
        /* The counter is full: the loop is awake already. */
    }
    errno = saved;
}

void kva_server_wake(void *server)
{
    signal_loop(server);
}

void kva_server_drain(struct kva_server *server)
{
    atomic_store(&server->drain_asked, true);
    signal_loop(server);
}

void kva_server_stop(struct kva_server *server)
{
    atomic_store(&server->stop_asked, true);
    signal_loop(server);
}

void kva_server_reload(struct kva_server *server)
{
    atomic_store(&server->reload_asked, true);
    signal_loop(server);
}

static enum kva_status check_backend(const struct kva_server_backend *backend, struct kva_err *err)
{
    const struct kva_api_config *api = &backend->api;
    if (!backend->service || !api->tokenizer || api->model_id_count == 0 ||
        api->model_id_count > KVA_API_MODEL_IDS_MAX || api->context_max < 2 || api->vocab_size == 0)
        return kva_fail(err, KVA_EINVAL,
                        "A backend needs a service, a tokenizer, 1 to %u model ids, a context and "
                        "a vocabulary.",
                        KVA_API_MODEL_IDS_MAX);
    if (!(api->kv_allowed_mask & (1u << api->kv_default)))
        return kva_fail(err, KVA_EINVAL, "The default KV policy is not among the allowed ones.");
    return KVA_OK;
}

enum kva_status kva_server_attach(struct kva_server *server,
                                  const struct kva_server_backend *backend, struct kva_err *err)
{
    enum kva_status status = check_backend(backend, err);
    if (status != KVA_OK)
        return status;
    if (atomic_load(&server->backend_given))
        return kva_fail(err, KVA_EINVAL, "A backend is attached already.");
    server->given = *backend;
    atomic_store(&server->backend_given, true);
    signal_loop(server);
    return KVA_OK;
}

void kva_server_fail(struct kva_server *server, const char *message)
{
    if (atomic_load(&server->fail_given))
        return;
    snprintf(server->fail_message, sizeof(server->fail_message), "%s", message);
    atomic_store(&server->fail_given, true);
    signal_loop(server);
}

static void reload(struct kva_server *server)
{
    struct kva_err err;
    if (kva_http_reload_tls(server->http, &err) != KVA_OK)
        kva_log(KVA_LOG_ERROR, "reload: %s; the old certificate stays", err.message);
    if (kva_auth_reload(server->auth, &err) != KVA_OK)
        kva_log(KVA_LOG_ERROR, "reload: %s; the old keys stay", err.message);
}

static void start_drain(struct kva_server *server)
{
    if (server->phase == KVA_PHASE_DRAINING)
        return;
    if (server->phase != KVA_PHASE_FAILED)
        server->phase = KVA_PHASE_DRAINING;
    server->drain_deadline_ns = kva_time_ns() + server->params.drain_timeout_ns;
    if (server->has_backend)
        kva_service_drain(server->backend.service);
    kva_http_drain(server->http);
    kva_log(KVA_LOG_INFO, "draining: %u requests are running, new ones are refused",
            server->call_count);
}

/* Attach, reload, drain and stop, as other threads have asked. */
static void handle_requests_of_threads(struct kva_server *server)
{
    if (!server->has_backend && atomic_load(&server->backend_given)) {
        server->backend = server->given;
        server->has_backend = true;
        if (server->drain_deadline_ns != 0)
            kva_service_drain(server->backend.service);
        if (server->phase == KVA_PHASE_LOADING)
            server->phase = KVA_PHASE_READY;
    }
    if (server->phase == KVA_PHASE_LOADING && atomic_load(&server->fail_given))
        server->phase = KVA_PHASE_FAILED;
    if (atomic_exchange(&server->reload_asked, false))
        reload(server);
    if (atomic_load(&server->drain_asked) && server->drain_deadline_ns == 0)
        start_drain(server);
    if (atomic_load(&server->stop_asked)) {
        server->end_status = KVA_ECANCELLED;
        event_base_loopbreak(server->base);
    }
}

/* A failed device stays failed: say so, let clients go elsewhere, end. */
static void check_device(struct kva_server *server)
{
    struct kva_err err = {.status = KVA_OK};
    if (!server->has_backend || server->phase == KVA_PHASE_FAILED ||
        kva_service_error(server->backend.service, &err) == KVA_OK)
        return;
    snprintf(server->fail_message, sizeof(server->fail_message), "Serving has ended: %.200s",
             err.message);
    kva_log(KVA_LOG_ERROR, "%s", server->fail_message);
    server->phase = KVA_PHASE_FAILED;
    server->end_status = KVA_EDEVICE;
    start_drain(server);
}

/* Whether other servers of its cluster have taken home what they had here, or had the time to. */
static bool has_left(struct kva_server *server, bool over)
{
    if (!server->has_backend || kva_service_left(server->backend.service))
        return true;
    if (over)
        kva_log(KVA_LOG_WARN, "draining took longer than allowed: other servers of the cluster "
                              "still have memory here, and lose it");
    return over;
}

static void check_drained(struct kva_server *server, uint64_t now_ns)
{
    bool over = now_ns >= server->drain_deadline_ns;
    if (server->drain_deadline_ns == 0)
        return;
    if (server->call_count > 0 && over && !server->timed_out) {
        kva_log(KVA_LOG_WARN, "draining took longer than allowed: %u requests are ended",
                server->call_count);
        server->timed_out = true;
        kva_calls_end_all(server, KVA_EBUSY, "The server is shutting down.");
    }
    /* Answers that are on their way get a moment to leave. */
    bool late = now_ns >= server->drain_deadline_ns + KVA_NS_PER_S;
    struct kva_http_counts http;
    kva_http_get_counts(server->http, &http);
    bool answered = server->call_count == 0 && http.exchanges == 0;
    if (late || (answered && has_left(server, over))) {
        if (server->end_status == KVA_OK && server->timed_out)
            server->end_status = KVA_ETIMEOUT;
        event_base_loopbreak(server->base);
    }
}

static void on_wake(evutil_socket_t fd, short what, void *opaque)
{
    (void)fd;
    (void)what;
    struct kva_server *server = opaque;
    handle_requests_of_threads(server);
    kva_workers_collect(server->workers);
    kva_workers_collect(server->makers);
    kva_calls_poll(server);
    if (server->drain_deadline_ns != 0)
        check_drained(server, kva_time_ns());
}

static void on_tick(evutil_socket_t fd, short what, void *opaque)
{
    (void)fd;
    (void)what;
    struct kva_server *server = opaque;
    uint64_t now_ns = kva_time_ns();
    kva_calls_tick(server, now_ns);
    kva_auth_report(server->auth, now_ns);
    check_device(server);
    check_drained(server, now_ns);
}

static enum kva_status check_params(const struct kva_server_params *params, struct kva_err *err)
{
    const struct {
        const char *name;
        uint64_t value, min, max;
    } ranges[] = {
        {"connections_max", params->connections_max, 1, 1000000},
        {"header_bytes_max", params->header_bytes_max, 1024, (size_t)1 << 20},
        {"body_bytes_max", params->body_bytes_max, 1024, (size_t)1 << 30},
        {"bodies_bytes_max", params->bodies_bytes_max, params->body_bytes_max, (size_t)1 << 40},
        {"bodies_account_max", params->bodies_account_max, params->body_bytes_max, (size_t)1 << 40},
        {"waiting_per_address_max", params->waiting_per_address_max, 1, 1000000},
        {"answer_bytes_max", params->answer_bytes_max, 4096, (size_t)1 << 31},
        {"prompts_live_max", params->prompts_live_max, 1, 1u << 24},
        {"stream_unsent_max", params->stream_unsent_max, 1024, (size_t)1 << 28},
        {"workers", params->workers, 1, 256},
        {"worker_jobs_max", params->worker_jobs_max, 1, 1000000},
        {"backlog", params->backlog, 1, 65535},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(ranges); i++) {
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max)
            return kva_fail_param(
                err, KVA_EINVAL, ranges[i].name, "'%s' is %llu, allowed is %llu to %llu.",
                ranges[i].name, (unsigned long long)ranges[i].value,
                (unsigned long long)ranges[i].min, (unsigned long long)ranges[i].max);
    }
    if (!params->host || (params->tls_key_path && !params->tls_cert_path))
        return kva_fail(err, KVA_EINVAL,
                        params->host ? "A TLS key needs a certificate."
                                     : "There is no address to listen on.");
    return KVA_OK;
}

static enum kva_status create_http(struct kva_server *server, struct kva_err *err)
{
    const struct kva_server_params *params = &server->params;
    struct kva_http_params http = {
        .base = server->base,
        .host = params->host,
        .port = params->port,
        .admin_host = params->admin_host,
        .admin_port = params->admin_port,
        .backlog = params->backlog,
        .connections_max = params->connections_max,
        .waiting_per_address_max = params->waiting_per_address_max,
        .header_bytes_max = params->header_bytes_max,
        .body_bytes_max = params->body_bytes_max,
        .bodies_bytes_max = params->bodies_bytes_max,
        .bodies_account_max = params->bodies_account_max,
        .head_timeout_ns = params->head_timeout_ns,
        .idle_timeout_ns = params->idle_timeout_ns,
        .request_timeout_ns = params->receive_timeout_ns,
        .write_timeout_ns = params->write_timeout_ns,
        .unsent_resume_bytes = params->stream_unsent_max / 2,
        .tls_cert_path = params->tls_cert_path,
        .tls_key_path = params->tls_key_path ? params->tls_key_path : params->tls_cert_path,
        .begin = kva_server_begin,
        .handle = kva_server_handle,
        .done = kva_server_done,
        .opaque = server,
    };
    return kva_http_create(&http, &server->http, err);
}

/* The share of the device tier that is free, of a server that takes requests. */
static int weight(void *opaque)
{
    struct kva_server *server = opaque;
    struct kva_scheduler_stats stats;
    if (server->phase != KVA_PHASE_READY)
        return server->phase == KVA_PHASE_DRAINING ? 0 : -1;
    kva_service_get_stats(server->backend.service, &stats);
    const struct kva_engine_usage *use = &stats.engine;
    uint64_t held = use->used.device - use->cached.device;
    if (use->budget.device == 0 || held >= use->budget.device)
        return 1;
    uint64_t percent = (use->budget.device - held) / (use->budget.device / 100 + 1);
    return percent < 1 ? 1 : (int)percent;
}

static bool make_room(void *opaque)
{
    struct kva_server *server = opaque;
    return kva_http_make_room(server->http);
}

static enum kva_status create_agent(struct kva_server *server, struct kva_err *err)
{
    const struct kva_agent_params params = {.base = server->base,
                                            .host = server->params.agent_host,
                                            .port = server->params.agent_port,
                                            .weight = weight,
                                            .make_room = make_room,
                                            .opaque = server};
    return kva_agent_create(&params, &server->agent, err);
}

static enum kva_status create_parts(struct kva_server *server, struct kva_err *err)
{
    const struct kva_server_params *params = &server->params;
    struct kva_auth_params auth = {
        .keys = params->api_keys,
        .key_count = params->api_key_count,
        .key_file = params->api_key_file,
        .defaults = params->key_limits,
    };
    struct kva_workers_params pool = {
        .threads = params->workers,
        .jobs_max = params->worker_jobs_max,
        .stack_bytes = WORKER_STACK_BYTES,
        .wake = kva_server_wake,
        .wake_opaque = server,
    };
    enum kva_status status = kva_auth_create(&auth, &server->auth, err);
    if (status == KVA_OK)
        status = kva_workers_create(&pool, &server->workers, err);
    pool.threads = GRAMMAR_MAKERS;
    pool.stack_bytes = MAKER_STACK_BYTES;
    if (status == KVA_OK)
        status = kva_workers_create(&pool, &server->makers, err);
    if (status == KVA_OK)
        status = create_http(server, err);
    if (status == KVA_OK && params->agent_host)
        status = create_agent(server, err);
    return status;
}

static enum kva_status create_loop(struct kva_server *server, struct kva_err *err)
{
    server->base = event_base_new();
    server->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!server->base || server->wake_fd < 0)
        return kva_fail(err, KVA_EIO, "Cannot create an event loop: %s", strerror(errno));
    server->wake_event =
        event_new(server->base, server->wake_fd, EV_READ | EV_PERSIST | EV_ET, on_wake, server);
    server->tick = event_new(server->base, -1, EV_PERSIST, on_tick, server);
    uint64_t tick_ns = server->params.keep_alive_ns / 8;
    tick_ns = tick_ns && tick_ns < TICK_NS_MAX ? tick_ns : TICK_NS_MAX;
    server->tick_ns = tick_ns > TICK_NS_MIN ? tick_ns : TICK_NS_MIN;
    struct timeval tick = {.tv_sec = 0, .tv_usec = (suseconds_t)(server->tick_ns / 1000)};
    if (!server->wake_event || !server->tick || event_add(server->wake_event, NULL) != 0 ||
        event_add(server->tick, &tick) != 0)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for an event loop.");
    return KVA_OK;
}

enum kva_status kva_server_create(const struct kva_server_params *params, struct kva_server **ret,
                                  struct kva_err *err)
{
    enum kva_status status = check_params(params, err);
    if (status != KVA_OK)
        return status;
    struct kva_server *server = calloc(1, sizeof(*server));
    if (!server)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for the server.");
    server->params = *params;
    server->wake_fd = -1;
    server->clock = params->clock ? params->clock : kva_clock_real();
    server->start_unix_s = kva_time_unix_s();
    kva_metrics_init(&server->metrics);
    /* A peer that closes while it is written to is an error code, not a signal. */
    signal(SIGPIPE, SIG_IGN);
    status = kva_tickets_init(&server->tickets, params->prompts_live_max);
    if (status == KVA_OK)
        status = kva_response_store_create(params->responses_bytes_max, &server->responses, err);
    if (status == KVA_OK)
        status = create_loop(server, err);
    if (status == KVA_OK)
        status = create_parts(server, err);
    if (status != KVA_OK) {
        kva_server_destroy(server);
        return status;
    }
    *ret = server;
    return KVA_OK;
}

uint16_t kva_server_port(const struct kva_server *server)
{
    return kva_http_port(server->http);
}

uint16_t kva_server_agent_port(const struct kva_server *server)
{
    return server->agent ? kva_agent_port(server->agent) : 0;
}

uint16_t kva_server_admin_port(const struct kva_server *server)
{
    return kva_http_admin_port(server->http);
}

/* After this the service is not used any more. */
static void end_calls(struct kva_server *server)
{
    if (server->phase == KVA_PHASE_READY || server->phase == KVA_PHASE_LOADING)
        server->phase = KVA_PHASE_DRAINING; /* what workers still prepare is refused */
    kva_calls_abort_all(server);
}

enum kva_status kva_server_run(struct kva_server *server, struct kva_err *err)
{
    handle_requests_of_threads(server);
    int looped = event_base_dispatch(server->base);
    end_calls(server);
    if (looped < 0)
        return kva_fail(err, KVA_EIO, "The event loop has failed: %s", strerror(errno));
    if (server->end_status == KVA_EDEVICE)
        return kva_fail(err, KVA_EDEVICE, "%s", server->fail_message);
    if (server->end_status == KVA_ETIMEOUT)
        return kva_fail(err, KVA_ETIMEOUT, "Requests had to be ended: draining took too long.");
    if (server->end_status == KVA_ECANCELLED)
        return kva_fail(err, KVA_ECANCELLED, "The server was stopped.");
    return KVA_OK;
}

void kva_server_destroy(struct kva_server *server)
{
    if (!server)
        return;
    /* Jobs first: those on workers still point to their calls. */
    if (server->http)
        kva_http_destroy(server->http);
    kva_agent_destroy(server->agent);
    kva_workers_destroy(server->workers);
    kva_workers_destroy(server->makers);
    while (server->calls)
        kva_call_destroy(server->calls);
    kva_auth_destroy(server->auth);
    kva_response_store_destroy(server->responses);
    kva_tickets_finish(&server->tickets);
    if (server->wake_event)
        event_free(server->wake_event);
    if (server->tick)
        event_free(server->tick);
    if (server->base)
        event_base_free(server->base);
    if (server->wake_fd >= 0)
        close(server->wake_fd);
    free(server);
}
