/* message.c - one table says for each type which fields it has; writing and reading go through it,
 * and so does what may be in them. */
#include "cluster/message.h"

#include <string.h>

/* What a field's value may be. */
enum rule {
    ANY,
    ONE_UP, /* not 0 */
    BOOLEAN,
    PAGES,     /* up to KVA_MESSAGE_PAGES_MAX */
    PAGES_ONE, /* the same, and not 0 */
    SPAN,      /* up to KVA_MESSAGE_TTL_MAX_NS */
    DURATION,  /* the same, and not 0 */
    REASON,
    ENTRIES,
    FLAGS,
    BYTES, /* no number */
};

struct field {
    const char *name;
    uint16_t offset;
    uint8_t width;
    uint8_t rule;
};

#define FIELD(type, member, rule)                                                                  \
    {                                                                                              \
#member, offsetof(type, member), sizeof(((type *)0)->member), rule                         \
    }
#define M(member, rule) FIELD(struct kva_message, member, rule)
#define E(member, rule) FIELD(struct kva_message_entry, member, rule)
#define FIELDS_MAX      24u

static const struct field header_fields[] = {
    M(source, ONE_UP),   M(target, ONE_UP),   M(source_life, ONE_UP),
    M(target_life, ANY), M(sequence, ONE_UP),
};

static const struct field entry_fields[] = {
    E(request, ONE_UP),  E(loan, ANY),    E(generation, ANY),
    E(instance, ONE_UP), E(pages, PAGES), E(flags, FLAGS),
};

static const struct type {
    const char *name;
    struct field fields[FIELDS_MAX]; /* up to the first without a name */
} types[KVA_MESSAGE_TYPE_END] = {
    [KVA_MESSAGE_HELLO] = {"HELLO", {M(hello.nonce, BYTES), M(hello.mac, BYTES)}},
    [KVA_MESSAGE_LEAD] = {"LEAD",
                          {M(lead.revision, ONE_UP), M(lead.round, ONE_UP), M(lead.full, BOOLEAN)}},
    [KVA_MESSAGE_HEARTBEAT] = {"HEARTBEAT",
                               {M(heartbeat.revision, ONE_UP),
                                M(heartbeat.round, ONE_UP),
                                M(heartbeat.index, ONE_UP),
                                M(heartbeat.base, ANY),
                                M(heartbeat.load.pages, PAGES),
                                M(heartbeat.load.free_pages, PAGES),
                                M(heartbeat.load.batch, PAGES),
                                M(heartbeat.load.batch_max, PAGES),
                                M(heartbeat.load.tokens, ANY),
                                M(heartbeat.load.waiting, PAGES),
                                M(heartbeat.load.head_pages, PAGES),
                                M(heartbeat.load.waiting_pages, ANY),
                                M(heartbeat.load.borrowed_pages, PAGES),
                                M(heartbeat.load.lendable_pages, PAGES),
                                M(heartbeat.load.moving, BOOLEAN),
                                M(heartbeat.load.keeps, BOOLEAN),
                                M(heartbeat.load.step_loans, BOOLEAN),
                                M(heartbeat.load.step_ns, SPAN),
                                M(heartbeat.load.step_tokens, ANY),
                                M(heartbeat.load.step_millirows, ANY),
                                M(heartbeat.load.prompt_ns, SPAN),
                                M(heartbeat.entry_count, ENTRIES)}},
    [KVA_MESSAGE_MOVE] = {"MOVE",
                          {M(move.revision, ONE_UP), M(move.round, ONE_UP), M(move.loan, ONE_UP),
                           M(move.request, ONE_UP), M(move.generation, ANY),
                           M(move.creditor, ONE_UP), M(move.creditor_life, ONE_UP),
                           M(move.pages, PAGES_ONE), M(move.ttl_ns, DURATION)}},
    [KVA_MESSAGE_RETURN] = {"RETURN",
                            {M(home.revision, ONE_UP), M(home.round, ONE_UP),
                             M(home.loan, ONE_UP)}},
    [KVA_MESSAGE_RESERVE] = {"RESERVE",
                             {M(reserve.loan, ONE_UP), M(reserve.sent_ns, ANY),
                              M(reserve.request, ONE_UP), M(reserve.generation, ANY),
                              M(reserve.first_page, PAGES), M(reserve.pages, PAGES_ONE),
                              M(reserve.ttl_ns, DURATION)}},
    [KVA_MESSAGE_ACCEPT] = {"ACCEPT", {M(accept.loan, ONE_UP), M(accept.sent_ns, ANY)}},
    [KVA_MESSAGE_REFUSE] = {"REFUSE", {M(refuse.loan, ONE_UP), M(refuse.reason, REASON)}},
    [KVA_MESSAGE_PAGES] = {"PAGES",
                           {M(pages.loan, ONE_UP), M(pages.first_page, PAGES),
                            M(pages.pages, PAGES_ONE), M(pages.home, BOOLEAN)}},
    [KVA_MESSAGE_ACK] = {"ACK", {M(ack.loan, ONE_UP), M(ack.pages, PAGES)}},
    [KVA_MESSAGE_SWITCH] = {"SWITCH", {M(loan.loan, ONE_UP)}},
    [KVA_MESSAGE_RENEW] = {"RENEW",
                           {M(renew.loan, ONE_UP), M(renew.sent_ns, ANY),
                            M(renew.switched, BOOLEAN)}},
    [KVA_MESSAGE_RENEWED] = {"RENEWED", {M(accept.loan, ONE_UP), M(accept.sent_ns, ANY)}},
    [KVA_MESSAGE_RECALL] = {"RECALL", {M(recall.loan, ONE_UP), M(recall.within_ns, DURATION)}},
    [KVA_MESSAGE_PULL] = {"PULL",
                          {M(pull.loan, ONE_UP), M(pull.first_page, PAGES),
                           M(pull.pages, PAGES_ONE)}},
    [KVA_MESSAGE_RELEASE] = {"RELEASE", {M(loan.loan, ONE_UP)}},
    [KVA_MESSAGE_RELEASED] = {"RELEASED", {M(loan.loan, ONE_UP)}},
};

const char *kva_message_name(enum kva_message_type type)
{
    return type > 0 && type < KVA_MESSAGE_TYPE_END ? types[type].name : "unknown";
}

/* --- one field -------------------------------------------------------------------------------- */

static uint64_t load_field(const void *object, const struct field *field)
{
    const uint8_t *at = (const uint8_t *)object + field->offset;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    switch (field->width) {
    case 1:
        return *at;
    case 2:
        memcpy(&u16, at, 2);
        return u16;
    case 4:
        memcpy(&u32, at, 4);
        return u32;
    default:
        memcpy(&u64, at, 8);
        return u64;
    }
}

static void store_field(void *object, const struct field *field, uint64_t value)
{
    uint8_t *at = (uint8_t *)object + field->offset;
    uint16_t u16 = (uint16_t)value;
    uint32_t u32 = (uint32_t)value;
    switch (field->width) {
    case 1:
        *at = (uint8_t)value;
        break;
    case 2:
        memcpy(at, &u16, 2);
        break;
    case 4:
        memcpy(at, &u32, 4);
        break;
    default:
        memcpy(at, &value, 8);
        break;
    }
}

/* Smallest and largest value. */
static void bounds(enum rule rule, uint64_t *ret_min, uint64_t *ret_max)
{
    *ret_min = rule == ONE_UP || rule == PAGES_ONE || rule == DURATION || rule == REASON;
    switch (rule) {
    case BOOLEAN:
        *ret_max = 1;
        break;
    case PAGES:
    case PAGES_ONE:
        *ret_max = KVA_MESSAGE_PAGES_MAX;
        break;
    case SPAN:
    case DURATION:
        *ret_max = KVA_MESSAGE_TTL_MAX_NS;
        break;
    case REASON:
        *ret_max = KVA_REFUSAL_END - 1;
        break;
    case ENTRIES:
        *ret_max = KVA_MESSAGE_ENTRIES_MAX;
        break;
    case FLAGS:
        *ret_max = KVA_ENTRY_FLAGS;
        break;
    default:
        *ret_max = UINT64_MAX;
        break;
    }
}

static enum kva_status check_field(const struct field *field, uint64_t value,
                                   enum kva_status status, struct kva_err *err)
{
    uint64_t min, max;
    bounds((enum rule)field->rule, &min, &max);
    if (value >= min && value <= max)
        return KVA_OK;
    return kva_fail_param(err, status, field->name, "%s is %llu, not %llu to %llu", field->name,
                          (unsigned long long)value, (unsigned long long)min,
                          (unsigned long long)max);
}

static size_t fields_bytes(const struct field *fields, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count && fields[i].name; i++)
        bytes += fields[i].width;
    return bytes;
}

/* --- a row of fields -------------------------------------------------------------------------- */

static enum kva_status write_fields(const void *object, const struct field *fields, size_t count,
                                    uint8_t **at, struct kva_err *err)
{
    for (size_t i = 0; i < count && fields[i].name; i++) {
        const struct field *field = &fields[i];
        if (field->rule == BYTES) {
            memcpy(*at, (const uint8_t *)object + field->offset, field->width);
            *at += field->width;
            continue;
        }
        uint64_t value = load_field(object, field);
        enum kva_status status = check_field(field, value, KVA_EINVAL, err);
        if (status)
            return status;
        for (unsigned n = 0; n < field->width; n++)
            *(*at)++ = (uint8_t)(value >> (8 * n));
    }
    return KVA_OK;
}

static enum kva_status read_fields(void *object, const struct field *fields, size_t count,
                                   const uint8_t **at, struct kva_err *err)
{
    for (size_t i = 0; i < count && fields[i].name; i++) {
        const struct field *field = &fields[i];
        if (field->rule == BYTES) {
            memcpy((uint8_t *)object + field->offset, *at, field->width);
            *at += field->width;
            continue;
        }
        uint64_t value = 0;
        for (unsigned n = 0; n < field->width; n++)
            value |= (uint64_t) * (*at)++ << (8 * n);
        enum kva_status status = check_field(field, value, KVA_EFORMAT, err);
        if (status)
            return status;
        store_field(object, field, value);
    }
    return KVA_OK;
}

/* What no field alone can say. */
static enum kva_status check_whole(const struct kva_message *message, enum kva_status status,
                                   struct kva_err *err)
{
    const struct kva_message_load *load = &message->heartbeat.load;
    switch (message->type) {
    case KVA_MESSAGE_HEARTBEAT:
        if (load->free_pages > load->pages)
            return kva_fail_param(err, status, "heartbeat.load.free_pages",
                                  "%u of %u pages are free", load->free_pages, load->pages);
        if (load->waiting > 0 && load->waiting_pages < load->head_pages)
            return kva_fail_param(err, status, "heartbeat.load.waiting_pages",
                                  "%llu pages for all that wait, %u for the first",
                                  (unsigned long long)load->waiting_pages, load->head_pages);
        if (message->heartbeat.base >= message->heartbeat.index)
            return kva_fail_param(err, status, "heartbeat.base", "report %llu changes %llu",
                                  (unsigned long long)message->heartbeat.index,
                                  (unsigned long long)message->heartbeat.base);
        return KVA_OK;
    case KVA_MESSAGE_MOVE:
        if (message->move.creditor == message->target)
            return kva_fail_param(err, status, "move.creditor", "node %u is to lend to itself",
                                  message->target);
        return KVA_OK;
    case KVA_MESSAGE_RESERVE: /* whose tokens have positions of 32 bits, the one behind them too */
        if (message->reserve.first_page >= KVA_MESSAGE_PAGES_MAX - message->reserve.pages)
            return kva_fail_param(err, status, "reserve.first_page",
                                  "%u pages from page %u on, they have to end before page %u",
                                  message->reserve.pages, message->reserve.first_page,
                                  KVA_MESSAGE_PAGES_MAX);
        return KVA_OK;
    default:
        return KVA_OK;
    }
}

static enum kva_status check_entry(const struct kva_message_entry *entry, enum kva_status status,
                                   struct kva_err *err)
{
    bool local = entry->flags & KVA_ENTRY_LOCAL;
    bool apart = entry->flags & KVA_ENTRY_APART;
    if (local == (entry->loan != 0) || (!local && (entry->flags & KVA_ENTRY_HEAD)) ||
        (apart && (local || entry->loan != entry->instance || entry->pages > 0)))
        return kva_fail_param(err, status, "flags", "an entry of loan %llu with flags %u",
                              (unsigned long long)entry->loan, entry->flags);
    return KVA_OK;
}

/* --- messages --------------------------------------------------------------------------------- */

enum kva_status kva_message_encode(const struct kva_message *message, uint8_t *bytes,
                                   size_t capacity, size_t *ret_size, struct kva_err *err)
{
    if (message->type < KVA_MESSAGE_HELLO || message->type >= KVA_MESSAGE_TYPE_END)
        return kva_fail(err, KVA_EINVAL, "%d is no type of message", (int)message->type);
    const struct type *type = &types[message->type];
    bool beat = message->type == KVA_MESSAGE_HEARTBEAT;
    size_t entries = beat ? message->heartbeat.entry_count : 0;
    size_t size = KVA_MESSAGE_HEADER_BYTES + fields_bytes(type->fields, FIELDS_MAX) +
                  entries * fields_bytes(entry_fields, KVA_COUNT_OF(entry_fields));
    if (size > capacity)
        return kva_fail(err, KVA_ELIMIT, "%s has %zu bytes, there is room for %zu", type->name,
                        size, capacity);
    const uint8_t magic[8] = {'a', 'v', 'k', 'C', KVA_MESSAGE_VERSION, 0, (uint8_t)message->type,
                              0};
    memcpy(bytes, magic, sizeof(magic));
    uint8_t *at = bytes + sizeof(magic);
    enum kva_status status =
        write_fields(message, header_fields, KVA_COUNT_OF(header_fields), &at, err);
    if (!status)
        status = write_fields(message, type->fields, FIELDS_MAX, &at, err);
    if (!status)
        status = check_whole(message, KVA_EINVAL, err);
    for (size_t i = 0; i < entries && !status; i++) {
        const struct kva_message_entry *entry = &message->heartbeat.entries[i];
        status = write_fields(entry, entry_fields, KVA_COUNT_OF(entry_fields), &at, err);
        if (!status)
            status = check_entry(entry, KVA_EINVAL, err);
    }
    if (!status)
        *ret_size = size;
    return status;
}

static enum kva_status read_entries(struct kva_message *message, const uint8_t *at, size_t left,
                                    struct kva_message_entry *entries, uint32_t entries_max,
                                    struct kva_err *err)
{
    size_t count = message->heartbeat.entry_count;
    size_t need = count * fields_bytes(entry_fields, KVA_COUNT_OF(entry_fields));
    if (need != left)
        return kva_fail(err, KVA_EFORMAT, "%zu entries have %zu bytes, %zu are left", count, need,
                        left);
    if (count > entries_max)
        return kva_fail(err, KVA_EFORMAT, "%zu entries, at most %u are read", count, entries_max);
    enum kva_status status = KVA_OK;
    for (size_t i = 0; i < count && !status; i++) {
        entries[i] = (struct kva_message_entry){0};
        status = read_fields(&entries[i], entry_fields, KVA_COUNT_OF(entry_fields), &at, err);
        if (!status)
            status = check_entry(&entries[i], KVA_EFORMAT, err);
    }
    message->heartbeat.entries = entries;
    return status;
}

enum kva_status kva_message_decode(const uint8_t *bytes, size_t size,
                                   struct kva_message_entry *entries, uint32_t entries_max,
                                   struct kva_message *ret_message, struct kva_err *err)
{
    struct kva_message message = {0};
    if (size < KVA_MESSAGE_HEADER_BYTES || size > KVA_MESSAGE_BYTES_MAX)
        return kva_fail(err, KVA_EFORMAT, "a message of %zu bytes, not of %u to %u", size,
                        KVA_MESSAGE_HEADER_BYTES, KVA_MESSAGE_BYTES_MAX);
    if (memcmp(bytes, "avkC", 4) != 0)
        return kva_fail(err, KVA_EFORMAT, "no message: it begins with %02x %02x %02x %02x",
                        bytes[0], bytes[1], bytes[2], bytes[3]);
    uint32_t version = bytes[4] | (uint32_t)bytes[5] << 8, id = bytes[6] | (uint32_t)bytes[7] << 8;
    if (version != KVA_MESSAGE_VERSION)
        return kva_fail(err, KVA_EFORMAT, "a message of version %u, this speaks %u", version,
                        KVA_MESSAGE_VERSION);
    if (id < KVA_MESSAGE_HELLO || id >= KVA_MESSAGE_TYPE_END)
        return kva_fail(err, KVA_EFORMAT, "%u is no type of message", id);
    message.type = (enum kva_message_type)id;
    const struct type *type = &types[id];
    size_t body = fields_bytes(type->fields, FIELDS_MAX), left = size - KVA_MESSAGE_HEADER_BYTES;
    bool beat = message.type == KVA_MESSAGE_HEARTBEAT;
    if (beat ? left < body : left != body)
        return kva_fail(err, KVA_EFORMAT, "%s has %zu bytes behind its header, not %zu", type->name,
                        left, body);
    const uint8_t *at = bytes + 8;
    enum kva_status status =
        read_fields(&message, header_fields, KVA_COUNT_OF(header_fields), &at, err);
    if (!status)
        status = read_fields(&message, type->fields, FIELDS_MAX, &at, err);
    if (!status)
        status = check_whole(&message, KVA_EFORMAT, err);
    if (!status && beat)
        status = read_entries(&message, at, left - body, entries, entries_max, err);
    if (!status)
        *ret_message = message;
    return status;
}
