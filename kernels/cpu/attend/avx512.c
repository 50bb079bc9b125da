/* avx512.c - attention over one split, and the fold of splits, of level avx512. */
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/attend/body.h"
