#include "tests/engine/model/checkpoint.h"

#include "engine/model/limits.h"
#include "engine/model/safetensors.h"
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses a copy of exactly those bytes; a table that parsed is finished again. */
static enum kva_status parse_bytes(const void *data, size_t size, struct kva_err *err)
{
    struct kva_safetensors table;
    void *exact = malloc(size ? size : 1);
    assert_non_null(exact);
    memcpy(exact, data, size);
    enum kva_status status = kva_safetensors_init(&table, exact, size, "m.safetensors", err);
    if (!status)
        kva_safetensors_finish(&table);
    free(exact);
    return status;
}

static enum kva_status parse_header(const char *header, size_t data_bytes, struct kva_err *err)
{
    struct kva_buf file;
    made_file_raw(&file, header, data_bytes);
    enum kva_status status = parse_bytes(file.data, file.length, err);
    kva_buf_finish(&file);
    return status;
}

static void test_safetensors__finds_tensors_where_they_lie(void **state KVA_UNUSED)
{
    struct kva_buf file;
    struct kva_safetensors table;
    struct kva_err err = {0};
    made_file(&file, made_tensors, made_tensor_count, 0);
    assert_int_equal(kva_safetensors_init(&table, file.data, file.length, "m", &err), KVA_OK);
    assert_int_equal(table.entry_count, made_tensor_count);
    for (size_t i = 0; i < made_tensor_count; i++) {
        const struct kva_safetensors_entry *entry =
            kva_safetensors_find(&table, made_tensors[i].name);
        assert_non_null(entry);
        assert_string_equal(entry->name, made_tensors[i].name);
        assert_int_equal(entry->shape[0], made_tensors[i].dims[0]);
        assert_int_equal(entry->rank, made_tensors[i].dims[1] ? 2 : 1);
        for (uint64_t at = entry->begin; at < entry->end; at++)
            assert_int_equal(table.data[at], i);
    }
    assert_null(kva_safetensors_find(&table, "no.such.tensor"));
    assert_null(kva_safetensors_find(&table, ""));
    kva_safetensors_finish(&table);
    kva_buf_finish(&file);
}

static void test_safetensors__accepts_the_unusual(void **state KVA_UNUSED)
{
    static const struct {
        const char *header;
        size_t data_bytes;
    } cases[] = {
        {"{}", 0},
        {"{\"__metadata__\":{\"format\":\"pt\",\"x\":\"y\"}}", 0},
        /* Tensors in another order than their bytes, a scalar, an empty one, spaces around. */
        {" {\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[2,6]},"
         "\"z\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[2,2]},"
         "\"a\":{\"shape\":[1],\"data_offsets\":[0,2],\"dtype\":\"BF16\"}}   ",
         6},
        /* Formats that no model of ours needs; the last is one that nobody has named yet. */
        {"{\"q\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]},"
         "\"f\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[2,4]},"
         "\"n\":{\"dtype\":\"Q7_NEW_FORMAT_OF_A_LONG_NAME\",\"shape\":[9],"
         "\"data_offsets\":[4,5]}}",
         5},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_err err = {0};
        if (parse_header(cases[i].header, cases[i].data_bytes, &err))
            fail_msg("'%s': %s", cases[i].header, err.message);
    }
}

#define ONE(dtype, shape, offsets)                                                                 \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_safetensors__refuses_hostile_entries(void **state KVA_UNUSED)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *message;
    } cases[] = {
        {"[]", 0, "not a JSON object"},
        {"{\"t\":1}", 0, "tensor t is not described by an object"},
        {"{\"t\":{}}", 0, "tensor t has no dtype"},
        {ONE("7", "[1]", "[0,4]"), 4, "dtype is 7, expected a string"},
        {ONE("\"F32\"", "1", "[0,4]"), 4, "tensor t has no shape list"},
        {ONE("\"F32\"", "null", "[0,4]"), 4, "tensor t has no shape list"},
        {ONE("\"F32\"", "[-1]", "[0,4]"), 4, "tensor t has dimension -1"},
        {ONE("\"F32\"", "[1.5]", "[0,4]"), 4, "tensor t has dimension 1.5"},
        {ONE("\"F32\"", "[1e999]", "[0,4]"), 4, "tensor t has dimension inf"},
        {ONE("\"F32\"", "[\"1\"]", "[0,4]"), 4, "tensor t has dimension \"1\""},
        {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "more than the allowed 8 dimensions"},
        {ONE("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0, "element count of tensor t overf"},
        {ONE("\"F32\"", "[4294967296,1073741825]", "[0,4]"), 4, "size of tensor t overflows"},
        {ONE("\"F4\"", "[3]", "[0,1]"), 1, "does not end at a byte"},
        {ONE("\"F32\"", "[1]", "4"), 4, "are not two whole numbers"},
        {ONE("\"F32\"", "[1]", "[0]"), 4, "are not two whole numbers"},
        {ONE("\"F32\"", "[1]", "[0,4,8]"), 4, "are not two whole numbers"},
        {ONE("\"F32\"", "[1]", "[-4,0]"), 4, "are not two whole numbers"},
        {ONE("\"F32\"", "[1]", "[0,1e999]"), 4, "are not two whole numbers"},
        {ONE("\"F32\"", "[1]", "[0,18446744073709551616]"), 4, "are not two whole numbers"},
        {ONE("\"F32\"", "[1]", "[4,0]"), 4, "tensor t lies at 4..0"},
        {ONE("\"F32\"", "[1]", "[4,8]"), 4, "lies at 4..8, but the file has 4 bytes of data"},
        {ONE("\"F32\"", "[2]", "[0,9007199254740991]"), 8, "lies at 0..9007199254740991"},
        {ONE("\"F32\"", "[3]", "[0,8]"), 8,
         "tensor t of shape [3] in F32 needs 12 bytes, its data_offsets give 8"},
        {ONE("\"F32\"", "[1],\"shape\":[1]", "[0,4]"), 4, "tensor t: m.safetensors: shape stands"},
        {"{\"t\\u0007\":{}}", 0, "the name of tensor 't?' has a control character"},
        {"{\"t\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"u\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "overlap between t and tensor u"},
        {"{\"t\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"u\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         2, "overlap between t and tensor u"},
        {"{\"t\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"u\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
         5, "hole between t and tensor u"},
        {ONE("\"I8\"", "[1]", "[1,2]"), 2, "hole between the header and tensor t"},
        {ONE("\"I8\"", "[1]", "[0,1]"), 3, "the tensors end at byte"},
        {"{}", 1, "the tensors end at byte 10, the file at byte 11"},
        {"{\"t\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"t\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "tensor t stands there twice"},
        {"{\"t\":{\"dtype\":\"I8\"", 0, "expected ',' or '}'"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_err err = {0};
        enum kva_status status = parse_header(cases[i].header, cases[i].data_bytes, &err);
        if (status != KVA_EFORMAT)
            fail_msg("'%s': status %d", cases[i].header, status);
        expect_message(&err, cases[i].message);
    }
}

static void test_safetensors__header_length_is_bounded(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    static const struct {
        const char *bytes;
        size_t size;
        const char *message;
    } cases[] = {
        {"", 0, "has 0 bytes, too few"},
        {"\2\0\0\0\0\0\0", 7, "has 7 bytes, too few"},
        {"\2\0\0\0\0\0\0\0", 8, "header of 2 bytes, but the file has 8"},
        {"\3\0\0\0\0\0\0\0{}", 10, "header of 3 bytes, but the file has 10"},
        {"\0\0\0\0\0\0\0\0", 8, "m.safetensors: ends at byte 0"},
        {"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10, "header of 18446744073709551615 bytes, allowed"},
        {"\xF8\xFF\xFF\xFF\xFF\xFF\xFF\x7F{}", 10, "header of 9223372036854775800 bytes, allowed"},
        {"version https://git-lfs", 23, "is it a safetensors file?"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        assert_int_equal(parse_bytes(cases[i].bytes, cases[i].size, &err), KVA_EFORMAT);
        expect_message(&err, cases[i].message);
    }
}

/* A file cut anywhere is refused: no cut leaves a valid one. */
static void test_safetensors__refuses_every_cut(void **state KVA_UNUSED)
{
    struct kva_buf file;
    struct kva_err err = {0};
    made_file(&file, made_tensors, 2, 0);
    assert_int_equal(parse_bytes(file.data, file.length, &err), KVA_OK);
    for (size_t size = 0; size < file.length; size++)
        assert_int_equal(parse_bytes(file.data, size, &err), KVA_EFORMAT);
    kva_buf_finish(&file);
}

static void test_safetensors__depth_and_names_are_bounded(void **state KVA_UNUSED)
{
    enum { DEEP = 100000 };
    struct kva_err err = {0};
    char *text = malloc(DEEP + 1);
    assert_non_null(text);
    memset(text, '[', DEEP);
    memcpy(text, "{\"a\":", 5);
    text[DEEP] = '\0';
    assert_int_equal(parse_header(text, 0, &err), KVA_EFORMAT);
    expect_message(&err, "nested deeper");

    for (unsigned extra = 0; extra < 2; extra++) {
        unsigned length = KVA_SAFETENSORS_NAME_BYTES_MAX + extra;
        snprintf(text, DEEP, "{\"%0*d\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                 (int)length, 0);
        assert_int_equal(parse_header(text, 1, &err), extra ? KVA_EFORMAT : KVA_OK);
    }
    expect_message(&err, "has 257 bytes, allowed are 256");
    free(text);
}

static void test_safetensors__tensor_count_is_bounded(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    struct kva_buf header;
    kva_buf_init(&header, 1 << 24);
    kva_buf_putc(&header, '{');
    for (unsigned i = 0; i <= KVA_SAFETENSORS_TENSORS_MAX; i++)
        kva_buf_printf(&header, "%s\"%x\":0", i ? "," : "", i);
    kva_buf_putc(&header, '}');
    assert_int_equal(parse_header(header.data, 0, &err), KVA_EFORMAT);
    expect_message(&err, "131073 tensors, allowed are 131072");
    kva_buf_finish(&header);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors__finds_tensors_where_they_lie),
        cmocka_unit_test(test_safetensors__accepts_the_unusual),
        cmocka_unit_test(test_safetensors__refuses_hostile_entries),
        cmocka_unit_test(test_safetensors__header_length_is_bounded),
        cmocka_unit_test(test_safetensors__refuses_every_cut),
        cmocka_unit_test(test_safetensors__depth_and_names_are_bounded),
        cmocka_unit_test(test_safetensors__tensor_count_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
