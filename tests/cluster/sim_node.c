/* sim_node.c - instances: their life, and what they do for their rManager. */
#include "tests/cluster/sim.h"

#include <string.h>

#include "cluster/rmanager_internal.h"

struct sim_request *sim_request_find(struct sim *sim, uint64_t id)
{
    return id >= 1 && id <= sim->request_count ? &sim->requests[id - 1] : NULL;
}

struct sim_store *sim_store_find(struct sim_node *node, uint64_t loan)
{
    for (uint32_t i = 0; i < SIM_STORES_MAX; i++)
        if (node->stores[i].loan.pages > 0 && node->stores[i].loan.id == loan)
            return &node->stores[i];
    return NULL;
}

/* What the node has of a page: the prompt of a request that waits lies on its host. */
static uint64_t home_of(const struct sim_request *request, uint32_t page)
{
    if (request->state == SIM_WAITING)
        return sim_content(request->id, page);
    return request->local[page] ? request->content[page] : 0;
}

/* --- sending ---------------------------------------------------------------------------------- */

static void node_send(void *opaque, const struct kva_message *message)
{
    struct sim_node *node = opaque;
    uint64_t content[SIM_PAGES_MAX];
    uint32_t count = 0;
    if (message->type == KVA_MESSAGE_RECALL) {
        struct sim_store *store = sim_store_find(node, message->recall.loan);
        if (store && store->recalled_ns == 0)
            store->recalled_ns = node->sim->now_ns;
    }
    if (message->type == KVA_MESSAGE_PAGES) {
        uint32_t first = message->pages.first_page;
        count = message->pages.pages;
        struct sim_store *store = sim_store_find(node, message->pages.loan);
        struct kva_debt *debt = kva_debt_find(node->rmanager, message->pages.loan);
        struct sim_request *request = debt ? sim_request_find(node->sim, debt->loan.request) : NULL;
        if (message->pages.home ? !store : !request) {
            sim_fail(node->sim, "pages of an unknown loan are sent");
            return;
        }
        for (uint32_t i = 0; i < count; i++) {
            uint32_t page = message->pages.home ? 0 : debt->loan.first_page + first + i;
            content[i] = message->pages.home ? store->content[first + i] : home_of(request, page);
        }
    }
    sim_send(node->sim, message, content, count);
}

static void node_take(void *opaque, const struct kva_loan *loan, uint32_t first, uint32_t count)
{
    struct sim_node *node = opaque;
    bool home = loan->debtor == node - node->sim->nodes + 1;
    struct sim_store *store = sim_store_find(node, loan->id);
    struct sim_request *request = sim_request_find(node->sim, loan->request);
    if (count != node->packet->content_count || (!home && !store) || !request) {
        sim_fail(node->sim, "%u pages are taken, %u have come", count, node->packet->content_count);
        return;
    }
    uint64_t *to = home ? request->home + loan->first_page : store->content;
    memcpy(to + first, node->packet->content, count * sizeof(*to));
}

/* --- reports ---------------------------------------------------------------------------------- */

static void node_load(void *opaque, struct kva_message_load *load)
{
    struct sim_node *node = opaque;
    struct sim *sim = node->sim;
    uint32_t index = (uint32_t)(node - sim->nodes);
    *load = (struct kva_message_load){
        .pages = node->pages,
        .free_pages = node->pages - node->local_pages - node->guest_pages,
        .batch_max = 64,
    };
    const struct sim_request *head = sim_head(node);
    for (uint32_t i = 0; i < sim->request_count; i++) {
        const struct sim_request *request = &sim->requests[i];
        if (request->node != index || request->state == SIM_ENDED)
            continue;
        if (request->state == SIM_RUNNING) {
            load->batch++;
            load->tokens += request->prompt + request->emitted;
            continue;
        }
        uint32_t need = sim_request_need(node, request);
        load->waiting++;
        load->waiting_pages += need;
        if (request == head)
            load->head_pages = need;
    }
    load->keeps = head && sim_keeps(node, head);
}

/* Pages of a request that waits which may go. */
static uint32_t on_host(const struct sim_node *node, const struct sim_request *request)
{
    uint32_t closed = sim_request_closed(request), lent = sim_lent_pages(node, request);
    return closed > lent ? closed - lent : 0;
}

static uint32_t node_requests(void *opaque, struct kva_message_entry *entries, uint32_t max)
{
    struct sim_node *node = opaque;
    struct sim *sim = node->sim;
    uint32_t index = (uint32_t)(node - sim->nodes), count = 0;
    const struct sim_request *head = sim_head(node);
    for (uint32_t i = 0; i < sim->request_count && count < max; i++) {
        const struct sim_request *request = &sim->requests[i];
        uint32_t pages = 0;
        if (request->node != index || request->state == SIM_ENDED ||
            (request->state == SIM_WAITING && request != head))
            continue;
        for (uint32_t p = 0; p < SIM_PAGES_MAX; p++)
            pages += request->local[p];
        bool waits = request->state == SIM_WAITING;
        entries[count++] = (struct kva_message_entry){
            .request = request->id,
            .generation = request->generation,
            .pages = waits ? on_host(node, request) : pages,
            .flags = (uint8_t)(KVA_ENTRY_LOCAL | (waits ? KVA_ENTRY_HEAD : 0)),
        };
    }
    return count;
}

/* --- creditor --------------------------------------------------------------------------------- */

static bool node_guest_reserve(void *opaque, const struct kva_loan *loan)
{
    struct sim_node *node = opaque;
    uint32_t used = node->local_pages + node->guest_pages;
    bool room = used + loan->pages <= node->pages;
    if (node->sim->broken && node->sim->broken->has_room)
        room = true;
    for (uint32_t i = 0; i < SIM_STORES_MAX && room; i++) {
        if (node->stores[i].loan.pages > 0)
            continue;
        node->stores[i] = (struct sim_store){.loan = *loan};
        node->guest_pages += loan->pages;
        return true;
    }
    return false;
}

static void node_guest_free(void *opaque, const struct kva_loan *loan)
{
    struct sim_node *node = opaque;
    struct sim_store *store = sim_store_find(node, loan->id);
    if (!store) {
        sim_fail(node->sim, "a loan is freed that nobody holds");
        return;
    }
    node->guest_pages -= store->loan.pages;
    memset(store, 0, sizeof(*store));
}

/* --- debtor ----------------------------------------------------------------------------------- */

static bool node_lendable(void *opaque, const struct kva_loan *loan)
{
    struct sim_node *node = opaque;
    const struct sim_request *request = sim_request_find(node->sim, loan->request);
    uint32_t index = (uint32_t)(node - node->sim->nodes);
    uint32_t end = loan->first_page + loan->pages;
    if (node->sim->broken && node->sim->broken->lends_anything && request &&
        request->state == SIM_RUNNING && end <= SIM_PAGES_MAX)
        return true;
    if (!request || request->node != index || request->generation != loan->generation)
        return false;
    if (request->state == SIM_ENDED || end >= sim_request_closed(request))
        return false;
    for (uint32_t p = loan->first_page; p < end; p++)
        if (request->state == SIM_RUNNING && !request->local[p])
            return false;
    return true;
}

static void node_lent(void *opaque, const struct kva_loan *loan)
{
    struct sim_node *node = opaque;
    struct sim_request *request = sim_request_find(node->sim, loan->request);
    if (request->state == SIM_WAITING)
        return; /* it has no memory here yet */
    for (uint32_t p = loan->first_page; p < loan->first_page + loan->pages; p++) {
        if (!request->local[p])
            sim_fail(node->sim, "page %u of request %llu is lent and not here", p,
                     (unsigned long long)request->id);
        node->local_pages -= request->local[p];
        request->local[p] = false;
        request->content[p] = 0; /* the memory is somebody else's now */
    }
}

static bool node_home_reserve(void *opaque, const struct kva_loan *loan)
{
    struct sim_node *node = opaque;
    struct sim_request *request = sim_request_find(node->sim, loan->request);
    if (node->local_pages + node->guest_pages + loan->pages > node->pages)
        return false;
    node->local_pages += loan->pages;
    request->home_pages += loan->pages;
    memset(request->home + loan->first_page, 0, loan->pages * sizeof(request->home[0]));
    return true;
}

static void node_came_home(void *opaque, const struct kva_loan *loan)
{
    struct sim_node *node = opaque;
    struct sim_request *request = sim_request_find(node->sim, loan->request);
    bool running = request->state == SIM_RUNNING;
    request->home_pages -= loan->pages;
    if (!running) /* it waits: nothing has been computed yet */
        node->local_pages -= loan->pages;
    for (uint32_t p = loan->first_page; p < loan->first_page + loan->pages && running; p++) {
        request->local[p] = true;
        request->content[p] = request->home[p];
    }
}

/* Links come up late, now and then; not where a defect of something else is to be noticed first. */
static bool node_may_ask(void *opaque, uint32_t creditor KVA_UNUSED)
{
    struct sim_node *node = opaque;
    return node->sim->broken || sim_below(node->sim, 8) > 0;
}

static bool node_reaches(void *opaque, uint32_t creditor KVA_UNUSED)
{
    struct sim_node *node = opaque;
    return node->sim->broken || sim_below(node->sim, 4) > 0;
}

static void node_lost(void *opaque, uint64_t id, uint32_t generation)
{
    struct sim_node *node = opaque;
    struct sim_request *request = sim_request_find(node->sim, id);
    if (node->sim->broken && node->sim->broken->forgets_lost)
        return;
    if (request->generation != generation || request->state == SIM_ENDED) {
        sim_fail(node->sim, "request %llu has lost pages that it does not have",
                 (unsigned long long)id);
        return;
    }
    sim_request_requeue(node, request);
}

/* --- life ------------------------------------------------------------------------------------- */

void sim_node_start(struct sim *sim, uint32_t index)
{
    struct sim_node *node = &sim->nodes[index];
    struct kva_rmanager_ops ops = {
        .opaque = node,
        .send = node_send,
        .load = node_load,
        .requests = node_requests,
        .take = node_take,
        .guest_reserve = node_guest_reserve,
        .guest_free = node_guest_free,
        .lendable = node_lendable,
        .may_ask = node_may_ask,
        .reaches = node_reaches,
        .lent = node_lent,
        .home_reserve = node_home_reserve,
        .came_home = node_came_home,
        .lost = node_lost,
    };
    node->step_pages = 1 + sim_below(sim, 6);
    struct kva_rmanager_params params = {
        .node = index + 1,
        .life = ++node->life,
        .loans_max = SIM_STORES_MAX,
        .peers_max = SIM_NODES_MAX + SIM_MANAGERS_MAX,
        .entries_max = SIM_REQUESTS_MAX + SIM_STORES_MAX,
        .lend_pages_max = SIM_PAGES_MAX,
        .unacked_pages = 1 + sim_below(sim, 12),
        .retry_ns = (20 + sim_below(sim, 60)) * KVA_NS_PER_MS,
        .lease_margin_ns = SIM_MARGIN_NS,
        .recall_within_ns = SIM_RECALL_NS,
    };
    struct kva_err err = {0};
    node->clock = (struct sim_clock){
        .offset_ns = sim_below(sim, 1000) * KVA_NS_PER_S,
        .drift_ppm = (int32_t)sim_below(sim, 2 * SIM_DRIFT_MAX_PPM) - SIM_DRIFT_MAX_PPM,
    };
    node->pages = node->pages ? node->pages : 20 + sim_below(sim, 20);
    node->stopped_ns = 0;
    node->leave_ns = 0;
    node->drains = false;
    node->revision = 0;
    if (kva_rmanager_create(&params, &ops, &node->rmanager, &err)) {
        sim_fail(sim, "no rManager: %s", err.message);
        return;
    }
    for (uint32_t i = 0; i < sim->manager_count; i++)
        if (sim->managers[i].gmanager &&
            kva_gmanager_member(sim->managers[i].gmanager, index + 1, node->life))
            sim_fail(sim, "no room for a member");
    sim_at(sim, sim->now_ns, SIM_EVENT_STEP, index)->life = node->life;
}

static void add_stats(struct sim *sim, const struct kva_rmanager *r)
{
    struct kva_rmanager_stats *sum = &sim->stats.loans, one;
    kva_rmanager_get_stats(r, &one);
    sum->orders_stale += one.orders_stale;
    sum->orders_refused += one.orders_refused;
    sum->duplicates += one.duplicates;
    sum->strangers += one.strangers;
    sum->loans_begun += one.loans_begun;
    sum->loans_lent += one.loans_lent;
    sum->loans_home += one.loans_home;
    sum->loans_lost += one.loans_lost;
    sum->guests_accepted += one.guests_accepted;
    sum->guests_refused += one.guests_refused;
    sum->guests_expired += one.guests_expired;
    sum->pages_copied += one.pages_copied;
}

/* Its memory and its clients' connections are gone. */
void sim_node_crash(struct sim *sim, uint32_t index)
{
    struct sim_node *node = &sim->nodes[index];
    add_stats(sim, node->rmanager);
    kva_rmanager_destroy(node->rmanager);
    node->rmanager = NULL;
    node->died_ns = sim->now_ns;
    node->local_pages = node->guest_pages = 0;
    memset(node->stores, 0, sizeof(node->stores));
    for (uint32_t i = 0; i < sim->request_count; i++) {
        struct sim_request *request = &sim->requests[i];
        if (request->node != index || request->state == SIM_ENDED)
            continue;
        request->state = SIM_ENDED;
        request->ends++;
        request->home_pages = 0;
        memset(request->local, 0, sizeof(request->local));
        sim->stats.failed++;
    }
    sim_at(sim, sim->now_ns + SIM_ETCD_TTL_NS, SIM_EVENT_MEMBER_GONE, index)->life = node->life;
}

/* --- leaving ---------------------------------------------------------------------------------- */

/* It gets no more requests, and is told when it steps next. */
void sim_node_drain(struct sim *sim, uint32_t index, uint64_t within_ns)
{
    struct sim_node *node = &sim->nodes[index];
    if (!node->rmanager || node->leave_ns != 0)
        return;
    node->leave_ns = sim->now_ns + within_ns;
    sim->stats.drains++;
    sim->stats.drains_lending += node->guest_pages > 0;
}

static bool has_requests(const struct sim_node *node)
{
    const struct sim *sim = node->sim;
    for (uint32_t i = 0; i < sim->request_count; i++)
        if (sim->requests[i].node == node - sim->nodes && sim->requests[i].state != SIM_ENDED)
            return true;
    return false;
}

/* When its requests have ended and its guests gone home, or its time is over. */
void sim_node_leave(struct sim *sim, uint32_t index)
{
    struct sim_node *node = &sim->nodes[index];
    bool over = sim->now_ns >= node->leave_ns;
    bool lends = node->guest_pages > 0 && !(sim->broken && sim->broken->leaves_guests);
    if (!node->drains) {
        kva_rmanager_drain(node->rmanager, sim_local_ns(sim, &node->clock));
        node->drains = true;
        node->loans_begun = node->rmanager->stats.loans_begun;
        node->guests_begun = node->rmanager->guest_number;
        return;
    }
    if (!over && (has_requests(node) || lends))
        return;
    if (!over)
        sim_check_left(sim, node);
    sim->stats.left += !over;
    sim_node_crash(sim, index);
    sim_at(sim, sim->now_ns + sim_below(sim, 1500) * KVA_NS_PER_MS, SIM_EVENT_START, index);
}

/* --- requests --------------------------------------------------------------------------------- */

/* One more request, at an instance that is up and does not drain; some are longer than an instance. */
void sim_submit(struct sim *sim)
{
    uint32_t index = sim_below(sim, sim->node_count);
    uint64_t gap_ns = (10 + sim_below(sim, 2 * 2300 / sim->request_max)) * KVA_NS_PER_MS;
    struct sim_node *node = &sim->nodes[index];
    if (node->rmanager && node->leave_ns == 0) {
        struct sim_request *request = &sim->requests[sim->request_count++];
        bool is_big = sim->node_count > 2 && sim_chance(sim, 10);
        uint32_t pages = is_big ? node->pages + 1 + sim_below(sim, node->pages / 3)
                                : 1 + sim_below(sim, node->pages - 4);
        uint32_t tokens = pages * SIM_PAGE_TOKENS, outputs = 1 + sim_below(sim, 40);
        *request = (struct sim_request){
            .id = sim->request_count,
            .node = index,
            .prompt = tokens > outputs ? tokens - outputs : 1,
            .outputs = outputs,
            .since_ns = sim->now_ns,
        };
        sim->stats.requests++;
    }
    if (sim->request_count < sim->request_max)
        sim_at(sim, sim->now_ns + gap_ns, SIM_EVENT_SUBMIT, 0);
}
