/* auth.h - API keys: who a request comes from, in constant time.
 *
 * Only SHA-256 digests of the keys are kept. A presented key is compared with every one of them,
 * whatever matched before, so that time tells nothing about keys or their number of equal bytes.
 *
 * Thread rule: the event loop's thread. */
#ifndef KVA_SERVER_AUTH_AUTH_H
#define KVA_SERVER_AUTH_AUTH_H

#include "base/err.h"

#include <stdbool.h>

#define KVA_KEYS_MAX      4096u
#define KVA_KEY_BYTES_MAX 512u

struct kva_auth;

struct kva_auth_params {
    const char *const *keys;
    uint32_t key_count;
    const char *key_file;         /* one key per line, '#' begins a comment line; NULL: none */
    uint32_t requests_per_minute; /* of one key; 0: unbounded */
};

/* Fails: KVA_EINVAL (an empty or over-long key, an empty file), KVA_EIO (err names the file),
 * KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_auth_create(const struct kva_auth_params *params,
                                               struct kva_auth **ret, struct kva_err *err);
void kva_auth_destroy(struct kva_auth *auth);

/* Read the key file again; on failure the keys stay as they were. */
KVA_MUST_CHECK enum kva_status kva_auth_reload(struct kva_auth *auth, struct kva_err *err);

/* Whether any key is configured: if not, everybody may do everything. */
bool kva_auth_required(const struct kva_auth *auth);

/* The key of "Authorization: Bearer KEY", or else of `api_key_header` (both may be NULL). *ret_key
 * is its index, -1 without configured keys. Fails: KVA_EAUTH. */
KVA_MUST_CHECK enum kva_status kva_auth_check(const struct kva_auth *auth,
                                              const char *authorization, const char *api_key_header,
                                              int *ret_key, struct kva_err *err);

/* Take one request from the key's allowance. Fails: KVA_ERATE; *ret_retry_s is then when to come
 * back. */
KVA_MUST_CHECK enum kva_status kva_auth_take(struct kva_auth *auth, int key, uint64_t now_ns,
                                             uint32_t *ret_retry_s, struct kva_err *err);

/* Two words that differ between keys and cannot be guessed without the key; zeros for key -1. */
void kva_auth_scope(const struct kva_auth *auth, int key, uint64_t ret_scope[2]);

#endif
