/* Bad arguments, each in an otherwise good call: the device fails, by the operator's name, and
 * nothing is written. With the path of a CUDA module, for that device too. */
#include "kernels/backend.h"
#include "kernels/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const char *module_path;

static struct kva_device *open_device(void)
{
    struct kva_device_params params = {.threads = 1, .act = KVA_F32};
    struct kva_device *device = NULL;
    struct kva_err err = {0};
    enum kva_status status = module_path ? kva_device_open_cuda(module_path, &params, &device, &err)
                                         : kva_device_open_cpu(&params, &device, &err);
    if (status != KVA_OK)
        fail_msg("%s", err.message);
    return device;
}

static const struct kva_op_limits *limits_of(const struct kva_device *device)
{
    return &((const struct kva_device_base *)device)->backend->limits;
}

/* The call in `call` fails a new device with a message that begins with `op` and contains `why`. */
static void refused(const char *op, const char *why, void (*call)(struct kva_device *device))
{
    struct kva_device *device = open_device();
    struct kva_err err = {0};
    assert_int_equal(kva_device_error(device, &err), KVA_OK);
    call(device);
    assert_int_equal(kva_device_error(device, &err), KVA_EDEVICE);
    if (strncmp(err.message, op, strlen(op)) != 0 || !strstr(err.message, why))
        fail_msg("wanted '%s ... %s', got '%s'", op, why, err.message);
    kva_device_close(device);
}

/* --- good calls ------------------------------------------------------------------------------- */

/* Calls without rows or sequences: what is wrong with them is found all the same, and where nothing
 * is, nothing is done. */
static struct kva_linear_args good_linear(void)
{
    return (struct kva_linear_args){.weight = {.dtype = KVA_F32, .rows = 8, .cols = 8}};
}

static struct kva_rope_args good_rope(void)
{
    return (struct kva_rope_args){.head_dim = 64, .rotary_dim = 64};
}

static struct kva_kv_append_args good_append(void)
{
    return (struct kva_kv_append_args){.head_dim = 64, .kv_heads = 2, .kv_dtype = KVA_BF16};
}

static struct kva_attend_args good_attend(void)
{
    return (struct kva_attend_args){
        .heads = 4, .kv_heads = 2, .head_dim = 64, .kv_dtype = KVA_BF16};
}

static struct kva_quantise_args good_quantise(void)
{
    return (struct kva_quantise_args){
        .kv_heads = 2, .head_dim = 64, .kv_dtype = KVA_BF16, .format = {.bits = 2, .group = 64}};
}

static struct kva_attend_select_fetch_args good_select(void)
{
    return (struct kva_attend_select_fetch_args){.heads = 4,
                                                 .kv_heads = 2,
                                                 .head_dim = 64,
                                                 .kv_dtype = KVA_BF16,
                                                 .format = {.bits = 2, .group = 64}};
}

static struct kva_attend_lowbit_args good_lowbit(void)
{
    return (struct kva_attend_lowbit_args){
        .heads = 4, .kv_heads = 2, .head_dim = 64, .format = {.bits = 2, .group = 64}};
}

static struct kva_attend_rows_args good_rows(void)
{
    return (struct kva_attend_rows_args){
        .heads = 4, .kv_heads = 2, .head_dim = 64, .kv_dtype = KVA_BF16};
}

static struct kva_weigh_args good_weigh(void)
{
    return (struct kva_weigh_args){
        .partial_count = 1, .heads = 4, .kv_heads = 2, .head_dim = 64, .kv_dtype = KVA_BF16};
}

/* Four of eight slots are pinned, and four rows are chosen; the row at 0 selects. */
static struct kva_row_cache good_slots(void)
{
    return (struct kva_row_cache){.slots = 8, .pinned = 4, .k = 4};
}

/* A call with one sequence of one row and ten pages, which selects among them. */
static void call_selecting(struct kva_device *device, struct kva_attend_select_fetch_args args,
                           const struct kva_row_cache *slots, struct kva_select_seq seq)
{
    seq.row_count = seq.row_count ? seq.row_count : 1;
    seq.page_count = 10;
    seq.rows = slots;
    args.seqs = &seq;
    args.seq_count = 1;
    kva_device_ops(device)->attend_select_fetch(device, &args);
}

/* --- linear, rope, kv_append ------------------------------------------------------------------ */

static void linear_format(struct kva_device *device)
{
    struct kva_linear_args args = good_linear();
    args.weight.dtype = KVA_F16;
    kva_device_ops(device)->linear(device, &args);
}

static void rope_wide(struct kva_device *device)
{
    struct kva_rope_args args = good_rope();
    args.rotary_dim = 66;
    kva_device_ops(device)->rope(device, &args);
}

static void rope_huge(struct kva_device *device)
{
    struct kva_rope_args args = good_rope();
    args.rotary_dim = limits_of(device)->rotary_dim_max + 2;
    args.head_dim = args.rotary_dim;
    kva_device_ops(device)->rope(device, &args);
}

static void append_f32(struct kva_device *device)
{
    struct kva_kv_append_args args = good_append();
    args.kv_dtype = KVA_F32;
    kva_device_ops(device)->kv_append(device, &args);
}

static void test_check__dense(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device();
    if (limits_of(device)->weights_as_act)
        refused("linear: ", "f16 matrix with f32 activations", linear_format);
    kva_device_close(device);
    refused("rope: ", "rotary_dim 66 with head_dim 64", rope_wide);
    refused("rope: ", "at most", rope_huge);
    refused("kv_append: ", "f16 or bf16", append_f32);
}

/* --- attend ----------------------------------------------------------------------------------- */

static void attend_no_dim(struct kva_device *device)
{
    struct kva_attend_args args = good_attend();
    args.head_dim = 0;
    kva_device_ops(device)->attend(device, &args);
}

static void attend_wide(struct kva_device *device)
{
    struct kva_attend_args args = good_attend();
    args.head_dim = limits_of(device)->head_dim_max + 1;
    kva_device_ops(device)->attend(device, &args);
}

static void attend_odd_heads(struct kva_device *device)
{
    struct kva_attend_args args = good_attend();
    args.kv_heads = 3;
    kva_device_ops(device)->attend(device, &args);
}

static void attend_no_kv_heads(struct kva_device *device)
{
    struct kva_attend_args args = good_attend();
    args.kv_heads = 0;
    kva_device_ops(device)->attend(device, &args);
}

static void attend_f32(struct kva_device *device)
{
    struct kva_attend_args args = good_attend();
    args.kv_dtype = KVA_F32;
    kva_device_ops(device)->attend(device, &args);
}

static void attend_format(struct kva_device *device)
{
    struct kva_attend_args args = good_attend();
    const struct kva_attend_seq seq = {.row_count = 1, .range_first = 1, .range_count = 1};
    const struct kva_attend_range ranges[2] = {{.format = KVA_KV_16BIT},
                                               {.format = (enum kva_kv_format)77}};
    args.seqs = &seq;
    args.ranges = ranges;
    args.seq_count = 1;
    kva_device_ops(device)->attend(device, &args);
}

/* Scores of so many rows, with tokens of splits 1 and 2. */
static void attend_scores(struct kva_device *device, uint32_t rows, uint32_t first, uint32_t count)
{
    struct kva_attend_args args = good_attend();
    float score;
    const struct kva_attend_range range = {.token_first = KVA_ATTEND_SPLIT_TOKENS,
                                           .token_count = KVA_ATTEND_SPLIT_TOKENS + 1};
    const struct kva_attend_seq seq = {
        .row_count = rows, .range_count = 1, .scores = {&score, first, count}};
    args.seqs = &seq;
    args.ranges = &range;
    args.seq_count = 1;
    kva_device_ops(device)->attend(device, &args);
}

static void attend_scores_rows(struct kva_device *device)
{
    attend_scores(device, 2, 1, 2);
}

static void attend_scores_early(struct kva_device *device)
{
    attend_scores(device, 1, 2, 2);
}

static void attend_scores_late(struct kva_device *device)
{
    attend_scores(device, 1, 1, 1);
}

static void test_check__attend(void **state KVA_UNUSED)
{
    refused("attend: ", "scores of 2 rows", attend_scores_rows);
    refused("attend: ", "scores of splits 2 to 4", attend_scores_early);
    refused("attend: ", "scores of splits 1 to 2, tokens up to 513", attend_scores_late);
    refused("attend: ", "head_dim 0", attend_no_dim);
    refused("attend: ", "head_dim", attend_wide);
    refused("attend: ", "4 heads cannot share 3 KV heads", attend_odd_heads);
    refused("attend: ", "4 heads cannot share 0 KV heads", attend_no_kv_heads);
    refused("attend: ", "f16 or bf16", attend_f32);
    refused("attend: ", "KV format 77", attend_format);
}

/* --- low-bit pages ---------------------------------------------------------------------------- */

static void quantise_dim(struct kva_device *device)
{
    struct kva_quantise_args args = good_quantise();
    args.head_dim = 66;
    kva_device_ops(device)->quantise(device, &args);
}

static void quantise_wide(struct kva_device *device)
{
    struct kva_quantise_args args = good_quantise();
    args.head_dim = limits_of(device)->head_dim_max + 4;
    kva_device_ops(device)->quantise(device, &args);
}

static void quantise_bits(struct kva_device *device)
{
    struct kva_quantise_args args = good_quantise();
    args.format.bits = 3;
    kva_device_ops(device)->quantise(device, &args);
}

static void quantise_group(struct kva_device *device)
{
    struct kva_quantise_args args = good_quantise();
    args.format.group = 0;
    kva_device_ops(device)->quantise(device, &args);
}

static void quantise_f32(struct kva_device *device)
{
    struct kva_quantise_args args = good_quantise();
    args.kv_dtype = KVA_F32;
    kva_device_ops(device)->quantise(device, &args);
}

static void lowbit_heads(struct kva_device *device)
{
    struct kva_attend_lowbit_args args = good_lowbit();
    args.kv_heads = 3;
    kva_device_ops(device)->attend_lowbit(device, &args);
}

static void lowbit_dim(struct kva_device *device)
{
    struct kva_attend_lowbit_args args = good_lowbit();
    args.head_dim = 0;
    kva_device_ops(device)->attend_lowbit(device, &args);
}

static void lowbit_bits(struct kva_device *device)
{
    struct kva_attend_lowbit_args args = good_lowbit();
    args.format.bits = 8;
    kva_device_ops(device)->attend_lowbit(device, &args);
}

static void lowbit_values_of_keys_of_4(struct kva_device *device)
{
    struct kva_attend_lowbit_args args = good_lowbit();
    args.format.bits = 4;
    args.format.value_bits = 2;
    kva_device_ops(device)->attend_lowbit(device, &args);
}

static void lowbit_values_per_token(struct kva_device *device)
{
    struct kva_attend_lowbit_args args = good_lowbit();
    args.format = kva_lowbit_per_token(2, args.head_dim, KVA_CODING_PLAIN);
    args.format.value_bits = 2;
    kva_device_ops(device)->attend_lowbit(device, &args);
}

static void lowbit_group(struct kva_device *device)
{
    struct kva_attend_lowbit_args args = good_lowbit();
    args.format.group = 128;
    kva_device_ops(device)->attend_lowbit(device, &args);
}

static void test_check__lowbit(void **state KVA_UNUSED)
{
    refused("quantise: ", "head_dim 66", quantise_dim);
    refused("quantise: ", "multiple of 4 up to", quantise_wide);
    refused("quantise: ", "3 bits", quantise_bits);
    refused("quantise: ", "groups of 0", quantise_group);
    refused("quantise: ", "f16 or bf16", quantise_f32);
    refused("attend_lowbit: ", "cannot share", lowbit_heads);
    refused("attend_lowbit: ", "head_dim 0", lowbit_dim);
    refused("attend_lowbit: ", "8 bits", lowbit_bits);
    refused("attend_lowbit: ", "values of 2 bits with keys of 4, must be 2 with 1",
            lowbit_values_of_keys_of_4);
    refused("attend_lowbit: ", "with keys per token as keys", lowbit_values_per_token);
    refused("attend_lowbit: ", "groups of 128", lowbit_group);
}

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

static void test_check__splits_apart(void **state KVA_UNUSED)
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
    struct kva_weigh_choose_args args;
};

static struct kva_weigh_choose_args *good_once(struct at_once *call)
{
    *call = (struct at_once){
        .weigh = {.page_count = 2, .scores = call->memory, .weights = call->memory},
        .choose = {.weights = call->memory, .stride = 2 * KVA_PAGE_TOKENS},
        .args = {good_weigh(), {.seqs = &call->choose, .seq_count = 1, .kv_heads = 2}}};
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

static void test_check__weighing_and_choosing_at_once(void **state KVA_UNUSED)
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
}

static void test_check__selection(void **state KVA_UNUSED)
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

/* --- merge, shortlist ------------------------------------------------------------------------- */

static void merge_many(struct kva_device *device)
{
    const struct kva_merge_args args = {.partial_count = limits_of(device)->partials_max + 1};
    kva_device_ops(device)->merge(device, &args);
}

static void call_shortlist(struct kva_device *device, struct kva_shortlist_request request)
{
    const struct kva_shortlist_args args = {
        .requests = &request, .count = 1, .tracked_count = 2, .vocab = 8};
    kva_device_ops(device)->shortlist(device, &args);
}

static void shortlist_none(struct kva_device *device)
{
    call_shortlist(device, (struct kva_shortlist_request){.k = 0});
}

static void shortlist_many(struct kva_device *device)
{
    call_shortlist(device, (struct kva_shortlist_request){.k = KVA_SHORTLIST_MAX + 1});
}

static void shortlist_watch(struct kva_device *device)
{
    call_shortlist(device, (struct kva_shortlist_request){
                               .k = 1, .tracked_first = UINT32_MAX, .tracked_count = 2});
}

static void shortlist_rank(struct kva_device *device)
{
    call_shortlist(device, (struct kva_shortlist_request){.k = 1, .rank = true});
}

static void test_check__merge_and_shortlist(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device();
    bool bounded = limits_of(device)->partials_max < UINT32_MAX;
    kva_device_close(device);
    if (bounded)
        refused("merge: ", "partial results", merge_many);
    refused("shortlist: ", "0 tokens", shortlist_none);
    refused("shortlist: ", "1025 tokens", shortlist_many);
    refused("shortlist: ", "tracked tokens", shortlist_watch);
    refused("shortlist: ", "none is tracked", shortlist_rank);
}

/* --- what is good passes ---------------------------------------------------------------------- */

static void test_check__good_calls_pass(void **state KVA_UNUSED)
{
    struct kva_device *device = open_device();
    const struct kva_ops *ops = kva_device_ops(device);
    struct kva_err err = {0};
    const struct kva_linear_args linear = good_linear();
    const struct kva_rope_args rope = good_rope();
    const struct kva_kv_append_args append = good_append();
    const struct kva_attend_args attend = good_attend();
    const struct kva_quantise_args quantise = good_quantise();
    const struct kva_attend_lowbit_args lowbit = good_lowbit();
    const struct kva_attend_rows_args rows = good_rows();
    const struct kva_weigh_args weigh = good_weigh();
    const struct kva_attend_select_fetch_args select = good_select();
    ops->linear(device, &linear);
    ops->rope(device, &rope);
    ops->kv_append(device, &append);
    ops->attend(device, &attend);
    ops->quantise(device, &quantise);
    ops->attend_lowbit(device, &lowbit);
    ops->attend_rows(device, &rows);
    ops->weigh(device, &weigh);
    ops->choose(device, &(struct kva_choose_args){.kv_heads = 1});
    ops->fetch_rows(device, &(struct kva_fetch_rows_args){.head_dim = 64});
    if (ops->attend_select_fetch)
        ops->attend_select_fetch(device, &select);
    if (ops->weigh_choose)
        ops->weigh_choose(device, &(struct kva_weigh_choose_args){weigh, {.kv_heads = 2}});
    ops->assign_slots(device, &(struct kva_assign_slots_args){.stamp = 1});
    ops->merge(device, &(struct kva_merge_args){.partial_count = 2});
    ops->shortlist(device, &(struct kva_shortlist_args){0});
    if (kva_device_error(device, &err) != KVA_OK)
        fail_msg("%s", err.message);
    kva_device_close(device);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check__dense),
        cmocka_unit_test(test_check__attend),
        cmocka_unit_test(test_check__lowbit),
        cmocka_unit_test(test_check__splits_apart),
        cmocka_unit_test(test_check__weighing_and_choosing_at_once),
        cmocka_unit_test(test_check__selection),
        cmocka_unit_test(test_check__merge_and_shortlist),
        cmocka_unit_test(test_check__good_calls_pass),
    };
    module_path = argc > 1 ? argv[1] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
