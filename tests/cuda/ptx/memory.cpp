/* Loads, stores, atomic operations and asynchronous copies. */
#include "forms.h"

#include <algorithm>
#include <type_traits>

namespace ptx
{

/* --- global memory ---------------------------------------------------------------------------- */

static struct {
    uint64_t begin, end;
} recent[2];

void forget_global_memory()
{
    recent[0] = recent[1] = {0, 0};
}

unsigned char *global_at(warp &w, const instr &i, unsigned lane, uint64_t address, size_t bytes)
{
    if (address % bytes != 0)
        defect(w, i, lane, "%zu bytes of global memory at 0x%llx: not aligned", bytes,
               (unsigned long long)address);
    if (address < recent[0].begin || address + bytes > recent[0].end) {
        std::swap(recent[0], recent[1]);
        if ((address < recent[0].begin || address + bytes > recent[0].end) &&
            !simt::find_memory(address, bytes, &recent[0].begin, &recent[0].end))
            defect(w, i, lane, "%zu bytes of global memory at 0x%llx, which are no one's", bytes,
                   (unsigned long long)address);
    }
    return reinterpret_cast<unsigned char *>(address);
}

/* --- local memory ----------------------------------------------------------------------------- */

static size_t local_at(warp &w, const instr &i, unsigned lane, uint64_t address, size_t bytes)
{
    uint64_t size = w.own->code->local_bytes;
    if (address < LOCAL_BASE || address - LOCAL_BASE + bytes > size)
        defect(w, i, lane, "%zu bytes at %llu of local memory, which has no such address", bytes,
               (unsigned long long)address);
    if (address % bytes != 0)
        defect(w, i, lane, "%zu bytes at %llu of local memory: not aligned", bytes,
               (unsigned long long)address);
    return lane * size + (address - LOCAL_BASE);
}

/* --- addresses -------------------------------------------------------------------------------- */

static space space_of(const instr &i)
{
    return (space)(i.aux >> MEMORY_SPACE_SHIFT & 15);
}

static uint64_t base_of(warp &w, operand base, bool narrow, unsigned lane)
{
    return narrow ? w.lanes<uint32_t>(base)[lane] : w.lanes<uint64_t>(base)[lane];
}

/* A generic address is that of one of the spaces. */
static space resolve(space from, uint64_t *address)
{
    if (from != space::GENERIC)
        return from;
    uint64_t window = *address & WINDOW_MASK;
    space to = window == SHARED_WINDOW  ? space::SHARED
               : window == LOCAL_WINDOW ? space::LOCAL
               : window == PARAM_WINDOW ? space::PARAM
                                        : space::GLOBAL;
    if (to != space::GLOBAL)
        *address &= ~WINDOW_MASK;
    return to;
}

/* Read into `data`; whether all of it was written before. */
static bool read_memory(warp &w, const instr &i, unsigned lane, space from, uint64_t address,
                        size_t bytes, void *data)
{
    bool valid = true;
    switch (resolve(from, &address)) {
    case space::SHARED:
        memcpy(data, w.own->shared.read(w, i, lane, address, bytes, &valid), bytes);
        return valid;
    case space::LOCAL: {
        size_t at = local_at(w, i, lane, address, bytes);
        memcpy(data, w.local.data() + at, bytes);
        for (size_t b = 0; b < bytes; b++)
            valid &= w.local_valid[at + b] != 0;
        return valid;
    }
    case space::PARAM:
        if (address + bytes > w.own->code->param_bytes || address % bytes != 0)
            defect(w, i, lane, "%zu bytes at %llu of the parameters", bytes,
                   (unsigned long long)address);
        memcpy(data, w.own->params + address, bytes);
        return true;
    default:
        memcpy(data, global_at(w, i, lane, address, bytes), bytes);
        return true;
    }
}

/* `known`: whether the registers stored have values. */
static void write_memory(warp &w, const instr &i, unsigned lane, space to, uint64_t address,
                         size_t bytes, const void *data, bool known)
{
    switch (resolve(to, &address)) {
    case space::SHARED:
        memcpy(w.own->shared.write(w, i, lane, address, bytes, known), data, bytes);
        return;
    case space::LOCAL: {
        size_t at = local_at(w, i, lane, address, bytes);
        memcpy(w.local.data() + at, data, bytes);
        memset(w.local_valid.data() + at, known, bytes);
        return;
    }
    case space::PARAM:
        defect(w, i, lane, "a parameter is written");
    default:
        if (!known)
            defect(w, i, lane, "stores to global memory what was never written");
        memcpy(global_at(w, i, lane, address, bytes), data, bytes);
    }
}

/* --- loads and stores ------------------------------------------------------------------------- */

/* An element into a register that may be wider. */
template <size_t N> static void widen(unsigned char *to, const unsigned char *from, const instr &i)
{
    size_t width = i.aux & MEMORY_REGISTER;
    memcpy(to, from, N);
    if (width > N)
        memset(to + N, (i.aux & MEMORY_SIGNED) && from[N - 1] & 0x80 ? 0xFF : 0, width - N);
}

template <size_t N> static void load(warp &w, const instr &i, lane_mask mask)
{
    const operand base = i.ops[i.count];
    const space from = space_of(i);
    const size_t width = i.aux & MEMORY_REGISTER;
    demand(w, i, mask, base, "the address of a load");
    lane_mask known = 0;
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        unsigned char data[4 * N];
        uint64_t address = base_of(w, base, i.aux & MEMORY_NARROW_BASE, lane) + (uint64_t)i.imm;
        known |= (lane_mask)read_memory(w, i, lane, from, address, N * i.count, data) << lane;
        for (unsigned part = 0; part < i.count; part++) {
            if (i.ops[part].number != NO_REGISTER)
                widen<N>(w.registers + i.ops[part].at + lane * width, data + part * N, i);
        }
    }
    for (unsigned part = 0; part < i.count; part++) {
        if (i.ops[part].number != NO_REGISTER)
            w.define(i.ops[part], mask, known);
    }
}

template <size_t N> static void store(warp &w, const instr &i, lane_mask mask)
{
    const operand base = i.ops[i.count];
    const space to = space_of(i);
    const size_t width = i.aux & MEMORY_REGISTER;
    demand(w, i, mask, base, "the address of a store");
    lane_mask known = ALL_LANES;
    for (unsigned part = 0; part < i.count; part++)
        known &= w.known(i.ops[part]);
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        unsigned char data[4 * N];
        uint64_t address = base_of(w, base, i.aux & MEMORY_NARROW_BASE, lane) + (uint64_t)i.imm;
        for (unsigned part = 0; part < i.count; part++)
            memcpy(data + part * N, w.registers + i.ops[part].at + lane * width, N);
        write_memory(w, i, lane, to, address, N * i.count, data, known >> lane & 1);
    }
}

instr_run *load_form(size_t element)
{
    return element == 1 ? load<1> : element == 2 ? load<2> : element == 4 ? load<4> : load<8>;
}

instr_run *store_form(size_t element)
{
    return element == 1 ? store<1> : element == 2 ? store<2> : element == 4 ? store<4> : store<8>;
}

/* --- atomic operations ------------------------------------------------------------------------ */

template <typename T, auto F> static void atomic(warp &w, const instr &i, lane_mask mask)
{
    demand(w, i, mask, i.ops[1], "the address of an atomic operation");
    demand(w, i, mask, i.ops[2], "an operand of an atomic operation");
    const T *a = w.lanes<T>(i.ops[2]);
    const T *b = i.count > 1 ? w.lanes<T>(i.ops[3]) : a;
    lane_mask known = 0;
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        uint64_t address = base_of(w, i.ops[1], i.aux & MEMORY_NARROW_BASE, lane) + (uint64_t)i.imm;
        bool valid = true;
        unsigned char *at;
        space where = resolve(space_of(i), &address);
        if (where == space::SHARED) {
            valid = w.own->shared.swaps(w, i, lane, address, sizeof(T), &at);
        } else if (where == space::GLOBAL) {
            at = global_at(w, i, lane, address, sizeof(T));
        } else {
            defect(w, i, lane, "an atomic operation on local memory");
        }
        T old, result;
        memcpy(&old, at, sizeof old);
        result = F(old, a[lane], b[lane]);
        memcpy(at, &result, sizeof result);
        if (i.ops[0].number != NO_REGISTER)
            w.lanes<T>(i.ops[0])[lane] = old;
        known |= (lane_mask)valid << lane;
    }
    if (i.ops[0].number != NO_REGISTER)
        w.define(i.ops[0], mask, known);
}

template <typename T> static instr_run *arithmetic_of(std::string_view operation)
{
    if (operation == "add")
        return atomic<T, [](T old, T a, T) { return (T)(old + a); }>;
    if (operation == "min")
        return atomic<T, [](T old, T a, T) { return std::min(old, a); }>;
    if (operation == "max")
        return atomic<T, [](T old, T a, T) { return std::max(old, a); }>;
    if constexpr (std::is_unsigned_v<T>) {
        if (operation == "inc")
            return atomic<T, [](T old, T a, T) { return old >= a ? (T)0 : (T)(old + 1); }>;
        if (operation == "dec")
            return atomic<T,
                          [](T old, T a, T) { return old == 0 || (old > a) ? a : (T)(old - 1); }>;
    }
    return nullptr;
}

template <typename T> static instr_run *bits_of(std::string_view operation)
{
    if (operation == "and")
        return atomic<T, [](T old, T a, T) { return (T)(old & a); }>;
    if (operation == "or")
        return atomic<T, [](T old, T a, T) { return (T)(old | a); }>;
    if (operation == "xor")
        return atomic<T, [](T old, T a, T) { return (T)(old ^ a); }>;
    if (operation == "exch")
        return atomic<T, [](T, T a, T) { return a; }>;
    if (operation == "cas")
        return atomic<T, [](T old, T a, T b) { return old == a ? b : old; }>;
    return nullptr;
}

instr_run *atomic_form(std::string_view operation, std::string_view type)
{
    return type == "u32"   ? arithmetic_of<uint32_t>(operation)
           : type == "s32" ? arithmetic_of<int32_t>(operation)
           : type == "u64" ? arithmetic_of<uint64_t>(operation)
           : type == "s64" ? arithmetic_of<int64_t>(operation)
           : type == "f32" ? arithmetic_of<float>(operation)
           : type == "f64" ? arithmetic_of<double>(operation)
           : type == "b32" ? bits_of<uint32_t>(operation)
           : type == "b64" ? bits_of<uint64_t>(operation)
                           : nullptr;
}

/* --- asynchronous copies ---------------------------------------------------------------------- */

static void copy_lane(warp &w, const instr &i, unsigned lane)
{
    async_copy copy = {};
    copy.to = base_of(w, i.ops[0], i.aux & MEMORY_NARROW_BASE, lane) + (uint64_t)(int32_t)i.imm;
    copy.from = w.lanes<uint64_t>(i.ops[1])[lane] + (uint64_t)(i.imm >> 32);
    copy.bytes = i.count;
    copy.source_bytes = i.count;
    if (i.ops[2].number != NO_REGISTER)
        copy.source_bytes = w.lanes<uint32_t>(i.ops[2])[lane];
    if (copy.source_bytes > copy.bytes)
        defect(w, i, lane, "cp.async of %u of %u bytes", copy.source_bytes, copy.bytes);
    if (copy.source_bytes)
        (void)global_at(w, i, lane, copy.from, copy.bytes);
    copy.group = w.copies[lane].group;
    w.own->shared.fly(w, i, lane, copy);
    copy.landed = simt::random_below(2);
    if (copy.landed)
        w.own->shared.store(copy);
    w.copies[lane].flying.push_back(copy);
}

void copy_async(warp &w, const instr &i, lane_mask mask)
{
    demand(w, i, mask, i.ops[0], "the destination of cp.async");
    demand(w, i, mask, i.ops[1], "the source of cp.async");
    if (i.ops[2].number != NO_REGISTER)
        demand(w, i, mask, i.ops[2], "the size of cp.async");
    for (lane_mask rest = mask; rest; rest &= rest - 1)
        copy_lane(w, i, (unsigned)__builtin_ctz(rest));
}

void copy_commit(warp &w, const instr &, lane_mask mask)
{
    for (lane_mask rest = mask; rest; rest &= rest - 1)
        w.copies[__builtin_ctz(rest)].group++;
}

/* Those of groups below `end` land. */
static void land_before(warp &w, const instr &i, unsigned lane, uint32_t end)
{
    std::vector<async_copy> &flying = w.copies[lane].flying;
    size_t count = 0;
    for (; count < flying.size() && flying[count].group < end; count++) {
        if (!flying[count].landed)
            w.own->shared.store(flying[count]);
        w.own->shared.land(w, i, lane, flying[count]);
    }
    flying.erase(flying.begin(), flying.begin() + (long)count);
}

/* imm: the groups that may still be under way. */
void copy_wait(warp &w, const instr &i, lane_mask mask)
{
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        uint32_t group = w.copies[lane].group;
        land_before(w, i, lane, group > (uint64_t)i.imm ? group - (uint32_t)i.imm : 0);
    }
}

void copy_wait_all(warp &w, const instr &i, lane_mask mask)
{
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        land_before(w, i, lane, w.copies[lane].group + 1);
    }
}

} // namespace ptx
