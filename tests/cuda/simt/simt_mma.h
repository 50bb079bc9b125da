/* simt_mma.h - what kernels/cuda/mma.cuh computes, on the host. Included by it alone. */
#ifndef KVA_TESTS_CUDA_SIMT_MMA_H
#define KVA_TESTS_CUDA_SIMT_MMA_H

#include "tests/cuda/simt/simt_copies.h"

namespace simt
{

struct mma_operands {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

template <typename T> float half_of(uint32_t pair, int which)
{
    T element;
    element.bits = (uint16_t)(which ? pair >> 16 : pair);
    return kva_to_f32(element);
}

template <typename T> void multiply(void *const *lanes, uint32_t mask)
{
    if (mask != 0xFFFFFFFFu)
        defect("a matrix product with the mask 0x%x", mask);
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const mma_operands *own = (const mma_operands *)lanes[lane];
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 2; i++) {
            for (int j = 0; j < 4; j++)
                a[g + j % 2 * 8][2 * t + j / 2 * 8 + i] = half_of<T>(own->a[j], i);
            for (int j = 0; j < 2; j++)
                b[2 * t + j * 8 + i][g] = half_of<T>(own->b[j], i);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        const mma_operands *own = (const mma_operands *)lanes[lane];
        for (int j = 0; j < 4; j++) {
            int row = lane / 4 + j / 2 * 8, column = lane % 4 * 2 + j % 2;
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += a[row][k] * b[k][column];
            own->c[j] += sum;
        }
    }
}

struct matrix_operands {
    uint32_t *to;
    const uint16_t *row;
    bool transposed;
};

inline void load_matrices(void *const *lanes, uint32_t mask)
{
    if (mask != 0xFFFFFFFFu)
        defect("a matrix load with the mask 0x%x", mask);
    for (int lane = 0; lane < 32; lane++) {
        const matrix_operands *own = (const matrix_operands *)lanes[lane];
        int g = lane / 4, t = lane % 4;
        if ((uintptr_t)own->row % 16 != 0)
            defect("a matrix row at %p is not aligned to 16 bytes", (const void *)own->row);
        for (int i = 0; i < 4; i++) {
            uint32_t bits[2];
            for (int j = 0; j < 2; j++) {
                int row = own->transposed ? 2 * t + j : g, column = own->transposed ? g : 2 * t + j;
                bits[j] = ((const matrix_operands *)lanes[8 * i + row])->row[column];
            }
            own->to[i] = bits[0] | bits[1] << 16;
        }
    }
}

struct transpose_operands {
    uint32_t from, to;
};

inline void transpose(void *const *lanes, uint32_t mask)
{
    if (mask != 0xFFFFFFFFu)
        defect("a transposition with the mask 0x%x", mask);
    for (int lane = 0; lane < 32; lane++) {
        int row = lane / 4, column = lane % 4 * 2;
        uint32_t bits[2];
        for (int j = 0; j < 2; j++) {
            /* Element [column + j][row] of what is given. */
            int from = (column + j) * 4 + row / 2;
            bits[j] = ((const transpose_operands *)lanes[from])->from >> row % 2 * 16 & 0xFFFF;
        }
        ((transpose_operands *)lanes[lane])->to = bits[0] | bits[1] << 16;
    }
}

} // namespace simt

template <typename T> void kva_mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    simt::mma_operands own = {c, a, {b0, b1}};
    simt::warp_collective(0xFFFFFFFFu, simt::multiply<T>, &own);
}

inline void kva_load_matrices(uint32_t *to, const void *row)
{
    simt::matrix_operands own = {to, (const uint16_t *)row, false};
    simt::warp_collective(0xFFFFFFFFu, simt::load_matrices, &own);
}

inline void kva_load_transposed(uint32_t *to, const void *row)
{
    simt::matrix_operands own = {to, (const uint16_t *)row, true};
    simt::warp_collective(0xFFFFFFFFu, simt::load_matrices, &own);
}

inline uint32_t kva_transpose(uint32_t pair)
{
    simt::transpose_operands own = {pair, 0};
    simt::warp_collective(0xFFFFFFFFu, simt::transpose, &own);
    return own.to;
}

namespace simt
{

/* What it copies is read now. */
inline void land(const async_copy &copy)
{
    uint64_t data[2] = {0, 0};
    if (copy.valid)
        memcpy(data, copy.from, sizeof data);
    memcpy(copy.to, data, sizeof data);
}

} // namespace simt

inline void kva_load_once(uint4 &to, const void *from, bool valid)
{
    if ((uintptr_t)from % 16 != 0)
        simt::defect("a load of 16 bytes from %p is not aligned to them", from);
    if (valid)
        to = *(const uint4 *)from;
}

inline void kva_copy_async(void *to, const void *from, bool valid)
{
    if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0)
        simt::defect("an asynchronous copy from %p to %p is not aligned to 16 bytes", from, to);
    simt::async_copy copy = {to, from, valid};
    if (simt::random_below(2))
        simt::land(copy);
    else
        simt::own_groups().open.push_back(copy);
}

inline void kva_copy_commit()
{
    simt::async_groups &groups = simt::own_groups();
    groups.closed.push_back(std::move(groups.open));
    groups.open.clear();
}

template <int N> void kva_copy_wait()
{
    simt::async_groups &groups = simt::own_groups();
    while (groups.closed.size() > N) {
        for (const simt::async_copy &copy : groups.closed.front())
            simt::land(copy);
        groups.closed.erase(groups.closed.begin());
    }
}

#endif
