#include "tests/scheduler/fixture.h"

#include <string.h>

static void expect_bad_params(const struct fixture *f, const struct kva_scheduler_params *params,
                              const char *param, const char *number)
{
    struct kva_scheduler *scheduler = NULL;
    struct kva_err err = {.message = ""};
    assert_int_equal(kva_scheduler_create(params, &scheduler, &err), KVA_EINVAL);
    assert_null(scheduler);
    assert_string_equal(err.param, param);
    assert_non_null(strstr(err.message, number));
    assert_non_null(f->scheduler);
}

static void test_scheduler__refuses_bad_parameters(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    struct kva_scheduler_params params = f.scheduling;
    params.running_max = 65;
    expect_bad_params(&f, &params, "running_max", "64");
    params = f.scheduling;
    params.waiting_max = 0;
    expect_bad_params(&f, &params, "waiting_max", "0");
    params = f.scheduling;
    params.step_tokens_max = 513;
    expect_bad_params(&f, &params, "step_tokens_max", "512");
    params = f.scheduling;
    params.prefill_share_pct = 101;
    expect_bad_params(&f, &params, "prefill_share_pct", "101");
    fixture_end(&f);
    kva_scheduler_destroy(NULL);
}

static void test_scheduler__destroys_live_requests_without_events(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 30 << 16;
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 20; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.choices = 1 + (uint32_t)id % 3;
        spec.output_tokens_max = 500;
        spec.deadline_ns = id % 2 ? f.clock.now_ns + KVA_NS_PER_S : 0;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_steps(&f, 100);
    uint64_t outputs = f.tracker.outputs;
    kva_scheduler_destroy(f.scheduler);
    f.scheduler = NULL;
    assert_int_equal(f.tracker.outputs, outputs);
    assert_int_equal(fixture_report(&f).live_sequences, 0);
    fixture_end(&f);
}

static void test_scheduler__counts_what_happens(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 6; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = 130;
        spec.prefix_tokens = 128;
        spec.prefix_seed = 1;
        spec.policy = id % 2 ? KVA_KV_FULL : KVA_KV_OFFLOAD;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
        fixture_steps(&f, 1);
    }
    struct kva_scheduler_stats stats = fixture_stats(&f);
    assert_int_equal(stats.running, 6);
    assert_int_equal(stats.engine.sequences[KVA_KV_FULL], 3);
    assert_int_equal(stats.engine.sequences[KVA_KV_OFFLOAD], 3);
    assert_int_equal(stats.prompt_tokens_cached, 4 * 128);
    assert_int_equal(stats.prompt_tokens_computed, 2 * 130 + 4 * 2);
    assert_int_equal(stats.steps, 6);
    assert_int_equal(stats.output_tokens, 1 + 2 + 3 + 4 + 5 + 6);
    assert_int_equal(stats.step_rows, 2 * 130 + 4 * 2 + 1 + 2 + 3 + 4 + 5);
    assert_int_equal(stats.engine.prefix_hit_tokens, 4 * 128);
    fixture_run(&f);
    stats = fixture_stats(&f);
    assert_int_equal(stats.finished[KVA_FINISH_LENGTH], 6);
    assert_int_equal(stats.output_tokens, 60);
    assert_int_equal(stats.running, 0);
    fixture_end(&f);
}

static void test_scheduler__ends_carry_times_and_sequence_info(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    uint64_t now_ns = f.clock.now_ns;
    struct request_spec spec = tracker_spec(1);
    spec.prompt_tokens = 1000;
    spec.submitted_ns = now_ns - 5;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    fixture_run(&f);
    const struct kva_output *end = &tracker_choice(&f.tracker, 1, 0)->end;
    assert_int_equal(end->end.times.submitted_ns, now_ns - 5);
    assert_int_equal(end->end.times.admitted_ns, now_ns);
    assert_int_equal(end->end.times.first_token_ns, now_ns + 2 * KVA_NS_PER_MS);
    assert_int_equal(end->end.times.last_token_ns, now_ns + 11 * KVA_NS_PER_MS);
    assert_int_equal(end->end.times.ended_ns, end->end.times.last_token_ns);
    assert_string_equal(end->end.info.policy, "full");
    assert_int_equal(end->end.info.bytes.device, 17 << 16);
    fixture_end(&f);
}

static void test_scheduler__shows_the_oldest_first(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.scheduling.running_max = 2;
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 4; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = id == 1 ? 100 : 700;
        spec.priority = (int32_t)id;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_step(&f);
    struct kva_choice_view views[4];
    assert_int_equal(kva_scheduler_get_view(f.scheduler, views, 4), 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(views[i].request_id, i + 1);
        assert_int_equal(views[i].priority, i + 1);
        assert_int_equal(views[i].age_ns, KVA_NS_PER_MS);
    }
    assert_string_equal(views[0].state, "decode");
    assert_int_equal(views[0].output_tokens, 1);
    assert_string_equal(views[1].state, "prefill");
    assert_int_equal(views[1].prefilled_tokens, 412);
    assert_true(views[1].info.bytes.device > 0);
    assert_string_equal(views[2].state, "waiting");
    assert_int_equal(views[2].info.bytes.host, 0);
    assert_int_equal(kva_scheduler_get_view(f.scheduler, views, 2), 2);
    fixture_run(&f);
    fixture_end(&f);
}

/* Who places KV elsewhere finds each choice by a number that no other one has. */
static void test_scheduler__says_where_choices_are(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_choice_place places[8], place;
    fixture_init(&f);
    f.scheduling.running_max = 2;
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 3; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = id == 2 ? 2000 : 100;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_steps(&f, 2);
    assert_int_equal(kva_scheduler_get_places(f.scheduler, places, 8), 3);
    assert_int_equal(places[0].stage, KVA_STAGE_DECODE);
    assert_int_equal(places[1].stage, KVA_STAGE_PREFILL);
    assert_int_equal(places[2].stage, KVA_STAGE_WAITING);
    assert_int_equal(places[0].tokens, 100 + tracker_choice(&f.tracker, 1, 0)->tokens);
    assert_int_equal(kva_scheduler_get_places(f.scheduler, places, 2), 2);
    kva_scripted_params(f.scripted)->lost_every = 1;
    fixture_step(&f);
    kva_scripted_params(f.scripted)->lost_every = 0;
    assert_true(kva_scheduler_find_place(f.scheduler, places[0].id, &place));
    assert_int_equal(place.generation, 1);
    assert_ptr_equal(place.seq, places[0].seq);
    assert_false(kva_scheduler_find_place(f.scheduler, 0, &place));
    tracker_cancels(&f.tracker, 1, KVA_ALL_CHOICES, KVA_FINISH_CANCELLED);
    kva_scheduler_cancel(f.scheduler, 1, 0, KVA_FINISH_CANCELLED);
    assert_false(kva_scheduler_find_place(f.scheduler, places[0].id, &place));
    fixture_run(&f);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scheduler__refuses_bad_parameters),
        cmocka_unit_test(test_scheduler__destroys_live_requests_without_events),
        cmocka_unit_test(test_scheduler__counts_what_happens),
        cmocka_unit_test(test_scheduler__says_where_choices_are),
        cmocka_unit_test(test_scheduler__ends_carry_times_and_sequence_info),
        cmocka_unit_test(test_scheduler__shows_the_oldest_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
