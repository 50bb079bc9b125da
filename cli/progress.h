/* progress.h - a bar on standard error for work of known size; nothing where that is no terminal.
 *
 * Thread rule: one thread at a time. */
#ifndef KVA_CLI_PROGRESS_H
#define KVA_CLI_PROGRESS_H

#include "base/kva.h"

#include <stdbool.h>

struct kva_cli_progress {
    const char *what; /* "loading" */
    const char *unit; /* "tokens"; NULL: bytes */
    bool shown;
    uint64_t last_ns; /* when the bar was last drawn; at first: when the work began */
};

/* A kva_model_progress_fn; `opaque` is a struct kva_cli_progress. */
void kva_cli_progress_show(void *opaque, uint64_t done_bytes, uint64_t total_bytes);

/* Leaves a bar that has not come to its end. */
void kva_cli_progress_end(struct kva_cli_progress *progress);

#endif
