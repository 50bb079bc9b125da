/* sim.h - a cluster on a virtual clock: instances with rManagers, gManagers, etcd and a network that
 * loses, doubles, delays, reorders and splits; nodes crash, stop, drain and start again.
 *
 * The code of cluster/ is the real one, messages go through their encoding. What is modelled: an
 * engine, whose requests grow by tokens and whose pages have content, so that every token is worked
 * out from all of the request's pages, wherever they are; and etcd, by its leases and its election.
 *
 * After every event sim_check.c holds the whole cluster against what rmanager.h and gmanager.h
 * promise. The first breach ends a run and is described in `failure`; the same seed gives the same
 * run, event for event. sim_broken.c breaks the code in ways that have to be noticed. */
#ifndef KVA_TESTS_CLUSTER_SIM_H
#define KVA_TESTS_CLUSTER_SIM_H

#include "base/clock.h"
#include "base/heap.h"
#include "cluster/gmanager.h"
#include "cluster/rmanager.h"

#define SIM_NODES_MAX     5u
#define SIM_MANAGERS_MAX  3u
#define SIM_REQUESTS_MAX  40u
#define SIM_PAGES_MAX     96u /* of a request */
#define SIM_STORES_MAX    12u /* loans that a node holds */
#define SIM_PAGE_TOKENS   4u
#define SIM_MANAGER_ID    101u /* of the first; instances count from 1 */

#define SIM_STEP_NS       (20 * KVA_NS_PER_MS)
#define SIM_TTL_NS        (800 * KVA_NS_PER_MS)
#define SIM_MARGIN_NS     (SIM_TTL_NS / 8)
#define SIM_RECALL_NS     (300 * KVA_NS_PER_MS)
#define SIM_ROUND_NS      (200 * KVA_NS_PER_MS)
#define SIM_ETCD_TTL_NS   (600 * KVA_NS_PER_MS)
#define SIM_DELAY_MAX_NS  (900 * KVA_NS_PER_MS) /* of a late message */
#define SIM_DRIFT_MAX_PPM 5000

enum sim_request_state {
    SIM_WAITING,
    SIM_RUNNING,
    SIM_ENDED,
};

struct sim_request {
    uint64_t id;
    uint32_t node;
    uint32_t generation;
    enum sim_request_state state;
    uint32_t prompt;  /* tokens */
    uint32_t outputs; /* tokens that it will give */
    uint32_t emitted;
    uint32_t ends; /* how often it ended: once */
    bool local[SIM_PAGES_MAX];
    uint64_t content[SIM_PAGES_MAX];
    uint64_t home[SIM_PAGES_MAX]; /* on their way home */
    uint32_t home_pages;          /* reserved for them */
    uint64_t since_ns;            /* that it waits, or that a creditor does not answer; 0 */
};

/* Pages that a node holds for another. */
struct sim_store {
    struct kva_loan loan; /* pages 0: none */
    uint64_t recalled_ns; /* when its debtor was told; 0 */
    uint64_t content[SIM_PAGES_MAX];
};

/* Clock of a node: it began at some time, and runs a little fast or slow. */
struct sim_clock {
    uint64_t offset_ns;
    int32_t drift_ppm;
};

struct sim_node {
    struct sim *sim;
    struct sim_clock clock;
    struct kva_rmanager *rmanager; /* NULL: it is down */
    uint64_t life;
    uint64_t died_ns;     /* of the life before this one; 0 */
    uint64_t stopped_ns;  /* until which it does nothing */
    uint64_t stop_end_ns; /* the end of its last stop */
    uint64_t leave_ns;    /* it drains, and is gone by then; 0 */
    bool drains;          /* its rManager knows it, with what it had then: */
    uint64_t loans_begun;
    uint64_t guests_begun;
    uint32_t pages;      /* capacity */
    uint32_t step_pages; /* that are copied in a step */
    uint32_t local_pages;
    uint32_t guest_pages;
    uint64_t revision; /* the highest that an order to it had, in this life */
    struct sim_store stores[SIM_STORES_MAX];
    const struct sim_packet *packet; /* being received */
};

struct sim_manager {
    struct sim *sim;
    struct sim_clock clock;
    struct kva_gmanager *gmanager; /* NULL: it is down */
    uint64_t life;
    uint64_t stopped_ns;
    uint64_t zombie_revision; /* with which it gives orders though it was deposed; 0 */
    uint64_t zombie_loans;    /* that it ordered so: numbers that no leader gets to */
    bool leads;               /* it believes so */
};

/* Election and leases as etcd has them. */
struct sim_etcd {
    bool down;
    uint32_t leader; /* manager; UINT32_MAX: none */
    uint64_t leader_life;
    uint64_t revision;
    uint64_t lease_end_ns; /* on the true clock */
};

enum sim_event_kind {
    SIM_EVENT_PACKET,
    SIM_EVENT_STEP,
    SIM_EVENT_MANAGER,
    SIM_EVENT_ETCD_ASK,    /* a campaign or keep-alive arrives at etcd */
    SIM_EVENT_ETCD_ANSWER, /* and its answer at the manager */
    SIM_EVENT_MEMBER_GONE, /* the lease of an instance ends */
    SIM_EVENT_SUBMIT,
    SIM_EVENT_FAULT,
    SIM_EVENT_DRAIN,
    SIM_EVENT_START, /* what was crashed starts again */
};

struct sim_packet {
    uint32_t target;
    uint32_t size;
    uint8_t bytes[2048];
    uint32_t content_count;
    uint64_t content[SIM_PAGES_MAX];
};

struct sim_event {
    struct kva_heap_node node;
    enum sim_event_kind kind;
    uint32_t index;
    uint64_t life;
    uint64_t revision; /* SIM_EVENT_ETCD_ANSWER: 0: not elected */
    uint64_t sent_ns;
    struct sim_packet *packet;
};

/* What is broken on purpose; NULL members: nothing. */
struct sim_broken {
    const char *name;
    const char *noticed; /* a word of the failure that it has to lead to */
    bool (*before)(struct sim_node *node, struct kva_message *message); /* false: swallowed */
    void (*after)(struct sim_node *node);
    void (*manager)(struct sim_manager *manager);
    bool forgets_lost, forgets_end, has_room, lends_anything, leaves_guests;
};

struct sim_stats {
    uint64_t events, packets, lost, doubled, late, crashes, stops, splits, elections;
    uint64_t drains, drains_lending, left; /* with guests; before the time was over */
    uint64_t requests, ended, failed, recomputed, tokens, remote_tokens;
    struct kva_rmanager_stats loans; /* sums over all lives */
};

struct sim {
    uint64_t seed, rng, now_ns, sequence, order;
    struct kva_heap events;
    uint32_t node_count, manager_count, request_count, request_max;
    struct sim_node nodes[SIM_NODES_MAX];
    struct sim_manager managers[SIM_MANAGERS_MAX];
    struct sim_etcd etcd;
    struct sim_request requests[SIM_REQUESTS_MAX];
    bool split[SIM_NODES_MAX + SIM_MANAGERS_MAX + 1][SIM_NODES_MAX + SIM_MANAGERS_MAX + 1];
    uint32_t loss_pct, double_pct, late_pct;
    uint64_t faults_end_ns, end_ns;
    bool faults;
    const struct sim_broken *broken;
    struct sim_stats stats;
    char failure[256];
};

/* A whole run; true: nothing was breached. The simulation is the caller's to free. */
bool sim_run(struct sim *sim, uint64_t seed, bool faults, const struct sim_broken *broken);

/* Note the first breach. */
void sim_fail(struct sim *sim, const char *format, ...) KVA_PRINTF(2, 3);

uint32_t sim_below(struct sim *sim, uint32_t limit);
bool sim_chance(struct sim *sim, uint32_t percent);
uint64_t sim_local_ns(const struct sim *sim, const struct sim_clock *clock);
struct sim_event *sim_at(struct sim *sim, uint64_t ns, enum sim_event_kind kind, uint32_t index);

/* sim_net.c */
void sim_send(struct sim *sim, const struct kva_message *message, const uint64_t *content,
              uint32_t content_count);
void sim_deliver(struct sim *sim, struct sim_packet *packet);
/* Places of instances, then managers, then etcd. */
bool sim_reaches(const struct sim *sim, uint32_t a, uint32_t b);
uint64_t sim_delay_ns(struct sim *sim);

/* sim_etcd.c */
void sim_manager_start(struct sim *sim, uint32_t index);
void sim_manager_stop(struct sim *sim, uint32_t index);
void sim_manager_step(struct sim *sim, uint32_t index);
void sim_etcd_ask(struct sim *sim, const struct sim_event *event);
void sim_etcd_answer(struct sim *sim, const struct sim_event *event);
void sim_member_gone(struct sim *sim, const struct sim_event *event);

/* sim_node.c */
void sim_node_start(struct sim *sim, uint32_t index);
void sim_node_crash(struct sim *sim, uint32_t index);
void sim_node_drain(struct sim *sim, uint32_t index, uint64_t within_ns);
void sim_node_leave(struct sim *sim, uint32_t index);
void sim_submit(struct sim *sim);
/* sim_engine.c */
void sim_node_step(struct sim *sim, uint32_t index);
void sim_request_requeue(struct sim_node *node, struct sim_request *request);
uint32_t sim_request_closed(const struct sim_request *request);
uint32_t sim_request_last(const struct sim_request *request);
uint32_t sim_lent_pages(const struct sim_node *node, const struct sim_request *request);
uint32_t sim_request_need(const struct sim_node *node, const struct sim_request *request);
uint64_t sim_content(uint64_t request, uint32_t page);
struct sim_request *sim_request_find(struct sim *sim, uint64_t id);
struct sim_request *sim_head(struct sim_node *node);

/* Its first in line has waited for long enough: it lends no more, and recalls. */
bool sim_keeps(const struct sim_node *node, const struct sim_request *head);
struct sim_store *sim_store_find(struct sim_node *node, uint64_t loan);

/* sim_check.c */
void sim_check(struct sim *sim);
void sim_check_left(struct sim *sim, const struct sim_node *node);
void sim_check_end(struct sim *sim);

/* sim_broken.c */
extern const struct sim_broken sim_broken[];
extern const uint32_t sim_broken_count;

#endif
