/* Cases of keep, against a plain model: every variant must give its bits. */
#include "tests/kernels/checkasm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS = 2, STEPS = 5 };

/* A sequence's arrays, [kv_heads] of each. */
struct keep_bufs {
    struct check_buf positions, mass, error, new_mass, new_error, to;
};

static struct keep_bufs bufs_new(uint32_t kv_heads, uint32_t slots, uint32_t stride, uint32_t count)
{
    const size_t words = (size_t)kv_heads * sizeof(uint32_t);
    return (struct keep_bufs){.positions = check_buf_new(words * slots),
                              .mass = check_buf_new(words * slots),
                              .error = check_buf_new(words * slots),
                              .new_mass = check_buf_new(words * stride),
                              .new_error = check_buf_new(words * stride),
                              .to = check_buf_new(words * count)};
}

static void bufs_free(struct keep_bufs *bufs)
{
    check_buf_free(&bufs->positions);
    check_buf_free(&bufs->mass);
    check_buf_free(&bufs->error);
    check_buf_free(&bufs->new_mass);
    check_buf_free(&bufs->new_error);
    check_buf_free(&bufs->to);
}

static void bufs_copy(struct keep_bufs *to, const struct keep_bufs *from)
{
    memcpy(to->positions.data, from->positions.data, from->positions.bytes);
    memcpy(to->mass.data, from->mass.data, from->mass.bytes);
    memcpy(to->error.data, from->error.data, from->error.bytes);
}

static const char *bufs_compare(const struct keep_bufs *got, const struct keep_bufs *want)
{
    if (memcmp(got->to.data, want->to.data, want->to.bytes) != 0)
        return "other slots";
    if (memcmp(got->positions.data, want->positions.data, want->positions.bytes) != 0)
        return "other positions";
    if (memcmp(got->mass.data, want->mass.data, want->mass.bytes) != 0)
        return "other masses";
    if (memcmp(got->error.data, want->error.data, want->error.bytes) != 0)
        return "other errors";
    if (!check_buf_intact(&got->to) || !check_buf_intact(&got->positions) ||
        !check_buf_intact(&got->mass) || !check_buf_intact(&got->error))
        return "wrote before an array";
    return NULL;
}

/* --- the model -------------------------------------------------------------------------------- */

struct entry {
    uint32_t position;
    uint32_t order; /* of equals the less stays */
    uint32_t index; /* slots first, then tokens that come */
    float mass, error;
    float score;
    bool outright, stays;
};

/* Whether `a` is better by a number; of equals the one with the lower order. NaN is the least. */
static bool better(float a, float b, uint32_t position_a, uint32_t position_b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? position_a < position_b : isnan(b);
    return a != b ? a > b : position_a < position_b;
}

/* Mark the `count` best of those not yet kept outright. */
static void pick(struct entry *all, uint32_t total, uint32_t count, bool by_mass, bool outright)
{
    for (uint32_t n = 0; n < count; n++) {
        struct entry *best = NULL;
        for (uint32_t i = 0; i < total; i++) {
            struct entry *e = &all[i];
            if (e->stays || e->outright)
                continue;
            if (!best || better(by_mass ? e->mass : e->score, by_mass ? best->mass : best->score,
                                e->order, best->order))
                best = e;
        }
        if (best && outright)
            best->outright = true;
        else if (best)
            best->stays = true;
    }
}

static float norm(const struct entry *all, uint32_t total, uint32_t i, bool error,
                  enum kva_keep_score score)
{
    const float x = error ? -all[i].error : all[i].mass;
    float low = INFINITY, high = -INFINITY;
    uint32_t below = 0;
    for (uint32_t j = 0; j < total; j++) {
        const float y = error ? -all[j].error : all[j].mass;
        low = y < low ? y : low;
        high = y > high ? y : high;
        if (isnan(y) ? !isnan(x) : y < x)
            below++;
    }
    if (score == KVA_KEEP_RANK)
        return (float)below / (float)(total - 1);
    return low < high && !isnan(x) ? (x - low) / (high - low) : 0.0f;
}

static void keep_model(const struct kva_keep_args *args, const struct kva_keep_seq *seq,
                       uint32_t kv_head)
{
    const uint32_t slots = seq->store.slots, total = seq->filled + seq->count;
    uint32_t *positions = seq->store.positions + (size_t)kv_head * slots;
    float *mass = seq->store.mass + (size_t)kv_head * slots;
    float *error = seq->store.error + (size_t)kv_head * slots;
    uint32_t *to = seq->to + (size_t)kv_head * seq->count;
    struct entry *all = calloc(total + 1, sizeof *all);
    uint32_t outright = 0;
    for (uint32_t i = 0; i < total; i++) {
        const size_t come = (size_t)kv_head * seq->stride + i - seq->filled;
        const bool old = i < seq->filled;
        all[i].index = i;
        all[i].position = old ? positions[i] : seq->position_first + i - seq->filled;
        all[i].order = seq->newer ? UINT32_MAX - all[i].position : all[i].position;
        all[i].mass = old ? mass[i] : seq->mass ? seq->mass[come] : 0;
        all[i].error = old ? error[i] : seq->error ? seq->error[come] : 0.0f;
        all[i].outright = total <= slots || all[i].position < seq->sinks ||
                          all[i].position + seq->recent >= seq->position_first + seq->count;
        outright += all[i].outright;
    }
    if (total > slots && args->score != KVA_KEEP_MASS) {
        pick(all, total, kva_min_u32(seq->pure, slots - outright), true, true);
        outright += kva_min_u32(seq->pure, slots - outright);
        for (uint32_t i = 0; i < total; i++) {
            const float by_mass = args->lambda * norm(all, total, i, false, args->score);
            const float by_error = (1.0f - args->lambda) * norm(all, total, i, true, args->score);
            all[i].score = by_mass + by_error;
        }
    }
    if (total > slots)
        pick(all, total, slots - outright, args->score == KVA_KEEP_MASS, false);
    uint32_t slot = 0;
    for (uint32_t i = 0; i < seq->count; i++) {
        const struct entry *e = &all[seq->filled + i];
        to[i] = KVA_NO_SLOT;
        if (!e->outright && !e->stays)
            continue;
        while (slot < seq->filled && (all[slot].outright || all[slot].stays))
            slot++;
        to[i] = slot;
        positions[slot] = e->position;
        mass[slot] = e->mass;
        error[slot] = e->error;
        slot++;
    }
    free(all);
}

/* --- cases ------------------------------------------------------------------------------------ */

/* One number: few different ones, for ties; no numbers and far ones among others; numbers that are
 * close together, and one that is far; what is at the ends of the order. */
static float make_value(struct check *check, uint32_t kind)
{
    const float x = fabsf(check_normal(check));
    const float ends[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, -x, x, 0x1p-149f};
    switch (kind) {
    case 0:
        return 0.5f;
    case 1:
        return rintf(3 * x) * 0.25f;
    case 2:
        return check_below(check, 20) == 0 ? check_below(check, 2) ? NAN : 100 * x : x;
    case 3:
        return check_below(check, 200) == 0 ? 1e30f
                                            : 1.0f + 0x1p-23f * (float)check_below(check, 5000);
    case 4:
        return ends[check_below(check, KVA_COUNT_OF(ends))];
    default:
        return x;
    }
}

static void fill_values(struct check *check, float *to, size_t count)
{
    const uint32_t kind = check_below(check, 6);
    for (size_t i = 0; i < count; i++)
        to[i] = make_value(check, kind);
}

/* Numbers whose least that stays is near the end of a range of 2^13 of the 2^24 that all lie in,
 * the range's least at its beginning, and larger ones close behind it. */
static void fill_edge(float *to, uint32_t count, uint32_t slots)
{
    for (uint32_t rank = 0; rank < count; rank++) {
        uint32_t x = (1000 << 13) + 8190 + (slots - 1) - rank;
        if (rank == 0)
            x = (1 << 24) - 1;
        else if (rank == count - 1)
            x = 0;
        else if (rank > slots)
            x = (1000 << 13) + 1 - (rank > slots + 1 ? rank - slots : 0);
        x += 0x3F800000u; /* 1.0f */
        memcpy(&to[rank * 7 % count], &x, sizeof x);
    }
}

struct keep_shape {
    uint32_t slots, count, sinks, recent, pure, kv_heads;
    enum kva_keep_score score;
    float lambda;
    uint32_t first; /* tokens that come first; 0: `count`, and thrice as many */
    bool edge;      /* those of fill_edge come first */
};

static uint32_t tokens_of(const struct keep_shape *shape, uint32_t seq, uint32_t step)
{
    if (step == 0)
        return shape->first ? shape->first : (seq ? 3 : 1) * shape->count;
    return step == 3 ? 0 : shape->count;
}

/* A store that fills and is full: steps with `count` tokens each, another number in the first. */
static void keep_case(struct check *check, const struct keep_shape *shape)
{
    struct keep_bufs want[SEQS], got[SEQS], before[SEQS];
    struct kva_keep_seq seqs[SEQS];
    struct kva_keep_args args = {.seqs = seqs,
                                 .seq_count = SEQS,
                                 .kv_heads = shape->kv_heads,
                                 .score = shape->score,
                                 .lambda = shape->lambda};
    const double work = 2.0 * shape->kv_heads * (shape->slots + 3.0 * shape->count) * 8;
    char name[160];
    if (!check_wanted(check, OP_KEEP, work))
        return;
    const uint32_t most = kva_max_u32(shape->first, 3 * shape->count), stride = most + 2;
    for (int i = 0; i < SEQS; i++) {
        want[i] = bufs_new(shape->kv_heads, shape->slots, stride, most);
        got[i] = bufs_new(shape->kv_heads, shape->slots, stride, most);
        before[i] = bufs_new(shape->kv_heads, shape->slots, stride, most);
        check_buf_garbage(check, &want[i].positions);
        check_buf_garbage(check, &want[i].mass);
        check_buf_garbage(check, &want[i].error);
        seqs[i] = (struct kva_keep_seq){.stride = stride,
                                        .sinks = shape->sinks,
                                        .recent = shape->recent,
                                        .pure = shape->pure,
                                        .newer = i > 0,
                                        .position_first = i ? 90 : 0};
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        struct check_variant *variant;
        struct kva_device *device;
        uint32_t run = 0;
        args.scratch_bytes = 0;
        for (int i = 0; i < SEQS; i++) {
            struct kva_keep_seq *seq = &seqs[i];
            seq->count = tokens_of(shape, (uint32_t)i, step);
            fill_values(check, want[i].new_mass.data, want[i].new_mass.bytes / sizeof(float));
            fill_values(check, want[i].new_error.data, want[i].new_error.bytes / sizeof(float));
            if (shape->edge && step == 0)
                fill_edge(want[i].new_mass.data, seq->count, shape->slots);
            bufs_copy(&before[i], &want[i]);
            seq->mass = step == 2 ? NULL : want[i].new_mass.data;
            seq->error = want[i].new_error.data;
            seq->to = want[i].to.data;
            seq->store = (struct kva_keep_store){want[i].positions.data, want[i].mass.data,
                                                 want[i].error.data, shape->slots};
            check_buf_garbage(check, &want[i].to);
            memcpy(before[i].to.data, want[i].to.data, want[i].to.bytes);
            for (uint32_t head = 0; head < shape->kv_heads; head++)
                keep_model(&args, seq, head);
            args.scratch_bytes += kva_keep_scratch_bytes(shape->kv_heads, seq->filled, seq->count);
        }
        struct check_buf scratch = check_buf_new(args.scratch_bytes);
        args.scratch = scratch.data;
        snprintf(name, sizeof name,
                 "slots %u count %u sinks %u recent %u pure %u score %d lambda %g step %u",
                 shape->slots, shape->count, shape->sinks, shape->recent, shape->pure,
                 (int)shape->score, (double)shape->lambda, step);
        while (check_next_run(check, work, &run, &variant, &device)) {
            const char *reason = NULL;
            check_buf_garbage(check, &scratch);
            for (int i = 0; i < SEQS; i++) {
                bufs_copy(&got[i], &before[i]);
                memcpy(got[i].to.data, before[i].to.data, before[i].to.bytes);
                seqs[i].to = got[i].to.data;
                seqs[i].store = (struct kva_keep_store){got[i].positions.data, got[i].mass.data,
                                                        got[i].error.data, shape->slots};
            }
            variant->ops.keep(device, &args);
            for (int i = 0; i < SEQS && !reason; i++)
                reason = bufs_compare(&got[i], &want[i]);
            if (!check_buf_intact(&scratch))
                reason = "wrote before its scratch";
            check_count_run(check, variant, OP_KEEP, device, name, reason);
        }
        for (int i = 0; i < SEQS; i++) {
            seqs[i].store.slots = shape->slots;
            const uint32_t filled = kva_keep_filled(&seqs[i]);
            seqs[i].position_first += seqs[i].count;
            seqs[i].filled = filled;
        }
        check_buf_free(&scratch);
    }
    for (int i = 0; i < SEQS; i++) {
        bufs_free(&want[i]);
        bufs_free(&got[i]);
        bufs_free(&before[i]);
    }
}

void check_keep(struct check *check)
{
    const struct keep_shape shapes[] = {
        {64, 64, 4, 0, 0, 2, KVA_KEEP_MASS, 1, 0, false},
        {128, 64, 0, 16, 0, 3, KVA_KEEP_MASS, 0, 0, false},
        {64, 7, 1, 63, 5, 1, KVA_KEEP_MASS, 0, 0, false},
        {1, 5, 0, 0, 0, 2, KVA_KEEP_MASS, 0, 0, false},
        {0, 3, 0, 0, 0, 2, KVA_KEEP_MASS, 0, 0, false},
        {192, 64, 4, 10, 14, 2, KVA_KEEP_MINMAX, 0.5f, 0, false},
        {64, 30, 2, 3, 70, 2, KVA_KEEP_MINMAX, 1, 0, false},
        {64, 64, 0, 0, 0, 1, KVA_KEEP_MINMAX, 0, 0, false},
        {128, 64, 4, 9, 9, 2, KVA_KEEP_RANK, 0.5f, 0, false},
        {64, 61, 0, 0, 4, 3, KVA_KEEP_RANK, 0.3f, 0, false},
        {320, 200, 4, 32, 20, 1, KVA_KEEP_RANK, 1, 0, false},
        {576, 300, 4, 64, 40, 1, KVA_KEEP_MASS, 1, 0, false},
        {64, 0, 4, 3, 2, 2, KVA_KEEP_RANK, 0.5f, 0, false},
        /* One more than there are slots; all of them protected; thousands. */
        {600, 1, 4, 30, 10, 1, KVA_KEEP_RANK, 0.4f, 600, false},
        {600, 5, 4, 596, 3, 1, KVA_KEEP_RANK, 0.5f, 600, false},
        {2200, 64, 4, 64, 30, 1, KVA_KEEP_RANK, 0.5f, 2200, false},
        {2500, 64, 4, 64, 0, 1, KVA_KEEP_MASS, 1, 2600, false},
        {900, 300, 4, 32, 50, 1, KVA_KEEP_MINMAX, 0.5f, 1700, false},
        {100, 60, 0, 0, 0, 1, KVA_KEEP_MASS, 1, 180, true},
    };
    for (int round = 0; round < (check->quick ? 1 : 3); round++) {
        for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
            keep_case(check, &shapes[i]);
    }
}
