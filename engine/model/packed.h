/* packed.h - a model's matrices in 2 to 8 bits (kernels/packed.h): those of a GGUF file's blocks as
 * they are, in another order, or int8 and int4 made of any checkpoint.
 *
 * Packed are the matrices of the layers, the output matrix, and the embedding where it is the output
 * matrix or quantised in the file. Positions, norms and biases stay as the checkpoint has them. The
 * output matrix of int4 is in int8, which is where four bits cost most.
 *
 * What was computed for long, int8 and int4, is kept in a file and mapped by all who use it. It lies
 * in the model's folder, or in another that the operator names, where it carries the model's name:
 *
 *   [header, a page: version, layout, sums][matrix][matrix]...    in kva_model's order
 *
 * It counts if it was made of these weights: of the same files (inode, size, times), or else of
 * files with the same checksum; and if its own checksum is right, which is looked at each time.
 * Otherwise it is made anew beside the old one and renamed into its place. Processes that start
 * together wait for the one that makes it, though not for ever. Where it cannot be kept a warning
 * says why, and the matrices are in this process's own memory. GGUF's blocks are put into order in a
 * second or two, at every start, and are in such memory too unless a folder is named.
 *
 * Whatever the source was, its pages leave this process as soon as a matrix is made of them.
 *
 * Thread rule: called by the thread that opened the model, before anything uses it. */
#ifndef KVA_ENGINE_MODEL_PACKED_H
#define KVA_ENGINE_MODEL_PACKED_H

#include "engine/model/model.h"

/* What matrices become: --weights. */
enum kva_model_weights {
    KVA_WEIGHTS_AUTO, /* what the files have: blocks of GGUF, or numbers in 16 or 32 bits */
    KVA_WEIGHTS_BF16, /* not packed: blocks are decoded, numbers stay as they are */
    KVA_WEIGHTS_INT8,
    KVA_WEIGHTS_INT4,
};

/* "auto", ... */
const char *kva_model_weights_name(enum kva_model_weights weights);

struct kva_model_pack_params {
    enum kva_model_weights weights;
    const char *path;       /* the model's folder or file */
    const char *cache_path; /* another folder for the file, made if it is not there; NULL: none */
    uint32_t threads;       /* 0: one per usable core; the file does not depend on it */
    uint32_t lock_wait_ms;  /* for another process that makes the file; then it is not kept */
    const atomic_bool *cancelled;   /* true: stop at the next piece, with KVA_ECANCELLED; or NULL */
    kva_model_progress_fn progress; /* may be NULL; called by this thread */
    void *progress_opaque;
};

/* Where a model's packed matrices are. */
struct kva_model_packed {
    enum kva_model_weights weights;
    void *map; /* read-only; header first */
    size_t map_bytes;
    uint32_t watch;  /* of the map: base/mapped.h */
    bool made;       /* by this process, just now */
    bool shared;     /* with whoever maps `path`; else it is memory of this process */
    char path[1024]; /* of the file, where it is or would be; "": there is to be none */
};

/* Packs the model's matrices: changes its tensors, weight_bytes and `packed` (which stays NULL where
 * nothing is to be packed), and decodes what was left undecoded for it. Fails:
 * KVA_EFORMAT (a weight is not finite, or too large; err names the matrix), KVA_ENOMEM, KVA_EINVAL
 * (threads), KVA_ECANCELLED.
 * That the file cannot be read or kept is no failure. */
KVA_MUST_CHECK enum kva_status kva_model_pack(struct kva_model *model,
                                              const struct kva_model_pack_params *params,
                                              struct kva_err *err);

/* For kva_model_close; NULL is allowed. */
void kva_model_packed_close(struct kva_model_packed *packed);

#endif
