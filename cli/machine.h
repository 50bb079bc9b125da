/* machine.h - what this machine and this process's limits offer.
 *
 * Thread rule: any thread; reads files. */
#ifndef KVA_CLI_MACHINE_H
#define KVA_CLI_MACHINE_H

#include "base/cgroup.h"
#include "base/err.h"

#include <stdbool.h>

enum kva_huge_pages {
    KVA_HUGE_PAGES_UNKNOWN,
    KVA_HUGE_PAGES_NEVER,
    KVA_HUGE_PAGES_MADVISE,
    KVA_HUGE_PAGES_ALWAYS,
};

struct kva_machine {
    uint32_t cores;            /* that are online */
    uint32_t cores_usable;     /* by affinity and quota */
    struct kva_cgroup cgroup;  /* limits of containers and services */
    uint64_t memory;           /* bytes; 0: unknown */
    uint64_t memory_available; /* that could still be taken, were there no cgroup */
    uint64_t swap_used;        /* bytes */
    uint32_t memory_nodes;     /* NUMA nodes with memory; 0: unknown */
    enum kva_huge_pages huge_pages;
    bool overcommit_never; /* memory that is asked for has to be there, used or not */
    uint64_t commit_room;  /* then: so much can still be asked for */
};

/* `root`: "" for this machine; a test has a folder with what it needs of proc and sys. */
void kva_machine_read(const char *root, struct kva_machine *ret);

/* Bytes that could still be taken of it. */
static inline uint64_t kva_machine_room(const struct kva_machine *machine)
{
    return machine->cgroup.memory_room < machine->memory_available ? machine->cgroup.memory_room
                                                                   : machine->memory_available;
}

/* Bytes of memory that this process could still take: the machine's and the cgroup's limits. */
uint64_t kva_memory_available(void);

/* Whether tiers of `bytes` (with a GPU the host's alone) can be taken where `room` can: KVA_ENOMEM
 * with both numbers. */
enum kva_status kva_machine_check_tiers(uint64_t room, uint64_t bytes, bool gpu,
                                        struct kva_err *err);

#endif
