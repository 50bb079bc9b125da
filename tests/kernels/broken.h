/* broken.h - what the lists of deliberately broken operators share. */
#ifndef KVA_TESTS_KERNELS_BROKEN_H
#define KVA_TESTS_KERNELS_BROKEN_H

#include "tests/kernels/checkasm.h"

struct broken {
    const char *name;
    enum check_op op;
    struct kva_ops ops; /* the broken operator alone */
};

#define BREAKS(name, operation, member)                                                            \
    {                                                                                              \
#name, operation, (struct kva_ops)                                                         \
        {                                                                                          \
            .member = name                                                                         \
        }                                                                                          \
    }

/* The broken operators of low-bit KV, which build on those of `sound`. */
const struct broken *broken_lowbit(const struct kva_ops *sound, size_t *ret_count);

/* The same of rows that are chosen and fetched, and of logits. */
const struct broken *broken_select(const struct kva_ops *sound, size_t *ret_count);

/* The same of rows that are kept. */
const struct broken *broken_keep(const struct kva_ops *sound, size_t *ret_count);

/* The same of partial keys. */
const struct broken *broken_sketch(const struct kva_ops *sound, size_t *ret_count);

/* The same of linear with packed weights. */
const struct broken *broken_packed(const struct kva_ops *sound, size_t *ret_count);

/* The same of level amx, where it is emulated; `lower`: a device of the levels below it. */
const struct broken *broken_amx(const struct kva_ops *sound, struct kva_device *lower,
                                size_t *ret_count);

#endif
