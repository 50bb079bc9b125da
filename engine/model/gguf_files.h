/* gguf_files.h - the parts of a GGUF model, mapped, as kva_model_files.
 *
 * A split model's parts are NAME-00001-of-0000N.gguf and so on, beside each other; the first is the
 * one that is named, and has the metadata.
 *
 * Thread rule: as files.h. */
#ifndef KVA_ENGINE_MODEL_GGUF_FILES_H
#define KVA_ENGINE_MODEL_GGUF_FILES_H

#include "engine/model/files.h"

/* Fails: KVA_ENOTFOUND (names the parts that are missing), KVA_EFORMAT, KVA_EUNSUPPORTED, KVA_EIO,
 * KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_gguf_files_open(const char *path, struct kva_model_files **ret,
                                                   struct kva_err *err);

/* Appends what the file says of itself: lines of "name value", printable. */
void kva_gguf_files_describe(const struct kva_model_files *files, struct kva_buf *out);

/* Fills the tables of a part that lies at shard->map. The owner finishes them, on failure too. */
KVA_MUST_CHECK enum kva_status kva_gguf_shard_read(struct kva_model_shard *shard,
                                                   struct kva_err *err);

#endif
