/* hello.c - see hello.h. */
#include "cluster/link/hello.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string.h>

enum { SIGNED_BYTES = KVA_HELLO_BYTES - KVA_MESSAGE_MAC_BYTES };

enum kva_status kva_hello_draw(uint8_t ret_nonce[KVA_MESSAGE_NONCE_BYTES])
{
    return RAND_bytes(ret_nonce, KVA_MESSAGE_NONCE_BYTES) == 1 ? KVA_OK : KVA_EIO;
}

/* HMAC of the message up to its MAC, and of the nonce that it answers. */
static enum kva_status sign(struct kva_hello_key key, const uint8_t *bytes,
                            const uint8_t *peer_nonce, uint8_t ret_mac[KVA_MESSAGE_MAC_BYTES])
{
    uint8_t text[SIGNED_BYTES + KVA_MESSAGE_NONCE_BYTES];
    size_t size = SIGNED_BYTES;
    unsigned written = 0;
    memcpy(text, bytes, SIGNED_BYTES);
    if (peer_nonce) {
        memcpy(text + size, peer_nonce, KVA_MESSAGE_NONCE_BYTES);
        size += KVA_MESSAGE_NONCE_BYTES;
    }
    if (!HMAC(EVP_sha256(), key.secret, (int)key.bytes, text, size, ret_mac, &written) ||
        written != KVA_MESSAGE_MAC_BYTES)
        return KVA_EIO;
    return KVA_OK;
}

enum kva_status kva_hello_write(struct kva_hello_key key, const struct kva_message *message,
                                const uint8_t *peer_nonce, uint8_t ret_bytes[KVA_HELLO_BYTES])
{
    struct kva_message hello = *message;
    uint8_t bytes[KVA_HELLO_BYTES];
    size_t size = 0;
    hello.type = KVA_MESSAGE_HELLO;
    memset(hello.hello.mac, 0, sizeof(hello.hello.mac));
    enum kva_status status = kva_message_encode(&hello, bytes, sizeof(bytes), &size, NULL);
    if (!status && size != sizeof(bytes))
        status = KVA_EINTERNAL;
    if (!status)
        status = sign(key, bytes, peer_nonce, bytes + SIGNED_BYTES);
    if (!status)
        memcpy(ret_bytes, bytes, sizeof(bytes));
    return status;
}

enum kva_status kva_hello_read(struct kva_hello_key key, const void *bytes, size_t size,
                               const uint8_t *peer_nonce, struct kva_message *ret,
                               struct kva_err *err)
{
    struct kva_message message;
    uint8_t mac[KVA_MESSAGE_MAC_BYTES];
    enum kva_status status = kva_message_decode(bytes, size, NULL, 0, &message, err);
    if (status)
        return status;
    if (message.type != KVA_MESSAGE_HELLO)
        return kva_fail(err, KVA_EFORMAT, "%s comes before HELLO", kva_message_name(message.type));
    status = sign(key, bytes, peer_nonce, mac);
    if (status)
        return kva_fail(err, status, "HMAC failed");
    if (CRYPTO_memcmp(mac, message.hello.mac, sizeof(mac)) != 0)
        return kva_fail(err, KVA_EAUTH, "HELLO of node %u is not made with this cluster's secret",
                        message.source);
    *ret = message;
    return KVA_OK;
}
