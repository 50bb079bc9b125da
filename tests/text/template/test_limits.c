/* The sandbox: every limit triggers, hostile templates end with an error, stack stays bounded. */
#include "tests/cmocka.h"

#include "text/template/template.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kva_template_limits limits_of(void)
{
    struct kva_template_limits limits;
    kva_template_limits_default(&limits);
    return limits;
}

/* Render with limits; the error must contain `want`, NULL: it must succeed. */
static void check(const char *source, const struct kva_template_limits *limits, const char *want)
{
    struct kva_template *tmpl;
    struct kva_err err = {0};
    struct kva_buf out;
    struct kva_template_input input = {.bos_token = "<s>"};
    if (kva_template_compile(source, strlen(source), &tmpl, &err))
        fail_msg("%s: %s", source, err.message);
    kva_buf_init(&out, 1u << 26);
    kva_buf_puts(&out, "before");
    enum kva_status status = kva_template_render(tmpl, &input, limits, &out, &err);
    if (!want) {
        if (status)
            fail_msg("%s: %s", source, err.message);
    } else {
        if (status != KVA_EINVAL || !strstr(err.message, want))
            fail_msg("%.200s: want '%s', got %d '%s'", source, want, (int)status, err.message);
        assert_string_equal(out.data, "before");
        assert_false(out.failed);
    }
    kva_buf_finish(&out);
    kva_template_destroy(tmpl);
}

static void check_compile_error(const char *source, size_t length, const char *want)
{
    struct kva_template *tmpl = NULL;
    struct kva_err err = {0};
    if (kva_template_compile(source, length, &tmpl, &err) != KVA_EFORMAT)
        fail_msg("%.60s: compiles, or fails with '%s'", source, err.message);
    assert_null(tmpl);
    if (!strstr(err.message, want))
        fail_msg("want '%s', got '%s'", want, err.message);
    assert_int_equal(kva_template_compile(source, length, &tmpl, NULL), KVA_EFORMAT);
}

/* `unit` repeated, between `head` and `tail`. */
static char *repeat(const char *head, const char *unit, size_t count, const char *tail)
{
    struct kva_buf buf;
    kva_buf_init(&buf, 1u << 26);
    kva_buf_puts(&buf, head);
    for (size_t i = 0; i < count; i++)
        kva_buf_puts(&buf, unit);
    kva_buf_puts(&buf, tail);
    kva_buf_putc(&buf, '\0');
    return kva_buf_take(&buf, NULL);
}

static void test_template__steps_are_bounded(void **state KVA_UNUSED)
{
    struct kva_template_limits limits = limits_of();
    limits.steps_max = 10000;
    const char *loop =
        "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}";
    check(loop, &limits, "limit steps_max");
    check("{% for i in range(100) %}{{ i }}{% endfor %}", &limits, NULL);
    /* Work on long strings costs steps although it is one node. */
    check("{% set s = 'abcdefgh' * 20000 %}{% for i in range(1000) %}{{ s|length }}{% endfor %}",
          &limits, "limit steps_max");
    check("{% set s = 'ab' * 3000 %}{% for i in range(200) %}{{ 'x' in s }}{% endfor %}", &limits,
          "limit steps_max");
    check("{% set l = [1] * 20000 %}{% for i in range(99) %}{% set q = l + l %}{% endfor %}",
          &limits, "limit steps_max");
    check("{{ (range(9000)|list)|sort|length }}", &limits, "limit steps_max");
    check("{% for i in range(90000) %}{% endfor %}", &limits, "limit steps_max");
    check("{% macro f(n) %}{{ f(n) if n else '' }}{{ f(0) }}{% endmacro %}{{ f(1) }}", &limits,
          "limit ");
}

/* Each of these took minutes to hours, or for ever, under the default limits. */
static void test_template__products_of_sizes_are_bounded(void **state KVA_UNUSED)
{
    const char *nested = "{% set n = namespace(t=(1, 2, 3, 4, 5, 6, 7, 8)) %}"
                         "{% for i in range(12) %}"
                         "{% set n.t = (n.t, n.t, n.t, n.t, n.t, n.t, n.t, n.t) %}{% endfor %}"
                         "{{ n.t in {1: 2} }}";
    check("{{ ('a' * 20000000).rfind('a' * 10000000 ~ 'b') }}", NULL, NULL);
    check("{{ ('a' * 20000000).rsplit('a' * 10000000 ~ 'b')|length }}", NULL, NULL);
    check("{{ ('a' * 10000000).strip('b' * 10000000 ~ 'a')|length }}", NULL, NULL);
    check("{{ ('\xC3\xA9' * 5000000).strip('b' * 10000000 ~ '\xC3\xA9')|length }}", NULL,
          "steps_max");
    check(nested, NULL, "steps_max");
    check("{% set k = 'a' * 20000000 %}{% set d = {k: 1} %}"
          "{% for i in range(100000) %}{{ d[k] }}{% endfor %}",
          NULL, "steps_max");
    check("{% set k = 'a' * 20000000 %}"
          "{% for i in range(100000) %}{{ k.startswith((k,) * 100) }}{% endfor %}",
          NULL, "steps_max");
}

static void test_template__depth_is_bounded(void **state KVA_UNUSED)
{
    const char *const deep[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(a) %}{{ caller(a) }}{% endmacro %}{% macro g() %}{% call(x) f(1) %}{{ g() }}"
        "{% endcall %}{% endmacro %}{{ g() }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set n = namespace(v=[]) %}{% for i in range(9000) %}{% set n.v = [n.v] %}{% endfor %}"
        "{{ n.v }}",
        "{% set n = namespace(v={}) %}{% for i in range(9000) %}{% set n.v = {'a': n.v} %}"
        "{% endfor %}{{ n.v|tojson }}",
        "{% set n = namespace(v=[], w=[]) %}{% for i in range(9000) %}{% set n.v = [n.v] %}"
        "{% set n.w = [n.w] %}{% endfor %}{{ n.v == n.w }}",
        "{% set n = namespace(v=[1], w=[2]) %}{% for i in range(9000) %}{% set n.v = [n.v] %}"
        "{% set n.w = [n.w] %}{% endfor %}{{ n.v < n.w }}",
        "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
        "{% set n = namespace(f=none) %}{% macro g(x) %}{{ n.f(x) }}{% endmacro %}"
        "{% set n.f = g %}{{ n.f(1) }}",
        "{% macro f(a=f()) %}{% endmacro %}{{ f() }}",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(deep); i++)
        check(deep[i], NULL, "limit eval_depth_max");
    /* Left-associative chains nest without nesting in the source. */
    char *chain = repeat("{{ 1", " + 1", 5000, " }}");
    check(chain, NULL, "limit eval_depth_max");
    free(chain);
    chain = repeat("{{ bos_token", "|trim", 5000, " }}");
    check(chain, NULL, "limit eval_depth_max");
    free(chain);
    chain = repeat("{{ bos_token", ".x", 5000, " }}");
    check(chain, NULL, "limit eval_depth_max");
    free(chain);
    /* A long chain of ~ is flat, and many elifs are too. */
    chain = repeat("{{ 1", " ~ 1", 5000, " }}");
    check(chain, NULL, NULL);
    free(chain);
    chain = repeat("{% if false %}", "{% elif false %}", 5000, "{% endif %}");
    check(chain, NULL, NULL);
    free(chain);
    /* Keys nest no deeper than a hash follows them. */
    check("{% set n = namespace(v=(1,)) %}{% for i in range(900) %}{% set n.v = (n.v,) %}"
          "{% endfor %}{{ {n.v: 1} }}",
          NULL, "unhashable");
}

static void test_template__heap_is_bounded(void **state KVA_UNUSED)
{
    struct kva_template_limits limits = limits_of();
    limits.heap_bytes_max = 1u << 20;
    static const char *const greedy[] = {
        "{{ ('x' * 5000000)|length }}",
        "{{ ([1] * 5000000)|length }}",
        "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}{% endfor "
        "%}",
        "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor "
        "%}",
        "{% set n = namespace(s='ab') %}{% for i in range(64) %}"
        "{% set n.s = n.s|replace('a', 'ab')|replace('b', 'aa') %}{% endfor %}",
        "{% set a %}{% for i in range(100000) %}0123456789012345{% endfor %}{% endset %}",
        "{% set n = namespace(l=[1]) %}{% for i in range(64) %}{% set n.l = n.l + n.l %}{% endfor "
        "%}",
        "{{ range(100000)|list|length }}",
        "{{ 'a'.center(99999999) }}",
        "{{ 'a'.zfill(99999999) }}",
        "{{ ('a' * 1000)|list|join('b' * 9000) }}",
        "{{ 'a'|indent(99999999, true) }}",
        "{{ [1]|batch(99999999, 2)|list }}",
        "{{ [1]|slice(99999999)|list }}",
        "{{ ('a' * 100000)|list }}",
        "{{ ('\\n' * 9999)|indent('x' * 9999, true, true) }}",
        "{{ ('a' * 9999).replace('', 'x' * 9999)|length }}",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(greedy); i++)
        check(greedy[i], &limits, "heap_bytes_max");
    check("{{ 'a' * 9223372036854775807 }}", NULL, "steps_max");
    check("{{ ['a', 'b', 'c'] * 9223372036854775807 }}", NULL, "longer than memory");
    check("{{ 'ab' * 9223372036854775807 * 2 }}", NULL, "steps_max");
    check("{{ '' * 9223372036854775807 }}{{ [] * 9223372036854775807 }}", NULL, NULL);
}

/* Text that is built piece by piece must not cost the square of its length. */
static void test_template__accumulating_is_linear(void **state KVA_UNUSED)
{
    struct kva_template_limits limits = limits_of();
    limits.heap_bytes_max = 16u << 20;
    check("{% set n = namespace(s='') %}{% for i in range(20000) %}"
          "{% set n.s = n.s + '0123456789012345678901234567890123456789' %}{% endfor %}"
          "{{ n.s|length }}",
          &limits, NULL);
    check("{% set n = namespace(s='') %}{% for i in range(20000) %}"
          "{% set n.s = n.s ~ '0123456789012345678901234567890123456789' %}{% endfor %}",
          &limits, NULL);
}

static void test_template__output_is_bounded(void **state KVA_UNUSED)
{
    struct kva_template_limits limits = limits_of();
    limits.output_bytes_max = 1000;
    check("{% for i in range(1000) %}xx{% endfor %}", &limits, "limit output_bytes_max");
    check("{{ 'x' * 1001 }}", &limits, "limit output_bytes_max");
    check("{{ 'x' * 1000 }}", &limits, NULL);
    struct kva_template *tmpl;
    struct kva_err err;
    struct kva_buf out;
    struct kva_template_input input = {0};
    kva_buf_init(&out, 10);
    assert_int_equal(kva_template_compile("{{ 'x' * 11 }}", 14, &tmpl, &err), KVA_OK);
    assert_int_equal(kva_template_render(tmpl, &input, NULL, &out, &err), KVA_EINVAL);
    assert_non_null(strstr(err.message, "more than 10 bytes"));
    assert_false(out.failed);
    assert_int_equal(kva_template_render(tmpl, &input, NULL, &out, NULL), KVA_EINVAL);
    kva_buf_finish(&out);
    kva_template_destroy(tmpl);
}

static void test_template__range_is_bounded(void **state KVA_UNUSED)
{
    struct kva_template_limits limits = limits_of();
    limits.range_max = 10;
    check("{{ range(10)|length }}", &limits, NULL);
    check("{{ range(11) }}", &limits, "limit range_max");
    check("{{ range(0, -11, -1) }}", &limits, "limit range_max");
    check("{{ range(-9223372036854775807, 9223372036854775807) }}", NULL, "limit range_max");
    check("{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)|list }}", NULL,
          NULL);
    check("{{ range(9223372036854775807, 9223372036854775805, -1)[::-1]|list }}", NULL, NULL);
}

static void test_template__integers_do_not_overflow(void **state KVA_UNUSED)
{
    static const char *const overflowing[] = {
        "{{ 9223372036854775807 + 1 }}",
        "{{ -9223372036854775807 - 2 }}",
        "{{ 9223372036854775807 * 2 }}",
        "{{ 2 ** 63 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ -(-9223372036854775807 - 1) }}",
        "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ (-9223372036854775807 - 1)|abs }}",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(overflowing); i++)
        check(overflowing[i], NULL, "integer overflow");
    check("{{ (-9223372036854775807 - 1) % -1 }}{{ 2 ** 62 }}{{ 1 ** 9223372036854775807 }}", NULL,
          NULL);
    check("{{ '99999999999999999999'|int }}", NULL, "64 bits");
    check("{{ 'abc'[9223372036854775807:] }}{{ 'abc'[:-9223372036854775807] }}"
          "{{ 'abc'[::9223372036854775807] }}{{ 'abc'[::-9223372036854775807] }}"
          "{{ [1][9223372036854775807:0:-9223372036854775807] }}",
          NULL, NULL);
    check("{{ 'a'.find('a', -9223372036854775807, 9223372036854775807) }}", NULL, NULL);
}

static void test_template__compilation_is_bounded(void **state KVA_UNUSED)
{
    static const struct {
        const char *head, *unit, *tail;
    } nested[] = {
        {"{{ ", "(", "1"},
        {"{{ ", "[", "1"},
        {"{{ ", "{1:", "1"},
        {"{{ ", "-", "1 }}"},
        {"{{ ", "not ", "1 }}"},
        {"", "{% if 1 %}", ""},
        {"", "{% for a in b %}", ""},
        {"", "{% macro f() %}", ""},
        {"{{ f", "(f", ""},
        {"{{ a", "[a", ""},
        {"{{ ", "1 if 1 else ", "1 }}"},
        {"{{ a", "|d(a", ""},
        {"{{ a ", "is in (a ", ""},
        {"", "{% set a %}", ""},
        {"{{ ", "+-", "1 }}"},
        {"{% set ", "(", "a"},
        {"", "{% filter trim %}", ""},
        {"", "{% generation %}", ""},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(nested); i++) {
        char *source = repeat(nested[i].head, nested[i].unit, 20000, nested[i].tail);
        check_compile_error(source, strlen(source), "line 1: ");
        free(source);
    }
    char *large = repeat("", "0123456789abcdef", (1u << 20) / 16 + 1, "");
    check_compile_error(large, strlen(large), "at most 1048576 are allowed");
    free(large);
    struct kva_buf names;
    kva_buf_init(&names, 1u << 20);
    for (int i = 0; i < 2000; i++)
        kva_buf_printf(&names, "{{ v%d }}", i);
    check_compile_error(names.data, names.length, "more than 1000 different variables");
    kva_buf_finish(&names);
    large = repeat("{{ [", "1,", 524000, "] }}");
    check_compile_error(large, strlen(large), "compiles to more than");
    free(large);
    check_compile_error("a\xFF", 2, "not valid UTF-8");
    check_compile_error("{{ '\xE4\xBD", 7, "not valid UTF-8");
    check_compile_error("{{ 99999999999999999999 }}", 26, "64 bits");
    check_compile_error("{{ '\\ud800' }}", 14, "Unicode scalar");
    check_compile_error("\n\n{{ x y }}", 11, "line 3: ");
    check_compile_error("{% include 'a' %}", 17, "include");
    check_compile_error("{{ \0 }}", 7, "unexpected char");
}

static void test_template__json_depth_and_text_are_checked(void **state KVA_UNUSED)
{
    struct kva_template *tmpl;
    struct kva_err err;
    struct kva_buf out;
    kva_buf_init(&out, 1000);
    assert_int_equal(kva_template_compile("{{ messages }}", 14, &tmpl, &err), KVA_OK);
    cJSON *json = cJSON_CreateArray();
    for (int i = 0; i < 5000; i++) {
        cJSON *outer = cJSON_CreateArray();
        cJSON_AddItemToArray(outer, json);
        json = outer;
    }
    struct kva_template_input input = {.messages = json};
    assert_int_equal(kva_template_render(tmpl, &input, NULL, &out, &err), KVA_EINVAL);
    assert_non_null(strstr(err.message, "eval_depth_max"));
    /* cJSON_Delete recurses too: take it apart here. */
    while (json) {
        cJSON *inner = cJSON_DetachItemFromArray(json, 0);
        cJSON_Delete(json);
        json = inner;
    }
    json = cJSON_CreateString("a\xFF");
    input.messages = json;
    assert_int_equal(kva_template_render(tmpl, &input, NULL, &out, &err), KVA_EINVAL);
    assert_string_equal(err.message, "messages: a string is not valid UTF-8");
    assert_string_equal(err.param, "messages");
    cJSON_Delete(json);
    kva_buf_finish(&out);
    kva_template_destroy(tmpl);
}

static void *render_deep(void *argument KVA_UNUSED)
{
    test_template__depth_is_bounded(NULL);
    test_template__compilation_is_bounded(NULL);
    return argument;
}

static void test_template__stack_is_bounded(void **state KVA_UNUSED)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    printf("SKIPPED: sanitizers enlarge stack frames\n");
    skip();
#endif
    pthread_attr_t attr;
    pthread_t thread;
    void *result;
    char token;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, KVA_TEMPLATE_STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attr, render_deep, &token), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_ptr_equal(result, &token);
    pthread_attr_destroy(&attr);
}

/* What escapes its block, its loop or its macro must stay harmless. */
static void test_template__escaped_objects_are_harmless(void **state KVA_UNUSED)
{
    check("{% set n = namespace() %}{% for i in [1, 2] recursive %}{% set n.l = loop %}{% endfor %}"
          "{{ n.l.index }}{{ n.l.nextitem }}{{ n.l.previtem }}{{ n.l.last }}{{ n.l([3]) }}",
          NULL, NULL);
    check("{% set n = namespace() %}{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}"
          "{% set n.m = m %}{% endfor %}{% for j in [5] %}{{ n.m() }}{% endfor %}",
          NULL, NULL);
    check("{% set n = namespace() %}{% macro w() %}{% set q = 1 %}{% for i in [1] recursive %}"
          "{% set n.l = loop %}{% endfor %}{% endmacro %}{{ w() }}"
          "{% for a in [1, 2] %}{% set z = a %}{{ n.l([7]) }}{% endfor %}",
          NULL, NULL);
    check("{% set n = namespace() %}{% set n.f = 'abc'.upper %}{{ n.f() }}{% set n.g = n.f %}"
          "{{ n.g() }}",
          NULL, NULL);
    check("{% macro m() %}{{ caller }}{% endmacro %}{% call m() %}{% endcall %}", NULL, NULL);
    check("{% set a = 'x' + 'y' %}{% set b = a + 'z' %}{% set c = a + 'w' %}"
          "{{ raise_exception('' if b == 'xyz' and c == 'xyw' and a == 'xy' else 'shared') }}",
          NULL, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template__steps_are_bounded),
        cmocka_unit_test(test_template__products_of_sizes_are_bounded),
        cmocka_unit_test(test_template__depth_is_bounded),
        cmocka_unit_test(test_template__heap_is_bounded),
        cmocka_unit_test(test_template__accumulating_is_linear),
        cmocka_unit_test(test_template__output_is_bounded),
        cmocka_unit_test(test_template__range_is_bounded),
        cmocka_unit_test(test_template__integers_do_not_overflow),
        cmocka_unit_test(test_template__compilation_is_bounded),
        cmocka_unit_test(test_template__json_depth_and_text_are_checked),
        cmocka_unit_test(test_template__stack_is_bounded),
        cmocka_unit_test(test_template__escaped_objects_are_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
