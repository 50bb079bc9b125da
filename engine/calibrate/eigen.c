/* eigen.c - LAPACK's dsyevd, and the signs of what it gives. */
#include "engine/calibrate/eigen.h"

#ifdef KVA_HAVE_LAPACK

#include <lapacke.h>
#include <math.h>
#include <stdbool.h>

enum kva_status kva_eigen_check(struct kva_err *err KVA_UNUSED)
{
    return KVA_OK;
}

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

enum kva_status kva_eigen(double *matrix, double *values, uint32_t n, struct kva_err *err)
{
    if (!all_finite(matrix, n))
        return kva_fail(err, KVA_EFORMAT, "a matrix of %u by %u has numbers that are not finite", n,
                        n);
    /* By columns, as LAPACK has it, the upper half that C's rows have is the lower one, and a
     * vector, a column, is a row. */
    const lapack_int info =
        LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'L', (lapack_int)n, matrix, (lapack_int)n, values);
    if (info == LAPACK_WORK_MEMORY_ERROR)
        return kva_fail(err, KVA_ENOMEM, "out of memory for eigenvectors of %u by %u", n, n);
    if (info != 0)
        return kva_fail(err, KVA_EFORMAT, "LAPACK finds no eigenvectors of %u by %u: %d", n, n,
                        (int)info);
    for (uint32_t i = 0; i < n; i++)
        set_sign(matrix + (size_t)i * n, n);
    return KVA_OK;
}

#else

enum kva_status kva_eigen_check(struct kva_err *err)
{
    return kva_fail(err, KVA_EUNSUPPORTED,
                    "this kvahead was built without LAPACK, which finds the directions: install it "
                    "(Debian: liblapacke-dev) and build again (meson setup --reconfigure "
                    "-Dlapack=enabled). Serving a model needs none");
}

enum kva_status kva_eigen(double *matrix KVA_UNUSED, double *values KVA_UNUSED,
                          uint32_t n KVA_UNUSED, struct kva_err *err)
{
    return kva_eigen_check(err);
}

#endif
