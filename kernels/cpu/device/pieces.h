/* pieces.h - how the drivers cut rows, or elements, into pieces for the threads of the pool. */
#ifndef KVA_KERNELS_CPU_DEVICE_PIECES_H
#define KVA_KERNELS_CPU_DEVICE_PIECES_H

#include "kernels/cpu/device/device_cpu.h"

/* Work under this many elements is not worth waking a thread for: a few microseconds. */
#define KVA_CPU_SERIAL_ELEMENTS_MAX 32768u

/* Cuts `total` units into `count` pieces of `unit_count` (the last may be shorter). */
struct kva_cut {
    size_t total;
    size_t unit_count;
    uint32_t count;
};

/* Pieces for `total` units of `cost` elements each: one where the work is small, else about four a
 * thread, so that a late thread holds up little. `align` > 0: pieces are multiples of it. */
static inline struct kva_cut kva_cut_units(const struct kva_device *device, size_t total,
                                           size_t cost, size_t align)
{
    struct kva_cut cut = {.total = total, .unit_count = total, .count = total > 0};
    uint32_t threads = kva_pool_threads(device->pool);
    if (threads == 1 || total * cost <= KVA_CPU_SERIAL_ELEMENTS_MAX)
        return cut;
    size_t smallest = kva_div_up(KVA_CPU_SERIAL_ELEMENTS_MAX / 4, kva_max_size(cost, 1));
    cut.unit_count = kva_max_size(kva_div_up(total, (size_t)threads * 4), smallest);
    cut.unit_count = kva_align_up(cut.unit_count, align);
    cut.count = (uint32_t)kva_div_up(total, cut.unit_count);
    return cut;
}

static inline size_t kva_cut_first(const struct kva_cut *cut, uint32_t index)
{
    return index * cut->unit_count;
}

static inline size_t kva_cut_end(const struct kva_cut *cut, uint32_t index)
{
    return kva_min_size((index + 1) * cut->unit_count, cut->total);
}

/* An operator on rows or elements, in pieces. */
struct kva_piece_job {
    struct kva_device *device;
    const void *args;
    struct kva_cut cut;
};

static inline void kva_pieces_run(struct kva_device *device, const void *args, struct kva_cut cut,
                                  kva_pool_fn *fn)
{
    struct kva_piece_job job = {.device = device, .args = args, .cut = cut};
    if (!kva_cpu_failed(device))
        kva_pool_run(device->pool, cut.count, fn, &job);
}

#endif
