/* What cases are made of: random numbers, memory with guards around it, weights. */
#include "tests/kernels/checkasm.h"

#include "tests/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE       4096u
#define GUARD_BYTE 0xA7

/* --- random numbers --------------------------------------------------------------------------- */

uint64_t check_random(struct check *check)
{
    return kva_test_random(&check->state);
}

uint32_t check_below(struct check *check, uint32_t limit)
{
    return kva_test_below(&check->state, limit);
}

uint32_t check_between(struct check *check, uint32_t low, uint32_t high)
{
    return low + check_below(check, high - low + 1);
}

float check_normal(struct check *check)
{
    return kva_test_normal(&check->state);
}

void check_fill(struct check *check, enum check_fill fill, float *to, size_t count)
{
    const float scale[FILL_COUNT] = {
        [FILL_NORMAL] = 1, [FILL_LARGE] = 1e4f, [FILL_DENORMAL] = 1e-39f};
    for (size_t i = 0; i < count; i++)
        to[i] =
            fill == FILL_ZERO || fill == FILL_ONE_HOT ? 0.0f : check_normal(check) * scale[fill];
    if (fill == FILL_ONE_HOT && count > 0)
        to[check_below(check, (uint32_t)count)] = 1.0f;
    check_round_acts(check, to, count);
}

void check_round_acts(const struct check *check, float *x, size_t count)
{
    for (size_t i = 0; i < count && check->act != KVA_F32; i++)
        x[i] = format_round(x[i], check->act);
}

const char *check_fill_name(enum check_fill fill)
{
    const char *names[FILL_COUNT] = {"normal", "zero", "one-hot", "large", "denormal"};
    return names[fill];
}

/* --- guarded memory --------------------------------------------------------------------------- */

struct check_buf check_buf_new(size_t bytes)
{
    struct check_buf buf = {.bytes = bytes};
    /* At least 64 bytes of pattern, the data up to a page's end, then a page of no access. */
    size_t inner = kva_align_up(bytes + 64, PAGE);
    buf.map_bytes = inner + PAGE;
    buf.map = mmap(NULL, buf.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buf.map == MAP_FAILED || mprotect(buf.map + inner, PAGE, PROT_NONE) != 0) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(2);
    }
    buf.data = buf.map + inner - bytes;
    memset(buf.map, GUARD_BYTE, inner - bytes);
    return buf;
}

void check_buf_free(struct check_buf *buf)
{
    if (buf->map)
        munmap(buf->map, buf->map_bytes);
    *buf = (struct check_buf){0};
}

void check_buf_garbage(struct check *check, struct check_buf *buf)
{
    unsigned char *data = buf->data;
    for (size_t i = 0; i < buf->bytes; i += 8) {
        uint64_t bits = check_random(check);
        memcpy(data + i, &bits, kva_min_size(8, buf->bytes - i));
    }
}

bool check_buf_intact(const struct check_buf *buf)
{
    const unsigned char *end = buf->data;
    for (const unsigned char *at = buf->map; at < end; at++) {
        if (*at != GUARD_BYTE)
            return false;
    }
    return true;
}

/* --- weights ---------------------------------------------------------------------------------- */

double check_weight_at(const struct kva_weight *weight, size_t index)
{
    if (weight->dtype == KVA_F32)
        return ((const float *)weight->data)[index];
    return check_widen(((const uint16_t *)weight->data)[index], weight->dtype);
}

struct kva_weight check_weight(struct check *check, struct check_buf *buf, enum kva_dtype dtype,
                               enum check_fill fill, uint32_t rows, uint32_t cols)
{
    size_t count = (size_t)rows * cols;
    *buf = check_buf_new(count * kva_dtype_bytes(dtype));
    struct kva_weight weight = {.data = buf->data, .dtype = dtype, .rows = rows, .cols = cols};
    if (dtype == KVA_F32) {
        check_fill(check, fill, buf->data, count);
        return weight;
    }
    for (size_t row = 0; row < rows; row++) {
        float line[32];
        for (size_t i = 0; i < cols; i += 32) {
            size_t n = kva_min_size(32, cols - i);
            check_fill(check, fill, line, n);
            /* A random pattern is as good as a rounded number and quicker to make. */
            for (size_t j = 0; j < n; j++)
                ((uint16_t *)buf->data)[row * cols + i + j] = dtype == KVA_BF16
                                                                  ? (uint16_t)((union {
                                                                                   float f;
                                                                                   uint32_t u;
                                                                               }){line[j]}
                                                                                   .u >>
                                                                               16)
                                                                  : check_narrow(line[j], dtype);
        }
    }
    return weight;
}
