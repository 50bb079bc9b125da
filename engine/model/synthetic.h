/* synthetic.h - checkpoints with weights of noise: a model of any shape for measurements, without a
 * download.
 *
 * Time and memory of serving depend on a model's shape and not on what its weights say. The tensors
 * are those that the family's table (family.h) asks for, so every family that can be opened can be
 * made. Deviations are those of a fresh initialisation: matrices 1 / sqrt(inputs), those that add
 * to the residual stream less by sqrt(2 layers), norms 1; activations stay of the order of one.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_ENGINE_MODEL_SYNTHETIC_H
#define KVA_ENGINE_MODEL_SYNTHETIC_H

#include "engine/model/model.h"

/* Where config.json puts the special tokens, counted from the end of the vocabulary: as the
 * synthetic tokenizer (text/tokenizer/synthetic.h) has them; cli/make_model.c checks that. */
#define KVA_SYNTHETIC_BOS_FROM_END 4u
#define KVA_SYNTHETIC_EOS_FROM_END 3u

/* config.json of a published model's shape ("llama3-8b"); NULL: none of that name. */
const char *kva_shape_config(const char *name);

/* "tinyllama-1.1b, llama2-7b, ..." */
void kva_shape_list(struct kva_buf *out);

struct kva_synthetic_params {
    const char *dir_path;    /* made if it is not there; a folder with a config.json is refused */
    const char *config_json; /* what config.json shall say, but for the fields below */
    uint64_t seed;
    uint32_t layer_count; /* 0: as config_json has it */
    uint32_t context_max; /* 0: as config_json has it, and at least 65536 where positions are
                             rotary and so cost nothing */
    uint64_t shard_bytes; /* of tensors in a file at most, one tensor at least; 0: 4 GiB */
    uint32_t threads;     /* 0: one per usable core; the files do not depend on it */
    kva_model_progress_fn progress; /* may be NULL; called by this thread */
    void *progress_opaque;
};

struct kva_synthetic_info {
    uint32_t vocab_size;
    uint32_t shard_count;
    uint64_t weight_bytes;
    uint64_t parameter_count;
};

/* Writes the weights and, last, config.json. Fails: KVA_EINVAL (the folder has a model),
 * KVA_EFORMAT and KVA_EUNSUPPORTED (config_json), KVA_EIO (names the file), KVA_ENOMEM. What was
 * written before a failure stays. */
KVA_MUST_CHECK enum kva_status kva_synthetic_write(const struct kva_synthetic_params *params,
                                                   struct kva_synthetic_info *ret,
                                                   struct kva_err *err);

#endif
