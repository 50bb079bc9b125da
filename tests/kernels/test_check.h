/* test_check.h - what the files of test_check share: a device, calls that are good but for what a test
 * makes bad of them, and that they are refused. */
#ifndef KVA_TESTS_KERNELS_TEST_CHECK_H
#define KVA_TESTS_KERNELS_TEST_CHECK_H

#include "kernels/backend.h"
#include "kernels/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The CPU's, or that of the module that was named. */
struct kva_device *open_device(void);

static inline const struct kva_op_limits *limits_of(const struct kva_device *device)
{
    return &((const struct kva_device_base *)device)->backend->limits;
}

/* The call in `call` fails a new device with a message that begins with `op` and contains `why`. */
void refused(const char *op, const char *why, void (*call)(struct kva_device *device));

/* --- good calls ------------------------------------------------------------------------------- */

/* Calls without rows or sequences: what is wrong with them is found all the same, and where nothing
 * is, nothing is done. */
static inline struct kva_linear_args good_linear(void)
{
    return (struct kva_linear_args){.weight = {.dtype = KVA_F32, .rows = 8, .cols = 8}};
}

static inline struct kva_linear_glu_args good_linear_glu(void)
{
    struct kva_linear_glu_args args = {.gate = good_linear(), .up = good_linear()};
    args.gate.out_stride = args.up.out_stride = 8;
    return args;
}

static inline struct kva_rope_args good_rope(void)
{
    return (struct kva_rope_args){.head_dim = 64, .rotary_dim = 64};
}

static inline struct kva_kv_append_args good_append(void)
{
    return (struct kva_kv_append_args){.head_dim = 64, .kv_heads = 2, .kv_dtype = KVA_BF16};
}

static inline struct kva_attend_args good_attend(void)
{
    return (struct kva_attend_args){
        .heads = 4, .kv_heads = 2, .head_dim = 64, .kv_dtype = KVA_BF16};
}

static inline struct kva_quantise_args good_quantise(void)
{
    return (struct kva_quantise_args){
        .kv_heads = 2, .head_dim = 64, .kv_dtype = KVA_BF16, .format = {.bits = 2, .group = 64}};
}

static inline struct kva_attend_select_fetch_args good_select(void)
{
    return (struct kva_attend_select_fetch_args){.heads = 4,
                                                 .kv_heads = 2,
                                                 .head_dim = 64,
                                                 .kv_dtype = KVA_BF16,
                                                 .format = {.bits = 2, .group = 64}};
}

static inline struct kva_attend_lowbit_args good_lowbit(void)
{
    return (struct kva_attend_lowbit_args){
        .heads = 4, .kv_heads = 2, .head_dim = 64, .format = {.bits = 2, .group = 64}};
}

static inline struct kva_attend_rows_args good_rows(void)
{
    return (struct kva_attend_rows_args){
        .heads = 4, .kv_heads = 2, .head_dim = 64, .kv_dtype = KVA_BF16};
}

static inline struct kva_weigh_args good_weigh(void)
{
    return (struct kva_weigh_args){
        .partial_count = 1, .heads = 4, .kv_heads = 2, .head_dim = 64, .kv_dtype = KVA_BF16};
}

/* Four of eight slots are pinned, and four rows are chosen; the row at 0 selects. */
static inline struct kva_row_cache good_slots(void)
{
    return (struct kva_row_cache){.slots = 8, .pinned = 4, .k = 4};
}

/* A call with one sequence of one row and ten pages, which selects among them. */
static inline void call_selecting(struct kva_device *device,
                                  struct kva_attend_select_fetch_args args,
                                  const struct kva_row_cache *slots, struct kva_select_seq seq)
{
    seq.row_count = seq.row_count ? seq.row_count : 1;
    seq.page_count = 10;
    seq.rows = slots;
    args.seqs = &seq;
    args.seq_count = 1;
    kva_device_ops(device)->attend_select_fetch(device, &args);
}

/* --- test_check_select.c ---------------------------------------------------------------------- */

void test_check__splits_apart(void **state);
void test_check__weighing_and_choosing_at_once(void **state);
void test_check__selection(void **state);

#endif
