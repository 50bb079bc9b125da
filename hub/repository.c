/* repository.c - a snapshot from the cache, or listed and fetched. */
#include "hub/repository.h"

#include "base/file.h"
#include "base/log.h"
#include "hub/cache.h"
#include "hub/disk.h"
#include "hub/download.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- what is there --------------------------------------------------------------------------- */

static enum kva_status read_index(const struct kva_hub_places *places, const char *repository,
                                  struct kva_hub_choice *choice, struct kva_err *err)
{
    struct kva_buf text;
    char *path =
        kva_hub_cache_snapshot(places, repository, choice->files.commit, choice->files.files[0]);
    if (!path)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a path");
    kva_buf_init(&text, KVA_HUB_JSON_BYTES_MAX);
    enum kva_status status = kva_file_read(AT_FDCWD, path, &text, err);
    if (!status)
        status = kva_hub_choice_add_index(choice, text.data ? text.data : "", text.length, err);
    kva_buf_finish(&text);
    free(path);
    return status;
}

static enum kva_status set_found(const struct kva_hub_name *name,
                                 const struct kva_hub_places *places,
                                 const struct kva_hub_choice *choice, struct kva_hub_found *ret,
                                 struct kva_err *err)
{
    const char *file = choice->gguf ? choice->files.files[0] : "";
    ret->path = kva_hub_cache_snapshot(places, name->repository, choice->files.commit, file);
    snprintf(ret->name, sizeof(ret->name), "%s", name->repository);
    return ret->path ? KVA_OK : kva_fail(err, KVA_ENOMEM, "out of memory for a path");
}

/* A snapshot that has all files of the model. *ret_settled: and what it commonly has besides. ret_commit
 * (KVA_HUB_COMMIT_TEXT): which it is. */
static enum kva_status find_cached(const struct kva_hub_name *name,
                                   const struct kva_hub_places *places, struct kva_hub_found *ret,
                                   char *ret_commit, bool *ret_settled, struct kva_err *err)
{
    struct kva_hub_listing listing;
    struct kva_hub_choice choice = {0};
    if (!kva_hub_cache_get_ref(places, name->repository, name->revision, ret_commit))
        return kva_fail(err, KVA_ENOTFOUND, "%s is not in the cache (%s) at revision '%s'",
                        name->repository, places->cache_path, name->revision);
    enum kva_status status =
        kva_hub_cache_files(places, name->repository, ret_commit, &listing, err);
    if (status)
        return status;
    status = kva_hub_listing_choose(&listing, name->file, name->repository, &choice, err);
    /* What the repository has is not known by that. */
    if (status == KVA_EUNSUPPORTED || status == KVA_ENOTFOUND)
        status = kva_fail(err, KVA_ENOTFOUND, "the cache (%s) has no model of %s%s%s",
                          places->cache_path, name->repository, *name->file ? ":" : "", name->file);
    if (!status && choice.index)
        status = read_index(places, name->repository, &choice, err);
    for (size_t i = 0; i < choice.files.count && !status; i++) {
        if (!kva_hub_listing_has(&listing, choice.files.files[i]))
            status = kva_fail(err, KVA_ENOTFOUND, "the cache (%s) lacks %s of %s",
                              places->cache_path, choice.files.files[i], name->repository);
    }
    if (!status)
        status = set_found(name, places, &choice, ret, err);
    *ret_settled = choice.settled;
    kva_hub_choice_finish(&choice);
    kva_hub_listing_finish(&listing);
    return status;
}

bool kva_hub_repository_is_cached(const struct kva_hub_name *name,
                                  const struct kva_hub_places *places)
{
    char commit[KVA_HUB_COMMIT_TEXT];
    return places->cache_path &&
           kva_hub_cache_get_ref(places, name->repository, name->revision, commit);
}

/* --- fetching -------------------------------------------------------------------------------- */

static enum kva_status ask_listing(const struct kva_hub_name *name, struct kva_hub_http *http,
                                   const struct kva_hub_params *params, struct kva_hub_listing *ret,
                                   enum kva_hub_fault *ret_fault, struct kva_err *err)
{
    struct kva_buf path, text;
    struct kva_hub_answer answer;
    kva_buf_init(&path, 4096);
    kva_buf_init(&text, KVA_HUB_JSON_BYTES_MAX);
    kva_buf_printf(&path, "/api/models/%s/revision/", name->repository);
    /* One part of a path, slashes and all. */
    for (const char *c = name->revision; *c; c++) {
        if (*c == '/')
            kva_buf_puts(&path, "%2F");
        else
            kva_hub_name_escape((const char[]){*c, '\0'}, &path);
    }
    enum kva_status status = path.failed
                                 ? kva_fail(err, KVA_ENOMEM, "out of memory for a URL")
                                 : kva_hub_http_ask(http, path.data, false, &text, &answer, err);
    /* A hub that has no time is as good as away. */
    bool busy = status ? status == KVA_EBUSY : answer.code >= 500 || answer.code == 429;
    *ret_fault = busy ? KVA_HUB_BROKEN : status ? KVA_HUB_ANSWERED : answer.fault;
    if (!status) {
        if (answer.fault != KVA_HUB_ANSWERED || answer.code != 200)
            status = kva_hub_download_explain(params, name->repository, name->revision, NULL,
                                              &answer, err);
        else
            status = kva_hub_listing_parse(text.data ? text.data : "", text.length, ret, err);
    }
    kva_buf_finish(&path);
    kva_buf_finish(&text);
    return status;
}

/* Looks at files from `first` on, and makes sure that there is room for what is missing. */
static enum kva_status look_at(struct kva_hub_download *download, struct kva_hub_file *files,
                               size_t first, size_t count, struct kva_err *err)
{
    uint64_t missing = 0;
    enum kva_status status = KVA_OK;
    for (size_t i = first; i < count && !status; i++) {
        status = kva_hub_download_look(download, &files[i], err);
        if (status)
            return status;
        if (files[i].bytes > UINT64_MAX / 4 || missing > UINT64_MAX / 4)
            return kva_fail(err, KVA_EFORMAT, "%s:%s: the hub says it has %llu bytes",
                            download->repository, files[i].name,
                            (unsigned long long)files[i].bytes);
        missing += files[i].there ? 0 : files[i].bytes - files[i].begun;
        download->total_bytes += files[i].bytes;
    }
    const char *cache_path = download->params->places->cache_path;
    if (missing > 0)
        status = kva_hub_disk_make(cache_path, err);
    if (!status && missing > 0)
        status = kva_hub_disk_check_room(cache_path, missing, err);
    if (!status && missing > 0)
        kva_log(KVA_LOG_INFO, "fetching %s at %.12s, %.1f MiB in %zu file%s, to %s",
                download->repository, download->commit, (double)missing / (1 << 20), count - first,
                count - first == 1 ? "" : "s", cache_path);
    return status;
}

static enum kva_status fetch_files(struct kva_hub_download *download, struct kva_hub_choice *choice,
                                   struct kva_err *err)
{
    size_t first = 0;
    struct kva_hub_file *files = NULL, *grown;
    enum kva_status status = KVA_OK;
    /* The index first: it says what else there is. */
    for (size_t done = 0; done < choice->files.count && !status; done = first) {
        size_t count = choice->index && done == 0 ? 1 : choice->files.count;
        grown = realloc(files, count * sizeof(*files));
        if (!grown) {
            status = kva_fail(err, KVA_ENOMEM, "out of memory for a list of files");
            break;
        }
        files = grown;
        for (size_t i = first; i < count; i++)
            files[i] = (struct kva_hub_file){.name = choice->files.files[i]};
        status = look_at(download, files, first, count, err);
        for (size_t i = first; i < count && !status; i++)
            status = kva_hub_download_file(download, &files[i], err);
        first = count;
        if (!status && choice->index && done == 0)
            status = read_index(download->params->places, download->repository, choice, err);
    }
    free(files);
    const struct kva_hub_params *params = download->params;
    if (!status && params->progress)
        params->progress(params->progress_opaque, download->total_bytes, download->total_bytes);
    return status;
}

static enum kva_status fetch(const struct kva_hub_name *name, const struct kva_hub_params *params,
                             struct kva_hub_found *ret, enum kva_hub_fault *ret_fault,
                             struct kva_err *err)
{
    struct kva_hub_http *http = NULL;
    struct kva_hub_listing listing = {0};
    struct kva_hub_choice choice = {0};
    enum kva_status status = kva_hub_places_check_hub(params->places, err);
    if (!status)
        status = kva_hub_http_create(params, &http, err);
    if (status)
        return status;
    status = ask_listing(name, http, params, &listing, ret_fault, err);
    if (!status)
        status = kva_hub_listing_choose(&listing, name->file, name->repository, &choice, err);
    if (!status) {
        struct kva_hub_download download = {
            .http = http,
            .params = params,
            .repository = name->repository,
            .commit = choice.files.commit,
        };
        status = fetch_files(&download, &choice, err);
        /* It told what there is, and then could be asked no more. */
        if (status == KVA_EIO || status == KVA_EBUSY)
            *ret_fault = KVA_HUB_BROKEN;
    }
    if (!status && !kva_hub_name_is_commit(name->revision))
        status = kva_hub_cache_put_ref(params->places, name->repository, name->revision,
                                       choice.files.commit, err);
    if (!status)
        status = set_found(name, params->places, &choice, ret, err);
    kva_hub_choice_finish(&choice);
    kva_hub_listing_finish(&listing);
    kva_hub_http_destroy(http);
    return status;
}

/* The hub could not be asked, as against: it has refused. */
static bool is_away(enum kva_hub_fault fault)
{
    return fault == KVA_HUB_NO_HOST || fault == KVA_HUB_NO_REACH || fault == KVA_HUB_NO_TLS ||
           fault == KVA_HUB_BROKEN;
}

enum kva_status kva_hub_repository_find(const struct kva_hub_name *name,
                                        const struct kva_hub_params *params,
                                        struct kva_hub_found *ret, struct kva_err *err)
{
    struct kva_hub_found cached = {0};
    struct kva_hub_name asked = *name;
    char commit[KVA_HUB_COMMIT_TEXT] = "";
    bool settled = false, offline = params->offline || params->places->offline;
    enum kva_hub_fault fault = KVA_HUB_ANSWERED;
    enum kva_status status = kva_hub_places_check(params->places->cache_path, err);
    if (status)
        return status;
    status = find_cached(name, params->places, &cached, commit, &settled, err);
    if (offline && status)
        return kva_err_prefix(err, status, "offline");
    if (offline || (!status && settled && !params->update)) {
        *ret = cached;
        return KVA_OK;
    }
    /* Whatever else is of the commit that is here, another model too: newer ones come by pull. */
    if (*commit && !params->update)
        snprintf(asked.revision, sizeof(asked.revision), "%s", commit);
    status = fetch(&asked, params, ret, &fault, err);
    /* Its history has been written anew. */
    if (status == KVA_ENOTFOUND && strcmp(asked.revision, name->revision) != 0)
        status = fetch(name, params, ret, &fault, err);
    if (status && cached.path && !params->update && is_away(fault)) {
        kva_log(KVA_LOG_WARN, "%s; what is in the cache is used", err ? err->message : "");
        *ret = cached;
        return KVA_OK;
    }
    free(cached.path);
    return status;
}
