/* kernels_avx512bf16.h - the kernels of level avx512bf16; cpu.h says what each does. Where the
 * level has none for a format they hand on to those of level avx512, which every such machine has.
 */
#ifndef KVA_KERNELS_CPU_KERNELS_AVX512BF16_H
#define KVA_KERNELS_CPU_KERNELS_AVX512BF16_H

#include "kernels/cpu/cpu.h"

size_t kva_linear_row_bytes_avx512bf16(const struct kva_linear_args *args);
void kva_linear_prepare_avx512bf16(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                                   void *prepared);
void kva_linear_avx512bf16(const struct kva_cpu_linear *item);
void kva_attend_split_avx512bf16(const struct kva_cpu_attend_split *split);

#endif
