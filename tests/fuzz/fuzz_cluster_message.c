/* fuzz_cluster_message.c - a message between instances, from any bytes. What is accepted is within
 * its bounds, and written again it is the same bytes. */
#include "tests/fuzz/fuzz.h"

#include "cluster/message.h"

#include <stdlib.h>
#include <string.h>

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check_heartbeat(const struct kva_message *message)
{
    const struct kva_message_load *load = &message->heartbeat.load;
    require(load->free_pages <= load->pages && load->pages <= KVA_MESSAGE_PAGES_MAX);
    require(load->waiting == 0 || load->waiting_pages >= load->head_pages);
    require(message->heartbeat.entry_count <= KVA_MESSAGE_ENTRIES_MAX);
    for (uint32_t i = 0; i < message->heartbeat.entry_count; i++) {
        const struct kva_message_entry *entry = &message->heartbeat.entries[i];
        require(entry->request != 0 && entry->pages <= KVA_MESSAGE_PAGES_MAX);
        require(!(entry->flags & KVA_ENTRY_LOCAL) == (entry->loan != 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kva_message_entry entries[KVA_MESSAGE_ENTRIES_MAX];
    static uint8_t again[KVA_MESSAGE_BYTES_MAX];
    struct kva_message message;
    struct kva_err err = {0};
    enum kva_status status =
        kva_message_decode(data, size, entries, KVA_MESSAGE_ENTRIES_MAX, &message, &err);
    require(status == KVA_OK || (status == KVA_EFORMAT && err.message[0]));
    if (status)
        return 0;
    size_t written = 0;
    require(message.source != 0 && message.target != 0 && message.sequence != 0);
    require(strcmp(kva_message_name(message.type), "unknown") != 0);
    if (message.type == KVA_MESSAGE_HEARTBEAT)
        check_heartbeat(&message);
    if (message.type == KVA_MESSAGE_RESERVE)
        require(message.reserve.first_page + message.reserve.pages < KVA_MESSAGE_PAGES_MAX);
    require(kva_message_encode(&message, again, sizeof(again), &written, &err) == KVA_OK);
    require(written == size && memcmp(again, data, size) == 0);
    return 0;
}
