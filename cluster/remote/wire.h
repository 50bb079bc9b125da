/* wire.h - what debtor and creditor say to each other in every layer, as frames of a link.
 *
 *     QUESTION  header  id u64, layer u32, count u32,
 *                       count times loan u64, row_count u32, position_first u32
 *               data    q of all entries in order, act [rows, heads, head_dim]
 *     ANSWER    header  id u64, count u32, count times found u8 (0 or 1)
 *               data    of each entry that was found, in order:
 *                       a f32 [row_count, heads, head_dim], m and e f32 [row_count, heads]
 *
 * Little-endian, without padding, and exactly as long as the header says; what is read has been
 * checked against the shape, so that nobody checks a range again. Numbers of tensors are as in
 * memory: both sides have to be little-endian, and to be of one model (members are, of which each
 * sees only those with its own).
 *
 * Thread rule: none; no state. */
#ifndef KVA_CLUSTER_REMOTE_WIRE_H
#define KVA_CLUSTER_REMOTE_WIRE_H

#include "base/err.h"
#include "kernels/dtype.h"

enum { KVA_WIRE_QUESTION = 1, KVA_WIRE_ANSWER = 2 }; /* kinds of frames */

/* What both sides know. */
struct kva_wire_shape {
    uint32_t heads, head_dim, layers;
    enum kva_dtype act;
    uint32_t rows_max; /* of a question, and so of its entries */
};

struct kva_wire_entry {
    uint64_t loan;
    uint32_t row_count;
    uint32_t position_first;
};

struct kva_wire_question {
    uint64_t id;
    uint32_t layer;
    uint32_t count; /* entries, 1 or more */
    uint32_t rows;  /* of all of them */
};

/* A shape whose largest frame a link can carry. Fails: KVA_EINVAL, named. */
KVA_MUST_CHECK enum kva_status kva_wire_check_shape(const struct kva_wire_shape *shape,
                                                    struct kva_err *err);

/* Bytes of headers, and of data of so many rows. */
size_t kva_wire_question_bytes(uint32_t count);
size_t kva_wire_answer_bytes(uint32_t count);
size_t kva_wire_query_bytes(const struct kva_wire_shape *shape, uint32_t rows);
size_t kva_wire_partial_bytes(const struct kva_wire_shape *shape, uint32_t rows);

/* Write the header of a question, then its entries one by one. */
void kva_wire_write_question(uint8_t *header, uint64_t id, uint32_t layer, uint32_t count);
void kva_wire_write_entry(uint8_t *header, uint32_t index, const struct kva_wire_entry *entry);

/* Read one; entries [rows_max]. Fails: KVA_EFORMAT, with both numbers. */
KVA_MUST_CHECK enum kva_status
kva_wire_read_question(const struct kva_wire_shape *shape, const void *header, size_t header_bytes,
                       size_t data_bytes, struct kva_wire_question *ret,
                       struct kva_wire_entry *ret_entries, struct kva_err *err);

void kva_wire_write_answer(uint8_t *header, uint64_t id, const bool *found, uint32_t count);

/* Which question an answer is to. Fails: KVA_EFORMAT. */
KVA_MUST_CHECK enum kva_status kva_wire_read_answer_id(const void *header, size_t header_bytes,
                                                       uint64_t *ret_id, struct kva_err *err);

/* Read the answer to a question whose entries had `row_counts` [count]. Fails: KVA_EFORMAT. */
KVA_MUST_CHECK enum kva_status kva_wire_read_answer(const struct kva_wire_shape *shape,
                                                    const uint32_t *row_counts, uint32_t count,
                                                    const void *header, size_t header_bytes,
                                                    size_t data_bytes, bool *ret_found,
                                                    struct kva_err *err);

#endif
