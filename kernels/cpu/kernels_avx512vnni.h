/* kernels_avx512vnni.h - the kernels of level avx512vnni; cpu.h says what each does. */
#ifndef KVA_KERNELS_CPU_KERNELS_AVX512VNNI_H
#define KVA_KERNELS_CPU_KERNELS_AVX512VNNI_H

#include "kernels/cpu/cpu.h"

void kva_lowbit_split_avx512vnni(const struct kva_cpu_lowbit_split *split);
void kva_linear_int8_avx512vnni(const struct kva_cpu_linear *item);

#endif
