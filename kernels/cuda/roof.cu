/* roof.cu - what the GPU gives at most, measured: the figures that steps are put beside. Memory is
 * what a step leaves free: the scratch of attention, whose content is nobody's between two calls.
 */
extern "C" {
#include "base/clock.h"
}
#include "kernels/cuda/number.cuh"

#define THREADS 256u

/* Runs of one measurement; the best counts, as neighbours only take away. */
#define RUNS 7

/* Long enough that the host's waiting does not count. */
#define RUN_NS (2 * KVA_NS_PER_MS)

/* The largest matrix product: [2 n, n] by [n, n] to [n, 2 n], which lie in the scratch. */
#define MATRIX_MAX 4096u

/* A piece of pinned memory that is copied to and fro. */
#define HOST_BYTES ((size_t)32 << 20)

/* Numbers between -2 and 2 of any sign and size: what multipliers do costs power, and all the same
 * numbers cost less. */
template <typename T> static __global__ void noise_kernel(T *out, size_t count)
{
    kva_begin();
    for (size_t i = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x; i < count;
         i += static_cast<size_t>(gridDim.x) * THREADS) {
        uint32_t x = static_cast<uint32_t>(i) * 2654435761u;
        x = (x ^ x >> 15) * 2246822519u;
        x ^= x >> 13;
        out[i] = kva_from_f32<T>(static_cast<float>(x >> 8) * 0x1p-22f - 2.0f);
    }
}

template <typename T> static bool make_noise(struct kva_device *device, size_t count)
{
    return kva_cuda_run(device, KVA_QUEUE_COMPUTE, "noise",
                        {kva_blocks(count, 64 * THREADS), THREADS}, noise_kernel<T>,
                        static_cast<T *>(device->scratch), count);
}

struct piece {
    enum kva_queue queue;
    void *to;
    const void *from;
    size_t bytes;
    uint32_t n; /* of a matrix product; 0: a copy */
};

static void run_piece(struct kva_device *device, const struct piece *piece)
{
    if (piece->n == 0) {
        (void)kva_cuda_copy_async(device, piece->queue, piece->to, piece->from, piece->bytes,
                                  "a copy");
        return;
    }
    unsigned char *at = static_cast<unsigned char *>(device->scratch);
    size_t square =
        static_cast<size_t>(piece->n) * piece->n * kva_dtype_bytes(device->base.info.act);
    struct kva_linear_args args = {};
    args.weight = {at, device->base.info.act, 2 * piece->n, piece->n};
    args.x = at + 2 * square;
    args.out = at + 3 * square;
    args.rows = piece->n;
    args.x_stride = piece->n;
    args.out_stride = 2 * piece->n;
    kva_cuda_linear(device, &args);
}

static double run_seconds(struct kva_device *device, const struct piece *piece, uint32_t count)
{
    uint64_t start_ns = kva_time_ns();
    for (uint32_t i = 0; i < count && !kva_cuda_failed(device); i++)
        run_piece(device, piece);
    kva_cuda_check(device, cudaStreamSynchronize(device->streams[piece->queue]),
                   "work that ran earlier");
    return static_cast<double>(kva_time_ns() - start_ns) * 1e-9;
}

/* Seconds of one piece, the best of several runs. */
static double piece_seconds(struct kva_device *device, const struct piece *piece)
{
    uint32_t count = 1;
    double took = run_seconds(device, piece, count), best;
    while (took * 1e9 < RUN_NS && count < 1024 && !kva_cuda_failed(device)) {
        count *= 2;
        took = run_seconds(device, piece, count);
    }
    best = took;
    for (int run = 1; run < RUNS && !kva_cuda_failed(device); run++) {
        took = run_seconds(device, piece, count);
        best = took < best ? took : best;
    }
    return best > 0 ? best / count : 1;
}

/* The time of one product, warm: the first of a size loads what multiplies it. */
static double warm_seconds(struct kva_device *device, const struct piece *product)
{
    (void)run_seconds(device, product, 1);
    return run_seconds(device, product, 1);
}

static bool fits_scratch(struct kva_device *device, uint32_t n)
{
    return static_cast<size_t>(5) * n * n * kva_dtype_bytes(device->base.info.act) <=
           KVA_CUDA_SCRATCH_BYTES;
}

/* Products grow until one takes a good part of a run: a small one is all launching. */
static double product_flops_per_s(struct kva_device *device)
{
    struct piece product = {KVA_QUEUE_COMPUTE, nullptr, nullptr, 0, 64};
    while (product.n < MATRIX_MAX && fits_scratch(device, 2 * product.n) &&
           warm_seconds(device, &product) * 4e9 < RUN_NS)
        product.n *= 2;
    (void)KVA_BY_FORMAT(device->base.info.act, make_noise, device,
                        static_cast<size_t>(3) * product.n * product.n);
    return 4.0 * product.n * product.n * product.n / piece_seconds(device, &product);
}

/* The copy queue's rate from the host, and to it: the lower one. */
static enum kva_status measure_link(struct kva_device *device, double *ret, struct kva_err *err)
{
    void *host;
    enum kva_status status = kva_cuda_alloc_host(device, HOST_BYTES, &host, err);
    if (status)
        return status;
    const struct piece up = {KVA_QUEUE_COPY, device->scratch, host, HOST_BYTES, 0};
    const struct piece down = {KVA_QUEUE_COPY, host, device->scratch, HOST_BYTES, 0};
    double up_s = piece_seconds(device, &up), down_s = piece_seconds(device, &down);
    *ret = static_cast<double>(HOST_BYTES) / (up_s > down_s ? up_s : down_s);
    kva_cuda_free_host(host, HOST_BYTES);
    return KVA_OK;
}

enum kva_status kva_cuda_roofs(struct kva_device *device, struct kva_device_roofs *ret,
                               struct kva_err *err)
{
    enum kva_dtype act = device->base.info.act;
    struct kva_device_roofs roofs = {};
    kva_cuda_step_break(device);
    for (int queue = 0; queue < KVA_QUEUE_COUNT && kva_cuda_enter(device); queue++)
        kva_cuda_check(device, cudaStreamSynchronize(device->streams[queue]),
                       "work that ran earlier");
    enum kva_status status = measure_link(device, &roofs.copy_bytes_per_s, err);
    if (status)
        return status;
    /* A copy reads and writes as much; both count. */
    size_t half = KVA_CUDA_SCRATCH_BYTES / 2;
    unsigned char *scratch = static_cast<unsigned char *>(device->scratch);
    const struct piece copy = {KVA_QUEUE_COMPUTE, scratch + half, scratch, half, 0};
    roofs.read_bytes_per_s = 2.0 * static_cast<double>(half) / piece_seconds(device, &copy);
    double flops = product_flops_per_s(device);
    roofs.f32_flops_per_s = act == KVA_F32 ? flops : 0;
    roofs.bf16_flops_per_s = act == KVA_F32 ? 0 : flops;
    if (kva_cuda_failed(device))
        return kva_fail(err, KVA_EDEVICE, "%s", device->error.message);
    *ret = roofs;
    return KVA_OK;
}
