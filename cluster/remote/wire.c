/* wire.c - see wire.h. */
#include "cluster/remote/wire.h"

enum {
    QUESTION_BYTES = 16,
    ENTRY_BYTES = 16,
    ANSWER_BYTES = 12,
    LAYERS_MAX = 1 << 16,
    POSITION_MAX = UINT32_MAX,
};

/* --- numbers ----------------------------------------------------------------------------------- */

static void write_number(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t read_number(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

/* --- sizes ------------------------------------------------------------------------------------- */

size_t kva_wire_question_bytes(uint32_t count)
{
    return QUESTION_BYTES + (size_t)count * ENTRY_BYTES;
}

size_t kva_wire_answer_bytes(uint32_t count)
{
    return ANSWER_BYTES + (size_t)count;
}

size_t kva_wire_query_bytes(const struct kva_wire_shape *shape, uint32_t rows)
{
    return (size_t)rows * shape->heads * shape->head_dim * kva_dtype_bytes(shape->act);
}

size_t kva_wire_partial_bytes(const struct kva_wire_shape *shape, uint32_t rows)
{
    return (size_t)rows * shape->heads * (shape->head_dim + 2) * sizeof(float);
}

enum kva_status kva_wire_check_shape(const struct kva_wire_shape *shape, struct kva_err *err)
{
    const uint64_t limit = 1u << 30;
    if (shape->heads == 0 || shape->head_dim == 0 || shape->rows_max == 0 || shape->heads > 65536 ||
        shape->head_dim > 65536 || shape->layers == 0 || shape->layers > LAYERS_MAX)
        return kva_fail(err, KVA_EINVAL,
                        "%u heads of %u numbers in %u layers, %u rows: not a model's shape",
                        shape->heads, shape->head_dim, shape->layers, shape->rows_max);
    if (shape->act != KVA_F32 && shape->act != KVA_F16 && shape->act != KVA_BF16)
        return kva_fail(err, KVA_EINVAL, "queries in format %d", (int)shape->act);
    uint64_t row = (uint64_t)shape->heads * (shape->head_dim + 2) * sizeof(float);
    if (shape->rows_max > limit / row || shape->rows_max > limit / ENTRY_BYTES)
        return kva_fail(err, KVA_EINVAL, "%u rows of %llu bytes: frames have at most %llu",
                        shape->rows_max, (unsigned long long)row, (unsigned long long)limit);
    return KVA_OK;
}

/* --- questions --------------------------------------------------------------------------------- */

void kva_wire_write_question(uint8_t *header, uint64_t id, uint32_t layer, uint32_t count)
{
    write_number(header, id, 8);
    write_number(header + 8, layer, 4);
    write_number(header + 12, count, 4);
}

void kva_wire_write_entry(uint8_t *header, uint32_t index, const struct kva_wire_entry *entry)
{
    uint8_t *at = header + kva_wire_question_bytes(index);
    write_number(at, entry->loan, 8);
    write_number(at + 8, entry->row_count, 4);
    write_number(at + 12, entry->position_first, 4);
}

static enum kva_status read_entries(const struct kva_wire_shape *shape, const uint8_t *at,
                                    uint32_t count, struct kva_wire_entry *entries,
                                    uint32_t *ret_rows, struct kva_err *err)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < count; i++, at += ENTRY_BYTES) {
        struct kva_wire_entry *entry = &entries[i];
        entry->loan = read_number(at, 8);
        entry->row_count = (uint32_t)read_number(at + 8, 4);
        entry->position_first = (uint32_t)read_number(at + 12, 4);
        if (entry->row_count == 0 || entry->row_count > shape->rows_max - rows)
            return kva_fail(err, KVA_EFORMAT, "entry %u has %u rows, 1 to %u are left", i,
                            entry->row_count, shape->rows_max - rows);
        if (entry->position_first > POSITION_MAX - entry->row_count)
            return kva_fail(err, KVA_EFORMAT, "entry %u has %u rows from position %u", i,
                            entry->row_count, entry->position_first);
        rows += entry->row_count;
    }
    *ret_rows = rows;
    return KVA_OK;
}

enum kva_status kva_wire_read_question(const struct kva_wire_shape *shape, const void *header,
                                       size_t header_bytes, size_t data_bytes,
                                       struct kva_wire_question *ret,
                                       struct kva_wire_entry *ret_entries, struct kva_err *err)
{
    const uint8_t *at = header;
    if (header_bytes < QUESTION_BYTES)
        return kva_fail(err, KVA_EFORMAT, "a question whose header has %zu bytes, not %d",
                        header_bytes, QUESTION_BYTES);
    struct kva_wire_question question = {.id = read_number(at, 8),
                                         .layer = (uint32_t)read_number(at + 8, 4),
                                         .count = (uint32_t)read_number(at + 12, 4)};
    if (question.id == 0 || question.layer >= shape->layers)
        return kva_fail(err, KVA_EFORMAT, "question %llu is about layer %u of %u",
                        (unsigned long long)question.id, question.layer, shape->layers);
    if (question.count == 0 || question.count > shape->rows_max)
        return kva_fail(err, KVA_EFORMAT, "a question with %u entries, not 1 to %u", question.count,
                        shape->rows_max);
    if (header_bytes != kva_wire_question_bytes(question.count))
        return kva_fail(err, KVA_EFORMAT, "%u entries have %zu bytes, not %zu", question.count,
                        header_bytes, kva_wire_question_bytes(question.count));
    enum kva_status status =
        read_entries(shape, at + QUESTION_BYTES, question.count, ret_entries, &question.rows, err);
    if (status)
        return status;
    if (data_bytes != kva_wire_query_bytes(shape, question.rows))
        return kva_fail(err, KVA_EFORMAT, "queries of %u rows have %zu bytes, not %zu",
                        question.rows, data_bytes, kva_wire_query_bytes(shape, question.rows));
    *ret = question;
    return KVA_OK;
}

/* --- answers ----------------------------------------------------------------------------------- */

void kva_wire_write_answer(uint8_t *header, uint64_t id, const bool *found, uint32_t count)
{
    write_number(header, id, 8);
    write_number(header + 8, count, 4);
    for (uint32_t i = 0; i < count; i++)
        header[ANSWER_BYTES + i] = found[i];
}

enum kva_status kva_wire_read_answer_id(const void *header, size_t header_bytes, uint64_t *ret_id,
                                        struct kva_err *err)
{
    if (header_bytes < ANSWER_BYTES)
        return kva_fail(err, KVA_EFORMAT, "an answer whose header has %zu bytes, not %d",
                        header_bytes, ANSWER_BYTES);
    *ret_id = read_number(header, 8);
    return KVA_OK;
}

enum kva_status kva_wire_read_answer(const struct kva_wire_shape *shape, const uint32_t *row_counts,
                                     uint32_t count, const void *header, size_t header_bytes,
                                     size_t data_bytes, bool *ret_found, struct kva_err *err)
{
    const uint8_t *at = header;
    size_t want = 0;
    if (header_bytes != kva_wire_answer_bytes(count) || read_number(at + 8, 4) != count)
        return kva_fail(
            err, KVA_EFORMAT, "an answer to %llu entries in %zu bytes, not to %u in %zu",
            header_bytes < ANSWER_BYTES ? 0ull : (unsigned long long)read_number(at + 8, 4),
            header_bytes, count, kva_wire_answer_bytes(count));
    for (uint32_t i = 0; i < count; i++) {
        uint8_t found = at[ANSWER_BYTES + i];
        if (found > 1)
            return kva_fail(err, KVA_EFORMAT, "entry %u of an answer is found %u times", i, found);
        want += found ? kva_wire_partial_bytes(shape, row_counts[i]) : 0;
    }
    if (data_bytes != want)
        return kva_fail(err, KVA_EFORMAT, "an answer with %zu bytes of results, not %zu",
                        data_bytes, want);
    for (uint32_t i = 0; i < count; i++)
        ret_found[i] = at[ANSWER_BYTES + i];
    return KVA_OK;
}
