/* internal.h - what keeping grammars (grammars.c) and following them (masks.c) share. Not for other
 * modules. */
#ifndef KVA_SERVER_GRAMMAR_INTERNAL_H
#define KVA_SERVER_GRAMMAR_INTERNAL_H

#include "base/list.h"
#include "server/grammar/grammars.h"

#include <pthread.h>

#define KVA_MASK_THREADS_MAX 16u

/* One grammar: `constraint` is what the engine has of it. */
struct kva_grammar_entry {
    struct kva_constraint constraint;
    struct kva_grammars *grammars;
    struct kva_grammar *grammar; /* NULL while it is being made, and if it could not be */
    atomic_uint references;      /* one of them is the list's */

    /* Under the lock. */
    struct kva_list link;
    bool listed;
    bool making;
    enum kva_status status; /* what became of it */
    struct kva_err err;
    size_t bytes;

    uint64_t hash;
    struct kva_grammar_source source; /* `text` is the entry's own */
    char text[];
};

/* Threads that make masks, and who waits for one. */
struct kva_masks {
    pthread_mutex_t lock;
    pthread_cond_t work;  /* a state is queued, or the end */
    pthread_cond_t ready; /* a state has got on */
    struct kva_list queue;
    bool stopping;
    uint32_t thread_count;
    uint64_t late;
    struct kva_histogram seconds;
    pthread_t threads[KVA_MASK_THREADS_MAX];
};

struct kva_grammars {
    struct kva_grammars_params params;
    struct kva_grammar_vocab *vocab;
    pthread_mutex_t lock;
    pthread_cond_t made;
    struct kva_list entries; /* the most recently used first */
    uint32_t kept;
    size_t kept_bytes;
    uint64_t hits, misses, failures;
    struct kva_histogram make_seconds;
    struct kva_masks masks;
};

extern const struct kva_constraint_ops kva_grammar_constraint_ops; /* masks.c */

KVA_MUST_CHECK enum kva_status kva_masks_start(struct kva_grammars *grammars, struct kva_err *err);
void kva_masks_seconds_init(struct kva_histogram *seconds);
void kva_masks_stop(struct kva_grammars *grammars);

/* One reference less; the last frees the entry. */
void kva_grammar_entry_release(struct kva_grammar_entry *entry);

#endif
