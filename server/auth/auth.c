/* auth.c - keys by hash, their tenants, and the reload of the key file. */
#include "server/auth/internal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void kva_auth_digest(const char *label, const void *data, size_t length,
                     unsigned char out[DIGEST_BYTES])
{
    unsigned char full[EVP_MAX_MD_SIZE] = {0};
    unsigned int bytes = 0;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1 &&
        EVP_DigestUpdate(ctx, label, strlen(label)) == 1 &&
        EVP_DigestUpdate(ctx, data, length) == 1)
        EVP_DigestFinal_ex(ctx, full, &bytes);
    EVP_MD_CTX_free(ctx);
    memcpy(out, full, DIGEST_BYTES);
}

/* --- the table ------------------------------------------------------------------------------ */

/* Put the keys that are configured now where the same keys were, new ones behind them. */
static enum kva_status merge(struct kva_auth *auth, const struct kva_key *fresh, uint32_t count,
                             struct kva_err *err)
{
    struct kva_key *keys = calloc(KVA_KEYS_MAX, sizeof(*keys));
    if (!keys)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for keys.");
    uint32_t used = auth->count;
    if (used > 0)
        memcpy(keys, auth->keys, used * sizeof(*keys));
    for (uint32_t i = 0; i < used; i++) {
        keys[i].live = false;
        keys[i].name[0] = '\0';
    }
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0, spare = 0; i < count; i++) {
            uint32_t at = 0;
            while (at < used && memcmp(keys[at].digest, fresh[i].digest, DIGEST_BYTES) != 0)
                at++;
            if ((at < used) == (pass > 0))
                continue; /* those that were there first, then the new ones */
            struct kva_key key = fresh[i];
            if (at < used) {
                key.requests = keys[at].requests;
                key.tokens = keys[at].tokens;
                key.waiting = keys[at].waiting;
            } else if (used < KVA_KEYS_MAX) {
                at = used++;
            } else {
                while (keys[spare].live)
                    spare++;
                at = spare;
                key.waiting = keys[at].waiting; /* of calls that still run */
            }
            keys[at] = key;
        }
    }
    free(auth->keys);
    auth->keys = keys;
    auth->count = used;
    auth->live_count = count;
    kva_rows_assign(auth);
    return KVA_OK;
}

enum kva_status kva_auth_reload(struct kva_auth *auth, struct kva_err *err)
{
    uint32_t count = auth->fixed_count;
    struct kva_key *fresh = calloc(KVA_KEYS_MAX, sizeof(*fresh));
    if (!fresh)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for keys.");
    if (count > 0)
        memcpy(fresh, auth->fixed, count * sizeof(*fresh));
    enum kva_status status = KVA_OK;
    if (auth->key_file)
        status = kva_key_file_read(auth->key_file, &auth->params.defaults, fresh, &count, err);
    if (status == KVA_OK)
        status = merge(auth, fresh, count, err);
    free(fresh);
    return status;
}

/* Keys with commas between. */
static enum kva_status add_fixed(struct kva_auth *auth, const char *text, struct kva_err *err)
{
    for (;;) {
        size_t length = strcspn(text, ",");
        const char *start = text, *end = text + length;
        while (start < end && (*start == ' ' || *start == '\t'))
            start++;
        while (end > start && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        if (auth->fixed_count == KVA_KEYS_MAX)
            return kva_fail(err, KVA_EINVAL, "More than %u API keys are given.", KVA_KEYS_MAX);
        struct kva_key *key = &auth->fixed[auth->fixed_count];
        enum kva_status status = kva_key_set(key, start, (size_t)(end - start),
                                             &auth->params.defaults, "The API keys", err);
        if (status != KVA_OK)
            return status;
        bool known = false;
        for (uint32_t i = 0; i < auth->fixed_count; i++)
            known = known || memcmp(auth->fixed[i].digest, key->digest, DIGEST_BYTES) == 0;
        auth->fixed_count += !known;
        if (text[length] == '\0')
            return KVA_OK;
        text += length + 1;
    }
}

enum kva_status kva_auth_create(const struct kva_auth_params *params, struct kva_auth **ret,
                                struct kva_err *err)
{
    struct kva_auth *auth = calloc(1, sizeof(*auth));
    if (!auth)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for keys.");
    auth->params = *params;
    auth->key_file = params->key_file ? strdup(params->key_file) : NULL;
    auth->fixed = calloc(KVA_KEYS_MAX, sizeof(*auth->fixed));
    auth->brake = kva_brake_create();
    enum kva_status status = KVA_OK;
    if (!auth->fixed || !auth->brake || (params->key_file && !auth->key_file))
        status = kva_fail(err, KVA_ENOMEM, "Out of memory for keys.");
    for (uint32_t i = 0; i < params->key_count && status == KVA_OK; i++)
        status = add_fixed(auth, params->keys[i], err);
    if (status == KVA_OK)
        status = kva_auth_reload(auth, err);
    if (status != KVA_OK) {
        kva_auth_destroy(auth);
        return status;
    }
    *ret = auth;
    return KVA_OK;
}

void kva_auth_destroy(struct kva_auth *auth)
{
    if (!auth)
        return;
    kva_brake_destroy(auth->brake);
    free(auth->key_file);
    free(auth->fixed);
    free(auth->keys);
    free(auth);
}

bool kva_auth_required(const struct kva_auth *auth)
{
    return auth->live_count > 0;
}

/* --- who ------------------------------------------------------------------------------------ */

/* NULL: no key was presented. */
static const char *presented(const struct kva_auth_request *request)
{
    const char *given = NULL;
    if (request->authorization && strncasecmp(request->authorization, "Bearer ", 7) == 0) {
        given = request->authorization + 7;
        given += strspn(given, " ");
    } else {
        given = request->api_key_header;
    }
    return given && *given ? given : NULL;
}

/* No branch and no end before the last key. */
static int find_key(const struct kva_auth *auth, const char *given)
{
    unsigned char digest[DIGEST_BYTES];
    kva_auth_digest("key:", given, strlen(given), digest);
    int found = -1;
    for (uint32_t i = 0; i < auth->count; i++) {
        int equal = CRYPTO_memcmp(digest, auth->keys[i].digest, DIGEST_BYTES) == 0;
        equal &= auth->keys[i].live;
        found = (found & (equal - 1)) | ((int)i & -equal); /* equal ? i : found */
    }
    return found;
}

enum kva_status kva_auth_check(struct kva_auth *auth, const struct kva_auth_request *request,
                               int *ret_key, uint32_t *ret_retry_s, struct kva_err *err)
{
    if (!kva_auth_required(auth)) {
        *ret_key = -1;
        return KVA_OK;
    }
    const char *given = presented(request);
    if (!given)
        return kva_fail(err, KVA_EAUTH,
                        "An API key is needed: send it as 'Authorization: Bearer KEY'.");
    int found = find_key(auth, given);
    if (found < 0) {
        enum kva_status status =
            kva_brake_wrong(auth->brake, request->peer, request->now_ns, ret_retry_s, err);
        auth->refused[KVA_AUTH_GUESSES] += status == KVA_ERATE;
        return status;
    }
    *ret_key = found;
    return KVA_OK;
}

bool kva_auth_report(struct kva_auth *auth, uint64_t now_ns)
{
    return kva_brake_report(auth->brake, now_ns);
}

const uint64_t *kva_auth_refused(const struct kva_auth *auth)
{
    return auth->refused;
}

static const struct kva_key *find(const struct kva_auth *auth, int key)
{
    return key >= 0 && (uint32_t)key < auth->count ? &auth->keys[key] : NULL;
}

static void derive(const struct kva_auth *auth, int key, const char *label, void *out, size_t bytes)
{
    unsigned char digest[DIGEST_BYTES];
    const struct kva_key *entry = find(auth, key);
    memset(out, 0, bytes);
    if (!entry)
        return;
    kva_auth_digest(label, entry->digest, DIGEST_BYTES, digest);
    memcpy(out, digest, bytes);
}

void kva_auth_scope(const struct kva_auth *auth, int key, uint64_t ret_scope[2])
{
    derive(auth, key, "cache:", ret_scope, 2 * sizeof(ret_scope[0]));
}

uint64_t kva_auth_tenant(const struct kva_auth *auth, int key)
{
    uint64_t id = 0;
    derive(auth, key, "tenant:", &id, sizeof(id));
    return id;
}

const char *kva_auth_name(const struct kva_auth *auth, int key)
{
    const struct kva_key *entry = find(auth, key);
    return entry ? entry->name : "";
}

struct kva_key_limits kva_auth_limits(const struct kva_auth *auth, int key)
{
    const struct kva_key *entry = find(auth, key);
    if (entry)
        return entry->limits;
    struct kva_key_limits all = kva_key_limits_default();
    all.priority_min = INT32_MIN;
    all.admin = true;
    return all;
}
