/* instance.c - from the options to an engine. */
#include "cli/instance.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mapped.h"
#include "cli/cluster.h"
#include "cli/machine.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "engine/forward.h"
#include "engine/model/packed.h"
#include "engine/model/skew.h"
#include "engine/planes.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of what weights leave of a GPU: for the scratch of the layers, of attention and of selection. */
#define SCRATCH_BYTES ((uint64_t)1 << 30)
#define SCRATCH_SHARE 32u

/* What a GPU has free beside the weights if it is taken unasked. */
#define UNASKED_BYTES ((uint64_t)512 << 20)

/* For another process that makes the int8 weights of the same model: some minutes for large ones.
 */
#define LOCK_WAIT_MS (10u * 60 * 1000)

/* Tokens of a step by default. What streams waits for a step, so it is no longer than what a device
 * needs to multiply as fast as it can: a GPU reads its weights once for all of them, and takes as many
 * as have room in this share of what weights leave. */
#define CPU_STEP_TOKENS  256u
#define GPU_STEP_TOKENS  2048u
#define STEP_BYTES_SHARE 8u

/* Tiers by default: enough for real use, small enough to leave the machine to its other tenants. */
#define AUTO_BUDGET_SHARE 4

/* --- parts ----------------------------------------------------------------------------------- */

static uint32_t cpu_level_mask(uint32_t choice)
{
    /* Choice 0 is "auto"; the others name the highest level, and every lower one stays in use. */
    return choice == 0 ? 0 : (1u << choice) - 1;
}

/* Without .gguf, and -00001-of-0000N before it. */
static size_t stem_length(const char *path, size_t length)
{
    const char end[] = ".gguf", part[] = "-00001-of-";
    const size_t number = 5, part_length = strlen(part) + number;
    if (length > strlen(end) && strncmp(path + length - strlen(end), end, strlen(end)) == 0)
        length -= strlen(end);
    if (length > part_length && strncmp(path + length - part_length, part, strlen(part)) == 0)
        length -= part_length;
    return length;
}

/* The last component of a path, without what a file's name ends in. */
static void copy_stem(const char *path, char *out, size_t size)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    length = stem_length(path, length);
    size_t start = length;
    while (start > 0 && path[start - 1] != '/')
        start--;
    snprintf(out, size, "%.*s", (int)(length - start), path + start);
}

static void set_name(struct kva_cli_instance *instance, const struct kva_config *config)
{
    const size_t size = sizeof(instance->name);
    if (config->model_name) {
        snprintf(instance->name, size, "%s", config->model_name);
        return;
    }
    copy_stem(config->model, instance->name, size);
    /* "." and ".." are no names: the folder's own is meant. */
    const bool dots = strcmp(instance->name, ".") == 0 || strcmp(instance->name, "..") == 0;
    char *real = dots ? realpath(config->model, NULL) : NULL;
    if (real)
        copy_stem(real, instance->name, size);
    free(real);
}

static enum kva_status open_model(struct kva_cli_instance *instance,
                                  const struct kva_config *config, struct kva_err *err)
{
    struct kva_cli_progress progress = {.what = "loading", .last_ns = kva_time_ns()};
    const struct kva_model_open_params params = {
        .path = config->model,
        .threads = (uint32_t)config->threads,
        .packed = config->weights != KVA_WEIGHTS_BF16,
        .progress = kva_cli_progress_show,
        .progress_opaque = &progress,
        .cancelled = instance->cancelled,
        .prefetch = config->weights <= KVA_WEIGHTS_BF16,
    };
    /* A model's file that is cut while it is in use is an error like others. */
    enum kva_status status = kva_mapped_catch(err);
    return status ? status : kva_model_open(&params, &instance->model, err);
}

/* Matrices in fewer bits, where they are wanted or the file has them so. */
static enum kva_status pack(struct kva_cli_instance *instance, const struct kva_config *config,
                            struct kva_err *err)
{
    struct kva_cli_progress progress = {.what = "packing", .last_ns = kva_time_ns()};
    const struct kva_model_pack_params params = {
        .weights = (enum kva_model_weights)config->weights,
        .path = config->model,
        .cache_path = config->weights_cache,
        .threads = (uint32_t)config->threads,
        .lock_wait_ms = LOCK_WAIT_MS,
        .cancelled = instance->cancelled,
        .progress = kva_cli_progress_show,
        .progress_opaque = &progress,
    };
    return kva_model_pack(instance->model, &params, err);
}

/* For policies that want it. */
static enum kva_status load_skew(struct kva_cli_instance *instance, const struct kva_config *config,
                                 struct kva_err *err)
{
    struct kva_cli_progress progress = {.what = "checking", .last_ns = kva_time_ns()};
    const struct kva_skew_file_params params = {
        .path = config->model,
        .file = config->skew,
        .threads = (uint32_t)config->threads,
        .cancelled = instance->cancelled,
        .progress = kva_cli_progress_show,
        .progress_opaque = &progress,
    };
    return kva_skew_load(instance->model, &params, err);
}

/* Templates that the model has; an option's is for all requests. */
static enum kva_status open_templates(struct kva_cli_instance *instance,
                                      const struct kva_config *config, struct kva_err *err)
{
    if (config->chat_template)
        return kva_template_load_file(config->chat_template, &instance->chat_template, err);
    enum kva_status status = kva_template_load(config->model, NULL, &instance->chat_template, err);
    if (!status || status == KVA_ENOTFOUND)
        status = kva_template_load(config->model, "tool_use", &instance->tool_template, err);
    return status == KVA_ENOTFOUND ? KVA_OK : status;
}

static enum kva_status open_texts(struct kva_cli_instance *instance,
                                  const struct kva_config *config, enum kva_cli_texts texts,
                                  struct kva_err *err)
{
    enum kva_status status = kva_tokenizer_load(config->model, &instance->tokenizer, err);
    if (status)
        return status;
    uint32_t vocab = kva_tokenizer_vocab_size(instance->tokenizer);
    if (vocab > instance->model->config.vocab_size)
        kva_log(KVA_LOG_WARN,
                "the tokenizer has ids up to %u, the model only %u embeddings: prompts with "
                "larger ids are refused",
                vocab - 1, instance->model->config.vocab_size);
    /* Descendants of a model often say only there what they were trained to end with. */
    kva_model_config_add_eos(&instance->model->config, kva_tokenizer_eos(instance->tokenizer));
    return texts == KVA_CLI_TEXTS_CHATS ? open_templates(instance, config, err) : KVA_OK;
}

/* Where the CUDA module may be: installed, beside the program, or in the build folder. The first
 * that is there, else the first. */
static void find_cuda_module(char *path, size_t size)
{
    static const char *const places[] = {"kvahead-cuda.so", "kernels/cuda/kvahead-cuda.so",
                                         "../lib/kvahead/kvahead-cuda.so",
                                         "../lib/x86_64-linux-gnu/kvahead/kvahead-cuda.so"};
    char program[2048];
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash)
        *slash = '\0';
    for (size_t i = KVA_COUNT_OF(places); i-- > 0;) {
        snprintf(path, size, "%s/%s", program, places[i]);
        if (access(path, R_OK) == 0)
            return;
    }
}

static enum kva_status open_cuda(const struct kva_cli_instance *instance,
                                 const struct kva_config *config, uint32_t index,
                                 struct kva_device **ret, struct kva_err *err)
{
    char path[4096];
    const struct kva_device_params device = {
        .gpu_index = index,
        .act = instance->model->config.dtype,
        .gpu_bytes_max = config->gpu_memory,
    };
    find_cuda_module(path, sizeof(path));
    if (access(path, R_OK) != 0)
        return kva_fail(err, KVA_ENOTFOUND, "no GPU: this program was built without CUDA");
    return kva_device_open_cuda(path, &device, ret, err);
}

bool kva_cli_instance_find_gpu(char *ret, size_t size)
{
    char path[4096];
    struct kva_device *device = NULL;
    struct kva_err err;
    const struct kva_device_params params = {.act = KVA_BF16};
    find_cuda_module(path, sizeof(path));
    if (access(path, R_OK) != 0) {
        snprintf(ret, size, "this program was built without CUDA");
    } else if (kva_device_open_cuda(path, &params, &device, &err)) {
        snprintf(ret, size, "%s", err.message);
    } else {
        snprintf(ret, size, "%s", kva_device_get_info(device)->name);
        kva_device_close(device);
        return true;
    }
    return false;
}

static enum kva_status open_cpu(const struct kva_config *config, uint32_t threads,
                                struct kva_device **ret, struct kva_err *err)
{
    const struct kva_device_params device = {
        .threads = threads,
        .cpu_level_mask = cpu_level_mask(config->cpu_levels),
        .prefault = config->prefault,
    };
    return kva_device_open_cpu(&device, ret, err);
}

/* Whether there is an NVIDIA driver. Without one CUDA's libraries, which take 145 MiB and a sixth of
 * a second to load, would be loaded for nothing. */
static bool has_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver)
        dlclose(driver);
    return driver != NULL;
}

/* The first GPU, if it takes the model; else false, and why. */
static bool open_first_gpu(struct kva_cli_instance *instance, const struct kva_config *config)
{
    struct kva_err why;
    if (!has_driver()) {
        snprintf(instance->device_why, sizeof(instance->device_why),
                 "no GPU: this machine has no NVIDIA driver");
        return false;
    }
    if (open_cuda(instance, config, 0, &instance->device, &why)) {
        snprintf(instance->device_why, sizeof(instance->device_why), "%s", why.message);
        return false;
    }
    const struct kva_device_info *info = kva_device_get_info(instance->device);
    const uint64_t weights = instance->model->weight_bytes;
    enum kva_status status = kva_model_engine_check(instance->device, instance->model, &why);
    if (!status && info->free_bytes >= weights + UNASKED_BYTES)
        return true;
    if (status)
        snprintf(instance->device_why, sizeof(instance->device_why), "%s", why.message);
    else
        snprintf(
            instance->device_why, sizeof(instance->device_why),
            "no room for %.1f MiB of weights and %.0f MiB beside them: %.1f MiB may be taken of %s",
            (double)weights / (1 << 20), (double)UNASKED_BYTES / (1 << 20),
            (double)info->free_bytes / (1 << 20), info->name);
    kva_device_close(instance->device);
    instance->device = NULL;
    return false;
}

static enum kva_status open_device(struct kva_cli_instance *instance,
                                   const struct kva_config *config, struct kva_err *err)
{
    const char *wanted = config->device ? config->device : "auto";
    uint32_t threads = (uint32_t)config->threads;
    char *end = NULL;
    if (strcmp(wanted, "cpu") == 0)
        return open_cpu(config, threads, &instance->device, err);
    if (strcmp(wanted, "auto") == 0) {
        instance->on_gpu = open_first_gpu(instance, config);
        return instance->on_gpu ? KVA_OK : open_cpu(config, threads, &instance->device, err);
    }
    unsigned long index = strncmp(wanted, "cuda:", 5) == 0 ? strtoul(wanted + 5, &end, 10) : 0;
    if (strcmp(wanted, "cuda") != 0 && (!end || end == wanted + 5 || *end || index > 1024))
        return kva_fail_param(err, KVA_EINVAL, "device",
                              "device is '%s', it must be auto, cpu or cuda:N", wanted);
    instance->on_gpu = true;
    instance->gpu_index = (uint32_t)index;
    return open_cuda(instance, config, instance->gpu_index, &instance->device, err);
}

enum kva_status kva_cli_instance_open_device(const struct kva_cli_instance *instance,
                                             const struct kva_config *config, uint32_t threads,
                                             struct kva_device **ret, struct kva_err *err)
{
    return instance->on_gpu ? open_cuda(instance, config, instance->gpu_index, ret, err)
                            : open_cpu(config, threads, ret, err);
}

/* What weights leave of a GPU. */
static uint64_t gpu_left(const struct kva_cli_instance *instance)
{
    uint64_t there = kva_device_get_info(instance->device)->free_bytes;
    uint64_t weights = instance->model->weight_bytes;
    return there > weights ? there - weights : 0;
}

uint64_t kva_cli_instance_gpu_room(const struct kva_cli_instance *instance)
{
    uint64_t left = gpu_left(instance);
    uint64_t scratch = SCRATCH_BYTES + left / SCRATCH_SHARE;
    return left > 2 * scratch ? left - scratch : left / 2;
}

/* A share of free memory, or what a GPU has, without the weights that are there a second time. */
static uint64_t device_budget(const struct kva_cli_instance *instance,
                              const struct kva_config *config, uint64_t share)
{
    uint64_t room = kva_device_get_info(instance->device)->free_bytes
                        ? kva_cli_instance_gpu_room(instance)
                        : share;
    uint64_t planes = kva_planes_bytes(instance->model, (uint32_t)config->skew_planes);
    return room > planes ? room - planes : 0;
}

static uint32_t step_tokens_of(const struct kva_cli_instance *instance,
                               const struct kva_config *config)
{
    const size_t act = kva_dtype_bytes(kva_device_get_info(instance->device)->act);
    const uint64_t row = kva_forward_row_bytes(&instance->model->config, act);
    const uint64_t least = 2 * config->sequences; /* each may have a speculative row */
    uint64_t tokens = instance->on_gpu ? GPU_STEP_TOKENS : CPU_STEP_TOKENS;
    if (config->step_tokens > 0)
        return (uint32_t)config->step_tokens;
    while (tokens > CPU_STEP_TOKENS && tokens * row > gpu_left(instance) / STEP_BYTES_SHARE)
        tokens /= 2;
    return (uint32_t)(tokens > least ? tokens : least);
}

/* With keys, a choice may have to give its slot to another key's and waits for one with its host
 * memory: of N keys that come one after another, the first has filled all slots, the second takes
 * half of them, the third a third. Three times the slots are enough for ten. */
static uint32_t admitted_max(const struct kva_config *config, uint32_t step_tokens)
{
    uint64_t slots = config->sequences;
    if (config->api_keys.count == 0 && !config->api_key_file)
        return (uint32_t)slots;
    uint64_t most = 3 * slots < step_tokens ? 3 * slots : step_tokens;
    return (uint32_t)(most > slots ? most : slots);
}

static enum kva_status open_engine(struct kva_cli_instance *instance,
                                   const struct kva_config *config, struct kva_err *err)
{
    uint64_t room = kva_memory_available();
    uint64_t share = room / AUTO_BUDGET_SHARE;
    const uint32_t step_tokens = step_tokens_of(instance, config);
    const struct kva_model_engine_params params = {
        .device = instance->device,
        .model = instance->model,
        .budget = {config->device_memory ? config->device_memory
                                         : device_budget(instance, config, share),
                   config->host_memory ? config->host_memory : share},
        .context_max = (uint32_t)config->context,
        .sequences_max = admitted_max(config, step_tokens),
        .step_tokens_max = step_tokens,
        .prefix_cache = config->prefix_cache,
        .kv_dtype = (enum kva_dtype)config->kv_dtype,
        .planes_percent = (uint32_t)config->skew_planes,
        .remote = kva_cli_cluster_remote(instance->cluster),
    };
    uint64_t tiers = params.budget.host + params.budget.device;
    if (config->prefault && !instance->on_gpu &&
        kva_machine_check_tiers(room, tiers, false, err) != KVA_OK)
        return kva_err_prefix(err, err->status,
                              "--prefault takes --device-memory and "
                              "--host-memory whole");
    return kva_model_engine_create(&params, &instance->engine, err);
}

/* All that the folder lacks is said at once, before any of it is read. */
static enum kva_status check_folder(const char *path, bool texts, struct kva_err *err)
{
    struct kva_buf lacks;
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return KVA_OK; /* it is opened, and complained of, as what it is */
    kva_buf_init(&lacks, KVA_ERR_MESSAGE_MAX);
    kva_model_folder_lacks(path, &lacks);
    if (texts) {
        struct kva_buf more;
        kva_buf_init(&more, KVA_ERR_MESSAGE_MAX);
        kva_tokenizer_folder_lacks(path, &more);
        if (more.length > 0)
            kva_buf_printf(&lacks, "%s%.*s", lacks.length > 0 ? "; " : "", (int)more.length,
                           more.data);
        kva_buf_finish(&more);
    }
    enum kva_status status = KVA_OK;
    if (lacks.length > 0)
        status = kva_fail(err, KVA_ENOTFOUND,
                          "%s lacks %.*s. A model's folder is what `kvahead pull ORG/NAME` makes",
                          path, (int)lacks.length, lacks.data);
    kva_buf_finish(&lacks);
    return status;
}

/* `config` names the model's folder or file. */
static enum kva_status open_found(struct kva_cli_instance *instance,
                                  const struct kva_config *config, enum kva_cli_texts texts,
                                  struct kva_err *err)
{
    const atomic_bool *cancelled = instance->cancelled;
    set_name(instance, config);
    enum kva_status status = check_folder(config->model, texts != KVA_CLI_TEXTS_IF_ANY, err);
    if (!status)
        status = open_model(instance, config, err);
    if (!status)
        status = open_texts(instance, config, texts, err);
    if (status == KVA_ENOTFOUND && texts == KVA_CLI_TEXTS_IF_ANY && !instance->tokenizer &&
        instance->model)
        status = KVA_OK;
    if (!status)
        status = load_skew(instance, config, err);
    if (!status)
        status = kva_model_check_cancelled(cancelled, err);
    if (!status)
        status = open_device(instance, config, err);
    if (!status)
        status = kva_model_engine_check(instance->device, instance->model, err);
    if (!status)
        status = pack(instance, config, err);
    if (!status)
        status = kva_model_check_cancelled(cancelled, err);
    if (!status && config->cluster_listen)
        status = kva_cli_cluster_open(instance, config, &instance->cluster, err);
    if (!status)
        status = open_engine(instance, config, err);
    if (!status)
        status = kva_model_check_cancelled(cancelled, err);
    if (status)
        kva_cli_instance_close(instance);
    return status;
}

/* The name goes into answers and metrics: an empty one, as of a variable that is not set, is none that
 * a client could ask for. */
static enum kva_status check_name(const struct kva_cli_instance *instance,
                                  const struct kva_config *config, struct kva_err *err)
{
    const size_t length = config->model_name ? strlen(config->model_name) : 1;
    if (length > 0 && length < sizeof(instance->name))
        return KVA_OK;
    return kva_fail_param(err, KVA_EINVAL, "model-name",
                          "--model-name is '%.40s%s' of %zu bytes, it must have 1 to %zu",
                          config->model_name, length > 40 ? "..." : "", length,
                          sizeof(instance->name) - 1);
}

enum kva_status kva_cli_instance_open(struct kva_cli_instance *instance,
                                      const struct kva_config *config, enum kva_cli_texts texts,
                                      const atomic_bool *cancelled, struct kva_err *err)
{
    struct kva_hub_found found;
    struct kva_config own = *config;
    *instance = (struct kva_cli_instance){.cancelled = cancelled};
    kva_cli_kv_init(&instance->kv);
    enum kva_status status = check_name(instance, config, err);
    if (!status)
        status = kva_cli_kv_read(&instance->kv, config, err);
    if (!status)
        status = kva_cli_model_find(config, config->model, false, cancelled, &found, err);
    if (status)
        return status;
    own.model = found.path;
    if (!own.model_name && found.name[0])
        own.model_name = found.name;
    status = open_found(instance, &own, texts, err);
    free(found.path);
    return status;
}

enum kva_status kva_cli_instance_renew_engine(struct kva_cli_instance *instance,
                                              const struct kva_config *config, struct kva_err *err)
{
    kva_model_engine_destroy(instance->engine);
    instance->engine = NULL;
    return open_engine(instance, config, err);
}

enum kva_status kva_cli_instance_check_head(const struct kva_cli_instance *instance,
                                            struct kva_err *err)
{
    if (!instance->model->headless)
        return KVA_OK;
    return kva_fail(err, KVA_EUNSUPPORTED,
                    "%s is a base model without an output matrix: it makes vectors of texts, with "
                    "kvahead serve and /v1/embeddings, and no text",
                    instance->name);
}

void kva_cli_instance_close(struct kva_cli_instance *instance)
{
    kva_cli_cluster_close(instance->cluster);
    kva_model_engine_destroy(instance->engine);
    kva_template_destroy(instance->chat_template);
    kva_template_destroy(instance->tool_template);
    kva_tokenizer_destroy(instance->tokenizer);
    kva_model_close(instance->model);
    kva_device_close(instance->device);
    *instance = (struct kva_cli_instance){0};
}
