/* turn.h - a rotation of a head's channels, for C and for CUDA.
 *
 *     x' = H S x      S: some signs change       H: a Hadamard matrix, 1 / sqrt(n) times +-1
 *
 * over each n = KVA_TURN_BLOCK(head_dim) channels. It keeps lengths and scalar products: what few
 * channels have, as those of keys that are large in every token, all channels share afterwards, so
 * that few levels reach further (QuaRot). The signs are there so that no likely row, such as one of
 * equal numbers, becomes one large number. Each number is a sum in one order, the same on every
 * device.
 *
 * Thread rule: functions of their arguments. */
#ifndef KVA_KERNELS_TURN_H
#define KVA_KERNELS_TURN_H

#include "kernels/kv_layout.h"

#include <stdbool.h>

/* Channels that are turned together: the largest power of two that divides head_dim. */
#define KVA_TURN_BLOCK(head_dim) ((head_dim) & -(head_dim))

/* Whether the sign of a channel changes: bits without a pattern (of pi). */
KVA_ON_DEVICE static inline bool kva_turn_flips(uint32_t channel)
{
    const uint32_t words[8] = {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u,
                               0xa4093822u, 0x299f31d0u, 0x082efa98u, 0xec4e6c89u};
    return words[channel / 32 % 8] >> channel % 32 & 1u;
}

/* 1 / sqrt(n) of a power of two. */
KVA_ON_DEVICE static inline float kva_turn_factor(uint32_t n)
{
    float factor = 1.0f;
    for (; n >= 4; n /= 4)
        factor *= 0.5f;
    return n == 2 ? factor * 0.70710678f : factor;
}

/* The step of the best 2^bits uniform levels of a normal distribution, in standard deviations (Max,
 * Quantizing for minimum distortion, 1960, table II). 8 bits reach from a row's minimum to its
 * maximum in less. */
KVA_ON_DEVICE static inline float kva_turn_step(uint32_t bits)
{
    return bits == 2 ? 0.9957f : bits == 3 ? 0.5860f : bits == 4 ? 0.3352f : 1.0f;
}

#endif
