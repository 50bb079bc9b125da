/* Bad arguments of what chooses tokens and brings their rows (test_check.h). */
#include "tests/kernels/test_check.h"

#include <math.h>

/* --- selection -------------------------------------------------------------------------------- */

static void select_scratch(struct kva_device *device)
{
    struct kva_attend_select_fetch_args args = good_select();
    struct kva_row_cache slots = good_slots();
    args.scratch_bytes = kva_attend_select_bytes(args.heads, args.kv_heads, 10) - 1;
    call_selecting(device, args, &slots, (struct kva_select_seq){0});
}

static void select_slots(struct kva_device *device)
{
    struct kva_row_cache slots = good_slots();
    slots.slots = 7;
    call_selecting(device, good_select(), &slots, (struct kva_select_seq){.select_row = 9});
}

static void select_heads(struct kva_device *device)
{
    struct kva_attend_select_fetch_args args = good_select();
    struct kva_row_cache slots = good_slots();
    args.kv_heads = 1;
    args.heads = limits_of(device)->select_heads_max + 1;
    args.scratch_bytes = SIZE_MAX;
    call_selecting(device, args, &slots, (struct kva_select_seq){0});
}

static void select_successor(struct kva_device *device)
{
    struct kva_attend_select_fetch_args args = good_select();
    struct kva_row_cache slots = good_slots();
    slots.successor = NAN;
    args.scratch_bytes = SIZE_MAX;
    call_selecting(device, args, &slots, (struct kva_select_seq){0});
}

static void select_k(struct kva_device *device)
{
    struct kva_attend_select_fetch_args args = good_select();
    struct kva_row_cache slots = good_slots();
    slots.k = limits_of(device)->select_max + 1;
    slots.slots = slots.k + 4;
    args.scratch_bytes = SIZE_MAX;
    call_selecting(device, args, &slots, (struct kva_select_seq){0});
}

static void now_unselected(struct kva_device *device)
{
    struct kva_row_cache slots = good_slots();
    struct kva_fused_fetch now = {.stamp = 1};
    call_selecting(device, good_select(), &slots,
                   (struct kva_select_seq){.select_row = 9, .now = &now});
}

static void now_two_rows(struct kva_device *device)
{
    struct kva_row_cache slots = good_slots();
    struct kva_fused_fetch now = {.stamp = 1};
    call_selecting(device, good_select(), &slots,
                   (struct kva_select_seq){.row_count = 2, .now = &now});
}

static void resolve_slots(struct kva_device *device)
{
    struct kva_row_cache slots = good_slots();
    const struct kva_row_cache *hots[1] = {&slots};
    slots.pinned = 5;
    kva_device_ops(device)->assign_slots(
        device,
        &(struct kva_assign_slots_args){.caches = hots, .count = 1, .kv_heads = 1, .stamp = 1});
}

static void resolve_stamp(struct kva_device *device)
{
    struct kva_row_cache slots = good_slots();
    const struct kva_row_cache *hots[1] = {&slots};
    kva_device_ops(device)->assign_slots(
        device, &(struct kva_assign_slots_args){.caches = hots, .count = 1, .kv_heads = 1});
}

static void resolve_many(struct kva_device *device)
{
    struct kva_row_cache slots = {.slots = limits_of(device)->slots_max + 1};
    const struct kva_row_cache *hots[1] = {&slots};
    kva_device_ops(device)->assign_slots(
        device,
        &(struct kva_assign_slots_args){.caches = hots, .count = 1, .kv_heads = 1, .stamp = 1});
}

static void lowbit_slots(struct kva_device *device)
{
    struct kva_row_cache slots = good_slots();
    struct kva_attend_lowbit_args args = good_lowbit();
    const struct kva_lowbit_seq seq = {.rows = &slots};
    slots.slots = 7;
    args.seqs = &seq;
    args.seq_count = 1;
    kva_device_ops(device)->attend_lowbit(device, &args);
}

static void lowbit_select_heads(struct kva_device *device)
{
    struct kva_attend_lowbit_args args = good_lowbit();
    float scores[1];
    const struct kva_lowbit_seq seq = {.scores = scores};
    args.kv_heads = 1;
    args.heads = limits_of(device)->select_heads_max + 1;
    args.seqs = &seq;
    args.seq_count = 1;
    kva_device_ops(device)->attend_lowbit(device, &args);
}

static void lowbit_peaks(struct kva_device *device)
{
    struct kva_attend_lowbit_args args = good_lowbit();
    float memory[1];
    const struct kva_lowbit_seq seq = {.scores = memory, .peaks = memory};
    args.seqs = &seq;
    args.seq_count = 1;
    kva_device_ops(device)->attend_lowbit(device, &args);
}

static void rows_heads(struct kva_device *device)
{
    struct kva_attend_rows_args args = good_rows();
    args.kv_heads = 3;
    kva_device_ops(device)->attend_rows(device, &args);
}

static void rows_dim(struct kva_device *device)
{
    struct kva_attend_rows_args args = good_rows();
    args.head_dim = 62;
    kva_device_ops(device)->attend_rows(device, &args);
}

static void rows_f32(struct kva_device *device)
{
    struct kva_attend_rows_args args = good_rows();
    args.kv_dtype = KVA_F32;
    kva_device_ops(device)->attend_rows(device, &args);
}

static void rows_slots(struct kva_device *device)
{
    struct kva_attend_rows_args args = good_rows();
    struct kva_row_cache slots = good_slots();
    const struct kva_rows_seq seq = {.rows = &slots};
    slots.slots = 7;
    args.seqs = &seq;
    args.seq_count = 1;
    kva_device_ops(device)->attend_rows(device, &args);
}

static void weigh_heads(struct kva_device *device)
{
    struct kva_weigh_args args = good_weigh();
    args.kv_heads = 0;
    kva_device_ops(device)->weigh(device, &args);
}

static void weigh_many_heads(struct kva_device *device)
{
    struct kva_weigh_args args = good_weigh();
    args.kv_heads = 1;
    args.heads = limits_of(device)->select_heads_max + 1;
    kva_device_ops(device)->weigh(device, &args);
}

static void weigh_dim(struct kva_device *device)
{
    struct kva_weigh_args args = good_weigh();
    args.head_dim = 1;
    kva_device_ops(device)->weigh(device, &args);
}

static void weigh_f32(struct kva_device *device)
{
    struct kva_weigh_args args = good_weigh();
    args.kv_dtype = KVA_F32;
    kva_device_ops(device)->weigh(device, &args);
}

static void weigh_nothing(struct kva_device *device)
{
    struct kva_weigh_args args = good_weigh();
    args.partial_count = 0;
    kva_device_ops(device)->weigh(device, &args);
}

static void call_weigh(struct kva_device *device, struct kva_weigh_seq seq)
{
    struct kva_weigh_args args = good_weigh();
    args.seqs = &seq;
    args.seq_count = 1;
    kva_device_ops(device)->weigh(device, &args);
}

static void weigh_slots(struct kva_device *device)
{
    struct kva_row_cache slots = good_slots();
    slots.slots = 7;
    call_weigh(device, (struct kva_weigh_seq){.rows = &slots});
}

static void weigh_no_scores(struct kva_device *device)
{
    call_weigh(device, (struct kva_weigh_seq){.page_count = 1});
}

static void choose_kind(struct kva_device *device)
{
    const struct kva_choose_args args = {.kv_heads = 1, .kind = (enum kva_choose_kind)3};
    kva_device_ops(device)->choose(device, &args);
}

static void choose_share(struct kva_device *device)
{
    const struct kva_choose_args args = {.kv_heads = 1, .kind = KVA_CHOOSE_NEAR, .share = 1.5f};
    kva_device_ops(device)->choose(device, &args);
}

static void call_choose(struct kva_device *device, struct kva_choose_seq seq)
{
    const struct kva_choose_args args = {.seqs = &seq, .seq_count = 1, .kv_heads = 1};
    kva_device_ops(device)->choose(device, &args);
}

static void choose_end(struct kva_device *device)
{
    call_choose(device, (struct kva_choose_seq){.stride = 8, .end = 9});
}

static void choose_successor(struct kva_device *device)
{
    call_choose(device, (struct kva_choose_seq){.successor = 1.5f});
}

static void choose_many(struct kva_device *device)
{
    call_choose(device, (struct kva_choose_seq){.k = limits_of(device)->select_max + 1});
}

static void fetch_dim(struct kva_device *device)
{
    const struct kva_fetch_rows_args args = {.head_dim = 6};
    kva_device_ops(device)->fetch_rows(device, &args);
}

static void fetch_offset(struct kva_device *device)
{
    const struct kva_fetch_rows_args args = {.head_dim = 64, .page_offset_bytes = 8};
    kva_device_ops(device)->fetch_rows(device, &args);
}

static void fetch_queue(struct kva_device *device)
{
    const struct kva_fetch_rows_args args = {.head_dim = 64, .queue = KVA_QUEUE_COUNT};
    kva_device_ops(device)->fetch_rows(device, &args);
}

static void weigh_queue(struct kva_device *device)
{
    struct kva_weigh_args args = good_weigh();
    args.queue = KVA_QUEUE_COPY;
    kva_device_ops(device)->weigh(device, &args);
}

static void choose_queue(struct kva_device *device)
{
    kva_device_ops(device)->choose(
        device, &(struct kva_choose_args){.kv_heads = 1, .queue = KVA_QUEUE_COPY});
}

static void resolve_queue(struct kva_device *device)
{
    kva_device_ops(device)->assign_slots(
        device, &(struct kva_assign_slots_args){.stamp = 1, .queue = KVA_QUEUE_COUNT});
}

static void apart_from_nothing(struct kva_device *device)
{
    kva_device_ops(device)->attend_apart(device,
                                         &(struct kva_attend_apart_args){.attend = good_attend()});
}

static void join_of_half_a_line(struct kva_device *device)
{
    static _Alignas(KVA_CACHE_LINE) float memory[32];
    struct kva_attend_apart_args args = {
        .attend = good_attend(), .memory = memory + 8, .bytes = KVA_CACHE_LINE};
    args.attend.accumulate = true;
    kva_device_ops(device)->attend_join(device, &args);
}

void test_check__splits_apart(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device();
    const bool apart = kva_device_ops(device)->attend_apart != NULL;
    assert_int_equal(apart, kva_device_ops(device)->attend_join != NULL);
    kva_device_close(device);
    if (!apart)
        skip();
    refused("attend_apart: ", "a result to go on from", apart_from_nothing);
    refused("attend_join: ", "begins 32 bytes into a line", join_of_half_a_line);
}

/* A call that chooses by what it weighs, two pages of one sequence. */
struct at_once {
    _Alignas(16) float memory[4];
    struct kva_weigh_seq weigh;
    struct kva_choose_seq choose;
    struct kva_lowbit_seq low;
    struct kva_weigh_choose_args args;
};

static struct kva_weigh_choose_args *good_once(struct at_once *call)
{
    *call =
        (struct at_once){.weigh = {.page_count = 2, .weights = call->memory},
                         .choose = {.weights = call->memory, .stride = 2 * KVA_PAGE_TOKENS},
                         .low = {.page_count = 2, .peaks = call->memory},
                         .args = {.weigh = good_weigh(),
                                  .choose = {.seqs = &call->choose, .seq_count = 1, .kv_heads = 2},
                                  .low = &call->low,
                                  .format = {.bits = 1, .group = 64}}};
    call->args.weigh.seqs = &call->weigh;
    call->args.weigh.seq_count = 1;
    return &call->args;
}

static void once_weighs_nothing(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    args->weigh.partial_count = 0;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_kind(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    args->choose.kind = (enum kva_choose_kind)3;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_fewer(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    args->choose.seq_count = 0;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_heads(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    args->choose.kv_heads = 4;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_queues(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    args->choose.queue = KVA_QUEUE_ASIDE;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_weights(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    call.choose.weights += 1;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_stride(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    call.choose.stride++;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_gate(struct kva_device *device)
{
    static const uint32_t gate = 1;
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    call.choose.gate = &gate;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_least(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    args->choose.kind = KVA_CHOOSE_LEAST;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_without_peaks(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    call.low.peaks = NULL;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_of_other_pages(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    call.low.page_count = 3;
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_per_token(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    args->format = kva_lowbit_per_token(4, args->weigh.head_dim, KVA_CODING_PLAIN);
    kva_device_ops(device)->weigh_choose(device, args);
}

static void once_bits(struct kva_device *device)
{
    struct at_once call;
    struct kva_weigh_choose_args *args = good_once(&call);
    args->format.bits = 3;
    kva_device_ops(device)->weigh_choose(device, args);
}

void test_check__weighing_and_choosing_at_once(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device();
    const bool once = kva_device_ops(device)->weigh_choose != NULL;
    kva_device_close(device);
    if (!once)
        skip();
    refused("weigh_choose: ", "0 partial results", once_weighs_nothing);
    refused("weigh_choose: ", "no kind 3", once_kind);
    refused("weigh_choose: ", "1 sequences of 2 KV heads", once_fewer);
    refused("weigh_choose: ", "and 1 of 4", once_heads);
    refused("weigh_choose: ", "on queue 0", once_queues);
    refused("weigh_choose: ", "by other weights", once_weights);
    refused("weigh_choose: ", "by other weights", once_stride);
    refused("weigh_choose: ", "by other weights", once_gate);
    refused("weigh_choose: ", "not by kind 2", once_least);
    refused("weigh_choose: ", "no peaks of its 2 pages", once_without_peaks);
    refused("weigh_choose: ", "no peaks of its 2 pages", once_of_other_pages);
    refused("weigh_choose: ", "levels of channels", once_per_token);
    refused("weigh_choose: ", "3 bits, must be 1, 2 or 4", once_bits);
}

void test_check__selection(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device();
    const struct kva_op_limits limits = *limits_of(device);
    bool fused = kva_device_ops(device)->attend_select_fetch != NULL; /* an optional operator */
    kva_device_close(device);
    if (fused) {
        refused("attend_select_fetch: ", "selection over 10 pages needs", select_scratch);
        refused("attend_select_fetch: ", "7 slots cannot hold 4 pinned and 4 chosen", select_slots);
        refused("attend_select_fetch: ", "share a KV head", select_heads);
        refused("attend_select_fetch: ", "sequence's only row", now_unselected);
        refused("attend_select_fetch: ", "sequence's only row", now_two_rows);
    }
    refused("assign_slots: ", "8 slots cannot hold 5 pinned", resolve_slots);
    refused("assign_slots: ", "greater than 0", resolve_stamp);
    if (fused)
        refused("attend_select_fetch: ", "a successor's share of", select_successor);
    if (fused && limits.select_max < UINT32_MAX)
        refused("attend_select_fetch: ", "rows to choose", select_k);
    if (limits.slots_max < UINT32_MAX)
        refused("assign_slots: ", "at most", resolve_many);
    if (limits.select_max < UINT32_MAX)
        refused("choose: ", "rows to choose", choose_many);
    refused("attend_lowbit: ", "7 slots cannot hold", lowbit_slots);
    refused("attend_lowbit: ", "may select", lowbit_select_heads);
    refused("attend_lowbit: ", "keeps scores, or peaks", lowbit_peaks);
    refused("attend_rows: ", "cannot share", rows_heads);
    refused("attend_rows: ", "multiple of 4", rows_dim);
    refused("attend_rows: ", "f16 or bf16", rows_f32);
    refused("attend_rows: ", "7 slots cannot hold", rows_slots);
    refused("weigh: ", "cannot share", weigh_heads);
    refused("weigh: ", "share a KV head", weigh_many_heads);
    refused("weigh: ", "multiple of 4", weigh_dim);
    refused("weigh: ", "f16 or bf16", weigh_f32);
    refused("weigh: ", "0 partial results", weigh_nothing);
    refused("weigh: ", "7 slots cannot hold", weigh_slots);
    refused("weigh: ", "without scores", weigh_no_scores);
    refused("choose: ", "no kind 3", choose_kind);
    refused("choose: ", "a share of", choose_share);
    refused("choose: ", "candidates up to 9 of 8", choose_end);
    refused("choose: ", "a successor's share of 1.5", choose_successor);
    refused("fetch_rows: ", "aligned to 16", fetch_dim);
    refused("fetch_rows: ", "aligned to 16", fetch_offset);
    refused("fetch_rows: ", "no queue 3", fetch_queue);
    refused("weigh: ", "does not run on queue 2", weigh_queue);
    refused("choose: ", "does not run on queue 2", choose_queue);
    refused("assign_slots: ", "does not run on queue 3", resolve_queue);
}
