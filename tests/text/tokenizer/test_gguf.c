/* Tokenizers of GGUF files: the same ids as the tokenizer.json that they were made of, small ones
 * that show each field, and what is refused. */
#include "tests/gguf/writer.h"
#include "tests/text/tokenizer/fixtures.h"

enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

static enum kva_status try_load(struct gguf_writer *writer, struct kva_tokenizer **ret,
                                struct kva_err *err)
{
    struct kva_buf bytes;
    struct kva_gguf gguf;
    gguf_writer_write(writer, &bytes);
    if (kva_gguf_init(&gguf, bytes.data, bytes.length, "made.gguf", err))
        fail_msg("%s", err->message);
    enum kva_status status = kva_tokenizer_load_gguf(&gguf, ret, err);
    kva_gguf_finish(&gguf);
    kva_buf_finish(&bytes);
    gguf_writer_finish(writer);
    return status;
}

static struct kva_tokenizer *load(struct gguf_writer *writer)
{
    struct kva_err err = {.message = ""};
    struct kva_tokenizer *tokenizer = NULL;
    if (try_load(writer, &tokenizer, &err))
        fail_msg("%s", err.message);
    return tokenizer;
}

static void refuse(struct gguf_writer *writer, enum kva_status status, const char *part)
{
    struct kva_err err = {.message = ""};
    struct kva_tokenizer *tokenizer = NULL;
    enum kva_status got = try_load(writer, &tokenizer, &err);
    assert_null(tokenizer);
    if (got != status || !strstr(err.message, part) || !strstr(err.message, "made.gguf"))
        fail_msg("status %d, '%s', expected %d and '%s'", got, err.message, status, part);
}

/* ---- published ones -------------------------------------------------------------------------- */

struct vocabulary {
    const char **texts; /* [count] */
    int32_t *types;
    float *scores;
    size_t count;
};

static bool is_all_spaces(const char *text)
{
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i += 3)
        if (strncmp(text + i, "\xE2\x96\x81", 3) != 0)
            return false;
    return length > 3;
}

static void read_vocabulary(const cJSON *root, bool sentence_piece, struct vocabulary *ret)
{
    const cJSON *item;
    const cJSON *vocab = cJSON_GetObjectItem(cJSON_GetObjectItem(root, "model"), "vocab");
    const cJSON *added = cJSON_GetObjectItem(root, "added_tokens");
    size_t room = (size_t)(cJSON_GetArraySize(vocab) + cJSON_GetArraySize(added));
    ret->texts = calloc(room, sizeof(*ret->texts));
    ret->types = calloc(room, sizeof(*ret->types));
    ret->scores = calloc(room, sizeof(*ret->scores));
    assert_true(ret->texts && ret->types && ret->scores);
    cJSON_ArrayForEach(item, vocab)
    {
        size_t id = (size_t)item->valueint;
        ret->texts[id] = item->string;
        ret->types[id] = sentence_piece && strncmp(item->string, "<0x", 3) == 0 ? BYTE : NORMAL;
        /* Order of training, and runs of spaces, which were put in by hand, behind all. */
        ret->scores[id] = id < 259                      ? 0.0f
                          : is_all_spaces(item->string) ? -1e9f
                                                        : 259.0f - (float)id;
        ret->count = id + 1 > ret->count ? id + 1 : ret->count;
    }
    cJSON_ArrayForEach(item, added)
    {
        size_t id = (size_t)cJSON_GetObjectItem(item, "id")->valueint;
        bool special = cJSON_IsTrue(cJSON_GetObjectItem(item, "special"));
        ret->texts[id] = cJSON_GetObjectItem(item, "content")->valuestring;
        ret->types[id] = sentence_piece && id == 0 ? UNKNOWN : special ? CONTROL : USER_DEFINED;
        ret->count = id + 1 > ret->count ? id + 1 : ret->count;
    }
}

/* "a b" or ["a", "b"]. */
static void put_merges(struct gguf_writer *writer, const cJSON *merges)
{
    size_t count = (size_t)cJSON_GetArraySize(merges), at = 0;
    char **texts = calloc(count, sizeof(*texts));
    const cJSON *item;
    assert_non_null(texts);
    cJSON_ArrayForEach(item, merges)
    {
        const char *left = cJSON_GetStringValue(cJSON_IsArray(item) ? item->child : item);
        const char *right = cJSON_IsArray(item) ? item->child->next->valuestring : "";
        size_t size = strlen(left) + strlen(right) + 2;
        texts[at] = malloc(size);
        assert_non_null(texts[at]);
        snprintf(texts[at++], size, "%s%s%s", left, *right ? " " : "", right);
    }
    gguf_put_strings(writer, "tokenizer.ggml.merges", (const char *const *)texts, count);
    for (size_t i = 0; i < count; i++)
        free(texts[i]);
    free(texts);
}

/* The published tokenizer as a GGUF file would have it; NULL after saying that it is absent. */
static struct kva_tokenizer *converted(const char *name, const char *pre, uint32_t bos)
{
    char relative[256], path[1024];
    struct gguf_writer writer;
    struct vocabulary v = {.count = 0};
    snprintf(relative, sizeof(relative), "tokenizers/%s/tokenizer.json", name);
    if (!kva_test_data(relative, path, sizeof(path)))
        return NULL;
    cJSON *root = kva_test_json(path);
    read_vocabulary(root, !pre, &v);
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", pre ? "gpt2" : "llama");
    gguf_put_string(&writer, "tokenizer.ggml.pre", pre ? pre : "default");
    gguf_put_strings(&writer, "tokenizer.ggml.tokens", v.texts, v.count);
    gguf_put_i32s(&writer, "tokenizer.ggml.token_type", v.types, v.count);
    if (pre)
        put_merges(&writer, cJSON_GetObjectItem(cJSON_GetObjectItem(root, "model"), "merges"));
    else
        gguf_put_f32s(&writer, "tokenizer.ggml.scores", v.scores, v.count);
    gguf_put_u32(&writer, "tokenizer.ggml.bos_token_id", bos);
    struct kva_tokenizer *tokenizer = load(&writer);
    free(v.texts);
    free(v.types);
    free(v.scores);
    cJSON_Delete(root);
    return tokenizer;
}

static void same_ids(const char *name, const struct kva_tokenizer *a, const struct kva_tokenizer *b,
                     const char *text, size_t length, bool special)
{
    struct kva_token_list x = fixture_encode(a, text, length, false, special);
    struct kva_token_list y = fixture_encode(b, text, length, false, special);
    for (size_t i = 0; i < x.count || i < y.count; i++)
        if (i >= x.count || i >= y.count || x.ids[i] != y.ids[i])
            fail_msg("%s: id %zu of '%.80s' is another", name, i, text);
    struct kva_buf from_a, from_b;
    kva_buf_init(&from_a, 1u << 26);
    kva_buf_init(&from_b, 1u << 26);
    assert_int_equal(kva_tokenizer_decode(a, x.ids, x.count, false, &from_a), KVA_OK);
    assert_int_equal(kva_tokenizer_decode(b, y.ids, y.count, false, &from_b), KVA_OK);
    assert_int_equal(from_a.length, from_b.length);
    if (from_a.length)
        assert_memory_equal(from_a.data, from_b.data, from_a.length);
    kva_buf_finish(&from_a);
    kva_buf_finish(&from_b);
    kva_token_list_finish(&x);
    kva_token_list_finish(&y);
}

static void same_on_runs(const char *name, const struct kva_tokenizer *a,
                         const struct kva_tokenizer *b)
{
    char text[140];
    const char letters[] = {' ', 'a', '=', '-', '\n', '.', '0'};
    for (size_t i = 0; i < sizeof(letters); i++)
        for (size_t count = 1; count < 130; count++) {
            memset(text, letters[i], sizeof(text));
            text[0] = 'x';
            text[count + 1] = 'y';
            same_ids(name, a, b, text, count + 2, false);
        }
}

/* The texts that the reference was made of, runs of one letter, and a megabyte of prose. */
static void test_gguf__published_equal_their_json(void **state KVA_UNUSED)
{
    static const struct {
        const char *name, *pre;
        uint32_t bos;
        bool spaces;  /* its JSON treats a space at the start as GGUF's reader does */
        bool special; /* and special tokens */
    } cases[] = {
        {"gpt2", "gpt-2", 50256, true, true},     {"llama3", "llama-bpe", 128000, true, true},
        {"qwen2.5", "qwen2", 151643, true, true}, {"llama2", NULL, 1, true, false},
        {"mistral", NULL, 1, false, false},
    };
    cJSON *reference = fixture_source(FIXTURE_REFERENCE);
    char path[1024];
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        const char *name = cases[i].name;
        struct kva_tokenizer *a = converted(name, cases[i].pre, cases[i].bos);
        struct kva_tokenizer *b = a ? fixture_published(name) : NULL;
        unsigned count = 0;
        const cJSON *item;
        if (!a)
            continue;
        cJSON_ArrayForEach(item, cJSON_GetObjectItem(reference, "texts"))
        {
            const char *text = cJSON_GetStringValue(item);
            if (!text ||
                (!cases[i].spaces && (text[0] == ' ' || strncmp(text, "\xE2\x96\x81", 3) == 0)))
                continue;
            same_ids(name, a, b, text, strlen(text), cases[i].special);
            count++;
        }
        assert_true(count > 100);
        same_on_runs(name, a, b);
        if (kva_test_data("text/tinyshakespeare/input.txt", path, sizeof(path))) {
            size_t length = 0;
            char *text = kva_test_read(path, &length);
            same_ids(name, a, b, text, length, false);
            free(text);
        }
        printf("%s: %u texts equal\n", name, count);
        kva_tokenizer_destroy(a);
        kva_tokenizer_destroy(b);
    }
    cJSON_Delete(reference);
}

/* What llama.cpp makes of its own vocabularies. */
static void test_gguf__equals_published_vectors(void **state KVA_UNUSED)
{
    static const struct {
        const char *file, *name, *pre;
        uint32_t bos;
    } cases[] = {
        {"llamacpp_ggml-vocab-gpt-2.json", "gpt2", "gpt-2", 50256},
        {"llamacpp_ggml-vocab-llama-bpe.json", "llama3", "llama-bpe", 128000},
        {"llamacpp_ggml-vocab-qwen2.json", "qwen2.5", "qwen2", 151643},
        {"llamacpp_ggml-vocab-llama-spm.json", "llama2", NULL, 1},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char relative[256], path[1024];
        unsigned count = 0;
        snprintf(relative, sizeof(relative), "tokenizers/vectors/%s", cases[i].file);
        if (!kva_test_data(relative, path, sizeof(path)))
            continue;
        struct kva_tokenizer *tokenizer = converted(cases[i].name, cases[i].pre, cases[i].bos);
        assert_non_null(tokenizer);
        cJSON *root = kva_test_json(path);
        const cJSON *item;
        cJSON_ArrayForEach(item, cJSON_GetObjectItem(root, "cases"))
        {
            const char *text = kva_test_text(item, "text");
            const cJSON *want = cJSON_GetObjectItem(item, "ids"), *id;
            struct kva_token_list list = fixture_encode(tokenizer, text, strlen(text), false, true);
            size_t at = 0;
            assert_int_equal(list.count, cJSON_GetArraySize(want));
            cJSON_ArrayForEach(id, want) assert_int_equal(list.ids[at++], id->valueint);
            kva_token_list_finish(&list);
            count++;
        }
        printf("%u texts equal in %s\n", count, cases[i].file);
        cJSON_Delete(root);
        kva_tokenizer_destroy(tokenizer);
    }
}

/* ---- small ones ------------------------------------------------------------------------------ */

/* Byte-level BPE: letters, "ab", and tokens of each type. */
static void put_small(struct gguf_writer *writer, const char *pre)
{
    const char *const tokens[] = {"a", "b", "1", "\xC4\xA0", "ab", "<s>", "<u>", "<pad>", "11"};
    const int32_t types[] = {1, 1, 1, 1, 1, CONTROL, USER_DEFINED, UNUSED, 1};
    const char *const merges[] = {"a b", "1 1"};
    gguf_writer_init(writer);
    gguf_put_string(writer, "tokenizer.ggml.model", "gpt2");
    if (pre)
        gguf_put_string(writer, "tokenizer.ggml.pre", pre);
    gguf_put_strings(writer, "tokenizer.ggml.tokens", tokens, 9);
    gguf_put_i32s(writer, "tokenizer.ggml.token_type", types, 9);
    gguf_put_strings(writer, "tokenizer.ggml.merges", merges, 2);
    gguf_put_u32(writer, "tokenizer.ggml.bos_token_id", 5);
}

static void check(const struct kva_tokenizer *tokenizer, const char *text, bool add, bool special,
                  const char *want)
{
    char got[256] = "";
    struct kva_token_list list = fixture_encode(tokenizer, text, strlen(text), add, special);
    for (size_t i = 0; i < list.count; i++)
        snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%d", i ? " " : "", list.ids[i]);
    assert_string_equal(got, want);
    kva_token_list_finish(&list);
}

static void test_gguf__token_types_and_bos(void **state KVA_UNUSED)
{
    struct gguf_writer writer;
    put_small(&writer, "gpt-2");
    struct kva_tokenizer *tokenizer = load(&writer);
    check(tokenizer, "ab a<s>b<u>", true, true, "4 3 0 5 1 6");
    /* Control tokens are text unless they are asked for, user-defined ones are not. */
    check(tokenizer, "a<u>b", false, false, "0 6 1");
    assert_true(kva_tokenizer_is_special(tokenizer, 5));
    assert_false(kva_tokenizer_is_special(tokenizer, 6));
    assert_null(kva_tokenizer_token_string(tokenizer, 7, NULL));
    assert_int_equal(kva_tokenizer_bos(tokenizer), 5);
    assert_int_equal(kva_tokenizer_eos(tokenizer), -1);
    kva_tokenizer_destroy(tokenizer);
    put_small(&writer, "gpt-2");
    gguf_put_bool(&writer, "tokenizer.ggml.add_bos_token", true);
    gguf_put_bool(&writer, "tokenizer.ggml.add_eos_token", true);
    gguf_put_i32s(&writer, "tokenizer.ggml.eos_token_ids", (const int32_t[]){6, 5}, 2);
    gguf_put_u32(&writer, "tokenizer.ggml.eos_token_id", 6);
    tokenizer = load(&writer);
    check(tokenizer, "a", true, false, "5 0 6");
    check(tokenizer, "a", false, false, "0");
    kva_tokenizer_destroy(tokenizer);
    /* Llama 3's begin with BOS unless the file says otherwise. */
    put_small(&writer, "llama-bpe");
    tokenizer = load(&writer);
    check(tokenizer, "a", true, false, "5 0");
    kva_tokenizer_destroy(tokenizer);
}

/* Words and letters of the vocabulary that somebody declared special, or added again: merges go
 * through them all the same. */
static void test_gguf__merges_go_through_added_tokens(void **state KVA_UNUSED)
{
    const char *const tokens[] = {"a", "b", "ab", "abb", "!", "!!", "<pad>", "<pad>"};
    const int32_t types[] = {1, UNUSED, USER_DEFINED, 1, CONTROL, 1, UNUSED, UNUSED};
    const char *const merges[] = {"a b", "ab b", "! !"};
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_string(&writer, "tokenizer.ggml.pre", "gpt-2");
    gguf_put_strings(&writer, "tokenizer.ggml.tokens", tokens, 8);
    gguf_put_i32s(&writer, "tokenizer.ggml.token_type", types, 8);
    gguf_put_strings(&writer, "tokenizer.ggml.merges", merges, 3);
    struct kva_tokenizer *tokenizer = load(&writer);
    check(tokenizer, "abb!!", false, true, "2 1 4 4");
    check(tokenizer, "aab!!!", false, false, "0 2 5 4");
    assert_true(kva_tokenizer_is_special(tokenizer, 4));
    assert_false(kva_tokenizer_is_special(tokenizer, 2));
    assert_null(kva_tokenizer_token_string(tokenizer, 6, NULL));
    kva_tokenizer_destroy(tokenizer);
}

static void test_gguf__pre_tokenizers_differ(void **state KVA_UNUSED)
{
    static const struct {
        const char *pre, *ids;
    } cases[] = {
        {"gpt-2", "8 2"},     {"smollm", "2 2 2"}, {"qwen2", "2 2 2"},
        {"llama-bpe", "8 2"}, {"default", "8 2"},  {NULL, "8 2"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct gguf_writer writer;
        put_small(&writer, cases[i].pre);
        struct kva_tokenizer *tokenizer = load(&writer);
        check(tokenizer, "111", false, false, cases[i].ids);
        kva_tokenizer_destroy(tokenizer);
    }
}

/* Of all neighbours that a splitter may part there is a token, and two that no merge makes. */
static void put_neighbours(struct gguf_writer *writer, const char *pre)
{
    const char *const tokens[] = {"a",   "A",  "1",  "!",        "$",   "\xC4\xA0",  "aA",
                                  "Aa",  "11", "!$", "\xC4\x8A", "<s>", "!\xC4\x8A", "\xC4\xA0\x61",
                                  "AaA", "AAa"};
    const char *const merges[] = {"a A", "A a", "1 1", "! $", "! \xC4\x8A", "\xC4\xA0 a"};
    const int32_t types[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, CONTROL, 1, 1, 1, 1};
    gguf_writer_init(writer);
    gguf_put_string(writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_string(writer, "tokenizer.ggml.pre", pre);
    gguf_put_strings(writer, "tokenizer.ggml.tokens", tokens, 16);
    gguf_put_i32s(writer, "tokenizer.ggml.token_type", types, 16);
    gguf_put_strings(writer, "tokenizer.ggml.merges", merges, 6);
    gguf_put_u32(writer, "tokenizer.ggml.bos_token_id", 11);
}

static void test_gguf__pre_tokenizers_split(void **state KVA_UNUSED)
{
    static const char *const texts[] = {"aA", "AaA", "AAa", "11", "!\n", "!$", "  a"};
    static const struct {
        const char *pre, *ids[KVA_COUNT_OF(texts)];
        bool bos;
    } cases[] = {
        {"llama-bpe", {"6", "14", "15", "8", "12", "9", "5 13"}, true},
        {"smaug-bpe", {"6", "1 6", "1 7", "8", "12", "9", "5 13"}, false},
        {"tekken", {"0 1", "7 1", "15", "2 2", "12", "9", "5 13"}, true},
        {"deepseek-llm", {"6", "1 6", "1 7", "2 2", "3 10", "9", "5 13"}, false},
        {"deepseek-coder", {"6", "1 6", "1 7", "2 2", "3 10", "3 4", "5 13"}, false},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct gguf_writer writer;
        put_neighbours(&writer, cases[i].pre);
        struct kva_tokenizer *tokenizer = load(&writer);
        for (size_t j = 0; j < KVA_COUNT_OF(texts); j++)
            check(tokenizer, texts[j], false, false, cases[i].ids[j]);
        check(tokenizer, "a", true, false, cases[i].bos ? "11 0" : "0");
        kva_tokenizer_destroy(tokenizer);
    }
}

/* SentencePiece: of "abc" the pair whose token scores higher is joined, not the one that stands
 * first, and what has no token becomes bytes. */
static void put_pieces(struct gguf_writer *writer)
{
    const char *const tokens[] = {"<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "\xE2\x96\x81",
                                  "a",     "b",   "c",    "ab",     "bc",     "<u>"};
    const int32_t types[] = {UNKNOWN, CONTROL, CONTROL, BYTE, BYTE, 1, 1, 1, 1, 1, 1, USER_DEFINED};
    const float scores[] = {0, 0, 0, 0, 0, -1, -2, -3, -4, -9, -5, 0};
    gguf_writer_init(writer);
    gguf_put_string(writer, "tokenizer.ggml.model", "llama");
    gguf_put_strings(writer, "tokenizer.ggml.tokens", tokens, 12);
    gguf_put_i32s(writer, "tokenizer.ggml.token_type", types, 12);
    gguf_put_f32s(writer, "tokenizer.ggml.scores", scores, 12);
}

static void test_gguf__scores_order_merges(void **state KVA_UNUSED)
{
    struct gguf_writer writer;
    put_pieces(&writer);
    struct kva_tokenizer *tokenizer = load(&writer);
    check(tokenizer, "abc", true, false, "1 5 6 10");
    check(tokenizer, "ab c", false, false, "5 9 5 8");
    check(tokenizer, "\xC3\xA9z", false, false, "5 3 4 0");
    check(tokenizer, "a</s><u>", false, true, "5 6 2 11");
    assert_int_equal(kva_tokenizer_eos(tokenizer), 2);
    assert_int_equal(kva_tokenizer_unk(tokenizer), 0);
    kva_tokenizer_destroy(tokenizer);
    put_pieces(&writer);
    gguf_put_bool(&writer, "tokenizer.ggml.add_space_prefix", false);
    gguf_put_bool(&writer, "tokenizer.ggml.add_bos_token", false);
    tokenizer = load(&writer);
    check(tokenizer, "abc a", true, false, "6 10 5 6");
    kva_tokenizer_destroy(tokenizer);
}

/* Gemma, converted before the middle of 2024: marks of turns are normal pieces with a score, and
 * nothing says that no space comes before a text. */
static void test_gguf__old_gemma_s_marks_are_no_letters(void **state KVA_UNUSED)
{
    static const struct {
        const char *architecture, *ids;
    } cases[] = {{"gemma", "3 5 6 4"}, {"llama", "3 7 5 6 4"}};
    const char *const tokens[] = {"<unk>",         "<s>", "</s>", "<start_of_turn>",
                                  "<end_of_turn>", "a",   "b",    "\xE2\x96\x81"};
    const int32_t types[] = {UNKNOWN, CONTROL, CONTROL, 1, 1, 1, 1, 1};
    const float scores[8] = {0};
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct gguf_writer writer;
        gguf_writer_init(&writer);
        gguf_put_string(&writer, "general.architecture", cases[i].architecture);
        gguf_put_string(&writer, "tokenizer.ggml.model", "llama");
        gguf_put_strings(&writer, "tokenizer.ggml.tokens", tokens, 8);
        gguf_put_i32s(&writer, "tokenizer.ggml.token_type", types, 8);
        gguf_put_f32s(&writer, "tokenizer.ggml.scores", scores, 8);
        struct kva_tokenizer *tokenizer = load(&writer);
        check(tokenizer, "<start_of_turn>ab<end_of_turn>", false, true, cases[i].ids);
        assert_true(kva_tokenizer_is_special(tokenizer, 3));
        assert_true(kva_tokenizer_is_special(tokenizer, 4));
        kva_tokenizer_destroy(tokenizer);
    }
}

/* Runs of spaces that are added tokens, as converters wrote them before and after. */
static void test_gguf__runs_of_spaces_are_found(void **state KVA_UNUSED)
{
    const char *const runs[] = {"\xE2\x96\x81\xE2\x96\x81", "  "};
    for (size_t i = 0; i < KVA_COUNT_OF(runs); i++) {
        const char *const tokens[] = {"<unk>", "<s>", "</s>", "\xE2\x96\x81", "a", runs[i]};
        const int32_t types[] = {UNKNOWN, CONTROL, CONTROL, 1, 1, USER_DEFINED};
        const float scores[6] = {0};
        struct gguf_writer writer;
        gguf_writer_init(&writer);
        gguf_put_string(&writer, "general.architecture", "gemma");
        gguf_put_string(&writer, "tokenizer.ggml.model", "llama");
        gguf_put_strings(&writer, "tokenizer.ggml.tokens", tokens, 6);
        gguf_put_i32s(&writer, "tokenizer.ggml.token_type", types, 6);
        gguf_put_f32s(&writer, "tokenizer.ggml.scores", scores, 6);
        struct kva_tokenizer *tokenizer = load(&writer);
        check(tokenizer, "   a a", false, false, "5 3 4 3 4");
        size_t length = 0;
        assert_memory_equal(kva_tokenizer_token_bytes(tokenizer, 5, &length), "  ", 2);
        assert_int_equal(length, 2);
        kva_tokenizer_destroy(tokenizer);
    }
}

static void test_gguf__refuses(void **state KVA_UNUSED)
{
    struct gguf_writer writer;
    gguf_writer_init(&writer);
    refuse(&writer, KVA_ENOTFOUND, "tokenizer.ggml.model is missing");
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "t5");
    refuse(&writer, KVA_EUNSUPPORTED, "'t5' is not supported; supported are: gpt2, llama");
    put_small(&writer, "falcon3");
    refuse(&writer, KVA_EUNSUPPORTED,
           "'falcon3' is not supported; supported are: gpt-2, llama-bpe");
    put_small(&writer, "gpt-2");
    gguf_put_bool(&writer, "tokenizer.ggml.lowercase", true);
    refuse(&writer, KVA_EUNSUPPORTED, "tokenizer.ggml.lowercase is not known");
    put_small(&writer, "gpt-2");
    gguf_put_u32(&writer, "tokenizer.ggml.eos_token_id", 9);
    refuse(&writer, KVA_EFORMAT, "tokenizer.ggml.eos_token_id is 9, there are 9 tokens");
    put_small(&writer, "gpt-2");
    gguf_put_bool(&writer, "tokenizer.ggml.add_eos_token", true);
    refuse(&writer, KVA_EFORMAT, "tokenizer.ggml.eos_token_id does not name");
    put_pieces(&writer);
    gguf_put_bool(&writer, "tokenizer.ggml.remove_extra_whitespaces", true);
    refuse(&writer, KVA_EUNSUPPORTED, "remove_extra_whitespaces true is not supported");
    put_pieces(&writer);
    gguf_put_strings(&writer, "tokenizer.ggml.precompiled_charsmap", (const char *[]){"x"}, 1);
    refuse(&writer, KVA_EUNSUPPORTED, "precompiled_charsmap is not supported");
}

static void test_gguf__refuses_broken_vocabularies(void **state KVA_UNUSED)
{
    struct gguf_writer writer;
    const char *const twice[] = {"a", "a"}, *const two[] = {"a", "b"}, *const bad[] = {"\xFF"};
    const char *const odd[] = {"ab"};
    const int32_t types[] = {1}, high[] = {1, 9};
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "gpt2");
    refuse(&writer, KVA_EFORMAT, "tokenizer.ggml.tokens is missing");
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_strings(&writer, "tokenizer.ggml.tokens", two, 2);
    refuse(&writer, KVA_EFORMAT, "tokenizer.ggml.merges is missing");
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "llama");
    gguf_put_strings(&writer, "tokenizer.ggml.tokens", two, 2);
    refuse(&writer, KVA_EFORMAT, "tokenizer.ggml.scores is missing");
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_strings(&writer, "tokenizer.ggml.tokens", twice, 2);
    gguf_put_strings(&writer, "tokenizer.ggml.merges", two, 0);
    refuse(&writer, KVA_EFORMAT, "token 'a' has two ids, 0 and 1");
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_strings(&writer, "tokenizer.ggml.tokens", bad, 1);
    refuse(&writer, KVA_EFORMAT, "token 0 is not UTF-8");
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_strings(&writer, "tokenizer.ggml.tokens", two, 2);
    gguf_put_i32s(&writer, "tokenizer.ggml.token_type", types, 1);
    refuse(&writer, KVA_EFORMAT, "tokenizer.ggml.token_type has 1 entries, there are 2 tokens");
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_strings(&writer, "tokenizer.ggml.tokens", two, 2);
    gguf_put_i32s(&writer, "tokenizer.ggml.token_type", high, 2);
    refuse(&writer, KVA_EFORMAT, "that of token 1, which is no type");
    gguf_writer_init(&writer);
    gguf_put_string(&writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_strings(&writer, "tokenizer.ggml.tokens", two, 2);
    gguf_put_strings(&writer, "tokenizer.ggml.merges", odd, 1);
    refuse(&writer, KVA_EFORMAT, "merge 0 is not a pair");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf__published_equal_their_json),
        cmocka_unit_test(test_gguf__equals_published_vectors),
        cmocka_unit_test(test_gguf__token_types_and_bos),
        cmocka_unit_test(test_gguf__merges_go_through_added_tokens),
        cmocka_unit_test(test_gguf__pre_tokenizers_differ),
        cmocka_unit_test(test_gguf__pre_tokenizers_split),
        cmocka_unit_test(test_gguf__scores_order_merges),
        cmocka_unit_test(test_gguf__old_gemma_s_marks_are_no_letters),
        cmocka_unit_test(test_gguf__runs_of_spaces_are_found),
        cmocka_unit_test(test_gguf__refuses),
        cmocka_unit_test(test_gguf__refuses_broken_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
