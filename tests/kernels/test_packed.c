/* Packed matrices: of GGUF's blocks, bit by bit, and of numbers, within what their codes allow. */
#include "gguf/format.h"
#include "kernels/packed.h"
#include "tests/cmocka.h"
#include "tests/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 1;

/* About -1 to 1, seldom near the ends. */
static float uniform(void)
{
    float sum = 0;
    for (int i = 0; i < 3; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        sum += (float)(state >> 40) * 0x1p-23f - 1;
    }
    return sum / 3;
}

static void *room(enum kva_dtype dtype, uint32_t rows, uint32_t cols)
{
    void *data =
        aligned_alloc(KVA_PACKED_ALIGN, kva_packed_bytes(kva_packed_format(dtype), rows, cols));
    assert_non_null(data);
    return data;
}

static void assert_same(enum kva_dtype dtype, const void *packed, uint32_t cols, uint32_t row,
                        const float *expect)
{
    float *whole = malloc(cols * sizeof(*whole));
    kva_packed_row(dtype, packed, cols, row, whole);
    for (uint32_t col = 0; col < cols; col++) {
        float one = kva_packed_at(dtype, packed, cols, row, col);
        if (memcmp(&one, &expect[col], sizeof(one)) != 0 ||
            memcmp(&one, &whole[col], sizeof(one)) != 0)
            fail_msg("%s [%u, %u] is %g, row by row %g, must be %g", kva_dtype_name(dtype), row,
                     col, (double)one, (double)whole[col], (double)expect[col]);
    }
    free(whole);
}

static uint32_t take(const char **at)
{
    uint32_t value;
    memcpy(&value, *at, sizeof(value));
    *at += sizeof(value);
    return value;
}

/* Blocks and numbers of the gguf package: as three rows, the last first. */
static void test_packed__equals_the_reference_of_gguf(void **unused KVA_UNUSED)
{
    enum { ROWS = 3 };
    const uint32_t order[ROWS] = {2, 1, 0};
    char path[1024];
    size_t length = 0;
    unsigned formats = 0;
    char *file =
        kva_test_read(kva_test_source("tests/gguf/data/blocks.bin", path, sizeof(path)), &length);
    assert_non_null(file);
    for (const char *at = file; at < file + length; formats++) {
        uint32_t id = take(&at), count = take(&at), bytes = take(&at);
        uint32_t cols = count / ROWS * kva_gguf_format_find(id)->block_values;
        struct kva_packed_source source = {at, order, ROWS, cols};
        enum kva_dtype dtype;
        assert_true(kva_packed_of_gguf(id, &dtype));
        float *expect = malloc((size_t)ROWS * cols * sizeof(*expect));
        memcpy(expect, at + (size_t)count * bytes, (size_t)ROWS * cols * sizeof(*expect));
        void *packed = room(dtype, ROWS, cols);
        assert_true(kva_packed_repack(dtype, &source, 0, 1, packed));
        for (uint32_t row = 0; row < ROWS; row++)
            assert_same(dtype, packed, cols, row, expect + (size_t)order[row] * cols);
        free(packed);
        free(expect);
        at += (size_t)count * bytes + (size_t)ROWS * cols * sizeof(float);
    }
    assert_int_equal(formats, 10);
    free(file);
}

/* Random blocks, but for scales, which are ordinary: enough of them for several panels and blocks. */
static uint8_t *random_blocks(const struct kva_gguf_format *format, size_t count)
{
    uint8_t *blocks = malloc(count * format->block_bytes);
    for (size_t i = 0; i < count * format->block_bytes; i++)
        blocks[i] = (uint8_t)((uint32_t)(uniform() * 0x1p20f) >> 4);
    for (size_t i = 0; i < count; i++) {
        uint8_t *block = blocks + i * format->block_bytes;
        uint32_t last = format->block_bytes - 2;
        bool at_end = format->id == 10 || format->id == 11 || format->id == 14;
        uint8_t *scale = block + (at_end ? last - (format->id == 10 ? 2 : 0) : 0);
        scale[1] = (uint8_t)(0x20 | (scale[1] & 0x8F)); /* no exponent of 31 */
        if (format->id != 14 && format->id != 11)
            scale[3] = (uint8_t)(0x20 | (scale[3] & 0x8F));
    }
    return blocks;
}

static void test_packed__panels_are_the_decoded_rows(void **unused KVA_UNUSED)
{
    const uint32_t shapes[][2] = {{1, 1}, {16, 2}, {17, 3}, {50, 5}};
    for (enum kva_dtype dtype = KVA_Q4_0; dtype < KVA_DTYPE_END; dtype++) {
        const struct kva_packed_format *packed_format = kva_packed_format(dtype);
        const struct kva_gguf_format *format = kva_gguf_format_find(packed_format->gguf_id);
        for (size_t s = 0; s < KVA_COUNT_OF(shapes); s++) {
            uint32_t rows = shapes[s][0], cols = shapes[s][1] * format->block_values;
            uint32_t panels = (uint32_t)kva_packed_panels(rows);
            size_t count = (size_t)rows * shapes[s][1];
            uint8_t *blocks = random_blocks(format, count);
            float *expect = malloc(count * format->block_values * sizeof(*expect));
            format->decode(blocks, count, expect);
            struct kva_packed_source source = {blocks, NULL, rows, cols};
            uint8_t *packed = room(dtype, rows, cols);
            /* Panel by panel, as threads would, from the last. */
            for (uint32_t p = panels; p-- > 0;)
                assert_true(
                    kva_packed_repack(dtype, &source, p, p + 1,
                                      packed + p * kva_packed_panel_bytes(packed_format, cols)));
            for (uint32_t row = 0; row < rows; row++)
                assert_same(dtype, packed, cols, row, expect + (size_t)row * cols);
            /* What is behind the last row weighs nothing. */
            for (uint32_t row = rows; row < panels * KVA_PACKED_PANEL; row++)
                for (uint32_t col = 0; col < cols; col++)
                    assert_true(kva_packed_at(dtype, packed, cols, row, col) == 0);
            free(packed);
            free(expect);
            free(blocks);
        }
    }
}

static void test_packed__sizes_are_near_the_files(void **unused KVA_UNUSED)
{
    for (enum kva_dtype dtype = KVA_Q4_0; dtype < KVA_DTYPE_END; dtype++) {
        const struct kva_packed_format *packed_format = kva_packed_format(dtype);
        const struct kva_gguf_format *format = kva_gguf_format_find(packed_format->gguf_id);
        size_t file = (size_t)64 * 2048 / format->block_values * format->block_bytes;
        size_t here = kva_packed_bytes(packed_format, 64, 2048);
        assert_true(here >= file && (double)here <= (double)file * 1.06);
        assert_int_equal(kva_packed_panel_bytes(packed_format, 96) % KVA_PACKED_LINE_BYTES, 0);
    }
}

static void test_packed__scales_that_are_not_finite_are_refused(void **unused KVA_UNUSED)
{
    for (enum kva_dtype dtype = KVA_Q4_0; dtype < KVA_DTYPE_END; dtype++) {
        const struct kva_gguf_format *format =
            kva_gguf_format_find(kva_packed_format(dtype)->gguf_id);
        struct kva_packed_source source = {NULL, NULL, 2, 2 * format->block_values};
        void *packed = room(dtype, 2, 2 * format->block_values);
        uint8_t *blocks = malloc((size_t)4 * format->block_bytes);
        memset(blocks, 0, (size_t)4 * format->block_bytes);
        source.blocks = blocks;
        assert_true(kva_packed_repack(dtype, &source, 0, 1, packed));
        memset(blocks + (size_t)3 * format->block_bytes, 0xFF, format->block_bytes);
        assert_false(kva_packed_repack(dtype, &source, 0, 1, packed));
        free(blocks);
        free(packed);
    }
}

/* The largest error of a group of numbers between -1 and 1: of symmetric codes half a step of
 * 1 / zero and the top code's whole one; with a min, half a step; least squares may give up a little
 * of it for the sum. */
static double worst(const struct kva_packed_format *format)
{
    uint32_t levels = 1u << (format->low_bits + format->high_bits);
    return format->has_min ? 2.0 / (levels - 1) : 2.5 / (levels / 2.0);
}

static void test_packed__numbers_keep_to_their_error(void **unused KVA_UNUSED)
{
    const uint32_t shapes[][2] = {{1, 1}, {16, 128}, {17, 130}, {40, 300}};
    for (enum kva_dtype dtype = KVA_INT8; kva_packed_is_made(dtype); dtype++) {
        for (size_t s = 0; s < KVA_COUNT_OF(shapes); s++) {
            uint32_t rows = shapes[s][0], cols = shapes[s][1];
            float *w = malloc((size_t)rows * cols * sizeof(*w));
            uint8_t *packed = room(dtype, rows, cols);
            for (size_t i = 0; i < (size_t)rows * cols; i++)
                w[i] = uniform();
            assert_true(kva_packed_quantise(dtype, w, KVA_F32, rows, cols, 0,
                                            (uint32_t)kva_packed_panels(rows), packed));
            for (uint32_t r = 0; r < rows; r++)
                for (uint32_t c = 0; c < cols; c++)
                    assert_true(fabsf(kva_packed_at(dtype, packed, cols, r, c) -
                                      w[(size_t)r * cols + c]) <= worst(kva_packed_format(dtype)));
            free(packed);
            free(w);
        }
    }
}

/* Numbers that a format holds exactly come back exactly. */
static void test_packed__what_codes_can_say_is_kept(void **unused KVA_UNUSED)
{
    enum { ROWS = 20, COLS = 96 };
    for (enum kva_dtype dtype = KVA_Q4_0; kva_packed_is_made(dtype); dtype++) {
        const struct kva_packed_format *format = kva_packed_format(dtype);
        int levels = 1 << (format->low_bits + format->high_bits);
        int zero = format->has_min ? 3 : format->zero;
        float w[ROWS * COLS];
        uint8_t *packed = room(dtype, ROWS, COLS);
        for (int i = 0; i < ROWS * COLS; i++) /* the lowest and, in 8 bits, the next */
            w[i] = 0.25f * (float)((i % 32 == 0 ? (levels == 256) : i * 7 % levels) - zero);
        if (levels == 256)
            for (int i = 0; i < ROWS * COLS; i++)
                w[i] = fmaxf(w[i], -127 * 0.25f);
        assert_true(kva_packed_quantise(dtype, w, KVA_F32, ROWS, COLS, 0, 2, packed));
        for (uint32_t i = 0; i < ROWS * COLS; i++)
            if (kva_packed_at(dtype, packed, COLS, i / COLS, i % COLS) != w[i])
                fail_msg("%s: %g became %g", kva_dtype_name(dtype), (double)w[i],
                         (double)kva_packed_at(dtype, packed, COLS, i / COLS, i % COLS));
        free(packed);
    }
}

static double normal(void)
{
    double u[2];
    for (int i = 0; i < 2; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        u[i] = ((double)(state >> 11) + 0.5) * 0x1p-53;
    }
    return sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1]);
}

/* Student's t with 4 degrees of freedom: many small numbers and a few large ones. */
static double heavy(void)
{
    double squares = 0, x = normal();
    for (int i = 0; i < 4; i++) {
        double y = normal();
        squares += y * y;
    }
    return x / sqrt(squares / 4);
}

/* The error of the whole as a share of its size: printed, and what a search that is any good has. */
static void test_packed__errors_are_small_in_the_mean(void **unused KVA_UNUSED)
{
    enum { ROWS = 64, COLS = 2048 };
    static const double most[2][KVA_Q8_0 - KVA_INT8 + 1] = {
        {0.0067, 0.083, 0.075, 0.042, 0.037, 0.0056},
        {0.0115, 0.115, 0.091, 0.058, 0.045, 0.0076},
    };
    float *w = malloc((size_t)ROWS * COLS * sizeof(*w)), line[COLS];
    for (int kind = 0; kind < 2; kind++) {
        for (size_t i = 0; i < (size_t)ROWS * COLS; i++)
            w[i] = (float)(0.02 * (kind ? heavy() : normal()));
        for (enum kva_dtype dtype = KVA_INT8; kva_packed_is_made(dtype); dtype++) {
            uint8_t *packed = room(dtype, ROWS, COLS);
            double error = 0, size = 0;
            assert_true(kva_packed_quantise(dtype, w, KVA_F32, ROWS, COLS, 0, ROWS / 16, packed));
            for (uint32_t row = 0; row < ROWS; row++) {
                kva_packed_row(dtype, packed, COLS, row, line);
                for (uint32_t col = 0; col < COLS; col++) {
                    double x = w[(size_t)row * COLS + col];
                    error += (line[col] - x) * (line[col] - x);
                    size += x * x;
                }
            }
            print_message("%s numbers in %s: error %.2f%%\n", kind ? "heavy-tailed" : "normal",
                          kva_dtype_name(dtype), 100 * sqrt(error / size));
            assert_true(sqrt(error / size) < most[kind][dtype - KVA_INT8]);
            free(packed);
        }
    }
    free(w);
}

static void test_packed__numbers_without_a_code_are_refused(void **unused KVA_UNUSED)
{
    const float bad[] = {INFINITY, -INFINITY, NAN, 3e38f};
    for (enum kva_dtype dtype = KVA_Q4_0; kva_packed_is_made(dtype); dtype++) {
        uint8_t *packed = room(dtype, 1, 70);
        for (size_t i = 0; i < KVA_COUNT_OF(bad); i++) {
            float w[70] = {1};
            w[69] = bad[i];
            assert_false(kva_packed_quantise(dtype, w, KVA_F32, 1, 70, 0, 1, packed));
        }
        free(packed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed__equals_the_reference_of_gguf),
        cmocka_unit_test(test_packed__panels_are_the_decoded_rows),
        cmocka_unit_test(test_packed__sizes_are_near_the_files),
        cmocka_unit_test(test_packed__scales_that_are_not_finite_are_refused),
        cmocka_unit_test(test_packed__numbers_keep_to_their_error),
        cmocka_unit_test(test_packed__what_codes_can_say_is_kept),
        cmocka_unit_test(test_packed__errors_are_small_in_the_mean),
        cmocka_unit_test(test_packed__numbers_without_a_code_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
