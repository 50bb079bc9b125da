/* Bad arguments, each in an otherwise good call: the device fails, by the operator's name, and
 * nothing is written. With the path of a CUDA module, for that device too. */
#include "tests/kernels/test_check.h"

static const char *module_path;

struct kva_device *open_device(void)
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

void refused(const char *op, const char *why, void (*call)(struct kva_device *device))
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

/* --- linear, rope, kv_append ------------------------------------------------------------------ */

static void linear_format(struct kva_device *device)
{
    struct kva_linear_args args = good_linear();
    args.weight.dtype = KVA_F16;
    kva_device_ops(device)->linear(device, &args);
}

static void group_of_many(struct kva_device *device)
{
    const struct kva_linear_args products[4] = {good_linear(), good_linear(), good_linear(),
                                                good_linear()};
    kva_device_ops(device)->linear_group(device, &(struct kva_linear_group_args){products, 4});
}

static void group_of_other_rows(struct kva_device *device)
{
    struct kva_linear_args products[2] = {good_linear(), good_linear()};
    products[1].x_stride = 16;
    kva_device_ops(device)->linear_group(device, &(struct kva_linear_group_args){products, 2});
}

static void glu_of_unlike(struct kva_device *device)
{
    struct kva_linear_glu_args args = good_linear_glu();
    args.up.weight.rows = args.up.out_stride = 16;
    kva_device_ops(device)->linear_glu(device, &args);
}

static void glu_added(struct kva_device *device)
{
    struct kva_linear_glu_args args = good_linear_glu();
    args.gate.accumulate = true;
    kva_device_ops(device)->linear_glu(device, &args);
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
    refused("linear_group: ", "4 products", group_of_many);
    refused("linear_group: ", "product 1 is of other rows", group_of_other_rows);
    refused("linear_glu: ", "as many outputs", glu_of_unlike);
    refused("linear_glu: ", "dense rows", glu_added);
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

static void lowbit_turned_before_rows(struct kva_device *device)
{
    struct kva_attend_lowbit_args args = good_lowbit();
    const struct kva_partial behind = {0};
    args.format = kva_lowbit_per_token(2, args.head_dim, KVA_CODING_TURNED);
    args.behind = &behind;
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
    refused("attend_lowbit: ", "behind turned codes", lowbit_turned_before_rows);
    refused("attend_lowbit: ", "groups of 128", lowbit_group);
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
    const struct kva_linear_glu_args glu = good_linear_glu();
    const struct kva_rope_args rope = good_rope();
    const struct kva_kv_append_args append = good_append();
    const struct kva_attend_args attend = good_attend();
    const struct kva_quantise_args quantise = good_quantise();
    const struct kva_attend_lowbit_args lowbit = good_lowbit();
    const struct kva_attend_rows_args rows = good_rows();
    const struct kva_weigh_args weigh = good_weigh();
    const struct kva_attend_select_fetch_args select = good_select();
    ops->linear(device, &linear);
    ops->linear_group(device, &(struct kva_linear_group_args){&linear, 1});
    ops->linear_glu(device, &glu);
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
        ops->weigh_choose(device, &(struct kva_weigh_choose_args){
                                      .weigh = weigh,
                                      .choose = {.kv_heads = 2},
                                      .format = {.bits = 1, .group = 64},
                                  });
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
