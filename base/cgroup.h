/* cgroup.h - what the control groups of this process allow: a container's limits, or a service's.
 *
 * Version 2 and version 1, the process's own group and all above it that can be seen: the least
 * counts. From inside a container the files of its own group are at the root of the mount, whatever
 * its path outside is; so a path that is not there counts for nothing.
 *
 * Thread rule: any thread; reads files. */
#ifndef KVA_BASE_CGROUP_H
#define KVA_BASE_CGROUP_H

#include "base/kva.h"

struct kva_cgroup {
    uint64_t memory_limit; /* bytes, of the group with the least room; UINT64_MAX: no limit */
    uint64_t memory_room;  /* bytes that may still be taken, caches of files that can be given back
                              not counted as taken; UINT64_MAX: no limit */
    double cores;          /* processor time per time; 0: no quota */
};

/* `root`: "" for this machine; a test has a folder with proc/self/cgroup and sys/fs/cgroup. */
void kva_cgroup_read(const char *root, struct kva_cgroup *ret);

#endif
