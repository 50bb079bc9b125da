/* body.h - the operators on single rows for the vector levels; included by avx2.c and
 * avx512.c after their simd header. A row that is no whole number of vectors ends in one that
 * is partly masked: the same functions, so the same bits wherever an element lies. */

/* Elements [i, i + n) of an array of any format; n = VL: a whole vector. */
INLINE vf load_part(const void *from, enum kva_dtype dtype, size_t i, uint32_t n)
{
    const void *at = kva_element(from, dtype, i);
    return n == VL ? v_load_any(at, dtype) : v_load_any_n(at, dtype, n);
}

INLINE vf load_floats(const float *from, uint32_t n)
{
    return n == VL ? v_load(from) : v_load_n(from, n);
}

INLINE void store_floats(float *to, vf x, uint32_t n)
{
    if (n == VL)
        v_store(to, x);
    else
        v_store_n(to, x, n);
}

/* Elements of the vector that starts at `i` of `count`. */
INLINE uint32_t part(size_t i, size_t count)
{
    return count - i < VL ? (uint32_t)(count - i) : VL;
}

void LEVEL(kva_embed)(const struct kva_embed_args *args, uint32_t first, uint32_t end)
{
    size_t dim = args->table.cols;
    enum kva_dtype dtype = args->table.dtype, other = args->positions_table.dtype;
    for (uint32_t row = first; row < end; row++) {
        float *out = (float *)args->out + row * dim;
        for (size_t i = 0; i < dim; i += VL) {
            uint32_t n = part(i, dim);
            vf x = v_mul(load_part(args->table.data, dtype, args->ids[row] * dim + i, n),
                         v_set(args->scale));
            if (args->positions_table.data)
                x = v_add(x, load_part(args->positions_table.data, other,
                                       args->positions[row] * dim + i, n));
            store_floats(out + i, x, n);
        }
    }
}

/* sum x[i] */
static float sum(const float *x, size_t count)
{
    vf total = v_zero();
    for (size_t i = 0; i < count; i += VL)
        total = v_add(total, load_floats(x + i, part(i, count)));
    return v_sum(total);
}

/* sum (x[i] - mean)^2 */
static float sum_squares(const float *x, size_t count, float mean)
{
    vf total = v_zero();
    for (size_t i = 0; i < count; i += VL) {
        uint32_t n = part(i, count);
        vf d = v_sub(load_floats(x + i, n), v_set(mean));
        if (n < VL)
            d = v_keep_n(d, n);
        total = v_fma(d, d, total);
    }
    return v_sum(total);
}

void LEVEL(kva_norm)(const struct kva_norm_args *args, uint32_t first, uint32_t end)
{
    size_t dim = args->dim;
    bool biased = args->kind == KVA_NORM_LAYER && args->bias.data;
    for (uint32_t row = first; row < end; row++) {
        const float *x = (const float *)args->x + row * dim;
        float *out = (float *)args->out + row * dim;
        float mean = args->kind == KVA_NORM_LAYER ? sum(x, dim) / (float)dim : 0.0f;
        float variance = sum_squares(x, dim, mean) / (float)dim;
        float scale = 1.0f / sqrtf(variance + args->eps);
        for (size_t i = 0; i < dim; i += VL) {
            uint32_t n = part(i, dim);
            vf w = v_add(load_part(args->weight.data, args->weight.dtype, i, n),
                         v_set(args->weight_offset));
            vf y = v_mul(v_sub(load_floats(x + i, n), v_set(mean)), v_set(scale));
            y = v_mul(y, w);
            if (biased)
                y = v_add(y, load_part(args->bias.data, args->bias.dtype, i, n));
            store_floats(out + i, y, n);
        }
    }
}

/* The heads of a row. */
INLINE void rotate(float *x, uint32_t heads, uint32_t head_dim, uint32_t half, const float *cosines,
                   const float *sines)
{
    for (uint32_t head = 0; head < heads; head++) {
        float *low = x + (size_t)head * head_dim;
        float *high = low + half;
        for (uint32_t i = 0; i < half; i += VL) {
            uint32_t n = part(i, half);
            vf a = load_floats(low + i, n), b = load_floats(high + i, n);
            vf c = load_floats(cosines + i, n), s = load_floats(sines + i, n);
            store_floats(low + i, v_sub(v_mul(a, c), v_mul(b, s)), n);
            store_floats(high + i, v_fma(a, s, v_mul(b, c)), n);
        }
    }
}

void LEVEL(kva_rope)(const struct kva_rope_args *args, uint32_t first, uint32_t end, float *scratch)
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

INLINE vf activate(vf x, enum kva_activation activation)
{
    const vf one = v_set(1.0f);
    vf z;
    switch (activation) {
    case KVA_ACT_SILU:
        return v_div(x, v_add(one, v_exp(v_sub(v_zero(), x))));
    case KVA_ACT_GELU:
        z = v_erfc(v_mul(v_abs(x), v_set(KVA_SQRT_HALF)));
        return v_mul(v_mul(v_set(0.5f), x), v_if_negative(x, z, v_sub(v_set(2.0f), z)));
    case KVA_ACT_GELU_TANH:
        z = v_mul(v_mul(x, x), x);
        z = v_mul(v_set(-KVA_GELU_TANH_SCALE), v_fma(v_set(KVA_GELU_TANH_CUBE), z, x));
        return v_div(x, v_add(one, v_exp(z)));
    case KVA_ACT_RELU:
        return v_max(v_zero(), x);
    }
    return x;
}

INLINE void glu(const struct kva_glu_args *args, size_t first, size_t end,
                enum kva_activation activation)
{
    const float *gate = args->gate, *up = args->up;
    float *out = args->out;
    for (size_t i = first; i < end; i += VL) {
        uint32_t n = part(i, end);
        vf y = activate(load_floats(gate + i, n), activation);
        if (up)
            y = v_mul(y, load_floats(up + i, n));
        store_floats(out + i, y, n);
    }
}

void LEVEL(kva_glu)(const struct kva_glu_args *args, size_t first, size_t end)
{
    switch (args->activation) {
    case KVA_ACT_SILU:
        glu(args, first, end, KVA_ACT_SILU);
        break;
    case KVA_ACT_GELU:
        glu(args, first, end, KVA_ACT_GELU);
        break;
    case KVA_ACT_GELU_TANH:
        glu(args, first, end, KVA_ACT_GELU_TANH);
        break;
    case KVA_ACT_RELU:
        glu(args, first, end, KVA_ACT_RELU);
        break;
    }
}

INLINE void narrow(const float *from, size_t count, enum kva_dtype dtype, uint16_t *to)
{
    size_t i = 0;
    for (; i + VL <= count; i += VL)
        v_store_16(to + i, v_load(from + i), dtype);
    if (i < count)
        v_store_16_n(to + i, v_load_n(from + i, part(i, count)), dtype, part(i, count));
}

void LEVEL(kva_kv_append)(const struct kva_kv_append_args *args, uint32_t first, uint32_t end)
{
    size_t dim = args->head_dim;
    for (uint32_t row = first; row < end; row++) {
        unsigned char *block = (unsigned char *)args->blocks[row] + args->block_offset_bytes;
        size_t slot = args->positions[row] % KVA_PAGE_TOKENS;
        for (size_t head = 0; head < args->kv_heads; head++) {
            uint16_t *to = (uint16_t *)(void *)block + (head * KVA_PAGE_TOKENS + slot) * 2 * dim;
            size_t from = (row * (size_t)args->kv_heads + head) * dim;
            narrow((const float *)args->k + from, dim, args->kv_dtype, to);
            narrow((const float *)args->v + from, dim, args->kv_dtype, to + dim);
        }
    }
}

/* The greater, or what is not a number. */
INLINE float greater(float a, float b)
{
    return b > a || b != b ? b : a;
}

void LEVEL(kva_merge)(const struct kva_merge_args *args, uint32_t first, uint32_t end,
                      float *scratch)
{
    const struct kva_partial *partials = args->partials;
    size_t dim = args->head_dim;
    for (size_t pair = first; pair < end; pair++) {
        float m = -INFINITY, e = 0.0f;
        for (uint32_t j = 0; j < args->partial_count; j++)
            m = greater(m, partials[j].m[pair]);
        bool empty = m == -INFINITY;
        for (uint32_t j = 0; j < args->partial_count; j++) {
            scratch[j] = empty ? 0.0f : v_exp_first(partials[j].m[pair] - m);
            e += partials[j].e[pair] * scratch[j];
        }
        vf divisor = v_set(empty ? 1.0f : e);
        for (size_t i = 0; i < dim; i += VL) {
            uint32_t n = part(i, dim);
            vf total = v_zero();
            for (uint32_t j = 0; j < args->partial_count; j++)
                total =
                    v_fma(load_floats(partials[j].a + pair * dim + i, n), v_set(scratch[j]), total);
            store_floats((float *)args->out + pair * dim + i, v_div(total, divisor), n);
        }
    }
}

double LEVEL(kva_exp_sum)(const float *logits, uint32_t count, float limit, float temperature)
{
    return exp_sum(logits, count, limit, temperature);
}
