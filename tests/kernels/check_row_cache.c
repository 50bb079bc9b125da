/* Cases of assign_slots, fetch_rows and query_cosine, against plain models. All but the cosines are
 * exact, so each variant must give the model's bits. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- row caches ------------------------------------------------------------------------------- */

/* The arrays of a cache, [kv_heads] of each. */
struct cache_bufs {
    struct kva_row_cache cache;
    struct check_buf rows, tokens, used, order, count, chosen, missing;
    uint64_t hits[2];
    uint32_t kv_heads;
};

static void cache_new(struct check *check, struct cache_bufs *bufs, uint32_t kv_heads,
                      uint32_t slots, uint32_t pinned, uint32_t k, uint32_t head_dim)
{
    size_t words = (size_t)kv_heads * slots * sizeof(uint32_t);
    *bufs = (struct cache_bufs){.rows = check_buf_new(words * head_dim),
                                .tokens = check_buf_new(words),
                                .used = check_buf_new(words),
                                .order = check_buf_new(words),
                                .count = check_buf_new(kv_heads * sizeof(uint32_t)),
                                .chosen = check_buf_new((size_t)kv_heads * k * sizeof(uint32_t)),
                                .missing = check_buf_new(words),
                                .hits = {7, 9},
                                .kv_heads = kv_heads};
    check_buf_garbage(check, &bufs->rows);
    check_buf_garbage(check, &bufs->order);
    check_buf_garbage(check, &bufs->missing);
    memset(bufs->tokens.data, 0xFF, words); /* nothing is there */
    memset(bufs->used.data, 0, words);
    bufs->cache = (struct kva_row_cache){.rows = bufs->rows.data,
                                         .tokens = bufs->tokens.data,
                                         .used = bufs->used.data,
                                         .order = bufs->order.data,
                                         .count = bufs->count.data,
                                         .chosen = bufs->chosen.data,
                                         .missing = bufs->missing.data,
                                         .hits = bufs->hits,
                                         .slots = slots,
                                         .pinned = pinned,
                                         .k = k};
}

static bool cache_intact(const struct cache_bufs *bufs)
{
    return check_buf_intact(&bufs->rows) && check_buf_intact(&bufs->tokens) &&
           check_buf_intact(&bufs->used) && check_buf_intact(&bufs->order) &&
           check_buf_intact(&bufs->count) && check_buf_intact(&bufs->chosen) &&
           check_buf_intact(&bufs->missing);
}

static void cache_free(struct cache_bufs *bufs)
{
    check_buf_free(&bufs->rows);
    check_buf_free(&bufs->tokens);
    check_buf_free(&bufs->used);
    check_buf_free(&bufs->order);
    check_buf_free(&bufs->count);
    check_buf_free(&bufs->chosen);
    check_buf_free(&bufs->missing);
}

/* --- assign_slots ----------------------------------------------------------------------------- */

/* One KV head of a cache. */
struct head_model {
    uint32_t *tokens, *used, *order, *missing, *count;
    const uint32_t *chosen;
    uint32_t slots, pinned, k;
};

static struct head_model model_of(const struct kva_row_cache *cache, uint32_t kv_head)
{
    size_t at = (size_t)kv_head * cache->slots;
    return (struct head_model){.tokens = cache->tokens + at,
                               .used = cache->used + at,
                               .order = cache->order + at,
                               .missing = cache->missing + at,
                               .count = cache->count + kv_head,
                               .chosen = cache->chosen + (size_t)kv_head * cache->k,
                               .slots = cache->slots,
                               .pinned = cache->pinned,
                               .k = cache->k};
}

static uint32_t find_slot(const struct head_model *h, uint32_t token)
{
    uint32_t slot = h->pinned;
    while (slot < h->slots && h->tokens[slot] != token)
        slot++;
    return slot;
}

/* The slot that was wanted longest ago, of those not wanted now; empty ones first. */
static uint32_t oldest_slot(const struct head_model *h, uint32_t stamp)
{
    uint32_t best = h->slots;
    uint64_t best_used = UINT64_MAX;
    for (uint32_t slot = h->pinned; slot < h->slots; slot++) {
        uint64_t used = h->tokens[slot] == KVA_NO_TOKEN ? 0 : h->used[slot];
        if (h->used[slot] != stamp && used < best_used) {
            best_used = used;
            best = slot;
        }
    }
    return best;
}

/* One chosen row after the other; returns how many are missing. */
static uint32_t assign_model(struct head_model *h, uint32_t stamp, bool keep)
{
    uint32_t missing = 0;
    for (uint32_t slot = 0; slot < h->pinned; slot++)
        h->tokens[slot] = slot;
    for (uint32_t slot = h->pinned; slot < h->slots && !keep; slot++) {
        h->tokens[slot] = KVA_NO_TOKEN;
        h->used[slot] = 0;
    }
    for (uint32_t i = 0; i < h->k && h->chosen[i] != KVA_NO_TOKEN; i++) {
        uint32_t slot = find_slot(h, h->chosen[i]);
        if (slot < h->slots)
            h->used[slot] = stamp;
    }
    for (uint32_t i = 0; i < h->k && h->chosen[i] != KVA_NO_TOKEN; i++) {
        if (find_slot(h, h->chosen[i]) < h->slots)
            continue;
        uint32_t slot = oldest_slot(h, stamp);
        h->tokens[slot] = h->chosen[i];
        h->used[slot] = stamp;
        h->missing[missing++] = slot;
    }
    for (uint32_t i = missing; i < h->slots; i++)
        h->missing[i] = KVA_NO_TOKEN;
    return missing;
}

static int by_key(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void order_model(struct head_model *h, uint32_t stamp, bool all)
{
    uint64_t *keys = malloc(h->slots * sizeof *keys);
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < h->slots; slot++) {
        bool attends = slot < h->pinned || all || h->used[slot] == stamp;
        if (attends && h->tokens[slot] != KVA_NO_TOKEN)
            keys[count++] = (uint64_t)h->tokens[slot] << 32 | slot;
    }
    qsort(keys, count, sizeof *keys, by_key);
    for (uint32_t i = 0; i < count; i++)
        h->order[i] = (uint32_t)keys[i];
    *h->count = count;
    free(keys);
}

/* Positions that ascend, about a third of them those of the step before. */
static void choose_tokens(struct check *check, struct cache_bufs *bufs, uint32_t step)
{
    const struct kva_row_cache *cache = &bufs->cache;
    for (uint32_t head = 0; head < bufs->kv_heads; head++) {
        uint32_t *chosen = cache->chosen + (size_t)head * cache->k;
        uint32_t token = cache->pinned + check_below(check, 3);
        uint32_t count = step % 3 == 1 ? check_below(check, cache->k + 1) : cache->k;
        for (uint32_t i = 0; i < cache->k; i++) {
            chosen[i] = i < count ? token : KVA_NO_TOKEN;
            token += check_between(check, 1, 5);
        }
    }
}

static const char *compare_caches(const struct cache_bufs *got, const struct cache_bufs *want)
{
    const struct kva_row_cache *a = &got->cache, *b = &want->cache;
    if (memcmp(a->tokens, b->tokens, got->tokens.bytes) != 0)
        return "tokens";
    if (memcmp(a->used, b->used, got->used.bytes) != 0)
        return "used";
    if (memcmp(a->missing, b->missing, got->missing.bytes) != 0)
        return "missing";
    if (memcmp(a->count, b->count, got->count.bytes) != 0)
        return "count";
    for (size_t head = 0; head < got->kv_heads; head++) {
        if (memcmp(a->order + head * a->slots, b->order + head * b->slots,
                   a->count[head] * sizeof(uint32_t)) != 0)
            return "order";
    }
    if (memcmp(got->hits, want->hits, sizeof got->hits) != 0)
        return "hits";
    return cache_intact(got) ? NULL : "wrote before an array";
}

static void cache_copy(struct cache_bufs *to, const struct cache_bufs *from)
{
    memcpy(to->tokens.data, from->tokens.data, from->tokens.bytes);
    memcpy(to->used.data, from->used.data, from->used.bytes);
    memcpy(to->chosen.data, from->chosen.data, from->chosen.bytes);
    memcpy(to->hits, from->hits, sizeof from->hits);
}

/* Steps of two caches, one of them with fewer slots; in every other step with gates. */
static void assign_case(struct check *check, uint32_t slots, uint32_t pinned, uint32_t k)
{
    enum { CACHES = 2, STEPS = 4 };
    const double work = slots > 2048 ? slots * 100.0 : slots * 16.0;
    struct cache_bufs want[CACHES], got[CACHES], before[CACHES];
    const struct kva_row_cache *caches[CACHES + 1];
    const uint32_t open = 1, closed = 0, *gates[] = {NULL, &open, &closed};
    char name[96];
    if (!check_wanted(check, OP_ASSIGN_SLOTS, work))
        return;
    for (uint32_t i = 0; i < CACHES; i++) {
        uint32_t own = i ? kva_max_u32(pinned + k, slots / 2) : slots;
        uint32_t kv_heads = slots > 2048 ? 1 : 2;
        cache_new(check, &want[i], kv_heads, own, pinned, k, 4);
        cache_new(check, &got[i], kv_heads, own, pinned, k, 4);
        cache_new(check, &before[i], kv_heads, own, pinned, k, 4);
        caches[i] = &got[i].cache;
    }
    caches[CACHES] = caches[0]; /* once more, behind a closed gate, or not at all */
    for (uint32_t step = 0; step < STEPS; step++) {
        struct kva_assign_slots_args args = {.caches = caches,
                                             .gates = step % 2 ? gates : NULL,
                                             .count = CACHES + step % 2,
                                             .kv_heads = want[0].kv_heads,
                                             .stamp = 5 + 2 * step,
                                             .mode = check_below(check, 2) ? KVA_ROWS_RESIDENT
                                                                           : KVA_ROWS_CHOSEN,
                                             .keep = check_below(check, 5) != 0};
        struct check_variant *variant;
        struct kva_device *device;
        uint32_t run = 0;
        for (uint32_t i = 0; i < CACHES; i++) {
            choose_tokens(check, &want[i], step);
            cache_copy(&before[i], &want[i]);
            for (uint32_t head = 0; head < args.kv_heads; head++) {
                struct head_model h = model_of(&want[i].cache, head);
                uint32_t chosen = 0, missing = assign_model(&h, args.stamp, args.keep);
                while (chosen < k && h.chosen[chosen] != KVA_NO_TOKEN)
                    chosen++;
                order_model(&h, args.stamp, args.mode == KVA_ROWS_RESIDENT);
                want[i].hits[0] += chosen - missing;
                want[i].hits[1] += missing;
            }
        }
        snprintf(name, sizeof name, "slots %u pinned %u k %u step %u mode %d%s", slots, pinned, k,
                 step, (int)args.mode, args.keep ? " keep" : "");
        while (check_next_run(check, work, &run, &variant, &device)) {
            const char *reason = NULL;
            for (uint32_t i = 0; i < CACHES; i++) {
                cache_copy(&got[i], &before[i]);
                check_buf_garbage(check, &got[i].missing);
                check_buf_garbage(check, &got[i].order);
            }
            variant->ops.assign_slots(device, &args);
            for (uint32_t i = 0; i < CACHES && !reason; i++)
                reason = compare_caches(&got[i], &want[i]);
            check_count_run(check, variant, OP_ASSIGN_SLOTS, device, name, reason);
        }
    }
    for (uint32_t i = 0; i < CACHES; i++) {
        cache_free(&want[i]);
        cache_free(&got[i]);
        cache_free(&before[i]);
    }
}

void check_assign_slots(struct check *check)
{
    /* Around where a GPU begins and ends to sort in shared memory. */
    const uint32_t shapes[][3] = {{1, 0, 1},     {6, 2, 4},     {40, 4, 16},     {200, 1, 64},
                                  {256, 4, 250}, {257, 4, 64},  {258, 0, 258},   {300, 4, 64},
                                  {511, 2, 100}, {513, 4, 500}, {1024, 16, 700}, {1500, 4, 64},
                                  {8191, 4, 64}, {8192, 4, 64}, {8193, 4, 64}};
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
        assign_case(check, shapes[i][0], shapes[i][1], shapes[i][2]);
}

/* --- fetch_rows ------------------------------------------------------------------------------- */

enum { FETCH_PAGES = 6 };

/* Which slots miss which rows, each KV head its own. */
static void make_missing(struct check *check, struct cache_bufs *bufs)
{
    struct kva_row_cache *cache = &bufs->cache;
    for (uint32_t head = 0; head < bufs->kv_heads; head++) {
        struct head_model h = model_of(cache, head);
        uint32_t count = 0;
        for (uint32_t slot = 0; slot < h.slots; slot++) {
            h.tokens[slot] = check_below(check, FETCH_PAGES * KVA_PAGE_TOKENS);
            if (check_below(check, 2) && count < h.slots)
                h.missing[count++] = slot;
        }
        for (uint32_t i = count; i < h.slots; i++)
            h.missing[i] = KVA_NO_TOKEN;
        for (uint32_t i = 0; i + 1 < count; i++) { /* slots of any order */
            uint32_t other = check_between(check, i, count - 1), slot = h.missing[i];
            h.missing[i] = h.missing[other];
            h.missing[other] = slot;
        }
    }
}

static void fetch_model(const struct cache_bufs *bufs, const void *const *pages, size_t offset,
                        uint32_t head_dim, unsigned char *rows)
{
    size_t row_bytes = (size_t)head_dim * 4;
    for (uint32_t head = 0; head < bufs->kv_heads; head++) {
        struct head_model h = model_of(&bufs->cache, head);
        for (uint32_t i = 0; i < h.slots && h.missing[i] != KVA_NO_TOKEN; i++) {
            uint32_t slot = h.missing[i], token = h.tokens[slot];
            size_t from = ((size_t)head * KVA_PAGE_TOKENS + token % KVA_PAGE_TOKENS) * row_bytes;
            memcpy(rows + ((size_t)head * h.slots + slot) * row_bytes,
                   (const unsigned char *)pages[token / KVA_PAGE_TOKENS] + offset + from,
                   row_bytes);
        }
    }
}

/* `count` fetches: more than one launch of a GPU takes; all but the last two of one cache. */
static void fetch_case(struct check *check, uint32_t count, uint32_t kv_heads, uint32_t head_dim,
                       uint32_t slots)
{
    enum { CACHES = 3 };
    const double work = (double)kv_heads * head_dim * slots * (count + 4.0);
    struct cache_bufs caches[CACHES];
    struct check_buf pages[FETCH_PAGES];
    const void *addresses[FETCH_PAGES];
    struct kva_rows_fetch fetches[40];
    const uint32_t gates[2] = {0, 1};
    unsigned char *before[CACHES], *expect[CACHES];
    if (!check_wanted(check, OP_FETCH_ROWS, work))
        return;
    size_t offset = 16 * (size_t)check_below(check, 3);
    for (uint32_t i = 0; i < FETCH_PAGES; i++) {
        pages[i] = check_buf_new(offset + kva_kv_block_bytes(kv_heads, head_dim));
        check_buf_garbage(check, &pages[i]);
        addresses[i] = pages[i].data;
    }
    for (uint32_t i = 0; i < CACHES; i++) {
        cache_new(check, &caches[i], kv_heads, slots + i, 0, 1, head_dim);
        make_missing(check, &caches[i]);
        before[i] = malloc(2 * caches[i].rows.bytes);
        expect[i] = before[i] + caches[i].rows.bytes;
        memcpy(before[i], caches[i].rows.data, caches[i].rows.bytes);
        memcpy(expect[i], before[i], caches[i].rows.bytes);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t cache = i + 2 >= count ? 2 - (count - 1 - i) : 0;
        const uint32_t *gate = check_below(check, 2) ? &gates[check_below(check, 2)] : NULL;
        fetches[i] = (struct kva_rows_fetch){&caches[cache].cache, addresses, gate};
        if (!gate || *gate)
            fetch_model(&caches[cache], addresses, offset, head_dim, expect[cache]);
    }
    for (int queue = 0; queue < KVA_QUEUE_COUNT; queue++) {
        struct check_variant *variant;
        struct kva_device *device;
        uint32_t run = 0;
        char name[96];
        snprintf(name, sizeof name, "fetches %u kv_heads %u head_dim %u slots %u queue %d", count,
                 kv_heads, head_dim, slots, queue);
        while (check_next_run(check, work, &run, &variant, &device)) {
            const char *reason = NULL;
            for (uint32_t i = 0; i < CACHES; i++)
                memcpy(caches[i].rows.data, before[i], caches[i].rows.bytes);
            variant->ops.fetch_rows(device, &(struct kva_fetch_rows_args){
                                                .fetches = fetches,
                                                .page_offset_bytes = offset,
                                                .count = count,
                                                .kv_heads = kv_heads,
                                                .head_dim = head_dim,
                                                .queue = (enum kva_queue)queue,
                                            });
            kva_device_sync(device, (enum kva_queue)queue);
            for (uint32_t i = 0; i < CACHES && !reason; i++) {
                if (memcmp(caches[i].rows.data, expect[i], caches[i].rows.bytes) != 0)
                    reason = "other rows";
                else if (!cache_intact(&caches[i]))
                    reason = "wrote before an array";
            }
            check_count_run(check, variant, OP_FETCH_ROWS, device, name, reason);
        }
    }
    for (uint32_t i = 0; i < FETCH_PAGES; i++)
        check_buf_free(&pages[i]);
    for (uint32_t i = 0; i < CACHES; i++) {
        cache_free(&caches[i]);
        free(before[i]);
    }
}

void check_fetch_rows(struct check *check)
{
    const uint32_t shapes[][4] = {{1, 1, 4, 1},    {2, 2, 20, 9},   {3, 1, 64, 70},  {35, 3, 8, 12},
                                  {33, 2, 4, 150}, {36, 2, 80, 33}, {4, 8, 128, 132}};
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
        fetch_case(check, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]);
}

/* --- query_cosine ----------------------------------------------------------------------------- */

enum { COSINE_ROWS = 6, COSINE_COUNT = 4 };

static double cosine_model(const float *q, const float *before, uint32_t heads, uint32_t dim)
{
    double sum = 0;
    for (uint32_t head = 0; head < heads; head++, q += dim, before += dim) {
        double dot = 0, now = 0, then = 0;
        for (uint32_t i = 0; i < dim; i++) {
            dot += (double)q[i] * (double)before[i];
            now += (double)q[i] * (double)q[i];
            then += (double)before[i] * (double)before[i];
        }
        sum += now > 0 && then > 0 ? dot / sqrt(now * then) : 0;
    }
    return sum / heads;
}

/* Zeros have no direction; the same query turned by nothing; near ones; others. Gates are open for
 * what has turned further than a percentage. */
static void cosine_case(struct check *check, uint32_t heads, uint32_t dim)
{
    const uint32_t rows[COSINE_COUNT] = {4, 0, 5, 2}, row = heads * dim;
    const uint32_t stride = row + check_below(check, 2) * dim;
    const double work = (double)row * COSINE_ROWS;
    struct check_variant *variant;
    struct kva_device *device;
    uint32_t run = 0;
    char name[64];
    if (!check_wanted(check, OP_QUERY_COSINE, work))
        return;
    struct check_buf q = check_buf_new(((COSINE_ROWS - 1) * stride + row) * sizeof(float));
    struct check_buf before = check_buf_new(COSINE_COUNT * row * sizeof(float));
    struct check_buf cosine = check_buf_new(COSINE_COUNT * sizeof(float));
    struct check_buf gates = check_buf_new(COSINE_COUNT * sizeof(uint32_t));
    const float percents[COSINE_COUNT] = {0, 99, (float)check_below(check, 101), 101};
    float *kept = malloc(before.bytes);
    void *places[COSINE_COUNT];
    check_fill(check, FILL_NORMAL, q.data, q.bytes / sizeof(float));
    for (uint32_t i = 0; i < COSINE_COUNT * row; i++) {
        uint32_t index = i / row;
        float x = ((float *)q.data)[rows[index] * stride + i % row];
        kept[i] = index == 0   ? 0
                  : index == 1 ? x
                  : index == 2 ? x + 0.3f * check_normal(check)
                               : check_normal(check);
    }
    check_round_acts(check, kept, COSINE_COUNT * row);
    for (uint32_t i = 0; i < COSINE_COUNT; i++)
        places[i] = (float *)before.data + i * row;
    snprintf(name, sizeof name, "heads %u head_dim %u", heads, dim);
    while (check_next_run(check, work, &run, &variant, &device)) {
        const char *reason = NULL;
        memcpy(before.data, kept, before.bytes);
        check_buf_garbage(check, &cosine);
        check_buf_garbage(check, &gates);
        variant->ops.query_cosine(device, &(struct kva_query_cosine_args){.q = q.data,
                                                                          .rows = rows,
                                                                          .before = places,
                                                                          .percents = percents,
                                                                          .cosine = cosine.data,
                                                                          .gates = gates.data,
                                                                          .count = COSINE_COUNT,
                                                                          .q_stride = stride,
                                                                          .heads = heads,
                                                                          .head_dim = dim});
        for (uint32_t i = 0; i < COSINE_COUNT && !reason; i++) {
            const float *now = (const float *)q.data + rows[i] * stride;
            double expect = cosine_model(now, kept + i * row, heads, dim);
            /* Sums of head_dim products in fp32, and two roots. */
            double bound = UNIT * (dim + 8.0 + heads);
            if (!(fabs(((float *)cosine.data)[i] - expect) <= bound))
                reason = "another cosine";
            else if (((uint32_t *)gates.data)[i] !=
                     (((float *)cosine.data)[i] * 100 < percents[i] ? 1 : 0))
                reason = "another gate";
            else if (memcmp(places[i], now, row * sizeof(float)) != 0)
                reason = "the query was not kept";
        }
        if (!reason &&
            !(check_buf_intact(&before) && check_buf_intact(&cosine) && check_buf_intact(&gates)))
            reason = "wrote before an array";
        check_count_run(check, variant, OP_QUERY_COSINE, device, name, reason);
    }
    check_buf_free(&q);
    check_buf_free(&before);
    check_buf_free(&cosine);
    check_buf_free(&gates);
    free(kept);
}

void check_query_cosine(struct check *check)
{
    const uint32_t shapes[][2] = {{1, 1}, {3, 20}, {4, 8}, {32, 128}, {71, 64}, {8, 256}, {33, 80}};
    for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
        cosine_case(check, shapes[i][0], shapes[i][1]);
}
