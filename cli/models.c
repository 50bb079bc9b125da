/* models.c - find a model by its name, with a progress bar, until a signal. */
#include "cli/models.h"

#include "base/clock.h"
#include "cli/progress.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* --- stopping -------------------------------------------------------------------------------- */

/* File scope, because a handler has no other way to reach it. */
static atomic_bool stopped;
static volatile sig_atomic_t stopped_by;

static void on_signal(int number)
{
    stopped_by = number;
    atomic_store(&stopped, true);
}

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

static void catch_signals(struct sigaction *former)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_signal;
    atomic_store(&stopped, false);
    stopped_by = 0;
    for (size_t i = 0; i < KVA_COUNT_OF(numbers); i++) {
        sigaction(numbers[i], &action, &former[i]);
        /* nohup's wish, or that of a shell for what runs in its background. */
        if (former[i].sa_handler == SIG_IGN)
            sigaction(numbers[i], &former[i], NULL);
    }
}

/* A shell wants to know that its command has ended by the signal, and not by itself. */
static void release_signals(const struct sigaction *former)
{
    for (size_t i = 0; i < KVA_COUNT_OF(numbers); i++)
        sigaction(numbers[i], &former[i], NULL);
    if (!stopped_by)
        return;
    static const char message[] = "\nkvahead: stopped; the same command goes on from here\n";
    if (write(STDERR_FILENO, message, sizeof(message) - 1) < 0) {
        /* Nobody reads it. */
    }
    raise(stopped_by);
}

/* --- finding --------------------------------------------------------------------------------- */

enum kva_status kva_cli_model_find(const struct kva_config *config, const char *model, bool update,
                                   const atomic_bool *cancelled, struct kva_hub_found *ret,
                                   struct kva_err *err)
{
    struct kva_hub_places places;
    if (!model)
        return kva_fail_param(err, KVA_EINVAL, "model",
                              "no model: give --model a folder with config.json and safetensors "
                              "files, a GGUF file, or a name: smollm2-135m-instruct, or org/name "
                              "of a hub");
    struct sigaction former[KVA_COUNT_OF(numbers)];
    struct kva_cli_progress progress = {.what = "fetching", .last_ns = kva_time_ns()};
    enum kva_status status = kva_hub_places_init(&places, config->env, err);
    if (status)
        return status;
    const struct kva_hub_params params = {
        .places = &places,
        .offline = config->offline,
        .update = update,
        .cancelled = cancelled ? cancelled : &stopped,
        .progress = kva_cli_progress_show,
        .progress_opaque = &progress,
    };
    if (!cancelled)
        catch_signals(former);
    status = kva_hub_find(model, &params, ret, err);
    kva_cli_progress_end(&progress);
    if (!cancelled)
        release_signals(former);
    kva_hub_places_finish(&places);
    return status;
}
