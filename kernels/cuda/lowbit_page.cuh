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
 * four tokens' nibbles of four channels; of V four channels' nibbles of four tokens. Matrix loads
 * give lane 4 g + t of every 32 tokens (channels) numbers 4 g + n, n < 4, each with channels (tokens)
 * 8 t + r and 8 t + 4 + r of 32 in one register: rows g and g + 8 of a product are n = 0 and 1, of
 * the next one n = 2 and 3, and its columns r = 0 and 1, then 2 and 3.
 *
 * Scales are multiplied into the other operand, 16 bits, and zeros are a product of their own, so
 * that nothing is done for each number but one AND. */
#ifndef KVA_KERNELS_CUDA_LOWBIT_PAGE_CUH
#define KVA_KERNELS_CUDA_LOWBIT_PAGE_CUH

#include "kernels/cuda/attend_tile.cuh"
#include "kernels/cuda/codes.cuh"

/* Where byte `at` of a plane is in shared memory: with 16 bytes behind each 128, so that the rows of
 * a matrix load are in different banks. */
KVA_ON_DEVICE static constexpr uint32_t padded(uint32_t at)
{
    return at + at / 128 * 16;
}

/* Bits of keys and of values, as one parameter of kernels: those of values from VALUE_BITS on, or 0
 * there, which is as many as of keys; NO_VALUES: values are not looked at. */
#define VALUE_BITS 16
#define NO_VALUES  (VALUE_BITS * VALUE_BITS)
KVA_ON_DEVICE static constexpr int k_bits(int bits)
{
    return bits % VALUE_BITS;
}

KVA_ON_DEVICE static constexpr int v_bits(int bits)
{
    return bits < VALUE_BITS ? bits : bits / VALUE_BITS % VALUE_BITS;
}

/* How a page lies in shared memory, for heads of D channels or somewhat less: planes of codes, then
 * scales and zeros. GROUP is that of levels; 0: keys and values have one scale and zero a token. */
template <int D, int BITS, int GROUP> struct page_place {
    static constexpr uint32_t plane_bytes = TILE * D / 8; /* in memory */
    static constexpr uint32_t plane = padded(plane_bytes);
    static constexpr uint32_t v_codes = k_bits(BITS) * plane;
    static constexpr uint32_t levels = v_codes + v_bits(BITS) * plane;
    static constexpr uint32_t k_groups = GROUP > 0 ? TILE / GROUP : 1;
    static constexpr uint32_t v_groups = GROUP > 0 ? D / GROUP : 1;
    static constexpr int v_pieces = GROUP > 0 ? GROUP / 32 : D / 32; /* of 32 channels, a group */
    /* From `levels` on: rows of K's scales and of its zeros, then V's. */
    static constexpr uint32_t k_row = GROUP > 0 ? D * 2 : TILE * 2, v_row = TILE * 2;
    static constexpr uint32_t k_zero = k_groups * k_row;
    static constexpr uint32_t v_scale = 2 * k_zero;
    static constexpr uint32_t v_zero = v_scale + v_groups * v_row;
    static constexpr uint32_t level_bytes = v_zero + v_groups * v_row;
    static constexpr uint32_t bytes = levels + level_bytes;
};

/* What a page is like in memory. */
struct page_shape {
    uint32_t dim;
    uint32_t v_scale, v_zero, k_codes, v_codes, plane_bytes, head_bytes; /* as kva_lowbit_layout */
    uint32_t k_row;                                                      /* of K's levels */
};

static inline page_shape page_shape_of(struct kva_lowbit_format format, uint32_t dim)
{
    const struct kva_lowbit_layout layout = kva_lowbit_layout_of(format, dim);
    page_shape page = {};
    page.dim = dim;
    page.v_scale = layout.v_scale;
    page.v_zero = layout.v_zero;
    page.k_codes = layout.k_codes;
    page.v_codes = layout.v_codes;
    page.plane_bytes = layout.plane_bytes;
    page.head_bytes = layout.head_bytes;
    page.k_row = layout.k_zero / layout.k_groups;
    return page;
}

/* --- copies ----------------------------------------------------------------------------------- */

/* K's scales, zeros and codes of heads that are no D wide: rows of levels begin at multiples of 8
 * bytes, and are `row` bytes apart from `levels` on. */
template <int D>
static __device__ void copy_narrow_keys(unsigned char *to, unsigned char *levels, uint32_t row,
                                        const unsigned char *from, const page_shape &p,
                                        uint32_t bits, uint32_t lane)
{
    for (uint32_t i = lane * 8; i < p.v_scale; i += KVA_WARP * 8)
        *reinterpret_cast<uint2 *>(levels + i / p.k_row * row + i % p.k_row) =
            *reinterpret_cast<const uint2 *>(from + i);
    for (uint32_t b = 0; b < bits; b++) {
        for (uint32_t i = lane * 16; i < p.plane_bytes; i += KVA_WARP * 16)
            kva_copy_async(to + b * padded(TILE * D / 8) + padded(i),
                           from + p.k_codes + b * p.plane_bytes + i, true);
    }
}

/* Codes of V for heads that are no D wide, whose rows do not begin at multiples of 16 bytes. */
template <int D>
static __device__ void copy_values(unsigned char *to, const unsigned char *from,
                                   const page_shape &p, uint32_t lane)
{
    const uint32_t row = p.dim / 4;
    for (uint32_t i = lane; i < TILE / 4 * row; i += KVA_WARP)
        *reinterpret_cast<uint16_t *>(to + padded(i / row * (D / 2) + i % row * 2)) =
            *reinterpret_cast<const uint16_t *>(from + i * 2);
}

/* A page's part of a KV head whose heads are no D wide. */
template <int D, int BITS, int GROUP>
static __device__ void copy_narrow_page(unsigned char *to, const unsigned char *from,
                                        const page_shape &p, uint32_t lane)
{
    using place = page_place<D, BITS, GROUP>;
    copy_narrow_keys<D>(to, to + place::levels, place::k_row, from, p, k_bits(BITS), lane);
    for (uint32_t i = lane * 16; i < p.v_zero - p.v_scale; i += KVA_WARP * 16) {
        kva_copy_async(to + place::levels + place::v_scale + i, from + p.v_scale + i, true);
        kva_copy_async(to + place::levels + place::v_zero + i, from + p.v_zero + i, true);
    }
    for (uint32_t b = 0; b < v_bits(BITS); b++)
        copy_values<D>(to + place::v_codes + b * place::plane, from + p.v_codes + b * p.plane_bytes,
                       p, lane);
}

/* Ask for a page's part of a KV head: pieces that lie between are as many in each turn. */
template <int D, int BITS, int GROUP>
static __device__ __forceinline__ void copy_page(unsigned char *to, const unsigned char *from,
                                                 const page_shape &p, uint32_t lane)
{
    using place = page_place<D, BITS, GROUP>;
    if (p.dim != D) {
        copy_narrow_page<D, BITS, GROUP>(to, from, p, lane);
        return;
    }
    constexpr uint32_t turn = KVA_WARP * 16,
                       codes = (k_bits(BITS) + v_bits(BITS)) * place::plane_bytes;
    const uint32_t own = lane * 16;
    from += own;
#pragma unroll
    for (uint32_t i = 0; i < place::level_bytes; i += turn) {
        if (place::level_bytes - i >= turn || own < place::level_bytes - i)
            kva_copy_async(to + place::levels + i + own, from + i, true);
    }
    to += padded(own);
#pragma unroll
    for (uint32_t i = 0; i < codes; i += turn)
        kva_copy_async(to + padded(i), from + place::level_bytes + i, true);
}

/* Where K's levels are in a page without values, whose heads have D channels, each with levels. */
KVA_ON_DEVICE static constexpr uint32_t key_levels_at(uint32_t bits, uint32_t dim)
{
    return bits * padded(TILE * dim / 8);
}

/* Ask for a page's keys of a KV head alone, to a place without values (NO_VALUES). */
template <int D>
static __device__ __forceinline__ void copy_keys(unsigned char *to, const unsigned char *from,
                                                 const page_shape &p, uint32_t bits, uint32_t lane)
{
    static_assert(page_place<D, 1 + NO_VALUES, 64>::levels == key_levels_at(1, D), "no values");
    unsigned char *levels = to + key_levels_at(bits, D);
    if (p.dim != D) {
        copy_narrow_keys<D>(to, levels, D * 2, from, p, bits, lane);
        return;
    }
    for (uint32_t i = lane * 16; i < p.v_scale; i += KVA_WARP * 16)
        kva_copy_async(levels + i, from + i, true);
    for (uint32_t i = lane * 16; i < bits * p.plane_bytes; i += KVA_WARP * 16)
        kva_copy_async(to + padded(i), from + p.k_codes + i, true);
}

/* --- products --------------------------------------------------------------------------------- */

template <typename T> static __device__ __forceinline__ T shared_load(const unsigned char *from)
{
    return *reinterpret_cast<const T *>(from);
}

/* The numbers of nibbles 2 X and 2 X + 1, of which columns are bits R and R + 1 (mma.cuh has the
 * order). */
template <int BITS, int X, int R>
static __device__ __forceinline__ void code_rows(uint32_t (&a)[4], const code_set<BITS> &codes)
{
    a[0] = kva_code_numbers<BITS, R, 2 * X>(codes);
    a[1] = kva_code_numbers<BITS, R, 2 * X + 1>(codes);
    a[2] = kva_code_numbers<BITS, R + 1, 2 * X>(codes);
    a[3] = kva_code_numbers<BITS, R + 1, 2 * X + 1>(codes);
}

template <int NT>
static __device__ __forceinline__ void multiply_rows(float (&sums)[NT][4], const uint32_t (&a)[4],
                                                     const uint32_t (&b0)[NT],
                                                     const uint32_t (&b1)[NT])
{
#pragma unroll
    for (int j = 0; j < NT; j++)
        kva_mma<kva_f16>(sums[j], a, b0[j], b1[j]);
}

/* sums[x] += the rows of nibbles 2 x and 2 x + 1 times b[bit]. */
template <int BITS, int NT>
static __device__ __forceinline__ void
multiply_codes(float (&sums)[2][NT][4], const code_set<BITS> &codes, const uint32_t (&b)[4][NT])
{
    uint32_t a[4];
    code_rows<BITS, 0, 0>(a, codes);
    multiply_rows<NT>(sums[0], a, b[0], b[1]);
    code_rows<BITS, 1, 0>(a, codes);
    multiply_rows<NT>(sums[1], a, b[0], b[1]);
    code_rows<BITS, 0, 2>(a, codes);
    multiply_rows<NT>(sums[0], a, b[2], b[3]);
    code_rows<BITS, 1, 2>(a, codes);
    multiply_rows<NT>(sums[1], a, b[2], b[3]);
}

/* Of eight halves in a row those that stand in a register beside the ones four further on. */
static __device__ __forceinline__ void pair_halves(uint32_t (&to)[4], uint4 from)
{
    to[0] = __byte_perm(from.x, from.z, 0x5410);
    to[1] = __byte_perm(from.x, from.z, 0x7632);
    to[2] = __byte_perm(from.y, from.w, 0x5410);
    to[3] = __byte_perm(from.y, from.w, 0x7632);
}

/* b[bit][pairs] = queries times the scales of eight channels in a row, paired. */
template <int BITS, int NT>
static __device__ __forceinline__ void scale_queries(uint32_t (&b)[4][NT], const uint4 (&q)[NT],
                                                     uint4 scale)
{
    scale.x = kva_without_steps<BITS, 0, 1>(scale.x);
    scale.y = kva_without_steps<BITS, 2, 3>(scale.y);
    scale.z = kva_without_steps<BITS, 0, 1>(scale.z);
    scale.w = kva_without_steps<BITS, 2, 3>(scale.w);
#pragma unroll
    for (int j = 0; j < NT; j++) {
        uint32_t paired[4];
        pair_halves(paired, make_uint4(kva_multiply_halves(q[j].x, scale.x),
                                       kva_multiply_halves(q[j].y, scale.y),
                                       kva_multiply_halves(q[j].z, scale.z),
                                       kva_multiply_halves(q[j].w, scale.w)));
#pragma unroll
        for (int r = 0; r < 4; r++)
            b[r][j] = paired[r];
    }
}

/* Where multiply_keys wants a channel of a query: in a row; paired if there is nothing to multiply
 * by. And what it wants it divided by, as a power of two. */
template <int GROUP> static __device__ __forceinline__ uint32_t query_place(uint32_t channel)
{
    return GROUP > 0 ? channel : channel / 8 * 8 + channel % 4 * 2 + channel / 4 % 2;
}

template <int BITS, int GROUP>
static __device__ __forceinline__ uint32_t query_step(uint32_t channel)
{
    return GROUP > 0 ? 0 : kva_code_step<k_bits(BITS)>(static_cast<int>(channel % 4));
}

/* zeros[x][pairs][..] += queries times zeros: with one group of tokens, what is wanted is in row g
 * of x = 0 and row g + 8 of x = 1, so that what was loaded is an operand as it is; with two, their
 * rows are g and g + 8. */
template <int GROUP, int NT>
static __device__ __forceinline__ void multiply_key_zeros(float (&zeros)[2][NT][4],
                                                          const uint4 (&q)[NT],
                                                          const unsigned char *levels, uint32_t row)
{
    const uint4 low = shared_load<uint4>(levels);
    if (GROUP == 64) {
        const uint32_t a[4] = {low.x, low.y, low.z, low.w};
#pragma unroll
        for (int j = 0; j < NT; j++) {
            kva_mma<kva_f16>(zeros[0][j], a, q[j].x, q[j].z);
            kva_mma<kva_f16>(zeros[1][j], a, q[j].y, q[j].w);
        }
        return;
    }
    const uint4 high = shared_load<uint4>(levels + row);
    const uint32_t first[4] = {low.x, high.x, low.y, high.y};
    const uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
    for (int j = 0; j < NT; j++) {
        kva_mma<kva_f16>(zeros[0][j], first, q[j].x, q[j].y);
        kva_mma<kva_f16>(zeros[1][j], second, q[j].z, q[j].w);
    }
}

/* Of these, that of a pair and a half of the page. */
template <int GROUP, int NT>
static __device__ __forceinline__ float key_zero(const float (&zeros)[2][NT][4], int j, int i,
                                                 int part)
{
    return GROUP == 64 ? zeros[0][j][i] + zeros[1][j][2 + i]
                       : zeros[0][j][2 * part + i] + zeros[1][j][2 * part + i];
}

/* The codes that a matrix load per plane gave as number `which`. */
template <int BITS>
static __device__ __forceinline__ code_set<BITS> codes_at(const uint32_t (&planes)[BITS][4],
                                                          int which)
{
    uint32_t own[BITS];
#pragma unroll
    for (int i = 0; i < BITS; i++)
        own[i] = planes[i][which];
    return kva_codes_of<BITS>(own);
}

/* s[half of the page][n / 2][pairs][n % 2 * 2 + pair] of token half * 32 + 4 g + n: the products of
 * codes, divided by kva_code_factor(n). zeros: multiply_key_zeros (nothing if keys have levels per
 * token). `queries`: the lane's of pair g of each 8, channels 8 t .. 8 t + 7 (query_place); a pair's
 * are `stride` apart. */
template <int D, int BITS, int GROUP, int NT>
static __device__ __forceinline__ void
multiply_keys(float (&s)[2][2][NT][4], float (&zeros)[2][NT][4], const kva_f16 *queries,
              uint32_t stride, const unsigned char *page, uint32_t lane)
{
    using place = page_place<D, BITS, GROUP>;
    /* Lane 8 i + j: quad j of channels; i: of 32 further on, and of which half of the page. */
    const unsigned char *rows = page + padded(lane / 16 * 256 + lane % 8 * 32) + lane / 8 % 2 * 16;
    const unsigned char *levels = page + place::levels + lane % 4 * 16;
    constexpr int bits = k_bits(BITS);
    uint32_t planes[bits][4];
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        uint4 q[NT];
        uint32_t b[4][NT];
#pragma unroll
        for (int j = 0; j < NT; j++) {
            q[j] = *reinterpret_cast<const uint4 *>(queries + 8 * j * stride + c * 32);
            b[0][j] = q[j].x;
            b[1][j] = q[j].y;
            b[2][j] = q[j].z;
            b[3][j] = q[j].w;
        }
        if (GROUP > 0)
            multiply_key_zeros<GROUP, NT>(zeros, q, levels + place::k_zero + c * 64, place::k_row);
        if (c % 2 == 0) {
#pragma unroll
            for (int i = 0; i < bits; i++)
                kva_load_transposed(planes[i], rows + i * place::plane + c * padded(256));
        }
#pragma unroll
        for (int part = 0; part < 2; part++) {
            if (GROUP > 0 && (part == 0 || GROUP == 32))
                scale_queries<bits, NT>(b, q,
                                        shared_load<uint4>(levels + part * place::k_row + c * 64));
            multiply_codes<bits, NT>(s[part], codes_at<bits>(planes, c % 2 * 2 + part), b);
        }
    }
}

/* zeros[pairs][pair] of channel group g: += of probabilities and zeros. Rows behind the last group
 * repeat. */
template <int D, int BITS, int GROUP, int NT>
static __device__ __forceinline__ void multiply_zeros(float (&zeros)[NT][4],
                                                      const uint32_t (&weights)[2][4][NT],
                                                      const unsigned char *page, uint32_t lane)
{
    using place = page_place<D, BITS, GROUP>;
    const unsigned char *from = page + place::levels + place::v_zero +
                                lane / 4 % place::v_groups * place::v_row + lane % 4 * 16;
#pragma unroll
    for (int part = 0; part < 2; part++) {
        uint32_t level[4];
        pair_halves(level, shared_load<uint4>(from + part * TILE));
#pragma unroll
        for (int r = 0; r < 4; r += 2) {
            const uint32_t a[4] = {level[r], 0, level[r + 1], 0};
            multiply_rows<NT>(zeros, a, weights[part][r], weights[part][r + 1]);
        }
    }
}

/* b[half of the page][bit][pairs] = probabilities times the scales of their tokens. */
template <int BITS, int NT>
static __device__ __forceinline__ void scale_weights(uint32_t (&b)[2][4][NT],
                                                     const uint32_t (&weights)[2][4][NT],
                                                     const unsigned char *scales)
{
#pragma unroll
    for (int part = 0; part < 2; part++) {
        uint32_t scale[4];
        pair_halves(scale, shared_load<uint4>(scales + part * TILE));
        scale[0] = kva_without_steps<BITS, 0, 0>(scale[0]);
        scale[1] = kva_without_steps<BITS, 1, 1>(scale[1]);
        scale[2] = kva_without_steps<BITS, 2, 2>(scale[2]);
        scale[3] = kva_without_steps<BITS, 3, 3>(scale[3]);
#pragma unroll
        for (int r = 0; r < 4; r++) {
#pragma unroll
            for (int j = 0; j < NT; j++)
                b[part][r][j] = kva_multiply_halves(weights[part][r][j], scale[r]);
        }
    }
}

/* weights[half of the page][n][pairs]: of pair g of each 8, tokens half * 32 + 8 t + n and + 4.
 * sums[channels / 32][n / 2][pairs][n % 2 * 2 + pair] of channel 32 i + 4 g + n: += the products of
 * codes, divided by kva_code_factor(n). */
template <int D, int BITS, int GROUP, int NT>
static __device__ __forceinline__ void multiply_values(float (&sums)[D / 32][2][NT][4],
                                                       const uint32_t (&weights)[2][4][NT],
                                                       const unsigned char *page, uint32_t lane)
{
    using place = page_place<D, BITS, GROUP>;
    /* Lane 8 i + j: quad j of tokens; i: of which half of the page; of channels 32 further on. */
    const unsigned char *rows =
        page + place::v_codes + padded((lane / 8 % 2 * 8 + lane % 8) * (D / 2)) + lane / 16 * 16;
    const unsigned char *scales = page + place::levels + place::v_scale + lane % 4 * 16;
    constexpr int bits = v_bits(BITS);
    uint32_t planes[bits][4], b[2][4][NT]; /* b of the channels' group */
#pragma unroll
    for (int c = 0; c < D / 32; c++) {
        if (c % 2 == 0) {
#pragma unroll
            for (int i = 0; i < bits; i++)
                kva_load_transposed(planes[i], rows + i * place::plane + c * 16);
        }
        if (c % place::v_pieces == 0)
            scale_weights<bits, NT>(b, weights, scales + c / place::v_pieces * place::v_row);
#pragma unroll
        for (int part = 0; part < 2; part++)
            multiply_codes<bits, NT>(sums[c], codes_at<bits>(planes, c % 2 * 2 + part), b[part]);
    }
}

#endif
