/* linear of level avx512. */
#include "kernels/cpu/kernels_avx512.h"
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/linear_body.h"
