/* What a key may use, through the server: tokens, choices that wait, priorities, the live view. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct server_fixture f;
static char path[64];

/* Never ends by itself. */
static uint32_t endless(void *opaque, const struct kva_sequence_params *params, uint32_t index)
{
    (void)opaque;
    (void)params;
    return 'a' + index % 26;
}

static void prepare(const char *keys)
{
    snprintf(path, sizeof(path), "/tmp/kvahead-keys-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, keys, strlen(keys)) == (ssize_t)strlen(keys));
    close(fd);
    fixture_init(&f);
    f.params.api_key_file = path;
}

static void finish(void)
{
    fixture_stop(&f);
    unlink(path);
}

static void ask(const char *key, const char *body, struct reply *reply)
{
    char header[128];
    snprintf(header, sizeof(header), "X-API-Key: %s\r\n", key);
    client_request(f.port, "POST", "/v1/completions", header, body, reply);
}

/* Status of a completion; `says`, if there is one, must be in the answer. */
static int status_of(const char *key, const char *body, const char *says)
{
    struct reply reply;
    ask(key, body, &reply);
    if (says && !strstr(reply.body, says))
        fail_msg("'%s' is not in: %s", says, reply.body);
    if (reply.status == 429)
        assert_true(atoi(reply_header(&reply, "Retry-After")) >= 1);
    int status = reply.status;
    reply_finish(&reply);
    return status;
}

static int open_post(const char *key, const char *route, const char *body)
{
    char head[256];
    int fd = client_connect(f.port);
    snprintf(head, sizeof(head),
             "POST %s HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             route, key, strlen(body));
    client_puts(fd, head);
    client_puts(fd, body);
    return fd;
}

/* A gauge or counter of /metrics, which wants a key too. */
static double metric(const char *key, const char *name, const char *label)
{
    char header[128];
    struct reply reply;
    double sum = -1;
    snprintf(header, sizeof(header), "X-API-Key: %s\r\n", key);
    client_request(f.port, "GET", "/metrics", header, NULL, &reply);
    assert_int_equal(reply.status, 200);
    char *save = NULL;
    for (char *line = strtok_r(reply.body, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        size_t length = strlen(name);
        if (strncmp(line, name, length) == 0 && (line[length] == '{' || line[length] == ' ') &&
            (!label || strstr(line, label)))
            sum = (sum < 0 ? 0 : sum) + atof(strrchr(line, ' ') + 1);
    }
    reply_finish(&reply);
    return sum;
}

static void wait_metric(const char *key, const char *name, const char *label, double at_least)
{
    for (int i = 0; i < 20000; i++) {
        struct timespec pause = {.tv_nsec = 1000000};
        if (metric(key, name, label) >= at_least)
            return;
        nanosleep(&pause, NULL);
    }
    fail_msg("waited in vain for %s to reach %g", name, at_least);
}

/* Live choices that this key is shown. */
static int shown(const char *key)
{
    char header[128];
    struct reply reply;
    snprintf(header, sizeof(header), "X-API-Key: %s\r\n", key);
    client_request(f.port, "GET", "/v1/kvahead/requests", header, NULL, &reply);
    assert_int_equal(reply.status, 200);
    cJSON *json = cJSON_Parse(reply.body);
    int count = cJSON_GetArraySize(cJSON_GetObjectItem(json, "data"));
    cJSON_Delete(json);
    reply_finish(&reply);
    return count;
}

static void test_keys__tokens_per_minute(void **state KVA_UNUSED)
{
    prepare("a tokens-per-minute=100\nb\n");
    f.engine.next_token = endless;
    fixture_start(&f);
    /* 10 of the prompt, 39 of the output. */
    const char *body = "{\"prompt\":\"0123456789\",\"max_tokens\":39}";
    assert_int_equal(status_of("a", body, NULL), 200);
    assert_int_equal(status_of("a", body, NULL), 200);
    assert_int_equal(status_of("a", body, "has 49 tokens"), 429);
    assert_int_equal(status_of("a", body, "tokens-per-minute"), 429);
    assert_int_equal(status_of("a", "{\"prompt\":\"x\",\"max_tokens\":100}", "101 tokens"), 400);
    assert_int_equal(status_of("b", body, NULL), 200);
    assert_true(metric("b", "kvahead_requests_rejected_total", "key_tokens") == 2);
    finish();

    /* What was asked for and not used comes back: the echo ends after its prompt. */
    prepare("a tokens-per-minute=100\n");
    fixture_start(&f);
    for (int i = 0; i < 5; i++)
        assert_int_equal(status_of("a", "{\"prompt\":\"01234\",\"max_tokens\":40}", NULL), 200);
    finish();
}

/* Who waited in vain pays nothing: 401 of 1000 are taken by the one that runs, and 401 are asked for
 * twice. */
static void test_keys__who_is_turned_away_is_not_charged(void **state KVA_UNUSED)
{
    char body[500];
    prepare("a tokens-per-minute=1000\nb\n");
    f.engine.next_token = endless;
    f.engine.sleep_ns = 20 * KVA_NS_PER_MS;
    f.scheduling.running_max = 1;
    f.scheduling.waiting_time_ns = 100 * KVA_NS_PER_MS;
    fixture_start(&f);
    int first = open_post("a", "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":400}");
    wait_metric("b", "kvahead_generation_tokens_total", NULL, 1);
    snprintf(body, sizeof(body), "{\"prompt\":\"%0400d\",\"max_tokens\":1}", 0);
    assert_int_equal(status_of("a", body, NULL), 503);
    assert_int_equal(status_of("a", body, NULL), 503);
    close(first);
    fixture_wait(&f, fixture_is_idle, "abandoned requests to be freed");
    finish();
}

static void test_keys__choices_that_wait(void **state KVA_UNUSED)
{
    prepare("a waiting=3\nb\n");
    f.engine.next_token = endless;
    f.engine.sleep_ns = KVA_NS_PER_MS;
    f.scheduling.running_max = 1;
    fixture_start(&f);
    int first = open_post("a", "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":8000}");
    wait_metric("b", "kvahead_generation_tokens_total", NULL, 1);
    int second = open_post("a", "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":9,\"n\":2}");
    wait_metric("b", "kvahead_requests_waiting", NULL, 2);
    assert_int_equal(status_of("a", "{\"prompt\":\"x\",\"max_tokens\":9,\"n\":2}", "3 may wait"),
                     429);
    assert_int_equal(status_of("a", "{\"prompt\":\"x\",\"max_tokens\":9,\"n\":4}", "4 choices"),
                     400);
    assert_true(metric("b", "kvahead_requests_rejected_total", "key_waiting") == 1);
    int third = open_post("a", "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":9}");
    wait_metric("b", "kvahead_requests_waiting", NULL, 3);
    /* Those that leave make room. */
    close(second);
    wait_metric("b", "kvahead_requests_finished_total", "abort", 2);
    second = open_post("a", "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":9,\"n\":2}");
    wait_metric("b", "kvahead_requests_waiting", NULL, 3);
    close(first);
    close(second);
    close(third);
    fixture_wait(&f, fixture_is_idle, "abandoned requests to be freed");
    finish();
}

static void test_keys__priorities(void **state KVA_UNUSED)
{
    prepare("a\nb priority=-5..5\n");
    fixture_start(&f);
    assert_int_equal(status_of("a", "{\"prompt\":\"x\",\"priority\":-1}", "0 to 100"), 400);
    assert_int_equal(status_of("a", "{\"prompt\":\"x\",\"priority\":0}", NULL), 200);
    assert_int_equal(status_of("a", "{\"prompt\":\"x\",\"priority\":100}", NULL), 200);
    assert_int_equal(status_of("b", "{\"prompt\":\"x\",\"priority\":-5}", NULL), 200);
    assert_int_equal(status_of("b", "{\"prompt\":\"x\",\"priority\":-6}", "-5 to 5"), 400);
    assert_int_equal(status_of("b", "{\"prompt\":\"x\",\"priority\":6}", "-5 to 5"), 400);
    finish();

    fixture_init(&f);
    fixture_start(&f);
    struct reply reply;
    client_post(f.port, "/v1/completions", "{\"prompt\":\"x\",\"priority\":-100}", &reply);
    assert_int_equal(reply.status, 200);
    reply_finish(&reply);
    fixture_stop(&f);
}

static void test_keys__the_live_view_is_ones_own(void **state KVA_UNUSED)
{
    prepare("a\nb\nboss admin\n");
    f.engine.next_token = endless;
    f.engine.sleep_ns = KVA_NS_PER_MS;
    fixture_start(&f);
    int a = open_post("a", "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":8000,\"n\":2}");
    int b = open_post("b", "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":8000}");
    wait_metric("a", "kvahead_requests_running", NULL, 3);
    for (int i = 0; i < 20000 && shown("boss") < 3; i++)
        usleep(1000);
    assert_int_equal(shown("boss"), 3);
    assert_int_equal(shown("a"), 2);
    assert_int_equal(shown("b"), 1);
    close(a);
    close(b);
    finish();

    prepare("a\n");
    f.params.debug_view = false;
    fixture_start(&f);
    struct reply reply;
    client_request(f.port, "GET", "/v1/kvahead/requests", "X-API-Key: a\r\n", NULL, &reply);
    assert_int_equal(reply.status, 404);
    reply_finish(&reply);
    finish();
}

static void test_keys__metrics_by_name(void **state KVA_UNUSED)
{
    prepare("a name=team-a\nb\nc\n");
    f.params.metrics_keys = true;
    fixture_start(&f);
    for (int i = 0; i < 3; i++)
        assert_int_equal(status_of("a", "{\"prompt\":\"0123\",\"max_tokens\":3}", NULL), 200);
    assert_int_equal(status_of("b", "{\"prompt\":\"01234567\",\"max_tokens\":3}", NULL), 200);
    assert_int_equal(status_of("c", "{\"prompt\":\"01234567\",\"max_tokens\":3}", NULL), 200);
    assert_true(metric("c", "kvahead_key_requests_total", "\"team-a\"") == 3);
    assert_true(metric("c", "kvahead_key_tokens_total", "\"team-a\"") == 3 * 7);
    assert_true(metric("c", "kvahead_key_tokens_total", "\"\"") == 2 * 11);
    assert_true(metric("c", "kvahead_key_waiting", NULL) == 0);
    /* A key goes and one gets a name: what has been counted stays where it was. */
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("b\nc name=team-c\n", file);
    fclose(file);
    kva_server_reload(f.server);
    wait_metric("c", "kvahead_key_requests_total", "\"team-c\"", 0);
    assert_true(metric("c", "kvahead_key_requests_total", "\"team-a\"") == 3);
    assert_true(metric("c", "kvahead_key_requests_total", "\"team-c\"") == 0);
    assert_true(metric("c", "kvahead_key_requests_total", "\"\"") == 2);
    finish();
}

static void test_keys__guesses_meet_a_brake(void **state KVA_UNUSED)
{
    prepare("right\n");
    fixture_start(&f);
    int refused = 0, braked = 0;
    for (int i = 0; i < 200; i++) {
        int status = status_of("wrong", "{\"prompt\":\"x\"}", NULL);
        refused += status == 401;
        braked += status == 429;
    }
    assert_true(refused >= 60 && refused < 100 && braked == 200 - refused);
    assert_int_equal(status_of("right", "{\"prompt\":\"x\"}", NULL), 200);
    assert_true(metric("right", "kvahead_requests_rejected_total", "key_guesses") == braked);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys__tokens_per_minute),
        cmocka_unit_test(test_keys__who_is_turned_away_is_not_charged),
        cmocka_unit_test(test_keys__choices_that_wait),
        cmocka_unit_test(test_keys__priorities),
        cmocka_unit_test(test_keys__the_live_view_is_ones_own),
        cmocka_unit_test(test_keys__metrics_by_name),
        cmocka_unit_test(test_keys__guesses_meet_a_brake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
