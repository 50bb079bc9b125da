/* stop.h - stop strings in a text that arrives in pieces.
 *
 * What is given on never contains a part of a stop string that might still be completed, and
 * nothing is lost when it is not. Which stop ends the text does not depend on how the text was cut:
 * the one that is complete first; of two that end at the same byte, the longer. Time is linear in
 * the text whatever the stops are (Knuth, Morris and Pratt's automaton, one per stop).
 *
 * Thread rule: a set is constant and may be shared; a matcher belongs to one thread. */
#ifndef KVA_SERVER_STREAM_STOP_H
#define KVA_SERVER_STREAM_STOP_H

#include "server/api/api.h"

/* The stops of one call, with their failure functions. */
struct kva_stop_set {
    const struct kva_api_text *stops; /* borrowed */
    uint32_t *failure[KVA_API_STOPS_MAX];
    uint32_t count;
};

struct kva_stop_matcher {
    const struct kva_stop_set *set;
    uint32_t state[KVA_API_STOPS_MAX]; /* bytes at the end of the text that each stop starts with */
    struct kva_buf held;               /* the end of the text, not given on yet */
    int matched;                       /* index of the stop found, -1: none yet */
};

/* Stops of 1 byte and more; memory from `arena`. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_stop_set_init(struct kva_stop_set *set,
                                                 const struct kva_api_text *stops, uint32_t count,
                                                 struct kva_arena *arena);

void kva_stop_matcher_init(struct kva_stop_matcher *matcher, const struct kva_stop_set *set);
void kva_stop_matcher_finish(struct kva_stop_matcher *matcher);

/* Append to `out` what of `text` is certain. True: a stop is complete; the text before it (and the
 * stop itself with `include`) has been appended, everything after it is dropped, and the matcher
 * takes no more. */
bool kva_stop_matcher_push(struct kva_stop_matcher *matcher, const char *text, size_t length,
                           bool include, struct kva_buf *out);

/* The text is over: append what was held back. */
void kva_stop_matcher_flush(struct kva_stop_matcher *matcher, struct kva_buf *out);

#endif
