/* What is refused, and with which words; what tokenizer_config.json changes. */
#include "tests/text/tokenizer/fixtures.h"

#define MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,"  \
    "\"ab\":3},\"merges\":[\"a b\"]}"
#define ADDED                                                                                      \
    "\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true},"                           \
    "{\"id\":5,\"content\":\"</s>\",\"special\":true}]"

static void check_refused(const char *json, const char *config, enum kva_status want,
                          const char *words)
{
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err = {.message = ""};
    enum kva_status status = kva_tokenizer_load_buffers(
        json, strlen(json), config, config ? strlen(config) : 0, &tokenizer, &err);
    if (status != want || !strstr(err.message, words))
        fail_msg("status %d, not %d; '%s' does not say '%s'", status, want, err.message, words);
    assert_null(tokenizer);
}

static void test_load__malformed(void **state KVA_UNUSED)
{
    static const struct {
        const char *json;
        enum kva_status status;
        const char *words;
    } cases[] = {
        {"", KVA_EFORMAT, "tokenizer.json: not valid JSON"},
        {"[]", KVA_EFORMAT, "not one JSON object"},
        {"{} x", KVA_EFORMAT, "not one JSON object"},
        {"{\"a\":\"\xFF\"}", KVA_EFORMAT, "not UTF-8 at byte 6"},
        {"{\"a\":\"\\u0000\"}", KVA_EUNSUPPORTED, "U+0000"},
        {"{}", KVA_EFORMAT, "model: not an object"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", KVA_EUNSUPPORTED,
         "model: model of type 'Unigram'"},
        {"{\"model\":{\"type\":\"BPE\",\"merges\":[]}}", KVA_EFORMAT, "model.vocab: not an object"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", KVA_EFORMAT, "'merges' is not an array"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", KVA_EFORMAT,
         "model.vocab.a: -1 is not in [0, "},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4294967297},\"merges\":[]}}", KVA_EFORMAT,
         "is not in [0, "},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1e999},\"merges\":[]}}", KVA_EFORMAT,
         "is not in [0, "},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}}", KVA_EFORMAT,
         "0.5 is not an integer"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", KVA_EFORMAT,
         "a number is missing"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", KVA_EFORMAT,
         "id 0 names two tokens, 'a' and 'b'"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", KVA_EFORMAT,
         "token 'a' has two ids"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}",
         KVA_EFORMAT, "merge 0: token 'ab' is not in the vocabulary"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", KVA_EFORMAT,
         "merge 0 is not a pair"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", KVA_EFORMAT,
         "merge 0 is not a pair"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\" a\"]}}", KVA_EFORMAT,
         "merge 0 has an empty part"},
        {"{\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"a\":0},\"merges\":[]}}",
         KVA_EFORMAT, "unk_token 'u' is not in the vocabulary"},
        {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}",
         KVA_EUNSUPPORTED, "dropout"},
        {"{" MODEL ",\"added_tokens\":{}}", KVA_EFORMAT, "added_tokens: not an array"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":9}]}", KVA_EFORMAT,
         "added_tokens[0]: 'content' is missing"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":9999999,\"content\":\"x\"}]}", KVA_EFORMAT,
         "added_tokens[0].id: 1e+07 is not in"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":9,\"content\":\"a\"}]}", KVA_EFORMAT,
         "token 'a' has two ids, 1 and 9"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}", KVA_EFORMAT,
         "id 1 names two tokens"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":9,\"content\":\"\"}]}", KVA_EFORMAT, "is empty"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++)
        check_refused(cases[i].json, NULL, cases[i].status, cases[i].words);
}

static void test_load__unknown_components(void **state KVA_UNUSED)
{
    static const char *const cases[][2] = {
        {"\"normalizer\":{\"type\":\"Precompiled\"}",
         "normalizer: normalizer of type 'Precompiled'"},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
         "\"Nmt\"}]}",
         "normalizer.normalizers[1]: normalizer of type 'Nmt'"},
        {"\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}",
         "pre_tokenizer: pre-tokenizer of type 'UnicodeScripts'"},
        {"\"post_processor\":{\"type\":\"Foo\"}", "post_processor: post-processor of type 'Foo'"},
        {"\"decoder\":{\"type\":\"CTC\"}", "decoder: decoder of type 'CTC'"},
        {"\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
         "\"ByteFallback\"}]}",
         "decoder.decoders[1]: decoder of type 'ByteFallback' is not supported at this place"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(?R)b\"},\"behavior\":"
         "\"Isolated\"}",
         "pre_tokenizer.pattern: a group or option that is not supported at byte 3 of pattern"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(*LIMIT_MATCH=1)a\"},"
         "\"behavior\":\"Isolated\"}",
         "a verb"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Nonsense}\"},"
         "\"behavior\":\"Isolated\"}",
         "an unknown character property"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&]\"},\"behavior\":"
         "\"Isolated\"}",
         "an empty class"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char json[1024];
        snprintf(json, sizeof(json), "{%s,%s}", MODEL, cases[i][0]);
        check_refused(json, NULL, KVA_EUNSUPPORTED, cases[i][1]);
    }
}

/* tokenizer_config.json wins over tokenizer.json, as in the reference. */
static void test_load__configured_added_tokens(void **state KVA_UNUSED)
{
    static const char json[] =
        "{\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"_\"},\"added_tokens\":[{\"id\":3,"
        "\"content\":\"<s>\",\"special\":true,\"normalized\":true}],\"model\":{\"type\":\"BPE\","
        "\"vocab\":{\"a\":0,\"_\":1,\"b\":2,\"<s>\":3},\"merges\":[]}}";
    static const char config[] =
        "{\"added_tokens_decoder\":{\"3\":{\"content\":\"<s>\",\"special\":true,"
        "\"normalized\":false},\"4\":{\"content\":\"<new>\",\"special\":false},"
        "\"9\":{\"content\":\"b\",\"special\":true}}}";
    static const struct {
        const char *config;
        const char *text;
        int32_t ids[4];
        size_t count;
    } cases[] = {
        /* Looked for in normalized text, where it is "_<s>". */
        {NULL, "a<s>a", {1, 0, 0}, 3},
        {config, "a<s>a", {1, 0, 3, 1}, 5},
        {config, "<new>", {4}, 1},
        /* A text of the vocabulary keeps its id. */
        {config, "b", {2}, 1},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_tokenizer *tokenizer = fixture_load(json, cases[i].config);
        struct kva_token_list list =
            fixture_encode(tokenizer, cases[i].text, strlen(cases[i].text), false, true);
        assert_int_equal(list.count, cases[i].count);
        for (size_t j = 0; j < list.count && j < 4; j++)
            assert_int_equal(list.ids[j], cases[i].ids[j]);
        kva_token_list_finish(&list);
        kva_tokenizer_destroy(tokenizer);
    }
    check_refused(json, "{\"added_tokens_decoder\":[]}", KVA_EFORMAT,
                  "tokenizer_config.json: added_tokens_decoder: not an object");
    check_refused(json, "{\"added_tokens_decoder\":{\"x\":{\"content\":\"<y>\"}}}", KVA_EFORMAT,
                  "added_tokens_decoder.x: 'x' is no id");
    /* An id that names another token stays with that. */
    struct kva_tokenizer *tokenizer =
        fixture_load(json, "{\"added_tokens_decoder\":{\"0\":{\"content\":\"<y>\"}}}");
    assert_int_equal(kva_tokenizer_lookup(tokenizer, "<y>", 3), -1);
    assert_int_equal(kva_tokenizer_lookup(tokenizer, "a", 1), 0);
    kva_tokenizer_destroy(tokenizer);
}

static void test_load__bad_patterns(void **state KVA_UNUSED)
{
    static const char *const patterns[] = {"(",        ")",
                                           "[",        "[a",
                                           "a**b(",    "*a",
                                           "(?<=a+)b", "\\\\",
                                           "[z-a]",    "\\\\x{110000}",
                                           "a{3}?",    "(?i",
                                           "\\\\9",    "(?:a{9999}){9999}",
                                           "(?<n>",    "\\\\p{",
                                           "[[:x:]]",  "\\\\uD800"};
    for (size_t i = 0; i < KVA_COUNT_OF(patterns); i++) {
        char json[1024];
        struct kva_tokenizer *tokenizer = NULL;
        struct kva_err err = {.message = ""};
        snprintf(json, sizeof(json),
                 "{%s,\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},"
                 "\"behavior\":\"Isolated\"}}",
                 MODEL, patterns[i]);
        enum kva_status status =
            kva_tokenizer_load_buffers(json, strlen(json), NULL, 0, &tokenizer, &err);
        if (status != KVA_EFORMAT && status != KVA_EUNSUPPORTED)
            fail_msg("pattern %s gives status %d", patterns[i], status);
        assert_non_null(strstr(err.message, "pre_tokenizer.pattern: "));
    }
}

static void test_load__bounds(void **state KVA_UNUSED)
{
    struct kva_buf json;
    kva_buf_init(&json, 1u << 20);
    kva_buf_puts(&json, "{\"a\":");
    for (int i = 0; i < 5000; i++)
        kva_buf_putc(&json, '[');
    check_refused(json.data, NULL, KVA_EFORMAT, "nested deeper than 64 levels");
    kva_buf_clear(&json);
    kva_buf_puts(&json, "{" MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 40; i++)
        kva_buf_printf(&json, "%s{\"type\":\"NFC\"}", i ? "," : "");
    kva_buf_puts(&json, "]}}");
    check_refused(json.data, NULL, KVA_ETOOBIG, "more than 32 stages");
    kva_buf_clear(&json);
    kva_buf_puts(&json, "{" MODEL ",\"added_tokens\":[{\"id\":7,\"content\":\"");
    for (int i = 0; i < 2000; i++)
        kva_buf_putc(&json, 'x');
    kva_buf_puts(&json, "\"}]}");
    check_refused(json.data, NULL, KVA_ETOOBIG, "2000 bytes, limit is 1024");
    kva_buf_finish(&json);
}

static void test_load__config(void **state KVA_UNUSED)
{
    const char *json = "{" MODEL "," ADDED "}";
    struct kva_tokenizer *tokenizer = fixture_load(
        json, "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
              "\"pad_token\":\"[PAD]\",\"add_bos_token\":true,\"add_eos_token\":true}");
    assert_int_equal(kva_tokenizer_bos(tokenizer), 4);
    assert_int_equal(kva_tokenizer_eos(tokenizer), 5);
    assert_int_equal(kva_tokenizer_pad(tokenizer), -1);
    assert_int_equal(kva_tokenizer_unk(tokenizer), 0);
    assert_int_equal(kva_tokenizer_vocab_size(tokenizer), 6);
    struct kva_token_list list = fixture_encode(tokenizer, "abc</s>", 7, true, true);
    const int32_t want[] = {4, 3, 0, 5, 5};
    assert_int_equal(list.count, 5);
    assert_memory_equal(list.ids, want, sizeof(want));
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
    check_refused(json, "{\"bos_token\":\"<bos>\"}", KVA_EFORMAT,
                  "tokenizer_config.json: bos_token: '<bos>' is not in the vocabulary");
    check_refused(json, "{\"add_bos_token\":1}", KVA_EFORMAT,
                  "'add_bos_token' is not true or false");
    check_refused(json, "nothing", KVA_EFORMAT, "tokenizer_config.json: not valid JSON");
}

/* What tokenizer_config.json says of BOS and EOS counts for these two alone, each on its side. */
static void test_load__flags_count_for_their_token(void **state KVA_UNUSED)
{
    static const struct {
        const char *config;
        int32_t want[4]; /* around "ab", 3; -1: the end */
    } cases[] = {
        {"{}", {4, 3, 5, -1}},
        {"{\"add_bos_token\":false,\"bos_token\":null,\"eos_token\":\"<unk>\"}", {4, 3, 5, -1}},
        {"{\"add_bos_token\":false,\"add_eos_token\":false,\"eos_token\":\"<unk>\"}",
         {4, 3, 5, -1}},
        {"{\"add_bos_token\":false,\"bos_token\":\"<s>\"}", {3, 5, -1}},
        {"{\"add_eos_token\":false,\"eos_token\":\"</s>\"}", {4, 3, -1}},
        {"{\"add_eos_token\":true,\"eos_token\":\"<unk>\"}", {4, 3, 0, -1}},
        {"{\"add_bos_token\":true,\"bos_token\":\"</s>\"}", {5, 3, 5, -1}},
        /* Of some classes a flag that is not there has a default, if the other one is there. */
        {"{\"add_bos_token\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}", {4, 3, 5, -1}},
        {"{\"add_bos_token\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\","
         "\"tokenizer_class\":\"LlamaTokenizerFast\"}",
         {4, 3, -1}},
        {"{\"add_eos_token\":true,\"bos_token\":\"<unk>\",\"eos_token\":\"</s>\","
         "\"tokenizer_class\":\"LlamaTokenizer\"}",
         {0, 3, 5, -1}},
        {"{\"bos_token\":\"<unk>\",\"eos_token\":\"<unk>\",\"tokenizer_class\":\"LlamaTokenizer\"}",
         {4, 3, 5, -1}},
    };
    const char *json =
        "{" MODEL "," ADDED ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
        "{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}},"
        "{\"SpecialToken\":{\"id\":\"</s>\"}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\","
        "\"ids\":[4]},\"</s>\":{\"id\":\"</s>\",\"ids\":[5]}}}}";
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_tokenizer *tokenizer = fixture_load(json, cases[i].config);
        struct kva_token_list list = fixture_encode(tokenizer, "ab", 2, true, true);
        size_t count = 0;
        while (cases[i].want[count] >= 0)
            count++;
        if (list.count != count || memcmp(list.ids, cases[i].want, count * sizeof(int32_t)) != 0)
            fail_msg("%s: other tokens around the text", cases[i].config);
        kva_token_list_finish(&list);
        kva_tokenizer_destroy(tokenizer);
    }
}

static void test_load__post_processor(void **state KVA_UNUSED)
{
    static const char *const cases[][2] = {
        {"[]", "the text, sequence A, is missing"},
        {"[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}]",
         "single[0]: 1000 is not in [0, 5]"},
        {"[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}]",
         "'x' is not in special_tokens"},
        {"[{}]", "neither SpecialToken nor Sequence"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char json[1024];
        snprintf(json, sizeof(json),
                 "{%s,%s,\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":%s,"
                 "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1000]}}}}",
                 MODEL, ADDED, cases[i][0]);
        check_refused(json, NULL, KVA_EFORMAT, cases[i][1]);
    }
}

static void test_load__no_such_directory(void **state KVA_UNUSED)
{
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err = {.message = ""};
    assert_int_equal(kva_tokenizer_load("/no/such/directory", &tokenizer, &err), KVA_ENOTFOUND);
    assert_non_null(strstr(err.message, "/no/such/directory: cannot open"));
    assert_int_equal(kva_tokenizer_load("/no/such/directory", &tokenizer, NULL), KVA_ENOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load__malformed),
        cmocka_unit_test(test_load__unknown_components),
        cmocka_unit_test(test_load__configured_added_tokens),
        cmocka_unit_test(test_load__bad_patterns),
        cmocka_unit_test(test_load__bounds),
        cmocka_unit_test(test_load__config),
        cmocka_unit_test(test_load__flags_count_for_their_token),
        cmocka_unit_test(test_load__post_processor),
        cmocka_unit_test(test_load__no_such_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
