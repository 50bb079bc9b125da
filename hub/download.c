/* download.c - look at a file of a hub, fetch it from where it broke off, check it. */
#include "hub/download.h"

#include "base/log.h"
#include "hub/cache.h"
#include "hub/digest.h"
#include "hub/disk.h"
#include "hub/name.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ATTEMPTS_MAX 5u

/* One file on its way. */
struct transfer {
    struct kva_hub_download *download;
    const struct kva_hub_file *file;
    const char *path; /* of the incomplete blob */
    int fd;
    uint64_t bytes; /* that are there, and in the digest */
    struct kva_hub_digest digest;
    enum kva_hub_digest_kind kind;
    bool begun;     /* the answer that runs has been looked at */
    bool restarted; /* what was there has been thrown away once: it had no continuation */
    enum kva_status status;
    struct kva_err *err;
};

static char *url_path(const struct kva_hub_download *download, const char *file)
{
    struct kva_buf path;
    kva_buf_init(&path, 8192);
    kva_buf_printf(&path, "/%s/resolve/%s/", download->repository, download->commit);
    kva_hub_name_escape(file, &path);
    return kva_buf_take(&path, NULL);
}

/* --- looking --------------------------------------------------------------------------------- */

static enum kva_status check_look(const struct kva_hub_download *download,
                                  struct kva_hub_file *file, const struct kva_hub_answer *answer,
                                  struct kva_err *err)
{
    enum kva_hub_digest_kind kind;
    if (answer->fault != KVA_HUB_ANSWERED || answer->code >= 400)
        return kva_hub_download_explain(download->params, download->repository, download->commit,
                                        file->name, answer, err);
    if (strcmp(answer->commit, download->commit) != 0)
        return kva_fail(err, KVA_EFORMAT,
                        "%s:%s: the hub answers with %s%s where commit %s was asked for",
                        download->repository, file->name, answer->commit[0] ? "commit " : "none",
                        answer->commit, download->commit);
    if (!kva_hub_digest_kind_of(answer->etag, &kind))
        return kva_fail(err, KVA_EFORMAT,
                        "%s:%s: the hub gives no checksum to verify it by ('%.80s')",
                        download->repository, file->name, answer->etag);
    if (answer->bytes == KVA_HUB_SIZE_UNKNOWN)
        return kva_fail(err, KVA_EFORMAT, "%s:%s: the hub does not say how large it is",
                        download->repository, file->name);
    snprintf(file->etag, sizeof(file->etag), "%.64s", answer->etag);
    file->bytes = answer->bytes;
    return KVA_OK;
}

enum kva_status kva_hub_download_look(struct kva_hub_download *download, struct kva_hub_file *file,
                                      struct kva_err *err)
{
    struct kva_hub_answer answer;
    char *path = url_path(download, file->name);
    if (!path)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a URL");
    enum kva_status status = kva_hub_http_ask(download->http, path, true, NULL, &answer, err);
    free(path);
    if (!status)
        status = check_look(download, file, &answer, err);
    if (status)
        return status;
    uint64_t bytes;
    const struct kva_hub_places *places = download->params->places;
    char *blob = kva_hub_cache_blob(places, download->repository, file->etag, "");
    char *incomplete = kva_hub_cache_blob(places, download->repository, file->etag, ".incomplete");
    file->there = blob && kva_hub_disk_is_file(blob, &bytes) && bytes == file->bytes;
    if (incomplete && kva_hub_disk_is_file(incomplete, &bytes))
        file->begun = bytes < file->bytes ? bytes : file->bytes;
    free(blob);
    free(incomplete);
    return KVA_OK;
}

/* --- fetching -------------------------------------------------------------------------------- */

/* From the first byte again. */
static enum kva_status start_over(struct transfer *transfer, struct kva_err *err)
{
    char unused[KVA_HUB_DIGEST_TEXT];
    kva_hub_digest_end(&transfer->digest, unused);
    transfer->bytes = 0;
    if (ftruncate(transfer->fd, 0) != 0 || lseek(transfer->fd, 0, SEEK_SET) != 0)
        return kva_fail(err, KVA_EIO, "'%s' cannot be cut: %s", transfer->path, strerror(errno));
    return kva_hub_digest_begin(&transfer->digest, transfer->kind, transfer->file->bytes, err);
}

/* An answer may begin elsewhere than was asked for: at the first byte, or somewhere. */
static enum kva_status check_begin(struct transfer *transfer, const struct kva_hub_answer *answer)
{
    transfer->begun = true;
    if (answer->code == 206 && answer->from == transfer->bytes)
        return KVA_OK;
    if (answer->code == 200)
        return start_over(transfer, transfer->err);
    return kva_fail(transfer->err, KVA_EFORMAT,
                    "%s:%s: the hub sends bytes from %llu where %llu was asked for",
                    transfer->download->repository, transfer->file->name,
                    (unsigned long long)answer->from, (unsigned long long)transfer->bytes);
}

static bool take_body(void *opaque, const struct kva_hub_answer *answer, const char *bytes,
                      size_t count)
{
    struct transfer *transfer = opaque;
    const struct kva_hub_download *download = transfer->download;
    const struct kva_hub_params *params = download->params;
    if (!transfer->begun)
        transfer->status = check_begin(transfer, answer);
    if (!transfer->status && count > transfer->file->bytes - transfer->bytes)
        transfer->status = kva_fail(
            transfer->err, KVA_EFORMAT, "%s:%s: more comes than the %llu bytes announced",
            download->repository, transfer->file->name, (unsigned long long)transfer->file->bytes);
    if (!transfer->status)
        transfer->status =
            kva_hub_disk_write(transfer->fd, transfer->path, bytes, count, transfer->err);
    if (transfer->status)
        return false;
    kva_hub_digest_add(&transfer->digest, bytes, count);
    transfer->bytes += count;
    uint64_t done = download->done_bytes + transfer->bytes;
    /* The end is told once all is checked. */
    if (params->progress && done < download->total_bytes)
        params->progress(params->progress_opaque, done, download->total_bytes);
    return true;
}

/* What an earlier fetch has left. */
static enum kva_status open_incomplete(struct transfer *transfer, struct kva_err *err)
{
    transfer->fd = open(transfer->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    off_t end = transfer->fd >= 0 ? lseek(transfer->fd, 0, SEEK_END) : -1;
    if (end < 0)
        return kva_fail(err, KVA_EIO, "'%s' cannot be opened: %s", transfer->path, strerror(errno));
    enum kva_status status =
        kva_hub_digest_begin(&transfer->digest, transfer->kind, transfer->file->bytes, err);
    if (!status && (uint64_t)end > transfer->file->bytes)
        return start_over(transfer, err);
    if (!status)
        status = kva_hub_digest_add_file(&transfer->digest, transfer->fd, transfer->path,
                                         (uint64_t)end, transfer->download->params->cancelled, err);
    transfer->bytes = (uint64_t)end;
    return status;
}

/* Until all bytes are there. A break after more than ever came counts as the first of a new row: who
 * sends no ranges begins anew each time, and may break off at any place. */
static enum kva_status receive(struct transfer *transfer, const char *url, struct kva_err *err)
{
    unsigned attempt = 0;
    uint64_t most = transfer->bytes;
    struct kva_hub_download *download = transfer->download;
    while (transfer->bytes < transfer->file->bytes) {
        struct kva_hub_answer answer;
        uint64_t before = transfer->bytes;
        const struct kva_hub_call call = {
            .path = url, .from = before, .body = take_body, .opaque = transfer};
        transfer->begun = false;
        transfer->status = KVA_OK;
        transfer->err = err;
        enum kva_status status = kva_hub_http_once(download->http, &call, &answer, err);
        if (status)
            return status;
        if (transfer->status)
            return transfer->status;
        if (answer.fault == KVA_HUB_ANSWERED && answer.code == 416) {
            /* What is there is not of this content, or the content is shorter than was said. */
            if (transfer->restarted)
                return kva_fail(err, KVA_EFORMAT, "%s:%s: it ends after %llu of %llu bytes",
                                download->repository, transfer->file->name,
                                (unsigned long long)before,
                                (unsigned long long)transfer->file->bytes);
            transfer->restarted = true;
            status = start_over(transfer, err);
            if (!status)
                continue;
        } else if (answer.fault == KVA_HUB_ANSWERED && transfer->begun) {
            if (transfer->bytes < transfer->file->bytes)
                answer.fault = KVA_HUB_BROKEN;
            snprintf(answer.reason, sizeof(answer.reason), "it ends after %llu of %llu bytes",
                     (unsigned long long)transfer->bytes,
                     (unsigned long long)transfer->file->bytes);
        }
        if (status || transfer->bytes == transfer->file->bytes)
            return status;
        bool again = kva_hub_http_may_retry(&answer) ||
                     (answer.fault == KVA_HUB_NO_REACH && transfer->bytes > 0);
        attempt = transfer->bytes > most ? 0 : attempt + 1;
        if (!again || attempt == ATTEMPTS_MAX)
            return kva_hub_download_explain(download->params, download->repository,
                                            download->commit, transfer->file->name, &answer, err);
        if (attempt == 0)
            kva_log(KVA_LOG_WARN, "%s: %s; it goes on there", transfer->file->name, answer.reason);
        else
            status = kva_hub_http_wait(download->http, &answer, attempt - 1, err);
        most = kva_max_u64(most, transfer->bytes);
        if (status)
            return status;
    }
    return KVA_OK;
}

static enum kva_status check_content(struct transfer *transfer, struct kva_err *err)
{
    char text[KVA_HUB_DIGEST_TEXT];
    kva_hub_digest_end(&transfer->digest, text);
    if (strcmp(text, transfer->file->etag) == 0)
        return KVA_OK;
    unlink(transfer->path);
    return kva_fail(err, KVA_EFORMAT,
                    "%s:%s: its checksum is %s and should be %s; what came is removed, fetch it "
                    "again",
                    transfer->download->repository, transfer->file->name, text,
                    transfer->file->etag);
}

static enum kva_status fetch_blob(struct kva_hub_download *download,
                                  const struct kva_hub_file *file, const char *blob,
                                  const char *incomplete, struct kva_err *err)
{
    char unused[KVA_HUB_DIGEST_TEXT];
    struct transfer transfer = {.download = download, .file = file, .path = incomplete, .fd = -1};
    char *url = url_path(download, file->name);
    if (!url || !kva_hub_digest_kind_of(file->etag, &transfer.kind)) {
        free(url);
        return kva_fail(err, KVA_ENOMEM, "out of memory for a URL");
    }
    enum kva_status status = open_incomplete(&transfer, err);
    if (!status)
        status = receive(&transfer, url, err);
    if (!status)
        status = check_content(&transfer, err);
    else
        kva_hub_digest_end(&transfer.digest, unused);
    if (transfer.fd >= 0)
        close(transfer.fd);
    free(url);
    return status ? status : kva_hub_disk_publish(incomplete, blob, err);
}

static enum kva_status make_blob(struct kva_hub_download *download, struct kva_hub_file *file,
                                 const char *blob, const char *incomplete, const char *lock_path,
                                 struct kva_err *err)
{
    int lock = -1;
    uint64_t bytes;
    enum kva_status status = kva_hub_disk_make_parent(lock_path, err);
    if (!status)
        status = kva_hub_disk_make_parent(blob, err);
    if (!status)
        status = kva_hub_disk_lock(lock_path, download->params->cancelled, &lock, err);
    if (status)
        return status;
    file->there = kva_hub_disk_is_file(blob, &bytes) && bytes == file->bytes;
    if (!file->there)
        status = fetch_blob(download, file, blob, incomplete, err);
    file->there = !status;
    close(lock);
    return status;
}

enum kva_status kva_hub_download_file(struct kva_hub_download *download, struct kva_hub_file *file,
                                      struct kva_err *err)
{
    const struct kva_hub_places *places = download->params->places;
    char *blob = kva_hub_cache_blob(places, download->repository, file->etag, "");
    char *incomplete = kva_hub_cache_blob(places, download->repository, file->etag, ".incomplete");
    char *lock_path = kva_hub_cache_lock(places, download->repository, file->etag);
    enum kva_status status = KVA_OK;
    if (!blob || !incomplete || !lock_path)
        status = kva_fail(err, KVA_ENOMEM, "out of memory for a path");
    else if (!file->there)
        status = make_blob(download, file, blob, incomplete, lock_path, err);
    if (!status)
        status = kva_hub_cache_link(places, download->repository, download->commit, file->name,
                                    file->etag, err);
    free(blob);
    free(incomplete);
    free(lock_path);
    if (!status)
        download->done_bytes += file->bytes;
    return status;
}
