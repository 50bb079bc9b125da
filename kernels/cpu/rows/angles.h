/* angles.h - cosines and sines of a row's rotary angles, the same in every level.
 *
 * The angle is position * inv_freq, taken in double: at position 100,000 an fp32 product would be
 * off by up to 0.004. The remainder to the nearest multiple of pi / 2 is also taken in double and
 * then evaluated in fp32, within 1e-7 of the true values. Plain C: it vectorises, and as nothing
 * here is summed across elements, vectors and single elements give the same bits. */
#ifndef KVA_KERNELS_CPU_ROWS_ANGLES_H
#define KVA_KERNELS_CPU_ROWS_ANGLES_H

#include "base/kva.h"

/* Adding and subtracting this rounds a double below 2^51 to the nearest integer. */
#define KVA_ROUND_MAGIC 0x1.8p52

/* cosine, sine = cos, sin(position * inv_freq). */
static inline void kva_angle(uint32_t position, float inv_freq, float *restrict cosine,
                             float *restrict sine)
{
    const double two_over_pi = 0.63661977236758134;
    const double pi_2_high = 1.5707963267948966, pi_2_low = 6.123233995736766e-17;
    double angle = (double)position * (double)inv_freq;
    double shifted = angle * two_over_pi + KVA_ROUND_MAGIC;
    double quarters = shifted - KVA_ROUND_MAGIC;
    float r = (float)((angle - quarters * pi_2_high) - quarters * pi_2_low);
    int32_t quadrant = (int32_t)((int64_t)quarters & 3);
    float r2 = r * r;
    /* Minimax fits on [-pi / 4, pi / 4]. */
    float s = -1.951723420e-04f;
    s = s * r2 + 8.332177684e-03f;
    s = s * r2 - 1.666665494e-01f;
    s = s * (r2 * r) + r;
    float c = 2.443837759e-05f;
    c = c * r2 - 1.388736689e-03f;
    c = c * r2 + 4.166664685e-02f;
    c = c * (r2 * r2) - 0.5f * r2 + 1.0f;
    float x = quadrant & 1 ? s : c;
    float y = quadrant & 1 ? c : s;
    *cosine = quadrant == 1 || quadrant == 2 ? -x : x;
    *sine = quadrant >= 2 ? -y : y;
}

/* cosines[i], sines[i] = factor * cos, sin(position * inv_freq[i]). */
static inline void kva_angles(uint32_t position, const float *inv_freq, uint32_t count,
                              float factor, float *restrict cosines, float *restrict sines)
{
    for (uint32_t i = 0; i < count; i++) {
        float cosine, sine;
        kva_angle(position, inv_freq[i], &cosine, &sine);
        cosines[i] = factor * cosine;
        sines[i] = factor * sine;
    }
}

#endif
