/* Tenants share slots, prompts' places and steps by weight; everything here is counted in steps and
 * tokens. */
#include "scheduler/internal.h"
#include "tests/random.h"
#include "tests/scheduler/fixture.h"

#include <string.h>

#define SLOTS 32u

static void begin(struct fixture *f, uint32_t slots)
{
    fixture_init(f);
    f->engine.limits.sequences_max = 4 * slots;
    f->engine.limits.context_max = 1 << 20;
    f->engine.limits.budget = (struct kva_tier_bytes){.device = 1ull << 40, .host = 1ull << 40};
    f->scheduling.running_max = slots;
    f->scheduling.waiting_max = 4000;
    fixture_begin(f);
}

/* A request that is never done within a test. */
static struct request_spec endless(uint64_t id, uint64_t tenant)
{
    struct request_spec spec = tracker_spec(id);
    spec.tenant = tenant;
    spec.output_tokens_max = 100000;
    return spec;
}

static void submit(struct fixture *f, const struct request_spec *spec)
{
    assert_int_equal(fixture_submit(f, spec), KVA_OK);
}

/* Choices of a tenant that run; ids of requests are tenant * 1000 + i. */
static uint32_t running(const struct fixture *f, uint64_t tenant)
{
    struct kva_choice_view views[4096];
    uint32_t count = kva_scheduler_get_view(f->scheduler, views, 4096), sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += views[i].request_id / 1000 == tenant &&
               (strcmp(views[i].state, "decode") == 0 || strcmp(views[i].state, "prefill") == 0);
    return sum;
}

static uint64_t tokens(const struct fixture *f, uint64_t tenant, uint32_t requests)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < requests; i++) {
        const struct tracked_request *r = tracker_find(&f->tracker, tenant * 1000 + i);
        for (uint32_t j = 0; j < r->choices; j++)
            sum += r->choice[j].tokens;
    }
    return sum;
}

/* End everything and see that nothing is left. */
static void finish(struct fixture *f)
{
    struct kva_choice_view views[4096];
    uint32_t count;
    while ((count = kva_scheduler_get_view(f->scheduler, views, 4096)) > 0) {
        tracker_cancels(&f->tracker, views[0].request_id, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
        kva_scheduler_cancel(f->scheduler, views[0].request_id, KVA_ALL_CHOICES,
                             KVA_FINISH_CANCELLED);
    }
    assert_int_equal(f->tracker.live, 0);
    assert_int_equal(fixture_report(f).live_sequences, 0);
    fixture_end(f);
}

/* Steps until the request's first token. */
static uint32_t steps_to_first(struct fixture *f, uint64_t id, uint32_t most)
{
    for (uint32_t steps = 1; steps <= most; steps++) {
        fixture_step(f);
        if (tracker_choice(&f->tracker, id, 0)->tokens > 0)
            return steps;
    }
    return UINT32_MAX;
}

static void test_tenant__a_thousand_choices_hold_nobody_up(void **state KVA_UNUSED)
{
    struct fixture f;
    begin(&f, SLOTS);
    /* 256 prompts, 4 choices each: what one request may have. */
    for (uint32_t i = 0; i < 256; i++) {
        struct request_spec spec = endless(1000 + i, 1);
        spec.choices = 4;
        submit(&f, &spec);
    }
    fixture_steps(&f, 300);
    assert_int_equal(running(&f, 1), SLOTS); /* alone it has everything */
    struct request_spec spec = endless(2000, 2);
    submit(&f, &spec);
    assert_true(steps_to_first(&f, 2000, 10) <= 2);
    assert_int_equal(running(&f, 1), SLOTS - 1);
    /* As many as wait, up to its share. */
    for (uint32_t i = 1; i < 40; i++) {
        spec = endless(2000 + i, 2);
        submit(&f, &spec);
    }
    fixture_steps(&f, 30);
    assert_in_range(running(&f, 2), SLOTS / 2 - 1, SLOTS / 2);
    assert_int_equal(running(&f, 1), SLOTS - running(&f, 2));
    /* A third. */
    spec = endless(3000, 3);
    spec.choices = 20;
    submit(&f, &spec);
    assert_true(steps_to_first(&f, 3000, 10) <= 2);
    fixture_steps(&f, 30);
    assert_in_range(running(&f, 3), SLOTS / 3, SLOTS / 3 + 1);
    finish(&f);
}

static void test_tenant__what_ends_is_everybodys(void **state KVA_UNUSED)
{
    struct fixture f;
    begin(&f, SLOTS);
    struct request_spec spec;
    for (uint64_t tenant = 1; tenant <= 2; tenant++) {
        for (uint32_t i = 0; i < 40; i++) {
            spec = endless(tenant * 1000 + i, tenant);
            submit(&f, &spec);
        }
    }
    fixture_steps(&f, 50);
    assert_int_equal(running(&f, 1), SLOTS / 2);
    for (uint32_t i = 0; i < 40; i++) {
        tracker_cancels(&f.tracker, 2000 + i, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
        kva_scheduler_cancel(f.scheduler, 2000 + i, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
    }
    fixture_steps(&f, 20);
    assert_int_equal(running(&f, 1), SLOTS);
    finish(&f);
}

/* Whatever the order in which they come, slots are shared by weight once they have all come, and
 * tokens in every window. */
static void test_tenant__shares_are_by_weight_in_any_order(void **state KVA_UNUSED)
{
    uint64_t seed = 1;
    for (uint32_t round = 0; round < 20; round++) {
        struct fixture f;
        begin(&f, SLOTS);
        uint32_t weight[4], sent[4] = {0}, weights = 0;
        uint32_t count = 2 + (uint32_t)(kva_test_random(&seed) % 3);
        for (uint32_t t = 0; t < count; t++)
            weights += weight[t] = 1 + (uint32_t)(kva_test_random(&seed) % 4);
        for (uint32_t i = 0; i < count * 50; i++) {
            uint32_t t = (uint32_t)(kva_test_random(&seed) % count);
            while (sent[t] == 50)
                t = (t + 1) % count;
            struct request_spec spec = endless((t + 1) * 1000 + sent[t]++, t + 1);
            spec.tenant_weight = weight[t];
            spec.prompt_tokens = 1 + (uint32_t)(kva_test_random(&seed) % 200);
            spec.priority = (int32_t)(kva_test_random(&seed) % 21) - 10;
            submit(&f, &spec);
            if (kva_test_random(&seed) % 8 == 0)
                fixture_step(&f);
        }
        fixture_steps(&f, 100);
        uint64_t before[4];
        for (uint32_t t = 0; t < count; t++) {
            double share = (double)SLOTS * weight[t] / weights;
            uint32_t has = running(&f, t + 1);
            if (has + 1.5 < share || has > share + 1.5)
                fail_msg("round %u: weight %u of %u has %u slots of %u", round, weight[t], weights,
                         has, SLOTS);
            before[t] = tokens(&f, t + 1, 50);
        }
        uint32_t steps = 4000;
        fixture_steps(&f, steps);
        for (uint32_t t = 0; t < count; t++) {
            double share = (double)steps * SLOTS * weight[t] / weights;
            double got = (double)(tokens(&f, t + 1, 50) - before[t]);
            double bound = 2.0 * KVA_TENANT_QUANTUM;
            if (got < share - bound || got > share + bound)
                fail_msg("round %u: weight %u of %u got %.0f tokens, its share is %.0f", round,
                         weight[t], weights, got, share);
        }
        finish(&f);
    }
}

/* One slot is shared over time, in turns that are long enough to be worth a copy. */
static void test_tenant__one_slot_is_shared_over_time(void **state KVA_UNUSED)
{
    struct fixture f;
    begin(&f, 1);
    for (uint64_t tenant = 1; tenant <= 3; tenant++) {
        struct request_spec spec = endless(tenant * 1000, tenant);
        spec.tenant_weight = tenant == 3 ? 2 : 1;
        submit(&f, &spec);
    }
    fixture_steps(&f, 40000);
    for (uint64_t tenant = 1; tenant <= 3; tenant++) {
        uint64_t got = tokens(&f, tenant, 1), share = tenant == 3 ? 20000 : 10000;
        assert_in_range(got, share - 1500, share + 1500);
    }
    assert_true(fixture_stats(&f).preemptions < 40000 / 100);
    finish(&f);
}

/* Who asked for little has nothing to make up for. */
static void test_tenant__nobody_saves_up(void **state KVA_UNUSED)
{
    struct fixture f;
    begin(&f, SLOTS);
    struct request_spec spec = endless(2000, 2);
    submit(&f, &spec);
    for (uint32_t i = 0; i < 60; i++) {
        spec = endless(1000 + i, 1);
        submit(&f, &spec);
    }
    fixture_steps(&f, 5000);
    assert_int_equal(running(&f, 1), SLOTS - 1);
    for (uint32_t i = 1; i < 60; i++) {
        spec = endless(2000 + i, 2);
        submit(&f, &spec);
    }
    fixture_steps(&f, 100);
    assert_in_range(running(&f, 1), SLOTS / 2 - 1, SLOTS / 2 + 1);
    uint64_t before = tokens(&f, 1, 60);
    fixture_steps(&f, 1000);
    assert_true(tokens(&f, 1, 60) - before > 1000 * SLOTS / 2 - 2 * KVA_TENANT_QUANTUM);

    /* And who comes late is not first for ever. */
    spec = endless(3000, 3);
    spec.choices = 60;
    submit(&f, &spec);
    fixture_steps(&f, 200);
    assert_in_range(running(&f, 3), SLOTS / 3 - 1, SLOTS / 3 + 1);
    finish(&f);
}

/* The second tenant's does not fit the host beside the first one's, which would keep its pages there if
 * it gave way: it goes on to its end, and the other one waits as long as that takes. */
static void test_tenant__nobody_gives_way_for_the_hosts_memory(void **state KVA_UNUSED)
{
    static const struct {
        uint32_t slots, device_pages;
    } cases[] = {{1, 1000}, {4, 1000}, {4, 60}};
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct fixture f;
        fixture_init(&f);
        f.engine.limits.context_max = 1 << 20;
        f.engine.limits.budget = (struct kva_tier_bytes){
            .device = (uint64_t)cases[i].device_pages << 16, .host = 80ull << 16};
        f.scheduling.running_max = cases[i].slots;
        fixture_begin(&f);
        for (uint64_t tenant = 1; tenant <= 2; tenant++) {
            struct request_spec spec = endless(tenant * 1000, tenant);
            spec.output_tokens_max = 3000; /* 49 pages of the host with its prompt */
            submit(&f, &spec);
        }
        fixture_steps(&f, 2000); /* each of them has work */
        assert_int_equal(tracker_choice(&f.tracker, 2000, 0)->tokens, 0);
        fixture_run(&f);
        for (uint64_t tenant = 1; tenant <= 2; tenant++)
            assert_int_equal(tracker_choice(&f.tracker, tenant * 1000, 0)->tokens, 3000);
        assert_int_equal(fixture_stats(&f).preemptions, 0);
        fixture_end(&f);
    }
}

static void test_tenant__may_be_bound_to_so_many(void **state KVA_UNUSED)
{
    struct fixture f;
    begin(&f, SLOTS);
    struct request_spec spec;
    for (uint32_t i = 0; i < 20; i++) {
        spec = endless(1000 + i, 1);
        spec.tenant_running_max = 3;
        submit(&f, &spec);
    }
    fixture_steps(&f, 30);
    assert_int_equal(running(&f, 1), 3);
    assert_int_equal(fixture_stats(&f).waiting_by_reason[KVA_WAIT_TENANT], 17);
    for (uint32_t i = 0; i < 40; i++) {
        spec = endless(2000 + i, 2);
        submit(&f, &spec);
    }
    fixture_steps(&f, 60);
    assert_int_equal(running(&f, 1), 3);
    assert_int_equal(running(&f, 2), SLOTS - 3);
    finish(&f);
}

/* The prompts of a batch behind its first wait as long as it takes. */
static void test_tenant__patient_requests_wait(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.scheduling.running_max = 1;
    f.scheduling.waiting_time_ns = 50 * KVA_NS_PER_MS;
    fixture_begin(&f);
    for (uint32_t i = 0; i < 3; i++) {
        struct request_spec spec = tracker_spec(1000 + i);
        spec.output_tokens_max = i == 0 ? 200 : 5;
        spec.patient = i == 2;
        submit(&f, &spec);
        fixture_step(&f);
    }
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 1001, 0)->end.end.status, KVA_EQUEUETIME);
    assert_int_equal(tracker_choice(&f.tracker, 1002, 0)->end.end.reason, KVA_FINISH_LENGTH);
    assert_int_equal(fixture_stats(&f).rejected_queue_time, 1);
    fixture_end(&f);
}

/* A priority orders what is its tenant's own. */
static void test_tenant__priorities_order_a_tenants_own(void **state KVA_UNUSED)
{
    struct fixture f;
    begin(&f, 4);
    struct request_spec spec;
    for (uint32_t i = 0; i < 20; i++) {
        spec = endless(1000 + i, 1);
        submit(&f, &spec);
        spec = endless(2000 + i, 2);
        spec.priority = i == 19 ? -50 : -20;
        submit(&f, &spec);
    }
    fixture_steps(&f, 20);
    assert_int_equal(running(&f, 1), 2);
    assert_int_equal(running(&f, 2), 2);
    assert_string_equal(fixture_view(&f, 2019, 0).state, "decode");
    assert_string_equal(fixture_view(&f, 1000, 0).state, "decode");
    finish(&f);
}

/* Long prompts of one tenant leave places and tokens to those of another. */
static void test_tenant__prompts_share_places_and_tokens(void **state KVA_UNUSED)
{
    struct fixture f;
    begin(&f, SLOTS);
    struct request_spec spec;
    for (uint32_t i = 0; i < 10; i++) {
        spec = endless(1000 + i, 1);
        spec.prompt_tokens = 200000;
        submit(&f, &spec);
    }
    fixture_steps(&f, 20);
    spec = endless(2000, 2);
    spec.prompt_tokens = 2560;
    submit(&f, &spec);
    /* Half of 512 tokens a step. */
    assert_true(steps_to_first(&f, 2000, 100) <= 2560 / 256 + 2);
    spec = endless(3000, 3);
    spec.prompt_tokens = 40;
    submit(&f, &spec);
    assert_true(steps_to_first(&f, 3000, 100) <= 2);
    finish(&f);
}

/* Memory that others hold beyond their share is given up too. */
static void test_tenant__memory_is_shared(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.sequences_max = 2 * SLOTS;
    f.engine.limits.budget.device = 128ull << 16; /* pages of 64 tokens */
    f.scheduling.waiting_max = 4000;
    f.scheduling.running_max = SLOTS;
    fixture_begin(&f);
    struct request_spec spec;
    for (uint32_t i = 0; i < 40; i++) {
        spec = endless(1000 + i, 1);
        spec.output_tokens_max = 4000;
        submit(&f, &spec);
    }
    fixture_steps(&f, 600);
    assert_true(fixture_stats(&f).preemptions > 0);
    spec = endless(2000, 2);
    spec.prompt_tokens = 1000; /* 16 pages */
    spec.output_tokens_max = 500;
    submit(&f, &spec);
    assert_true(steps_to_first(&f, 2000, 100) <= 8);
    /* It ends in about as many steps as it has tokens. */
    uint32_t steps = 0;
    while (!tracker_choice(&f.tracker, 2000, 0)->ended && steps < 2000) {
        fixture_step(&f);
        steps++;
    }
    assert_true(steps < 700);
    finish(&f);
}

/* What one's choices share is free when none of them is left, and counts once: before that nobody gives
 * way for nothing, and after that somebody does. */
static void test_tenant__what_is_shared_is_given_up_once(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 100ull << 16;
    fixture_begin(&f);
    for (uint32_t i = 0; i < 8; i++) {
        struct request_spec spec = endless(1000 + i, 1);
        spec.prompt_tokens = 60 * 64 + 1;
        spec.prefix_tokens = 60 * 64;
        spec.output_tokens_max = 2000;
        submit(&f, &spec);
        fixture_steps(&f, 20);
    }
    assert_int_equal(running(&f, 1), 8);
    struct request_spec spec = endless(2000, 2);
    spec.prompt_tokens = 40 * 64;
    spec.output_tokens_max = 64;
    submit(&f, &spec);
    uint32_t steps = 0, least = 8;
    while (strcmp(fixture_view(&f, 2000, 0).state, "waiting") == 0) {
        fixture_step(&f);
        if (strcmp(fixture_view(&f, 2000, 0).state, "waiting") == 0)
            least = kva_min_u32(least, running(&f, 1));
        assert_true(++steps < 300);
    }
    assert_true(least >= 5);
    assert_int_equal(running(&f, 1), 0);
    fixture_run(&f);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tenant__a_thousand_choices_hold_nobody_up),
        cmocka_unit_test(test_tenant__what_ends_is_everybodys),
        cmocka_unit_test(test_tenant__shares_are_by_weight_in_any_order),
        cmocka_unit_test(test_tenant__one_slot_is_shared_over_time),
        cmocka_unit_test(test_tenant__nobody_saves_up),
        cmocka_unit_test(test_tenant__nobody_gives_way_for_the_hosts_memory),
        cmocka_unit_test(test_tenant__may_be_bound_to_so_many),
        cmocka_unit_test(test_tenant__patient_requests_wait),
        cmocka_unit_test(test_tenant__priorities_order_a_tenants_own),
        cmocka_unit_test(test_tenant__prompts_share_places_and_tokens),
        cmocka_unit_test(test_tenant__memory_is_shared),
        cmocka_unit_test(test_tenant__what_is_shared_is_given_up_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
