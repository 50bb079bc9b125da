/* ops.h - the operators: one signature each, declared once, filled per device and capability.
 *
 * This header has the table and the dense operators; ops_attend.h attention, ops_rows.h rows and
 * how they are chosen, ops_keep.h rows that are kept for good, ops_sketch.h partial keys, ops_logits.h
 * what is read off logits.
 *
 * All run on the compute queue, but for those whose arguments name a `queue`. Addresses are device addresses unless said
 * otherwise; descriptor arrays (`seqs`, `ranges`, `blocks`, `positions`, ...) are host memory, read
 * when the operator is enqueued. `act` is the device's activation format (kva_device_info.act).
 * Strides are dense unless a stride is given.
 *
 * Determinism, tested for every variant: a row's result depends on that row's inputs only. It is
 * bit-equal for any number of other rows in the call, any thread count, and any split of a prompt
 * into chunks. Within one capability level that makes a request's tokens independent of what else
 * is being served.
 *
 * Gates: an entry of a call may have a `gate`, the address of a number on the device. If that is 0
 * when the operator runs, the entry is skipped, as if it were not listed; NULL: it never is. So one
 * operator decides for whom those behind it are run (query_cosine), and the host need not wait to
 * know.
 *
 * Accumulation is in fp32 (or better). No operator allocates. */
#ifndef KVA_KERNELS_OPS_H
#define KVA_KERNELS_OPS_H

#include "kernels/ops_attend.h"
#include "kernels/ops_keep.h"
#include "kernels/ops_logits.h"
#include "kernels/ops_rows.h"
#include "kernels/ops_sketch.h"

enum kva_norm_kind {
    KVA_NORM_RMS,   /* x / rms(x) * w */
    KVA_NORM_LAYER, /* (x - mean) / std * w + b */
};

enum kva_activation {
    KVA_ACT_SILU,
    KVA_ACT_GELU,      /* erf form */
    KVA_ACT_GELU_TANH, /* tanh approximation */
    KVA_ACT_RELU,
};

/* out[r, :] = table[ids[r], :] * scale (+ positions_table[positions[r], :] if present). */
struct kva_embed_args {
    void *out;                         /* act [rows, dim] */
    struct kva_weight table;           /* [vocab, dim] */
    struct kva_weight positions_table; /* [positions, dim] or absent */
    const uint32_t *ids;               /* host [rows], each < vocab */
    const uint32_t *positions;         /* host [rows]; used with positions_table */
    uint32_t rows;
    float scale; /* 1, or sqrt(dim) for Gemma */
};

/* out may be x. Norm of `rows` rows of `dim` elements; for QK norm rows = rows * heads, dim =
 * head_dim. */
struct kva_norm_args {
    void *out;                /* act [rows, dim] */
    const void *x;            /* act [rows, dim] */
    struct kva_weight weight; /* [dim] */
    struct kva_weight bias;   /* [dim] or absent; layer norm only */
    uint32_t rows;
    uint32_t dim;
    enum kva_norm_kind kind;
    float eps;
    float weight_offset; /* 0, or 1 where the file stores w - 1 (Gemma) */
};

/* out = x w^T (+ bias) (+ out if accumulate). */
struct kva_linear_args {
    void *out;     /* act [rows, w.rows], row stride out_stride elements; F32 if out_f32 */
    const void *x; /* act [rows, w.cols], row stride x_stride elements */
    struct kva_weight weight; /* [w.rows = outputs, w.cols = inputs] */
    struct kva_weight bias;   /* [w.rows] or absent */
    uint32_t rows;
    /* Rows that x and out have memory for. The device may take those behind `rows` as they are, and
     * write them: nobody needs them. Fewer than rows: there are none. */
    uint32_t room;
    uint32_t x_stride;
    uint32_t out_stride;
    bool accumulate; /* add to what out holds: the residual stream */
    bool out_f32;    /* logits */
};

/* Products of the same rows, as linear makes each of them: q, k and v. None overlaps another's out,
 * nor x. */
#define KVA_LINEAR_GROUP_MAX 3u
struct kva_linear_group_args {
    const struct kva_linear_args
        *products;  /* host [count]: x, x_stride, rows and inputs as [0]'s */
    uint32_t count; /* at most KVA_LINEAR_GROUP_MAX */
};

/* The bits of linear for `gate`, linear for `up`, then glu of the two into gate.out: a gated MLP up
 * to its second product. */
struct kva_linear_glu_args {
    struct kva_linear_args gate; /* rows dense, in the activations' format, not added to out */
    struct kva_linear_args up;   /* the same rows and outputs; its out may be left as it is */
    enum kva_activation activation;
};

/* Rotary embedding in place, half-split pairs (i, i + rotary_dim / 2) of each head's first
 * rotary_dim elements: angle = position * inv_freq[i]; cos and sin are multiplied by `factor`.
 * Elements from rotary_dim on stay. */
struct kva_rope_args {
    void *x;                   /* act [rows, heads, head_dim], row stride x_stride elements */
    const uint32_t *positions; /* host [rows] */
    const float *inv_freq;     /* host [rotary_dim / 2] */
    uint32_t rows;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t rotary_dim; /* even, <= head_dim */
    uint32_t x_stride;
    float factor; /* attention factor of YaRN and the like, else 1 */
    void *second; /* the same of another matrix, k beside q: act [rows, second_heads, head_dim], row
                   * stride second_stride elements; NULL: none */
    uint32_t second_heads;
    uint32_t second_stride;
};

/* out[r, i] = act(gate[r, i]) * up[r, i]; without `up`, act(gate). out may be gate. */
struct kva_glu_args {
    void *out;        /* act [rows, dim] */
    const void *gate; /* act [rows, dim] */
    const void *up;   /* act [rows, dim] or NULL */
    uint32_t rows;
    uint32_t dim;
    enum kva_activation activation;
};

/* out[i, :] = x[rows[i], :]: the rows whose logits are wanted. */
struct kva_gather_args {
    void *out;            /* act [count, dim] */
    const void *x;        /* act [.., dim] */
    const uint32_t *rows; /* host [count] */
    uint32_t count;
    uint32_t dim;
};

/* out[i] = x[0, i] + x[1, i] + ..., to what out holds if accumulate; added up in the order of the rows,
 * so that it does not matter in how many calls they come. */
struct kva_sum_rows_args {
    float *out;    /* [dim]; may be host memory of the device's (KVA_MEM_HOST) */
    const void *x; /* act [rows, dim] */
    uint32_t rows;
    uint32_t dim;
    bool accumulate;
};

/* The table of a device (kva_device_ops). */
struct kva_ops {
    void (*embed)(struct kva_device *device, const struct kva_embed_args *args);
    void (*norm)(struct kva_device *device, const struct kva_norm_args *args);
    void (*linear)(struct kva_device *device, const struct kva_linear_args *args);
    void (*linear_group)(struct kva_device *device, const struct kva_linear_group_args *args);
    void (*linear_glu)(struct kva_device *device, const struct kva_linear_glu_args *args);
    void (*rope)(struct kva_device *device, const struct kva_rope_args *args);
    void (*glu)(struct kva_device *device, const struct kva_glu_args *args);
    void (*gather)(struct kva_device *device, const struct kva_gather_args *args);
    void (*sum_rows)(struct kva_device *device, const struct kva_sum_rows_args *args);
    void (*kv_append)(struct kva_device *device, const struct kva_kv_append_args *args);
    void (*quantise)(struct kva_device *device, const struct kva_quantise_args *args);
    void (*attend)(struct kva_device *device, const struct kva_attend_args *args);
    void (*attend_lowbit)(struct kva_device *device, const struct kva_attend_lowbit_args *args);
    void (*attend_rows)(struct kva_device *device, const struct kva_attend_rows_args *args);
    void (*merge)(struct kva_device *device, const struct kva_merge_args *args);
    /* NULL: the device has no faster way than the calls that it stands for. */
    void (*attend_select_fetch)(struct kva_device *device,
                                const struct kva_attend_select_fetch_args *args);
    void (*weigh)(struct kva_device *device, const struct kva_weigh_args *args);
    void (*choose)(struct kva_device *device, const struct kva_choose_args *args);
    /* NULL: the device has no faster way than the two calls, and keeps no peaks. */
    void (*weigh_choose)(struct kva_device *device, const struct kva_weigh_choose_args *args);
    void (*accumulate)(struct kva_device *device, const struct kva_accumulate_args *args);
    void (*assign_slots)(struct kva_device *device, const struct kva_assign_slots_args *args);
    void (*fetch_rows)(struct kva_device *device, const struct kva_fetch_rows_args *args);
    void (*query_cosine)(struct kva_device *device, const struct kva_query_cosine_args *args);
    void (*shortlist)(struct kva_device *device, const struct kva_shortlist_args *args);
    void (*attend_mass)(struct kva_device *device, const struct kva_attend_mass_args *args);
    void (*mean_keys)(struct kva_device *device, const struct kva_mean_keys_args *args);
    void (*row_error)(struct kva_device *device, const struct kva_row_error_args *args);
    void (*keep)(struct kva_device *device, const struct kva_keep_args *args);
    void (*use_rows)(struct kva_device *device, const struct kva_use_rows_args *args);
    void (*store_rows)(struct kva_device *device, const struct kva_store_rows_args *args);
    void (*roll_rows)(struct kva_device *device, const struct kva_roll_rows_args *args);
    void (*sketch)(struct kva_device *device, const struct kva_sketch_args *args);
    void (*sketch_queries)(struct kva_device *device, const struct kva_sketch_queries_args *args);
    void (*sketch_sums)(struct kva_device *device, const struct kva_sketch_sums_args *args);
    void (*sketch_weigh)(struct kva_device *device, const struct kva_sketch_weigh_args *args);
    /* Both, or NULL: the device cannot attend before it has what it goes on from. */
    void (*attend_apart)(struct kva_device *device, const struct kva_attend_apart_args *args);
    void (*attend_join)(struct kva_device *device, const struct kva_attend_apart_args *args);
};

#endif
