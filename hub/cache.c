/* cache.c - paths, refs, links and files of huggingface_hub's cache. */
#include "hub/cache.h"

#include "base/file.h"
#include "hub/disk.h"
#include "hub/name.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES_MAX 4096u
#define TREE_FDS       16

/* --- paths ----------------------------------------------------------------------------------- */

/* "org/name" -> "models--org--name" */
static void put_folder(struct kva_buf *path, const char *repository)
{
    kva_buf_puts(path, KVA_HUB_CACHE_PREFIX);
    for (const char *c = repository; *c; c++)
        kva_buf_puts(path, *c == '/' ? "--" : (const char[]){*c, '\0'});
}

static char *make_path(const struct kva_hub_places *places, const char *above,
                       const char *repository, const char *rest, const char *last)
{
    struct kva_buf path;
    kva_buf_init(&path, PATH_BYTES_MAX);
    kva_buf_printf(&path, "%s/%s", places->cache_path, above);
    put_folder(&path, repository);
    kva_buf_printf(&path, "/%s%s", rest, last);
    return kva_buf_take(&path, NULL);
}

char *kva_hub_cache_snapshot(const struct kva_hub_places *places, const char *repository,
                             const char *commit, const char *file)
{
    char rest[64];
    snprintf(rest, sizeof(rest), "snapshots/%.40s%s", commit, *file ? "/" : "");
    return make_path(places, "", repository, rest, file);
}

char *kva_hub_cache_blob(const struct kva_hub_places *places, const char *repository,
                         const char *etag, const char *suffix)
{
    char rest[96];
    snprintf(rest, sizeof(rest), "blobs/%.64s", etag);
    return make_path(places, "", repository, rest, suffix);
}

char *kva_hub_cache_lock(const struct kva_hub_places *places, const char *repository,
                         const char *etag)
{
    char last[96];
    snprintf(last, sizeof(last), "%.64s.lock", etag);
    return make_path(places, ".locks/", repository, "", last);
}

/* --- refs and links -------------------------------------------------------------------------- */

bool kva_hub_cache_get_ref(const struct kva_hub_places *places, const char *repository,
                           const char *revision, char ret[KVA_HUB_COMMIT_TEXT])
{
    struct kva_buf text;
    if (kva_hub_name_is_commit(revision)) {
        snprintf(ret, KVA_HUB_COMMIT_TEXT, "%s", revision);
        return true;
    }
    char *path = make_path(places, "", repository, "refs/", revision);
    kva_buf_init(&text, 256);
    bool ok = path && kva_file_read(AT_FDCWD, path, &text, NULL) == KVA_OK && text.data;
    if (ok) {
        text.data[strcspn(text.data, " \r\n")] = '\0';
        ok = kva_hub_name_is_commit(text.data);
        snprintf(ret, KVA_HUB_COMMIT_TEXT, "%s", ok ? text.data : "");
    }
    kva_buf_finish(&text);
    free(path);
    return ok;
}

enum kva_status kva_hub_cache_put_ref(const struct kva_hub_places *places, const char *repository,
                                      const char *revision, const char *commit, struct kva_err *err)
{
    char former[KVA_HUB_COMMIT_TEXT];
    if (kva_hub_cache_get_ref(places, repository, revision, former) && strcmp(former, commit) == 0)
        return KVA_OK;
    char *path = make_path(places, "", repository, "refs/", revision);
    if (!path)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a path");
    enum kva_status status = kva_hub_disk_make_parent(path, err);
    if (!status)
        status = kva_hub_disk_put(path, commit, err);
    free(path);
    return status;
}

/* As the library makes them: relative, so that the cache can be moved. */
static enum kva_status make_link(const char *path, const char *file, const char *etag,
                                 struct kva_err *err)
{
    char temporary[PATH_BYTES_MAX + 32], former[PATH_BYTES_MAX];
    struct kva_buf target;
    kva_buf_init(&target, PATH_BYTES_MAX);
    kva_buf_puts(&target, "../../");
    for (const char *c = file; *c; c++)
        kva_buf_puts(&target, *c == '/' ? "../" : "");
    kva_buf_printf(&target, "blobs/%s", etag);
    ssize_t length = readlink(path, former, sizeof(former));
    if (!target.failed && length == (ssize_t)target.length &&
        memcmp(former, target.data, target.length) == 0) {
        kva_buf_finish(&target);
        return KVA_OK;
    }
    snprintf(temporary, sizeof(temporary), "%s.%ld.new", path, (long)getpid());
    unlink(temporary);
    bool ok =
        !target.failed && symlink(target.data, temporary) == 0 && rename(temporary, path) == 0;
    int why = errno;
    kva_buf_finish(&target);
    if (ok)
        return KVA_OK;
    unlink(temporary);
    return kva_fail(err, KVA_EIO, "the link '%s' cannot be made: %s", path, strerror(why));
}

enum kva_status kva_hub_cache_link(const struct kva_hub_places *places, const char *repository,
                                   const char *commit, const char *file, const char *etag,
                                   struct kva_err *err)
{
    char *path = kva_hub_cache_snapshot(places, repository, commit, file);
    if (!path)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a path");
    enum kva_status status = kva_hub_disk_make_parent(path, err);
    if (!status)
        status = make_link(path, file, etag, err);
    free(path);
    return status;
}

/* --- what a snapshot has --------------------------------------------------------------------- */

/* nftw has no argument of the caller's. */
static _Thread_local struct {
    struct kva_hub_listing *listing;
    size_t skip;
    bool failed;
} walk;

static int add_file(const char *path, const struct stat *info KVA_UNUSED, int kind,
                    struct FTW *place KVA_UNUSED)
{
    bool file = (kind == FTW_F || kind == FTW_SL) && kva_hub_disk_is_file(path, NULL);
    if (file && strlen(path) > walk.skip && !kva_hub_listing_add(walk.listing, path + walk.skip))
        walk.failed = true;
    return walk.failed;
}

enum kva_status kva_hub_cache_files(const struct kva_hub_places *places, const char *repository,
                                    const char *commit, struct kva_hub_listing *ret,
                                    struct kva_err *err)
{
    char *path = kva_hub_cache_snapshot(places, repository, commit, "");
    struct kva_hub_listing listing = {0};
    if (!path)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a path");
    snprintf(listing.commit, sizeof(listing.commit), "%s", commit);
    walk.listing = &listing;
    walk.skip = strlen(path) + 1;
    walk.failed = false;
    nftw(path, add_file, TREE_FDS, FTW_PHYS);
    free(path);
    if (walk.failed) {
        kva_hub_listing_finish(&listing);
        return kva_fail(err, KVA_ENOMEM, "out of memory for the files of %s", repository);
    }
    *ret = listing;
    return KVA_OK;
}
