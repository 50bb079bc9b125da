/* Conversions between types. */
#include "forms.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "tests/cuda/simt/cuda_bf16.h"
#include "tests/cuda/simt/cuda_fp16.h"

namespace ptx
{

/* Integers: an element of a register that may be wider. */
template <typename D, typename S, typename R> static D integer_of(R bits)
{
    return (D)(S)bits;
}

/* Numbers with a point to integers: the nearest that there is; what is no number becomes 0. */
enum rounding { NEAREST, ZERO, DOWN, UP };

template <typename T, rounding R> static T whole(T x)
{
    return R == NEAREST ? std::nearbyint(x)
           : R == ZERO  ? std::trunc(x)
           : R == DOWN  ? std::floor(x)
                        : std::ceil(x);
}

template <typename D, typename S, rounding R> static D to_integer(S x)
{
    if (x != x)
        return 0;
    S y = whole<S, R>(x);
    if (y <= (S)std::numeric_limits<D>::min())
        return std::numeric_limits<D>::min();
    /* The largest may round up on its way to S, and is then out of D. */
    if (y >= std::ldexp((S)1, std::numeric_limits<D>::digits))
        return std::numeric_limits<D>::max();
    return (D)y;
}

template <typename D, typename S>
static void add_integers_of(form_table &table, const std::string &d, const std::string &s)
{
    table["cvt." + d + "." + s] = lanewise_form<integer_of<D, S, S>, D, S>();
}

/* Bytes lie in registers of 16 or 32 bits; their forms are named by the register. */
template <typename D, typename S>
static void add_bytes_of(form_table &table, const std::string &d, const std::string &s)
{
    table["cvt." + d + "." + s + "/2"] = lanewise_form<integer_of<D, S, uint16_t>, D, uint16_t>();
    table["cvt." + d + "." + s + "/4"] = lanewise_form<integer_of<D, S, uint32_t>, D, uint32_t>();
}

template <typename D> static void add_integers(form_table &table, const std::string &d)
{
    add_integers_of<D, uint16_t>(table, d, "u16");
    add_integers_of<D, int16_t>(table, d, "s16");
    add_integers_of<D, uint32_t>(table, d, "u32");
    add_integers_of<D, int32_t>(table, d, "s32");
    add_integers_of<D, uint64_t>(table, d, "u64");
    add_integers_of<D, int64_t>(table, d, "s64");
    add_bytes_of<D, uint8_t>(table, d, "u8");
    add_bytes_of<D, int8_t>(table, d, "s8");
    table["cvt.rni." + d + ".f32"] = lanewise_form<to_integer<D, float, NEAREST>, D, float>();
    table["cvt.rzi." + d + ".f32"] = lanewise_form<to_integer<D, float, ZERO>, D, float>();
    table["cvt.rmi." + d + ".f32"] = lanewise_form<to_integer<D, float, DOWN>, D, float>();
    table["cvt.rpi." + d + ".f32"] = lanewise_form<to_integer<D, float, UP>, D, float>();
    table["cvt.rni." + d + ".f64"] = lanewise_form<to_integer<D, double, NEAREST>, D, double>();
    table["cvt.rzi." + d + ".f64"] = lanewise_form<to_integer<D, double, ZERO>, D, double>();
    table["cvt.rmi." + d + ".f64"] = lanewise_form<to_integer<D, double, DOWN>, D, double>();
    table["cvt.rpi." + d + ".f64"] = lanewise_form<to_integer<D, double, UP>, D, double>();
}

template <typename D> static void add_reals_of_integers(form_table &table, const std::string &d)
{
    const std::string name = "cvt.rn." + d + ".";
    table[name + "u16"] = lanewise_form<[](uint16_t x) { return (D)x; }, D, uint16_t>();
    table[name + "s16"] = lanewise_form<[](int16_t x) { return (D)x; }, D, int16_t>();
    table[name + "u32"] = lanewise_form<[](uint32_t x) { return (D)x; }, D, uint32_t>();
    table[name + "s32"] = lanewise_form<[](int32_t x) { return (D)x; }, D, int32_t>();
    table[name + "u64"] = lanewise_form<[](uint64_t x) { return (D)x; }, D, uint64_t>();
    table[name + "s64"] = lanewise_form<[](int64_t x) { return (D)x; }, D, int64_t>();
    table[name + "u8/2"] = lanewise_form<[](uint16_t x) { return (D)(uint8_t)x; }, D, uint16_t>();
    table[name + "u8/4"] = lanewise_form<[](uint32_t x) { return (D)(uint8_t)x; }, D, uint32_t>();
    table[name + "s8/2"] = lanewise_form<[](uint16_t x) { return (D)(int8_t)x; }, D, uint16_t>();
    table[name + "s8/4"] = lanewise_form<[](uint32_t x) { return (D)(int8_t)x; }, D, uint32_t>();
}

template <typename T> static void add_whole(form_table &table, const std::string &type)
{
    const std::string pair = type + "." + type;
    table["cvt.rni." + pair] = lanewise_form<whole<T, NEAREST>, T, T>();
    table["cvt.rzi." + pair] = lanewise_form<whole<T, ZERO>, T, T>();
    table["cvt.rmi." + pair] = lanewise_form<whole<T, DOWN>, T, T>();
    table["cvt.rpi." + pair] = lanewise_form<whole<T, UP>, T, T>();
}

static uint16_t to_half(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}

static uint16_t to_bfloat(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

static float from_bfloat(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
}

static void add_sixteen_bits(form_table &table)
{
    typedef uint16_t u16;
    typedef uint32_t u32;
    table["cvt.f32.f16"] =
        lanewise_form<[](u16 x) { return __half2float(__ushort_as_half(x)); }, float, u16>();
    table["cvt.f32.bf16"] = lanewise_form<from_bfloat, float, u16>();
    table["cvt.rn.f16.f32"] = lanewise_form<to_half, u16, float>();
    table["cvt.rn.bf16.f32"] = lanewise_form<to_bfloat, u16, float>();
    /* The first operand becomes the upper half. */
    table["cvt.rn.f16x2.f32"] =
        lanewise_form<[](float a, float b) { return (u32)to_half(a) << 16 | to_half(b); }, u32,
                      float, float>();
    table["cvt.rn.bf16x2.f32"] =
        lanewise_form<[](float a, float b) { return (u32)to_bfloat(a) << 16 | to_bfloat(b); }, u32,
                      float, float>();
    table["cvt.rn.f16.u16"] = lanewise_form<[](u16 x) { return to_half((float)x); }, u16, u16>();
    table["cvt.rn.f16.s16"] =
        lanewise_form<[](int16_t x) { return to_half((float)x); }, u16, int16_t>();
    table["cvt.rn.f16.u32"] = lanewise_form<[](u32 x) { return to_half((float)x); }, u16, u32>();
    table["cvt.rn.f16.s32"] =
        lanewise_form<[](int32_t x) { return to_half((float)x); }, u16, int32_t>();
}

/* The lower half, whatever is known of the upper one. */
static void lower_half(warp &w, const instr &i, lane_mask mask)
{
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        w.lanes<uint32_t>(i.ops[0])[lane] = (uint32_t)w.lanes<uint64_t>(i.ops[1])[lane];
    }
    w.define(i.ops[0], mask, w.low_defined[i.ops[1].number]);
}

void add_conversion_forms(form_table &table)
{
    add_integers<uint16_t>(table, "u16");
    add_integers<int16_t>(table, "s16");
    add_integers<uint32_t>(table, "u32");
    add_integers<int32_t>(table, "s32");
    add_integers<uint64_t>(table, "u64");
    add_integers<int64_t>(table, "s64");
    table["cvt.u32.u64"] = {lower_half, {4, 8}};
    add_reals_of_integers<float>(table, "f32");
    add_reals_of_integers<double>(table, "f64");
    add_whole<float>(table, "f32");
    add_whole<double>(table, "f64");
    add_sixteen_bits(table);
    table["cvt.f64.f32"] = lanewise_form<[](float x) { return (double)x; }, double, float>();
    table["cvt.rn.f32.f64"] = lanewise_form<[](double x) { return (float)x; }, float, double>();
}

} // namespace ptx
