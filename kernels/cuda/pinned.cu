/* pinned.cu - pinned host memory: huge pages, on the GPU's NUMA node, made physical by several
 * threads; and copies, which respect the borders of what is pinned at once. */
#include "kernels/cuda/device_cuda.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Host memory is pinned in pieces that end at multiples of this address, each touched by several
 * threads first: the kernel would clear a large mapping page by page on one core. A copy whose host
 * memory lies in two of them is an error of the driver's, so none crosses such an address. Where
 * this runs without a GPU, they are small enough for that to matter to every test. */
#ifdef __CUDACC__
#define PIN_BYTES ((size_t)1 << 30)
#else
#define PIN_BYTES ((size_t)16 << 20)
#endif
#define TOUCH_THREADS_MAX 16u

/* MPOL_PREFERRED of mbind(2), whose header is not everywhere. */
#define PREFER_NODE 1
#define NODES_MAX   1024

/* --- NUMA ------------------------------------------------------------------------------------- */

int kva_cuda_numa_node(int index)
{
    char bus[32], path[96], line[16];
    int node = -1;
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, index) != cudaSuccess) {
        (void)cudaGetLastError();
        return -1;
    }
    for (char *at = bus; *at; at++)
        *at = static_cast<char>(tolower(static_cast<unsigned char>(*at)));
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *file = fopen(path, "r");
    if (file && fgets(line, sizeof line, file))
        node = static_cast<int>(strtol(line, nullptr, 10));
    if (file)
        fclose(file);
    return node;
}

/* A wish: where the node has no room, or the container forbids it, any memory does. */
static void prefer_node(void *data, size_t bytes, int node)
{
    unsigned long mask[NODES_MAX / (8 * sizeof(unsigned long))] = {};
    const int word_bits = 8 * sizeof(unsigned long);
    if (node < 0 || node >= NODES_MAX)
        return;
    mask[node / word_bits] = 1ul << node % word_bits;
    (void)syscall(SYS_mbind, data, bytes, PREFER_NODE, mask, NODES_MAX, 0);
}

/* --- pages ------------------------------------------------------------------------------------ */

struct touch {
    unsigned char *data;
    size_t bytes;
};

static void *touch_pages(void *opaque)
{
    const struct touch *touch = static_cast<const struct touch *>(opaque);
    for (size_t i = 0; i < touch->bytes; i += 4096)
        const_cast<volatile unsigned char *>(touch->data)[i] = 0;
    return nullptr;
}

/* Make the pages of a piece physical, by several threads. */
static void touch_piece(unsigned char *data, size_t bytes)
{
    pthread_t threads[TOUCH_THREADS_MAX];
    struct touch parts[TOUCH_THREADS_MAX];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    size_t count = kva_min_size(cores > 0 ? static_cast<size_t>(cores) : 1, TOUCH_THREADS_MAX);
    size_t share = kva_align_up(kva_div_up(bytes, count), (size_t)2 << 20), started = 0;
    for (size_t at = 0; at < bytes; at += share, started++) {
        parts[started] = {data + at, kva_min_size(share, bytes - at)};
        if (pthread_create(&threads[started], nullptr, touch_pages, &parts[started]) != 0) {
            parts[started].bytes = bytes - at;
            touch_pages(&parts[started]);
            break;
        }
    }
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], nullptr);
}

/* Huge pages where they are worth it. */
static size_t host_mapping_bytes(size_t bytes)
{
    size_t huge = (size_t)2 << 20;
    return kva_align_up(kva_max_size(bytes, 1), bytes < huge ? 4096 : huge);
}

/* From `data` to the next border. */
static size_t to_border(const void *data)
{
    return PIN_BYTES - reinterpret_cast<uintptr_t>(data) % PIN_BYTES;
}

static void unmap_host(void *data, size_t bytes, size_t pinned)
{
    unsigned char *base = static_cast<unsigned char *>(data);
    for (size_t at = 0; at < pinned; at += to_border(base + at))
        (void)cudaHostUnregister(base + at);
    munmap(data, host_mapping_bytes(bytes));
}

enum kva_status kva_cuda_alloc_host(struct kva_device *device, size_t bytes, void **ret,
                                    struct kva_err *err)
{
    if (!kva_cuda_enter(device))
        return kva_cuda_error(device, err);
    if (bytes > SIZE_MAX - ((size_t)2 << 20))
        return kva_fail(err, KVA_ENOMEM, "the host tier cannot give %zu bytes", bytes);
    size_t size = host_mapping_bytes(bytes);
    void *data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return kva_fail(err, KVA_ENOMEM, "the host tier cannot give %zu bytes", bytes);
    (void)madvise(data, size, MADV_HUGEPAGE);
    prefer_node(data, size, device->numa_node);
    unsigned char *base = static_cast<unsigned char *>(data);
    for (size_t at = 0, piece; at < size; at += piece) {
        piece = kva_min_size(to_border(base + at), size - at);
        touch_piece(base + at, piece);
        cudaError_t status =
            cudaHostRegister(base + at, piece, cudaHostRegisterPortable | cudaHostRegisterMapped);
        if (status != cudaSuccess) {
            (void)cudaGetLastError();
            unmap_host(data, bytes, at);
            return kva_fail(err, KVA_ENOMEM,
                            "the host tier cannot give %zu bytes: %zu could be pinned (%s)", bytes,
                            at, cudaGetErrorString(status));
        }
    }
    *ret = data;
    return KVA_OK;
}

cudaError_t kva_cuda_copy_pieces(cudaStream_t stream, void *to, const void *from, size_t bytes)
{
    unsigned char *out = static_cast<unsigned char *>(to);
    const unsigned char *in = static_cast<const unsigned char *>(from);
    cudaError_t status = cudaSuccess;
    for (size_t at = 0, piece; at < bytes && status == cudaSuccess; at += piece) {
        piece = kva_min_size(kva_min_size(to_border(out + at), to_border(in + at)), bytes - at);
        status = cudaMemcpyAsync(out + at, in + at, piece, cudaMemcpyDefault, stream);
    }
    return status;
}

bool kva_cuda_copy_async(struct kva_device *device, enum kva_queue queue, void *to,
                         const void *from, size_t bytes, const char *what)
{
    return kva_cuda_check(device, kva_cuda_copy_pieces(device->streams[queue], to, from, bytes),
                          what);
}

void kva_cuda_free_host(void *data, size_t bytes)
{
    if (data)
        unmap_host(data, bytes, host_mapping_bytes(bytes));
}
