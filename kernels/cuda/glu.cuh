/* glu.cuh - what stands between an MLP's two products. */
#ifndef KVA_KERNELS_CUDA_GLU_CUH
#define KVA_KERNELS_CUDA_GLU_CUH

#include "kernels/cuda/number.cuh"

/* x / (1 + e^z), without the branch of a division that is right for every number: a quarter of the
 * divisor, one at least and no infinity, has a reciprocal in the range of normal numbers, and a step
 * of Newton's makes that right to its last bit but one. */
static __device__ __forceinline__ float kva_by_logistic(float x, float z)
{
    const float by = fminf(fmaf(expf(z), 0.25f, 0.25f), 0x1p127f);
    float r = kva_reciprocal(by);
    r = fmaf(fmaf(-by, r, 1.0f), r, r);
    return 0.25f * x * r;
}

struct kva_silu {
    static __device__ __forceinline__ float of(float x)
    {
        return kva_by_logistic(x, -x);
    }
};

struct kva_gelu { /* by erfc, which keeps its precision where x is negative */
    static __device__ __forceinline__ float of(float x)
    {
        return 0.5f * x * erfcf(-x * 0.70710678118654752f);
    }
};

struct kva_gelu_tanh {
    static __device__ __forceinline__ float of(float x)
    {
        return kva_by_logistic(x, -2.0f * 0.79788456080286536f * (x + 0.044715f * (x * x * x)));
    }
};

struct kva_relu {
    static __device__ __forceinline__ float of(float x)
    {
        return x > 0.0f || x != x ? x : 0.0f;
    }
};

/* Where it is not known to the compiler which. */
static __device__ __forceinline__ float kva_activate(enum kva_activation activation, float x)
{
    switch (activation) {
    case KVA_ACT_SILU:
        return kva_silu::of(x);
    case KVA_ACT_GELU:
        return kva_gelu::of(x);
    case KVA_ACT_GELU_TANH:
        return kva_gelu_tanh::of(x);
    default:
        return kva_relu::of(x);
    }
}

#endif
