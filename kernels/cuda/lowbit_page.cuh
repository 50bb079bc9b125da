/* lowbit_page.cuh - a low-bit page and up to 8 NT (row, query head) pairs, by one warp: the page's
 * copy in shared memory, and the two matrix products with its codes (codes.cuh).
 *
 * Tokens and channels are the rows of the products, pairs their columns (m16n8k16, mma.cuh; lane =
 * 4 g + t), so that few pairs leave no half of a product empty:
 *
 *   scores  [token][pair]    = codes of K [token][channel] * (query * scale) [channel][pair]
 *   values  [channel][pair]  = codes of V [channel][token] * (probability * scale) [token][pair]
 *
 * Which token or channel is which row is chosen by where codes lie. A half word of a plane of K has
 * four tokens' nibbles of four channels; of V four channels' nibbles of four tokens. Lane 4 g + t
 * takes of every 32 tokens (channels) number 4 g + n, n < 4: rows g and g + 8 of a product are n = 0
 * and 1, of the next one n = 2 and 3.
 *
 * Scales are multiplied into the other operand, 16 bits, and zeros are a product of their own, so
 * that nothing is done for each number but one AND. */
#ifndef KVA_KERNELS_CUDA_LOWBIT_PAGE_CUH
#define KVA_KERNELS_CUDA_LOWBIT_PAGE_CUH

#include "kernels/cuda/attend_tile.cuh"
#include "kernels/cuda/codes.cuh"

/* How a page's pieces lie in shared memory: codes as for heads of D channels, with 16 bytes between
 * each two quads of V's tokens, which lanes read at once, so that these are in different banks; then
 * scales and zeros as in memory. */
template <int D, int BITS> struct page_place {
    static constexpr uint32_t k_plane = TILE * D / 8;
    static constexpr uint32_t v_pair = D + 16; /* two quads of tokens */
    static constexpr uint32_t v_plane = TILE / 8 * v_pair;
    static constexpr uint32_t v_codes = BITS * k_plane;
    static constexpr uint32_t levels = v_codes + BITS * v_plane;
};

/* What a page is like, wherever it lies. */
struct page_shape {
    uint32_t dim;
    uint32_t k_codes, v_codes, head_bytes; /* as kva_lowbit_layout, in memory */
    uint32_t plane_bytes;
    uint32_t k_zero, v_scale, v_zero; /* from `levels` on */
    uint32_t k_group_bytes;           /* to the second group of tokens; 0: there is one */
    uint32_t v_groups, v_group_shift; /* channel / 32 >> shift is its group */
};

/* --- copies ----------------------------------------------------------------------------------- */

template <uint32_t BYTES>
static __device__ __forceinline__ void copy_part(unsigned char *to, const unsigned char *from,
                                                 uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < BYTES; i += KVA_WARP * 16) {
        if (BYTES - i >= KVA_WARP * 16 || lane * 16 < BYTES - i)
            kva_copy_async(to + i + lane * 16, from + i + lane * 16, true);
    }
}

/* Codes of V for heads that are no D wide, whose rows do not begin at multiples of 16 bytes. */
template <int D, int BITS>
static __device__ void copy_values(unsigned char *to, const unsigned char *from,
                                   const page_shape &p, uint32_t lane)
{
    const uint32_t row = p.dim / 4, count = BITS * TILE / 4 * row;
    for (uint32_t i = lane; i < count; i += KVA_WARP) {
        const uint32_t quad = i / row,
                       at = quad / 2 * page_place<D, BITS>::v_pair + quad % 2 * (D / 2);
        *reinterpret_cast<uint16_t *>(to + at + i % row * 2) =
            *reinterpret_cast<const uint16_t *>(from + i * 2);
    }
}

/* Ask for a page's part of a KV head. */
template <int D, int BITS>
static __device__ __forceinline__ void copy_page(unsigned char *to, const unsigned char *from,
                                                 const page_shape &p, uint32_t lane)
{
    using place = page_place<D, BITS>;
    for (uint32_t i = lane * 16; i < p.k_codes; i += KVA_WARP * 16)
        kva_copy_async(to + place::levels + i, from + i, true);
    if (p.dim == D) {
        copy_part<BITS * place::k_plane>(to, from + p.k_codes, lane);
        const uint32_t own = lane * 16; /* the pieces that lie between are as many in each turn */
        unsigned char *values = to + place::v_codes + own + own / D * 16;
#pragma unroll
        for (uint32_t i = 0; i < BITS * place::k_plane; i += KVA_WARP * 16)
            kva_copy_async(values + i + i / D * 16, from + p.v_codes + own + i, true);
        return;
    }
    for (uint32_t b = 0; b < BITS; b++) {
        for (uint32_t i = lane * 16; i < p.plane_bytes; i += KVA_WARP * 16)
            kva_copy_async(to + b * place::k_plane + i, from + p.k_codes + b * p.plane_bytes + i,
                           true);
    }
    copy_values<D, BITS>(to + place::v_codes, from + p.v_codes, p, lane);
}

/* --- products --------------------------------------------------------------------------------- */

template <typename T> static __device__ __forceinline__ T shared_load(const unsigned char *from)
{
    return *reinterpret_cast<const T *>(from);
}

/* Two rows' numbers of a product of which columns are R and R + 1, R + 2 and R + 3 of what nibbles
 * have (mma.cuh has the order). */
template <int BITS, int X>
static __device__ __forceinline__ void code_rows(uint32_t (&a)[4], const code_set<BITS> &first,
                                                 const code_set<BITS> &second)
{
    a[0] = kva_code_numbers<BITS, 2 * X>(first);
    a[1] = kva_code_numbers<BITS, 2 * X + 1>(first);
    a[2] = kva_code_numbers<BITS, 2 * X>(second);
    a[3] = kva_code_numbers<BITS, 2 * X + 1>(second);
}

/* sums[x] += the rows of nibbles 2 x and 2 x + 1 times b. */
template <int BITS, int NT>
static __device__ __forceinline__ void
multiply_codes(float (&sums)[2][NT][4], const code_set<BITS> &first, const code_set<BITS> &second,
               const uint32_t (&b)[NT][2])
{
    uint32_t a[4];
    code_rows<BITS, 0>(a, first, second);
#pragma unroll
    for (int j = 0; j < NT; j++)
        kva_mma<kva_f16>(sums[0][j], a, b[j][0], b[j][1]);
    code_rows<BITS, 1>(a, first, second);
#pragma unroll
    for (int j = 0; j < NT; j++)
        kva_mma<kva_f16>(sums[1][j], a, b[j][0], b[j][1]);
}

template <int NT>
static __device__ __forceinline__ void scale_pairs(uint32_t (&to)[NT][2],
                                                   const uint32_t (&from)[NT][2], uint2 scale)
{
#pragma unroll
    for (int j = 0; j < NT; j++) {
        to[j][0] = kva_multiply_halves(from[j][0], scale.x);
        to[j][1] = kva_multiply_halves(from[j][1], scale.y);
    }
}

/* s[half of the page][n / 2][pairs][n % 2 * 2 + pair] of token half * 32 + 4 g + n: the products of
 * codes, times 2^-kva_code_place(n). zeros[pairs][half * 2 + pair]: of queries and zeros (nothing
 * if keys have levels per token). q[channels / 16]: channels 4 t .. 4 t + 3 of pair g of each 8. */
template <int D, int BITS, bool KEYED, int NT>
static __device__ __forceinline__ void
multiply_keys(float (&s)[2][2][NT][4], float (&zeros)[NT][4], const uint32_t (&q)[D / 16][NT][2],
              const unsigned char *page, const page_shape &p, uint32_t lane)
{
    using place = page_place<D, BITS>;
    const uint32_t half = lane / 4 % 2 ? 0x7632u : 0x5410u;
    const unsigned char *codes = page + lane % 4 * 32 + lane / 8 * 4;
    const unsigned char *levels = page + place::levels + lane % 4 * 8;
#pragma unroll
    for (int c = 0; c < D / 16; c++) {
        uint32_t b[NT][2];
#pragma unroll
        for (int j = 0; j < NT; j++) {
            b[j][0] = q[c][j][0];
            b[j][1] = q[c][j][1];
        }
        if (!KEYED) {
            const uint2 low = shared_load<uint2>(levels + p.k_zero + c * 32);
            const uint2 high = shared_load<uint2>(levels + p.k_zero + p.k_group_bytes + c * 32);
            const uint32_t a[4] = {low.x, high.x, low.y, high.y};
#pragma unroll
            for (int j = 0; j < NT; j++)
                kva_mma<kva_f16>(zeros[j], a, q[c][j][0], q[c][j][1]);
            scale_pairs<NT>(b, q[c], shared_load<uint2>(levels + c * 32));
        }
#pragma unroll
        for (int part = 0; part < 2; part++) {
            if (!KEYED && part > 0 && p.k_group_bytes > 0)
                scale_pairs<NT>(b, q[c], shared_load<uint2>(levels + p.k_group_bytes + c * 32));
            uint32_t planes[BITS];
#pragma unroll
            for (int i = 0; i < BITS; i++) {
                const uint32_t word =
                    shared_load<uint32_t>(codes + i * place::k_plane + c * 128 + part * 16);
                planes[i] = __byte_perm(word, word >> 1, half);
            }
            multiply_codes<BITS, NT>(s[part], kva_codes_of<BITS, 0>(planes),
                                     kva_codes_of<BITS, 2>(planes), b);
        }
    }
}

/* Of eight halves of consecutive tokens those that stand in a register beside the ones four further
 * on. */
static __device__ __forceinline__ void pair_tokens(uint32_t (&to)[4], uint4 from)
{
    to[0] = __byte_perm(from.x, from.z, 0x5410);
    to[1] = __byte_perm(from.x, from.z, 0x7632);
    to[2] = __byte_perm(from.y, from.w, 0x5410);
    to[3] = __byte_perm(from.y, from.w, 0x7632);
}

/* zeros[pairs][pair] of channel group g: += of probabilities and zeros. */
template <int BITS, int NT, int D>
static __device__ __forceinline__ void
multiply_zeros(float (&zeros)[NT][4], const uint32_t (&weights)[2][2][NT][2],
               const unsigned char *page, const page_shape &p, uint32_t lane)
{
    const unsigned char *from =
        page + page_place<D, BITS>::levels + p.v_zero + lane / 4 * TILE * 2 + lane % 4 * 16;
#pragma unroll
    for (int part = 0; part < 2; part++) {
        uint32_t level[4] = {};
        if (lane / 4 < p.v_groups)
            pair_tokens(level, shared_load<uint4>(from + part * TILE));
#pragma unroll
        for (int y = 0; y < 2; y++) {
            const uint32_t a[4] = {level[2 * y], 0, level[2 * y + 1], 0};
#pragma unroll
            for (int j = 0; j < NT; j++)
                kva_mma<kva_f16>(zeros[j], a, weights[part][y][j][0], weights[part][y][j][1]);
        }
    }
}

/* weights[half of the page][n / 2][pairs][n % 2]: of pair g of each 8, tokens half * 32 + 8 t + n and
 * + 4. sums[channels / 32][n / 2][pairs][n % 2 * 2 + pair] of channel 32 i + 4 g + n: += the
 * products of codes, times 2^-kva_code_place(n). */
template <int D, int BITS, bool KEYED, int NT>
static __device__ __forceinline__ void
multiply_values(float (&sums)[D / 32][2][NT][4], const uint32_t (&weights)[2][2][NT][2],
                const unsigned char *page, const page_shape &p, uint32_t lane)
{
    using place = page_place<D, BITS>;
    const uint32_t half = lane / 4 % 2 ? 0x7632u : 0x5410u;
    const unsigned char *codes = page + place::v_codes + lane % 4 * place::v_pair + lane / 8 * 4;
    const unsigned char *scales = page + place::levels + p.v_scale + lane % 4 * 16;
    uint32_t b[2][2][NT][2]; /* of the channels' group */
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        if (c == 0 || (!KEYED && (c % 2 == 0 || p.v_group_shift == 0))) {
#pragma unroll
            for (int part = 0; part < 2; part++) {
                uint32_t scale[4];
                pair_tokens(scale, shared_load<uint4>(scales + (c >> p.v_group_shift) * TILE * 2 +
                                                      part * TILE));
#pragma unroll
                for (int y = 0; y < 2; y++)
                    scale_pairs<NT>(b[part][y], weights[part][y],
                                    make_uint2(scale[2 * y], scale[2 * y + 1]));
            }
        }
#pragma unroll
        for (int part = 0; part < 2; part++) {
            uint32_t planes[BITS];
#pragma unroll
            for (int i = 0; i < BITS; i++) {
                const unsigned char *from =
                    codes + i * place::v_plane + part * 4 * place::v_pair + c * 16;
                planes[i] = __byte_perm(shared_load<uint32_t>(from),
                                        shared_load<uint32_t>(from + D / 2), half);
            }
            multiply_codes<BITS, NT>(sums[c], kva_codes_of<BITS, 0>(planes),
                                     kva_codes_of<BITS, 1>(planes), b[part][0]);
            multiply_codes<BITS, NT>(sums[c], kva_codes_of<BITS, 2>(planes),
                                     kva_codes_of<BITS, 3>(planes), b[part][1]);
        }
    }
}

#endif
