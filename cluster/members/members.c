/* members.c - a node's membership: its parameters, its turn, its end. */
#include "cluster/members/members.h"

#include "base/clock.h"
#include "cluster/members/members_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDPOINT_BYTES_MAX 512u
#define TTL_MAX_NS         (3600 * KVA_NS_PER_S)
#define REST_MAX_NS        (2 * KVA_NS_PER_S)
#define REST_MIN_NS        (200 * KVA_NS_PER_MS)

/* --- create ----------------------------------------------------------------------------------- */

static enum kva_status check_endpoint(const char *url, struct kva_err *err)
{
    size_t length = strlen(url);
    const char *host = strncmp(url, "http://", 7) == 0    ? url + 7
                       : strncmp(url, "https://", 8) == 0 ? url + 8
                                                          : NULL;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)url[i] <= 0x20 || (unsigned char)url[i] >= 0x7F)
            return kva_fail(err, KVA_EINVAL,
                            "endpoint: a URL has no spaces and no letters beyond "
                            "ASCII");
    if (!host || !*host || *host == '/' || *host == ':' || length > ENDPOINT_BYTES_MAX)
        return kva_fail(err, KVA_EINVAL, "endpoint %.100s: it is not http://HOST:PORT", url);
    /* As other programs have several in one word. */
    if (strchr(url, ','))
        return kva_fail(err, KVA_EINVAL, "endpoint %.100s: give each URL by itself, without commas",
                        url);
    return KVA_OK;
}

static enum kva_status check_name(const char *name, struct kva_err *err)
{
    static const char fit[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    size_t length = name ? strlen(name) : 0;
    if (length == 0 || length > KVA_MEMBERS_NAME_MAX || strspn(name, fit) != length)
        return kva_fail(err, KVA_EINVAL,
                        "name: 1 to %u of a-z, 0-9 and hyphens are a cluster's name",
                        KVA_MEMBERS_NAME_MAX);
    return KVA_OK;
}

static enum kva_status check(const struct kva_members_params *params, struct kva_err *err)
{
    if (params->endpoint_count == 0 || params->endpoint_count > KVA_MEMBERS_ENDPOINTS_MAX)
        return kva_fail(err, KVA_EINVAL, "endpoints: there are %u, not 1 to %u",
                        params->endpoint_count, KVA_MEMBERS_ENDPOINTS_MAX);
    for (uint32_t i = 0; i < params->endpoint_count; i++)
        if (check_endpoint(params->endpoints[i], err))
            return KVA_EINVAL;
    if (params->user && (params->user[0] == ':' || !strchr(params->user, ':')))
        return kva_fail(err, KVA_EINVAL, "user: it is not NAME:PASSWORD");
    if (check_name(params->name, err) || kva_record_check(&params->self, err))
        return KVA_EINVAL;
    if (params->lease_ttl_ns < 2 * KVA_NS_PER_S || params->lease_ttl_ns > TTL_MAX_NS ||
        params->lease_ttl_ns % KVA_NS_PER_S != 0)
        return kva_fail(err, KVA_EINVAL, "lease_ttl_ns: %llu is not a whole 2 to %llu seconds",
                        (unsigned long long)params->lease_ttl_ns,
                        (unsigned long long)(TTL_MAX_NS / KVA_NS_PER_S));
    if (params->request_ns < KVA_NS_PER_MS || params->request_ns > TTL_MAX_NS)
        return kva_fail(err, KVA_EINVAL, "request_ns: %llu is not 1 ms to %llu s",
                        (unsigned long long)params->request_ns,
                        (unsigned long long)(TTL_MAX_NS / KVA_NS_PER_S));
    if (!params->joined || !params->member || !params->gone || !params->elected ||
        !params->kept_alive || !params->deposed || !params->left)
        return kva_fail(err, KVA_EINVAL, "a callback is missing");
    return KVA_OK;
}

static char *copy(const char *text, bool *ok)
{
    char *ret = text && *ok ? strdup(text) : NULL;
    *ok = *ok && (!text || ret);
    return ret;
}

/* The caller's texts need not outlive create. */
static bool copy_texts(struct kva_members *members)
{
    struct kva_members_params *params = &members->params;
    bool ok = true;
    for (uint32_t i = 0; i < params->endpoint_count; i++) {
        char *text = members->endpoints[i] = copy(params->endpoints[i], &ok);
        for (size_t length = text ? strlen(text) : 0; length > 0 && text[length - 1] == '/';)
            text[--length] = 0;
    }
    params->endpoints = (const char *const *)members->endpoints;
    params->user = members->user = copy(params->user, &ok);
    params->ca = members->ca = copy(params->ca, &ok);
    params->name = members->name = copy(params->name, &ok);
    return ok;
}

static void on_answer(void *opaque, enum kva_etcd_slot slot, enum kva_etcd_end end,
                      const struct cJSON *answer, uint64_t sent_ns)
{
    struct kva_members *members = opaque;
    uint64_t now_ns = kva_time_ns();
    if (members->revoking) {
        members->revoking = end == KVA_ETCD_FAILED || end == KVA_ETCD_SILENT;
        return;
    }
    if (members->left)
        return;
    if (slot == KVA_ETCD_LEASE)
        kva_members_lease_answer(members, end, answer, sent_ns, now_ns);
    else if (slot == KVA_ETCD_TABLE)
        kva_members_table_answer(members, end, answer, now_ns);
    else if (slot == KVA_ETCD_WATCH)
        kva_members_watch_answer(members, end, answer, now_ns);
    else if (slot == KVA_ETCD_SELF)
        kva_members_self_answer(members, end, answer, now_ns);
    else if (slot == KVA_ETCD_LEADER)
        kva_members_leader_answer(members, end, answer, now_ns);
}

enum kva_status kva_members_create(const struct kva_members_params *params,
                                   struct kva_members **ret, struct kva_err *err)
{
    enum kva_status status = check(params, err);
    if (status)
        return status;
    struct kva_members *members = calloc(1, sizeof(*members));
    if (!members)
        return kva_fail(err, KVA_ENOMEM, "no memory for the members of a cluster");
    members->params = *params;
    members->params.self.node = 0;
    members->params.self.life = 0;
    members->stands = true;
    uint64_t rest_ns = params->lease_ttl_ns / 6;
    struct kva_etcd_params etcd = {
        .endpoint_count = params->endpoint_count,
        .request_ns = params->request_ns,
        .rest_ns = rest_ns > REST_MAX_NS   ? REST_MAX_NS
                   : rest_ns < REST_MIN_NS ? REST_MIN_NS
                                           : rest_ns,
        .opaque = members,
        .answer = on_answer,
    };
    if (!copy_texts(members)) {
        kva_members_destroy(members, 0);
        return kva_fail(err, KVA_ENOMEM, "no memory for the members of a cluster");
    }
    etcd.endpoints = members->params.endpoints;
    etcd.user = members->user;
    etcd.ca = members->ca;
    snprintf(members->nodes_key, sizeof(members->nodes_key), "kvahead/%s/nodes/", members->name);
    snprintf(members->leader_key, sizeof(members->leader_key), "kvahead/%s/leader", members->name);
    /* '0' comes after '/'. */
    snprintf(members->end_key, sizeof(members->end_key), "kvahead/%s0", members->name);
    status = kva_etcd_create(&etcd, &members->etcd, err);
    if (status) {
        kva_members_destroy(members, 0);
        return status;
    }
    *ret = members;
    return KVA_OK;
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Ask for the lease's end, as often as there is time. */
static void revoke(struct kva_members *members, uint64_t until_ns)
{
    char body[64];
    snprintf(body, sizeof(body), "{\"ID\":\"%llu\"}", (unsigned long long)members->lease);
    members->revoking = true;
    for (uint32_t i = 0; i < KVA_ETCD_SLOTS; i++)
        kva_etcd_drop(members->etcd, (enum kva_etcd_slot)i);
    for (uint64_t now_ns = kva_time_ns(); members->revoking && now_ns < until_ns;
         now_ns = kva_time_ns()) {
        if (kva_etcd_ready(members->etcd, KVA_ETCD_LEASE, now_ns))
            kva_etcd_ask(members->etcd,
                         &(struct kva_etcd_call){.slot = KVA_ETCD_LEASE,
                                                 .path = "/v3/lease/revoke",
                                                 .body = body,
                                                 .limit_ns = until_ns - now_ns},
                         now_ns);
        kva_etcd_perform(members->etcd, now_ns);
        uint64_t due_ns = kva_etcd_due_ns(members->etcd, now_ns);
        due_ns = due_ns < until_ns ? due_ns : until_ns;
        if (members->revoking && due_ns > now_ns)
            kva_etcd_wait(members->etcd, NULL, 0, due_ns - now_ns);
    }
}

void kva_members_destroy(struct kva_members *members, uint64_t wait_ns)
{
    if (!members)
        return;
    if (members->etcd && members->lease != 0 && wait_ns > 0)
        revoke(members, kva_time_ns() + wait_ns);
    kva_etcd_destroy(members->etcd);
    for (size_t i = 0; i < KVA_COUNT_OF(members->endpoints); i++)
        free(members->endpoints[i]);
    if (members->user)
        explicit_bzero(members->user, strlen(members->user));
    free(members->user);
    free(members->ca);
    free(members->name);
    free(members);
}

/* --- its turn --------------------------------------------------------------------------------- */

static void step(struct kva_members *members, uint64_t now_ns)
{
    if (members->left)
        return;
    kva_members_self_step(members, now_ns);
    kva_members_table_step(members, now_ns);
    kva_members_leader_step(members, now_ns);
}

/* How long nothing has to be done unless something comes. */
static uint64_t due_ns(const struct kva_members *members, uint64_t now_ns)
{
    uint64_t ret_ns = kva_etcd_due_ns(members->etcd, now_ns);
    if (!members->left && members->lease != 0 && members->lease_due_ns < ret_ns &&
        kva_etcd_ready(members->etcd, KVA_ETCD_LEASE, now_ns))
        ret_ns = members->lease_due_ns;
    return ret_ns;
}

void kva_members_run(struct kva_members *members, const int *fds, uint32_t fd_count,
                     uint64_t until_ns)
{
    bool readable = false;
    members->called = false;
    for (;;) {
        kva_etcd_perform(members->etcd, kva_time_ns());
        uint64_t now_ns = kva_time_ns();
        step(members, now_ns);
        if (members->called || readable || now_ns >= until_ns)
            return;
        uint64_t wait_until_ns = due_ns(members, now_ns);
        wait_until_ns = wait_until_ns < until_ns ? wait_until_ns : until_ns;
        if (wait_until_ns > now_ns)
            readable = kva_etcd_wait(members->etcd, fds, fd_count, wait_until_ns - now_ns);
    }
}

void kva_members_stand(struct kva_members *members, bool stands)
{
    members->stands = stands;
}

void kva_members_get_view(const struct kva_members *members, struct kva_members_view *ret)
{
    struct kva_members_view view = {.state = KVA_MEMBERS_JOINED};
    if (members->left)
        view.state = KVA_MEMBERS_LEFT;
    else if (!members->joined)
        view.state = KVA_MEMBERS_JOINING;
    else if (kva_time_ns() - members->sent_ns > members->params.lease_ttl_ns)
        view.state = KVA_MEMBERS_APART;
    for (uint32_t node = 1; node <= KVA_MEMBERS_NODES_MAX; node++) {
        bool self = members->joined && node == members->params.self.node;
        view.members += !self && members->entries[node].visible;
        view.strangers += !self && members->entries[node].stranger;
    }
    view.members += members->joined && !members->left;
    view.leader = members->elected != 0 ? members->params.self.node : members->leader_node;
    view.records_bad = members->records_bad;
    view.failures = kva_etcd_failures(members->etcd);
    snprintf(view.why, sizeof(view.why), "%s", kva_etcd_why(members->etcd));
    *ret = view;
}
