/* format.c - the grammar of a call: from what the request says to the engine's constraint. */
#include "server/api/fields.h"

#include <stdio.h>

bool kva_api_makes_grammar(const struct kva_api_config *config, const struct kva_api_call *call)
{
    return call->format.field && config->grammars &&
           !kva_grammars_holds(config->grammars, &call->format.source);
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
        kva_err_prefix(err, status, "'%s'", format->field);
        err->status = status;
        snprintf(err->param, sizeof(err->param), "%s", format->field);
    }
    return status;
}
