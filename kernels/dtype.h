/* dtype.h - the number formats that tensors are stored in. */
#ifndef KVA_KERNELS_DTYPE_H
#define KVA_KERNELS_DTYPE_H

#include "base/kva.h"

enum kva_dtype {
    KVA_F32,
    KVA_F16,                    /* IEEE binary16 */
    KVA_BF16,                   /* upper half of binary32 */
    KVA_DTYPE_COUNT,            /* formats of single numbers */
    KVA_INT8 = KVA_DTYPE_COUNT, /* a whole matrix of linear: int8.h */
};

/* Of one number; KVA_INT8 has no such thing (kva_weight_bytes). */
static inline size_t kva_dtype_bytes(enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? 4 : 2;
}

static inline const char *kva_dtype_name(enum kva_dtype dtype)
{
    static const char *const names[] = {"f32", "f16", "bf16", "int8"};
    return names[dtype];
}

#endif
