/* driver.c - driver of linear: rows are prepared where the kernel wants that, then pieces of
 * outputs times pieces of rows are items of work. */
#include "kernels/cpu/device/pieces.h"
#include "kernels/cpu/linear/packed_row.h"

#include <stdatomic.h>

/* Work under this many multiplications is not worth waking a thread for. */
#define SERIAL_PRODUCTS_MAX 65536u

/* Weights of one item whose rows are prepared, at least: memory is not read in crumbs. */
#define ITEM_BYTES_MIN (64u * 1024u)

/* A product, and which items of work are its own: pieces of outputs times pieces of rows. */
struct linear_job {
    struct kva_device *device;
    const struct kva_linear_args *args;
    struct kva_cut rows;
    struct kva_cut outputs;
    size_t row_bytes; /* of a prepared row */
    uint32_t first, end;
};

/* Products of the same rows, in one list of items. */
struct group_job {
    struct linear_job products[KVA_LINEAR_GROUP_MAX];
    uint32_t items;
    _Atomic uint32_t taken; /* items that have been given to a thread */
};

static bool is_packed(const struct kva_linear_args *args)
{
    return kva_dtype_is_packed(args->weight.dtype);
}

static void (*kernel_of(const struct linear_job *job))(const struct kva_cpu_linear *item)
{
    const struct kva_cpu_kernels *kernels = &job->device->kernels;
    if (job->args->weight.dtype == KVA_INT8)
        return kernels->linear_int8;
    return is_packed(job->args) ? kernels->linear_packed : kernels->linear;
}

static void prepare_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct kva_piece_job *job = opaque;
    const struct kva_cpu_kernels *kernels = &job->device->kernels;
    (is_packed(job->args) ? kernels->linear_packed_prepare : kernels->linear_prepare)(
        job->args, (uint32_t)kva_cut_first(&job->cut, index),
        (uint32_t)kva_cut_end(&job->cut, index), job->device->prepared);
}

static uint32_t first_output(const struct linear_job *job, uint32_t item)
{
    return (uint32_t)kva_cut_first(&job->outputs, (item - job->first) / job->rows.count);
}

/* Outputs of a piece come before its rows: the rows that follow find its weights in a cache. `next`:
 * what this thread has taken to do behind it, of this product or not. */
static void run_linear_item(const struct linear_job *job, uint32_t item, uint32_t next,
                            uint32_t worker)
{
    uint32_t index = item - job->first;
    uint32_t row_piece = index % job->rows.count, out_piece = index / job->rows.count;
    struct kva_cpu_linear own = {
        .args = job->args,
        .prepared = job->row_bytes ? job->device->prepared : NULL,
        .row_first = (uint32_t)kva_cut_first(&job->rows, row_piece),
        .row_end = (uint32_t)kva_cut_end(&job->rows, row_piece),
        .out_first = (uint32_t)kva_cut_first(&job->outputs, out_piece),
        .out_end = (uint32_t)kva_cut_end(&job->outputs, out_piece),
        .next_out = next < job->end ? first_output(job, next) : UINT32_MAX,
        .scratch = kva_cpu_scratch(job->device, worker),
    };
    kernel_of(job)(&own);
}

/* Item `index`, and behind it others that nobody has taken. A thread takes each before it has done
 * the one before, so as to know what to prefetch meanwhile. */
static void run_linear_items(void *opaque, uint32_t index, uint32_t worker)
{
    struct group_job *group = opaque;
    const struct linear_job *job = group->products;
    for (uint32_t at = index, next; at < group->items; at = next) {
        next = atomic_fetch_add_explicit(&group->taken, 1, memory_order_relaxed);
        while (at >= job->end)
            job++;
        run_linear_item(job, at, next, worker);
    }
}

/* Pieces of `total` units, `unit_count` each. */
static struct kva_cut cut_even(size_t total, size_t unit_count)
{
    return (struct kva_cut){
        .total = total, .unit_count = unit_count, .count = (uint32_t)kva_div_up(total, unit_count)};
}

/* Outputs of an item whose rows are prepared: some items for each thread, so that a late one holds
 * up little, unless they would be much too short to be read at full speed. Rows may take packed
 * weights by pairs of panels: then it is pairs. */
static size_t item_outputs(const struct kva_device *device, const struct kva_linear_args *args)
{
    const struct kva_weight *weight = &args->weight;
    const struct kva_packed_format *format = kva_packed_format(weight->dtype);
    size_t output_bytes = format ? kva_packed_panel_bytes(format, weight->cols) / KVA_PACKED_PANEL
                                 : weight->cols * kva_dtype_bytes(weight->dtype);
    size_t least = ITEM_BYTES_MIN / output_bytes + 1;
    size_t threads = kva_pool_threads(device->pool);
    size_t even = kva_div_up(weight->rows, threads * 16);
    size_t panels = args->rows > 1 ? 2 : 1;
    size_t align = format ? panels * KVA_PACKED_PANEL : device->kernels.linear_outputs;
    size_t outputs =
        kva_min_size(kva_align_up(kva_max_size(even, least), align), KVA_CPU_LINEAR_OUTPUTS);
    /* As many for one thread as for another: of a small matrix they are few. */
    size_t items = kva_div_up(weight->rows, outputs);
    if (items > threads)
        items = kva_div_up(items, threads) * threads;
    return kva_min_size(kva_align_up(kva_div_up(weight->rows, items), align),
                        KVA_CPU_LINEAR_OUTPUTS);
}

static void prepare_rows(struct kva_device *device, const struct kva_linear_args *args)
{
    struct kva_piece_job prepare = {.device = device, .args = args};
    prepare.cut = kva_cut_units(device, args->rows, args->weight.cols,
                                is_packed(args) ? 1 : device->kernels.linear_rows);
    kva_pool_run(device->pool, prepare.cut.count, prepare_piece, &prepare);
}

/* The items of a product, of rows that have been prepared if row_bytes says so, from number `first`
 * on. False: the device has failed. */
static bool cut_product(struct linear_job *job, struct kva_device *device,
                        const struct kva_linear_args *args, size_t row_bytes, uint32_t first)
{
    *job =
        (struct linear_job){.device = device, .args = args, .row_bytes = row_bytes, .first = first};
    if (row_bytes) {
        job->rows = cut_even(args->rows, args->rows);
        job->outputs = cut_even(args->weight.rows, item_outputs(device, args));
    } else {
        job->rows = cut_even(args->rows, KVA_CPU_LINEAR_ROWS);
        job->outputs = cut_even(args->weight.rows, KVA_CPU_LINEAR_OUTPUTS);
    }
    size_t end = first + (size_t)job->rows.count * job->outputs.count;
    job->end = (uint32_t)end;
    if (end > UINT32_MAX)
        kva_cpu_fail(device, "linear: %u rows of %u outputs in one call", args->rows,
                     args->weight.rows);
    return end <= UINT32_MAX;
}

static void run_products(struct kva_device *device, const struct kva_linear_args *args,
                         uint32_t count, size_t row_bytes)
{
    struct group_job group = {.items = 0};
    size_t products = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!cut_product(&group.products[i], device, &args[i], row_bytes, group.items))
            return;
        group.items = group.products[i].end;
        products += (size_t)args[i].rows * args[i].weight.rows * args[i].weight.cols;
    }
    /* Every thread has an item before one has a second; who prefetches nothing takes one at a time. */
    size_t firsts = group.items;
    if (products <= SERIAL_PRODUCTS_MAX)
        firsts = kva_min_size(firsts, 1);
    else if (is_packed(args))
        firsts = kva_min_size(firsts, kva_pool_threads(device->pool));
    group.taken = (uint32_t)firsts;
    kva_pool_run(device->pool, (uint32_t)firsts, run_linear_items, &group);
}

/* Bytes of a prepared row in `ret`, 0: rows are read as they are; false: the device has failed. */
static bool find_row_bytes(struct kva_device *device, const struct kva_linear_args *args,
                           size_t *ret)
{
    const struct kva_packed_format *format = kva_packed_format(args->weight.dtype);
    *ret = format ? kva_packed_x_bytes(format, args->weight.cols)
                  : device->kernels.linear_row_bytes(args);
    if (*ret <= KVA_CPU_PREPARED_BYTES)
        return true;
    kva_cpu_fail(device, "linear: a row of %u inputs is larger than %u bytes", args->weight.cols,
                 KVA_CPU_PREPARED_BYTES);
    return false;
}

/* Products of the same rows with matrices of one format: rows are prepared once for all. */
static void run_group(struct kva_device *device, const struct kva_linear_args *products,
                      uint32_t count)
{
    size_t row_bytes;
    if (kva_cpu_failed(device) || products->rows == 0 ||
        !find_row_bytes(device, products, &row_bytes))
        return;
    /* As many rows in one turn as there is memory to prepare them in. */
    uint32_t fit = products->rows, rows;
    if (row_bytes)
        fit = (uint32_t)kva_min_size(fit, KVA_CPU_PREPARED_BYTES / row_bytes);
    for (uint32_t row = 0; row < products->rows; row += rows) {
        struct kva_linear_args turns[KVA_LINEAR_GROUP_MAX];
        rows = kva_min_u32(fit, products->rows - row);
        for (uint32_t i = 0; i < count; i++) {
            turns[i] = products[i];
            turns[i].rows = rows;
            turns[i].x = (const float *)turns[i].x + (size_t)row * turns[i].x_stride;
            turns[i].out = (float *)turns[i].out + (size_t)row * turns[i].out_stride;
        }
        if (row_bytes)
            prepare_rows(device, turns);
        run_products(device, turns, count, row_bytes);
    }
}

void kva_cpu_linear(struct kva_device *device, const struct kva_linear_args *args)
{
    run_group(device, args, 1);
}

void kva_cpu_linear_group(struct kva_device *device, const struct kva_linear_group_args *args)
{
    for (uint32_t first = 0, end; first < args->count; first = end) {
        const struct kva_linear_args *products = &args->products[first];
        for (end = first + 1; end < args->count; end++) {
            if (args->products[end].weight.dtype != products->weight.dtype)
                break;
        }
        run_group(device, products, end - first);
    }
}

void kva_cpu_linear_glu(struct kva_device *device, const struct kva_linear_glu_args *args)
{
    const struct kva_linear_args products[] = {args->gate, args->up};
    kva_cpu_linear_group(device, &(struct kva_linear_group_args){products, KVA_COUNT_OF(products)});
    kva_cpu_glu(device, &(struct kva_glu_args){.out = args->gate.out,
                                               .gate = args->gate.out,
                                               .up = args->up.out,
                                               .rows = args->gate.rows,
                                               .dim = args->gate.weight.rows,
                                               .activation = args->activation});
}
