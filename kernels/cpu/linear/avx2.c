/* avx2.c - linear of level avx2. */
#include "kernels/cpu/simd/avx2.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/linear/body.h"
