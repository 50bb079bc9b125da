/* folder.c - loading a tokenizer from the files of a folder. */
#include "text/tokenizer/folder.h"

#include "base/file.h"
#include "gguf/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JSON_NAME   "tokenizer.json"
#define MODEL_NAME  "tokenizer.model"
#define VOCAB_NAME  "vocab.json"
#define MERGES_NAME "merges.txt"
#define CONFIG_NAME "tokenizer_config.json"

/* ---- trees ----------------------------------------------------------------------------------- */

/* The trees of the small files; NULL where there is none. */
struct trees {
    struct kva_tok_place place; /* of config */
    cJSON *config, *added, *specials, *model_config;
};

static enum kva_status parse(const struct kva_tokenizer_file *file, const char *name,
                             struct kva_err *err, cJSON **ret)
{
    const struct kva_tok_place place = kva_tok_place_root(name, err);
    if (!file->data)
        return KVA_OK;
    return kva_tok_json_parse(&place, file->data, file->length, KVA_TOKENIZER_CONFIG_BYTES_MAX,
                              ret);
}

static void finish_trees(struct trees *trees)
{
    cJSON_Delete(trees->config);
    cJSON_Delete(trees->added);
    cJSON_Delete(trees->specials);
    cJSON_Delete(trees->model_config);
}

/* Of a folder without tokenizer.json: the files that say what it would. */
static enum kva_status parse_others(const struct kva_tokenizer_files *files, struct trees *trees,
                                    struct kva_err *err)
{
    enum kva_status status = parse(&files->added, "added_tokens.json", err, &trees->added);
    if (!status)
        status = parse(&files->specials, "special_tokens_map.json", err, &trees->specials);
    if (!status)
        status = parse(&files->model_config, "config.json", err, &trees->model_config);
    if (!status && !trees->config)
        trees->config = cJSON_CreateObject();
    if (!status && !trees->config)
        status = kva_tok_complain(&trees->place, KVA_ENOMEM, "no memory");
    return status;
}

static enum kva_status build_old(const struct kva_tokenizer_files *files, struct trees *trees,
                                 cJSON *root, struct kva_err *err, struct kva_tokenizer **ret)
{
    const char *name = files->model.data ? MODEL_NAME : VOCAB_NAME;
    const struct kva_tok_place place = kva_tok_place_root(name, err);
    enum kva_status status = parse_others(files, trees, err);
    if (!status && trees->specials)
        status = kva_added_take_map(&trees->place, trees->specials, trees->config);
    if (status)
        return status;
    if (files->model.data)
        status = kva_sentencepiece_tree(&place, &files->model, &trees->place, trees->config, root);
    else
        status = kva_vocab_merges_tree(&place, files, &trees->place, trees->config,
                                       cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(
                                           trees->model_config, "model_type")),
                                       root);
    if (!status)
        status = kva_added_take(&trees->place, trees->added, trees->config);
    return status ? status
                  : kva_tokenizer_build_with(&place, root, &trees->place, trees->config, ret);
}

static enum kva_status build(const struct kva_tokenizer_files *files, struct trees *trees,
                             struct kva_err *err, struct kva_tokenizer **ret)
{
    const struct kva_tok_place place = kva_tok_place_root(JSON_NAME, err);
    cJSON *root = NULL;
    enum kva_status status = parse(&files->config, CONFIG_NAME, err, &trees->config);
    if (!status && files->json.data)
        status = kva_tok_json_parse(&place, files->json.data, files->json.length,
                                    KVA_TOKENIZER_FILE_BYTES_MAX, &root);
    else if (!status && (root = cJSON_CreateObject()) == NULL)
        status = kva_tok_complain(&place, KVA_ENOMEM, "no memory");
    if (!status)
        status = files->json.data
                     ? kva_tokenizer_build_with(&place, root, &trees->place, trees->config, ret)
                     : build_old(files, trees, root, err, ret);
    cJSON_Delete(root);
    return status;
}

/* What there has to be; `has` as faccessat finds it. */
static void say_lacks(bool json, bool model, bool vocab, bool merges, struct kva_buf *out)
{
    if (json || model || (vocab && merges))
        return;
    if (vocab || merges)
        kva_buf_printf(out, "%s, to which %s belongs", vocab ? MERGES_NAME : VOCAB_NAME,
                       vocab ? VOCAB_NAME : MERGES_NAME);
    else
        kva_buf_puts(out, "a tokenizer (" JSON_NAME ", " MODEL_NAME ", or " VOCAB_NAME
                          " with " MERGES_NAME ")");
}

enum kva_status kva_tokenizer_load_files(const struct kva_tokenizer_files *files,
                                         struct kva_tokenizer **ret_tokenizer, struct kva_err *err)
{
    struct kva_err ignored;
    struct kva_buf lacks;
    struct trees trees = {.place = kva_tok_place_root(CONFIG_NAME, err ? err : &ignored)};
    enum kva_status status;
    kva_buf_init(&lacks, KVA_ERR_MESSAGE_MAX);
    say_lacks(files->json.data, files->model.data, files->vocab.data, files->merges.data, &lacks);
    if (lacks.length > 0 || lacks.failed)
        status = kva_fail(err, KVA_ENOTFOUND, "the model's folder lacks %s",
                          lacks.data ? lacks.data : "a tokenizer");
    else
        status = build(files, &trees, trees.place.err, ret_tokenizer);
    finish_trees(&trees);
    kva_buf_finish(&lacks);
    return status;
}

enum kva_status kva_tokenizer_load_buffers(const char *json, size_t json_length,
                                           const char *config_json, size_t config_length,
                                           struct kva_tokenizer **ret_tokenizer,
                                           struct kva_err *err)
{
    const struct kva_tokenizer_files files = {.json = {json, json_length},
                                              .config = {config_json, config_length}};
    return kva_tokenizer_load_files(&files, ret_tokenizer, err);
}

/* ---- files ----------------------------------------------------------------------------------- */

static enum kva_status load_gguf_file(const char *path, struct kva_tokenizer **ret_tokenizer,
                                      struct kva_err *err)
{
    struct kva_gguf_file *file;
    enum kva_status status = kva_gguf_file_open(path, &file, err);
    if (status)
        return status;
    status = kva_tokenizer_load_gguf(&file->gguf, ret_tokenizer, err);
    kva_gguf_file_close(file);
    return status;
}

/* ret->data stays NULL, with KVA_OK, if there is no such file. */
static enum kva_status read_file(int dir_fd, const char *name, size_t bytes_max,
                                 struct kva_tokenizer_file *ret, struct kva_err *err)
{
    struct kva_buf data;
    kva_buf_init(&data, bytes_max);
    enum kva_status status = kva_file_read(dir_fd, name, &data, err);
    if (status == KVA_OK && data.length == 0)
        status = kva_fail(err, KVA_EFORMAT, "%s: the file is empty", name);
    else if (status == KVA_OK)
        ret->data = kva_buf_take(&data, &ret->length);
    kva_buf_finish(&data);
    return status == KVA_ENOTFOUND ? KVA_OK : status;
}

/* The others only where there is no tokenizer.json. */
static enum kva_status read_files(int dir_fd, struct kva_tokenizer_files *files,
                                  struct kva_err *err)
{
    const size_t large = KVA_TOKENIZER_FILE_BYTES_MAX, small = KVA_TOKENIZER_CONFIG_BYTES_MAX;
    const struct {
        const char *name;
        size_t bytes_max;
        struct kva_tokenizer_file *file;
        bool old;
    } table[] = {
        {JSON_NAME, large, &files->json, false},
        {CONFIG_NAME, small, &files->config, false},
        {MODEL_NAME, large, &files->model, true},
        {VOCAB_NAME, large, &files->vocab, true},
        {MERGES_NAME, large, &files->merges, true},
        {"added_tokens.json", small, &files->added, true},
        {"special_tokens_map.json", small, &files->specials, true},
        {"config.json", small, &files->model_config, true},
    };
    enum kva_status status = KVA_OK;
    for (size_t i = 0; i < KVA_COUNT_OF(table) && !status; i++)
        if (!table[i].old || !files->json.data)
            status = read_file(dir_fd, table[i].name, table[i].bytes_max, table[i].file, err);
    return status;
}

static void free_files(struct kva_tokenizer_files *files)
{
    const struct kva_tokenizer_file *all[] = {&files->json,     &files->model,       &files->vocab,
                                              &files->merges,   &files->config,      &files->added,
                                              &files->specials, &files->model_config};
    for (size_t i = 0; i < KVA_COUNT_OF(all); i++)
        free((char *)(uintptr_t)all[i]->data);
}

enum kva_status kva_tokenizer_load(const char *path, struct kva_tokenizer **ret_tokenizer,
                                   struct kva_err *err)
{
    struct kva_tokenizer_files files = {.json = {NULL, 0}};
    if (kva_gguf_is_path(path))
        return load_gguf_file(path, ret_tokenizer, err);
    int dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0)
        return kva_fail(err, errno == ENOENT || errno == ENOTDIR ? KVA_ENOTFOUND : KVA_EIO,
                        "%s: cannot open the model's folder: %s", path, strerror(errno));
    enum kva_status status = read_files(dir_fd, &files, err);
    close(dir_fd);
    if (!status)
        status = kva_tokenizer_load_files(&files, ret_tokenizer, err);
    free_files(&files);
    return status ? kva_err_prefix(err, status, "%s", path) : KVA_OK;
}

void kva_tokenizer_folder_lacks(const char *path, struct kva_buf *out)
{
    static const char *const names[] = {JSON_NAME, MODEL_NAME, VOCAB_NAME, MERGES_NAME};
    bool has[KVA_COUNT_OF(names)] = {false};
    int dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; dir_fd >= 0 && i < KVA_COUNT_OF(names); i++)
        has[i] = faccessat(dir_fd, names[i], F_OK, 0) == 0;
    if (dir_fd >= 0)
        close(dir_fd);
    say_lacks(has[0], has[1], has[2], has[3], out);
}
