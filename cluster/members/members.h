/* members.h - who is in the cluster and who leads it, as etcd says: by its JSON gateway (/v3/), with
 * libcurl and cJSON.
 *
 * Under kvahead/NAME/ there are
 *
 *     nodes/N    a member: {"node": N, "life": "L", "host": .., "port": .., "guest_port": ..,
 *                "model": ..}, with the lease of its process; a life of "0" is the revision that
 *                created the key
 *     leader     the node whose gManager leads: {"node": N, "life": "L"}, with the same lease
 *
 * A node takes the smallest number that is free, in a transaction that creates its key; the revision
 * of that transaction is its life, which so grows with every start. The leader's key is created
 * likewise; the revision of its creation is the fencing token of its orders. Two members of different
 * models do not see each other: NAME, and what `model` says, have to be equal.
 *
 * One connection keeps the lease alive, another one watches; the watch begins at the revision of a
 * full reading, and is read anew where etcd has compacted it away. etcd may go and come: nobody is
 * gone because it cannot be asked. A lease that ended meanwhile is made anew, with the same life, as
 * long as nobody else has taken the number; else this process has left the cluster for good.
 *
 * Times are nanoseconds of the monotonic clock. Thread rule: one thread; callbacks are called by run,
 * and may call kva_members_stand and kva_members_get_view. */
#ifndef KVA_CLUSTER_MEMBERS_MEMBERS_H
#define KVA_CLUSTER_MEMBERS_MEMBERS_H

#include "base/err.h"

#include <stdbool.h>

struct kva_members;

#define KVA_MEMBERS_HOST_MAX  256u
#define KVA_MEMBERS_MODEL_MAX 128u
#define KVA_MEMBERS_NODES_MAX 1024u /* numbers 1 to this */

struct kva_member {
    uint32_t node;
    uint64_t life;
    char host[KVA_MEMBERS_HOST_MAX]; /* without brackets */
    uint16_t port;                   /* of its link */
    uint16_t guest_port;             /* of its creditor's link */
    uint32_t lend_pages;             /* of a request's KV that others may have there at most */
    char model[KVA_MEMBERS_MODEL_MAX];
};

enum kva_members_state {
    KVA_MEMBERS_JOINING, /* not yet a member */
    KVA_MEMBERS_JOINED,
    KVA_MEMBERS_APART, /* a member whose lease etcd has not kept alive for its ttl */
    KVA_MEMBERS_LEFT,  /* its number is another's: for good */
};

struct kva_members_params {
    const char *const *endpoints; /* "http://HOST:PORT", https too; asked in turn while one fails */
    uint32_t endpoint_count;
    const char *user;       /* "NAME:PASSWORD" of etcd's own authentication, or NULL */
    const char *ca;         /* file of certificates for https, or NULL: the system's */
    const char *name;       /* of the cluster: [a-z0-9-]{1,63} */
    struct kva_member self; /* node and life are what joining gives */
    uint64_t lease_ttl_ns;  /* whole seconds, at least 2 */
    uint64_t request_ns;    /* that etcd has to answer */

    void *opaque; /* of the callbacks, all of which have to be there */
    /* First of all; then `member` for each that is there. */
    void (*joined)(void *opaque, uint32_t node, uint64_t life);
    /* Another member is there, or its record has changed; it is there no more. */
    void (*member)(void *opaque, const struct kva_member *member);
    void (*gone)(void *opaque, uint32_t node, uint64_t life);
    /* This node leads: the revision, and when the keep-alive was sent that its lease rests on; and
     * of each that is answered from then on. */
    void (*elected)(void *opaque, uint64_t revision, uint64_t sent_ns);
    void (*kept_alive)(void *opaque, uint64_t sent_ns);
    void (*deposed)(void *opaque);
    void (*left)(void *opaque, const char *why);
};

struct kva_members_view {
    enum kva_members_state state;
    uint32_t members;     /* this one included */
    uint32_t strangers;   /* of another model */
    uint32_t leader;      /* its node; 0: none known */
    uint64_t records_bad; /* of others, that were passed over */
    uint64_t failures;    /* requests that etcd did not answer well */
    char why[256];        /* of the last failure, or "" */
};

/* Nothing is asked yet. Fails: KVA_EINVAL (a parameter, named), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_members_create(const struct kva_members_params *params,
                                                  struct kva_members **ret, struct kva_err *err);

/* Revokes the lease, so that others see it at once; waits for etcd no longer than `wait_ns`. With 0
 * nothing is asked, and the lease ends by itself, as where a process dies. NULL is allowed. */
void kva_members_destroy(struct kva_members *members, uint64_t wait_ns);

/* Ask, answer and call back what is due, and wait: until something was called back, one of `fds` is
 * readable, or until `until_ns`, whichever is first. */
void kva_members_run(struct kva_members *members, const int *fds, uint32_t fd_count,
                     uint64_t until_ns);

/* Stand for election, or not any more: a leader steps down. Members stand from the beginning. */
void kva_members_stand(struct kva_members *members, bool stands);

void kva_members_get_view(const struct kva_members *members, struct kva_members_view *ret);

#endif
