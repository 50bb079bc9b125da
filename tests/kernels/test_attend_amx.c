/* What tiles attention of level amx loads, multiplies and stores, which stands behind what
 * docs/results/cpu.md expects of it, and what becomes of values that are no finite numbers. */
#include "kernels/ops.h"
#include "tests/cmocka.h"
#include "tests/kernels/amx_emulator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 64, PAGES = 4, TOKENS = PAGES * KVA_PAGE_TOKENS, HEADS_MAX = 64 };

struct fixture {
    struct kva_device *device;
    uint16_t *kv; /* [PAGES][64][2][DIM] */
    float q[HEADS_MAX * DIM], a[HEADS_MAX * DIM], m[HEADS_MAX], e[HEADS_MAX];
};

static int setup(void **state)
{
    static struct fixture f;
    const struct kva_device_params params = {.threads = 1,
                                             .cpu_levels_emulated = amx_emulated_levels()};
    if (kva_device_open_cpu(&params, &f.device, NULL) != KVA_OK)
        return -1;
    f.kv = malloc(PAGES * kva_kv_block_bytes(1, DIM));
    uint32_t random = 1;
    for (size_t i = 0; i < (size_t)TOKENS * 2 * DIM; i++) {
        random = random * 1664525u + 1013904223u;
        f.kv[i] = (uint16_t)((random >> 16 & 0x80FFu) + 0x3E80u); /* 0.25 to 1, either sign */
    }
    for (size_t i = 0; i < HEADS_MAX * DIM; i++)
        f.q[i] = (float)(i * 37 % 101) / 50 - 1;
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    free(f->kv);
    kva_device_close(f->device);
    return 0;
}

/* One row of `heads` heads on one KV head over a whole split of bf16 rows. */
static struct amx_counts attend(struct fixture *f, uint32_t heads)
{
    const void *blocks[PAGES];
    for (uint32_t i = 0; i < PAGES; i++)
        blocks[i] = f->kv + (size_t)i * KVA_PAGE_TOKENS * 2 * DIM;
    const struct kva_attend_range range = {.token_count = TOKENS};
    const struct kva_attend_seq seq = {
        .row_count = 1, .position_first = TOKENS - 1, .range_count = 1};
    const struct kva_attend_args args = {.q = f->q,
                                         .out = {f->a, f->m, f->e},
                                         .seqs = &seq,
                                         .ranges = &range,
                                         .blocks = blocks,
                                         .seq_count = 1,
                                         .q_stride = heads * DIM,
                                         .heads = heads,
                                         .kv_heads = 1,
                                         .head_dim = DIM,
                                         .kv_dtype = KVA_BF16,
                                         .scale = 0.125f};
    amx_emulator_count_reset();
    kva_device_ops(f->device)->attend(f->device, &args);
    assert_int_equal(amx_emulator_held(), 0);
    return amx_emulator_counts();
}

/* The same over low-bit pages. */
static struct amx_counts attend_lowbit(struct fixture *f, uint32_t heads, uint32_t bits)
{
    const struct kva_lowbit_format format = {.bits = bits, .group = 64};
    const size_t bytes = kva_lowbit_block_bytes(format, 1, DIM);
    unsigned char *low = malloc(PAGES * bytes);
    const void *from[PAGES];
    void *to[PAGES];
    for (uint32_t i = 0; i < PAGES; i++) {
        from[i] = f->kv + (size_t)i * KVA_PAGE_TOKENS * 2 * DIM;
        to[i] = low + i * bytes;
    }
    const struct kva_quantise_args quantise = {.from = from,
                                               .to = to,
                                               .count = PAGES,
                                               .kv_heads = 1,
                                               .head_dim = DIM,
                                               .kv_dtype = KVA_BF16,
                                               .format = format};
    kva_device_ops(f->device)->quantise(f->device, &quantise);
    const struct kva_select_seq seq = {
        .row_count = 1, .position_first = TOKENS, .page_count = PAGES, .select_row = UINT32_MAX};
    const struct kva_attend_select_fetch_args args = {.q = f->q,
                                                      .out = {f->a, f->m, f->e},
                                                      .seqs = &seq,
                                                      .blocks = (const void *const *)to,
                                                      .seq_count = 1,
                                                      .q_stride = heads * DIM,
                                                      .heads = heads,
                                                      .kv_heads = 1,
                                                      .head_dim = DIM,
                                                      .kv_dtype = KVA_BF16,
                                                      .format = format,
                                                      .scale = 0.125f};
    amx_emulator_count_reset();
    kva_device_ops(f->device)->attend_select_fetch(f->device, &args);
    struct amx_counts counts = amx_emulator_counts();
    assert_int_equal(amx_emulator_held(), 0);
    assert_int_equal(kva_device_error(f->device, NULL), KVA_OK);
    free(low);
    return counts;
}

static void expect(const struct amx_counts *counts, uint32_t products, uint32_t loads,
                   uint32_t stores)
{
    assert_int_equal(counts->bf16_products + counts->byte_products, products);
    assert_int_equal(counts->loads, loads);
    assert_int_equal(counts->stores, stores);
    assert_int_equal(counts->configs, 1);
    assert_int_equal(counts->releases, 1);
}

/* Only what is emulated is counted. In every test: cmocka catches SIGILL, too. */
static void need_emulation(void)
{
    if (!amx_emulated_levels())
        skip();
}

static void test_attend_amx__a_page_takes_so_many_tiles(void **state)
{
    need_emulation();
    struct amx_counts decode = attend(*state, 8), prefill = attend(*state, 64);
    expect(&decode, PAGES * 16, PAGES * 24, PAGES * 8);
    expect(&prefill, PAGES * 64, PAGES * 96, PAGES * 32);
    assert_int_equal(decode.byte_products + prefill.byte_products, 0);
}

static void test_attend_amx__a_low_bit_page_takes_so_many_tiles(void **state)
{
    need_emulation();
    for (uint32_t bits = 1; bits <= 4; bits *= 2) {
        /* With 4 bits a query has two digits. */
        const uint32_t tiles = bits == 4 ? 2 : 1;
        struct amx_counts counts = attend_lowbit(*state, 16, bits);
        expect(&counts, tiles * PAGES * 8, tiles * PAGES * 10, tiles * (PAGES * 4 + 4));
        assert_int_equal(counts.bf16_products, 0);
    }
}

/* An infinite value makes its dimension infinite, and is nothing to the others: these have the bits
 * that they have with a 0 there. */
static void test_attend_amx__what_is_not_finite_stays_in_its_dimension(void **state)
{
    amx_emulated_levels(); /* cmocka catches SIGILL, too */
    struct fixture *f = *state;
    const uint32_t heads[] = {8, 40};
    uint16_t *value = &f->kv[(size_t)(100 * 2 + 1) * DIM + 3], before = *value;
    for (size_t i = 0; i < KVA_COUNT_OF(heads); i++) {
        float a[HEADS_MAX * DIM];
        *value = 0;
        attend(f, heads[i]);
        memcpy(a, f->a, sizeof a);
        *value = 0xFF80; /* -inf */
        attend(f, heads[i]);
        for (uint32_t j = 0; j < heads[i] * DIM; j++) {
            if (j % DIM == 3)
                assert_true(f->a[j] == -INFINITY);
            else
                assert_memory_equal(&f->a[j], &a[j], sizeof a[j]);
        }
    }
    *value = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend_amx__a_page_takes_so_many_tiles),
        cmocka_unit_test(test_attend_amx__a_low_bit_page_takes_so_many_tiles),
        cmocka_unit_test(test_attend_amx__what_is_not_finite_stays_in_its_dimension),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
