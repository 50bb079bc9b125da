/* packed_weight.c - packed matrices for cases: whatever bits a format may have. */
#include "kernels/packed.h"
#include "tests/kernels/checkasm.h"

#include <stdlib.h>
#include <string.h>

/* A scale: of either sign, 2^-8 to 2^-1; or what 16 bits hold without an exponent, or nothing. */
static uint16_t random_half(struct check *check, enum check_fill fill)
{
    uint16_t bits = (uint16_t)(check_random(check) & 0x83FFu);
    if (fill == FILL_ZERO)
        return 0;
    return fill == FILL_DENORMAL ? bits : (uint16_t)(bits | check_between(check, 7, 14) << 10);
}

static void fill_halves(struct check *check, enum check_fill fill, unsigned char *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t half = random_half(check, fill);
        memcpy(to + i, &half, sizeof half);
    }
}

static void fill_head(struct check *check, const struct kva_packed_format *format,
                      enum check_fill fill, unsigned char *head)
{
    /* Of K formats the first 64 bytes are in 16 bits, and the factors what they may be. */
    fill_halves(check, fill, head, kva_min_size(format->head_bytes, 64));
    for (size_t i = 64; i < format->head_bytes; i++)
        head[i] = (unsigned char)check_random(check);
}

/* Of int8, whose scales are whole floats: made of numbers. */
static void fill_int8(struct check *check, enum check_fill fill, const struct kva_weight *weight,
                      void *to)
{
    struct check_buf plain;
    struct kva_weight w =
        check_weight(check, &plain, (enum kva_dtype)check_below(check, KVA_DTYPE_COUNT), fill,
                     weight->rows, weight->cols);
    if (!kva_packed_quantise(KVA_INT8, w.data, w.dtype, w.rows, w.cols, 0,
                             (uint32_t)kva_packed_panels(w.rows), to))
        abort();
    check_buf_free(&plain);
}

struct kva_weight check_packed_weight(struct check *check, struct check_buf *buf,
                                      enum kva_dtype dtype, enum check_fill fill, uint32_t rows,
                                      uint32_t cols)
{
    const struct kva_packed_format *format = kva_packed_format(dtype);
    *buf = check_buf_new(kva_packed_bytes(format, rows, cols));
    struct kva_weight weight = {.data = buf->data, .dtype = dtype, .rows = rows, .cols = cols};
    unsigned char *to = buf->data;
    if (dtype == KVA_INT8) {
        fill_int8(check, fill, &weight, to);
        return weight;
    }
    for (size_t i = 0; i + 8 <= buf->bytes; i += 8) {
        uint64_t bits = check_random(check);
        memcpy(to + i, &bits, sizeof bits);
    }
    const size_t panel = kva_packed_panel_bytes(format, cols);
    for (size_t p = 0; p < kva_packed_panels(rows); p++)
        for (size_t at = 0; at < panel; at += kva_packed_block_bytes(format))
            fill_head(check, format, fill, to + p * panel + at);
    return weight;
}
