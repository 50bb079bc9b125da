/* simt.h - CUDA kernels executed on the host, for tests on machines without a GPU.
 *
 * The kernels' sources are compiled by an ordinary C++ compiler against the headers of this folder
 * (cuda_runtime.h and friends) in place of the toolkit's. What is imitated is the contract, not the
 * speed:
 *
 *   threads   Each thread of a block is a fiber. Between two points where it must wait for others
 *             it runs alone; which thread runs next is drawn at random (seeded), so that what is
 *             not ordered by a barrier happens in another order from run to run.
 *   warps     Shuffles, votes, matrix products: all lanes named must arrive at the same operation.
 *             A lane that never does, or one at another operation, ends the program with a message.
 *   shared    Filled with a pattern that is not a number before every block.
 *   streams   Work is queued, and executed later, in a random order that streams and events allow.
 *             What the host does to memory that queued work still needs is seen by that work.
 *   graphs    What streams under capture are given becomes nodes; a launched graph's nodes run in a
 *             random order that their edges allow, among the work of all streams.
 *   memory    Device memory is closed to the host between device work, now and then: a host that
 *             touches it gets a fault sooner or later. Every allocation is followed by a pattern
 * that is checked. Copies between addresses that are no one's, or past an allocation's end, end the
 *             program.
 *
 * Thread rule: one host thread at a time. */
#ifndef KVA_TESTS_CUDA_SIMT_H
#define KVA_TESTS_CUDA_SIMT_H

#include <cstddef>
#include <cstdint>
#include <functional>

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct uint3 {
    unsigned x, y, z;
};

namespace simt
{

/* Indices of the thread that runs now. */
extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;

/* The block's dynamic shared memory. */
void *dynamic_shared();

/* Wait for all threads of the block that have not returned. */
void block_barrier();

/* The same, and whether `predicate` holds in all (any) of them. */
int block_vote(int predicate, bool any);

/* A common operation of the lanes in `mask`: each gives the address of its operands; when the last
 * one has arrived, `operation` is called once with all addresses (NULL: a lane not in the mask). */
typedef void warp_operation(void *const *lanes, uint32_t mask);
void warp_collective(uint32_t mask, warp_operation *operation, void *operands);

unsigned lane_index();

/* Run a kernel's blocks, in random order. */
void run_grid(const std::function<void()> &kernel, dim3 grid, dim3 block, size_t shared_bytes);

/* The grid and its blocks, checked, before a kernel runs; then each of its blocks, in random order,
 * with its index set. */
enum { THREADS_MAX = 1024 };
void begin_grid(dim3 grid, dim3 block, size_t shared_bytes);
void for_each_block(const std::function<void()> &run);

/* End the program: the device code is wrong. */
[[noreturn]] void defect(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether the bytes are in one device allocation or in one piece of pinned memory, and which. */
bool find_memory(uint64_t address, size_t bytes, uint64_t *ret_begin, uint64_t *ret_end);

/* Random numbers of the scheduler. */
uint32_t random_below(uint32_t limit);

/* --- for tests ------------------------------------------------------------------------------- */

/* Start anew from `seed`. */
void set_seed(uint64_t seed);

/* Which deliberate defect the device code has now: mutate.py puts them in; 0: none. */
extern int mutation;

/* What ran since the seed was set. */
struct counts {
    uint64_t kernels, blocks, switches, copies, waits;
    uint64_t calls;  /* of the host that give the device something to do or to wait for */
    uint64_t graphs; /* launched */
    uint64_t nodes;  /* of them, that run something */
    uint64_t chains; /* of such nodes one behind the other, the longest of each of them, added up */
};
extern struct counts counts;

} // namespace simt

#endif
