/* serve.c - the server process: listen at once, load on another thread, serve, drain on SIGTERM.
 *
 * Threads: main runs the event loop; the loader opens the model and starts the service; the signal
 * thread waits for SIGTERM and SIGINT (drain, then stop; while loading: stop loading, then die of
 * it) and SIGHUP (certificate and keys read again). Signals are blocked everywhere else, so that no
 * handler ever interrupts anything. */
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/cluster.h"
#include "cli/front.h"
#include "cli/instance.h"
#include "cli/machine.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* max_tokens of /v1/completions where a request says nothing, as OpenAI has it. */
#define COMPLETION_TOKENS_DEFAULT 16u

/* At the end, for whoever reads the log. */
#define LOG_WAIT_MS 1000u

struct serve {
    const struct kva_config *config;
    struct kva_server *server;
    struct kva_cli_front front;
    struct kva_cli_instance instance;
    struct kva_service *service;
    uint64_t started_ns;
    atomic_bool loading;
    atomic_bool stop_loading;
    atomic_bool over;              /* nothing is served any more */
    struct kva_grammars *grammars; /* NULL: no_grammars says why */
    struct kva_err no_grammars;
    enum kva_status load_status;
    struct kva_err load_err;
};

/* --- what is served -------------------------------------------------------------------------- */

static float given_or(double value, float otherwise)
{
    return isnan(value) ? otherwise : (float)value;
}

static enum kva_status unknown_policy(const char *name, struct kva_err *err)
{
    struct kva_buf known;
    kva_buf_init(&known, 1024);
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++)
        kva_buf_printf(&known, "%s%s", id ? ", " : "",
                       kva_kv_policy_name((enum kva_kv_policy_id)id));
    enum kva_status status =
        kva_fail_param(err, KVA_EINVAL, "kv-allow",
                       "--kv-allow is '%.100s', expected one of %s (again for each of several)",
                       name, known.data ? known.data : "the KV policies");
    kva_buf_finish(&known);
    return status;
}

static enum kva_status allowed_policies(const struct kva_config *config,
                                        enum kva_kv_policy_id policy, uint32_t *ret_mask,
                                        struct kva_err *err)
{
    uint32_t mask = 1u << policy;
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT && config->kv_allow.count == 0; id++) {
        if (!kva_kv_policy_drops((enum kva_kv_policy_id)id))
            mask |= 1u << id;
    }
    for (uint32_t i = 0; i < config->kv_allow.count; i++) {
        enum kva_kv_policy_id id = kva_kv_policy_find(config->kv_allow.items[i]);
        if (id == KVA_KV_POLICY_COUNT)
            return unknown_policy(config->kv_allow.items[i], err);
        mask |= 1u << id;
    }
    *ret_mask = mask;
    return KVA_OK;
}

/* Bytes of the longest token. */
static uint32_t longest_token(const struct kva_tokenizer *tokenizer)
{
    size_t longest = 0;
    for (uint32_t id = 0; id < kva_tokenizer_vocab_size(tokenizer); id++) {
        size_t length = 0;
        if (kva_tokenizer_token_string(tokenizer, (int32_t)id, &length) && length > longest)
            longest = length;
    }
    return (uint32_t)longest;
}

static void describe_replies(const struct kva_config *config, struct kva_api_config *api)
{
    enum kva_reply_style style = KVA_REPLY_NONE;
    bool thinks = config->reasoning_parser == 2;
    if (config->tool_parser > 0)
        style = (enum kva_reply_style)(config->tool_parser - 1);
    kva_api_read_templates(api, config->tool_parser > 0 ? &style : NULL,
                           config->reasoning_parser > 0 ? &thinks : NULL);
    const struct kva_api_template *with_tools = kva_api_template_of(api, true);
    if (api->chat.compiled)
        kva_log(KVA_LOG_INFO, "replies       calls as %s%s%s",
                kva_reply_style_name(with_tools->reply.style),
                with_tools->reply.thinks ? ", reasoning in <think>" : "",
                with_tools->takes_tools ? "" : "; the template takes no tools, they are told");
}

/* What the operator says wins over the model's files. */
static void describe_vectors(const struct kva_config *config,
                             const struct kva_embedding_defaults *model, struct kva_api_config *api)
{
    static const enum kva_pooling options[] = {KVA_POOLING_NONE, KVA_POOLING_MEAN,
                                               KVA_POOLING_LAST};
    api->normalise = !model->raw;
    api->pooling_why = model->lacks;
    api->pooling = options[config->pooling];
    if (api->pooling == KVA_POOLING_NONE && model->pooling != KVA_MODEL_POOLING_OTHER)
        api->pooling =
            model->pooling == KVA_MODEL_POOLING_LAST ? KVA_POOLING_LAST : KVA_POOLING_MEAN;
    if (api->pooling == KVA_POOLING_NONE)
        kva_log(KVA_LOG_WARN,
                "the model's vectors are made with %s, which is not implemented: /v1/embeddings is "
                "refused unless 'pooling' is said (--pooling)",
                api->pooling_why);
}

static enum kva_status set_limits(const struct kva_config *config, struct kva_api_limits *limits,
                                  struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    kva_api_limits_default(limits);
    for (uint32_t i = 0; i < config->request_limits.count && !status; i++)
        status = kva_api_limits_set(limits, config->request_limits.items[i], err);
    return status;
}

static enum kva_status describe_api(const struct serve *serve, struct kva_api_config *api,
                                    struct kva_err *err)
{
    const struct kva_cli_instance *instance = &serve->instance;
    const struct kva_generation_defaults *generation = &instance->model->generation;
    *api = (struct kva_api_config){
        .model_ids = {instance->name},
        .model_id_count = 1,
        .tokenizer = instance->tokenizer,
        .chat.compiled = instance->chat_template,
        .tool_use.compiled = instance->tool_template,
        .headless = instance->model->headless,
        .context_max = instance->engine->limits.context_max,
        .vocab_size = instance->model->config.vocab_size,
        .eos_ids = instance->model->config.eos_ids,
        .eos_count = instance->model->config.eos_count,
        .temperature = given_or(generation->temperature, 1),
        .top_p = given_or(generation->top_p, 1),
        .min_p = given_or(generation->min_p, 0),
        .repetition_penalty = given_or(generation->repetition_penalty, 1),
        .top_k = generation->top_k > 0 ? (uint32_t)generation->top_k : 0,
        .completion_tokens_default = COMPLETION_TOKENS_DEFAULT,
        .kv_default = instance->kv.policy,
    };
    enum kva_status status = set_limits(serve->config, &api->limits, err);
    if (status)
        return status;
    describe_replies(serve->config, api);
    api->embedding_size = instance->model->config.hidden_size;
    describe_vectors(serve->config, &instance->model->embedding, api);
    api->token_bytes_max = longest_token(instance->tokenizer);
    api->kv_topk_max = (uint32_t)serve->config->kv_topk_max;
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++)
        api->kv_specs[id] = instance->kv.specs[id];
    status = kva_cli_check_default(instance, err);
    return status ? status
                  : allowed_policies(serve->config, api->kv_default, &api->kv_allowed_mask, err);
}

/* Masks of grammars: one thread makes many in the time of a step. */
#define CORES_PER_MASK_THREAD 16
/* What one mask may take at most; normal ones take tens of microseconds. */
#define MASK_TIME_NS (1 * KVA_NS_PER_S)
#define MASK_BYTES   ((size_t)256 << 20)
#define GRAMMARS_MAX 4096u

/* A model without structured output is served without it. */
static void create_grammars(struct serve *serve, struct kva_api_config *api)
{
    const struct kva_config *config = serve->config;
    const int32_t ids[] = {api->chat.reply_marker, api->tool_use.reply_marker};
    uint32_t markers[KVA_COUNT_OF(ids)], marker_count = 0;
    for (size_t i = 0; i < KVA_COUNT_OF(ids); i++) {
        if (ids[i] >= 0 && (i == 0 || ids[i] != ids[0]))
            markers[marker_count++] = (uint32_t)ids[i];
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const struct kva_grammars_params params = {
        .vocab = {api->tokenizer, api->vocab_size, api->eos_ids, api->eos_count, markers,
                  marker_count},
        .limits = {config->grammar_time_ms * KVA_NS_PER_MS, config->grammar_bytes,
                   config->grammar_text_bytes},
        .work = {MASK_TIME_NS, MASK_BYTES},
        .kept_bytes = config->grammar_cache_bytes,
        .kept_max = GRAMMARS_MAX,
        .mask_threads = 1 + (cores > 0 ? (uint32_t)cores / CORES_PER_MASK_THREAD : 0),
    };
    if (kva_grammars_create(&params, &serve->grammars, &serve->no_grammars) != KVA_OK)
        kva_log(KVA_LOG_WARN, "no structured output: %s", serve->no_grammars.message);
    api->grammars = serve->grammars;
    api->grammars_why = serve->no_grammars.message;
}

static enum kva_status start_service(struct serve *serve, struct kva_err *err)
{
    const struct kva_config *config = serve->config;
    const struct kva_service_params params = {
        .scheduler =
            {
                .engine = serve->instance.engine,
                .clock = kva_clock_real(),
                .running_max = (uint32_t)config->sequences,
                .waiting_max = (uint32_t)config->waiting,
                .step_tokens_max = serve->instance.engine->limits.step_tokens_max,
                .prefill_share_pct = (uint32_t)config->prefill_share,
                .waiting_time_ns = config->waiting_time_ms * KVA_NS_PER_MS,
                .step_time_ns = config->step_time_ms * KVA_NS_PER_MS,
                .aging_ns = config->aging_ms * KVA_NS_PER_MS,
                .lending_time_ns = config->cluster_wait_ms * KVA_NS_PER_MS,
            },
        .wake = kva_server_wake,
        .wake_opaque = serve->server,
        .beside = kva_cli_cluster_beside(serve->instance.cluster),
    };
    enum kva_status status = kva_service_start(&params, &serve->service, err);
    if (!status)
        kva_cli_cluster_set_service(serve->instance.cluster, serve->service);
    return status;
}

/* --- loading --------------------------------------------------------------------------------- */

static void log_plan(const struct kva_cli_instance *instance)
{
    struct kva_buf plan;
    kva_buf_init(&plan, 1 << 16);
    kva_model_engine_describe(instance->engine, instance->kv.specs, &plan);
    char *line = plan.data;
    while (line && *line) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        kva_log(KVA_LOG_INFO, "%s", line);
        line = end ? end + 1 : NULL;
    }
    kva_buf_finish(&plan);
}

/* They are taken as they fill: what they lack is missing only then, in the middle of requests. */
static void warn_of_tiers(const struct kva_cli_instance *instance)
{
    const struct kva_tier_bytes *budget = &instance->engine->limits.budget;
    const bool gpu = instance->on_gpu;
    struct kva_err err;
    if (kva_machine_check_tiers(kva_memory_available(), budget->host + (gpu ? 0 : budget->device),
                                gpu, &err))
        kva_log(KVA_LOG_WARN, "%s; lower --device-memory or --host-memory", err.message);
}

static enum kva_status load(struct serve *serve, struct kva_err *err)
{
    const struct kva_config *config = serve->config;
    enum kva_status status = kva_cli_instance_open(&serve->instance, config, KVA_CLI_TEXTS_CHATS,
                                                   &serve->stop_loading, err);
    if (status)
        return status;
    const char *why = serve->instance.device_why;
    kva_log(KVA_LOG_INFO, "device        %s%s%s", kva_device_get_info(serve->instance.device)->name,
            why[0] ? "; " : "", why);
    log_plan(&serve->instance);
    if (!config->prefault)
        warn_of_tiers(&serve->instance);
    if (!serve->instance.chat_template)
        kva_log(KVA_LOG_WARN, "the model has no chat template: chat requests will be refused");
    struct kva_server_backend backend = {0};
    status = describe_api(serve, &backend.api, err);
    if (!status)
        create_grammars(serve, &backend.api);
    if (!status)
        status = kva_cli_cluster_join(serve->instance.cluster, &serve->instance, config, err);
    if (!status)
        status = start_service(serve, err);
    if (status)
        return status;
    backend.service = serve->service;
    if (serve->instance.cluster)
        backend.cluster =
            (struct kva_server_cluster){serve->instance.cluster, kva_cli_cluster_view};
    status = kva_server_attach(serve->server, &backend, err);
    if (status)
        return status;
    const char *scheme = config->tls_cert ? "https" : "http";
    bool v6 = strchr(config->host, ':') != NULL;
    kva_log(KVA_LOG_INFO, "serving %s at %s://%s%s%s:%u after %.2f s", serve->instance.name, scheme,
            v6 ? "[" : "", config->host, v6 ? "]" : "", kva_server_port(serve->server),
            (double)(kva_time_ns() - serve->started_ns) / 1e9);
    if (serve->front.admin_host)
        kva_log(KVA_LOG_INFO, "probes and metrics at http://%s port %u", serve->front.admin_host,
                kva_server_admin_port(serve->server));
    if (serve->front.agent_host)
        kva_log(KVA_LOG_INFO, "agent-check   at %s port %u", serve->front.agent_host,
                kva_server_agent_port(serve->server));
    return KVA_OK;
}

static void *load_thread(void *opaque)
{
    struct serve *serve = opaque;
    serve->load_status = load(serve, &serve->load_err);
    atomic_store(&serve->loading, false);
    if (serve->load_status == KVA_ECANCELLED) {
        /* A signal has ended the server already. */
        kva_log(KVA_LOG_INFO, "loading was stopped");
        serve->load_status = KVA_OK;
    } else if (serve->load_status) {
        kva_server_fail(serve->server, "loading failed");
        kva_server_stop(serve->server);
    }
    return NULL;
}

/* --- signals --------------------------------------------------------------------------------- */

static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    /* Ends the signal thread, when all is over. */
    sigaddset(set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* End at once by the signal's default action: loading may hang where nothing can be asked to stop,
 * for example while it reads from a network file system that is gone. */
static void die_of(int number)
{
    sigset_t set;
    kva_log_stop(LOG_WAIT_MS / 10);
    signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
}

static void begin_end(struct serve *serve)
{
    if (atomic_load(&serve->loading))
        kva_log(KVA_LOG_INFO, "loading stops at its next piece of work; again to stop now");
    else
        kva_log(KVA_LOG_INFO, "draining: running requests get up to %.0f s; again to stop now",
                (double)serve->config->drain_timeout_ms / 1000);
    atomic_store(&serve->stop_loading, true);
    kva_server_drain(serve->server);
}

static void *signal_thread(void *opaque)
{
    struct serve *serve = opaque;
    sigset_t set;
    block_signals(&set);
    bool draining = false;
    int number;
    while (sigwait(&set, &number) == 0) {
        if (number == SIGUSR2) {
            if (atomic_load(&serve->over))
                break; /* else it is a stray one */
        } else if (number == SIGHUP) {
            kva_server_reload(serve->server);
        } else if (!draining) {
            begin_end(serve);
            draining = true;
        } else if (atomic_load(&serve->loading)) {
            die_of(number);
        } else {
            kva_server_stop(serve->server);
        }
    }
    return NULL;
}

/* --- the process ----------------------------------------------------------------------------- */

static enum kva_status run(struct serve *serve, struct kva_err *err)
{
    pthread_t loader, signals;
    if (pthread_create(&signals, NULL, signal_thread, serve))
        return kva_fail(err, KVA_ENOMEM, "the system refuses a thread for signals");
    enum kva_status status = KVA_OK;
    atomic_store(&serve->loading, true);
    if (pthread_create(&loader, NULL, load_thread, serve)) {
        status = kva_fail(err, KVA_ENOMEM, "the system refuses a thread for loading");
    } else {
        status = kva_server_run(serve->server, err);
        pthread_join(loader, NULL);
    }
    atomic_store(&serve->over, true);
    pthread_kill(signals, SIGUSR2);
    pthread_join(signals, NULL);
    if (serve->load_status) {
        *err = serve->load_err;
        status = serve->load_status;
    }
    return status;
}

/* glibc raises its limit for memory that is mapped, and so returned when it is freed, to the size
 * of whatever large block was freed last: a few bodies of many megabytes, and the heap keeps as
 * much for ever. Limits that were set stay. */
static void return_freed_memory(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, 8 << 20);
#endif
}

int kva_cli_serve(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct serve serve = {.config = config, .started_ns = kva_time_ns()};
    struct kva_err err = {0};
    sigset_t set;
    if (rest->count > 0)
        return kva_cli_unexpected("serve", rest, KVA_CLI_BY_MODEL);
    return_freed_memory();
    block_signals(&set);
    enum kva_status status = kva_cli_check_reach(config, &err);
    if (!status)
        status = kva_cli_cluster_check(config, &err);
    if (!status)
        status = kva_log_start(&err);
    if (!status)
        status = kva_cli_front_init(&serve.front, config, &err);
    if (!status)
        status = kva_server_create(&serve.front.params, &serve.server, &err);
    if (!status)
        status = run(&serve, &err);
    /* The engine thread wakes the server to the last, so the server goes after it. */
    kva_cli_cluster_set_service(serve.instance.cluster, NULL);
    kva_service_stop(serve.service);
    kva_server_destroy(serve.server);
    kva_grammars_destroy(serve.grammars);
    kva_cli_front_finish(&serve.front);
    kva_cli_instance_close(&serve.instance);
    if (status == KVA_ETIMEOUT)
        kva_log(KVA_LOG_WARN, "%s", err.message);
    kva_log_stop(LOG_WAIT_MS);
    /* Stopped by a second signal: the operator's wish, but requests were cut. */
    if (status == KVA_ECANCELLED)
        return KVA_EXIT_FAILURE;
    return status && status != KVA_ETIMEOUT ? kva_cli_fail(&err) : KVA_EXIT_OK;
}
