/* Encoding is linear in the text, whatever the text: counted, not timed. And the limits. */
#include "tests/text/tokenizer/fixtures.h"

#include <pthread.h>

#define TEXT_BYTES ((size_t)1 << 18)

/* Texts made of one repeated unit, and two that are not. */
static void fill(char *text, const char *unit)
{
    size_t size = strlen(unit);
    uint64_t state = 11;
    for (size_t i = 0; i < TEXT_BYTES; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        if (strcmp(unit, "random bytes") == 0)
            text[i] = (char)(state >> 56);
        else if (strcmp(unit, "random letters") == 0)
            text[i] = (char)('a' + (state >> 56) % 26);
        else
            text[i] = unit[i % size];
    }
}

static void check_work(const struct kva_tokenizer *tokenizer, const char *name)
{
    static const char *const units[] = {"a",
                                        " ",
                                        "\n",
                                        " \n",
                                        "the ",
                                        "\xE4\xBB\x8A",
                                        "\xF0\x9F\x98\x80",
                                        "!?",
                                        "  a",
                                        "1",
                                        "<|end|>",
                                        "<",
                                        "e\xCC\x81\xCC\xA3",
                                        "'s",
                                        "\r\n",
                                        "\t",
                                        "random bytes",
                                        "random letters"};
    char *text = malloc(TEXT_BYTES);
    assert_non_null(text);
    for (size_t i = 0; i < KVA_COUNT_OF(units); i++) {
        struct kva_encode_work work = {.pieces = 0};
        struct kva_encode_params params = {.parse_special = true, .work = &work};
        struct kva_token_list list;
        struct kva_err err = {.message = ""};
        fill(text, units[i]);
        kva_token_list_init(&list, 4 * TEXT_BYTES);
        if (kva_tokenizer_encode(tokenizer, text, TEXT_BYTES, &params, &list, &err))
            fail_msg("%s, '%s': %s", name, units[i], err.message);
        /* A symbol for each byte at most (two where a byte that is no UTF-8 becomes the three of
         * U+FFFD); each is merged once, and a merge looks two pairs up. */
        uint64_t symbols = 3 * TEXT_BYTES;
        assert_true(work.pieces <= TEXT_BYTES + 1);
        assert_true(work.merges <= symbols);
        assert_true(work.lookups <= 3 * symbols);
        assert_true(work.queue_pushes <= 3 * symbols);
        assert_true(list.count > 0);
        kva_token_list_finish(&list);
    }
    free(text);
}

static void test_work__linear_synthetic(void **state KVA_UNUSED)
{
    static const char *const names[] = {"byte_level", "byte_level_ignore_merges", "byte_level_han",
                                        "spm",        "metaspace_first_0",        "normalizer_nfc"};
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        struct kva_tokenizer *tokenizer = fixture_case(names[i]);
        check_work(tokenizer, names[i]);
        kva_tokenizer_destroy(tokenizer);
    }
}

static void test_work__linear_published(void **state KVA_UNUSED)
{
    static const char *const names[] = {"gpt2", "llama2", "llama3", "mistral", "qwen2.5"};
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        struct kva_tokenizer *tokenizer = fixture_published(names[i]);
        if (tokenizer)
            check_work(tokenizer, names[i]);
        kva_tokenizer_destroy(tokenizer);
    }
}

/* A pattern that takes exponential time fails; it neither hangs nor ends the process. */
static void test_work__catastrophic_pattern(void **state KVA_UNUSED)
{
    const char *json = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
                       "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":"
                       "\"(?:a|a)*(?:a|a|aa)*[bc]\"},\"behavior\":\"Isolated\"}}";
    struct kva_tokenizer *tokenizer = fixture_load(json, NULL);
    struct kva_token_list list;
    struct kva_err err = {.message = ""};
    char text[4096];
    memset(text, 'a', sizeof(text));
    kva_token_list_init(&list, 1u << 20);
    assert_int_equal(kva_tokenizer_encode(tokenizer, text, sizeof(text), NULL, &list, &err),
                     KVA_EINVAL);
    assert_non_null(strstr(err.message, "(?:a|a)*(?:a|a|aa)*[bc]"));
    assert_int_equal(list.count, 0);
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
}

static void test_work__tokens_max(void **state KVA_UNUSED)
{
    struct kva_tokenizer *tokenizer = fixture_case("byte_level");
    struct kva_token_list list = fixture_encode(tokenizer, "z z z z", 7, false, false);
    size_t count = list.count;
    struct kva_err err = {.message = ""};
    struct kva_encode_params params = {.tokens_max = count - 1};
    char words[64];
    assert_true(count > 2);
    snprintf(words, sizeof(words), "%zu tokens, limit is %zu", count, count - 1);
    assert_int_equal(kva_tokenizer_encode(tokenizer, "z z z z", 7, &params, &list, &err),
                     KVA_ETOOBIG);
    assert_non_null(strstr(err.message, words));
    assert_int_equal(list.count, count);
    params.tokens_max = count;
    assert_int_equal(kva_tokenizer_encode(tokenizer, "z z z z", 7, &params, &list, &err), KVA_OK);
    assert_int_equal(list.count, 2 * count);
    list.max = list.count;
    assert_int_equal(kva_tokenizer_encode(tokenizer, "z", 1, NULL, &list, &err), KVA_ETOOBIG);
    struct kva_buf out;
    kva_buf_init(&out, 3);
    assert_int_equal(kva_tokenizer_decode(tokenizer, list.ids, list.count, false, &out),
                     KVA_ETOOBIG);
    kva_buf_finish(&out);
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
}

/* ---- one tokenizer, several threads ------------------------------------------------------------
 */

struct job {
    const struct kva_tokenizer *tokenizer;
    const char *text;
    size_t length;
    uint64_t hash;
};

static void *run_job(void *opaque)
{
    struct job *job = opaque;
    job->hash = FIXTURE_FNV_START;
    for (int round = 0; round < 4; round++) {
        struct kva_token_list list;
        kva_token_list_init(&list, 1u << 20);
        if (kva_tokenizer_encode(job->tokenizer, job->text, job->length, NULL, &list, NULL))
            return NULL;
        job->hash = fixture_fnv(job->hash, list.ids, list.count * sizeof(*list.ids));
        kva_token_list_finish(&list);
    }
    return NULL;
}

/* Who asks for no more than so many tokens pays for no more, and a flag ends the rest. */
static void test_work__ends_where_it_is_told_to(void **state KVA_UNUSED)
{
    struct kva_tokenizer *tokenizer = fixture_case("byte_level");
    struct kva_token_list list;
    struct kva_err err;
    char *text = malloc(TEXT_BYTES);
    assert_non_null(text);
    fill(text, "the ");
    struct kva_encode_work all = {.pieces = 0}, part = {.pieces = 0};
    struct kva_encode_params params = {.work = &all};
    kva_token_list_init(&list, TEXT_BYTES);
    assert_int_equal(kva_tokenizer_encode(tokenizer, text, TEXT_BYTES, &params, &list, &err),
                     KVA_OK);
    size_t count = list.count;
    params = (struct kva_encode_params){.work = &part, .stop_tokens = count};
    list.count = 0;
    assert_int_equal(kva_tokenizer_encode(tokenizer, text, TEXT_BYTES, &params, &list, &err),
                     KVA_OK);
    assert_int_equal(list.count, count);
    params.stop_tokens = count / 100;
    part.pieces = 0;
    list.count = 0;
    assert_int_equal(kva_tokenizer_encode(tokenizer, text, TEXT_BYTES, &params, &list, &err),
                     KVA_ETOOBIG);
    assert_int_equal(list.count, 0);
    assert_true(part.pieces > 0 && part.pieces < all.pieces / 50);
    /* In one piece of its own, too: there the merges come first. */
    atomic_bool cancelled = true;
    part.merges = 0;
    params = (struct kva_encode_params){.work = &part, .cancelled = &cancelled};
    fill(text, "a");
    assert_int_equal(kva_tokenizer_encode(tokenizer, text, TEXT_BYTES, &params, &list, &err),
                     KVA_ECANCELLED);
    assert_int_equal(list.count, 0);
    assert_true(part.merges < TEXT_BYTES / 8);
    kva_token_list_finish(&list);
    free(text);
    kva_tokenizer_destroy(tokenizer);
}

static void test_work__threads_share_a_tokenizer(void **state KVA_UNUSED)
{
    struct kva_tokenizer *tokenizer = fixture_case("byte_level_han");
    struct kva_buf text;
    struct job jobs[4];
    pthread_t threads[4];
    kva_buf_init(&text, 1u << 20);
    for (int i = 0; i < 2000; i++)
        kva_buf_printf(&text, "the ship %d passes, don't \xE4\xBB\x8A\xE5\xA4\xA9\n", i);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){tokenizer, text.data, text.length, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 1; i < 4; i++)
        assert_true(jobs[i].hash == jobs[0].hash && jobs[0].hash != FIXTURE_FNV_START);
    kva_buf_finish(&text);
    kva_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work__linear_synthetic),
        cmocka_unit_test(test_work__linear_published),
        cmocka_unit_test(test_work__catastrophic_pattern),
        cmocka_unit_test(test_work__tokens_max),
        cmocka_unit_test(test_work__ends_where_it_is_told_to),
        cmocka_unit_test(test_work__threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
