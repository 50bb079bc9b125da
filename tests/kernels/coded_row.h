/* coded_row.h - a plain model of a key or value in few bits, coded by itself (kernels/kv_layout.h,
 * KVA_KEYS_PER_TOKEN): the same numbers in the same order, and so the same bits. */
#ifndef KVA_TESTS_KERNELS_CODED_ROW_H
#define KVA_TESTS_KERNELS_CODED_ROW_H

#include "kernels/kv_layout.h"

#define CODED_ROW_DIM_MAX 512

struct coded_row {
    float scale, zero;
    uint32_t codes[CODED_ROW_DIM_MAX];
};

/* x turned, and within f16 again. */
void coded_row_turn(float *x, uint32_t dim);

/* Turned numbers back, by the definition, in fp64. */
void coded_row_turn_back(double *x, uint32_t dim);

/* A row of numbers within f16, turned where `coding` says so. */
void coded_row_make(struct coded_row *coded, const float *x, uint32_t dim, uint32_t bits,
                    enum kva_lowbit_coding coding);

#endif
