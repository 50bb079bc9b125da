/* look_internal.h - what look.c (rows of a window) and look_layer.c (a layer's keys and queries)
 * share.
 *
 * Thread rule: look.h's. */
#ifndef KVA_ENGINE_CALIBRATE_LOOK_INTERNAL_H
#define KVA_ENGINE_CALIBRATE_LOOK_INTERNAL_H

#include "engine/calibrate/look.h"

/* Memory of one thread. */
struct kva_look_scratch {
    float *exact;   /* [window]: scores */
    float *partial; /* [window] */
    float *order;   /* [window]: to find the n-th in */
    float *query;   /* [head_dim]: of a basis */
};

struct kva_look {
    struct kva_look_params params;
    const struct kva_model_config *config;
    struct kva_rehearsal *rehearsal;
    struct kva_look_layer *layers;    /* [layer_count] */
    struct kva_look_scratch *scratch; /* [threads] */
    uint32_t
        *planes; /* [layer_count][kv_heads][columns]: whole ones, by descending energy; where the
                         columns are odd in number, one less */

    /* Of the rows of a pass. */
    float *input;    /* [step_tokens][hidden_size]: what the layer got */
    float *attended; /* the same, with what attention gave */

    /* Of the layer's part of the window that is in. */
    float *keys;      /* [window][kv_heads][head_dim] */
    float *projected; /* [bases][kv_heads][window][columns] */
    float *own;       /* [samples][heads][head_dim] */
    float *rehearsed; /* [2: parity of the layer][samples][heads][head_dim] */
    float *gathered;  /* [samples][hidden_size] */

    /* [heads]: of the layer at hand, added up in the order of heads. */
    struct kva_look_layer *heads;
};

/* Position of a sample. */
static inline uint32_t kva_look_position(const struct kva_look *look, uint32_t sample)
{
    return (uint32_t)((uint64_t)(sample + 1) * look->params.window_tokens / KVA_LOOK_SAMPLES) - 1;
}

static inline size_t kva_look_q_row(const struct kva_look *look)
{
    return (size_t)look->config->heads * look->config->head_dim;
}

/* Fills `planes`. */
void kva_look_list_planes(struct kva_look *look);

/* All keys and sampled queries of the layer are there. */
void kva_look_finish_layer(struct kva_look *look, uint32_t layer);

#endif
