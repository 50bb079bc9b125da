/* avx512.c - mass of the tokens of a split, and keys of a store that are rotated, level avx512. */
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/keep/mass_body.h"
#include "kernels/cpu/keep/roll_body.h"

void kva_roll_keys_avx512(const struct kva_cpu_roll_keys *args)
{
    roll_keys(args);
}
