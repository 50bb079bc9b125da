/* Integers, bits, predicates. */
#include "forms.h"

#include <algorithm>
#include <type_traits>

namespace ptx
{

template <typename T> using unsigned_of = std::make_unsigned_t<T>;

template <typename T> struct wide_of;
template <> struct wide_of<uint16_t> {
    typedef uint32_t type;
};
template <> struct wide_of<int16_t> {
    typedef int32_t type;
};
template <> struct wide_of<uint32_t> {
    typedef uint64_t type;
};
template <> struct wide_of<int32_t> {
    typedef int64_t type;
};
template <> struct wide_of<uint64_t> {
    typedef unsigned __int128 type;
};
template <> struct wide_of<int64_t> {
    typedef __int128 type;
};

template <typename T> T quotient(T a, T b)
{
    if (b == 0)
        return (T) ~(T)0;
    return std::is_signed_v<T> && b == (T)-1 ? (T)(0 - (unsigned_of<T>)a) : (T)(a / b);
}

template <typename T> T remainder_of(T a, T b)
{
    if (b == 0)
        return a;
    return std::is_signed_v<T> && b == (T)-1 ? 0 : (T)(a % b);
}

/* Shifts by the width and more. */
template <typename T> T shift_left(T a, uint32_t by)
{
    return by < 8 * sizeof(T) ? (T)(a << by) : (T)0;
}

template <typename T> T shift_right(T a, uint32_t by)
{
    const uint32_t width = 8 * sizeof(T);
    return by < width ? (T)(a >> by) : std::is_signed_v<T> && a < 0 ? (T)-1 : (T)0;
}

template <typename T> T extract_bits(T a, uint32_t at, uint32_t length)
{
    typedef unsigned_of<T> U;
    const uint32_t width = 8 * sizeof(T);
    at &= 0xFF, length &= 0xFF;
    if (length == 0)
        return 0;
    bool negative = std::is_signed_v<T> && ((U)a >> std::min(at + length - 1, width - 1) & 1);
    U bits = at < width ? (U)((U)a >> at) : (U)0;
    uint32_t there = at < width ? std::min(length, width - at) : 0;
    U mask = there < width ? (U)(((U)1 << there) - 1) : (U) ~(U)0;
    return (T)((bits & mask) | (negative ? (U)~mask : (U)0));
}

template <typename T> T insert_bits(T a, T b, uint32_t at, uint32_t length)
{
    const uint32_t width = 8 * sizeof(T);
    at &= 0xFF, length &= 0xFF;
    if (at >= width || length == 0)
        return b;
    T mask = length < width ? (T)(((T)1 << length) - 1) : (T) ~(T)0;
    mask = (T)(mask << at);
    return (T)((b & ~mask) | ((T)(a << at) & mask));
}

static uint32_t permute(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (unsigned i = 0; i < 4; i++) {
        uint32_t which = selector >> 4 * i & 15;
        uint32_t byte = (uint32_t)(bytes >> 8 * (which & 7)) & 0xFF;
        if (which & 8)
            byte = byte & 0x80 ? 0xFF : 0;
        result |= byte << 8 * i;
    }
    return result;
}

static uint32_t look_up(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t result = 0;
    for (unsigned i = 0; i < 8; i++) {
        if (table >> i & 1)
            result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return result;
}

template <typename A, typename B> uint32_t dot4(uint32_t a, uint32_t b, uint32_t c)
{
    for (unsigned i = 0; i < 4; i++)
        c += (uint32_t)((int32_t)(A)(a >> 8 * i) * (int32_t)(B)(b >> 8 * i));
    return c;
}

template <bool left, bool wrap> uint32_t funnel(uint32_t low, uint32_t high, uint32_t by)
{
    by = wrap ? by & 31 : std::min(by, 32u);
    uint64_t both = (uint64_t)high << 32 | low;
    return left ? (uint32_t)(both << by >> 32) : (uint32_t)(both >> by);
}

/* What the compiler calls by the type's sign. */
template <typename T> void add_signed_forms(form_table &table, const std::string &type)
{
    typedef typename wide_of<T>::type W;
    table["div." + type] = lanewise_form<quotient<T>, T, T, T>();
    table["rem." + type] = lanewise_form<remainder_of<T>, T, T, T>();
    table["min." + type] = lanewise_form<[](T a, T b) { return std::min(a, b); }, T, T, T>();
    table["max." + type] = lanewise_form<[](T a, T b) { return std::max(a, b); }, T, T, T>();
    table["shr." + type] = lanewise_form<shift_right<T>, T, T, uint32_t>();
    table["mul.hi." + type] =
        lanewise_form<[](T a, T b) { return (T)((W)a * (W)b >> 8 * sizeof(T)); }, T, T, T>();
    table["mad.hi." + type] =
        lanewise_form<[](T a, T b, T c) { return (T)(((W)a * (W)b >> 8 * sizeof(T)) + c); }, T, T,
                      T, T>();
    if constexpr (sizeof(T) < 8) {
        table["mul.wide." + type] =
            lanewise_form<[](T a, T b) { return (W)((W)a * (W)b); }, W, T, T>();
        table["mad.wide." + type] = lanewise_form<[](T a, T b, W c) {
            return (W)((unsigned_of<W>)((W)a * (W)b) + (unsigned_of<W>)c);
        },
                                                  W, T, T, W>();
    }
    if constexpr (sizeof(T) > 2)
        table["bfe." + type] = lanewise_form<extract_bits<T>, T, T, uint32_t, uint32_t>();
}

/* The same bits for either sign. */
template <typename T> void add_plain_forms(form_table &table, const std::string &type)
{
    table["add." + type] = lanewise_form<[](T a, T b) { return (T)(a + b); }, T, T, T>();
    table["sub." + type] = lanewise_form<[](T a, T b) { return (T)(a - b); }, T, T, T>();
    table["mul.lo." + type] =
        lanewise_form<[](T a, T b) { return (T)((uint64_t)a * b); }, T, T, T>();
    table["mad.lo." + type] =
        lanewise_form<[](T a, T b, T c) { return (T)((uint64_t)a * b + c); }, T, T, T, T>();
    table["neg." + type] = lanewise_form<[](T a) { return (T)(0 - a); }, T, T>();
    table["mov." + type] = lanewise_form<[](T a) { return a; }, T, T>();
}

template <typename T> void add_bit_forms(form_table &table, const std::string &type)
{
    table["and." + type] = lanewise_form<[](T a, T b) { return (T)(a & b); }, T, T, T>();
    table["or." + type] = lanewise_form<[](T a, T b) { return (T)(a | b); }, T, T, T>();
    table["xor." + type] = lanewise_form<[](T a, T b) { return (T)(a ^ b); }, T, T, T>();
    table["not." + type] = lanewise_form<[](T a) { return (T)~a; }, T, T>();
    table["shl." + type] = lanewise_form<shift_left<T>, T, T, uint32_t>();
    table["shr." + type] = lanewise_form<shift_right<T>, T, T, uint32_t>();
    table["mov." + type] = lanewise_form<[](T a) { return a; }, T, T>();
    if constexpr (sizeof(T) > 2)
        table["bfi." + type] = lanewise_form<insert_bits<T>, T, T, T, uint32_t, uint32_t>();
}

static void add_counting_forms(form_table &table)
{
    typedef uint32_t u32;
    typedef uint64_t u64;
    table["popc.b32"] = lanewise_form<[](u32 a) { return (u32)__builtin_popcount(a); }, u32, u32>();
    table["popc.b64"] =
        lanewise_form<[](u64 a) { return (u32)__builtin_popcountll(a); }, u32, u64>();
    table["clz.b32"] =
        lanewise_form<[](u32 a) { return a ? (u32)__builtin_clz(a) : 32u; }, u32, u32>();
    table["clz.b64"] =
        lanewise_form<[](u64 a) { return a ? (u32)__builtin_clzll(a) : 64u; }, u32, u64>();
    table["brev.b32"] = lanewise_form<[](u32 a) {
        u32 result = 0;
        for (unsigned i = 0; i < 32; i++)
            result |= (a >> i & 1) << (31 - i);
        return result;
    },
                                      u32, u32>();
    table["bfind.u32"] =
        lanewise_form<[](u32 a) { return a ? 31u - (u32)__builtin_clz(a) : ~0u; }, u32, u32>();
}

void add_integer_forms(form_table &table)
{
    add_bit_forms<uint16_t>(table, "b16");
    add_bit_forms<uint32_t>(table, "b32");
    add_bit_forms<uint64_t>(table, "b64");
    for (const char *type : {"s16", "u16"})
        add_plain_forms<uint16_t>(table, type);
    for (const char *type : {"s32", "u32"})
        add_plain_forms<uint32_t>(table, type);
    for (const char *type : {"s64", "u64"})
        add_plain_forms<uint64_t>(table, type);
    add_signed_forms<int16_t>(table, "s16");
    add_signed_forms<uint16_t>(table, "u16");
    add_signed_forms<int32_t>(table, "s32");
    add_signed_forms<uint32_t>(table, "u32");
    add_signed_forms<int64_t>(table, "s64");
    add_signed_forms<uint64_t>(table, "u64");
    add_counting_forms(table);
    typedef uint32_t u32;
    table["abs.s32"] = lanewise_form<[](int32_t a) { return (u32)(a < 0 ? 0u - (u32)a : (u32)a); },
                                     u32, int32_t>();
    table["abs.s64"] =
        lanewise_form<[](int64_t a) { return a < 0 ? 0 - (uint64_t)a : (uint64_t)a; }, uint64_t,
                      int64_t>();
    table["prmt.b32"] = lanewise_form<permute, u32, u32, u32, u32>();
    table["lop3.b32"] = lanewise_form<look_up, u32, u32, u32, u32, u32>();
    table["dp4a.u32.u32"] = lanewise_form<dot4<uint8_t, uint8_t>, u32, u32, u32, u32>();
    table["dp4a.s32.s32"] = lanewise_form<dot4<int8_t, int8_t>, u32, u32, u32, u32>();
    table["dp4a.u32.s32"] = lanewise_form<dot4<uint8_t, int8_t>, u32, u32, u32, u32>();
    table["dp4a.s32.u32"] = lanewise_form<dot4<int8_t, uint8_t>, u32, u32, u32, u32>();
    table["shf.l.wrap.b32"] = lanewise_form<funnel<true, true>, u32, u32, u32, u32>();
    table["shf.l.clamp.b32"] = lanewise_form<funnel<true, false>, u32, u32, u32, u32>();
    table["shf.r.wrap.b32"] = lanewise_form<funnel<false, true>, u32, u32, u32, u32>();
    table["shf.r.clamp.b32"] = lanewise_form<funnel<false, false>, u32, u32, u32, u32>();
}

/* --- comparisons ------------------------------------------------------------------------------ */

void finish_comparison(warp &w, const instr &i, lane_mask mask, lane_mask result, lane_mask known)
{
    lane_mask opposite = ~result;
    unsigned next = 3;
    if (i.aux & 3) {
        operand third = i.ops[next++];
        lane_mask other = i.aux & COMPARE_NOT_THIRD ? ~w.predicate(third) : w.predicate(third);
        auto combine = [&](lane_mask a) {
            return (i.aux & 3) == COMPARE_AND  ? a & other
                   : (i.aux & 3) == COMPARE_OR ? a | other
                                               : a ^ other;
        };
        result = combine(result);
        opposite = combine(opposite);
        known &= w.known(third);
    }
    w.set_predicate(i.ops[0], mask, result, known);
    if (i.aux & COMPARE_SECOND)
        w.set_predicate(i.ops[next], mask, opposite, known);
}

template <typename T> static instr_run *comparison_of(std::string_view name)
{
    if (name == "eq")
        return compare<[](T a, T b) { return a == b; }, T>;
    if (name == "ne")
        return compare<[](T a, T b) { return a != b; }, T>;
    if (name == "lt" || name == "lo")
        return compare<[](T a, T b) { return a < b; }, T>;
    if (name == "le" || name == "ls")
        return compare<[](T a, T b) { return a <= b; }, T>;
    if (name == "gt" || name == "hi")
        return compare<[](T a, T b) { return (a > b); }, T>;
    if (name == "ge" || name == "hs")
        return compare<[](T a, T b) { return a >= b; }, T>;
    return nullptr;
}

instr_run *integer_comparison(std::string_view name, std::string_view type)
{
    if (type == "s16")
        return comparison_of<int16_t>(name);
    if (type == "s32")
        return comparison_of<int32_t>(name);
    if (type == "s64")
        return comparison_of<int64_t>(name);
    if (type == "u16" || type == "b16")
        return comparison_of<uint16_t>(name);
    if (type == "u32" || type == "b32")
        return comparison_of<uint32_t>(name);
    if (type == "u64" || type == "b64")
        return comparison_of<uint64_t>(name);
    return nullptr;
}

/* --- predicates, choices, parts --------------------------------------------------------------- */

template <typename T> static void choose(warp &w, const instr &i, lane_mask mask)
{
    T *to = w.lanes<T>(i.ops[0]);
    const T *a = w.lanes<T>(i.ops[1]), *b = w.lanes<T>(i.ops[2]);
    lane_mask take = w.predicate(i.ops[3]);
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        to[lane] = take >> lane & 1 ? a[lane] : b[lane];
    }
    lane_mask known = (w.known(i.ops[1]) & take) | (w.known(i.ops[2]) & ~take);
    w.define(i.ops[0], mask, known & w.known(i.ops[3]));
}

instr_run *select_form(size_t bytes)
{
    return bytes == 2 ? choose<uint16_t> : bytes == 4 ? choose<uint32_t> : choose<uint64_t>;
}

/* An operand that decides alone makes the other one's value irrelevant. */
static void predicates_and(warp &w, const instr &i, lane_mask mask)
{
    lane_mask a = w.predicate(i.ops[1]), b = w.predicate(i.ops[2]);
    lane_mask a_known = w.known(i.ops[1]), b_known = w.known(i.ops[2]);
    w.set_predicate(i.ops[0], mask, a & b, (a_known & b_known) | (a_known & ~a) | (b_known & ~b));
}

static void predicates_or(warp &w, const instr &i, lane_mask mask)
{
    lane_mask a = w.predicate(i.ops[1]), b = w.predicate(i.ops[2]);
    lane_mask a_known = w.known(i.ops[1]), b_known = w.known(i.ops[2]);
    w.set_predicate(i.ops[0], mask, a | b, (a_known & b_known) | (a_known & a) | (b_known & b));
}

static void predicates_xor(warp &w, const instr &i, lane_mask mask)
{
    w.set_predicate(i.ops[0], mask, w.predicate(i.ops[1]) ^ w.predicate(i.ops[2]),
                    w.known(i.ops[1]) & w.known(i.ops[2]));
}

static void predicate_not(warp &w, const instr &i, lane_mask mask)
{
    w.set_predicate(i.ops[0], mask, ~w.predicate(i.ops[1]), w.known(i.ops[1]));
}

static void predicate_move(warp &w, const instr &i, lane_mask mask)
{
    w.set_predicate(i.ops[0], mask, w.predicate(i.ops[1]), w.known(i.ops[1]));
}

instr_run *predicate_form(std::string_view operation)
{
    return operation == "and"   ? predicates_and
           : operation == "or"  ? predicates_or
           : operation == "xor" ? predicates_xor
           : operation == "not" ? predicate_not
           : operation == "mov" ? predicate_move
                                : nullptr;
}

/* ops: parts, whole. */
void unpack_parts(warp &w, const instr &i, lane_mask mask)
{
    operand whole = i.ops[i.count];
    for (unsigned part = 0; part < i.count; part++) {
        operand to = i.ops[part];
        if (to.number == NO_REGISTER)
            continue;
        for (lane_mask rest = mask; rest; rest &= rest - 1) {
            unsigned lane = (unsigned)__builtin_ctz(rest);
            memcpy(w.registers + to.at + lane * i.aux,
                   w.registers + whole.at + (lane * i.count + part) * i.aux, i.aux);
        }
        w.define(to, mask, w.known(whole));
    }
}

/* ops: whole, parts. The upper half may be nothing, where only the lower one is used. */
void pack_parts(warp &w, const instr &i, lane_mask mask)
{
    lane_mask known = ALL_LANES, low = ALL_LANES;
    for (unsigned part = 0; part < i.count; part++) {
        operand from = i.ops[1 + part];
        for (lane_mask rest = mask; rest; rest &= rest - 1) {
            unsigned lane = (unsigned)__builtin_ctz(rest);
            memcpy(w.registers + i.ops[0].at + (lane * i.count + part) * i.aux,
                   w.registers + from.at + lane * i.aux, i.aux);
        }
        known &= w.known(from);
        if (part < i.count / 2)
            low &= w.known(from);
    }
    w.define(i.ops[0], mask, known);
    uint32_t &low_defined = w.low_defined[i.ops[0].number];
    low_defined = (low_defined & ~mask) | (low & mask);
}

const form_table &table_of_forms()
{
    static const form_table table = [] {
        form_table all;
        add_integer_forms(all);
        add_real_forms(all);
        add_conversion_forms(all);
        return all;
    }();
    return table;
}

} // namespace ptx
