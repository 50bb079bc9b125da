/* embedding.c - modules.json and the pooling's config.json. */
#include "engine/model/embedding.h"

#include "engine/model/index.h"
#include "engine/model/limits.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULES_FILE  "modules.json"
#define PACKAGE       "sentence_transformers."
#define POOLING_BYTES (KVA_MODEL_FILE_NAME_MAX + sizeof("/config.json"))

/* The first thing that is lacking is the one that is told. */
static void lack(struct kva_embedding_defaults *ret, const char *format, ...)
{
    va_list list;
    if (ret->pooling == KVA_MODEL_POOLING_OTHER)
        return;
    ret->pooling = KVA_MODEL_POOLING_OTHER;
    va_start(list, format);
    vsnprintf(ret->lacks, sizeof(ret->lacks), format, list);
    va_end(list);
}

/* --- modules.json ----------------------------------------------------------------------------- */

static enum kva_status check_folder(const char *name, struct kva_err *err)
{
    char text[64];
    if (kva_model_is_plain_name(name))
        return KVA_OK;
    return kva_fail_param(err, KVA_EFORMAT, "path",
                          MODULES_FILE ": the pooling's path '%s' is not a plain folder name",
                          kva_text_show(name, text, sizeof(text)));
}

/* "Pooling" of "sentence_transformers.models.Pooling"; NULL: it is somebody else's. */
static const char *kind_of(const char *type)
{
    const char *dot = strrchr(type, '.');
    return dot && strncmp(type, PACKAGE, strlen(PACKAGE)) == 0 ? dot + 1 : NULL;
}

/* The transformer is the model itself; a dropout is for training. `pooling` has the folder of the one
 * that came before, or "". */
static enum kva_status read_module(const struct kva_fields *module, bool first,
                                   struct kva_embedding_defaults *ret, char *pooling, size_t size)
{
    const char *type = "", *path = "";
    char text[64];
    enum kva_status status = kva_fields_string(module, "type", &type);
    if (!status)
        status = kva_fields_string(module, "path", &path);
    if (status)
        return status;
    const char *kind = kind_of(type);
    if (kind && ((first && strcmp(kind, "Transformer") == 0) || strcmp(kind, "Dropout") == 0))
        return KVA_OK;
    if (kind && strcmp(kind, "Pooling") == 0 && !*pooling) {
        snprintf(pooling, size, "%s", path);
        return check_folder(path, module->err);
    }
    if (kind && strcmp(kind, "Normalize") == 0 && *pooling)
        ret->raw = false;
    else
        lack(ret, "the module '%s' (" MODULES_FILE ")", kva_text_show(type, text, sizeof(text)));
    return KVA_OK;
}

enum kva_status kva_embedding_modules(const cJSON *list, struct kva_embedding_defaults *ret,
                                      char *ret_pooling, size_t size, struct kva_err *err)
{
    struct kva_embedding_defaults said = {.raw = true};
    enum kva_status status = KVA_OK;
    const cJSON *item;
    ret_pooling[0] = '\0';
    cJSON_ArrayForEach(item, list)
    {
        const struct kva_fields module = {item, MODULES_FILE, "", err};
        if (!cJSON_IsObject(item))
            return kva_fail(err, KVA_EFORMAT, MODULES_FILE ": a module is not an object");
        status = read_module(&module, item == list->child, &said, ret_pooling, size);
        if (status)
            return status;
    }
    said.raw = said.raw && *ret_pooling;
    *ret = said;
    return KVA_OK;
}

/* --- the pooling's config.json ---------------------------------------------------------------- */

static const struct {
    const char *flag, *name;
    enum kva_model_pooling pooling;
} modes[] = {
    {"pooling_mode_mean_tokens", "mean", KVA_MODEL_POOLING_MEAN},
    {"pooling_mode_lasttoken", "lasttoken", KVA_MODEL_POOLING_LAST},
    {"pooling_mode_cls_token", "cls", KVA_MODEL_POOLING_OTHER},
    {"pooling_mode_max_tokens", "max", KVA_MODEL_POOLING_OTHER},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", KVA_MODEL_POOLING_OTHER},
    {"pooling_mode_weightedmean_tokens", "weightedmean", KVA_MODEL_POOLING_OTHER},
};

static void set_mode(const struct kva_fields *config, const char *name,
                     struct kva_embedding_defaults *ret)
{
    char text[48];
    for (size_t i = 0; i < KVA_COUNT_OF(modes); i++) {
        if (strcmp(modes[i].name, name) == 0 && modes[i].pooling != KVA_MODEL_POOLING_OTHER) {
            if (ret->pooling == KVA_MODEL_POOLING_UNSAID)
                ret->pooling = modes[i].pooling;
            return;
        }
    }
    lack(ret, "the pooling '%s' (%s)", kva_text_show(name, text, sizeof(text)), config->file);
}

/* A truth value for each; the mean is what is taken where none is said. */
static enum kva_status read_flags(const struct kva_fields *config,
                                  struct kva_embedding_defaults *ret)
{
    const char *mode = NULL;
    size_t count = 0;
    bool mean = true;
    for (size_t i = 0; i < KVA_COUNT_OF(modes); i++) {
        bool on = false;
        enum kva_status status = kva_fields_bool(config, modes[i].flag, &on);
        if (!status && i == 0)
            status = kva_fields_bool(config, modes[i].flag, &mean);
        if (status)
            return status;
        mode = on ? modes[i].name : mode;
        count += on;
    }
    if (count == 0 && mean)
        mode = modes[0].name;
    if (count > 1 || !mode)
        lack(ret, "%s (%s)", mode ? "several poolings beside each other" : "no pooling",
             config->file);
    else
        set_mode(config, mode, ret);
    return KVA_OK;
}

enum kva_status kva_embedding_pooling(const struct kva_fields *config,
                                      struct kva_embedding_defaults *ret)
{
    const char *mode = NULL;
    enum kva_status status = kva_fields_string(config, "pooling_mode", &mode);
    if (status)
        return status;
    if (!mode)
        return read_flags(config, ret);
    set_mode(config, mode, ret);
    return KVA_OK;
}

/* --- the files -------------------------------------------------------------------------------- */

static enum kva_status read_pooling(int dir_fd, const char *folder,
                                    struct kva_embedding_defaults *ret, struct kva_err *err)
{
    char file[POOLING_BYTES];
    cJSON *config = NULL;
    snprintf(file, sizeof(file), "%s/config.json", folder);
    if (faccessat(dir_fd, file, F_OK, 0) != 0) {
        lack(ret, "a pooling whose %s is missing", file);
        return KVA_OK;
    }
    enum kva_status status =
        kva_model_json_read(dir_fd, file, KVA_MODEL_CONFIG_BYTES_MAX, &config, err);
    const struct kva_fields fields = {config, file, "", err};
    if (!status)
        status = kva_embedding_pooling(&fields, ret);
    cJSON_Delete(config);
    return status;
}

static enum kva_status read_files(int dir_fd, struct kva_embedding_defaults *ret,
                                  struct kva_err *err)
{
    char pooling[POOLING_BYTES] = "";
    cJSON *list = NULL;
    enum kva_status status =
        kva_model_json_read_list(dir_fd, MODULES_FILE, KVA_MODEL_CONFIG_BYTES_MAX, &list, err);
    if (!status)
        status = kva_embedding_modules(list, ret, pooling, sizeof(pooling), err);
    if (!status && *pooling)
        status = read_pooling(dir_fd, pooling, ret, err);
    cJSON_Delete(list);
    return status;
}

enum kva_status kva_embedding_read(int dir_fd, struct kva_embedding_defaults *ret,
                                   struct kva_err *err)
{
    *ret = (struct kva_embedding_defaults){0};
    if (faccessat(dir_fd, MODULES_FILE, F_OK, 0) != 0)
        return KVA_OK;
    struct kva_embedding_defaults said = {0};
    struct kva_err why = {0};
    enum kva_status status = read_files(dir_fd, &said, &why);
    if (status == KVA_EFORMAT) {
        said = (struct kva_embedding_defaults){0};
        lack(&said, "what cannot be read (%s)", why.message);
        status = KVA_OK;
    }
    if (status)
        *err = why;
    else
        *ret = said;
    return status;
}
