/* hello.h - HELLO: that both ends of a connection know the cluster's secret.
 *
 * A HELLO is a message (cluster/message.h) with a nonce of its sender's and the HMAC-SHA-256, under
 * the secret, of the message up to there and of the peer's nonce, if there is one yet (link.h). A
 * first HELLO shows only that its sender, or someone who overheard him, knew the secret; an answer
 * to a nonce that was drawn for this connection shows that he knows it now.
 *
 * Thread rule: none; no state but OpenSSL's. */
#ifndef KVA_CLUSTER_LINK_HELLO_H
#define KVA_CLUSTER_LINK_HELLO_H

#include "cluster/message.h"

#define KVA_HELLO_BYTES (KVA_MESSAGE_HEADER_BYTES + KVA_MESSAGE_NONCE_BYTES + KVA_MESSAGE_MAC_BYTES)

struct kva_hello_key {
    const void *secret;
    size_t bytes;
};

/* Random bytes. Fails: KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_hello_draw(uint8_t ret_nonce[KVA_MESSAGE_NONCE_BYTES]);

/* Write `message`, whose fields are set but for type and MAC; `peer_nonce` may be NULL. Fails:
 * KVA_EINVAL (a field), KVA_EIO (OpenSSL). */
KVA_MUST_CHECK enum kva_status kva_hello_write(struct kva_hello_key key,
                                               const struct kva_message *message,
                                               const uint8_t *peer_nonce,
                                               uint8_t ret_bytes[KVA_HELLO_BYTES]);

/* Read one, which answers `peer_nonce`, or none (NULL). Fails: KVA_EFORMAT (it is no HELLO),
 * KVA_EAUTH (its MAC is not of this secret and nonce), KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_hello_read(struct kva_hello_key key, const void *bytes,
                                              size_t size, const uint8_t *peer_nonce,
                                              struct kva_message *ret, struct kva_err *err);

#endif
