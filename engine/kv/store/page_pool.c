/* page_pool.c - references, hash chains and eviction. */
#include "engine/kv/store/page_pool.h"

#include <stdlib.h>
#include <string.h>

struct kva_page_pool {
    struct kva_page_pool_params params;
    unsigned char *memory;
    struct kva_page *pages;
    uint32_t page_count;
    uint32_t fresh_count; /* pages never used yet: their memory is untouched */
    uint32_t promised;
    struct kva_page_list free_list;
    struct kva_page_list lru; /* cached, refs 0 */
    struct kva_page **buckets;
    uint32_t bucket_mask;
    uint64_t next_uid;
    uint64_t hash_seed;
};

static void list_append(struct kva_page_list *list, struct kva_page *page)
{
    page->lru_prev = list->tail;
    page->lru_next = NULL;
    if (list->tail)
        list->tail->lru_next = page;
    else
        list->head = page;
    list->tail = page;
    list->count++;
}

static void list_remove(struct kva_page_list *list, struct kva_page *page)
{
    if (page->lru_prev)
        page->lru_prev->lru_next = page->lru_next;
    else
        list->head = page->lru_next;
    if (page->lru_next)
        page->lru_next->lru_prev = page->lru_prev;
    else
        list->tail = page->lru_prev;
    list->count--;
}

enum kva_status kva_page_pool_create(const struct kva_page_pool_params *params,
                                     struct kva_page_pool **ret, struct kva_err *err)
{
    uint64_t count = params->budget_bytes / params->page_bytes;
    if (count == 0)
        return kva_fail(err, KVA_EINVAL,
                        "the host budget of %llu bytes is under one KV page of %zu bytes",
                        (unsigned long long)params->budget_bytes, params->page_bytes);
    if (count > UINT32_MAX / 2)
        count = UINT32_MAX / 2;
    struct kva_page_pool *pool = calloc(1, sizeof(*pool));
    if (!pool)
        return kva_fail(err, KVA_ENOMEM, "out of memory for the page pool");
    pool->params = *params;
    pool->page_count = (uint32_t)count;
    pool->next_uid = 1;
    uint32_t buckets = 1;
    while (buckets < count)
        buckets *= 2;
    pool->bucket_mask = buckets - 1;
    pool->pages = calloc(count, sizeof(*pool->pages));
    pool->buckets = calloc(buckets, sizeof(*pool->buckets));
    if (!pool->pages || !pool->buckets) {
        kva_page_pool_destroy(pool);
        return kva_fail(err, KVA_ENOMEM, "out of memory for the records of %llu KV pages",
                        (unsigned long long)count);
    }
    void *memory;
    enum kva_status status = kva_device_alloc(params->device, KVA_MEM_HOST,
                                              (size_t)count * params->page_bytes, &memory, err);
    if (status) {
        kva_page_pool_destroy(pool);
        return status;
    }
    pool->memory = memory;
    /* Any value will do: entries are verified, the seed only keeps bucket positions from being
     * guessed. */
    pool->hash_seed = (uint64_t)(uintptr_t)pool * 0x9E3779B97F4A7C15ull;
    *ret = pool;
    return KVA_OK;
}

void kva_page_pool_destroy(struct kva_page_pool *pool)
{
    if (!pool)
        return;
    if (pool->memory)
        kva_device_free(pool->params.device, KVA_MEM_HOST, pool->memory,
                        (size_t)pool->page_count * pool->params.page_bytes);
    free(pool->pages);
    free(pool->buckets);
    free(pool);
}

static uint32_t available(const struct kva_page_pool *pool)
{
    return pool->page_count - pool->fresh_count + pool->free_list.count + pool->lru.count -
           pool->promised;
}

bool kva_page_pool_promise(struct kva_page_pool *pool, uint32_t count)
{
    if (count > available(pool))
        return false;
    pool->promised += count;
    return true;
}

void kva_page_pool_unpromise(struct kva_page_pool *pool, uint32_t count)
{
    pool->promised -= count;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0xFF51AFD7ED558CCDull;
    return hash ^ (hash >> 32);
}

static uint64_t page_hash(const struct kva_page_pool *pool, uint64_t parent_uid,
                          const uint64_t scope[2], const uint32_t *tokens)
{
    uint64_t hash = mix(mix(mix(pool->hash_seed, parent_uid), scope[0]), scope[1]);
    for (uint32_t i = 0; i < KVA_PAGE_TOKENS; i += 2)
        hash = mix(hash, tokens[i] | (uint64_t)tokens[i + 1] << 32);
    return hash;
}

static struct kva_page *find(struct kva_page_pool *pool, uint64_t parent_uid,
                             const uint64_t scope[2], const uint32_t *tokens, uint64_t hash)
{
    for (struct kva_page *page = pool->buckets[hash & pool->bucket_mask]; page;
         page = page->hash_next) {
        if (page->hash == hash && page->parent_uid == parent_uid && page->scope[0] == scope[0] &&
            page->scope[1] == scope[1] && memcmp(page->tokens, tokens, sizeof(page->tokens)) == 0)
            return page;
    }
    return NULL;
}

static void table_insert(struct kva_page_pool *pool, struct kva_page *page)
{
    struct kva_page **bucket = &pool->buckets[page->hash & pool->bucket_mask];
    page->hash_next = *bucket;
    *bucket = page;
    page->cached = true;
}

static void table_remove(struct kva_page_pool *pool, struct kva_page *page)
{
    struct kva_page **link = &pool->buckets[page->hash & pool->bucket_mask];
    while (*link != page)
        link = &(*link)->hash_next;
    *link = page->hash_next;
    page->cached = false;
}

static void drop_device(struct kva_page_pool *pool, struct kva_page *page)
{
    if (page->device)
        pool->params.drop_device(pool->params.opaque, page);
}

struct kva_page *kva_page_pool_take(struct kva_page_pool *pool)
{
    struct kva_page *page;
    if (pool->free_list.count > 0) {
        page = pool->free_list.head;
        list_remove(&pool->free_list, page);
    } else if (pool->fresh_count < pool->page_count) {
        page = &pool->pages[pool->fresh_count];
        page->host = pool->memory + (size_t)pool->fresh_count * pool->params.page_bytes;
        pool->fresh_count++;
    } else {
        page = pool->lru.head;
        list_remove(&pool->lru, page);
        table_remove(pool, page);
        drop_device(pool, page);
    }
    pool->promised--;
    page->refs = 1;
    page->closed = false;
    page->on_host = false;
    page->chained = false;
    page->uid = 0;
    return page;
}

bool kva_page_pool_hold(struct kva_page_pool *pool, struct kva_page *page)
{
    if (page->refs == 0) {
        if (available(pool) == 0)
            return false;
        list_remove(&pool->lru, page);
    }
    page->refs++;
    return true;
}

void kva_page_pool_release(struct kva_page_pool *pool, struct kva_page *page)
{
    if (--page->refs > 0)
        return;
    /* The equal page that was there before it may be evicted by now; what continues both is not. */
    if (page->chained && !page->cached &&
        !find(pool, page->parent_uid, page->scope, page->tokens, page->hash))
        table_insert(pool, page);
    if (page->cached) {
        list_append(&pool->lru, page);
        return;
    }
    drop_device(pool, page);
    list_append(&pool->free_list, page);
}

void kva_page_pool_disown(struct kva_page *page)
{
    page->chained = false;
}

struct kva_page *kva_page_pool_find(struct kva_page_pool *pool, const struct kva_page *parent,
                                    const uint64_t scope[2], const uint32_t *tokens)
{
    uint64_t parent_uid = parent ? parent->uid : 0;
    return find(pool, parent_uid, scope, tokens, page_hash(pool, parent_uid, scope, tokens));
}

void kva_page_pool_close(struct kva_page_pool *pool, struct kva_page *page,
                         const struct kva_page *parent, const uint64_t scope[2],
                         const uint32_t *tokens, bool share)
{
    page->closed = true;
    page->uid = pool->next_uid++;
    page->parent_uid = parent ? parent->uid : 0;
    page->scope[0] = scope[0];
    page->scope[1] = scope[1];
    memcpy(page->tokens, tokens, sizeof(page->tokens));
    /* A page whose parent is not in the cache could never be found. */
    if (!share || !pool->params.prefix_cache || (parent && !parent->chained))
        return;
    page->hash = page_hash(pool, page->parent_uid, scope, tokens);
    page->chained = true;
    struct kva_page *equal = find(pool, page->parent_uid, scope, tokens, page->hash);
    if (equal) {
        page->uid = equal->uid;
        return;
    }
    table_insert(pool, page);
}

uint32_t kva_page_pool_total(const struct kva_page_pool *pool)
{
    return pool->page_count;
}

uint32_t kva_page_pool_used(const struct kva_page_pool *pool)
{
    return pool->fresh_count - pool->free_list.count + pool->promised;
}

uint32_t kva_page_pool_evictable(const struct kva_page_pool *pool)
{
    return pool->lru.count;
}
