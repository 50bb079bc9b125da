/* members_table.c - who is there: all keys are read once, then what changes is watched from the
 * revision after; where etcd has compacted that away, all are read again and the differences told. */
#include "cluster/members/members_internal.h"

#include "base/log.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

/* --- asking ----------------------------------------------------------------------------------- */

static void put_range(const struct kva_members *members, struct kva_buf *out)
{
    char from[sizeof(members->end_key)];
    snprintf(from, sizeof(from), "kvahead/%s/", members->params.name);
    kva_buf_puts(out, "\"key\":");
    kva_members_put_base64(out, from, strlen(from));
    kva_buf_puts(out, ",\"range_end\":");
    kva_members_put_base64(out, members->end_key, strlen(members->end_key));
}

void kva_members_table_step(struct kva_members *members, uint64_t now_ns)
{
    struct kva_buf body;
    struct kva_etcd_call call = {.slot = members->read ? KVA_ETCD_WATCH : KVA_ETCD_TABLE};
    if (!kva_etcd_ready(members->etcd, call.slot, now_ns))
        return;
    kva_buf_init(&body, KVA_MEMBERS_TXN_MAX);
    if (members->read) {
        kva_buf_puts(&body, "{\"create_request\":{");
        put_range(members, &body);
        kva_buf_printf(&body, ",\"start_revision\":\"%llu\",\"progress_notify\":true}}",
                       (unsigned long long)members->revision + 1);
        call.path = "/v3/watch";
        call.silence_ns = members->params.lease_ttl_ns;
    } else {
        kva_buf_putc(&body, '{');
        put_range(members, &body);
        kva_buf_putc(&body, '}');
        call.path = "/v3/kv/range";
    }
    call.body = body.failed ? "" : body.data;
    kva_etcd_ask(members->etcd, &call, now_ns);
    kva_buf_finish(&body);
}

/* --- entries ---------------------------------------------------------------------------------- */

static bool is_other(const struct kva_members *members, uint32_t node)
{
    return members->joined && node != members->params.self.node;
}

static void tell_gone(struct kva_members *members, const struct kva_members_entry *entry)
{
    if (!entry->visible || !is_other(members, entry->member.node))
        return;
    members->called = true;
    members->params.gone(members->params.opaque, entry->member.node, entry->member.life);
}

static void tell_member(struct kva_members *members, const struct kva_members_entry *entry)
{
    if (!entry->visible || !is_other(members, entry->member.node))
        return;
    members->called = true;
    members->params.member(members->params.opaque, &entry->member);
}

void kva_members_table_tell(struct kva_members *members)
{
    for (uint32_t node = 1; node <= KVA_MEMBERS_NODES_MAX; node++)
        tell_member(members, &members->entries[node]);
}

/* This node's own key has gone, or has another lease: it is looked after by a transaction. */
static void check_own(struct kva_members *members, uint32_t node, uint64_t lease, uint64_t revision)
{
    if (members->joined && node == members->params.self.node && revision > members->own_created &&
        lease != members->lease)
        members->registered = false;
}

static void take_away(struct kva_members *members, uint32_t node, uint64_t revision)
{
    struct kva_members_entry *entry = &members->entries[node];
    struct kva_members_entry gone = *entry;
    check_own(members, node, 0, revision);
    if (!gone.present)
        return;
    *entry = (struct kva_members_entry){.said = gone.said};
    tell_gone(members, &gone);
}

static void say_bad(struct kva_members *members, bool *said, const char *key, const char *what)
{
    char name[64];
    members->records_bad++;
    if (*said)
        return;
    *said = true;
    snprintf(name, sizeof(name), "%.60s", key);
    kva_members_clean(name);
    kva_log(KVA_LOG_WARN, "cluster: the record %s in etcd is passed over: %s", name, what);
}

static void say_stranger(const struct kva_members *members, const struct kva_member *other)
{
    kva_log(KVA_LOG_WARN,
            "cluster: node %u at %s serves the model %s, this one %s: they do not see each other",
            other->node, other->host, other->model, members->params.self.model);
}

static bool is_same(const struct kva_member *a, const struct kva_member *b)
{
    return a->life == b->life && a->port == b->port && a->guest_port == b->guest_port &&
           strcmp(a->host, b->host) == 0;
}

static void put(struct kva_members *members, uint32_t node, const struct kva_etcd_kv *kv)
{
    struct kva_members_entry *entry = &members->entries[node], old = *entry;
    struct kva_members_entry new = {
        .present = true, .said = old.said, .created = kv->created, .lease = kv->lease};
    struct kva_err err = {0};
    check_own(members, node, kv->lease, kv->modified);
    if (kva_record_read(kv, node, &new.member, &err))
        say_bad(members, &new.said, kv->key, err.message);
    else if (strcmp(new.member.model, members->params.self.model) == 0)
        new.visible = true;
    else
        new.stranger = true;
    if (new.stranger && !(old.stranger && old.created == new.created))
        say_stranger(members, &new.member);
    *entry = new;
    if (old.visible && new.visible && is_same(&old.member, &new.member))
        return;
    if (old.visible && (!new.visible || old.member.life != new.member.life))
        tell_gone(members, &old);
    tell_member(members, &new);
}

static void put_leader(struct kva_members *members, const struct kva_etcd_kv *kv)
{
    cJSON *value = kv->cut ? NULL : cJSON_ParseWithLength(kv->value, kv->value_bytes);
    uint64_t node = 0;
    members->leader_created = kv->created;
    members->leader_lease = kv->lease;
    members->leader_node = 0;
    if (!cJSON_IsObject(value) || !kva_members_get_number(value, "node", &node) || node == 0 ||
        node > KVA_MEMBERS_NODES_MAX)
        say_bad(members, &members->key_said, members->leader_key, "it names no node");
    else
        members->leader_node = (uint32_t)node;
    cJSON_Delete(value);
}

static void forget_leader(struct kva_members *members)
{
    members->leader_created = members->leader_lease = 0;
    members->leader_node = 0;
}

/* --- answers ---------------------------------------------------------------------------------- */

/* All keys: what is not among them is gone. */
static void take_all(struct kva_members *members, const cJSON *kvs)
{
    bool there[KVA_MEMBERS_NODES_MAX + 1] = {false}, leader = false;
    struct kva_etcd_kv kv;
    const cJSON *item;
    cJSON_ArrayForEach(item, kvs)
    {
        if (!kva_members_get_kv(item, &kv))
            continue;
        uint32_t node = kva_record_node(kv.key, members->nodes_key);
        if (node != 0)
            there[node] = true;
        else if (strcmp(kv.key, members->leader_key) == 0)
            leader = true;
    }
    for (uint32_t node = 1; node <= KVA_MEMBERS_NODES_MAX; node++)
        if (!there[node])
            take_away(members, node, members->revision);
    if (!leader)
        forget_leader(members);
    cJSON_ArrayForEach(item, kvs)
    {
        uint32_t node =
            kva_members_get_kv(item, &kv) ? kva_record_node(kv.key, members->nodes_key) : 0;
        if (node != 0)
            put(members, node, &kv);
        else if (strcmp(kv.key, members->leader_key) == 0)
            put_leader(members, &kv);
        else
            say_bad(members, &members->key_said, kv.key, "its key is no member's");
    }
}

void kva_members_table_answer(struct kva_members *members, enum kva_etcd_end end,
                              const struct cJSON *answer, uint64_t now_ns)
{
    const cJSON *kvs = cJSON_GetObjectItemCaseSensitive(answer, "kvs");
    uint64_t revision = kva_members_get_revision(answer);
    if (end != KVA_ETCD_ANSWERED)
        return;
    if (revision == 0 || (kvs && !cJSON_IsArray(kvs))) {
        kva_etcd_blame(members->etcd, KVA_ETCD_TABLE, "its answer has no keys of a revision",
                       now_ns);
        return;
    }
    members->revision = revision;
    members->read = true;
    take_all(members, kvs);
    kva_members_leader_check(members);
}

/* One change. False: it is none. */
static bool take_event(struct kva_members *members, const cJSON *event)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(event, "type");
    bool deleted = cJSON_IsString(type) && strcmp(type->valuestring, "DELETE") == 0;
    struct kva_etcd_kv kv;
    if (!kva_members_get_kv(cJSON_GetObjectItemCaseSensitive(event, "kv"), &kv))
        return false;
    if (kv.modified <= members->revision)
        return true;
    uint32_t node = kva_record_node(kv.key, members->nodes_key);
    bool leader = strcmp(kv.key, members->leader_key) == 0;
    if (node != 0 && deleted)
        take_away(members, node, kv.modified);
    else if (node != 0)
        put(members, node, &kv);
    else if (leader && deleted)
        forget_leader(members);
    else if (leader)
        put_leader(members, &kv);
    else if (!deleted)
        say_bad(members, &members->key_said, kv.key, "its key is no member's");
    return true;
}

/* The watch ends, and says why. */
static void end_watch(struct kva_members *members, const cJSON *answer, uint64_t now_ns)
{
    const cJSON *reason = cJSON_GetObjectItemCaseSensitive(answer, "cancel_reason");
    uint64_t compacted;
    kva_etcd_drop(members->etcd, KVA_ETCD_WATCH);
    if (kva_members_get_number(answer, "compact_revision", &compacted) && compacted > 0) {
        members->read = false;
        kva_etcd_rest(members->etcd, KVA_ETCD_WATCH, now_ns);
        return;
    }
    kva_etcd_blame(members->etcd, KVA_ETCD_WATCH,
                   cJSON_IsString(reason) ? reason->valuestring : "it ended the watch", now_ns);
}

void kva_members_watch_answer(struct kva_members *members, enum kva_etcd_end end,
                              const struct cJSON *answer, uint64_t now_ns)
{
    const cJSON *events = cJSON_GetObjectItemCaseSensitive(answer, "events"), *event;
    uint64_t last = members->revision;
    struct kva_etcd_kv kv;
    if (end != KVA_ETCD_ANSWERED)
        return;
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(answer, "canceled"))) {
        end_watch(members, answer, now_ns);
        return;
    }
    /* Several changes may have one revision: the table has it when all of them are in. */
    cJSON_ArrayForEach(event, events)
    {
        if (!take_event(members, event)) {
            members->read = false;
            kva_etcd_drop(members->etcd, KVA_ETCD_WATCH);
            kva_etcd_blame(members->etcd, KVA_ETCD_WATCH, "it tells of a change that is none",
                           now_ns);
            return;
        }
        if (kva_members_get_kv(cJSON_GetObjectItemCaseSensitive(event, "kv"), &kv))
            last = kva_max_u64(last, kv.modified);
    }
    /* Without a change it says how far it has looked. */
    if (!events && !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(answer, "created")))
        last = kva_max_u64(last, kva_members_get_revision(answer));
    members->revision = last;
    kva_members_leader_check(members);
}
