/* fuzz_model_config.c - config.json, generation_config.json, model.safetensors.index.json and a
 * pooling's config.json, from any bytes; or modules.json.
 *
 * The same text serves as all of them: the fields of each may stand in one object, but for
 * modules.json, which is a list. What parses must
 * be within the limits that the forward pass relies on. */
#include "tests/fuzz/fuzz.h"

#include "engine/model/config.h"
#include "engine/model/embedding.h"
#include "engine/model/index.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void require(bool condition)
{
    if (!condition)
        __builtin_trap();
}

static void check_config(const struct kva_model_config *config)
{
    require(config->vocab_size >= 1 && config->vocab_size <= KVA_MODEL_VOCAB_MAX);
    require(config->hidden_size >= 1 && config->hidden_size <= KVA_MODEL_HIDDEN_MAX);
    require(config->layer_count >= 1 && config->layer_count <= KVA_MODEL_LAYERS_MAX);
    require(config->kv_heads >= 1 && config->heads % config->kv_heads == 0);
    require(config->head_dim >= 2 && config->head_dim % 2 == 0);
    require(config->context_max >= 1 && config->context_max <= KVA_MODEL_CONTEXT_MAX);
    require(config->rope.rotary_dim <= config->head_dim && config->rope.rotary_dim % 2 == 0);
    require(isfinite(config->rope.factor) && config->rope.factor > 0);
    for (uint32_t i = 0; i < config->rope.rotary_dim / 2; i++)
        require(isfinite(config->rope.inv_freq[i]) && config->rope.inv_freq[i] >= 0);
    for (uint32_t i = 0; i < config->layer_count; i++)
        require(config->layer_window[i] <= KVA_MODEL_CONTEXT_MAX);
    require(config->eos_count <= KVA_MODEL_EOS_MAX);
    for (uint32_t i = 0; i < config->eos_count; i++)
        require(config->eos_ids[i] < config->vocab_size);
    require(config->bos_id >= -1 && config->bos_id < config->vocab_size);
    require(memchr(config->model_type, '\0', sizeof(config->model_type)) != NULL);
}

static void parse_config(const cJSON *root)
{
    struct kva_model_spec spec;
    struct kva_err err = {0};
    enum kva_status status = kva_model_spec_parse(root, root, &spec, &err);
    require(status == KVA_OK || status == KVA_EFORMAT || status == KVA_EUNSUPPORTED);
    require((status != KVA_OK) == (err.message[0] != '\0'));
    if (status)
        return;
    check_config(&spec.config);
    kva_model_config_finish(&spec.config);
}

static void parse_pooling(const cJSON *root)
{
    struct kva_err err = {0};
    const struct kva_fields fields = {root, "fuzz.json", "", &err};
    struct kva_embedding_defaults said = {0};
    enum kva_status status = kva_embedding_pooling(&fields, &said);
    require(status == KVA_OK || status == KVA_EFORMAT);
    require(status || said.pooling != KVA_MODEL_POOLING_UNSAID);
    require((said.pooling == KVA_MODEL_POOLING_OTHER) == (said.lacks[0] != '\0'));
}

static void parse_modules(const char *text, size_t size)
{
    struct kva_err err = {0};
    struct kva_embedding_defaults said = {0};
    char folder[256];
    cJSON *list = NULL;
    enum kva_status status = kva_model_json_parse_list(text, size, "fuzz.json", &list, &err);
    require(status == KVA_OK || status == KVA_EFORMAT);
    if (!status)
        status = kva_embedding_modules(list, &said, folder, sizeof(folder), &err);
    require(status == KVA_OK || status == KVA_EFORMAT);
    if (!status)
        require(folder[0] != '.' && !strchr(folder, '/'));
    cJSON_Delete(list);
}

static void parse_index(const cJSON *root)
{
    struct kva_err err = {0};
    struct kva_model_files *files = calloc(1, sizeof(*files));
    if (!files)
        return;
    enum kva_status status = kva_model_index_parse(root, "index", files, &err);
    require(status == KVA_OK || status == KVA_EFORMAT);
    for (size_t i = 0; !status && i < files->place_count; i++)
        require(files->places[i].shard < files->shard_count);
    for (size_t i = 0; !status && i < files->shard_count; i++)
        require(!strchr(files->shards[i].name, '/') && files->shards[i].name[0] != '.');
    kva_model_files_close(files);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cJSON *root = NULL;
    struct kva_err err = {0};
    enum kva_status status =
        kva_model_json_parse((const char *)data, size, "fuzz.json", &root, &err);
    require(status == KVA_OK || status == KVA_EFORMAT);
    if (status) {
        parse_modules((const char *)data, size);
        return 0;
    }
    parse_config(root);
    parse_pooling(root);
    parse_index(root);
    cJSON_Delete(root);
    return 0;
}
