/* What tiles a linear of level amx loads, multiplies and stores: the figures that stand behind what
 * docs/results/cpu.md expects of it. */
#include "kernels/ops.h"
#include "kernels/packed.h"
#include "tests/cmocka.h"
#include "tests/kernels/amx_emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kva_device *open_device(void)
{
    struct kva_device *device = NULL;
    const struct kva_device_params params = {.threads = 1,
                                             .cpu_levels_emulated = amx_emulated_levels()};
    assert_int_equal(kva_device_open_cpu(&params, &device, NULL), KVA_OK);
    return device;
}

/* Instructions of one linear, which must leave no tiles behind. */
static struct amx_counts run(struct kva_device *device, enum kva_dtype dtype, uint32_t rows,
                             uint32_t outputs, uint32_t inputs)
{
    struct kva_weight weight;
    const size_t bytes = dtype == KVA_INT8
                             ? kva_packed_bytes(kva_packed_format(KVA_INT8), outputs, inputs)
                             : (size_t)outputs * inputs * sizeof(uint16_t);
    float *x = calloc((size_t)rows * inputs, sizeof *x);
    float *out = calloc((size_t)rows * outputs, sizeof *out);
    void *data = aligned_alloc(KVA_PACKED_ALIGN, kva_align_up(bytes, KVA_PACKED_ALIGN));
    assert_true(x && out && data);
    memset(data, 0, bytes);
    assert_int_equal(kva_device_weight(device, data, dtype, outputs, inputs, &weight, NULL),
                     KVA_OK);
    const struct kva_linear_args args = {.out = out,
                                         .x = x,
                                         .weight = weight,
                                         .rows = rows,
                                         .x_stride = inputs,
                                         .out_stride = outputs};
    amx_emulator_count_reset();
    kva_device_ops(device)->linear(device, &args);
    const struct amx_counts counts = amx_emulator_counts();
    assert_int_equal(amx_emulator_held(), 0);
    free(x);
    free(out);
    free(data);
    return counts;
}

static void print(const char *what, uint32_t rows, const struct amx_counts *counts)
{
    printf("%s, %u rows: %llu products, %llu loads, %llu stores, %llu zeros, %llu configurations\n",
           what, rows, (unsigned long long)(counts->bf16_products + counts->byte_products),
           (unsigned long long)counts->loads, (unsigned long long)counts->stores,
           (unsigned long long)counts->zeros, (unsigned long long)counts->configs);
}

static void
test_linear_amx__every_weight_is_multiplied_once_a_block_of_rows(void **state KVA_UNUSED)
{
    const uint32_t rows[] = {1, 16, 17, 32, 33, 64, 256, 512};
    const uint32_t outputs = 96, inputs = 2048;
    if (!amx_emulated_levels())
        return;
    struct kva_device *device = open_device();
    for (size_t i = 0; i < KVA_COUNT_OF(rows); i++) {
        const uint32_t blocks = (rows[i] + 15) / 16;
        struct amx_counts bf16 = run(device, KVA_BF16, rows[i], outputs, inputs);
        struct amx_counts int8 = run(device, KVA_INT8, rows[i], outputs, inputs);
        print("bf16", rows[i], &bf16);
        print("int8", rows[i], &int8);
        assert_int_equal(bf16.bf16_products, blocks * (outputs / 16) * (inputs / 32));
        assert_int_equal(int8.byte_products, blocks * (outputs / 16) * (inputs / 64));
        assert_int_equal(bf16.byte_products + int8.bf16_products, 0);
        assert_true(bf16.configs >= bf16.releases && int8.configs >= int8.releases);
        /* Sums of bf16 are stored and loaded once for 16 products, those of bytes stored for two.
         */
        assert_int_equal(bf16.stores, bf16.bf16_products / 16);
        assert_int_equal(int8.stores, int8.byte_products / 2);
    }
    kva_device_close(device);
}

/* Two by two tiles need one operand a product; sums that come back are what is above it. */
static void test_linear_amx__many_rows_load_a_tile_a_product(void **state KVA_UNUSED)
{
    const uint32_t outputs = 96, inputs = 2048;
    if (!amx_emulated_levels())
        return;
    struct kva_device *device = open_device();
    struct amx_counts bf16 = run(device, KVA_BF16, 512, outputs, inputs);
    struct amx_counts int8 = run(device, KVA_INT8, 512, outputs, inputs);
    assert_int_equal(bf16.loads, bf16.bf16_products + bf16.bf16_products / 16 * 3 / 4);
    assert_int_equal(int8.loads, int8.byte_products);
    /* Full tiles are configured once an item. */
    assert_int_equal(bf16.configs, bf16.releases);
    assert_int_equal(int8.configs, int8.releases);
    kva_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_amx__every_weight_is_multiplied_once_a_block_of_rows),
        cmocka_unit_test(test_linear_amx__many_rows_load_a_tile_a_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
