/* avx512.c - mass of the tokens of a split, level avx512. */
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/keep/mass_body.h"
