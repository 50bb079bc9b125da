/* limits.h - every maximum that opening a model enforces, in one table.
 *
 * A checkpoint is hostile input: these bounds keep the memory and the time that reading its
 * descriptions may cost small against its weights, with room above every published model. */
#ifndef KVA_ENGINE_MODEL_LIMITS_H
#define KVA_ENGINE_MODEL_LIMITS_H

#include "engine/model/model.h"

/* JSON, whatever the file. Published headers nest 3 deep, configs 4. cJSON needs at most 48
 * characters of a number, and about 100 bytes for each value. */
#define KVA_MODEL_JSON_DEPTH_MAX         32u
#define KVA_MODEL_JSON_NUMBER_CHARS_MAX  48u
#define KVA_MODEL_JSON_VALUES_MAX        (2u << 20)

#define KVA_MODEL_CONFIG_BYTES_MAX       (1u << 20)  /* largest published: a few 10 KB */
#define KVA_MODEL_INDEX_BYTES_MAX        (16u << 20) /* about 90 bytes per tensor */

#define KVA_SAFETENSORS_HEADER_BYTES_MAX (32u << 20) /* about 120 bytes per tensor */
#define KVA_SAFETENSORS_TENSORS_MAX      131072u
#define KVA_SAFETENSORS_RANK_MAX         8u
#define KVA_SAFETENSORS_NAME_BYTES_MAX   256u

#define KVA_MODEL_SHARDS_MAX             1024u
#define KVA_MODEL_FILE_NAME_MAX          128u /* bytes of a shard's name */

#define KVA_MODEL_VOCAB_MAX              (1u << 24)
#define KVA_MODEL_HIDDEN_MAX             (1u << 17)
#define KVA_MODEL_INTERMEDIATE_MAX       (1u << 20)
#define KVA_MODEL_HEADS_MAX              1024u
#define KVA_MODEL_HEAD_DIM_MAX           1024u
#define KVA_MODEL_CONTEXT_MAX            (1u << 24) /* positions stay exact in a float */

/* Bytes that one prefetch call asks for, and the distance between two progress reports. */
#define KVA_MODEL_PREFETCH_BYTES (32u << 20)

#endif
