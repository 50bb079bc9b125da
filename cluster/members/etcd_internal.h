/* etcd_internal.h - the client's calls, for the files that it is made of. */
#ifndef KVA_CLUSTER_MEMBERS_ETCD_INTERNAL_H
#define KVA_CLUSTER_MEMBERS_ETCD_INTERNAL_H

#include "cluster/members/etcd.h"

#include <curl/curl.h>
#include <stdbool.h>

#define KVA_ETCD_BODY_MAX                                                                          \
    ((size_t)4 << 20) /* of an answer, or of a line: 1,024 records are 1.2 MB */
#define KVA_ETCD_TOKEN_MAX 4096u
#define KVA_ETCD_WHY_MAX   256u

/* One call, from asking to its end. */
struct kva_etcd_transfer {
    CURL *easy;
    struct curl_slist *headers;
    struct kva_buf body;
    struct kva_buf got;
    size_t taken; /* of `got`: lines that were looked at */
    char message[CURL_ERROR_SIZE];
    bool busy;
    bool unsent; /* it could not begin */
    bool lines;
    bool first; /* no line has come yet */
    uint32_t endpoint;
    uint64_t sent_ns;
    uint64_t limit_ns;
    uint64_t silence_ns;
    uint64_t line_due_ns; /* when the next line has to have come */
    uint32_t failures;    /* one after the other */
    uint64_t rest_until_ns;
    char said
        [KVA_ETCD_WHY_MAX]; /* of it in the log last, less when it is asked again; "": nothing */
    uint64_t said_ns;
};

struct kva_etcd {
    struct kva_etcd_params params;
    CURLM *multi;
    struct kva_etcd_transfer transfers[KVA_ETCD_SLOTS];
    uint32_t endpoint;
    char token[KVA_ETCD_TOKEN_MAX]; /* "": none */
    bool open;                      /* etcd knows no users */
    uint64_t failures;
    uint64_t chance;
    char why[KVA_ETCD_WHY_MAX];
    struct curl_waitfd *waits;
    uint32_t wait_max;
};

/* --- etcd_answer.c ---------------------------------------------------------------------------- */

/* What an ended transfer, or one line of it, comes to. */
struct kva_etcd_reading {
    enum kva_etcd_end end;
    struct cJSON *root;         /* to be deleted by the caller; NULL: none */
    const struct cJSON *answer; /* inside of root */
    char wrong[200];            /* of KVA_ETCD_FAILED */
    bool token;                 /* that is wrong: another one is needed */
    bool open;                  /* etcd knows no users */
};

/* Read `length` bytes that came with status `http_code`. */
void kva_etcd_read(const char *text, size_t length, long http_code, struct kva_etcd_reading *ret);

/* Why libcurl had no answer, in words. */
void kva_etcd_explain(const struct kva_etcd *etcd, const struct kva_etcd_transfer *transfer,
                      CURLcode code, char *ret, size_t size);

/* Whether etcd's words mean that the token is no good. */
bool kva_etcd_wants_token(const char *message);

#endif
