/* gram.c - sums of outer products, a panel of a matrix per item of work. */
#include "engine/calibrate/gram.h"

#include <stdlib.h>

/* Rows of a matrix that one item sums, and outer products that it adds at a time. */
#define PANEL 32u
#define DEEP  4u

enum kva_status kva_gram_create(const struct kva_gram_shape *shape, struct kva_gram **ret,
                                struct kva_err *err)
{
    struct kva_gram *gram = calloc(1, sizeof(*gram));
    const size_t columns = (size_t)shape->layers * shape->kv_heads * shape->head_dim;
    if (!gram)
        return kva_fail(err, KVA_ENOMEM, "out of memory");
    gram->shape = *shape;
    gram->q = calloc(columns, shape->head_dim * sizeof(*gram->q));
    gram->k = calloc(columns, shape->head_dim * sizeof(*gram->k));
    gram->k_sum = calloc(columns, sizeof(*gram->k_sum));
    gram->rows = calloc(shape->layers, sizeof(*gram->rows));
    if (!gram->q || !gram->k || !gram->k_sum || !gram->rows) {
        kva_gram_destroy(gram);
        return kva_fail(err, KVA_ENOMEM, "out of memory for the sums of %u layers", shape->layers);
    }
    *ret = gram;
    return KVA_OK;
}

void kva_gram_destroy(struct kva_gram *gram)
{
    if (!gram)
        return;
    free(gram->q);
    free(gram->k);
    free(gram->k_sum);
    free(gram->rows);
    free(gram);
}

/* Rows of one head, one behind the other at a distance. */
struct vectors {
    const float *first;
    size_t stride;
    uint32_t count;
    uint32_t d;
};

/* sums[i][j] += x[i] x[j] over DEEP vectors at most, rows [from, end) of the matrix. Missing ones
 * are zeros. */
static void add_deep(double *restrict sums, const struct vectors *x, uint32_t at, uint32_t from,
                     uint32_t end)
{
    const uint32_t d = x->d, deep = kva_min_u32(DEEP, x->count - at);
    const float *rows[DEEP];
    for (uint32_t r = 0; r < DEEP; r++)
        rows[r] = x->first + (at + kva_min_u32(r, deep - 1)) * x->stride;
    for (uint32_t i = from; i < end; i++) {
        double *restrict to = sums + (size_t)i * d;
        double a[DEEP];
        for (uint32_t r = 0; r < DEEP; r++)
            a[r] = r < deep ? (double)rows[r][i] : 0;
        for (uint32_t j = from; j < d; j++)
            to[j] += a[0] * (double)rows[0][j] + a[1] * (double)rows[1][j] +
                     a[2] * (double)rows[2][j] + a[3] * (double)rows[3][j];
    }
}

_Static_assert(DEEP == 4, "add_deep adds four");

static void add_outer(double *sums, const struct vectors *x, uint32_t panel)
{
    const uint32_t from = panel * PANEL, end = kva_min_u32(from + PANEL, x->d);
    for (uint32_t at = 0; at < x->count; at += DEEP)
        add_deep(sums, x, at, from, end);
}

struct work {
    struct kva_gram *gram;
    uint32_t layer;
    const float *q, *k;
    uint32_t rows;
    uint32_t panels;
};

static void add_item(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct work *work = opaque;
    struct kva_gram *gram = work->gram;
    const struct kva_gram_shape *s = &gram->shape;
    const uint32_t kv_head = index / work->panels, panel = index % work->panels;
    const uint32_t group = s->heads / s->kv_heads, d = s->head_dim;
    const size_t at = kva_gram_at(gram, work->layer, kv_head);
    for (uint32_t i = 0; i < group; i++) {
        const struct vectors q = {work->q + ((size_t)kv_head * group + i) * d, (size_t)s->heads * d,
                                  work->rows, d};
        add_outer(gram->q + at, &q, panel);
    }
    const struct vectors k = {work->k + (size_t)kv_head * d, (size_t)s->kv_heads * d, work->rows,
                              d};
    add_outer(gram->k + at, &k, panel);
    double *sum = gram->k_sum + at / d;
    for (uint32_t j = panel * PANEL; j < kva_min_u32((panel + 1) * PANEL, d); j++) {
        for (uint32_t r = 0; r < work->rows; r++)
            sum[j] += (double)k.first[r * k.stride + j];
    }
}

void kva_gram_add(struct kva_gram *gram, struct kva_pool *pool, uint32_t layer, const float *q,
                  const float *k, uint32_t rows)
{
    const uint32_t panels = (uint32_t)kva_div_up(gram->shape.head_dim, PANEL);
    struct work work = {gram, layer, q, k, rows, panels};
    kva_pool_run(pool, gram->shape.kv_heads * panels, add_item, &work);
    gram->rows[layer] += rows;
}
