/* page_codes.cuh - codes of the keys, or of the values, of a page with KVA_KEYS_PER_TOKEN in shared
 * memory, a byte each, between rows, which have all channels of one token, and a block's planes
 * (kernels/kv_layout.h), where tokens share bytes.
 *
 * A thread moves tiles of four tokens by four channels: in every plane a tile is 16 bits one behind
 * the other, which are no other thread's. */
#ifndef KVA_KERNELS_CUDA_PAGE_CODES_CUH
#define KVA_KERNELS_CUDA_PAGE_CODES_CUH

#include "kernels/cuda/number.cuh"
#include "kernels/kv_layout.h"

#define KVA_CODES_DIM_MAX  256u
#define KVA_CODES_BITS_MAX 8u
#define KVA_CODES_TILE     4u /* tokens, and channels */

/* Bit 4 i + j of 16 goes to 4 j + i: a key's nibbles have the channels of a token, a value's the
 * tokens of a channel. */
static __device__ __forceinline__ uint32_t kva_codes_transpose(uint32_t bits)
{
    uint32_t swap = (bits ^ bits >> 3) & 0x0A0Au;
    bits ^= swap ^ swap << 3;
    swap = (bits ^ bits >> 6) & 0x00CCu;
    return bits ^ swap ^ swap << 6;
}

/* Bit `plane` of the codes of four tokens, a word each, as nibbles: a product has bits 0, 8, 16 and
 * 24 side by side from 24 on. */
static __device__ __forceinline__ uint32_t kva_codes_plane(const uint32_t (&codes)[KVA_CODES_TILE],
                                                           uint32_t plane)
{
    uint32_t ret = 0;
#pragma unroll
    for (uint32_t t = 0; t < KVA_CODES_TILE; t++)
        ret |= ((codes[t] >> plane & 0x01010101u) * 0x01020408u >> 24) << 4 * t;
    return ret;
}

/* And back: bits 0 to 3 of a nibble come to 0, 8, 16 and 24. */
static __device__ __forceinline__ void kva_codes_add(uint32_t (&codes)[KVA_CODES_TILE],
                                                     uint32_t nibbles, uint32_t plane)
{
#pragma unroll
    for (uint32_t t = 0; t < KVA_CODES_TILE; t++)
        codes[t] |= ((nibbles >> 4 * t & 0xFu) * 0x00204081u & 0x01010101u) << plane;
}

/* Where a tile is. */
struct kva_codes_tile {
    uint32_t token;  /* the first */
    uint32_t column; /* of words */
};

static __device__ __forceinline__ uint32_t kva_codes_tiles(uint32_t dim)
{
    return KVA_PAGE_TOKENS / KVA_CODES_TILE * (dim / KVA_CODES_TILE);
}

/* Tile i as the planes have them: of keys those of four channels are next to each other, of values
 * those of four tokens. */
static __device__ __forceinline__ kva_codes_tile kva_codes_tile_at(uint32_t i, uint32_t dim,
                                                                   bool values)
{
    const uint32_t columns = dim / KVA_CODES_TILE, rows = KVA_PAGE_TOKENS / KVA_CODES_TILE;
    if (values)
        return {i / columns * KVA_CODES_TILE, i % columns};
    return {i % rows * KVA_CODES_TILE, i / rows};
}

static __device__ __forceinline__ uint16_t *kva_codes_at(unsigned char *plane, uint32_t tile)
{
    return reinterpret_cast<uint16_t *>(plane) + tile;
}

/* Bits of a tile's tokens that are wanted. */
static __device__ __forceinline__ uint32_t kva_codes_mask(uint32_t token, const uint32_t *wanted,
                                                          bool values)
{
    uint32_t mask = 0;
#pragma unroll
    for (uint32_t t = 0; t < KVA_CODES_TILE; t++)
        mask |= wanted[token + t] != UINT32_MAX ? 0xFu << 4 * t : 0;
    return values ? kva_codes_transpose(mask) : mask;
}

struct kva_page_codes {
    /* A word more than there are, so that rows begin in different banks. */
    uint32_t words[KVA_PAGE_TOKENS][KVA_CODES_DIM_MAX / KVA_CODES_TILE + 1];

    __device__ __forceinline__ unsigned char *of(uint32_t token)
    {
        return reinterpret_cast<unsigned char *>(words[token]);
    }

    /* Into the planes of all tokens whose `wanted` is not UINT32_MAX, by the whole block; bits of
     * others stay as they are. */
    __device__ __forceinline__ void put(unsigned char *planes, uint32_t plane_bytes, uint32_t bits,
                                        uint32_t dim, bool values, const uint32_t *wanted) const
    {
        for (uint32_t i = threadIdx.x; i < kva_codes_tiles(dim); i += blockDim.x) {
            const kva_codes_tile tile = kva_codes_tile_at(i, dim, values);
            const uint32_t mask = kva_codes_mask(tile.token, wanted, values);
            uint32_t codes[KVA_CODES_TILE], now[KVA_CODES_BITS_MAX];
            if (mask == 0)
                continue;
#pragma unroll
            for (uint32_t b = 0; b < KVA_CODES_BITS_MAX; b++)
                now[b] =
                    mask != 0xFFFFu && b < bits ? *kva_codes_at(planes + b * plane_bytes, i) : 0;
#pragma unroll
            for (uint32_t t = 0; t < KVA_CODES_TILE; t++)
                codes[t] =
                    wanted[tile.token + t] != UINT32_MAX ? words[tile.token + t][tile.column] : 0;
#pragma unroll
            for (uint32_t b = 0; b < KVA_CODES_BITS_MAX; b++) {
                if (b >= bits)
                    continue;
                const uint32_t set = kva_codes_plane(codes, b);
                *kva_codes_at(planes + b * plane_bytes, i) = static_cast<uint16_t>(
                    (now[b] & ~mask) | (values ? kva_codes_transpose(set) : set));
            }
        }
    }

    /* From the planes, of tiles that have a token whose `wanted` is not UINT32_MAX. */
    __device__ __forceinline__ void get(unsigned char *planes, uint32_t plane_bytes, uint32_t bits,
                                        uint32_t dim, bool values, const uint32_t *wanted)
    {
        for (uint32_t i = threadIdx.x; i < kva_codes_tiles(dim); i += blockDim.x) {
            const kva_codes_tile tile = kva_codes_tile_at(i, dim, values);
            uint32_t codes[KVA_CODES_TILE] = {}, now[KVA_CODES_BITS_MAX];
            if (kva_codes_mask(tile.token, wanted, values) == 0)
                continue;
#pragma unroll
            for (uint32_t b = 0; b < KVA_CODES_BITS_MAX; b++)
                now[b] = b < bits ? *kva_codes_at(planes + b * plane_bytes, i) : 0;
#pragma unroll
            for (uint32_t b = 0; b < KVA_CODES_BITS_MAX; b++)
                kva_codes_add(codes, values ? kva_codes_transpose(now[b]) : now[b], b);
#pragma unroll
            for (uint32_t t = 0; t < KVA_CODES_TILE; t++)
                words[tile.token + t][tile.column] = codes[t];
        }
    }
};

#endif
