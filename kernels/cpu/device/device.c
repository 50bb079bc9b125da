/* device.c - the CPU device: memory, weights, events, and the compute queue, which runs inline. */
#include "kernels/cpu/device/device_cpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Allocations from this size on ask for huge pages: weights and KV pools are read in long streams,
 * where the page walks of 4 KiB pages show. */
#define HUGE_PAGES_FROM_BYTES (4u * 1024u * 1024u)
#define HUGE_PAGE_BYTES       (2u * 1024u * 1024u)

/* What one thread makes physical at a time. */
#define PREFAULT_PIECE_BYTES (64u * 1024u * 1024u)

/* Copies on the compute queue from this size on are shared between threads. */
#define COPY_PIECE_BYTES (256u * 1024u)

struct kva_event {
    struct kva_event_base base;
    struct kva_device *device;
    _Atomic uint64_t wanted;  /* value of the newest record; 0: never recorded */
    _Atomic uint64_t reached; /* largest value whose point has been reached */
};

const struct kva_ops kva_cpu_ops = {
    .embed = kva_cpu_embed,
    .norm = kva_cpu_norm,
    .linear = kva_cpu_linear,
    .linear_group = kva_cpu_linear_group,
    .linear_glu = kva_cpu_linear_glu,
    .rope = kva_cpu_rope,
    .glu = kva_cpu_glu,
    .gather = kva_cpu_gather,
    .sum_rows = kva_cpu_sum_rows,
    .kv_append = kva_cpu_kv_append,
    .quantise = kva_cpu_quantise,
    .attend = kva_cpu_attend,
    .attend_lowbit = kva_cpu_attend_lowbit,
    .attend_rows = kva_cpu_attend_rows,
    .merge = kva_cpu_merge,
    .attend_select_fetch = kva_cpu_attend_select_fetch,
    .weigh = kva_cpu_weigh,
    .choose = kva_cpu_choose,
    .accumulate = kva_cpu_accumulate,
    .assign_slots = kva_cpu_assign_slots,
    .fetch_rows = kva_cpu_fetch_rows,
    .query_cosine = kva_cpu_query_cosine,
    .shortlist = kva_cpu_shortlist,
    .attend_mass = kva_cpu_attend_mass,
    .mean_keys = kva_cpu_mean_keys,
    .row_error = kva_cpu_row_error,
    .keep = kva_cpu_keep,
    .store_rows = kva_cpu_store_rows,
    .use_rows = kva_cpu_use_rows,
    .roll_rows = kva_cpu_roll_rows,
    .sketch = kva_cpu_sketch,
    .sketch_queries = kva_cpu_sketch_queries,
    .sketch_sums = kva_cpu_sketch_sums,
    .sketch_weigh = kva_cpu_sketch_weigh,
    .attend_apart = kva_cpu_attend_apart,
    .attend_join = kva_cpu_attend_join,
};

/* --- memory ---------------------------------------------------------------------------------- */

static size_t mapping_bytes(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return kva_align_up(kva_max_size(bytes, 1), page);
}

/* Zeroed memory that is physical once touched; NULL: refused. */
static void *map_memory(size_t bytes)
{
    if (bytes > SIZE_MAX - HUGE_PAGE_BYTES)
        return NULL;
    size_t size = mapping_bytes(bytes);
    /* A large mapping starts at a huge page, or its head would stay on small ones. */
    size_t slack = bytes >= HUGE_PAGES_FROM_BYTES ? HUGE_PAGE_BYTES : 0;
    unsigned char *data = mmap(NULL, size + slack, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return NULL;
    if (slack == 0)
        return data;
    size_t head = kva_align_up((uintptr_t)data, HUGE_PAGE_BYTES) - (uintptr_t)data;
    if (head > 0)
        munmap(data, head);
    if (slack > head)
        munmap(data + head + size, slack - head);
    /* Only advice: without it the memory is as good and a little slower. */
    (void)madvise(data + head, size, MADV_HUGEPAGE);
    return data + head;
}

static void unmap_memory(void *data, size_t bytes)
{
    if (data)
        munmap(data, mapping_bytes(bytes));
}

/* Memory that is to become physical. */
struct prefault {
    unsigned char *data;
    size_t bytes;
    _Atomic bool failed;
};

/* MADV_POPULATE_WRITE (Linux 5.14) says when there is no memory; touching finds out too late. */
static void prefault_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    struct prefault *prefault = opaque;
    size_t first = (size_t)index * PREFAULT_PIECE_BYTES;
    unsigned char *piece = prefault->data + first;
    size_t bytes = kva_min_size(PREFAULT_PIECE_BYTES, prefault->bytes - first);
    int problem = EINVAL;
#ifdef MADV_POPULATE_WRITE
    do
        problem = madvise(piece, mapping_bytes(bytes), MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    while (problem == EINTR);
#endif
    /* An older kernel: nobody has the memory yet, and it is zero. */
    for (size_t i = 0; problem == EINVAL && i < bytes; i += 4096)
        ((volatile unsigned char *)piece)[i] = 0;
    if (problem != 0 && problem != EINVAL)
        atomic_store(&prefault->failed, true);
}

static enum kva_status cpu_alloc(struct kva_device *device, enum kva_mem mem, size_t bytes,
                                 void **ret, struct kva_err *err)
{
    const char *tier = mem == KVA_MEM_DEVICE ? "device" : "host";
    void *data = map_memory(bytes);
    if (!data)
        return kva_fail(err, KVA_ENOMEM, "the %s tier cannot give %zu bytes", tier, bytes);
    if (device->prefault && bytes >= HUGE_PAGES_FROM_BYTES) {
        struct prefault prefault = {.data = data, .bytes = bytes};
        kva_pool_run(device->pool, (uint32_t)kva_div_up(bytes, PREFAULT_PIECE_BYTES),
                     prefault_piece, &prefault);
        if (atomic_load(&prefault.failed)) {
            unmap_memory(data, bytes);
            return kva_fail(err, KVA_ENOMEM, "there is no memory behind the %s tier's %zu bytes",
                            tier, bytes);
        }
    }
    *ret = data;
    return KVA_OK;
}

static void cpu_free(struct kva_device *device KVA_UNUSED, enum kva_mem mem KVA_UNUSED, void *data,
                     size_t bytes)
{
    unmap_memory(data, bytes);
}

static enum kva_status cpu_weight(struct kva_device *device KVA_UNUSED, const void *data,
                                  enum kva_dtype dtype, uint32_t rows, uint32_t cols,
                                  struct kva_weight *ret, struct kva_err *err KVA_UNUSED)
{
    *ret = (struct kva_weight){.data = data, .dtype = dtype, .rows = rows, .cols = cols};
    return KVA_OK;
}

/* --- copies and events ------------------------------------------------------------------------ */

struct copy_job {
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
};

static void copy_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct copy_job *job = opaque;
    size_t first = (size_t)index * COPY_PIECE_BYTES;
    memcpy(job->to + first, job->from + first, kva_min_size(COPY_PIECE_BYTES, job->bytes - first));
}

static void cpu_copy(struct kva_device *device, enum kva_queue queue, void *to, const void *from,
                     size_t bytes)
{
    if (queue == KVA_QUEUE_COPY) {
        kva_copy_queue_copy(device->copies, to, from, bytes);
        return;
    }
    struct copy_job job = {.to = to, .from = from, .bytes = bytes};
    kva_pool_run(device->pool, (uint32_t)kva_div_up(bytes, COPY_PIECE_BYTES), copy_piece, &job);
}

static enum kva_status cpu_event_create(struct kva_device *device, struct kva_event **ret,
                                        struct kva_err *err)
{
    struct kva_event *event = calloc(1, sizeof *event);
    if (!event)
        return kva_fail(err, KVA_ENOMEM, "no memory for an event");
    event->base.backend = device->base.backend;
    event->device = device;
    *ret = event;
    return KVA_OK;
}

static void cpu_event_destroy(struct kva_event *event)
{
    /* The copy queue may still hold marks of this event, older records included. */
    if (atomic_load(&event->wanted) != 0)
        kva_copy_queue_drain(event->device->copies);
    free(event);
}

static void cpu_event_record(struct kva_event *event, enum kva_queue queue)
{
    uint64_t value = atomic_load_explicit(&event->wanted, memory_order_relaxed) + 1;
    atomic_store_explicit(&event->wanted, value, memory_order_release);
    if (queue == KVA_QUEUE_COPY)
        kva_copy_queue_mark(event->device->copies, &event->reached, value);
    else /* Operators run inline: whatever came before has run. */
        atomic_store_explicit(&event->reached, value, memory_order_release);
}

static void cpu_event_sync(struct kva_event *event)
{
    kva_copy_queue_await(event->device->copies, &event->reached,
                         atomic_load_explicit(&event->wanted, memory_order_acquire));
}

static void cpu_event_wait(struct kva_event *event, enum kva_queue queue)
{
    /* What the copy queue would have to wait for is either an operator, which has run, or an earlier
     * entry of the copy queue itself. So only operators can have to wait, and as they run inline,
     * that is the caller. */
    if (queue != KVA_QUEUE_COPY)
        cpu_event_sync(event);
}

static bool cpu_event_done(const struct kva_event *event)
{
    uint64_t wanted = atomic_load_explicit(&event->wanted, memory_order_acquire);
    return atomic_load_explicit(&event->reached, memory_order_acquire) >= wanted;
}

static void cpu_sync(struct kva_device *device, enum kva_queue queue)
{
    if (queue == KVA_QUEUE_COPY)
        kva_copy_queue_drain(device->copies);
}

/* --- life ------------------------------------------------------------------------------------- */

/* The processor's name as the kernel gives it, or "x86-64" and the like. */
static void processor_name(char *name, size_t size)
{
    snprintf(name, size, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file)
        return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    fclose(file);
}

static void describe(struct kva_device *device, uint32_t threads, uint32_t levels)
{
    struct kva_device_info *info = &device->base.info;
    char processor[80];
    processor_name(processor, sizeof processor);
    uint32_t highest = levels;
    while (highest & (highest - 1))
        highest &= highest - 1;
    *info = (struct kva_device_info){.act = KVA_F32,
                                     .host_readable = true,
                                     .runs_inline = true,
                                     .threads = threads,
                                     .cpu_levels = levels};
    snprintf(info->name, sizeof info->name, "cpu: %s, %u thread%s, %s", processor, threads,
             threads == 1 ? "" : "s", kva_cpu_level_name(highest));
}

static void cpu_close(struct kva_device *device)
{
    kva_copy_queue_destroy(device->copies);
    if (device->scratch)
        unmap_memory(device->scratch, (size_t)device->base.info.threads * KVA_CPU_SCRATCH_BYTES);
    unmap_memory(device->partials, KVA_CPU_PARTIAL_BYTES);
    unmap_memory(device->prepared, KVA_CPU_PREPARED_BYTES);
    kva_pool_destroy(device->pool);
    free(device);
}

static enum kva_status cpu_error(const struct kva_device *device, struct kva_err *err)
{
    if (!atomic_load_explicit(&device->failed, memory_order_acquire))
        return KVA_OK;
    if (err)
        *err = device->error;
    return device->error.status;
}

static void cpu_fail(struct kva_device *device, const char *message)
{
    kva_cpu_fail(device, "%s", message);
}

static const struct kva_backend backend = {
    .limits =
        {
            .head_dim_max = KVA_CPU_HEAD_DIM_MAX,
            .rotary_dim_max = KVA_CPU_SCRATCH_BYTES / (2 * sizeof(float)),
            .partials_max = KVA_CPU_SCRATCH_BYTES / sizeof(float),
            .select_heads_max = KVA_CPU_SELECT_HEADS_MAX,
            .select_max = KVA_CPU_SELECT_MAX,
            .slots_max = KVA_CPU_SLOTS_MAX,
        },
    .close = cpu_close,
    .error = cpu_error,
    .fail = cpu_fail,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .weight = cpu_weight,
    .copy = cpu_copy,
    .sync = cpu_sync,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_done = cpu_event_done,
    .event_sync = cpu_event_sync,
    .roofs = kva_cpu_roofs,
};

enum kva_status kva_device_open_cpu(const struct kva_device_params *params, struct kva_device **ret,
                                    struct kva_err *err)
{
    enum kva_status status;
    uint32_t levels = 0;
    struct kva_device *device = calloc(1, sizeof *device);
    if (!device)
        return kva_fail(err, KVA_ENOMEM, "no memory for the CPU device");
    device->base.backend = &backend;
    device->base.ops = &kva_cpu_ops;
    uint32_t threads = params->threads ? params->threads : kva_pool_usable_cores();
    status = kva_cpu_kernels_fill(params->cpu_level_mask, params->cpu_levels_emulated,
                                  &device->kernels, &levels, err);
    if (status != KVA_OK)
        goto fail;
    status = kva_pool_create(threads, &device->pool, err);
    if (status != KVA_OK)
        goto fail;
    status = kva_copy_queue_create(params->copy_delay_max_us, params->copy_delay_seed,
                                   &device->copies, err);
    if (status != KVA_OK)
        goto fail;
    device->prefault = params->prefault;
    describe(device, threads, levels);
    device->scratch = map_memory((size_t)threads * KVA_CPU_SCRATCH_BYTES);
    device->partials = map_memory(KVA_CPU_PARTIAL_BYTES);
    device->prepared = map_memory(KVA_CPU_PREPARED_BYTES);
    if (!device->scratch || !device->partials || !device->prepared) {
        status = kva_fail(err, KVA_ENOMEM, "no memory for the scratch of %u threads", threads);
        goto fail;
    }
    *ret = device;
    return KVA_OK;

fail:
    cpu_close(device);
    return status;
}

void kva_cpu_fail(struct kva_device *device, const char *format, ...)
{
    if (atomic_load_explicit(&device->failed, memory_order_relaxed))
        return;
    char message[KVA_ERR_MESSAGE_MAX];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    kva_fail(&device->error, KVA_EDEVICE, "%s", message);
    atomic_store_explicit(&device->failed, true, memory_order_release);
}
