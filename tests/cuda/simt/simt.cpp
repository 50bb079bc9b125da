/* Threads, warps and blocks. */
#include "simt.h"
#include "simt_copies.h"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt
{

enum { WARP = 32 };
constexpr size_t stack_bytes = 256 * 1024;
constexpr unsigned char shared_pattern = 0xFF; /* a NaN in every floating-point format */

/* --- fibers ----------------------------------------------------------------------------------- */

struct fiber {
    void *stack_pointer;
    unsigned char *stack;
    enum { READY, AT_BARRIER, AT_WARP, DONE } state;
    uint3 index;
    void *fake_stack; /* AddressSanitizer's */
};

static std::vector<fiber> fibers;
static unsigned running, fiber_count, alive, at_barrier;
static void *scheduler_stack_pointer;
static const std::function<void()> *current_kernel;

#if defined(__x86_64__)
/* Save the callee-saved registers and the stack pointer, take the other's. */
extern "C" void simt_switch(void **save, void *load);
__asm__(".text\n"
        ".globl simt_switch\n"
        ".type simt_switch, @function\n"
        "simt_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size simt_switch, .-simt_switch\n");
#elif defined(__aarch64__)
extern "C" void simt_switch(void **save, void *load);
__asm__(".text\n"
        ".globl simt_switch\n"
        ".type simt_switch, %function\n"
        "simt_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size simt_switch, .-simt_switch\n");
#else
#error "simt.cpp: no context switch for this processor"
#endif

#if defined(__SANITIZE_ADDRESS__)
static const void *scheduler_bottom;
static size_t scheduler_size;
static void *scheduler_fake;
#endif

/* Back to the scheduler. */
static void leave(fiber &self, bool last)
{
    (void)last;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(last ? nullptr : &self.fake_stack, scheduler_bottom,
                                   scheduler_size);
#endif
    simt_switch(&self.stack_pointer, scheduler_stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(self.fake_stack, &scheduler_bottom, &scheduler_size);
#endif
}

static void enter(fiber &to)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&scheduler_fake, to.stack, stack_bytes);
#endif
    simt_switch(&scheduler_stack_pointer, to.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
    counts.switches++;
}

static void fiber_main()
{
    unsigned self = running;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
    (*current_kernel)();
    fibers[self].state = fiber::DONE;
    alive--;
    leave(fibers[self], true);
    abort();
}

static void prepare(fiber &to)
{
    if (!to.stack) {
        void *stack = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED)
            defect("no memory for a stack");
        to.stack = (unsigned char *)stack;
    }
    void **top = (void **)(to.stack + stack_bytes);
    to.fake_stack = nullptr;
#if defined(__x86_64__)
    *--top = nullptr; /* where a caller's return address would be: keeps the alignment */
    *--top = (void *)fiber_main;
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
#else
    top -= 20;
    memset(top, 0, 20 * sizeof *top);
    top[11] = (void *)fiber_main; /* x30 */
#endif
    to.stack_pointer = top;
    to.state = fiber::READY;
}

/* The running thread waits in `state` until somebody makes it ready. */
static void wait_in(decltype(fiber::state) state)
{
    fiber &self = fibers[running];
    self.state = state;
    leave(self, false);
}

/* --- barriers and warps ----------------------------------------------------------------------- */

static int vote_all, vote_any, vote_all_result, vote_any_result;

struct warp {
    void *operands[WARP];
    warp_operation *operation;
    uint32_t mask, arrived;
};

static warp warps[THREADS_MAX / (unsigned)WARP];

static void release_barrier()
{
    for (unsigned i = 0; i < fiber_count; i++) {
        if (fibers[i].state == fiber::AT_BARRIER)
            fibers[i].state = fiber::READY;
    }
    at_barrier = 0;
    vote_all_result = vote_all, vote_any_result = vote_any;
    vote_all = 1, vote_any = 0;
}

void block_barrier()
{
    block_vote(1, false);
}

int block_vote(int predicate, bool any)
{
    vote_all &= predicate != 0;
    vote_any |= predicate != 0;
    at_barrier++;
    wait_in(fiber::AT_BARRIER);
    return any ? vote_any_result : vote_all_result;
}

unsigned lane_index()
{
    return running % WARP;
}

void warp_collective(uint32_t mask, warp_operation *operation, void *operands)
{
    warp &own = warps[running / WARP];
    unsigned lane = running % WARP, first = running - lane;
    if (!(mask >> lane & 1))
        defect("a lane is not in the mask 0x%x that it gives", mask);
    if (own.arrived == 0) {
        own.operation = operation;
        own.mask = mask;
    } else if (own.operation != operation || own.mask != mask) {
        defect("lanes of a warp are at different operations, or with masks 0x%x and 0x%x", own.mask,
               mask);
    }
    own.operands[lane] = operands;
    own.arrived |= 1u << lane;
    if (own.arrived != own.mask) {
        wait_in(fiber::AT_WARP);
        return;
    }
    void *all[WARP];
    for (unsigned i = 0; i < WARP; i++)
        all[i] = own.arrived >> i & 1 ? own.operands[i] : nullptr;
    own.arrived = 0;
    operation(all, mask);
    for (unsigned i = 0; i < WARP && first + i < fiber_count; i++) {
        if ((mask >> i & 1) && fibers[first + i].state == fiber::AT_WARP)
            fibers[first + i].state = fiber::READY;
    }
}

/* --- asynchronous copies ---------------------------------------------------------------------- */

static std::vector<async_groups> copies;

async_groups &own_groups()
{
    return copies[running];
}

/* --- blocks ----------------------------------------------------------------------------------- */

static std::vector<unsigned char> shared_memory;

void *dynamic_shared()
{
    return (void *)(((uintptr_t)shared_memory.data() + 127) & ~(uintptr_t)127);
}

/* The section that the kernels' static shared variables are in (cuda_runtime.h). */
extern "C" {
extern unsigned char __start_simt_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_simt_shared[] __attribute__((weak, visibility("hidden")));
}

static void run_block(size_t shared_bytes)
{
    counts.blocks++;
    shared_memory.assign(shared_bytes + 256, shared_pattern);
    if (__start_simt_shared)
        memset(__start_simt_shared, shared_pattern,
               (size_t)(__stop_simt_shared - __start_simt_shared));
    fiber_count = block_size.x * block_size.y * block_size.z;
    if (fibers.size() < fiber_count)
        fibers.resize(fiber_count);
    alive = fiber_count;
    at_barrier = 0;
    vote_all = 1, vote_any = 0;
    memset(warps, 0, sizeof warps);
    copies.assign(fiber_count, {});
    for (unsigned i = 0; i < fiber_count; i++) {
        prepare(fibers[i]);
        fibers[i].index = {i % block_size.x, i / block_size.x % block_size.y,
                           i / block_size.x / block_size.y};
    }
    while (alive > 0) {
        /* Sweep over the threads, or over the warps and their lanes in order, from a random one on
         * with a random odd step: every order of the few that matter comes up, at little cost. */
        unsigned width = random_below(2) ? WARP : 1, count = (fiber_count + width - 1) / width;
        unsigned span = 1;
        while (span < count)
            span *= 2;
        unsigned at = random_below(span), step = random_below(span) | 1;
        bool progress = false;
        for (unsigned i = 0; i < span * width; i++) {
            unsigned index = at * width + i % width;
            if (i % width == width - 1)
                at = (at + step) & (span - 1);
            if (index >= fiber_count || fibers[index].state != fiber::READY)
                continue;
            running = index;
            thread_index = fibers[index].index;
            enter(fibers[index]);
            progress = true;
        }
        if (alive > 0 && at_barrier == alive) {
            release_barrier();
            progress = true;
        }
        if (!progress)
            defect("threads wait for others that will never come (%u alive, %u at the barrier)",
                   alive, at_barrier);
    }
}

void run_grid(const std::function<void()> &kernel, dim3 grid, dim3 block, size_t shared_bytes)
{
    begin_grid(grid, block, shared_bytes);
    current_kernel = &kernel;
    for_each_block([=]() { run_block(shared_bytes); });
}

} // namespace simt
