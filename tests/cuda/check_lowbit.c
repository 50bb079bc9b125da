/* Cases of quantise, attend_lowbit, attend_rows, weigh, choose, assign_slots, fetch_rows and
 * query_cosine: a few steps of SpeCache on both devices, side by side. What is integers must be the
 * same; sums may differ by the rounding of numbers to 16 bits. */
#include "tests/cuda/check.h"
#include "tests/kernels/attend_apart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQS    2u
#define STEPS   4u
#define FETCHES 35u

struct shape {
    uint32_t heads, kv_heads, dim, k, pinned, slots, pages[SEQS], rows[SEQS], window;
    struct kva_lowbit_format format;
    enum kva_dtype kv_dtype;
};

/* A kva_row_cache and where its arrays lie: one piece of memory. */
struct hot {
    struct kva_row_cache hot;
    unsigned char *memory;
    size_t bytes, rows_bytes;
};

struct world {
    const struct shape *shape;
    struct hot cpu[SEQS], gpu[SEQS];
    void **cpu_pages[SEQS], **gpu_pages[SEQS]; /* host memory: 16-bit blocks */
    void *cpu_low[SEQS], *gpu_low[SEQS];
    size_t block_bytes, low_bytes;
    struct acts q;
    float *cpu_rest, *gpu_rest; /* [2][rows, heads]: m, then e of all other tokens */
    uint32_t rows;
    uint64_t *hits; /* pinned: [2] of the GPU */
    uint64_t cpu_hits[2];
};

static void *pinned(struct check *check, size_t bytes)
{
    struct kva_err err;
    void *data;
    if (kva_device_alloc(check->gpu, KVA_MEM_HOST, bytes, &data, &err)) {
        printf("FAILED: %s\n", err.message);
        exit(2);
    }
    return data;
}

/* --- hot rows --------------------------------------------------------------------------------- */

static void lay_out(struct hot *hot, const struct shape *s)
{
    size_t slots = (size_t)s->kv_heads * s->slots;
    uint32_t *at = (uint32_t *)(void *)(hot->memory + hot->rows_bytes);
    hot->hot = (struct kva_row_cache){.rows = hot->memory,
                                      .tokens = at,
                                      .used = at + slots,
                                      .order = at + 2 * slots,
                                      .missing = at + 3 * slots,
                                      .count = at + 4 * slots,
                                      .chosen = at + 4 * slots + s->kv_heads,
                                      .slots = s->slots,
                                      .pinned = s->pinned,
                                      .k = s->k};
}

static void hot_new(struct check *check, struct world *world, uint32_t seq)
{
    const struct shape *s = world->shape;
    size_t slots = (size_t)s->kv_heads * s->slots;
    struct hot *cpu = &world->cpu[seq], *gpu = &world->gpu[seq];
    cpu->rows_bytes = gpu->rows_bytes = slots * 2 * s->dim * 2;
    cpu->bytes = gpu->bytes =
        cpu->rows_bytes + (4 * slots + s->kv_heads + (size_t)s->kv_heads * s->k) * 4;
    cpu->memory = calloc(1, cpu->bytes);
    lay_out(cpu, s);
    memset(cpu->hot.tokens, 0xFF, slots * 4); /* nothing is there */
    memset(cpu->hot.missing, 0xFF, slots * 4);
    memset(cpu->hot.chosen, 0xFF, (size_t)s->kv_heads * s->k * 4);
    cpu->hot.hits = world->cpu_hits;
    gpu->memory = gpu_new(check, cpu->memory, gpu->bytes);
    lay_out(gpu, s);
    gpu->hot.hits = world->hits;
}

/* Everything that operators left in the arrays, rows included, must be the same. */
static void compare_hot(struct check *check, const char *name, struct world *world, uint32_t seq)
{
    struct hot *cpu = &world->cpu[seq];
    unsigned char *got = malloc(cpu->bytes);
    gpu_read(check, got, world->gpu[seq].memory, cpu->bytes);
    const struct shape *s = world->shape;
    struct hot read = *cpu;
    read.memory = got;
    lay_out(&read, s);
    size_t slots = (size_t)s->kv_heads * s->slots * 4;
    check_same(check, name, read.hot.tokens, cpu->hot.tokens, slots);
    check_same(check, name, read.hot.used, cpu->hot.used, slots);
    check_same(check, name, read.hot.missing, cpu->hot.missing, slots);
    check_same(check, name, read.hot.count, cpu->hot.count, s->kv_heads * 4);
    for (uint32_t head = 0; head < s->kv_heads; head++)
        check_same(check, name, read.hot.order + head * s->slots, cpu->hot.order + head * s->slots,
                   cpu->hot.count[head] * 4);
    check_same(check, "fetched rows", got, cpu->memory, cpu->rows_bytes);
    free(got);
}

/* --- building --------------------------------------------------------------------------------- */

static void make_pages(struct check *check, struct world *world, uint32_t seq)
{
    const struct shape *s = world->shape;
    uint32_t pages = s->pages[seq];
    size_t elements = world->block_bytes / 2;
    uint16_t *host = pinned(check, pages * world->block_bytes);
    for (size_t i = 0; i < pages * elements; i++) {
        /* Channels of different sizes and offsets, as keys have them. */
        size_t channel = i % s->dim;
        float size = channel % 5 == 0 ? 3.0f : 0.5f, offset = channel % 7 == 0 ? 2.0f : 0.0f;
        check_store(host, i, check_round(check_normal(check) * size + offset, s->kv_dtype),
                    s->kv_dtype);
    }
    if (seq == 0) /* a constant group */
        for (size_t t = 0; t < KVA_PAGE_TOKENS; t++)
            host[t * 2 * s->dim] = host[0];
    world->cpu_pages[seq] = calloc(pages, sizeof(void *));
    world->gpu_pages[seq] = pinned(check, pages * sizeof(void *));
    for (uint32_t i = 0; i < pages; i++)
        world->cpu_pages[seq][i] = world->gpu_pages[seq][i] = host + i * elements;
}

/* Low-bit copies on both devices: the same bytes. */
static void quantise(struct check *check, struct world *world, uint32_t seq)
{
    const struct shape *s = world->shape;
    uint32_t pages = s->pages[seq], exempt[16] = {s->pinned};
    void *cpu_to[16], *gpu_to[16];
    size_t bytes = pages * world->low_bytes;
    unsigned char *got = malloc(bytes);
    world->cpu_low[seq] = calloc(1, bytes);
    world->gpu_low[seq] = gpu_new(check, world->cpu_low[seq], bytes);
    for (uint32_t i = 0; i < pages; i++) {
        cpu_to[i] = (unsigned char *)world->cpu_low[seq] + i * world->low_bytes;
        gpu_to[i] = (unsigned char *)world->gpu_low[seq] + i * world->low_bytes;
    }
    struct kva_quantise_args args = {.from = (const void *const *)world->cpu_pages[seq],
                                     .to = cpu_to,
                                     .exempt = exempt,
                                     .count = pages,
                                     .kv_heads = s->kv_heads,
                                     .head_dim = s->dim,
                                     .kv_dtype = s->kv_dtype,
                                     .format = s->format};
    kva_device_ops(check->cpu)->quantise(check->cpu, &args);
    args.to = gpu_to;
    kva_device_ops(check->gpu)->quantise(check->gpu, &args);
    gpu_read(check, got, world->gpu_low[seq], bytes);
    check_same(check, "quantise", got, world->cpu_low[seq], bytes);
    free(got);
}

/* --- steps ------------------------------------------------------------------------------------ */

static void resolve_and_fetch(struct check *check, struct world *world, uint32_t step)
{
    const struct shape *s = world->shape;
    const struct kva_row_cache *cpu[SEQS], *gpu[SEQS];
    struct kva_event *event;
    struct kva_err err;
    for (uint32_t i = 0; i < SEQS; i++) {
        cpu[i] = &world->cpu[i].hot;
        gpu[i] = &world->gpu[i].hot;
    }
    struct kva_assign_slots_args args = {.caches = cpu,
                                         .count = SEQS,
                                         .kv_heads = s->kv_heads,
                                         .stamp = step + 1,
                                         .mode = check_below(check, 2) ? KVA_ROWS_RESIDENT
                                                                       : KVA_ROWS_CHOSEN,
                                         .keep = check_below(check, 4) != 0};
    kva_device_ops(check->cpu)->assign_slots(check->cpu, &args);
    args.caches = gpu;
    kva_device_ops(check->gpu)->assign_slots(check->gpu, &args);
    if (kva_event_create(check->gpu, &event, &err))
        return;
    kva_event_record(event, KVA_QUEUE_COMPUTE);
    kva_event_wait(event, KVA_QUEUE_COPY);
    /* The second sequence comes after more than one launch takes: the first again and again. */
    struct kva_rows_fetch cpu_fetch[SEQS], gpu_fetch[FETCHES];
    for (uint32_t i = 0; i < FETCHES; i++) {
        uint32_t seq = i + 1 == FETCHES ? 1 : 0;
        cpu_fetch[seq] =
            (struct kva_rows_fetch){cpu[seq], (const void *const *)world->cpu_pages[seq]};
        gpu_fetch[i] =
            (struct kva_rows_fetch){gpu[seq], (const void *const *)world->gpu_pages[seq]};
    }
    struct kva_fetch_rows_args fetch = {.fetches = cpu_fetch,
                                        .count = SEQS,
                                        .kv_heads = s->kv_heads,
                                        .head_dim = s->dim,
                                        .queue = KVA_QUEUE_COPY};
    kva_device_ops(check->cpu)->fetch_rows(check->cpu, &fetch);
    fetch.fetches = gpu_fetch;
    fetch.count = FETCHES;
    kva_device_ops(check->gpu)->fetch_rows(check->gpu, &fetch);
    kva_event_record(event, KVA_QUEUE_COPY);
    kva_event_wait(event, KVA_QUEUE_COMPUTE);
    kva_event_destroy(event);
    kva_device_sync(check->cpu, KVA_QUEUE_COPY);
    for (uint32_t i = 0; i < SEQS; i++)
        compare_hot(check, "resolve", world, i);
    check_that(check, "hits",
               world->hits[0] == world->cpu_hits[0] && world->hits[1] == world->cpu_hits[1]);
}

/* Of which heads the other tokens have most differs: it decides whose tokens are chosen. */
static void rest_new(struct check *check, struct world *world)
{
    size_t pairs = (size_t)world->rows * world->shape->heads;
    world->cpu_rest = malloc(2 * pairs * sizeof(float));
    for (size_t i = 0; i < pairs; i++) {
        world->cpu_rest[i] = 8.0f * check_normal(check);
        world->cpu_rest[pairs + i] = 1.0f + (float)check_below(check, 50);
    }
    world->gpu_rest = gpu_new(check, world->cpu_rest, 2 * pairs * sizeof(float));
}

static void rest_free(struct check *check, struct world *world)
{
    gpu_free(check, world->gpu_rest, (size_t)world->rows * world->shape->heads * 2 * sizeof(float));
    free(world->cpu_rest);
}

/* Results [rows, heads]: a, then m, then e. */
static float *attend(struct check *check, struct world *world, bool gpu, uint32_t only,
                     uint32_t rows)
{
    const struct shape *s = world->shape;
    struct kva_select_seq seqs[SEQS];
    const void *blocks[32];
    size_t pairs = (size_t)rows * s->heads, floats = pairs * (s->dim + 2);
    size_t scratch_bytes = 0, offset = 0;
    uint32_t count = 0, block = 0, row = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        size_t need = kva_attend_select_bytes(s->heads, s->kv_heads, s->pages[i]);
        if (only < SEQS && only != i) {
            offset += i < only ? s->rows[i] : 0;
            continue;
        }
        seqs[count++] = (struct kva_select_seq){
            .row_first = row,
            .row_count = s->rows[i],
            .position_first = s->pages[i] * KVA_PAGE_TOKENS + 70,
            .block_first = block,
            .page_count = s->pages[i],
            .rows = s->k ? (gpu ? &world->gpu[i].hot : &world->cpu[i].hot) : NULL,
            .select_row = s->k ? s->rows[i] - 1 : UINT32_MAX,
        };
        for (uint32_t j = 0; j < s->pages[i]; j++)
            blocks[block++] = (unsigned char *)(gpu ? world->gpu_low[i] : world->cpu_low[i]) +
                              j * world->low_bytes;
        row += s->rows[i];
        scratch_bytes = kva_max_size(scratch_bytes, need);
    }
    /* Room for both sequences at once, or for one after the other. */
    scratch_bytes *= only < SEQS ? 1 : 1 + check_below(check, 2);
    float *out = calloc(floats, sizeof *out), *to = out;
    /* What nobody has written there must not count: as a score it would be the largest. */
    float *scratch = malloc(scratch_bytes);
    for (size_t i = 0; i < scratch_bytes / sizeof *scratch; i++)
        scratch[i] = 1e30f;
    void *gpu_scratch = gpu ? gpu_new(check, scratch, scratch_bytes) : NULL;
    if (gpu)
        to = gpu_new(check, NULL, floats * sizeof *out);
    size_t q_at = offset * s->heads * s->dim;
    size_t all = (size_t)world->rows * s->heads;
    float *rest_m = (gpu ? world->gpu_rest : world->cpu_rest) + offset * s->heads;
    const struct kva_partial rest = {.m = rest_m, .e = rest_m + all};
    struct kva_attend_select_fetch_args args = {
        .rest = &rest,
        .q =
            gpu ? (const void *)((unsigned char *)world->q.gpu + q_at * kva_dtype_bytes(check->act))
                : (const void *)(world->q.cpu + q_at),
        .out = {to, to + pairs * s->dim, to + pairs * (s->dim + 1)},
        .seqs = seqs,
        .blocks = blocks,
        .scratch = gpu ? gpu_scratch : scratch,
        .scratch_bytes = scratch_bytes,
        .seq_count = count,
        .q_stride = s->heads * s->dim,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->dim,
        .window = s->window,
        .kv_dtype = s->kv_dtype,
        .format = s->format,
        .scale = 1.0f / sqrtf((float)s->dim),
    };
    struct kva_device *device = gpu ? check->gpu : check->cpu;
    attend_apart(device, kva_device_ops(device), &args);
    if (gpu) {
        gpu_read(check, out, to, floats * sizeof *out);
        gpu_free(check, to, floats * sizeof *out);
        gpu_free(check, gpu_scratch, scratch_bytes);
    }
    free(scratch);
    return out;
}

/* Rows whose scores are nearly the same may be chosen one for the other. */
static void compare_chosen(struct check *check, struct world *world, uint32_t seq, bool exact)
{
    const struct shape *s = world->shape;
    struct kva_row_cache *cpu = &world->cpu[seq].hot, *gpu = &world->gpu[seq].hot;
    size_t bytes = (size_t)s->kv_heads * s->k * 4;
    uint32_t *got = malloc(bytes);
    gpu_read(check, got, gpu->chosen, bytes);
    for (uint32_t head = 0; head < s->kv_heads; head++) {
        const uint32_t *a = cpu->chosen + (size_t)head * s->k, *b = got + (size_t)head * s->k;
        uint32_t both = 0, count = 0;
        bool ascending = true;
        for (uint32_t i = 0, j = 0; i < s->k; i++) {
            count += a[i] != KVA_NO_TOKEN;
            ascending &= i == 0 || b[i] > b[i - 1] || b[i] == KVA_NO_TOKEN;
            while (j < s->k && b[j] < a[i])
                j++;
            both += a[i] != KVA_NO_TOKEN && j < s->k && b[j] == a[i];
        }
        check_that(check, "what is chosen ascends", ascending);
        check_that(check, "the same is chosen, but for near ties",
                   both + (exact ? 0 : count / 8 + 1) >= count);
    }
    /* The next step starts from the same on both. */
    free(got);
    got = gpu_new(check, cpu->chosen, bytes);
    kva_device_copy(check->gpu, KVA_QUEUE_COMPUTE, gpu->chosen, got, bytes);
    kva_device_sync(check->gpu, KVA_QUEUE_COMPUTE);
    gpu_free(check, got, bytes);
}

static void compare(struct check *check, const char *name, const struct world *world,
                    const float *got, const float *want)
{
    const struct shape *s = world->shape;
    size_t pairs = (size_t)world->rows * s->heads;
    const float *m = got + pairs * s->dim, *want_m = want + pairs * s->dim;
    float size[256], a[256];
    /* A key is rounded to f16, and scores add up to some: errors of a few thousandths. */
    check_close(check, name, m, want_m, NULL, pairs, 0x1p-9, 0x1p-7);
    for (size_t pair = 0; pair < pairs; pair++) {
        float e = got[pairs * (s->dim + 1) + pair], want_e = want[pairs * (s->dim + 1) + pair];
        for (size_t i = 0; i < s->dim; i++) {
            a[i] = e > 0 ? got[pair * s->dim + i] / e * want_e : 0;
            size[i] = 4 * want_e;
        }
        check_close(check, name, a, want + pair * s->dim, size, s->dim, 0x1p-7, 0x1p-8);
        float total = e * expf(m[pair] - want_m[pair]);
        check_close(check, name, &total, &want_e, NULL, 1, 0x1p-6, 0);
    }
}

/* A sequence alone has the bits that it has among others. */
static void check_alone(struct check *check, const char *name, struct world *world,
                        const float *whole)
{
    const struct shape *s = world->shape;
    size_t row = (size_t)s->heads * s->dim, first = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        float *alone = attend(check, world, true, i, s->rows[i]);
        check_same(check, name, alone, whole + first * row, s->rows[i] * row * sizeof(float));
        free(alone);
        first += s->rows[i];
    }
}

static void run_case(struct check *check, const struct shape *shape)
{
    struct world world = {.shape = shape};
    char name[128];
    world.block_bytes = kva_kv_block_bytes(shape->kv_heads, shape->dim);
    world.low_bytes = kva_lowbit_block_bytes(shape->format, shape->kv_heads, shape->dim);
    world.hits = pinned(check, 2 * sizeof(uint64_t));
    snprintf(name, sizeof name, "heads %u/%u dim %u bits %u group %u levels %d k %u window %u %s",
             shape->heads, shape->kv_heads, shape->dim, shape->format.bits, shape->format.group,
             (int)shape->format.levels, shape->k, shape->window, kva_dtype_name(shape->kv_dtype));
    for (uint32_t i = 0; i < SEQS; i++) {
        make_pages(check, &world, i);
        quantise(check, &world, i);
        if (shape->k)
            hot_new(check, &world, i);
        world.rows += shape->rows[i];
    }
    rest_new(check, &world);
    for (uint32_t step = 0; step < STEPS; step++) {
        /* In the last step all scores are zero: ties go to the lower position. */
        bool ties = step + 1 == STEPS;
        world.q = acts_new(check, check->act, (size_t)world.rows * shape->heads * shape->dim,
                           ties ? 0.0f : 1.0f);
        if (shape->k)
            resolve_and_fetch(check, &world, step);
        float *want = attend(check, &world, false, SEQS, world.rows);
        float *got = attend(check, &world, true, SEQS, world.rows);
        compare(check, name, &world, got, want);
        if (step == 1)
            check_alone(check, name, &world, got);
        for (uint32_t i = 0; i < SEQS && shape->k; i++)
            compare_chosen(check, &world, i, ties);
        free(want);
        free(got);
        acts_free(check, &world.q);
    }
    rest_free(check, &world);
    for (uint32_t i = 0; i < SEQS; i++) {
        size_t pages = shape->pages[i];
        kva_device_free(check->gpu, KVA_MEM_HOST, world.cpu_pages[i][0], pages * world.block_bytes);
        kva_device_free(check->gpu, KVA_MEM_HOST, world.gpu_pages[i], pages * sizeof(void *));
        gpu_free(check, world.gpu_low[i], pages * world.low_bytes);
        free(world.cpu_pages[i]);
        free(world.cpu_low[i]);
        if (!shape->k)
            continue;
        free(world.cpu[i].memory);
        gpu_free(check, world.gpu[i].memory, world.gpu[i].bytes);
    }
    kva_device_free(check->gpu, KVA_MEM_HOST, world.hits, 2 * sizeof(uint64_t));
}

/* --- drift ------------------------------------------------------------------------------------ */

#define DRIFT_ROWS  6u
#define DRIFT_COUNT 4u

/* Queries near the ones before. */
static void move_queries(struct check *check, struct acts *q)
{
    size_t bytes = q->count * kva_dtype_bytes(q->dtype);
    void *moved = malloc(bytes);
    for (size_t i = 0; i < q->count; i++) {
        q->cpu[i] = check_round(q->cpu[i] + 0.3f * check_normal(check), q->dtype);
        check_store(moved, i, q->cpu[i], q->dtype);
    }
    gpu_free(check, q->gpu, bytes);
    q->gpu = gpu_new(check, moved, bytes);
    free(moved);
}

/* Queries against those before: at first there are none, and zeros have no direction. */
static void check_drift(struct check *check, uint32_t heads, uint32_t dim)
{
    const uint32_t rows[DRIFT_COUNT] = {4, 0, 5, 2};
    size_t row = (size_t)heads * dim, row_bytes = row * kva_dtype_bytes(check->act);
    struct acts q = acts_new(check, check->act, DRIFT_ROWS * row, 1.0f);
    float *before = calloc(DRIFT_COUNT * row, sizeof *before), want[DRIFT_COUNT];
    unsigned char *read = calloc(DRIFT_ROWS, row_bytes), kept[32 * 128 * 4];
    unsigned char *gpu_before = gpu_new(check, read, DRIFT_COUNT * row_bytes);
    float *cosine = pinned(check, DRIFT_COUNT * sizeof *cosine);
    void *places[2][DRIFT_COUNT];
    for (uint32_t i = 0; i < DRIFT_COUNT; i++) {
        places[0][i] = before + i * row;
        places[1][i] = gpu_before + i * row_bytes;
    }
    for (int step = 0; step < 3; step++) {
        struct kva_query_cosine_args args = {.q = q.cpu,
                                             .rows = rows,
                                             .before = places[0],
                                             .cosine = want,
                                             .count = DRIFT_COUNT,
                                             .q_stride = (uint32_t)row,
                                             .heads = heads,
                                             .head_dim = dim};
        kva_device_ops(check->cpu)->query_cosine(check->cpu, &args);
        args.q = q.gpu;
        args.before = places[1];
        args.cosine = cosine;
        kva_device_ops(check->gpu)->query_cosine(check->gpu, &args);
        kva_device_sync(check->gpu, KVA_QUEUE_COMPUTE);
        check_close(check, "drift", cosine, want, NULL, DRIFT_COUNT, 0, 0x1p-18);
        gpu_read(check, read, q.gpu, DRIFT_ROWS * row_bytes);
        for (uint32_t i = 0; i < DRIFT_COUNT; i++) {
            gpu_read(check, kept, places[1][i], row_bytes);
            check_same(check, "drift remembers", kept, read + rows[i] * row_bytes, row_bytes);
        }
        move_queries(check, &q);
    }
    gpu_free(check, gpu_before, DRIFT_COUNT * row_bytes);
    kva_device_free(check->gpu, KVA_MEM_HOST, cosine, DRIFT_COUNT * sizeof *cosine);
    acts_free(check, &q);
    free(before);
    free(read);
}

void check_lowbit(struct check *check)
{
    static const struct shape shapes[] = {
        {4, 2, 64, 16, 4, 40, {5, 9}, {2, 1}, 0, {2, 64, KVA_LEVELS_FIT}, KVA_BF16},
        {4, 1, 32, 24, 0, 24, {3, 1}, {1, 2}, 0, {1, 64, KVA_LEVELS_PAPER}, KVA_F16},
        {6, 2, 16, 8, 4, 300, {6, 2}, {2, 2}, 200, {1, 32, KVA_LEVELS_FIT}, KVA_F16},
        {2, 2, 128, 32, 2, 70, {6, 4}, {1, 1}, 0, {2, 32, KVA_LEVELS_PAPER}, KVA_BF16},
        {3, 1, 12, 200, 1, 260, {4, 3}, {1, 1}, 0, {4, 64, KVA_LEVELS_PAPER}, KVA_F16},
        {4, 2, 80, 0, 0, 0, {2, 5}, {3, 1}, 0, {4, 32, KVA_LEVELS_FIT}, KVA_BF16},
    };
    static const struct shape large = {
        32, 8, 128, 64, 4, 132, {16, 15}, {2, 2}, 0, {2, 64, KVA_LEVELS_FIT}, KVA_BF16};
    check->op = "lowbit";
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
        run_case(check, &shapes[i]);
    if (check->large)
        run_case(check, &large);
    check_drift(check, 32, 128);
    check_drift(check, 3, 20);
}
