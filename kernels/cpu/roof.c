/* What this machine's memory and arithmetic give at most, measured: the figures that kernels and
 * steps are put beside. Every one is the best of many short runs, as neighbours only take away.
 * With one thread, time is that thread's processor time, so that others on a busy machine count
 * only by the bandwidth and the cache that they use; with several it is the clock's. */
#include "base/clock.h"
#include "kernels/cpu/device_cpu.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define RUNS 48u

/* Bytes of one measurement of memory: short, or a busy machine has no quiet one. Parts are taken in
 * turn, so that none is still in a cache. */
#define READ_BYTES (24u << 20)
#define READ_PARTS 8u

#define FMA_CHAINS 12
#define FMA_ROUNDS 200000u
#define FMA_LANES  16

struct roof {
    const unsigned char *data;
    size_t bytes;
    uint64_t sink;
};

/* Reads every line of its part once, four streams at a time. */
static void *read_memory(void *opaque)
{
    struct roof *roof = opaque;
    const uint64_t *data = (const uint64_t *)(const void *)roof->data;
    size_t words = roof->bytes / 8, quarter = words / 4;
    uint64_t sums[8] = {0};
    for (size_t i = 0; i + 8 <= quarter; i += 8) {
        for (size_t stream = 0; stream < 4; stream++) {
            __builtin_prefetch(data + stream * quarter + i + 128);
            for (size_t j = 0; j < 8; j++)
                sums[j] += data[stream * quarter + i + j];
        }
    }
    for (size_t j = 0; j < 8; j++)
        roof->sink += sums[j];
    return NULL;
}

/* The most products per second that plain vector code gets: no memory, no dependence. */
typedef float lanes __attribute__((vector_size(64)));
typedef float half_lanes __attribute__((vector_size(32)));

/* Chains that differ, or the compiler would compute one. */
#define FMA_LOOP(type, width, rounds)                                                              \
    type sums[FMA_CHAINS], x, y;                                                                   \
    for (int i = 0; i < (width); i++) {                                                            \
        x[i] = 0.999f + (float)(roof->sink & 1) * 1e-6f;                                           \
        y[i] = 0.5f;                                                                               \
    }                                                                                              \
    for (int j = 0; j < FMA_CHAINS; j++)                                                           \
        sums[j] = x * (float)j;                                                                    \
    for (uint32_t i = 0; i < (rounds); i++) {                                                      \
        for (int j = 0; j < FMA_CHAINS; j++)                                                       \
            sums[j] = sums[j] * x + y;                                                             \
    }                                                                                              \
    for (int j = 0; j < FMA_CHAINS; j++)                                                           \
        roof->sink += sums[j][0] > 1.0f;

/* A product and a sum become one instruction: gcc's default in C11 is not to, clang's is to. */
#ifdef __clang__
#define FUSED
#else
#define FUSED __attribute__((optimize("fp-contract=fast")))
#endif

#ifdef __x86_64__
FUSED __attribute__((target("avx512f,avx512vl"))) static void *multiply_avx512(void *opaque)
{
    struct roof *roof = opaque;
    FMA_LOOP(lanes, FMA_LANES, FMA_ROUNDS)
    return NULL;
}

FUSED __attribute__((target("avx2,fma"))) static void *multiply_avx2(void *opaque)
{
    struct roof *roof = opaque;
    FMA_LOOP(half_lanes, FMA_LANES / 2, 2 * FMA_ROUNDS)
    return NULL;
}

/* Two bf16 products and their sum to a lane of fp32. */
__attribute__((target("avx512f,avx512bf16"))) static void *multiply_bf16(void *opaque)
{
    struct roof *roof = opaque;
    __m512 sums[FMA_CHAINS];
    __m512 x = _mm512_set1_ps(0.999f + (float)(roof->sink & 1) * 1e-6f);
    __m512bh pairs = _mm512_cvtne2ps_pbh(x, x);
    for (int j = 0; j < FMA_CHAINS; j++)
        sums[j] = _mm512_set1_ps((float)j);
    for (uint32_t i = 0; i < FMA_ROUNDS; i++) {
        for (int j = 0; j < FMA_CHAINS; j++)
            sums[j] = _mm512_dpbf16_ps(sums[j], pairs, pairs);
    }
    for (int j = 0; j < FMA_CHAINS; j++)
        roof->sink += _mm512_cvtss_f32(sums[j]) > 1.0f;
    return NULL;
}
#endif

static void *multiply_plain(void *opaque)
{
    struct roof *roof = opaque;
    FMA_LOOP(lanes, FMA_LANES, FMA_ROUNDS)
    return NULL;
}

static uint64_t now_ns(uint32_t threads)
{
    struct timespec time;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * KVA_NS_PER_S + (uint64_t)time.tv_nsec;
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
        for (uint32_t t = 0; t < threads; t++)
            roofs[t] = (struct roof){
                .data = data + (size_t)(i % READ_PARTS) * READ_BYTES + t * part, .bytes = part};
        uint64_t start = now_ns(threads);
        while (started < threads && pthread_create(&ids[started], NULL, run, &roofs[started]) == 0)
            started++;
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
    double flops = 2.0 * FMA_LANES * FMA_CHAINS * FMA_ROUNDS * threads;
    struct kva_device_roofs roofs = {0};
#ifdef __x86_64__
    uint32_t levels = device->base.info.cpu_levels;
    if (levels & KVA_CPU_AVX2)
        multiply = multiply_avx2;
    if (levels & KVA_CPU_AVX512)
        multiply = multiply_avx512;
    if ((levels & KVA_CPU_AVX512) && __builtin_cpu_supports("avx512bf16"))
        roofs.bf16_flops_per_s = 2 * flops / roof_seconds(threads, multiply_bf16, memory);
#endif
    roofs.f32_flops_per_s = flops / roof_seconds(threads, multiply, memory);
    roofs.read_bytes_per_s = READ_BYTES / roof_seconds(threads, read_memory, memory);
    roofs.copy_bytes_per_s = copy_bytes_per_s(device, memory);
    kva_device_free(device, KVA_MEM_HOST, memory, bytes);
    *ret = roofs;
    return KVA_OK;
}
