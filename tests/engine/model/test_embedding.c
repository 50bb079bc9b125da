/* What modules.json and the pooling's config.json say, and which of it is not implemented. */
#include "engine/model/embedding.h"

#include "tests/cmocka.h"
#include "tests/engine/model/checkpoint.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULE(kind, path)                                                                         \
    "{\"idx\":0,\"name\":\"0\",\"path\":\"" path                                                   \
    "\",\"type\":\"sentence_transformers.models." kind "\"}"
#define TRANSFORMER MODULE("Transformer", "")
#define POOLING     MODULE("Pooling", "1_Pooling")
#define NORMALIZE   MODULE("Normalize", "2_Normalize")

/* As Qwen3-Embedding has it. */
#define LAST_TOKEN                                                                                 \
    "{\"word_embedding_dimension\":8,\"pooling_mode_cls_token\":false,"                            \
    "\"pooling_mode_mean_tokens\":false,\"pooling_mode_max_tokens\":false,"                        \
    "\"pooling_mode_mean_sqrt_len_tokens\":false,\"pooling_mode_weightedmean_tokens\":false,"      \
    "\"pooling_mode_lasttoken\":true,\"include_prompt\":true}"

struct files {
    const char *modules, *pooling; /* NULL: there is no such file */
};

/* A whole model with these files beside it. */
static enum kva_status open_with(const struct files *files, struct kva_model **ret,
                                 struct kva_err *err)
{
    struct checkpoint checkpoint;
    char path[600];
    checkpoint_init(&checkpoint);
    checkpoint_write_llama(&checkpoint);
    if (files->modules)
        checkpoint_puts(&checkpoint, "modules.json", files->modules);
    checkpoint_path(&checkpoint, "1_Pooling", path, sizeof(path));
    if (files->pooling) {
        assert_int_equal(mkdir(path, 0777), 0);
        checkpoint_puts(&checkpoint, "1_Pooling/config.json", files->pooling);
    }
    enum kva_status status = checkpoint_open(&checkpoint, ret, err);
    checkpoint_path(&checkpoint, "1_Pooling/config.json", path, sizeof(path));
    unlink(path);
    checkpoint_finish(&checkpoint);
    return status;
}

static void test_embedding__files_decide(void **state KVA_UNUSED)
{
    static const struct {
        struct files files;
        enum kva_model_pooling pooling;
        bool raw;
        const char *lacks;
    } cases[] = {
        {{NULL, NULL}, KVA_MODEL_POOLING_UNSAID, false, ""},
        {{NULL, LAST_TOKEN}, KVA_MODEL_POOLING_UNSAID, false, ""},
        {{"[]", NULL}, KVA_MODEL_POOLING_UNSAID, false, ""},
        {{"[" TRANSFORMER "]", NULL}, KVA_MODEL_POOLING_UNSAID, false, ""},
        {{"[" TRANSFORMER "," POOLING "," NORMALIZE "]", LAST_TOKEN},
         KVA_MODEL_POOLING_LAST,
         false,
         ""},
        {{"[" TRANSFORMER "," POOLING "]", LAST_TOKEN}, KVA_MODEL_POOLING_LAST, true, ""},
        {{"[" TRANSFORMER "," POOLING "," MODULE("Dropout", "") "]", LAST_TOKEN},
         KVA_MODEL_POOLING_LAST,
         true,
         ""},
        {{"[{\"type\":\"sentence_transformers.base.modules.Transformer\"},"
          "{\"type\":\"sentence_transformers.base.modules.Pooling\",\"path\":\"1_Pooling\"}]",
          "{\"pooling_mode\":\"lasttoken\"}"},
         KVA_MODEL_POOLING_LAST,
         true,
         ""},
        {{"[" TRANSFORMER "," POOLING "]", "{\"pooling_mode_mean_tokens\":true}"},
         KVA_MODEL_POOLING_MEAN,
         true,
         ""},
        {{"[" TRANSFORMER "," POOLING "]", "{}"}, KVA_MODEL_POOLING_MEAN, true, ""},
        {{"[" TRANSFORMER "," POOLING "]", "{\"pooling_mode\":\"mean\"}"},
         KVA_MODEL_POOLING_MEAN,
         true,
         ""},
        {{"[" TRANSFORMER "," POOLING "," NORMALIZE "]", "{\"pooling_mode_cls_token\":true}"},
         KVA_MODEL_POOLING_OTHER,
         false,
         "the pooling 'cls' (1_Pooling/config.json)"},
        {{"[" TRANSFORMER "," POOLING "]", "{\"pooling_mode_weightedmean_tokens\":true}"},
         KVA_MODEL_POOLING_OTHER,
         true,
         "the pooling 'weightedmean' (1_Pooling/config.json)"},
        {{"[" TRANSFORMER "," POOLING "]", "{\"pooling_mode\":\"median\"}"},
         KVA_MODEL_POOLING_OTHER,
         true,
         "the pooling 'median' (1_Pooling/config.json)"},
        {{"[" TRANSFORMER "," POOLING "]",
          "{\"pooling_mode_mean_tokens\":true,\"pooling_mode_max_tokens\":true}"},
         KVA_MODEL_POOLING_OTHER,
         true,
         "several poolings beside each other (1_Pooling/config.json)"},
        {{"[" TRANSFORMER "," POOLING "]", "{\"pooling_mode_mean_tokens\":false}"},
         KVA_MODEL_POOLING_OTHER,
         true,
         "no pooling (1_Pooling/config.json)"},
        {{"[" TRANSFORMER "," POOLING "]", NULL},
         KVA_MODEL_POOLING_OTHER,
         true,
         "a pooling whose 1_Pooling/config.json is missing"},
        {{"[" TRANSFORMER "," POOLING "," MODULE("Dense", "2_Dense") "," NORMALIZE "]", LAST_TOKEN},
         KVA_MODEL_POOLING_OTHER,
         false,
         "the module 'sentence_transformers.models.Dense' (modules.json)"},
        {{"[" TRANSFORMER "," NORMALIZE "," POOLING "]", LAST_TOKEN},
         KVA_MODEL_POOLING_OTHER,
         true,
         "the module 'sentence_transformers.models.Normalize' (modules.json)"},
        {{"[{\"type\":\"custom_st.Transformer\"}," POOLING "]", LAST_TOKEN},
         KVA_MODEL_POOLING_OTHER,
         true,
         "the module 'custom_st.Transformer' (modules.json)"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_model *model = NULL;
        struct kva_err err = {0};
        if (open_with(&cases[i].files, &model, &err))
            fail_msg("%s", err.message);
        const struct kva_embedding_defaults *got = &model->embedding;
        if (got->pooling != cases[i].pooling || got->raw != cases[i].raw ||
            strcmp(got->lacks, cases[i].lacks) != 0)
            fail_msg("%s: pooling %d, raw %d, lacks '%s'", cases[i].files.modules, got->pooling,
                     got->raw, got->lacks);
        kva_model_close(model);
    }
}

/* The model opens all the same, since it need not make vectors. */
static void test_embedding__wrong_files_are_named(void **state KVA_UNUSED)
{
    static const struct {
        struct files files;
        const char *message;
    } cases[] = {
        {{"{}", NULL}, "modules.json: the file is not a JSON list"},
        {{"[1]", NULL}, "modules.json: a module is not an object"},
        {{"[{\"type\":3}]", NULL}, "modules.json: type is 3, expected"},
        {{"[" MODULE("Pooling", "../other") "]", NULL},
         "modules.json: the pooling's path '../other' is not a plain folder name"},
        {{"[" MODULE("Pooling", "") "]", NULL}, "the pooling's path '' is not a plain"},
        {{"[" POOLING "]", "[]"}, "1_Pooling/config.json: the file is not a JSON object"},
        {{"[" POOLING "]", "{\"pooling_mode_lasttoken\":1}"},
         "1_Pooling/config.json: pooling_mode_lasttoken is 1, expected"},
        {{"[" POOLING "]", "{\"pooling_mode\":[\"mean\"]}"},
         "1_Pooling/config.json: pooling_mode is a list, expected"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_model *model = NULL;
        struct kva_err err = {0};
        assert_int_equal(open_with(&cases[i].files, &model, &err), KVA_OK);
        assert_int_equal(model->embedding.pooling, KVA_MODEL_POOLING_OTHER);
        assert_non_null(strstr(model->embedding.lacks, cases[i].message));
        kva_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding__files_decide),
        cmocka_unit_test(test_embedding__wrong_files_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
