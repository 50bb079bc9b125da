/* What the lanes of a warp do together: shuffles, votes, matrices. */
#include "forms.h"

#include <algorithm>

#include "tests/cuda/simt/cuda_fp16.h"

namespace ptx
{

/* --- shuffles and votes ----------------------------------------------------------------------- */

/* The lane that is read, as the manual's loop has it; *ret_in: whether it is within its segment. */
static unsigned source_lane(uint32_t mode, unsigned lane, uint32_t b, uint32_t c, bool *ret_in)
{
    unsigned by = b & 31, clamp = c & 31, segment = c >> 8 & 31;
    unsigned most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    int source = 0;
    switch (mode) {
    case SHUFFLE_UP:
        source = (int)lane - (int)by;
        *ret_in = source >= (int)most;
        break;
    case SHUFFLE_DOWN:
        source = (int)(lane + by);
        *ret_in = source <= (int)most;
        break;
    case SHUFFLE_BFLY:
        source = (int)(lane ^ by);
        *ret_in = source <= (int)most;
        break;
    default:
        source = (int)(least | (by & ~segment));
        *ret_in = source <= (int)most;
    }
    return *ret_in ? (unsigned)source : lane;
}

void shuffle(warp &w, const instr &i, lane_mask mask)
{
    const uint32_t *a = w.lanes<uint32_t>(i.ops[1]), *b = w.lanes<uint32_t>(i.ops[2]);
    const uint32_t *c = w.lanes<uint32_t>(i.ops[3]);
    uint32_t result[LANES];
    lane_mask known = 0, in_segment = 0;
    demand(w, i, mask, i.ops[2], "the lane of a shuffle");
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        bool in;
        unsigned source = source_lane(i.aux, lane, b[lane], c[lane], &in);
        if (!(mask >> source & 1))
            defect(w, i, lane, "reads lane %u, which takes no part", source);
        result[lane] = a[source];
        known |= (w.known(i.ops[1]) >> source & 1) << lane;
        in_segment |= (lane_mask)in << lane;
    }
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        w.lanes<uint32_t>(i.ops[0])[lane] = result[lane];
    }
    w.define(i.ops[0], mask, known);
    if (i.ops[5].number != NO_REGISTER)
        w.set_predicate(i.ops[5], mask, in_segment, ALL_LANES);
}

static lane_mask votes(warp &w, const instr &i, lane_mask mask)
{
    demand(w, i, mask, i.ops[1], "the predicate of a vote");
    return (i.aux & 1 ? ~w.predicate(i.ops[1]) : w.predicate(i.ops[1])) & mask;
}

static void put(warp &w, operand to, lane_mask mask, uint32_t value)
{
    for (lane_mask rest = mask; rest; rest &= rest - 1)
        w.lanes<uint32_t>(to)[__builtin_ctz(rest)] = value;
    w.define(to, mask, ALL_LANES);
}

void vote_ballot(warp &w, const instr &i, lane_mask mask)
{
    put(w, i.ops[0], mask, votes(w, i, mask));
}

void vote_any(warp &w, const instr &i, lane_mask mask)
{
    w.set_predicate(i.ops[0], mask, votes(w, i, mask) ? ALL_LANES : 0, ALL_LANES);
}

void vote_all(warp &w, const instr &i, lane_mask mask)
{
    w.set_predicate(i.ops[0], mask, votes(w, i, mask) == mask ? ALL_LANES : 0, ALL_LANES);
}

void active_mask(warp &w, const instr &i, lane_mask mask)
{
    put(w, i.ops[0], mask, mask);
}

/* Memory is ordered among the lanes; for a part of them nothing is noted. */
void sync_warp(warp &w, const instr &, lane_mask mask)
{
    if (mask == w.alive)
        w.seen[w.index] = w.clock++;
}

template <typename T, auto F> static void reduce(warp &w, const instr &i, lane_mask mask)
{
    demand(w, i, mask, i.ops[1], "an operand of redux");
    const T *from = w.lanes<T>(i.ops[1]);
    T all = from[__builtin_ctz(mask)];
    for (lane_mask rest = mask & (mask - 1); rest; rest &= rest - 1)
        all = F(all, from[__builtin_ctz(rest)]);
    put(w, i.ops[0], mask, (uint32_t)all);
}

template <typename T> static instr_run *reduction_of(std::string_view operation)
{
    if (operation == "add")
        return reduce<T, [](T a, T b) { return (T)((uint32_t)a + (uint32_t)b); }>;
    if (operation == "min")
        return reduce<T, [](T a, T b) { return std::min(a, b); }>;
    if (operation == "max")
        return reduce<T, [](T a, T b) { return std::max(a, b); }>;
    if (operation == "and")
        return reduce<T, [](T a, T b) { return (T)(a & b); }>;
    if (operation == "or")
        return reduce<T, [](T a, T b) { return (T)(a | b); }>;
    if (operation == "xor")
        return reduce<T, [](T a, T b) { return (T)(a ^ b); }>;
    return nullptr;
}

instr_run *redux_form(std::string_view operation, std::string_view type)
{
    return type == "s32"                    ? reduction_of<int32_t>(operation)
           : type == "u32" || type == "b32" ? reduction_of<uint32_t>(operation)
                                            : nullptr;
}

/* --- matrices --------------------------------------------------------------------------------- */

void load_matrix(warp &w, const instr &i, lane_mask mask)
{
    const operand base = i.ops[i.count];
    const unsigned rows = 8u * i.count;
    lane_mask readers = rows == 32 ? ALL_LANES : (1u << rows) - 1;
    demand(w, i, readers, base, "a row's address of ldmatrix");
    uint16_t row[32][8];
    bool valid[32];
    for (unsigned lane = 0; lane < rows; lane++) {
        uint64_t address = (i.aux & MEMORY_NARROW_BASE ? w.lanes<uint32_t>(base)[lane]
                                                       : w.lanes<uint64_t>(base)[lane]) +
                           (uint64_t)i.imm;
        memcpy(row[lane], w.own->shared.read(w, i, lane, address, 16, &valid[lane]), 16);
    }
    bool transposed = i.aux & MATRIX_TRANSPOSED;
    for (unsigned matrix = 0; matrix < i.count; matrix++) {
        uint32_t *to = w.lanes<uint32_t>(i.ops[matrix]);
        lane_mask known = 0;
        for (unsigned lane = 0; lane < LANES; lane++) {
            unsigned g = lane / 4, t = lane % 4 * 2, first = 8 * matrix;
            uint32_t low = transposed ? row[first + t][g] : row[first + g][t];
            uint32_t high = transposed ? row[first + t + 1][g] : row[first + g][t + 1];
            bool there = transposed ? valid[first + t] && valid[first + t + 1] : valid[first + g];
            to[lane] = low | high << 16;
            known |= (lane_mask)there << lane;
        }
        w.define(i.ops[matrix], mask, known);
    }
}

void transpose_matrix(warp &w, const instr &i, lane_mask mask)
{
    const uint32_t *from = w.lanes<uint32_t>(i.ops[1]);
    const lane_mask given = w.known(i.ops[1]);
    uint32_t to[LANES];
    lane_mask known = 0;
    for (unsigned lane = 0; lane < LANES; lane++) {
        unsigned column = lane / 4, low = lane % 4 * 8 + column / 2, high = low + 4;
        unsigned shift = column % 2 * 16;
        to[lane] = (from[low] >> shift & 0xFFFF) | (from[high] >> shift & 0xFFFF) << 16;
        known |= (given >> low & given >> high & 1) << lane;
    }
    memcpy(w.lanes<uint32_t>(i.ops[0]), to, sizeof to);
    w.define(i.ops[0], mask, known);
}

/* What the result's elements depend on: all of a row of a, all of a column of b. Rows g and g + 8
 * lie in the lanes of a quad, columns of b likewise. */
static lane_mask whole_quads(lane_mask known)
{
    known &= known >> 1;
    known &= known >> 2;
    known &= 0x11111111u;
    return known * 15;
}

static lane_mask columns_known(lane_mask quads, unsigned odd)
{
    lane_mask known = 0;
    for (unsigned lane = 0; lane < LANES; lane++) {
        unsigned column = lane % 4 * 2 + odd;
        known |= (quads >> 4 * column & 1) << lane;
    }
    return known;
}

/* The element j of d in a lane is that of row lane / 4 + j / 2 * 8, column lane % 4 * 2 + j % 2. */
static void define_product(warp &w, const instr &i, lane_mask mask, unsigned a_count,
                           unsigned b_count)
{
    const operand *a = i.ops + 4, *b = a + a_count, *c = b + b_count;
    lane_mask rows[2] = {ALL_LANES, ALL_LANES}, columns = ALL_LANES, known[4];
    for (unsigned j = 0; j < a_count; j++)
        rows[j % 2] &= w.known(a[j]);
    for (unsigned j = 0; j < b_count; j++)
        columns &= w.known(b[j]);
    for (unsigned j = 0; j < 4; j++)
        known[j] =
            whole_quads(rows[j / 2]) & columns_known(whole_quads(columns), j % 2) & w.known(c[j]);
    for (unsigned j = 0; j < 4; j++)
        w.define(i.ops[j], mask, known[j]);
}

struct as_f16 {
    static float wide(uint16_t bits)
    {
        static const std::vector<float> table = [] {
            std::vector<float> all(65536);
            for (unsigned i = 0; i < 65536; i++)
                all[i] = __half2float(__ushort_as_half((uint16_t)i));
            return all;
        }();
        return table[bits];
    }
};

struct as_bf16 {
    static float wide(uint16_t bits)
    {
        uint32_t wide = (uint32_t)bits << 16;
        float x;
        memcpy(&x, &wide, 4);
        return x;
    }
};

/* K inputs in 16 bits, sums in f32: here in order, from c on. */
template <typename T, unsigned K>
static void multiply_halves(warp &w, const instr &i, lane_mask mask)
{
    constexpr unsigned a_count = K / 4, b_count = K / 8;
    const operand *own_a = i.ops + 4, *own_b = own_a + a_count, *own_c = own_b + b_count;
    float a[16][K], b[K][8], d[4][LANES];
    for (unsigned lane = 0; lane < LANES; lane++) {
        unsigned g = lane / 4, t = lane % 4 * 2;
        for (unsigned j = 0; j < a_count; j++) {
            uint32_t pair = w.lanes<uint32_t>(own_a[j])[lane];
            a[g + j % 2 * 8][t + j / 2 * 8] = T::wide((uint16_t)pair);
            a[g + j % 2 * 8][t + j / 2 * 8 + 1] = T::wide((uint16_t)(pair >> 16));
        }
        for (unsigned j = 0; j < b_count; j++) {
            uint32_t pair = w.lanes<uint32_t>(own_b[j])[lane];
            b[t + j * 8][g] = T::wide((uint16_t)pair);
            b[t + j * 8 + 1][g] = T::wide((uint16_t)(pair >> 16));
        }
    }
    for (unsigned row = 0; row < 16; row++) {
        float sum[8] = {};
        for (unsigned k = 0; k < K; k++) {
            for (unsigned column = 0; column < 8; column++)
                sum[column] += a[row][k] * b[k][column];
        }
        for (unsigned column = 0; column < 8; column++) {
            unsigned lane = row % 8 * 4 + column / 2, j = row / 8 * 2 + column % 2;
            d[j][lane] = w.lanes<float>(own_c[j])[lane] + sum[column];
        }
    }
    define_product(w, i, mask, a_count, b_count);
    for (unsigned j = 0; j < 4; j++)
        memcpy(w.lanes<float>(i.ops[j]), d[j], sizeof d[j]);
}

/* K inputs in 8 bits, sums in s32. */
template <typename A, typename B, unsigned K>
static void multiply_bytes(warp &w, const instr &i, lane_mask mask)
{
    constexpr unsigned a_count = K / 8, b_count = K / 16;
    const operand *own_a = i.ops + 4, *own_b = own_a + a_count, *own_c = own_b + b_count;
    int32_t a[16][K], b[K][8];
    uint32_t d[4][LANES];
    for (unsigned lane = 0; lane < LANES; lane++) {
        unsigned g = lane / 4, t = lane % 4 * 4;
        for (unsigned byte = 0; byte < 4; byte++) {
            for (unsigned j = 0; j < a_count; j++)
                a[g + j % 2 * 8][t + j / 2 * 16 + byte] =
                    (A)(w.lanes<uint32_t>(own_a[j])[lane] >> 8 * byte);
            for (unsigned j = 0; j < b_count; j++)
                b[t + j * 16 + byte][g] = (B)(w.lanes<uint32_t>(own_b[j])[lane] >> 8 * byte);
        }
    }
    for (unsigned row = 0; row < 16; row++) {
        int32_t sum[8] = {};
        for (unsigned k = 0; k < K; k++) {
            for (unsigned column = 0; column < 8; column++)
                sum[column] += a[row][k] * b[k][column];
        }
        for (unsigned column = 0; column < 8; column++) {
            unsigned lane = row % 8 * 4 + column / 2, j = row / 8 * 2 + column % 2;
            d[j][lane] = w.lanes<uint32_t>(own_c[j])[lane] + (uint32_t)sum[column];
        }
    }
    define_product(w, i, mask, a_count, b_count);
    for (unsigned j = 0; j < 4; j++)
        memcpy(w.lanes<uint32_t>(i.ops[j]), d[j], sizeof d[j]);
}

matrix_form product_form(std::string_view opcode)
{
    const std::string_view prefix = "mma.sync.aligned.";
    if (!opcode.starts_with(prefix))
        return {nullptr, 0, 0, 0, 0};
    static const std::map<std::string_view, matrix_form> all = {
        {"m16n8k16.row.col.f32.f16.f16.f32", {multiply_halves<as_f16, 16>, 4, 4, 2, 4}},
        {"m16n8k16.row.col.f32.bf16.bf16.f32", {multiply_halves<as_bf16, 16>, 4, 4, 2, 4}},
        {"m16n8k8.row.col.f32.f16.f16.f32", {multiply_halves<as_f16, 8>, 4, 2, 1, 4}},
        {"m16n8k8.row.col.f32.bf16.bf16.f32", {multiply_halves<as_bf16, 8>, 4, 2, 1, 4}},
        {"m16n8k32.row.col.s32.s8.s8.s32", {multiply_bytes<int8_t, int8_t, 32>, 4, 4, 2, 4}},
        {"m16n8k32.row.col.s32.u8.s8.s32", {multiply_bytes<uint8_t, int8_t, 32>, 4, 4, 2, 4}},
        {"m16n8k32.row.col.s32.s8.u8.s32", {multiply_bytes<int8_t, uint8_t, 32>, 4, 4, 2, 4}},
        {"m16n8k32.row.col.s32.u8.u8.s32", {multiply_bytes<uint8_t, uint8_t, 32>, 4, 4, 2, 4}},
        {"m16n8k16.row.col.s32.s8.s8.s32", {multiply_bytes<int8_t, int8_t, 16>, 4, 2, 1, 4}},
        {"m16n8k16.row.col.s32.u8.s8.s32", {multiply_bytes<uint8_t, int8_t, 16>, 4, 2, 1, 4}},
        {"m16n8k16.row.col.s32.s8.u8.s32", {multiply_bytes<int8_t, uint8_t, 16>, 4, 2, 1, 4}},
        {"m16n8k16.row.col.s32.u8.u8.s32", {multiply_bytes<uint8_t, uint8_t, 16>, 4, 2, 1, 4}},
    };
    auto found = all.find(opcode.substr(prefix.size()));
    return found == all.end() ? matrix_form{nullptr, 0, 0, 0, 0} : found->second;
}

} // namespace ptx
