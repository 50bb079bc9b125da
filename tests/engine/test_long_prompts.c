/* Prompts whose prefill spans steps, several at once, on a device tier that holds one or two of
 * them: none fails for lack of memory, the bytes of both tiers are those that the sequences are
 * said to hold, and the tokens are those of each one alone. */
#include "tests/cmocka.h"

#include "engine/kv/policy.h"
#include "tests/alloc_guard.h"
#include "tests/engine/trace.h"

#include <string.h>

#define LLAMA "tests/golden/families/llama3_gqa_bf16"

/* Two layers of two KV heads of 16; rows of activations are 96 floats. */
#define PAGE_BYTES       (2 * kva_kv_block_bytes(2, 16))
#define STREAM_ROW_BYTES (96 * sizeof(float))

enum { MEMBERS = 6, BUDGET_PAGES = 14 };

enum member_state {
    WAITING,
    RUNNING,
    SUSPENDED,
    DONE,
};

struct member {
    struct kva_sequence_params params;
    uint32_t prompt[CONTEXT];
    struct kva_sequence *seq;
    struct trace want;
    uint32_t done;
    enum member_state state;
};

struct scene {
    struct fixture f;
    struct kva_sampling_params sampling;
    struct member members[MEMBERS];
    uint64_t dice;
    uint32_t refusals;
    uint32_t suspensions; /* in the middle of a prompt */
};

static uint32_t roll(struct scene *scene, uint32_t sides)
{
    scene->dice = scene->dice * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(scene->dice >> 33) % sides;
}

static void create(struct scene *scene, struct member *m)
{
    struct kva_err err;
    const struct kva_engine *engine = scene->f.engine;
    assert_int_equal(engine->ops->create(engine->self, &m->params, &m->seq, &err), KVA_OK);
    m->state = WAITING;
    m->done = 0;
}

static void open_scene(struct scene *scene, uint64_t round)
{
    *scene = (struct scene){.dice = round, .sampling = trace_sampling()};
    fixture_open(&scene->f, &(struct fixture_params){.model_path = LLAMA,
                                                     .step_tokens_max = 48,
                                                     .device_bytes = BUDGET_PAGES * PAGE_BYTES,
                                                     .copy_delay_max_us = 20,
                                                     .seed = round});
    for (uint32_t i = 0; i < MEMBERS; i++) {
        struct member *m = &scene->members[i];
        const struct run run = {.prompt_tokens = 130 + 15 * i,
                                .prompt_seed = 50 + i,
                                .kv = trace_variant((enum variant)((round + i) % VARIANTS))};
        m->want = trace_run(&scene->f, &run);
        fixture_prompt(m->prompt, run.prompt_tokens, VOCAB, run.prompt_seed);
        m->params = (struct kva_sequence_params){
            .prompt = m->prompt,
            .prompt_tokens = run.prompt_tokens,
            .tokens_max = run.prompt_tokens + OUTPUT,
            .sampling = &scene->sampling,
            .kv = run.kv,
        };
        create(scene, m);
    }
}

/* What the sequences hold is what the tiers have given. */
static void check_bytes(const struct scene *scene)
{
    const struct kva_engine *engine = scene->f.engine;
    struct kva_engine_usage usage;
    struct kva_tier_bytes sum = {0};
    for (uint32_t i = 0; i < MEMBERS; i++) {
        struct kva_sequence_info info = {0};
        if (scene->members[i].state != DONE)
            engine->ops->sequence_info(engine->self, scene->members[i].seq, &info);
        sum.device += info.bytes.device;
        sum.host += info.bytes.host;
    }
    engine->ops->usage(engine->self, &usage);
    assert_int_equal(usage.used.host, sum.host);
    /* The tier counts chunks, of which the last of a size need not be full. */
    assert_true(usage.used.device >= sum.device);
    assert_true(usage.used.device <= usage.budget.device);
}

static void suspend(struct scene *scene, struct member *m)
{
    if (m->state != RUNNING)
        return;
    scene->f.engine->ops->suspend(scene->f.engine->self, m->seq);
    m->state = SUSPENDED;
    scene->suspensions += m->done == 0;
}

/* Memory for one more step. False: the device tier is full, and nothing else is wrong. */
static bool take_memory(struct scene *scene, struct member *m)
{
    const struct kva_engine *engine = scene->f.engine;
    enum kva_tier_id short_of = KVA_TIER_HOST;
    enum kva_status status = KVA_OK;
    struct kva_err err;
    uint32_t cached;
    if (m->state == WAITING)
        status = engine->ops->admit(engine->self, m->seq, &cached, &short_of, &err);
    else if (m->state == SUSPENDED)
        status = engine->ops->resume(engine->self, m->seq, &err);
    if (status == KVA_OK) {
        m->state = RUNNING;
        status = m->done > 0 ? engine->ops->grow(engine->self, m->seq, &err) : KVA_OK;
    }
    if (status == KVA_OK)
        return true;
    assert_int_equal(status, KVA_ELIMIT);
    assert_true(m->state != WAITING || short_of == KVA_TIER_DEVICE);
    assert_non_null(strstr(err.message, "device tier"));
    scene->refusals++;
    return false;
}

/* One step of a member, with a random quota if its prompt is not in. */
static void advance(struct scene *scene, struct member *m)
{
    const struct kva_engine *engine = scene->f.engine;
    struct kva_err err;
    if (!take_memory(scene, m)) {
        suspend(scene, &scene->members[roll(scene, MEMBERS)]);
        return;
    }
    struct kva_step_item item = {.seq = m->seq,
                                 .prefill_tokens = m->done ? 0 : 1 + roll(scene, 90)};
    assert_int_equal(engine->ops->step(engine->self, &item, 1, &err), KVA_OK);
    assert_int_equal(item.status, KVA_OK);
    if (!item.emitted)
        return;
    assert_int_equal(item.token.token, m->want.tokens[m->done]);
    assert_true(item.token.chosen.logprob == m->want.logprobs[m->done]);
    if (++m->done == OUTPUT) {
        engine->ops->destroy(engine->self, m->seq);
        m->state = DONE;
    }
}

static void run_scene(uint64_t round)
{
    struct scene scene;
    open_scene(&scene, round);
    /* What an admission, a step or a suspension needs is there before. */
    alloc_guard_fail_from(0);
    for (uint32_t left = MEMBERS, turn = 0; left > 0; turn++) {
        assert_true(turn < 100000);
        struct member *m = &scene.members[roll(&scene, MEMBERS)];
        if (m->state == DONE)
            continue;
        switch (roll(&scene, 24)) {
        case 0:
            suspend(&scene, m);
            break;
        case 1: /* its client has left, another one asks the same */
            scene.f.engine->ops->destroy(scene.f.engine->self, m->seq);
            alloc_guard_fail_none();
            create(&scene, m);
            alloc_guard_fail_from(0);
            break;
        default:
            advance(&scene, m);
        }
        left -= m->state == DONE;
        check_bytes(&scene);
    }
    assert_int_equal(alloc_guard_fail_none(), 0);
    assert_true(scene.refusals > 0);
    assert_true(scene.suspensions > 0);
    struct kva_engine_usage usage;
    scene.f.engine->ops->usage(scene.f.engine->self, &usage);
    assert_int_equal(usage.used.device, 0);
    assert_int_equal(usage.used.host, 0);
    fixture_close(&scene.f);
}

static void test_long_prompts__wait_for_the_device_tier_and_lose_nothing(void **state KVA_UNUSED)
{
    for (uint64_t round = 0; round < 2 * VARIANTS; round += FIXTURE_QUICK ? 9 : 1)
        run_scene(round);
}

static void test_long_prompts__streams_are_counted_until_the_prompt_is_in(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_err err;
    uint32_t prompt[CONTEXT];
    const struct kva_sampling_params sampling = trace_sampling();
    const uint32_t tokens = 200,
                   stream = (uint32_t)kva_div_up(tokens, PAGE_BYTES / STREAM_ROW_BYTES);
    fixture_open(&f, &(struct fixture_params){.model_path = LLAMA, .step_tokens_max = 48});
    const struct kva_engine_ops *ops = f.engine->ops;
    void *self = f.engine->self;
    fixture_prompt(prompt, CONTEXT, VOCAB, 3);
    struct kva_sequence *seq = fixture_start(&f, &(struct kva_sequence_params){
                                                     .prompt = prompt,
                                                     .prompt_tokens = tokens,
                                                     .tokens_max = tokens + OUTPUT,
                                                     .sampling = &sampling,
                                                 });
    struct kva_step_item item = {.seq = seq, .prefill_tokens = 120};
    struct kva_sequence_info info;
    assert_int_equal(ops->step(self, &item, 1, &err), KVA_OK);
    ops->sequence_info(self, seq, &info);
    assert_int_equal(info.bytes.device, (kva_kv_pages(tokens) + stream) * PAGE_BYTES);
    assert_int_equal(info.bytes.host, (kva_kv_pages(tokens + OUTPUT) + stream) * PAGE_BYTES);
    /* Suspended, it waits on the host alone. */
    ops->suspend(self, seq);
    ops->sequence_info(self, seq, &info);
    assert_int_equal(info.bytes.device, 0);
    assert_int_equal(info.bytes.host, (kva_kv_pages(tokens + OUTPUT) + stream) * PAGE_BYTES);
    assert_int_equal(ops->resume(self, seq, &err), KVA_OK);
    fixture_prefill(&f, seq, 120);
    ops->sequence_info(self, seq, &info);
    assert_int_equal(info.bytes.device, kva_kv_pages(tokens) * PAGE_BYTES);
    assert_int_equal(info.bytes.host, kva_kv_pages(tokens + OUTPUT) * PAGE_BYTES);
    ops->destroy(self, seq);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_prompts__streams_are_counted_until_the_prompt_is_in),
        cmocka_unit_test(test_long_prompts__wait_for_the_device_tier_and_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
