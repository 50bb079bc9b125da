#include "tests/scheduler/fixture.h"

#include <string.h>

static void submit_many(struct fixture *f, uint32_t count, uint32_t prompt_tokens,
                        uint32_t output_tokens)
{
    for (uint64_t id = 1; id <= count; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = prompt_tokens;
        spec.output_tokens_max = output_tokens;
        assert_int_equal(fixture_submit(f, &spec), KVA_OK);
    }
}

static void test_step__decodes_every_sequence_once_per_step(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    submit_many(&f, 20, 10, 50);
    fixture_step(&f);
    for (uint32_t step = 0; step < 48; step++) {
        fixture_step(&f);
        assert_int_equal(fixture_report(&f).decode_rows, 20);
        for (uint64_t id = 1; id <= 20; id++)
            assert_int_equal(tracker_choice(&f.tracker, id, 0)->tokens, step + 2);
    }
    fixture_run(&f);
    fixture_end(&f);
}

/* Prompts of 10 tokens, answers of 50: 20 rows a step of 1 ms, and what they attend to. */
static void test_step__learns_what_steps_take_and_requests_bring(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_scheduler_pace pace;
    fixture_init(&f);
    fixture_begin(&f);
    kva_scheduler_get_pace(f.scheduler, &pace);
    assert_true(pace.decode_step_ns == 0 && pace.output_tokens == 0);
    submit_many(&f, 20, 10, 50);
    fixture_steps(&f, 2); /* prompts, then rows with a token each */
    kva_scheduler_get_pace(f.scheduler, &pace);
    assert_true(pace.decode_step_ns == 1e6 && pace.decode_rows == 20);
    assert_true(pace.decode_tokens == 20 * 11);
    assert_true(pace.prefill_token_ns == 1e6 / 200);
    assert_true(pace.output_tokens == 0);
    tracker_cancels(&f.tracker, 1, 0, KVA_FINISH_CANCELLED);
    kva_scheduler_cancel(f.scheduler, 1, 0, KVA_FINISH_CANCELLED);
    kva_scheduler_get_pace(f.scheduler, &pace);
    assert_true(pace.output_tokens == 0); /* it said no more than it was let */
    fixture_run(&f);
    kva_scheduler_get_pace(f.scheduler, &pace);
    assert_true(pace.prompt_tokens == 10 && pace.output_tokens == 50);
    assert_true(pace.decode_rows < 20 && pace.decode_rows > 18.9);
    fixture_end(&f);
}

/* The first steps count alike, and none for more than the others. */
static void test_step__means_of_few_steps_are_means(void **state KVA_UNUSED)
{
    struct fixture f;
    struct kva_scheduler_pace pace;
    fixture_init(&f);
    fixture_begin(&f);
    submit_many(&f, 19, 10, 2);
    struct request_spec last = tracker_spec(20);
    last.prompt_tokens = 10;
    last.output_tokens_max = 50;
    assert_int_equal(fixture_submit(&f, &last), KVA_OK);
    fixture_steps(&f, 6); /* prompts, then 20 rows, then four times the last one */
    kva_scheduler_get_pace(f.scheduler, &pace);
    assert_int_equal(pace.decode_steps, 5);
    assert_true(pace.decode_rows > 4.799 && pace.decode_rows < 4.801);
    fixture_run(&f);
    fixture_end(&f);
}

/* More running sequences than rows in a step: they take turns. */
static void test_step__rotates_when_a_step_is_too_small(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.scheduling.step_tokens_max = 7;
    fixture_begin(&f);
    submit_many(&f, 30, 1, 400);
    while (fixture_stats(&f).running < 30)
        fixture_step(&f);
    uint32_t begin[31];
    for (uint64_t id = 1; id <= 30; id++)
        begin[id] = tracker_choice(&f.tracker, id, 0)->tokens;
    fixture_steps(&f, 300); /* 70 rounds of 30 */
    for (uint64_t id = 1; id <= 30; id++) {
        uint32_t gained = tracker_choice(&f.tracker, id, 0)->tokens - begin[id];
        assert_true(gained >= 69 && gained <= 71);
    }
    fixture_run(&f);
    fixture_end(&f);
}

static void test_step__prefill_takes_no_more_than_its_share(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.scheduling.prefill_share_pct = 25;
    fixture_begin(&f);
    submit_many(&f, 4, 10, 60);
    fixture_steps(&f, 2);
    struct request_spec spec = tracker_spec(100);
    spec.prompt_tokens = 6000;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    for (uint32_t i = 0; i < 20; i++) {
        fixture_step(&f);
        assert_int_equal(fixture_report(&f).decode_rows, 4);
        assert_int_equal(fixture_report(&f).prefill_rows, 128);
    }
    for (uint64_t id = 1; id <= 4; id++) {
        tracker_cancels(&f.tracker, id, 0, KVA_FINISH_CANCELLED);
        kva_scheduler_cancel(f.scheduler, id, 0, KVA_FINISH_CANCELLED);
    }
    fixture_step(&f); /* alone it has the whole step */
    assert_int_equal(fixture_report(&f).prefill_rows, 512);
    fixture_run(&f);
    fixture_end(&f);
}

static void test_step__prefill_leaves_streams_their_rhythm(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.step_ns = 2 * KVA_NS_PER_MS;
    f.engine.decode_row_ns = KVA_NS_PER_MS / 10;
    f.engine.prefill_token_ns = KVA_NS_PER_MS;
    f.scheduling.step_time_ns = 40 * KVA_NS_PER_MS;
    fixture_begin(&f);
    submit_many(&f, 4, 10, 200);
    fixture_steps(&f, 10);
    struct request_spec spec = tracker_spec(100);
    spec.prompt_tokens = 2000;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    uint32_t steps = 0;
    while (tracker_choice(&f.tracker, 100, 0)->tokens == 0) {
        uint64_t before_ns = f.clock.now_ns;
        fixture_step(&f);
        assert_true(f.clock.now_ns - before_ns <= 44 * KVA_NS_PER_MS);
        assert_true(fixture_report(&f).prefill_rows >= KVA_PREFILL_TOKENS_MIN || steps > 50);
        steps++;
    }
    /* Of the 40 ms the streams take 2.4; the rest is the prompt's. */
    assert_in_range(steps, 2000 / 38, 2000 / 30);
    fixture_run(&f);
    fixture_end(&f);
}

/* However slow the machine, prompts get on. */
static void test_step__prefill_never_starves_for_the_rhythm(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.step_ns = 100 * KVA_NS_PER_MS;
    f.engine.prefill_token_ns = 10 * KVA_NS_PER_MS;
    f.scheduling.step_time_ns = KVA_NS_PER_MS;
    fixture_begin(&f);
    submit_many(&f, 2, 10, 200);
    fixture_steps(&f, 3);
    struct request_spec spec = tracker_spec(100);
    spec.prompt_tokens = 160;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    for (uint32_t i = 0; i < 10; i++) {
        fixture_step(&f);
        assert_int_equal(fixture_report(&f).prefill_rows, KVA_PREFILL_TOKENS_MIN);
    }
    fixture_run(&f);
    fixture_end(&f);
}

/* A step full of decode rows leaves prefill a little: nobody waits for all others to end. */
static void test_step__prefill_goes_on_beside_a_full_batch(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.scheduling.step_tokens_max = 16;
    fixture_begin(&f);
    submit_many(&f, 25, 1, 300);
    while (fixture_stats(&f).running < 25)
        fixture_step(&f);
    struct request_spec spec = tracker_spec(100);
    spec.prompt_tokens = 40;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    uint32_t steps = 0;
    while (tracker_choice(&f.tracker, 100, 0)->tokens == 0) {
        fixture_step(&f);
        assert_true(++steps <= 41);
    }
    fixture_run(&f);
    fixture_end(&f);
}

static void test_step__batches_short_prompts(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    submit_many(&f, 8, 60, 5);
    fixture_step(&f);
    assert_int_equal(fixture_report(&f).prefill_rows, 480);
    for (uint64_t id = 1; id <= 8; id++)
        assert_int_equal(tracker_choice(&f.tracker, id, 0)->tokens, 1);
    fixture_run(&f);
    fixture_end(&f);
}

/* The oldest prompt has three quarters of the step, what is behind it the rest, and each gets on. */
static void test_step__a_prefill_leaves_a_part_to_those_behind_it(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.partial_prefills_max = 3;
    fixture_begin(&f);
    submit_many(&f, 2, 6000, 10);
    fixture_steps(&f, 2); /* the second one has begun */
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t first = fixture_view(&f, 1, 0).prefilled_tokens;
        uint32_t second = fixture_view(&f, 2, 0).prefilled_tokens;
        fixture_step(&f);
        assert_int_equal(fixture_view(&f, 1, 0).prefilled_tokens, first + 384);
        assert_int_equal(fixture_view(&f, 2, 0).prefilled_tokens, second + 128);
    }
    struct request_spec spec = tracker_spec(3);
    spec.prompt_tokens = 300;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    uint32_t steps = 0;
    while (tracker_choice(&f.tracker, 3, 0)->tokens == 0) {
        uint32_t second = fixture_view(&f, 2, 0).prefilled_tokens;
        fixture_step(&f);
        assert_true(fixture_view(&f, 2, 0).prefilled_tokens > second);
        assert_true(++steps < 10);
    }
    assert_string_equal(fixture_view(&f, 2, 0).state, "prefill");
    /* What nobody behind wants is the oldest one's. */
    tracker_cancels(&f.tracker, 2, 0, KVA_FINISH_CANCELLED);
    kva_scheduler_cancel(f.scheduler, 2, 0, KVA_FINISH_CANCELLED);
    uint32_t first = fixture_view(&f, 1, 0).prefilled_tokens;
    fixture_step(&f);
    assert_int_equal(fixture_view(&f, 1, 0).prefilled_tokens, first + 256); /* 3 decodes */
    fixture_run(&f);
    fixture_end(&f);
}

static void test_step__preempts_the_last_and_never_the_first(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 20 << 16;
    f.scheduling.aging_ns = 3600 * KVA_NS_PER_S;
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 5; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = 60;
        spec.output_tokens_max = 800;
        spec.priority = id == 4 ? -1 : id == 2 ? 1 : 0; /* order: 4, 1, 3, 5, 2 */
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    while (fixture_stats(&f).preemptions == 0)
        fixture_step(&f);
    assert_string_equal(fixture_view(&f, 2, 0).state, "suspended");
    while (fixture_stats(&f).preemptions == 1)
        fixture_step(&f);
    assert_string_equal(fixture_view(&f, 5, 0).state, "suspended");
    fixture_run(&f);
    for (uint64_t id = 1; id <= 5; id++)
        assert_int_equal(tracker_choice(&f.tracker, id, 0)->tokens, 800);
    assert_int_equal(tracker_choice(&f.tracker, 4, 0)->end.end.preemptions, 0);
    assert_true(tracker_choice(&f.tracker, 2, 0)->end.end.preemptions > 0);
    assert_int_equal(fixture_stats(&f).preemptions, fixture_report(&f).suspends);
    /* Nothing was computed twice. */
    assert_int_equal(fixture_stats(&f).prompt_tokens_computed, 5 * 60);
    fixture_end(&f);
}

/* A prefill that loses its memory goes on where it stopped. */
static void test_step__preempts_an_unfinished_prefill(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = 44 << 16;
    f.scheduling.prefill_share_pct = 1;
    f.scheduling.aging_ns = 0;
    fixture_begin(&f);
    submit_many(&f, 4, 60, 500);
    fixture_steps(&f, 3);
    struct request_spec spec = tracker_spec(100);
    spec.prompt_tokens = 1800;
    spec.priority = 1;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    while (fixture_stats(&f).preemptions == 0)
        fixture_step(&f);
    struct kva_choice_view view = fixture_view(&f, 100, 0);
    assert_string_equal(view.state, "suspended");
    assert_true(view.prefilled_tokens > 0 && view.prefilled_tokens < 1800);
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 100, 0)->tokens, 10);
    assert_int_equal(fixture_stats(&f).prompt_tokens_computed, 4 * 60 + 1800);
    fixture_end(&f);
}

static void test_step__ends_a_sequence_that_cannot_grow_alone(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.grow_refused_every = 1;
    fixture_begin(&f);
    f.tracker.expect_errors = true;
    submit_many(&f, 1, 60, 200);
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->end.end.status, KVA_ELIMIT);
    /* Its two pages hold 60 + 68; one token more was drawn and has no room. */
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->tokens, 69);
    assert_int_equal(fixture_report(&f).live_sequences, 0);
    fixture_end(&f);
}

/* What is free lies in pieces that are too small: not once it has given back what lies between. */
static void test_step__takes_its_memory_anew_before_it_ends(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.grow_refused_every = 2;
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.prompt_tokens = 10;
    spec.output_tokens_max = 200;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    fixture_run(&f);
    assert_true(fixture_report(&f).refusals > 0);
    assert_int_equal(fixture_stats(&f).finished[KVA_FINISH_LENGTH], 1);
    assert_int_equal(fixture_stats(&f).preemptions, 0);
    fixture_end(&f);
}

/* Unless others have memory here, which is recalled from them: it waits for that. */
static void test_step__waits_for_what_others_have(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.grow_refused_every = 1;
    f.engine.guests.device = 1;
    fixture_begin(&f);
    submit_many(&f, 1, 60, 200);
    for (uint32_t i = 0; i < 100; i++) {
        bool idle;
        uint64_t wake_ns;
        struct kva_err err;
        assert_int_equal(kva_scheduler_step(f.scheduler, &idle, &wake_ns, &err), KVA_OK);
        f.clock.now_ns += 100 * KVA_NS_PER_MS; /* far longer than anything is waited for */
    }
    assert_false(tracker_choice(&f.tracker, 1, 0)->ended);
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->tokens, 69);
    kva_scripted_params(f.scripted)->guests.device = 0;
    kva_scripted_params(f.scripted)->grow_refused_every = 0;
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->tokens, 200);
    fixture_end(&f);
}

/* A prefill that has no room to go on takes that of whoever is behind it, and nobody loses a token
 * of his. */
static void test_step__makes_room_for_prefills(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    submit_many(&f, 3, 1800, 10);
    fixture_steps(&f, 2);
    assert_string_equal(fixture_view(&f, 1, 0).state, "prefill");
    assert_string_equal(fixture_view(&f, 2, 0).state, "prefill");
    uint32_t *refused_every = &kva_scripted_params(f.scripted)->prefill_grow_refused_every;
    *refused_every = 2; /* the second prefill's, which is the last one */
    fixture_step(&f);
    *refused_every = 0;
    assert_int_equal(fixture_stats(&f).preemptions, 1);
    assert_string_equal(fixture_view(&f, 1, 0).state, "prefill");
    assert_string_equal(fixture_view(&f, 2, 0).state, "suspended");
    fixture_run(&f);
    for (uint64_t id = 1; id <= 3; id++)
        assert_int_equal(tracker_choice(&f.tracker, id, 0)->tokens, 10);
    assert_int_equal(fixture_stats(&f).prompt_tokens_computed, 3 * 1800);
    fixture_end(&f);
}

/* A decode that gives no token is not the end: its choice is in the next step, and gets as many. */
static void test_step__a_sequence_may_sit_out(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.sits_out_every = 3;
    fixture_begin(&f);
    submit_many(&f, 1, 10, 30);
    fixture_step(&f);
    for (uint32_t decode = 1; tracker_choice(&f.tracker, 1, 0)->tokens < 30; decode++) {
        fixture_step(&f);
        assert_int_equal(fixture_report(&f).decode_rows, 1);
        assert_int_equal(tracker_choice(&f.tracker, 1, 0)->tokens, 1 + decode - decode / 3);
    }
    assert_int_equal(fixture_stats(&f).finished[KVA_FINISH_LENGTH], 1);
    assert_int_equal(fixture_stats(&f).output_tokens, 30);
    fixture_end(&f);
}

/* Its tokens so far are its prompt then; nobody hears of it but by the pause. */
static void test_step__what_is_lost_is_computed_again(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.lost_every = 7;
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 3; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.output_tokens_max = 30;
        spec.prompt_logprobs = id == 1 ? 1 : -1;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_run(&f);
    for (uint64_t id = 1; id <= 3; id++)
        assert_int_equal(tracker_choice(&f.tracker, id, 0)->tokens, 30);
    struct kva_scheduler_stats stats = fixture_stats(&f);
    assert_int_equal(stats.finished[KVA_FINISH_LENGTH], 3);
    assert_int_equal(stats.output_tokens, 90);
    /* A restart's prefill gives a token too, so that fewer are decoded. */
    assert_in_range(stats.restarts, 8, 90 / 7);
    /* What it finds of itself is nothing that a request was spared. */
    assert_int_equal(stats.prompt_tokens_cached, 0);
    assert_true(stats.engine.prefix_hit_tokens > 0);
    assert_int_equal(stats.waiting, 0);
    assert_int_equal(fixture_report(&f).live_sequences, 0);
    fixture_end(&f);
}

static void test_step__ends_on_stop_ids_and_length(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.vocab = 10;
    fixture_begin(&f);
    uint32_t stopped = 0;
    for (uint64_t id = 1; id <= 32; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.stop_id_count = 2;
        spec.min_tokens = id % 2 ? 6 : 0;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_run(&f);
    for (uint64_t id = 1; id <= 32; id++) {
        const struct tracked_choice *choice = tracker_choice(&f.tracker, id, 0);
        bool stop = choice->end.end.reason == KVA_FINISH_STOP;
        stopped += stop;
        assert_true(stop ? choice->end.end.stop_token < 2 : choice->tokens == 10);
        assert_true(id % 2 == 0 || choice->tokens > 6);
    }
    assert_in_range(stopped, 10, 31);
    assert_int_equal(fixture_stats(&f).finished[KVA_FINISH_STOP], stopped);
    assert_int_equal(fixture_stats(&f).finished[KVA_FINISH_LENGTH], 32 - stopped);
    fixture_end(&f);
}

static void test_step__an_items_failure_is_its_own(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.item_fails_every = 37;
    fixture_begin(&f);
    f.tracker.expect_errors = true;
    submit_many(&f, 10, 10, 20);
    fixture_run(&f);
    assert_int_equal(f.tracker.ends, 10);
    uint64_t failed = f.tracker.by_reason[KVA_FINISH_ERROR];
    assert_in_range(failed, 1, 9);
    assert_int_equal(f.tracker.by_reason[KVA_FINISH_LENGTH], 10 - failed);
    for (uint64_t id = 1; id <= 10; id++) {
        const struct kva_output *end = &tracker_choice(&f.tracker, id, 0)->end;
        if (end->end.reason == KVA_FINISH_ERROR)
            assert_int_equal(end->end.status, KVA_EINTERNAL);
    }
    fixture_end(&f);
}

static void test_step__a_device_failure_is_for_good(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.fail_step = 4;
    f.scheduling.running_max = 3;
    fixture_begin(&f);
    f.tracker.expect_errors = true;
    submit_many(&f, 8, 10, 20);
    fixture_steps(&f, 3);
    bool idle;
    uint64_t wake_ns;
    struct kva_err err = {.message = ""};
    assert_int_equal(kva_scheduler_step(f.scheduler, &idle, &wake_ns, &err), KVA_EDEVICE);
    assert_non_null(strstr(err.message, "injected device failure in step 4"));
    assert_int_equal(f.tracker.by_reason[KVA_FINISH_ERROR], 8);
    for (uint64_t id = 1; id <= 8; id++)
        assert_int_equal(tracker_choice(&f.tracker, id, 0)->end.end.status, KVA_EDEVICE);
    assert_int_equal(fixture_report(&f).live_sequences, 0);
    assert_int_equal(kva_scheduler_step(f.scheduler, &idle, &wake_ns, &err), KVA_EDEVICE);
    struct request_spec spec = tracker_spec(100);
    assert_int_equal(fixture_submit(&f, &spec), KVA_EDEVICE);
    fixture_end(&f);
}

static void test_step__deadlines_end_waiting_and_running_requests(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.scheduling.running_max = 1;
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 3; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.output_tokens_max = 100;
        spec.deadline_ns = id < 3 ? f.clock.now_ns + 30 * KVA_NS_PER_MS : 0;
        spec.choices = id == 2 ? 3 : 1;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_run(&f);
    const struct tracked_choice *first = tracker_choice(&f.tracker, 1, 0);
    assert_int_equal(first->end.end.reason, KVA_FINISH_DEADLINE);
    assert_in_range(first->tokens, 25, 31);
    for (uint32_t i = 0; i < 3; i++) {
        const struct tracked_choice *second = tracker_choice(&f.tracker, 2, i);
        assert_int_equal(second->end.end.reason, KVA_FINISH_DEADLINE);
        assert_int_equal(second->tokens, 0);
    }
    assert_int_equal(tracker_choice(&f.tracker, 3, 0)->end.end.reason, KVA_FINISH_LENGTH);
    fixture_end(&f);
}

static void test_step__nobody_waits_longer_than_it_may(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.scheduling.running_max = 1;
    f.scheduling.waiting_time_ns = 30 * KVA_NS_PER_MS;
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 5; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.output_tokens_max = id == 1 ? 20 : 100;
        spec.choices = id == 3 ? 3 : 1;
        spec.deadline_ns = id == 4   ? f.clock.now_ns + 25 * KVA_NS_PER_MS
                           : id == 5 ? f.clock.now_ns + KVA_NS_PER_S
                                     : 0;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_run(&f);
    /* The second is admitted in time and ends long after; those behind it are not. */
    for (uint64_t id = 1; id <= 2; id++)
        assert_int_equal(tracker_choice(&f.tracker, id, 0)->end.end.reason, KVA_FINISH_LENGTH);
    assert_int_equal(tracker_choice(&f.tracker, 2, 0)->tokens, 100);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(tracker_choice(&f.tracker, 3, i)->end.end.status, KVA_EQUEUETIME);
    assert_int_equal(tracker_choice(&f.tracker, 4, 0)->end.end.reason, KVA_FINISH_DEADLINE);
    const struct tracked_choice *fifth = tracker_choice(&f.tracker, 5, 0);
    assert_int_equal(fifth->end.end.status, KVA_EQUEUETIME);
    uint64_t waited_ns = fifth->end.time_ns - fifth->end.end.times.submitted_ns;
    assert_in_range(waited_ns, 30 * KVA_NS_PER_MS, 32 * KVA_NS_PER_MS);
    assert_int_equal(fixture_stats(&f).rejected_queue_time, 2);
    fixture_end(&f);
}

/* Once one choice was begun, its siblings wait for their turn; and the request's own deadline holds
 * as before. */
static void test_step__waiting_ends_with_the_first_admission(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.scheduling.running_max = 1;
    f.scheduling.waiting_time_ns = 10 * KVA_NS_PER_MS;
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 2; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.output_tokens_max = 50;
        spec.choices = 3;
        spec.deadline_ns = id == 2 ? f.clock.now_ns + 120 * KVA_NS_PER_MS : 0;
        spec.submitted_ns = f.clock.now_ns;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
        if (id == 1)
            fixture_run(&f);
    }
    fixture_run(&f);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(tracker_choice(&f.tracker, 1, i)->tokens, 50);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(tracker_choice(&f.tracker, 2, i)->end.end.reason,
                         i < 2 ? KVA_FINISH_LENGTH : KVA_FINISH_DEADLINE);
    assert_int_equal(fixture_stats(&f).rejected_queue_time, 0);
    fixture_end(&f);
}

static void test_step__says_when_to_come_back(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.admit_refused_every = 1;
    fixture_begin(&f);
    bool idle = false;
    uint64_t wake_ns = 1;
    assert_int_equal(kva_scheduler_step(f.scheduler, &idle, &wake_ns, NULL), KVA_OK);
    assert_true(idle);
    assert_int_equal(wake_ns, 0);
    struct request_spec spec = tracker_spec(1);
    spec.deadline_ns = f.clock.now_ns + 500;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    assert_int_equal(kva_scheduler_step(f.scheduler, &idle, &wake_ns, NULL), KVA_OK);
    assert_true(idle);
    assert_int_equal(wake_ns, spec.deadline_ns);
    fixture_run(&f);
    assert_int_equal(f.tracker.by_reason[KVA_FINISH_DEADLINE], 1);
    fixture_end(&f);
}

static void test_step__reports_prefill_progress_once_per_step(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.prompt_tokens = 2000;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    for (uint32_t i = 1; i <= 4; i++) {
        fixture_step(&f);
        assert_int_equal(tracker_choice(&f.tracker, 1, 0)->progress_events, i);
        assert_int_equal(tracker_choice(&f.tracker, 1, 0)->progress_tokens,
                         kva_min_u32(i * 512, 2000));
    }
    fixture_run(&f);
    /* A prompt that is done in one step needs none. */
    spec = tracker_spec(2);
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 2, 0)->progress_events, 0);
    fixture_end(&f);
}

static void test_step__prompt_logprobs_come_once_before_the_first_token(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 3; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = id == 3 ? 1 : 700;
        spec.choices = 3;
        spec.logprobs = 5;
        spec.prompt_logprobs = id == 2 ? -1 : 4;
        spec.prefix_tokens = id == 1 ? 640 : 0;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_run(&f); /* the tracker checks their content and order */
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->logprob_events, 1);
    assert_int_equal(tracker_choice(&f.tracker, 1, 1)->logprob_events, 0);
    assert_int_equal(tracker_choice(&f.tracker, 2, 0)->logprob_events, 0);
    assert_int_equal(tracker_choice(&f.tracker, 3, 0)->logprob_events, 1);
    /* The other choices were spared that work, so that their pages could be shared. */
    struct request_spec spec = tracker_spec(4);
    spec.prompt_tokens = 700;
    spec.prefix_tokens = 640;
    assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 4, 0)->end.end.info.cached_tokens, 640);
    fixture_end(&f);
}

static void test_step__a_vector_comes_once_and_ends_its_request(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    fixture_begin(&f);
    for (uint64_t id = 1; id <= 4; id++) {
        struct request_spec spec = tracker_spec(id);
        spec.prompt_tokens = id == 3 ? 700 : 40;
        spec.pooling = id == 4 ? KVA_POOLING_NONE : id == 2 ? KVA_POOLING_LAST : KVA_POOLING_MEAN;
        spec.output_tokens_max = id == 4 ? 10 : 1;
        assert_int_equal(fixture_submit(&f, &spec), KVA_OK);
    }
    fixture_run(&f); /* the tracker checks what is in them */
    for (uint64_t id = 1; id <= 3; id++) {
        const struct tracked_choice *choice = tracker_choice(&f.tracker, id, 0);
        assert_int_equal(choice->vectors, 1);
        assert_int_equal(choice->tokens, 0);
        assert_int_equal(choice->end.end.reason, KVA_FINISH_STOP);
    }
    assert_int_equal(tracker_choice(&f.tracker, 4, 0)->tokens, 10);
    struct request_spec spec = tracker_spec(5);
    struct kva_err err;
    spec.pooling = KVA_POOLING_MEAN;
    spec.choices = 2;
    assert_int_equal(tracker_submit(&f.tracker, f.scheduler, &spec, &err), KVA_EINVAL);
    assert_string_equal(err.param, "n");
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step__decodes_every_sequence_once_per_step),
        cmocka_unit_test(test_step__learns_what_steps_take_and_requests_bring),
        cmocka_unit_test(test_step__means_of_few_steps_are_means),
        cmocka_unit_test(test_step__rotates_when_a_step_is_too_small),
        cmocka_unit_test(test_step__prefill_takes_no_more_than_its_share),
        cmocka_unit_test(test_step__prefill_leaves_streams_their_rhythm),
        cmocka_unit_test(test_step__prefill_never_starves_for_the_rhythm),
        cmocka_unit_test(test_step__prefill_goes_on_beside_a_full_batch),
        cmocka_unit_test(test_step__batches_short_prompts),
        cmocka_unit_test(test_step__a_prefill_leaves_a_part_to_those_behind_it),
        cmocka_unit_test(test_step__preempts_the_last_and_never_the_first),
        cmocka_unit_test(test_step__preempts_an_unfinished_prefill),
        cmocka_unit_test(test_step__ends_a_sequence_that_cannot_grow_alone),
        cmocka_unit_test(test_step__takes_its_memory_anew_before_it_ends),
        cmocka_unit_test(test_step__waits_for_what_others_have),
        cmocka_unit_test(test_step__makes_room_for_prefills),
        cmocka_unit_test(test_step__a_sequence_may_sit_out),
        cmocka_unit_test(test_step__what_is_lost_is_computed_again),
        cmocka_unit_test(test_step__ends_on_stop_ids_and_length),
        cmocka_unit_test(test_step__an_items_failure_is_its_own),
        cmocka_unit_test(test_step__a_device_failure_is_for_good),
        cmocka_unit_test(test_step__deadlines_end_waiting_and_running_requests),
        cmocka_unit_test(test_step__nobody_waits_longer_than_it_may),
        cmocka_unit_test(test_step__waiting_ends_with_the_first_admission),
        cmocka_unit_test(test_step__says_when_to_come_back),
        cmocka_unit_test(test_step__reports_prefill_progress_once_per_step),
        cmocka_unit_test(test_step__prompt_logprobs_come_once_before_the_first_token),
        cmocka_unit_test(test_step__a_vector_comes_once_and_ends_its_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
