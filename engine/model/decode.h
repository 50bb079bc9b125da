/* decode.h - tensors that the engine does not use as the file has them: those of a GGUF file that
 * are quantised, which become bf16, those whose rows stand in another order, and vectors.
 *
 * A tensor is planned when it is bound: its memory is reserved, and costs nothing until it is
 * decoded. That happens for all at once, over all threads, when the model is opened, or for one
 * after the other where int8 or int4 is made of them (packed.h), which then drops them. Blocks that
 * are packed as they are need no decoding: the plan says where they lie.
 *
 * Thread rule: the thread that opens the model. */
#ifndef KVA_ENGINE_MODEL_DECODE_H
#define KVA_ENGINE_MODEL_DECODE_H

#include "base/pool.h"
#include "engine/model/model.h"
#include "gguf/format.h"

/* A matrix [rows, cols], or a vector with rows = 1. */
struct kva_model_decode {
    const uint8_t *from;
    const struct kva_gguf_format *format;
    uint32_t rows, cols;
    /* Not 0: row 2 i + h of each head of so many is to become row h * head_dim / 2 + i: pairs that
     * RoPE rotates together stand side by side in the file, half a head apart here. */
    uint32_t head_dim;
    void *to; /* pages of its own, until the model is closed or drops it */
    size_t to_bytes;
    size_t released_bytes;
    bool done; /* or all of it released */
};

/* What a format's numbers become. */
enum kva_dtype kva_model_decoded_dtype(const struct kva_gguf_format *format);

/* Plans `what`, whose `to` and to_bytes are filled in; *ret_data is where the tensor will be. Fails:
 * KVA_EUNSUPPORTED (a quantised vector is to be reordered), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_model_decode_plan(struct kva_model *model,
                                                     const struct kva_model_decode *what,
                                                     const void **ret_data, struct kva_err *err);

/* The plan whose memory has `data`; NULL: none. */
const struct kva_model_decode *kva_model_decode_find(const struct kva_model *model,
                                                     const void *data);

/* The row of the file that row `row` of the plan's matrix is. */
uint32_t kva_model_decode_row_of(const struct kva_model_decode *plan, uint32_t row);

/* Decodes the plan whose memory has `data`, if there is one and it is not decoded yet. */
void kva_model_decode_one(struct kva_model *model, const void *data, struct kva_pool *pool);

/* Decodes what is not there yet. `params` for progress and cancelling. Fails: KVA_ECANCELLED. */
KVA_MUST_CHECK enum kva_status kva_model_decode_all(struct kva_model *model,
                                                    const struct kva_model_open_params *params,
                                                    struct kva_pool *pool, struct kva_err *err);

/* Rows [first, end) of the file's are not read again: their pages go. */
void kva_model_decode_forget_rows(const struct kva_model_decode *plan, uint32_t first,
                                  uint32_t end);

/* `bytes` at `data`, of a plan or of a mapped file, are not needed any more. When that is so for all
 * of a plan its memory goes, and so do the pages of the file that it was made of. */
void kva_model_decode_release(struct kva_model *model, const void *data, size_t bytes);

void kva_model_decodes_finish(struct kva_model *model);

#endif
