/* What --model says, taken apart. */
#include "tests/cmocka.h"

#include "hub/name.h"

#include <string.h>

static struct kva_hub_name parsed(const char *text)
{
    struct kva_hub_name name;
    struct kva_err err = {.message = ""};
    if (kva_hub_name_parse(text, &name, &err))
        fail_msg("'%s': %s", text, err.message);
    return name;
}

static void test_name__paths(void **state KVA_UNUSED)
{
    static const char *const paths[] = {
        ".",          "..",          "./model",       "../a/b",  "/srv/models/a",
        "~/model",    "a/b/c",       "a/b/",          "/a",      "a//b",
        "a b/c",      "-a/b",        "a/b-",          "a/.b",    "a--b/c",
        "a/b..c",     "a/b/c@main",  "models/x.gguf", "x/y.git", "x/z.safetensors",
        "\xc3\xa4/b", "./a/b@main:x"};
    for (size_t i = 0; i < KVA_COUNT_OF(paths); i++) {
        if (parsed(paths[i]).kind != KVA_HUB_PATH)
            fail_msg("'%s' is taken for a name", paths[i]);
    }
}

static void test_name__words_and_known_ones(void **state KVA_UNUSED)
{
    assert_int_equal(parsed("demo").kind, KVA_HUB_WORD);
    assert_int_equal(parsed("model.gguf").kind, KVA_HUB_WORD);
    assert_int_equal(parsed("SmolLM2-135M-Instruct").kind, KVA_HUB_WORD);
    struct kva_hub_name name = parsed("smollm2-135m-instruct");
    assert_int_equal(name.kind, KVA_HUB_KNOWN);
    assert_string_equal(name.known->licence, "Apache-2.0");
}

static void expect(const char *text, const char *repository, const char *revision, const char *file)
{
    struct kva_hub_name name = parsed(text);
    assert_int_equal(name.kind, KVA_HUB_REPOSITORY);
    assert_string_equal(name.repository, repository);
    assert_string_equal(name.revision, revision);
    assert_string_equal(name.file, file);
}

static void test_name__repositories(void **state KVA_UNUSED)
{
    expect("org/name", "org/name", "main", "");
    expect("o/N_1.5-b", "o/N_1.5-b", "main", "");
    expect("org/name@v1.0", "org/name", "v1.0", "");
    expect("org/name@refs/pr/12:Q4_K_M", "org/name", "refs/pr/12", "Q4_K_M");
    expect("org/name:sub/model-Q8_0.gguf", "org/name", "main", "sub/model-Q8_0.gguf");
    expect("org/name@0123456789abcdef0123456789abcdef01234567", "org/name",
           "0123456789abcdef0123456789abcdef01234567", "");
}

static void test_name__longest_parts(void **state KVA_UNUSED)
{
    char text[256];
    memset(text, 'a', sizeof(text));
    text[96] = '/';
    text[193] = '\0';
    struct kva_hub_name name = parsed(text);
    assert_int_equal(name.kind, KVA_HUB_REPOSITORY);
    assert_string_equal(name.repository, text);
    text[193] = 'a';
    text[194] = '\0';
    assert_int_equal(parsed(text).kind, KVA_HUB_PATH);
}

static void test_name__what_cannot_be_is_refused(void **state KVA_UNUSED)
{
    static const char *const wrong[] = {
        "",         "a/b@",     "a/b@..",    "a/b@x/../y", "a/b@/x",   "a/b@x y",
        "a/b@x..y", "a/b:",     "a/b:../x",  "a/b:/etc/x", "a/b:x//y", "a/b:x/./y",
        "a/b:x\\y", "a/b:x\ny", "a/b@main:", "a/b@:Q4_0"};
    for (size_t i = 0; i < KVA_COUNT_OF(wrong); i++) {
        struct kva_hub_name name = {.kind = KVA_HUB_KNOWN};
        struct kva_err err = {.message = ""};
        if (kva_hub_name_parse(wrong[i], &name, &err) != KVA_EINVAL)
            fail_msg("'%s' is taken", wrong[i]);
        assert_string_equal(err.param, "model");
        assert_int_equal(name.kind, KVA_HUB_KNOWN);
    }
    char text[700] = "a/b@";
    memset(text + 4, 'x', 600);
    struct kva_hub_name name;
    assert_int_equal(kva_hub_name_parse(text, &name, NULL), KVA_EINVAL);
    text[3] = ':';
    assert_int_equal(kva_hub_name_parse(text, &name, NULL), KVA_EINVAL);
}

static void test_name__safe_paths(void **state KVA_UNUSED)
{
    char text[600];
    static const char *const safe[] = {"config.json", "a/b/c.gguf", "..a", "a..", "...", "a b"};
    static const char *const unsafe[] = {"",       ".",     "..",    "/a",    "a/",
                                         "a//b",   "../a",  "a/..",  "a/./b", "a\\b",
                                         "a\x01b", "a\x7f", "a/../b"};
    for (size_t i = 0; i < KVA_COUNT_OF(safe); i++)
        assert_true(kva_hub_name_is_safe(safe[i]));
    for (size_t i = 0; i < KVA_COUNT_OF(unsafe); i++)
        assert_false(kva_hub_name_is_safe(unsafe[i]));
    memset(text, 'a', sizeof(text));
    text[255] = '\0';
    assert_true(kva_hub_name_is_safe(text));
    text[255] = 'a';
    text[256] = '\0';
    assert_false(kva_hub_name_is_safe(text));
    text[256] = 'a';
    text[200] = text[400] = '/';
    text[512] = '\0';
    assert_true(kva_hub_name_is_safe(text));
    text[512] = 'a';
    text[513] = '\0';
    assert_false(kva_hub_name_is_safe(text));
}

static void test_name__in_a_url(void **state KVA_UNUSED)
{
    struct kva_buf text;
    kva_buf_init(&text, 100);
    kva_hub_name_escape("a-b._~/Z9/x y?#%\xc3\xa4", &text);
    assert_string_equal(text.data, "a-b._~/Z9/x%20y%3F%23%25%C3%A4");
    kva_buf_finish(&text);
}

/* What is pinned has the form of what pins: a slip of the pen would show only in a fetch. */
static void test_name__table_of_known_models(void **state KVA_UNUSED)
{
    size_t count;
    const struct kva_hub_known *table = kva_hub_known_table(&count);
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes = 0;
        assert_int_equal(strspn(table[i].sha256, "0123456789abcdef"), 64);
        assert_int_equal(strlen(table[i].sha256), 64);
        assert_true(kva_hub_name_is_safe(table[i].file) && !strchr(table[i].file, '/'));
        assert_true(kva_hub_name_is_safe(table[i].name) && !strchr(table[i].name, '/'));
        assert_true(table[i].wheel_count > 0);
        for (uint32_t j = 0; j < table[i].wheel_count; j++) {
            const struct kva_hub_wheel *wheel = &table[i].wheels[j];
            assert_non_null(strstr(wheel->requirement, "=="));
            assert_int_equal(strspn(wheel->sha256, "0123456789abcdef"), 64);
            assert_int_equal(strlen(wheel->sha256), 64);
            assert_true(wheel->wheel_bytes > 0);
            bytes += wheel->bytes;
        }
        assert_int_equal(bytes, table[i].bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_name__paths),
        cmocka_unit_test(test_name__words_and_known_ones),
        cmocka_unit_test(test_name__repositories),
        cmocka_unit_test(test_name__longest_parts),
        cmocka_unit_test(test_name__what_cannot_be_is_refused),
        cmocka_unit_test(test_name__safe_paths),
        cmocka_unit_test(test_name__in_a_url),
        cmocka_unit_test(test_name__table_of_known_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
