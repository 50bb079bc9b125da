/* Every construct of the dialect against what Jinja2 3.1 makes of it: reference.json, written by
 * make_reference.py. */
#include "tests/cmocka.h"

#include "tests/json.h"
#include "text/template/template.h"

#include <string.h>

/* 2025-02-03 04:05:06 UTC. */
#define NOW 1738555506

static cJSON *read_reference(void)
{
    char path[4096];
    return kva_test_json(kva_test_source("tests/text/template/reference.json", path, sizeof(path)));
}

/* Jinja2's own exceptions are part of the contract word by word. */
static bool is_exact(const char *class_name)
{
    return strcmp(class_name, "TemplateError") == 0 || strcmp(class_name, "UndefinedError") == 0 ||
           strcmp(class_name, "SecurityError") == 0 ||
           strcmp(class_name, "TemplateRuntimeError") == 0;
}

static bool check_error(const cJSON *item, enum kva_status status, const struct kva_err *err)
{
    const char *want = kva_test_text(item, "error");
    const char *class_name = kva_test_text(item, "class");
    if (status != KVA_EINVAL)
        return false;
    if (!is_exact(class_name))
        return true;
    const char *got = err->message;
    if (strcmp(class_name, "TemplateError") != 0 && strstr(got, ": "))
        got = strstr(got, ": ") + 2;
    return strcmp(got, want) == 0;
}

static bool check_case(const cJSON *item, const cJSON *context)
{
    const char *source = kva_test_text(item, "template");
    const char *want = kva_test_text(item, "output");
    const char *compile_error = kva_test_text(item, "compile_error");
    struct kva_template *tmpl = NULL;
    struct kva_err err = {0};
    struct kva_buf out;
    kva_buf_init(&out, 1u << 20);
    enum kva_status status = kva_template_compile(source, strlen(source), &tmpl, &err);
    bool same;
    if (status || compile_error) {
        same = compile_error && status == KVA_EFORMAT && strstr(err.message, "line ");
    } else {
        struct kva_template_input input = {.extra = context, .now_unix_s = NOW};
        status = kva_template_render(tmpl, &input, NULL, &out, &err);
        same = want ? status == KVA_OK && strcmp(out.data ? out.data : "", want) == 0
                    : check_error(item, status, &err) && out.length == 0;
    }
    if (!same)
        printf("DIFFERENT: %s: %s\n  want: %s %s\n  got:  %s\n", kva_test_text(item, "name"),
               source, want ? "" : "error",
               want            ? want
               : compile_error ? compile_error
                               : kva_test_text(item, "error"),
               status     ? err.message
               : out.data ? out.data
                          : "");
    kva_buf_finish(&out);
    kva_template_destroy(tmpl);
    return same;
}

static void test_template__does_what_jinja2_does(void **state KVA_UNUSED)
{
    cJSON *reference = read_reference();
    const cJSON *context = cJSON_GetObjectItemCaseSensitive(reference, "context");
    const cJSON *item;
    unsigned count = 0, different = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(reference, "cases"))
    {
        count++;
        different += !check_case(item, context);
    }
    printf("%u cases, %u different\n", count, different);
    cJSON_Delete(reference);
    assert_int_equal(different, 0);
    assert_true(count > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template__does_what_jinja2_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
