/* Errors in the words of whoever is asked, and what they tell clients to do. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct server_fixture f;

/* What no retry mends must not look as if one did: SDKs would compute it three times. */
static void test_errors__a_contradiction_is_the_requests(void **state)
{
    (void)state;
    static const char body[] =
        "{\"prompt\":\"x\",\"bad_words\":[\"a\"],\"allowed_token_ids\":[97]%s}";
    struct reply reply;
    char text[256];
    fixture_init(&f);
    f.engine.item_fails_every = 1;
    f.engine.item_status = KVA_EINVAL; /* of the sampler */
    fixture_start(&f);
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof(text), body, i ? ",\"stream\":true" : "");
        client_post(f.port, "/v1/completions", text, &reply);
        assert_int_equal(reply.status, 400);
        assert_null(reply_header(&reply, "Retry-After"));
        assert_non_null(strstr(reply.body, "No token is left that this request allows by "
                                           "'allowed_token_ids', 'bad_words'."));
        assert_non_null(strstr(reply.body, "invalid_request_error"));
        reply_finish(&reply);
    }
    fixture_stop(&f);
}

static void expect_too_large(const char *path, const char *body, const char *words)
{
    struct reply reply;
    client_post(f.port, path, body, &reply);
    if (reply.status != 400 || !strstr(reply.body, words))
        fail_msg("%s %s: %d, %s", path, body, reply.status, reply.body);
    assert_null(reply_header(&reply, "Retry-After"));
    reply_finish(&reply);
}

/* Nor does another try make an answer smaller. */
static void test_errors__answers_that_are_too_large_are_the_requests(void **state)
{
    (void)state;
    static const char ask[] = "limit of 4096 bytes: ask for fewer choices, logprobs or inputs.";
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";
    char body[2048];
    fixture_init(&f);
    f.params.answer_bytes_max = 4096;
    fixture_start(&f);
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"n\":64,\"max_tokens\":60}", letters);
    expect_too_large("/v1/completions", body, ask);
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"logprobs\":20,\"max_tokens\":60}", letters);
    expect_too_large("/v1/completions", body, ask);
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"prompt_logprobs\":20,\"max_tokens\":1}",
             letters);
    expect_too_large("/v1/completions", body, ask);
    strcpy(body, "{\"return_token_strs\":true,\"prompt\":\"");
    for (int i = 0; i < 16; i++)
        strcat(body, letters);
    strcat(body, "\"}");
    expect_too_large("/tokenize", body, ask);
    fixture_stop(&f);
}

static void test_errors__vectors_that_are_too_large_are_not_computed(void **state)
{
    (void)state;
    char body[8192] = "{\"input\":[\"x\"";
    fixture_init(&f);
    f.params.answer_bytes_max = 4096;
    fixture_start(&f);
    for (unsigned i = 0; i < 4096 / (KVA_SCRIPTED_WIDTH * 16 / 3); i++)
        strcat(body, ",\"x\"");
    strcat(body, "],\"encoding_format\":\"base64\"}");
    expect_too_large("/v1/embeddings", body, "ask for fewer inputs or 'dimensions'.");
    strcpy(strstr(body, "base64"), "float\"}");
    expect_too_large("/v1/embeddings", body,
                     "ask for fewer inputs or 'dimensions', or for base64.");
    assert_true(client_metric(f.port, "kvahead_embeddings_total", NULL) <= 0);
    assert_true(client_metric(f.port, "kvahead_prompt_tokens_total", NULL) <= 0);
    fixture_stop(&f);
}

/* An error of /v1/messages: its type, and that of its member. */
static void expect_anthropics(const struct reply *reply, int status, const char *type)
{
    cJSON *json = cJSON_Parse(reply->body);
    if (reply->status != status || strcmp(json_text(json, "error.type"), type) != 0)
        fail_msg("not %d %s: %s%s", status, type, reply->head, reply->body);
    assert_string_equal(json_text(json, "type"), "error");
    assert_true(json_text(json, "error.message")[0] != '\0');
    assert_string_equal(json_text(json, "request_id"), reply_header(reply, "Request-Id"));
    assert_string_equal(json_text(json, "request_id"), reply_header(reply, "X-Request-Id"));
    cJSON_Delete(json);
}

static void expect_of_messages(const char *path, const char *headers, const char *body, int status,
                               const char *type)
{
    struct reply reply;
    client_request(f.port, "POST", path, headers, body, &reply);
    expect_anthropics(&reply, status, type);
    reply_finish(&reply);
}

/* A head alone: what it announces is refused. */
static void expect_of_head(const char *lines, int status, const char *type)
{
    struct reply reply;
    int fd = client_connect(f.port);
    client_puts(fd, "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
                    "Content-Type: application/json\r\n");
    client_puts(fd, lines);
    client_read(fd, false, &reply);
    expect_anthropics(&reply, status, type);
    reply_finish(&reply);
    close(fd);
}

#define ASK                                                                                        \
    "{\"model\":\"echo\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"

static void test_errors__of_messages_have_anthropics_types(void **state)
{
    (void)state;
    static const char *const keys[] = {"good"};
    static const char key[] = "X-API-Key: good\r\n";
    fixture_init(&f);
    f.params.api_keys = keys;
    f.params.api_key_count = 1;
    f.params.body_bytes_max = f.params.bodies_account_max = 4096;
    fixture_start(&f);
    expect_of_messages("/v1/messages", NULL, ASK, 401, "authentication_error");
    expect_of_messages("/v1/messages", key, "{", 400, "invalid_request_error");
    expect_of_messages("/v1/messages/count_tokens", key, "{}", 400, "invalid_request_error");
    expect_of_messages("/v1/messages/batches", key, ASK, 404, "not_found_error");
    expect_of_messages("/v1/messages", key,
                       "{\"model\":\"other\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\","
                       "\"content\":\"x\"}]}",
                       404, "not_found_error");
    expect_of_head("X-API-Key: good\r\nContent-Length: 5000\r\n\r\n", 413, "request_too_large");
    int holds = client_connect(f.port);
    client_puts(holds, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-API-Key: good\r\n"
                       "Content-Type: application/json\r\nContent-Length: 4000\r\n"
                       "Expect: 100-continue\r\n\r\n");
    assert_true(client_read_until(holds, "100 Continue"));
    expect_of_head("X-API-Key: good\r\nContent-Length: 1000\r\n\r\n", 429, "rate_limit_error");
    close(holds);
    fixture_stop(&f);
    fixture_init(&f);
    f.params.receive_timeout_ns = 300 * KVA_NS_PER_MS;
    fixture_start(&f);
    expect_of_head("Content-Length: 50\r\n\r\n{", 408, "timeout_error");
    fixture_stop(&f);
}

static void test_errors__of_messages_that_are_not_the_clients(void **state)
{
    (void)state;
    fixture_init(&f);
    f.attach_later = true;
    fixture_start(&f);
    expect_of_messages("/v1/messages", NULL, ASK, 503, "overloaded_error");
    f.engine.item_fails_every = 1;
    fixture_attach(&f);
    struct reply reply;
    for (int i = 0; i < 5000; i++) {
        client_get(f.port, "/ready", &reply);
        bool ready = reply.status == 200;
        reply_finish(&reply);
        if (ready)
            break;
        usleep(1000);
    }
    expect_of_messages("/v1/messages", NULL, ASK, 500, "api_error");
    assert_true(client_metric(f.port, "kvahead_requests_rejected_total", "device") == 0);
    fixture_stop(&f);
}

/* Whoever asks in OpenAI's words gets none of Anthropic's. */
static void test_errors__of_others_are_openais(void **state)
{
    (void)state;
    struct reply reply;
    fixture_init(&f);
    fixture_start(&f);
    client_post(f.port, "/v1/messagesx", ASK, &reply);
    assert_int_equal(reply.status, 404);
    assert_null(strstr(reply.body, "\"type\":\"error\""));
    assert_null(reply_header(&reply, "Request-Id"));
    reply_finish(&reply);
    fixture_stop(&f);
}

static uint32_t endless(void *opaque, const struct kva_sequence_params *params, uint32_t index)
{
    (void)opaque;
    (void)params;
    return 'a' + index % 26;
}

/* Of an event stream: number of the events, the last one's data. */
static cJSON *last_event(const char *body, unsigned *ret_count)
{
    const char *last = NULL;
    *ret_count = 0;
    for (const char *at = body; (at = strstr(at, "event: ")); at++) {
        last = at;
        ++*ret_count;
    }
    assert_memory_equal(last, "event: error\ndata: ", 19);
    return cJSON_ParseWithLength(last + 19, strcspn(last + 19, "\n"));
}

/* A stream whose device fails within it. */
static void post_failing(const char *path, const char *body, struct reply *reply)
{
    fixture_init(&f);
    f.engine.next_token = endless;
    f.engine.sleep_ns = KVA_NS_PER_MS;
    f.engine.fail_step = 20;
    fixture_start(&f);
    client_post(f.port, path, body, reply);
    assert_int_equal(reply->status, 200);
}

/* What OpenAI's schema says, and what its SDK raises at. */
static void test_errors__within_a_response_are_an_event(void **state)
{
    (void)state;
    struct reply reply;
    unsigned count;
    post_failing("/v1/responses", "{\"input\":\"x\",\"stream\":true}", &reply);
    cJSON *json = last_event(reply.body, &count);
    assert_string_equal(json_text(json, "type"), "error");
    assert_true(count > 5 && json_number(json, "sequence_number") == count - 1);
    assert_string_equal(json_text(json, "code"), "device_failed");
    assert_string_equal(json_text(json, "message"), json_text(json, "error.message"));
    assert_true(cJSON_IsNull(json_at(json, "param")));
    assert_string_equal(json_text(json, "error.type"), "server_error");
    cJSON_Delete(json);
    reply_finish(&reply);
    fixture_join(&f);
    fixture_stop(&f);
}

static void test_errors__within_a_message_are_an_event(void **state)
{
    (void)state;
    struct reply reply;
    unsigned count;
    post_failing("/v1/messages",
                 "{\"model\":\"echo\",\"max_tokens\":500,\"stream\":true,\"messages\":[{\"role\":"
                 "\"user\",\"content\":\"x\"}]}",
                 &reply);
    cJSON *json = last_event(reply.body, &count);
    assert_string_equal(json_text(json, "error.type"), "overloaded_error");
    assert_string_equal(json_text(json, "request_id"), reply_header(&reply, "Request-Id"));
    cJSON_Delete(json);
    reply_finish(&reply);
    fixture_join(&f);
    fixture_stop(&f);
}

static void expect_allowed(const char *method, const char *path, const char *want)
{
    struct reply reply;
    client_request(f.port, method, path, NULL, NULL, &reply);
    assert_int_equal(reply.status, 405);
    assert_string_equal(reply_header(&reply, "Allow"), want);
    reply_finish(&reply);
}

static void test_errors__of_methods_say_which_there_are(void **state)
{
    (void)state;
    fixture_init(&f);
    fixture_start(&f);
    expect_allowed("GET", "/v1/responses", "POST, OPTIONS");
    expect_allowed("POST", "/v1/responses/resp_1", "GET, HEAD, DELETE, OPTIONS");
    expect_allowed("DELETE", "/v1/responses/resp_1/input_items", "GET, HEAD, OPTIONS");
    expect_allowed("GET", "/v1/responses/resp_1/cancel", "POST, OPTIONS");
    fixture_stop(&f);
}

/* They look like ids of responses. */
static void test_errors__of_routes_that_are_not_here(void **state)
{
    (void)state;
    static const char *const paths[] = {"/v1/responses/input_tokens", "/v1/responses/compact",
                                        "/v1/messages/batches"};
    struct reply reply;
    fixture_init(&f);
    fixture_start(&f);
    for (size_t i = 0; i < KVA_COUNT_OF(paths); i++) {
        client_post(f.port, paths[i], "{}", &reply);
        assert_int_equal(reply.status, 404);
        assert_non_null(strstr(reply.body, "is not supported by this server."));
        reply_finish(&reply);
    }
    fixture_stop(&f);
}

/* Pages see no header but those that they are told of. */
static void test_errors__pages_may_read_what_clients_go_by(void **state)
{
    (void)state;
    static const char *const origins[] = {"https://app"};
    static const char *const names[] = {"X-Request-Id", "Request-Id", "Retry-After",
                                        "X-Should-Retry", "X-Kvahead-Truncated-Tokens"};
    struct reply reply;
    fixture_init(&f);
    f.params.cors_origins = origins;
    f.params.cors_origin_count = 1;
    fixture_start(&f);
    client_request(f.port, "POST", "/v1/completions", "Origin: https://app\r\n", "{}", &reply);
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++)
        assert_non_null(strstr(reply_header(&reply, "Access-Control-Expose-Headers"), names[i]));
    reply_finish(&reply);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors__a_contradiction_is_the_requests),
        cmocka_unit_test(test_errors__answers_that_are_too_large_are_the_requests),
        cmocka_unit_test(test_errors__vectors_that_are_too_large_are_not_computed),
        cmocka_unit_test(test_errors__of_messages_have_anthropics_types),
        cmocka_unit_test(test_errors__of_messages_that_are_not_the_clients),
        cmocka_unit_test(test_errors__of_others_are_openais),
        cmocka_unit_test(test_errors__within_a_response_are_an_event),
        cmocka_unit_test(test_errors__within_a_message_are_an_event),
        cmocka_unit_test(test_errors__of_methods_say_which_there_are),
        cmocka_unit_test(test_errors__of_routes_that_are_not_here),
        cmocka_unit_test(test_errors__pages_may_read_what_clients_go_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
