/* gmanager_map.c - the request placement map of one instance, kept up to date by its reports. */
#include "cluster/gmanager_internal.h"

#include <string.h>

/* Where the entry is, or would be. */
static uint32_t place(const struct kva_gmanager_member *member,
                      const struct kva_message_entry *entry, bool *ret_found)
{
    uint32_t low = 0, high = member->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct kva_message_entry *at = &member->entries[middle];
        bool before =
            at->request != entry->request ? at->request < entry->request : at->loan < entry->loan;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    const struct kva_message_entry *at = &member->entries[low];
    *ret_found =
        low < member->entry_count && at->request == entry->request && at->loan == entry->loan;
    return low;
}

/* False: there is no room for one more. */
static bool apply(struct kva_gmanager_member *member, const struct kva_message_entry *entry,
                  uint32_t max)
{
    bool found;
    uint32_t at = place(member, entry, &found), behind = member->entry_count - at;
    if (entry->flags & KVA_ENTRY_REMOVED) {
        if (found)
            memmove(&member->entries[at], &member->entries[at + 1],
                    (--member->entry_count - at) * sizeof(*entry));
        return true;
    }
    if (!found && member->entry_count == max)
        return false;
    if (!found) {
        memmove(&member->entries[at + 1], &member->entries[at], behind * sizeof(*entry));
        member->entry_count++;
    }
    member->entries[at] = *entry;
    return true;
}

bool kva_gmanager_member_report(struct kva_gmanager_member *member,
                                const struct kva_message *message, uint32_t entries_max)
{
    if (message->heartbeat.index <= member->index)
        return false; /* overtaken */
    if (message->heartbeat.base == 0) {
        member->entry_count = 0;
        member->fresh = true;
    } else if (!member->fresh || message->heartbeat.base != member->index) {
        member->fresh = false;
        return false;
    }
    member->index = message->heartbeat.index;
    member->round = message->heartbeat.round;
    member->load = message->heartbeat.load;
    for (uint32_t i = 0; i < message->heartbeat.entry_count; i++)
        if (!apply(member, &message->heartbeat.entries[i], entries_max))
            member->fresh = false; /* what is left out would be forgotten for good */
    return true;
}
