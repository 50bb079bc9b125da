/* Matrices and rows in int8: what is rounded to what. */
#include "kernels/ops.h"
#include "kernels/packed.h"
#include "tests/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 128 }; /* inputs that share a scale */

static uint64_t state = 1;

static float uniform(void)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

/* Made of rows x cols numbers, group g of a row 2^g times as large. */
static float *make(uint32_t rows, uint32_t cols)
{
    float *w = malloc(sizeof(float) * rows * cols);
    assert_non_null(w);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++)
            w[r * cols + c] = ldexpf(uniform(), (int)(c / GROUP));
    }
    return w;
}

static void *quantised(const float *w, uint32_t rows, uint32_t cols)
{
    void *to =
        aligned_alloc(KVA_PACKED_ALIGN, kva_packed_bytes(kva_packed_format(KVA_INT8), rows, cols));
    uint32_t panels = (rows + KVA_PACKED_PANEL - 1) / KVA_PACKED_PANEL;
    assert_non_null(to);
    assert_true(kva_packed_quantise(KVA_INT8, w, KVA_F32, rows, cols, 0, panels, to));
    return to;
}

static void test_int8__error_is_half_a_step_of_the_group(void **unused KVA_UNUSED)
{
    const uint32_t shapes[][2] = {{1, 1}, {16, 128}, {17, 129}, {40, 300}, {33, 1027}};
    for (size_t s = 0; s < KVA_COUNT_OF(shapes); s++) {
        uint32_t rows = shapes[s][0], cols = shapes[s][1];
        float *w = make(rows, cols);
        void *q = quantised(w, rows, cols);
        for (uint32_t r = 0; r < rows; r++) {
            for (uint32_t first = 0; first < cols; first += GROUP) {
                uint32_t end = kva_min_u32(first + GROUP, cols);
                float largest = 0;
                for (uint32_t c = first; c < end; c++)
                    largest = fmaxf(largest, fabsf(w[r * cols + c]));
                for (uint32_t c = first; c < end; c++) {
                    float error = fabsf(kva_packed_at(KVA_INT8, q, cols, r, c) - w[r * cols + c]);
                    assert_true(error <= largest / 127 * 0.50001f);
                }
            }
        }
        free(q);
        free(w);
    }
}

static void test_int8__16_bit_formats_give_the_same_codes(void **unused KVA_UNUSED)
{
    /* Numbers that every format holds. */
    enum { ROWS = 20, COLS = 140 };
    float w[ROWS * COLS];
    uint16_t bf16[ROWS * COLS], f16[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) {
        int n = (int)(uniform() * 127);
        uint32_t bits;
        w[i] = (float)n;
        memcpy(&bits, &w[i], sizeof(bits));
        bf16[i] = (uint16_t)(bits >> 16);
        f16[i] = (uint16_t)(n == 0 ? 0
                                   : (bits >> 16 & 0x8000) | ((((bits >> 23) & 0xFF) - 112) << 10) |
                                         (bits >> 13 & 0x3FF));
    }
    void *a = quantised(w, ROWS, COLS);
    size_t bytes = kva_packed_bytes(kva_packed_format(KVA_INT8), ROWS, COLS);
    void *b = aligned_alloc(KVA_PACKED_ALIGN, bytes);
    assert_true(kva_packed_quantise(KVA_INT8, bf16, KVA_BF16, ROWS, COLS, 0, 2, b));
    assert_memory_equal(a, b, bytes);
    memset(b, 0, bytes);
    /* Panel by panel, as threads would. */
    assert_true(
        kva_packed_quantise(KVA_INT8, f16, KVA_F16, ROWS, COLS, 1, 2,
                            (char *)b + kva_packed_panel_bytes(kva_packed_format(KVA_INT8), COLS)));
    assert_true(kva_packed_quantise(KVA_INT8, f16, KVA_F16, ROWS, COLS, 0, 1, b));
    assert_memory_equal(a, b, bytes);
    free(a);
    free(b);
}

static void test_int8__what_is_behind_the_matrix_is_zero(void **unused KVA_UNUSED)
{
    float w[17 * 130];
    for (size_t i = 0; i < KVA_COUNT_OF(w); i++)
        w[i] = 1;
    unsigned char *q = quantised(w, 17, 130);
    size_t panel = kva_packed_panel_bytes(kva_packed_format(KVA_INT8), 130);
    /* Group 1 has one piece: inputs 128 and 129, and two that are not there. */
    assert_int_equal(panel, (1 + 32 + 1 + 8) * 64);
    const unsigned char *step = q + 34 * 64;
    assert_int_equal(step[0], 255);
    assert_int_equal(step[1], 255);
    assert_int_equal(step[2], 128);
    assert_int_equal(step[3], 128);
    /* Of the second panel there is one output. */
    assert_int_equal(q[panel + 64], 255);
    assert_int_equal(q[panel + 64 + 4], 128);
    free(q);
}

static void test_int8__numbers_that_are_not_finite_are_refused(void **unused KVA_UNUSED)
{
    const float bad[] = {INFINITY, -INFINITY, NAN};
    unsigned char to[42 * 64];
    for (size_t i = 0; i < KVA_COUNT_OF(bad); i++) {
        float w[130] = {0};
        w[129] = bad[i];
        assert_false(kva_packed_quantise(KVA_INT8, w, KVA_F32, 1, 130, 0, 1, to));
    }
    /* The largest and the smallest are fine. */
    float w[2] = {3.4e38f, 1e-45f};
    assert_true(kva_packed_quantise(KVA_INT8, w, KVA_F32, 1, 2, 0, 1, to));
    assert_true(isfinite(kva_packed_at(KVA_INT8, to, 2, 0, 0)));
}

/* A row with something in it that is no number gives no numbers, at every level; its neighbour is
 * unharmed. */
static void test_int8__rows_that_are_not_finite_show(void **unused KVA_UNUSED)
{
    enum { ROWS = 2, OUTPUTS = 16, INPUTS = 256 };
    float *w = make(OUTPUTS, INPUTS);
    void *q = quantised(w, OUTPUTS, INPUTS);
    const float bad[] = {INFINITY, -INFINITY, NAN};
    struct kva_device *probe;
    assert_int_equal(kva_device_open_cpu(&(struct kva_device_params){.threads = 1}, &probe, NULL),
                     KVA_OK);
    uint32_t levels = kva_device_get_info(probe)->cpu_levels;
    kva_device_close(probe);
    for (uint32_t level = 1; level <= levels; level *= 2) {
        struct kva_device_params params = {.threads = 1, .cpu_level_mask = level};
        struct kva_device *device;
        if (!(levels & level))
            continue;
        assert_int_equal(kva_device_open_cpu(&params, &device, NULL), KVA_OK);
        for (size_t i = 0; i < KVA_COUNT_OF(bad); i++) {
            float x[ROWS * INPUTS] = {0}, out[ROWS * OUTPUTS];
            x[100] = bad[i];
            x[INPUTS + 1] = 1;
            struct kva_linear_args args = {
                .out = out, .x = x, .rows = ROWS, .x_stride = INPUTS, .out_stride = OUTPUTS};
            assert_int_equal(
                kva_device_weight(device, q, KVA_INT8, OUTPUTS, INPUTS, &args.weight, NULL),
                KVA_OK);
            kva_device_ops(device)->linear(device, &args);
            for (uint32_t n = 0; n < OUTPUTS; n++) {
                assert_true(isnan(out[n]));
                assert_true(fabsf(out[OUTPUTS + n] - kva_packed_at(KVA_INT8, q, INPUTS, n, 1)) <
                            1e-6f);
            }
        }
        kva_device_close(device);
    }
    free(q);
    free(w);
}

static void test_int8__a_weight_must_be_aligned(void **unused KVA_UNUSED)
{
    struct kva_device *device;
    struct kva_weight weight;
    struct kva_err err;
    _Alignas(64) unsigned char lines[9 * 64] = {0};
    assert_int_equal(kva_device_open_cpu(&(struct kva_device_params){.threads = 1}, &device, NULL),
                     KVA_OK);
    assert_int_equal(kva_device_weight(device, lines + 32, KVA_INT8, 1, 4, &weight, &err),
                     KVA_EINVAL);
    assert_non_null(strstr(err.message, "64-byte"));
    assert_int_equal(kva_device_weight(device, lines, KVA_INT8, 1, 4, &weight, &err), KVA_OK);
    assert_int_equal(kva_weight_bytes(&weight), 9 * 64);
    kva_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int8__error_is_half_a_step_of_the_group),
        cmocka_unit_test(test_int8__16_bit_formats_give_the_same_codes),
        cmocka_unit_test(test_int8__what_is_behind_the_matrix_is_zero),
        cmocka_unit_test(test_int8__numbers_that_are_not_finite_are_refused),
        cmocka_unit_test(test_int8__rows_that_are_not_finite_show),
        cmocka_unit_test(test_int8__a_weight_must_be_aligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
