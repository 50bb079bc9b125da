/* simt_copies.h - asynchronous copies of a thread. They are done as late as the contract allows, so
 * that who does not wait for them sees the old content. */
#ifndef KVA_TESTS_CUDA_SIMT_COPIES_H
#define KVA_TESTS_CUDA_SIMT_COPIES_H

#include <cstdint>
#include <vector>

namespace simt
{

struct async_copy {
    void *to;
    uint64_t data[2];
};

struct async_groups {
    std::vector<async_copy> open;
    std::vector<std::vector<async_copy>> closed; /* oldest first */
};

/* Of the thread that runs now. */
async_groups &own_groups();

} // namespace simt

#endif
