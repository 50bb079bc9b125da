/* avx2.c - the operators on single rows, level avx2. */
#include "kernels/cpu/simd/avx2.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows/angles.h"
#include "kernels/cpu/rows/exp_sum.h"

#include "kernels/cpu/rows/body.h"
