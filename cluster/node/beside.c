/* beside.c - a node on its engine's thread: joining, loans, and what comes in between. */
#include "base/clock.h"
#include "base/log.h"
#include "cluster/node/node_internal.h"

/* Between looks at leases while nothing steps, with loans and without. */
#define LOANS_TICK_NS   (20 * KVA_NS_PER_MS)
#define IDLE_TICK_NS    (250 * KVA_NS_PER_MS)

#define RETRY_NS        (250 * KVA_NS_PER_MS)
#define LEASE_MARGIN_OF 8u

/* --- messages ---------------------------------------------------------------------------------- */

static void send(void *opaque, const struct kva_message *message, const void *content)
{
    struct kva_node *node = opaque;
    uint8_t bytes[KVA_MESSAGE_BYTES_MAX];
    size_t size, content_bytes = content ? message->pages.pages * node->page_bytes : 0;
    if (kva_message_encode(message, bytes, sizeof(bytes), &size, NULL))
        return; /* the rManager's defect: its tests would have seen it */
    if (message->type == KVA_MESSAGE_RESERVE)
        kva_debtor_prepare(node->debtor, message->target);
    kva_mailbox_put_message(&node->to_cluster, bytes, size, content, content_bytes);
    kva_link_wake(node->link);
}

static bool may_ask(void *opaque, uint32_t creditor)
{
    struct kva_node *node = opaque;
    return kva_debtor_may_ask(node->debtor, creditor);
}

static bool reaches(void *opaque, uint32_t creditor)
{
    struct kva_node *node = opaque;
    return kva_debtor_reaches(node->debtor, creditor);
}

static void receive(struct kva_node *node, const struct kva_note *note)
{
    struct kva_message_entry entry;
    struct kva_message message;
    struct kva_err err;
    enum kva_status status = KVA_EFORMAT;
    if (!node->instance)
        return;
    /* A heartbeat, which has entries, is for gManagers. */
    status = kva_message_decode(note->message, note->size, &entry, 1, &message, &err);
    if (!status)
        status = kva_instance_receive(node->instance, &message,
                                      note->content_bytes ? note->content : NULL,
                                      note->content_bytes, kva_time_ns(), &err);
    if (status)
        kva_log(KVA_LOG_WARN, "cluster       %s", err.message);
}

/* --- joining ------------------------------------------------------------------------------------ */

static enum kva_status create_instance(struct kva_node *node, struct kva_scheduler *scheduler,
                                       const struct kva_member *self, struct kva_err *err)
{
    const struct kva_node_params *p = &node->params;
    const struct kva_instance_params params = {
        .rmanager = {.node = self->node,
                     .life = self->life,
                     .loans_max = kva_node_loans(node->engine->limits.sequences_max),
                     .peers_max = 2 * (p->nodes_max + 1),
                     .entries_max = KVA_MESSAGE_ENTRIES_MAX,
                     .lend_pages_max = node->lend_pages,
                     .unacked_pages = node->unacked_pages,
                     .retry_ns = RETRY_NS,
                     .lease_margin_ns = p->loan_ttl_ns / LEASE_MARGIN_OF,
                     .recall_within_ns = p->recall_ns},
        .engine = node->engine,
        .scheduler = scheduler,
        .running_max = node->running_max,
        .keeps_homes = p->keeps_homes,
        .patience_ns = p->patience_ns,
        .step_pages = kva_node_step_pages(node),
        .send = send,
        .may_ask = may_ask,
        .reaches = reaches,
        .opaque = node};
    enum kva_status status = kva_instance_create(&params, &node->instance, err);
    if (status)
        return status;
    status = kva_guest_worker_create(kva_instance_guests(node->instance), node->guest_device,
                                     node->asked_max, &node->guest_worker, err);
    if (status) {
        kva_instance_destroy(node->instance); /* which nobody would answer for */
        node->instance = NULL;
    }
    return status;
}

static void join(struct kva_node *node, struct kva_scheduler *scheduler,
                 const struct kva_member *self)
{
    struct kva_err err;
    if (node->instance || node->failed)
        return;
    if (create_instance(node, scheduler, self, &err)) {
        kva_log(KVA_LOG_ERROR, "cluster       this node takes no part: %s", err.message);
        node->failed = true;
        return;
    }
    kva_debtor_identify(node->debtor, self->node, self->life);
    kva_creditor_begin(node->creditor, self->node, self->life, node->guest_worker);
    node->node = self->node;
}

/* Requests may be longer than this engine's device memory by what others can lend. */
static void count_on_lenders(struct kva_node *node)
{
    kva_lending_set_others(node->engine, kva_lenders_pages(&node->lenders) * node->page_bytes);
}

static void know(struct kva_node *node, const struct kva_member *member)
{
    char address[KVA_NODE_ADDRESS_MAX];
    struct kva_err err;
    kva_node_address(member->host, member->guest_port, address);
    if (kva_debtor_peer(node->debtor, member->node, member->life, address, &err)) {
        kva_log(KVA_LOG_WARN, "cluster       nothing is lent to node %u: %s", member->node,
                err.message);
        return;
    }
    kva_lenders_put(&node->lenders, member->node, member->lend_pages);
    count_on_lenders(node);
}

static void lose(struct kva_node *node, uint32_t number)
{
    if (node->instance)
        kva_instance_peer_lost(node->instance, number, kva_time_ns());
}

static void take(struct kva_node *node, struct kva_scheduler *scheduler,
                 const struct kva_note *note)
{
    switch (note->kind) {
    case KVA_NOTE_MESSAGE:
        receive(node, note);
        break;
    case KVA_NOTE_JOINED:
        join(node, scheduler, &note->member);
        break;
    case KVA_NOTE_MEMBER:
        know(node, &note->member);
        break;
    case KVA_NOTE_GONE:
        kva_lenders_remove(&node->lenders, note->member.node);
        count_on_lenders(node);
        kva_debtor_peer_gone(node->debtor, note->member.node);
        lose(node, note->member.node);
        break;
    }
}

/* --- between steps ------------------------------------------------------------------------------ */

static void publish(struct kva_node *node)
{
    struct kva_debtor_stats asked;
    struct kva_creditor_stats answered;
    struct kva_rmanager_stats loans = {0};
    kva_debtor_get_stats(node->debtor, &asked);
    kva_creditor_get_stats(node->creditor, &answered);
    if (node->instance)
        kva_instance_get_stats(node->instance, &loans);
    pthread_mutex_lock(&node->view_lock);
    struct kva_cluster_view *view = &node->view;
    view->loans = loans;
    view->remote.questions = asked.questions;
    view->remote.rows = asked.rows;
    view->remote.bytes_out = asked.bytes_out;
    view->remote.bytes_in = asked.bytes_in;
    view->remote.wait_ns = asked.wait_ns;
    view->remote.lost = asked.late + asked.broken + asked.not_found;
    view->remote.answers = answered.answers;
    view->remote.answered_rows = answered.rows;
    view->remote.attend_ns = answered.attend_ns;
    view->remote.refused = answered.refused;
    pthread_mutex_unlock(&node->view_lock);
}

uint64_t kva_node_between_steps(void *opaque, struct kva_scheduler *scheduler)
{
    struct kva_node *node = opaque;
    struct kva_list notes;
    uint32_t lost[16], count;
    kva_mailbox_take(&node->to_engine, &notes);
    while (!kva_list_empty(&notes)) {
        struct kva_note *note = KVA_CONTAINER_OF(notes.next, struct kva_note, link);
        kva_list_remove(&note->link);
        take(node, scheduler, note);
        kva_note_free(&node->to_engine, note);
    }
    while ((count = kva_debtor_take_lost(node->debtor, lost, KVA_COUNT_OF(lost))) > 0) {
        for (uint32_t i = 0; i < count; i++)
            lose(node, lost[i]);
    }
    uint64_t now_ns = kva_time_ns();
    struct kva_rmanager_stats loans = {0};
    if (node->instance) {
        kva_instance_between_steps(node->instance, now_ns);
        kva_instance_get_stats(node->instance, &loans);
    }
    const bool asks = loans.loans > 0 || kva_debtor_calls(node->debtor);
    if (asks)
        kva_debtor_progress(node->debtor);
    publish(node);
    return now_ns + (asks || loans.guests > 0 ? LOANS_TICK_NS : IDLE_TICK_NS);
}

/* The service drains, and so does the instance: what others have here goes home. A node that has not
 * joined has nothing of anybody. */
bool kva_node_leave(void *opaque)
{
    struct kva_node *node = opaque;
    struct kva_rmanager_stats loans;
    if (!node->instance)
        return true;
    if (!node->draining)
        kva_instance_drain(node->instance, kva_time_ns());
    node->draining = true;
    kva_instance_get_stats(node->instance, &loans);
    return loans.guests == 0;
}

/* The creditor's thread lets go of what lies in this engine before it goes. */
void kva_node_end(void *opaque)
{
    struct kva_node *node = opaque;
    kva_creditor_stop(node->creditor);
    kva_guest_worker_destroy(node->guest_worker);
    kva_instance_destroy(node->instance);
    node->guest_worker = NULL;
    node->instance = NULL;
}
