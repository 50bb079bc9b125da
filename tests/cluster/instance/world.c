#include "tests/cmocka.h"

#include "tests/cluster/instance/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MS           1000000ull
#define TTL_NS       (800 * MS)
#define ENGINE_PAGES 400u /* of the host tier */

static const char config[] =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,"
    "\"intermediate_size\":48,\"num_hidden_layers\":%u,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"vocab_size\":300,\"max_position_embeddings\":2048,"
    "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
    "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}";

enum { CONTEXT = 2048, LAYER_BYTES = 2 * 64 * 2 * 8 * 2, RUNNING = 8 };

static void expect_ok(enum kva_status status, const struct kva_err *err)
{
    if (status)
        fail_msg("%s: %s", kva_status_info(status)->name, err->message);
}

uint32_t world_below(struct world *w, uint32_t limit)
{
    w->rng = w->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((w->rng >> 33) % limit);
}

static uint64_t now(void *opaque)
{
    return ((struct world *)opaque)->now_ns;
}

/* --- the network ------------------------------------------------------------------------------ */

static void put_packet(struct world *w, const struct kva_message *message, const void *content,
                       size_t content_bytes)
{
    struct kva_err err;
    struct world_packet *packet = w->packets;
    while (packet < w->packets + WORLD_PACKETS && packet->due_ns > 0)
        packet++;
    assert_true(packet < w->packets + WORLD_PACKETS);
    expect_ok(
        kva_message_encode(message, packet->bytes, sizeof(packet->bytes), &packet->size, &err),
        &err);
    uint32_t ticks =
        world_below(w, 100) < w->late_pct ? 5 + world_below(w, 60) : 1 + world_below(w, 2);
    packet->due_ns = w->now_ns + ticks * (uint64_t)WORLD_TICK_NS;
    packet->target = message->target;
    packet->content = content_bytes ? malloc(content_bytes) : NULL;
    packet->content_bytes = content_bytes;
    if (content_bytes)
        memcpy(packet->content, content, content_bytes);
}

static void send(struct world *w, const struct kva_message *message, const void *content,
                 size_t page_bytes)
{
    size_t bytes = content ? message->pages.pages * page_bytes : 0;
    uint32_t copies = 1 + (world_below(w, 100) < w->double_pct);
    for (uint32_t i = 0; i < copies; i++) {
        if (world_below(w, 100) >= w->loss_pct)
            put_packet(w, message, content, bytes);
    }
}

static void node_send(void *opaque, const struct kva_message *message, const void *content)
{
    struct world_node *node = opaque;
    send(node->world, message, content, node->world->page_bytes);
}

static bool node_reaches(void *opaque, uint32_t creditor)
{
    const struct world_node *node = opaque;
    return node->world->nodes[creditor - 1].up;
}

static bool node_may_ask(void *opaque KVA_UNUSED, uint32_t creditor KVA_UNUSED)
{
    return true;
}

static void manager_send(void *opaque, const struct kva_message *message)
{
    send(opaque, message, NULL, 0);
}

static void deliver(struct world *w, const struct world_packet *packet)
{
    static struct kva_message_entry entries[KVA_MESSAGE_ENTRIES_MAX];
    struct kva_message message;
    struct kva_err err;
    expect_ok(kva_message_decode(packet->bytes, packet->size, entries, KVA_MESSAGE_ENTRIES_MAX,
                                 &message, &err),
              &err);
    if (packet->target == WORLD_MANAGER) {
        kva_gmanager_receive(w->gmanager, &message);
        return;
    }
    struct world_node *node = &w->nodes[packet->target - 1];
    if (node->up)
        expect_ok(kva_instance_receive(node->instance, &message, packet->content,
                                       packet->content_bytes, w->now_ns, &err),
                  &err);
}

static void deliver_due(struct world *w)
{
    for (uint32_t i = 0; i < WORLD_PACKETS; i++) {
        struct world_packet *packet = &w->packets[i];
        if (packet->due_ns == 0 || packet->due_ns > w->now_ns)
            continue;
        struct world_packet taken = *packet;
        packet->due_ns = 0;
        deliver(w, &taken);
        free(taken.content);
    }
}

/* --- attention -------------------------------------------------------------------------------- */

static void post(void *self, uint32_t layer, const struct kva_remote_rows *rows, uint32_t count)
{
    struct world_node *node = self;
    assert_true(count <= WORLD_POSTED);
    memcpy(node->posted, rows, count * sizeof(*rows));
    node->layer = layer;
}

static bool collect(void *self, uint32_t index)
{
    struct world_node *node = self;
    struct kva_err err;
    bool found = false;
    struct world_node *creditor = &node->world->nodes[node->posted[index].creditor - 1];
    if (!creditor->up)
        return false;
    expect_ok(
        kva_guests_attend(creditor->worker, node->layer, &node->posted[index], 1, &found, &err),
        &err);
    node->world->attended += found;
    return found;
}

static const struct kva_remote_ops remote_ops = {.post = post, .collect = collect};

/* --- instances -------------------------------------------------------------------------------- */

static void on_output(void *opaque, const struct kva_output *output)
{
    struct world_node *node = opaque;
    struct world_request *request = &node->world->requests[output->request_id - 1];
    if (output->kind == KVA_OUTPUT_TOKEN) {
        assert_true(!request->ended && request->count < WORLD_TOKENS);
        request->tokens[request->count++] = output->token.token;
    }
    if (output->kind == KVA_OUTPUT_END) {
        assert_false(request->ended);
        request->ended = true;
        request->reason = output->end.reason;
    }
}

static void open_engine(struct world *w, struct fixture *f, uint32_t pages,
                        const struct kva_remote *remote)
{
    fixture_open(f, &(struct fixture_params){.model_path = w->model,
                                             .context_max = CONTEXT,
                                             .step_tokens_max = 128,
                                             .threads = 1,
                                             .cpu_level_mask = fixture_unrounded_levels(),
                                             .device_bytes = (uint64_t)pages * w->page_bytes,
                                             .host_bytes = (uint64_t)ENGINE_PAGES * w->page_bytes,
                                             .prefix_cache = true,
                                             .remote = remote});
    assert_int_equal(kva_lending_page_bytes(f->engine), w->page_bytes);
}

static struct kva_scheduler *open_scheduler(struct world *w, struct fixture *f, void *opaque)
{
    struct kva_err err;
    struct kva_scheduler *scheduler;
    const struct kva_scheduler_params params = {.engine = f->engine,
                                                .clock = &w->clock,
                                                .running_max = RUNNING,
                                                .waiting_max = WORLD_REQUESTS,
                                                .step_tokens_max = 128,
                                                .prefill_share_pct = 50,
                                                .aging_ns = 1000 * MS,
                                                .on_output = on_output,
                                                .opaque = opaque};
    expect_ok(kva_scheduler_create(&params, &scheduler, &err), &err);
    return scheduler;
}

void world_start(struct world *w, uint32_t index)
{
    struct world_node *node = &w->nodes[index];
    struct kva_err err;
    uint64_t life = node->life + 1;
    *node = (struct world_node){.world = w, .up = true, .life = life};
    node->remote = (struct kva_remote){&remote_ops, node};
    open_engine(w, &node->fixture, w->device_pages, &node->remote);
    kva_lending_set_others(node->fixture.engine,
                           (WORLD_NODES - 1) * (uint64_t)w->device_pages * w->page_bytes);
    node->scheduler = open_scheduler(w, &node->fixture, node);
    const struct kva_instance_params params = {
        .rmanager = {.node = index + 1,
                     .life = life,
                     .loans_max = 12,
                     .peers_max = 8,
                     .entries_max = WORLD_REQUESTS,
                     .lend_pages_max = w->lend_pages ? w->lend_pages : w->device_pages,
                     .unacked_pages = 4,
                     .retry_ns = 60 * MS,
                     .lease_margin_ns = TTL_NS / 8,
                     .recall_within_ns = 2000 * MS},
        .engine = node->fixture.engine,
        .scheduler = node->scheduler,
        .running_max = RUNNING,
        .keeps_homes = w->keeps_homes,
        .patience_ns = w->patience_ns,
        .step_pages = w->keeps_homes ? 2 : 0.6,
        .send = node_send,
        .may_ask = node_may_ask,
        .reaches = node_reaches,
        .opaque = node};
    expect_ok(kva_instance_create(&params, &node->instance, &err), &err);
    const struct kva_device_params device = {.threads = 1,
                                             .cpu_level_mask = fixture_unrounded_levels()};
    expect_ok(kva_device_open_cpu(&device, &node->device, &err), &err);
    expect_ok(kva_guest_worker_create(kva_instance_guests(node->instance), node->device, 16,
                                      &node->worker, &err),
              &err);
    assert_int_equal(kva_gmanager_member(w->gmanager, index + 1, life), KVA_OK);
}

static void add_stats(struct kva_rmanager_stats *to, const struct world_node *node)
{
    struct kva_rmanager_stats stats;
    kva_instance_get_stats(node->instance, &stats);
    to->loans_lent += stats.loans_lent;
    to->loans_home += stats.loans_home;
    to->loans_lost += stats.loans_lost;
    to->guests += stats.guests;
    to->loans += stats.loans;
}

static uint64_t restarts_of(const struct world_node *node)
{
    struct kva_scheduler_stats stats;
    kva_scheduler_get_stats(node->scheduler, &stats);
    return stats.restarts;
}

static void stop(struct world_node *node)
{
    kva_guest_worker_destroy(node->worker);
    kva_device_close(node->device);
    kva_instance_destroy(node->instance);
    kva_scheduler_destroy(node->scheduler);
    fixture_close(&node->fixture);
    node->up = false;
}

void world_kill(struct world *w, uint32_t index)
{
    struct world_node *node = &w->nodes[index];
    struct kva_rmanager_stats last = {0};
    add_stats(&last, node);
    w->before.loans_lent += last.loans_lent;
    w->before.loans_home += last.loans_home;
    w->before.loans_lost += last.loans_lost;
    w->restarts += restarts_of(node);
    stop(node);
    kva_gmanager_member_gone(w->gmanager, index + 1);
    for (uint32_t i = 0; i < w->request_count; i++) {
        if (w->requests[i].node == index && !w->requests[i].ended)
            w->requests[i] = (struct world_request){
                .node = index, .ended = true, .reason = KVA_FINISH_CANCELLED};
    }
}

struct kva_rmanager_stats world_loans(const struct world *w)
{
    struct kva_rmanager_stats stats = w->before;
    for (uint32_t i = 0; i < WORLD_NODES; i++) {
        if (w->nodes[i].up)
            add_stats(&stats, &w->nodes[i]);
    }
    return stats;
}

uint64_t world_restarts(const struct world *w)
{
    uint64_t restarts = w->restarts;
    for (uint32_t i = 0; i < WORLD_NODES; i++)
        restarts += w->nodes[i].up ? restarts_of(&w->nodes[i]) : 0;
    return restarts;
}

/* --- life ------------------------------------------------------------------------------------- */

/* Rows are free up to 64, so that whoever waits is worth memory. */
static void open_manager(struct world *w)
{
    struct kva_err err;
    const struct kva_gmanager_ops ops = {.opaque = w, .send = manager_send};
    struct kva_gmanager_params params = {
        .node = WORLD_MANAGER,
        .life = 1,
        .instances_max = WORLD_NODES,
        .entries_max = 100,
        .moves_max = 8,
        .round_ns = 200 * MS,
        .gather_ns = 50 * MS,
        .loan_ttl_ns = TTL_NS,
        .lease_ttl_ns = 10000 * MS,
        .lease_margin_ns = 1000 * MS,
        .cost = {.layers = w->layers,
                 .point_count = 2,
                 .points = {{1, 1e-3}, {64, 2e-3}},
                 .attend_token_s = 1e-7,
                 .link_latency_s = 2e-5,
                 .link_bytes_per_s = 1e9,
                 .query_bytes = 128,
                 .partial_bytes = 160,
                 .page_bytes = w->page_bytes},
    };
    params.plan = kva_plan_defaults(&params.cost);
    params.plan.page_tokens = KVA_PAGE_TOKENS;
    params.plan.batch_threshold = 64;
    params.plan.usage_threshold = 0.95;
    params.plan.gain_min_share = 0.01;
    expect_ok(kva_gmanager_create(&params, &ops, &w->gmanager, &err), &err);
    kva_gmanager_elected(w->gmanager, 1, w->now_ns);
}

void world_open(struct world *w)
{
    w->now_ns = 1000 * MS;
    w->clock = (struct kva_clock){.now_ns = now, .opaque = w};
    w->packets = calloc(WORLD_PACKETS, sizeof(*w->packets));
    assert_non_null(w->packets);
    char json[sizeof(config) + 10];
    w->layers = w->layers ? w->layers : 3;
    w->page_bytes = (size_t)w->layers * LAYER_BYTES;
    snprintf(json, sizeof(json), config, w->layers);
    fixture_make_model(json, 4, CONTEXT, w->model);
    open_manager(w);
    for (uint32_t i = 0; i < WORLD_NODES; i++)
        world_start(w, i);
}

void world_close(struct world *w)
{
    for (uint32_t i = 0; i < WORLD_NODES; i++) {
        if (w->nodes[i].up)
            stop(&w->nodes[i]);
    }
    for (uint32_t i = 0; i < WORLD_PACKETS; i++) {
        if (w->packets[i].due_ns > 0)
            free(w->packets[i].content);
    }
    free(w->packets);
    kva_gmanager_destroy(w->gmanager);
    fixture_remove_model(w->model);
}

static struct kva_request *make_request(uint32_t number, uint32_t prompt_tokens,
                                        uint32_t output_tokens)
{
    struct kva_request *request = kva_request_create(1u << 20);
    assert_non_null(request);
    uint32_t *prompt = kva_arena_calloc(&request->arena, prompt_tokens, sizeof(uint32_t));
    assert_non_null(prompt);
    fixture_prompt(prompt, prompt_tokens, 300, 1000 + number);
    request->id = number + 1;
    request->prompt = prompt;
    request->prompt_tokens = prompt_tokens;
    request->output_tokens_max = output_tokens;
    request->choices = 1;
    request->patient = true;
    request->kv = kva_kv_spec_default(KVA_KV_FULL);
    request->sampling = fixture_greedy();
    request->sampling.temperature = 0.9f;
    request->sampling.seed = number;
    return request;
}

uint32_t world_submit(struct world *w, uint32_t node, uint32_t prompt_tokens,
                      uint32_t output_tokens)
{
    struct kva_err err;
    uint32_t number = w->request_count++;
    assert_true(number < WORLD_REQUESTS);
    w->requests[number] = (struct world_request){
        .node = node, .prompt_tokens = prompt_tokens, .output_tokens = output_tokens};
    expect_ok(kva_scheduler_submit(w->nodes[node].scheduler,
                                   make_request(number, prompt_tokens, output_tokens), &err),
              &err);
    return number;
}

void world_tick(struct world *w)
{
    struct kva_err err;
    w->now_ns += WORLD_TICK_NS;
    deliver_due(w);
    kva_gmanager_kept_alive(w->gmanager, w->now_ns);
    kva_gmanager_tick(w->gmanager, w->now_ns);
    for (uint32_t i = 0; i < WORLD_NODES; i++) {
        struct world_node *node = &w->nodes[i];
        bool idle;
        uint64_t wake_ns;
        if (!node->up)
            continue;
        kva_instance_between_steps(node->instance, w->now_ns);
        expect_ok(kva_scheduler_step(node->scheduler, &idle, &wake_ns, &err), &err);
    }
}

bool world_run(struct world *w, uint32_t ticks)
{
    for (uint32_t i = 0; i < ticks; i++) {
        bool all = true;
        for (uint32_t j = 0; j < w->request_count; j++)
            all &= w->requests[j].ended;
        if (all)
            return true;
        world_tick(w);
    }
    return false;
}

/* --- what has to be --------------------------------------------------------------------------- */

/* The request on an engine with memory enough, alone. */
static void say_alone(struct world *w, uint32_t number, struct world_request *ret)
{
    struct kva_err err;
    const struct world_request *asked = &w->requests[number];
    struct kva_request *request = make_request(number, asked->prompt_tokens, asked->output_tokens);
    struct fixture f;
    struct kva_step_item item = {.prefill_tokens = asked->prompt_tokens};
    open_engine(w, &f, 2 * CONTEXT / KVA_PAGE_TOKENS, NULL);
    const struct kva_engine_ops *ops = f.engine->ops;
    item.seq =
        fixture_start(&f, &(struct kva_sequence_params){.prompt = request->prompt,
                                                        .prompt_tokens = request->prompt_tokens,
                                                        .tokens_max = request->prompt_tokens +
                                                                      request->output_tokens_max,
                                                        .sampling = &request->sampling,
                                                        .kv = request->kv});
    for (ret->count = 0; ret->count < asked->output_tokens;) {
        if (ret->count > 0)
            expect_ok(ops->grow(f.engine->self, item.seq, &err), &err);
        expect_ok(ops->step(f.engine->self, &item, 1, &err), &err);
        if (!item.emitted)
            continue;
        ret->tokens[ret->count++] = item.token.token;
        item.prefill_tokens = 0;
    }
    ops->destroy(f.engine->self, item.seq);
    fixture_close(&f);
    kva_request_destroy(request);
}

void world_expect_answers(struct world *w)
{
    for (uint32_t i = 0; i < w->request_count; i++) {
        const struct world_request *got = &w->requests[i];
        struct world_request want = {0};
        assert_true(got->ended);
        if (got->reason == KVA_FINISH_CANCELLED)
            continue;
        if (got->reason != KVA_FINISH_LENGTH)
            fail_msg("request %u ended with %d after %u tokens", i, (int)got->reason, got->count);
        say_alone(w, i, &want);
        assert_int_equal(got->count, want.count);
        assert_memory_equal(got->tokens, want.tokens, want.count * sizeof(want.tokens[0]));
    }
}

void world_expect_rest(struct world *w)
{
    for (uint32_t i = 0; i < 400; i++)
        world_tick(w);
    struct kva_rmanager_stats stats = world_loans(w);
    assert_int_equal(stats.guests, 0);
    assert_int_equal(stats.loans, 0);
    for (uint32_t i = 0; i < WORLD_NODES; i++) {
        struct kva_engine_usage usage;
        if (!w->nodes[i].up)
            continue;
        const struct kva_engine *engine = w->nodes[i].fixture.engine;
        engine->ops->usage(engine->self, &usage);
        assert_int_equal(usage.guests.device, 0);
        assert_int_equal(usage.used.device, usage.cached.device);
        assert_int_equal(usage.used.host, usage.cached.host);
    }
}
