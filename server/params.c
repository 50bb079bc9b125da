/* params.c - the defaults of a server's parameters. */
#include "server/server.h"

#include "base/clock.h"

void kva_server_params_default(struct kva_server_params *params)
{
    *params = (struct kva_server_params){
        .host = "127.0.0.1",
        .port = 8000,
        .key_limits = kva_key_limits_default(),
        .connections_max = 8192,
        .waiting_per_address_max = 2048,
        .backlog = 1024,
        .header_bytes_max = (size_t)32 << 10,
        .body_bytes_max = (size_t)16 << 20,
        .bodies_bytes_max = (size_t)1 << 30,
        .bodies_account_max = (size_t)256 << 20,
        .prompts_live_max = 65536,
        .answer_bytes_max = (size_t)64 << 20,
        .stream_unsent_max = (size_t)64 << 10,
        .stream_buffered_max = (size_t)4 << 20,
        .write_timeout_ns = 60 * KVA_NS_PER_S,
        .idle_timeout_ns = 120 * KVA_NS_PER_S,
        .head_timeout_ns = 10 * KVA_NS_PER_S,
        .receive_timeout_ns = 60 * KVA_NS_PER_S,
        .keep_alive_ns = 10 * KVA_NS_PER_S,
        .drain_timeout_ns = 30 * KVA_NS_PER_S,
        .retry_after_s = 2,
        .responses_bytes_max = (size_t)64 << 20,
        .workers = 2,
        .worker_jobs_max = 1024,
        .inline_bytes_max = 4096,
        .log_requests = true,
        .debug_view = true,
        .page = true,
        .version = KVA_VERSION,
    };
}
