/* Attention over one split, and the fold of splits, of level avx2. */
#include "kernels/cpu/kernels_avx2.h"
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/attend_body.h"
