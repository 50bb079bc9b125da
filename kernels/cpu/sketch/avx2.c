/* avx2.c - partial keys, level avx2. */
#include "kernels/cpu/simd/avx2.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/sketch/body.h"
