/* What is no regular file is refused at once. */
#include "tests/cmocka.h"

#include "base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

static int setup(void **state KVA_UNUSED)
{
    snprintf(folder, sizeof(folder), "/tmp/kvahead-file-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static const char *at(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static int teardown(void **state KVA_UNUSED)
{
    unlink(at("fifo"));
    unlink(at("text"));
    return rmdir(folder);
}

static void expect(const char *path, enum kva_status want, const char *words)
{
    struct kva_err err = {.message = ""};
    struct kva_buf buf;
    kva_buf_init(&buf, 100);
    assert_int_equal(kva_file_check(path, &err), want);
    if (!strstr(err.message, words) || !strstr(err.message, path))
        fail_msg("'%s' and the path are not in '%s'", words, err.message);
    assert_int_equal(kva_file_read(AT_FDCWD, path, &buf, &err), want);
    kva_buf_finish(&buf);
}

static void test_file__only_regular_ones(void **state KVA_UNUSED)
{
    assert_int_equal(mkfifo(at("fifo"), 0600), 0);
    expect(at("fifo"), KVA_EFORMAT, "not a regular file");
    expect("/dev/zero", KVA_EFORMAT, "not a regular file");
    expect(folder, KVA_EFORMAT, "not a regular file");
    expect(at("none"), KVA_ENOTFOUND, "No such file");
}

static void test_file__is_read_whole_or_refused(void **state KVA_UNUSED)
{
    struct kva_err err;
    struct kva_buf buf;
    FILE *file = fopen(at("text"), "w");
    assert_non_null(file);
    for (int i = 0; i < 10000; i++)
        fprintf(file, "%04d\n", i);
    fclose(file);
    kva_buf_init(&buf, 50000);
    assert_int_equal(kva_file_read(AT_FDCWD, at("text"), &buf, &err), KVA_OK);
    assert_int_equal(buf.length, 50000);
    assert_memory_equal(buf.data + 49995, "9999\n", 5);
    kva_buf_finish(&buf);
    kva_buf_init(&buf, 49999);
    assert_int_equal(kva_file_read(AT_FDCWD, at("text"), &buf, &err), KVA_ETOOBIG);
    assert_non_null(strstr(err.message, "more than 49999 bytes"));
    kva_buf_finish(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file__only_regular_ones),
        cmocka_unit_test(test_file__is_read_whole_or_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
