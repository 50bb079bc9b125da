#include "server/auth/auth.h"

#include "base/clock.h"

#include <ctype.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DIGEST_BYTES 32u

struct key {
    unsigned char digest[DIGEST_BYTES];
    double allowance; /* requests that may be made now */
    uint64_t since_ns;
};

struct kva_auth {
    struct kva_auth_params params;
    char *key_file;
    struct key *fixed; /* of the parameters */
    uint32_t fixed_count;
    struct key *keys; /* fixed ones and those of the file */
    uint32_t count;
};

static void digest_of(const char *label, const void *data, size_t length,
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

static enum kva_status set_key(struct key *key, const char *text, size_t length, const char *where,
                               struct kva_err *err)
{
    if (length == 0 || length > KVA_KEY_BYTES_MAX)
        return kva_fail(err, KVA_EINVAL, "%s: a key has %zu characters, allowed is 1 to %u.", where,
                        length, KVA_KEY_BYTES_MAX);
    *key = (struct key){.allowance = -1};
    digest_of("key:", text, length, key->digest);
    return KVA_OK;
}

static enum kva_status read_file(const struct kva_auth *auth, struct key *keys, uint32_t *count,
                                 struct kva_err *err)
{
    char line[KVA_KEY_BYTES_MAX + 64];
    FILE *file = fopen(auth->key_file, "re");
    if (!file)
        return kva_fail(err, KVA_EIO, "Cannot read the key file '%s': %s", auth->key_file,
                        strerror(errno));
    enum kva_status status = KVA_OK;
    while (status == KVA_OK && fgets(line, sizeof(line), file)) {
        char *start = line;
        size_t length = strlen(line);
        if (length == sizeof(line) - 1 && line[length - 1] != '\n')
            status = kva_fail(err, KVA_EINVAL, "%s: a line is longer than %zu characters.",
                              auth->key_file, sizeof(line) - 2);
        while (length > 0 && isspace((unsigned char)line[length - 1]))
            line[--length] = '\0';
        while (isspace((unsigned char)*start))
            start++;
        if (status != KVA_OK || !*start || *start == '#')
            continue;
        if (*count == KVA_KEYS_MAX)
            status = kva_fail(err, KVA_EINVAL, "%s has more than %u keys.", auth->key_file,
                              KVA_KEYS_MAX);
        else
            status = set_key(&keys[*count], start, strlen(start), auth->key_file, err);
        *count += status == KVA_OK;
    }
    fclose(file);
    OPENSSL_cleanse(line, sizeof(line));
    if (status == KVA_OK && *count == auth->fixed_count)
        status = kva_fail(err, KVA_EINVAL, "The key file '%s' has no keys.", auth->key_file);
    return status;
}

enum kva_status kva_auth_reload(struct kva_auth *auth, struct kva_err *err)
{
    uint32_t count = auth->fixed_count;
    struct key *keys = calloc(KVA_KEYS_MAX, sizeof(*keys));
    if (!keys)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for keys.");
    if (count > 0)
        memcpy(keys, auth->fixed, count * sizeof(*keys));
    enum kva_status status = auth->key_file ? read_file(auth, keys, &count, err) : KVA_OK;
    if (status != KVA_OK) {
        free(keys);
        return status;
    }
    free(auth->keys);
    auth->keys = keys;
    auth->count = count;
    return KVA_OK;
}

enum kva_status kva_auth_create(const struct kva_auth_params *params, struct kva_auth **ret,
                                struct kva_err *err)
{
    enum kva_status status = KVA_OK;
    struct kva_auth *auth = calloc(1, sizeof(*auth));
    if (!auth)
        return kva_fail(err, KVA_ENOMEM, "Out of memory for keys.");
    auth->params = *params;
    auth->key_file = params->key_file ? strdup(params->key_file) : NULL;
    auth->fixed = calloc((size_t)params->key_count + 1, sizeof(*auth->fixed));
    if (!auth->fixed || (params->key_file && !auth->key_file))
        status = kva_fail(err, KVA_ENOMEM, "Out of memory for keys.");
    else if (params->key_count > KVA_KEYS_MAX)
        status = kva_fail(err, KVA_EINVAL, "%u keys are given, limit is %u.", params->key_count,
                          KVA_KEYS_MAX);
    for (uint32_t i = 0; i < params->key_count && status == KVA_OK; i++) {
        status =
            set_key(&auth->fixed[i], params->keys[i], strlen(params->keys[i]), "The API keys", err);
        auth->fixed_count++;
    }
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
    free(auth->key_file);
    free(auth->fixed);
    free(auth->keys);
    free(auth);
}

bool kva_auth_required(const struct kva_auth *auth)
{
    return auth->count > 0;
}

enum kva_status kva_auth_check(const struct kva_auth *auth, const char *authorization,
                               const char *api_key_header, int *ret_key, struct kva_err *err)
{
    if (!kva_auth_required(auth)) {
        *ret_key = -1;
        return KVA_OK;
    }
    const char *given = NULL;
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0) {
        given = authorization + 7;
        given += strspn(given, " ");
    } else if (api_key_header) {
        given = api_key_header;
    }
    if (!given || !*given)
        return kva_fail(err, KVA_EAUTH,
                        "An API key is needed: send it as 'Authorization: Bearer KEY'.");
    unsigned char digest[DIGEST_BYTES];
    digest_of("key:", given, strlen(given), digest);
    int found = -1;
    for (uint32_t i = 0; i < auth->count; i++) {
        int equal = CRYPTO_memcmp(digest, auth->keys[i].digest, DIGEST_BYTES) == 0;
        /* No branch: found = equal ? i : found. */
        found = (found & (equal - 1)) | ((int)i & -equal);
    }
    if (found < 0)
        return kva_fail(err, KVA_EAUTH, "The API key is not valid.");
    *ret_key = found;
    return KVA_OK;
}

enum kva_status kva_auth_take(struct kva_auth *auth, int key, uint64_t now_ns,
                              uint32_t *ret_retry_s, struct kva_err *err)
{
    uint32_t rate = auth->params.requests_per_minute;
    if (rate == 0 || key < 0 || (uint32_t)key >= auth->count)
        return KVA_OK;
    struct key *entry = &auth->keys[key];
    if (entry->allowance < 0) {
        entry->allowance = rate;
        entry->since_ns = now_ns;
    }
    double per_ns = (double)rate / (60.0 * (double)KVA_NS_PER_S);
    entry->allowance += (double)(now_ns - entry->since_ns) * per_ns;
    entry->since_ns = now_ns;
    if (entry->allowance > rate)
        entry->allowance = rate;
    if (entry->allowance < 1) {
        *ret_retry_s = (uint32_t)((1 - entry->allowance) * 60.0 / rate) + 1;
        return kva_fail(err, KVA_ERATE, "This key may make %u requests per minute; retry in %u s.",
                        rate, *ret_retry_s);
    }
    entry->allowance -= 1;
    return KVA_OK;
}

void kva_auth_scope(const struct kva_auth *auth, int key, uint64_t ret_scope[2])
{
    unsigned char digest[DIGEST_BYTES];
    ret_scope[0] = ret_scope[1] = 0;
    if (key < 0 || (uint32_t)key >= auth->count)
        return;
    digest_of("cache:", auth->keys[key].digest, DIGEST_BYTES, digest);
    memcpy(ret_scope, digest, 16);
}
