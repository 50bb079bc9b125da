/* explain.c - what a hub's refusals and a network's faults mean for somebody who wants a model. */
#include "hub/download.h"

#include <string.h>

static enum kva_status explain_fault(const char *endpoint, const struct kva_hub_answer *answer,
                                     struct kva_err *err)
{
    switch (answer->fault) {
    case KVA_HUB_NO_HOST:
        return kva_fail(err, KVA_EIO, "no network, or no such host: %s (%s)", endpoint,
                        answer->reason);
    case KVA_HUB_NO_REACH:
        return kva_fail(err, KVA_EIO, "%s cannot be reached: %s", endpoint, answer->reason);
    case KVA_HUB_NO_TLS:
        return kva_fail(
            err, KVA_EIO,
            "no secure connection to %s: %s (SSL_CERT_FILE names certificates to trust)", endpoint,
            answer->reason);
    case KVA_HUB_REFUSED:
        return kva_fail(err, KVA_EFORMAT, "the answer of %s is refused: %s", endpoint,
                        answer->reason);
    default:
        return kva_fail(err, KVA_EIO, "the connection to %s was lost: %s", endpoint,
                        answer->reason);
    }
}

static bool has_code(const struct kva_hub_answer *answer, const char *code)
{
    return strcmp(answer->error_code, code) == 0;
}

static enum kva_status explain_denied(const struct kva_hub_params *params, const char *repository,
                                      const struct kva_hub_answer *answer, struct kva_err *err)
{
    const char *endpoint = params->places->endpoint;
    bool token = params->places->token != NULL;
    if (has_code(answer, "GatedRepo"))
        return kva_fail(err, KVA_EAUTH, "%s is gated: ask for access at %s/%s%s", repository,
                        endpoint, repository,
                        token ? "; the token that was sent has none yet"
                              : ", then give a token of yours in HF_TOKEN");
    if (strstr(answer->reason, "Access to this resource is disabled"))
        return kva_fail(err, KVA_EAUTH, "%s is disabled by its hub", repository);
    if (strstr(answer->reason, "Invalid credentials"))
        return kva_fail(err, KVA_EAUTH,
                        "%s does not accept the token (HF_TOKEN, or the file of "
                        "HF_TOKEN_PATH)",
                        endpoint);
    /* To strangers a hub does not tell a private repository from none. */
    if (answer->code == 401 || has_code(answer, "RepoNotFound"))
        return kva_fail(err, token ? KVA_ENOTFOUND : KVA_EAUTH, "%s has no repository %s%s",
                        endpoint, repository,
                        token ? ", or the token does not open it"
                              : ", or it is private and wants a token in HF_TOKEN");
    return kva_fail(err, KVA_EAUTH, "%s does not let %s be read (%ld)%s%s", endpoint, repository,
                    answer->code, answer->reason[0] ? ": " : "", answer->reason);
}

enum kva_status kva_hub_download_explain(const struct kva_hub_params *params,
                                         const char *repository, const char *revision,
                                         const char *file, const struct kva_hub_answer *answer,
                                         struct kva_err *err)
{
    const char *endpoint = params->places->endpoint;
    if (answer->fault != KVA_HUB_ANSWERED) {
        enum kva_status status = explain_fault(endpoint, answer, err);
        return file ? kva_err_prefix(err, status, "%s:%s", repository, file)
                    : kva_err_prefix(err, status, "%s", repository);
    }
    if (has_code(answer, "RevisionNotFound"))
        return kva_fail(err, KVA_ENOTFOUND, "%s has no revision '%s'", repository, revision);
    if (has_code(answer, "EntryNotFound") && file)
        return kva_fail(err, KVA_ENOTFOUND, "%s has no file '%s' at '%s'", repository, file,
                        revision);
    if (answer->code == 401 || answer->code == 403 || has_code(answer, "RepoNotFound"))
        return explain_denied(params, repository, answer, err);
    if (answer->code == 404)
        return kva_fail(err, KVA_ENOTFOUND, "%s has no repository %s%s%s (404)", endpoint,
                        repository, file ? " with a file " : "", file ? file : "");
    return kva_fail(err, KVA_EIO, "%s answered %ld for %s%s%s", endpoint, answer->code, repository,
                    answer->reason[0] ? ": " : "", answer->reason);
}
