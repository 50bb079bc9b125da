/* address.h - "HOST:PORT" and "[HOST]:PORT", what they resolve to, and which network interface has an
 * address.
 *
 * Thread rule: none; no state. */
#ifndef KVA_CLUSTER_LINK_ADDRESS_H
#define KVA_CLUSTER_LINK_ADDRESS_H

#include "base/err.h"

#include <stdbool.h>
#include <sys/socket.h>

struct kva_link_address {
    struct sockaddr_storage socket;
    socklen_t bytes;
};

/* Room for what kva_link_address_write writes: a numeric address, brackets and a port. */
#define KVA_LINK_ADDRESS_TEXT 80

/* What `text` means; a name is looked up, which may take as long as the resolver does. `listening`:
 * an address to listen at, port 0 is allowed. Fails: KVA_EINVAL, with the text and what is wrong. */
KVA_MUST_CHECK enum kva_status kva_link_address_resolve(const char *text, bool listening,
                                                        struct kva_link_address *ret,
                                                        struct kva_err *err);

/* The same of an address that is a number: no name is looked up. */
KVA_MUST_CHECK enum kva_status kva_link_address_read(const char *text, bool listening,
                                                     struct kva_link_address *ret,
                                                     struct kva_err *err);

void kva_link_address_write(const struct sockaddr_storage *address,
                            char ret[KVA_LINK_ADDRESS_TEXT]);

uint16_t kva_link_address_port(const struct sockaddr_storage *address);

/* The name of the interface that has the address, at most IF_NAMESIZE bytes; "" for the address of
 * all interfaces. Fails: KVA_EINVAL (none has it), KVA_EIO. */
KVA_MUST_CHECK enum kva_status kva_link_address_interface(const struct kva_link_address *address,
                                                          char *ret, size_t capacity,
                                                          struct kva_err *err);

#endif
