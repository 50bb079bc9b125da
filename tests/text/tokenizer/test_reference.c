/* Equal to the reference library: hashes of what it makes of many texts, and published ids. */
#include "tests/text/tokenizer/fixtures.h"

static unsigned texts_equal;

static void check_text(const struct kva_tokenizer *tokenizer, const char *name, const char *text,
                       size_t length, const char *encoded, const char *decoded)
{
    uint64_t hash = FIXTURE_FNV_START;
    struct kva_token_list list = {.ids = NULL};
    char got[16];
    for (int flags = 0; flags < 4; flags++) {
        kva_token_list_finish(&list);
        list = fixture_encode(tokenizer, text, length, flags & 1, flags & 2);
        int32_t count = (int32_t)list.count;
        hash = fixture_fnv(hash, &count, sizeof(count));
        hash = fixture_fnv(hash, list.ids, list.count * sizeof(*list.ids));
    }
    snprintf(got, sizeof(got), "%08x", fixture_fold(hash));
    if (strncmp(got, encoded, 8) != 0)
        fail_msg("%s: text '%.*s' has other ids than the reference", name, (int)length, text);
    hash = FIXTURE_FNV_START;
    for (int skip = 0; skip < 2; skip++) {
        struct kva_buf out;
        kva_buf_init(&out, 1u << 20);
        assert_int_equal(kva_tokenizer_decode(tokenizer, list.ids, list.count, skip, &out), KVA_OK);
        hash = fixture_fnv(hash, out.data, out.length);
        hash = fixture_fnv(hash, "", 1);
        kva_buf_finish(&out);
    }
    snprintf(got, sizeof(got), "%08x", fixture_fold(hash));
    if (*decoded != '-' && strncmp(got, decoded, 8) != 0)
        fail_msg("%s: text '%.*s' is decoded otherwise than by the reference", name, (int)length,
                 text);
    kva_token_list_finish(&list);
    texts_equal++;
}

static void check_all(const struct kva_tokenizer *tokenizer, const char *name, const cJSON *texts,
                      const char *rows)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, texts)
    {
        size_t length;
        char *text = fixture_unhex(item->valuestring, &length);
        const char *decoded = strchr(rows, ' ') + 1;
        check_text(tokenizer, name, text, length, rows, decoded);
        free(text);
        rows = strchr(decoded, ' ');
        rows = rows ? rows + 1 : "";
    }
    assert_string_equal(rows, "");
}

static void test_reference__synthetic(void **state KVA_UNUSED)
{
    cJSON *synthetic = fixture_source(FIXTURE_SYNTHETIC);
    cJSON *reference = fixture_source(FIXTURE_REFERENCE);
    const cJSON *rows = cJSON_GetObjectItem(reference, "synthetic");
    const cJSON *item;
    unsigned cases = 0;
    texts_equal = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(synthetic, "cases"))
    {
        char *json = fixture_case_json(synthetic, item);
        struct kva_tokenizer *tokenizer = fixture_load(json, NULL);
        check_all(tokenizer, item->string, cJSON_GetObjectItem(reference, "texts"),
                  cJSON_GetObjectItem(rows, item->string)->valuestring);
        kva_tokenizer_destroy(tokenizer);
        free(json);
        cases++;
    }
    assert_true(cases >= 50);
    printf("%u texts equal in %u synthetic tokenizers\n", texts_equal, cases);
    cJSON_Delete(synthetic);
    cJSON_Delete(reference);
}

static void test_reference__published(void **state KVA_UNUSED)
{
    cJSON *reference = fixture_source(FIXTURE_REFERENCE);
    const cJSON *item;
    texts_equal = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(reference, "published"))
    {
        struct kva_tokenizer *tokenizer = fixture_published(item->string);
        if (!tokenizer)
            continue;
        /* The ids of the reference are those of tokenizer.json alone; the configurations in the
         * test data change none of them. */
        check_all(tokenizer, item->string, cJSON_GetObjectItem(reference, "texts"),
                  item->valuestring);
        kva_tokenizer_destroy(tokenizer);
    }
    printf("%u texts equal in published tokenizers\n", texts_equal);
    cJSON_Delete(reference);
}

/* ---- published vectors ------------------------------------------------------------------------
 */

static void check_ids(const struct kva_tokenizer *tokenizer, const char *name, const cJSON *item,
                      bool add)
{
    const char *text = cJSON_GetObjectItem(item, "text")->valuestring;
    const cJSON *want = cJSON_GetObjectItem(item, "ids");
    struct kva_token_list list = fixture_encode(tokenizer, text, strlen(text), add, true);
    if ((int)list.count != cJSON_GetArraySize(want))
        fail_msg("%s: '%s' has %zu ids, not %d", name, text, list.count, cJSON_GetArraySize(want));
    size_t at = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, want)
    {
        if (list.ids[at] != id->valueint)
            fail_msg("%s: id %zu of '%s' is %d, not %d", name, at, text, list.ids[at],
                     id->valueint);
        at++;
    }
    kva_token_list_finish(&list);
}

static void check_vectors(const char *file, const char *tokenizer_name, bool add)
{
    char relative[256], path[1024];
    snprintf(relative, sizeof(relative), "tokenizers/vectors/%s", file);
    if (!kva_test_data(relative, path, sizeof(path)))
        return;
    struct kva_tokenizer *tokenizer = fixture_published(tokenizer_name);
    if (!tokenizer)
        return;
    cJSON *root = kva_test_json(path);
    unsigned count = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(root, "cases"))
    {
        /* cJSON ends the text of CONTROL_TOKENS at its U+0000. */
        const cJSON *name = cJSON_GetObjectItem(item, "case");
        if (cJSON_IsString(cJSON_GetObjectItem(item, "text_pair")) ||
            (name && strcmp(name->valuestring, "CONTROL_TOKENS") == 0))
            continue;
        check_ids(tokenizer, file, item, add);
        count++;
    }
    assert_true(count > 5);
    printf("%u texts equal in %s\n", count, file);
    cJSON_Delete(root);
    kva_tokenizer_destroy(tokenizer);
}

static void test_reference__vectors(void **state KVA_UNUSED)
{
    check_vectors("llamacpp_ggml-vocab-gpt-2.json", "gpt2", false);
    check_vectors("llamacpp_ggml-vocab-llama-bpe.json", "llama3", false);
    check_vectors("llamacpp_ggml-vocab-llama-spm.json", "llama2", false);
    check_vectors("llamacpp_ggml-vocab-qwen2.json", "qwen2.5", false);
    check_vectors("hf_Xenova_gpt2.json", "gpt2", true);
    check_vectors("hf_Xenova_llama3-tokenizer.json", "llama3", false);
    check_vectors("hf_Xenova_Qwen1.5-0.5B-Chat.json", "qwen2.5", true);
    check_vectors("hf_Xenova_llama-tokenizer.json", "llama2", true);
}

/* Mistral's own chat samples: the text is written with U+2581 for spaces; version 1 of the prompt
 * format is the one of this vocabulary. */
static void test_reference__mistral_sample(void **state KVA_UNUSED)
{
    char path[1024];
    const char *dir = "tokenizers/mistral/samples/no_tools";
    char name[256];
    snprintf(name, sizeof(name), "%s/text_v1.txt", dir);
    if (!kva_test_data(name, path, sizeof(path)))
        return;
    FILE *file = fopen(path, "rb");
    char spelled[8192];
    size_t length = fread(spelled, 1, sizeof(spelled), file);
    fclose(file);
    char text[8192];
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        bool space = length - i >= 3 && memcmp(spelled + i, "\xE2\x96\x81", 3) == 0;
        text[used++] = space ? ' ' : spelled[i];
        i += space ? 3 : 1;
    }
    while (used > 0 && text[used - 1] == '\n')
        used--;
    snprintf(name, sizeof(name), "%s/tokens_v1.json", dir);
    assert_non_null(kva_test_data(name, path, sizeof(path)));
    cJSON *root = kva_test_json(path);
    const cJSON *want = cJSON_GetObjectItem(root, "tokens");
    struct kva_tokenizer *tokenizer = fixture_published("mistral");
    assert_non_null(tokenizer);
    struct kva_token_list list = fixture_encode(tokenizer, text, used, false, true);
    assert_int_equal(list.count, cJSON_GetArraySize(want));
    size_t at = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, want) assert_int_equal(list.ids[at++], id->valueint);
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
    cJSON_Delete(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference__synthetic),
        cmocka_unit_test(test_reference__published),
        cmocka_unit_test(test_reference__vectors),
        cmocka_unit_test(test_reference__mistral_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
