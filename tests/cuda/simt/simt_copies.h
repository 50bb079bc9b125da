/* simt_copies.h - asynchronous copies of a thread. Each is done at once, or as late as the contract
 * allows, at random: who does not wait for it sees the old content, and who has not waited for
 * readers of what was there before takes it from them. */
#ifndef KVA_TESTS_CUDA_SIMT_COPIES_H
#define KVA_TESTS_CUDA_SIMT_COPIES_H

#include <cstdint>
#include <vector>

namespace simt
{

struct async_copy {
    void *to;
    const void *from;
    bool valid; /* else zeros */
};

struct async_groups {
    std::vector<async_copy> open;
    std::vector<std::vector<async_copy>> closed; /* oldest first */
};

/* Of the thread that runs now. */
async_groups &own_groups();

} // namespace simt

#endif
