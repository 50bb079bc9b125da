/* test_answers.c - numbers, bytes, keys and records as they are read, and answers that chance has
 * changed: whatever comes, the table stays one. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cluster/members/etcd_internal.h"
#include "cluster/members/members_internal.h"
#include "tests/cluster/members/nodes.h"
#include "tests/cmocka.h"
#include "tests/random.h"

/* --- numbers and bytes ------------------------------------------------------------------------ */

static void test_answers__numbers_have_63_bits(void **state KVA_UNUSED)
{
    static const struct {
        const char *json;
        bool good;
        uint64_t value;
    } cases[] = {
        {"{}", true, 0},
        {"{\"n\":\"0\"}", true, 0},
        {"{\"n\":\"9223372036854775807\"}", true, INT64_MAX},
        {"{\"n\":\"9007199254740993\"}", true, 9007199254740993},
        {"{\"n\":\"9223372036854775808\"}", false, 0},
        {"{\"n\":\"99999999999999999999\"}", false, 0},
        {"{\"n\":\"-1\"}", false, 0},
        {"{\"n\":\"\"}", false, 0},
        {"{\"n\":\" 1\"}", false, 0},
        {"{\"n\":\"1x\"}", false, 0},
        {"{\"n\":7}", true, 7},
        {"{\"n\":7.5}", false, 0},
        {"{\"n\":-7}", false, 0},
        {"{\"n\":1e300}", false, 0},
        {"{\"n\":null}", false, 0},
        {"{\"n\":[]}", false, 0},
    };
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++) {
        uint64_t value = 99;
        cJSON *object = cJSON_Parse(cases[i].json);
        assert_int_equal(cases[i].good, kva_members_get_number(object, "n", &value));
        if (cases[i].good)
            assert_true(value == cases[i].value);
        cJSON_Delete(object);
    }
}

static void test_answers__base64_comes_back(void **state KVA_UNUSED)
{
    char bytes[200], back[200];
    uint64_t random = 1;
    for (size_t length = 0; length < sizeof(bytes); length++) {
        struct kva_buf text;
        size_t got = 0;
        for (size_t i = 0; i < length; i++)
            bytes[i] = (char)kva_test_below(&random, 256);
        kva_buf_init(&text, 1024);
        kva_members_put_base64(&text, bytes, length);
        assert_false(text.failed);
        assert_int_equal('"', text.data[text.length - 1]);
        text.data[text.length - 1] = 0;
        assert_true(kva_members_read_base64(text.data + 1, back, sizeof(back), &got));
        assert_int_equal(length, got);
        assert_memory_equal(bytes, back, length);
        if (length > 0)
            assert_false(kva_members_read_base64(text.data + 1, back, length - 1, &got));
        kva_buf_finish(&text);
    }
}

static void test_answers__base64_that_is_none_is_refused(void **state KVA_UNUSED)
{
    static const char *const none[] = {"a",     "ab",    "abc",   "====",  "a===",  "ab=c",
                                       " YWI=", "YWI= ", "YW I=", "YQ\n=", "YWJj!", "Y-Q="};
    char bytes[64];
    size_t got;
    for (size_t i = 0; i < KVA_COUNT_OF(none); i++)
        if (kva_members_read_base64(none[i], bytes, sizeof(bytes), &got))
            fail_msg("'%s' is read as base64", none[i]);
}

static void test_answers__a_record_comes_back(void **state KVA_UNUSED)
{
    struct kva_member self = {.node = 7,
                              .host = "fe80::1%eth0",
                              .port = 65535,
                              .guest_port = 1,
                              .lend_pages = 77,
                              .model = "Größe/1 \"x\""},
                      back = {0};
    struct kva_etcd_kv kv = {.created = 50, .modified = 60};
    for (uint64_t life = 0; life <= 50; life += 25) {
        struct kva_buf text;
        kva_buf_init(&text, sizeof(kv.value) - 1);
        kva_record_put(&text, &self, life);
        kv.value_bytes = text.length;
        memcpy(kv.value, text.data, text.length + 1);
        assert_int_equal(KVA_OK, kva_record_read(&kv, 7, &back, NULL));
        assert_int_equal(KVA_EFORMAT, kva_record_read(&kv, 8, &back, NULL));
        assert_true(back.life == (life ? life : 50));
        assert_int_equal(self.port, back.port);
        assert_int_equal(self.guest_port, back.guest_port);
        assert_int_equal(self.lend_pages, back.lend_pages);
        assert_string_equal(self.host, back.host);
        assert_string_equal(self.model, back.model);
        kva_buf_finish(&text);
    }
}

static void test_answers__a_key_has_one_number(void **state KVA_UNUSED)
{
    static const struct {
        const char *key;
        uint32_t node;
    } cases[] = {{"n/1", 1},  {"n/1024", 1024}, {"n/1025", 0}, {"n/0", 0}, {"n/01", 0}, {"n/", 0},
                 {"n/1/", 0}, {"n/-1", 0},      {"m/1", 0},    {"", 0},    {"n", 0}};
    for (size_t i = 0; i < KVA_COUNT_OF(cases); i++)
        assert_int_equal(cases[i].node, kva_record_node(cases[i].key, "n/"));
}

/* --- chance ----------------------------------------------------------------------------------- */

#define ANSWERS_PER_SEED 40
#define SEEDS            3000

static void put_text(struct kva_buf *out, const char *name, const char *text)
{
    kva_buf_printf(out, "\"%s\":", name);
    kva_members_put_base64(out, text, strlen(text));
}

static void put_key(struct kva_buf *out, uint64_t *random, uint64_t revision)
{
    char key[64];
    struct kva_buf value;
    struct kva_member member = {.node = 1 + kva_test_below(random, 6),
                                .host = "a",
                                .port = 1,
                                .guest_port = 2,
                                .model = "tiny"};
    bool leader = kva_test_below(random, 5) == 0;
    kva_buf_init(&value, 1024);
    snprintf(key, sizeof(key), leader ? "kvahead/test/leader" : "kvahead/test/nodes/%u",
             member.node);
    kva_record_put(&value, &member, kva_test_below(random, 2) ? 0 : revision / 2);
    kva_buf_putc(out, '{');
    put_text(out, "key", key);
    kva_buf_putc(out, ',');
    put_text(out, "value", value.data);
    kva_buf_printf(out, ",\"create_revision\":\"%llu\",\"mod_revision\":\"%llu\",\"lease\":\"%u\"}",
                   (unsigned long long)revision, (unsigned long long)revision,
                   kva_test_below(random, 9));
    kva_buf_finish(&value);
}

/* A reading of some keys, or some changes. */
static void put_answer(struct kva_buf *out, uint64_t *random, bool changes, uint64_t *revision)
{
    uint32_t count = kva_test_below(random, 4);
    kva_buf_printf(out, "{\"header\":{\"revision\":\"%llu\"},\"%s\":[",
                   (unsigned long long)*revision + count, changes ? "events" : "kvs");
    for (uint32_t i = 0; i < count; i++) {
        bool deleted = changes && kva_test_below(random, 3) == 0;
        kva_buf_puts(out, i ? "," : "");
        if (changes)
            kva_buf_puts(out, deleted ? "{\"type\":\"DELETE\",\"kv\":" : "{\"kv\":");
        put_key(out, random, ++*revision);
        kva_buf_puts(out, changes ? "}" : "");
    }
    kva_buf_puts(out, "]}");
}

static void damage(struct kva_buf *text, uint64_t *random)
{
    static const char letters[] = "{}[]\",:0123456789nulltrueabXYZ=+/\\ -.e";
    for (uint32_t i = kva_test_below(random, 4); i > 0; i--)
        text->data[kva_test_below(random, (uint32_t)text->length)] =
            letters[kva_test_below(random, sizeof(letters) - 1)];
}

/* What was told, gone and there, is what the table has. */
static void check_table(struct node *node)
{
    for (uint32_t i = 1; i <= KVA_MEMBERS_NODES_MAX; i++) {
        const struct kva_members_entry *entry = &node->members->entries[i];
        bool told = entry->visible && i != node->node;
        assert_true(node->lives[i] == (told ? entry->member.life : 0));
    }
    assert_int_equal(0, node->order_bad);
}

static uint32_t run_seed(uint64_t seed)
{
    struct node *node = calloc(1, sizeof(*node));
    uint64_t random = seed, revision = 10;
    uint32_t taken = 0;
    assert_non_null(node);
    node_init(node, "http://127.0.0.1:1", 0);
    node->params.self.node = 3;
    assert_int_equal(KVA_OK, kva_members_create(&node->params, &node->members, NULL));
    /* As if it had joined. */
    node->members->joined = node->members->registered = node->members->read = true;
    node->members->params.self.node = node->node = 3;
    node->members->lease = 5;
    node->joins = 1;
    for (uint32_t i = 0; i < ANSWERS_PER_SEED; i++) {
        struct kva_etcd_reading reading;
        struct kva_buf text;
        bool changes = kva_test_below(&random, 4) != 0;
        kva_buf_init(&text, 16384);
        put_answer(&text, &random, changes, &revision);
        damage(&text, &random);
        kva_etcd_read(text.data, text.length, 200, &reading);
        taken += reading.end == KVA_ETCD_ANSWERED;
        if (changes)
            kva_members_watch_answer(node->members, reading.end, reading.answer, 1);
        else
            kva_members_table_answer(node->members, reading.end, reading.answer, 1);
        check_table(node);
        cJSON_Delete(reading.root);
        kva_buf_finish(&text);
    }
    kva_members_destroy(node->members, 0);
    close(node->wake);
    free(node);
    return taken;
}

static void test_answers__damage_never_breaks_the_table(void **state KVA_UNUSED)
{
    uint32_t taken = 0;
    kva_log_setup(2, KVA_LOG_OFF, KVA_LOG_TEXT);
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        taken += run_seed(seed);
    print_message("%u of %u answers were still JSON\n", taken, SEEDS * ANSWERS_PER_SEED);
    assert_in_range(taken, SEEDS * ANSWERS_PER_SEED / 5, SEEDS * ANSWERS_PER_SEED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers__numbers_have_63_bits),
        cmocka_unit_test(test_answers__base64_comes_back),
        cmocka_unit_test(test_answers__base64_that_is_none_is_refused),
        cmocka_unit_test(test_answers__a_record_comes_back),
        cmocka_unit_test(test_answers__a_key_has_one_number),
        cmocka_unit_test(test_answers__damage_never_breaks_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
