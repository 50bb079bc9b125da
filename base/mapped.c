/* mapped.c - reads that survive a truncated file: the handler of SIGBUS. */
#include "base/mapped.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A slot is free while `state` is, and belongs to the handler too while it is watched. */
enum state { FREE, TAKEN, WATCHED, LOST };

struct slot {
    atomic_int state;
    _Atomic(uintptr_t) begin;
    _Atomic(size_t) bytes;
};

/* A signal handler has no argument to find these by. */
static struct slot slots[KVA_MAPPED_MAX];
static atomic_flag caught = ATOMIC_FLAG_INIT;
static struct sigaction former;
static uintptr_t page_bytes;

/* Put zeros where the file was, from the page that faulted to the mapping's end: what is lost is
 * mostly a file's tail, and then one fault is enough. mmap is a system call that touches no lock or
 * heap of the C library, and so safe here. */
static bool replace(struct slot *slot, uintptr_t at)
{
    uintptr_t begin = atomic_load(&slot->begin);
    uintptr_t page = at & ~(page_bytes - 1);
    size_t bytes = atomic_load(&slot->bytes) - (page - begin);
    void *zeros = mmap((void *)page, bytes, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED)
        return false;
    atomic_store(&slot->state, LOST);
    return true;
}

static void on_bus(int number, siginfo_t *info, void *context)
{
    (void)context;
    int saved = errno;
    uintptr_t at = (uintptr_t)info->si_addr;
    bool found = false;
    for (size_t i = 0; i < KVA_MAPPED_MAX && !found; i++) {
        int state = atomic_load(&slots[i].state);
        if (state == WATCHED || state == LOST)
            found = at - atomic_load(&slots[i].begin) < atomic_load(&slots[i].bytes) &&
                    replace(&slots[i], at);
    }
    /* Not ours: the access is tried again, and meets whoever was there before. */
    if (!found)
        sigaction(number, &former, NULL);
    errno = saved;
}

enum kva_status kva_mapped_catch(struct kva_err *err)
{
    struct sigaction action;
    if (atomic_flag_test_and_set(&caught))
        return KVA_OK;
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    memset(&action, 0, sizeof(action));
    action.sa_sigaction = on_bus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &former) != 0) {
        atomic_flag_clear(&caught);
        return kva_fail(err, KVA_EIO, "cannot take SIGBUS: %s", strerror(errno));
    }
    return KVA_OK;
}

uint32_t kva_mapped_watch(const void *map, size_t bytes)
{
    for (uint32_t i = 0; i < KVA_MAPPED_MAX; i++) {
        int expected = FREE;
        if (!atomic_compare_exchange_strong(&slots[i].state, &expected, TAKEN))
            continue;
        atomic_store(&slots[i].begin, (uintptr_t)map);
        atomic_store(&slots[i].bytes, bytes);
        atomic_store(&slots[i].state, WATCHED);
        return i;
    }
    return KVA_MAPPED_NONE;
}

void kva_mapped_unwatch(uint32_t number)
{
    if (number != KVA_MAPPED_NONE)
        atomic_store(&slots[number].state, FREE);
}

bool kva_mapped_is_lost(uint32_t number)
{
    return number != KVA_MAPPED_NONE && atomic_load(&slots[number].state) == LOST;
}
