/* load.c - finding the template of a model directory or a GGUF file. */
#include "text/template/template.h"

#include "base/file.h"
#include "gguf/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tokenizer_config.json of models with thousands of added tokens is the largest of these. */
#define JSON_BYTES_MAX (16u << 20)
#define PATH_BYTES_MAX 4096

/* The content of dir_path/file; KVA_ENOTFOUND if there is no such file. */
static enum kva_status read_file(const char *dir_path, const char *file, size_t bytes_max,
                                 struct kva_buf *buf, struct kva_err *err)
{
    char path[PATH_BYTES_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s", dir_path, file);
    if (length < 0 || (size_t)length >= sizeof(path))
        return kva_fail(err, KVA_EINVAL, "%s: the path is longer than %d bytes", dir_path,
                        PATH_BYTES_MAX);
    kva_buf_init(buf, bytes_max);
    enum kva_status status = kva_file_read(AT_FDCWD, path, buf, err);
    if (status)
        kva_buf_finish(buf);
    return status == KVA_ETOOBIG
               ? kva_fail(err, KVA_EFORMAT, "%s: more than %zu bytes", path, bytes_max)
               : status;
}

static enum kva_status compile_in(const char *dir_path, const char *file, const char *source,
                                  size_t length, struct kva_template **ret, struct kva_err *err)
{
    enum kva_status status = kva_template_compile(source, length, ret, err);
    return status ? kva_err_prefix(err, status, "%s/%s", dir_path, file) : KVA_OK;
}

static enum kva_status load_source(const char *dir_path, const char *file,
                                   struct kva_template **ret, struct kva_err *err)
{
    struct kva_buf buf;
    enum kva_status status = read_file(dir_path, file, KVA_TEMPLATE_SOURCE_BYTES_MAX, &buf, err);
    if (status)
        return status;
    status = compile_in(dir_path, file, buf.data ? buf.data : "", buf.length, ret, err);
    kva_buf_finish(&buf);
    return status;
}

/* The source in "chat_template": a string is the default, a list has names. NULL: not there. */
static const char *find_source(const cJSON *config, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(config, "chat_template");
    if (cJSON_IsString(value))
        return strcmp(name, "default") == 0 ? value->valuestring : NULL;
    if (!cJSON_IsArray(value))
        return NULL;
    const cJSON *item;
    cJSON_ArrayForEach(item, value)
    {
        const cJSON *item_name = cJSON_GetObjectItemCaseSensitive(item, "name");
        const cJSON *source = cJSON_GetObjectItemCaseSensitive(item, "template");
        if (cJSON_IsString(item_name) && cJSON_IsString(source) &&
            strcmp(item_name->valuestring, name) == 0)
            return source->valuestring;
    }
    return NULL;
}

static enum kva_status load_json(const char *dir_path, const char *file, const char *name,
                                 struct kva_template **ret, struct kva_err *err)
{
    struct kva_buf buf;
    enum kva_status status = read_file(dir_path, file, JSON_BYTES_MAX, &buf, err);
    if (status)
        return status;
    cJSON *config = cJSON_ParseWithLength(buf.data ? buf.data : "", buf.length);
    kva_buf_finish(&buf);
    if (!cJSON_IsObject(config)) {
        cJSON_Delete(config);
        return kva_fail(err, KVA_EFORMAT, "%s/%s: not a JSON object", dir_path, file);
    }
    const char *source = find_source(config, name);
    status = source ? compile_in(dir_path, file, source, strlen(source), ret, err) : KVA_ENOTFOUND;
    cJSON_Delete(config);
    return status;
}

/* "tokenizer.chat_template", or with a name ".NAME" behind it. */
static enum kva_status load_gguf(const char *path, const char *name, struct kva_template **ret,
                                 struct kva_err *err)
{
    char key[KVA_GGUF_KEY_BYTES_MAX + 1];
    struct kva_gguf_file *file;
    const char *source = NULL;
    size_t length = 0;
    enum kva_status status = kva_gguf_file_open(path, &file, err);
    if (status)
        return status;
    bool named = strcmp(name, "default") != 0;
    snprintf(key, sizeof(key), "tokenizer.chat_template%s%.128s", named ? "." : "",
             named ? name : "");
    status = kva_gguf_get_string(&file->gguf, key, &source, &length, err);
    if (!status && !source)
        status = kva_fail(err, KVA_ENOTFOUND, "%s: no chat template '%s': it has no %s", file->name,
                          name, key);
    if (!status && length > KVA_TEMPLATE_SOURCE_BYTES_MAX)
        status = kva_fail(err, KVA_EFORMAT, "%s: %s has %zu bytes, limit is %zu", file->name, key,
                          length, (size_t)KVA_TEMPLATE_SOURCE_BYTES_MAX);
    if (!status) {
        status = kva_template_compile(source, length, ret, err);
        if (status)
            status = kva_err_prefix(err, status, "%s", file->name);
    }
    kva_gguf_file_close(file);
    return status;
}

enum kva_status kva_template_load_file(const char *path, struct kva_template **ret,
                                       struct kva_err *err)
{
    struct kva_buf buf;
    kva_buf_init(&buf, KVA_TEMPLATE_SOURCE_BYTES_MAX);
    enum kva_status status = kva_file_read(AT_FDCWD, path, &buf, err);
    if (status == KVA_ETOOBIG)
        status = kva_fail(err, KVA_EFORMAT, "%s: more than %u bytes", path,
                          KVA_TEMPLATE_SOURCE_BYTES_MAX);
    if (status == KVA_OK) {
        status = kva_template_compile(buf.data ? buf.data : "", buf.length, ret, err);
        if (status)
            status = kva_err_prefix(err, status, "%s", path);
    }
    kva_buf_finish(&buf);
    return status;
}

enum kva_status kva_template_load(const char *path, const char *name, struct kva_template **ret,
                                  struct kva_err *err)
{
    char named_file[256];
    const char *wanted = name ? name : "default";
    const char *source_file = "chat_template.jinja";
    if (kva_gguf_is_path(path))
        return load_gguf(path, wanted, ret, err);
    if (strcmp(wanted, "default") != 0) {
        /* A name is part of a path: it must stay inside the directory. */
        int length =
            snprintf(named_file, sizeof(named_file), "additional_chat_templates/%s.jinja", wanted);
        if (strchr(wanted, '/') || length < 0 || (size_t)length >= sizeof(named_file))
            return kva_fail(err, KVA_EINVAL, "the chat template's name '%.64s' is not allowed",
                            wanted);
        source_file = named_file;
    }
    enum kva_status status = load_source(path, source_file, ret, err);
    if (status == KVA_ENOTFOUND)
        status = load_json(path, "tokenizer_config.json", wanted, ret, err);
    if (status == KVA_ENOTFOUND)
        status = load_json(path, "chat_template.json", wanted, ret, err);
    if (status == KVA_ENOTFOUND)
        return kva_fail(err, KVA_ENOTFOUND,
                        "%s: no chat template '%s' in %s, tokenizer_config.json or "
                        "chat_template.json",
                        path, wanted, source_file);
    return status;
}
