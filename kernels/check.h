/* check.h - the arguments of operators are checked once, in front of every device's table.
 *
 * What kva_device_ops gives is this table: each of its operators checks what does not depend on the
 * contents of memory, fails the device by the operator's name where that cannot be meant, and hands
 * on what is left. Devices assume valid arguments; what one of them cannot do at all, its limits
 * say (backend.h). A failure found here is an error in the engine, so it is for good, as every
 * failure of a device. */
#ifndef KVA_KERNELS_CHECK_H
#define KVA_KERNELS_CHECK_H

#include "kernels/ops.h"

/* The table for a device; without the optional operators that it lacks. */
const struct kva_ops *kva_checked_ops(const struct kva_device *device);

#endif
