/* avx2.c - attention over one split, and the fold of splits, of level avx2. */
#include "kernels/cpu/simd/avx2.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/attend/body.h"
