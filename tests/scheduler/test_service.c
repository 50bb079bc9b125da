/* The service: threads, ordering, refusals, pauses. Meant for TSan, too. */
#include "tests/scheduler/service_fixture.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* --- tests ---------------------------------------------------------------------------------- */

static void test_service__delivers_every_output_in_order(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    setup_begin(&s);
    for (uint64_t id = 1; id <= 60; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = 1 + (uint32_t)id * 20;
        spec.output_tokens_max = 1 + (uint32_t)id % 50;
        spec.choices = 1 + (uint32_t)id % 3 / 2;
        spec.logprobs = (int32_t)(id % 22) - 1;
        spec.prompt_logprobs = id % 5 == 0 ? (int32_t)(id % 21) : -1;
        assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    }
    setup_run_to_end(&s);
    assert_int_equal(s.tracker.by_reason[KVA_FINISH_LENGTH], s.tracker.ends);
    assert_true(kva_service_idle(s.service));
    struct kva_scheduler_stats stats;
    kva_service_get_stats(s.service, &stats);
    assert_int_equal(stats.output_tokens, s.tracker.tokens);
    /* At most one wake-up per step, and one for the ENDs of commands. */
    assert_true(s.wakes <= stats.steps + 60);
    setup_end(&s);
}

static void test_service__refuses_at_once_and_names_both_numbers(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    s.params.scheduler.running_max = 1;
    s.params.scheduler.waiting_max = 3;
    setup_begin(&s);
    gate_set(&s, true);
    struct request_spec spec = tracker_spec(1);
    assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    gate_wait_held(&s);
    /* Request 1 runs, as far as the service can know; the engine does not move. */
    struct kva_err err;
    uint32_t taken = 0;
    enum kva_status status = KVA_OK;
    for (uint64_t id = 2; id < 10 && status == KVA_OK; id++) {
        spec = tracker_spec(id);
        status = setup_submit(&s, &spec, &err);
        taken += status == KVA_OK;
    }
    assert_int_equal(status, KVA_EBUSY);
    assert_true(taken == 2 || taken == 3); /* whether the step's start was published or not */
    assert_non_null(strstr(err.message, "3 choices wait and 1 more"));
    assert_non_null(strstr(err.message, "limit is 3"));

    spec = tracker_spec(100);
    spec.prompt_tokens = 8000;
    spec.output_tokens_max = 1000;
    assert_int_equal(setup_submit(&s, &spec, &err), KVA_ECONTEXT);
    assert_non_null(strstr(err.message, "9000"));
    assert_non_null(strstr(err.message, "8192"));

    gate_set(&s, false);
    setup_run_to_end(&s);
    struct kva_scheduler_stats stats;
    kva_service_get_stats(s.service, &stats);
    assert_int_equal(stats.rejected_queue_full, 1);
    setup_end(&s);
}

static void test_service__refuses_what_can_never_fit(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    s.engine.limits.budget.device = 10 << 16;
    setup_begin(&s);
    struct request_spec spec = tracker_spec(1);
    spec.prompt_tokens = 2000;
    struct kva_err err;
    assert_int_equal(setup_submit(&s, &spec, &err), KVA_ELIMIT);
    assert_non_null(strstr(err.message, "655360")); /* the budget */
    struct kva_scheduler_stats stats;
    kva_service_get_stats(s.service, &stats);
    assert_int_equal(stats.rejected_budget, 1);
    assert_true(kva_service_idle(s.service));
    setup_end(&s);

    /* An engine that cannot say so beforehand: the request ends with the error. */
    setup_init(&s);
    s.engine.limits.budget.device = 10 << 16;
    s.engine.without_check = true;
    setup_begin(&s);
    s.tracker.expect_errors = true;
    spec.choices = 3;
    assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    setup_run_to_end(&s);
    assert_int_equal(tracker_choice(&s.tracker, 1, 2)->end.end.status, KVA_ELIMIT);
    setup_end(&s);
}

static void test_service__takes_a_batch_whole_or_not_at_all(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    s.params.scheduler.waiting_max = 4;
    setup_begin(&s);
    struct kva_request *batch[3];
    for (uint64_t i = 0; i < 3; i++) {
        struct request_spec spec = tracker_spec(i + 1);
        spec.choices = 2;
        batch[i] = tracker_request(&s.tracker, &spec);
    }
    assert_int_equal(kva_service_submit(s.service, batch, 3, NULL), KVA_EBUSY);
    assert_true(kva_service_idle(s.service));
    /* One of them twice. */
    struct kva_request *twice[2] = {batch[0], batch[0]};
    assert_int_equal(kva_service_submit(s.service, twice, 2, NULL), KVA_EINVAL);
    assert_true(kva_service_idle(s.service));
    pthread_mutex_lock(&s.lock);
    assert_int_equal(kva_service_submit(s.service, batch, 2, NULL), KVA_OK);
    tracker_accept(&s.tracker, 1);
    tracker_accept(&s.tracker, 2);
    pthread_mutex_unlock(&s.lock);
    tracker_refuse(&s.tracker, batch[2]);
    setup_run_to_end(&s);
    assert_int_equal(s.tracker.ends, 4);
    setup_end(&s);
}

static void test_service__cancels_queued_and_running_requests(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    s.params.scheduler.running_max = 1;
    setup_begin(&s);
    gate_set(&s, true);
    struct request_spec spec = tracker_spec(1);
    spec.output_tokens_max = 5000;
    assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    gate_wait_held(&s);
    for (uint64_t id = 2; id <= 4; id++) {
        spec = tracker_spec(id);
        spec.choices = 2;
        assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    }
    tracker_cancels(&s.tracker, 1, 0, KVA_FINISH_STOP);
    tracker_cancels(&s.tracker, 2, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
    tracker_cancels(&s.tracker, 3, 1, KVA_FINISH_CANCELLED);
    kva_service_cancel(s.service, 1, 0, KVA_FINISH_STOP);
    kva_service_cancel(s.service, 2, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
    kva_service_cancel(s.service, 3, 1, KVA_FINISH_CANCELLED);
    kva_service_cancel(s.service, 3, 1, KVA_FINISH_STOP); /* the first one counts */
    kva_service_cancel(s.service, 999, 0, KVA_FINISH_CANCELLED);
    kva_service_cancel(s.service, 4, 7, KVA_FINISH_CANCELLED); /* there is no choice 7 */
    gate_set(&s, false);
    setup_run_to_end(&s);
    assert_int_equal(tracker_choice(&s.tracker, 1, 0)->end.end.reason, KVA_FINISH_STOP);
    assert_int_equal(tracker_choice(&s.tracker, 1, 0)->tokens, 1);
    assert_int_equal(tracker_choice(&s.tracker, 2, 0)->end.end.reason, KVA_FINISH_CANCELLED);
    assert_int_equal(tracker_choice(&s.tracker, 2, 1)->tokens, 0);
    assert_int_equal(tracker_choice(&s.tracker, 3, 0)->end.end.reason, KVA_FINISH_LENGTH);
    assert_int_equal(tracker_choice(&s.tracker, 3, 1)->end.end.reason, KVA_FINISH_CANCELLED);
    assert_int_equal(tracker_choice(&s.tracker, 4, 1)->end.end.reason, KVA_FINISH_LENGTH);
    setup_end(&s);
}

static void test_service__shows_queued_requests_while_a_step_runs(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    setup_begin(&s);
    gate_set(&s, true);
    struct request_spec spec = tracker_spec(1);
    assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    gate_wait_held(&s);
    struct kva_scheduler_stats before, after;
    kva_service_get_stats(s.service, &before);
    spec = tracker_spec(2);
    spec.choices = 3;
    assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    kva_service_get_stats(s.service, &after);
    assert_int_equal(after.waiting, before.waiting + 3);
    assert_false(kva_service_idle(s.service));
    gate_set(&s, false);
    setup_run_to_end(&s);
    setup_end(&s);
}

static void test_service__drains(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    setup_begin(&s);
    for (uint64_t id = 1; id <= 20; id++) {
        struct request_spec spec = tracker_spec(id);
        assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    }
    kva_service_drain(s.service);
    struct request_spec spec = tracker_spec(21);
    struct kva_err err;
    assert_int_equal(setup_submit(&s, &spec, &err), KVA_EBUSY);
    assert_non_null(strstr(err.message, "draining"));
    setup_run_to_end(&s);
    assert_int_equal(s.tracker.by_reason[KVA_FINISH_LENGTH], 20);
    assert_true(kva_service_idle(s.service));
    assert_int_equal(kva_service_error(s.service, NULL), KVA_OK);
    setup_end(&s);
}

static void test_service__ends_everything_when_the_device_fails(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    s.engine.fail_step = 5;
    setup_begin(&s);
    s.tracker.expect_errors = true;
    for (uint64_t id = 1; id <= 50; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.output_tokens_max = 100;
        struct kva_err refusal;
        enum kva_status status = setup_submit(&s, &spec, &refusal);
        assert_true(status == KVA_OK || status == KVA_EDEVICE);
    }
    setup_run_to_end(&s);
    assert_int_equal(s.tracker.by_reason[KVA_FINISH_ERROR], s.tracker.ends);
    assert_int_equal(tracker_choice(&s.tracker, 1, 0)->end.end.status, KVA_EDEVICE);
    struct kva_err err;
    assert_int_equal(kva_service_error(s.service, &err), KVA_EDEVICE);
    assert_non_null(strstr(err.message, "injected device failure"));
    struct request_spec spec = tracker_spec(1000);
    assert_int_equal(setup_submit(&s, &spec, &err), KVA_EDEVICE);
    assert_true(kva_service_idle(s.service));
    setup_end(&s);
}

static void test_service__wakes_up_for_a_deadline(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    s.engine.admit_refused_every = 1;
    setup_begin(&s);
    struct request_spec spec = tracker_spec(1);
    spec.deadline_ns = kva_time_ns() + 3 * KVA_NS_PER_MS;
    assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    setup_run_to_end(&s);
    assert_int_equal(s.tracker.by_reason[KVA_FINISH_DEADLINE], 1);
    setup_end(&s);
}

/* The engine pauses when nobody collects, and nothing is lost by that. */
static void test_service__pauses_until_outputs_are_polled(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    s.params.output_bytes_max = 200000;
    setup_begin(&s);
    struct request_spec spec = tracker_spec(1);
    spec.output_tokens_max = 8000;
    spec.logprobs = 20;
    assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    struct kva_err err;
    enum kva_status status;
    struct request_spec late = tracker_spec(2);
    late.prompt_tokens = 10;
    uint64_t id = 2;
    do {
        late.id = id++;
        late.output_tokens_max = 1;
        status = setup_submit(&s, &late, &err);
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    } while (status == KVA_OK);
    assert_int_equal(status, KVA_EBUSY);
    assert_non_null(strstr(err.message, "200000"));
    while (setup_live(&s) > 0) {
        setup_wait_and_poll(&s);
        struct kva_scheduler_stats stats;
        kva_service_get_stats(s.service, &stats);
        /* 264 bytes and more each: what is not polled yet stays under the limit and one step. */
        assert_true(stats.output_tokens - s.tracker.tokens < 2000);
    }
    assert_int_equal(tracker_choice(&s.tracker, 1, 0)->tokens, 8000);
    setup_end(&s);
}

static void test_service__stops_with_requests_alive(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    setup_begin(&s);
    for (uint64_t id = 1; id <= 80; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.output_tokens_max = 4000;
        spec.prompt_logprobs = 2;
        assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    }
    setup_wait_and_poll(&s);
    setup_end(&s); /* the scripted engine checks that nothing is left, ASan that nothing leaked */
    kva_service_stop(NULL);
}

static void test_service__shows_the_live_view(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    s.engine.admit_refused_every = 1; /* they wait for as long as is needed */
    setup_begin(&s);
    struct kva_choice_view views[4];
    assert_int_equal(kva_service_get_view(s.service, views, 4), 0);
    struct request_spec spec = tracker_spec(1);
    spec.choices = 2;
    assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    spec = tracker_spec(2);
    spec.priority = -3;
    assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    while (kva_service_get_view(s.service, views, 4) < 3) {
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
    assert_int_equal(views[0].request_id, 1);
    assert_int_equal(views[1].choice, 1);
    assert_int_equal(views[2].request_id, 2);
    assert_int_equal(views[2].priority, -3);
    assert_string_equal(views[2].state, "waiting");
    assert_int_equal(kva_service_get_view(s.service, views, 1), 1);
    for (uint64_t id = 1; id <= 2; id++) {
        tracker_cancels(&s.tracker, id, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
        kva_service_cancel(s.service, id, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
    }
    setup_run_to_end(&s);
    assert_int_equal(kva_service_get_view(s.service, views, 4), 0);
    setup_end(&s);
}

/* --- many threads --------------------------------------------------------------------------- */

struct worker {
    struct setup *setup;
    uint32_t index;
    uint32_t accepted;
    uint32_t refused;
    pthread_t thread;
};

#define WORKERS        4
#define WORKER_SUBMITS 150

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static void *work(void *opaque)
{
    struct worker *worker = opaque;
    struct setup *s = worker->setup;
    uint64_t random = worker->index + 1;
    for (uint32_t i = 0; i < WORKER_SUBMITS; i++) {
        struct request_spec spec = tracker_spec((uint64_t)worker->index * 100000 + i + 1);
        spec.prompt_tokens = 1 + (uint32_t)next_random(&random) % 400;
        spec.output_tokens_max = 1 + (uint32_t)next_random(&random) % 60;
        spec.choices = 1 + (next_random(&random) % 8 == 0 ? 2 : 0);
        spec.prompt_logprobs = next_random(&random) % 10 == 0 ? 3 : -1;
        if (next_random(&random) % 16 == 0)
            spec.deadline_ns = kva_time_ns() + next_random(&random) % 20000000;
        if (setup_submit(s, &spec, NULL) == KVA_OK)
            worker->accepted++;
        else
            worker->refused++;
        if (next_random(&random) % 4 == 0) {
            uint64_t id = (uint64_t)worker->index * 100000 + 1 + next_random(&random) % (i + 1);
            pthread_mutex_lock(&s->lock);
            if (kva_id_table_find(&s->tracker.requests, id))
                tracker_cancels(&s->tracker, id, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
            pthread_mutex_unlock(&s->lock);
            kva_service_cancel(s->service, id, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
        }
        struct kva_scheduler_stats stats;
        kva_service_get_stats(s->service, &stats);
        struct kva_choice_view views[8];
        kva_service_get_view(s->service, views, 8);
        struct timespec pause = {.tv_nsec = (long)(next_random(&random) % 300000)};
        if (next_random(&random) % 3 == 0)
            nanosleep(&pause, NULL);
    }
    return NULL;
}

static void test_service__serves_several_threads_at_once(void **state KVA_UNUSED)
{
    struct setup s;
    setup_init(&s);
    s.engine.sleep_ns = 20000; /* an injected delay in every step */
    s.engine.limits.budget.device = 200 << 16;
    s.params.output_bytes_max = 100000;
    setup_begin(&s);
    struct worker workers[WORKERS];
    for (uint32_t i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.setup = &s, .index = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < WORKERS * 200; i++) {
        struct pollfd fd = {.fd = s.wake_fd, .events = POLLIN};
        if (poll(&fd, 1, 1) > 0)
            setup_wait_and_poll(&s);
    }
    uint32_t accepted = 0;
    for (uint32_t i = 0; i < WORKERS; i++) {
        /* They are never blocked by a full outbox, only refused. */
        pthread_join(workers[i].thread, NULL);
        accepted += workers[i].accepted;
    }
    setup_run_to_end(&s);
    assert_true(accepted > 0);
    assert_true(kva_service_idle(s.service));
    struct kva_scheduler_stats stats;
    kva_service_get_stats(s.service, &stats);
    assert_int_equal(stats.output_tokens, s.tracker.tokens);
    printf("%u accepted of %u, %llu tokens, %llu cancelled, %llu deadlines\n", accepted,
           WORKERS * WORKER_SUBMITS, (unsigned long long)s.tracker.tokens,
           (unsigned long long)s.tracker.by_reason[KVA_FINISH_CANCELLED],
           (unsigned long long)s.tracker.by_reason[KVA_FINISH_DEADLINE]);
    setup_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_service__delivers_every_output_in_order),
        cmocka_unit_test(test_service__refuses_at_once_and_names_both_numbers),
        cmocka_unit_test(test_service__refuses_what_can_never_fit),
        cmocka_unit_test(test_service__takes_a_batch_whole_or_not_at_all),
        cmocka_unit_test(test_service__cancels_queued_and_running_requests),
        cmocka_unit_test(test_service__shows_queued_requests_while_a_step_runs),
        cmocka_unit_test(test_service__drains),
        cmocka_unit_test(test_service__ends_everything_when_the_device_fails),
        cmocka_unit_test(test_service__wakes_up_for_a_deadline),
        cmocka_unit_test(test_service__pauses_until_outputs_are_polled),
        cmocka_unit_test(test_service__stops_with_requests_alive),
        cmocka_unit_test(test_service__shows_the_live_view),
        cmocka_unit_test(test_service__serves_several_threads_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
