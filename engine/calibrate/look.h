/* look.h - what a choice of rows by partial products would find, looked at in prompts: how alike
 * the inputs of consecutive layers are (InfiniGen, table 1), how many tokens a query wants (figure
 * 16), and how many of those are found by the first columns of keys and of a query that the layer
 * before has made.
 *
 *     s(t) = scale * q . k_t        a query head wants t if s(t) >= max s - alpha
 *
 * Of the n tokens that a query head wants, `recall` is the share among the n with the largest
 * partial product, and `mass` is the attention probability on those. Queries are looked at at some
 * positions of a window, keys at all of them; products are exact, of unrounded keys. All candidates
 * of a query are either every token that it sees, or those that would be away: without the first
 * few and the newest.
 *
 * Thread rule: engine thread, with the pool. */
#ifndef KVA_ENGINE_CALIBRATE_LOOK_H
#define KVA_ENGINE_CALIBRATE_LOOK_H

#include "base/pool.h"
#include "engine/calibrate/rehearse.h"
#include "engine/forward.h"
#include "engine/model/skew.h"

/* Positions of a window whose queries are looked at. */
#define KVA_LOOK_SAMPLES 64u
/* Tokens that are never away: the first, and the newest of a window in 16 bits. */
#define KVA_LOOK_SINKS  4u
#define KVA_LOOK_NEWEST 64u
/* The paper's alpha. */
#define KVA_LOOK_ALPHA 4.0f

/* By what columns the products are partial. */
enum kva_look_basis {
    KVA_LOOK_NONE,   /* of q and k as they are: those with the largest energy */
    KVA_LOOK_PLANES, /* the same in pairs that are rotated together: what the rows of the query
                        weights that a choice of planes needs would give, so that the others need not
                        be read a second time */
    KVA_LOOK_FIRST,  /* the first ones behind A of method 0, and so on for all methods */
    KVA_LOOK_BASES = KVA_LOOK_FIRST + KVA_SKEW_METHOD_COUNT,
};

static inline enum kva_look_basis kva_look_basis_of(enum kva_skew_method method)
{
    return (enum kva_look_basis)((uint32_t)KVA_LOOK_FIRST + (uint32_t)method);
}

/* Whose query. */
enum kva_look_query {
    KVA_LOOK_OWN,       /* the layer's */
    KVA_LOOK_REHEARSED, /* made one layer early */
    KVA_LOOK_WHOLE,     /* the same, with all columns: what rehearsing alone costs */
    KVA_LOOK_QUERIES_COUNT,
};

enum kva_look_candidates {
    KVA_LOOK_ALL,
    KVA_LOOK_AWAY,
    KVA_LOOK_CANDIDATES,
};

struct kva_look_found {
    double recall, mass; /* sums */
    uint64_t count;      /* of queries, by head */
};

/* Context lengths at which wanted tokens are counted (queries that see so many tokens, or up to an
 * eighth fewer): those of the paper's figure 16, then doubling. */
#define KVA_LOOK_LENGTHS 9u
extern const uint32_t kva_look_lengths[KVA_LOOK_LENGTHS];

struct kva_look_layer {
    uint64_t
        rows; /* of which these are sums of cosines to the input of the layer: of what the layer
                      before got, of what its attention gave, and its MLP */
    double input, attention, mlp;
    struct kva_look_found found[KVA_LOOK_BASES][KVA_LOOK_QUERIES_COUNT][KVA_LOOK_CANDIDATES];
    double wanted[KVA_LOOK_LENGTHS]; /* sums of tokens, by length */
    uint64_t wanted_count[KVA_LOOK_LENGTHS];
};

struct kva_look_params {
    struct kva_device *device;
    const struct kva_model *model;
    struct kva_pool *pool;
    uint32_t window_tokens;
    uint32_t step_tokens;                                /* rows of a pass at most */
    uint32_t columns;                                    /* of partial products */
    const struct kva_skew *skews[KVA_SKEW_METHOD_COUNT]; /* by method */
};

struct kva_look;

/* On a device whose memory the host cannot read nothing is rehearsed. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_look_create(const struct kva_look_params *params,
                                               struct kva_look **ret, struct kva_err *err);

/* NULL is allowed. */
void kva_look_destroy(struct kva_look *look);

/* A point of a layer, with numbers that the host can read (bring.h), of a pass that has rows of one
 * window and of nothing else, in the order of a prefill: all rows of a layer before the next layer. */
void kva_look_at(struct kva_look *look, const struct kva_forward_layer_view *view);

/* [layer_count]; the look's own. Of layer 0 there are no cosines and nothing is rehearsed. */
const struct kva_look_layer *kva_look_layers(const struct kva_look *look);

#endif
