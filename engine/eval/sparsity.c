/* sparsity.c - what the best tokens have of exact attention, and what those that were kept have. */
#include "engine/eval/sparsity.h"

#include <stdlib.h>
#include <string.h>

/* What greedy eviction has kept of a KV head, by position. */
struct kva_sparsity_kept {
    uint32_t *tokens; /* [kept + 1] */
    double *mass;     /* the same: attention that they got so far */
    uint32_t count;
};

static double best_of(const struct kva_coverage *c, uint32_t position, uint32_t k)
{
    double sum = c->weights[position];
    for (uint32_t t = 0; t < position; t++)
        c->order[t] = t;
    k = kva_min_u32(k, position);
    kva_coverage_best(c->weights, c->order, position, k);
    for (uint32_t i = 0; i < k; i++)
        sum += c->weights[c->order[i]];
    return sum;
}

/* The least of all but the newest goes; ties stay as they are older. */
static void evict(struct kva_sparsity_kept *store, uint32_t recent)
{
    uint32_t least = 0;
    for (uint32_t i = 1; i < store->count - recent; i++)
        least = store->mass[i] <= store->mass[least] ? i : least;
    const uint32_t behind = store->count - least - 1;
    memmove(store->tokens + least, store->tokens + least + 1, behind * sizeof(*store->tokens));
    memmove(store->mass + least, store->mass + least + 1, behind * sizeof(*store->mass));
    store->count--;
}

/* One more token, with what it got so far. */
static void add(struct kva_sparsity_kept *store, uint32_t token, double mass)
{
    store->tokens[store->count] = token;
    store->mass[store->count++] = mass;
}

/* What those that are kept have, with the token at hand; which then is one of them. The prompt, one
 * token, is not seen: it attended to itself. */
static double greedy_of(const struct kva_coverage *c, struct kva_sparsity_kept *store,
                        uint32_t position, uint32_t kept)
{
    double share = 0;
    if (store->count == 0)
        add(store, 0, 1);
    add(store, position, 0);
    for (uint32_t i = 0; i < store->count; i++)
        share += c->weights[store->tokens[i]];
    for (uint32_t i = 0; i < store->count; i++)
        store->mass[i] += c->weights[store->tokens[i]] / share;
    if (store->count > kept)
        evict(store, kept / 2);
    return share;
}

static void look(void *opaque, const struct kva_forward_view *view)
{
    struct kva_sparsity *s = opaque;
    const struct kva_model_config *config = s->coverage.config;
    const uint32_t position = view->rows->position_first;
    const uint32_t heads = config->kv_heads, all = config->layer_count * heads;
    for (uint32_t head = 0; head < heads; head++) {
        kva_coverage_weigh(&s->coverage, view, head, 0, position + 1);
        for (uint32_t i = 0; i < s->count; i++) {
            struct kva_sparsity_kept *store = &s->stores[i * all + view->layer * heads + head];
            const double greedy = greedy_of(&s->coverage, store, position, s->kept[i]);
            if (position < s->from)
                continue;
            s->sums[i].greedy += greedy;
            s->sums[i].best += best_of(&s->coverage, position, s->kept[i]);
        }
        s->queries += position >= s->from;
    }
}

/* --- life ------------------------------------------------------------------------------------ */

static size_t stores_of(const struct kva_sparsity *s)
{
    const struct kva_model_config *config = s->coverage.config;
    return (size_t)s->count * config->layer_count * config->kv_heads;
}

void kva_sparsity_finish(struct kva_sparsity *s)
{
    for (size_t i = 0; s->stores && i < stores_of(s); i++) {
        free(s->stores[i].tokens);
        free(s->stores[i].mass);
    }
    kva_coverage_finish(&s->coverage);
    free(s->stores);
    free(s->kept);
    free(s->sums);
    *s = (struct kva_sparsity){0};
}

static bool make_stores(struct kva_sparsity *s)
{
    const size_t each = stores_of(s) / s->count;
    bool ok = true;
    for (size_t i = 0; i < stores_of(s) && ok; i++) {
        const size_t room = s->kept[i / each] + 1;
        s->stores[i].tokens = calloc(room, sizeof(*s->stores[i].tokens));
        s->stores[i].mass = calloc(room, sizeof(*s->stores[i].mass));
        ok = s->stores[i].tokens && s->stores[i].mass;
    }
    return ok;
}

enum kva_status kva_sparsity_init(struct kva_sparsity *ret, const struct kva_sparsity_params *p,
                                  struct kva_err *err)
{
    struct kva_sparsity s = {.count = p->count, .from = p->from};
    *ret = s;
    for (uint32_t i = 0; i < p->look.config->layer_count; i++) {
        if (p->look.config->layer_window[i] > 0)
            return kva_fail(err, KVA_EUNSUPPORTED,
                            "layers of the model have sliding windows, and do not attend to all "
                            "tokens of the text");
    }
    enum kva_status status = kva_coverage_init(&s.coverage, &p->look, err);
    if (status)
        return status;
    s.stores = calloc(stores_of(&s), sizeof(*s.stores));
    s.sums = calloc(s.count, sizeof(*s.sums));
    s.kept = malloc(s.count * sizeof(*s.kept));
    if (s.kept)
        memcpy(s.kept, p->kept, s.count * sizeof(*s.kept));
    if (!s.stores || !s.sums || !s.kept || !make_stores(&s)) {
        kva_sparsity_finish(&s);
        return kva_fail(err, KVA_ENOMEM, "out of memory for tokens that are kept");
    }
    *ret = s;
    ret->observer.attends = look;
    ret->observer.opaque = ret;
    return KVA_OK;
}
