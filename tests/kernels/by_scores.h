/* by_scores.h - peaks and weigh_choose for a device that has neither, by the scores that it keeps:
 * where peaks would be is the address of them. */
#ifndef KVA_TESTS_KERNELS_BY_SCORES_H
#define KVA_TESTS_KERNELS_BY_SCORES_H

#include "kernels/ops.h"

/* attend_lowbit of `ops`; by_scores_choose has to follow, of all that keep peaks. */
void by_scores_attend(struct kva_device *device, const struct kva_ops *ops,
                      const struct kva_attend_lowbit_args *args);

/* weigh_choose by weigh and choose of `ops`. The weights are anything afterwards. */
void by_scores_choose(struct kva_device *device, const struct kva_ops *ops,
                      const struct kva_weigh_choose_args *args);

#endif
