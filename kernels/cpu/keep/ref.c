/* ref.c - reference kernels of kept rows: what queries give to the tokens of a split, and keys of a
 * store that are rotated. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/keep/roll_body.h"
#include "kernels/cpu/simd/scalar.h"

void kva_mass_keys_ref(const struct kva_cpu_mass_split *split)
{
    for (uint32_t slot = 0; slot < split->slots; slot++) {
        if (split->tokens[slot])
            kva_f32_array(split->tokens[slot], split->kv_dtype, split->head_dim,
                          split->k + (size_t)slot * split->head_dim);
    }
}

void kva_mass_split_ref(const struct kva_cpu_mass_split *split)
{
    const uint32_t dim = split->head_dim;
    for (uint32_t j = 0; j < split->q_count; j++) {
        const float *q = split->q + (size_t)j * dim;
        for (uint32_t slot = 0; slot < split->slot_end[j]; slot++) {
            const float *k = split->k + (size_t)slot * dim;
            float sum = 0.0f;
            if (!split->scored && !split->tokens[slot])
                continue;
            for (uint32_t i = 0; i < dim && !split->scored; i++)
                sum += q[i] * k[i];
            if (split->scored)
                sum = split->scored[j][slot];
            split->mass[slot] += kva_scalar_exp(sum - split->m[j]) * split->inverse[j];
        }
    }
}

void kva_roll_keys_ref(const struct kva_cpu_roll_keys *args)
{
    roll_keys(args);
}
