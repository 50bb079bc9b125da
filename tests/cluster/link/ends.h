/* ends.h - links over 127.0.0.1 in one process, what they have heard, and frames that show whether
 * they came whole and in order. */
#ifndef KVA_TESTS_CLUSTER_LINK_ENDS_H
#define KVA_TESTS_CLUSTER_LINK_ENDS_H

#include "cluster/link/link.h"
#include "cluster/link/transport.h"

enum { ENDS_NODES = 32, ENDS_KIND = 7, ENDS_DATA_MAX = 8 << 20, ENDS_HEADER_MAX = 4096 };

/* Waited for by ends_run: far longer than anything takes. */
#define ENDS_LIMIT_NS (60 * 1000000000ull)

struct end {
    struct kva_link *link;
    struct kva_transport *transport; /* its own; NULL: it was given one */
    uint32_t node;
    uint64_t life;
    char address[32]; /* where it listens */

    /* By node. */
    uint32_t ups[ENDS_NODES], downs[ENDS_NODES];
    uint64_t frames[ENDS_NODES];   /* that came, each right and after the one before it */
    uint64_t numbered[ENDS_NODES]; /* that were sent */
    uint64_t lives[ENDS_NODES];
    char why[256]; /* of the last that went down */

    void (*then)(struct end *end, const struct kva_link_frame *frame); /* after it was checked */
    void (*told)(struct end *end, uint32_t node, bool up);
    void *opaque;
};

struct kva_link_params ends_params(void);
struct kva_transport *ends_transport(void);

/* A link on port 0 of 127.0.0.1 that is identified, on a transport of its own unless `params` have
 * one. They may be NULL. */
void end_open(struct end *end, uint32_t node, uint64_t life, const struct kva_link_params *params);
void end_close(struct end *end);

void end_connect(struct end *from, const struct end *to);

/* A frame with `data_bytes`, its number in its header. */
enum kva_status end_try(struct end *from, uint32_t node, size_t header_bytes, size_t data_bytes);
void end_send(struct end *from, uint32_t node, size_t header_bytes, size_t data_bytes);

/* Progress of all until the condition holds; the test fails if it never does. */
void ends_run(struct end *const *ends, uint32_t count, bool (*until)(void *), void *opaque);

/* Progress of all for some rounds. */
void ends_idle(struct end *const *ends, uint32_t count, uint32_t rounds);

/* Until both are up for each other. */
void ends_meet(struct end *a, struct end *b);

#endif
