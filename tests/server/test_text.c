/* Behaviours 1 to 4: the text that arrives is the text that was generated. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct server_fixture f;

static int setup(void **state)
{
    (void)state;
    fixture_init(&f);
    fixture_start(&f);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_stop(&f);
    return 0;
}

/* Body with `prompt` as a JSON string and `more` members. */
static char *body_of(const char *prompt, const char *more)
{
    struct kva_buf body;
    kva_buf_init(&body, (size_t)1 << 20);
    kva_buf_puts(&body, "{\"prompt\":");
    kva_buf_json_string(&body, prompt, strlen(prompt));
    kva_buf_puts(&body, more);
    kva_buf_putc(&body, '}');
    return kva_buf_take(&body, NULL);
}

static cJSON *complete(const char *prompt, const char *more)
{
    int status;
    char *body = body_of(prompt, more);
    cJSON *json = client_post_json(f.port, "/v1/completions", body, &status);
    assert_int_equal(status, 200);
    free(body);
    return json;
}

static void complete_stream(const char *prompt, const char *more, struct stream *stream)
{
    struct reply reply;
    char all[512];
    snprintf(all, sizeof(all), "%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}",
             more);
    char *body = body_of(prompt, all);
    client_post(f.port, "/v1/completions", body, &reply);
    assert_int_equal(reply.status, 200);
    assert_true(reply.complete);
    assert_true(kva_utf8_valid(reply.body, reply.body_bytes));
    stream_parse(reply.body, stream);
    assert_true(stream->done);
    assert_false(stream->error);
    free(body);
    reply_finish(&reply);
}

static void test_serving__01_streamed_text_equals_whole_text(void **state)
{
    (void)state;
    static const char *const prompts[] = {
        "hello \xF0\x9F\x91\x8B\xF0\x9F\x8F\xBD world",                  /* emoji with a modifier */
        "\xEC\x95\x88\xEB\x85\x95 \xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", /* Hangul, also decomposed
                                                                          */
        "e\xCC\x81 n\xCC\x83 \xE0\xA4\x95\xE0\xA5\x8D\xE0\xA4\xB7",      /* combining characters */
        "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB\xEF\xB8\x8F!",     /* joined emoji */
    };
    for (size_t i = 0; i < KVA_COUNT_OF(prompts); i++) {
        for (unsigned max = 1; max <= strlen(prompts[i]) + 2; max++) {
            char more[64];
            struct stream stream;
            snprintf(more, sizeof(more), ",\"max_tokens\":%u", max);
            cJSON *whole = complete(prompts[i], more);
            const char *text = json_text(whole, "choices.0.text");
            complete_stream(prompts[i], more, &stream);
            assert_string_equal(stream.text[0], text);
            assert_string_equal(stream.finish[0], json_text(whole, "choices.0.finish_reason"));
            assert_true(json_number(whole, "usage.completion_tokens") ==
                        json_number(stream.last, "usage.completion_tokens"));
            assert_true(kva_utf8_valid(text, strlen(text)));
            if (max > strlen(prompts[i]))
                assert_string_equal(text, prompts[i]);
            stream_finish(&stream);
            cJSON_Delete(whole);
        }
    }
}

static void test_serving__02_stop_strings_never_leak_and_lose_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *prompt, *stop, *text, *finish;
    } cases[] = {
        {"aaSTOPbb", "\"STOP\"", "aa", "stop"},
        {"aaSTObb", "\"STOP\"", "aaSTObb", "stop"}, /* EOS: nothing is held back for good */
        {"aaSTO", "\"STOP\"", "aaSTO", "stop"},
        {"aabab", "\"abab\"", "a", "stop"},
        {"ababab!", "\"abab!\"", "ab", "stop"},
        {"xabcd", "[\"abcd\",\"bc\"]", "xa", "stop"}, /* the one that is complete first */
        {"xabcd", "[\"cd\",\"abcd\"]", "x", "stop"},  /* together: the longer one */
        {"1\n\n2", "\"\\n\\n\"", "1", "stop"},
        {"a\xF0\x9F\x91\x8B"
         "b",
         "\"\xF0\x9F\x91\x8B\"", "a", "stop"},
        {"hello", "[\"h\"]", "", "stop"},
        {"aaaaaab", "\"aaab\"", "aaa", "stop"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char more[128];
        struct stream stream;
        snprintf(more, sizeof(more), ",\"max_tokens\":100,\"stop\":%s", cases[i].stop);
        cJSON *whole = complete(cases[i].prompt, more);
        complete_stream(cases[i].prompt, more, &stream);
        assert_string_equal(json_text(whole, "choices.0.text"), cases[i].text);
        assert_string_equal(stream.text[0], cases[i].text);
        assert_string_equal(stream.finish[0], cases[i].finish);
        stream_finish(&stream);
        cJSON_Delete(whole);
    }
    fixture_wait(&f, fixture_is_idle, "stopped choices to be freed");
}

static void test_serving__02_stop_string_cut_by_max_tokens_is_text(void **state)
{
    (void)state;
    struct stream stream;
    complete_stream("xxabc", ",\"max_tokens\":3,\"stop\":\"abc\"", &stream);
    assert_string_equal(stream.text[0], "xxab"); /* "ab" is one token */
    assert_string_equal(stream.finish[0], "length");
    stream_finish(&stream);
}

static void test_serving__02_include_stop_and_min_tokens(void **state)
{
    (void)state;
    cJSON *json = complete("aaSTOPbb", ",\"max_tokens\":9,\"stop\":\"STOP\","
                                       "\"include_stop_str_in_output\":true");
    assert_string_equal(json_text(json, "choices.0.text"), "aaSTOP");
    assert_string_equal(json_text(json, "choices.0.stop_reason"), "STOP");
    cJSON_Delete(json);
    json = complete("a.b.c.d", ",\"max_tokens\":7,\"stop\":\".\",\"min_tokens\":3");
    assert_string_equal(json_text(json, "choices.0.text"), "a.b");
    cJSON_Delete(json);
    json = complete("abcd", ",\"max_tokens\":9,\"stop_token_ids\":[99]");
    assert_string_equal(json_text(json, "choices.0.text"), "ab");
    assert_true(json_number(json, "choices.0.stop_reason") == 99);
    cJSON_Delete(json);
}

static void test_serving__03_token_ids_equal_text_and_batches_keep_order(void **state)
{
    (void)state;
    int status;
    cJSON *text = client_post_json(f.port, "/v1/completions",
                                   "{\"prompt\":\"hello STOP\",\"max_tokens\":30,"
                                   "\"return_token_ids\":true}",
                                   &status);
    assert_int_equal(status, 200);
    cJSON *ids = client_post_json(f.port, "/v1/completions",
                                  "{\"prompt\":[260,111,32,263],\"max_tokens\":30,"
                                  "\"return_token_ids\":true}",
                                  &status);
    assert_int_equal(status, 200);
    assert_string_equal(json_text(text, "choices.0.text"), "hello STOP");
    assert_true(cJSON_Compare(json_at(text, "choices"), json_at(ids, "choices"), true));
    cJSON_Delete(text);
    cJSON_Delete(ids);

    cJSON *batch = client_post_json(f.port, "/v1/completions",
                                    "{\"prompt\":[\"one\",[260,111],\"three and more\",\"4\"],"
                                    "\"n\":2,\"max_tokens\":30}",
                                    &status);
    static const char *const want[] = {"one", "hello", "three and more", "4"};
    assert_int_equal(status, 200);
    assert_int_equal(cJSON_GetArraySize(json_at(batch, "choices")), 8);
    for (int i = 0; i < 8; i++) {
        char path[32];
        snprintf(path, sizeof(path), "choices.%d.index", i);
        assert_true(json_number(batch, path) == i);
        snprintf(path, sizeof(path), "choices.%d.text", i);
        assert_string_equal(json_text(batch, path), want[i / 2]);
    }
    cJSON_Delete(batch);
}

static void test_serving__04_alone_and_among_others_are_equal(void **state)
{
    (void)state;
    int fds[64];
    char body[256];
    for (unsigned i = 0; i < 64; i++) {
        snprintf(body, sizeof(body),
                 "{\"prompt\":\"request number %u says hello\",\"max_tokens\":60,"
                 "\"temperature\":0,\"kv\":{\"policy\":\"%s\"}}",
                 i, i % 2 ? "offload" : "full");
        fds[i] = client_post_open(f.port, "/v1/completions", body);
    }
    for (unsigned i = 64; i-- > 0;) {
        struct reply reply;
        client_read(fds[i], false, &reply);
        cJSON *json = cJSON_Parse(reply.body);
        snprintf(body, sizeof(body), "request number %u says hello", i);
        assert_string_equal(json_text(json, "choices.0.text"), body);
        cJSON_Delete(json);
        reply_finish(&reply);
        close(fds[i]);
    }
}

static void test_serving__chat_frames_are_as_published(void **state)
{
    (void)state;
    struct reply reply;
    struct stream stream;
    client_post(
        f.port, "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"ab\"},"
        "{\"type\":\"text\",\"text\":\"c\"}]}],\"stream\":true}",
        &reply);
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply_header(&reply, "Content-Type"), "text/event-stream; charset=utf-8");
    const char *first = strstr(reply.body, "data: ");
    assert_non_null(first);
    cJSON *frame = cJSON_ParseWithLength(first + 6, strcspn(first + 6, "\n"));
    assert_string_equal(json_text(frame, "object"), "chat.completion.chunk");
    assert_string_equal(json_text(frame, "choices.0.delta.role"), "assistant");
    assert_true(cJSON_IsNull(json_at(frame, "choices.0.finish_reason")));
    assert_null(json_at(frame, "usage"));
    cJSON_Delete(frame);
    stream_parse(reply.body, &stream);
    assert_string_equal(stream.text[0], "ab\nc");
    assert_string_equal(stream.finish[0], "stop");
    assert_int_equal(stream.frames, 5); /* role, "ab", newline, "c", the end */
    stream_finish(&stream);
    reply_finish(&reply);
}

/* Python's str.splitlines(), and httpx's iter_lines() with it, ends lines at these too. */
static void test_serving__a_frame_is_one_line_for_every_reader(void **state)
{
    (void)state;
    static const char *const ends[] = {"\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"};
    static const char *const escapes[] = {"\\u0085", "\\u2028", "\\u2029"};
#define ODD                                                                                        \
    "a\xC2\x85"                                                                                    \
    "b\xE2\x80\xA8"                                                                                \
    "c\xE2\x80\xA9"                                                                                \
    "d"
    static const char *const requests[][2] = {
        {"/v1/completions",
         "{\"prompt\":\"" ODD "\",\"echo\":true,\"stream\":true,\"logprobs\":1}"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"" ODD "\"}],\"stream\":true}"},
        {"/v1/responses",
         "{\"input\":\"" ODD "\",\"metadata\":{\"" ODD "\":\"" ODD "\"},\"stream\":true}"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"" ODD "\"}],"
                         "\"model\":\"echo\",\"max_tokens\":50,\"stream\":true}"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(requests); i++) {
        struct reply reply;
        client_post(f.port, requests[i][0], requests[i][1], &reply);
        assert_int_equal(reply.status, 200);
        for (size_t j = 0; j < KVA_COUNT_OF(ends); j++) {
            assert_null(strstr(reply.body, ends[j]));
            assert_non_null(strstr(reply.body, escapes[j]));
        }
        reply_finish(&reply);
    }
    struct stream stream;
    complete_stream(ODD, "", &stream);
    assert_string_equal(stream.text[0], ODD);
    stream_finish(&stream);
#undef ODD
}

static void test_serving__logprobs_of_completions_and_echo(void **state)
{
    (void)state;
    cJSON *json = complete("h\xC3\xA9!", ",\"max_tokens\":4,\"logprobs\":2,\"echo\":true,"
                                         "\"prompt_logprobs\":1");
    assert_string_equal(json_text(json, "choices.0.text"), "h\xC3\xA9!h\xC3\xA9!");
    const cJSON *lists = json_at(json, "choices.0.logprobs");
    assert_int_equal(cJSON_GetArraySize(json_at(lists, "tokens")), 8);
    assert_int_equal(cJSON_GetArraySize(json_at(lists, "token_logprobs")), 8);
    assert_int_equal(cJSON_GetArraySize(json_at(lists, "top_logprobs")), 8);
    assert_true(cJSON_IsNull(json_at(lists, "token_logprobs.0")));
    assert_string_equal(json_text(lists, "tokens.1"), "bytes:\\xc3");
    static const int offsets[] = {0, 1, 1, 2, 3, 4, 4, 5};
    for (int i = 0; i < 8; i++) {
        char path[32];
        snprintf(path, sizeof(path), "text_offset.%d", i);
        assert_int_equal((int)json_number(lists, path), offsets[i]);
    }
    assert_true(json_number(lists, "token_logprobs.4") == -0.25);
    assert_int_equal(cJSON_GetArraySize(json_at(json, "choices.0.prompt_logprobs")), 4);
    assert_true(cJSON_IsNull(json_at(json, "choices.0.prompt_logprobs.0")));
    cJSON_Delete(json);

    json = complete("hello", ",\"max_tokens\":0,\"logprobs\":1,\"echo\":true");
    assert_string_equal(json_text(json, "choices.0.text"), "hello");
    assert_string_equal(json_text(json, "choices.0.finish_reason"), "length");
    assert_true(json_number(json, "usage.completion_tokens") == 0);
    assert_int_equal(cJSON_GetArraySize(json_at(json, "choices.0.logprobs.tokens")), 2);
    cJSON_Delete(json);
}

static void test_serving__logprobs_of_chats(void **state)
{
    (void)state;
    int status;
    cJSON *json = client_post_json(
        f.port, "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\xC3\xA9\"}],\"logprobs\":true,"
        "\"top_logprobs\":3,\"max_completion_tokens\":2}",
        &status);
    assert_int_equal(status, 200);
    assert_string_equal(json_text(json, "choices.0.message.content"), "\xC3\xA9");
    assert_int_equal(cJSON_GetArraySize(json_at(json, "choices.0.logprobs.content")), 2);
    assert_true(json_number(json, "choices.0.logprobs.content.0.bytes.0") == 0xC3);
    assert_int_equal(cJSON_GetArraySize(json_at(json, "choices.0.logprobs.content.1.top_logprobs")),
                     3);
    cJSON_Delete(json);
}

static void test_serving__extras_and_truncation_are_told(void **state)
{
    (void)state;
    struct reply reply;
    client_post(f.port, "/v1/completions",
                "{\"prompt\":\"abcdefgh\",\"truncate_prompt_tokens\":3,\"max_tokens\":3,"
                "\"kv\":{\"policy\":\"offload\",\"report\":true},\"unheard_of\":1}",
                &reply);
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply_header(&reply, "X-Kvahead-Truncated-Tokens"), "4");
    cJSON *json = cJSON_Parse(reply.body);
    assert_string_equal(json_text(json, "choices.0.text"), "fgh");
    assert_string_equal(json_text(json, "usage.kvahead.policy"), "offload");
    assert_true(json_number(json, "usage.kvahead.truncated_prompt_tokens.0") == 4);
    assert_true(json_number(json, "usage.prompt_tokens") == 3);
    cJSON_Delete(json);
    reply_finish(&reply);
}

static void test_serving__tokenize_and_back(void **state)
{
    (void)state;
    int status;
    cJSON *json = client_post_json(f.port, "/tokenize",
                                   "{\"prompt\":\"hello\",\"return_token_strs\":true}", &status);
    assert_int_equal(status, 200);
    assert_true(json_number(json, "count") == 2 && json_number(json, "tokens.0") == 260);
    assert_string_equal(json_text(json, "token_strs.0"), "hell");
    assert_true(json_number(json, "max_model_len") == 8192);
    cJSON_Delete(json);
    json = client_post_json(f.port, "/tokenize",
                            "{\"messages\":[{\"role\":\"user\",\"content\":\"hell\"}]}", &status);
    assert_true(json_number(json, "count") == 1);
    cJSON_Delete(json);
    json = client_post_json(f.port, "/detokenize", "{\"tokens\":[260,111,257]}", &status);
    assert_string_equal(json_text(json, "prompt"), "hello</s>");
    cJSON_Delete(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serving__01_streamed_text_equals_whole_text),
        cmocka_unit_test(test_serving__02_stop_strings_never_leak_and_lose_nothing),
        cmocka_unit_test(test_serving__02_stop_string_cut_by_max_tokens_is_text),
        cmocka_unit_test(test_serving__02_include_stop_and_min_tokens),
        cmocka_unit_test(test_serving__03_token_ids_equal_text_and_batches_keep_order),
        cmocka_unit_test(test_serving__04_alone_and_among_others_are_equal),
        cmocka_unit_test(test_serving__chat_frames_are_as_published),
        cmocka_unit_test(test_serving__a_frame_is_one_line_for_every_reader),
        cmocka_unit_test(test_serving__logprobs_of_completions_and_echo),
        cmocka_unit_test(test_serving__logprobs_of_chats),
        cmocka_unit_test(test_serving__extras_and_truncation_are_told),
        cmocka_unit_test(test_serving__tokenize_and_back),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
