/* Which addresses want a key, and which names are none. Nothing is listened on here. */
#include "tests/cmocka.h"

#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static enum kva_status check(const char *host, bool key, bool file, bool allowed,
                             struct kva_err *err)
{
    char text[64], key_text[] = "key", path[] = "keys";
    struct kva_config config = {.host = text, .public_without_key = allowed};
    snprintf(text, sizeof(text), "%s", host);
    if (key)
        config.api_keys.items[config.api_keys.count++] = key_text;
    config.api_key_file = file ? path : NULL;
    return kva_cli_check_reach(&config, err);
}

static const char *const outside[] = {"0.0.0.0",     "::", "192.0.2.1",        "10.0.0.1",
                                      "2001:db8::1", "0",  "::ffff:192.0.2.1", "128.0.0.1"};
static const char *const inside[] = {"127.0.0.1", "127.9.9.9", "::1", "localhost",
                                     "::ffff:127.0.0.1"};

static void test_reach__keys_are_wanted_where_others_reach(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < KVA_COUNT_OF(outside); i++) {
        struct kva_err err = {0};
        assert_int_equal(check(outside[i], false, false, false, &err), KVA_EINVAL);
        assert_string_equal(err.param, "host");
        assert_non_null(strstr(err.message, outside[i]));
        assert_non_null(strstr(err.message, "--api-key-file"));
        assert_non_null(strstr(err.message, "--public-without-key"));
    }
}

static void test_reach__keys_or_the_operators_word_are_enough(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    for (size_t i = 0; i < KVA_COUNT_OF(outside); i++) {
        assert_int_equal(check(outside[i], true, false, false, &err), KVA_OK);
        assert_int_equal(check(outside[i], false, true, false, &err), KVA_OK);
        assert_int_equal(check(outside[i], false, false, true, &err), KVA_OK);
    }
}

static void test_reach__loopback_wants_nothing(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    for (size_t i = 0; i < KVA_COUNT_OF(inside); i++)
        assert_int_equal(check(inside[i], false, false, false, &err), KVA_OK);
}

static enum kva_status check_callers(const char *origin, const char *host, struct kva_err *err)
{
    char texts[2][64];
    struct kva_config config = {0};
    if (origin)
        config.cors_origins.items[config.cors_origins.count++] = texts[0];
    if (host)
        config.allowed_hosts.items[config.allowed_hosts.count++] = texts[1];
    snprintf(texts[0], sizeof(texts[0]), "%s", origin ? origin : "");
    snprintf(texts[1], sizeof(texts[1]), "%s", host ? host : "");
    return kva_cli_check_callers(&config, err);
}

/* One that no browser sends would never match, and nobody would learn why. */
static void test_reach__origins_are_such_as_browsers_send(void **state KVA_UNUSED)
{
    static const char *const good[] = {
        "*",
        "null",
        "https://chat.example.org",
        "http://localhost:3000",
        "http://[::1]:80",
        "app://local",
        "http://127.0.0.1",
    };
    static const char *const bad[] = {"",
                                      "chat.example.org",
                                      "https://chat.example.org/",
                                      "https://a/b",
                                      "https://",
                                      "://a",
                                      "https://a:",
                                      "https://a:http",
                                      "https://a b",
                                      "ht tp://a",
                                      "https://[a",
                                      "https://*.a.org",
                                      "https://a.org,https://b.org"};
    struct kva_err err = {0};
    for (size_t i = 0; i < KVA_COUNT_OF(good); i++)
        assert_int_equal(check_callers(good[i], NULL, &err), KVA_OK);
    for (size_t i = 0; i < KVA_COUNT_OF(bad); i++) {
        if (check_callers(bad[i], NULL, &err) != KVA_EINVAL)
            fail_msg("'%s' is taken", bad[i]);
        assert_string_equal(err.param, "cors-origin");
        assert_non_null(strstr(err.message, bad[i]));
    }
}

static void test_reach__allowed_hosts_are_names(void **state KVA_UNUSED)
{
    static const char *const good[] = {"*", "chat.example.org", "gpu_1", "192.0.2.1", "[::1]"};
    static const char *const bad[] = {"", "http://a", "a:8000", "a/", "a b", "::1", "[::1]:80"};
    struct kva_err err = {0};
    for (size_t i = 0; i < KVA_COUNT_OF(good); i++)
        assert_int_equal(check_callers(NULL, good[i], &err), KVA_OK);
    for (size_t i = 0; i < KVA_COUNT_OF(bad); i++) {
        if (check_callers(NULL, bad[i], &err) != KVA_EINVAL)
            fail_msg("'%s' is taken", bad[i]);
        assert_string_equal(err.param, "allowed-host");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reach__keys_are_wanted_where_others_reach),
        cmocka_unit_test(test_reach__keys_or_the_operators_word_are_enough),
        cmocka_unit_test(test_reach__loopback_wants_nothing),
        cmocka_unit_test(test_reach__origins_are_such_as_browsers_send),
        cmocka_unit_test(test_reach__allowed_hosts_are_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
