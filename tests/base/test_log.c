/* Whoever logs waits for no reader: lines are kept, then dropped, counted and told of. */
#include "tests/cmocka.h"

#include "base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINES 40000u

static int ends[2];

static void open_pipe(void)
{
    assert_int_equal(pipe(ends), 0);
    (void)fcntl(ends[0], F_SETPIPE_SZ, 4096);
    kva_log_setup(ends[1], KVA_LOG_INFO, KVA_LOG_TEXT);
}

struct seen {
    uint64_t lines, told;
    bool in_order;
};

/* Read until the other end is closed. */
static void *read_all(void *opaque)
{
    struct seen *seen = opaque;
    unsigned next = 0, number;
    unsigned long long dropped;
    char line[512];
    FILE *file = fdopen(ends[0], "r");
    while (file && fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%*s %*s line %u", &number) == 1) {
            seen->in_order &= number >= next;
            next = number + 1;
            seen->lines++;
        } else if (sscanf(line, "%*s %*s %llu log lines were dropped", &dropped) == 1) {
            seen->told += dropped;
        }
    }
    if (file)
        fclose(file);
    return NULL;
}

static void test_log__a_pipe_that_nobody_reads_holds_up_nobody(void **state KVA_UNUSED)
{
    struct seen seen = {.in_order = true};
    struct kva_err err;
    pthread_t reader;
    uint64_t before = kva_log_dropped();
    open_pipe();
    assert_int_equal(kva_log_start(&err), KVA_OK);
    for (unsigned i = 0; i < LINES; i++)
        kva_log(KVA_LOG_INFO, "line %u of those that nobody reads for now", i);
    uint64_t dropped = kva_log_dropped() - before;
    assert_true(dropped > 0 && dropped < LINES);
    /* Somebody reads again. */
    assert_int_equal(pthread_create(&reader, NULL, read_all, &seen), 0);
    kva_log_stop(60000);
    close(ends[1]);
    pthread_join(reader, NULL);
    assert_true(seen.in_order);
    assert_true(seen.lines + dropped == LINES);
    assert_true(seen.told == dropped);
}

static void test_log__stopping_waits_for_a_reader_only_so_long(void **state KVA_UNUSED)
{
    struct kva_err err;
    open_pipe();
    assert_int_equal(kva_log_start(&err), KVA_OK);
    for (unsigned i = 0; i < 1000; i++)
        kva_log(KVA_LOG_INFO, "line %u", i);
    uint64_t before = kva_log_dropped();
    kva_log_stop(1);
    /* The writer still waits for the pipe; what is said now must not. */
    kva_log(KVA_LOG_INFO, "too late");
    assert_true(kva_log_dropped() == before + 1);
    /* Its own end of the pipe is the writer's for good. */
    close(ends[0]);
}

static void test_log__without_a_thread_lines_are_written_at_once(void **state KVA_UNUSED)
{
    char text[256] = "";
    open_pipe();
    kva_log(KVA_LOG_WARN, "one %d", 1);
    kva_log(KVA_LOG_DEBUG, "none");
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    assert_non_null(strstr(text, "warn  one 1\n"));
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log__without_a_thread_lines_are_written_at_once),
        cmocka_unit_test(test_log__a_pipe_that_nobody_reads_holds_up_nobody),
        /* The last: its writer stays. */
        cmocka_unit_test(test_log__stopping_waits_for_a_reader_only_so_long),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
