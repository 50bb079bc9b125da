/* skew.h - a model's skew: for each layer and KV head the orthogonal matrix A after which few
 * columns of queries and keys give nearly the whole of their product (InfiniGen, OSDI 24, 4.2).
 *
 *     q . k = (q A) . (k A), and of that sum the first r columns have the most
 *
 * It is made of a text by `kvahead skew` (engine/calibrate) and kept in a file: kvahead.skew in the
 * model's folder, MODEL.gguf.skew beside a model that is one file, or wherever the user says
 * (packed_file.h). A is applied to queries and keys as attention has them: after the norms of heads
 * and after rotary embedding, which a matrix in the weights could not be carried through.
 *
 *     [header, a page: kind, version, sums][struct of 64 bytes: shape, origin]
 *     [basis, fp32][energy, fp32]                                     as in struct kva_skew
 *
 * A file counts if it was made of these weights: of the same files (inode, size, times), or else of
 * files with the same checksum. One that does not count is no reason not to serve the model: what
 * is wrong with it is kept, and said to whoever asks for a policy that wants it.
 *
 * Thread rule: loaded by the thread that opened the model, before anything uses it; immutable
 * afterwards. */
#ifndef KVA_ENGINE_MODEL_SKEW_H
#define KVA_ENGINE_MODEL_SKEW_H

#include "engine/model/model.h"

/* Which directions A has: engine/calibrate/directions.h. */
enum kva_skew_method {
    KVA_SKEW_QUERIES,  /* those in which the queries are large: the paper's */
    KVA_SKEW_BALANCED, /* those in which the products are */
    KVA_SKEW_SUM,      /* those in which queries or keys are */
    KVA_SKEW_METHOD_COUNT,
};

/* "queries", ... */
const char *kva_skew_method_name(enum kva_skew_method method);

struct kva_skew {
    uint32_t layers, kv_heads, head_dim;
    enum kva_skew_method method;
    uint64_t tokens; /* of the text that it was made of */
    /* [layers][kv_heads][head_dim: of k][head_dim: columns]: orthogonal, columns by descending
     * share of the product */
    float *basis;
    /* [layers][kv_heads][head_dim]: of the columns as the model has them; 0 or more */
    float *energy;
    /* [layers][kv_heads][head_dim]: those columns by descending energy, ties by their number */
    uint32_t *columns;
};

/* Empty: zeros, and columns in their order. The limits are those of a model's configuration.
 * Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_skew_create(uint32_t layers, uint32_t kv_heads,
                                               uint32_t head_dim, struct kva_skew **ret,
                                               struct kva_err *err);

/* NULL is allowed. */
void kva_skew_destroy(struct kva_skew *skew);

/* Where A of a layer and KV head begins, or what else the skew has of each. */
static inline size_t kva_skew_basis_at(const struct kva_skew *skew, uint32_t layer, uint32_t head)
{
    return ((size_t)layer * skew->kv_heads + head) * skew->head_dim * skew->head_dim;
}

static inline size_t kva_skew_columns_at(const struct kva_skew *skew, uint32_t layer, uint32_t head)
{
    return ((size_t)layer * skew->kv_heads + head) * skew->head_dim;
}

/* `columns` from `energy`. */
void kva_skew_sort(struct kva_skew *skew);

/* The `count` planes of a KV head with the most energy, largest first, of equal ones the leading: the
 * two columns of each that rotary embedding turns into each other, or, behind the rotated ones,
 * neighbours. firsts, seconds [count]; count is at most half of head_dim. */
void kva_skew_planes(const struct kva_skew *skew, uint32_t rotary_dim, uint32_t layer,
                     uint32_t head, uint32_t *firsts, uint32_t count, uint32_t *seconds);

struct kva_skew_file_params {
    const char *path;               /* the model's folder or file */
    const char *file;               /* the skew's, if not beside it; NULL: there */
    uint32_t threads;               /* 0: one per usable core */
    const atomic_bool *cancelled;   /* true: stop, with KVA_ECANCELLED; or NULL */
    kva_model_progress_fn progress; /* of reading weights, where that is needed; or NULL */
    void *progress_opaque;
};

/* Looks for the model's skew: model->skew is it, or NULL and model->skew_err says why there is none
 * (KVA_ENOTFOUND: no file; KVA_EFORMAT: one that does not count). Fails, which is for the caller to
 * end with: KVA_ECANCELLED, KVA_ENOMEM, KVA_EINVAL (threads), and for a file that the user named,
 * whatever is wrong with it. */
KVA_MUST_CHECK enum kva_status kva_skew_load(struct kva_model *model,
                                             const struct kva_skew_file_params *params,
                                             struct kva_err *err);

/* Writes the file, or replaces it: at once, under a lock. Fails: KVA_EIO (err names the file and
 * says where else it could be), KVA_ENOMEM, KVA_ECANCELLED. */
KVA_MUST_CHECK enum kva_status kva_skew_write(const struct kva_skew *skew,
                                              const struct kva_model *model,
                                              const struct kva_skew_file_params *params,
                                              struct kva_err *err);

/* Where kva_skew_write would write. */
void kva_skew_path(const struct kva_skew_file_params *params, char *out, size_t size);

/* What is behind a file's header, checked: its lengths, the shape, that its numbers are finite.
 * Fails: KVA_EFORMAT, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_skew_parse(const void *data, size_t bytes,
                                              const struct kva_model_config *config,
                                              struct kva_skew **ret, struct kva_err *err);

#endif
