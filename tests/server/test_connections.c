/* Connections: what is held for whom, what a peer's end looks like, who gets in when all is taken. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define POST_HEAD                                                                                  \
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
#define GET_HEALTH "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

static struct server_fixture f;
static const char *const keys[] = {"key-one", "key-two"};

static uint32_t endless(void *opaque, const struct kva_sequence_params *params, uint32_t index)
{
    (void)opaque;
    (void)params;
    return 'a' + index % 26;
}

static void begin(void)
{
    fixture_init(&f);
    f.engine.sleep_ns = KVA_NS_PER_MS;
    f.engine.next_token = endless;
}

static void pause_ms(long ms)
{
    struct timespec pause = {.tv_nsec = ms * 1000000};
    nanosleep(&pause, NULL);
}

static void wait_metric(const char *name, const char *label, double value)
{
    for (int i = 0; i < 4000; i++) {
        if (client_metric(f.port, name, label) == value)
            return;
        pause_ms(5);
    }
    fail_msg("waited in vain for %s to be %g", name, value);
}

/* `says` is in the answer. */
static void expect_words(int fd, int status, const char *says)
{
    struct reply reply;
    client_read(fd, false, &reply);
    if (reply.status != status || !strstr(reply.body ? reply.body : "", says))
        fail_msg("%d and '%s' expected, got: %s%s", status, says,
                 reply.head ? reply.head : "nothing", reply.body ? reply.body : "");
    reply_finish(&reply);
}

static void expect_status(int fd, int status)
{
    expect_words(fd, status, "");
}

/* The peer has closed: nothing more can be read. */
static void expect_closed(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, 0);
    assert_true(got == 0 || (got < 0 && errno == ECONNRESET));
    close(fd);
}

static void reset(int fd)
{
    struct linger now = {.l_onoff = 1};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
    close(fd);
}

/* --- the peer's end -------------------------------------------------------------------------- */

static void leave_by_fin(int fd)
{
    close(fd);
}

static void leave_by_shutdown(int fd)
{
    /* The other direction stays open, and is leaked until the test's end. */
    shutdown(fd, SHUT_WR);
}

static void (*const leaving[])(int fd) = {reset, leave_by_fin, leave_by_shutdown};

static void test_connections__every_end_ends_the_request(void **state)
{
    (void)state;
    static const char *const forms[] = {"false", "true"};
    static char ahead[1 << 20];
    memset(ahead, 'G', sizeof(ahead));
    for (size_t i = 0; i < KVA_COUNT_OF(leaving) * 2 * 2; i++) {
        bool sends_ahead = i & 1;
        char body[128], head[256];
        begin();
        f.params.keep_alive_ns = 0;
        fixture_start(&f);
        snprintf(body, sizeof(body), "{\"prompt\":\"x\",\"max_tokens\":8000,\"stream\":%s}",
                 forms[i / 2 & 1]);
        snprintf(head, sizeof(head), POST_HEAD "Content-Length: %zu\r\n\r\n", strlen(body));
        int fd = client_connect(f.port);
        client_puts(fd, head);
        client_puts(fd, body);
        wait_metric("kvahead_requests_running", NULL, 1);
        if (sends_ahead) {
            /* The end comes behind bytes that nobody wants yet. */
            fcntl(fd, F_SETFL, O_NONBLOCK);
            (void)!send(fd, ahead, sizeof(ahead), MSG_NOSIGNAL);
        }
        leaving[i / 4](fd);
        fixture_wait(&f, fixture_is_idle, "a request to end with its connection");
        wait_metric("kvahead_http_requests_total", "code=\"499\"", 1);
        if (leaving[i / 4] == leave_by_shutdown)
            close(fd);
        fixture_stop(&f);
    }
}

static void test_connections__reset_in_the_queue_frees(void **state)
{
    (void)state;
    begin();
    f.scheduling.running_max = 1;
    fixture_start(&f);
    int first =
        client_post_open(f.port, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":8000}");
    wait_metric("kvahead_requests_running", NULL, 1);
    int fds[20];
    for (size_t i = 0; i < KVA_COUNT_OF(fds); i++)
        fds[i] = client_post_open(f.port, "/v1/completions", "{\"prompt\":\"y\",\"max_tokens\":9}");
    wait_metric("kvahead_requests_waiting", NULL, KVA_COUNT_OF(fds));
    for (size_t i = 0; i < KVA_COUNT_OF(fds); i++)
        reset(fds[i]);
    wait_metric("kvahead_requests_waiting", NULL, 0);
    reset(first);
    fixture_wait(&f, fixture_is_idle, "reset requests to be freed");
    fixture_stop(&f);
}

static void test_connections__half_closed_peer_gets_what_was_asked_for_before(void **state)
{
    (void)state;
    begin();
    fixture_start(&f);
    int fd = client_connect(f.port);
    client_puts(fd, GET_HEALTH);
    expect_status(fd, 200);
    client_puts(fd, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    shutdown(fd, SHUT_WR);
    expect_status(fd, 200);
    expect_closed(fd);
    fixture_stop(&f);
}

/* --- bodies that nobody reads ---------------------------------------------------------------- */

/* The request inside the body must not be taken for one, whatever the method. */
static void test_connections__no_body_becomes_a_request(void **state)
{
    (void)state;
    static const char *const methods[] = {"HEAD", "TRACE", "GET", "OPTIONS", "DELETE", "POST"};
    static const char inner[] = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
    begin();
    fixture_start(&f);
    for (size_t i = 0; i < KVA_COUNT_OF(methods) * 2; i++) {
        const char *method = methods[i / 2];
        bool chunked = i & 1;
        char text[512];
        struct reply reply;
        int fd = client_connect(f.port);
        if (chunked)
            snprintf(text, sizeof(text),
                     "%s /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                     "chunked\r\n\r\n%zx\r\n%s\r\n0\r\n\r\n",
                     method, sizeof(inner) - 1, inner);
        else
            snprintf(text, sizeof(text),
                     "%s /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
                     method, sizeof(inner) - 1, inner);
        client_puts(fd, text);
        client_read(fd, i / 2 == 0, &reply);
        assert_true(reply.status == 204 || reply.status == 400 || reply.status == 405);
        reply_finish(&reply);
        /* Of unknown length it is not read, and the connection ends. */
        client_puts(fd, GET_HEALTH);
        client_read(fd, false, &reply);
        assert_int_equal(reply.status, chunked ? 0 : 200);
        if (!chunked)
            assert_non_null(strstr(reply.body, "\"ok\""));
        reply_finish(&reply);
        close(fd);
    }
    assert_true(client_metric(f.port, "kvahead_http_requests_total", "/version") == -1);
    fixture_stop(&f);
}

static void test_connections__refused_bodies_keep_the_connection_or_close_it(void **state)
{
    (void)state;
    begin();
    fixture_start(&f);
    char *large = malloc(300000);
    assert_non_null(large);
    memset(large, ' ', 300000);
    struct reply reply;
    int fd = client_connect(f.port);
    /* Small: read past, in pieces that come late. */
    client_puts(fd, "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n");
    client_read(fd, false, &reply);
    assert_int_equal(reply.status, 404);
    assert_null(reply_header(&reply, "Connection"));
    reply_finish(&reply);
    client_send(fd, large, 60000);
    client_puts(fd, GET_HEALTH);
    expect_status(fd, 200);
    /* Large: the answer says that it closes, and is not lost although the body is sent. */
    client_puts(fd, "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n");
    client_send(fd, large, 300000);
    client_read(fd, false, &reply);
    assert_int_equal(reply.status, 404);
    assert_string_equal(reply_header(&reply, "Connection"), "close");
    reply_finish(&reply);
    expect_closed(fd);
    free(large);
    fixture_stop(&f);
}

static void test_connections__strangers_bodies_are_not_read(void **state)
{
    (void)state;
    begin();
    f.params.api_keys = keys;
    f.params.api_key_count = 2;
    fixture_start(&f);
    for (int i = 0; i < 50; i++) {
        int fd = client_connect(f.port);
        client_puts(fd, POST_HEAD "Content-Length: 15000000\r\n\r\n");
        expect_status(fd, 401);
        close(fd);
    }
    fixture_stop(&f);
}

static void test_connections__bodies_are_bounded_by_key_and_in_sum(void **state)
{
    (void)state;
    static const char one[] = POST_HEAD "Authorization: Bearer key-one\r\nContent-Length: ";
    static const char two[] = POST_HEAD "Authorization: Bearer key-two\r\nContent-Length: ";
    begin();
    f.params.api_keys = keys;
    f.params.api_key_count = 2;
    f.params.body_bytes_max = 10000;
    f.params.bodies_account_max = 15000;
    f.params.bodies_bytes_max = 20000;
    fixture_start(&f);
    int first = client_connect(f.port);
    client_puts(first, one);
    client_puts(first, "9000\r\n\r\n{");
    int held = client_connect(f.port);
    /* It is held once the head has been read, which the answer to `Expect` shows. */
    client_puts(held, one);
    client_puts(held, "6000\r\nExpect: 100-continue\r\n\r\n");
    assert_true(client_read_until(held, "100 Continue\r\n\r\n"));
    int more = client_connect(f.port);
    client_puts(more, one);
    client_puts(more, "1\r\n\r\n");
    expect_words(more, 429, "hold 15001 bytes of bodies, limit is 15000 (bodies-per-key)");
    close(more);
    more = client_connect(f.port);
    client_puts(more, two);
    client_puts(more, "6000\r\nExpect: 100-continue\r\n\r\n");
    expect_words(more, 503, "hold 21000 bytes of bodies, limit is 20000 (bodies-limit)");
    close(more);
    /* A chunked body asks as it comes, and is refused in the same words. */
    more = client_connect(f.port);
    client_puts(more, POST_HEAD "Authorization: Bearer key-one\r\nTransfer-Encoding: "
                                "chunked\r\n\r\n1\r\n{\r\n");
    expect_words(more, 429, "limit is 15000 (bodies-per-key)");
    close(more);
    char chunk[6000];
    memset(chunk, ' ', sizeof(chunk));
    more = client_connect(f.port);
    client_puts(more, POST_HEAD "Authorization: Bearer key-two\r\nTransfer-Encoding: "
                                "chunked\r\n\r\n1770\r\n");
    client_send(more, chunk, sizeof(chunk));
    expect_words(more, 503, "limit is 20000 (bodies-limit)");
    close(more);
    /* Up to what is left, to the byte. */
    more = client_connect(f.port);
    client_puts(more, POST_HEAD "Authorization: Bearer key-two\r\nTransfer-Encoding: "
                                "chunked\r\n\r\n1388\r\n");
    client_send(more, chunk, 5000);
    client_puts(more, "\r\n0\r\n\r\n");
    expect_words(more, 400, "JSON");
    close(more);
    /* What is free again can be had again. */
    close(first);
    close(held);
    for (int i = 0; i < 4000; i++) {
        struct reply reply;
        client_request(f.port, "POST", "/v1/completions",
                       "Content-Type: application/json\r\nAuthorization: Bearer key-two\r\n",
                       "{\"prompt\":\"x\",\"max_tokens\":2}", &reply);
        int status = reply.status;
        reply_finish(&reply);
        if (status == 200)
            break;
        assert_int_equal(status, 503);
        assert_true(i < 3999);
        pause_ms(5);
    }
    fixture_stop(&f);
}

/* --- room for others ------------------------------------------------------------------------- */

static void test_connections__oldest_waiting_of_an_address_makes_room(void **state)
{
    (void)state;
    int fds[6];
    begin();
    f.params.waiting_per_address_max = 3;
    fixture_start(&f);
    for (size_t i = 0; i < KVA_COUNT_OF(fds); i++) {
        fds[i] = client_connect(f.port);
        /* Half a head is waiting too. */
        client_puts(fds[i], i % 2 ? "GET /health HTTP/1.1\r\n" : "G");
    }
    for (size_t i = 0; i < 3; i++)
        expect_closed(fds[i]);
    client_puts(fds[5], "Host: localhost\r\n\r\n");
    expect_status(fds[5], 200);
    for (size_t i = 3; i < KVA_COUNT_OF(fds); i++)
        close(fds[i]);
    assert_true(client_metric(f.port, "kvahead_connections_evicted_total", NULL) >= 3);
    fixture_stop(&f);
}

static void test_connections__probes_are_answered_when_all_are_busy(void **state)
{
    (void)state;
    struct reply reply;
    int busy[2];
    begin();
    f.params.connections_max = 2;
    fixture_start(&f);
    for (size_t i = 0; i < KVA_COUNT_OF(busy); i++) {
        busy[i] = client_post_open(f.port, "/v1/completions",
                                   "{\"prompt\":\"x\",\"max_tokens\":8000,\"stream\":true}");
        assert_true(client_read_until(busy[i], "data: "));
    }
    /* Strangers who hold the reserve make room for each other. */
    int strangers[40];
    for (size_t i = 0; i < KVA_COUNT_OF(strangers); i++)
        strangers[i] = client_connect(f.port);
    client_get(f.port, "/health", &reply);
    assert_int_equal(reply.status, 200);
    reply_finish(&reply);
    client_get(f.port, "/ready", &reply);
    assert_int_equal(reply.status, 200);
    reply_finish(&reply);
    client_get(f.port, "/v1/models", &reply);
    assert_int_equal(reply.status, 503);
    assert_non_null(reply_header(&reply, "Retry-After"));
    assert_non_null(strstr(reply.body, "2 connections"));
    reply_finish(&reply);
    for (size_t i = 0; i < KVA_COUNT_OF(strangers); i++)
        close(strangers[i]);
    for (size_t i = 0; i < KVA_COUNT_OF(busy); i++)
        reset(busy[i]);
    fixture_wait(&f, fixture_is_idle, "busy connections to end");
    client_get(f.port, "/v1/models", &reply);
    assert_int_equal(reply.status, 200);
    reply_finish(&reply);
    assert_true(client_metric(f.port, "kvahead_requests_rejected_total", "connections") == 1);
    assert_true(client_metric(f.port, "kvahead_requests_rejected_total", "queue_full") == 0);
    fixture_stop(&f);
}

/* Descriptors run out in the middle of a burst: no crash, and the server answers afterwards. */
static void test_connections__running_out_of_descriptors_is_survived(void **state)
{
    (void)state;
    int fds[200];
    struct rlimit before, few;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    begin();
    fixture_start(&f);
    address.sin_port = htons(f.port);
    /* The client's descriptors first: the limit is the whole process'. */
    for (size_t i = 0; i < KVA_COUNT_OF(fds); i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_true(fds[i] >= 0);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)fds[KVA_COUNT_OF(fds) - 1] + 8;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (size_t i = 0; i < KVA_COUNT_OF(fds); i++)
        assert_int_equal(connect(fds[i], (struct sockaddr *)&address, sizeof(address)), 0);
    /* Those that wait longest made room: the last of them is served. */
    client_puts(fds[KVA_COUNT_OF(fds) - 1], GET_HEALTH);
    expect_status(fds[KVA_COUNT_OF(fds) - 1], 200);
    for (size_t i = 0; i < KVA_COUNT_OF(fds); i++)
        close(fds[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(client_metric(f.port, "kvahead_accept_errors_total", NULL) >= 1);
    fixture_stop(&f);
}

/* A load balancer's question is answered then, too, by connections that wait. */
static void test_connections__the_agent_gets_a_descriptor(void **state)
{
    (void)state;
    int idle[4], taken[64], taken_count = 0;
    char line[64] = "";
    struct rlimit before, few;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    begin();
    f.params.agent_host = "127.0.0.1";
    fixture_start(&f);
    for (size_t i = 0; i < KVA_COUNT_OF(idle); i++) {
        idle[i] = client_connect(f.port);
        client_puts(idle[i], GET_HEALTH);
        expect_status(idle[i], 200);
    }
    address.sin_port = htons(kva_server_agent_port(f.server));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval patience = {.tv_sec = 20};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)fd + 8;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    while ((taken[taken_count] = dup(fd)) >= 0)
        assert_true(++taken_count < (int)KVA_COUNT_OF(taken));
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ssize_t got = recv(fd, line, sizeof(line) - 1, MSG_WAITALL);
    while (taken_count > 0)
        close(taken[--taken_count]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (got <= 0 || strncmp(line, "ready up ", 9) != 0)
        fail_msg("%d bytes, '%s'", (int)got, line);
    close(fd);
    for (size_t i = 0; i < KVA_COUNT_OF(idle); i++)
        close(idle[i]);
    assert_true(client_metric(f.port, "kvahead_accept_errors_total", NULL) >= 1);
    fixture_stop(&f);
}

/* --- who may ask for what, where ------------------------------------------------------------- */

static int status_at(uint16_t port, const char *method, const char *path, const char *headers)
{
    struct reply reply;
    client_request(port, method, path, headers, NULL, &reply);
    int status = reply.status;
    reply_finish(&reply);
    return status;
}

static void test_connections__admin_listener_has_probes_and_metrics_only(void **state)
{
    (void)state;
    begin();
    f.params.api_keys = keys;
    f.params.api_key_count = 2;
    f.params.admin_host = "127.0.0.1";
    f.params.connections_max = 1;
    fixture_start(&f);
    uint16_t admin = kva_server_admin_port(f.server);
    assert_int_not_equal(admin, 0);
    int busy = client_connect(f.port);
    static const char *const open[] = {"/health", "/ready", "/metrics", "/version"};
    for (size_t i = 0; i < KVA_COUNT_OF(open); i++)
        assert_int_equal(status_at(admin, "GET", open[i], NULL), 200);
    assert_int_equal(status_at(admin, "GET", "/v1/models", NULL), 404);
    assert_int_equal(status_at(admin, "GET", "/v1/models", "Authorization: Bearer key-one\r\n"),
                     404);
    assert_int_equal(status_at(admin, "OPTIONS", "/v1/models", NULL), 404);
    close(busy);
    assert_int_equal(status_at(f.port, "GET", "/metrics", NULL), 401);
    assert_int_equal(status_at(f.port, "GET", "/ready", NULL), 200);
    fixture_stop(&f);
}

static int status_for_host(const char *host)
{
    char text[256];
    struct reply reply;
    int fd = client_connect(f.port);
    snprintf(text, sizeof(text), "GET /v1/models HTTP/1.1\r\nHost: %s\r\n\r\n", host);
    client_puts(fd, text);
    client_read(fd, false, &reply);
    int status = reply.status;
    reply_finish(&reply);
    close(fd);
    return status;
}

static void test_connections__strange_hosts_are_refused_on_loopback_without_keys(void **state)
{
    (void)state;
    static const char *const allowed[] = {"chat.example.org"};
    static const char *const ours[] = {
        "localhost", "LOCALHOST:8000", "a.localhost", "127.0.0.1:1", "[::1]:80", "127.9.9.9", ""};
    static const char *const strange[] = {"rebound.example.com", "localhost.example.com",
                                          "127.0.0.1.example.com", "xlocalhost", "[::2]"};
    begin();
    fixture_start(&f);
    for (size_t i = 0; i < KVA_COUNT_OF(ours); i++)
        assert_int_equal(status_for_host(ours[i]), 200);
    for (size_t i = 0; i < KVA_COUNT_OF(strange); i++)
        assert_int_equal(status_for_host(strange[i]), 421);
    assert_int_equal(status_for_host("chat.example.org"), 421);
    fixture_stop(&f);
    begin();
    f.params.allowed_hosts = allowed;
    f.params.allowed_host_count = 1;
    fixture_start(&f);
    assert_int_equal(status_for_host("Chat.Example.Org:443"), 200);
    assert_int_equal(status_for_host(strange[0]), 421);
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connections__every_end_ends_the_request),
        cmocka_unit_test(test_connections__reset_in_the_queue_frees),
        cmocka_unit_test(test_connections__half_closed_peer_gets_what_was_asked_for_before),
        cmocka_unit_test(test_connections__no_body_becomes_a_request),
        cmocka_unit_test(test_connections__refused_bodies_keep_the_connection_or_close_it),
        cmocka_unit_test(test_connections__strangers_bodies_are_not_read),
        cmocka_unit_test(test_connections__bodies_are_bounded_by_key_and_in_sum),
        cmocka_unit_test(test_connections__oldest_waiting_of_an_address_makes_room),
        cmocka_unit_test(test_connections__probes_are_answered_when_all_are_busy),
        cmocka_unit_test(test_connections__running_out_of_descriptors_is_survived),
        cmocka_unit_test(test_connections__the_agent_gets_a_descriptor),
        cmocka_unit_test(test_connections__admin_listener_has_probes_and_metrics_only),
        cmocka_unit_test(test_connections__strange_hosts_are_refused_on_loopback_without_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
