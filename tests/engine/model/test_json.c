#include "tests/engine/model/checkpoint.h"

#include "engine/model/json.h"
#include "engine/model/limits.h"
#include "tests/cmocka.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The text in an allocation of exactly its size, so that reading past its end is seen. */
static enum kva_status check_bytes(const char *text, size_t length, struct kva_err *err)
{
    char *exact = malloc(length ? length : 1);
    assert_non_null(exact);
    memcpy(exact, text, length);
    enum kva_status status = kva_model_json_check(exact, length, "x.json", err);
    free(exact);
    return status;
}

static void test_json__accepts_what_the_grammar_allows(void **state KVA_UNUSED)
{
    static const char *const texts[] = {
        "{}",
        " [ ] ",
        "0",
        "-0.5e+3",
        "1E9",
        "\"\"",
        "true",
        "[null,false,[],{},\"a\"]",
        "{\"a\":{\"b\":[1,2,{\"c\":-1.25}]},\"d\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\"}\r\n",
        "\"\\ud83d\\ude00 \xF0\x9F\x98\x80\"",
        "[1e999]",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(texts); i++) {
        struct kva_err err = {0};
        if (check_bytes(texts[i], strlen(texts[i]), &err))
            fail_msg("'%s': %s", texts[i], err.message);
    }
}

static void test_json__refuses_the_rest_and_says_where(void **state KVA_UNUSED)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "x.json: ends at byte 0, expected a value"},
        {"{", "ends at byte 1, expected a field name in quotes"},
        {"{\"a\"", "ends at byte 4, expected ':'"},
        {"{\"a\":1,}", "byte 7 is '}', expected a field name in quotes"},
        {"[1,]", "byte 3 is ']', expected a value"},
        {"[1}", "byte 2 is '}', expected ',' or ']'"},
        {"{\"a\":1]", "byte 6 is ']', expected ',' or '}'"},
        {"{} x", "byte 3 is 'x', expected the end of the file"},
        {"{a:1}", "byte 1 is 'a', expected a field name"},
        {"'a'", "byte 0 is ''', expected a value"},
        {"01", "byte 0 is '0', expected a number without leading zeros"},
        {"-", "ends at byte 1, expected a digit"},
        {"1.", "ends at byte 2, expected a digit"},
        {"1e", "ends at byte 2, expected a digit"},
        {"+1", "byte 0 is '+', expected a value"},
        {"[.5]", "byte 1 is '.', expected a value"},
        {"NaN", "byte 0 is 'N', expected a value"},
        {"-Infinity", "byte 1 is 'I', expected a digit"},
        {"tru", "byte 0 is 't', expected a value"},
        {"\"abc", "ends at byte 4, expected the rest of a string"},
        {"\"a\nb\"", "byte 2 is 0x0a, expected the rest of a string"},
        {"\"\\x\"", "byte 2 is 'x', expected one of"},
        {"\"\\", "ends at byte 2, expected one of"},
        {"\"\\u12g4\"", "byte 5 is 'g', expected four hexadecimal digits"},
        {"\"\\u0000\"", "\\u0000 in the string at byte 1"},
        {"\"\\ud800\"", "half of a surrogate pair"},
        {"\"\\ud800\\u0041\"", "half of a surrogate pair"},
        {"\"\\udc00\"", "half of a surrogate pair"},
        {"\"\xFF\"", "byte 1 is 0xff, expected valid UTF-8"},
        {"\"\xED\xA0\x80\"", "byte 1 is 0xed, expected valid UTF-8"},
        {"\"\xE4\xBD", "byte 1 is 0xe4, expected valid UTF-8"},
        {"\xEF\xBB\xBF{}", "byte 0 is 0xef, expected a value"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_err err = {0};
        assert_int_equal(check_bytes(cases[i].text, strlen(cases[i].text), &err), KVA_EFORMAT);
        expect_message(&err, cases[i].message);
    }
    struct kva_err err = {0};
    assert_int_equal(check_bytes("{}\0", 3, &err), KVA_EFORMAT);
    expect_message(&err, "byte 2 is 0x00, expected the end of the file");
}

static void test_json__depth_is_bounded(void **state KVA_UNUSED)
{
    enum { DEEP = 100000 };
    struct kva_err err = {0};
    static char text[2 * DEEP];
    for (unsigned depth = KVA_MODEL_JSON_DEPTH_MAX; depth <= KVA_MODEL_JSON_DEPTH_MAX + 1;
         depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(check_bytes(text, 2 * depth, &err),
                         depth <= KVA_MODEL_JSON_DEPTH_MAX ? KVA_OK : KVA_EFORMAT);
    }
    expect_message(&err, "nested deeper than the allowed 32 levels at byte 32");
    memset(text, '[', 2 * DEEP);
    assert_int_equal(check_bytes(text, 2 * DEEP, &err), KVA_EFORMAT);
}

static void test_json__numbers_and_values_are_bounded(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    size_t length = 10u << 20;
    char *text = malloc(length);
    assert_non_null(text);
    memset(text, '7', length);
    assert_int_equal(check_bytes(text, 48, &err), KVA_OK);
    assert_int_equal(check_bytes(text, length, &err), KVA_EFORMAT);
    expect_message(&err, "the number at byte 0 has 10485760 characters, allowed are 48");
    for (size_t i = 0; i < length; i += 2)
        memcpy(text + i, "0,", 2);
    text[0] = '[';
    text[1] = ' ';
    assert_int_equal(check_bytes(text, length, &err), KVA_EFORMAT);
    expect_message(&err, "more than the allowed 2097152 values");
    free(text);
}

static void test_json__parse_wants_an_object(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    cJSON *root = NULL;
    assert_int_equal(kva_model_json_parse("[1]", 3, "x.json", &root, &err), KVA_EFORMAT);
    expect_message(&err, "x.json: the file is not a JSON object");
    assert_null(root);
    assert_int_equal(kva_model_json_parse("{\"a\":1}", 7, "x.json", &root, &err), KVA_OK);
    cJSON_Delete(root);
}

/* The library that builds the tree carries no sanitizer; a page that cannot be read stands behind
 * the text instead. */
static void test_json__parse_reads_nothing_past_the_end(void **state KVA_UNUSED)
{
    static const char *const texts[] = {
        "{}",
        "{\"a\":[1,-2.5e3,true,false,null,\"\\u00e9\\ud83d\\ude00x\"]}",
        "{\"a\":1}  ",
    };
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
    for (size_t i = 0; i < KVA_COUNT_OF(texts); i++) {
        size_t length = strlen(texts[i]);
        /* Cut anywhere too: every cut but one among the spaces is refused. */
        for (size_t cut = 0; cut <= length; cut++) {
            cJSON *root = NULL;
            char *text = pages + page - cut;
            memcpy(text, texts[i], cut);
            bool whole = cut > 0 && strchr(texts[i], '}') < texts[i] + cut;
            assert_int_equal(kva_model_json_parse(text, cut, "x.json", &root, NULL),
                             whole ? KVA_OK : KVA_EFORMAT);
            cJSON_Delete(root);
        }
    }
    munmap(pages, 2 * page);
}

static struct kva_fields parse_fields(const char *text, struct kva_err *err)
{
    cJSON *root = NULL;
    assert_int_equal(kva_model_json_parse(text, strlen(text), "x.json", &root, err), KVA_OK);
    return (struct kva_fields){root, "x.json", "p.", err};
}

static void test_fields__absent_and_null_keep_the_default(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    struct kva_fields fields = parse_fields("{\"a\":null}", &err);
    const char *const names[] = {"a", "b"};
    for (size_t i = 0; i < 2; i++) {
        uint32_t number = 7;
        double real = 0.5;
        bool flag = true;
        const char *text = "x";
        assert_int_equal(kva_fields_u32(&fields, names[i], 0, 1, &number), KVA_OK);
        assert_int_equal(kva_fields_double(&fields, names[i], 0, 1, &real), KVA_OK);
        assert_int_equal(kva_fields_bool(&fields, names[i], &flag), KVA_OK);
        assert_int_equal(kva_fields_string(&fields, names[i], &text), KVA_OK);
        assert_true(number == 7 && real == 0.5 && flag && strcmp(text, "x") == 0);
    }
    cJSON_Delete((cJSON *)(uintptr_t)fields.object);
}

static void test_fields__wrong_values_are_named(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    struct kva_fields fields = parse_fields(
        "{\"neg\":-1,\"half\":0.5,\"big\":4294967296,\"inf\":1e999,\"text\":\"a\\u001b[31m\","
        "\"list\":[1],\"twice\":1,\"object\":{},\"exact\":9007199254740993,\"twice\":1}",
        &err);
    static const struct {
        const char *name, *message;
    } cases[] = {
        {"neg", "x.json: p.neg is -1, expected a whole number in 1..4294967295"},
        {"half", "p.half is 0.5, expected"},
        {"big", "p.big is 4294967296, expected"},
        {"inf", "p.inf is inf, expected"},
        {"text", "p.text is \"a?[31m\", expected"},
        {"list", "p.list is a list, expected"},
        {"object", "p.object is an object, expected"},
        {"exact", "p.exact is 9007199254740992, expected"},
        {"twice", "x.json: p.twice stands there twice"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        uint32_t value = 42;
        assert_int_equal(kva_fields_u32(&fields, cases[i].name, 1, UINT32_MAX, &value),
                         KVA_EFORMAT);
        expect_message(&err, cases[i].message);
        assert_string_equal(err.param, cases[i].name);
        assert_int_equal(value, 42);
    }
    double real = 0;
    bool flag = false;
    const char *text = NULL;
    assert_int_equal(kva_fields_double(&fields, "inf", 0, 1e30, &real), KVA_EFORMAT);
    expect_message(&err, "p.inf is inf, expected a number in 0..1e+30");
    assert_int_equal(kva_fields_bool(&fields, "neg", &flag), KVA_EFORMAT);
    expect_message(&err, "p.neg is -1, expected true or false");
    assert_int_equal(kva_fields_string(&fields, "neg", &text), KVA_EFORMAT);
    expect_message(&err, "p.neg is -1, expected a string");
    cJSON_Delete((cJSON *)(uintptr_t)fields.object);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json__accepts_what_the_grammar_allows),
        cmocka_unit_test(test_json__refuses_the_rest_and_says_where),
        cmocka_unit_test(test_json__depth_is_bounded),
        cmocka_unit_test(test_json__numbers_and_values_are_bounded),
        cmocka_unit_test(test_json__parse_wants_an_object),
        cmocka_unit_test(test_json__parse_reads_nothing_past_the_end),
        cmocka_unit_test(test_fields__absent_and_null_keep_the_default),
        cmocka_unit_test(test_fields__wrong_values_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
