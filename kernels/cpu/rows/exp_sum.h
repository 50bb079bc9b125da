/* exp_sum.h - sums of exponentials in double precision, in vectors that the compiler makes of what
 * the level has; included once by the file of a level's kernels on single rows.
 *
 * exp(t) = 2^n exp(r), n = round(t / ln 2), |r| <= ln(2) / 2, and exp(r) by its Taylor polynomial:
 * the relative error is 1e-14, the C library's routine takes twenty times as long. */
#ifndef KVA_KERNELS_CPU_ROWS_EXP_SUM_H
#define KVA_KERNELS_CPU_ROWS_EXP_SUM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define EXP_LANES 8
#elif defined(__AVX2__)
#define EXP_LANES 4
#else
#define EXP_LANES 2
#endif

/* Smaller ones are taken for 0: 2^n stays a normal number. */
#define EXP_T_MIN (-700.0)

/* The low bits of whole numbers from here on count them. */
#define EXP_WHOLE 0x1.8p52

typedef float exp_floats __attribute__((vector_size(EXP_LANES * sizeof(float))));
typedef double exp_doubles __attribute__((vector_size(EXP_LANES * sizeof(double))));
typedef uint64_t exp_bits __attribute__((vector_size(EXP_LANES * sizeof(int64_t))));

/* sums += exp((x - limit) * per_degree) where x < limit, lane by lane. */
static inline __attribute__((always_inline)) void exp_add(exp_doubles *sums, const float *from,
                                                          double limit, double per_degree)
{
    exp_floats loaded;
    memcpy(&loaded, from, sizeof(loaded));
    exp_doubles x = __builtin_convertvector(loaded, exp_doubles);
    exp_doubles t = (x - limit) * per_degree;
    exp_bits counts = (exp_bits)((x < limit) & (t >= EXP_T_MIN));
    t = (exp_doubles)((exp_bits)t & counts);
    exp_doubles whole = t * 0x1.71547652b82fep+0 + EXP_WHOLE;
    exp_doubles n = whole - EXP_WHOLE;
    exp_doubles r = t - n * 0x1.62e42feep-1; /* 31 bits of ln 2: the product is exact */
    r = r - n * 0x1.a39ef35793c76p-33;
    exp_doubles p = r * (1.0 / 39916800) + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    exp_bits scaled = (exp_bits)p + ((exp_bits)whole << 52);
    *sums += (exp_doubles)(scaled & counts);
}

/* See struct kva_cpu_kernels. */
static inline double exp_sum(const float *logits, uint32_t count, float limit, float temperature)
{
    const double per_degree = 1 / (double)temperature;
    exp_doubles sums = {0};
    uint32_t i = 0;
    for (; i + EXP_LANES <= count; i += EXP_LANES)
        exp_add(&sums, logits + i, (double)limit, per_degree);
    float last[EXP_LANES];
    for (uint32_t j = 0; j < EXP_LANES; j++)
        last[j] = i + j < count ? logits[i + j] : -INFINITY;
    exp_add(&sums, last, (double)limit, per_degree);
    double sum = 0;
    for (uint32_t j = 0; j < EXP_LANES; j++)
        sum += sums[j];
    return sum;
}

#endif
