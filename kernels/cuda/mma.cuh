/* mma.cuh - the tensor-core product and the copies that feed it; on the host, what they compute
 * (tests/cuda/simt/simt_mma.h).
 *
 * Fragments of m16n8k16 (PTX ISA), lane = 4 * g + t:
 *
 *   a[0] row g      columns 2 t, 2 t + 1      a[2] row g      columns 2 t + 8, + 9
 *   a[1] row g + 8  the same                  a[3] row g + 8  the same
 *   b[0] rows 2 t, 2 t + 1, column g          b[1] rows 2 t + 8, + 9, column g
 *   c[0], c[1] row g, columns 2 t, 2 t + 1    c[2], c[3] row g + 8 */
#ifndef KVA_KERNELS_CUDA_MMA_CUH
#define KVA_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/number.cuh"

#ifdef __CUDACC__

static __device__ __forceinline__ uint32_t kva_shared_address(const void *data)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

/* c += a b, 16 x 8 x 16, fp32 accumulation. */
template <typename T>
static __device__ __forceinline__ void kva_mma(float *c, const uint32_t *a, uint32_t b0,
                                               uint32_t b1);

template <>
__device__ __forceinline__ void kva_mma<kva_bf16>(float *c, const uint32_t *a, uint32_t b0,
                                                  uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void kva_mma<kva_f16>(float *c, const uint32_t *a, uint32_t b0,
                                                 uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices of 16-bit elements from shared memory; lane 8 i + j gives the address of row
 * j of matrix i. to[i], lane 4 g + t: row g, columns 2 t and 2 t + 1 of matrix i. */
static __device__ __forceinline__ void kva_load_matrices(uint32_t *to, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(kva_shared_address(row))
                 : "memory");
}

/* The same, transposed: rows 2 t and 2 t + 1, column g. */
static __device__ __forceinline__ void kva_load_transposed(uint32_t *to, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(kva_shared_address(row))
                 : "memory");
}

/* An 8 x 8 matrix of 16-bit elements, transposed between the lanes of a warp: lane 4 g + t has
 * columns 2 t and 2 t + 1 of row g before and after. */
static __device__ __forceinline__ uint32_t kva_transpose(uint32_t pair)
{
    uint32_t to;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
    return to;
}

/* 16 bytes that are read once, of memory that the kernel does not write: they need not stay in a
 * cache. Not `valid`: `to` stays. */
static __device__ __forceinline__ void kva_load_once(uint4 &to, const void *from, bool valid)
{
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.u32 p, %5, 0;\n\t"
                 "@p ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
                 "}"
                 : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
                 : "l"(from), "r"(static_cast<uint32_t>(valid)));
}

/* 16 bytes from global to shared memory, later; zeros instead if not `valid`. */
static __device__ __forceinline__ void kva_copy_async(void *to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(kva_shared_address(to)),
                 "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}

/* Close a group of such copies. */
static __device__ __forceinline__ void kva_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until at most N of the newest groups of this thread are under way. */
template <int N> static __device__ __forceinline__ void kva_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else
#include <simt_mma.h>
#endif

#endif
