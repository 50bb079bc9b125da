/* skew.c - the command: text to windows, windows to directions, directions to a file. */
#include "cli/skew/skew.h"

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "cli/stop.h"
#include "engine/calibrate/eigen.h"
#include "engine/model/fold.h"
#include "engine/model/skew.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WINDOW_TOKENS_MAX 16384u
/* One window of so many is for looking. */
#define LOOK_EVERY 5u

/* --- windows ---------------------------------------------------------------------------------- */

static enum kva_status plan_windows(struct kva_cli_skew *skew, struct kva_err *err)
{
    const struct kva_config *config = skew->config;
    /* A prompt is followed by a token. */
    const uint32_t context = skew->instance.engine->limits.context_max, longest = context - 1;
    skew->window_tokens = config->skew_window ? (uint32_t)config->skew_window
                                              : kva_min_u32(longest, WINDOW_TOKENS_MAX);
    if (skew->window_tokens > longest)
        return kva_fail_param(err, KVA_ECONTEXT, "window",
                              "--window %u exceeds the model's context of %u, less one",
                              skew->window_tokens, context);
    skew->window_count = (uint32_t)kva_div_up(config->skew_tokens, skew->window_tokens);
    skew->look_count = (uint32_t)kva_div_up(skew->window_count, LOOK_EVERY - 1);
    return KVA_OK;
}

/* Window `index` of the text, and where it goes: those for looking are among the others in the text
 * and behind them in `ids`. */
static uint32_t *place_of(struct kva_cli_skew *skew, uint32_t index)
{
    const uint32_t looks = index / LOOK_EVERY, at = index - looks;
    const bool look = index % LOOK_EVERY == LOOK_EVERY - 1 || at >= skew->window_count;
    const uint32_t place =
        look ? skew->window_count + kva_min_u32(looks, skew->look_count - 1) : at;
    return skew->ids + (size_t)place * skew->window_tokens;
}

static enum kva_status cut_windows(struct kva_cli_skew *skew, const struct kva_token_list *text,
                                   const struct kva_token_list *bos, struct kva_err *err)
{
    const uint32_t count = skew->window_count + skew->look_count;
    const size_t own = skew->window_tokens - bos->count, needed = own * count;
    if (text->count < needed)
        return kva_fail(err, KVA_EINVAL,
                        "'%s' has %zu tokens: too few for %u windows of %u, the %u for looking "
                        "included (--tokens, --window)",
                        skew->config->skew_text, text->count, count, skew->window_tokens,
                        skew->look_count);
    skew->ids = calloc((size_t)count * skew->window_tokens, sizeof(*skew->ids));
    if (!skew->ids)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %zu tokens", needed);
    for (uint32_t i = 0; i < count; i++) {
        const size_t first = count > 1 ? (text->count - own) / (count - 1) * i : 0;
        uint32_t *to = place_of(skew, i);
        for (size_t j = 0; j < bos->count; j++)
            *to++ = (uint32_t)bos->ids[j];
        for (size_t j = 0; j < own; j++)
            *to++ = (uint32_t)text->ids[first + j];
    }
    return KVA_OK;
}

static enum kva_status encode(struct kva_cli_skew *skew, struct kva_err *err)
{
    const struct kva_encode_params params = {.parse_special = true};
    struct kva_buf text;
    struct kva_token_list list, bos;
    kva_buf_init(&text, KVA_TOKENIZER_TEXT_BYTES_MAX);
    kva_token_list_init(&list, KVA_TOKENIZER_TEXT_BYTES_MAX);
    kva_token_list_init(&bos, 1);
    enum kva_status status =
        kva_cli_read_text(skew->config->skew_text, &text, skew->text_sha256, err);
    skew->text_bytes = text.length;
    if (!status)
        status = kva_cli_push_bos(skew->instance.tokenizer, &bos, err);
    if (!status)
        status = kva_tokenizer_encode(skew->instance.tokenizer, text.data, text.length, &params,
                                      &list, err);
    if (!status)
        status = cut_windows(skew, &list, &bos, err);
    kva_token_list_finish(&bos);
    kva_token_list_finish(&list);
    kva_buf_finish(&text);
    return status;
}

/* --- the run ---------------------------------------------------------------------------------- */

static enum kva_status calibrate(struct kva_cli_skew *skew, struct kva_err *err)
{
    struct kva_cli_progress progress = {
        .what = "reading", .unit = "tokens", .last_ns = kva_time_ns()};
    const struct kva_calibrate_params params = {
        .engine = skew->instance.engine,
        .device = skew->instance.device,
        .model = skew->instance.model,
        .ids = skew->ids,
        .window_count = skew->window_count,
        .look_count = skew->look_count,
        .window_tokens = skew->window_tokens,
        .threads = (uint32_t)skew->config->threads,
        .cancelled = skew->stopped,
        .progress = kva_cli_progress_show,
        .progress_opaque = &progress,
    };
    enum kva_status status = kva_calibrate(&params, &skew->result, err);
    kva_cli_progress_end(&progress);
    return status;
}

static enum kva_status write_file(struct kva_cli_skew *skew, struct kva_err *err)
{
    struct kva_cli_progress progress = {.what = "checking", .last_ns = kva_time_ns()};
    const struct kva_skew_file_params params = {
        .path = skew->model_path,
        .file = skew->config->skew_out,
        .threads = (uint32_t)skew->config->threads,
        .cancelled = skew->stopped,
        .progress = kva_cli_progress_show,
        .progress_opaque = &progress,
    };
    kva_skew_path(&params, skew->path, sizeof(skew->path));
    return kva_skew_write(skew->result->skew, skew->instance.model, &params, err);
}

static enum kva_status fold(struct kva_cli_skew *skew, struct kva_err *err)
{
    struct kva_cli_progress progress = {.what = "folding", .last_ns = kva_time_ns()};
    const struct kva_fold_params params = {
        .path = skew->model_path,
        .out_path = skew->config->skew_fold,
        .skew = skew->result->skew,
        .cancelled = skew->stopped,
        .progress = kva_cli_progress_show,
        .progress_opaque = &progress,
    };
    enum kva_status status = kva_fold_write(skew->instance.model, &params, err);
    skew->folded = !status;
    return status;
}

static enum kva_status find_model(struct kva_cli_skew *skew, struct kva_config *config,
                                  struct kva_err *err)
{
    struct kva_hub_found found;
    enum kva_status status = kva_cli_model_find(config, config->model, false, NULL, &found, err);
    if (status)
        return status;
    skew->model_path = found.path;
    config->model = found.path;
    return KVA_OK;
}

/* What is there and is no file would be replaced by one. */
static enum kva_status check_output(const struct kva_config *config, struct kva_err *err)
{
    struct stat info;
    if (config->skew_out && stat(config->skew_out, &info) == 0 && !S_ISREG(info.st_mode))
        return kva_fail_param(err, KVA_EINVAL, "out", "--out '%.200s' is no regular file",
                              config->skew_out);
    return KVA_OK;
}

/* Whether the file that is written in the end can be, before hours of work. */
static enum kva_status check_place(struct kva_cli_skew *skew, struct kva_err *err)
{
    const struct kva_skew_file_params params = {.path = skew->model_path,
                                                .file = skew->config->skew_out};
    char folder[sizeof(skew->path)];
    kva_skew_path(&params, skew->path, sizeof(skew->path));
    snprintf(folder, sizeof(folder), "%s", skew->path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    if (access(slash ? folder : ".", W_OK) == 0)
        return KVA_OK;
    return kva_fail(err, KVA_EIO, "%.1000s cannot be written: %s; --out names another place",
                    skew->path, strerror(errno));
}

/* What can be said before anything is read. */
static enum kva_status check(const struct kva_config *config, struct kva_err *err)
{
    /* A GPU may have a solver of its own: it is asked when it is there. */
    const bool cpu = config->device && strcmp(config->device, "cpu") == 0;
    enum kva_status status = cpu ? kva_eigen_check(NULL, err) : KVA_OK;
    if (!status && !config->skew_text)
        status = kva_fail_param(err, KVA_EINVAL, "text",
                                "no text: --text FILE is one like those that the model is to read");
    if (!status)
        status = check_output(config, err);
    return status ? status : kva_cli_check_writable(config->json, err);
}

static enum kva_status open_and_run(struct kva_cli_skew *skew, const struct kva_config *config,
                                    struct kva_err *err)
{
    const bool folds = config->skew_fold != NULL;
    const bool writes = !folds || config->skew_out;
    enum kva_status status = writes ? check_place(skew, err) : KVA_OK;
    if (!status)
        status = kva_cli_instance_open(&skew->instance, config, KVA_CLI_TEXTS, skew->stopped, err);
    if (!status && folds)
        status = kva_fold_check(skew->instance.model, config->model, config->skew_fold, err);
    if (!status)
        status = kva_eigen_check(skew->instance.device, err);
    if (!status)
        status = plan_windows(skew, err);
    if (!status)
        status = encode(skew, err);
    if (!status)
        status = calibrate(skew, err);
    if (!status && folds)
        status = fold(skew, err);
    if (!status && writes)
        status = write_file(skew, err);
    return status;
}

static enum kva_status run(struct kva_cli_skew *skew, struct kva_err *err)
{
    /* One window at a time. */
    struct kva_config config = *skew->config;
    config.sequences = 1;
    enum kva_status status = check(&config, err);
    if (!status)
        status = find_model(skew, &config, err);
    if (status)
        return status;
    skew->stopped = kva_cli_stop_begin();
    status = open_and_run(skew, &config, err);
    char message[2 * sizeof(skew->path) + 64] = "";
    if (status == KVA_ECANCELLED && skew->folded)
        snprintf(message, sizeof(message),
                 "\nkvahead: stopped; '%.1000s' was written, '%s' was not\n", config.skew_fold,
                 skew->path);
    else if (status == KVA_ECANCELLED)
        snprintf(message, sizeof(message), "\nkvahead: stopped; nothing was written\n");
    kva_cli_stop_end(message);
    return status;
}

/* --- output ----------------------------------------------------------------------------------- */

static enum kva_status write_to(const struct kva_cli_skew *skew, const char *path,
                                void (*write)(const struct kva_cli_skew *, struct kva_buf *),
                                struct kva_err *err)
{
    struct kva_buf out;
    kva_buf_init(&out, KVA_CLI_OUTPUT_BYTES);
    write(skew, &out);
    enum kva_status status = kva_cli_write(path, &out, err);
    kva_buf_finish(&out);
    return status;
}

int kva_cli_skew(const struct kva_config *config, const struct kva_string_list *rest)
{
    struct kva_cli_skew skew = {.config = config};
    struct kva_err err;
    if (rest->count > 0)
        return kva_cli_unexpected("skew", rest, "the text comes from --text FILE");
    enum kva_status status = run(&skew, &err);
    if (!status && !kva_cli_is_stdout(config->json))
        status = write_to(&skew, KVA_CLI_STDOUT, kva_cli_skew_table, &err);
    if (!status && config->json)
        status = write_to(&skew, config->json, kva_cli_skew_json, &err);
    kva_calibration_destroy(skew.result);
    kva_cli_instance_close(&skew.instance);
    free(skew.model_path);
    free(skew.ids);
    return status ? kva_cli_fail(&err) : KVA_EXIT_OK;
}
