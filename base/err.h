/* err.h - the one success convention of the tree.
 *
 * Functions that can fail return `enum kva_status`; 0 is success. At module boundaries they also
 * take an optional `struct kva_err *err` (NULL is allowed) and describe there what is wrong, in
 * words that a user can act on: which file, field or option, and both numbers when a limit is
 * broken. Outputs named `ret_...` are untouched on failure. Hot functions return the bare status.
 *
 * One table (kva_status_info) maps a status to its name, its HTTP code and OpenAI's error type. */
#ifndef KVA_BASE_ERR_H
#define KVA_BASE_ERR_H

#include "base/kva.h"

#include <stdarg.h>

enum kva_status {
    KVA_OK = 0,
    KVA_EINVAL,       /* The caller's value is wrong: 400. */
    KVA_ECONTEXT,     /* The prompt does not fit the context window: 400. */
    KVA_EAUTH,        /* No or wrong key: 401. */
    KVA_ENOTFOUND,    /* No such route or file: 404. */
    KVA_EMODEL,       /* A model that is not served here: 404. */
    KVA_EPREVIOUS,    /* The response to go on from is not stored: 400. */
    KVA_EMETHOD,      /* Route exists, method does not: 405. */
    KVA_ETIMEOUT,     /* The peer or a deadline was too slow: 408. */
    KVA_ETOOBIG,      /* Body over its limit: 413. */
    KVA_EMEDIATYPE,   /* Content type is not JSON: 415. */
    KVA_ERATE,        /* One key's rate limit: 429. */
    KVA_EEXPECT,      /* An Expect that is not 100-continue: 417. */
    KVA_EHEADERS,     /* Header block over its limit: 431. */
    KVA_ECODING,      /* A transfer coding other than chunked: 501. */
    KVA_EVERSION,     /* A version of HTTP that is not spoken here: 505. */
    KVA_EHOST,        /* A Host that is not this server's: 421. */
    KVA_ECANCELLED,   /* The client went away: only logged, as 499. */
    KVA_EINTERNAL,    /* A defect of ours: 500. */
    KVA_EUNSUPPORTED, /* Understood, but this build or model cannot do it: 400. */
    KVA_ELIMIT,       /* A budget is exhausted now; may succeed later: 503. */
    KVA_EBUSY,        /* Queue full, loading, draining: 503 with Retry-After. */
    KVA_EQUEUETIME,   /* Not admitted in time: 503 with Retry-After. */
    KVA_EDEVICE,      /* The device failed; sticky: 503. */
    KVA_ENOMEM,       /* The host is out of memory: 503. */
    KVA_EIO,          /* The operating system reported an error: 500. */
    KVA_EFORMAT,      /* A file's content is malformed: 400 or a refused start. */
    KVA_STATUS_COUNT,
};

struct kva_status_info {
    const char *name;     /* "invalid_request", for logs and metrics labels */
    int http_code;        /* response code */
    const char *oai_type; /* OpenAI error type */
    const char *oai_code; /* OpenAI error code, NULL: JSON null */
};

#define KVA_ERR_MESSAGE_MAX 512
#define KVA_ERR_PARAM_MAX   64

struct kva_err {
    enum kva_status status;
    char message[KVA_ERR_MESSAGE_MAX]; /* UTF-8, truncated at a character boundary */
    char param[KVA_ERR_PARAM_MAX];     /* request field or option at fault, or "" */
};

/* Never NULL; unknown values give the entry of KVA_EINTERNAL. */
const struct kva_status_info *kva_status_info(enum kva_status status);

/* Describe a failure and return `status`, so that `return kva_fail(err, KVA_EINVAL, "...")` reads
 * well. `err` may be NULL. Clears `param`. */
enum kva_status kva_fail(struct kva_err *err, enum kva_status status, const char *format, ...)
    KVA_PRINTF(3, 4);

/* The same with the name of the field at fault. */
enum kva_status kva_fail_param(struct kva_err *err, enum kva_status status, const char *param,
                               const char *format, ...) KVA_PRINTF(4, 5);

/* Put "prefix: " before the message that is already there; returns err's status. */
enum kva_status kva_err_prefix(struct kva_err *err, enum kva_status status, const char *format, ...)
    KVA_PRINTF(3, 4);

#endif
