/* Cases of store_rows, against plain models. Codes are exact where nothing is rotated; what is rotated is
 * compared with fp64. */
#include "kernels/convert.h"
#include "tests/kernels/store_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens more than there are slots, so that most have none, and more than a block of threads looks
 * at at once. */
#define MANY 2100u

/* One sequence. */
struct store_test {
    struct store_shape shape;
    struct check_buf from[STORE_PAGES], to[STORE_PAGES], slots, mean;
    unsigned char *before[STORE_PAGES], *want[STORE_PAGES];
    const void *from_blocks[MANY / KVA_PAGE_TOKENS + 1]; /* the same ones over and over */
    void *to_blocks[STORE_PAGES];
    float inv_freq[256];
    uint32_t count, slot_count, position_first;
};

/* Largest number of a row; NaN or infinite: such a row is not compared once rotated. */
static double widen_row(const struct store_shape *shape, const uint16_t *row, double *x)
{
    double most = 0;
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        x[c] = check_widen(row[c], shape->dtype);
        most = isnan(x[c]) || fabs(x[c]) > most ? fabs(x[c]) : most;
    }
    return most;
}

/* What the blocks should hold where nothing is rotated; of rotated keys the old bytes. */
static void store_model(struct store_test *test, uint32_t head, uint32_t token, uint32_t slot)
{
    const struct store_shape *shape = &test->shape;
    const uint32_t dim = shape->head_dim;
    struct check_buf want[STORE_PAGES];
    for (int i = 0; i < STORE_PAGES; i++)
        want[i].data = test->want[i];
    for (int value = 0; value < 2; value++) {
        const uint16_t *row = store_row_at(shape, test->from, head, token % STORE_SLOTS, value);
        float x[512] = {0};
        struct coded_row coded;
        store_load_row(shape, &test->mean, head, value, row, x);
        store_code_row(shape, &coded, x);
        if (shape->bits)
            store_put_coded(shape, store_head(shape, want, head, slot), value,
                            slot % KVA_PAGE_TOKENS, &coded);
        else
            memcpy(store_row_at(shape, want, head, slot, value), row, dim * sizeof *row);
    }
}

/* Whether a turned key is as near to what it should be as coding that leaves it. */
static bool near_as_coded(const struct store_test *test, uint32_t head, const double *x,
                          const double *got, double position)
{
    const struct store_shape *shape = &test->shape;
    struct coded_row coded;
    float y[512];
    double expect[512], decoded[512], off = 0, least = 0, all = 0;
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        expect[c] = store_rotated(shape, x, c, test->inv_freq, position) -
                    (double)store_mean_at(shape, &test->mean, head, false, c);
        y[c] = (float)expect[c];
    }
    store_code_row(shape, &coded, y);
    for (uint32_t c = 0; c < shape->head_dim; c++)
        decoded[c] = (double)coded.zero + (double)coded.scale * coded.codes[c];
    coded_row_turn_back(decoded, shape->head_dim);
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        off += (got[c] - expect[c]) * (got[c] - expect[c]);
        least += (decoded[c] - expect[c]) * (decoded[c] - expect[c]);
        all += expect[c] * expect[c];
    }
    return off <= 1.02 * least + 1e-6 * all + 1e-12;
}

/* Rotated keys against fp64; where they are right, they become what is wanted. */
static const char *check_rotated(struct store_test *test, uint32_t head, uint32_t token,
                                 uint32_t slot)
{
    const struct store_shape *shape = &test->shape;
    struct check_buf want[STORE_PAGES];
    double x[512], got[512];
    for (int i = 0; i < STORE_PAGES; i++)
        want[i].data = test->want[i];
    const double off = store_read_row(shape, test->to, head, slot, false, got);
    const double most =
        widen_row(shape, store_row_at(shape, test->from, head, token % STORE_SLOTS, false), x);
    const double position = (double)test->position_first + token;
    for (uint32_t c = 0; c < shape->head_dim && most < 60000; c++) {
        const double expect = store_rotated(shape, x, c, test->inv_freq, -position) -
                              (double)store_mean_at(shape, &test->mean, head, false, c);
        if (shape->coding == KVA_CODING_PLAIN &&
            !(fabs(got[c] - expect) <= off + most * 8 * UNIT + 2 * format_least(shape->dtype)))
            return "a key is not rotated back";
    }
    if (shape->coding == KVA_CODING_TURNED && most < 60000 &&
        !near_as_coded(test, head, x, got, -position))
        return "a key is not rotated back, or turned another way";
    if (shape->bits == 0) {
        memcpy(store_row_at(shape, want, head, slot, false),
               store_row_at(shape, test->to, head, slot, false), shape->head_dim * 2);
        return NULL;
    }
    struct coded_row coded = {0};
    const unsigned char *from = store_head(shape, test->to, head, slot);
    const uint16_t *levels = (const uint16_t *)(const void *)from;
    const uint32_t t = slot % KVA_PAGE_TOKENS;
    coded.scale = kva_f32_of_f16(levels[t]);
    coded.zero = kva_f32_of_f16(levels[KVA_PAGE_TOKENS + t]);
    for (uint32_t c = 0; c < shape->head_dim; c++) {
        for (uint32_t plane = 0; plane < shape->bits; plane++) {
            const size_t bit = store_bit_at(shape, false, t, c, plane);
            coded.codes[c] |= (from[bit / 8] >> bit % 8 & 1u) << plane;
        }
    }
    store_put_coded(shape, store_head(shape, want, head, slot), false, t, &coded);
    return NULL;
}

/* Every KV head has slots of its own, in no order, a third of its tokens none, or more where there
 * are more of them than slots. */
static void make_slots(struct check *check, struct store_test *test)
{
    const uint32_t all = test->slot_count, among = kva_max_u32(test->count, all);
    uint32_t *slots = test->slots.data, free_slots[STORE_SLOTS];
    for (uint32_t head = 0; head < test->shape.kv_heads; head++) {
        uint32_t taken = 0;
        for (uint32_t i = 0; i < all; i++)
            free_slots[i] = i;
        for (uint32_t i = 0; i < test->count; i++) {
            uint32_t *slot = &slots[head * test->count + i];
            *slot = KVA_NO_SLOT;
            if (taken == all || check_below(check, among) >= all * 2 / 3)
                continue;
            const uint32_t at = check_between(check, taken, all - 1);
            *slot = free_slots[at];
            free_slots[at] = free_slots[taken++];
        }
    }
}

static void store_begin(struct check *check, struct store_test *test)
{
    const struct store_shape *shape = &test->shape;
    store_fill_blocks(check, shape, test->from);
    test->slots = check_buf_new((size_t)shape->kv_heads * test->count * sizeof(uint32_t));
    test->mean = store_mean_new(check, shape);
    make_slots(check, test);
    store_frequencies(test->inv_freq, shape->rotary_dim);
    for (int i = 0; i < STORE_PAGES; i++) {
        test->to[i] = check_buf_new(store_bytes(shape));
        check_buf_garbage(check, &test->to[i]);
        test->before[i] = malloc(test->to[i].bytes);
        test->want[i] = malloc(test->to[i].bytes);
        memcpy(test->before[i], test->to[i].data, test->to[i].bytes);
        test->to_blocks[i] = test->to[i].data;
    }
    for (uint32_t i = 0; i * KVA_PAGE_TOKENS < test->count; i++)
        test->from_blocks[i] = test->from[i % STORE_PAGES].data;
}

static void store_end(struct store_test *test)
{
    for (int i = 0; i < STORE_PAGES; i++) {
        check_buf_free(&test->from[i]);
        check_buf_free(&test->to[i]);
        free(test->before[i]);
        free(test->want[i]);
    }
    check_buf_free(&test->slots);
    check_buf_free(&test->mean);
}

static struct kva_store_seq store_seq(const struct store_test *test)
{
    return (struct kva_store_seq){.from = test->from_blocks,
                                  .to = test->to_blocks,
                                  .slots = test->slots.data,
                                  .mean = store_mean_of(&test->shape, &test->mean),
                                  .slot_count = test->slot_count,
                                  .count = test->count,
                                  .position_first = test->position_first};
}

static const char *check_stored(struct store_test *test)
{
    const struct store_shape *shape = &test->shape;
    const uint32_t *slots = test->slots.data;
    const size_t bytes = store_bytes(shape);
    for (uint32_t i = 0; i < shape->kv_heads * test->count; i++) {
        if (slots[i] == KVA_NO_SLOT)
            continue;
        store_model(test, i / test->count, i % test->count, slots[i]);
        const char *reason = shape->rotary_dim
                                 ? check_rotated(test, i / test->count, i % test->count, slots[i])
                                 : NULL;
        if (reason)
            return reason;
    }
    for (int i = 0; i < STORE_PAGES; i++) {
        if (memcmp(test->want[i], test->to[i].data, bytes) != 0)
            return "other bytes";
        if (!check_buf_intact(&test->to[i]))
            return "wrote before a block";
    }
    return NULL;
}

static const char *run_store(struct store_test *tests, uint32_t seqs,
                             const struct check_variant *variant, struct kva_device *device,
                             const struct kva_store_rows_args *args)
{
    const char *reason = NULL;
    for (uint32_t i = 0; i < seqs * STORE_PAGES; i++) {
        struct store_test *test = &tests[i / STORE_PAGES];
        const uint32_t page = i % STORE_PAGES;
        memcpy(test->to[page].data, test->before[page], test->to[page].bytes);
        memcpy(test->want[page], test->before[page], test->to[page].bytes);
    }
    variant->ops.store_rows(device, args);
    for (uint32_t i = 0; i < seqs && !reason; i++)
        reason = check_stored(&tests[i]);
    return reason;
}

/* A sequence, and another one with fewer tokens for fewer pages. */
static void store_case(struct check *check, const struct store_shape *shape, uint32_t count)
{
    struct store_test tests[] = {
        {.shape = *shape, .count = count, .slot_count = STORE_SLOTS, .position_first = 1000},
        {.shape = *shape,
         .count = (count + 2) / 3,
         .slot_count = 2 * KVA_PAGE_TOKENS,
         .position_first = 77}};
    const double work = 4.0 * shape->kv_heads * count * shape->head_dim;
    char name[120];
    uint32_t run = 0;
    struct check_variant *variant;
    struct kva_device *device;
    if (!check_wanted(check, OP_STORE_ROWS, work))
        return;
    store_begin(check, &tests[0]);
    store_begin(check, &tests[1]);
    const struct kva_store_seq seqs[] = {store_seq(&tests[0]), store_seq(&tests[1])};
    const struct kva_store_rows_args args = {
        .seqs = seqs,
        .from_offset_bytes = STORE_OFFSET,
        .to_offset_bytes = STORE_OFFSET,
        .seq_count = 2,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .kv_dtype = shape->dtype,
        .format = store_format(shape),
        .rotary = {shape->rotary_dim ? tests[0].inv_freq : NULL, shape->rotary_dim}};
    snprintf(name, sizeof name, "%s heads %u dim %u bits %u%s%s rotary %u count %u",
             kva_dtype_name(shape->dtype), shape->kv_heads, shape->head_dim, shape->bits,
             store_coding_name(shape), store_mean_name(shape), shape->rotary_dim, count);
    while (check_next_run(check, work, &run, &variant, &device))
        check_count_run(check, variant, OP_STORE_ROWS, device, name,
                        run_store(tests, 2, variant, device, &args));
    store_end(&tests[0]);
    store_end(&tests[1]);
}

void check_store_rows(struct check *check)
{
    for (size_t i = 0; i < STORE_SHAPES; i++) {
        for (size_t j = 0; j < STORE_COUNTS; j++)
            store_case(check, &store_shapes[i], store_counts[j]);
        if (store_shapes[i].head_dim <= 20)
            store_case(check, &store_shapes[i], MANY);
    }
}
