/* world_lend.c - what instances do for their rManagers, and the messages between them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cluster/traces/internal.h"

#define DELAY_NS     (100 * KVA_NS_PER_US)
#define ROUND_NS     (500 * KVA_NS_PER_MS)
#define TTL_NS       (20 * KVA_NS_PER_S)
#define PACKETS_MORE 1024u

static void die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* --- messages --------------------------------------------------------------------------------- */

void world_send(struct world *world, const struct kva_message *message)
{
    if (world->packet_count == world->packet_max) {
        struct world_packet *more = calloc(world->packet_max + PACKETS_MORE, sizeof(*more));
        if (!more)
            die("messages", "no memory");
        for (uint32_t i = 0; i < world->packet_count; i++)
            more[i] = world->packets[(world->packet_first + i) % world->packet_max];
        free(world->packets);
        world->packets = more;
        world->packet_first = 0;
        world->packet_max += PACKETS_MORE;
    }
    struct world_packet *packet =
        &world->packets[(world->packet_first + world->packet_count++) % world->packet_max];
    *packet = (struct world_packet){.due_ns = world->now_ns + DELAY_NS, .message = *message};
    if (message->type != KVA_MESSAGE_HEARTBEAT || message->heartbeat.entry_count == 0)
        return;
    size_t bytes = message->heartbeat.entry_count * sizeof(*packet->entries);
    packet->entries = malloc(bytes);
    if (!packet->entries)
        die("messages", "no memory");
    memcpy(packet->entries, message->heartbeat.entries, bytes);
    packet->message.heartbeat.entries = packet->entries;
}

void world_deliver(struct world *world)
{
    while (world->packet_count > 0 && world->packets[world->packet_first].due_ns <= world->now_ns) {
        struct world_packet packet = world->packets[world->packet_first];
        uint32_t target = packet.message.target;
        world->packet_first = (world->packet_first + 1) % world->packet_max;
        world->packet_count--;
        if (target == WORLD_MANAGER)
            kva_gmanager_receive(world->gmanager, &packet.message);
        else
            kva_rmanager_receive(world->instances[target - 1].rmanager, &packet.message,
                                 world->now_ns);
        free(packet.entries);
    }
}

static void node_send(void *opaque, const struct kva_message *message)
{
    const struct world_instance *at = opaque;
    world_send(at->world, message);
}

static void manager_send(void *opaque, const struct kva_message *message)
{
    world_send(opaque, message);
}

/* --- reports ---------------------------------------------------------------------------------- */

uint32_t world_loans(const struct world_instance *at, const struct world_request *request,
                     struct kva_loan *ret)
{
    return at->rmanager ? kva_rmanager_lent(at->rmanager, request->id, ret, WORLD_REQUEST_LOANS)
                        : 0;
}

/* Of the first in line, for each of its tokens. */
static uint64_t prompt_ns(const struct world_instance *at, const struct world_request *head)
{
    double prompt_s = head ? world_prompt_s(at->world, head->prompt) : 0;
    return head ? (uint64_t)(prompt_s / head->outputs * (double)KVA_NS_PER_S) : 0;
}

/* Those who wait for a row do not wait for memory. */
static void node_load(void *opaque, struct kva_message_load *load)
{
    const struct world_instance *at = opaque;
    const struct world_request *head = world_head(at);
    *load = (struct kva_message_load){
        .pages = at->pages,
        .free_pages = world_free(at),
        .batch = at->row_count,
        .batch_max = at->rows_max,
    };
    for (uint32_t i = 0; i < at->row_count; i++) {
        const struct world_request *request = &at->world->requests[at->rows[i]];
        load->tokens += request->prompt + request->emitted;
    }
    load->prompt_ns = prompt_ns(at, head);
    if (!world_is_short(at))
        return;
    load->waiting = at->queue_end - at->queue_first;
    load->head_pages = head->pages > head->away ? head->pages - head->away : 0;
    load->waiting_pages = at->queue_pages;
    load->keeps = world_keeps(at, head);
}

static uint32_t node_requests(void *opaque, struct kva_message_entry *entries, uint32_t max)
{
    const struct world_instance *at = opaque;
    const struct world_request *head = world_is_short(at) ? world_head(at) : NULL;
    uint32_t count = 0;
    if (head && world_closed(head) > head->away)
        entries[count++] = (struct kva_message_entry){
            .request = head->id,
            .generation = head->generation,
            .pages = world_closed(head) - head->away,
            .flags = KVA_ENTRY_LOCAL | KVA_ENTRY_HEAD,
        };
    for (uint32_t i = 0; i < at->row_count && count < max; i++) {
        const struct world_request *request = &at->world->requests[at->rows[i]];
        uint32_t taken = request->away + request->home;
        if (world_closed(request) < taken + WORLD_REPORTED_MIN)
            continue;
        entries[count++] = (struct kva_message_entry){
            .request = request->id,
            .generation = request->generation,
            .pages = world_closed(request) - taken,
            .flags = KVA_ENTRY_LOCAL,
        };
    }
    return count;
}

/* --- pages ------------------------------------------------------------------------------------ */

static void node_take(void *opaque, const struct kva_loan *loan, uint32_t first, uint32_t count)
{
    (void)opaque, (void)loan, (void)first, (void)count;
}

static bool node_guest_reserve(void *opaque, const struct kva_loan *loan)
{
    struct world_instance *at = opaque;
    if (world_free(at) < loan->pages)
        return false;
    for (uint32_t i = 0; i < WORLD_LOANS_MAX; i++) {
        if (at->lent[i].loan != 0)
            continue;
        at->lent[i] = (struct world_guest){loan->id, loan->pages, loan->debtor - 1};
        at->guests += loan->pages;
        return true;
    }
    return false;
}

static void node_guest_free(void *opaque, const struct kva_loan *loan)
{
    struct world_instance *at = opaque;
    for (uint32_t i = 0; i < WORLD_LOANS_MAX; i++) {
        if (at->lent[i].loan != loan->id)
            continue;
        at->guests -= at->lent[i].pages;
        at->lent[i].loan = 0;
        return;
    }
}

static struct world_request *of(const struct world_instance *at, const struct kva_loan *loan)
{
    return &at->world->requests[loan->request - 1];
}

static bool node_lendable(void *opaque, const struct kva_loan *loan)
{
    const struct world_instance *at = opaque;
    const struct world_request *request = of(at, loan);
    if (request->generation != loan->generation ||
        loan->first_page + loan->pages > world_closed(request))
        return false;
    return request->state == WORLD_WAITING || request->state == WORLD_RUNNING;
}

static void node_lent(void *opaque, const struct kva_loan *loan)
{
    struct world_instance *at = opaque;
    struct world_request *request = of(at, loan);
    request->spread_since_ns = at->world->now_ns;
    request->away += loan->pages;
    at->local -= request->state == WORLD_RUNNING ? loan->pages : 0;
}

static bool node_home_reserve(void *opaque, const struct kva_loan *loan)
{
    struct world_instance *at = opaque;
    if (world_free(at) < loan->pages)
        return false;
    at->local += loan->pages;
    of(at, loan)->home += loan->pages;
    return true;
}

static void node_came_home(void *opaque, const struct kva_loan *loan)
{
    struct world_instance *at = opaque;
    struct world_request *request = of(at, loan);
    request->home -= loan->pages;
    request->away -= loan->pages;
    at->local -= request->state == WORLD_WAITING ? loan->pages : 0;
}

static bool node_reaches(void *opaque KVA_UNUSED, uint32_t creditor KVA_UNUSED)
{
    return true;
}

static void node_lost(void *opaque, uint64_t id, uint32_t generation)
{
    struct world_instance *at = opaque;
    struct world_request *request = &at->world->requests[id - 1];
    if (request->generation == generation && request->state != WORLD_ENDED)
        world_again(at, request);
}

/* --- begin and end ---------------------------------------------------------------------------- */

static void begin_instance(struct world *world, uint32_t index)
{
    struct world_instance *at = &world->instances[index];
    struct kva_rmanager_ops ops = {
        .opaque = at,
        .send = node_send,
        .load = node_load,
        .requests = node_requests,
        .take = node_take,
        .guest_reserve = node_guest_reserve,
        .guest_free = node_guest_free,
        .lendable = node_lendable,
        .may_ask = node_reaches,
        .reaches = node_reaches,
        .lent = node_lent,
        .home_reserve = node_home_reserve,
        .came_home = node_came_home,
        .lost = node_lost,
    };
    struct kva_rmanager_params params = {
        .node = index + 1,
        .life = 1,
        .loans_max = WORLD_LOANS_MAX,
        .peers_max = WORLD_INSTANCES_MAX + 1,
        .entries_max = KVA_MESSAGE_ENTRIES_MAX,
        .request_loans_max = WORLD_REQUEST_LOANS,
        .lend_pages_max = (uint32_t)(at->pages * world->machine.lend_share),
        .unacked_pages = (uint32_t)fmax(2 * world->machine.step_pages, 8),
        .retry_ns = 200 * KVA_NS_PER_MS,
        .lease_margin_ns = TTL_NS / 5,
        .recall_within_ns = 5 * KVA_NS_PER_S,
    };
    struct kva_err err = {0};
    if (kva_rmanager_create(&params, &ops, &at->rmanager, &err))
        die("rManager", err.message);
    if (kva_gmanager_member(world->gmanager, index + 1, 1))
        die("gManager", "no room for a member");
}

void world_lend_begin(struct world *world)
{
    struct kva_gmanager_ops ops = {.opaque = world, .send = manager_send};
    struct kva_gmanager_params params = {
        .node = WORLD_MANAGER,
        .life = 1,
        .instances_max = WORLD_INSTANCES_MAX,
        .entries_max = KVA_MESSAGE_ENTRIES_MAX,
        .moves_max = 256,
        .round_ns = ROUND_NS,
        .gather_ns = ROUND_NS / 5,
        .loan_ttl_ns = TTL_NS,
        .lease_ttl_ns = TTL_NS,
        .lease_margin_ns = TTL_NS / 5,
        .cost = world->machine.cost,
    };
    struct kva_err err = {0};
    params.plan = kva_plan_defaults(&world->machine.cost);
    params.plan.page_tokens = WORLD_PAGE_TOKENS;
    params.plan.copy_step_pages = world->machine.step_pages;
    if (kva_gmanager_create(&params, &ops, &world->gmanager, &err))
        die("gManager", err.message);
    for (uint32_t i = 0; i < world->params.instances; i++)
        begin_instance(world, i);
    kva_gmanager_elected(world->gmanager, 1, world->now_ns);
}

void world_lend_end(struct world *world)
{
    for (uint32_t i = 0; i < world->params.instances; i++) {
        struct kva_rmanager_stats stats = {0};
        if (!world->instances[i].rmanager)
            continue;
        kva_rmanager_get_stats(world->instances[i].rmanager, &stats);
        world->result.loans += stats.loans_lent;
        world->result.home += stats.loans_home;
        kva_rmanager_destroy(world->instances[i].rmanager);
    }
    kva_gmanager_destroy(world->gmanager);
    for (uint32_t i = 0; i < world->packet_count; i++)
        free(world->packets[(world->packet_first + i) % world->packet_max].entries);
    free(world->packets);
}
