/* etcd.h - etcd's JSON gateway: calls that answer once, and a watch whose answers are lines.
 *
 * There is at most one call of each slot. A call that is not answered well is counted and named, the
 * next endpoint is asked from then on, and the slot rests: twice as long after every failure, up to a
 * bound, and by chance a little less. Where a user is given, its token is asked for first, and again
 * when etcd no longer takes it. What comes is bounded in size, depth and time.
 *
 * Thread rule: one thread. `answer` is called by kva_etcd_perform, and may ask and drop. */
#ifndef KVA_CLUSTER_MEMBERS_ETCD_H
#define KVA_CLUSTER_MEMBERS_ETCD_H

#include "base/buf.h"
#include "base/err.h"

struct cJSON;
struct kva_etcd;

enum kva_etcd_slot {
    KVA_ETCD_LEASE,
    KVA_ETCD_TABLE,
    KVA_ETCD_WATCH,
    KVA_ETCD_SELF,
    KVA_ETCD_LEADER,
    KVA_ETCD_AUTH, /* its own */
    KVA_ETCD_SLOTS,
};

enum kva_etcd_end {
    KVA_ETCD_ANSWERED,
    KVA_ETCD_SILENT,   /* a watch of which nothing came for `silence_ns`: ask again */
    KVA_ETCD_NO_LEASE, /* the lease that the call names is no more */
    KVA_ETCD_FAILED,   /* counted and named already */
};

struct kva_etcd_params {
    const char *const *endpoints; /* used as long as the client is there */
    uint32_t endpoint_count;
    const char *user; /* "NAME:PASSWORD" or NULL */
    const char *ca;   /* or NULL */
    uint64_t request_ns;
    uint64_t rest_ns; /* at most, between two calls of a slot that fails */
    void *opaque;
    /* `answer` is there while the call lasts, and with KVA_ETCD_ANSWERED only. */
    void (*answer)(void *opaque, enum kva_etcd_slot slot, enum kva_etcd_end end,
                   const struct cJSON *answer, uint64_t sent_ns);
};

struct kva_etcd_call {
    enum kva_etcd_slot slot;
    const char *path;    /* "/v3/..." */
    const char *body;    /* JSON; copied */
    uint64_t limit_ns;   /* to be answered in; 0: request_ns */
    uint64_t silence_ns; /* not 0: answers are lines, of which one has to come this often */
};

/* Fails: KVA_ENOMEM, KVA_EIO (libcurl). */
KVA_MUST_CHECK enum kva_status kva_etcd_create(const struct kva_etcd_params *params,
                                               struct kva_etcd **ret, struct kva_err *err);
void kva_etcd_destroy(struct kva_etcd *etcd);

/* Whether the slot may be asked now: nothing is under way, it does not rest, the token is there. */
bool kva_etcd_ready(const struct kva_etcd *etcd, enum kva_etcd_slot slot, uint64_t now_ns);

/* Ask; the slot is ready. Where that cannot even begin, it has failed by the next perform. */
void kva_etcd_ask(struct kva_etcd *etcd, const struct kva_etcd_call *call, uint64_t now_ns);

/* Forget a call that is under way, if there is one. */
void kva_etcd_drop(struct kva_etcd *etcd, enum kva_etcd_slot slot);

/* An answer of the slot was no good, for `what` is wrong with it: count it and let the slot rest. */
void kva_etcd_blame(struct kva_etcd *etcd, enum kva_etcd_slot slot, const char *what,
                    uint64_t now_ns);

/* Let the slot rest as after a failure, without counting one. */
void kva_etcd_rest(struct kva_etcd *etcd, enum kva_etcd_slot slot, uint64_t now_ns);

/* Send and receive what can be without waiting; call `answer` for what has ended. */
void kva_etcd_perform(struct kva_etcd *etcd, uint64_t now_ns);

/* When something is due that no socket tells of; UINT64_MAX: nothing is. */
uint64_t kva_etcd_due_ns(const struct kva_etcd *etcd, uint64_t now_ns);

/* Wait until a socket is ready, or one of `fds` is readable: then true; or for `wait_ns`. */
bool kva_etcd_wait(struct kva_etcd *etcd, const int *fds, uint32_t fd_count, uint64_t wait_ns);

uint64_t kva_etcd_failures(const struct kva_etcd *etcd);

/* Of the last failure, or "". */
const char *kva_etcd_why(const struct kva_etcd *etcd);

#endif
