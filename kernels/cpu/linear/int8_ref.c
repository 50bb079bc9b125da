/* int8_ref.c - reference kernel of linear with weights in int8. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/linear/int8_row.h"

#include <math.h>

/* A whole group of numbers. */
static void round_group(const float *x, int8_t *codes, struct kva_int8_x_group *group)
{
    uint32_t largest = 0;
    float inverse;
    for (uint32_t i = 0; i < KVA_INT8_GROUP; i++)
        largest = kva_max_u32(largest, kva_bits_of_float(x[i]) & 0x7FFFFFFFu);
    group->scale = kva_int8_x_scale(largest, &inverse);
    int32_t sum = 0;
    for (uint32_t i = 0; i < KVA_INT8_GROUP; i++) {
        codes[i] = (int8_t)(inverse == 0 ? 0 : lrintf(x[i] * inverse));
        sum += codes[i];
    }
    group->offset = -128 * sum;
}

#include "kernels/cpu/linear/int8_prepare.h"

void kva_linear_int8_prepare_ref(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                                 void *prepared)
{
    prepare(args, first, end, prepared);
}

/* One output of one row; `lines`: the panel, `n`: the output in it. */
static float output(const uint8_t *lines, uint32_t n, const int8_t *x, uint32_t inputs)
{
    const struct kva_int8_x_group *groups = kva_int8_x_groups(x, inputs);
    float total = 0;
    for (uint32_t g = 0; g * KVA_INT8_GROUP < inputs; g++) {
        const uint32_t count = (uint32_t)kva_align_up(
            kva_min_u32(KVA_INT8_GROUP, inputs - g * KVA_INT8_GROUP), KVA_PACKED_PIECE_INPUTS);
        float scale;
        memcpy(&scale, lines + n * sizeof(scale), sizeof(scale));
        lines += KVA_INT8_LINE_BYTES;
        int32_t sum = groups[g].offset;
        for (uint32_t i = 0; i < count; i += KVA_INT8_STEP_INPUTS) {
            for (uint32_t j = 0; j < KVA_INT8_STEP_INPUTS; j++)
                sum += lines[n * KVA_INT8_STEP_INPUTS + j] * x[i + j];
            lines += KVA_INT8_LINE_BYTES;
        }
        total = fmaf((float)sum, scale * groups[g].scale, total);
        x += KVA_INT8_GROUP;
    }
    return total;
}

void kva_linear_int8_ref(const struct kva_cpu_linear *item)
{
    const struct kva_linear_args *args = item->args;
    const struct kva_weight *weight = &args->weight;
    const size_t panel_bytes = kva_int8_panel_bytes(weight->cols);
    const size_t row_bytes = kva_int8_x_bytes(weight->cols);
    for (uint32_t n = item->out_first; n < item->out_end; n++) {
        const uint8_t *lines = (const uint8_t *)weight->data + n / KVA_INT8_PANEL * panel_bytes;
        for (uint32_t row = item->row_first; row < item->row_end; row++) {
            const int8_t *x = (const int8_t *)item->prepared + row * row_bytes;
            float *out = (float *)args->out + (size_t)row * args->out_stride + n;
            float value = output(lines, n % KVA_INT8_PANEL, x, weight->cols);
            if (args->bias.data)
                value += kva_f32_at(args->bias.data, args->bias.dtype, n);
            *out = args->accumulate ? *out + value : value;
        }
    }
}
