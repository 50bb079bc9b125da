/* noise.c - the generator and its conversion to 16 and 32 bits. */
#include "base/noise.h"

#include <string.h>

/* Independent xorshift64 generators side by side: compilers turn each loop over them into a few
 * vector instructions of whatever width there is. */
#define LANES 8

/* Values of one round: four 16-bit integers of every lane. */
#define ROUND (LANES * 4)

/* sqrt(3) / 32768: 16-bit integers become values of deviation 1. */
#define UNIT 5.2857973e-5f

struct noise {
    uint64_t lanes[LANES];
    float scale;
};

/* The finaliser of splitmix64: every bit of the input counts for every bit of the output. */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

uint64_t kva_noise_seed(uint64_t seed, uint64_t index)
{
    return mix(mix(seed) ^ index);
}

static struct noise start(float deviation, uint64_t seed)
{
    struct noise noise = {.scale = deviation * UNIT};
    for (uint64_t i = 0; i < LANES; i++)
        noise.lanes[i] = kva_noise_seed(seed, i) | 1; /* xorshift stays at 0 */
    return noise;
}

static void round_of(struct noise *noise, float out[ROUND])
{
    int16_t integers[ROUND];
    for (int i = 0; i < LANES; i++) {
        uint64_t x = noise->lanes[i];
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        noise->lanes[i] = x;
    }
    memcpy(integers, noise->lanes, sizeof(integers));
    /* The middle of each of the 65536 steps: the mean is 0. */
    for (int i = 0; i < ROUND; i++)
        out[i] = ((float)integers[i] + 0.5f) * noise->scale;
}

void kva_noise_f32(float *out, size_t count, float deviation, uint64_t seed)
{
    struct noise noise = start(deviation, seed);
    float values[ROUND];
    for (size_t at = 0; at < count; at += ROUND) {
        round_of(&noise, values);
        memcpy(out + at, values, kva_min_size(ROUND, count - at) * sizeof(*out));
    }
}

void kva_noise_bf16(uint16_t *out, size_t count, float deviation, uint64_t seed)
{
    struct noise noise = start(deviation, seed);
    float values[ROUND];
    uint32_t bits[ROUND];
    uint16_t halves[ROUND];
    for (size_t at = 0; at < count; at += ROUND) {
        round_of(&noise, values);
        memcpy(bits, values, sizeof(bits));
        for (int i = 0; i < ROUND; i++)
            halves[i] = (uint16_t)((bits[i] + 0x8000u) >> 16);
        memcpy(out + at, halves, kva_min_size(ROUND, count - at) * sizeof(*out));
    }
}
