/* pair.c - what two nodes do for their rManagers: as little as can be checked. */
#include "tests/cluster/pair.h"

#include <string.h>

static void pair_send(void *opaque, const struct kva_message *message)
{
    struct pair *pair = ((struct pair_node *)opaque)->pair;
    assert_true(pair->sent_count < PAIR_SENT_MAX);
    struct kva_message *sent = &pair->sent[pair->sent_count++];
    *sent = *message;
    if (message->type != KVA_MESSAGE_HEARTBEAT)
        return;
    uint32_t count = message->heartbeat.entry_count;
    assert_true(pair->entry_count + count <= KVA_COUNT_OF(pair->entries));
    sent->heartbeat.entries = pair->entries + pair->entry_count;
    if (count > 0)
        memcpy(pair->entries + pair->entry_count, message->heartbeat.entries,
               count * sizeof(*message->heartbeat.entries));
    pair->entry_count += count;
}

static void pair_load(void *opaque, struct kva_message_load *load)
{
    struct pair_node *node = opaque;
    *load = (struct kva_message_load){
        .pages = 100, .free_pages = node->free_pages, .batch = node->request_count};
}

static uint32_t pair_requests(void *opaque, struct kva_message_entry *entries, uint32_t max)
{
    struct pair_node *node = opaque;
    uint32_t count = kva_min_u32(max, node->request_count);
    if (count > 0)
        memcpy(entries, node->requests, count * sizeof(*entries));
    return count;
}

static void pair_take(void *opaque, const struct kva_loan *loan KVA_UNUSED,
                      uint32_t first KVA_UNUSED, uint32_t count)
{
    ((struct pair_node *)opaque)->taken += count;
}

static bool pair_guest_reserve(void *opaque, const struct kva_loan *loan)
{
    struct pair_node *node = opaque;
    if (loan->pages > node->free_pages)
        return false;
    node->free_pages -= loan->pages;
    node->guest_pages += loan->pages;
    return true;
}

static void pair_guest_free(void *opaque, const struct kva_loan *loan)
{
    struct pair_node *node = opaque;
    node->free_pages += loan->pages;
    node->guest_pages -= loan->pages;
    node->freed++;
}

static uint32_t pair_lendable_from(void *opaque, const struct kva_loan *loan KVA_UNUSED)
{
    return ((const struct pair_node *)opaque)->shared_pages;
}

static bool pair_lendable(void *opaque, const struct kva_loan *loan)
{
    const struct pair_node *node = opaque;
    bool closed = node->closed_pages == 0 || loan->first_page + loan->pages <= node->closed_pages;
    return !node->refuses && closed && loan->request == 5 && loan->generation == 3;
}

static bool pair_may_ask(void *opaque, uint32_t creditor KVA_UNUSED)
{
    return !((const struct pair_node *)opaque)->apart;
}

static bool pair_reaches(void *opaque, uint32_t creditor KVA_UNUSED)
{
    return !((const struct pair_node *)opaque)->unreached;
}

static void pair_lent(void *opaque, const struct kva_loan *loan)
{
    struct pair_node *node = opaque;
    node->lent++;
    node->free_pages += loan->pages;
}

static bool pair_home_reserve(void *opaque, const struct kva_loan *loan)
{
    struct pair_node *node = opaque;
    if (loan->pages > node->free_pages)
        return false;
    node->free_pages -= loan->pages;
    return true;
}

static void pair_came_home(void *opaque, const struct kva_loan *loan KVA_UNUSED)
{
    ((struct pair_node *)opaque)->home++;
}

static void pair_lost(void *opaque, uint64_t request, uint32_t generation)
{
    assert_int_equal(request, 5);
    assert_int_equal(generation, 3);
    ((struct pair_node *)opaque)->lost++;
}

void pair_init(struct pair *pair)
{
    memset(pair, 0, sizeof(*pair));
    pair->now_ns = 5 * KVA_NS_PER_S;
    pair->step_pages = 4;
    for (uint32_t i = 0; i < 2; i++) {
        struct pair_node *node = &pair->nodes[i];
        struct kva_rmanager_ops ops = {
            .opaque = node,
            .send = pair_send,
            .load = pair_load,
            .requests = pair_requests,
            .take = pair_take,
            .guest_reserve = pair_guest_reserve,
            .guest_free = pair_guest_free,
            .lendable_from = pair_lendable_from,
            .lendable = pair_lendable,
            .may_ask = pair_may_ask,
            .reaches = pair_reaches,
            .lent = pair_lent,
            .home_reserve = pair_home_reserve,
            .came_home = pair_came_home,
            .lost = pair_lost,
        };
        struct kva_rmanager_params params = {
            .node = i + 1,
            .life = 11 + i,
            .loans_max = 3,
            .peers_max = 4,
            .entries_max = 1300,
            .lend_pages_max = 60,
            .unacked_pages = 6,
            .retry_ns = 50 * KVA_NS_PER_MS,
            .lease_margin_ns = PAIR_TTL_NS / 10,
            .recall_within_ns = 400 * KVA_NS_PER_MS,
        };
        node->pair = pair;
        node->free_pages = 50;
        assert_int_equal(kva_rmanager_create(&params, &ops, &node->rmanager, NULL), KVA_OK);
    }
}

void pair_finish(struct pair *pair)
{
    kva_rmanager_destroy(pair->nodes[0].rmanager);
    kva_rmanager_destroy(pair->nodes[1].rmanager);
}

void pair_settle(struct pair *pair, enum kva_message_type only)
{
    for (; pair->delivered < pair->sent_count; pair->delivered++) {
        struct kva_message message = pair->sent[pair->delivered];
        bool wanted = only == 0 || message.type == only;
        if (wanted && message.target <= 2 && pair->nodes[message.target - 1].rmanager)
            kva_rmanager_receive(pair->nodes[message.target - 1].rmanager, &message, pair->now_ns);
    }
}

void pair_wait(struct pair *pair, uint64_t ns)
{
    pair->now_ns += ns;
    for (uint32_t i = 0; i < 2; i++)
        if (pair->nodes[i].rmanager)
            kva_rmanager_tick(pair->nodes[i].rmanager, pair->now_ns);
}

void pair_step(struct pair *pair)
{
    for (uint32_t i = 0; i < 2; i++)
        if (pair->nodes[i].rmanager)
            kva_rmanager_step(pair->nodes[i].rmanager, pair->step_pages, pair->now_ns);
}

uint32_t pair_sent(const struct pair *pair, enum kva_message_type type)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < pair->sent_count; i++)
        count += pair->sent[i].type == type;
    return count;
}

const struct kva_message *pair_last(const struct pair *pair, enum kva_message_type type)
{
    for (uint32_t i = pair->sent_count; i-- > 0;)
        if (pair->sent[i].type == type)
            return &pair->sent[i];
    fail_msg("no %s was sent", kva_message_name(type));
    return NULL;
}

void pair_forget(struct pair *pair)
{
    pair->sent_count = pair->delivered = pair->entry_count = 0;
}

void pair_order(struct pair *pair, struct kva_message message, uint32_t target)
{
    message.source = PAIR_LEADER;
    message.source_life = 1;
    message.target = target;
    message.sequence = ++pair->leader_sequence;
    kva_rmanager_receive(pair->nodes[target - 1].rmanager, &message, pair->now_ns);
}

void pair_move(struct pair *pair, uint64_t loan, uint32_t pages, uint64_t revision, uint64_t round)
{
    struct kva_message message = {
        .type = KVA_MESSAGE_MOVE,
        .move = {.revision = revision,
                 .round = round,
                 .loan = loan,
                 .request = 5,
                 .generation = 3,
                 .creditor = 2,
                 .creditor_life = 12,
                 .pages = pages,
                 .ttl_ns = PAIR_TTL_NS},
    };
    pair_order(pair, message, 1);
}

void pair_lend(struct pair *pair)
{
    pair_move(pair, 100, 8, 1, 1);
    for (int i = 0; i < 6 && pair->nodes[0].lent == 0; i++) {
        pair_settle(pair, 0);
        pair_step(pair);
    }
    pair_settle(pair, 0);
    assert_int_equal(pair->nodes[0].lent, 1);
    assert_int_equal(pair->nodes[1].taken, 8);
}

struct kva_rmanager_stats pair_stats(const struct pair *pair, uint32_t node)
{
    struct kva_rmanager_stats stats;
    kva_rmanager_get_stats(pair->nodes[node - 1].rmanager, &stats);
    return stats;
}
