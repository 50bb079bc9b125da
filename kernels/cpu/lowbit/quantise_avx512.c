/* quantise_avx512.c - quantisation of level avx512. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/avx512.h"

#include "kernels/cpu/lowbit/quantise_body.h"
