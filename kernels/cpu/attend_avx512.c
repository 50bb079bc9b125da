/* Attention over one split, and the fold of splits, of level avx512. */
#include "kernels/cpu/kernels_avx512.h"
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/attend_body.h"
