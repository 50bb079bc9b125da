#include "tests/cmocka.h"

#include "engine/kv/store/page_pool.h"

#include <string.h>

enum { PAGES = 8, PAGE_BYTES = 256 };

struct pool_fixture {
    struct kva_device *device;
    struct kva_page_pool *pool;
    uint32_t dropped;
};

static void count_drop(void *opaque, struct kva_page *page)
{
    struct pool_fixture *f = opaque;
    f->dropped++;
    page->device = NULL;
}

static void open_pool(struct pool_fixture *f)
{
    struct kva_err err;
    *f = (struct pool_fixture){0};
    assert_int_equal(
        kva_device_open_cpu(&(struct kva_device_params){.threads = 1}, &f->device, &err), KVA_OK);
    const struct kva_page_pool_params params = {
        .device = f->device,
        .page_bytes = PAGE_BYTES,
        .budget_bytes = PAGES * PAGE_BYTES,
        .prefix_cache = true,
        .drop_device = count_drop,
        .opaque = f,
    };
    assert_int_equal(kva_page_pool_create(&params, &f->pool, &err), KVA_OK);
}

static void close_pool(struct pool_fixture *f)
{
    kva_page_pool_destroy(f->pool);
    kva_device_close(f->device);
}

static const uint64_t scope_a[2] = {1, 2};
static const uint64_t scope_b[2] = {1, 3};

static void fill_tokens(uint32_t *tokens, uint32_t base)
{
    for (uint32_t i = 0; i < KVA_PAGE_TOKENS; i++)
        tokens[i] = base + i;
}

static struct kva_page *take(struct pool_fixture *f)
{
    assert_true(kva_page_pool_promise(f->pool, 1));
    return kva_page_pool_take(f->pool);
}

static struct kva_page *take_closed(struct pool_fixture *f, const struct kva_page *parent,
                                    uint32_t base)
{
    uint32_t tokens[KVA_PAGE_TOKENS];
    fill_tokens(tokens, base);
    struct kva_page *page = take(f);
    kva_page_pool_close(f->pool, page, parent, scope_a, tokens, true);
    return page;
}

static void test_page_pool__promises_are_kept(void **state KVA_UNUSED)
{
    struct pool_fixture f;
    open_pool(&f);
    assert_true(kva_page_pool_promise(f.pool, 5));
    assert_false(kva_page_pool_promise(f.pool, 4));
    assert_true(kva_page_pool_promise(f.pool, 3));
    struct kva_page *pages[PAGES];
    for (int i = 0; i < PAGES; i++) {
        pages[i] = kva_page_pool_take(f.pool);
        for (int j = 0; j < i; j++)
            assert_ptr_not_equal(pages[i]->host, pages[j]->host);
    }
    assert_false(kva_page_pool_promise(f.pool, 1));
    kva_page_pool_release(f.pool, pages[3]);
    assert_true(kva_page_pool_promise(f.pool, 1));
    kva_page_pool_unpromise(f.pool, 1);
    assert_int_equal(kva_page_pool_used(f.pool), PAGES - 1);
    close_pool(&f);
}

static void test_page_pool__finds_by_parent_tokens_and_scope(void **state KVA_UNUSED)
{
    struct pool_fixture f;
    open_pool(&f);
    uint32_t first[KVA_PAGE_TOKENS], second[KVA_PAGE_TOKENS];
    fill_tokens(first, 100);
    fill_tokens(second, 900);
    struct kva_page *a = take_closed(&f, NULL, 100);
    struct kva_page *b = take_closed(&f, a, 900);
    assert_ptr_equal(kva_page_pool_find(f.pool, NULL, scope_a, first), a);
    assert_ptr_equal(kva_page_pool_find(f.pool, a, scope_a, second), b);
    assert_null(kva_page_pool_find(f.pool, NULL, scope_b, first));
    assert_null(kva_page_pool_find(f.pool, NULL, scope_a, second));
    assert_null(kva_page_pool_find(f.pool, b, scope_a, second));
    first[63]++;
    assert_null(kva_page_pool_find(f.pool, NULL, scope_a, first));
    close_pool(&f);
}

static void test_page_pool__equal_pages_continue_one_chain(void **state KVA_UNUSED)
{
    struct pool_fixture f;
    open_pool(&f);
    /* Two sequences computed the same beginning at the same time; the second goes on differently.
     */
    struct kva_page *a = take_closed(&f, NULL, 100);
    struct kva_page *twin = take_closed(&f, NULL, 100);
    assert_false(twin->cached);
    struct kva_page *next = take_closed(&f, twin, 500);
    uint32_t tokens[KVA_PAGE_TOKENS];
    fill_tokens(tokens, 500);
    assert_ptr_equal(kva_page_pool_find(f.pool, a, scope_a, tokens), next);
    close_pool(&f);
}

/* Of two equal pages the one that was cached is evicted while somebody holds the other: the chain goes
 * on from that one. */
static void test_page_pool__an_equal_page_comes_in_its_place(void **state KVA_UNUSED)
{
    struct pool_fixture f;
    open_pool(&f);
    uint32_t first[KVA_PAGE_TOKENS], second[KVA_PAGE_TOKENS];
    fill_tokens(first, 100);
    fill_tokens(second, 500);
    struct kva_page *a = take_closed(&f, NULL, 100);
    struct kva_page *twin = take_closed(&f, NULL, 100);
    struct kva_page *third = take_closed(&f, NULL, 100);
    struct kva_page *written = take_closed(&f, NULL, 100);
    struct kva_page *next = take_closed(&f, twin, 500);
    kva_page_pool_release(f.pool, a);
    struct kva_page *others[PAGES - 4];
    for (uint32_t i = 0; i < PAGES - 4; i++)
        others[i] = take(&f);
    assert_ptr_equal(others[PAGES - 5], a);
    assert_null(kva_page_pool_find(f.pool, NULL, scope_a, first));
    /* Not by one whose tokens are others by now. */
    kva_page_pool_disown(written);
    kva_page_pool_release(f.pool, written);
    assert_null(kva_page_pool_find(f.pool, NULL, scope_a, first));
    kva_page_pool_release(f.pool, next);
    kva_page_pool_release(f.pool, twin);
    assert_ptr_equal(kva_page_pool_find(f.pool, NULL, scope_a, first), twin);
    assert_ptr_equal(kva_page_pool_find(f.pool, twin, scope_a, second), next);
    assert_int_equal(kva_page_pool_evictable(f.pool), 2);
    /* Once is enough. */
    kva_page_pool_release(f.pool, third);
    assert_ptr_equal(kva_page_pool_find(f.pool, NULL, scope_a, first), twin);
    assert_int_equal(kva_page_pool_evictable(f.pool), 2);
    close_pool(&f);
}

static void test_page_pool__evicts_the_longest_unused_and_only_when_needed(void **state KVA_UNUSED)
{
    struct pool_fixture f;
    open_pool(&f);
    struct kva_page *pages[PAGES];
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = take_closed(&f, NULL, i * 1000);
    for (uint32_t i = 0; i < PAGES; i++)
        kva_page_pool_release(f.pool, pages[i]);
    assert_int_equal(kva_page_pool_evictable(f.pool), PAGES);
    uint32_t tokens[KVA_PAGE_TOKENS];
    fill_tokens(tokens, 0);
    /* Page 0 is used again, so page 1 is the first to go. */
    assert_true(kva_page_pool_hold(f.pool, kva_page_pool_find(f.pool, NULL, scope_a, tokens)));
    pages[1]->device = &f;
    take(&f);
    assert_int_equal(f.dropped, 1);
    fill_tokens(tokens, 1000);
    assert_null(kva_page_pool_find(f.pool, NULL, scope_a, tokens));
    fill_tokens(tokens, 2000);
    assert_non_null(kva_page_pool_find(f.pool, NULL, scope_a, tokens));
    assert_int_equal(kva_page_pool_evictable(f.pool), PAGES - 2);
    close_pool(&f);
}

static void test_page_pool__holding_never_breaks_a_promise(void **state KVA_UNUSED)
{
    struct pool_fixture f;
    open_pool(&f);
    struct kva_page *page = take_closed(&f, NULL, 0);
    kva_page_pool_release(f.pool, page);
    assert_true(kva_page_pool_promise(f.pool, PAGES));
    assert_false(kva_page_pool_hold(f.pool, page));
    kva_page_pool_unpromise(f.pool, 1);
    assert_true(kva_page_pool_hold(f.pool, page));
    for (int i = 0; i < PAGES - 1; i++)
        assert_ptr_not_equal(kva_page_pool_take(f.pool), page);
    close_pool(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_pool__promises_are_kept),
        cmocka_unit_test(test_page_pool__finds_by_parent_tokens_and_scope),
        cmocka_unit_test(test_page_pool__equal_pages_continue_one_chain),
        cmocka_unit_test(test_page_pool__an_equal_page_comes_in_its_place),
        cmocka_unit_test(test_page_pool__evicts_the_longest_unused_and_only_when_needed),
        cmocka_unit_test(test_page_pool__holding_never_breaks_a_promise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
