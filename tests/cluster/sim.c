/* sim.c - the loop of events, chance, and what goes wrong. */
#include "tests/cluster/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

#define EVENTS_MAX  65536u
#define TRAFFIC_NS  (2500 * KVA_NS_PER_MS)
#define REST_MAX_NS (90 * KVA_NS_PER_S)

void sim_fail(struct sim *sim, const char *format, ...)
{
    va_list args;
    if (sim->failure[0])
        return;
    int length =
        snprintf(sim->failure, sizeof(sim->failure), "at %.3f s: ", (double)sim->now_ns / 1e9);
    va_start(args, format);
    vsnprintf(sim->failure + length, sizeof(sim->failure) - (size_t)length, format, args);
    va_end(args);
}

uint32_t sim_below(struct sim *sim, uint32_t limit)
{
    return kva_test_below(&sim->rng, limit);
}

bool sim_chance(struct sim *sim, uint32_t percent)
{
    return sim_below(sim, 100) < percent;
}

uint64_t sim_local_ns(const struct sim *sim, const struct sim_clock *clock)
{
    int64_t drift = (int64_t)sim->now_ns / 1000000 * clock->drift_ppm;
    return clock->offset_ns + (uint64_t)((int64_t)sim->now_ns + drift);
}

struct sim_event *sim_at(struct sim *sim, uint64_t ns, enum sim_event_kind kind, uint32_t index)
{
    struct sim_event *event = calloc(1, sizeof(*event));
    if (!event || sim->events.count == EVENTS_MAX) {
        fprintf(stderr, "too many events\n");
        abort();
    }
    event->kind = kind;
    event->index = index;
    event->node.key = (int64_t)kva_max_u64(ns, sim->now_ns);
    event->node.seq = ++sim->order;
    kva_heap_push(&sim->events, &event->node);
    return event;
}

/* --- what goes wrong -------------------------------------------------------------------------- */

static void split_or_heal(struct sim *sim)
{
    uint32_t places = sim->node_count + sim->manager_count + 1;
    uint32_t a = sim_below(sim, places), b = sim_below(sim, places);
    bool whole = sim_chance(sim, 30), split = sim_chance(sim, 40);
    for (uint32_t i = 0; i < places; i++) {
        if (i == a || (!whole && i != b))
            continue;
        sim->split[a][i] = split;
        sim->split[i][a] = split && sim_chance(sim, 70); /* sometimes one way only */
    }
    sim->stats.splits += split;
}

static void crash(struct sim *sim)
{
    uint32_t index = sim_below(sim, sim->node_count + sim->manager_count);
    uint64_t back_ns = sim->now_ns + sim_below(sim, 1500) * KVA_NS_PER_MS;
    bool up = index < sim->node_count ? sim->nodes[index].rmanager != NULL
                                      : sim->managers[index - sim->node_count].gmanager != NULL;
    if (!up)
        return;
    sim->stats.crashes++;
    if (index < sim->node_count)
        sim_node_crash(sim, index);
    else
        sim_manager_stop(sim, index - sim->node_count);
    sim_at(sim, back_ns, SIM_EVENT_START, index);
}

/* Like SIGSTOP: everything waits, and happens late. */
static void stop(struct sim *sim)
{
    uint32_t index = sim_below(sim, sim->node_count + sim->manager_count);
    uint64_t until_ns = sim->now_ns + (100 + sim_below(sim, 1500)) * KVA_NS_PER_MS;
    sim->stats.stops++;
    uint64_t *stopped = index < sim->node_count
                            ? &sim->nodes[index].stopped_ns
                            : &sim->managers[index - sim->node_count].stopped_ns;
    *stopped = kva_max_u64(*stopped, until_ns);
    if (index < sim->node_count)
        sim->nodes[index].stop_end_ns = *stopped;
}

static void fault(struct sim *sim)
{
    if (sim->now_ns >= sim->faults_end_ns) {
        memset(sim->split, 0, sizeof(sim->split));
        sim->etcd.down = false;
        sim->loss_pct = sim->double_pct = sim->late_pct = 0;
        return;
    }
    switch (sim_below(sim, 6)) {
    case 0:
        crash(sim);
        break;
    case 1:
        stop(sim);
        break;
    case 2:
        sim->etcd.down = sim_chance(sim, 40);
        break;
    default:
        split_or_heal(sim);
        break;
    }
    sim_at(sim, sim->now_ns + sim_below(sim, 250) * KVA_NS_PER_MS, SIM_EVENT_FAULT, 0);
}

/* A node that nobody asks anything any more: it ends what it has, and is gone, and starts again. Without
 * faults it has the time that it needs, and no request for which it would need others. */
static void drain(struct sim *sim)
{
    uint32_t index = sim_below(sim, sim->node_count);
    uint64_t within_ns = (300 + sim_below(sim, 2500)) * KVA_NS_PER_MS;
    if (sim->now_ns >= sim->faults_end_ns)
        return;
    sim_at(sim, sim->now_ns + sim_below(sim, 1000) * KVA_NS_PER_MS, SIM_EVENT_DRAIN, 0);
    for (uint32_t i = 0; i < sim->request_count && !sim->faults; i++) {
        const struct sim_request *request = &sim->requests[i];
        if (request->node == index && request->state != SIM_ENDED &&
            sim_request_last(request) > sim->nodes[index].pages)
            return;
    }
    sim_node_drain(sim, index, sim->faults ? within_ns : REST_MAX_NS);
}

/* --- events ----------------------------------------------------------------------------------- */

static void start(struct sim *sim, uint32_t index)
{
    if (index < sim->node_count)
        sim_node_start(sim, index);
    else
        sim_manager_start(sim, index - sim->node_count);
}

/* Until when the one whom an event concerns is stopped; 0: it is not. */
static uint64_t stopped_ns(const struct sim *sim, const struct sim_event *event)
{
    uint64_t until = 0;
    if (event->kind == SIM_EVENT_STEP)
        until = sim->nodes[event->index].stopped_ns;
    else if (event->kind == SIM_EVENT_MANAGER || event->kind == SIM_EVENT_ETCD_ANSWER)
        until = sim->managers[event->index].stopped_ns;
    else if (event->kind == SIM_EVENT_PACKET && event->packet->target < SIM_MANAGER_ID)
        until = sim->nodes[event->packet->target - 1].stopped_ns;
    else if (event->kind == SIM_EVENT_PACKET)
        until = sim->managers[event->packet->target - SIM_MANAGER_ID].stopped_ns;
    return until > sim->now_ns ? until : 0;
}

static void handle(struct sim *sim, struct sim_event *event)
{
    switch (event->kind) {
    case SIM_EVENT_PACKET:
        sim_deliver(sim, event->packet);
        break;
    case SIM_EVENT_STEP:
        if (sim->nodes[event->index].life == event->life)
            sim_node_step(sim, event->index);
        break;
    case SIM_EVENT_MANAGER:
        if (sim->managers[event->index].life == event->life)
            sim_manager_step(sim, event->index);
        break;
    case SIM_EVENT_ETCD_ASK:
        sim_etcd_ask(sim, event);
        break;
    case SIM_EVENT_ETCD_ANSWER:
        sim_etcd_answer(sim, event);
        break;
    case SIM_EVENT_MEMBER_GONE:
        sim_member_gone(sim, event);
        break;
    case SIM_EVENT_SUBMIT:
        sim_submit(sim);
        break;
    case SIM_EVENT_FAULT:
        fault(sim);
        break;
    case SIM_EVENT_DRAIN:
        drain(sim);
        break;
    case SIM_EVENT_START:
        start(sim, event->index);
        break;
    }
}

static void free_event(struct sim_event *event)
{
    free(event->packet);
    free(event);
}

static void next(struct sim *sim)
{
    struct kva_heap_node *top = kva_heap_peek(&sim->events);
    struct sim_event *event = (struct sim_event *)(void *)top; /* its first member */
    kva_heap_remove(&sim->events, top);
    sim->now_ns = (uint64_t)top->key;
    uint64_t until = stopped_ns(sim, event);
    if (until) {
        event->node.key = (int64_t)until;
        event->node.seq = ++sim->order; /* in the order in which they would have come */
        kva_heap_push(&sim->events, &event->node);
        return;
    }
    sim->stats.events++;
    handle(sim, event);
    free_event(event);
    for (uint32_t i = 0; i < sim->node_count; i++)
        if (sim->broken && sim->broken->after && sim->nodes[i].rmanager)
            sim->broken->after(&sim->nodes[i]);
    for (uint32_t i = 0; i < sim->manager_count; i++)
        if (sim->broken && sim->broken->manager && sim->managers[i].gmanager)
            sim->broken->manager(&sim->managers[i]);
    sim_check(sim);
}

static bool all_ended(const struct sim *sim)
{
    for (uint32_t i = 0; i < sim->request_count; i++)
        if (sim->requests[i].state != SIM_ENDED)
            return false;
    return sim->request_count == sim->request_max;
}

static void fail_unended(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->request_count; i++) {
        const struct sim_request *request = &sim->requests[i];
        if (request->state != SIM_ENDED)
            sim_fail(
                sim, "request %llu on node %u (%u pages) never ends: it %s, %u + %u of %u tokens",
                (unsigned long long)request->id, request->node + 1, sim->nodes[request->node].pages,
                request->state == SIM_WAITING ? "waits" : "runs", request->prompt, request->emitted,
                request->prompt + request->outputs);
    }
    sim_fail(sim, "not all requests have come");
}

/* Small clusters first, then larger ones with more traffic. */
static void init(struct sim *sim, uint64_t seed, bool faults, const struct sim_broken *broken)
{
    memset(sim, 0, sizeof(*sim));
    sim->seed = seed;
    sim->rng = seed * 0x9E3779B97F4A7C15ull + 1;
    sim->now_ns = KVA_NS_PER_S;
    sim->broken = broken;
    sim->faults = faults;
    sim->node_count = 2 + sim_below(sim, SIM_NODES_MAX - 1);
    sim->manager_count = 1 + sim_below(sim, SIM_MANAGERS_MAX);
    sim->request_max = 6 + sim_below(sim, SIM_REQUESTS_MAX - 6);
    sim->faults_end_ns = sim->now_ns + TRAFFIC_NS;
    sim->end_ns = sim->faults_end_ns + REST_MAX_NS;
    sim->etcd.leader = UINT32_MAX;
    if (kva_heap_init(&sim->events, EVENTS_MAX))
        abort();
    if (faults) {
        sim->loss_pct = sim_below(sim, 2) ? sim_below(sim, 20) : 0;
        sim->double_pct = sim_below(sim, 2) ? sim_below(sim, 20) : 0;
        sim->late_pct = sim_below(sim, 2) ? sim_below(sim, 10) : 0;
        sim_at(sim, sim->now_ns + 200 * KVA_NS_PER_MS, SIM_EVENT_FAULT, 0);
    }
    for (uint32_t i = 0; i < sim->node_count; i++)
        sim->nodes[i].sim = sim;
    for (uint32_t i = 0; i < sim->manager_count; i++)
        sim->managers[i].sim = sim;
    for (uint32_t i = 0; i < sim->node_count + sim->manager_count; i++)
        start(sim, i);
    sim_at(sim, sim->now_ns, SIM_EVENT_SUBMIT, 0);
    if (seed % 4 == 0)
        sim_at(sim, sim->now_ns + sim_below(sim, 1000) * KVA_NS_PER_MS, SIM_EVENT_DRAIN, 0);
}

static void finish(struct sim *sim)
{
    while (sim->events.count > 0) {
        struct kva_heap_node *top = kva_heap_peek(&sim->events);
        kva_heap_remove(&sim->events, top);
        free_event((struct sim_event *)(void *)top);
    }
    for (uint32_t i = 0; i < sim->node_count; i++)
        if (sim->nodes[i].rmanager)
            sim_node_crash(sim, i);
    for (uint32_t i = 0; i < sim->manager_count; i++)
        sim_manager_stop(sim, i);
    while (sim->events.count > 0) {
        struct kva_heap_node *top = kva_heap_peek(&sim->events);
        kva_heap_remove(&sim->events, top);
        free_event((struct sim_event *)(void *)top);
    }
    kva_heap_finish(&sim->events);
}

bool sim_run(struct sim *sim, uint64_t seed, bool faults, const struct sim_broken *broken)
{
    uint64_t rest_ns = 0;
    init(sim, seed, faults, broken);
    while (!sim->failure[0] && sim->events.count > 0) {
        next(sim);
        if (rest_ns == 0 && sim->now_ns > sim->faults_end_ns && all_ended(sim))
            rest_ns = sim->now_ns + 4 * SIM_TTL_NS + SIM_DELAY_MAX_NS;
        if (rest_ns != 0 && sim->now_ns > rest_ns)
            break;
        if (sim->now_ns > sim->end_ns)
            fail_unended(sim);
    }
    if (!sim->failure[0])
        sim_check_end(sim);
    finish(sim);
    return !sim->failure[0];
}
