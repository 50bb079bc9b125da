/* gguf_family.h - the architectures that can be opened from GGUF files, as rows like family.h's:
 * same features, other names.
 *
 * Thread rule: constant data. */
#ifndef KVA_ENGINE_MODEL_GGUF_FAMILY_H
#define KVA_ENGINE_MODEL_GGUF_FAMILY_H

#include "engine/model/family.h"

/* Names of fields that follow from others, or from which tensors there are. */
#define KVA_GGUF_ATTENTION_BIAS "(attention bias)"
#define KVA_GGUF_MLP_BIAS       "(feed-forward bias)"
#define KVA_GGUF_ROTARY_PART    "(rotated part of a head)"

/* NULL: no such architecture. */
const struct kva_family *kva_gguf_family_find(const char *architecture);

/* "llama, qwen2, ..." */
void kva_gguf_family_list(struct kva_buf *out);

#endif
