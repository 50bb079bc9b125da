/* fold.h - a checkpoint whose queries and keys come skewed out of their matrices (InfiniGen, 4.2):
 *
 *     q A = x (W_q A) + b_q A        k A = x (W_k A) + b_k A
 *
 * so that q . k is what it was, and the leading columns of both are those that matter. That holds
 * where nothing stands between matrix and product: models with rotary positions, or with norms of
 * heads, are refused; theirs are skewed where they are used (skew.h).
 *
 * The new folder is a copy of the model's, but for these matrices and biases, which are rounded to
 * the format that they have. What kvahead itself keeps beside weights is left out. It is made under
 * the name OUT.new, which its maker holds locked, and renamed when all of it is there.
 *
 * Thread rule: one thread. */
#ifndef KVA_ENGINE_MODEL_FOLD_H
#define KVA_ENGINE_MODEL_FOLD_H

#include "engine/model/skew.h"

struct kva_fold_params {
    const char *path; /* the model's folder */
    const char *out_path;
    const struct kva_skew *skew;
    const atomic_bool *cancelled; /* true: stop, with KVA_ECANCELLED, and leave nothing; or NULL */
    kva_model_progress_fn progress; /* in bytes; or NULL */
    void *progress_opaque;
};

/* Whether the model can be folded, to out_path: to be asked before the work. Fails: KVA_EINVAL
 * (there is something), KVA_EUNSUPPORTED (rotary positions, norms of heads, matrices that are not in
 * the files as they are used; a GGUF file). */
KVA_MUST_CHECK enum kva_status kva_fold_check(const struct kva_model *model, const char *path,
                                              const char *out_path, struct kva_err *err);

/* Writes the folder. The model is opened from `path`, with matrices as its files have them. Fails:
 * as kva_fold_check; KVA_EINVAL (what an attempt before may have left is somebody's), KVA_EBUSY (another process writes
 * it), KVA_EIO (err names the file), KVA_ENOMEM, KVA_ECANCELLED. */
KVA_MUST_CHECK enum kva_status kva_fold_write(const struct kva_model *model,
                                              const struct kva_fold_params *params,
                                              struct kva_err *err);

#endif
