/* constraint.h - what the tokens of a sequence must obey, as the engine sees it.
 *
 * A constraint (a grammar, for example) is made elsewhere, once; every sequence that has it follows
 * it by a state of its own, which goes with the sequence through suspensions. Which tokens may come
 * next is a mask, made beside the step on other threads: taking a token asks for the next mask, and
 * the engine waits for it only when it has the logits that it is for.
 *
 * Thread rule: engine thread, but for hold and release, which any thread may call. */
#ifndef KVA_ENGINE_CONSTRAINT_H
#define KVA_ENGINE_CONSTRAINT_H

#include "base/err.h"

#include <stdbool.h>

struct kva_constraint_state; /* whoever makes constraints has its own */
struct kva_constraint;

/* A mask has a bit for each token of the vocabulary, set for those that may come:
 * mask[token / 32] >> token % 32. */
struct kva_constraint_ops {
    void (*hold)(struct kva_constraint *constraint);
    void (*release)(struct kva_constraint *constraint);

    /* The state of a sequence without output; its first mask is asked for. Fails: KVA_ENOMEM, and
     * what the constraint says. */
    enum kva_status (*begin)(struct kva_constraint *constraint, struct kva_constraint_state **ret,
                             struct kva_err *err);
    void (*end)(struct kva_constraint_state *state);

    /* The sequence has got this token; the mask of the next one is asked for. */
    void (*take)(struct kva_constraint_state *state, uint32_t token);

    /* This token may be the next one: the mask of what would follow it is asked for. */
    void (*expect)(struct kva_constraint_state *state, uint32_t token);

    /* Waits for the mask of the next token, or of what follows the expected one; it is valid until
     * take. Fails: KVA_EINVAL (the expected token may not come, or the text has ended), KVA_ETOOBIG
     * (a limit), KVA_ENOMEM. */
    enum kva_status (*mask)(struct kva_constraint_state *state, bool behind_expected,
                            const uint32_t **ret);

    /* Whether the sequence should sit a step out: its last mask was slow in coming, and the next one
     * is not there yet. */
    bool (*is_late)(struct kva_constraint_state *state);
    /* Until it is not late, or a moment has passed: where nobody else has anything to do. */
    void (*wait)(struct kva_constraint_state *state);
};

/* Whoever makes constraints has this first. */
struct kva_constraint {
    const struct kva_constraint_ops *ops;
};

/* NULL is allowed. */
static inline void kva_constraint_hold(struct kva_constraint *constraint)
{
    if (constraint)
        constraint->ops->hold(constraint);
}

static inline void kva_constraint_release(struct kva_constraint *constraint)
{
    if (constraint)
        constraint->ops->release(constraint);
}

static inline bool kva_constraint_allows(const uint32_t *mask, uint32_t token)
{
    return mask[token / 32] >> token % 32 & 1;
}

#endif
