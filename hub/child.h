/* child.h - another program, run to its end, its output read, and ended with whatever it has
 * started once the caller is asked to stop.
 *
 * The child is found by PATH, gets a process group of its own, no input, default signals, and this
 * process's environment. Its messages are kept for the caller, not shown.
 *
 * Thread rule: any thread; SIGCHLD must not be ignored. */
#ifndef KVA_HUB_CHILD_H
#define KVA_HUB_CHILD_H

#include "base/buf.h"
#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>

struct kva_hub_child_params {
    const char *const *argv; /* NULL at its end */
    const char *folder;      /* where it runs */
    const char *temporary;   /* its TMPDIR */
    /* Takes its output; false: enough, the child is ended. NULL: output is dropped. */
    bool (*output)(void *opaque, const char *bytes, size_t count);
    void (*tick)(void *opaque); /* some times a second; NULL: nothing */
    void *opaque;
    const atomic_bool *cancelled; /* NULL: never */
};

struct kva_hub_child_result {
    int code;              /* exit code; -1: ended by a signal, or by `output` */
    struct kva_buf errors; /* the beginning and the end of what it said on standard error */
};

/* Fails: KVA_ENOTFOUND (no such program), KVA_EIO, KVA_ECANCELLED. On success the caller finishes
 * ret->errors. */
KVA_MUST_CHECK enum kva_status kva_hub_child_run(const struct kva_hub_child_params *params,
                                                 struct kva_hub_child_result *ret,
                                                 struct kva_err *err);

#endif
