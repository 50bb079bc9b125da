/* A model's skew in its file: what is written is found again, and nothing else is. */
#include "engine/model/packed_file.h"
#include "engine/model/skew.h"
#include "tests/data.h"
#include "tests/engine/model/checkpoint.h"

#include "tests/cmocka.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME KVA_PACKED_FILE_NAME "skew"

/* Of the made-up Llama: one layer, one KV head. */
#define HEAD_DIM 4u

static int setup(void **state)
{
    struct checkpoint *checkpoint = malloc(sizeof(*checkpoint));
    assert_non_null(checkpoint);
    checkpoint_init(checkpoint);
    checkpoint_write_llama(checkpoint);
    *state = checkpoint;
    return 0;
}

static int teardown(void **state)
{
    checkpoint_finish(*state);
    free(*state);
    return 0;
}

static struct kva_model *opened(const struct checkpoint *checkpoint)
{
    struct kva_err err = {0};
    struct kva_model *model;
    assert_int_equal(checkpoint_open(checkpoint, &model, &err), KVA_OK);
    return model;
}

static struct kva_skew_file_params params_of(const struct checkpoint *checkpoint)
{
    return (struct kva_skew_file_params){.path = checkpoint->dir, .threads = 2};
}

static struct kva_skew *made_skew(void)
{
    struct kva_err err = {0};
    struct kva_skew *skew;
    assert_int_equal(kva_skew_create(1, 1, HEAD_DIM, &skew, &err), KVA_OK);
    for (uint32_t i = 0; i < HEAD_DIM * HEAD_DIM; i++)
        skew->basis[i] = (float)i * 0.25f - 1.0f;
    const float energy[HEAD_DIM] = {1, 3, 1, 5};
    memcpy(skew->energy, energy, sizeof(energy));
    skew->method = KVA_SKEW_BALANCED;
    skew->tokens = 12345;
    return skew;
}

static void write_made(const struct checkpoint *checkpoint)
{
    const struct kva_skew_file_params params = params_of(checkpoint);
    struct kva_err err = {0};
    struct kva_model *model = opened(checkpoint);
    struct kva_skew *skew = made_skew();
    assert_int_equal(kva_skew_write(skew, model, &params, &err), KVA_OK);
    kva_skew_destroy(skew);
    kva_model_close(model);
}

/* The model with its skew, or with the reason why there is none. */
static struct kva_model *looked(const struct checkpoint *checkpoint)
{
    const struct kva_skew_file_params params = params_of(checkpoint);
    struct kva_err err = {0};
    struct kva_model *model = opened(checkpoint);
    assert_int_equal(kva_skew_load(model, &params, &err), KVA_OK);
    return model;
}

static void expect_described(const struct kva_model *model, const char *part)
{
    struct kva_buf text;
    kva_buf_init(&text, 8192);
    kva_model_describe(model, &text);
    assert_non_null(strstr(text.data, part));
    kva_buf_finish(&text);
}

static void expect_none(const struct checkpoint *checkpoint, enum kva_status status,
                        const char *part)
{
    struct kva_model *model = looked(checkpoint);
    assert_null(model->skew);
    assert_int_equal(model->skew_err.status, status);
    expect_message(&model->skew_err, part);
    expect_message(&model->skew_err, FILE_NAME);
    if (status == KVA_EFORMAT)
        expect_described(model, "cannot be used");
    expect_message(&model->skew_err, "kvahead skew --model");
    kva_model_close(model);
}

static void expect_found(const struct checkpoint *checkpoint)
{
    struct kva_model *model = looked(checkpoint);
    struct kva_skew *skew = made_skew();
    assert_non_null(model->skew);
    assert_int_equal(model->skew_err.status, KVA_OK);
    assert_memory_equal(model->skew->basis, skew->basis, HEAD_DIM * HEAD_DIM * sizeof(float));
    assert_memory_equal(model->skew->energy, skew->energy, HEAD_DIM * sizeof(float));
    assert_int_equal(model->skew->method, KVA_SKEW_BALANCED);
    assert_int_equal(model->skew->tokens, 12345);
    expect_described(model, "of 12345 tokens, directions: balanced");
    kva_skew_destroy(skew);
    kva_model_close(model);
}

static bool exists(const struct checkpoint *checkpoint, const char *name)
{
    char path[600];
    return access(checkpoint_path(checkpoint, name, path, sizeof(path)), F_OK) == 0;
}

/* --- found ------------------------------------------------------------------------------------ */

static void test_skew__what_is_written_is_found_again(void **state)
{
    write_made(*state);
    assert_true(exists(*state, FILE_NAME));
    assert_false(exists(*state, FILE_NAME ".new"));
    expect_found(*state);
}

static void test_skew__columns_are_by_energy_and_then_by_number(void **state)
{
    write_made(*state);
    struct kva_model *model = looked(*state);
    const uint32_t order[HEAD_DIM] = {3, 1, 0, 2};
    assert_memory_equal(model->skew->columns, order, sizeof(order));
    kva_model_close(model);
}

static void test_skew__the_same_weights_in_another_file_will_do(void **state)
{
    const struct checkpoint *checkpoint = *state;
    size_t size = 0;
    char path[600];
    write_made(checkpoint);
    char *data =
        kva_test_read(checkpoint_path(checkpoint, "model.safetensors", path, sizeof(path)), &size);
    assert_non_null(data);
    assert_int_equal(unlink(path), 0);
    checkpoint_write(checkpoint, "model.safetensors", data, size);
    expect_found(checkpoint);
    /* Not so, if one bit is another. */
    data[size - 1] ^= 1;
    checkpoint_write(checkpoint, "model.safetensors", data, size);
    free(data);
    expect_none(checkpoint, KVA_EFORMAT, "of other weights");
    write_made(checkpoint);
    expect_found(checkpoint);
}

static void test_skew__another_place_is_named_by_the_user(void **state)
{
    const struct checkpoint *checkpoint = *state;
    char path[600];
    struct kva_err err = {0};
    struct kva_model *model = opened(checkpoint);
    struct kva_skew *skew = made_skew();
    struct kva_skew_file_params params = params_of(checkpoint);
    params.file = checkpoint_path(checkpoint, "elsewhere", path, sizeof(path));
    /* Whoever names a file wants it. */
    assert_int_equal(kva_skew_load(model, &params, &err), KVA_ENOTFOUND);
    expect_message(&err, "elsewhere");
    assert_int_equal(kva_skew_write(skew, model, &params, &err), KVA_OK);
    assert_false(exists(checkpoint, FILE_NAME));
    assert_int_equal(kva_skew_load(model, &params, &err), KVA_OK);
    assert_non_null(model->skew);
    kva_skew_destroy(skew);
    kva_model_close(model);
    expect_none(checkpoint, KVA_ENOTFOUND, "is not there");
}

static void test_skew__what_a_killed_process_left_is_written_over(void **state)
{
    checkpoint_puts(*state, FILE_NAME ".new", "of a process that was killed");
    write_made(*state);
    assert_false(exists(*state, FILE_NAME ".new"));
    expect_found(*state);
}

/* --- refused ---------------------------------------------------------------------------------- */

static void test_skew__none_says_how_to_make_one(void **state)
{
    expect_none(*state, KVA_ENOTFOUND, "is not there");
}

static void test_skew__every_damaged_byte_is_seen(void **state)
{
    const struct checkpoint *checkpoint = *state;
    char path[600];
    size_t size = 0;
    write_made(checkpoint);
    unsigned char *data = (unsigned char *)kva_test_read(
        checkpoint_path(checkpoint, FILE_NAME, path, sizeof(path)), &size);
    assert_non_null(data);
    assert_int_equal(size, KVA_PACKED_FILE_HEADER_BYTES + 64 + (16 + 4) * sizeof(float));
    for (size_t i = 0; i < size; i++) {
        /* The rest of the header's page is of no use. */
        if (i >= 64 && i < KVA_PACKED_FILE_HEADER_BYTES)
            continue;
        data[i] ^= 0x41;
        checkpoint_write(checkpoint, FILE_NAME, data, size);
        expect_none(checkpoint, KVA_EFORMAT, "cannot be used: it");
        data[i] ^= 0x41;
    }
    for (size_t cut = 0; cut < size; cut += cut < KVA_PACKED_FILE_HEADER_BYTES ? 512 : 1) {
        struct kva_model *model;
        checkpoint_write(checkpoint, FILE_NAME, data, cut);
        model = looked(checkpoint);
        assert_null(model->skew);
        kva_model_close(model);
    }
    checkpoint_write(checkpoint, FILE_NAME, data, size);
    free(data);
    expect_found(checkpoint);
}

static void test_skew__a_file_of_another_kind_is_refused(void **state)
{
    char page[8192] = "kvahead pack";
    checkpoint_write(*state, FILE_NAME, page, sizeof(page));
    expect_none(*state, KVA_EFORMAT, "a file of another kind");
}

static void test_skew__one_of_another_shape_is_refused(void **state)
{
    const struct checkpoint *checkpoint = *state;
    const struct kva_skew_file_params params = params_of(checkpoint);
    struct kva_err err = {0};
    struct kva_model *model = opened(checkpoint);
    struct kva_skew *skew;
    assert_int_equal(kva_skew_create(2, 1, HEAD_DIM, &skew, &err), KVA_OK);
    assert_int_equal(kva_skew_write(skew, model, &params, &err), KVA_OK);
    kva_skew_destroy(skew);
    kva_model_close(model);
    expect_none(checkpoint, KVA_EFORMAT,
                "it is of 2 layers with 1 KV heads of 4, the model has 1 with 1 of 4");
}

static void test_skew__one_with_numbers_that_are_none_is_refused(void **state)
{
    const struct checkpoint *checkpoint = *state;
    const struct kva_skew_file_params params = params_of(checkpoint);
    struct kva_err err = {0};
    struct kva_model *model = opened(checkpoint);
    struct kva_skew *skew = made_skew();
    skew->basis[7] = NAN;
    assert_int_equal(kva_skew_write(skew, model, &params, &err), KVA_OK);
    kva_skew_destroy(skew);
    kva_model_close(model);
    expect_none(checkpoint, KVA_EFORMAT, "not finite");
}

static void test_skew__rotary_frequencies_count_too(void **state)
{
    const struct checkpoint *checkpoint = *state;
    char path[600], *theta;
    size_t size = 0;
    write_made(checkpoint);
    char *text =
        kva_test_read(checkpoint_path(checkpoint, "config.json", path, sizeof(path)), &size);
    assert_non_null(text);
    struct kva_buf changed;
    kva_buf_init(&changed, 65536);
    theta = strchr(text, '{');
    assert_non_null(theta);
    kva_buf_puts(&changed, "{\"rope_theta\": 777.0, ");
    kva_buf_append(&changed, theta + 1, size - (size_t)(theta + 1 - text));
    assert_null(strstr(text, "rope_theta"));
    checkpoint_puts(checkpoint, "config.json", changed.data);
    kva_buf_finish(&changed);
    free(text);
    expect_none(checkpoint, KVA_EFORMAT, "another configuration");
}

/* --- where it cannot be written --------------------------------------------------------------- */

static void test_skew__a_place_that_cannot_be_written_is_an_error(void **state)
{
    const struct checkpoint *checkpoint = *state;
    char path[600];
    struct kva_err err = {0};
    struct kva_model *model = opened(checkpoint);
    struct kva_skew *skew = made_skew();
    struct kva_skew_file_params params = params_of(checkpoint);
    /* Permissions do not stop root: these stop everybody. */
    params.file = "/proc/self/nowhere";
    assert_int_equal(kva_skew_write(skew, model, &params, &err), KVA_EIO);
    expect_message(&err, "/proc/self/nowhere");
    expect_message(&err, "--out");
    /* A folder in the file's place: made, and then it cannot be renamed. */
    params.file = NULL;
    assert_int_equal(mkdir(checkpoint_path(checkpoint, FILE_NAME, path, sizeof(path)), 0700), 0);
    assert_int_equal(kva_skew_write(skew, model, &params, &err), KVA_EIO);
    expect_message(&err, "cannot rename");
    assert_false(exists(checkpoint, FILE_NAME ".new"));
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(kva_skew_write(skew, model, &params, &err), KVA_OK);
    kva_skew_destroy(skew);
    kva_model_close(model);
}

static void test_skew__reading_the_weights_can_be_stopped(void **state)
{
    const struct checkpoint *checkpoint = *state;
    atomic_bool cancelled = true;
    struct kva_err err = {0};
    struct kva_model *model = opened(checkpoint);
    struct kva_skew *skew = made_skew();
    struct kva_skew_file_params params = params_of(checkpoint);
    params.cancelled = &cancelled;
    assert_int_equal(kva_skew_write(skew, model, &params, &err), KVA_ECANCELLED);
    assert_false(exists(checkpoint, FILE_NAME));
    assert_false(exists(checkpoint, FILE_NAME ".new"));
    kva_skew_destroy(skew);
    kva_model_close(model);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_skew__what_is_written_is_found_again),
        TEST(test_skew__columns_are_by_energy_and_then_by_number),
        TEST(test_skew__the_same_weights_in_another_file_will_do),
        TEST(test_skew__another_place_is_named_by_the_user),
        TEST(test_skew__what_a_killed_process_left_is_written_over),
        TEST(test_skew__none_says_how_to_make_one),
        TEST(test_skew__every_damaged_byte_is_seen),
        TEST(test_skew__a_file_of_another_kind_is_refused),
        TEST(test_skew__one_of_another_shape_is_refused),
        TEST(test_skew__one_with_numbers_that_are_none_is_refused),
        TEST(test_skew__rotary_frequencies_count_too),
        TEST(test_skew__a_place_that_cannot_be_written_is_an_error),
        TEST(test_skew__reading_the_weights_can_be_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
