/* eval.c - the command: options, the run, and where the result goes. */
#include "cli/eval/eval.h"

#include "base/clock.h"
#include "cli/cli.h"
#include "engine/model/packed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- progress -------------------------------------------------------------------------------- */

struct bar {
    uint64_t begun_ns;
    uint64_t drawn_ns;
};

static void draw_bar(void *opaque, uint64_t done, uint64_t total)
{
    enum { WIDTH = 32 };
    struct bar *bar = opaque;
    uint64_t now = kva_time_ns();
    if (!isatty(STDERR_FILENO) || now - bar->drawn_ns < 100 * KVA_NS_PER_MS || done == 0)
        return;
    bar->drawn_ns = now;
    done = done < total ? done : total;
    char cells[WIDTH + 1];
    int filled = (int)(done * WIDTH / total);
    memset(cells, '.', WIDTH);
    memset(cells, '#', (size_t)filled);
    cells[WIDTH] = '\0';
    double left = (double)(now - bar->begun_ns) / 1e9 * (double)(total - done) / (double)done;
    unsigned seconds = (unsigned)(left + 0.5);
    fprintf(stderr, "\rcomparing [%s] %3d%%, %u:%02u left   ", cells, (int)(done * 100 / total),
            seconds / 60, seconds % 60);
    fflush(stderr);
}

static void wipe_bar(const struct bar *bar)
{
    if (bar->drawn_ns)
        fputs("\r\033[K", stderr);
}

/* --- policies -------------------------------------------------------------------------------- */

static enum kva_status add_policy(struct kva_cli_eval *eval, const char *spec, struct kva_err *err)
{
    if (eval->spec_count == KVA_EVAL_POLICIES_MAX)
        return kva_fail_param(err, KVA_EINVAL, "policies", "--policies: more than %u",
                              KVA_EVAL_POLICIES_MAX);
    for (uint32_t i = 0; i < eval->spec_count; i++) {
        if (strcmp(eval->names[i], spec) == 0)
            return kva_fail_param(err, KVA_EINVAL, "policies", "--policies: '%s' is given twice",
                                  spec);
    }
    enum kva_status status =
        kva_kv_spec_parse(spec, eval->kv.specs, &eval->specs[eval->spec_count], err);
    if (status)
        return kva_err_prefix(err, status, "--policies");
    eval->names[eval->spec_count++] = spec;
    return KVA_OK;
}

static enum kva_status read_policies(struct kva_cli_eval *eval, struct kva_err *err)
{
    kva_cli_kv_init(&eval->kv);
    enum kva_status status = kva_cli_kv_read(&eval->kv, eval->config, err);
    if (status)
        return status;
    eval->texts = strdup(eval->config->eval_policies);
    if (!eval->texts)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    for (char *at = eval->texts; at && !status;) {
        char *comma = strchr(at, ',');
        if (comma)
            *comma = '\0';
        status = add_policy(eval, at, err);
        at = comma ? comma + 1 : NULL;
    }
    return status;
}

/* --- a stream --------------------------------------------------------------------------------- */

struct stream_bar {
    struct bar bar;
    uint64_t done, total; /* windows */
};

static void draw_stream_bar(void *opaque)
{
    struct stream_bar *bar = opaque;
    draw_bar(&bar->bar, ++bar->done, bar->total);
}

static enum kva_status run_stream(struct kva_cli_eval *eval, struct kva_err *err)
{
    struct stream_bar bar = {.bar = {.begun_ns = kva_time_ns()},
                             .total = eval->spec_count * eval->config->eval_windows};
    enum kva_status status = kva_cli_eval_run_stream(eval, draw_stream_bar, &bar, err);
    wipe_bar(&bar.bar);
    return status;
}

/* --- the run --------------------------------------------------------------------------------- */

static enum kva_status run(struct kva_cli_eval *eval, struct kva_err *err)
{
    struct bar bar = {.begun_ns = kva_time_ns()};
    const struct kva_cli_instance *instance = &eval->instance;
    const struct kva_eval_params params = {
        .engine = instance->engine,
        .reference = eval->reference.engine,
        .device = instance->device,
        .model = instance->model,
        .kv_dtype = eval->kv_dtype,
        .samples = eval->samples,
        .sample_count = eval->sample_count,
        .specs = eval->specs,
        .spec_count = eval->spec_count,
        .look_every = (uint32_t)eval->config->eval_look,
        .progress = draw_bar,
        .opaque = &bar,
    };
    enum kva_status status = kva_eval_run(&params, &eval->result, err);
    wipe_bar(&bar);
    return status;
}

static enum kva_status open_and_run(struct kva_cli_eval *eval, struct kva_err *err)
{
    /* One sequence at a time. */
    struct kva_config config = *eval->config;
    config.sequences = 1;
    enum kva_status status =
        kva_cli_instance_open(&eval->instance, &config, KVA_CLI_TEXTS_IF_ANY, NULL, err);
    if (!status)
        status = kva_cli_instance_check_head(&eval->instance, err);
    if (status)
        return status;
    eval->kv_dtype = (enum kva_dtype)config.kv_dtype;
    if (eval->kv_dtype == KVA_F32)
        eval->kv_dtype = kva_model_engine_kv_dtype(eval->instance.model);
    const struct kva_device_info *info = kva_device_get_info(eval->instance.device);
    if (config.eval_look > 0 && !config.eval_stream && !info->host_readable)
        return kva_fail_param(err, KVA_EUNSUPPORTED, "look",
                              "attention cannot be looked at in the memory of %s: give --look 0 or "
                              "--device cpu",
                              info->name);
    status = kva_cli_eval_read(eval, err);
    for (uint32_t i = 0; !status && i < eval->spec_count; i++)
        eval->specs[i].predictor = kva_kv_predictor_of(&eval->specs[i], info->host_readable);
    if (!status && config.eval_stream)
        return run_stream(eval, err);
    if (!status && config.weights > KVA_WEIGHTS_BF16) {
        config.weights = KVA_WEIGHTS_BF16;
        status = kva_cli_instance_open(&eval->reference, &config, KVA_CLI_TEXTS_IF_ANY, NULL, err);
    }
    return status ? status : run(eval, err);
}

/* --- output ---------------------------------------------------------------------------------- */

typedef void (*write_fn)(const struct kva_cli_eval *eval, struct kva_buf *out);

static enum kva_status write_to(const struct kva_cli_eval *eval, const char *path, write_fn write,
                                struct kva_err *err)
{
    struct kva_buf out;
    kva_buf_init(&out, KVA_CLI_OUTPUT_BYTES);
    write(eval, &out);
    enum kva_status status = kva_cli_write(path, &out, err);
    kva_buf_finish(&out);
    return status;
}

static enum kva_status write_all(const struct kva_cli_eval *eval, struct kva_err *err)
{
    const struct kva_config *config = eval->config;
    write_fn table = eval->stream ? kva_cli_eval_stream_table : kva_cli_eval_table;
    write_fn json = eval->stream ? kva_cli_eval_stream_json : kva_cli_eval_json;
    bool tables = !kva_cli_is_stdout(config->json) && !kva_cli_is_stdout(config->eval_svg);
    enum kva_status status = KVA_OK;
    if (tables)
        status = write_to(eval, KVA_CLI_STDOUT, table, err);
    if (!status && config->json)
        status = write_to(eval, config->json, json, err);
    if (!status && config->eval_svg)
        status = write_to(eval, config->eval_svg, kva_cli_eval_svg, err);
    return status;
}

int kva_cli_eval(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_cli_eval eval = {.config = config};
    struct kva_err err;
    if (rest->count > 0)
        return kva_cli_unexpected("eval", rest, "the text comes from --text FILE");
    enum kva_status status = read_policies(&eval, &err);
    if (!status)
        status = kva_cli_eval_read_sparsity(&eval, &err);
    if (!status && config->eval_stream && config->eval_svg)
        status = kva_fail(&err, KVA_EINVAL, "--svg draws no --stream: see --json");
    if (!status)
        status = kva_cli_check_writable(config->json, &err);
    if (!status)
        status = kva_cli_check_writable(config->eval_svg, &err);
    if (!status)
        status = open_and_run(&eval, &err);
    if (!status)
        status = write_all(&eval, &err);
    kva_eval_destroy(eval.result);
    free(eval.stream);
    kva_sparsity_finish(&eval.sparsity);
    kva_cli_eval_drop_samples(&eval);
    kva_cli_instance_close(&eval.reference);
    kva_cli_instance_close(&eval.instance);
    free(eval.texts);
    return status ? kva_cli_fail(&err) : KVA_EXIT_OK;
}
