/* avx512.c - low-bit KV of level avx512. */
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/lowbit/body.h"
