/* json.h - what etcd's JSON gateway says, read without trust: 64-bit numbers, which it writes as
 * strings, bytes in base64, keys with their values.
 *
 * No number passes through a double: ids and revisions have 64 bits. Thread rule: pure functions; any
 * thread. */
#ifndef KVA_CLUSTER_MEMBERS_JSON_H
#define KVA_CLUSTER_MEMBERS_JSON_H

#include "base/buf.h"
#include "base/err.h"

struct cJSON;

#define KVA_MEMBERS_KEY_MAX   256u  /* bytes of a key that is looked at */
#define KVA_MEMBERS_VALUE_MAX 2048u /* bytes of a value that is looked at */

/* One key of etcd, as it was changed last. */
struct kva_etcd_kv {
    char key[KVA_MEMBERS_KEY_MAX]; /* ends with 0 */
    size_t key_bytes;
    char value[KVA_MEMBERS_VALUE_MAX]; /* ends with 0 */
    size_t value_bytes;
    bool cut;          /* key or value is longer, or is no base64: then they are "" */
    uint64_t created;  /* revision; 0 where a deletion is told of */
    uint64_t modified; /* revision */
    uint64_t lease;    /* 0: none */
};

/* A whole decimal number below 2^63, of `length` characters. */
bool kva_members_read_number(const char *text, size_t length, uint64_t *ret);

/* The member `name`, a string or a number that is one; 0 where it is absent, as etcd leaves out what
 * is 0. False: something else is there. */
bool kva_members_get_number(const struct cJSON *object, const char *name, uint64_t *ret);

/* Letters that are not printable ASCII become '?': what others wrote goes into the log so. */
void kva_members_clean(char *text);

/* The revision that an answer's header has; 0: none. */
uint64_t kva_members_get_revision(const struct cJSON *answer);

/* False: it is no key with its revisions. */
bool kva_members_get_kv(const struct cJSON *object, struct kva_etcd_kv *ret);

/* Append `length` bytes in base64, in quotes. */
void kva_members_put_base64(struct kva_buf *out, const char *bytes, size_t length);

/* The bytes that `text` is in base64, of at most `max`; false: it is none, or longer. */
bool kva_members_read_base64(const char *text, char *ret, size_t max, size_t *ret_bytes);

#endif
