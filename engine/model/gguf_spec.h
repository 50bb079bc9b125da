/* gguf_spec.h - the metadata of a GGUF file, read into kva_model_config: what config.h does for
 * config.json, of which it uses all but the names.
 *
 * Architectures are rows of a table as in family.c. Every field of the architecture is known, and
 * either read or checked to say nothing; one that is not known is refused by name, because it may
 * change what the model says. So is a tensor that no row has (bind.h).
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_ENGINE_MODEL_GGUF_SPEC_H
#define KVA_ENGINE_MODEL_GGUF_SPEC_H

#include "engine/model/config.h"
#include "engine/model/files.h"

/* The first of `files` has the metadata, all have tensors. On failure *ret is untouched; on success
 * kva_model_config_finish(&ret->config) frees. Fails: KVA_EFORMAT, KVA_EUNSUPPORTED, KVA_ENOMEM;
 * err names file and key. */
KVA_MUST_CHECK enum kva_status kva_gguf_spec_read(const struct kva_model_files *files,
                                                  struct kva_model_spec *ret, struct kva_err *err);

#endif
