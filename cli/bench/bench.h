/* bench.h - the inside of `kvahead bench`: what is measured, under which memory plan, and how it is
 * told.
 *
 *     options -> lists -> plan (which sequences fit) -> rows, measured one by one -> tables or JSON
 *
 * Sequences get their depth without running the model (kva_model_engine_fill); everything that is
 * timed is a step of the engine as the server runs it.
 *
 * Thread rule: main thread. */
#ifndef KVA_CLI_BENCH_H
#define KVA_CLI_BENCH_H

#include "cli/instance.h"
#include "kernels/profile.h"

#define KVA_BENCH_LIST_MAX    32u
#define KVA_BENCH_SAMPLES_MAX 1000u

/* "1,4,8": whole numbers, each at most `max`. */
struct kva_bench_list {
    uint32_t values[KVA_BENCH_LIST_MAX];
    uint32_t count;
};

/* Zeros are left out unless `zeros`. Fails: KVA_EINVAL (names the option). */
KVA_MUST_CHECK enum kva_status kva_bench_parse_list(const char *text, const char *option,
                                                    uint32_t max, bool zeros,
                                                    struct kva_bench_list *ret,
                                                    struct kva_err *err);

/* --- the memory plan ------------------------------------------------------------------------- */

/* What may be used. `total` bounds both tiers together: on the CPU they are one memory. */
struct kva_bench_memory {
    uint64_t device;
    uint64_t host;
    uint64_t total;
};

/* What one sequence takes: alone, and beside one that begins alike. */
struct kva_bench_need {
    struct kva_tier_bytes own;
    struct kva_tier_bytes shared;
};

/* Sequences that decode together, `distinct` of them with KV of their own. The others share the
 * closed pages of one of those, in turn, so that equal pages are read as far apart as can be. */
struct kva_bench_group {
    uint32_t sequences;
    uint32_t distinct;
    struct kva_tier_bytes bytes;
};

/* The largest group of at most `wanted` sequences that fits; of its sequences as many distinct as
 * fit. sequences 0: not even one does. */
struct kva_bench_group kva_bench_plan(const struct kva_bench_memory *memory,
                                      const struct kva_bench_need *need, uint32_t wanted);

/* --- rows ------------------------------------------------------------------------------------ */

/* Policies of one run. */
#define KVA_BENCH_SPECS_MAX 16u

enum kva_bench_kind {
    KVA_BENCH_PREFILL, /* one prompt, nothing else */
    KVA_BENCH_DECODE,  /* steps of `batch` sequences */
    KVA_BENCH_MIXED,   /* the same, each with a share of a prompt's prefill */
};

struct kva_bench_row {
    enum kva_bench_kind kind;
    const char *policy; /* as it was asked for */
    uint32_t prompt_tokens;
    uint32_t batch;
    uint32_t depth;
    uint32_t distinct;
    char skipped[KVA_ERR_MESSAGE_MAX]; /* why there is no figure; "": there is */

    /* A sample is a step; of prefill, a whole prompt. Ascending. */
    double *samples_s; /* [sample_count] */
    uint32_t sample_count;
    double seconds; /* of all samples */
    uint64_t decoded_tokens, prefilled_tokens;
    struct kva_profile_counts counts; /* of all samples */
    struct kva_counts counted;        /* by the engine, of all samples */
    struct kva_tier_bytes used;       /* of both tiers while it was measured */
};

double kva_bench_median(const struct kva_bench_row *row);
/* Distance of the quartiles, as a part of the median. */
double kva_bench_spread(const struct kva_bench_row *row);

struct kva_bench {
    const struct kva_config *config;
    struct kva_cli_instance instance;
    struct kva_profile profile;
    struct kva_bench_list prefill, batch, depth;
    struct kva_kv_spec specs[KVA_BENCH_SPECS_MAX]; /* the policies to be measured */
    const char *labels[KVA_BENCH_SPECS_MAX];       /* as they were asked for */
    uint32_t spec_count;
    struct kva_bench_memory memory;    /* beside one prompt's residual stream ... */
    uint64_t stream_bytes;             /* ... which has so much of either tier */
    uint64_t available_bytes;          /* of memory when the plan was made */
    struct kva_device_roofs roofs;     /* before the rows */
    struct kva_device_roofs roofs_end; /* after them */
    struct kva_bench_row *rows;
    uint32_t row_count, rows_max;
};

/* Called after each row. */
typedef void (*kva_bench_row_fn)(const struct kva_bench *bench, const struct kva_bench_row *row);

/* Measures one policy's rows with the engine as it is open. Fails only where the engine does;
 * what does not fit is a row that says so. */
KVA_MUST_CHECK enum kva_status kva_bench_measure(struct kva_bench *bench,
                                                 const struct kva_kv_spec *spec,
                                                 kva_bench_row_fn done, struct kva_err *err);

/* Sequences of the deepest batch and the steps that one sequence lives through. */
uint32_t kva_bench_sequences(const struct kva_bench *bench);
uint32_t kva_bench_steps(const struct kva_bench *bench);

/* What a sequence of this depth needs, all steps included. */
struct kva_bench_need kva_bench_need(const struct kva_bench *bench, const struct kva_kv_spec *spec,
                                     uint32_t depth);

/* --- what people and programs read ----------------------------------------------------------- */

void kva_bench_print_head(const struct kva_bench *bench);
void kva_bench_print_row(const struct kva_bench *bench, const struct kva_bench_row *row);
void kva_bench_print_end(const struct kva_bench *bench);

/* All of it as one JSON document, with what ended it early unless `error` is NULL. */
void kva_bench_json(const struct kva_bench *bench, const char *error, struct kva_buf *out);

#endif
