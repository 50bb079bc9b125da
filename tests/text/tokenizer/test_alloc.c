/* Every allocation fails once: an error comes back, nothing leaks and nothing else happens. */
#include "tests/alloc_guard.h"
#include "tests/text/tokenizer/fixtures.h"

static enum kva_status load_and_use(const char *json, const char *config)
{
    static const char text[] =
        "  the \xE4\xBB\x8A e\xCC\xA3\xCC\x81 <|end|> aaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \xFF";
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err = {.message = ""};
    struct kva_encode_params params = {.add_special = true, .parse_special = true};
    struct kva_token_list list;
    struct kva_buf out;
    enum kva_status status =
        kva_tokenizer_load_buffers(json, strlen(json), config, strlen(config), &tokenizer, &err);
    if (status) {
        assert_true(err.message[0] != '\0');
        return status;
    }
    kva_token_list_init(&list, 4096);
    kva_buf_init(&out, 4096);
    status = kva_tokenizer_encode(tokenizer, text, sizeof(text) - 1, &params, &list, &err);
    assert_true(status == KVA_OK || list.count == 0);
    if (!status)
        status = kva_tokenizer_decode(tokenizer, list.ids, list.count, false, &out);
    kva_buf_finish(&out);
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
    return status;
}

static void sweep(const cJSON *synthetic, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(cJSON_GetObjectItem(synthetic, "cases"), name);
    /* The vocabulary is cut to a few tokens: each of them is an allocation of cJSON. */
    cJSON *small = cJSON_Duplicate(item, true);
    cJSON_ReplaceItemInObject(
        small, "model",
        cJSON_Parse("{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,\"e\":2,\"<0xE4>\":3},"
                    "\"merges\":[\"a a\"],\"ignore_merges\":true}"));
    cJSON_ReplaceItemInObject(small, "added_tokens",
                              cJSON_Parse("[{\"id\":9,\"content\":\"<|end|>\",\"special\":true}]"));
    cJSON_ReplaceItemInObject(small, "post_processor", cJSON_CreateNull());
    char *json = cJSON_PrintUnformatted(small);
    cJSON_Delete(small);
    const char *config =
        "{\"eos_token\":\"<|end|>\",\"add_eos_token\":true,\"added_tokens_decoder\":{\"9\":"
        "{\"content\":\"<|end|>\",\"special\":true},\"10\":{\"content\":\"<n>\"}}}";
    assert_int_equal(load_and_use(json, config), KVA_OK);
    cJSON_Hooks hooks = {.malloc_fn = alloc_guard_malloc, .free_fn = free};
    cJSON_InitHooks(&hooks);
    long failed = 0;
    bool done = false;
    for (uint64_t at = 0; !done; at++) {
        alloc_guard_fail_at(at);
        enum kva_status status = load_and_use(json, config);
        done = alloc_guard_fail_none() == 0;
        /* Losing the cache only costs time; everything else is reported. */
        assert_true(!done || status == KVA_OK);
        failed += status != KVA_OK;
    }
    cJSON_InitHooks(NULL);
    assert_true(failed > 30);
    free(json);
}

static void test_alloc__sweep(void **state KVA_UNUSED)
{
    static const char *const names[] = {
        "byte_level_ignore_merges", "normalizer_strip", "spm",
        "metaspace_first_1",        "strip_tokens",     "normalizer_replace"};
    cJSON *synthetic = fixture_source(FIXTURE_SYNTHETIC);
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++)
        sweep(synthetic, names[i]);
    cJSON_Delete(synthetic);
}

typedef enum kva_status load_fn(const void *what, struct kva_tokenizer **ret, struct kva_err *err);

/* Loading, with each allocation failing once. What is loaded in spite of a failure, which may only
 * cost time, is whole: `text` has `count` tokens, of which the last one is `last`. */
static void sweep_load(load_fn *load, const void *what, const char *text, size_t count,
                       int32_t last)
{
    cJSON_Hooks hooks = {.malloc_fn = alloc_guard_malloc, .free_fn = free};
    cJSON_InitHooks(&hooks);
    bool done = false;
    uint64_t at = 0;
    for (; !done; at++) {
        struct kva_tokenizer *tokenizer = NULL;
        struct kva_err err = {.message = ""};
        alloc_guard_fail_at(at);
        enum kva_status status = load(what, &tokenizer, &err);
        done = alloc_guard_fail_none() == 0;
        assert_true(!done || status == KVA_OK);
        assert_int_equal(tokenizer != NULL, status == KVA_OK);
        assert_int_equal(err.message[0] == '\0', status == KVA_OK);
        if (status)
            continue;
        struct kva_token_list list = fixture_encode(tokenizer, text, strlen(text), false, true);
        assert_int_equal(list.count, count);
        assert_int_equal(list.ids[count - 1], last);
        kva_token_list_finish(&list);
        kva_tokenizer_destroy(tokenizer);
    }
    cJSON_InitHooks(NULL);
    assert_true(at > 60);
}

static enum kva_status load_path(const void *path, struct kva_tokenizer **ret, struct kva_err *err)
{
    return kva_tokenizer_load(path, ret, err);
}

/* The vocabularies of the fuzz target's corpus. */
static void test_alloc__gguf(void **state KVA_UNUSED)
{
    static const struct {
        const char *name, *text;
        size_t count;
        int32_t last;
    } cases[] = {{"vocab-smollm", "ab <s>11", 5, 2}, {"llama-spm-v2", "abc </s>", 4, 2}};
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char name[256], path[4096];
        snprintf(name, sizeof(name), "tests/fuzz/corpus/gguf/%s", cases[i].name);
        kva_test_source(name, path, sizeof(path));
        sweep_load(load_path, path, cases[i].text, cases[i].count, cases[i].last);
    }
}

#define FILE_OF(text)                                                                              \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }

/* Folders without tokenizer.json: a SentencePiece model of <unk>, a, b and ab, and GPT-2's files. */
static const struct kva_tokenizer_files folders[] = {
    {.model = FILE_OF("\x0A\x09\x0A\x05<unk>\x18\x02"
                      "\x0A\x03\x0A\x01"
                      "a\x0A\x03\x0A\x01"
                      "b\x0A\x04\x0A\x02"
                      "ab\x12\x02\x18\x02\x1A\x04\x18\x00\x20\x00"),
     .config = FILE_OF("{\"additional_special_tokens\":[\"<x>\"]}"),
     .added = FILE_OF("{\"<x>\":9}"),
     .specials = FILE_OF("{\"pad_token\":{\"content\":\"<x>\"}}")},
    {.vocab = FILE_OF("{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}"),
     .merges = FILE_OF("#version: 0.2\na b\n"),
     .added = FILE_OF("{\"<x>\":9}"),
     .model_config = FILE_OF("{\"model_type\":\"opt\"}")},
};

static enum kva_status load_files(const void *files, struct kva_tokenizer **ret,
                                  struct kva_err *err)
{
    return kva_tokenizer_load_files(files, ret, err);
}

static void test_alloc__folders(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < KVA_COUNT_OF(folders); i++)
        sweep_load(load_files, &folders[i], "ab<x>", 2, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc__sweep),
        cmocka_unit_test(test_alloc__gguf),
        cmocka_unit_test(test_alloc__folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
