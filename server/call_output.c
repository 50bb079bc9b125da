/* call_output.c - outputs of the engine on their way to sockets. */
#include "server/internal.h"

#include "base/clock.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* A buffer that grew beyond this is given back once it is written: most streams are idle. */
#define OUT_KEEP_BYTES 1024u

/* The heap is trimmed when requests had this many bytes and most of them are freed. */
#define TRIM_BYTES    ((uint64_t)4 << 20)
#define TRIM_PAUSE_NS (2 * KVA_NS_PER_S)

static double seconds(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) / (double)KVA_NS_PER_S : 0;
}

void kva_call_mark_dirty(struct kva_call *call)
{
    if (call->is_dirty)
        return;
    call->is_dirty = true;
    call->next_dirty = call->server->dirty;
    call->server->dirty = call;
}

static void note_token(struct kva_call *call, uint32_t prompt_index,
                       const struct kva_output *output)
{
    struct kva_metrics *metrics = &call->server->metrics;
    uint64_t *last =
        &call->last_token_ns[(size_t)prompt_index * call->api->best_of + output->choice];
    if (call->first_token_ns == 0) {
        call->first_token_ns = output->time_ns;
        kva_histogram_observe(&metrics->time_to_first_token,
                              seconds(call->received_ns, output->time_ns));
    }
    if (*last)
        kva_histogram_observe(&metrics->inter_token, seconds(*last, output->time_ns));
    *last = output->time_ns;
}

static void note_end(struct kva_call *call, uint32_t prompt_index, const struct kva_output *output)
{
    static const enum kva_end_reason reasons[KVA_FINISH_COUNT] = {
        [KVA_FINISH_STOP] = KVA_END_STOP,       [KVA_FINISH_LENGTH] = KVA_END_LENGTH,
        [KVA_FINISH_CANCELLED] = KVA_END_ABORT, [KVA_FINISH_DEADLINE] = KVA_END_ERROR,
        [KVA_FINISH_ERROR] = KVA_END_ERROR,
    };
    static const char *const names[KVA_END_REASON_COUNT] = {"stop", "length", "abort", "error"};
    struct kva_metrics *metrics = &call->server->metrics;
    const struct kva_choice_times *times = &output->end.times;
    enum kva_end_reason reason = reasons[output->end.reason];
    const char *told = kva_answer_choice_finish(call->answer, prompt_index, output->choice);
    if (told && (reason == KVA_END_STOP || reason == KVA_END_LENGTH))
        reason = strcmp(told, "length") == 0 ? KVA_END_LENGTH : KVA_END_STOP;
    uint32_t tokens = kva_answer_choice_tokens(call->answer, prompt_index, output->choice);
    metrics->choices_ended[reason]++;
    call->finish = names[reason];
    if (call->route != KVA_API_EMBEDDINGS)
        kva_histogram_observe(&metrics->request_generation_tokens, tokens);
    if (times->admitted_ns)
        kva_histogram_observe(&metrics->queue, seconds(times->submitted_ns, times->admitted_ns));
    if (!times->first_token_ns)
        return;
    kva_histogram_observe(&metrics->prefill, seconds(times->admitted_ns, times->first_token_ns));
    double decode_s = seconds(times->first_token_ns, times->last_token_ns);
    kva_histogram_observe(&metrics->decode, decode_s);
    kva_histogram_observe(&metrics->inference, seconds(times->admitted_ns, times->last_token_ns));
    if (output->end.output_tokens > 1)
        kva_histogram_observe(&metrics->time_per_output_token,
                              decode_s / (output->end.output_tokens - 1));
}

/* The first that is heard of a choice: it waits no more. */
static void note_begun(struct kva_call *call, uint32_t prompt_index, uint32_t choice)
{
    bool *begun = &call->begun[(size_t)prompt_index * call->api->best_of + choice];
    if (*begun)
        return;
    *begun = true;
    call->choices_waiting--;
    kva_auth_begun(call->server->auth, call->key_index, 1);
}

static void on_output(void *opaque, const struct kva_output *output)
{
    struct kva_server *server = opaque;
    struct kva_ticket *ticket = kva_tickets_find(&server->tickets, output->request_id);
    if (!ticket)
        return;
    struct kva_call *call = ticket->call;
    uint32_t prompt_index = ticket->prompt_index;
    note_begun(call, prompt_index, output->choice);
    call->served |= output->kind != KVA_OUTPUT_END || output->end.times.admitted_ns != 0;
    if (output->kind == KVA_OUTPUT_PROGRESS) {
        call->prefill_done = output->progress.done_tokens;
        call->prefill_total = output->progress.total_tokens;
        return;
    }
    if (output->kind == KVA_OUTPUT_TOKEN)
        note_token(call, prompt_index, output);
    server->metrics.embeddings += output->kind == KVA_OUTPUT_POOLED;
    enum kva_answer_event event = kva_answer_push(call->answer, prompt_index, output, &call->out);
    if (output->kind == KVA_OUTPUT_END)
        note_end(call, prompt_index, output);
    if (event == KVA_ANSWER_STOP_CHOICE) {
        kva_service_cancel(server->backend.service, output->request_id, output->choice,
                           KVA_FINISH_STOP);
    } else if (event == KVA_ANSWER_DONE) {
        call->is_done = true;
    } else if (event == KVA_ANSWER_FAILED && !call->failed) {
        call->failed = true;
        call->status = kva_answer_error(call->answer, &call->err);
    }
    kva_call_mark_dirty(call);
}

static void begin_stream(struct kva_call *call)
{
    if (call->head_sent)
        return;
    call->head_sent = true;
    kva_exchange_stream_begin(call->exchange, 200, "text/event-stream; charset=utf-8");
}

static void write_out(struct kva_call *call)
{
    if (call->out.length == 0)
        return;
    begin_stream(call);
    kva_exchange_stream_write(call->exchange, call->out.data, call->out.length);
    call->written_ns = kva_time_ns();
    if (call->out.capacity > OUT_KEEP_BYTES)
        kva_buf_finish(&call->out);
    else
        kva_buf_clear(&call->out);
}

/* The last frames or the document; the call is over. */
static void complete(struct kva_call *call)
{
    struct kva_exchange *exchange = call->exchange;
    struct kva_metrics *metrics = &call->server->metrics;
    kva_histogram_observe(&metrics->end_to_end,
                          seconds(call->received_ns, kva_clock_now(call->server->clock)));
    kva_answer_finish(call->answer, &call->out);
    kva_call_store(call);
    if (call->out.failed) {
        struct kva_err err;
        enum kva_status status =
            kva_fail_too_large(&err, call->server->params.answer_bytes_max, call->out.no_memory);
        kva_call_fail(call, status, &err);
        return;
    }
    kva_call_log_summary(call);
    if (call->api->stream) {
        write_out(call);
        call->exchange = NULL;
        kva_exchange_stream_end(exchange, false);
    } else {
        call->exchange = NULL;
        kva_exchange_reply(exchange, 200, "application/json", call->out.data, call->out.length);
    }
    kva_call_destroy(call);
}

/* The peer leaves too much unread: buffer its text instead of making frames. */
static void pause(struct kva_call *call)
{
    if (call->paused || !call->api->stream ||
        kva_exchange_unsent(call->exchange) <= call->server->params.stream_unsent_max)
        return;
    call->paused = true;
    call->server->metrics.streams_paused++;
    kva_answer_pause(call->answer);
}

static void resume(struct kva_call *call)
{
    if (!call->paused ||
        kva_exchange_unsent(call->exchange) > call->server->params.stream_unsent_max / 2)
        return;
    call->paused = false;
    kva_answer_resume(call->answer, &call->out);
}

/* End the call and close its connection without an answer. */
static void abort_call(struct kva_call *call, const char *why)
{
    struct kva_exchange *exchange = call->exchange;
    call->finish = why;
    kva_call_log_summary(call);
    kva_call_count_aborted(call);
    call->exchange = NULL;
    kva_call_destroy(call);
    if (exchange)
        kva_exchange_abort(exchange);
}

void kva_call_flush(struct kva_call *call)
{
    struct kva_server *server = call->server;
    uint64_t tokens = kva_answer_output_tokens(call->answer);
    server->metrics.generation_tokens += tokens - call->counted_tokens;
    call->counted_tokens = tokens;
    resume(call);
    if (call->api->stream && call->out.failed && !call->failed) {
        call->failed = true;
        call->status =
            kva_fail_too_large(&call->err, server->params.answer_bytes_max, call->out.no_memory);
    }
    /* A buffer that failed ends within a frame. */
    if (call->api->stream && !call->paused && !call->out.failed)
        write_out(call);
    if (call->failed) {
        kva_call_fail(call, call->status, &call->err);
        return;
    }
    if (call->paused) {
        if (kva_answer_buffered(call->answer) > server->params.stream_buffered_max) {
            server->metrics.slow_readers_aborted++;
            abort_call(call, "slow_reader");
        }
        return;
    }
    if (call->is_done)
        complete(call);
    else
        pause(call);
}

void kva_calls_poll(struct kva_server *server)
{
    if (server->has_backend)
        kva_service_poll(server->backend.service, on_output, server);
    while (server->dirty) {
        struct kva_call *call = server->dirty;
        server->dirty = call->next_dirty;
        call->is_dirty = false;
        kva_call_flush(call);
    }
}

/* A comment that says how far the request is: proxies cut what is silent for a minute. */
static void keep_alive(struct kva_call *call)
{
    struct kva_buf *out = &call->out;
    if (call->first_token_ns)
        kva_buf_puts(out, ": keep-alive\n\n");
    else if (call->prefill_total)
        kva_buf_printf(out, ": keep-alive prefill %u/%u\n\n", call->prefill_done,
                       call->prefill_total);
    else
        kva_buf_puts(out, ": keep-alive queued\n\n");
    call->server->metrics.keep_alives++;
    write_out(call);
}

/* Free memory below something that lives stays the process's until the heap is trimmed. */
static void trim(struct kva_server *server, uint64_t now_ns)
{
    if (server->untrimmed_bytes < TRIM_BYTES || server->call_count > server->call_peak / 8 ||
        now_ns - server->trimmed_ns < TRIM_PAUSE_NS)
        return;
    malloc_trim(0);
    server->untrimmed_bytes = 0;
    server->call_peak = server->call_count;
    server->trimmed_ns = now_ns;
}

void kva_calls_tick(struct kva_server *server, uint64_t now_ns)
{
    trim(server, now_ns);
    uint64_t interval_ns = server->params.keep_alive_ns;
    if (interval_ns == 0)
        return;
    for (struct kva_call *call = server->calls, *next; call; call = next) {
        next = call->next;
        /* Half a tick early rather than half a tick late. */
        if (call->state == KVA_CALL_RUNNING && call->api->stream && !call->paused &&
            now_ns - call->written_ns + server->tick_ns / 2 >= interval_ns)
            keep_alive(call);
    }
}

void kva_calls_abort_all(struct kva_server *server)
{
    for (struct kva_call *call = server->calls, *next; call; call = next) {
        next = call->next;
        atomic_store(&call->abandoned, true); /* what a worker still prepares */
        if (call->state == KVA_CALL_RUNNING)
            abort_call(call, "stopped");
    }
}

void kva_calls_end_all(struct kva_server *server, enum kva_status status, const char *message)
{
    struct kva_err err;
    kva_fail(&err, status, "%s", message);
    for (struct kva_call *call = server->calls, *next; call; call = next) {
        next = call->next;
        if (call->state == KVA_CALL_RUNNING)
            kva_call_fail(call, status, &err);
    }
}
