/* accounts.h - what is held for whom: counters by a 64-bit name, gone when they are zero.
 *
 * A name is made of an address or a key's index. An IPv6 address counts by its first 64 bits, which
 * is what one customer gets; an IPv4 address by all of them.
 *
 * Thread rule: one thread at a time. Invariant: an account exists while it has holders. */
#ifndef KVA_SERVER_HTTP_ACCOUNTS_H
#define KVA_SERVER_HTTP_ACCOUNTS_H

#include "base/list.h"

#include <sys/socket.h>

struct kva_account {
    struct kva_account *next; /* in its bucket */
    uint64_t name;
    uint32_t holders;
    uint32_t waiting;             /* connections */
    struct kva_list waiting_list; /* of them, the one that waits longest first */
    uint64_t bytes;
};

struct kva_accounts;

/* NULL: out of memory. */
struct kva_accounts *kva_accounts_create(void);
void kva_accounts_destroy(struct kva_accounts *accounts);

/* One more holder of that name's account; NULL: out of memory. */
struct kva_account *kva_accounts_hold(struct kva_accounts *accounts, uint64_t name);
/* One less; NULL is allowed. */
void kva_accounts_release(struct kva_accounts *accounts, struct kva_account *account);

uint64_t kva_account_name_of_address(const struct sockaddr *address);
uint64_t kva_account_name_of_key(uint32_t key_index);

#endif
