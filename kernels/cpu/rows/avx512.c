/* avx512.c - the operators on single rows, level avx512. */
#include "kernels/cpu/simd/avx512.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/rows/angles.h"
#include "kernels/cpu/rows/exp_sum.h"

#include "kernels/cpu/rows/body.h"
