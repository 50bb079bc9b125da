/* The interface: inputs, order of keys, absent values, tokens, threads, loading from a directory.
 */
#include "tests/cmocka.h"

#include "text/template/template.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct kva_template *compile(const char *source)
{
    struct kva_template *tmpl;
    struct kva_err err;
    if (kva_template_compile(source, strlen(source), &tmpl, &err))
        fail_msg("%s: %s", source, err.message);
    return tmpl;
}

static void check(const char *source, const struct kva_template_input *input, const char *want)
{
    struct kva_template *tmpl = compile(source);
    struct kva_err err;
    struct kva_buf out;
    kva_buf_init(&out, 1u << 20);
    if (kva_template_render(tmpl, input, NULL, &out, &err))
        fail_msg("%s: %s", source, err.message);
    assert_string_equal(out.data ? out.data : "", want);
    kva_buf_finish(&out);
    kva_template_destroy(tmpl);
}

static void test_template__takes_all_inputs(void **state KVA_UNUSED)
{
    cJSON *messages =
        cJSON_Parse("[{\"role\":\"user\",\"content\":null,\"z\":1,\"a\":[2.5,true]}]");
    cJSON *tools = cJSON_Parse("[{\"b\":1,\"a\":2,\"b\":3}]");
    cJSON *extra = cJSON_Parse("{\"enable_thinking\":false,\"bos_token\":\"<over>\"}");
    struct kva_template_input input = {
        .messages = messages,
        .tools = tools,
        .extra = extra,
        .add_generation_prompt = true,
        .bos_token = "<s>",
        .eos_token = "</s>",
        .pad_token = "<pad>",
    };
    check("{{ messages }}", &input,
          "[{'role': 'user', 'content': None, 'z': 1, 'a': [2.5, True]}]");
    check("{{ tools|tojson }}", &input, "[{\"b\": 3, \"a\": 2}]");
    check("{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}", &input,
          "<over></s><pad>");
    check("{{ unk_token is defined }}{{ enable_thinking }}{{ add_generation_prompt }}", &input,
          "FalseFalseTrue");
    cJSON_Delete(messages);
    cJSON_Delete(tools);
    cJSON_Delete(extra);
}

static void test_template__absent_values(void **state KVA_UNUSED)
{
    struct kva_template_input input = {0};
    const char *source =
        "{{ messages is defined }}{{ tools is defined }}{{ documents is defined }}";
    check(source, &input, "FalseFalseFalse");
    input.absent_is_none = true;
    check(source, &input, "FalseTrueTrue");
    check("{{ tools is none }}", &input, "True");
}

static void test_template__errors_name_line_and_cause(void **state KVA_UNUSED)
{
    struct kva_template_input input = {0};
    struct kva_err err;
    struct kva_buf out;
    kva_buf_init(&out, 1000);
    struct kva_template *tmpl = compile("a\n\n{{ nope.x }}");
    assert_int_equal(kva_template_render(tmpl, &input, NULL, &out, &err), KVA_EINVAL);
    assert_string_equal(err.message, "chat template, line 3: 'nope' is undefined");
    assert_int_equal(kva_template_render(tmpl, &input, NULL, &out, NULL), KVA_EINVAL);
    kva_template_destroy(tmpl);
    tmpl = compile("\n{{ raise_exception('Only user and assistant roles are supported!') }}");
    assert_int_equal(kva_template_render(tmpl, &input, NULL, &out, &err), KVA_EINVAL);
    assert_string_equal(err.message, "Only user and assistant roles are supported!");
    assert_int_equal(out.length, 0);
    kva_template_destroy(tmpl);
    cJSON *extra = cJSON_CreateArray();
    input.extra = extra;
    tmpl = compile("x");
    assert_int_equal(kva_template_render(tmpl, &input, NULL, &out, &err), KVA_EINVAL);
    assert_string_equal(err.param, "chat_template_kwargs");
    kva_template_destroy(tmpl);
    cJSON_Delete(extra);
    kva_template_destroy(NULL);
    kva_buf_finish(&out);
}

static void test_template__dates_are_utc(void **state KVA_UNUSED)
{
    struct kva_template_input input = {.now_unix_s = 0};
    check("{{ strftime_now('%Y-%m-%d %H:%M') }}", &input, "1970-01-01 00:00");
    input.now_unix_s = 1709164800;
    check("{{ strftime_now('%d %b %Y') }}", &input, "29 Feb 2024");
}

struct job {
    const struct kva_template *tmpl;
    const cJSON *messages;
    bool good;
};

static void *render_often(void *argument)
{
    struct job *job = argument;
    struct kva_buf out;
    kva_buf_init(&out, 1u << 16);
    job->good = true;
    for (int i = 0; i < 200; i++) {
        struct kva_template_input input = {.messages = job->messages, .bos_token = "<s>"};
        kva_buf_clear(&out);
        if (kva_template_render(job->tmpl, &input, NULL, &out, NULL) ||
            strcmp(out.data, "<s>USER:hi;system:ho;['a', 'z']x.y") != 0)
            job->good = false;
    }
    kva_buf_finish(&out);
    return NULL;
}

static void test_template__threads_share_a_template(void **state KVA_UNUSED)
{
    struct kva_template *tmpl = compile(
        "{% set ns = namespace(n=0) %}{% macro m(x, y='d') %}{{ x.role|upper if loop is defined "
        "or y == 'u' else x.role }}:{{ x.content }};{% endmacro %}{{ bos_token }}"
        "{% for k in messages %}{% set ns.n = ns.n + 1 %}{{ m(k, 'u' if loop.first else 'd') }}"
        "{% endfor %}{{ ['z', 'a']|sort }}{% set s = 'x' ~ '.' %}{{ s ~ 'y' }}");
    cJSON *messages = cJSON_Parse("[{\"role\":\"user\",\"content\":\"hi\"},"
                                  "{\"role\":\"system\",\"content\":\"ho\"}]");
    struct job jobs[2] = {{tmpl, messages, false}, {tmpl, messages, false}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &jobs[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(jobs[i].good);
    }
    cJSON_Delete(messages);
    kva_template_destroy(tmpl);
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void remove_file(const char *dir, const char *name)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    remove(path);
}

/* Load `name` and render it; NULL: it must not be found. */
static void check_load(const char *dir, const char *name, const char *want)
{
    struct kva_template *tmpl = NULL;
    struct kva_err err = {0};
    enum kva_status status = kva_template_load(dir, name, &tmpl, &err);
    if (!want) {
        assert_int_equal(status, KVA_ENOTFOUND);
        assert_non_null(strstr(err.message, "no chat template"));
        assert_non_null(strstr(err.message, dir));
        return;
    }
    if (status)
        fail_msg("%s", err.message);
    struct kva_template_input input = {0};
    struct kva_buf out;
    kva_buf_init(&out, 1000);
    assert_int_equal(kva_template_render(tmpl, &input, NULL, &out, &err), KVA_OK);
    assert_string_equal(out.data, want);
    kva_buf_finish(&out);
    kva_template_destroy(tmpl);
}

static void test_template__loads_from_a_model_directory(void **state KVA_UNUSED)
{
    char dir[] = "kva_template_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char sub[512];
    struct kva_template *tmpl = NULL;
    struct kva_err err;
    snprintf(sub, sizeof(sub), "%s/additional_chat_templates", dir);
    check_load(dir, NULL, NULL);
    write_file(dir, "chat_template.json", "{\"chat_template\": \"from {{ 'json' }}\"}");
    check_load(dir, NULL, "from json");
    check_load(dir, "default", "from json");
    check_load(dir, "tool_use", NULL);
    write_file(dir, "tokenizer_config.json", "{\"bos_token\": null}");
    check_load(dir, NULL, "from json");
    write_file(dir, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"default\", \"template\": \"list\"},"
               "{\"name\": \"tool_use\", \"template\": \"tools\"}, 5, {\"name\": 1}]}");
    check_load(dir, NULL, "list");
    check_load(dir, "tool_use", "tools");
    check_load(dir, "rag", NULL);
    write_file(dir, "chat_template.jinja", "file\n");
    check_load(dir, NULL, "file");
    check_load(dir, "tool_use", "tools");
    assert_int_equal(mkdir(sub, 0700), 0);
    write_file(sub, "tool_use.jinja", "named");
    check_load(dir, "tool_use", "named");
    assert_int_equal(kva_template_load(dir, "../x", &tmpl, &err), KVA_EINVAL);
    write_file(dir, "chat_template.jinja", "x\n{{ 1 +");
    assert_int_equal(kva_template_load(dir, NULL, &tmpl, &err), KVA_EFORMAT);
    assert_non_null(strstr(err.message, "chat_template.jinja: chat template, line 2"));
    remove_file(dir, "chat_template.jinja");
    write_file(dir, "tokenizer_config.json", "{\"chat_template\": ");
    assert_int_equal(kva_template_load(dir, NULL, &tmpl, &err), KVA_EFORMAT);
    assert_non_null(strstr(err.message, "tokenizer_config.json: not a JSON object"));
    assert_null(tmpl);
    remove_file(sub, "tool_use.jinja");
    rmdir(sub);
    remove_file(dir, "tokenizer_config.json");
    remove_file(dir, "chat_template.json");
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template__takes_all_inputs),
        cmocka_unit_test(test_template__absent_values),
        cmocka_unit_test(test_template__errors_name_line_and_cause),
        cmocka_unit_test(test_template__dates_are_utc),
        cmocka_unit_test(test_template__threads_share_a_template),
        cmocka_unit_test(test_template__loads_from_a_model_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
