/* Folders without tokenizer.json: the ids of the reference libraries, and what is refused.
 *
 * data/folders.json is made by make_folders.py. */
#include "tests/text/tokenizer/fixtures.h"

#include "base/buf.h"

#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURE_FOLDERS "tests/text/tokenizer/data/folders.json"

static const struct {
    const char *name;
    size_t offset;
} members[] = {
    {"tokenizer.json", offsetof(struct kva_tokenizer_files, json)},
    {"tokenizer.model", offsetof(struct kva_tokenizer_files, model)},
    {"vocab.json", offsetof(struct kva_tokenizer_files, vocab)},
    {"merges.txt", offsetof(struct kva_tokenizer_files, merges)},
    {"tokenizer_config.json", offsetof(struct kva_tokenizer_files, config)},
    {"added_tokens.json", offsetof(struct kva_tokenizer_files, added)},
    {"special_tokens_map.json", offsetof(struct kva_tokenizer_files, specials)},
    {"config.json", offsetof(struct kva_tokenizer_files, model_config)},
};

static struct kva_tokenizer_file *member(struct kva_tokenizer_files *files, const char *name)
{
    for (size_t i = 0; i < KVA_COUNT_OF(members); i++)
        if (strcmp(members[i].name, name) == 0)
            return (void *)((char *)files + members[i].offset);
    fail_msg("no file is called %s", name);
    return NULL;
}

static struct kva_tokenizer_files folder_files(const cJSON *folder)
{
    struct kva_tokenizer_files files = {.json = {NULL, 0}};
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(folder, "files"))
    {
        struct kva_tokenizer_file *file = member(&files, item->string);
        file->data = fixture_unhex(item->valuestring, &file->length);
    }
    return files;
}

static void free_files(struct kva_tokenizer_files *files)
{
    for (size_t i = 0; i < KVA_COUNT_OF(members); i++)
        free((char *)(uintptr_t)member(files, members[i].name)->data);
}

static struct kva_tokenizer *load(const struct kva_tokenizer_files *files, const char *name)
{
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err = {.message = ""};
    if (kva_tokenizer_load_files(files, &tokenizer, &err))
        fail_msg("%s: %s", name, err.message);
    return tokenizer;
}

static unsigned check_rows(const struct kva_tokenizer *tokenizer, const char *name,
                           const cJSON *texts, const char *rows, bool marks)
{
    const cJSON *item;
    unsigned count = 0;
    cJSON_ArrayForEach(item, texts)
    {
        size_t length;
        char got[16];
        char *text = fixture_unhex(item->valuestring, &length);
        struct kva_token_list list = fixture_encode(tokenizer, text, length, marks, marks);
        int32_t ids = (int32_t)list.count;
        uint64_t hash = fixture_fnv(FIXTURE_FNV_START, &ids, sizeof(ids));
        hash = fixture_fnv(hash, list.ids, list.count * sizeof(*list.ids));
        snprintf(got, sizeof(got), "%08x", fixture_fold(hash));
        if (strncmp(got, rows, 8) != 0)
            fail_msg("%s: text '%.*s' has other ids than the reference", name, (int)length, text);
        rows += strlen(rows) > 8 ? 9 : 8;
        kva_token_list_finish(&list);
        free(text);
        count++;
    }
    assert_string_equal(rows, "");
    return count;
}

static void test_folder__reference(void **state KVA_UNUSED)
{
    cJSON *root = fixture_source(FIXTURE_FOLDERS);
    const cJSON *folder;
    unsigned count = 0, texts = 0;
    cJSON_ArrayForEach(folder, cJSON_GetObjectItem(root, "folders"))
    {
        bool marks = !cJSON_IsTrue(cJSON_GetObjectItem(folder, "alone"));
        struct kva_tokenizer_files files = folder_files(folder);
        struct kva_tokenizer *tokenizer = load(&files, folder->string);
        texts += check_rows(tokenizer, folder->string,
                            cJSON_GetObjectItem(root, marks ? "marked" : "texts"),
                            cJSON_GetObjectItem(folder, "rows")->valuestring, marks);
        kva_tokenizer_destroy(tokenizer);
        free_files(&files);
        count++;
    }
    printf("%u texts equal in %u folders\n", texts, count);
    assert_true(count >= 3 && texts > 1000);
    cJSON_Delete(root);
}

/* The files of a folder of the fixture; the caller frees. */
static struct kva_tokenizer_files fixture_files(const char *name)
{
    cJSON *root = fixture_source(FIXTURE_FOLDERS);
    const cJSON *folder = cJSON_GetObjectItem(cJSON_GetObjectItem(root, "folders"), name);
    assert_non_null(folder);
    struct kva_tokenizer_files files = folder_files(folder);
    cJSON_Delete(root);
    return files;
}

static void test_folder__decodes(void **state KVA_UNUSED)
{
    static const char *const names[] = {"plain", "no_prefix", "llama", "gpt2", "opt", "qwen2"};
    const char text[] = "Don't say: Müller 12 今天 \xF0\x9F\x98\x80\n\n  two";
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        struct kva_tokenizer_files files = fixture_files(names[i]);
        struct kva_tokenizer *tokenizer = load(&files, names[i]);
        struct kva_token_list list = fixture_encode(tokenizer, text, strlen(text), true, true);
        struct kva_buf out;
        kva_buf_init(&out, 1u << 16);
        assert_int_equal(kva_tokenizer_decode(tokenizer, list.ids, list.count, true, &out), KVA_OK);
        kva_buf_append(&out, "", 1);
        assert_string_equal(out.data, text);
        kva_buf_finish(&out);
        kva_token_list_finish(&list);
        kva_tokenizer_destroy(tokenizer);
        free_files(&files);
    }
}

/* What goes without saying in tokenizer.model, and what the small files say. */
static void test_folder__special(void **state KVA_UNUSED)
{
    struct kva_tokenizer_files files = fixture_files("plain");
    struct kva_tokenizer *tokenizer = load(&files, "plain");
    assert_int_equal(kva_tokenizer_unk(tokenizer), 0);
    assert_int_equal(kva_tokenizer_bos(tokenizer), 1);
    assert_int_equal(kva_tokenizer_eos(tokenizer), 2);
    assert_int_equal(kva_tokenizer_pad(tokenizer), -1);
    assert_true(kva_tokenizer_is_special(tokenizer, 1));
    struct kva_token_list list = fixture_encode(tokenizer, "a", 1, true, true);
    assert_int_equal(list.ids[0], 1);
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
    free_files(&files);

    files = fixture_files("llama_added");
    tokenizer = load(&files, "llama_added");
    assert_int_equal(kva_tokenizer_pad(tokenizer), 480);
    assert_true(kva_tokenizer_is_special(tokenizer, 480));
    assert_false(kva_tokenizer_is_special(tokenizer, 481));
    assert_int_equal(kva_tokenizer_vocab_size(tokenizer), 482);
    kva_tokenizer_destroy(tokenizer);
    free_files(&files);

    files = fixture_files("opt");
    tokenizer = load(&files, "opt");
    assert_int_equal(kva_tokenizer_bos(tokenizer), 2);
    assert_int_equal(kva_tokenizer_pad(tokenizer), 1);
    assert_true(kva_tokenizer_is_special(tokenizer, 2));
    list = fixture_encode(tokenizer, "a", 1, true, true);
    assert_int_equal(list.ids[0], 2);
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
    free_files(&files);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void check_refused(const struct kva_tokenizer_files *files, enum kva_status want,
                          const char *words)
{
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err = {.message = ""};
    enum kva_status status = kva_tokenizer_load_files(files, &tokenizer, &err);
    if (status != want || !strstr(err.message, words))
        fail_msg("status %d, not %d; '%s' does not say '%s'", status, want, err.message, words);
    assert_null(tokenizer);
}

#define FILE_OF(text)                                                                              \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }

/* Fields of a message, and messages in it. */
#define UNK "\x0A\x0B\x0A\x05<unk>\x18\x02\x10\x00" /* a varint where a score is: left out */
#define LETTER                                                                                     \
    "\x0A\x03\x0A\x01"                                                                             \
    "a"
#define IDENTITY "\x1A\x02\x20\x00"
#define BPE      "\x12\x02\x18\x02"

static void test_folder__refuses_models(void **state KVA_UNUSED)
{
    static const struct {
        struct kva_tokenizer_file model;
        enum kva_status status;
        const char *words;
    } cases[] = {
        {FILE_OF("IQ== 0\nIg== 1\n"), KVA_EFORMAT,
         "tokenizer.model: it has no pieces: not a SentencePiece model"},
        {FILE_OF("\x0A\x7F"
                 "abc"),
         KVA_EFORMAT, "byte 2 begins no field"},
        {FILE_OF("\x08\x01"), KVA_EFORMAT, "another type"},
        {FILE_OF(BPE), KVA_EFORMAT, "has no pieces"},
        {FILE_OF(UNK "\x0A\x00" BPE), KVA_EFORMAT, "piece 1 is malformed or empty"},
        {FILE_OF(UNK "\x0A\x05\x0A\x01"
                     "a\x18\x07" BPE),
         KVA_EFORMAT, "piece 1 is of type 7"},
        {FILE_OF(UNK "\x0A\x05\x0A\x01"
                     "a\x18\x05" BPE),
         KVA_EUNSUPPORTED, "marked unused"},
        {FILE_OF(UNK "\x0A\x05\x0A\x01"
                     "a\x18\x02" BPE),
         KVA_EFORMAT, "are both unknown"},
        {FILE_OF(LETTER BPE), KVA_EFORMAT, "the unknown token is to be piece 0, and is -1"},
        {FILE_OF(UNK LETTER), KVA_EUNSUPPORTED, "of type unigram is not supported, only bpe is"},
        {FILE_OF(UNK LETTER "\x12\x02\x18\x04"), KVA_EUNSUPPORTED, "of type char"},
        {FILE_OF(UNK LETTER "\x12\x05\x18\x02\xC0\x01\x01"), KVA_EUNSUPPORTED,
         "treat_whitespace_as_suffix"},
        {FILE_OF(UNK LETTER BPE "\x1A\x0A\x0A\x04nfkc\x12\x02xx"), KVA_EUNSUPPORTED,
         "normalizer 'nfkc' is not supported"},
        {FILE_OF(UNK LETTER BPE "\x1A\x02\x28\x00"), KVA_EUNSUPPORTED, "escape_whitespaces"},
        {FILE_OF(UNK "\x0A\x03\x0A\x01\xFF" BPE), KVA_EFORMAT, "token 1 is not UTF-8"},
        {FILE_OF(UNK LETTER LETTER BPE), KVA_EFORMAT, "token 'a' has two ids"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        const struct kva_tokenizer_files files = {.model = cases[i].model};
        check_refused(&files, cases[i].status, cases[i].words);
    }
    const struct kva_tokenizer_files whole = {.model = FILE_OF(UNK LETTER BPE IDENTITY)};
    kva_tokenizer_destroy(load(&whole, "the smallest"));
}

static void test_folder__refuses_merges(void **state KVA_UNUSED)
{
    static const struct {
        struct kva_tokenizer_files files;
        enum kva_status status;
        const char *words;
    } cases[] = {
        {{.vocab = FILE_OF("{\"a\":0}")},
         KVA_ENOTFOUND,
         "lacks merges.txt, to which vocab.json belongs"},
        {{.merges = FILE_OF("a b\n")},
         KVA_ENOTFOUND,
         "lacks vocab.json, to which merges.txt belongs"},
        {{.config = FILE_OF("{}")},
         KVA_ENOTFOUND,
         "a tokenizer (tokenizer.json, tokenizer.model, or vocab.json with merges.txt)"},
        {{.vocab = FILE_OF("{\"a\":0}"), .merges = FILE_OF("#version: 0.2\n")},
         KVA_EUNSUPPORTED,
         "how texts are split is not known"},
        {{.vocab = FILE_OF("{\"a\":0}"),
          .merges = FILE_OF("\n"),
          .config = FILE_OF("{\"tokenizer_class\":\"XLMTokenizer\"}")},
         KVA_EUNSUPPORTED,
         "tokenizer_class 'XLMTokenizer'"},
        {{.vocab = FILE_OF("{\"a\":0}"),
          .merges = FILE_OF("\n"),
          .model_config = FILE_OF("{\"model_type\":\"t5\"}")},
         KVA_EUNSUPPORTED,
         "model_type 't5' does not tell"},
        {{.vocab = FILE_OF("{\"a\":0}"),
          .merges = FILE_OF("#version: 0.2\na b c\n"),
          .model_config = FILE_OF("{\"model_type\":\"opt\"}")},
         KVA_EFORMAT,
         "merges.txt: line 2 is not two tokens"},
        {{.vocab = FILE_OF("{\"a\":0}"),
          .merges = FILE_OF("a \xFF"),
          .model_config = FILE_OF("{\"model_type\":\"opt\"}")},
         KVA_EFORMAT,
         "merges.txt: has a NUL in it or is not UTF-8"},
        {{.vocab = FILE_OF("[]"),
          .merges = FILE_OF("\n"),
          .model_config = FILE_OF("{\"model_type\":\"opt\"}")},
         KVA_EFORMAT,
         "vocab.json: not one JSON object"},
        {{.vocab = FILE_OF("{\"a\":0}"),
          .merges = FILE_OF("\n"),
          .added = FILE_OF("{\"<pad>\":-1}"),
          .model_config = FILE_OF("{\"model_type\":\"opt\"}")},
         KVA_EFORMAT,
         "added_tokens.json: <pad>: -1 is not in [0, "},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++)
        check_refused(&cases[i].files, cases[i].status, cases[i].words);
}

/* ---- folders --------------------------------------------------------------------------------- */

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void remove_file(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    unlink(path);
}

static void check_lacks(const char *dir, const char *want)
{
    struct kva_buf out;
    kva_buf_init(&out, 4096);
    kva_tokenizer_folder_lacks(dir, &out);
    kva_buf_append(&out, "", 1);
    assert_string_equal(out.data, want);
    kva_buf_finish(&out);
}

static void test_folder__lacks(void **state KVA_UNUSED)
{
    static const char *const names[] = {"vocab.json", "merges.txt", "config.json"};
    char dir[] = "/tmp/kva_test_folder_XXXXXX";
    struct kva_tokenizer *tokenizer = NULL;
    struct kva_err err = {.message = ""};
    assert_non_null(mkdtemp(dir));
    check_lacks(dir,
                "a tokenizer (tokenizer.json, tokenizer.model, or vocab.json with merges.txt)");
    assert_int_equal(kva_tokenizer_load(dir, &tokenizer, &err), KVA_ENOTFOUND);
    assert_non_null(strstr(err.message, dir));
    put_file(dir, "vocab.json", "{\"a\":0,\"b\":1,\"ab\":2}");
    check_lacks(dir, "merges.txt, to which vocab.json belongs");
    put_file(dir, "merges.txt", "#version: 0.2\r\na b\r\n");
    check_lacks(dir, "");
    assert_int_equal(kva_tokenizer_load(dir, &tokenizer, &err), KVA_EUNSUPPORTED);
    put_file(dir, "config.json", "{\"model_type\":\"opt\"}");
    if (kva_tokenizer_load(dir, &tokenizer, &err))
        fail_msg("%s", err.message);
    struct kva_token_list list = fixture_encode(tokenizer, "ab", 2, false, false);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.ids[0], 2);
    kva_token_list_finish(&list);
    kva_tokenizer_destroy(tokenizer);
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++)
        remove_file(dir, names[i]);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder__reference),
        cmocka_unit_test(test_folder__decodes),
        cmocka_unit_test(test_folder__special),
        cmocka_unit_test(test_folder__refuses_models),
        cmocka_unit_test(test_folder__refuses_merges),
        cmocka_unit_test(test_folder__lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
