/* quantise_body.h - quantisation for the vector levels; included by quantise_avx2.c
 * and quantise_avx512.c after their simd header.
 *
 * Does to whole vectors what group.h does to one group, the same operations in the same
 * order. Lanes are channels for keys; for values they are elements of a token's group where the
 * group is read, and tokens where its levels are computed. Groups that are constant, or nearly, are
 * left to group.h. */
#include "kernels/cpu/lowbit/group.h"
#include "kernels/cpu/lowbit/lanes.h"

#define LANES KVA_LOWBIT_GROUP_LANES

/* --- levels of VL groups ---------------------------------------------------------------------- */

struct levels {
    vf low, high;
    vf sum_y; /* of x - low; fit only */
    vf zero, scale;
    vf inverse;
    vf threshold; /* 1 bit */
};

/* The nearest f16. */
INLINE vf v_as_f16(vf x)
{
    uint16_t halves[VL];
    v_store_16(halves, x, KVA_F16);
    return v_load_16(halves, KVA_F16);
}

INLINE void find_levels(struct levels *levels, const uint32_t bits, const bool extremes)
{
    vf low = levels->low, high = levels->high, half = v_set(0.5f);
    levels->threshold = v_add(v_mul(half, low), v_mul(half, high));
    if (bits == 1) {
        levels->zero = v_as_f16(v_add(v_mul(v_set(0.75f), low), v_mul(v_set(0.25f), high)));
        levels->scale = v_as_f16(v_sub(v_mul(half, high), v_mul(half, low)));
        if (extremes) {
            levels->zero = v_as_f16(low);
            levels->scale = v_as_f16(v_min(v_sub(high, low), v_set(65504.0f)));
        }
    } else {
        levels->zero = v_as_f16(low);
        levels->scale = v_as_f16(v_div(v_sub(high, low), v_set((float)((1u << bits) - 1))));
    }
    levels->inverse = v_div(v_set(1.0f), levels->scale);
}

/* Codes as whole numbers. */
INLINE vf code_of(const uint32_t bits, vf x, vf zero, vf inverse, vf threshold)
{
    if (bits == 1)
        return v_where(v_not_less(x, threshold), v_set(1.0f));
    vf level = v_max(v_mul(v_sub(x, zero), inverse), v_zero());
    return v_round(v_min(level, v_set((float)((1u << bits) - 1))));
}

/* Lanes whose group is no ordinary one. */
INLINE uint32_t odd_lanes(const struct levels *levels)
{
    uint32_t constant = ALL_LANES & v_not_less(levels->low, levels->high);
    return constant | (ALL_LANES & ~v_not_less(levels->scale, v_set(0x1p-25f)));
}

/* Least squares over the codes; returns the lanes where they are all one. */
INLINE uint32_t fit_levels(struct levels *levels, float count, vf sum_c, vf sum_cc, vf sum_yc)
{
    vf n = v_set(count);
    vf spread = v_sub(v_mul(n, sum_cc), v_mul(sum_c, sum_c));
    vf scale = v_div(v_sub(v_mul(n, sum_yc), v_mul(levels->sum_y, sum_c)), spread);
    levels->scale = v_as_f16(scale);
    levels->zero =
        v_as_f16(v_add(levels->low, v_div(v_sub(levels->sum_y, v_mul(scale, sum_c)), n)));
    return (ALL_LANES & ~v_not_less(spread, v_set(1.0f))) | odd_lanes(levels);
}

/* Elements as kva_lowbit_number gives them. */
INLINE vf load_numbers(const uint16_t *from, enum kva_dtype dtype, uint32_t n)
{
    vf x = n < VL ? v_load_16_n(from, dtype, n) : v_load_16(from, dtype);
    x = v_add(x, v_zero());
    return v_max(v_set(-65504.0f), v_min(v_set(65504.0f), x)); /* both keep what is no number */
}

/* The sums of LANES lanes, added by halves. */
INLINE vf add_lanes(vf *lanes)
{
    for (uint32_t half = LANES / 2; half > 0; half /= 2) {
        for (uint32_t i = 0; i < half; i++)
            lanes[i] = v_add(lanes[i], lanes[i + half]);
    }
    return lanes[0];
}

/* --- keys ------------------------------------------------------------------------------------- */

/* Nibble `row` of the lanes of four tokens' bits. */
INLINE uint16_t four_nibbles(const uint32_t *bits, uint32_t row)
{
    if (VL == 16) {
        uint64_t four =
            bits[0] | (uint64_t)bits[1] << 16 | (uint64_t)bits[2] << 32 | (uint64_t)bits[3] << 48;
        return (uint16_t)_pext_u64(four, 0x000F000F000F000Full << 4 * row);
    }
    uint32_t four = bits[0] | bits[1] << 8 | bits[2] << 16 | bits[3] << 24;
    return (uint16_t)_pext_u32(four, 0x0F0F0F0Fu << 4 * row);
}

/* Channels [c, c + n) of token group `g`. */
INLINE void quantise_keys(const struct kva_cpu_quantise *args,
                          const struct kva_lowbit_layout *layout, const uint32_t bits,
                          const bool fit, const uint32_t group, uint32_t g, uint32_t c, uint32_t n)
{
    vf x[KVA_LOWBIT_GROUP_MAX], lanes[LANES];
    uint32_t dim = args->head_dim, masks[4][KVA_LOWBIT_GROUP_MAX];
    const uint16_t *from = args->from + (size_t)g * group * 2 * dim + c;
    unsigned char *to = args->to;
    struct levels levels = {.low = v_set(INFINITY), .high = v_set(-INFINITY), .sum_y = v_zero()};
    for (uint32_t t = 0; t < group; t++) {
        x[t] = load_numbers(from + (size_t)t * 2 * dim, args->kv_dtype, n);
        levels.low = v_min(x[t], levels.low);
        levels.high = v_max(x[t], levels.high);
    }
    for (uint32_t i = 0; i < LANES; i++)
        lanes[i] = v_zero();
    for (uint32_t t = 0; fit && t < group; t++)
        lanes[t % LANES] = v_add(lanes[t % LANES], v_sub(x[t], levels.low));
    levels.sum_y = add_lanes(lanes);
    find_levels(&levels, bits, args->format.key_levels == KVA_LEVELS_EXTREMES);
    uint32_t odd = odd_lanes(&levels);
    vf sum_c = v_zero(), sum_cc = v_zero();
    for (uint32_t i = 0; i < LANES; i++)
        lanes[i] = v_zero();
    for (uint32_t t = 0; t < group; t++) {
        vf y = v_sub(x[t], levels.low);
        vf code = code_of(bits, x[t], levels.zero, levels.inverse, levels.threshold);
        for (uint32_t b = 0; b < bits; b++)
            masks[b][t] = v_bit_of(code, b);
        if (fit) {
            sum_c = v_add(sum_c, code);
            sum_cc = v_add(sum_cc, v_mul(code, code));
            lanes[t % LANES] = v_add(lanes[t % LANES], v_mul(y, code));
        }
    }
    if (fit)
        odd |= fit_levels(&levels, (float)group, sum_c, sum_cc, add_lanes(lanes));
    odd &= (1u << n) - 1;
    size_t at = (size_t)(g * dim + c) * 2;
    v_store_16_n((uint16_t *)(void *)(to + layout->k_scale + at), levels.scale, KVA_F16, n);
    v_store_16_n((uint16_t *)(void *)(to + layout->k_zero + at), levels.zero, KVA_F16, n);
    for (uint32_t b = 0; b < bits; b++) {
        for (uint32_t t = 0; odd && t < group; t++)
            masks[b][t] &= ~odd;
        unsigned char *row = to + layout->k_codes + b * layout->plane_bytes +
                             (size_t)(c / 4) * KVA_PAGE_TOKENS / 2 + (size_t)g * group / 2;
        for (uint32_t r = 0; r < n / 4; r++, row += KVA_PAGE_TOKENS / 2) {
            for (uint32_t t = 0; t < group; t += 4) {
                uint16_t nibbles = four_nibbles(&masks[b][t], r);
                memcpy(row + t / 2, &nibbles, sizeof nibbles);
            }
        }
    }
    for (; odd; odd &= odd - 1)
        kva_lowbit_quantise_key(args, layout, g, c + (uint32_t)__builtin_ctz(odd));
}

/* --- values ----------------------------------------------------------------------------------- */

/* Levels of a group of channels of every token. */
struct token_levels {
    float low[KVA_PAGE_TOKENS], high[KVA_PAGE_TOKENS], sum_y[KVA_PAGE_TOKENS];
    float zero[KVA_PAGE_TOKENS], inverse[KVA_PAGE_TOKENS], threshold[KVA_PAGE_TOKENS];
    float sum_c[KVA_PAGE_TOKENS], sum_cc[KVA_PAGE_TOKENS], sum_yc[KVA_PAGE_TOKENS];
};

/* Sums by LANES lanes of a group of `vectors`. */
INLINE float lane_sum(const uint32_t vectors, const vf *y, const vf *code)
{
    vf lanes[LANES / VL];
    for (uint32_t i = 0; i < LANES / VL; i++)
        lanes[i] = v_zero();
    for (uint32_t i = 0; i < vectors; i++) {
        vf x = code ? v_mul(y[i], code[i]) : y[i];
        lanes[i % (LANES / VL)] = v_add(lanes[i % (LANES / VL)], x);
    }
    return v_sum(LANES == VL ? lanes[0] : v_add(lanes[0], lanes[LANES / VL - 1]));
}

INLINE void read_values(const struct kva_cpu_quantise *args, const bool fit, const uint32_t vectors,
                        uint32_t first, struct token_levels *all)
{
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++) {
        const uint16_t *from = args->from + (size_t)(t * 2 + 1) * args->head_dim + first;
        vf x[KVA_LOWBIT_GROUP_MAX / VL], low = v_set(INFINITY), high = v_set(-INFINITY);
        for (uint32_t i = 0; i < vectors; i++) {
            x[i] = load_numbers(from + i * VL, args->kv_dtype, VL);
            low = v_min(x[i], low);
            high = v_max(x[i], high);
        }
        all->low[t] = 0.0f - v_largest(v_sub(v_zero(), low));
        all->high[t] = v_largest(high);
        for (uint32_t i = 0; fit && i < vectors; i++)
            x[i] = v_sub(x[i], v_set(all->low[t]));
        all->sum_y[t] = fit ? lane_sum(vectors, x, NULL) : 0.0f;
    }
}

/* Codes of four tokens; their bits as nibbles of the codes' rows. */
INLINE void code_values(const struct kva_cpu_quantise *args, const struct kva_lowbit_layout *layout,
                        const uint32_t bits, const bool fit, const uint32_t vectors, uint32_t first,
                        uint32_t quad, struct token_levels *all)
{
    uint32_t masks[4][KVA_LOWBIT_GROUP_MAX / VL][4];
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t t = quad * 4 + j;
        const uint16_t *from = args->from + (size_t)(t * 2 + 1) * args->head_dim + first;
        vf y[KVA_LOWBIT_GROUP_MAX / VL], code[KVA_LOWBIT_GROUP_MAX / VL];
        vf sum_c = v_zero(), sum_cc = v_zero();
        for (uint32_t i = 0; i < vectors; i++) {
            vf x = load_numbers(from + i * VL, args->kv_dtype, VL);
            y[i] = v_sub(x, v_set(all->low[t]));
            code[i] = code_of(bits, x, v_set(all->zero[t]), v_set(all->inverse[t]),
                              v_set(all->threshold[t]));
            sum_c = v_add(sum_c, code[i]);
            sum_cc = v_add(sum_cc, v_mul(code[i], code[i]));
            for (uint32_t b = 0; b < bits; b++)
                masks[b][i][j] = v_bit_of(code[i], b);
        }
        if (fit) {
            all->sum_c[t] = v_sum(sum_c);
            all->sum_cc[t] = v_sum(sum_cc);
            all->sum_yc[t] = lane_sum(vectors, y, code);
        }
    }
    for (uint32_t b = 0; b < bits; b++) {
        unsigned char *row = (unsigned char *)args->to + layout->v_codes + b * layout->plane_bytes +
                             ((size_t)quad * args->head_dim + first) / 2;
        for (uint32_t i = 0; i < vectors; i++) {
            uint64_t nibbles = 0;
            for (uint32_t j = 0; j < 4; j++)
                nibbles |= _pdep_u64(masks[b][i][j], 0x1111111111111111ull << j);
            memcpy(row + i * VL / 2, &nibbles, VL / 2);
        }
    }
}

/* Clear what was coded of a token's group and leave it to the plain way. */
static void redo_value(const struct kva_cpu_quantise *args, const struct kva_lowbit_layout *layout,
                       uint32_t group, uint32_t t)
{
    uint32_t first = group * args->format.group;
    uint32_t end = kva_min_u32(first + args->format.group, args->head_dim);
    for (uint32_t b = 0; b < kva_lowbit_value_bits(args->format); b++) {
        unsigned char *plane =
            (unsigned char *)args->to + layout->v_codes + b * layout->plane_bytes;
        for (uint32_t c = first; c < end; c++) {
            size_t bit = kva_lowbit_v_bit(t, c, args->head_dim);
            plane[bit / 8] &= (unsigned char)~(1u << bit % 8);
        }
    }
    kva_lowbit_quantise_value(args, layout, group, t);
}

INLINE void quantise_values(const struct kva_cpu_quantise *args,
                            const struct kva_lowbit_layout *layout, const uint32_t bits,
                            const bool fit, const uint32_t vectors, uint32_t group)
{
    struct token_levels all;
    struct levels levels[KVA_PAGE_TOKENS / VL];
    uint32_t first = group * args->format.group;
    uint64_t odd = 0;
    unsigned char *to = args->to;
    bool extremes = args->format.value_levels == KVA_LEVELS_EXTREMES;
    read_values(args, fit, vectors, first, &all);
    for (uint32_t i = 0, t = 0; t < KVA_PAGE_TOKENS; i++, t += VL) {
        levels[i] = (struct levels){.low = v_load(all.low + t),
                                    .high = v_load(all.high + t),
                                    .sum_y = v_load(all.sum_y + t)};
        find_levels(&levels[i], bits, extremes);
        odd |= (uint64_t)odd_lanes(&levels[i]) << t;
        v_store(all.zero + t, levels[i].zero);
        v_store(all.inverse + t, levels[i].inverse);
        v_store(all.threshold + t, levels[i].threshold);
    }
    for (uint32_t quad = 0; quad < KVA_PAGE_TOKENS / 4; quad++)
        code_values(args, layout, bits, fit, vectors, first, quad, &all);
    for (uint32_t i = 0, t = 0; t < KVA_PAGE_TOKENS; i++, t += VL) {
        if (fit)
            odd |= (uint64_t)fit_levels(&levels[i], (float)(vectors * VL), v_load(all.sum_c + t),
                                        v_load(all.sum_cc + t), v_load(all.sum_yc + t))
                   << t;
        size_t at = (size_t)(group * KVA_PAGE_TOKENS + t) * 2;
        v_store_16((uint16_t *)(void *)(to + layout->v_scale + at), levels[i].scale, KVA_F16);
        v_store_16((uint16_t *)(void *)(to + layout->v_zero + at), levels[i].zero, KVA_F16);
    }
    for (; odd; odd &= odd - 1)
        redo_value(args, layout, group, (uint32_t)__builtin_ctzll(odd));
}

/* --- a head ----------------------------------------------------------------------------------- */

INLINE void quantise_all_keys(const struct kva_cpu_quantise *args,
                              const struct kva_lowbit_layout *layout, const uint32_t bits,
                              const bool fit)
{
    uint32_t dim = args->head_dim;
    unsigned char *to = args->to;
    if (args->exempt > 0) {
        memset(to + layout->k_codes, 0, bits * layout->plane_bytes);
        for (uint32_t i = 0; i < layout->k_groups * dim; i++)
            kva_lowbit_quantise_key(args, layout, i / dim, i % dim);
    }
    for (uint32_t g = 0; args->exempt == 0 && g < layout->k_groups; g++) {
        for (uint32_t c = 0; c < dim; c += VL) {
            uint32_t n = kva_min_u32(VL, dim - c);
            if (args->format.group == 64)
                quantise_keys(args, layout, bits, fit, 64, g, c, n);
            else
                quantise_keys(args, layout, bits, fit, 32, g, c, n);
        }
    }
}

INLINE void quantise_all_values(const struct kva_cpu_quantise *args,
                                const struct kva_lowbit_layout *layout, const uint32_t bits,
                                const bool fit)
{
    for (uint32_t g = 0; g < layout->v_groups; g++) {
        uint32_t size = kva_min_u32(args->format.group, args->head_dim - g * args->format.group);
        if (size == 64) {
            quantise_values(args, layout, bits, fit, 64 / VL, g);
        } else if (size == 32) {
            quantise_values(args, layout, bits, fit, 32 / VL, g);
        } else if (size == 16) {
            quantise_values(args, layout, bits, fit, 16 / VL, g);
        } else {
            for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++)
                redo_value(args, layout, g, t);
        }
    }
}

INLINE void quantise(const struct kva_cpu_quantise *args, const uint32_t bits,
                     const uint32_t value_bits)
{
    const struct kva_lowbit_layout layout = kva_lowbit_layout_of(args->format, args->head_dim);
    if (args->format.key_levels == KVA_LEVELS_FIT)
        quantise_all_keys(args, &layout, bits, true);
    else
        quantise_all_keys(args, &layout, bits, false);
    if (args->format.value_levels == KVA_LEVELS_FIT)
        quantise_all_values(args, &layout, value_bits, true);
    else
        quantise_all_values(args, &layout, value_bits, false);
}

void LEVEL(kva_quantise)(const struct kva_cpu_quantise *args)
{
    switch (args->format.bits) {
    case 1:
        if (kva_lowbit_value_bits(args->format) == 2)
            quantise(args, 1, 2);
        else
            quantise(args, 1, 1);
        break;
    case 2:
        quantise(args, 2, 2);
        break;
    default:
        quantise(args, 4, 4);
        break;
    }
}
