/* Synthetic checkpoints: what is written opens, holds what its seed says, and nothing else. */
#include "engine/model/synthetic.h"

#include "engine/model/config.h"
#include "tests/cmocka.h"
#include "tests/data.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static int make_folder(void **state KVA_UNUSED)
{
    snprintf(folder, sizeof(folder), "/tmp/kvahead-synthetic-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state KVA_UNUSED)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command);
}

static const char *path_of(const char *name)
{
    static char path[160];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static struct kva_synthetic_info write_model(const struct kva_synthetic_params *params)
{
    struct kva_synthetic_info info = {0};
    struct kva_err err = {.message = ""};
    if (kva_synthetic_write(params, &info, &err))
        fail_msg("%s", err.message);
    return info;
}

static struct kva_model *open_model(const char *path)
{
    struct kva_model *model = NULL;
    struct kva_err err = {.message = ""};
    const struct kva_model_open_params params = {.path = path};
    if (kva_model_open(&params, &model, &err))
        fail_msg("%s", err.message);
    return model;
}

static double deviation_of(const struct kva_tensor *tensor)
{
    double squares = 0;
    size_t count = (size_t)tensor->rows * tensor->cols;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)((const uint16_t *)tensor->data)[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof(value));
        squares += (double)value * value;
    }
    return sqrt(squares / (double)count);
}

static void test_synthetic__weights_are_of_the_shape_and_scale(void **state KVA_UNUSED)
{
    char path[160];
    snprintf(path, sizeof(path), "%s", path_of("tiny"));
    struct kva_synthetic_info info = write_model(&(struct kva_synthetic_params){
        .dir_path = path, .config_json = kva_shape_config("tiny"), .seed = 5, .threads = 2});
    struct kva_model *model = open_model(path);
    assert_int_equal(info.vocab_size, 512);
    assert_int_equal(info.shard_count, 1);
    assert_int_equal(info.weight_bytes, model->weight_bytes);
    assert_int_equal(info.parameter_count, model->parameter_count);
    assert_int_equal(model->config.context_max, 65536);
    assert_int_equal(model->config.eos_ids[0], 512 - KVA_SYNTHETIC_EOS_FROM_END);
    assert_int_equal(model->config.bos_id, 512 - KVA_SYNTHETIC_BOS_FROM_END);
    assert_true(fabs(deviation_of(&model->lm_head) * 8 - 1) < 0.05);
    for (uint32_t i = 0; i < model->config.layer_count; i++) {
        const struct kva_layer_tensors *layer = &model->layers[i];
        assert_true(deviation_of(&layer->attn_norm) == 1);
        assert_true(fabs(deviation_of(&layer->q) * 8 - 1) < 0.05);
        /* Two layers: what adds to the residual stream is half as large. */
        assert_true(fabs(deviation_of(&layer->o) * 16 - 1) < 0.05);
        assert_true(fabs(deviation_of(&layer->down) * sqrt(160) * 2 - 1) < 0.05);
    }
    assert_true(memcmp(model->layers[0].q.data, model->layers[1].q.data, 64) != 0);
    kva_model_close(model);
}

/* Of every family, shrunk to one layer and few positions: all that the family needs is there. */
static void test_synthetic__every_family_opens(void **state KVA_UNUSED)
{
    static const char *const configs[] = {
        "{\"architectures\":[\"Qwen2ForCausalLM\"],\"vocab_size\":300,\"hidden_size\":32,"
        "\"intermediate_size\":48,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"tie_word_embeddings\":true}",
        "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":300,\"hidden_size\":32,"
        "\"intermediate_size\":48,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":2,\"head_dim\":16,\"attention_bias\":true}",
        "{\"architectures\":[\"GemmaForCausalLM\"],\"vocab_size\":300,\"hidden_size\":32,"
        "\"intermediate_size\":48,\"num_hidden_layers\":3,\"num_attention_heads\":4,"
        "\"num_key_value_heads\":1,\"head_dim\":16,\"tie_word_embeddings\":true}",
        "{\"architectures\":[\"OPTForCausalLM\"],\"vocab_size\":300,\"hidden_size\":32,"
        "\"ffn_dim\":48,\"num_hidden_layers\":3,\"num_attention_heads\":4}",
        "{\"architectures\":[\"GPTNeoXForCausalLM\"],\"vocab_size\":300,\"hidden_size\":32,"
        "\"intermediate_size\":48,\"num_hidden_layers\":3,\"num_attention_heads\":4}",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(configs); i++) {
        char path[160], name[16];
        snprintf(name, sizeof(name), "family%zu", i);
        snprintf(path, sizeof(path), "%s", path_of(name));
        write_model(&(struct kva_synthetic_params){.dir_path = path,
                                                   .config_json = configs[i],
                                                   .layer_count = 1,
                                                   .context_max = 128,
                                                   .threads = 1});
        struct kva_model *model = open_model(path);
        assert_int_equal(model->config.layer_count, 1);
        assert_int_equal(model->config.context_max, 128);
        assert_int_equal(model->config.dtype, KVA_BF16);
        kva_model_close(model);
    }
}

/* The context is raised where nothing else says how many positions there are, whichever of its two
 * names the scaling has. */
static void test_synthetic__scaled_positions_are_as_many_as_the_config_says(void **state KVA_UNUSED)
{
    static const struct {
        const char *rope;
        uint32_t context;
    } cases[] = {
        {"\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}", 8192},
        {"\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,\"rope_theta\":10000}", 8192},
        {"\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":10000}", 4096},
        {"\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000}", 65536},
        {"\"rope_scaling\":null", 65536},
        {"\"rope_scaling\":{\"rope_type\":\"default\"}", 65536},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char path[160], name[16], config[512];
        snprintf(name, sizeof(name), "scaled%zu", i);
        snprintf(path, sizeof(path), "%s", path_of(name));
        snprintf(config, sizeof(config),
                 "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":300,\"hidden_size\":32,"
                 "\"intermediate_size\":48,\"num_hidden_layers\":1,\"num_attention_heads\":4,"
                 "\"max_position_embeddings\":2048,%s}",
                 cases[i].rope);
        write_model(
            &(struct kva_synthetic_params){.dir_path = path, .config_json = config, .threads = 1});
        struct kva_model *model = open_model(path);
        assert_int_equal(model->config.context_max, cases[i].context);
        kva_model_close(model);
    }
}

static void test_synthetic__files_depend_on_the_seed_alone(void **state KVA_UNUSED)
{
    static const struct {
        const char *name;
        uint64_t seed;
        uint32_t threads;
    } cases[] = {{"one", 9, 1}, {"four", 9, 4}, {"other", 10, 4}};
    char *data[3];
    size_t length[3];
    for (int i = 0; i < 3; i++) {
        char file[64], path[160];
        snprintf(path, sizeof(path), "%s", path_of(cases[i].name));
        /* Tensors of several pieces, the last one short. */
        write_model(&(struct kva_synthetic_params){
            .dir_path = path,
            .config_json = "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":9001,"
                           "\"hidden_size\":128,\"intermediate_size\":256,"
                           "\"num_hidden_layers\":1,\"num_attention_heads\":2}",
            .seed = cases[i].seed,
            .threads = cases[i].threads});
        snprintf(file, sizeof(file), "%s/model.safetensors", cases[i].name);
        data[i] = kva_test_read(path_of(file), &length[i]);
    }
    assert_int_equal(length[0], length[1]);
    assert_memory_equal(data[0], data[1], length[0]);
    assert_int_equal(length[0], length[2]);
    assert_memory_not_equal(data[0], data[2], length[0]);
    for (int i = 0; i < 3; i++)
        free(data[i]);
}

static void test_synthetic__shards_hold_the_same_weights(void **state KVA_UNUSED)
{
    char whole[160], shards[160];
    snprintf(whole, sizeof(whole), "%s", path_of("whole"));
    snprintf(shards, sizeof(shards), "%s", path_of("shards"));
    struct kva_synthetic_params params = {
        .dir_path = whole, .config_json = kva_shape_config("tiny"), .threads = 1};
    struct kva_synthetic_info info = write_model(&params);
    assert_int_equal(info.shard_count, 1);
    params.dir_path = shards;
    params.shard_bytes = 50000;
    info = write_model(&params);
    assert_true(info.shard_count > 3);
    struct kva_model *a = open_model(whole), *b = open_model(shards);
    assert_int_equal(a->weight_bytes, b->weight_bytes);
    assert_memory_equal(a->embed.data, b->embed.data, 512 * 64 * 2);
    assert_memory_equal(a->lm_head.data, b->lm_head.data, 512 * 64 * 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(a->layers[i].down.data, b->layers[i].down.data, 64 * 160 * 2);
    kva_model_close(a);
    kva_model_close(b);
}

static void check_refused(const struct kva_synthetic_params *params, enum kva_status want,
                          const char *words)
{
    struct kva_synthetic_info info;
    struct kva_err err = {.message = ""};
    enum kva_status status = kva_synthetic_write(params, &info, &err);
    if (status != want || !strstr(err.message, words))
        fail_msg("status %d, not %d; '%s' does not say '%s'", status, want, err.message, words);
}

static void test_synthetic__refusals_say_why(void **state KVA_UNUSED)
{
    char path[160], missing[160];
    snprintf(path, sizeof(path), "%s", path_of("refused"));
    snprintf(missing, sizeof(missing), "%s", path_of("no/such/place"));
    struct kva_synthetic_params params = {
        .dir_path = path, .config_json = kva_shape_config("tiny"), .threads = 1};
    write_model(&params);
    check_refused(&params, KVA_EINVAL, "has a model already");
    params.dir_path = missing;
    check_refused(&params, KVA_EIO, "cannot make the folder");
    params.config_json = "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":100,"
                         "\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":1,"
                         "\"num_attention_heads\":4}";
    check_refused(&params, KVA_EUNSUPPORTED, "a vocabulary of 100");
    params.config_json = "{\"architectures\":[\"MambaForCausalLM\"]}";
    check_refused(&params, KVA_EUNSUPPORTED, "MambaForCausalLM");
    params.config_json = "{";
    check_refused(&params, KVA_EFORMAT, "config.json");
}

static void test_synthetic__shapes_are_listed_and_valid(void **state KVA_UNUSED)
{
    struct kva_buf list;
    kva_buf_init(&list, 1024);
    kva_shape_list(&list);
    assert_non_null(strstr(list.data, "tinyllama-1.1b, llama2-7b"));
    assert_null(kva_shape_config("gpt-5"));

    char *rest = NULL;
    int count = 0;
    for (char *name = strtok_r(list.data, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
        const char *text = kva_shape_config(name);
        assert_non_null(text);
        cJSON *json = cJSON_Parse(text);
        struct kva_model_spec spec;
        struct kva_err err = {.message = ""};
        if (kva_model_spec_parse(json, NULL, &spec, &err))
            fail_msg("%s: %s", name, err.message);
        assert_int_equal(spec.config.heads % spec.config.kv_heads, 0);
        kva_model_config_finish(&spec.config);
        cJSON_Delete(json);
        count++;
    }
    assert_true(count >= 7);
    kva_buf_finish(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_synthetic__weights_are_of_the_shape_and_scale),
        cmocka_unit_test(test_synthetic__every_family_opens),
        cmocka_unit_test(test_synthetic__scaled_positions_are_as_many_as_the_config_says),
        cmocka_unit_test(test_synthetic__files_depend_on_the_seed_alone),
        cmocka_unit_test(test_synthetic__shards_hold_the_same_weights),
        cmocka_unit_test(test_synthetic__refusals_say_why),
        cmocka_unit_test(test_synthetic__shapes_are_listed_and_valid),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
