/* Kept rows: golden vectors of keys per token, scripted scores, and arguments that are refused. The
 * operators' own cases are checkasm's. */
#include "tests/cmocka.h"

#include "kernels/convert.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 4, TOKENS = 5 };

static struct kva_device *open_level(uint32_t mask)
{
    struct kva_device_params params = {.threads = 1, .cpu_level_mask = mask};
    struct kva_device *device = NULL;
    return kva_device_open_cpu(&params, &device, NULL) == KVA_OK ? device : NULL;
}

/* --- keys per token --------------------------------------------------------------------------- */

/* Ranges without 0 on either side, a constant, infinities, zeros of both signs. */
static const uint16_t rows[TOKENS][DIM] = {{0x4900, 0x4980, 0x4A00, 0x4A80},  /* 10 to 13 */
                                           {0xCA80, 0xCA00, 0xC980, 0xC900},  /* -13 to -10 */
                                           {0x4500, 0x4500, 0x4500, 0x4500},  /* 5 */
                                           {0x7C00, 0x0000, 0x0000, 0xFC00},  /* inf, 0, 0, -inf */
                                           {0x0000, 0x8000, 0x0000, 0x0000}}; /* 0, -0, 0, 0 */

/* Keys and values alike; what lies behind the last token is 0. */
static void make_page(uint16_t *page)
{
    memset(page, 0, kva_kv_block_bytes(1, DIM));
    for (size_t t = 0; t < TOKENS; t++) {
        memcpy(page + 2 * t * DIM, rows[t], sizeof rows[t]);
        memcpy(page + (2 * t + 1) * DIM, rows[t], sizeof rows[t]);
    }
}

static void expect_halves(const unsigned char *at, const uint16_t *halves, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(at[2 * i] | at[2 * i + 1] << 8, halves[i]);
}

/* With 2 bits. Scale and zero: 1 and the least; infinities are +-65504, whose third is 43680 in f16.
 * Codes: 0 to 3; none; 3 1 1 0. */
static void check_block(const unsigned char *block)
{
    const uint16_t scale[] = {0x3C00, 0x3C00, 0, 0x7955, 0};
    const uint16_t zero[] = {0x4900, 0xCA80, 0x4500, 0xFBFF, 0};
    for (size_t value = 0; value < 2; value++) {
        expect_halves(block + value * 256, scale, TOKENS);
        expect_halves(block + value * 256 + 128, zero, TOKENS);
    }
    const unsigned char *k = block + 512, *v = k + 64;
    assert_int_equal(k[0], 0xAA); /* plane 0, tokens 0 and 1 */
    assert_int_equal(k[1], 0x70); /* tokens 2 and 3 */
    assert_int_equal(k[2], 0);
    assert_int_equal(k[32], 0xCC); /* plane 1 */
    assert_int_equal(k[33], 0x10);
    assert_int_equal(v[0], 0xB8); /* plane 0, channels 0 and 1 of tokens 0 to 3 */
    assert_int_equal(v[1], 0x38);
    assert_int_equal(v[32], 0x08);
    assert_int_equal(v[33], 0x33);
}

static void test_keep__token_format(void **state KVA_UNUSED)
{
    const uint32_t levels[] = {KVA_CPU_REF, KVA_CPU_AVX2, KVA_CPU_AVX512, KVA_CPU_AVX512VNNI};
    const struct kva_lowbit_format format = kva_lowbit_per_token(2, DIM, KVA_CODING_PLAIN);
    uint16_t page[64 * 2 * DIM];
    unsigned char block[1024], stored[1024] = {0};
    const void *from[] = {page};
    void *to[] = {block}, *store[] = {stored};
    const uint32_t slots[TOKENS] = {0, 1, 2, 3, 4};
    make_page(page);
    assert_int_equal(kva_lowbit_block_bytes(format, 1, DIM), 4 * 128 + 2 * 64);
    for (size_t i = 0; i < KVA_COUNT_OF(levels); i++) {
        struct kva_device *device = open_level(levels[i]);
        if (!device)
            continue;
        memset(block, 0xFF, sizeof block);
        kva_device_ops(device)->quantise(device, &(struct kva_quantise_args){.from = from,
                                                                             .to = to,
                                                                             .count = 1,
                                                                             .kv_heads = 1,
                                                                             .head_dim = DIM,
                                                                             .kv_dtype = KVA_F16,
                                                                             .format = format});
        check_block(block);
        const struct kva_store_seq seq = {
            .from = from, .to = store, .slots = slots, .slot_count = 64, .count = TOKENS};
        kva_device_ops(device)->store_rows(device,
                                           &(struct kva_store_rows_args){.seqs = &seq,
                                                                         .seq_count = 1,
                                                                         .kv_heads = 1,
                                                                         .head_dim = DIM,
                                                                         .kv_dtype = KVA_F16,
                                                                         .format = format});
        check_block(stored);
        assert_int_equal(kva_device_error(device, NULL), KVA_OK);
        kva_device_close(device);
    }
}

static void test_keep__row_error(void **state KVA_UNUSED)
{
    struct kva_device *device = open_level(0);
    uint16_t page[64 * 2 * DIM];
    const void *blocks[] = {page};
    float error[TOKENS];
    make_page(page);
    const struct kva_row_error_seq seq = {blocks, error, NULL, TOKENS, TOKENS};
    kva_device_ops(device)->row_error(
        device,
        &(struct kva_row_error_args){.seqs = &seq,
                                     .seq_count = 1,
                                     .kv_heads = 1,
                                     .head_dim = DIM,
                                     .kv_dtype = KVA_F16,
                                     .format = kva_lowbit_per_token(2, DIM, KVA_CODING_PLAIN)});
    for (int i = 0; i < TOKENS; i++) {
        /* 65504 became 65536, and two zeros -21824; of keys and of values. */
        const double off = 2 * (32.0 * 32 + 2 * 21824.0 * 21824) / (2 * 65504.0 * 65504);
        assert_true(fabs((double)error[i] - (i == 3 ? off : 0)) < 1e-6);
    }
    kva_device_close(device);
}

/* Two channels of a KV head have `level` in all tokens, and less than 8 standard deviations of it in
 * one of them; the other channels tell tokens apart. */
static void make_common(uint16_t *page, uint32_t head, float level)
{
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++) {
        uint16_t *key = page + (head * KVA_PAGE_TOKENS + t) * 2 * DIM;
        const float sign = t % 2 ? 1.0f : -1.0f;
        memset(key, 0, 2 * DIM * sizeof *key);
        key[0] = kva_f16_of_f32(level);
        key[1] = kva_f16_of_f32(level + sign * level / 4);
        key[2] = kva_f16_of_f32(sign * 2);
    }
}

static void find_means(struct kva_device *device, const uint16_t *page, float *mean)
{
    kva_device_ops(device)->mean_keys(device, &(struct kva_mean_keys_args){.block = page,
                                                                           .mean = mean,
                                                                           .first = 2,
                                                                           .end = 64,
                                                                           .kv_heads = 2,
                                                                           .head_dim = DIM,
                                                                           .kv_dtype = KVA_F16});
    assert_int_equal(kva_device_error(device, NULL), KVA_OK);
}

/* Means come off where they are most of the keys: 16 times the variance of all channels, and the
 * channel's own eight standard deviations. */
static void test_keep__mean_keys(void **state KVA_UNUSED)
{
    struct kva_device *device = open_level(0);
    uint16_t page[2 * KVA_PAGE_TOKENS * 2 * DIM];
    float mean[2 * DIM];
    const float levels[] = {64, 7}; /* 7^2 < 16 (2^2 + (7/4)^2) */
    make_common(page, 0, levels[0]);
    make_common(page, 1, levels[1]);
    for (uint32_t i = 0; i < KVA_COUNT_OF(mean); i++)
        mean[i] = -1;
    find_means(device, page, mean);
    /* The first head: 64^2 < 16 (2^2 + 16^2) as well, for its second channel counts as spread. */
    for (uint32_t i = 0; i < KVA_COUNT_OF(mean); i++)
        assert_true(mean[i] == 0.0f);
    for (uint32_t t = 0; t < KVA_PAGE_TOKENS; t++)
        page[t * 2 * DIM + 1] = 0;
    find_means(device, page, mean);
    for (uint32_t i = 0; i < KVA_COUNT_OF(mean); i++)
        assert_true(mean[i] == (i == 0 ? levels[0] : 0.0f));
    kva_device_close(device);
}

/* --- what stays ------------------------------------------------------------------------------- */

static void keep(struct kva_device *device, const struct kva_keep_seq *seq,
                 enum kva_keep_score score, float lambda)
{
    const size_t bytes = kva_keep_scratch_bytes(1, seq->filled, seq->count);
    void *scratch = malloc(bytes);
    kva_device_ops(device)->keep(device, &(struct kva_keep_args){.seqs = seq,
                                                                 .scratch = scratch,
                                                                 .scratch_bytes = bytes,
                                                                 .seq_count = 1,
                                                                 .kv_heads = 1,
                                                                 .score = score,
                                                                 .lambda = lambda});
    assert_int_equal(kva_device_error(device, NULL), KVA_OK);
    free(scratch);
}

/* Token 0 is a sink, 5 the newest; of the others 3 has most, and of equals 1 is the oldest. */
static void test_keep__scripted(void **state KVA_UNUSED)
{
    struct kva_device *device = open_level(0);
    uint32_t positions[] = {0, 1, 2, 3}, to[2];
    float mass[] = {0, 1, 1, 3};
    const float come[] = {1, 0.5f};
    const struct kva_keep_seq seq = {.store = {positions, mass, NULL, 4},
                                     .mass = come,
                                     .to = to,
                                     .filled = 4,
                                     .count = 2,
                                     .stride = 2,
                                     .position_first = 4,
                                     .sinks = 1,
                                     .recent = 1};
    keep(device, &seq, KVA_KEEP_MASS, 0);
    assert_int_equal(to[0], KVA_NO_SLOT);
    assert_int_equal(to[1], 2);
    const uint32_t expect[] = {0, 1, 5, 3};
    assert_memory_equal(positions, expect, sizeof expect);
    assert_true(mass[2] == 0.5f && mass[3] == 3.0f);
    kva_device_close(device);
}

/* By ranks of the mass alone: what the mass keeps. */
static void test_keep__lambda_of_one_is_mass(void **state KVA_UNUSED)
{
    enum { SLOTS = 128, COUNT = 300 };
    struct kva_device *device = open_level(0);
    uint32_t positions[2][SLOTS], to[2][COUNT];
    float mass[SLOTS], error[SLOTS], come[COUNT], errors[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        come[i] = (float)(i * 7919 % 101) * 0.37f;
        errors[i] = (float)(i * 104729 % 97) * 0.01f;
    }
    for (uint32_t i = 0; i < 2; i++) {
        const struct kva_keep_seq seq = {.store = {positions[i], mass, error, SLOTS},
                                         .mass = come,
                                         .error = errors,
                                         .to = to[i],
                                         .count = COUNT,
                                         .stride = COUNT,
                                         .sinks = 4,
                                         .recent = 20,
                                         .pure = 10};
        keep(device, &seq, i ? KVA_KEEP_RANK : KVA_KEEP_MASS, 1);
    }
    assert_memory_equal(positions[0], positions[1], sizeof positions[0]);
    assert_memory_equal(to[0], to[1], sizeof to[0]);
    kva_device_close(device);
}

/* --- refusals --------------------------------------------------------------------------------- */

static void refused(const struct kva_device *device, const char *text)
{
    struct kva_err err = {0};
    assert_int_not_equal(kva_device_error(device, &err), KVA_OK);
    if (!strstr(err.message, text))
        fail_msg("'%s' does not say '%s'", err.message, text);
    kva_device_close((struct kva_device *)(uintptr_t)device);
}

static void keep_refused(struct kva_keep_seq seq, struct kva_keep_args args, const char *text)
{
    struct kva_device *device = open_level(0);
    args.seqs = &seq;
    args.seq_count = args.kv_heads = 1;
    kva_device_ops(device)->keep(device, &args);
    refused(device, text);
}

static void store_refused(struct kva_store_rows_args args, const char *text)
{
    struct kva_device *device = open_level(0);
    args.kv_heads = 1;
    kva_device_ops(device)->store_rows(device, &args);
    refused(device, text);
}

static void mean_refused(struct kva_mean_keys_args args, const char *text)
{
    struct kva_device *device = open_level(0);
    args.kv_heads = 1;
    kva_device_ops(device)->mean_keys(device, &args);
    refused(device, text);
}

static void test_keep__refusals(void **state KVA_UNUSED)
{
    const struct kva_keep_store store = {.slots = 64};
    const struct kva_keep_args none = {0};
    keep_refused((struct kva_keep_seq){.store = store, .filled = 65}, none, "65 of 64 slots");
    keep_refused((struct kva_keep_seq){.store = store, .count = 3, .stride = 2}, none,
                 "3 tokens come");
    keep_refused((struct kva_keep_seq){.store = store, .sinks = 4, .recent = 61}, none,
                 "cannot hold 4 sinks and 61");
    keep_refused((struct kva_keep_seq){.store = store}, (struct kva_keep_args){.score = 7},
                 "no score 7");
    keep_refused((struct kva_keep_seq){.store = store}, (struct kva_keep_args){.lambda = 1.5f},
                 "a lambda of 1.5");
    keep_refused((struct kva_keep_seq){.store = store},
                 (struct kva_keep_args){.score = KVA_KEEP_RANK}, "no errors");
    char need[64];
    snprintf(need, sizeof need, "needs %zu bytes", kva_keep_scratch_bytes(1, 64, 0));
    keep_refused((struct kva_keep_seq){.store = store, .filled = 64}, none, need);
    store_refused((struct kva_store_rows_args){.head_dim = 6, .kv_dtype = KVA_F16},
                  "multiple of 4");
    const struct kva_store_seq nowhere = {.count = 3};
    store_refused((struct kva_store_rows_args){.seqs = &nowhere, .seq_count = 1},
                  "a store without slots");
    store_refused((struct kva_store_rows_args){.head_dim = 8, .kv_dtype = KVA_F32}, "f16 or bf16");
    store_refused(
        (struct kva_store_rows_args){.head_dim = 8,
                                     .kv_dtype = KVA_F16,
                                     .format = kva_lowbit_per_token(5, 8, KVA_CODING_TURNED)},
        "2, 3, 4 or 8");
    store_refused(
        (struct kva_store_rows_args){.head_dim = 8,
                                     .kv_dtype = KVA_F16,
                                     .format = kva_lowbit_per_token(4, 16, KVA_CODING_PLAIN)},
        "must be head_dim 8");
    store_refused((struct kva_store_rows_args){.head_dim = 8,
                                               .kv_dtype = KVA_F16,
                                               .format = {.bits = 4, .group = 32}},
                  "keys per token");
    const float inv_freq[8] = {0};
    store_refused(
        (struct kva_store_rows_args){.head_dim = 8, .kv_dtype = KVA_F16, .rotary = {inv_freq, 10}},
        "rotary_dim 10");
    mean_refused((struct kva_mean_keys_args){.first = 4, .end = 4}, "tokens 4 to 4 of a block");
    mean_refused((struct kva_mean_keys_args){.end = 65}, "tokens 0 to 65 of a block of 64");
    mean_refused((struct kva_mean_keys_args){.end = 64, .head_dim = 6, .kv_dtype = KVA_F16},
                 "multiple of 4");
    mean_refused((struct kva_mean_keys_args){.end = 64, .head_dim = 8, .kv_dtype = KVA_F32},
                 "f16 or bf16");
    struct kva_device *device = open_level(0);
    kva_device_ops(device)->roll_rows(
        device, &(struct kva_roll_rows_args){.head_dim = 8, .kv_dtype = KVA_F16});
    refused(device, "no frequencies");
    device = open_level(0);
    kva_device_ops(device)->attend_mass(
        device,
        &(struct kva_attend_mass_args){
            .heads = 3, .kv_heads = 2, .head_dim = 8, .kv_dtype = KVA_F16, .partial_count = 1});
    refused(device, "cannot share");
    const struct kva_attend_range range = {.token_first = 3, .token_count = 10};
    const struct kva_mass_seq seq = {.range_count = 1, .mass_stride = 12};
    device = open_level(0);
    kva_device_ops(device)->attend_mass(device, &(struct kva_attend_mass_args){.seqs = &seq,
                                                                               .ranges = &range,
                                                                               .seq_count = 1,
                                                                               .heads = 2,
                                                                               .kv_heads = 2,
                                                                               .head_dim = 8,
                                                                               .kv_dtype = KVA_F16,
                                                                               .partial_count = 1});
    refused(device, "tokens 3 to 13 in an array of 0 to 12");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep__token_format),
        cmocka_unit_test(test_keep__row_error),
        cmocka_unit_test(test_keep__mean_keys),
        cmocka_unit_test(test_keep__scripted),
        cmocka_unit_test(test_keep__lambda_of_one_is_mass),
        cmocka_unit_test(test_keep__refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
