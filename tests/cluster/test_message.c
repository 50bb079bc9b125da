/* test_message.c - every type goes over the wire and back; what is cut, too long or out of bounds
 * does not come in. */
#include "cluster/message.h"
#include "tests/cmocka.h"
#include "tests/data.h"
#include "tests/random.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static struct kva_message_entry sample_entries[] = {
    {.request = 7, .generation = 2, .instance = 3, .pages = 900, .flags = KVA_ENTRY_LOCAL},
    {.request = 8, .instance = 3, .flags = KVA_ENTRY_LOCAL | KVA_ENTRY_REMOVED},
    {.request = 7, .loan = 11, .generation = 2, .instance = 5, .pages = 64},
};

/* A message of each type, all of whose numbers differ. */
static struct kva_message sample(enum kva_message_type type)
{
    struct kva_message m = {.type = type,
                            .source = 3,
                            .target = 4,
                            .source_life = 5,
                            .target_life = 6,
                            .sequence = 0x0123456789ABCDEF};
    switch (type) {
    case KVA_MESSAGE_HELLO:
        memset(m.hello.nonce, 0xA1, sizeof(m.hello.nonce));
        memset(m.hello.mac, 0xB2, sizeof(m.hello.mac));
        break;
    case KVA_MESSAGE_LEAD:
        m.lead.revision = 21, m.lead.round = 22, m.lead.full = 1;
        break;
    case KVA_MESSAGE_HEARTBEAT:
        m.heartbeat.revision = 21, m.heartbeat.round = 22;
        m.heartbeat.index = 24, m.heartbeat.base = 23;
        m.heartbeat.load = (struct kva_message_load){1000, 900, 3, 64, 70000, 5,    9,    50, 30,
                                                     0,    1,   1, 1,  6000,  4000, 2500, 700};
        m.heartbeat.entry_count = KVA_COUNT_OF(sample_entries);
        m.heartbeat.entries = sample_entries;
        break;
    case KVA_MESSAGE_MOVE:
        m.move.revision = 21, m.move.round = 22, m.move.loan = 31, m.move.request = 32;
        m.move.generation = 33, m.move.creditor = 34, m.move.creditor_life = 35;
        m.move.pages = 36, m.move.ttl_ns = 37;
        break;
    case KVA_MESSAGE_RETURN:
        m.home.revision = 21, m.home.round = 22, m.home.loan = 31;
        break;
    case KVA_MESSAGE_RESERVE:
        m.reserve.loan = 31, m.reserve.sent_ns = 41, m.reserve.request = 32;
        m.reserve.generation = 33, m.reserve.first_page = 42, m.reserve.pages = 36;
        m.reserve.ttl_ns = KVA_MESSAGE_TTL_MAX_NS;
        break;
    case KVA_MESSAGE_REFUSE:
        m.refuse.loan = 31, m.refuse.reason = KVA_REFUSAL_MEMORY;
        break;
    case KVA_MESSAGE_PAGES:
        m.pages.loan = 31, m.pages.first_page = 51, m.pages.pages = 52, m.pages.home = 1;
        break;
    case KVA_MESSAGE_ACK:
        m.ack.loan = 31, m.ack.pages = 53;
        break;
    case KVA_MESSAGE_RENEW:
        m.renew.loan = 31, m.renew.sent_ns = 41, m.renew.switched = 1;
        break;
    case KVA_MESSAGE_RECALL:
        m.recall.loan = 31, m.recall.within_ns = 61;
        break;
    case KVA_MESSAGE_PULL:
        m.pull.loan = 31, m.pull.first_page = 71, m.pull.pages = 72;
        break;
    default: /* a loan, and perhaps a time */
        m.accept.loan = 31,
        m.accept.sent_ns = type == KVA_MESSAGE_ACCEPT || type == KVA_MESSAGE_RENEWED ? 41 : 0;
        break;
    }
    return m;
}

static size_t encode(const struct kva_message *message, uint8_t *bytes)
{
    size_t size = 0;
    struct kva_err err = {0};
    if (kva_message_encode(message, bytes, KVA_MESSAGE_BYTES_MAX, &size, &err))
        fail_msg("%s: %s", kva_message_name(message->type), err.message);
    return size;
}

static enum kva_status decode(const uint8_t *bytes, size_t size, struct kva_message *ret,
                              struct kva_err *err)
{
    static struct kva_message_entry entries[KVA_MESSAGE_ENTRIES_MAX];
    return kva_message_decode(bytes, size, entries, KVA_MESSAGE_ENTRIES_MAX, ret, err);
}

static void test_message__every_type_comes_back_as_it_went(void **state KVA_UNUSED)
{
    for (int type = KVA_MESSAGE_HELLO; type < KVA_MESSAGE_TYPE_END; type++) {
        uint8_t bytes[KVA_MESSAGE_BYTES_MAX], again[KVA_MESSAGE_BYTES_MAX];
        struct kva_message message = sample((enum kva_message_type)type), read = {0};
        size_t size = encode(&message, bytes);
        assert_int_equal(decode(bytes, size, &read, NULL), KVA_OK);
        assert_int_equal(read.type, type);
        assert_int_equal(read.sequence, message.sequence);
        if (type == KVA_MESSAGE_HEARTBEAT) {
            assert_int_equal(read.heartbeat.entry_count, 3);
            for (int i = 0; i < 3; i++) {
                const struct kva_message_entry *entry = &read.heartbeat.entries[i];
                assert_int_equal(entry->request, sample_entries[i].request);
                assert_int_equal(entry->loan, sample_entries[i].loan);
                assert_int_equal(entry->pages, sample_entries[i].pages);
                assert_int_equal(entry->flags, sample_entries[i].flags);
            }
            message.heartbeat.entries = read.heartbeat.entries;
        }
        assert_memory_equal(&read, &message, sizeof(message));
        assert_int_equal(encode(&read, again), size);
        assert_memory_equal(again, bytes, size);
    }
}

/* One message, byte for byte: other versions have to read it. */
static void test_message__the_format_is_fixed(void **state KVA_UNUSED)
{
    static const uint8_t expected[] = {
        'a',
        'v',
        'k',
        'C',
        KVA_MESSAGE_VERSION,
        0,
        KVA_MESSAGE_ACK,
        0, /* magic, version, type */
        3,
        0,
        0,
        0,
        4,
        0,
        0,
        0, /* source, target */
        5,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        6,
        0,
        0,
        0,
        0,
        0,
        0,
        0, /* their lives */
        0xEF,
        0xCD,
        0xAB,
        0x89,
        0x67,
        0x45,
        0x23,
        0x01, /* sequence */
        31,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        53,
        0,
        0,
        0, /* loan, pages */
    };
    uint8_t bytes[KVA_MESSAGE_BYTES_MAX];
    struct kva_message message = sample(KVA_MESSAGE_ACK);
    assert_int_equal(encode(&message, bytes), sizeof(expected));
    assert_memory_equal(bytes, expected, sizeof(expected));
}

static void test_message__other_lengths_are_refused(void **state KVA_UNUSED)
{
    for (int type = KVA_MESSAGE_HELLO; type < KVA_MESSAGE_TYPE_END; type++) {
        uint8_t bytes[KVA_MESSAGE_BYTES_MAX + 1] = {0};
        struct kva_message message = sample((enum kva_message_type)type), read;
        size_t size = encode(&message, bytes);
        for (size_t cut = 0; cut < size; cut++)
            assert_int_equal(decode(bytes, cut, &read, NULL), KVA_EFORMAT);
        assert_int_equal(decode(bytes, size + 1, &read, NULL), KVA_EFORMAT);
        assert_int_equal(decode(bytes, sizeof(bytes), &read, NULL), KVA_EFORMAT);
    }
}

/* What is accepted after damage is what it says it is: written again, the same bytes. */
static void test_message__damage_is_seen_or_harmless(void **state KVA_UNUSED)
{
    uint64_t rng = 5;
    uint32_t refused = 0, accepted = 0;
    for (uint32_t n = 0; n < 60000; n++) {
        uint8_t bytes[KVA_MESSAGE_BYTES_MAX], again[KVA_MESSAGE_BYTES_MAX];
        struct kva_message message =
            sample((enum kva_message_type)(1 + n % (KVA_MESSAGE_TYPE_END - 1)));
        struct kva_message read;
        size_t size = encode(&message, bytes);
        bytes[kva_test_below(&rng, (uint32_t)size)] ^= (uint8_t)(1u << kva_test_below(&rng, 8));
        if (decode(bytes, size, &read, NULL)) {
            refused++;
            continue;
        }
        accepted++;
        assert_int_equal(encode(&read, again), size);
        assert_memory_equal(again, bytes, size);
    }
    assert_true(refused > 5000 && accepted > 5000);
}

static void refused(struct kva_message message, const char *field)
{
    uint8_t bytes[KVA_MESSAGE_BYTES_MAX];
    size_t size = 77;
    struct kva_err err = {0};
    assert_int_equal(kva_message_encode(&message, bytes, sizeof(bytes), &size, &err), KVA_EINVAL);
    if (strcmp(err.param, field) != 0)
        fail_msg("'%s' is at fault, not '%s': %s", err.param, field, err.message);
    assert_int_equal(size, 77);
}

static void test_message__values_out_of_bounds_are_not_written(void **state KVA_UNUSED)
{
    struct kva_message m = sample(KVA_MESSAGE_MOVE);
    m.source = 0;
    refused(m, "source");
    m = sample(KVA_MESSAGE_MOVE), m.sequence = 0;
    refused(m, "sequence");
    m = sample(KVA_MESSAGE_MOVE), m.move.pages = 0;
    refused(m, "move.pages");
    m = sample(KVA_MESSAGE_MOVE), m.move.pages = KVA_MESSAGE_PAGES_MAX + 1;
    refused(m, "move.pages");
    m = sample(KVA_MESSAGE_MOVE), m.move.ttl_ns = 0;
    refused(m, "move.ttl_ns");
    m = sample(KVA_MESSAGE_MOVE), m.move.ttl_ns = KVA_MESSAGE_TTL_MAX_NS + 1;
    refused(m, "move.ttl_ns");
    m = sample(KVA_MESSAGE_MOVE), m.move.creditor = m.target;
    refused(m, "move.creditor");
    m = sample(KVA_MESSAGE_RESERVE), m.reserve.first_page = KVA_MESSAGE_PAGES_MAX - 36;
    refused(m, "reserve.first_page");
    m = sample(KVA_MESSAGE_RESERVE);
    m.reserve.first_page = m.reserve.pages = KVA_MESSAGE_PAGES_MAX;
    refused(m, "reserve.first_page");
    m = sample(KVA_MESSAGE_RESERVE), m.reserve.first_page = KVA_MESSAGE_PAGES_MAX - 37;
    uint8_t bytes[KVA_MESSAGE_BYTES_MAX];
    assert_true(encode(&m, bytes) > 0);
    m = sample(KVA_MESSAGE_REFUSE), m.refuse.reason = KVA_REFUSAL_END;
    refused(m, "refuse.reason");
    m = sample(KVA_MESSAGE_HEARTBEAT), m.heartbeat.load.free_pages = 1001;
    refused(m, "heartbeat.load.free_pages");
    m = sample(KVA_MESSAGE_HEARTBEAT), m.heartbeat.load.waiting_pages = 8;
    refused(m, "heartbeat.load.waiting_pages");
    m = sample(KVA_MESSAGE_HEARTBEAT), m.heartbeat.base = 24;
    refused(m, "heartbeat.base");
    m = sample(KVA_MESSAGE_HEARTBEAT), m.heartbeat.entry_count = KVA_MESSAGE_ENTRIES_MAX + 1;
    refused(m, "heartbeat.entry_count");
    struct kva_message_entry bad = sample_entries[2];
    bad.flags = KVA_ENTRY_LOCAL;
    m = sample(KVA_MESSAGE_HEARTBEAT), m.heartbeat.entries = &bad, m.heartbeat.entry_count = 1;
    refused(m, "flags");
    bad = sample_entries[2], bad.flags = KVA_ENTRY_HEAD;
    refused(m, "flags");
    bad = sample_entries[2], bad.flags = 16;
    refused(m, "flags");
    bad = sample_entries[2], bad.flags = KVA_ENTRY_APART, bad.pages = 0,
    bad.loan = bad.instance + 1;
    refused(m, "flags");
}

static void not_read(const uint8_t *bytes, size_t size, const char *word)
{
    struct kva_message read;
    struct kva_err err = {0};
    assert_int_equal(decode(bytes, size, &read, &err), KVA_EFORMAT);
    if (!strstr(err.message, word))
        fail_msg("'%s' does not say '%s'", err.message, word);
}

static void test_message__what_is_wrong_is_named(void **state KVA_UNUSED)
{
    uint8_t bytes[KVA_MESSAGE_BYTES_MAX];
    struct kva_message message = sample(KVA_MESSAGE_RESERVE), read;
    size_t size = encode(&message, bytes);
    memset(bytes + size - 16, 0xFF, 3); /* its first page: 67,108,863, of 26 bits */
    bytes[size - 13] = 3;
    not_read(bytes, size, "36 pages from page 67108863 on");
    message = sample(KVA_MESSAGE_HEARTBEAT);
    size = encode(&message, bytes);
    not_read(bytes, 39, "39 bytes");
    not_read(bytes, size - 1, "are left");
    bytes[0] = 'b';
    not_read(bytes, size, "62 76 6b 43");
    bytes[0] = 'a', bytes[4] = 1;
    not_read(bytes, size, "version 1");
    bytes[4] = KVA_MESSAGE_VERSION, bytes[6] = KVA_MESSAGE_TYPE_END;
    not_read(bytes, size, "18 is no type");
    bytes[6] = KVA_MESSAGE_ACK;
    not_read(bytes, size, "ACK has");
    size = encode(&message, bytes);
    struct kva_message_entry entries[2];
    struct kva_err err = {0};
    assert_int_equal(kva_message_decode(bytes, size, entries, 2, &read, &err), KVA_EFORMAT);
    assert_non_null(strstr(err.message, "3 entries, at most 2"));
    assert_string_equal(kva_message_name((enum kva_message_type)99), "unknown");
    size_t unused;
    assert_int_equal(kva_message_encode(&message, bytes, size - 1, &unused, NULL), KVA_ELIMIT);
    message.type = KVA_MESSAGE_TYPE_END;
    assert_int_equal(kva_message_encode(&message, bytes, size, &unused, NULL), KVA_EINVAL);
}

/* Of another version it would be refused at its first bytes, and a fuzzer would begin with nothing.
 */
static void test_message__the_fuzzers_corpus_speaks_this_version(void **state KVA_UNUSED)
{
    struct kva_message_entry entries[KVA_MESSAGE_ENTRIES_MAX];
    for (enum kva_message_type type = KVA_MESSAGE_HELLO; type < KVA_MESSAGE_TYPE_END; type++) {
        char name[96], path[4096];
        snprintf(name, sizeof(name), "tests/fuzz/corpus/cluster_message/%s",
                 kva_message_name(type));
        for (char *c = name; *c; c++)
            *c = (char)tolower((unsigned char)*c);
        size_t size = 0;
        char *bytes = kva_test_read(kva_test_source(name, path, sizeof(path)), &size);
        assert_non_null(bytes);
        struct kva_message message;
        struct kva_err err = {0};
        if (kva_message_decode((const uint8_t *)bytes, size, entries, KVA_MESSAGE_ENTRIES_MAX,
                               &message, &err))
            fail_msg("%s: %s", name, err.message);
        assert_int_equal(message.type, type);
        free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message__every_type_comes_back_as_it_went),
        cmocka_unit_test(test_message__the_format_is_fixed),
        cmocka_unit_test(test_message__other_lengths_are_refused),
        cmocka_unit_test(test_message__damage_is_seen_or_harmless),
        cmocka_unit_test(test_message__values_out_of_bounds_are_not_written),
        cmocka_unit_test(test_message__what_is_wrong_is_named),
        cmocka_unit_test(test_message__the_fuzzers_corpus_speaks_this_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
