/* packed.c - packed formats by their names, and reading a matrix number by number. */
#include "kernels/packed_read.h"
#include "kernels/packed_table.h"

const struct kva_packed_format *kva_packed_format(enum kva_dtype dtype)
{
    return kva_dtype_is_packed(dtype) ? &kva_packed_table[dtype - KVA_INT8] : NULL;
}

bool kva_packed_of_gguf(uint32_t gguf_id, enum kva_dtype *ret)
{
    for (size_t i = 0; i < KVA_COUNT_OF(kva_packed_table); i++) {
        if (kva_packed_table[i].gguf_id == gguf_id && gguf_id != KVA_PACKED_NO_GGUF) {
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
