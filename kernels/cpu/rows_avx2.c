/* The operators on single rows, and the table, of level avx2. */
#include "kernels/cpu/angles.h"
#include "kernels/cpu/exp_sum.h"
#include "kernels/cpu/kernels_avx2.h"
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/rows_body.h"

void kva_cpu_kernels_avx2(struct kva_cpu_kernels *kernels)
{
    kernels->embed = kva_embed_avx2;
    kernels->norm = kva_norm_avx2;
    kernels->linear = kva_linear_avx2;
    kernels->linear_int8_prepare = kva_linear_int8_prepare_avx2;
    kernels->linear_int8 = kva_linear_int8_avx2;
    kernels->rope = kva_rope_avx2;
    kernels->glu = kva_glu_avx2;
    kernels->kv_append = kva_kv_append_avx2;
    kernels->attend_split = kva_attend_split_avx2;
    kernels->attend_fold = kva_attend_fold_avx2;
    kernels->quantise = kva_quantise_avx2;
    kernels->lowbit_split = kva_lowbit_split_avx2;
    kernels->lowbit_filter = kva_lowbit_filter_avx2;
    kernels->lowbit_score = kva_lowbit_score_avx2;
    kernels->merge = kva_merge_avx2;
    kernels->exp_sum = kva_exp_sum_avx2;
}
