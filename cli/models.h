/* models.h - the model that --model names, on this machine: by path, or fetched by name
 * (hub/hub.h).
 *
 * Thread rule: main thread; another one with `cancelled`. */
#ifndef KVA_CLI_MODELS_H
#define KVA_CLI_MODELS_H

#include "config/options.h"
#include "hub/hub.h"

/* `model` as --model has it; NULL: not given. `update` asks for what is newer than a cache has. A
 * bar shows a fetch on a terminal. Without `cancelled` (NULL), SIGINT, SIGTERM and SIGHUP stop the
 * fetch first and the process then. The caller frees ret->path. Fails: as kva_hub_find, and
 * KVA_EINVAL without a model. */
KVA_MUST_CHECK enum kva_status kva_cli_model_find(const struct kva_config *config,
                                                  const char *model, bool update,
                                                  const atomic_bool *cancelled,
                                                  struct kva_hub_found *ret, struct kva_err *err);

#endif
