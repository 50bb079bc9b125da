/* A model's packed matrices: what is made, kept, found again, refused and replaced. */
#include "engine/model/checksum.h"
#include "engine/model/packed.h"
#include "engine/model/packed_file.h"
#include "kernels/packed.h"
#include "tests/data.h"
#include "tests/engine/model/checkpoint.h"

#include "tests/cmocka.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_NAME KVA_PACKED_FILE_NAME "int8"

/* Ordinary weights in the place of the made-up ones. */
static void fill(const struct checkpoint *checkpoint, size_t tensors_bytes)
{
    char path[600];
    FILE *file = fopen(checkpoint_path(checkpoint, "model.safetensors", path, sizeof(path)), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -(long)tensors_bytes, SEEK_END), 0);
    for (size_t i = 0; i < tensors_bytes / sizeof(float); i++) {
        float weight = (float)((i * 7919 + 13) % 201) * 0.01f - 1.0f;
        assert_int_equal(fwrite(&weight, sizeof(weight), 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
}

/* Numbers of the made-up Llama: embedding, three norms, and the matrices of the layer. */
#define KEPT_NUMBERS  (10 * 8 + 3 * 8)
#define LAYER_NUMBERS (2 * 8 * 8 + 2 * 4 * 8 + 3 * 12 * 8)
#define HEAD_NUMBERS  (10 * 8)

static int setup(void **state)
{
    struct checkpoint *checkpoint = malloc(sizeof(*checkpoint));
    assert_non_null(checkpoint);
    checkpoint_init(checkpoint);
    checkpoint_write_llama(checkpoint);
    fill(checkpoint, (KEPT_NUMBERS + LAYER_NUMBERS + HEAD_NUMBERS) * sizeof(float));
    *state = checkpoint;
    return 0;
}

static int teardown(void **state)
{
    checkpoint_finish(*state);
    free(*state);
    return 0;
}

static uint32_t lock_wait_ms = 60000;
static enum kva_model_weights weights = KVA_WEIGHTS_INT8;

/* The model of the folder, packed; NULL with *err on failure. */
static struct kva_model *quantised(const struct checkpoint *checkpoint, const char *cache_path,
                                   struct kva_err *err)
{
    const struct kva_model_pack_params params = {
        .weights = weights,
        .path = checkpoint->dir,
        .cache_path = cache_path,
        .threads = 2,
        .lock_wait_ms = lock_wait_ms,
    };
    struct kva_model *model;
    assert_int_equal(checkpoint_open(checkpoint, &model, err), KVA_OK);
    if (kva_model_pack(model, &params, err) == KVA_OK)
        return model;
    kva_model_close(model);
    return NULL;
}

/* Quantise and close. Returns whether the matrices were made rather than found. */
static bool made(const struct checkpoint *checkpoint)
{
    struct kva_err err = {0};
    struct kva_model *model = quantised(checkpoint, NULL, &err);
    assert_non_null(model);
    assert_true(model->packed->shared);
    bool made = model->packed->made;
    kva_model_close(model);
    return made;
}

/* The file's bytes; the caller frees them. */
static unsigned char *slurp(const struct checkpoint *checkpoint, const char *name, size_t *ret_size)
{
    char path[600];
    char *data = kva_test_read(checkpoint_path(checkpoint, name, path, sizeof(path)), ret_size);
    assert_non_null(data);
    return (unsigned char *)data;
}

static bool exists(const struct checkpoint *checkpoint, const char *name)
{
    char path[600];
    return access(checkpoint_path(checkpoint, name, path, sizeof(path)), F_OK) == 0;
}

/* --- the checksum ----------------------------------------------------------------------------- */

static void test_packed__the_checksum_is_xxh64(void **state KVA_UNUSED)
{
    /* Of the xxHash project's documentation and tests. */
    const char *text = "Nobody inspects the spammish repetition";
    assert_true(kva_checksum("", 0) == 0xEF46DB3751D8E999ull);
    assert_true(kva_checksum("a", 1) == 0xD24EC4F1A98C6E5Bull);
    assert_true(kva_checksum("abc", 3) == 0x44BC2CF5AD770999ull);
    assert_true(kva_checksum(text, strlen(text)) == 0xFBCEA83C8A378BF1ull);
}

/* --- what is made ----------------------------------------------------------------------------- */

static void expect_matrix(const struct kva_tensor *plain, const struct kva_tensor *int8)
{
    assert_int_equal(int8->dtype, KVA_INT8);
    assert_int_equal(int8->rows, plain->rows);
    assert_int_equal(int8->cols, plain->cols);
    assert_int_equal((uintptr_t)int8->data % KVA_PACKED_ALIGN, 0);
    for (uint32_t r = 0; r < plain->rows; r++) {
        float largest = 0;
        const float *row = (const float *)plain->data + (size_t)r * plain->cols;
        for (uint32_t c = 0; c < plain->cols; c++)
            largest = row[c] > largest ? row[c] : -row[c] > largest ? -row[c] : largest;
        for (uint32_t c = 0; c < plain->cols; c++) {
            float error = kva_packed_at(KVA_INT8, int8->data, plain->cols, r, c) - row[c];
            assert_true(error <= largest / 253 && error >= -largest / 253);
        }
    }
}

static void test_packed__matrices_are_rounded_and_nothing_else(void **state)
{
    const struct checkpoint *checkpoint = *state;
    struct kva_err err = {0};
    struct kva_model *plain, *model = quantised(checkpoint, NULL, &err);
    assert_non_null(model);
    assert_int_equal(checkpoint_open(checkpoint, &plain, &err), KVA_OK);
    const struct kva_layer_tensors *a = plain->layers, *b = model->layers;
    expect_matrix(&a->q, &b->q);
    expect_matrix(&a->k, &b->k);
    expect_matrix(&a->v, &b->v);
    expect_matrix(&a->o, &b->o);
    expect_matrix(&a->gate, &b->gate);
    expect_matrix(&a->up, &b->up);
    expect_matrix(&a->down, &b->down);
    expect_matrix(&plain->lm_head, &model->lm_head);
    assert_int_equal(model->embed.dtype, KVA_F32);
    assert_int_equal(b->attn_norm.dtype, KVA_F32);
    assert_int_equal(b->mlp_norm.dtype, KVA_F32);
    assert_null(b->q_bias.data);
    /* Embedding and three norms as they were, and eight matrices of one panel each. */
    size_t bytes = KEPT_NUMBERS * sizeof(float) +
                   7 * kva_packed_bytes(kva_packed_format(KVA_INT8), 8, 8) +
                   kva_packed_bytes(kva_packed_format(KVA_INT8), 8, 12);
    assert_int_equal(model->weight_bytes, bytes);
    assert_true(model->parameter_count == plain->parameter_count);
    struct kva_buf text;
    kva_buf_init(&text, 4096);
    kva_model_describe(model, &text);
    assert_non_null(strstr(text.data, "mapped from"));
    assert_non_null(strstr(text.data, FILE_NAME));
    kva_buf_finish(&text);
    kva_model_close(plain);
    kva_model_close(model);
}

static void test_packed__a_tied_embedding_is_kept_once(void **state)
{
    const struct checkpoint *checkpoint = *state;
    struct kva_err err = {0};
    /* The same tensors without the last, lm_head. */
    checkpoint_write_tensors(checkpoint, "model.safetensors", made_tensors, made_tensor_count - 1);
    fill(checkpoint, (KEPT_NUMBERS + LAYER_NUMBERS) * sizeof(float));
    struct kva_model *plain, *model = quantised(checkpoint, NULL, &err);
    assert_non_null(model);
    assert_true(model->config.tied_embeddings);
    assert_int_equal(checkpoint_open(checkpoint, &plain, &err), KVA_OK);
    expect_matrix(&plain->embed, &model->embed);
    assert_ptr_equal(model->embed.data, model->lm_head.data);
    size_t bytes = 3 * 8 * sizeof(float) + 7 * kva_packed_bytes(kva_packed_format(KVA_INT8), 8, 8) +
                   kva_packed_bytes(kva_packed_format(KVA_INT8), 8, 12);
    assert_int_equal(model->weight_bytes, bytes);
    kva_model_close(plain);
    kva_model_close(model);
}

static void test_packed__int4_has_its_own_file_and_an_output_matrix_in_int8(void **state)
{
    const struct checkpoint *checkpoint = *state;
    struct kva_err err = {0};
    assert_true(made(checkpoint));
    weights = KVA_WEIGHTS_INT4;
    assert_true(made(checkpoint));
    assert_false(made(checkpoint));
    struct kva_model *plain, *model = quantised(checkpoint, NULL, &err);
    weights = KVA_WEIGHTS_INT8;
    assert_non_null(model);
    assert_false(made(checkpoint));
    assert_true(exists(checkpoint, KVA_PACKED_FILE_NAME "int4") && exists(checkpoint, FILE_NAME));
    assert_int_equal(checkpoint_open(checkpoint, &plain, &err), KVA_OK);
    expect_matrix(&plain->lm_head, &model->lm_head);
    assert_int_equal(model->embed.dtype, KVA_F32);
    const struct kva_tensor *down = &model->layers->down, *from = &plain->layers->down;
    assert_int_equal(down->dtype, KVA_PACKED_INT4);
    /* 12 weights of a row share a scale; they lie between -1 and 1, so a step is 2 / 15. */
    for (uint32_t r = 0; r < down->rows; r++)
        for (uint32_t c = 0; c < down->cols; c++) {
            float error = kva_packed_at(down->dtype, down->data, down->cols, r, c) -
                          ((const float *)from->data)[r * down->cols + c];
            assert_true(error < 0.1f && error > -0.1f);
        }
    kva_model_close(plain);
    kva_model_close(model);
}

static void test_packed__numbers_stay_unless_they_are_asked_for(void **state)
{
    const struct checkpoint *checkpoint = *state;
    struct kva_err err = {0};
    for (weights = KVA_WEIGHTS_AUTO; weights <= KVA_WEIGHTS_BF16; weights++) {
        struct kva_model *model = quantised(checkpoint, NULL, &err);
        assert_non_null(model);
        assert_null(model->packed);
        assert_int_equal(model->layers->q.dtype, KVA_F32);
        kva_model_close(model);
    }
    weights = KVA_WEIGHTS_INT8;
    assert_false(exists(checkpoint, FILE_NAME));
}

/* --- what is found again ---------------------------------------------------------------------- */

static void test_packed__made_once_then_found(void **state)
{
    const struct checkpoint *checkpoint = *state;
    assert_true(made(checkpoint));
    assert_false(exists(checkpoint, FILE_NAME ".new"));
    assert_false(made(checkpoint));
    assert_false(made(checkpoint));
}

static void test_packed__the_same_content_in_another_file_counts(void **state)
{
    const struct checkpoint *checkpoint = *state;
    size_t size;
    assert_true(made(checkpoint));
    unsigned char *data = slurp(checkpoint, "model.safetensors", &size);
    checkpoint_write(checkpoint, "copy", data, size);
    free(data);
    char from[600], to[600];
    assert_int_equal(rename(checkpoint_path(checkpoint, "copy", from, sizeof(from)),
                            checkpoint_path(checkpoint, "model.safetensors", to, sizeof(to))),
                     0);
    assert_false(made(checkpoint));
}

static void test_packed__a_changed_model_is_made_anew(void **state)
{
    const struct checkpoint *checkpoint = *state;
    char path[600];
    size_t size;
    assert_true(made(checkpoint));
    checkpoint_path(checkpoint, "model.safetensors", path, sizeof(path));
    /* One bit of the last matrix; size and time of change are as before. */
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    unsigned char *data = slurp(checkpoint, "model.safetensors", &size);
    data[size - 5] ^= 1;
    checkpoint_write(checkpoint, "model.safetensors", data, size);
    free(data);
    const struct timespec times[2] = {info.st_atim, info.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_true(made(checkpoint));
    assert_false(made(checkpoint));
}

static void test_packed__another_shape_is_made_anew(void **state)
{
    const struct checkpoint *checkpoint = *state;
    assert_true(made(checkpoint));
    /* The same weights taken for another number of heads. */
    char config[1024];
    snprintf(config, sizeof(config), "%s", made_config);
    char *heads = strstr(config, "\"num_attention_heads\":2,\"num_key_value_heads\":1");
    assert_non_null(heads);
    heads[strlen("\"num_attention_heads\":")] = '4';
    heads[strlen("\"num_attention_heads\":2,\"num_key_value_heads\":")] = '2';
    checkpoint_puts(checkpoint, "config.json", config);
    assert_true(made(checkpoint));
}

static void test_packed__damage_is_noticed_and_mended(void **state)
{
    const struct checkpoint *checkpoint = *state;
    size_t size, other_size;
    assert_true(made(checkpoint));
    unsigned char *good = slurp(checkpoint, FILE_NAME, &size);
    unsigned char *bad = malloc(size + 1);
    assert_non_null(bad);
    /* Magic, version, each sum, first and last byte of the matrices. */
    const size_t places[] = {0, 16, 24, 32, 40, 48, 56, 4096, size - 1};
    for (size_t i = 0; i < KVA_COUNT_OF(places); i++) {
        memcpy(bad, good, size);
        bad[places[i]] ^= 0x10;
        checkpoint_write(checkpoint, FILE_NAME, bad, size);
        assert_true(made(checkpoint));
        unsigned char *mended = slurp(checkpoint, FILE_NAME, &other_size);
        assert_int_equal(other_size, size);
        assert_memory_equal(mended, good, size);
        free(mended);
    }
    /* Cut anywhere, or longer than it should be. */
    const size_t sizes[] = {0, 1, 63, 4095, 4096, size - 1, size + 1};
    for (size_t i = 0; i < KVA_COUNT_OF(sizes); i++) {
        memcpy(bad, good, size);
        bad[size] = 0;
        checkpoint_write(checkpoint, FILE_NAME, bad, sizes[i]);
        assert_true(made(checkpoint));
        assert_false(made(checkpoint));
    }
    free(bad);
    free(good);
}

static void test_packed__a_file_left_unfinished_is_written_over(void **state)
{
    const struct checkpoint *checkpoint = *state;
    checkpoint_puts(checkpoint, FILE_NAME ".new", "of a process that was killed");
    assert_true(made(checkpoint));
    assert_false(exists(checkpoint, FILE_NAME ".new"));
    assert_false(made(checkpoint));
}

/* What is there and cannot be opened: a socket, as permissions do not stop root. */
static void test_packed__a_file_that_cannot_be_opened_is_made_anew(void **state)
{
    const struct checkpoint *checkpoint = *state;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    checkpoint_path(checkpoint, FILE_NAME, name.sun_path, sizeof(name.sun_path));
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    assert_true(made(checkpoint));
    assert_false(made(checkpoint));
    close(fd);
}

/* --- where it cannot be kept ------------------------------------------------------------------ */

static void expect_unshared(const struct checkpoint *checkpoint, const char *cache_path)
{
    struct kva_err err = {0};
    struct kva_model *plain, *model = quantised(checkpoint, cache_path, &err);
    assert_non_null(model);
    assert_true(model->packed->made);
    assert_false(model->packed->shared);
    assert_int_equal(checkpoint_open(checkpoint, &plain, &err), KVA_OK);
    expect_matrix(&plain->layers->down, &model->layers->down);
    expect_matrix(&plain->lm_head, &model->lm_head);
    kva_model_close(plain);
    kva_model_close(model);
}

static void test_packed__a_folder_that_cannot_be_written_is_no_failure(void **state)
{
    const struct checkpoint *checkpoint = *state;
    char path[600];
    /* Permissions do not stop root: these stop everybody. */
    expect_unshared(checkpoint, "/proc/self/nowhere");
    checkpoint_puts(checkpoint, "file", "no folder");
    expect_unshared(checkpoint, checkpoint_path(checkpoint, "file", path, sizeof(path)));
    assert_int_equal(mkdir(checkpoint_path(checkpoint, FILE_NAME ".new", path, sizeof(path)), 0700),
                     0);
    expect_unshared(checkpoint, NULL);
    assert_int_equal(rmdir(path), 0);
    /* A folder in the file's place: made, and then it cannot be renamed. */
    assert_int_equal(mkdir(checkpoint_path(checkpoint, FILE_NAME, path, sizeof(path)), 0700), 0);
    expect_unshared(checkpoint, NULL);
    assert_false(exists(checkpoint, FILE_NAME ".new"));
    assert_int_equal(rmdir(path), 0);
    assert_true(made(checkpoint));
}

static void test_packed__a_full_disk_is_no_failure(void **state)
{
    const struct checkpoint *checkpoint = *state;
    struct rlimit before, little = {4096, RLIM_INFINITY};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    expect_unshared(checkpoint, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_false(exists(checkpoint, FILE_NAME));
    assert_false(exists(checkpoint, FILE_NAME ".new"));
}

static void test_packed__another_folder_holds_several_models(void **state)
{
    const struct checkpoint *first = *state;
    struct checkpoint second, cache;
    struct kva_err err = {0};
    checkpoint_init(&second);
    checkpoint_write_llama(&second);
    checkpoint_init(&cache);
    struct kva_model *a = quantised(first, cache.dir, &err);
    struct kva_model *b = quantised(&second, cache.dir, &err);
    struct kva_model *again = quantised(first, cache.dir, &err);
    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(again);
    assert_true(a->packed->made && b->packed->made && !again->packed->made);
    assert_string_equal(a->packed->path, again->packed->path);
    assert_string_not_equal(a->packed->path, b->packed->path);
    assert_int_equal(strncmp(a->packed->path, cache.dir, strlen(cache.dir)), 0);
    assert_false(exists(first, FILE_NAME));
    kva_model_close(a);
    kva_model_close(b);
    kva_model_close(again);
    checkpoint_finish(&cache);
    checkpoint_finish(&second);
}

/* --- several at once -------------------------------------------------------------------------- */

static void test_packed__of_processes_that_start_together_one_makes_it(void **state)
{
    const struct checkpoint *checkpoint = *state;
    enum { PROCESSES = 6 };
    pid_t children[PROCESSES];
    char path[600];
    /* All of them wait for this one, as if it were making the file. */
    int fd = open(checkpoint_path(checkpoint, FILE_NAME ".new", path, sizeof(path)),
                  O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] > 0)
            continue;
        /* The lock belongs to the open file, of which this is another handle. */
        close(fd);
        struct kva_err err = {0};
        struct kva_model *model = quantised(checkpoint, NULL, &err);
        int code = !model || !model->packed->shared ? 2 : model->packed->made;
        kva_model_close(model);
        _exit(code);
    }
    assert_int_equal(flock(fd, LOCK_UN), 0);
    close(fd);
    int makers = 0;
    for (int i = 0; i < PROCESSES; i++) {
        int status;
        assert_true(waitpid(children[i], &status, 0) == children[i]);
        assert_true(WIFEXITED(status));
        assert_true(WEXITSTATUS(status) < 2);
        makers += WEXITSTATUS(status);
    }
    assert_int_equal(makers, 1);
    assert_false(exists(checkpoint, FILE_NAME ".new"));
    assert_false(made(checkpoint));
}

static void test_packed__a_lock_that_is_never_let_go_is_not_waited_for_without_end(void **state)
{
    const struct checkpoint *checkpoint = *state;
    struct kva_err err = {0};
    char path[600];
    int fd = open(checkpoint_path(checkpoint, FILE_NAME ".new", path, sizeof(path)),
                  O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    lock_wait_ms = 0;
    struct kva_model *model = quantised(checkpoint, NULL, &err);
    lock_wait_ms = 60000;
    assert_non_null(model);
    assert_true(model->packed->made);
    assert_false(model->packed->shared);
    assert_false(exists(checkpoint, FILE_NAME));
    kva_model_close(model);
    close(fd);
    unlink(path);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void test_packed__weights_that_are_not_finite_are_refused(void **state)
{
    const struct checkpoint *checkpoint = *state;
    struct kva_err err = {0};
    size_t size;
    unsigned char *data = slurp(checkpoint, "model.safetensors", &size);
    const unsigned char infinity[] = {0, 0, 0x80, 0x7F};
    memcpy(data + size - 4, infinity, 4);
    checkpoint_write(checkpoint, "model.safetensors", data, size);
    free(data);
    assert_null(quantised(checkpoint, NULL, &err));
    assert_int_equal(err.status, KVA_EFORMAT);
    expect_message(&err, "not finite");
    expect_message(&err, "[10, 8]");
    assert_false(exists(checkpoint, FILE_NAME));
    assert_false(exists(checkpoint, FILE_NAME ".new"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed__the_checksum_is_xxh64),
        TEST(test_packed__matrices_are_rounded_and_nothing_else),
        TEST(test_packed__a_tied_embedding_is_kept_once),
        TEST(test_packed__int4_has_its_own_file_and_an_output_matrix_in_int8),
        TEST(test_packed__numbers_stay_unless_they_are_asked_for),
        TEST(test_packed__made_once_then_found),
        TEST(test_packed__the_same_content_in_another_file_counts),
        TEST(test_packed__a_changed_model_is_made_anew),
        TEST(test_packed__another_shape_is_made_anew),
        TEST(test_packed__damage_is_noticed_and_mended),
        TEST(test_packed__a_file_left_unfinished_is_written_over),
        TEST(test_packed__a_file_that_cannot_be_opened_is_made_anew),
        TEST(test_packed__a_folder_that_cannot_be_written_is_no_failure),
        TEST(test_packed__a_full_disk_is_no_failure),
        TEST(test_packed__another_folder_holds_several_models),
        TEST(test_packed__of_processes_that_start_together_one_makes_it),
        TEST(test_packed__a_lock_that_is_never_let_go_is_not_waited_for_without_end),
        TEST(test_packed__weights_that_are_not_finite_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
