/* test_service_beside.c - what goes on beside requests on the engine's thread, such as loans of a
 * cluster: when it is called, and that others are told before the thread ends. */
#include "tests/scheduler/service_fixture.h"

/* What goes on beside requests, in counts that a test waits for. */
struct beside {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t calls;
    uint32_t ends;
    uint64_t again_ns; /* after a call, when the next one is wanted; 0: not at all */
    bool drains;       /* it was told */
    bool needed;       /* by others */
};

static uint64_t between_steps(void *opaque, struct kva_scheduler *scheduler)
{
    struct beside *b = opaque;
    assert_non_null(scheduler);
    pthread_mutex_lock(&b->lock);
    b->calls++;
    uint64_t again_ns = b->again_ns ? kva_time_ns() + b->again_ns : 0;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return again_ns;
}

static bool leave_beside(void *opaque)
{
    struct beside *b = opaque;
    pthread_mutex_lock(&b->lock);
    bool needed = b->needed;
    b->drains = true;
    pthread_mutex_unlock(&b->lock);
    return !needed;
}

static void end_beside(void *opaque)
{
    struct beside *b = opaque;
    b->ends++;
}

static void begin(struct setup *s, struct beside *b, const struct kva_service_beside *beside)
{
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    setup_init(s);
    s->params.beside = beside;
    setup_begin(s);
}

static void end(struct setup *s, struct beside *b)
{
    setup_end(s);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->changed);
}

static void wait_calls(struct beside *b, uint32_t calls)
{
    pthread_mutex_lock(&b->lock);
    while (b->calls < calls)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static uint32_t calls_of(struct beside *b)
{
    pthread_mutex_lock(&b->lock);
    uint32_t calls = b->calls;
    pthread_mutex_unlock(&b->lock);
    return calls;
}

static void test_service__goes_on_beside_requests(void **state KVA_UNUSED)
{
    struct beside b = {.again_ns = KVA_NS_PER_MS};
    const struct kva_service_beside beside = {
        .opaque = &b, .between_steps = between_steps, .end = end_beside};
    struct setup s;
    begin(&s, &b, &beside);
    wait_calls(&b, 5); /* nothing runs: it is called when it wants to be */
    pthread_mutex_lock(&b.lock);
    b.again_ns = 0;
    uint32_t calls = b.calls;
    pthread_mutex_unlock(&b.lock);
    for (uint32_t i = 1; i <= 5; i++) {
        kva_service_nudge(s.service);
        wait_calls(&b, calls + i);
    }
    struct request_spec spec = tracker_spec(1);
    assert_int_equal(setup_submit(&s, &spec, NULL), KVA_OK);
    setup_run_to_end(&s);
    struct kva_scheduler_stats stats;
    kva_service_get_stats(s.service, &stats);
    assert_true(calls_of(&b) >= stats.steps);
    assert_int_equal(b.ends, 0);
    end(&s, &b);
    assert_int_equal(b.ends, 1);
}

/* A service that drains is told of it by what goes on beside it, and says when nobody needs that. */
static void test_service__is_left_when_others_need_it_no_more(void **state KVA_UNUSED)
{
    struct beside b = {.needed = true};
    const struct kva_service_beside beside = {
        .opaque = &b, .between_steps = between_steps, .leave = leave_beside, .end = end_beside};
    struct setup s;
    begin(&s, &b, &beside);
    wait_calls(&b, 1);
    assert_false(b.drains || kva_service_left(s.service));
    kva_service_drain(s.service);
    for (uint32_t i = 0; i < 3; i++) { /* after two more calls it has answered at least once */
        uint32_t calls = calls_of(&b);
        kva_service_nudge(s.service);
        wait_calls(&b, calls + 1);
    }
    pthread_mutex_lock(&b.lock);
    assert_true(b.drains && !kva_service_left(s.service));
    b.needed = false;
    pthread_mutex_unlock(&b.lock);
    kva_service_nudge(s.service);
    while (!kva_service_left(s.service))
        setup_wait_and_poll(&s); /* it wakes whoever polls */
    end(&s, &b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_service__goes_on_beside_requests),
        cmocka_unit_test(test_service__is_left_when_others_need_it_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
