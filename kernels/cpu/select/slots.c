/* slots.c - drivers of assign_slots, fetch_rows and query_cosine: which slots the chosen rows take,
 * how they get there, and how far the queries that chose them have turned. */
#include "kernels/cpu/device/device_cpu.h"
#include "kernels/cpu/select/order.h"
#include "kernels/cpu/select/row_cache.h"

#include <math.h>
#include <string.h>

/* --- assign_slots -----------------------------------------------------------------------------
 *
 * Packed numbers stand for (position, slot) and (stamp, slot): sorting them sorts by the first and
 * then by the slot. */

struct assign_job {
    struct kva_device *device;
    const struct kva_assign_slots_args *args;
};

/* One KV head's part of a row cache. */
struct head {
    uint32_t *tokens;
    uint32_t *used;
    uint32_t *order;
    uint32_t *count;
    const uint32_t *chosen;
    uint32_t *missing;
    uint32_t slots;
    uint32_t pinned;
    uint32_t k;
};

static struct head head_of(const struct kva_row_cache *cache, uint32_t kv_head)
{
    size_t slot = (size_t)kv_head * cache->slots;
    return (struct head){.tokens = cache->tokens + slot,
                         .used = cache->used + slot,
                         .order = cache->order + slot,
                         .count = cache->count + kv_head,
                         .chosen = cache->chosen + (size_t)kv_head * cache->k,
                         .missing = cache->missing + slot,
                         .slots = cache->slots,
                         .pinned = cache->pinned,
                         .k = cache->k};
}

static uint64_t pack(uint32_t high, uint32_t low)
{
    return (uint64_t)high << 32 | low;
}

static uint32_t chosen_count(const struct head *head)
{
    uint32_t count = 0;
    while (count < head->k && head->chosen[count] != KVA_NO_TOKEN)
        count++;
    return count;
}

/* Mark the slots of chosen rows that are there. missing[0 .. return) = the positions of the others,
 * ascending. */
static uint32_t find_present(struct head *head, uint32_t stamp, uint64_t *keys)
{
    uint32_t residents = 0, absent = 0, chosen = chosen_count(head);
    for (uint32_t slot = head->pinned; slot < head->slots; slot++) {
        if (head->tokens[slot] != KVA_NO_TOKEN)
            keys[residents++] = pack(head->tokens[slot], slot);
    }
    kva_order_sort(keys, residents);
    for (uint32_t i = 0, at = 0; i < chosen; i++) {
        while (at < residents && keys[at] >> 32 < head->chosen[i])
            at++;
        if (at < residents && keys[at] >> 32 == head->chosen[i])
            head->used[(uint32_t)keys[at]] = stamp;
        else
            head->missing[absent++] = head->chosen[i];
    }
    return absent;
}

/* Give the positions missing[0 .. count) the slots that were wanted longest ago; missing becomes
 * these slots. */
static void take_slots(struct head *head, uint32_t count, uint32_t stamp, uint64_t *keys)
{
    uint32_t free = 0;
    for (uint32_t slot = head->pinned; slot < head->slots; slot++) {
        if (head->used[slot] != stamp)
            keys[free++] = pack(head->tokens[slot] == KVA_NO_TOKEN ? 0 : head->used[slot], slot);
    }
    kva_order_sort(keys, free);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = (uint32_t)keys[i];
        head->tokens[slot] = head->missing[i];
        head->used[slot] = stamp;
        head->missing[i] = slot;
    }
}

/* All chosen rows anew, in the first slots; nothing else stays. They are in order as they are. */
static uint32_t take_all(struct head *head, uint32_t stamp)
{
    uint32_t chosen = chosen_count(head);
    for (uint32_t slot = 0; slot < head->pinned + chosen; slot++)
        head->order[slot] = slot;
    *head->count = head->pinned + chosen;
    for (uint32_t slot = head->pinned; slot < head->slots; slot++) {
        uint32_t i = slot - head->pinned;
        head->tokens[slot] = i < chosen ? head->chosen[i] : KVA_NO_TOKEN;
        head->used[slot] = i < chosen ? stamp : 0;
        if (i < chosen)
            head->missing[i] = slot;
    }
    return chosen;
}

/* order and count: the pinned rows, then those that attend, by position. */
static void put_in_order(struct head *head, bool all, uint32_t stamp, uint64_t *keys)
{
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < head->slots; slot++) {
        bool attends = slot < head->pinned || all || head->used[slot] == stamp;
        if (attends && head->tokens[slot] != KVA_NO_TOKEN)
            keys[count++] = pack(head->tokens[slot], slot);
    }
    kva_order_sort(keys, count);
    for (uint32_t i = 0; i < count; i++)
        head->order[i] = (uint32_t)keys[i];
    *head->count = count;
}

static void assign_head(const struct kva_row_cache *cache, uint32_t kv_head, uint32_t stamp,
                        enum kva_rows_mode mode, bool keep, uint64_t *keys)
{
    struct head head = head_of(cache, kv_head);
    uint32_t missing;
    for (uint32_t slot = 0; slot < head.pinned; slot++)
        head.tokens[slot] = slot;
    if (keep) {
        missing = find_present(&head, stamp, keys);
        take_slots(&head, missing, stamp, keys);
    } else {
        missing = take_all(&head, stamp);
    }
    for (uint32_t i = missing; i < head.slots; i++)
        head.missing[i] = KVA_NO_TOKEN;
    if (keep)
        put_in_order(&head, mode == KVA_ROWS_RESIDENT, stamp, keys);
    __atomic_fetch_add(&cache->hits[0], chosen_count(&head) - missing, __ATOMIC_RELAXED);
    __atomic_fetch_add(&cache->hits[1], missing, __ATOMIC_RELAXED);
}

static void assign_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct assign_job *job = opaque;
    const struct kva_assign_slots_args *args = job->args;
    if (args->gates && kva_gate_closed(args->gates[index / args->kv_heads]))
        return;
    assign_head(args->caches[index / args->kv_heads], index % args->kv_heads, args->stamp,
                args->mode, args->keep, kva_cpu_scratch(job->device, worker));
}

void kva_cpu_assign_slots(struct kva_device *device, const struct kva_assign_slots_args *args)
{
    if (kva_cpu_failed(device))
        return;
    struct assign_job job = {.device = device, .args = args};
    kva_pool_run(device->pool, args->count * args->kv_heads, assign_item, &job);
}

/* --- fetch ------------------------------------------------------------------------------------ */

struct fetch {
    struct kva_row_cache cache;
    const void *const *pages;
    size_t page_offset_bytes;
    uint32_t kv_heads;
    uint32_t head_dim;
};

_Static_assert(sizeof(struct fetch) <= KVA_COPY_QUEUE_ARGS_BYTES, "a fetch outgrew its entry");

/* Rows on their way while one is copied. They are strewn, so that no prefetcher of the processor
 * sees them coming, and what counts is how many lines may be under way: into the second level that
 * is more than into the first. */
#define FETCH_AHEAD 16u

static void prefetch_row(const unsigned char *row, size_t bytes)
{
    for (size_t line = 0; line < bytes; line += 64)
        __builtin_prefetch(row + line, 0, 2);
}

static const unsigned char *home_of(const struct fetch *fetch, uint32_t kv_head, uint32_t token)
{
    const unsigned char *page = fetch->pages[token / KVA_PAGE_TOKENS];
    size_t row = (size_t)kv_head * KVA_PAGE_TOKENS + token % KVA_PAGE_TOKENS;
    return page + fetch->page_offset_bytes + row * fetch->head_dim * 2 * sizeof(uint16_t);
}

static void fetch_head(const struct fetch *fetch, uint32_t kv_head)
{
    const struct head head = head_of(&fetch->cache, kv_head);
    size_t row_bytes = (size_t)fetch->head_dim * 2 * sizeof(uint16_t);
    unsigned char *rows =
        (unsigned char *)fetch->cache.rows + (size_t)kv_head * head.slots * row_bytes;
    for (uint32_t i = 0; i < head.slots && head.missing[i] != KVA_NO_TOKEN; i++) {
        uint32_t slot = head.missing[i], next = i + FETCH_AHEAD;
        if (next < head.slots && head.missing[next] != KVA_NO_TOKEN)
            prefetch_row(home_of(fetch, kv_head, head.tokens[head.missing[next]]), row_bytes);
        memcpy(rows + slot * row_bytes, home_of(fetch, kv_head, head.tokens[slot]), row_bytes);
    }
}

static void run_fetch(const void *opaque)
{
    const struct fetch *fetch = opaque;
    for (uint32_t kv_head = 0; kv_head < fetch->kv_heads; kv_head++)
        fetch_head(fetch, kv_head);
}

static void fetch_item(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    fetch_head(opaque, index);
}

void kva_cpu_fetch_rows(struct kva_device *device, const struct kva_fetch_rows_args *args)
{
    for (uint32_t i = 0; i < args->count && !kva_cpu_failed(device); i++) {
        if (kva_gate_closed(args->fetches[i].gate))
            continue;
        struct fetch fetch = {.cache = *args->fetches[i].cache,
                              .pages = args->fetches[i].pages,
                              .page_offset_bytes = args->page_offset_bytes,
                              .kv_heads = args->kv_heads,
                              .head_dim = args->head_dim};
        if (args->queue == KVA_QUEUE_COPY)
            kva_copy_queue_call(device->copies, run_fetch, &fetch, sizeof fetch);
        else
            kva_pool_run(device->pool, args->kv_heads, fetch_item, &fetch);
    }
}

void kva_cpu_select_fetch_head(const struct kva_row_cache *cache, const struct kva_fused_fetch *now,
                               uint32_t kv_head, uint32_t head_dim, void *scratch)
{
    const struct fetch fetch = {.cache = *cache,
                                .pages = now->pages,
                                .page_offset_bytes = now->page_offset_bytes,
                                .head_dim = head_dim};
    assign_head(cache, kv_head, now->stamp, now->mode, now->keep, scratch);
    fetch_head(&fetch, kv_head);
}

/* --- query_cosine ----------------------------------------------------------------------------- */

/* A handful of rows per step, each read once: plain loops, one chain of additions per head. */
void kva_cpu_query_cosine(struct kva_device *device, const struct kva_query_cosine_args *args)
{
    if (kva_cpu_failed(device))
        return;
    for (uint32_t i = 0; i < args->count; i++) {
        const float *q = (const float *)args->q + (size_t)args->rows[i] * args->q_stride;
        float *before = args->before[i];
        double sum = 0;
        for (uint32_t head = 0; head < args->heads; head++) {
            double dot = 0, now = 0, then = 0;
            for (uint32_t j = 0; j < args->head_dim; j++) {
                double a = q[(size_t)head * args->head_dim + j];
                double b = before[(size_t)head * args->head_dim + j];
                dot += a * b;
                now += a * a;
                then += b * b;
            }
            double norms = sqrt(now) * sqrt(then);
            sum += norms > 0 ? dot / norms : 0;
        }
        args->cosine[i] = (float)(sum / args->heads);
        args->gates[i] = args->cosine[i] * 100 < args->percents[i];
        memcpy(before, q, (size_t)args->heads * args->head_dim * sizeof(float));
    }
}
