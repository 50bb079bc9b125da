/* forecast.h - what a GPU's ceilings allow: the largest batch within a memory budget, the time of a
 * step or a prompt, and which limit binds. Nothing is measured here: the same formulas give the
 * predictions of docs/results/gpu.md and the roofs beside measurements.
 *
 * A step takes at least: reading the weights, or their products for all rows; reading what
 * attention reads, or its products, in tiles of 16 rows a KV head; beside that, fetched rows over
 * the link. Policies that keep some tokens multiply queries and 16-bit keys once more, to know what
 * tokens were given, and need no host; the prompt that comes last lies beside them whole. Where queries are rehearsed their weights are read twice, and partial keys besides; rows
 * are due a layer later, so what the link takes in a step is beside what all layers take. */
#ifndef KVA_TESTS_CUDA_FORECAST_H
#define KVA_TESTS_CUDA_FORECAST_H

#include "kernels/ops.h"

struct ceilings {
    double memory_bytes_per_s; /* read and written in a copy */
    double link_bytes_per_s;
    double flops_per_s;  /* 16-bit matrix products */
    double cycles_per_s; /* of all multiprocessors; 0: not known, instructions take no time */
};

struct shape {
    const char *name;
    uint32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab;
};

/* Mistral-7B. */
extern const struct shape shape_mistral;

enum kv_kind {
    KV_FULL,
    KV_KIVI,     /* R = 64, as specache */
    KV_SPECACHE, /* R = 64, k = 64, 4 sinks, delta fetch, a second row */
    KV_PREVIOUS, /* the same with predictor=prev-query, which has no second row */
    KV_OFFLOAD,  /* every page from the host in every step */
    KV_AHEAD, /* infinigen: partial keys by 30% of the columns in 8 bits, two whole layers, R = 64 */
    KV_H2O,   /* a fifth of the tokens, R = 64; keys are read twice */
    KV_QHITTER, /* the same in few bits */
};

struct case_of_kv {
    enum kv_kind kind;
    uint32_t bits; /* 1, 2; of q-hitter 2, 3, 4 or 8 */
    uint32_t tokens;
    uint32_t
        rows; /* of infinigen, per KV head and layer; 0: a fifth of the tokens, which is its cap */
};

/* Rows that are fetched anew of those chosen; the rest is there from before (kv.md: overlap of 60%
 * to 90%). */
#define FETCHED_SHARE 0.35

/* The host tier that batches must fit, bytes. */
#define HOST_BYTES 120e9

struct batch {
    uint32_t sequences;
    bool by_host; /* else the card binds */
};

/* The most sequences that fit `gpu_bytes` of device memory beside the weights, and the host. */
struct batch forecast_batch(const struct shape *shape, const struct case_of_kv *kv,
                            double gpu_bytes);

struct forecast {
    double linear_s, attend_s, link_s, head_s; /* head_s is part of linear_s */
    double step_s;
    double issue_s;                               /* instructions beyond the time of attend_s */
    double scores_s, folds_s, launches_s, plan_s; /* the step's own work */
    double bound_s;                               /* with all of that */
    bool by_flops; /* the linear operators wait for products, not for weights */
    bool by_link;
};

struct forecast forecast_step(const struct shape *shape, const struct ceilings *ceilings,
                              const struct case_of_kv *kv, uint32_t sequences);

/* Seconds of a whole prompt at the peak of matrix products. */
double forecast_prefill(const struct shape *shape, const struct ceilings *ceilings,
                        uint32_t tokens);

double forecast_weight_bytes(const struct shape *shape);

/* What most of bound_s is. */
const char *forecast_binds(const struct forecast *forecast);

/* "host", "card", "GEMM rows" or "link": what would have to grow for more tokens per second. */
const char *forecast_limit(const struct batch *batch, const struct forecast *forecast);

#endif
