#include "tests/cmocka.h"

#include "text/grammar/grammar.h"
#include "text/reply/reply.h"
#include "text/tokenizer/synthetic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB  1000u
#define EOS    (VOCAB - KVA_SYNTHETIC_EOS)
#define MARKER (VOCAB - KVA_SYNTHETIC_BOS)

static struct kva_tokenizer *tokenizer;
static struct kva_grammar_vocab *vocab;
static const struct kva_grammar_limits no_limits = {0, 0, 0};

static const struct kva_reply_function functions[] = {
    {"get_weather",
     "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"]}",
     0, true},
    {"add", "{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}", 1, false},
};

static int set_up(void **state KVA_UNUSED)
{
    static const uint32_t eos = EOS, marker = MARKER;
    struct kva_buf json, config;
    struct kva_err err;
    kva_buf_init(&json, 1 << 24);
    kva_buf_init(&config, 1 << 20);
    kva_tokenizer_put_synthetic(&json, VOCAB);
    kva_tokenizer_put_synthetic_config(&config);
    assert_int_equal(kva_tokenizer_load_buffers(json.data, json.length, config.data, config.length,
                                                &tokenizer, &err),
                     KVA_OK);
    kva_buf_finish(&json);
    kva_buf_finish(&config);
    const struct kva_grammar_vocab_params params = {tokenizer, VOCAB, &eos, 1, &marker, 1};
    assert_int_equal(kva_grammar_vocab_create(&params, &vocab, &err), KVA_OK);
    return 0;
}

static int tear_down(void **state KVA_UNUSED)
{
    kva_grammar_vocab_destroy(vocab);
    kva_tokenizer_destroy(tokenizer);
    return 0;
}

static struct kva_reply_rules rules_of(enum kva_reply_style style)
{
    return (struct kva_reply_rules){.style = style,
                                    .functions = functions,
                                    .function_count = 2,
                                    .parallel = true,
                                    .marker_token = -1,
                                    .schema_place = "tools[%u].function.parameters"};
}

static enum kva_status make(const struct kva_reply_rules *rules, struct kva_grammar **ret,
                            struct kva_err *err)
{
    struct kva_buf text;
    kva_buf_init(&text, 1 << 20);
    kva_reply_put_grammar(&text, rules);
    assert_false(text.failed);
    const struct kva_grammar_source source = {KVA_GRAMMAR_TAGS, text.data, text.length, false};
    enum kva_status status = kva_grammar_create(vocab, &source, &no_limits, ret, err);
    kva_buf_finish(&text);
    return status;
}

/* Whether the text may come, and then end. */
static bool allows(const struct kva_reply_rules *rules, const char *text)
{
    struct kva_err err = {.status = KVA_OK};
    struct kva_grammar *grammar = NULL;
    struct kva_grammar_matcher *matcher = NULL;
    if (make(rules, &grammar, &err) != KVA_OK)
        fail_msg("%s", err.message);
    assert_int_equal(kva_grammar_matcher_create(grammar, &matcher, &err), KVA_OK);
    bool allowed = kva_grammar_matcher_take_text(matcher, text, strlen(text), NULL) == KVA_OK &&
                   kva_grammar_matcher_complete(matcher);
    kva_grammar_matcher_destroy(matcher);
    kva_grammar_destroy(grammar);
    return allowed;
}

#define HERMES(name, arguments)                                                                    \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"
#define PARIS "{\"city\": \"Paris\"}"

static void test_auto__text_is_free_and_calls_are_not(void **state KVA_UNUSED)
{
    struct kva_reply_rules rules = rules_of(KVA_REPLY_HERMES);
    assert_int_not_equal(kva_reply_bound_of(&rules), KVA_REPLY_FREE);
    assert_true(allows(&rules, ""));
    assert_true(allows(&rules, "Hello, <b>you</b>! {\"name\": 1}"));
    assert_true(allows(&rules, "Well.\n" HERMES("get_weather", PARIS) "\nSo."));
    assert_true(allows(&rules, HERMES("get_weather", PARIS) "\n" HERMES("add", "{\"b\": [1]}")));
    assert_false(allows(&rules, HERMES("get_weather", "{\"town\": \"Paris\"}")));
    assert_false(allows(&rules, HERMES("get_weather", "{\"city\": 7}")));
    assert_false(allows(&rules, HERMES("remove", "{}")));
    assert_false(allows(&rules, "<tool_call>"));
    /* What need not be enforced and cannot be is any object, and still one. */
    assert_false(allows(&rules, HERMES("add", "[]")));
    rules.parallel = false;
    assert_true(allows(&rules, "Well. " HERMES("get_weather", PARIS)));
    assert_false(allows(&rules, HERMES("get_weather", PARIS) "\n" HERMES("get_weather", PARIS)));
}

#define XML(name, parameters)                                                                      \
    "<tool_call>\n<function=" name ">\n" parameters "\n</function>\n</tool_call>"

static void test_xml__calls_are_what_they_must_be(void **state KVA_UNUSED)
{
    struct kva_reply_rules rules = rules_of(KVA_REPLY_XML);
    assert_int_not_equal(kva_reply_bound_of(&rules), KVA_REPLY_FREE);
    assert_true(allows(&rules, "Hello, <b>you</b>!"));
    for (int required = 0; required < 2; required++) {
        rules.required = required;
        assert_true(
            allows(&rules, XML("get_weather", "<parameter=city>\nSt. \"Paul\"\n</parameter>")));
        assert_true(allows(&rules, XML("get_weather", "<parameter=city>Paris</parameter>") "\n" XML(
                                       "add", "<parameter=b>1</parameter>")));
        assert_false(allows(&rules, XML("get_weather", "<parameter=town>Paris</parameter>")));
        assert_false(allows(&rules, XML("get_weather", "")));
        assert_false(allows(&rules, XML("remove", "")));
    }
    assert_false(allows(&rules, "Hello"));
}

/* A value right in a call is text, what is inside of one is JSON. */
static void test_xml__patterns_are_of_text_or_of_json(void **state KVA_UNUSED)
{
    static const struct kva_reply_function tag[] = {
        {.name = "tag",
         .parameters = "{\"type\":\"object\",\"properties\":{"
                       "\"name\":{\"type\":\"string\",\"pattern\":\"^\\\"[^\u00e9]+$\"},"
                       "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\","
                       "\"pattern\":\"^[^\u00e9]+$\"}}}}",
         .strict = true}};
    struct kva_reply_rules rules = rules_of(KVA_REPLY_XML);
    rules.functions = tag;
    rules.function_count = 1;
    assert_true(allows(&rules, XML("tag", "<parameter=name>\n\"a\n</parameter>")));
    assert_true(allows(&rules, XML("tag", "<parameter=tags>\n[\"a\", \"b\"]\n</parameter>")));
    assert_false(allows(&rules, XML("tag", "<parameter=tags>\n[\"a\"b\"]\n</parameter>")));
}

static void test_required__there_is_nothing_but_calls(void **state KVA_UNUSED)
{
    struct kva_reply_rules rules = rules_of(KVA_REPLY_HERMES);
    rules.required = true;
    assert_true(allows(&rules, HERMES("get_weather", PARIS)));
    assert_true(allows(&rules, HERMES("get_weather", PARIS) "\n" HERMES("add", "{}")));
    assert_false(allows(&rules, "Well. " HERMES("get_weather", PARIS)));
    assert_false(allows(&rules, ""));
    rules.parallel = false;
    assert_false(allows(&rules, HERMES("add", "{}") "\n" HERMES("add", "{}")));
    rules.function_count = 1;
    assert_false(allows(&rules, HERMES("add", "{}")));
}

static void test_required__in_every_style(void **state KVA_UNUSED)
{
    struct kva_reply_rules rules = rules_of(KVA_REPLY_LLAMA3);
    assert_int_not_equal(kva_reply_bound_of(&rules), KVA_REPLY_FREE); /* its marker is text here */
    rules.required = true;
    assert_true(allows(&rules, "{\"name\": \"get_weather\", \"parameters\": " PARIS "}"));
    rules.style = KVA_REPLY_JSON;
    assert_true(allows(&rules, "{\"name\": \"get_weather\", \"arguments\": " PARIS "}"));
    assert_false(allows(&rules, "{\"name\": \"get_weather\", \"arguments\": {}}"));
    rules.style = KVA_REPLY_MISTRAL;
    assert_true(allows(&rules, "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {}}, "
                               "{\"name\": \"get_weather\", \"arguments\": " PARIS "}]"));
    rules.required = false;
    assert_int_equal(kva_reply_bound_of(&rules), KVA_REPLY_FREE);
    rules.style = KVA_REPLY_JSON;
    rules.functions++; /* is not strict */
    rules.function_count = 1;
    assert_int_equal(kva_reply_bound_of(&rules), KVA_REPLY_FREE);
}

/* Without a marker, the first character says what an answer is, where a function is strict. */
static void test_auto__a_brace_is_a_call_of_a_strict_function(void **state KVA_UNUSED)
{
    struct kva_reply_rules rules = rules_of(KVA_REPLY_JSON);
    assert_int_equal(kva_reply_bound_of(&rules), KVA_REPLY_BOUND);
    for (int thinks = 0; thinks < 2; thinks++) {
        rules.thinks = thinks;
        assert_true(allows(&rules, ""));
        assert_true(allows(&rules, "Hello, {\"you\"}! <think>"));
        assert_true(allows(&rules, " \n1 {\"name\": 1}"));
        assert_true(allows(&rules, "\xc3\xa4h"));
        assert_true(allows(&rules, "{\"name\": \"get_weather\", \"arguments\": " PARIS "}"));
        assert_false(allows(&rules, "{\"name\": \"get_weather\", \"arguments\": {}}"));
        assert_false(allows(&rules, " {\"name\": \"get_weather\", \"arguments\": {}}"));
        assert_false(allows(&rules, "```json\n{}\n```"));
        assert_false(allows(&rules, "{}"));
        assert_true(allows(&rules, "<b>") == !thinks);
    }
    assert_true(allows(&rules, "<think>Hm.</think>\nWell."));
    assert_true(
        allows(&rules, "<think>Hm.</think>{\"name\": \"get_weather\", \"arguments\": " PARIS "}"));
    assert_false(
        allows(&rules, "<think>Hm.</think>{\"name\": \"get_weather\", \"arguments\": {}}"));
    rules = rules_of(KVA_REPLY_LLAMA3);
    rules.marker_token = MARKER;
    assert_int_equal(kva_reply_bound_of(&rules), KVA_REPLY_BOUND);
    assert_true(allows(&rules, "{\"name\": \"get_weather\", \"parameters\": " PARIS "}"));
    assert_false(allows(&rules, "{\"name\": \"get_weather\", \"parameters\": {}}"));
    assert_true(allows(&rules, "Hello."));
    rules.style = KVA_REPLY_MISTRAL;
    assert_int_equal(kva_reply_bound_of(&rules), KVA_REPLY_FREE);
}

static void test_required__the_marker_may_be_a_token(void **state KVA_UNUSED)
{
    struct kva_reply_rules rules = rules_of(KVA_REPLY_MISTRAL);
    struct kva_err err = {.status = KVA_OK};
    struct kva_grammar *grammar = NULL;
    struct kva_grammar_matcher *matcher = NULL;
    rules.required = true;
    rules.marker_token = MARKER;
    if (make(&rules, &grammar, &err) != KVA_OK)
        fail_msg("%s", err.message);
    assert_int_equal(kva_grammar_matcher_create(grammar, &matcher, &err), KVA_OK);
    static const char call[] = "[{\"name\": \"add\", \"arguments\": {}}]";
    assert_int_equal(kva_grammar_matcher_take_text(matcher, call, strlen(call), NULL), KVA_EINVAL);
    assert_int_equal(kva_grammar_matcher_take(matcher, MARKER, NULL), KVA_OK);
    assert_int_equal(kva_grammar_matcher_take_text(matcher, call, strlen(call), NULL), KVA_OK);
    assert_true(kva_grammar_matcher_complete(matcher));
    kva_grammar_matcher_destroy(matcher);
    kva_grammar_destroy(grammar);
}

static void test_answer__is_a_call_or_of_the_schema(void **state KVA_UNUSED)
{
    struct kva_reply_rules rules = rules_of(KVA_REPLY_HERMES);
    rules.answer = "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},"
                   "\"required\":[\"x\"]}";
    rules.answer_strict = true;
    assert_true(allows(&rules, "{\"x\": 1}"));
    assert_true(allows(&rules, HERMES("get_weather", PARIS)));
    assert_false(allows(&rules, "Hello."));
}

static void test_thoughts__come_first(void **state KVA_UNUSED)
{
    struct kva_reply_rules rules = rules_of(KVA_REPLY_HERMES);
    rules.required = true;
    rules.thinks = true;
    assert_true(allows(&rules, HERMES("add", "{}")));
    assert_true(allows(&rules, "<think>\nHm.</think>\n\n" HERMES("add", "{}")));
    assert_false(allows(&rules, "Hm.</think>\n\n" HERMES("add", "{}")));
    rules.thinking = true;
    assert_true(allows(&rules, "Hm.\n</think>\n\n" HERMES("add", "{}")));
    assert_false(allows(&rules, HERMES("add", "{}")));
}

/* A thought may say what looks like a call; what comes behind it is held to the rules. */
static void test_thoughts__are_free_where_text_is(void **state KVA_UNUSED)
{
    static const char call[] = HERMES("get_weather", PARIS);
    static const char none[] = HERMES("get_weather", "{\"town\": 1}");
    struct kva_reply_rules rules = rules_of(KVA_REPLY_HERMES);
    rules.thinks = true;
    for (int thinking = 0; thinking < 2; thinking++) {
        char text[512];
        const char *begin = thinking ? "" : "<think>";
        rules.thinking = thinking;
        for (int parallel = 0; parallel < 2; parallel++) {
            rules.parallel = parallel;
            snprintf(text, sizeof(text), "%sSo <tool_call> it is.</think>\n\nWell. %s", begin,
                     call);
            assert_true(allows(&rules, text));
            snprintf(text, sizeof(text), "%sSo %s.</think>No.", begin, call);
            assert_true(allows(&rules, text));
            snprintf(text, sizeof(text), "%sSo.</think>%s", begin, none);
            assert_false(allows(&rules, text));
            snprintf(text, sizeof(text), "%sHm", begin);
            assert_true(allows(&rules, text));
        }
        assert_false(allows(&rules, none));
        assert_true(allows(&rules, "Hello."));
    }
}

static void test_strict__what_cannot_be_enforced_is_refused(void **state KVA_UNUSED)
{
    struct kva_reply_function strict = functions[1];
    struct kva_reply_rules rules = rules_of(KVA_REPLY_HERMES);
    struct kva_err err = {.status = KVA_OK};
    struct kva_grammar *grammar = NULL;
    strict.strict = true;
    rules.functions = &strict;
    rules.function_count = 1;
    assert_int_equal(make(&rules, &grammar, &err), KVA_EUNSUPPORTED);
    assert_string_equal(err.param, "tools[1].function.parameters");
    assert_non_null(strstr(err.message, "#/properties/a"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto__text_is_free_and_calls_are_not),
        cmocka_unit_test(test_xml__calls_are_what_they_must_be),
        cmocka_unit_test(test_xml__patterns_are_of_text_or_of_json),
        cmocka_unit_test(test_required__there_is_nothing_but_calls),
        cmocka_unit_test(test_required__in_every_style),
        cmocka_unit_test(test_auto__a_brace_is_a_call_of_a_strict_function),
        cmocka_unit_test(test_required__the_marker_may_be_a_token),
        cmocka_unit_test(test_answer__is_a_call_or_of_the_schema),
        cmocka_unit_test(test_thoughts__come_first),
        cmocka_unit_test(test_thoughts__are_free_where_text_is),
        cmocka_unit_test(test_strict__what_cannot_be_enforced_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
