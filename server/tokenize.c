/* tokenize.c - POST /tokenize and /detokenize, with vLLM's bodies, and Anthropic's count_tokens. */
#include "server/internal.h"

#include <stdlib.h>
#include <string.h>

struct token_job {
    struct kva_job job;
    struct kva_server *server;
    struct kva_exchange *exchange; /* NULL: the client has left */
    enum kva_api_route route;
    atomic_bool abandoned;
    char *body;
    size_t body_bytes;
    struct kva_buf out;
    enum kva_status status;
    struct kva_err err;
};

static void put_strings(struct kva_buf *out, const struct kva_api_config *config,
                        const struct kva_api_prompt *prompt)
{
    kva_buf_puts(out, ",\"token_strs\":[");
    for (uint32_t i = 0; i < prompt->id_count; i++) {
        size_t length = 0;
        const char *text =
            kva_tokenizer_token_string(config->tokenizer, (int32_t)prompt->ids[i], &length);
        kva_buf_puts(out, i ? "," : "");
        kva_buf_json_string(out, text ? text : "", text ? length : 0);
    }
    kva_buf_putc(out, ']');
}

static void put_tokens(struct kva_buf *out, const struct kva_api_config *config,
                       const struct kva_api_call *call)
{
    const struct kva_api_prompt *prompt = &call->prompts[0];
    kva_buf_printf(out, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", prompt->id_count,
                   config->context_max);
    for (uint32_t i = 0; i < prompt->id_count; i++)
        kva_buf_printf(out, "%s%u", i ? "," : "", prompt->ids[i]);
    kva_buf_putc(out, ']');
    if (call->return_token_strings)
        put_strings(out, config, prompt);
    else
        kva_buf_puts(out, ",\"token_strs\":null");
    kva_buf_putc(out, '}');
}

static enum kva_status put_text(struct kva_buf *out, const struct kva_api_config *config,
                                const struct kva_api_call *call, struct kva_err *err)
{
    struct kva_buf text;
    kva_buf_init(&text, out->max_bytes);
    enum kva_status status = kva_api_detokenize(config, call, &text, err);
    kva_buf_puts(out, "{\"prompt\":");
    kva_buf_json_string(out, text.data, text.length);
    kva_buf_putc(out, '}');
    kva_buf_finish(&text);
    return status;
}

static void run(struct kva_job *base)
{
    struct token_job *job = (struct token_job *)(void *)base;
    const struct kva_api_config *config = &job->server->backend.api;
    struct kva_api_call *call = NULL;
    job->status = kva_api_parse(config, job->route, job->body, job->body_bytes, &call, &job->err);
    if (job->status == KVA_OK && job->route == KVA_API_DETOKENIZE) {
        job->status = put_text(&job->out, config, call, &job->err);
    } else if (job->status == KVA_OK) {
        call->abandoned = &job->abandoned;
        job->status = kva_api_tokenize(config, call, &job->err);
        if (job->status == KVA_OK && job->route == KVA_API_COUNT_TOKENS)
            kva_buf_printf(&job->out, "{\"input_tokens\":%u}", call->prompts[0].id_count);
        else if (job->status == KVA_OK)
            put_tokens(&job->out, config, call);
    }
    if (job->status == KVA_OK && job->out.failed)
        job->status = kva_fail_too_large(&job->err, job->out.max_bytes, job->out.no_memory);
    kva_api_call_destroy(call);
}

static void destroy(struct token_job *job)
{
    if (!job)
        return;
    kva_buf_finish(&job->out);
    free(job->body);
    free(job);
}

static void done(struct kva_job *base)
{
    struct token_job *job = (struct token_job *)(void *)base;
    struct kva_exchange *exchange = job->exchange;
    if (exchange && job->status != KVA_OK)
        kva_server_reply_error(job->server, exchange, job->status, &job->err);
    else if (exchange)
        kva_exchange_reply(exchange, 200, "application/json", job->out.data, job->out.length);
    destroy(job);
}

static void on_gone(void *opaque)
{
    struct token_job *job = opaque;
    job->exchange = NULL;
    atomic_store(&job->abandoned, true);
    if (kva_workers_abandon(job->server->workers, &job->job))
        done(&job->job);
}

/* Takes the exchange's body. NULL: err says why. */
static struct token_job *create(struct kva_server *server, struct kva_exchange *exchange,
                                enum kva_api_route route, struct kva_err *err)
{
    struct token_job *job = calloc(1, sizeof(*job));
    if (!job) {
        kva_fail(err, KVA_ENOMEM, "Out of memory for a request.");
        return NULL;
    }
    if (kva_server_take_body(exchange, &job->body, &job->body_bytes, err) != KVA_OK) {
        free(job);
        return NULL;
    }
    job->server = server;
    job->exchange = exchange;
    job->route = route;
    job->job = (struct kva_job){
        .run = run,
        .done = done,
        .owner = kva_auth_tenant(server->auth, kva_exchange_info(exchange)->key_index),
        .bytes = job->body_bytes};
    server->untrimmed_bytes += job->body_bytes;
    kva_buf_init(&job->out, server->params.answer_bytes_max);
    return job;
}

static void begin(struct kva_server *server, struct kva_exchange *exchange,
                  enum kva_api_route route)
{
    struct kva_err err = {.status = KVA_OK};
    struct token_job *job = NULL;
    enum kva_status status = kva_server_check_open(server, &err);
    if (status == KVA_OK && !(job = create(server, exchange, route, &err)))
        status = err.status;
    if (status != KVA_OK) {
        kva_server_reply_error(server, exchange, status, &err);
        return;
    }
    /* A body to tokenise may be a chat, whose template runs on workers only. */
    if (route == KVA_API_DETOKENIZE && job->body_bytes <= server->params.inline_bytes_max) {
        run(&job->job);
        done(&job->job);
        return;
    }
    struct kva_exchange_owner owner = {on_gone, NULL, job};
    kva_exchange_keep(exchange, &owner);
    /* From here on the job is a worker's. */
    status = kva_workers_submit(server->workers, &job->job, &err);
    if (status == KVA_OK)
        return;
    job->status = status;
    job->err = err;
    done(&job->job);
}

void kva_view_tokenize(struct kva_server *server, struct kva_exchange *exchange)
{
    begin(server, exchange, KVA_API_TOKENIZE);
}

void kva_view_detokenize(struct kva_server *server, struct kva_exchange *exchange)
{
    begin(server, exchange, KVA_API_DETOKENIZE);
}

void kva_view_count_tokens(struct kva_server *server, struct kva_exchange *exchange)
{
    begin(server, exchange, KVA_API_COUNT_TOKENS);
}
