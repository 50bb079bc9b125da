/* cusolverDn.h - what the CUDA module asks of cuSOLVER. */
#ifndef KVA_TESTS_CUSOLVER_DN_H
#define KVA_TESTS_CUSOLVER_DN_H

#include "cuda_runtime.h"
#include "cusolver_library.h" /* of the build: where the library is */

enum cusolverStatus_t {
    CUSOLVER_STATUS_SUCCESS = 0,
    CUSOLVER_STATUS_ALLOC_FAILED = 2,
    CUSOLVER_STATUS_INVALID_VALUE = 3,
    CUSOLVER_STATUS_EXECUTION_FAILED = 6
};
enum cusolverEigMode_t { CUSOLVER_EIG_MODE_NOVECTOR = 0, CUSOLVER_EIG_MODE_VECTOR = 1 };
enum cublasFillMode_t { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1 };

typedef struct simt_solver *cusolverDnHandle_t;
typedef struct simt_settings *syevjInfo_t;

#define CUSOLVER_API extern "C" __attribute__((visibility("default")))

CUSOLVER_API cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *handle);
CUSOLVER_API cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle);
CUSOLVER_API cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream);
CUSOLVER_API cusolverStatus_t cusolverDnCreateSyevjInfo(syevjInfo_t *settings);
CUSOLVER_API cusolverStatus_t cusolverDnDestroySyevjInfo(syevjInfo_t settings);
CUSOLVER_API cusolverStatus_t cusolverDnDsyevjBatched_bufferSize(
    cusolverDnHandle_t handle, cusolverEigMode_t mode, cublasFillMode_t uplo, int n,
    const double *a, int lda, const double *w, int *lwork, syevjInfo_t settings, int count);
CUSOLVER_API cusolverStatus_t cusolverDnDsyevjBatched(cusolverDnHandle_t handle,
                                                      cusolverEigMode_t mode, cublasFillMode_t uplo,
                                                      int n, double *a, int lda, double *w,
                                                      double *work, int lwork, int *info,
                                                      syevjInfo_t settings, int count);

#endif
