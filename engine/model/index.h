/* index.h - model.safetensors.index.json: which shard holds which tensor.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_ENGINE_MODEL_INDEX_H
#define KVA_ENGINE_MODEL_INDEX_H

#include "engine/model/files.h"
#include "engine/model/json.h"

/* Whether a name that a file gives is one of the model's own folder. */
bool kva_model_is_plain_name(const char *name);

/* Fills shards (names only), places and arena of *files from the index. Shard names must be plain
 * file names, so that an index cannot reach outside its folder. `file` names the index in messages.
 * On failure the owner closes *files. Fails: KVA_EFORMAT, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_model_index_parse(const cJSON *index, const char *file,
                                                     struct kva_model_files *files,
                                                     struct kva_err *err);

#endif
