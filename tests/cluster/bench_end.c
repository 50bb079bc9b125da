#include "tests/cluster/bench_end.h"

#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

enum { FOREVER_S = 60 };

static const char secret[] = "a secret of this benchmark";

void bench_require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
    exit(1);
}

static void received(void *opaque, const struct kva_link_frame *frame)
{
    struct bench_end *end = opaque;
    end->frames++;
    if (end->then)
        end->then(end, frame);
}

static void changed(void *opaque, uint32_t node KVA_UNUSED, uint64_t life KVA_UNUSED, bool up,
                    const char *why KVA_UNUSED)
{
    struct bench_end *end = opaque;
    end->up = up;
    end->down = !up;
}

static void create(struct bench_end *end, uint32_t node)
{
    struct kva_err err;
    struct kva_link_params params = {.listen = "127.0.0.1:0",
                                     .secret = secret,
                                     .secret_bytes = sizeof(secret),
                                     .header_bytes_max = BENCH_END_HEADER_MAX,
                                     .data_bytes_max = BENCH_END_DATA_MAX,
                                     .unsent_bytes_max = (size_t)1 << 30,
                                     .unread_bytes_max = (size_t)1 << 30,
                                     .peers_max = 2,
                                     .hello_ns = FOREVER_S * KVA_NS_PER_S,
                                     .opaque = end,
                                     .received = received,
                                     .changed = changed};
    bench_require(kva_transport_create(params.listen, 2, &end->transport, &err) == KVA_OK,
                  err.message);
    params.transport = end->transport;
    bench_require(kva_link_create(&params, &end->link, &err) == KVA_OK, err.message);
    kva_link_identify(end->link, node, 1);
}

void bench_end_open(struct bench_end *end, const char *role, pid_t *ret_other)
{
    char address[32];
    create(end, 1);
    snprintf(address, sizeof(address), "127.0.0.1:%u", kva_link_port(end->link));
    *ret_other = fork();
    bench_require(*ret_other >= 0, "no second process");
    if (*ret_other == 0) {
        execl("/proc/self/exe", program_invocation_short_name, role, address, (char *)NULL);
        _exit(127);
    }
    while (!end->up)
        kva_remote_turn(end->link, &end->waiter, UINT64_MAX);
}

void bench_end_serve(struct bench_end *end, const char *address)
{
    struct kva_err err;
    kva_thread_be_prompt();
    create(end, BENCH_END_OTHER);
    bench_require(kva_link_connect(end->link, 1, 1, address, &err) == KVA_OK, err.message);
    while (!end->down)
        kva_remote_turn(end->link, &end->waiter, UINT64_MAX);
    bench_end_close(end);
}

void bench_end_close(struct bench_end *end)
{
    kva_link_destroy(end->link);
    kva_transport_destroy(end->transport);
}

void bench_end_turn(struct bench_end *end, uint64_t frames)
{
    while (end->frames < frames && !end->down)
        kva_remote_turn(end->link, &end->waiter, UINT64_MAX);
    bench_require(!end->down, "the connection broke");
}

void bench_end_send(struct bench_end *end, uint32_t node, const void *header, size_t header_bytes,
                    const void *data, size_t data_bytes)
{
    bench_require(kva_link_send(end->link, node, 0, header, header_bytes, data, data_bytes) ==
                      KVA_OK,
                  "a frame cannot be sent");
}
