/* formats.h - numbers in the formats of tensors, computed apart from the kernels' own conversions. */
#ifndef KVA_TESTS_KERNELS_FORMATS_H
#define KVA_TESTS_KERNELS_FORMATS_H

#include "kernels/dtype.h"

/* The number that a 16-bit pattern stands for, and the nearest pattern with saturation. */
double check_widen(uint16_t bits, enum kva_dtype dtype);
uint16_t check_narrow(float value, enum kva_dtype dtype);

/* What a number is to the products of level avx512bf16: rounded to bf16, and 0 below the normal
 * numbers. */
double check_round_bf16(double value);

/* `x` rounded to a format, to even; what is beyond the range of F16 becomes
 * infinite. */
float format_round(float x, enum kva_dtype dtype);

/* The relative error of one rounding to a format, and the absolute error below its normal numbers.
 */
double format_unit(enum kva_dtype dtype);
double format_least(enum kva_dtype dtype);

/* Element `index` of an array in a format; beyond the range of F16: infinity. */
void format_store(void *to, size_t index, float x, enum kva_dtype dtype);
float format_fetch(const void *from, size_t index, enum kva_dtype dtype);

#endif
