/* Drivers of the operators that treat rows alone: they cut the work into items and run them. */
#include "kernels/cpu/device_cpu.h"
#include "kernels/cpu/int8_row.h"

#include <math.h>
#include <string.h>

/* Work under this many elements is not worth waking a thread for: a few microseconds. */
#define SERIAL_ELEMENTS_MAX 32768u

/* The same for a linear, in multiplications. */
#define SERIAL_PRODUCTS_MAX 65536u

/* Weights of one linear work item whose rows are prepared, at least: memory is not read in crumbs.
 */
#define LINEAR_ITEM_BYTES_MIN (64u * 1024u)

#define SCRATCH_FLOATS        (KVA_CPU_SCRATCH_BYTES / sizeof(float))

/* Cuts `total` units into `count` pieces of `unit_count` (the last may be shorter). */
struct cut {
    size_t total;
    size_t unit_count;
    uint32_t count;
};

/* Pieces for `total` units of `cost` elements each: one where the work is small, else about four a
 * thread, so that a late thread holds up little. `align` > 0: pieces are multiples of it. */
static struct cut cut_units(const struct kva_device *device, size_t total, size_t cost,
                            size_t align)
{
    struct cut cut = {.total = total, .unit_count = total, .count = total > 0};
    uint32_t threads = kva_pool_threads(device->pool);
    if (threads == 1 || total * cost <= SERIAL_ELEMENTS_MAX)
        return cut;
    size_t smallest = kva_div_up(SERIAL_ELEMENTS_MAX / 4, kva_max_size(cost, 1));
    cut.unit_count = kva_max_size(kva_div_up(total, (size_t)threads * 4), smallest);
    cut.unit_count = kva_align_up(cut.unit_count, align);
    cut.count = (uint32_t)kva_div_up(total, cut.unit_count);
    return cut;
}

static size_t cut_first(const struct cut *cut, uint32_t index)
{
    return index * cut->unit_count;
}

static size_t cut_end(const struct cut *cut, uint32_t index)
{
    return kva_min_size((index + 1) * cut->unit_count, cut->total);
}

/* An operator on rows or elements, in pieces. */
struct job {
    struct kva_device *device;
    const void *args;
    struct cut cut;
};

static bool device_failed(const struct kva_device *device)
{
    return atomic_load_explicit(&device->failed, memory_order_relaxed);
}

static void run_job(struct kva_device *device, const void *args, struct cut cut, kva_pool_fn *fn)
{
    struct job job = {.device = device, .args = args, .cut = cut};
    if (!device_failed(device))
        kva_pool_run(device->pool, cut.count, fn, &job);
}

/* --- rows ------------------------------------------------------------------------------------- */

static void embed_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct job *job = opaque;
    job->device->kernels.embed(job->args, (uint32_t)cut_first(&job->cut, index),
                               (uint32_t)cut_end(&job->cut, index));
}

void kva_cpu_embed(struct kva_device *device, const struct kva_embed_args *args)
{
    run_job(device, args, cut_units(device, args->rows, args->table.cols, 1), embed_piece);
}

static void norm_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct job *job = opaque;
    job->device->kernels.norm(job->args, (uint32_t)cut_first(&job->cut, index),
                              (uint32_t)cut_end(&job->cut, index));
}

void kva_cpu_norm(struct kva_device *device, const struct kva_norm_args *args)
{
    run_job(device, args, cut_units(device, args->rows, args->dim, 1), norm_piece);
}

static void rope_piece(void *opaque, uint32_t index, uint32_t worker)
{
    const struct job *job = opaque;
    job->device->kernels.rope(job->args, (uint32_t)cut_first(&job->cut, index),
                              (uint32_t)cut_end(&job->cut, index),
                              kva_cpu_scratch(job->device, worker));
}

void kva_cpu_rope(struct kva_device *device, const struct kva_rope_args *args)
{
    if (args->rotary_dim > SCRATCH_FLOATS / 2 || args->rotary_dim > args->head_dim) {
        kva_cpu_fail(device, "rope: rotary_dim %u with head_dim %u (at most %zu)", args->rotary_dim,
                     args->head_dim, SCRATCH_FLOATS / 2);
        return;
    }
    /* The angles of a row cost about as much as ten rotations of it. */
    size_t cost = (size_t)args->heads * args->rotary_dim + 10 * args->rotary_dim;
    run_job(device, args, cut_units(device, args->rows, cost, 1), rope_piece);
}

static void glu_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct job *job = opaque;
    job->device->kernels.glu(job->args, cut_first(&job->cut, index), cut_end(&job->cut, index));
}

void kva_cpu_glu(struct kva_device *device, const struct kva_glu_args *args)
{
    /* An exponential and a division: about eight plain elements. */
    run_job(device, args, cut_units(device, (size_t)args->rows * args->dim, 8, 64), glu_piece);
}

static void gather_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct job *job = opaque;
    const struct kva_gather_args *args = job->args;
    size_t dim = args->dim;
    for (size_t i = cut_first(&job->cut, index); i < cut_end(&job->cut, index); i++)
        memcpy((float *)args->out + i * dim, (const float *)args->x + args->rows[i] * dim,
               dim * sizeof(float));
}

void kva_cpu_gather(struct kva_device *device, const struct kva_gather_args *args)
{
    run_job(device, args, cut_units(device, args->count, args->dim, 1), gather_piece);
}

static void kv_append_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct job *job = opaque;
    job->device->kernels.kv_append(job->args, (uint32_t)cut_first(&job->cut, index),
                                   (uint32_t)cut_end(&job->cut, index));
}

void kva_cpu_kv_append(struct kva_device *device, const struct kva_kv_append_args *args)
{
    if (args->kv_dtype != KVA_F16 && args->kv_dtype != KVA_BF16) {
        kva_cpu_fail(device, "kv_append: KV blocks hold f16 or bf16, not data type %d",
                     (int)args->kv_dtype);
        return;
    }
    size_t cost = (size_t)args->kv_heads * args->head_dim * 2;
    run_job(device, args, cut_units(device, args->rows, cost, 1), kv_append_piece);
}

static void merge_piece(void *opaque, uint32_t index, uint32_t worker)
{
    const struct job *job = opaque;
    job->device->kernels.merge(job->args, (uint32_t)cut_first(&job->cut, index),
                               (uint32_t)cut_end(&job->cut, index),
                               kva_cpu_scratch(job->device, worker));
}

void kva_cpu_merge(struct kva_device *device, const struct kva_merge_args *args)
{
    if (args->partial_count > SCRATCH_FLOATS) {
        kva_cpu_fail(device, "merge: %u partial results (at most %zu)", args->partial_count,
                     SCRATCH_FLOATS);
        return;
    }
    size_t pairs = (size_t)args->rows * args->heads;
    size_t cost = (size_t)args->head_dim * args->partial_count;
    run_job(device, args, cut_units(device, pairs, cost, 1), merge_piece);
}

/* --- linear ----------------------------------------------------------------------------------- */

struct linear_job {
    struct kva_device *device;
    const struct kva_linear_args *args;
    struct cut rows;
    struct cut outputs;
    size_t row_bytes; /* of a prepared row */
};

static bool is_int8(const struct kva_linear_args *args)
{
    return args->weight.dtype == KVA_INT8;
}

static void prepare_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct job *job = opaque;
    const struct kva_cpu_kernels *kernels = &job->device->kernels;
    (is_int8(job->args) ? kernels->linear_int8_prepare : kernels->linear_prepare)(
        job->args, (uint32_t)cut_first(&job->cut, index), (uint32_t)cut_end(&job->cut, index),
        job->device->prepared);
}

/* Outputs of a piece come before its rows: the rows that follow find its weights in a cache. */
static void linear_piece(void *opaque, uint32_t index, uint32_t worker)
{
    const struct linear_job *job = opaque;
    uint32_t row_piece = index % job->rows.count, out_piece = index / job->rows.count;
    struct kva_cpu_linear item = {
        .args = job->args,
        .prepared = job->row_bytes ? job->device->prepared : NULL,
        .row_first = (uint32_t)cut_first(&job->rows, row_piece),
        .row_end = (uint32_t)cut_end(&job->rows, row_piece),
        .out_first = (uint32_t)cut_first(&job->outputs, out_piece),
        .out_end = (uint32_t)cut_end(&job->outputs, out_piece),
        .scratch = kva_cpu_scratch(job->device, worker),
    };
    const struct kva_cpu_kernels *kernels = &job->device->kernels;
    (is_int8(job->args) ? kernels->linear_int8 : kernels->linear)(&item);
}

/* Pieces of `total` units, `unit_count` each. */
static struct cut cut_even(size_t total, size_t unit_count)
{
    return (struct cut){
        .total = total, .unit_count = unit_count, .count = (uint32_t)kva_div_up(total, unit_count)};
}

/* Outputs of an item whose rows are prepared: some items for each thread, so that a late one holds
 * up little, unless they would be much too short to be read at full speed. */
static size_t item_outputs(const struct kva_device *device, const struct kva_weight *weight)
{
    bool panels = weight->dtype == KVA_INT8;
    size_t output_bytes = panels ? kva_int8_panel_bytes(weight->cols) / KVA_INT8_PANEL
                                 : weight->cols * kva_dtype_bytes(weight->dtype);
    size_t least = LINEAR_ITEM_BYTES_MIN / output_bytes + 1;
    size_t threads = kva_pool_threads(device->pool);
    size_t even = kva_div_up(weight->rows, threads * 16);
    size_t align = panels ? KVA_INT8_PANEL : device->kernels.linear_outputs;
    size_t outputs =
        kva_min_size(kva_align_up(kva_max_size(even, least), align), KVA_CPU_LINEAR_OUTPUTS);
    /* As many for one thread as for another: of a small matrix they are few. */
    size_t items = kva_div_up(weight->rows, outputs);
    if (items > threads)
        items = kva_align_up(items, threads);
    return kva_min_size(kva_align_up(kva_div_up(weight->rows, items), align),
                        KVA_CPU_LINEAR_OUTPUTS);
}

static void run_linear(struct kva_device *device, const struct kva_linear_args *args,
                       size_t row_bytes)
{
    struct linear_job job = {.device = device, .args = args, .row_bytes = row_bytes};
    if (row_bytes) {
        struct job prepare = {.device = device, .args = args};
        prepare.cut = cut_units(device, args->rows, args->weight.cols,
                                is_int8(args) ? 1 : device->kernels.linear_rows);
        kva_pool_run(device->pool, prepare.cut.count, prepare_piece, &prepare);
        job.rows = cut_even(args->rows, args->rows);
        job.outputs = cut_even(args->weight.rows, item_outputs(device, &args->weight));
    } else {
        job.rows = cut_even(args->rows, KVA_CPU_LINEAR_ROWS);
        job.outputs = cut_even(args->weight.rows, KVA_CPU_LINEAR_OUTPUTS);
    }
    size_t pieces = (size_t)job.rows.count * job.outputs.count;
    if (pieces > UINT32_MAX) {
        kva_cpu_fail(device, "linear: %u rows of %u outputs in one call", args->rows,
                     args->weight.rows);
        return;
    }
    size_t products = (size_t)args->rows * args->weight.rows * args->weight.cols;
    if (products > SERIAL_PRODUCTS_MAX) {
        kva_pool_run(device->pool, (uint32_t)pieces, linear_piece, &job);
        return;
    }
    for (uint32_t i = 0; i < pieces; i++)
        linear_piece(&job, i, 0);
}

void kva_cpu_linear(struct kva_device *device, const struct kva_linear_args *args)
{
    if (device_failed(device) || args->rows == 0)
        return;
    size_t row_bytes = is_int8(args) ? kva_int8_x_bytes(args->weight.cols)
                                     : device->kernels.linear_row_bytes(args);
    if (row_bytes > KVA_CPU_PREPARED_BYTES) {
        kva_cpu_fail(device, "linear: a row of %u inputs is larger than %u bytes",
                     args->weight.cols, KVA_CPU_PREPARED_BYTES);
        return;
    }
    /* As many rows in one turn as there is memory to prepare them in. */
    uint32_t fit = args->rows;
    if (row_bytes)
        fit = (uint32_t)kva_min_size(fit, KVA_CPU_PREPARED_BYTES / row_bytes);
    struct kva_linear_args turn = *args;
    for (uint32_t row = 0; row < args->rows; row += turn.rows) {
        turn.rows = kva_min_u32(fit, args->rows - row);
        turn.x = (const float *)args->x + (size_t)row * args->x_stride;
        turn.out = (float *)args->out + (size_t)row * args->out_stride;
        run_linear(device, &turn, row_bytes);
    }
}
