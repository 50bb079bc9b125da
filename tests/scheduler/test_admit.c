#include "tests/scheduler/fixture.h"

#include <string.h>

/* When the choice got its memory; 0: not yet. */
static uint64_t admitted_ns(const struct fixture *f, uint64_t id, uint32_t choice)
{
    const struct tracked_choice *tracked = tracker_choice(&f->tracker, id, choice);
    assert_true(tracked->ended);
    return tracked->end.end.times.admitted_ns;
}

static void submit_one(struct fixture *f, uint64_t id, int32_t priority, uint64_t submitted_ns)
{
    struct request_spec spec = tracker_spec(id);
    spec.priority = priority;
    spec.submitted_ns = submitted_ns;
    assert_int_equal(fixture_submit(f, &spec), KVA_OK);
}

static void begin_one_at_a_time(struct fixture *f, uint64_t aging_ns)
{
    fixture_init(f);
    f->scheduling.running_max = 1;
    f->scheduling.aging_ns = aging_ns;
    fixture_begin(f);
}

static void test_admit__goes_by_priority_then_arrival(void **state KVA_UNUSED)
{
    struct fixture f;
    begin_one_at_a_time(&f, 3600 * KVA_NS_PER_S);
    uint64_t now_ns = f.clock.now_ns;
    submit_one(&f, 1, 0, now_ns);
    submit_one(&f, 2, 5, now_ns + 1);
    submit_one(&f, 3, -5, now_ns + 2);
    submit_one(&f, 4, 0, now_ns + 3);
    submit_one(&f, 5, 0, now_ns + 3);
    fixture_run(&f);
    assert_true(admitted_ns(&f, 3, 0) < admitted_ns(&f, 1, 0));
    assert_true(admitted_ns(&f, 1, 0) < admitted_ns(&f, 4, 0));
    assert_true(admitted_ns(&f, 4, 0) < admitted_ns(&f, 5, 0));
    assert_true(admitted_ns(&f, 5, 0) < admitted_ns(&f, 2, 0));
    fixture_end(&f);
}

static void test_admit__ages_priorities(void **state KVA_UNUSED)
{
    /* Five levels apart and six seconds, at a second per level: the old one is first. */
    struct fixture f;
    begin_one_at_a_time(&f, KVA_NS_PER_S);
    uint64_t now_ns = f.clock.now_ns;
    submit_one(&f, 1, 0, now_ns);
    submit_one(&f, 2, 5, now_ns - 6 * KVA_NS_PER_S);
    fixture_run(&f);
    assert_true(admitted_ns(&f, 2, 0) < admitted_ns(&f, 1, 0));
    fixture_end(&f);

    /* Without aging priorities are strict, however long it takes. */
    begin_one_at_a_time(&f, 0);
    submit_one(&f, 1, 0, now_ns);
    submit_one(&f, 2, 5, now_ns - 600 * KVA_NS_PER_S);
    fixture_run(&f);
    assert_true(admitted_ns(&f, 1, 0) < admitted_ns(&f, 2, 0));
    fixture_end(&f);

    /* Extremes do not wrap around. */
    begin_one_at_a_time(&f, 3600 * KVA_NS_PER_S);
    submit_one(&f, 1, INT32_MAX, now_ns);
    submit_one(&f, 2, INT32_MIN, now_ns);
    fixture_run(&f);
    assert_true(admitted_ns(&f, 2, 0) < admitted_ns(&f, 1, 0));
    fixture_end(&f);
}

/* Small requests slip past one that does not fit, but not for ever. */
static void test_admit__bounds_how_often_a_large_request_is_passed(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 60 << 16;
    f.scheduling.aging_ns = 0; /* the order is arrival only */
    fixture_begin(&f);
    uint64_t next = 10, passed = 0;
    struct request_spec spec;
    for (uint32_t i = 0; i < 4; i++) {
        spec = tracker_spec(next++);
        spec.output_tokens_max = 40 + 17 * i;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_steps(&f, 3);
    spec = tracker_spec(1);
    spec.prompt_tokens = 50 * 64;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    for (;;) {
        /* A steady supply: a new one for each that ends. */
        while (fixture_stats(&f).waiting < 5) {
            spec = tracker_spec(next++);
            spec.output_tokens_max = 40 + (uint32_t)next % 50;
            assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
        }
        uint32_t running = fixture_stats(&f).running;
        fixture_step(&f);
        if (strcmp(fixture_view(&f, 1, 0).state, "waiting") != 0)
            break;
        passed += fixture_stats(&f).running > running;
        assert_true(fixture_report(&f).steps < 3000);
    }
    assert_true(passed > 5); /* they do slip past ... */
    assert_true(next < 10 + 4 + 32 + 16);
    while (f.tracker.live > 0)
        fixture_run(&f);
    fixture_end(&f);
}

static void test_admit__siblings_wait_for_the_leaders_prompt(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.prompt_tokens = 1300;
    spec.choices = 4;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    assert_int_equal(fixture_stats(&f).waiting_by_reason[KVA_WAIT_SIBLING], 3);
    fixture_steps(&f, 2);
    assert_int_equal(fixture_stats(&f).running, 1);
    assert_int_equal(fixture_stats(&f).waiting_by_reason[KVA_WAIT_SIBLING], 3);
    fixture_steps(&f, 2);
    assert_int_equal(fixture_stats(&f).running, 4);
    /* 20 of 21 pages come from the cache. */
    assert_int_equal(fixture_stats(&f).prompt_tokens_cached, 3 * 20 * 64);
    assert_int_equal(fixture_stats(&f).prompt_tokens_computed, 1300 + 3 * 20);
    fixture_run(&f);
    fixture_end(&f);
}

static void test_admit__a_sibling_takes_over_from_a_leader_that_is_gone(void **state KVA_UNUSED)
{
    for (uint32_t steps = 0; steps < 3; steps++) {
        struct fixture f;
        fixture_init(&f);
        fixture_begin(&f);
        struct request_spec spec = tracker_spec(1);
        spec.prompt_tokens = 1300;
        spec.choices = 3;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
        fixture_steps(&f, steps);
        tracker_cancels(&f.tracker, 1, 0, KVA_FINISH_CANCELLED);
        kva_scheduler_cancel(f.scheduler, 1, 0, KVA_FINISH_CANCELLED);
        assert_int_equal(fixture_stats(&f).waiting_by_reason[KVA_WAIT_SIBLING], 1);
        fixture_run(&f);
        assert_int_equal(tracker_choice(&f.tracker, 1, 1)->tokens, 10);
        assert_int_equal(tracker_choice(&f.tracker, 1, 2)->tokens, 10);
        fixture_end(&f);
    }
}

static void test_admit__siblings_do_not_wait_without_a_cache(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.choices = 4;
    spec.cache_disabled = true;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    fixture_step(&f);
    assert_int_equal(fixture_stats(&f).running, 4);
    fixture_run(&f);
    assert_int_equal(fixture_stats(&f).prompt_tokens_cached, 0);
    fixture_end(&f);
}

static void test_admit__says_why_choices_wait(void **state KVA_UNUSED)
{
    static const enum kva_wait_reason reasons[] = {KVA_WAIT_BATCH_FULL, KVA_WAIT_DEVICE_BYTES,
                                                   KVA_WAIT_HOST_BYTES, KVA_WAIT_PREFILL};
    for (uint32_t i = 0; i < KVA_COUNT_OF(reasons); i++) {
        struct fixture f;
        fixture_init(&f);
        if (reasons[i] == KVA_WAIT_BATCH_FULL)
            f.scheduling.running_max = 2;
        if (reasons[i] == KVA_WAIT_DEVICE_BYTES)
            f.engine.limits.budget.device = 60 << 16;
        if (reasons[i] == KVA_WAIT_HOST_BYTES)
            f.engine.limits.budget.host = 60 << 16;
        fixture_begin(&f);
        for (uint64_t id = 1; id <= 4; id++) {
            struct request_spec spec = tracker_spec(id);
            spec.prompt_tokens = reasons[i] == KVA_WAIT_PREFILL ? 3000 : 1500;
            assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
        }
        uint32_t rounds = 0;
        while (fixture_stats(&f).running < 2) {
            fixture_step(&f);
            assert_true(++rounds < 20);
        }
        fixture_step(&f);
        assert_int_equal(fixture_stats(&f).waiting, 2);
        /* A long prompt waits for its turn to prefill before memory is looked at. */
        while (reasons[i] != KVA_WAIT_PREFILL &&
               fixture_stats(&f).waiting_by_reason[KVA_WAIT_PREFILL] > 0)
            fixture_step(&f);
        assert_int_equal(fixture_stats(&f).waiting_by_reason[reasons[i]], 2);
        fixture_run(&f);
        fixture_end(&f);
    }
}

static void test_admit__keeps_a_page_per_running_sequence_free(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 100 << 16;
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 60; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.output_tokens_max = 90; /* two pages and a bit: within what the watermark foresees */
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_steps(&f, 12);
    struct kva_scheduler_stats stats = fixture_stats(&f);
    assert_true(stats.running > 15);
    assert_true(stats.waiting > 0);
    uint64_t free_pages =
        (stats.engine.budget.device - stats.engine.used.device + stats.engine.cached.device) >> 16;
    assert_true(free_pages + 1 >= stats.running);
    fixture_run(&f);
    assert_int_equal(fixture_stats(&f).preemptions, 0);
    fixture_end(&f);
}

/* One place for partial prefills, and request 1, which will have it. */
static struct request_spec begin_with_long(struct fixture *f)
{
    struct request_spec spec = tracker_spec(1);
    fixture_init(f);
    f->engine.limits.partial_prefills_max = 1;
    fixture_begin(f);
    spec.prompt_tokens = 5000;
    assert_int_equal(fixture_submit(f, &spec), KVA_OK);
    return spec;
}

static void test_admit__bounds_partial_prefills_and_lets_short_prompts_in(void **state KVA_UNUSED)
{
    struct fixture f;
    struct request_spec spec = begin_with_long(&f);
    spec.id = 2;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    spec = tracker_spec(3);
    spec.prompt_tokens = 50;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    fixture_steps(&f, 2);
    assert_string_equal(fixture_view(&f, 1, 0).state, "prefill");
    assert_string_equal(fixture_view(&f, 2, 0).state, "waiting");
    assert_true(tracker_choice(&f.tracker, 3, 0)->tokens > 0);
    fixture_run(&f);
    fixture_end(&f);
}

/* Short prompts pass long ones that wait to prefill, however often and however many those are. */
static void test_admit__short_prompts_pass_long_ones_without_end(void **state KVA_UNUSED)
{
    enum { LONG = 20, SHORT = 150 };
    struct fixture f;
    fixture_init(&f);
    f.scheduling.running_max = 16;
    fixture_begin(&f);
    struct request_spec spec;
    uint64_t next = 1;
    while (next <= LONG) {
        spec = tracker_spec(next++);
        spec.prompt_tokens = 8000;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_step(&f);
    uint32_t passed = 0;
    for (uint32_t i = 0; i < SHORT; i++) {
        spec = tracker_spec(next);
        spec.prompt_tokens = 20;
        spec.output_tokens_max = 2;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
        fixture_steps(&f, 3); /* two, and one in which a long one begins */
        assert_true(tracker_choice(&f.tracker, next++, 0)->ended);
        /* The last long one waits all the while. */
        passed += strcmp(fixture_view(&f, LONG, 0).state, "waiting") == 0;
    }
    assert_true(passed > 3 * KVA_BYPASS_MAX);
    /* They go on nevertheless, in their order, and take nothing from one another. */
    fixture_run(&f);
    for (uint64_t id = 2; id <= LONG; id++)
        assert_true(admitted_ns(&f, id - 1, 0) <= admitted_ns(&f, id, 0));
    fixture_end(&f);
}

/* What the cache has of a prompt does not make it long: it takes no place, and needs none. Whether it
 * is so is seen in time where the cache comes to have it while the prompt waits. */
static void test_admit__cached_tokens_do_not_make_a_prompt_long(void **state KVA_UNUSED)
{
    struct fixture f;
    struct request_spec spec = begin_with_long(&f);
    fixture_step(&f);
    for (uint64_t id = 2; id <= 5; id++) {
        spec = tracker_spec(id);
        spec.prompt_tokens = 640 + 20;
        spec.prefix_tokens = 640;
        spec.prefix_seed = id == 5 ? 1 : 0;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_step(&f);
    for (uint64_t id = 2; id <= 5; id++)
        assert_string_equal(fixture_view(&f, id, 0).state, "waiting");
    while (tracker_choice(&f.tracker, 2, 0)->tokens == 0)
        fixture_step(&f);
    /* Another long one has the place now. */
    spec = tracker_spec(6);
    spec.prompt_tokens = 8000;
    spec.priority = -10;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    fixture_steps(&f, 17);
    assert_string_equal(fixture_view(&f, 6, 0).state, "prefill");
    spec = tracker_spec(7);
    spec.prompt_tokens = 640 + 30;
    spec.prefix_tokens = 640;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    fixture_step(&f);
    for (uint64_t id = 3; id <= 7; id++)
        assert_true((tracker_choice(&f.tracker, id, 0)->tokens > 0) == (id != 5 && id != 6));
    assert_string_equal(fixture_view(&f, 5, 0).state, "waiting");
    assert_string_equal(fixture_view(&f, 6, 0).state, "prefill");
    fixture_run(&f);
    fixture_end(&f);
}

/* Also where that part of a step is small: while somebody streams, a long prompt leaves room for those
 * of others to begin. */
static void test_admit__a_small_step_begins_prompts_beside_a_long_one(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.scheduling.step_tokens_max = 256; /* prompts have 128 of them, the long one leaves 32 */
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.output_tokens_max = 500;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    fixture_steps(&f, 2);
    spec = tracker_spec(2);
    spec.tenant = 1;
    spec.prompt_tokens = 6000;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    fixture_steps(&f, 2);
    for (uint64_t id = 3; id <= 6; id++) {
        spec = tracker_spec(id);
        spec.tenant = 2;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
        fixture_step(&f);
        assert_string_equal(fixture_view(&f, id, 0).state, "prefill");
        fixture_steps(&f, 2);
        assert_true(tracker_choice(&f.tracker, id, 0)->tokens > 0);
        assert_string_equal(fixture_view(&f, 2, 0).state, "prefill");
    }
    fixture_run(&f);
    fixture_end(&f);
}

/* However many long ones their owners have, the short ones of others get in. */
static void test_admit__many_long_prompts_hide_no_other_tenant(void **state KVA_UNUSED)
{
    enum { TENANTS = 6, LONG = 20 };
    struct fixture f;
    fixture_init(&f);
    f.scheduling.waiting_max = 2 * TENANTS * LONG;
    fixture_begin(&f);
    struct request_spec spec;
    uint64_t next = 1;
    for (uint32_t i = 0; i < TENANTS * LONG; i++) {
        spec = tracker_spec(next++);
        spec.tenant = 1 + i % TENANTS;
        spec.prompt_tokens = 8000;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    /* With some that run, its next slot is dearer than those of the others. */
    for (uint32_t i = 0; i < 6; i++) {
        spec = tracker_spec(next++);
        spec.tenant = TENANTS + 1;
        spec.prompt_tokens = 20;
        spec.output_tokens_max = 500;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_steps(&f, 3);
    spec = tracker_spec(next);
    spec.tenant = TENANTS + 1;
    spec.prompt_tokens = 20;
    spec.output_tokens_max = 2;
    for (uint32_t i = 0; i < 3; i++, spec.id = ++next) {
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
        fixture_steps(&f, 3);
        assert_true(tracker_choice(&f.tracker, next, 0)->ended);
    }
    fixture_run(&f);
    fixture_end(&f);
}

/* A long prompt for which there is no memory either is passed only so often, also while another one
 * has the place that it would prefill in. */
static void test_admit__a_long_prompt_without_memory_is_not_forgotten(void **state KVA_UNUSED)
{
    enum { SHORT = 80 };
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.partial_prefills_max = 1;
    f.engine.limits.budget.device = 440 << 16;
    f.engine.limits.context_max = 16384;
    f.scheduling.running_max = 64;
    f.scheduling.aging_ns = 0;
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.prompt_tokens = 200 * 64;
    spec.output_tokens_max = 200;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    while (strcmp(fixture_view(&f, 1, 0).state, "decode") != 0)
        fixture_step(&f);
    for (uint64_t id = 2; id <= 3; id++) {
        spec = tracker_spec(id);
        spec.prompt_tokens = id == 2 ? 250 * 64 : 40 * 64;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_step(&f);
    assert_string_equal(fixture_view(&f, 2, 0).state, "waiting");
    assert_string_equal(fixture_view(&f, 3, 0).state, "prefill");
    for (uint64_t id = 10; id < 10 + SHORT; id++) {
        spec = tracker_spec(id);
        spec.output_tokens_max = 200;
        spec.prompt_tokens = 10;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    while (strcmp(fixture_view(&f, 3, 0).state, "prefill") == 0)
        fixture_step(&f);
    /* A few more, of the step in which the limit was reached. */
    uint32_t passed = 1 + SHORT - fixture_stats(&f).waiting;
    assert_true(passed >= KVA_BYPASS_MAX - 1 && passed < KVA_BYPASS_MAX + 8);
    fixture_run(&f);
    fixture_end(&f);
}

static void test_admit__ends_what_can_never_be_admitted(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.admit_refused_every = 1;
    fixture_begin(&f);
    f.tracker.expect_errors = true;
    struct request_spec spec = tracker_spec(1);
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    uint64_t begin_ns = f.clock.now_ns;
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->end.end.status, KVA_ELIMIT);
    assert_true(f.clock.now_ns - begin_ns >= KVA_NS_PER_S);
    fixture_end(&f);
}

static void test_admit__suspended_choices_come_before_waiting_ones(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 14 << 16;
    fixture_begin(&f);
    struct request_spec spec;
    for (uint64_t id = 1; id <= 3; id++) {
        spec = tracker_spec(id);
        spec.prompt_tokens = 60;
        spec.output_tokens_max = 500;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    while (fixture_stats(&f).suspended == 0)
        fixture_step(&f);
    submit_one(&f, 10, 0, f.clock.now_ns);
    while (fixture_stats(&f).suspended > 0) {
        assert_string_equal(fixture_view(&f, 10, 0).state, "waiting");
        fixture_step(&f);
    }
    fixture_run(&f);
    fixture_end(&f);
}

/* What others hold of it costs nothing: a preempted one goes on as soon as there is room for the rest,
 * while those run that share its beginning. */
static void test_admit__resuming_takes_nothing_for_what_is_shared(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 120 << 16; /* 70 of them for the beginning, once */
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 5; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = 70 * 64 + 1;
        spec.prefix_tokens = 70 * 64;
        spec.output_tokens_max = id == 1 ? 1500 : 1000;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
        while (strcmp(fixture_view(&f, id, 0).state, "decode") != 0)
            fixture_step(&f);
    }
    while (fixture_stats(&f).suspended < 2)
        fixture_step(&f);
    assert_string_equal(fixture_view(&f, 4, 0).state, "suspended");
    assert_string_equal(fixture_view(&f, 5, 0).state, "suspended");
    while (!tracker_choice(&f.tracker, 3, 0)->ended)
        fixture_step(&f);
    fixture_steps(&f, 2);
    assert_string_equal(fixture_view(&f, 1, 0).state, "decode");
    assert_string_equal(fixture_view(&f, 4, 0).state, "decode");
    assert_string_equal(fixture_view(&f, 5, 0).state, "decode");
    fixture_run(&f);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admit__goes_by_priority_then_arrival),
        cmocka_unit_test(test_admit__ages_priorities),
        cmocka_unit_test(test_admit__bounds_how_often_a_large_request_is_passed),
        cmocka_unit_test(test_admit__siblings_wait_for_the_leaders_prompt),
        cmocka_unit_test(test_admit__a_sibling_takes_over_from_a_leader_that_is_gone),
        cmocka_unit_test(test_admit__siblings_do_not_wait_without_a_cache),
        cmocka_unit_test(test_admit__says_why_choices_wait),
        cmocka_unit_test(test_admit__keeps_a_page_per_running_sequence_free),
        cmocka_unit_test(test_admit__bounds_partial_prefills_and_lets_short_prompts_in),
        cmocka_unit_test(test_admit__short_prompts_pass_long_ones_without_end),
        cmocka_unit_test(test_admit__cached_tokens_do_not_make_a_prompt_long),
        cmocka_unit_test(test_admit__a_small_step_begins_prompts_beside_a_long_one),
        cmocka_unit_test(test_admit__many_long_prompts_hide_no_other_tenant),
        cmocka_unit_test(test_admit__a_long_prompt_without_memory_is_not_forgotten),
        cmocka_unit_test(test_admit__ends_what_can_never_be_admitted),
        cmocka_unit_test(test_admit__suspended_choices_come_before_waiting_ones),
        cmocka_unit_test(test_admit__resuming_takes_nothing_for_what_is_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
