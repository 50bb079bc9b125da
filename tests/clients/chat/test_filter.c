#include "tests/cmocka.h"

#include "base/utf8.h"
#include "clients/chat/filter.h"

#include <string.h>

static void expect(const char *text, size_t length, const char *want)
{
    for (size_t first = 0; first <= length; first++) {
        for (size_t second = first; second <= length; second++) {
            struct kva_chat_filter filter = {0};
            struct kva_buf out;
            kva_buf_init(&out, 4096);
            kva_chat_filter_push(&filter, text, first, &out);
            kva_chat_filter_push(&filter, text + first, second - first, &out);
            kva_chat_filter_push(&filter, text + second, length - second, &out);
            kva_chat_filter_end(&filter, &out);
            assert_string_equal(out.data ? out.data : "", want);
            kva_buf_finish(&out);
        }
    }
}

#define EXPECT(text, want) expect(text, sizeof(text) - 1, want)
#define BAD                "\xEF\xBF\xBD"

static void test_filter__text_passes_at_every_pair_of_splits(void **state KVA_UNUSED)
{
    EXPECT("a\tb\nc", "a\tb\nc");
    EXPECT("h\xC3\xA9 \xED\x95\x9C \xF0\x9F\x98\x80!", "h\xC3\xA9 \xED\x95\x9C \xF0\x9F\x98\x80!");
    EXPECT("a\r\nb", "a\nb");
    EXPECT("", "");
}

static void test_filter__controls_become_visible(void **state KVA_UNUSED)
{
    EXPECT("\x1b]0;x\x07", "\xE2\x90\x9B]0;x\xE2\x90\x87");
    EXPECT("a\rb\r", "a\xE2\x90\x8D"
                     "b\xE2\x90\x8D");
    EXPECT("\r\r\n", "\xE2\x90\x8D\n");
    EXPECT("\x7f", "\xE2\x90\xA1");
    EXPECT("a\0b", "a\xE2\x90\x80"
                   "b");
    /* U+009B is a control sequence introducer of one character. */
    EXPECT("\xC2\x9B"
           "31m",
           BAD "31m");
    EXPECT("\xC2\xA0", "\xC2\xA0");
}

static void test_filter__malformed_bytes(void **state KVA_UNUSED)
{
    EXPECT("a\xFFz", "a" BAD "z");
    EXPECT("\x9B"
           "31m",
           BAD "31m");
    EXPECT("\xF0\x9F\x98", BAD);
    EXPECT("\xE2\x82\x1b[m", BAD "\xE2\x90\x9B[m");
    EXPECT("\xE0\x80\x80", BAD BAD BAD);
}

static void test_filter__no_byte_string_makes_a_control(void **state KVA_UNUSED)
{
    uint32_t seed = 12345;
    for (int round = 0; round < 2000; round++) {
        struct kva_chat_filter filter = {0};
        struct kva_buf out;
        char bytes[24];
        kva_buf_init(&out, 4096);
        for (size_t i = 0; i < sizeof(bytes); i++) {
            seed = seed * 1664525u + 1013904223u;
            bytes[i] = (char)(seed >> 24);
        }
        kva_chat_filter_push(&filter, bytes, 11, &out);
        kva_chat_filter_push(&filter, bytes + 11, sizeof(bytes) - 11, &out);
        kva_chat_filter_end(&filter, &out);
        assert_true(kva_utf8_valid(out.data, out.length));
        for (size_t i = 0; i < out.length; i++) {
            unsigned char c = (unsigned char)out.data[i];
            assert_true(c >= 0x20 || c == '\n' || c == '\t');
            assert_int_not_equal(c, 0x7F);
            assert_false(c == 0xC2 && (unsigned char)out.data[i + 1] < 0xA0);
        }
        kva_buf_finish(&out);
    }
}

static void test_filter__line_is_one_and_cut_at_a_character(void **state KVA_UNUSED)
{
    char line[8];
    kva_chat_filter_line("a\nb\x1b", 4, line, sizeof(line));
    assert_string_equal(line, "a b\xE2\x90\x9B");
    kva_chat_filter_line("123456\xC3\xA9", 8, line, sizeof(line));
    assert_string_equal(line, "123456");
    kva_chat_filter_line("12345\xC3\xA9", 7, line, sizeof(line));
    assert_string_equal(line, "12345\xC3\xA9");
    kva_chat_filter_line("\x1b\x1b\x1b", 3, line, sizeof(line));
    assert_string_equal(line, "\xE2\x90\x9B\xE2\x90\x9B");
    kva_chat_filter_line("", 0, line, sizeof(line));
    assert_string_equal(line, "");
    kva_chat_filter_line("abc", 3, line, 1);
    assert_string_equal(line, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filter__text_passes_at_every_pair_of_splits),
        cmocka_unit_test(test_filter__controls_become_visible),
        cmocka_unit_test(test_filter__malformed_bytes),
        cmocka_unit_test(test_filter__no_byte_string_makes_a_control),
        cmocka_unit_test(test_filter__line_is_one_and_cut_at_a_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
