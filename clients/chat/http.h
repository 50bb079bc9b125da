/* http.h - one HTTP exchange at a time with the server at a base URL, through libcurl.
 *
 * Thread rule: one thread at a time. kva_chat_http_global must have run before, once in the
 * process. Only http and https are spoken and redirects are not followed, because the key would go
 * with them. */
#ifndef KVA_CLIENTS_CHAT_HTTP_H
#define KVA_CLIENTS_CHAT_HTTP_H

#include "base/buf.h"
#include "base/err.h"

struct kva_chat_http;

struct kva_chat_http_params {
    const char *url;     /* "http://host:port/v1"; slashes at the end are ignored */
    const char *api_key; /* NULL: none */
    const char *ca_file; /* PEM certificates to trust instead of the system's; NULL: those */
};

struct kva_chat_call {
    const char *path;           /* "/models", appended to the base URL */
    const struct kva_buf *body; /* JSON to POST; NULL: GET */
    /* Bytes of a successful event stream. False ends the exchange, which then succeeds. */
    bool (*stream)(void *opaque, const char *bytes, size_t length);
    /* Asked whenever something arrives or a signal does, and ten times a second; true gives the
     * exchange up. May be NULL. */
    bool (*stop)(void *opaque);
    void *opaque;
    struct kva_buf *document; /* gets any other body, up to its maximum */
};

/* Fails: KVA_EINVAL (URL or key), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_chat_http_create(const struct kva_chat_http_params *params,
                                                    struct kva_chat_http **ret,
                                                    struct kva_err *err);
void kva_chat_http_destroy(struct kva_chat_http *http);

/* Fails, with an err for people: KVA_EIO (unreachable, TLS, connection lost), KVA_ECANCELLED
 * (stop), KVA_ETOOBIG (document), or by the response code: KVA_EAUTH, KVA_ENOTFOUND, KVA_ERATE,
 * KVA_EBUSY, KVA_EINTERNAL, KVA_EINVAL. */
KVA_MUST_CHECK enum kva_status kva_chat_http_run(struct kva_chat_http *http,
                                                 const struct kva_chat_call *call,
                                                 struct kva_err *err);

#endif
