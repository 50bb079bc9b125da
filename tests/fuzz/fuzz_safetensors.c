/* fuzz_safetensors.c - the table of a safetensors file, from any bytes.
 *
 * Each input is parsed as it is, and once more with a header length that fits its last '}', because
 * hardly any damage leaves the length right. A table that parses must keep what it promises. */
#include "tests/fuzz/fuzz.h"

#include "engine/model/safetensors.h"

#include <stdlib.h>
#include <string.h>

static void require(bool condition)
{
    if (!condition)
        __builtin_trap();
}

static void check_table(const struct kva_safetensors *table)
{
    uint64_t bytes = 0;
    volatile uint8_t sink = 0;
    for (size_t i = 0; i < table->entry_count; i++) {
        const struct kva_safetensors_entry *entry = &table->entries[i];
        char shape[32];
        require(entry->begin <= entry->end && entry->end <= table->data_bytes);
        require(entry->rank <= KVA_SAFETENSORS_RANK_MAX);
        require(i == 0 || strcmp(table->entries[i - 1].name, entry->name) < 0);
        require(kva_safetensors_find(table, entry->name) == entry);
        require(strlen(kva_safetensors_show_shape(entry, shape, sizeof(shape))) < sizeof(shape));
        if (entry->end > entry->begin)
            sink = table->data[entry->begin] ^ table->data[entry->end - 1];
        bytes += entry->end - entry->begin;
    }
    (void)sink;
    require(bytes <= table->data_bytes);
}

static void parse(const uint8_t *data, size_t size)
{
    struct kva_safetensors table;
    struct kva_err err = {0};
    enum kva_status status = kva_safetensors_init(&table, data, size, "fuzz.safetensors", &err);
    require(status == KVA_OK || status == KVA_EFORMAT);
    require((status != KVA_OK) == (err.message[0] != '\0'));
    if (status)
        return;
    check_table(&table);
    kva_safetensors_finish(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse(data, size);
    size_t end = size;
    while (end > 8 && data[end - 1] != '}')
        end--;
    if (end <= 8)
        return 0;
    uint8_t *fitted = malloc(size);
    if (!fitted)
        return 0;
    memcpy(fitted, data, size);
    for (size_t i = 0; i < 8; i++)
        fitted[i] = (uint8_t)((uint64_t)(end - 8) >> (8 * i));
    parse(fitted, size);
    free(fitted);
    return 0;
}
