/* Numbers with a point: f64, f32, and pairs of f16 and bf16. */
#include "forms.h"

#include <cfenv>
#include <cmath>

#include "tests/cuda/simt/cuda_bf16.h"
#include "tests/cuda/simt/cuda_fp16.h"

namespace ptx
{

/* Denormal numbers count as zeros. */
template <typename T> T flush(T x)
{
    return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign((T)0, x) : x;
}

template <typename T> T saturate(T x)
{
    return x > 0 ? x < 1 ? x : (T)1 : (T)0; /* what is no number becomes 0 */
}

/* The number, if one of the two is none; -0 is less than 0. */
template <typename T> T least(T a, T b)
{
    if (a == b)
        return std::signbit(a) ? a : b;
    return a < b || b != b ? a : b;
}

template <typename T> T most(T a, T b)
{
    if (a == b)
        return std::signbit(a) ? b : a;
    return a > b || b != b ? a : b;
}

/* With another rounding of the host. */
template <int mode, auto F, typename D, typename... S>
static void rounded(warp &w, const instr &i, lane_mask mask)
{
    fesetround(mode);
    lanewise<F, D, S...>(w, i, mask);
    fesetround(FE_TONEAREST);
}

template <auto F, typename D, typename... S>
static void add_rounded(form_table &table, const std::string &name, const std::string &type)
{
    table[name + ".rn" + type] = lanewise_form<F, D, S...>();
    table[name + ".rm" + type] = {rounded<FE_DOWNWARD, F, D, S...>, {sizeof(D), sizeof(S)...}};
    table[name + ".rp" + type] = {rounded<FE_UPWARD, F, D, S...>, {sizeof(D), sizeof(S)...}};
    table[name + ".rz" + type] = {rounded<FE_TOWARDZERO, F, D, S...>, {sizeof(D), sizeof(S)...}};
}

template <typename T> static void add_arithmetic(form_table &table, const std::string &type)
{
    constexpr auto plus = [](T a, T b) { return a + b; };
    constexpr auto minus = [](T a, T b) { return a - b; };
    constexpr auto times = [](T a, T b) { return a * b; };
    constexpr auto fused = [](T a, T b, T c) { return std::fma(a, b, c); };
    table["add" + type] = lanewise_form<plus, T, T, T>();
    table["sub" + type] = lanewise_form<minus, T, T, T>();
    table["mul" + type] = lanewise_form<times, T, T, T>();
    add_rounded<plus, T, T, T>(table, "add", type);
    add_rounded<minus, T, T, T>(table, "sub", type);
    add_rounded<times, T, T, T>(table, "mul", type);
    add_rounded<fused, T, T, T, T>(table, "fma", type);
    table["div.rn" + type] = lanewise_form<[](T a, T b) { return a / b; }, T, T, T>();
    table["rcp.rn" + type] = lanewise_form<[](T a) { return 1 / a; }, T, T>();
    table["sqrt.rn" + type] = lanewise_form<[](T a) { return std::sqrt(a); }, T, T>();
    table["neg" + type] = lanewise_form<[](T a) { return -a; }, T, T>();
    table["abs" + type] = lanewise_form<[](T a) { return std::fabs(a); }, T, T>();
    table["min" + type] = lanewise_form<least<T>, T, T, T>();
    table["max" + type] = lanewise_form<most<T>, T, T, T>();
    table["mov" + type] = lanewise_form<[](T a) { return a; }, T, T>();
    /* The sign of the first, the rest of the second. */
    table["copysign" + type] =
        lanewise_form<[](T a, T b) { return std::copysign(b, a); }, T, T, T>();
}

/* As exact as the host has them: what a GPU's are off is not imitated. */
static void add_approximations(form_table &table)
{
    typedef float T;
    table["ex2.approx.f32"] = lanewise_form<[](T a) { return std::exp2(a); }, T, T>();
    table["lg2.approx.f32"] = lanewise_form<[](T a) { return std::log2(a); }, T, T>();
    table["sin.approx.f32"] = lanewise_form<[](T a) { return std::sin(a); }, T, T>();
    table["cos.approx.f32"] = lanewise_form<[](T a) { return std::cos(a); }, T, T>();
    table["tanh.approx.f32"] = lanewise_form<[](T a) { return std::tanh(a); }, T, T>();
    table["rcp.approx.f32"] = lanewise_form<[](T a) { return 1 / a; }, T, T>();
    table["sqrt.approx.f32"] = lanewise_form<[](T a) { return std::sqrt(a); }, T, T>();
    table["rsqrt.approx.f32"] = lanewise_form<[](T a) { return 1 / std::sqrt(a); }, T, T>();
    table["div.approx.f32"] = lanewise_form<[](T a, T b) { return a / b; }, T, T, T>();
    table["div.full.f32"] = lanewise_form<[](T a, T b) { return a / b; }, T, T, T>();
    table["rcp.approx.ftz.f64"] = lanewise_form<[](double a) { return 1 / a; }, double, double>();
}

static void add_flushing(form_table &table)
{
    typedef float T;
    constexpr auto f = flush<T>;
    table["add.ftz.f32"] = lanewise_form<[](T a, T b) { return f(f(a) + f(b)); }, T, T, T>();
    table["sub.ftz.f32"] = lanewise_form<[](T a, T b) { return f(f(a) - f(b)); }, T, T, T>();
    table["mul.ftz.f32"] = lanewise_form<[](T a, T b) { return f(f(a) * f(b)); }, T, T, T>();
    table["fma.rn.ftz.f32"] =
        lanewise_form<[](T a, T b, T c) { return f(std::fma(f(a), f(b), f(c))); }, T, T, T, T>();
    table["ex2.approx.ftz.f32"] = lanewise_form<[](T a) { return f(std::exp2(f(a))); }, T, T>();
    table["lg2.approx.ftz.f32"] = lanewise_form<[](T a) { return std::log2(f(a)); }, T, T>();
    table["rcp.approx.ftz.f32"] = lanewise_form<[](T a) { return f(1 / f(a)); }, T, T>();
    table["rsqrt.approx.ftz.f32"] = lanewise_form<[](T a) { return 1 / std::sqrt(f(a)); }, T, T>();
}

/* --- sixteen bits ----------------------------------------------------------------------------- */

struct f16 {
    static float wide(uint16_t bits)
    {
        return __half2float(__ushort_as_half(bits));
    }
    static uint16_t narrow(float x)
    {
        return __half_as_ushort(__float2half_rn(x));
    }
};

struct bf16 {
    static float wide(uint16_t bits)
    {
        uint32_t wide = (uint32_t)bits << 16;
        float x;
        memcpy(&x, &wide, 4);
        return x;
    }
    static uint16_t narrow(float x)
    {
        return __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
};

/* A sum or a product of two is exact in f64, and what a fused operation is off there is far below
 * half a step of sixteen bits, but for ties that the rounding to f32 makes: rounded to odd before. */
template <typename H> static uint16_t narrowed(double exact)
{
    float near = (float)exact;
    if ((double)near != exact && exact == exact && !std::isinf(near)) {
        uint32_t bits;
        memcpy(&bits, &near, 4);
        if (std::fabs((double)near) > std::fabs(exact))
            bits--;
        bits |= 1;
        memcpy(&near, &bits, 4);
    }
    return H::narrow(near);
}

template <typename H> struct halves {
    static uint16_t plus(uint16_t a, uint16_t b)
    {
        return narrowed<H>((double)H::wide(a) + (double)H::wide(b));
    }
    static uint16_t minus(uint16_t a, uint16_t b)
    {
        return narrowed<H>((double)H::wide(a) - (double)H::wide(b));
    }
    static uint16_t times(uint16_t a, uint16_t b)
    {
        return narrowed<H>((double)H::wide(a) * (double)H::wide(b));
    }
    static uint16_t fused(uint16_t a, uint16_t b, uint16_t c)
    {
        return narrowed<H>((double)H::wide(a) * (double)H::wide(b) + (double)H::wide(c));
    }
    static uint16_t smaller(uint16_t a, uint16_t b)
    {
        return H::narrow(least(H::wide(a), H::wide(b)));
    }
    static uint16_t larger(uint16_t a, uint16_t b)
    {
        return H::narrow(most(H::wide(a), H::wide(b)));
    }
};

template <auto F> static uint32_t both(uint32_t a, uint32_t b)
{
    return (uint32_t)F((uint16_t)a, (uint16_t)b) |
           (uint32_t)F((uint16_t)(a >> 16), (uint16_t)(b >> 16)) << 16;
}

template <auto F> static uint32_t both_fused(uint32_t a, uint32_t b, uint32_t c)
{
    return (uint32_t)F((uint16_t)a, (uint16_t)b, (uint16_t)c) |
           (uint32_t)F((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16)) << 16;
}

template <auto F>
static void add_pair(form_table &table, const std::string &name, const std::string &type)
{
    for (const char *rounding : {"", ".rn"}) {
        table[name + rounding + type] = lanewise_form<F, uint16_t, uint16_t, uint16_t>();
        table[name + rounding + type + "x2"] =
            lanewise_form<both<F>, uint32_t, uint32_t, uint32_t>();
    }
}

template <typename H> static void add_halves(form_table &table, const std::string &type)
{
    typedef uint16_t u16;
    typedef uint32_t u32;
    add_pair<halves<H>::plus>(table, "add", type);
    add_pair<halves<H>::minus>(table, "sub", type);
    add_pair<halves<H>::times>(table, "mul", type);
    add_pair<halves<H>::smaller>(table, "min", type);
    add_pair<halves<H>::larger>(table, "max", type);
    table["fma.rn" + type] = lanewise_form<halves<H>::fused, u16, u16, u16, u16>();
    table["fma.rn" + type + "x2"] =
        lanewise_form<both_fused<halves<H>::fused>, u32, u32, u32, u32>();
    table["neg" + type] = lanewise_form<[](u16 a) { return (u16)(a ^ 0x8000); }, u16, u16>();
    table["neg" + type + "x2"] = lanewise_form<[](u32 a) { return a ^ 0x80008000u; }, u32, u32>();
    table["abs" + type] = lanewise_form<[](u16 a) { return (u16)(a & 0x7FFF); }, u16, u16>();
    table["abs" + type + "x2"] = lanewise_form<[](u32 a) { return a & 0x7FFF7FFFu; }, u32, u32>();
}

void add_real_forms(form_table &table)
{
    add_arithmetic<float>(table, ".f32");
    add_arithmetic<double>(table, ".f64");
    add_approximations(table);
    add_flushing(table);
    add_halves<f16>(table, ".f16");
    add_halves<bf16>(table, ".bf16");
    table["add.sat.f32"] =
        lanewise_form<[](float a, float b) { return saturate(a + b); }, float, float, float>();
    table["fma.rn.sat.f32"] =
        lanewise_form<[](float a, float b, float c) { return saturate(std::fma(a, b, c)); }, float,
                      float, float, float>();
    table["cvt.sat.f32.f32"] = lanewise_form<saturate<float>, float, float>();
}

/* --- comparisons ------------------------------------------------------------------------------ */

template <typename T> static instr_run *comparison_of(std::string_view name)
{
    static const std::map<std::string_view, instr_run *> all = {
        {"eq", compare<[](T a, T b) { return a == b; }, T>},
        {"ne", compare<[](T a, T b) { return (a < b) || (a > b); }, T>},
        {"lt", compare<[](T a, T b) { return a < b; }, T>},
        {"le", compare<[](T a, T b) { return a <= b; }, T>},
        {"gt", compare<[](T a, T b) { return (a > b); }, T>},
        {"ge", compare<[](T a, T b) { return a >= b; }, T>},
        {"equ", compare<[](T a, T b) { return !((a < b) || (a > b)); }, T>},
        {"neu", compare<[](T a, T b) { return a != b; }, T>},
        {"ltu", compare<[](T a, T b) { return !(a >= b); }, T>},
        {"leu", compare<[](T a, T b) { return !(a > b); }, T>},
        {"gtu", compare<[](T a, T b) { return !(a <= b); }, T>},
        {"geu", compare<[](T a, T b) { return !(a < b); }, T>},
        {"num", compare<[](T a, T b) { return a == a && b == b; }, T>},
        {"nan", compare<[](T a, T b) { return a != a || b != b; }, T>},
    };
    auto found = all.find(name);
    return found == all.end() ? nullptr : found->second;
}

instr_run *real_comparison(std::string_view name, std::string_view type)
{
    return type == "f32"   ? comparison_of<float>(name)
           : type == "f64" ? comparison_of<double>(name)
                           : nullptr;
}

} // namespace ptx
