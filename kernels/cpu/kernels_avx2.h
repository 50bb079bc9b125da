/* kernels_avx2.h - the kernels of level avx2; cpu.h says what each does. */
#ifndef KVA_KERNELS_CPU_KERNELS_AVX2_H
#define KVA_KERNELS_CPU_KERNELS_AVX2_H

#include "kernels/cpu/cpu.h"

void kva_embed_avx2(const struct kva_embed_args *args, uint32_t first, uint32_t end);
void kva_norm_avx2(const struct kva_norm_args *args, uint32_t first, uint32_t end);
void kva_rope_avx2(const struct kva_rope_args *args, uint32_t first, uint32_t end, float *scratch);
void kva_glu_avx2(const struct kva_glu_args *args, size_t first, size_t end);
void kva_kv_append_avx2(const struct kva_kv_append_args *args, uint32_t first, uint32_t end);
void kva_merge_avx2(const struct kva_merge_args *args, uint32_t first, uint32_t end,
                    float *scratch);
double kva_exp_sum_avx2(const float *logits, uint32_t count, float limit, float temperature);
void kva_linear_avx2(const struct kva_cpu_linear *item);
void kva_linear_int8_prepare_avx2(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                                  void *prepared);
void kva_linear_int8_avx2(const struct kva_cpu_linear *item);
void kva_attend_split_avx2(const struct kva_cpu_attend_split *split);
void kva_attend_fold_avx2(float *a, float *m, float *e, const float *split_a, float split_m,
                          float split_e, uint32_t head_dim);
void kva_quantise_avx2(const struct kva_cpu_quantise *args);
void kva_lowbit_split_avx2(const struct kva_cpu_lowbit_split *split);
uint32_t kva_lowbit_filter_avx2(const struct kva_cpu_lowbit_filter *args);
void kva_lowbit_score_avx2(float *out, const float *q, const void *const *rows, uint32_t count,
                           uint32_t head_dim, enum kva_dtype kv_dtype);

#endif
