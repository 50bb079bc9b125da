/* Steps that are deferred and launched as graphs: whatever they are made of, their results are
 * those of the same calls made one by one. */
#include "tests/cuda/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS    60u
#define DIM      16u /* of the fetched rows */
#define K        6u
#define SLOTS    8u
#define PAGES    3u
#define ROWS_MAX 40u
#define WIDTH    24u
#define PRODUCTS KVA_BRANCHES /* of the same rows and weights, side by side */
#define FACTORS  20u          /* rows of each: more than the kernels of few take */

/* What a step is like. */
struct variant {
    bool aside; /* slots are assigned aside */
    bool early; /* what is fetched is read in the same step already */
};

/* What a decoding step does to one row cache: rows are chosen, assigned to slots, fetched in the
 * copy queue, and read in the next step; beside it, other rows are gathered and multiplied. */
struct pipeline {
    struct kva_device *gpu;
    struct kva_row_cache cache;
    unsigned char *memory, *choices, *read, *early, *x, *y, *last;     /* device */
    unsigned char *products[PRODUCTS], *copies[KVA_BRANCHES];          /* device */
    unsigned char *zeros, *back, *back_early, *back_y, *back_products; /* host tier */
    uint16_t *pages; /* host tier: [PAGES] blocks */
    const void **homes;
    struct both_weight weight;
    struct acts wide;
    struct kva_event *picked, *chosen, *fetched, *seen, *done, *taken;
    struct variant variants[STEPS];
    uint32_t chosen_tokens[STEPS][K], rows[STEPS][ROWS_MAX], row_count[STEPS];
    size_t memory_bytes, rows_bytes, choice_bytes, row_bytes, y_bytes, product_bytes;
    bool any;
};

static void *take(struct check *check, enum kva_mem mem, size_t bytes)
{
    struct kva_err err;
    void *data;
    if (kva_device_alloc(check->gpu, mem, bytes, &data, &err)) {
        printf("FAILED: %s\n", err.message);
        exit(2);
    }
    return data;
}

static struct kva_event *new_event(struct check *check)
{
    struct kva_event *event;
    if (kva_event_create(check->gpu, &event, NULL)) {
        printf("FAILED: no event\n");
        exit(2);
    }
    return event;
}

static void lay_out_cache(struct pipeline *p)
{
    uint32_t *at = (uint32_t *)(void *)(p->memory + p->rows_bytes);
    p->cache = (struct kva_row_cache){.rows = p->memory,
                                      .tokens = at,
                                      .used = at + SLOTS,
                                      .order = at + 2 * SLOTS,
                                      .missing = at + 3 * SLOTS,
                                      .count = at + 4 * SLOTS,
                                      .chosen = at + 4 * SLOTS + 2,
                                      .slots = SLOTS,
                                      .k = K};
}

/* The tokens of each step, ascending, and the other rows. */
static void draw(struct check *check, struct pipeline *p)
{
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t token = check_below(check, 9);
        for (uint32_t i = 0; i < K; i++) {
            p->chosen_tokens[step][i] = token;
            token += check_between(check, 1, 30);
        }
        const uint32_t variant = check_below(check, 4);
        p->variants[step] = (struct variant){.aside = variant & 1, .early = variant & 2};
        p->row_count[step] = check_below(check, 4) ? 8 : check_between(check, 1, ROWS_MAX);
        for (uint32_t i = 0; i < ROWS_MAX; i++)
            p->rows[step][i] = check_below(check, ROWS_MAX);
    }
}

static void pipeline_new(struct check *check, struct pipeline *p)
{
    size_t act = kva_dtype_bytes(check->act), block = kva_kv_block_bytes(1, DIM);
    *p = (struct pipeline){.gpu = check->gpu};
    p->rows_bytes = SLOTS * 2 * DIM * 2;
    p->memory_bytes = p->rows_bytes + (4 * SLOTS + 2 + K) * 4;
    p->choice_bytes = K * 4;
    p->row_bytes = 2 * DIM * 2;
    p->y_bytes = (size_t)ROWS_MAX * WIDTH * act;
    p->product_bytes = (size_t)FACTORS * WIDTH * act;
    draw(check, p);
    p->memory = gpu_new(check, NULL, p->memory_bytes);
    lay_out_cache(p);
    p->cache.hits = take(check, KVA_MEM_HOST, 2 * sizeof(uint64_t));
    p->choices = gpu_new(check, p->chosen_tokens, sizeof p->chosen_tokens);
    p->read = gpu_new(check, NULL, K * p->row_bytes);
    p->early = gpu_new(check, NULL, K * p->row_bytes);
    p->y = gpu_new(check, NULL, p->y_bytes);
    for (uint32_t i = 0; i < PRODUCTS; i++)
        p->products[i] = gpu_new(check, NULL, p->product_bytes);
    for (uint32_t i = 0; i < KVA_BRANCHES; i++)
        p->copies[i] = gpu_new(check, NULL, p->product_bytes);
    p->last = gpu_new(check, NULL, p->product_bytes);
    p->wide = acts_new(check, check->act, ROWS_MAX * WIDTH, 1.0f);
    p->weight = weight_new(check, check->act, WIDTH, WIDTH, 1.0f);
    p->zeros = take(check, KVA_MEM_HOST, p->rows_bytes);
    p->back = take(check, KVA_MEM_HOST, STEPS * K * p->row_bytes);
    p->back_early = take(check, KVA_MEM_HOST, STEPS * K * p->row_bytes);
    p->back_y = take(check, KVA_MEM_HOST, STEPS * p->y_bytes);
    p->back_products = take(check, KVA_MEM_HOST, STEPS * 2 * p->product_bytes);
    p->pages = take(check, KVA_MEM_HOST, PAGES * block);
    p->homes = take(check, KVA_MEM_HOST, PAGES * sizeof *p->homes);
    for (size_t i = 0; i < PAGES * block / 2; i++)
        p->pages[i] = (uint16_t)check_random(check);
    for (uint32_t i = 0; i < PAGES; i++)
        p->homes[i] = p->pages + i * block / 2;
    struct kva_event **events[] = {&p->picked, &p->chosen, &p->fetched,
                                   &p->seen,   &p->done,   &p->taken};
    for (size_t i = 0; i < KVA_COUNT_OF(events); i++)
        *events[i] = new_event(check);
}

static void pipeline_free(struct check *check, struct pipeline *p)
{
    kva_device_free(p->gpu, KVA_MEM_HOST, p->cache.hits, 2 * sizeof(uint64_t));
    kva_device_free(p->gpu, KVA_MEM_HOST, p->zeros, p->rows_bytes);
    kva_device_free(p->gpu, KVA_MEM_HOST, p->back, STEPS * K * p->row_bytes);
    kva_device_free(p->gpu, KVA_MEM_HOST, p->back_early, STEPS * K * p->row_bytes);
    kva_device_free(p->gpu, KVA_MEM_HOST, p->back_y, STEPS * p->y_bytes);
    kva_device_free(p->gpu, KVA_MEM_HOST, p->back_products, STEPS * 2 * p->product_bytes);
    kva_device_free(p->gpu, KVA_MEM_HOST, p->pages, PAGES * kva_kv_block_bytes(1, DIM));
    kva_device_free(p->gpu, KVA_MEM_HOST, (void *)p->homes, PAGES * sizeof *p->homes);
    gpu_free(check, p->memory, p->memory_bytes);
    gpu_free(check, p->choices, sizeof p->chosen_tokens);
    gpu_free(check, p->read, K * p->row_bytes);
    gpu_free(check, p->early, K * p->row_bytes);
    gpu_free(check, p->y, p->y_bytes);
    for (uint32_t i = 0; i < PRODUCTS; i++)
        gpu_free(check, p->products[i], p->product_bytes);
    for (uint32_t i = 0; i < KVA_BRANCHES; i++)
        gpu_free(check, p->copies[i], p->product_bytes);
    gpu_free(check, p->last, p->product_bytes);
    acts_free(check, &p->wide);
    weight_free(check, &p->weight);
    struct kva_event *events[] = {p->picked, p->chosen, p->fetched, p->seen, p->done, p->taken};
    for (size_t i = 0; i < KVA_COUNT_OF(events); i++)
        kva_event_destroy(events[i]);
}

/* `count` rows of `bytes` each, as activations. */
static void gather(const struct pipeline *p, void *out, const void *x, const uint32_t *rows,
                   uint32_t count, size_t bytes)
{
    size_t act = kva_dtype_bytes(kva_device_get_info(p->gpu)->act);
    kva_device_ops(p->gpu)->gather(
        p->gpu,
        &(struct kva_gather_args){
            .out = out, .x = x, .rows = rows, .count = count, .dim = (uint32_t)(bytes / act)});
}

/* What was chosen is read; its memory may be used again from `seen` on. */
static void read_fetched(struct pipeline *p, unsigned char *to)
{
    uint32_t rows[K];
    for (uint32_t i = 0; i < K; i++)
        rows[i] = i;
    kva_event_wait(p->fetched, KVA_QUEUE_COMPUTE);
    kva_event_wait(p->taken, KVA_QUEUE_COMPUTE);
    gather(p, to, p->cache.rows, rows, K, p->row_bytes);
    kva_event_record(p->seen, KVA_QUEUE_COMPUTE);
}

static void choose(struct pipeline *p, uint32_t step)
{
    const struct kva_row_cache *cache = &p->cache;
    const enum kva_queue queue = p->variants[step].aside ? KVA_QUEUE_ASIDE : KVA_QUEUE_COMPUTE;
    gather(p, p->cache.chosen, p->choices, &step, 1, p->choice_bytes);
    if (queue == KVA_QUEUE_ASIDE) {
        kva_event_record(p->picked, KVA_QUEUE_COMPUTE);
        kva_event_wait(p->picked, KVA_QUEUE_ASIDE);
    }
    kva_device_ops(p->gpu)->assign_slots(
        p->gpu,
        &(struct kva_assign_slots_args){
            .caches = &cache, .count = 1, .kv_heads = 1, .stamp = step + 1, .queue = queue});
    kva_event_record(p->chosen, queue);
    kva_event_wait(p->chosen, KVA_QUEUE_COPY);
    const struct kva_rows_fetch fetch = {cache, p->homes, NULL};
    kva_device_ops(p->gpu)->fetch_rows(p->gpu,
                                       &(struct kva_fetch_rows_args){.fetches = &fetch,
                                                                     .count = 1,
                                                                     .kv_heads = 1,
                                                                     .head_dim = DIM,
                                                                     .queue = KVA_QUEUE_COPY});
    kva_event_record(p->fetched, KVA_QUEUE_COPY);
}

/* Products side by side, then copies of them, of which one is read right behind. */
static void multiply(struct pipeline *p, uint32_t step, uint32_t act_bytes)
{
    uint32_t rows[FACTORS];
    for (uint32_t i = 0; i < FACTORS; i++)
        rows[i] = i;
    gather(p, p->y, p->wide.gpu, p->rows[step], p->row_count[step], (size_t)WIDTH * act_bytes);
    struct kva_linear_args products[PRODUCTS];
    for (uint32_t i = 0; i < PRODUCTS; i++)
        products[i] = (struct kva_linear_args){.out = p->products[i],
                                               .x = p->y,
                                               .weight = p->weight.gpu,
                                               .rows = FACTORS,
                                               .x_stride = WIDTH,
                                               .out_stride = WIDTH};
    kva_device_ops(p->gpu)->linear_group(p->gpu,
                                         &(struct kva_linear_group_args){products, PRODUCTS});
    for (uint32_t i = 0; i < KVA_BRANCHES; i++) {
        (void)kva_device_branch(p->gpu, (i + 1) % KVA_BRANCHES);
        gather(p, p->copies[i], p->products[i], rows, FACTORS, (size_t)WIDTH * act_bytes);
    }
    kva_device_join(p->gpu);
    gather(p, p->last, p->copies[step % KVA_BRANCHES], rows, FACTORS, (size_t)WIDTH * act_bytes);
}

/* Results go home in the copy queue, beside the next step. */
static void send_home(struct pipeline *p, uint32_t step)
{
    kva_event_record(p->done, KVA_QUEUE_COMPUTE);
    kva_event_wait(p->done, KVA_QUEUE_COPY);
    if (step > 0)
        kva_device_copy(p->gpu, KVA_QUEUE_COPY, p->back + (step - 1) * K * p->row_bytes, p->read,
                        K * p->row_bytes);
    if (p->variants[step].early)
        kva_device_copy(p->gpu, KVA_QUEUE_COPY, p->back_early + step * K * p->row_bytes, p->early,
                        K * p->row_bytes);
    kva_device_copy(p->gpu, KVA_QUEUE_COPY, p->back_y + step * p->y_bytes, p->y, p->y_bytes);
    unsigned char *products = p->back_products + (size_t)step * 2 * p->product_bytes;
    kva_device_copy(p->gpu, KVA_QUEUE_COPY, products, p->products[0], p->product_bytes);
    kva_device_copy(p->gpu, KVA_QUEUE_COPY, products + p->product_bytes, p->last, p->product_bytes);
    kva_event_record(p->taken, KVA_QUEUE_COPY);
}

static void run(struct check *check, struct pipeline *p, bool deferred)
{
    uint32_t act_bytes = (uint32_t)kva_dtype_bytes(check->act);
    for (uint32_t step = 0; step < STEPS; step++) {
        bool breaks = check_below(check, 8) == 0;
        if (deferred)
            kva_device_step_begin(p->gpu);
        if (step > 0)
            read_fetched(p, p->read);
        if (deferred)
            kva_device_step_end(p->gpu);
        /* Old rows are wiped out by the copy queue, between two steps. */
        kva_event_wait(p->seen, KVA_QUEUE_COPY);
        kva_device_copy(p->gpu, KVA_QUEUE_COPY, p->cache.rows, p->zeros, p->rows_bytes);
        if (deferred)
            kva_device_step_begin(p->gpu);
        choose(p, step);
        if (p->variants[step].early)
            read_fetched(p, p->early);
        kva_device_step_part(p->gpu);
        if (breaks)
            kva_device_sync(p->gpu, KVA_QUEUE_COMPUTE);
        kva_event_wait(p->taken, KVA_QUEUE_COMPUTE);
        multiply(p, step, act_bytes);
        kva_device_step_part(p->gpu);
        if (deferred)
            kva_device_step_end(p->gpu);
        send_home(p, step);
    }
    read_fetched(p, p->read);
    kva_device_copy(p->gpu, KVA_QUEUE_COMPUTE, p->back + (STEPS - 1) * K * p->row_bytes, p->read,
                    K * p->row_bytes);
    kva_device_sync(p->gpu, KVA_QUEUE_COMPUTE);
    kva_device_sync(p->gpu, KVA_QUEUE_COPY);
}

static void compare(struct check *check, const struct pipeline *p)
{
    size_t row = (size_t)WIDTH * kva_dtype_bytes(check->act);
    unsigned char *wide = malloc(ROWS_MAX * row);
    gpu_read(check, wide, p->wide.gpu, ROWS_MAX * row);
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < K; i++) {
            uint32_t token = p->chosen_tokens[step][i];
            const unsigned char *page = p->homes[token / KVA_PAGE_TOKENS];
            const unsigned char *row_home = page + token % KVA_PAGE_TOKENS * p->row_bytes;
            const size_t at = (step * K + i) * p->row_bytes;
            check_same(check, "a row that a step fetched", p->back + at, row_home, p->row_bytes);
            if (p->variants[step].early)
                check_same(check, "a row that the same step read", p->back_early + at, row_home,
                           p->row_bytes);
        }
        for (uint32_t i = 0; i < p->row_count[step]; i++)
            check_same(check, "a row that a step gathered", p->back_y + step * p->y_bytes + i * row,
                       wide + p->rows[step][i] * row, row);
        const unsigned char *products = p->back_products + (size_t)step * 2 * p->product_bytes;
        check_same(check, "a product beside another", products + p->product_bytes, products,
                   p->product_bytes);
    }
    free(wide);
}

/* A step that comes again is a graph, and few of its kernels are set anew. */
static void check_counts(struct check *check)
{
    struct kva_device_steps before, after;
    struct acts x = acts_new(check, check->act, 8 * WIDTH, 1.0f);
    void *out = gpu_new(check, NULL, 8 * WIDTH * 4);
    uint64_t calls = 0;
    kva_device_get_steps(check->gpu, &before);
    for (uint32_t step = 0; step < 10; step++) {
        uint64_t calls_before = check->simt ? check->simt->counts[5] : 0;
        uint32_t rows[8];
        kva_device_step_begin(check->gpu);
        for (uint32_t i = 0; i < 50; i++) {
            for (uint32_t j = 0; j < 8; j++)
                rows[j] = (step + i + j) % 8;
            kva_device_ops(check->gpu)
                ->gather(check->gpu,
                         &(struct kva_gather_args){
                             .out = out, .x = x.gpu, .rows = rows, .count = 8, .dim = WIDTH});
        }
        kva_device_step_end(check->gpu);
        calls = check->simt ? check->simt->counts[5] - calls_before : 0;
        kva_device_sync(check->gpu, KVA_QUEUE_COMPUTE);
    }
    kva_device_get_steps(check->gpu, &after);
    check_that(check, "a step that comes again is a graph",
               after.launched - before.launched == 9 && after.captured - before.captured == 1 &&
                   after.replayed - before.replayed == 1);
    check_that(check, "other numbers are no other arguments", after.updated == before.updated);
    /* One copy and its event, the graph and its event. */
    check_that(check, "a graph is a handful of calls", calls <= 5);
    gpu_free(check, out, 8 * WIDTH * 4);
    acts_free(check, &x);
}

/* A product of `rows` rows, of which there may be `room`, as a step or by itself. */
static void multiply_rows(struct check *check, const struct kva_linear_args *product, bool deferred)
{
    if (deferred)
        kva_device_step_begin(check->gpu);
    kva_device_ops(check->gpu)->linear(check->gpu, product);
    if (deferred)
        kva_device_step_end(check->gpu);
    kva_device_sync(check->gpu, KVA_QUEUE_COMPUTE);
}

/* Steps of a few rows more or less are one graph, where there is room for rows that nobody needs;
 * a step has the bits of the same call by itself, and what is behind the room stays. */
static void check_buckets(struct check *check)
{
    const uint32_t room = 37, beyond = 3;
    const size_t row = WIDTH * kva_dtype_bytes(check->act);
    struct acts x = acts_new(check, check->act, room * WIDTH, 1.0f);
    struct both_weight weight = weight_new(check, check->act, WIDTH, WIDTH, 1.0f);
    unsigned char *before = malloc((room + beyond) * row), *step = malloc((room + beyond) * row);
    unsigned char *alone = malloc((room + beyond) * row);
    for (size_t i = 0; i < (room + beyond) * row; i++)
        before[i] = (unsigned char)check_random(check);
    struct kva_device_steps first, last;
    kva_device_get_steps(check->gpu, &first);
    void *out = gpu_new(check, before, (room + beyond) * row);
    struct kva_linear_args product = {.out = out,
                                      .x = x.gpu,
                                      .weight = weight.gpu,
                                      .room = room,
                                      .x_stride = WIDTH,
                                      .out_stride = WIDTH};
    for (uint32_t i = 0; i < 60; i++) {
        product.rows = 17 + i % (room - 16);
        multiply_rows(check, &product, true);
        gpu_read(check, step, out, (room + beyond) * row);
        multiply_rows(check, &product, false);
        gpu_read(check, alone, out, (room + beyond) * row);
        check_same(check, "rows of a step", step, alone, product.rows * row);
        check_same(check, "what is behind the room", step + room * row, before + room * row,
                   beyond * row);
    }
    kva_device_get_steps(check->gpu, &last);
    /* 24, 32 and 37 rows: a graph each, after a step without. */
    check_that(check, "a few rows more or less are one graph",
               last.captured - first.captured == 3 && last.replayed - first.replayed == 3);
    product.room = 0;
    product.rows = 21;
    gpu_free(check, out, (room + beyond) * row);
    product.out = out = gpu_new(check, before, (room + beyond) * row);
    multiply_rows(check, &product, true);
    gpu_read(check, step, out, (room + beyond) * row);
    check_same(check, "what is behind rows without room", step + 21 * row, before + 21 * row,
               (room + beyond - 21) * row);
    gpu_free(check, out, (room + beyond) * row);
    acts_free(check, &x);
    weight_free(check, &weight);
    free(alone);
    free(step);
    free(before);
}

/* What cannot be captured is launched call by call, for good, and nothing else changes. */
static void check_uncapturable(struct check *check)
{
    struct kva_device *gpu = check->gpu;
    struct kva_device_steps steps;
    struct kva_err err;
    struct pipeline p;
    const struct kva_device_params params = {.act = check->act};
    if (!check->simt || kva_device_open_cuda(check->module_path, &params, &check->gpu, &err)) {
        check->gpu = gpu;
        return;
    }
    void *staging = check->staging;
    size_t staging_bytes = check->staging_bytes;
    check->staging = NULL;
    check->staging_bytes = 0;
    check->simt->fail_captures(true);
    pipeline_new(check, &p);
    run(check, &p, true);
    compare(check, &p);
    pipeline_free(check, &p);
    check->simt->fail_captures(false);
    kva_device_get_steps(check->gpu, &steps);
    check_that(check, "a step that cannot be captured is replayed",
               steps.launched == 0 && steps.captured == 0 && steps.replayed > 0 &&
                   kva_device_error(check->gpu, NULL) == KVA_OK);
    kva_device_free(check->gpu, KVA_MEM_HOST, check->staging, check->staging_bytes);
    kva_device_close(check->gpu);
    check->gpu = gpu;
    check->staging = staging;
    check->staging_bytes = staging_bytes;
}

void check_step(struct check *check)
{
    check->op = "step";
    for (int deferred = 0; deferred < 2; deferred++) {
        struct pipeline p;
        pipeline_new(check, &p);
        run(check, &p, deferred);
        compare(check, &p);
        pipeline_free(check, &p);
    }
    check_counts(check);
    check_buckets(check);
    check_uncapturable(check);
}
