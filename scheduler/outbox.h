/* outbox.h - outputs on their way from the engine thread to the event loop, packed.
 *
 * A record holds only what its kind needs: a token without top log-probabilities is a tenth of a
 * struct kva_output. Records live in blocks; the engine thread fills a list of its own and hands
 * it over once per step.
 *
 * Thread rule: a list belongs to one thread at a time; handing it over is the service's business.
 * Invariant: records come out in the order in which they were put in. */
#ifndef KVA_SCHEDULER_OUTBOX_H
#define KVA_SCHEDULER_OUTBOX_H

#include "scheduler/scheduler.h"

struct kva_outbox_block;

struct kva_outbox {
    struct kva_outbox_block *first;
    struct kva_outbox_block *last;
    struct kva_outbox_block *spare; /* an empty block, to be used before a new one is made */
    size_t count;                   /* records */
    size_t bytes;                   /* memory of the blocks and of what records point to */
};

void kva_outbox_init(struct kva_outbox *box);
void kva_outbox_finish(struct kva_outbox *box);

/* Bytes of a block that can hold one END, in case that memory runs out. */
size_t kva_outbox_reserve_bytes(void);

/* Append a copy. Fails: KVA_ENOMEM, nothing appended. */
KVA_MUST_CHECK enum kva_status kva_outbox_put(struct kva_outbox *box,
                                              const struct kva_output *output);

/* Append an END into `storage`, kva_outbox_reserve_bytes() of the caller's memory, suitably
 * aligned; `released` is called with `opaque` when the record has been read. */
void kva_outbox_put_end(struct kva_outbox *box, const struct kva_output *output, void *storage,
                        void (*released)(void *opaque), void *opaque);

/* Move everything of `from` to the end of `box`. */
void kva_outbox_append(struct kva_outbox *box, struct kva_outbox *from);

/* Hand every record over and free it; returns how many. `fn` may be NULL: they are only freed. The
 * first empty block stays as `spare`. */
size_t kva_outbox_drain(struct kva_outbox *box, kva_output_fn fn, void *opaque);

#endif
