#include "base/mapped.h"

#include "tests/cmocka.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 8u

struct file {
    int fd;
    unsigned char *map;
    size_t page;
    size_t bytes;
};

/* PAGES pages, the last one in part, of 7s. */
static struct file make_file(void)
{
    char path[] = "/tmp/kvahead-mapped-XXXXXX";
    struct file file = {.fd = mkstemp(path), .page = (size_t)sysconf(_SC_PAGESIZE)};
    assert_true(file.fd >= 0);
    assert_int_equal(unlink(path), 0);
    file.bytes = (PAGES - 1) * file.page + 100;
    unsigned char *content = malloc(file.bytes);
    assert_non_null(content);
    memset(content, 7, file.bytes);
    assert_int_equal(write(file.fd, content, file.bytes), (ssize_t)file.bytes);
    free(content);
    file.map = mmap(NULL, file.bytes, PROT_READ, MAP_SHARED, file.fd, 0);
    assert_true(file.map != MAP_FAILED);
    return file;
}

static void close_file(struct file *file)
{
    assert_int_equal(munmap(file->map, file->bytes), 0);
    close(file->fd);
}

static unsigned char read_at(const struct file *file, size_t at)
{
    return *(volatile const unsigned char *)(file->map + at);
}

static void test_mapped__cut_file_reads_as_zeros_and_is_lost(void **state)
{
    (void)state;
    struct file file = make_file(), other = make_file();
    assert_int_equal(kva_mapped_catch(NULL), KVA_OK);
    assert_int_equal(kva_mapped_catch(NULL), KVA_OK);
    uint32_t number = kva_mapped_watch(file.map, file.bytes);
    uint32_t second = kva_mapped_watch(other.map, other.bytes);
    assert_true(number != KVA_MAPPED_NONE && second != KVA_MAPPED_NONE && number != second);
    assert_int_equal(ftruncate(file.fd, (off_t)(3 * file.page)), 0);
    /* Nothing is lost until somebody asks for it. */
    assert_int_equal(read_at(&file, 3 * file.page - 1), 7);
    assert_false(kva_mapped_is_lost(number));
    assert_int_equal(read_at(&file, 5 * file.page + 17), 0);
    assert_true(kva_mapped_is_lost(number));
    /* Pages before the one that faulted may fault, too, and those behind it never again. */
    assert_int_equal(read_at(&file, 3 * file.page), 0);
    assert_int_equal(read_at(&file, file.bytes - 1), 0);
    assert_int_equal(read_at(&file, 0), 7);
    assert_false(kva_mapped_is_lost(second));
    assert_int_equal(read_at(&other, other.bytes - 1), 7);
    kva_mapped_unwatch(number);
    kva_mapped_unwatch(second);
    close_file(&file);
    close_file(&other);
}

static void test_mapped__numbers_are_used_again(void **state)
{
    (void)state;
    static uint32_t numbers[KVA_MAPPED_MAX];
    struct file file = make_file();
    for (uint32_t i = 0; i < KVA_MAPPED_MAX; i++) {
        numbers[i] = kva_mapped_watch(file.map, file.bytes);
        assert_true(numbers[i] != KVA_MAPPED_NONE);
    }
    assert_int_equal(kva_mapped_watch(file.map, file.bytes), KVA_MAPPED_NONE);
    kva_mapped_unwatch(numbers[5]);
    assert_int_equal(kva_mapped_watch(file.map, file.bytes), numbers[5]);
    for (uint32_t i = 0; i < KVA_MAPPED_MAX; i++)
        kva_mapped_unwatch(numbers[i]);
    kva_mapped_unwatch(KVA_MAPPED_NONE);
    assert_false(kva_mapped_is_lost(KVA_MAPPED_NONE));
    close_file(&file);
}

/* What is not watched ends the process as it always did. */
static void test_mapped__other_faults_end_the_process(void **state)
{
    (void)state;
    struct file file = make_file();
    assert_int_equal(ftruncate(file.fd, 0), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        /* cmocka and the sanitizers have handlers. */
        signal(SIGBUS, SIG_DFL);
        if (kva_mapped_catch(NULL) != KVA_OK)
            _exit(3);
        kva_mapped_unwatch(kva_mapped_watch(file.map, file.bytes));
        _exit(read_at(&file, 0));
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGBUS);
    close_file(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* First: in the others SIGBUS is taken. */
        cmocka_unit_test(test_mapped__other_faults_end_the_process),
        cmocka_unit_test(test_mapped__cut_file_reads_as_zeros_and_is_lost),
        cmocka_unit_test(test_mapped__numbers_are_used_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
