/* The incremental decoder against the whole one, at every prefix and on any sequence of ids. */
#include "tests/random.h"
#include "tests/text/tokenizer/fixtures.h"

#include "base/utf8.h"

static const char multilingual[] =
    "The caf\xC3\xA9 \xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB "
    "\xEC\x95\x88\xEB\x85\x95 "
    "\xE4\xBB\x8A\xE5\xA4\xA9\xF0\xA0\x80\x80 \xD0\x9F\xD1\x80\xD0\xB8 e\xCC\x81\xCC\xA3  \n\t end "
    "  ";

/* Pushes + flush of every prefix are what decoding that prefix gives, and every push appends whole
 * characters. */
static void check_prefixes(const struct kva_tokenizer *tokenizer, const int32_t *ids, size_t count)
{
    struct kva_buf streamed, ended, whole;
    kva_buf_init(&streamed, 1u << 20);
    kva_buf_init(&ended, 1u << 20);
    kva_buf_init(&whole, 1u << 20);
    for (int skip = 0; skip < 2; skip++) {
        struct kva_detok detok;
        kva_detok_init(&detok, tokenizer, skip);
        kva_buf_clear(&streamed);
        for (size_t i = 0; i <= count; i++) {
            struct kva_detok copy = detok;
            kva_buf_clear(&ended);
            kva_buf_append(&ended, streamed.data, streamed.length);
            kva_detok_flush(&copy, &ended);
            kva_buf_clear(&whole);
            assert_int_equal(kva_tokenizer_decode(tokenizer, ids, i, skip, &whole), KVA_OK);
            assert_int_equal(ended.length, whole.length);
            if (whole.length > 0)
                assert_memory_equal(ended.data, whole.data, whole.length);
            assert_true(kva_utf8_valid(streamed.data, streamed.length));
            if (i < count)
                kva_detok_push(&detok, ids[i], &streamed);
        }
    }
    kva_buf_finish(&streamed);
    kva_buf_finish(&ended);
    kva_buf_finish(&whole);
}

/* Text of a prompt and of the answer that goes on with it is the text of both. */
static void check_continued(const struct kva_tokenizer *tokenizer, const int32_t *ids, size_t count)
{
    struct kva_buf parts, whole;
    kva_buf_init(&parts, 1u << 20);
    kva_buf_init(&whole, 1u << 20);
    assert_int_equal(kva_tokenizer_decode(tokenizer, ids, count, false, &whole), KVA_OK);
    for (size_t at = 1; at < count; at++) {
        struct kva_detok detok;
        kva_buf_clear(&parts);
        assert_int_equal(kva_tokenizer_decode(tokenizer, ids, at, false, &parts), KVA_OK);
        kva_detok_init(&detok, tokenizer, false);
        kva_detok_continue(&detok);
        for (size_t i = at; i < count; i++)
            kva_detok_push(&detok, ids[i], &parts);
        kva_detok_flush(&detok, &parts);
        assert_int_equal(parts.length, whole.length);
        assert_memory_equal(parts.data, whole.data, whole.length);
    }
    kva_buf_finish(&parts);
    kva_buf_finish(&whole);
}

static void check_tokenizer(const struct kva_tokenizer *tokenizer)
{
    struct kva_token_list list =
        fixture_encode(tokenizer, multilingual, sizeof(multilingual) - 1, true, true);
    check_prefixes(tokenizer, list.ids, list.count);
    kva_token_list_finish(&list);
    /* Any ids, those that do not exist among them: broken characters are the rule here. */
    uint64_t state = 7;
    for (int round = 0; round < 40; round++) {
        int32_t ids[24];
        for (size_t i = 0; i < KVA_COUNT_OF(ids); i++)
            ids[i] =
                (int32_t)(kva_test_random(&state) % (kva_tokenizer_vocab_size(tokenizer) + 3)) - 1;
        check_prefixes(tokenizer, ids, KVA_COUNT_OF(ids));
    }
}

static void test_detok__every_prefix_synthetic(void **state KVA_UNUSED)
{
    cJSON *synthetic = fixture_source(FIXTURE_SYNTHETIC);
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(synthetic, "cases"))
    {
        char *json = fixture_case_json(synthetic, item);
        struct kva_tokenizer *tokenizer = fixture_load(json, NULL);
        check_tokenizer(tokenizer);
        kva_tokenizer_destroy(tokenizer);
        free(json);
    }
    cJSON_Delete(synthetic);
}

static void test_detok__every_prefix_published(void **state KVA_UNUSED)
{
    static const char *const names[] = {"gpt2", "llama2", "llama3", "mistral", "qwen2.5"};
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        struct kva_tokenizer *tokenizer = fixture_published(names[i]);
        if (tokenizer) {
            static const char text[] = "The capital of France is Paris, they say.";
            struct kva_token_list list =
                fixture_encode(tokenizer, text, sizeof(text) - 1, true, true);
            check_tokenizer(tokenizer);
            check_continued(tokenizer, list.ids, list.count);
            kva_token_list_finish(&list);
        }
        kva_tokenizer_destroy(tokenizer);
    }
}

/* Encoding and decoding gives the text back where nothing of the tokenizer changes it. */
static void test_detok__round_trip(void **state KVA_UNUSED)
{
    static const char *const names[] = {"byte_level", "byte_level_han", "byte_level_ignore_merges",
                                        "digits_individual", "spm"};
    cJSON *reference = fixture_source(FIXTURE_REFERENCE);
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        struct kva_tokenizer *tokenizer = fixture_case(names[i]);
        const cJSON *item;
        cJSON_ArrayForEach(item, cJSON_GetObjectItem(reference, "texts"))
        {
            size_t length;
            char *text = fixture_unhex(item->valuestring, &length);
            bool spells = length >= 3 && memmem(text, length, "\xE2\x96\x81", 3);
            if (kva_utf8_valid(text, length) && !(spells && strcmp(names[i], "spm") == 0)) {
                struct kva_token_list list = fixture_encode(tokenizer, text, length, false, false);
                struct kva_buf out;
                kva_buf_init(&out, 1u << 20);
                assert_int_equal(kva_tokenizer_decode(tokenizer, list.ids, list.count, false, &out),
                                 KVA_OK);
                assert_int_equal(out.length, length);
                if (length > 0)
                    assert_memory_equal(out.data, text, length);
                kva_buf_finish(&out);
                kva_token_list_finish(&list);
            }
            free(text);
        }
        kva_tokenizer_destroy(tokenizer);
    }
    cJSON_Delete(reference);
}

static void check_decode(const struct kva_tokenizer *tokenizer, const char *const *tokens,
                         size_t count, const char *want)
{
    int32_t ids[16];
    struct kva_buf out;
    kva_buf_init(&out, 4096);
    for (size_t i = 0; i < count; i++) {
        ids[i] = kva_tokenizer_lookup(tokenizer, tokens[i], strlen(tokens[i]));
        assert_true(ids[i] >= 0);
    }
    assert_int_equal(kva_tokenizer_decode(tokenizer, ids, count, true, &out), KVA_OK);
    assert_string_equal(out.data ? out.data : "", want);
    kva_buf_finish(&out);
}

/* Complete characters of a run of byte tokens stay; each other byte is one U+FFFD. */
static void test_detok__broken_byte_runs(void **state KVA_UNUSED)
{
    struct kva_tokenizer *tokenizer = fixture_case("spm");
    const char *cut[] = {"<0xF0>", "<0x9F>", "<0x98>"};
    const char *whole_and_cut[] = {"<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xF0>", "<0x9F>"};
    const char *interrupted[] = {"<0xE4>", "<0xBD>", "<0x41>", "\xE2\x96\x81", "<0xFF>", "a"};
    check_decode(tokenizer, cut, 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    check_decode(tokenizer, whole_and_cut, 6, "\xF0\x9F\x98\x80\xEF\xBF\xBD\xEF\xBF\xBD");
    check_decode(tokenizer, interrupted, 6,
                 "\xEF\xBF\xBD\xEF\xBF\xBD"
                 "A \xEF\xBF\xBD"
                 "a");
    kva_tokenizer_destroy(tokenizer);
}

static void test_detok__token_bytes(void **state KVA_UNUSED)
{
    struct kva_tokenizer *tokenizer = fixture_case("byte_level");
    size_t length;
    int32_t id = kva_tokenizer_lookup(tokenizer, "\xC4\xA0", 2);
    assert_true(id >= 0);
    const char *bytes = kva_tokenizer_token_bytes(tokenizer, id, &length);
    assert_int_equal(length, 1);
    assert_int_equal(bytes[0], ' ');
    assert_string_equal(kva_tokenizer_token_string(tokenizer, id, NULL), "\xC4\xA0");
    id = kva_tokenizer_lookup(tokenizer, "<|end|>", 7);
    assert_true(kva_tokenizer_is_special(tokenizer, id));
    assert_false(kva_tokenizer_is_special(tokenizer, 0));
    assert_false(kva_tokenizer_is_special(tokenizer, -1));
    assert_null(kva_tokenizer_token_string(tokenizer, -1, NULL));
    assert_null(kva_tokenizer_token_bytes(tokenizer, INT32_MAX, NULL));
    assert_int_equal(kva_tokenizer_lookup(tokenizer, "no such token", 13), -1);
    kva_tokenizer_destroy(tokenizer);
    tokenizer = fixture_case("spm");
    id = kva_tokenizer_lookup(tokenizer, "<0xE4>", 6);
    bytes = kva_tokenizer_token_bytes(tokenizer, id, &length);
    assert_int_equal(length, 1);
    assert_int_equal((unsigned char)bytes[0], 0xE4);
    kva_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_detok__every_prefix_synthetic),
        cmocka_unit_test(test_detok__every_prefix_published),
        cmocka_unit_test(test_detok__round_trip),
        cmocka_unit_test(test_detok__broken_byte_runs),
        cmocka_unit_test(test_detok__token_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
