/* Quantisation of level avx2. */
#include "kernels/cpu/kernels_avx2.h"
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/lowbit_quantise_body.h"
