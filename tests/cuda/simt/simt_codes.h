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

namespace simt
{

struct transposed {
    uint32_t from, to;
};

inline void transpose(void *const *lanes, uint32_t mask)
{
    if (mask != 0xFFFFFFFFu)
        defect("a matrix is transposed with the mask 0x%x", mask);
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        uint32_t bits[2];
        for (int j = 0; j < 2; j++) {
            const transposed *row = (const transposed *)lanes[4 * (2 * t + j) + g / 2];
            bits[j] = row->from >> g % 2 * 16 & 0xFFFFu;
        }
        ((transposed *)lanes[lane])->to = bits[0] | bits[1] << 16;
    }
}

} // namespace simt

inline uint32_t kva_transpose(uint32_t x)
{
    simt::transposed own = {x, 0};
    simt::warp_collective(0xFFFFFFFFu, simt::transpose, &own);
    return own.to;
}

inline float kva_exp2(float x)
{
    const float power = exp2f(x);
    return power < 0x1p-126f ? 0.0f : power; /* what is not a number stays */
}

#endif
