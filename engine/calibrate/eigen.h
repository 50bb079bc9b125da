/* eigen.h - eigenvectors of symmetric matrices: by the device's solver if it has one, else by LAPACK
 * where this program was built with it.
 *
 * Nothing but calibration needs them. LAPACK computes a matrix in one thread, so that the bits
 * depend on the matrix alone. */
#ifndef KVA_ENGINE_CALIBRATE_EIGEN_H
#define KVA_ENGINE_CALIBRATE_EIGEN_H

#include "base/pool.h"
#include "kernels/device.h"

/* Whether there is a solver: that of `device`, which solves a small matrix, or else, and for NULL,
 * LAPACK. Fails: KVA_EUNSUPPORTED (err says what to install), KVA_ENOMEM, KVA_EDEVICE. Engine thread;
 * for NULL any. */
KVA_MUST_CHECK enum kva_status kva_eigen_check(struct kva_device *device, struct kva_err *err);

/* `matrix` [n][n], of which element [i][j] with i <= j is read, becomes the orthonormal
 * eigenvectors, one a row, and values [n] their eigenvalues, ascending; of each vector the element
 * with the largest magnitude, the first of equals, is positive. Fails: KVA_EUNSUPPORTED;
 * KVA_EFORMAT (the matrix is not finite, or LAPACK finds no end), KVA_ENOMEM. Any thread. */
KVA_MUST_CHECK enum kva_status kva_eigen(double *matrix, double *values, uint32_t n,
                                         struct kva_err *err);

/* The same of `count` matrices [count][n][n], values [count][n], by the solver of `device`; NULL, or
 * if it has none, by LAPACK on the pool. errs [count], zeroed: what became of each by itself. Fails,
 * of all of them: KVA_EUNSUPPORTED, KVA_EFORMAT, KVA_ENOMEM, KVA_EDEVICE. Engine thread. */
KVA_MUST_CHECK enum kva_status kva_eigen_all(struct kva_device *device, struct kva_pool *pool,
                                             double *matrices, double *values, uint32_t n,
                                             uint32_t count, struct kva_err *errs,
                                             struct kva_err *err);

#endif
