#include "tests/cmocka.h"
#include "text/tokenizer/synthetic.h"
#include "text/tokenizer/tokenizer.h"

#include <string.h>

static struct kva_tokenizer *make(uint32_t vocab_size)
{
    struct kva_buf json, config;
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err = {.message = ""};
    kva_buf_init(&json, 1 << 26);
    kva_buf_init(&config, 1 << 16);
    kva_tokenizer_put_synthetic(&json, vocab_size);
    kva_tokenizer_put_synthetic_config(&config);
    assert_false(json.failed || config.failed);
    if (kva_tokenizer_load_buffers(json.data, json.length, config.data, config.length, &tokenizer,
                                   &err))
        fail_msg("%s", err.message);
    kva_buf_finish(&json);
    kva_buf_finish(&config);
    return tokenizer;
}

static void test_synthetic__every_id_has_a_text(void **state KVA_UNUSED)
{
    static const uint32_t sizes[] = {260, 261, 32000, 152064};
    for (size_t i = 0; i < KVA_COUNT_OF(sizes); i++) {
        struct kva_tokenizer *tokenizer = make(sizes[i]);
        assert_int_equal(kva_tokenizer_vocab_size(tokenizer), sizes[i]);
        for (uint32_t id = 0; id < sizes[i]; id++) {
            size_t length = 0;
            assert_non_null(kva_tokenizer_token_bytes(tokenizer, (int32_t)id, &length));
            assert_true(length > 0);
        }
        assert_int_equal(kva_tokenizer_lookup(tokenizer, "<|end_of_text|>", 15),
                         sizes[i] - KVA_SYNTHETIC_EOS);
        kva_tokenizer_destroy(tokenizer);
    }
}

static void test_synthetic__words_are_one_token_and_text_comes_back(void **state KVA_UNUSED)
{
    static const char text[] = " bababa bababe xyz\n\xC3\xA9<|im_end|>";
    static const int32_t want[] = {
        1000 - KVA_SYNTHETIC_BOS,     256, 257, ' ', 'x', 'y', 'z', '\n', 0xC3, 0xA9,
        1000 - KVA_SYNTHETIC_TURN_END};
    struct kva_tokenizer *tokenizer = make(1000);
    struct kva_token_list list;
    struct kva_err err = {.message = ""};
    const struct kva_encode_params params = {.add_special = true, .parse_special = true};
    kva_token_list_init(&list, 100);
    if (kva_tokenizer_encode(tokenizer, text, strlen(text), &params, &list, &err))
        fail_msg("%s", err.message);
    assert_int_equal(list.count, KVA_COUNT_OF(want));
    assert_memory_equal(list.ids, want, sizeof(want));
    struct kva_detok detok;
    struct kva_buf back;
    kva_buf_init(&back, 1000);
    kva_detok_init(&detok, tokenizer, false);
    for (size_t i = 1; i < list.count; i++)
        kva_detok_push(&detok, list.ids[i], &back);
    kva_detok_flush(&detok, &back);
    assert_string_equal(back.data, text);
    kva_buf_finish(&back);
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_synthetic__every_id_has_a_text),
        cmocka_unit_test(test_synthetic__words_are_one_token_and_text_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
