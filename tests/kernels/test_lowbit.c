/* Golden vectors of quantisation, at every level of this machine, and how far the levels that round
 * are from the exact ones. */
#include "tests/cmocka.h"

#include "kernels/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 4, F16_ONE = 0x3C00 };

static const uint32_t levels[] = {KVA_CPU_REF, KVA_CPU_AVX2, KVA_CPU_AVX512, KVA_CPU_AVX512VNNI};

/* false: this machine lacks the level. */
static bool open_level(uint32_t mask, struct kva_device **device)
{
    struct kva_device_params params = {.threads = 1, .cpu_level_mask = mask};
    return kva_device_open_cpu(&params, device, NULL) == KVA_OK;
}

/* Both or none. */
static bool open_levels(uint32_t mask_first, uint32_t mask_second, struct kva_device *devices[2])
{
    if (!open_level(mask_first, &devices[0]))
        return false;
    if (open_level(mask_second, &devices[1]))
        return true;
    kva_device_close(devices[0]);
    return false;
}

/* f16 of a whole number below 2048. */
static uint16_t f16(int value)
{
    uint32_t size = (uint32_t)abs(value), exponent = 0;
    if (size == 0)
        return 0;
    while (size >> exponent > 1)
        exponent++;
    uint32_t bits = (exponent + 15) << 10 | ((size << (10 - exponent)) & 0x3FF);
    return (uint16_t)(value < 0 ? bits | 0x8000 : bits);
}

/* Keys: channel 0 counts the tokens, 1 alternates 0 and 8, 2 is constant, 3 is -1 but for the last
 * token's 1. Values: of each token 0, 1, 2, 3. */
static void make_page(uint16_t *page)
{
    for (int t = 0; t < 64; t++) {
        const int key[DIM] = {t, t % 2 * 8, 5, t == 63 ? 1 : -1};
        for (int c = 0; c < DIM; c++) {
            page[(t * 2) * DIM + c] = f16(key[c]);
            page[(t * 2 + 1) * DIM + c] = f16(c);
        }
    }
}

static void quantise(struct kva_device *device, const uint16_t *page,
                     struct kva_lowbit_format format, unsigned char *to)
{
    const void *from[] = {page};
    void *out[] = {to};
    kva_device_ops(device)->quantise(device, &(struct kva_quantise_args){.from = from,
                                                                         .to = out,
                                                                         .count = 1,
                                                                         .kv_heads = 1,
                                                                         .head_dim = DIM,
                                                                         .kv_dtype = KVA_F16,
                                                                         .format = format});
    assert_int_equal(kva_device_error(device, NULL), KVA_OK);
}

/* Offsets in a block of head_dim 4 and groups of 64. */
enum { K_SCALE = 0, K_ZERO = 8, V_SCALE = 16, V_ZERO = 144, K_CODES = 272 };

static void expect_halves(const unsigned char *at, const uint16_t *halves, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(at[2 * i] | at[2 * i + 1] << 8, halves[i]);
}

static void expect_bytes(const unsigned char *at, size_t count, unsigned char byte)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(at[i], byte);
}

static void check_1_bit(const unsigned char *block)
{
    /* (max - min) / 2 and (3 min + max) / 4: 31.5, 4, 0, 1 and 15.75, 2, 5, -0.5. */
    const uint16_t scale[] = {0x4FE0, 0x4400, 0x0000, 0x3C00};
    const uint16_t zero[] = {0x4BE0, 0x4000, 0x4500, 0xB800};
    expect_halves(block + K_SCALE, scale, 4);
    expect_halves(block + K_ZERO, zero, 4);
    for (int t = 0; t < 64; t++) { /* values: scale 1.5, zero 0.75 */
        expect_halves(block + V_SCALE + 2 * t, (const uint16_t[]){0x3E00}, 1);
        expect_halves(block + V_ZERO + 2 * t, (const uint16_t[]){0x3A00}, 1);
    }
    /* A nibble per token: bit 0 from token 32 on, bit 1 of odd tokens, bit 3 of the last alone,
     * which is its group's maximum: a code of 1 like any other. */
    expect_bytes(block + K_CODES, 16, 0x20);
    expect_bytes(block + K_CODES + 16, 15, 0x31);
    expect_bytes(block + K_CODES + 31, 1, 0xB1);
    /* A nibble per channel of four tokens: channels 2 and 3 are above the middle. */
    for (int i = 0; i < 16; i++) {
        expect_bytes(block + K_CODES + 32 + 2 * i, 1, 0x00);
        expect_bytes(block + K_CODES + 33 + 2 * i, 1, 0xFF);
    }
}

static void check_2_bits(const unsigned char *block)
{
    /* (max - min) / 3 and min: 21, 8/3, 0, 2/3 and 0, 0, 5, -1. */
    const uint16_t scale[] = {0x4D40, 0x4155, 0x0000, 0x3955}, zero[] = {0, 0, 0x4500, 0xBC00};
    const unsigned char *low = block + K_CODES, *high = low + 32;
    expect_halves(block + K_SCALE, scale, 4);
    expect_halves(block + K_ZERO, zero, 4);
    expect_halves(block + V_SCALE, (const uint16_t[]){F16_ONE, F16_ONE}, 2);
    expect_halves(block + V_ZERO, (const uint16_t[]){0, 0}, 2);
    for (uint32_t t = 0; t < 64; t++) {
        uint32_t count = (2 * t + 21) / 42; /* round(t / 21), no ties */
        uint32_t nibble_low = (uint32_t)low[t / 2] >> t % 2 * 4 & 15,
                 nibble_high = (uint32_t)high[t / 2] >> t % 2 * 4 & 15;
        uint32_t codes[] = {count, t % 2 * 3, 0, t == 63 ? 3 : 0};
        for (uint32_t c = 0; c < DIM; c++)
            assert_int_equal((nibble_low >> c & 1) | (nibble_high >> c & 1) << 1, codes[c]);
    }
    for (int i = 0; i < 16; i++) { /* values' codes are 0, 1, 2, 3 */
        expect_bytes(low + 64 + 2 * i, 1, 0xF0);
        expect_bytes(low + 65 + 2 * i, 1, 0xF0);
        expect_bytes(low + 96 + 2 * i, 1, 0x00);
        expect_bytes(low + 97 + 2 * i, 1, 0xFF);
    }
}

static void test_quantise__golden_vectors(void **state KVA_UNUSED)
{
    uint16_t page[64 * 2 * DIM];
    make_page(page);
    for (size_t i = 0; i < KVA_COUNT_OF(levels); i++) {
        struct kva_device *device;
        unsigned char block[512];
        if (!open_level(levels[i], &device))
            continue;
        memset(block, 0xEE, sizeof block);
        quantise(device, page, (struct kva_lowbit_format){.bits = 1, .group = 64}, block);
        check_1_bit(block);
        expect_bytes(block + 336, sizeof block - 336, 0xEE);
        quantise(device, page, (struct kva_lowbit_format){.bits = 2, .group = 64}, block);
        check_2_bits(block);
        expect_bytes(block + 400, sizeof block - 400, 0xEE);
        kva_device_close(device);
    }
}

/* --- rounding beside quantisation ---------------------------------------------------------------
 */

enum { HEADS = 8, WIDE = 64, PAGES = 32, TOKENS = PAGES * 64 };

static uint64_t random_state = 5;

static float normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
        sum += (float)(random_state >> 40) * 0x1p-24f;
    }
    return sum - 6;
}

static uint16_t bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static float of_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Exact attention of one head over the 16-bit pages. */
static void exact(const uint16_t *kv, const float *q, double *out)
{
    double *p = malloc(TOKENS * sizeof *p), e = 0;
    memset(out, 0, WIDE * sizeof *out);
    for (int t = 0; t < TOKENS; t++) {
        double score = 0;
        for (int i = 0; i < WIDE; i++)
            score += (double)q[i] * 0.125 * (double)of_bf16(kv[t * 2 * WIDE + i]);
        p[t] = exp(score);
        e += p[t];
    }
    for (int t = 0; t < TOKENS; t++) {
        for (int i = 0; i < WIDE; i++)
            out[i] += p[t] / e * (double)of_bf16(kv[(t * 2 + 1) * WIDE + i]);
    }
    free(p);
}

static void attend(struct kva_device *device, const void *const *blocks, const float *q,
                   struct kva_lowbit_format format, float *out)
{
    float m[HEADS], e[HEADS];
    struct kva_select_seq seq = {
        .row_count = 1, .position_first = TOKENS, .page_count = PAGES, .select_row = UINT32_MAX};
    kva_device_ops(device)->attend_select_fetch(
        device, &(struct kva_attend_select_fetch_args){.q = q,
                                                       .out = {out, m, e},
                                                       .seqs = &seq,
                                                       .blocks = blocks,
                                                       .seq_count = 1,
                                                       .q_stride = HEADS * WIDE,
                                                       .heads = HEADS,
                                                       .kv_heads = 1,
                                                       .head_dim = WIDE,
                                                       .kv_dtype = KVA_BF16,
                                                       .format = format,
                                                       .scale = 0.125f});
    assert_int_equal(kva_device_error(device, NULL), KVA_OK);
    for (int i = 0; i < HEADS * WIDE; i++)
        out[i] /= e[i / WIDE];
}

/* Error of the rounding level beside the reference, as a share of what quantisation itself costs.
 */
static double rounding_share(uint32_t bits, float spread)
{
    struct kva_lowbit_format format = {
        .bits = bits, .group = 64, .key_levels = KVA_LEVELS_FIT, .value_levels = KVA_LEVELS_FIT};
    struct kva_device *devices[2];
    size_t block_bytes = kva_lowbit_block_bytes(format, 1, WIDE);
    if (!open_levels(KVA_CPU_REF, KVA_CPU_AVX512VNNI, devices))
        return -1;
    struct kva_device *device = devices[0], *rounding = devices[1];
    uint16_t *kv = malloc((size_t)TOKENS * 2 * WIDE * sizeof *kv);
    unsigned char *low = malloc(PAGES * block_bytes);
    const void *from[PAGES];
    void *to[PAGES];
    float q[HEADS * WIDE], plain[HEADS * WIDE], rounded[HEADS * WIDE];
    /* Keys have channels of their own size and offset. */
    for (int i = 0; i < TOKENS * 2 * WIDE; i++)
        kv[i] =
            bf16(i / WIDE % 2 ? normal() : normal() * (1 + (float)(i % 8)) * 0.3f + (float)(i % 5));
    for (int i = 0; i < HEADS * WIDE; i++)
        q[i] = normal() * spread;
    for (int i = 0; i < PAGES; i++) {
        from[i] = kv + (size_t)i * 64 * 2 * WIDE;
        to[i] = low + (size_t)i * block_bytes;
    }
    struct kva_quantise_args args = {.from = from, .to = to, .count = PAGES, .kv_heads = 1};
    args.head_dim = WIDE;
    args.kv_dtype = KVA_BF16;
    args.format = format;
    kva_device_ops(device)->quantise(device, &args);
    attend(device, (const void *const *)to, q, format, plain);
    attend(rounding, (const void *const *)to, q, format, rounded);
    double quantised = 0, rounding_error = 0, out[WIDE];
    for (int head = 0; head < HEADS; head++) {
        exact(kv, q + head * WIDE, out);
        for (int i = 0; i < WIDE; i++) {
            quantised += pow((double)plain[head * WIDE + i] - out[i], 2);
            rounding_error += pow((double)(rounded[head * WIDE + i] - plain[head * WIDE + i]), 2);
        }
    }
    free(kv);
    free(low);
    kva_device_close(device);
    kva_device_close(rounding);
    return sqrt(rounding_error / quantised);
}

static void test_attend_lowbit__rounding_is_small_beside_quantisation(void **state KVA_UNUSED)
{
    const float spreads[] = {0.3f, 1, 3}; /* from even weights to a few that count */
    for (uint32_t bits = 1; bits <= 4; bits *= 2) {
        for (size_t i = 0; i < KVA_COUNT_OF(spreads); i++) {
            double share = rounding_share(bits, spreads[i]);
            if (share < 0)
                skip();
            print_message("%u bits, queries of %g: rounding adds %.4f of the error\n", bits,
                          (double)spreads[i], share);
            assert_true(share < 0.1);
        }
    }
}

/* Any codes, with levels from 1/16 to 1/8. */
static unsigned char *any_blocks(struct kva_lowbit_format format, size_t *ret_block_bytes)
{
    const struct kva_lowbit_layout layout = kva_lowbit_layout_of(format, WIDE);
    unsigned char *low = malloc((size_t)PAGES * layout.head_bytes);
    for (uint32_t page = 0; page < PAGES; page++) {
        unsigned char *head = low + (size_t)page * layout.head_bytes;
        for (uint32_t i = 0; i < layout.head_bytes; i++)
            head[i] = (unsigned char)(normal() * 16 + 128);
        for (uint32_t i = 1; i < layout.k_codes; i += 2)
            head[i] = (unsigned char)((head[i] & 3) | 0x2C);
    }
    *ret_block_bytes = layout.head_bytes;
    return low;
}

/* Sums, largest scores and sums of weights. */
static void attend_alone(struct kva_device *device, const void *const *blocks, const float *q,
                         struct kva_lowbit_format format, float *out)
{
    const struct kva_lowbit_seq seq = {
        .row_count = 1, .position_first = TOKENS, .page_count = PAGES};
    const struct kva_attend_lowbit_args args = {
        .q = q,
        .out = {out, out + HEADS * WIDE, out + HEADS * (WIDE + 1)},
        .seqs = &seq,
        .blocks = blocks,
        .seq_count = 1,
        .q_stride = HEADS * WIDE,
        .heads = HEADS,
        .kv_heads = 1,
        .head_dim = WIDE,
        .format = format,
        .scale = 0.125f,
    };
    kva_device_ops(device)->attend_lowbit(device, &args);
    assert_int_equal(kva_device_error(device, NULL), KVA_OK);
}

/* How codes become bytes is not a matter of bits: with GFNI (avx512bf16) as without. */
static void test_attend_lowbit__levels_of_bytes_agree(void **state KVA_UNUSED)
{
    struct kva_device *devices[2];
    float q[HEADS * WIDE], out[2][HEADS * (WIDE + 2)];
    if (!open_levels(2 * KVA_CPU_AVX512VNNI - 1, 2 * KVA_CPU_AVX512BF16 - 1, devices))
        skip();
    for (uint32_t bits = 1; bits <= 8; bits++) {
        struct kva_lowbit_format format = kva_lowbit_per_token(bits, WIDE, KVA_CODING_TURNED);
        if (bits == 1)
            format = (struct kva_lowbit_format){.bits = 1, .group = 32};
        if (bits > 4 && bits < 8)
            continue;
        size_t block_bytes;
        const void *pages[PAGES];
        unsigned char *low = any_blocks(format, &block_bytes);
        for (uint32_t i = 0; i < PAGES; i++)
            pages[i] = low + i * block_bytes;
        for (int i = 0; i < HEADS * WIDE; i++)
            q[i] = normal();
        for (uint32_t i = 0; i < 2; i++)
            attend_alone(devices[i], pages, q, format, out[i]);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        free(low);
    }
    kva_device_close(devices[0]);
    kva_device_close(devices[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantise__golden_vectors),
        cmocka_unit_test(test_attend_lowbit__rounding_is_small_beside_quantisation),
        cmocka_unit_test(test_attend_lowbit__levels_of_bytes_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
