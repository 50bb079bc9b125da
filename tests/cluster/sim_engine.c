/* sim_engine.c - requests that are let in, grow token by token, are preempted and end. Each token is
 * worked out from the content of all of its request's pages, here and at creditors. */
#include "tests/cluster/sim.h"

#include <string.h>

#include "cluster/rmanager_internal.h"

#define SILENCE_NS  (400 * KVA_NS_PER_MS)  /* after which a link may be called broken */
#define KEEPS_NS    (400 * KVA_NS_PER_MS)  /* while the first in line waits, its node lends */
#define PATIENCE_NS (3000 * KVA_NS_PER_MS) /* with loans that do not suffice to begin */

uint64_t sim_content(uint64_t request, uint32_t page)
{
    uint64_t x = request * 0x9E3779B97F4A7C15ull + (page + 1) * 0xBF58476D1CE4E5B9ull;
    return (x ^ x >> 29) | 1;
}

uint32_t sim_request_closed(const struct sim_request *request)
{
    return (request->prompt + request->emitted) / SIM_PAGE_TOKENS;
}

/* Pages that it has when it ends. */
uint32_t sim_request_last(const struct sim_request *request)
{
    return (request->prompt + request->outputs) / SIM_PAGE_TOKENS + 1;
}

struct sim_request *sim_head(struct sim_node *node)
{
    struct sim *sim = node->sim;
    for (uint32_t i = 0; i < sim->request_count; i++)
        if (sim->requests[i].node == node - sim->nodes && sim->requests[i].state == SIM_WAITING)
            return &sim->requests[i];
    return NULL;
}

uint32_t sim_lent_pages(const struct sim_node *node, const struct sim_request *request)
{
    struct kva_loan loans[SIM_STORES_MAX];
    uint32_t pages = 0;
    uint32_t count = kva_rmanager_lent(node->rmanager, request->id, loans, SIM_STORES_MAX);
    for (uint32_t i = 0; i < count; i++)
        pages += loans[i].pages;
    return pages;
}

/* Pages that it needs here to begin: as it is, or, if it will outgrow the node, as it will be. */
uint32_t sim_request_need(const struct sim_node *node, const struct sim_request *request)
{
    uint32_t last = sim_request_last(request);
    uint32_t need = last > node->pages ? last : sim_request_closed(request) + 1;
    uint32_t lent = sim_lent_pages(node, request);
    return need > lent ? need - lent : 0;
}

/* --- begin and end ---------------------------------------------------------------------------- */

static uint32_t free_pages(const struct sim_node *node)
{
    uint32_t used = node->local_pages + node->guest_pages;
    return node->pages > used ? node->pages - used : 0;
}

static void drop_local(struct sim_node *node, struct sim_request *request)
{
    for (uint32_t p = 0; p < SIM_PAGES_MAX; p++)
        node->local_pages -= request->local[p];
    node->local_pages -= request->home_pages + (request->state == SIM_RUNNING);
    request->home_pages = 0;
    memset(request->local, 0, sizeof(request->local));
    memset(request->content, 0, sizeof(request->content));
}

/* It is computed again from its tokens, when its turn comes; what it emitted stays so. */
void sim_request_requeue(struct sim_node *node, struct sim_request *request)
{
    drop_local(node, request);
    node->sim->stats.recomputed += request->state == SIM_RUNNING;
    request->state = SIM_WAITING;
    request->generation++;
    request->since_ns = node->sim->now_ns;
}

static void end_loans(struct sim_node *node, const struct sim_request *request)
{
    if (node->sim->broken && node->sim->broken->forgets_end)
        return;
    kva_rmanager_request_end(node->rmanager, request->id, request->generation,
                             sim_local_ns(node->sim, &node->clock));
}

static void preempt(struct sim_node *node, struct sim_request *request)
{
    end_loans(node, request);
    sim_request_requeue(node, request);
}

static void finish(struct sim_node *node, struct sim_request *request)
{
    end_loans(node, request);
    drop_local(node, request);
    request->state = SIM_ENDED;
    request->ends++;
    node->sim->stats.ended++;
}

static bool creditors_answer(struct sim_node *node, const struct sim_request *request);

static void begin(struct sim_node *node, struct sim_request *request)
{
    struct kva_loan loans[SIM_STORES_MAX];
    uint32_t count = kva_rmanager_lent(node->rmanager, request->id, loans, SIM_STORES_MAX);
    for (uint32_t p = 0; p < sim_request_closed(request); p++) {
        request->local[p] = true;
        for (uint32_t i = 0; i < count; i++)
            if (p >= loans[i].first_page && p < loans[i].first_page + loans[i].pages)
                request->local[p] = false;
        request->content[p] = request->local[p] ? sim_content(request->id, p) : 0;
        node->local_pages += request->local[p];
    }
    node->local_pages++; /* the open page */
    request->state = SIM_RUNNING;
    request->since_ns = 0;
}

bool sim_keeps(const struct sim_node *node, const struct sim_request *head)
{
    return node->sim->now_ns >= head->since_ns + KEEPS_NS;
}

/* First come, first served. What is missing is asked back from those it was lent to. */
static void let_in(struct sim_node *node)
{
    struct sim *sim = node->sim;
    struct sim_request *head;
    while ((head = sim_head(node)) != NULL) {
        uint32_t need = sim_request_need(node, head), room = free_pages(node);
        if (head->home_pages > 0)
            return; /* loans on their way home */
        if (need <= room && creditors_answer(node, head)) {
            begin(node, head);
            continue;
        }
        /* For one that is longer than the node it is others who have to lend. */
        if (need > room && need <= node->pages && node->guest_pages > 0 && sim_keeps(node, head))
            kva_rmanager_reclaim(node->rmanager, need - room, sim_local_ns(sim, &node->clock));
        if (sim->now_ns > head->since_ns + PATIENCE_NS && sim_lent_pages(node, head) > 0)
            preempt(node, head);
        return;
    }
}

/* --- steps ------------------------------------------------------------------------------------ */

static bool answers(struct sim_node *node, const struct kva_loan *loan)
{
    struct sim *sim = node->sim;
    uint32_t here = (uint32_t)(node - sim->nodes), there = loan->creditor - 1;
    const struct kva_debt *debt = kva_debt_find(node->rmanager, loan->id);
    const struct sim_node *creditor = &sim->nodes[there];
    return creditor->rmanager && debt->creditor_life == creditor->life &&
           creditor->stopped_ns <= sim->now_ns && sim_reaches(sim, here, there) &&
           sim_reaches(sim, there, here);
}

static bool creditors_answer(struct sim_node *node, const struct sim_request *request)
{
    struct kva_loan loans[SIM_STORES_MAX];
    uint32_t count = kva_rmanager_lent(node->rmanager, request->id, loans, SIM_STORES_MAX);
    for (uint32_t i = 0; i < count; i++)
        if (!answers(node, &loans[i]))
            return false;
    return true;
}

/* The content of a page, wherever it lies. */
static uint64_t read_page(struct sim_node *node, const struct sim_request *request, uint32_t page,
                          const struct kva_loan *loans, uint32_t count)
{
    if (request->local[page])
        return request->content[page];
    for (uint32_t i = 0; i < count; i++) {
        const struct kva_loan *loan = &loans[i];
        if (page < loan->first_page || page >= loan->first_page + loan->pages)
            continue;
        struct sim_store *store = sim_store_find(&node->sim->nodes[loan->creditor - 1], loan->id);
        node->sim->stats.remote_tokens += SIM_PAGE_TOKENS;
        return store ? store->content[page - loan->first_page] : 0;
    }
    return 0;
}

/* One token; false: a creditor is silent. */
static bool attend(struct sim_node *node, struct sim_request *request)
{
    struct kva_loan loans[SIM_STORES_MAX];
    uint32_t count = kva_rmanager_lent(node->rmanager, request->id, loans, SIM_STORES_MAX);
    uint64_t token = 0, undisturbed = 0;
    if (!creditors_answer(node, request))
        return false;
    for (uint32_t p = 0; p < sim_request_closed(request); p++) {
        token = token * 31 + read_page(node, request, p, loans, count);
        undisturbed = undisturbed * 31 + sim_content(request->id, p);
    }
    if (token != undisturbed)
        sim_fail(node->sim, "request %llu on node %u: token %u is wrong",
                 (unsigned long long)request->id, request->node + 1, request->emitted);
    return true;
}

/* Room for one more page: of what is free, of what was lent, or of the youngest. False: there is
 * none in this step. */
static bool make_room(struct sim_node *node, struct sim_request *request)
{
    struct sim *sim = node->sim;
    if (free_pages(node) > 0)
        return true;
    if (node->guest_pages > 0) {
        kva_rmanager_reclaim(node->rmanager, 1, sim_local_ns(sim, &node->clock));
        return false;
    }
    for (uint32_t i = sim->request_count; i-- > 0;) {
        struct sim_request *victim = &sim->requests[i];
        if (victim->node != request->node || victim->state != SIM_RUNNING)
            continue;
        preempt(node, victim);
        return victim != request && free_pages(node) > 0;
    }
    return false;
}

static void decode(struct sim_node *node, struct sim_request *request)
{
    struct sim *sim = node->sim;
    bool closes = (request->prompt + request->emitted + 1) % SIM_PAGE_TOKENS == 0;
    if (closes && !make_room(node, request))
        return;
    if (!attend(node, request)) {
        if (request->since_ns == 0)
            request->since_ns = sim->now_ns;
        if (sim->now_ns > request->since_ns + SILENCE_NS && sim_chance(sim, 10)) {
            struct kva_loan loan;
            if (kva_rmanager_lent(node->rmanager, request->id, &loan, 1) > 0 &&
                !answers(node, &loan))
                kva_rmanager_peer_lost(node->rmanager, loan.creditor,
                                       sim_local_ns(sim, &node->clock));
        }
        return;
    }
    request->since_ns = 0;
    request->emitted++;
    sim->stats.tokens++;
    if (closes) {
        uint32_t page = sim_request_closed(request) - 1;
        request->local[page] = true;
        request->content[page] = sim_content(request->id, page);
        node->local_pages++;
    }
    if (request->emitted == request->outputs)
        finish(node, request);
}

void sim_node_step(struct sim *sim, uint32_t index)
{
    struct sim_node *node = &sim->nodes[index];
    if (!node->rmanager)
        return;
    uint64_t local_ns = sim_local_ns(sim, &node->clock);
    kva_rmanager_tick(node->rmanager, local_ns);
    kva_rmanager_step(node->rmanager, node->step_pages, local_ns);
    if (sim->faults && sim->now_ns < sim->faults_end_ns && sim_chance(sim, 1))
        kva_rmanager_reclaim(node->rmanager, node->guest_pages, local_ns); /* it wants all back */
    let_in(node);
    for (uint32_t i = 0; i < sim->request_count; i++)
        if (sim->requests[i].node == index && sim->requests[i].state == SIM_RUNNING)
            decode(node, &sim->requests[i]);
    if (node->leave_ns != 0)
        sim_node_leave(sim, index);
    uint64_t took_ns = SIM_STEP_NS / 2 + sim_below(sim, SIM_STEP_NS);
    sim_at(sim, sim->now_ns + took_ns, SIM_EVENT_STEP, index)->life = node->life;
}
