#include "tests/scheduler/fixture.h"

void fixture_init(struct fixture *f)
{
    *f = (struct fixture){0};
    f->engine = kva_scripted_defaults();
    f->engine.step_ns = KVA_NS_PER_MS;
    f->scheduling = (struct kva_scheduler_params){
        .running_max = 32,
        .waiting_max = 100,
        .step_tokens_max = 512,
        .prefill_share_pct = 50,
        .aging_ns = KVA_NS_PER_S,
    };
    kva_virtual_clock_init(&f->clock, 1000 * KVA_NS_PER_S);
}

void fixture_begin(struct fixture *f)
{
    f->engine.clock = &f->clock;
    f->scripted = kva_scripted_create(&f->engine);
    tracker_init(&f->tracker, f->engine.vocab);
    f->tracker.waiting_time_ns = f->scheduling.waiting_time_ns;
    f->scheduling.engine = kva_scripted_engine(f->scripted);
    f->scheduling.clock = &f->clock.clock;
    f->scheduling.on_output = tracker_output;
    f->scheduling.opaque = &f->tracker;
    assert_int_equal(kva_scheduler_create(&f->scheduling, &f->scheduler, NULL), KVA_OK);
}

void fixture_end(struct fixture *f)
{
    kva_scheduler_destroy(f->scheduler);
    kva_scripted_destroy(f->scripted);
    tracker_finish(&f->tracker);
}

enum kva_status fixture_submit(struct fixture *f, const struct request_spec *spec)
{
    return tracker_submit(&f->tracker, f->scheduler, spec, NULL);
}

void fixture_step(struct fixture *f)
{
    bool idle = true;
    uint64_t wake_ns;
    assert_int_equal(kva_scheduler_step(f->scheduler, &idle, &wake_ns, NULL), KVA_OK);
    assert_false(idle);
}

void fixture_steps(struct fixture *f, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        fixture_step(f);
}

void fixture_run(struct fixture *f)
{
    for (uint32_t rounds = 0; f->tracker.live > 0; rounds++) {
        bool idle = true;
        uint64_t wake_ns = 0;
        assert_true(rounds < 1000000);
        assert_int_equal(kva_scheduler_step(f->scheduler, &idle, &wake_ns, NULL), KVA_OK);
        if (idle && f->tracker.live > 0) {
            assert_true(wake_ns > f->clock.now_ns);
            f->clock.now_ns = wake_ns;
        }
    }
}

struct kva_scheduler_stats fixture_stats(const struct fixture *f)
{
    struct kva_scheduler_stats stats;
    kva_scheduler_get_stats(f->scheduler, &stats);
    return stats;
}

struct kva_scripted_report fixture_report(const struct fixture *f)
{
    struct kva_scripted_report report;
    kva_scripted_get_report(f->scripted, &report);
    return report;
}

struct kva_choice_view fixture_view(const struct fixture *f, uint64_t id, uint32_t choice)
{
    struct kva_choice_view views[256];
    uint32_t count = kva_scheduler_get_view(f->scheduler, views, 256);
    for (uint32_t i = 0; i < count; i++)
        if (views[i].request_id == id && views[i].choice == choice)
            return views[i];
    fail_msg("request %llu, choice %u is not live", (unsigned long long)id, choice);
    return views[0];
}
