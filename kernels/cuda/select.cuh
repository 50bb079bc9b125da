/* select.cuh - the limit of selection. */
#ifndef KVA_KERNELS_CUDA_SELECT_CUH
#define KVA_KERNELS_CUDA_SELECT_CUH

/* Query heads of a KV head that may choose together. */
#define KVA_SELECT_HEADS_MAX 256u

#endif
