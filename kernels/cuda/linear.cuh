/* linear.cuh - the ways of a product, of which linear.cu takes one. */
#ifndef KVA_KERNELS_CUDA_LINEAR_CUH
#define KVA_KERNELS_CUDA_LINEAR_CUH

#include "kernels/cuda/device_cuda.h"

/* linear_few.cu: products of the same few rows in one launch; false: they are not such, and nothing
 * was done. */
bool kva_cuda_linear_few(struct kva_device *device, const struct kva_linear_args *products,
                         uint32_t count);
bool kva_cuda_linear_few_glu(struct kva_device *device, const struct kva_linear_glu_args *args);

/* linear_packed.cu: the same of packed weights of one format, up to some more rows. */
bool kva_cuda_linear_packed_few(struct kva_device *device, const struct kva_linear_args *products,
                                uint32_t count);
bool kva_cuda_linear_packed_glu(struct kva_device *device, const struct kva_linear_glu_args *args);

/* Linear with weights in the activations' format; false: it could not be launched. */
typedef bool kva_cuda_linear_fn(struct kva_device *device, const struct kva_linear_args *args);

/* With packed weights, expanded for `multiply`. */
bool kva_cuda_linear_packed(struct kva_device *device, const struct kva_linear_args *args,
                            kva_cuda_linear_fn *multiply);

#endif
