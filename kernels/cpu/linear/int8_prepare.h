/* int8_prepare.h - rows of activations in 8 bits, group by group; included by each level behind its
 * round_group. */

/* Rows [first, end). */
static void prepare(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                    void *prepared)
{
    const uint32_t inputs = args->weight.cols, groups = kva_int8_groups(inputs);
    const size_t row_bytes = kva_int8_x_bytes(inputs);
    for (uint32_t row = first; row < end; row++) {
        const float *x = (const float *)args->x + (size_t)row * args->x_stride;
        int8_t *codes = (int8_t *)prepared + row * row_bytes;
        struct kva_int8_x_group *group = (void *)(codes + (size_t)groups * KVA_INT8_GROUP);
        for (uint32_t g = 0; g < groups; g++, codes += KVA_INT8_GROUP, group++) {
            const uint32_t at = g * KVA_INT8_GROUP;
            if (inputs - at >= KVA_INT8_GROUP) {
                round_group(x + at, codes, group);
                continue;
            }
            float rest[KVA_INT8_GROUP] = {0};
            memcpy(rest, x + at, (inputs - at) * sizeof(float));
            round_group(rest, codes, group);
        }
    }
}
