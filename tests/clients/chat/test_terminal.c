/* The chat on a pseudo-terminal, with a person who waits for what is shown. */
#include "tests/cmocka.h"

#include "clients/chat/chat.h"
#include "tests/clients/chat/stub.h"

#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

/* Long enough for any machine: only a failing test waits for it. */
#define PATIENCE_MS 60000

struct session {
    struct stub *stub;
    int master;
    FILE *terminal;
    struct kva_chat_params params;
    struct kva_err err;
    enum kva_status status;
    pthread_t thread;
    char seen[1 << 16];
    size_t length;
    size_t read_to; /* what `wait_for` has found ends here */
};

static void *run(void *opaque)
{
    struct session *session = opaque;
    session->status = kva_chat_run(&session->params, &session->err);
    return NULL;
}

static void begin(struct session *session)
{
    int slave;
    const struct winsize size = {.ws_row = 40, .ws_col = 100};
    memset(session, 0, sizeof(*session));
    if (openpty(&session->master, &slave, NULL, NULL, &size) != 0) {
        printf("SKIPPED: this machine has no pseudo-terminals (/dev/pts)\n");
        skip();
    }
    session->stub = stub_start(false);
    session->terminal = fdopen(slave, "r+");
    session->params = (struct kva_chat_params){
        .url = stub_url(session->stub),
        .top_p = 1,
        .seed = -1,
        .no_color = true,
        .in = session->terminal,
        .out = session->terminal,
        .notes = session->terminal,
    };
    pthread_create(&session->thread, NULL, run, session);
}

static enum kva_status end(struct session *session)
{
    pthread_join(session->thread, NULL);
    fclose(session->terminal);
    close(session->master);
    stub_stop(session->stub);
    return session->status;
}

static void wait_for(struct session *session, const char *text)
{
    for (;;) {
        char *found = strstr(session->seen + session->read_to, text);
        if (found) {
            session->read_to = (size_t)(found - session->seen) + strlen(text);
            return;
        }
        struct pollfd fd = {.fd = session->master, .events = POLLIN};
        ssize_t length = -1;
        if (poll(&fd, 1, PATIENCE_MS) == 1)
            length = read(session->master, session->seen + session->length,
                          sizeof(session->seen) - 1 - session->length);
        if (length <= 0)
            fail_msg("no '%s' after '%s'", text, session->seen);
        session->length += (size_t)length;
    }
}

/* A prompt that takes keys: libedit shows it before it takes the terminal's own editing away. */
static void wait_for_prompt(struct session *session, const char *prompt)
{
    struct termios modes;
    wait_for(session, prompt);
    for (int ms = 0; ms < PATIENCE_MS; ms++) {
        assert_int_equal(tcgetattr(session->master, &modes), 0);
        if (!(modes.c_lflag & ICANON))
            return;
        usleep(1000);
    }
    fail_msg("the terminal stays in canonical mode");
}

static void type(struct session *session, const char *text)
{
    assert_int_equal(write(session->master, text, strlen(text)), (ssize_t)strlen(text));
}

static void test_terminal__ctrl_c_stops_the_answer_and_keeps_its_part(void **state KVA_UNUSED)
{
    static struct session session;
    begin(&session);
    wait_for(&session, "/help");
    wait_for_prompt(&session, "> ");
    type(&session, "endless\n");
    wait_for(&session, "tick ");
    pthread_kill(session.thread, SIGINT);
    wait_for(&session, ", stopped]");
    stub_wait_left(session.stub, 1);
    wait_for_prompt(&session, "> ");
    type(&session, "hello\n");
    wait_for(&session, "Hello");
    wait_for(&session, "[9 prompt tokens, 2 tokens, first after ");
    wait_for_prompt(&session, "> ");
    const char *body = stub_body(session.stub, 1);
    assert_non_null(strstr(body, "{\"role\":\"assistant\",\"content\":\"tick "));
    type(&session, "\x04");
    assert_int_equal(end(&session), KVA_OK);
}

static void test_terminal__errors_do_not_end_it(void **state KVA_UNUSED)
{
    static struct session session;
    begin(&session);
    wait_for_prompt(&session, "> ");
    type(&session, "503\n");
    wait_for(&session, "as asked (it asks to wait 7 s before the next try)");
    wait_for_prompt(&session, "> ");
    type(&session, "error\n");
    wait_for(&session, "gave up: device");
    wait_for_prompt(&session, "> ");
    type(&session, "control\n");
    wait_for(&session, "\r\n\xE2\x90\x9B]0;x\xE2\x90\x87 lo");
    wait_for_prompt(&session, "> ");
    /* The 503 got no answer, so it is no part of what follows; the broken answer's part is. */
    assert_null(strstr(stub_body(session.stub, 1), "503"));
    assert_non_null(strstr(stub_body(session.stub, 2), "\"content\":\"Hel\"}"));
    type(&session, "/quit\n");
    assert_int_equal(end(&session), KVA_OK);
    assert_null(strstr(session.seen, "\x1b]0;"));
}

static void test_terminal__a_retry_that_fails_keeps_the_old_answer(void **state KVA_UNUSED)
{
    static struct session session;
    begin(&session);
    wait_for_prompt(&session, "> ");
    type(&session, "hello\n");
    wait_for(&session, "Hello");
    wait_for_prompt(&session, "> ");
    type(&session, "/model nope\n");
    wait_for(&session, "[model nope]");
    wait_for_prompt(&session, "> ");
    type(&session, "/retry\n");
    wait_for(&session, "as asked");
    wait_for_prompt(&session, "> ");
    type(&session, "/model first\n");
    wait_for(&session, "[model first]");
    wait_for_prompt(&session, "> ");
    type(&session, "document\n");
    wait_for(&session, "whole");
    wait_for_prompt(&session, "> ");
    assert_null(strstr(stub_body(session.stub, 1), "assistant"));
    assert_non_null(strstr(stub_body(session.stub, 2),
                           "[{\"role\":\"user\",\"content\":\"hello\"},"
                           "{\"role\":\"assistant\",\"content\":\"Hello\"},"
                           "{\"role\":\"user\",\"content\":\"document\"}]"));
    type(&session, "/quit\n");
    assert_int_equal(end(&session), KVA_OK);
}

static void test_terminal__editing_and_ctrl_c_at_the_prompt(void **state KVA_UNUSED)
{
    static struct session session;
    begin(&session);
    wait_for_prompt(&session, "> ");
    type(&session, "half");
    wait_for(&session, "half");
    pthread_kill(session.thread, SIGINT);
    wait_for(&session, "^C");
    wait_for_prompt(&session, "> ");
    /* Backspace over two characters of several bytes, then an earlier line. */
    type(&session, "hello\xC3\xA9\xED\x95\x9C\x7f\x7f\n");
    wait_for(&session, "Hello");
    wait_for_prompt(&session, "> ");
    type(&session, "\x10\n");
    wait_for(&session, "Hello");
    wait_for_prompt(&session, "> ");
    type(&session, "\"\"\"\n");
    wait_for_prompt(&session, ". ");
    pthread_kill(session.thread, SIGINT);
    wait_for_prompt(&session, "> ");
    assert_non_null(strstr(stub_body(session.stub, 0), "\"content\":\"hello\"}]"));
    assert_non_null(strstr(stub_body(session.stub, 1), "\"content\":\"hello\"}]"));
    assert_null(stub_body(session.stub, 2));
    pthread_kill(session.thread, SIGINT);
    assert_int_equal(end(&session), KVA_OK);
}

static void test_terminal__sigterm_ends_it(void **state KVA_UNUSED)
{
    static struct session session;
    begin(&session);
    wait_for_prompt(&session, "> ");
    pthread_kill(session.thread, SIGTERM);
    assert_int_equal(end(&session), KVA_OK);
}

/* An answer that comes in one read is no faster than the whole of it took. */
static void test_terminal__rate_is_of_the_whole_answer(void **state KVA_UNUSED)
{
    static struct session session;
    begin(&session);
    wait_for_prompt(&session, "> ");
    type(&session, "late\n");
    wait_for(&session, "2 tokens, first after ");
    wait_for(&session, " s, ");
    size_t at = session.read_to;
    wait_for(&session, " tokens/s in all]");
    double rate = strtod(session.seen + at, NULL);
    assert_true(rate > 0 && rate <= 2 * 1000.0 / STUB_LATE_MS);
    wait_for_prompt(&session, "> ");
    type(&session, "\x04");
    assert_int_equal(end(&session), KVA_OK);
}

/* ncurses remembers four terminals, and loses some bytes of what a fifth one displaces. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libtinfo";
}

int main(void)
{
    setenv("TERM", "xterm", 1);
    setlocale(LC_CTYPE, "C.UTF-8");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terminal__ctrl_c_stops_the_answer_and_keeps_its_part),
        cmocka_unit_test(test_terminal__errors_do_not_end_it),
        cmocka_unit_test(test_terminal__a_retry_that_fails_keeps_the_old_answer),
        cmocka_unit_test(test_terminal__editing_and_ctrl_c_at_the_prompt),
        cmocka_unit_test(test_terminal__rate_is_of_the_whole_answer),
        cmocka_unit_test(test_terminal__sigterm_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
