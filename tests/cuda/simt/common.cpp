/* What every way of executing kernels on the host has: random numbers, the order of blocks, messages.
 */
#include "simt.h"

#include <cstdarg>
#include <cstdio>
#include <unistd.h>

namespace simt
{

uint3 thread_index, block_index;
dim3 block_size, grid_size;
int mutation;
struct counts counts;

static uint64_t random_state = 1;

void set_seed(uint64_t seed)
{
    random_state = seed * 0x9E3779B97F4A7C15ull + 1;
    counts = {};
}

uint32_t random_below(uint32_t limit)
{
    uint64_t x = random_state += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return (uint32_t)(((x ^ x >> 31) >> 32) * limit >> 32);
}

void defect(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "simt: block (%u, %u, %u) thread (%u, %u, %u): ", block_index.x, block_index.y,
            block_index.z, thread_index.x, thread_index.y, thread_index.z);
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    fflush(nullptr);
    _exit(3);
}

void begin_grid(dim3 grid, dim3 block, size_t shared_bytes)
{
    unsigned threads = block.x * block.y * block.z;
    if (threads == 0 || threads > THREADS_MAX || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
        grid.y > 65535 || grid.z > 65535 || shared_bytes > 227 * 1024)
        defect("no such launch: grid (%u, %u, %u) block (%u, %u, %u), %zu bytes of shared memory",
               grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes);
    counts.kernels++;
    grid_size = grid;
    block_size = block;
}

void for_each_block(const std::function<void()> &run)
{
    const dim3 grid = grid_size;
    uint64_t count = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t first = random_below((uint32_t)count);
    bool backward = random_below(2);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = (first + (backward ? count - i : i)) % count;
        block_index = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                       (unsigned)(at / grid.x / grid.y)};
        run();
    }
}

} // namespace simt
