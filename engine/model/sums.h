/* sums.h - checksums of a model's files, and of what is made of them, by all threads of a pool.
 *
 * They take the time of reading everything once, so they move a bar and can be stopped; a sum that
 * was stopped is worth nothing, and whoever uses one asks first.
 *
 * Thread rule: that of the pool. */
#ifndef KVA_ENGINE_MODEL_SUMS_H
#define KVA_ENGINE_MODEL_SUMS_H

#include "base/pool.h"
#include "engine/model/files.h"

#include <stdatomic.h>

struct kva_model_summing {
    struct kva_pool *pool;
    const atomic_bool *cancelled;                  /* true: stop at the next piece; or NULL */
    void (*advance)(void *opaque, uint64_t bytes); /* so many more are summed; or NULL */
    void *opaque;
};

/* Of `bytes` bytes. The same for any number of threads. */
uint64_t kva_model_sum(const struct kva_model_summing *summing, const void *data, size_t bytes);

/* Of the content of all files, as it is. */
uint64_t kva_model_files_sum(const struct kva_model_summing *summing,
                             const struct kva_model_files *files);

/* Of the files' identity (inodes, sizes, times): where it is the same, so is the content. */
uint64_t kva_model_files_stamp(const struct kva_model_files *files);

#endif
