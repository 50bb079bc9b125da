#include "tests/cmocka.h"

#include "base/buf.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

static void check_json(const char *text, size_t length, const char *want)
{
    struct kva_buf buf;
    kva_buf_init(&buf, 4096);
    kva_buf_json_string(&buf, text, length);
    assert_false(buf.failed);
    assert_string_equal(buf.data, want);
    kva_buf_finish(&buf);
}

static void test_buf__json_string_escapes(void **state KVA_UNUSED)
{
    check_json("", 0, "\"\"");
    check_json("plain", 5, "\"plain\"");
    check_json("a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\"");
    check_json("\b\f\n\r\t\x01\x1f\x00", 8, "\"\\b\\f\\n\\r\\t\\u0001\\u001f\\u0000\"");
    check_json("\xF0\x9F\x98\x80\xE4\xBD\xA0", 7, "\"\xF0\x9F\x98\x80\xE4\xBD\xA0\"");
    check_json("\x7f", 1, "\"\x7f\"");
}

static void test_buf__json_string_replaces_bad_utf8(void **state KVA_UNUSED)
{
    check_json("a\xFF"
               "b",
               3,
               "\"a\xEF\xBF\xBD"
               "b\"");
    check_json("\xE4\xBD", 2, "\"\xEF\xBF\xBD\"");
    check_json("\xED\xA0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
    check_json("\xF0\x9F\x98x", 4, "\"\xEF\xBF\xBDx\"");
}

static void check_float(float value, const char *want)
{
    struct kva_buf buf;
    kva_buf_init(&buf, 64);
    kva_buf_float(&buf, value);
    assert_string_equal(buf.data, want);
    assert_true(strtof(buf.data, NULL) == value);
    kva_buf_finish(&buf);
}

static void test_buf__floats_are_as_short_as_they_read_back(void **state KVA_UNUSED)
{
    check_float(0.7f, "0.7");
    check_float(0.95f, "0.95");
    check_float(1, "1");
    check_float(0, "0");
    check_float(-2, "-2");
    check_float(1e-5f, "1e-05");
    check_float(0.1234567f, "0.1234567");
    check_float(16777216, "16777216");
    check_float(0x1.fffffep-2f, "0.49999997");
    check_float(0x1.6a09e6p-1f, "0.70710677");
    check_float(FLT_MAX, "3.4028235e+38");
    for (unsigned i = 1; i < 200; i++) {
        struct kva_buf buf;
        kva_buf_init(&buf, 64);
        kva_buf_float(&buf, 1 / (float)i);
        assert_true(strtof(buf.data, NULL) == 1 / (float)i);
        kva_buf_finish(&buf);
    }
}

/* As text they are within a line of JSON; some readers would end it there. */
static void test_buf__json_string_escapes_line_ends(void **state KVA_UNUSED)
{
    check_json("a\xC2\x85z", 4, "\"a\\u0085z\"");
    check_json("\xE2\x80\xA8\xE2\x80\xA9", 6, "\"\\u2028\\u2029\"");
    check_json("\xE2\x80\xA7\xE2\x80\xAA\xC2\x84\xC2\x86", 10,
               "\"\xE2\x80\xA7\xE2\x80\xAA\xC2\x84\xC2\x86\"");
    check_json("\xE3\x80\xA8\xE2\x81\xA8\xC3\x85", 8, "\"\xE3\x80\xA8\xE2\x81\xA8\xC3\x85\"");
    check_json("\xE2\x80", 2, "\"\xEF\xBF\xBD\"");
    check_json("\xC2", 1, "\"\xEF\xBF\xBD\"");
}

static void test_buf__json_string_plain_leaves_line_ends(void **state KVA_UNUSED)
{
    struct kva_buf buf;
    kva_buf_init(&buf, 4096);
    kva_buf_json_string_plain(&buf, "\xC2\x85\n\xE2\x80\xA8\xFF", 7);
    assert_string_equal(buf.data, "\"\xC2\x85\\n\xE2\x80\xA8\xEF\xBF\xBD\"");
    kva_buf_finish(&buf);
}

static void test_buf__json_line_escapes_line_ends(void **state KVA_UNUSED)
{
    static const char text[] = "{\"a\\n\":\"\xC2\x85\xE2\x80\xA7\xE2\x80\xA9\"}";
    struct kva_buf buf;
    kva_buf_init(&buf, 4096);
    kva_buf_json_line(&buf, text, sizeof(text) - 1);
    assert_string_equal(buf.data, "{\"a\\n\":\"\\u0085\xE2\x80\xA7\\u2029\"}");
    kva_buf_finish(&buf);
}

static void test_buf__maximum_is_sticky(void **state KVA_UNUSED)
{
    struct kva_buf buf;
    kva_buf_init(&buf, 8);
    kva_buf_puts(&buf, "12345");
    kva_buf_puts(&buf, "6789");
    assert_true(buf.failed);
    assert_string_equal(buf.data, "12345");
    kva_buf_putc(&buf, 'x');
    assert_int_equal(buf.length, 5);
    assert_null(kva_buf_take(&buf, NULL));
    kva_buf_clear(&buf);
    kva_buf_puts(&buf, "12345678");
    assert_false(buf.failed);
    kva_buf_finish(&buf);
}

static void test_buf__printf_longer_than_its_scratch(void **state KVA_UNUSED)
{
    struct kva_buf buf;
    kva_buf_init(&buf, 4096);
    kva_buf_printf(&buf, "%0*d|", 1000, 7);
    assert_int_equal(buf.length, 1001);
    assert_int_equal(buf.data[999], '7');
    size_t length;
    char *data = kva_buf_take(&buf, &length);
    assert_int_equal(length, 1001);
    free(data);
    kva_buf_finish(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buf__json_string_escapes),
        cmocka_unit_test(test_buf__json_string_replaces_bad_utf8),
        cmocka_unit_test(test_buf__floats_are_as_short_as_they_read_back),
        cmocka_unit_test(test_buf__json_string_escapes_line_ends),
        cmocka_unit_test(test_buf__json_string_plain_leaves_line_ends),
        cmocka_unit_test(test_buf__json_line_escapes_line_ends),
        cmocka_unit_test(test_buf__maximum_is_sticky),
        cmocka_unit_test(test_buf__printf_longer_than_its_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
