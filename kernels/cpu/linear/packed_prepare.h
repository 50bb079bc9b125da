/* packed_prepare.h - rows of activations in 8 bits, group by group; included by each level behind its
 * round_group, which gives a group's codes and its scale, and sum_eights: sums[i] = 1024 + the sum of
 * codes 8 i to 8 i + 7 of a group. */

#define EIGHTS (KVA_PACKED_ROW_GROUP / 8)

/* The terms of a group of activations; `inputs` is a constant. */
static inline void put_sums(const struct kva_packed_format *format, const uint32_t inputs,
                            const uint64_t *eights, union kva_packed_term *terms)
{
    for (uint32_t at = 0; at < EIGHTS; at += inputs / 8, terms++) {
        int32_t sum = -128 * (int32_t)inputs;
        for (uint32_t i = 0; i < inputs / 8; i++)
            sum += (int32_t)eights[at + i];
        if (format->has_min)
            terms->sum = (float)sum;
        else
            terms->offset = -(int32_t)format->zero * sum;
    }
}

static void put_terms(const struct kva_packed_format *format, const int8_t *codes,
                      union kva_packed_term *terms)
{
    uint64_t eights[EIGHTS];
    sum_eights(codes, eights);
    if (format->scale_inputs == 16)
        put_sums(format, 16, eights, terms);
    else if (format->scale_inputs == 32)
        put_sums(format, 32, eights, terms);
    else
        put_sums(format, KVA_PACKED_ROW_GROUP, eights, terms);
}

static void prepare_row(const struct kva_packed_format *format, const float *x, uint32_t inputs,
                        int8_t *codes)
{
    float *scales = (void *)(uintptr_t)kva_packed_x_scales(codes, inputs);
    union kva_packed_term *terms = (void *)(uintptr_t)kva_packed_x_terms(codes, inputs);
    for (uint32_t at = 0; at < inputs; at += KVA_PACKED_ROW_GROUP, scales++) {
        float rest[KVA_PACKED_ROW_GROUP];
        const float *from = x + at;
        if (inputs - at < KVA_PACKED_ROW_GROUP) {
            memset(rest, 0, sizeof(rest));
            memcpy(rest, from, (inputs - at) * sizeof(float));
            from = rest;
        }
        *scales = round_group(from, codes + at);
        put_terms(format, codes + at, terms);
        terms += kva_packed_x_parts(format);
    }
}

/* Rows [first, end). */
static void prepare(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                    void *prepared)
{
    const struct kva_packed_format *format = kva_packed_format(args->weight.dtype);
    const size_t row_bytes = kva_packed_x_bytes(format, args->weight.cols);
    for (uint32_t row = first; row < end; row++)
        prepare_row(format, (const float *)args->x + (size_t)row * args->x_stride,
                    args->weight.cols, (int8_t *)prepared + row * row_bytes);
}
