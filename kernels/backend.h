/* backend.h - what an implementation of a device gives device.c, which hands the calls of device.h
 * on to it.
 *
 * An implementation's struct kva_device begins with a struct kva_device_base and its struct
 * kva_event with a struct kva_event_base; the rest is its own. The two definitions never meet: the
 * CUDA device is a module of its own. Contracts are those of the functions of device.h. */
#ifndef KVA_KERNELS_BACKEND_H
#define KVA_KERNELS_BACKEND_H

#include "kernels/device.h"

struct kva_profile;

/* What operators cannot be asked of such a device beyond (check.h). */
struct kva_op_limits {
    uint32_t head_dim_max;     /* of attention */
    uint32_t rotary_dim_max;   /* of rope */
    uint32_t partials_max;     /* that merge adds up */
    uint32_t select_heads_max; /* query heads of a KV head that choose rows together */
    uint32_t select_max;       /* rows that a KV head chooses */
    uint32_t slots_max;        /* per KV head of rows that are fetched */
    bool weights_as_act;       /* matrices are of the activations' format, or packed */
};

struct kva_backend {
    struct kva_op_limits limits;
    void (*close)(struct kva_device *device); /* never NULL */
    enum kva_status (*error)(const struct kva_device *device, struct kva_err *err);
    /* Fail for good, unless it has failed before. */
    void (*fail)(struct kva_device *device, const char *message);
    enum kva_status (*alloc)(struct kva_device *device, enum kva_mem mem, size_t bytes, void **ret,
                             struct kva_err *err);
    void (*free)(struct kva_device *device, enum kva_mem mem, void *data, size_t bytes);
    /* data, rows and cols have been checked. */
    enum kva_status (*weight)(struct kva_device *device, const void *data, enum kva_dtype dtype,
                              uint32_t rows, uint32_t cols, struct kva_weight *ret,
                              struct kva_err *err);
    void (*copy)(struct kva_device *device, enum kva_queue queue, void *to, const void *from,
                 size_t bytes);
    void (*sync)(struct kva_device *device, enum kva_queue queue);
    enum kva_status (*event_create)(struct kva_device *device, struct kva_event **ret,
                                    struct kva_err *err);
    void (*event_destroy)(struct kva_event *event); /* never NULL */
    void (*event_record)(struct kva_event *event, enum kva_queue queue);
    void (*event_wait)(struct kva_event *event, enum kva_queue queue);
    bool (*event_done)(const struct kva_event *event);
    void (*event_sync)(struct kva_event *event);
    /* NULL: nothing is gained by deferring work. */
    void (*step_begin)(struct kva_device *device);
    void (*step_part)(struct kva_device *device);
    void (*step_end)(struct kva_device *device);
    void (*steps)(const struct kva_device *device, struct kva_device_steps *ret);
    /* Both, or NULL: nothing runs side by side. */
    bool (*branch)(struct kva_device *device, uint32_t branch);
    void (*join)(struct kva_device *device);
    /* NULL: cannot be measured there. */
    enum kva_status (*roofs)(struct kva_device *device, struct kva_device_roofs *ret,
                             struct kva_err *err);
    /* NULL: it has no solver. */
    enum kva_status (*eigen)(struct kva_device *device, double *matrices, double *values,
                             uint32_t n, uint32_t count, struct kva_err *err);
};

struct kva_device_base {
    const struct kva_backend *backend;
    const struct kva_ops *ops;   /* its own, which assume arguments that check.h lets pass */
    struct kva_profile *profile; /* profile.h's; NULL: none */
    struct kva_device_info info;
};

struct kva_event_base {
    const struct kva_backend *backend;
};

/* --- the CUDA module ---------------------------------------------------------------------------
 *
 * A shared object that exports one symbol. It holds what it needs of base and calls nothing of the
 * program that loads it. */
#define KVA_CUDA_MODULE_SYMBOL "kva_cuda_module"

struct kva_cuda_module {
    const char *version; /* KVA_VERSION: of one build with the program, or it is refused */
    size_t ops_bytes;    /* sizeof(struct kva_ops) */
    /* Opens GPU params->gpu_index. Fails: KVA_ENOTFOUND (no driver or no such GPU; err says which),
     * KVA_EUNSUPPORTED (a GPU too old), KVA_ENOMEM, KVA_EDEVICE. */
    enum kva_status (*open)(const struct kva_device_params *params, struct kva_device **ret,
                            struct kva_err *err);
};

#endif
