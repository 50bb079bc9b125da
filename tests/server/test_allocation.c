/* Every allocation that the server makes for a request fails once: whatever fails, the client gets
 * the whole answer, an error that says so, or a closed connection, never a part that looks like the
 * whole; the next request is served, and nothing is held. Leaks are the sanitizer's to report.
 *
 * The linker sends what our objects put into libevent's buffers here (--wrap). libevent itself is
 * spared: 2.1 crashes where its own small allocations fail (bufferevent_setwatermark). Only the
 * server's own threads are refused. */
#include "tests/cmocka.h"

#include "tests/alloc_guard.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Visible, since ld takes libevent's own use of them for one of the wrappers'. */
#define VISIBLE __attribute__((visibility("default")))
int __real_evbuffer_add(struct evbuffer *buffer, const void *data, size_t bytes);
VISIBLE int __wrap_evbuffer_add(struct evbuffer *buffer, const void *data, size_t bytes);
int __real_bufferevent_write(struct bufferevent *bev, const void *data, size_t bytes);
VISIBLE int __wrap_bufferevent_write(struct bufferevent *bev, const void *data, size_t bytes);

static struct server_fixture f;
enum whose { UNKNOWN, SERVER, OTHER };
static _Thread_local enum whose whose;

/* The engine's thread belongs to the scheduler's own sweep, the test's thread is the client. */
static enum whose find_whose(void)
{
    char name[32] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    return getpid() == gettid() || strcmp(name, "kva-engine") == 0 ? OTHER : SERVER;
}

static bool is_servers(void)
{
    if (whose == UNKNOWN)
        whose = find_whose();
    return whose == SERVER;
}

int __wrap_evbuffer_add(struct evbuffer *buffer, const void *data, size_t bytes)
{
    return alloc_guard_refuse() ? -1 : __real_evbuffer_add(buffer, data, bytes);
}

int __wrap_bufferevent_write(struct bufferevent *bev, const void *data, size_t bytes)
{
    return alloc_guard_refuse() ? -1 : __real_bufferevent_write(bev, data, bytes);
}

static int start(void **state)
{
    (void)state;
    cJSON_Hooks hooks = {alloc_guard_malloc, free};
    cJSON_InitHooks(&hooks);
    alloc_guard_only(is_servers);
    fixture_init(&f);
    fixture_start(&f);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    fixture_stop(&f);
    return 0;
}

/* --- what may come back ----------------------------------------------------------------------- */

struct outcome {
    unsigned whole, refusals, broken, silent;
};

static bool is_error_object(const char *text)
{
    cJSON *json = cJSON_Parse(text);
    bool is = *json_text(json, "error.message") && *json_text(json, "error.type");
    cJSON_Delete(json);
    return is;
}

/* The last data frame of a broken stream may be an error; never [DONE]. */
static void check_stream(const struct reply *reply, const char *text, struct outcome *outcome)
{
    struct stream stream;
    stream_parse(reply->body, &stream);
    /* An error is told in a frame of its own, and frames are whole. */
    if ((stream.error && (stream.done || !strstr(reply->body, "data: {\"error\":{\"message\""))) ||
        (reply->body_bytes > 0 && reply->body[reply->body_bytes - 1] != '\n'))
        fail_msg("half a frame, or more behind an error: %s", reply->body);
    if (stream.done) {
        assert_string_equal(stream.text[0], text);
        assert_true(reply->complete);
        outcome->whole++;
    } else {
        assert_memory_equal(stream.text[0], text, strlen(stream.text[0]));
        outcome->broken++;
    }
    stream_finish(&stream);
}

static void check_reply(const struct reply *reply, bool streams, const char *text,
                        struct outcome *outcome)
{
    if (reply->status == 0) {
        outcome->silent++;
        return;
    }
    if (reply->status != 200) {
        if (reply->status != 503 && reply->status != 500)
            fail_msg("unexpected: %s%s", reply->head, reply->body);
        /* No memory for the error's words either: then there are none. */
        if (!reply->complete || (reply->body_bytes > 0 && !is_error_object(reply->body)))
            fail_msg("no error object: %s%s", reply->head, reply->body);
        outcome->refusals++;
        return;
    }
    if (streams) {
        check_stream(reply, text, outcome);
        return;
    }
    if (!reply->complete) {
        outcome->broken++;
        return;
    }
    cJSON *json = cJSON_Parse(reply->body);
    const char *got = json_text(json, "choices.0.text");
    if (!*got)
        got = json_text(json, "choices.0.message.content");
    if (strcmp(got, text) != 0)
        fail_msg("a wrong answer that looks right: %s%s", reply->head, reply->body);
    cJSON_Delete(json);
    outcome->whole++;
}

/* A request of which nothing fails gets its answer. */
static void expect_alive(void)
{
    struct reply reply;
    client_post(f.port, "/v1/completions", "{\"prompt\":\"alive\"}", &reply);
    if (reply.status != 200)
        fail_msg("the next request got: %s%s", reply.head, reply.body);
    reply_finish(&reply);
    fixture_wait(&f, fixture_is_idle, "everything is given back");
}

static void sweep(const char *path, const char *body, bool streams, const char *text,
                  unsigned failures_min)
{
    struct outcome outcome = {0};
    unsigned rounds = 0;
    for (;; rounds++) {
        struct reply reply;
        alloc_guard_fail_at(rounds);
        client_post(f.port, path, body, &reply);
        uint64_t refused = alloc_guard_fail_none();
        check_reply(&reply, streams, text, &outcome);
        reply_finish(&reply);
        expect_alive();
        if (refused == 0)
            break;
    }
    print_message("%s: %u allocations: %u whole, %u refused, %u broken off, %u without a word\n",
                  path, rounds, outcome.whole, outcome.refusals, outcome.broken, outcome.silent);
    assert_true(rounds >= failures_min);
    assert_true(outcome.whole > 0 && outcome.refusals > 0);
}

static void test_allocation__completion(void **state)
{
    (void)state;
    sweep("/v1/completions",
          "{\"prompt\":\"hello STOP there\",\"logprobs\":2,\"stop\":[\"xyz\"],"
          "\"logit_bias\":{\"7\":1},\"return_token_ids\":true}",
          false, "hello STOP there", 40);
}

static void test_allocation__completion_stream(void **state)
{
    (void)state;
    sweep("/v1/completions",
          "{\"prompt\":\"hello there, all of you\",\"max_tokens\":64,\"stream\":true,"
          "\"stream_options\":{\"include_usage\":true}}",
          true, "hello there, all of you", 40);
}

static void test_allocation__chat(void **state)
{
    (void)state;
    sweep("/v1/chat/completions",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"max_tokens\":20}", false,
          "hello", 40);
}

static void test_allocation__chat_stream(void **state)
{
    (void)state;
    sweep("/v1/chat/completions",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"stream\":true}", true,
          "hello", 40);
}

/* Long bodies are prepared on a worker. */
static void test_allocation__on_a_worker(void **state)
{
    (void)state;
    static char body[40000];
    int head = snprintf(body, sizeof(body), "{\"prompt\":\"hello\",\"stream\":true,\"user\":\"");
    size_t filled = sizeof(body) - 8;
    memset(body + head, 'u', filled - (size_t)head);
    memcpy(body + filled, "\"}", 3);
    assert_true(strlen(body) > f.params.inline_bytes_max);
    sweep("/v1/completions", body, true, "hello", 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_allocation__completion, start, stop),
        cmocka_unit_test_setup_teardown(test_allocation__completion_stream, start, stop),
        cmocka_unit_test_setup_teardown(test_allocation__chat, start, stop),
        cmocka_unit_test_setup_teardown(test_allocation__chat_stream, start, stop),
        cmocka_unit_test_setup_teardown(test_allocation__on_a_worker, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
