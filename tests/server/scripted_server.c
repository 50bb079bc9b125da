/* scripted_server.c - the server on the scripted engine, for hand and load tests without a model.
 *
 * Usage: scripted_server [--port N] [--step-us N] [--streams N] [--key K] [--vllm] [--tls PEM]
 * Serves until SIGTERM; the model "echo" repeats its prompt. */
#include "tests/server/fixture.h"

#include "base/log.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct kva_server *signalled;

static void on_signal(int number)
{
    static volatile sig_atomic_t seen;
    (void)number;
    if (seen++)
        kva_server_stop(signalled);
    else
        kva_server_drain(signalled);
}

/* Any index: as long as max_tokens says. */
static uint32_t endless(void *opaque, const struct kva_sequence_params *params, uint32_t index)
{
    (void)opaque;
    return 'a' + (params->prompt[0] + index) % 26;
}

int main(int argc, char **argv)
{
    static const char *keys[1];
    struct server_fixture f;
    fixture_init(&f);
    f.params.port = 8000;
    f.params.log_requests = false;
    kva_log_setup(STDERR_FILENO, KVA_LOG_INFO, KVA_LOG_TEXT);
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--port") == 0)
            f.params.port = (uint16_t)atoi(value);
        else if (strcmp(argv[i], "--step-us") == 0)
            f.engine.sleep_ns = strtoull(value, NULL, 10) * 1000;
        else if (strcmp(argv[i], "--streams") == 0)
            f.engine.limits.sequences_max = f.scheduling.running_max =
                (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--key") == 0) {
            keys[0] = value;
            f.params.api_keys = keys;
            f.params.api_key_count = 1;
        } else if (strcmp(argv[i], "--tls") == 0)
            f.params.tls_cert_path = value;
        else if (strcmp(argv[i], "--vllm") == 0)
            f.params.metrics_vllm = true;
        else if (strcmp(argv[i], "--endless") == 0)
            f.engine.next_token = endless;
        else if (strcmp(argv[i], "--log") == 0)
            f.params.log_requests = true;
    }
    f.engine.limits.step_tokens_max = f.scheduling.step_tokens_max = 16384;
    f.engine.limits.budget.device = f.engine.limits.budget.host = 1ull << 40;
    f.scheduling.waiting_max = 16384;
    fixture_start(&f);
    signalled = f.server;
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    fprintf(stderr, "listening on port %u, pid %d\n", f.port, (int)getpid());
    enum kva_status status = fixture_join(&f);
    fixture_stop(&f);
    return status == KVA_OK ? 0 : 1;
}
