/* Masks that are kept or prepared are those that the library makes anew, token for token. */
#include "tests/cmocka.h"

#include "base/kva.h"
#include "tests/random.h"
#include "text/grammar/xgrammar.h"

#include <stdlib.h>
#include <string.h>

#define WORDS      108u
#define VOCAB      (256u + WORDS + 1u)
#define STOP       (VOCAB - 1u)
#define STEPS      120u
#define TEXTS      6u
#define MASK_WORDS ((VOCAB + 31u) / 32u)

/* Besides all bytes: what runs over the ends of rules, in one token. */
static const char *const words[WORDS] = {
    "{\"",
    "\"}",
    "\",",
    "\", \"",
    "\":",
    "\": ",
    "\": \"",
    "\":\"",
    "\"},",
    "\"}}",
    "\"]",
    "\"],",
    "\"]}",
    "[\"",
    "[[",
    "]]",
    "]}",
    "},{",
    "}, {\"",
    "{}",
    "[]",
    "[],",
    "{},",
    ", ",
    ",\n",
    "\n  ",
    "  ",
    "    ",
    "\n",
    "\n}",
    "\n]",
    "null",
    "null,",
    "true",
    "true}",
    "false",
    "false,",
    "10",
    "12,",
    "1.5",
    "0}",
    "-",
    "e+",
    "name",
    "na",
    "me\":",
    "tags",
    "\"tags\"",
    "ab",
    "abc",
    "a\",\"b",
    "\\n",
    "\\\"",
    "\\u00e9",
    "\\u",
    "\\",
    "\xc3\xa9",
    "\xc3",
    "\xe2\x82",
    "\xe2\x82\xac",
    "x\"",
    "y\"}",
    "z\"]",
    " \"",
    " [",
    " {",
    " {\"",
    "2024-",
    "-01",
    "T00:",
    "@b.c",
    "red",
    "green",
    "reen\"",
    "ed\",",
    "aaaa",
    "aaaaaaaa",
    "aaaaaaa\"",
    "\n\n",
    "\t",
    "\t\"",
    "\"\n",
    "\" :",
    " :",
    " : ",
    "1]",
    "2]}",
    "3, 4",
    "children",
    "dren\":",
    "[{\"",
    "}]",
    "}]}",
    "},",
    "value",
    "kind",
    "\"kind\"",
    "a",
    "b",
    "c",
    /* 16 bytes, and longer ones. */
    "aaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aaaaaaaaaaaaaaaaaaaaa",
    "bbbbbbbbbbbbbbbbbb",
    "aaaaaaaaaaaaaaaaa\"",
    "aaaaaaaaaaaaaaaaaaaaaa\"}",
    "                     ",
    "bbbbbbbbbbbbbbbbb\", \"a",
};

static struct kva_xg_vocab *vocab;

static int set_up(void **state KVA_UNUSED)
{
    static struct kva_xg_token tokens[VOCAB];
    static char bytes[256];
    static const uint32_t stop = STOP;
    for (uint32_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (struct kva_xg_token){&bytes[i], 1};
    }
    for (uint32_t i = 0; i < WORDS; i++)
        tokens[256 + i] = (struct kva_xg_token){words[i], strlen(words[i])};
    tokens[STOP] = (struct kva_xg_token){"", 0};
    const struct kva_xg_vocab_params params = {tokens, VOCAB, VOCAB, &stop, 1};
    assert_int_equal(kva_xg_vocab_create(&params, &vocab, NULL), KVA_XG_OK);
    return 0;
}

static int tear_down(void **state KVA_UNUSED)
{
    kva_xg_vocab_destroy(vocab);
    return 0;
}

static bool allows(const uint32_t *mask, uint32_t id)
{
    return mask[id / 32] >> id % 32 & 1u;
}

static void assert_same(const char *text, const uint32_t *kept, const uint32_t *anew, uint32_t step)
{
    for (uint32_t id = 0; id < VOCAB; id++) {
        if (allows(kept, id) != allows(anew, id))
            fail_msg("%s: token %u at %u: kept %d, anew %d", text, id, step, allows(kept, id),
                     allows(anew, id));
    }
}

/* One that is allowed, of equal chances, words before bytes: they run over rules' ends. */
static uint32_t draw(const uint32_t *mask, uint64_t *seed)
{
    uint32_t chosen = STOP, count = 0, from = kva_test_random(seed) % 4 ? 256 : 0;
    for (uint32_t id = from; id < STOP; id++) {
        if (allows(mask, id) && kva_test_random(seed) % ++count == 0)
            chosen = id;
    }
    for (uint32_t id = 0; id < 256 && count == 0; id++) {
        if (allows(mask, id))
            chosen = id;
    }
    return chosen;
}

static void follow(const struct kva_xg_grammar *grammar, const char *text, uint64_t *seed)
{
    struct kva_xg_matcher *matcher = NULL;
    assert_int_equal(kva_xg_matcher_create(grammar, &matcher, NULL), KVA_XG_OK);
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t kept[MASK_WORDS], again[MASK_WORDS], anew[MASK_WORDS];
        assert_int_equal(kva_xg_matcher_mask(matcher, kept, NULL), KVA_XG_OK);
        assert_int_equal(kva_xg_matcher_mask_anew(matcher, anew, NULL), KVA_XG_OK);
        assert_int_equal(kva_xg_matcher_mask(matcher, again, NULL), KVA_XG_OK);
        assert_same(text, kept, anew, step);
        assert_same(text, again, anew, step);
        uint32_t token = draw(kept, seed);
        if (token == STOP)
            break;
        assert_int_equal(kva_xg_matcher_accept(matcher, token, NULL), KVA_XG_OK);
    }
    kva_xg_matcher_destroy(matcher);
}

static void check(enum kva_xg_kind kind, const char *text, bool strict)
{
    const struct kva_xg_source source = {kind, text, strlen(text), strict, 16, false};
    struct kva_xg_grammar *grammar = NULL;
    struct kva_xg_why why = {""};
    uint64_t seed = 20;
    if (kva_xg_compile(vocab, &source, NULL, &grammar, &why) != KVA_XG_OK)
        fail_msg("%s: %s", text, why.text);
    for (uint32_t i = 0; i < TEXTS; i++)
        follow(grammar, text, &seed);
    kva_xg_grammar_destroy(grammar);
}

static void test_automaton__masks_of_schemas_are_the_librarys(void **state KVA_UNUSED)
{
    static const char *const schemas[] = {
        "{}",
        "{\"type\": \"object\"}",
        "{\"type\": \"array\", \"items\": {\"type\": [\"string\", \"integer\"]}, \"minItems\": 1}",
        "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\"}, \"tags\": "
        "{\"type\": \"array\", \"items\": {\"enum\": [\"red\", \"green\", 1, null]}}, \"value\": "
        "{\"type\": \"number\"}}, \"required\": [\"name\", \"tags\"]}",
        "{\"$defs\": {\"tree\": {\"type\": \"object\", \"properties\": {\"name\": {\"type\": "
        "\"string\"}, \"children\": {\"type\": \"array\", \"items\": {\"$ref\": "
        "\"#/$defs/tree\"}}}, \"required\": [\"children\"]}}, \"$ref\": \"#/$defs/tree\"}",
        "{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"kind\": {\"const\": \"a\"}, "
        "\"value\": {\"type\": \"string\"}}, \"required\": [\"kind\"]}, {\"type\": \"object\", "
        "\"properties\": {\"kind\": {\"const\": \"ab\"}, \"value\": {\"type\": \"integer\"}}, "
        "\"required\": [\"kind\", \"value\"]}]}",
        "{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 9}",
        "{\"type\": \"string\", \"minLength\": 12, \"maxLength\": 14}",
        "{\"type\": \"string\", \"minLength\": 20}",
        "{\"type\": \"string\", \"minLength\": 20, \"maxLength\": 400}",
        "{\"type\": \"string\", \"maxLength\": 30}",
        "{\"type\": \"string\", \"maxLength\": 300}",
        "{\"type\": \"string\", \"minLength\": 150, \"maxLength\": 400}",
        "{\"type\": \"array\", \"items\": {\"type\": \"integer\", \"minimum\": 3, \"maximum\": "
        "120}, \"minItems\": 2, \"maxItems\": 5}",
        "{\"type\": \"string\", \"format\": \"date-time\"}",
        "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"boolean\"}}",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(schemas); i++) {
        check(KVA_XG_SCHEMA, schemas[i], true);
        check(KVA_XG_SCHEMA, schemas[i], false);
    }
}

static void test_automaton__masks_of_expressions_and_rules_are_the_librarys(void **state KVA_UNUSED)
{
    static const char *const expressions[] = {
        "a*b{2,4}c?",      "(ab|abc)+[^x]",          "[a-z]{3,40}@[a-z]{3,40}\\.(com|org)",
        "(a|aa|aaa){1,9}", "[^a]{0,200}a[^b]{130,}", "\\d{4}-\\d{2}-\\d{2}",
    };
    static const char *const rules[] = {
        "root ::= item (\",\" \" \"? item)*\nitem ::= \"a\" item \"b\" | \"\"",
        "root ::= root \"a\" | \"b\"",
        "root ::= [a-c]{0,40}",
        "root ::= \"b\"{9,60} \"a\"{0,30}",
        "root ::= [a]{25,90} \"b\"",
        "root ::= \"[\" (root (\",\" root)*)? \"]\" | [0-9]+",
        "root ::= \"a\"{7,9} | \"a\"{11,30} \"b\"",
        "root ::= x x x\nx ::= [a-c]{0,3} | \"\\n\" x",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(expressions); i++)
        check(KVA_XG_REGEX, expressions[i], true);
    for (size_t i = 0; i < KVA_COUNT_OF(rules); i++)
        check(KVA_XG_EBNF, rules[i], true);
}

/* Free text in which a mark begins what a schema holds. */
static void test_automaton__masks_of_tags_are_the_librarys(void **state KVA_UNUSED)
{
    check(KVA_XG_TAGS,
          "{\"type\": \"structural_tag\", \"format\": {\"type\": \"triggered_tags\", \"triggers\": "
          "[\"[[\"], \"tags\": [{\"begin\": \"[[a\", \"content\": {\"type\": \"json_schema\", "
          "\"json_schema\": {\"type\": \"object\", \"properties\": {\"name\": {\"type\": "
          "\"string\"}}, \"required\": [\"name\"]}}, \"end\": \"]]\"}]}}",
          true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_automaton__masks_of_schemas_are_the_librarys),
        cmocka_unit_test(test_automaton__masks_of_expressions_and_rules_are_the_librarys),
        cmocka_unit_test(test_automaton__masks_of_tags_are_the_librarys),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
