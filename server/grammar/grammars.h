/* grammars.h - the grammars of requests: made once, kept, and followed beside the engine's steps.
 *
 * A request's grammar is a constraint of the engine (engine/constraint.h). Making one takes from
 * milliseconds to seconds and is bounded in time, memory and size; what is made is kept, the least
 * recently used ones going first, for all requests that ask for the same, of whatever key. Masks are
 * made by threads of their own.
 *
 * Thread rule: get, holds and stats on any thread; get may take as long as making a grammar. */
#ifndef KVA_SERVER_GRAMMAR_GRAMMARS_H
#define KVA_SERVER_GRAMMAR_GRAMMARS_H

#include "base/histogram.h"
#include "engine/constraint.h"
#include "text/grammar/grammar.h"

#include <stdatomic.h>

struct kva_grammars;

struct kva_grammars_params {
    struct kva_grammar_vocab_params vocab;
    struct kva_grammar_limits limits; /* of making one */
    struct kva_grammar_work work;     /* of a mask; beyond it its sequence ends with an error */
    size_t kept_bytes;                /* of grammars */
    uint32_t kept_max;
    uint32_t mask_threads;
};

/* Fails: KVA_EUNSUPPORTED (built without the library, or the model ends no text), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_grammars_create(const struct kva_grammars_params *params,
                                                   struct kva_grammars **ret, struct kva_err *err);

/* All constraints must have been released. NULL is allowed. */
void kva_grammars_destroy(struct kva_grammars *grammars);

/* Whether get would have nothing to make. */
bool kva_grammars_holds(struct kva_grammars *grammars, const struct kva_grammar_source *source);

/* The constraint, held for the caller. Fails as kva_grammar_create does, and with KVA_ECANCELLED
 * (`cancelled`, which may be NULL, while another thread makes it). */
KVA_MUST_CHECK enum kva_status kva_grammars_get(struct kva_grammars *grammars,
                                                const struct kva_grammar_source *source,
                                                const atomic_bool *cancelled,
                                                struct kva_constraint **ret, struct kva_err *err);

struct kva_grammars_stats {
    uint64_t hits; /* counters since start */
    uint64_t misses;
    uint64_t failures; /* of the misses: refused */
    uint64_t late;     /* steps that a sequence sat out for its mask */
    uint32_t kept;
    size_t kept_bytes;
    struct kva_histogram make_seconds;
    struct kva_histogram mask_seconds; /* of taking a token and making the next mask */
};
/* Of NULL: nothing has happened. */
void kva_grammars_get_stats(struct kva_grammars *grammars, struct kva_grammars_stats *ret);

#endif
