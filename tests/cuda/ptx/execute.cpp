/* Blocks, warps, and the lanes of a warp that part and meet again. */
#include "machine.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

namespace ptx
{

struct totals totals;

static block current;
static std::vector<unsigned char> register_memory;
static std::vector<uint32_t> defined_memory; /* a warp's registers, and then their lower halves */

void defect(const warp &w, const instr &i, unsigned lane, const char *format, ...)
{
    char what[400];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    const kernel &code = *w.own->code;
    auto source = code.file->sources.find(i.file);
    unsigned thread = w.index * LANES + lane;
    dim3 block = simt::block_size;
    simt::thread_index = {thread % block.x, thread / block.x % block.y, thread / block.x / block.y};
    simt::defect("%s: %s (%s:%u, %s:%u, %s)", code.name.c_str(), what,
                 source == code.file->sources.end() ? "?" : source->second.c_str(), i.source_line,
                 code.file->path.c_str(), i.line, code.forms[i.form].c_str());
}

/* --- lanes that part -------------------------------------------------------------------------- */

/* The lanes of the warp go to `pc`: where others wait there, with them. */
static void park(warp &w, bool parked)
{
    if (!w.active)
        return;
    for (group &other : w.others) {
        if (other.pc == w.pc) {
            other.lanes |= w.active;
            other.parked = false;
            w.active = 0;
            return;
        }
    }
    w.others.push_back({w.pc, w.active, parked});
    w.active = 0;
}

/* The lowest group that does not wait goes on; false: there is none. */
static bool take_lowest(warp &w)
{
    size_t best = w.others.size();
    for (size_t i = 0; i < w.others.size(); i++) {
        if (!w.others[i].parked && (best == w.others.size() || w.others[i].pc < w.others[best].pc))
            best = i;
    }
    if (best == w.others.size())
        return false;
    w.pc = w.others[best].pc;
    w.active = w.others[best].lanes;
    w.others.erase(w.others.begin() + (long)best);
    return true;
}

/* The instruction at which the running group has to look at the others. */
static uint32_t next_stop(const warp &w)
{
    uint32_t stop = UINT32_MAX;
    for (const group &other : w.others) {
        if (!other.parked || other.pc >= w.pc)
            stop = std::min(stop, other.pc);
    }
    return stop;
}

static void branch(warp &w, const instr &i, lane_mask taken)
{
    if (taken == w.active) {
        w.pc = i.target;
        return;
    }
    w.pc++;
    if (!taken)
        return;
    if (i.branch_uniform)
        defect(w, i, (unsigned)__builtin_ctz(taken), "lanes part at a uniform branch");
    lane_mask rest = w.active & ~taken;
    uint32_t next = w.pc;
    w.active = taken;
    w.pc = i.target;
    park(w, false);
    w.active = rest;
    w.pc = next;
    park(w, false);
    (void)take_lowest(w);
}

static void leave(warp &w, lane_mask lanes)
{
    w.alive &= ~lanes;
    w.active &= ~lanes;
    w.own->alive -= (unsigned)__builtin_popcount(lanes);
    w.pc++;
}

/* The lanes that must be at a collective instruction before it happens. */
static lane_mask wanted(warp &w, const instr &i, lane_mask mask)
{
    if (i.kind == flow::BARRIER)
        return w.alive;
    if (i.members < 0)
        return ALL_LANES;
    operand members = i.ops[i.members];
    demand(w, i, mask, members, "the member mask");
    unsigned first = (unsigned)__builtin_ctz(mask);
    lane_mask wanted = w.lanes<uint32_t>(members)[first];
    for (lane_mask rest = mask; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        if (w.lanes<uint32_t>(members)[lane] != wanted)
            defect(w, i, lane, "lanes with other member masks than 0x%x", wanted);
        if (!(wanted >> lane & 1))
            defect(w, i, lane, "a lane that is not in its member mask 0x%x", wanted);
    }
    return wanted;
}

/* --- a warp ----------------------------------------------------------------------------------- */

static lane_mask guarded(warp &w, const instr &i)
{
    if (i.guard < 0)
        return w.active;
    operand guard = i.ops[i.guard];
    demand(w, i, w.active, guard, "what decides");
    return w.active & (i.guard_not ? ~w.predicate(guard) : w.predicate(guard));
}

/* Nobody goes on, and lanes are left. */
[[noreturn]] static void stuck(warp &w)
{
    const group &first = w.others[0];
    defect(w, w.own->code->code[first.pc], (unsigned)__builtin_ctz(first.lanes),
           "lanes 0x%x wait for others that never come (alive: 0x%x)", first.lanes, w.alive);
}

static void arrive(warp &w, const instr &i)
{
    w.at_barrier = true;
    w.barrier = w.lanes<uint32_t>(i.ops[0])[__builtin_ctz(w.active)];
    w.barrier_threads = i.count > 1 ? w.lanes<uint32_t>(i.ops[1])[__builtin_ctz(w.active)] : 0;
    w.pc++;
}

/* Until the warp ends, is at the block's barrier, or has done `budget` instructions. */
static void run_warp(warp &w, uint32_t budget)
{
    const instr *code = w.own->code->code.data();
    uint32_t stop = next_stop(w);
    uint64_t instructions = 0, lanes = 0;
    while (w.alive && !w.at_barrier && budget-- > 0) {
        if (!w.active || w.pc >= stop) {
            park(w, false);
            if (!take_lowest(w))
                stuck(w);
            stop = next_stop(w);
            if (stop == w.pc)
                continue;
        }
        const instr &i = code[w.pc];
        lane_mask mask = guarded(w, i);
        instructions++;
        lanes += (unsigned)__builtin_popcount(mask);
        switch (i.kind) {
        case flow::NEXT:
            if (mask)
                i.run(w, i, mask);
            w.pc++;
            continue;
        case flow::BRANCH:
            branch(w, i, mask);
            break;
        case flow::EXIT:
            leave(w, mask);
            for (group &other : w.others)
                other.parked = false;
            break;
        case flow::COLLECTIVE:
        case flow::BARRIER:
            if (!mask) {
                w.pc++;
                continue;
            }
            if (wanted(w, i, mask) & ~mask) {
                park(w, true);
                break;
            }
            if (i.kind == flow::BARRIER) {
                arrive(w, i);
            } else {
                i.run(w, i, mask);
                w.pc++;
            }
            continue;
        }
        if (!w.others.empty() || !w.active)
            stop = next_stop(w);
    }
    totals.warp_instructions += instructions;
    totals.lane_instructions += lanes;
}

/* --- barriers of the block -------------------------------------------------------------------- */

/* All that the warps at the barrier did comes before all that they do from now on. */
static void release(uint32_t warps)
{
    uint32_t joint[WARPS_MAX] = {};
    for (unsigned k = 0; k < current.warp_count; k++) {
        warp &w = current.warps[k];
        if (!(warps >> k & 1))
            continue;
        for (unsigned other = 0; other < WARPS_MAX; other++)
            joint[other] = std::max(joint[other], w.seen[other]);
        joint[k] = std::max(joint[k], w.clock);
    }
    for (unsigned k = 0; k < current.warp_count; k++) {
        warp &w = current.warps[k];
        if (!(warps >> k & 1))
            continue;
        memcpy(w.seen, joint, sizeof joint);
        w.clock++;
        w.at_barrier = false;
    }
}

/* A barrier whose threads are all there; false: none. */
static bool release_some()
{
    for (unsigned k = 0; k < current.warp_count; k++) {
        const warp &first = current.warps[k];
        if (!first.at_barrier)
            continue;
        uint32_t warps = 0, arrived = 0;
        for (unsigned other = k; other < current.warp_count; other++) {
            const warp &w = current.warps[other];
            if (w.at_barrier && w.barrier == first.barrier) {
                warps |= 1u << other;
                arrived += first.barrier_threads ? LANES : (unsigned)__builtin_popcount(w.alive);
            }
        }
        bool all = first.barrier_threads == 0;
        if (arrived == (all ? current.alive : first.barrier_threads)) {
            release(warps);
            current.shared.epoch += all;
            return true;
        }
    }
    return false;
}

/* --- a block ---------------------------------------------------------------------------------- */

static void set_lanes(warp &w, special which, const uint32_t *values)
{
    memcpy(w.registers + w.own->code->special_at + which * 4 * LANES, values, 4 * LANES);
}

static void set_all_lanes(warp &w, special which, uint32_t value)
{
    uint32_t values[LANES];
    std::fill_n(values, LANES, value);
    set_lanes(w, which, values);
}

static void set_specials(warp &w)
{
    const dim3 block = simt::block_size, grid = simt::grid_size;
    const uint3 index = simt::block_index;
    uint32_t x[LANES], y[LANES], z[LANES], lanes[LANES], masks[LANES];
    for (unsigned lane = 0; lane < LANES; lane++) {
        unsigned thread = w.index * LANES + lane;
        x[lane] = thread % block.x;
        y[lane] = thread / block.x % block.y;
        z[lane] = thread / block.x / block.y;
        lanes[lane] = lane;
        masks[lane] = 1u << lane;
    }
    set_lanes(w, TID_X, x), set_lanes(w, TID_Y, y), set_lanes(w, TID_Z, z);
    set_lanes(w, LANEID, lanes);
    set_lanes(w, LANEMASK_EQ, masks);
    for (unsigned lane = 0; lane < LANES; lane++)
        masks[lane] = (1u << lane) - 1;
    set_lanes(w, LANEMASK_LT, masks);
    for (unsigned lane = 0; lane < LANES; lane++)
        masks[lane] |= 1u << lane;
    set_lanes(w, LANEMASK_LE, masks);
    for (unsigned lane = 0; lane < LANES; lane++)
        masks[lane] = ~masks[lane];
    set_lanes(w, LANEMASK_GT, masks);
    for (unsigned lane = 0; lane < LANES; lane++)
        masks[lane] |= 1u << lane;
    set_lanes(w, LANEMASK_GE, masks);
    const uint32_t uniform[] = {block.x, block.y, block.z, index.x, index.y,
                                index.z, grid.x,  grid.y,  grid.z};
    for (unsigned i = 0; i < 9; i++)
        set_all_lanes(w, (special)(NTID_X + i), uniform[i]);
    set_all_lanes(w, WARPID, w.index);
}

static void begin_warp(warp &w, unsigned index)
{
    const kernel &code = *current.code;
    unsigned lanes = std::min(LANES, current.thread_count - index * LANES);
    w.own = &current;
    w.index = index;
    w.registers = register_memory.data() + index * (size_t)code.register_bytes;
    w.defined = defined_memory.data() + index * 2 * (size_t)code.register_count;
    w.low_defined = w.defined + code.register_count;
    memset(w.defined, 0, code.special_number * sizeof *w.defined);
    memset(w.low_defined, 0, code.special_number * sizeof *w.low_defined);
    w.alive = w.active = lanes == LANES ? ALL_LANES : (1u << lanes) - 1;
    w.pc = 0;
    w.others.clear();
    w.at_barrier = false;
    memset(w.seen, 0, sizeof w.seen);
    w.clock = 1;
    w.local.assign(LANES * code.local_bytes, 0xFF);
    w.local_valid.assign(LANES * code.local_bytes, 0);
    for (lane_copies &copies : w.copies) {
        copies.flying.clear();
        copies.group = 0;
    }
    set_specials(w);
}

static void run_block(size_t shared_bytes)
{
    simt::counts.blocks++;
    current.alive = current.thread_count;
    current.shared.begin(*current.code, shared_bytes);
    for (unsigned k = 0; k < current.warp_count; k++)
        begin_warp(current.warps[k], k);
    while (current.alive > 0) {
        unsigned ready[WARPS_MAX], count = 0;
        for (unsigned k = 0; k < current.warp_count; k++) {
            if (current.warps[k].alive && !current.warps[k].at_barrier)
                ready[count++] = k;
        }
        if (count == 0) {
            if (!release_some())
                simt::defect("%s: threads wait at a barrier for others that never come",
                             current.code->name.c_str());
            continue;
        }
        warp &w = current.warps[ready[simt::random_below(count)]];
        simt::counts.switches++;
        run_warp(w, simt::random_below(2) ? UINT32_MAX : 1 + simt::random_below(400));
    }
}

/* Registers are as large as the kernel has them; constants stay from block to block. */
static void prepare_registers(const kernel &kernel)
{
    const unsigned warps = current.warp_count;
    register_memory.resize(std::max(register_memory.size(), (size_t)warps * kernel.register_bytes));
    const size_t defined = 2 * (size_t)kernel.register_count;
    defined_memory.resize(std::max(defined_memory.size(), warps * defined));
    for (unsigned k = 0; k < warps; k++) {
        memcpy(register_memory.data() + k * (size_t)kernel.register_bytes + kernel.constants_at,
               kernel.constants.data(), kernel.constants.size());
        std::fill_n(defined_memory.begin() + (long)(k * defined), defined, ALL_LANES);
    }
}

/* What ran, for the log: kernels and forms; with PTX_KERNELS in the environment, each kernel's
 * launches, instructions of warps, threads and bytes of shared memory of a block at most. */
struct use {
    uint64_t launches, instructions;
    uint32_t threads;
    uint64_t shared_bytes;
};
static auto &kernels_run = *new std::map<std::string, use>; /* there when all else has ended */
static auto &forms_run = *new std::set<std::string>;

static void note(const kernel &kernel, size_t dynamic_bytes)
{
    use &own = kernels_run[kernel.name];
    if (own.launches++ == 0)
        forms_run.insert(kernel.forms.begin(), kernel.forms.end());
    own.threads = std::max(own.threads, current.thread_count);
    own.shared_bytes = std::max(own.shared_bytes, kernel.shared_bytes + dynamic_bytes);
}

__attribute__((destructor)) static void report()
{
    if (kernels_run.empty())
        return;
    for (const auto &[name, own] : kernels_run) {
        if (getenv("PTX_KERNELS"))
            fprintf(stderr,
                    "ptx: %s: %llu launches, %llu instructions of warps, %u threads, %llu bytes of "
                    "shared memory\n",
                    name.c_str(), (unsigned long long)own.launches,
                    (unsigned long long)own.instructions, own.threads,
                    (unsigned long long)own.shared_bytes);
    }
    fprintf(stderr,
            "ptx: %zu kernels, %zu forms in them, %llu instructions of warps, %llu of lanes\n",
            kernels_run.size(), forms_run.size(), (unsigned long long)totals.warp_instructions,
            (unsigned long long)totals.lane_instructions);
}

void execute(const kernel &kernel, const unsigned char *params, size_t shared_bytes)
{
    const dim3 size = simt::block_size;
    current.code = &kernel;
    current.params = params;
    current.thread_count = size.x * size.y * size.z;
    current.warp_count = (current.thread_count + LANES - 1) / LANES;
    if (current.thread_count > kernel.threads_max)
        simt::defect("%s: %u threads a block, where %u may be", kernel.name.c_str(),
                     current.thread_count, kernel.threads_max);
    note(kernel, shared_bytes);
    forget_global_memory();
    prepare_registers(kernel);
    const uint64_t before = totals.warp_instructions;
    simt::for_each_block([=] { run_block(shared_bytes); });
    kernels_run[kernel.name].instructions += totals.warp_instructions - before;
}

} // namespace ptx
