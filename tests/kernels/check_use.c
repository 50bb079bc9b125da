/* Cases of use_rows, against a plain model: every variant must give its bits. */
#include "tests/kernels/checkasm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS = 2, HEADS = 3 };

static void use_model(const struct kva_use_seq *seq, const uint32_t *used, float *mass)
{
    bool full = false;
    for (uint32_t i = 0; i < seq->count; i++) {
        if (used[i] == KVA_NO_SLOT)
            continue;
        if (seq->rule == KVA_USE_STAMP)
            mass[used[i]] = (float)((double)seq->first + (double)seq->step * i);
        else
            mass[used[i]] += 1;
        full |= seq->rule == KVA_USE_COUNT && mass[used[i]] >= KVA_USES_MAX;
    }
    for (uint32_t i = 0; full && i < seq->filled; i++)
        mass[i] = (float)((uint32_t)mass[i] / 2);
}

/* Different slots, and none: a walk through the slots by a step that shares no factor with them. */
static void fill_used(struct check *check, uint32_t *used, const struct kva_use_seq *seq)
{
    const uint32_t at = seq->filled ? check_below(check, seq->filled) : 0;
    for (uint32_t i = 0; i < seq->count; i++) {
        const bool none = i >= seq->filled || check_below(check, 5) == 0;
        used[i] = none ? KVA_NO_SLOT : (at + seq->filled - i) % seq->filled;
    }
}

/* Counts, some of them about to be full. */
static void fill_mass(struct check *check, float *mass, uint32_t slots, bool nearly)
{
    for (uint32_t i = 0; i < slots; i++)
        mass[i] = (float)check_below(check, nearly ? 255 : 200);
}

struct use_shape {
    uint32_t slots, filled, count;
    enum kva_use_rule rule;
    float first, step;
};

static void use_case(struct check *check, const struct use_shape *shape)
{
    struct check_buf used[SEQS], mass[SEQS], want[SEQS], before[SEQS];
    struct kva_use_seq seqs[SEQS];
    struct check_variant *variant;
    struct kva_device *device;
    uint32_t run = 0;
    char name[120];
    const double work = (double)HEADS * (shape->slots + shape->count);
    if (!check_wanted(check, OP_USE_ROWS, work))
        return;
    for (uint32_t i = 0; i < SEQS; i++) {
        used[i] = check_buf_new((size_t)HEADS * shape->count * sizeof(uint32_t));
        mass[i] = check_buf_new((size_t)HEADS * shape->slots * sizeof(float));
        want[i] = check_buf_new(mass[i].bytes);
        before[i] = check_buf_new(mass[i].bytes);
        seqs[i] = (struct kva_use_seq){.used = used[i].data,
                                       .mass = mass[i].data,
                                       .count = shape->count,
                                       .slots = shape->slots,
                                       .filled = shape->filled,
                                       .rule = shape->rule,
                                       .first = shape->first,
                                       .step = shape->step};
        fill_mass(check, want[i].data, HEADS * shape->slots, i == 0);
        memcpy(before[i].data, want[i].data, want[i].bytes);
        for (uint32_t head = 0; head < HEADS; head++) {
            uint32_t *own = (uint32_t *)used[i].data + (size_t)head * shape->count;
            fill_used(check, own, &seqs[i]);
            use_model(&seqs[i], own, (float *)want[i].data + (size_t)head * shape->slots);
        }
    }
    snprintf(name, sizeof name, "slots %u filled %u count %u rule %d", shape->slots, shape->filled,
             shape->count, (int)shape->rule);
    while (check_next_run(check, work, &run, &variant, &device)) {
        const char *reason = NULL;
        for (uint32_t i = 0; i < SEQS; i++)
            memcpy(mass[i].data, before[i].data, before[i].bytes);
        variant->ops.use_rows(device, &(struct kva_use_rows_args){seqs, SEQS, HEADS});
        for (uint32_t i = 0; i < SEQS && !reason; i++) {
            if (memcmp(mass[i].data, want[i].data, want[i].bytes) != 0)
                reason = "other masses";
            else if (!check_buf_intact(&mass[i]))
                reason = "wrote before an array";
        }
        check_count_run(check, variant, OP_USE_ROWS, device, name, reason);
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        check_buf_free(&used[i]);
        check_buf_free(&mass[i]);
        check_buf_free(&want[i]);
        check_buf_free(&before[i]);
    }
}

void check_use_rows(struct check *check)
{
    const struct use_shape shapes[] = {
        {64, 64, 64, KVA_USE_COUNT, 0, 0},           {192, 128, 40, KVA_USE_COUNT, 0, 0},
        {640, 640, 600, KVA_USE_COUNT, 0, 0},        {128, 0, 5, KVA_USE_COUNT, 0, 0},
        {192, 192, 64, KVA_USE_STAMP, 1000, 0},      {128, 128, 64, KVA_USE_STAMP, 64, 1},
        {576, 576, 560, KVA_USE_STAMP, 0.25f, 0.5f},
    };
    for (int round = 0; round < (check->quick ? 1 : 3); round++) {
        for (size_t i = 0; i < KVA_COUNT_OF(shapes); i++)
            use_case(check, &shapes[i]);
    }
}
