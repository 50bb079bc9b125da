/* host_ops_internal.h - how host_ops.c hands a call's arrays to a device. */
#ifndef KVA_TESTS_KERNELS_HOST_OPS_INTERNAL_H
#define KVA_TESTS_KERNELS_HOST_OPS_INTERNAL_H

#include "kernels/packed.h"
#include "tests/kernels/host_ops.h"

#define PIECES_MAX 2048u

/* An array of a call: [rows, cols] of `dtype` with a row stride in elements, or plain bytes. */
struct piece {
    void *host;
    size_t at, bytes;
    uint32_t rows, cols, stride;
    enum kva_dtype dtype; /* of the device; the host's is F32 */
    bool numbers;         /* else bytes */
    bool out;
};

/* Memory of one tier for the arrays of a call. */
struct arena {
    unsigned char *image;  /* pinned: what is sent and read back */
    unsigned char *memory; /* where the device has it; in the host tier the image itself */
    unsigned char *before; /* what was sent */
    size_t size, used;
    struct piece pieces[PIECES_MAX];
    uint32_t count;
};

/* A weight as the device was given it: memory that stays as long as the device is open. */
struct kept_weight {
    struct kept_weight *next;
    struct kva_weight weight;
    enum kva_dtype dtype;
    size_t bytes;
    _Alignas(KVA_PACKED_ALIGN) unsigned char data[];
};

struct host_ops {
    struct kva_device *device;
    const struct kva_ops *ops;
    enum kva_dtype act;
    struct arena device_tier, host_tier;
    struct kept_weight *weights;
    const char *fault;
    uint32_t turns; /* of host_queue */
};

/* A call begins, with no arrays; what it then names is sent; it ends, and outputs are read back. */
struct host_ops *host_begin(struct kva_device *device);
void host_send(struct host_ops *h);
/* For a call that could run aside: there and in compute's queue by turns. After host_send. */
enum kva_queue host_queue(struct host_ops *h);
void host_end(struct host_ops *h);

/* Room for an array behind the others; one that the call has named before is not put twice. */
struct piece *host_place(struct arena *arena, void *host, size_t bytes, bool *ret_there);

/* Bytes as they are; `out`: the call may write them. Its address on the device. */
void *host_put(struct arena *arena, const void *host, size_t bytes, bool out);

/* Floats of the host, [rows, cols] with a row stride, as `dtype`. What lies between the rows is
 * sent, too: it must not change. */
void *host_put_numbers(struct host_ops *h, const void *host, uint32_t rows, uint32_t cols,
                       uint32_t stride, enum kva_dtype dtype, bool out);

/* The same as activations; bytes in device memory that are read, or written. */
void *host_put_act(struct host_ops *h, const void *host, uint32_t rows, uint32_t cols,
                   uint32_t stride, bool out);
void *host_put_in(struct host_ops *h, const void *host, size_t bytes);
void *host_put_out(struct host_ops *h, void *host, size_t bytes);

struct kva_attend_scores host_put_scores(struct host_ops *h, struct kva_attend_scores scores,
                                         uint32_t heads);
struct kva_weight host_put_weight(struct host_ops *h, const struct kva_weight *weight);

struct kva_partial host_put_partial(struct host_ops *h, const struct kva_partial *host,
                                    size_t pairs, size_t dim, bool out);
const uint32_t *host_put_gate(struct host_ops *h, const uint32_t *host);

/* What of a row cache a call may write. */
enum cache_use { CACHE_READ, CACHE_ASSIGN, CACHE_FETCH };

/* head_dim 0: rows are not looked at. */
struct kva_row_cache host_put_cache(struct host_ops *h, const struct kva_row_cache *host,
                                    uint32_t kv_heads, uint32_t head_dim, enum cache_use use);

/* host_ops_rows.c: operators of rows, for the table. */
void host_weigh(struct kva_device *device, const struct kva_weigh_args *host);
void host_choose(struct kva_device *device, const struct kva_choose_args *host);
void host_weigh_choose(struct kva_device *device, const struct kva_weigh_choose_args *host);
void host_accumulate(struct kva_device *device, const struct kva_accumulate_args *host);
void host_assign_slots(struct kva_device *device, const struct kva_assign_slots_args *host);
void host_fetch_rows(struct kva_device *device, const struct kva_fetch_rows_args *host);
void host_query_cosine(struct kva_device *device, const struct kva_query_cosine_args *host);

/* host_ops_keep.c: operators of kept rows. */
void host_attend_mass(struct kva_device *device, const struct kva_attend_mass_args *host);
void host_mean_keys(struct kva_device *device, const struct kva_mean_keys_args *host);
void host_row_error(struct kva_device *device, const struct kva_row_error_args *host);
void host_keep(struct kva_device *device, const struct kva_keep_args *host);
void host_use_rows(struct kva_device *device, const struct kva_use_rows_args *host);
void host_store_rows(struct kva_device *device, const struct kva_store_rows_args *host);
void host_roll_rows(struct kva_device *device, const struct kva_roll_rows_args *host);

/* host_ops_sketch.c: operators of partial keys. */
void host_sketch(struct kva_device *device, const struct kva_sketch_args *host);
void host_sketch_queries(struct kva_device *device, const struct kva_sketch_queries_args *host);
void host_sketch_sums(struct kva_device *device, const struct kva_sketch_sums_args *host);
void host_sketch_weigh(struct kva_device *device, const struct kva_sketch_weigh_args *host);

#endif
