/* quantise_avx2.c - quantisation of level avx2. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/avx2.h"

#include "kernels/cpu/lowbit/quantise_body.h"
