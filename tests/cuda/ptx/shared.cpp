/* Shared memory: bounds, what was written, and who used it since which barrier. */
#include "machine.h"

#include <algorithm>

namespace ptx
{

void shared_memory::begin(const kernel &kernel, uint64_t dynamic_bytes)
{
    uint64_t end = kernel.dynamic_address + dynamic_bytes;
    granule_shift = (uint32_t)__builtin_ctz(kernel.granule);
    epoch = 1;
    bytes_.assign(end + SHARED_GAP - SHARED_BASE, 0xFF);
    shadow outside = {0, 0, 0, 0, shadow::OUTSIDE}, unwritten = {0, 0, 0, 0, 0};
    shadows.assign((bytes_.size() >> granule_shift) + 1, outside);
    auto inside = [&](uint64_t address, uint64_t bytes) {
        uint64_t first = (address - SHARED_BASE) >> granule_shift;
        std::fill_n(shadows.begin() + (long)first, (bytes + kernel.granule - 1) >> granule_shift,
                    unwritten);
    };
    for (const variable &variable : kernel.shared)
        inside(variable.address, variable.bytes);
    inside(kernel.dynamic_address, dynamic_bytes);
}

unsigned char *shared_memory::at(warp &w, const instr &i, unsigned lane, uint64_t address,
                                 size_t bytes, const char *what)
{
    if (address < SHARED_BASE || address - SHARED_BASE + bytes > bytes_.size())
        defect(w, i, lane, "%s %zu bytes at %llu of shared memory, which has no such address", what,
               bytes, (unsigned long long)address);
    if (address % bytes != 0)
        defect(w, i, lane, "%s %zu bytes at %llu of shared memory: not aligned", what, bytes,
               (unsigned long long)address);
    return bytes_.data() + (address - SHARED_BASE);
}

/* Whether an access by `thread` at that thread's warp's `clock` comes before what `w` does now. */
static bool before(const warp &w, unsigned thread, uint32_t clock)
{
    return clock <= w.seen[thread / LANES];
}

void shared_memory::note_read(warp &w, const instr &i, unsigned lane, shadow &own, uint64_t address)
{
    uint16_t thread = (uint16_t)(w.index * LANES + lane);
    if (own.flags & (shadow::OUTSIDE | shadow::FLYING))
        defect(w, i, lane, "reads shared memory at %llu, %s", (unsigned long long)address,
               own.flags & shadow::OUTSIDE ? "between or behind the variables"
                                           : "which cp.async may still be bringing");
    if ((own.flags & shadow::HAS_WRITER) && own.writer != thread &&
        !before(w, own.writer, own.write_clock))
        defect(w, i, lane,
               "a race: reads shared memory at %llu, which thread %u writes, with no barrier "
               "between",
               (unsigned long long)address, own.writer);
    uint16_t reader = own.reader;
    bool past = !(own.flags & shadow::HAS_READER) ||
                (reader == shadow::SEVERAL_WARPS ? own.read_clock < epoch
                                                 : before(w, reader & 0x7FFF, own.read_clock));
    own.flags |= shadow::HAS_READER;
    if (past || reader == thread) {
        own.reader = thread;
        own.read_clock = w.clock;
    } else if (reader == shadow::SEVERAL_WARPS || (reader & 0x7FFF) / LANES != w.index) {
        own.reader = shadow::SEVERAL_WARPS;
        own.read_clock = epoch;
    } else {
        own.reader = (uint16_t)(thread | shadow::SEVERAL_LANES);
        own.read_clock = w.clock;
    }
}

void shared_memory::note_write(warp &w, const instr &i, unsigned lane, shadow &own,
                               uint64_t address, bool atomic)
{
    uint16_t thread = (uint16_t)(w.index * LANES + lane);
    if (own.flags & (shadow::OUTSIDE | shadow::FLYING))
        defect(w, i, lane, "writes shared memory at %llu, %s", (unsigned long long)address,
               own.flags & shadow::OUTSIDE ? "between or behind the variables"
                                           : "which cp.async may still be bringing");
    if ((own.flags & shadow::HAS_WRITER) && own.writer != thread &&
        !(atomic && (own.flags & shadow::ATOMIC)) && !before(w, own.writer, own.write_clock))
        defect(w, i, lane,
               "a race: writes shared memory at %llu, which thread %u writes, with no barrier "
               "between",
               (unsigned long long)address, own.writer);
    uint16_t reader = own.reader;
    if ((own.flags & shadow::HAS_READER) && reader != thread) {
        bool past = reader == shadow::SEVERAL_WARPS ? own.read_clock < epoch
                                                    : before(w, reader & 0x7FFF, own.read_clock);
        if (!past)
            defect(w, i, lane,
                   "a race: writes shared memory at %llu, which thread %u%s reads, with no barrier "
                   "between",
                   (unsigned long long)address, reader & 0x7FFF,
                   reader & shadow::SEVERAL_LANES ? " or another" : "");
    }
    own.writer = thread;
    own.write_clock = w.clock;
    own.flags = (uint8_t)((own.flags & ~shadow::ATOMIC) | shadow::HAS_WRITER |
                          (atomic ? shadow::ATOMIC : 0));
}

const unsigned char *shared_memory::read(warp &w, const instr &i, unsigned lane, uint64_t address,
                                         size_t bytes, bool *valid)
{
    const unsigned char *data = at(w, i, lane, address, bytes, "reads");
    uint8_t all = shadow::VALID;
    for (size_t from = (address - SHARED_BASE) >> granule_shift,
                to = (address - SHARED_BASE + bytes - 1) >> granule_shift;
         from <= to; from++) {
        note_read(w, i, lane, shadows[from], SHARED_BASE + (from << granule_shift));
        all &= shadows[from].flags;
    }
    *valid = all != 0;
    return data;
}

unsigned char *shared_memory::write(warp &w, const instr &i, unsigned lane, uint64_t address,
                                    size_t bytes, bool valid)
{
    unsigned char *data = at(w, i, lane, address, bytes, "writes");
    for (size_t from = (address - SHARED_BASE) >> granule_shift,
                to = (address - SHARED_BASE + bytes - 1) >> granule_shift;
         from <= to; from++) {
        shadow &own = shadows[from];
        note_write(w, i, lane, own, SHARED_BASE + (from << granule_shift), false);
        own.flags = (uint8_t)((own.flags & ~shadow::VALID) | (valid ? shadow::VALID : 0));
    }
    return data;
}

/* For an atomic operation: whether the bytes, at *ret_at, were written before. */
bool shared_memory::swaps(warp &w, const instr &i, unsigned lane, uint64_t address, size_t bytes,
                          unsigned char **ret_at)
{
    *ret_at = at(w, i, lane, address, bytes, "changes");
    uint8_t all = shadow::VALID;
    for (size_t from = (address - SHARED_BASE) >> granule_shift,
                to = (address - SHARED_BASE + bytes - 1) >> granule_shift;
         from <= to; from++) {
        note_write(w, i, lane, shadows[from], SHARED_BASE + (from << granule_shift), true);
        all &= shadows[from].flags;
    }
    return all != 0;
}

/* --- asynchronous copies ---------------------------------------------------------------------- */

void shared_memory::fly(warp &w, const instr &i, unsigned lane, const async_copy &copy)
{
    write(w, i, lane, copy.to, copy.bytes, false);
    for (size_t from = (copy.to - SHARED_BASE) >> granule_shift,
                to = (copy.to - SHARED_BASE + copy.bytes - 1) >> granule_shift;
         from <= to; from++)
        shadows[from].flags |= shadow::FLYING;
}

void shared_memory::store(const async_copy &copy)
{
    unsigned char *data = bytes_.data() + (copy.to - SHARED_BASE);
    memcpy(data, reinterpret_cast<const void *>(copy.from), copy.source_bytes);
    memset(data + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
}

void shared_memory::land(warp &w, const instr &i, unsigned lane, const async_copy &copy)
{
    for (size_t from = (copy.to - SHARED_BASE) >> granule_shift,
                to = (copy.to - SHARED_BASE + copy.bytes - 1) >> granule_shift;
         from <= to; from++)
        shadows[from].flags &= (uint8_t)~shadow::FLYING;
    write(w, i, lane, copy.to, copy.bytes, true);
}

} // namespace ptx
