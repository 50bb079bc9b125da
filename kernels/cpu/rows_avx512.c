/* The operators on single rows, and the table, of level avx512. */
#include "kernels/cpu/angles.h"
#include "kernels/cpu/exp_sum.h"
#include "kernels/cpu/kernels_avx512.h"
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/rows_body.h"

void kva_cpu_kernels_avx512(struct kva_cpu_kernels *kernels)
{
    kernels->embed = kva_embed_avx512;
    kernels->norm = kva_norm_avx512;
    kernels->linear = kva_linear_avx512;
    kernels->linear_int8_prepare = kva_linear_int8_prepare_avx512;
    kernels->linear_int8 = kva_linear_int8_avx512;
    kernels->rope = kva_rope_avx512;
    kernels->glu = kva_glu_avx512;
    kernels->kv_append = kva_kv_append_avx512;
    kernels->attend_split = kva_attend_split_avx512;
    kernels->attend_fold = kva_attend_fold_avx512;
    kernels->quantise = kva_quantise_avx512;
    kernels->lowbit_split = kva_lowbit_split_avx512;
    kernels->lowbit_filter = kva_lowbit_filter_avx512;
    kernels->lowbit_score = kva_lowbit_score_avx512;
    kernels->merge = kva_merge_avx512;
    kernels->exp_sum = kva_exp_sum_avx512;
}
