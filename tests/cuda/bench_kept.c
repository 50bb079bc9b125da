/* bench_kept.c - what policies that keep some tokens do when tokens leave the window (once per 64 of
 * a sequence) and at a prompt's end: errors, who stays, rows into slots, rows rolled. */
#include "tests/cuda/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KV_HEADS 8u
#define DIM      128u
#define BITS     4u

struct kept {
    struct kva_keep_args keep;
    struct kva_row_error_args error;
    struct kva_store_rows_args store;
    struct kva_roll_rows_args roll;
    struct kva_keep_seq keep_seq;
    struct kva_row_error_seq error_seq;
    struct kva_store_seq store_seq;
    struct kva_roll_seq roll_seq;
    float inv_freq[DIM / 2];
};

/* Tokens of each call are at positions behind those of the calls before. */
static void run_keep(struct bench *bench, const void *opaque, uint32_t call)
{
    const struct kept *kept = opaque;
    struct kva_keep_seq seq = kept->keep_seq;
    struct kva_keep_args args = kept->keep;
    seq.position_first += call * seq.count;
    args.seqs = &seq;
    bench->ops->keep(bench->device, &args);
}

static void run_error(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    bench->ops->row_error(bench->device, &((const struct kept *)opaque)->error);
}

static void run_store(struct bench *bench, const void *opaque, uint32_t call KVA_UNUSED)
{
    bench->ops->store_rows(bench->device, &((const struct kept *)opaque)->store);
}

/* Another position each call, so that all keys are rolled. */
static void run_roll(struct bench *bench, const void *opaque, uint32_t call)
{
    const struct kept *kept = opaque;
    struct kva_roll_seq seq = kept->roll_seq;
    struct kva_roll_rows_args args = kept->roll;
    seq.position_first = call;
    args.seqs = &seq;
    bench->ops->roll_rows(bench->device, &args);
}

/* Memory of one case. */
struct memory {
    unsigned char *data;
    size_t bytes, taken;
};

static void *take(struct memory *memory, size_t bytes)
{
    void *data = memory->data ? memory->data + memory->taken : NULL;
    memory->taken += kva_align_up(bytes, 256);
    return data;
}

static void **blocks_of(struct memory *memory, uint32_t pages, size_t block_bytes)
{
    void **blocks = calloc(pages, sizeof *blocks);
    for (uint32_t i = 0; i < pages; i++)
        blocks[i] = take(memory, block_bytes);
    return blocks;
}

/* `count` tokens come to a full store of `slots`; with `memory` without data its bytes are counted.
 * Addresses of blocks are the caller's to free: of what comes, of the store, of rolled rows. */
static void set_up(struct kept *kept, struct memory *memory, uint32_t slots, uint32_t count,
                   void **(*blocks)[3])
{
    const struct kva_lowbit_format format = kva_lowbit_per_token(BITS, DIM, KVA_CODING_TURNED);
    const size_t whole = kva_kv_block_bytes(KV_HEADS, DIM);
    const uint32_t come = (uint32_t)kva_div_up(count, KVA_PAGE_TOKENS);
    const uint32_t pages = slots / KVA_PAGE_TOKENS;
    (*blocks)[0] = blocks_of(memory, come, whole);
    (*blocks)[1] = blocks_of(memory, pages, kva_lowbit_block_bytes(format, KV_HEADS, DIM));
    (*blocks)[2] = blocks_of(memory, pages, whole);
    uint32_t *positions = take(memory, (size_t)KV_HEADS * slots * sizeof *positions);
    float *mass = take(memory, (size_t)KV_HEADS * slots * sizeof *mass);
    float *error = take(memory, (size_t)KV_HEADS * slots * sizeof *error);
    float *come_mass = take(memory, (size_t)KV_HEADS * count * sizeof *mass);
    float *come_error = take(memory, (size_t)KV_HEADS * count * sizeof *error);
    uint32_t *to = take(memory, (size_t)KV_HEADS * count * sizeof *to);
    kept->keep_seq = (struct kva_keep_seq){.store = {positions, mass, error, slots},
                                           .mass = come_mass,
                                           .error = come_error,
                                           .to = to,
                                           .filled = slots,
                                           .count = count,
                                           .stride = count,
                                           .position_first = 1u << 20,
                                           .sinks = 4,
                                           .recent = slots / 4,
                                           .pure = slots / 8};
    const size_t scratch_bytes = kva_keep_scratch_bytes(KV_HEADS, slots, count);
    kept->keep = (struct kva_keep_args){.seqs = &kept->keep_seq,
                                        .scratch = take(memory, scratch_bytes),
                                        .scratch_bytes = scratch_bytes,
                                        .seq_count = 1,
                                        .kv_heads = KV_HEADS,
                                        .lambda = 0.5f};
    kept->error_seq = (struct kva_row_error_seq){.blocks = (const void *const *)(*blocks)[0],
                                                 .error = come_error,
                                                 .count = count,
                                                 .stride = count};
    kept->error = (struct kva_row_error_args){.seqs = &kept->error_seq,
                                              .seq_count = 1,
                                              .kv_heads = KV_HEADS,
                                              .head_dim = DIM,
                                              .kv_dtype = KVA_BF16,
                                              .format = format};
    kept->store_seq = (struct kva_store_seq){.from = (const void *const *)(*blocks)[0],
                                             .to = (*blocks)[1],
                                             .slots = to,
                                             .slot_count = slots,
                                             .count = count};
    kept->store = (struct kva_store_rows_args){.seqs = &kept->store_seq,
                                               .seq_count = 1,
                                               .kv_heads = KV_HEADS,
                                               .head_dim = DIM,
                                               .kv_dtype = KVA_BF16,
                                               .format = format};
    kept->roll_seq = (struct kva_roll_seq){
        .positions = positions,
        .index = take(memory, (size_t)KV_HEADS * slots * sizeof(uint32_t)),
        .places = take(memory, (size_t)KV_HEADS * slots * sizeof(struct kva_roll_place)),
        .from = (const void *const *)(*blocks)[1],
        .to = (*blocks)[2],
        .slots = slots,
        .filled = slots};
    kept->roll = (struct kva_roll_rows_args){.seqs = &kept->roll_seq,
                                             .seq_count = 1,
                                             .kv_heads = KV_HEADS,
                                             .head_dim = DIM,
                                             .kv_dtype = KVA_BF16,
                                             .format = format,
                                             .rotary = {kept->inv_freq, DIM}};
}

/* Of each KV head 0, step, 2 step and so on. */
static void put_ascending(struct bench *bench, uint32_t *to, uint32_t count, uint32_t step)
{
    uint32_t *numbers = calloc((size_t)KV_HEADS * count, sizeof *numbers);
    for (uint32_t i = 0; i < KV_HEADS * count; i++)
        numbers[i] = i % count * step;
    bench_put(bench, to, numbers, (size_t)KV_HEADS * count * sizeof *numbers);
    free(numbers);
}

/* All numbers are random. */
static void bench_case(struct bench *bench, uint32_t slots, uint32_t count)
{
    struct kept kept = {0};
    struct memory memory = {0};
    void **blocks[3];
    double keep[KVA_KEEP_RANK + 1];
    set_up(&kept, &memory, slots, count, &blocks);
    for (int i = 0; i < 3; i++)
        free(blocks[i]);
    memory.bytes = memory.taken;
    memory.data = bench_take_random(bench, memory.bytes);
    memory.taken = 0;
    set_up(&kept, &memory, slots, count, &blocks);
    put_ascending(bench, kept.keep_seq.store.positions, slots, 1);
    const double error = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_error, &kept);
    for (int score = KVA_KEEP_RANK; score >= 0; score--) {
        kept.keep.score = (enum kva_keep_score)score;
        keep[score] = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_keep, &kept);
    }
    put_ascending(bench, kept.keep_seq.to, count, slots / count); /* all are stored */
    const double store = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_store, &kept);
    const double roll = bench_seconds(bench, KVA_QUEUE_COMPUTE, run_roll, &kept);
    printf("  %4u to %5u slots     %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f\n", count, slots,
           error * 1e6, keep[KVA_KEEP_MASS] * 1e6, keep[KVA_KEEP_MINMAX] * 1e6,
           keep[KVA_KEEP_RANK] * 1e6, store * 1e6, roll * 1e6);
    for (int i = 0; i < 3; i++)
        free(blocks[i]);
    bench_give(bench, KVA_MEM_DEVICE, memory.data, memory.bytes);
}

void bench_kept(struct bench *bench)
{
    static const uint32_t cases[][2] = {{6592, 64}, {6592, 2048}, {16384, 2048}};
    printf("kept rows, %u bits, us       error      mass    minmax      rank     store      roll\n",
           BITS);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++)
        bench_case(bench, bench->small ? 128 : cases[i][0],
                   bench->small ? kva_min_u32(cases[i][1], 70) : cases[i][1]);
}
