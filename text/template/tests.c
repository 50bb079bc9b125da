/* tests.c - what stands behind `is`. */
#include "text/template/builtins.h"

#include "text/template/text.h"

#include <string.h>

#define TEST(name)                                                                                 \
    static enum kva_status test_##name(struct kva_tpl_run *run KVA_UNUSED,                         \
                                       const struct kva_tpl_invocation *in,                        \
                                       struct kva_tpl_value *ret)

static enum kva_status give(bool answer, struct kva_tpl_value *ret)
{
    *ret = kva_tpl_bool(answer);
    return KVA_OK;
}

TEST(defined)
{
    return give(in->self->type != KVA_TPL_UNDEFINED, ret);
}

TEST(undefined)
{
    return give(in->self->type == KVA_TPL_UNDEFINED, ret);
}

TEST(none)
{
    return give(in->self->type == KVA_TPL_NONE, ret);
}

TEST(boolean)
{
    return give(in->self->type == KVA_TPL_BOOL, ret);
}

TEST(true)
{
    return give(in->self->type == KVA_TPL_BOOL && in->self->as.boolean, ret);
}

TEST(false)
{
    return give(in->self->type == KVA_TPL_BOOL && !in->self->as.boolean, ret);
}

TEST(integer)
{
    return give(in->self->type == KVA_TPL_INT, ret);
}

TEST(float)
{
    return give(in->self->type == KVA_TPL_FLOAT, ret);
}

TEST(number)
{
    return give(kva_tpl_is_number(in->self), ret);
}

TEST(string)
{
    return give(in->self->type == KVA_TPL_STRING, ret);
}

TEST(mapping)
{
    return give(in->self->type == KVA_TPL_DICT, ret);
}

TEST(iterable)
{
    return give(kva_tpl_is_iterable(in->self) || in->self->type == KVA_TPL_LOOP, ret);
}

/* Has a length and can be indexed. Undefined has both, in Python's eyes. */
TEST(sequence)
{
    switch (in->self->type) {
    case KVA_TPL_UNDEFINED:
    case KVA_TPL_STRING:
    case KVA_TPL_LIST:
    case KVA_TPL_TUPLE:
    case KVA_TPL_DICT:
    case KVA_TPL_RANGE:
        return give(true, ret);
    default:
        return give(false, ret);
    }
}

TEST(callable)
{
    switch (in->self->type) {
    case KVA_TPL_UNDEFINED:
    case KVA_TPL_MACRO:
    case KVA_TPL_BUILTIN:
    case KVA_TPL_METHOD:
    case KVA_TPL_LOOP:
        return give(true, ret);
    default:
        return give(false, ret);
    }
}

TEST(escaped)
{
    return give(in->self->type == KVA_TPL_STRING && in->self->safe, ret);
}

/* value % number, compared with `rest`. */
static enum kva_status rest_is(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                               const struct kva_tpl_value *number, int64_t rest,
                               struct kva_tpl_value *ret)
{
    struct kva_tpl_value result;
    struct kva_tpl_value want = kva_tpl_int(rest);
    bool equal;
    KVA_TPL_TRY(kva_tpl_binary(run, KVA_TPL_OP_MOD, value, number, &result));
    KVA_TPL_TRY(kva_tpl_equal(run, &result, &want, &equal));
    return give(equal, ret);
}

TEST(odd)
{
    struct kva_tpl_value two = kva_tpl_int(2);
    return rest_is(run, in->self, &two, 1, ret);
}

TEST(even)
{
    struct kva_tpl_value two = kva_tpl_int(2);
    return rest_is(run, in->self, &two, 0, ret);
}

TEST(divisibleby)
{
    return rest_is(run, in->self, &in->args[0], 0, ret);
}

/* str.islower and str.isupper: cased characters, and all of the one case. */
static enum kva_status has_case(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                bool upper, struct kva_tpl_value *ret)
{
    struct kva_tpl_value text;
    KVA_TPL_TRY(kva_tpl_to_str(run, value, false, &text));
    const struct kva_tpl_str *string = text.as.string;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_CHARS, string->length));
    bool any = false;
    for (size_t at = 0; at < string->length;) {
        int bytes;
        uint32_t code = kva_tpl_char(string->data + at, &bytes);
        at += (size_t)bytes;
        if (upper ? kva_tpl_is_lower(code) : kva_tpl_is_upper(code))
            return give(false, ret);
        any |= upper ? kva_tpl_is_upper(code) : kva_tpl_is_lower(code);
    }
    return give(any, ret);
}

TEST(lower)
{
    return has_case(run, in->self, false, ret);
}

TEST(upper)
{
    return has_case(run, in->self, true, ret);
}

/* Identity: of the same object for what is one in Python, of the value for None and booleans. */
TEST(sameas)
{
    const struct kva_tpl_value *a = in->self;
    const struct kva_tpl_value *b = &in->args[0];
    if (a->type != b->type)
        return give(false, ret);
    switch (a->type) {
    case KVA_TPL_NONE:
        return give(true, ret);
    case KVA_TPL_BOOL:
        return give(a->as.boolean == b->as.boolean, ret);
    case KVA_TPL_INT:
        return give(a->as.integer == b->as.integer, ret);
    case KVA_TPL_FLOAT:
        return give(false, ret);
    default:
        return give(a->as.list == b->as.list, ret);
    }
}

TEST(filter)
{
    const struct kva_tpl_value *name = in->self;
    return give(name->type == KVA_TPL_STRING &&
                    kva_tpl_find_filter(name->as.string->data, name->as.string->length),
                ret);
}

TEST(test)
{
    const struct kva_tpl_value *name = in->self;
    return give(name->type == KVA_TPL_STRING &&
                    kva_tpl_find_test(name->as.string->data, name->as.string->length),
                ret);
}

#define COMPARISON(name, op)                                                                       \
    TEST(name)                                                                                     \
    {                                                                                              \
        return kva_tpl_binary(run, op, in->self, &in->args[0], ret);                               \
    }

COMPARISON(in, KVA_TPL_OP_IN)
COMPARISON(eq, KVA_TPL_OP_EQ)
COMPARISON(ne, KVA_TPL_OP_NE)
COMPARISON(lt, KVA_TPL_OP_LT)
COMPARISON(le, KVA_TPL_OP_LE)
COMPARISON(gt, KVA_TPL_OP_GT)
COMPARISON(ge, KVA_TPL_OP_GE)

static const struct kva_tpl_builtin tests[] = {
    {"defined", test_defined, "", 0},     {"none", test_none, "", 0},
    {"string", test_string, "", 0},       {"mapping", test_mapping, "", 0},
    {"sequence", test_sequence, "", 0},   {"iterable", test_iterable, "", 0},
    {"undefined", test_undefined, "", 0}, {"boolean", test_boolean, "", 0},
    {"true", test_true, "", 0},           {"false", test_false, "", 0},
    {"integer", test_integer, "", 0},     {"float", test_float, "", 0},
    {"number", test_number, "", 0},       {"odd", test_odd, "", 0},
    {"even", test_even, "", 0},           {"divisibleby", test_divisibleby, "num", 1},
    {"lower", test_lower, "", 0},         {"upper", test_upper, "", 0},
    {"callable", test_callable, "", 0},   {"sameas", test_sameas, "other", 1},
    {"escaped", test_escaped, "", 0},     {"filter", test_filter, "", 0},
    {"test", test_test, "", 0},           {"in", test_in, "seq", 1},
    {"==", test_eq, "other", 1},          {"eq", test_eq, "other", 1},
    {"equalto", test_eq, "other", 1},     {"!=", test_ne, "other", 1},
    {"ne", test_ne, "other", 1},          {"<", test_lt, "other", 1},
    {"lt", test_lt, "other", 1},          {"lessthan", test_lt, "other", 1},
    {"<=", test_le, "other", 1},          {"le", test_le, "other", 1},
    {">", test_gt, "other", 1},           {"gt", test_gt, "other", 1},
    {"greaterthan", test_gt, "other", 1}, {">=", test_ge, "other", 1},
    {"ge", test_ge, "other", 1},
};

const struct kva_tpl_table kva_tpl_tests = {tests, KVA_COUNT_OF(tests)};
