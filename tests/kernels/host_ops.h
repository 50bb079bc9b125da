/* host_ops.h - the operators of a device whose memory the host cannot read, called with host
 * memory: so that one case serves every device.
 *
 * Each operator of the table copies what its arguments point to into device memory, activations in
 * the device's format, calls the device's operator, and copies back what that may write. All
 * arrays of a call lie in one piece of device memory with a pattern between them; a byte that
 * changes outside an output, an input included, is a fault. Arguments mean what they mean to the
 * CPU device: activations are fp32, and are to be numbers that the device's format has.
 *
 * Thread rule: one thread. Up to HOST_OPS_MAX devices at a time. */
#ifndef KVA_TESTS_KERNELS_HOST_OPS_H
#define KVA_TESTS_KERNELS_HOST_OPS_H

#include "kernels/ops.h"

#define HOST_OPS_MAX 4

/* Serve `device` with calls of up to `bytes` of arguments. False: no memory. */
bool host_ops_open(struct kva_device *device, size_t bytes);

/* Before the device is closed. */
void host_ops_close(struct kva_device *device);

/* The table; attend_select_fetch is NULL, as on such devices. */
const struct kva_ops *host_ops_table(void);

/* What was wrong with the calls since the last question: NULL, or a static string. */
const char *host_ops_fault(struct kva_device *device);

#endif
