/* checkasm.h - the harness that checks every operator in every variant.
 *
 * A variant is a capability level, or a deliberately broken operator that must be rejected. A case
 * is one operator on one shape and one kind of input. For each case the inputs and an fp64
 * reference are made once, then check_case runs every variant on them and demands:
 *
 *   - every element within its own bound, and the whole within a norm bound: a bound per element
 *     alone would hide a small error everywhere, a norm alone one wrong element;
 *   - nothing written outside the output, nothing read outside the inputs: buffers end at a page
 *     that cannot be touched and begin behind a pattern that is compared;
 *   - the same bits from the same call again, over other garbage;
 *   - the same bits with several threads as with one;
 *   - the same bits for the rows in two calls, cut anywhere, and for single rows alone;
 *   - where the operator promises it, the same bits at every level. */
#ifndef KVA_TESTS_KERNELS_CHECKASM_H
#define KVA_TESTS_KERNELS_CHECKASM_H

#include "kernels/ops.h"

#include <math.h>
#include <stdbool.h>

/* Half a unit in the last place of 1, fp32: the relative error of one rounding. */
#define UNIT         0x1p-24

#define VARIANTS_MAX 8

enum check_op {
    OP_EMBED,
    OP_NORM,
    OP_LINEAR,
    OP_LINEAR_INT8,
    OP_ROPE,
    OP_GLU,
    OP_KV_APPEND,
    OP_ATTEND,
    OP_QUANTISE,
    OP_ATTEND_LOWBIT,
    OP_MERGE,
    OP_GATHER,
    OP_COUNT,
};

enum check_fill {
    FILL_NORMAL,
    FILL_ZERO,
    FILL_ONE_HOT,
    FILL_LARGE,
    FILL_DENORMAL,
    FILL_COUNT,
};

struct check_variant {
    char name[32];
    struct kva_ops ops;
    struct kva_device *one;  /* a single thread */
    struct kva_device *many; /* several */
    uint32_t levels;         /* in use */
    uint32_t passed[OP_COUNT];
    uint32_t failed[OP_COUNT];
};

struct check {
    uint64_t seed;
    uint64_t state; /* of the random numbers */
    bool quick;     /* fewer and smaller shapes: sanitizers */
    bool quiet;     /* failures are expected and not printed */
    uint32_t variant_count;
    struct check_variant variants[VARIANTS_MAX];
};

/* Memory that ends where nothing may be touched. */
struct check_buf {
    void *data;
    size_t bytes;
    unsigned char *map;
    size_t map_bytes;
};

struct check_buf check_buf_new(size_t bytes);
void check_buf_free(struct check_buf *buf);

/* Fill with bytes that differ from call to call; floats among them may be NaN. */
void check_buf_garbage(struct check *check, struct check_buf *buf);

/* Whether what lies before the data is untouched. */
bool check_buf_intact(const struct check_buf *buf);

uint64_t check_random(struct check *check);
uint32_t check_below(struct check *check, uint32_t limit); /* 0 .. limit - 1 */
uint32_t check_between(struct check *check, uint32_t low, uint32_t high);
float check_normal(struct check *check);

/* `count` floats of the kind, about 1 in size unless the kind says otherwise. */
void check_fill(struct check *check, enum check_fill fill, float *to, size_t count);
const char *check_fill_name(enum check_fill fill);

/* A weight of such floats in `dtype`, in a buffer of its own. */
struct kva_weight check_weight(struct check *check, struct check_buf *buf, enum kva_dtype dtype,
                               enum check_fill fill, uint32_t rows, uint32_t cols);

/* The number that a 16-bit pattern stands for, and the nearest pattern with saturation: computed
 * apart from the kernels' own conversions. */
double check_widen(uint16_t bits, enum kva_dtype dtype);
uint16_t check_narrow(float value, enum kva_dtype dtype);
double check_weight_at(const struct kva_weight *weight, size_t index);

/* What a number is to the products of level avx512bf16: rounded to bf16, and 0 below the normal
 * numbers. */
double check_round_bf16(double value);

struct check_case;

/* Run rows [first, first + rows) of the case into `out`, whose row 0 is row `first`. `out` is
 * guarded, holds the case's `initial` rows or garbage, and has the case's stride. */
typedef bool check_run(struct check *check, const struct check_variant *variant,
                       struct kva_device *device, const struct check_case *test, uint32_t first,
                       uint32_t rows, float *out);

struct check_case {
    enum check_op op;
    char name[160];
    check_run *run;
    const void *opaque;
    uint32_t rows;
    uint32_t cols;
    uint32_t stride;      /* of out, elements */
    const float *initial; /* [rows, cols] that out holds before; NULL: garbage */
    const double *expect; /* [rows, cols] */
    const double *bound;  /* [rows, cols]: largest error of each element */
    double norm_share;    /* sqrt(sum error^2) <= norm_share * sqrt(sum bound^2) */
    /* The same for variants that have one of these levels, which round their inputs. */
    uint32_t rounding_levels;
    const double *expect_rounded;
    const double *bound_rounded;
    double norm_share_rounded;
    uint32_t same_levels; /* variants that have one of these must give the bits of the first */
    /* Where elements are related, what they should be can depend on what some of them are:
     * attention's `a` and `e` on its `m`. Called before the comparison; may be NULL. */
    void (*adjust)(const struct check_case *test, const float *out, double *expect, double *bound);
};

/* Run the case in every variant and count it as passed or failed. */
void check_case(struct check *check, const struct check_case *test);

/* Whether the broken operator under test has been rejected often enough to go on to the next. */
bool check_enough(const struct check *check, enum check_op op);

/* Count one case of `variant` that was checked by other means. */
void check_count(struct check *check, struct check_variant *variant, enum check_op op,
                 const char *name, bool good, const char *reason);

/* Rows [first, first + rows) of a case whose opaque is a struct kva_linear_args: whatever the
 * weights' format is. */
bool check_run_linear(struct check *check, const struct check_variant *variant,
                      struct kva_device *device, const struct check_case *test, uint32_t first,
                      uint32_t rows, float *out);

/* The cases of each operator. */
void check_embed(struct check *check);
void check_norm(struct check *check);
void check_linear(struct check *check);
void check_linear_int8(struct check *check);
void check_rope(struct check *check);
void check_glu(struct check *check);
void check_kv_append(struct check *check);
void check_attend(struct check *check);
void check_quantise(struct check *check);
void check_attend_lowbit(struct check *check);
void check_merge(struct check *check);
void check_gather(struct check *check);

const char *check_op_name(enum check_op op);

/* Run one operator's cases. */
void check_run_op(struct check *check, enum check_op op);

/* Open the device pair of a level; false: this machine lacks it. */
bool check_variant_open(struct check_variant *variant, uint32_t level);
void check_variant_close(struct check_variant *variant);

/* Every broken operator must fail its cases; returns the number of those that do not. `emulated`:
 * those of the operators that level amx has, at that level in software; else at the best level of
 * this machine. */
int check_broken(struct check *check, bool emulated);

/* An operator's `adjust` where rows are partial results, a [heads][dim], m [heads], e [heads]: `a`
 * and `e` are relative to the m that was found. */
void check_adjust_partial(const struct check_case *test, size_t heads, size_t dim, const float *out,
                          double *expect, double *bound);

/* Measure `only` ("linear", "attend", "rows"), or everything: NULL. */
void check_bench(struct check *check, const char *only);

#endif
