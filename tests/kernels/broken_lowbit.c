/* Deliberately broken operators of low-bit KV; broken.c says how they are used. */
#include "tests/kernels/broken.h"

#include <stdlib.h>
#include <string.h>

static const struct kva_ops *good;

/* --- quantise --------------------------------------------------------------------------------- */

static void quantise_no_exempt(struct kva_device *device, const struct kva_quantise_args *args)
{
    struct kva_quantise_args wrong = *args;
    wrong.exempt = NULL;
    good->quantise(device, &wrong);
}

static enum kva_lowbit_levels other_levels(enum kva_lowbit_levels levels)
{
    return levels == KVA_LEVELS_FIT ? KVA_LEVELS_PAPER : KVA_LEVELS_FIT;
}

static void quantise_other_levels(struct kva_device *device, const struct kva_quantise_args *args)
{
    struct kva_quantise_args wrong = *args;
    wrong.format.key_levels = other_levels(args->format.key_levels);
    wrong.format.value_levels = other_levels(args->format.value_levels);
    good->quantise(device, &wrong);
}

static void quantise_swapped_levels(struct kva_device *device, const struct kva_quantise_args *args)
{
    struct kva_quantise_args wrong = *args;
    wrong.format.key_levels = args->format.value_levels;
    wrong.format.value_levels = args->format.key_levels;
    good->quantise(device, &wrong);
}

/* One bit of everything, where values have two. */
static void quantise_values_as_keys(struct kva_device *device, const struct kva_quantise_args *args)
{
    struct kva_quantise_args wrong = *args;
    wrong.format.value_bits = 0;
    good->quantise(device, &wrong);
}

static void quantise_last_block(struct kva_device *device, const struct kva_quantise_args *args)
{
    struct kva_quantise_args wrong = *args;
    wrong.count--; /* the last block is never written */
    good->quantise(device, &wrong);
}

/* One bit of the last value of every block is the wrong one. */
static void quantise_one_code(struct kva_device *device, const struct kva_quantise_args *args)
{
    good->quantise(device, args);
    size_t bytes = kva_lowbit_block_bytes(args->format, args->kv_heads, args->head_dim);
    for (uint32_t i = 0; i < args->count; i++)
        ((unsigned char *)args->to[i] + args->to_offset_bytes)[bytes - 1] ^= 0x80;
}

static void quantise_writes_behind(struct kva_device *device, const struct kva_quantise_args *args)
{
    good->quantise(device, args);
    for (uint32_t i = 0; i < args->count; i++)
        ((unsigned char *)args->to[i])[-1] ^= 1;
}

/* --- attend_select_fetch ---------------------------------------------------------------------- */

#define SEQS_MAX 8

/* The call with its sequences changed. */
static void with_seqs(struct kva_device *device, const struct kva_attend_select_fetch_args *args,
                      void (*change)(struct kva_select_seq *seq))
{
    struct kva_attend_select_fetch_args wrong = *args;
    struct kva_select_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        change(&seqs[i]);
    }
    wrong.seqs = seqs;
    good->attend_select_fetch(device, &wrong);
}

static void lowbit_no_window(struct kva_device *device,
                             const struct kva_attend_select_fetch_args *args)
{
    struct kva_attend_select_fetch_args wrong = *args;
    wrong.window = 0;
    good->attend_select_fetch(device, &wrong);
}

static void lowbit_window(struct kva_device *device,
                          const struct kva_attend_select_fetch_args *args)
{
    struct kva_attend_select_fetch_args wrong = *args;
    wrong.window += wrong.window > 0;
    good->attend_select_fetch(device, &wrong);
}

static void forget_cache(struct kva_select_seq *seq)
{
    seq->rows = NULL;
}

static void lowbit_no_cache(struct kva_device *device,
                            const struct kva_attend_select_fetch_args *args)
{
    with_seqs(device, args, forget_cache);
}

static void last_page(struct kva_select_seq *seq)
{
    seq->page_count -= seq->page_count > 0;
}

static void lowbit_last_page(struct kva_device *device,
                             const struct kva_attend_select_fetch_args *args)
{
    with_seqs(device, args, last_page);
}

static void lowbit_group(struct kva_device *device, const struct kva_attend_select_fetch_args *args)
{
    struct kva_attend_select_fetch_args wrong = *args;
    wrong.format.group = args->format.group == 64 ? 32 : 64;
    if (kva_lowbit_head_bytes(wrong.format, args->head_dim) >
        kva_lowbit_head_bytes(args->format, args->head_dim))
        wrong.format = args->format;
    good->attend_select_fetch(device, &wrong);
}

static void by_slot(struct kva_select_seq *seq)
{
    /* Cached rows in the order of their slots: right, but other bits where they lie otherwise. */
    for (uint32_t head = 0; seq->rows && head < 1; head++) {
        uint32_t *order = seq->rows->order + (size_t)head * seq->rows->slots;
        for (uint32_t i = 1; i < seq->rows->count[head]; i++) {
            for (uint32_t j = i; j > 0 && order[j] < order[j - 1]; j--) {
                uint32_t slot = order[j];
                order[j] = order[j - 1];
                order[j - 1] = slot;
            }
        }
    }
}

static void lowbit_by_slot(struct kva_device *device,
                           const struct kva_attend_select_fetch_args *args)
{
    struct kva_attend_select_fetch_args no_window = *args;
    no_window.window = 0; /* a window counts on the order of positions */
    with_seqs(device, args->window ? args : &no_window, by_slot);
}

static void lowbit_no_rest(struct kva_device *device,
                           const struct kva_attend_select_fetch_args *args)
{
    struct kva_attend_select_fetch_args wrong = *args;
    wrong.rest = NULL;
    good->attend_select_fetch(device, &wrong);
}

static void first_row(struct kva_select_seq *seq)
{
    seq->select_row = seq->select_row < seq->row_count ? 0 : seq->select_row;
}

static void lowbit_first_row(struct kva_device *device,
                             const struct kva_attend_select_fetch_args *args)
{
    with_seqs(device, args, first_row);
}

static void lowbit_one_less(struct kva_device *device,
                            const struct kva_attend_select_fetch_args *args)
{
    /* The last of the chosen is lost. */
    good->attend_select_fetch(device, args);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_select_seq *seq = &args->seqs[i];
        if (seq->rows && seq->select_row < seq->row_count)
            seq->rows->chosen[seq->rows->k - 1] = KVA_NO_TOKEN;
    }
}

/* --- the calls that it stands for ------------------------------------------------------------- */

static void rows_not_folded(struct kva_device *device, const struct kva_attend_rows_args *args)
{
    struct kva_attend_rows_args wrong = *args;
    wrong.accumulate = false; /* what is there is lost */
    good->attend_rows(device, &wrong);
}

static void rows_no_window(struct kva_device *device, const struct kva_attend_rows_args *args)
{
    struct kva_attend_rows_args wrong = *args;
    wrong.window = 0;
    good->attend_rows(device, &wrong);
}

static void pages_attend_too(struct kva_device *device, const struct kva_attend_lowbit_args *args)
{
    struct kva_attend_lowbit_args wrong = *args;
    struct kva_lowbit_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        seqs[i].rows = NULL; /* the tokens of rows attend twice */
    }
    wrong.seqs = seqs;
    good->attend_lowbit(device, &wrong);
}

static void pages_whole(struct kva_device *device, const struct kva_attend_lowbit_args *args)
{
    struct kva_attend_lowbit_args wrong = *args;
    struct kva_lowbit_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        seqs[i].mean = NULL; /* scores lack what keys do */
    }
    wrong.seqs = seqs;
    good->attend_lowbit(device, &wrong);
}

static void weigh_no_rest(struct kva_device *device, const struct kva_weigh_args *args)
{
    struct kva_weigh_args wrong = *args;
    wrong.partial_count = 1;
    good->weigh(device, &wrong);
}

static void choose_least(struct kva_device *device, const struct kva_choose_args *args)
{
    struct kva_choose_args wrong = *args;
    wrong.kind = KVA_CHOOSE_LEAST;
    good->choose(device, &wrong);
}

static void choose_pinned(struct kva_device *device, const struct kva_choose_args *args)
{
    struct kva_choose_args wrong = *args;
    struct kva_choose_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        seqs[i].first = 0;
    }
    wrong.seqs = seqs;
    good->choose(device, &wrong);
}

static const struct broken list[] = {
    BREAKS(rows_not_folded, OP_ATTEND_ROWS, attend_rows),
    BREAKS(rows_no_window, OP_ATTEND_ROWS, attend_rows),
    BREAKS(pages_attend_too, OP_ATTEND_LOWBIT, attend_lowbit),
    BREAKS(pages_whole, OP_ATTEND_LOWBIT, attend_lowbit),
    BREAKS(weigh_no_rest, OP_WEIGH, weigh),
    BREAKS(choose_least, OP_CHOOSE, choose),
    BREAKS(choose_pinned, OP_CHOOSE, choose),
    BREAKS(quantise_no_exempt, OP_QUANTISE, quantise),
    BREAKS(quantise_other_levels, OP_QUANTISE, quantise),
    BREAKS(quantise_swapped_levels, OP_QUANTISE, quantise),
    BREAKS(quantise_values_as_keys, OP_QUANTISE, quantise),
    BREAKS(quantise_last_block, OP_QUANTISE, quantise),
    BREAKS(quantise_one_code, OP_QUANTISE, quantise),
    BREAKS(quantise_writes_behind, OP_QUANTISE, quantise),
    BREAKS(lowbit_no_window, OP_ATTEND_SELECT_FETCH, attend_select_fetch),
    BREAKS(lowbit_window, OP_ATTEND_SELECT_FETCH, attend_select_fetch),
    BREAKS(lowbit_no_cache, OP_ATTEND_SELECT_FETCH, attend_select_fetch),
    BREAKS(lowbit_last_page, OP_ATTEND_SELECT_FETCH, attend_select_fetch),
    BREAKS(lowbit_group, OP_ATTEND_SELECT_FETCH, attend_select_fetch),
    BREAKS(lowbit_by_slot, OP_ATTEND_SELECT_FETCH, attend_select_fetch),
    BREAKS(lowbit_no_rest, OP_ATTEND_SELECT_FETCH, attend_select_fetch),
    BREAKS(lowbit_first_row, OP_ATTEND_SELECT_FETCH, attend_select_fetch),
    BREAKS(lowbit_one_less, OP_ATTEND_SELECT_FETCH, attend_select_fetch),
};

const struct broken *broken_lowbit(const struct kva_ops *sound, size_t *ret_count)
{
    good = sound;
    *ret_count = KVA_COUNT_OF(list);
    return list;
}
