#include "tests/cmocka.h"

#include "base/buf.h"
#include "base/clock.h"
#include "tests/random.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/synthetic.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 1000u
#define EOS   (VOCAB - KVA_SYNTHETIC_EOS)

static struct kva_tokenizer *tokenizer;
static struct kva_grammar_vocab *vocab;
static const struct kva_grammar_limits no_limits = {0, 0, 0};

static int set_up(void **state KVA_UNUSED)
{
    static const uint32_t eos = EOS;
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
    const struct kva_grammar_vocab_params params = {tokenizer, VOCAB, &eos, 1, NULL, 0};
    assert_int_equal(kva_grammar_vocab_create(&params, &vocab, &err), KVA_OK);
    return 0;
}

static int tear_down(void **state KVA_UNUSED)
{
    kva_grammar_vocab_destroy(vocab);
    kva_tokenizer_destroy(tokenizer);
    return 0;
}

static struct kva_grammar_source source_of(enum kva_grammar_kind kind, const char *text)
{
    return (struct kva_grammar_source){kind, text, strlen(text), true};
}

static struct kva_grammar *make(enum kva_grammar_kind kind, const char *text)
{
    const struct kva_grammar_source source = source_of(kind, text);
    struct kva_grammar *grammar = NULL;
    struct kva_err err = {.status = KVA_OK};
    if (kva_grammar_create(vocab, &source, &no_limits, &grammar, &err))
        fail_msg("%s: %s", text, err.message);
    return grammar;
}

static struct kva_grammar_matcher *follow(const struct kva_grammar *grammar)
{
    struct kva_grammar_matcher *matcher = NULL;
    assert_int_equal(kva_grammar_matcher_create(grammar, &matcher, NULL), KVA_OK);
    return matcher;
}

static bool matches(enum kva_grammar_kind kind, const char *grammar_text, const char *text)
{
    struct kva_grammar *grammar = make(kind, grammar_text);
    struct kva_grammar_matcher *matcher = follow(grammar);
    bool result = kva_grammar_matcher_take_text(matcher, text, strlen(text), NULL) == KVA_OK &&
                  kva_grammar_matcher_complete(matcher);
    kva_grammar_matcher_destroy(matcher);
    kva_grammar_destroy(grammar);
    return result;
}

/* --- what is refused ------------------------------------------------------------------------- */

static void test_schema__what_is_not_enforced_is_refused_with_its_place(void **state KVA_UNUSED)
{
    static const struct {
        const char *schema;
        enum kva_status status;
        const char *place;
        const char *word;
    } cases[] = {
        {"{\"type\":\"strng\"}", KVA_EINVAL, "'#'", "'type'"},
        {"{\"properties\":{\"a\":{\"type\":[]}}}", KVA_EINVAL, "'#/properties/a'", "'type'"},
        {"{\"properties\":{\"a\":7}}", KVA_EINVAL, "'#/properties/a'", "a schema must be"},
        {"{\"type\":\"array\",\"items\":{\"not\":{}}}", KVA_EUNSUPPORTED, "'#/items'", "'not'"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", KVA_EUNSUPPORTED, "'#'", "'uniqueItems'"},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"if\":{}}]}", KVA_EUNSUPPORTED, "'#/anyOf/1'", "'if'"},
        {"{\"minLength\":3}", KVA_EUNSUPPORTED, "'#'", "'minLength' without 'type'"},
        {"{\"type\":\"string\",\"minLength\":-1}", KVA_EINVAL, "'#'", "'minLength'"},
        {"{\"type\":\"number\",\"multipleOf\":2}", KVA_EUNSUPPORTED, "'#'", "'multipleOf'"},
        {"{\"items\":{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1e-7}}",
         KVA_EUNSUPPORTED, "'#/items'", "six decimals"},
        {"{\"items\":{\"type\":\"number\",\"minimum\":0.30000000000000004,"
         "\"maximum\":0.3000005}}",
         KVA_EUNSUPPORTED, "'#/items'", "six decimals"},
        {"{\"type\":[\"number\",\"null\"],\"exclusiveMinimum\":3,\"exclusiveMaximum\":3.000001}",
         KVA_EUNSUPPORTED, "'#'", "six decimals"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":2}", KVA_EUNSUPPORTED, "'#'",
         "'pattern'"},
        {"{\"type\":\"string\",\"enum\":[\"a\",1]}", KVA_EUNSUPPORTED, "'#'", "'type' beside"},
        {"{\"anyOf\":[{\"type\":\"null\"}],\"properties\":{}}", KVA_EUNSUPPORTED, "'#'",
         "'properties' beside 'anyOf'"},
        {"{\"allOf\":[{\"type\":\"null\"},{}]}", KVA_EUNSUPPORTED, "'#'", "'allOf'"},
        {"{\"$ref\":\"#/$defs/a\"}", KVA_EINVAL, "'#'", "'#/$defs/a'"},
        {"{\"$ref\":\"http://a/b\"}", KVA_EUNSUPPORTED, "'#'", "other documents"},
        {"{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{}}}", KVA_EUNSUPPORTED, "'#'", "escapes"},
        {"{\"$defs\":{\"a\":{\"contains\":{}}},\"properties\":{\"b\":{\"$ref\":\"#/$defs/a\"}}}",
         KVA_EUNSUPPORTED, "'#/$defs/a'", "'contains'"},
        {"{\"type\":\"object\",\"required\":[\"x\"]}", KVA_EUNSUPPORTED, "'#'", "'x'"},
        {"{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2}}", KVA_EUNSUPPORTED, "'#'",
         "'propertyNames'"},
        {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"a\",\"not\":{}}}", KVA_EUNSUPPORTED,
         "'#'", "'propertyNames'"},
        {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":5}}", KVA_EINVAL, "'#'", "'pattern'"},
        {"{\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^C:\\\\\\\\dir$\"}}}",
         KVA_EUNSUPPORTED, "'#/properties/a'", "'pattern'"},
        {"{\"type\":\"string\",\"pattern\":\"^.\\n$\"}", KVA_EUNSUPPORTED, "'#'", "'pattern'"},
        {"{\"type\":\"string\",\"pattern\":\"^[\\\"\\\\u0000-\\\\x1f]$\"}", KVA_EUNSUPPORTED, "'#'",
         "'pattern'"},
        {"{\"type\":\"object\",\"patternProperties\":{\"a\":{}}}", KVA_EUNSUPPORTED, "'#'",
         "'patternProperties'"},
        {"{\"properties\":{\"a\":false}}", KVA_EINVAL, "'#/properties/a'", "no value"},
        {"{\"properties\":{\"\u00e9\":{}},\"additionalProperties\":true}", KVA_EUNSUPPORTED, "'#'",
         "'additionalProperties'"},
        {"[]", KVA_EINVAL, "'#'", "a schema must be"},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"const\":\"x\"}},\"required\":[\"a\"]},"
         "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"y\",\"x\"]}},\"required\":[\"a\"]}]}",
         KVA_EINVAL, "'#'", "oneOf"},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"const\":\"x\"}},\"required\":[\"a\"]},"
         "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":\"y\"}}}]}",
         KVA_EINVAL, "'#'", "oneOf"},
        /* Those that only the library knows. */
        {"{\"properties\":{\"a\":{\"items\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}}}}",
         KVA_EINVAL, "'#/properties/a/items'", "minimum"},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"oneOf\":[{\"type\":\"null\"},"
         "{\"enum\":[null]}]}]}",
         KVA_EINVAL, "'#/prefixItems/1'", "oneOf"},
        {"{\"type\":\"string\",\"pattern\":\"(\"}", KVA_EINVAL, "'#'", "arenthesis"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        const struct kva_grammar_source source = source_of(KVA_GRAMMAR_SCHEMA, cases[i].schema);
        struct kva_grammar *grammar = NULL;
        struct kva_err err = {.status = KVA_OK};
        enum kva_status status = kva_grammar_create(vocab, &source, &no_limits, &grammar, &err);
        if (status != cases[i].status || !strstr(err.message, cases[i].place) ||
            !strstr(err.message, cases[i].word))
            fail_msg("%s: status %d, '%s'", cases[i].schema, (int)status, err.message);
    }
}

static void test_grammar__that_no_text_can_be_is_refused(void **state KVA_UNUSED)
{
    static const char *const rules[] = {"root ::= root", "root ::= a\na ::= b\nb ::= a"};
    for (size_t i = 0; i < KVA_COUNT_OF(rules); i++) {
        const struct kva_grammar_source source = source_of(KVA_GRAMMAR_EBNF, rules[i]);
        struct kva_grammar *grammar = NULL;
        struct kva_err err = {.status = KVA_OK};
        assert_int_equal(kva_grammar_create(vocab, &source, &no_limits, &grammar, &err),
                         KVA_EINVAL);
        assert_non_null(strstr(err.message, "no text can be it"));
        assert_null(grammar);
    }
}

static void test_schema__definitions_that_nobody_names_do_not_matter(void **state KVA_UNUSED)
{
    assert_true(
        matches(KVA_GRAMMAR_SCHEMA, "{\"$defs\":{\"a\":{\"not\":{}}},\"type\":\"null\"}", "null"));
}

/* --- what is let pass ------------------------------------------------------------------------ */

static void test_schema__texts(void **state KVA_UNUSED)
{
    static const char person[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":3},"
        "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":120}},\"required\":[\"name\"],"
        "\"additionalProperties\":false}";
    static const char open[] =
        "{\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"string\"}}";
    static const char tree[] = "{\"type\":\"object\",\"properties\":{\"next\":{\"$ref\":\"#\"}}}";
    /* As Pydantic writes a union with a discriminator. */
    static const char pet[] =
        "{\"$defs\":{\"cat\":{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"cat\"},\"lives\":{"
        "\"type\":\"integer\"}},\"required\":[\"kind\",\"lives\"]}},\"oneOf\":[{\"$ref\":\"#/$defs/cat\"},"
        "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"dog\",\"hound\"]}},\"required\":"
        "[\"kind\"]}],\"discriminator\":{\"propertyName\":\"kind\"}}";
    static const struct {
        const char *schema, *text;
        bool passes;
    } cases[] = {
        {pet, "{\"kind\":\"cat\",\"lives\":9}", true},
        {pet, "{\"kind\":\"hound\"}", true},
        {pet, "{\"kind\":\"cat\"}", false},
        {pet, "{\"kind\":\"cow\"}", false},
        {person, "{\"name\":\"ab\",\"age\":120}", true},
        {person, "{ \"name\" : \"ab\" }", true},
        {person, "{\"name\":\"abcd\"}", false},
        {person, "{\"name\":\"ab\",\"age\":121}", false},
        {person, "{\"age\":12}", false},
        {person, "{\"name\":\"ab\",\"more\":1}", false},
        {person, "{\"name\":\"a\x13\"}", false}, /* a control character is not JSON */
        {person, "{\"name\":\"a", false},
        {tree, "{\"next\":{\"next\":{}}}", true},
        {tree, "{\"next\":{\"next\":[]}}", false},
        {open, "{\"a\":1,\"b\":\"x\"}", true},
        {open, "{\"b\":\"x\"}", true},
        {open, "{\"a\":\"x\"}", false},
        {open, "{\"\\u0061\":\"x\"}", false},                        /* the same name */
        {"{\"properties\":{\"a\":{}}}", "{\"a\":1,\"b\":2}", false}, /* not said to be open */
        {"{\"properties\":{\"a\":{}},\"unevaluatedProperties\":false}", "{\"b\":2}", false},
        {"{\"type\":\"object\",\"unevaluatedProperties\":{\"type\":\"null\"}}", "{\"b\":null}",
         true},
        {"{\"prefixItems\":[{\"type\":\"null\"}],\"unevaluatedItems\":false}", "[null,1]", false},
        {"{\"enum\":[\"red\",2,null]}", "null", true},
        {"{\"enum\":[\"red\",2,null]}", "3", false},
        /* Decimals are written as people do. */
        {"{\"enum\":[0.2,\"red\",0.3,2]}", "0.3", true},
        {"{\"enum\":[0.2,\"red\",0.3,2]}", "\"red\"", true},
        {"{\"enum\":[0.2,\"red\",0.3,2]}", "0.25", false},
        {"{\"type\":\"number\",\"enum\":[9.99,0.3]}", "9.99", true},
        {"{\"const\":-0.7}", "-0.7", true},
        {"{\"const\":-0.7}", "0.7", false},
        {"{\"oneOf\":[{\"const\":0.3},{\"const\":\"red\"}]}", "\"red\"", true},
        {"{\"type\":\"number\",\"minimum\":0.7,\"exclusiveMaximum\":0.700001}", "0.7", true},
        {"{\"type\":\"string\",\"format\":\"email\"}", "\"a.b@c.de\"", true},
        {"{\"type\":\"string\",\"format\":\"email\"}", "\"\\\"a\\a\\\"@c.de\"", false},
        {"{\"type\":\"string\",\"format\":\"json-pointer\"}", "\"/a\"b\"", false},
        {"{\"type\":\"string\",\"pattern\":\"^[ab]+$\"}", "\"abba\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^[ab]+$\"}", "\"abc\"", false},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        if (matches(KVA_GRAMMAR_SCHEMA, cases[i].schema, cases[i].text) != cases[i].passes)
            fail_msg("%s: %s", cases[i].schema, cases[i].text);
    }
}

/* A string of a pattern is JSON, whatever the pattern says of quotes and the like, which are left out of
 * it; and what it says besides is what it said. */
static void test_patterns__make_json(void **state KVA_UNUSED)
{
    static const struct {
        const char *pattern;
        const char *good, *bad; /* insides of strings, between spaces */
    } cases[] = {
        {"^.{1,200}$", "a [^] \u00e9", "\" a\"b \\ \n a\\n"},
        {"^[^<>]{0,20000}$", "a \u00e9", "\" < \\ \n"},
        {"^[A-Za-z\u00c0-\u00ff\\s'-]+$", "\u00e9-'a A'", "\n a\tb 1 \""},
        {"^[^\u00e9]+$", "a \u00e8", "\u00e9 \" \\"},
        {"^\\\u00e9\\S+$", "\u00e9a \u00e9[", "\u00e9\" \u00e9\\ \u00e9"},
        {"^(\u00e9|\\S\\D\\W\\w\\d)$", "\u00e9 ]]]a1", "]\"]a1 ]]\"a1 \"]]a1 ]1]a1 ]]aa1 ]]]]1"},
        {"^(?:[\\S\\n]{3}|[\\W]+|[\\D]x)$", "abc ]x ]] \u00e9x", "\"x \"] \nx 1x aa a\nc"},
        {"^[!-~]{1,200}$", "!#[]~", "\" \\ \u00e9"},
        {"^[\\x20-\\u{5d}\\\"-]+$", "![]-", "\" \\ ^"},
        {"^[\\w-z]\\.[a-c-]$", "a.- -.b z.c", "~.a a.d aab"},
        {"^[\\\\/]$", "/", "\\ \\\\"},
        {"^\"?(?P<a>a+b)?\\n*c\\\\??$", "c aabc", "ac \"c\" c\\ abc\n"},
        {"(?:[a-z]{0,200}-){1,3}", "a-b- -", "a a-b"},
        {"^(?:a+b){0,2}c(?<d>d+e)??$", "c abc ababc cde", "ac abac abababc cd"},
        {"^(?:\\w+[ ,.]*){1,20}$", "a a,b", ", a\""},
        {"^[\\d\\-]{2}[^\\s-]{2}$", "1-ab", "1--b ab11"},
        {"^[\"^]$", "^", "a \""},
        {"^[\\\\^$.|?*+()]+$", "^ $(", "abc \\"},
        {"^[\"^-z]+$", "^az", "A \""},
        {"^(?:ab+|c){1,}$", "cab abbc", "ccb b"},
        {"^(?:ab+|c){2,}$", "cab cc", "ccb c ccbc"},
        {"^(?:[A-Z][a-z]+|\\d){0,}$", "5Ab", "55a5"},
        {"^\\u{2014}(?:a+|b)?$", "\u2014 \u2014aa \u2014b", "a"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_buf schema;
        kva_buf_init(&schema, 4096);
        kva_buf_puts(&schema, "{\"type\":\"string\",\"pattern\":");
        kva_buf_json_string_plain(&schema, cases[i].pattern, strlen(cases[i].pattern));
        kva_buf_putc(&schema, '}');
        for (int bad = 0; bad < 2; bad++) {
            for (const char *at = bad ? cases[i].bad : cases[i].good; *at;) {
                char text[64];
                size_t length = strcspn(at, " ");
                snprintf(text, sizeof(text), "\"%.*s\"", (int)length, at);
                if (matches(KVA_GRAMMAR_SCHEMA, schema.data, text) == (bool)bad)
                    fail_msg("%s: %s", cases[i].pattern, text);
                at += length + (at[length] == ' ');
            }
        }
        kva_buf_finish(&schema);
    }
    static const char names[] =
        "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^.{1,200}$\"}}";
    static const char property[] = "{\"type\":\"object\",\"patternProperties\":{\"^.{1,200}$\":{}},"
                                   "\"additionalProperties\":false}";
    assert_true(matches(KVA_GRAMMAR_SCHEMA, names, "{\"a\":1}"));
    assert_false(matches(KVA_GRAMMAR_SCHEMA, names, "{\"a\"\":1}"));
    assert_true(matches(KVA_GRAMMAR_SCHEMA, property, "{\"a\":1}"));
    assert_false(matches(KVA_GRAMMAR_SCHEMA, property, "{\"a\"\":1}"));
}

static void test_regex__is_the_whole_text(void **state KVA_UNUSED)
{
    assert_true(matches(KVA_GRAMMAR_REGEX, "[a-c]{2}(x|yz)", "abyz"));
    assert_false(matches(KVA_GRAMMAR_REGEX, "[a-c]{2}(x|yz)", "abx!"));
    assert_false(matches(KVA_GRAMMAR_REGEX, "[a-c]{2}(x|yz)", "!abx"));
}

static void test_choices__are_exactly_these_texts(void **state KVA_UNUSED)
{
    static const char *const texts[] = {"yes", "no \"q\" \\", "a\nb\t\x01", "größe"};
    struct kva_grammar_choice choices[KVA_COUNT_OF(texts)];
    struct kva_buf rules;
    kva_buf_init(&rules, 4096);
    for (size_t i = 0; i < KVA_COUNT_OF(texts); i++)
        choices[i] = (struct kva_grammar_choice){texts[i], strlen(texts[i])};
    kva_grammar_put_choices(&rules, choices, KVA_COUNT_OF(texts));
    for (size_t i = 0; i < KVA_COUNT_OF(texts); i++) {
        if (!matches(KVA_GRAMMAR_EBNF, rules.data, texts[i]))
            fail_msg("'%s' is not let pass by %s", texts[i], rules.data);
    }
    assert_false(matches(KVA_GRAMMAR_EBNF, rules.data, "ye"));
    assert_false(matches(KVA_GRAMMAR_EBNF, rules.data, "yesno"));
    kva_buf_finish(&rules);
}

/* --- masks ----------------------------------------------------------------------------------- */

static bool allows(const uint32_t *mask, uint32_t token)
{
    return mask[token / 32] >> token % 32 & 1;
}

/* One of the tokens that may come, by chance; brackets and the end often. */
static uint32_t draw(const uint32_t *mask, uint64_t *random)
{
    uint32_t allowed[VOCAB], count = 0;
    if (allows(mask, EOS))
        return EOS;
    for (uint32_t token = 0; token < VOCAB; token++) {
        if (allows(mask, token))
            allowed[count++] = token;
    }
    assert_true(count > 0);
    return allowed[kva_test_random(random) % count];
}

static void test_mask__every_walk_ends_with_a_valid_text(void **state KVA_UNUSED)
{
    struct kva_grammar *grammar =
        make(KVA_GRAMMAR_SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
                                 "\"maxLength\":6},\"b\":{\"type\":\"array\",\"items\":{\"type\":"
                                 "\"boolean\"},\"maxItems\":3,\"minItems\":1}},\"required\":[\"a\","
                                 "\"b\"],\"additionalProperties\":false}");
    uint32_t mask[(VOCAB + 31) / 32];
    uint64_t random = 7;
    for (int walk = 0; walk < 50; walk++) {
        struct kva_grammar_matcher *matcher = follow(grammar);
        struct kva_buf text;
        uint32_t token = 0;
        kva_buf_init(&text, 1 << 16);
        for (int step = 0; step < 2000 && token != EOS; step++) {
            assert_int_equal(kva_grammar_matcher_mask(matcher, mask, NULL), KVA_OK);
            for (uint32_t id = VOCAB - 4; id < VOCAB; id++)
                assert_true(id == EOS || !allows(mask, id)); /* special tokens have no text */
            token = draw(mask, &random);
            size_t length = 0;
            const char *bytes = kva_tokenizer_token_bytes(tokenizer, (int32_t)token, &length);
            if (token != EOS)
                kva_buf_append(&text, bytes, length);
            assert_int_equal(kva_grammar_matcher_take(matcher, token, NULL), KVA_OK);
        }
        assert_int_equal(token, EOS);
        assert_int_equal(kva_grammar_matcher_mask(matcher, mask, NULL), KVA_EINVAL);
        cJSON *json = cJSON_ParseWithOpts(text.data, NULL, true);
        if (!json || !cJSON_IsString(cJSON_GetObjectItem(json, "a")) ||
            !cJSON_IsArray(cJSON_GetObjectItem(json, "b")))
            fail_msg("%s", text.data);
        cJSON_Delete(json);
        kva_buf_finish(&text);
        kva_grammar_matcher_destroy(matcher);
    }
    kva_grammar_destroy(grammar);
}

static void test_matcher__undo_is_as_before(void **state KVA_UNUSED)
{
    struct kva_grammar *grammar = make(KVA_GRAMMAR_REGEX, "(ab|ac)d");
    struct kva_grammar_matcher *matcher = follow(grammar);
    uint32_t before[(VOCAB + 31) / 32], after[(VOCAB + 31) / 32];
    assert_int_equal(kva_grammar_matcher_take_text(matcher, "a", 1, NULL), KVA_OK);
    assert_int_equal(kva_grammar_matcher_mask(matcher, before, NULL), KVA_OK);
    assert_int_equal(kva_grammar_matcher_take_text(matcher, "x", 1, NULL), KVA_EINVAL);
    assert_int_equal(kva_grammar_matcher_take_text(matcher, "b", 1, NULL), KVA_OK);
    kva_grammar_matcher_undo(matcher);
    assert_int_equal(kva_grammar_matcher_mask(matcher, after, NULL), KVA_OK);
    for (uint32_t token = 0; token < VOCAB; token++)
        assert_int_equal(allows(before, token), allows(after, token));
    kva_grammar_matcher_destroy(matcher);
    kva_grammar_destroy(grammar);
}

/* --- limits ---------------------------------------------------------------------------------- */

static const char large[] =
    "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
    "\"format\":\"uri\"},\"b\":{\"type\":\"string\",\"format\":\"ipv6\"},\"c\":{\"type\":\"number\","
    "\"minimum\":0.25,\"maximum\":999.5}}}}";

/* Whatever it is that finds no memory, the call ends with that, and the next one is as ever. */
static void test_limits__of_memory(void **state KVA_UNUSED)
{
    const struct kva_grammar_source source = source_of(KVA_GRAMMAR_SCHEMA, large);
    struct kva_grammar_limits limits = {0, 4096, 0};
    uint32_t refused = 0;
    enum kva_status status = KVA_ETOOBIG;
    while (status == KVA_ETOOBIG && limits.bytes < (size_t)1 << 30) {
        struct kva_grammar *grammar = NULL;
        struct kva_err err = {.status = KVA_OK};
        status = kva_grammar_create(vocab, &source, &limits, &grammar, &err);
        assert_true(status == KVA_OK || strstr(err.message, "MiB"));
        kva_grammar_destroy(grammar);
        refused += status == KVA_ETOOBIG;
        limits.bytes += limits.bytes / 8;
    }
    assert_int_equal(status, KVA_OK);
    assert_true(refused > 10);
}

static void test_limits__of_time_and_size(void **state KVA_UNUSED)
{
    const struct kva_grammar_source source = source_of(KVA_GRAMMAR_SCHEMA, large);
    const struct kva_grammar_limits no_time = {1, 0, 0}, no_text = {0, 0, 64};
    struct kva_grammar *grammar = NULL;
    struct kva_err err;
    assert_int_equal(kva_grammar_create(vocab, &source, &no_time, &grammar, &err), KVA_ETOOBIG);
    assert_non_null(strstr(err.message, "longer than the limit"));
    assert_int_equal(kva_grammar_create(vocab, &source, &no_text, &grammar, &err), KVA_ETOOBIG);
    assert_non_null(strstr(err.message, "limit is 64"));
}

/* A schema that takes long by itself: any 300 of 600 properties. */
static void put_slow_schema(struct kva_buf *out)
{
    kva_buf_puts(out, "{\"type\":\"object\",\"minProperties\":300,\"properties\":{");
    for (int i = 0; i < 600; i++)
        kva_buf_printf(out, "%s\"%d\":{}", i ? "," : "", i);
    kva_buf_puts(out, "}}");
}

/* The time is of the whole, however many schemas there are, and of the search for the one that is
 * refused. */
static void test_limits__of_time_are_of_the_whole(void **state KVA_UNUSED)
{
    const struct kva_grammar_limits limits = {100 * KVA_NS_PER_MS, 0, 0};
    struct kva_buf tags, schema;
    kva_buf_init(&tags, 1 << 20);
    kva_buf_init(&schema, 1 << 20);
    kva_buf_puts(&tags, "{\"type\":\"structural_tag\",\"format\":{\"type\":\"or\",\"elements\":[");
    kva_buf_puts(&schema, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < 40; i++) {
        kva_buf_printf(&tags, "%s{\"type\":\"schema\",\"lax\":true,\"schema\":", i ? "," : "");
        put_slow_schema(&tags);
        kva_buf_putc(&tags, '}');
        kva_buf_printf(&schema, "%s\"a%d\":", i ? "," : "", i);
        if (i == 0)
            kva_buf_puts(&schema, "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2},\"b\":");
        put_slow_schema(&schema);
    }
    kva_buf_puts(&tags, "]}}");
    kva_buf_puts(&schema, "}}");
    const struct kva_grammar_source sources[] = {
        source_of(KVA_GRAMMAR_TAGS, tags.data),
        source_of(KVA_GRAMMAR_SCHEMA, schema.data),
    };
    for (size_t i = 0; i < KVA_COUNT_OF(sources); i++) {
        struct kva_grammar *grammar = NULL;
        struct kva_err err = {.status = KVA_OK};
        uint64_t begun_ns = kva_time_ns();
        assert_true(kva_grammar_create(vocab, &sources[i], &limits, &grammar, &err) != KVA_OK);
        assert_in_range(kva_time_ns() - begun_ns, 0, 10 * limits.time_ns);
    }
    kva_buf_finish(&tags);
    kva_buf_finish(&schema);
}

static void test_limits__of_nesting(void **state KVA_UNUSED)
{
    char text[3 * 10000 + 1];
    memset(text, '(', 10000);
    memset(text + 10000, 'a', 10000);
    memset(text + 20000, ')', 10000);
    text[30000] = '\0';
    const struct kva_grammar_source source = source_of(KVA_GRAMMAR_REGEX, text);
    struct kva_grammar *grammar = NULL;
    struct kva_err err;
    assert_int_equal(kva_grammar_create(vocab, &source, &no_limits, &grammar, &err), KVA_ETOOBIG);
    assert_non_null(strstr(err.message, "levels of brackets at byte 64"));
    /* What is in a class, a string or a comment is no bracket, and begins none of them. */
    char rules[2 * 100 + 64] = "root ::= \"a\" # it's \\\n";
    for (int i = 0; i < 70; i++)
        strcat(rules, "#(");
    kva_grammar_destroy(make(KVA_GRAMMAR_EBNF, rules));
    text[0] = '#';
    text[1] = '"';
    text[2] = '\n';
    const struct kva_grammar_source hidden = source_of(KVA_GRAMMAR_EBNF, text);
    assert_int_equal(kva_grammar_create(vocab, &hidden, &no_limits, &grammar, &err), KVA_ETOOBIG);
    char faces[70 * 8 + 16] = "root ::= ";
    for (int i = 0; i < 70; i++)
        strcat(faces, i ? " | \":(\"" : "\"f[\"");
    kva_grammar_destroy(make(KVA_GRAMMAR_EBNF, faces));
    char classes[70 * 3 + 1] = "";
    for (int i = 0; i < 70; i++)
        strcat(classes, "[(]");
    kva_grammar_destroy(make(KVA_GRAMMAR_REGEX, classes));
}

static void test_limits__of_a_mask(void **state KVA_UNUSED)
{
    struct kva_grammar *grammar = make(KVA_GRAMMAR_REGEX, "([a-z]|[a-z0-9]{2}|[^x]{3})*");
    struct kva_grammar_matcher *matcher = follow(grammar);
    const struct kva_grammar_work none = {0, 16};
    uint32_t mask[(VOCAB + 31) / 32];
    enum kva_status status = KVA_OK;
    /* Small allocations are let be for a while. */
    for (int i = 0; i < 1000 && status == KVA_OK; i++) {
        status = kva_grammar_matcher_take_text(matcher, "abc", 3, &none);
        if (!status)
            status = kva_grammar_matcher_mask(matcher, mask, &none);
    }
    assert_int_equal(status, KVA_ETOOBIG);
    kva_grammar_matcher_destroy(matcher);
    kva_grammar_destroy(grammar);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schema__what_is_not_enforced_is_refused_with_its_place),
        cmocka_unit_test(test_grammar__that_no_text_can_be_is_refused),
        cmocka_unit_test(test_schema__definitions_that_nobody_names_do_not_matter),
        cmocka_unit_test(test_schema__texts),
        cmocka_unit_test(test_patterns__make_json),
        cmocka_unit_test(test_regex__is_the_whole_text),
        cmocka_unit_test(test_choices__are_exactly_these_texts),
        cmocka_unit_test(test_mask__every_walk_ends_with_a_valid_text),
        cmocka_unit_test(test_matcher__undo_is_as_before),
        cmocka_unit_test(test_limits__of_memory),
        cmocka_unit_test(test_limits__of_time_and_size),
        cmocka_unit_test(test_limits__of_time_are_of_the_whole),
        cmocka_unit_test(test_limits__of_nesting),
        cmocka_unit_test(test_limits__of_a_mask),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
