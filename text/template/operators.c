/* operators.c - arithmetic and comparison operators. */
#include "text/template/builtins.h"

#include <math.h>
#include <string.h>

static const char *const op_signs[] = {
    [KVA_TPL_OP_ADD] = "+",  [KVA_TPL_OP_SUB] = "-",       [KVA_TPL_OP_MUL] = "*",
    [KVA_TPL_OP_DIV] = "/",  [KVA_TPL_OP_FLOORDIV] = "//", [KVA_TPL_OP_MOD] = "%",
    [KVA_TPL_OP_POW] = "**", [KVA_TPL_OP_EQ] = "==",       [KVA_TPL_OP_NE] = "!=",
    [KVA_TPL_OP_LT] = "<",   [KVA_TPL_OP_LE] = "<=",       [KVA_TPL_OP_GT] = ">",
    [KVA_TPL_OP_GE] = ">=",
};

static enum kva_status fail_types(struct kva_tpl_run *run, enum kva_tpl_op op,
                                  const struct kva_tpl_value *a, const struct kva_tpl_value *b)
{
    return kva_tpl_fail(run, "unsupported operand type(s) for %s: '%s' and '%s'", op_signs[op],
                        kva_tpl_type_name(a), kva_tpl_type_name(b));
}

static enum kva_status power_of_integers(struct kva_tpl_run *run, int64_t base, int64_t exponent,
                                         struct kva_tpl_value *ret)
{
    int64_t result = 1;
    bool overflow = false;
    while (exponent > 0 && !overflow) {
        if (exponent & 1)
            overflow = __builtin_mul_overflow(result, base, &result);
        exponent >>= 1;
        /* The last square is not needed, and may overflow. */
        if (exponent > 0)
            overflow |= __builtin_mul_overflow(base, base, &base);
    }
    if (overflow)
        return kva_tpl_fail(run, "integer overflow: the result of ** does not fit into 64 bits");
    *ret = kva_tpl_int(result);
    return KVA_OK;
}

static enum kva_status integers(struct kva_tpl_run *run, enum kva_tpl_op op, int64_t a, int64_t b,
                                struct kva_tpl_value *ret)
{
    int64_t result = 0;
    bool overflow = false;
    switch (op) {
    case KVA_TPL_OP_ADD:
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case KVA_TPL_OP_SUB:
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case KVA_TPL_OP_MUL:
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case KVA_TPL_OP_POW:
        if (b < 0 && a == 0)
            return kva_tpl_fail(run, "0.0 cannot be raised to a negative power");
        if (b < 0) {
            *ret = kva_tpl_float(pow((double)a, (double)b));
            return KVA_OK;
        }
        return power_of_integers(run, a, b, ret);
    default:
        if (b == 0)
            return kva_tpl_fail(run, "%s",
                                op == KVA_TPL_OP_DIV ? "division by zero"
                                                     : "integer division or modulo by zero");
        if (op == KVA_TPL_OP_DIV) {
            *ret = kva_tpl_float((double)a / (double)b);
            return KVA_OK;
        }
        overflow = a == INT64_MIN && b == -1;
        if (overflow && op == KVA_TPL_OP_MOD) {
            *ret = kva_tpl_int(0);
            return KVA_OK;
        }
        if (!overflow) {
            /* Python rounds towards minus infinity, and the rest has the divisor's sign. */
            int64_t quotient = a / b;
            int64_t rest = a % b;
            if (rest != 0 && (rest < 0) != (b < 0)) {
                quotient--;
                rest += b;
            }
            result = op == KVA_TPL_OP_MOD ? rest : quotient;
        }
        break;
    }
    if (overflow)
        return kva_tpl_fail(run, "integer overflow: the result of %s does not fit into 64 bits",
                            op_signs[op]);
    *ret = kva_tpl_int(result);
    return KVA_OK;
}

static enum kva_status floats(struct kva_tpl_run *run, enum kva_tpl_op op, double a, double b,
                              struct kva_tpl_value *ret)
{
    double result = 0;
    if (b == 0 && (op == KVA_TPL_OP_DIV || op == KVA_TPL_OP_FLOORDIV || op == KVA_TPL_OP_MOD))
        return kva_tpl_fail(run, "%s",
                            op == KVA_TPL_OP_DIV        ? "float division by zero"
                            : op == KVA_TPL_OP_FLOORDIV ? "float floor division by zero"
                                                        : "float modulo");
    switch (op) {
    case KVA_TPL_OP_ADD:
        result = a + b;
        break;
    case KVA_TPL_OP_SUB:
        result = a - b;
        break;
    case KVA_TPL_OP_MUL:
        result = a * b;
        break;
    case KVA_TPL_OP_DIV:
        result = a / b;
        break;
    case KVA_TPL_OP_POW:
        result = pow(a, b);
        if (isnan(result) && !isnan(a) && !isnan(b))
            return kva_tpl_fail(run, "complex numbers are not supported");
        break;
    default: {
        double rest = fmod(a, b);
        double quotient = (a - rest) / b;
        if (rest != 0 && (rest < 0) != (b < 0)) {
            rest += b;
            quotient -= 1;
        }
        if (rest == 0)
            rest = copysign(0.0, b);
        /* The division is exact up to rounding: round to the whole number it means. */
        result = op == KVA_TPL_OP_MOD ? rest : floor(quotient + 0.5);
        break;
    }
    }
    *ret = kva_tpl_float(result);
    return KVA_OK;
}

/* A safe string escapes what it is joined with. */
static enum kva_status add_strings(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                                   const struct kva_tpl_value *b, struct kva_tpl_value *ret)
{
    struct kva_tpl_value left = *a;
    struct kva_tpl_value right = *b;
    bool safe = left.safe || right.safe;
    if (safe) {
        KVA_TPL_TRY(kva_tpl_escape(run, a, &left));
        KVA_TPL_TRY(kva_tpl_escape(run, b, &right));
    }
    KVA_TPL_TRY(kva_tpl_join(run, left.as.string, right.as.string, ret));
    ret->safe = safe;
    return KVA_OK;
}

static enum kva_status add_lists(struct kva_tpl_run *run, const struct kva_tpl_value *a,
                                 const struct kva_tpl_value *b, struct kva_tpl_value *ret)
{
    const struct kva_tpl_list *left = a->as.list;
    const struct kva_tpl_list *right = b->as.list;
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, left->count + right->count));
    KVA_TPL_TRY(kva_tpl_list_new(run, a->type, left->count + right->count, ret));
    struct kva_tpl_list *list = ret->as.list;
    if (left->count > 0)
        memcpy(list->items, left->items, left->count * sizeof(*list->items));
    if (right->count > 0)
        memcpy(list->items + left->count, right->items, right->count * sizeof(*list->items));
    list->count = left->count + right->count;
    return KVA_OK;
}

/* Fill `bytes` with the `unit` bytes that they begin with, in few large copies. */
static void fill(char *data, size_t unit, size_t bytes)
{
    for (size_t done = unit; done < bytes;) {
        size_t more = kva_min_size(done, bytes - done);
        memcpy(data + done, data, more);
        done += more;
    }
}

static enum kva_status repeat_string(struct kva_tpl_run *run, const struct kva_tpl_value *string,
                                     size_t times, struct kva_tpl_value *ret)
{
    const struct kva_tpl_str *text = string->as.string;
    bool safe = string->safe;
    size_t bytes;
    if (!kva_mul_size(text->length, times, &bytes))
        return kva_tpl_fail(run, "a string longer than memory");
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_BYTES, bytes));
    char *data = kva_tpl_alloc(run, bytes, 1);
    if (!data)
        return run->err->status;
    if (bytes > 0) {
        memcpy(data, text->data, text->length);
        fill(data, text->length, bytes);
    }
    KVA_TPL_TRY(kva_tpl_borrow(run, data, bytes, ret));
    ret->safe = safe;
    return KVA_OK;
}

static enum kva_status repeat_list(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                                   size_t times, struct kva_tpl_value *ret)
{
    const struct kva_tpl_list *list = value->as.list;
    size_t count;
    if (!kva_mul_size(list->count, times, &count))
        return kva_tpl_fail(run, "a list longer than memory");
    KVA_TPL_TRY(kva_tpl_charge(run, KVA_TPL_ITEMS, count));
    KVA_TPL_TRY(kva_tpl_list_new(run, value->type, count, ret));
    if (count > 0) {
        memcpy(ret->as.list->items, list->items, list->count * sizeof(*list->items));
        fill((char *)ret->as.list->items, list->count * sizeof(*list->items),
             count * sizeof(*list->items));
    }
    ret->as.list->count = count;
    return KVA_OK;
}

static enum kva_status repeat(struct kva_tpl_run *run, const struct kva_tpl_value *value,
                              const struct kva_tpl_value *times, struct kva_tpl_value *ret)
{
    int64_t count = kva_tpl_as_integer(times);
    size_t repeats = count > 0 ? (size_t)count : 0;
    if (value->type == KVA_TPL_STRING)
        return repeat_string(run, value, repeats, ret);
    return repeat_list(run, value, repeats, ret);
}

static bool can_repeat(const struct kva_tpl_value *value)
{
    return value->type == KVA_TPL_STRING || kva_tpl_is_sequence(value);
}

static enum kva_status arithmetic(struct kva_tpl_run *run, enum kva_tpl_op op,
                                  const struct kva_tpl_value *a, const struct kva_tpl_value *b,
                                  struct kva_tpl_value *ret)
{
    if (kva_tpl_is_number(a) && kva_tpl_is_number(b)) {
        if (a->type == KVA_TPL_FLOAT || b->type == KVA_TPL_FLOAT)
            return floats(run, op, kva_tpl_as_number(a), kva_tpl_as_number(b), ret);
        return integers(run, op, kva_tpl_as_integer(a), kva_tpl_as_integer(b), ret);
    }
    if (op == KVA_TPL_OP_MOD && a->type == KVA_TPL_STRING) {
        bool safe = a->safe;
        KVA_TPL_TRY(kva_tpl_percent(run, a->as.string, b, ret));
        ret->safe = safe;
        return KVA_OK;
    }
    if (a->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, a);
    if (b->type == KVA_TPL_UNDEFINED)
        return kva_tpl_fail_undefined(run, b);
    if (op == KVA_TPL_OP_ADD && a->type == KVA_TPL_STRING && b->type == KVA_TPL_STRING)
        return add_strings(run, a, b, ret);
    if (op == KVA_TPL_OP_ADD && a->type == b->type && kva_tpl_is_sequence(a))
        return add_lists(run, a, b, ret);
    if (op == KVA_TPL_OP_MUL && can_repeat(a) && kva_tpl_is_integer(b))
        return repeat(run, a, b, ret);
    if (op == KVA_TPL_OP_MUL && can_repeat(b) && kva_tpl_is_integer(a))
        return repeat(run, b, a, ret);
    if (op == KVA_TPL_OP_ADD && a->type == KVA_TPL_STRING)
        return kva_tpl_fail(run, "can only concatenate str (not \"%s\") to str",
                            kva_tpl_type_name(b));
    if (op == KVA_TPL_OP_ADD && kva_tpl_is_sequence(a))
        return kva_tpl_fail(run, "can only concatenate %s (not \"%s\") to %s", kva_tpl_type_name(a),
                            kva_tpl_type_name(b), kva_tpl_type_name(a));
    return fail_types(run, op, a, b);
}

static enum kva_status comparison(struct kva_tpl_run *run, enum kva_tpl_op op,
                                  const struct kva_tpl_value *a, const struct kva_tpl_value *b,
                                  bool *ret)
{
    int order;
    switch (op) {
    case KVA_TPL_OP_EQ:
        return kva_tpl_equal(run, a, b, ret);
    case KVA_TPL_OP_NE:
        KVA_TPL_TRY(kva_tpl_equal(run, a, b, ret));
        *ret = !*ret;
        return KVA_OK;
    case KVA_TPL_OP_IN:
        return kva_tpl_contains(run, b, a, ret);
    case KVA_TPL_OP_NOT_IN:
        KVA_TPL_TRY(kva_tpl_contains(run, b, a, ret));
        *ret = !*ret;
        return KVA_OK;
    default:
        KVA_TPL_TRY(kva_tpl_order(run, a, b, op_signs[op], &order));
        *ret = (op == KVA_TPL_OP_LT && order == -1) || (op == KVA_TPL_OP_GT && order == 1) ||
               (op == KVA_TPL_OP_LE && (order == -1 || order == 0)) ||
               (op == KVA_TPL_OP_GE && (order == 1 || order == 0));
        return KVA_OK;
    }
}

enum kva_status kva_tpl_binary(struct kva_tpl_run *run, enum kva_tpl_op op,
                               const struct kva_tpl_value *a, const struct kva_tpl_value *b,
                               struct kva_tpl_value *ret)
{
    if (op < KVA_TPL_OP_EQ)
        return arithmetic(run, op, a, b, ret);
    bool result = false;
    KVA_TPL_TRY(comparison(run, op, a, b, &result));
    *ret = kva_tpl_bool(result);
    return KVA_OK;
}
