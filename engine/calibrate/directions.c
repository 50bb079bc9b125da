/* directions.c - eigenvectors, and which. */
#include "engine/calibrate/directions.h"

#include "engine/calibrate/eigen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Both halves of a symmetric matrix from the upper one. */
static void fill(const double *from, double *to, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++) {
        for (uint32_t j = i; j < d; j++)
            to[(size_t)i * d + j] = to[(size_t)j * d + i] = from[(size_t)i * d + j];
    }
}

/* out = x y, all [d][d]. */
static void multiply(const double *x, const double *y, double *out, uint32_t d)
{
    memset(out, 0, (size_t)d * d * sizeof(*out));
    for (uint32_t i = 0; i < d; i++) {
        for (uint32_t k = 0; k < d; k++) {
            const double factor = x[(size_t)i * d + k];
            for (uint32_t j = 0; j < d; j++)
                out[(size_t)i * d + j] += factor * y[(size_t)k * d + j];
        }
    }
}

/* Eigenvectors, a row each and ascending, become columns, descending. */
static void put_columns(const double *vectors, double *a, uint32_t d)
{
    for (uint32_t column = 0; column < d; column++) {
        const double *vector = vectors + (size_t)(d - 1 - column) * d;
        for (uint32_t i = 0; i < d; i++)
            a[(size_t)i * d + column] = vector[i];
    }
}

/* root = the square root of the matrix that has these eigenvectors and values. */
static void put_root(const double *vectors, const double *values, double *root, uint32_t d)
{
    memset(root, 0, (size_t)d * d * sizeof(*root));
    for (uint32_t v = 0; v < d; v++) {
        const double *vector = vectors + (size_t)v * d;
        const double scale = sqrt(fmax(values[v], 0));
        for (uint32_t i = 0; i < d; i++) {
            for (uint32_t j = 0; j < d; j++)
                root[(size_t)i * d + j] += scale * vector[i] * vector[j];
        }
    }
}

/* k = the keys' sums without those of their mean. */
static void centre(const struct kva_directions_params *p, double *k)
{
    const uint32_t d = p->d;
    fill(p->k, k, d);
    for (uint32_t i = 0; i < d && p->rows > 0; i++) {
        for (uint32_t j = 0; j < d; j++)
            k[(size_t)i * d + j] -= p->k_sum[i] * p->k_sum[j] / p->rows;
    }
}

static double trace(const double *x, uint32_t d)
{
    double sum = 0;
    for (uint32_t i = 0; i < d; i++)
        sum += x[(size_t)i * d + i];
    return sum;
}

/* to = x / tr x + y / tr y; a matrix of zeros has no directions to add. */
static void add_shares(const double *x, const double *y, double *to, uint32_t d)
{
    const double of_x = trace(x, d), of_y = trace(y, d);
    const double a = of_x > 0 ? 1 / of_x : 0, b = of_y > 0 ? 1 / of_y : 0;
    for (size_t i = 0; i < (size_t)d * d; i++)
        to[i] = a * x[i] + b * y[i];
}

/* x = the matrix whose eigenvectors are wanted first. k is scratch. */
static void prepare(const struct kva_directions_params *p, double *x, double *k)
{
    fill(p->q, x, p->d);
    if (p->method != KVA_SKEW_SUM)
        return;
    centre(p, k);
    add_shares(x, k, x, p->d);
}

/* BALANCED: x = Sq^1/2 C Sq^1/2, of the eigenvectors x and values of Sq. `work`: 3 d d. */
static void balance(const struct kva_directions_params *p, double *x, const double *values,
                    double *work)
{
    const size_t n = (size_t)p->d * p->d;
    double *k = work, *root = work + n, *product = work + 2 * n;
    centre(p, k);
    put_root(x, values, root, p->d);
    multiply(root, k, product, p->d);
    multiply(product, root, x, p->d);
}

enum kva_status kva_directions_of(const struct kva_directions_params *p, double *work, double *a,
                                  struct kva_err *err)
{
    const uint32_t d = p->d;
    const size_t n = (size_t)d * d;
    double *x = work, *values = work + 4 * n;
    prepare(p, x, work + n);
    enum kva_status status = kva_eigen(x, values, d, err);
    if (!status && p->method == KVA_SKEW_BALANCED) {
        balance(p, x, values, work + n);
        status = kva_eigen(x, values, d, err);
    }
    if (!status)
        put_columns(x, a, d);
    return status;
}

/* --- all layers and heads --------------------------------------------------------------------- */

struct work {
    const struct kva_gram *gram;
    struct kva_skew *skew;
    enum kva_skew_method method;
    uint32_t count;       /* layers * kv_heads */
    double *x, *values;   /* [count][d][d], [count][d] */
    double *scratch;      /* [threads][3 d d] */
    struct kva_err *errs; /* [count] */
};

static struct kva_directions_params params_of(const struct work *work, uint32_t index)
{
    const struct kva_gram *gram = work->gram;
    const uint32_t d = gram->shape.head_dim, heads = gram->shape.kv_heads, layer = index / heads;
    const size_t at = kva_gram_at(gram, layer, index % heads);
    return (struct kva_directions_params){.method = work->method,
                                          .d = d,
                                          .q = gram->q + at,
                                          .k = gram->k + at,
                                          .k_sum = gram->k_sum + at / d,
                                          .rows = (double)gram->rows[layer]};
}

static double *x_of(const struct work *work, uint32_t index)
{
    const size_t d = work->skew->head_dim;
    return work->x + index * d * d;
}

static double *scratch_of(const struct work *work, uint32_t worker)
{
    const size_t d = work->skew->head_dim;
    return work->scratch + worker * 3 * d * d;
}

static void prepare_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct work *work = opaque;
    const struct kva_directions_params params = params_of(work, index);
    prepare(&params, x_of(work, index), scratch_of(work, worker));
}

static void balance_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct work *work = opaque;
    const struct kva_directions_params params = params_of(work, index);
    balance(&params, x_of(work, index), work->values + (size_t)index * params.d,
            scratch_of(work, worker));
}

/* How much of a product the columns have as they are: the root of the energies of q and of k without
 * its mean. */
static void put_energy(const struct work *work, uint32_t layer, uint32_t head)
{
    const uint32_t d = work->skew->head_dim;
    const size_t at = kva_gram_at(work->gram, layer, head);
    const double *q = work->gram->q + at, *k = work->gram->k + at;
    float *energy = work->skew->energy + kva_skew_columns_at(work->skew, layer, head);
    const double *sum = work->gram->k_sum + at / d, rows = (double)work->gram->rows[layer];
    for (uint32_t i = 0; i < d; i++) {
        const double of_mean = rows > 0 ? sum[i] * sum[i] / rows : 0;
        energy[i] = (float)sqrt(q[(size_t)i * d + i] * fmax(k[(size_t)i * d + i] - of_mean, 0));
    }
}

static void finish_item(void *opaque, uint32_t index, uint32_t worker)
{
    const struct work *work = opaque;
    const uint32_t d = work->skew->head_dim, heads = work->skew->kv_heads;
    double *a = scratch_of(work, worker);
    float *basis = work->skew->basis + kva_skew_basis_at(work->skew, index / heads, index % heads);
    put_columns(x_of(work, index), a, d);
    for (size_t i = 0; i < (size_t)d * d; i++)
        basis[i] = (float)a[i];
    put_energy(work, index / heads, index % heads);
}

/* x becomes the eigenvectors. */
static enum kva_status solve(struct work *work, struct kva_device *device, struct kva_pool *pool,
                             struct kva_err *err)
{
    const uint32_t heads = work->skew->kv_heads;
    enum kva_status status = kva_eigen_all(device, pool, work->x, work->values,
                                           work->skew->head_dim, work->count, work->errs, err);
    for (uint32_t i = 0; i < work->count && !status; i++) {
        if (work->errs[i].status)
            status = kva_fail(err, work->errs[i].status, "layer %u, KV head %u: %s", i / heads,
                              i % heads, work->errs[i].message);
    }
    return status;
}

static enum kva_status find(struct work *work, struct kva_device *device, struct kva_pool *pool,
                            struct kva_err *err)
{
    const size_t d = work->skew->head_dim;
    work->x = malloc(work->count * d * d * sizeof(double));
    work->values = malloc(work->count * d * sizeof(double));
    work->scratch = malloc(kva_pool_threads(pool) * 3 * d * d * sizeof(double));
    work->errs = calloc(work->count, sizeof(*work->errs));
    if (!work->x || !work->values || !work->scratch || !work->errs)
        return kva_fail(err, KVA_ENOMEM, "out of memory for directions");
    kva_pool_run(pool, work->count, prepare_item, work);
    enum kva_status status = solve(work, device, pool, err);
    if (!status && work->method == KVA_SKEW_BALANCED) {
        kva_pool_run(pool, work->count, balance_item, work);
        status = solve(work, device, pool, err);
    }
    if (!status)
        kva_pool_run(pool, work->count, finish_item, work);
    return status;
}

enum kva_status kva_directions_find(const struct kva_gram *gram, enum kva_skew_method method,
                                    struct kva_device *device, struct kva_pool *pool,
                                    struct kva_skew **ret, struct kva_err *err)
{
    const struct kva_gram_shape *s = &gram->shape;
    struct work work = {.gram = gram, .method = method, .count = s->layers * s->kv_heads};
    enum kva_status status = kva_skew_create(s->layers, s->kv_heads, s->head_dim, &work.skew, err);
    if (status)
        return status;
    status = find(&work, device, pool, err);
    free(work.x);
    free(work.values);
    free(work.scratch);
    free(work.errs);
    if (status) {
        kva_skew_destroy(work.skew);
        return status;
    }
    work.skew->method = method;
    kva_skew_sort(work.skew);
    *ret = work.skew;
    return KVA_OK;
}
