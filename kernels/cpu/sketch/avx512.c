/* avx512.c - partial keys, level avx512. */
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/sketch/body.h"
