/* Work is charged before it is done: every builtin, operator and statement with large operands that
 * are bad for it, alone and in pairs. What it really does is counted, not timed: the interpreter is
 * compiled here with a counter in each basic block, and with the C library's functions on memory
 * counted by the bytes that they touch (meson.build). A builtin is found by the tables, so that a
 * new one is tested without being named here.
 *
 * For each expression two renderings: with the default limits, where the work must be in proportion
 * to the steps; and with next to nothing left, where it must not have been done at all. */
#include "tests/cmocka.h"

#include "text/template/builtins.h"
#include "text/template/template.h"

#include <stdio.h>
#include <string.h>

/* Basic blocks, or 16 bytes each in the C library, that one step may take. The dearest are a call
 * with its arguments, and 16 characters each of which is decoded, classified and appended. */
#define WORK_PER_STEP 400
/* What an expression may take beside its steps: its own evaluation, and composing an error. */
#define WORK_BESIDE 6000
/* Steps left, over the operands' own making, in the second rendering. */
#define STEPS_LEFT 150

/* --- counting -------------------------------------------------------------------------------- */

static uint64_t work, work_max = UINT64_MAX;
static const char *current;

/* A test that ends here has done too much; going on might take for ever. */
static void count(uint64_t more)
{
    work += more;
    if (work <= work_max)
        return;
    work_max = UINT64_MAX;
    fail_msg("more work than was charged: %s", current);
}

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    count(1);
}

static void touch(size_t bytes)
{
    count(1 + bytes / 16);
}

#define WRAP(type, name, params, args, bytes)                                                      \
    type __real_##name params;                                                                     \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params                                                                      \
    {                                                                                              \
        touch(bytes);                                                                              \
        return __real_##name args;                                                                 \
    }

WRAP(void *, memcpy, (void *to, const void *from, size_t n), (to, from, n), n)
WRAP(void *, memmove, (void *to, const void *from, size_t n), (to, from, n), n)
WRAP(void *, memset, (void *to, int byte, size_t n), (to, byte, n), n)
WRAP(void *, memchr, (const void *in, int byte, size_t n), (in, byte, n), n)
/* It is linear up to the first place, but for a needle of up to 256 bytes that nearly fits at each:
 * that one is charged by the product. */
void *__real_memmem(const void *in, size_t n, const void *needle, size_t m);
void *__wrap_memmem(const void *in, size_t n, const void *needle, size_t m);
void *__wrap_memmem(const void *in, size_t n, const void *needle, size_t m)
{
    void *found = __real_memmem(in, n, needle, m);
    touch((found ? (size_t)((char *)found - (const char *)in) : n) + m);
    return found;
}

/* It ends at the first difference. */
int __real_memcmp(const void *a, const void *b, size_t n);
int __wrap_memcmp(const void *a, const void *b, size_t n);
int __wrap_memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    size_t same = 0;
    while (same < n && x[same] == y[same])
        same++;
    touch(same);
    return __real_memcmp(a, b, n);
}

/* --- operands -------------------------------------------------------------------------------- */

static const struct operand {
    const char *name;
    const char *source;
} operands[] = {
    {"same", "{% set same = 'a' * 16384 %}"},
    {"near", "{% set near = 'a' * 8192 ~ 'b' %}"},
    {"short", "{% set short = 'a' * 100 ~ 'b' ~ 'a' * 100 %}"},
    {"space", "{% set space = ' ' * 16384 %}"},
    {"wide", "{% set wide = '\xC3\xA9' * 8000 %}"},
    {"commas", "{% set commas = 'a,' * 8000 %}"},
    {"lines", "{% set lines = '\\n' * 6000 %}"},
    {"fields", "{% set fields = '%1000s{:>1000}' * 500 %}"},
    {"path", "{% set path = 'a.' * 8000 %}"},
    {"digits", "{% set digits = '1' * 16384 %}"},
    {"control", "{% set control = '\\x01\"' * 6000 %}"},
    {"list", "{% set list = [1] * 12000 %}"},
    {"texts", "{% set texts = ['a' * 2048] * 500 %}"},
    {"floats", "{% set floats = [1e300, 1.1] * 500 %}"},
    {"numbers", "{% set numbers = range(1000)|map('string')|list %}"},
    {"tree", "{% set t = (1, 2, 3, 4, 5, 6, 7, 8) %}{% set t = (t, t, t, t, t, t, t, t) %}"
             "{% set t = (t, t, t, t, t, t, t, t) %}{% set t = (t, t, t, t, t, t, t, t) %}"
             "{% set tree = (t, t, t, t, t, t, t, t) %}"},
    {"map", "{% set map = dict(range(1000)|map('string')|batch(2)|list) %}"},
    {"keys", "{% set keys = {'a' * 16384: 1, 'a' * 8192 ~ 'b': [1]} %}"},
    {"range", "{% set range = range(90000) %}"},
    {"huge", "{% set huge = 9000000000000000000 %}"},
    {"million", "{% set million = 1000000 %}"},
    {"one", "{% set one = 1 %}"},
    {"real", "{% set real = 1e300 %}"},
    {"nothing", "{% set nothing = none %}"},
};

#define OPERANDS KVA_COUNT_OF(operands)

static unsigned expressions;

/* Work and steps of a rendering. */
static void render(const char *source, uint64_t steps_max, uint64_t bound, uint64_t *ret_work,
                   uint64_t *ret_steps)
{
    struct kva_template *tmpl;
    struct kva_template_limits limits;
    struct kva_template_control control = {.steps = 0};
    struct kva_template_input input = {.bos_token = "<s>", .control = &control};
    struct kva_err err = {.status = KVA_OK};
    struct kva_buf out;
    kva_template_limits_default(&limits);
    if (steps_max)
        limits.steps_max = steps_max;
    if (kva_template_compile(source, strlen(source), &tmpl, &err))
        fail_msg("%s: %s", source, err.message);
    kva_buf_init(&out, (size_t)1 << 26);
    current = source;
    work = 0;
    work_max = bound;
    enum kva_status status = kva_template_render(tmpl, &input, &limits, &out, &err);
    work_max = UINT64_MAX;
    *ret_work = work;
    *ret_steps = control.steps;
    if (status && status != KVA_EINVAL)
        fail_msg("%s: %s", source, err.message);
    kva_buf_finish(&out);
    kva_template_destroy(tmpl);
}

/* What the operands take, found once for each pair. */
static void making(const struct operand *a, const struct operand *b, const char *setup,
                   uint64_t *ret_work, uint64_t *ret_steps)
{
    static uint64_t known[OPERANDS][OPERANDS + 1][2];
    uint64_t *found = known[a - operands][b ? (size_t)(b - operands) : OPERANDS];
    if (found[1] == 0)
        render(setup, 0, UINT64_MAX, &found[0], &found[1]);
    *ret_work = found[0];
    *ret_steps = found[1];
}

/* `statement` beside the same operands without it. */
static void check(const struct operand *a, const struct operand *b, const char *statement)
{
    char setup[2048], source[4096];
    uint64_t made_work, made_steps, done_work, done_steps;
    snprintf(setup, sizeof(setup), "{%% set tail = '' %%}%s%s", a->source,
             b && b != a ? b->source : "");
    snprintf(source, sizeof(source), "%s%s", setup, statement);
    making(a, b, setup, &made_work, &made_steps);
    uint64_t left = made_steps + STEPS_LEFT;
    render(source, left, made_work + STEPS_LEFT * WORK_PER_STEP + WORK_BESIDE, &done_work,
           &done_steps);
    assert_true(done_steps <= left);
    /* What is in proportion to these is to twenty million. */
    left = made_steps + 200000;
    render(source, left, made_work + (left - made_steps) * WORK_PER_STEP + WORK_BESIDE, &done_work,
           &done_steps);
    uint64_t bound = made_work + (done_steps - made_steps) * WORK_PER_STEP + WORK_BESIDE;
    if (done_work > bound)
        fail_msg("%s: %llu of work for %llu steps", statement,
                 (unsigned long long)(done_work - made_work),
                 (unsigned long long)(done_steps - made_steps));
    expressions++;
}

static uint32_t param_count(const struct kva_tpl_builtin *builtin)
{
    uint32_t count = 0;
    if (!builtin->params)
        return 2;
    for (const char *at = builtin->params; *at; at += strcspn(at, " "), at += *at == ' ')
        count++;
    return count;
}

/* One builtin on one operand: without arguments, and with each other operand as the first, or
 * second, of its arguments. `form` has the operand, the name and the arguments. */
static void check_builtin(const struct kva_tpl_builtin *builtin, const struct operand *self,
                          const char *form)
{
    char statement[512], args[256];
    uint32_t params = param_count(builtin);
    if (!builtin->fn)
        return;
    snprintf(statement, sizeof(statement), form, self->name, builtin->name, "");
    if (builtin->required == 0)
        check(self, NULL, statement);
    for (size_t i = 0; i < OPERANDS && params > 0; i++) {
        snprintf(args, sizeof(args), "%s%s", operands[i].name,
                 builtin->required > 1 ? ", 'bb'" : "");
        snprintf(statement, sizeof(statement), form, self->name, builtin->name, args);
        check(self, &operands[i], statement);
        /* The second argument: a quarter of the pairs, another for each operand. */
        if (params < 2 || (i + (size_t)(self - operands)) % 4 != 0)
            continue;
        snprintf(args, sizeof(args), "%s, %s", builtin->required > 1 ? "'a'" : "1",
                 operands[i].name);
        snprintf(statement, sizeof(statement), form, self->name, builtin->name, args);
        check(self, &operands[i], statement);
    }
}

static bool is_text(const struct operand *operand)
{
    return strstr(operand->source, " = '") != NULL;
}

/* --- tests ----------------------------------------------------------------------------------- */

static void check_filters(const struct kva_tpl_table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        for (size_t self = 0; self < OPERANDS; self++)
            check_builtin(&table->items[i], &operands[self], "{{ (%s|%s(%s))|length }}");
    }
}

static void test_work__filters(void **state KVA_UNUSED)
{
    check_filters(&kva_tpl_text_filters);
    check_filters(&kva_tpl_sequence_filters);
    check_filters(&kva_tpl_select_filters);
    check_filters(&kva_tpl_number_filters);
    check_filters(&kva_tpl_json_filters);
}

static void test_work__tests(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < kva_tpl_tests.count; i++) {
        char form[64];
        const char *name = kva_tpl_tests.items[i].name;
        /* Signs are not names: they are used by name in `select`. */
        bool is_name = name[0] >= 'a' && name[0] <= 'z';
        snprintf(form, sizeof(form), "%s",
                 is_name ? "{{ %s is %s(%s) }}" : "{{ [%s]|select('%s', %s)|list|length }}");
        for (size_t self = 0; self < OPERANDS; self++)
            check_builtin(&kva_tpl_tests.items[i], &operands[self], form);
    }
}

static void check_methods(const struct kva_tpl_table *table, const char *const *names)
{
    for (size_t i = 0; i < table->count; i++) {
        for (size_t self = 0; self < OPERANDS; self++) {
            bool fits = names ? false : is_text(&operands[self]);
            for (size_t j = 0; names && names[j]; j++)
                fits |= strcmp(names[j], operands[self].name) == 0;
            if (fits)
                check_builtin(&table->items[i], &operands[self], "{{ %s.%s(%s) }}");
        }
    }
}

static void test_work__methods(void **state KVA_UNUSED)
{
    static const char *const lists[] = {"list", "texts", "floats", "numbers", "tree", NULL};
    static const char *const dicts[] = {"map", "keys", NULL};
    check_methods(&kva_tpl_string_methods, NULL);
    check_methods(&kva_tpl_search_methods, NULL);
    check_methods(&kva_tpl_list_methods, lists);
    check_methods(&kva_tpl_dict_methods, dicts);
}

static void test_work__functions(void **state KVA_UNUSED)
{
    for (size_t i = 0; i < kva_tpl_functions.count; i++) {
        for (size_t j = 0; j < OPERANDS; j++) {
            char statement[256];
            snprintf(statement, sizeof(statement), "{{ %s(%s) }}", kva_tpl_functions.items[i].name,
                     operands[j].name);
            /* The operand of this name hides the function. */
            if (strcmp(operands[j].name, kva_tpl_functions.items[i].name) != 0)
                check(&operands[j], NULL, statement);
        }
    }
}

static void test_work__operators(void **state KVA_UNUSED)
{
    static const char *const forms[] = {
        "{{ %s + %s }}",
        "{{ %s - %s }}",
        "{{ %s * %s }}",
        "{{ %s / %s }}",
        "{{ %s // %s }}",
        "{{ %s %% %s }}",
        "{{ %s ** %s }}",
        "{{ %s ~ %s }}",
        "{{ %s == %s }}",
        "{{ %s < %s }}",
        "{{ %s <= %s }}",
        "{{ %s in %s }}",
        "{{ %s not in %s }}",
        "{{ %s[%s] }}",
        "{{ %s[%s:] }}",
        "{{ {%s: 1}[%s] }}",
        "{{ [%s, 1] == [%s, 2] }}",
        "{{ [%s, 1] < [%s, 2] }}",
        "{{ (%s, 1) in {(%s, 1): 1} }}",
        "{{ %s|map(attribute=%s)|list|length }}",
        "{{ %s|select('equalto', %s)|list|length }}",
        "{{ %s|map('replace', 'a', %s)|list|length }}",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(forms); i++) {
        for (size_t a = 0; a < OPERANDS; a++) {
            for (size_t b = 0; b < OPERANDS; b++) {
                char statement[256];
                /* The compiler cannot check a format that is one of a list. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                snprintf(statement, sizeof(statement), forms[i], operands[a].name,
                         operands[b].name);
#pragma GCC diagnostic pop
                check(&operands[a], &operands[b], statement);
            }
        }
    }
}

/* Statements with one operand, X. */
static void test_work__statements(void **state KVA_UNUSED)
{
    static const char *const forms[] = {
        "{{ X }}",
        "{{ [X, X, X] }}",
        "{{ [X, X, X]|tojson(indent=X) }}",
        "{{ {'a': {'b': [1, 2, 3]}}|tojson(separators=(X, X)) }}",
        "{{ X.nothing }}{{ X|string|length }}",
        "{{ not X }}{{ X and 1 }}{{ 1 if X else 2 }}",
        "{{ X[::-1]|length }}{{ X[::3]|length }}{{ X[1:9]|length }}{{ X[-1] }}",
        "{% for i in X %}{% endfor %}",
        "{% for i in X if i == X %}{% endfor %}",
        "{% for a, b in X %}{% endfor %}",
        "{% set a, b = X %}",
        "{% set a %}{{ X }}{{ X }}{% endset %}{{ a|length }}",
        "{% filter upper %}{{ X }}{% endfilter %}",
        "{% with a = X, b = X %}{{ a }}{% endwith %}",
        "{% macro m(a, b, c) %}{{ a }}{{ kwargs }}{{ varargs }}{% endmacro %}{{ m(*X) }}",
        "{% macro m(a, b, c) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(**X) }}",
        "{% macro m(p1, p2, p3, p4, p5, p6, p7, p8, p9) %}{% endmacro %}"
        "{% for i in range(1000) %}{{ m(**X) }}{% endfor %}",
        "{% macro m() %}{{ caller(X) }}{% endmacro %}{% call(v) m() %}{{ v }}{% endcall %}",
        "{% for i in [1, 2, 3] %}{{ loop.changed(X) }}{{ loop.cycle(X, X) }}{% endfor %}",
        "{% for i in [X, X, X] recursive %}{{ loop.index }}{{ loop(X) if loop.first }}{% endfor %}",
        "{% set n = namespace(a=X) %}{% set n.b = [n.a, n.a] %}{{ n }}",
        "{{ dict(X)|length }}{{ dict(**X)|length }}",
        "{{ '{a}{b}{c}'.format(**X) }}",
        "{{ '{0}{1}{0!r:>1000}'.format(X, X) }}{{ '%s %r' % (X, X) }}{{ '%(a)s' % X }}",
        "{{ '{:1000.1000f}'.format(1e300) * 10 }}{{ '%1000.1000f' % 1e300 }}",
        "{{ ('%' ~ X) % 1 }}{{ ('%(' ~ X) % {'a': 1} }}",
        "{{ ('{' ~ X ~ '}').format(1) }}",
        "{{ ('{0:>1000}' * 300).format(X)|length }}{{ (('%(a)1000s' * 300) % {'a': X})|length }}",
        "{{ X is filter }}{{ X is test }}{{ [1]|map(X)|list }}",
        "{{ ([X] * 1000)|join(X)|length }}",
        "{{ ([X] * 1000)|unique|list|length }}",
        "{{ ([X] * 1000)|sort|length }}",
        "{{ ([X] * 1000)|groupby(0)|length }}",
        "{{ ([X] * 1000)|sum(start='')|length }}",
        "{{ ([X] * 1000)|map('tojson')|list|length }}",
        "{{ [[1, 2], [3, 4]]|map(attribute=X)|list|length }}",
        "{{ raise_exception(X) }}",
        "{{ strftime_now('%c' * 500) }}{{ strftime_now(X) }}",
        "{{ undefined_name[X] }}{{ {}[X] }}{{ {}[X].more }}",
        "{{ X(X) }}",
        "{{ X.rsplit('aa') }}{{ X.rsplit(X) }}{{ X.split('aa')|length }}",
        "{{ X.replace('a', X) }}{{ X.replace('', X) }}",
        "{{ X.strip('a') }}{{ X.strip(X) }}",
        "{{ X.startswith((X, X, X)) }}{{ X.startswith((X,) * 1000) }}",
        "{{ X.find('b', 9000) }}{{ X.rfind('b', 1, 9000) }}{{ X.count('aa', 5) }}",
        "{% for i in range(100) %}{% set v = X %}{% for j in range(10) %}{{ v|length }}"
        "{% endfor %}{% endfor %}",
    };
    for (size_t i = 0; i < KVA_COUNT_OF(forms); i++) {
        for (size_t a = 0; a < OPERANDS; a++) {
            char statement[1024];
            size_t at = 0;
            for (const char *c = forms[i]; *c; c++)
                at += (size_t)snprintf(statement + at, sizeof(statement) - at, "%.*s",
                                       *c == 'X' ? 20 : 1, *c == 'X' ? operands[a].name : c);
            check(&operands[a], NULL, statement);
        }
    }
}

/* Names are found by going through the blocks around them. */
static void test_work__names(void **state KVA_UNUSED)
{
    static char source[65536];
    size_t at = 0;
    uint64_t done_work, done_steps;
    for (int i = 0; i < 40; i++) {
        at += (size_t)snprintf(source + at, sizeof(source) - at, "{%% for i%d in [1] %%}", i);
        for (int j = 0; j < 20; j++)
            at +=
                (size_t)snprintf(source + at, sizeof(source) - at, "{%% set v%d_%d = 1 %%}", i, j);
    }
    at += (size_t)snprintf(source + at, sizeof(source) - at,
                           "{%% for a in range(1000) %%}{{ bos_token }}{%% endfor %%}");
    for (int i = 0; i < 40; i++)
        at += (size_t)snprintf(source + at, sizeof(source) - at, "{%% endfor %%}");
    render(source, 0, UINT64_MAX, &done_work, &done_steps);
    assert_true(done_work <= done_steps * WORK_PER_STEP + WORK_BESIDE);
    assert_true(done_steps > 1000 * 40 * 20 / 4);
}

/* Each parameter of a macro is looked for among the named arguments. */
static void test_work__named_arguments(void **state KVA_UNUSED)
{
    static char source[65536];
    size_t at = 0;
    uint64_t done_work, done_steps;
    at += (size_t)snprintf(source, sizeof(source), "{%% macro m(");
    for (int i = 0; i < 900; i++)
        at +=
            (size_t)snprintf(source + at, sizeof(source) - at, "%sparameter_%d", i ? ", " : "", i);
    snprintf(source + at, sizeof(source) - at,
             ") %%}{%% endmacro %%}{{ m(**dict(range(20000)|map('string')|batch(2)|list)) }}");
    render(source, 0, UINT64_MAX, &done_work, &done_steps);
    assert_true(done_work <= done_steps * WORK_PER_STEP / 4);
    assert_true(done_steps > 900 * 10000 / 4);
}

static int teardown(void **state KVA_UNUSED)
{
    printf("%u expressions\n", expressions);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work__statements), cmocka_unit_test(test_work__methods),
        cmocka_unit_test(test_work__operators),  cmocka_unit_test(test_work__filters),
        cmocka_unit_test(test_work__tests),      cmocka_unit_test(test_work__functions),
        cmocka_unit_test(test_work__names),      cmocka_unit_test(test_work__named_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
