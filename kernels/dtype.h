/* dtype.h - the number formats that tensors are stored in. */
#ifndef KVA_KERNELS_DTYPE_H
#define KVA_KERNELS_DTYPE_H

#include "base/kva.h"

#include <stdbool.h>

enum kva_dtype {
    KVA_F32,
    KVA_F16,                    /* IEEE binary16 */
    KVA_BF16,                   /* upper half of binary32 */
    KVA_DTYPE_COUNT,            /* formats of single numbers */
    KVA_INT8 = KVA_DTYPE_COUNT, /* formats of whole matrices: packed.h; from KVA_Q4_0 on GGUF's */
    KVA_Q4_0,
    KVA_Q4_1,
    KVA_Q5_0,
    KVA_Q5_1,
    KVA_Q8_0,
    KVA_Q2_K,
    KVA_Q3_K,
    KVA_Q4_K,
    KVA_Q5_K,
    KVA_Q6_K,
    KVA_DTYPE_END,
};

static inline bool kva_dtype_is_packed(enum kva_dtype dtype)
{
    return dtype >= KVA_INT8 && dtype < KVA_DTYPE_END;
}

/* Of one number; packed formats have no such thing (kva_weight_bytes). */
static inline size_t kva_dtype_bytes(enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? 4 : 2;
}

static inline const char *kva_dtype_name(enum kva_dtype dtype)
{
    static const char *const names[] = {"f32",  "f16",  "bf16", "int8", "q4_0", "q4_1", "q5_0",
                                        "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};
    return names[dtype];
}

#endif
