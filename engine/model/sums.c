/* sums.c - pieces of which the sums are joined in their order. */
#include "engine/model/sums.h"

#include "engine/model/checksum.h"
#include "engine/model/model.h"

#include <sys/mman.h>

/* A turn of so many pieces, then the bar moves. */
#define TURN_PIECES 64u

struct sum_work {
    const uint8_t *data;
    size_t bytes;
    uint64_t *pieces;
};

static void sum_piece(void *opaque, uint32_t index, uint32_t worker KVA_UNUSED)
{
    const struct sum_work *work = opaque;
    size_t first = index * KVA_CHECKSUM_PIECE_BYTES;
    work->pieces[index] = kva_checksum(work->data + first,
                                       kva_min_size(KVA_CHECKSUM_PIECE_BYTES, work->bytes - first));
}

static bool is_cancelled(const struct kva_model_summing *summing)
{
    return kva_model_check_cancelled(summing->cancelled, NULL) != KVA_OK;
}

uint64_t kva_model_sum(const struct kva_model_summing *summing, const void *data, size_t bytes)
{
    uint64_t pieces[TURN_PIECES], sum = 0;
    const size_t turn = TURN_PIECES * KVA_CHECKSUM_PIECE_BYTES;
    for (size_t at = 0; at < bytes && !is_cancelled(summing); at += turn) {
        struct sum_work sums = {(const uint8_t *)data + at, kva_min_size(turn, bytes - at), pieces};
        uint32_t count = (uint32_t)kva_div_up(sums.bytes, KVA_CHECKSUM_PIECE_BYTES);
        (void)madvise((void *)(uintptr_t)sums.data, sums.bytes, MADV_WILLNEED);
        kva_pool_run(summing->pool, count, sum_piece, &sums);
        for (uint32_t i = 0; i < count; i++)
            sum = kva_checksum_join(sum, pieces[i]);
        if (summing->advance)
            summing->advance(summing->opaque, sums.bytes);
    }
    return sum;
}

uint64_t kva_model_files_sum(const struct kva_model_summing *summing,
                             const struct kva_model_files *files)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < files->shard_count; i++) {
        const struct kva_model_shard *shard = &files->shards[i];
        sum = kva_checksum_join(sum, kva_model_sum(summing, shard->map, shard->map_bytes));
    }
    return sum;
}

uint64_t kva_model_files_stamp(const struct kva_model_files *files)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < files->shard_count; i++)
        sum = kva_checksum_join(sum, files->shards[i].stamp);
    return sum;
}
