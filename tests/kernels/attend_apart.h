/* attend_apart.h - what attend_select_fetch is to give: the bits of attend_lowbit, attend_rows,
 * weigh and choose, called one after the other. */
#ifndef KVA_TESTS_KERNELS_ATTEND_APART_H
#define KVA_TESTS_KERNELS_ATTEND_APART_H

#include "kernels/ops.h"

/* The four calls of `ops`, a table of the device, in turns as the scratch memory allows. What a
 * sequence would do `now` is not done. */
void attend_apart(struct kva_device *device, const struct kva_ops *ops,
                  const struct kva_attend_select_fetch_args *args);

#endif
