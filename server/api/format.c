/* format.c - the grammar of a call: from what the request says to the engine's constraint. */
#include "server/api/fields.h"

#include <stdio.h>

bool kva_api_makes_grammar(const struct kva_api_config *config, const struct kva_api_call *call)
{
    /* Which grammar it is of a model that thinks is not known before the prompt is rendered. */
    bool unknown = call->tools.count > 0 && call->chat_template->reply.thinks;
    return call->format.field && config->grammars &&
           (unknown || !kva_grammars_holds(config->grammars, &call->format.source));
}

enum kva_status kva_api_get_constraint(const struct kva_api_config *config,
                                       const struct kva_api_call *call, struct kva_constraint **ret,
                                       struct kva_err *err)
{
    const struct kva_api_format *format = &call->format;
    if (!format->field)
        return KVA_OK;
    if (!config->grammars)
        return kva_fail_param(err, KVA_EUNSUPPORTED, format->field,
                              "'%s' is not supported by this server: %s.", format->field,
                              config->grammars_why ? config->grammars_why
                                                   : "it has no structured output");
    enum kva_status status =
        kva_grammars_get(config->grammars, &format->source, call->abandoned, ret, err);
    if (status == KVA_OK || status == KVA_ECANCELLED || status == KVA_ENOMEM)
        return status;
    /* Too large or too slow: that is the request's, not a body over its limit. */
    status = status == KVA_ETOOBIG ? KVA_EINVAL : status;
    if (err) {
        char param[KVA_ERR_PARAM_MAX];
        snprintf(param, sizeof(param), "%s", err->param[0] ? err->param : format->field);
        kva_err_prefix(err, status, "'%s'", param);
        err->status = status;
        snprintf(err->param, sizeof(err->param), "%s", param);
    }
    return status;
}
