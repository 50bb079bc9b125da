/* service.c - the side of the service that any thread may call. */
#include "scheduler/service_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

void kva_service_entry_free(struct kva_service_entry *entry)
{
    if (!entry)
        return;
    kva_request_destroy(entry->request);
    free(entry->ends);
    free(entry->cancel);
    free(entry);
}

/* The request becomes the entry's only when the submission has succeeded. */
static struct kva_service_entry *create_entry(const struct kva_request *request)
{
    struct kva_service_entry *entry = calloc(1, sizeof(*entry));
    if (!entry)
        return NULL;
    entry->id = request->id;
    entry->choices = request->choices;
    entry->cancel = calloc(request->choices, 3);
    entry->ends = calloc(request->choices, kva_service_end_bytes());
    if (!entry->cancel || !entry->ends) {
        kva_service_entry_free(entry);
        return NULL;
    }
    entry->apply = entry->cancel + request->choices;
    entry->failed = entry->apply + request->choices;
    kva_list_init(&entry->submit_link);
    kva_list_init(&entry->cancel_link);
    kva_list_init(&entry->engine_link);
    return entry;
}

/* --- life ---------------------------------------------------------------------------------- */

static enum kva_status allocate(struct kva_service *service, struct kva_err *err)
{
    const struct kva_scheduler_params *params = &service->params.scheduler;
    enum kva_status status = kva_scheduler_create(params, &service->scheduler, err);
    if (status != KVA_OK)
        return status;
    uint32_t live_max = params->waiting_max + params->engine->limits.sequences_max;
    service->views = calloc(KVA_SERVICE_VIEWS_MAX, sizeof(service->views[0]));
    service->next_views = calloc(KVA_SERVICE_VIEWS_MAX, sizeof(service->views[0]));
    if (!service->views || !service->next_views ||
        kva_id_table_init(&service->entries, live_max) != KVA_OK ||
        kva_id_table_init(&service->engine_entries, live_max) != KVA_OK)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a service of %u live requests",
                        live_max);
    kva_scheduler_get_stats(service->scheduler, &service->stats);
    return KVA_OK;
}

static void destroy(struct kva_service *service)
{
    kva_scheduler_destroy(service->scheduler);
    kva_id_table_finish(&service->entries);
    kva_id_table_finish(&service->engine_entries);
    kva_outbox_finish(&service->outbox);
    kva_outbox_finish(&service->fresh);
    free(service->views);
    free(service->next_views);
    pthread_cond_destroy(&service->work);
    pthread_mutex_destroy(&service->lock);
    free(service);
}

/* The engine thread takes no signals: they are the event loop's. Faults of its own it must not
 * block, or they end the process whatever their handler would do. */
static int start_thread(struct kva_service *service)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(&service->thread, NULL, kva_service_main, service);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (result == 0)
        pthread_setname_np(service->thread, "kva-engine");
    return result;
}

enum kva_status kva_service_start(const struct kva_service_params *params, struct kva_service **ret,
                                  struct kva_err *err)
{
    struct kva_service *service = calloc(1, sizeof(*service));
    if (!service)
        return kva_fail(err, KVA_ENOMEM, "out of memory for a service");
    service->params = *params;
    service->params.scheduler.on_output = kva_service_on_output;
    service->params.scheduler.opaque = service;
    service->output_bytes_max =
        params->output_bytes_max != 0 ? params->output_bytes_max : KVA_SERVICE_OUTPUT_BYTES;
    kva_list_init(&service->submits);
    kva_list_init(&service->cancels);
    kva_list_init(&service->failing);
    kva_list_init(&service->ended);
    kva_outbox_init(&service->outbox);
    kva_outbox_init(&service->fresh);
    pthread_mutex_init(&service->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&service->work, &attr);
    pthread_condattr_destroy(&attr);

    enum kva_status status = allocate(service, err);
    if (status == KVA_OK) {
        int result = start_thread(service);
        if (result != 0)
            status =
                kva_fail(err, KVA_EIO, "the engine thread cannot be started: %s", strerror(result));
    }
    if (status != KVA_OK) {
        destroy(service);
        return status;
    }
    *ret = service;
    return KVA_OK;
}

void kva_service_stop(struct kva_service *service)
{
    if (!service)
        return;
    pthread_mutex_lock(&service->lock);
    service->stopping = true;
    pthread_cond_signal(&service->work);
    pthread_mutex_unlock(&service->lock);
    pthread_join(service->thread, NULL);
    /* Outputs first: an END in its entry's own storage lets go of the entry. */
    kva_outbox_drain(&service->outbox, NULL, NULL);
    kva_outbox_drain(&service->fresh, NULL, NULL);
    for (uint32_t i = 0; i <= service->entries.mask; i++) {
        while (service->entries.buckets[i]) {
            struct kva_id_node *node = service->entries.buckets[i];
            kva_id_table_remove(&service->entries, node);
            kva_service_entry_free(KVA_CONTAINER_OF(node, struct kva_service_entry, shared_node));
        }
    }
    destroy(service);
}

/* --- commands ------------------------------------------------------------------------------ */

static enum kva_status check_open(const struct kva_service *service, struct kva_err *err)
{
    if (service->status != KVA_OK) {
        if (err)
            *err = service->err;
        return service->status;
    }
    if (service->draining || service->stopping)
        return kva_fail(err, KVA_EBUSY, "the server is draining: it takes no new requests");
    if (service->outbox.bytes > service->output_bytes_max)
        return kva_fail(err, KVA_EBUSY, "%zu bytes of outputs wait to be collected, limit is %zu",
                        service->outbox.bytes, service->output_bytes_max);
    return KVA_OK;
}

/* Under the lock. */
static enum kva_status enqueue(struct kva_service *service, struct kva_service_entry **entries,
                               struct kva_request *const *requests, uint32_t count,
                               uint64_t choices, struct kva_err *err)
{
    enum kva_status status = check_open(service, err);
    if (status != KVA_OK)
        return status;
    uint64_t waiting = (uint64_t)service->waiting_choices + service->queued_choices;
    uint32_t limit = service->params.scheduler.waiting_max;
    if (waiting + choices > limit) {
        service->rejected_queue_full += count;
        return kva_fail(err, KVA_EBUSY,
                        "the queue is full: %llu choices wait and %llu more were sent, "
                        "the limit is %u",
                        (unsigned long long)waiting, (unsigned long long)choices, limit);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (kva_id_table_find(&service->entries, entries[i]->id)) {
            while (i > 0)
                kva_id_table_remove(&service->entries, &entries[--i]->shared_node);
            return kva_fail(err, KVA_EINVAL, "a request with that id is live already");
        }
        kva_id_table_insert(&service->entries, &entries[i]->shared_node, entries[i]->id);
    }
    for (uint32_t i = 0; i < count; i++) {
        entries[i]->request = requests[i];
        kva_list_append(&service->submits, &entries[i]->submit_link);
    }
    service->queued_choices += (uint32_t)choices;
    pthread_cond_signal(&service->work);
    return KVA_OK;
}

static enum kva_status check_requests(struct kva_service *service,
                                      struct kva_request *const *requests, uint32_t count,
                                      uint64_t *ret_choices, struct kva_err *err)
{
    uint64_t choices = 0;
    for (uint32_t i = 0; i < count; i++) {
        enum kva_status status = kva_request_check(&service->params.scheduler, requests[i], err);
        if (status == KVA_ELIMIT) {
            pthread_mutex_lock(&service->lock);
            service->rejected_budget++;
            pthread_mutex_unlock(&service->lock);
        }
        if (status != KVA_OK)
            return status;
        choices += requests[i]->choices;
    }
    *ret_choices = choices;
    return KVA_OK;
}

enum kva_status kva_service_submit(struct kva_service *service, struct kva_request *const *requests,
                                   uint32_t count, struct kva_err *err)
{
    if (count == 0)
        return KVA_OK;
    uint64_t choices = 0;
    enum kva_status status = check_requests(service, requests, count, &choices, err);
    if (status != KVA_OK)
        return status;
    struct kva_service_entry **entries = calloc(count, sizeof(struct kva_service_entry *));
    if (!entries)
        return kva_fail(err, KVA_ENOMEM, "out of memory for %u requests", count);
    uint64_t now_ns = kva_clock_now(service->params.scheduler.clock);
    for (uint32_t i = 0; i < count && status == KVA_OK; i++) {
        if (requests[i]->submitted_ns == 0)
            requests[i]->submitted_ns = now_ns;
        entries[i] = create_entry(requests[i]);
        if (!entries[i])
            status = kva_fail(err, KVA_ENOMEM, "out of memory for %u requests", count);
    }
    if (status == KVA_OK) {
        pthread_mutex_lock(&service->lock);
        status = enqueue(service, entries, requests, count, choices, err);
        pthread_mutex_unlock(&service->lock);
    }
    if (status != KVA_OK)
        for (uint32_t i = 0; i < count; i++)
            kva_service_entry_free(entries[i]);
    free(entries);
    return status;
}

void kva_service_cancel(struct kva_service *service, uint64_t request_id, uint32_t choice,
                        enum kva_finish_reason reason)
{
    pthread_mutex_lock(&service->lock);
    struct kva_id_node *node = kva_id_table_find(&service->entries, request_id);
    if (node) {
        struct kva_service_entry *entry =
            KVA_CONTAINER_OF(node, struct kva_service_entry, shared_node);
        bool all = choice == KVA_ALL_CHOICES;
        for (uint32_t i = 0; i < entry->choices; i++)
            if ((all || i == choice) && entry->cancel[i] == 0)
                entry->cancel[i] = (unsigned char)(reason + 1);
        kva_list_remove(&entry->cancel_link);
        kva_list_append(&service->cancels, &entry->cancel_link);
        pthread_cond_signal(&service->work);
    }
    pthread_mutex_unlock(&service->lock);
}

void kva_service_nudge(struct kva_service *service)
{
    pthread_mutex_lock(&service->lock);
    service->nudged = true;
    pthread_cond_signal(&service->work);
    pthread_mutex_unlock(&service->lock);
}

void kva_service_drain(struct kva_service *service)
{
    const struct kva_service_beside *beside = service->params.beside;
    pthread_mutex_lock(&service->lock);
    service->draining = true;
    service->left |= !beside || !beside->leave;
    service->nudged = true;
    pthread_cond_signal(&service->work);
    pthread_mutex_unlock(&service->lock);
}

bool kva_service_left(struct kva_service *service)
{
    pthread_mutex_lock(&service->lock);
    bool left = service->left || service->status != KVA_OK;
    pthread_mutex_unlock(&service->lock);
    return left;
}

/* --- results ------------------------------------------------------------------------------- */

size_t kva_service_poll(struct kva_service *service, kva_output_fn fn, void *opaque)
{
    struct kva_outbox ready;
    kva_outbox_init(&ready);
    pthread_mutex_lock(&service->lock);
    kva_outbox_append(&ready, &service->outbox);
    service->polling_count += ready.count;
    service->wake_sent = false;
    if (service->paused)
        pthread_cond_signal(&service->work);
    pthread_mutex_unlock(&service->lock);
    if (ready.count == 0)
        return 0;

    size_t count = kva_outbox_drain(&ready, fn, opaque);
    pthread_mutex_lock(&service->lock);
    service->polling_count -= count;
    if (!service->outbox.spare) {
        service->outbox.spare = ready.spare;
        ready.spare = NULL;
    }
    pthread_mutex_unlock(&service->lock);
    kva_outbox_finish(&ready);
    return count;
}

uint32_t kva_service_waiting_max(const struct kva_service *service)
{
    return service->params.scheduler.waiting_max;
}

void kva_service_get_stats(struct kva_service *service, struct kva_scheduler_stats *ret)
{
    pthread_mutex_lock(&service->lock);
    *ret = service->stats;
    ret->waiting = service->waiting_choices + service->queued_choices;
    ret->rejected_queue_full += service->rejected_queue_full;
    ret->rejected_budget += service->rejected_budget;
    pthread_mutex_unlock(&service->lock);
}

uint32_t kva_service_get_view(struct kva_service *service, struct kva_choice_view *views,
                              uint32_t max)
{
    pthread_mutex_lock(&service->lock);
    uint32_t count = kva_min_u32(max, service->view_count);
    memcpy(views, service->views, count * sizeof(views[0]));
    pthread_mutex_unlock(&service->lock);
    return count;
}

bool kva_service_idle(struct kva_service *service)
{
    pthread_mutex_lock(&service->lock);
    bool idle =
        service->entries.count == 0 && service->outbox.count == 0 && service->polling_count == 0;
    pthread_mutex_unlock(&service->lock);
    return idle;
}

enum kva_status kva_service_error(struct kva_service *service, struct kva_err *err)
{
    pthread_mutex_lock(&service->lock);
    enum kva_status status = service->status;
    if (err && status != KVA_OK)
        *err = service->err;
    pthread_mutex_unlock(&service->lock);
    return status;
}
