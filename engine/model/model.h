/* model.h - a model, opened: what it is (config) and where its tensors lie (mapped files). It is a
 * folder with a Hugging Face checkpoint, or a GGUF file.
 *
 * Families are data: family.c and gguf_family.c say what each calls its fields and tensors, config.c
 * turns any config.json or GGUF metadata into the one struct below, and the forward pass reads only
 * this header. Files are
 * hostile input: every size, offset and count is checked against the file and against the limits in
 * limits.h before it is used.
 *
 * Thread rule: opened by one thread; immutable afterwards. Tensors stay mapped until
 * kva_model_close. */
#ifndef KVA_ENGINE_MODEL_MODEL_H
#define KVA_ENGINE_MODEL_MODEL_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

#include <stdatomic.h>
#include <stdbool.h>

#define KVA_MODEL_EOS_MAX    16
#define KVA_MODEL_LAYERS_MAX 512

struct kva_rope_config {
    uint32_t rotary_dim; /* of each head, from its first element; 0: no rotary embedding */
    float factor;        /* multiplies cos and sin (attention factor), usually 1 */
    float *inv_freq;     /* [rotary_dim / 2], scaling (linear, llama3, yarn) applied */
    bool scaled;         /* the files say how, be it `dynamic`: the context follows from it */
};

/* One model's shape and arithmetic, whatever its family. */
struct kva_model_config {
    char model_type[32]; /* as in config.json */
    uint32_t vocab_size;
    uint32_t hidden_size;
    uint32_t intermediate_size;
    uint32_t layer_count;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t context_max; /* max_position_embeddings, after scaling */
    enum kva_norm_kind norm;
    float norm_eps;
    float norm_weight_offset; /* 0, or 1 (Gemma) */
    enum kva_activation activation;
    bool gated_mlp;         /* down(act(gate x) * up x), else down(act(up x)) */
    bool qk_norm;           /* RMS norm of each head's q and k before RoPE (Qwen3) */
    bool parallel_residual; /* the MLP sees the stream as attention did, not what that added */
    bool tied_embeddings;
    float embed_scale;  /* 1, or sqrt(hidden_size) (Gemma) */
    float attend_scale; /* 1 / sqrt(head_dim), usually */
    struct kva_rope_config rope;
    uint32_t *layer_window; /* [layer_count] sliding window: a token sees so many, itself included;
                               0: full attention */
    enum kva_dtype dtype;   /* torch_dtype: what 16-bit format the KV cache takes by default */
    uint32_t eos_ids[KVA_MODEL_EOS_MAX]; /* generation_config.json, else config.json,
                                            and what kva_model_config_add_eos added */
    uint32_t eos_count;
    int64_t bos_id; /* -1: none */
};

/* A tensor in a mapped file, or in the model's own memory where the file has it fused with others
 * row by row, quantised, or in another order of rows: row-major [rows, cols]; a vector has rows = 1. data NULL: the model has no such
 * tensor. */
struct kva_tensor {
    const void *data;
    enum kva_dtype dtype;
    uint32_t rows;
    uint32_t cols;
};

struct kva_layer_tensors {
    struct kva_tensor attn_norm, attn_norm_bias;
    struct kva_tensor q, q_bias, k, k_bias, v, v_bias, o, o_bias;
    struct kva_tensor q_norm, k_norm;
    struct kva_tensor mlp_norm, mlp_norm_bias;
    struct kva_tensor gate, gate_bias, up, up_bias, down, down_bias;
};

/* Sampling defaults of generation_config.json; a request's own values win. Absent: NAN or -1. */
struct kva_generation_defaults {
    double temperature;
    double top_p;
    double min_p;
    double repetition_penalty;
    int32_t top_k;
};

enum kva_model_pooling {
    KVA_MODEL_POOLING_UNSAID,
    KVA_MODEL_POOLING_MEAN,
    KVA_MODEL_POOLING_LAST,
    KVA_MODEL_POOLING_OTHER, /* that is not implemented */
};

/* What a model's files say of vectors of texts (embedding.h; a GGUF file's pooling_type); a
 * request's own values win. */
struct kva_embedding_defaults {
    enum kva_model_pooling pooling;
    bool raw;        /* vectors keep their length; else they are unit vectors */
    char lacks[224]; /* of KVA_MODEL_POOLING_OTHER: what is not implemented, and where it is said */
};

struct kva_model_decode;
struct kva_skew;

/* Tensors that are decoded into memory of their own: decode.h. */
struct kva_model_decodes {
    struct kva_model_decode *items;
    size_t count, capacity;
};

struct kva_model {
    struct kva_model_config config;
    struct kva_generation_defaults generation;
    struct kva_embedding_defaults embedding;
    struct kva_tensor embed;     /* [vocab, hidden] */
    struct kva_tensor lm_head;   /* [vocab, hidden]; equals embed when tied, and when headless */
    struct kva_tensor positions; /* learned positions [context_max, hidden], or absent */
    struct kva_tensor final_norm, final_norm_bias;
    struct kva_layer_tensors *layers; /* [layer_count] */
    size_t weight_bytes;              /* all tensors used, tied ones once */
    size_t copied_bytes;              /* of these: in `copies` or `decodes`, not in the mapping */
    uint64_t parameter_count;
    bool headless; /* it has no output matrix, and the embedding is none: what comes behind the last
                      layer is what it is for, and what its logits say is nothing */
    struct kva_model_files *files;   /* mappings */
    struct kva_model_packed *packed; /* matrices of 2 to 8 bits (packed.h); NULL: none */
    struct kva_skew *skew;           /* of queries and keys (skew.h); NULL: none, */
    struct kva_err skew_err;         /* because of this; KVA_OK: nobody has looked */
    struct kva_arena copies;         /* fused tensors, taken apart */
    struct kva_model_decodes decodes;
};

/* Progress of opening: called with bytes checked or read so far. May be NULL. */
typedef void (*kva_model_progress_fn)(void *opaque, uint64_t done_bytes, uint64_t total_bytes);

struct kva_model_open_params {
    const char *path; /* a folder, or a GGUF file: of a split one the first part */
    uint32_t threads; /* to decode with; 0: one per usable core */
    bool packed;      /* kva_model_pack comes next: what it makes matrices of stays undecoded */
    kva_model_progress_fn progress;
    void *progress_opaque;
    const atomic_bool *cancelled; /* true: stop at the next piece, with KVA_ECANCELLED; or NULL */
    bool prefetch; /* read every page before returning, so that the first request does not wait for
                      the disk */
};

/* Opens config.json, generation_config.json and modules.json (optional), and model.safetensors or its
 * sharded index; or a GGUF file, whose quantised tensors are decoded unless kva_model_pack comes next.
 * Fails: KVA_ENOTFOUND, KVA_EFORMAT (err names file, field or tensor, and both numbers),
 * KVA_EUNSUPPORTED (err names the architecture or feature), KVA_EIO, KVA_ECANCELLED, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_model_open(const struct kva_model_open_params *params,
                                              struct kva_model **ret, struct kva_err *err);

/* KVA_ECANCELLED once *cancelled is set; NULL: never. */
KVA_MUST_CHECK enum kva_status kva_model_check_cancelled(const atomic_bool *cancelled,
                                                         struct kva_err *err);

/* Whether all weights are still there: fails with KVA_EIO (err names the file) when a part of one
 * was read that its file had no more, or the disk could not give. What was computed since the last
 * call is then worth nothing. Any thread; a handful of loads. */
KVA_MUST_CHECK enum kva_status kva_model_check(const struct kva_model *model, struct kva_err *err);

/* Appends to `out` which files of a model the folder lacks, for people; nothing if it has all, or if
 * it is none. */
void kva_model_folder_lacks(const char *path, struct kva_buf *out);

/* One more id that ends a text; not if it is there already, has no embedding (-1 has none), or
 * KVA_MODEL_EOS_MAX are there. */
void kva_model_config_add_eos(struct kva_model_config *config, int64_t id);

/* Bytes of one token's keys and values in 16 bits, all layers. */
size_t kva_model_kv_bytes_per_token(const struct kva_model_config *config);

/* Appends what a person wants to know of a model: lines of "name value", sizes in binary units. */
void kva_model_describe(const struct kva_model *model, struct kva_buf *out);

/* NULL is allowed. */
void kva_model_close(struct kva_model *model);

#endif
