/* Whole chats from a file of messages, as through a pipe. */
#include "tests/cmocka.h"

#include "clients/chat/chat.h"
#include "tests/clients/chat/stub.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct stub *stub;

struct run {
    struct kva_err err;
    enum kva_status status;
    char out[4096];
    char notes[4096];
};

static void read_back(FILE *file, char *text, size_t size)
{
    rewind(file);
    size_t length = fread(text, 1, size - 1, file);
    text[length] = '\0';
    fclose(file);
}

static void chat_with(struct kva_chat_params params, const char *input, struct run *run)
{
    params.in = tmpfile();
    params.out = tmpfile();
    params.notes = tmpfile();
    params.url = params.url ? params.url : stub_url(stub);
    params.top_p = 1;
    params.seed = -1;
    fputs(input, params.in);
    rewind(params.in);
    memset(&run->err, 0, sizeof(run->err));
    run->status = kva_chat_run(&params, &run->err);
    fclose(params.in);
    read_back(params.out, run->out, sizeof(run->out));
    read_back(params.notes, run->notes, sizeof(run->notes));
}

static void chat(const char *input, struct run *run)
{
    chat_with((struct kva_chat_params){.max_tokens = 5}, input, run);
}

static void expect_part(const char *text, const char *part)
{
    if (!text || !strstr(text, part))
        fail_msg("'%s' is not in '%s'", part, text ? text : "(nothing)");
}

static int setup(void **state KVA_UNUSED)
{
    stub = stub_start(false);
    return 0;
}

static int teardown(void **state KVA_UNUSED)
{
    stub_stop(stub);
    return 0;
}

static void test_chat__streams_and_remembers(void **state KVA_UNUSED)
{
    struct run run;
    chat_with((struct kva_chat_params){.max_tokens = 5, .system = "S"}, "hello\r\n\n  \nhello",
              &run);
    assert_int_equal(run.status, KVA_OK);
    assert_string_equal(run.out, "Hello\nHello\n");
    assert_string_equal(run.notes, "");
    expect_part(stub_body(stub, 0),
                "{\"model\":\"first\",\"messages\":[{\"role\":\"system\","
                "\"content\":\"S\"},{\"role\":\"user\",\"content\":\"hello\"}]");
    expect_part(stub_body(stub, 1), "{\"role\":\"assistant\",\"content\":\"Hello\"},"
                                    "{\"role\":\"user\",\"content\":\"hello\"}]");
    expect_part(stub_body(stub, 1), "\"include_usage\":true");
    assert_null(stub_body(stub, 2));
}

static void test_chat__several_lines(void **state KVA_UNUSED)
{
    struct run run;
    chat("one \\\ntwo\n\"\"\"\n/three\n\nfour\n\"\"\"\n\"\"\"five\"\"\"\nsix\\", &run);
    assert_int_equal(run.status, KVA_OK);
    expect_part(stub_body(stub, 0), "\"content\":\"one \\ntwo\"}]");
    expect_part(stub_body(stub, 1), "\"content\":\"/three\\n\\nfour\"}]");
    expect_part(stub_body(stub, 2), "\"content\":\"five\"}]");
    expect_part(stub_body(stub, 3), "\"content\":\"six\\n\"}]");
}

static void test_chat__control_characters_are_shown_and_kept(void **state KVA_UNUSED)
{
    struct run run;
    chat("control\nhello\n", &run);
    assert_int_equal(run.status, KVA_OK);
    assert_string_equal(run.out, "\xE2\x90\x9B]0;x\xE2\x90\x87 lo\nHello\n");
    expect_part(stub_body(stub, 1), "\\u001b]0;x\\u0007 lo");
}

static void test_chat__answers_of_other_kinds(void **state KVA_UNUSED)
{
    struct run run;
    chat("document\n", &run);
    assert_int_equal(run.status, KVA_OK);
    assert_string_equal(run.out, "whole\n");
    chat("limit\n", &run);
    assert_int_equal(run.status, KVA_OK);
    expect_part(run.notes, "limit of tokens");
    chat("html\n", &run);
    assert_int_equal(run.status, KVA_EFORMAT);
    expect_part(run.err.message, "<html>");
}

static void test_chat__failures_end_the_run_and_say_why(void **state KVA_UNUSED)
{
    static const struct {
        const char *input;
        enum kva_status status;
        const char *parts[3];
        const char *out;
    } cases[] = {
        {"503\nhello\n", KVA_EBUSY, {"(503)", "as asked", "7 s"}, ""},
        {"429\n", KVA_ERATE, {"429", "as asked"}, ""},
        {"401\n", KVA_EAUTH, {"401", "key", "as asked"}, ""},
        {"400\n", KVA_EINVAL, {"400", "as asked"}, ""},
        {"500\n", KVA_EINTERNAL, {"500", "as asked"}, ""},
        {"302\n", KVA_EINVAL, {"redirects"}, ""},
        {"error\nhello\n", KVA_EINTERNAL, {"device", "failed"}, "Hel\n"},
        {"cut\nhello\n", KVA_EIO, {"lost"}, "Hel\n"},
        {"/model nope\nhello\n", KVA_ENOTFOUND, {"404", "model", "as asked"}, ""},
        {"/nothing\nhello\n", KVA_EINVAL, {"/nothing", "/help"}, ""},
        {"/retry\n", KVA_EINVAL, {"nothing"}, ""},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct run run;
        chat(cases[i].input, &run);
        assert_int_equal(run.status, cases[i].status);
        assert_string_equal(run.out, cases[i].out);
        for (size_t j = 0; j < 3 && cases[i].parts[j]; j++)
            expect_part(run.err.message, cases[i].parts[j]);
        assert_null(strchr(run.err.message, '\x1b'));
    }
}

static void test_chat__unreachable_and_wrong_urls(void **state KVA_UNUSED)
{
    static const struct {
        const char *url, *key;
        enum kva_status status;
        const char *part;
    } cases[] = {
        {"http://127.0.0.1:1/v1", NULL, KVA_EIO, "cannot reach http://127.0.0.1:1/v1"},
        {"127.0.0.1:8000", NULL, KVA_EINVAL, "http://"},
        {"file:///etc/passwd", NULL, KVA_EINVAL, "http://"},
        {"http://127.0.0.1/v1?x=1", NULL, KVA_EINVAL, "query"},
        {"http://127.0.0.1:99999/v1", NULL, KVA_EINVAL, "not a valid URL"},
        {"http://127.0.0.1/v1", "a\r\nHost: b", KVA_EINVAL, "byte 1"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct run run;
        chat_with((struct kva_chat_params){.url = cases[i].url, .api_key = cases[i].key}, "hello\n",
                  &run);
        assert_int_equal(run.status, cases[i].status);
        expect_part(run.err.message, cases[i].part);
    }
    /* TLS to a server that speaks none. */
    char url[64];
    struct run run;
    snprintf(url, sizeof(url), "https%s", stub_url(stub) + 4);
    chat_with((struct kva_chat_params){.url = url}, "hello\n", &run);
    assert_int_equal(run.status, KVA_EIO);
    expect_part(run.err.message, "127.0.0.1");
}

static void test_chat__server_that_lists_no_model(void **state KVA_UNUSED)
{
    char url[64];
    struct run run;
    snprintf(url, sizeof(url), "%sloading", stub_url(stub));
    chat_with((struct kva_chat_params){.url = url}, "hello\n", &run);
    assert_int_equal(run.status, KVA_ENOTFOUND);
    expect_part(run.err.message, "loading");
    expect_part(run.err.message, "--model-name");
}

static void test_chat__key(void **state KVA_UNUSED)
{
    struct stub *open_stub = stub;
    struct run run;
    stub = stub_start(true);
    chat("hello\n", &run);
    assert_int_equal(run.status, KVA_EAUTH);
    chat_with((struct kva_chat_params){.api_key = "other"}, "hello\n", &run);
    assert_int_equal(run.status, KVA_EAUTH);
    assert_null(strstr(run.err.message, "other"));
    chat_with((struct kva_chat_params){.api_key = "key"}, "hello\n", &run);
    assert_int_equal(run.status, KVA_OK);
    stub_stop(stub);
    stub = open_stub;
}

static void test_chat__commands(void **state KVA_UNUSED)
{
    struct run run;
    chat("/system be brief\nhello\n/clear\n/model second\nhello\n/retry\n/model\n/help\n/quit\nx\n",
         &run);
    assert_int_equal(run.status, KVA_OK);
    assert_string_equal(run.out, "Hello\nHello\nHello\n");
    expect_part(run.notes, "* second");
    expect_part(run.notes, "/retry");
    expect_part(stub_body(stub, 0), "be brief");
    expect_part(stub_body(stub, 1), "\"model\":\"second\",\"messages\":[{\"role\":\"system\",");
    assert_null(strstr(stub_body(stub, 1), "assistant"));
    assert_string_equal(stub_body(stub, 1), stub_body(stub, 2));
    assert_null(stub_body(stub, 3));
    chat("/clear now\n", &run);
    assert_int_equal(run.status, KVA_EINVAL);
}

static void test_chat__save_never_overwrites(void **state KVA_UNUSED)
{
    char directory[] = "kvahead-chat-XXXXXX";
    char input[256], path[64], text[512];
    struct run run;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof(path), "%s/saved file", directory);
    snprintf(input, sizeof(input), "hello\n/save %s\n/save %s\n", path, path);
    chat(input, &run);
    assert_int_equal(run.status, KVA_EINVAL);
    expect_part(run.err.message, "exists");
    expect_part(run.notes, "1 turn saved");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    read_back(file, text, sizeof(text));
    assert_string_equal(text, "{\"model\":\"first\",\"messages\":[{\"role\":\"user\",\"content\":"
                              "\"hello\"},{\"role\":\"assistant\",\"content\":\"Hello\"}]}\n");
    unlink(path);
    rmdir(directory);
    chat("/save no/such/folder/x\n", &run);
    assert_int_equal(run.status, KVA_EIO);
    chat("/save\n", &run);
    assert_int_equal(run.status, KVA_EINVAL);
}

static void test_chat__conversation_is_bounded(void **state KVA_UNUSED)
{
    struct run run;
    const struct kva_chat_params params = {.history_bytes_max = 22};
    chat_with(params, "hello\nhello\nhello\n", &run);
    assert_int_equal(run.status, KVA_OK);
    expect_part(run.notes, "the 1 oldest turn is left out");
    expect_part(run.notes, "22 bytes");
    assert_string_equal(run.out, "Hello\nHello\nHello\n");
    chat_with(params, "0123456789012345678901234\nhello\n", &run);
    assert_int_equal(run.status, KVA_ETOOBIG);
    expect_part(run.err.message, "22 bytes");
    chat_with(params, "\"\"\"0123456789\n0123456789\n0123456789\"\"\"\nhello\n", &run);
    assert_int_equal(run.status, KVA_ETOOBIG);
    /* An answer that does not fit is stopped, not collected. */
    chat_with(params, "endless\n", &run);
    assert_int_equal(run.status, KVA_ETOOBIG);
    expect_part(run.err.message, "22 bytes");
    stub_wait_left(stub, 1);
}

static void on_former(int number KVA_UNUSED)
{
}

static void test_chat__interrupt_stops_and_signals_come_back(void **state KVA_UNUSED)
{
    struct run run;
    struct sigaction action = {.sa_handler = on_former}, now;
    sigaction(SIGINT, &action, NULL);
    chat("interrupt\nhello\n", &run);
    assert_int_equal(run.status, KVA_ECANCELLED);
    assert_null(strstr(run.out, "Hello"));
    stub_wait_left(stub, 1);
    sigaction(SIGINT, NULL, &now);
    assert_ptr_equal(now.sa_handler, on_former);
    sigaction(SIGPIPE, NULL, &now);
    assert_true(now.sa_handler == SIG_DFL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_chat__streams_and_remembers),
        TEST(test_chat__several_lines),
        TEST(test_chat__control_characters_are_shown_and_kept),
        TEST(test_chat__answers_of_other_kinds),
        TEST(test_chat__failures_end_the_run_and_say_why),
        TEST(test_chat__unreachable_and_wrong_urls),
        TEST(test_chat__server_that_lists_no_model),
        TEST(test_chat__key),
        TEST(test_chat__commands),
        TEST(test_chat__save_never_overwrites),
        TEST(test_chat__conversation_is_bounded),
        TEST(test_chat__interrupt_stops_and_signals_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
