/* model.c - opening a model. */
#include "engine/model/model.h"

#include "base/mapped.h"
#include "engine/model/bind.h"
#include "engine/model/decode.h"
#include "engine/model/embedding.h"
#include "engine/model/gguf_files.h"
#include "engine/model/gguf_spec.h"
#include "engine/model/limits.h"
#include "engine/model/packed.h"
#include "engine/model/skew.h"
#include "gguf/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* config.json must be there, generation_config.json may. */
static enum kva_status read_spec(int dir_fd, struct kva_model_spec *ret, struct kva_err *err)
{
    cJSON *config = NULL, *generation = NULL;
    enum kva_status status =
        kva_model_json_read(dir_fd, "config.json", KVA_MODEL_CONFIG_BYTES_MAX, &config, err);
    if (status)
        return status;
    if (faccessat(dir_fd, "generation_config.json", F_OK, 0) == 0)
        status = kva_model_json_read(dir_fd, "generation_config.json", KVA_MODEL_CONFIG_BYTES_MAX,
                                     &generation, err);
    if (!status)
        status = kva_model_spec_parse(config, generation, ret, err);
    cJSON_Delete(generation);
    cJSON_Delete(config);
    return status;
}

/* The tensors of model->files. */
static enum kva_status open_tensors(const struct kva_model_open_params *params,
                                    const struct kva_model_spec *spec, struct kva_model *model,
                                    struct kva_err *err)
{
    struct kva_pool *pool = NULL;
    enum kva_status status = kva_model_bind(model, spec, model->files, err);
    if (!status && params->prefetch)
        status = kva_model_files_prefetch(model->files, params, err);
    if (!status && !params->packed && model->decodes.count > 0) {
        uint32_t threads = params->threads ? params->threads : kva_pool_usable_cores();
        status = kva_pool_create(threads, &pool, err);
        if (!status)
            status = kva_model_decode_all(model, params, pool, err);
        kva_pool_destroy(pool);
    }
    /* Parts of it have been read by now. */
    return status ? status : kva_model_check(model, err);
}

static enum kva_status open_checkpoint(int dir_fd, const struct kva_model_open_params *params,
                                       struct kva_model *model, struct kva_err *err)
{
    struct kva_model_spec spec;
    enum kva_status status = read_spec(dir_fd, &spec, err);
    if (status)
        return status;
    model->config = spec.config;
    model->generation = spec.generation;
    status = kva_embedding_read(dir_fd, &model->embedding, err);
    if (!status)
        status = kva_model_files_open(dir_fd, &model->files, err);
    return status ? status : open_tensors(params, &spec, model, err);
}

static enum kva_status open_gguf(const struct kva_model_open_params *params,
                                 struct kva_model *model, struct kva_err *err)
{
    struct kva_model_spec spec;
    enum kva_status status = kva_gguf_files_open(params->path, &model->files, err);
    if (!status)
        status = kva_gguf_spec_read(model->files, &spec, err);
    if (status)
        return status;
    model->config = spec.config;
    model->generation = spec.generation;
    model->embedding = spec.embedding;
    return open_tensors(params, &spec, model, err);
}

static enum kva_status open_folder(const struct kva_model_open_params *params,
                                   struct kva_model *model, struct kva_err *err)
{
    int dir_fd = open(params->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return kva_fail(err, errno == ENOENT || errno == ENOTDIR ? KVA_ENOTFOUND : KVA_EIO,
                        "%s: cannot open the model's folder: %s", params->path, strerror(errno));
    enum kva_status status = open_checkpoint(dir_fd, params, model, err);
    close(dir_fd);
    return status ? kva_err_prefix(err, status, "%s", params->path) : KVA_OK;
}

enum kva_status kva_model_check_cancelled(const atomic_bool *cancelled, struct kva_err *err)
{
    if (cancelled && atomic_load(cancelled))
        return kva_fail(err, KVA_ECANCELLED, "loading was stopped");
    return KVA_OK;
}

enum kva_status kva_model_check(const struct kva_model *model, struct kva_err *err)
{
    if (model->packed && kva_mapped_is_lost(model->packed->watch)) {
        const char *slash = strrchr(model->packed->path, '/');
        return kva_fail(err, KVA_EIO,
                        "%s has been cut, or cannot be read any more, while it was in use",
                        slash ? slash + 1 : model->packed->path);
    }
    return kva_model_files_check(model->files, err);
}

enum kva_status kva_model_open(const struct kva_model_open_params *params, struct kva_model **ret,
                               struct kva_err *err)
{
    struct kva_model *model = calloc(1, sizeof(*model));
    if (!model)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    enum kva_status status = kva_gguf_is_path(params->path) ? open_gguf(params, model, err)
                                                            : open_folder(params, model, err);
    if (status) {
        kva_model_close(model);
        return status;
    }
    *ret = model;
    return KVA_OK;
}

void kva_model_close(struct kva_model *model)
{
    if (!model)
        return;
    kva_model_config_finish(&model->config);
    kva_model_packed_close(model->packed);
    kva_skew_destroy(model->skew);
    kva_model_files_close(model->files);
    kva_model_decodes_finish(model);
    kva_arena_finish(&model->copies);
    free(model->layers);
    free(model);
}
