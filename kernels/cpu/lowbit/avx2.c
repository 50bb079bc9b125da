/* avx2.c - low-bit KV of level avx2. */
#include "kernels/cpu/simd/avx2.h"
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/lowbit/body.h"
