#include "tests/engine/model/checkpoint.h"

#include "base/log.h"
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARTS(...)  ((const char *const[]){__VA_ARGS__, NULL})
#define COUNT       12
#define SINGLE_FILE "model.safetensors"
#define INDEX_FILE  "model.safetensors.index.json"

/* The made-up Llama, one of its tensors replaced. */
static void write_changed(const struct checkpoint *checkpoint, size_t index,
                          struct made_tensor tensor)
{
    struct made_tensor tensors[COUNT];
    assert_int_equal(made_tensor_count, COUNT);
    memcpy(tensors, made_tensors, sizeof(tensors));
    tensors[index] = tensor;
    checkpoint_puts(checkpoint, "config.json", made_config);
    checkpoint_write_tensors(checkpoint, SINGLE_FILE, tensors, COUNT);
}

static void test_open__folder_and_files_that_are_not_there(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint, gone = {"/no/such/folder"};
    checkpoint_expect_failure(&gone, KVA_ENOTFOUND,
                              PARTS("/no/such/folder: cannot open the model's folder"));
    checkpoint_init(&checkpoint);
    checkpoint_expect_failure(&checkpoint, KVA_ENOTFOUND, PARTS("cannot open config.json"));
    checkpoint_puts(&checkpoint, "config.json", made_config);
    checkpoint_expect_failure(&checkpoint, KVA_ENOTFOUND,
                              PARTS("has neither model.safetensors nor model.safetensors.index"));
    checkpoint_puts(&checkpoint, "pytorch_model.bin", "x");
    checkpoint_expect_failure(&checkpoint, KVA_ENOTFOUND,
                              PARTS("its pytorch_model.bin cannot be read: save the model as"));
    checkpoint_puts(&checkpoint, SINGLE_FILE, "");
    checkpoint_expect_failure(&checkpoint, KVA_EFORMAT, PARTS("model.safetensors is empty"));
    checkpoint_finish(&checkpoint);
}

/* A fifo must neither be read nor waited for; a folder is not a file. */
static void test_open__only_regular_files(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint;
    char path[600];
    checkpoint_init(&checkpoint);
    checkpoint_path(&checkpoint, "config.json", path, sizeof(path));
    assert_int_equal(mkfifo(path, 0600), 0);
    checkpoint_expect_failure(&checkpoint, KVA_EFORMAT, PARTS("config.json is not a regular file"));
    remove(path);
    checkpoint_puts(&checkpoint, "config.json", made_config);
    checkpoint_path(&checkpoint, SINGLE_FILE, path, sizeof(path));
    assert_int_equal(mkdir(path, 0700), 0);
    checkpoint_expect_failure(&checkpoint, KVA_EFORMAT,
                              PARTS("model.safetensors is not a regular file"));
    checkpoint_finish(&checkpoint);
}

static void test_open__config_is_bounded(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint;
    size_t size = (1u << 20) + 1;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, ' ', size);
    memcpy(text, made_config, strlen(made_config));
    checkpoint_init(&checkpoint);
    checkpoint_write_llama(&checkpoint);
    checkpoint_write(&checkpoint, "config.json", text, size);
    checkpoint_expect_failure(&checkpoint, KVA_EFORMAT,
                              PARTS("config.json has 1048577 bytes, allowed are 1048576"));
    checkpoint_write(&checkpoint, "config.json", text, size - 1);
    checkpoint_puts(&checkpoint, "generation_config.json", "{\"temperature\":-1}");
    checkpoint_expect_failure(&checkpoint, KVA_EFORMAT,
                              PARTS("generation_config.json: temperature is -1, expected"));
    free(text);
    checkpoint_finish(&checkpoint);
}

static void test_open__names_the_tensor_that_is_wrong(void **state KVA_UNUSED)
{
    static const struct {
        size_t index;
        struct made_tensor tensor;
        enum kva_status status;
        const char *message;
    } cases[] = {
        {4,
         {"model.layers.0.self_attn.k_proj.weight", "F32", {8, 8}},
         KVA_EFORMAT,
         "tensor model.layers.0.self_attn.k_proj.weight has shape [8, 8], config.json wants [4, "
         "8]"},
        {0,
         {"model.embed_tokens.weight", "F32", {11, 8}},
         KVA_EFORMAT,
         "tensor model.embed_tokens.weight has shape [11, 8], config.json wants [10, 8]"},
        {1,
         {"model.norm.weight", "F32", {1, 8}},
         KVA_EFORMAT,
         "tensor model.norm.weight has shape [1, 8], config.json wants [8]"},
        {3,
         {"model.layers.0.self_attn.q_proj.weight", "F32", {64}},
         KVA_EFORMAT,
         "has shape [64], config.json wants [8, 8]"},
        {6,
         {"model.layers.0.self_attn.O_PROJ.weight", "F32", {8, 8}},
         KVA_EFORMAT,
         "has no tensor model.layers.0.self_attn.o_proj.weight, which LlamaForCausalLM needs"},
        {10,
         {"model.layers.0.mlp.down_proj.weight", "I8", {8, 12}},
         KVA_EUNSUPPORTED,
         "tensor model.layers.0.mlp.down_proj.weight is I8; supported are: F32, F16, BF16"},
        {10,
         {"model.layers.0.mlp.down_proj.weight", "f32", {8, 6}},
         KVA_EUNSUPPORTED,
         "tensor model.layers.0.mlp.down_proj.weight is f32; supported are"},
        {10,
         {"model.layers.0.mlp.down_proj.weight", "F32", {8, 11}},
         KVA_EFORMAT,
         "tensor model.layers.0.mlp.down_proj.weight has shape [8, 11], config.json wants [8, 12]"},
        {11,
         {"lm_head.weight", "F32", {9, 8}},
         KVA_EFORMAT,
         "tensor lm_head.weight has shape [9, 8], config.json wants [10, 8]"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct checkpoint checkpoint;
        checkpoint_init(&checkpoint);
        write_changed(&checkpoint, cases[i].index, cases[i].tensor);
        checkpoint_expect_failure(&checkpoint, cases[i].status,
                                  PARTS(checkpoint.dir, cases[i].message));
        checkpoint_finish(&checkpoint);
    }
}

static void test_open__quantised_weights_name_their_method(void **state KVA_UNUSED)
{
    static const char *const methods[][2] = {
        {"\"quant_method\":\"gptq\"", "quantised by GPTQ, which"},
        {"\"quant_method\":\"awq\"", "quantised by AWQ, which"},
        {"\"quant_method\":\"bitsandbytes\"", "quantised by bitsandbytes, which"},
        {"\"quant_method\":\"fp8\"", "quantised by FP8, which"},
        {"\"quant_method\":\"compressed-tensors\"", "quantised by compressed-tensors, which"},
        {"\"bits\":4", "quantised by a method without a name"},
    };
    struct checkpoint checkpoint;
    char config[1024];
    checkpoint_init(&checkpoint);
    write_changed(&checkpoint, 3,
                  (struct made_tensor){"model.layers.0.self_attn.q_proj.weight", "I8", {8, 8}});
    snprintf(config, sizeof(config), "{\"quantization_config\":{\"quant_method\":\"gptq\"},%s",
             made_config + 1);
    checkpoint_puts(&checkpoint, "config.json", config);
    checkpoint_expect_failure(&checkpoint, KVA_EUNSUPPORTED,
                              PARTS("quantised by GPTQ, which is not read: use a GGUF file or",
                                    "there is I8 tensor model.layers.0.self_attn.q_proj.weight"));
    /* What such folders really have: q_proj.qweight and its kin. */
    write_changed(&checkpoint, 3,
                  (struct made_tensor){"model.layers.0.self_attn.q_proj.qweight", "I32", {8, 8}});
    for (size_t i = 0; i < KVA_COUNT_OF(methods); i++) {
        snprintf(config, sizeof(config), "{\"quantization_config\":{%s},%s", methods[i][0],
                 made_config + 1);
        checkpoint_puts(&checkpoint, "config.json", config);
        checkpoint_expect_failure(&checkpoint, KVA_EUNSUPPORTED,
                                  PARTS(methods[i][1], "there is no tensor model.layers.0."));
    }
    checkpoint_finish(&checkpoint);
}

/* What no part of the model needs may have any format and any alignment. */
static void test_open__formats_count_only_where_needed(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint;
    struct made_tensor tensors[COUNT + 1];
    struct kva_model *model = NULL;
    struct kva_err err = {0};
    checkpoint_init(&checkpoint);
    memcpy(tensors, made_tensors, COUNT * sizeof(*tensors));
    tensors[COUNT] = (struct made_tensor){"model.rotary_emb.inv_freq", "I8", {3}};
    checkpoint_puts(&checkpoint, "config.json", made_config);
    checkpoint_write_tensors(&checkpoint, SINGLE_FILE, tensors, COUNT + 1);
    assert_int_equal(checkpoint_open(&checkpoint, &model, &err), KVA_OK);
    kva_model_close(model);
    checkpoint_finish(&checkpoint);
}

/* What a checkpoint has and nothing takes is said, with an example. */
static void test_open__unused_tensors_are_logged(void **state KVA_UNUSED)
{
    static const struct {
        const char *name, *want;
    } cases[] = {
        {"model.layers.0.self_attn.q_proj.bias",
         "1 tensors of the checkpoint are not used by LlamaForCausalLM, the first is "
         "model.layers.0.self_attn.q_proj.bias"},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", NULL},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct checkpoint checkpoint;
        struct made_tensor tensors[COUNT + 1];
        struct kva_model *model = NULL;
        struct kva_err err = {0};
        char text[1024] = "";
        FILE *log = tmpfile();
        assert_non_null(log);
        checkpoint_init(&checkpoint);
        memcpy(tensors, made_tensors, COUNT * sizeof(*tensors));
        tensors[COUNT] = (struct made_tensor){cases[i].name, "F32", {8}};
        checkpoint_puts(&checkpoint, "config.json", made_config);
        checkpoint_write_tensors(&checkpoint, SINGLE_FILE, tensors, COUNT + 1);
        kva_log_setup(fileno(log), KVA_LOG_WARN, KVA_LOG_TEXT);
        assert_int_equal(checkpoint_open(&checkpoint, &model, &err), KVA_OK);
        kva_log_setup(2, KVA_LOG_INFO, KVA_LOG_AUTO);
        rewind(log);
        size_t length = fread(text, 1, sizeof(text) - 1, log);
        if (cases[i].want)
            assert_non_null(strstr(text, cases[i].want));
        else
            assert_int_equal(length, 0);
        fclose(log);
        kva_model_close(model);
        checkpoint_finish(&checkpoint);
    }
}

static void test_open__alignment_of_elements(void **state KVA_UNUSED)
{
    /* A header whose length is odd shifts all tensors; one of even length suits 16 bits only. */
    static const struct {
        const char *dtype;
        size_t padding;
        enum kva_status status;
    } cases[] = {
        {"F32", 0, KVA_OK},      {"F32", 4, KVA_OK}, {"F32", 2, KVA_EFORMAT},
        {"F32", 1, KVA_EFORMAT}, {"F16", 2, KVA_OK}, {"BF16", 1, KVA_EFORMAT},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct checkpoint checkpoint;
        struct made_tensor tensors[COUNT];
        struct kva_buf file;
        memcpy(tensors, made_tensors, sizeof(tensors));
        for (size_t j = 0; j < COUNT; j++)
            tensors[j].dtype = cases[i].dtype;
        checkpoint_init(&checkpoint);
        checkpoint_puts(&checkpoint, "config.json", made_config);
        made_file(&file, tensors, COUNT, cases[i].padding);
        checkpoint_write(&checkpoint, SINGLE_FILE, file.data, file.length);
        kva_buf_finish(&file);
        if (cases[i].status) {
            checkpoint_expect_failure(&checkpoint, cases[i].status,
                                      PARTS("tensor model.embed_tokens.weight begins at byte",
                                            "which is not aligned for", cases[i].dtype));
        } else {
            struct kva_model *model = NULL;
            struct kva_err err = {0};
            assert_int_equal(checkpoint_open(&checkpoint, &model, &err), KVA_OK);
            kva_model_close(model);
        }
        checkpoint_finish(&checkpoint);
    }
}

/* Whether the config ties (absent, no, yes) and whether the file has an output matrix (no, the
 * embedding's equal, another one). */
static void test_open__tied_embeddings(void **state KVA_UNUSED)
{
    static const char *const heads[] = {"", "\"tie_word_embeddings\":false,",
                                        "\"tie_word_embeddings\":true,"};
    static const bool want_tied[3][3] = {
        {true, false, false}, {true, false, false}, {true, true, false}};
    kva_log_setup(2, KVA_LOG_OFF, KVA_LOG_TEXT);
    for (size_t i = 0; i < 3; i++) {
        for (size_t j = 0; j < 3; j++) {
            struct checkpoint checkpoint;
            struct kva_buf file;
            char config[1024];
            struct kva_model *model = NULL;
            struct kva_err err = {0};
            checkpoint_init(&checkpoint);
            snprintf(config, sizeof(config), "{%s%s", heads[i], made_config + 1);
            checkpoint_puts(&checkpoint, "config.json", config);
            made_file(&file, made_tensors, j == 0 ? COUNT - 1 : COUNT, 0);
            if (j == 1)
                memset(file.data + file.length - 320, 0, 320);
            checkpoint_write(&checkpoint, SINGLE_FILE, file.data, file.length);
            kva_buf_finish(&file);
            assert_int_equal(checkpoint_open(&checkpoint, &model, &err), KVA_OK);
            assert_int_equal(model->config.tied_embeddings, want_tied[i][j]);
            assert_int_equal(model->lm_head.data == model->embed.data, want_tied[i][j]);
            /* 664 parameters in all, 80 of them the output matrix. */
            assert_int_equal(model->parameter_count, want_tied[i][j] ? 584 : 664);
            kva_model_close(model);
            checkpoint_finish(&checkpoint);
        }
    }
    kva_log_setup(2, KVA_LOG_INFO, KVA_LOG_AUTO);
}

static void write_index(const struct checkpoint *checkpoint, const char *second_shard,
                        const char *extra_tensor)
{
    struct kva_buf text;
    kva_buf_init(&text, 1 << 16);
    kva_buf_puts(&text, "{\"weight_map\":{");
    if (extra_tensor)
        kva_buf_printf(&text, "\"%s\":\"one.safetensors\",", extra_tensor);
    for (size_t i = 0; i < COUNT; i++)
        kva_buf_printf(&text, "%s\"%s\":\"%s\"", i ? "," : "", made_tensors[i].name,
                       i < COUNT / 2 ? "one.safetensors" : second_shard);
    kva_buf_puts(&text, "}}");
    checkpoint_puts(checkpoint, INDEX_FILE, text.data);
    kva_buf_finish(&text);
}

static void test_open__shards(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint;
    struct kva_model *model = NULL;
    struct kva_err err = {0};
    char from[600], to[600];
    checkpoint_init(&checkpoint);
    checkpoint_puts(&checkpoint, "config.json", made_config);
    write_index(&checkpoint, "two.safetensors", "an.unused.tensor.that.is.nowhere");
    checkpoint_expect_failure(&checkpoint, KVA_ENOTFOUND,
                              PARTS("2 of the 2 shards", "one.safetensors", "two.safetensors"));
    checkpoint_write_tensors(&checkpoint, "one.safetensors", made_tensors, COUNT / 2);
    checkpoint_expect_failure(&checkpoint, KVA_ENOTFOUND,
                              PARTS("1 of the 2 shards", "are missing: two.safetensors"));

    /* Download caches keep files elsewhere and link them into the folder. */
    checkpoint_write_tensors(&checkpoint, "blob", made_tensors + COUNT / 2, COUNT / 2);
    checkpoint_path(&checkpoint, "blob", from, sizeof(from));
    checkpoint_path(&checkpoint, "two.safetensors", to, sizeof(to));
    assert_int_equal(symlink(from, to), 0);
    assert_int_equal(checkpoint_open(&checkpoint, &model, &err), KVA_OK);
    assert_int_equal(model->parameter_count, 664);
    kva_model_close(model);

    checkpoint_write_tensors(&checkpoint, "two.safetensors", made_tensors + COUNT / 2,
                             COUNT / 2 - 1);
    checkpoint_expect_failure(
        &checkpoint, KVA_EFORMAT,
        PARTS("says that tensor lm_head.weight is in two.safetensors, which"));
    checkpoint_puts(&checkpoint, "two.safetensors", "version https://git-lfs.github.com/spec/v1");
    checkpoint_expect_failure(&checkpoint, KVA_EFORMAT,
                              PARTS("two.safetensors: header of", "is it a safetensors file?"));
    checkpoint_finish(&checkpoint);
}

static void test_open__shards_outside_the_folder_are_refused(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint;
    checkpoint_init(&checkpoint);
    checkpoint_puts(&checkpoint, "config.json", made_config);
    checkpoint_write_tensors(&checkpoint, "one.safetensors", made_tensors, COUNT);
    write_index(&checkpoint, "../one.safetensors", NULL);
    checkpoint_expect_failure(&checkpoint, KVA_EFORMAT,
                              PARTS("shard name '../one.safetensors' is not a plain file name"));
    checkpoint_finish(&checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open__folder_and_files_that_are_not_there),
        cmocka_unit_test(test_open__only_regular_files),
        cmocka_unit_test(test_open__config_is_bounded),
        cmocka_unit_test(test_open__names_the_tensor_that_is_wrong),
        cmocka_unit_test(test_open__quantised_weights_name_their_method),
        cmocka_unit_test(test_open__formats_count_only_where_needed),
        cmocka_unit_test(test_open__unused_tensors_are_logged),
        cmocka_unit_test(test_open__alignment_of_elements),
        cmocka_unit_test(test_open__tied_embeddings),
        cmocka_unit_test(test_open__shards),
        cmocka_unit_test(test_open__shards_outside_the_folder_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
