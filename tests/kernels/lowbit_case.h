/* lowbit_case.h - a case of attend_lowbit: sequences of low-bit pages with cached rows among them,
 * what comes of attention over them, and what of a selection.
 *
 *     check_lowbit.c        makes cases and runs them
 *     lowbit_truth.c        what the result should be, and how far it may be off
 *     lowbit_selection.c    which rows may be chosen */
#ifndef KVA_TESTS_KERNELS_LOWBIT_CASE_H
#define KVA_TESTS_KERNELS_LOWBIT_CASE_H

#include "tests/kernels/checkasm.h"

#define LOWBIT_SEQS_MAX   4
#define LOWBIT_PAGES_MAX  40
#define LOWBIT_CACHED_MAX 600

/* One sequence of a case: its pages, and the positions and rows that are cache, slots aside. */
struct lowbit_seq_data {
    struct check_buf pages[LOWBIT_PAGES_MAX];
    uint32_t *positions; /* [kv_heads][LOWBIT_CACHED_MAX], ascending; the first `pinned` are 0 ..
                            pinned - 1 */
    uint32_t *counts;    /* [kv_heads] */
    uint16_t *rows;      /* [kv_heads][LOWBIT_CACHED_MAX][2][head_dim] */
    uint32_t pinned;
    uint32_t slots;
    uint32_t k;
    float successor; /* kva_choose_seq has it */
    bool cache;
};

/* Which of its tokens attend: those of the pages that no row replaces, rows, or both. */
enum lowbit_part {
    LOWBIT_PAGES,
    LOWBIT_ROWS,
    LOWBIT_BOTH,
};

/* How scores and sums are made: in fp32; from bytes, and bf16 where rows are; from f16. */
enum lowbit_precision {
    LOWBIT_PRECISE,
    LOWBIT_BYTES,
    LOWBIT_GPU,
};

struct lowbit_test {
    struct kva_attend_select_fetch_args args; /* of the whole call, without cached rows */
    struct kva_select_seq seqs[LOWBIT_SEQS_MAX];
    struct lowbit_seq_data data[LOWBIT_SEQS_MAX];
    const void *blocks[LOWBIT_SEQS_MAX * LOWBIT_PAGES_MAX];
    struct kva_partial rest; /* of all rows */
    bool with_rest;
    enum lowbit_part part; /* that the operator under test attends to */
    struct check_buf q;
    struct check_buf mean; /* key of each KV head, which pages are without; or empty */
    uint32_t rows;
};

/* Rows [first, first + rows) of the case as one call. Sequence s selects with row select[s] of its
 * own, if that is among them, and chosen[s] gets what it chose; select NULL: none does. False: it
 * touched what is not its own, or failed. */
bool lowbit_run(struct check *check, const struct check_variant *variant, struct kva_device *device,
                const struct lowbit_test *test, uint32_t first, uint32_t rows,
                const uint32_t *select, uint32_t *const *chosen, struct kva_partial out);

/* Keys and values of one sequence and KV head as doubles [positions, 2, head_dim], cached rows in
 * their places; the caller frees. */
double *lowbit_widen(const struct lowbit_test *test, uint32_t seq, uint32_t kv_head);

/* First position that a row at `position` sees. */
uint32_t lowbit_first_seen(const struct lowbit_test *test, uint32_t position);

/* Levels that round queries and weights. */
uint32_t lowbit_rounding_levels(void);

/* expect and bound of rows a [heads, head_dim], m [heads], e [heads]. */
void lowbit_truth(const struct lowbit_test *test, enum lowbit_precision precision, double *expect,
                  double *bound);

/* See struct check_case: `a` and `e` are relative to the m that was found. */
void lowbit_adjust(const struct check_case *test, const float *out, double *expect, double *bound);

/* Every variant selects: what is left out may not weigh more than what was chosen, but for `slack`
 * of the weight, or slack_rounded where queries and weights are rounded. */
void lowbit_check_selection(struct check *check, const struct lowbit_test *test, const char *name,
                            double slack, double slack_rounded);

#endif
