/* service_fixture.h - a service on a scripted engine, with a tracker for what it hands out.
 *
 * Nothing depends on how fast anything is: where the engine must be caught inside a step, a gate
 * holds it there. */
#ifndef KVA_TESTS_SCHEDULER_SERVICE_FIXTURE_H
#define KVA_TESTS_SCHEDULER_SERVICE_FIXTURE_H

#include "tests/cmocka.h"

#include "scheduler/service.h"
#include "tests/scheduler/tracker.h"

#include <pthread.h>

/* Holds the engine thread inside a step, at its next token. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed;
    uint32_t held; /* threads at the gate */
};

struct setup {
    struct kva_scripted_params engine;
    struct kva_service_params params;
    struct kva_scripted *scripted;
    struct kva_service *service;
    struct tracker tracker;
    struct gate gate;
    pthread_mutex_t lock; /* of the tracker, where several threads submit */
    int wake_fd;
    uint64_t wakes; /* read from wake_fd */
    uint32_t begun; /* thread_begin, thread_end */
    uint32_t ended;
};

/* A closed gate holds the engine at its next token; wait_held: it is there, inside a step. */
void gate_set(struct setup *s, bool closed);
void gate_wait_held(struct setup *s);

/* Defaults, with the gate open; change them, then begin. */
void setup_init(struct setup *s);
void setup_begin(struct setup *s);
void setup_end(struct setup *s);

/* Any thread. */
enum kva_status setup_submit(struct setup *s, const struct request_spec *spec, struct kva_err *err);

/* One thread: take what is ready; sleep until something is; until nothing is live. */
size_t setup_poll(struct setup *s);
void setup_wait_and_poll(struct setup *s);
void setup_run_to_end(struct setup *s);
uint64_t setup_live(struct setup *s);

#endif
