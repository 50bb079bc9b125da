/* Behaviour 9: whatever arrives, the answer is a 4xx and the next request is served. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

static void expect_alive(void)
{
    int status;
    cJSON *json = client_post_json(f.port, "/v1/completions", "{\"prompt\":\"ok\"}", &status);
    assert_int_equal(status, 200);
    assert_string_equal(json_text(json, "choices.0.text"), "ok");
    cJSON_Delete(json);
}

/* The answer is nested JSON with this code. */
static void expect_error(const struct reply *reply, int code)
{
    cJSON *json = cJSON_Parse(reply->body);
    if (reply->status != code || !*json_text(json, "error.message"))
        fail_msg("%d expected: %s%s", code, reply->head, reply->body);
    assert_true(*json_text(json, "error.type") != '\0');
    assert_non_null(json_at(json, "error.param"));
    assert_non_null(json_at(json, "error.code"));
    cJSON_Delete(json);
}

static void expect_body(const char *body, int code, const char *words)
{
    struct reply reply;
    client_post(f.port, "/v1/completions", body, &reply);
    expect_error(&reply, code);
    if (!strstr(reply.body, words))
        fail_msg("'%s' is not in: %s", words, reply.body);
    reply_finish(&reply);
}

static void test_serving__09_values_out_of_range_name_field_value_and_range(void **state)
{
    (void)state;
    static const struct {
        const char *member, *words;
    } cases[] = {
        {"\"temperature\":-1", "'temperature' is -1, allowed is 0 to 2"},
        {"\"temperature\":2.5", "'temperature' is 2.5, allowed is 0 to 2"},
        {"\"temperature\":1e999", "'temperature' is inf, allowed is 0 to 2"},
        {"\"temperature\":\"1\"", "'temperature' must be a number, not a string"},
        {"\"top_p\":1.01", "'top_p' is 1.01, allowed is 0 to 1"},
        {"\"min_p\":-0.1", "allowed is 0 to 1"},
        {"\"top_k\":-2", "'top_k' is -2, allowed is -1 to"},
        {"\"top_k\":1.5", "must be an integer"},
        {"\"max_tokens\":-1", "'max_tokens' is -1, allowed is 0 to 4294967295"},
        {"\"max_tokens\":9223372036854775808", "allowed is 0 to 4294967295"},
        {"\"n\":0", "'n' is 0, allowed is 1 to 128"},
        {"\"n\":129", "allowed is 1 to 128"},
        {"\"best_of\":21", "allowed is 1 to 20"},
        {"\"n\":3,\"best_of\":2", "'best_of' is 2, less than 'n' (3)"},
        {"\"best_of\":2,\"stream\":true", "cannot be streamed"},
        {"\"presence_penalty\":-2.1", "allowed is -2 to 2"},
        {"\"frequency_penalty\":3", "allowed is -2 to 2"},
        {"\"repetition_penalty\":0", "allowed is 0.01 to 10"},
        {"\"logprobs\":21", "'logprobs' is 21, allowed is 0 to 20"},
        {"\"prompt_logprobs\":21", "allowed is 0 to 20"},
        {"\"seed\":1e19", "'seed' is 1e+19"},
        {"\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\",\"j\",\"k\",\"l\",\"m\","
         "\"n\",\"o\",\"p\",\"q\"]",
         "'stop' has 17 strings, limit is 16"},
        {"\"stop\":\"\"", "must not be empty"},
        {"\"stop\":7", "must be a string or an array"},
        {"\"logit_bias\":{\"12\":101}", "allowed is -100 to 100"},
        {"\"logit_bias\":{\"0x12\":1}", "allowed are token ids 0 to 264"},
        {"\"logit_bias\":{\"999\":1}", "allowed are token ids 0 to 264"},
        {"\"allowed_token_ids\":[]", "must not be empty"},
        {"\"allowed_token_ids\":[265]", "allowed is 0 to 264"},
        {"\"stop_token_ids\":[-1]", "'stop_token_ids[0]' is not a token id"},
        {"\"min_tokens\":99,\"max_tokens\":5", "more than 'max_tokens' (5)"},
        {"\"priority\":1000", "allowed is -100 to 100"},
        {"\"truncate_prompt_tokens\":0", "allowed is 1 to 8192"},
        {"\"kv\":{\"policy\":\"magic\"}",
         "'kv.policy' is 'magic', allowed: full, offload, specache."},
        {"\"kv\":{\"policy\":\"kivi\"}", "'kv.policy' is 'kivi', allowed"},
        {"\"kv\":{\"blots\":2}", "'kv.blots': 'blots' is no setting; policy 'full' has: paper"},
        {"\"kv\":{\"bits\":2}",
         "policy 'full' has no setting 'bits'; policies that have it: kivi, specache, q-hitter."},
        {"\"kv\":{\"policy\":\"specache\",\"plain\":0}", "'plain' is called 'min_tokens' now"},
        {"\"kv\":{\"policy\":\"specache\",\"levels\":\"fit\"}", "levels 'fit' is called 'mse' now"},
        {"\"kv\":{\"policy\":\"specache\",\"bits\":9}",
         "'kv.bits': bits is '9', it must be one of: 1, 2, 4."},
        {"\"kv\":{\"policy\":\"specache\",\"bits\":\"2\"}", "'kv.bits'"},
        {"\"kv\":{\"policy\":\"specache\",\"topk\":257}",
         "'kv.topk' asks for 257 rows, this server fetches at most 256."},
        {"\"kv\":{\"policy\":\"specache\",\"topk\":\"\"}", "'kv.topk'"},
        {"\"kv\":{\"policy\":\"specache\",\"topk\":\"8+257@0\"}", "at most 256"},
        {"\"kv\":{\"policy\":\"specache\",\"topk\":\"8+1@3-2\"}", "topk is '8+1@3-2'"},
        {"\"kv\":{\"policy\":\"specache\",\"window\":65.5}", "'kv.window'"},
        {"\"kv\":{\"policy\":\"specache\",\"levels\":\"best\"}",
         "levels is 'best', it must be one of: minmax, mse, extremes, auto."},
        {"\"kv\":{\"policy\":\"specache\",\"predictor\":2}", "'kv.predictor'"},
        {"\"kv\":{\"exact\":\"yes\"}", "'kv.exact'"},
        {"\"stream_options\":{\"include_usage\":true}", "only allowed when 'stream' is true"},
        {"\"suffix\":\"x\"", "'suffix' is not supported"},
        {"\"response_format\":{\"type\":\"json_object\"}", "no structured output"},
        {"\"response_format\":{\"type\":\"xml\"}", "only 'text', 'json_object'"},
        {"\"stream\":1", "'stream' must be a boolean, not a number"},
        {"\"model\":\"gpt-9\"", "The model 'gpt-9' does not exist here; served is 'echo'"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char body[512];
        snprintf(body, sizeof(body), "{\"prompt\":\"x\",%s}", cases[i].member);
        expect_body(body, strstr(body, "gpt-9") ? 404 : 400, cases[i].words);
    }
    expect_alive();
}

static void test_serving__09_malformed_json(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{",
        "[]",
        "null",
        "{\"prompt\":\"x\"",
        "{\"prompt\":\"x\"}}",
        "{\"prompt\":\"x\"} trailing",
        "{\"prompt\":\"x\",}",
        "{\"prompt\":'x'}",
        "{prompt:\"x\"}",
        "{\"prompt\":\"x\",\"temperature\":NaN}",
        "{\"prompt\":\"x\",\"temperature\":Infinity}",
        "{\"prompt\":\"x\",\"temperature\":+1}",
        "{\"prompt\":\"x\",\"temperature\":01}",
        "{\"prompt\":\"x\",\"temperature\":.5}",
        "{\"prompt\":\"x\",\"temperature\":1.}",
        "{\"prompt\":\"x\",\"temperature\":0x1}",
        "{\"prompt\":\"\\ud83d\"}",        /* lone high surrogate */
        "{\"prompt\":\"\\udc4b\"}",        /* lone low surrogate */
        "{\"prompt\":\"\\udc4b\\ud83d\"}", /* the wrong way round */
        "{\"prompt\":\"\\u12\"}",
        "{\"prompt\":\"\\x41\"}",
        "{\"prompt\":\"a\\u0000b\"}",
        "{\"prompt\":\"a\nb\"}",
        "{\"prompt\":\"\xC3\x28\"}",
        "{\"prompt\":\"\xED\xA0\x80\"}",
        "{\"prompt\":\"x\",\"n\":1,\"n\":2}", /* two readers would see two requests */
        "{\"prompt\":\"x\",\"kv\":{\"policy\":\"full\",\"policy\":\"offload\"}}",
        "{\"prompt\":{}}",
        "{\"prompt\":[]}",
        "{\"prompt\":[1,\"a\"]}",
        "{\"prompt\":[\"a\",1]}",
        "{\"prompt\":[[]]}",
        "{\"prompt\":[1.5]}",
        "{\"prompt\":[-1]}",
        "{\"prompt\":[4294967296]}",
        "{\"prompt\":\"\"}",
        "{}",
        "\xEF\xBB\xBF{}",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(bodies); i++)
        expect_body(bodies[i], 400, "\"error\"");
    expect_alive();
}

static void test_serving__09_huge_numbers_and_nesting(void **state)
{
    (void)state;
    size_t size = (size_t)10 << 20;
    char *body = malloc(size + 64);
    assert_non_null(body);
    int at = sprintf(body, "{\"prompt\":\"x\",\"seed\":");
    memset(body + at, '9', size);
    strcpy(body + at + size, "}");
    expect_body(body, 400, "has a number of 10485760 characters");

    at = sprintf(body, "{\"prompt\":");
    memset(body + at, '[', 10000);
    body[at + 10000] = '\0';
    expect_body(body, 400, "more than 64 levels deep");

    at = sprintf(body, "{\"prompt\":[0");
    for (size_t i = 0; i < 1100000; i++, at += 2)
        memcpy(body + at, ",0", 2);
    strcpy(body + at, "]}");
    expect_body(body, 400, "more than 1048576 values");
    free(body);
    expect_alive();
}

static void test_serving__09_messages(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"messages\":[]}",
        "{\"messages\":{}}",
        "{\"messages\":[7]}",
        "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}",
        "{\"messages\":[{\"role\":\"user\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":7}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
        "{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", /* the template raises */
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"top_logprobs\":3}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":0}",
        "{\"prompt\":\"x\"}",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(bodies); i++) {
        struct reply reply;
        client_post(f.port, "/v1/chat/completions", bodies[i], &reply);
        expect_error(&reply, 400);
        reply_finish(&reply);
    }
    expect_alive();
}

/* Send `text` as it is and read one answer. */
static void raw(const char *text, struct reply *reply)
{
    int fd = client_connect(f.port);
    client_puts(fd, text);
    client_read(fd, false, reply);
    close(fd);
}

static void expect_raw(const char *text, int code)
{
    struct reply reply;
    raw(text, &reply);
    expect_error(&reply, code);
    reply_finish(&reply);
}

#define POST_HEAD                                                                                  \
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

static void test_serving__09_malformed_http(void **state)
{
    (void)state;
    expect_raw("garbage\r\n\r\n", 400);
    expect_raw("GET\r\n\r\n", 400);
    expect_raw("GET /health HTTP/9.9\r\n\r\n", 505);
    expect_raw("FETCH /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405);
    expect_raw("GET /health HTTP/1.1\r\nno colon here\r\n\r\n", 400);
    expect_raw(POST_HEAD "Content-Length: -1\r\n\r\n", 400);
    expect_raw(POST_HEAD "Content-Length: 1x\r\n\r\n", 400);
    expect_raw(POST_HEAD "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400);
    expect_raw(POST_HEAD "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", 413);
    expect_raw(POST_HEAD "Transfer-Encoding: chunked\r\n\r\n-5\r\n", 400);
    expect_raw(POST_HEAD "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
    expect_raw(POST_HEAD "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", 400);
    expect_raw(POST_HEAD "Transfer-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 400);
    expect_raw(POST_HEAD "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415);
    expect_raw(POST_HEAD "Expect: a-miracle\r\nContent-Length: 2\r\n\r\n{}", 417);
    expect_raw(POST_HEAD "Content-Length: 0\r\n\r\n", 400);
    expect_raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
               "Content-Length: 2\r\n\r\n{}",
               415);
    expect_raw("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}",
               415);
    expect_raw("GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 404);
    expect_raw("GET /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n\r\n", 405);
    expect_raw("DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405);
    expect_alive();
}

static void test_serving__09_large_head_and_body(void **state)
{
    (void)state;
    size_t size = (size_t)20 << 20;
    char *text = malloc(size + 512);
    assert_non_null(text);
    struct reply reply;
    int at = sprintf(text, "GET /health HTTP/1.1\r\nX-Long: ");
    memset(text + at, 'a', (size_t)1 << 20);
    strcpy(text + at + (1 << 20), "\r\n\r\n");
    raw(text, &reply);
    /* The refusal may be lost to the reset that unread bytes cause; it is never an accept. */
    assert_true(reply.status == 431 || reply.status == 0);
    reply_finish(&reply);

    at = sprintf(text, "GET /health HTTP/1.1\r\n");
    for (unsigned i = 0; at < 40000; i++)
        at += sprintf(text + at, "X-Many-%u: value\r\n", i);
    strcpy(text + at, "\r\n");
    raw(text, &reply);
    assert_true(reply.status == 431 || reply.status == 0);
    reply_finish(&reply);

    memset(text, 'a', size);
    text[size] = '\0';
    client_post(f.port, "/v1/completions", text, &reply);
    expect_error(&reply, 413);
    assert_non_null(strstr(reply.body, "limit of 16777216 bytes"));
    reply_finish(&reply);
    /* A terabyte is refused before any of it comes, and so is what no number holds. */
    expect_raw(POST_HEAD "Content-Length: 1099511627776\r\n\r\n", 413);
    expect_raw(POST_HEAD "Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n", 413);
    expect_raw(POST_HEAD "Content-Length: 99999999999999999999\r\n\r\n", 400);
    int fd = client_connect(f.port);
    client_puts(fd, POST_HEAD "Content-Length: 1099511627776\r\n\r\n");
    client_send(fd, text, size);
    client_send(fd, text, size);
    client_read(fd, false, &reply);
    assert_true(reply.status == 413 || reply.status == 0);
    reply_finish(&reply);
    close(fd);
    free(text);
    expect_alive();
}

/* A server of its own, with little patience: the others must not depend on how fast a test runs. */
static void test_serving__09_slow_head_and_body_get_408(void **state)
{
    (void)state;
    teardown(NULL);
    fixture_init(&f);
    f.params.receive_timeout_ns = 300 * KVA_NS_PER_MS;
    f.params.head_timeout_ns = 300 * KVA_NS_PER_MS;
    fixture_start(&f);
    struct reply reply;
    expect_raw("POST /v1/completions HT", 408);
    expect_raw(POST_HEAD "Content-Length: 100\r\n\r\n{\"prompt\":", 408);
    expect_raw(POST_HEAD "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"pro\r\n", 408);
    /* A chunk size that never ends: it need not be waited for. */
    int fd = client_connect(f.port);
    client_puts(fd, POST_HEAD "Transfer-Encoding: chunked\r\n\r\n");
    char digits[4096];
    memset(digits, '0', sizeof(digits));
    for (int i = 0; i < 64; i++)
        client_send(fd, digits, sizeof(digits));
    client_read(fd, false, &reply);
    expect_error(&reply, 400);
    reply_finish(&reply);
    close(fd);
    expect_alive();
    teardown(NULL);
    setup(NULL);
}

static void test_serving__09_chunked_and_continue_are_served(void **state)
{
    (void)state;
    struct reply reply;
    raw(POST_HEAD "Transfer-Encoding: chunked\r\n\r\nb\r\n{\"prompt\":\"\r\n2\r\nok\r\n2\r\n\"}\r\n"
                  "0\r\n\r\n",
        &reply);
    assert_int_equal(reply.status, 200);
    reply_finish(&reply);
    int fd = client_connect(f.port);
    client_puts(fd, POST_HEAD "Expect: 100-continue\r\nContent-Length: 15\r\n\r\n");
    assert_true(client_read_until(fd, "100 Continue\r\n\r\n"));
    client_puts(fd, "{\"prompt\":\"ok\"}");
    client_read(fd, false, &reply);
    assert_int_equal(reply.status, 200);
    reply_finish(&reply);
    close(fd);
}

static void test_serving__09_pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    struct reply reply;
    int fd = client_connect(f.port);
    client_puts(fd,
                POST_HEAD "Content-Length: 16\r\n\r\n{\"prompt\":\"one\"}" POST_HEAD
                          "Content-Length: 16\r\nConnection: close\r\n\r\n{\"prompt\":\"two\"}");
    client_read(fd, false, &reply);
    /* Without a second Content-Length the helper has read both answers. */
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "\"one\""));
    reply_finish(&reply);
    close(fd);
    expect_alive();
}

static void test_serving__09_request_ids_are_echoed_or_replaced(void **state)
{
    (void)state;
    struct reply reply;
    client_request(f.port, "GET", "/health", "X-Request-Id: abc-123\r\n", NULL, &reply);
    assert_string_equal(reply_header(&reply, "X-Request-Id"), "abc-123");
    reply_finish(&reply);
    client_request(f.port, "GET", "/health", "X-Request-Id: a\tb<script>\r\n", NULL, &reply);
    assert_int_equal(strlen(reply_header(&reply, "X-Request-Id")), 32);
    reply_finish(&reply);
    char header[400] = "X-Request-Id: ";
    memset(header + 14, 'a', 300);
    strcpy(header + 314, "\r\n");
    client_request(f.port, "GET", "/health", header, NULL, &reply);
    assert_int_equal(strlen(reply_header(&reply, "X-Request-Id")), 32);
    reply_finish(&reply);
    client_request(f.port, "HEAD", "/health", NULL, NULL, &reply);
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply_header(&reply, "Content-Length"), "15");
    reply_finish(&reply);
}

static void test_serving__09_memory_comes_back(void **state)
{
    (void)state;
    size_t size = (size_t)8 << 20;
    char *body = malloc(size + 64);
    assert_non_null(body);
    int at = sprintf(body, "{\"prompt\":\"");
    memset(body + at, 'a', size);
    strcpy(body + at + size, "\"}");
    expect_body(body, 400, "limit is 8191");
    malloc_trim(0);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 5; i++)
        expect_body(body, 400, "limit is 8191");
    /* The answer may be here a moment before the server is done with the request. */
    size_t after = before + size;
    for (int i = 0; i < 4000 && after >= before + ((size_t)1 << 20); i++) {
        usleep(5000);
        after = mallinfo2().uordblks;
    }
    assert_true(after < before + ((size_t)1 << 20));
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serving__09_values_out_of_range_name_field_value_and_range),
        cmocka_unit_test(test_serving__09_malformed_json),
        cmocka_unit_test(test_serving__09_huge_numbers_and_nesting),
        cmocka_unit_test(test_serving__09_messages),
        cmocka_unit_test(test_serving__09_malformed_http),
        cmocka_unit_test(test_serving__09_large_head_and_body),
        cmocka_unit_test(test_serving__09_slow_head_and_body_get_408),
        cmocka_unit_test(test_serving__09_chunked_and_continue_are_served),
        cmocka_unit_test(test_serving__09_pipelined_requests_are_answered_in_order),
        cmocka_unit_test(test_serving__09_request_ids_are_echoed_or_replaced),
        cmocka_unit_test(test_serving__09_memory_comes_back),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
