/* loopback.h - instances that lend each other KV in one process: a debtor's queries go to creditors'
 * threads and back, copied as a wire would copy them, and a creditor can die at any message. */
#ifndef KVA_TESTS_ENGINE_LOOPBACK_H
#define KVA_TESTS_ENGINE_LOOPBACK_H

#include "engine/lending.h"
#include "tests/engine/fixture.h"

#include <pthread.h>

enum { LOOPBACK_CREDITORS = 4, LOOPBACK_ROWS = 16, LOOPBACK_LOANS = 16 };

struct loopback;

/* Node i + 1. */
struct loopback_creditor {
    struct fixture fixture;
    struct kva_device *device; /* the worker's */
    struct kva_guests *guests;
    struct kva_guest_worker *worker;
    const struct loopback *net;
    uint64_t dies_at; /* the message that it does not answer any more, counted from 1; 0: never */
    uint64_t messages;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, stop; /* a message is there and not answered yet */

    /* The message, and its answer. */
    uint32_t layer, count;
    uint32_t entries[LOOPBACK_ROWS]; /* of what was posted */
    struct kva_remote_rows rows[LOOPBACK_ROWS];
    unsigned char *q; /* [LOOPBACK_ROWS] */
    float *answers;   /* [LOOPBACK_ROWS] results */
    bool found[LOOPBACK_ROWS];
};

struct loopback {
    struct kva_remote remote;
    struct loopback_creditor creditors[LOOPBACK_CREDITORS];
    struct kva_remote_rows posted[LOOPBACK_ROWS];
    uint32_t posted_count;
    uint64_t posts;
    uint64_t loans; /* ids given out */
    uint32_t heads, head_dim;
    /* Before an answer is waited for; NULL: nobody is told. */
    void (*collects)(void *opaque, const struct kva_remote_rows *rows);
    void *opaque;
};

/* Creditors with engines as `params` describes them; the debtor's is opened after it with
 * params.remote = &net->remote, on the same model, and closed before it. */
void loopback_open(struct loopback *net, const struct fixture_params *params);
void loopback_close(struct loopback *net);

/* Pages of a debtor's sequence go to a creditor; the loan's id. */
uint64_t loopback_lend(struct loopback *net, struct fixture *debtor, struct kva_sequence *seq,
                       uint32_t creditor, uint32_t first, uint32_t count, bool keeps_home);

/* They come home. */
void loopback_return(struct loopback *net, struct fixture *debtor, struct kva_sequence *seq,
                     uint64_t loan);

/* All its loans are over, as they are when it ends or was lost. */
void loopback_release(struct loopback *net);

#endif
