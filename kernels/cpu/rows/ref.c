/* ref.c - reference kernels of the operators on single rows: embed, norm, rope, glu, kv_append,
 * merge. */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/rows/angles.h"
#include "kernels/cpu/rows/exp_sum.h"
#include "kernels/cpu/simd/scalar.h"

/* Sums go by this many lanes, then by a tree: it vectorises without changing the order. */
#define LANES 8

void kva_embed_ref(const struct kva_embed_args *args, uint32_t first, uint32_t end)
{
    size_t dim = args->table.cols;
    for (uint32_t row = first; row < end; row++) {
        float *out = (float *)args->out + row * dim;
        const void *from = kva_element(args->table.data, args->table.dtype, args->ids[row] * dim);
        for (size_t i = 0; i < dim; i++)
            out[i] = kva_f32_at(from, args->table.dtype, i) * args->scale;
        if (!args->positions_table.data)
            continue;
        enum kva_dtype dtype = args->positions_table.dtype;
        from = kva_element(args->positions_table.data, dtype, args->positions[row] * dim);
        for (size_t i = 0; i < dim; i++)
            out[i] += kva_f32_at(from, dtype, i);
    }
}

static float lanes_total(const float *lanes)
{
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/* sum x[i] */
static float sum(const float *x, uint32_t count)
{
    float lanes[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (uint32_t lane = 0; lane < LANES; lane++)
            lanes[lane] += x[i + lane];
    }
    for (uint32_t lane = 0; i + lane < count; lane++)
        lanes[lane] += x[i + lane];
    return lanes_total(lanes);
}

/* sum (x[i] - mean)^2 */
static float sum_squares(const float *x, uint32_t count, float mean)
{
    float lanes[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            float d = x[i + lane] - mean;
            lanes[lane] += d * d;
        }
    }
    for (uint32_t lane = 0; i + lane < count; lane++) {
        float d = x[i + lane] - mean;
        lanes[lane] += d * d;
    }
    return lanes_total(lanes);
}

void kva_norm_ref(const struct kva_norm_args *args, uint32_t first, uint32_t end)
{
    size_t dim = args->dim;
    for (uint32_t row = first; row < end; row++) {
        const float *x = (const float *)args->x + row * dim;
        float *out = (float *)args->out + row * dim;
        float mean = 0.0f;
        if (args->kind == KVA_NORM_LAYER)
            mean = sum(x, args->dim) / (float)dim;
        float variance = sum_squares(x, args->dim, mean) / (float)dim;
        float scale = 1.0f / sqrtf(variance + args->eps);
        for (size_t i = 0; i < dim; i++) {
            float w = kva_f32_at(args->weight.data, args->weight.dtype, i) + args->weight_offset;
            float y = (x[i] - mean) * scale * w;
            if (args->kind == KVA_NORM_LAYER && args->bias.data)
                y += kva_f32_at(args->bias.data, args->bias.dtype, i);
            out[i] = y;
        }
    }
}

/* The heads of a row. */
static void rotate(float *x, uint32_t heads, uint32_t head_dim, uint32_t half, const float *cosines,
                   const float *sines)
{
    for (uint32_t head = 0; head < heads; head++) {
        float *low = x + (size_t)head * head_dim;
        float *high = low + half;
        for (uint32_t i = 0; i < half; i++) {
            float a = low[i], b = high[i];
            low[i] = a * cosines[i] - b * sines[i];
            high[i] = b * cosines[i] + a * sines[i];
        }
    }
}

void kva_rope_ref(const struct kva_rope_args *args, uint32_t first, uint32_t end, float *scratch)
{
    uint32_t half = args->rotary_dim / 2;
    float *cosines = scratch, *sines = scratch + half;
    for (uint32_t row = first; row < end; row++) {
        kva_angles(args->positions[row], args->inv_freq, half, args->factor, cosines, sines);
        rotate((float *)args->x + (size_t)row * args->x_stride, args->heads, args->head_dim, half,
               cosines, sines);
        if (args->second)
            rotate((float *)args->second + (size_t)row * args->second_stride, args->second_heads,
                   args->head_dim, half, cosines, sines);
    }
}

static float activate(float x, enum kva_activation activation)
{
    float z;
    switch (activation) {
    case KVA_ACT_SILU:
        return x / (1.0f + kva_scalar_exp(-x));
    case KVA_ACT_GELU:
        z = kva_scalar_erfc(fabsf(x) * KVA_SQRT_HALF);
        return 0.5f * x * (x < 0.0f ? z : 2.0f - z);
    case KVA_ACT_GELU_TANH:
        z = KVA_GELU_TANH_SCALE * (x + KVA_GELU_TANH_CUBE * (x * x * x));
        return x / (1.0f + kva_scalar_exp(-z));
    case KVA_ACT_RELU:
        return x > 0.0f || x != x ? x : 0.0f;
    }
    return x;
}

void kva_glu_ref(const struct kva_glu_args *args, size_t first, size_t end)
{
    const float *gate = args->gate, *up = args->up;
    float *out = args->out;
    for (size_t i = first; i < end; i++) {
        float y = activate(gate[i], args->activation);
        out[i] = up ? y * up[i] : y;
    }
}

void kva_kv_append_ref(const struct kva_kv_append_args *args, uint32_t first, uint32_t end)
{
    size_t dim = args->head_dim;
    for (uint32_t row = first; row < end; row++) {
        unsigned char *block = (unsigned char *)args->blocks[row] + args->block_offset_bytes;
        size_t slot = args->positions[row] % KVA_PAGE_TOKENS;
        for (size_t head = 0; head < args->kv_heads; head++) {
            uint16_t *to = (uint16_t *)(void *)block + (head * KVA_PAGE_TOKENS + slot) * 2 * dim;
            const float *k = (const float *)args->k + (row * args->kv_heads + head) * dim;
            const float *v = (const float *)args->v + (row * args->kv_heads + head) * dim;
            for (size_t i = 0; i < dim; i++) {
                to[i] = kva_16_of_f32(k[i], args->kv_dtype);
                to[dim + i] = kva_16_of_f32(v[i], args->kv_dtype);
            }
        }
    }
}

/* The greater, or what is not a number. */
static float greater(float a, float b)
{
    return b > a || b != b ? b : a;
}

void kva_merge_ref(const struct kva_merge_args *args, uint32_t first, uint32_t end, float *scratch)
{
    size_t dim = args->head_dim;
    for (size_t pair = first; pair < end; pair++) {
        float *out = (float *)args->out + pair * dim;
        float m = -INFINITY, e = 0.0f;
        for (uint32_t j = 0; j < args->partial_count; j++)
            m = greater(m, args->partials[j].m[pair]);
        for (size_t i = 0; i < dim; i++)
            out[i] = 0.0f;
        if (m == -INFINITY)
            continue;
        for (uint32_t j = 0; j < args->partial_count; j++) {
            scratch[j] = kva_scalar_exp(args->partials[j].m[pair] - m);
            e += args->partials[j].e[pair] * scratch[j];
        }
        for (uint32_t j = 0; j < args->partial_count; j++) {
            const float *a = args->partials[j].a + pair * dim;
            for (size_t i = 0; i < dim; i++)
                out[i] += a[i] * scratch[j];
        }
        for (size_t i = 0; i < dim; i++)
            out[i] /= e;
    }
}

double kva_exp_sum_ref(const float *logits, uint32_t count, float limit, float temperature)
{
    return exp_sum(logits, count, limit, temperature);
}
