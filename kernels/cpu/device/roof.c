/* roof.c - what this machine's memory and arithmetic give at most, measured: the figures that
 * kernels and steps are put beside. Every one is the best of many short runs, as neighbours only
 * take away. With one thread, time is that thread's processor time, so that others on a busy
 * machine count only by the bandwidth and the cache that they use; with several it is the clock's.
 */
#include "base/clock.h"
#include "kernels/cpu/device/device_cpu.h"
#include "kernels/cpu/simd/amx.h"
#include "kernels/cpu/simd/prefetch.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define RUNS 48u

/* Bytes of one measurement of memory: short, or a busy machine has no quiet one. Parts are taken in
 * turn, so that none is still in a cache. */
#define READ_BYTES (24u << 20)
#define READ_PARTS 8u

#define FMA_SUMS   16
#define FMA_ROUNDS 200000u
#define FMA_LANES  16

struct roof {
    const unsigned char *data;
    size_t bytes;
    uint64_t sink;
    void *(*run)(void *);
    _Atomic bool *go;
};

/* Reads every line of its part once, as one stream: what memory gives most for. */
static void *read_memory(void *opaque)
{
    struct roof *roof = opaque;
    const uint64_t *data = (const uint64_t *)(const void *)roof->data;
    uint64_t sum = 0;
    for (size_t i = 0; i + 8 <= roof->bytes / 8; i += 8) {
        kva_prefetch_ahead(data + i + 1024);
        sum += data[i];
    }
    roof->sink += sum;
    return NULL;
}

/* The most products per second: independent sums in registers, no memory. In assembly, because a
 * compiler that keeps the sums in memory measures something else. Factors of 0: no sum is ever a
 * slow number. */
#ifdef __x86_64__
#define EACH_SUM(x)                                                                                \
    x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11) x(12) x(13) x(14) x(15)
#define ZERO_YMM     "vpxor %%ymm15, %%ymm15, %%ymm15\n\t"
#define ZERO_ZMM     "vpxorq %%zmm30, %%zmm30, %%zmm30\n\tvpxorq %%zmm31, %%zmm31, %%zmm31\n\t"
#define FMA_YMM(i)   "vfmadd231ps %%ymm15, %%ymm15, %%ymm" #i "\n\t"
#define FMA_ZMM(i)   "vfmadd231ps %%zmm31, %%zmm30, %%zmm" #i "\n\t"
#define DOT_ZMM(i)   "vdpbf16ps %%zmm31, %%zmm30, %%zmm" #i "\n\t"
#define BYTES_ZMM(i) "vpdpbusd %%zmm31, %%zmm30, %%zmm" #i "\n\t"
#define CLOBBERS                                                                                   \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

#define PRODUCTS(name, zero, sums, rounds)                                                         \
    static void *name(void *opaque)                                                                \
    {                                                                                              \
        for (uint32_t i = 0; i < (rounds); i++)                                                    \
            __asm__ volatile(zero EACH_SUM(sums)::: CLOBBERS);                                     \
        return opaque;                                                                             \
    }

PRODUCTS(multiply_avx2, ZERO_YMM, FMA_YMM, 2 * FMA_ROUNDS)
PRODUCTS(multiply_avx512, ZERO_ZMM, FMA_ZMM, FMA_ROUNDS)
PRODUCTS(multiply_bf16, ZERO_ZMM, DOT_ZMM, FMA_ROUNDS)
PRODUCTS(multiply_int8, ZERO_ZMM, BYTES_ZMM, FMA_ROUNDS)

/* The same by tiles of full size; a product waits for its sum three times as long as it takes. */
#define TILE_SUMS   6
#define TILE_ROUNDS 25000u
#define TILE_FLOPS  (2.0 * 16 * 16 * 32) /* of bf16; bytes: twice as many */

#define TILE_PRODUCTS(name, product)                                                               \
    static void *name(void *opaque)                                                                \
    {                                                                                              \
        struct kva_tile_config config = {.palette = 1};                                            \
        for (uint32_t i = 0; i < KVA_TILES; i++) {                                                 \
            config.rows[i] = KVA_TILE_ROWS;                                                        \
            config.row_bytes[i] = KVA_TILE_BYTES;                                                  \
        }                                                                                          \
        kva_tiles_configure(&config); /* and all are 0 */                                          \
        for (uint32_t i = 0; i < TILE_ROUNDS; i++) {                                               \
            product(0, 6, 7);                                                                      \
            product(1, 6, 7);                                                                      \
            product(2, 6, 7);                                                                      \
            product(3, 6, 7);                                                                      \
            product(4, 6, 7);                                                                      \
            product(5, 6, 7);                                                                      \
        }                                                                                          \
        kva_tiles_release();                                                                       \
        return opaque;                                                                             \
    }

TILE_PRODUCTS(multiply_bf16_tiles, KVA_TILE_DOT_BF16)
TILE_PRODUCTS(multiply_int8_tiles, KVA_TILE_DOT_SU)
#endif

/* What a compiler makes of plain code for the least processor. */
static void *multiply_plain(void *opaque)
{
    struct roof *roof = opaque;
    float sums[FMA_SUMS] = {0};
    for (uint32_t i = 0; i < FMA_ROUNDS; i++) {
        for (int lane = 0; lane < FMA_LANES; lane++) {
            for (int j = 0; j < FMA_SUMS; j++)
                sums[j] = sums[j] * 0.5f + 0.25f;
        }
    }
    roof->sink += sums[0] > 1.0f;
    return NULL;
}

static uint64_t now_ns(uint32_t threads)
{
    struct timespec time;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * KVA_NS_PER_S + (uint64_t)time.tv_nsec;
}

/* Waits for the others, so that starting a thread is not measured. */
static void *run_together(void *opaque)
{
    struct roof *roof = opaque;
    while (!atomic_load_explicit(roof->go, memory_order_acquire))
        ;
    return roof->run(roof);
}

/* Seconds that `threads` threads take to run `run` once each, on parts of `data`; INFINITY: the
 * system refuses threads. */
static double roof_seconds(uint32_t threads, void *(*run)(void *), const unsigned char *data)
{
    double best = INFINITY;
    for (uint32_t i = 0; i < RUNS; i++) {
        pthread_t ids[KVA_POOL_THREADS_MAX];
        struct roof roofs[KVA_POOL_THREADS_MAX];
        size_t part = READ_BYTES / threads / 64 * 64;
        uint32_t started = 1;
        _Atomic bool go = false;
        for (uint32_t t = 0; t < threads; t++)
            roofs[t] =
                (struct roof){.data = data + (size_t)(i % READ_PARTS) * READ_BYTES + t * part,
                              .bytes = part,
                              .run = run,
                              .go = &go};
        while (started < threads &&
               pthread_create(&ids[started], NULL, run_together, &roofs[started]) == 0)
            started++;
        uint64_t start = now_ns(threads);
        atomic_store_explicit(&go, true, memory_order_release);
        run(&roofs[0]);
        for (uint32_t t = 1; t < started; t++)
            pthread_join(ids[t], NULL);
        if (started == threads)
            best = fmin(best, (double)(now_ns(threads) - start) * 1e-9);
    }
    return best;
}

/* Bytes per second of the copy queue, between the same pieces of memory that are read above. */
static double copy_bytes_per_s(struct kva_device *device, unsigned char *data)
{
    double best = INFINITY;
    for (uint32_t i = 0; i < RUNS; i++) {
        unsigned char *from = data + (size_t)(i % READ_PARTS) * READ_BYTES;
        unsigned char *to = data + (size_t)((i + READ_PARTS / 2) % READ_PARTS) * READ_BYTES;
        uint64_t start = kva_time_ns();
        kva_device_copy(device, KVA_QUEUE_COPY, to, from, READ_BYTES);
        kva_device_sync(device, KVA_QUEUE_COPY);
        best = fmin(best, (double)(kva_time_ns() - start) * 1e-9);
    }
    return READ_BYTES / best;
}

enum kva_status kva_cpu_roofs(struct kva_device *device, struct kva_device_roofs *ret,
                              struct kva_err *err)
{
    uint32_t threads = device->base.info.threads;
    size_t bytes = (size_t)READ_PARTS * READ_BYTES;
    void *memory;
    enum kva_status status = kva_device_alloc(device, KVA_MEM_HOST, bytes, &memory, err);
    if (status)
        return status;
    /* Ordinary numbers in every format; and memory that is there. */
    for (size_t i = 0; i < bytes / 2; i++)
        ((uint16_t *)memory)[i] = (uint16_t)(0x3C00 + i % 251);
    void *(*multiply)(void *) = multiply_plain;
    double flops = 2.0 * FMA_LANES * FMA_SUMS * FMA_ROUNDS * threads;
    struct kva_device_roofs roofs = {0};
#ifdef __x86_64__
    uint32_t levels = device->base.info.cpu_levels;
    if (levels & KVA_CPU_AVX2)
        multiply = multiply_avx2;
    if (levels & (KVA_CPU_AVX512 | KVA_CPU_AVX512BF16))
        multiply = multiply_avx512;
    if (levels & KVA_CPU_AMX) {
        const double tiles = TILE_FLOPS * TILE_SUMS * TILE_ROUNDS * threads;
        roofs.bf16_flops_per_s = tiles / roof_seconds(threads, multiply_bf16_tiles, memory);
        roofs.int8_ops_per_s = 2 * tiles / roof_seconds(threads, multiply_int8_tiles, memory);
    } else {
        if (levels & KVA_CPU_AVX512BF16)
            roofs.bf16_flops_per_s = 2 * flops / roof_seconds(threads, multiply_bf16, memory);
        if (levels & KVA_CPU_AVX512VNNI)
            roofs.int8_ops_per_s = 4 * flops / roof_seconds(threads, multiply_int8, memory);
    }
#endif
    roofs.f32_flops_per_s = flops / roof_seconds(threads, multiply, memory);
    roofs.read_bytes_per_s = READ_BYTES / roof_seconds(threads, read_memory, memory);
    roofs.copy_bytes_per_s = copy_bytes_per_s(device, memory);
    kva_device_free(device, KVA_MEM_HOST, memory, bytes);
    *ret = roofs;
    return KVA_OK;
}
