/* assign_slots and fetch_rows on the CPU: which rows stay, and what fetches wait for. */
#include "tests/cmocka.h"

#include "kernels/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KV_HEADS = 3, DIM = 8, PAGES = 6 };

static uint64_t random_state;

static uint32_t below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((random_state >> 33) * limit >> 31);
}

static struct kva_device *open_device(uint32_t threads, uint32_t delay_max_us)
{
    struct kva_device *device = NULL;
    struct kva_device_params params = {
        .threads = threads, .copy_delay_max_us = delay_max_us, .copy_delay_seed = 7};
    assert_int_equal(kva_device_open_cpu(&params, &device, NULL), KVA_OK);
    return device;
}

static void *alloc(struct kva_device *device, size_t bytes)
{
    void *data = NULL;
    assert_int_equal(kva_device_alloc(device, KVA_MEM_DEVICE, bytes, &data, NULL), KVA_OK);
    return data;
}

/* --- a row cache in one piece of memory --------------------------------------------------------- */

struct fixture {
    struct kva_row_cache cache;
    void *memory;
    size_t bytes;
    uint64_t hits[2];
};

static void cache_new(struct kva_device *device, struct fixture *f, uint32_t slots, uint32_t pinned,
                      uint32_t k)
{
    size_t words = (size_t)KV_HEADS * slots * (DIM + 4) + KV_HEADS + (size_t)KV_HEADS * k;
    *f = (struct fixture){.bytes = words * 4};
    f->memory = alloc(device, f->bytes);
    uint32_t *at = f->memory;
    f->cache = (struct kva_row_cache){.slots = slots, .pinned = pinned, .k = k, .hits = f->hits};
    f->cache.rows = at, at += KV_HEADS * slots * DIM;
    f->cache.tokens = at, at += KV_HEADS * slots;
    f->cache.used = at, at += KV_HEADS * slots;
    f->cache.order = at, at += KV_HEADS * slots;
    f->cache.missing = at, at += KV_HEADS * slots;
    f->cache.count = at, at += KV_HEADS;
    f->cache.chosen = at;
    for (uint32_t i = 0; i < KV_HEADS * slots; i++)
        f->cache.tokens[i] = KVA_NO_TOKEN;
    for (uint32_t i = 0; i < KV_HEADS * k; i++)
        f->cache.chosen[i] = KVA_NO_TOKEN;
}

static void cache_free(struct kva_device *device, struct fixture *f)
{
    kva_device_free(device, KVA_MEM_DEVICE, f->memory, f->bytes);
}

static void choose(struct fixture *f, uint32_t kv_head, uint32_t count, const uint32_t *tokens)
{
    for (uint32_t i = 0; i < f->cache.k; i++)
        f->cache.chosen[kv_head * f->cache.k + i] = i < count ? tokens[i] : KVA_NO_TOKEN;
}

static void assign(struct kva_device *device, struct fixture *f, uint32_t stamp,
                   enum kva_rows_mode mode, bool keep)
{
    const struct kva_row_cache *caches[] = {&f->cache};
    kva_device_ops(device)->assign_slots(device,
                                         &(struct kva_assign_slots_args){.caches = caches,
                                                                         .count = 1,
                                                                         .kv_heads = KV_HEADS,
                                                                         .stamp = stamp,
                                                                         .mode = mode,
                                                                         .keep = keep});
    assert_int_equal(kva_device_error(device, NULL), KVA_OK);
}

static void expect_list(const uint32_t *list, uint32_t size, uint32_t count, const uint32_t *expect)
{
    for (uint32_t i = 0; i < size; i++)
        assert_int_equal(list[i], i < count ? expect[i] : KVA_NO_TOKEN);
}

#define LIST(...)                                                                                  \
    KVA_COUNT_OF(((const uint32_t[]){__VA_ARGS__})), (const uint32_t[])                            \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* --- assign_slots, step by step -------------------------------------------------------------------- */

static void fetch_rows(struct kva_device *device, enum kva_queue queue,
                       const struct kva_rows_fetch *fetch, size_t offset)
{
    kva_device_ops(device)->fetch_rows(device,
                                       &(struct kva_fetch_rows_args){.fetches = fetch,
                                                                     .page_offset_bytes = offset,
                                                                     .count = 1,
                                                                     .kv_heads = KV_HEADS,
                                                                     .head_dim = DIM,
                                                                     .queue = queue});
}

static void test_assign_slots__rows_that_are_there_stay(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    struct fixture f;
    cache_new(device, &f, 5, 1, 2);
    uint32_t *tokens = f.cache.tokens, *missing = f.cache.missing, *order = f.cache.order;
    choose(&f, 0, LIST(20, 90));
    assign(device, &f, 1, KVA_ROWS_CHOSEN, true);
    expect_list(tokens, 5, LIST(0, 20, 90));
    expect_list(missing, 5, LIST(1, 2));
    assert_int_equal(f.cache.count[0], 3);
    assert_int_equal(f.cache.count[1], 1); /* nothing chosen: the pinned row alone */
    assert_int_equal(f.hits[0], 0);
    assert_int_equal(f.hits[1], 2);

    choose(&f, 0, LIST(10, 90));
    assign(device, &f, 2, KVA_ROWS_CHOSEN, true);
    expect_list(tokens, 5, LIST(0, 20, 90, 10)); /* an empty slot before one that is in use */
    expect_list(missing, 5, LIST(3));
    assert_int_equal(f.cache.count[0], 3);
    assert_int_equal(order[0], 0);
    assert_int_equal(order[1], 3);
    assert_int_equal(order[2], 2);
    assert_int_equal(f.hits[0], 1);
    assert_int_equal(f.hits[1], 3);

    choose(&f, 0, LIST(70, 71));
    assign(device, &f, 3, KVA_ROWS_RESIDENT, true);
    expect_list(tokens, 5, LIST(0, 71, 90, 10, 70)); /* the empty one, then the oldest */
    expect_list(missing, 5, LIST(4, 1));
    assert_int_equal(f.cache.count[0], 5);
    const uint32_t by_position[] = {0, 3, 4, 1, 2};
    assert_memory_equal(order, by_position, sizeof by_position);

    choose(&f, 0, LIST(70, 90));
    assign(device, &f, 4, KVA_ROWS_CHOSEN, true);
    expect_list(missing, 5, 0, NULL);
    assert_int_equal(f.cache.count[0], 3);
    assert_int_equal(f.hits[0], 3);
    cache_free(device, &f);
    kva_device_close(device);
}

static void test_assign_slots__ties_take_the_lowest_slot(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    struct fixture f;
    cache_new(device, &f, 4, 0, 4);
    choose(&f, 2, LIST(5, 6, 7, 8));
    assign(device, &f, 10, KVA_ROWS_CHOSEN, true);
    choose(&f, 2, LIST(6, 100));
    assign(device, &f, 11, KVA_ROWS_CHOSEN, true);
    expect_list(f.cache.tokens + 8, 4, LIST(100, 6, 7, 8));
    choose(&f, 2, LIST(200, 201));
    assign(device, &f, 12, KVA_ROWS_CHOSEN, true);
    expect_list(f.cache.tokens + 8, 4, LIST(100, 6, 200, 201)); /* of stamp 10, not of 11 */
    cache_free(device, &f);
    kva_device_close(device);
}

static void test_assign_slots__without_keep_all_is_fetched(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    struct fixture f;
    cache_new(device, &f, 7, 2, 3);
    for (uint32_t stamp = 1; stamp < 4; stamp++) {
        choose(&f, 1, LIST(30, 31, 64));
        assign(device, &f, stamp, KVA_ROWS_RESIDENT, false);
        expect_list(f.cache.tokens + 7, 7, LIST(0, 1, 30, 31, 64));
        expect_list(f.cache.missing + 7, 7, LIST(2, 3, 4));
        assert_int_equal(f.cache.count[1], 5);
    }
    choose(&f, 1, LIST(64));
    assign(device, &f, 4, KVA_ROWS_RESIDENT, false);
    expect_list(f.cache.tokens + 7, 7, LIST(0, 1, 64)); /* not twice */
    assert_int_equal(f.hits[0], 0);
    assert_int_equal(f.hits[1], 10);
    cache_free(device, &f);
    kva_device_close(device);
}

static void test_assign_slots__refuses_too_few_slots(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device(1, 0);
    struct fixture f;
    struct kva_err err;
    cache_new(device, &f, 4, 2, 2);
    f.cache.k = 3;
    const struct kva_row_cache *caches[] = {&f.cache};
    kva_device_ops(device)->assign_slots(
        device, &(struct kva_assign_slots_args){
                    .caches = caches, .count = 1, .kv_heads = KV_HEADS, .stamp = 1});
    assert_int_equal(kva_device_error(device, &err), KVA_EDEVICE);
    assert_non_null(strstr(err.message, "assign_slots"));
    cache_free(device, &f);
    kva_device_close(device);
}

/* --- resolve and fetch, any sequence of choices ----------------------------------------------- */

/* The number of row `token`, element i of K or V of a head in the host's pages. */
static uint16_t number_at(uint32_t kv_head, uint32_t token, uint32_t i)
{
    return (uint16_t)(kv_head * 20011 + token * 131 + i * 7);
}

struct host {
    uint16_t *data;
    const void *pages[PAGES];
    size_t offset; /* bytes */
    size_t page_bytes;
};

static void host_new(struct kva_device *device, struct host *host)
{
    host->offset = 512;
    host->page_bytes = host->offset + kva_kv_block_bytes(KV_HEADS, DIM);
    host->data = alloc(device, PAGES * host->page_bytes);
    for (uint32_t page = 0; page < PAGES; page++) {
        unsigned char *at = (unsigned char *)host->data + page * host->page_bytes;
        uint16_t *block = (uint16_t *)(void *)(at + host->offset);
        host->pages[page] = at;
        for (uint32_t i = 0; i < KV_HEADS * KVA_PAGE_TOKENS * 2 * DIM; i++)
            block[i] =
                number_at(i / (KVA_PAGE_TOKENS * 2 * DIM),
                          page * KVA_PAGE_TOKENS + i / (2 * DIM) % KVA_PAGE_TOKENS, i % (2 * DIM));
    }
}

/* Some positions, ascending, that share some with those of the last time. */
static uint32_t choose_some(struct fixture *f, uint32_t kv_head, uint32_t *tokens)
{
    bool taken[PAGES * KVA_PAGE_TOKENS] = {false};
    uint32_t count = 0, want = below(4) ? f->cache.k : below(f->cache.k + 1);
    for (uint32_t i = 0; i < f->cache.k; i++) {
        uint32_t old = f->cache.chosen[kv_head * f->cache.k + i];
        if (old != KVA_NO_TOKEN && count < want && below(3))
            taken[old] = true, count++;
    }
    while (count < want) {
        uint32_t token = f->cache.pinned + below(PAGES * KVA_PAGE_TOKENS - f->cache.pinned);
        count += !taken[token];
        taken[token] = true;
    }
    for (uint32_t t = 0, i = 0; t < PAGES * KVA_PAGE_TOKENS; t++) {
        if (taken[t])
            tokens[i++] = t;
    }
    return count;
}

/* What must hold after a resolve and its fetch. */
static void check_head(const struct fixture *f, uint32_t kv_head, enum kva_rows_mode mode,
                       const uint32_t *wanted, uint32_t count)
{
    const struct kva_row_cache *cache = &f->cache;
    const uint32_t *tokens = cache->tokens + (size_t)kv_head * cache->slots;
    const uint32_t *order = cache->order + (size_t)kv_head * cache->slots;
    uint32_t residents = 0, found = 0;
    for (uint32_t slot = 0; slot < cache->slots; slot++) {
        const uint16_t *row =
            (const uint16_t *)cache->rows + ((size_t)kv_head * cache->slots + slot) * 2 * DIM;
        residents += tokens[slot] != KVA_NO_TOKEN;
        if (slot < cache->pinned)
            assert_int_equal(tokens[slot], slot);
        for (uint32_t i = 0; i < 2 * DIM && slot >= cache->pinned; i++) {
            if (tokens[slot] != KVA_NO_TOKEN)
                assert_int_equal(row[i], number_at(kv_head, tokens[slot], i));
        }
    }
    for (uint32_t i = 0; i < cache->count[kv_head]; i++) {
        uint32_t token = tokens[order[i]];
        assert_true(order[i] < cache->slots && token != KVA_NO_TOKEN);
        assert_true(i == 0 || token > tokens[order[i - 1]]); /* in order, none twice */
        found += found < count && wanted[found] == token;
    }
    assert_int_equal(found, count);
    assert_int_equal(cache->count[kv_head],
                     mode == KVA_ROWS_CHOSEN ? cache->pinned + count : residents);
}

static void run_choices(enum kva_queue queue, uint32_t threads, uint32_t delay, uint32_t slots,
                        uint32_t pinned, uint32_t k, enum kva_rows_mode mode, bool keep)
{
    struct kva_device *device = open_device(threads, delay);
    struct fixture f;
    struct host host;
    struct kva_event *fetched = NULL;
    assert_int_equal(kva_event_create(device, &fetched, NULL), KVA_OK);
    cache_new(device, &f, slots, pinned, k);
    host_new(device, &host);
    uint32_t *tokens = malloc(sizeof *tokens * KV_HEADS * k), counts[KV_HEADS], all = 0;
    for (uint32_t stamp = 1; stamp <= 60; stamp++) {
        for (uint32_t head = 0; head < KV_HEADS; head++) {
            counts[head] = choose_some(&f, head, tokens + head * k);
            choose(&f, head, counts[head], tokens + head * k);
            all += counts[head];
        }
        assign(device, &f, stamp, mode, keep);
        struct kva_row_cache copy = f.cache; /* what it is need not outlive the call */
        const struct kva_rows_fetch fetch = {&copy, host.pages, NULL};
        fetch_rows(device, queue, &fetch, host.offset);
        memset(&copy, 0, sizeof copy);
        kva_event_record(fetched, queue);
        kva_event_wait(fetched, KVA_QUEUE_COMPUTE);
        for (uint32_t head = 0; head < KV_HEADS; head++)
            check_head(&f, head, mode, tokens + head * k, counts[head]);
    }
    assert_int_equal(f.hits[0] + f.hits[1], all);
    assert_true(keep ? f.hits[0] > 0 : f.hits[0] == 0);
    free(tokens);
    kva_event_destroy(fetched);
    kva_device_free(device, KVA_MEM_DEVICE, host.data, PAGES * host.page_bytes);
    cache_free(device, &f);
    kva_device_close(device);
}

static void test_row_cache__any_choices_are_kept_in_order(void **state KVA_UNUSED)
{
    random_state = 1;
    for (int round = 0; round < 24; round++) {
        uint32_t k = 1 + below(40), pinned = below(3) * 4;
        uint32_t slots = pinned + k + (below(3) ? below(2 * k) : 0);
        run_choices(round % 2 ? KVA_QUEUE_COPY : KVA_QUEUE_COMPUTE, 1 + below(3),
                    round % 4 == 1 ? 300 : 0, slots, pinned, k,
                    below(2) ? KVA_ROWS_CHOSEN : KVA_ROWS_RESIDENT, below(3) > 0);
    }
}

static void test_row_cache__fetch_is_delayed_like_a_copy(void **state KVA_UNUSED)
{
    /* Without an event the rows are not there yet. */
    struct kva_device *device = open_device(1, 200000);
    struct host host;
    uint32_t early = 0;
    host_new(device, &host);
    for (uint32_t i = 0; i < 6; i++) {
        struct fixture f;
        struct kva_event *event = NULL;
        assert_int_equal(kva_event_create(device, &event, NULL), KVA_OK);
        cache_new(device, &f, 2, 0, 1);
        choose(&f, 0, LIST(100 + i));
        assign(device, &f, 1, KVA_ROWS_CHOSEN, true);
        const struct kva_rows_fetch fetch = {&f.cache, host.pages, NULL};
        fetch_rows(device, KVA_QUEUE_COPY, &fetch, host.offset);
        kva_event_record(event, KVA_QUEUE_COPY);
        early += !kva_event_done(event);
        kva_event_sync(event);
        assert_int_equal(((uint16_t *)f.cache.rows)[3], number_at(0, 100 + i, 3));
        kva_event_destroy(event);
        cache_free(device, &f);
    }
    assert_true(early > 0);
    kva_device_free(device, KVA_MEM_DEVICE, host.data, PAGES * host.page_bytes);
    kva_device_close(device);
}

/* --- query_cosine ----------------------------------------------------------------------------- */

static void test_query_cosine__is_the_mean_and_remembers(void **state KVA_UNUSED)
{
    enum { HEADS = 2, SIZE = 4, ROW = HEADS * SIZE };
    struct kva_device *device = open_device(1, 0);
    const float q[3][ROW] = {
        {1, 0, 0, 0, 0, 2, 0, 0},
        {9, 9, 9, 9, 9, 9, 9, 9}, /* nobody's */
        {0, 0, 0, 0, 3, 3, 3, 3},
    };
    float before[2][ROW] = {{1, 1, 0, 0, 0, -1, 0, 0}, {1, 2, 3, 4, 1, 1, 1, 1}};
    float cosine[2];
    uint32_t gates[2];
    const float percents[] = {-14, 51};
    const uint32_t rows[] = {0, 2};
    void *const places[] = {before[0], before[1]};
    const struct kva_query_cosine_args args = {.q = q,
                                               .rows = rows,
                                               .before = places,
                                               .percents = percents,
                                               .cosine = cosine,
                                               .gates = gates,
                                               .count = 2,
                                               .q_stride = ROW,
                                               .heads = HEADS,
                                               .head_dim = SIZE};
    kva_device_ops(device)->query_cosine(device, &args);
    assert_true(fabsf(cosine[0] - (sqrtf(0.5f) - 1) / 2) < 1e-6f);
    assert_true(fabsf(cosine[1] - 0.5f) < 1e-6f); /* a zero query has no direction */
    assert_int_equal(gates[0], 1);                /* -14.6 */
    assert_int_equal(gates[1], 1);
    assert_memory_equal(before[0], q[0], sizeof(before[0]));
    assert_memory_equal(before[1], q[2], sizeof(before[1]));
    kva_device_ops(device)->query_cosine(device, &args);
    assert_true(fabsf(cosine[0] - 1) < 1e-6f);
    assert_int_equal(gates[0], 0);
    kva_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_assign_slots__rows_that_are_there_stay),
        cmocka_unit_test(test_assign_slots__ties_take_the_lowest_slot),
        cmocka_unit_test(test_assign_slots__without_keep_all_is_fetched),
        cmocka_unit_test(test_assign_slots__refuses_too_few_slots),
        cmocka_unit_test(test_row_cache__any_choices_are_kept_in_order),
        cmocka_unit_test(test_row_cache__fetch_is_delayed_like_a_copy),
        cmocka_unit_test(test_query_cosine__is_the_mean_and_remembers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
