/* test_alloc.c - opening a model with every single allocation failing in turn.
 *
 * Each round lets one more allocation succeed, until the open does. Leaks are the sanitizer's to
 * report; file descriptors and mappings are counted. */
#include "engine/model/packed.h"
#include "engine/model/skew.h"
#include "tests/alloc_guard.h"
#include "tests/engine/model/checkpoint.h"

#include "tests/cmocka.h"
#include "tests/data.h"
#include "tests/golden/golden.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned count_descriptors(void)
{
    unsigned count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir && readdir(dir))
        count++;
    if (dir)
        closedir(dir);
    return count;
}

static unsigned count_mappings(const char *part)
{
    char line[4096];
    unsigned count = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof(line), file))
        count += strstr(line, part) != NULL;
    if (file)
        fclose(file);
    return count;
}

/* `mapped` is in the names of the files that it maps. */
static void sweep(const char *path, const char *mapped, uint64_t refused_min)
{
    const struct kva_model_open_params params = {.path = path, .threads = 1, .prefetch = true};
    unsigned descriptors = count_descriptors();
    enum kva_status status = KVA_ENOMEM;
    uint64_t round = 0, refused = 0;
    for (; status == KVA_ENOMEM; round++) {
        struct kva_model *model = NULL;
        struct kva_err err = {0};
        alloc_guard_fail_at(round);
        status = kva_model_open(&params, &model, &err);
        refused += alloc_guard_fail_none();
        if (status == KVA_OK) {
            kva_model_close(model);
        } else {
            if (status != KVA_ENOMEM)
                fail_msg("allocation %u: status %d, '%s'", (unsigned)round, status, err.message);
            assert_null(model);
            if (!strstr(err.message, "compute threads"))
                expect_message(&err, "out of memory");
        }
        assert_int_equal(count_descriptors(), descriptors);
        assert_int_equal(count_mappings(mapped), 0);
    }
    assert_int_equal(status, KVA_OK);
    /* The last round had nothing left to refuse; every one before it had. */
    assert_int_equal(refused, round - 1);
    assert_true(refused > refused_min);
}

/* The same of putting the matrices into int8, which leaves the model as it was. */
static void test_alloc__packing_survives_every_failure(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint;
    checkpoint_init(&checkpoint);
    checkpoint_write_llama(&checkpoint);
    const struct kva_model_pack_params params = {
        .weights = KVA_WEIGHTS_INT8, .path = checkpoint.dir, .threads = 1};
    struct kva_model *model;
    struct kva_err err = {0};
    assert_int_equal(checkpoint_open(&checkpoint, &model, &err), KVA_OK);
    unsigned descriptors = count_descriptors();
    enum kva_status status = KVA_ENOMEM;
    uint64_t refused = 0;
    for (uint64_t round = 0; status == KVA_ENOMEM; round++) {
        assert_null(model->packed);
        assert_int_equal(model->lm_head.dtype, KVA_F32);
        alloc_guard_fail_at(round);
        status = kva_model_pack(model, &params, &err);
        refused += alloc_guard_fail_none();
        assert_int_equal(count_descriptors(), descriptors);
    }
    assert_int_equal(status, KVA_OK);
    assert_true(refused >= 3);
    kva_model_close(model);
    checkpoint_finish(&checkpoint);
}

/* The same of writing a skew, and of looking for it. */
static void test_alloc__skews_survive_every_failure(void **state KVA_UNUSED)
{
    struct checkpoint checkpoint;
    checkpoint_init(&checkpoint);
    checkpoint_write_llama(&checkpoint);
    const struct kva_skew_file_params params = {.path = checkpoint.dir, .threads = 1};
    struct kva_model *model;
    struct kva_skew *skew = NULL;
    struct kva_err err = {0};
    assert_int_equal(checkpoint_open(&checkpoint, &model, &err), KVA_OK);
    unsigned descriptors = count_descriptors();
    enum kva_status status[3] = {KVA_ENOMEM, KVA_ENOMEM, KVA_ENOMEM};
    uint64_t refused[3] = {0};
    for (int i = 0; i < 3; i++) {
        for (uint64_t round = 0; status[i] == KVA_ENOMEM; round++) {
            assert_true(i > 0 || !skew);
            assert_null(model->skew);
            alloc_guard_fail_at(round);
            status[i] = i == 0   ? kva_skew_create(1, 1, 4, &skew, &err)
                        : i == 1 ? kva_skew_write(skew, model, &params, &err)
                                 : kva_skew_load(model, &params, &err);
            refused[i] += alloc_guard_fail_none();
            assert_int_equal(count_descriptors(), descriptors);
            assert_int_equal(count_mappings(".skew"), 0);
        }
        assert_int_equal(status[i], KVA_OK);
    }
    assert_true(refused[0] >= 4 && refused[1] >= 1 && refused[2] >= 4);
    assert_non_null(model->skew);
    kva_skew_destroy(skew);
    kva_model_close(model);
    checkpoint_finish(&checkpoint);
}

static void test_alloc__open_survives_every_failure(void **state KVA_UNUSED)
{
    cJSON_Hooks hooks = {alloc_guard_malloc, free};
    cJSON_InitHooks(&hooks);
    /* The last has copies of fused tensors. */
    static const char *const families[] = {"qwen3_qk_norm", "llama_bias_sharded", "neox_parallel"};
    for (size_t i = 0; i < KVA_COUNT_OF(families); i++) {
        char path[4096];
        sweep(kva_golden_path(families[i], NULL, path, sizeof(path)), families[i], 100);
    }
    cJSON_InitHooks(NULL);
}

static void test_alloc__gguf_survives_every_failure(void **state KVA_UNUSED)
{
    static const char *const files[] = {"llama-yarn", "llama-factors", "qwen2", "neox"};
    cJSON_Hooks hooks = {alloc_guard_malloc, free};
    cJSON_InitHooks(&hooks);
    for (size_t i = 0; i < KVA_COUNT_OF(files); i++) {
        char name[256], path[4096];
        snprintf(name, sizeof(name), "tests/fuzz/corpus/gguf/%s", files[i]);
        sweep(kva_test_source(name, path, sizeof(path)), name, 25);
    }
    cJSON_InitHooks(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc__open_survives_every_failure),
        cmocka_unit_test(test_alloc__gguf_survives_every_failure),
        cmocka_unit_test(test_alloc__packing_survives_every_failure),
        cmocka_unit_test(test_alloc__skews_survive_every_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
