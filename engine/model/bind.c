/* bind.c - looking tensors up by a family's names, and checking shapes. */
#include "engine/model/bind.h"

#include "base/log.h"
#include "engine/model/decode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the copies of fused tensors: block headers and padding, at most 6 copies a layer. */
#define ARENA_OVERHEAD_MAX ((size_t)KVA_MODEL_LAYERS_MAX * 6 * 8192)

struct bind {
    struct kva_model *model;
    const struct kva_model_spec *spec;
    const struct kva_model_files *files;
    struct kva_err *err;
    bool *used;  /* [tensors of all shards]: which of them the model has taken */
    size_t skip; /* of the names in the family's table: the files' lack so many bytes in front */
    uint32_t dims[KVA_DIM_COUNT];
};

bool kva_model_needs(const struct kva_model_spec *spec, enum kva_tensor_need need)
{
    switch (need) {
    case KVA_NEED_QKV_BIAS:
        return spec->qkv_bias;
    case KVA_NEED_O_BIAS:
        return spec->o_bias;
    case KVA_NEED_MLP_BIAS:
        return spec->mlp_bias;
    case KVA_NEED_QK_NORM:
        return spec->config.qk_norm;
    default:
        return true;
    }
}

static bool is_gguf(const struct bind *bind)
{
    return bind->files->shards[0].gguf.data != NULL;
}

/* *ret_format is NULL unless it is a GGUF file's. */
static enum kva_status check_gguf_dtype(const struct bind *bind,
                                        const struct kva_safetensors_entry *entry,
                                        const struct kva_model_shard *shard,
                                        const struct kva_gguf_format **ret_format)
{
    const struct kva_gguf_tensor *tensor = kva_gguf_find_tensor(&shard->gguf, entry->name);
    *ret_format = tensor ? tensor->format : NULL;
    if (*ret_format && kva_gguf_format_is_supported(*ret_format))
        return KVA_OK;
    struct kva_buf list;
    kva_buf_init(&list, KVA_ERR_MESSAGE_MAX);
    kva_gguf_format_list(&list);
    enum kva_status status =
        kva_fail(bind->err, KVA_EUNSUPPORTED, "%s: tensor %s is %s; supported are: %s", shard->name,
                 entry->name, entry->dtype, list.data ? list.data : "");
    kva_buf_finish(&list);
    return status;
}

/* Of a checkpoint whose config.json says that its weights are quantised. */
static enum kva_status fail_quantised(const struct bind *bind, const char *what, const char *name)
{
    return kva_fail_param(bind->err, KVA_EUNSUPPORTED, "quantization_config",
                          "the weights are quantised by %s, which is not read: use a GGUF file or "
                          "a bf16 checkpoint of the model (%s %s)",
                          bind->spec->quant_method, what, name);
}

static enum kva_status check_dtype(const struct bind *bind,
                                   const struct kva_safetensors_entry *entry,
                                   const struct kva_model_shard *shard, enum kva_dtype *ret,
                                   const struct kva_gguf_format **ret_format)
{
    const char *quant = bind->spec->quant_method;
    *ret_format = NULL;
    if (is_gguf(bind)) {
        enum kva_status status = check_gguf_dtype(bind, entry, shard, ret_format);
        if (!status)
            *ret = kva_model_decoded_dtype(*ret_format);
        return status;
    }
    if (!kva_safetensors_dtype(entry, ret)) {
        char what[64];
        snprintf(what, sizeof(what), "there is %.32s tensor", entry->dtype);
        return *quant ? fail_quantised(bind, what, entry->name)
                      : kva_fail(bind->err, KVA_EUNSUPPORTED,
                                 "%s: tensor %s is %s; supported are: F32, F16, BF16", shard->name,
                                 entry->name, entry->dtype);
    }
    if (entry->begin % kva_dtype_bytes(*ret))
        return kva_fail(bind->err, KVA_EFORMAT,
                        "%s: tensor %s begins at byte %llu, which is not aligned for %s: save the "
                        "file again with a current safetensors library",
                        shard->name, entry->name, (unsigned long long)entry->begin, entry->dtype);
    return KVA_OK;
}

static enum kva_status check_shape(const struct bind *bind,
                                   const struct kva_safetensors_entry *entry,
                                   const struct kva_model_shard *shard, bool vector, uint32_t rows,
                                   uint32_t cols)
{
    bool fits = vector ? entry->rank == 1 && entry->shape[0] == cols
                       : entry->rank == 2 && entry->shape[0] == rows && entry->shape[1] == cols;
    if (fits)
        return KVA_OK;
    char have[160], want[48];
    kva_safetensors_show_shape(entry, have, sizeof(have));
    if (vector)
        snprintf(want, sizeof(want), "[%u]", cols);
    else
        snprintf(want, sizeof(want), "[%u, %u]", rows, cols);
    return kva_fail(bind->err, KVA_EFORMAT, "%s: tensor %s has shape %s, %s wants %s", shard->name,
                    entry->name, have, is_gguf(bind) ? "the metadata" : "config.json", want);
}

static size_t first_of_shard(const struct kva_model_files *files,
                             const struct kva_model_shard *shard)
{
    size_t first = 0;
    for (const struct kva_model_shard *before = files->shards; before < shard; before++)
        first += before->table.entry_count;
    return first;
}

/* Whether the rows of a tensor (of a bias: its elements) are those of q's or k's heads in the order
 * that has to be changed. */
static bool is_reordered(const struct bind *bind, enum kva_tensor_dim rows,
                         enum kva_tensor_dim cols, const char *name)
{
    enum kva_tensor_dim heads = rows == KVA_DIM_ONE ? cols : rows;
    /* v has as many rows as k. */
    return bind->spec->family->rope_neighbours && (heads == KVA_DIM_Q || heads == KVA_DIM_KV) &&
           strstr(name, "attn_v.") == NULL;
}

/* A tensor that is decoded, or reordered, into memory of its own instead of being used where it
 * lies; a vector is copied too, as it would keep the pages of matrices around it in memory. */
static enum kva_status plan_decode(const struct bind *bind, const char *name,
                                   const struct kva_gguf_format *format, bool reordered,
                                   struct kva_tensor *tensor)
{
    if (!format || (!format->decode && !reordered && tensor->rows > 1))
        return KVA_OK;
    const struct kva_model_decode plan = {
        .from = tensor->data,
        .format = format,
        .rows = tensor->rows,
        .cols = tensor->cols,
        .head_dim = reordered ? bind->model->config.head_dim : 0,
    };
    enum kva_status status = kva_model_decode_plan(bind->model, &plan, &tensor->data, bind->err);
    return status ? kva_err_prefix(bind->err, status, "tensor %s", name) : KVA_OK;
}

/* *ret stays absent (data NULL) if the files have no such tensor. */
static enum kva_status load(const struct bind *bind, const char *name, enum kva_tensor_dim rows,
                            enum kva_tensor_dim cols, struct kva_tensor *ret)
{
    const struct kva_safetensors_entry *entry;
    const struct kva_model_shard *shard;
    const struct kva_gguf_format *format = NULL;
    enum kva_dtype dtype;
    enum kva_status status = kva_model_files_find(bind->files, name, &entry, &shard, bind->err);
    if (status || !entry)
        return status;
    if ((status = check_dtype(bind, entry, shard, &dtype, &format)) != KVA_OK ||
        (status = check_shape(bind, entry, shard, rows == KVA_DIM_ONE, bind->dims[rows],
                              bind->dims[cols])) != KVA_OK)
        return status;
    struct kva_tensor tensor = {
        .data = (const uint8_t *)shard->map + entry->begin,
        .dtype = dtype,
        .rows = bind->dims[rows],
        .cols = bind->dims[cols],
    };
    status = plan_decode(bind, name, format, is_reordered(bind, rows, cols, name), &tensor);
    if (status)
        return status;
    *ret = tensor;
    bind->used[first_of_shard(bind->files, shard) + (size_t)(entry - shard->table.entries)] = true;
    bind->model->weight_bytes += (size_t)tensor.rows * tensor.cols * kva_dtype_bytes(dtype);
    bind->model->parameter_count += (uint64_t)bind->dims[rows] * bind->dims[cols];
    return KVA_OK;
}

/* The tensor must be there. */
static enum kva_status load_needed(const struct bind *bind, const char *name,
                                   enum kva_tensor_dim rows, enum kva_tensor_dim cols,
                                   struct kva_tensor *ret)
{
    enum kva_status status = load(bind, name, rows, cols, ret);
    if (!status && !ret->data && *bind->spec->quant_method)
        return fail_quantised(bind, "there is no tensor", name);
    if (!status && !ret->data)
        status =
            kva_fail(bind->err, KVA_EFORMAT, "%s%sthe checkpoint has no tensor %s, which %s needs",
                     is_gguf(bind) ? bind->files->shards[0].name : "", is_gguf(bind) ? ": " : "",
                     name, bind->spec->family->architecture);
    return status;
}

static enum kva_status load_specs(const struct bind *bind, const struct kva_tensor_spec *specs,
                                  size_t count, const char *prefix, void *base)
{
    char name[KVA_SAFETENSORS_NAME_BYTES_MAX + 1];
    enum kva_status status = KVA_OK;
    for (size_t i = 0; !status && i < count; i++) {
        struct kva_tensor *tensor = (struct kva_tensor *)((char *)base + specs[i].offset);
        if (!kva_model_needs(bind->spec, specs[i].need))
            continue;
        snprintf(name, sizeof(name), "%s%s", prefix, specs[i].name);
        status = load_needed(bind, name + bind->skip, specs[i].rows, specs[i].cols, tensor);
    }
    return status;
}

/* Part 0, 1 or 2 (q, k, v) of a fused tensor: of head h it is the block 3 h + part of head_dim
 * rows, or elements of a bias. */
static enum kva_status copy_part(const struct bind *bind, const struct kva_tensor *fused,
                                 size_t part, struct kva_tensor *ret)
{
    struct kva_model *model = bind->model;
    bool vector = fused->rows == 1;
    uint32_t heads = model->config.heads, head_dim = model->config.head_dim;
    size_t row_bytes = (vector ? 1 : (size_t)fused->cols) * kva_dtype_bytes(fused->dtype);
    size_t block_bytes = head_dim * row_bytes;
    uint8_t *to = kva_arena_alloc(&model->copies, heads * block_bytes);
    if (!to)
        return kva_fail(bind->err, KVA_ENOMEM, "out of memory for a copy of %zu bytes",
                        heads * block_bytes);
    for (size_t head = 0; head < heads; head++)
        memcpy(to + head * block_bytes,
               (const uint8_t *)fused->data + (3 * head + part) * block_bytes, block_bytes);
    *ret = (struct kva_tensor){
        .data = to,
        .dtype = fused->dtype,
        .rows = vector ? 1 : heads * head_dim,
        .cols = vector ? heads * head_dim : fused->cols,
    };
    model->copied_bytes += heads * block_bytes;
    return KVA_OK;
}

/* Part 0, 1 or 2 of a fused tensor that has all of q, then all of k, then all of v. */
static void slice_part(const struct bind *bind, const struct kva_tensor *fused, size_t part,
                       struct kva_tensor *ret)
{
    bool vector = fused->rows == 1;
    uint32_t q = bind->dims[KVA_DIM_Q], kv = bind->dims[KVA_DIM_KV];
    uint32_t first = part == 0 ? 0 : part == 1 ? q : q + kv, count = part == 0 ? q : kv;
    size_t row_bytes = (vector ? 1 : (size_t)fused->cols) * kva_dtype_bytes(fused->dtype);
    *ret = (struct kva_tensor){
        .data = (const uint8_t *)fused->data + first * row_bytes,
        .dtype = fused->dtype,
        .rows = vector ? 1 : count,
        .cols = vector ? count : fused->cols,
    };
}

static enum kva_status load_fused(const struct bind *bind, const char *prefix,
                                  struct kva_layer_tensors *layer)
{
    char name[KVA_SAFETENSORS_NAME_BYTES_MAX + 1];
    const struct kva_tensor_names *names = bind->spec->family->tensor_names;
    enum kva_status status = KVA_OK;
    for (size_t i = 0; !status && i < names->fused_count; i++) {
        const struct kva_fused_qkv_spec *spec = &names->fused[i];
        const size_t offsets[3] = {spec->q, spec->k, spec->v};
        struct kva_tensor fused = {0};
        if (!kva_model_needs(bind->spec, spec->need))
            continue;
        snprintf(name, sizeof(name), "%s%s", prefix, spec->name);
        status = load_needed(bind, name + bind->skip, spec->rows, spec->cols, &fused);
        for (size_t part = 0; !status && part < 3; part++) {
            struct kva_tensor *to = (struct kva_tensor *)((char *)layer + offsets[part]);
            if (names->fused_in_blocks)
                slice_part(bind, &fused, part, to);
            else
                status = copy_part(bind, &fused, part, to);
        }
    }
    return status;
}

/* Of a file that says that its output matrix is not the embedding, and has none. */
static void miss_lm_head(const struct bind *bind, const char *name)
{
    bind->model->headless = bind->skip > 0 || bind->spec->base;
    if (bind->model->headless)
        kva_log(KVA_LOG_INFO,
                "the checkpoint is of a base model, without %s: it makes vectors of texts, and no "
                "text",
                name);
    else
        kva_log(KVA_LOG_WARN,
                "config.json says that the output matrix is not the embedding, but there is no %s: "
                "using the embedding, and text may be nonsense",
                name);
}

/* Whatever config.json says, without an output matrix the embedding is it, but for a base model.
 * With one, and a different one, config.json is wrong about tying: the file's matrix counts. */
static enum kva_status bind_lm_head(const struct bind *bind)
{
    struct kva_model *model = bind->model;
    const char *name = bind->spec->family->tensor_names->lm_head;
    struct kva_tensor head = {0};
    size_t bytes = model->weight_bytes;
    uint64_t parameters = model->parameter_count;
    enum kva_status status = load(bind, name, KVA_DIM_VOCAB, KVA_DIM_HIDDEN, &head);
    if (status)
        return status;
    bool same = head.data && model->config.tied_embeddings && head.dtype == model->embed.dtype &&
                memcmp(head.data, model->embed.data, model->weight_bytes - bytes) == 0;
    if (head.data && model->config.tied_embeddings && !same)
        kva_log(KVA_LOG_WARN,
                "config.json ties the output matrix to the embedding, but %s differs from it: "
                "using %s",
                name, name);
    if (!head.data && bind->spec->untied)
        miss_lm_head(bind, name);
    model->config.tied_embeddings = !head.data || (model->config.tied_embeddings && same);
    if (model->config.tied_embeddings) {
        model->weight_bytes = bytes;
        model->parameter_count = parameters;
        head = model->embed;
    }
    model->lm_head = head;
    return KVA_OK;
}

/* What no position reaches is left out, so that the row of a position is its number. */
static void skip_unused_positions(struct kva_model *model, uint32_t offset)
{
    struct kva_tensor *positions = &model->positions;
    if (!positions->data)
        return;
    positions->data = (const uint8_t *)positions->data +
                      (size_t)offset * positions->cols * kva_dtype_bytes(positions->dtype);
    positions->rows -= offset;
}

/* Old checkpoints carry their frequencies (Llama, GPT-NeoX) and a causal mask with the value behind
 * it (GPT-NeoX); they follow from the config. In GGUF rope_freqs is read with the metadata. */
static bool is_derived(const char *name)
{
    static const char *const suffixes[] = {"rotary_emb.inv_freq", ".attention.bias",
                                           ".attention.masked_bias", ".attn_rot_embd.weight",
                                           "rope_freqs.weight"};
    size_t length = strlen(name);
    for (size_t i = 0; i < KVA_COUNT_OF(suffixes); i++) {
        size_t end = strlen(suffixes[i]);
        if (length >= end && strcmp(name + length - end, suffixes[i]) == 0)
            return true;
    }
    return false;
}

/* A tensor that nothing takes is legal in a checkpoint, but it may also be a bias that config.json
 * does not mention, and then the model would talk nonsense in silence. Files in GGUF have no more
 * than their architecture uses, so there it is one of another architecture. */
static enum kva_status check_unused(const struct bind *bind)
{
    const struct kva_model_files *files = bind->files;
    const char *first = NULL;
    size_t count = 0, index = 0;
    for (size_t i = 0; i < files->shard_count; i++) {
        const struct kva_safetensors *table = &files->shards[i].table;
        for (size_t j = 0; j < table->entry_count; j++, index++) {
            if (bind->used[index] || is_derived(table->entries[j].name))
                continue;
            first = first ? first : table->entries[j].name;
            count++;
        }
    }
    if (count && is_gguf(bind))
        return kva_fail(bind->err, KVA_EUNSUPPORTED,
                        "%s: architecture %s is not known to have tensor %s (%zu such tensors): "
                        "without it the model would say something else",
                        bind->files->shards[0].name, bind->spec->family->architecture, first,
                        count);
    if (count)
        kva_log(KVA_LOG_WARN, "%zu tensors of the checkpoint are not used by %s, the first is %s",
                count, bind->spec->family->architecture, first);
    return KVA_OK;
}

/* Whether the names are those of the base class, which the embedding's decides. */
static enum kva_status find_prefix(struct bind *bind)
{
    const struct kva_tensor_names *names = bind->spec->family->tensor_names;
    const char *embed = names->model[0].name;
    const size_t skip = names->base_prefix ? strlen(names->base_prefix) : 0;
    const struct kva_safetensors_entry *whole, *base = NULL;
    const struct kva_model_shard *shard;
    enum kva_status status = kva_model_files_find(bind->files, embed, &whole, &shard, bind->err);
    if (!status && !whole && skip > 0)
        status = kva_model_files_find(bind->files, embed + skip, &base, &shard, bind->err);
    bind->skip = base ? skip : 0;
    return status;
}

static enum kva_status bind_all(struct bind *bind)
{
    struct kva_model *model = bind->model;
    const struct kva_tensor_names *names = bind->spec->family->tensor_names;
    uint32_t layer_count = model->config.layer_count;
    enum kva_status status = find_prefix(bind);
    if (!status)
        status = load_specs(bind, names->model, names->model_count, "", model);
    if (!status)
        status = bind_lm_head(bind);
    if (status)
        return status;
    skip_unused_positions(model, bind->spec->family->position_offset);
    if (!bind->spec->has_dtype)
        model->config.dtype = model->embed.dtype;
    model->layers = calloc(layer_count, sizeof(*model->layers));
    if (!model->layers)
        return kva_fail(bind->err, KVA_ENOMEM, "out of memory for %u layers", layer_count);
    for (uint32_t layer = 0; !status && layer < layer_count; layer++) {
        char prefix[64];
        snprintf(prefix, sizeof(prefix), "%s%u.", names->layer_prefix, layer);
        status = load_specs(bind, names->layer, names->layer_count, prefix, &model->layers[layer]);
        if (!status)
            status = load_fused(bind, prefix, &model->layers[layer]);
    }
    return status ? status : check_unused(bind);
}

/* Products of values that limits.h bounds to 2^20 at most: they fit 32 bits. */
void kva_model_dims(const struct kva_model_spec *spec, const struct kva_model_config *config,
                    uint32_t ret[KVA_DIM_COUNT])
{
    const uint32_t dims[KVA_DIM_COUNT] = {
        [KVA_DIM_ONE] = 1,
        [KVA_DIM_VOCAB] = config->vocab_size,
        [KVA_DIM_HIDDEN] = config->hidden_size,
        [KVA_DIM_INTERMEDIATE] = config->intermediate_size,
        [KVA_DIM_Q] = config->heads * config->head_dim,
        [KVA_DIM_KV] = config->kv_heads * config->head_dim,
        [KVA_DIM_HEAD] = config->head_dim,
        [KVA_DIM_QKV] = (config->heads + 2 * config->kv_heads) * config->head_dim,
        [KVA_DIM_POSITIONS] = config->context_max + spec->family->position_offset,
    };
    memcpy(ret, dims, sizeof(dims));
}

enum kva_status kva_model_bind(struct kva_model *model, const struct kva_model_spec *spec,
                               const struct kva_model_files *files, struct kva_err *err)
{
    const struct kva_model_config *config = &model->config;
    size_t tensor_count = first_of_shard(files, files->shards + files->shard_count);
    kva_arena_init(&model->copies, kva_model_files_bytes(files) + ARENA_OVERHEAD_MAX);
    struct bind bind = {.model = model, .spec = spec, .files = files, .err = err};
    kva_model_dims(spec, config, bind.dims);
    bind.used = calloc(tensor_count + 1, sizeof(*bind.used));
    if (!bind.used)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %zu tensors", tensor_count);
    enum kva_status status = bind_all(&bind);
    free(bind.used);
    return status;
}
