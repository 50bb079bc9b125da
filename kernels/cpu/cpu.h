/* cpu.h - what the operators' drivers ask of the kernels of one capability level.
 *
 * An operator of ops.h is a driver, the same for every level: it cuts the work into items, hands
 * them to the pool, and calls the kernel that the device's table (device/table.c) holds.
 * Kernels are pure functions of their arguments. Whatever the items are, a kernel must give each
 * element the same bits: the order of its additions is a property of the element alone.
 *
 *   linear   An output is a sum over blocks of inputs, ascending: of KVA_CPU_LINEAR_INNER, or, in
 *            kernels of 16-bit products, KVA_CPU_LINEAR_DEPTH. A block is summed by lanes and the
 *            lanes by a fixed tree. What activations are rounded to depends on the level and the
 *            weight's format alone. Level amx sums bf16 by tiles: linear/amx.c.
 *            With packed weights every level gives the bits that packed.h says.
 *   attend   A row is a fold over splits of KVA_ATTEND_SPLIT_TOKENS positions, ascending. Within a
 *            split a score is one chain over head_dim, the sum of exponentials goes by lanes of
 *            (position % lanes), and each element of `a` is one chain over the tokens. Kernels of
 *            16-bit products take dimensions and tokens by pairs, from even positions on. Level amx
 *            sums bf16 by tiles: attend/amx.c.
 *   lowbit   A row is the same fold over splits of low-bit pages, then over its cached rows, which
 *            are a split of their own per KVA_ATTEND_SPLIT_TOKENS of them in ascending position.
 *            Quantised blocks have the same bits at every level.
 *
 *   keep     Mass of a token is one chain over rows and heads, in their order; a score is that of
 *            `attend` at the level. All else is exact and has the same bits at every level.
 *   sketch   Partial keys and scores by them are one chain of fused products each: the same bits
 *            at every level.
 *
 * Folders: attend, keep, linear, lowbit, rows, select and sketch hold the operators: driver.c, then ref.c, avx2.c
 * and so on, one file a level, body.h where levels share a text that is compiled once for each,
 * over the vectors of simd. device holds the device itself. */
#ifndef KVA_KERNELS_CPU_CPU_H
#define KVA_KERNELS_CPU_CPU_H

#include "kernels/ops.h"

#include <string.h>

/* Inputs of a linear that are summed before they are added to the total: one block of a tile's
 * weights and rows stays in the first-level cache. */
#define KVA_CPU_LINEAR_INNER 512u

/* The same for products of 16 bits, which are faster: the tree costs a share of them. */
#define KVA_CPU_LINEAR_DEPTH 2048u

/* Outputs of one linear work item at most; rows, where the kernel does not prepare them. */
#define KVA_CPU_LINEAR_OUTPUTS 96u
#define KVA_CPU_LINEAR_ROWS    96u

/* Outputs and rows of one tile of level amx. */
#define KVA_AMX_OUTPUTS 16u
#define KVA_AMX_ROWS    16u

/* (row, head) pairs of one attention work item at most. */
#define KVA_CPU_ATTEND_QUERIES 64u

/* Scratch of attention for keys and for values: room for a page as floats, or a split in pairs of
 * 16 bits. */
#define KVA_CPU_ATTEND_K_FLOATS (KVA_CPU_HEAD_DIM_MAX * KVA_PAGE_TOKENS)
#define KVA_CPU_ATTEND_V_FLOATS (KVA_CPU_HEAD_DIM_MAX * KVA_ATTEND_SPLIT_TOKENS / 2)

/* Head dimensions beyond this fail the device: they bound the scratch. Models have 256 at most. */
#define KVA_CPU_HEAD_DIM_MAX 512u

/* Memory for rows that linear_prepare has made; more rows than fit are done in turns. Taken when
 * touched. */
#define KVA_CPU_PREPARED_BYTES (32u * 1024u * 1024u)

/* Scratch of a thread, 64-byte aligned. */
#define KVA_CPU_SCRATCH_BYTES (1024u * 1024u)

/* The queries of one work item against the tokens of one split. Query j sees the slots
 * [slot_first[j], slot_end[j]) that are present; a slot is a position minus the split's first. */
struct kva_cpu_attend_split {
    const float *q;             /* [q_count, head_dim], scaled */
    const void *const *tokens;  /* [KVA_ATTEND_SPLIT_TOKENS]: 16-bit K row, V row right behind it;
                                   NULL: not in any range */
    const void *const *next;    /* the tokens of the split that comes next, to be prefetched; NULL:
                                   none comes */
    const uint32_t *slot_first; /* [q_count] */
    const uint32_t *slot_end;   /* [q_count] */
    uint32_t q_count;
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
    float *a;    /* out: [q_count, head_dim] */
    float *m;    /* out: [q_count] */
    float *e;    /* out: [q_count] */
    float *kept; /* out: [q_count][KVA_ATTEND_SPLIT_TOKENS], rows `kept_stride` apart: the scores
                      of what each query sees, -inf where no token is; NULL: nobody wants them */
    size_t kept_stride;
    float *scores; /* scratch: [KVA_CPU_ATTEND_QUERIES, KVA_ATTEND_SPLIT_TOKENS] */
    float *k;      /* scratch: [KVA_CPU_ATTEND_K_FLOATS] */
    float *v;      /* scratch: [KVA_CPU_ATTEND_V_FLOATS] */
};

/* Scores of a query's slots [first, end), which are made, are kept if they are wanted. */
static inline void kva_cpu_keep_scores(const struct kva_cpu_attend_split *split, uint32_t query,
                                       uint32_t first, uint32_t end)
{
    if (split->kept)
        memcpy(split->kept + query * split->kept_stride + first,
               split->scores + (size_t)query * KVA_ATTEND_SPLIT_TOKENS + first,
               (end - first) * sizeof(float));
}

/* One KV head of one block to be quantised. */
struct kva_cpu_quantise {
    const uint16_t *from; /* [KVA_PAGE_TOKENS][2 (K, V)][head_dim] */
    void *to;             /* kva_lowbit_head_bytes */
    uint32_t head_dim;
    uint32_t exempt; /* first tokens that do not count for the keys' levels */
    enum kva_dtype kv_dtype;
    struct kva_lowbit_format format;
    void *scratch; /* KVA_CPU_SCRATCH_BYTES */
};

/* The queries of one work item against the low-bit pages of one split. A slot is a position minus
 * the split's first; page i holds the slots from i * KVA_PAGE_TOKENS on. */
struct kva_cpu_lowbit_split {
    const float *q;             /* [q_count, head_dim], scaled */
    const void *const *pages;   /* [page_count]: the KV head's part of each block */
    const void *const *next;    /* the pages of the split that comes next, to be prefetched */
    const uint64_t *present;    /* [page_count]: bit t: token t takes part */
    const uint32_t *slot_first; /* [q_count]: slots before it are not seen */
    uint32_t page_count;        /* 1 to KVA_ATTEND_SPLIT_TOKENS / KVA_PAGE_TOKENS */
    uint32_t next_count;        /* of `next`; 0: none comes */
    uint32_t q_count;
    uint32_t head_dim;
    struct kva_lowbit_format format;
    float *a;       /* out: [q_count, head_dim] */
    float *m;       /* out: [q_count] */
    float *e;       /* out: [q_count] */
    float *weights; /* out: [q_count, KVA_ATTEND_SPLIT_TOKENS]: exp(score - m), 0 where nothing is
                       seen; slots from page_count * KVA_PAGE_TOKENS on stay as they are */
    void *scratch;  /* KVA_CPU_LOWBIT_SCRATCH_BYTES, 64-byte aligned */
};

#define KVA_CPU_LOWBIT_SCRATCH_BYTES (384u * 1024u)

/* The tokens of one page that are candidates and weigh no less than `threshold`; a weight is
 * sum_h weights[h][t] * factors[h], heads ascending. */
struct kva_cpu_lowbit_filter {
    const float *weights; /* [heads, KVA_PAGE_TOKENS], row stride `stride` */
    const float *factors; /* [heads] */
    size_t stride;
    uint32_t heads;
    float threshold;
    uint64_t candidates; /* bit t: token t may be chosen */
    float *found;        /* out: [count] weights, by ascending token */
    uint32_t *tokens;    /* out: [count] */
};

/* Queries against the keys of one split: what each gives to each slot is added to `mass`, queries
 * in their order. Query j sees the slots [0, slot_end[j]) that are present. */
struct kva_cpu_mass_split {
    const void *const *tokens; /* [KVA_ATTEND_SPLIT_TOKENS]: as kva_cpu_attend_split's */
    const float *q;            /* [q_count, head_dim], scaled */
    const float *m;            /* [q_count] */
    const float *inverse;      /* [q_count]: 1 / e */
    const uint32_t *slot_end;  /* [q_count], <= slots; they ascend */
    uint32_t q_count;          /* KVA_CPU_ATTEND_QUERIES at most */
    uint32_t slots;            /* the end of those that are present */
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
    float *mass;   /* [KVA_ATTEND_SPLIT_TOKENS]; of slots that are not present anything */
    float *scores; /* [q_count] rows of KVA_ATTEND_SPLIT_TOKENS: scratch */
    float *k;      /* [KVA_CPU_MASS_K_FLOATS]: what mass_keys has made of the keys */
    const float *const
        *scored; /* [q_count]: scores that are there already, such rows, -inf where no
                                   token is; tokens, q, k and scores do not count then. Or NULL */
};

/* Keys of slots of one page of one KV head of a store: as 16-bit rows, rotated. */
struct kva_cpu_roll_keys {
    const void *from;          /* the KV head's part of the store's block */
    uint16_t *to;              /* K row of slot 0: the KV head's rows of a 16-bit block */
    uint64_t slots;            /* bit t: slot t is wanted; nothing else is written */
    const uint32_t *positions; /* [KVA_PAGE_TOKENS]: to rotate by; of other slots anything */
    const struct kva_keep_rotary *rotary;
    const struct kva_lowbit_layout *layout;
    struct kva_lowbit_format format; /* bits 0: 16-bit rows */
    uint32_t head_dim;
    enum kva_dtype kv_dtype;
    const float *mean; /* added to coded keys; or NULL */
    void *scratch;     /* KVA_CPU_ROLL_SCRATCH_BYTES, 64-byte aligned */
};

/* A page's keys, channel by channel: as floats, then as 16 bits. */
#define KVA_CPU_ROLL_SCRATCH_BYTES                                                                 \
    (KVA_CPU_HEAD_DIM_MAX * KVA_PAGE_TOKENS * (sizeof(float) + sizeof(uint16_t)))

/* One page of one KV head: what its partial keys and the queries of some heads come to. */
struct kva_cpu_sketch_score {
    float *out;     /* [heads][KVA_PAGE_TOKENS], row stride `stride` */
    size_t stride;  /* elements */
    const float *q; /* [heads][columns] */
    uint32_t heads;
    const void *keys; /* the KV head's part of a sketch */
    enum kva_dtype kv_dtype;
    struct kva_sketch_format format;
};

/* Differences to the largest score below this are those of no number. */
#define KVA_SKETCH_FAR (-0x1p126f)

/* Room for the keys of a split as floats. */
#define KVA_CPU_MASS_K_FLOATS (KVA_CPU_HEAD_DIM_MAX * KVA_ATTEND_SPLIT_TOKENS)

/* Slots of a store that is rolled, per KV head: they bound the scratch. */
#define KVA_CPU_ROLL_SLOTS_MAX 65536u

/* Outputs [out_first, out_end) of rows [row_first, row_end). */
struct kva_cpu_linear {
    const struct kva_linear_args *args;
    const void *prepared; /* args->rows rows as linear_prepare makes them; NULL: linear_row_bytes
                             is 0 */
    uint32_t row_first;
    uint32_t row_end;
    uint32_t out_first;
    uint32_t out_end;
    uint32_t next_out; /* the first output of this thread's next item; UINT32_MAX: it has none */
    void *scratch;
};

/* Rows, or elements, [first, end) of the operator. */
struct kva_cpu_kernels {
    void (*embed)(const struct kva_embed_args *args, uint32_t first, uint32_t end);
    void (*norm)(const struct kva_norm_args *args, uint32_t first, uint32_t end);
    /* Outputs that `linear` takes at once, and rows that linear_prepare does: items and pieces are
     * multiples of them, except at the end. */
    uint32_t linear_outputs;
    uint32_t linear_rows;
    /* Bytes of a prepared row; 0: the kernel reads the rows of this weight's format as they are,
     * KVA_CPU_LINEAR_ROWS at a time. */
    size_t (*linear_row_bytes)(const struct kva_linear_args *args);
    /* prepared = rows [first, end) as `linear` wants them; row i at i * linear_row_bytes. */
    void (*linear_prepare)(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                           void *prepared);
    void (*linear)(const struct kva_cpu_linear *item);
    /* The same for packed weights, whose rows are linear/packed_row.h's at every level. Items begin
     * at panels. linear_int8: of KVA_INT8 alone. */
    void (*linear_packed_prepare)(const struct kva_linear_args *args, uint32_t first, uint32_t end,
                                  void *prepared);
    void (*linear_packed)(const struct kva_cpu_linear *item);
    void (*linear_int8)(const struct kva_cpu_linear *item);
    /* scratch: 2 * rotary_dim floats. */
    void (*rope)(const struct kva_rope_args *args, uint32_t first, uint32_t end, float *scratch);
    /* Elements [first, end) of rows * dim. */
    void (*glu)(const struct kva_glu_args *args, size_t first, size_t end);
    void (*kv_append)(const struct kva_kv_append_args *args, uint32_t first, uint32_t end);
    /* A query that sees no slot gets m = -inf, e = 0, a = 0. */
    void (*attend_split)(const struct kva_cpu_attend_split *split);
    /* (a, m, e) += (split_a, split_m, split_e), one query. */
    void (*attend_fold)(float *a, float *m, float *e, const float *split_a, float split_m,
                        float split_e, uint32_t head_dim);
    /* split->k = the keys of tokens [0, slots); nothing else of it is set. */
    void (*mass_keys)(const struct kva_cpu_mass_split *split);
    void (*mass_split)(const struct kva_cpu_mass_split *split);
    void (*roll_keys)(const struct kva_cpu_roll_keys *args);
    void (*quantise)(const struct kva_cpu_quantise *args);
    /* A query that sees no slot gets m = -inf, e = 0, a = 0. */
    void (*lowbit_split)(const struct kva_cpu_lowbit_split *split);
    /* Returns the count of what was found. */
    uint32_t (*lowbit_filter)(const struct kva_cpu_lowbit_filter *args);
    /* out[j] = q . row, for the 16-bit rows at `rows`. */
    void (*lowbit_score)(float *out, const float *q, const void *const *rows, uint32_t count,
                         uint32_t head_dim, enum kva_dtype kv_dtype);
    /* out[c] = sum_i x[i] basis[i][c], c < columns; a row of the basis is `dim` long. */
    void (*sketch_row)(float *out, const float *x, const float *basis, uint32_t dim,
                       uint32_t columns);
    void (*sketch_score)(const struct kva_cpu_sketch_score *args);
    /* The largest of scores [count] that are numbers; else -inf. */
    float (*sketch_most)(const float *scores, uint32_t count);
    /* out[t] = exp of the largest scores[h][t] - most[h]; -1: none is a number. */
    void (*sketch_weights)(float *out, const float *scores, size_t stride, const float *most,
                           uint32_t heads, uint32_t count);
    /* (row, head) pairs [first, end); scratch: partial_count floats. */
    void (*merge)(const struct kva_merge_args *args, uint32_t first, uint32_t end, float *scratch);
    /* The sum of exp((logit - limit) / temperature) over those of logits [count] that are less than
     * `limit`, in double precision. What is not a number is not less. */
    double (*exp_sum)(const float *logits, uint32_t count, float limit, float temperature);
};

/* The kernels of one level. A level need not have all of them: table.c says which it has, and the
 * device takes the others from the levels below. */
#define KVA_CPU_KERNELS_DECLARE(level)                                                             \
    void kva_embed_##level(const struct kva_embed_args *args, uint32_t first, uint32_t end);       \
    void kva_norm_##level(const struct kva_norm_args *args, uint32_t first, uint32_t end);         \
    void kva_rope_##level(const struct kva_rope_args *args, uint32_t first, uint32_t end,          \
                          float *scratch);                                                         \
    void kva_glu_##level(const struct kva_glu_args *args, size_t first, size_t end);               \
    void kva_kv_append_##level(const struct kva_kv_append_args *args, uint32_t first,              \
                               uint32_t end);                                                      \
    void kva_merge_##level(const struct kva_merge_args *args, uint32_t first, uint32_t end,        \
                           float *scratch);                                                        \
    double kva_exp_sum_##level(const float *logits, uint32_t count, float limit,                   \
                               float temperature);                                                 \
    size_t kva_linear_row_bytes_##level(const struct kva_linear_args *args);                       \
    void kva_linear_prepare_##level(const struct kva_linear_args *args, uint32_t first,            \
                                    uint32_t end, void *prepared);                                 \
    void kva_linear_##level(const struct kva_cpu_linear *item);                                    \
    void kva_linear_packed_prepare_##level(const struct kva_linear_args *args, uint32_t first,     \
                                           uint32_t end, void *prepared);                          \
    void kva_linear_packed_##level(const struct kva_cpu_linear *item);                             \
    void kva_linear_int8_##level(const struct kva_cpu_linear *item);                               \
    void kva_attend_split_##level(const struct kva_cpu_attend_split *split);                       \
    void kva_attend_fold_##level(float *a, float *m, float *e, const float *split_a,               \
                                 float split_m, float split_e, uint32_t head_dim);                 \
    void kva_mass_keys_##level(const struct kva_cpu_mass_split *split);                            \
    void kva_mass_split_##level(const struct kva_cpu_mass_split *split);                           \
    void kva_roll_keys_##level(const struct kva_cpu_roll_keys *args);                              \
    void kva_quantise_##level(const struct kva_cpu_quantise *args);                                \
    void kva_lowbit_split_##level(const struct kva_cpu_lowbit_split *split);                       \
    uint32_t kva_lowbit_filter_##level(const struct kva_cpu_lowbit_filter *args);                  \
    void kva_lowbit_score_##level(float *out, const float *q, const void *const *rows,             \
                                  uint32_t count, uint32_t head_dim, enum kva_dtype kv_dtype);     \
    void kva_sketch_row_##level(float *out, const float *x, const float *basis, uint32_t dim,      \
                                uint32_t columns);                                                 \
    void kva_sketch_score_##level(const struct kva_cpu_sketch_score *args);                        \
    float kva_sketch_most_##level(const float *scores, uint32_t count);                            \
    void kva_sketch_weights_##level(float *out, const float *scores, size_t stride,                \
                                    const float *most, uint32_t heads, uint32_t count);

KVA_CPU_KERNELS_DECLARE(ref)
KVA_CPU_KERNELS_DECLARE(avx2)
KVA_CPU_KERNELS_DECLARE(avx512)
KVA_CPU_KERNELS_DECLARE(avx512vnni)
KVA_CPU_KERNELS_DECLARE(avx512gfni)
KVA_CPU_KERNELS_DECLARE(avx512bf16)
KVA_CPU_KERNELS_DECLARE(amx)

/* Levels that both this build and this machine have. AMX is among them if the operating system
 * lets this process use its tiles, which is asked for here. */
uint32_t kva_cpu_levels(void);

/* Whether the machine multiplies matrices of bits (GFNI): of those of level avx512bf16 nearly all. */
bool kva_cpu_has_gfni(void);

/* Fill the table from the levels in `mask` (0: all), lowest first; the reference level is always
 * the bottom. `emulated`: levels that count as there. *ret_levels: those in use. Fails: KVA_EINVAL
 * (a level that is not there). */
KVA_MUST_CHECK enum kva_status kva_cpu_kernels_fill(uint32_t mask, uint32_t emulated,
                                                    struct kva_cpu_kernels *kernels,
                                                    uint32_t *ret_levels, struct kva_err *err);

/* "avx512": the name of one level. */
const char *kva_cpu_level_name(uint32_t level);

#endif
