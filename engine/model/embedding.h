/* embedding.h - what a checkpoint's files say of vectors of texts: sentence-transformers'
 * modules.json, and the config.json of the pooling that it names.
 *
 * The modules are what becomes of the last layer's rows, one after the other. A pooling, and then a
 * normalisation or none, are what is implemented; whatever else there is makes the vectors others,
 * which is no reason to refuse the model: it is told whoever asks for vectors and does not say how
 * they are pooled.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_ENGINE_MODEL_EMBEDDING_H
#define KVA_ENGINE_MODEL_EMBEDDING_H

#include "engine/model/json.h"
#include "engine/model/model.h"

/* Of the files in the open directory; all defaults if there is no modules.json. Files that are wrong
 * are lacking, too. Fails: KVA_EIO, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_embedding_read(int dir_fd, struct kva_embedding_defaults *ret,
                                                  struct kva_err *err);

/* A list of modules: fills in all but how is pooled. ret_pooling is the folder of the pooling, a
 * plain name; "": there is none. Fails: KVA_EFORMAT (err names file and field). */
KVA_MUST_CHECK enum kva_status kva_embedding_modules(const cJSON *list,
                                                     struct kva_embedding_defaults *ret,
                                                     char *ret_pooling, size_t size,
                                                     struct kva_err *err);

/* A pooling's config.json: fills in how, and what is lacking for it. Fails: KVA_EFORMAT. */
KVA_MUST_CHECK enum kva_status kva_embedding_pooling(const struct kva_fields *config,
                                                     struct kva_embedding_defaults *ret);

#endif
