/* nodes.c - members on threads, and what they were told. */
#include "tests/cluster/members/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/cmocka.h"

/* --- callbacks, on the node's thread ---------------------------------------------------------- */

static void on_joined(void *opaque, uint32_t number, uint64_t life)
{
    struct node *node = opaque;
    pthread_mutex_lock(&node->lock);
    node->order_bad += node->joins > 0 || node->tells > 0 || number == 0 || life == 0;
    node->joins++;
    node->node = number;
    node->life = life;
    pthread_mutex_unlock(&node->lock);
}

static void on_member(void *opaque, const struct kva_member *member)
{
    struct node *node = opaque;
    pthread_mutex_lock(&node->lock);
    uint64_t *life = &node->lives[member->node];
    node->order_bad += node->joins != 1 || member->node == node->node || member->life == 0 ||
                       (*life != 0 && *life != member->life);
    *life = member->life;
    node->tells++;
    pthread_mutex_unlock(&node->lock);
}

static void on_gone(void *opaque, uint32_t number, uint64_t life)
{
    struct node *node = opaque;
    pthread_mutex_lock(&node->lock);
    node->order_bad += node->lives[number] != life;
    node->lives[number] = 0;
    node->gones++;
    node->tells++;
    pthread_mutex_unlock(&node->lock);
}

static void on_elected(void *opaque, uint64_t revision, uint64_t sent_ns)
{
    struct node *node = opaque;
    pthread_mutex_lock(&node->lock);
    node->order_bad +=
        node->leads || revision <= node->revision || node->joins != 1 || sent_ns > kva_time_ns();
    node->leads = true;
    node->elections++;
    node->revision = revision;
    node->sent_ns = sent_ns;
    pthread_mutex_unlock(&node->lock);
}

static void on_kept_alive(void *opaque, uint64_t sent_ns)
{
    struct node *node = opaque;
    pthread_mutex_lock(&node->lock);
    node->order_bad += !node->leads || sent_ns <= node->sent_ns || sent_ns > kva_time_ns();
    node->sent_ns = sent_ns;
    node->keeps++;
    pthread_mutex_unlock(&node->lock);
}

static void on_deposed(void *opaque)
{
    struct node *node = opaque;
    pthread_mutex_lock(&node->lock);
    node->order_bad += !node->leads;
    node->leads = false;
    node->depositions++;
    pthread_mutex_unlock(&node->lock);
}

static void on_left(void *opaque, const char *why)
{
    struct node *node = opaque;
    pthread_mutex_lock(&node->lock);
    node->order_bad += node->leads || node->leaves > 0 || !why[0];
    node->leaves++;
    pthread_mutex_unlock(&node->lock);
}

/* --- threads ---------------------------------------------------------------------------------- */

static void *run(void *opaque)
{
    struct node *node = opaque;
    bool ends = false;
    uint64_t ignored;
    while (!ends) {
        pthread_mutex_lock(&node->lock);
        bool rests = node->rests = node->paused && !node->ends;
        pthread_mutex_unlock(&node->lock);
        if (rests) {
            usleep(2000);
            continue;
        }
        kva_members_run(node->members, &node->wake, 1, kva_time_ns() + KVA_NS_PER_S / 5);
        if (read(node->wake, &ignored, sizeof(ignored)) < 0)
            ignored = 0;
        pthread_mutex_lock(&node->lock);
        kva_members_get_view(node->members, &node->view);
        kva_members_stand(node->members, node->stands);
        node->runs_count++;
        ends = node->ends;
        pthread_mutex_unlock(&node->lock);
    }
    kva_members_destroy(node->members, node->end_wait_ns);
    return NULL;
}

void node_init(struct node *node, const char *endpoint, uint32_t index)
{
    *node = (struct node){.endpoint = endpoint, .stands = true};
    pthread_mutex_init(&node->lock, NULL);
    node->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    assert_true(node->wake >= 0);
    node->params = (struct kva_members_params){
        .endpoints = &node->endpoint,
        .endpoint_count = 1,
        .name = "test",
        .self = {.host = "127.0.0.1",
                 .port = (uint16_t)(1000 + index),
                 .guest_port = 2000,
                 .model = "tiny"},
        .lease_ttl_ns = NODES_TTL_NS,
        .request_ns = KVA_NS_PER_S,
        .opaque = node,
        .joined = on_joined,
        .member = on_member,
        .gone = on_gone,
        .elected = on_elected,
        .kept_alive = on_kept_alive,
        .deposed = on_deposed,
        .left = on_left,
    };
}

void node_start(struct node *node)
{
    struct kva_err err = {0};
    if (kva_members_create(&node->params, &node->members, &err))
        fail_msg("%s", err.message);
    node->runs = true;
    assert_int_equal(0, pthread_create(&node->thread, NULL, run, node));
}

static void wake(struct node *node)
{
    uint64_t one = 1;
    assert_int_equal(sizeof(one), write(node->wake, &one, sizeof(one)));
}

void node_end(struct node *node, uint64_t wait_ns)
{
    if (!node->runs)
        return;
    pthread_mutex_lock(&node->lock);
    node->ends = true;
    node->end_wait_ns = wait_ns;
    pthread_mutex_unlock(&node->lock);
    wake(node);
    pthread_join(node->thread, NULL);
    node->runs = false;
    close(node->wake);
    pthread_mutex_destroy(&node->lock);
    assert_int_equal(0, node->order_bad);
}

void node_stand(struct node *node, bool stands)
{
    pthread_mutex_lock(&node->lock);
    node->stands = stands;
    pthread_mutex_unlock(&node->lock);
    wake(node);
}

void node_pause(struct node *node, bool paused)
{
    bool rests = !paused;
    pthread_mutex_lock(&node->lock);
    node->paused = paused;
    pthread_mutex_unlock(&node->lock);
    wake(node);
    while (rests != paused) {
        usleep(1000);
        pthread_mutex_lock(&node->lock);
        rests = node->rests;
        pthread_mutex_unlock(&node->lock);
    }
}

/* --- asking them ------------------------------------------------------------------------------ */

struct node_told node_told(struct node *node)
{
    pthread_mutex_lock(&node->lock);
    struct node_told told = {
        .joins = node->joins,
        .node = node->node,
        .life = node->life,
        .members = node->view.members,
        .strangers = node->view.strangers,
        .leader = node->view.leader,
        .tells = node->tells,
        .gones = node->gones,
        .elections = node->elections,
        .depositions = node->depositions,
        .keeps = node->keeps,
        .leaves = node->leaves,
        .order_bad = node->order_bad,
        .revision = node->revision,
        .sent_ns = node->sent_ns,
        .failures = node->view.failures,
        .records_bad = node->view.records_bad,
        .runs = node->runs_count,
        .leads = node->leads,
        .state = node->view.state,
    };
    memcpy(told.why, node->view.why, sizeof(told.why));
    pthread_mutex_unlock(&node->lock);
    return told;
}

uint64_t node_knows(struct node *node, uint32_t other)
{
    pthread_mutex_lock(&node->lock);
    uint64_t life = node->lives[other];
    pthread_mutex_unlock(&node->lock);
    return life;
}

/* At most one may give orders; where its lease or key was taken away by hand, at most one by each
 * election: a leader that has not heard of that yet is refused for its older revision. */
static void check_leaders(struct node *nodes, uint32_t count, bool taken)
{
    uint64_t revisions[NODES_MAX];
    uint32_t leaders = 0;
    for (uint32_t i = 0; i < count; i++)
        if (nodes[i].runs)
            pthread_mutex_lock(&nodes[i].lock);
    uint64_t now_ns = kva_time_ns();
    for (uint32_t i = 0; i < count; i++)
        if (nodes[i].runs && nodes[i].leads &&
            now_ns < nodes[i].sent_ns + NODES_TTL_NS - NODES_MARGIN_NS)
            revisions[leaders++] = nodes[i].revision;
    for (uint32_t i = count; i > 0; i--)
        if (nodes[i - 1].runs)
            pthread_mutex_unlock(&nodes[i - 1].lock);
    if (!taken)
        assert_in_range(leaders, 0, 1);
    for (uint32_t i = 0; i < leaders; i++)
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(revisions[i], revisions[j]);
}

static void wait_until(struct node *nodes, uint32_t count, nodes_check *is, const char *what,
                       bool taken)
{
    uint64_t until_ns = kva_time_ns() + NODES_WAIT_S * KVA_NS_PER_S;
    while (!is(nodes, count)) {
        check_leaders(nodes, count, taken);
        if (kva_time_ns() < until_ns) {
            usleep(5000);
            continue;
        }
        for (uint32_t i = 0; i < count; i++) {
            struct node_told told = node_told(&nodes[i]);
            fprintf(stderr,
                    "node %u: state %d, number %u, life %llu, members %u, leader %u, leads %d, "
                    "failures %llu, %s\n",
                    i, (int)told.state, told.node, (unsigned long long)told.life, told.members,
                    told.leader, told.leads, (unsigned long long)told.failures, told.why);
        }
        fail_msg("not within %u s: %s", NODES_WAIT_S, what);
    }
}

void nodes_wait(struct node *nodes, uint32_t count, nodes_check *is, const char *what)
{
    wait_until(nodes, count, is, what, false);
}

void nodes_wait_taken(struct node *nodes, uint32_t count, nodes_check *is, const char *what)
{
    wait_until(nodes, count, is, what, true);
}

bool nodes_are_whole(struct node *nodes, uint32_t count)
{
    uint32_t leaders = 0, leader = 0;
    struct node_told all[NODES_MAX];
    for (uint32_t i = 0; i < count; i++) {
        all[i] = node_told(&nodes[i]);
        leaders += all[i].leads;
        leader = all[i].leads ? all[i].node : leader;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (all[i].state != KVA_MEMBERS_JOINED || all[i].members != count ||
            all[i].leader != leader)
            return false;
        for (uint32_t j = 0; j < count; j++)
            if (j != i && node_knows(&nodes[i], all[j].node) != all[j].life)
                return false;
    }
    return leaders == 1;
}
