/* Published templates against Jinja2's own renderings of them, errors included. */
#include "tests/cmocka.h"

#include "tests/json.h"
#include "text/template/template.h"

#include <string.h>

/* 2025-02-03 04:05:06 UTC, the moment of the expected renderings. */
#define NOW 1738555506

static cJSON *read_json(const char *name)
{
    char path[4096];
    if (!kva_test_data(name, path, sizeof(path)))
        return NULL;
    return kva_test_json(path);
}

struct score {
    unsigned templates, renderings, errors, different;
};

/* Compare with `want`, or with `want_error` ("Class: message") if that is not NULL. */
static void check(struct score *score, const char *what, const struct kva_template *tmpl,
                  const struct kva_template_input *input, const char *want, const char *want_error)
{
    struct kva_buf out;
    struct kva_err err;
    kva_buf_init(&out, 1u << 24);
    enum kva_status status = kva_template_render(tmpl, input, NULL, &out, &err);
    bool same;
    if (want_error) {
        const char *colon = strstr(want_error, "Error: ");
        const char *message = colon ? colon + 7 : want_error;
        bool raised = strncmp(want_error, "TemplateError: ", 15) == 0 || !colon;
        const char *got = status ? err.message : "";
        if (!raised && strstr(got, ": "))
            got = strstr(got, ": ") + 2;
        same = status == KVA_EINVAL && strcmp(got, message) == 0;
        score->errors++;
    } else {
        same = status == KVA_OK && strcmp(out.data ? out.data : "", want) == 0;
    }
    if (!same) {
        score->different++;
        printf("DIFFERENT: %s\n  want: %s\n  got:  %s\n", what, want_error ? want_error : want,
               status     ? err.message
               : out.data ? out.data
                          : "");
    }
    score->renderings++;
    kva_buf_finish(&out);
}

static void check_template(struct score *score, const char *name, const cJSON *expected,
                           const cJSON *inputs)
{
    char path[4096], file[512];
    snprintf(file, sizeof(file), "templates/%s", name);
    assert_non_null(kva_test_data(file, path, sizeof(path)));
    char *source = kva_test_read(path, NULL);
    struct kva_template *tmpl;
    struct kva_err err;
    if (kva_template_compile(source, strlen(source), &tmpl, &err))
        fail_msg("%s: %s", name, err.message);
    free(source);
    score->templates++;
    const cJSON *errors = cJSON_GetObjectItemCaseSensitive(expected, "errors");
    const cJSON *want;
    cJSON_ArrayForEach(want, cJSON_GetObjectItemCaseSensitive(expected, "scenarios"))
    {
        const cJSON *given = cJSON_GetObjectItemCaseSensitive(inputs, want->string);
        struct kva_template_input input = {
            .extra = given,
            .bos_token = kva_test_text(expected, "bos_token"),
            .eos_token = kva_test_text(expected, "eos_token"),
            .now_unix_s = NOW,
        };
        char what[1024];
        snprintf(what, sizeof(what), "%s: %s", name, want->string);
        check(score, what, tmpl, &input, cJSON_GetStringValue(want),
              cJSON_IsNull(want) ? kva_test_text(errors, want->string) : NULL);
    }
    kva_template_destroy(tmpl);
}

static void print_score(const char *what, const struct score *score)
{
    printf("%s: %u templates, %u renderings (%u of them errors), %u different\n", what,
           score->templates, score->renderings, score->errors, score->different);
    assert_int_equal(score->different, 0);
    assert_true(score->renderings > 0);
}

static void test_template__renders_published_templates_as_jinja2(void **state KVA_UNUSED)
{
    cJSON *expected = read_json("templates/expected/rendered.json");
    if (!expected)
        skip();
    const cJSON *inputs = cJSON_GetObjectItemCaseSensitive(expected, "inputs");
    struct score score = {0};
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(expected, "templates"))
        check_template(&score, item->string, item, inputs);
    print_score("published files", &score);
    cJSON_Delete(expected);
}

static void test_template__renders_embedded_templates_as_jinja2(void **state KVA_UNUSED)
{
    cJSON *expected = read_json("templates/expected/llamacpp_test_chat_template.json");
    if (!expected)
        skip();
    struct score score = {0};
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(expected, "cases"))
    {
        const char *source = kva_test_text(item, "template");
        struct kva_template *tmpl;
        struct kva_err err;
        if (kva_template_compile(source, strlen(source), &tmpl, &err))
            fail_msg("%s: %s", kva_test_text(item, "name"), err.message);
        score.templates++;
        struct kva_template_input input = {
            .messages = cJSON_GetObjectItemCaseSensitive(expected, "messages"),
            .add_generation_prompt = true,
            .bos_token = kva_test_text(item, "bos_token"),
            .eos_token = kva_test_text(item, "eos_token"),
            .now_unix_s = NOW,
        };
        const char *error = kva_test_text(item, "jinja2_error");
        if (!error || strstr(error, "is undefined") == NULL) {
            check(&score, kva_test_text(item, "name"), tmpl, &input, kva_test_text(item, "jinja2"),
                  error);
        } else {
            char classed[512];
            snprintf(classed, sizeof(classed), "UndefinedError: %s", error);
            check(&score, kva_test_text(item, "name"), tmpl, &input, NULL, classed);
        }
        kva_template_destroy(tmpl);
    }
    print_score("embedded templates", &score);
    cJSON_Delete(expected);
}

/* The published templates without expected renderings must at least compile. */
static void test_template__compiles_the_other_published_templates(void **state KVA_UNUSED)
{
    static const char *const names[] = {
        "v11_audio", "v11_image", "v11_image_think", "v13_audio", "v13_image_think",
        "v15_audio", "v15_image", "v15_image_think", "v3_image",  "v3_image_spm",
        "v7_audio",  "v7_image",  "v7_image_spm",
    };
    unsigned count = 0;
    for (size_t i = 0; i < KVA_COUNT_OF(names); i++) {
        char file[256], path[4096];
        snprintf(file, sizeof(file), "templates/mistral-common/%s.jinja", names[i]);
        if (!kva_test_data(file, path, sizeof(path)))
            skip();
        char *source = kva_test_read(path, NULL);
        struct kva_template *tmpl;
        struct kva_err err;
        if (kva_template_compile(source, strlen(source), &tmpl, &err))
            fail_msg("%s: %s", file, err.message);
        kva_template_destroy(tmpl);
        free(source);
        count++;
    }
    printf("%u more templates compile\n", count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template__renders_published_templates_as_jinja2),
        cmocka_unit_test(test_template__renders_embedded_templates_as_jinja2),
        cmocka_unit_test(test_template__compiles_the_other_published_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
