#include "tests/cmocka.h"

#include "text/reply/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"get_weather", "add"};

/* What was told, as text: pieces of the same kind together. */
struct record {
    struct kva_buf text;
    const char *kind;
};

static void note(struct record *record, const char *kind, const char *text, size_t length)
{
    if (record->kind != kind || strcmp(kind, "call") == 0)
        kva_buf_printf(&record->text, "|%s:", kind);
    record->kind = kind;
    kva_buf_append(&record->text, text, length);
}

static const char reasoning_kind[] = "reasoning", content_kind[] = "content", call_kind[] = "call",
                  arguments_kind[] = "with";

static void on_reasoning(void *opaque, const char *text, size_t length)
{
    note(opaque, reasoning_kind, text, length);
}

static void on_content(void *opaque, const char *text, size_t length)
{
    note(opaque, content_kind, text, length);
}

static void on_call(void *opaque, const char *name, size_t length)
{
    note(opaque, call_kind, name, length);
}

static void on_arguments(void *opaque, const char *text, size_t length)
{
    note(opaque, arguments_kind, text, length);
}

static struct kva_reply_params params_of(enum kva_reply_style style)
{
    return (struct kva_reply_params){
        .style = style, .names = names, .name_count = 2, .bytes_max = 1 << 20};
}

/* In pieces that end at `cut` and then every `piece` bytes. */
static char *parse(struct kva_reply_params params, const char *text, size_t cut, size_t piece)
{
    struct record record = {.kind = NULL};
    struct kva_reply *reply = NULL;
    size_t length = strlen(text);
    kva_buf_init(&record.text, 1 << 22);
    params.sink = (struct kva_reply_sink){&record, on_reasoning, on_content, on_call, on_arguments};
    assert_int_equal(kva_reply_create(&params, &reply), KVA_OK);
    kva_reply_push(reply, text, cut);
    for (size_t at = cut; at < length; at += piece)
        kva_reply_push(reply, text + at, kva_min_size(piece, length - at));
    kva_reply_finish(reply);
    assert_false(kva_reply_failed(reply));
    assert_int_equal(kva_reply_held(reply), 0);
    kva_reply_destroy(reply);
    kva_buf_putc(&record.text, '|');
    return kva_buf_take(&record.text, NULL);
}

static void check(struct kva_reply_params params, const char *text, const char *want)
{
    size_t length = strlen(text);
    for (size_t cut = 0; cut <= length; cut++) {
        char *got = parse(params, text, cut, length + 1);
        assert_string_equal(got, want);
        free(got);
    }
    for (size_t piece = 1; piece <= 7; piece++) {
        char *got = parse(params, text, 0, piece);
        assert_string_equal(got, want);
        free(got);
    }
}

static void expect(enum kva_reply_style style, const char *text, const char *want)
{
    struct kva_reply_params params = params_of(style);
    check(params, text, want);
    /* A grammar does not change what well-formed calls are. */
    if (strstr(want, "|call:")) {
        params.bound = KVA_REPLY_MARKED;
        check(params, text, want);
    }
}

#define WEATHER "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}"
#define CALLED  "|call:get_weather|with:{\"city\": \"Paris\"}"

static void test_reply__text_is_content_to_the_last_byte(void **state KVA_UNUSED)
{
    static const char *const texts[] = {
        "Hello.",      "  \n Hello \n",
        "<tool",       "a < b <tool_cal",
        "[TOOL_CALLS", "```json\n[1, 2]\n```\n",
        "{\"a\": 1}",  "{\"name\": \"Ann\", \"age\": 3}",
        "[1, {}]",     "`x`",
        "\n\n",        "{",
        "[",           "```",
        "```js",
    };
    for (int style = KVA_REPLY_NONE; style < KVA_REPLY_STYLE_COUNT; style++) {
        for (size_t i = 0; i < KVA_COUNT_OF(texts); i++) {
            char want[128];
            snprintf(want, sizeof(want), "|content:%s|", texts[i]);
            expect((enum kva_reply_style)style, texts[i], want);
        }
        expect((enum kva_reply_style)style, "", "|");
    }
}

static void test_reply__hermes(void **state KVA_UNUSED)
{
    expect(KVA_REPLY_HERMES, "<tool_call>\n" WEATHER "\n</tool_call>", CALLED "|");
    expect(KVA_REPLY_HERMES, "<tool_call>" WEATHER "</tool_call>\n", CALLED "|");
    expect(KVA_REPLY_HERMES,
           "I look.\n<tool_call>\n" WEATHER "\n</tool_call>\n<tool_call>\n" WEATHER
           "\n</tool_call>",
           "|content:I look." CALLED CALLED "|");
    /* Without the closing mark, and with text behind it. */
    expect(KVA_REPLY_HERMES, "<tool_call>" WEATHER, CALLED "|");
    expect(KVA_REPLY_HERMES, "<tool_call>" WEATHER "</tool_call> Done.", CALLED "|content:Done.|");
    expect(KVA_REPLY_HERMES, "<tool_call>{\"arguments\": {}, \"name\": \"add\"}</tool_call>",
           "|call:add|with:{}|");
    expect(
        KVA_REPLY_HERMES,
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"}<tool_call>\\\"\", \"b\": [{}]}}",
        "|call:add|with:{\"a\": \"}<tool_call>\\\"\", \"b\": [{}]}|");
}

static void test_reply__without_a_marker(void **state KVA_UNUSED)
{
    for (int style = KVA_REPLY_HERMES; style < KVA_REPLY_STYLE_COUNT; style++) {
        enum kva_reply_style at = (enum kva_reply_style)style;
        expect(at, WEATHER, CALLED "|");
        expect(at, "\n" WEATHER "\n", CALLED "|");
        expect(at, "```json\n" WEATHER "\n```", CALLED "|");
        expect(at, "```\n" WEATHER "\n```\nThat is it.", CALLED "|content:That is it.|");
        expect(at, "[" WEATHER ",\n" WEATHER "]", CALLED CALLED "|");
        expect(at, "```json\n[ " WEATHER " ]\n```", CALLED "|");
        expect(at, "{\"name\": \"add\", \"parameters\": {\"a\": 1.5e3}}",
               "|call:add|with:{\"a\": 1.5e3}|");
        expect(at, "{\"type\": \"function\", \"name\": \"add\", \"parameters\": {}}",
               "|call:add|with:{}|");
        expect(at, "{{\"name\": \"add\", \"arguments\": {}}}", "|call:add|with:{}|");
        expect(at, "{{{\"name\": \"add\"", "|content:{{{\"name\": \"add\"|");
        /* Later in a text it is an example. */
        expect(at, "So: " WEATHER, "|content:So: " WEATHER "|");
    }
}

static void test_reply__llama3(void **state KVA_UNUSED)
{
    expect(KVA_REPLY_LLAMA3, "<|python_tag|>" WEATHER, CALLED "|");
    expect(KVA_REPLY_LLAMA3, WEATHER "; " WEATHER, CALLED CALLED "|");
    expect(KVA_REPLY_LLAMA3, "<|python_tag|>search.call(query=\"x\")",
           "|content:<|python_tag|>search.call(query=\"x\")|");
}

static void test_reply__mistral(void **state KVA_UNUSED)
{
    expect(KVA_REPLY_MISTRAL, "[TOOL_CALLS][" WEATHER ", " WEATHER "]", CALLED CALLED "|");
    expect(KVA_REPLY_MISTRAL,
           "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {}, \"id\": \"123456789\"}]",
           "|call:add|with:{}|");
    expect(KVA_REPLY_MISTRAL, "One moment.[TOOL_CALLS]" WEATHER, "|content:One moment." CALLED "|");
    expect(KVA_REPLY_MISTRAL, "[TOOL_CALLS]add[ARGS]{\"a\": 1}[TOOL_CALLS]add{\"a\": 2}",
           "|call:add|with:{\"a\": 1}|call:add|with:{\"a\": 2}|");
    expect(KVA_REPLY_MISTRAL, "[TOOL_CALLS]add[CALL_ID]abc123456[ARGS]{}", "|call:add|with:{}|");
    expect(KVA_REPLY_MISTRAL, "[TOOL_CALLS]none[ARGS]{}", "|content:[TOOL_CALLS]none[ARGS]{}|");
}

static void test_reply__what_is_no_call_is_content(void **state KVA_UNUSED)
{
    static const char *const texts[] = {
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}\n</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 01}}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": \"x\"}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\"",
        "<tool_call>{\"name\": \"add\"}</tool_call>",
        "<tool_call>{'name': 'add', 'arguments': {}}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"name\": \"add\", \"arguments\": {}}</tool_call>",
        "<tool_call>\nadd(1, 2)\n</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": [1}]}}</tool_call>",
        "<tool_call> \n ",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(texts); i++) {
        char want[256];
        snprintf(want, sizeof(want), "|content:%s|", texts[i]);
        expect(KVA_REPLY_HERMES, texts[i], want);
    }
    /* And what follows it may be one. */
    expect(KVA_REPLY_HERMES, "<tool_call>{</tool_call> <tool_call>" WEATHER "</tool_call>",
           "|content:<tool_call>{</tool_call>" CALLED "|");
}

static void test_reply__reasoning(void **state KVA_UNUSED)
{
    struct kva_reply_params params = params_of(KVA_REPLY_HERMES);
    params.thinks = true;
    check(params, "<think>\nHm. < 3\n</think>\n\nYes.", "|reasoning:Hm. < 3|content:Yes.|");
    check(params, "<think>\n\n</think>\n\n<tool_call>" WEATHER "</tool_call>", CALLED "|");
    check(params, "<think>So " WEATHER "</think>" WEATHER, "|reasoning:So " WEATHER CALLED "|");
    check(params, "Yes <think>", "|content:Yes <think>|");
    check(params, "<think>cut </thin", "|reasoning:cut </thin|");
    params.thinking = true;
    check(params, "\nHm.\n</think>\nYes.", "|reasoning:Hm.|content:Yes.|");
    params.style = KVA_REPLY_NONE;
    check(params, "Hm.</think> {\"name\"", "|reasoning:Hm.|content:{\"name\"|");
    params.thinks = false;
    check(params, "<think>x</think>", "|content:<think>x</think>|");
}

static void test_reply__may_have_a_single_call(void **state KVA_UNUSED)
{
    struct kva_reply_params params = params_of(KVA_REPLY_HERMES);
    params.single = true;
    check(params, "So. <tool_call>" WEATHER "</tool_call>\n<tool_call>" WEATHER "</tool_call>",
          "|content:So." CALLED "|content:<tool_call>" WEATHER "</tool_call>|");
    check(params, WEATHER "\n" WEATHER, CALLED "|content:" WEATHER "|");
    check(params, "[" WEATHER ", " WEATHER "]", CALLED "|content:, " WEATHER "]|");
    check(params, "```json\n[" WEATHER "]\n```", CALLED "|");
}

/* The arguments come while they are written; where nothing has made sure of them, at their end. */
static void test_reply__bound_arguments_come_in_pieces(void **state KVA_UNUSED)
{
    static const char text[] = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 12";
    struct kva_reply_params params = params_of(KVA_REPLY_HERMES);
    params.bound = KVA_REPLY_MARKED;
    check(params, text, "|call:add|with:{\"a\": 12|");
    check(params, text + 12, "|content:{\"name\": \"add\", \"arguments\": {\"a\": 12|");
    params.bound = KVA_REPLY_BOUND;
    check(params, text + 12, "|call:add|with:{\"a\": 12|");
    params.bound = KVA_REPLY_FREE;
    char want[128];
    snprintf(want, sizeof(want), "|content:%s|", text);
    check(params, text, want);
}

static void test_reply__long_texts_take_linear_time(void **state KVA_UNUSED)
{
    size_t length = 400000;
    char *text = malloc(length + 1);
    static const char *const parts[] = {" ", "<tool_call>", "<tool_call>{\"", "<", "\n{\"name\": "};
    struct kva_reply_params params = params_of(KVA_REPLY_HERMES);
    assert_non_null(text);
    for (size_t i = 0; i < KVA_COUNT_OF(parts); i++) {
        size_t part = strlen(parts[i]);
        for (size_t at = 0; at < length; at++)
            text[at] = parts[i][at % part];
        text[length] = '\0';
        char *got = parse(params, text, 0, 1);
        assert_memory_equal(got, "|content:", 9);
        assert_int_equal(strlen(got), length + 10);
        free(got);
    }
    free(text);
}

static void test_reply__held_text_is_bounded(void **state KVA_UNUSED)
{
    struct record record = {.kind = NULL};
    struct kva_reply_params params = params_of(KVA_REPLY_HERMES);
    struct kva_reply *reply = NULL;
    kva_buf_init(&record.text, 1 << 20);
    params.bytes_max = 64;
    params.sink = (struct kva_reply_sink){&record, on_reasoning, on_content, on_call, on_arguments};
    assert_int_equal(kva_reply_create(&params, &reply), KVA_OK);
    static const char begin[] = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"";
    kva_reply_push(reply, begin, strlen(begin));
    for (int i = 0; i < 100; i++)
        kva_reply_push(reply, "x", 1);
    assert_true(kva_reply_failed(reply));
    kva_reply_destroy(reply);
    kva_buf_finish(&record.text);
}

#define XML(name, parameters) "<function=" name ">\n" parameters "</function>"
#define PARAMETER(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

/* Values are of the types that the schema has. */
static void test_xml__calls_are_objects_of_the_schema(void **state KVA_UNUSED)
{
    static const char *const schemas[] = {
        "{\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
        "\"all\":{\"type\":\"boolean\"},\"at\":{\"type\":[\"string\",\"null\"]},"
        "\"of\":{\"anyOf\":[{\"type\":\"number\"},{\"type\":\"array\"}]},"
        "\"unit\":{\"enum\":[\"C\",\"F\"]}}}",
        NULL};
    static const struct {
        const char *text, *want;
    } cases[] = {
        {XML("get_weather", PARAMETER("city", "Paris")), CALLED "|"},
        {"<tool_call>\n" XML("get_weather", PARAMETER("city", "Paris")) "\n</tool_call>",
         CALLED "|"},
        {"Well.\n<tool_call>" XML("get_weather",
                                  "<parameter=city>Paris</parameter>") "</tool_call>\n",
         "|content:Well." CALLED "|"},
        {"<tool_call>" XML(
             "get_weather",
             PARAMETER("city", "Paris")) "</tool_call>\n<tool_call>" XML("add", "") "</tool_call>",
         CALLED "|call:add|with:{}|"},
        {XML("get_weather",
             PARAMETER("city", "\"a\"\nb") PARAMETER("days", " 12345678901234567890 ")),
         "|call:get_weather|with:{\"city\": \"\\\"a\\\"\\nb\", \"days\": 12345678901234567890}|"},
        {XML("get_weather",
             PARAMETER("all", "True") PARAMETER("at", "null") PARAMETER("of", "[1, {}]")),
         "|call:get_weather|with:{\"all\": true, \"at\": null, \"of\": [1, {}]}|"},
        {XML("get_weather",
             PARAMETER("days", "two") PARAMETER("unit", " \n C") PARAMETER("more", "1")),
         "|call:get_weather|with:{\"days\": \"two\", \"unit\": \"C\", \"more\": \"1\"}|"},
        /* What only looks like one. */
        {XML("remove", ""), "|content:" XML("remove", "") "|"},
        {"<function=get_weather", "|content:<function=get_weather|"},
        {"<tool_call>" XML("get_weather", "Paris"),
         "|content:<tool_call>" XML("get_weather", "Paris") "|"},
        {"<tool_call>\n" XML("get_weather", "<parameter=city>P"),
         "|content:<tool_call>\n" XML("get_weather", "<parameter=city>P") "|"},
        /* The other form is one, too. */
        {"<tool_call>\n" WEATHER "\n</tool_call>", CALLED "|"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_reply_params params = params_of(KVA_REPLY_XML);
        params.schemas = schemas;
        check(params, cases[i].text, cases[i].want);
        params.bound = KVA_REPLY_MARKED;
        check(params, cases[i].text, cases[i].want);
    }
}

/* What a value is may be said elsewhere in the schema, and in several ways. */
static void test_xml__values_follow_references(void **state KVA_UNUSED)
{
    static const char *const schemas[] = {
        "{\"$defs\":{\"place\":{\"type\":\"object\"},\"unit\":{\"enum\":[\"C\",1,null]},"
        "\"ring\":{\"anyOf\":[{\"$ref\":\"#/$defs/ring\"},{\"$ref\":\"#/$defs/ring\"}]},"
        "\"loop\":{\"$ref\":\"#/$defs/loop\"}},\"properties\":{"
        "\"at\":{\"$ref\":\"#/$defs/place\"},"
        "\"to\":{\"anyOf\":[{\"$ref\":\"#/$defs/place\"},{\"type\":\"null\"}]},"
        "\"by\":{\"allOf\":[{\"$ref\":\"#/$defs/place\"}],\"description\":\"a place\"},"
        "\"unit\":{\"$ref\":\"#/$defs/unit\"},"
        "\"note\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
        "\"more\":{\"properties\":{}},"
        "\"named\":{\"$ref\":\"#unit\"},"
        "\"ring\":{\"$ref\":\"#/$defs/ring\"},\"loop\":{\"$ref\":\"#/$defs/loop\"}},"
        "\"additionalProperties\":{\"type\":\"integer\"}}",
        "{\"$ref\":\"#/$defs/all\",\"$defs\":{\"all\":{\"properties\":{\"a\":{\"type\":"
        "\"integer\"}}}}}"};
    static const struct {
        const char *text, *want;
    } cases[] = {
        {XML("get_weather", PARAMETER("at", "{\"x\": 1}") PARAMETER("to", "{\"x\": 2}")),
         "|call:get_weather|with:{\"at\": {\"x\": 1}, \"to\": {\"x\": 2}}|"},
        {XML("get_weather", PARAMETER("to", "null") PARAMETER("by", "{}") PARAMETER("more", "{}")),
         "|call:get_weather|with:{\"to\": null, \"by\": {}, \"more\": {}}|"},
        {XML("get_weather", PARAMETER("unit", "C") PARAMETER("note", "null")),
         "|call:get_weather|with:{\"unit\": \"C\", \"note\": null}|"},
        {XML("get_weather", PARAMETER("unit", "1") PARAMETER("note", "1")),
         "|call:get_weather|with:{\"unit\": 1, \"note\": \"1\"}|"},
        {XML("get_weather", PARAMETER("note", "  a\n") PARAMETER("unit", " C ")),
         "|call:get_weather|with:{\"note\": \"  a\\n\", \"unit\": \"C\"}|"},
        {XML("get_weather", PARAMETER("named", "7")), "|call:get_weather|with:{\"named\": \"7\"}|"},
        {XML("get_weather", PARAMETER("other", "7")), "|call:get_weather|with:{\"other\": 7}|"},
        {XML("get_weather", PARAMETER("ring", "7") PARAMETER("loop", "7")),
         "|call:get_weather|with:{\"ring\": \"7\", \"loop\": \"7\"}|"},
        {XML("add", PARAMETER("a", "7")), "|call:add|with:{\"a\": 7}|"},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_reply_params params = params_of(KVA_REPLY_XML);
        params.schemas = schemas;
        check(params, cases[i].text, cases[i].want);
    }
}

/* Where a grammar sees to it that values end, they may have the call's own marks in them. */
static void test_xml__bound_values_are_what_is_between_their_marks(void **state KVA_UNUSED)
{
    static const char text[] = "<tool_call>\n" XML(
        "get_weather", PARAMETER("city", "<function=a>\n<parameter=b></function>")
                           PARAMETER("more", "</tool_call>")) "\n</tool_call>";
    static const char want[] =
        "|call:get_weather|with:{\"city\": \"<function=a>\\n<parameter=b></function>\", "
        "\"more\": \"</tool_call>\"}|";
    struct kva_reply_params params = params_of(KVA_REPLY_XML);
    params.bound = KVA_REPLY_BOUND;
    check(params, text, want);
    params.bound = KVA_REPLY_MARKED;
    check(params, text, want);
    /* Else a value without an end must not swallow the calls that follow. */
    params.bound = KVA_REPLY_FREE;
    check(params,
          "<tool_call>" XML("add", "<parameter=a>1") "</tool_call>\n<tool_call>" XML(
              "get_weather", PARAMETER("city", "Paris")) "</tool_call>",
          "|content:<tool_call>" XML("add", "<parameter=a>1") "</tool_call>" CALLED "|");
}

static void test_template__shows_its_style(void **state KVA_UNUSED)
{
    static const struct {
        const char *source;
        enum kva_reply_style style;
        bool thinks;
    } cases[] = {
        {"{% if tools %}<tool_call>{% endif %}", KVA_REPLY_HERMES, false},
        {"{% if tools %}<tool_call><function=f>", KVA_REPLY_JSON, false},
        {"{% if tools %}<tool_call><function=f><parameter=a>", KVA_REPLY_XML, false},
        {"{{ '[TOOL_CALLS]' }}{{ tools }}", KVA_REPLY_MISTRAL, false},
        {"<|start_header_id|>{{ tools }}\"parameters\"", KVA_REPLY_LLAMA3, false},
        {"{{ tools }}<|python_tag|>", KVA_REPLY_LLAMA3, false},
        {"{{ messages }}<think>", KVA_REPLY_JSON, true},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        struct kva_reply_traits traits;
        kva_reply_read_template(cases[i].source, strlen(cases[i].source), &traits);
        assert_int_equal(traits.style, cases[i].style);
        assert_int_equal(traits.thinks, cases[i].thinks);
    }
    assert_true(kva_reply_is_thinking("x<think>\n", 9, 9));
    assert_false(kva_reply_is_thinking("<think></think>", 15, 15));
    /* What has begun decides, where it says anything of thoughts. */
    assert_true(kva_reply_is_thinking("x<think>\nHm", 11, 9));
    assert_true(kva_reply_is_thinking("x<think>Hm", 10, 1));
    assert_false(kva_reply_is_thinking("x<think>Hm</think>So", 20, 8));
    assert_false(kva_reply_is_thinking("<think>xSo", 10, 8));
    assert_true(kva_reply_is_marker(KVA_REPLY_MISTRAL, false, "[ARGS]", 6));
    assert_false(kva_reply_is_marker(KVA_REPLY_HERMES, false, "<think>", 7));
    assert_true(kva_reply_is_marker(KVA_REPLY_NONE, true, "</think>", 8));
}

static void test_tools__are_told_where_the_template_has_no_place_for_them(void **state KVA_UNUSED)
{
    cJSON *messages = cJSON_Parse(
        "[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":"
        "[{\"function\":{\"name\":\"add\",\"arguments\":{\"a\":1}}}]},"
        "{\"role\":\"tool\",\"content\":\"3\"}]");
    cJSON *tools = cJSON_Parse("[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]");
    const struct kva_reply_history none = {.known = false};
    assert_true(kva_reply_shape_history(messages, &none, KVA_REPLY_JSON, 1 << 16));
    assert_true(kva_reply_tell_tools(messages, tools, false, 1 << 16));
    char *text = cJSON_PrintUnformatted(messages);
    assert_non_null(
        strstr(text, "{\"role\":\"system\",\"content\":\"You can call these functions:"));
    assert_non_null(strstr(text, "{\\\"name\\\":\\\"add\\\"}"));
    assert_non_null(strstr(text, "\"content\":\"{\\\"name\\\": \\\"add\\\", \\\"arguments\\\": "
                                 "{\\\"a\\\":1}}\"}"));
    assert_non_null(
        strstr(text, "{\"role\":\"user\",\"content\":\"The function has returned:\\n3\"}"));
    assert_null(strstr(text, "tool_calls"));
    free(text);
    cJSON_Delete(messages);
    cJSON_Delete(tools);
}

static void test_developers__are_the_system(void **state KVA_UNUSED)
{
    cJSON *messages =
        cJSON_Parse("[{\"role\":\"developer\",\"content\":\"developer\"},"
                    "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"developer\"}]");
    kva_reply_rename_developers(messages);
    char *text = cJSON_PrintUnformatted(messages);
    assert_string_equal(text, "[{\"role\":\"system\",\"content\":\"developer\"},"
                              "{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"system\"}]");
    free(text);
    cJSON_Delete(messages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reply__text_is_content_to_the_last_byte),
        cmocka_unit_test(test_reply__hermes),
        cmocka_unit_test(test_reply__without_a_marker),
        cmocka_unit_test(test_reply__llama3),
        cmocka_unit_test(test_reply__mistral),
        cmocka_unit_test(test_reply__what_is_no_call_is_content),
        cmocka_unit_test(test_reply__reasoning),
        cmocka_unit_test(test_reply__may_have_a_single_call),
        cmocka_unit_test(test_reply__bound_arguments_come_in_pieces),
        cmocka_unit_test(test_reply__long_texts_take_linear_time),
        cmocka_unit_test(test_reply__held_text_is_bounded),
        cmocka_unit_test(test_xml__calls_are_objects_of_the_schema),
        cmocka_unit_test(test_xml__values_follow_references),
        cmocka_unit_test(test_xml__bound_values_are_what_is_between_their_marks),
        cmocka_unit_test(test_template__shows_its_style),
        cmocka_unit_test(test_developers__are_the_system),
        cmocka_unit_test(test_tools__are_told_where_the_template_has_no_place_for_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
