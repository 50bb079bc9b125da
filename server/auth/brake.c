/* brake.c - wrong keys: how many one address may present, and all of them together.
 *
 * Addresses are kept in a table of fixed size, in sets of WAYS by a keyed hash; where a set is full
 * the address that was heard of longest ago goes, and would begin anew. The bucket of all addresses
 * together bounds what many of them can do. IPv6 addresses count by their /64, which is what one
 * peer has. */
#include "server/auth/internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <string.h>

#define SETS 256u
#define WAYS 4u

/* Wrong keys at once, and a minute. */
#define PEER_KEYS       60.0
#define PEER_KEYS_A_MIN 10.0
#define ALL_KEYS        1000.0
#define ALL_KEYS_A_MIN  600.0

struct peer {
    uint64_t id; /* 0: nobody */
    struct kva_bucket bucket;
};

struct kva_brake {
    struct peer peers[SETS][WAYS];
    struct kva_bucket all;
    uint64_t secret;
    uint64_t kept; /* wrong keys since the last line in the log */
    uint64_t report_ns;
    char last_peer[64];
};

struct kva_brake *kva_brake_create(void)
{
    struct kva_brake *brake = calloc(1, sizeof(*brake));
    if (brake && RAND_bytes((unsigned char *)&brake->secret, sizeof(brake->secret)) != 1)
        brake->secret = kva_time_ns();
    return brake;
}

void kva_brake_destroy(struct kva_brake *brake)
{
    free(brake);
}

static uint64_t mix(uint64_t hash, const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001B3ull;
        hash ^= hash >> 29;
    }
    return hash;
}

static uint64_t peer_id(const struct kva_brake *brake, const char *peer)
{
    unsigned char address[16];
    uint64_t hash = brake->secret ^ 0xCBF29CE484222325ull;
    if (inet_pton(AF_INET6, peer, address) == 1)
        hash = mix(hash, address, memcmp(address, "\0\0\0\0\0\0\0\0\0\0\xFF\xFF", 12) ? 8 : 16);
    else
        hash = mix(hash, (const unsigned char *)peer, strlen(peer));
    return hash | 1;
}

static struct kva_bucket *find_peer(struct kva_brake *brake, const char *peer)
{
    uint64_t id = peer_id(brake, peer);
    struct peer *set = brake->peers[(id >> 32) % SETS];
    struct peer *oldest = &set[0];
    for (uint32_t i = 0; i < WAYS; i++) {
        if (set[i].id == id)
            return &set[i].bucket;
        if (set[i].bucket.since_ns < oldest->bucket.since_ns)
            oldest = &set[i];
    }
    *oldest = (struct peer){.id = id};
    return &oldest->bucket;
}

enum kva_status kva_brake_wrong(struct kva_brake *brake, const char *peer, uint64_t now_ns,
                                uint32_t *ret_retry_s, struct kva_err *err)
{
    peer = peer ? peer : "";
    struct kva_bucket *one = find_peer(brake, peer);
    kva_bucket_fill(one, PEER_KEYS_A_MIN, PEER_KEYS, now_ns);
    kva_bucket_fill(&brake->all, ALL_KEYS_A_MIN, ALL_KEYS, now_ns);
    if (one->level >= 1 && brake->all.level >= 1) {
        one->level -= 1;
        brake->all.level -= 1;
        return kva_fail(err, KVA_EAUTH, "The API key is not valid.");
    }
    brake->kept++;
    size_t length = kva_min_size(strlen(peer), sizeof(brake->last_peer) - 1);
    memcpy(brake->last_peer, peer, length);
    brake->last_peer[length] = '\0';
    *ret_retry_s = one->level < 1 ? kva_bucket_wait_s(one, PEER_KEYS_A_MIN, 1)
                                  : kva_bucket_wait_s(&brake->all, ALL_KEYS_A_MIN, 1);
    return kva_fail(err, KVA_ERATE,
                    "Too many wrong API keys from here: %.0f at once and %.0f per minute are "
                    "looked into; retry in %u s. A right key is taken at any time.",
                    PEER_KEYS, PEER_KEYS_A_MIN, *ret_retry_s);
}

bool kva_brake_report(struct kva_brake *brake, uint64_t now_ns)
{
    if (brake->kept == 0 || now_ns - brake->report_ns < KVA_AUTH_REPORT_NS)
        return false;
    kva_log(KVA_LOG_WARN, "%llu wrong API keys beyond the brake's bound, the last from %s",
            (unsigned long long)brake->kept, brake->last_peer);
    brake->kept = 0;
    brake->report_ns = now_ns;
    return true;
}
