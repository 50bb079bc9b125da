/* packed_expand.h - packed weights to bytes; included by packed_body.h.
 *
 * What products read is, for every group of weights (16, 32 or 128 inputs of 16 outputs),
 *
 *   [scale f32][min f32, where the format has one][step]...    64 bytes each
 *
 * with whole bytes of codes. int8 lies like that in memory; the others are expanded into a piece of
 * the first-level cache, some inputs of one or two panels at a time: few instructions beside the
 * memory that they wait for, and with many rows done once for all of them. */

/* What is prefetched lies so far ahead: microseconds of memory's time. */
#define AHEAD_BYTES 8192u

#define LINE        KVA_PACKED_LINE_BYTES

/* Vectors of a line. */
#define LINE_VECTORS (KVA_PACKED_PANEL / VL)

/* Loops with constant bounds go altogether: what they index are registers. */
#define UNROLL _Pragma("GCC unroll 16")

/* Expands the next `inputs` inputs of a panel, whose blocks begin at `from`. */
typedef void expand_fn(const uint8_t *from, uint32_t inputs, uint8_t *to);

/* Bits of step `step` of each code in byte vector v of a line, from bit `to` of a byte on. */
INLINE vi step_bits(const uint8_t *lines, const uint32_t bits, const uint32_t to,
                    const uint32_t step, const size_t v)
{
    const uint32_t steps = 8 / bits;
    const int down = (int)(step % steps * bits) - (int)to;
    vi line = load_bytes(lines + step / steps * LINE + v * VL * 4);
    if (bits == 8)
        return line;
    line = down >= 0 ? shift_right(line, down) : shift_left(line, -down);
    return and_bytes(line, (uint8_t)(((1u << bits) - 1) << to));
}

INLINE void expand_step(const struct kva_packed_format *format, const uint8_t *piece,
                        const uint32_t step, uint8_t *to)
{
    const uint32_t low = format->low_bits, high = format->high_bits;
    UNROLL
    for (size_t v = 0; v < LINE_VECTORS; v++) {
        vi codes = step_bits(piece, low, 0, step, v);
        if (high)
            codes = or_bytes(codes, step_bits(piece + (size_t)low * LINE, high, low, step, v));
        store_bytes(to + v * VL * 4, codes);
    }
}

/* Scales and mins of a group of a block. */
INLINE void expand_scales(const struct kva_packed_format *format, const uint8_t *head,
                          uint32_t group, uint8_t *to)
{
    const uint32_t groups = format->block_inputs / format->scale_inputs;
    const uint8_t *parts = head + LINE;
    UNROLL
    for (uint32_t n = 0; n < KVA_PACKED_PANEL; n += VL) {
        const size_t at = (size_t)group * KVA_PACKED_PANEL + n;
        vf scale = v_zero(), min = v_zero();
        switch (format->head) {
        case KVA_HEAD_F32: /* is not expanded */
            break;
        case KVA_HEAD_F16:
            scale = load_halves(head + at * 2);
            break;
        case KVA_HEAD_F16_MIN:
            scale = load_halves(head + at * 2);
            min = load_halves(head + (groups * KVA_PACKED_PANEL + at) * 2);
            break;
        case KVA_HEAD_K_SIGNED:
            scale = v_mul(load_halves(head + n * 2), float_of_ints(load_signed(parts + at)));
            break;
        case KVA_HEAD_K_MIN:
            scale = v_mul(load_halves(head + n * 2), float_of_ints(load_unsigned(parts + at)));
            min = v_mul(load_halves(head + (KVA_PACKED_PANEL + n) * 2),
                        float_of_ints(load_unsigned(parts + groups * KVA_PACKED_PANEL + at)));
            break;
        case KVA_HEAD_K_MIN_4BIT:
            scale = v_mul(load_halves(head + n * 2),
                          float_of_ints(and_bytes(load_unsigned(parts + at), 15)));
            min = v_mul(load_halves(head + (KVA_PACKED_PANEL + n) * 2),
                        float_of_ints(shift_right(load_unsigned(parts + at), 4)));
            break;
        }
        if (format->head == KVA_HEAD_K_MIN || format->head == KVA_HEAD_K_MIN_4BIT)
            min = v_sub(v_set(-0.0f), min);
        v_store((float *)(void *)to + n, scale);
        if (format->has_min)
            v_store((float *)(void *)(to + LINE) + n, min);
    }
}

INLINE void expand(const struct kva_packed_format *format, const uint8_t *from, uint32_t inputs,
                   uint8_t *to)
{
    const uint32_t lines = format->low_bits + format->high_bits;
    const uint32_t group_steps = format->scale_inputs / KVA_PACKED_STEP_INPUTS;
    while (inputs > 0) {
        const uint8_t *head = from;
        const uint32_t count = kva_min_u32(format->block_inputs, inputs);
        uint32_t group = 0;
        for (uint32_t i = 0; i < format->head_bytes / LINE; i++)
            _mm_prefetch((const char *)from + AHEAD_BYTES + (size_t)i * LINE, _MM_HINT_T0);
        from += format->head_bytes;
        for (uint32_t at = 0; at < count; at += KVA_PACKED_PIECE_INPUTS) {
            UNROLL
            for (uint32_t i = 0; i < lines; i++)
                _mm_prefetch((const char *)from + AHEAD_BYTES + (size_t)i * LINE, _MM_HINT_T0);
            UNROLL
            for (uint32_t step = 0; step < KVA_PACKED_PIECE_STEPS; step++, to += LINE) {
                if (step % group_steps == 0) {
                    expand_scales(format, head, group++, to);
                    to += format->has_min ? 2 * LINE : LINE;
                }
                expand_step(format, from, step, to);
            }
            from += (size_t)lines * LINE;
        }
        inputs -= count;
    }
}

#define EXPAND(name, dtype)                                                                        \
    static void expand_##name(const uint8_t *from, uint32_t inputs, uint8_t *to)                   \
    {                                                                                              \
        expand(&kva_packed_table[dtype - KVA_INT8], from, inputs, to);                             \
    }

EXPAND(q4_0, KVA_Q4_0)
EXPAND(q4_1, KVA_Q4_1)
EXPAND(q5_0, KVA_Q5_0)
EXPAND(q5_1, KVA_Q5_1)
EXPAND(q8_0, KVA_Q8_0)
EXPAND(q2_k, KVA_Q2_K)
EXPAND(q3_k, KVA_Q3_K)
EXPAND(q4_k, KVA_Q4_K)
EXPAND(q5_k, KVA_Q5_K)
EXPAND(q6_k, KVA_Q6_K)
