/* tls.c - TLS contexts, and the reload of certificates. */
#include "server/http/internal.h"

#include "base/file.h"

#include <openssl/err.h>

static enum kva_status tls_fail(struct kva_err *err, const char *what, const char *path)
{
    char reason[256];
    ERR_error_string_n(ERR_peek_last_error(), reason, sizeof(reason));
    ERR_clear_error();
    return kva_fail(err, KVA_EIO, "TLS: %s '%s': %s", what, path, reason);
}

/* OpenSSL would ask at the terminal, and wait. */
static int no_password(char *text, int size, int writes, void *opaque)
{
    (void)text, (void)size, (void)writes, (void)opaque;
    return 0;
}

enum kva_status kva_tls_create(const char *cert_path, const char *key_path, SSL_CTX **ret,
                               struct kva_err *err)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return kva_fail(err, KVA_ENOMEM, "TLS: out of memory.");
    SSL_CTX_set_default_passwd_cb(ctx, no_password);
    /* OpenSSL would wait for a FIFO's writer. */
    enum kva_status status = kva_file_check(cert_path, err);
    if (status == KVA_OK)
        status = kva_file_check(key_path, err);
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    /* An idle connection gives its 34 KiB of record buffers back; renegotiation is refused. */
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE);
    if (status != KVA_OK)
        (void)kva_err_prefix(err, status, "TLS");
    else if (SSL_CTX_use_certificate_chain_file(ctx, cert_path) != 1)
        status = tls_fail(err, "cannot use the certificate", cert_path);
    else if (SSL_CTX_use_PrivateKey_file(ctx, key_path, SSL_FILETYPE_PEM) != 1)
        status = tls_fail(err, "cannot use the private key", key_path);
    else if (SSL_CTX_check_private_key(ctx) != 1)
        status = tls_fail(err, "the private key does not belong to the certificate", cert_path);
    if (status != KVA_OK) {
        SSL_CTX_free(ctx);
        return status;
    }
    *ret = ctx;
    return KVA_OK;
}
