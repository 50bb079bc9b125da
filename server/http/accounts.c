/* accounts.c - a chained hash table of accounts. */
#include "server/http/accounts.h"

#include <netinet/in.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS_FIRST 64u

struct kva_accounts {
    struct kva_account **buckets;
    uint32_t bucket_count; /* a power of two */
    uint32_t count;
    uint64_t salt; /* peers choose their addresses, not their buckets */
};

struct kva_accounts *kva_accounts_create(void)
{
    struct kva_accounts *accounts = calloc(1, sizeof(*accounts));
    if (!accounts)
        return NULL;
    accounts->bucket_count = BUCKETS_FIRST;
    accounts->buckets = calloc(BUCKETS_FIRST, sizeof(struct kva_account *));
    if (!accounts->buckets ||
        RAND_bytes((unsigned char *)&accounts->salt, sizeof(accounts->salt)) != 1) {
        free(accounts->buckets);
        free(accounts);
        return NULL;
    }
    return accounts;
}

void kva_accounts_destroy(struct kva_accounts *accounts)
{
    if (!accounts)
        return;
    for (uint32_t i = 0; i < accounts->bucket_count; i++) {
        while (accounts->buckets[i]) {
            struct kva_account *account = accounts->buckets[i];
            accounts->buckets[i] = account->next;
            free(account);
        }
    }
    free(accounts->buckets);
    free(accounts);
}

static struct kva_account **bucket_of(const struct kva_accounts *accounts, uint64_t name)
{
    uint64_t hash = (name ^ accounts->salt) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
    hash *= 0xBF58476D1CE4E5B9ull;
    return &accounts->buckets[hash >> 32 & (accounts->bucket_count - 1)];
}

/* Twice the buckets; without memory chains just get longer. */
static void grow(struct kva_accounts *accounts)
{
    struct kva_accounts fresh = *accounts;
    fresh.bucket_count *= 2;
    fresh.buckets = calloc(fresh.bucket_count, sizeof(struct kva_account *));
    if (!fresh.buckets)
        return;
    for (uint32_t i = 0; i < accounts->bucket_count; i++) {
        while (accounts->buckets[i]) {
            struct kva_account *account = accounts->buckets[i];
            struct kva_account **bucket = bucket_of(&fresh, account->name);
            accounts->buckets[i] = account->next;
            account->next = *bucket;
            *bucket = account;
        }
    }
    free(accounts->buckets);
    *accounts = fresh;
}

struct kva_account *kva_accounts_hold(struct kva_accounts *accounts, uint64_t name)
{
    struct kva_account *account = *bucket_of(accounts, name);
    while (account && account->name != name)
        account = account->next;
    if (!account) {
        account = calloc(1, sizeof(*account));
        if (!account)
            return NULL;
        if (accounts->count >= accounts->bucket_count)
            grow(accounts);
        struct kva_account **bucket = bucket_of(accounts, name);
        account->name = name;
        account->next = *bucket;
        *bucket = account;
        kva_list_init(&account->waiting_list);
        accounts->count++;
    }
    account->holders++;
    return account;
}

void kva_accounts_release(struct kva_accounts *accounts, struct kva_account *account)
{
    if (!account || --account->holders > 0)
        return;
    struct kva_account **at = bucket_of(accounts, account->name);
    while (*at != account)
        at = &(*at)->next;
    *at = account->next;
    accounts->count--;
    free(account);
}

uint64_t kva_account_name_of_address(const struct sockaddr *address)
{
    uint64_t name = 0;
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
        name = in->sin_addr.s_addr;
    } else if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)address;
        memcpy(&name, &in->sin6_addr, sizeof(name));
        /* An IPv4 address in IPv6's clothes has nothing in its first half. */
        if (IN6_IS_ADDR_V4MAPPED(&in->sin6_addr)) {
            uint32_t v4;
            memcpy(&v4, (const char *)&in->sin6_addr + 12, sizeof(v4));
            name = v4;
        }
    }
    return name;
}

uint64_t kva_account_name_of_key(uint32_t key_index)
{
    /* No prefix that is given to anybody begins so (ff: multicast). */
    uint64_t name = key_index;
    unsigned char prefix[2] = {0xFF, 0xFF};
    name <<= 16;
    memcpy(&name, prefix, sizeof(prefix));
    return name;
}
