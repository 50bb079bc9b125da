/* Low-bit KV of level avx512. */
#include "kernels/cpu/kernels_avx512.h"
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/lowbit_body.h"
