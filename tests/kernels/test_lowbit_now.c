/* A choice that is acted upon within the call that makes it (kva_select_seq.now) gives the bits of
 * choosing, resolving, fetching and attending one after the other. */
#include "tests/cmocka.h"

#include "tests/kernels/attend_apart.h"

#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

enum { KV_HEADS = 2, GROUP = 3, HEADS = KV_HEADS * GROUP, DIM = 32, SEQS = 4, PAGES_MAX = 40 };

static uint64_t random_state;

static uint32_t below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) * limit >> 31);
}

static float number(void)
{
    return ((float)below(4096) - 2048.0f) / 512.0f;
}

static uint16_t bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* --- sequences -------------------------------------------------------------------------------- */

struct sequence {
    uint32_t pages;
    uint32_t rows;
    bool acts;
    const void *homes[PAGES_MAX];
    void *low[PAGES_MAX];
    uint32_t slots, pinned, k;
    float successor;
    enum kva_rows_mode mode;
    bool keep;
};

/* One sequence's cached rows, of which there are two of each: for either way. */
struct cache {
    struct kva_row_cache cache;
    size_t bytes;
    uint64_t hits[2];
};

struct test {
    struct kva_device *device;
    struct sequence seqs[SEQS];
    struct kva_lowbit_format format;
    uint32_t window;
    size_t offset; /* bytes before the block in a home */
    float *q;      /* [2 SEQS, HEADS, DIM] */
    float *rest;   /* m, then e [2 SEQS, HEADS] */
};

static void *get(size_t bytes)
{
    void *data = malloc(bytes);
    assert_non_null(data);
    return data;
}

static void sequence_new(struct test *t, struct sequence *s, uint32_t pages_max)
{
    *s = (struct sequence){.pages = 1 + below(pages_max),
                           .acts = below(4) > 0,
                           .pinned = below(2) * 4,
                           .k = 1 + below(48),
                           .successor = below(2) ? 0.3f : 0.0f,
                           .mode = below(2) ? KVA_ROWS_CHOSEN : KVA_ROWS_RESIDENT,
                           .keep = below(3) > 0};
    s->rows = s->acts ? 1 : 1 + below(2);
    s->slots = s->pinned + s->k + below(2) * s->k;
    for (uint32_t i = 0; i < s->pages; i++) {
        size_t numbers = kva_kv_block_bytes(KV_HEADS, DIM) / 2;
        uint16_t *home = get(t->offset + 2 * numbers), *block = home + t->offset / 2;
        for (size_t j = 0; j < numbers; j++)
            block[j] = bf16(number());
        s->homes[i] = home;
        s->low[i] = get(kva_lowbit_block_bytes(t->format, KV_HEADS, DIM));
    }
    kva_device_ops(t->device)->quantise(t->device,
                                        &(struct kva_quantise_args){.from = s->homes,
                                                                    .to = s->low,
                                                                    .from_offset_bytes = t->offset,
                                                                    .count = s->pages,
                                                                    .kv_heads = KV_HEADS,
                                                                    .head_dim = DIM,
                                                                    .kv_dtype = KVA_BF16,
                                                                    .format = t->format});
}

static void sequence_free(struct sequence *s)
{
    for (uint32_t i = 0; i < s->pages; i++) {
        free((void *)(uintptr_t)s->homes[i]);
        free(s->low[i]);
    }
}

static void cache_new(const struct sequence *s, struct cache *h)
{
    size_t slots = (size_t)KV_HEADS * s->slots;
    h->bytes = (slots * (DIM + 4) + KV_HEADS + (size_t)KV_HEADS * s->k) * 4;
    uint32_t *at = get(h->bytes);
    memset(at, 0, h->bytes);
    h->hits[0] = h->hits[1] = 0;
    h->cache = (struct kva_row_cache){.slots = s->slots,
                                      .pinned = s->pinned,
                                      .k = s->k,
                                      .successor = s->successor,
                                      .hits = h->hits,
                                      .rows = at};
    h->cache.tokens = at + slots * DIM;
    h->cache.used = h->cache.tokens + slots;
    h->cache.order = h->cache.used + slots;
    h->cache.missing = h->cache.order + slots;
    h->cache.count = h->cache.missing + slots;
    h->cache.chosen = h->cache.count + KV_HEADS;
    for (size_t i = 0; i < slots; i++)
        h->cache.tokens[i] = KVA_NO_TOKEN;
    for (size_t i = 0; i < (size_t)KV_HEADS * s->k; i++)
        h->cache.chosen[i] = KVA_NO_TOKEN;
}

/* --- one step, either way --------------------------------------------------------------------- */

struct step {
    struct kva_select_seq seqs[SEQS];
    struct kva_fused_fetch now[SEQS];
    const void *blocks[SEQS * PAGES_MAX];
    struct kva_attend_select_fetch_args args;
    uint32_t rows;
};

static void step_new(const struct test *t, struct cache *caches, uint32_t stamp, bool now,
                     float *out, void *scratch, size_t scratch_bytes, struct step *step)
{
    uint32_t block = 0;
    step->rows = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        const struct sequence *s = &t->seqs[i];
        step->now[i] = (struct kva_fused_fetch){s->homes, t->offset, stamp, s->mode, s->keep};
        step->seqs[i] = (struct kva_select_seq){
            .row_first = step->rows,
            .row_count = s->rows,
            .position_first = s->pages * KVA_PAGE_TOKENS + 5,
            .block_first = block,
            .page_count = s->pages,
            .rows = &caches[i].cache,
            .select_row = s->acts || s->rows == 2 ? s->rows - 1 : UINT32_MAX,
            .now = now && s->acts ? &step->now[i] : NULL,
        };
        step->rows += s->rows;
        for (uint32_t page = 0; page < s->pages; page++)
            step->blocks[block++] = s->low[page];
    }
    float *m = out + (size_t)2 * SEQS * HEADS * DIM;
    step->args = (struct kva_attend_select_fetch_args){
        .q = t->q,
        .out = {out, m, m + 2 * SEQS * HEADS},
        .seqs = step->seqs,
        .blocks = step->blocks,
        .scratch = scratch,
        .scratch_bytes = scratch_bytes,
        .seq_count = SEQS,
        .q_stride = HEADS * DIM,
        .heads = HEADS,
        .kv_heads = KV_HEADS,
        .head_dim = DIM,
        .window = t->window,
        .kv_dtype = KVA_BF16,
        .format = t->format,
        .scale = 0.1f,
    };
}

/* Choose, resolve, fetch, attend. */
static void run_apart(const struct test *t, struct cache *caches, struct step *step,
                      const struct kva_partial *rest)
{
    const struct kva_ops *ops = kva_device_ops(t->device);
    step->args.rest = rest;
    attend_apart(t->device, ops, &step->args);
    for (uint32_t i = 0; i < SEQS; i++) {
        const struct sequence *s = &t->seqs[i];
        const struct kva_row_cache *cache = &caches[i].cache;
        if (!s->acts)
            continue;
        ops->assign_slots(t->device, &(struct kva_assign_slots_args){.caches = &cache,
                                                                     .count = 1,
                                                                     .kv_heads = KV_HEADS,
                                                                     .stamp = step->now[i].stamp,
                                                                     .mode = s->mode,
                                                                     .keep = s->keep});
        const struct kva_rows_fetch fetch = {cache, s->homes, NULL};
        ops->fetch_rows(t->device, &(struct kva_fetch_rows_args){.fetches = &fetch,
                                                                 .page_offset_bytes = t->offset,
                                                                 .count = 1,
                                                                 .kv_heads = KV_HEADS,
                                                                 .head_dim = DIM,
                                                                 .queue = KVA_QUEUE_COMPUTE});
        step->seqs[i].select_row = UINT32_MAX;
    }
    attend_apart(t->device, ops, &step->args);
}

static void run_at_once(const struct test *t, struct step *step, const struct kva_partial *rest)
{
    step->args.rest = rest;
    kva_device_ops(t->device)->attend_select_fetch(t->device, &step->args);
}

/* Queries that move a little from step to step, so that some choices stay. */
static void move_queries(struct test *t, float share)
{
    for (size_t i = 0; i < (size_t)2 * SEQS * HEADS * DIM; i++)
        t->q[i] = (1.0f - share) * t->q[i] + share * number();
}

static void make_rest(struct test *t, struct kva_partial *rest)
{
    size_t pairs = (size_t)2 * SEQS * HEADS;
    for (size_t i = 0; i < pairs; i++) {
        t->rest[i] = number();
        t->rest[pairs + i] = 1.0f + (float)below(100);
    }
    *rest = (struct kva_partial){.m = t->rest, .e = t->rest + pairs};
}

static void expect_equal_caches(const struct test *t, const struct cache *a, const struct cache *b)
{
    for (uint32_t i = 0; i < SEQS; i++) {
        assert_memory_equal(a[i].cache.rows, b[i].cache.rows, a[i].bytes);
        assert_memory_equal(a[i].hits, b[i].hits, sizeof a[i].hits);
        assert_int_equal(a[i].hits[0] + a[i].hits[1] > 0, t->seqs[i].acts);
    }
}

static void run_steps(struct test *t, size_t scratch_bytes)
{
    struct cache apart[SEQS], at_once[SEQS];
    size_t out_floats = (size_t)2 * SEQS * HEADS * (DIM + 2);
    float *out[2] = {get(out_floats * 4), get(out_floats * 4)};
    void *scratch = get(scratch_bytes);
    struct step *step = get(sizeof *step);
    for (uint32_t i = 0; i < SEQS; i++) {
        cache_new(&t->seqs[i], &apart[i]);
        cache_new(&t->seqs[i], &at_once[i]);
    }
    move_queries(t, 1.0f);
    for (uint32_t stamp = 1; stamp < 6; stamp++) {
        struct kva_partial rest;
        make_rest(t, &rest);
        memset(out[0], 0x55, out_floats * 4);
        memset(out[1], 0x55, out_floats * 4);
        step_new(t, apart, stamp, false, out[0], scratch, scratch_bytes, step);
        run_apart(t, apart, step, &rest);
        memset(scratch, 0xFF, scratch_bytes);
        step_new(t, at_once, stamp, true, out[1], scratch, scratch_bytes, step);
        run_at_once(t, step, &rest);
        assert_int_equal(kva_device_error(t->device, NULL), KVA_OK);
        assert_memory_equal(out[0], out[1], out_floats * 4);
        move_queries(t, 0.2f);
    }
    expect_equal_caches(t, apart, at_once);
    for (uint32_t i = 0; i < SEQS; i++) {
        free(apart[i].cache.rows);
        free(at_once[i].cache.rows);
    }
    free(out[0]);
    free(out[1]);
    free(scratch);
    free(step);
}

/* pages_max large: few tasks with many splits. */
static void run_case(uint32_t level, uint32_t threads, uint32_t pages_max, uint32_t scratch_parts)
{
    static const uint32_t bits[] = {1, 2, 4};
    struct test t = {.offset = below(3) * 64,
                     .window = below(2) ? 0 : 64 + below(1000),
                     .format = {.bits = bits[below(3)], .group = below(2) ? 32 : 64}};
    const struct kva_device_params params = {.threads = threads, .cpu_level_mask = level};
    if (kva_device_open_cpu(&params, &t.device, NULL) != KVA_OK)
        return; /* this machine lacks the level */
    t.q = get((size_t)2 * SEQS * HEADS * DIM * 4);
    t.rest = get((size_t)2 * SEQS * HEADS * 2 * 4);
    memset(t.q, 0, (size_t)2 * SEQS * HEADS * DIM * 4);
    for (uint32_t i = 0; i < SEQS; i++)
        sequence_new(&t, &t.seqs[i], pages_max);
    run_steps(&t, scratch_parts * kva_max_size(kva_attend_select_bytes(HEADS, KV_HEADS, pages_max),
                                               kva_attend_fused_bytes(HEADS, DIM, pages_max)));
    for (uint32_t i = 0; i < SEQS; i++)
        sequence_free(&t.seqs[i]);
    free(t.q);
    free(t.rest);
    kva_device_close(t.device);
}

static void test_now__gives_the_bits_of_four_calls(void **state KVA_UNUSED)
{
    static const uint32_t levels[] = {0, KVA_CPU_REF, KVA_CPU_AVX2, KVA_CPU_AVX512,
                                      KVA_CPU_AVX512VNNI};
    random_state = 3;
    for (uint32_t round = 0; round < 40; round++)
        run_case(levels[round % 5], 1 + below(4), round % 3 ? 6 : PAGES_MAX, 1 + 3 * below(2));
}

/* Threads that outnumber the tasks run their splits side by side. */
static void test_now__where_splits_run_side_by_side(void **state KVA_UNUSED)
{
    random_state = 4;
    for (uint32_t round = 0; round < 6; round++)
        run_case(0, 8, PAGES_MAX, 1);
}

static void test_now__refuses_what_it_is_not_made_for(void **state KVA_UNUSED)
{
    struct kva_device *device = NULL;
    const struct kva_device_params params = {.threads = 1};
    assert_int_equal(kva_device_open_cpu(&params, &device, NULL), KVA_OK);
    const struct kva_fused_fetch now = {0};
    const struct kva_select_seq seq = {.row_count = 2, .select_row = UINT32_MAX, .now = &now};
    kva_device_ops(device)->attend_select_fetch(
        device, &(struct kva_attend_select_fetch_args){.seqs = &seq,
                                                       .seq_count = 1,
                                                       .heads = HEADS,
                                                       .kv_heads = KV_HEADS,
                                                       .head_dim = DIM,
                                                       .kv_dtype = KVA_BF16,
                                                       .format = {.bits = 1, .group = 64}});
    struct kva_err err;
    assert_int_equal(kva_device_error(device, &err), KVA_EDEVICE);
    assert_non_null(strstr(err.message, "only row"));
    kva_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_now__gives_the_bits_of_four_calls),
        cmocka_unit_test(test_now__where_splits_run_side_by_side),
        cmocka_unit_test(test_now__refuses_what_it_is_not_made_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
