/* world.c - requests that arrive, wait, take memory, and get a token in each step. */
#include "tests/cluster/traces/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/scheduler.h"
#include "tests/cluster/a100.h"
#include "tests/cluster/traces/internal.h"
#include "tests/random.h"

#define IDLE_NS       (10 * KVA_NS_PER_MS)
#define MANAGER_NS    (50 * KVA_NS_PER_MS)
#define PATIENCE_NS   (10 * KVA_NS_PER_S) /* with loans that do not suffice to begin, and no other */
#define QUEUE_ROOM    4096u               /* in front, for those that are computed again */
#define TP_MAX        8u                  /* devices over which layers are split */
#define WEIGHTS_PAGES 386u                /* 13 GB of weights, which a group has once */
#define ROWS_MAX      256u                /* vLLM's limit of rows in a step */
#define STEP_PAGES    32.0                /* 1 GB, of NVLink's 6 in the time of a step */

/* A reduction over 8 devices by NVLink, twice a layer: 15 us, and twice the bytes of the rows. */
#define REDUCE_S    15e-6
#define ROW_BYTES   8192.0
#define LIMIT_SHARE 0.85  /* of all memory; creditors keep a twentieth, and loans have a grain */
#define LAUNCH_S    20e-6 /* of a layer, as in a100.c: not split */

struct world_machine world_a100(void)
{
    return (struct world_machine){.cost = a100_llama7b(),
                                  .pages = A100_PAGES,
                                  .rows_max = ROWS_MAX,
                                  .step_pages = STEP_PAGES,
                                  .lend_share = 1,
                                  .patience_s = 10};
}

static uint64_t ns_of(double s)
{
    return (uint64_t)(s * (double)KVA_NS_PER_S);
}

/* --- requests --------------------------------------------------------------------------------- */

uint32_t world_closed(const struct world_request *request)
{
    uint32_t tokens = request->prompt + request->emitted;
    return tokens / WORLD_PAGE_TOKENS;
}

uint32_t world_free(const struct world_instance *at)
{
    return at->pages - at->local - at->guests;
}

double world_prompt_s(const struct world *world, uint32_t tokens)
{
    return tokens * (world->machine.prompt_s + tokens * world->machine.prompt_pair_s);
}

struct world_request *world_head(const struct world_instance *at)
{
    return at->queue_first < at->queue_end ? &at->world->requests[at->queue[at->queue_first]]
                                           : NULL;
}

static uint32_t missing(const struct world_instance *at, const struct world_request *head)
{
    uint32_t need = head->pages - head->away, room = world_free(at);
    return need > room ? need - room : 0;
}

bool world_is_short(const struct world_instance *at)
{
    const struct world_request *head = world_head(at);
    return head && at->row_count < at->rows_max && missing(at, head) > 0;
}

/* Others have had what it could not use for long enough. */
bool world_keeps(const struct world_instance *at, const struct world_request *head)
{
    return at->short_of == head->id &&
           at->world->now_ns - at->short_since_ns >= ns_of(at->world->machine.patience_s);
}

static void *grow(void *array, uint32_t count, size_t size)
{
    void *more = realloc(array, count * size);
    if (!more) {
        fprintf(stderr, "no memory for %u requests\n", count);
        exit(1);
    }
    return more;
}

static void enqueue(struct world_instance *at, uint32_t index)
{
    if (at->queue_end == at->queue_max) {
        at->queue_max = 2 * at->queue_max + 2 * QUEUE_ROOM;
        at->queue = grow(at->queue, at->queue_max, sizeof(*at->queue));
        if (at->queue_end == 0)
            at->queue_first = at->queue_end = QUEUE_ROOM;
    }
    at->queue[at->queue_end++] = index;
    at->queue_pages += at->world->requests[index].pages;
}

static void drop_pages(struct world_instance *at, struct world_request *request)
{
    at->local -= request->home;
    if (request->state == WORLD_RUNNING)
        at->local -= request->pages - request->away;
    request->away = request->home = 0;
}

static void drop_row(struct world_instance *at, uint32_t row)
{
    at->rows[row] = at->rows[--at->row_count];
}

void world_again(struct world_instance *at, struct world_request *request)
{
    uint32_t index = (uint32_t)(request - at->world->requests);
    bool runs = request->state == WORLD_RUNNING;
    drop_pages(at, request);
    request->state = WORLD_WAITING;
    request->generation++;
    request->since_ns = at->world->now_ns;
    if (!runs)
        return;
    at->world->result.computed_again++;
    request->computed = false;
    for (uint32_t row = 0; row < at->row_count; row++)
        if (at->rows[row] == index) {
            drop_row(at, row);
            break;
        }
    at->queue[--at->queue_first] = index;
    at->queue_pages += request->pages;
}

double world_tokens_max(uint32_t instances)
{
    return LIMIT_SHARE * instances * A100_PAGES * WORLD_PAGE_TOKENS;
}

/* --- arrival ---------------------------------------------------------------------------------- */

/* The next request; when the one behind it comes. */
static struct world_arrival next_arrival(struct world *world)
{
    const struct world_params *params = &world->params;
    if (params->arrivals) {
        uint32_t at = world->given++;
        world->arrival_ns = world->given < params->arrival_count
                                ? ns_of(params->arrivals[at + 1].at_s)
                                : UINT64_MAX;
        return params->arrivals[at];
    }
    uint32_t tokens = trace_draw(params->trace, &world->random), outputs = trace_outputs(tokens);
    struct world_arrival ret = {.prompt = tokens - outputs, .outputs = outputs};
    int64_t most = INT64_MIN;
    world->arrival_ns += ns_of(-log(trace_uniform(&world->random)) / world->rate);
    for (uint32_t i = 0; i < params->instances; i++) {
        const struct world_instance *at = &world->instances[i];
        int64_t room = (int64_t)world_free(at) - (int64_t)at->queue_pages;
        if (room > most) {
            most = room;
            ret.instance = i;
        }
    }
    return ret;
}

static void arrive(struct world *world)
{
    const struct world_arrival arrival = next_arrival(world);
    uint32_t pages = (uint32_t)kva_div_up(arrival.prompt + arrival.outputs, WORLD_PAGE_TOKENS);
    uint64_t all = (uint64_t)world->params.instances * world->instances[0].pages;
    double limit = world->params.lends ? LIMIT_SHARE * (double)all : world->instances[0].pages;
    if (pages > limit) {
        world->result.refused++;
        return;
    }
    if (world->request_count == world->request_max) {
        world->request_max = 2 * world->request_max + 1024;
        world->requests = grow(world->requests, world->request_max, sizeof(*world->requests));
    }
    uint32_t index = world->request_count++;
    world->requests[index] = (struct world_request){
        .id = index + 1,
        .instance = arrival.instance,
        .prompt = arrival.prompt,
        .outputs = arrival.outputs,
        .pages = pages,
        .since_ns = world->now_ns,
    };
    enqueue(&world->instances[arrival.instance], index);
}

/* --- steps ------------------------------------------------------------------------------------ */

static bool is_warm(const struct world *world)
{
    return world->now_ns > ns_of(world->params.warm_s);
}

/* Its prompt, and what it has said if it is computed again, makes the next step longer, once. */
static void compute(struct world_instance *at, struct world_request *request)
{
    struct world *world = at->world;
    const uint32_t tokens = request->prompt + request->emitted;
    if (request->computed)
        return;
    request->computed = true;
    at->prompts_s += world_prompt_s(world, tokens);
    if (is_warm(world))
        world->prompt_tokens += tokens;
}

/* The one `behind` the first in line begins. */
static void begin_row(struct world_instance *at, uint32_t behind)
{
    struct world *world = at->world;
    const uint32_t index = at->queue[at->queue_first + behind];
    struct world_request *request = &world->requests[index];
    memmove(&at->queue[at->queue_first + 1], &at->queue[at->queue_first],
            behind * sizeof(*at->queue));
    at->queue_first++;
    at->queue_pages -= request->pages;
    at->local += request->pages - request->away;
    request->state = WORLD_RUNNING;
    compute(at, request);
    if (is_warm(world)) {
        world->wait_sum_s += (double)(world->now_ns - request->since_ns) / (double)KVA_NS_PER_S;
        world->begun++;
    }
    at->rows[at->row_count++] = index;
}

static bool is_longer(const struct world_instance *at, const struct world_request *request)
{
    return request->pages > at->pages;
}

/* What no instance holds is computed when it is its turn, layer by layer, with homes on the host;
 * what it waits for then is that others lend. */
static void stage(struct world_instance *at, struct world_request *request)
{
    if (is_longer(at, request))
        compute(at, request);
}

/* Who fits may pass the first in line that does not; what waits for others to lend is in nobody's
 * way, until enough is lent: then others come behind it. */
static void let_pass(struct world_instance *at, struct world_request *head)
{
    const bool longer = is_longer(at, head);
    if (longer && head->pages - head->away <= at->pages)
        return;
    uint32_t behind = 1;
    while (behind <= KVA_BYPASS_DEPTH && at->queue_first + behind < at->queue_end &&
           (head->bypassed < KVA_BYPASS_MAX || longer) && at->row_count < at->rows_max) {
        struct world_request *next = &at->world->requests[at->queue[at->queue_first + behind]];
        if (missing(at, next) > 0) {
            stage(at, next);
            behind++;
            continue;
        }
        begin_row(at, behind);
        head->bypassed++;
    }
}

static void let_in(struct world_instance *at)
{
    struct world *world = at->world;
    struct world_request *head;
    while ((head = world_head(at)) && at->row_count < at->rows_max && head->home == 0) {
        uint32_t lack = missing(at, head);
        if (lack == 0) {
            begin_row(at, 0);
            continue;
        }
        /* Who waits for more than an instance has, waits for others to lend: what comes back would
         * not let it in, and where all wait so, nobody would ever begin. */
        if (at->short_of != head->id) {
            at->short_of = head->id;
            at->short_since_ns = world->now_ns;
        }
        stage(at, head);
        if (at->guests > 0 && head->pages - head->away <= at->pages && world_keeps(at, head))
            kva_rmanager_reclaim(at->rmanager, lack, world->now_ns);
        if (head->away > 0 && world->now_ns > head->spread_since_ns + PATIENCE_NS) {
            kva_rmanager_request_end(at->rmanager, head->id, head->generation, world->now_ns);
            world_again(at, head);
        }
        let_pass(at, head);
        return;
    }
}

/* A token for each row. */
static void emit(struct world_instance *at)
{
    struct world *world = at->world;
    double measured_s = (double)world->now_ns / (double)KVA_NS_PER_S - world->params.warm_s;
    if (measured_s >= 0) {
        world->measured[measured_s >= world->params.measured_s / 2] += at->row_count;
        world->row_steps += at->row_count;
        world->steps += at->row_count > 0;
        world->used_sum += at->row_count > 0 ? (double)(at->local + at->guests) / at->pages : 0;
    }
    for (uint32_t row = at->row_count; row-- > 0;) {
        struct world_request *request = &world->requests[at->rows[row]];
        if (++request->emitted < request->outputs)
            continue;
        if (at->rmanager)
            kva_rmanager_request_end(at->rmanager, request->id, request->generation, world->now_ns);
        drop_pages(at, request);
        request->state = WORLD_ENDED;
        drop_row(at, row);
        world->result.ended++;
    }
}

/* Layers split over devices of a machine, and machines one after the other, with a part of the rows
 * in each. */
static double group_step_s(const struct kva_cost_params *cost, uint32_t devices, uint32_t rows,
                           uint64_t tokens)
{
    uint32_t split = kva_min_u32(devices, TP_MAX), stages = devices / split;
    uint32_t part = (uint32_t)kva_div_up(rows, stages);
    double linear_s = LAUNCH_S + (kva_cost_linear_s(cost, part) - LAUNCH_S) / split;
    double reduce_s = REDUCE_S + 2 * ROW_BYTES * part / cost->link_bytes_per_s;
    double attend_s = (double)tokens * cost->attend_token_s / stages / split;
    return cost->layers * (linear_s + 2 * reduce_s + attend_s);
}

/* Each device has its part of the rows and of all attention. */
static double pool_step_s(const struct kva_cost_params *cost, uint32_t devices, uint32_t rows,
                          uint64_t tokens)
{
    double part = (double)rows / devices;
    return cost->layers *
           (kva_cost_linear_s(cost, part) + (double)tokens * cost->attend_token_s / devices);
}

static double step_s(struct world_instance *at)
{
    struct world *world = at->world;
    uint32_t self = (uint32_t)(at - world->instances);
    uint64_t asked[WORLD_INSTANCES_MAX] = {0};
    struct kva_cost_load load = {.batch = at->row_count};
    struct kva_loan loans[WORLD_REQUEST_LOANS];
    for (uint32_t row = 0; row < at->row_count; row++) {
        const struct world_request *request = &world->requests[at->rows[row]];
        load.tokens += request->prompt + request->emitted;
        uint32_t count = request->away > 0 ? world_loans(at, request, loans) : 0;
        for (uint32_t i = 0; i < count; i++)
            asked[loans[i].creditor - 1] += (uint64_t)loans[i].pages * WORLD_PAGE_TOKENS;
        load.borrowed_rows += count;
    }
    if (world->params.pooled)
        return pool_step_s(&world->machine.cost, world->params.devices, load.batch, load.tokens);
    if (world->params.devices > 1)
        return group_step_s(&world->machine.cost, world->params.devices, load.batch, load.tokens);
    for (uint32_t i = 0; i < world->params.instances; i++) {
        const struct world_instance *debtor = &world->instances[i];
        load.borrowed_tokens += asked[i];
        load.borrowed_tokens_most = kva_max_u64(load.borrowed_tokens_most, asked[i]);
        world->instances[i].asked[self] = asked[i];
        load.guest_share +=
            kva_cost_guest_share(&world->machine.cost, at->asked[i],
                                 fmax(debtor->step_s, 1e-3) / world->machine.cost.layers);
    }
    return kva_cost_step_s(&world->machine.cost, &load);
}

static void step(struct world_instance *at)
{
    struct world *world = at->world;
    emit(at);
    if (at->rmanager) {
        const double rate = world->machine.step_pages;
        kva_rmanager_tick(at->rmanager, world->now_ns);
        at->due_pages = fmin(at->due_pages + rate, fmax(rate, 1));
        kva_rmanager_step(at->rmanager, (uint32_t)at->due_pages, world->now_ns);
        at->due_pages -= floor(at->due_pages);
    }
    let_in(at);
    at->step_s = step_s(at);
    uint64_t took_ns = ns_of((at->row_count > 0 ? at->step_s : 0) + at->prompts_s);
    at->prompts_s = 0;
    at->step_ns = world->now_ns + (took_ns > 0 ? took_ns : IDLE_NS);
}

/* --- a run ------------------------------------------------------------------------------------ */

/* What a device could do at best, were all requests of average length. */
static double best_rate(const struct world *world)
{
    const struct trace *trace = world->params.trace;
    uint64_t random = 1;
    double tokens = 0, outputs = 0, count = 20000;
    for (int i = 0; i < (int)count; i++) {
        uint32_t drawn = trace_draw(trace, &random);
        tokens += drawn;
        outputs += trace_outputs(drawn);
    }
    double rows =
        fmin(world->machine.rows_max, world->machine.pages * WORLD_PAGE_TOKENS / (tokens / count));
    double layer_s = kva_cost_linear_s(&world->machine.cost, (uint32_t)fmax(rows, 1)) +
                     rows * tokens / count * world->machine.cost.attend_token_s;
    return rows / (layer_s * world->machine.cost.layers) / (outputs / count);
}

static void begin(struct world *world, const struct world_params *params)
{
    uint32_t devices = params->devices;
    world->params = *params;
    world->machine = *params->machine;
    world->now_ns = KVA_NS_PER_MS;
    world->random = params->seed * 0x9E3779B97F4A7C15ull;
    if (params->arrivals)
        world->arrival_ns =
            params->arrival_count > 0 ? ns_of(params->arrivals[0].at_s) : UINT64_MAX;
    else
        world->rate = params->load * best_rate(world) * params->instances * devices;
    for (uint32_t i = 0; i < params->instances; i++) {
        struct world_instance *at = &world->instances[i];
        at->world = world;
        uint32_t spared = params->pooled ? 0 : (devices - 1) * WEIGHTS_PAGES;
        at->pages = devices * world->machine.pages + spared;
        at->rows_max = devices * world->machine.rows_max;
        at->rows = grow(NULL, at->rows_max, sizeof(*at->rows));
        at->step_ns = world->now_ns + i * KVA_NS_PER_MS;
    }
    if (params->lends)
        world_lend_begin(world);
}

static void turn(struct world *world)
{
    world_deliver(world);
    while (world->arrival_ns <= world->now_ns)
        arrive(world);
    if (world->gmanager && world->manager_ns <= world->now_ns) {
        kva_gmanager_kept_alive(world->gmanager, world->now_ns);
        kva_gmanager_tick(world->gmanager, world->now_ns);
        world->manager_ns = world->now_ns + MANAGER_NS;
    }
    uint64_t next_ns = world->arrival_ns;
    for (uint32_t i = 0; i < world->params.instances; i++) {
        struct world_instance *at = &world->instances[i];
        if (at->step_ns <= world->now_ns)
            step(at);
        next_ns = at->step_ns < next_ns ? at->step_ns : next_ns;
    }
    if (world->gmanager && world->manager_ns < next_ns)
        next_ns = world->manager_ns;
    if (world->packet_count > 0 && world->packets[world->packet_first].due_ns < next_ns)
        next_ns = world->packets[world->packet_first].due_ns;
    world->now_ns = next_ns;
}

struct world_result world_run(const struct world_params *params)
{
    struct world *world = calloc(1, sizeof(*world));
    if (!world)
        exit(1);
    begin(world, params);
    uint64_t end_ns = (uint64_t)((params->warm_s + params->measured_s) * (double)KVA_NS_PER_S);
    while (world->now_ns < end_ns)
        turn(world);
    struct world_result *result = &world->result;
    for (int i = 0; i < 2; i++)
        result->halves[i] = 2 * (double)world->measured[i] / params->measured_s;
    result->tokens_per_s = (result->halves[0] + result->halves[1]) / 2;
    result->prompts_per_s = (double)world->prompt_tokens / params->measured_s;
    result->rows = world->row_steps / fmax(world->steps, 1);
    result->used = world->used_sum / fmax(world->steps, 1);
    result->wait_s = world->wait_sum_s / fmax(world->begun, 1);
    if (params->lends)
        world_lend_end(world);
    struct world_result ret = *result;
    for (uint32_t i = 0; i < params->instances; i++) {
        free(world->instances[i].rows);
        free(world->instances[i].queue);
    }
    free(world->requests);
    free(world);
    return ret;
}
