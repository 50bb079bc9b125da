/* avx512vnni.c - attention over one split of low-bit pages, level avx512vnni. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lowbit/bytes_vnni.h"

void kva_lowbit_split_avx512vnni(const struct kva_cpu_lowbit_split *split)
{
    attend(split);
}
