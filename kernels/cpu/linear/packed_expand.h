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

INLINE vf v_negative(vf x)
{
    return v_sub(v_set(-0.0f), x);
}

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

/* Vector v of the codes of a step of a piece, as whole bytes. */
INLINE vi read_codes(const struct kva_packed_format *format, const uint8_t *piece,
                     const uint32_t step, const size_t v)
{
    const uint32_t low = format->low_bits, high = format->high_bits;
    vi codes = step_bits(piece, low, 0, step, v);
    if (high)
        codes = or_bytes(codes, step_bits(piece + (size_t)low * LINE, high, low, step, v));
    return codes;
}

struct scales {
    vf scale;
    vf min;
};

/* Vector v of what the groups of a block share: d and -e of K formats. */
INLINE struct scales read_block(const struct kva_packed_format *format, const uint8_t *head,
                                const size_t v)
{
    const uint8_t *d = head + v * VL * 2;
    if (format->head == KVA_HEAD_K_SIGNED)
        return (struct scales){load_halves(d), v_zero()};
    if (format->head == KVA_HEAD_K_MIN || format->head == KVA_HEAD_K_MIN_4BIT)
        return (struct scales){load_halves(d), v_negative(load_halves(d + KVA_PACKED_PANEL * 2))};
    return (struct scales){v_zero(), v_zero()};
}

/* Vector v of the scales and mins of a group of a block. */
INLINE struct scales read_scales(const struct kva_packed_format *format, const uint8_t *head,
                                 struct scales block, uint32_t group, const size_t v)
{
    const uint32_t groups = format->block_inputs / format->scale_inputs;
    const size_t at = (size_t)group * KVA_PACKED_PANEL + v * VL;
    const uint8_t *s = head + LINE + at, *m = s + groups * KVA_PACKED_PANEL;
    switch (format->head) {
    case KVA_HEAD_F32: /* lies in memory as it is read */
        break;
    case KVA_HEAD_F16:
        return (struct scales){load_halves(head + at * 2), v_zero()};
    case KVA_HEAD_F16_MIN:
        return (struct scales){load_halves(head + at * 2),
                               load_halves(head + (groups * KVA_PACKED_PANEL + at) * 2)};
    case KVA_HEAD_K_SIGNED:
        return (struct scales){v_mul(block.scale, float_of_ints(load_signed(s))), v_zero()};
    case KVA_HEAD_K_MIN:
        return (struct scales){v_mul(block.scale, float_of_ints(load_unsigned(s))),
                               v_mul(block.min, float_of_ints(load_unsigned(m)))};
    case KVA_HEAD_K_MIN_4BIT:
        return (struct scales){v_mul(block.scale, float_of_ints(and_bytes(load_unsigned(s), 15))),
                               v_mul(block.min, float_of_ints(shift_right(load_unsigned(s), 4)))};
    }
    return (struct scales){v_zero(), v_zero()};
}

INLINE void expand_group(const struct kva_packed_format *format, const uint8_t *head,
                         const struct scales block[LINE_VECTORS], uint32_t group, uint8_t *to)
{
    UNROLL
    for (size_t v = 0; v < LINE_VECTORS; v++) {
        struct scales scales = read_scales(format, head, block[v], group, v);
        v_store((float *)(void *)to + v * VL, scales.scale);
        if (format->has_min)
            v_store((float *)(void *)(to + LINE) + v * VL, scales.min);
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
        struct scales block[LINE_VECTORS];
        uint32_t group = 0;
        UNROLL
        for (size_t v = 0; v < LINE_VECTORS; v++)
            block[v] = read_block(format, head, v);
        from += format->head_bytes;
        for (uint32_t at = 0; at < count; at += KVA_PACKED_PIECE_INPUTS) {
            UNROLL
            for (uint32_t step = 0; step < KVA_PACKED_PIECE_STEPS; step++, to += LINE) {
                if (step % group_steps == 0) {
                    expand_group(format, head, block, group++, to);
                    to += format->has_min ? 2 * LINE : LINE;
                }
                UNROLL
                for (size_t v = 0; v < LINE_VECTORS; v++)
                    store_bytes(to + v * VL * 4, read_codes(format, from, step, v));
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
