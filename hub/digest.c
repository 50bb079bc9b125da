/* digest.c - sha256 and git's blob ids, by OpenSSL. */
#include "hub/digest.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool kva_hub_digest_kind_of(const char *text, enum kva_hub_digest_kind *ret)
{
    size_t length = strlen(text);
    if ((length != 64 && length != 40) || strspn(text, "0123456789abcdef") != length)
        return false;
    *ret = length == 64 ? KVA_HUB_SHA256 : KVA_HUB_GIT_BLOB;
    return true;
}

enum kva_status kva_hub_digest_begin(struct kva_hub_digest *digest, enum kva_hub_digest_kind kind,
                                     uint64_t bytes, struct kva_err *err)
{
    char head[40];
    int length = snprintf(head, sizeof(head), "blob %llu", (unsigned long long)bytes);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const EVP_MD *type = kind == KVA_HUB_SHA256 ? EVP_sha256() : EVP_sha1();
    bool ok = context && EVP_DigestInit_ex(context, type, NULL) == 1;
    if (ok && kind == KVA_HUB_GIT_BLOB)
        ok = EVP_DigestUpdate(context, head, (size_t)length + 1) == 1;
    if (!ok) {
        EVP_MD_CTX_free(context);
        return kva_fail(err, KVA_ENOMEM, "OpenSSL gives no digest for checking files");
    }
    digest->context = context;
    return KVA_OK;
}

void kva_hub_digest_add(struct kva_hub_digest *digest, const void *bytes, size_t count)
{
    if (digest->context && EVP_DigestUpdate(digest->context, bytes, count) != 1) {
        EVP_MD_CTX_free(digest->context);
        digest->context = NULL;
    }
}

enum kva_status kva_hub_digest_add_file(struct kva_hub_digest *digest, int fd, const char *path,
                                        uint64_t bytes, const atomic_bool *cancelled,
                                        struct kva_err *err)
{
    char chunk[65536];
    for (uint64_t at = 0; at < bytes;) {
        if (cancelled && atomic_load(cancelled))
            return kva_fail(err, KVA_ECANCELLED, "stopped");
        size_t want = bytes - at < sizeof(chunk) ? (size_t)(bytes - at) : sizeof(chunk);
        ssize_t count = pread(fd, chunk, want, (off_t)at);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return kva_fail(err, KVA_EIO, "'%s' cannot be read: %s", path,
                            count < 0 ? strerror(errno) : "it has become shorter");
        kva_hub_digest_add(digest, chunk, (size_t)count);
        at += (uint64_t)count;
    }
    return KVA_OK;
}

void kva_hub_digest_end(struct kva_hub_digest *digest, char *ret)
{
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    *ret = '\0';
    if (digest->context && EVP_DigestFinal_ex(digest->context, bytes, &length) == 1) {
        for (unsigned i = 0; i < length && i < 32; i++)
            snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
    }
    EVP_MD_CTX_free(digest->context);
    digest->context = NULL;
}
