/* checkasm.h - the harness that checks every operator on every device.
 *
 * A variant is a backend: a capability level of the CPU, or a CUDA device, simulated or real, in
 * one format of activations; or an operator broken on purpose, which must be rejected. A case is
 * one operator on one shape and one kind of input. For each case the inputs and an fp64 reference
 * are made once, then check_case runs every variant on them and demands:
 *
 *   - every element within its own bound, and the whole within a norm bound: a bound per element
 *     alone would hide a small error everywhere, a norm alone one wrong element;
 *   - nothing written outside the output, nothing read outside the inputs: buffers end at a page
 *     that cannot be touched and begin behind a pattern that is compared (on a GPU: patterns on
 *     both sides, host_ops.h);
 *   - the same bits from the same call again, over other garbage;
 *   - the same bits with several threads as with one;
 *   - the same bits for the rows in two calls, cut anywhere, and for single rows alone;
 *   - where the operator promises it, the same bits at every level.
 *
 * What differs from backend to backend is said here once: the format that activations are rounded
 * to (results may be off by that rounding), which promises are not made (`promises`), and what it
 * can afford (`work_max`): there is one list of shapes, and a backend takes those that are not too
 * much work for it. Cases whose errors depend on how a backend multiplies have a second reference
 * for it (`rounding_levels`). */
#ifndef KVA_TESTS_KERNELS_CHECKASM_H
#define KVA_TESTS_KERNELS_CHECKASM_H

#include "kernels/backend.h"
#include "kernels/ops.h"
#include "tests/kernels/formats.h"

#include <math.h>
#include <stdbool.h>

/* Half a unit in the last place of 1, fp32: the relative error of one rounding. */
#define UNIT         0x1p-24

#define VARIANTS_MAX 8

/* The operators of struct kva_ops, in its order; then cases that have no entry of their own there.
 */
enum check_op {
    OP_EMBED,
    OP_NORM,
    OP_LINEAR,
    OP_LINEAR_GROUP,
    OP_LINEAR_GLU,
    OP_ROPE,
    OP_GLU,
    OP_GATHER,
    OP_SUM_ROWS,
    OP_KV_APPEND,
    OP_QUANTISE,
    OP_ATTEND,
    OP_ATTEND_LOWBIT,
    OP_ATTEND_ROWS,
    OP_MERGE,
    OP_ATTEND_SELECT_FETCH,
    OP_WEIGH,
    OP_CHOOSE,
    OP_WEIGH_CHOOSE,
    OP_ACCUMULATE,
    OP_ASSIGN_SLOTS,
    OP_FETCH_ROWS,
    OP_QUERY_COSINE,
    OP_SHORTLIST,
    OP_ATTEND_MASS,
    OP_MEAN_KEYS,
    OP_ROW_ERROR,
    OP_KEEP,
    OP_USE_ROWS,
    OP_STORE_ROWS,
    OP_ROLL_ROWS,
    OP_SKETCH,
    OP_SKETCH_QUERIES,
    OP_SKETCH_SUMS,
    OP_SKETCH_WEIGH,
    OP_ATTEND_APART,
    OP_ATTEND_JOIN,
    OP_TABLE_COUNT,
    OP_LINEAR_PACKED = OP_TABLE_COUNT, /* linear with packed weights */
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

/* A level beside those of enum kva_cpu_level: a CUDA device. */
#define CHECK_LEVEL_CUDA (1u << 31)

/* What ops.h promises that a backend may not keep (docs/cuda.md). */
enum check_promise {
    PROMISE_LINEAR_ROWS = 1u << 0, /* linear: a row alone has the bits that it has among others */
    PROMISE_MASKED_NAN = 1u << 1,  /* attend: a V that is no number touches only rows that see it */
};

struct check_variant {
    char name[32];
    struct kva_ops ops;      /* on host memory */
    struct kva_device *one;  /* a single thread */
    struct kva_device *many; /* several; of a GPU: the same device */
    uint32_t levels;         /* in use */
    enum kva_dtype act;
    struct kva_op_limits limits;
    uint32_t promises; /* that are kept */
    double work_max;   /* of a case, see check_wanted */
    uint32_t cuts_max; /* of a case's rows into two calls */
    uint32_t passed[OP_COUNT];
    uint32_t failed[OP_COUNT];
};

struct check {
    uint64_t seed;
    uint64_t state;     /* of the random numbers */
    bool quick;         /* fewer and smaller shapes: sanitizers */
    bool quiet;         /* failures are expected and not printed */
    bool exits;         /* at the first failure: of a mutation's process */
    enum kva_dtype act; /* numbers that stand for activations or weights are of this format */
    bool gpu;           /* a CUDA device is among the variants: the second reference is its */
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

/* `count` floats of the kind, about 1 in size unless the kind says otherwise, of check->act. */
void check_fill(struct check *check, enum check_fill fill, float *to, size_t count);
const char *check_fill_name(enum check_fill fill);

/* Round to check->act what has been made of such numbers. */
void check_round_acts(const struct check *check, float *x, size_t count);

/* A weight of such floats in `dtype`, in a buffer of its own. */
struct kva_weight check_weight(struct check *check, struct check_buf *buf, enum kva_dtype dtype,
                               enum check_fill fill, uint32_t rows, uint32_t cols);

/* A packed matrix of random codes and scales. */
struct kva_weight check_packed_weight(struct check *check, struct check_buf *buf,
                                      enum kva_dtype dtype, enum check_fill fill, uint32_t rows,
                                      uint32_t cols);

double check_weight_at(const struct kva_weight *weight, size_t index);

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
    bool out_f32;         /* the results are F32, whatever activations are */
    /* What is asked beyond common sizes: variants with lower limits are left out. 0: nothing. */
    struct kva_op_limits needs;
    uint32_t levels; /* only variants that have one of these; 0: all */
    double work;     /* as given to check_wanted */
    /* The same for variants that have one of these levels, which round their inputs. */
    uint32_t rounding_levels;
    const double *expect_rounded;
    const double *bound_rounded;
    double norm_share_rounded;
    bool rows_alone;      /* of linear: a GPU gives a row the same bits in any of its calls, too */
    uint32_t same_levels; /* variants that have one of these must give the bits of the first */
    /* Where elements are related, what they should be can depend on what some of them are:
     * attention's `a` and `e` on its `m`. Called before the comparison; may be NULL. */
    void (*adjust)(const struct check_case *test, const float *out, double *expect, double *bound);
};

/* Run the case in every variant and count it as passed or failed. */
void check_case(struct check *check, const struct check_case *test);

/* Whether a case of so much work, in products or in elements touched, is wanted: a variant affords
 * it, and the broken operator under test has not been rejected often enough. */
bool check_wanted(const struct check *check, enum check_op op, double work);

/* Cases of all operators that have failed. */
uint32_t check_failed(const struct check_variant *variant);

/* Whether the operator reads or writes activations; else one format of them says it all. */
bool check_has_activations(enum check_op op);

/* Whether all variants keep a promise. */
bool check_promised(const struct check *check, enum check_promise promise);

/* Whether the variant is to run the case. */
bool check_takes(const struct check_variant *variant, const struct check_case *test);

/* What the last calls to a variant's device did wrong beside their results: NULL, or why. */
const char *check_fault(const struct check_variant *variant, struct kva_device *device);

/* Count one case of `variant` that was checked by other means. */
void check_count(struct check *check, struct check_variant *variant, enum check_op op,
                 const char *name, bool good, const char *reason);

/* For operators that are compared with a model by other means: the next variant, and device of it,
 * that affords `work`; *run counts from 0. False: that was all. */
bool check_next_run(const struct check *check, double work, uint32_t *run,
                    struct check_variant **ret_variant, struct kva_device **ret_device);

/* Count such a run; `reason`: what was found, or NULL. */
void check_count_run(struct check *check, struct check_variant *variant, enum check_op op,
                     struct kva_device *device, const char *name, const char *reason);

/* Rows [first, first + rows) of a case whose opaque is a struct kva_linear_args: whatever the
 * weights' format is. */
bool check_run_linear(struct check *check, const struct check_variant *variant,
                      struct kva_device *device, const struct check_case *test, uint32_t first,
                      uint32_t rows, float *out);

/* Whether a GPU has a kernel for so few rows, `most`, which keeps a row's bits whatever is beside it:
 * rows of whole vectors in 16 bits. */
bool check_rows_alone(const struct check *check, const struct kva_linear_args *args, uint32_t most);

/* The cases of each operator; check_attend_lowbit has those of attend_rows, weigh and
 * attend_select_fetch, too, which are checked together. */
void check_embed(struct check *check);
void check_norm(struct check *check);
void check_linear(struct check *check);
void check_linear_group(struct check *check);
void check_linear_glu(struct check *check);
void check_rope(struct check *check);
void check_glu(struct check *check);
void check_gather(struct check *check);
void check_sum_rows(struct check *check);
void check_kv_append(struct check *check);
void check_quantise(struct check *check);
void check_attend(struct check *check);
void check_attend_lowbit(struct check *check);
void check_attend_join(struct check *check); /* with attend_apart */
void check_merge(struct check *check);
void check_choose(struct check *check);
void check_weigh_choose(struct check *check);
void check_accumulate(struct check *check);
void check_assign_slots(struct check *check);
void check_fetch_rows(struct check *check);
void check_query_cosine(struct check *check);
void check_shortlist(struct check *check);
void check_attend_mass(struct check *check);
void check_mean_keys(struct check *check);
void check_row_error(struct check *check);
void check_keep(struct check *check);
void check_use_rows(struct check *check);
void check_store_rows(struct check *check);
void check_roll_rows(struct check *check);
void check_sketch(struct check *check);
void check_sketch_queries(struct check *check);
void check_sketch_sums(struct check *check);
void check_sketch_weigh(struct check *check);
void check_linear_packed(struct check *check);

const char *check_op_name(enum check_op op);

/* Run one operator's cases. */
void check_run_op(struct check *check, enum check_op op);

/* Open the device pair of a level; false: this machine lacks it. */
bool check_variant_open(struct check_variant *variant, uint32_t level);

/* Open the CUDA device of a module; `slow`: one that is simulated or watched. False, and why. */
bool check_variant_open_cuda(struct check_variant *variant, const char *module_path,
                             enum kva_dtype act, bool slow, struct kva_err *err);
void check_variant_close(struct check_variant *variant);

/* Every broken operator must fail its cases; returns the number of those that do not. `emulated`:
 * those of the operators that level amx has, at that level in software; else at the best level of
 * this machine. */
int check_broken(struct check *check, bool emulated);

/* A handler of SIGSEGV and SIGBUS: a kernel that touches what is not its own fails its case. */
void check_on_fault(int number);

/* An operator's `adjust` where rows are partial results, a [heads][dim], m [heads], e [heads]: `a`
 * and `e` are relative to the m that was found. */
void check_adjust_partial(const struct check_case *test, size_t heads, size_t dim, const float *out,
                          double *expect, double *bound);

/* Measure `only` ("linear", "attend", "rows"), or everything: NULL. */
void check_bench(struct check *check, const char *only);

#endif
