/* attend_apart.h - what attend_select_fetch is to give: the bits of attend_lowbit, attend_rows,
 * weigh and choose, called one after the other. */
#ifndef KVA_TESTS_KERNELS_ATTEND_APART_H
#define KVA_TESTS_KERNELS_ATTEND_APART_H

#include "kernels/ops.h"

/* The four calls of `ops`, a table of the device, in turns as the scratch memory allows. What a
 * sequence would do `now` is not done. Each call twice, the second behind closed gates in host
 * memory: for devices that read it, or a table that brings it there (host_ops.h). False: a token that
 * a selecting row does not see has a weight. */
bool attend_apart(struct kva_device *device, const struct kva_ops *ops,
                  const struct kva_attend_select_fetch_args *args);

/* The same once, without gates, and by peaks where the device chooses by them: for measuring. */
void attend_apart_once(struct kva_device *device, const struct kva_ops *ops,
                       const struct kva_attend_select_fetch_args *args);

#endif
