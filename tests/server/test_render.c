/* Chat templates: a rendering, however long, holds up nothing but its own request, and ends with
 * it. The template here renders for ever, since its limits allow that, where the first message says
 * "forever". */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <string.h>
#include <unistd.h>

#define FOREVER "{\"messages\":[{\"role\":\"user\",\"content\":\"forever\"}]}"
#define SHORT   "{\"messages\":[{\"role\":\"user\",\"content\":\"short\"}]}"

static struct server_fixture f;
static struct kva_template_limits limits;

static void start(void)
{
    static const char source[] =
        "{% if messages[0].content == 'forever' %}"
        "{% set x = [1] * 1000000 %}{% set y = [1] * 1000000 %}"
        "{% set many = range(100000)|list %}{% for a in many %}{% for b in many %}"
        "{% if x != y %}{% endif %}{% endfor %}{% endfor %}{% endif %}"
        "{{ messages[0].content }}";
    struct kva_err err;
    fixture_init(&f);
    kva_template_destroy(f.chat_template);
    assert_int_equal(kva_template_compile(source, sizeof(source) - 1, &f.chat_template, &err),
                     KVA_OK);
    kva_template_limits_default(&limits);
    limits.steps_max = UINT64_MAX;
    f.backend.api.chat_template = f.chat_template;
    f.backend.api.template_limits = &limits;
    f.params.workers = 1;
    fixture_start(&f);
}

static void expect_status(const char *path, const char *body, int status)
{
    struct reply reply;
    if (body)
        client_post(f.port, path, body, &reply);
    else
        client_get(f.port, path, &reply);
    assert_int_equal(reply.status, status);
    reply_finish(&reply);
}

static void check_route(const char *path)
{
    int fd = client_post_open(f.port, path, FOREVER);
    expect_status("/health", NULL, 200);
    expect_status("/v1/completions", "{\"prompt\":\"ok\"}", 200);
    close(fd);
    /* The one worker is free again only if the rendering has ended with its client. */
    expect_status(path, SHORT, 200);
}

static void test_render__long_templates_hold_up_nobody_and_end_with_their_client(void **state)
{
    (void)state;
    start();
    check_route("/v1/chat/completions");
    check_route("/tokenize");
    fixture_stop(&f);
}

static void test_render__stopping_ends_what_is_rendered(void **state)
{
    (void)state;
    start();
    int chat = client_post_open(f.port, "/v1/chat/completions", FOREVER);
    int waiting = client_post_open(f.port, "/v1/chat/completions", FOREVER);
    int tokens = client_post_open(f.port, "/tokenize", FOREVER);
    expect_status("/health", NULL, 200);
    kva_server_stop(f.server);
    assert_int_equal(fixture_join(&f), KVA_ECANCELLED);
    fixture_stop(&f);
    close(chat);
    close(waiting);
    close(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_render__long_templates_hold_up_nobody_and_end_with_their_client),
        cmocka_unit_test(test_render__stopping_ends_what_is_rendered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
