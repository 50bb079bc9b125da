/* fuzz_gguf.c - a GGUF file, from any bytes: the container, then everything that is made of it as
 * far as it goes: config, tensors, weights packed and decoded, tokenizer. */
#include "tests/fuzz/fuzz.h"

#include "base/mapped.h"
#include "engine/model/bind.h"
#include "engine/model/decode.h"
#include "engine/model/gguf_files.h"
#include "engine/model/gguf_spec.h"
#include "engine/model/packed.h"
#include "text/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

static void require(bool condition)
{
    if (!condition)
        __builtin_trap();
}

static bool is_expected(enum kva_status status)
{
    return status == KVA_OK || status == KVA_EFORMAT || status == KVA_EUNSUPPORTED;
}

static void check_table(const struct kva_gguf *gguf)
{
    volatile uint8_t sink = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < gguf->tensor_count; i++) {
        const struct kva_gguf_tensor *tensor = &gguf->tensors[i];
        char shape[40];
        require(tensor->begin <= tensor->end && tensor->end <= gguf->data_bytes);
        require(kva_gguf_find_tensor(gguf, tensor->name) == tensor);
        require(strlen(kva_gguf_show_shape(tensor, shape, sizeof(shape))) < sizeof(shape));
        if (tensor->end > tensor->begin)
            sink = gguf->data[tensor->begin] ^ gguf->data[tensor->end - 1];
        bytes += tensor->end - tensor->begin;
    }
    (void)sink;
    require(bytes <= gguf->data_bytes);
    for (size_t i = 0; i < gguf->field_count; i++) {
        const struct kva_gguf_field *field = &gguf->fields[i];
        require(field->begin <= field->end && field->end <= gguf->data_bytes);
        require(kva_gguf_find(gguf, field->key) == field);
    }
}

/* The rest is decoded. */
static void pack(struct kva_model *model)
{
    struct kva_err err = {.message = ""};
    const struct kva_model_pack_params params = {.path = "fuzz.gguf", .threads = 1};
    enum kva_status status = kva_model_pack(model, &params, &err);
    require(is_expected(status) && (status != KVA_OK) == (err.message[0] != '\0'));
}

static void make_weights(struct kva_model_files *files, bool packed, struct kva_pool *pool)
{
    struct kva_model_spec spec;
    struct kva_err err = {.message = ""};
    const struct kva_model_open_params params = {.path = "fuzz.gguf"};
    enum kva_status status = kva_gguf_spec_read(files, &spec, &err);
    require(is_expected(status) && (status != KVA_OK) == (err.message[0] != '\0'));
    if (status)
        return;
    struct kva_model *model = calloc(1, sizeof(*model));
    require(model != NULL);
    model->config = spec.config;
    /* Tensors have no more weights than the file's blocks, so memory stays in bounds. */
    status = kva_model_bind(model, &spec, files, &err);
    require(is_expected(status) && (status != KVA_OK) == (err.message[0] != '\0'));
    model->files = files;
    if (!status && packed)
        pack(model);
    else if (!status)
        require(kva_model_decode_all(model, &params, pool, &err) == KVA_OK);
    model->files = NULL;
    kva_model_close(model);
}

static void encode(const struct kva_gguf *gguf)
{
    static const char text[] = "ab <s> 12\n";
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_token_list list;
    struct kva_err err = {.message = ""};
    const struct kva_encode_params params = {.add_special = true, .parse_special = true};
    enum kva_status status = kva_tokenizer_load_gguf(gguf, &tokenizer, &err);
    require((status != KVA_OK) == (err.message[0] != '\0'));
    if (status)
        return;
    kva_token_list_init(&list, 1024);
    status = kva_tokenizer_encode(tokenizer, text, sizeof(text) - 1, &params, &list, &err);
    for (size_t i = 0; i < list.count; i++)
        require(list.ids[i] >= 0 && (uint32_t)list.ids[i] < kva_tokenizer_vocab_size(tokenizer));
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kva_pool *pool;
    struct kva_err err = {.message = ""};
    struct kva_model_shard shard = {
        .name = "fuzz.gguf", .map = malloc(size ? size : 1), .map_bytes = size};
    struct kva_model_files files = {.shards = &shard, .shard_count = 1};
    if (!pool)
        require(kva_pool_create(1, &pool, &err) == KVA_OK);
    require(shard.map != NULL);
    memcpy(shard.map, data, size);
    enum kva_status status = kva_gguf_shard_read(&shard, &err);
    require(is_expected(status) && (status != KVA_OK) == (err.message[0] != '\0'));
    if (!status) {
        check_table(&shard.gguf);
        make_weights(&files, true, pool);
        make_weights(&files, false, pool);
        encode(&shard.gguf);
    }
    kva_safetensors_finish(&shard.table);
    kva_gguf_finish(&shard.gguf);
    free(shard.map);
    return 0;
}
