#include "tests/cmocka.h"

#include "config/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *env_port;
static const char *env_config;
static const char *env_api_key;
static const char *env_etcd_user;

static const char *test_env(const char *name)
{
    if (strcmp(name, "KVAHEAD_PORT") == 0)
        return env_port;
    if (strcmp(name, "KVAHEAD_CONFIG") == 0)
        return env_config;
    if (strcmp(name, "KVAHEAD_API_KEY") == 0)
        return env_api_key;
    if (strcmp(name, "KVAHEAD_CLUSTER_ETCD_USER") == 0)
        return env_etcd_user;
    return NULL;
}

static enum kva_status load(struct kva_config *config, struct kva_string_list *rest,
                            struct kva_err *err, int argc, const char *const *argv)
{
    char *copies[16];
    for (int i = 0; i < argc; i++)
        copies[i] = (char *)(uintptr_t)argv[i];
    const struct kva_config_sources sources = {KVA_CMD_SERVE, argc, copies, test_env};
    assert_int_equal(kva_config_init(config, err), KVA_OK);
    return kva_config_load(config, &sources, rest, err);
}

#define LOAD(config, rest, err, ...)                                                               \
    load(config, rest, err, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),         \
         (const char *const[]){__VA_ARGS__})

static void test_options__defaults_are_valid_and_documented(void **state KVA_UNUSED)
{
    struct kva_config config;
    struct kva_err err;
    size_t count;
    const struct kva_option *options = kva_options(&count);
    assert_int_equal(kva_config_init(&config, &err), KVA_OK);
    assert_int_equal(config.port, 8000);
    assert_int_equal(config.keepalive_ms, 10000);
    assert_int_equal(config.body_bytes, 16 << 20);
    assert_true(config.prefix_cache);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(options[i].help);
        assert_true(length > 10 && options[i].help[length - 1] == '.');
        for (size_t j = 0; j < i; j++) {
            if (strcmp(options[i].name, options[j].name) == 0)
                assert_int_equal(options[i].commands & options[j].commands, 0);
        }
    }
    kva_config_finish(&config);
}

static void test_options__flags_of_every_kind(void **state KVA_UNUSED)
{
    struct kva_config config;
    struct kva_string_list rest;
    struct kva_err err;
    assert_int_equal(LOAD(&config, &rest, &err, "--port=81", "--host", "::1", "--device-memory",
                          "1.5G", "--gpu-memory=24G", "--keepalive", "250ms", "--no-prefix-cache",
                          "--metrics-vllm", "--kv-allow", "a", "--kv-allow=b", "more", "--",
                          "--port"),
                     KVA_OK);
    assert_int_equal(config.port, 81);
    assert_string_equal(config.host, "::1");
    assert_int_equal(config.device_memory, 3ull << 29);
    assert_int_equal(config.gpu_memory, 24ull << 30);
    assert_int_equal(config.keepalive_ms, 250);
    assert_false(config.prefix_cache);
    assert_true(config.metrics_vllm);
    assert_int_equal(config.kv_allow.count, 2);
    assert_string_equal(config.kv_allow.items[1], "b");
    assert_int_equal(rest.count, 2);
    assert_string_equal(rest.items[1], "--port");
    kva_config_finish(&config);
}

static void test_options__errors_name_option_value_and_range(void **state KVA_UNUSED)
{
    static const struct {
        const char *argument;
        const char *parts[4];
    } cases[] = {
        {"--port=70000", {"--port", "70000", "0", "65535"}},
        {"--port=-1", {"--port", "-1", "65535"}},
        {"--port=8k", {"--port", "8k"}},
        {"--port=1.5", {"--port", "1.5"}},
        {"--port=", {"--port", "''"}},
        {"--port=nan", {"--port", "nan"}},
        {"--port=0x10", {"--port", "0x10"}},
        {"--device-memory=5Q", {"--device-memory", "5Q", "K, M, G, T"}},
        {"--device-memory=1e30", {"--device-memory", "1e30"}},
        {"--keepalive=5d", {"--keepalive", "5d"}},
        {"--kv-policy=full", {"--kv-policy", "--kv specache:bits=1"}},
        {"--kv-bits=1", {"--kv-bits", "--kv specache:bits=1"}},
        {"--cpu-level=best", {"--cpu-level", "best", "auto", "ref"}},
        {"--prefix-cache=maybe", {"--prefix-cache", "maybe", "true"}},
        {"--prot=1", {"--prot", "is --port meant?", "--help"}},
        {"--device-memroy=1G", {"is --device-memory meant?"}},
        {"--device_memry=1G", {"is --device-memory meant?"}},
        {"--kv-alow", {"is --kv-allow meant?"}},
        {"--max-model-len=5", {"'--max-model-len=5'; --help"}},
        {"--tp=2", {"'--tp=2'; --help"}},
        {"-p", {"-p"}},
        {"--no-port", {"--no-port"}},
        {"--host", {"--host", "value"}},
        {"--max-tokens=5", {"--max-tokens"}},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_config config;
        struct kva_string_list rest;
        struct kva_err err = {0};
        assert_int_equal(LOAD(&config, &rest, &err, cases[i].argument), KVA_EINVAL);
        for (size_t j = 0; j < 4 && cases[i].parts[j]; j++) {
            if (!strstr(err.message, cases[i].parts[j]))
                fail_msg("'%s' does not say '%s'", err.message, cases[i].parts[j]);
        }
        kva_config_finish(&config);
    }
}

static void test_options__an_option_is_no_value(void **state KVA_UNUSED)
{
    static const char *const others[] = {"--port", "--port=81", "--prefix-cache",
                                         "--no-prefix-cache", "--config"};
    struct kva_config config;
    struct kva_string_list rest;
    struct kva_err err;
    for (size_t i = 0; i < KVA_COUNT_OF(others); i++) {
        assert_int_equal(LOAD(&config, &rest, &err, "--host", others[i], "1"), KVA_EINVAL);
        assert_non_null(strstr(err.message, "--host wants a value"));
        assert_non_null(strstr(err.message, others[i]));
        kva_config_finish(&config);
    }
    assert_int_equal(LOAD(&config, &rest, &err, "--host=--port", "--port", "81"), KVA_OK);
    assert_string_equal(config.host, "--port");
    kva_config_finish(&config);
    assert_int_equal(LOAD(&config, &rest, &err, "--host", "--other"), KVA_OK);
    assert_string_equal(config.host, "--other");
    kva_config_finish(&config);
}

static void write_file(char *path, const char *text)
{
    strcpy(path, "kvahead-options-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void test_options__precedence(void **state KVA_UNUSED)
{
    struct kva_config config;
    struct kva_string_list rest;
    struct kva_err err;
    char path[64];
    write_file(path, "{\"port\": 1, \"host\": \"file\", \"api_key\": [\"x\", \"y\"], "
                     "\"prefix-cache\": false, \"keepalive\": \"2s\", \"max_tokens\": 3}");
    env_port = "2";
    assert_int_equal(LOAD(&config, &rest, &err, "--config", path), KVA_OK);
    assert_int_equal(config.port, 2);
    assert_string_equal(config.host, "file");
    assert_int_equal(config.api_keys.count, 2);
    assert_int_equal(config.keepalive_ms, 2000);
    assert_false(config.prefix_cache);
    kva_config_finish(&config);

    env_config = path;
    assert_int_equal(LOAD(&config, &rest, &err, "--port", "3", "--host", "flag"), KVA_OK);
    assert_int_equal(config.port, 3);
    assert_string_equal(config.host, "flag");
    kva_config_finish(&config);

    env_port = "many";
    assert_int_equal(LOAD(&config, &rest, &err, "--host=x"), KVA_EINVAL);
    assert_non_null(strstr(err.message, "KVAHEAD_PORT"));
    kva_config_finish(&config);
    env_port = env_config = NULL;
    unlink(path);

    write_file(path, "{\"kv_allow\": \"full\", \"kv-allow\": [\"kivi\", \"offload\"]}");
    assert_int_equal(LOAD(&config, &rest, &err, "--config", path), KVA_OK);
    assert_int_equal(config.kv_allow.count, 3);
    kva_config_finish(&config);
    unlink(path);
}

/* The command line can be read by everybody on the machine. */
static void test_options__a_secret_is_no_flag(void **state KVA_UNUSED)
{
    struct kva_config config;
    struct kva_string_list rest;
    struct kva_err err;
    static const char *const flags[][2] = {{"--api-key", "hush"}, {"--api-key=hush", "x"}};
    for (size_t i = 0; i < KVA_COUNT_OF(flags); i++) {
        assert_int_equal(LOAD(&config, &rest, &err, flags[i][0], flags[i][1]), KVA_EINVAL);
        assert_non_null(strstr(err.message, "--api-key-file FILE"));
        assert_non_null(strstr(err.message, "KVAHEAD_API_KEY"));
        assert_null(strstr(err.message, "hush"));
        kva_config_finish(&config);
    }
    env_api_key = "one,two,";
    assert_int_equal(LOAD(&config, &rest, &err, "--port", "3"), KVA_OK);
    assert_int_equal(config.api_keys.count, 2);
    assert_string_equal(config.api_keys.items[0], "one");
    assert_string_equal(config.api_keys.items[1], "two");
    kva_config_finish(&config);
    env_api_key = "";
    assert_int_equal(LOAD(&config, &rest, &err, "--port", "3"), KVA_OK);
    assert_int_equal(config.api_keys.count, 0);
    kva_config_finish(&config);
    /* "$FIRST,$SECOND" of two that are not set: a server without a key is not what was meant. */
    static const char *const commas[] = {",", ",,"};
    for (size_t i = 0; i < KVA_COUNT_OF(commas); i++) {
        env_api_key = commas[i];
        assert_int_equal(LOAD(&config, &rest, &err, "--port", "3"), KVA_EINVAL);
        assert_non_null(strstr(err.message, "KVAHEAD_API_KEY"));
        kva_config_finish(&config);
    }
    env_api_key = NULL;
}

static void test_options__keys_in_a_file(void **state KVA_UNUSED)
{
    static const char *const texts[] = {"{\"api-key\": \"one,two,\"}",
                                        "{\"api-key\": [\"one\", \"two\"]}"};
    struct kva_config config;
    struct kva_string_list rest;
    struct kva_err err;
    char path[64];
    for (size_t i = 0; i < KVA_COUNT_OF(texts); i++) {
        write_file(path, texts[i]);
        assert_int_equal(LOAD(&config, &rest, &err, "--config", path), KVA_OK);
        assert_int_equal(config.api_keys.count, 2);
        assert_string_equal(config.api_keys.items[0], "one");
        assert_string_equal(config.api_keys.items[1], "two");
        kva_config_finish(&config);
        unlink(path);
    }
    write_file(path, "{\"api-key\": \",\"}");
    assert_int_equal(LOAD(&config, &rest, &err, "--config", path), KVA_EINVAL);
    assert_non_null(strstr(err.message, "'api-key' in "));
    kva_config_finish(&config);
    unlink(path);
}

static void test_options__a_password_keeps_its_commas(void **state KVA_UNUSED)
{
    struct kva_config config;
    struct kva_string_list rest;
    struct kva_err err;
    env_etcd_user = "root:hush,hush,";
    assert_int_equal(LOAD(&config, &rest, &err, "--port", "3"), KVA_OK);
    assert_string_equal(config.cluster_etcd_user, "root:hush,hush,");
    kva_config_finish(&config);
    env_etcd_user = "";
    assert_int_equal(LOAD(&config, &rest, &err, "--port", "3"), KVA_OK);
    assert_null(config.cluster_etcd_user);
    kva_config_finish(&config);
    env_etcd_user = NULL;
    assert_int_equal(LOAD(&config, &rest, &err, "--cluster-etcd-user", "root:hush"), KVA_EINVAL);
    assert_non_null(strstr(err.message, "KVAHEAD_CLUSTER_ETCD_USER"));
    assert_null(strstr(err.message, "hush"));
    kva_config_finish(&config);
}

static void test_options__help_says_where_else_they_may_stand(void **state KVA_UNUSED)
{
    static const enum kva_command secretive[] = {KVA_CMD_SERVE, KVA_CMD_CHAT};
    struct kva_buf text;
    for (size_t i = 0; i < KVA_COUNT_OF(secretive); i++) {
        kva_buf_init(&text, 1 << 20);
        kva_options_help(secretive[i], &text);
        assert_non_null(strstr(text.data, "\n  KVAHEAD_API_KEY=TEXT  "));
        assert_non_null(strstr(text.data, "KVAHEAD_DEVICE_MEMORY is --device-memory"));
        assert_non_null(strstr(text.data, "--no-NAME"));
        assert_null(strstr(text.data, "  api-key"));
        kva_buf_finish(&text);
    }
}

static void test_options__bad_files(void **state KVA_UNUSED)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{\"port\": 1,\n\n \"x\" 3}", "line 3"},
        {"[1]", "object"},
        {"{\"prot\": 1}", "unknown option 'prot' (is 'port' meant?)"},
        {"{\"max_model_len\": 1}", "unknown option 'max_model_len'"},
        {"{\"port\": {}}", "port"},
        {"{\"port\": 1e999}", "port"},
        {"{\"port\": \"many\"}", "many"},
        {"", "malformed"},
        {"{\"port\": 1} x", "malformed"},
        {"{\"port\": 1, \"port\": 2}", "'port' stands there twice"},
        {"{\"read-timeout\": \"1s\", \"read_timeout\": \"2s\"}",
         "'read-timeout' stands there twice"},
    };
    struct kva_config config;
    struct kva_string_list rest;
    struct kva_err err;
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char path[64];
        write_file(path, cases[i].text);
        assert_int_equal(LOAD(&config, &rest, &err, "--config", path), KVA_EINVAL);
        if (!strstr(err.message, cases[i].part))
            fail_msg("'%s' does not say '%s'", err.message, cases[i].part);
        kva_config_finish(&config);
        unlink(path);
    }
    assert_int_equal(LOAD(&config, &rest, &err, "--config", "no/such/file"), KVA_ENOTFOUND);
    kva_config_finish(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options__defaults_are_valid_and_documented),
        cmocka_unit_test(test_options__flags_of_every_kind),
        cmocka_unit_test(test_options__errors_name_option_value_and_range),
        cmocka_unit_test(test_options__an_option_is_no_value),
        cmocka_unit_test(test_options__precedence),
        cmocka_unit_test(test_options__a_secret_is_no_flag),
        cmocka_unit_test(test_options__keys_in_a_file),
        cmocka_unit_test(test_options__a_password_keeps_its_commas),
        cmocka_unit_test(test_options__help_says_where_else_they_may_stand),
        cmocka_unit_test(test_options__bad_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
