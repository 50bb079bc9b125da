/* keep_rows.cuh - rows of kept tokens that move between blocks, for store_rows and roll_rows: by a
 * warp whose lanes hold them, or which moves them as they are. */
#ifndef KVA_KERNELS_CUDA_KEEP_ROWS_CUH
#define KVA_KERNELS_CUDA_KEEP_ROWS_CUH

#include "kernels/cuda/page_codes.cuh"
#include "kernels/cuda/token_row.cuh"
#include "kernels/cuda/vector.cuh"

#define THREADS    128u
#define WARPS      (THREADS / KVA_WARP)
#define DIM_MAX    KVA_CODES_DIM_MAX
#define ROW_OWN    (DIM_MAX / KVA_WARP) /* numbers of a row that a lane has */
#define BLOCK_ROWS 16u                  /* of 16 bits */

/* Of a block that has a page of few bits: its rows are few, and wait for memory. */
#define PAGE_THREADS 256u
#define PAGE_WARPS   (PAGE_THREADS / KVA_WARP)

struct rotary {
    const float *inv_freq; /* NULL: none */
    uint32_t half;
};

/* A store's blocks, and what is in them. */
struct place {
    size_t offset;
    uint32_t dim, bits; /* bits 0: 16-bit blocks */
    bool turned;
    struct kva_lowbit_layout layout;
};

/* --- a row ------------------------------------------------------------------------------------ */

static __device__ inline unsigned char *head_of(const void *block, const place &p, uint32_t kv_head)
{
    return static_cast<unsigned char *>(const_cast<void *>(block)) + p.offset +
           kv_head * p.layout.head_bytes;
}

static __device__ inline unsigned char *planes_of(unsigned char *head, const place &p, bool values)
{
    return head + (values ? p.layout.v_codes : p.layout.k_codes);
}

/* x = the first `count` numbers of a row; others stay as they are. */
template <typename T, int N>
static __device__ __forceinline__ void load_row(float (&x)[N], const T *from, uint32_t count)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
#pragma unroll
    for (uint32_t j = 0; j < N; j++)
        x[j] = lane + KVA_WARP * j < count ? kva_to_f32(from[lane + KVA_WARP * j]) : x[j];
}

/* x = what is coded of a row: without the mean, if there is one, within f16, turned if that is
 * what its format does. */
template <int N>
static __device__ __forceinline__ void take_row(float (&x)[N], const float *mean, uint32_t dim,
                                                bool turned)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        const uint32_t i = lane + KVA_WARP * j;
        x[j] = clamped(mean && i < dim ? __fsub_rn(x[j], mean[i]) : x[j]);
    }
    if (turned)
        kva_turn_warp(x, dim, lane, false);
#pragma unroll
    for (uint32_t j = 0; j < N; j++)
        x[j] = clamped(x[j]);
}

/* Numbers one behind the other: two of 16 bits are a word. */
template <typename T>
static __device__ __forceinline__ void get_numbers(float (&x)[1], const T *from)
{
    x[0] = kva_to_f32(*from);
}

template <typename T>
static __device__ __forceinline__ void get_numbers(float (&x)[2], const T *from)
{
    const uint32_t two = *reinterpret_cast<const uint32_t *>(from);
    x[0] = kva_to_f32(T{static_cast<uint16_t>(two)});
    x[1] = kva_to_f32(T{static_cast<uint16_t>(two >> 16)});
}

static __device__ __forceinline__ void put_numbers(float *to, const float (&x)[1])
{
    *to = x[0];
}

template <typename KV>
static __device__ __forceinline__ void put_numbers(KV *to, const float (&x)[1])
{
    *to = kva_saturate<KV>(x[0]);
}

template <typename KV>
static __device__ __forceinline__ void put_numbers(KV *to, const float (&x)[2])
{
    *reinterpret_cast<uint32_t *>(to) = kva_pack<KV>(kva_clamp<KV>(x[0]), kva_clamp<KV>(x[1]));
}

/* The numbers of a row that rotate, by a position or back: by a warp, two at a time where both rows
 * are WHOLE. */
template <bool WHOLE, typename TO, typename FROM>
static __device__ void rotate_row(TO *to, const FROM *from, const rotary &r, uint32_t position,
                                  bool back)
{
    constexpr uint32_t own = WHOLE ? 2 : 1;
    for (uint32_t i = threadIdx.x % KVA_WARP * own; i < r.half; i += KVA_WARP * own) {
        float low[own], high[own];
        get_numbers(low, from + i);
        get_numbers(high, from + r.half + i);
#pragma unroll
        for (uint32_t k = 0; k < own; k++) {
            const double turns = position * static_cast<double>(r.inv_freq[i + k]) *
                                 0.15915494309189533577; /* 1 / 2 pi */
            float c, s;
            const float a = low[k], b = high[k];
            sincospif(2.0f * static_cast<float>(turns - rint(turns)), &s, &c);
            s = back ? -s : s;
            low[k] = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
            high[k] = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
        }
        put_numbers(to + i, low);
        put_numbers(to + r.half + i, high);
    }
}

/* Numbers as they are, by a warp. */
template <bool WHOLE, typename KV>
static __device__ void copy_row(KV *to, const KV *from, uint32_t count)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
    if constexpr (WHOLE) {
        for (uint32_t i = lane; i < count / KVA_VECTOR; i += KVA_WARP)
            reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
    } else {
        for (uint32_t i = lane; i < count; i += KVA_WARP)
            to[i] = from[i];
    }
}

/* --- tables of blocks ------------------------------------------------------------------------- */

/* Rows that go from blocks to blocks: store_rows' tokens to slots, roll_rows' slots to slots. */
struct move_seq {
    const void *const *from;
    void *const *to;
    const uint32_t *slots; /* store: where a token goes; roll: positions */
    uint32_t *index;       /* roll */
    uint32_t count;
    uint32_t stride; /* of slots, index and places */
    uint32_t position_first;
    kva_roll_place *places; /* roll */
    const float *mean;      /* of keys, or NULL */
};

struct move_params {
    const move_seq *seqs;
    place from, to;
    rotary turn;
};

static inline uint32_t pages_of(uint32_t tokens)
{
    return kva_blocks(tokens, KVA_PAGE_TOKENS);
}

static inline place place_of(size_t offset, uint32_t dim, struct kva_lowbit_format format)
{
    place p = {offset, dim, format.bits, format.coding == KVA_CODING_TURNED, {}};
    if (format.bits > 0)
        p.layout = kva_lowbit_layout_of(format, dim);
    return p;
}

static inline rotary rotary_of(const struct kva_keep_rotary *from)
{
    return {nullptr, from->inv_freq ? from->rotary_dim / 2 : 0};
}

/* What was staged, and the frequencies. */
static inline void send_params(struct kva_device *device, move_params *p, const move_seq *seqs,
                               size_t bytes, const struct kva_keep_rotary *rotary)
{
    p->seqs = static_cast<const move_seq *>(kva_cuda_send(device, seqs, bytes));
    if (p->turn.half > 0)
        p->turn.inv_freq = kva_cuda_upload_array(device, rotary->inv_freq, p->turn.half);
}

/* Host arrays of addresses become arrays on the device, from and to of a sequence one behind the
 * other. */
static inline void put_blocks(const void **blocks, const void *const *from, uint32_t from_pages,
                              void *const *to, uint32_t to_pages)
{
    for (uint32_t i = 0; i < from_pages; i++)
        *blocks++ = from[i];
    for (uint32_t i = 0; i < to_pages; i++)
        *blocks++ = to[i];
}

/* Whether rows of 16 bits, and what of them rotates, are whole numbers of vectors in all blocks. */
static inline bool rows_whole(const move_params &p, const void *const *blocks, size_t count)
{
    bool whole = p.from.dim % KVA_VECTOR == 0 && 2 * p.turn.half % KVA_VECTOR == 0 &&
                 p.from.offset % sizeof(uint4) == 0 && p.to.offset % sizeof(uint4) == 0;
    for (size_t i = 0; i < count && whole; i++)
        whole = kva_vector_at(blocks[i]);
    return whole;
}

#endif
