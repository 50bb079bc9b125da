/* What one key does does not hold another one up: its many choices, its abandoned prompts, its
 * over-long ones; and memory comes back when they are gone. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const keys[] = {"a,b"};

static struct server_fixture f;

/* Never ends by itself. */
static uint32_t endless(void *opaque, const struct kva_sequence_params *params, uint32_t index)
{
    (void)opaque;
    (void)params;
    return 'a' + index % 26;
}

static void begin(void)
{
    fixture_init(&f);
    f.params.api_keys = keys;
    f.params.api_key_count = 1;
}

static int open_post(const char *key, const char *route, const char *body, size_t length)
{
    char head[256];
    int fd = client_connect(f.port);
    snprintf(head, sizeof(head),
             "POST %s HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             route, key, length);
    client_puts(fd, head);
    client_send(fd, body, length);
    return fd;
}

static void metrics(struct reply *reply)
{
    client_request(f.port, "GET", "/metrics", "X-API-Key: b\r\n", NULL, reply);
    assert_int_equal(reply->status, 200);
}

static double metric(const char *name, const char *label)
{
    struct reply reply;
    double sum = 0;
    char *save = NULL;
    metrics(&reply);
    for (char *line = strtok_r(reply.body, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (strncmp(line, name, strlen(name)) == 0 && strstr(line, label))
            sum += atof(strrchr(line, ' ') + 1);
    reply_finish(&reply);
    return sum;
}

static void wait_metric(const char *name, const char *label, double at_least)
{
    double value = metric(name, label);
    for (int i = 0; i < 20000 && value < at_least; i++, value = metric(name, label))
        usleep(1000);
    assert_true(value >= at_least);
}

/* A JSON body whose prompt has so many bytes, each a token. */
static char *body_of(size_t bytes, const char *more, size_t *ret_length)
{
    char *body = malloc(bytes + 256);
    size_t length = (size_t)sprintf(body, "{\"prompt\":\"");
    memset(body + length, 'A', bytes);
    length += bytes;
    *ret_length = length + (size_t)sprintf(body + length, "\"%s}", more);
    return body;
}

/* H5: 256 prompts, 4 choices each, that never end. */
static void test_fair__a_thousand_choices_hold_nobody_up(void **state KVA_UNUSED)
{
    struct kva_buf body;
    struct reply reply;
    begin();
    f.engine.next_token = endless;
    f.engine.sleep_ns = KVA_NS_PER_MS;
    f.engine.limits.sequences_max = 64;
    f.engine.limits.budget = (struct kva_tier_bytes){.device = 1ull << 40, .host = 1ull << 40};
    f.scheduling.running_max = 16;
    f.scheduling.waiting_max = 2048;
    fixture_start(&f);
    kva_buf_init(&body, 1 << 16);
    kva_buf_puts(&body, "{\"prompt\":[");
    for (int i = 0; i < 256; i++)
        kva_buf_puts(&body, i ? ",\"x\"" : "\"x\"");
    kva_buf_puts(&body, "],\"n\":4,\"max_tokens\":8000}");
    int flood = open_post("a", "/v1/completions", body.data, body.length);
    wait_metric("kvahead_requests_running", "", 16);
    client_request(f.port, "POST", "/v1/completions", "X-API-Key: b\r\n",
                   "{\"prompt\":\"y\",\"max_tokens\":5}", &reply);
    assert_int_equal(reply.status, 200);
    reply_finish(&reply);
    /* It ended, and nothing of the flood had: steps are counted in tests/scheduler/test_tenant. */
    assert_true(metric("kvahead_requests_finished_total", "length") == 1);
    assert_true(metric("kvahead_preemptions_total", "") >= 1);
    close(flood);
    fixture_wait(&f, fixture_is_idle, "the flood to be freed");
    kva_buf_finish(&body);
    fixture_stop(&f);
}

/* H4: what a worker need not do any more it does not do. One worker, held by a job of the key
 * itself. */
static void test_fair__abandoned_prompts_cost_nothing(void **state KVA_UNUSED)
{
    int fds[40];
    size_t length;
    struct reply reply;
    begin();
    f.params.workers = 1;
    f.params.bodies_account_max = (size_t)1 << 30;
    fixture_start(&f);
    /* /tokenize has no bound but the body's. */
    char *body = body_of((size_t)14 << 20, "", &length);
    for (size_t i = 0; i < KVA_COUNT_OF(fds); i++)
        fds[i] = open_post("a", "/tokenize", body, length);
    for (size_t i = 0; i < KVA_COUNT_OF(fds); i++)
        close(fds[i]);
    free(body);
    body = body_of(6000, ",\"max_tokens\":1", &length);
    int fd = open_post("b", "/v1/completions", body, length);
    client_read(fd, false, &reply);
    assert_int_equal(reply.status, 200);
    reply_finish(&reply);
    close(fd);
    free(body);
    wait_metric("kvahead_worker_jobs_total", "", 41);
    /* Those that came and left before the worker could take them. */
    assert_true(metric("kvahead_worker_jobs_total", "run") <= 20);
    assert_true(metric("kvahead_worker_jobs_total", "abandoned") >= 21);
    fixture_stop(&f);
}

static void expect_context_error(const char *route, const char *body, size_t length,
                                 const char *says)
{
    struct reply reply;
    int fd = open_post("a", route, body, length);
    client_read(fd, false, &reply);
    assert_int_equal(reply.status, 400);
    assert_null(reply_header(&reply, "Retry-After"));
    cJSON *json = cJSON_Parse(reply.body);
    assert_string_equal(json_text(json, "error.code"), "context_length_exceeded");
    if (!strstr(json_text(json, "error.message"), says))
        fail_msg("'%s' is not in: %s", says, json_text(json, "error.message"));
    cJSON_Delete(json);
    reply_finish(&reply);
    close(fd);
}

static void test_fair__over_long_prompts_are_cut_off(void **state KVA_UNUSED)
{
    struct reply reply;
    size_t length;
    begin();
    f.backend.api.token_bytes_max = 4; /* "STOP", "hell" */
    fixture_start(&f);
    /* Counted while that is cheap, then not counted, then not looked at. */
    char *body = body_of(30000, "", &length);
    expect_context_error("/v1/completions", body, length, "has 30000 tokens");
    free(body);
    body = body_of(60000, "", &length);
    expect_context_error("/v1/completions", body, length, "60000 bytes has more than 32768");
    free(body);
    body = body_of((size_t)15 << 20, "", &length);
    expect_context_error("/v1/completions", body, length, "15728640 bytes has more than 32768");
    free(body);
    /* Truncation keeps the last tokens of a text of any length. */
    body = body_of(200000, ",\"truncate_prompt_tokens\":5,\"max_tokens\":2", &length);
    int fd = open_post("a", "/v1/completions", body, length);
    client_read(fd, false, &reply);
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply_header(&reply, "X-Kvahead-Truncated-Tokens"), "199995");
    reply_finish(&reply);
    close(fd);
    free(body);
    body = body_of((size_t)15 << 20, ",\"truncate_prompt_tokens\":-1,\"max_tokens\":2", &length);
    fd = open_post("a", "/v1/completions", body, length);
    client_read(fd, false, &reply);
    assert_int_equal(reply.status, 200);
    assert_string_equal(reply_header(&reply, "X-Kvahead-Truncated-Tokens"), "15720450");
    reply_finish(&reply);
    close(fd);
    free(body);
    fixture_stop(&f);

    /* What an empty server has no room for. */
    begin();
    f.engine.limits.budget.device = 20ull << 16;
    fixture_start(&f);
    body = body_of(3000, ",\"max_tokens\":10", &length);
    expect_context_error("/v1/completions", body, length, "");
    free(body);
    fixture_stop(&f);
}

static size_t resident_bytes(void)
{
    unsigned long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &size, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void test_fair__memory_comes_back(void **state KVA_UNUSED)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* another allocator */
#endif
    int fds[200];
    struct kva_buf body;
    char *prompt = malloc(7001);
    memset(prompt, 'A', 7000);
    prompt[7000] = '\0';
    begin();
    f.scheduling.running_max = 1;
    f.scheduling.waiting_max = 8192;
    f.engine.sleep_ns = 50 * KVA_NS_PER_MS; /* so that none ends meanwhile */
    f.engine.next_token = endless;
    fixture_start(&f);
    /* Eight prompts each, and one that came last and stays, above all others in the heap. */
    kva_buf_init(&body, 1 << 20);
    for (int i = 0; i < 8; i++)
        kva_buf_printf(&body, "%s\"%s\"", i ? "," : "{\"prompt\":[", prompt);
    kva_buf_puts(&body, "],\"max_tokens\":1000}");
    size_t before = resident_bytes();
    for (size_t i = 0; i + 1 < KVA_COUNT_OF(fds); i++)
        fds[i] = open_post(i % 2 ? "a" : "b", "/v1/completions", body.data, body.length);
    wait_metric("kvahead_requests_waiting", "", 8 * (KVA_COUNT_OF(fds) - 2));
    static const char last[] = "{\"prompt\":\"x\",\"max_tokens\":1000}";
    fds[KVA_COUNT_OF(fds) - 1] = open_post("a", "/v1/completions", last, sizeof(last) - 1);
    wait_metric("kvahead_http_requests_total", "/metrics", 20);
    size_t high = resident_bytes();
    assert_true(high > before + (64u << 20)); /* or there is nothing to be seen */
    for (size_t i = 0; i + 1 < KVA_COUNT_OF(fds); i++)
        close(fds[i]);
    size_t after = high, wanted = before + (high - before) / 2;
    for (int i = 0; i < 10000 && after > wanted; i++) {
        usleep(1000);
        after = resident_bytes();
    }
    printf("resident MiB: %zu before, %zu with 1,592 prompts, %zu behind them\n", before >> 20,
           high >> 20, after >> 20);
    assert_true(after <= wanted);
    close(fds[KVA_COUNT_OF(fds) - 1]);
    kva_buf_finish(&body);
    free(prompt);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fair__a_thousand_choices_hold_nobody_up),
        cmocka_unit_test(test_fair__abandoned_prompts_cost_nothing),
        cmocka_unit_test(test_fair__over_long_prompts_are_cut_off),
        cmocka_unit_test(test_fair__memory_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
