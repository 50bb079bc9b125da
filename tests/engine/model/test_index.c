#include "tests/engine/model/checkpoint.h"

#include "engine/model/index.h"
#include "tests/cmocka.h"
#include "tests/data.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses an index; the files that it describes are not opened. */
static enum kva_status parse_text(const char *text, struct kva_model_files **ret,
                                  struct kva_err *err)
{
    cJSON *root = NULL;
    struct kva_model_files *files = calloc(1, sizeof(*files));
    assert_non_null(files);
    assert_int_equal(kva_model_json_parse(text, strlen(text), "index", &root, err), KVA_OK);
    enum kva_status status = kva_model_index_parse(root, "index", files, err);
    cJSON_Delete(root);
    if (status)
        kva_model_files_close(files);
    else
        *ret = files;
    return status;
}

static const struct kva_model_place *find(const struct kva_model_files *files, const char *tensor)
{
    for (size_t i = 0; i < files->place_count; i++)
        if (strcmp(files->places[i].tensor, tensor) == 0)
            return &files->places[i];
    return NULL;
}

static void test_index__published_files(void **state KVA_UNUSED)
{
    static const struct {
        const char *name;
        size_t tensors;
        unsigned layers;
        const char *last_shard;
    } cases[] = {
        {"configs/llama-3.1-8b-instruct", 739, 32, "model-00002-of-00002.safetensors"},
        {"configs/llama-3.2-3b-instruct", 254, 28, "model-00002-of-00002.safetensors"},
        {"configs/mistral-7b", 291, 32, "model-00002-of-00002.safetensors"},
    };
    char path[4096], tensor[128];
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_err err = {0};
        cJSON *root = NULL;
        struct kva_model_files *files = calloc(1, sizeof(*files));
        if (!kva_test_data(cases[i].name, path, sizeof(path))) {
            free(files);
            skip();
        }
        int dir = open(path, O_RDONLY | O_DIRECTORY);
        assert_true(dir >= 0);
        assert_int_equal(
            kva_model_json_read(dir, "model.safetensors.index.json", 1 << 20, &root, &err), KVA_OK);
        close(dir);
        assert_int_equal(kva_model_index_parse(root, "index", files, &err), KVA_OK);
        cJSON_Delete(root);
        assert_int_equal(files->place_count, cases[i].tensors);
        assert_int_equal(files->shard_count, 2);
        for (unsigned layer = 0; layer < cases[i].layers; layer++) {
            snprintf(tensor, sizeof(tensor), "model.layers.%u.self_attn.q_proj.weight", layer);
            assert_non_null(find(files, tensor));
        }
        const struct kva_model_place *last = find(files, "model.norm.weight");
        assert_non_null(last);
        assert_string_equal(files->shards[last->shard].name, cases[i].last_shard);
        kva_model_files_close(files);
    }
}

static void test_index__maps_tensors_to_shards(void **state KVA_UNUSED)
{
    struct kva_err err = {0};
    struct kva_model_files *files = NULL;
    assert_int_equal(parse_text("{\"metadata\":{\"total_size\":1},\"weight_map\":{\"c\":\"x.st\","
                                "\"a\":\"y.st\",\"b\":\"x.st\"}}",
                                &files, &err),
                     KVA_OK);
    assert_int_equal(files->shard_count, 2);
    assert_int_equal(files->place_count, 3);
    assert_string_equal(files->places[0].tensor, "a");
    assert_string_equal(files->shards[files->places[0].shard].name, "y.st");
    assert_string_equal(files->shards[files->places[1].shard].name, "x.st");
    assert_string_equal(files->shards[files->places[2].shard].name, "x.st");
    kva_model_files_close(files);
}

static void test_index__shard_names_stay_in_the_folder(void **state KVA_UNUSED)
{
    static const char *const names[] = {
        "",       ".",       "..",       "../model.safetensors", "a/b.safetensors", "/etc/x",
        "a\\\\b", ".hidden", "a\\u0001", "..\\u002fx",           "sub/../x",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        struct kva_err err = {0};
        struct kva_model_files *files = NULL;
        char text[256];
        snprintf(text, sizeof(text), "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        assert_int_equal(parse_text(text, &files, &err), KVA_EFORMAT);
        expect_message(&err, "is not a plain file name");
    }
    struct kva_err err = {0};
    struct kva_model_files *files = NULL;
    char text[512];
    snprintf(text, sizeof(text), "{\"weight_map\":{\"a\":\"%0129d\"}}", 0);
    assert_int_equal(parse_text(text, &files, &err), KVA_EFORMAT);
    expect_message(&err, "is not a plain file name of at most 128 bytes");
}

static void test_index__refuses_hostile_maps(void **state KVA_UNUSED)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{}", "weight_map names 0 tensors"},
        {"{\"weight_map\":{}}", "weight_map names 0 tensors"},
        {"{\"weight_map\":[]}", "weight_map is a list, expected an object"},
        {"{\"weight_map\":{\"a\":1}}", "the shard of tensor a is not a string"},
        {"{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "names tensor a twice"},
        {"{\"weight_map\":{\"a\":\"x\"},\"weight_map\":{\"a\":\"x\"}}", "weight_map stands there"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_err err = {0};
        struct kva_model_files *files = NULL;
        assert_int_equal(parse_text(cases[i].text, &files, &err), KVA_EFORMAT);
        expect_message(&err, cases[i].message);
    }
}

static void test_index__shard_count_is_bounded(void **state KVA_UNUSED)
{
    for (unsigned count = 1024; count <= 1025; count++) {
        struct kva_err err = {0};
        struct kva_model_files *files = NULL;
        struct kva_buf text;
        kva_buf_init(&text, 1 << 20);
        kva_buf_puts(&text, "{\"weight_map\":{");
        for (unsigned i = 0; i < count; i++)
            kva_buf_printf(&text, "%s\"t%u\":\"s%u\"", i ? "," : "", i, i);
        kva_buf_puts(&text, "}}");
        assert_int_equal(parse_text(text.data, &files, &err), count > 1024 ? KVA_EFORMAT : KVA_OK);
        if (count > 1024)
            expect_message(&err, "more than the allowed 1024 shards");
        else
            kva_model_files_close(files);
        kva_buf_finish(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index__published_files),
        cmocka_unit_test(test_index__maps_tensors_to_shards),
        cmocka_unit_test(test_index__shard_names_stay_in_the_folder),
        cmocka_unit_test(test_index__refuses_hostile_maps),
        cmocka_unit_test(test_index__shard_count_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
