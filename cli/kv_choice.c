#include "cli/kv_choice.h"

#include <stdio.h>
#include <string.h>

static void set(uint32_t *to, int64_t given)
{
    if (given >= 0)
        *to = (uint32_t)given;
}

/* Option values of words begin with "default". */
static int64_t word(uint32_t given)
{
    return (int64_t)given - 1;
}

static enum kva_status read_topk(const char *text, struct kva_kv_choice *choice,
                                 struct kva_err *err)
{
    return text ? kva_kv_choice_read_k(text, strlen(text), KVA_KV_K_MAX, choice, err) : KVA_OK;
}

enum kva_status kva_cli_kv_choice(const struct kva_config *config, enum kva_kv_policy_id policy,
                                  struct kva_kv_choice *ret, struct kva_err *err)
{
    struct kva_kv_choice choice =
        config->kv_paper ? kva_kv_choice_paper(policy) : kva_kv_choice_default(policy);
    set(&choice.bits, config->kv_bits);
    set(&choice.group, config->kv_group);
    set(&choice.window, config->kv_window);
    set(&choice.sinks, config->kv_sinks);
    set(&choice.plain, config->kv_plain);
    set(&choice.exempt, config->kv_exempt);
    set(&choice.correct, config->kv_correct);
    if (config->kv_levels)
        choice.levels = (enum kva_kv_levels)word(config->kv_levels);
    if (config->kv_predictor)
        choice.predictor = (enum kva_kv_predictor)word(config->kv_predictor);
    if (config->kv_fetch)
        choice.fetch = (enum kva_kv_fetch)word(config->kv_fetch);
    if (config->kv_miss)
        choice.miss = (enum kva_kv_miss)word(config->kv_miss);
    struct kva_err why;
    enum kva_status status = read_topk(config->kv_topk, &choice, &why);
    if (!status)
        status = kva_kv_choice_check(&choice, &why);
    *ret = choice;
    if (!status)
        return KVA_OK;
    char option[KVA_ERR_PARAM_MAX + 8];
    snprintf(option, sizeof(option), "kv-%s", why.param);
    return kva_fail_param(err, status, option, "--kv-%s", why.message);
}
