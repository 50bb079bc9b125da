/* ref.c - reference kernels of partial keys. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/scalar.h"

void kva_sketch_row_ref(float *out, const float *x, const float *basis, uint32_t dim,
                        uint32_t columns)
{
    for (uint32_t c = 0; c < columns; c++) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < dim; i++)
            sum = fmaf(x[i], basis[(size_t)i * dim + c], sum);
        out[c] = sum;
    }
}

/* A number of column c of token t, without its scale. */
static float number_at(const struct kva_cpu_sketch_score *args, uint32_t c, uint32_t t)
{
    const size_t at = (size_t)c * KVA_PAGE_TOKENS + t;
    if (args->format.bits == 16)
        return kva_f32_of_16(((const uint16_t *)args->keys)[at], args->kv_dtype);
    return (float)((const int8_t *)args->keys)[at];
}

void kva_sketch_score_ref(const struct kva_cpu_sketch_score *args)
{
    const uint32_t columns = args->format.columns;
    const uint16_t *scales =
        (const void *)((const unsigned char *)args->keys + (size_t)columns * KVA_PAGE_TOKENS);
    for (uint32_t h = 0; h < args->heads; h++) {
        const float *q = args->q + (size_t)h * columns;
        float *out = args->out + (size_t)h * args->stride;
        for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++) {
            float sum = 0.0f;
            for (uint32_t c = 0; c < columns; c++)
                sum = fmaf(q[c], number_at(args, c, t), sum);
            out[t] = args->format.bits == 16 ? sum : sum * kva_f32_of_f16(scales[t]);
        }
    }
}

float kva_sketch_most_ref(const float *scores, uint32_t count)
{
    float most = -INFINITY;
    for (uint32_t i = 0; i < count; i++)
        most = scores[i] > most ? scores[i] : most;
    return most;
}

void kva_sketch_weights_ref(float *out, const float *scores, size_t stride, const float *most,
                            uint32_t heads, uint32_t count)
{
    for (uint32_t t = 0; t < count; t++) {
        float nearest = -INFINITY;
        for (uint32_t h = 0; h < heads; h++) {
            const float x = scores[h * stride + t] - most[h];
            nearest = x > nearest ? x : nearest;
        }
        out[t] = nearest > KVA_SKETCH_FAR ? kva_scalar_exp(nearest) : -1.0f;
    }
}
