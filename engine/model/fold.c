/* fold.c - the folder of a folded checkpoint. */
#include "engine/model/fold.h"

#include "base/file.h"
#include "engine/model/files.h"
#include "engine/model/packed_file.h"
#include "kernels/convert.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)4 << 20)

/* --- what can be folded ----------------------------------------------------------------------- */

/* The file that has the tensor as it is used; NULL: none. */
static const struct kva_model_shard *shard_of(const struct kva_model *model,
                                              const struct kva_tensor *tensor)
{
    const uintptr_t at = (uintptr_t)tensor->data;
    for (size_t i = 0; i < model->files->shard_count; i++) {
        const struct kva_model_shard *shard = &model->files->shards[i];
        const uintptr_t first = (uintptr_t)shard->map;
        if (at >= first && at < first + shard->map_bytes)
            return shard;
    }
    return NULL;
}

static bool is_plain(const struct kva_model *model, const struct kva_tensor *tensor)
{
    return !tensor->data ||
           (shard_of(model, tensor) &&
            (tensor->dtype == KVA_F32 || tensor->dtype == KVA_F16 || tensor->dtype == KVA_BF16));
}

enum kva_status kva_fold_check(const struct kva_model *model, const char *path,
                               const char *out_path, struct kva_err *err)
{
    const struct kva_model_config *c = &model->config;
    if (access(out_path, F_OK) == 0)
        return kva_fail(err, KVA_EINVAL, "%s is there already; a new folder is to be made",
                        out_path);
    if (c->rope.rotary_dim > 0)
        return kva_fail(err, KVA_EUNSUPPORTED,
                        "a %s model turns its queries and keys by their position (RoPE), which no "
                        "matrix can be folded through: it is skewed where they are used, without "
                        "--fold",
                        c->model_type);
    if (c->qk_norm)
        return kva_fail(err, KVA_EUNSUPPORTED,
                        "a %s model norms its queries and keys, which no matrix can be folded "
                        "through",
                        c->model_type);
    for (uint32_t i = 0; i < c->layer_count; i++) {
        const struct kva_layer_tensors *t = &model->layers[i];
        if (model->files->shards[0].gguf.data || !is_plain(model, &t->q) ||
            !is_plain(model, &t->q_bias) || !is_plain(model, &t->k) || !is_plain(model, &t->k_bias))
            return kva_fail(err, KVA_EUNSUPPORTED,
                            "%s: layer %u has its queries' or keys' matrices in a form that cannot "
                            "be folded; a folder with safetensors in 16 or 32 bits is needed, and "
                            "--weights auto",
                            path, i);
    }
    return KVA_OK;
}

/* --- folding ---------------------------------------------------------------------------------- */

static void put_number(void *to, enum kva_dtype dtype, size_t index, double value)
{
    if (dtype == KVA_F32)
        ((float *)to)[index] = (float)value;
    else
        ((uint16_t *)to)[index] = kva_16_of_f32((float)value, dtype);
}

/* Rows of one head, or numbers of its bias: out = A^T x, [head_dim][cols] each. */
static void fold_head(const struct kva_tensor *tensor, size_t first, uint32_t cols, const float *a,
                      uint32_t d, void *out)
{
    for (uint32_t j = 0; j < d; j++) {
        for (uint32_t c = 0; c < cols; c++) {
            double sum = 0;
            for (uint32_t i = 0; i < d; i++)
                sum +=
                    (double)a[(size_t)i * d + j] *
                    (double)kva_f32_at(tensor->data, tensor->dtype, first + (size_t)i * cols + c);
            put_number(out, tensor->dtype, first + (size_t)j * cols + c, sum);
        }
    }
}

struct fold {
    const struct kva_model *model;
    const struct kva_fold_params *params;
    struct kva_err *err;
    char new_path[1024];
    int dir_fd; /* of the new folder; -1: none */
    uint64_t done, total;
};

static enum kva_status failed(const struct fold *fold, const char *name)
{
    return kva_fail(fold->err, KVA_EIO, "%s/%s: %s", fold->new_path, name, strerror(errno));
}

/* A tensor's skewed numbers over those that the copy has. `heads` of them, of which `group` share a
 * KV head. */
static enum kva_status fold_tensor(struct fold *fold, const struct kva_model_shard *shard, int fd,
                                   const struct kva_tensor *tensor, uint32_t layer, uint32_t heads)
{
    const struct kva_skew *skew = fold->params->skew;
    const uint32_t d = skew->head_dim, group = heads / skew->kv_heads;
    const size_t count = (size_t)tensor->rows * tensor->cols;
    const uint32_t cols = (uint32_t)(count / ((size_t)heads * d));
    const size_t bytes = count * kva_dtype_bytes(tensor->dtype);
    if (!tensor->data || shard_of(fold->model, tensor) != shard)
        return KVA_OK;
    void *folded = malloc(bytes);
    if (!folded)
        return kva_fail(fold->err, KVA_ENOMEM, "out of memory for a matrix of %zu bytes", bytes);
    for (uint32_t head = 0; head < heads; head++)
        fold_head(tensor, (size_t)head * d * cols, cols,
                  skew->basis + kva_skew_basis_at(skew, layer, head / group), d, folded);
    const bool ok =
        kva_file_write_at(fd, folded, bytes, (uintptr_t)tensor->data - (uintptr_t)shard->map);
    free(folded);
    return ok ? KVA_OK : failed(fold, shard->name);
}

static enum kva_status fold_layers(struct fold *fold, const struct kva_model_shard *shard, int fd)
{
    const struct kva_model_config *c = &fold->model->config;
    enum kva_status status = KVA_OK;
    for (uint32_t i = 0; i < c->layer_count && !status; i++) {
        const struct kva_layer_tensors *t = &fold->model->layers[i];
        const struct kva_tensor *const tensors[] = {&t->q, &t->q_bias, &t->k, &t->k_bias};
        status = kva_model_check_cancelled(fold->params->cancelled, fold->err);
        for (size_t j = 0; j < KVA_COUNT_OF(tensors) && !status; j++)
            status = fold_tensor(fold, shard, fd, tensors[j], i, j < 2 ? c->heads : c->kv_heads);
    }
    return status;
}

/* --- files ------------------------------------------------------------------------------------ */

static enum kva_status copy_bytes(struct fold *fold, const char *name, int fd, const void *data,
                                  size_t bytes)
{
    enum kva_status status = KVA_OK;
    for (size_t at = 0; at < bytes && !status; at += PIECE_BYTES) {
        const size_t piece = kva_min_size(PIECE_BYTES, bytes - at);
        status = kva_model_check_cancelled(fold->params->cancelled, fold->err);
        if (!status && !kva_file_write_at(fd, (const unsigned char *)data + at, piece, at))
            status = failed(fold, name);
        fold->done += piece;
        if (!status && fold->params->progress)
            fold->params->progress(fold->params->progress_opaque, fold->done, fold->total);
    }
    return status;
}

/* A file of the new folder, with this content; `shard`: of this one, folded. */
static enum kva_status write_file(struct fold *fold, const char *name, const void *data,
                                  size_t bytes, const struct kva_model_shard *shard)
{
    int fd = openat(fold->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return failed(fold, name);
    enum kva_status status = copy_bytes(fold, name, fd, data, bytes);
    if (!status && shard)
        status = fold_layers(fold, shard, fd);
    if (!status && fsync(fd) != 0)
        status = failed(fold, name);
    if (close(fd) != 0 && !status)
        status = failed(fold, name);
    return status;
}

/* Texts are small; weights are shards. */
#define OTHER_BYTES_MAX ((size_t)1 << 30)

static enum kva_status copy_other(struct fold *fold, int from_fd, const char *name)
{
    struct kva_buf content;
    kva_buf_init(&content, OTHER_BYTES_MAX);
    enum kva_status status = kva_file_read(from_fd, name, &content, fold->err);
    if (!status)
        status = write_file(fold, name, content.data, content.length, NULL);
    kva_buf_finish(&content);
    return status;
}

static bool is_shard(const struct kva_model *model, const char *name)
{
    for (size_t i = 0; i < model->files->shard_count; i++) {
        if (strcmp(model->files->shards[i].name, name) == 0)
            return true;
    }
    return false;
}

/* What goes along: configuration, tokenizer, licence. Not folders, hidden files and other forms of
 * the weights. */
static bool is_wanted(int from_fd, const char *name)
{
    struct stat info;
    return name[0] != '.' &&
           strncmp(name, KVA_PACKED_FILE_NAME, strlen(KVA_PACKED_FILE_NAME)) != 0 &&
           fstatat(from_fd, name, &info, 0) == 0 && S_ISREG(info.st_mode) &&
           (size_t)info.st_size <= OTHER_BYTES_MAX && !strstr(name, ".safetensors") &&
           !strstr(name, ".bin") && !strstr(name, ".gguf") && !strstr(name, ".pt");
}

static enum kva_status copy_others(struct fold *fold)
{
    DIR *from = opendir(fold->params->path);
    enum kva_status status = KVA_OK;
    if (!from)
        return kva_fail(fold->err, KVA_EIO, "%s: %s", fold->params->path, strerror(errno));
    for (struct dirent *entry; !status && (entry = readdir(from));) {
        const bool index = strcmp(entry->d_name, "model.safetensors.index.json") == 0;
        if ((index || is_wanted(dirfd(from), entry->d_name)) &&
            !is_shard(fold->model, entry->d_name))
            status = copy_other(fold, dirfd(from), entry->d_name);
    }
    closedir(from);
    return status;
}

/* --- the folder ------------------------------------------------------------------------------- */

/* Remove what an attempt before has left, which are files of names that the model has, too. Others are
 * somebody's: then nothing is removed. */
static enum kva_status empty_folder(const struct fold *fold)
{
    const int own = dup(fold->dir_fd);
    DIR *folder = own >= 0 ? fdopendir(own) : NULL;
    enum kva_status status = KVA_OK;
    if (!folder) {
        if (own >= 0)
            close(own);
        return KVA_OK;
    }
    for (int removes = 0; removes < 2 && !status; removes++) {
        rewinddir(folder);
        for (struct dirent *entry; !status && (entry = readdir(folder));) {
            char path[sizeof(fold->new_path) + 256];
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                continue;
            snprintf(path, sizeof(path), "%s/%s", fold->params->path, entry->d_name);
            if (removes)
                (void)unlinkat(fold->dir_fd, entry->d_name, 0);
            else if (access(path, F_OK) != 0)
                status = kva_fail(fold->err, KVA_EINVAL,
                                  "%s is there already, and has '%s', which the model has not: "
                                  "it would be removed",
                                  fold->new_path, entry->d_name);
        }
    }
    closedir(folder);
    return status;
}

static enum kva_status open_folder(struct fold *fold)
{
    const char *out = fold->params->out_path;
    if (snprintf(fold->new_path, sizeof(fold->new_path), "%s.new", out) >=
        (int)sizeof(fold->new_path))
        return kva_fail(fold->err, KVA_EINVAL, "the path of '%.100s...' is too long", out);
    if (mkdir(fold->new_path, 0777) != 0 && errno != EEXIST)
        return kva_fail(fold->err, KVA_EIO, "%s: cannot make the folder: %s", fold->new_path,
                        strerror(errno));
    int fd = open(fold->new_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return kva_fail(fold->err, KVA_EIO, "%s: %s", fold->new_path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return kva_fail(fold->err, KVA_EBUSY, "another process writes %s", fold->new_path);
    }
    fold->dir_fd = fd;
    return empty_folder(fold);
}

static enum kva_status write_all(struct fold *fold)
{
    const struct kva_model_files *files = fold->model->files;
    enum kva_status status = KVA_OK;
    for (size_t i = 0; i < files->shard_count && !status; i++) {
        const struct kva_model_shard *shard = &files->shards[i];
        status = write_file(fold, shard->name, shard->map, shard->map_bytes, shard);
    }
    if (!status)
        status = copy_others(fold);
    if (!status)
        status = kva_model_check(fold->model, fold->err);
    if (!status && rename(fold->new_path, fold->params->out_path) != 0)
        status = kva_fail(fold->err, KVA_EIO, "%s cannot be renamed to %s: %s", fold->new_path,
                          fold->params->out_path, strerror(errno));
    return status;
}

enum kva_status kva_fold_write(const struct kva_model *model, const struct kva_fold_params *params,
                               struct kva_err *err)
{
    struct fold fold = {.model = model,
                        .params = params,
                        .err = err,
                        .dir_fd = -1,
                        .total = kva_model_files_bytes(model->files)};
    enum kva_status status = kva_fold_check(model, params->path, params->out_path, err);
    if (!status)
        status = open_folder(&fold);
    if (!status)
        status = write_all(&fold);
    if (status && fold.dir_fd >= 0) {
        (void)empty_folder(&fold);
        (void)rmdir(fold.new_path);
    }
    if (fold.dir_fd >= 0)
        close(fold.dir_fd);
    return status;
}
