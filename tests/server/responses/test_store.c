#include "tests/cmocka.h"

#include "server/responses/store.h"

#include <stdio.h>
#include <string.h>

static struct kva_response_store *create(size_t bytes_max)
{
    struct kva_response_store *store = NULL;
    struct kva_err err;
    assert_int_equal(kva_response_store_create(bytes_max, &store, &err), KVA_OK);
    return store;
}

static void put(struct kva_response_store *store, const char *id, uint64_t owner, const char *text)
{
    const struct kva_stored_response response = {
        .id = id,
        .owner = owner,
        .document = text,
        .document_bytes = strlen(text),
        .conversation = "[1]",
        .conversation_bytes = 3,
        .input = "[2]",
        .input_bytes = 3,
    };
    kva_response_store_put(store, &response);
}

static bool holds(struct kva_response_store *store, const char *id, uint64_t owner,
                  const char *document)
{
    struct kva_buf text, conversation, input;
    kva_buf_init(&text, 1 << 20);
    kva_buf_init(&conversation, 1 << 20);
    kva_buf_init(&input, 1 << 20);
    bool found = kva_response_store_get(store, id, owner, &text, &conversation, &input);
    if (found) {
        assert_string_equal(text.data, document);
        assert_string_equal(conversation.data, "[1]");
        assert_string_equal(input.data, "[2]");
    }
    kva_buf_finish(&text);
    kva_buf_finish(&conversation);
    kva_buf_finish(&input);
    return found;
}

static void test_store__belongs_to_its_owner(void **state KVA_UNUSED)
{
    struct kva_response_store *store = create(1 << 20);
    put(store, "resp_a", 1, "one");
    put(store, "resp_a", 2, "two");
    assert_true(holds(store, "resp_a", 1, "one"));
    assert_true(holds(store, "resp_a", 2, "two"));
    assert_false(holds(store, "resp_a", 3, ""));
    assert_false(holds(store, "resp_b", 1, ""));
    assert_false(kva_response_store_remove(store, "resp_a", 3));
    assert_true(kva_response_store_remove(store, "resp_a", 1));
    assert_false(kva_response_store_remove(store, "resp_a", 1));
    assert_false(holds(store, "resp_a", 1, ""));
    assert_true(holds(store, "resp_a", 2, "two"));
    kva_response_store_destroy(store);
}

static void test_store__of_too_many_the_oldest_go(void **state KVA_UNUSED)
{
    struct kva_response_store *store = create(64 * 1024);
    struct kva_response_store_stats stats;
    char id[32], text[1024];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(id, sizeof(id), "resp_%u", i);
        put(store, id, 1, text);
        kva_response_store_get_stats(store, &stats);
        assert_true(stats.bytes <= 64 * 1024);
    }
    assert_true(stats.kept > 50 && stats.kept < 64);
    assert_true(holds(store, "resp_999", 1, text));
    snprintf(id, sizeof(id), "resp_%u", 1000 - stats.kept);
    assert_true(holds(store, id, 1, text));
    snprintf(id, sizeof(id), "resp_%u", 999 - stats.kept);
    assert_false(holds(store, id, 1, ""));
    kva_response_store_destroy(store);
}

static void test_store__nobody_drives_out_who_has_less(void **state KVA_UNUSED)
{
    struct kva_response_store *store = create(64 * 1024);
    struct kva_response_store_stats stats;
    char id[32], text[1024], large[48 * 1024];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    memset(large, 'y', sizeof(large) - 1);
    large[sizeof(large) - 1] = '\0';
    put(store, "resp_first", 1, text);
    for (unsigned i = 0; i < 500; i++) {
        snprintf(id, sizeof(id), "resp_%u", i);
        put(store, id, 2, text);
        snprintf(id, sizeof(id), "other_%u", i);
        put(store, id, 3, i % 2 ? large : text);
        assert_true(holds(store, "resp_first", 1, text));
    }
    kva_response_store_get_stats(store, &stats);
    assert_true(stats.bytes <= 64 * 1024);
    /* One alone may have all, and gives way to whoever comes then. */
    put(store, "resp_large", 4, large);
    assert_true(holds(store, "resp_large", 4, large));
    assert_true(holds(store, "resp_first", 1, text));
    assert_true(kva_response_store_remove(store, "resp_first", 1));
    put(store, "resp_again", 1, text);
    assert_true(holds(store, "resp_again", 1, text));
    kva_response_store_destroy(store);
}

static void test_store__what_cannot_fit_is_not_kept(void **state KVA_UNUSED)
{
    struct kva_response_store *store = create(512);
    struct kva_response_store_stats stats;
    char text[1024];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    put(store, "resp_small", 1, "s");
    put(store, "resp_large", 1, text);
    assert_false(holds(store, "resp_large", 1, ""));
    assert_true(holds(store, "resp_small", 1, "s"));
    kva_response_store_destroy(store);
    store = create(0);
    put(store, "resp_small", 1, "s");
    kva_response_store_get_stats(store, &stats);
    assert_int_equal(stats.kept, 0);
    kva_response_store_destroy(store);
    kva_response_store_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store__belongs_to_its_owner),
        cmocka_unit_test(test_store__of_too_many_the_oldest_go),
        cmocka_unit_test(test_store__nobody_drives_out_who_has_less),
        cmocka_unit_test(test_store__what_cannot_fit_is_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
