/* AMX tile instructions in software, in a handler of SIGILL. */
#include "tests/kernels/amx_emulator.h"

#include "kernels/device.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum amx_source amx_source_of(uint32_t levels)
{
    if (levels & KVA_CPU_AMX)
        return AMX_NATIVE;
    /* The level's kernels use these instructions too; so does the emulator. */
    const uint32_t needed = KVA_CPU_AVX512 | KVA_CPU_AVX512VNNI | KVA_CPU_AVX512BF16;
    return (levels & needed) == needed ? AMX_EMULATED : AMX_ABSENT;
}

#ifdef __x86_64__
#include "kernels/cpu/simd/amx.h"

#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>

/* --- state ------------------------------------------------------------------------------------ */

struct tile {
    uint32_t rows;
    uint32_t row_bytes;
    _Alignas(64) uint8_t data[KVA_TILE_ROWS][KVA_TILE_BYTES]; /* 0 outside the shape */
};

struct tiles {
    bool configured;
    struct kva_tile_config config;
    struct tile tile[KVA_TILES];
};

/* Initial-exec: a handler may not call what allocates thread-local memory on first use. */
static _Thread_local struct tiles state __attribute__((tls_model("initial-exec")));

static _Atomic uint32_t held;
static struct {
    _Atomic uint64_t configs, releases, zeros, loads, stores, bf16_products, byte_products;
} counts;

static void count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* What a processor answers with an exception. */
_Noreturn static void fault(const char *what)
{
    const char *parts[] = {"amx_emulator: ", what, "\n"};
    for (size_t i = 0; i < KVA_COUNT_OF(parts); i++) {
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0)
            break;
    }
    abort();
}

static void demand(bool good, const char *what)
{
    if (!good)
        fault(what);
}

/* --- instructions ----------------------------------------------------------------------------- */

static void release(void)
{
    if (state.configured)
        atomic_fetch_sub(&held, 1);
    memset(&state, 0, sizeof state);
}

static void configure(const struct kva_tile_config *from)
{
    struct kva_tile_config config;
    memcpy(&config, from, sizeof config);
    count(&counts.configs);
    demand(config.palette <= 1, "ldtilecfg: no such palette");
    for (size_t i = 0; i < sizeof config.reserved; i++)
        demand(config.reserved[i] == 0, "ldtilecfg: a reserved byte is not 0");
    release();
    if (config.palette == 0)
        return;
    demand(config.start_row == 0, "ldtilecfg: start_row is not 0, which no kernel has a use for");
    for (size_t i = 0; i < KVA_COUNT_OF(config.rows); i++) {
        uint32_t rows = config.rows[i], row_bytes = config.row_bytes[i];
        demand(i < KVA_TILES || (rows == 0 && row_bytes == 0),
               "ldtilecfg: a shape for a tile that does not exist");
        demand(rows <= KVA_TILE_ROWS, "ldtilecfg: more than 16 rows");
        demand(row_bytes <= KVA_TILE_BYTES, "ldtilecfg: more than 64 bytes a row");
        demand((rows == 0) == (row_bytes == 0), "ldtilecfg: rows without bytes or bytes without");
        if (i < KVA_TILES) {
            state.tile[i].rows = rows;
            state.tile[i].row_bytes = row_bytes;
        }
    }
    state.config = config;
    state.configured = true;
    atomic_fetch_add(&held, 1);
}

static struct tile *tile_at(uint32_t index)
{
    demand(state.configured, "a tile is used, but none is configured");
    demand(index < KVA_TILES, "there are only 8 tiles");
    struct tile *tile = &state.tile[index];
    demand(tile->rows > 0, "a tile is used that has no shape");
    return tile;
}

static void load(struct tile *tile, const uint8_t *from, int64_t stride)
{
    count(&counts.loads);
    for (uint32_t i = 0; i < tile->rows; i++)
        memcpy(tile->data[i], from + (int64_t)i * stride, tile->row_bytes);
}

static void store(const struct tile *tile, uint8_t *to, int64_t stride)
{
    count(&counts.stores);
    for (uint32_t i = 0; i < tile->rows; i++)
        memcpy(to + (int64_t)i * stride, tile->data[i], tile->row_bytes);
}

static void demand_shapes(const struct tile *c, const struct tile *a, const struct tile *b)
{
    demand(c != a && c != b && a != b, "a product names a tile twice");
    demand(c->row_bytes % 4 == 0 && a->row_bytes % 4 == 0 && b->row_bytes % 4 == 0,
           "a product of rows that are not whole groups of 4 bytes");
    demand(c->rows == a->rows, "a product whose c and a differ in rows");
    demand(c->row_bytes == b->row_bytes, "a product whose c and b differ in columns");
    demand(a->row_bytes / 4 == b->rows, "a product whose a has other columns than b has rows");
}

/* Sums beyond a row's bytes are of zeros, but c's may not be made -0 + 0 there. */
__attribute__((target("avx512f"))) static void multiply_bf16(struct tile *c, const struct tile *a,
                                                             const struct tile *b)
{
    count(&counts.bf16_products);
    demand_shapes(c, a, b);
    const uint32_t control = _mm_getcsr();
    /* Nothing traps, to nearest even, and what is below the normal numbers is 0. */
    _mm_setcsr(_MM_MASK_MASK | _MM_ROUND_NEAREST | _MM_FLUSH_ZERO_ON | 0x40);
    const __mmask16 columns = (__mmask16)((1u << c->row_bytes / 4) - 1u);
    const __m512i high = _mm512_set1_epi32((int)0xFFFF0000u);
    for (uint32_t m = 0; m < c->rows; m++) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (uint32_t k = 0; k < b->rows; k++) {
            uint32_t pair;
            memcpy(&pair, a->data[m] + (size_t)k * 4, sizeof pair);
            const __m512i factors = _mm512_load_si512(b->data[k]);
            even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)(pair << 16))),
                                   _mm512_castsi512_ps(_mm512_slli_epi32(factors, 16)), even);
            odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)(pair & 0xFFFF0000u))),
                                  _mm512_castsi512_ps(_mm512_and_si512(factors, high)), odd);
        }
        __m512 sum = _mm512_add_ps(_mm512_load_ps(c->data[m]), _mm512_add_ps(even, odd));
        _mm512_mask_store_ps(c->data[m], columns, sum);
    }
    _mm_setcsr(control);
}

static int factor(uint8_t byte, bool is_signed)
{
    return is_signed ? (int8_t)byte : byte;
}

/* Sums wrap around. */
__attribute__((target("avx512f,avx512bw"))) static void multiply_bytes(struct tile *c,
                                                                       const struct tile *a,
                                                                       const struct tile *b,
                                                                       bool a_signed, bool b_signed)
{
    count(&counts.byte_products);
    demand_shapes(c, a, b);
    int32_t factors[KVA_TILE_ROWS][4][16];
    for (uint32_t k = 0; k < b->rows; k++) {
        for (uint32_t n = 0; n < 16; n++) {
            for (uint32_t i = 0; i < 4; i++)
                factors[k][i][n] = factor(b->data[k][4 * n + i], b_signed);
        }
    }
    for (uint32_t m = 0; m < c->rows; m++) {
        uint32_t sums[16];
        memcpy(sums, c->data[m], sizeof sums);
        for (uint32_t k = 0; k < b->rows; k++) {
            for (uint32_t i = 0; i < 4; i++) {
                int x = factor(a->data[m][4 * k + i], a_signed);
                for (uint32_t n = 0; n < 16; n++)
                    sums[n] += (uint32_t)(x * factors[k][i][n]);
            }
        }
        memcpy(c->data[m], sums, c->row_bytes);
    }
}

/* --- decoding --------------------------------------------------------------------------------- */

enum prefix {
    PREFIX_NONE,
    PREFIX_66,
    PREFIX_F3,
    PREFIX_F2,
};

/* An instruction with a three-byte VEX prefix of map 0F38: [C4][~R ~X ~B map][W ~vvvv L pp][opcode]
 * [ModRM][SIB][displacement]. */
struct instruction {
    uint8_t opcode;
    enum prefix prefix;
    uint32_t reg; /* ModRM.reg and R */
    uint32_t rm;  /* ModRM.rm and B */
    uint32_t vvvv;
    bool memory; /* ModRM does not name a register */
    bool sib;
    uint8_t *address; /* of the memory operand without its index, where it has one and is tiles' */
    int64_t index;    /* what the index adds */
    size_t length;
};

static int64_t register_at(const ucontext_t *context, uint32_t number)
{
    static const int places[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                   REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                   REG_R12, REG_R13, REG_R14, REG_R15};
    return context->uc_mcontext.gregs[places[number]];
}

static void decode_memory(const ucontext_t *context, const uint8_t *code, uint32_t vex,
                          struct instruction *in)
{
    const uint32_t b = ~vex >> 5 & 1, x = ~vex >> 6 & 1;
    const uint32_t mod = code[4] >> 6, rm = code[4] & 7;
    int64_t address = 0;
    int32_t displacement = 0;
    size_t at = 5;
    size_t displacement_bytes = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    bool relative = false;
    in->sib = rm == 4;
    if (in->sib) {
        const uint32_t sib = code[at++], base = sib & 7, index = (sib >> 3 & 7) | x << 3;
        if (index != 4)
            in->index = (int64_t)((uint64_t)register_at(context, index) << (sib >> 6));
        if (base == 5 && mod == 0)
            displacement_bytes = 4;
        else
            address = register_at(context, base | b << 3);
    } else if (mod == 0 && rm == 5) {
        displacement_bytes = 4;
        relative = true;
    } else {
        address = register_at(context, rm | b << 3);
    }
    if (displacement_bytes == 1)
        displacement = (int8_t)code[at];
    else if (displacement_bytes == 4)
        memcpy(&displacement, code + at, sizeof displacement);
    in->length = at + displacement_bytes;
    if (relative)
        address = context->uc_mcontext.gregs[REG_RIP] + (int64_t)in->length;
    in->address = (uint8_t *)(uintptr_t)(address + displacement); // NOLINT
}

/* false: not a tile instruction. */
static bool decode(const ucontext_t *context, struct instruction *in)
{
    const uint8_t *code = (const uint8_t *)context->uc_mcontext.gregs[REG_RIP]; // NOLINT
    *in = (struct instruction){.length = 5};
    if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || (code[2] & 0x84) != 0)
        return false;
    in->opcode = code[3];
    if (in->opcode != 0x49 && in->opcode != 0x4B && in->opcode != 0x5C && in->opcode != 0x5E)
        return false;
    in->prefix = (enum prefix)(code[2] & 3);
    in->vvvv = ~(uint32_t)code[2] >> 3 & 15;
    in->reg = (code[4] >> 3 & 7) | (~(uint32_t)code[1] >> 7 & 1) << 3;
    in->memory = code[4] >> 6 != 3;
    in->rm = (code[4] & 7) | (~(uint32_t)code[1] >> 5 & 1) << 3;
    if (in->memory)
        decode_memory(context, code, code[1], in);
    return true;
}

/* --- execution -------------------------------------------------------------------------------- */

/* Opcode 49: ldtilecfg, sttilecfg, tilerelease, tilezero. */
static bool execute_config(const struct instruction *in)
{
    if (in->vvvv != 0)
        return false;
    if (in->memory && in->reg == 0 && (in->prefix == PREFIX_NONE || in->prefix == PREFIX_66)) {
        void *at = in->address + in->index;
        if (in->prefix == PREFIX_NONE)
            configure(at);
        else
            memcpy(at, &state.config, sizeof state.config);
        return true;
    }
    if (!in->memory && in->prefix == PREFIX_NONE && in->reg == 0 && in->rm == 0) {
        count(&counts.releases);
        release();
        return true;
    }
    if (!in->memory && in->prefix == PREFIX_F2 && in->rm == 0) {
        count(&counts.zeros);
        memset(tile_at(in->reg)->data, 0, sizeof state.tile[0].data);
        return true;
    }
    return false;
}

/* Opcode 4B: tileloadd, tileloaddt1, tilestored. */
static bool execute_move(const struct instruction *in)
{
    if (!in->memory || !in->sib || in->vvvv != 0 || in->prefix == PREFIX_NONE)
        return false;
    struct tile *tile = tile_at(in->reg);
    if (in->prefix == PREFIX_F3)
        store(tile, in->address, in->index);
    else
        load(tile, in->address, in->index);
    return true;
}

/* Opcodes 5C and 5E: products. */
static bool execute_product(const struct instruction *in)
{
    if (in->memory || (in->opcode == 0x5C && in->prefix != PREFIX_F3))
        return false;
    struct tile *c = tile_at(in->reg);
    const struct tile *a = tile_at(in->rm), *b = tile_at(in->vvvv);
    if (in->opcode == 0x5C)
        multiply_bf16(c, a, b);
    else
        multiply_bytes(c, a, b, in->prefix == PREFIX_F2 || in->prefix == PREFIX_F3,
                       in->prefix == PREFIX_F2 || in->prefix == PREFIX_66);
    return true;
}

static bool execute(const struct instruction *in)
{
    switch (in->opcode) {
    case 0x49:
        return execute_config(in);
    case 0x4B:
        return execute_move(in);
    default:
        return execute_product(in);
    }
}

static void on_illegal(int number, siginfo_t *info KVA_UNUSED, void *opaque)
{
    ucontext_t *context = opaque;
    struct instruction in;
    if (decode(context, &in) && execute(&in))
        context->uc_mcontext.gregs[REG_RIP] += (greg_t)in.length;
    else
        signal(number, SIG_DFL); /* die where it happened */
}

/* --- interface -------------------------------------------------------------------------------- */

enum amx_source amx_emulator_install(void)
{
    static enum amx_source source;
    static bool decided;
    struct kva_device *device;
    const struct kva_device_params params = {.threads = 1};
    if (!decided && kva_device_open_cpu(&params, &device, NULL) == KVA_OK) {
        source = amx_source_of(kva_device_get_info(device)->cpu_levels);
        kva_device_close(device);
    }
    decided = true;
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    if (source == AMX_EMULATED && sigaction(SIGILL, &action, NULL) != 0)
        source = AMX_ABSENT;
    return source;
}

struct amx_counts amx_emulator_counts(void)
{
    return (struct amx_counts){
        .configs = counts.configs,
        .releases = counts.releases,
        .zeros = counts.zeros,
        .loads = counts.loads,
        .stores = counts.stores,
        .bf16_products = counts.bf16_products,
        .byte_products = counts.byte_products,
    };
}

void amx_emulator_count_reset(void)
{
    counts.configs = counts.releases = counts.zeros = counts.loads = counts.stores = 0;
    counts.bf16_products = counts.byte_products = 0;
}

uint32_t amx_emulator_held(void)
{
    return held;
}

void amx_emulator_drop(void)
{
    release();
}

#else
enum amx_source amx_emulator_install(void)
{
    return AMX_ABSENT;
}

struct amx_counts amx_emulator_counts(void)
{
    return (struct amx_counts){0};
}

void amx_emulator_count_reset(void)
{
}

uint32_t amx_emulator_held(void)
{
    return 0;
}

void amx_emulator_drop(void)
{
}
#endif

uint32_t amx_emulated_levels(void)
{
    return amx_emulator_install() == AMX_EMULATED ? KVA_CPU_AMX : 0;
}
