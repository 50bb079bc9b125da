/* Choices that are longer than the device: others go on while they wait to be lent, and they come
 * first when they are. */
#include "tests/scheduler/fixture.h"

#include <string.h>

enum { DEVICE_PAGES = 16, LONG_PROMPT = 20 * 64 };

static void begin(struct fixture *f)
{
    fixture_init(f);
    f->engine.limits.budget.device = (uint64_t)DEVICE_PAGES << 16;
    f->engine.others_pages = 64;
    fixture_begin(f);
}

static void submit(struct fixture *f, uint64_t id, uint32_t prompt_tokens, uint32_t output_tokens)
{
    struct request_spec spec = tracker_spec(id);
    spec.prompt_tokens = prompt_tokens;
    spec.output_tokens_max = output_tokens;
    spec.cache_disabled = true;
    assert_int_equal(fixture_submit(f, &spec), KVA_OK);
}

static void test_stranded__others_go_on(void **state KVA_UNUSED)
{
    struct fixture f;
    begin(&f);
    submit(&f, 1, LONG_PROMPT, 200);
    submit(&f, 2, 60, 300);
    fixture_steps(&f, 100);
    assert_string_equal(fixture_view(&f, 1, 0).state, "suspended");
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->tokens, 1);
    assert_true(tracker_choice(&f.tracker, 2, 0)->tokens > 90);
    submit(&f, 3, 60, 20); /* and are let in */
    fixture_steps(&f, 30);
    assert_int_equal(tracker_choice(&f.tracker, 3, 0)->tokens, 20);
    assert_int_equal(fixture_stats(&f).preemptions, 0);
    assert_int_equal(fixture_stats(&f).suspended, 1);
    kva_scripted_params(f.scripted)->lent_every = 1;
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->tokens, 200);
    fixture_end(&f);
}

/* It has its old place: who came later waits behind it. */
static void test_stranded__then_it_comes_first(void **state KVA_UNUSED)
{
    struct fixture f;
    begin(&f);
    submit(&f, 1, LONG_PROMPT, 100);
    submit(&f, 2, 60, 300);
    fixture_steps(&f, 50);
    kva_scripted_params(f.scripted)->lent_every = 1;
    fixture_step(&f); /* what is not lent takes all of the device */
    submit(&f, 3, 60, 20);
    fixture_run(&f);
    uint64_t first_ns = tracker_choice(&f.tracker, 1, 0)->end.end.times.ended_ns;
    assert_true(tracker_choice(&f.tracker, 3, 0)->end.end.times.admitted_ns >= first_ns);
    fixture_end(&f);
}

/* A long request that may be stranded for 5 s: lent what it lacks every so many polls (0: never), and
 * every so many steps nobody answers for what was lent. */
static void begin_bounded(struct fixture *f, uint32_t lent_every, uint32_t void_every,
                          uint32_t tokens)
{
    fixture_init(f);
    f->scheduling.lending_time_ns = 5 * KVA_NS_PER_S;
    f->engine.limits.budget.device = (uint64_t)DEVICE_PAGES << 16;
    f->engine.others_pages = 64;
    f->engine.lent_every = lent_every;
    f->engine.void_every = void_every;
    fixture_begin(f);
    submit(f, 1, LONG_PROMPT, tokens);
}

/* Until it ends, or for so long. */
static void run_bounded(struct fixture *f, uint64_t time_ns)
{
    uint64_t limit_ns = f->clock.now_ns + time_ns;
    bool idle = false;
    while (!tracker_choice(&f->tracker, 1, 0)->ended && f->clock.now_ns < limit_ns) {
        struct kva_err err;
        uint64_t wake_ns;
        assert_int_equal(kva_scheduler_step(f->scheduler, &idle, &wake_ns, &err), KVA_OK);
        f->clock.now_ns += idle ? 100 * KVA_NS_PER_MS : 0;
    }
}

/* It had its first token, and waited for 5 s at least, and less than `most_ns`. */
static void expect_limit(struct fixture *f, uint64_t most_ns)
{
    const struct kva_output *end = &tracker_choice(&f->tracker, 1, 0)->end;
    assert_int_equal(end->end.status, KVA_ELIMIT);
    assert_int_equal(end->end.output_tokens, 1);
    uint64_t waited_ns = end->end.times.ended_ns - end->end.times.first_token_ns;
    assert_true(waited_ns >= 5 * KVA_NS_PER_S && waited_ns < most_ns);
}

static void test_stranded__its_time_is_bounded(void **state KVA_UNUSED)
{
    struct fixture f;
    begin_bounded(&f, 0, 0, 100);
    f.tracker.expect_errors = true;
    fixture_run(&f);
    expect_limit(&f, 6 * KVA_NS_PER_S);
    fixture_end(&f);
}

/* It is lent what it lacks now and then, and each time whoever holds it does not answer: that it has run
 * in between, for nothing, does not begin its time anew. */
static void test_stranded__its_time_goes_on_where_loans_are_of_no_use(void **state KVA_UNUSED)
{
    struct fixture f;
    begin_bounded(&f, 4, 1, 100);
    f.tracker.expect_errors = true;
    run_bounded(&f, 30 * KVA_NS_PER_S);
    assert_true(fixture_report(&f).lent > 5);
    expect_limit(&f, 10 * KVA_NS_PER_S);
    fixture_end(&f);
}

/* A token says that they are of use: then its time begins anew. */
static void test_stranded__its_time_is_since_its_last_token(void **state KVA_UNUSED)
{
    struct fixture f;
    begin_bounded(&f, 20, 3, 20);
    uint64_t begin_ns = f.clock.now_ns;
    run_bounded(&f, 600 * KVA_NS_PER_S);
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->tokens, 20);
    assert_true(f.clock.now_ns - begin_ns > 6 * KVA_NS_PER_S);
    fixture_end(&f);
}

/* It has most of the host's memory while it waits: who lacks that waits too, and does not end. */
static void test_stranded__others_wait_for_what_it_has(void **state KVA_UNUSED)
{
    struct fixture f;
    fixture_init(&f);
    f.engine.limits.budget.device = (uint64_t)DEVICE_PAGES << 16;
    f.engine.limits.budget.host = 30ull << 16;
    f.engine.others_pages = 64;
    fixture_begin(&f);
    submit(&f, 1, LONG_PROMPT, 100);
    submit(&f, 2, LONG_PROMPT, 50);
    bool idle = false;
    for (uint32_t i = 0; i < 200; i++) {
        struct kva_err err;
        uint64_t wake_ns;
        assert_int_equal(kva_scheduler_step(f.scheduler, &idle, &wake_ns, &err), KVA_OK);
        f.clock.now_ns += idle ? 100 * KVA_NS_PER_MS : 0;
    }
    assert_true(idle);
    kva_scripted_params(f.scripted)->lent_every = 1;
    fixture_run(&f);
    assert_int_equal(tracker_choice(&f.tracker, 1, 0)->tokens, 100);
    assert_int_equal(tracker_choice(&f.tracker, 2, 0)->tokens, 50);
    fixture_end(&f);
}

/* What is more than all can hold is refused at once. */
static void test_stranded__too_long_is_refused(void **state KVA_UNUSED)
{
    struct fixture f;
    begin(&f);
    struct request_spec spec = tracker_spec(1);
    spec.prompt_tokens = (DEVICE_PAGES + 64) * 64;
    spec.output_tokens_max = 1;
    assert_int_equal(fixture_submit(&f, &spec), KVA_ELIMIT);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stranded__others_go_on),
        cmocka_unit_test(test_stranded__then_it_comes_first),
        cmocka_unit_test(test_stranded__its_time_is_bounded),
        cmocka_unit_test(test_stranded__its_time_goes_on_where_loans_are_of_no_use),
        cmocka_unit_test(test_stranded__its_time_is_since_its_last_token),
        cmocka_unit_test(test_stranded__others_wait_for_what_it_has),
        cmocka_unit_test(test_stranded__too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
