/* checksum.c - XXH64. */
#include "engine/model/checksum.h"

#include <string.h>

#define PRIME_1 0x9E3779B185EBCA87ull
#define PRIME_2 0xC2B2AE3D27D4EB4Full
#define PRIME_3 0x165667B19E3779F9ull
#define PRIME_4 0x85EBCA77C2B2AE63ull
#define PRIME_5 0x27D4EB2F165667C5ull

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static uint64_t read_8(const uint8_t *from)
{
    uint64_t x;
    memcpy(&x, from, sizeof(x));
    return x;
}

static uint64_t take(uint64_t lane, uint64_t input)
{
    return rotate(lane + input * PRIME_2, 31) * PRIME_1;
}

static uint64_t merge(uint64_t sum, uint64_t lane)
{
    return (sum ^ take(0, lane)) * PRIME_1 + PRIME_4;
}

uint64_t kva_checksum(const void *data, size_t bytes)
{
    const uint8_t *at = data, *end = at + bytes;
    uint64_t sum = PRIME_5;
    if (bytes >= 32) {
        uint64_t a = PRIME_1 + PRIME_2, b = PRIME_2, c = 0, d = 0 - PRIME_1;
        for (; end - at >= 32; at += 32) {
            a = take(a, read_8(at));
            b = take(b, read_8(at + 8));
            c = take(c, read_8(at + 16));
            d = take(d, read_8(at + 24));
        }
        sum = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        sum = merge(merge(merge(merge(sum, a), b), c), d);
    }
    sum += bytes;
    for (; end - at >= 8; at += 8)
        sum = rotate(sum ^ take(0, read_8(at)), 27) * PRIME_1 + PRIME_4;
    if (end - at >= 4) {
        uint32_t four;
        memcpy(&four, at, sizeof(four));
        sum = rotate(sum ^ four * PRIME_1, 23) * PRIME_2 + PRIME_3;
        at += 4;
    }
    for (; at < end; at++)
        sum = rotate(sum ^ *at * PRIME_5, 11) * PRIME_1;
    sum = (sum ^ sum >> 33) * PRIME_2;
    sum = (sum ^ sum >> 29) * PRIME_3;
    return sum ^ sum >> 32;
}

uint64_t kva_checksum_join(uint64_t sum, uint64_t part)
{
    const uint64_t both[2] = {sum, part};
    return kva_checksum(both, sizeof(both));
}
