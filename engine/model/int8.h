/* int8.h - a model's matrices in 8 bits: made once, kept in a file, shared by all who map it.
 *
 * Quantised are the matrices of the layers and the output matrix, by kernels/int8.h. Embeddings,
 * which are read a row at a time, positions, norms and biases stay as the checkpoint has them.
 *
 * The file lies in the model's folder, or in another that the operator names, where it carries the
 * model's name:
 *
 *   [header, a page: version, layout, sums][matrix][matrix]...    in kva_model's order
 *
 * It counts if it was made of these weights: of the same files (inode, size, times), or else of
 * files with the same checksum; and if its own checksum is right, which is looked at each time.
 * Otherwise it is made anew beside the old one and renamed into its place. Processes that start
 * together wait for the one that makes it, though not for ever. Where it cannot be kept a warning says why, and the
 * matrices are in this process's own memory.
 *
 * Thread rule: called by the thread that opened the model, before anything uses it. */
#ifndef KVA_ENGINE_MODEL_INT8_H
#define KVA_ENGINE_MODEL_INT8_H

#include "engine/model/model.h"

struct kva_model_int8_params {
    const char *path;       /* the model's folder or file */
    const char *cache_path; /* another folder for the file, made if it is not there; NULL: none */
    uint32_t threads;       /* 0: one per usable core; the file does not depend on it */
    uint32_t lock_wait_ms;  /* for another process that makes the file; then it is not kept */
    const atomic_bool *cancelled;   /* true: stop at the next piece, with KVA_ECANCELLED; or NULL */
    kva_model_progress_fn progress; /* may be NULL; called by this thread */
    void *progress_opaque;
};

/* Where a model's matrices in int8 are. */
struct kva_model_int8 {
    void *map; /* read-only; header first */
    size_t map_bytes;
    uint32_t watch;  /* of the map: base/mapped.h */
    bool made;       /* by this process, just now */
    bool shared;     /* with whoever maps `path`; else it is memory of this process */
    char path[1024]; /* of the file, where it is or would be */
};

/* Puts the model's matrices into int8: changes its tensors, weight_bytes and int8, and
 * decodes what was left undecoded for it. Fails:
 * KVA_EFORMAT (a weight is not finite; err names the tensor), KVA_ENOMEM, KVA_EINVAL (threads),
 * KVA_ECANCELLED.
 * That the file cannot be read or kept is no failure. */
KVA_MUST_CHECK enum kva_status kva_model_quantise(struct kva_model *model,
                                                  const struct kva_model_int8_params *params,
                                                  struct kva_err *err);

/* For kva_model_close; NULL is allowed. */
void kva_model_int8_close(struct kva_model_int8 *int8);

#endif
