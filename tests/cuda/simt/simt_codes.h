/* simt_codes.h - what kernels/cuda/codes.cuh has instructions for, on the host. Included by it
 * alone. */
#ifndef KVA_TESTS_CUDA_SIMT_CODES_H
#define KVA_TESTS_CUDA_SIMT_CODES_H

inline uint32_t kva_multiply_halves(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const kva_f16 x = {(uint16_t)(a >> shift)}, y = {(uint16_t)(b >> shift)};
        product |= (uint32_t)kva_from_f32<kva_f16>(kva_to_f32(x) * kva_to_f32(y)).bits << shift;
    }
    return product;
}

#endif
