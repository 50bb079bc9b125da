/* machine.h - the state of a block that executes: warps, their registers, shared and local memory.
 */
#ifndef KVA_TESTS_CUDA_PTX_MACHINE_H
#define KVA_TESTS_CUDA_PTX_MACHINE_H

#include "ptx.h"
#include "tests/cuda/simt/simt.h"

#include <cstring>

namespace ptx
{

enum { WARPS_MAX = 32 };

/* An asynchronous copy of a lane under way. `landed`: its bytes are there already, as they may be;
 * nobody may look before the lane has waited. */
struct async_copy {
    uint64_t to, from;
    uint32_t bytes, source_bytes; /* the rest is zeros */
    uint32_t group;
    bool landed;
};

struct lane_copies {
    std::vector<async_copy> flying; /* oldest first */
    uint32_t group;                 /* that is open */
};

/* Lanes that are at an instruction other than the warp's. */
struct group {
    uint32_t pc;
    lane_mask lanes;
    bool parked; /* at a collective instruction that waits for others */
};

struct block;

struct warp {
    block *own;
    unsigned index;
    unsigned char *registers;
    uint32_t *defined;     /* a mask of lanes for each register */
    uint32_t *low_defined; /* the same of the lower halves of those of 64 bits */
    lane_mask alive, active;
    uint32_t pc;
    std::vector<group> others;
    bool at_barrier;
    uint32_t barrier, barrier_threads; /* that it waits at, and for how many; 0: all */
    /* What happened before now: events of each warp with clocks up to these. */
    uint32_t seen[WARPS_MAX], clock;
    std::vector<unsigned char> local, local_valid; /* [LANES][local_bytes] */
    lane_copies copies[LANES];

    template <typename T> T *lanes(operand o)
    {
        return reinterpret_cast<T *>(registers + o.at);
    }
    lane_mask &predicate(operand o)
    {
        return *reinterpret_cast<lane_mask *>(registers + o.at);
    }
    lane_mask known(operand o) const
    {
        return defined[o.number];
    }
    void define(operand o, lane_mask mask, lane_mask known)
    {
        defined[o.number] = (defined[o.number] & ~mask) | (known & mask);
        low_defined[o.number] = (low_defined[o.number] & ~mask) | (known & mask);
    }
    void set_predicate(operand o, lane_mask mask, lane_mask values, lane_mask known)
    {
        predicate(o) = (predicate(o) & ~mask) | (values & mask);
        define(o, mask, known);
    }
};

/* What is known of the bytes of a granule of shared memory. */
struct shadow {
    enum : uint8_t {
        VALID = 1,
        FLYING = 2,
        ATOMIC = 4,
        OUTSIDE = 8,
        HAS_WRITER = 16,
        HAS_READER = 32
    };
    enum : uint16_t { SEVERAL_LANES = 0x8000, SEVERAL_WARPS = 0xFFFF };
    uint32_t write_clock, read_clock;
    uint16_t writer, reader; /* a thread; readers: or the threads of its warp, or of several */
    uint8_t flags;
};

/* The shared memory of a block. */
class shared_memory
{
  public:
    void begin(const kernel &kernel, uint64_t dynamic_bytes);

    /* Where these bytes are, for a lane that reads or writes them; ends the program if it may not.
     * `valid`: whether all were written. */
    const unsigned char *read(warp &w, const instr &i, unsigned lane, uint64_t address,
                              size_t bytes, bool *valid);
    unsigned char *write(warp &w, const instr &i, unsigned lane, uint64_t address, size_t bytes,
                         bool valid);
    bool swaps(warp &w, const instr &i, unsigned lane, uint64_t address, size_t bytes,
               unsigned char **ret_at);

    /* A copy begins, ends. */
    void fly(warp &w, const instr &i, unsigned lane, const async_copy &copy);
    void land(warp &w, const instr &i, unsigned lane, const async_copy &copy);

    /* Put a copy's bytes into memory, whatever the threads know of it. */
    void store(const async_copy &copy);

    uint32_t epoch; /* barriers of all threads so far */

  private:
    unsigned char *at(warp &w, const instr &i, unsigned lane, uint64_t address, size_t bytes,
                      const char *what);
    void note_read(warp &w, const instr &i, unsigned lane, shadow &granule, uint64_t address);
    void note_write(warp &w, const instr &i, unsigned lane, shadow &granule, uint64_t address,
                    bool atomic);

    std::vector<unsigned char> bytes_;
    std::vector<shadow> shadows;
    uint32_t granule_shift;
};

struct block {
    const kernel *code;
    const unsigned char *params;
    unsigned thread_count, warp_count, alive; /* threads */
    warp warps[WARPS_MAX];
    shared_memory shared;
};

/* --- memory.cpp ------------------------------------------------------------------------------- */

/* A piece of device or pinned memory was looked up before this: it may be gone. */
void forget_global_memory();

/* The lane's own address within local memory, and whether it is all there. */
unsigned char *global_at(warp &w, const instr &i, unsigned lane, uint64_t address, size_t bytes);

/* --- for the forms ---------------------------------------------------------------------------- */

/* The lanes of `mask` have a value in the register, or the program ends. */
inline void demand(warp &w, const instr &i, lane_mask mask, operand o, const char *what)
{
    lane_mask missing = mask & ~w.known(o);
    if (missing)
        defect(w, i, (unsigned)__builtin_ctz(missing), "%s is a register that was never written",
               what);
}

/* --- what ran --------------------------------------------------------------------------------- */

struct totals {
    uint64_t warp_instructions, lane_instructions;
};
extern struct totals totals;

} // namespace ptx

#endif
