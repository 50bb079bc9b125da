/* Calls of functions, and reasoning, through the whole server: the model echoes its prompt, which is
 * the last message. */
#include "tests/cmocka.h"
#include "tests/server/client.h"
#include "tests/server/fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":"             \
    "{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]"
#define CALL                                                                                       \
    "<tool_call>\\n{\\\"name\\\": \\\"add\\\", \\\"arguments\\\": {\\\"a\\\": 1}}\\n</tool_call>"

static struct server_fixture f;

static int start(void **state)
{
    static const char source[] = "{# <tool_call> <think> #}{% if tools %}{% endif %}"
                                 "{{ messages[-1].content }}";
    (void)state;
    fixture_init_template(&f, source);
    fixture_start(&f);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    fixture_stop(&f);
    return 0;
}

/* The message says what the model answers. */
static cJSON *ask(const char *content, const char *rest)
{
    char body[4096];
    int status;
    snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]%s}",
             content, rest);
    cJSON *json = client_post_json(f.port, "/v1/chat/completions", body, &status);
    if (status != 200)
        fail_msg("%s: %d %s", body, status, json_text(json, "error.message"));
    return json;
}

static void expect(const cJSON *json, const char *path, const char *want)
{
    if (strcmp(json_text(json, path), want) != 0)
        fail_msg("%s is '%s', not '%s'", path, json_text(json, path), want);
}

static void test_tools__a_call_is_one(void **state)
{
    (void)state;
    cJSON *json = ask("So:\\n" CALL "\\n" CALL, "," TOOLS);
    expect(json, "choices.0.message.content", "So:");
    expect(json, "choices.0.finish_reason", "tool_calls");
    expect(json, "choices.0.message.tool_calls.0.type", "function");
    expect(json, "choices.0.message.tool_calls.0.function.name", "add");
    expect(json, "choices.0.message.tool_calls.1.function.arguments", "{\"a\": 1}");
    const char *first = json_text(json, "choices.0.message.tool_calls.0.id");
    assert_int_equal(strlen(first), 9);
    assert_string_not_equal(first, json_text(json, "choices.0.message.tool_calls.1.id"));
    cJSON_Delete(json);
    json = ask(CALL, "," TOOLS);
    assert_true(cJSON_IsNull(json_at(json, "choices.0.message.content")));
    cJSON_Delete(json);
}

static void test_tools__without_them_the_text_is_the_answer(void **state)
{
    static const char *const rests[] = {"", ",\"tools\":[]", "," TOOLS ",\"tool_choice\":\"none\"",
                                        ",\"tool_choice\":\"auto\""};
    (void)state;
    for (size_t i = 0; i < KVA_COUNT_OF(rests); i++) {
        cJSON *json = ask(CALL, rests[i]);
        expect(json, "choices.0.finish_reason", "stop");
        assert_null(json_at(json, "choices.0.message.tool_calls"));
        assert_int_equal(
            strlen(json_text(json, "choices.0.message.content")),
            strlen("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>"));
        cJSON_Delete(json);
    }
}

static void test_tools__what_is_cut_is_content(void **state)
{
    (void)state;
    cJSON *json = ask(CALL, "," TOOLS ",\"max_tokens\":38");
    expect(json, "choices.0.finish_reason", "length");
    expect(json, "choices.0.message.content", "<tool_call>\n{\"name\": \"add\", \"arguments\"");
    cJSON_Delete(json);
    json = ask(CALL, "," TOOLS ",\"stop\":\"arg\"");
    expect(json, "choices.0.finish_reason", "stop");
    expect(json, "choices.0.message.content", "<tool_call>\n{\"name\": \"add\", \"");
    cJSON_Delete(json);
}

/* All frames of a stream, its deltas joined as clients do. */
static void test_tools__streams_say_the_same(void **state)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"<think>Hm.</think>So:\\n" CALL
        "\"}]," TOOLS ",\"stream\":true,\"n\":2,\"logprobs\":true}";
    struct reply reply;
    char content[2][64] = {"", ""}, arguments[2][64] = {"", ""}, reasoning[2][64] = {"", ""};
    unsigned names = 0, finishes = 0, logprobs[2] = {0, 0};
    (void)state;
    client_post(f.port, "/v1/chat/completions", body, &reply);
    assert_int_equal(reply.status, 200);
    for (char *at = strstr(reply.body, "data: {"); at; at = strstr(at + 1, "data: {")) {
        cJSON *frame = cJSON_Parse(at + 6);
        assert_non_null(frame);
        int index = (int)json_number(frame, "choices.0.index");
        strcat(content[index], json_text(frame, "choices.0.delta.content"));
        strcat(reasoning[index], json_text(frame, "choices.0.delta.reasoning_content"));
        const cJSON *call = json_at(frame, "choices.0.delta.tool_calls.0");
        bool names_it = json_at(call, "function.name") != NULL;
        if (call && names_it) {
            assert_string_equal(json_text(call, "type"), "function");
            assert_string_equal(json_text(call, "function.arguments"), "");
            assert_string_equal(arguments[index], "");
        }
        names += call && names_it;
        strcat(arguments[index], json_text(call, "function.arguments"));
        logprobs[index] +=
            (unsigned)cJSON_GetArraySize(json_at(frame, "choices.0.logprobs.content"));
        const char *finish = json_text(frame, "choices.0.finish_reason");
        finishes += finish[0] != '\0';
        assert_true(!finish[0] || strcmp(finish, "tool_calls") == 0);
        cJSON_Delete(frame);
    }
    assert_int_equal(names, 2);
    assert_int_equal(finishes, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(reasoning[i], "Hm.");
        assert_string_equal(content[i], "So:");
        assert_string_equal(arguments[i], "{\"a\": 1}");
        assert_true(logprobs[i] > 70); /* of every token, whatever it became */
    }
    reply_finish(&reply);
}

#define FUNCTIONS                                                                                  \
    "\"functions\":[{\"name\":\"add\",\"parameters\":{\"type\":\"object\"}},{\"name\":\"now\"}]"

static void test_functions__are_called_as_they_came(void **state)
{
    (void)state;
    cJSON *json = ask("So:\\n" CALL "\\n" CALL, "," FUNCTIONS ",\"function_call\":\"auto\"");
    const cJSON *message = json_at(json, "choices.0.message");
    expect(json, "choices.0.finish_reason", "function_call");
    expect(message, "function_call.name", "add");
    expect(message, "function_call.arguments", "{\"a\": 1}");
    assert_null(json_at(message, "tool_calls"));
    assert_int_equal(strncmp(json_text(message, "content"), "So:", 3), 0);
    cJSON_Delete(json);
    json = ask(CALL, "," FUNCTIONS ",\"function_call\":\"none\"");
    expect(json, "choices.0.finish_reason", "stop");
    assert_null(json_at(json, "choices.0.message.function_call"));
    cJSON_Delete(json);
}

static void test_functions__streams_say_the_same(void **state)
{
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"" CALL
                               "\"}]," FUNCTIONS ",\"stream\":true}";
    struct reply reply;
    char arguments[64] = "", name[16] = "", finish[32] = "";
    (void)state;
    client_post(f.port, "/v1/chat/completions", body, &reply);
    assert_int_equal(reply.status, 200);
    for (char *at = strstr(reply.body, "data: {"); at; at = strstr(at + 1, "data: {")) {
        cJSON *frame = cJSON_Parse(at + 6);
        assert_non_null(frame);
        assert_null(json_at(frame, "choices.0.delta.tool_calls"));
        strcat(name, json_text(frame, "choices.0.delta.function_call.name"));
        strcat(arguments, json_text(frame, "choices.0.delta.function_call.arguments"));
        strcat(finish, json_text(frame, "choices.0.finish_reason"));
        cJSON_Delete(frame);
    }
    assert_string_equal(name, "add");
    assert_string_equal(arguments, "{\"a\": 1}");
    assert_string_equal(finish, "function_call");
    reply_finish(&reply);
}

/* What templates see of the old form is the new one. */
static void test_functions__the_history_is_that_of_tools(void **state)
{
    static const char source[] =
        "{% for m in messages %}{{ m.role }}:{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}({{ c.function.arguments | tojson }})"
        "{% endfor %}{{ m.content }};{% endfor %}";
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"?\"},"
        "{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"add\","
        "\"arguments\":\"{\\\"a\\\":1}\"}},"
        "{\"role\":\"function\",\"name\":\"add\",\"content\":\"2\"}]," FUNCTIONS "}";
    int status;
    (void)state;
    fixture_stop(&f);
    fixture_init_template(&f, source);
    fixture_start(&f);
    cJSON *json = client_post_json(f.port, "/v1/chat/completions", body, &status);
    assert_int_equal(status, 200);
    const char *said = json_text(json, "choices.0.message.content");
    if (!strstr(said, "user:?;assistant:add({\"a\": 1});tool:2;"))
        fail_msg("the template saw '%s'", said);
    cJSON_Delete(json);
}

static void test_final__is_cut_where_it_ends(void **state)
{
    static const char source[] = "{% for m in messages %}{{ m.content | trim }}<end>{% endfor %}"
                                 "{{ messages[0].content }}";
    /* What was said, what has been begun, and the prompt that comes of both. */
    static const char *const cases[][3] = {
        {"aab", "aabaab ", "aab<end>aabaab"}, {"aaaa", "aaa", "aaaa<end>aaa"},
        {"abab", " ab", "abab<end>ab"},       {"a", "<", "a<end><"},
        {"a", "\\n<e ", "a<end><e"},          {"a", "> ", "a<end>>"},
        {"a ", "b  c\\n\\n", "a<end>b  c"},   {"a", " ", "a<end>"},
    };
    (void)state;
    fixture_stop(&f);
    fixture_init_template(&f, source);
    fixture_start(&f);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char body[512];
        int status;
        snprintf(body, sizeof(body),
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"},"
                 "{\"role\":\"assistant\",\"content\":\"%s\"}],\"continue_final_message\":true}",
                 cases[i][0], cases[i][1]);
        cJSON *json = client_post_json(f.port, "/v1/chat/completions", body, &status);
        assert_int_equal(status, 200);
        expect(json, "choices.0.message.content", cases[i][2]);
        cJSON_Delete(json);
    }
}

static void test_functions__refusals_name_the_place(void **state)
{
    static const char *const cases[][3] = {
        {FUNCTIONS "," TOOLS, "functions", "old form of 'tools'"},
        {"\"function_call\":{\"name\":\"add\"}", "function_call", "no 'functions'"},
        {FUNCTIONS ",\"function_call\":\"required\"", "function_call", "none, auto or an object"},
        {FUNCTIONS ",\"function_call\":{\"name\":\"x\"}", "function_call.name", "'functions'"},
        {"\"functions\":7", "functions", "a number"},
        {"\"functions\":[7]", "functions[0]", "an object"},
        {"\"functions\":[{\"name\":\"a b\"}]", "functions[0].name", "letters"},
        {"\"functions\":[{\"name\":\"a\",\"parameters\":7}]", "functions[0].parameters", "Schema"},
    };
    (void)state;
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char body[1024];
        int status;
        snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],%s}",
                 cases[i][0]);
        cJSON *json = client_post_json(f.port, "/v1/chat/completions", body, &status);
        assert_int_equal(status, 400);
        expect(json, "error.param", cases[i][1]);
        if (!strstr(json_text(json, "error.message"), cases[i][2]))
            fail_msg("%s: '%s'", cases[i][0], json_text(json, "error.message"));
        cJSON_Delete(json);
    }
}

/* Cut off in its thoughts: the token that ends "<think>" and those behind it, each once. */
static void test_reasoning__is_counted_once(void **state)
{
    (void)state;
    cJSON *json = ask("<think>\\nA thought without an end", ",\"max_tokens\":12");
    expect(json, "choices.0.finish_reason", "length");
    assert_int_equal(json_number(json, "usage.completion_tokens"), 12);
    assert_int_equal(json_number(json, "usage.completion_tokens_details.reasoning_tokens"), 12 - 6);
    cJSON_Delete(json);
}

static void test_reasoning__is_told_apart(void **state)
{
    (void)state;
    cJSON *json = ask("<think>\\nHm.\\n</think>\\n\\nYes.", "");
    expect(json, "choices.0.message.content", "Yes.");
    expect(json, "choices.0.message.reasoning_content", "Hm.");
    assert_true(json_number(json, "usage.completion_tokens_details.reasoning_tokens") > 3);
    cJSON_Delete(json);
    json = ask("Yes.", "");
    assert_null(json_at(json, "choices.0.message.reasoning_content"));
    cJSON_Delete(json);
}

static void test_tools__refusals_name_the_place(void **state)
{
    static const struct {
        const char *rest, *param, *word;
    } cases[] = {
        {"\"tools\":7", "tools", "an array"},
        {"\"tools\":[7]", "tools[0].type", "function"},
        {"\"tools\":[{\"type\":\"web_search\"}]", "tools[0].type", "web_search"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools[0].function", "an object"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]",
         "tools[0].function.name", "letters"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]",
         "tools[0].function.parameters", "an object"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":1}}]",
         "tools[0].function.strict", "boolean"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},"
         "{\"type\":\"function\",\"function\":{\"name\":\"a\"}}]",
         "tools[1].function.name", "already"},
        {"\"tool_choice\":\"required\"", "tool_choice", "no 'tools'"},
        {"\"tool_choice\":\"perhaps\"", "tool_choice", "perhaps"},
        {"\"tool_choice\":7", "tool_choice", "a number"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"x\"}}",
         "tool_choice.function.name", "'x'"},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\"}", "tool_choice.type",
         "allowed_tools"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\"}", "tool_choice.function.name", "name of"},
        {TOOLS ",\"regex\":\"a\"", "regex", "both say"},
        {TOOLS ",\"parallel_tool_calls\":1", "parallel_tool_calls", "boolean"},
        /* The fixture has no grammars. */
        {TOOLS ",\"tool_choice\":\"required\"", "tools", "structured output"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":7}]", "messages[0].tool_calls",
         "an array"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "messages[0].tool_calls[0]",
         "function"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"a\","
         "\"arguments\":3}}]}]",
         "messages[0].tool_calls[0]", "arguments"},
    };
    (void)state;
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char body[1024];
        int status;
        bool whole = strstr(cases[i].rest, "\"messages\"") != NULL;
        snprintf(body, sizeof(body), "{%s%s}",
                 whole ? "" : "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],",
                 cases[i].rest);
        cJSON *json = client_post_json(f.port, "/v1/chat/completions", body, &status);
        if (status != 400 || strcmp(json_text(json, "error.param"), cases[i].param) != 0 ||
            !strstr(json_text(json, "error.message"), cases[i].word))
            fail_msg("%s: %d '%s' '%s'", body, status, json_text(json, "error.param"),
                     json_text(json, "error.message"));
        cJSON_Delete(json);
    }
}

static void test_final__message_is_gone_on_with(void **state)
{
    static const char one[] = "{\"role\":\"user\",\"content\":\"Hi \"}";
    char body[1024];
    int status;
    (void)state;
    /* The template writes the last message; the model echoes it. */
    snprintf(body, sizeof(body),
             "{\"messages\":[%s,{\"role\":\"assistant\",\"content\":\"So I\"}],"
             "\"continue_final_message\":true,\"return_token_ids\":true}",
             one);
    cJSON *json = client_post_json(f.port, "/v1/chat/completions", body, &status);
    assert_int_equal(status, 200);
    expect(json, "choices.0.message.content", "So I");
    assert_int_equal(cJSON_GetArraySize(json_at(json, "prompt_token_ids")), 4);
    cJSON_Delete(json);
    snprintf(body, sizeof(body), "{\"messages\":[%s],\"continue_final_message\":true}", one);
    json = client_post_json(f.port, "/v1/chat/completions", body, &status);
    assert_int_equal(status, 400);
    expect(json, "error.param", "continue_final_message");
    cJSON_Delete(json);
}

static void test_tools__no_calls_in_the_history_are_none(void **state)
{
    int status;
    (void)state;
    cJSON *json = client_post_json(
        f.port, "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"assistant\",\"content\":\"Hi.\",\"tool_calls\":[]}]}", &status);
    assert_int_equal(status, 200);
    expect(json, "choices.0.message.content", "Hi.");
    cJSON_Delete(json);
}

/* Clients send members that they do not use as null. */
static void test_messages__null_is_absent(void **state)
{
    static const char source[] =
        "{% for m in messages %}{% for k in m|sort %}{{ k }}={{ m[k] }},{% endfor %};{% endfor %}";
    int status;
    (void)state;
    fixture_stop(&f);
    fixture_init_template(&f, source);
    fixture_start(&f);
    cJSON *json = client_post_json(
        f.port, "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":null},"
        "{\"content\":null,\"role\":\"assistant\",\"tool_calls\":null,\"function_call\":null,"
        "\"refusal\":null,\"reasoning_content\":null}]}",
        &status);
    assert_int_equal(status, 200);
    expect(json, "choices.0.message.content", "content=a,role=user,;content=,role=assistant,;");
    cJSON_Delete(json);
}

#define CLAUDE_TOOLS "\"tools\":[{\"name\":\"add\",\"input_schema\":{\"type\":\"object\"}}]"

/* One block is open at a time, in the order of the reply: clients take the last one that began to be
 * the one that ends. */
static void test_messages__blocks_end_before_the_next_begins(void **state)
{
    static const char body[] =
        "{\"max_tokens\":400,\"messages\":[{\"role\":\"user\",\"content\":\"<think>Hm.</think>So:\\n" CALL
        "\\nThen:\\n" CALL "\"}]," CLAUDE_TOOLS;
    static const char *const want[] = {"thinking", "text", "tool_use", "text", "tool_use"};
    char asked[1024], said[64] = "";
    struct reply reply;
    int open = -1, begun = 0, status;
    (void)state;
    snprintf(asked, sizeof(asked), "%s}", body);
    cJSON *whole = client_post_json(f.port, "/v1/messages", asked, &status);
    assert_int_equal(status, 200);
    assert_int_equal(cJSON_GetArraySize(json_at(whole, "content")), KVA_COUNT_OF(want));
    snprintf(asked, sizeof(asked), "%s,\"stream\":true}", body);
    client_post(f.port, "/v1/messages", asked, &reply);
    assert_int_equal(reply.status, 200);
    for (char *at = strstr(reply.body, "data: {"); at; at = strstr(at + 1, "data: {")) {
        cJSON *event = cJSON_Parse(at + 6);
        const char *type = json_text(event, "type");
        if (strcmp(type, "content_block_start") == 0) {
            char path[32];
            assert_int_equal(open, -1);
            open = (int)json_number(event, "index");
            assert_int_equal(open, begun);
            expect(event, "content_block.type", want[begun]);
            snprintf(path, sizeof(path), "content.%d.type", begun++);
            expect(whole, path, want[open]);
        } else if (strcmp(type, "content_block_delta") == 0) {
            assert_int_equal(json_number(event, "index"), open);
            strcat(said, json_text(event, "delta.text"));
        } else if (strcmp(type, "content_block_stop") == 0) {
            assert_int_equal(json_number(event, "index"), open);
            open = -1;
        }
        cJSON_Delete(event);
    }
    assert_int_equal(begun, KVA_COUNT_OF(want));
    assert_int_equal(open, -1);
    assert_int_equal(strncmp(said, json_text(whole, "content.1.text"), 3), 0);
    assert_int_equal(strlen(said), strlen(json_text(whole, "content.1.text")) +
                                       strlen(json_text(whole, "content.3.text")));
    reply_finish(&reply);
    cJSON_Delete(whole);
}

#define HISTORY(content)                                                                           \
    "[{\"role\":\"user\",\"content\":\"?\"},{\"role\":\"assistant\",\"content\":" content          \
    ",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"add\","         \
    "\"arguments\":\"{\\\"a\\\": 1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"2\"}]"

/* Templates of published models know calls in forms of their own; none leaves them out. */
static void test_history__has_the_form_that_the_template_knows(void **state)
{
    static const struct {
        const char *source, *messages, *want;
    } cases[] = {
        /* DeepSeek's: where there is no content, and joined to text. */
        {"{% for m in messages %}{{ m.role }}:{% if m.content is none %}{% for c in m.tool_calls %}"
         "{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}{% else %}"
         "{{ m.content }}{% endif %};{% endfor %}",
         HISTORY("\"Well.\""), "user:?;assistant:Well.;assistant:add({\"a\": 1});tool:2;"},
        {"{% for m in messages %}{{ m.role }}:{% if m.content is none %}{% for c in m.tool_calls %}"
         "{{ c.function.name + '(' + c.function.arguments + ')' }}{% endfor %}{% else %}"
         "{{ m.content }}{% endif %};{% endfor %}",
         HISTORY("null"), "user:?;assistant:add({\"a\": 1});tool:2;"},
        /* Functionary's: with content, joined to text. */
        {"{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
         "{{ '<' + c.function.name + '>' + c.function.arguments }}{% endfor %};{% endfor %}",
         HISTORY("\"\""), "?;<add>{\"a\": 1};2;"},
        /* SmolLM3's: it names tools, and knows no calls of them. */
        {"{# tools <tool_call> #}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}",
         HISTORY("\"Well.\""),
         "user:?;assistant:Well.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n"
         "</tool_call>;user:The function has returned:\n2;"},
    };
    (void)state;
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        char body[1024];
        int status;
        fixture_stop(&f);
        fixture_init_template(&f, cases[i].source);
        fixture_start(&f);
        snprintf(body, sizeof(body), "{\"messages\":%s,\"max_tokens\":300}", cases[i].messages);
        cJSON *json = client_post_json(f.port, "/v1/chat/completions", body, &status);
        assert_int_equal(status, 200);
        expect(json, "choices.0.message.content", cases[i].want);
        cJSON_Delete(json);
    }
}

/* A model's template for tools is that of requests with tools alone. */
static void test_tools__have_a_template_of_their_own(void **state)
{
    static const char source[] = "{# <tool_call> #}tools:{% for t in tools %}{{ t.function.name }};"
                                 "{% endfor %}";
    static const char *const cases[][2] = {
        {"", "plain"},
        {"," TOOLS, "tools:add;now;"},
        {"," TOOLS ",\"tool_choice\":\"none\"", "plain"},
        {",\"tools\":[]", "plain"},
    };
    struct kva_err err;
    struct kva_template *tool_use;
    (void)state;
    assert_int_equal(kva_template_compile(source, sizeof(source) - 1, &tool_use, &err), KVA_OK);
    fixture_stop(&f);
    fixture_init_template(&f, "plain");
    f.backend.api.tool_use.compiled = tool_use;
    kva_api_read_templates(&f.backend.api, NULL, NULL);
    assert_int_equal(f.backend.api.chat.reply.style, KVA_REPLY_JSON);
    assert_int_equal(f.backend.api.tool_use.reply.style, KVA_REPLY_HERMES);
    fixture_start(&f);
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        cJSON *json = ask("x", cases[i][0]);
        expect(json, "choices.0.message.content", cases[i][1]);
        cJSON_Delete(json);
    }
    fixture_stop(&f);
    kva_template_destroy(tool_use);
    fixture_init_template(&f, "plain");
    fixture_start(&f);
}

/* A thought that was begun is gone on with, and ended. */
static void test_reasoning__that_was_begun_goes_on(void **state)
{
    static const char source[] = "{# <think> #}{{ messages[0].content }}{{ messages[1].content }}";
    (void)state;
    fixture_stop(&f);
    fixture_init_template(&f, source);
    fixture_start(&f);
    int status;
    /* The model echoes the prompt, which ends with "<think>Hm". */
    cJSON *json = client_post_json(
        f.port, "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a</think>b\"},"
        "{\"role\":\"assistant\",\"content\":\"<think>Hm\"}],\"continue_final_message\":true}",
        &status);
    assert_int_equal(status, 200);
    expect(json, "choices.0.message.reasoning_content", "a");
    expect(json, "choices.0.message.content", "b<think>Hm");
    cJSON_Delete(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tools__a_call_is_one),
        cmocka_unit_test(test_tools__without_them_the_text_is_the_answer),
        cmocka_unit_test(test_tools__what_is_cut_is_content),
        cmocka_unit_test(test_tools__streams_say_the_same),
        cmocka_unit_test(test_reasoning__is_told_apart),
        cmocka_unit_test(test_reasoning__is_counted_once),
        cmocka_unit_test(test_tools__refusals_name_the_place),
        cmocka_unit_test(test_final__message_is_gone_on_with),
        cmocka_unit_test(test_tools__no_calls_in_the_history_are_none),
        cmocka_unit_test(test_functions__are_called_as_they_came),
        cmocka_unit_test(test_functions__streams_say_the_same),
        cmocka_unit_test(test_functions__refusals_name_the_place),
        cmocka_unit_test(test_messages__blocks_end_before_the_next_begins),
        /* With other templates. */
        cmocka_unit_test(test_history__has_the_form_that_the_template_knows),
        cmocka_unit_test(test_tools__have_a_template_of_their_own),
        cmocka_unit_test(test_reasoning__that_was_begun_goes_on),
        cmocka_unit_test(test_functions__the_history_is_that_of_tools),
        cmocka_unit_test(test_final__is_cut_where_it_ends),
        cmocka_unit_test(test_messages__null_is_absent),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
