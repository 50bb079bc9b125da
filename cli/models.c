/* models.c - find a model by its name, with a progress bar, until a signal. */
#include "cli/models.h"

#include "base/clock.h"
#include "cli/progress.h"
#include "cli/stop.h"

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
    struct kva_cli_progress progress = {.what = "fetching", .last_ns = kva_time_ns()};
    enum kva_status status = kva_hub_places_init(&places, config->env, err);
    if (status)
        return status;
    const struct kva_hub_params params = {
        .places = &places,
        .offline = config->offline,
        .update = update,
        .cancelled = cancelled ? cancelled : kva_cli_stop_begin(),
        .progress = kva_cli_progress_show,
        .progress_opaque = &progress,
    };
    status = kva_hub_find(model, &params, ret, err);
    kva_cli_progress_end(&progress);
    if (!cancelled)
        kva_cli_stop_end("\nkvahead: stopped; the same command goes on from here\n");
    kva_hub_places_finish(&places);
    return status;
}
