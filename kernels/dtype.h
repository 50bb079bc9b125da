/* dtype.h - the number formats that tensors are stored in. */
#ifndef KVA_KERNELS_DTYPE_H
#define KVA_KERNELS_DTYPE_H

#include "base/kva.h"

enum kva_dtype {
    KVA_F32,
    KVA_F16,  /* IEEE binary16 */
    KVA_BF16, /* upper half of binary32 */
    KVA_DTYPE_COUNT,
};

static inline size_t kva_dtype_bytes(enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? 4 : 2;
}

static inline const char *kva_dtype_name(enum kva_dtype dtype)
{
    return dtype == KVA_F32 ? "f32" : dtype == KVA_F16 ? "f16" : "bf16";
}

#endif
