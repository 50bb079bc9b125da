/* Memory runs out at every allocation of the scheduler and the service; and a step makes none. */
#include "tests/alloc_guard.h"
#include "tests/scheduler/fixture.h"

#include "scheduler/outbox.h"
#include "scheduler/service.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static void test_allocation__scheduler_create_fails_cleanly(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    enum kva_status status = KVA_ENOMEM;
    uint64_t count = 0;
    for (; status != KVA_OK; count++) {
        struct kva_scheduler *scheduler = NULL;
        struct kva_err err = {.message = ""};
        alloc_guard_fail_from(count);
        status = kva_scheduler_create(&f.scheduling, &scheduler, &err);
        alloc_guard_fail_none();
        assert_true(status == KVA_OK || (status == KVA_ENOMEM && !scheduler && err.message[0]));
        kva_scheduler_destroy(scheduler);
    }
    assert_true(count > 5);
    fixture_end(&f);
}

static void test_allocation__submit_fails_cleanly(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.choices = 3;
    spec.prompt_logprobs = 2;
    struct kva_request *request = tracker_request(&f.tracker, &spec);
    enum kva_status status = KVA_ENOMEM;
    uint64_t count = 0;
    for (; status != KVA_OK; count++) {
        alloc_guard_fail_from(count);
        status = kva_scheduler_submit(f.scheduler, request, NULL);
        alloc_guard_fail_none();
        assert_true(status == KVA_OK || status == KVA_ENOMEM);
        assert_int_equal(fixture_report(&f).live_sequences, status == KVA_OK ? 3 : 0);
        assert_int_equal(fixture_stats(&f).waiting, status == KVA_OK ? 3 : 0);
    }
    assert_true(count > 5);
    tracker_accept(&f.tracker, 1);
    fixture_run(&f);
    fixture_end(&f);
    alloc_guard_fail_from(0);
    assert_null(kva_request_create(1 << 20));
    alloc_guard_fail_none();
    assert_null(kva_request_create(16)); /* over its own limit */
    kva_request_destroy(NULL);
}

/* Admission, preemption, decoding and the ends of requests: memory is only given back. */
static void test_allocation__a_step_allocates_nothing(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 40 << 16;
    f.engine.prefix_cache = false; /* the scripted cache allocates its pages */
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 30; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = 30 * (uint32_t)id;
        spec.output_tokens_max = 300;
        spec.choices = 1 + (uint32_t)id % 3;
        spec.deadline_ns = id % 7 == 0 ? f.clock.now_ns + 100 * KVA_NS_PER_MS : 0;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    alloc_guard_arm();
    fixture_run(&f);
    assert_int_equal(alloc_guard_disarm(), 0);
    assert_true(fixture_stats(&f).preemptions > 0);
    fixture_end(&f);
}

/* --- the service ---------------------------------------------------------------------------- */

static void no_wake(void *opaque KVA_UNUSED)
{
}

static void service_params(struct fixture *f, struct kva_service_params *ret)
{
    fixture_init(f);
    f->scripted = kva_scripted_create(&f->engine);
    tracker_init(&f->tracker, f->engine.vocab);
    f->scheduling.engine = kva_scripted_engine(f->scripted);
    f->scheduling.clock = kva_clock_real();
    *ret = (struct kva_service_params){.scheduler = f->scheduling, .wake = no_wake};
}

static void test_allocation__service_start_and_submit_fail_cleanly(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_service_params params;
    service_params(&f, &params);
    struct kva_service *service = NULL;
    enum kva_status status = KVA_ENOMEM;
    uint64_t count = 0;
    for (; status != KVA_OK; count++) {
        alloc_guard_fail_from(count);
        status = kva_service_start(&params, &service, NULL);
        alloc_guard_fail_none();
        assert_true(status == KVA_OK || (status == KVA_ENOMEM && !service));
    }
    assert_true(count > 8);

    /* The engine thread rests: these allocations are the caller's. */
    struct kva_request *requests[2];
    for (uint64_t i = 0; i < 2; i++) {
        struct request_spec spec = tracker_spec(i + 1);
        requests[i] = tracker_request(&f.tracker, &spec);
    }
    for (count = 0; count < 7; count++) {
        alloc_guard_fail_from(count);
        status = kva_service_submit(service, requests, 2, NULL);
        alloc_guard_fail_none();
        assert_int_equal(status, KVA_ENOMEM);
        assert_true(kva_service_idle(service));
    }
    tracker_accept(&f.tracker, 1);
    tracker_accept(&f.tracker, 2);
    assert_int_equal(kva_service_submit(service, requests, 2, NULL), KVA_OK);
    while (!kva_service_idle(service))
        if (kva_service_poll(service, tracker_output, &f.tracker) == 0)
            sched_yield();
    assert_int_equal(f.tracker.by_reason[KVA_FINISH_LENGTH], 2);
    kva_service_stop(service);
    f.scheduler = NULL;
    fixture_end(&f);
}

/* Memory runs out while requests run: their streams end with an error, never without an END. */
static atomic_bool ran_out;

static uint32_t failing_token(void *opaque, const struct kva_sequence_params *params,
                              uint32_t index)
{
    if (index == 4) {
        alloc_guard_fail_from(0);
        atomic_store(&ran_out, true);
    }
    const struct fixture *f = opaque;
    return kva_scripted_token(kva_scripted_hash(params->prompt, params->prompt_tokens),
                              params->sampling, params->choice, index, f->engine.vocab);
}

static void test_allocation__no_end_is_lost_when_memory_runs_out(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_service_params params;
    service_params(&f, &params);
    kva_scripted_params(f.scripted)->next_token = failing_token;
    kva_scripted_params(f.scripted)->next_token_opaque = &f;
    f.tracker.expect_errors = true;
    struct kva_service *service = NULL;
    assert_int_equal(kva_service_start(&params, &service, NULL), KVA_OK);
    struct kva_request *requests[10];
    for (uint64_t i = 0; i < 10; i++) {
        struct request_spec spec = tracker_spec(i + 1);
        spec.output_tokens_max = 4000;
        spec.logprobs = 20;
        spec.prompt_tokens = 20; /* all of them start in one step */
        spec.choices = 1 + (i % 2);
        requests[i] = tracker_request(&f.tracker, &spec);
        tracker_accept(&f.tracker, i + 1);
    }
    assert_int_equal(kva_service_submit(service, requests, 10, NULL), KVA_OK);
    while (!atomic_load(&ran_out))
        sched_yield(); /* nothing is polled until then: no block is free */
    while (!kva_service_idle(service))
        if (kva_service_poll(service, tracker_output, &f.tracker) == 0)
            sched_yield();
    alloc_guard_fail_none();
    assert_int_equal(f.tracker.ends, 15);
    assert_true(f.tracker.by_reason[KVA_FINISH_ERROR] > 0);
    for (uint64_t i = 0; i < 10; i++) {
        const struct kva_output *end = &tracker_choice(&f.tracker, i + 1, 0)->end;
        if (end->end.reason == KVA_FINISH_ERROR)
            assert_int_equal(end->end.status, KVA_ENOMEM);
    }
    printf("%llu of 15 choices ended for want of memory\n",
           (unsigned long long)f.tracker.by_reason[KVA_FINISH_ERROR]);
    kva_service_stop(service);
    f.scheduler = NULL;
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocation__scheduler_create_fails_cleanly),
        cmocka_unit_test(test_allocation__submit_fails_cleanly),
        cmocka_unit_test(test_allocation__a_step_allocates_nothing),
        cmocka_unit_test(test_allocation__service_start_and_submit_fail_cleanly),
        cmocka_unit_test(test_allocation__no_end_is_lost_when_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
