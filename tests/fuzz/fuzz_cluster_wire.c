/* fuzz_cluster_wire.c - a question or an answer of attention at a distance, from any header. Bytes:
 * which of the two, how many bytes of data come with it (three bytes, one unused), the header. What is accepted is
 * within its bounds, and written again it is the same bytes. */
#include "tests/fuzz/fuzz.h"

#include "cluster/remote/wire.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 16, PREFIX = 5 };

static const struct kva_wire_shape shape = {
    .heads = 4, .head_dim = 16, .layers = 32, .act = KVA_BF16, .rows_max = ROWS_MAX};

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check_question(const uint8_t *header, size_t size, size_t data_bytes)
{
    struct kva_wire_question question;
    struct kva_wire_entry entries[ROWS_MAX];
    uint8_t again[512];
    uint32_t rows = 0;
    struct kva_err err = {0};
    enum kva_status status =
        kva_wire_read_question(&shape, header, size, data_bytes, &question, entries, &err);
    require(status == KVA_OK || (status == KVA_EFORMAT && err.message[0]));
    if (status)
        return;
    require(question.id != 0 && question.layer < shape.layers);
    require(question.count > 0 && question.count <= ROWS_MAX);
    require(kva_wire_question_bytes(question.count) == size && size <= sizeof(again));
    kva_wire_write_question(again, question.id, question.layer, question.count);
    for (uint32_t i = 0; i < question.count; i++) {
        require(entries[i].row_count > 0 && entries[i].row_count <= ROWS_MAX);
        require(entries[i].position_first + entries[i].row_count > entries[i].position_first);
        kva_wire_write_entry(again, i, &entries[i]);
        rows += entries[i].row_count;
    }
    require(rows == question.rows && rows <= ROWS_MAX);
    require(data_bytes == kva_wire_query_bytes(&shape, rows));
    require(memcmp(again, header, size) == 0);
}

static void check_answer(const uint8_t *header, size_t size, size_t data_bytes)
{
    static const uint32_t rows[] = {1, 9, 2, 4};
    const uint32_t count = KVA_COUNT_OF(rows);
    bool found[KVA_COUNT_OF(rows)];
    uint8_t again[64];
    uint64_t id;
    size_t bytes = 0;
    struct kva_err err = {0};
    enum kva_status status = kva_wire_read_answer_id(header, size, &id, &err);
    require(status == KVA_OK || (status == KVA_EFORMAT && err.message[0]));
    enum kva_status read =
        kva_wire_read_answer(&shape, rows, count, header, size, data_bytes, found, &err);
    require(read == KVA_OK || (read == KVA_EFORMAT && err.message[0]));
    if (read)
        return;
    require(status == KVA_OK && size == kva_wire_answer_bytes(count));
    for (uint32_t i = 0; i < count; i++)
        bytes += found[i] ? kva_wire_partial_bytes(&shape, rows[i]) : 0;
    require(bytes == data_bytes);
    kva_wire_write_answer(again, id, found, count);
    require(memcmp(again, header, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < PREFIX)
        return 0;
    size_t data_bytes = data[1] | (size_t)data[2] << 8 | (size_t)data[3] << 16;
    if (data[0] % 2 == 0)
        check_question(data + PREFIX, size - PREFIX, data_bytes);
    else
        check_answer(data + PREFIX, size - PREFIX, data_bytes);
    return 0;
}
