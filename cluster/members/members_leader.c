/* members_leader.c - election: whoever creates the leader's key leads, until the key is gone. */
#include "cluster/members/members_internal.h"

#include "base/log.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

static void ask_leader(struct kva_members *members, const struct kva_buf *body, uint64_t now_ns)
{
    kva_etcd_ask(members->etcd,
                 &(struct kva_etcd_call){.slot = KVA_ETCD_LEADER,
                                         .path = "/v3/kv/txn",
                                         .body = body->failed ? "" : body->data},
                 now_ns);
    members->resigning = members->resigned != 0;
}

static void campaign(struct kva_members *members, uint64_t now_ns)
{
    struct kva_buf body;
    char value[64];
    snprintf(value, sizeof(value), "{\"node\":%u,\"life\":\"%llu\"}", members->params.self.node,
             (unsigned long long)members->params.self.life);
    kva_buf_init(&body, KVA_MEMBERS_TXN_MAX);
    kva_members_put_create(&body, members->leader_key, value, members->lease);
    ask_leader(members, &body, now_ns);
    kva_buf_finish(&body);
}

/* Remove the key, if it is still the one of that election. */
static void resign(struct kva_members *members, uint64_t now_ns)
{
    struct kva_buf body;
    kva_buf_init(&body, KVA_MEMBERS_TXN_MAX);
    kva_buf_printf(&body,
                   "{\"compare\":[{\"target\":\"CREATE\",\"result\":\"EQUAL\","
                   "\"create_revision\":\"%llu\",\"key\":",
                   (unsigned long long)members->resigned);
    kva_members_put_base64(&body, members->leader_key, strlen(members->leader_key));
    kva_buf_puts(&body, "}],\"success\":[{\"request_delete_range\":{\"key\":");
    kva_members_put_base64(&body, members->leader_key, strlen(members->leader_key));
    kva_buf_puts(&body, "}}]}");
    ask_leader(members, &body, now_ns);
    kva_buf_finish(&body);
}

void kva_members_depose(struct kva_members *members)
{
    if (members->elected == 0)
        return;
    members->elected = 0;
    members->called = true;
    kva_log(KVA_LOG_INFO, "cluster: node %u leads no more", members->params.self.node);
    members->params.deposed(members->params.opaque);
}

/* The key is this node's, by the revision that created it. */
static void won(struct kva_members *members, uint64_t revision)
{
    if (!members->stands) {
        members->resigned = revision;
        return;
    }
    members->elected = revision;
    members->called = true;
    kva_log(KVA_LOG_INFO, "cluster: node %u leads, by revision %llu", members->params.self.node,
            (unsigned long long)revision);
    members->params.elected(members->params.opaque, revision, members->sent_ns);
}

void kva_members_leader_check(struct kva_members *members)
{
    if (members->elected != 0 && members->revision >= members->elected &&
        members->leader_created != members->elected)
        kva_members_depose(members);
    if (members->resigned != 0 && members->revision >= members->resigned &&
        members->leader_created != members->resigned)
        members->resigned = 0;
}

void kva_members_leader_step(struct kva_members *members, uint64_t now_ns)
{
    bool own = members->leader_created != 0 && members->leader_lease == members->lease;
    if (members->elected != 0 && !members->stands) {
        members->resigned = members->elected;
        kva_members_depose(members);
    }
    if (!members->registered || !members->read ||
        !kva_etcd_ready(members->etcd, KVA_ETCD_LEADER, now_ns))
        return;
    if (members->resigned == 0 && own && !members->stands)
        members->resigned = members->leader_created;
    if (members->resigned != 0)
        resign(members, now_ns);
    else if (members->stands && members->elected == 0 && (members->leader_created == 0 || own) &&
             members->revision >= members->leader_after)
        campaign(members, now_ns);
}

void kva_members_leader_answer(struct kva_members *members, enum kva_etcd_end end,
                               const struct cJSON *answer, uint64_t now_ns)
{
    struct kva_etcd_kv there;
    uint64_t revision = kva_members_get_revision(answer);
    bool created;
    if (end == KVA_ETCD_NO_LEASE) {
        kva_members_lease_lost(members, "etcd does not know it");
        kva_etcd_rest(members->etcd, KVA_ETCD_LEADER, now_ns);
    }
    if (end != KVA_ETCD_ANSWERED)
        return;
    if (members->resigning) {
        /* Removed, or another one's by now; the table follows. */
        members->resigned = 0;
        if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(answer, "succeeded")))
            members->leader_after = revision;
        kva_etcd_rest(members->etcd, KVA_ETCD_LEADER, now_ns);
    } else if (!kva_members_get_created(answer, &created, &revision, &there)) {
        kva_etcd_blame(members->etcd, KVA_ETCD_LEADER, "its answer to a transaction is none",
                       now_ns);
    } else if (created) {
        won(members, revision);
    } else if (there.lease == members->lease) {
        won(members, there.created);
    } else {
        if (there.modified <= members->revision)
            kva_etcd_rest(members->etcd, KVA_ETCD_LEADER, now_ns);
        members->leader_after = there.modified;
    }
}
