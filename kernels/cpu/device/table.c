/* table.c - which kernels each level has: the table of a device is filled from `ref` and overridden
 * upward. */
#include "kernels/cpu/cpu.h"

/* Everything but linear_prepare: linear_row_bytes says 0. */
static void put_ref(struct kva_cpu_kernels *kernels)
{
    *kernels = (struct kva_cpu_kernels){
        .embed = kva_embed_ref,
        .norm = kva_norm_ref,
        .linear_outputs = 4,
        .linear_rows = 1,
        .linear_row_bytes = kva_linear_row_bytes_ref,
        .linear = kva_linear_ref,
        .linear_packed_prepare = kva_linear_packed_prepare_ref,
        .linear_packed = kva_linear_packed_ref,
        .linear_int8 = kva_linear_packed_ref,
        .rope = kva_rope_ref,
        .glu = kva_glu_ref,
        .kv_append = kva_kv_append_ref,
        .attend_split = kva_attend_split_ref,
        .attend_fold = kva_attend_fold_ref,
        .mass_keys = kva_mass_keys_ref,
        .mass_split = kva_mass_split_ref,
        .roll_keys = kva_roll_keys_ref,
        .quantise = kva_quantise_ref,
        .lowbit_split = kva_lowbit_split_ref,
        .lowbit_filter = kva_lowbit_filter_ref,
        .lowbit_score = kva_lowbit_score_ref,
        .sketch_row = kva_sketch_row_ref,
        .sketch_score = kva_sketch_score_ref,
        .sketch_most = kva_sketch_most_ref,
        .sketch_weights = kva_sketch_weights_ref,
        .merge = kva_merge_ref,
        .exp_sum = kva_exp_sum_ref,
    };
}

#ifdef KVA_CPU_X86
static void put_avx2(struct kva_cpu_kernels *kernels)
{
    kernels->embed = kva_embed_avx2;
    kernels->norm = kva_norm_avx2;
    kernels->linear = kva_linear_avx2;
    kernels->linear_packed_prepare = kva_linear_packed_prepare_avx2;
    kernels->linear_packed = kva_linear_packed_avx2;
    kernels->linear_int8 = kva_linear_packed_avx2;
    kernels->rope = kva_rope_avx2;
    kernels->glu = kva_glu_avx2;
    kernels->kv_append = kva_kv_append_avx2;
    kernels->attend_split = kva_attend_split_avx2;
    kernels->attend_fold = kva_attend_fold_avx2;
    kernels->mass_keys = kva_mass_keys_avx2;
    kernels->mass_split = kva_mass_split_avx2;
    kernels->roll_keys = kva_roll_keys_avx2;
    kernels->quantise = kva_quantise_avx2;
    kernels->lowbit_split = kva_lowbit_split_avx2;
    kernels->lowbit_filter = kva_lowbit_filter_avx2;
    kernels->lowbit_score = kva_lowbit_score_avx2;
    kernels->sketch_row = kva_sketch_row_avx2;
    kernels->sketch_score = kva_sketch_score_avx2;
    kernels->sketch_most = kva_sketch_most_avx2;
    kernels->sketch_weights = kva_sketch_weights_avx2;
    kernels->merge = kva_merge_avx2;
    kernels->exp_sum = kva_exp_sum_avx2;
}

static void put_avx512(struct kva_cpu_kernels *kernels)
{
    kernels->embed = kva_embed_avx512;
    kernels->norm = kva_norm_avx512;
    kernels->linear = kva_linear_avx512;
    kernels->linear_packed_prepare = kva_linear_packed_prepare_avx512;
    kernels->linear_packed = kva_linear_packed_avx512;
    kernels->linear_int8 = kva_linear_packed_avx512;
    kernels->rope = kva_rope_avx512;
    kernels->glu = kva_glu_avx512;
    kernels->kv_append = kva_kv_append_avx512;
    kernels->attend_split = kva_attend_split_avx512;
    kernels->attend_fold = kva_attend_fold_avx512;
    kernels->mass_keys = kva_mass_keys_avx512;
    kernels->mass_split = kva_mass_split_avx512;
    kernels->roll_keys = kva_roll_keys_avx512;
    kernels->quantise = kva_quantise_avx512;
    kernels->lowbit_split = kva_lowbit_split_avx512;
    kernels->lowbit_filter = kva_lowbit_filter_avx512;
    kernels->lowbit_score = kva_lowbit_score_avx512;
    kernels->sketch_row = kva_sketch_row_avx512;
    kernels->sketch_score = kva_sketch_score_avx512;
    kernels->sketch_most = kva_sketch_most_avx512;
    kernels->sketch_weights = kva_sketch_weights_avx512;
    kernels->merge = kva_merge_avx512;
    kernels->exp_sum = kva_exp_sum_avx512;
}

static void put_avx512vnni(struct kva_cpu_kernels *kernels)
{
    kernels->linear_packed = kva_linear_packed_avx512vnni;
    kernels->linear_int8 = kva_linear_packed_avx512vnni;
    kernels->lowbit_split = kva_lowbit_split_avx512vnni;
}

static void put_avx512bf16(struct kva_cpu_kernels *kernels)
{
    kernels->linear_row_bytes = kva_linear_row_bytes_avx512bf16;
    kernels->linear_prepare = kva_linear_prepare_avx512bf16;
    kernels->linear = kva_linear_avx512bf16;
    kernels->attend_split = kva_attend_split_avx512bf16;
    kernels->attend_fold = kva_attend_fold_avx512;
    kernels->mass_keys = kva_mass_keys_avx512bf16;
    kernels->mass_split = kva_mass_split_avx512bf16;
    kernels->lowbit_split =
        kva_cpu_has_gfni() ? kva_lowbit_split_avx512gfni : kva_lowbit_split_avx512vnni;
}

static void put_amx(struct kva_cpu_kernels *kernels)
{
    kernels->linear_outputs = KVA_AMX_OUTPUTS;
    kernels->linear_rows = KVA_AMX_ROWS;
    kernels->linear_row_bytes = kva_linear_row_bytes_amx;
    kernels->linear_prepare = kva_linear_prepare_amx;
    kernels->linear = kva_linear_amx;
    kernels->linear_int8 = kva_linear_int8_amx;
    kernels->attend_split = kva_attend_split_amx;
    kernels->mass_keys = kva_mass_keys_amx;
    kernels->mass_split = kva_mass_split_amx;
    kernels->lowbit_split = kva_lowbit_split_amx;
}
#endif

enum kva_status kva_cpu_kernels_fill(uint32_t mask, uint32_t emulated,
                                     struct kva_cpu_kernels *kernels, uint32_t *ret_levels,
                                     struct kva_err *err)
{
    uint32_t there = kva_cpu_levels() | emulated;
    for (uint32_t rest = mask & ~there; rest; rest &= rest - 1) {
        uint32_t level = rest & (~rest + 1);
        return kva_fail_param(err, KVA_EINVAL, "cpu_level_mask",
                              "this machine has no CPU level '%s' (bit 0x%x): asked for 0x%x, "
                              "available 0x%x",
                              kva_cpu_level_name(level), level, mask, there);
    }
    uint32_t levels = (mask ? mask : there) | KVA_CPU_REF;
    put_ref(kernels);
#ifdef KVA_CPU_X86
    if (levels & KVA_CPU_AVX2)
        put_avx2(kernels);
    if (levels & KVA_CPU_AVX512)
        put_avx512(kernels);
    if (levels & KVA_CPU_AVX512VNNI)
        put_avx512vnni(kernels);
    if (levels & KVA_CPU_AVX512BF16)
        put_avx512bf16(kernels);
    if (levels & KVA_CPU_AMX)
        put_amx(kernels);
#endif
    *ret_levels = levels;
    return KVA_OK;
}
