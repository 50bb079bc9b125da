/* Tile instructions against plain loops: of the emulator, or of the processor where it has them. */
#include "tests/kernels/amx_emulator.h"

#include "kernels/device.h"
#include "tests/cmocka.h"

#ifdef __x86_64__
#include "kernels/cpu/simd/amx.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 32);
}

static void fill(void *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = (uint8_t)random_bits();
}

/* Numbers about 1 in size, with all bits of a bf16 in use. */
static void fill_bf16(uint16_t *to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (uint16_t)((random_bits() & 0x81FF) + 0x3F00);
}

static float of_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Shapes of c [m, n], a [m, k dwords] and b [k, n dwords] in tiles 0, 1 and 2. */
static struct kva_tile_config shapes(uint32_t m, uint32_t n, uint32_t k)
{
    struct kva_tile_config config = {.palette = 1};
    config.rows[0] = config.rows[1] = (uint8_t)m;
    config.rows[2] = (uint8_t)k;
    config.row_bytes[0] = config.row_bytes[2] = (uint16_t)(4 * n);
    config.row_bytes[1] = (uint16_t)(4 * k);
    return config;
}

static bool ready(void)
{
    return amx_emulator_install() != AMX_ABSENT;
}

static const uint32_t sizes[][3] = {{16, 16, 16}, {1, 1, 1},  {16, 1, 16}, {16, 5, 16},
                                    {7, 16, 3},   {3, 11, 9}, {16, 16, 1}};

static void test_amx_emulator__source_is_chosen_by_levels(void **state KVA_UNUSED)
{
    const uint32_t all =
        KVA_CPU_REF | KVA_CPU_AVX2 | KVA_CPU_AVX512 | KVA_CPU_AVX512VNNI | KVA_CPU_AVX512BF16;
    assert_int_equal(amx_source_of(all | KVA_CPU_AMX), AMX_NATIVE);
    assert_int_equal(amx_source_of(all), AMX_EMULATED);
    assert_int_equal(amx_source_of(all & ~(uint32_t)KVA_CPU_AVX512BF16), AMX_ABSENT);
    assert_int_equal(amx_source_of(KVA_CPU_REF | KVA_CPU_AVX2), AMX_ABSENT);
    assert_int_equal(amx_source_of(KVA_CPU_REF), AMX_ABSENT);
    /* The level is offered as an emulated one only where nothing better is there. */
    assert_int_equal(amx_emulated_levels(),
                     amx_emulator_install() == AMX_EMULATED ? KVA_CPU_AMX : 0);
}

static void test_amx_emulator__moves_tiles(void **state KVA_UNUSED)
{
    uint8_t from[16 * 100], to[16 * 80];
    if (!ready())
        return;
    for (size_t s = 0; s < KVA_COUNT_OF(sizes); s++) {
        const uint32_t rows = sizes[s][0], bytes = 4 * sizes[s][1];
        struct kva_tile_config config = shapes(rows, sizes[s][1], sizes[s][2]), stored;
        fill(from, sizeof from);
        memset(to, 0xA5, sizeof to);
        kva_tiles_configure(&config);
        __asm__ volatile("sttilecfg %0" : "=m"(stored));
        KVA_TILE_LOAD(0, from, 100);
        KVA_TILE_STORE(0, to, 80);
        kva_tiles_release();
        assert_memory_equal(&stored, &config, sizeof config);
        for (uint32_t i = 0; i < 16; i++) {
            for (uint32_t j = 0; j < 80; j++)
                assert_int_equal(to[i * 80 + j], i < rows && j < bytes ? from[i * 100 + j] : 0xA5);
        }
    }
    struct kva_tile_config none;
    __asm__ volatile("sttilecfg %0" : "=m"(none));
    for (size_t i = 0; i < sizeof none; i++)
        assert_int_equal(((uint8_t *)&none)[i], 0);
}

/* Operands in every form: all registers as base and index, scales, displacements, no index. */
static void test_amx_emulator__reads_every_operand(void **state KVA_UNUSED)
{
    uint8_t from[16 * 64], to[16 * 64];
    if (!ready())
        return;
    struct kva_tile_config config = {.palette = 1};
    for (uint32_t i = 0; i < KVA_TILES; i++) {
        config.rows[i] = KVA_TILE_ROWS;
        config.row_bytes[i] = KVA_TILE_BYTES;
    }
    fill(from, sizeof from);
    kva_tiles_configure(&config);
#define MOVE(load, store, base, index, stride, displacement)                                       \
    do {                                                                                           \
        memset(to, 0, sizeof to);                                                                  \
        __asm__ volatile("mov %0, %%" base "\n\tmov %2, %%" index "\n\t" load                      \
                         "\n\tmov %1, %%" base "\n\t" store                                        \
                         :                                                                         \
                         : "S"((uintptr_t)from - (displacement)),                                  \
                           "D"((uintptr_t)to - (displacement)), "a"((int64_t)(stride))             \
                         : base, index, "memory");                                                 \
        assert_memory_equal(from, to, sizeof from);                                                \
    } while (0)
    MOVE("tileloadd (%%r8,%%r9,1), %%tmm7", "tilestored %%tmm7, (%%r8,%%r9,1)", "r8", "r9", 64, 0);
    MOVE("tileloadd (%%r13,%%r12,2), %%tmm0", "tilestored %%tmm0, (%%r13,%%r12,2)", "r13", "r12",
         32, 0);
    MOVE("tileloaddt1 -64(%%rbx,%%rcx,4), %%tmm3", "tilestored %%tmm3, -64(%%rbx,%%rcx,4)", "rbx",
         "rcx", 16, -64ull);
    MOVE("tileloadd 4096(%%r12,%%r15,8), %%tmm5", "tilestored %%tmm5, 4096(%%r12,%%r15,8)", "r12",
         "r15", 8, 4096);
    MOVE("tileloadd 8(%%rdx,%%r10,1), %%tmm1", "tilestored %%tmm1, 8(%%rdx,%%r10,1)", "rdx", "r10",
         64, 8);
#undef MOVE
    /* Without an index every row is the first. */
    __asm__ volatile("tileloadd (%0), %%tmm6" ::"r"(from) : "memory");
    KVA_TILE_STORE(6, to, 64);
    for (int i = 0; i < 16; i++)
        assert_memory_equal(to + i * 64, from, 64);
    /* Rows in descending order. */
    KVA_TILE_LOAD(6, from + 15 * 64, -64);
    KVA_TILE_STORE(6, to, 64);
    for (int i = 0; i < 16; i++)
        assert_memory_equal(to + i * 64, from + (15 - i) * 64, 64);
    KVA_TILE_ZERO(6);
    KVA_TILE_STORE(6, to, 64);
    for (size_t i = 0; i < sizeof to; i++)
        assert_int_equal(to[i], 0);
    kva_tiles_release();
}

/* A configuration relative to the instruction's address, and by a base and a displacement. */
static const struct kva_tile_config fixed = {
    .palette = 1, .row_bytes = {8, 0, 64}, .rows = {3, 0, 16}};

static void test_amx_emulator__reads_configurations(void **state KVA_UNUSED)
{
    struct kva_tile_config stored[2];
    if (!ready())
        return;
    __asm__ volatile("ldtilecfg fixed(%%rip)" ::"m"(fixed));
    __asm__ volatile("sttilecfg 64(%0)" ::"r"(stored) : "memory");
    assert_memory_equal(&stored[1], &fixed, sizeof fixed);
    kva_tiles_release();
    __asm__ volatile("mov %0, %%r13\n\tldtilecfg -64(%%r13)" ::"r"(&stored[2]) : "r13", "memory");
    __asm__ volatile("mov %0, %%r12\n\tsttilecfg (%%r12)" ::"r"(stored) : "r12", "memory");
    assert_memory_equal(&stored[0], &fixed, sizeof fixed);
    /* Palette 0 is as good as a release. */
    const struct kva_tile_config none = {0};
    kva_tiles_configure(&none);
    assert_int_equal(amx_emulator_held(), 0);
    __asm__ volatile("sttilecfg %0" : "=m"(stored[0]));
    assert_memory_equal(&stored[0], &none, sizeof none);
}

/* The order of additions that amx.h describes; numbers that a float holds beside each other, so
 * that another order shows. */
static float expected_bf16(float c, const uint16_t *a, const uint16_t *b, uint32_t n, uint32_t k)
{
    float even = 0, odd = 0;
    for (uint32_t i = 0; i < k; i++) {
        even = fmaf(of_bf16(a[2 * i]), of_bf16(b[i * 32 + 2 * n]), even);
        odd = fmaf(of_bf16(a[2 * i + 1]), of_bf16(b[i * 32 + 2 * n + 1]), odd);
    }
    return c + (even + odd);
}

static void test_amx_emulator__multiplies_bf16(void **state KVA_UNUSED)
{
    uint16_t a[16 * 32], b[16 * 32];
    float c[16 * 16], out[16 * 16];
    if (!ready())
        return;
    for (size_t s = 0; s < KVA_COUNT_OF(sizes); s++) {
        const uint32_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        struct kva_tile_config config = shapes(m, n, k);
        fill_bf16(a, KVA_COUNT_OF(a));
        fill_bf16(b, KVA_COUNT_OF(b));
        for (size_t i = 0; i < KVA_COUNT_OF(c); i++)
            c[i] = (float)(int32_t)random_bits() * 0x1p-28f;
        kva_tiles_configure(&config);
        KVA_TILE_LOAD(0, c, 64);
        KVA_TILE_LOAD(1, a, 64);
        KVA_TILE_LOAD(2, b, 64);
        KVA_TILE_DOT_BF16(0, 1, 2);
        KVA_TILE_STORE(0, out, 64);
        kva_tiles_release();
        for (uint32_t i = 0; i < m; i++) {
            for (uint32_t j = 0; j < n; j++) {
                float expect = expected_bf16(c[i * 16 + j], a + i * 32, b, j, k);
                assert_memory_equal(&out[i * 16 + j], &expect, sizeof expect);
            }
        }
    }
}

/* What is below the normal numbers counts as 0 and becomes 0; infinities and what is no number stay
 * in their column. */
static void test_amx_emulator__flushes_small_numbers(void **state KVA_UNUSED)
{
    uint16_t a[16 * 32] = {0}, b[16 * 32] = {0};
    float c[16 * 16] = {0};
    if (!ready())
        return;
    const struct kva_tile_config config = shapes(16, 16, 16);
    a[0] = 0x3F80;         /* 1 */
    b[0] = 0x0040;         /* 2^-127, in column 0: nothing */
    b[2] = 0x0080;         /* 2^-126, in column 1: counts */
    b[4] = 0x7F80;         /* infinity */
    b[6] = 0x7FC0;         /* no number */
    a[32] = 0x3F00;        /* row 1: 0.5 */
    c[3 * 16] = 0x1p-127f; /* is made 0 */
    c[3 * 16 + 1] = 0x1p-126f;
    kva_tiles_configure(&config);
    KVA_TILE_LOAD(0, c, 64);
    KVA_TILE_LOAD(1, a, 64);
    KVA_TILE_LOAD(2, b, 64);
    KVA_TILE_DOT_BF16(0, 1, 2);
    KVA_TILE_STORE(0, c, 64);
    kva_tiles_release();
    assert_true(c[0] == 0 && c[1] == 0x1p-126f && isinf(c[2]) && isnan(c[3]) && c[4] == 0);
    assert_true(c[16] == 0 && c[17] == 0 && isinf(c[18]) && isnan(c[19]) && c[20] == 0);
    assert_true(c[3 * 16] == 0 && c[3 * 16 + 1] == 0x1p-126f);
    /* The control register of the thread is as it was. */
    volatile float small = 0x1p-126f;
    assert_true(small * 0.5f > 0);
}

static int byte_of(uint8_t byte, bool is_signed)
{
    return is_signed ? (int8_t)byte : byte;
}

static void test_amx_emulator__multiplies_bytes(void **state KVA_UNUSED)
{
    uint8_t a[16 * 64], b[16 * 64];
    uint32_t c[16 * 16], out[4][16 * 16];
    if (!ready())
        return;
    for (size_t s = 0; s < KVA_COUNT_OF(sizes); s++) {
        const uint32_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        const struct kva_tile_config config = shapes(m, n, k);
        fill(a, sizeof a);
        fill(b, sizeof b);
        fill(c, sizeof c); /* so that sums wrap around */
        kva_tiles_configure(&config);
#define MULTIPLY(form, to)                                                                         \
    KVA_TILE_LOAD(0, c, 64);                                                                       \
    KVA_TILE_LOAD(1, a, 64);                                                                       \
    KVA_TILE_LOAD(2, b, 64);                                                                       \
    KVA_TILE_DOT_##form(0, 1, 2);                                                                  \
    KVA_TILE_STORE(0, to, 64)
        MULTIPLY(UU, out[0]);
        MULTIPLY(US, out[1]);
        MULTIPLY(SU, out[2]);
        MULTIPLY(SS, out[3]);
#undef MULTIPLY
        kva_tiles_release();
        for (uint32_t form = 0; form < 4; form++) {
            for (uint32_t i = 0; i < m; i++) {
                for (uint32_t j = 0; j < n; j++) {
                    uint32_t sum = c[i * 16 + j];
                    for (uint32_t l = 0; l < 4 * k; l++)
                        sum += (uint32_t)(byte_of(a[i * 64 + l], form & 2) *
                                          byte_of(b[l / 4 * 64 + 4 * j + l % 4], form & 1));
                    assert_int_equal(out[form][i * 16 + j], sum);
                }
            }
        }
    }
}

/* Tiles that are used otherwise than a configuration allows, each in a process of its own: a
 * processor ends it by a signal, the emulator says why. */
static const struct kva_tile_config good = {
    .palette = 1, .row_bytes = {64, 64, 64}, .rows = {16, 16, 16}};

static uint8_t bytes_of_tile[16 * 64];

/* The good one but for a byte. */
static void configure_with(size_t offset, uint8_t byte)
{
    struct kva_tile_config config = good;
    ((uint8_t *)&config)[offset] = byte;
    kva_tiles_configure(&config);
}

static void use_unconfigured(void)
{
    KVA_TILE_LOAD(0, bytes_of_tile, 64);
}

static void use_after_release(void)
{
    kva_tiles_configure(&good);
    kva_tiles_release();
    KVA_TILE_ZERO(0);
}

static void use_without_shape(void)
{
    kva_tiles_configure(&good);
    KVA_TILE_LOAD(3, bytes_of_tile, 64);
}

static void bad_palette(void)
{
    configure_with(0, 2);
}

static void bad_reserved(void)
{
    configure_with(5, 1);
}

static void bad_rows(void)
{
    configure_with(offsetof(struct kva_tile_config, rows), 17);
}

static void bad_row_bytes(void)
{
    configure_with(offsetof(struct kva_tile_config, row_bytes), 68);
}

static void bad_half_shape(void)
{
    configure_with(offsetof(struct kva_tile_config, rows), 0);
}

static void bad_tile_number(void)
{
    configure_with(offsetof(struct kva_tile_config, rows) + 8, 16);
}

static void bad_inner_size(void)
{
    configure_with(offsetof(struct kva_tile_config, rows) + 2, 8);
    KVA_TILE_DOT_BF16(0, 1, 2);
}

static void bad_outer_rows(void)
{
    configure_with(offsetof(struct kva_tile_config, rows), 8);
    KVA_TILE_DOT_SS(0, 1, 2);
}

static void bad_outer_columns(void)
{
    configure_with(offsetof(struct kva_tile_config, row_bytes), 32);
    KVA_TILE_DOT_BF16(0, 1, 2);
}

static void bad_odd_bytes(void)
{
    struct kva_tile_config config = good;
    config.row_bytes[0] = config.row_bytes[2] = 62;
    kva_tiles_configure(&config);
    KVA_TILE_DOT_BF16(0, 1, 2);
}

/* tdpbf16ps %tmm1, %tmm1, %tmm0, which assemblers refuse. */
static void bad_twice(void)
{
    kva_tiles_configure(&good);
    __asm__ volatile(".byte 0xC4, 0xE2, 0x72, 0x5C, 0xC1");
}

static void other_instruction(void)
{
    __asm__ volatile("ud2");
}

/* TDPFP16PS, of another extension. */
static void other_product(void)
{
    kva_tiles_configure(&good);
    __asm__ volatile(".byte 0xC4, 0xE2, 0x6B, 0x5C, 0xC1");
}

static void test_amx_emulator__names_what_is_wrong(void **state KVA_UNUSED)
{
    static const struct {
        void (*run)(void);
        const char *message; /* NULL: not the emulator's business */
    } cases[] = {
        {use_unconfigured, "none is configured"},
        {use_after_release, "none is configured"},
        {use_without_shape, "has no shape"},
        {bad_palette, "palette"},
        {bad_reserved, "reserved"},
        {bad_rows, "more than 16 rows"},
        {bad_row_bytes, "more than 64 bytes"},
        {bad_half_shape, "bytes without"},
        {bad_tile_number, "does not exist"},
        {bad_inner_size, "other columns than b has rows"},
        {bad_outer_rows, "differ in rows"},
        {bad_outer_columns, "differ in columns"},
        {bad_odd_bytes, "groups of 4 bytes"},
        {bad_twice, "twice"},
        {other_instruction, NULL},
        {other_product, NULL},
    };
    if (!ready())
        return;
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        int ends[2], status = 0;
        char text[256] = "";
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            dup2(ends[1], STDERR_FILENO);
            signal(SIGABRT, SIG_DFL); /* cmocka would go on with the next test */
            cases[i].run();
            _exit(0);
        }
        close(ends[1]);
        assert_int_equal(waitpid(child, &status, 0), child);
        ssize_t got = read(ends[0], text, sizeof text - 1);
        close(ends[0]);
        assert_true(got >= 0);
        assert_true(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
        if (amx_emulator_install() == AMX_EMULATED && cases[i].message)
            assert_non_null(strstr(text, cases[i].message));
        else
            assert_null(strstr(text, "amx_emulator"));
    }
}

/* A thread's tiles are its own, and what is counted is what was executed. */
static void *hold(void *opaque)
{
    uint8_t to[16 * 64];
    memset(bytes_of_tile, 7, 64);
    kva_tiles_configure(&good);
    KVA_TILE_LOAD(1, opaque, 64);
    KVA_TILE_STORE(1, to, 64);
    assert_memory_equal(to, opaque, sizeof to);
    kva_tiles_release();
    return NULL;
}

static void test_amx_emulator__tiles_belong_to_threads(void **state KVA_UNUSED)
{
    uint8_t mine[16 * 64], other[16 * 64], to[16 * 64];
    if (!ready())
        return;
    pthread_t thread;
    fill(mine, sizeof mine);
    fill(other, sizeof other);
    amx_emulator_count_reset();
    kva_tiles_configure(&good);
    KVA_TILE_LOAD(1, mine, 64);
    assert_int_equal(pthread_create(&thread, NULL, hold, other), 0);
    pthread_join(thread, NULL);
    KVA_TILE_STORE(1, to, 64);
    assert_memory_equal(to, mine, sizeof to);
    bool emulated = amx_emulator_install() == AMX_EMULATED;
    assert_int_equal(amx_emulator_held(), emulated);
    kva_tiles_release();
    assert_int_equal(amx_emulator_held(), 0);
    struct amx_counts counts = amx_emulator_counts();
    assert_int_equal(counts.configs, emulated ? 2 : 0);
    assert_int_equal(counts.releases, emulated ? 2 : 0);
    assert_int_equal(counts.loads, emulated ? 2 : 0);
    assert_int_equal(counts.stores, emulated ? 2 : 0);
    assert_int_equal(counts.zeros + counts.bf16_products + counts.byte_products, 0);
    /* A test that jumped out of a kernel. */
    kva_tiles_configure(&good);
    amx_emulator_drop();
    assert_int_equal(amx_emulator_held(), 0);
    kva_tiles_release();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_amx_emulator__source_is_chosen_by_levels),
        cmocka_unit_test(test_amx_emulator__moves_tiles),
        cmocka_unit_test(test_amx_emulator__reads_every_operand),
        cmocka_unit_test(test_amx_emulator__reads_configurations),
        cmocka_unit_test(test_amx_emulator__multiplies_bf16),
        cmocka_unit_test(test_amx_emulator__flushes_small_numbers),
        cmocka_unit_test(test_amx_emulator__multiplies_bytes),
        cmocka_unit_test(test_amx_emulator__names_what_is_wrong),
        cmocka_unit_test(test_amx_emulator__tiles_belong_to_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else
int main(void)
{
    return 0;
}
#endif
