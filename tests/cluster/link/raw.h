/* raw.h - UCX without a link around it: says what a link never would. */
#ifndef KVA_TESTS_CLUSTER_LINK_RAW_H
#define KVA_TESTS_CLUSTER_LINK_RAW_H

#include "cluster/link/ucx.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RAW_HELLO = 1, RAW_DATA = 2, RAW_KEPT = 8 };

struct raw {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    char address[32];
    ucp_ep_h ep;
    bool broken;
    uint32_t count; /* messages that came */
    unsigned char kept[RAW_KEPT][256];
    size_t sizes[RAW_KEPT];
};

void raw_open(struct raw *raw, bool listening);
void raw_close(struct raw *raw);
void raw_connect(struct raw *raw, const char *address);
void raw_hang_up(struct raw *raw);
void raw_progress(struct raw *raw);

enum { RAW_PREFIX_BYTES = 28 };

/* A prefix as of a link (internal.h there). */
struct raw_prefix {
    uint64_t sequence;
    uint32_t type, kind, header_bytes;
    uint64_t size;
};

/* A message of `size` bytes that begins with the first `prefix_bytes` of a prefix. */
void raw_say_piece(struct raw *raw, size_t prefix_bytes, struct raw_prefix prefix,
                   const void *bytes, size_t size);

/* A frame in one message. */
void raw_say(struct raw *raw, uint64_t sequence, uint32_t type, uint32_t header_bytes,
             const void *bytes, size_t size);

#endif
