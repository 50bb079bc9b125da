/* avx512.c - linear of level avx512. */
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/linear/body.h"
