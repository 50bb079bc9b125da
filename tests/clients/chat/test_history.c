#include "tests/cmocka.h"

#include "clients/chat/history.h"
#include "clients/chat/wire.h"

#include <string.h>

static void expect_json(const struct kva_chat_history *history, const char *want)
{
    struct kva_buf out;
    kva_buf_init(&out, 1 << 16);
    kva_chat_history_json(history, &out);
    assert_string_equal(out.data, want);
    kva_buf_finish(&out);
}

static size_t turn(struct kva_chat_history *history, const char *user, const char *answer)
{
    size_t asked = 0, answered = 0;
    assert_int_equal(kva_chat_history_ask(history, user, strlen(user), &asked, NULL), KVA_OK);
    if (answer)
        assert_int_equal(kva_chat_history_answer(history, answer, strlen(answer), &answered, NULL),
                         KVA_OK);
    return asked + answered;
}

static void test_history__messages_in_order(void **state KVA_UNUSED)
{
    struct kva_chat_history history;
    size_t dropped;
    kva_chat_history_init(&history, 1000);
    expect_json(&history, "[]");
    assert_int_equal(kva_chat_history_system(&history, "be \"brief\"", 10, &dropped, NULL), KVA_OK);
    turn(&history, "a", "b\n");
    turn(&history, "c", NULL);
    expect_json(&history, "[{\"role\":\"system\",\"content\":\"be \\\"brief\\\"\"},"
                          "{\"role\":\"user\",\"content\":\"a\"},"
                          "{\"role\":\"assistant\",\"content\":\"b\\n\"},"
                          "{\"role\":\"user\",\"content\":\"c\"}]");
    assert_int_equal(history.bytes, 14);
    kva_chat_history_clear(&history);
    assert_int_equal(history.bytes, 10);
    assert_int_equal(kva_chat_history_system(&history, "", 0, &dropped, NULL), KVA_OK);
    expect_json(&history, "[]");
    assert_int_equal(history.bytes, 0);
    kva_chat_history_finish(&history);
}

static void test_history__an_open_turn_is_replaced_and_retry_reopens(void **state KVA_UNUSED)
{
    struct kva_chat_history history;
    struct kva_chat_text old;
    size_t dropped;
    kva_chat_history_init(&history, 1000);
    assert_false(kva_chat_history_retry(&history, &old));
    turn(&history, "lost", NULL);
    turn(&history, "asked", "");
    expect_json(&history, "[{\"role\":\"user\",\"content\":\"asked\"},"
                          "{\"role\":\"assistant\",\"content\":\"\"}]");
    assert_int_equal(kva_chat_history_answer(&history, "x", 1, &dropped, NULL), KVA_EINTERNAL);
    assert_true(kva_chat_history_retry(&history, &old));
    expect_json(&history, "[{\"role\":\"user\",\"content\":\"asked\"}]");
    assert_int_equal(kva_chat_history_answer(&history, "x", 1, &dropped, NULL), KVA_OK);
    kva_chat_history_retry_end(&history, &old);
    kva_chat_history_finish(&history);
}

static void test_history__a_retry_keeps_the_old_answer_until_a_new_one_came(void **state KVA_UNUSED)
{
    struct kva_chat_history history;
    struct kva_chat_text old;
    struct kva_err err;
    size_t dropped;
    kva_chat_history_init(&history, 10);
    turn(&history, "12", "345");
    turn(&history, "q", "old");
    /* None came. */
    assert_true(kva_chat_history_retry(&history, &old));
    assert_int_equal(history.bytes, 6);
    kva_chat_history_retry_end(&history, &old);
    assert_null(old.data);
    assert_int_equal(history.bytes, 9);
    expect_json(&history, "[{\"role\":\"user\",\"content\":\"12\"},"
                          "{\"role\":\"assistant\",\"content\":\"345\"},"
                          "{\"role\":\"user\",\"content\":\"q\"},"
                          "{\"role\":\"assistant\",\"content\":\"old\"}]");
    /* One came that does not fit. */
    assert_true(kva_chat_history_retry(&history, &old));
    assert_int_equal(kva_chat_history_answer(&history, "0123456789", 10, &dropped, &err),
                     KVA_ETOOBIG);
    kva_chat_history_retry_end(&history, &old);
    assert_int_equal(history.count, 2);
    assert_int_equal(history.bytes, 9);
    /* One came; it has the old one's room. */
    assert_true(kva_chat_history_retry(&history, &old));
    assert_int_equal(kva_chat_history_answer(&history, "new", 3, &dropped, NULL), KVA_OK);
    assert_int_equal(dropped, 0);
    kva_chat_history_retry_end(&history, &old);
    assert_null(old.data);
    assert_int_equal(history.bytes, 9);
    /* An empty one is one too. */
    assert_true(kva_chat_history_retry(&history, &old));
    assert_int_equal(kva_chat_history_answer(&history, "", 0, &dropped, NULL), KVA_OK);
    kva_chat_history_retry_end(&history, &old);
    assert_int_equal(history.bytes, 6);
    /* A turn that had no answer stays open, and is replaced by the next. */
    turn(&history, "r", NULL);
    assert_true(kva_chat_history_retry(&history, &old));
    assert_null(old.data);
    kva_chat_history_retry_end(&history, &old);
    turn(&history, "s", "t");
    expect_json(&history, "[{\"role\":\"user\",\"content\":\"12\"},"
                          "{\"role\":\"assistant\",\"content\":\"345\"},"
                          "{\"role\":\"user\",\"content\":\"q\"},"
                          "{\"role\":\"assistant\",\"content\":\"\"},"
                          "{\"role\":\"user\",\"content\":\"s\"},"
                          "{\"role\":\"assistant\",\"content\":\"t\"}]");
    assert_int_equal(history.bytes, 8);
    kva_chat_history_finish(&history);
}

static void test_history__oldest_turns_go_when_bytes_run_out(void **state KVA_UNUSED)
{
    struct kva_chat_history history;
    struct kva_err err;
    size_t dropped = 99;
    kva_chat_history_init(&history, 20);
    assert_int_equal(turn(&history, "12345", "12345"), 0);
    assert_int_equal(turn(&history, "123", "12345"), 0);
    assert_int_equal(turn(&history, "ab", "c"), 1);
    assert_int_equal(history.count, 2);
    assert_int_equal(history.bytes, 11);
    assert_int_equal(kva_chat_history_system(&history, "0123456789", 10, &dropped, &err), KVA_OK);
    assert_int_equal(dropped, 1);

    /* What can never fit is refused and drops nothing. */
    dropped = 99;
    assert_int_equal(kva_chat_history_ask(&history, "0123456789a", 11, &dropped, &err),
                     KVA_ETOOBIG);
    assert_non_null(strstr(err.message, "11 bytes"));
    assert_non_null(strstr(err.message, "20 bytes"));
    assert_int_equal(dropped, 99);
    assert_int_equal(history.count, 1);
    assert_int_equal(kva_chat_history_ask(&history, "0123456789", 10, &dropped, &err), KVA_OK);
    assert_int_equal(dropped, 1);
    /* The question stays when its answer does not fit. */
    assert_int_equal(kva_chat_history_answer(&history, "x", 1, &dropped, &err), KVA_ETOOBIG);
    assert_int_equal(history.count, 1);
    assert_int_equal(history.bytes, 20);
    kva_chat_history_finish(&history);
}

static void test_history__turns_are_bounded(void **state KVA_UNUSED)
{
    struct kva_chat_history history;
    kva_chat_history_init(&history, 1 << 20);
    size_t dropped = 0;
    for (size_t i = 0; i < KVA_CHAT_TURNS_MAX + 3; i++)
        dropped += turn(&history, "q", "a");
    assert_int_equal(dropped, 3);
    assert_int_equal(history.count, KVA_CHAT_TURNS_MAX);
    assert_int_equal(kva_chat_history_ask(&history, "", 0, &dropped, NULL), KVA_EINVAL);
    kva_chat_history_finish(&history);
}

static void test_wire__body(void **state KVA_UNUSED)
{
    struct kva_chat_history history;
    struct kva_buf out;
    kva_chat_history_init(&history, 1000);
    turn(&history, "hi", NULL);
    kva_buf_init(&out, 4096);
    const struct kva_chat_sampling sampling = {100, 0.25, 0.5, 7};
    kva_chat_wire_body(&history, "m\"x", &sampling, &out);
    assert_string_equal(out.data,
                        "{\"model\":\"m\\\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}"
                        "],\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                        "\"temperature\":0.25,\"top_p\":0.5,\"max_tokens\":100,\"seed\":7}");
    kva_buf_finish(&out);
    kva_chat_history_finish(&history);
}

static void test_wire__pieces_of_any_shape(void **state KVA_UNUSED)
{
    static const char *const harmless[] = {
        "{}",
        "{\"choices\":[]}",
        "{\"choices\":{}}",
        "{\"choices\":[7]}",
        "{\"choices\":[{\"delta\":null}]}",
        "{\"choices\":[{\"delta\":{\"content\":null,\"reasoning\":3},\"finish_reason\":null}]}",
        "{\"usage\":null,\"error\":null}",
    };
    struct kva_chat_piece piece;
    struct kva_err err;
    for (size_t i = 0; i < KVA_COUNT_OF(harmless); i++) {
        assert_int_equal(kva_chat_piece_read(&piece, harmless[i], strlen(harmless[i]), &err),
                         KVA_OK);
        assert_null(piece.content);
        assert_null(piece.finish_reason);
        assert_null(piece.error);
        assert_false(piece.has_usage);
        kva_chat_piece_finish(&piece);
    }
    const char *full = "{\"choices\":[{\"delta\":{\"content\":\"x\",\"reasoning_content\":\"y\"},"
                       "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":-4,"
                       "\"completion_tokens\":1e300,\"prompt_tokens_details\":"
                       "{\"cached_tokens\":3}}}";
    assert_int_equal(kva_chat_piece_read(&piece, full, strlen(full), &err), KVA_OK);
    assert_string_equal(piece.content, "x");
    assert_string_equal(piece.reasoning, "y");
    assert_string_equal(piece.finish_reason, "stop");
    assert_int_equal(piece.prompt_tokens, 0);
    assert_int_equal(piece.output_tokens, 1000000000000000);
    assert_int_equal(piece.cached_tokens, 3);
    kva_chat_piece_finish(&piece);
    const char *bad[] = {"", "[1]", "{\"a\":", "<html>\x1b[2J</html>"};
    for (size_t i = 0; i < KVA_COUNT_OF(bad); i++) {
        assert_int_equal(kva_chat_piece_read(&piece, bad[i], strlen(bad[i]), &err), KVA_EFORMAT);
        assert_null(strchr(err.message, '\x1b'));
    }
}

static void test_wire__error_messages(void **state KVA_UNUSED)
{
    static const struct {
        const char *body, *want;
    } cases[] = {
        {"{\"error\":{\"message\":\"too\\nlong\",\"type\":\"x\"}}", "too long"},
        {"{\"error\":\"flat\"}", "flat"},
        {"{\"message\":\"m\"}", "m"},
        {"{\"detail\":\"d\"}", "d"},
        {"{\"error\":{}}", "the server reported an error without a message"},
        {"Bad\x1bGateway", "Bad\xE2\x90\x9BGateway"},
        {"", ""},
    };
    char line[100];
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        kva_chat_wire_error(cases[i].body, strlen(cases[i].body), line, sizeof(line));
        assert_string_equal(line, cases[i].want);
    }
}

static void test_wire__progress(void **state KVA_UNUSED)
{
    static const struct {
        const char *comment, *want;
    } cases[] = {
        {"keep-alive prefill 512/2048", "prefill 25% of 2048 tokens"},
        {"keep-alive prefill 2048/2048", "prefill 100% of 2048 tokens"},
        {"keep-alive prefill 9/3", "prefill 9/3"},
        {"keep-alive prefill 0/0", "prefill 0/0"},
        {"keep-alive queued", "queued"},
        {"keep-alive", ""},
        {"", ""},
        {"OTHER \x1b[2J", "OTHER ???[2J"},
    };
    char line[100];
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        kva_chat_wire_progress(cases[i].comment, strlen(cases[i].comment), line, sizeof(line));
        assert_string_equal(line, cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_history__messages_in_order),
        cmocka_unit_test(test_history__an_open_turn_is_replaced_and_retry_reopens),
        cmocka_unit_test(test_history__a_retry_keeps_the_old_answer_until_a_new_one_came),
        cmocka_unit_test(test_history__oldest_turns_go_when_bytes_run_out),
        cmocka_unit_test(test_history__turns_are_bounded),
        cmocka_unit_test(test_wire__body),
        cmocka_unit_test(test_wire__pieces_of_any_shape),
        cmocka_unit_test(test_wire__error_messages),
        cmocka_unit_test(test_wire__progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
