/* spares.h - large blocks of memory that are used again.
 *
 * A block of a megabyte that is freed goes back to the system, and the next one is faulted in page by
 * page, which takes several times as long as to copy what it is for. Where such blocks come and go all
 * the time some are kept instead, those that were used last.
 *
 * Thread rule: any, but for init and finish. */
#ifndef KVA_BASE_SPARES_H
#define KVA_BASE_SPARES_H

#include "base/list.h"

#include <pthread.h>

struct kva_spares {
    pthread_mutex_t lock;
    struct kva_list blocks; /* the last one given is the last */
    size_t bytes;
    size_t bytes_max;
};

/* At most `bytes_max` bytes are kept. */
void kva_spares_init(struct kva_spares *spares, size_t bytes_max);
/* Frees what is kept, and not what was taken and has not been given back. */
void kva_spares_finish(struct kva_spares *spares);

/* `size` bytes, aligned to KVA_CACHE_LINE: a spare block of up to twice the size, or a new one. NULL:
 * no memory. */
void *kva_spares_take(struct kva_spares *spares, size_t size);

/* What was taken here is done with. Small blocks are freed. NULL is allowed. */
void kva_spares_give(struct kva_spares *spares, void *block);

#endif
