/* auth.h - API keys: who a request comes from, and what its key may use.
 *
 * Only SHA-256 digests of the keys are kept. A presented key is compared with every one of them,
 * whatever matched before, so that time tells nothing about keys or their number of equal bytes.
 *
 * A key is known by its index. An index means the same key for as long as the process lives: a
 * reload keeps those of keys that stay, and an index is given to another key only when none is left
 * that never had one. kva_auth_tenant gives the number that tells keys apart for ever.
 *
 * What a key may use is counted here: requests and tokens a minute in buckets, choices that have
 * not begun. Right keys are never slowed down by wrong ones: only who presents a wrong key meets
 * the brake, whatever address it shares with others.
 *
 * Thread rule: the event loop's thread. */
#ifndef KVA_SERVER_AUTH_AUTH_H
#define KVA_SERVER_AUTH_AUTH_H

#include "base/err.h"

#include <stdbool.h>

#define KVA_KEYS_MAX       4096u
#define KVA_KEY_BYTES_MAX  512u
#define KVA_KEY_NAME_MAX   63u
#define KVA_KEY_WEIGHT_MAX 1000u

struct kva_auth;

/* What a key may use; 0: no limit. */
struct kva_key_limits {
    uint32_t weight; /* its share of slots and of every step against that of others, 1.. */
    uint32_t requests_per_minute;
    uint32_t tokens_per_minute; /* of prompts and answers */
    uint32_t running;           /* choices; more of them wait */
    uint32_t waiting;           /* choices that have not begun; more are refused */
    int32_t priority_min;       /* of its requests */
    int32_t priority_max;
    bool admin; /* it sees every request in the live view */
};

/* Weight 1, no limits, priorities 0 and later. */
struct kva_key_limits kva_key_limits_default(void);

struct kva_auth_params {
    const char *const *keys; /* each may be several with commas between */
    uint32_t key_count;
    const char *key_file;           /* key_file.c has its grammar; NULL: none */
    struct kva_key_limits defaults; /* of `keys`, and of what a line does not say */
};

/* Fails: KVA_EINVAL (an empty, over-long or repeated key, a word that no line has, an empty file;
 * err has file and line), KVA_EIO (err names the file), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_auth_create(const struct kva_auth_params *params,
                                               struct kva_auth **ret, struct kva_err *err);
void kva_auth_destroy(struct kva_auth *auth);

/* Read the key file again; on failure the keys stay as they were. Counts go on. */
KVA_MUST_CHECK enum kva_status kva_auth_reload(struct kva_auth *auth, struct kva_err *err);

/* Whether any key is configured: if not, everybody may do everything. */
bool kva_auth_required(const struct kva_auth *auth);

/* Which limit has refused. */
enum kva_auth_limit {
    KVA_AUTH_GUESSES, /* wrong keys from one address, or from everywhere */
    KVA_AUTH_REQUESTS,
    KVA_AUTH_TOKENS,
    KVA_AUTH_WAITING,
    KVA_AUTH_LIMIT_COUNT,
};

/* How often each has refused. */
const uint64_t *kva_auth_refused(const struct kva_auth *auth);

/* --- who ------------------------------------------------------------------------------------ */

struct kva_auth_request {
    const char *authorization;  /* "Bearer KEY"; NULL: absent */
    const char *api_key_header; /* NULL: absent */
    const char *peer;           /* its address; NULL: unknown */
    uint64_t now_ns;            /* kva_time_ns */
};

/* *ret_key is the key's index, -1 without configured keys. Fails: KVA_EAUTH; KVA_ERATE for a wrong
 * key behind too many others, *ret_retry_s is then when to come back. */
KVA_MUST_CHECK enum kva_status kva_auth_check(struct kva_auth *auth,
                                              const struct kva_auth_request *request, int *ret_key,
                                              uint32_t *ret_retry_s, struct kva_err *err);

/* Call it now and then: logs how many wrong keys the brake has kept from the log, at most one line
 * in KVA_AUTH_REPORT_NS. True: a line was written. */
#define KVA_AUTH_REPORT_NS (10ull * 1000 * 1000 * 1000)
bool kva_auth_report(struct kva_auth *auth, uint64_t now_ns);

/* Two words that differ between keys and cannot be guessed without the key; zeros for key -1. */
void kva_auth_scope(const struct kva_auth *auth, int key, uint64_t ret_scope[2]);

/* A number that no other key ever has; 0 for key -1. */
uint64_t kva_auth_tenant(const struct kva_auth *auth, int key);

/* The name that the file gives it, "" without one; valid until the next reload. */
const char *kva_auth_name(const struct kva_auth *auth, int key);

/* For key -1: no limits, any priority, admin. */
struct kva_key_limits kva_auth_limits(const struct kva_auth *auth, int key);

/* --- how much (limits.c) --------------------------------------------------------------------- */

/* Take one request from the key's allowance. Fails: KVA_ERATE; *ret_retry_s is then when to come
 * back. */
KVA_MUST_CHECK enum kva_status kva_auth_take(struct kva_auth *auth, int key, uint64_t now_ns,
                                             uint32_t *ret_retry_s, struct kva_err *err);

/* What a call is about to use. */
struct kva_auth_work {
    uint64_t tokens;      /* of its prompts, and as many as it asks for */
    uint32_t choices;     /* all of them wait at first */
    uint32_t waiting_max; /* of the queue that all keys share; 0: not told */
};

/* Enter a call. All keys share the queue: a key may have as many choices waiting as its weight
 * times the places that are free, so that there are always some for a key that comes later. Fails,
 * with nothing taken: KVA_ERATE (*ret_retry_s), KVA_EBUSY (its share of the queue is full),
 * KVA_EINVAL (more than the key may ever use at once). */
KVA_MUST_CHECK enum kva_status kva_auth_enter(struct kva_auth *auth, int key,
                                              const struct kva_auth_work *work, uint64_t now_ns,
                                              uint32_t *ret_retry_s, struct kva_err *err);

/* `choices` of an entered call have begun, or ended before they did. */
void kva_auth_begun(struct kva_auth *auth, int key, uint32_t choices);

/* An entered call is over: it used `tokens_used` instead of `tokens_entered`. */
void kva_auth_settle(struct kva_auth *auth, int key, uint64_t tokens_entered, uint64_t tokens_used);

/* --- by name (rows.c) ------------------------------------------------------------------------ */

#define KVA_KEY_ROWS_MAX 100u

/* What keys used while they had a name. */
struct kva_key_row {
    const char *name; /* "" in row 0: all that have no row of their own; valid until a reload */
    uint64_t requests;
    uint64_t tokens;
    uint32_t waiting; /* choices, now */
};

/* Fill ret[KVA_KEY_ROWS_MAX + 1] and return how many. A name has its row from the reload that brings
 * it, and what it counts goes on when the name gets another key, or none for a while; what was
 * counted never moves to another row. Beyond KVA_KEY_ROWS_MAX a name takes the row of one that no
 * key has any more, which begins anew, or has none. */
uint32_t kva_auth_get_rows(const struct kva_auth *auth, struct kva_key_row *ret);

#endif
