/* device.c - hands the calls of device.h on to the device that they are about, and finds the CUDA
 * module. */
#include "kernels/backend.h"
#include "kernels/check.h"
#include "kernels/ops.h"
#include "kernels/packed.h"

#include <dlfcn.h>
#include <string.h>

static struct kva_device_base *base_of(struct kva_device *device)
{
    return (struct kva_device_base *)device;
}

static const struct kva_backend *backend_of(const struct kva_device *device)
{
    return ((const struct kva_device_base *)device)->backend;
}

static const struct kva_backend *backend_of_event(const struct kva_event *event)
{
    return ((const struct kva_event_base *)event)->backend;
}

/* --- the device ------------------------------------------------------------------------------- */

void kva_device_close(struct kva_device *device)
{
    if (device)
        backend_of(device)->close(device);
}

const struct kva_device_info *kva_device_get_info(const struct kva_device *device)
{
    return &((const struct kva_device_base *)device)->info;
}

uint32_t kva_device_head_dim_max(const struct kva_device *device)
{
    return backend_of(device)->limits.head_dim_max;
}

const struct kva_ops *kva_device_ops(const struct kva_device *device)
{
    return kva_checked_ops(device);
}

enum kva_status kva_device_error(const struct kva_device *device, struct kva_err *err)
{
    return backend_of(device)->error(device, err);
}

enum kva_status kva_device_measure(struct kva_device *device, struct kva_device_roofs *ret,
                                   struct kva_err *err)
{
    if (!backend_of(device)->roofs)
        return kva_fail(err, KVA_EUNSUPPORTED, "the roofs of '%s' cannot be measured",
                        kva_device_get_info(device)->name);
    return backend_of(device)->roofs(device, ret, err);
}

enum kva_status kva_device_eigen(struct kva_device *device, double *matrices, double *values,
                                 uint32_t n, uint32_t count, struct kva_err *err)
{
    if (!backend_of(device)->eigen)
        return kva_fail(err, KVA_EUNSUPPORTED, "'%s' has no solver of eigenvectors",
                        kva_device_get_info(device)->name);
    return backend_of(device)->eigen(device, matrices, values, n, count, err);
}

/* --- memory ----------------------------------------------------------------------------------- */

enum kva_status kva_device_alloc(struct kva_device *device, enum kva_mem mem, size_t bytes,
                                 void **ret, struct kva_err *err)
{
    return backend_of(device)->alloc(device, mem, bytes, ret, err);
}

void kva_device_free(struct kva_device *device, enum kva_mem mem, void *data, size_t bytes)
{
    if (data)
        backend_of(device)->free(device, mem, data, bytes);
}

enum kva_status kva_device_weight(struct kva_device *device, const void *data, enum kva_dtype dtype,
                                  uint32_t rows, uint32_t cols, struct kva_weight *ret,
                                  struct kva_err *err)
{
    if ((unsigned)dtype >= KVA_DTYPE_END)
        return kva_fail(err, KVA_EINVAL, "weight [%u, %u] has an unknown data type %d", rows, cols,
                        (int)dtype);
    if (!data || rows == 0 || cols == 0)
        return kva_fail(err, KVA_EINVAL, "weight [%u, %u] is empty", rows, cols);
    size_t align = kva_dtype_is_packed(dtype) ? KVA_PACKED_ALIGN : kva_dtype_bytes(dtype);
    if ((uintptr_t)data % align != 0)
        return kva_fail(err, KVA_EINVAL, "weight [%u, %u] is not aligned to its %zu-byte elements",
                        rows, cols, align);
    return backend_of(device)->weight(device, data, dtype, rows, cols, ret, err);
}

/* --- queues, copies, events ------------------------------------------------------------------- */

void kva_device_copy(struct kva_device *device, enum kva_queue queue, void *to, const void *from,
                     size_t bytes)
{
    backend_of(device)->copy(device, queue, to, from, bytes);
}

void kva_device_sync(struct kva_device *device, enum kva_queue queue)
{
    backend_of(device)->sync(device, queue);
}

void kva_device_step_begin(struct kva_device *device)
{
    if (backend_of(device)->step_begin)
        backend_of(device)->step_begin(device);
}

void kva_device_step_part(struct kva_device *device)
{
    if (backend_of(device)->step_part)
        backend_of(device)->step_part(device);
}

void kva_device_step_end(struct kva_device *device)
{
    if (backend_of(device)->step_end)
        backend_of(device)->step_end(device);
}

bool kva_device_branch(struct kva_device *device, uint32_t branch)
{
    return backend_of(device)->branch && backend_of(device)->branch(device, branch);
}

void kva_device_join(struct kva_device *device)
{
    if (backend_of(device)->join)
        backend_of(device)->join(device);
}

void kva_device_get_steps(const struct kva_device *device, struct kva_device_steps *ret)
{
    *ret = (struct kva_device_steps){0};
    if (backend_of(device)->steps)
        backend_of(device)->steps(device, ret);
}

enum kva_status kva_event_create(struct kva_device *device, struct kva_event **ret,
                                 struct kva_err *err)
{
    return base_of(device)->backend->event_create(device, ret, err);
}

void kva_event_destroy(struct kva_event *event)
{
    if (event)
        backend_of_event(event)->event_destroy(event);
}

void kva_event_record(struct kva_event *event, enum kva_queue queue)
{
    backend_of_event(event)->event_record(event, queue);
}

void kva_event_wait(struct kva_event *event, enum kva_queue queue)
{
    backend_of_event(event)->event_wait(event, queue);
}

bool kva_event_done(const struct kva_event *event)
{
    return backend_of_event(event)->event_done(event);
}

void kva_event_sync(struct kva_event *event)
{
    backend_of_event(event)->event_sync(event);
}

/* --- the CUDA module -------------------------------------------------------------------------- */

enum kva_status kva_device_open_cuda(const char *module_path,
                                     const struct kva_device_params *params,
                                     struct kva_device **ret, struct kva_err *err)
{
    /* The module stays loaded: the CUDA runtime does not survive being unloaded. */
    void *library = dlopen(module_path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return kva_fail(err, KVA_ENOTFOUND, "no CUDA module: %s", dlerror());
    const struct kva_cuda_module *module = dlsym(library, KVA_CUDA_MODULE_SYMBOL);
    enum kva_status status;
    if (!module)
        status = kva_fail(err, KVA_EFORMAT, "'%s' is no CUDA module of kvahead", module_path);
    else if (strcmp(module->version, KVA_VERSION) != 0 ||
             module->ops_bytes != sizeof(struct kva_ops))
        status = kva_fail(err, KVA_EFORMAT, "'%s' is of another build (version %s; this is %s)",
                          module_path, module->version, KVA_VERSION);
    else
        status = module->open(params, ret, err);
    dlclose(library);
    return status;
}
