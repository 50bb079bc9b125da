#include "tests/scheduler/service_fixture.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static uint32_t gated_token(void *opaque, const struct kva_sequence_params *params, uint32_t index)
{
    struct setup *s = opaque;
    pthread_mutex_lock(&s->gate.lock);
    s->gate.held++;
    pthread_cond_broadcast(&s->gate.changed);
    while (s->gate.closed)
        pthread_cond_wait(&s->gate.changed, &s->gate.lock);
    s->gate.held--;
    pthread_mutex_unlock(&s->gate.lock);
    return kva_scripted_token(kva_scripted_hash(params->prompt, params->prompt_tokens),
                              params->sampling, params->choice, index, s->engine.vocab);
}

void gate_set(struct setup *s, bool closed)
{
    pthread_mutex_lock(&s->gate.lock);
    s->gate.closed = closed;
    pthread_cond_broadcast(&s->gate.changed);
    pthread_mutex_unlock(&s->gate.lock);
}

/* The engine is now inside a step. */
void gate_wait_held(struct setup *s)
{
    pthread_mutex_lock(&s->gate.lock);
    while (s->gate.held == 0)
        pthread_cond_wait(&s->gate.changed, &s->gate.lock);
    pthread_mutex_unlock(&s->gate.lock);
}

static void wake(void *opaque)
{
    const struct setup *s = opaque;
    uint64_t one = 1;
    ssize_t written = write(s->wake_fd, &one, sizeof(one));
    (void)written;
}

static void thread_begin(void *opaque)
{
    ((struct setup *)opaque)->begun++;
}

static void thread_end(void *opaque)
{
    ((struct setup *)opaque)->ended++;
}

void setup_init(struct setup *s)
{
    memset(s, 0, sizeof(*s));
    s->engine = kva_scripted_defaults();
    s->engine.next_token = gated_token;
    s->engine.next_token_opaque = s;
    s->params.scheduler = (struct kva_scheduler_params){
        .running_max = 32,
        .waiting_max = 100,
        .step_tokens_max = 512,
        .prefill_share_pct = 50,
        .aging_ns = KVA_NS_PER_S,
    };
    pthread_mutex_init(&s->gate.lock, NULL);
    pthread_cond_init(&s->gate.changed, NULL);
    pthread_mutex_init(&s->lock, NULL);
    s->wake_fd = eventfd(0, EFD_CLOEXEC);
    assert_true(s->wake_fd >= 0);
}

void setup_begin(struct setup *s)
{
    s->scripted = kva_scripted_create(&s->engine);
    tracker_init(&s->tracker, s->engine.vocab);
    s->params.scheduler.engine = kva_scripted_engine(s->scripted);
    s->params.scheduler.clock = kva_clock_real();
    s->params.wake = wake;
    s->params.wake_opaque = s;
    s->params.thread_begin = thread_begin;
    s->params.thread_end = thread_end;
    assert_int_equal(kva_service_start(&s->params, &s->service, NULL), KVA_OK);
}

void setup_end(struct setup *s)
{
    kva_service_stop(s->service);
    assert_int_equal(s->begun, 1);
    assert_int_equal(s->ended, 1);
    kva_scripted_destroy(s->scripted);
    tracker_finish(&s->tracker);
    close(s->wake_fd);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->gate.lock);
    pthread_cond_destroy(&s->gate.changed);
}

enum kva_status setup_submit(struct setup *s, const struct request_spec *spec, struct kva_err *err)
{
    pthread_mutex_lock(&s->lock);
    struct kva_request *request = tracker_request(&s->tracker, spec);
    enum kva_status status = kva_service_submit(s->service, &request, 1, err);
    if (status == KVA_OK)
        tracker_accept(&s->tracker, spec->id);
    else
        tracker_refuse(&s->tracker, request);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static void take_output(void *opaque, const struct kva_output *output)
{
    struct setup *s = opaque;
    pthread_mutex_lock(&s->lock);
    tracker_output(&s->tracker, output);
    pthread_mutex_unlock(&s->lock);
}

size_t setup_poll(struct setup *s)
{
    return kva_service_poll(s->service, take_output, s);
}

/* Sleep until the service signals, then poll. */
void setup_wait_and_poll(struct setup *s)
{
    uint64_t value;
    assert_int_equal(read(s->wake_fd, &value, sizeof(value)), sizeof(value));
    s->wakes += value;
    setup_poll(s);
}

uint64_t setup_live(struct setup *s)
{
    pthread_mutex_lock(&s->lock);
    uint64_t count = s->tracker.live;
    pthread_mutex_unlock(&s->lock);
    return count;
}

void setup_run_to_end(struct setup *s)
{
    while (setup_live(s) > 0)
        setup_wait_and_poll(s);
}
