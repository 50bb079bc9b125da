#include "tests/scheduler/scripted_pages.h"

void scripted_pool_init(struct scripted_pool *pool, struct kva_tier_bytes budget)
{
    *pool = (struct scripted_pool){.budget = budget};
    SCRIPTED_CHECK(kva_id_table_init(&pool->pages, 1u << 14) == KVA_OK, "out of memory");
    kva_list_init(&pool->host_idle);
    kva_list_init(&pool->device_idle);
}

static void drop_device_copy(struct scripted_pool *pool, struct scripted_page *page)
{
    kva_list_remove(&page->device_idle);
    page->resident = false;
    pool->used.device -= page->bytes.device;
    pool->cached.device -= page->bytes.device;
}

static void drop_page(struct scripted_pool *pool, struct scripted_page *page)
{
    if (page->resident)
        drop_device_copy(pool, page);
    kva_list_remove(&page->host_idle);
    pool->used.host -= page->bytes.host;
    pool->cached.host -= page->bytes.host;
    kva_id_table_remove(&pool->pages, &page->node);
    free(page);
}

void scripted_pool_finish(struct scripted_pool *pool)
{
    while (!kva_list_empty(&pool->host_idle))
        drop_page(pool, KVA_CONTAINER_OF(pool->host_idle.next, struct scripted_page, host_idle));
    SCRIPTED_CHECK(pool->pages.count == 0, "%u pages are still referenced", pool->pages.count);
    SCRIPTED_CHECK(pool->used.device == 0 && pool->used.host == 0,
                   "%llu device and %llu host bytes were not given back",
                   (unsigned long long)pool->used.device, (unsigned long long)pool->used.host);
    kva_id_table_finish(&pool->pages);
}

static enum kva_status refuse(enum kva_tier_id tier, uint64_t want, uint64_t free_bytes,
                              enum kva_tier_id *short_of, struct kva_err *err)
{
    if (short_of)
        *short_of = tier;
    return kva_fail(err, KVA_ELIMIT, "%s tier: %llu bytes wanted, %llu free",
                    tier == KVA_TIER_HOST ? "host" : "device", (unsigned long long)want,
                    (unsigned long long)free_bytes);
}

enum kva_status scripted_pool_take(struct scripted_pool *pool, struct kva_tier_bytes want,
                                   enum kva_tier_id *short_of, struct kva_err *err)
{
    uint64_t device_free = pool->budget.device - (pool->used.device - pool->cached.device);
    uint64_t host_free = pool->budget.host - (pool->used.host - pool->cached.host);
    if (want.device > device_free)
        return refuse(KVA_TIER_DEVICE, want.device, device_free, short_of, err);
    if (want.host > host_free)
        return refuse(KVA_TIER_HOST, want.host, host_free, short_of, err);
    while (pool->used.host + want.host > pool->budget.host)
        drop_page(pool, KVA_CONTAINER_OF(pool->host_idle.next, struct scripted_page, host_idle));
    while (pool->used.device + want.device > pool->budget.device)
        drop_device_copy(
            pool, KVA_CONTAINER_OF(pool->device_idle.next, struct scripted_page, device_idle));
    pool->used.device += want.device;
    pool->used.host += want.host;
    if (pool->used.device > pool->peak.device)
        pool->peak.device = pool->used.device;
    if (pool->used.host > pool->peak.host)
        pool->peak.host = pool->used.host;
    return KVA_OK;
}

void scripted_pool_give(struct scripted_pool *pool, struct kva_tier_bytes bytes)
{
    SCRIPTED_CHECK(pool->used.device >= bytes.device && pool->used.host >= bytes.host,
                   "more is given back than was taken");
    pool->used.device -= bytes.device;
    pool->used.host -= bytes.host;
}

struct scripted_page *scripted_pool_find(const struct scripted_pool *pool, uint64_t hash)
{
    struct kva_id_node *node = kva_id_table_find(&pool->pages, hash);
    return node ? KVA_CONTAINER_OF(node, struct scripted_page, node) : NULL;
}

struct scripted_page *scripted_pool_publish(struct scripted_pool *pool, uint64_t hash,
                                            struct kva_tier_bytes bytes)
{
    struct scripted_page *page = calloc(1, sizeof(*page));
    SCRIPTED_CHECK(page != NULL, "out of memory");
    page->host_refs = 1;
    page->device_refs = 1;
    page->resident = true;
    page->bytes = bytes;
    kva_list_init(&page->host_idle);
    kva_list_init(&page->device_idle);
    kva_id_table_insert(&pool->pages, &page->node, hash);
    return page;
}

void scripted_page_host_ref(struct scripted_pool *pool, struct scripted_page *page)
{
    if (page->host_refs++ == 0) {
        kva_list_remove(&page->host_idle);
        pool->cached.host -= page->bytes.host;
    }
}

void scripted_page_host_unref(struct scripted_pool *pool, struct scripted_page *page)
{
    SCRIPTED_CHECK(page->host_refs > 0, "a page is given back twice");
    if (--page->host_refs == 0) {
        kva_list_append(&pool->host_idle, &page->host_idle);
        pool->cached.host += page->bytes.host;
    }
}

void scripted_page_device_ref(struct scripted_pool *pool, struct scripted_page *page)
{
    if (page->device_refs++ == 0 && page->resident) {
        kva_list_remove(&page->device_idle);
        pool->cached.device -= page->bytes.device;
    }
}

void scripted_page_device_unref(struct scripted_pool *pool, struct scripted_page *page)
{
    SCRIPTED_CHECK(page->device_refs > 0, "a device page is given back twice");
    if (--page->device_refs == 0 && page->resident) {
        kva_list_append(&pool->device_idle, &page->device_idle);
        pool->cached.device += page->bytes.device;
    }
}
