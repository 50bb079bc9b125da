/* cusolver.cpp - eigenvectors as cuSOLVER gives them, on the host: a library that the simulated
 * module loads as it loads the real one. Jacobi's method, by rows and columns in order, queued on the
 * handle's stream as kernels are. */
#include "cusolverDn.h"

#include <algorithm>
#include <cmath>
#include <vector>

struct simt_solver {
    cudaStream_t stream;
};

struct simt_settings {
    int unused;
};

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *handle)
{
    *handle = new simt_solver();
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle)
{
    delete handle;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnCreateSyevjInfo(syevjInfo_t *settings)
{
    *settings = new simt_settings();
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnDestroySyevjInfo(syevjInfo_t settings)
{
    delete settings;
    return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnDsyevjBatched_bufferSize(cusolverDnHandle_t handle, cusolverEigMode_t,
                                                    cublasFillMode_t, int n, const double *, int,
                                                    const double *, int *lwork,
                                                    syevjInfo_t settings, int count)
{
    if (!handle || !settings || n < 1 || count < 1)
        return CUSOLVER_STATUS_INVALID_VALUE;
    *lwork = 2 * n * n;
    return CUSOLVER_STATUS_SUCCESS;
}

/* x [n][n] becomes diagonal, v [n][n] the turns that made it so, a vector a row. */
static bool turn_until_diagonal(double *x, double *v, int n)
{
    for (int sweep = 0; sweep < 60; sweep++) {
        double rest = 0, all = 0;
        for (int p = 0; p < n; p++) {
            for (int q = 0; q < n; q++)
                (p == q ? all : rest) += x[p * n + q] * x[p * n + q];
        }
        if (rest <= 1e-30 * (all + rest))
            return true;
        for (int p = 0; p < n; p++) {
            for (int q = p + 1; q < n; q++) {
                if (x[p * n + q] == 0)
                    continue;
                const double theta = (x[q * n + q] - x[p * n + p]) / (2 * x[p * n + q]);
                const double t = (theta < 0 ? -1 : 1) / (std::fabs(theta) + std::hypot(theta, 1.0));
                const double c = 1 / std::hypot(t, 1.0), s = t * c;
                for (int i = 0; i < n; i++) {
                    const double a = x[i * n + p], b = x[i * n + q];
                    x[i * n + p] = c * a - s * b;
                    x[i * n + q] = s * a + c * b;
                }
                for (int i = 0; i < n; i++) {
                    const double a = x[p * n + i], b = x[q * n + i];
                    x[p * n + i] = c * a - s * b;
                    x[q * n + i] = s * a + c * b;
                    const double first = v[p * n + i], second = v[q * n + i];
                    v[p * n + i] = c * first - s * second;
                    v[q * n + i] = s * first + c * second;
                }
            }
        }
    }
    return false;
}

static void solve(cublasFillMode_t uplo, int n, double *a, double *w, double *work, int *info,
                  int count)
{
    for (int matrix = 0; matrix < count; matrix++) {
        double *from = a + (size_t)matrix * n * n, *x = work, *v = work + n * n;
        for (int row = 0; row < n; row++) {
            for (int column = 0; column < n; column++) {
                /* Element (row, column) lies at column * n + row. */
                const bool lower = row >= column,
                           wanted = lower == (uplo == CUBLAS_FILL_MODE_LOWER);
                x[row * n + column] =
                    row == column || wanted ? from[column * n + row] : from[row * n + column];
                v[row * n + column] = row == column;
            }
        }
        info[matrix] = turn_until_diagonal(x, v, n) ? 0 : n + 1;
        std::vector<int> order(n);
        for (int i = 0; i < n; i++)
            order[i] = i;
        std::sort(order.begin(), order.end(),
                  [&](int i, int j) { return x[i * n + i] < x[j * n + j]; });
        for (int i = 0; i < n; i++) {
            w[(size_t)matrix * n + i] = x[order[i] * n + order[i]];
            std::copy_n(v + order[i] * n, n, from + (size_t)i * n);
        }
    }
}

cusolverStatus_t cusolverDnDsyevjBatched(cusolverDnHandle_t handle, cusolverEigMode_t mode,
                                         cublasFillMode_t uplo, int n, double *a, int lda,
                                         double *w, double *work, int lwork, int *info,
                                         syevjInfo_t settings, int count)
{
    if (!handle || !handle->stream || !settings || mode != CUSOLVER_EIG_MODE_VECTOR || lda != n ||
        lwork < 2 * n * n)
        return CUSOLVER_STATUS_INVALID_VALUE;
    auto *entry = reinterpret_cast<simt_stream_entry *>(handle->stream);
    const int failed =
        entry->enqueue(handle->stream, [=]() { solve(uplo, n, a, w, work, info, count); });
    return failed ? CUSOLVER_STATUS_EXECUTION_FAILED : CUSOLVER_STATUS_SUCCESS;
}
