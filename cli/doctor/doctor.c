/* doctor.c - the command `doctor`: everything that `serve` does with these options up to serving,
 * each thing by itself, so that all that is wrong is told at once. */
#include "cli/doctor/doctor.h"

#include "base/log.h"
#include "cli/cli.h"
#include "cli/cluster.h"
#include "cli/front.h"
#include "cli/models.h"
#include "hub/places.h"
#include "server/grammar/grammars.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Less than this holds no model worth fetching. */
#define CACHE_BYTES_MIN ((uint64_t)2 << 30)

#define GIB(bytes)      ((double)(bytes) / (1u << 30))
#define MIB(bytes)      ((double)(bytes) / (1u << 20))

/* --- the program ----------------------------------------------------------------------------- */

/* Whether the device tier would be a GPU's. */
static bool judge_gpu(const struct kva_config *config, struct kva_findings *findings)
{
    char what[512];
    const char *device = config->device ? config->device : "auto";
    bool wanted = strncmp(device, "cuda", 4) == 0, automatic = strcmp(device, "auto") == 0;
    bool any = kva_cli_instance_find_gpu(what, sizeof(what));
    if (!any && wanted)
        kva_findings_add(findings, KVA_VERDICT_FAIL, "GPU",
                         "--device cpu, or auto; docs/cuda.md has what a GPU needs.",
                         "--device %s, but %s", device, what);
    else if (!any)
        kva_findings_add(findings, KVA_VERDICT_NOTE, "GPU", NULL, "none: %s", what);
    else if (!wanted && !automatic)
        kva_findings_add(findings, KVA_VERDICT_WARN, "GPU", "--device auto takes it.",
                         "%s, which --device %s leaves alone", what, device);
    else
        kva_findings_add(findings, KVA_VERDICT_OK, "GPU", NULL, "%s", what);
    return any && (wanted || automatic);
}

/* --- caches ---------------------------------------------------------------------------------- */

/* The folder itself, or the nearest above it that is there. */
static void find_existing(char *path)
{
    struct stat info;
    while (stat(path, &info) != 0) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) {
            snprintf(path, 2, "/");
            return;
        }
        *slash = '\0';
    }
}

static void judge_cache(const char *subject, const char *path, const char *advice,
                        struct kva_findings *findings)
{
    char there[4096];
    struct statvfs disk;
    snprintf(there, sizeof(there), "%s", path);
    find_existing(there);
    if (access(there, W_OK | X_OK) != 0) {
        kva_findings_add(findings, KVA_VERDICT_WARN, subject, advice, "%s cannot be written to: %s",
                         path, strerror(errno));
    } else if (statvfs(there, &disk) == 0) {
        uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize;
        bool little = room < CACHE_BYTES_MIN;
        kva_findings_add(findings, little ? KVA_VERDICT_WARN : KVA_VERDICT_OK, subject,
                         little ? advice : NULL, "%s, %.1f GiB free", path, GIB(room));
    }
}

static void judge_caches(const struct kva_config *config, struct kva_findings *findings)
{
    struct kva_hub_places places;
    struct kva_err err;
    if (kva_hub_places_init(&places, config->env, &err)) {
        kva_findings_add(findings, KVA_VERDICT_WARN, "models", NULL, "%s", err.message);
        return;
    }
    if (places.known_path)
        judge_cache("models", places.known_path,
                    "Set XDG_CACHE_HOME to a folder of a larger disk, or give --model a path.",
                    findings);
    else
        kva_findings_add(findings, KVA_VERDICT_WARN, "models",
                         "Set HOME or XDG_CACHE_HOME, or give --model a path.",
                         "there is no home folder: models cannot be fetched by name");
    kva_hub_places_finish(&places);
    if (config->weights_cache)
        judge_cache("weights' cache", config->weights_cache,
                    "Give --weights-cache a folder that this user may write to.", findings);
}

/* --- the front end --------------------------------------------------------------------------- */

static void judge_secret(const char *subject, const char *path, struct kva_findings *findings)
{
    struct stat info;
    if (path && stat(path, &info) == 0 && (info.st_mode & S_IROTH))
        kva_findings_add(findings, KVA_VERDICT_WARN, subject, "chmod 600, as the server's user.",
                         "%s can be read by everybody on this machine", path);
}

static void judge_front(const struct kva_config *config, struct kva_findings *findings)
{
    struct kva_cli_front front;
    struct kva_server *server = NULL;
    struct kva_err err = {0};
    enum kva_status status = kva_cli_check_reach(config, &err);
    if (status)
        kva_findings_add(findings, KVA_VERDICT_FAIL, "reach", NULL, "%s", err.message);
    status = kva_cli_front_init(&front, config, &err);
    if (!status)
        status = kva_server_create(&front.params, &server, &err);
    if (status)
        kva_findings_add(findings, KVA_VERDICT_FAIL, "front end",
                         strstr(err.message, strerror(EADDRINUSE))
                             ? "Another --port; if it is this server that has it, all is well."
                             : NULL,
                         "%s", err.message);
    else
        kva_findings_add(
            findings, KVA_VERDICT_OK, "front end", NULL, "%s:%u can be served%s%s", config->host,
            kva_server_port(server), config->tls_cert ? ", with TLS" : "",
            config->api_key_file || config->api_keys.count ? ", to who has a key" : "");
    if (front.params.connections_max < config->connections)
        kva_findings_add(findings, KVA_VERDICT_WARN, "descriptors",
                         "Raise the limit (ulimit -n, LimitNOFILE=), or lower --connections.",
                         "the system allows %u connections at a time, --connections is %llu",
                         front.params.connections_max, (unsigned long long)config->connections);
    judge_secret("keys", config->api_key_file, findings);
    judge_secret("TLS key", config->tls_key, findings);
    kva_server_destroy(server);
    kva_cli_front_finish(&front);
}

/* Whether its address can be listened on is tried with the model. */
static void judge_cluster(const struct kva_config *config, struct kva_findings *findings)
{
    struct kva_err err;
    if (!config->cluster_listen)
        return;
    if (kva_cli_cluster_check(config, &err))
        kva_findings_add(findings, KVA_VERDICT_FAIL, "cluster", NULL, "%s", err.message);
    else
        kva_findings_add(findings, KVA_VERDICT_OK, "cluster", NULL,
                         "%s, at %s; etcd is not asked here", config->cluster_name,
                         config->cluster_listen);
    judge_secret("cluster's secret", config->cluster_secret_file, findings);
}

/* --- the model ------------------------------------------------------------------------------- */

/* The longest sequence, in whole pages, that fits alone. */
static uint32_t longest_that_fits(const struct kva_engine *engine, const struct kva_kv_spec *spec)
{
    uint32_t low = 0, high = engine->limits.context_max / 64;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (kva_model_engine_fit(engine, spec, middle * 64) > 0)
            low = middle;
        else
            high = middle - 1;
    }
    return low * 64;
}

static void judge_room(const struct kva_cli_instance *instance, struct kva_findings *findings)
{
    const struct kva_engine *engine = instance->engine;
    const struct kva_kv_spec *spec = &instance->kv.specs[instance->kv.policy];
    const char *policy = kva_kv_policy_name(spec->policy);
    uint32_t context = engine->limits.context_max;
    uint64_t fit = kva_model_engine_fit(engine, spec, context);
    if (fit > 0)
        kva_findings_add(findings, KVA_VERDICT_OK, "room", NULL,
                         "%llu sequences of %u tokens, the whole context, under %s, in tiers of "
                         "%.1f GiB (device) and %.1f GiB (host)",
                         (unsigned long long)fit, context, policy,
                         GIB(engine->limits.budget.device), GIB(engine->limits.budget.host));
    else
        kva_findings_add(findings, KVA_VERDICT_WARN, "room",
                         "Larger tiers (--device-memory, --host-memory), another policy (--kv), or "
                         "a --context that says what is there.",
                         "a sequence of %u tokens, the whole context, does not fit under %s; one "
                         "of %u does, longer requests are refused",
                         context, policy, longest_that_fits(engine, spec));
}

static void judge_grammars(const struct kva_cli_instance *instance, struct kva_findings *findings)
{
    const struct kva_model_config *config = &instance->model->config;
    const struct kva_grammars_params params = {
        .vocab = {instance->tokenizer, config->vocab_size, config->eos_ids, config->eos_count},
        .mask_threads = 1,
    };
    struct kva_grammars *grammars = NULL;
    struct kva_err err = {0};
    if (kva_grammars_create(&params, &grammars, &err))
        kva_findings_add(findings, KVA_VERDICT_WARN, "structured output", NULL,
                         "requests for it are refused: %s", err.message);
    else
        kva_findings_add(findings, KVA_VERDICT_OK, "structured output", NULL, "can be asked for");
    kva_grammars_destroy(grammars);
}

/* Nothing is fetched. */
static void judge_model(const struct kva_config *config, const struct kva_machine *machine,
                        bool gpu, struct kva_findings *findings)
{
    struct kva_cli_instance instance;
    struct kva_config own = *config;
    struct kva_err err = {0};
    own.offline = true;
    if (!config->model) {
        kva_findings_add(findings, KVA_VERDICT_NOTE, "model", NULL,
                         "none given: --model MODEL has it looked at, and what would fit");
        kva_doctor_judge_tiers(machine, config->host_memory + (gpu ? 0 : config->device_memory),
                               gpu, findings);
        return;
    }
    if (kva_cli_instance_open(&instance, &own, KVA_CLI_TEXTS_CHATS, NULL, &err)) {
        kva_findings_add(findings, KVA_VERDICT_FAIL, "model", NULL, "%s", err.message);
        return;
    }
    kva_findings_add(findings, KVA_VERDICT_OK, "model", NULL,
                     "%s: %s, %.0f million parameters, weights of %.0f MiB", instance.name,
                     instance.model->config.model_type,
                     (double)instance.model->parameter_count / 1e6,
                     MIB(instance.model->weight_bytes));
    kva_findings_add(findings, KVA_VERDICT_OK, "device", NULL, "%s",
                     kva_device_get_info(instance.device)->name);
    if (instance.model->headless)
        kva_findings_add(findings, KVA_VERDICT_NOTE, "output matrix", NULL,
                         "none, it is a base model: /v1/embeddings is answered, chats and "
                         "completions are refused");
    else if (!instance.chat_template)
        kva_findings_add(findings, KVA_VERDICT_WARN, "chat template",
                         "Put a chat_template.jinja beside the model, or ask for completions.",
                         "none: chat requests are refused");
    if (kva_cli_check_default(&instance, &err))
        kva_findings_add(findings, KVA_VERDICT_FAIL, "policy", NULL, "%s", err.message);
    else
        judge_room(&instance, findings);
    const struct kva_tier_bytes *budget = &instance.engine->limits.budget;
    kva_doctor_judge_tiers(machine, budget->host + (gpu ? 0 : budget->device), gpu, findings);
    judge_grammars(&instance, findings);
    kva_cli_instance_close(&instance);
}

/* --- the command ----------------------------------------------------------------------------- */

static enum kva_status put_result(const struct kva_config *config,
                                  const struct kva_findings *findings, struct kva_err *err)
{
    struct kva_buf text;
    enum kva_status status = KVA_OK;
    kva_buf_init(&text, KVA_CLI_OUTPUT_BYTES);
    if (!kva_cli_is_stdout(config->json)) {
        kva_findings_print(findings, &text);
        status = kva_cli_write(KVA_CLI_STDOUT, &text, err);
    }
    if (!status && config->json) {
        kva_buf_clear(&text);
        status = kva_findings_json(findings, &text, err);
        if (!status)
            status = kva_cli_write(config->json, &text, err);
    }
    kva_buf_finish(&text);
    return status;
}

int kva_cli_doctor(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_findings findings = {0};
    struct kva_machine machine;
    struct kva_err err = {0};
    if (rest->count > 0)
        return kva_cli_unexpected("doctor", rest, KVA_CLI_BY_MODEL);
    if (kva_cli_check_writable(config->json, &err))
        return kva_cli_fail(&err);
    /* Findings say what a log would. */
    kva_log_setup(STDERR_FILENO, KVA_LOG_OFF, KVA_LOG_TEXT);
    kva_machine_read("", &machine);
    kva_findings_add(&findings, KVA_VERDICT_OK, "program", NULL, "kvahead " KVA_VERSION);
    bool gpu = judge_gpu(config, &findings);
    kva_doctor_judge_machine(&machine, config, &findings);
    judge_caches(config, &findings);
    judge_front(config, &findings);
    judge_cluster(config, &findings);
    judge_model(config, &machine, gpu, &findings);
    enum kva_status status = put_result(config, &findings, &err);
    bool failed = kva_findings_count(&findings, KVA_VERDICT_FAIL) > 0;
    kva_findings_finish(&findings);
    if (status)
        return kva_cli_fail(&err);
    return failed ? KVA_EXIT_FAILURE : KVA_EXIT_OK;
}
