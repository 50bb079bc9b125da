/* store_rows.cu - store_rows: rows of kept tokens into their slots, with the bits of the CPU where
 * nothing is rotated (kernels/cpu/keep/token_row.h): no product is fused with a sum.
 *
 * Rows of 16 bits are anybody's. Slots of a page in few bits share bytes, so they are one block's,
 * whose warps leave codes in shared memory (page_codes.cuh). */
#include "kernels/cuda/keep_rows.cuh"

#define SLOTS_OWN 8u /* slots that a thread looks at at once */

/* --- 16 bits ---------------------------------------------------------------------------------- */

/* A token of 16 bits by a warp. */
template <typename KV, bool WHOLE>
static __global__ void __launch_bounds__(THREADS) store_kernel(move_params p)
{
    kva_begin();
    const move_seq seq = p.seqs[blockIdx.z];
    const uint32_t kv_head = blockIdx.y, dim = p.to.dim, first = blockIdx.x * BLOCK_ROWS;
    const uint32_t *slots = seq.slots + static_cast<size_t>(kv_head) * seq.stride;
    const uint32_t end = min(seq.count, first + BLOCK_ROWS), turned = 2 * p.turn.half;
    for (uint32_t i = first + threadIdx.x / KVA_WARP; i < end; i += WARPS) {
        const uint32_t slot = slots[i];
        if (slot == KVA_NO_SLOT)
            continue;
        const KV *from = row_16<KV>(seq.from[i / KVA_PAGE_TOKENS], p.from.offset, kv_head, i, dim);
        KV *to = row_16<KV>(seq.to[slot / KVA_PAGE_TOKENS], p.to.offset, kv_head, slot, dim);
        rotate_row<WHOLE>(to, from, p.turn, seq.position_first + i, true);
        copy_row<WHOLE>(to + turned, from + turned, 2 * dim - turned);
    }
}

/* --- few bits --------------------------------------------------------------------------------- */

/* tokens[slot] = who comes to a slot of the page, or KVA_NO_SLOT; false: nobody comes. */
static __device__ bool find_tokens(const move_seq &seq, uint32_t kv_head, uint32_t page,
                                   uint32_t *tokens)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
    const uint32_t *slots = seq.slots + static_cast<size_t>(kv_head) * seq.stride;
    for (uint32_t i = threadIdx.x; i < KVA_PAGE_TOKENS; i += PAGE_THREADS)
        tokens[i] = KVA_NO_SLOT;
    __syncthreads(); /* nobody has come */
    for (uint32_t i = threadIdx.x; i < seq.count; i += PAGE_THREADS * SLOTS_OWN) {
        uint32_t own[SLOTS_OWN];
#pragma unroll
        for (uint32_t j = 0; j < SLOTS_OWN; j++)
            own[j] = i + PAGE_THREADS * j < seq.count ? slots[i + PAGE_THREADS * j] : KVA_NO_SLOT;
#pragma unroll
        for (uint32_t j = 0; j < SLOTS_OWN; j++) {
            if (own[j] / KVA_PAGE_TOKENS == page) /* KVA_NO_SLOT is of none */
                tokens[own[j] % KVA_PAGE_TOKENS] = i + PAGE_THREADS * j;
        }
    }
    __syncthreads(); /* all have come */
    bool some = false;
    for (uint32_t i = lane; i < KVA_PAGE_TOKENS; i += KVA_WARP)
        some |= tokens[i] != KVA_NO_SLOT;
    return __any_sync(KVA_ALL, some);
}

/* x = a 16-bit key or value, a key rotated back by its position; `room`: DIM_MAX numbers of the
 * warp's. */
template <typename KV, int N>
static __device__ void load_token(float (&x)[N], const KV *from, const rotary &r, uint32_t position,
                                  uint32_t dim, float *room)
{
    load_row(x, from, dim);
    if (r.half == 0)
        return;
    __syncwarp(); /* the row before has been read */
    rotate_row<false>(room, from, r, position, true);
    __syncwarp(); /* what rotates is there */
    load_row(x, room, 2 * r.half);
}

/* Levels of a row go to where they are in the block, codes to `codes`. */
template <int N>
static __device__ void code_row(const float (&x)[N], const place &p, unsigned char *head,
                                bool values, uint32_t slot, unsigned char *codes)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
    float zero, scale;
    find_levels(x, p.dim, lane, p.bits, p.turned, &zero, &scale);
    if (lane == 0) {
        uint32_t at = values ? p.layout.v_scale : p.layout.k_scale;
        reinterpret_cast<kva_f16 *>(head + at)[slot] = kva_from_f32<kva_f16>(scale);
        at = values ? p.layout.v_zero : p.layout.k_zero;
        reinterpret_cast<kva_f16 *>(head + at)[slot] = kva_from_f32<kva_f16>(zero);
    }
#pragma unroll
    for (uint32_t j = 0; j < N; j++) {
        if (lane + KVA_WARP * j < p.dim)
            codes[lane + KVA_WARP * j] =
                static_cast<unsigned char>(code_of(x[j], p.bits, zero, scale));
    }
}

/* The keys, or the values, of the tokens that come to a page of few bits by a block, a token a
 * warp. */
template <typename KV, int N>
static __global__ void __launch_bounds__(PAGE_THREADS) code_kernel(move_params p)
{
    kva_begin();
    __shared__ uint32_t tokens[KVA_PAGE_TOKENS];
    __shared__ kva_page_codes codes;
    __shared__ float rooms[PAGE_WARPS][DIM_MAX];
    const move_seq seq = p.seqs[blockIdx.z];
    const uint32_t kv_head = blockIdx.y / 2, page = blockIdx.x, dim = p.to.dim;
    const uint32_t warp = threadIdx.x / KVA_WARP;
    const bool values = blockIdx.y % 2;
    const float *mean =
        seq.mean && !values ? seq.mean + static_cast<size_t>(kv_head) * dim : nullptr;
    const rotary turn = {p.turn.inv_freq, values ? 0 : p.turn.half};
    if (!find_tokens(seq, kv_head, page, tokens))
        return;
    unsigned char *head = head_of(seq.to[page], p.to, kv_head);
    for (uint32_t slot = warp; slot < KVA_PAGE_TOKENS; slot += PAGE_WARPS) {
        const uint32_t i = tokens[slot];
        if (i == KVA_NO_SLOT)
            continue;
        const KV *row = row_16<KV>(seq.from[i / KVA_PAGE_TOKENS], p.from.offset, kv_head, i, dim);
        float x[N] = {};
        load_token(x, values ? row + dim : row, turn, seq.position_first + i, dim, rooms[warp]);
        take_row(x, mean, dim, p.to.turned);
        code_row(x, p.to, head, values, slot, codes.of(slot));
    }
    __syncthreads(); /* all codes are there */
    codes.put(planes_of(head, p.to, values), p.to.layout.plane_bytes, p.to.bits, dim, values,
              tokens);
}

/* --- both ------------------------------------------------------------------------------------- */

/* Pages of a store that tokens may go to: the host does not know which, so all that are named. */
static uint32_t store_pages(const struct kva_store_seq *seq)
{
    return pages_of(seq->slot_count);
}

template <typename KV>
static void run_store(struct kva_device *device, const struct kva_store_rows_args *args,
                      const move_params &p, bool whole)
{
    uint32_t tokens = 0, pages = 0;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        tokens = kva_max_u32(tokens, args->seqs[i].count);
        pages = kva_max_u32(pages, store_pages(&args->seqs[i]));
    }
    if (p.to.bits == 0)
        kva_cuda_run(
            device, KVA_QUEUE_COMPUTE, "store_rows",
            {dim3(kva_blocks(tokens, BLOCK_ROWS), args->kv_heads, args->seq_count), THREADS},
            whole ? store_kernel<KV, true> : store_kernel<KV, false>, p);
    else
        kva_cuda_run(
            device, KVA_QUEUE_COMPUTE, "store_rows",
            {dim3(pages, 2 * args->kv_heads, args->seq_count), PAGE_THREADS},
            p.to.dim > DIM_MAX / 2 ? code_kernel<KV, ROW_OWN> : code_kernel<KV, ROW_OWN / 2>, p);
}

void kva_cuda_store_rows(struct kva_device *device, const struct kva_store_rows_args *args)
{
    size_t pages = 0, tokens = 0;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        pages += pages_of(args->seqs[i].count) + store_pages(&args->seqs[i]);
        tokens += args->seqs[i].count;
    }
    if (tokens == 0 || !kva_cuda_enter(device))
        return;
    const size_t bytes = args->seq_count * sizeof(move_seq);
    move_params p = {nullptr, place_of(args->from_offset_bytes, args->head_dim, {}),
                     place_of(args->to_offset_bytes, args->head_dim, args->format),
                     rotary_of(&args->rotary)};
    const void **blocks =
        static_cast<const void **>(kva_cuda_stage(device, pages * sizeof(void *)));
    if (!blocks)
        return;
    const void **at = blocks;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_store_seq *seq = &args->seqs[i];
        put_blocks(at, seq->from, pages_of(seq->count), seq->to, store_pages(seq));
        at += pages_of(seq->count) + store_pages(seq);
    }
    const bool whole = rows_whole(p, blocks, pages);
    const void *const *sent =
        static_cast<const void *const *>(kva_cuda_send(device, blocks, pages * sizeof(void *)));
    move_seq *seqs = static_cast<move_seq *>(kva_cuda_stage(device, bytes));
    if (!seqs)
        return;
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_store_seq *seq = &args->seqs[i];
        void *const *to = const_cast<void *const *>(sent + pages_of(seq->count));
        seqs[i] = {sent,       to,         seq->slots,          nullptr,
                   seq->count, seq->count, seq->position_first, nullptr,
                   seq->mean};
        sent += pages_of(seq->count) + store_pages(seq);
    }
    send_params(device, &p, seqs, bytes, &args->rotary);
    if (kva_cuda_failed(device))
        return;
    if (args->kv_dtype == KVA_F16)
        run_store<kva_f16>(device, args, p, whole);
    else
        run_store<kva_bf16>(device, args, p, whole);
}
