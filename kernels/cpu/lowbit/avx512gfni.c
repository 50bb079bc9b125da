/* avx512gfni.c - attention over one split of low-bit pages, level avx512bf16 where the processor has
 * GFNI: that of avx512vnni, but for how codes become bytes (bytes.h), with the same bits. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lowbit/bytes_vnni.h"

void kva_lowbit_split_avx512gfni(const struct kva_cpu_lowbit_split *split)
{
    attend(split);
}
