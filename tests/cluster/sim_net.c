/* sim_net.c - messages through their encoding and over a network that may do what it likes. */
#include "tests/cluster/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/rmanager_internal.h"

/* Where a node's number is among instances, managers and etcd. */
static uint32_t place(const struct sim *sim, uint32_t id)
{
    return id < SIM_MANAGER_ID ? id - 1 : sim->node_count + id - SIM_MANAGER_ID;
}

bool sim_reaches(const struct sim *sim, uint32_t a, uint32_t b)
{
    return !sim->split[a][b];
}

uint64_t sim_delay_ns(struct sim *sim)
{
    uint64_t us = 100 + sim_below(sim, 4000);
    if (sim_chance(sim, sim->late_pct)) {
        sim->stats.late++;
        us = 1000ull * sim_below(sim, SIM_DELAY_MAX_NS / KVA_NS_PER_MS);
    }
    return us * KVA_NS_PER_US;
}

static void schedule(struct sim *sim, const struct sim_packet *packet)
{
    struct sim_packet *copy = malloc(sizeof(*copy));
    if (!copy)
        abort();
    memcpy(copy, packet, sizeof(*copy));
    sim_at(sim, sim->now_ns + sim_delay_ns(sim), SIM_EVENT_PACKET, 0)->packet = copy;
}

void sim_send(struct sim *sim, const struct kva_message *message, const uint64_t *content,
              uint32_t content_count)
{
    struct sim_packet packet = {.target = message->target, .content_count = content_count};
    struct kva_err err = {0};
    size_t size = 0;
    if (kva_message_encode(message, packet.bytes, sizeof(packet.bytes), &size, &err)) {
        sim_fail(sim, "%s cannot be sent: %s", kva_message_name(message->type), err.message);
        return;
    }
    packet.size = (uint32_t)size;
    if (content_count > 0)
        memcpy(packet.content, content, content_count * sizeof(*content));
    sim->stats.packets++;
    if (!sim_reaches(sim, place(sim, message->source), place(sim, message->target)) ||
        sim_chance(sim, sim->loss_pct)) {
        sim->stats.lost++;
        return;
    }
    schedule(sim, &packet);
    if (sim_chance(sim, sim->double_pct)) {
        sim->stats.doubled++;
        schedule(sim, &packet);
    }
}

static uint64_t order_revision(const struct kva_message *message)
{
    switch (message->type) {
    case KVA_MESSAGE_LEAD:
        return message->lead.revision;
    case KVA_MESSAGE_MOVE:
        return message->move.revision;
    case KVA_MESSAGE_RETURN:
        return message->home.revision;
    default:
        return 0;
    }
}

static void deliver_to_node(struct sim *sim, struct sim_node *node, const struct sim_packet *packet,
                            struct kva_message *message)
{
    uint64_t revision = order_revision(message);
    bool is_move = message->type == KVA_MESSAGE_MOVE;
    uint64_t loan = is_move ? message->move.loan : 0;
    if (!node->rmanager)
        return;
    bool had = is_move && kva_debt_find(node->rmanager, loan);
    bool for_it = message->target_life == 0 || message->target_life == node->life;
    if (sim->broken && sim->broken->before && !sim->broken->before(node, message))
        return;
    node->packet = packet;
    kva_rmanager_receive(node->rmanager, message, sim_local_ns(sim, &node->clock));
    node->packet = NULL;
    if (is_move && !had && kva_debt_find(node->rmanager, loan) && revision < node->revision)
        sim_fail(sim, "node %u obeys revision %llu after %llu: a stale order", message->target,
                 (unsigned long long)revision, (unsigned long long)node->revision);
    for (uint32_t i = 0; i < sim->node_count && is_move && !had; i++) {
        struct sim_node *other = &sim->nodes[i];
        if (other != node && other->rmanager && kva_debt_find(other->rmanager, loan) &&
            kva_debt_find(node->rmanager, loan))
            sim_fail(sim, "loan %llx is given twice", (unsigned long long)loan);
    }
    if (for_it)
        node->revision = kva_max_u64(node->revision, revision);
}

void sim_deliver(struct sim *sim, struct sim_packet *packet)
{
    struct kva_message_entry entries[64];
    struct kva_message message;
    struct kva_err err = {0};
    if (kva_message_decode(packet->bytes, packet->size, entries, KVA_COUNT_OF(entries), &message,
                           &err)) {
        sim_fail(sim, "a message that was sent is not read: %s", err.message);
        return;
    }
    if (packet->target < SIM_MANAGER_ID) {
        deliver_to_node(sim, &sim->nodes[packet->target - 1], packet, &message);
        return;
    }
    struct sim_manager *manager = &sim->managers[packet->target - SIM_MANAGER_ID];
    if (manager->gmanager)
        kva_gmanager_receive(manager->gmanager, &message);
}
