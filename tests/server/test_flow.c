/* Behaviours 5 to 8, and readers that are slower than their stream. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct server_fixture f;

static const char *const stream_forms[] = {"false", "true"};

/* Never ends by itself. */
static uint32_t endless(void *opaque, const struct kva_sequence_params *params, uint32_t index)
{
    (void)opaque;
    (void)params;
    return 'a' + index % 26;
}

static void pause_ms(long ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void wait_metric(const char *name, const char *label, double at_least)
{
    for (int i = 0; i < 4000; i++) {
        if (client_metric(f.port, name, label) >= at_least)
            return;
        pause_ms(5);
    }
    fail_msg("waited in vain for %s to reach %g", name, at_least);
}

/* A prompt of `length` characters, each a token. */
static char *long_body(size_t length, const char *more)
{
    struct kva_buf body;
    kva_buf_init(&body, (size_t)8 << 20);
    kva_buf_puts(&body, "{\"prompt\":\"");
    for (size_t i = 0; i < length; i++)
        kva_buf_putc(&body, (char)('A' + i % 7));
    kva_buf_printf(&body, "\"%s}", more);
    return kva_buf_take(&body, NULL);
}

static void test_serving__05_disconnect_in_decode_frees(void **state)
{
    (void)state;
    for (size_t i = 0; i < KVA_COUNT_OF(stream_forms); i++) {
        fixture_init(&f);
        f.engine.sleep_ns = KVA_NS_PER_MS;
        f.engine.next_token = endless;
        fixture_start(&f);
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\":\"x\",\"max_tokens\":8000,\"stream\":%s}",
                 stream_forms[i]);
        int leaver = client_post_open(f.port, "/v1/completions", body);
        int stayer =
            client_post_open(f.port, "/v1/completions", "{\"prompt\":\"y\",\"max_tokens\":100}");
        wait_metric("kvahead_requests_running", NULL, 2);
        close(leaver);
        struct reply reply;
        client_read(stayer, false, &reply);
        assert_int_equal(reply.status, 200);
        cJSON *json = cJSON_Parse(reply.body);
        assert_int_equal(strlen(json_text(json, "choices.0.text")), 100);
        cJSON_Delete(json);
        reply_finish(&reply);
        close(stayer);
        /* Far below the 8 s that the abandoned request would take. */
        fixture_wait(&f, fixture_is_idle, "an abandoned request to be freed");
        assert_true(client_metric(f.port, "kvahead_requests_finished_total", "abort") == 1);
        assert_true(client_metric(f.port, "kvahead_generation_tokens_total", NULL) < 4000);
        fixture_stop(&f);
    }
}

static void test_serving__05_disconnect_in_prefill_frees(void **state)
{
    (void)state;
    for (size_t i = 0; i < KVA_COUNT_OF(stream_forms); i++) {
        fixture_init(&f);
        f.engine.sleep_ns = KVA_NS_PER_MS;
        f.engine.limits.step_tokens_max = f.scheduling.step_tokens_max = 8;
        f.scheduling.running_max = f.engine.limits.sequences_max = 8;
        fixture_start(&f);
        char more[64];
        snprintf(more, sizeof(more), ",\"max_tokens\":5,\"stream\":%s", stream_forms[i]);
        char *body = long_body(8000, more);
        int leaver = client_post_open(f.port, "/v1/completions", body);
        wait_metric("kvahead_requests_running", NULL, 1);
        close(leaver);
        fixture_wait(&f, fixture_is_idle, "an abandoned prefill to be freed");
        assert_true(client_metric(f.port, "kvahead_generation_tokens_total", NULL) == 0);
        free(body);
        fixture_stop(&f);
    }
}

static void test_serving__05_disconnect_in_queue_frees(void **state)
{
    (void)state;
    for (size_t i = 0; i < KVA_COUNT_OF(stream_forms); i++) {
        fixture_init(&f);
        f.engine.sleep_ns = KVA_NS_PER_MS;
        f.engine.next_token = endless;
        f.scheduling.running_max = 1;
        fixture_start(&f);
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\":\"x\",\"max_tokens\":50,\"stream\":%s}",
                 stream_forms[i]);
        int first =
            client_post_open(f.port, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1000}");
        wait_metric("kvahead_requests_running", NULL, 1);
        int leaver = client_post_open(f.port, "/v1/completions", body);
        wait_metric("kvahead_requests_waiting", NULL, 1);
        close(leaver);
        wait_metric("kvahead_requests_finished_total", "abort", 1);
        struct reply reply;
        client_read(first, false, &reply);
        assert_int_equal(reply.status, 200);
        reply_finish(&reply);
        close(first);
        assert_true(client_metric(f.port, "kvahead_generation_tokens_total", NULL) == 1000);
        fixture_stop(&f);
    }
}

static void test_serving__06_full_queue_refuses_with_retry_after(void **state)
{
    (void)state;
    int fds[3];
    struct reply reply;
    fixture_init(&f);
    f.engine.sleep_ns = KVA_NS_PER_MS;
    f.engine.next_token = endless;
    f.scheduling.running_max = 1;
    f.scheduling.waiting_max = 2;
    fixture_start(&f);
    for (unsigned i = 0; i < 3; i++) {
        fds[i] =
            client_post_open(f.port, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":300}");
        if (i == 0)
            wait_metric("kvahead_requests_running", NULL, 1);
        else
            wait_metric("kvahead_requests_waiting", NULL, i);
    }
    client_post(f.port, "/v1/completions", "{\"prompt\":\"x\"}", &reply);
    assert_int_equal(reply.status, 503);
    assert_string_equal(reply_header(&reply, "Retry-After"), "2");
    cJSON *json = cJSON_Parse(reply.body);
    assert_string_equal(json_text(json, "error.code"), "overloaded");
    cJSON_Delete(json);
    reply_finish(&reply);
    assert_true(client_metric(f.port, "kvahead_requests_rejected_total", "queue_full") == 1);
    for (unsigned i = 0; i < 3; i++) {
        client_read(fds[i], false, &reply);
        assert_int_equal(reply.status, 200);
        reply_finish(&reply);
        close(fds[i]);
    }
    fixture_stop(&f);
}

/* What waited too long is refused as a full queue's is: with 503 where nothing was sent, with an
 * error event behind a keep-alive. What runs goes on. */
static void test_serving__06_waiting_too_long_refuses_with_retry_after(void **state)
{
    (void)state;
    fixture_init(&f);
    f.engine.sleep_ns = KVA_NS_PER_MS;
    f.engine.next_token = endless;
    f.scheduling.running_max = 1;
    f.scheduling.waiting_time_ns = 100 * KVA_NS_PER_MS;
    f.params.keep_alive_ns = 20 * KVA_NS_PER_MS;
    fixture_start(&f);
    int first =
        client_post_open(f.port, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1000}");
    wait_metric("kvahead_requests_running", NULL, 1);
    int streamed = client_post_open(f.port, "/v1/completions",
                                    "{\"prompt\":\"x\",\"max_tokens\":5,\"stream\":true}");
    struct reply reply;
    client_post(f.port, "/v1/completions", "{\"prompt\":\"x\",\"n\":2}", &reply);
    assert_int_equal(reply.status, 503);
    assert_string_equal(reply_header(&reply, "Retry-After"), "2");
    cJSON *json = cJSON_Parse(reply.body);
    assert_string_equal(json_text(json, "error.code"), "overloaded");
    assert_non_null(strstr(json_text(json, "error.message"), "waited"));
    cJSON_Delete(json);
    reply_finish(&reply);
    client_read(streamed, false, &reply);
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, ": keep-alive queued"));
    assert_non_null(strstr(reply.body, "\"overloaded\""));
    reply_finish(&reply);
    close(streamed);
    client_read(first, false, &reply);
    assert_int_equal(reply.status, 200);
    reply_finish(&reply);
    close(first);
    assert_true(client_metric(f.port, "kvahead_requests_rejected_total", "waiting_time") == 2);
    assert_true(client_metric(f.port, "kvahead_requests_rejected_total", "queue_full") == 0);
    assert_true(client_metric(f.port, "kvahead_generation_tokens_total", NULL) == 1000);
    fixture_stop(&f);
}

static void test_serving__07_keep_alives_in_queue_and_prefill(void **state)
{
    (void)state;
    fixture_init(&f);
    f.engine.sleep_ns = 5 * KVA_NS_PER_MS;
    f.engine.limits.step_tokens_max = f.scheduling.step_tokens_max = 8;
    f.engine.limits.sequences_max = 8;
    f.scheduling.running_max = 1;
    f.params.keep_alive_ns = 40 * KVA_NS_PER_MS;
    fixture_start(&f);
    char *body = long_body(1600, ",\"max_tokens\":3,\"stream\":true");
    int first = client_post_open(f.port, "/v1/completions", body);
    wait_metric("kvahead_requests_running", NULL, 1);
    int second = client_post_open(f.port, "/v1/completions",
                                  "{\"prompt\":\"x\",\"max_tokens\":1,\"stream\":true}");
    struct reply reply;
    client_read(first, false, &reply);
    const char *comment = strstr(reply.body, ": keep-alive prefill ");
    const char *data = strstr(reply.body, "data: ");
    unsigned done = 0, total = 0;
    assert_non_null(comment);
    assert_true(comment < data);
    assert_int_equal(sscanf(comment, ": keep-alive prefill %u/%u\n\n", &done, &total), 2);
    assert_true(done <= total && total == 1600);
    reply_finish(&reply);
    client_read(second, false, &reply);
    comment = strstr(reply.body, ": keep-alive queued\n\n");
    data = strstr(reply.body, "data: ");
    assert_non_null(comment);
    assert_true(comment < data);
    assert_non_null(strstr(reply.body, "data: [DONE]"));
    reply_finish(&reply);
    close(first);
    close(second);
    free(body);
    fixture_stop(&f);
}

static void expect_400(const char *path, const char *body, const char *code, const char *words)
{
    struct reply reply;
    client_post(f.port, path, body, &reply);
    assert_int_equal(reply.status, 400);
    cJSON *json = cJSON_Parse(reply.body);
    if (!strstr(json_text(json, "error.message"), words))
        fail_msg("'%s' is not in '%s'", words, json_text(json, "error.message"));
    assert_string_equal(json_text(json, "error.code"), code);
    cJSON_Delete(json);
    reply_finish(&reply);
}

static void test_serving__08_over_long_prompt_says_both_counts(void **state)
{
    (void)state;
    fixture_init(&f);
    fixture_start(&f);
    char *body = long_body(9001, "");
    expect_400("/v1/completions", body, "context_length_exceeded",
               "The prompt has 9001 tokens, limit is 8191");
    free(body);
    body = long_body(8000, ",\"max_tokens\":500");
    expect_400("/v1/completions", body, "context_length_exceeded",
               "The prompt has 8000 tokens and 'max_tokens' is 500: 8500 tokens, limit is 8192");
    free(body);
    struct kva_buf ids;
    kva_buf_init(&ids, (size_t)1 << 20);
    kva_buf_puts(&ids, "{\"prompt\":[65");
    for (unsigned i = 1; i < 10000; i++)
        kva_buf_puts(&ids, ",65");
    kva_buf_puts(&ids, "]}");
    expect_400("/v1/completions", ids.data, "context_length_exceeded",
               "The prompt has 10000 tokens, limit is 8191");
    kva_buf_finish(&ids);
    assert_true(client_metric(f.port, "kvahead_requests_rejected_total", "context") == 3);
    fixture_stop(&f);
}

/* A stream far larger than what the sockets between hold. */
#define SLOW_TOKENS 60000u

static int slow_stream(void)
{
    char body[128];
    int small = 65536; /* below one segment of the loopback, reading would take minutes */
    snprintf(body, sizeof(body), "{\"prompt\":\"x\",\"max_tokens\":%u,\"stream\":true}",
             SLOW_TOKENS);
    int fd = client_post_open(f.port, "/v1/completions", body);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    return fd;
}

static void slow_fixture(void)
{
    fixture_init(&f);
    f.engine.limits.context_max = 100000;
    f.engine.next_token = endless;
    f.engine.limits.budget.device = f.engine.limits.budget.host = 1ull << 40;
}

static void test_serving__slow_reader_is_paused_and_loses_nothing(void **state)
{
    (void)state;
    slow_fixture();
    fixture_start(&f);
    int fd = slow_stream();
    wait_metric("kvahead_streams_paused_total", NULL, 1);
    /* Nobody waits for it. */
    int status;
    cJSON *json = client_post_json(f.port, "/v1/completions",
                                   "{\"prompt\":\"x\",\"max_tokens\":26}", &status);
    assert_string_equal(json_text(json, "choices.0.text"), "abcdefghijklmnopqrstuvwxyz");
    cJSON_Delete(json);
    fixture_wait(&f, fixture_is_idle, "generation to end although nobody reads");

    struct reply reply;
    struct stream stream;
    client_read(fd, false, &reply);
    assert_true(reply.complete);
    stream_parse(reply.body, &stream);
    assert_true(stream.done);
    assert_int_equal(strlen(stream.text[0]), SLOW_TOKENS);
    for (unsigned i = 0; i < SLOW_TOKENS; i++)
        assert_true(stream.text[0][i] == (char)('a' + i % 26));
    assert_string_equal(stream.finish[0], "length");
    assert_true(stream.frames < SLOW_TOKENS);
    stream_finish(&stream);
    reply_finish(&reply);
    close(fd);
    fixture_stop(&f);
}

static void test_serving__slow_reader_is_cut_at_last(void **state)
{
    (void)state;
    slow_fixture();
    f.params.write_timeout_ns = 200 * KVA_NS_PER_MS;
    fixture_start(&f);
    int fd = slow_stream();
    wait_metric("kvahead_slow_readers_cut_total", NULL, 1);
    fixture_wait(&f, fixture_is_idle, "the cut stream's request to be freed");
    assert_true(client_metric(f.port, "kvahead_connections", NULL) == 1);
    struct reply reply;
    client_read(fd, false, &reply);
    assert_false(reply.complete);
    reply_finish(&reply);
    close(fd);
    fixture_stop(&f);
}

static void test_serving__slow_reader_is_cut_when_too_much_gathers(void **state)
{
    (void)state;
    slow_fixture();
    f.params.stream_buffered_max = 4096;
    fixture_start(&f);
    int fd = slow_stream();
    wait_metric("kvahead_slow_readers_cut_total", NULL, 1);
    fixture_wait(&f, fixture_is_idle, "the cut stream's request to be freed");
    close(fd);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serving__05_disconnect_in_decode_frees),
        cmocka_unit_test(test_serving__05_disconnect_in_prefill_frees),
        cmocka_unit_test(test_serving__05_disconnect_in_queue_frees),
        cmocka_unit_test(test_serving__06_full_queue_refuses_with_retry_after),
        cmocka_unit_test(test_serving__06_waiting_too_long_refuses_with_retry_after),
        cmocka_unit_test(test_serving__07_keep_alives_in_queue_and_prefill),
        cmocka_unit_test(test_serving__08_over_long_prompt_says_both_counts),
        cmocka_unit_test(test_serving__slow_reader_is_paused_and_loses_nothing),
        cmocka_unit_test(test_serving__slow_reader_is_cut_at_last),
        cmocka_unit_test(test_serving__slow_reader_is_cut_when_too_much_gathers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
