/* call.c - a call from its body to its submission, and its end. */
#include "server/internal.h"

#include "base/clock.h"

#include <event2/event.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* About what a call takes besides its body. */
#define CALL_BYTES 8192u

static void unlink_dirty(struct kva_call *call)
{
    struct kva_call **at = &call->server->dirty;
    while (*at && *at != call)
        at = &(*at)->next_dirty;
    if (*at)
        *at = call->next_dirty;
    call->is_dirty = false;
}

/* End what the scheduler still runs for this call; its outputs find no ticket any more. */
static void release_requests(struct kva_call *call, bool cancel)
{
    struct kva_server *server = call->server;
    for (uint32_t i = 0; call->request_ids && i < call->api->prompt_count; i++) {
        if (call->request_ids[i] == 0)
            continue;
        kva_tickets_give(&server->tickets, call->request_ids[i]);
        if (cancel)
            kva_service_cancel(server->backend.service, call->request_ids[i], KVA_ALL_CHOICES,
                               KVA_FINISH_CANCELLED);
        call->request_ids[i] = 0;
    }
}

/* Its key is charged with what was used: nothing where no prompt was begun. */
static void leave_key(struct kva_call *call)
{
    if (call->choices_entered == 0)
        return;
    uint64_t used = 0;
    if (call->answer && call->served)
        used = call->api->prompt_tokens + kva_answer_output_tokens(call->answer);
    kva_auth_begun(call->server->auth, call->key_index, call->choices_waiting);
    kva_auth_settle(call->server->auth, call->key_index, call->tokens_entered, used);
}

void kva_call_destroy(struct kva_call *call)
{
    struct kva_server *server = call->server;
    if (call->is_dirty)
        unlink_dirty(call);
    release_requests(call, !call->is_done);
    leave_key(call);
    if (call->prev)
        call->prev->next = call->next;
    else
        server->calls = call->next;
    if (call->next)
        call->next->prev = call->prev;
    server->call_count--;
    kva_answer_destroy(call->answer);
    kva_api_call_destroy(call->api);
    kva_buf_finish(&call->out);
    free(call->request_ids);
    free(call->last_token_ns);
    free(call->begun);
    free(call->body);
    free(call);
}

void kva_call_log_summary(struct kva_call *call)
{
    struct kva_answer_summary sum;
    if (!call->exchange || !call->answer)
        return;
    struct kva_exchange_info *info = kva_exchange_info(call->exchange);
    const char *finish = call->finish ? call->finish : "none";
    double ttft_ms = call->first_token_ns
                         ? (double)(call->first_token_ns - call->received_ns) / KVA_NS_PER_MS
                         : 0;
    kva_answer_get_summary(call->answer, &sum);
    snprintf(info->summary, sizeof(info->summary),
             "prompt=%llu cached=%llu output=%llu finish=%s ttft=%.1fms",
             (unsigned long long)sum.prompt_tokens, (unsigned long long)sum.cached_tokens,
             (unsigned long long)sum.output_tokens, finish, ttft_ms);
    snprintf(info->summary_json, sizeof(info->summary_json),
             "\"prompt_tokens\":%llu,\"cached_tokens\":%llu,\"output_tokens\":%llu,"
             "\"finish\":\"%s\",\"ttft_ms\":%.3f",
             (unsigned long long)sum.prompt_tokens, (unsigned long long)sum.cached_tokens,
             (unsigned long long)sum.output_tokens, finish, ttft_ms);
}

static void count_tokens(struct kva_call *call)
{
    if (!call->answer)
        return;
    uint64_t now = kva_answer_output_tokens(call->answer);
    call->server->metrics.generation_tokens += now - call->counted_tokens;
    call->counted_tokens = now;
}

void kva_call_fail(struct kva_call *call, enum kva_status status, const struct kva_err *err)
{
    struct kva_exchange *exchange = call->exchange;
    struct kva_server *server = call->server;
    count_tokens(call);
    if (call->state == KVA_CALL_RUNNING) {
        struct kva_answer_summary sum;
        kva_answer_get_summary(call->answer, &sum);
        server->metrics.choices_ended[KVA_END_ERROR] +=
            call->api->prompt_count * call->api->best_of - sum.choices_ended;
    }
    call->finish = kva_status_info(status)->name;
    kva_call_log_summary(call);
    call->exchange = NULL;
    if (exchange && call->head_sent) {
        struct kva_buf frame;
        kva_exchange_note_error(exchange, status, err);
        kva_buf_init(&frame, 8192);
        kva_answer_put_error(call->answer, status, err, kva_exchange_info(exchange)->request_id,
                             &frame);
        if (!frame.failed)
            kva_exchange_stream_write(exchange, frame.data, frame.length);
        kva_buf_finish(&frame);
        kva_exchange_stream_end(exchange, true);
        /* A keep-alive was all that it got. */
        if (status == KVA_EQUEUETIME)
            kva_server_count_rejection(server, status);
    } else if (exchange) {
        kva_server_reply_error(server, exchange, status, err);
    }
    kva_call_destroy(call);
}

void kva_call_count_aborted(struct kva_call *call)
{
    struct kva_answer_summary sum;
    if (!call->answer)
        return;
    kva_answer_get_summary(call->answer, &sum);
    uint32_t choices = call->api->prompt_count * call->api->best_of;
    call->server->metrics.choices_ended[KVA_END_ABORT] += choices - sum.choices_ended;
}

/* The client has left: end everything that it asked for, and nothing else. */
static void on_gone(void *opaque)
{
    struct kva_call *call = opaque;
    count_tokens(call);
    call->finish = "abort";
    kva_call_log_summary(call);
    call->exchange = NULL;
    if (call->state == KVA_CALL_PREPARING) {
        /* A worker holds it; it is destroyed when it comes back. */
        atomic_store(&call->abandoned, true);
        call->state = KVA_CALL_OVER;
        if (kva_workers_abandon(call->pool, &call->job))
            kva_call_destroy(call);
        return;
    }
    kva_call_count_aborted(call);
    kva_call_destroy(call);
}

/* The peer reads again: make up for what was held back, in the loop's next turn. */
static void on_writable(void *opaque)
{
    struct kva_call *call = opaque;
    if (!call->paused)
        return;
    kva_call_mark_dirty(call);
    event_active(call->server->wake_event, EV_READ, 0);
}

static const struct kva_api_config *config_of(const struct kva_call *call)
{
    return &call->server->backend.api;
}

/* What cannot be sent is not computed. */
static enum kva_status check_vectors(struct kva_call *call)
{
    size_t max = call->server->params.answer_bytes_max;
    uint64_t bytes = call->route == KVA_API_EMBEDDINGS ? kva_embeddings_bytes(call->api) : 0;
    if (bytes <= max)
        return KVA_OK;
    return kva_fail_param(&call->err, KVA_EINVAL, "input",
                          "%u vectors of %u numbers have %llu bytes or more, larger than the "
                          "server's limit of %zu bytes: ask for fewer inputs or 'dimensions'%s.",
                          call->api->prompt_count, call->api->embedding.dimensions,
                          (unsigned long long)bytes, max,
                          call->api->embedding.base64 ? "" : ", or for base64");
}

/* On a worker; on the event loop for small completions, whose work is linear in the body. Making a
 * grammar may take seconds: what others send should not wait for it. */
static void prepare(struct kva_job *job)
{
    struct kva_call *call =
        (struct kva_call *)(void *)((char *)job - offsetof(struct kva_call, job));
    if (!call->api) {
        call->status = kva_api_parse(config_of(call), call->route, call->body, call->body_bytes,
                                     &call->api, &call->err);
        free(call->body);
        call->body = NULL;
        if (call->status == KVA_OK)
            call->status = check_vectors(call);
        if (call->status != KVA_OK)
            return;
        call->api->abandoned = &call->abandoned;
        if (call->api->previous)
            call->status = kva_call_continue(call);
        if (call->status != KVA_OK)
            return;
        call->wants_maker = kva_api_makes_grammar(config_of(call), call->api);
        if (call->wants_maker)
            return;
    }
    call->status = kva_api_prepare(config_of(call), call->api, &call->identity, &call->err);
}

static enum kva_status create_answer(struct kva_call *call)
{
    struct kva_api_call *api = call->api;
    struct kva_answer_params params = {
        .config = config_of(call),
        .call = api,
        .id_suffix = "",
        .created_unix_s = kva_time_unix_s(),
        .choice_bytes_max = call->server->params.answer_bytes_max,
    };
    unsigned char random[12];
    char suffix[2 * sizeof(random) + 1] = "0";
    if (RAND_bytes(random, sizeof(random)) == 1) {
        for (size_t i = 0; i < sizeof(random); i++)
            snprintf(suffix + 2 * i, 3, "%02x", random[i]);
    }
    params.id_suffix = suffix;
    call->request_ids = calloc(api->prompt_count, sizeof(*call->request_ids));
    call->last_token_ns =
        calloc((size_t)api->prompt_count * api->best_of, sizeof(*call->last_token_ns));
    call->begun = calloc((size_t)api->prompt_count * api->best_of, sizeof(*call->begun));
    if (!call->request_ids || !call->last_token_ns || !call->begun)
        return kva_fail(&call->err, KVA_ENOMEM, "Out of memory for a request.");
    return kva_answer_create(&params, &call->answer, &call->err);
}

static enum kva_status assign_ids(struct kva_call *call)
{
    struct kva_server *server = call->server;
    uint64_t now_ns = kva_clock_now(server->clock);
    struct kva_key_limits limits = kva_auth_limits(server->auth, call->key_index);
    for (uint32_t i = 0; i < call->api->prompt_count; i++) {
        struct kva_request *request = call->api->requests[i];
        uint64_t id = kva_tickets_take(&server->tickets, call, i);
        if (id == 0)
            return kva_fail(&call->err, KVA_EBUSY,
                            "%u prompts are being served, limit is %u; retry later.",
                            server->tickets.used, server->tickets.max);
        call->request_ids[i] = id;
        request->id = id;
        request->submitted_ns = now_ns;
        request->tenant = kva_auth_tenant(server->auth, call->key_index);
        request->tenant_weight = limits.weight;
        request->tenant_running_max = limits.running;
        request->patient = i > 0; /* a batch is served in time when its first prompt is */
        if (server->params.request_timeout_ns > 0)
            request->deadline_ns = call->received_ns + server->params.request_timeout_ns;
    }
    return KVA_OK;
}

/* What the call's key allows it. */
static enum kva_status enter_key(struct kva_call *call)
{
    struct kva_server *server = call->server;
    const struct kva_api_call *api = call->api;
    struct kva_key_limits limits = kva_auth_limits(server->auth, call->key_index);
    if (api->priority < limits.priority_min || api->priority > limits.priority_max)
        return kva_fail_param(&call->err, KVA_EINVAL, "priority",
                              "'priority' is %d, this key may use %d to %d; smaller runs first.",
                              api->priority, limits.priority_min,
                              limits.priority_max == INT32_MAX
                                  ? server->backend.api.limits.priority_max
                                  : limits.priority_max);
    struct kva_auth_work work = {
        .tokens = api->prompt_tokens,
        .choices = api->prompt_count * api->best_of,
        .waiting_max = kva_service_waiting_max(server->backend.service),
    };
    /* A chat that does not say how long its answer may be is charged when it is there. */
    bool asked = api->has_max_tokens || api->route == KVA_API_COMPLETION;
    for (uint32_t i = 0; i < api->prompt_count && asked; i++)
        work.tokens += (uint64_t)api->requests[i]->output_tokens_max * api->best_of;
    enum kva_status status = kva_auth_enter(server->auth, call->key_index, &work, kva_time_ns(),
                                            &call->retry_s, &call->err);
    if (status != KVA_OK)
        return status;
    call->tokens_entered = work.tokens;
    call->choices_entered = call->choices_waiting = work.choices;
    return KVA_OK;
}

static enum kva_status submit(struct kva_call *call)
{
    struct kva_server *server = call->server;
    struct kva_api_call *api = call->api;
    enum kva_status status = kva_server_check_open(server, &call->err);
    if (status == KVA_OK)
        status = enter_key(call);
    if (status == KVA_OK)
        status = create_answer(call);
    if (status == KVA_OK)
        status = assign_ids(call);
    if (status == KVA_OK)
        status = kva_service_submit(server->backend.service, api->requests, api->prompt_count,
                                    &call->err);
    /* What could not fit an empty server will not fit it later either. */
    if (status == KVA_ELIMIT)
        status = call->err.status = KVA_ECONTEXT;
    if (status != KVA_OK) {
        release_requests(call, false);
        return status;
    }
    for (uint32_t i = 0; i < api->prompt_count; i++) {
        kva_histogram_observe(&server->metrics.request_prompt_tokens, api->prompts[i].id_count);
        api->requests[i] = NULL;
    }
    server->metrics.prompt_tokens += api->prompt_tokens;
    if (call->route != KVA_API_EMBEDDINGS)
        kva_histogram_observe(&server->metrics.params_n, api->n);
    if (api->has_max_tokens)
        kva_histogram_observe(&server->metrics.params_max_tokens, api->max_tokens);
    call->state = KVA_CALL_RUNNING;
    return KVA_OK;
}

static void refuse_job(struct kva_call *call, enum kva_status status)
{
    call->is_done = true; /* nothing to cancel */
    kva_call_fail(call, status, &call->err);
}

static enum kva_status give_to(struct kva_workers *pool, struct kva_call *call)
{
    call->pool = pool;
    return kva_workers_submit(pool, &call->job, &call->err);
}

static void log_unknown_fields(struct kva_call *call)
{
    struct kva_exchange_info *info = kva_exchange_info(call->exchange);
    info->unknown_fields = call->api->unknown_fields;
    snprintf(info->unknown_field, sizeof(info->unknown_field), "%s", call->api->unknown_field);
}

/* What a response that is to be stored holds until it is answered. */
static size_t kept_bytes(const struct kva_api_call *api)
{
    size_t bytes = 0;
    const char *const texts[] = {api->conversation, api->input_items, api->echoed};
    for (size_t i = 0; i < KVA_COUNT_OF(texts); i++)
        bytes += texts[i] ? strlen(texts[i]) : 0;
    return bytes;
}

/* Back on the event loop. */
static void prepared(struct kva_job *job)
{
    struct kva_call *call =
        (struct kva_call *)(void *)((char *)job - offsetof(struct kva_call, job));
    if (!call->exchange) {
        kva_call_destroy(call);
        return;
    }
    if (call->wants_maker) {
        call->wants_maker = false;
        enum kva_status given = give_to(call->server->makers, call);
        if (given != KVA_OK)
            refuse_job(call, given);
        return;
    }
    enum kva_status status = call->status;
    if (status == KVA_OK && call->api)
        status = kva_exchange_body_stays(call->exchange, kept_bytes(call->api), &call->err);
    else
        kva_exchange_body_done(call->exchange);
    if (status != call->status)
        call->retry_s = 1;
    if (call->api) {
        struct kva_metrics *metrics = &call->server->metrics;
        metrics->unknown_fields += call->api->unknown_fields;
        log_unknown_fields(call);
        if (call->api->template_steps > 0)
            kva_histogram_observe(&metrics->template_render,
                                  (double)call->api->template_ns / KVA_NS_PER_S);
        metrics->template_steps += call->api->template_steps;
        metrics->template_failures += call->api->template_failed;
    }
    if (status == KVA_OK)
        status = submit(call);
    if (status != KVA_OK) {
        call->is_done = true; /* nothing to cancel */
        if (call->retry_s > 0) {
            char seconds[16];
            snprintf(seconds, sizeof(seconds), "%u", call->retry_s);
            kva_exchange_add_header(call->exchange, "Retry-After", seconds);
        }
        kva_call_fail(call, status, &call->err);
        return;
    }
    uint64_t truncated = kva_answer_truncated(call->answer);
    if (truncated > 0) {
        char text[24];
        snprintf(text, sizeof(text), "%llu", (unsigned long long)truncated);
        kva_exchange_add_header(call->exchange, "X-Kvahead-Truncated-Tokens", text);
    }
}

/* Takes the exchange's body. NULL: err says why. */
static struct kva_call *create(struct kva_server *server, struct kva_exchange *exchange,
                               enum kva_api_route route, struct kva_err *err)
{
    struct kva_call *call = calloc(1, sizeof(*call));
    if (!call) {
        kva_fail(err, KVA_ENOMEM, "Out of memory for a request.");
        return NULL;
    }
    if (kva_server_take_body(exchange, &call->body, &call->body_bytes, err) != KVA_OK) {
        free(call);
        return NULL;
    }
    call->server = server;
    call->exchange = exchange;
    call->route = route;
    kva_buf_init(&call->out, server->params.answer_bytes_max);
    call->received_ns = kva_clock_now(server->clock);
    call->written_ns = kva_time_ns();
    call->job = (struct kva_job){.run = prepare, .done = prepared};
    call->key_index = kva_exchange_info(exchange)->key_index;
    call->job.owner = kva_auth_tenant(server->auth, call->key_index);
    call->job.bytes = call->body_bytes;
    server->untrimmed_bytes += call->body_bytes + CALL_BYTES;
    if (!server->params.cache_shared_between_keys)
        kva_auth_scope(server->auth, call->key_index, call->identity.cache_scope);
    if (RAND_bytes((unsigned char *)&call->identity.seed, sizeof(call->identity.seed)) != 1)
        call->identity.seed = kva_time_ns();
    call->next = server->calls;
    if (call->next)
        call->next->prev = call;
    server->calls = call;
    server->call_count++;
    server->call_peak = kva_max_u32(server->call_peak, server->call_count);
    return call;
}

void kva_call_begin(struct kva_server *server, struct kva_exchange *exchange,
                    enum kva_api_route route)
{
    struct kva_err err = {.status = KVA_OK};
    struct kva_call *call = NULL;
    enum kva_status status = kva_server_check_open(server, &err);
    if (status == KVA_OK && !(call = create(server, exchange, route, &err)))
        status = err.status;
    if (status != KVA_OK) {
        kva_server_reply_error(server, exchange, status, &err);
        return;
    }
    struct kva_exchange_owner owner = {on_gone, on_writable, call};
    kva_exchange_keep(exchange, &owner);
    bool plain = call->route == KVA_API_COMPLETION || call->route == KVA_API_EMBEDDINGS;
    if (plain && call->body_bytes <= server->params.inline_bytes_max) {
        prepare(&call->job);
        prepared(&call->job);
        return;
    }
    status = give_to(server->workers, call);
    if (status != KVA_OK)
        refuse_job(call, status);
}

void kva_call_completion(struct kva_server *server, struct kva_exchange *exchange)
{
    kva_call_begin(server, exchange, KVA_API_COMPLETION);
}

void kva_call_chat(struct kva_server *server, struct kva_exchange *exchange)
{
    kva_call_begin(server, exchange, KVA_API_CHAT);
}

void kva_call_responses(struct kva_server *server, struct kva_exchange *exchange)
{
    kva_call_begin(server, exchange, KVA_API_RESPONSES);
}

void kva_call_messages(struct kva_server *server, struct kva_exchange *exchange)
{
    kva_call_begin(server, exchange, KVA_API_MESSAGES);
}

void kva_call_embeddings(struct kva_server *server, struct kva_exchange *exchange)
{
    kva_call_begin(server, exchange, KVA_API_EMBEDDINGS);
}
