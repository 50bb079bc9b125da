#include "tests/scheduler/fixture.h"

#include <string.h>

static void expect_refusal(struct fixture *f, const struct request_spec *spec, enum kva_status want,
                           const char *first, const char *second)
{
    struct kva_err err = {.message = ""};
    assert_int_equal(tracker_submit(&f->tracker, f->scheduler, spec, &err), want);
    assert_int_equal(err.status, want);
    assert_non_null(strstr(err.message, first));
    assert_non_null(strstr(err.message, second));
}

static void test_submit__names_what_is_wrong_and_both_numbers(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 20 << 16;
    f.scheduling.waiting_max = 4;
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.output_tokens_max = 0;
    expect_refusal(&f, &spec, KVA_EINVAL, "output token", "1");
    spec = tracker_spec(1);
    spec.prompt_tokens = 0;
    expect_refusal(&f, &spec, KVA_EINVAL, "prompt", "no tokens");
    spec = tracker_spec(1);
    spec.prompt_tokens = 8190;
    expect_refusal(&f, &spec, KVA_ECONTEXT, "8200", "8192");
    spec = tracker_spec(1);
    spec.prompt_tokens = 4000;
    expect_refusal(&f, &spec, KVA_ELIMIT, "1310720", "device");
    spec = tracker_spec(1);
    spec.choices = 5;
    expect_refusal(&f, &spec, KVA_EINVAL, "5 choices", "at most 4");
    spec.choices = 3;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    spec = tracker_spec(2);
    spec.choices = 2;
    expect_refusal(&f, &spec, KVA_EBUSY, "3 choices wait and the request has 2", "limit is 4");
    assert_int_equal(fixture_stats(&f).rejected_queue_full, 1);
    assert_int_equal(fixture_stats(&f).rejected_budget, 1);
    assert_int_equal(fixture_report(&f).live_sequences, 3);
    fixture_run(&f);
    fixture_end(&f);
}

static void test_submit__refuses_an_id_that_is_live(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(7);
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    struct kva_request *again = kva_request_create(4096);
    const uint32_t prompt[2] = {1, 2};
    again->id = 7;
    again->prompt = prompt;
    again->prompt_tokens = 2;
    again->output_tokens_max = 3;
    again->choices = 1;
    assert_int_equal(kva_scheduler_submit(f.scheduler, again, NULL), KVA_EINVAL);
    again->choices = 0;
    assert_int_equal(kva_scheduler_submit(f.scheduler, again, NULL), KVA_EINVAL);
    again->choices = 1;
    again->id = 8;
    again->kv.policy = KVA_KV_POLICY_COUNT;
    assert_int_equal(kva_scheduler_submit(f.scheduler, again, NULL), KVA_EINVAL);
    kva_request_destroy(again);
    fixture_run(&f);
    assert_int_equal(f.tracker.ends, 1);
    fixture_end(&f);
}

static void test_submit__frees_half_a_request(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.create_fails_every = 3;
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.choices = 5;
    assert_int_equal(fixture_submit(&f, &spec), KVA_ENOMEM);
    assert_int_equal(fixture_report(&f).live_sequences, 0);
    assert_int_equal(fixture_stats(&f).waiting, 0);
    fixture_end(&f);
}

/* The queue's limit is for those that wait for their first admission. */
static void test_submit__does_not_count_preempted_choices(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 14 << 16;
    f.scheduling.waiting_max = 3;
    fixture_begin(&f);
    uint64_t id = 1;
    struct request_spec spec;
    while (fixture_stats(&f).suspended == 0) {
        spec = tracker_spec(id);
        spec.prompt_tokens = 60;
        spec.output_tokens_max = 600;
        if (id <= 3 && fixture_submit(&f, &spec) == KVA_OK)
            id++;
        fixture_step(&f);
    }
    uint64_t before = f.tracker.live;
    for (uint32_t i = 0; i < 3; i++) {
        spec = tracker_spec(100 + i);
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    spec = tracker_spec(200);
    assert_int_equal(fixture_submit(&f, &spec), KVA_EBUSY);
    assert_int_equal(f.tracker.live, before + 3);
    fixture_run(&f);
    assert_int_equal(f.tracker.by_reason[KVA_FINISH_LENGTH], f.tracker.ends);
    assert_true(fixture_stats(&f).preemptions > 0);
    fixture_end(&f);
}

/* --- cancel --------------------------------------------------------------------------------- */

static void cancel(struct fixture *f, uint64_t id, uint32_t choice, enum kva_finish_reason reason)
{
    tracker_cancels(&f->tracker, id, choice, reason);
    kva_scheduler_cancel(f->scheduler, id, choice, reason);
}

static uint64_t bytes_held(const struct fixture *f)
{
    struct kva_engine_usage usage = fixture_stats(f).engine;
    return usage.used.device - usage.cached.device + usage.used.host - usage.cached.host;
}

static void test_submit__cancel_ends_a_choice_in_any_state(void **state KVA_UNUSED)
{
    static const char *const states[] = {"waiting", "prefill", "decode"};
    for (uint32_t i = 0; i < KVA_COUNT_OF(states); i++) {
        struct fixture f;
        fixture_init(&f);
        fixture_begin(&f);
        struct request_spec spec = tracker_spec(1);
        spec.prompt_tokens = 1000; /* two steps of prefill */
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
        fixture_steps(&f, i == 2 ? 4 : i);
        assert_string_equal(fixture_view(&f, 1, 0).state, states[i]);
        cancel(&f, 1, 0, KVA_FINISH_CANCELLED);
        assert_true(tracker_choice(&f.tracker, 1, 0)->ended);
        assert_int_equal(fixture_report(&f).live_sequences, 0);
        assert_int_equal(bytes_held(&f), 0);
        kva_scheduler_cancel(f.scheduler, 1, 0, KVA_FINISH_CANCELLED);
        kva_scheduler_cancel(f.scheduler, 99, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
        fixture_end(&f);
    }
}

static void test_submit__cancel_of_a_suspended_choice(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 12 << 16;
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 3; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = 60;
        spec.output_tokens_max = 600;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    while (fixture_stats(&f).suspended == 0)
        fixture_step(&f);
    assert_string_equal(fixture_view(&f, 3, 0).state, "suspended");
    cancel(&f, 3, 0, KVA_FINISH_CANCELLED);
    assert_int_equal(fixture_stats(&f).suspended, 0);
    assert_int_equal(fixture_report(&f).live_sequences, 2);
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->tokens, 600);
    assert_int_equal(tracker_choice(&f.tracker, 2, 0)->tokens, 600);
    fixture_end(&f);
}

static void test_submit__cancel_of_one_choice_leaves_the_others(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.choices = 4;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    cancel(&f, 1, 2, KVA_FINISH_CANCELLED); /* a sibling */
    fixture_steps(&f, 4);
    cancel(&f, 1, 1, KVA_FINISH_STOP);
    assert_int_equal(tracker_choice(&f.tracker, 1, 1)->end.end.reason, KVA_FINISH_STOP);
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->tokens, 10);
    assert_int_equal(tracker_choice(&f.tracker, 1, 3)->tokens, 10);
    assert_true(tracker_choice(&f.tracker, 1, 1)->tokens < 10);
    assert_int_equal(tracker_choice(&f.tracker, 1, 2)->tokens, 0);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submit__names_what_is_wrong_and_both_numbers),
        cmocka_unit_test(test_submit__refuses_an_id_that_is_live),
        cmocka_unit_test(test_submit__frees_half_a_request),
        cmocka_unit_test(test_submit__does_not_count_preempted_choices),
        cmocka_unit_test(test_submit__cancel_ends_a_choice_in_any_state),
        cmocka_unit_test(test_submit__cancel_of_a_suspended_choice),
        cmocka_unit_test(test_submit__cancel_of_one_choice_leaves_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
