/* The container: what is read of good files, and what each kind of bad file is called. */
#include "tests/gguf/writer.h"

#include "tests/cmocka.h"

#include <stdlib.h>
#include <string.h>

#define KEY(text) text, strlen(text)

static void fill(struct gguf_writer *writer)
{
    const char *const words[] = {"a", "", "c d"};
    const float values[16] = {1, 2, 3};
    gguf_writer_init(writer);
    gguf_put_string(writer, "general.architecture", "llama");
    gguf_put_u32(writer, "x.count", 7);
    gguf_put_f32(writer, "x.factor", 0.5f);
    gguf_put_bool(writer, "x.flag", true);
    gguf_put_strings(writer, "x.words", words, 3);
    gguf_put_tensor(writer, "b", KVA_GGUF_F32, 2, 8, values, sizeof(values));
    gguf_put_tensor(writer, "a", KVA_GGUF_F32, 0, 5, values, 5 * sizeof(float));
}

/* A copy of its own size, so that a sanitizer sees what is read behind it. */
static enum kva_status parse(const struct kva_buf *bytes, size_t length, struct kva_gguf *ret,
                             void **ret_copy, struct kva_err *err)
{
    *ret_copy = malloc(length ? length : 1);
    assert_non_null(*ret_copy);
    memcpy(*ret_copy, bytes->data, length);
    return kva_gguf_init(ret, *ret_copy, length, "made.gguf", err);
}

static void expect(struct gguf_writer *writer, enum kva_status status, const char *part)
{
    struct kva_buf bytes;
    struct kva_gguf gguf;
    struct kva_err err = {.message = ""};
    void *copy;
    gguf_writer_write(writer, &bytes);
    enum kva_status got = parse(&bytes, bytes.length, &gguf, &copy, &err);
    if (got != status || !strstr(err.message, part) || !strstr(err.message, "made.gguf"))
        fail_msg("status %d, '%s', expected %d and '%s'", got, err.message, status, part);
    free(copy);
    /* Without a place for the message it must fail just the same. */
    assert_int_equal(parse(&bytes, bytes.length, &gguf, &copy, NULL), status);
    free(copy);
    kva_buf_finish(&bytes);
    gguf_writer_finish(writer);
}

static void test_gguf__reads_fields_and_tensors(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf_writer writer;
        struct kva_buf bytes;
        struct kva_gguf gguf;
        struct kva_err err;
        void *copy;
        fill(&writer);
        writer.version = version;
        gguf_writer_write(&writer, &bytes);
        assert_int_equal(parse(&bytes, bytes.length, &gguf, &copy, &err), KVA_OK);
        int64_t whole = 0;
        bool flag = false;
        const char *text;
        size_t length;
        double number;
        assert_int_equal(kva_gguf_get_whole(&gguf, "x.count", 0, 9, &whole, &err), KVA_OK);
        assert_int_equal(whole, 7);
        assert_int_equal(kva_gguf_get_whole(&gguf, "x.count", 0, 6, &whole, &err), KVA_EFORMAT);
        assert_string_equal(err.message,
                            "made.gguf: x.count is 7, expected a whole number in 0..6");
        assert_int_equal(kva_gguf_get_whole(&gguf, "x.factor", 0, 6, &whole, &err), KVA_EFORMAT);
        assert_int_equal(kva_gguf_get_whole(&gguf, "x.words", 0, 6, &whole, &err), KVA_EFORMAT);
        assert_int_equal(kva_gguf_get_bool(&gguf, "x.flag", &flag, &err), KVA_OK);
        assert_true(flag);
        assert_int_equal(kva_gguf_get_bool(&gguf, "x.count", &flag, &err), KVA_EFORMAT);
        assert_true(kva_gguf_number(&gguf, kva_gguf_find(&gguf, "x.factor"), 0, &number));
        assert_true(number == 0.5);
        assert_false(kva_gguf_number(&gguf, kva_gguf_find(&gguf, "x.factor"), 1, &number));
        assert_int_equal(kva_gguf_get_string(&gguf, "general.architecture", &text, &length, &err),
                         KVA_OK);
        assert_memory_equal(text, "llama", 5);
        struct kva_gguf_strings strings = kva_gguf_strings(&gguf, kva_gguf_find(&gguf, "x.words"));
        const size_t lengths[] = {1, 0, 3};
        for (int i = 0; i < 3; i++) {
            assert_true(kva_gguf_strings_next(&strings, &text, &length));
            assert_int_equal(length, lengths[i]);
        }
        assert_false(kva_gguf_strings_next(&strings, &text, &length));
        const struct kva_gguf_tensor *tensor = kva_gguf_find_tensor(&gguf, "b");
        char shape[64];
        assert_non_null(tensor);
        assert_string_equal(kva_gguf_show_shape(tensor, shape, sizeof(shape)), "[2, 8]");
        assert_int_equal(tensor->end - tensor->begin, 64);
        assert_memory_equal(gguf.data + tensor->begin, writer.data.data, 64);
        assert_null(kva_gguf_find_tensor(&gguf, "c"));
        kva_gguf_finish(&gguf);
        free(copy);
        kva_buf_finish(&bytes);
        gguf_writer_finish(&writer);
    }
}

/* Whatever is cut off, it is an error that names the file. */
static void test_gguf__refuses_every_truncation(void **state)
{
    (void)state;
    struct gguf_writer writer;
    struct kva_buf bytes;
    fill(&writer);
    gguf_writer_write(&writer, &bytes);
    for (size_t length = 0; length < bytes.length; length++) {
        struct kva_gguf gguf;
        struct kva_err err = {.message = ""};
        void *copy;
        assert_int_equal(parse(&bytes, length, &gguf, &copy, &err), KVA_EFORMAT);
        assert_non_null(strstr(err.message, "made.gguf"));
        free(copy);
    }
    kva_buf_finish(&bytes);
    gguf_writer_finish(&writer);
}

static void test_gguf__refuses_bad_headers(void **state)
{
    (void)state;
    struct gguf_writer writer;
    fill(&writer);
    writer.version = 1;
    expect(&writer, KVA_EUNSUPPORTED, "GGUF version 1 is not supported");
    fill(&writer);
    writer.version = 0x03000000;
    expect(&writer, KVA_EUNSUPPORTED, "big-endian");
    fill(&writer);
    writer.tensor_count = UINT64_MAX;
    expect(&writer, KVA_EFORMAT, "18446744073709551615 tensors");
    fill(&writer);
    writer.field_count = 1u << 20;
    expect(&writer, KVA_EFORMAT, "1048576 metadata fields");
    fill(&writer);
    writer.field_count++;
    expect(&writer, KVA_EFORMAT, "");
}

static void test_gguf__refuses_bad_fields(void **state)
{
    (void)state;
    struct gguf_writer writer;
    fill(&writer);
    gguf_put_u32(&writer, "x.count", 8);
    expect(&writer, KVA_EFORMAT, "x.count stands there twice");
    fill(&writer);
    gguf_put_field(&writer, "x\0y", 3, KVA_GGUF_TYPE_U8, "", 1);
    expect(&writer, KVA_EFORMAT, "'x?y' has a NUL");
    fill(&writer);
    gguf_put_field(&writer, "", 0, KVA_GGUF_TYPE_U8, "", 1);
    expect(&writer, KVA_EFORMAT, "has 0 bytes");
    fill(&writer);
    gguf_put_field(&writer, KEY("x.odd"), 13, "", 1);
    expect(&writer, KVA_EFORMAT, "x.odd is of type 13, which does not exist");
    fill(&writer);
    gguf_put_field(&writer, KEY("x.nest"), KVA_GGUF_TYPE_ARRAY, NULL, 0);
    gguf_put_number(&writer.fields, KVA_GGUF_TYPE_ARRAY, 4);
    gguf_put_number(&writer.fields, 1, 8);
    expect(&writer, KVA_EUNSUPPORTED, "x.nest is an array of arrays");
    for (uint32_t type = 0; type < KVA_GGUF_TYPE_COUNT; type++) {
        if (type == KVA_GGUF_TYPE_ARRAY)
            continue;
        fill(&writer);
        gguf_put_field(&writer, KEY("x.huge"), KVA_GGUF_TYPE_ARRAY, NULL, 0);
        gguf_put_number(&writer.fields, type, 4);
        gguf_put_number(&writer.fields, UINT64_MAX / 2, 8);
        expect(&writer, KVA_EFORMAT, "x.huge has 9223372036854775807 elements");
    }
    fill(&writer);
    gguf_put_field(&writer, KEY("x.text"), KVA_GGUF_TYPE_STRING, NULL, 0);
    gguf_put_number(&writer.fields, UINT64_MAX - 3, 8);
    expect(&writer, KVA_EFORMAT, "string 0 of x.text has 18446744073709551612 bytes");
}

static void test_gguf__refuses_bad_strings_where_they_are_read(void **state)
{
    (void)state;
    const struct {
        const char *value;
        size_t length;
        const char *part;
    } cases[] = {{"a\0b", 3, "has a NUL"}, {"\xFF", 1, "is not UTF-8"}};
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct gguf_writer writer;
        struct kva_buf bytes;
        struct kva_gguf gguf;
        struct kva_err err;
        const char *text;
        size_t length;
        void *copy;
        fill(&writer);
        gguf_put_field(&writer, KEY("x.text"), KVA_GGUF_TYPE_STRING, NULL, 0);
        gguf_put_number(&writer.fields, cases[i].length, 8);
        kva_buf_append(&writer.fields, cases[i].value, cases[i].length);
        gguf_writer_write(&writer, &bytes);
        assert_int_equal(parse(&bytes, bytes.length, &gguf, &copy, &err), KVA_OK);
        assert_int_equal(kva_gguf_get_string(&gguf, "x.text", &text, &length, &err), KVA_EFORMAT);
        assert_non_null(strstr(err.message, cases[i].part));
        kva_gguf_finish(&gguf);
        free(copy);
        kva_buf_finish(&bytes);
        gguf_writer_finish(&writer);
    }
}

static void test_gguf__refuses_bad_alignment(void **state)
{
    (void)state;
    struct gguf_writer writer;
    fill(&writer);
    gguf_put_u32(&writer, "general.alignment", 0);
    expect(&writer, KVA_EFORMAT, "general.alignment is 0");
    fill(&writer);
    gguf_put_u32(&writer, "general.alignment", 24);
    expect(&writer, KVA_EFORMAT, "general.alignment is 24, expected a power of two");
    /* Other than the file was made with. */
    fill(&writer);
    gguf_put_tensor(&writer, "c", KVA_GGUF_F32, 0, 16, (float[16]){0}, 64);
    gguf_put_u32(&writer, "general.alignment", 64);
    expect(&writer, KVA_EFORMAT,
           "c begins at byte 96 of the data, which is no multiple of the "
           "alignment 64");
}

static void test_gguf__refuses_bad_tensors(void **state)
{
    (void)state;
    struct gguf_writer writer;
    const uint64_t none[5] = {0}, huge[] = {1ull << 40, 1ull << 40}, five[] = {5}, one[] = {1},
                   large[] = {1ull << 62}, k[] = {256, 1};
    fill(&writer);
    gguf_put_info(&writer, KEY("c"), 0, none, 0, 0);
    expect(&writer, KVA_EFORMAT, "tensor c has 0 dimensions");
    fill(&writer);
    gguf_put_info(&writer, KEY("c"), 5, none, 0, 0);
    expect(&writer, KVA_EFORMAT, "tensor c has 5 dimensions");
    fill(&writer);
    gguf_put_info(&writer, KEY("c"), 2, huge, 0, 0);
    expect(&writer, KVA_EFORMAT, "element count of tensor c overflows");
    fill(&writer);
    gguf_put_info(&writer, KEY("c"), 1, large, 0, 0);
    expect(&writer, KVA_EFORMAT, "size of tensor c overflows");
    fill(&writer);
    gguf_put_info(&writer, KEY("c"), 1, five, 2, 0);
    expect(&writer, KVA_EFORMAT, "rows of 5, which are no whole blocks of 32 as Q4_0 has them");
    fill(&writer);
    gguf_put_info(&writer, KEY("c"), 1, one, KVA_GGUF_F32, 7);
    expect(&writer, KVA_EFORMAT, "begins at byte 7 of the data");
    fill(&writer);
    gguf_put_info(&writer, KEY("c"), 1, one, KVA_GGUF_F32, UINT64_MAX - 31);
    expect(&writer, KVA_EFORMAT, "tensor c needs 4 bytes from byte 18446744073709551584");
    fill(&writer);
    gguf_put_info(&writer, KEY("c"), 2, k, 12, 0);
    expect(&writer, KVA_EFORMAT, "tensor c needs 144 bytes");
    fill(&writer);
    gguf_put_info(&writer, KEY("c"), 1, one, KVA_GGUF_F32, 32);
    expect(&writer, KVA_EFORMAT, "tensors b and c overlap");
    fill(&writer);
    gguf_put_tensor(&writer, "a", KVA_GGUF_F32, 0, 1, "abcd", 4);
    expect(&writer, KVA_EFORMAT, "tensor a stands there twice");
    fill(&writer);
    gguf_put_info(&writer, "a\0c", 3, 1, one, KVA_GGUF_F32, 96);
    expect(&writer, KVA_EFORMAT, "'a?c' has a NUL");
}

/* A tensor of no bytes behind the end. */
static void test_gguf__refuses_a_missing_data_section(void **state)
{
    (void)state;
    struct gguf_writer writer;
    struct kva_buf bytes;
    struct kva_gguf gguf;
    struct kva_err err = {.message = ""};
    const uint64_t none[] = {0};
    void *copy;
    gguf_writer_init(&writer);
    gguf_put_info(&writer, KEY("c"), 1, none, KVA_GGUF_F32, 0);
    gguf_writer_write(&writer, &bytes);
    assert_int_equal(parse(&bytes, bytes.length - 1, &gguf, &copy, &err), KVA_EFORMAT);
    assert_non_null(strstr(err.message, "ends in the padding before the tensors' data"));
    free(copy);
    kva_buf_finish(&bytes);
    gguf_writer_finish(&writer);
}

/* Unknown formats are the business of whoever wants the tensor. */
static void test_gguf__lists_unknown_formats(void **state)
{
    (void)state;
    struct gguf_writer writer;
    struct kva_buf bytes;
    struct kva_gguf gguf;
    struct kva_err err;
    const uint64_t dims[] = {3};
    void *copy;
    fill(&writer);
    gguf_put_info(&writer, KEY("c"), 1, dims, 4242, 64);
    gguf_writer_write(&writer, &bytes);
    assert_int_equal(parse(&bytes, bytes.length, &gguf, &copy, &err), KVA_OK);
    assert_null(kva_gguf_find_tensor(&gguf, "c")->format);
    assert_int_equal(kva_gguf_find_tensor(&gguf, "c")->format_id, 4242);
    kva_gguf_finish(&gguf);
    free(copy);
    kva_buf_finish(&bytes);
    gguf_writer_finish(&writer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf__reads_fields_and_tensors),
        cmocka_unit_test(test_gguf__refuses_every_truncation),
        cmocka_unit_test(test_gguf__refuses_bad_headers),
        cmocka_unit_test(test_gguf__refuses_bad_fields),
        cmocka_unit_test(test_gguf__refuses_bad_strings_where_they_are_read),
        cmocka_unit_test(test_gguf__refuses_bad_alignment),
        cmocka_unit_test(test_gguf__refuses_bad_tensors),
        cmocka_unit_test(test_gguf__refuses_a_missing_data_section),
        cmocka_unit_test(test_gguf__lists_unknown_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
