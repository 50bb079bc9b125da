/* http.h - questions to a hub, on libcurl: a HEAD, a document, or a file from some byte on.
 *
 * Redirects are followed here and not by curl, up to eight: the token goes to the hub's own origin
 * (scheme, host and port of the endpoint) and to no other, https is never left for http, and what
 * the hub's own answers say of a file (commit, checksum, size) is kept when another host is asked
 * for the content. Proxies are those of the environment, as curl reads it.
 *
 * Thread rule: one thread at a time. */
#ifndef KVA_HUB_HTTP_H
#define KVA_HUB_HTTP_H

#include "hub/hub.h"

#define KVA_HUB_SIZE_UNKNOWN UINT64_MAX

struct kva_hub_http;

/* What stands between this machine and an answer. */
enum kva_hub_fault {
    KVA_HUB_ANSWERED,
    KVA_HUB_NO_HOST,  /* the name is not known, as where there is no network */
    KVA_HUB_NO_REACH, /* no connection, or no answer in time */
    KVA_HUB_NO_TLS,   /* no secure connection */
    KVA_HUB_BROKEN,   /* the connection ended before the answer did */
    KVA_HUB_REFUSED,  /* the answer breaks a limit or a rule of this side */
};

struct kva_hub_answer {
    enum kva_hub_fault fault;
    long code;             /* 0: none */
    char reason[200];      /* of a fault, or what the hub says of a refusal */
    char error_code[64];   /* X-Error-Code: RepoNotFound, GatedRepo, ... */
    char commit[64];       /* X-Repo-Commit */
    char etag[128];        /* X-Linked-ETag, else ETag, without quotes */
    uint64_t bytes;        /* X-Linked-Size, else Content-Length; KVA_HUB_SIZE_UNKNOWN */
    uint64_t from;         /* 206: the first byte */
    int64_t retry_after_s; /* -1: not said */
};

/* Takes a body's bytes; false ends the transfer with KVA_HUB_REFUSED. `answer` has the headers. */
typedef bool (*kva_hub_body_fn)(void *opaque, const struct kva_hub_answer *answer,
                                const char *bytes, size_t count);

struct kva_hub_call {
    const char *path;     /* behind the endpoint, escaped */
    bool head;            /* no body, and no other origin */
    uint64_t from;        /* first byte wanted */
    kva_hub_body_fn body; /* of an answer with 200 or 206 */
    void *opaque;
};

/* `params` stays the caller's and must outlive it. Fails: KVA_ENOMEM, KVA_EUNSUPPORTED. */
KVA_MUST_CHECK enum kva_status kva_hub_http_create(const struct kva_hub_params *params,
                                                   struct kva_hub_http **ret, struct kva_err *err);
void kva_hub_http_destroy(struct kva_hub_http *http);

/* One question and its answer, whatever that is: see answer->fault and code. Fails:
 * KVA_ECANCELLED, KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_hub_http_once(struct kva_hub_http *http,
                                                 const struct kva_hub_call *call,
                                                 struct kva_hub_answer *ret, struct kva_err *err);

/* Whether asking again may help: too many requests, a server's fault, a broken connection. */
bool kva_hub_http_may_retry(const struct kva_hub_answer *answer);

/* Waits as long as the answer asks for, or twice as long with each attempt (from 0), with a line in
 * the log. Fails: KVA_ECANCELLED, KVA_EBUSY (longer than a minute). */
KVA_MUST_CHECK enum kva_status kva_hub_http_wait(const struct kva_hub_http *http,
                                                 const struct kva_hub_answer *answer,
                                                 unsigned attempt, struct kva_err *err);

/* The same as `once`, again where that may help, for HEAD and for documents that `out` (NULL: none)
 * takes whole. */
KVA_MUST_CHECK enum kva_status kva_hub_http_ask(struct kva_hub_http *http, const char *path,
                                                bool head, struct kva_buf *out,
                                                struct kva_hub_answer *ret, struct kva_err *err);

#endif
