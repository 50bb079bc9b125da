#include "engine/kv/policy_choice.h"

#include <string.h>

static const char *const policy_names[KVA_KV_POLICY_COUNT] = {
    [KVA_KV_FULL] = "full",
    [KVA_KV_OFFLOAD] = "offload",
    [KVA_KV_KIVI] = "kivi",
    [KVA_KV_SPECACHE] = "specache",
};

/* In the order of the enumerations. */
static const char *const levels[] = {"paper", "fit", NULL};
static const char *const predictors[] = {"spec-token", "prev-query", "sync", NULL};
static const char *const fetches[] = {"all", "delta", "resident", NULL};

#define AT(field) offsetof(struct kva_kv_choice, field)

static const struct kva_kv_setting settings[] = {
    {"bits", 1, 4, NULL, AT(bits)},
    {"group", 32, 64, NULL, AT(group)},
    {"levels", 0, 0, levels, AT(levels)},
    {"window", 64, 1u << 20, NULL, AT(window)},
    {"sinks", 0, KVA_KV_SINKS_MAX, NULL, AT(sinks)},
    {"plain", 0, 1u << 24, NULL, AT(plain)},
    {"topk", 0, KVA_KV_K_MAX, NULL, AT(k)},
    {"exempt", 0, 65536, NULL, AT(exempt)},
    {"predictor", 0, 0, predictors, AT(predictor)},
    {"fetch", 0, 0, fetches, AT(fetch)},
};

const struct kva_kv_setting *kva_kv_settings(size_t *ret_count)
{
    *ret_count = KVA_COUNT_OF(settings);
    return settings;
}

const char *kva_kv_policy_name(enum kva_kv_policy_id policy)
{
    return policy_names[policy];
}

enum kva_kv_policy_id kva_kv_policy_find(const char *name)
{
    uint32_t id = 0;
    while (id < KVA_KV_POLICY_COUNT && strcmp(policy_names[id], name) != 0)
        id++;
    return (enum kva_kv_policy_id)id;
}

bool kva_kv_policy_exact(enum kva_kv_policy_id policy)
{
    return policy == KVA_KV_FULL || policy == KVA_KV_OFFLOAD;
}

struct kva_kv_choice kva_kv_choice_default(enum kva_kv_policy_id policy)
{
    return (struct kva_kv_choice){
        .policy = policy,
        .bits = 2,
        .group = 64,
        .levels = KVA_KV_LEVELS_PAPER,
        .window = 64,
        .sinks = 4,
        .plain = 1024,
        .k = 64,
        .predictor = KVA_PREDICT_SPEC_TOKEN,
        .fetch = KVA_FETCH_RESIDENT,
    };
}

struct kva_kv_choice kva_kv_choice_paper(enum kva_kv_policy_id policy)
{
    return (struct kva_kv_choice){
        .policy = policy,
        .bits = 2,
        .group = 64,
        .window = policy == KVA_KV_KIVI ? 128 : 64,
        .k = 64,
        .predictor = KVA_PREDICT_SPEC_TOKEN,
        .fetch = KVA_FETCH_ALL,
    };
}

enum kva_status kva_kv_choice_check(const struct kva_kv_choice *c, struct kva_err *err)
{
    if (kva_kv_policy_exact(c->policy))
        return KVA_OK;
    if (c->bits != 1 && c->bits != 2 && c->bits != 4)
        return kva_fail_param(err, KVA_EINVAL, "bits", "bits is %u, it must be 1, 2 or 4", c->bits);
    if (c->group != 32 && c->group != 64)
        return kva_fail_param(err, KVA_EINVAL, "group", "group is %u, it must be 32 or 64",
                              c->group);
    if (c->sinks > KVA_KV_SINKS_MAX)
        return kva_fail_param(err, KVA_EINVAL, "sinks", "sinks is %u, it must be at most %u",
                              c->sinks, KVA_KV_SINKS_MAX);
    if (c->window == 0 || c->window % 64 != 0)
        return kva_fail_param(err, KVA_EINVAL, "window",
                              "window is %u, it must be a multiple of 64, and not 0", c->window);
    if (c->plain % 64 != 0)
        return kva_fail_param(err, KVA_EINVAL, "plain", "plain is %u, it must be a multiple of 64",
                              c->plain);
    if (c->policy == KVA_KV_SPECACHE && c->k > KVA_KV_K_MAX)
        return kva_fail_param(err, KVA_EINVAL, "topk", "topk is %u, it must be at most %u", c->k,
                              KVA_KV_K_MAX);
    return KVA_OK;
}
