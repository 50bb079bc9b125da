/* eigen.h - eigenvectors of a symmetric matrix, by LAPACK where this program was built with it.
 *
 * Nothing but calibration needs it. One thread computes one matrix, so that the bits depend on the
 * matrix alone.
 *
 * Thread rule: any thread. */
#ifndef KVA_ENGINE_CALIBRATE_EIGEN_H
#define KVA_ENGINE_CALIBRATE_EIGEN_H

#include "base/err.h"

/* Whether there is a way to compute them. Fails: KVA_EUNSUPPORTED (err says what to install). */
KVA_MUST_CHECK enum kva_status kva_eigen_check(struct kva_err *err);

/* `matrix` [n][n], of which element [i][j] with i <= j is read, becomes the orthonormal
 * eigenvectors, one a row, and values [n] their eigenvalues, ascending; of each vector the element
 * with the largest magnitude, the first of equals, is positive. Fails: KVA_EUNSUPPORTED;
 * KVA_EFORMAT (the matrix is not finite, or LAPACK finds no end), KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_eigen(double *matrix, double *values, uint32_t n,
                                         struct kva_err *err);

#endif
