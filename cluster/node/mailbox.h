/* mailbox.h - what the engine's thread and the cluster's thread tell each other: a bounded queue for
 * each direction. Both are drained at once, so that a lock is held for a few pointers only.
 *
 * Messages between managers may be lost (rmanager.h), so that a queue that is full loses them, and
 * counts it; what membership says is never lost, and there are few members.
 *
 * Thread rule: put and take: any thread. */
#ifndef KVA_CLUSTER_NODE_MAILBOX_H
#define KVA_CLUSTER_NODE_MAILBOX_H

#include "base/list.h"
#include "base/spares.h"
#include "cluster/members/members.h"
#include "cluster/message.h"

#include <pthread.h>

enum kva_note_kind {
    KVA_NOTE_MESSAGE, /* encoded, with the content of its pages */
    KVA_NOTE_JOINED,
    KVA_NOTE_MEMBER,
    KVA_NOTE_GONE,
};

struct kva_note {
    struct kva_list link;
    enum kva_note_kind kind;
    struct kva_member member; /* JOINED: node and life; GONE: the same */
    size_t size;              /* of the message */
    size_t content_bytes;
    unsigned char *message;
    unsigned char *content; /* aligned to KVA_CACHE_LINE */
};

struct kva_mailbox {
    pthread_mutex_t lock;
    struct kva_list notes;
    size_t bytes;
    size_t bytes_max;
    uint64_t lost;
    struct kva_spares spares; /* of notes with the content of pages */
};

void kva_mailbox_init(struct kva_mailbox *mailbox, size_t bytes_max);
void kva_mailbox_finish(struct kva_mailbox *mailbox);

/* A message goes in, or is lost. */
void kva_mailbox_put_message(struct kva_mailbox *mailbox, const void *message, size_t size,
                             const void *content, size_t content_bytes);

/* What membership says. False: out of memory. */
bool kva_mailbox_put_member(struct kva_mailbox *mailbox, enum kva_note_kind kind,
                            const struct kva_member *member);

/* All of it, in order; each is freed by its taker. */
void kva_mailbox_take(struct kva_mailbox *mailbox, struct kva_list *ret);
void kva_note_free(struct kva_mailbox *mailbox, struct kva_note *note);

#endif
