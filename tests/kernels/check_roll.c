/* Cases of roll_rows, against fp64. */
#include "tests/kernels/store_case.h"

#include <stdio.h>
#include <string.h>

/* One sequence. */
struct roll_test {
    struct store_shape shape;
    struct check_buf from[STORE_PAGES], to[STORE_PAGES], positions, index, places, mean;
    const void *from_blocks[STORE_PAGES];
    void *to_blocks[STORE_PAGES];
    float inv_freq[256];
    uint32_t filled, slots, position_first;
};

/* A row in three is in its place already; of others one in two is at another place, and one in
 * four another token's at the same. */
enum there { THERE, ELSEWHERE, OTHER, NOTHING };

static enum there what_is_there(const struct roll_test *test, uint32_t head, uint32_t slot,
                                uint32_t below)
{
    if ((head + slot + below + test->position_first) % 3 == 0)
        return THERE;
    return slot % 2 ? ELSEWHERE : slot % 4 ? OTHER : NOTHING;
}

static void make_places(struct roll_test *test)
{
    const uint32_t *positions = test->positions.data;
    struct kva_roll_place *places = test->places.data;
    for (uint32_t i = 0; i < test->shape.kv_heads * test->slots; i++) {
        const uint32_t head = i / test->slots, slot = i % test->slots;
        uint32_t below = 0;
        for (uint32_t j = 0; j < test->filled; j++)
            below += positions[head * test->slots + j] < positions[i];
        const uint32_t place = test->position_first + below;
        const enum there there = what_is_there(test, head, slot, below);
        places[i] = (struct kva_roll_place){positions[i] + 1, place};
        places[i].position += there == ELSEWHERE ? 64 : 0;
        places[i].token -= there == OTHER ? 1 : there == NOTHING ? positions[i] + 1 : 0;
    }
}

static const char *check_rolled(const struct roll_test *test, uint32_t head, uint32_t slot)
{
    const struct store_shape *shape = &test->shape;
    const struct store_shape plain = {.kv_heads = shape->kv_heads, .head_dim = shape->head_dim};
    const uint32_t *positions = (const uint32_t *)test->positions.data + head * test->slots;
    const uint32_t *index = (const uint32_t *)test->index.data + head * test->slots;
    double x[512], most = 0;
    uint32_t below = 0;
    for (uint32_t i = 0; i < test->filled; i++)
        below += positions[i] < positions[slot];
    if (index[slot] != below)
        return "another index";
    const struct kva_roll_place place =
        ((const struct kva_roll_place *)test->places.data)[head * test->slots + slot];
    if (place.token != positions[slot] + 1 || place.position != test->position_first + below)
        return "another place";
    const enum there there = what_is_there(test, head, slot, below);
    for (int value = 0; value < 2; value++) {
        const uint16_t *got = store_row_at(&plain, test->to, head, slot, value);
        if (there == THERE || (there == ELSEWHERE && value)) {
            for (uint32_t c = 0; c < shape->head_dim; c++) {
                if (got[c] != 0x7777)
                    return value ? "wrote a value that is there" : "wrote a key that is there";
            }
            continue;
        }
        most = 0;
        store_read_row(shape, test->from, head, slot, value, x);
        for (uint32_t c = 0; c < shape->head_dim; c++)
            x[c] += (double)store_mean_at(shape, &test->mean, head, value, c);
        for (uint32_t c = 0; c < shape->head_dim; c++)
            most = isnan(x[c]) || fabs(x[c]) > most ? fabs(x[c]) : most;
        for (uint32_t c = 0; c < shape->head_dim && most < 60000; c++) {
            const double expect = value ? x[c]
                                        : store_rotated(shape, x, c, test->inv_freq,
                                                        (double)test->position_first + below);
            const double units = shape->coding == KVA_CODING_TURNED ? 128 : 8;
            const double bound = fabs(expect) * format_unit(shape->dtype) + most * units * UNIT +
                                 2 * format_least(shape->dtype);
            if (!(fabs(check_widen(got[c], shape->dtype) - expect) <= bound))
                return value ? "another value" : "a key is not where its index is";
        }
    }
    return NULL;
}

static const char *check_roll(const struct roll_test *test)
{
    const struct store_shape *shape = &test->shape;
    const size_t row_bytes = 4 * (size_t)shape->head_dim;
    const char *reason = NULL;
    for (uint32_t i = 0; i < shape->kv_heads * test->slots && !reason; i++) {
        const uint32_t head = i / test->slots, slot = i % test->slots;
        const unsigned char *row = (unsigned char *)test->to[slot / KVA_PAGE_TOKENS].data +
                                   STORE_OFFSET +
                                   (head * KVA_PAGE_TOKENS + slot % KVA_PAGE_TOKENS) * row_bytes;
        if (slot < test->filled)
            reason = check_rolled(test, head, slot);
        for (size_t j = 0; slot >= test->filled && j < row_bytes; j++)
            reason = row[j] != 0x77 ? "wrote to a slot that is empty" : reason;
    }
    for (int i = 0; i < STORE_PAGES; i++) {
        if (!check_buf_intact(&test->to[i]) || *(unsigned char *)test->to[i].data != 0x77)
            return "wrote before a block";
    }
    return check_buf_intact(&test->index) && check_buf_intact(&test->places)
               ? reason
               : "wrote before its output";
}

static const char *run_roll(struct roll_test *tests, uint32_t seqs,
                            const struct check_variant *variant, struct kva_device *device,
                            const struct kva_roll_rows_args *args)
{
    const char *reason = NULL;
    for (uint32_t i = 0; i < seqs; i++) {
        for (int page = 0; page < STORE_PAGES; page++)
            memset(tests[i].to[page].data, 0x77, tests[i].to[page].bytes);
        memset(tests[i].index.data, 0x77, tests[i].index.bytes);
        make_places(&tests[i]);
    }
    variant->ops.roll_rows(device, args);
    for (uint32_t i = 0; i < seqs && !reason; i++)
        reason = check_roll(&tests[i]);
    return reason;
}

/* Ascending, then shuffled; of every other KV head in groups far apart. */
static void make_positions(struct check *check, struct roll_test *test)
{
    for (uint32_t head = 0; head < test->shape.kv_heads; head++) {
        uint32_t *positions = (uint32_t *)test->positions.data + head * test->slots;
        const uint32_t gap = head % 2 ? 20000 : 0;
        for (uint32_t i = 0; i < test->slots; i++)
            positions[i] = 7 * i + i / 16 * gap + check_below(check, 7);
        for (uint32_t i = 0; i < test->filled; i++) {
            const uint32_t j = check_below(check, test->filled), x = positions[i];
            positions[i] = positions[j];
            positions[j] = x;
        }
    }
}

/* The store in few bits: of the same rows. */
static void code_page(struct roll_test *test, int page)
{
    const struct store_shape *shape = &test->shape;
    struct check_buf rows = test->from[page];
    test->from[page] = check_buf_new(store_bytes(shape));
    for (uint32_t j = 0; j < shape->kv_heads * KVA_PAGE_TOKENS * 2; j++) {
        const uint32_t head = j / (2 * KVA_PAGE_TOKENS), token = j / 2 % KVA_PAGE_TOKENS;
        struct coded_row coded;
        float x[512] = {0};
        const uint16_t *row =
            (uint16_t *)((char *)rows.data + STORE_OFFSET) + (size_t)j * shape->head_dim;
        store_load_row(shape, &test->mean, head, j % 2, row, x);
        store_code_row(shape, &coded, x);
        store_put_coded(shape, store_head(shape, &test->from[page], head, token), j % 2, token,
                        &coded);
    }
    check_buf_free(&rows);
}

static void roll_begin(struct check *check, struct roll_test *test)
{
    const struct store_shape *shape = &test->shape;
    const struct store_shape plain = {
        .kv_heads = shape->kv_heads, .head_dim = shape->head_dim, .dtype = shape->dtype};
    test->position_first = 5 + check_below(check, 3000);
    store_fill_blocks(check, &plain, test->from);
    test->positions = check_buf_new((size_t)shape->kv_heads * test->slots * sizeof(uint32_t));
    test->index = check_buf_new(test->positions.bytes);
    test->places =
        check_buf_new((size_t)shape->kv_heads * test->slots * sizeof(struct kva_roll_place));
    test->mean = store_mean_new(check, shape);
    store_frequencies(test->inv_freq, shape->rotary_dim);
    make_positions(check, test);
    for (int i = 0; i < STORE_PAGES; i++) {
        if (shape->bits)
            code_page(test, i);
        test->to[i] =
            check_buf_new(STORE_OFFSET + kva_kv_block_bytes(shape->kv_heads, shape->head_dim));
        test->from_blocks[i] = test->from[i].data;
        test->to_blocks[i] = test->to[i].data;
    }
}

static void roll_end(struct roll_test *test)
{
    for (int i = 0; i < STORE_PAGES; i++) {
        check_buf_free(&test->from[i]);
        check_buf_free(&test->to[i]);
    }
    check_buf_free(&test->positions);
    check_buf_free(&test->index);
    check_buf_free(&test->places);
    check_buf_free(&test->mean);
}

static struct kva_roll_seq roll_seq(const struct roll_test *test)
{
    return (struct kva_roll_seq){.positions = test->positions.data,
                                 .index = test->index.data,
                                 .places = test->places.data,
                                 .from = test->from_blocks,
                                 .to = test->to_blocks,
                                 .mean = store_mean_of(&test->shape, &test->mean),
                                 .slots = test->slots,
                                 .filled = test->filled,
                                 .position_first = test->position_first};
}

/* A sequence, and another one with less in its store. */
static void roll_case(struct check *check, const struct store_shape *shape, uint32_t filled)
{
    struct roll_test tests[] = {{.shape = *shape, .filled = filled, .slots = STORE_SLOTS},
                                {.shape = *shape, .filled = filled / 3, .slots = STORE_SLOTS}};
    const double work = 2.0 * shape->kv_heads * filled * (shape->head_dim + filled / 8.0);
    char name[120];
    uint32_t run = 0;
    struct check_variant *variant;
    struct kva_device *device;
    if (!check_wanted(check, OP_ROLL_ROWS, work))
        return;
    roll_begin(check, &tests[0]);
    roll_begin(check, &tests[1]);
    const struct kva_roll_seq seqs[] = {roll_seq(&tests[0]), roll_seq(&tests[1])};
    const struct kva_roll_rows_args args = {.seqs = seqs,
                                            .from_offset_bytes = STORE_OFFSET,
                                            .to_offset_bytes = STORE_OFFSET,
                                            .seq_count = 2,
                                            .kv_heads = shape->kv_heads,
                                            .head_dim = shape->head_dim,
                                            .kv_dtype = shape->dtype,
                                            .format = store_format(shape),
                                            .rotary = {tests[0].inv_freq, shape->rotary_dim}};
    snprintf(name, sizeof name, "%s heads %u dim %u bits %u%s%s rotary %u filled %u",
             kva_dtype_name(shape->dtype), shape->kv_heads, shape->head_dim, shape->bits,
             store_coding_name(shape), store_mean_name(shape), shape->rotary_dim, filled);
    while (check_next_run(check, work, &run, &variant, &device))
        check_count_run(check, variant, OP_ROLL_ROWS, device, name,
                        run_roll(tests, 2, variant, device, &args));
    roll_end(&tests[0]);
    roll_end(&tests[1]);
}

void check_roll_rows(struct check *check)
{
    for (size_t i = 0; i < STORE_SHAPES; i++) {
        for (size_t j = 0; j < STORE_COUNTS; j++) {
            if (store_shapes[i].rotary_dim > 0)
                roll_case(check, &store_shapes[i], store_counts[j]);
        }
    }
}
