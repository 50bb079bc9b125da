/* internal.h - what the files of auth share. Not for other modules. */
#ifndef KVA_SERVER_AUTH_INTERNAL_H
#define KVA_SERVER_AUTH_INTERNAL_H

#include "server/auth/auth.h"

#define DIGEST_BYTES 32u

/* So much a minute, as much at once. Below zero: what was used is paid off first. */
struct kva_bucket {
    double level;
    uint64_t since_ns;
    bool started; /* it starts full */
};

/* Fill up to now; capacity and units a minute are the same. */
void kva_bucket_fill(struct kva_bucket *bucket, double per_minute, double capacity,
                     uint64_t now_ns);

/* Whole seconds until the bucket holds `want`, at least 1. */
uint32_t kva_bucket_wait_s(const struct kva_bucket *bucket, double per_minute, double want);

struct kva_key {
    unsigned char digest[DIGEST_BYTES];
    char name[KVA_KEY_NAME_MAX + 1];
    uint32_t line; /* of the file; 0: from the parameters */
    uint32_t row;  /* that counts what it uses now */
    bool live;     /* false: it was removed */
    struct kva_key_limits limits;
    /* What a reload keeps. */
    struct kva_bucket requests;
    struct kva_bucket tokens;
    uint32_t waiting; /* choices */
};

/* Of a name; the first one has none. */
struct kva_row {
    char name[KVA_KEY_NAME_MAX + 1];
    bool live; /* a key has the name */
    uint64_t requests;
    uint64_t tokens;
};

struct kva_brake;

struct kva_auth {
    struct kva_auth_params params;
    char *key_file;
    struct kva_key *fixed; /* of the parameters */
    uint32_t fixed_count;
    struct kva_key *keys; /* [count], by index */
    uint32_t count;
    uint32_t live_count;
    struct kva_row rows[KVA_KEY_ROWS_MAX + 1];
    uint32_t row_count;
    struct kva_brake *brake;
    uint64_t waiting; /* choices of all keys */
    uint64_t refused[KVA_AUTH_LIMIT_COUNT];
};

/* SHA-256 of `label` and the data. */
void kva_auth_digest(const char *label, const void *data, size_t length,
                     unsigned char out[DIGEST_BYTES]);

/* --- key_file.c --- */

/* Set a key from its text; `where` names its source. */
KVA_MUST_CHECK enum kva_status kva_key_set(struct kva_key *key, const char *text, size_t length,
                                           const struct kva_key_limits *defaults, const char *where,
                                           struct kva_err *err);

/* Append the file's keys to keys[*count], room for KVA_KEYS_MAX. */
KVA_MUST_CHECK enum kva_status kva_key_file_read(const char *path,
                                                 const struct kva_key_limits *defaults,
                                                 struct kva_key *keys, uint32_t *count,
                                                 struct kva_err *err);

/* --- rows.c: what is counted by name --- */

/* Give all keys that are there now their rows. */
void kva_rows_assign(struct kva_auth *auth);

/* --- brake.c: wrong keys --- */

/* NULL: out of memory. */
struct kva_brake *kva_brake_create(void) KVA_MUST_CHECK;
void kva_brake_destroy(struct kva_brake *brake);

/* Count a wrong key. KVA_EAUTH: one of few; KVA_ERATE: *ret_retry_s. */
KVA_MUST_CHECK enum kva_status kva_brake_wrong(struct kva_brake *brake, const char *peer,
                                               uint64_t now_ns, uint32_t *ret_retry_s,
                                               struct kva_err *err);
bool kva_brake_report(struct kva_brake *brake, uint64_t now_ns);

#endif
