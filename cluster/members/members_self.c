/* members_self.c - what this node has in etcd: its lease, which is kept alive whatever else goes on,
 * and its number. */
#include "cluster/members/members_internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

/* --- the lease -------------------------------------------------------------------------------- */

static void lease_step(struct kva_members *members, uint64_t now_ns)
{
    const struct kva_members_params *params = &members->params;
    uint64_t third_ns = params->lease_ttl_ns / 3;
    char body[96];
    struct kva_etcd_call call = {.slot = KVA_ETCD_LEASE, .body = body};
    if (!kva_etcd_ready(members->etcd, KVA_ETCD_LEASE, now_ns) ||
        (members->lease != 0 && now_ns < members->lease_due_ns))
        return;
    if (members->lease == 0) {
        snprintf(body, sizeof(body), "{\"TTL\":\"%llu\"}",
                 (unsigned long long)(params->lease_ttl_ns / KVA_NS_PER_S));
        call.path = "/v3/lease/grant";
    } else {
        snprintf(body, sizeof(body), "{\"ID\":\"%llu\"}", (unsigned long long)members->lease);
        call.path = "/v3/lease/keepalive";
        call.limit_ns = params->request_ns < third_ns ? params->request_ns : third_ns;
    }
    kva_etcd_ask(members->etcd, &call, now_ns);
}

void kva_members_lease_lost(struct kva_members *members, const char *why)
{
    if (members->lease != 0)
        kva_log(KVA_LOG_WARN, "cluster: the lease in etcd has ended (%s); another one is asked for",
                why);
    kva_members_depose(members);
    members->resigned = 0;
    members->registered = false;
    members->lease = 0;
    kva_etcd_drop(members->etcd, KVA_ETCD_LEASE);
    kva_etcd_drop(members->etcd, KVA_ETCD_SELF);
    kva_etcd_drop(members->etcd, KVA_ETCD_LEADER);
}

static void granted(struct kva_members *members, const cJSON *answer, uint64_t sent_ns,
                    uint64_t now_ns)
{
    uint64_t lease, ttl;
    if (!kva_members_get_number(answer, "ID", &lease) || lease == 0 ||
        !kva_members_get_number(answer, "TTL", &ttl) ||
        ttl < members->params.lease_ttl_ns / KVA_NS_PER_S) {
        kva_etcd_blame(members->etcd, KVA_ETCD_LEASE, "it grants no lease of the time asked for",
                       now_ns);
        return;
    }
    members->lease = lease;
    members->sent_ns = sent_ns;
    members->lease_due_ns = sent_ns + members->params.lease_ttl_ns / 3;
}

void kva_members_lease_answer(struct kva_members *members, enum kva_etcd_end end,
                              const struct cJSON *answer, uint64_t sent_ns, uint64_t now_ns)
{
    uint64_t lease, ttl;
    if (end == KVA_ETCD_NO_LEASE)
        kva_members_lease_lost(members, "etcd does not know it");
    if (end != KVA_ETCD_ANSWERED)
        return;
    if (members->lease == 0) {
        granted(members, answer, sent_ns, now_ns);
        return;
    }
    if (!kva_members_get_number(answer, "ID", &lease) || lease != members->lease ||
        !kva_members_get_number(answer, "TTL", &ttl)) {
        kva_etcd_blame(members->etcd, KVA_ETCD_LEASE, "it keeps some other lease alive", now_ns);
        return;
    }
    if (ttl == 0) {
        kva_members_lease_lost(members, "it was not kept alive in time, or was revoked");
        return;
    }
    members->sent_ns = sent_ns;
    members->lease_due_ns = sent_ns + members->params.lease_ttl_ns / 3;
    if (members->elected != 0) {
        members->called = true;
        members->params.kept_alive(members->params.opaque, sent_ns);
    }
}

/* --- transactions that create a key ----------------------------------------------------------- */

void kva_members_put_create(struct kva_buf *out, const char *key, const char *value, uint64_t lease)
{
    size_t length = strlen(key);
    kva_buf_puts(out, "{\"compare\":[{\"target\":\"CREATE\",\"result\":\"EQUAL\","
                      "\"create_revision\":\"0\",\"key\":");
    kva_members_put_base64(out, key, length);
    kva_buf_printf(out, "}],\"success\":[{\"request_put\":{\"lease\":\"%llu\",\"key\":",
                   (unsigned long long)lease);
    kva_members_put_base64(out, key, length);
    kva_buf_puts(out, ",\"value\":");
    kva_members_put_base64(out, value, strlen(value));
    kva_buf_puts(out, "}}],\"failure\":[{\"request_range\":{\"key\":");
    kva_members_put_base64(out, key, length);
    kva_buf_puts(out, "}}]}");
}

bool kva_members_get_created(const struct cJSON *answer, bool *ret_created, uint64_t *ret_revision,
                             struct kva_etcd_kv *ret_there)
{
    bool created = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(answer, "succeeded"));
    uint64_t revision = kva_members_get_revision(answer);
    const cJSON *first =
        cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(answer, "responses"), 0);
    const cJSON *range = cJSON_GetObjectItemCaseSensitive(first, "response_range");
    const cJSON *kv = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(range, "kvs"), 0);
    if (revision == 0 || (!created && !(kv && kva_members_get_kv(kv, ret_there))))
        return false;
    *ret_created = created;
    *ret_revision = revision;
    return true;
}

/* --- the number ------------------------------------------------------------------------------- */

/* The number to ask for: its own, one that its lease has already, or the smallest free one; 0: there
 * is none. */
static uint32_t choose(const struct kva_members *members)
{
    uint32_t free_node = 0;
    if (members->joined)
        return members->params.self.node;
    for (uint32_t node = KVA_MEMBERS_NODES_MAX; node > 0; node--) {
        const struct kva_members_entry *entry = &members->entries[node];
        if (entry->present && entry->lease == members->lease)
            return node;
        if (!entry->present)
            free_node = node;
    }
    return free_node;
}

static void number_step(struct kva_members *members, uint64_t now_ns)
{
    struct kva_member self = members->params.self;
    struct kva_buf body, value;
    char key[sizeof(members->nodes_key) + 16];
    if (members->lease == 0 || members->registered || !members->read ||
        members->revision < members->self_after ||
        !kva_etcd_ready(members->etcd, KVA_ETCD_SELF, now_ns))
        return;
    self.node = members->asked_node = choose(members);
    if (self.node == 0) {
        kva_etcd_blame(members->etcd, KVA_ETCD_SELF, "the cluster is full: all numbers are taken",
                       now_ns);
        return;
    }
    kva_buf_init(&body, KVA_MEMBERS_TXN_MAX);
    kva_buf_init(&value, KVA_MEMBERS_VALUE_MAX - 1);
    kva_record_put(&value, &self, members->joined ? self.life : 0);
    snprintf(key, sizeof(key), "%s%u", members->nodes_key, self.node);
    kva_members_put_create(&body, key, value.failed ? "" : value.data, members->lease);
    kva_etcd_ask(members->etcd,
                 &(struct kva_etcd_call){.slot = KVA_ETCD_SELF,
                                         .path = "/v3/kv/txn",
                                         .body = body.failed || value.failed ? "" : body.data},
                 now_ns);
    kva_buf_finish(&value);
    kva_buf_finish(&body);
}

static void registered(struct kva_members *members, uint64_t created)
{
    struct kva_member *self = &members->params.self;
    members->registered = true;
    members->own_created = created;
    if (members->joined)
        return;
    members->joined = true;
    members->called = true;
    self->node = members->asked_node;
    self->life = created;
    members->params.joined(members->params.opaque, self->node, self->life);
    kva_members_table_tell(members);
}

static void leave(struct kva_members *members)
{
    char why[160];
    snprintf(why, sizeof(why),
             "its lease ended, and number %u of cluster %s is another process's now",
             members->params.self.node, members->params.name);
    kva_log(KVA_LOG_ERROR, "cluster: this node has left: %s", why);
    kva_members_depose(members);
    members->left = true;
    members->registered = false;
    for (uint32_t i = 0; i < KVA_ETCD_SLOTS; i++)
        kva_etcd_drop(members->etcd, (enum kva_etcd_slot)i);
    members->called = true;
    members->params.left(members->params.opaque, why);
}

/* Somebody has the number that was asked for. */
static void taken(struct kva_members *members, const struct kva_etcd_kv *there, uint64_t now_ns)
{
    struct kva_member other;
    if (there->lease == members->lease) {
        registered(members, there->created);
    } else if (!members->joined) {
        /* The next choice is made when the table has it; where it had, it knows better by now. */
        if (there->modified <= members->revision)
            kva_etcd_rest(members->etcd, KVA_ETCD_SELF, now_ns);
        members->self_after = there->modified;
    } else if (!kva_record_read(there, members->params.self.node, &other, NULL) &&
               other.life == members->params.self.life) {
        /* Its own, of the lease before, about to go. */
        kva_etcd_rest(members->etcd, KVA_ETCD_SELF, now_ns);
    } else {
        leave(members);
    }
}

void kva_members_self_answer(struct kva_members *members, enum kva_etcd_end end,
                             const struct cJSON *answer, uint64_t now_ns)
{
    struct kva_etcd_kv there;
    uint64_t revision;
    bool created;
    if (end == KVA_ETCD_NO_LEASE) {
        kva_members_lease_lost(members, "etcd does not know it");
        kva_etcd_rest(members->etcd, KVA_ETCD_SELF, now_ns);
    }
    if (end != KVA_ETCD_ANSWERED)
        return;
    if (!kva_members_get_created(answer, &created, &revision, &there))
        kva_etcd_blame(members->etcd, KVA_ETCD_SELF, "its answer to a transaction is none", now_ns);
    else if (created)
        registered(members, revision);
    else
        taken(members, &there, now_ns);
}

void kva_members_self_step(struct kva_members *members, uint64_t now_ns)
{
    lease_step(members, now_ns);
    number_step(members, now_ns);
}
