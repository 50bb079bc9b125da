/* bench_end.h - two processes with a link over 127.0.0.1, for benchmarks: the one that measures is node
 * 1, and the other, node 2, is the same program started anew.
 *
 * What fails ends the process with a message. */
#ifndef KVA_TESTS_CLUSTER_BENCH_END_H
#define KVA_TESTS_CLUSTER_BENCH_END_H

#include "cluster/link/link.h"
#include "cluster/link/transport.h"
#include "cluster/remote/turn.h"

#include <stdlib.h>
#include <sys/types.h>

enum { BENCH_END_OTHER = 2, BENCH_END_HEADER_MAX = 64, BENCH_END_DATA_MAX = 64 << 20 };

struct bench_end {
    struct kva_transport *transport;
    struct kva_link *link;
    struct kva_remote_waiter waiter;
    uint64_t frames; /* that came */
    bool up, down;
    void (*then)(struct bench_end *end, const struct kva_link_frame *frame); /* or NULL */
    void *opaque;
};

void bench_require(bool condition, const char *what);

/* In the process that measures: `then` and `opaque` are set. Starts the other, with the argument `role`
 * and an address behind it, and waits until there is a connection. */
void bench_end_open(struct bench_end *end, const char *role, pid_t *ret_other);

/* In the other process: answers by `then` until the first one has ended. */
void bench_end_serve(struct bench_end *end, const char *address);

void bench_end_close(struct bench_end *end);

/* Until so many frames have come. */
void bench_end_turn(struct bench_end *end, uint64_t frames);

void bench_end_send(struct bench_end *end, uint32_t node, const void *header, size_t header_bytes,
                    const void *data, size_t data_bytes);

#endif
