#include "tests/cmocka.h"

#include "base/err.h"
#include "base/utf8.h"

#include <string.h>

static void test_err__every_status_has_an_entry(void **state KVA_UNUSED)
{
    for (int status = 0; status < KVA_STATUS_COUNT; status++) {
        const struct kva_status_info *info = kva_status_info((enum kva_status)status);
        assert_non_null(info->name);
        assert_non_null(info->oai_type);
        assert_in_range(info->http_code, 200, 505);
        for (int other = 0; other < status; other++)
            assert_string_not_equal(info->name, kva_status_info((enum kva_status)other)->name);
    }
    assert_string_equal(kva_status_info((enum kva_status)999)->name, "internal");
}

static void test_err__long_messages_are_cut_at_a_character(void **state KVA_UNUSED)
{
    struct kva_err err;
    char text[2000];
    for (size_t pad = 0; pad < 4; pad++) {
        memset(text, 'a', pad);
        for (size_t at = pad; at + 3 < sizeof(text); at += 3)
            memcpy(text + at, "\xE4\xBD\xA0", 4);
        assert_int_equal(kva_fail(&err, KVA_EINVAL, "%s", text), KVA_EINVAL);
        assert_true(kva_utf8_valid(err.message, strlen(err.message)));
        assert_true(strlen(err.message) > KVA_ERR_MESSAGE_MAX - 5);
    }
}

static void test_err__prefix_and_param(void **state KVA_UNUSED)
{
    struct kva_err err;
    assert_int_equal(kva_fail_param(&err, KVA_EINVAL, "top_p", "got %d", 7), KVA_EINVAL);
    assert_string_equal(err.param, "top_p");
    assert_int_equal(kva_err_prefix(&err, KVA_EFORMAT, "config.json line %d", 3), KVA_EFORMAT);
    assert_string_equal(err.message, "config.json line 3: got 7");
    assert_int_equal(err.status, KVA_EFORMAT);
    assert_int_equal(kva_fail(NULL, KVA_EIO, "unseen"), KVA_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err__every_status_has_an_entry),
        cmocka_unit_test(test_err__long_messages_are_cut_at_a_character),
        cmocka_unit_test(test_err__prefix_and_param),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
