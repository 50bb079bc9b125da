/* Chat templates: a rendering, however long, holds up nothing but its own request, and ends with
 * it. The template here renders for ever, since its limits allow that, where the first message says
 * "forever". */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <stdio.h>
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
    f.backend.api.chat.compiled = f.chat_template;
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

static void start_with(const char *source)
{
    fixture_init_template(&f, source);
    fixture_start(&f);
}

/* What a body renders to: the model echoes it. */
static void expect_rendering(const char *messages, const char *want)
{
    char body[1024];
    int status;
    snprintf(body, sizeof(body), "{\"max_tokens\":500,\"messages\":[%s]}", messages);
    cJSON *json = client_post_json(f.port, "/v1/chat/completions", body, &status);
    if (status != 200 || strcmp(json_text(json, "choices.0.message.content"), want) != 0)
        fail_msg("%s: %d '%s' '%s'", messages, status, json_text(json, "error.message"),
                 json_text(json, "choices.0.message.content"));
    cJSON_Delete(json);
}

static void expect_refusal(const char *rest, const char *param)
{
    char body[1024];
    int status;
    snprintf(body, sizeof(body), "{\"messages\":[%s}", rest);
    cJSON *json = client_post_json(f.port, "/v1/chat/completions", body, &status);
    if (status != 400 || strcmp(json_text(json, "error.param"), param) != 0)
        fail_msg("%s: %d '%s'", rest, status, json_text(json, "error.param"));
    cJSON_Delete(json);
}

#define ASSISTANT "{\"role\":\"assistant\","
#define CALL(arguments)                                                                            \
    ASSISTANT "\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":" \
              "{\"name\":\"f\",\"arguments\":" arguments "}}]}"

static void test_render__null_content_is_empty(void **state)
{
    (void)state;
    start_with("{% for m in messages %}[{{ m.content }}]{% for t in m.tool_calls %}"
               "{{ t.function.name }}{{ t.function.arguments }}{% endfor %}{% endfor %}");
    expect_rendering(ASSISTANT "\"content\":null}", "[]");
    expect_rendering(ASSISTANT "\"refusal\":\"no\"}", "[]");
    expect_rendering(CALL("\"{}\""), "[]f{}");
    assert_true(client_metric(f.port, "kvahead_template_seconds_count", NULL) == 3);
    assert_true(client_metric(f.port, "kvahead_template_steps_total", NULL) > 3);
    assert_true(client_metric(f.port, "kvahead_template_failures_total", NULL) == 0);
    /* What a function gave is what a tool has given, but may be nothing. */
    expect_rendering("{\"role\":\"function\",\"name\":\"f\",\"content\":null}", "[]");
    expect_rendering("{\"role\":\"function\",\"name\":\"f\"}", "[]");
    expect_refusal("{\"role\":\"user\",\"content\":null}]", "messages[0].content");
    expect_refusal("{\"role\":\"system\",\"content\":null}]", "messages[0].content");
    expect_refusal("{\"role\":\"tool\",\"content\":null}]", "messages[0].content");
    expect_refusal("{\"role\":\"user\"}]", "messages[0].content");
    fixture_stop(&f);
}

static void test_render__a_limit_is_the_clients_error_and_counted(void **state)
{
    (void)state;
    start_with("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
    expect_refusal("{\"role\":\"user\",\"content\":\"hi\"}]", "messages");
    assert_true(client_metric(f.port, "kvahead_template_failures_total", NULL) == 1);
    fixture_stop(&f);
}

static void test_render__arguments_of_tool_calls_are_parsed(void **state)
{
    (void)state;
    start_with("{% for m in messages %}{% for t in m.tool_calls %}{{ t.function.name }}"
               "{{ t.function.arguments|tojson }}{% endfor %}{% endfor %}");
    expect_rendering(CALL("\"{\\\"city\\\": \\\"Paris\\\"}\""), "f{\"city\": \"Paris\"}");
    expect_rendering(CALL("\"\""), "f{}");
    expect_rendering(CALL("{\"a\":[1]}"), "f{\"a\": [1]}");
    expect_rendering(CALL("\"{\\\"city\\\": Par\""), "f\"{\\\"city\\\": Par\"");
    /* Numbers as they are written. */
    expect_rendering(CALL("{\"1.5\": [1.0, -0.0, 1e2, 1234567890123456789, -5]}"),
                     "f{\"1.5\": [1.0, -0.0, 100.0, 1234567890123456789, -5]}");
    expect_rendering(CALL("\"{\\\"a\\\": \\\"2.0\\\\\\\"\\\", \\\"b\\\": 9007199254740993}\""),
                     "f{\"a\": \"2.0\\\"\", \"b\": 9007199254740993}");
    fixture_stop(&f);
    fixture_init(&f);
    f.backend.api.limits.json.values_max = 40;
    fixture_start(&f);
    expect_refusal(CALL("\"[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]\"") "," CALL(
                       "\"[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]\"") "]",
                   "messages[1].tool_calls[0]");
    fixture_stop(&f);
}

#define NUMBERS "1.0,-0.0,1e2,1234567890123456789,9007199254740993"

/* Also where calls are told as text, or to a template that takes arguments as text. */
static void test_render__numbers_of_calls_stay_as_they_are(void **state)
{
    (void)state;
    start_with("{% for m in messages %}{{ m.content }}{% endfor %}");
    expect_rendering(CALL("{\"a\":[" NUMBERS "]}"),
                     "{\"name\": \"f\", \"arguments\": {\"a\":[" NUMBERS "]}}");
    fixture_stop(&f);
    start_with("{% for m in messages %}{% for t in m.tool_calls or [] %}{{ t.function.name + ':' + "
               "t.function.arguments }}{% endfor %}{% endfor %}");
    expect_rendering(CALL("{\"a\":[" NUMBERS ",\"\",{\"b\":null}]}"),
                     "f:{\"a\":[" NUMBERS ",\"\",{\"b\":null}]}");
    fixture_stop(&f);
}

/* Also in a conversation that was stored twice. */
static void test_render__numbers_of_calls_stay_in_conversations(void **state)
{
    char body[1024], id[128] = "";
    (void)state;
    start_with("{% for m in messages %}{% for t in m.tool_calls or [] %}"
               "{{ t.function.arguments.a|tojson }}{% endfor %}{% endfor %}{# tool #}");
    for (int i = 0; i < 3; i++) {
        int status;
        snprintf(body, sizeof(body), "{\"max_output_tokens\":200,\"input\":[%s],%s%s%s}",
                 i ? "{\"role\":\"user\",\"content\":\"b\"}"
                   : "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\","
                     "\"arguments\":\"{\\\"a\\\":[1.0,1234567890123456789]}\"},"
                     "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"\"}",
                 i ? "\"previous_response_id\":\"" : "\"store\":true", id, i ? "\"" : "");
        cJSON *json = client_post_json(f.port, "/v1/responses", body, &status);
        if (status != 200 ||
            strcmp(json_text(json, "output.0.content.0.text"), "[1.0, 1234567890123456789]") != 0)
            fail_msg("%s: %d '%s' '%s'", body, status, json_text(json, "error.message"),
                     json_text(json, "output.0.content.0.text"));
        snprintf(id, sizeof(id), "%s", json_text(json, "id"));
        cJSON_Delete(json);
    }
    fixture_stop(&f);
}

static void test_render__reserved_names_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {
        "messages",  "tools",     "documents", "bos_token",
        "eos_token", "pad_token", "unk_token", "add_generation_prompt",
        "range",     "namespace", "loop",      "raise_exception"};
    fixture_init(&f);
    fixture_start(&f);
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        char rest[256], param[128];
        snprintf(
            rest, sizeof(rest),
            "{\"role\":\"user\",\"content\":\"hi\"}],\"chat_template_kwargs\":{\"mine\":1,\"%s\":[]}",
            names[i]);
        snprintf(param, sizeof(param), "chat_template_kwargs.%s", names[i]);
        expect_refusal(rest, param);
    }
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_render__long_templates_hold_up_nobody_and_end_with_their_client),
        cmocka_unit_test(test_render__stopping_ends_what_is_rendered),
        cmocka_unit_test(test_render__null_content_is_empty),
        cmocka_unit_test(test_render__a_limit_is_the_clients_error_and_counted),
        cmocka_unit_test(test_render__arguments_of_tool_calls_are_parsed),
        cmocka_unit_test(test_render__numbers_of_calls_stay_as_they_are),
        cmocka_unit_test(test_render__numbers_of_calls_stay_in_conversations),
        cmocka_unit_test(test_render__reserved_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
