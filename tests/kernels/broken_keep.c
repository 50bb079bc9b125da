/* Deliberately broken operators of kept rows; broken.c says how they are used. */
#include "tests/kernels/broken.h"

#include <stdlib.h>
#include <string.h>

static const struct kva_ops *good;

#define SEQS_MAX 4

/* --- attend_mass ------------------------------------------------------------------------------ */

static void mass_not_causal(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    struct kva_attend_mass_args wrong = *args;
    struct kva_mass_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        seqs[i].position_first++; /* a row sees the token behind it */
    }
    wrong.seqs = seqs;
    good->attend_mass(device, &wrong);
}

static void mass_one_partial(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    struct kva_attend_mass_args wrong = *args;
    wrong.partial_count = 1;
    good->attend_mass(device, &wrong);
}

static void mass_anew(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    for (uint32_t i = 0; i < args->seq_count; i++)
        memset(args->seqs[i].mass, 0, (size_t)args->seqs[i].mass_stride * sizeof(float));
    good->attend_mass(device, args);
}

static void mass_no_scale(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    struct kva_attend_mass_args wrong = *args;
    wrong.scale *= 1 + 0x1p-12f;
    good->attend_mass(device, &wrong);
}

/* Of scores that attention has kept, those of the tokens behind. */
static void mass_next_score(struct kva_device *device, const struct kva_attend_mass_args *args)
{
    struct kva_attend_mass_args wrong = *args;
    struct kva_mass_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_attend_scores *scores = &args->seqs[i].scores;
        const size_t lines = (size_t)args->heads * scores->split_count;
        seqs[i] = args->seqs[i];
        for (size_t j = 0; scores->data && j < lines * KVA_ATTEND_SPLIT_TOKENS - 1; j++)
            scores->data[j] = scores->data[j + 1];
    }
    wrong.seqs = seqs;
    good->attend_mass(device, &wrong);
}

/* --- keep ------------------------------------------------------------------------------------- */

static void keep_changed(struct kva_device *device, const struct kva_keep_args *args,
                         void (*change)(struct kva_keep_seq *seq))
{
    struct kva_keep_args wrong = *args;
    struct kva_keep_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        change(&seqs[i]);
    }
    wrong.seqs = seqs;
    good->keep(device, &wrong);
}

static void no_sinks(struct kva_keep_seq *seq)
{
    seq->sinks = 0;
}

static void keep_no_sinks(struct kva_device *device, const struct kva_keep_args *args)
{
    keep_changed(device, args, no_sinks);
}

static void one_recent_less(struct kva_keep_seq *seq)
{
    seq->recent -= seq->recent > 0;
}

static void keep_one_recent_less(struct kva_device *device, const struct kva_keep_args *args)
{
    keep_changed(device, args, one_recent_less);
}

static void no_pure(struct kva_keep_seq *seq)
{
    seq->pure = 0;
}

static void keep_no_pure(struct kva_device *device, const struct kva_keep_args *args)
{
    keep_changed(device, args, no_pure);
}

static void other_tie(struct kva_keep_seq *seq)
{
    seq->newer = !seq->newer;
}

static void keep_other_tie(struct kva_device *device, const struct kva_keep_args *args)
{
    keep_changed(device, args, other_tie);
}

static void keep_other_norm(struct kva_device *device, const struct kva_keep_args *args)
{
    struct kva_keep_args wrong = *args;
    if (args->score == KVA_KEEP_RANK)
        wrong.score = KVA_KEEP_MINMAX;
    good->keep(device, &wrong);
}

static void keep_by_mass(struct kva_device *device, const struct kva_keep_args *args)
{
    struct kva_keep_args wrong = *args;
    wrong.score = KVA_KEEP_MASS;
    good->keep(device, &wrong);
}

/* --- rows ------------------------------------------------------------------------------------- */

static void error_of_keys(struct kva_device *device, const struct kva_row_error_args *args)
{
    struct kva_row_error_args wrong = *args;
    wrong.format.bits = args->format.bits == 8 ? 4 : 8;
    good->row_error(device, &wrong);
}

static void error_no_offset(struct kva_device *device, const struct kva_row_error_args *args)
{
    struct kva_row_error_args wrong = *args;
    wrong.block_offset_bytes = 0;
    good->row_error(device, &wrong);
}

static void error_no_mean(struct kva_device *device, const struct kva_row_error_args *args)
{
    struct kva_row_error_args wrong = *args;
    struct kva_row_error_seq seq = args->seqs[0];
    seq.mean = NULL;
    wrong.seqs = &seq;
    good->row_error(device, &wrong);
}

static void mean_one_less(struct kva_device *device, const struct kva_mean_keys_args *args)
{
    struct kva_mean_keys_args wrong = *args;
    wrong.end -= args->end - args->first > 1;
    good->mean_keys(device, &wrong);
}

static void mean_of_values(struct kva_device *device, const struct kva_mean_keys_args *args)
{
    struct kva_mean_keys_args wrong = *args;
    wrong.block_offset_bytes += (size_t)args->head_dim * 2;
    good->mean_keys(device, &wrong);
}

/* A case has two sequences (check_store.c); the first is stored otherwise than asked. */
static void store_wrong(struct kva_device *device, const struct kva_store_rows_args *args,
                        const struct kva_store_seq *first)
{
    const struct kva_store_seq seqs[] = {*first, args->seqs[1]};
    struct kva_store_rows_args wrong = *args;
    wrong.seqs = seqs;
    good->store_rows(device, &wrong);
}

static void store_no_mean(struct kva_device *device, const struct kva_store_rows_args *args)
{
    struct kva_store_seq seq = args->seqs[0];
    seq.mean = NULL;
    store_wrong(device, args, &seq);
}

static void store_next_position(struct kva_device *device, const struct kva_store_rows_args *args)
{
    struct kva_store_seq seq = args->seqs[0];
    seq.position_first++;
    store_wrong(device, args, &seq);
}

static void store_one_less(struct kva_device *device, const struct kva_store_rows_args *args)
{
    /* The last token of a KV head is forgotten. */
    struct kva_store_seq seq = args->seqs[0];
    const size_t words = (size_t)args->kv_heads * seq.count;
    uint32_t *slots = malloc(words * sizeof *slots);
    memcpy(slots, seq.slots, words * sizeof *slots);
    for (size_t i = seq.count - 1; i < words; i += seq.count)
        slots[i] = KVA_NO_SLOT;
    seq.slots = slots;
    store_wrong(device, args, &seq);
    free(slots);
}

/* As store_wrong (check_roll.c). */
static void roll_wrong(struct kva_device *device, const struct kva_roll_rows_args *args,
                       const struct kva_roll_seq *first)
{
    const struct kva_roll_seq seqs[] = {*first, args->seqs[1]};
    struct kva_roll_rows_args wrong = *args;
    wrong.seqs = seqs;
    good->roll_rows(device, &wrong);
}

static void roll_from_zero(struct kva_device *device, const struct kva_roll_rows_args *args)
{
    struct kva_roll_seq seq = args->seqs[0];
    seq.position_first = 0;
    roll_wrong(device, args, &seq);
}

static void roll_no_mean(struct kva_device *device, const struct kva_roll_rows_args *args)
{
    struct kva_roll_seq seq = args->seqs[0];
    seq.mean = NULL;
    roll_wrong(device, args, &seq);
}

static void roll_by_slot(struct kva_device *device, const struct kva_roll_rows_args *args)
{
    struct kva_roll_seq seq = args->seqs[0];
    const size_t words = (size_t)args->kv_heads * seq.slots;
    uint32_t *positions = malloc(words * sizeof *positions);
    for (size_t i = 0; i < words; i++)
        positions[i] = (uint32_t)i;
    seq.positions = positions;
    roll_wrong(device, args, &seq);
    free(positions);
}

/* --- use_rows ---------------------------------------------------------------------------------- */

static void use_changed(struct kva_device *device, const struct kva_use_rows_args *args,
                        void (*change)(struct kva_use_seq *seq))
{
    struct kva_use_rows_args wrong = *args;
    struct kva_use_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        change(&seqs[i]);
    }
    wrong.seqs = seqs;
    good->use_rows(device, &wrong);
}

static void one_halved_less(struct kva_use_seq *seq)
{
    seq->filled -= seq->filled > 0;
}

static void use_one_halved_less(struct kva_device *device, const struct kva_use_rows_args *args)
{
    use_changed(device, args, one_halved_less);
}

static void all_stamped_alike(struct kva_use_seq *seq)
{
    seq->step = 0;
}

static void use_stamped_alike(struct kva_device *device, const struct kva_use_rows_args *args)
{
    use_changed(device, args, all_stamped_alike);
}

static const struct broken list[] = {
    BREAKS(mass_not_causal, OP_ATTEND_MASS, attend_mass),
    BREAKS(mass_one_partial, OP_ATTEND_MASS, attend_mass),
    BREAKS(mass_anew, OP_ATTEND_MASS, attend_mass),
    BREAKS(mass_no_scale, OP_ATTEND_MASS, attend_mass),
    BREAKS(mass_next_score, OP_ATTEND_MASS, attend_mass),
    BREAKS(keep_no_sinks, OP_KEEP, keep),
    BREAKS(keep_one_recent_less, OP_KEEP, keep),
    BREAKS(keep_no_pure, OP_KEEP, keep),
    BREAKS(keep_other_tie, OP_KEEP, keep),
    BREAKS(keep_other_norm, OP_KEEP, keep),
    BREAKS(keep_by_mass, OP_KEEP, keep),
    BREAKS(use_one_halved_less, OP_USE_ROWS, use_rows),
    BREAKS(use_stamped_alike, OP_USE_ROWS, use_rows),
    BREAKS(mean_one_less, OP_MEAN_KEYS, mean_keys),
    BREAKS(mean_of_values, OP_MEAN_KEYS, mean_keys),
    BREAKS(error_of_keys, OP_ROW_ERROR, row_error),
    BREAKS(error_no_offset, OP_ROW_ERROR, row_error),
    BREAKS(error_no_mean, OP_ROW_ERROR, row_error),
    BREAKS(store_no_mean, OP_STORE_ROWS, store_rows),
    BREAKS(store_next_position, OP_STORE_ROWS, store_rows),
    BREAKS(store_one_less, OP_STORE_ROWS, store_rows),
    BREAKS(roll_from_zero, OP_ROLL_ROWS, roll_rows),
    BREAKS(roll_no_mean, OP_ROLL_ROWS, roll_rows),
    BREAKS(roll_by_slot, OP_ROLL_ROWS, roll_rows),
};

const struct broken *broken_keep(const struct kva_ops *sound, size_t *ret_count)
{
    good = sound;
    *ret_count = KVA_COUNT_OF(list);
    return list;
}
