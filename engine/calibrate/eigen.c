/* eigen.c - LAPACK's dsyevd or the device's solver, and the signs of what they give. */
#include "engine/calibrate/eigen.h"

#include <math.h>

#ifdef KVA_HAVE_LAPACK
#include <lapacke.h>
#endif

/* Which of v and -v an algorithm gives is an accident. */
static void set_sign(double *vector, uint32_t n)
{
    uint32_t largest = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (fabs(vector[i]) > fabs(vector[largest]))
            largest = i;
    }
    for (uint32_t i = 0; i < n && vector[largest] < 0; i++) {
        if (i != largest)
            vector[i] = -vector[i];
    }
    vector[largest] = fabs(vector[largest]);
}

static bool all_finite(const double *matrix, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = i; j < n; j++) {
            if (!isfinite(matrix[(size_t)i * n + j]))
                return false;
        }
    }
    return true;
}

static void set_signs(double *matrix, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        set_sign(matrix + (size_t)i * n, n);
}

static enum kva_status check_finite(const double *matrix, uint32_t n, struct kva_err *err)
{
    return all_finite(matrix, n)
               ? KVA_OK
               : kva_fail(err, KVA_EFORMAT, "a matrix of %u by %u has numbers that are not finite",
                          n, n);
}

/* --- LAPACK ----------------------------------------------------------------------------------- */

#ifdef KVA_HAVE_LAPACK

static enum kva_status check_lapack(struct kva_err *err KVA_UNUSED)
{
    return KVA_OK;
}

enum kva_status kva_eigen(double *matrix, double *values, uint32_t n, struct kva_err *err)
{
    enum kva_status status = check_finite(matrix, n, err);
    if (status)
        return status;
    /* By columns, as LAPACK has it, the upper half that C's rows have is the lower one, and a
     * vector, a column, is a row. */
    const lapack_int info =
        LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'L', (lapack_int)n, matrix, (lapack_int)n, values);
    if (info == LAPACK_WORK_MEMORY_ERROR)
        return kva_fail(err, KVA_ENOMEM, "out of memory for eigenvectors of %u by %u", n, n);
    if (info != 0)
        return kva_fail(err, KVA_EFORMAT, "LAPACK finds no eigenvectors of %u by %u: %d", n, n,
                        (int)info);
    set_signs(matrix, n);
    return KVA_OK;
}

#else

static enum kva_status check_lapack(struct kva_err *err)
{
    return kva_fail(err, KVA_EUNSUPPORTED,
                    "this kvahead was built without LAPACK, which finds the directions: install it "
                    "(Debian: liblapacke-dev) and build again (meson setup --reconfigure "
                    "-Dlapack=enabled). Serving a model needs none");
}

enum kva_status kva_eigen(double *matrix KVA_UNUSED, double *values KVA_UNUSED,
                          uint32_t n KVA_UNUSED, struct kva_err *err)
{
    return check_lapack(err);
}

#endif

enum kva_status kva_eigen_check(struct kva_device *device, struct kva_err *err)
{
    double matrix[4] = {2, 0, 0, 1}, values[2];
    enum kva_status status =
        device ? kva_device_eigen(device, matrix, values, 2, 1, err) : KVA_EUNSUPPORTED;
    return status == KVA_EUNSUPPORTED ? check_lapack(err) : status;
}

/* --- many ------------------------------------------------------------------------------------- */

struct many {
    double *matrices, *values;
    uint32_t n;
    struct kva_err *errs;
};

static double *matrix_of(const struct many *many, uint32_t index)
{
    return many->matrices + (size_t)index * many->n * many->n;
}

static void solve_item(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct many *many = opaque;
    struct kva_err *err = &many->errs[index];
    err->status =
        kva_eigen(matrix_of(many, index), many->values + (size_t)index * many->n, many->n, err);
}

/* KVA_EUNSUPPORTED: nothing was done. */
static enum kva_status solve_on_device(struct kva_device *device, const struct many *many,
                                       uint32_t count, struct kva_err *err)
{
    for (uint32_t i = 0; i < count; i++) {
        enum kva_status status = check_finite(matrix_of(many, i), many->n, &many->errs[i]);
        many->errs[i].status = status;
        if (status)
            return KVA_OK;
    }
    enum kva_status status =
        kva_device_eigen(device, many->matrices, many->values, many->n, count, err);
    for (uint32_t i = 0; i < count && !status; i++)
        set_signs(matrix_of(many, i), many->n);
    return status;
}

enum kva_status kva_eigen_all(struct kva_device *device, struct kva_pool *pool, double *matrices,
                              double *values, uint32_t n, uint32_t count, struct kva_err *errs,
                              struct kva_err *err)
{
    struct many many = {matrices, values, n, errs};
    enum kva_status status = device ? solve_on_device(device, &many, count, err) : KVA_EUNSUPPORTED;
    if (status != KVA_EUNSUPPORTED)
        return status;
    kva_pool_run(pool, count, solve_item, &many);
    return KVA_OK;
}
