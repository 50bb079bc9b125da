/* fetch.cu - fetch_rows: the rows that a cache misses, from pinned host memory into their slots, by a
 * kernel of the copy queue. It runs beside the layers, on few multiprocessors, and is bound by the
 * link: what matters is that enough rows are on their way. */
#include "kernels/cuda/slots.cuh"

#define THREADS 512u
#define WARPS   (THREADS / KVA_WARP)

/* Sequences that one launch fetches for; their descriptors are an argument (4 KB at most), since
 * the ring is the compute queue's. */
#define FETCH_SEQS 32u

/* Blocks of one launch, few of them, since each takes a processor from the matrix products that go
 * on beside it: with four, an H200 has the 128 that cuBLAS likes to fill in one turn. 64 warps, of
 * 4 KiB each on their way, are twice what a link of 64 GB/s wants that answers after 2 us. */
#define FETCH_BLOCKS 4u

/* Pieces of 16 bytes that a lane has on their way. */
#define FETCH_FLIGHT 8u

struct fetch_seq {
    struct kva_row_cache cache;
    const void *const *pages;
    const uint32_t *gate;
};

struct fetch_seqs {
    fetch_seq seqs[FETCH_SEQS];
};

/* Rows that a warp fetches together. */
struct fetch_rows {
    const uint4 *from[KVA_WARP];
    uint32_t slots[KVA_WARP];
};

/* Piece by piece of all of them: rows of pinned host memory are read where they lie. */
static __device__ void copy_rows(uint4 *to, const fetch_rows &rows, uint32_t count, uint32_t pieces)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
    for (uint32_t base = lane; base < count * pieces; base += FETCH_FLIGHT * KVA_WARP) {
        uint4 x[FETCH_FLIGHT];
#pragma unroll
        for (uint32_t i = 0; i < FETCH_FLIGHT; i++) {
            const uint32_t at = min(base + i * KVA_WARP, count * pieces - 1);
            x[i] = rows.from[at / pieces][at % pieces];
        }
#pragma unroll
        for (uint32_t i = 0; i < FETCH_FLIGHT; i++) {
            const uint32_t at = base + i * KVA_WARP;
            if (at < count * pieces)
                to[static_cast<size_t>(rows.slots[at / pieces]) * pieces + at % pieces] = x[i];
        }
    }
}

/* The rows of a KV head that a warp looks up at a time, a lane each; returns how many there are. */
static __device__ uint32_t find_rows(fetch_rows &rows, const head &h, uint32_t first,
                                     const void *const *pages, size_t offset, uint32_t pieces)
{
    const uint32_t lane = threadIdx.x % KVA_WARP;
    const uint32_t slot = first + lane < h.slots ? h.missing[first + lane] : KVA_NO_TOKEN;
    const uint32_t found = __ballot_sync(KVA_ALL, slot != KVA_NO_TOKEN);
    __syncwarp(); /* the rows before have been read */
    if (slot != KVA_NO_TOKEN) {
        const uint32_t token = h.tokens[slot];
        const unsigned char *page =
            static_cast<const unsigned char *>(pages[token / KVA_PAGE_TOKENS]) + offset;
        rows.slots[lane] = slot;
        rows.from[lane] = reinterpret_cast<const uint4 *>(page) + token % KVA_PAGE_TOKENS * pieces;
    }
    __syncwarp(); /* all rows are looked up */
    return static_cast<uint32_t>(__popc(found));
}

/* A KV head of a sequence by one warp, or by `share` of them in turns. */
static __global__ void __launch_bounds__(THREADS)
    fetch_kernel(fetch_seqs list, uint32_t head_count, uint32_t kv_heads, uint32_t share,
                 size_t offset, uint32_t dim)
{
    kva_begin();
    __shared__ fetch_rows shared_rows[WARPS];
    const uint32_t warp = threadIdx.x / KVA_WARP, index = blockIdx.x * WARPS + warp;
    const uint32_t at_once = gridDim.x * WARPS / share, pieces = dim / 4;
    fetch_rows &rows = shared_rows[warp];
    for (uint32_t i = index / share; index < at_once * share && i < head_count; i += at_once) {
        const fetch_seq &seq = list.seqs[i / kv_heads];
        const uint32_t kv_head = i % kv_heads;
        if (kva_gate_closed(seq.gate))
            continue;
        const head h = head_of(seq.cache, kv_head);
        const size_t head_pieces = static_cast<size_t>(kv_head) * pieces;
        uint4 *to = static_cast<uint4 *>(seq.cache.rows) + head_pieces * h.slots;
        uint32_t count = KVA_WARP, first = index % share * KVA_WARP;
        for (; count == KVA_WARP; first += share * KVA_WARP) {
            count = find_rows(rows, h, first, seq.pages,
                              offset + head_pieces * KVA_PAGE_TOKENS * sizeof(uint4), pieces);
            copy_rows(to, rows, count, pieces);
        }
    }
}

void kva_cuda_fetch_rows(struct kva_device *device, const struct kva_fetch_rows_args *args)
{
    if (!kva_cuda_enter(device))
        return;
    for (uint32_t first = 0; first < args->count && !kva_cuda_failed(device); first += FETCH_SEQS) {
        uint32_t seqs = kva_min_u32(args->count - first, FETCH_SEQS);
        fetch_seqs list = {};
        for (uint32_t i = 0; i < seqs; i++)
            list.seqs[i] = {*args->fetches[first + i].cache, args->fetches[first + i].pages,
                            args->fetches[first + i].gate};
        const uint32_t heads = seqs * args->kv_heads;
        kva_cuda_run(device, args->queue, "fetch_rows", {FETCH_BLOCKS, THREADS}, fetch_kernel, list,
                     heads, args->kv_heads, kva_max_u32(FETCH_BLOCKS * WARPS / heads, 1),
                     args->page_offset_bytes, args->head_dim);
    }
}
