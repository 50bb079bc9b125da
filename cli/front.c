/* front.c - from the options to the server's parameters. */
#include "cli/front.h"

#include "cli/cli.h"
#include "cli/listen.h"

#include <stdlib.h>
#include <string.h>

static void read_options(struct kva_server_params *params, const struct kva_config *config)
{
    kva_server_params_default(params);
    params->host = config->host;
    params->port = (uint16_t)config->port;
    params->tls_cert_path = config->tls_cert;
    params->tls_key_path = config->tls_key;
    params->api_keys = (const char *const *)config->api_keys.items;
    params->api_key_count = config->api_keys.count;
    params->api_key_file = config->api_key_file;
    params->key_limits.requests_per_minute = (uint32_t)config->key_rate;
    params->key_limits.tokens_per_minute = (uint32_t)config->key_tokens;
    params->key_limits.running = (uint32_t)config->key_running;
    params->key_limits.waiting = (uint32_t)config->key_waiting;
    params->cors_origins = (const char *const *)config->cors_origins.items;
    params->cors_origin_count = config->cors_origins.count;
    params->cache_shared_between_keys = config->prefix_share_keys;
    params->allowed_hosts = (const char *const *)config->allowed_hosts.items;
    params->allowed_host_count = config->allowed_hosts.count;
    params->connections_max = kva_cli_reserve_descriptors((uint32_t)config->connections);
    params->waiting_per_address_max = (uint32_t)config->idle_per_address;
    params->header_bytes_max = config->header_bytes;
    params->body_bytes_max = config->body_bytes;
    /* One body of the allowed size always fits. */
    params->bodies_bytes_max = kva_max_u64(config->bodies_bytes, config->body_bytes);
    params->bodies_account_max = kva_max_u64(config->bodies_per_key, config->body_bytes);
    params->head_timeout_ns = config->head_timeout_ms * KVA_NS_PER_MS;
    params->receive_timeout_ns = config->read_timeout_ms * KVA_NS_PER_MS;
    params->write_timeout_ns = config->write_stall_ms * KVA_NS_PER_MS;
    params->request_timeout_ns = config->request_timeout_ms * KVA_NS_PER_MS;
    params->keep_alive_ns = config->keepalive_ms * KVA_NS_PER_MS;
    params->drain_timeout_ns = config->drain_timeout_ms * KVA_NS_PER_MS;
    params->workers = (uint32_t)config->workers;
    params->responses_bytes_max = config->responses_bytes;
    params->metrics_vllm = config->metrics_vllm;
    params->debug_view = config->live_view;
    params->page = config->page;
    params->metrics_keys = config->metrics_keys;
}

enum kva_status kva_cli_front_init(struct kva_cli_front *front, const struct kva_config *config,
                                   struct kva_err *err)
{
    *front = (struct kva_cli_front){0};
    read_options(&front->params, config);
    enum kva_status status = kva_cli_check_callers(config, err);
    if (!status && config->admin_listen)
        status = kva_cli_parse_address("admin-listen", config->admin_listen, &front->admin_host,
                                       &front->params.admin_port, err);
    if (!status && config->agent_listen)
        status = kva_cli_parse_address("agent-listen", config->agent_listen, &front->agent_host,
                                       &front->params.agent_port, err);
    front->params.admin_host = front->admin_host;
    front->params.agent_host = front->agent_host;
    return status;
}

void kva_cli_front_finish(struct kva_cli_front *front)
{
    free(front->admin_host);
    free(front->agent_host);
}

enum kva_status kva_cli_check_default(const struct kva_cli_instance *instance, struct kva_err *err)
{
    const struct kva_engine *engine = instance->engine;
    const struct kva_kv_spec *spec = &instance->kv.specs[instance->kv.policy];
    const uint32_t token = 0;
    const struct kva_sequence_params params = {
        .prompt = &token, .prompt_tokens = 1, .tokens_max = 2, .kv = *spec};
    const struct kva_err *why = &instance->model->skew_err;
    enum kva_status status = engine->ops->check(engine->self, &params, err);
    if (status && why->status &&
        strcmp(err->param, "skew") == 0) /* names files: not for requests */
        return kva_fail_param(err, status, "skew", "--kv %s: %s", kva_kv_policy_name(spec->policy),
                              why->message);
    return status ? kva_err_prefix(err, status, "--kv %s", kva_kv_policy_name(spec->policy))
                  : KVA_OK;
}
