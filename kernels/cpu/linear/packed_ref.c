/* packed_ref.c - reference kernel of linear with packed weights. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/linear/packed_row.h"

#include <math.h>

/* A whole group of numbers. */
static float round_group(const float *x, int8_t *codes)
{
    uint32_t largest = 0;
    float inverse;
    for (uint32_t i = 0; i < KVA_PACKED_ROW_GROUP; i++)
        largest = kva_max_u32(largest, kva_bits_of_float(x[i]) & 0x7FFFFFFFu);
    float scale = kva_packed_x_scale(largest, &inverse);
    for (uint32_t i = 0; i < KVA_PACKED_ROW_GROUP; i++)
        codes[i] = (int8_t)(inverse == 0 ? 0 : lrintf(x[i] * inverse));
    return scale;
}

static void sum_eights(const int8_t *codes, uint64_t *sums)
{
    for (uint32_t i = 0; i < KVA_PACKED_ROW_GROUP / 8; i++, codes += 8) {
        sums[i] = 0;
        for (uint32_t j = 0; j < 8; j++)
            sums[i] += (uint64_t)(codes[j] + 128);
    }
}

#include "kernels/cpu/linear/packed_prepare.h"

void kva_linear_packed_prepare_ref(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                                   void *prepared)
{
    prepare(args, first, end, prepared);
}

/* Weights of output n times a row, of the group of weights that begins at input `at`. */
static int32_t multiply_group(const struct kva_packed_format *format, struct kva_packed_place place,
                              uint32_t count, const int8_t *x)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t input = place.input + i;
        const uint8_t *piece =
            place.piece + input / KVA_PACKED_PIECE_INPUTS * kva_packed_piece_bytes(format);
        sum +=
            (int32_t)kva_packed_code(format, piece, place.lane, input % KVA_PACKED_PIECE_INPUTS) *
            x[i];
    }
    return sum;
}

/* One output of one row. */
static float output(const struct kva_weight *weight, uint32_t n, const int8_t *x)
{
    const struct kva_packed_format *format = kva_packed_format(weight->dtype);
    const uint32_t inputs = weight->cols, group = format->scale_inputs;
    const float *scales = kva_packed_x_scales(x, inputs);
    const union kva_packed_term *term = kva_packed_x_terms(x, inputs);
    float total = 0;
    for (uint32_t first = 0; first < inputs; first += KVA_PACKED_ROW_GROUP, scales++) {
        const uint32_t end = kva_min_u32(first + KVA_PACKED_ROW_GROUP, inputs);
        float sum = 0;
        for (uint32_t at = first; at < end; at += group, term++) {
            struct kva_packed_place place = kva_packed_find(format, weight->data, inputs, n, at);
            float min, scale = kva_packed_scale(format, place.head, place.group, place.lane, &min);
            int32_t products = multiply_group(format, place, kva_min_u32(group, end - at), x + at);
            if (!format->has_min)
                products += term->offset;
            sum = fmaf((float)products, scale, sum);
            if (format->has_min)
                sum = fmaf(term->sum, min, sum);
        }
        total = fmaf(sum, *scales, total);
    }
    return total;
}

void kva_linear_packed_ref(const struct kva_cpu_linear *item)
{
    const struct kva_linear_args *args = item->args;
    const struct kva_weight *weight = &args->weight;
    const size_t row_bytes = kva_packed_x_bytes(kva_packed_format(weight->dtype), weight->cols);
    for (uint32_t n = item->out_first; n < item->out_end; n++) {
        for (uint32_t row = item->row_first; row < item->row_end; row++) {
            const int8_t *x = (const int8_t *)item->prepared + row * row_bytes;
            float *out = (float *)args->out + (size_t)row * args->out_stride + n;
            float value = output(weight, n, x);
            if (args->bias.data)
                value += kva_f32_at(args->bias.data, args->bias.dtype, n);
            *out = args->accumulate ? *out + value : value;
        }
    }
}
