/* thread.c - the cluster's thread: connections with other members, what etcd says, and messages
 * between them and the engine's thread. */
#include "base/thread.h"
#include "base/clock.h"
#include "base/log.h"
#include "cluster/link/address.h"
#include "cluster/node/lookup.h"
#include "cluster/node/node_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between looks at what is due: leases, rounds, connections. */
#define TICK_NS    (10 * KVA_NS_PER_MS)
#define RETRY_NS   (1 * KVA_NS_PER_S)
#define HELLO_NS   (5 * KVA_NS_PER_S)
#define REQUEST_NS (3 * KVA_NS_PER_S)
#define LEAVE_NS   (2 * KVA_NS_PER_S)

/* --- members ----------------------------------------------------------------------------------- */

struct kva_peer *kva_node_find_peer(struct kva_node *node, uint32_t number)
{
    for (uint32_t i = 0; i < node->peer_count; i++) {
        if (node->peers[i].member.node == number)
            return &node->peers[i];
    }
    return NULL;
}

/* The engine's thread has something to take. */
static void wake_engine(struct kva_node *node)
{
    pthread_mutex_lock(&node->service_lock);
    if (node->service)
        kva_service_nudge(node->service);
    pthread_mutex_unlock(&node->service_lock);
}

static void tell_engine(struct kva_node *node, enum kva_note_kind kind,
                        const struct kva_member *member)
{
    if (!kva_mailbox_put_member(&node->to_engine, kind, member))
        kva_log(KVA_LOG_ERROR, "cluster       out of memory: node %u is not known here",
                member->node);
    wake_engine(node);
}

/* The host of "HOST:PORT", without brackets. */
static void host_of(const char *address, char *ret, size_t size)
{
    const char *end = strrchr(address, ':');
    size_t length = end ? (size_t)(end - address) : strlen(address);
    if (length > 1 && address[0] == '[' && address[length - 1] == ']') {
        address++;
        length -= 2;
    }
    snprintf(ret, size, "%.*s", (int)length, address);
}

static void joined(void *opaque, uint32_t number, uint64_t life)
{
    struct kva_node *node = opaque;
    const struct kva_member self = {.node = number, .life = life};
    node->self = number;
    node->self_life = life;
    kva_link_identify(node->link, number, life);
    kva_log(KVA_LOG_INFO, "cluster       %s: this is node %u, life %llu", node->name, number,
            (unsigned long long)life);
    tell_engine(node, KVA_NOTE_JOINED, &self);
}

/* Of two, the one with the smaller number connects, once its host is known. */
static void connect_with(struct kva_node *node, struct kva_peer *peer)
{
    char address[KVA_NODE_ADDRESS_MAX];
    struct kva_err err;
    const struct kva_member *m = &peer->member;
    peer->retry_ns = 0;
    if (node->self == 0 || node->self > m->node || !peer->known)
        return;
    kva_node_address(peer->host, m->port, address);
    if (kva_link_connect(node->link, m->node, m->life, address, &err) == KVA_OK)
        return;
    kva_log(KVA_LOG_WARN, "cluster       node %u: %s", m->node, err.message);
    peer->retry_ns = kva_time_ns() + RETRY_NS;
}

/* --- where they are ---------------------------------------------------------------------------- */

static void not_found(struct kva_peer *peer, const struct kva_err *err)
{
    if (!peer->known && peer->look_ns == 0)
        kva_log(KVA_LOG_WARN, "cluster       nothing is lent to node %u until it is found: %s",
                peer->member.node, err->message);
    peer->look_ns = kva_time_ns() + RETRY_NS;
}

/* The engine's thread hears of a member when its name has been looked up, for which no step waits,
 * nor does this thread; but not that a name has another address by now, which may be one of several. */
static void found(struct kva_node *node, struct kva_peer *peer, const char *text)
{
    struct kva_member member = peer->member;
    host_of(text, member.host, sizeof(member.host));
    memcpy(peer->host, member.host, sizeof(peer->host));
    if (peer->known)
        return;
    peer->known = true;
    tell_engine(node, KVA_NOTE_MEMBER, &member);
    connect_with(node, peer);
}

static void take_lookup(struct kva_node *node, struct kva_peer *peer)
{
    char text[KVA_LINK_ADDRESS_TEXT];
    struct kva_err err;
    if (!peer->lookup || !kva_lookup_is_done(peer->lookup))
        return;
    if (kva_lookup_take(peer->lookup, text, &err))
        not_found(peer, &err);
    else
        found(node, peer, text);
    kva_lookup_end(peer->lookup);
    peer->lookup = NULL;
}

static void look_up(struct kva_node *node, struct kva_peer *peer)
{
    char address[KVA_NODE_ADDRESS_MAX];
    struct kva_err err;
    if (peer->lookup)
        return;
    kva_node_address(peer->member.host, peer->member.guest_port, address);
    if (kva_lookup_begin(address, kva_link_address_resolve, &peer->lookup, &err))
        not_found(peer, &err);
    take_lookup(node, peer);
}

/* --- who is there ------------------------------------------------------------------------------ */

static void connected(struct kva_node *node, struct kva_peer *peer)
{
    kva_log(KVA_LOG_INFO, "cluster       connected with node %u", peer->member.node);
    peer->up = true;
    kva_probe_begin(node, peer, kva_time_ns());
}

static void forget(struct kva_node *node, struct kva_peer *peer)
{
    const struct kva_member member = peer->member;
    const bool known = peer->known;
    kva_link_disconnect(node->link, member.node);
    kva_lookup_end(peer->lookup);
    if (node->gmanager)
        kva_gmanager_member_gone(node->gmanager, member.node);
    *peer = node->peers[--node->peer_count];
    if (known)
        tell_engine(node, KVA_NOTE_GONE, &member);
}

static void wait_no_more(struct kva_node *node, uint32_t number)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < node->waiting_count; i++)
        if (node->waiting[i].node != number)
            node->waiting[kept++] = node->waiting[i];
    node->waiting_count = kept;
}

static void meet(struct kva_node *node, const struct kva_member *member)
{
    struct kva_peer *peer = &node->peers[node->peer_count++];
    *peer = (struct kva_peer){.member = *member};
    if (node->gmanager && kva_gmanager_member(node->gmanager, member->node, member->life))
        kva_log(KVA_LOG_ERROR, "cluster       node %u takes no part in plans: there are too many",
                member->node);
    kva_log(KVA_LOG_INFO, "cluster       node %u is there, at %s:%u", member->node, member->host,
            member->port);
    if (kva_link_life(node->link, member->node) == member->life)
        connected(node, peer); /* it knew of this node, and had connected, before this one of it */
    look_up(node, peer);
}

/* Where there is no place, it has the first that becomes free: those who died may be there still,
 * until their leases end. */
static void member(void *opaque, const struct kva_member *member)
{
    struct kva_node *node = opaque;
    struct kva_peer *peer = kva_node_find_peer(node, member->node);
    wait_no_more(node, member->node);
    if (peer && peer->member.life != member->life)
        forget(node, peer);
    else if (peer)
        return;
    if (node->peer_count < node->params.nodes_max) {
        meet(node, member);
        return;
    }
    kva_log(KVA_LOG_ERROR, "cluster       node %u waits for a place: there are %u already",
            member->node, node->params.nodes_max);
    node->waiting[node->waiting_count++] = *member;
}

static void gone(void *opaque, uint32_t number, uint64_t life)
{
    struct kva_node *node = opaque;
    struct kva_peer *peer = kva_node_find_peer(node, number);
    wait_no_more(node, number);
    if (!peer || peer->member.life != life)
        return;
    kva_log(KVA_LOG_INFO, "cluster       node %u is gone", number);
    forget(node, peer);
    if (node->waiting_count > 0) {
        const struct kva_member next = node->waiting[0];
        wait_no_more(node, next.node);
        meet(node, &next);
    }
}

static void left(void *opaque, const char *why)
{
    struct kva_node *node = opaque;
    kva_log(KVA_LOG_ERROR,
            "cluster       this node has left: %s; it serves by itself until it is started again",
            why);
    kva_node_deposed(node);
    node->waiting_count = 0;
    while (node->peer_count > 0)
        forget(node, &node->peers[0]);
}

/* --- messages ---------------------------------------------------------------------------------- */

void kva_node_route(struct kva_node *node, const uint8_t *bytes, size_t size, const void *content,
                    size_t content_bytes)
{
    struct kva_message message;
    if (kva_message_decode(bytes, size, node->entries, KVA_MESSAGE_ENTRIES_MAX, &message, NULL))
        return; /* of this program's own making: tests would have seen it */
    if (node->gmanager && message.target == kva_node_manager_of(node->self)) {
        kva_gmanager_receive(node->gmanager, &message);
    } else if (message.target == node->self) {
        kva_mailbox_put_message(&node->to_engine, bytes, size, content, content_bytes);
        wake_engine(node);
    } else if (kva_node_process_of(message.target) != node->self) {
        node->cluster_view.messages_out++;
        node->cluster_view.content_bytes_out += content_bytes;
        (void)!kva_link_send(node->link, kva_node_process_of(message.target), KVA_NODE_MESSAGE,
                             bytes, size, content, content_bytes);
    }
}

static void send_out(struct kva_node *node)
{
    struct kva_list notes;
    kva_mailbox_take(&node->to_cluster, &notes);
    while (!kva_list_empty(&notes)) {
        struct kva_note *note = KVA_CONTAINER_OF(notes.next, struct kva_note, link);
        kva_list_remove(&note->link);
        kva_node_route(node, note->message, note->size, note->content, note->content_bytes);
        kva_note_free(&node->to_cluster, note);
    }
}

/* Who speaks is who the connection is with, or its gManager. */
static void receive_message(struct kva_node *node, const struct kva_link_frame *frame)
{
    struct kva_message message;
    struct kva_err err;
    enum kva_status status = kva_message_decode(frame->header, frame->header_bytes, node->entries,
                                                KVA_MESSAGE_ENTRIES_MAX, &message, &err);
    bool manager = !status && message.source == kva_node_manager_of(frame->node);
    bool own = !status && message.source == frame->node && message.source_life == frame->life;
    if (status || (!manager && !own) || kva_node_process_of(message.target) != node->self) {
        node->cluster_view.messages_bad++;
        kva_log(KVA_LOG_DEBUG, "cluster       a message of node %u is not taken: %s", frame->node,
                status ? err.message : "it is not its, or not for this node");
        return;
    }
    node->cluster_view.messages_in++;
    node->cluster_view.content_bytes_in += frame->data_bytes;
    if (message.target != node->self) {
        if (node->gmanager)
            kva_gmanager_receive(node->gmanager, &message);
        return;
    }
    kva_mailbox_put_message(&node->to_engine, frame->header, frame->header_bytes, frame->data,
                            frame->data_bytes);
    wake_engine(node);
}

static void received(void *opaque, const struct kva_link_frame *frame)
{
    struct kva_node *node = opaque;
    if (frame->kind == KVA_NODE_MESSAGE)
        receive_message(node, frame);
    else if (frame->kind == KVA_NODE_PROBE)
        kva_probe_answer(node, frame);
    else if (frame->kind == KVA_NODE_PROBED)
        kva_probe_take(node, frame, kva_time_ns());
    else
        node->cluster_view.messages_bad++;
}

static void changed(void *opaque, uint32_t number, uint64_t life, bool up, const char *why)
{
    struct kva_node *node = opaque;
    struct kva_peer *peer = kva_node_find_peer(node, number);
    if (!peer || peer->member.life != life)
        return;
    if (up && !peer->up) {
        connected(node, peer);
    } else if (!up) {
        kva_log(peer->up ? KVA_LOG_WARN : KVA_LOG_DEBUG,
                "cluster       no connection with node %u: %s", number, why);
        peer->retry_ns = kva_time_ns() + RETRY_NS;
        peer->up = false;
    }
}

/* --- the thread -------------------------------------------------------------------------------- */

static void publish(struct kva_node *node)
{
    static const enum kva_cluster_state states[] = {
        [KVA_MEMBERS_JOINING] = KVA_CLUSTER_JOINING,
        [KVA_MEMBERS_JOINED] = KVA_CLUSTER_JOINED,
        [KVA_MEMBERS_APART] = KVA_CLUSTER_APART,
        [KVA_MEMBERS_LEFT] = KVA_CLUSTER_LEFT,
    };
    struct kva_cluster_view *mine = &node->cluster_view, *shared = &node->view;
    struct kva_members_view members;
    uint32_t linked = 0;
    kva_members_get_view(node->members, &members);
    for (uint32_t i = 0; i < node->peer_count; i++)
        linked += node->peers[i].up;
    pthread_mutex_lock(&node->view_lock);
    shared->state = states[members.state];
    shared->node = node->self;
    shared->members = members.members;
    shared->linked = linked;
    shared->leader = members.leader;
    shared->leads = node->gmanager != NULL;
    shared->etcd_failures = members.failures;
    shared->messages_in = mine->messages_in;
    shared->messages_out = mine->messages_out;
    shared->messages_bad = mine->messages_bad;
    shared->content_bytes_in = mine->content_bytes_in;
    shared->content_bytes_out = mine->content_bytes_out;
    kva_node_manager_stats(node, &shared->plans);
    pthread_mutex_unlock(&node->view_lock);
}

static void look_at_what_is_due(struct kva_node *node, uint64_t now_ns)
{
    for (uint32_t i = 0; i < node->peer_count; i++) {
        struct kva_peer *peer = &node->peers[i];
        take_lookup(node, peer);
        if (peer->retry_ns > 0 && now_ns >= peer->retry_ns) {
            connect_with(node, peer);
            look_up(node, peer); /* it may be elsewhere by now */
        }
        if (!peer->known && now_ns >= peer->look_ns)
            look_up(node, peer);
    }
    kva_node_manager_tick(node, now_ns);
    publish(node);
}

static void *run(void *opaque)
{
    struct kva_node *node = opaque;
    const int fd = kva_link_fd(node->link);
    kva_thread_be_prompt();
    while (!atomic_load(&node->stop)) {
        uint64_t now_ns = kva_time_ns();
        if (now_ns - node->tick_ns >= TICK_NS) {
            node->tick_ns = now_ns;
            look_at_what_is_due(node, now_ns);
        }
        send_out(node);
        bool more = kva_link_progress(node->link, now_ns) || !kva_link_arm(node->link);
        kva_members_run(node->members, &fd, 1, more ? now_ns : now_ns + TICK_NS);
    }
    return NULL;
}

/* --- life -------------------------------------------------------------------------------------- */

enum kva_status kva_node_listen(struct kva_node *node, struct kva_err *err)
{
    const struct kva_node_params *p = &node->params;
    const size_t pages_bytes = node->unacked_pages * node->page_bytes;
    const struct kva_link_params params = {
        .transport = node->transport,
        .listen = p->listen,
        .secret = node->secret,
        .secret_bytes = node->secret_bytes,
        .header_bytes_max = KVA_MESSAGE_BYTES_MAX,
        .data_bytes_max = pages_bytes > KVA_PROBE_BYTES ? pages_bytes : KVA_PROBE_BYTES,
        .unsent_bytes_max = node->queue_bytes,
        .unread_bytes_max = node->queue_bytes,
        .peers_max = p->nodes_max,
        .hello_ns = HELLO_NS,
        .opaque = node,
        .received = received,
        .changed = changed,
    };
    return kva_link_create(&params, &node->link, err);
}

enum kva_status kva_node_thread_start(struct kva_node *node, struct kva_err *err)
{
    const struct kva_node_params *p = &node->params;
    struct kva_members_params params = {
        .endpoints = p->etcd,
        .endpoint_count = p->etcd_count,
        .user = p->etcd_user,
        .ca = p->etcd_ca,
        .name = node->name,
        .self = {.port = kva_link_port(node->link),
                 .guest_port = kva_creditor_port(node->creditor),
                 .lend_pages = node->lend_pages},
        .lease_ttl_ns = p->lease_ttl_ns,
        .request_ns = REQUEST_NS,
        .opaque = node,
        .joined = joined,
        .member = member,
        .gone = gone,
        .elected = kva_node_elected,
        .kept_alive = kva_node_kept_alive,
        .deposed = kva_node_deposed,
        .left = left,
    };
    if (p->advertise)
        snprintf(params.self.host, sizeof(params.self.host), "%s", p->advertise);
    else
        host_of(p->listen, params.self.host, sizeof(params.self.host));
    snprintf(params.self.model, sizeof(params.self.model), "%s", node->model);
    enum kva_status status = kva_members_create(&params, &node->members, err);
    if (status)
        return status;
    if (pthread_create(&node->thread, NULL, run, node))
        return kva_fail(err, KVA_ENOMEM, "the system refuses a thread for the cluster");
    node->running = true;
    return KVA_OK;
}

void kva_node_thread_stop(struct kva_node *node)
{
    if (node->running) {
        atomic_store(&node->stop, true);
        kva_link_wake(node->link);
        pthread_join(node->thread, NULL);
        node->running = false;
    }
    kva_node_deposed(node);
    kva_members_destroy(node->members, LEAVE_NS);
    node->members = NULL;
    for (uint32_t i = 0; i < node->peer_count; i++)
        kva_lookup_end(node->peers[i].lookup);
    node->peer_count = 0;
    kva_link_destroy(node->link);
    node->link = NULL;
}
