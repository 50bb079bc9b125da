/* events.cu - how queues are ordered: events, and what the module needs of its own. */
#include "kernels/cuda/device_cuda.h"

#include <stdlib.h>

/* --- events ----------------------------------------------------------------------------------- */

enum kva_status kva_cuda_event_create(struct kva_device *device, struct kva_event **ret,
                                      struct kva_err *err)
{
    if (!kva_cuda_enter(device))
        return kva_cuda_error(device, err);
    struct kva_event *event = static_cast<kva_event *>(calloc(1, sizeof *event));
    if (!event)
        return kva_fail(err, KVA_ENOMEM, "no memory for an event");
    cudaError_t status = cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming);
    if (status != cudaSuccess) {
        free(event);
        return kva_cuda_fail_with(err, status, "cudaEventCreate");
    }
    event->base.backend = device->base.backend;
    event->device = device;
    *ret = event;
    return KVA_OK;
}

void kva_cuda_event_destroy(struct kva_event *event)
{
    (void)kva_cuda_enter(event->device);
    (void)cudaEventDestroy(event->event); /* what waits for it still does */
    free(event);
}

void kva_cuda_event_record(struct kva_event *event, enum kva_queue queue)
{
    struct kva_device *device = event->device;
    if (!kva_cuda_enter(device) || kva_cuda_defer_record(event, queue))
        return;
    kva_cuda_check(device, cudaEventRecord(event->event, device->streams[queue]),
                   "cudaEventRecord");
    __atomic_store_n(&event->point, event->event, __ATOMIC_RELEASE);
}

/* Work of a deferred step comes later than all that is waited for here. */
void kva_cuda_event_wait(struct kva_event *event, enum kva_queue queue)
{
    struct kva_device *device = event->device;
    if (!kva_cuda_enter(device) || kva_cuda_defer_wait(event, queue))
        return;
    if (event->point)
        kva_cuda_check(device, cudaStreamWaitEvent(device->streams[queue], event->point, 0),
                       "cudaStreamWaitEvent");
}

bool kva_cuda_event_done(const struct kva_event *event)
{
    if (!kva_cuda_enter(event->device))
        return true; /* nothing will come any more: nobody is to wait for it */
    if (__atomic_load_n(&event->deferred, __ATOMIC_ACQUIRE))
        return false;
    cudaEvent_t point = __atomic_load_n(&event->point, __ATOMIC_ACQUIRE);
    cudaError_t status = point ? cudaEventQuery(point) : cudaSuccess;
    if (status == cudaErrorNotReady)
        return false;
    return kva_cuda_check(event->device, status, "work that ran earlier") || true;
}

void kva_cuda_event_sync(struct kva_event *event)
{
    if (event->deferred)
        kva_cuda_step_break(event->device);
    if (event->point && kva_cuda_enter(event->device))
        kva_cuda_check(event->device, cudaEventSynchronize(event->point), "work that ran earlier");
}

/* --- order ------------------------------------------------------------------------------------ */

/* What one queue is given from now on comes after what another has been given until now; false: the
 * device has failed. */
static bool order(struct kva_device *device, enum kva_queue before, enum kva_queue after)
{
    return kva_cuda_check(device, cudaEventRecord(device->ordered, device->streams[before]),
                          "cudaEventRecord") &&
           kva_cuda_check(device, cudaStreamWaitEvent(device->streams[after], device->ordered, 0),
                          "cudaStreamWaitEvent");
}

bool kva_cuda_open_aside(struct kva_device *device)
{
    device->aside_open = true;
    return order(device, KVA_QUEUE_COMPUTE, KVA_QUEUE_ASIDE);
}

bool kva_cuda_close_aside(struct kva_device *device)
{
    bool open = device->aside_open;
    device->aside_open = false;
    return !open || order(device, KVA_QUEUE_ASIDE, KVA_QUEUE_COMPUTE);
}
