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

/* root = the square root of the symmetric matrix x, which is overwritten. values [d] is scratch. */
static enum kva_status take_root(double *x, double *root, double *values, uint32_t d,
                                 struct kva_err *err)
{
    enum kva_status status = kva_eigen(x, values, d, err);
    if (status)
        return status;
    memset(root, 0, (size_t)d * d * sizeof(*root));
    for (uint32_t v = 0; v < d; v++) {
        const double *vector = x + (size_t)v * d;
        const double scale = sqrt(fmax(values[v], 0));
        for (uint32_t i = 0; i < d; i++) {
            for (uint32_t j = 0; j < d; j++)
                root[(size_t)i * d + j] += scale * vector[i] * vector[j];
        }
    }
    return KVA_OK;
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

enum kva_status kva_directions_of(const struct kva_directions_params *p, double *work, double *a,
                                  struct kva_err *err)
{
    const uint32_t d = p->d;
    const size_t n = (size_t)d * d;
    double *x = work, *k = work + n, *root = work + 2 * n, *product = work + 3 * n,
           *values = work + 4 * n;
    enum kva_status status = KVA_OK;
    fill(p->q, x, d);
    centre(p, k);
    if (p->method == KVA_SKEW_SUM) {
        add_shares(x, k, x, d);
    } else if (p->method == KVA_SKEW_BALANCED) {
        status = take_root(x, root, values, d, err);
        multiply(root, k, product, d);
        multiply(product, root, x, d);
    }
    if (!status)
        status = kva_eigen(x, values, d, err);
    if (!status)
        put_columns(x, a, d);
    return status;
}

/* --- all layers and heads --------------------------------------------------------------------- */

struct work {
    const struct kva_gram *gram;
    struct kva_skew *skew;
    enum kva_skew_method method;
    struct kva_err *errs; /* [layers * kv_heads] */
};

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

static enum kva_status find_one(const struct work *work, uint32_t layer, uint32_t head,
                                struct kva_err *err)
{
    const struct kva_gram *gram = work->gram;
    const uint32_t d = gram->shape.head_dim;
    const size_t at = kva_gram_at(gram, layer, head), n = (size_t)d * d;
    double *memory = malloc(6 * n * sizeof(*memory));
    if (!memory)
        return kva_fail(err, KVA_ENOMEM, "out of memory for directions");
    double *a = memory + 5 * n;
    const struct kva_directions_params params = {.method = work->method,
                                                 .d = d,
                                                 .q = gram->q + at,
                                                 .k = gram->k + at,
                                                 .k_sum = gram->k_sum + at / d,
                                                 .rows = (double)gram->rows[layer]};
    enum kva_status status = kva_directions_of(&params, memory, a, err);
    float *basis = work->skew->basis + kva_skew_basis_at(work->skew, layer, head);
    for (size_t i = 0; i < n && !status; i++)
        basis[i] = (float)a[i];
    free(memory);
    put_energy(work, layer, head);
    return status ? kva_err_prefix(err, status, "layer %u, KV head %u", layer, head) : KVA_OK;
}

static void find_item(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct work *work = opaque;
    const uint32_t heads = work->skew->kv_heads;
    work->errs[index].status = find_one(work, index / heads, index % heads, &work->errs[index]);
}

enum kva_status kva_directions_find(const struct kva_gram *gram, enum kva_skew_method method,
                                    struct kva_pool *pool, struct kva_skew **ret,
                                    struct kva_err *err)
{
    const struct kva_gram_shape *s = &gram->shape;
    const uint32_t count = s->layers * s->kv_heads;
    struct work work = {.gram = gram, .method = method};
    enum kva_status status = kva_skew_create(s->layers, s->kv_heads, s->head_dim, &work.skew, err);
    if (status)
        return status;
    work.errs = calloc(count, sizeof(*work.errs));
    if (work.errs)
        kva_pool_run(pool, count, find_item, &work);
    else
        status = kva_fail(err, KVA_ENOMEM, "out of memory for directions");
    for (uint32_t i = 0; i < count && !status; i++) {
        if (work.errs[i].status)
            status = kva_fail(err, work.errs[i].status, "%s", work.errs[i].message);
    }
    free(work.errs);
    work.skew->method = method;
    kva_skew_sort(work.skew);
    if (status)
        kva_skew_destroy(work.skew);
    else
        *ret = work.skew;
    return status;
}
