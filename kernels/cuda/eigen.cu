/* eigen.cu - eigenvectors of symmetric matrices by cuSOLVER: Jacobi's method, all matrices side by
 * side.
 *
 * Only calibration asks for them, so the library is no dependency of the module: it is loaded by
 * the call and let go behind it. What goes wrong here is the caller's error and does not fail the
 * device. */
#include "kernels/cuda/device_cuda.h"

#if __has_include(<cusolverDn.h>)

#include <cusolverDn.h>
#include <dlfcn.h>
#include <string.h>

/* As its linker knows it. Tests have another. */
#ifndef KVA_CUSOLVER_LIBRARY
#define TEXT_OF(x)           #x
#define LIBRARY_OF(major)    "libcusolver.so." TEXT_OF(major)
#define KVA_CUSOLVER_LIBRARY LIBRARY_OF(CUSOLVER_VER_MAJOR)
#endif

struct solver {
    void *library;
    decltype(&cusolverDnCreate) create;
    decltype(&cusolverDnDestroy) destroy;
    decltype(&cusolverDnSetStream) set_stream;
    decltype(&cusolverDnCreateSyevjInfo) create_settings;
    decltype(&cusolverDnDestroySyevjInfo) destroy_settings;
    decltype(&cusolverDnDsyevjBatched_bufferSize) work_size;
    decltype(&cusolverDnDsyevjBatched) solve;
    cusolverDnHandle_t handle;
    syevjInfo_t settings;
};

/* By columns, as cuSOLVER has it, the upper half that C's rows have is the lower one, and a vector, a
 * column, is a row. */
static cublasFillMode_t half_read()
{
    return CUBLAS_FILL_MODE_LOWER;
}

template <typename F> static bool find(struct solver *solver, const char *name, F *ret)
{
    *ret = reinterpret_cast<F>(dlsym(solver->library, name));
    return *ret != nullptr;
}

static void close_solver(struct solver *solver)
{
    if (solver->settings)
        (void)solver->destroy_settings(solver->settings);
    if (solver->handle)
        (void)solver->destroy(solver->handle);
    if (solver->library)
        dlclose(solver->library);
}

static enum kva_status fail_with(struct kva_err *err, cusolverStatus_t status, const char *what)
{
    return kva_fail(err, status == CUSOLVER_STATUS_ALLOC_FAILED ? KVA_ENOMEM : KVA_EDEVICE,
                    "cuSOLVER: %s: status %d", what, static_cast<int>(status));
}

static enum kva_status open_solver(struct kva_device *device, struct solver *ret,
                                   struct kva_err *err)
{
    ret->library = dlopen(KVA_CUSOLVER_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!ret->library)
        return kva_fail(err, KVA_EUNSUPPORTED, "no cuSOLVER: %s", dlerror());
    if (!find(ret, "cusolverDnCreate", &ret->create) ||
        !find(ret, "cusolverDnDestroy", &ret->destroy) ||
        !find(ret, "cusolverDnSetStream", &ret->set_stream) ||
        !find(ret, "cusolverDnCreateSyevjInfo", &ret->create_settings) ||
        !find(ret, "cusolverDnDestroySyevjInfo", &ret->destroy_settings) ||
        !find(ret, "cusolverDnDsyevjBatched_bufferSize", &ret->work_size) ||
        !find(ret, "cusolverDnDsyevjBatched", &ret->solve))
        return kva_fail(err, KVA_EUNSUPPORTED, "another cuSOLVER than this build's: %s", dlerror());
    cusolverStatus_t status = ret->create(&ret->handle);
    if (status == CUSOLVER_STATUS_SUCCESS)
        status = ret->set_stream(ret->handle, device->streams[KVA_QUEUE_COMPUTE]);
    if (status == CUSOLVER_STATUS_SUCCESS)
        status = ret->create_settings(&ret->settings); /* to the end of fp64, ascending */
    return status == CUSOLVER_STATUS_SUCCESS ? KVA_OK : fail_with(err, status, "a handle");
}

/* A batch: matrices, values and infos in one piece of the device's memory, scratch behind them, and
 * in a pinned one of the host's. */
struct batch {
    unsigned char *device, *host;
    size_t values_at, infos_at, work_at, bytes;
    int work_numbers;
    int n, count;
};

static enum kva_status alloc_batch(struct kva_device *device, const struct solver *solver,
                                   struct batch *b, struct kva_err *err)
{
    const size_t n = static_cast<size_t>(b->n), count = static_cast<size_t>(b->count);
    void *memory;
    b->values_at = count * n * n * sizeof(double);
    b->infos_at = b->values_at + count * n * sizeof(double);
    b->work_at = b->infos_at + (count + 1) / 2 * sizeof(double);
    cusolverStatus_t failed =
        solver->work_size(solver->handle, CUSOLVER_EIG_MODE_VECTOR, half_read(), b->n, nullptr,
                          b->n, nullptr, &b->work_numbers, solver->settings, b->count);
    if (failed != CUSOLVER_STATUS_SUCCESS)
        return fail_with(err, failed, "the size of its scratch");
    b->bytes = b->work_at + static_cast<size_t>(b->work_numbers) * sizeof(double);
    enum kva_status status = kva_cuda_alloc_device(device, b->bytes, &memory, err);
    if (status)
        return status;
    b->device = static_cast<unsigned char *>(memory);
    status = kva_cuda_alloc_host(device, b->work_at, &memory, err);
    if (!status)
        b->host = static_cast<unsigned char *>(memory);
    return status;
}

static void free_batch(struct kva_device *device, struct batch *b)
{
    if (b->host)
        kva_cuda_free_host(b->host, b->work_at);
    if (b->device)
        kva_cuda_free_device(device, b->device, b->bytes);
}

static enum kva_status copy_and_wait(struct kva_device *device, void *to, const void *from,
                                     size_t bytes, struct kva_err *err)
{
    const cudaStream_t stream = device->streams[KVA_QUEUE_COMPUTE];
    cudaError_t status = kva_cuda_copy_pieces(stream, to, from, bytes);
    if (status == cudaSuccess)
        status = cudaStreamSynchronize(stream);
    return status == cudaSuccess ? KVA_OK : kva_cuda_fail_with(err, status, "a copy of matrices");
}

static enum kva_status solve(struct kva_device *device, const struct solver *solver,
                             const struct batch *b, struct kva_err *err)
{
    enum kva_status status = copy_and_wait(device, b->device, b->host, b->values_at, err);
    if (status)
        return status;
    cusolverStatus_t failed =
        solver->solve(solver->handle, CUSOLVER_EIG_MODE_VECTOR, half_read(), b->n,
                      reinterpret_cast<double *>(b->device), b->n,
                      reinterpret_cast<double *>(b->device + b->values_at),
                      reinterpret_cast<double *>(b->device + b->work_at), b->work_numbers,
                      reinterpret_cast<int *>(b->device + b->infos_at), solver->settings, b->count);
    if (failed != CUSOLVER_STATUS_SUCCESS)
        return fail_with(err, failed, "eigenvectors");
    status = copy_and_wait(device, b->host, b->device, b->work_at, err);
    const int *infos = reinterpret_cast<const int *>(b->host + b->infos_at);
    for (int i = 0; i < b->count && !status; i++) {
        if (infos[i] != 0)
            status = kva_fail(err, KVA_EFORMAT, "cuSOLVER finds no eigenvectors of matrix %d: %d",
                              i, infos[i]);
    }
    return status;
}

enum kva_status kva_cuda_eigen(struct kva_device *device, double *matrices, double *values,
                               uint32_t n, uint32_t count, struct kva_err *err)
{
    struct solver solver = {};
    struct batch batch = {};
    batch.n = static_cast<int>(n);
    batch.count = static_cast<int>(count);
    kva_cuda_step_break(device);
    enum kva_status status =
        kva_cuda_enter(device) ? open_solver(device, &solver, err) : kva_cuda_error(device, err);
    if (!status)
        status = alloc_batch(device, &solver, &batch, err);
    if (!status) {
        memcpy(batch.host, matrices, batch.values_at);
        status = solve(device, &solver, &batch, err);
    }
    if (!status) {
        memcpy(matrices, batch.host, batch.values_at);
        memcpy(values, batch.host + batch.values_at, batch.infos_at - batch.values_at);
    }
    free_batch(device, &batch);
    close_solver(&solver);
    return status;
}

#else

enum kva_status kva_cuda_eigen(struct kva_device *, double *, double *, uint32_t, uint32_t,
                               struct kva_err *err)
{
    return kva_fail(err, KVA_EUNSUPPORTED,
                    "this CUDA module was built without cuSOLVER (Debian: libcusolver-dev)");
}

#endif
