/* coverage.c - attention of observed rows, against what they attended to in 16 bits. */
#include "engine/eval/coverage.h"

#include "engine/dot.h"
#include "engine/model/limits.h"
#include "kernels/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Pages [0, so many) that are not whole on the device: in low bits, or attended to by rows alone. */
static uint32_t away_pages(const struct kva_kv_rows *rows)
{
    bool alone = kva_kv_find_range(rows, KVA_RANGE_ROWS) && !kva_kv_drops(&rows->seq->spec);
    return alone ? rows->seq->offloaded : kva_kv_lowbit_pages(rows);
}

/* --- exact attention ------------------------------------------------------------------------- */

/* The head's 16-bit K row of a token: at home if its page is offloaded, else on the device. */
static const uint16_t *key_of(const struct kva_coverage *c, const struct kva_forward_view *view,
                              uint32_t head, uint32_t token)
{
    const struct kva_kv_rows *rows = view->rows;
    uint32_t page = token / KVA_PAGE_TOKENS, d = c->config->head_dim;
    size_t block_bytes = kva_kv_block_bytes(c->config->kv_heads, d);
    const unsigned char *block =
        page < away_pages(rows)
            ? (const unsigned char *)rows->seq->pages[page]->host + view->layer * block_bytes
            : *kva_kv_block_at(rows, page);
    size_t row = (size_t)head * KVA_PAGE_TOKENS + token % KVA_PAGE_TOKENS;
    return (const uint16_t *)(const void *)block + row * 2 * d;
}

static void widen(const struct kva_coverage *c, const uint16_t *row, float *out)
{
    uint32_t d = c->config->head_dim;
    if (c->kv_dtype == KVA_BF16) {
        for (uint32_t i = 0; i < d; i++)
            out[i] = kva_f32_of_bf16(row[i]);
    } else {
        for (uint32_t i = 0; i < d; i++)
            out[i] = kva_f32_of_f16(row[i]);
    }
}

/* weights[t] += share * softmax(scores)[t] for tokens [first, end). */
static void add_softmax(const struct kva_coverage *c, const float *scores, uint32_t first,
                        uint32_t end, double share)
{
    float most = scores[first];
    double sum = 0;
    for (uint32_t t = first; t < end; t++)
        most = scores[t] > most ? scores[t] : most;
    for (uint32_t t = first; t < end; t++)
        sum += exp((double)(scores[t] - most));
    for (uint32_t t = first; t < end; t++)
        c->weights[t] += share * exp((double)(scores[t] - most)) / sum;
}

void kva_coverage_weigh(struct kva_coverage *c, const struct kva_forward_view *view, uint32_t head,
                        uint32_t first, uint32_t end)
{
    const struct kva_model_config *config = c->config;
    uint32_t group = config->heads / config->kv_heads, d = config->head_dim;
    const float *queries = (const float *)view->q + (size_t)head * group * d;
    float key[KVA_MODEL_HEAD_DIM_MAX];
    for (uint32_t t = first; t < end; t++) {
        widen(c, key_of(c, view, head, t), key);
        for (uint32_t i = 0; i < group; i++)
            c->scores[(size_t)i * c->context_max + t] =
                config->attend_scale * kva_dot(queries + (size_t)i * d, key, d);
    }
    memset(c->weights, 0, end * sizeof(*c->weights));
    for (uint32_t i = 0; i < group; i++)
        add_softmax(c, c->scores + (size_t)i * c->context_max, first, end, 1.0 / group);
}

/* --- which tokens ---------------------------------------------------------------------------- */

static void mark_attended(const struct kva_coverage *c, const struct kva_kv_rows *rows,
                          uint32_t head, uint32_t end)
{
    uint32_t offloaded = kva_min_u32(away_pages(rows) * KVA_PAGE_TOKENS, end);
    const struct kva_row_cache *cache = kva_kv_find_rows(rows);
    memset(c->attended, 0, offloaded * sizeof(*c->attended));
    memset(c->attended + offloaded, 1, (end - offloaded) * sizeof(*c->attended));
    for (uint32_t i = 0; cache && i < cache->count[head]; i++) {
        uint32_t slot = cache->order[(size_t)head * cache->slots + i];
        uint32_t token = cache->tokens[(size_t)head * cache->slots + slot];
        if (token < offloaded)
            c->attended[token] = true;
    }
}

static bool before(const double *weights, uint32_t a, uint32_t b)
{
    return weights[a] > weights[b] || (weights[a] == weights[b] && a < b);
}

void kva_coverage_best(const double *weights, uint32_t *order, uint32_t count, uint32_t k)
{
    uint32_t low = 0, high = count;
    while (high - low > 1 && k > low && k < high) {
        uint32_t pivot = order[low + (high - low) / 2], left = low, middle = low, right = high;
        while (middle < right) {
            uint32_t at = order[middle];
            if (before(weights, at, pivot)) {
                order[middle++] = order[left];
                order[left++] = at;
            } else if (at == pivot) {
                middle++;
            } else {
                order[middle] = order[--right];
                order[right] = at;
            }
        }
        /* The pivot stands at `left`. */
        if (k <= left)
            high = left;
        else
            low = left + 1;
    }
}

/* The part of a head that rows can be fetched for: pages that are offloaded, without the sinks. */
static void count_rows(struct kva_coverage *c, const struct kva_forward_view *view, uint32_t head,
                       uint32_t first, struct kva_coverage_head *sums)
{
    const struct kva_row_cache *cache = kva_kv_find_rows(view->rows);
    uint32_t offloaded = away_pages(view->rows) * KVA_PAGE_TOKENS, count = 0;
    for (uint32_t t = kva_max_u32(first, cache->pinned); t < offloaded; t++)
        c->order[count++] = t;
    uint32_t k = kva_min_u32(cache->k, count);
    kva_coverage_best(c->weights, c->order, count, k);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t token = c->order[i];
        sums->best++;
        sums->best_hit += c->attended[token];
        sums->ceiling += c->weights[token];
    }
    const uint32_t *selection = view->selection + (size_t)head * cache->k;
    for (uint32_t i = 0; i < cache->k && selection[i] != KVA_NO_TOKEN; i++) {
        sums->wanted++;
        sums->hit += c->attended[selection[i]];
    }
}

/* Rows that were chosen for this layer's query before it was known: of as many that it would have
 * chosen by its attention, how many are among them. */
static void count_ahead(struct kva_coverage *c, const struct kva_kv_rows *rows, uint32_t first,
                        struct kva_coverage_head *sums)
{
    uint32_t away = away_pages(rows) * KVA_PAGE_TOKENS, count = 0, k = 0;
    for (uint32_t t = kva_max_u32(first, rows->seq->spec.sinks); t < away; t++) {
        c->order[count++] = t;
        k += c->attended[t];
    }
    kva_coverage_best(c->weights, c->order, count, k);
    for (uint32_t i = 0; i < k; i++) {
        bool attends = c->attended[c->order[i]];
        sums->best++, sums->best_hit += attends;
        sums->wanted++, sums->hit += attends;
        sums->ceiling += c->weights[c->order[i]];
    }
}

static void look_at_head(struct kva_coverage *c, const struct kva_forward_view *view, uint32_t head)
{
    const struct kva_kv_rows *rows = view->rows;
    struct kva_coverage_head *sums = &c->heads[(size_t)view->layer * c->config->kv_heads + head];
    uint32_t end = rows->position_first + 1, window = c->config->layer_window[view->layer];
    uint32_t first = window > 0 && end > window ? end - window : 0;
    sums->steps++;
    sums->waited += view->selection && kva_kv_select_now_holds(rows);
    if (away_pages(rows) == 0) {
        sums->covered += 1;
        sums->ceiling += 1;
        return;
    }
    kva_coverage_weigh(c, view, head, first, end);
    mark_attended(c, rows, head, end);
    const struct kva_row_cache *cache = kva_kv_find_rows(rows);
    bool ahead = kva_kv_find_range(rows, KVA_RANGE_ROWS) != NULL;
    uint32_t pinned = ahead ? rows->seq->spec.sinks : cache ? cache->pinned : 0;
    for (uint32_t t = first; t < end; t++) {
        sums->covered += c->attended[t] ? c->weights[t] : 0;
        if (t < pinned || t >= away_pages(rows) * KVA_PAGE_TOKENS)
            sums->ceiling += c->weights[t];
    }
    if (view->selection)
        count_rows(c, view, head, first, sums);
    else if (ahead)
        count_ahead(c, rows, first, sums);
}

static void look(void *opaque, const struct kva_forward_view *view)
{
    struct kva_coverage *c = opaque;
    if (view->layer == 0) {
        kva_device_sync(c->device, KVA_QUEUE_COPY);
        c->steps++;
    }
    for (uint32_t head = 0; head < c->config->kv_heads; head++)
        look_at_head(c, view, head);
}

void kva_coverage_add(struct kva_coverage_head *to, const struct kva_coverage_head *from)
{
    to->steps += from->steps;
    to->waited += from->waited;
    to->covered += from->covered;
    to->ceiling += from->ceiling;
    to->wanted += from->wanted;
    to->hit += from->hit;
    to->best += from->best;
    to->best_hit += from->best_hit;
}

/* --- life ------------------------------------------------------------------------------------ */

void kva_coverage_clear(struct kva_coverage *c)
{
    memset(c->heads, 0, (size_t)c->config->layer_count * c->config->kv_heads * sizeof(*c->heads));
    c->steps = 0;
}

void kva_coverage_finish(struct kva_coverage *c)
{
    if (c->observer.selection)
        kva_device_free(c->device, KVA_MEM_DEVICE, c->observer.selection, c->selection_bytes);
    free(c->heads);
    free(c->scores);
    free(c->weights);
    free(c->attended);
    free(c->order);
    *c = (struct kva_coverage){0};
}

enum kva_status kva_coverage_init(struct kva_coverage *ret, const struct kva_coverage_params *p,
                                  struct kva_err *err)
{
    const struct kva_model_config *config = p->config;
    const struct kva_device_info *info = kva_device_get_info(p->device);
    *ret = (struct kva_coverage){0};
    if (!info->host_readable || info->act != KVA_F32)
        return kva_fail(err, KVA_EUNSUPPORTED, "the host cannot read the memory of %s", info->name);
    struct kva_coverage c = {
        .device = p->device,
        .config = config,
        .kv_dtype = p->kv_dtype,
        .context_max = p->context_max,
        .selection_bytes = (size_t)config->kv_heads * p->k_max * sizeof(uint32_t),
    };
    size_t context = p->context_max, group = config->heads / config->kv_heads;
    c.heads = calloc((size_t)config->layer_count * config->kv_heads, sizeof(*c.heads));
    c.scores = malloc(group * context * sizeof(*c.scores));
    c.weights = malloc(context * sizeof(*c.weights));
    c.attended = malloc(context * sizeof(*c.attended));
    c.order = malloc(context * sizeof(*c.order));
    enum kva_status status = KVA_OK;
    if (!c.heads || !c.scores || !c.weights || !c.attended || !c.order)
        status =
            kva_fail(err, KVA_ENOMEM, "out of memory for attention over %u tokens", p->context_max);
    void *selection = NULL;
    if (!status && c.selection_bytes > 0)
        status = kva_device_alloc(p->device, KVA_MEM_DEVICE, c.selection_bytes, &selection, err);
    c.observer.selection = selection;
    if (status) {
        kva_coverage_finish(&c);
        return status;
    }
    *ret = c;
    ret->observer.attends = look;
    ret->observer.opaque = ret;
    return KVA_OK;
}
