/* record.h - what a member says of itself under its key, written and read.
 *
 * A record is a JSON object. Its `life` is 0 in the transaction that joins, since the life is the
 * revision of that very transaction; it is written out where a key is created again. Others' records
 * are not trusted: types, bounds and characters are checked, unknown members are passed over.
 *
 * Thread rule: pure functions; any thread. */
#ifndef KVA_CLUSTER_MEMBERS_RECORD_H
#define KVA_CLUSTER_MEMBERS_RECORD_H

#include "base/buf.h"
#include "cluster/members/json.h"
#include "cluster/members/members.h"

#define KVA_MEMBERS_NAME_MAX 63u

/* Append the record of `self` with `life`. */
void kva_record_put(struct kva_buf *out, const struct kva_member *self, uint64_t life);

/* Read the record of number `node` that `kv` has. Fails: KVA_EFORMAT; err says what is wrong. */
KVA_MUST_CHECK enum kva_status kva_record_read(const struct kva_etcd_kv *kv, uint32_t node,
                                               struct kva_member *ret, struct kva_err *err);

/* Whether what the caller says of itself is fit for a record. Fails: KVA_EINVAL; err names it. */
KVA_MUST_CHECK enum kva_status kva_record_check(const struct kva_member *self, struct kva_err *err);

/* The number at the end of a member's key, after `prefix` ("kvahead/NAME/nodes/"); 0: none. */
uint32_t kva_record_node(const char *key, const char *prefix);

#endif
