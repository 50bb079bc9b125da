/* files.h - the files of a checkpoint's weights, mapped: one model.safetensors, or the shards that
 * model.safetensors.index.json names, or the parts of a GGUF model (gguf_files.h).
 *
 * Shards are found by plain names inside the model's folder (symbolic links are followed: download
 * caches are made of them). Mappings are read-only and watched (base/mapped.h): a file that is cut
 * while it is mapped reads as zeros from there on, and kva_model_check says so. A model's folder
 * must not be written to all the same: what is written over is read as it is then.
 *
 * Thread rule: opened by one thread; immutable afterwards. */
#ifndef KVA_ENGINE_MODEL_FILES_H
#define KVA_ENGINE_MODEL_FILES_H

#include "engine/model/safetensors.h"
#include "gguf/gguf.h"

struct kva_model_shard {
    const char *name; /* borrowed from the index, or a literal */
    void *map;
    size_t map_bytes;
    uint32_t watch; /* of the map: base/mapped.h */
    uint64_t stamp; /* of inode, size and times: another file, or this one changed, has another */
    struct kva_safetensors table; /* of a GGUF file: made from gguf's */
    struct kva_gguf gguf;         /* data NULL: it is none */
};

/* In which shard a tensor is. */
struct kva_model_place {
    const char *tensor;
    uint32_t shard;
};

struct kva_model_files {
    struct kva_model_shard *shards;
    size_t shard_count;
    struct kva_model_place *places; /* sorted by tensor name; NULL for a single file */
    size_t place_count;
    struct kva_arena arena; /* the index's names */
};

/* Maps the weights in the open directory. Fails: KVA_ENOTFOUND (names what is missing),
 * KVA_EFORMAT, KVA_EIO, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_model_files_open(int dir_fd, struct kva_model_files **ret,
                                                    struct kva_err *err);

/* Maps the file shard->name in the open directory, watched, and takes its stamp. Fails as above. */
KVA_MUST_CHECK enum kva_status kva_model_shard_map(int dir_fd, struct kva_model_shard *shard,
                                                   struct kva_err *err);

/* NULL is allowed. */
void kva_model_files_close(struct kva_model_files *files);

/* The tensor and its shard; *ret_entry is NULL if the checkpoint has none of that name. Fails:
 * KVA_EFORMAT if the index promises a tensor that its shard does not have. */
KVA_MUST_CHECK enum kva_status kva_model_files_find(const struct kva_model_files *files,
                                                    const char *name,
                                                    const struct kva_safetensors_entry **ret_entry,
                                                    const struct kva_model_shard **ret_shard,
                                                    struct kva_err *err);

/* Bytes of all files. */
uint64_t kva_model_files_bytes(const struct kva_model_files *files);

/* Fails: KVA_EIO when a part of a file was lost since it was mapped. */
KVA_MUST_CHECK enum kva_status kva_model_files_check(const struct kva_model_files *files,
                                                     struct kva_err *err);

/* Reads every page into memory, with the params' progress. Fails: KVA_EIO, KVA_ECANCELLED. */
KVA_MUST_CHECK enum kva_status kva_model_files_prefetch(const struct kva_model_files *files,
                                                        const struct kva_model_open_params *params,
                                                        struct kva_err *err);

#endif
