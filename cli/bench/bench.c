/* bench.c - `kvahead bench`: from the options to the rows, with no more memory than there is. */
#include "cli/bench/bench.h"

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory left to the rest of the machine: a part of what is free, and at least so much. */
#define SPARE_SHARE 10
#define SPARE_BYTES (512ull << 20)

#define BATCH_MAX   4096u
#define TOKENS_MAX  (1u << 24)

/* --- what to measure ------------------------------------------------------------------------- */

static enum kva_status add_policy(struct kva_bench *bench, const struct kva_cli_kv *kv,
                                  const char *label, struct kva_err *err)
{
    for (uint32_t i = 0; i < bench->spec_count; i++) {
        if (strcmp(bench->labels[i], label) == 0)
            return kva_fail_param(err, KVA_EINVAL, "compare",
                                  "--compare '%.100s': each policy is measured once", label);
    }
    if (bench->spec_count == KVA_BENCH_SPECS_MAX)
        return kva_fail_param(err, KVA_EINVAL, "compare", "--compare: at most %u policies",
                              KVA_BENCH_SPECS_MAX);
    struct kva_err why;
    enum kva_status status =
        kva_kv_spec_parse(label, kv->specs, &bench->specs[bench->spec_count], &why);
    if (status)
        return kva_fail_param(err, status, "compare", "--compare: %s", why.message);
    bench->labels[bench->spec_count++] = label;
    return KVA_OK;
}

static enum kva_status read_policies(struct kva_bench *bench, struct kva_err *err)
{
    const struct kva_config *config = bench->config;
    struct kva_cli_kv kv;
    kva_cli_kv_init(&kv);
    /* With random weights a speculative token is hardly ever right, and its every miss would be
     * paid for: that is measured if asked for. */
    for (uint32_t id = 0; id < KVA_KV_POLICY_COUNT; id++) {
        if (kva_kv_has_setting((enum kva_kv_policy_id)id, KVA_SETTING_ON_MISPREDICT))
            kv.specs[id].on_mispredict = KVA_MISPREDICT_CHAIN;
    }
    enum kva_status status = kva_cli_kv_read(&kv, config, err);
    if (status)
        return status;
    bench->labels[0] = config->kv.count ? config->kv.items[0] : kva_kv_policy_name(kv.policy);
    bench->specs[bench->spec_count++] = kv.specs[kv.policy];
    for (uint32_t i = 0; !status && i < config->bench_compare.count; i++)
        status = add_policy(bench, &kv, config->bench_compare.items[i], err);
    return status;
}

static enum kva_status read_options(struct kva_bench *bench, struct kva_err *err)
{
    const struct kva_config *config = bench->config;
    enum kva_status status = kva_bench_parse_list(config->bench_prefill, "prefill", TOKENS_MAX,
                                                  false, &bench->prefill, err);
    if (!status)
        status = kva_bench_parse_list(config->bench_batch, "batch", BATCH_MAX, false, &bench->batch,
                                      err);
    if (!status)
        status = kva_bench_parse_list(config->bench_depth, "depth", TOKENS_MAX, true, &bench->depth,
                                      err);
    if (!status && config->bench_cpu_time && config->threads != 1)
        status = kva_fail_param(err, KVA_EINVAL, "cpu-time",
                                "--cpu-time wants --threads 1: threads that wait for others take "
                                "processor time, too");
    return status ? status : read_policies(bench, err);
}

/* --- memory ---------------------------------------------------------------------------------- */

static uint32_t largest(const struct kva_bench_list *list)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < list->count; i++)
        most = kva_max_u32(most, list->values[i]);
    return most;
}

static uint64_t less(uint64_t bytes, uint64_t taken)
{
    return bytes > taken ? bytes - taken : 0;
}

/* What the tiers may have. Weights are mapped files: their pages count as available until they are
 * read, and must stay. */
static void limit_memory(struct kva_bench *bench)
{
    const struct kva_config *config = bench->config;
    const struct kva_device_info *info = kva_device_get_info(bench->instance.device);
    uint64_t available = kva_memory_available();
    uint64_t kept = available / SPARE_SHARE + SPARE_BYTES;
    if (info->host_readable)
        kept += bench->instance.model->weight_bytes;
    uint64_t usable = less(available, kept);
    uint64_t device = info->host_readable ? usable : kva_cli_instance_gpu_room(&bench->instance);
    uint64_t stream = kva_model_engine_stream_bytes(
        bench->instance.engine, kva_max_u32(largest(&bench->depth), largest(&bench->prefill)));
    bench->available_bytes = available;
    bench->stream_bytes = stream;
    bench->memory = (struct kva_bench_memory){
        .device = less(config->device_memory ? config->device_memory : device, stream),
        .host = less(config->host_memory ? config->host_memory : usable, stream),
        .total = info->host_readable ? less(usable, 2 * stream) : UINT64_MAX,
    };
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Budgets for a policy's groups of all depths and for the prompts beside them: tiers that are
 * larger than that would only be filled with what the prefix cache keeps. */
static struct kva_tier_bytes budget_for(const struct kva_bench *bench,
                                        const struct kva_kv_spec *spec)
{
    const struct kva_engine *engine = bench->instance.engine;
    struct kva_tier_bytes most = {0}, prompt = {0};
    for (uint32_t i = 0; i < bench->depth.count; i++) {
        const struct kva_bench_need need = kva_bench_need(bench, spec, bench->depth.values[i]);
        struct kva_bench_group group =
            kva_bench_plan(&bench->memory, &need, kva_bench_sequences(bench));
        most.device = larger(most.device, group.bytes.device);
        most.host = larger(most.host, group.bytes.host);
    }
    for (uint32_t i = 0; i < bench->prefill.count; i++) {
        uint32_t tokens = bench->prefill.values[i];
        struct kva_tier_bytes bytes = kva_model_engine_footprint(engine, spec, tokens, tokens + 1);
        prompt.device = larger(prompt.device, bytes.device);
        prompt.host = larger(prompt.host, bytes.host);
    }
    /* A page more: budgets are cut to whole pages. */
    struct kva_tier_bytes page = kva_model_engine_footprint(engine, spec, 1, 2);
    most.device += prompt.device + page.device;
    most.host += prompt.host + page.host;
    return (struct kva_tier_bytes){
        .device = bench->stream_bytes + smaller(most.device, bench->memory.device),
        .host = bench->stream_bytes + smaller(most.host, bench->memory.host),
    };
}

/* --- the command ----------------------------------------------------------------------------- */

static void print_nothing(const struct kva_bench *bench KVA_UNUSED,
                          const struct kva_bench_row *row KVA_UNUSED)
{
}

static enum kva_status measure_policy(struct kva_bench *bench, struct kva_config *config,
                                      const struct kva_kv_spec *spec, kva_bench_row_fn done,
                                      struct kva_err *err)
{
    struct kva_tier_bytes budget = budget_for(bench, spec);
    config->device_memory = budget.device;
    config->host_memory = budget.host;
    enum kva_status status = kva_cli_instance_renew_engine(&bench->instance, config, err);
    return status ? status : kva_bench_measure(bench, spec, done, err);
}

static enum kva_status write_json(const struct kva_bench *bench, const char *path,
                                  const char *error, struct kva_err *err)
{
    struct kva_buf text;
    kva_buf_init(&text, KVA_CLI_OUTPUT_BYTES);
    kva_bench_json(bench, error, &text);
    enum kva_status status = kva_cli_write(path, &text, err);
    kva_buf_finish(&text);
    return status;
}

/* What was measured before it failed is worth its time. Returns the failure. */
static enum kva_status keep_rows(const struct kva_bench *bench, const struct kva_config *config,
                                 enum kva_status failure, const struct kva_err *err)
{
    struct kva_err other;
    if (config->json && bench->row_count > 0 &&
        write_json(bench, config->json, err->message, &other))
        kva_cli_fail(&other);
    return failure;
}

static enum kva_status run(struct kva_bench *bench, struct kva_config *config, struct kva_err *err)
{
    bool tables = !kva_cli_is_stdout(config->json);
    limit_memory(bench);
    enum kva_status status = kva_device_measure(bench->instance.device, &bench->roofs, err);
    if (status && status != KVA_EUNSUPPORTED)
        return status;
    kva_profile_attach(&bench->profile, bench->instance.device);
    bench->profile.wait = config->bench_profile;
    if (config->bench_cpu_time)
        bench->profile.now_ns = kva_cpu_time_ns;
    if (tables)
        kva_bench_print_head(bench);
    status = KVA_OK;
    for (uint32_t i = 0; !status && i < bench->spec_count; i++)
        status = measure_policy(bench, config, &bench->specs[i],
                                tables ? kva_bench_print_row : print_nothing, err);
    if (!status && bench->roofs.read_bytes_per_s > 0)
        status = kva_device_measure(bench->instance.device, &bench->roofs_end, err);
    if (status)
        return keep_rows(bench, config, status, err);
    if (tables)
        kva_bench_print_end(bench);
    return config->json ? write_json(bench, config->json, NULL, err) : KVA_OK;
}

/* The engine as the server has it, but with room for the largest batch and a prompt. */
static enum kva_status open_instance(struct kva_bench *bench, struct kva_config *config,
                                     struct kva_err *err)
{
    uint32_t sequences = kva_bench_sequences(bench) + 1;
    config->sequences = sequences;
    /* A sequence may have a speculative row. */
    if (config->step_tokens > 0 && config->step_tokens < 2ull * sequences)
        config->step_tokens = 2ull * sequences;
    return kva_cli_instance_open(&bench->instance, config, KVA_CLI_TEXTS, NULL, err);
}

int kva_cli_bench(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_err err;
    struct kva_config own = *config;
    struct kva_bench bench = {.config = config};
    if (rest->count > 1 || (rest->count == 1 && config->model)) {
        fprintf(stderr, "kvahead: bench wants one model's directory\n");
        return KVA_EXIT_USAGE;
    }
    if (rest->count == 1)
        own.model = rest->items[0];
    if (read_options(&bench, &err)) {
        kva_cli_fail(&err);
        return KVA_EXIT_USAGE;
    }
    enum kva_status status = kva_cli_check_writable(own.json, &err);
    if (!status)
        status = open_instance(&bench, &own, &err);
    if (!status)
        status = run(&bench, &own, &err);
    kva_cli_instance_close(&bench.instance);
    for (uint32_t i = 0; i < bench.row_count; i++)
        free(bench.rows[i].samples_s);
    free(bench.rows);
    return status ? kva_cli_fail(&err) : KVA_EXIT_OK;
}
