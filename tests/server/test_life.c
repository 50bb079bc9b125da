/* Behaviours 11 and 12: metrics that agree with the clients, and the server's start and end. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct server_fixture f;

static uint32_t endless(void *opaque, const struct kva_sequence_params *params, uint32_t index)
{
    (void)opaque;
    (void)params;
    return 'a' + index % 26;
}

static void wait_metric(const char *name, const char *label, double at_least)
{
    for (int i = 0; i < 10000; i++) {
        if (client_metric(f.port, name, label) >= at_least)
            return;
        usleep(2000);
    }
    fail_msg("waited in vain for %s to reach %g", name, at_least);
}

static int get_status(const char *path)
{
    struct reply reply;
    client_get(f.port, path, &reply);
    int status = reply.status;
    reply_finish(&reply);
    return status;
}

static void test_serving__11_metrics_agree_with_a_tally(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":\"hello world\",\"max_tokens\":5}",
        "{\"prompt\":[\"ab\",\"cd ef\"],\"n\":3,\"max_tokens\":50}",
        "{\"prompt\":\"xxSTOPyy\",\"stop\":\"STOP\",\"max_tokens\":50}",
        "{\"prompt\":\"streamed\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
        "{\"prompt\":\"best\",\"best_of\":4,\"n\":2,\"unknown_one\":1,\"unknown_two\":2}",
    };
    double prompt = 0, output = 0;
    unsigned requests = 0;
    fixture_init(&f);
    f.params.metrics_vllm = true;
    fixture_start(&f);
    for (unsigned i = 0; i < 40; i++) {
        struct reply reply;
        client_post(f.port, "/v1/completions", bodies[i % KVA_COUNT_OF(bodies)], &reply);
        assert_int_equal(reply.status, 200);
        struct stream stream;
        stream_parse(reply.body, &stream);
        cJSON *json = stream.last ? NULL : cJSON_Parse(reply.body);
        const cJSON *usage = json_at(stream.last ? stream.last : json, "usage");
        prompt += json_number(usage, "prompt_tokens");
        output += json_number(usage, "completion_tokens");
        requests++;
        cJSON_Delete(json);
        stream_finish(&stream);
        reply_finish(&reply);
    }
    fixture_wait(&f, fixture_is_idle, "all requests to end");
    uint16_t port = f.port;
    assert_true(client_metric(port, "kvahead_prompt_tokens_total", NULL) == prompt);
    assert_true(client_metric(port, "kvahead_generation_tokens_total", NULL) == output);
    assert_true(client_metric(port, "vllm:generation_tokens_total", NULL) == output);
    assert_true(client_metric(port, "vllm:generation_tokens_total", "engine=\"0\"") == output);
    assert_true(client_metric(port, "vllm:gpu_cache_usage_perc", NULL) >= 0);
    assert_true(client_metric(port, "kvahead_request_generation_tokens_sum", NULL) == output);
    assert_true(client_metric(port, "kvahead_e2e_request_latency_seconds_count", NULL) == requests);
    assert_true(client_metric(port, "kvahead_time_to_first_token_seconds_count", NULL) == requests);
    assert_true(client_metric(port, "kvahead_http_requests_total",
                              "route=\"/v1/completions\",code=\"200\"") == requests);
    assert_true(client_metric(port, "kvahead_requests_finished_total", NULL) ==
                8 * (1 + 6 + 1 + 1 + 4));
    assert_true(client_metric(port, "kvahead_unknown_fields_total", NULL) == 16);
    double scheduled =
        client_metric(port, "kvahead_scheduler_prompt_tokens_total", "source=\"computed\"") +
        client_metric(port, "kvahead_scheduler_prompt_tokens_total", "source=\"cached\"");
    assert_true(scheduled >= prompt);
    fixture_stop(&f);
}

static void test_serving__11_metrics_pass_promtool(void **state)
{
    (void)state;
    struct reply reply;
    int status;
    if (system("command -v promtool >/dev/null 2>&1") != 0) {
        printf("SKIPPED: promtool (of Prometheus) is not on this machine\n");
        return;
    }
    fixture_init(&f);
    /* The names under vllm: have a colon, which the linter does not like. */
    f.backend.api.model_ids[0] = "a \"quoted\\\" name";
    fixture_start(&f);
    cJSON_Delete(client_post_json(f.port, "/v1/completions", "{\"prompt\":\"hello\"}", &status));
    cJSON_Delete(client_post_json(f.port, "/v1/completions", "{}", &status));
    client_get(f.port, "/metrics", &reply);
    FILE *pipe = popen("promtool check metrics 2>&1", "w");
    assert_non_null(pipe);
    fwrite(reply.body, 1, reply.body_bytes, pipe);
    assert_int_equal(pclose(pipe), 0);
    reply_finish(&reply);
    fixture_stop(&f);
}

static void test_serving__12_loading_says_503_until_attached(void **state)
{
    (void)state;
    struct reply reply;
    fixture_init(&f);
    f.attach_later = true;
    fixture_start(&f);
    assert_int_equal(get_status("/health"), 200);
    assert_int_equal(get_status("/metrics"), 200);
    assert_int_equal(get_status("/v1/models"), 200);
    assert_int_equal(get_status("/v1/kvahead/requests"), 200);
    static const char *const waiting[] = {"/ready", "/v1/models/echo", "/v1/models/other"};
    for (size_t i = 0; i < KVA_COUNT_OF(waiting); i++) {
        client_get(f.port, waiting[i], &reply);
        assert_int_equal(reply.status, 503);
        assert_non_null(reply_header(&reply, "Retry-After"));
        assert_non_null(strstr(reply.body, "still loading"));
        reply_finish(&reply);
    }
    client_post(f.port, "/v1/completions", "{\"prompt\":\"x\"}", &reply);
    assert_int_equal(reply.status, 503);
    assert_non_null(reply_header(&reply, "Retry-After"));
    reply_finish(&reply);
    assert_true(client_metric(f.port, "kvahead_requests_rejected_total", "loading") == 3);
    fixture_attach(&f);
    for (int i = 0; i < 5000 && get_status("/ready") != 200; i++)
        usleep(1000);
    assert_int_equal(get_status("/ready"), 200);
    assert_int_equal(get_status("/v1/models/echo"), 200);
    client_post(f.port, "/v1/completions", "{\"prompt\":\"x\"}", &reply);
    assert_int_equal(reply.status, 200);
    reply_finish(&reply);
    fixture_stop(&f);
}

static void test_serving__12_failed_loading_is_told(void **state)
{
    (void)state;
    struct reply reply;
    fixture_init(&f);
    f.attach_later = true;
    fixture_start(&f);
    kva_server_fail(f.server, "The model has no tokenizer.");
    for (int i = 0; i < 5000; i++) {
        client_get(f.port, "/ready", &reply);
        if (strstr(reply.body, "The model has no tokenizer."))
            break;
        reply_finish(&reply);
        usleep(1000);
    }
    assert_int_equal(reply.status, 503);
    reply_finish(&reply);
    fixture_stop(&f);
}

static void test_serving__12_drain_ends_streams_and_refuses_new_work(void **state)
{
    (void)state;
    struct reply reply;
    fixture_init(&f);
    f.engine.sleep_ns = 2 * KVA_NS_PER_MS;
    f.engine.next_token = endless;
    fixture_start(&f);
    int fd = client_post_open(f.port, "/v1/completions",
                              "{\"prompt\":\"x\",\"max_tokens\":300,\"stream\":true}");
    wait_metric("kvahead_requests_running", NULL, 1);
    kva_server_drain(f.server);
    for (int i = 0; i < 2000 && get_status("/ready") != 503; i++)
        usleep(1000);
    client_post(f.port, "/v1/completions", "{\"prompt\":\"x\"}", &reply);
    assert_int_equal(reply.status, 503);
    assert_non_null(strstr(reply.body, "shutting down"));
    assert_non_null(reply_header(&reply, "Retry-After"));
    reply_finish(&reply);
    assert_int_equal(get_status("/health"), 200);
    struct stream stream;
    client_read(fd, false, &reply);
    stream_parse(reply.body, &stream);
    assert_true(stream.done);
    assert_int_equal(strlen(stream.text[0]), 300);
    stream_finish(&stream);
    reply_finish(&reply);
    close(fd);
    assert_int_equal(fixture_join(&f), KVA_OK);
    fixture_stop(&f);
}

static void test_serving__12_drain_has_a_bound(void **state)
{
    (void)state;
    struct reply reply;
    struct stream stream;
    fixture_init(&f);
    f.engine.sleep_ns = 5 * KVA_NS_PER_MS;
    f.engine.next_token = endless;
    f.params.drain_timeout_ns = 50 * KVA_NS_PER_MS;
    fixture_start(&f);
    int streamed = client_post_open(f.port, "/v1/completions",
                                    "{\"prompt\":\"x\",\"max_tokens\":8000,\"stream\":true}");
    int whole =
        client_post_open(f.port, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":8000}");
    wait_metric("kvahead_requests_running", NULL, 2);
    wait_metric("kvahead_generation_tokens_total", NULL, 4);
    kva_server_drain(f.server);
    assert_int_equal(fixture_join(&f), KVA_ETIMEOUT);
    client_read(streamed, false, &reply);
    assert_int_equal(reply.status, 200);
    stream_parse(reply.body, &stream);
    assert_true(stream.error && !stream.done);
    assert_string_equal(json_text(stream.last, "error.type"), "server_error");
    stream_finish(&stream);
    reply_finish(&reply);
    client_read(whole, false, &reply);
    assert_int_equal(reply.status, 503);
    reply_finish(&reply);
    close(streamed);
    close(whole);
    fixture_stop(&f);
}

/* A cluster in which others need this server until it is told otherwise. */
static atomic_bool needed;

static uint64_t between_steps(void *opaque, struct kva_scheduler *scheduler)
{
    (void)opaque;
    (void)scheduler;
    return kva_time_ns() + KVA_NS_PER_MS;
}

static bool leave(void *opaque)
{
    (void)opaque;
    return !atomic_load(&needed);
}

static void end_beside(void *opaque)
{
    (void)opaque;
}

static const struct kva_service_beside beside = {
    .between_steps = between_steps, .leave = leave, .end = end_beside};

/* Status of the answer to a GET; whether the connection ends behind it. */
static int ask(int fd, const char *rest, bool *ret_ends)
{
    struct reply reply;
    client_puts(fd, rest);
    client_read(fd, false, &reply);
    const char *connection = reply_header(&reply, "Connection");
    int status = reply.status;
    *ret_ends = connection && strcmp(connection, "close") == 0;
    reply_finish(&reply);
    return status;
}

static bool has_ended(int fd)
{
    char byte;
    return recv(fd, &byte, 1, 0) == 0;
}

/* A client that keeps its connections would be cut on one of them when the process ends. */
static void test_serving__12_drain_keeps_no_connection(void **state)
{
    (void)state;
    static const char get[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const char post[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 44\r\n\r\n{\"prompt\":\"x\",\"max_tokens\":99,\"stream\":true}";
    struct reply reply;
    bool ends = true;
    fixture_init(&f);
    f.beside = &beside;
    f.engine.sleep_ns = 2 * KVA_NS_PER_MS;
    f.engine.next_token = endless;
    atomic_store(&needed, true); /* it stays until the test has seen all */
    fixture_start(&f);
    int idle = client_connect(f.port), begun = client_connect(f.port);
    int fresh = client_connect(f.port), streamed = client_connect(f.port);
    assert_true(ask(idle, get, &ends) == 200 && !ends);
    assert_true(ask(begun, get, &ends) == 200 && !ends);
    client_puts(begun, "GET /hea");
    client_puts(streamed, post);
    wait_metric("kvahead_generation_tokens_total", NULL, 4);
    kva_server_drain(f.server);
    for (int i = 0; i < 2000 && get_status("/ready") != 503; i++)
        usleep(1000);
    assert_true(has_ended(idle));
    assert_true(ask(begun, get + strlen("GET /hea"), &ends) == 200 && ends && has_ended(begun));
    assert_true(ask(fresh, get, &ends) == 200 && ends && has_ended(fresh));
    /* Its head has left before. */
    client_read(streamed, false, &reply);
    assert_null(reply_header(&reply, "Connection"));
    assert_non_null(strstr(reply.body, "data: [DONE]"));
    reply_finish(&reply);
    assert_true(has_ended(streamed));
    atomic_store(&needed, false);
    assert_int_equal(fixture_join(&f), KVA_OK);
    fixture_stop(&f);
    close(idle);
    close(begun);
    close(fresh);
    close(streamed);
}

static void test_serving__12_drain_waits_for_others_of_a_cluster(void **state)
{
    (void)state;
    fixture_init(&f);
    f.beside = &beside;
    atomic_store(&needed, true);
    fixture_start(&f);
    kva_server_drain(f.server);
    for (int i = 0; i < 2000 && get_status("/ready") != 503; i++)
        usleep(1000);
    for (int i = 0; i < 20; i++) /* it is there still, and refuses */
        assert_int_equal(get_status("/ready"), 503);
    atomic_store(&needed, false);
    assert_int_equal(fixture_join(&f), KVA_OK);
    fixture_stop(&f);
}

static void test_serving__12_others_of_a_cluster_have_a_bound(void **state)
{
    (void)state;
    fixture_init(&f);
    f.beside = &beside;
    f.params.drain_timeout_ns = 50 * KVA_NS_PER_MS;
    atomic_store(&needed, true);
    fixture_start(&f);
    kva_server_drain(f.server);
    assert_int_equal(fixture_join(&f), KVA_OK); /* no request was ended */
    fixture_stop(&f);
}

static void test_serving__12_second_signal_ends_at_once(void **state)
{
    (void)state;
    fixture_init(&f);
    f.engine.sleep_ns = 5 * KVA_NS_PER_MS;
    f.engine.next_token = endless;
    fixture_start(&f);
    int fd = client_post_open(f.port, "/v1/completions",
                              "{\"prompt\":\"x\",\"max_tokens\":8000,\"stream\":true}");
    wait_metric("kvahead_requests_running", NULL, 1);
    kva_server_drain(f.server);
    kva_server_stop(f.server);
    assert_int_equal(fixture_join(&f), KVA_ECANCELLED);
    fixture_stop(&f);
    close(fd);
}

static void test_serving__12_device_failure_ends_with_errors_not_silence(void **state)
{
    (void)state;
    struct reply reply;
    struct stream stream;
    fixture_init(&f);
    f.engine.sleep_ns = 2 * KVA_NS_PER_MS;
    f.engine.next_token = endless;
    f.engine.fail_step = 40;
    fixture_start(&f);
    int fd = client_post_open(f.port, "/v1/completions",
                              "{\"prompt\":\"x\",\"max_tokens\":8000,\"stream\":true}");
    client_read(fd, false, &reply);
    stream_parse(reply.body, &stream);
    assert_true(stream.error && !stream.done);
    assert_string_equal(json_text(stream.last, "error.code"), "device_failed");
    stream_finish(&stream);
    reply_finish(&reply);
    close(fd);
    assert_int_equal(fixture_join(&f), KVA_EDEVICE);
    fixture_stop(&f);
}

static void test_serving__12_request_timeout_is_an_error(void **state)
{
    (void)state;
    struct reply reply;
    fixture_init(&f);
    f.engine.sleep_ns = 2 * KVA_NS_PER_MS;
    f.engine.next_token = endless;
    f.params.request_timeout_ns = 100 * KVA_NS_PER_MS;
    fixture_start(&f);
    client_post(f.port, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":8000}", &reply);
    assert_int_equal(reply.status, 408);
    assert_string_equal(reply_header(&reply, "X-Should-Retry"), "false");
    assert_non_null(strstr(reply.body, "time limit"));
    reply_finish(&reply);
    fixture_wait(&f, fixture_is_idle, "the timed-out request to be freed");
    fixture_stop(&f);
}

static void test_serving__live_view_lists_requests(void **state)
{
    (void)state;
    struct reply reply;
    fixture_init(&f);
    f.engine.sleep_ns = 2 * KVA_NS_PER_MS;
    f.engine.next_token = endless;
    fixture_start(&f);
    int fd = client_post_open(f.port, "/v1/completions",
                              "{\"prompt\":\"xyz\",\"max_tokens\":2000,\"n\":2,"
                              "\"kv\":{\"policy\":\"offload\"}}");
    cJSON *json = NULL;
    for (int i = 0; i < 5000; i++) {
        client_get(f.port, "/v1/kvahead/requests", &reply);
        json = cJSON_Parse(reply.body);
        reply_finish(&reply);
        if (cJSON_GetArraySize(json_at(json, "data")) == 2 &&
            strcmp(json_text(json, "data.1.state"), "decode") == 0)
            break;
        cJSON_Delete(json);
        json = NULL;
        usleep(2000);
    }
    assert_string_equal(json_text(json, "data.0.policy"), "offload");
    assert_true(json_number(json, "data.0.prompt_tokens") == 3);
    assert_true(json_number(json, "data.0.host_bytes") > 0);
    assert_int_equal(strlen(json_text(json, "data.0.request_id")), 32);
    cJSON_Delete(json);
    close(fd);
    fixture_stop(&f);
}

/* Memory is that of before after thousands of requests of every kind. */
static void test_serving__thousands_of_requests_leave_nothing(void **state)
{
    (void)state;
    static const char request[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 15\r\n\r\n{\"prompt\":\"ok\"}";
    char answer[4096];
    fixture_init(&f);
    fixture_start(&f);
    for (int i = 0; i < 20; i++) {
        int fd = client_connect(f.port);
        for (int j = 0; j < 150; j++) {
            client_puts(fd, request);
            /* Answers are below one segment. */
            assert_true(recv(fd, answer, sizeof(answer), 0) > 0);
        }
        close(fd);
    }
    fixture_wait(&f, fixture_is_idle, "all requests to end");
    assert_true(client_metric(f.port, "kvahead_e2e_request_latency_seconds_count", NULL) == 3000);
    assert_true(client_metric(f.port, "kvahead_requests_running", NULL) == 0);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serving__11_metrics_agree_with_a_tally),
        cmocka_unit_test(test_serving__11_metrics_pass_promtool),
        cmocka_unit_test(test_serving__12_loading_says_503_until_attached),
        cmocka_unit_test(test_serving__12_failed_loading_is_told),
        cmocka_unit_test(test_serving__12_drain_ends_streams_and_refuses_new_work),
        cmocka_unit_test(test_serving__12_drain_has_a_bound),
        cmocka_unit_test(test_serving__12_drain_keeps_no_connection),
        cmocka_unit_test(test_serving__12_drain_waits_for_others_of_a_cluster),
        cmocka_unit_test(test_serving__12_others_of_a_cluster_have_a_bound),
        cmocka_unit_test(test_serving__12_second_signal_ends_at_once),
        cmocka_unit_test(test_serving__12_device_failure_ends_with_errors_not_silence),
        cmocka_unit_test(test_serving__12_request_timeout_is_an_error),
        cmocka_unit_test(test_serving__live_view_lists_requests),
        cmocka_unit_test(test_serving__thousands_of_requests_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
