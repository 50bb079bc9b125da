/* listen.h - what listening needs of the process: addresses from text, descriptors from the system.
 *
 * Thread rule: the main thread, at start. */
#ifndef KVA_CLI_LISTEN_H
#define KVA_CLI_LISTEN_H

#include "base/err.h"

/* "HOST:PORT" or "[IPV6]:PORT"; *ret_host is the caller's to free. Fails: KVA_EINVAL (names the
 * option), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_cli_parse_address(const char *option, const char *text,
                                                     char **ret_host, uint16_t *ret_port,
                                                     struct kva_err *err);

/* Raise the limit on descriptors, as far as the system lets us, so that `connections` and what else
 * is open fit. Returns how many connections do. */
uint32_t kva_cli_reserve_descriptors(uint32_t connections);

#endif
