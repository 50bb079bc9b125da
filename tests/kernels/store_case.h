/* store_case.h - stores of kept rows, as the cases of store_rows, roll_rows, row_error and mean_keys have
 * them: their shapes, 16-bit blocks full of awkward rows, and a plain model of what a store holds.
 *
 *     check_store.c       16-bit rows into a store
 *     check_roll.c        a store's rows, rotated by their index among the kept
 *     check_row_error.c   what coding would cost a row
 *     check_mean_keys.c   what is taken off keys before they are coded */
#ifndef KVA_TESTS_KERNELS_STORE_CASE_H
#define KVA_TESTS_KERNELS_STORE_CASE_H

#include "tests/kernels/checkasm.h"
#include "tests/kernels/coded_row.h"

/* Blocks of a store, and where a block's rows begin: bytes. */
#define STORE_PAGES  4
#define STORE_SLOTS  (STORE_PAGES * KVA_PAGE_TOKENS)
#define STORE_OFFSET 48u

struct store_shape {
    uint32_t kv_heads, head_dim, bits; /* 0: 16 bits */
    enum kva_dtype dtype;
    uint32_t rotary_dim; /* 0: nothing is rotated */
    enum kva_lowbit_coding coding;
    bool mean; /* keys are coded without one */
};

#define STORE_SHAPES 24
#define STORE_COUNTS 4

extern const struct store_shape store_shapes[STORE_SHAPES];
extern const uint32_t store_counts[STORE_COUNTS]; /* rows of a case */

struct kva_lowbit_format store_format(const struct store_shape *shape);
const char *store_coding_name(const struct store_shape *shape);
const char *store_mean_name(const struct store_shape *shape);

/* Of a block of the store. */
size_t store_bytes(const struct store_shape *shape);

/* --- numbers ---------------------------------------------------------------------------------- */

/* bufs[STORE_PAGES] = new 16-bit blocks. */
void store_fill_blocks(struct check *check, const struct store_shape *shape,
                       struct check_buf *bufs);

/* K or V of a token in 16-bit blocks. */
uint16_t *store_row_at(const struct store_shape *shape, const struct check_buf *bufs, uint32_t head,
                       uint32_t token, bool value);

float store_within_f16(float x);

/* A mean key of each KV head: large numbers, of either sign. */
struct check_buf store_mean_new(struct check *check, const struct store_shape *shape);

/* NULL: the shape's keys have none taken off. */
const float *store_mean_of(const struct store_shape *shape, const struct check_buf *mean);

/* Element c of the mean key of a KV head; none of a value. */
float store_mean_at(const struct store_shape *shape, const struct check_buf *mean, uint32_t head,
                    bool value, uint32_t c);

/* x = what is coded of a row, before it is turned. */
void store_load_row(const struct store_shape *shape, const struct check_buf *mean, uint32_t head,
                    bool value, const uint16_t *row, float *x);

/* The row as the shape's store has it, of numbers that are turned for it. */
void store_code_row(const struct store_shape *shape, struct coded_row *coded, float *x);

/* --- a low-bit store --------------------------------------------------------------------------- */

/* The part of a KV head in the block that has the slot. */
unsigned char *store_head(const struct store_shape *shape, const struct check_buf *bufs,
                          uint32_t head, uint32_t slot);

/* Bit, from the head's first on, of plane `plane` of channel `c` of a token. */
size_t store_bit_at(const struct store_shape *shape, bool value, uint32_t token, uint32_t c,
                    uint32_t plane);

void store_put_coded(const struct store_shape *shape, unsigned char *head, bool value,
                     uint32_t token, const struct coded_row *coded);

/* x = the row in a slot of any store, turned back; returns what its numbers may be off by. */
double store_read_row(const struct store_shape *shape, const struct check_buf *bufs, uint32_t head,
                      uint32_t slot, bool value, double *x);

/* --- rotation --------------------------------------------------------------------------------- */

/* Element c of a row rotated by a position, in fp64. */
double store_rotated(const struct store_shape *shape, const double *x, uint32_t c,
                     const float *inv_freq, double position);

void store_frequencies(float *inv_freq, uint32_t rotary_dim);

#endif
