/* fixture.h - a scheduler on a scripted engine, a virtual clock and a tracker: what most tests of
 * this folder start from. */
#ifndef KVA_TESTS_SCHEDULER_FIXTURE_H
#define KVA_TESTS_SCHEDULER_FIXTURE_H

#include "tests/cmocka.h"

#include "tests/scheduler/tracker.h"

struct fixture {
    struct kva_virtual_clock clock;
    struct kva_scripted_params engine;
    struct kva_scheduler_params scheduling;
    struct kva_scripted *scripted;
    struct kva_scheduler *scheduler;
    struct tracker tracker;
};

/* Defaults of the scripted engine, 1 ms per step; 32 running, 100 waiting, 512 tokens per step,
 * half of them prefill, aging of 1 s. Change them, then begin. */
void fixture_init(struct fixture *f);
void fixture_begin(struct fixture *f);

/* Everything must have ended by itself or is ended now; nothing may leak. */
void fixture_end(struct fixture *f);

enum kva_status fixture_submit(struct fixture *f, const struct request_spec *spec);

/* One step that must find work. */
void fixture_step(struct fixture *f);
void fixture_steps(struct fixture *f, uint32_t count);

/* Steps until nothing is live; the clock follows ret_wake_ns. */
void fixture_run(struct fixture *f);

struct kva_scheduler_stats fixture_stats(const struct fixture *f);
struct kva_scripted_report fixture_report(const struct fixture *f);

/* The live choice's view; fails if there is none. */
struct kva_choice_view fixture_view(const struct fixture *f, uint64_t id, uint32_t choice);

#endif
