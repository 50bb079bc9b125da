/* ref.c - reference kernel of linear. */
#include "kernels/convert.h"
#include "kernels/cpu/cpu.h"

#define LANES 8

static float dot(const float *x, const float *w, uint32_t count)
{
    float lanes[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (uint32_t lane = 0; lane < LANES; lane++)
            lanes[lane] += x[i + lane] * w[i + lane];
    }
    for (uint32_t lane = 0; i + lane < count; lane++)
        lanes[lane] += x[i + lane] * w[i + lane];
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

size_t kva_linear_row_bytes_ref(const struct kva_linear_args *args KVA_UNUSED)
{
    return 0;
}

void kva_linear_ref(const struct kva_cpu_linear *item)
{
    const struct kva_linear_args *args = item->args;
    const struct kva_weight *weight = &args->weight;
    const uint32_t row_first = item->row_first, row_end = item->row_end;
    float *totals = item->scratch;               /* [KVA_CPU_LINEAR_ROWS] */
    float *inner = totals + KVA_CPU_LINEAR_ROWS; /* [KVA_CPU_LINEAR_INNER] */
    for (uint32_t output = item->out_first; output < item->out_end; output++) {
        memset(totals, 0, KVA_CPU_LINEAR_ROWS * sizeof *totals);
        for (uint32_t k = 0; k < weight->cols; k += KVA_CPU_LINEAR_INNER) {
            uint32_t count = kva_min_u32(KVA_CPU_LINEAR_INNER, weight->cols - k);
            kva_f32_array(
                kva_element(weight->data, weight->dtype, (size_t)output * weight->cols + k),
                weight->dtype, count, inner);
            for (uint32_t row = row_first; row < row_end; row++) {
                const float *x = (const float *)args->x + (size_t)row * args->x_stride + k;
                totals[row - row_first] += dot(x, inner, count);
            }
        }
        for (uint32_t row = row_first; row < row_end; row++) {
            float *out = (float *)args->out + (size_t)row * args->out_stride + output;
            float value = totals[row - row_first];
            if (args->bias.data)
                value += kva_f32_at(args->bias.data, args->bias.dtype, output);
            *out = args->accumulate ? *out + value : value;
        }
    }
}
