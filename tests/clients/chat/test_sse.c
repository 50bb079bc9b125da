#include "tests/cmocka.h"

#include "clients/chat/sse.h"

#include <string.h>

struct log {
    struct kva_buf text; /* "E(name|data)" and "C(text)" */
};

static void on_event(void *opaque, const char *name, const char *data, size_t length)
{
    struct log *log = opaque;
    assert_int_equal(strlen(data), length);
    kva_buf_printf(&log->text, "E(%s|%s)", name, data);
}

static void on_comment(void *opaque, const char *text, size_t length)
{
    struct log *log = opaque;
    kva_buf_printf(&log->text, "C(%.*s)", (int)length, text);
}

/* Parses `text` in pieces that end at `first` and `second`. */
static void parse(const char *text, size_t length, size_t first, size_t second, struct log *log)
{
    struct kva_chat_sse sse;
    struct kva_err err;
    const struct kva_chat_sse_handler handler = {on_event, on_comment, log};
    kva_buf_init(&log->text, 1 << 16);
    kva_chat_sse_init(&sse, &handler, 1 << 16);
    assert_int_equal(kva_chat_sse_push(&sse, text, first, &err), KVA_OK);
    assert_int_equal(kva_chat_sse_push(&sse, text + first, second - first, &err), KVA_OK);
    assert_int_equal(kva_chat_sse_push(&sse, text + second, length - second, &err), KVA_OK);
    kva_chat_sse_finish(&sse);
}

static void expect(const char *text, const char *want)
{
    struct log log;
    size_t length = strlen(text);
    for (size_t first = 0; first <= length; first++) {
        for (size_t second = first; second <= length; second++) {
            parse(text, length, first, second, &log);
            assert_string_equal(log.text.data ? log.text.data : "", want);
            kva_buf_finish(&log.text);
        }
    }
}

static void test_sse__events_at_every_pair_of_splits(void **state KVA_UNUSED)
{
    expect("data: {\"a\":1}\n\ndata: [DONE]\n\n", "E(|{\"a\":1})E(|[DONE])");
    expect("data: one\r\n\r\ndata: two\r\n\r\n", "E(|one)E(|two)");
    expect("data: one\r\rdata: two\r\r", "E(|one)E(|two)");
    expect("data: a\r\ndata: b\ndata\ndata:c\n\n", "E(|a\nb\n\nc)");
    expect("data: \xF0\x9F\x98\x80\n\n", "E(|\xF0\x9F\x98\x80)");
}

static void test_sse__comments_and_fields(void **state KVA_UNUSED)
{
    expect(": keep-alive prefill 1/2\n\n:\n\ndata: x\n: in between\ndata: y\n\n",
           "C(keep-alive prefill 1/2)C()C(in between)E(|x\ny)");
    expect("event: error\nid: 7\nretry: 10\nunknown\ndata:  two spaces\n\ndata: z\n\n",
           "E(error| two spaces)E(|z)");
    expect("event: nothing\n\ndata\n\n", "E(|)");
    expect("\xEF\xBB\xBF"
           "data: bom\n\n\xEF\xBB\xBF"
           "data: not\n\n",
           "E(|bom)");
}

static void test_sse__unfinished_event_is_dropped(void **state KVA_UNUSED)
{
    expect("data: whole\n\ndata: cut\n", "E(|whole)");
    expect("data: cut", "");
}

static void test_sse__limits(void **state KVA_UNUSED)
{
    struct log log;
    struct kva_err err;
    struct kva_chat_sse sse;
    const struct kva_chat_sse_handler handler = {on_event, NULL, &log};
    char name[200];
    kva_buf_init(&log.text, 1 << 16);
    kva_chat_sse_init(&sse, &handler, 16);
    assert_int_equal(kva_chat_sse_push(&sse, "data: 0123456789", 16, &err), KVA_OK);
    assert_int_equal(kva_chat_sse_push(&sse, "x", 1, &err), KVA_ETOOBIG);
    assert_non_null(strstr(err.message, "16"));
    assert_int_equal(kva_chat_sse_push(&sse, "\n\n", 2, &err), KVA_ETOOBIG);
    kva_chat_sse_finish(&sse);

    kva_chat_sse_init(&sse, &handler, 16);
    const char *lines = "data: 0123456\ndata: 0123456789\n\n";
    assert_int_equal(kva_chat_sse_push(&sse, lines, strlen(lines), &err), KVA_ETOOBIG);
    kva_chat_sse_finish(&sse);

    /* A long name is cut, not a failure: names only choose a handler. */
    memset(name, 'n', sizeof(name));
    kva_chat_sse_init(&sse, &handler, 1 << 10);
    assert_int_equal(kva_chat_sse_push(&sse, "event:", 6, &err), KVA_OK);
    assert_int_equal(kva_chat_sse_push(&sse, name, sizeof(name), &err), KVA_OK);
    assert_int_equal(kva_chat_sse_push(&sse, "\n: ignored\ndata: d\n\n", 20, &err), KVA_OK);
    assert_int_equal(log.text.length, 5 - 1 + KVA_CHAT_SSE_NAME_MAX + 1);
    kva_chat_sse_finish(&sse);
    kva_buf_finish(&log.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sse__events_at_every_pair_of_splits),
        cmocka_unit_test(test_sse__comments_and_fields),
        cmocka_unit_test(test_sse__unfinished_event_is_dropped),
        cmocka_unit_test(test_sse__limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
