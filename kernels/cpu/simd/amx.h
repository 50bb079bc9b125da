/* amx.h - the tile instructions of level amx (AMX-TILE, AMX-BF16, AMX-INT8).
 *
 * Eight tiles of up to 16 rows by 64 bytes, whose shapes a configuration sets: which tile is for
 * what is the business of the kernel that configures them. Tiles belong to the thread. A kernel
 * configures them when it begins and releases them when it ends, so that a thread at rest has no
 * tile state: 8 KiB more would be saved and restored at every switch, and the core would not go to
 * its deeper states of sleep.
 *
 * The instructions are written as assembly, since gcc 12's intrinsics do not say that a load of a
 * tile reads memory, so that stores into a staging buffer may be moved behind it. A tile is a
 * literal number.
 *
 * An element of a product of bf16 tiles has a defined order of additions, as Intel documents it
 * (TDPBF16PS, "Operation"): c + (even + odd), where `even` is a chain of fused multiply-adds from 0
 * over the even inputs of the two tiles' rows and columns, ascending, and `odd` the same over the
 * odd ones; all rounded to nearest even, numbers below the normal ones taken as 0 and made 0. It
 * depends neither on how many rows nor on how many columns the tiles have.
 *
 * Thread rule: see above; no other state. */
#ifndef KVA_KERNELS_CPU_SIMD_AMX_H
#define KVA_KERNELS_CPU_SIMD_AMX_H

#include "base/kva.h"

#include <stdint.h>

#define KVA_TILES      8u
#define KVA_TILE_ROWS  16u
#define KVA_TILE_BYTES 64u /* of a row */

/* The memory operand of ldtilecfg: palette 1. A tile that is not used has neither rows nor bytes.
 */
struct kva_tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Sets the shapes of all tiles and fills them with 0. */
static inline void kva_tiles_configure(const struct kva_tile_config *config)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(*config));
}

static inline void kva_tiles_release(void)
{
    __asm__ volatile("tilerelease" ::: "memory");
}

#define KVA_TILE_ZERO(tile)  KVA_TILE_ZERO_(tile)
#define KVA_TILE_ZERO_(tile) __asm__ volatile("tilezero %%tmm" #tile ::)

/* Row i of the tile is at `base` + i * `stride` bytes. */
#define KVA_TILE_LOAD(tile, base, stride) KVA_TILE_LOAD_(tile, base, stride)
#define KVA_TILE_LOAD_(tile, base, stride)                                                         \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"((const void *)(base)),               \
                     "r"((ptrdiff_t)(stride))                                                      \
                     : "memory")

/* The same for what is not read again soon. */
#define KVA_TILE_LOAD_ONCE(tile, base, stride) KVA_TILE_LOAD_ONCE_(tile, base, stride)
#define KVA_TILE_LOAD_ONCE_(tile, base, stride)                                                    \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile ::"r"((const void *)(base)),             \
                     "r"((ptrdiff_t)(stride))                                                      \
                     : "memory")

#define KVA_TILE_STORE(tile, base, stride) KVA_TILE_STORE_(tile, base, stride)
#define KVA_TILE_STORE_(tile, base, stride)                                                        \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"((void *)(base)),                 \
                     "r"((ptrdiff_t)(stride))                                                      \
                     : "memory")

/* c [m, n] fp32 += a [m, k] bf16 times b, whose row j holds the inputs 2 j and 2 j + 1 of column 0,
 * then of column 1 and so on. The three differ. */
#define KVA_TILE_DOT_BF16(c, a, b) KVA_TILE_DOT_(tdpbf16ps, c, a, b)

/* c [m, n] int32 += a [m, k] bytes times b, whose row j holds the inputs 4 j .. 4 j + 3 of column
 * 0, then of column 1 and so on; the letters say which factor is signed, a's first. */
#define KVA_TILE_DOT_SS(c, a, b)        KVA_TILE_DOT_(tdpbssd, c, a, b)
#define KVA_TILE_DOT_SU(c, a, b)        KVA_TILE_DOT_(tdpbsud, c, a, b)
#define KVA_TILE_DOT_US(c, a, b)        KVA_TILE_DOT_(tdpbusd, c, a, b)
#define KVA_TILE_DOT_UU(c, a, b)        KVA_TILE_DOT_(tdpbuud, c, a, b)

#define KVA_TILE_DOT_(product, c, a, b) KVA_TILE_DOT__(product, c, a, b)
#define KVA_TILE_DOT__(product, c, a, b)                                                           \
    __asm__ volatile(#product " %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#endif
