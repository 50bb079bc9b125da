/* body.h - partial keys for the vector levels; included by avx2.c and avx512.c after their simd
 * header. Every sum is one chain of fused products, as at level ref. */

/* Heads whose sums are in registers at once, and vectors of tokens. */
#define TILE_HEADS   4u
#define TILE_VECTORS 2u

void LEVEL(kva_sketch_row)(float *out, const float *x, const float *basis, uint32_t dim,
                           uint32_t columns)
{
    uint32_t c = 0;
    for (; c + 4 * VL <= columns; c += 4 * VL) {
        vf sums[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
        for (uint32_t i = 0; i < dim; i++) {
            for (uint32_t j = 0; j < 4; j++)
                sums[j] = v_fma(v_set(x[i]), v_load(basis + (size_t)i * dim + c + j * VL), sums[j]);
        }
        for (uint32_t j = 0; j < 4; j++)
            v_store(out + c + j * VL, sums[j]);
    }
    for (; c < columns; c += VL) {
        const uint32_t count = kva_min_u32(VL, columns - c);
        vf sum = v_zero();
        for (uint32_t i = 0; i < dim; i++)
            sum = v_fma(v_set(x[i]), v_load_n(basis + (size_t)i * dim + c, count), sum);
        v_store_n(out + c, sum, count);
    }
}

INLINE vf load_numbers(const void *keys, const bool wide, const enum kva_dtype dtype, size_t at)
{
    if (wide)
        return v_load_16((const uint16_t *)keys + at, dtype);
    return v_load_i8((const int8_t *)keys + at);
}

/* `heads` is a constant, 1 to TILE_HEADS. */
INLINE void score_heads(const struct kva_cpu_sketch_score *args, const uint32_t heads,
                        const bool wide, const enum kva_dtype dtype, uint32_t first)
{
    const uint32_t columns = args->format.columns;
    const float *q = args->q + (size_t)first * columns;
    const uint16_t *scales =
        (const void *)((const unsigned char *)args->keys + (size_t)columns * KVA_PAGE_TOKENS);
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t += TILE_VECTORS * VL) {
        vf sums[TILE_HEADS][TILE_VECTORS];
        for (uint32_t h = 0; h < heads; h++)
            sums[h][0] = sums[h][1] = v_zero();
        for (uint32_t c = 0; c < columns; c++) {
            const size_t at = (size_t)c * KVA_PAGE_TOKENS + t;
            const vf k[TILE_VECTORS] = {load_numbers(args->keys, wide, dtype, at),
                                        load_numbers(args->keys, wide, dtype, at + VL)};
            for (uint32_t h = 0; h < heads; h++) {
                const vf x = v_set(q[(size_t)h * columns + c]);
                sums[h][0] = v_fma(x, k[0], sums[h][0]);
                sums[h][1] = v_fma(x, k[1], sums[h][1]);
            }
        }
        for (uint32_t h = 0; h < heads; h++) {
            float *out = args->out + (size_t)(first + h) * args->stride + t;
            for (uint32_t v = 0; v < TILE_VECTORS; v++)
                v_store(out + v * VL,
                        wide ? sums[h][v]
                             : v_mul(sums[h][v], v_load_16(scales + t + v * VL, KVA_F16)));
        }
    }
}

INLINE void score_all(const struct kva_cpu_sketch_score *args, const bool wide,
                      const enum kva_dtype dtype)
{
    uint32_t h = 0;
    for (; h + TILE_HEADS <= args->heads; h += TILE_HEADS)
        score_heads(args, TILE_HEADS, wide, dtype, h);
    switch (args->heads - h) {
    case 3:
        score_heads(args, 3, wide, dtype, h);
        break;
    case 2:
        score_heads(args, 2, wide, dtype, h);
        break;
    case 1:
        score_heads(args, 1, wide, dtype, h);
        break;
    default:
        break;
    }
}

void LEVEL(kva_sketch_score)(const struct kva_cpu_sketch_score *args)
{
    if (args->format.bits != 16)
        score_all(args, false, KVA_F16);
    else if (args->kv_dtype == KVA_BF16)
        score_all(args, true, KVA_BF16);
    else
        score_all(args, true, KVA_F16);
}

/* v_max gives its second where one is no number. */
float LEVEL(kva_sketch_most)(const float *scores, uint32_t count)
{
    vf most = v_set(-INFINITY);
    uint32_t i = 0;
    for (; i + VL <= count; i += VL)
        most = v_max(v_load(scores + i), most);
    float top = v_largest(most);
    for (; i < count; i++)
        top = scores[i] > top ? scores[i] : top;
    return top;
}

void LEVEL(kva_sketch_weights)(float *out, const float *scores, size_t stride, const float *most,
                               uint32_t heads, uint32_t count)
{
    for (uint32_t t = 0; t < count; t += VL) {
        const uint32_t n = kva_min_u32(VL, count - t);
        vf nearest = v_set(-INFINITY);
        for (uint32_t h = 0; h < heads; h++)
            nearest = v_max(v_sub(v_load_n(scores + h * stride + t, n), v_set(most[h])), nearest);
        const vf far = v_sub(nearest, v_set(KVA_SKETCH_FAR));
        v_store_n(out + t, v_if_negative(far, v_set(-1.0f), v_exp(nearest)), n);
    }
}
