/* kernels_amx.h - the kernels of level amx; cpu.h says what each does. Where the level has none for
 * a format they hand on to those of level avx512, which every such machine has. */
#ifndef KVA_KERNELS_CPU_KERNELS_AMX_H
#define KVA_KERNELS_CPU_KERNELS_AMX_H

#include "kernels/cpu/cpu.h"

/* Outputs and rows of one tile. */
#define KVA_AMX_OUTPUTS 16u
#define KVA_AMX_ROWS    16u

size_t kva_linear_row_bytes_amx(const struct kva_linear_args *args);
void kva_linear_prepare_amx(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                            void *prepared);
void kva_linear_amx(const struct kva_cpu_linear *item);
void kva_linear_int8_amx(const struct kva_cpu_linear *item);
void kva_attend_split_amx(const struct kva_cpu_attend_split *split);
void kva_lowbit_split_amx(const struct kva_cpu_lowbit_split *split);

#endif
