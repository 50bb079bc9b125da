/* pooling.c - one vector for a prompt: of its last token, or the mean of all.
 *
 * Sums are made on the device, in the order of the tokens, so that a vector does not depend on how
 * its prompt was cut into steps; the host divides. No logits are made. */
#include "engine/model_engine_internal.h"

void kva_pooling_begin(struct model_engine *e, struct kva_sequence *seq)
{
    if (seq->params.pooling != KVA_POOLING_NONE)
        seq->pool_slot = e->pool_slots[--e->pool_slot_count];
}

void kva_pooling_end(struct model_engine *e, struct kva_sequence *seq)
{
    if (seq->pool_slot != KVA_NO_SLOT)
        e->pool_slots[e->pool_slot_count++] = seq->pool_slot;
    seq->pool_slot = KVA_NO_SLOT;
}

void kva_pooling_take(struct model_engine *e, struct kva_sequence *seq,
                      const struct kva_pick_prompt *prompt)
{
    kva_pick_score_prompt(e, seq, prompt);
    uint32_t skipped = 0, end = prompt->position_first + prompt->row_count;
    if (seq->params.pooling == KVA_POOLING_NONE)
        return;
    if (seq->params.pooling == KVA_POOLING_LAST) {
        if (end < seq->params.prompt_tokens)
            return;
        skipped = prompt->row_count - 1;
    }
    kva_forward_pool(e->forward, &(struct kva_forward_pool){
                                     .hidden = prompt->hidden,
                                     .first = prompt->row_first + skipped,
                                     .rows = prompt->row_count - skipped,
                                     .slot = seq->pool_slot,
                                     .accumulate = seq->params.pooling == KVA_POOLING_MEAN &&
                                                   prompt->position_first > seq->prefill_first,
                                 });
}

const float *kva_pooling_vector(struct model_engine *e, struct kva_sequence *seq)
{
    float *vector = kva_forward_pooled(e->forward, seq->pool_slot);
    float tokens = (float)seq->params.prompt_tokens;
    bool divided = seq->params.pooling == KVA_POOLING_LAST || seq->pool_divided;
    for (uint32_t i = 0; i < e->config->hidden_size && !divided; i++)
        vector[i] /= tokens;
    seq->pool_divided = true;
    return vector;
}
