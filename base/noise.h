/* noise.h - reproducible noise in bulk: weights and caches for measurements, made at the speed of
 * memory.
 *
 * Uniform, because only scale and independence matter there; a seed gives the same values on every
 * machine, whatever it vectorises. Nothing here is fit for sampling or for secrets.
 *
 * Thread rule: none; no shared state. */
#ifndef KVA_BASE_NOISE_H
#define KVA_BASE_NOISE_H

#include "base/kva.h"

/* A seed for part `index` of something that has the seed `seed`: parts are independent. */
uint64_t kva_noise_seed(uint64_t seed, uint64_t index);

/* `count` values of mean 0 and the standard deviation `deviation`, none beyond sqrt(3) of it. */
void kva_noise_f32(float *out, size_t count, float deviation, uint64_t seed);

/* The same values, each rounded to the upper half of its bits (bf16). */
void kva_noise_bf16(uint16_t *out, size_t count, float deviation, uint64_t seed);

#endif
