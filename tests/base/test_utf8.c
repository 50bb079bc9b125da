#include "tests/cmocka.h"

#include "base/utf8.h"

#include <string.h>

static void test_utf8__round_trips_every_scalar_value(void **state KVA_UNUSED)
{
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        if (code >= 0xD800 && code <= 0xDFFF)
            continue;
        char text[4];
        int size = kva_utf8_encode(code, text);
        if (kva_utf8_sequence(text, (size_t)size, NULL) != size ||
            kva_utf8_decode(text, size) != code)
            fail_msg("code point U+%04X", code);
        for (int cut = 1; cut < size; cut++) {
            if (kva_utf8_sequence(text, (size_t)cut, NULL) != -1 ||
                kva_utf8_incomplete_tail(text, (size_t)cut) != (size_t)cut)
                fail_msg("code point U+%04X cut at %d", code, cut);
        }
        if (kva_utf8_incomplete_tail(text, (size_t)size) != 0)
            fail_msg("code point U+%04X taken for a fragment", code);
    }
}

static void test_utf8__rejects_ill_formed(void **state KVA_UNUSED)
{
    static const struct {
        const char *text;
        size_t length, bad;
    } cases[] = {
        {"\x80", 1, 1},         {"\xC0\x80", 2, 1},         {"\xC1\xBF", 2, 1},
        {"\xE0\x80\x80", 3, 1}, {"\xED\xA0\x80", 3, 1},     {"\xF4\x90\x80\x80", 4, 1},
        {"\xF5\x80", 2, 1},     {"\xE4\xBD\x41", 3, 2},     {"\xF0\x9F\x98\x41", 4, 3},
        {"\xFF", 1, 1},         {"\xF0\x80\x80\x80", 4, 1},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        size_t bad = 0;
        assert_int_equal(kva_utf8_sequence(cases[i].text, cases[i].length, &bad), 0);
        assert_int_equal(bad, cases[i].bad);
        assert_false(kva_utf8_valid(cases[i].text, cases[i].length));
    }
    assert_true(kva_utf8_valid("", 0));
    assert_false(kva_utf8_valid("\xE4\xBD", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8__round_trips_every_scalar_value),
        cmocka_unit_test(test_utf8__rejects_ill_formed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
