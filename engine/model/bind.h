/* bind.h - the tensors of a family, found in the files and checked against the config.
 *
 * Thread rule: called by the thread that opens the model. */
#ifndef KVA_ENGINE_MODEL_BIND_H
#define KVA_ENGINE_MODEL_BIND_H

#include "engine/model/config.h"
#include "engine/model/files.h"

/* Fills model's tensors, layers, copies, decodes, weight_bytes and parameter_count, and settles
 * config.tied_embeddings, config.dtype and headless where config.json did not. model->config is set
 * already. A checkpoint of a base class, whose names lack what those of the whole model begin with,
 * is one like others.
 * On failure the owner frees model->layers, copies and decodes. A tensor of a GGUF file that
 * nothing takes is refused, one of a checkpoint is warned of. Fails: KVA_EFORMAT (names the tensor and
 * both shapes), KVA_EUNSUPPORTED (names the tensor and its format), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_model_bind(struct kva_model *model,
                                              const struct kva_model_spec *spec,
                                              const struct kva_model_files *files,
                                              struct kva_err *err);

/* Which tensors of its family's table a model has, and their sizes. */
bool kva_model_needs(const struct kva_model_spec *spec, enum kva_tensor_need need);
void kva_model_dims(const struct kva_model_spec *spec, const struct kva_model_config *config,
                    uint32_t ret[KVA_DIM_COUNT]);

#endif
