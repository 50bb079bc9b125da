/* The frames of attention at a distance: what is written is read, and nothing else. */
#include "tests/cmocka.h"

#include "cluster/remote/wire.h"

#include <string.h>

static const struct kva_wire_shape shape = {
    .heads = 4, .head_dim = 16, .layers = 3, .act = KVA_F32, .rows_max = 8};

static const struct kva_wire_entry entries[] = {
    {.loan = 1, .row_count = 1, .position_first = 0},
    {.loan = UINT64_MAX, .row_count = 5, .position_first = 1000},
    {.loan = 0x1122334455667788, .row_count = 2, .position_first = UINT32_MAX - 2},
};

enum { COUNT = KVA_COUNT_OF(entries), ROWS = 8, HEADER = 16 + 16 * COUNT };

static size_t write_question(uint8_t header[HEADER])
{
    assert_int_equal(kva_wire_question_bytes(COUNT), HEADER);
    kva_wire_write_question(header, 77, 2, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        kva_wire_write_entry(header, i, &entries[i]);
    return kva_wire_query_bytes(&shape, ROWS);
}

static void test_wire__a_question_is_read_as_it_was_written(void **state KVA_UNUSED)
{
    uint8_t header[HEADER];
    struct kva_wire_question question;
    struct kva_wire_entry read[8];
    size_t bytes = write_question(header);
    assert_int_equal(bytes, ROWS * 4 * 16 * 4);
    assert_int_equal(kva_wire_read_question(&shape, header, HEADER, bytes, &question, read, NULL),
                     KVA_OK);
    assert_int_equal(question.id, 77);
    assert_int_equal(question.layer, 2);
    assert_int_equal(question.count, COUNT);
    assert_int_equal(question.rows, ROWS);
    assert_memory_equal(read, entries, sizeof(entries));
}

static void expect_none(const uint8_t *header, size_t header_bytes, size_t data_bytes,
                        const char *word)
{
    struct kva_wire_question question;
    struct kva_wire_entry read[8];
    struct kva_err err = {0};
    assert_int_equal(
        kva_wire_read_question(&shape, header, header_bytes, data_bytes, &question, read, &err),
        KVA_EFORMAT);
    if (!strstr(err.message, word))
        fail_msg("'%s' does not say '%s'", err.message, word);
}

static void test_wire__what_is_no_question_is_refused(void **state KVA_UNUSED)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *word;
    } cases[] = {
        {0, 0, "question 0"},          {8, 3, "layer 3 of 3"},        {12, 0, "0 entries"},
        {12, 9, "9 entries"},          {12, 2, "2 entries have"},     {15, 1, "entries"},
        {24, 0, "entry 0 has 0 rows"}, {40, 8, "entry 1 has 8 rows"}, {43, 255, "entry 1"},
        {56, 3, "entry 2 has 3 rows"}, {56, 1, "queries of 7 rows"},  {60, 254, "from position"},
    };
    uint8_t header[HEADER];
    size_t bytes = write_question(header);
    for (size_t size = 0; size < HEADER; size++)
        expect_none(header, size, bytes, "bytes");
    expect_none(header, HEADER, bytes - 1, "queries of 8 rows");
    expect_none(header, HEADER, bytes + 1, "queries of 8 rows");
    expect_none(header, HEADER, 0, "queries of 8 rows");
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        write_question(header);
        header[cases[i].at] = cases[i].value;
        expect_none(header, HEADER, bytes, cases[i].word);
    }
}

static enum kva_status read_answer(const uint8_t *header, size_t header_bytes, size_t data_bytes,
                                   bool found[COUNT])
{
    const uint32_t rows[COUNT] = {1, 5, 2};
    return kva_wire_read_answer(&shape, rows, COUNT, header, header_bytes, data_bytes, found, NULL);
}

static void test_wire__an_answer_is_read_as_it_was_written(void **state KVA_UNUSED)
{
    uint8_t header[12 + COUNT];
    size_t row = kva_wire_partial_bytes(&shape, 1);
    assert_int_equal(row, 4 * (16 + 2) * 4);
    assert_int_equal(kva_wire_answer_bytes(COUNT), sizeof(header));
    for (uint32_t mask = 0; mask < 8; mask++) {
        const bool found[COUNT] = {mask & 1, mask & 2, mask & 4};
        bool read[COUNT] = {false};
        uint64_t id = 0;
        size_t bytes = (found[0] * 1u + found[1] * 5u + found[2] * 2u) * row;
        kva_wire_write_answer(header, 1ull << 63, found, COUNT);
        assert_int_equal(kva_wire_read_answer_id(header, sizeof(header), &id, NULL), KVA_OK);
        assert_true(id == 1ull << 63);
        assert_int_equal(read_answer(header, sizeof(header), bytes, read), KVA_OK);
        assert_memory_equal(read, found, sizeof(found));
        assert_int_equal(read_answer(header, sizeof(header), bytes + 1, read), KVA_EFORMAT);
        assert_int_equal(read_answer(header, sizeof(header) - 1, bytes, read), KVA_EFORMAT);
        header[12] = 2;
        assert_int_equal(read_answer(header, sizeof(header), bytes, read), KVA_EFORMAT);
        header[12] = found[0];
        header[8] = COUNT + 1;
        assert_int_equal(read_answer(header, sizeof(header), bytes, read), KVA_EFORMAT);
    }
    for (size_t size = 0; size < 12; size++) {
        uint64_t id;
        bool read[COUNT];
        assert_int_equal(kva_wire_read_answer_id(header, size, &id, NULL), KVA_EFORMAT);
        assert_int_equal(read_answer(header, size, 0, read), KVA_EFORMAT);
    }
}

static void test_wire__shapes_are_bounded(void **state KVA_UNUSED)
{
    const struct kva_wire_shape wrong[] = {
        {.head_dim = 16, .layers = 3, .rows_max = 8},
        {.heads = 4, .layers = 3, .rows_max = 8},
        {.heads = 4, .head_dim = 16, .rows_max = 8},
        {.heads = 4, .head_dim = 16, .layers = 3},
        {.heads = 4, .head_dim = 16, .layers = 3, .rows_max = UINT32_MAX},
        {.heads = 65536, .head_dim = 65536, .layers = 3, .rows_max = 1},
        {.heads = 4, .head_dim = 16, .layers = 3, .rows_max = 8, .act = KVA_INT8},
    };
    assert_int_equal(kva_wire_check_shape(&shape, NULL), KVA_OK);
    for (size_t i = 0; i < KVA_COUNT_OF(wrong); i++)
        assert_int_equal(kva_wire_check_shape(&wrong[i], NULL), KVA_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire__a_question_is_read_as_it_was_written),
        cmocka_unit_test(test_wire__what_is_no_question_is_refused),
        cmocka_unit_test(test_wire__an_answer_is_read_as_it_was_written),
        cmocka_unit_test(test_wire__shapes_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
