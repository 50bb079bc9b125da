/* levels.c - which levels this machine can run. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/prefetch.h"

#include <stdbool.h>
#include <stdio.h>

bool kva_prefetch_near;

#ifdef KVA_CPU_X86
#include "base/log.h"

#include <cpuid.h>
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* asm/prctl.h, of Linux 5.16 and later: leave to use a part of the processor's state. */
#define REQUEST_STATE 0x1023
#define TILE_DATA     18

/* The register state that the operating system saves, bit by bit (XCR0). */
static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has_bits(uint64_t value, uint64_t bits)
{
    return (value & bits) == bits;
}

/* Tiles of the shape that the kernels are made for, and their products. */
static bool has_amx(void)
{
    const uint32_t bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25;
    uint32_t a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has_bits(d, bf16 | tile | int8) ||
        !__get_cpuid_count(0x1D, 1, &a, &b, &c, &d))
        return false;
    uint32_t row_bytes = b & 0xFFFF, tiles = b >> 16, rows = c & 0xFFFF;
    return row_bytes == 64 && tiles >= 8 && rows == 16;
}

/* Whether the system saves tiles (XCR0: TILECFG, TILEDATA) and gives this process room for them,
 * which Linux does only when it is asked. Once given, every thread has it, and asking again is no
 * error. */
static bool may_use_tiles(uint64_t state)
{
    const char *why = "it does not save them";
    if (has_bits(state, 3u << 17)) {
        if (syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0)
            return true;
        why = strerror(errno);
    }
    kva_log(KVA_LOG_WARN,
            "this processor has AMX, but the system does not let this process use its tiles (%s): "
            "level avx512bf16 is the highest",
            why);
    return false;
}

static uint32_t detect(void)
{
    const uint32_t osxsave = 1u << 27, avx = 1u << 28, fma = 1u << 12, f16c = 1u << 29;
    const uint32_t avx2 = 1u << 5, bmi2 = 1u << 8;
    const uint32_t avx512 = 1u << 16 /* F */ | 1u << 17 /* DQ */ | 1u << 30 /* BW */ | 1u << 31;
    uint32_t levels = KVA_CPU_REF;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_bits(c, osxsave | avx | fma | f16c))
        return levels;
    uint64_t state = saved_state();
    if (!has_bits(state, 0x6) || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return levels;
    if (!has_bits(b, avx2 | bmi2))
        return levels;
    levels |= KVA_CPU_AVX2;
    if (!has_bits(state, 0xE6) || !has_bits(b, avx512))
        return levels;
    levels |= KVA_CPU_AVX512;
    if (has_bits(c, 1u << 11))
        levels |= KVA_CPU_AVX512VNNI;
    else
        return levels; /* every processor with the next has this */
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !has_bits(a, 1u << 5))
        return levels;
    levels |= KVA_CPU_AVX512BF16;
    if (has_amx() && may_use_tiles(state))
        levels |= KVA_CPU_AMX;
    return levels;
}

/* AMD's family 1Ah, and what came later. */
static bool is_zen5(void)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || c != signature_AMD_ecx ||
        d != signature_AMD_edx || !__get_cpuid(1, &a, &b, &c, &d))
        return false;
    const uint32_t base = a >> 8 & 15, extended = a >> 20 & 255;
    return base == 15 && base + extended >= 0x1A;
}

static void __attribute__((constructor)) choose_prefetch(void)
{
    kva_prefetch_near = is_zen5();
}

bool kva_cpu_has_gfni(void)
{
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && has_bits(c, 1u << 8);
}
#else
static uint32_t detect(void)
{
    return KVA_CPU_REF;
}
#endif

uint32_t kva_cpu_levels(void)
{
    return detect();
}

const char *kva_cpu_level_name(uint32_t level)
{
    switch (level) {
    case KVA_CPU_REF:
        return "ref";
    case KVA_CPU_AVX2:
        return "avx2";
    case KVA_CPU_AVX512:
        return "avx512";
    case KVA_CPU_AVX512VNNI:
        return "avx512vnni";
    case KVA_CPU_AVX512BF16:
        return "avx512bf16";
    case KVA_CPU_AMX:
        return "amx";
    default:
        return "unknown";
    }
}
