/* packed.c - the table of packed formats, and reading a matrix number by number. */
#include "kernels/packed_read.h"

static const struct kva_packed_format formats[KVA_DTYPE_END - KVA_INT8] = {
    /* gguf_id, head, head_bytes, block_inputs, scale_inputs, low_bits, high_bits, zero, has_min */
    [KVA_INT8 - KVA_INT8] = {KVA_PACKED_NO_GGUF, KVA_HEAD_F32, 64, 128, 128, 8, 0, 128, false},
    [KVA_Q4_0 - KVA_INT8] = {2, KVA_HEAD_F16, 64, 64, 32, 4, 0, 8, false},
    [KVA_Q4_1 - KVA_INT8] = {3, KVA_HEAD_F16_MIN, 64, 32, 32, 4, 0, 0, true},
    [KVA_Q5_0 - KVA_INT8] = {6, KVA_HEAD_F16, 64, 64, 32, 4, 1, 16, false},
    [KVA_Q5_1 - KVA_INT8] = {7, KVA_HEAD_F16_MIN, 64, 32, 32, 4, 1, 0, true},
    [KVA_Q8_0 - KVA_INT8] = {8, KVA_HEAD_F16, 64, 64, 32, 8, 0, 128, false},
    [KVA_Q2_K - KVA_INT8] = {10, KVA_HEAD_K_MIN_4BIT, 320, 256, 16, 2, 0, 0, true},
    [KVA_Q3_K - KVA_INT8] = {11, KVA_HEAD_K_SIGNED, 320, 256, 16, 2, 1, 4, false},
    [KVA_Q4_K - KVA_INT8] = {12, KVA_HEAD_K_MIN, 320, 256, 32, 4, 0, 0, true},
    [KVA_Q5_K - KVA_INT8] = {13, KVA_HEAD_K_MIN, 320, 256, 32, 4, 1, 0, true},
    [KVA_Q6_K - KVA_INT8] = {14, KVA_HEAD_K_SIGNED, 320, 256, 16, 4, 2, 32, false},
};

const struct kva_packed_format *kva_packed_format(enum kva_dtype dtype)
{
    return kva_dtype_is_packed(dtype) ? &formats[dtype - KVA_INT8] : NULL;
}

bool kva_packed_of_gguf(uint32_t gguf_id, enum kva_dtype *ret)
{
    for (size_t i = 0; i < KVA_COUNT_OF(formats); i++) {
        if (formats[i].gguf_id == gguf_id && gguf_id != KVA_PACKED_NO_GGUF) {
            *ret = (enum kva_dtype)(KVA_INT8 + i);
            return true;
        }
    }
    return false;
}

size_t kva_weight_bytes(const struct kva_weight *weight)
{
    const struct kva_packed_format *format = kva_packed_format(weight->dtype);
    if (!weight->data)
        return 0;
    if (format)
        return kva_packed_bytes(format, weight->rows, weight->cols);
    return (size_t)weight->rows * weight->cols * kva_dtype_bytes(weight->dtype);
}

/* No min: not even + 0, which would take the sign off -0. */
static float weight_of(const struct kva_packed_format *format, uint32_t code, float scale,
                       float min)
{
    float scaled = scale * (float)((int32_t)code - (int32_t)format->zero);
    return format->has_min ? scaled + min : scaled;
}

float kva_packed_at(enum kva_dtype dtype, const void *data, uint32_t cols, uint32_t row,
                    uint32_t col)
{
    const struct kva_packed_format *format = kva_packed_format(dtype);
    const struct kva_packed_place place = kva_packed_find(format, data, cols, row, col);
    float min;
    float scale = kva_packed_scale(format, place.head, place.group, place.lane, &min);
    uint32_t code = kva_packed_code(format, place.piece, place.lane, place.input);
    return weight_of(format, code, scale, min);
}

void kva_packed_row(enum kva_dtype dtype, const void *data, uint32_t cols, uint32_t row, float *out)
{
    const struct kva_packed_format *format = kva_packed_format(dtype);
    for (uint32_t first = 0; first < cols; first += format->scale_inputs) {
        const uint32_t end = kva_min_u32(first + format->scale_inputs, cols);
        struct kva_packed_place place = kva_packed_find(format, data, cols, row, first);
        float min;
        float scale = kva_packed_scale(format, place.head, place.group, place.lane, &min);
        for (uint32_t col = first; col < end; col++) {
            uint32_t input = place.input + (col - first);
            const uint8_t *piece =
                place.piece + input / KVA_PACKED_PIECE_INPUTS * kva_packed_piece_bytes(format);
            uint32_t code =
                kva_packed_code(format, piece, place.lane, input % KVA_PACKED_PIECE_INPUTS);
            out[col] = weight_of(format, code, scale, min);
        }
    }
}
