/* avx2.c - mass of the tokens of a split, level avx2. */
#include "kernels/cpu/simd/avx2.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/keep/mass_body.h"
