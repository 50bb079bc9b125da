/* service_thread.c - the engine thread: commands in, a step, outputs out. */
#include "scheduler/service_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct kva_service_entry *find_entry(const struct kva_service *service, uint64_t id)
{
    struct kva_id_node *node = kva_id_table_find(&service->engine_entries, id);
    return node ? KVA_CONTAINER_OF(node, struct kva_service_entry, engine_node) : NULL;
}

/* Whoever polls has read an END that was kept in its entry. */
static void end_released(void *opaque)
{
    struct kva_service_lent_end lent = *(struct kva_service_lent_end *)opaque;
    pthread_mutex_lock(&lent.service->lock);
    lent.entry->ends_lent--;
    bool done = lent.entry->closed && lent.entry->ends_lent == 0;
    pthread_mutex_unlock(&lent.service->lock);
    if (done)
        kva_service_entry_free(lent.entry);
}

static void put_end(struct kva_service *service, struct kva_service_entry *entry,
                    const struct kva_output *output)
{
    struct kva_output end = *output;
    if (entry->failed[end.choice]) {
        end.end.reason = KVA_FINISH_ERROR;
        end.end.status = KVA_ENOMEM;
        end.end.output_tokens -= entry->failed[end.choice] - 1u;
    }
    if (kva_outbox_put(&service->fresh, &end) != KVA_OK) {
        unsigned char *storage = entry->ends + end.choice * kva_service_end_bytes();
        struct kva_service_lent_end lent = {.service = service, .entry = entry};
        void *opaque = storage + kva_outbox_reserve_bytes();
        memcpy(opaque, &lent, sizeof(lent));
        pthread_mutex_lock(&service->lock);
        entry->ends_lent++;
        pthread_mutex_unlock(&service->lock);
        kva_outbox_put_end(&service->fresh, &end, storage, end_released, opaque);
    }
    entry->live--;
    if (entry->live > 0)
        return;
    kva_id_table_remove(&service->engine_entries, &entry->engine_node);
    kva_list_remove(&entry->engine_link);
    kva_list_append(&service->ended, &entry->engine_link);
}

void kva_service_on_output(void *opaque, const struct kva_output *output)
{
    struct kva_service *service = opaque;
    struct kva_service_entry *entry = find_entry(service, output->request_id);
    if (output->kind == KVA_OUTPUT_END) {
        put_end(service, entry, output);
        return;
    }
    /* A stream with a hole is worse than one that ends with an error. The choice is cancelled after
     * the step, so that no more than one token of it is dropped. */
    unsigned char *failed = &entry->failed[output->choice];
    if (*failed == 0) {
        if (kva_outbox_put(&service->fresh, output) == KVA_OK ||
            output->kind == KVA_OUTPUT_PROGRESS)
            return;
        *failed = 1;
        kva_list_remove(&entry->engine_link);
        kva_list_append(&service->failing, &entry->engine_link);
    }
    if (output->kind == KVA_OUTPUT_TOKEN)
        (*failed)++;
}

/* The scheduler would not take it after all: its choices end before they began. */
static void refuse(struct kva_service *service, struct kva_service_entry *entry,
                   enum kva_status status)
{
    uint64_t now_ns = kva_clock_now(service->params.scheduler.clock);
    struct kva_output output = {
        .request_id = entry->id,
        .kind = KVA_OUTPUT_END,
        .time_ns = now_ns,
        .end = {.reason = KVA_FINISH_ERROR,
                .status = status,
                .times = {.submitted_ns = entry->request->submitted_ns, .ended_ns = now_ns}},
    };
    kva_request_destroy(entry->request);
    entry->request = NULL;
    uint32_t choices = entry->choices;
    for (uint32_t i = 0; i < choices; i++) {
        output.choice = i;
        put_end(service, entry, &output);
    }
}

static void apply_submits(struct kva_service *service, struct kva_list *submits)
{
    while (!kva_list_empty(submits)) {
        struct kva_service_entry *entry =
            KVA_CONTAINER_OF(submits->next, struct kva_service_entry, submit_link);
        kva_list_remove(&entry->submit_link);
        kva_id_table_insert(&service->engine_entries, &entry->engine_node, entry->id);
        entry->live = entry->choices;
        enum kva_status status = kva_scheduler_submit(service->scheduler, entry->request, NULL);
        if (status == KVA_OK)
            entry->request = NULL;
        else
            refuse(service, entry, status);
    }
}

static void cancel_marked(struct kva_service *service, struct kva_list *list, bool failing)
{
    while (!kva_list_empty(list)) {
        struct kva_service_entry *entry =
            KVA_CONTAINER_OF(list->next, struct kva_service_entry, engine_link);
        kva_list_remove(&entry->engine_link);
        /* The entry outlives its last choice: it is freed when the step's results are published. */
        for (uint32_t i = 0; i < entry->choices && entry->live > 0; i++) {
            if (failing && entry->failed[i]) {
                kva_scheduler_cancel(service->scheduler, entry->id, i, KVA_FINISH_ERROR);
            } else if (!failing && entry->apply[i]) {
                enum kva_finish_reason reason = (enum kva_finish_reason)(entry->apply[i] - 1);
                kva_scheduler_cancel(service->scheduler, entry->id, i, reason);
            }
        }
    }
}

/* Under the lock: the marks are copied, so that they can be applied without it. */
static void take_cancels(struct kva_service *service, struct kva_list *ret)
{
    while (!kva_list_empty(&service->cancels)) {
        struct kva_service_entry *entry =
            KVA_CONTAINER_OF(service->cancels.next, struct kva_service_entry, cancel_link);
        kva_list_remove(&entry->cancel_link);
        memcpy(entry->apply, entry->cancel, entry->choices);
        kva_list_remove(&entry->engine_link);
        kva_list_append(ret, &entry->engine_link);
    }
}

/* Outside the lock. */
static void take_snapshot(struct kva_service *service, bool idle)
{
    kva_scheduler_get_stats(service->scheduler, &service->next_stats);
    uint64_t now_ns = kva_clock_now(service->params.scheduler.clock);
    service->view_fresh = idle || now_ns - service->view_ns >= KVA_SERVICE_VIEW_NS;
    if (!service->view_fresh)
        return;
    service->view_ns = now_ns;
    service->next_view_count =
        kva_scheduler_get_view(service->scheduler, service->next_views, KVA_SERVICE_VIEWS_MAX);
}

/* Under the lock. Entries whose memory is no longer needed go to `ret_garbage`. True: wake the
 * receiver. */
static bool publish(struct kva_service *service, struct kva_list *ret_garbage)
{
    service->stats = service->next_stats;
    service->waiting_choices = service->next_stats.waiting;
    if (service->view_fresh) {
        struct kva_choice_view *views = service->views;
        service->views = service->next_views;
        service->view_count = service->next_view_count;
        service->next_views = views;
    }
    while (!kva_list_empty(&service->ended)) {
        struct kva_service_entry *entry =
            KVA_CONTAINER_OF(service->ended.next, struct kva_service_entry, engine_link);
        kva_list_remove(&entry->engine_link);
        kva_id_table_remove(&service->entries, &entry->shared_node);
        kva_list_remove(&entry->cancel_link);
        entry->closed = true;
        if (entry->ends_lent == 0)
            kva_list_append(ret_garbage, &entry->engine_link);
    }
    bool wake = service->fresh.count > 0 && !service->wake_sent;
    kva_outbox_append(&service->outbox, &service->fresh);
    service->wake_sent = service->wake_sent || wake;
    if (!service->fresh.spare) {
        service->fresh.spare = service->outbox.spare;
        service->outbox.spare = NULL;
    }
    return wake;
}

static void free_garbage(struct kva_list *garbage)
{
    while (!kva_list_empty(garbage)) {
        struct kva_service_entry *entry =
            KVA_CONTAINER_OF(garbage->next, struct kva_service_entry, engine_link);
        kva_list_remove(&entry->engine_link);
        kva_service_entry_free(entry);
    }
}

/* Under the lock, which is given up meanwhile: sleep until there is something to do. `wake_ns` on
 * the scheduler's clock; 0: no limit. */
static void sleep_until(struct kva_service *service, uint64_t wake_ns)
{
    struct timespec until = {0};
    if (wake_ns != 0) {
        uint64_t now_ns = kva_clock_now(service->params.scheduler.clock);
        if (wake_ns <= now_ns)
            return;
        uint64_t at_ns = kva_time_ns() + (wake_ns - now_ns);
        until.tv_sec = (time_t)(at_ns / KVA_NS_PER_S);
        until.tv_nsec = (long)(at_ns % KVA_NS_PER_S);
    }
    while (!service->stopping && !service->nudged && kva_list_empty(&service->submits) &&
           kva_list_empty(&service->cancels)) {
        if (service->paused && service->outbox.bytes <= service->output_bytes_max)
            break;
        int result = wake_ns != 0 ? pthread_cond_timedwait(&service->work, &service->lock, &until)
                                  : pthread_cond_wait(&service->work, &service->lock);
        if (result == ETIMEDOUT)
            break;
    }
}

/* The earlier of two points in time; 0: none. */
static uint64_t earlier(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns == 0 || (b_ns != 0 && b_ns < a_ns) ? b_ns : a_ns;
}

/* When it wants to be called again; 0: it does not mind. */
static uint64_t run_beside(struct kva_service *service)
{
    const struct kva_service_beside *beside = service->params.beside;
    return beside ? beside->between_steps(beside->opaque, service->scheduler) : 0;
}

/* Whether nobody needs what goes on beside requests, in a service that drains. */
static bool leave(struct kva_service *service)
{
    const struct kva_service_beside *beside = service->params.beside;
    return !beside || !beside->leave || beside->leave(beside->opaque);
}

/* One round, under the lock, which is given up meanwhile. True: nothing to do before *ret_wake_ns.
 */
static bool run_round(struct kva_service *service, uint64_t *ret_wake_ns)
{
    struct kva_list submits, cancels, garbage;
    kva_list_init(&submits);
    kva_list_init(&cancels);
    kva_list_init(&garbage);
    kva_list_splice(&submits, &service->submits);
    service->waiting_choices += service->queued_choices;
    service->queued_choices = 0;
    take_cancels(service, &cancels);
    service->nudged = false;
    bool paused = service->outbox.bytes > service->output_bytes_max;
    bool draining = service->draining;
    pthread_mutex_unlock(&service->lock);

    bool idle = true;
    *ret_wake_ns = 0;
    struct kva_err err = {.message = ""};
    enum kva_status status = KVA_OK;
    apply_submits(service, &submits);
    cancel_marked(service, &cancels, false);
    uint64_t beside_ns = run_beside(service);
    bool left = draining && leave(service);
    if (!paused)
        status = kva_scheduler_step(service->scheduler, &idle, ret_wake_ns, &err);
    *ret_wake_ns = earlier(*ret_wake_ns, beside_ns);
    cancel_marked(service, &service->failing, true);
    take_snapshot(service, idle);

    pthread_mutex_lock(&service->lock);
    if (status != KVA_OK && service->status == KVA_OK) {
        service->status = status;
        service->err = err;
    }
    bool wake = publish(service, &garbage) || (left && !service->left);
    service->left |= left;
    service->paused = paused;
    if (wake || !kva_list_empty(&garbage)) {
        pthread_mutex_unlock(&service->lock);
        if (wake)
            service->params.wake(service->params.wake_opaque);
        free_garbage(&garbage);
        pthread_mutex_lock(&service->lock);
    }
    return idle;
}

void *kva_service_main(void *opaque)
{
    struct kva_service *service = opaque;
    void *thread_opaque = service->params.wake_opaque;
    if (service->params.thread_begin)
        service->params.thread_begin(thread_opaque);
    pthread_mutex_lock(&service->lock);
    while (!service->stopping) {
        uint64_t wake_ns = 0;
        if (run_round(service, &wake_ns))
            sleep_until(service, wake_ns);
    }
    pthread_mutex_unlock(&service->lock);
    if (service->params.beside)
        service->params.beside->end(service->params.beside->opaque);
    /* The engine's objects belong to this thread, to the end. */
    kva_scheduler_destroy(service->scheduler);
    service->scheduler = NULL;
    if (service->params.thread_end)
        service->params.thread_end(thread_opaque);
    return NULL;
}
